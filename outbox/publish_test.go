package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
)

func TestAckError(t *testing.T) {
	for data, plain := range map[string]bool{
		`{"stream":"S","seq":1}`:                               true,
		`{"stream":"S","seq":18446744073709551615}`:            true,
		`{"stream":"S","seq":12,"duplicate": true}`:            true,
		`{"stream":"S","domain":"d","seq":12}`:                 false,
		`{"type":"x","stream":"S","seq":12,"duplicate":false}`: false,
		` { "stream" : "S" , "seq" : 3 } `:                     false,
	} {
		require.NoError(t, ackError(&nats.Msg{Data: []byte(data)}), data)
		require.Equal(t, plain, isPlainAck([]byte(data)), data)
	}
	for _, data := range []string{
		``, `ok`, `{}`, `{"stream":"S"}`, `{"stream":"","seq":1}`, `{"stream":"S","seq":0}`, `{"stream":"S","seq":}`, `{"stream":"S","seq":1`,
		`{"stream":"S","seq":-1}`, `{"stream":"S","seq":1.5}`, `{"stream":"S","seq":1}}`, `{"stream":"S","seq":"1"}`, `[]`, `null`,
	} {
		require.ErrorIs(t, ackError(&nats.Msg{Data: []byte(data)}), errNotAnAck, data)
	}
	require.ErrorIs(t, ackError(&nats.Msg{Header: nats.Header{"Status": {"503"}}}), errNoStream)
	var api *jetstream.APIError
	require.ErrorAs(t, ackError(&nats.Msg{Data: []byte(`{"error":{"code":400,"err_code":10054,"description":"d"},"stream":"S","seq":0}`)}), &api)
	require.Equal(t, codeMessageTooLarge, api.ErrorCode)
}

// answered publishes n messages and collects what is said of each.
type answered struct {
	got  chan int
	errs []error
}

func publishAll(t *testing.T, p *publisher, subject string, n int) *answered {
	t.Helper()
	a := &answered{make(chan int, 2*n), make([]error, n)}
	for i := range n {
		p.publish(&nats.Msg{Subject: subject, Data: fmt.Append(nil, i)}, func(err error) {
			a.errs[i] = err
			a.got <- i
		})
	}
	return a
}

func (a *answered) next(t *testing.T) (i int, err error) {
	t.Helper()
	select {
	case i = <-a.got:
		return i, a.errs[i]
	case <-time.After(time.Minute):
		require.FailNow(t, "no answer")
		return 0, nil
	}
}

func TestPublisherMatchesAnswersInAnyOrder(t *testing.T) {
	nc := testbed.NewStream(t, nil).Conn
	var held []*nats.Msg
	_, err := nc.Subscribe("backwards", func(m *nats.Msg) {
		if held = append(held, m); len(held) < 10 {
			return
		}
		for i := range 10 {
			for range 2 { // the second answer is to nobody
				_ = held[9-i].Respond([]byte(`{"stream":"S","seq":1}`))
			}
		}
	})
	require.NoError(t, err)
	p := &publisher{nc: nc, timeout: time.Hour}
	a := publishAll(t, p, "backwards", 10)
	for want := 9; want >= 0; want-- {
		i, err := a.next(t)
		require.NoError(t, err)
		require.Equal(t, want, i)
	}
	require.NoError(t, nc.Flush())
	require.Empty(t, a.got)
	require.Empty(t, p.waiting)
	require.EqualValues(t, 10, p.first)
}

func TestPublisherEndsTheWaitOfEachInTurn(t *testing.T) {
	nc := testbed.NewStream(t, nil).Conn
	_, err := nc.Subscribe("odd", func(m *nats.Msg) {
		if m.Data[0]%2 == 1 {
			_ = m.Respond([]byte(`{"stream":"S","seq":1}`))
		}
	})
	require.NoError(t, err)
	p := &publisher{nc: nc, timeout: 200 * time.Millisecond}
	for range 2 { // the timer starts again
		a := publishAll(t, p, "odd", 10)
		for range 10 {
			i, err := a.next(t)
			if i%2 == 1 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, errNoAnswer)
			}
		}
		require.Empty(t, a.got)
	}
	require.Empty(t, p.waiting)
}

func TestPublisherFailsAllWhenTheConnectionIsLost(t *testing.T) {
	server := testbed.NewNATSProcess(t, testbed.NATSConfig{})
	nc, err := testbed.ConnectNATS(server.URL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe("silent", func(*nats.Msg) {})
	require.NoError(t, err)
	p := &publisher{nc: nc, timeout: time.Hour}
	a := publishAll(t, p, "silent", 10)
	require.NoError(t, nc.Flush())
	require.NoError(t, server.Kill(t.Context()))
	for range 10 {
		_, err := a.next(t)
		require.ErrorIs(t, err, nats.ErrDisconnected)
	}
	nc.Close()
	a = publishAll(t, p, "silent", 1)
	_, err = a.next(t)
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}
