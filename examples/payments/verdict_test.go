package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// goodEvidence is what is left when everything went as it must.
func goodEvidence(payments []Payment) evidence {
	e := evidence{balances: map[string]int64{}}
	for i, p := range payments {
		e.ledger = append(e.ledger, entry{p.ID, p.Account, p.Amount})
		e.balances[p.Account] += p.Amount
		e.commands = append(e.commands, command{
			Charge:      Charge{p.ID, p.Account, p.Amount, p.Currency},
			logicalID:   fmt.Sprintf("command %d", i),
			providerKey: fmt.Sprintf("key %d", i),
		})
	}
	return e
}

func TestJudge(t *testing.T) {
	payments := []Payment{
		{"p1", "a", 10, "EUR"}, {"p2", "a", 20, "EUR"}, {"p3", "b", 30, "EUR"},
	}
	good := verdict{effects: 3, received: 3}
	for name, tc := range map[string]struct {
		change func(*evidence)
		want   func(*verdict)
	}{
		"all is well": {
			change: func(*evidence) {},
			want:   func(*verdict) {},
		},
		"entered twice": {
			change: func(e *evidence) { e.ledger = append(e.ledger, e.ledger[0]) },
			want:   func(v *verdict) { v.effects, v.doubled = 4, 1 },
		},
		"entered three times": {
			change: func(e *evidence) { e.ledger = append(e.ledger, e.ledger[0], e.ledger[0]) },
			want:   func(v *verdict) { v.effects, v.doubled = 5, 1 },
		},
		"not entered": {
			change: func(e *evidence) { e.ledger = e.ledger[1:] },
			want:   func(v *verdict) { v.effects, v.lost = 2, 1 },
		},
		"one entered twice, another not: the number is right": {
			change: func(e *evidence) { e.ledger[1] = e.ledger[0] },
			want:   func(v *verdict) { v.doubled, v.lost = 1, 1 },
		},
		"entered with another amount": {
			change: func(e *evidence) { e.ledger[0].Amount++ },
			want:   func(v *verdict) { v.lost, v.strangers = 1, 1 },
		},
		"entered on another account": {
			change: func(e *evidence) { e.ledger[0].Account = "b" },
			want:   func(v *verdict) { v.lost, v.strangers = 1, 1 },
		},
		"added twice": {
			change: func(e *evidence) { e.balances["a"] += 10 },
			want:   func(v *verdict) { v.mismatches = 1 },
		},
		"no balance": {
			change: func(e *evidence) { delete(e.balances, "b") },
			want:   func(v *verdict) { v.mismatches = 1 },
		},
		"balance of nobody": {
			change: func(e *evidence) { e.balances["c"] = 0 },
			want:   func(v *verdict) { v.mismatches = 1 },
		},
		"copies of a command": {
			change: func(e *evidence) { e.commands = append(e.commands, e.commands[2], e.commands[2]) },
			want:   func(v *verdict) { v.copies = 2 },
		},
		"a second command for a payment": {
			change: func(e *evidence) {
				second := e.commands[0]
				second.logicalID = "another"
				e.commands = append(e.commands, second)
			},
			want: func(v *verdict) { v.received, v.doubled = 4, 1 },
		},
		"no command": {
			change: func(e *evidence) { e.commands = e.commands[:2] },
			want:   func(v *verdict) { v.received, v.lost, v.badKeys = 2, 1, 1 },
		},
		"neither entry nor command": {
			change: func(e *evidence) { e.ledger, e.commands = e.ledger[:2], e.commands[:2] },
			want:   func(v *verdict) { v.effects, v.received, v.lost, v.badKeys = 2, 2, 2, 1 },
		},
		"a command with another amount": {
			change: func(e *evidence) { e.commands[0].Amount++ },
			want:   func(v *verdict) { v.lost, v.strangers, v.badKeys = 1, 1, 1 },
		},
		"a command without a provider key": {
			change: func(e *evidence) { e.commands[0].providerKey = "" },
			want:   func(v *verdict) { v.badKeys = 1 },
		},
		"a copy with another provider key": {
			change: func(e *evidence) {
				second := e.commands[0]
				second.providerKey = "another"
				e.commands = append(e.commands, second)
			},
			want: func(v *verdict) { v.copies, v.badKeys = 1, 1 },
		},
		"the provider key of another payment": {
			change: func(e *evidence) { e.commands[1].providerKey = e.commands[0].providerKey },
			want:   func(v *verdict) { v.badKeys = 1 },
		},
		"nothing at all": {
			change: func(e *evidence) { *e = evidence{} },
			want:   func(v *verdict) { *v = verdict{lost: 6, mismatches: 2, badKeys: 3} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := goodEvidence(payments)
			tc.change(&e)
			want := good
			tc.want(&want)
			require.Equal(t, want, judge(slices.Clone(payments), e))
		})
	}
}
