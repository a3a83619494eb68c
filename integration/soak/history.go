package main

import (
	"cmp"
	"fmt"
	"slices"
)

// history is what a run left behind, and what it was asked to do.
type history struct {
	forms    []string
	events   []Event // published and acknowledged
	ledger   []entry
	balances map[balance]int64
	commands []command // in the stream, copies included
	held     int       // messages put aside
	queued   int       // commands that were not sent
	unacked  int       // deliveries that were not settled
}

// entry is a row of the ledger.
type entry struct {
	Form string
	Event
}

// balance names one.
type balance struct {
	form    string
	account int
}

// command is a message that a handler sent.
type command struct {
	entry
	logicalID string
}

// effect is an event as a form of handler is to book it.
type effect struct{ form, event string }

// verdict is what a history comes to.
type verdict struct {
	Doubled int `json:"doubled"` // effects or commands more than once
	Lost    int `json:"lost"`    // effects or commands not at all
	// Problems are for people, at most maxProblems of each kind.
	Problems []string `json:"problems,omitempty"`
}

func (v verdict) kept() bool { return len(v.Problems) == 0 }

// maxProblems bounds the lines about one kind of problem.
const maxProblems = 5

// judge holds a history against what must hold: every event has every form's
// effect once and sent one command, and balances are sums of what happened
// once.
func judge(h history) verdict {
	j := judgement{want: map[effect]Event{}, said: map[string]int{}}
	for _, form := range h.forms {
		for _, e := range h.events {
			j.want[effect{form, e.ID}] = e
		}
	}
	j.judgeLedger(h)
	j.judgeCommands(h)
	j.judgeBalances(h)
	for what, n := range map[string]int{"messages held": h.held, "commands not sent": h.queued, "deliveries not settled": h.unacked} {
		if n > 0 {
			j.complain(what, "%d %s", n, what)
		}
	}
	slices.Sort(j.Problems)
	return j.verdict
}

type judgement struct {
	verdict
	want map[effect]Event
	said map[string]int
}

func (j *judgement) complain(kind, format string, args ...any) {
	if j.said[kind]++; j.said[kind] <= maxProblems {
		j.Problems = append(j.Problems, fmt.Sprintf(format, args...))
	}
}

func (j *judgement) judgeLedger(h history) {
	times := map[effect]int{}
	for _, e := range h.ledger {
		times[effect{e.Form, e.ID}]++
		j.judgeEntry("an entry", e)
	}
	for want := range j.want {
		j.judgeTimes("booked", want, times[want])
	}
}

// judgeEntry makes sure that an entry says what its event says.
func (j *judgement) judgeEntry(what string, e entry) {
	if want, asked := j.want[effect{e.Form, e.ID}]; !asked || want != e.Event {
		j.complain(what, "%s of form %s for event %q, account %d, amount %d: no such event", what, e.Form, e.ID, e.Account, e.Amount)
	}
}

func (j *judgement) judgeTimes(what string, e effect, times int) {
	switch {
	case times == 0:
		j.Lost++
		j.complain(what+" lost", "event %s was not %s by form %s", e.event, what, e.form)
	case times > 1:
		j.Doubled++
		j.complain(what+" doubled", "event %s was %s %d times by form %s", e.event, what, times, e.form)
	}
}

// judgeCommands counts logical ids: copies of one are what at-least-once is.
func (j *judgement) judgeCommands(h history) {
	ids := map[effect]map[string]bool{}
	for _, c := range h.commands {
		e := effect{c.Form, c.ID}
		if ids[e] == nil {
			ids[e] = map[string]bool{}
		}
		ids[e][c.logicalID] = true
		if c.logicalID == "" {
			j.complain("no id", "a command of form %s for event %s has no logical id", c.Form, c.ID)
		}
		j.judgeEntry("a command", c.entry)
	}
	for want := range j.want {
		j.judgeTimes("commanded", want, len(ids[want]))
	}
}

func (j *judgement) judgeBalances(h history) {
	sums := map[balance]int64{}
	for want, e := range j.want {
		sums[balance{want.form, e.Account}] += e.Amount
	}
	for b, sum := range h.balances {
		if sum != sums[b] {
			j.complain("balance", "the balance of account %d, form %s, is off by %d", b.account, b.form, sum-sums[b])
		}
		delete(sums, b)
	}
	left := make([]balance, 0, len(sums))
	for b := range sums {
		left = append(left, b)
	}
	slices.SortFunc(left, func(a, b balance) int {
		return cmp.Or(cmp.Compare(a.form, b.form), cmp.Compare(a.account, b.account))
	})
	for _, b := range left {
		j.complain("balance", "account %d, form %s, has no balance", b.account, b.form)
	}
}
