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
	remedyEnd     = "return nil to commit or an error to roll back, and use tx.Begin for a savepoint"
	remedyLocal   = "it would stay on the pooled connection for the next message; use SET LOCAL"
	remedyDiscard = "it would take away what the pooled connection has for the next message; leave it out, since what you SET LOCAL ends with the transaction"
	remedyListen  = "it would stay on the pooled connection; listen on a connection of your own"
	remedyPrepare = "what is prepared stays on the pooled connection, and a pooler may look for it on another; give the statement itself to Exec or Query, since pgx prepares by itself"
	remedyLoad    = "it would stay on the pooled connection; name the library in session_preload_libraries"
	remedyHold    = "it would stay on the pooled connection; leave WITH HOLD out and read it in this transaction"
	remedyTemp    = "it would stay on the pooled connection for the next message; make it a temporary table with ON COMMIT DROP"
	remedyCommit  = "a duplicate must not be acked against a commit that a crash can lose"
)

// refusals are statements by their first word.
var refusals = []struct {
	words  []string
	remedy string
}{
	{[]string{"BEGIN", "START", "COMMIT", "END", "ABORT"}, remedyEnd},
	{[]string{"RESET"}, remedyLocal},
	{[]string{"DISCARD"}, remedyDiscard},
	{[]string{"LISTEN", "UNLISTEN"}, remedyListen},
	{[]string{"EXECUTE", "DEALLOCATE"}, remedyPrepare},
	{[]string{"LOAD"}, remedyLoad},
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
	text  string // from its beginning, with the statements after it
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

// has reports whether words are in the statement, one after the other. It
// reads the whole statement.
func (s *statement) has(words ...string) bool {
	found := 0
	for word, rest, more := nextWord(s.text); more; word, rest, more = nextWord(rest) {
		switch {
		case strings.EqualFold(word, words[found]):
			found++
		case strings.EqualFold(word, words[0]):
			found = 1
		default:
			found = 0
		}
		if found == len(words) {
			return true
		}
	}
	return false
}

// isTemporary reports whether a CREATE makes something for the session.
func (s *statement) isTemporary() bool {
	n := 1
	if s.is(n, "OR") {
		n += 2 // OR REPLACE
	}
	if s.is(n, "LOCAL", "GLOBAL") {
		n++
	}
	return s.is(n, "TEMP", "TEMPORARY")
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
	case s.is(0, "PREPARE"):
		return &StatementError{"PREPARE", remedyPrepare}
	case s.is(0, "DECLARE") && s.has("CURSOR", "WITH", "HOLD"):
		return &StatementError{"DECLARE … WITH HOLD", remedyHold}
	case s.is(0, "CREATE") && s.isTemporary() && !s.has("ON", "COMMIT", "DROP"):
		return &StatementError{"CREATE TEMPORARY", remedyTemp}
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
// left.
func nextStatement(q string) (s statement, rest string) {
	s.text = q
	for {
		if s.n == len(s.words) && strings.IndexByte(q, ';') < 0 {
			return s, ""
		}
		word, rest, more := nextWord(q)
		if !more {
			return s, rest
		}
		s.add(word)
		q = rest
	}
}

// nextWord returns the next word of a statement and what is left. more is false
// at the statement's end, whose semicolon is not left. Comments and
// dollar-quoted text are skipped, and what is quoted is one word, without its
// quotes, as PostgreSQL reads them.
func nextWord(q string) (word, rest string, more bool) {
	for q != "" {
		c := q[0]
		switch {
		case c == ';':
			return "", q[1:], false
		case strings.HasPrefix(q, "--"):
			q = q[lineLength(q):]
		case strings.HasPrefix(q, "/*"):
			q = q[commentLength(q):]
		case c == '\'' || c == '"':
			n := quotedLength(q, false)
			return strings.Trim(q[:n], `'"`), q[n:], true
		case (c == 'E' || c == 'e') && len(q) > 1 && q[1] == '\'':
			n := 1 + quotedLength(q[1:], true)
			return strings.Trim(q[1:n], `'`), q[n:], true
		case c == '$' && dollarLength(q) > 0:
			q = q[dollarLength(q):]
		case isWord(c):
			n := wordLength(q)
			return q[:n], q[n:], true
		default:
			q = q[1:]
		}
	}
	return "", "", false
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
