package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

// C64: several relay processes, one paused in the middle of its work, one
// killed.
func TestC64_RelayProcesses(t *testing.T) {
	t.Parallel()
	const rows, perKey = 2000, 100
	s := newStack(t)
	var relays []*testbed.Worker
	for range 4 {
		relays = append(relays, s.child("relay", childSpec{wiring: s.wiring()}))
	}
	owners := func() int {
		return s.count(`SELECT count(DISTINCT owner) FROM oncemill.outbox_lane WHERE expires_at > clock_timestamp()`)
	}
	s.eventually("each has its share", func() bool { return owners() == 4 })
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.writeNumbered(rows, perKey)
	}()
	s.eventually("under way", func() bool { return s.count(`SELECT count(*) FROM oncemill.outbox`) > rows/10 })

	fences := func() int { return s.count(`SELECT sum(fence) FROM oncemill.outbox_lane`) }
	before := fences()
	require.NoError(t, relays[0].Pause(t.Context()))
	s.eventually("the lane of the paused relay is taken over", func() bool { return fences() > before })
	require.NoError(t, relays[1].Kill())
	require.NoError(t, relays[0].Resume())
	<-written
	s.drained()
	s.requireOrder(rows, perKey)
	require.Zero(t, s.count(`SELECT coalesce(sum(attempts), 0) FROM oncemill.outbox_queue`))
}
