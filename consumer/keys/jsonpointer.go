package keys

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// JSONPointer takes the id from the JSON payload, at a JSON Pointer (RFC 6901)
// such as "/order/id". The value is a string, or an integer whose digits are
// taken as they are written; 7 and "7" are one id. Other values, a payload that
// is not JSON, and a name on the path that an object has twice are errors.
//
// It panics on a malformed pointer and on "", which is the whole payload.
func JSONPointer(pointer string) Func {
	path, err := parsePointer(pointer)
	if err != nil {
		panic(fmt.Sprintf("keys.JSONPointer: %q: %v", pointer, err))
	}
	name := "payload " + pointer
	return source{name, func(msg *message.Message) (string, error) {
		id, rule := textAt(msg.Payload, path)
		if rule != "" {
			return "", &Error{name, rule}
		}
		return id, nil
	}}
}

// parsePointer splits a pointer into its unescaped tokens.
func parsePointer(pointer string) ([]string, error) {
	if !strings.HasPrefix(pointer, "/") {
		return nil, errors.New("must start with /")
	}
	tokens := strings.Split(pointer[1:], "/")
	for i, token := range tokens {
		rest := strings.NewReplacer("~0", "", "~1", "").Replace(token)
		if strings.Contains(rest, "~") {
			return nil, errors.New("~ must be followed by 0 or 1")
		}
		if !utf8.ValidString(token) || strings.ContainsRune(token, utf8.RuneError) {
			return nil, errors.New("must be valid UTF-8 without U+FFFD")
		}
		tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return tokens, nil
}

// textAt is the string or integer at path, or the rule that the payload breaks.
func textAt(payload []byte, path []string) (id, rule string) {
	// Checked first: reading by tokens lets some malformed JSON pass.
	if !json.Valid(payload) {
		return "", "cannot be read: the payload is not JSON"
	}
	r := tokenReader{json.NewDecoder(bytes.NewReader(payload))}
	r.dec.UseNumber()
	value, err := r.find(path)
	switch {
	case errors.Is(err, errRepeated):
		return "", "is ambiguous: a name on its path is there twice"
	case err != nil:
		return "", "cannot be read: the payload is not JSON"
	}
	return textOf(value)
}

func textOf(value json.Token) (id, rule string) {
	switch v := value.(type) {
	case nil:
		return "", ruleMissing
	case string:
		// The decoder puts U+FFFD for each broken character: different ids
		// would become one.
		if strings.ContainsRune(v, utf8.RuneError) {
			return "", "has broken characters"
		}
		return v, ""
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") || v == "-0" {
			return "", "must be a string or an integer in plain digits"
		}
		return v.String(), ""
	}
	return "", "must be a string or an integer"
}

var errRepeated = errors.New("repeated name")

// tokenReader reads one JSON text that is known to be valid.
type tokenReader struct{ dec *json.Decoder }

// find reads the next value and returns what is at path in it: a string, a
// number, a bool, a delimiter for an object or array, or nil for null or
// nothing.
func (r tokenReader) find(path []string) (json.Token, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch {
	case token == json.Delim('{') && len(path) > 0:
		return r.member(path)
	case token == json.Delim('[') && len(path) > 0:
		return r.element(path)
	case token == json.Delim('{'), token == json.Delim('['):
		return token, r.skipToEnd()
	case len(path) > 0:
		return nil, nil
	}
	return token, nil
}

func (r tokenReader) member(path []string) (found json.Token, err error) {
	seen := false
	for r.dec.More() {
		name, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		if name != path[0] {
			if _, err := r.find(nil); err != nil {
				return nil, err
			}
			continue
		}
		if seen {
			return nil, errRepeated
		}
		seen = true
		if found, err = r.find(path[1:]); err != nil {
			return nil, err
		}
	}
	_, err = r.dec.Token()
	return found, err
}

func (r tokenReader) element(path []string) (found json.Token, err error) {
	for i := 0; r.dec.More(); i++ {
		rest, want := []string(nil), strconv.Itoa(i) == path[0]
		if want {
			rest = path[1:]
		}
		value, err := r.find(rest)
		if err != nil {
			return nil, err
		}
		if want {
			found = value
		}
	}
	_, err = r.dec.Token()
	return found, err
}

// skipToEnd reads up to the end of an object or array that was begun.
func (r tokenReader) skipToEnd() error {
	for depth := 1; depth > 0; {
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
	return nil
}
