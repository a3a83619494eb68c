//go:build testall

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLongSoak(t *testing.T) {
	r := soaked(t, 90*time.Second)
	for _, f := range faults {
		require.Positive(t, r.Faults[f.name], f.name)
	}
}
