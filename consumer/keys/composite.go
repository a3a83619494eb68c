package keys

import (
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Composite joins several ids into one, for intents that only all of them
// together name. Each part is preceded by its length in bytes, "4:acme|3:o-1",
// so that no two lists of parts give one id. All parts must be there; their
// order counts. It is [Timed]: the earliest time of its parts counts.
func Composite(first, second Func, more ...Func) Func {
	return composite(append([]Func{first, second}, more...))
}

type composite []Func

func (c composite) String() string {
	names := make([]string, len(c))
	for i, part := range c {
		names[i] = part.String()
	}
	return strings.Join(names, " + ")
}

func (c composite) ID(msg *message.Message) (string, error) {
	ids := make([]string, len(c))
	for i, part := range c {
		id, err := part.ID(msg)
		if err != nil {
			return "", err
		}
		ids[i] = id
	}
	return join(ids...), nil
}

func (c composite) Time(msg *message.Message) (earliest time.Time, err error) {
	for _, part := range c {
		at, err := timeOf(part, msg)
		if err != nil {
			return time.Time{}, err
		}
		earliest = earlier(earliest, at)
	}
	return earliest, nil
}

func join(ids ...string) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte('|')
		}
		b.WriteString(strconv.Itoa(len(id)))
		b.WriteByte(':')
		b.WriteString(id)
	}
	return b.String()
}
