package main

import (
	"bytes"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	o, err := parseOptions(nil, nil)
	require.NoError(t, err)
	require.Equal(t, options{
		intents: 20000, rate: 1000, duplicates: 0.3, workers: 4, killEvery: time.Second, seed: 1, minKills: requiredKills,
	}, o)
}

func TestWithoutKillsNoneAreRequired(t *testing.T) {
	o, err := parseOptions([]string{"-kill-every", "0"}, nil)
	require.NoError(t, err)
	require.Zero(t, o.minKills)
}

func TestBadFlagsAreNamed(t *testing.T) {
	for _, args := range [][]string{
		{"-intents", "0"}, {"-intents", "many"}, {"-rate", "0"}, {"-rate", "100001"},
		{"-duplicates", "-0.1"}, {"-duplicates", "1.1"}, {"-duplicates", "NaN"},
		{"-workers", "0"}, {"-workers", "65"}, {"-kill-every", "-1s"}, {"-kill-every", "1ms"}, {"-kill-every", "1"},
		{"-seed", "-1"}, {"-group", "-naive"}, {"-naive=maybe"}, {"-unknown"},
	} {
		_, err := parseOptions(args, nil)
		name, _, _ := bytes.Cut([]byte(args[0]), []byte("="))
		require.ErrorContains(t, err, string(name), "%v", args)
	}
	_, err := parseOptions([]string{"stray"}, nil)
	require.ErrorContains(t, err, `"stray"`)
}

func TestHelpExplainsEachFlagAndField(t *testing.T) {
	help := &bytes.Buffer{}
	_, err := parseOptions([]string{"-h"}, help)
	require.ErrorIs(t, err, flag.ErrHelp)
	for _, name := range []string{
		"-intents", "-rate", "-duplicates", "-workers", "-kill-every", "-seed", "-json", "-naive", "-calm", "-group",
		"mode", "deliveries", "effects", "commands_received", "command_copies", "doubled", "lost", "balance_mismatches",
		"worker_kills", "database_restarts", "broker_restarts", "seconds", "per_second",
	} {
		require.Contains(t, help.String(), "\n  "+name)
	}
}
