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

// DecodeMap is the inverse of EncodeMap. A repeated name is malformed.
func DecodeMap(b []byte) (map[string]string, error) {
	h := make(map[string]string)
	repeated := false
	err := Each(b, func(name, value string) {
		if _, ok := h[name]; ok {
			repeated = true
		}
		h[name] = value
	})
	if repeated {
		err = ErrMalformed
	}
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
