package dedup_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/oncemill/oncemill/dedup"
)

var limitRules = []dedup.JSONRule{dedup.JSONTooDeep, dedup.JSONNumberRange, dedup.JSONTooLarge}

// FuzzCanonicalJSON holds the canonical form against encoding/json with
// math/big: equal values have equal forms and the other way round, a form is
// its own form, another spelling has the same one, and what has none is what
// jsontext refuses or what is over a limit.
func FuzzCanonicalJSON(f *testing.F) {
	for _, pair := range [][2]string{
		{`{"a":1,"b":2}`, ` { "b" : 2.0 , "a" : 1e0 } `},
		{`[9007199254740993]`, `[9007199254740992]`},
		{`[10.10,-0,100]`, `[101e-1,0,1E+2]`},
		{`{"\u20ac":1,"\ufb33":[],"\ud83d\ude00":{}}`, "{\"\U0001f600\":{},\"\ufb33\":[],\"€\":1}"},
		{`{"a":1,"\u0061":2}`, `{"a":1}`},
		{`["\ud800"]`, "[\"\xed\xa0\x80\"]"},
		{`[[[[]]]]x`, `null`},
		{`{"a":{"b":"\u0000\"\\\/\b\f\n\r\t\u007f"}}`, `{"a":{}}`},
		{`[1e100001]`, `[0.00001e5]`},
		{`{"":0,"\n":1,"A":2}`, `{"A":2,"":0,"\u000a":1}`},
		{`[1` + strings.Repeat("0", 30) + `]`, `[1e30]`},
		{strings.Repeat("[", 65), `[tru]`},
		{`0e10000000000000000000`, `0`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		x, okX := fuzzOne(t, a)
		y, okY := fuzzOne(t, b)
		if !okX || !okY {
			return
		}
		if equal := equalJSON(decodeJSON(t, a), decodeJSON(t, b)); equal != bytes.Equal(x, y) {
			t.Errorf("values equal: %t, but the forms are %s and %s", equal, x, y)
		}
	})
}

// fuzzOne checks one payload and returns its form, unless it has none or holds
// numbers that math/big would take long to expand.
func fuzzOne(t *testing.T, payload []byte) ([]byte, bool) {
	form, err := dedup.CanonicalJSON(payload)
	valid := jsontext.Value(payload).IsValid()
	if err != nil {
		var broken *dedup.JSONError
		if !errors.As(err, &broken) {
			t.Fatalf("error %v is not a JSONError", err)
		}
		if valid && !slices.Contains(limitRules, broken.Rule) {
			t.Errorf("refused valid JSON: %v", err)
		}
		return nil, false
	}
	if !valid {
		t.Errorf("accepted %q", payload)
	}
	if again, err := dedup.CanonicalJSON(form); err != nil || !bytes.Equal(form, again) {
		t.Errorf("the form of %s is %s (%v)", form, again, err)
	}
	if hugeExponent(payload) {
		return nil, false
	}
	value := decodeJSON(t, payload)
	if !equalJSON(value, decodeJSON(t, form)) {
		t.Errorf("%q has another value than its form %s", payload, form)
	}
	if other, err := dedup.CanonicalJSON([]byte(respell(value))); err != nil || !bytes.Equal(form, other) {
		t.Errorf("the form is %s, that of another spelling %s (%v)", form, other, err)
	}
	return form, true
}

func hugeExponent(payload []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err != nil {
			return false
		}
		if number, ok := token.(json.Number); ok {
			if _, exponent, _ := strings.Cut(strings.ToLower(number.String()), "e"); len(exponent) > 4 {
				return true
			}
		}
	}
}

func decodeJSON(t *testing.T, text []byte) any {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", text, err)
	}
	return value
}

func equalJSON(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		return ok && mustRat(a).Cmp(mustRat(b)) == 0
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalJSON)
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, value := range a {
			if other, ok := b[name]; !ok || !equalJSON(value, other) {
				return false
			}
		}
		return true
	default:
		return a == b
	}
}

func mustRat(number json.Number) *big.Rat {
	value, ok := new(big.Rat).SetString(number.String())
	if !ok {
		panic("math/big refuses a JSON number")
	}
	return value
}

// respell writes a value as differently as JSON allows: white space, every
// character of a string escaped, numbers with another exponent, members in
// the order in which a map gives them.
func respell(value any) string {
	switch value := value.(type) {
	case json.Number:
		return respellNumber(value.String())
	case string:
		return respellString(value)
	case []any:
		var items []string
		for _, item := range value {
			items = append(items, respell(item))
		}
		return "[ " + strings.Join(items, "\t,") + "\r]"
	case map[string]any:
		var members []string
		for name, member := range value {
			members = append(members, respellString(name)+" : "+respell(member))
		}
		return "\n{" + strings.Join(members, " , ") + "}"
	default:
		text, _ := json.Marshal(value)
		return string(text)
	}
}

func respellString(s string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&b, `\u%04X`, unit)
	}
	return `"` + b.String() + `"`
}

// respellNumber adds zeros to the fraction and writes an exponent.
func respellNumber(number string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	power, ok := new(big.Int).SetString("0"+strings.TrimLeft(exponent, "+-"), 10)
	if !ok {
		panic("exponent is not a number")
	}
	if strings.HasPrefix(exponent, "-") {
		power.Neg(power)
	}
	if !strings.Contains(mantissa, ".") {
		return mantissa + ".00E" + power.String()
	}
	return mantissa + "0E" + power.String()
}
