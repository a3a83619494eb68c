package keys_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
)

const (
	early     = "2024-01-02T03:04:05Z"
	late      = "2024-02-02T03:04:05Z"
	uuid7     = "018d69d5-2c88-7000-8000-000000000000" // of 2024-02-02T12:39:54.76Z
	uuid7Time = "2024-02-02T12:39:54.76Z"
)

func TestTheTimeOfAKeyIsTheEarliestOfItsParts(t *testing.T) {
	event, id := keys.CloudEvents(), keys.Metadata("id")
	for name, tc := range map[string]struct {
		key  keys.Func
		msg  *message.Message
		want string
	}{
		"binary":                  {event, msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", early), early},
		"Kafka binding":           {event, msg("x", "ce_source", "/a", "ce_id", "1", "ce_time", early), early},
		"any case, other zone":    {event, msg("x", "CE-Source", "/a", "CE-Id", "1", "CE-Time", "2024-01-02t05:04:05+02:00"), early},
		"outer blanks":            {event, msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", " "+early+"\t"), early},
		"structured":              {event, msg(`{"specversion":"1.0","source":"/a","id":"1","time":"` + early + `"}`), early},
		"structured, null":        {event, msg(`{"specversion":"1.0","source":"/a","id":"1","time":null}`), ""},
		"structured, none":        {event, msg(`{"specversion":"1.0","source":"/a","id":"1"}`, "ce-time", early), ""},
		"blank":                   {event, msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", " "), ""},
		"none":                    {event, msg("x", "ce-source", "/a", "ce-id", "1"), ""},
		"id alone":                {event, msg("x", "ce-source", "/a", "ce-id", uuid7), uuid7Time},
		"time before id":          {event, msg("x", "ce-source", "/a", "ce-id", uuid7, "ce-time", early), early},
		"id before time":          {event, msg("x", "ce-source", "/a", "ce-id", uuid7, "ce-time", "2025-01-01T00:00:00Z"), uuid7Time},
		"composite, none":         {keys.Composite(id, id), msg("", "id", "1"), ""},
		"composite, second":       {keys.Composite(keys.Metadata("a"), id), msg("", "a", "1", "id", uuid7), uuid7Time},
		"composite, event":        {keys.Composite(id, event), msg("", "id", uuid7, "ce-source", "/a", "ce-id", "1", "ce-time", late), late},
		"composite, within a one": {keys.Composite(id, keys.Composite(id, event)), msg("", "id", "1", "ce-source", "/a", "ce-id", "1", "ce-time", late), late},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.key.(keys.Timed).Time(tc.msg)
			require.NoError(t, err)
			if tc.want == "" {
				require.True(t, got.IsZero(), got)
				return
			}
			require.Equal(t, tc.want, got.UTC().Format(time.RFC3339Nano))
		})
	}
	require.NotImplements(t, (*keys.Timed)(nil), id, "its id says it")
}

func TestATimeThatCannotBeReadIsPermanent(t *testing.T) {
	for name, m := range map[string]*message.Message{
		"no time":           msg("x", "ce-source", "/a", "ce-id", uuid7, "ce-time", canary),
		"a date":            msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", "2024-01-02"),
		"Go's zero":         msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", "0001-01-01T00:00:00Z"),
		"two times":         msg("x", "ce-source", "/a", "ce-id", "1", "ce-time", early, "ce_time", late),
		"structured number": msg(`{"specversion":"1.0","source":"/a","id":"1","time":1704164645}`),
		"structured twice":  msg(`{"specversion":"1.0","source":"/a","id":"1","time":"` + early + `","time":"` + early + `"}`),
	} {
		for _, key := range []keys.Func{keys.CloudEvents(), keys.Composite(keys.CloudEvents(), keys.CloudEvents())} {
			_, err := key.(keys.Timed).Time(m)
			require.Error(t, err, name)
			require.True(t, dedup.IsPermanent(err), name)
			require.NotContains(t, err.Error(), canary)
			_, err = key.ID(m)
			require.NoError(t, err, "%s: the id is none the worse", name)
		}
	}
}
