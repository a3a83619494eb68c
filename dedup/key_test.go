package dedup_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func keyWithID(t *testing.T, id string) dedup.Key {
	key, err := dedup.NewKey("acme", "charge", id)
	require.NoError(t, err)
	return key
}

// Stored keys must stay valid: these values were computed by an independent
// program from the documented layout.
func TestKey_StoredValues(t *testing.T) {
	for _, tt := range []struct{ id, digest, inboxID string }{
		{"evt-1", "c76bfbb7a660cdf408aa7c1cee20c577fa4ecefe42e2c74c894012a10ff1aac4",
			"c76bfbb7a660cdf408aa7c1cee20c577"},
		{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "e3bbf27ba23a41e1bd33a21de8f830682179e20566589d98fadf0e8b245b2c05",
			"01563e3ab5d3" + "e3bbf27ba23a41e1bd33"},
		{"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "fb15d0e8bc57d71634e0914667b7993e102bba133b96fbf6df19779fbbb8abc5",
			"017f22e279b0" + "fb15d0e8bc57d71634e0"},
	} {
		key := keyWithID(t, tt.id)
		digest, inboxID := key.Digest(), key.InboxID()
		require.Equal(t, tt.digest, hex.EncodeToString(digest[:]))
		require.Equal(t, tt.inboxID, hex.EncodeToString(inboxID[:]))
	}
}

// The first bit tells ids with a time from ids without, whatever the digest.
func TestKey_InboxIDHalves(t *testing.T) {
	for i := range 64 {
		plain := keyWithID(t, fmt.Sprintf("order-%d", i)).InboxID()
		require.Equal(t, byte(0x80), plain[0]&0x80)
		timed := keyWithID(t, fmt.Sprintf("017f22e2-79b0-7cc3-98c4-0000000000%02x", i)).InboxID()
		require.Equal(t, "017f22e279b0", hex.EncodeToString(timed[:6]))
	}
}

func TestKey_InboxIDsSortByTime(t *testing.T) {
	earlier := keyWithID(t, "017f22e2-79b0-7fff-bfff-ffffffffffff").InboxID()
	later := keyWithID(t, "017f22e2-79b1-7000-8000-000000000000").InboxID()
	require.Negative(t, bytes.Compare(earlier[:], later[:]))
}

func TestKey_PartsDoNotRunTogether(t *testing.T) {
	seen := map[[32]byte]string{}
	for _, parts := range [][3]string{
		{"a", "b", "c"}, {"ab", "c", "d"}, {"a", "bc", "d"}, {"a", "b", "cd"}, {"b", "a", "c"}, {"a", "c", "b"},
	} {
		key, err := dedup.NewKey(parts[0], parts[1], parts[2])
		require.NoError(t, err)
		require.NotContains(t, seen, key.Digest())
		seen[key.Digest()] = key.ID
	}
}

func TestC07_OuterBlanksAreTrimmed(t *testing.T) {
	want, err := dedup.NewKey("acme", "charge", "Y")
	require.NoError(t, err)
	for _, id := range []string{"Y", " Y ", "Y\t", "\t \tY  "} {
		got, err := dedup.NewKey(" acme\t", "charge", id)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, want.Digest(), got.Digest())
		require.Equal(t, want.InboxID(), got.InboxID())
	}
	inner := keyWithID(t, " Y Z ")
	require.Equal(t, "Y Z", inner.ID, "inner blanks stay")
	require.NotEqual(t, want.Digest(), inner.Digest())
}

func TestC02_BlankIsMissing(t *testing.T) {
	for _, blank := range []string{"", " ", "\t", " \t \t "} {
		requireKeyError(t, "id", "is missing or blank", "acme", "charge", blank)
		requireKeyError(t, "scope", "is missing", blank, "charge", "evt-1")
	}
	requireKeyError(t, "operation", "is missing", "acme", "", "evt-1")
}

func requireKeyError(t *testing.T, field, rule, scope, operation, id string) {
	t.Helper()
	key, err := dedup.NewKey(scope, operation, id)
	require.Zero(t, key)
	var broken *dedup.KeyError
	require.ErrorAs(t, err, &broken)
	require.Equal(t, dedup.KeyError{Field: field, Rule: rule}, *broken)
	require.True(t, dedup.IsPermanent(err))
	require.ErrorContains(t, err, field+" "+rule)
}

func TestNewKey_RefusesMalformedParts(t *testing.T) {
	for _, name := range []string{"a b", "a\tb", "a\nb", "a\x00b", "a\x7fb", "é", "\xff", "a\u00a0"} {
		requireKeyError(t, "scope", "has a byte that is not visible ASCII", name, "charge", "evt-1")
		requireKeyError(t, "operation", "has a byte that is not visible ASCII", "acme", name, "evt-1")
	}
	requireKeyError(t, "operation", "has a byte that is not visible ASCII", "acme", " charge ", "evt-1")
	long := strings.Repeat("n", 128)
	requireKeyError(t, "scope", "has more than 128 bytes", long+"n", "charge", "evt-1")
	requireKeyError(t, "operation", "has more than 128 bytes", "acme", long+"n", "evt-1")
	_, err := dedup.NewKey(long, long, "evt-1")
	require.NoError(t, err)

	for _, id := range []string{"a\nb", "a\r", "a\x00", "a\tb", "\x1f", "a\x7fb"} {
		requireKeyError(t, "id", "has a control character", "acme", "charge", id)
	}
	for _, id := range []string{"a\xff", "\xc0\xaf", "\xed\xa0\x80", "é"[:1]} {
		requireKeyError(t, "id", "is not valid UTF-8", "acme", "charge", id)
	}
}

func TestKeyError_DoesNotQuoteTheID(t *testing.T) {
	_, err := dedup.NewKey("acme", "charge", "c4n4ry\x00")
	require.NotContains(t, err.Error(), "c4n4ry")
	_, err = dedup.NewKey("c4n4ry x", "charge", "evt-1")
	require.NotContains(t, err.Error(), "c4n4ry")
}

func TestC09_LongIDs(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	letters := func(n int) string {
		id := make([]byte, n)
		for i := range id {
			id[i] = byte(0x21 + random.IntN(0x5e))
		}
		return string(id)
	}
	for _, id := range []string{
		letters(256), letters(2700), letters(3000), strings.Repeat("x", 100_000), strings.Repeat("y", 1<<20), letters(1 << 20),
	} {
		key := keyWithID(t, id)
		sum := sha256.Sum256([]byte(id))
		require.Equal(t, id[:180]+":sha256:"+hex.EncodeToString(sum[:]), key.ID)

		other := keyWithID(t, id[:len(id)-1]+"!!"[:1])
		if id[len(id)-1] != '!' {
			require.Equal(t, key.ID[:180], other.ID[:180])
			require.NotEqual(t, key.ID, other.ID)
			require.NotEqual(t, key.InboxID(), other.InboxID())
		}
	}

	kept := letters(255)
	require.Equal(t, kept, keyWithID(t, kept).ID)
	require.Equal(t, kept, keyWithID(t, " "+kept+" ").ID, "blanks are cut off before the length counts")
	requireKeyError(t, "id", "has more than 1 MiB", "acme", "charge", strings.Repeat("y", 1<<20+1))
}

func TestC09_LongIDsAreCutBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		id := strings.Repeat("a", shift) + strings.Repeat("\U0001f600", 100)
		short := keyWithID(t, id).ID
		prefix, _, found := strings.Cut(short, ":sha256:")
		require.True(t, found)
		require.True(t, utf8.ValidString(prefix))
		require.True(t, strings.HasPrefix(id, prefix))
		require.Greater(t, len(prefix), 176)
		require.LessOrEqual(t, len(short), 255)
		require.Equal(t, short, keyWithID(t, short).ID, "the short form stands for the same id")
	}
}

func TestKey_NeverShowsTheID(t *testing.T) {
	key, err := dedup.NewKey("c4n4ry", "c4n4ry", "c4n4ry")
	require.NoError(t, err)
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("json", "key", key)
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "key", key)
	for _, text := range []string{
		key.String(), fmt.Sprint(key), fmt.Sprintf("%v %+v %#v %s %q", key, key, key, key, key), fmt.Sprint(&key),
		fmt.Sprint(struct{ Key dedup.Key }{key}), fmt.Errorf("%w: %v", errors.New("conflict"), key).Error(), log.String(),
	} {
		require.NotContains(t, text, "c4n4ry")
		require.Contains(t, text, key.String())
	}
	require.Regexp(t, "^key:[0-9a-f]{16}$", key.String())
}
