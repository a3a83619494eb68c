package keys_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/keys"
)

func TestC04_SourceAndIDTogether(t *testing.T) {
	id := func(m *message.Message) string {
		id, err := keys.CloudEvents().ID(m)
		require.NoError(t, err)
		return id
	}
	a := id(msg("x", "ce-source", "/a", "ce-id", "1", "ce-type", "made"))
	b := id(msg("y", "ce-source", "/b", "ce-id", "1", "ce-type", "made"))
	require.NotEqual(t, a, b)
	require.Equal(t, a, id(msg("x", "ce-source", "/a", "ce-id", "1", "ce-type", "made")))
	require.Equal(t, a, id(msg("x", "ce-source", "/a", "ce-id", "1", "ce-type", "paid")), "the type is not part of the identity")
}

func TestCloudEventsModesGiveOneID(t *testing.T) {
	event := `{"specversion":"1.0","source":"/a","id":"1","type":"made","data":{"id":"2"}}`
	for name, m := range map[string]*message.Message{
		"NATS and HTTP binding":  msg("x", "ce-source", "/a", "ce-id", "1"),
		"canonical letter case":  msg("x", "Ce-Source", "/a", "Ce-Id", "1", "Content-Type", "application/json"),
		"Kafka binding":          msg("x", "ce_source", "/a", "ce_id", "1"),
		"both, equal":            msg("x", "ce_source", "/a", "ce_id", "1", "ce-source", "/a", "ce-id", "1"),
		"structured":             msg(event, "content-type", "application/cloudevents+json"),
		"structured, parameters": msg(event, "Content-Type", "Application/CloudEvents+JSON ; charset=utf-8"),
		"structured wins":        msg(event, "content-type", "application/cloudevents+json", "ce-source", "/b", "ce-id", "2"),
		"structured, no headers": msg(event),
	} {
		t.Run(name, func(t *testing.T) { requireID(t, "2:/a|1:1", keys.CloudEvents(), m) })
	}
}

func TestCloudEventsRefuses(t *testing.T) {
	for name, m := range map[string]*message.Message{
		"no source":           msg("x", "ce-id", canary),
		"no id":               msg("x", "ce-source", canary),
		"two ids":             msg("x", "ce-source", "/a", "ce-id", canary, "ce_id", "2"),
		"two content types":   msg("x", "content-type", "a/b", "Content-Type", "a/"+canary, "ce-source", "/a", "ce-id", "1"),
		"batch":               msg("[]", "content-type", "application/cloudevents-batch+json"),
		"other format":        msg("<x/>", "content-type", "application/cloudevents+xml"),
		"structured, no JSON": msg(canary, "content-type", "application/cloudevents+json"),
		"structured, no id":   msg(`{"specversion":"1.0","source":"`+canary+`"}`, "content-type", "application/cloudevents+json"),
		"structured, two ids": msg(`{"specversion":"1.0","source":"/a","id":"1","id":"2"}`),
		"no event":            msg(`{"source":"/a","id":"` + canary + `"}`),
	} {
		t.Run(name, func(t *testing.T) { requireRefused(t, keys.CloudEvents(), m) })
	}
}
