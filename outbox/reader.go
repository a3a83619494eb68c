package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

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
}

// readRequest bounds a page, and keeps rows of blocked keys out of it.
type readRequest struct {
	rows, bytes  int
	blockedKeys  []int64
	blockingRows []int64
}

// errNewBoot says that the database crashed since the last read, or for all
// that is known here: the rows must be read anew.
var errNewBoot = errors.New("outbox: the database recovered from a crash")

// restart makes the next page the first one of a generation of all rows.
func (rd *reader) restart() { rd.prev, rd.cur, rd.after = "", "", 0 }

// next returns the next page, and whether the generation has more.
func (rd *reader) next(ctx context.Context, req readRequest) (rows []*row, more bool, err error) {
	query := rd.sql.readByID
	if rd.cur == "" && rd.prev != "" {
		query = rd.sql.readByXID
	}
	args := []any{rd.lane, rd.prev, rd.cur, rd.after, req.rows, req.bytes, req.blockedKeys, req.blockingRows}
	var cur, boot string
	cut := false
	err = pg.Each(ctx, rd.db, query, args, func(rs pg.Rows) error {
		r, beyond, err := scanRow(rs, &cur, &boot)
		if err != nil || r == nil {
			return err
		}
		if cut = cut || beyond; !cut {
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("outbox: read lane %d: %w", rd.lane, err)
	}
	if boot == "" || boot != rd.boot {
		known := rd.boot != ""
		rd.boot = boot
		if _, err := rd.db.Exec(ctx, rd.sql.boot); err != nil {
			return nil, false, fmt.Errorf("outbox: read lane %d: %w", rd.lane, err)
		}
		if known || boot == "" {
			return nil, false, errNewBoot
		}
	}
	if more = cut || len(rows) == req.rows; more {
		rd.cur, rd.after = cur, rows[len(rows)-1].id
	} else {
		rd.prev, rd.cur, rd.after = cur, "", 0
	}
	return rows, more, nil
}

// scanRow returns nil for the line that has the snapshot only.
func scanRow(rs pg.Rows, cur, boot *string) (r *row, beyond bool, err error) {
	var (
		id, keyHash                          *int64
		round                                *int32
		attempts                             *int16
		dueIn                                *float64
		parked, skip, past                   *bool
		brokerID, topic, logicalID, ordering *string
		createdAt                            *time.Time
		header, payload                      []byte
	)
	err = rs.Scan(cur, boot, &id, &keyHash, &round, &attempts, &dueIn, &parked, &skip, &past,
		&brokerID, &createdAt, &topic, &logicalID, &ordering, &header, &payload)
	if err != nil || id == nil {
		return nil, false, err
	}
	r = &row{id: *id, keyHash: keyHash, round: *round, attempts: int(*attempts), dueIn: dueIn, parked: *parked, skip: *skip}
	if topic == nil {
		r.missing = !r.skip && !r.waits()
		return r, *past, nil
	}
	r.Message = Message{BrokerID: brokerIDOf(*brokerID, *round), LogicalID: *logicalID, Topic: *topic, CreatedAt: *createdAt, Header: header, Payload: payload}
	if ordering != nil {
		r.OrderingKey = *ordering
	}
	return r, *past, nil
}
