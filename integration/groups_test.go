package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGroupsKilled kills a service whose deliveries share transactions, at a
// statement of a group or with all deliveries behind it, and lets another one
// take over.
func TestGroupsKilled(t *testing.T) {
	const events = 200
	for name, tc := range map[string]struct {
		crash string
		hold  hold
	}{
		"before a claim":                     {hold: holdBefore(isGroupClaim)},
		"after a claim":                      {hold: holdAfter(isGroupClaim)},
		"before a commit reaches the server": {hold: holdBefore(isCommit)},
		"after a commit, before its reply":   {hold: holdAfter(isCommit)},
		"after a commit, before the acks":    {crash: crashCommitted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.group = true
			s.publishEvents(events)
			if tc.crash != "" {
				awaitDeath(t, s.child("service", childSpec{wiring: s.wiring(), Crash: tc.crash, Group: true}))
			} else {
				s.killAtStatement("service", tc.hold, 1, func() bool { return true })
			}
			second := s.child("service", childSpec{wiring: s.wiring(), Group: true, InFlight: 15})
			s.settled("charge")
			s.requireCommands(events)
			require.Equal(t, events, s.effects())
			require.Positive(t, finish(t, second).Consumer.Groups)
			require.Empty(t, s.held())
		})
	}
}

func isGroupClaim(sql string) bool { return isClaim(sql) && strings.Contains(sql, "unnest") }
