package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func rowOf(id, key int64) *row {
	r := &row{id: id}
	if key != 0 {
		r.keyHash = &key
	}
	return r
}

func taken(w *window) (ids []int64) {
	for r := w.take(); r != nil; r = w.take() {
		ids = append(ids, r.id)
	}
	return ids
}

func TestWindowSendsOneRowOfAKeyAtATime(t *testing.T) {
	w := newWindow()
	a1, a2, b1 := rowOf(1, 7), rowOf(2, 7), rowOf(3, 8)
	for _, r := range []*row{a1, a2, b1, rowOf(4, 0), rowOf(5, 0)} {
		w.add(r)
	}
	require.Equal(t, []int64{1, 3, 4, 5}, taken(w))
	require.True(t, w.answered(a1))
	require.False(t, w.answered(a1), "a second answer counts for nothing")
	w.confirm(a1)
	require.Equal(t, []int64{2}, taken(w))
	require.Equal(t, 4, w.sent)
}

func TestWindowDropsWhatIsBehindAFailedRow(t *testing.T) {
	w := newWindow()
	a1, a2 := rowOf(1, 7), rowOf(2, 7)
	w.add(a1)
	w.add(a2)
	require.Equal(t, []int64{1}, taken(w))
	w.block(a1)
	require.True(t, w.has(1), "its failure is not recorded yet")
	require.False(t, w.has(2))
	blocker, blocked := w.blockerOf(a2)
	require.True(t, blocked)
	require.EqualValues(t, 1, blocker)

	w.unblock()
	_, blocked = w.blockerOf(a2)
	require.True(t, blocked, "a rescan must not send a2 while a1 is left out")
	w.forget(a1)
	w.unblock()
	_, blocked = w.blockerOf(a2)
	require.False(t, blocked)
}

// A read that began before a mark may still show the marked row.
func TestRowsStayKnownUntilReadsThatMayShowThemAreIn(t *testing.T) {
	l := &lane{win: newWindow(), reading: true}
	r := rowOf(1, 0)
	l.win.add(r)
	l.win.take()
	l.marked(markResult{done: marks{sent: []*row{r}}})
	l.accept(readResult{rows: []*row{rowOf(1, 0)}})
	require.Empty(t, l.win.ready, "not sent once more")
	require.Empty(t, l.win.rows)
}

func TestDueRowsAskForARescan(t *testing.T) {
	l := &lane{win: newWindow()}
	due, before := 0.5, time.Now()
	l.accept(readResult{rows: []*row{{id: 1, dueIn: &due}, {id: 2, parked: true}}})
	require.Empty(t, l.win.rows)
	require.False(t, l.rescanAt.IsZero())
	require.False(t, l.rescanAt.Before(before.Add(500*time.Millisecond)))
}
