package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/outbox"
)

func TestANilMessageIsRefused(t *testing.T) {
	db := newDB(t)
	o := newOutbox(t, outbox.Config{})
	var refused *outbox.RefusedError
	require.ErrorAs(t, o.Write(t.Context(), db.Pool, "a", newMessage("0"), nil), &refused)
	require.Equal(t, "message", refused.Field)
	require.ErrorContains(t, refused, "number 1 of 2, counted from 0, is nil")
	_, _, err := o.InsertQuery("a", nil)
	require.ErrorContains(t, err, "number 0 of 1")
	_, err = o.Prepare("a", nil, outbox.Stamp{})
	require.ErrorAs(t, err, &refused)
	require.Zero(t, queued(t, db))
}

// A writer whose clock is behind by more than the retention must not make dead
// letters: what Write mints carries no time, the database's is in HeaderTime.
func TestAMintedLogicalIDCarriesNoTime(t *testing.T) {
	db := newDB(t)
	write(t, db, newOutbox(t, outbox.Config{}), "a", newMessage("x"))
	key, err := dedup.NewKey("s", "o", scalar[string](t, db, `SELECT logical_id FROM oncemill.outbox`))
	require.NoError(t, err)
	_, ok := key.Time()
	require.False(t, ok)
}
