package keys

import (
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Composite joins several ids into one, for intents that only all of them
// together name. Each part is preceded by its length in bytes, "4:acme|3:o-1",
// so that no two lists of parts give one id. All parts must be there; their
// order counts.
func Composite(first, second Func, more ...Func) Func {
	parts := append([]Func{first, second}, more...)
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = part.String()
	}
	return source{strings.Join(names, " + "), func(msg *message.Message) (string, error) {
		ids := make([]string, len(parts))
		for i, part := range parts {
			id, err := part.ID(msg)
			if err != nil {
				return "", err
			}
			ids[i] = id
		}
		return join(ids...), nil
	}}
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
