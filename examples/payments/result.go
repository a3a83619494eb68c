package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// result is what a run came to; -h explains the fields.
type result struct {
	Mode              string  `json:"mode"`
	Intents           int     `json:"intents"`
	Deliveries        int     `json:"deliveries"`
	Effects           int     `json:"effects"`
	Duplicates        int     `json:"duplicates"`
	Commands          int     `json:"commands"`
	CommandsReceived  int     `json:"commands_received"`
	CommandCopies     int     `json:"command_copies"`
	Doubled           int     `json:"doubled"`
	Lost              int     `json:"lost"`
	BalanceMismatches int     `json:"balance_mismatches"`
	WorkerKills       int     `json:"worker_kills"`
	DatabaseRestarts  int     `json:"database_restarts"`
	BrokerRestarts    int     `json:"broker_restarts"`
	Seconds           float64 `json:"seconds"`
	PerSecond         float64 `json:"per_second"`

	republished int
	accounts    int
	// Why the run failed: what was not as it must be, and which faults did not
	// strike, so that it proves little.
	broken, weak []string
}

// newResult sums up what was seen and done.
func newResult(o options, e evidence, v verdict, took time.Duration) result {
	r := result{
		Mode:              o.mode(),
		Intents:           o.intents,
		Deliveries:        int(e.deliveries),
		Effects:           v.effects,
		Duplicates:        max(0, int(e.deliveries)-v.effects), // the count may have gone back
		Commands:          e.outbox,
		CommandsReceived:  v.received,
		CommandCopies:     v.copies,
		Doubled:           v.doubled,
		Lost:              v.lost,
		BalanceMismatches: v.mismatches,
		Seconds:           round(took.Seconds()),
		PerSecond:         round(float64(v.effects) / took.Seconds()),
		accounts:          len(e.balances),
	}
	if o.naive { // it has no outbox
		r.Commands = len(e.commands)
	}
	return r
}

func round(x float64) float64 { return math.Round(10*x) / 10 }

// examine finds out why the run failed, if it did.
func (r *result) examine(o options, v verdict) {
	r.broken = complain(r.broken, r.Doubled > 0, "%d payments were applied or commanded more than once", r.Doubled)
	r.broken = complain(r.broken, r.Lost > 0, "%d ledger entries and commands are missing", r.Lost)
	r.broken = complain(r.broken, r.BalanceMismatches > 0, "%d balances are not the sum of their payments", r.BalanceMismatches)
	r.broken = complain(r.broken, r.Effects != r.Intents, "%d entries in the ledger for %d payments", r.Effects, r.Intents)
	r.broken = complain(r.broken, r.CommandsReceived != r.Intents, "%d different commands for %d payments", r.CommandsReceived, r.Intents)
	r.broken = complain(r.broken, v.strangers > 0, "%d ledger entries and commands fit no payment", v.strangers)
	r.broken = complain(r.broken, v.badKeys > 0 && !o.naive, "%d payments have no provider key of their own", v.badKeys)
	if o.calm {
		return
	}
	r.weak = complain(r.weak, r.WorkerKills < o.minKills, "%d workers were killed while messages were outstanding, not %d: use more -intents or a shorter -kill-every", r.WorkerKills, o.minKills)
	r.weak = complain(r.weak, r.DatabaseRestarts == 0, "PostgreSQL was not restarted while messages were outstanding: use more -intents")
	r.weak = complain(r.weak, r.BrokerRestarts == 0, "NATS was not restarted while messages were outstanding: use more -intents")
}

// complain adds a reason if bad.
func complain(reasons []string, bad bool, format string, args ...any) []string {
	if bad {
		reasons = append(reasons, fmt.Sprintf(format, args...))
	}
	return reasons
}

func (r *result) failed() bool { return len(r.broken)+len(r.weak) > 0 }

// print writes the table for people.
func (r *result) print(w io.Writer) error {
	text := &strings.Builder{}
	row := func(what string, format string, args ...any) {
		fmt.Fprintf(text, "  %-11s"+format+"\n", append([]any{what}, args...)...)
	}
	row("sent", "%8d  payments                      %6d  of them again", r.Intents, r.republished)
	row("delivered", "%8d  messages", r.Deliveries)
	row("suppressed", "%8d  deliveries without an effect", r.Duplicates)
	row("applied", "%8d  entries in the ledger         %6d  balances, %d of them wrong", r.Effects, r.accounts, r.BalanceMismatches)
	row("relayed", "%8d  commands                      %6d  copies", r.CommandsReceived, r.CommandCopies)
	row("killed", "%8d  workers                       %6d  crashes of PostgreSQL, %d of NATS", r.WorkerKills, r.DatabaseRestarts, r.BrokerRestarts)
	row("took", "%8.1f  seconds                       %6.0f  payments per second", r.Seconds, r.PerSecond)
	fmt.Fprintln(text)
	for _, reason := range append(r.broken, r.weak...) {
		fmt.Fprintf(text, "  %s\n", reason)
	}
	fmt.Fprintf(text, "%s: %d payments, %d doubled, %d lost\n", r.headline(), r.Intents, r.Doubled, r.Lost)
	_, err := io.WriteString(w, text.String())
	return err
}

func (r *result) headline() string {
	switch {
	case len(r.broken) > 0:
		return "not exactly once"
	case len(r.weak) > 0:
		return "exactly once, with too few faults to count"
	}
	return "exactly once"
}

// printJSON writes the result as one line.
func (r *result) printJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
