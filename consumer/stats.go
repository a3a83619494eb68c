package consumer

import "sync/atomic"

// Stats counts the outcomes of deliveries since the Consumer was made.
type Stats struct {
	// Done: the handler ran and its transaction committed.
	Done int64
	// Duplicates: the effect was there already; the handler did not run.
	Duplicates int64
	// Held: deliveries of messages that were held already.
	Held int64
	// Dead: deliveries that ended in a dead letter.
	Dead int64
	// Busy: a live rival held the key; the message went back.
	Busy int64
	// Transient: outages, deadlocks, shutdowns; the message went back.
	Transient int64
	// InDoubt: the reply to a COMMIT was lost; the message went back.
	InDoubt int64
	// Failed: the handler failed; the message went back.
	Failed int64
	// Groups counts transactions that deliveries shared.
	Groups int64
	// Waiting is how many deliveries wait for their group now.
	Waiting int64
}

type counters struct {
	done, duplicates, held, dead, busy, transient, inDoubt, failed, groups, waiting atomic.Int64
}

// Stats returns the counts so far.
func (c *Consumer) Stats() Stats {
	n := &c.counts
	return Stats{
		Done:       n.done.Load(),
		Duplicates: n.duplicates.Load(),
		Held:       n.held.Load(),
		Dead:       n.dead.Load(),
		Busy:       n.busy.Load(),
		Transient:  n.transient.Load(),
		InDoubt:    n.inDoubt.Load(),
		Failed:     n.failed.Load(),
		Groups:     n.groups.Load(),
		Waiting:    n.waiting.Load(),
	}
}
