package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/outbox"
)

// claimTx is explicit about what the claim needs whatever the role's defaults
// are: under REPEATABLE READ a duplicate would be a serialization failure.
var claimTx = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// maxClaims bounds how often a claim is repeated whose rival vanished.
const maxClaims = 5

// pgxStore begins transactions on a pgx pool, each with one round trip.
type pgxStore struct {
	pool           *pgxpool.Pool
	inbox          *dedup.Inbox
	outbox         *outbox.Outbox
	schema         schema.Name
	acquireTimeout time.Duration
}

func (st *pgxStore) check(ctx context.Context) error {
	if err := pg.CheckPooler(ctx, st.pool); err != nil {
		return err
	}
	return schema.Check(ctx, pg.FromPgx(st.pool), st.schema, "")
}

func (st *pgxStore) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, st.acquireTimeout)
	defer cancel()
	conn, err := st.pool.Acquire(ctx)
	if err != nil {
		return nil, errors.Join(errConnectionLost, fmt.Errorf("get a connection from the pool within %s: %w", st.acquireTimeout, err))
	}
	return conn, nil
}

func (st *pgxStore) begin(ctx context.Context, intent dedup.Intent) (session, dedup.Claim, error) {
	conn, err := st.acquire(ctx)
	if err != nil {
		return nil, dedup.Claim{}, err
	}
	s := &pgxSession{store: st, conn: conn}
	claim, err := s.claim(ctx, intent)
	for range maxClaims {
		if !errors.Is(err, dedup.ErrClaimAgain) {
			break
		}
		claim, err = s.claim(ctx, intent)
	}
	switch {
	case err != nil && s.lost():
		err = errors.Join(errConnectionLost, err)
	case err == nil && claim.Verdict == dedup.Fresh:
		return s, claim, nil
	}
	s.rollback(ctx)
	return nil, claim, err
}

// claim begins a transaction and claims intent, in one round trip. A key that
// is taken costs another one, which reads its row and ends the transaction.
func (s *pgxSession) claim(ctx context.Context, intent dedup.Intent) (dedup.Claim, error) {
	b := &pgx.Batch{}
	b.BeginTx(claimTx)
	queued := s.store.inbox.QueueClaim(b, intent)
	results := s.conn.SendBatch(ctx, b)
	s.tx = results.Tx()
	claim, err := queued.Claim(results.Close())
	if !errors.Is(err, dedup.ErrTaken) {
		return claim, err
	}
	b = &pgx.Batch{}
	taken := s.store.inbox.QueueVerdict(b, intent)
	b.Queue("rollback")
	return taken.Claim(s.conn.SendBatch(ctx, b).Close())
}

// pgxSession is a delivery's transaction; handlers see it through a facade.
type pgxSession struct {
	outgoing
	store   *pgxStore
	conn    *pgxpool.Conn
	tx      pgx.Tx
	queue   pgx.Batch
	refused error // of a queued statement
	result  []byte
	ended   atomic.Bool // the handler may not use it any more
}

// flush sends what was queued.
func (s *pgxSession) flush(ctx context.Context) error {
	if s.queue.Len() == 0 {
		return nil
	}
	b := s.queue
	s.queue = pgx.Batch{}
	return s.tx.SendBatch(ctx, &b).Close()
}

func (s *pgxSession) lost() bool { return s.conn == nil || s.conn.Conn().IsClosed() }

// finish is one round trip: what the handler queued, outgoing messages, the
// result, the check, COMMIT.
func (s *pgxSession) finish(ctx context.Context, claim dedup.Claim) error {
	s.ended.Store(true)
	rows := s.close()
	if s.refused != nil {
		return s.refused
	}
	var lost, ours bool
	var tag string
	b := &s.queue
	s.store.outbox.QueueWrite(b, rows, &s.wrote)
	s.store.inbox.QueueFinish(b, claim, s.result, &lost)
	b.Queue("commit").Exec(func(t pgconn.CommandTag) error {
		tag, ours = t.String(), true
		return nil
	})
	err := s.conn.SendBatch(ctx, b).Close()
	switch {
	case err == nil && ours && tag == "COMMIT":
		s.release()
		return nil
	case err == nil, isAborted(err):
		return AbortedError{}
	case lost:
		s.destroy(ctx)
		return claimLost()
	case isRefusal(err), pgconn.SafeToRetry(err):
		return outbox.AsRefused(err)
	case !s.lost():
		// Neither an answer of the server nor a lost connection: pgx refused to
		// send (rows left open, an argument that cannot be encoded).
		return fmt.Errorf("send the commit: close all rows and batches before returning: %w", err)
	}
	s.destroy(ctx)
	return &InDoubtError{Err: err}
}

func (s *pgxSession) rollback(ctx context.Context) {
	s.ended.Store(true)
	s.close()
	if s.conn == nil {
		return
	}
	if !s.lost() && s.conn.Conn().PgConn().TxStatus() != 'I' {
		if err := s.tx.Rollback(ctx); err != nil {
			s.destroy(ctx)
			return
		}
	}
	s.release()
}

// release gives the connection back; the pool closes it if it is not idle.
func (s *pgxSession) release() {
	s.conn.Release()
	s.conn = nil
}

// destroy closes the connection, whose state is not known.
func (s *pgxSession) destroy(ctx context.Context) {
	_ = s.conn.Conn().Close(ctx)
	s.release()
}

func (st *pgxStore) hold(ctx context.Context, h heldMessage) error {
	conn, err := st.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return pgx.BeginTxFunc(ctx, conn, claimTx, func(tx pgx.Tx) error {
		return holdIn(ctx, st.inbox, st.schema, dedup.Pgx(tx), h)
	})
}

func (st *pgxStore) exhausted() bool {
	stat := st.pool.Stat()
	return stat.AcquiredConns() >= stat.MaxConns()
}
