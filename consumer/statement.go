package consumer

import (
	"fmt"
	"slices"
	"strings"
)

// StatementError says that a statement was not sent, because it would end the
// delivery's transaction, weaken its commit, or outlive it.
type StatementError struct {
	// Statement is the statement's keyword, such as COMMIT.
	Statement string
	// Remedy is what to do instead.
	Remedy string
}

func (e *StatementError) Error() string {
	return fmt.Sprintf("%s is refused in a handler's transaction; %s", e.Statement, e.Remedy)
}

const (
	remedyEnd    = "return nil to commit or an error to roll back, and use tx.Begin for a savepoint"
	remedyLocal  = "it would stay on the pooled connection for the next message; use SET LOCAL"
	remedyListen = "it would stay on the pooled connection; listen on a connection of your own"
	remedyCommit = "a duplicate must not be acked against a commit that a crash can lose"
)

// refusals are statements by their first word.
var refusals = []struct {
	words  []string
	remedy string
}{
	{[]string{"BEGIN", "START", "COMMIT", "END", "ABORT"}, remedyEnd},
	{[]string{"RESET", "DISCARD"}, remedyLocal},
	{[]string{"LISTEN", "UNLISTEN"}, remedyListen},
}

// checkStatement refuses transaction control and session state in each of the
// statements of query. It looks at the words, not at what functions do.
func checkStatement(query string) error {
	for query != "" {
		var s statement
		s, query = nextStatement(query)
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

// statement is the beginning of one statement: its first words, as they are.
type statement struct {
	words [5]string
	n     int
}

func (s *statement) add(word string) {
	if s.n < len(s.words) {
		s.words[s.n] = word
		s.n++
	}
}

// is reports whether word n is one of words, in any letter case.
func (s *statement) is(n int, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(s.words[n], w) })
}

func (s *statement) check() error {
	for _, r := range refusals {
		if s.is(0, r.words...) {
			return &StatementError{strings.ToUpper(s.words[0]), r.remedy}
		}
	}
	switch {
	case s.is(0, "ROLLBACK") && !s.is(1, "TO") && !s.is(2, "TO"):
		return &StatementError{"ROLLBACK", remedyEnd}
	case s.is(0, "PREPARE") && s.is(1, "TRANSACTION"):
		return &StatementError{"PREPARE TRANSACTION", remedyEnd}
	case s.is(0, "SET") && !s.is(1, "LOCAL", "CONSTRAINTS"):
		return &StatementError{"SET", remedyLocal}
	case s.is(0, "SET") && s.is(2, "SYNCHRONOUS_COMMIT") && !s.isDurable():
		return &StatementError{"SET LOCAL synchronous_commit", remedyCommit}
	}
	return nil
}

// isDurable reports whether a SET LOCAL synchronous_commit keeps commits
// durable here.
func (s *statement) isDurable() bool {
	value := 3
	if s.is(value, "TO") {
		value++
	}
	return s.is(value, "ON", "REMOTE_APPLY", "TRUE", "YES", "1")
}

// nextStatement reads one statement up to its semicolon and returns what is
// left. Comments, quoted text and dollar-quoted text are skipped as PostgreSQL
// reads them; a quoted word counts without its quotes.
func nextStatement(q string) (s statement, rest string) {
	for q != "" {
		if s.n == len(s.words) && strings.IndexByte(q, ';') < 0 {
			return s, ""
		}
		c := q[0]
		switch {
		case c == ';':
			return s, q[1:]
		case strings.HasPrefix(q, "--"):
			q = q[lineLength(q):]
		case strings.HasPrefix(q, "/*"):
			q = q[commentLength(q):]
		case c == '\'' || c == '"':
			n := quotedLength(q, false)
			s.add(strings.Trim(q[:n], `'"`))
			q = q[n:]
		case (c == 'E' || c == 'e') && len(q) > 1 && q[1] == '\'':
			n := 1 + quotedLength(q[1:], true)
			s.add(strings.Trim(q[1:n], `'`))
			q = q[n:]
		case c == '$' && dollarLength(q) > 0:
			q = q[dollarLength(q):]
		case isWord(c):
			n := wordLength(q)
			s.add(q[:n])
			q = q[n:]
		default:
			q = q[1:]
		}
	}
	return s, ""
}

func lineLength(q string) int {
	if end := strings.IndexAny(q, "\r\n"); end >= 0 {
		return end
	}
	return len(q)
}

// commentLength is the length of a block comment; they nest.
func commentLength(q string) int {
	depth := 0
	for i := 0; i < len(q); i++ {
		switch {
		case strings.HasPrefix(q[i:], "/*"):
			depth++
			i++
		case strings.HasPrefix(q[i:], "*/"):
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(q)
}

// quotedLength is the length of a quoted text with its quotes. A doubled quote
// is part of it, and so is an escaped one if backslashes escape.
func quotedLength(q string, escapes bool) int {
	for i := 1; i < len(q); i++ {
		switch {
		case escapes && q[i] == '\\':
			i++
		case q[i] == q[0] && i+1 < len(q) && q[i+1] == q[0]:
			i++
		case q[i] == q[0]:
			return i + 1
		}
	}
	return len(q)
}

// dollarLength is the length of a dollar-quoted text, 0 if q does not start
// with one (a parameter like $1 does not).
func dollarLength(q string) int {
	end := strings.IndexByte(q[1:], '$')
	if end < 0 {
		return 0
	}
	tag := q[:end+2]
	for i := 1; i < len(tag)-1; i++ {
		if !isWord(tag[i]) || i == 1 && tag[i] >= '0' && tag[i] <= '9' {
			return 0
		}
	}
	body := strings.Index(q[len(tag):], tag)
	if body < 0 {
		return len(q)
	}
	return len(tag) + body + len(tag)
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// wordLength is the length of a word. A dollar sign may be inside one, so that
// it starts no dollar quote there.
func wordLength(q string) int {
	for i := range len(q) {
		if !isWord(q[i]) && q[i] != '$' {
			return i
		}
	}
	return len(q)
}
