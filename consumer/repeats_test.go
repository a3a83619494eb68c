package consumer_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedup"
	"github.com/oncemill/oncemill/integration/testbed"
)

// manyRepeats are as many duplicates in a row as make a run.
const manyRepeats = 8

func TestARunOfDuplicatesTakesOneRoundTripEach(t *testing.T) {
	b := newBench(t)
	proxy := testbed.NewPostgresProxy(t, b.URL)
	pool, err := testbed.NewPool(t.Context(), proxy.URL(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c := b.consumer(pool, nil)
	h := c.Handler("charge", charge)
	trips := func(key string) int {
		proxy.Reset()
		require.True(t, deliver(t, h, event(key, "a")).acked)
		return proxy.Counts().RoundTrips()
	}
	run := func(key string) {
		for range manyRepeats {
			trips(key)
		}
	}
	trips("a")
	run("a")
	trips("a") // the statement gets prepared
	require.Equal(t, 1, trips("a"))
	require.Equal(t, 1, trips("a"))
	require.Equal(t, 4, trips("b"), "a look in vain, the claim, the handler's statement, the finish")
	require.Equal(t, 3, trips("c"), "nothing is left of the run")
	for range manyRepeats - 1 {
		require.Equal(t, 2, trips("c"))
	}
	require.Equal(t, 3, trips("d"), "too few for a run")
	require.EqualValues(t, 4, c.Stats().Done)
	require.Equal(t, 4, b.count(`SELECT count(*) FROM public.effects`))
}

// What a claim would say, the look says, on either driver.
func TestALookGivesTheVerdictOfAClaim(t *testing.T) {
	for _, driver := range []string{"pgx", "database/sql"} {
		t.Run(driver, func(t *testing.T) {
			b := newBench(t)
			c := b.consumer(b.Pool, nil)
			if driver != "pgx" {
				c = b.sqlConsumer(nil)
			}
			runs := 0
			h := c.Middleware("charge")(func(msg *message.Message) ([]*message.Message, error) {
				runs++
				if string(msg.Payload) == "bad" {
					return nil, dedup.Permanent(errors.New("no such card"))
				}
				return nil, nil
			})
			require.True(t, deliver(t, h, event("k", "a")).acked)
			require.True(t, deliver(t, h, event("dead", "bad")).acked)
			for range manyRepeats + 3 {
				require.True(t, deliver(t, h, event("k", "a")).acked)
			}
			require.True(t, deliver(t, h, event("dead", "bad")).acked)
			require.True(t, deliver(t, h, event("k", "another")).acked)
			require.Equal(t, consumer.Stats{Done: 1, Dead: 2, Duplicates: manyRepeats + 3, Held: 1}, c.Stats())
			require.Equal(t, 2, runs)
			held := b.held()
			require.Len(t, held, 2)
			require.Equal(t, "conflict", held[1].Reason)
			require.Equal(t, "another", string(held[1].Payload))
		})
	}
}

// In the midst of a run nobody fresh is taken for a duplicate, however many
// copies of it race.
func TestFreshOnesInARunRunOnce(t *testing.T) {
	b := newBench(t)
	c := b.consumer(b.Pool, nil)
	h := c.Handler("charge", charge)
	require.True(t, deliver(t, h, event("old", "a")).acked)
	for range 20 {
		require.True(t, deliver(t, h, event("old", "a")).acked)
	}
	const fresh = 20
	done := make(chan bool)
	for i := range fresh * 3 {
		go func() { done <- deliver(t, h, event(strconv.Itoa(i%fresh), "a")).acked }()
		go func() { done <- deliver(t, h, event("old", "a")).acked }()
	}
	for range fresh * 3 * 2 {
		require.True(t, <-done)
	}
	require.Equal(t, fresh+1, b.count(`SELECT count(*) FROM public.effects`))
	require.EqualValues(t, fresh+1, c.Stats().Done)
}
