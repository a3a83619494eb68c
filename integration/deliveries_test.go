package integration

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
)

// deliveries records when messages came, by their place in the stream.
type deliveries struct {
	mu sync.Mutex
	at map[uint64][]time.Time
}

func (d *deliveries) around(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if info, ok := consumer.DeliveryFrom(msg.Context()); ok {
			d.note(info.Sequence)
		}
		return h(msg)
	}
}

func (d *deliveries) note(sequence uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[uint64][]time.Time{}
	}
	d.at[sequence] = append(d.at[sequence], time.Now())
}

// least is how often that one of the messages came that came least.
func (d *deliveries) least(sequences []uint64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := math.MaxInt
	for _, sequence := range sequences {
		n = min(n, len(d.at[sequence]))
	}
	return n
}

// requireDelays bounds how often each message came by how long it took: with
// delays of 20, 40, 80, 160, 200, 200 ms …, a quarter of it less at most, five
// deliveries take 225 ms, and each further one 150 ms.
func (d *deliveries) requireDelays(t testing.TB, messages int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	require.Len(t, d.at, messages)
	for sequence, at := range d.at {
		took := at[len(at)-1].Sub(at[0])
		require.LessOrEqual(t, len(at), 5+int(took/(150*time.Millisecond)), "deliveries of message %d within %s", sequence, took)
	}
}
