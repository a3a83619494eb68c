package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// options are the flags.
type options struct {
	intents    int
	rate       int           // payments per second
	duplicates float64       // share of the payments that is published again
	workers    int           // processes
	killEvery  time.Duration // 0: no kills
	seed       uint64
	json       bool
	naive      bool
	calm       bool // no faults
	group      bool // payments that wait share a transaction
	verbose    bool

	// minKills is how many kills make the run count.
	minKills int
}

// requiredKills is the minKills of a run with kills: fewer prove little.
const requiredKills = 10

const usage = `payments applies payments through crashes, and counts what happened to each.

A producer publishes payments to NATS JetStream, a share of them twice. Worker
processes apply them to a ledger and to balances in PostgreSQL, and send a
command for each. Meanwhile a worker is killed every second, PostgreSQL is
stopped as in a crash and started, and so is NATS. In the end the producer's own
list is held against the ledger, the balances and the stream of commands, which
are read without any help of oncemill.

Exit status: 0 if each payment was applied once and has one command, and the
faults struck while messages were outstanding (10 kills or more, and each server
once); 1 if not; 2 for a bad flag.

Flags:
`

const jsonUsage = `
The object that -json prints:
  mode                oncemill or naive
  intents             payments on the producer's list
  deliveries          as JetStream counts them for the durable consumer; its count
                      loses a little when NATS is killed
  effects             rows of the ledger
  duplicates          deliveries less effects: those that left no effect. Workers
                      die, so that nobody can count them one by one; attempts that
                      an outage or a kill rolled back are among them
  commands            rows of the outbox; naive: messages in the stream
  commands_received   different commands in the stream, by their logical id; a
                      command without one is different from all others
  command_copies      messages in the stream beyond the first of each command
  doubled             payments with several rows or several different commands
  lost                payments without a row, plus payments without a command
  balance_mismatches  accounts whose balance is not the sum of their payments
  worker_kills        workers killed while messages were outstanding
  database_restarts   crashes of PostgreSQL while messages were outstanding
  broker_restarts     kills of NATS while messages were outstanding
  seconds             from the first publish until everything was settled
  per_second          effects in each of them
`

// parseOptions reads the command line. Errors name the flag; flag.ErrHelp says
// that help was printed to out.
func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Usage = func() {} // not with every error
	flags.IntVar(&o.intents, "intents", 20000, "`number` of payments")
	flags.IntVar(&o.rate, "rate", 1000, "`number` of payments per second")
	flags.Float64Var(&o.duplicates, "duplicates", 0.3, "`share` of the payments, 0 to 1, that is published again")
	flags.IntVar(&o.workers, "workers", 4, "`number` of worker processes")
	flags.DurationVar(&o.killEvery, "kill-every", time.Second, "`time` between two kills of workers; 0 for none")
	flags.Uint64Var(&o.seed, "seed", 1, "`number` from which payments and faults are drawn")
	flags.BoolVar(&o.json, "json", false, "print a JSON object as the last line")
	flags.BoolVar(&o.naive, "naive", false, "run the same handler without oncemill")
	flags.BoolVar(&o.calm, "calm", false, "no faults")
	flags.BoolVar(&o.group, "group", false, "let payments that wait at the same time share a transaction")
	flags.BoolVar(&o.verbose, "v", false, "print what a worker logged when it ends")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(flags, out)
		}
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("argument %q: is not a flag; all settings are flags", flags.Arg(0))
	}
	if o.killEvery > 0 {
		o.minKills = requiredKills
	}
	return o, o.validate()
}

func printHelp(flags *flag.FlagSet, out io.Writer) {
	_, _ = io.WriteString(out, usage)
	flags.SetOutput(out)
	flags.PrintDefaults()
	_, _ = io.WriteString(out, jsonUsage)
}

func (o options) validate() error {
	switch {
	case o.intents < 1 || o.intents > 10_000_000:
		return fmt.Errorf("-intents: %d is not in 1 to 10000000", o.intents)
	case o.rate < 1 || o.rate > 100_000:
		return fmt.Errorf("-rate: %d is not in 1 to 100000 payments per second", o.rate)
	case !(o.duplicates >= 0 && o.duplicates <= 1): // NaN is neither
		return fmt.Errorf("-duplicates: %v is not in 0 to 1; it is a share", o.duplicates)
	case o.workers < 1 || o.workers > 64:
		return fmt.Errorf("-workers: %d is not in 1 to 64", o.workers)
	case o.group && o.naive:
		return errors.New("-group: is a way of oncemill; leave it or -naive out")
	case o.killEvery < 0:
		return fmt.Errorf("-kill-every: %s is negative; use 0 for no kills", o.killEvery)
	case o.killEvery > 0 && o.killEvery < 50*time.Millisecond:
		return errors.New("-kill-every: a worker takes 50ms or more to start; use 50ms or more, or 0 for no kills")
	}
	return nil
}

func (o options) mode() string {
	if o.naive {
		return "naive"
	}
	return "oncemill"
}

// role is what the worker processes run.
func (o options) role() string {
	if o.naive {
		return roleNaive
	}
	return roleOncemill
}
