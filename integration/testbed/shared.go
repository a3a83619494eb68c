package testbed

import (
	"context"
	"errors"
	"sync"
)

// lazy is something that is started by its first use.
type lazy[T interface{ Close() error }] struct {
	mu    sync.Mutex
	value *T
}

func (l *lazy[T]) get(start func() (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.value == nil {
		v, err := start()
		if err != nil {
			var none T
			return none, err
		}
		l.value = &v
	}
	return *l.value, nil
}

func (l *lazy[T]) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.value == nil {
		return nil
	}
	err := (*l.value).Close()
	l.value = nil
	return err
}

var (
	sharedPostgres lazy[*Postgres]
	sharedNATS     lazy[*NATS]
)

// SharedPostgres is the one server of this process that tests share, each with
// a database of its own. Its first use starts it, Close ends it. Who stops a
// server starts one for himself.
func SharedPostgres(ctx context.Context) (*Postgres, error) {
	return sharedPostgres.get(func() (*Postgres, error) { return StartPostgres(ctx, PostgresConfig{}) })
}

// SharedNATS is the one server of this process that tests share, each with a
// stream of its own. It runs inside the process.
func SharedNATS(ctx context.Context) (*NATS, error) {
	return sharedNATS.get(func() (*NATS, error) { return StartNATS(ctx, NATSConfig{}) })
}

// Close ends the shared servers and the guard, which clears away whatever else
// the bed started and nobody closed. [Main] calls it; a main function defers it.
func Close() error {
	return errors.Join(sharedPostgres.close(), sharedNATS.close(), theGuard.close())
}
