package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

// sqlStore begins transactions on database/sql over pgx/stdlib. It has no
// pipeline: each statement is a round trip.
type sqlStore struct {
	db             *sql.DB
	inbox          *dedup.Inbox
	outbox         *outbox.Outbox
	schema         schema.Name
	acquireTimeout time.Duration
}

func (st *sqlStore) check(ctx context.Context) error {
	if err := pg.CheckPoolerSQL(ctx, st.db); err != nil {
		return err
	}
	return schema.Check(ctx, pg.FromSQL(st.db), st.schema, "")
}

// openTx begins a transaction. database/sql rolls a transaction back when the
// context it was begun with ends, so that it gets one that only cancel ends:
// the message's context may end while the commit is under way.
func (st *sqlStore) openTx(ctx context.Context) (*sql.Tx, context.CancelFunc, error) {
	acquire, stop := context.WithTimeout(ctx, st.acquireTimeout)
	defer stop()
	conn, err := st.db.Conn(acquire)
	if err != nil {
		return nil, nil, errors.Join(errConnectionLost, fmt.Errorf("get a connection within %s: %w", st.acquireTimeout, err))
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	// The connection goes back to the pool with the end of the transaction.
	tx, err := conn.BeginTx(life, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		cancel()
		_ = conn.Close()
		return nil, nil, errors.Join(errConnectionLost, fmt.Errorf("begin: %w", err))
	}
	return tx, func() { cancel(); _ = conn.Close() }, nil
}

func (st *sqlStore) begin(ctx context.Context, intent dedup.Intent) (session, dedup.Claim, error) {
	tx, end, err := st.openTx(ctx)
	if err != nil {
		return nil, dedup.Claim{}, err
	}
	s := &sqlSession{store: st, tx: tx, end: end}
	claim, err := st.inbox.Claim(ctx, dedup.SQL(tx), intent)
	switch {
	case err != nil && !isSQLAnswer(err):
		err = errors.Join(errConnectionLost, err)
	case err == nil && claim.Verdict == dedup.Fresh:
		return s, claim, nil
	}
	s.rollback(ctx)
	return nil, claim, err
}

// isSQLAnswer reports whether the error is an answer of the server, of the inbox
// or of the outbox, as opposed to the loss of the connection.
func isSQLAnswer(err error) bool {
	var pgErr *pgconn.PgError
	var busy *dedup.BusyError
	var refused *outbox.RefusedError
	return errors.As(err, &pgErr) || errors.As(err, &busy) || errors.As(err, &refused)
}

// sqlSession is a delivery's transaction.
type sqlSession struct {
	outgoing
	store *sqlStore
	tx    *sql.Tx
	end   context.CancelFunc
	// result is stored with the inbox row.
	result []byte
	gone   bool
}

func (s *sqlSession) lost() bool { return s.gone }

func (s *sqlSession) finish(ctx context.Context, claim dedup.Claim) error {
	var err error
	if s.wrote, err = s.store.outbox.WriteRows(ctx, pg.FromSQL(s.tx), s.close()); err != nil {
		return s.explain(err)
	}
	if err := s.store.inbox.Finish(ctx, dedup.SQL(s.tx), claim, s.result); err != nil {
		return s.explain(err)
	}
	stop := context.AfterFunc(ctx, s.end) // the commit has no context of its own
	err = s.tx.Commit()
	stop()
	switch {
	case err == nil:
		s.release()
		return nil
	case isAborted(err):
		return AbortedError{}
	case isRefusal(err), pgconn.SafeToRetry(err), errors.Is(err, sql.ErrTxDone):
		return err
	}
	s.gone = true
	return &InDoubtError{Err: err}
}

func (s *sqlSession) explain(err error) error {
	switch {
	case isAborted(err):
		return AbortedError{}
	case errors.Is(err, dedup.ErrClaimLost), errors.Is(err, sql.ErrTxDone):
		return claimLost()
	case !isSQLAnswer(err):
		s.gone = true
		return errors.Join(errConnectionLost, err)
	}
	return err
}

func (s *sqlSession) rollback(ctx context.Context) {
	s.close()
	if s.end == nil {
		return
	}
	stop := context.AfterFunc(ctx, s.end)
	_ = s.tx.Rollback()
	stop()
	s.release()
}

// release gives the connection back.
func (s *sqlSession) release() {
	s.end()
	s.end = nil
}

func (st *sqlStore) hold(ctx context.Context, h heldMessage) error {
	tx, end, err := st.openTx(ctx)
	if err != nil {
		return err
	}
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	if err := holdIn(ctx, st.inbox, st.schema, dedup.SQL(tx), h); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (st *sqlStore) exhausted() bool {
	stats := st.db.Stats()
	return stats.MaxOpenConnections > 0 && stats.InUse >= stats.MaxOpenConnections
}
