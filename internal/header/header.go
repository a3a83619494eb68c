// Package header encodes message headers as bytes, so that a column can hold
// them exactly: any byte may occur in a name or a value, repeated values keep
// their order, and equal headers have equal encodings.
//
// The form is: for each name in byte order, for each of its values in turn,
// uvarint(len(name)) name uvarint(len(value)) value.
package header

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// ErrMalformed is returned by the decoders for bytes that Encode did not make.
var ErrMalformed = errors.New("header: malformed encoding")

// Encode returns the encoding of h.
func Encode(h map[string][]string) []byte {
	b := make([]byte, 0, 256)
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			b = appendString(appendString(b, name), value)
		}
	}
	return b
}

// EncodeMap is Encode for headers with one value each.
func EncodeMap(h map[string]string) []byte {
	b := make([]byte, 0, 256)
	for _, name := range slices.Sorted(maps.Keys(h)) {
		b = appendString(appendString(b, name), h[name])
	}
	return b
}

// Each calls yield for each name and value in b, in encoded order.
func Each(b []byte, yield func(name, value string)) error {
	for len(b) > 0 {
		var name, value string
		var ok bool
		if name, b, ok = cutString(b); !ok {
			return ErrMalformed
		}
		if value, b, ok = cutString(b); !ok {
			return ErrMalformed
		}
		yield(name, value)
	}
	return nil
}

// Decode is the inverse of Encode.
func Decode(b []byte) (map[string][]string, error) {
	h := make(map[string][]string)
	err := Each(b, func(name, value string) { h[name] = append(h[name], value) })
	return h, err
}

// EachOnce is Each for what EncodeMap made: names ascend, so none is repeated.
func EachOnce(b []byte, yield func(name, value string)) error {
	last, first, ordered := "", true, true
	err := Each(b, func(name, value string) {
		ordered = ordered && (first || name > last)
		last, first = name, false
		yield(name, value)
	})
	if err == nil && !ordered {
		err = ErrMalformed
	}
	return err
}

// DecodeMap is the inverse of EncodeMap.
func DecodeMap(b []byte) (map[string]string, error) {
	h := make(map[string]string)
	err := EachOnce(b, func(name, value string) { h[name] = value })
	return h, err
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	return string(b[size : size+int(n)]), b[size+int(n):], true
}
