package dedup_test

import (
	"encoding/hex"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func fingerprintKey(t *testing.T) dedup.Key {
	key, err := dedup.NewKey("acme", "charge", "evt-1")
	require.NoError(t, err)
	return key
}

func jsonFingerprinter(t *testing.T, opts ...dedup.JSONOption) *dedup.Fingerprinter {
	f, err := dedup.JSONFingerprint(opts...)
	require.NoError(t, err)
	return f
}

// compareJSON compares two payloads under one key.
func compareJSON(t *testing.T, a, b string, opts ...dedup.JSONOption) dedup.Match {
	key, f := fingerprintKey(t), jsonFingerprinter(t, opts...)
	match := f.Fingerprint(key, []byte(a)).Compare(f.Fingerprint(key, []byte(b)))
	require.Equal(t, match, f.Fingerprint(key, []byte(b)).Compare(f.Fingerprint(key, []byte(a))), "symmetric")
	return match
}

// Stored fingerprints must stay comparable: these values were computed by an
// independent program from the documented layout.
func TestFingerprint_StoredValues(t *testing.T) {
	key := fingerprintKey(t)
	for _, tt := range []struct {
		name    string
		f       *dedup.Fingerprinter
		payload string
		extra   [][]byte
		version int32
		sum     string
	}{
		{"raw", dedup.RawFingerprint(), `{"a":100}`, nil,
			1 << 24, "e7ecd22af80ee8f627546883ba5737bfa2fc32e5a25314ec1e721580f3744cbb"},
		{"JSON", jsonFingerprinter(t), `{"a":100}`, nil,
			2 << 24, "b983e587b6acf0808336bdebf42245537b7a653fba9c5b62aeea8813325e647c"},
		{"fallback", jsonFingerprinter(t), `{"a":`, nil,
			3 << 24, "d7f2e8a57f04beb285a080f7654fa3447424e17c804b44633f19855e86a3d47f"},
		{"exclude", jsonFingerprinter(t, dedup.ExcludePaths("/c/0", "/b")), `{"a":100,"b":2,"c":[5]}`, [][]byte{[]byte("x"), nil},
			36469736, "3478d2b5651fd3394e8a172d48dd87921abd9f99739537ca340a885da5c10ad3"},
		{"include", jsonFingerprinter(t, dedup.IncludePaths("/a")), `{"a":100,"b":2}`, nil,
			39705946, "bae528857a4ef39440a1e32426a2105688dfc21e3fbc7d0c08197814aea8550d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.f.Fingerprint(key, []byte(tt.payload), tt.extra...)
			require.Equal(t, tt.version, got.Version)
			require.Equal(t, tt.sum, hex.EncodeToString(got.Sum[:]))
		})
	}
}

func TestFingerprint_CoversTheKey(t *testing.T) {
	base := fingerprintKey(t)
	for _, f := range []*dedup.Fingerprinter{dedup.RawFingerprint(), jsonFingerprinter(t)} {
		for _, other := range [][3]string{{"acm", "echarge", "evt-1"}, {"acme", "refund", "evt-1"}, {"acme", "charge", "evt-2"}} {
			key, err := dedup.NewKey(other[0], other[1], other[2])
			require.NoError(t, err)
			match := f.Fingerprint(base, []byte(`{}`)).Compare(f.Fingerprint(key, []byte(`{}`)))
			require.Equal(t, dedup.Different, match)
		}
	}
}

func TestFingerprint_CoversExtraValuesInOrder(t *testing.T) {
	key := fingerprintKey(t)
	bytesOf := func(values ...string) (list [][]byte) {
		for _, value := range values {
			list = append(list, []byte(value))
		}
		return list
	}
	for _, f := range []*dedup.Fingerprinter{dedup.RawFingerprint(), jsonFingerprinter(t)} {
		base := f.Fingerprint(key, []byte(`1`), bytesOf("ab", "c")...)
		require.Equal(t, dedup.Same, base.Compare(f.Fingerprint(key, []byte(`1`), bytesOf("ab", "c")...)))
		for _, extra := range [][][]byte{nil, bytesOf("ab"), bytesOf("c", "ab"), bytesOf("a", "bc"), bytesOf("abc"), bytesOf("ab", "c", "")} {
			require.Equal(t, dedup.Different, base.Compare(f.Fingerprint(key, []byte(`1`), extra...)))
		}
		nothing := f.Fingerprint(key, []byte(`1`), nil, nil)
		require.Equal(t, dedup.Same, nothing.Compare(f.Fingerprint(key, []byte(`1`), bytesOf("", "")...)))
	}
}

func TestFingerprint_Compare(t *testing.T) {
	key := fingerprintKey(t)
	payload, broken := []byte(`{"a":1}`), []byte(`{"a":1`)
	raw, all := dedup.RawFingerprint(), jsonFingerprinter(t)
	less, some := jsonFingerprinter(t, dedup.ExcludePaths("/b")), jsonFingerprinter(t, dedup.IncludePaths("/b"))

	for _, tt := range []struct {
		name string
		a, b dedup.Fingerprint
		want dedup.Match
	}{
		{"same", all.Fingerprint(key, payload), all.Fingerprint(key, []byte(`{"a":1.0}`)), dedup.Same},
		{"other content", all.Fingerprint(key, payload), all.Fingerprint(key, []byte(`{"a":2}`)), dedup.Different},
		{"JSON and not JSON", all.Fingerprint(key, payload), all.Fingerprint(key, broken), dedup.Different},
		{"not JSON, same bytes", all.Fingerprint(key, broken), all.Fingerprint(key, broken), dedup.Same},
		{"not JSON, other bytes", all.Fingerprint(key, broken), all.Fingerprint(key, []byte(`{"a":1 `)), dedup.Different},
		{"JSON and not JSON, with paths", less.Fingerprint(key, payload), less.Fingerprint(key, broken), dedup.Different},
		{"raw and JSON", raw.Fingerprint(key, payload), all.Fingerprint(key, payload), dedup.NotCompared},
		{"raw and not JSON", raw.Fingerprint(key, broken), all.Fingerprint(key, broken), dedup.NotCompared},
		{"other paths", all.Fingerprint(key, payload), less.Fingerprint(key, payload), dedup.NotCompared},
		{"other paths, not JSON", all.Fingerprint(key, broken), less.Fingerprint(key, broken), dedup.NotCompared},
		{"JSON and not JSON, other paths", some.Fingerprint(key, payload), less.Fingerprint(key, broken), dedup.NotCompared},
		{"include and exclude", some.Fingerprint(key, payload), less.Fingerprint(key, payload), dedup.NotCompared},
		{"none stored", dedup.Fingerprint{}, dedup.Fingerprint{}, dedup.NotCompared},
		{"unknown algorithm", dedup.Fingerprint{Version: 4 << 24}, dedup.Fingerprint{Version: 4 << 24}, dedup.NotCompared},
		{"negative version", dedup.Fingerprint{Version: -1}, dedup.Fingerprint{Version: -1}, dedup.NotCompared},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, tt.a.Compare(tt.b), "got %s", tt.a.Compare(tt.b))
			require.Equal(t, tt.want, tt.b.Compare(tt.a), "the other way round")
		})
	}
}

func TestMatch_String(t *testing.T) {
	require.Equal(t, "same different not compared",
		strings.Join([]string{dedup.Same.String(), dedup.Different.String(), dedup.NotCompared.String()}, " "))
}

func TestFingerprint_Concurrent(t *testing.T) {
	key := fingerprintKey(t)
	f := jsonFingerprinter(t, dedup.ExcludePaths("/n"))
	want := f.Fingerprint(key, []byte(`{"a":1}`))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if got := f.Fingerprint(key, []byte(`{"n":7,"a":1.0}`)); got != want {
					t.Errorf("got %v", got)
				}
			}
		})
	}
	wg.Wait()
}

func TestFingerprinter_WithMetadata(t *testing.T) {
	key := keyWithID(t, "k")
	plain := dedup.RawFingerprint()
	declared := plain.WithMetadata("b", "a", "b")
	require.Equal(t, []string{"a", "b"}, declared.Metadata())
	require.Empty(t, plain.Metadata(), "immutable")

	one := declared.Fingerprint(key, []byte("x"), []byte("1"), []byte("2"))
	require.Equal(t, dedup.Same, one.Compare(declared.Fingerprint(key, []byte("x"), []byte("1"), []byte("2"))))
	require.Equal(t, dedup.Different, one.Compare(declared.Fingerprint(key, []byte("x"), []byte("12"), nil)))
	require.Equal(t, dedup.NotCompared, one.Compare(plain.Fingerprint(key, []byte("x"))), "declared since then")
	require.Equal(t, dedup.NotCompared, one.Compare(plain.WithMetadata("a").Fingerprint(key, []byte("x"), []byte("1"))))
	require.Equal(t, one, plain.WithMetadata("a").WithMetadata("b").Fingerprint(key, []byte("x"), []byte("1"), []byte("2")))
	require.Equal(t, plain.Fingerprint(key, []byte("x")), plain.WithMetadata().Fingerprint(key, []byte("x")))
}
