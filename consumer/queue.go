package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Queued is a statement that was queued. Without a check its result is not
// looked at. A check is made before the commit, for which all statements
// queued so far take a round trip of their own; one that fails fails the
// delivery. The last check counts. The zero value checks nothing.
type Queued struct {
	query *pgx.QueuedQuery // nil for a statement that was refused
	queue *queue
}

// Affects makes it a failure of the delivery if the statement does not affect
// n rows: a *RowsError.
func (q Queued) Affects(n int64) {
	if !q.checked() {
		return
	}
	runs := q.queue.runs
	q.query.Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != n {
			return &RowsError{Want: n, Got: tag.RowsAffected()}
		}
		return runs(tag)
	})
}

// QueryRow has fn scan the row that the statement returns. fn's error fails
// the delivery, and pgx.ErrNoRows is what Scan returns if there is none. fn
// runs before the delivery commits, possibly after the handler returned.
func (q Queued) QueryRow(fn func(pgx.Row) error) {
	if !q.checked() {
		return
	}
	runs := q.queue.runs
	q.query.QueryRow(func(row pgx.Row) error {
		if err := fn(row); err != nil {
			return &checkError{err}
		}
		return runs(pgconn.CommandTag{})
	})
}

// checked notes that a result is looked at. It reports false for a statement
// that is not sent.
func (q Queued) checked() bool {
	if q.query == nil {
		return false
	}
	q.queue.checked = true
	return true
}

// RowsError says that a queued statement affected another number of rows than
// it was to (see Queued.Affects).
type RowsError struct{ Want, Got int64 }

func (e *RowsError) Error() string {
	return fmt.Sprintf("the statement affected %d rows, not %d", e.Got, e.Want)
}

// checkError is an error that a handler's look at a result returned.
type checkError struct{ err error }

func (e *checkError) Error() string { return e.err.Error() }
func (e *checkError) Unwrap() error { return e.err }

// isCheck reports whether err says that a look at a result failed.
func isCheck(err error) bool {
	var rows *RowsError
	var check *checkError
	return errors.As(err, &rows) || errors.As(err, &check)
}

// QueuedError says which of a delivery's queued statements failed.
type QueuedError struct {
	// Number counts the statements that the delivery queued and that were sent
	// together, from 1.
	Number int
	Err    error

	owner *work
}

func (e *QueuedError) Error() string {
	return fmt.Sprintf("queued statement %d: %s", e.Number, e.Err)
}

func (e *QueuedError) Unwrap() error { return e.Err }

// queue holds the statements of a transaction that were not sent yet, in their
// order, with the delivery that each belongs to.
type queue struct {
	batch   pgx.Batch
	owners  []*work
	ran     *int                          // how many of the batch succeeded
	runs    func(pgconn.CommandTag) error // counts one more
	checked bool                          // some result is looked at
}

func (q *queue) add(w *work, query string, args []any) Queued {
	if q.ran == nil {
		ran := new(int)
		q.ran, q.runs = ran, func(pgconn.CommandTag) error { *ran++; return nil }
	}
	queued := q.batch.Queue(query, args...)
	queued.Exec(q.runs)
	q.owners = append(q.owners, w)
	return Queued{queued, q}
}

// cut drops what was queued after the first n statements.
func (q *queue) cut(n int) {
	q.batch.QueuedQueries, q.owners = q.batch.QueuedQueries[:n], q.owners[:n]
}

// send sends what is queued.
func (q *queue) send(ctx context.Context, tx pgx.Tx) error {
	if len(q.owners) == 0 {
		return nil
	}
	sent := *q
	*q = queue{}
	return sent.explain(tx.SendBatch(ctx, &sent.batch).Close())
}

// explain names the statement that err is about, if it is known: the batch may
// also have failed before any of it ran, or after all of it.
func (q *queue) explain(err error) error {
	var unsent pgx.ErrPreprocessingBatch
	if err == nil || errors.As(err, &unsent) || q.ran == nil || *q.ran >= len(q.owners) || !isRefusal(err) && !isCheck(err) {
		return err
	}
	owner, number := q.owners[*q.ran], 0
	for _, w := range q.owners[:*q.ran+1] {
		if w == owner {
			number++
		}
	}
	return &QueuedError{Number: number, Err: err, owner: owner}
}
