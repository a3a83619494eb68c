// Command soak looks for doubled and lost effects under faults:
//
//	make soak                              a minute
//	make soak ARGS="-duration 1h -seed 7"  longer; a run's seed is printed
//
// A producer publishes events to NATS JetStream, a share of them again under
// new broker ids. Three worker processes handle each event in every form that a
// handler can have (transactions of their own, groups, queued statements, sets,
// database/sql), and relay the commands that handlers send. Some handlers fail,
// panic, or have a statement refused. Meanwhile workers are killed and
// suspended, connections cut before and after COMMIT, PostgreSQL and NATS crash.
// Then the ledger, the balances and the commands are held against the
// producer's own list. Nothing in the tables would keep an event from being
// booked twice.
//
// The seed decides events, and which faults happen in which order; what they
// meet is up to the machine.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/oncemill/oncemill/integration/testbed"
)

func main() {
	testbed.Role(workerRole, runWorker)
	testbed.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err = errors.Join(err, testbed.Close()); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// errBroken is the end of a run that found something.
var errBroken = errors.New("not once each: see above")

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	seed := flags.Uint64("seed", 0, "decides events and faults; 0 draws one")
	duration := flags.Duration("duration", time.Minute, "how long events are published and faults happen")
	asJSON := flags.Bool("json", false, "print the result as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: there are flags only; see -help", flags.Arg(0))
	}
	if *duration <= 0 {
		return fmt.Errorf("-duration: %s is not positive", *duration)
	}
	if *seed == 0 {
		*seed = rand.Uint64N(1_000_000) + 1
	}
	_, _ = fmt.Fprintf(stderr, "seed %d, %s\n", *seed, *duration)
	r, err := run(ctx, *seed, *duration)
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		err = r.print(stdout)
	}
	if err == nil && !r.kept() {
		err = errBroken
	}
	return err
}

// print tells people.
func (r result) print(w io.Writer) error {
	out := fmt.Sprintf("\n  events    %8d  and %d copies, to %d forms of handlers\n  effects   %8d  %d doubled, %d lost\n  took      %8.1f  seconds, seed %d\n",
		r.Events, r.Copies, len(forms), r.Effects, r.Doubled, r.Lost, r.Seconds, r.Seed)
	for _, f := range faults {
		out += fmt.Sprintf("  %-19s %4d  times\n", f.name, r.Faults[f.name])
	}
	for _, p := range r.Problems {
		out += "  ! " + p + "\n"
	}
	if r.kept() {
		out += "\nonce each: nothing doubled, nothing lost\n"
	}
	_, err := io.WriteString(w, out)
	return err
}
