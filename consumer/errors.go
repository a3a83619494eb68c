package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// InDoubtError says that the reply to a COMMIT was lost: the transaction may
// be committed or not. It is neither success nor failure. The message goes
// back, nobody is charged with an attempt, and the next delivery finds out.
type InDoubtError struct{ Err error }

func (e *InDoubtError) Error() string {
	return "commit in doubt, the next delivery finds out: " + clean(e.Err)
}

func (e *InDoubtError) Unwrap() error { return e.Err }

// AbortedError says that a handler returned nil although a statement of its
// transaction had failed, so that PostgreSQL could only roll it back.
type AbortedError struct{}

func (AbortedError) Error() string {
	return "the transaction is aborted: a statement failed and the handler returned nil; return the error, or run what may fail in a savepoint (tx.Begin)"
}

// PanicError says that a handler, or a function of the Config, panicked or
// ended its goroutine.
type PanicError struct {
	// Goexit says that it was runtime.Goexit, not a panic.
	Goexit bool
	// Config says that it was not the handler that panicked but a function of
	// the Config (Key, EventTime and so on) or the Consumer itself.
	Config bool
	// Kind is the type of the panic's value; the value may be a secret.
	Kind string
	// Stack is the goroutine's stack at the panic or Goexit.
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Goexit {
		return "the handler ended its goroutine (runtime.Goexit)"
	}
	if e.Config {
		return "a function of consumer.Config panicked with a value of type " + e.Kind
	}
	return "the handler panicked with a value of type " + e.Kind
}

// HandlerError is a handler's error on its way to the Router. Its text names
// the operation and what kind of error it was; PostgreSQL's message is left
// out, since it may quote values.
type HandlerError struct {
	Operation string
	Err       error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("operation %s: %s", e.Operation, clean(e.Err))
}

func (e *HandlerError) Unwrap() error { return e.Err }

// maxErrorText bounds error texts in logs and held messages, in bytes.
const maxErrorText = 512

// clean returns an error's text fit for logs and tables: bounded, one line, of
// PostgreSQL's errors the code and the names of objects only.
func clean(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
		text = describe(pgErr)
		if queued := (*QueuedError)(nil); errors.As(err, &queued) {
			text = queued.which() + ": " + text
		}
	} else if conErr := (*pgconn.ConnectError)(nil); errors.As(err, &conErr) {
		text = "connecting to PostgreSQL failed"
	} else if errors.Is(err, context.DeadlineExceeded) && !strings.Contains(text, context.DeadlineExceeded.Error()) {
		text += ": " + context.DeadlineExceeded.Error()
	}
	return oneLine(text)
}

func describe(e *pgconn.PgError) string {
	text := "PostgreSQL error " + e.Code
	for _, part := range [][2]string{{"constraint", e.ConstraintName}, {"table", e.TableName}, {"column", e.ColumnName}} {
		if part[1] != "" {
			text += ", " + part[0] + " " + part[1]
		}
	}
	return text
}

func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxErrorText {
		return text
	}
	end := maxErrorText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
