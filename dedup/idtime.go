package dedup

import (
	"encoding/hex"
	"strings"
)

// crockford is the alphabet of ULIDs: no I, L, O and U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// idMillis returns the Unix milliseconds that a UUIDv7 or ULID carries, and
// whether the id is one whose time fits the inbox id.
func idMillis(id string) (uint64, bool) {
	var ms uint64
	var ok bool
	switch len(id) {
	case 36:
		ms, ok = uuidMillis(id)
	case 26:
		ms, ok = ulidMillis(id)
	}
	return ms, ok && ms>>timedIDBits == 0
}

// uuidMillis reads a UUID of version 7 (RFC 9562 section 5.7): 48 bits of
// time, then version 7, and the variant in the first digit of the fourth group.
func uuidMillis(id string) (ms uint64, ok bool) {
	if id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' || id[14] != '7' {
		return 0, false
	}
	var uuid [16]byte
	text := id[:8] + id[9:13] + id[14:18] + id[19:23] + id[24:]
	if _, err := hex.Decode(uuid[:], []byte(text)); err != nil || uuid[8]>>6 != 0b10 {
		return 0, false
	}
	for _, b := range uuid[:6] {
		ms = ms<<8 | uint64(b)
	}
	return ms, true
}

// ulidMillis reads a ULID: 10 characters of time, of which the first is at
// most 7, then 16 of randomness. Other kinds of id have 26 characters too:
// digits alone, or letters in mixed case, are not taken for a ULID.
func ulidMillis(id string) (ms uint64, ok bool) {
	var upper, lower bool
	for i, c := range []byte(id) {
		switch {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
			c -= 'a' - 'A'
		}
		digit := strings.IndexByte(crockford, c)
		if digit < 0 {
			return 0, false
		}
		if i < 10 {
			ms = ms<<5 | uint64(digit)
		}
	}
	return ms, id[0] <= '7' && upper != lower
}
