package dedup_test

import (
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func TestCanonicalJSON_Numbers(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for _, tt := range []struct{ number, want string }{
		{"0", "0"},
		{"-0", "0"},
		{"-0.000e+7", "0"},
		{"0e999999999999999999999", "0"},
		{"10", "1e1"},
		{"100", "1e2"},
		{"-100", "-1e2"},
		{"10.10", "101e-1"},
		{"0.10", "1e-1"},
		{"0.001", "1e-3"},
		{"-1.5", "-15e-1"},
		{"1.50E+1", "15"},
		{"15e0", "15"},
		{"15e-0", "15"},
		{"15e00000000000000000000000002", "15e2"},
		{"120e-1", "12"},
		{"1200.00e-2", "12"},
		{"1.0000000000000000000000001", "10000000000000000000000001e-25"},
		{"0.1e1", "1"},
		{"123456789012345678901234567890", "12345678901234567890123456789e1"},
		{"1e100000", "1e100000"},
		{"10e99999", "1e100000"},
		{"1e-100000", "1e-100000"},
		{"0.1e-99999", "1e-100000"},
		{"1" + zeros(100_000), "1e100000"},
		{"0." + zeros(99_999) + "1", "1e-100000"},
		{"1" + zeros(200_000) + "e-200000", "1"},
		{"0." + zeros(199_999) + "1e200000", "1"},
		{"0." + zeros(9_999_999) + "1e10000000", "1"},
		{strings.Repeat("9", 1024) + "0e99999", strings.Repeat("9", 1024) + "e100000"},
		{"0.000" + strings.Repeat("9", 1024) + "000", strings.Repeat("9", 1024) + "e-1027"},
	} {
		t.Run(tt.number[:min(len(tt.number), 30)], func(t *testing.T) {
			got, err := dedup.CanonicalJSON([]byte(tt.number))
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
}

func TestCanonicalJSON_NumbersOutOfRange(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for _, number := range []string{
		"1e100001",
		"-1e100001",
		"10e100000",
		"1e-100001",
		"0.1e-100000",
		"1" + zeros(100_001),
		"0." + zeros(100_000) + "1",
		"1e999999999999999999999999",
		"1e-999999999999999999999999",
		"1e18446744073709551616",
		"1e9223372036854775808",
		"0." + zeros(1<<20) + "1e9223372036854775807",
		"1" + strings.Repeat("2", 1024),
		"1." + strings.Repeat("2", 1024),
		"1" + zeros(1023) + "1",
	} {
		_, err := dedup.CanonicalJSON([]byte(number))
		var broken *dedup.JSONError
		require.ErrorAs(t, err, &broken, number[:min(len(number), 30)])
		require.Equal(t, dedup.JSONNumberRange, broken.Rule)
	}
}

// Random spellings: equal canonical forms exactly when math/big finds the
// values equal.
func TestCanonicalJSON_NumbersAgainstBigRat(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		a, b := randomNumber(random), randomNumber(random)
		x, err := dedup.CanonicalJSON([]byte(a))
		require.NoError(t, err)
		y, err := dedup.CanonicalJSON([]byte(b))
		require.NoError(t, err)
		require.Zero(t, rat(t, a).Cmp(rat(t, string(x))), "%s became %s", a, x)
		require.Equal(t, rat(t, a).Cmp(rat(t, b)) == 0, string(x) == string(y), "%s and %s", a, b)
	}
}

// randomNumber draws from few values, so that many pairs are equal.
func randomNumber(random *rand.Rand) string {
	number := []string{"", "-"}[random.IntN(2)] + []string{"0", "1", "10", "100", "12", "120"}[random.IntN(6)]
	if random.IntN(2) == 0 {
		number += "." + []string{"0", "00", "1", "10", "01", "010", "2"}[random.IntN(7)]
	}
	if random.IntN(2) == 0 {
		number += []string{"e", "E"}[random.IntN(2)] + []string{"", "+", "-"}[random.IntN(3)] + strconv.Itoa(random.IntN(4))
	}
	return number
}

func rat(t *testing.T, number string) *big.Rat {
	value, ok := new(big.Rat).SetString(number)
	require.True(t, ok, number)
	return value
}
