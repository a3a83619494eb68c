package dedup_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestKey_Time(t *testing.T) {
	for _, tt := range []struct {
		name, id string
		want     int64 // Unix milliseconds
	}{
		{"UUIDv7 of RFC 9562", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1645557742000},
		{"upper case", "017F22E2-79B0-7CC3-98C4-DC0C0C07398F", 1645557742000},
		{"mixed case", "017f22e2-79B0-7cc3-98c4-DC0c0c07398f", 1645557742000},
		{"each variant", "017f22e2-79b0-7cc3-8000-dc0c0c07398f", 1645557742000},
		{"each variant", "017f22e2-79b0-7cc3-bfff-dc0c0c07398f", 1645557742000},
		{"first time", "0151fa7b-dc00-7000-8000-000000000000", 1451606400000},
		{"last time", "03bb2cc3-d7ff-7000-8000-000000000000", 4102444799999},
		{"ULID of the specification", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 1469922850259},
		{"lower case", "01arz3ndektsv4rrffq69g5fav", 1469922850259},
		{"blanks around", " 01ARZ3NDEKTSV4RRFFQ69G5FAV\t", 1469922850259},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := keyWithID(t, tt.id).Time()
			require.True(t, ok)
			require.Equal(t, time.UnixMilli(tt.want).UTC(), got)
		})
	}
}

func TestKey_TimeOfOtherIDs(t *testing.T) {
	for name, id := range map[string]string{
		"plain":                         "order-4711",
		"UUID version 4":                "7d444840-9dc0-41d1-b245-5ffdce74fad2",
		"UUID version 1":                "c232ab00-9414-11ec-b3c8-9f6bdeced846",
		"other variant":                 "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f",
		"variant of NCS":                "017f22e2-79b0-7cc3-78c4-dc0c0c07398f",
		"not hex":                       "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
		"not hex in the time":           "g17f22e2-79b0-7cc3-98c4-dc0c0c07398f",
		"sign in the time":              "+17f22e2-79b0-7cc3-98c4-dc0c0c07398f",
		"hyphens elsewhere":             "017f22e279b0--7cc3-98c4-dc0c0c07398f",
		"hyphen missing":                "017f22e2-79b0-7cc3-98c40dc0c0c07398f",
		"without hyphens":               "017f22e279b07cc398c4dc0c0c07398f",
		"in braces":                     "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
		"URN":                           "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
		"36 characters, not a UUID":     strings.Repeat("7", 36),
		"36 bytes, not ASCII":           strings.Repeat("é", 18),
		"UUIDv7 with the top bit set":   "80000000-0000-7000-8000-000000000000",
		"before 2016":                   "0151fa7b-dbff-7000-8000-000000000000",
		"from 2100 on":                  "03bb2cc3-d800-7000-8000-000000000000",
		"ULID of the epoch":             "0000000000000000000000000A",
		"ULID with the top bit set":     "4000000000000000000000000A",
		"ULID beyond 48 bits":           "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
		"ULID with I":                   "01ARZ3NDEKTSV4RRFFQ69G5FAI",
		"ULID with L":                   "01ARZ3NDEKTSV4RRFFQ69G5FAL",
		"ULID with O":                   "01ARZ3NDEKTSV4RRFFQ69G5FAO",
		"ULID with U":                   "01ARZ3NDEKTSV4RRFFQ69G5FAU",
		"ULID with I in the time":       "0IARZ3NDEKTSV4RRFFQ69G5FAV",
		"ULID in mixed case":            "01arz3ndektsV4RRFFQ69G5FAV",
		"26 digits":                     "20240815000000000000471100",
		"26 bytes, not ASCII":           strings.Repeat("é", 13),
		"a letter whose upper is ASCII": "01arz3ndektsv4rrffq69g5fſ",
	} {
		t.Run(name, func(t *testing.T) {
			key := keyWithID(t, id)
			got, ok := key.Time()
			require.False(t, ok)
			require.Zero(t, got)
			require.Equal(t, byte(0x80), key.InboxID()[0]&0x80)
		})
	}
}

// Spellings in another case are other ids of the same time.
func TestKey_CaseCounts(t *testing.T) {
	for _, id := range []string{"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "01arz3ndektsv4rrffq69g5fav"} {
		lower, upper := keyWithID(t, id).InboxID(), keyWithID(t, strings.ToUpper(id)).InboxID()
		require.Equal(t, lower[:6], upper[:6])
		require.NotEqual(t, lower[6:], upper[6:])
	}
}
