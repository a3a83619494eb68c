package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// machine is what the figures depend on.
type machine struct {
	Cores                  int
	CPU                    string
	Postgres, NATS, Golang string
	// Peers are the modules that oncemill is compared with, with versions.
	Peers []string
}

func (m machine) String() string {
	text := fmt.Sprintf("machine: %d cores, %s, PostgreSQL %s, nats-server %s, %s", m.Cores, m.CPU, m.Postgres, m.NATS, m.Golang)
	return strings.Join(append([]string{text}, m.Peers...), ", ")
}

// peerModules are those whose versions matter to the figures.
var peerModules = []string{
	"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v3",
	"github.com/ThreeDotsLabs/watermill-nats/v2", "github.com/riverqueue/river",
	"github.com/dbos-inc/dbos-transact-golang", "github.com/jackc/pgx/v5", "github.com/nats-io/nats.go",
}

// peerVersions are what this program was built with.
func peerVersions() (list []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, dep := range info.Deps {
		if slices.Contains(peerModules, dep.Path) {
			list = append(list, strings.TrimPrefix(dep.Path, "github.com/")+" "+dep.Version)
		}
	}
	return list
}

// machine asks the servers for their versions.
func (e *Env) machine(ctx context.Context) (machine, error) {
	m := machine{Cores: runtime.NumCPU(), CPU: cpuModel(), Golang: runtime.Version(), Peers: peerVersions()}
	conn, err := pgx.Connect(ctx, e.Postgres.URL())
	if err != nil {
		return m, fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `SHOW server_version`).Scan(&m.Postgres); err != nil {
		return m, fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	nc, err := e.NATS.Connect()
	if err != nil {
		return m, err
	}
	defer nc.Close()
	m.NATS = nc.ConnectedServerVersion()
	return m, nil
}

// cpuModel is the processor's name where Linux tells it, else the architecture.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
