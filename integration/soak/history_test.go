package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// right is a history in which everything happened once, and a command arrived
// twice.
func right() history {
	h := history{forms: []string{"handler", "queue"}, balances: map[balance]int64{}}
	h.events = []Event{{"e1", 1, 10}, {"e2", 1, 5}, {"e3", 2, 7}}
	for _, form := range h.forms {
		for _, e := range h.events {
			h.ledger = append(h.ledger, entry{form, e})
			h.commands = append(h.commands, command{entry{form, e}, form + e.ID})
			h.balances[balance{form, e.Account}] += e.Amount
		}
	}
	h.commands = append(h.commands, h.commands[0])
	return h
}

func TestRightHistory(t *testing.T) {
	require.Equal(t, verdict{}, judge(right()))
	require.True(t, judge(right()).kept())
}

func TestEveryFaultIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil         func(*history)
		doubled, lost int
		problem       string
	}{
		"doubled entry":    {func(h *history) { h.ledger = append(h.ledger, h.ledger[4]) }, 1, 0, "event e2 was booked 2 times by form queue"},
		"lost entry":       {func(h *history) { h.ledger = h.ledger[1:] }, 0, 1, "event e1 was not booked by form handler"},
		"wrong account":    {func(h *history) { h.ledger[0].Account = 9 }, 0, 0, `an entry of form handler for event "e1", account 9, amount 10: no such event`},
		"foreign entry":    {func(h *history) { h.ledger = append(h.ledger, entry{"set", h.events[0]}) }, 0, 0, `an entry of form set for event "e1", account 1, amount 10: no such event`},
		"wrong balance":    {func(h *history) { h.balances[balance{"queue", 1}]++ }, 0, 0, "the balance of account 1, form queue, is off by 1"},
		"no balance":       {func(h *history) { delete(h.balances, balance{"queue", 2}) }, 0, 0, "account 2, form queue, has no balance"},
		"foreign balance":  {func(h *history) { h.balances[balance{"queue", 3}] = 4 }, 0, 0, "the balance of account 3, form queue, is off by 4"},
		"doubled command":  {func(h *history) { h.commands[6].logicalID = "other" }, 1, 0, "event e1 was commanded 2 times by form handler"},
		"lost command":     {func(h *history) { h.commands = slices.Delete(h.commands, 1, 2) }, 0, 1, "event e2 was not commanded by form handler"},
		"changed command":  {func(h *history) { h.commands[1].Amount = 6 }, 0, 0, `a command of form handler for event "e2", account 1, amount 6: no such event`},
		"command, no id":   {func(h *history) { h.commands[1].logicalID = "" }, 0, 0, "a command of form handler for event e2 has no logical id"},
		"held":             {func(h *history) { h.held = 2 }, 0, 0, "2 messages held"},
		"command not sent": {func(h *history) { h.queued = 1 }, 0, 0, "1 commands not sent"},
		"not settled":      {func(h *history) { h.unacked = 3 }, 0, 0, "3 deliveries not settled"},
	} {
		t.Run(name, func(t *testing.T) {
			h := right()
			h.balances = maps.Clone(h.balances)
			tc.spoil(&h)
			require.Equal(t, verdict{tc.doubled, tc.lost, []string{tc.problem}}, judge(h))
		})
	}
}

func TestProblemsOfOneKindAreBounded(t *testing.T) {
	h := right()
	for range 3 * maxProblems {
		h.ledger = append(h.ledger, entry{"set", h.events[0]})
	}
	require.Len(t, judge(h).Problems, maxProblems)
}
