package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// newCluster finds the programs and runs initdb.
func newCluster(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	cred, err := serverUser()
	if err != nil {
		return nil, err
	}
	dir, err := makeDir(cred)
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, bin: bin, dir: dir, cred: cred}
	if err := p.initdb(ctx); err != nil {
		return nil, errors.Join(err, removeDir(dir))
	}
	if err := p.configure(); err != nil {
		return nil, errors.Join(fmt.Errorf("testbed: writing postgresql.conf: %w", err), removeDir(dir))
	}
	return p, nil
}

// initdb makes the cluster's files, with C.UTF-8 where the system has it.
func (p *Postgres) initdb(ctx context.Context) error {
	var out string
	var err error
	for _, locale := range []string{"C.UTF-8", "C"} {
		if out, err = p.runInitdb(ctx, locale); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("testbed: initdb: %w: %s", err, out)
	}
	return nil
}

func (p *Postgres) runInitdb(ctx context.Context, locale string) (string, error) {
	var out strings.Builder
	cmd := exec.Command(filepath.Join(p.bin, "initdb"),
		"-D", filepath.Join(p.dir, dataDir), "-U", superuser,
		"--auth=trust", "--encoding=UTF8", "--locale="+locale, "--no-sync", "--no-instructions")
	cmd.Stdout, cmd.Stderr = &out, &out
	p.asServer(cmd)
	run, err := startChild(cmd, "kill")
	if err != nil {
		return "", err
	}
	if err := run.wait(ctx); err != nil {
		killGroup(run.pid())
		<-run.done
		return "", err
	}
	return strings.TrimSpace(out.String()), run.err
}

// asServer lets a program of the server run as its user, in its directory,
// and without the PG variables of whoever runs the tests.
func (p *Postgres) asServer(cmd *exec.Cmd) {
	cmd.Dir = p.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "LC_ALL=C", "TZ=UTC"}
	if p.cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	}
}

// configure appends to postgresql.conf, where ALTER SYSTEM still wins.
func (p *Postgres) configure() error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": p.dir,
		"max_connections":         "200",
		"shared_buffers":          "256MB",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_line_prefix":         "%m [%p] %q%a ",
		"fsync":                   "on",
	}
	if p.cfg.NoFsync {
		settings["fsync"] = "off"
	}
	maps.Copy(settings, p.cfg.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(p.dir, dataDir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("\n" + text.String())
	return errors.Join(err, f.Close())
}

func (p *Postgres) logPath() string { return filepath.Join(p.dir, "log") }
