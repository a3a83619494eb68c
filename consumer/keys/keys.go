package keys

import (
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/dedup"
)

// Func finds the id of the intent in a message. The functions of this package
// give the usual ones, [New] makes others. A Func is safe for concurrent use.
type Func interface {
	// ID returns the id, without outer blanks and not empty. It does not change
	// the message.
	ID(msg *message.Message) (string, error)
	// String names the source, for logs and errors: what the id is taken from.
	String() string
}

// Timed is a Func that knows the time of the event, which its id hides:
// [CloudEvents] and [Composite] are. Of any other Func the id itself counts, if
// it is a UUIDv7 or a ULID. It is an addition for Funcs of yours, too.
type Timed interface {
	Func
	// Time returns the earliest time that a part of the key carries, the id
	// itself included, and the zero time if none does. An error, of a time that
	// cannot be read, is permanent.
	Time(msg *message.Message) (time.Time, error)
}

// timeOf is the time that f knows, else the one in its id.
func timeOf(f Func, msg *message.Message) (time.Time, error) {
	if timed, ok := f.(Timed); ok {
		return timed.Time(msg)
	}
	id, err := f.ID(msg)
	return idTime(id), err
}

// idTime is the time in a UUIDv7 or ULID, zero if the id is neither.
func idTime(id string) time.Time {
	t, _ := dedup.Key{ID: id}.Time()
	return t
}

// earlier returns the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Error says that a message has no usable id. It is permanent: no retry can
// mend it. It never holds a value of the message.
type Error struct {
	// Source is the String of the Func, Rule what the id must be.
	Source, Rule string
}

func (e *Error) Error() string {
	return fmt.Sprintf("no key: %s %s; it must be set where the intent is made", e.Source, e.Rule)
}

// Permanent returns true: dedup.IsPermanent asks for it.
func (e *Error) Permanent() bool { return true }

const ruleMissing = "is missing or blank"

// New makes a Func of id; name is its String. What id returns is trimmed like
// any other, and blank is an [*Error]. An error of id is permanent only if it
// says so (dedup.Permanent). It panics on a blank name or a nil id.
func New(name string, id func(*message.Message) (string, error)) Func {
	if trim(name) == "" || id == nil {
		panic("keys.New: name: is blank, or id: is nil; name the source and give its function")
	}
	return source{name, func(msg *message.Message) (string, error) {
		v, err := id(msg)
		if err != nil {
			return "", fmt.Errorf("key from %s: %w", name, err)
		}
		return v, nil
	}}
}

// source is a Func by name.
type source struct {
	name string
	id   func(*message.Message) (string, error)
}

func (s source) String() string { return s.name }

func (s source) ID(msg *message.Message) (string, error) {
	id, err := s.id(msg)
	if err != nil {
		return "", err
	}
	if id = trim(id); id == "" {
		return "", &Error{s.name, ruleMissing}
	}
	return id, nil
}

// trim cuts off outer blanks, by the rule of dedup.NewKey.
func trim(s string) string { return strings.Trim(s, " \t") }
