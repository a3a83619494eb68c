package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

// pgxTx is a transaction that began with a claim, and its connection.
type pgxTx struct {
	store *pgxStore
	conn  *pgxpool.Conn // nil when it was given back
	tx    pgx.Tx
	queue queue
	// failed is why statements that were queued are not in the transaction: it
	// must not commit, whatever a handler makes of the error.
	failed error
}

// flush sends what is queued.
func (t *pgxTx) flush(ctx context.Context) error {
	if t.failed == nil {
		t.failed = t.queue.send(ctx, t.tx)
	}
	return t.failed
}

func (t *pgxTx) lost() bool { return t.conn == nil || t.conn.Conn().IsClosed() }

// explainClaim says what kind of error a claim met. A connection to a server
// that takes no writes is closed, so that the pool looks for another one.
func (t *pgxTx) explainClaim(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case t.lost():
		return errors.Join(errConnectionLost, err)
	case isNotPrimary(err):
		t.destroy(ctx)
		return errors.Join(errNotPrimary, err)
	}
	return err
}

var errRowsOpen = errors.New("close all rows and batches before returning")

// sound returns why the transaction cannot go on: what was queued was not
// sent, a statement failed, or rows are open.
func (t *pgxTx) sound() error {
	switch conn := t.conn.Conn().PgConn(); {
	case t.failed != nil:
		return t.failed
	case conn.TxStatus() == 'E':
		return AbortedError{}
	case conn.IsBusy():
		return errRowsOpen
	}
	return nil
}

// commit sends, in one round trip, what is queued, outgoing messages, results,
// the check that this is still the transaction of the claims, and COMMIT. The
// claims in without are taken back. An error is as of session.finish; it is a
// *QueuedError if it is known to be about a queued statement.
func (t *pgxTx) commit(ctx context.Context, rows []outbox.Row, wrote *outbox.Lanes, claims []dedup.Claim, results [][]byte, without []dedup.Claim) error {
	if t.queue.checked || t.failed != nil {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	var lost, ours bool
	var tag string
	q := t.queue
	t.queue = queue{}
	t.store.outbox.QueueWrite(&q.batch, rows, wrote)
	if len(without) > 0 {
		t.store.inbox.QueueUnclaim(&q.batch, without)
	}
	t.store.inbox.QueueFinishSet(&q.batch, claims, results, &lost)
	q.batch.Queue("commit").Exec(func(c pgconn.CommandTag) error {
		tag, ours = c.String(), true
		return nil
	})
	err := t.conn.SendBatch(ctx, &q.batch).Close()
	switch {
	case err == nil && ours && tag == "COMMIT":
		t.release()
		return nil
	case err == nil, isAborted(err):
		return AbortedError{}
	case lost:
		t.destroy(ctx)
		return claimLost()
	case isRefusal(err), pgconn.SafeToRetry(err):
		return outbox.AsRefused(q.explain(err))
	case !t.lost():
		// Neither an answer of the server nor a lost connection: pgx refused to
		// send (rows left open, an argument that cannot be encoded).
		return fmt.Errorf("send the commit: %w: %w", errRowsOpen, err)
	}
	t.destroy(ctx)
	return &InDoubtError{Err: err}
}

func (t *pgxTx) rollback(ctx context.Context) {
	if t.conn == nil {
		return
	}
	if !t.lost() && t.conn.Conn().PgConn().TxStatus() != 'I' {
		if err := t.tx.Rollback(ctx); err != nil {
			t.destroy(ctx)
			return
		}
	}
	t.release()
}

// release gives the connection back; the pool closes it if it is not idle.
func (t *pgxTx) release() {
	t.conn.Release()
	t.conn = nil
}

// destroy closes the connection, whose state is not known.
func (t *pgxTx) destroy(ctx context.Context) {
	_ = t.conn.Conn().Close(ctx)
	t.release()
}

// abandon cuts the connection from under a handler that does not end, and gives
// it back when it did.
func (t *pgxTx) abandon(ended <-chan error) {
	conn := t.conn
	t.conn = nil
	_ = conn.Conn().PgConn().Conn().Close()
	go func() {
		<-ended //nolint:errcheck // Its group has gone on.
		_ = conn.Conn().Close(context.Background())
		conn.Release()
	}()
}
