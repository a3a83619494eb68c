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
	owner *work
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
	q.query.Query(func(rows pgx.Rows) error {
		looked := q.look(onlyRow{rows}, fn)
		rows.Close()
		if err := rows.Err(); err != nil { // whatever fn made of it
			return err
		}
		if looked != nil {
			return &checkError{looked}
		}
		return runs(rows.CommandTag())
	})
}

// onlyRow is the first of the rows.
type onlyRow struct{ rows pgx.Rows }

func (r onlyRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if r.rows.Next() {
		return r.rows.Scan(dest...)
	}
	if err := r.rows.Err(); err != nil {
		return err
	}
	return pgx.ErrNoRows
}

// look calls fn, which may panic, or end its goroutine.
func (q Queued) look(row pgx.Row, fn func(pgx.Row) error) (err error) {
	q.queue.looking = q.owner
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v, false)
		}
	}()
	err = fn(row)
	q.queue.looking = nil
	return err
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
	// together, from 1; 0 if it is not known.
	Number int
	Err    error

	owner *work
}

func (e *QueuedError) Error() string {
	return e.which() + ": " + e.Err.Error()
}

func (e *QueuedError) which() string {
	if e.Number == 0 {
		return "a queued statement"
	}
	return fmt.Sprintf("queued statement %d", e.Number)
}

func (e *QueuedError) Unwrap() error { return e.Err }

// anyonesError is an error of statements of several deliveries, which may be
// that of any of them.
type anyonesError struct{ err error }

func (e *anyonesError) Error() string { return e.err.Error() }
func (e *anyonesError) Unwrap() error { return e.err }

// queue holds the statements of a transaction that were not sent yet, in their
// order, with the delivery that each belongs to.
type queue struct {
	batch   pgx.Batch
	owners  []*work
	ran     *int                          // how many of the batch succeeded
	runs    func(pgconn.CommandTag) error // counts one more
	checked bool                          // some result is looked at
	looking *work                         // whose look at a result goes on
}

func (q *queue) add(w *work, query string, args []any) Queued {
	if q.ran == nil {
		ran := new(int)
		q.ran, q.runs = ran, func(pgconn.CommandTag) error { *ran++; return nil }
	}
	queued := q.batch.Queue(query, args...)
	queued.Exec(q.runs)
	q.owners = append(q.owners, w)
	return Queued{queued, q, w}
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

// explain names whose statement err is about, and which one, as far as it is
// known: a batch may also fail before any of it ran, or after all of it.
func (q *queue) explain(err error) error {
	if err == nil || len(q.owners) == 0 || isContext(err) {
		return err
	}
	var unsent pgx.ErrPreprocessingBatch
	switch first := q.owners[0]; {
	case errors.As(err, &unsent) && first == q.owners[len(q.owners)-1]:
		return &QueuedError{Err: err, owner: first}
	case errors.As(err, &unsent):
		return &anyonesError{err}
	case *q.ran < len(q.owners) && (isRefusal(err) || isCheck(err)):
		return q.failedAt(*q.ran, err)
	}
	return err
}

// failedAt is the error of the nth statement.
func (q *queue) failedAt(n int, err error) error {
	e := &QueuedError{Err: err, owner: q.owners[n]}
	for _, w := range q.owners[:n+1] {
		if w == e.owner {
			e.Number++
		}
	}
	return e
}
