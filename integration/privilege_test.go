package integration

import (
	"context"
	"strings"
	"testing"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/integration/testbed"
)

// appRole makes a role that has what a service needs at run time and nothing
// else: no DDL, no TEMP.
func (s *stack) appRole() testbed.RoleLogin {
	s.Helper()
	role := s.db.NewRole(s)
	grants, err := oncemill.Grants("oncemill", role.Name)
	require.NoError(s, err)
	grants = append(grants, `GRANT USAGE ON SCHEMA public TO "`+role.Name+`"`, `GRANT INSERT ON public.effects TO "`+role.Name+`"`)
	for _, grant := range grants {
		s.exec(grant)
	}
	return role
}

// C106: the whole path runs without a right beyond the grants.
func TestC106_LeastPrivilege(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	w := s.wiring()
	w.Database = s.appRole().URL
	svc := s.open(w, options{})
	_, err := svc.pool.Exec(t.Context(), `CREATE TEMP TABLE t (x int)`)
	require.Error(t, err, "the role has no TEMP")
	_, err = svc.pool.Exec(t.Context(), `CREATE TABLE oncemill.t (x int)`)
	require.Error(t, err, "the role has no CREATE")
	s.wholePath(svc, nothing)
}

// C106: a service does not start on a database that is not ready, says what to
// run, and has read nothing by then.
func TestC106_NotReady(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	role := s.appRole()
	for name, tc := range map[string]struct{ spoil, remedy string }{
		"a right on a table":   {`REVOKE INSERT, UPDATE ON oncemill.inbox FROM "ROLE"`, `GRANT INSERT, UPDATE ON "oncemill"."inbox" TO "ROLE"`},
		"a right of the relay": {`REVOKE DELETE ON oncemill.outbox_relay FROM "ROLE"`, `GRANT DELETE ON "oncemill"."outbox_relay" TO "ROLE"`},
		"the schema":           {`REVOKE USAGE ON SCHEMA oncemill FROM "ROLE"`, `GRANT USAGE ON SCHEMA "oncemill" TO "ROLE"`},
	} {
		t.Run(name, func(t *testing.T) {
			s.exec(strings.ReplaceAll(tc.spoil, "ROLE", role.Name))
			remedy := strings.ReplaceAll(tc.remedy, "ROLE", role.Name)
			notReady := s.refusesToStart(role)
			require.Equal(t, "run "+remedy, notReady.Remedy)
			s.exec(remedy)
		})
	}
	t.Run("a schema one version behind", func(t *testing.T) {
		s.exec(`DELETE FROM oncemill.schema_migration WHERE version = $1`, oncemill.SchemaVersion())
		require.Contains(t, s.refusesToStart(role).Remedy, "oncemill.Migrate")
	})
}

func (s *stack) refusesToStart(role testbed.RoleLogin) *oncemill.NotReadyError {
	s.Helper()
	w := s.wiring()
	w.Database = role.URL
	svc, err := openService(s.Context(), w, options{})
	require.NoError(s, err)
	defer func() { require.NoError(s, svc.close()) }()
	svc.handle("charge", "new", svc.effect)
	ctx, cancel := context.WithTimeout(s.Context(), bound)
	defer cancel()
	var notReady *oncemill.NotReadyError
	require.ErrorAs(s, svc.router.Run(ctx), &notReady)
	_, err = s.stream.JS.Consumer(ctx, s.stream.Name, "charge")
	require.ErrorIs(s, err, natsjs.ErrConsumerNotFound, "nothing was read")
	return notReady
}
