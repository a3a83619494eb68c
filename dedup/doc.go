// Package dedup makes an effect in PostgreSQL happen once for each intent,
// however often the message that asks for it arrives. It knows keys,
// fingerprints, the inbox and retention; it needs neither Watermill nor NATS.
//
// # Protocol
//
// An intent has a [Key]: scope, operation, id. Its [Fingerprint] tells one
// payload from another. [Inbox.Claim] inserts the intent's row in the caller's
// transaction, before the effect:
//
//	fresh           the row is ours: make the effect, Finish, commit
//	done            the effect is committed: don't run
//	held            the database owns the message: don't run
//	conflict        the key came before with another payload: don't run
//	beyond horizon  too old to tell from a duplicate: don't run, roll back
//	*BusyError      a live rival is at it: roll back, come again later
//
// The row and the effect commit together, so that a row that others see means
// that the effect is there. A rival that claims the same key waits for the
// row's transaction, at most InboxConfig.LockWait: if that commits, the rival
// finds it done; if it rolls back or its process dies, the rival is fresh.
//
// The transaction must be READ COMMITTED: the insert that found a rival's row
// is followed by a second statement, with a snapshot of its own, that reads
// it. Under REPEATABLE READ the insert fails with 40001 instead. The claim
// raises synchronous_commit when it is off, since another process acks its
// duplicate as soon as it sees the row.
//
// # Time
//
// Done rows are kept for the retention of their operation, counted from the
// later of the event's own time and the claim. An event whose own time is
// older than that is refused: its row may have been purged. Before a row goes,
// the [Purger] commits how far it went (the floor), which holds even if other
// processes have another retention. Only times that the producer put into the
// message count. Without one, the promise ends with retention. All times are
// the database's.
//
// # Not promised
//
// Dedup of two keys that mean the same thing; anything about effects outside
// the transaction; anything after a failover that loses committed
// transactions.
package dedup
