package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// JSONRule is a rule of [CanonicalJSON] that a payload can break. Its text may
// be shown to whoever sent the payload.
type JSONRule string

// The rules.
const (
	JSONTooLarge      JSONRule = "payload is larger than 16 MiB"
	JSONSyntax        JSONRule = "not valid JSON"
	JSONInvalidUTF8   JSONRule = "string is not valid UTF-8"
	JSONLoneSurrogate JSONRule = "escape is half of a surrogate pair"
	JSONDuplicateName JSONRule = "member name is given twice in one object"
	JSONTooDeep       JSONRule = "more than 64 nested objects and arrays"
	JSONNumberRange   JSONRule = "number has more than 1024 digits or an exponent beyond 100000"
	JSONTrailingData  JSONRule = "data follows the value"
)

// JSONError says why a payload has no canonical form. It never quotes the
// payload. An HTTP service answers 413 for [JSONTooLarge] and 400 for the rest.
type JSONError struct {
	Rule   JSONRule
	Offset int64 // bytes before the place where the rule is broken
}

// Error names the rule and the place.
func (e *JSONError) Error() string {
	return fmt.Sprintf("dedup: canonical JSON: %s (at byte %d)", e.Rule, e.Offset)
}

// jsonError turns what reading the payload gave into a *JSONError. The
// decoder's own text is dropped, since it quotes names and characters.
func jsonError(err error, payload []byte) error {
	if rule := (*JSONError)(nil); errors.As(err, &rule) {
		return rule
	}
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) { // end of input before any value
		return &JSONError{Rule: JSONSyntax, Offset: int64(len(payload))}
	}
	e := &JSONError{Rule: JSONSyntax, Offset: syntax.ByteOffset}
	switch rest := payload[min(e.Offset, int64(len(payload))):]; {
	case errors.Is(syntax, jsontext.ErrDuplicateName):
		e.Rule = JSONDuplicateName
	case isInvalidUTF8(rest):
		e.Rule = JSONInvalidUTF8
	case isSurrogateEscape(rest):
		e.Rule = JSONLoneSurrogate
	}
	return e
}

func isInvalidUTF8(b []byte) bool {
	r, size := utf8.DecodeRune(b)
	return r == utf8.RuneError && size == 1
}

func isSurrogateEscape(b []byte) bool {
	if len(b) < 6 || !bytes.HasPrefix(b, []byte(`\u`)) {
		return false
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return err == nil && utf16.IsSurrogate(rune(unit))
}
