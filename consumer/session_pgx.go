package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
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
	s := &pgxSession{work{shared: &pgxTx{store: st, conn: conn}}}
	claim, err := s.claim(ctx, intent)
	for range maxClaims {
		if !errors.Is(err, dedup.ErrClaimAgain) {
			break
		}
		claim, err = s.claim(ctx, intent)
	}
	if err == nil && claim.Verdict == dedup.Fresh {
		return s, claim, nil
	}
	err = s.shared.explainClaim(ctx, err)
	s.rollback(ctx)
	return nil, claim, err
}

func (st *pgxStore) look(ctx context.Context, intent dedup.Intent) (dedup.Claim, bool, error) {
	conn, err := st.acquire(ctx)
	if err != nil {
		return dedup.Claim{}, false, err
	}
	defer conn.Release()
	claim, found, err := st.inbox.Look(ctx, dedup.Pgx(conn), intent)
	if err != nil && conn.Conn().IsClosed() {
		err = errors.Join(errConnectionLost, err)
	}
	return claim, found, err
}

// pgxSession is the transaction of a delivery that has its own.
type pgxSession struct{ work }

// claim begins a transaction and claims intent, in one round trip. A key that
// is taken costs another one, which reads its row and ends the transaction.
func (s *pgxSession) claim(ctx context.Context, intent dedup.Intent) (dedup.Claim, error) {
	inbox := s.shared.store.inbox
	b := &pgx.Batch{}
	b.BeginTx(claimTx)
	queued := inbox.QueueClaim(b, intent)
	results := s.shared.conn.SendBatch(ctx, b)
	s.shared.tx = results.Tx()
	claim, err := queued.Claim(results.Close())
	if !errors.Is(err, dedup.ErrTaken) {
		return claim, err
	}
	b = &pgx.Batch{}
	taken := inbox.QueueVerdict(b, intent)
	b.Queue("rollback")
	return taken.Claim(s.shared.conn.SendBatch(ctx, b).Close())
}

func (s *pgxSession) lost() bool { return s.shared.lost() }

// finish is one round trip: what the handler queued, outgoing messages, the
// result, the check, COMMIT. A look at the result of what was queued costs
// another one.
func (s *pgxSession) finish(ctx context.Context, claim dedup.Claim) error {
	rows, err := s.end()
	if err != nil {
		return err
	}
	return s.shared.commit(ctx, rows, &s.wrote, []dedup.Claim{claim}, [][]byte{s.result}, nil)
}

func (s *pgxSession) rollback(ctx context.Context) {
	_, _ = s.end()
	s.shared.rollback(ctx)
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
