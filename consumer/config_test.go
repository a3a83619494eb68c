package consumer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/outbox"
)

// Its tables would not be checked at the start.
func TestAnOutboxOfAnotherSchemaIsRefused(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		inbox, outbox string
		same          bool
	}{{"", "other", false}, {"other", "", false}, {"", "oncemill", true}, {"other", "other", true}} {
		box, err := outbox.New(outbox.Config{Schema: tc.outbox})
		require.NoError(t, err)
		cfg := config()
		cfg.Inbox.Schema, cfg.Outbox = tc.inbox, box
		_, err = consumer.New(b.Pool, cfg)
		if tc.same {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "consumer.Config.Outbox: its schema is ")
		require.ErrorContains(t, err, `"other"`)
		require.ErrorContains(t, err, `"oncemill"`)
	}
}
