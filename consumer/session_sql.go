package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
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

// sqlTx is a transaction on a connection of its own. database/sql rolls a
// transaction back when the context it was begun with ends, so that it gets
// one that only end cancels: the message's context may end while the commit is
// under way.
type sqlTx struct {
	*sql.Tx
	conn   *sql.Conn
	cancel context.CancelFunc
}

// end gives the connection back, with what is open rolled back. It is safe to
// call more than once.
func (tx *sqlTx) end() {
	tx.cancel()
	_ = tx.conn.Close()
}

func (st *sqlStore) acquire(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, st.acquireTimeout)
	defer cancel()
	conn, err := st.db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(errConnectionLost, fmt.Errorf("get a connection within %s: %w", st.acquireTimeout, err))
	}
	return conn, nil
}

// openTx begins a transaction that may write. BeginTx has no option for that,
// and the role's default may be another: the server reports it with each change
// (since version 14), so that the statement is sent only where it is needed.
// Poolers may report an old default: whoever meets isReadOnly calls it again
// with readWrite.
func (st *sqlStore) openTx(ctx context.Context, readWrite bool) (*sqlTx, error) {
	conn, err := st.acquire(ctx)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	tx := &sqlTx{conn: conn, cancel: cancel}
	tx.Tx, err = conn.BeginTx(life, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err == nil && (readWrite || tx.defaultsToReadOnly()) {
		_, err = tx.ExecContext(ctx, setReadWrite)
	}
	if err != nil {
		tx.end()
		return nil, errors.Join(errConnectionLost, fmt.Errorf("begin: %w", err))
	}
	return tx, nil
}

func (tx *sqlTx) defaultsToReadOnly() bool {
	report := ""
	_ = tx.raw(func(c *pgx.Conn) { report = c.PgConn().ParameterStatus("default_transaction_read_only") })
	return report == "on"
}

// isReadOnly reports whether the server refused to write in a transaction that
// did not say READ WRITE.
func isReadOnly(err error) bool {
	pgErr := (*pgconn.PgError)(nil)
	return errors.As(err, &pgErr) && pgErr.Code == "25006"
}

// lost reports whether the connection is closed, or given back by end.
func (tx *sqlTx) lost() (lost bool) {
	err := tx.raw(func(c *pgx.Conn) { lost = c.IsClosed() })
	return lost || err != nil
}

// raw calls f with the connection of pgx. Wrappers of its driver may hide it.
func (tx *sqlTx) raw(f func(*pgx.Conn)) error {
	return tx.conn.Raw(func(driver any) error {
		if over, ok := driver.(interface{ Conn() *pgx.Conn }); ok {
			f(over.Conn())
		}
		return nil
	})
}

func (st *sqlStore) begin(ctx context.Context, intent dedup.Intent) (session, dedup.Claim, error) {
	s, claim, err := st.claim(ctx, intent, false)
	if isReadOnly(err) {
		return st.claim(ctx, intent, true)
	}
	return s, claim, err
}

func (st *sqlStore) claim(ctx context.Context, intent dedup.Intent, readWrite bool) (session, dedup.Claim, error) {
	tx, err := st.openTx(ctx, readWrite)
	if err != nil {
		return nil, dedup.Claim{}, err
	}
	s := &sqlSession{store: st, tx: tx}
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

func (st *sqlStore) look(ctx context.Context, intent dedup.Intent) (dedup.Claim, bool, error) {
	conn, err := st.acquire(ctx)
	if err != nil {
		return dedup.Claim{}, false, err
	}
	defer conn.Close() //nolint:errcheck // It gives the connection back.
	claim, found, err := st.inbox.Look(ctx, dedup.SQL(conn), intent)
	if err != nil && !isSQLAnswer(err) {
		err = errors.Join(errConnectionLost, err)
	}
	return claim, found, err
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
	tx    *sqlTx
	// result is stored with the inbox row.
	result []byte
}

func (s *sqlSession) lost() bool { return s.tx.lost() }

func (s *sqlSession) finish(ctx context.Context, claim dedup.Claim) error {
	var err error
	if s.wrote, err = s.store.outbox.WriteRows(ctx, pg.FromSQL(s.tx), s.close()); err != nil {
		return s.explain(err)
	}
	if err := s.store.inbox.Finish(ctx, dedup.SQL(s.tx), claim, s.result); err != nil {
		return s.explain(err)
	}
	stop := context.AfterFunc(ctx, s.tx.end) // the commit has no context of its own
	err = s.tx.Commit()
	stop()
	switch {
	case err == nil:
		s.tx.end()
		return nil
	case isAborted(err):
		return AbortedError{}
	case isRefusal(err), pgconn.SafeToRetry(err), errors.Is(err, sql.ErrTxDone):
		return err
	}
	return &InDoubtError{Err: err}
}

func (s *sqlSession) explain(err error) error {
	switch {
	case isAborted(err):
		return AbortedError{}
	case errors.Is(err, dedup.ErrClaimLost), errors.Is(err, sql.ErrTxDone):
		return claimLost()
	case !isSQLAnswer(err):
		return errors.Join(errConnectionLost, err)
	}
	return err
}

func (s *sqlSession) rollback(ctx context.Context) {
	s.close()
	stop := context.AfterFunc(ctx, s.tx.end)
	_ = s.tx.Rollback()
	stop()
	s.tx.end()
}

func (st *sqlStore) hold(ctx context.Context, h heldMessage) error {
	err := st.tryHold(ctx, h, false)
	if isReadOnly(err) {
		return st.tryHold(ctx, h, true)
	}
	return err
}

func (st *sqlStore) tryHold(ctx context.Context, h heldMessage, readWrite bool) error {
	tx, err := st.openTx(ctx, readWrite)
	if err != nil {
		return err
	}
	defer tx.end()
	stop := context.AfterFunc(ctx, tx.end)
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
