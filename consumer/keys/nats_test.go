package keys_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/integration/testbed"
)

// C01: keyless messages of a foreign producer are refused, each for itself, and
// the broker id is there for those who ask for it.
// C07 (a): what NATS does to blanks gives the id that every other entry gives.
func TestC01_C07_OverNATS(t *testing.T) {
	s := testbed.NewStream(t, nil)
	for _, y := range []string{"Y", " Y ", "Y\t", " \t "} {
		m := nats.NewMsg(s.Subject("new"))
		m.Header.Set("order_id", y)
		m.Header.Set("Nats-Msg-Id", "evt-"+y+"-end")
		_, err := s.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	sub, err := jetstream.New(s.Conn, jetstream.Config{Durable: "keys"})
	require.NoError(t, err)
	msgs, err := sub.Subscribe(t.Context(), s.Subject("new"))
	require.NoError(t, err)
	for i := range 4 {
		select {
		case m := <-msgs:
			requireRefused(t, keys.LogicalID(), m)
			requireRefused(t, keys.Metadata("event_id"), m)
			if i < 3 {
				requireID(t, "Y", keys.Metadata("order_id"), m)
			} else {
				requireRefused(t, keys.Metadata("order_id"), m)
			}
			id, err := keys.BrokerID().ID(m)
			require.NoError(t, err)
			require.Contains(t, id, "evt-")
			m.Ack()
		case <-time.After(30 * time.Second):
			require.FailNow(t, "no message came")
		}
	}
	require.NoError(t, sub.Close())
}
