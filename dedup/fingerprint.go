package dedup

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// fingerprintVersion starts the bytes under a fingerprint.
const fingerprintVersion = "oncemill fingerprint v1"

// The algorithms. Numbers are stored and never reused.
const (
	algorithmRaw          int32 = 1 // payload bytes
	algorithmJSON         int32 = 2 // canonical JSON, less what the paths leave out
	algorithmJSONFallback int32 = 3 // payload bytes that have no canonical JSON

	algorithmShift = 24 // the low 24 bits are a digest of the path configuration
	configMask     = 1<<algorithmShift - 1
)

// Fingerprint identifies the content of a message under one key. It is stored
// with the key and compared when the key comes again.
type Fingerprint struct {
	// Version says how Sum was made: the algorithm in the high 8 bits, a
	// digest of the path configuration in the low 24 (0 without paths).
	Version int32

	// Sum is SHA-256 over the version, the key and the content.
	Sum [32]byte
}

// Match is the outcome of comparing two fingerprints.
type Match int

// The outcomes. The zero value is NotCompared.
const (
	NotCompared Match = iota // made in ways that cannot be compared: not a conflict
	Same                     // same key, same content
	Different                // same key, other content: a conflict
)

// String returns the outcome in words.
func (m Match) String() string {
	switch m {
	case Same:
		return "same"
	case Different:
		return "different"
	default:
		return "not compared"
	}
}

// Compare tells whether two fingerprints of one key stand for the same
// content. They can be compared if one algorithm with one configuration made
// both. A payload with canonical JSON and one without, under one configuration,
// are different. Anything else, also a version that this release doesn't know,
// is not compared. (Two configurations share their 24 bits once in 16 million;
// then their fingerprints are different.)
func (a Fingerprint) Compare(b Fingerprint) Match {
	x, y := a.algorithm(), b.algorithm()
	switch {
	case !known(x) || !known(y) || a.Version&configMask != b.Version&configMask:
		return NotCompared
	case x != y && (x == algorithmRaw || y == algorithmRaw):
		return NotCompared
	case a == b:
		return Same
	default:
		return Different
	}
}

func (a Fingerprint) algorithm() int32 { return a.Version >> algorithmShift }

func known(algorithm int32) bool {
	return algorithm >= algorithmRaw && algorithm <= algorithmJSONFallback
}

// Fingerprinter makes fingerprints. Immutable and safe for concurrent use.
type Fingerprinter struct {
	algorithm int32
	paths     jsonPaths
	config    int32
	metadata  []string
}

// RawFingerprint covers the payload byte by byte.
func RawFingerprint() *Fingerprinter {
	return &Fingerprinter{algorithm: algorithmRaw}
}

// JSONFingerprint covers the payload as a JSON value (see [CanonicalJSON]), so
// that member order, white space and the spelling of numbers don't count. The
// options name what else doesn't; a malformed pointer is an error that quotes
// it. A payload without canonical form, in any part of it, is covered byte by
// byte, and so is never the same as one that has it.
func JSONFingerprint(opts ...JSONOption) (*Fingerprinter, error) {
	paths, err := newJSONPaths(opts)
	if err != nil {
		return nil, err
	}
	return &Fingerprinter{algorithm: algorithmJSON, paths: paths, config: configDigest(paths.parts())}, nil
}

// WithMetadata returns a Fingerprinter that also covers the named metadata,
// whose values are given to Fingerprint in the order of [Fingerprinter.Metadata].
// The names are part of the configuration: fingerprints made with others are
// not compared.
func (f *Fingerprinter) WithMetadata(names ...string) *Fingerprinter {
	g := *f
	g.metadata = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(f.metadata), names...))))
	parts := f.paths.parts()
	if len(g.metadata) > 0 {
		parts = append(append(parts, "oncemill metadata v1"), g.metadata...)
	}
	g.config = configDigest(parts)
	return &g
}

// configDigest is 24 bits of a hash over the configuration, 0 without one.
func configDigest(parts []string) int32 {
	if len(parts) == 0 {
		return 0
	}
	sum := sha256.Sum256(appendParts(nil, parts...))
	return int32(sum[0])<<16 | int32(sum[1])<<8 | int32(sum[2])
}

// Metadata returns the names given to WithMetadata, sorted.
func (f *Fingerprinter) Metadata() []string { return f.metadata }

// Fingerprint returns the fingerprint of a payload under a key. extra are the
// values of [Fingerprinter.Metadata] in its order; a nil value counts as an
// empty one. Nothing is kept.
func (f *Fingerprinter) Fingerprint(k Key, payload []byte, extra ...[]byte) Fingerprint {
	if f.algorithm != algorithmJSON {
		return f.sum(f.algorithm, k, payload, extra)
	}
	c := canonicalizers.Get().(*canonicalizer)
	defer c.release()
	text, err := c.canonicalize(payload, f.paths)
	if err != nil {
		return f.sum(algorithmJSONFallback, k, payload, extra)
	}
	return f.sum(algorithmJSON, k, text, extra)
}

func (f *Fingerprinter) sum(algorithm int32, k Key, content []byte, extra [][]byte) Fingerprint {
	result := Fingerprint{Version: algorithm<<algorithmShift | f.config}
	digest := k.Digest()

	head := appendParts(make([]byte, 0, 128), fingerprintVersion)
	head = binary.BigEndian.AppendUint32(head, uint32(result.Version))
	head = append(head, digest[:]...)
	head = appendLength(head, len(content))

	h := sha256.New()
	h.Write(head)
	h.Write(content)
	for _, value := range extra {
		h.Write(appendLength(head[:0], len(value)))
		h.Write(value)
	}
	h.Sum(result.Sum[:0])
	return result
}
