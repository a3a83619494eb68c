package dedup

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"log/slog"

	"github.com/oncemill/oncemill/internal/uuid"
)

const (
	// minSecretLength is the shortest secret that cannot be guessed.
	minSecretLength = 16

	// providerKeyVersion starts the bytes under a provider key. Changing it
	// would give an intent a second key at the provider.
	providerKeyVersion = "oncemill provider key v1"
)

// ProviderKeys derives the idempotency keys that are given to an outside
// provider. Printing or logging it never shows the secret. Immutable and safe
// for concurrent use.
type ProviderKeys struct {
	environment string
	mac         func() hash.Hash // holds the secret, where no printing verb reaches it
}

// NewProviderKeys returns a source of provider keys. The secret has at least
// 16 bytes and is copied. The environment ("production", "staging", a region)
// keeps installations that share provider and secret apart: 1 to 128 bytes of
// visible ASCII.
func NewProviderKeys(secret []byte, environment string) (*ProviderKeys, error) {
	if len(secret) < minSecretLength {
		return nil, errors.New("dedup: provider keys: the secret has fewer than 16 bytes; use 32 random bytes")
	}
	if rule := checkName(environment); rule != "" {
		return nil, fmt.Errorf("dedup: provider keys: environment %s; give each installation a name of its own", rule)
	}
	secret = append([]byte(nil), secret...)
	return &ProviderKeys{
		environment: environment,
		mac:         func() hash.Hash { return hmac.New(sha256.New, secret) },
	}, nil
}

// Derive returns the provider key of one call of an intent; step tells the
// calls of one intent apart and may be empty if there is one only. The key is
// HMAC-SHA-256 over version, environment, scope, operation, id and step, each
// with its length, and nothing else: no attempt, time or payload. Derive it
// once and store it; a key that a command carries is used as it is.
//
// It has exactly 36 characters, the text of a UUID of version 8 (RFC 9562
// section 5.8) in lower case, and so fits the key fields of Stripe (255),
// PayPal (108), Adyen (64) and Square (45).
func (p *ProviderKeys) Derive(k Key, step string) string {
	mac := p.mac()
	mac.Write(appendParts(nil, providerKeyVersion, p.environment, k.Scope, k.Operation, k.ID, step))
	return uuid.Digest([32]byte(mac.Sum(nil)))
}

// String names the environment, never the secret.
func (p *ProviderKeys) String() string { return "provider keys of " + p.environment }

// GoString is [ProviderKeys.String], for %#v.
func (p *ProviderKeys) GoString() string { return p.String() }

// LogValue is [ProviderKeys.String], for slog.
func (p *ProviderKeys) LogValue() slog.Value { return slog.StringValue(p.String()) }
