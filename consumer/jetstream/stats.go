package jetstream

import "sync/atomic"

// Stats counts what a [Subscriber] did since it was made, over all its
// subscriptions.
type Stats struct {
	Fetched    uint64 // deliveries received from the server
	Undecoded  uint64 // of these, delivered with DecodeErr
	Acked      uint64 // acks sent (confirmed, with AckConfirm)
	Nacked     uint64 // nacks sent
	Terminated uint64 // terminations sent (confirmed, with AckConfirm)
	Returned   uint64 // nacked at shutdown, before a handler took them
	Lapsed     uint64 // nacks not sent, since the delivery's AckWait was over
	// SettleFailures counts acks, nacks and terminations that could not be
	// sent or were not confirmed: the message is delivered again.
	SettleFailures uint64
	Extensions     uint64 // in-progress signs sent
	InFlight       int    // fetched and not settled now
}

type counters struct {
	fetched, undecoded, acked, nacked, terminated, returned, lapsed, failed, extended atomic.Uint64
	inFlight                                                                          atomic.Int64
}

// Stats returns the counters now. It is safe for concurrent use.
func (s *Subscriber) Stats() Stats {
	c := &s.count
	return Stats{
		Fetched: c.fetched.Load(), Undecoded: c.undecoded.Load(),
		Acked: c.acked.Load(), Nacked: c.nacked.Load(), Terminated: c.terminated.Load(),
		Returned: c.returned.Load(), Lapsed: c.lapsed.Load(),
		SettleFailures: c.failed.Load(), Extensions: c.extended.Load(),
		InFlight: int(c.inFlight.Load()),
	}
}
