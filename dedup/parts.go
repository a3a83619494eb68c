package dedup

import "encoding/binary"

// appendParts appends each part with its length (8 bytes, big-endian) before
// it. Different lists of parts never give the same bytes, whatever they hold.
func appendParts[T ~string | ~[]byte](dst []byte, parts ...T) []byte {
	for _, part := range parts {
		dst = appendLength(dst, len(part))
		dst = append(dst, part...)
	}
	return dst
}

func appendLength(dst []byte, n int) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(n))
}
