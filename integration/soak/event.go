package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
)

const (
	// accounts is small enough for events to meet at one balance.
	accounts = 50
	// largestAmount of an event.
	largestAmount = 1000
)

// Event is what the producer publishes, and every form of handler books.
type Event struct {
	ID      string `json:"id"`
	Account int    `json:"account"`
	Amount  int64  `json:"amount"`
}

// newEvent draws the n-th event of a run.
func newEvent(r *rand.Rand, n int) Event {
	return Event{ID: fmt.Sprintf("event-%06d", n), Account: r.IntN(accounts), Amount: 1 + r.Int64N(largestAmount)}
}

func (e Event) encode() []byte {
	body, _ := json.Marshal(e) // text and numbers: no error
	return body
}

func decodeEvent(body []byte) (e Event, err error) {
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("decode an event: %w", err)
	}
	return e, nil
}
