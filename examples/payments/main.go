// Command payments shows what oncemill promises, under faults:
//
//	go run ./examples/payments
//
// A producer publishes payments to NATS JetStream, a share of them again under
// new broker ids. Worker processes apply each to a ledger and to balances in
// PostgreSQL and send a command for it. Workers are killed, PostgreSQL and NATS
// crash and come back. Then the producer's own list is held against what is
// there. With -naive the same handler runs without oncemill, and the check
// fails. -h lists the flags.
//
// To copy: handler.go is a handler, service.go the service around it. The rest
// is the storm: load.go and producer.go publish, crew.go and outages.go make
// the faults, evidence.go and verdict.go are the check.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/oncemill/oncemill/integration/testbed"
)

func main() {
	testbed.Init()
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitKept   = 0 // each payment once
	exitBroken = 1 // not so, or no result
	exitUsage  = 2 // a bad flag
)

// execute is the program but for its exit.
func execute(args []string, stdout, stderr *os.File) int {
	o, err := parseOptions(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitKept
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "payments: %v (-h lists the flags)\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	r, err := run(ctx, o, newConsole(stderr))
	err = errors.Join(err, testbed.Close())
	if err == nil {
		err = report(stdout, o, r)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "payments: %v\n", err)
		return exitBroken
	}
	if r.failed() {
		return exitBroken
	}
	return exitKept
}

func report(w io.Writer, o options, r result) error {
	if err := r.print(w); err != nil || !o.json {
		return err
	}
	return r.printJSON(w)
}
