package dedup_test

import (
	"bytes"
	"compress/gzip"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func TestC15_MemberOrderDoesNotCount(t *testing.T) {
	a, b := `{"a":1,"b":{"c":2,"d":3}}`, ` { "b" : {"d": 3, "c": 2}, "a": 1 } `
	require.Equal(t, dedup.Same, compareJSON(t, a, b))

	key, raw := fingerprintKey(t), dedup.RawFingerprint()
	match := raw.Fingerprint(key, []byte(a)).Compare(raw.Fingerprint(key, []byte(b)))
	require.Equal(t, dedup.Different, match, "bytes count in raw mode")
}

func TestC17_LargeIntegersStayApart(t *testing.T) {
	for _, pair := range [][2]string{
		{"9007199254740993", "9007199254740992"},
		{"18446744073709551615", "18446744073709551614"},
		{strings.Repeat("7", 40), strings.Repeat("7", 39) + "8"},
	} {
		require.Equal(t, dedup.Different, compareJSON(t, `{"account":`+pair[0]+`}`, `{"account":`+pair[1]+`}`))
		require.Equal(t, dedup.Same, compareJSON(t, `{"account":`+pair[0]+`}`, `{"account":`+pair[0]+`.0}`))
	}
}

func TestC20_DuplicateNamesAreAnotherPayload(t *testing.T) {
	for _, second := range []string{`{"amount":1,"amount":100}`, `{"amount":100,"amount":1}`, `{"amount":100,"amount":100}`} {
		require.Equal(t, dedup.Different, compareJSON(t, `{"amount":100}`, second))
		require.Equal(t, dedup.Different, compareJSON(t, `{"amount":100}`, second, dedup.IncludePaths("/amount")))
		require.Equal(t, dedup.Different, compareJSON(t, `{"amount":100}`, second, dedup.ExcludePaths("/sent_at")))
		require.Equal(t, dedup.Different, compareJSON(t, `{"amount":100}`, second, dedup.ExcludePaths("/amount")))
	}
}

func TestC21_VolatilePathsDoNotCount(t *testing.T) {
	exclude := dedup.ExcludePaths("/sent_at")
	require.Equal(t, dedup.Same,
		compareJSON(t, `{"amount":5,"sent_at":"10:00:00"}`, `{"amount":5,"sent_at":"10:00:07"}`, exclude))
	require.Equal(t, dedup.Different,
		compareJSON(t, `{"amount":5,"sent_at":"10:00:00"}`, `{"amount":6,"sent_at":"10:00:00"}`, exclude))
	require.Equal(t, dedup.Different,
		compareJSON(t, `{"order":{"sent_at":"10:00:00"}}`, `{"order":{"sent_at":"10:00:07"}}`, exclude), "the path is exact")
	require.Equal(t, dedup.Different,
		compareJSON(t, `{"amount":5,"sent_at":"10:00:00"}`, `{"amount":5,"sent_at":"10:00:07"}`), "not without configuration")
}

func TestC22_NotEveryPayloadIsJSON(t *testing.T) {
	body := []byte(`{"amount":5,"note":"` + strings.Repeat("again ", 200) + `"}`)
	random := make([]byte, 64<<10)
	source := rand.NewChaCha8([32]byte{22})
	_, err := source.Read(random)
	require.NoError(t, err)
	payloads := [][]byte{
		body,
		gzipped(t, body, 1, time.Unix(1, 0)),
		gzipped(t, body, 9, time.Unix(2, 0)),
		{0x08, 0x96, 0x01, 0x12, 0x05, 'o', '-', '1', 0xff, 0x00, 0x22, 0x00}, // protobuf fields
		random,
		nil,
	}

	key := fingerprintKey(t)
	for _, f := range []*dedup.Fingerprinter{
		dedup.RawFingerprint(), jsonFingerprinter(t), jsonFingerprinter(t, dedup.ExcludePaths("/sent_at")),
		jsonFingerprinter(t, dedup.IncludePaths("/amount")),
	} {
		for i, a := range payloads {
			for j, b := range payloads {
				want := dedup.Different
				if i == j {
					want = dedup.Same
				}
				got := f.Fingerprint(key, a).Compare(f.Fingerprint(key, bytes.Clone(b)))
				require.Equal(t, want, got, "payloads %d and %d", i, j)
			}
		}
	}
}

func gzipped(t *testing.T, body []byte, level int, modified time.Time) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	require.NoError(t, err)
	w.ModTime = modified
	_, err = w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestC27_OnlyTheNamedFieldCounts(t *testing.T) {
	include := dedup.IncludePaths("/amount")
	require.Equal(t, dedup.Same, compareJSON(t, `{"amount":10,"note":"a"}`, `{"amount":10,"note":"b"}`, include))
	require.Equal(t, dedup.Different, compareJSON(t, `{"amount":10,"note":"a"}`, `{"amount":11,"note":"a"}`, include))
	require.Equal(t, dedup.Different, compareJSON(t, `{"amount":10}`, `{"order":{"amount":10}}`, include))
}
