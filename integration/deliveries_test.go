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

// deliveries records how messages come and go, by their place in the stream.
type deliveries struct {
	mu sync.Mutex
	of map[uint64][]arrival
}

// arrival is one delivery of a message.
type arrival struct {
	at    time.Time
	count uint64        // 1 for the first
	delay time.Duration // with which it was sent back; 0 if it was acked
}

func (d *deliveries) around(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		info, _ := consumer.DeliveryFrom(msg.Context())
		a := arrival{at: time.Now(), count: info.Count}
		msgs, err := h(msg)
		a.delay, _ = info.Disposition()
		d.note(info.Sequence, a)
		return msgs, err
	}
}

func (d *deliveries) note(sequence uint64, a arrival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[uint64][]arrival{}
	}
	d.of[sequence] = append(d.of[sequence], a)
}

// least is how often that one of the messages came that came least.
func (d *deliveries) least(sequences []uint64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := math.MaxInt
	for _, sequence := range sequences {
		n = min(n, len(d.of[sequence]))
	}
	return n
}

// requireDelays checks that messages went back with the delays of the bed, 20,
// 40, 80, 160, 200, 200 ms …, each a quarter shorter at most, and came no
// sooner. So n deliveries of one take 150 ms each, but for the first five.
func (d *deliveries) requireDelays(t testing.TB) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for sequence, list := range d.of {
		for i, a := range list[:len(list)-1] {
			require.EqualValues(t, i+1, a.count, "message %d: deliveries that nobody saw", sequence)
			require.GreaterOrEqual(t, a.delay, min(20*time.Millisecond<<min(i, 10), 200*time.Millisecond)*3/4, "message %d, delivery %d", sequence, a.count)
			require.GreaterOrEqual(t, list[i+1].at.Sub(a.at), a.delay, "message %d, delivery %d", sequence, a.count)
		}
		took := list[len(list)-1].at.Sub(list[0].at)
		require.LessOrEqual(t, len(list), 5+int(took/(150*time.Millisecond)), "deliveries of message %d within %s", sequence, took)
	}
}
