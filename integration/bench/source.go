package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// source makes the messages of a run.
type source struct {
	duplicates int                // percent of deliveries
	failing    int                // percent of fresh events whose first delivery fails
	known      []*message.Message // handled already; delivered again in turn
	turn       atomic.Int64
	fresh      atomic.Int64 // how many events there are
	random     bool         // ids that carry no time
}

// knownEvents are more than are in flight, so that no delivery meets its own
// copy.
const knownEvents = 1000

// handled has h handle the events that are delivered again later.
func (s *source) handled(ctx context.Context, duplicates int, h message.HandlerFunc) error {
	if duplicates == 0 {
		return nil
	}
	left := make(chan *message.Message, knownEvents)
	for range knownEvents {
		msg := s.next()
		s.known = append(s.known, msg)
		left <- msg
	}
	close(left)
	s.duplicates = duplicates
	group, ctx := errgroup.WithContext(ctx)
	for range duplicatesInFlight {
		group.Go(func() error {
			for msg := range left {
				if _, err := deliver(ctx, h, msg); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// next returns the next message to deliver.
func (s *source) next() *message.Message {
	if rand.IntN(100) < s.duplicates {
		return s.known[s.turn.Add(1)%knownEvents]
	}
	s.fresh.Add(1)
	msg := newEvent()
	if s.random {
		msg = eventOf(uuid.NewString())
	}
	if rand.IntN(100) < s.failing {
		msg.Metadata.Set(failsOnce, "true")
	}
	return msg
}

// failsOnce is the metadata of a message whose first delivery fails.
const failsOnce = "fails_once"

// event is the payload of a message.
type event struct {
	Account int    `json:"account"`
	Amount  int64  `json:"amount"`
	Note    string `json:"note"`
}

// newEvent returns an event with a fresh id that carries its time.
func newEvent() *message.Message { return eventOf(uuid.Must(uuid.NewV7()).String()) }

// eventOf returns an event with a payload of payloadSize.
func eventOf(id string) *message.Message {
	e := event{Account: rand.IntN(accounts), Amount: 1 + rand.Int64N(1000)} // Not a secret.
	bare, _ := json.Marshal(e)
	e.Note = strings.Repeat("x", payloadSize-len(bare))
	payload, _ := json.Marshal(e) // a struct of ints and text always can be
	msg := message.NewMessage(id, payload)
	msg.Metadata.Set(eventID, id)
	return msg
}

func decode(msg *message.Message) (e event) {
	_ = json.Unmarshal(msg.Payload, &e) // made by newEvent
	return e
}

// execer is the part of a transaction that the effect needs.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// effect is what the handlers of all variants do, with a round trip for each
// statement.
func effect(ctx context.Context, tx execer, msg *message.Message) error {
	return decode(msg).effect(ctx, tx, msg.Metadata.Get(eventID))
}

func (e event) effect(ctx context.Context, tx execer, id string) error {
	if _, err := tx.Exec(ctx, insertLedger, id, e.Account, e.Amount); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, updateBalance, e.Account, e.Amount)
	return err
}
