package dedup

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// JSONOption chooses which parts of a payload a [JSONFingerprint] covers.
type JSONOption func(*jsonOptions)

type jsonOptions struct {
	including, excluding bool
	include, exclude     []string
}

// ExcludePaths leaves out the values that the JSON Pointers (RFC 6901) point
// to: what a retry may change, such as a time of sending. Each is the exact
// path of one value: "/sent_at" leaves /order/sent_at in. An element is named
// by its index, "/lines/0/note". A value that is left out counts like one that
// is absent. May be given more than once.
func ExcludePaths(pointers ...string) JSONOption {
	return func(o *jsonOptions) {
		o.excluding, o.exclude = true, append(o.exclude, pointers...)
	}
}

// IncludePaths covers only the values that the JSON Pointers (RFC 6901) point
// to. An absent value differs from null. At least one pointer is needed, and
// ExcludePaths cannot be given as well. May be given more than once.
func IncludePaths(pointers ...string) JSONOption {
	return func(o *jsonOptions) {
		o.including, o.include = true, append(o.include, pointers...)
	}
}

// jsonPaths is the checked form of the options. The zero value covers all.
type jsonPaths struct {
	include bool // root names what is covered, else what is left out
	root    *pathNode
}

// pathNode is a step of one or more pointers. A nil node is a step of none.
type pathNode struct {
	pointer  string // where a pointer ends: its text; this leaf covers all below
	quoted   []byte // the same as a canonical JSON string
	children map[string]*pathNode
}

func newJSONPaths(opts []JSONOption) (jsonPaths, error) {
	var o jsonOptions
	for _, opt := range opts {
		opt(&o)
	}
	switch {
	case o.including && o.excluding:
		return jsonPaths{}, errors.New("dedup: JSON fingerprint: IncludePaths and ExcludePaths are both given; choose one")
	case o.including && len(o.include) == 0:
		return jsonPaths{}, errors.New("dedup: JSON fingerprint: IncludePaths has no path, so every payload would be the same; name at least one")
	case o.including:
		root, err := parsePointers("IncludePaths", o.include)
		return jsonPaths{include: true, root: root}, err
	default:
		root, err := parsePointers("ExcludePaths", o.exclude)
		return jsonPaths{root: root}, err
	}
}

func parsePointers(option string, pointers []string) (*pathNode, error) {
	if len(pointers) == 0 {
		return nil, nil
	}
	root := new(pathNode)
	for _, text := range pointers {
		p := jsontext.Pointer(text)
		switch {
		case text == "":
			return nil, fmt.Errorf("dedup: JSON fingerprint: %s: %q is the whole payload; name a part of it", option, text)
		case !p.IsValid():
			return nil, fmt.Errorf("dedup: JSON fingerprint: %s: %q is not a JSON Pointer (RFC 6901); "+
				`write "/" before each name, "~0" for "~" and "~1" for "/" in a name`, option, text)
		}
		root.add(p)
	}
	return root, nil
}

func (n *pathNode) add(p jsontext.Pointer) {
	for token := range p.Tokens() {
		if n.children == nil {
			n.children = make(map[string]*pathNode)
		}
		child := n.children[token]
		if child == nil {
			child = new(pathNode)
			n.children[token] = child
		}
		n = child
	}
	n.pointer = string(p)
	n.quoted, _ = jsontext.AppendQuote(nil, p)
}

func (n *pathNode) isLeaf() bool {
	return n != nil && n.pointer != ""
}

// member is the step to an object's member.
func (n *pathNode) member(name []byte) *pathNode {
	if n == nil {
		return nil
	}
	return n.children[string(name)]
}

// element is the step to an array's element.
func (n *pathNode) element(index int) *pathNode {
	if n == nil || len(n.children) == 0 {
		return nil
	}
	var digits [20]byte
	return n.children[string(strconv.AppendInt(digits[:0], int64(index), 10))]
}

// parts name the configuration; none without pointers.
func (p jsonPaths) parts() []string {
	if p.root == nil {
		return nil
	}
	kind := "exclude"
	if p.include {
		kind = "include"
	}
	return append([]string{"oncemill json paths v1", kind}, p.root.pointers()...)
}

// pointers returns the pointers that end at n or below, sorted.
func (n *pathNode) pointers() []string {
	if n.isLeaf() {
		return []string{n.pointer}
	}
	var all []string
	for child := range maps.Values(n.children) {
		all = append(all, child.pointers()...)
	}
	slices.Sort(all)
	return all
}
