package consumer

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedup"
)

// class is the kind of a failure, which decides what happens to the message.
type class int

const (
	// attempt: the handler's own failure.
	attempt class = iota
	// transient: not the message's fault (rival, outage, shutdown); it charges
	// nobody.
	transient
	// permanent: no later try can succeed.
	permanent
	// inDoubt: the commit's reply was lost.
	inDoubt
)

// classify decides by type and SQLSTATE, never by text.
func classify(err error) class {
	var doubt *InDoubtError
	var busy *dedup.BusyError
	switch {
	case errors.As(err, &doubt):
		return inDoubt
	case dedup.IsPermanent(err):
		return permanent
	case errors.As(err, &busy), errors.Is(err, dedup.ErrClaimAgain):
		return transient
	case isTransientSQL(err), errors.Is(err, errConnectionLost), errors.Is(err, errNotPrimary):
		return transient
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return transient
	}
	return attempt
}

// transientStates are the SQLSTATEs of rivals, outages and shutdowns. Two
// letters stand for a class.
var transientStates = []string{
	"40001", // serialization_failure
	"40P01", // deadlock_detected
	"55P03", // lock_not_available
	"57P01", // admin_shutdown
	"57P02", // crash_shutdown
	"57P03", // cannot_connect_now
	"57P04", // database_dropped
	"57P05", // idle_session_timeout
	"25006", // read_only_sql_transaction: a server that is no longer the primary
	"25P03", // idle_in_transaction_session_timeout
	"26000", // invalid_sql_statement_name: a pooler switched the server
	"42P05", // duplicate_prepared_statement: likewise
	"08",    // connection_exception
	"53",    // insufficient_resources
	"58",    // system_error
}

func isTransientSQL(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	if !errors.As(err, &pgErr) {
		return false
	}
	for _, state := range transientStates {
		if strings.HasPrefix(pgErr.Code, state) {
			return true
		}
	}
	// A table changed under a cached plan; the next try plans anew.
	return pgErr.Code == "0A000" && pgErr.Routine == "RevalidateCachedQuery"
}

// errConnectionLost marks errors that came with the loss, or the lack, of the
// delivery's database connection. An error of another connection that a
// handler uses is the handler's own.
var errConnectionLost = errors.New("the database connection was lost")

// errNotPrimary marks the refusal of a claim by a server that takes no writes.
var errNotPrimary = errors.New("the server takes no writes: it is a standby, or no longer the primary")

// isNotPrimary reports whether a server refused to begin or to claim since it
// takes no writes: a standby has no READ WRITE transactions, which is a feature
// that it does not support.
func isNotPrimary(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && (pgErr.Code == "25006" || pgErr.Code == "0A000")
}

// isAborted reports whether the server refused a statement, or the commit,
// because an earlier one had failed.
func isAborted(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.Is(err, pgx.ErrTxCommitRollback) || errors.As(err, &pgErr) && pgErr.Code == "25P02"
}

// isRefusal reports whether the server itself answered that the statement
// failed, and goes on serving: what followed in the pipeline was not executed.
func isRefusal(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}
