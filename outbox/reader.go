package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/internal/pg"
)

// row is a queue row in a lane's memory, with its message if it can be sent.
type row struct {
	Message
	id       int64
	keyHash  *int64
	round    int32
	attempts int
	// dueIn is not nil for a row whose next attempt lies ahead.
	dueIn        *float64
	parked, skip bool
	missing      bool
	sending      bool
	// doubts counts sendings in a row whose outcome is not known.
	doubts int
}

func (r *row) size() int { return len(r.Header) + len(r.Payload) }

func (r *row) waits() bool { return r.parked || r.dueIn != nil }

// reader walks through the rows of a lane in generations; see the package
// documentation. It is used by one goroutine at a time.
type reader struct {
	db   pg.DB
	sql  *statements
	lane int16
	// prev and cur are snapshots: a generation is what cur shows and prev did
	// not. prev "" shows nothing; cur "" means that no generation is open.
	prev, cur string
	// boot names the time since the database's last crash. Snapshots of
	// another one say nothing: transaction ids that were not on disk are given
	// out again.
	boot string
	// after is the last id read of the open generation.
	after int64
	// spread is how many ids a page looks at for each row it may have. It
	// grows while rows lie far apart.
	spread int64
}

// A page looks at leastSpread ids for each row and lane at first: ids are dealt
// out to the lanes by chance. At mostSpread a page of one row looks at up to 16
// million.
const (
	leastSpread = 2
	mostSpread  = 1 << 18
)

// readRequest bounds a page, and keeps rows of blocked keys out of it.
type readRequest struct {
	rows, bytes  int
	blockedKeys  []int64
	blockingRows []int64
}

// errNewBoot says that the database crashed since the last read, or for all
// that is known here: the rows must be read anew.
var errNewBoot = errors.New("outbox: the database recovered from a crash")

// open tells whether a generation is read in part.
func (rd *reader) open() bool { return rd.cur != "" }

// restart makes the next page the first one of a generation of all rows.
func (rd *reader) restart() { rd.prev, rd.cur, rd.after = "", "", 0 }

// page is what a read returns: rows, and what is true of all of them.
type page struct {
	rows      []*row
	cut       bool // by the byte budget
	cur, boot string
	// beyond is where the part that was looked at ends, if the lane goes on.
	beyond *int64
}

// next returns the next page, and whether the generation has more.
func (rd *reader) next(ctx context.Context, req readRequest) (rows []*row, more bool, err error) {
	query := rd.sql.readByID
	if rd.cur == "" && rd.prev != "" {
		query = rd.sql.readByXID
	}
	rd.spread = max(rd.spread, leastSpread)
	args := []any{rd.lane, rd.prev, rd.cur, rd.after, req.rows, req.bytes, req.blockedKeys, req.blockingRows, rd.spread * int64(req.rows)}
	var p page
	if err := pg.Each(ctx, rd.db, query, args, p.scan); err != nil {
		return nil, false, fmt.Errorf("outbox: read lane %d: %w", rd.lane, err)
	}
	if p.boot == "" || p.boot != rd.boot {
		known := rd.boot != ""
		rd.boot = p.boot
		if _, err := rd.db.Exec(ctx, rd.sql.boot); err != nil {
			return nil, false, fmt.Errorf("outbox: read lane %d: %w", rd.lane, err)
		}
		if known || p.boot == "" {
			return nil, false, errNewBoot
		}
	}
	return p.rows, rd.advance(&p, req), nil
}

// advance moves on behind the page, and tells whether the generation has more.
func (rd *reader) advance(p *page, req readRequest) (more bool) {
	switch {
	case p.cut || len(p.rows) == req.rows:
		rd.cur, rd.after, rd.spread = p.cur, p.rows[len(p.rows)-1].id, leastSpread
		return true
	case p.beyond != nil:
		rd.cur, rd.after, rd.spread = p.cur, *p.beyond, min(rd.spread*8, mostSpread)
		return true
	}
	rd.prev, rd.cur, rd.after, rd.spread = p.cur, "", 0, leastSpread
	return false
}

// scan takes one line of a read: the first, with id 0, has no row.
func (p *page) scan(rs pg.Rows) error {
	var (
		r         row
		cur, boot string
		beyond    *int64
		past      bool
	)
	err := rs.Scan(&cur, &boot, &beyond, &r.id, &r.keyHash, &r.round, &r.attempts, &r.dueIn, &r.parked, &r.skip, &past,
		&r.BrokerID, &r.CreatedAt, &r.Topic, &r.LogicalID, &r.OrderingKey, &r.Header, &r.Payload)
	if err != nil {
		return err
	}
	if r.id == 0 {
		p.cur, p.boot, p.beyond = cur, boot, beyond
		return nil
	}
	if p.cut = p.cut || past; p.cut {
		return nil
	}
	r.missing = r.Topic == "" && !r.skip && !r.waits()
	r.BrokerID = brokerIDOf(r.BrokerID, r.round)
	p.rows = append(p.rows, &r)
	return nil
}
