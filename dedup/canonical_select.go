package dedup

import "github.com/go-json-experiment/json/jsontext"

// selection writes an object with a member for each included pointer that has
// a value: the pointer is its name, the canonical value its value. The shape
// of the payload around those values is not covered.
func (c *canonicalizer) selection(root *pathNode) error {
	c.out = append(c.out, '{')
	if err := c.pick(root); err != nil {
		return err
	}
	c.order(0)
	c.endText('}')
	return nil
}

// pick reads the next value and keeps what n points to.
func (c *canonicalizer) pick(n *pathNode) error {
	switch {
	case n == nil:
		return c.discard()
	case n.isLeaf():
		return c.keep(n)
	}
	switch c.dec.PeekKind() {
	case jsontext.KindBeginObject:
		return c.pickMembers(n)
	case jsontext.KindBeginArray:
		return c.pickElements(n)
	default:
		return c.discard()
	}
}

func (c *canonicalizer) pickMembers(n *pathNode) error {
	if err := c.open(); err != nil {
		return err
	}
	for c.dec.PeekKind() != jsontext.KindEndObject {
		raw, err := c.dec.ReadValue()
		if err != nil {
			return err
		}
		mark := len(c.names)
		c.names = appendUnquoted(c.names, raw)
		child := n.member(c.names[mark:])
		c.names = c.names[:mark]
		if err := c.pick(child); err != nil {
			return err
		}
	}
	_, err := c.dec.ReadToken()
	return err
}

func (c *canonicalizer) pickElements(n *pathNode) error {
	if err := c.open(); err != nil {
		return err
	}
	for i := 0; c.dec.PeekKind() != jsontext.KindEndArray; i++ {
		if err := c.pick(n.element(i)); err != nil {
			return err
		}
	}
	_, err := c.dec.ReadToken()
	return err
}

// keep writes the next value as the member that a pointer names.
func (c *canonicalizer) keep(leaf *pathNode) error {
	m := member{nameStart: len(c.names), start: len(c.out)}
	c.names = append(c.names, leaf.pointer...)
	m.nameEnd = len(c.names)
	c.out = append(c.out, leaf.quoted...)
	return c.memberValue(m, nil)
}

// discard reads the next value, holds it to the rules and drops it.
func (c *canonicalizer) discard() error {
	mark := len(c.out)
	err := c.value(nil)
	c.out = c.out[:mark]
	return err
}
