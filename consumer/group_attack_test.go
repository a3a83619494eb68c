package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
)

// inOrder has a group run in the order of ids.
func inOrder(cfg *consumer.Config) {
	cfg.LaneKey = func(msg *message.Message) string { return msg.Metadata.Get("event_id") }
}

// does runs a handler of its own for messages that name one, and else that of
// the kind.
type does map[string]consumer.HandlerFunc

func (d does) crowd(t *testing.T, tune func(*consumer.Config)) *crowd {
	t.Helper()
	b := newBench(t)
	g := newCrowd(t, "handler", b.Pool, b, tune)
	g.h = g.c.Handler("attack", func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		if err := g.before(msg); err != nil {
			return nil, err
		}
		if h := d[msg.Metadata.Get("do")]; h != nil {
			return h(ctx, tx, msg)
		}
		return charge(ctx, tx, msg)
	})
	return g
}

func late(t *testing.T, b bench) {
	_, err := b.Pool.Exec(t.Context(), `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '23514'; END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.key LIKE 'culprit%') EXECUTE FUNCTION public.refuse()`)
	require.NoError(t, err)
}

func TestABusyMemberBesideAnUnknownCulprit(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		late(t, b)
		in, err := dedup.NewInbox(dedup.InboxConfig{})
		require.NoError(t, err)
		g := newCrowd(t, kind, b.Pool, b, nil)
		rival, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		key, err := dedup.NewKey("acme", "charge", "innocent 5")
		require.NoError(t, err)
		_, err = in.Claim(t.Context(), dedup.Pgx(rival), dedup.Intent{Key: key})
		require.NoError(t, err)
		msgs := innocents(8)
		msgs[2] = doing("culprit", "")
		for i, s := range g.deliver(t, msgs...) {
			require.Equal(t, i != 2 && i != 5, s.acked, i)
		}
		require.EqualValues(t, 1, g.c.Stats().Failed)
		require.EqualValues(t, 1, g.c.Stats().Busy)
		require.NoError(t, rival.Rollback(t.Context()))
	})
}

func TestTheBoundGrowsBackFromOne(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		b := newBench(t)
		late(t, b)
		g := newCrowd(t, kind, b.Pool, b, nil)
		g.deliver(t, doing("culprit 1", ""), doing("culprit 2", ""))
		before := g.c.Stats().Groups
		for _, s := range g.deliver(t, innocents(40)...) {
			require.True(t, s.acked)
		}
		require.Greater(t, g.c.Stats().Groups, before)
	})
}

func TestAKeptTransactionIsDeadWhileNeighboursRun(t *testing.T) {
	var kept consumer.Tx
	var point pgx.Tx
	g := does{
		"keep": func(ctx context.Context, tx consumer.Tx, msg *message.Message) (_ []*message.Message, err error) {
			kept = tx
			if _, err = charge(ctx, tx, msg); err == nil {
				point, err = tx.Begin(ctx)
			}
			return nil, err
		},
		"use": func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := charge(ctx, tx, msg)
			if _, used := kept.Exec(ctx, `DELETE FROM public.effects`); !errors.Is(used, pgx.ErrTxClosed) {
				return nil, fmt.Errorf("used: %w", used)
			}
			kept.Queue(`DELETE FROM public.effects`)
			if used := point.Rollback(ctx); !errors.Is(used, pgx.ErrTxClosed) {
				return nil, fmt.Errorf("used: %w", used)
			}
			return nil, err
		},
	}.crowd(t, inOrder)
	for _, s := range g.deliver(t, doing("a", "keep"), doing("b", "use"), doing("c", "use")) {
		require.NoError(t, s.err)
		require.True(t, s.acked)
	}
	require.Equal(t, 4, g.effects())
}

func TestAFlushThatFailsIsNotSwallowed(t *testing.T) {
	for name, culprit := range map[string]func(tx consumer.Tx){
		"refused":     func(tx consumer.Tx) { tx.Queue(`INSERT INTO public.effects VALUES (NULL, '')`) },
		"unencodable": func(tx consumer.Tx) { tx.Queue(`INSERT INTO public.effects VALUES ($1, '')`, struct{ A int }{1}) },
	} {
		for _, swallow := range []bool{true, false} {
			t.Run(fmt.Sprint(name, swallow), func(t *testing.T) {
				g := does{
					"culprit": func(_ context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
						culprit(tx)
						return nil, nil
					},
					"flush": func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
						_, err := charge(ctx, tx, msg)
						if swallow {
							err = nil
						}
						return nil, err
					},
				}.crowd(t, inOrder)
				all := g.deliver(t, doing("1", ""), doing("2", "culprit"), doing("3", "flush"), doing("4", ""))
				for i, s := range all {
					require.Equal(t, i != 1, s.acked, "%d: %v", i, s.err)
				}
				require.EqualValues(t, 1, g.c.Stats().Failed)
				require.Equal(t, 4, g.effects())
			})
		}
	}
}

func TestAFlushThatIsNotSentIsNotLost(t *testing.T) {
	g := does{
		"queue": func(_ context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			tx.Queue(`INSERT INTO public.effects VALUES ($1, '')`, msg.Metadata.Get("event_id"))
			return nil, nil
		},
		"swallow": func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
			tx.Queue(`INSERT INTO public.effects VALUES ($1, '')`, msg.Metadata.Get("event_id"))
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, _ = tx.Exec(ended, `SELECT 1`)
			return nil, nil
		},
	}.crowd(t, inOrder)
	acked := 1
	for _, s := range g.deliver(t, doing("1", "queue"), doing("2", "queue"), doing("3", "swallow"), doing("4", "queue")) {
		if s.acked {
			acked++
		}
	}
	require.Equal(t, acked, g.effects()) // one of "first"
	s := deliver(t, g.h, doing("5", "swallow"))
	if s.acked {
		acked++
	}
	require.Equal(t, acked, g.effects())
}

func TestLooksThatGoWrong(t *testing.T) {
	for name, look := range map[string]func(pgx.Row) error{
		"panic":   func(pgx.Row) error { panic("secret") },
		"exit":    func(pgx.Row) error { runtime.Goexit(); return nil },
		"swallow": func(row pgx.Row) error { var x int; _ = row.Scan(&x); return nil },
		"no scan": func(pgx.Row) error { return nil },
	} {
		for _, query := range []string{`SELECT 1`, `SELECT 1/(1-count(*)) FROM public.effects WHERE key = '3'`, `SELECT 1 WHERE false`} {
			for _, kind := range []string{"queue", "set", "handler"} {
				t.Run(name+query+kind, func(t *testing.T) {
					b := newBench(t)
					g := newCrowd(t, "queue", b.Pool, b, func(cfg *consumer.Config) {
						cfg.Group = true
						inOrder(cfg)
					})
					do := func(q consumer.Queue, msg *message.Message) error {
						if err := g.before(msg); err != nil {
							return err
						}
						q.Queue(`INSERT INTO public.effects VALUES ($1, '')`, msg.Metadata.Get("event_id"))
						if msg.Metadata.Get("do") == "look" {
							q.Queue(query).QueryRow(look)
						}
						return nil
					}
					switch kind {
					case "queue":
						g.h = g.c.QueueHandler("look", func(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
							return nil, do(q, msg)
						})
					case "handler":
						g.h = g.c.Handler("look", func(_ context.Context, q consumer.Tx, msg *message.Message) ([]*message.Message, error) {
							return nil, do(q, msg)
						})
					case "set":
						g.h = g.c.SetHandler("look", func(_ context.Context, q consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
							for _, msg := range msgs {
								if err := do(consumer.TxFrom(msg.Context()), msg); err != nil {
									return nil, err
								}
							}
							return nil, nil
						})
					}
					fine := (name == "swallow" || name == "no scan") && !strings.HasPrefix(query, "SELECT 1/")
					all := g.deliver(t, doing("1", ""), doing("2", ""), doing("3", "look"), doing("4", ""))
					for i, s := range all {
						require.Equal(t, i != 2 || fine, s.acked, "%d: %v", i, s.err)
					}
					if fine {
						require.Equal(t, 5, g.effects())
					} else {
						require.Equal(t, 4, g.effects())
						require.EqualValues(t, 1, g.c.Stats().Failed)
					}
				})
			}
		}
	}
}

func TestAMessageErrorWithoutAnErrorIsAFailure(t *testing.T) {
	b := newBench(t)
	g := newCrowd(t, "set", b.Pool, b, nil)
	g.h = g.c.SetHandler("nil", func(ctx context.Context, tx consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
		for _, msg := range msgs {
			if err := g.before(msg); err != nil {
				return nil, err
			}
			tx.Queue(`INSERT INTO public.effects VALUES ($1, '')`, msg.Metadata.Get("event_id"))
			switch msg.Metadata.Get("do") {
			case "no error":
				return nil, &consumer.MessageError{Message: msg}
			case "no message":
				return nil, &consumer.MessageError{Err: errHandler}
			case "foreign":
				return nil, &consumer.MessageError{Message: message.NewMessage("", nil), Err: errHandler}
			case "ack":
				msg.Ack()
			}
		}
		return nil, nil
	})
	for _, what := range []string{"no error", "no message", "foreign", "ack"} {
		msgs := innocents(5)
		for i := range msgs {
			msgs[i] = doing(what+fmt.Sprint(i), "")
		}
		msgs[3].Metadata.Set("do", what)
		for i, s := range g.deliver(t, msgs...) {
			require.Equal(t, i != 3, s.acked, "%s %d: %v", what, i, s.err)
		}
		require.True(t, deliver(t, g.h, doing("alone"+what, what)).nacked)
		require.Zero(t, g.count(`SELECT count(*) FROM public.effects WHERE key LIKE 'alone%' OR key LIKE $1`, what+"3"))
	}
}

func TestRowsLeftOpenAreTheirOwnersFault(t *testing.T) {
	g := does{
		"leave rows": func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 10)`) //nolint:sqlclosecheck // That is the fault.
			return nil, err
		},
	}.crowd(t, inOrder)
	for i, s := range g.deliver(t, doing("1", ""), doing("2", "leave rows"), doing("3", ""), doing("4", "")) {
		require.Equal(t, i != 1, s.acked, "%d: %v", i, s.err)
	}
	require.EqualValues(t, 1, g.c.Stats().Failed)
	require.Equal(t, 4, g.effects())
}

func TestAMemberThatLosesItsConnectionHoldsUpItsGroupOnce(t *testing.T) {
	g := does{
		"kill": func(ctx context.Context, tx consumer.Tx, _ *message.Message) ([]*message.Message, error) {
			_, _ = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return nil, nil
		},
	}.crowd(t, nil)
	g.deliver(t, doing("1", ""), doing("2", ""), doing("3", ""), doing("x", "kill"))
	require.EqualValues(t, 4, g.c.Stats().Transient)
	require.True(t, deliver(t, g.h, doing("x", "kill")).nacked)
	require.Zero(t, g.c.Stats().Waiting)
}
