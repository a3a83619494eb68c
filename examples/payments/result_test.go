package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goodResult is the result of a run in which everything went as it must.
func goodResult(o options) result {
	payments := newLoad(o).payments
	e := goodEvidence(payments)
	e.deliveries, e.outbox = uint64(2*len(payments)), len(payments)
	r := newResult(o, e, judge(payments, e), 2*time.Second)
	r.WorkerKills, r.DatabaseRestarts, r.BrokerRestarts = requiredKills, 1, 1
	return r
}

func TestResultOfAGoodRun(t *testing.T) {
	o := options{intents: 20, rate: 10, minKills: requiredKills}
	r := goodResult(o)
	r.examine(o, verdict{})
	require.False(t, r.failed())

	text := &bytes.Buffer{}
	require.NoError(t, r.print(text))
	require.True(t, strings.HasSuffix(text.String(), "\nexactly once: 20 payments, 0 doubled, 0 lost\n"), text)

	text.Reset()
	require.NoError(t, r.printJSON(text))
	require.Equal(t, `{"mode":"oncemill","intents":20,"deliveries":40,"effects":20,"duplicates":20,"commands":20,`+
		`"commands_received":20,"command_copies":0,"doubled":0,"lost":0,"balance_mismatches":0,`+
		`"worker_kills":10,"database_restarts":1,"broker_restarts":1,"seconds":2,"per_second":10}`+"\n", text.String())
}

func TestWhatMakesARunFail(t *testing.T) {
	const broken, weak = "not exactly once: ", "exactly once, with too few faults to count: "
	for name, tc := range map[string]struct {
		change  func(*result, *verdict)
		because string
		says    string
	}{
		"doubled":      {func(r *result, _ *verdict) { r.Doubled = 1 }, "1 payments were applied or commanded more than once", broken},
		"lost":         {func(r *result, _ *verdict) { r.Lost = 2 }, "2 ledger entries and commands are missing", broken},
		"balances":     {func(r *result, _ *verdict) { r.BalanceMismatches = 3 }, "3 balances", broken},
		"effects":      {func(r *result, _ *verdict) { r.Effects = 21 }, "21 entries in the ledger for 20 payments", broken},
		"commands":     {func(r *result, _ *verdict) { r.CommandsReceived = 19 }, "19 different commands for 20 payments", broken},
		"strangers":    {func(_ *result, v *verdict) { v.strangers = 4 }, "4 ledger entries and commands fit no payment", broken},
		"keys":         {func(_ *result, v *verdict) { v.badKeys = 5 }, "5 payments have no provider key of their own", broken},
		"few kills":    {func(r *result, _ *verdict) { r.WorkerKills = 9 }, "9 workers were killed", weak},
		"no PG crash":  {func(r *result, _ *verdict) { r.DatabaseRestarts = 0 }, "PostgreSQL was not restarted", weak},
		"no NATS kill": {func(r *result, _ *verdict) { r.BrokerRestarts = 0 }, "NATS was not restarted", weak},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{intents: 20, rate: 10, minKills: requiredKills}
			r, v := goodResult(o), verdict{}
			tc.change(&r, &v)
			r.examine(o, v)
			require.True(t, r.failed())
			text := &bytes.Buffer{}
			require.NoError(t, r.print(text))
			require.Contains(t, text.String(), "\n  "+tc.because)
			require.Contains(t, text.String(), "\n"+tc.says)
		})
	}
}

func TestACalmRunNeedsNoFaults(t *testing.T) {
	o := options{intents: 20, rate: 10, minKills: requiredKills, calm: true}
	r := goodResult(o)
	r.WorkerKills, r.DatabaseRestarts, r.BrokerRestarts = 0, 0, 0
	r.examine(o, verdict{})
	require.False(t, r.failed())
}
