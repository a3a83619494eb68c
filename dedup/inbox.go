package dedup

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/internal/schema"
	"github.com/oncemill/oncemill/internal/uuid"
)

// Defaults of InboxConfig.
const (
	// DefaultRetention is how long done rows are kept: longer than most streams
	// keep messages and operators take to replay.
	DefaultRetention = 30 * 24 * time.Hour
	// DefaultLockWait is how long a claim waits for a live rival: longer than
	// most handlers take, so that the common race ends without a redelivery,
	// and short against the time a connection may be held for nothing.
	DefaultLockWait = 250 * time.Millisecond
	// DefaultSkew is how far ahead of the database's clock an event time may
	// be: clocks kept by NTP are well within.
	DefaultSkew = 5 * time.Minute
)

// InboxConfig configures an Inbox. The zero value works.
type InboxConfig struct {
	// Schema is the database schema of the tables, "oncemill" if empty.
	Schema string
	// Retention is how long a done row is kept, counted from the later of the
	// event's own time and the claim; also how old an event time may be
	// before the event is refused. 0 means DefaultRetention, negative means
	// no limit: rows are kept for ever and no event is too old.
	Retention time.Duration
	// Retentions overrides Retention for named operations.
	Retentions map[string]time.Duration
	// LockWait bounds the wait for a live rival with the same key. 0 means
	// DefaultLockWait, negative means not to wait longer than a millisecond.
	LockWait time.Duration
	// Skew is how far ahead of the database's clock an event time may be.
	// 0 means DefaultSkew, negative means no limit.
	Skew time.Duration
}

// Inbox claims intents in the caller's transaction. Safe for concurrent use.
type Inbox struct {
	schema     schema.Name
	retention  time.Duration
	retentions map[string]time.Duration
	lockWait   time.Duration
	skew       time.Duration
	sql        statements
}

// statements are the package's statements for one schema.
type statements struct {
	claimInsert, claimRead, claimMany, claimReadMany, claimAssert string
	claimGroup, claimLook, unclaim                                string
	setResult, lookup, hold                                       string
	raiseFloor, purgePage                                         string
}

// NewInbox validates cfg and returns an Inbox. It does no I/O.
func NewInbox(cfg InboxConfig) (*Inbox, error) {
	name, err := schema.ParseName(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("dedup.InboxConfig.%w", err)
	}
	in := &Inbox{
		schema:     name,
		retention:  orDefault(cfg.Retention, DefaultRetention),
		retentions: make(map[string]time.Duration, len(cfg.Retentions)),
		lockWait:   max(orDefault(cfg.LockWait, DefaultLockWait), time.Millisecond),
		skew:       orDefault(cfg.Skew, DefaultSkew),
		sql: statements{
			claimInsert:   name.Expand(claimInsert),
			claimRead:     name.Expand(claimRead),
			claimMany:     name.Expand(claimMany),
			claimReadMany: name.Expand(claimReadMany),
			claimAssert:   name.Expand(claimAssert),
			claimGroup:    name.Expand(claimGroup),
			claimLook:     name.Expand(claimLook),
			unclaim:       name.Expand(unclaim),
			setResult:     name.Expand(setResult),
			lookup:        name.Expand(lookup),
			hold:          name.Expand(hold),
			raiseFloor:    name.Expand(raiseFloor),
			purgePage:     name.Expand(purgePage),
		},
	}
	for operation, retention := range cfg.Retentions {
		if operation == "" {
			return nil, errors.New("dedup.InboxConfig.Retentions: an operation has no name; name it, or set Retention for all")
		}
		in.retentions[operation] = orDefault(retention, in.retention)
	}
	return in, nil
}

// orDefault returns def for zero: a zero field of a config means its default.
func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// Retention returns how long done rows of the operation are kept; negative
// means for ever.
func (in *Inbox) Retention(operation string) time.Duration {
	if d, ok := in.retentions[operation]; ok {
		return d
	}
	return in.retention
}

// LockWait returns how long a claim waits for a live rival.
func (in *Inbox) LockWait() time.Duration { return in.lockWait }

// lockBound is a wait as PostgreSQL reads it. Zero would mean no bound, so it
// is never less than a millisecond.
func lockBound(wait time.Duration) string {
	return fmt.Sprintf("%dms", max(wait.Milliseconds(), 1))
}

// uuid returns the inbox id in PostgreSQL's text form, which every way of
// passing arguments can carry.
func (k Key) uuid() string { return uuid.Format(k.InboxID()) }
