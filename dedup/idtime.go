package dedup

import (
	"encoding/hex"
	"strings"
)

// crockford is the alphabet of ULIDs: no I, L, O and U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Times outside these are no times: an id that only looks like a ULID (26
// characters of base 32 are common) has a random one, from 1970 to 10889. They
// are part of what an inbox id is, so they must not change. ULIDs came in 2016.
const (
	firstIDMillis = 1451606400000 // 2016-01-01
	endIDMillis   = 4102444800000 // 2100-01-01
)

// idMillis returns the Unix milliseconds that a UUIDv7 or ULID carries, and
// whether the id is one with a believable time.
func idMillis(id string) (uint64, bool) {
	var ms uint64
	var ok bool
	switch len(id) {
	case 36:
		ms, ok = uuidMillis(id)
	case 26:
		ms, ok = ulidMillis(id)
	}
	return ms, ok && ms >= firstIDMillis && ms < endIDMillis
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

// ulidMillis reads a ULID: 10 characters of time (a first one above 7 is left
// to the bound of idMillis), then 16 of randomness. Other kinds of id have 26
// characters too: digits alone, or letters in mixed case, are no ULID.
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
	return ms, upper != lower
}
