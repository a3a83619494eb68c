package dedup

import (
	"bytes"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxJSONSize bounds what is held in memory at once: it is sixteen times
	// the default message limit of NATS, and more than a body that a person
	// or a program would compare field by field.
	maxJSONSize = 16 << 20

	// maxJSONDepth counts nested objects and arrays. It bounds the recursion,
	// and the number of times that one byte is moved when members are sorted.
	maxJSONDepth = 64

	// maxPooledSize is the largest buffer kept for the next payload, so that
	// one huge body doesn't stay in memory for ever.
	maxPooledSize = 64 << 10
)

// CanonicalJSON returns the canonical form of one JSON value. Two payloads
// have the same canonical form exactly when they are the same JSON value:
// member order, white space, escapes and the spelling of numbers don't count;
// array order, letter case and Unicode normalisation do.
//
// The form is that of RFC 8785 (members sorted by the UTF-16 code units of
// their names, shortest string escapes, no white space) but for numbers, which
// are exact decimals and never pass through floating point: the digits without
// leading and trailing zeros, then "e" and the exponent if it is not 0. So 100
// is 1e2, 10.10 is 101e-1 and -0 is 0.
//
// There is no canonical form for invalid UTF-8, lone surrogates, a member name
// given twice in one object, data after the value, more than 64 nested objects
// and arrays, a number whose canonical form has more than 1024 digits or an
// exponent beyond ±100000, or a payload of more than 16 MiB. The error is a
// [*JSONError].
//
// Time and memory grow linearly with the payload (sorting the members of one
// object adds the logarithm of their number). The payload is not changed or
// kept. Safe for concurrent use.
func CanonicalJSON(payload []byte) ([]byte, error) {
	c := canonicalizers.Get().(*canonicalizer)
	defer c.release()
	text, err := c.canonicalize(payload, jsonPaths{})
	if err != nil {
		return nil, err
	}
	return bytes.Clone(text), nil
}

// canonicalizer writes the canonical form while it reads the tokens. It keeps
// no tree: an object's members are written in the order of arrival, their
// places noted, and put in order when the object ends.
type canonicalizer struct {
	dec     jsontext.Decoder
	src     bytes.Buffer
	out     []byte   // canonical text so far
	names   []byte   // unescaped names of the noted members
	members []member // of all objects that are still open, innermost last
	spare   []byte   // members of the object that is being put in order
}

// member is the place of one object member.
type member struct {
	nameStart, nameEnd int // in names
	start, end         int // in out: quoted name, colon, value, comma
}

var canonicalizers = sync.Pool{New: func() any { return new(canonicalizer) }}

// strict makes the decoder's defaults explicit: the canonical form rests on them.
var strict = []jsontext.Options{jsontext.AllowDuplicateNames(false), jsontext.AllowInvalidUTF8(false)}

// canonicalize returns the canonical form of what paths leaves of the payload.
// Rules apply to the whole payload, also to what paths leaves out. The result
// is valid until the next use of c.
func (c *canonicalizer) canonicalize(payload []byte, paths jsonPaths) ([]byte, error) {
	if len(payload) > maxJSONSize {
		return nil, &JSONError{Rule: JSONTooLarge, Offset: maxJSONSize}
	}
	c.src = *bytes.NewBuffer(payload) // the decoder reads the payload in place
	c.dec.Reset(&c.src, strict...)
	c.out, c.names, c.members = c.out[:0], c.names[:0], c.members[:0]

	var err error
	if paths.include {
		err = c.selection(paths.root)
	} else {
		err = c.value(paths.root)
	}
	if err == nil {
		err = c.end(payload)
	}
	if err != nil {
		return nil, jsonError(err, payload)
	}
	return c.out, nil
}

// release gives c back to the pool without the payload and large buffers.
func (c *canonicalizer) release() {
	c.src = bytes.Buffer{}
	c.dec.Reset(&c.src, strict...)
	if cap(c.out)+cap(c.names)+cap(c.spare) > maxPooledSize || cap(c.members) > maxPooledSize/64 {
		return
	}
	canonicalizers.Put(c)
}

// end checks that nothing but white space follows the value.
func (c *canonicalizer) end(payload []byte) error {
	rest := bytes.TrimLeft(payload[c.dec.InputOffset():], " \t\r\n")
	if len(rest) > 0 {
		return &JSONError{Rule: JSONTrailingData, Offset: int64(len(payload) - len(rest))}
	}
	return nil
}

// value writes the next value without what skip points to.
func (c *canonicalizer) value(skip *pathNode) error {
	switch kind := c.dec.PeekKind(); kind {
	case jsontext.KindBeginObject:
		return c.object(skip)
	case jsontext.KindBeginArray:
		return c.array(skip)
	default:
		return c.scalar(kind)
	}
}

func (c *canonicalizer) scalar(kind jsontext.Kind) error {
	raw, err := c.dec.ReadValue()
	if err != nil {
		return err
	}
	switch kind {
	case jsontext.KindString:
		c.string(raw)
	case jsontext.KindNumber:
		var ok bool
		if c.out, ok = appendNumber(c.out, raw); !ok {
			return &JSONError{Rule: JSONNumberRange, Offset: c.dec.InputOffset() - int64(len(raw))}
		}
	default:
		c.out = append(c.out, raw...)
	}
	return nil
}

// string writes a string. Without escapes it is in canonical form already.
func (c *canonicalizer) string(raw []byte) {
	if bytes.IndexByte(raw, '\\') < 0 {
		c.out = append(c.out, raw...)
		return
	}
	mark := len(c.names)
	c.names = appendUnquoted(c.names, raw)
	c.out, _ = jsontext.AppendQuote(c.out, c.names[mark:])
	c.names = c.names[:mark]
}

func (c *canonicalizer) array(skip *pathNode) error {
	if err := c.open(); err != nil {
		return err
	}
	c.out = append(c.out, '[')
	for i := 0; c.dec.PeekKind() != jsontext.KindEndArray; i++ {
		mark, child := len(c.out), skip.element(i)
		if err := c.value(child); err != nil {
			return err
		}
		c.out = append(c.out, ',')
		if child.isLeaf() {
			c.out = c.out[:mark]
		}
	}
	return c.close(']')
}

func (c *canonicalizer) object(skip *pathNode) error {
	if err := c.open(); err != nil {
		return err
	}
	c.out = append(c.out, '{')
	first, mark := len(c.members), len(c.names)
	for c.dec.PeekKind() != jsontext.KindEndObject {
		if err := c.member(skip); err != nil {
			return err
		}
	}
	c.order(first)
	c.members, c.names = c.members[:first], c.names[:mark]
	return c.close('}')
}

// member writes the next member of an object and notes its place.
func (c *canonicalizer) member(skip *pathNode) error {
	raw, err := c.dec.ReadValue()
	if err != nil {
		return err
	}
	m := member{nameStart: len(c.names), start: len(c.out)}
	c.names = appendUnquoted(c.names, raw)
	m.nameEnd = len(c.names)
	c.string(raw)
	child := skip.member(c.names[m.nameStart:])
	if err := c.memberValue(m, child); err != nil {
		return err
	}
	if child.isLeaf() {
		c.out, c.names = c.out[:m.start], c.names[:m.nameStart]
		c.members = c.members[:len(c.members)-1]
	}
	return nil
}

// memberValue writes the value that belongs to the name just written.
func (c *canonicalizer) memberValue(m member, skip *pathNode) error {
	c.out = append(c.out, ':')
	if err := c.value(skip); err != nil {
		return err
	}
	c.out = append(c.out, ',')
	m.end = len(c.out)
	c.members = append(c.members, m)
	return nil
}

// open reads the start of an object or array.
func (c *canonicalizer) open() error {
	if _, err := c.dec.ReadToken(); err != nil {
		return err
	}
	if c.dec.StackDepth() > maxJSONDepth {
		return &JSONError{Rule: JSONTooDeep, Offset: c.dec.InputOffset() - 1}
	}
	return nil
}

// close reads the end of an object or array and writes it.
func (c *canonicalizer) close(delimiter byte) error {
	_, err := c.dec.ReadToken()
	c.endText(delimiter)
	return err
}

// endText ends an object or array. Each member and element left a comma.
func (c *canonicalizer) endText(delimiter byte) {
	if last := len(c.out) - 1; c.out[last] == ',' {
		c.out[last] = delimiter
		return
	}
	c.out = append(c.out, delimiter)
}

// order sorts the members noted from first on, which end the output.
func (c *canonicalizer) order(first int) {
	members := c.members[first:]
	if slices.IsSortedFunc(members, c.compareNames) {
		return
	}
	base := members[0].start
	c.spare = append(c.spare[:0], c.out[base:]...)
	slices.SortFunc(members, c.compareNames)
	c.out = c.out[:base]
	for _, m := range members {
		c.out = append(c.out, c.spare[m.start-base:m.end-base]...)
	}
}

func (c *canonicalizer) compareNames(a, b member) int {
	return compareUTF16(c.names[a.nameStart:a.nameEnd], c.names[b.nameStart:b.nameEnd])
}

// compareUTF16 orders valid UTF-8 by its UTF-16 code units (RFC 8785 section
// 3.2.3). That is the order of the bytes, but for U+E000 to U+FFFF (first byte
// EE or EF), which come after the surrogate pairs (first byte F0 and above).
func compareUTF16(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return utf16Rank(a[i]) - utf16Rank(b[i])
		}
	}
	return len(a) - len(b)
}

func utf16Rank(b byte) int {
	if b == 0xEE || b == 0xEF {
		return int(b) + 0x100
	}
	return int(b)
}

// appendUnquoted appends the text of a valid JSON string.
func appendUnquoted(dst, raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return append(dst, raw[1:len(raw)-1]...)
	}
	dst, _ = jsontext.AppendUnquote(dst, raw)
	return dst
}
