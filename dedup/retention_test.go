package dedup_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// age moves the inbox and the horizon into the past, as if d had gone by.
func age(t *testing.T, db *testbed.DB, d time.Duration) {
	t.Helper()
	for _, q := range []string{
		`UPDATE oncemill.inbox SET at = at - $1::bigint * interval '1 microsecond'`,
		`UPDATE oncemill.horizon SET floor = floor - $1::bigint * interval '1 microsecond'`,
	} {
		_, err := db.Pool.Exec(t.Context(), q, d.Microseconds())
		require.NoError(t, err)
	}
}

func purge(t *testing.T, db *testbed.DB, in *dedup.Inbox, page int) dedup.PurgeStats {
	t.Helper()
	p, err := dedup.NewPurger(in, dedup.Pgx(db.Pool), dedup.PurgeConfig{Operations: []string{"charge"}, Page: page})
	require.NoError(t, err)
	stats, err := p.RunOnce(t.Context())
	require.NoError(t, err)
	return stats
}

func TestC67_AfterPurgeAnOldEventIsRefused(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{Retention: time.Hour})
	event := time.Now().Add(-2 * time.Minute)
	it := intentAt(t, "k1", "a", event)
	_, err := process(t.Context(), db, in, it)
	require.NoError(t, err)

	require.Zero(t, purge(t, db, in, 0).Deleted, "retention is not over")
	age(t, db, time.Hour+time.Minute)
	require.EqualValues(t, 1, purge(t, db, in, 0).Deleted)

	it.EventTime = event.Add(-time.Hour) // the clock moved; the event is an hour older
	claim, err := process(t.Context(), db, in, it)
	require.NoError(t, err)
	require.Equal(t, dedup.BeyondHorizon, claim.Verdict)
	var beyond *dedup.HorizonError
	require.ErrorAs(t, claim.Err(), &beyond)
	require.False(t, beyond.Ahead)
	require.True(t, dedup.IsPermanent(claim.Err()))
	require.Equal(t, 1, effects(t, db))
}

func TestC67_ALongerRetentionDoesNotReviveWhatWasPurged(t *testing.T) {
	db, short := newInbox(t, dedup.InboxConfig{Retention: time.Hour})
	long, err := dedup.NewInbox(dedup.InboxConfig{Retention: 30 * 24 * time.Hour})
	require.NoError(t, err)
	event := time.Now().Add(-2 * time.Hour)
	_, err = process(t.Context(), db, long, intentAt(t, "k1", "a", event))
	require.NoError(t, err)
	age(t, db, 2*time.Hour)
	require.EqualValues(t, 1, purge(t, db, short, 0).Deleted)

	claim, err := process(t.Context(), db, long, intentAt(t, "k1", "a", event))
	require.NoError(t, err)
	require.Equal(t, dedup.BeyondHorizon, claim.Verdict, "the row may have been purged")
	require.Equal(t, 1, effects(t, db))

	claim, err = process(t.Context(), db, long, intentAt(t, "k2", "a", time.Now().Add(-time.Minute)))
	require.NoError(t, err)
	require.Equal(t, dedup.Fresh, claim.Verdict, "younger than the floor")
}

func TestC67_AFloorRaisedAfterTheClaimIsFoundAtItsEnd(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{})
	it := intentAt(t, "k", "a", time.Now().Add(-2*time.Hour))
	undated := intent(t, "undated", "a")
	tx := begin(t, db)
	claim, err := in.Claim(t.Context(), dedup.Pgx(tx), it)
	require.NoError(t, err)
	require.Equal(t, dedup.Fresh, claim.Verdict)
	other, err := in.Claim(t.Context(), dedup.Pgx(tx), undated)
	require.NoError(t, err)

	short, err := dedup.NewInbox(dedup.InboxConfig{Retention: time.Hour})
	require.NoError(t, err)
	purge(t, db, short, 0)
	require.NoError(t, in.Finish(t.Context(), dedup.Pgx(tx), other, nil), "it carries no time")
	require.ErrorIs(t, in.Finish(t.Context(), dedup.Pgx(tx), claim, nil), dedup.ErrClaimLost)
}

func TestC67_HeldRowsAndOtherOperationsStay(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{Retention: time.Hour})
	held := intentAt(t, "held", "a", time.Now())
	tx := begin(t, db)
	claim, err := in.Claim(t.Context(), dedup.Pgx(tx), held)
	require.NoError(t, err)
	require.NoError(t, in.Hold(t.Context(), dedup.Pgx(tx), claim, dedup.StateDead))
	require.NoError(t, tx.Commit(t.Context()))
	other, err := dedup.NewKey("acme", "refund", "k")
	require.NoError(t, err)
	_, err = process(t.Context(), db, in, dedup.Intent{Key: other})
	require.NoError(t, err)

	age(t, db, 24*time.Hour)
	require.Zero(t, purge(t, db, in, 0).Deleted)
	held.EventTime = held.EventTime.Add(-24 * time.Hour)
	claim, err = process(t.Context(), db, in, held)
	require.NoError(t, err)
	require.Equal(t, dedup.Held, claim.Verdict, "held keys are exempt from the horizon")
}

func TestPurgeGoesThroughTimedAndOtherIDsInPages(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{Retention: time.Hour})
	const each = 25
	for i := range each {
		_, err := process(t.Context(), db, in, intent(t, fmt.Sprint("digest-", i), "a"))
		require.NoError(t, err)
		_, err = process(t.Context(), db, in, intent(t, uuid7(time.Now(), i), "a"))
		require.NoError(t, err)
	}
	age(t, db, 2*time.Hour)
	for i := range each {
		_, err := process(t.Context(), db, in, intent(t, fmt.Sprint("young-", i), "a"))
		require.NoError(t, err)
		_, err = process(t.Context(), db, in, intent(t, uuid7(time.Now(), each+i), "a"))
		require.NoError(t, err)
	}
	require.EqualValues(t, 2*each, purge(t, db, in, 3).Deleted)
	var left int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM oncemill.inbox`).Scan(&left))
	require.Equal(t, 2*each, left)
	require.Zero(t, purge(t, db, in, 3).Deleted)
}

// uuid7 returns a UUID of version 7 with time t.
func uuid7(t time.Time, n int) string {
	ms := t.UnixMilli()
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, n)
}

func TestEventTimesOutsideTheSpanAreRefused(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{Retention: time.Hour, Skew: time.Minute})
	for name, c := range map[string]struct {
		it    dedup.Intent
		ahead bool
	}{
		"too old":     {intentAt(t, "old", "a", time.Now().Add(-61*time.Minute)), false},
		"too old id":  {intent(t, uuid7(time.Now().Add(-61*time.Minute), 1), "a"), false},
		"ahead":       {intentAt(t, "ahead", "a", time.Now().Add(2*time.Minute)), true},
		"id is ahead": {intent(t, uuid7(time.Now().Add(2*time.Minute), 2), "a"), true},
	} {
		t.Run(name, func(t *testing.T) {
			claim, err := process(t.Context(), db, in, c.it)
			require.NoError(t, err)
			var beyond *dedup.HorizonError
			require.ErrorAs(t, claim.Err(), &beyond)
			require.Equal(t, c.ahead, beyond.Ahead)
		})
	}
	unlimited, err := dedup.NewInbox(dedup.InboxConfig{Retention: -1, Skew: -1})
	require.NoError(t, err)
	for i, at := range []time.Time{time.Now().Add(-1000 * time.Hour), time.Now().Add(1000 * time.Hour)} {
		claim, err := process(t.Context(), db, unlimited, intentAt(t, fmt.Sprint("any", i), "a", at))
		require.NoError(t, err)
		require.Equal(t, dedup.Fresh, claim.Verdict)
	}
}

func TestC69_TheDatabasesClockDecides(t *testing.T) {
	db, in := newInbox(t, dedup.InboxConfig{Retention: time.Hour})
	tx := begin(t, db)
	// now() is when the transaction began; a row stamped late must not be old.
	_, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.05)`)
	require.NoError(t, err)
	it := intent(t, "late", "a")
	_, err = in.Claim(t.Context(), dedup.Pgx(tx), it)
	require.NoError(t, err)
	var late bool
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT at > now() + interval '40 milliseconds' FROM oncemill.inbox`).Scan(&late))
	require.True(t, late)
	require.NoError(t, tx.Commit(t.Context()))
}

func TestBadInboxConfigNamesTheField(t *testing.T) {
	for field, cfg := range map[string]dedup.InboxConfig{
		"Schema":     {Schema: "pg_x"},
		"Retentions": {Retentions: map[string]time.Duration{"": time.Hour}},
	} {
		_, err := dedup.NewInbox(cfg)
		require.ErrorContains(t, err, "dedup.InboxConfig."+field)
	}
	in, err := dedup.NewInbox(dedup.InboxConfig{})
	require.NoError(t, err)
	for field, cfg := range map[string]dedup.PurgeConfig{
		"Operations": {},
		"Page":       {Operations: []string{"a"}, Page: -1},
		"Every":      {Operations: []string{"a"}, Every: -1},
	} {
		_, err := dedup.NewPurger(in, nil, cfg)
		require.ErrorContains(t, err, "dedup.PurgeConfig."+field)
	}
}
