package dedup_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

// Inputs that make a careless canonicaliser quadratic, at sizes where a
// quadratic one would not end. Memory is bounded by a multiple of the input.
func TestCanonicalJSON_HostileInputs(t *testing.T) {
	const size = 1 << 20
	repeat := func(s string) string { return strings.Repeat(s, size/len(s)) }
	for _, tt := range []struct {
		name, payload string
		ok            bool
	}{
		{"nested arrays", repeat("["), false},
		{"nested objects", repeat(`{"":`), false},
		{"members in reverse order", reversedMembers(size), true},
		{"members with one long prefix", prefixedMembers(size), true},
		{"members at every level", nestedMembers(size), true},
		{"one long name", `{"` + repeat("n") + `":0,"":1}`, true},
		{"escapes", `["` + repeat(`\ud83d\ude00`) + `"]`, true},
		{"many numbers", `[` + repeat("1.5,") + `0]`, true},
		{"many huge exponents", `[` + repeat("1e-100000,") + `0]`, true},
		{"one long number", repeat("7"), false},
		{"one long zero", "0." + repeat("0"), true},
		{"one long exponent", "1e" + repeat("9"), false},
		{"white space", repeat(" ") + "0" + repeat("\n"), true},
		{"a duplicate at the end", strings.TrimSuffix(reversedMembers(size), "}") + `,"z":0}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			payload := []byte(tt.payload)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := dedup.CanonicalJSON(payload)
			runtime.ReadMemStats(&after)
			require.Equal(t, tt.ok, err == nil, "%v", err)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64*size))
		})
	}
}

func reversedMembers(size int) string {
	var b strings.Builder
	b.WriteString(`{"z":0`)
	for i := size; b.Len() < size-20; i-- {
		fmt.Fprintf(&b, `,"%07d":0`, i)
	}
	return b.String() + "}"
}

func prefixedMembers(size int) string {
	prefix := strings.Repeat("p", 1000)
	var b strings.Builder
	b.WriteString(`{"z":0`)
	for i := size; b.Len() < size-2000; i-- {
		fmt.Fprintf(&b, `,"%s%07d":0`, prefix, i)
	}
	return b.String() + "}"
}

// nestedMembers is out of order at all 64 levels, with the bulk innermost.
func nestedMembers(size int) string {
	bulk := reversedMembers(size - 64*20)
	return strings.Repeat(`{"b":0,"a":`, 63) + bulk + strings.Repeat(`}`, 63)
}
