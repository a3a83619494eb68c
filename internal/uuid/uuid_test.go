package uuid_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/uuid"
)

func TestFormat(t *testing.T) {
	id := [16]byte{0x01, 0x7f, 0x22, 0xe2, 0x79, 0xb0, 0x7c, 0xc3, 0x98, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f}
	require.Equal(t, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", uuid.Format(id), "the example of RFC 9562")
}

func TestNewV7CarriesItsTime(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	key, err := dedup.NewKey("s", "o", uuid.NewV7())
	require.NoError(t, err)
	at, ok := key.Time()
	require.True(t, ok)
	require.False(t, at.Before(before))
	require.False(t, at.After(time.Now()))
	require.NotEqual(t, uuid.NewV7(), uuid.NewV7())
}

func TestDigestHasVersion8(t *testing.T) {
	require.Equal(t, "ffffffff-ffff-8fff-bfff-ffffffffffff", uuid.Digest([32]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))
}
