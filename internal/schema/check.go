package schema

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/internal/pg"
)

// MinServer is the oldest PostgreSQL that has all that the statements use
// (xid8 and TID range scans came with 13 and 14), as server_version_num.
const MinServer = 140000

// rights is what the run-time role needs on each table, and all it needs
// besides USAGE on the schema.
var rights = map[string][]string{
	"schema_migration": {"SELECT"},
	"inbox":            {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"horizon":          {"SELECT", "INSERT", "UPDATE"},
	"held":             {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"outbox":           {"SELECT", "INSERT", "DELETE"},
	"outbox_boot":      {"SELECT", "INSERT"},
	"outbox_queue":     {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"outbox_lane":      {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"outbox_relay":     {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"outbox_sent":      {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"outbox_settings":  {"SELECT", "UPDATE"},
}

// Grants returns the statements that give role what it needs at run time.
func Grants(name Name, role string) []string {
	statements := []string{usageGrant(name, role)}
	for _, table := range slices.Sorted(maps.Keys(rights)) {
		statements = append(statements, tableGrant(name, table, rights[table], role))
	}
	return statements
}

func usageGrant(name Name, role string) string {
	return fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", name.Quoted(), quote(role))
}

func tableGrant(name Name, table string, rights []string, role string) string {
	return fmt.Sprintf("GRANT %s ON %s.%s TO %s", strings.Join(rights, ", "), name.Quoted(), quote(table), quote(role))
}

func quote(identifier string) string {
	return `"` + strings.ReplaceAll(identifier, `"`, `""`) + `"`
}

// NotReadyError says why a database cannot be used by this version of the
// code, and what to run.
type NotReadyError struct {
	Schema  string
	Problem string
	// Remedy is what to do: for missing rights the GRANT statements, one per
	// line.
	Remedy string
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("schema %q is not ready: %s; %s", e.Schema, e.Problem, e.Remedy)
}

// Check returns a *NotReadyError when the server is too old, the schema's
// version is not the one that this code needs, or the current role lacks a
// right on a table whose name starts with tables. Other errors are those of
// the connection.
func Check(ctx context.Context, db pg.DB, name Name, tables string) error {
	var role string
	var server int
	var usage, exists bool
	if err := pg.QueryRow(ctx, db, selectAccess, []any{name.String()}, &role, &server, &usage, &exists); err != nil {
		return fmt.Errorf("check schema %s: %w", name.Quoted(), err)
	}
	notReady := func(problem, remedy string) error {
		return &NotReadyError{Schema: name.String(), Problem: problem, Remedy: remedy}
	}
	switch {
	case server < MinServer:
		return notReady(fmt.Sprintf("the server is PostgreSQL %d", server/10000), fmt.Sprintf("use %d or later", MinServer/10000))
	case !exists:
		return notReady("it does not exist", "run oncemill.Migrate as its owner")
	case !usage:
		return notReady("missing right", "run "+usageGrant(name, role))
	}
	missing, err := missingGrants(ctx, db, name, tables, role)
	if err != nil {
		return err
	}
	if grant, ok := missing["schema_migration"]; ok {
		return notReady("missing right", "run "+grant)
	}
	var version int
	if err := pg.QueryRow(ctx, db, name.Expand(selectVersion), nil, &version); err != nil {
		return fmt.Errorf("check schema %s: read version: %w", name.Quoted(), err)
	}
	switch {
	case version < Version():
		return notReady(fmt.Sprintf("it has version %d, this code needs %d", version, Version()), "run oncemill.Migrate as its owner")
	case version > Version():
		return notReady(fmt.Sprintf("it has version %d, this code knows %d", version, Version()), "deploy the newer code")
	case len(missing) > 0:
		return notReady("missing rights", "run "+strings.Join(slices.Sorted(maps.Values(missing)), ";\n"))
	}
	return nil
}

// missingGrants returns, per table, the GRANT that role lacks.
func missingGrants(ctx context.Context, db pg.DB, name Name, tables, role string) (map[string]string, error) {
	has := make(map[string][4]bool)
	err := pg.Each(ctx, db, selectRights, []any{name.String()}, func(rows pg.Rows) error {
		var table string
		var r [4]bool
		if err := rows.Scan(&table, &r[0], &r[1], &r[2], &r[3]); err != nil {
			return err
		}
		has[table] = r
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check rights on schema %s: %w", name.Quoted(), err)
	}
	columns := []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
	missing := make(map[string]string)
	for table, needed := range rights {
		if table != "schema_migration" && !strings.HasPrefix(table, tables) {
			continue
		}
		given := has[table] // no rights on a table that is not there
		lacks := slices.DeleteFunc(slices.Clone(needed), func(r string) bool { return given[slices.Index(columns, r)] })
		if len(lacks) > 0 {
			missing[table] = tableGrant(name, table, lacks, role)
		}
	}
	return missing, nil
}
