package dedup

import (
	"bytes"
	"strconv"
)

const (
	// maxNumberDigits and maxNumberExponent are limits of the canonical form.
	// They keep whoever computes with such a number from being handed one that
	// takes seconds to expand; no amount of money comes near them.
	maxNumberDigits   = 1024
	maxNumberExponent = 100_000

	// exponentCap is where reading an exponent stops: beyond it the number is
	// out of range whatever its digits, of which there are at most maxJSONSize.
	exponentCap = 2 * maxJSONSize
)

// appendNumber appends the canonical form of a valid JSON number and reports
// whether it is within the limits.
func appendNumber(dst, raw []byte) ([]byte, bool) {
	mantissa, exponent := cutExponent(raw)
	digits, negative := bytes.CutPrefix(mantissa, []byte{'-'})
	whole, fraction, _ := bytes.Cut(digits, []byte{'.'})
	exponent -= len(fraction)

	whole, fraction, dropped := trimZeros(whole, fraction)
	exponent += dropped
	switch count := len(whole) + len(fraction); {
	case count == 0:
		return append(dst, '0'), true
	case count > maxNumberDigits || exponent > maxNumberExponent || exponent < -maxNumberExponent:
		return dst, false
	}
	if negative {
		dst = append(dst, '-')
	}
	dst = append(append(dst, whole...), fraction...)
	if exponent != 0 {
		dst = strconv.AppendInt(append(dst, 'e'), int64(exponent), 10)
	}
	return dst, true
}

// trimZeros removes the zeros at both ends of the digits, and reports how many
// it dropped at the right.
func trimZeros(whole, fraction []byte) (w, f []byte, dropped int) {
	w, f = bytes.TrimLeft(whole, "0"), bytes.TrimRight(fraction, "0")
	dropped = len(fraction) - len(f)
	if len(f) == 0 {
		kept := bytes.TrimRight(w, "0")
		return kept, f, dropped + len(w) - len(kept)
	}
	if len(w) == 0 {
		f = bytes.TrimLeft(f, "0")
	}
	return w, f, dropped
}

// cutExponent splits a valid JSON number. An exponent of more than exponentCap
// is read as some value beyond it.
func cutExponent(raw []byte) (mantissa []byte, exponent int) {
	i := bytes.IndexByte(raw, 'e')
	if i < 0 {
		i = bytes.IndexByte(raw, 'E')
	}
	if i < 0 {
		return raw, 0
	}
	for _, c := range bytes.TrimLeft(raw[i+1:], "+-") {
		if exponent <= exponentCap {
			exponent = 10*exponent + int(c-'0')
		}
	}
	if raw[i+1] == '-' {
		exponent = -exponent
	}
	return raw[:i], exponent
}
