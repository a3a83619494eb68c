package keys_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/dedup"
)

// canary is the value of what no error may show.
const canary = "s3cret-value"

func msg(payload string, metadata ...string) *message.Message {
	m := message.NewMessage("uuid-1", []byte(payload))
	for i := 0; i < len(metadata); i += 2 {
		m.Metadata[metadata[i]] = metadata[i+1]
	}
	return m
}

func requireID(t *testing.T, want string, key keys.Func, m *message.Message) {
	t.Helper()
	id, err := key.ID(m)
	require.NoError(t, err)
	require.Equal(t, want, id)
}

// requireRefused checks that m has no key: permanent, naming the source, and
// without any value of the message.
func requireRefused(t *testing.T, key keys.Func, m *message.Message) {
	t.Helper()
	id, err := key.ID(m)
	require.Error(t, err)
	require.Empty(t, id)
	require.True(t, dedup.IsPermanent(err), err)
	var refused *keys.Error
	require.ErrorAs(t, err, &refused)
	require.NotEmpty(t, refused.Source)
	require.NotContains(t, err.Error(), canary)
}

func TestC02_MissingAndBlankAreRefused(t *testing.T) {
	for name, key := range map[string]keys.Func{
		"metadata":  keys.Metadata("order_id"),
		"logical":   keys.LogicalID(),
		"broker":    keys.BrokerID(),
		"uuid":      keys.MessageUUID(),
		"events":    keys.CloudEvents(),
		"pointer":   keys.JSONPointer("/order_id"),
		"composite": keys.Composite(keys.Metadata("tenant"), keys.Metadata("order_id")),
		"custom":    keys.New("mine", func(m *message.Message) (string, error) { return m.Metadata["order_id"], nil }),
	} {
		t.Run(name, func(t *testing.T) {
			for _, blank := range []string{"", " ", "\t", " \t "} {
				m := msg(`{"order_id":"`+strings.ReplaceAll(blank, "\t", `\t`)+`"}`,
					"order_id", blank, "tenant", canary, "Oncemill-Id", blank, "Nats-Msg-Id", blank, "ce-id", blank, "ce-source", canary)
				m.UUID = blank
				requireRefused(t, key, m)
			}
			requireRefused(t, key, message.NewMessage("", nil))
		})
	}
}

func TestC07_OuterBlanksAreCutOffEverywhere(t *testing.T) {
	for _, y := range []string{"Y", " Y ", "Y\t"} {
		requireID(t, "Y", keys.Metadata("k"), msg("", "k", y))
		requireID(t, "Y", keys.LogicalID(), msg("", "Oncemill-Id", y))
		requireID(t, "Y", keys.BrokerID(), msg("", "Nats-Msg-Id", y))
		requireID(t, "1:Y|1:Y", keys.Composite(keys.Metadata("k"), keys.Metadata("k")), msg("", "k", y))
		requireID(t, "1:Y|1:Y", keys.CloudEvents(), msg("", "ce-source", y, "ce-id", y))
		requireID(t, "Y", keys.JSONPointer("/k"), msg(`{"k":"`+strings.ReplaceAll(y, "\t", `\t`)+`"}`))
		key, err := dedup.NewKey("acme", "charge", y)
		require.NoError(t, err)
		require.Equal(t, "Y", key.ID, "the direct API has the same rule")
	}
	requireID(t, "a b", keys.Metadata("k"), msg("", "k", " a b "))
	requireID(t, "\u00a0Y", keys.Metadata("k"), msg("", "k", "\u00a0Y"))
}

func TestC11_TheSourceDecidesAndIsShown(t *testing.T) {
	business, uuids := map[string]bool{}, map[string]bool{}
	for _, copyOf := range []struct{ uuid, delivery string }{{"u1", "d1"}, {"u2", "d1"}, {"u3", "d2"}} {
		m := msg("", "order_id", "o-1", "delivery_id", copyOf.delivery)
		m.UUID = copyOf.uuid
		id, err := keys.Metadata("order_id").ID(m)
		require.NoError(t, err)
		business[id] = true
		id, err = keys.MessageUUID().ID(m)
		require.NoError(t, err)
		uuids[id] = true
	}
	require.Len(t, business, 1)
	require.Len(t, uuids, 3)

	for want, key := range map[string]keys.Func{
		`metadata "order_id"`:        keys.Metadata("order_id"),
		"logical id":                 keys.LogicalID(),
		"broker id":                  keys.BrokerID(),
		"message UUID":               keys.MessageUUID(),
		"CloudEvents source + id":    keys.CloudEvents(),
		"payload /order/id":          keys.JSONPointer("/order/id"),
		"mine":                       keys.New("mine", func(*message.Message) (string, error) { return "", nil }),
		`metadata "t" + payload /id`: keys.Composite(keys.Metadata("t"), keys.JSONPointer("/id")),
	} {
		require.Equal(t, want, key.String())
	}
}

func TestBrokerIDPrefersTheLogicalID(t *testing.T) {
	requireID(t, "l-1", keys.BrokerID(), msg("", "Oncemill-Id", "l-1", "Nats-Msg-Id", "b-1"))
	requireID(t, "b-1", keys.BrokerID(), msg("", "Nats-Msg-Id", "b-1"))
	requireRefused(t, keys.LogicalID(), msg("", "Nats-Msg-Id", canary))
}

func TestCompositeIsInjective(t *testing.T) {
	pair := keys.Composite(keys.Metadata("a"), keys.Metadata("b"))
	seen := map[string]bool{}
	for _, parts := range [][2]string{{"x", "y"}, {"y", "x"}, {"x|1:y", "z"}, {"x", "y|1:z"}, {"1:x", "y"}, {"xy", "z"}, {"x", "yz"}} {
		id, err := pair.ID(msg("", "a", parts[0], "b", parts[1]))
		require.NoError(t, err)
		require.False(t, seen[id], id)
		seen[id] = true
	}
	nested := keys.Composite(pair, keys.Metadata("c"))
	flat := keys.Composite(keys.Metadata("a"), keys.Metadata("b"), keys.Metadata("c"))
	m := msg("", "a", "1", "b", "2", "c", "3")
	requireID(t, "1:1|1:2|1:3", flat, m)
	requireID(t, "7:1:1|1:2|1:3", nested, m)
}

func TestNewPassesErrorsOn(t *testing.T) {
	away := errors.New("look-up service is away")
	_, err := keys.New("mine", func(*message.Message) (string, error) { return "", away }).ID(msg(""))
	require.ErrorIs(t, err, away)
	require.ErrorContains(t, err, "key from mine")
	require.False(t, dedup.IsPermanent(err), "a custom source may fail for a while")

	_, err = keys.New("mine", func(*message.Message) (string, error) { return "", dedup.Permanent(away) }).ID(msg(""))
	require.True(t, dedup.IsPermanent(err))
}

func TestProgrammingErrorsPanic(t *testing.T) {
	id := func(*message.Message) (string, error) { return "", nil }
	require.Panics(t, func() { keys.Metadata(" ") })
	require.Panics(t, func() { keys.New("", id) })
	require.Panics(t, func() { keys.New("mine", nil) })
	for _, pointer := range []string{"", "order/id", "/a~", "/a~2", "/\xff", "/\ufffd"} {
		require.Panics(t, func() { keys.JSONPointer(pointer) }, pointer)
	}
}
