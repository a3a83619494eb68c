package consumer

import (
	"context"
	"sync/atomic"

	"github.com/oncemill/oncemill/outbox"
)

// work is what one delivery does in a transaction, which other deliveries may
// share. Handlers see it through a facade.
type work struct {
	outgoing
	shared  *pgxTx
	refused error // of a queued statement
	result  []byte
	used    bool        // a statement went to the server for it
	ended   atomic.Bool // the handler may not use it any more
}

// on returns the work that a context carries (see TxFrom).
func (w *work) on() *work { return w }

// flush sends what was queued, by the deliveries before this one too.
func (w *work) flush(ctx context.Context) error {
	w.used = true
	return w.shared.flush(ctx)
}

// end takes the transaction from the handler and returns what it sent.
func (w *work) end() ([]outbox.Row, error) {
	w.ended.Store(true)
	return w.close(), w.refused
}
