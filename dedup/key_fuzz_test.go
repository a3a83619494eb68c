package dedup

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzKeyParts reads the length-prefixed parts back: if that always gives the
// parts, two lists never share an encoding.
func FuzzKeyParts(f *testing.F) {
	f.Add("acme", "charge", "evt-1")
	f.Add("acm", "echarge", "evt-1")
	f.Add("", "", "")
	f.Add("\x00\x00\x00\x00\x00\x00\x00\x01", "a", "\xff")
	f.Add("a", "\x00", strings.Repeat("x", 300))
	f.Fuzz(func(t *testing.T, a, b, c string) {
		parts := []string{a, b, c}
		encoded := appendParts(nil, parts...)
		if got, ok := decodeParts(encoded); !ok || !slices.Equal(parts, got) {
			t.Errorf("%q became %q", parts, got)
		}
		if got := appendParts(appendParts(nil, a), []byte(b), []byte(c)); string(got) != string(encoded) {
			t.Errorf("parts given at once and one by one differ")
		}
	})
}

func decodeParts(encoded []byte) (parts []string, ok bool) {
	for len(encoded) > 0 {
		if len(encoded) < 8 {
			return nil, false
		}
		length := binary.BigEndian.Uint64(encoded)
		encoded = encoded[8:]
		if uint64(len(encoded)) < length {
			return nil, false
		}
		parts, encoded = append(parts, string(encoded[:length])), encoded[length:]
	}
	return parts, true
}

// FuzzNewKey checks that a key that was accepted keeps the documented limits,
// and that normalising it again, with blanks around it or not, changes nothing.
func FuzzNewKey(f *testing.F) {
	f.Add("acme", "charge", "evt-1")
	f.Add(" acme\t", "charge", "\t evt 1 ")
	f.Add("acme", "charge", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f")
	f.Add("acme", "charge", "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	f.Add("acme", "charge", "80000000-0000-7000-8000-000000000000")
	f.Add("acme", "charge", strings.Repeat("é", 128))
	f.Add("acme", "charge", strings.Repeat("a ", 90)+strings.Repeat("b", 100))
	f.Add("a", "b", "\x7f")
	f.Add("a\x00", "", " ")
	f.Fuzz(func(t *testing.T, scope, operation, id string) {
		key, err := NewKey(scope, operation, id)
		if err != nil {
			if key != (Key{}) || !IsPermanent(err) {
				t.Errorf("refused, but with key %#v and error %v", key, err)
			}
			return
		}
		checkFuzzedKey(t, key)
		for _, blank := range []string{"", " ", "\t \t"} {
			again, err := NewKey(blank+key.Scope+blank, key.Operation, blank+key.ID+blank)
			if err != nil || again != key || again.InboxID() != key.InboxID() {
				t.Errorf("%+q became %+q (%v)", key.ID, again.ID, err)
			}
		}
	})
}

func checkFuzzedKey(t *testing.T, key Key) {
	if len(key.Scope) > 128 || len(key.Operation) > 128 || len(key.ID) > 255 {
		t.Errorf("too long: %d, %d, %d bytes", len(key.Scope), len(key.Operation), len(key.ID))
	}
	if key.Scope == "" || key.Operation == "" || strings.TrimSpace(key.ID) == "" && strings.Trim(key.ID, " \t") == "" {
		t.Errorf("a part is blank")
	}
	if !utf8.ValidString(key.ID) || strings.ContainsAny(key.ID, "\x00\t\r\n\x7f") {
		t.Errorf("malformed id %+q", key.ID)
	}
	inboxID := key.InboxID()
	when, timed := key.Time()
	if timed != (inboxID[0]&0x80 == 0) {
		t.Errorf("id %+q: timed is %t, inbox id %x", key.ID, timed, inboxID)
	}
	if timed && uint64(when.UnixMilli()) != binary.BigEndian.Uint64(inboxID[:])>>16 {
		t.Errorf("id %+q: time %v, inbox id %x", key.ID, when, inboxID)
	}
}
