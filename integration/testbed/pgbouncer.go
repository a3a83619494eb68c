package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// pgbouncerEnv names the pgbouncer program. When set, no other place is tried.
const pgbouncerEnv = "ONCEMILL_PGBOUNCER_BIN"

var errNoPgBouncer = errors.New("testbed: no pgbouncer found: install it (Debian: apt install pgbouncer; Fedora: dnf install pgbouncer; macOS: brew install pgbouncer), or set " + pgbouncerEnv + " to the program")

// pgbouncerPlaces are where packages put it, outside PATH.
var pgbouncerPlaces = []string{"/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"}

// PgBouncerConfig configures a pooler; its zero value works.
type PgBouncerConfig struct {
	// PoolSize is the number of server connections per database and role;
	// 0 is 5.
	PoolSize int
	// Roles may log in besides the superuser.
	Roles []RoleLogin
	// Settings are further lines of the section [pgbouncer], such as
	// max_prepared_statements from version 1.21 on. They win over the bed's.
	Settings map[string]string
}

// PgBouncer is a pooler in transaction mode in front of a server.
type PgBouncer struct {
	server *Postgres
	dir    string
	port   int
	proc   *child
}

// StartPgBouncer starts the installed pgbouncer in front of a server, for all
// of its databases. It ignores a client's search_path, as it cannot keep it.
func StartPgBouncer(ctx context.Context, server *Postgres, cfg PgBouncerConfig) (*PgBouncer, error) {
	ctx, cancel := bounded(ctx, startBound)
	defer cancel()
	bin, err := findPgBouncer()
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
	b := &PgBouncer{server: server, dir: dir}
	if err := b.startAnywhere(ctx, bin, cred, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("testbed: starting PgBouncer: %w", err), b.Close())
	}
	return b, nil
}

func findPgBouncer() (string, error) {
	if path := os.Getenv(pgbouncerEnv); path != "" {
		if !isProgram(path) {
			return "", fmt.Errorf("testbed: %s=%s: no program there", pgbouncerEnv, path)
		}
		return path, nil
	}
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	for _, path := range pgbouncerPlaces {
		if isProgram(path) {
			return path, nil
		}
	}
	return "", errNoPgBouncer
}

// startAnywhere is like Postgres.startAnywhere.
func (b *PgBouncer) startAnywhere(ctx context.Context, bin string, cred *syscall.Credential, cfg PgBouncerConfig) error {
	var last error
	for range 3 {
		var err error
		if b.port, err = freePort(); err != nil {
			return err
		}
		if err = b.configure(cfg); err != nil {
			return err
		}
		if last = b.start(ctx, bin, cred); last == nil || ctx.Err() != nil {
			return last
		}
	}
	return last
}

func (b *PgBouncer) start(ctx context.Context, bin string, cred *syscall.Credential) error {
	cmd := exec.Command(bin, b.file("pgbouncer.ini"))
	cmd.Dir = b.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "LC_ALL=C"}
	if cred != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	}
	proc, err := startChild(cmd, "kill")
	if err != nil {
		return err
	}
	b.proc = proc
	if err := b.awaitAnswer(ctx); err != nil {
		return fmt.Errorf("%w; its log ends with: %s", errors.Join(err, b.stop()), logTail(b.file("log")))
	}
	return nil
}

func (b *PgBouncer) awaitAnswer(ctx context.Context) error {
	return poll(ctx, "PgBouncer answers", func() (bool, error) {
		select {
		case <-b.proc.done:
			return false, errors.New("it ended at once")
		default:
		}
		conn, err := pgx.Connect(ctx, b.URLFor("", ""))
		if err != nil {
			return false, nil
		}
		return true, conn.Close(ctx)
	})
}

// configure writes pgbouncer.ini and the list of roles.
func (b *PgBouncer) configure(cfg PgBouncerConfig) error {
	server, err := url.Parse(b.server.URL())
	if err != nil {
		return errors.New("the server's URL cannot be read")
	}
	size := cfg.PoolSize
	if size == 0 {
		size = 5
	}
	settings := map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               strconv.Itoa(b.port),
		"unix_socket_dir":           "",
		"auth_type":                 "trust",
		"auth_file":                 b.file("users"),
		"logfile":                   b.file("log"),
		"pool_mode":                 "transaction",
		"default_pool_size":         strconv.Itoa(size),
		"max_client_conn":           "500",
		"ignore_startup_parameters": "search_path,extra_float_digits",
	}
	maps.Copy(settings, cfg.Settings)
	var text strings.Builder
	fmt.Fprintf(&text, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", server.Hostname(), server.Port())
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, settings[name])
	}
	users, err := userList(append([]string{server.String()}, roleURLs(cfg.Roles)...))
	if err != nil {
		return err
	}
	return errors.Join(b.write("pgbouncer.ini", text.String()), b.write("users", users))
}

func roleURLs(roles []RoleLogin) []string {
	urls := make([]string, 0, len(roles))
	for _, r := range roles {
		urls = append(urls, r.URL)
	}
	return urls
}

// userList is PgBouncer's auth_file: a name and a password per line, quoted.
func userList(urls []string) (string, error) {
	var text strings.Builder
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			return "", errors.New("a role's URL cannot be read")
		}
		password, _ := u.User.Password()
		double := strings.NewReplacer(`"`, `""`)
		fmt.Fprintf(&text, "\"%s\" \"%s\"\n", double.Replace(u.User.Username()), double.Replace(password))
	}
	return text.String(), nil
}

// write makes a file that the pooler's user can read through the directory,
// which nobody else can enter.
func (b *PgBouncer) write(name, text string) error {
	return os.WriteFile(b.file(name), []byte(text), 0o644)
}

func (b *PgBouncer) file(name string) string { return filepath.Join(b.dir, name) }

// URL is the superuser's connection URL through the pooler for a database of
// the server; db.Name, for instance.
func (b *PgBouncer) URL(database string) string { return b.URLFor(database, "") }

// URLFor is like [Postgres.URLFor] through the pooler. The role must be the
// superuser or one of PgBouncerConfig.Roles.
func (b *PgBouncer) URLFor(database, role string) string {
	u, err := url.Parse(b.server.URLFor(database, role))
	if err != nil {
		return ""
	}
	u.Host = loopback(b.port)
	u.RawQuery = "sslmode=disable"
	return u.String()
}

func (b *PgBouncer) stop() error {
	if b.proc == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	err := b.proc.stop(ctx, syscall.SIGTERM)
	b.proc = nil
	return err
}

// Close stops the pooler and removes its directory.
func (b *PgBouncer) Close() error {
	return errors.Join(b.stop(), removeDir(b.dir))
}
