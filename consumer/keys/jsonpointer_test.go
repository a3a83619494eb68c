package keys_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer/keys"
)

func TestJSONPointerFinds(t *testing.T) {
	for _, tc := range []struct{ pointer, payload, want string }{
		{"/id", `{"id":"o-1"}`, "o-1"},
		{"/order/id", ` {"x":[1,{"id":2}],"order":{"a":{},"id":"o-1","b":[[]]},"y":null} `, "o-1"},
		{"/id", `{"id":42}`, "42"},
		{"/id", `{"id":-7}`, "-7"},
		{"/id", `{"id":9007199254740993}`, "9007199254740993"},
		{"/id", `{"id":` + strings.Repeat("9", 40) + `}`, strings.Repeat("9", 40)},
		{"/lines/1/id", `{"lines":[{"id":"a"},{"id":"b"},{"id":"c"}]}`, "b"},
		{"/a~1b/m~0n", `{"a/b":{"m~n":"o-1"}}`, "o-1"},
		{"/a~01", `{"a~1":"o-1"}`, "o-1"},
		{"/", `{"":"o-1"}`, "o-1"},
		{"/ключ", `{"ключ":"o-1"}`, "o-1"},
		{"/k", `{"\u006b":"\u006f-1"}`, "o-1"},
		{"/0", `["o-1"]`, "o-1"},
		{"/id", `{"other":{"id":"x","id":"y"},"id":"o-1"}`, "o-1"},
	} {
		requireID(t, tc.want, keys.JSONPointer(tc.pointer), msg(tc.payload))
	}
}

func TestJSONPointerRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ pointer, payload string }{
		"no payload":        {"/id", ""},
		"not JSON":          {"/id", canary},
		"trailing data":     {"/id", `{"id":"` + canary + `"} x`},
		"second value":      {"/id", `{"id":"` + canary + `"}{}`},
		"trailing comma":    {"/id", `{"id":"` + canary + `",}`},
		"absent":            {"/id", `{"ID":"` + canary + `"}`},
		"null":              {"/id", `{"id":null}`},
		"object":            {"/id", `{"id":{"x":"` + canary + `"}}`},
		"array":             {"/id", `{"id":["` + canary + `"]}`},
		"bool":              {"/id", `{"id":true}`},
		"fraction":          {"/id", `{"id":1.0}`},
		"exponent":          {"/id", `{"id":1e2}`},
		"minus zero":        {"/id", `{"id":-0}`},
		"repeated":          {"/id", `{"id":"a","id":"` + canary + `"}`},
		"repeated, equal":   {"/id", `{"id":"a","id":"a"}`},
		"repeated, escaped": {"/id", `{"id":"a","\u0069d":"b"}`},
		"repeated parent":   {"/o/id", `{"o":{"id":"a"},"o":{"x":1}}`},
		"broken byte":       {"/id", "{\"id\":\"a\xff\"}"},
		"lone surrogate":    {"/id", `{"id":"a\ud800"}`},
		"through a string":  {"/id/x", `{"id":"` + canary + `"}`},
		"index with zero":   {"/01", `["a","` + canary + `"]`},
		"past the end":      {"/-", `["a"]`},
		"number as name":    {"/0", `{"a":1}`},
		"deep":              {"/id", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)},
	} {
		t.Run(name, func(t *testing.T) { requireRefused(t, keys.JSONPointer(tc.pointer), msg(tc.payload)) })
	}
}

func TestJSONPointerLeavesThePayload(t *testing.T) {
	m := msg(`{"id":"o-1"}`)
	requireID(t, "o-1", keys.JSONPointer("/id"), m)
	require.Equal(t, `{"id":"o-1"}`, string(m.Payload))
}

func FuzzJSONPointer(f *testing.F) {
	f.Add(`{"order":{"id":"o-1"}}`)
	f.Add(`{"order":{"id":[1,`)
	key := keys.JSONPointer("/order/id")
	f.Fuzz(func(t *testing.T, payload string) {
		if id, err := key.ID(msg(payload)); err == nil {
			require.NotEmpty(t, strings.Trim(id, " \t"))
		}
	})
}
