package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// record is one line of -json: a variant compared with another, or alone if it
// is a baseline. What was not measured is null.
type record struct {
	Bench   string `json:"bench"`
	Variant string `json:"variant"`
	// Against is empty for a baseline.
	Against  string `json:"against"`
	InFlight int    `json:"in_flight"`
	// PerSecond is the median over the runs; Min and Max are the slowest and
	// the fastest run.
	PerSecond float64 `json:"per_second"`
	// Ratio is that of the medians: of the rates, or of the other's p50 to this
	// one's where latency counts. Above 1, this one is better.
	Ratio *float64 `json:"ratio"`
	Min   float64  `json:"min"`
	Max   float64  `json:"max"`
	Runs  int      `json:"runs"`
	// P50 and P99 are medians over the runs of each run's percentile.
	P50 *float64 `json:"p50_ms"`
	P99 *float64 `json:"p99_ms"`
	WAL *float64 `json:"wal_bytes_per_op"`
}

// records returns a record for each comparison of r, one if it is a baseline.
func (b Bench) records(r Result, results []Result) ([]record, error) {
	rates := r.rates()
	rec := record{
		Bench: b.Name, Variant: r.Variant.Name, InFlight: r.Variant.InFlight, Runs: len(rates),
		PerSecond: round3(median(rates)), Min: round3(slices.Min(rates)), Max: round3(slices.Max(rates)),
		P50: known(r.latency(50)), P99: known(r.latency(99)), WAL: known(r.walPerOp()),
	}
	if r.Variant.Own.Variant != "" {
		rec.Against, rec.Ratio = r.Variant.Own.Variant, known(median(r.over(func(s Sample) float64 { return s.Ratio })), true)
		return []record{rec}, nil
	}
	if len(r.Variant.Against) == 0 {
		return []record{rec}, nil
	}
	var list []record
	for _, base := range r.Variant.Against {
		other, ok := baseline(results, base.Variant, r.Variant.InFlight)
		if !ok {
			return nil, fmt.Errorf("%s, %s: compared with %q, which is no variant", b.Name, r.Variant.Name, base.Variant)
		}
		rec.Against, rec.Ratio = base.Variant, known(b.ratio(r, other), true)
		list = append(list, rec)
	}
	return list, nil
}

// known is a pointer to v to three digits, nil if it was not measured.
func known(v float64, measured bool) *float64 {
	if !measured {
		return nil
	}
	v = round3(v)
	return &v
}

// jsonLines prints records, and the machine at the end.
type jsonLines struct {
	w, err  io.Writer
	machine machine
}

func (o *jsonLines) sample(Bench, Variant, int, int, Sample) {}

func (o *jsonLines) bench(b Bench, results []Result) error {
	enc := json.NewEncoder(o.w)
	for _, r := range results {
		list, err := b.records(r, results)
		if err != nil {
			return err
		}
		for _, rec := range list {
			if err := enc.Encode(rec); err != nil {
				return fmt.Errorf("print results: %w", err)
			}
		}
	}
	return nil
}

func (o *jsonLines) end() error {
	_, err := fmt.Fprintln(o.err, o.machine)
	return err
}

// table prints a table per benchmark for people, progress meanwhile.
type table struct {
	w, progress io.Writer
	machine     machine
}

func (o *table) sample(b Bench, v Variant, round, rounds int, s Sample) {
	_, _ = fmt.Fprintf(o.progress, "%s %d/%d  %s: %.0f per second\n", b.Name, round, rounds, v.Name, s.perSecond())
}

func (o *table) bench(b Bench, results []Result) error {
	rows := [][]string{{"variant", "in flight", "per second", "min", "max", "p50 ms", "p99 ms", "WAL B/op", "runs", "ratio"}}
	for _, r := range results {
		list, err := b.records(r, results)
		if err != nil {
			return err
		}
		rec := list[0]
		rows = append(rows, []string{rec.Variant, count(rec.InFlight), number(&rec.PerSecond), number(&rec.Min), number(&rec.Max),
			number(rec.P50), number(rec.P99), number(rec.WAL), fmt.Sprint(rec.Runs), ratios(r.Variant, list)})
	}
	_, err := fmt.Fprintf(o.w, "\n%s: %s\n\n%s", b.Name, b.Task, aligned(rows))
	return err
}

// aligned sets rows of as many cells each: text to the left in the first and
// the last column, figures to the right in those between.
func aligned(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	last := len(widths) - 1
	var text strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&text, "%-*s", widths[0], row[0])
		for i, cell := range row[1:last] {
			fmt.Fprintf(&text, "  %*s", widths[i+1], cell)
		}
		fmt.Fprintf(&text, "  %s\n", row[last])
	}
	return text.String()
}

func (o *table) end() error {
	_, err := fmt.Fprintf(o.w, "\n%s\n", o.machine)
	return err
}

// ratios is what the last column says, such as "1.02 x pgx-message (must 0.95)".
func ratios(v Variant, list []record) string {
	var parts []string
	compared := v.Against
	if v.Own.Variant != "" {
		compared = []Baseline{v.Own}
	}
	for i, base := range compared {
		part := number(list[i].Ratio) + " x " + base.Variant
		if base.Must > 0 {
			part += fmt.Sprintf(" (must %g)", base.Must)
		}
		parts = append(parts, part)
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func count(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func number(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}
