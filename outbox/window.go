package outbox

// window is what a lane has in memory: rows that wait, rows that were sent,
// and rows whose mark is not yet in the database. At most one row of an
// ordering key is ready or sent at a time; those behind it wait in the order
// in which they were read.
type window struct {
	rows  map[int64]*row
	bytes int
	sent  int

	ready  []*row
	queues map[int64][]*row // by key hash; the first row is the ready or sent one
	// blocked has the keys whose row, named here, failed: rows of these keys
	// are dropped, and read again by a rescan.
	blocked map[int64]int64
}

func newWindow() *window {
	return &window{rows: make(map[int64]*row), queues: make(map[int64][]*row), blocked: make(map[int64]int64)}
}

func (w *window) has(id int64) bool { return w.rows[id] != nil }

// hold keeps r in memory without sending it.
func (w *window) hold(r *row) {
	w.rows[r.id] = r
	w.bytes += r.size()
}

// add queues r for sending.
func (w *window) add(r *row) {
	w.hold(r)
	if r.keyHash == nil {
		w.ready = append(w.ready, r)
		return
	}
	queue := append(w.queues[*r.keyHash], r)
	w.queues[*r.keyHash] = queue
	if len(queue) == 1 {
		w.ready = append(w.ready, r)
	}
}

// take returns the next row to send, nil if none is ready.
func (w *window) take() *row {
	if len(w.ready) == 0 {
		return nil
	}
	r := w.ready[0]
	w.ready[0] = nil
	w.ready = w.ready[1:]
	w.sent++
	r.sending = true
	return r
}

// answered ends a sending. It returns false for an answer to none: done was
// called twice.
func (w *window) answered(r *row) bool {
	if !r.sending {
		return false
	}
	r.sending = false
	w.sent--
	return true
}

// again makes a row, whose sending is in doubt, ready once more.
func (w *window) again(r *row) { w.ready = append(w.ready, r) }

// confirm makes the next row of the key ready.
func (w *window) confirm(r *row) {
	if r.keyHash == nil {
		return
	}
	queue := w.queues[*r.keyHash][1:]
	if len(queue) == 0 {
		delete(w.queues, *r.keyHash)
		return
	}
	w.queues[*r.keyHash] = queue
	w.ready = append(w.ready, queue[0])
}

// block keeps the rows behind r from being sent: it drops those in memory.
func (w *window) block(r *row) {
	if r.keyHash == nil {
		return
	}
	for _, behind := range w.queues[*r.keyHash] {
		if behind != r {
			w.forget(behind)
		}
	}
	delete(w.queues, *r.keyHash)
	w.blocked[*r.keyHash] = r.id
}

// blockBehind is block for a row that is not in memory: rows of its key that
// are, were read before it and go on.
func (w *window) blockBehind(r *row) {
	if r.keyHash != nil {
		w.blocked[*r.keyHash] = r.id
	}
}

// blockerOf returns the row that blocks r's key.
func (w *window) blockerOf(r *row) (id int64, blocked bool) {
	if r.keyHash == nil {
		return 0, false
	}
	id, blocked = w.blocked[*r.keyHash]
	return id, blocked
}

// unblock forgets the blocked keys, before all rows are read again. A key
// stays whose failed row is still here: its failure is not yet recorded.
func (w *window) unblock() {
	for key, id := range w.blocked {
		if !w.has(id) {
			delete(w.blocked, key)
		}
	}
}

// forget drops a row from memory.
func (w *window) forget(r *row) {
	if w.has(r.id) {
		delete(w.rows, r.id)
		w.bytes -= r.size()
	}
}

// maxBlockedFilter bounds the arrays that a read is sent.
const maxBlockedFilter = 1000

// filter returns keys whose rows a read should leave out, and their blockers.
func (w *window) filter() (keys, ids []int64) {
	for key, id := range w.blocked {
		if len(keys) == maxBlockedFilter {
			break
		}
		keys, ids = append(keys, key), append(ids, id)
	}
	return keys, ids
}
