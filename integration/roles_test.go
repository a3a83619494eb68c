package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/jetstream"
	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

func init() {
	testbed.Role("service", runService)
	testbed.Role("relay", runRelay)
}

// inFlight is the number of deliveries that a child works on at a time.
const inFlight = 4

// childSpec is what a child process is told.
type childSpec struct {
	wiring
	InFlight int // deliveries at a time
	// Crash is where the child kills itself, when as many deliveries as it has
	// in flight have got there: then nothing of it is elsewhere. See hooks.
	Crash string
	// Provider is a URL that the handler calls, if set.
	Provider string
	// Group lets deliveries share a transaction.
	Group bool
}

// Places where a service kills itself.
const (
	crashClaimed   = "claimed"   // in the handler, before it did anything
	crashEffect    = "effect"    // in the handler, after its last statement
	crashCommitted = "committed" // after the handler's transaction, before the ack
	crashAcked     = "acked"     // two rounds later: the server has the acks of the first two
)

// child starts a process of this binary and waits until it is at work.
func (s *stack) child(role string, spec childSpec) *testbed.Worker {
	s.Helper()
	spec.InFlight = max(spec.InFlight, inFlight)
	raw, err := json.Marshal(spec)
	require.NoError(s, err)
	w := testbed.NewWorker(s, role, testbed.WorkerConfig{Args: []string{string(raw)}})
	ctx, cancel := context.WithTimeout(s.Context(), bound)
	defer cancel()
	require.NoError(s, w.WaitOutput(ctx, "ready\n"))
	return w
}

// report is what a service that was asked to end says of itself.
type report struct {
	Consumer   consumer.Stats
	Subscriber jetstream.Stats
}

// finish asks a service to end, as an orchestrator does, and returns its report.
func finish(t testing.TB, w *testbed.Worker) report {
	t.Helper()
	require.NoError(t, w.Signal(syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.NoError(t, w.Wait(ctx), w.Stderr())
	_, text, _ := strings.Cut(w.Stdout(), "report ")
	var r report
	require.NoError(t, json.Unmarshal([]byte(text), &r), w.Stdout())
	return r
}

// awaitDeath returns when the worker has killed itself.
func awaitDeath(t testing.TB, w *testbed.Worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	require.Error(t, w.Wait(ctx), "it ended by itself")
	require.NoError(t, ctx.Err())
}

// runService is the main function of a service process.
func runService() {
	spec := takeSpec()
	svc, err := openService(context.Background(), spec.wiring, options{
		consumer:  func(cfg *consumer.Config) { cfg.Concurrency, cfg.Group = spec.InFlight, spec.Group },
		jetstream: func(cfg *jetstream.Config) { cfg.AckWait, cfg.InFlight = time.Second, spec.InFlight },
		relay:     func(cfg *outbox.RelayConfig) { cfg.Lease = time.Second },
	})
	must(err)
	k := hooks{spec: spec, svc: svc}
	svc.router.AddMiddleware(k.around)
	svc.handle("charge", "new", k.handler)
	must(svc.start(context.Background()))
	awaitEnd()
	must(svc.close())
	raw, err := json.Marshal(report{svc.consumer.Stats(), svc.subs["charge"].Stats()})
	must(err)
	fmt.Printf("report %s\n", raw)
}

// runRelay is the main function of a relay process.
func runRelay() {
	spec := takeSpec()
	svc, err := openService(context.Background(), spec.wiring, options{
		relay: func(cfg *outbox.RelayConfig) {
			cfg.Lease, cfg.Batch = time.Second, 20
			cfg.Connections = 8 // each lane can be caught at a statement of its own
		},
	})
	must(err)
	svc.runRelay()
	awaitEnd()
	must(svc.close())
}

func takeSpec() (spec childSpec) {
	must(json.Unmarshal([]byte(testbed.Args()[0]), &spec))
	return spec
}

// awaitEnd says that the child is at work and returns when it is asked to end.
func awaitEnd() {
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready")
	<-ended.Done()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// hooks are the places at which a service may kill itself.
type hooks struct {
	spec     childSpec
	svc      *service
	arrivals atomic.Int64
}

// at is called where the crash may be. The deliveries that get there wait for
// each other, and the last one kills the process.
func (k *hooks) at(place string) {
	if place != k.spec.Crash {
		return
	}
	n := k.arrivals.Add(1)
	if place == crashAcked {
		if n <= 2*inFlight {
			return
		}
		n -= 2 * inFlight
	}
	if n == inFlight {
		must(k.svc.conn.Flush())
		must(syscall.Kill(syscall.Getpid(), syscall.SIGKILL))
	}
	select {}
}

// around is a middleware outside of the Consumer's handler.
func (k *hooks) around(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msgs, err := h(msg)
		k.at(crashCommitted)
		return msgs, err
	}
}

func (k *hooks) handler(ctx context.Context, tx consumer.Tx, msg *message.Message) ([]*message.Message, error) {
	k.at(crashClaimed)
	k.at(crashAcked)
	commands, err := k.svc.effect(ctx, tx, msg)
	if err == nil && k.spec.Provider != "" {
		err = callProvider(ctx, k.spec.Provider, msg.Payload)
	}
	k.at(crashEffect)
	return commands, err
}

func callProvider(ctx context.Context, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("the provider answered %d", res.StatusCode))
	}
	return nil
}
