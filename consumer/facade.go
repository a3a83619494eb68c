package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/outbox"
)

// facade is the Tx that handlers see.
type facade struct {
	guarded
	queueOnly
}

func newFacade(w *work) facade { return facade{guarded{w.shared.tx, w}, queueOnly{w}} }

var _ Tx = facade{}

// queueOnly is the Queue that handlers see.
type queueOnly struct{ work *work }

var _ Queue = queueOnly{}

// Queue implements Queue. A statement that is refused fails the delivery, as
// one that the server refuses does.
func (q queueOnly) Queue(query string, args ...any) Queued {
	if q.work.ended.Load() {
		return Queued{}
	}
	if err := checkStatement(query); err != nil {
		q.work.refused = err
		return Queued{}
	}
	return q.work.shared.queue.add(q.work, query, args)
}

// SetResult implements Queue.
func (q queueOnly) SetResult(result []byte) { q.work.result = result }

// guarded is a transaction, or a savepoint in it, whose statements are checked
// before they are sent.
type guarded struct {
	tx   pgx.Tx
	work *work
}

// ready says whether query may be sent now, and sends what was queued before.
func (g guarded) ready(ctx context.Context, query string) error {
	if g.work.ended.Load() {
		return pgx.ErrTxClosed
	}
	if err := checkStatement(query); err != nil {
		return err
	}
	return g.work.flush(ctx)
}

// WroteTo tells which lanes of the outbox a statement wrote to: outbox.Write
// calls it, so that relays are woken after the commit.
func (g guarded) WroteTo(lanes outbox.Lanes) { g.work.wrote |= lanes }

func (g guarded) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := g.ready(ctx, query); err != nil {
		return pgconn.CommandTag{}, err
	}
	return g.tx.Exec(ctx, query, args...)
}

func (g guarded) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := g.ready(ctx, query); err != nil {
		return failedRows{err: err}, err
	}
	return g.tx.Query(ctx, query, args...)
}

func (g guarded) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := g.ready(ctx, query); err != nil {
		return failedRows{err: err}
	}
	return g.tx.QueryRow(ctx, query, args...)
}

func (g guarded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := checkStatement(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	if err := g.ready(ctx, ""); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return g.tx.SendBatch(ctx, b)
}

func (g guarded) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := g.ready(ctx, ""); err != nil {
		return 0, err
	}
	return g.tx.CopyFrom(ctx, table, columns, rows)
}

func (g guarded) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := g.ready(ctx, ""); err != nil {
		return nil, err
	}
	tx, err := g.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &savepoint{guarded: guarded{tx, g.work}}, nil
}

// savepoint is a nested transaction. Begin sent all that was queued before
// it, so that what is queued when it ends belongs to it. What is queued after
// its end does not: a deferred Rollback leaves that alone.
type savepoint struct {
	guarded
	closed bool
}

var _ pgx.Tx = (*savepoint)(nil)

// over reports whether the savepoint has ended, by itself or with the
// delivery, whose connection may serve another one by now.
func (sp *savepoint) over() bool { return sp.closed || sp.work.ended.Load() }

func (sp *savepoint) Commit(ctx context.Context) error {
	if sp.over() {
		return pgx.ErrTxClosed
	}
	if err := sp.work.flush(ctx); err != nil {
		return err
	}
	sp.closed = true
	return sp.tx.Commit(ctx)
}

func (sp *savepoint) Rollback(ctx context.Context) error {
	if sp.over() {
		return pgx.ErrTxClosed
	}
	sp.closed = true
	sp.work.shared.queue, sp.work.shared.failed = queue{}, nil // all of it belongs to the savepoint
	return sp.tx.Rollback(ctx)
}

func (sp *savepoint) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := sp.ready(ctx, query); err != nil {
		return nil, err
	}
	return sp.tx.Prepare(ctx, name, query)
}

func (sp *savepoint) LargeObjects() pgx.LargeObjects { return sp.tx.LargeObjects() }

func (sp *savepoint) Conn() *pgx.Conn { return sp.tx.Conn() }

// failedRows is the result of a query that was not sent.
type failedRows struct{ err error }

func (r failedRows) Close()                                       {}
func (r failedRows) Err() error                                   { return r.err }
func (r failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                            { return r.err }
func (r failedRows) Values() ([]any, error)                       { return nil, r.err }
func (r failedRows) RawValues() [][]byte                          { return nil }
func (r failedRows) Conn() *pgx.Conn                              { return nil }
func (r failedRows) TypeMap() *pgtype.Map                         { return nil }
