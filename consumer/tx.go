package consumer

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is the transaction of one delivery. Its effect commits together with the
// inbox row and the outgoing messages, or not at all. It ends when the handler
// returns; later calls fail with pgx.ErrTxClosed. As with every pgx
// transaction, one goroutine at a time.
//
// Statements that would end the transaction (COMMIT, ROLLBACK, BEGIN …), make
// its commit less durable (SET LOCAL synchronous_commit = off), or outlive it
// on the pooled connection are refused with a *StatementError before they are
// sent: SET without LOCAL, RESET, DISCARD, LISTEN, UNLISTEN, LOAD, PREPARE,
// EXECUTE, DEALLOCATE, DECLARE … WITH HOLD, and CREATE TEMPORARY without ON
// COMMIT DROP. Where a text hides from that check that it ends the transaction
// or turns synchronous_commit off (in a function, for example), a check on the
// server before COMMIT finds it, and COMMIT does not happen. Other session
// state that hides is not found: that of set_config(…, false), a session's
// advisory lock, SELECT … INTO TEMPORARY, a table in the schema pg_temp, a
// statement that a savepoint's Prepare leaves, what is done with a savepoint's
// Conn. Don't.
//
// Tx has the methods that sqlc's generated code and pgx.BeginFunc need.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	// Begin starts a nested transaction (a savepoint). What fails in it can be
	// rolled back without losing the delivery's transaction.
	Begin(ctx context.Context) (pgx.Tx, error)
	Queue
}

// Queue takes statements that are sent later. As a [Tx], one goroutine at a
// time.
type Queue interface {
	// Queue adds a statement that is sent with the next one that is not
	// queued, or with the commit: no round trip of its own. Its error fails
	// the delivery; its result can be looked at before the commit, see Queued.
	Queue(query string, args ...any) Queued
	// SetResult stores an answer with the inbox row, where dedup.Inbox.Lookup
	// finds it. The last call counts. nil stores none.
	SetResult(result []byte)
}

type sessionKey struct{}

// workOf returns the work whose context ctx is, nil if there is none.
func workOf(ctx context.Context) *work {
	if s, ok := ctx.Value(sessionKey{}).(interface{ on() *work }); ok {
		return s.on()
	}
	return nil
}

// TxFrom returns the transaction of the delivery whose context ctx is. It
// panics without one: the handler was added without [Consumer.Middleware], or
// ctx is not the message's context.
func TxFrom(ctx context.Context) Tx {
	w := workOf(ctx)
	if w == nil {
		panic("consumer.TxFrom: no transaction in this context; add Consumer.Middleware to the handler (with a Consumer made by New) and pass msg.Context()")
	}
	return newFacade(w)
}

// SQLTx is [TxFrom] for a Consumer made by [NewSQL]. The transaction is
// database/sql's own, and its statements are not looked at: don't call Commit or
// Rollback on it, and don't run what [Tx] refuses since it would stay on the
// pooled connection, such as SET without LOCAL.
func SQLTx(ctx context.Context) *sql.Tx {
	s, ok := ctx.Value(sessionKey{}).(*sqlSession)
	if !ok {
		panic("consumer.SQLTx: no transaction in this context; add Consumer.Middleware to the handler (with a Consumer made by NewSQL) and pass msg.Context()")
	}
	return s.tx.Tx
}

// SetResult is Tx.SetResult for a Consumer made by [NewSQL].
func SetResult(ctx context.Context, result []byte) {
	s, ok := ctx.Value(sessionKey{}).(*sqlSession)
	if !ok {
		panic("consumer.SetResult: no transaction of a Consumer made by NewSQL in this context; add Consumer.Middleware to the handler and pass msg.Context()")
	}
	s.result = result
}
