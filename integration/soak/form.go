package main

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/keys"
	"github.com/oncemill/oncemill/outbox"
)

// form is a way to write a handler. All do the same, side by side, each as an
// operation and with a durable of its own.
type form struct {
	name    string
	handler func(p parts) (*consumer.Consumer, message.HandlerFunc, error)
}

// parts are what a handler is made of.
type parts struct {
	pool *pgxpool.Pool
	db   *sql.DB
	box  *outbox.Outbox
}

// forms are all ways, by the names of their operations.
var forms = []form{
	{"handler", func(p parts) (*consumer.Consumer, message.HandlerFunc, error) {
		c, err := consumer.New(p.pool, p.config(false))
		if err != nil {
			return nil, nil, err
		}
		return c, plain(c, "handler"), nil
	}},
	{"group", func(p parts) (*consumer.Consumer, message.HandlerFunc, error) {
		c, err := consumer.New(p.pool, p.config(true))
		if err != nil {
			return nil, nil, err
		}
		return c, plain(c, "group"), nil
	}},
	{"queue", func(p parts) (*consumer.Consumer, message.HandlerFunc, error) {
		c, err := consumer.New(p.pool, p.config(false))
		if err != nil {
			return nil, nil, err
		}
		return c, c.QueueHandler("queue", func(_ context.Context, q consumer.Queue, msg *message.Message) ([]*message.Message, error) {
			return book(q, "queue", msg)
		}), nil
	}},
	{"set", func(p parts) (*consumer.Consumer, message.HandlerFunc, error) {
		c, err := consumer.New(p.pool, p.config(false))
		if err != nil {
			return nil, nil, err
		}
		return c, c.SetHandler("set", bookSet), nil
	}},
	{"sql", func(p parts) (*consumer.Consumer, message.HandlerFunc, error) {
		c, err := consumer.NewSQL(p.db, p.config(false))
		if err != nil {
			return nil, nil, err
		}
		return c, c.Middleware("sql")(overSQL("sql")), nil
	}},
}

func formNames() []string {
	names := make([]string, len(forms))
	for i, f := range forms {
		names[i] = f.name
	}
	return names
}

// concurrency is how many transactions a form has open.
const concurrency = 4

// Delays that let a message come back within a run.
const (
	shortestDelay = 50 * time.Millisecond
	longestDelay  = time.Second
)

func (p parts) config(group bool) consumer.Config {
	return consumer.Config{
		Scope: "soak", Key: keys.JSONPointer("/id"), Outbox: p.box, Group: group, Concurrency: concurrency,
		MinDelay: shortestDelay, MaxDelay: longestDelay,
		LaneKey: func(msg *message.Message) string {
			e, _ := decodeEvent(msg.Payload) // the handler says what is wrong
			return strconv.Itoa(e.Account)
		},
	}
}

const (
	enter = `INSERT INTO public.ledger (form, event, account, amount) VALUES ($1, $2, $3, $4)`
	add   = `INSERT INTO public.balances AS b (form, account, amount) VALUES ($1, $2, $3)
		ON CONFLICT (form, account) DO UPDATE SET amount = b.amount + excluded.amount`
	fail = `SELECT 1 / (length($1) - length($1))`
)

// errInjected is a failure that will not happen again.
var errInjected = errors.New("injected failure")

// Injected failures, in per mille of the calls of a handler.
const (
	handlerFails = 10 + iota*10
	statementFails
	handlerPanics
)

// plain is the handler of a transaction of its own, or so it looks.
func plain(c *consumer.Consumer, form string) message.HandlerFunc {
	return c.Handler(form, func(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
		return now(form, msg, func(query string, args ...any) error {
			_, err := tx.Exec(ctx, query, args...)
			return err
		})
	})
}

// overSQL is the handler of a database/sql transaction.
func overSQL(form string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		return now(form, msg, func(query string, args ...any) error {
			_, err := consumer.SQLTx(ctx).ExecContext(ctx, query, args...)
			return err
		})
	}
}

// now books the effect, one statement after the other.
func now(form string, msg *message.Message, exec func(query string, args ...any) error) ([]*message.Message, error) {
	e, err := decodeEvent(msg.Payload)
	if err != nil {
		return nil, err
	}
	if err := exec(enter, form, e.ID, e.Account, e.Amount); err != nil {
		return nil, err
	}
	switch n := rand.IntN(1000); {
	case n < handlerFails:
		return nil, errInjected
	case n < statementFails:
		return nil, exec(fail, e.ID)
	case n < handlerPanics:
		panic(errInjected)
	}
	if err := exec(add, form, e.Account, e.Amount); err != nil {
		return nil, err
	}
	return sent(form, e), nil
}

// book queues the effect.
func book(q consumer.Queue, form string, msg *message.Message) ([]*message.Message, error) {
	e, err := decodeEvent(msg.Payload)
	if err != nil {
		return nil, err
	}
	q.Queue(enter, form, e.ID, e.Account, e.Amount)
	switch n := rand.IntN(1000); {
	case n < handlerFails:
		return nil, errInjected
	case n < statementFails:
		q.Queue(fail, e.ID)
	case n < handlerPanics:
		panic(errInjected)
	}
	q.Queue(add, form, e.Account, e.Amount)
	return sent(form, e), nil
}

// bookSet books messages together. Half of its own failures name their message.
func bookSet(_ context.Context, tx consumer.Tx, msgs []*message.Message) ([][]*message.Message, error) {
	commands := make([][]*message.Message, len(msgs))
	for i, msg := range msgs {
		var err error
		if commands[i], err = book(tx, "set", msg); err == nil {
			continue
		}
		if rand.IntN(2) == 0 {
			err = &consumer.MessageError{Message: msg, Err: err}
		}
		return nil, err
	}
	return commands, nil
}

// formHeader is the metadata that says which form sent a command.
const formHeader = "form"

func sent(form string, e Event) []*message.Message {
	msg := message.NewMessage(watermill.NewUUID(), e.encode())
	msg.Metadata.Set(formHeader, form)
	return []*message.Message{msg}
}
