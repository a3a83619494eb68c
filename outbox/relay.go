package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

// Stats counts what a relay did since it was made.
type Stats struct {
	Lanes  int    // lanes held now
	Sent   uint64 // confirmed by the sink
	Failed uint64 // rejected, unsendable or put off
	// InDoubt counts sendings without an answer; their rows are sent again.
	InDoubt uint64
}

// Relay sends the messages of an outbox. Any number of relays may run, in any
// process. Its methods are safe for concurrent use, but run it once at a time.
type Relay struct {
	cfg     RelayConfig
	db      pg.DB                       // of the relay itself
	poolMax func() int                  // connections that db has at most, 0 for no limit
	lanesDB limited                     // of its lanes
	pooler  func(context.Context) error // checks what is between db and the server
	sql     *statements
	leases  leases
	epoch   time.Time // what the monotonic deadlines count from

	stats struct{ sent, failed, inDoubt atomic.Uint64 }
	log   limiter

	mu    sync.Mutex
	lanes map[int16]*lane

	storedMax int       // max_payload as this relay stored it
	awaySince time.Time // since when the sink is not ready; zero if it is
}

// NewRelay returns a relay that reads through pool. It does no I/O. Its lanes
// use RelayConfig.Connections of the pool at a time, and the relay one more. In
// a smaller pool they wait for each other; Run warns of it.
func NewRelay(pool *pgxpool.Pool, cfg RelayConfig) (*Relay, error) {
	pooler := func(ctx context.Context) error { return pg.CheckPooler(ctx, pool) }
	poolMax := func() int { return int(pool.Stat().MaxConns()) }
	return newRelay(pg.FromPgx(pool), poolMax, pooler, cfg)
}

// NewRelaySQL is NewRelay for database/sql over pgx/stdlib.
func NewRelaySQL(db *sql.DB, cfg RelayConfig) (*Relay, error) {
	pooler := func(ctx context.Context) error { return pg.CheckPoolerSQL(ctx, db) }
	poolMax := func() int { return db.Stats().MaxOpenConnections }
	return newRelay(pg.FromSQL(db), poolMax, pooler, cfg)
}

func newRelay(db pg.DB, poolMax func() int, pooler func(context.Context) error, cfg RelayConfig) (*Relay, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	statements := &cfg.Outbox.sql
	return &Relay{
		cfg: cfg, db: db, poolMax: poolMax, pooler: pooler, sql: statements, epoch: time.Now(), lanes: make(map[int16]*lane),
		leases:  leases{db: db, sql: statements, owner: cfg.Owner, lease: cfg.Lease},
		lanesDB: limited{db, make(chan struct{}, cfg.Connections)},
	}, nil
}

// Notify makes the relay look for rows at once. It does not block.
func (r *Relay) Notify() { r.notify(allLanes) }

func (r *Relay) notify(lanes Lanes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, l := range r.lanes {
		if lanes.has(n) {
			ring(l.bell)
		}
	}
}

// Stats returns the counters.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{
		Lanes: len(r.lanes), Sent: r.stats.sent.Load(), Failed: r.stats.failed.Load(), InDoubt: r.stats.inDoubt.Load(),
	}
}

// Check makes sure that the schema has the version that this code needs, that
// the current role may do what a relay does, and that a pooler before the
// database fits the pool's exec mode. It returns a *NotReadyError or
// *PoolerError that says what to do, or the error of the connection.
func (r *Relay) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	if err := r.pooler(ctx); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	if err := schema.Check(ctx, r.db, r.cfg.Outbox.schema, "outbox"); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// awaitReady checks the database, as often as it takes to reach it.
func (r *Relay) awaitReady(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.Check(ctx)
		if err == nil || refuses(err) {
			return err
		}
		r.warnError(err)
		select {
		case <-ctx.Done():
		case <-time.After(r.cfg.Poll):
		}
	}
	return nil
}

// Run sends until ctx ends. It then waits a little for answers, records them
// and gives its lanes back. It survives outages of the database and of the
// sink, and returns nil, but for what [Relay.Check] finds at the start. Settings
// that weaken a promise, such as those that [CheckJetStream] finds, are logged
// as warnings.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.awaitReady(ctx); err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { r.warnOfSettings(ctx) })
	defer r.listen()()
	ticker := time.NewTicker(min(r.cfg.Lease/3, r.cfg.Poll))
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := r.tick(ctx); err != nil && ctx.Err() == nil {
			r.warnError(err)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	r.stopAll(context.WithoutCancel(ctx))
	return nil
}

// RunOnce takes the lanes that nobody holds, sends what can be sent now, and
// gives them back. It returns the first error of taking or renewing lanes,
// the sink's if it is not ready, or ctx's.
func (r *Relay) RunOnce(ctx context.Context) error {
	if err := r.cfg.Sink.Ready(); err != nil {
		return err
	}
	if err := r.acquire(ctx, maxLanes, true); err != nil {
		return err
	}
	defer r.stopAll(context.WithoutCancel(ctx))
	ticker := time.NewTicker(r.cfg.Lease / 3)
	defer ticker.Stop()
	for _, l := range r.held() {
		for ended := false; !ended; {
			select {
			case <-l.finished:
				ended = true
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
				if err := errors.Join(r.cfg.Sink.Ready(), r.renew(ctx)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// listen connects the relay to the wake-ups.
func (r *Relay) listen() (stop func()) {
	bell := &r.cfg.Outbox.bell
	bell.listen(r)
	stopWake := func() {}
	if sink, ok := r.cfg.Sink.(interface {
		onWake(subject string, fn func(Lanes)) (func(), error)
	}); ok {
		stop, err := sink.onWake(bell.subject, r.notify)
		if err != nil {
			r.warnError(err)
		} else {
			stopWake = stop
		}
	}
	return func() {
		bell.leave(r)
		stopWake()
	}
}

// tick renews the lanes and moves towards this relay's share of them.
func (r *Relay) tick(ctx context.Context) error {
	if r.sinkIsAway(time.Now()) {
		r.stopAll(ctx)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease/2)
	defer cancel()
	if err := r.renew(ctx); err != nil {
		return err
	}
	share, err := r.leases.share(ctx)
	if err != nil {
		return err
	}
	held := r.held()
	for i := share; i < len(held); i++ {
		held[i].cancel()
	}
	if len(held) < share {
		if err := r.acquire(ctx, share-len(held), false); err != nil {
			return err
		}
	}
	return r.storeMaxBytes(ctx)
}

// sinkIsAway tells whether the sink has not been ready for so long that other
// relays should have the lanes.
func (r *Relay) sinkIsAway(now time.Time) bool {
	if r.cfg.Sink.Ready() == nil {
		r.awaySince = time.Time{}
		return false
	}
	if r.awaySince.IsZero() {
		r.awaySince = now
	}
	return now.Sub(r.awaySince) >= r.cfg.Lease/3
}

// held returns the lanes in their order, those that ended removed. Which lanes
// are too many is then the same until they have ended.
func (r *Relay) held() []*lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	var held []*lane
	for n, l := range r.lanes {
		select {
		case <-l.finished:
			delete(r.lanes, n)
		default:
			held = append(held, l)
		}
	}
	slices.SortFunc(held, func(a, b *lane) int { return cmp.Compare(a.hold.lane, b.hold.lane) })
	return held
}

// renew extends the leases. The new deadlines count from before the statement
// was sent, so that they end before the database's, whenever it ran.
func (r *Relay) renew(ctx context.Context) error {
	held := r.held()
	if len(held) == 0 {
		return nil
	}
	holds := make([]hold, len(held))
	for i, l := range held {
		holds[i] = l.hold
	}
	until := r.until()
	ours, err := r.leases.renew(ctx, holds)
	if err != nil {
		return err
	}
	for _, l := range held {
		if ours[l.hold.lane] {
			l.extend(until)
		} else {
			l.lost.Store(true)
			l.cancel()
		}
	}
	return nil
}

// until is the end of a lease that is asked for now, less a margin for what is
// between a look at the clock and the bytes on the wire.
func (r *Relay) until() time.Time { return time.Now().Add(r.cfg.Lease - r.cfg.Lease/10) }

// acquire takes up to n free lanes and starts them.
func (r *Relay) acquire(ctx context.Context, n int, drain bool) error {
	until := r.until()
	holds, err := r.leases.acquire(ctx, n)
	if err != nil {
		return err
	}
	for _, h := range holds {
		r.start(ctx, newLane(r, h, until, drain))
	}
	return nil
}

func (r *Relay) start(ctx context.Context, l *lane) {
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.mu.Lock()
	r.lanes[l.hold.lane] = l
	r.mu.Unlock()
	go l.run(ctx)
}

// stopAll ends all lanes, waits for them, and signs off.
func (r *Relay) stopAll(ctx context.Context) {
	held := r.held()
	for _, l := range held {
		l.cancel()
	}
	for _, l := range held {
		<-l.finished
	}
	r.held()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	if err := r.leases.leave(ctx); err != nil {
		r.warnError(err)
	}
}

// storeMaxBytes lets writers know what the broker takes.
func (r *Relay) storeMaxBytes(ctx context.Context) error {
	limit := r.cfg.Sink.MaxBytes()
	if limit == 0 || limit == r.storedMax {
		return nil
	}
	if _, err := r.db.Exec(ctx, r.sql.storeMaxPayload, limit); err != nil {
		return fmt.Errorf("outbox: store what the broker takes: %w", err)
	}
	r.storedMax = limit
	return nil
}
