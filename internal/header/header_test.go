package header_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/header"
)

func TestRoundTripKeepsEveryByte(t *testing.T) {
	h := map[string][]string{"": {"", "\x00"}, "a\r\nb": {" x ", "\xff\xfe"}, "A": {"1"}, "a": {"2"}}
	got, err := header.Decode(header.Encode(h))
	require.NoError(t, err)
	require.Equal(t, h, got)

	m := map[string]string{"k": "v", "": "\x00", "ü": "\xff"}
	one, err := header.DecodeMap(header.EncodeMap(m))
	require.NoError(t, err)
	require.Equal(t, m, one)
}

func TestEqualHeadersHaveEqualEncodings(t *testing.T) {
	a := map[string]string{}
	b := map[string]string{}
	for i := range 50 {
		a[string(rune('a'+i))] = "v"
		b[string(rune('a'+49-i))] = "v"
	}
	require.Equal(t, header.EncodeMap(a), header.EncodeMap(b))
}

func TestMalformedIsAnError(t *testing.T) {
	for _, b := range []string{"\x01", "\x01a", "\x01a\x05v", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"} {
		_, err := header.Decode([]byte(b))
		require.ErrorIs(t, err, header.ErrMalformed, "%q", b)
	}
	for _, name := range []string{"", "a"} {
		_, err := header.DecodeMap(header.Encode(map[string][]string{name: {"1", "2"}}))
		require.ErrorIs(t, err, header.ErrMalformed)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(header.EncodeMap(map[string]string{"a": "b"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := header.Decode(b)
		if err != nil {
			return
		}
		again, err := header.Decode(header.Encode(h))
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}
