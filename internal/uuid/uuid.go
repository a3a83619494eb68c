// Package uuid writes UUIDs as text and mints them.
package uuid

import (
	"crypto/rand"
	"encoding/hex"
)

// Format returns the text form of RFC 9562.
func Format(id [16]byte) string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// NewV4 mints a random UUID, of version 4 (RFC 9562).
func NewV4() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return Format(b)
}

// Digest makes a UUID of version 8, which is free for such use (RFC 9562), of
// the first 16 bytes of a hash.
func Digest(sum [32]byte) string {
	b := [16]byte(sum[:16])
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return Format(b)
}
