package dedup_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

const providerSecret = "0123456789abcdef0123456789abcdef"

func providerKeys(t *testing.T, secret, environment string) *dedup.ProviderKeys {
	keys, err := dedup.NewProviderKeys([]byte(secret), environment)
	require.NoError(t, err)
	return keys
}

// A provider that has seen a key must see the same one again: this value was
// computed by an independent program from the documented layout.
func TestProviderKeys_StoredValue(t *testing.T) {
	got := providerKeys(t, providerSecret, "test").Derive(fingerprintKey(t), "capture")
	require.Equal(t, "7ca5b7c8-d033-8f93-827f-ebf4e025ae0f", got)
}

func TestProviderKeys_EveryPartCounts(t *testing.T) {
	keys := providerKeys(t, providerSecret, "test")
	seen := map[string]bool{}
	for _, derived := range []string{
		keys.Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "1"}, ""),
		keys.Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "1"}, "capture"),
		keys.Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "2"}, ""),
		keys.Derive(dedup.Key{Scope: "acme", Operation: "refund", ID: "1"}, ""),
		keys.Derive(dedup.Key{Scope: "other", Operation: "charge", ID: "1"}, ""),
		keys.Derive(dedup.Key{Scope: "acmec", Operation: "harge", ID: "1"}, ""),
		keys.Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "1c"}, "apture"),
		providerKeys(t, providerSecret, "live").Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "1"}, ""),
		providerKeys(t, providerSecret+"x", "test").Derive(dedup.Key{Scope: "acme", Operation: "charge", ID: "1"}, ""),
	} {
		require.Len(t, derived, 36)
		require.Regexp(t, "^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", derived)
		require.False(t, seen[derived])
		seen[derived] = true
	}
}

func TestProviderKeys_KeepTheirSecret(t *testing.T) {
	secret := []byte(providerSecret)
	keys, err := dedup.NewProviderKeys(secret, "test")
	require.NoError(t, err)
	clear(secret)
	require.Equal(t, "7ca5b7c8-d033-8f93-827f-ebf4e025ae0f", keys.Derive(fingerprintKey(t), "capture"), "the secret is copied")
}

func TestProviderKeys_NeverShowTheSecret(t *testing.T) {
	keys := providerKeys(t, providerSecret, "test")
	var text strings.Builder
	slog.New(slog.NewJSONHandler(&text, nil)).Info("json", "keys", keys)
	slog.New(slog.NewTextHandler(&text, nil)).Info("text", "keys", keys)
	require.Equal(t, 2, strings.Count(text.String(), "provider keys of test"), "slog shows which keys they are")
	encoded, err := json.Marshal(struct{ Keys *dedup.ProviderKeys }{keys})
	require.NoError(t, err)
	text.Write(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%p"} {
		fmt.Fprintf(&text, verb+"\n", keys)
		fmt.Fprintf(&text, verb+"\n", *keys)
		fmt.Fprintf(&text, verb+"\n", struct{ keys *dedup.ProviderKeys }{keys})
	}
	for _, shown := range []string{
		providerSecret, fmt.Sprintf("%x", providerSecret), fmt.Sprintf("%X", providerSecret),
		strings.Trim(fmt.Sprintf("%d", []byte(providerSecret)), "[]"),
	} {
		require.NotContains(t, text.String(), shown)
	}
	require.Equal(t, "provider keys of test", keys.String())
}

func TestNewProviderKeys_Refuses(t *testing.T) {
	_, err := dedup.NewProviderKeys([]byte("c4n4ry-c4n4ry-c"), "test")
	require.ErrorContains(t, err, "fewer than 16 bytes")
	require.NotContains(t, err.Error(), "c4n4ry")
	_, err = dedup.NewProviderKeys([]byte("c4n4ry-c4n4ry-c4"), "test")
	require.NoError(t, err)
	for _, environment := range []string{"", " ", "a b", strings.Repeat("e", 129)} {
		_, err = dedup.NewProviderKeys([]byte(providerSecret), environment)
		require.ErrorContains(t, err, "environment")
	}
}
