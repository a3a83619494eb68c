// Command bench measures oncemill against what people would write or run
// instead, on throwaway servers:
//
//	make bench                      all benchmarks, for people
//	make bench ARGS="-quick"        three short runs each
//	make bench ARGS="-only inbox -json"
//	make bench ARGS="-picture FILE"  draws the inbox and the relay as well, as SVG
//
// The variants of a benchmark run in turn, again and again, each run in a new
// database or stream and after a checkpoint; the first place changes from
// round to round. What is printed are medians over the rounds, and ratios of
// these medians: above 1, the variant is better than what it is compared with.
//
// With -json each comparison is one JSON object per line (see record).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/oncemill/oncemill/integration/testbed"
)

// benches are all benchmarks, in the order in which they run.
func benches() []Bench {
	list := []Bench{
		inboxBench(), processesBench(), failingBench(), delayBench(), streamBench(),
		duplicatesBench(), growthBench(), relayBench(), latencyBench(),
	}
	if runtime.GOOS == "linux" {
		list = append(list, idleBench())
	}
	return list
}

func main() {
	testbed.Role(processRole, runProcess)
	testbed.Init()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err = errors.Join(err, testbed.Close()); errors.Is(err, flag.ErrHelp) {
		err = nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	all := benches()
	opt, err := parseOptions(args, all, stderr)
	if err != nil {
		return err
	}
	env, err := newEnv(ctx, opt.scale)
	if err != nil {
		return err
	}
	m, err := env.machine(ctx)
	if err != nil {
		return err
	}
	var out output = &table{w: stdout, progress: stderr, machine: m}
	if opt.json {
		out = &jsonLines{w: stdout, err: stderr, machine: m}
	}
	var ran []benchResults
	for _, b := range all {
		if !opt.runs(b.Name) {
			continue
		}
		if opt.scale.Short {
			b = b.short()
		}
		results, err := b.run(ctx, env, out)
		if err != nil {
			return err
		}
		if err := out.bench(b, results); err != nil {
			return err
		}
		ran = append(ran, benchResults{b, results})
	}
	if err := out.end(); err != nil || opt.picture == "" {
		return err
	}
	return pictureFile(opt.picture, ran)
}

// options are the command line.
type options struct {
	json    bool
	only    []string // empty: all
	picture string   // a file; empty: none
	scale   scale
}

func (o options) runs(bench string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, bench)
}

func parseOptions(args []string, all []Bench, stderr io.Writer) (options, error) {
	opt := options{scale: fullScale}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&opt.json, "json", false, "print a JSON object per comparison on standard output, and the machine on standard error")
	only := flags.String("only", "", "run these benchmarks only, separated by commas: "+strings.Join(names(all), ","))
	flags.StringVar(&opt.picture, "picture", "", "write bars of inbox and relay to this `file`, as SVG")
	quick := flags.Bool("quick", false, "three short runs in place of five, at 32 and 128 in flight only")
	if err := flags.Parse(args); err != nil {
		return opt, err
	}
	if flags.NArg() > 0 {
		return opt, fmt.Errorf("argument %q: there are flags only; see -help", flags.Arg(0))
	}
	if *quick {
		opt.scale = quickScale
	}
	if *only == "" {
		return opt, nil
	}
	for name := range strings.SplitSeq(*only, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(names(all), name) {
			return opt, fmt.Errorf("-only: no benchmark %q; there are %s", name, strings.Join(names(all), ", "))
		}
		opt.only = append(opt.only, name)
	}
	if opt.picture != "" && !slices.ContainsFunc(panels, func(p panel) bool { return opt.runs(p.bench) }) {
		return opt, errors.New("-picture shows inbox and relay: have one of them in -only")
	}
	return opt, nil
}

func names(all []Bench) []string {
	list := make([]string, len(all))
	for i, b := range all {
		list[i] = b.Name
	}
	return list
}
