// Package uuid writes UUIDs as text and mints those of version 7.
package uuid

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
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

// NewV7 mints a UUID of version 7 (RFC 9562) for now.
func NewV7() string {
	var b [16]byte
	_, _ = rand.Read(b[6:])
	ms := uint64(time.Now().UnixMilli()) // Not before 1970.
	binary.BigEndian.PutUint32(b[:4], uint32(ms>>16))
	binary.BigEndian.PutUint16(b[4:6], uint16(ms))
	b[6] = b[6]&0x0f | 0x70
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
