package dedup_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

// benchPayload has 256 bytes, members out of order and one escape.
const benchPayload = `{"type":"payment.requested","id":"01JQ8M3V5Z7X9K2N4P6R8T0W1Y","amount":{"value":1310.50,"currency":"EUR"},` +
	`"account":"acc-00417","reference":"inv 0815\/1 M\u00fcller","lines":[{"sku":"a-1","qty":2,"price":500},` +
	`{"sku":"b-2","qty":1,"price":310.5}],"ok":true}`

func TestBenchPayloadIs256Bytes(t *testing.T) {
	require.Len(t, benchPayload, 256)
}

func BenchmarkCanonicalJSON(b *testing.B) {
	payload := []byte(benchPayload)
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		if _, err := dedup.CanonicalJSON(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFingerprint(b *testing.B) {
	key, err := dedup.NewKey("acme", "charge", "01JQ8M3V5Z7X9K2N4P6R8T0W1Y")
	require.NoError(b, err)
	all, err := dedup.JSONFingerprint()
	require.NoError(b, err)
	less, err := dedup.JSONFingerprint(dedup.ExcludePaths("/reference", "/lines/0/qty"))
	require.NoError(b, err)
	some, err := dedup.JSONFingerprint(dedup.IncludePaths("/amount/value", "/account"))
	require.NoError(b, err)

	for name, f := range map[string]*dedup.Fingerprinter{
		"raw": dedup.RawFingerprint(), "json": all, "json-exclude": less, "json-include": some,
	} {
		b.Run(name, func(b *testing.B) {
			payload := []byte(benchPayload)
			b.ReportAllocs()
			for b.Loop() {
				f.Fingerprint(key, payload)
			}
		})
	}
}

func BenchmarkInboxID(b *testing.B) {
	for _, id := range []string{"01JQ8M3V5Z7X9K2N4P6R8T0W1Y", "0195f3a1-7c3e-7d2a-9b4c-1a2b3c4d5e6f", "order-4711"} {
		key, err := dedup.NewKey("acme", "charge", id)
		require.NoError(b, err)
		b.Run(id, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				key.InboxID()
			}
		})
	}
}
