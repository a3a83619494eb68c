package testbed

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pgBinEnv names the directory with initdb and postgres. When set, no other
// place is tried.
const pgBinEnv = "ONCEMILL_PG_BIN"

var errNoPostgres = errors.New("testbed: no PostgreSQL server found: install one (Debian: apt install postgresql; Fedora: dnf install postgresql-server; macOS: brew install postgresql@17), or set " + pgBinEnv + " to the directory with initdb and postgres, or ONCEMILL_DATABASE_URL to a running server")

// pgPlaces are where packages put the server, outside PATH.
var pgPlaces = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findPostgres returns the directory with initdb and postgres.
func findPostgres() (string, error) {
	if dir := os.Getenv(pgBinEnv); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("testbed: %s=%s: no initdb and postgres there", pgBinEnv, dir)
		}
		return dir, nil
	}
	for _, dir := range pgDirs() {
		if hasServer(dir) {
			return dir, nil
		}
	}
	return "", errNoPostgres
}

// pgDirs are the candidates in the order they are tried.
func pgDirs() []string {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range pgPlaces {
		found, _ := filepath.Glob(pattern)
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// hasServer looks for both programs: client packages bring pg_config alone.
func hasServer(dir string) bool {
	return isProgram(filepath.Join(dir, "initdb")) && isProgram(filepath.Join(dir, "postgres"))
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

var numberRE = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// versionIn is the first number in a path, so that 17 sorts above 9.6.
func versionIn(path string) float64 {
	v, _ := strconv.ParseFloat(numberRE.FindString(path), 64)
	return v
}
