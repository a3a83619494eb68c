package uuid_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/uuid"
)

func TestFormat(t *testing.T) {
	id := [16]byte{0x01, 0x7f, 0x22, 0xe2, 0x79, 0xb0, 0x7c, 0xc3, 0x98, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f}
	require.Equal(t, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", uuid.Format(id), "the example of RFC 9562")
}

func TestNewV4IsRandomAndCarriesNoTime(t *testing.T) {
	id := uuid.NewV4()
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, id)
	key, err := dedup.NewKey("s", "o", id)
	require.NoError(t, err)
	_, ok := key.Time()
	require.False(t, ok)
	require.NotEqual(t, id, uuid.NewV4())
}

func TestDigestHasVersion8(t *testing.T) {
	require.Equal(t, "ffffffff-ffff-8fff-bfff-ffffffffffff", uuid.Digest([32]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))
}
