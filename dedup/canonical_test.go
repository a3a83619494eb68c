package dedup_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/adler32"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func TestCanonicalJSON_Vectors(t *testing.T) {
	data, err := os.ReadFile("testdata/canonical-json.json")
	require.NoError(t, err)
	var vectors []struct {
		Group        string `json:"group"`
		InputHex     string `json:"input_hex"`
		Outcome      string `json:"outcome"`
		CanonicalHex string `json:"canonical_hex"`
		Reason       string `json:"reason"`
	}
	require.NoError(t, json.Unmarshal(data, &vectors))
	require.NotEmpty(t, vectors)
	syntax := []dedup.JSONRule{dedup.JSONSyntax, dedup.JSONTrailingData}
	rules := map[string][]dedup.JSONRule{
		`duplicate member name: "a"`:    {dedup.JSONDuplicateName},
		"unpaired surrogate escape":     {dedup.JSONLoneSurrogate},
		"invalid UTF-8":                 {dedup.JSONInvalidUTF8},
		"invalid JSON":                  syntax,
		"number out of supported range": {dedup.JSONNumberRange},
	}

	for i, v := range vectors {
		t.Run(fmt.Sprintf("%02d-%s", i, v.Group), func(t *testing.T) {
			input, err := hex.DecodeString(v.InputHex)
			require.NoError(t, err)
			before := slices.Clone(input)
			got, err := dedup.CanonicalJSON(input)
			require.Equal(t, before, input, "the payload is left alone")

			switch v.Outcome {
			case "canonical":
				require.NoError(t, err)
				require.Equal(t, v.CanonicalHex, hex.EncodeToString(got))
			case "reject":
				var broken *dedup.JSONError
				require.ErrorAs(t, err, &broken)
				require.Contains(t, rules[v.Reason], broken.Rule)
				require.Nil(t, got)
			default:
				t.Fatalf("unknown outcome %q", v.Outcome)
			}
		})
	}
}

// The shortest escapes of RFC 8785 section 3.2.2.2, for every spelling of
// every character up to U+0100.
func TestCanonicalJSON_Strings(t *testing.T) {
	short := map[rune]string{'\b': `\b`, '\t': `\t`, '\n': `\n`, '\f': `\f`, '\r': `\r`, '"': `\"`, '\\': `\\`}
	for r := rune(0); r <= 0x100; r++ {
		want, ok := short[r]
		switch {
		case ok:
		case r < 0x20:
			want = fmt.Sprintf(`\u%04x`, r)
		default:
			want = string(r)
		}
		for _, spelling := range []string{fmt.Sprintf(`\u%04x`, r), fmt.Sprintf(`\u%04X`, r), want} {
			got, err := dedup.CanonicalJSON([]byte(`{"` + spelling + `":"` + spelling + `"}`))
			require.NoError(t, err)
			require.Equal(t, `{"`+want+`":"`+want+`"}`, string(got))
		}
	}
}

func TestCanonicalJSON_SortsByUTF16(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []rune("\x00\"\\/azA\x7f\u0080é€\ud7ff\ue000\uf8ff\ufffd\uffff\U00010000\U0001f600\U0010ffff")
	for range 500 {
		names := map[string]bool{}
		for range random.IntN(12) {
			var name []rune
			for range random.IntN(4) {
				name = append(name, alphabet[random.IntN(len(alphabet))])
			}
			names[string(name)] = true
		}
		var members, sorted []string
		for name := range names {
			sorted = append(sorted, name)
			members = append(members, quoteJSON(t, name)+":0")
		}
		slices.SortFunc(sorted, func(a, b string) int {
			return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		})

		got, err := dedup.CanonicalJSON([]byte("{" + strings.Join(members, ",") + "}"))
		require.NoError(t, err)
		require.Equal(t, sorted, memberNames(t, got))
	}
}

func quoteJSON(t *testing.T, s string) string {
	quoted, err := json.Marshal(s)
	require.NoError(t, err)
	return string(quoted)
}

// memberNames returns the names of an object in their order.
func memberNames(t *testing.T, object []byte) []string {
	dec := json.NewDecoder(strings.NewReader(string(object)))
	_, err := dec.Token()
	require.NoError(t, err)
	var names []string
	for dec.More() {
		name, err := dec.Token()
		require.NoError(t, err)
		names = append(names, name.(string))
		_, err = dec.Token()
		require.NoError(t, err)
	}
	return names
}

func TestCanonicalJSON_SortsAtEveryLevel(t *testing.T) {
	got, err := dedup.CanonicalJSON([]byte(
		`{"b":[{"z":{"y":1,"x":[]},"a":{}},[],{}],"a":{"d":"D","c":{"\u0062":null,"a":false}}}`))
	require.NoError(t, err)
	require.Equal(t, `{"a":{"c":{"a":false,"b":null},"d":"D"},"b":[{"a":{},"z":{"x":[],"y":1}},[],{}]}`, string(got))
}

func TestCanonicalJSON_Errors(t *testing.T) {
	const canary = "c4n4ry"
	for _, tt := range []struct {
		name, payload string
		rule          dedup.JSONRule
		offset        int64
	}{
		{"empty", "", dedup.JSONSyntax, 0},
		{"truncated", `{"c4n4ry":`, dedup.JSONSyntax, 10},
		{"name not a string", `{1:2}`, dedup.JSONSyntax, 1},
		{"name an object", `{{}:2}`, dedup.JSONSyntax, 1},
		{"wrong delimiter", `[1}`, dedup.JSONSyntax, 2},
		{"value missing", `{"c4n4ry":}`, dedup.JSONSyntax, 10},
		{"literal", `[c4n4ry]`, dedup.JSONSyntax, 1},
		{"number", `[1.c4n4ry]`, dedup.JSONSyntax, 3},
		{"duplicate name", `{"c4n4ry":1,"c4n4ry":2}`, dedup.JSONDuplicateName, 12},
		{"duplicate name, escaped", `{"c4n4ry":1,"\u00634n4ry":2}`, dedup.JSONDuplicateName, 12},
		{"duplicate name, inside", `[{"a":{"c4n4ry":1,"c4n4ry":2}}]`, dedup.JSONDuplicateName, 18},
		{"invalid UTF-8", "[\"c4n4ry\xff\"]", dedup.JSONInvalidUTF8, 8},
		{"invalid UTF-8 in a name", "{\"c4n4ry\xc0\xaf\":1}", dedup.JSONInvalidUTF8, 8},
		{"lone surrogate", `["c4n4ry\udead"]`, dedup.JSONLoneSurrogate, 8},
		{"lone surrogate in a name", `{"c4n4ry\uD800":1}`, dedup.JSONLoneSurrogate, 8},
		{"data after the value", `{} c4n4ry`, dedup.JSONTrailingData, 3},
		{"second value", `1 2`, dedup.JSONTrailingData, 2},
		{"NUL after the value", "1\x00", dedup.JSONTrailingData, 1},
		{"too deep", strings.Repeat(`[`, 65) + strings.Repeat(`]`, 65), dedup.JSONTooDeep, 64},
		{"too deep, objects", strings.Repeat(`{"a":`, 64) + `[` + `]` + strings.Repeat(`}`, 64), dedup.JSONTooDeep, 320},
		{"digits", `[` + strings.Repeat("7", 1025) + `]`, dedup.JSONNumberRange, 1},
		{"exponent", `[ 1e100001]`, dedup.JSONNumberRange, 2},
		{"size", `"` + strings.Repeat("x", 16<<20) + `"`, dedup.JSONTooLarge, 16 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := dedup.CanonicalJSON([]byte(tt.payload))
			var broken *dedup.JSONError
			require.ErrorAs(t, err, &broken)
			require.Equal(t, tt.rule, broken.Rule)
			require.Equal(t, tt.offset, broken.Offset)
			require.Contains(t, err.Error(), string(tt.rule))
			require.Contains(t, err.Error(), fmt.Sprintf("byte %d", tt.offset))
			require.NotContains(t, err.Error(), canary)
		})
	}
}

func TestCanonicalJSON_Limits(t *testing.T) {
	for _, payload := range []string{
		strings.Repeat(`[`, 64) + strings.Repeat(`]`, 64),
		strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat(`}`, 64),
		`"` + strings.Repeat("x", 16<<20-2) + `"`,
		strings.Repeat("7", 1024),
	} {
		got, err := dedup.CanonicalJSON([]byte(payload))
		require.NoError(t, err)
		require.True(t, payload == string(got))
	}
}

// P22: encoding/json makes the documents of each pair equal (or keeps the
// last of two values); canonical forms stay apart, or there is none.
func TestP22_DocumentsThatEncodingJSONMerges(t *testing.T) {
	for _, pair := range [][2]string{
		{`9007199254740992`, `9007199254740993`},
		{"\"\xff\"", "\"\xfe\""},
		{`"\ud800"`, `"\udc00"`},
		{`{"amount":100}`, `{"amount":1,"amount":100}`},
	} {
		var a, b any
		require.NoError(t, json.Unmarshal([]byte(pair[0]), &a))
		require.NoError(t, json.Unmarshal([]byte(pair[1]), &b))
		require.Equal(t, a, b, "the standard library merges these")

		x, errX := dedup.CanonicalJSON([]byte(pair[0]))
		y, errY := dedup.CanonicalJSON([]byte(pair[1]))
		if errX == nil && errY == nil {
			require.NotEqual(t, string(x), string(y))
		}
		require.Equal(t, dedup.Different, compareJSON(t, pair[0], pair[1]))
	}
}

// P23: two amounts with one Adler-32, which Watermill's Deduplicator uses.
func TestP23_PayloadsWithOneAdler32(t *testing.T) {
	a, b := `{"order":"o-1","amount":131}`, `{"order":"o-1","amount":212}`
	require.Equal(t, adler32.Checksum([]byte(a)), adler32.Checksum([]byte(b)))
	require.Equal(t, dedup.Different, compareJSON(t, a, b))
	key := fingerprintKey(t)
	raw := dedup.RawFingerprint()
	require.Equal(t, dedup.Different, raw.Fingerprint(key, []byte(a)).Compare(raw.Fingerprint(key, []byte(b))))
}

// The buffers are shared between calls; what a call returns is not.
func TestCanonicalJSON_Concurrent(t *testing.T) {
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			payload := fmt.Sprintf(`{"b":"%s","a":%d.0}`, strings.Repeat("x", worker), worker+1)
			want := fmt.Sprintf(`{"a":%d,"b":"%s"}`, worker+1, strings.Repeat("x", worker))
			var kept []string
			for range 200 {
				got, err := dedup.CanonicalJSON([]byte(payload))
				_, broken := dedup.CanonicalJSON([]byte(`{"b":1,"a":[`))
				if err != nil || broken == nil {
					t.Errorf("got %v and %v", err, broken)
					return
				}
				kept = append(kept, string(got))
			}
			for _, got := range kept {
				if got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	wg.Wait()
}
