package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/pg"
	"github.com/oncemill/oncemill/internal/schema"
)

// After a crash PostgreSQL gives transaction ids out again that were not on
// disk: what a snapshot of before says of them is wrong. An empty outbox_boot
// is what recovery leaves.
func TestReaderStartsOverAfterACrashOfTheDatabase(t *testing.T) {
	db := migrated(t)
	s := expand(schema.Name{})
	queue := func(id int) {
		_, err := db.Pool.Exec(t.Context(), `INSERT INTO oncemill.outbox_queue (lane, id, xid) VALUES (1, $1, pg_current_xact_id())`, id)
		require.NoError(t, err)
	}
	read := func(rd *reader) ([]int64, error) {
		rows, more, err := rd.next(t.Context(), readRequest{rows: 10, bytes: 1000})
		require.False(t, more)
		var ids []int64
		for _, r := range rows {
			ids = append(ids, r.id)
		}
		return ids, err
	}
	queue(1)
	first := &reader{db: pg.FromPgx(db.Pool), sql: &s, lane: 1}
	_, err := read(first)
	require.ErrorIs(t, err, errNewBoot, "it had no name yet: what was read says nothing")
	first.restart()
	ids, err := read(first)
	require.NoError(t, err)
	require.Equal(t, []int64{1}, ids)

	second := &reader{db: pg.FromPgx(db.Pool), sql: &s, lane: 1}
	ids, err = read(second)
	require.NoError(t, err, "the name is known")
	require.Equal(t, []int64{1}, ids)

	ids, err = read(second)
	require.NoError(t, err)
	require.Empty(t, ids, "nothing is new")
	_, err = db.Pool.Exec(t.Context(), `DELETE FROM oncemill.outbox_boot`)
	require.NoError(t, err)
	queue(2)
	for _, rd := range []*reader{first, second} { // the second finds a name that the first gave
		_, err = read(rd)
		require.ErrorIs(t, err, errNewBoot)
		rd.restart()
		ids, err = read(rd)
		require.NoError(t, err)
		require.Equal(t, []int64{1, 2}, ids, "all is read anew")
	}
}

func TestLaneStartsOverWhenItsReaderMust(t *testing.T) {
	l := &lane{
		relay: &Relay{}, win: newWindow(), reading: true, // without room, so that it does not read here
		reader: reader{prev: "1:1:", cur: "2:2:", after: 3, boot: "known"},
	}
	l.accept(readResult{err: errNewBoot})
	l.startRead(t.Context(), time.Now())
	require.Equal(t, reader{boot: "known"}, l.reader)
	require.True(t, l.wantRead)
}
