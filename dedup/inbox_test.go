package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// newInbox returns an inbox on a fresh, migrated database with a table of
// effects that no constraint protects.
func newInbox(t *testing.T, cfg dedup.InboxConfig) (*testbed.DB, *dedup.Inbox) {
	t.Helper()
	db := testbed.NewDB(t)
	require.NoError(t, oncemill.Migrate(t.Context(), db.Pool, oncemill.MigrateConfig{Schema: cfg.Schema}))
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE public.effects (key text NOT NULL, body text NOT NULL)`)
	require.NoError(t, err)
	in, err := dedup.NewInbox(cfg)
	require.NoError(t, err)
	return db, in
}

func intent(t *testing.T, id, payload string) dedup.Intent {
	t.Helper()
	return intentAt(t, id, payload, time.Time{})
}

func intentAt(t *testing.T, id, payload string, at time.Time) dedup.Intent {
	t.Helper()
	k, err := dedup.NewKey("acme", "charge", id)
	require.NoError(t, err)
	return dedup.Intent{Key: k, Fingerprint: dedup.RawFingerprint().Fingerprint(k, []byte(payload)), EventTime: at}
}

var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

func begin(t *testing.T, db *testbed.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool.BeginTx(t.Context(), readCommitted)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func effect(ctx context.Context, tx pgx.Tx, in dedup.Intent) error {
	_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1, 'b')`, in.Key.ID)
	return err
}

func effects(t *testing.T, db *testbed.DB) int {
	t.Helper()
	var n int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM public.effects`).Scan(&n))
	return n
}

// process claims, makes the effect if the claim is fresh, and commits.
func process(ctx context.Context, db *testbed.DB, in *dedup.Inbox, it dedup.Intent) (dedup.Claim, error) {
	var claim dedup.Claim
	err := pgx.BeginTxFunc(ctx, db.Pool, readCommitted, func(tx pgx.Tx) (err error) {
		if claim, err = in.Claim(ctx, dedup.Pgx(tx), it); err != nil || claim.Verdict != dedup.Fresh {
			return err
		}
		if err := effect(ctx, tx, it); err != nil {
			return err
		}
		return in.Finish(ctx, dedup.Pgx(tx), claim, []byte("ok"))
	})
	return claim, err
}

func TestClaimVerdicts(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	ctx := t.Context()

	claim, err := process(ctx, db, in, intent(t, "k", "a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Fresh, claim.Verdict)
	require.NoError(t, claim.Err())

	claim, err = process(ctx, db, in, intent(t, "k", "a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Done, claim.Verdict)
	var duplicate *dedup.DuplicateError
	require.ErrorAs(t, claim.Err(), &duplicate)
	require.Equal(t, []byte("ok"), duplicate.Result)

	claim, err = process(ctx, db, in, intent(t, "k", "b"))
	require.NoError(t, err)
	require.Equal(t, dedup.Conflict, claim.Verdict)
	require.True(t, dedup.IsPermanent(claim.Err()))

	require.Equal(t, 1, effects(t, db))
	record, found, err := in.Lookup(ctx, dedup.Pgx(db.Pool), intent(t, "k", "a").Key)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, dedup.StateDone, record.State)
	require.Equal(t, []byte("ok"), record.Result)
	require.Equal(t, intent(t, "k", "a").Fingerprint, record.Fingerprint)
}

func TestClaimOnDatabaseSQL(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	sqlDB, err := sql.Open("pgx", db.URL)
	require.NoError(t, err)
	defer func() { require.NoError(t, sqlDB.Close()) }()

	for i, want := range []dedup.Verdict{dedup.Fresh, dedup.Done} {
		tx, err := sqlDB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		require.NoError(t, err)
		claim, err := in.Claim(t.Context(), dedup.SQL(tx), intent(t, "k", "a"))
		require.NoError(t, err)
		require.Equal(t, want, claim.Verdict, "claim %d", i)
		if claim.Verdict == dedup.Fresh {
			require.NoError(t, in.Finish(t.Context(), dedup.SQL(tx), claim, nil))
		}
		require.NoError(t, tx.Commit())

		tx, err = sqlDB.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		require.NoError(t, err)
		claims, err := in.ClaimSet(t.Context(), dedup.SQL(tx), []dedup.Intent{intent(t, "k", "a"), intent(t, "new", "a")})
		require.NoError(t, err)
		require.Equal(t, []dedup.Verdict{dedup.Done, dedup.Fresh}, []dedup.Verdict{claims[0].Verdict, claims[1].Verdict})
		require.NoError(t, tx.Rollback())
	}
}

// rival starts a transaction that holds the claim of it, and returns it.
func rival(t *testing.T, db *testbed.DB, in *dedup.Inbox, it dedup.Intent) pgx.Tx {
	t.Helper()
	tx := begin(t, db)
	claim, err := in.Claim(t.Context(), dedup.Pgx(tx), it)
	require.NoError(t, err)
	require.Equal(t, dedup.Fresh, claim.Verdict)
	require.NoError(t, effect(t.Context(), tx, it))
	return tx
}

func TestC29_LoserTakesOverAfterRollback(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, db *testbed.DB, tx pgx.Tx){
		"rollback": func(t *testing.T, _ *testbed.DB, tx pgx.Tx) { require.NoError(t, tx.Rollback(t.Context())) },
		"killed": func(t *testing.T, db *testbed.DB, tx pgx.Tx) {
			_, err := db.Pool.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, in := newInbox(t, dedup.InboxConfig{LockWait: time.Minute})
			winner := rival(t, db, in, intent(t, "k", "a"))
			loser := make(chan error, 1)
			var claim dedup.Claim
			go func() {
				var err error
				claim, err = process(t.Context(), db, in, intent(t, "k", "a"))
				loser <- err
			}()
			db.WaitForLockWaiters(t, 1)
			end(t, db, winner)
			require.NoError(t, <-loser)
			require.Equal(t, dedup.Fresh, claim.Verdict)
			require.Equal(t, 1, effects(t, db))
		})
	}
}

func TestC29_LoserSeesTheCommitOfTheRivalItWaitedFor(t *testing.T) {
	for payload, want := range map[string]dedup.Verdict{"a": dedup.Done, "b": dedup.Conflict} {
		t.Run(want.String(), func(t *testing.T) {
			db, in := newInbox(t, dedup.InboxConfig{LockWait: time.Minute})
			winner := rival(t, db, in, intent(t, "k", "a"))
			loser := make(chan error, 1)
			var claim dedup.Claim
			go func() {
				var err error
				claim, err = process(t.Context(), db, in, intent(t, "k", payload))
				loser <- err
			}()
			db.WaitForLockWaiters(t, 1)
			require.NoError(t, winner.Commit(t.Context()))
			require.NoError(t, <-loser)
			require.Equal(t, want, claim.Verdict)
			require.Equal(t, 1, effects(t, db))
		})
	}
}

func TestC29_BusyAfterTheLockBound(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{LockWait: 50 * time.Millisecond})
	winner := rival(t, db, in, intent(t, "k", "a"))

	_, err := process(t.Context(), db, in, intent(t, "k", "a"))
	var busy *dedup.BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, intent(t, "k", "a").Key, busy.Key)
	require.False(t, dedup.IsPermanent(err))

	_, err = in.ClaimSet(t.Context(), dedup.Pgx(begin(t, db)), []dedup.Intent{intent(t, "other", "a"), intent(t, "k", "a")})
	require.ErrorAs(t, err, &busy)

	require.NoError(t, winner.Commit(t.Context()))
	claim, err := process(t.Context(), db, in, intent(t, "k", "a"))
	require.NoError(t, err)
	require.Equal(t, dedup.Done, claim.Verdict)
	require.Equal(t, 1, effects(t, db))
}

func TestLockBoundDoesNotLeakIntoTheCallersStatements(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{LockWait: 50 * time.Millisecond})
	for _, before := range []string{"0", "7s"} {
		tx := begin(t, db)
		_, err := tx.Exec(t.Context(), `SELECT set_config('lock_timeout', $1, false)`, before)
		require.NoError(t, err)
		for i := range 2 { // fresh, then ours
			_, err = in.Claim(t.Context(), dedup.Pgx(tx), intent(t, "k"+before, "a"))
			require.NoError(t, err)
			_, err = in.ClaimSet(t.Context(), dedup.Pgx(tx), []dedup.Intent{intent(t, "s"+before, "a")})
			require.NoError(t, err)
			var after string
			require.NoError(t, tx.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&after))
			require.Equal(t, before, after, "claim %d", i)
		}
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestSynchronousCommitIsRaisedForTheClaim(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	for before, want := range map[string]string{"off": "on", "on": "on", "local": "local"} {
		tx := begin(t, db)
		_, err := tx.Exec(t.Context(), `SELECT set_config('synchronous_commit', $1, true)`, before)
		require.NoError(t, err)
		claim, err := in.Claim(t.Context(), dedup.Pgx(tx), intent(t, before, "a"))
		require.NoError(t, err)
		var got string
		require.NoError(t, tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&got))
		require.Equal(t, want, got)
		_, err = tx.Exec(t.Context(), `SELECT set_config('synchronous_commit', 'off', true)`)
		require.NoError(t, err)
		require.ErrorIs(t, in.Finish(t.Context(), dedup.Pgx(tx), claim, nil), dedup.ErrClaimLost)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

func TestFinishRefusesAnotherTransactionThanTheClaims(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	tx := begin(t, db)
	claim, err := in.Claim(t.Context(), dedup.Pgx(tx), intent(t, "k", "a"))
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `ROLLBACK AND CHAIN`)
	require.NoError(t, err)
	require.NoError(t, effect(t.Context(), tx, claim.Intent))
	require.ErrorIs(t, in.Finish(t.Context(), dedup.Pgx(tx), claim, nil), dedup.ErrClaimLost)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Zero(t, effects(t, db))
}

func TestC28_TwentyClaimsOfEachKeyMakeOneEffect(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{LockWait: 20 * time.Second})
	const keys, copies = 50, 20
	barrier := make(chan struct{})
	var mu sync.Mutex
	verdicts := map[dedup.Verdict]int{}
	var all []error
	var wg sync.WaitGroup
	for key := range keys {
		for range copies {
			wg.Go(func() {
				<-barrier
				claim, err := process(t.Context(), db, in, intent(t, fmt.Sprint("k", key), "a"))
				mu.Lock()
				defer mu.Unlock()
				verdicts[claim.Verdict]++
				all = append(all, err)
			})
		}
	}
	close(barrier)
	wg.Wait()
	require.NoError(t, errors.Join(all...))
	require.Equal(t, map[dedup.Verdict]int{dedup.Fresh: keys, dedup.Done: keys * (copies - 1)}, verdicts)
	require.Equal(t, keys, effects(t, db))
}

func TestC31_SetsInOppositeOrderDoNotDeadlock(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{LockWait: 20 * time.Second})
	for round := range 100 {
		a, b := intent(t, fmt.Sprint("a", round), "x"), intent(t, fmt.Sprint("b", round), "x")
		errs := make(chan error, 2)
		for _, set := range [][]dedup.Intent{{a, b}, {b, a}} {
			go func() {
				errs <- pgx.BeginTxFunc(t.Context(), db.Pool, readCommitted, func(tx pgx.Tx) error {
					claims, err := in.ClaimSet(t.Context(), dedup.Pgx(tx), set)
					if err != nil {
						return err
					}
					for _, c := range claims {
						if c.Verdict == dedup.Fresh {
							if err := effect(t.Context(), tx, c.Intent); err != nil {
								return err
							}
						}
					}
					return nil
				})
			}()
		}
		require.NoError(t, errors.Join(<-errs, <-errs), "round %d", round)
	}
	require.Equal(t, 200, effects(t, db))
}

func TestClaimSetVerdictsComeInTheOrderOfTheIntents(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	_, err := process(t.Context(), db, in, intent(t, "done", "a"))
	require.NoError(t, err)
	tx := begin(t, db)
	claims, err := in.ClaimSet(t.Context(), dedup.Pgx(tx), []dedup.Intent{
		intent(t, "new", "a"), intent(t, "done", "b"), intent(t, "new", "a"), intent(t, "done", "a"), intent(t, "new", "b"), intent(t, "z", "z"),
	})
	require.NoError(t, err)
	var verdicts []dedup.Verdict
	for _, c := range claims {
		verdicts = append(verdicts, c.Verdict)
	}
	require.Equal(t, []dedup.Verdict{dedup.Fresh, dedup.Conflict, dedup.Done, dedup.Done, dedup.Conflict, dedup.Fresh}, verdicts)

	claims, err = in.ClaimSet(t.Context(), dedup.Pgx(tx), nil)
	require.NoError(t, err)
	require.Empty(t, claims)
}

func TestHeldRowsAreNeverRun(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	it := intent(t, "k", "a")
	tx := begin(t, db)
	claim, err := in.Claim(t.Context(), dedup.Pgx(tx), it)
	require.NoError(t, err)
	require.Error(t, in.Hold(t.Context(), dedup.Pgx(tx), claim, dedup.StateDone))
	require.NoError(t, in.Hold(t.Context(), dedup.Pgx(tx), claim, dedup.StateDead))
	require.Error(t, in.Hold(t.Context(), dedup.Pgx(tx), claim, dedup.StateDead), "held already")
	require.NoError(t, tx.Commit(t.Context()))

	claim, err = process(t.Context(), db, in, it)
	require.NoError(t, err)
	var held *dedup.HeldError
	require.ErrorAs(t, claim.Err(), &held)
	require.Equal(t, dedup.StateDead, held.State)
	require.Zero(t, effects(t, db))
}

func TestIdentityIsBytesOnAnyCollation(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	spellings := []string{"é", "e\u0301", "E\u0301", "ss", "ß", "a", "A", "a b", "a  b", "１", "1"}
	for _, id := range spellings {
		claim, err := process(t.Context(), db, in, intent(t, id, "a"))
		require.NoError(t, err)
		require.Equal(t, dedup.Fresh, claim.Verdict, "%q", id)
	}
	require.Equal(t, len(spellings), effects(t, db))
}

// claimInPipeline claims in two round trips, with something in between.
func claimInPipeline(t *testing.T, in *dedup.Inbox, tx pgx.Tx, it dedup.Intent, between func()) (dedup.Claim, error) {
	t.Helper()
	b := &pgx.Batch{}
	queued := in.QueueClaim(b, it)
	claim, err := queued.Claim(tx.SendBatch(t.Context(), b).Close())
	if !errors.Is(err, dedup.ErrTaken) {
		return claim, err
	}
	between()
	b = &pgx.Batch{}
	verdict := in.QueueVerdict(b, it)
	return verdict.Claim(tx.SendBatch(t.Context(), b).Close())
}

func TestARowThatVanishedIsClaimedAgain(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	it := intent(t, "k", "a")
	_, err := process(t.Context(), db, in, it)
	require.NoError(t, err)
	tx := begin(t, db)
	_, err = claimInPipeline(t, in, tx, it, func() {
		_, err := db.Pool.Exec(t.Context(), `DELETE FROM oncemill.inbox`)
		require.NoError(t, err)
	})
	require.ErrorIs(t, err, dedup.ErrClaimAgain)
	claim, err := claimInPipeline(t, in, tx, it, func() { t.Fatal("not taken") })
	require.NoError(t, err)
	require.Equal(t, dedup.Fresh, claim.Verdict)
	claim, err = claimInPipeline(t, in, tx, intent(t, "k", "b"), func() {})
	require.NoError(t, err)
	require.Equal(t, dedup.Conflict, claim.Verdict)
}

func TestC05_OneEventForTwoOperations(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	for _, want := range []dedup.Verdict{dedup.Fresh, dedup.Done} {
		for _, operation := range []string{"invoice", "email"} {
			k, err := dedup.NewKey("acme", operation, "evt-1")
			require.NoError(t, err)
			claim, err := process(t.Context(), db, in, dedup.Intent{Key: k, Fingerprint: dedup.RawFingerprint().Fingerprint(k, nil)})
			require.NoError(t, err)
			require.Equal(t, want, claim.Verdict, operation)
		}
	}
}

func TestC09_LongIDsAreClaimedWhateverTheirLength(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	long := make([]byte, 1<<20)
	for i := range long {
		long[i] = 'a' + byte(i*7919%26)
	}
	for _, n := range []int{255, 256, 2700, 3000, 100_000, 1 << 20} {
		for _, id := range []string{string(long[:n]), string(long[:n-1]) + "!"} {
			for _, want := range []dedup.Verdict{dedup.Fresh, dedup.Done} {
				claim, err := process(t.Context(), db, in, intent(t, id, "a"))
				require.NoError(t, err)
				require.Equal(t, want, claim.Verdict, "length %d", n)
			}
		}
	}
}
