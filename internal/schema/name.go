// Package schema owns the tables of oncemill: their schema's name, the
// numbered migrations, and the check that a database is ready for this
// version of the code.
package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// DefaultName is the schema used when none is configured.
const DefaultName = "oncemill"

// maxIdentifier is NAMEDATALEN-1 of PostgreSQL. Longer names are cut by the
// server without an error, so that two schemas would share their tables.
const maxIdentifier = 63

// Name is a validated schema name. The zero value is DefaultName.
type Name struct{ raw string }

// ParseName validates s, up to 63 bytes of any valid UTF-8 but NUL. The empty
// string is DefaultName. Names that PostgreSQL reserves (pg_…) are refused.
func ParseName(s string) (Name, error) {
	switch {
	case s == "":
		return Name{}, nil
	case len(s) > maxIdentifier:
		return Name{}, nameError(s, fmt.Sprintf("is %d bytes long; PostgreSQL cuts names after %d bytes, use a shorter one", len(s), maxIdentifier))
	case !utf8.ValidString(s):
		return Name{}, nameError(s, "is not valid UTF-8")
	case strings.ContainsRune(s, 0):
		return Name{}, nameError(s, "contains a NUL byte")
	case strings.HasPrefix(s, "pg_") || s == "information_schema":
		return Name{}, nameError(s, "is reserved by PostgreSQL, use another one")
	}
	return Name{raw: s}, nil
}

func nameError(s, rule string) error {
	return fmt.Errorf("Schema: name %.80q %s", s, rule)
}

// String returns the name as it is, without quotes.
func (n Name) String() string {
	if n.raw == "" {
		return DefaultName
	}
	return n.raw
}

// Quoted returns the name as an SQL identifier.
func (n Name) Quoted() string {
	return `"` + strings.ReplaceAll(n.String(), `"`, `""`) + `"`
}

// Expand replaces {{schema}} in a statement by the quoted name.
func (n Name) Expand(statement string) string {
	return strings.ReplaceAll(statement, "{{schema}}", n.Quoted())
}
