package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// crowd delivers messages at the same time, so that they are one group.
type crowd struct {
	bench
	c    *consumer.Consumer
	h    message.HandlerFunc
	gate chan struct{} // the first message's handler waits for it
	runs atomic.Int64
}

// kinds are the handlers that group. Each does what the message's metadata
// "do" says.
var kinds = map[string]func(*crowd) message.HandlerFunc{
	"handler": func(g *crowd) message.HandlerFunc {
		return g.c.Handler("charge", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			if err := g.before(msg); err != nil {
				return nil, err
			}
			_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
			return g.after(ctx, tx, msg, err)
		})
	},
	"queue": func(g *crowd) message.HandlerFunc {
		return g.c.QueueHandler("charge", func(ctx context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
			if err := g.before(msg); err != nil {
				return nil, err
			}
			q.Queue(`INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
			return g.after(ctx, nil, msg, g.queue(q, msg))
		})
	},
	"set": func(g *crowd) message.HandlerFunc {
		return g.c.SetHandler("charge", func(ctx context.Context, tx consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
			produced := make([][]*message.Message, len(msgs))
			for i, msg := range msgs {
				err := g.before(msg)
				if err == nil {
					tx.Queue(`INSERT INTO public.effects VALUES ($1, $2)`, msg.Metadata.Get("event_id"), []byte(msg.Payload))
					produced[i], err = g.after(ctx, tx, msg, g.queue(tx, msg))
				}
				if err != nil {
					return nil, &consumer.MessageError{Message: msg, Err: err}
				}
			}
			return produced, nil
		})
	},
}

var errHandler = errors.New("the handler's own")

func (g *crowd) before(msg *message.Message) error {
	g.runs.Add(1)
	switch msg.Metadata.Get("do") {
	case "wait":
		<-g.gate
	case "fail early":
		return errHandler
	case "panic":
		panic("secret")
	case "exit":
		runtime.Goexit()
	case "never fit":
		return dedup.Permanent(errHandler)
	}
	return nil
}

func (g *crowd) queue(q consumer.Queue, msg *message.Message) error {
	switch msg.Metadata.Get("do") {
	case "break a rule":
		q.Queue(`INSERT INTO public.effects VALUES (NULL, '')`)
	case "write nonsense":
		q.Queue(`NONSENSE`)
	case "affect nothing":
		q.Queue(`DELETE FROM public.effects WHERE key = 'nobody'`).Affects(1)
	case "look":
		q.Queue(`SELECT 'x' FROM public.effects WHERE key = 'nobody'`).QueryRow(func(row pgx.Row) error {
			var x string
			return row.Scan(&x)
		})
	}
	return nil
}

func (g *crowd) after(ctx context.Context, tx consumer.Tx, msg *message.Message, err error) ([]*message.Message, error) {
	if err != nil {
		return nil, err
	}
	switch msg.Metadata.Get("do") {
	case "fail late":
		return nil, errHandler
	case "break a rule":
		if tx != nil {
			_, err := tx.Exec(ctx, `INSERT INTO public.effects VALUES (NULL, '')`)
			return nil, err
		}
	case "swallow":
		_, _ = tx.Exec(ctx, `INSERT INTO public.effects VALUES (NULL, '')`)
	case "send":
		return []*message.Message{message.NewMessage("", msg.Payload)}, nil
	case "nil":
		return []*message.Message{nil}, nil
	}
	return nil, nil
}

func newCrowd(t *testing.T, kind string, pool *pgxpool.Pool, b bench, tune func(*consumer.Config)) *crowd {
	t.Helper()
	g := &crowd{bench: b, gate: make(chan struct{})}
	g.c = b.consumer(pool, func(cfg *consumer.Config) {
		cfg.Group, cfg.Lanes = kind == "handler", 1
		if tune != nil {
			tune(cfg)
		}
	})
	g.h = kinds[kind](g)
	t.Cleanup(func() { close(g.gate) }) // of a test that failed
	return g
}

func doing(id, what string) *message.Message {
	msg := event(id, "body of "+id)
	msg.Metadata.Set("do", what)
	return msg
}

// deliver has the messages wait while another one is processed, and lets them
// go at once.
func (g *crowd) deliver(t *testing.T, msgs ...*message.Message) []settled {
	t.Helper()
	all := make([]settled, len(msgs))
	var wg sync.WaitGroup
	g.runs.Store(0)
	wg.Go(func() { require.True(t, deliver(t, g.h, doing("first"+watermill.NewUUID(), "wait")).acked) })
	eventually(t, func() bool { return g.runs.Load() == 1 })
	for i, msg := range msgs {
		wg.Go(func() {
			msg.SetContext(publishTopic(t, msg.Context(), "payments.commands"))
			all[i] = deliver(t, g.h, msg)
		})
		eventually(t, func() bool { return g.c.Stats().Waiting == int64(i+1) })
	}
	g.gate <- struct{}{}
	wg.Wait()
	return all
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, time.Minute, time.Millisecond)
}

func innocents(n int) (msgs []*message.Message) {
	for i := range n {
		msgs = append(msgs, doing(fmt.Sprint("innocent ", i), ""))
	}
	return msgs
}

func eachKind(t *testing.T, test func(t *testing.T, kind string)) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

func TestGroupCommitsTogether(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		g := newCrowd(t, kind, b.Pool, b, nil)
		msgs := append(innocents(18), doing("sends", "send"), doing("sends too", "send"))
		for _, s := range g.deliver(t, msgs...) {
			require.True(t, s.acked)
		}
		require.Equal(t, consumer.Stats{Done: 21, Groups: 1}, g.c.Stats())
		require.Equal(t, 1, b.count(`SELECT count(DISTINCT xmin::text) FROM public.effects WHERE key NOT LIKE 'first%'`))
		require.Equal(t, 1, b.count(`SELECT count(DISTINCT i.xmin::text) FROM oncemill.inbox i JOIN public.effects e ON i.xmin = e.xmin WHERE e.key LIKE 'innocent%'`))
		require.Equal(t, 2, b.count(`SELECT count(DISTINCT o.logical_id) FROM oncemill.outbox o JOIN public.effects e ON o.xmin = e.xmin WHERE e.key = 'innocent 0'`))
		for _, s := range g.deliver(t, innocents(18)...) {
			require.True(t, s.acked)
		}
		require.EqualValues(t, 18, g.c.Stats().Duplicates)
		require.Equal(t, 22, b.effects())
	})
}

func TestGroupTakesTwoRoundTrips(t *testing.T) {
	for kind, want := range map[string]int{"queue": 2, "set": 2, "handler": 2 + 20} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t)
			proxy := testbed.NewPostgresProxy(t, b.URL)
			pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 1 })
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			g := newCrowd(t, kind, pool, b, nil)
			for range 2 { // statements get prepared
				g.deliver(t, innocents(5)...)
			}
			proxy.Reset()
			for _, s := range g.deliver(t, innocents(25)[5:]...) {
				require.True(t, s.acked)
			}
			first := map[string]int{"queue": 2, "set": 2, "handler": 3}[kind]
			require.EqualValues(t, first+want, proxy.Counts().RoundTrips(), "%v", proxy.Statements())
			proxy.Reset()
			g.deliver(t, innocents(25)[5:]...)
			require.EqualValues(t, first+2, proxy.Counts().RoundTrips(), "duplicates: claim, then verdicts and rollback")
		})
	}
}

func TestGroupsHaveOneScope(t *testing.T) {
	b := newBench(t)
	g := newCrowd(t, "queue", b.Pool, b, func(cfg *consumer.Config) {
		cfg.Scope, cfg.ScopeFrom = "", func(msg *message.Message) (string, error) {
			return "tenant-" + msg.Metadata.Get("event_id")[len("innocent "):][:1], nil
		}
	})
	for _, s := range g.deliver(t, innocents(20)...) {
		require.True(t, s.acked)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM oncemill.inbox a JOIN oncemill.inbox b ON a.xmin = b.xmin WHERE a.scope <> b.scope`))
	require.EqualValues(t, 21, g.c.Stats().Done)
}

func TestACulpritLeavesAndTheOthersCommit(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		for _, what := range []string{"fail early", "fail late", "panic", "exit", "never fit", "break a rule", "write nonsense", "affect nothing", "look", "swallow", "nil"} {
			if (what == "swallow") && kind == "queue" || kind == "handler" && (what == "write nonsense" || what == "affect nothing" || what == "look") {
				continue
			}
			t.Run(what, func(t *testing.T) {
				b := newBench(t)
				g := newCrowd(t, kind, b.Pool, b, nil)
				msgs := innocents(20)
				msgs[7] = doing("culprit", what)
				all := g.deliver(t, msgs...)
				for i, s := range all {
					require.Equal(t, i != 7 || what == "never fit", s.acked, i)
				}
				want := consumer.Stats{Done: 20, Failed: 1}
				if what == "never fit" {
					want.Dead, want.Failed = 1, 0
				}
				got := g.c.Stats()
				require.Positive(t, got.Groups)
				got.Groups = 0
				require.Equal(t, want, got)
				require.Equal(t, 20, b.effects())
				require.Zero(t, b.count(`SELECT count(*) FROM public.effects WHERE key = 'culprit'`))
				if what != "never fit" {
					require.Equal(t, 20, b.count(`SELECT count(*) FROM oncemill.inbox`), "the culprit's key is free")
					require.NotContains(t, fmt.Sprint(all[7].err), "secret")
				}
			})
		}
	})
}

func TestAnUnknownCulpritIsFound(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		_, err := b.Pool.Exec(t.Context(), `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '23514'; END $$;
			CREATE CONSTRAINT TRIGGER late AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.key LIKE 'culprit%') EXECUTE FUNCTION public.refuse()`)
		require.NoError(t, err)
		g := newCrowd(t, kind, b.Pool, b, nil)
		msgs := innocents(20)
		msgs[3], msgs[16] = doing("culprit 1", ""), doing("culprit 2", "")
		for i, s := range g.deliver(t, msgs...) {
			require.Equal(t, i != 3 && i != 16, s.acked, i)
		}
		require.EqualValues(t, 2, g.c.Stats().Failed)
		require.Equal(t, 19, b.effects())
	})
}

func TestCopiesInOneGroup(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		g := newCrowd(t, kind, b.Pool, b, nil)
		other := event("innocent 1", "another body")
		failed := doing("culprit", "fail late")
		all := g.deliver(t, append(innocents(3), event("innocent 0", "body of innocent 0"), other, failed, event("culprit", "body of culprit"))...)
		for i, s := range all {
			require.Equal(t, i < 5, s.acked, i)
		}
		got := g.c.Stats()
		require.EqualValues(t, 4, got.Done)
		require.EqualValues(t, 1, got.Duplicates)
		require.EqualValues(t, 1, got.Dead, "a conflict")
		require.EqualValues(t, 1, got.Failed)
		require.EqualValues(t, 1, got.Transient, "the failed one's copy comes again")
		require.Equal(t, 1, b.count(`SELECT count(*) FROM oncemill.held WHERE reason = 'conflict'`))
		require.True(t, deliver(t, g.h, event("culprit", "body of culprit")).acked)
		require.Equal(t, 5, b.effects())
	})
}

func TestABusyMemberIsSetAside(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		in, err := dedup.NewInbox(dedup.InboxConfig{})
		require.NoError(t, err)
		g := newCrowd(t, kind, b.Pool, b, nil)
		rival, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		key, err := dedup.NewKey("acme", "charge", "innocent 11")
		require.NoError(t, err)
		_, err = in.Claim(t.Context(), dedup.Pgx(rival), dedup.Intent{Key: key, Fingerprint: dedup.RawFingerprint().Fingerprint(key, []byte("body of innocent 11"))})
		require.NoError(t, err)
		for i, s := range g.deliver(t, innocents(20)...) {
			require.Equal(t, i != 11, s.acked, i)
		}
		got := g.c.Stats()
		require.EqualValues(t, 20, got.Done)
		require.EqualValues(t, 1, got.Busy)
		require.NoError(t, rival.Rollback(t.Context()))
		require.True(t, deliver(t, g.h, event("innocent 11", "body of innocent 11")).acked)
		require.Equal(t, 21, b.effects())
	})
}

func TestGroupCommitInDoubt(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		for name, tc := range map[string]struct {
			arm  func(*testbed.PostgresProxy) *testbed.Fault
			want consumer.Stats
		}{
			"executed": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutAfter(1, nth(2, isCommit)) }, consumer.Stats{Done: 1, InDoubt: 10, Duplicates: 10}},
			"not sent": {func(p *testbed.PostgresProxy) *testbed.Fault { return p.CutBefore(1, nth(2, isCommit)) }, consumer.Stats{Done: 11, InDoubt: 10}},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t)
				proxy := testbed.NewPostgresProxy(t, b.URL)
				pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
				require.NoError(t, err)
				t.Cleanup(pool.Close)
				g := newCrowd(t, kind, pool, b, nil)
				fault := tc.arm(proxy)
				for _, s := range g.deliver(t, innocents(10)...) {
					require.True(t, s.nacked)
					require.NoError(t, s.err, "nobody is charged")
				}
				fault.Await(t)
				for _, msg := range innocents(10) {
					require.True(t, deliver(t, g.h, msg).acked)
				}
				got := g.c.Stats()
				got.Groups = 0
				require.Equal(t, tc.want, got)
				require.Equal(t, 11, b.effects())
			})
		}
	})
}

// nth matches the nth statement that matches.
func nth(n int, match func(query string) bool) func(query string) bool {
	return func(query string) bool {
		if match(query) {
			n--
		}
		return n == 0
	}
}

func isCommit(query string) bool { return query == "commit" }

func TestALostConnectionIsNobodysFault(t *testing.T) {
	b := newBench(t)
	proxy := testbed.NewPostgresProxy(t, b.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	g := newCrowd(t, "handler", pool, b, nil)
	fault := proxy.CutBefore(1, nth(5, func(query string) bool { return strings.Contains(query, "public.effects") }))
	for _, s := range g.deliver(t, innocents(10)...) {
		require.True(t, s.nacked)
		require.NoError(t, s.err)
	}
	fault.Await(t)
	require.Equal(t, consumer.Stats{Done: 1, Transient: 10}, g.c.Stats())
}

func TestAHandlerThatIgnoresItsDeadlineLosesItsConnection(t *testing.T) {
	for _, kind := range []string{"handler", "queue"} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t)
			g := newCrowd(t, kind, b.Pool, b, func(cfg *consumer.Config) { cfg.HandlerTimeout = 300 * time.Millisecond })
			msgs := innocents(10)
			msgs[4] = doing("stuck", "wait")
			var all []settled
			wg := sync.WaitGroup{}
			wg.Go(func() { all = g.deliver(t, msgs...) })
			wg.Wait()
			for i, s := range all {
				require.Equal(t, i != 4, s.acked, i)
			}
			require.EqualValues(t, 10, g.c.Stats().Done)
			g.gate <- struct{}{} // it returns: what it does now counts no more
			require.Equal(t, 10, b.effects())
			require.Zero(t, b.count(`SELECT count(*) FROM public.effects WHERE key = 'stuck'`))
		})
	}
}

func TestBeyondTheHorizonInAGroup(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		g := newCrowd(t, kind, b.Pool, b, func(cfg *consumer.Config) {
			cfg.EventTime = func(msg *message.Message) (time.Time, error) {
				if msg.Metadata.Get("do") == "old" {
					return time.Now().AddDate(-1, 0, 0), nil
				}
				return time.Now(), nil
			}
		})
		msgs := innocents(10)
		msgs[4] = doing("too old", "old")
		for _, s := range g.deliver(t, msgs...) {
			require.True(t, s.acked)
		}
		require.EqualValues(t, 1, g.c.Stats().Dead)
		require.Equal(t, 10, b.effects())
		require.Equal(t, 1, b.count(`SELECT count(*) FROM oncemill.held WHERE reason = 'beyond horizon'`))
	})
}

func TestSortedGroupsDoNotDeadlock(t *testing.T) {
	b := newBench(t)
	_, err := b.Pool.Exec(t.Context(), `CREATE TABLE public.accounts (id text PRIMARY KEY, n int NOT NULL); INSERT INTO public.accounts SELECT i::text, 0 FROM generate_series(1, 20) i`)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var consumers []*consumer.Consumer
	for range 3 { // three processes: the same operation
		c := b.consumer(b.Pool, func(cfg *consumer.Config) {
			cfg.Lanes = 1
			cfg.LaneKey = func(msg *message.Message) string { return msg.Metadata.Get("account") }
		})
		consumers = append(consumers, c)
		h := c.QueueHandler("add", func(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
			q.Queue(`UPDATE public.accounts SET n = n + 1 WHERE id = $1`, msg.Metadata.Get("account")).Affects(1)
			return nil, nil
		})
		for range 50 {
			wg.Go(func() {
				for i := range 20 {
					msg := event(watermill.NewUUID(), "x")
					msg.Metadata.Set("account", fmt.Sprint(1+i))
					if !deliver(t, h, msg).acked {
						t.Error("not acked")
					}
				}
			})
		}
	}
	wg.Wait()
	require.Equal(t, 3*50*20, b.count(`SELECT sum(n) FROM public.accounts`))
	for _, c := range consumers {
		require.Zero(t, c.Stats().Transient)
	}
}

func TestGroupsNeedNew(t *testing.T) {
	b := newBench(t)
	cfg := config()
	cfg.Group = true
	_, err := consumer.NewSQL(openSQL(t, b.URL), cfg)
	require.ErrorContains(t, err, "Config.Group")
	require.Panics(t, func() { b.sqlConsumer(nil).QueueHandler("q", nil) })
	for field, tune := range map[string]func(*consumer.Config){
		"GroupSize": func(cfg *consumer.Config) { cfg.GroupSize = -1 },
		"Lanes":     func(cfg *consumer.Config) { cfg.Lanes = 1000 },
	} {
		cfg := config()
		tune(&cfg)
		_, err := consumer.New(b.Pool, cfg)
		require.ErrorContains(t, err, "consumer.Config."+field)
	}
}

func TestALaneGoesOnWithoutAHandlerThatIsStuckAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		g := newCrowd(t, kind, b.Pool, b, func(cfg *consumer.Config) { cfg.HandlerTimeout = 300 * time.Millisecond })
		require.True(t, deliver(t, g.h, doing("stuck", "wait")).nacked)
		require.True(t, deliver(t, g.h, doing("next", "")).acked)
		require.EqualValues(t, 1, g.c.Stats().Transient)
		g.gate <- struct{}{}
	})
}

func TestAPanicOfTheConfigInAGroup(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		box, err := outbox.New(outbox.Config{OrderingKey: func(_ string, msg *message.Message) string {
			if strings.Contains(string(msg.Payload), "culprit") {
				panic("secret")
			}
			return "k"
		}})
		require.NoError(t, err)
		g := newCrowd(t, kind, b.Pool, b, func(cfg *consumer.Config) { cfg.Outbox = box })
		msgs := append(innocents(5), doing("culprit", "send"), doing("sends", "send"))
		for i, s := range g.deliver(t, msgs...) {
			require.Equal(t, i != 5, s.acked, i)
		}
		require.EqualValues(t, 1, g.c.Stats().Failed)
		msg := doing("culprit", "send")
		msg.SetContext(publishTopic(t, msg.Context(), "payments.commands"))
		require.True(t, deliver(t, g.h, msg).nacked)
		require.EqualValues(t, 2, g.c.Stats().Failed)
	})
}
