package dedup_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
)

func TestExcludePaths(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pointers []string
		a, b     string
		want     dedup.Match
	}{
		{"first, middle and last member", []string{"/a", "/c", "/e"}, `{"a":1,"b":2,"c":3,"d":4,"e":5}`, `{"d":4,"b":2}`, dedup.Same},
		{"absent or present", []string{"/a"}, `{"b":1}`, `{"b":1,"a":null}`, dedup.Same},
		{"only member", []string{"/a"}, `{"a":1}`, `{}`, dedup.Same},
		{"nested", []string{"/a/b"}, `{"a":{"b":1,"c":2}}`, `{"a":{"c":2,"b":{"x":[]}}}`, dedup.Same},
		{"not its neighbour", []string{"/a/b"}, `{"a":{"b":1,"c":2}}`, `{"a":{"b":1,"c":3}}`, dedup.Different},
		{"not its parent", []string{"/a/b"}, `{"a":{"b":1}}`, `{"a":5}`, dedup.Different},
		{"not a longer name", []string{"/a"}, `{"ab":1}`, `{"ab":2}`, dedup.Different},
		{"not deeper", []string{"/sent_at"}, `{"x":{"sent_at":1}}`, `{"x":{"sent_at":2}}`, dedup.Different},
		{"element", []string{"/l/1/t"}, `{"l":[{"t":1},{"t":1}]}`, `{"l":[{"t":1},{"t":2}]}`, dedup.Same},
		{"other element", []string{"/l/1/t"}, `{"l":[{"t":1},{"t":1}]}`, `{"l":[{"t":2},{"t":1}]}`, dedup.Different},
		{"whole element", []string{"/l/0"}, `{"l":[1,2]}`, `{"l":[9,2]}`, dedup.Same},
		{"array at the top", []string{"/0"}, `[1,2]`, `[9,2]`, dedup.Same},
		{"last element", []string{"/l/2"}, `{"l":[1,2,3]}`, `{"l":[1,2,4]}`, dedup.Same},
		{"index with leading zero names no element", []string{"/l/01"}, `{"l":[1,2]}`, `{"l":[1,3]}`, dedup.Different},
		{"index names a member as well", []string{"/l/1"}, `{"l":{"1":1,"0":2}}`, `{"l":{"1":7,"0":2}}`, dedup.Same},
		{"escaped slash", []string{"/a~1b"}, `{"a/b":1}`, `{"a/b":2}`, dedup.Same},
		{"escaped slash is no step", []string{"/a~1b"}, `{"a":{"b":1}}`, `{"a":{"b":2}}`, dedup.Different},
		{"escaped tilde", []string{"/m~0n"}, `{"m~n":1}`, `{"m~n":2}`, dedup.Same},
		{"escaped tilde before 1", []string{"/~01"}, `{"~1":1,"/":1}`, `{"~1":2,"/":1}`, dedup.Same},
		{"empty name", []string{"/"}, `{"":1,"a":1}`, `{"":2,"a":1}`, dedup.Same},
		{"empty name below", []string{"/a/"}, `{"a":{"":1}}`, `{"a":{"":2}}`, dedup.Same},
		{"escaped in the payload", []string{"/é"}, `{"\u00e9":1}`, `{"é":2}`, dedup.Same},
		{"members out of order around it", []string{"/m"}, `{"z":1,"m":{"q":1,"p":2},"a":2}`, `{"a":2,"m":3,"z":1}`, dedup.Same},
		{"covered by a shorter one", []string{"/a", "/a/b"}, `{"a":{"b":1,"c":1}}`, `{"a":{"b":2,"c":2}}`, dedup.Same},
		{"covered by a shorter one, later", []string{"/a/b", "/a"}, `{"a":{"b":1,"c":1}}`, `{"a":{"b":2,"c":2}}`, dedup.Same},
		{"scalar payload", []string{"/a"}, `1`, `1.0`, dedup.Same},
		{"duplicate names in what is left out", []string{"/a"}, `{"a":{"x":1}}`, `{"a":{"x":1,"x":1}}`, dedup.Different},
		{"bad number in what is left out", []string{"/a"}, `{"a":1}`, `{"a":1e100001}`, dedup.Different},
		{"bad string in what is left out", []string{"/a"}, `{"a":""}`, `{"a":"\ud800"}`, dedup.Different},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, compareJSON(t, tt.a, tt.b, dedup.ExcludePaths(tt.pointers...)))
		})
	}
}

func TestIncludePaths(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pointers []string
		a, b     string
		want     dedup.Match
	}{
		{"null is not absent", []string{"/a"}, `{"a":null}`, `{}`, dedup.Different},
		{"absent in both", []string{"/a"}, `{"b":1}`, `{"b":2}`, dedup.Same},
		{"absent below another parent", []string{"/a/b"}, `{"a":{}}`, `{"a":7}`, dedup.Same},
		{"absent without a parent", []string{"/a/b"}, `{"a":{"c":1}}`, `[]`, dedup.Same},
		{"values stay with their paths", []string{"/a", "/b"}, `{"a":1}`, `{"b":1}`, dedup.Different},
		{"swapped values", []string{"/a", "/b"}, `{"a":1,"b":2}`, `{"b":1,"a":2}`, dedup.Different},
		{"order of members", []string{"/b", "/a"}, `{"a":1,"b":2,"c":3}`, `{"c":4,"b":2.0,"a":1}`, dedup.Same},
		{"structure inside counts", []string{"/a"}, `{"a":{"x":1,"y":[1,2]}}`, `{"a":{"y":[2,1],"x":1}}`, dedup.Different},
		{"structure inside is canonical", []string{"/a"}, `{"a":{"x":1,"y":[1,2]}}`, `{"b":0,"a":{"y":[1,2.0],"x":1}}`, dedup.Same},
		{"element", []string{"/l/1/p"}, `{"l":[{"p":1},{"p":2}]}`, `{"l":[{"p":9},{"p":2}]}`, dedup.Same},
		{"other element", []string{"/l/0/p", "/l/1/p"}, `{"l":[{"p":1},{}]}`, `{"l":[{},{"p":1}]}`, dedup.Different},
		{"array at the top", []string{"/0"}, `[1,2]`, `[1,3]`, dedup.Same},
		{"not deeper", []string{"/a"}, `{"x":{"a":1}}`, `{"x":{"a":2}}`, dedup.Same},
		{"escapes", []string{"/a~1b", "/m~0n"}, `{"a/b":1,"m~n":2}`, `{"a/b":1,"m~n":3}`, dedup.Different},
		{"covered by a shorter one", []string{"/a/b", "/a"}, `{"a":{"b":1,"c":1}}`, `{"a":{"b":1,"c":2}}`, dedup.Different},
		{"duplicate names elsewhere", []string{"/a"}, `{"a":1,"x":{"y":1}}`, `{"a":1,"x":{"y":1,"y":1}}`, dedup.Different},
		{"duplicate names on the way", []string{"/a/b"}, `{"a":{"b":1}}`, `{"a":{"b":1},"a":{"b":1}}`, dedup.Different},
		{"bad number elsewhere", []string{"/a"}, `{"a":1,"x":[1]}`, `{"a":1,"x":[1e100001]}`, dedup.Different},
		{"trailing data", []string{"/a"}, `{"a":1}`, `{"a":1}x`, dedup.Different},
		{"truncated", []string{"/a/0"}, `{"a":[1]}`, `{"a":[1`, dedup.Different},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, compareJSON(t, tt.a, tt.b, dedup.IncludePaths(tt.pointers...)))
		})
	}
}

// The version depends on what is covered, not on how it was written down.
func TestJSONFingerprint_VersionCoversThePaths(t *testing.T) {
	version := func(opts ...dedup.JSONOption) int32 {
		return jsonFingerprinter(t, opts...).Fingerprint(fingerprintKey(t), []byte(`{}`)).Version
	}
	require.Equal(t, version(), version(dedup.ExcludePaths()))
	base := version(dedup.ExcludePaths("/a", "/b/c"))
	require.Equal(t, base, version(dedup.ExcludePaths("/b/c", "/a")))
	require.Equal(t, base, version(dedup.ExcludePaths("/b/c"), dedup.ExcludePaths("/a")))
	require.Equal(t, base, version(dedup.ExcludePaths("/b/c", "/a", "/a", "/a/d")))
	for _, other := range []int32{
		version(), version(dedup.IncludePaths("/a", "/b/c")), version(dedup.ExcludePaths("/a")), version(dedup.ExcludePaths("/a/b", "/c")),
	} {
		require.NotEqual(t, base, other)
	}
}

func TestJSONFingerprint_RefusesBadPaths(t *testing.T) {
	for _, pointer := range []string{"", "sent_at", "#/a", "/a~", "/a~2b", "~1a", "/a\xff"} {
		for name, option := range map[string]func(...string) dedup.JSONOption{
			"ExcludePaths": dedup.ExcludePaths, "IncludePaths": dedup.IncludePaths,
		} {
			f, err := dedup.JSONFingerprint(option("/ok", pointer))
			require.Nil(t, f)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, fmt.Sprintf("%q", pointer))
		}
	}
	_, err := dedup.JSONFingerprint(dedup.IncludePaths("/a"), dedup.ExcludePaths("/b"))
	require.ErrorContains(t, err, "IncludePaths and ExcludePaths are both given")
	_, err = dedup.JSONFingerprint(dedup.IncludePaths())
	require.ErrorContains(t, err, "IncludePaths has no path")
}
