package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/integration/testbed"
	"github.com/oncemill/oncemill/outbox"
)

// C99: a schema's name is any name. It is quoted wherever a service uses it,
// and nothing beside the schema is touched.
func TestC99_WholePathUnderAnyName(t *testing.T) {
	for _, name := range []string{
		"", `x"; DROP TABLE public.effects; --`, "my-app", "Two Words", "UPPER", "Ünï", "select", "a.b", `a"b`, "'", "$1", "{{schema}}",
		strings.Repeat("n", 63),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStackIn(t, name, testbed.NewDB(t), testbed.NewStream(t, nil))
			var log logged
			opts := in(name)
			opts.relay = func(cfg *outbox.RelayConfig) { cfg.Logger = log.logger() }
			svc := s.open(s.wiring(), opts)
			s.wholePath(svc, nothing)
			require.NoError(t, svc.close())
			require.Empty(t, log.lines("level=WARN", "error="), "nothing went wrong unseen")
			want := name
			if name == "" {
				want = "oncemill"
			}
			require.Equal(t, []string{want}, s.texts(`SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname !~ '^(pg_|information_schema$|public$)'`))
		})
	}
}
