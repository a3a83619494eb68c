package arch_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestImportsPointOneWay(t *testing.T) {
	requireNone(t, checkArrows(sourceFiles(t)))
}

func TestDedupReachesNeitherWatermillNorNATS(t *testing.T) {
	requireNone(t, checkUnreached(sourceFiles(t), "dedup",
		"github.com/ThreeDotsLabs/", "github.com/nats-io/"))
}

func TestThirdPartyImportsArePinned(t *testing.T) {
	requireNone(t, checkThirdParty(sourceFiles(t)))
}

// TestDirectRequirementsArePinned reads go.mod, which may require what no file
// imports yet.
func TestDirectRequirementsArePinned(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, "go.mod")).Output()
	require.NoError(t, err, "go mod edit -json")
	var mod struct {
		Module  struct{ Path string }
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	require.Equal(t, modulePath, mod.Module.Path)
	for _, required := range mod.Require {
		_, known := dependencyOf(required.Path)
		require.True(t, known || required.Indirect,
			"go.mod requires %s directly: it is not in thirdParty; argue for it in docs/decisions", required.Path)
	}
}

// TestRulesRefuse shows each rule a tree that breaks it.
func TestRulesRefuse(t *testing.T) {
	file := func(path string, imports ...string) []sourceFile {
		return []sourceFile{{path: path, imports: imports}}
	}
	own := func(pkg string) string { return modulePath + "/" + pkg }

	for name, files := range map[string][]sourceFile{
		"dedup imports outbox":       file("dedup/a.go", own("outbox")),
		"dedup imports the root":     file("dedup/a.go", modulePath),
		"outbox imports consumer":    file("outbox/a.go", own("consumer")),
		"outbox imports a key func":  file("outbox/a.go", own("consumer/keys")),
		"reconcile imports consumer": file("reconcile/a.go", own("consumer")),
		"root imports dedup":         file("a.go", own("dedup")),
		"internal imports outbox":    file("internal/a/a.go", own("outbox")),
		"consumer imports test bed":  file("consumer/a.go", own("integration/testbed")),
		"a new layer and consumer":   file("telemetry/a.go", own("consumer")),
	} {
		require.Len(t, checkArrows(files), 1, name)
	}
	for name, files := range map[string][]sourceFile{
		"an unknown module":         file("dedup/a_test.go", "example.com/x"),
		"nats-server in consumer":   file("consumer/a.go", "github.com/nats-io/nats-server/v2/server"),
		"testify in a user's build": file("outbox/a.go", "github.com/stretchr/testify/require"),
		"jsontext beside dedup":     file("consumer/a.go", "github.com/go-json-experiment/json/jsontext"),
	} {
		require.Len(t, checkThirdParty(files), 1, name)
	}
	reached := append(file("dedup/a.go", own("internal/x")), file("internal/x/x.go", "github.com/nats-io/nats.go")...)
	require.Equal(t, []string{"dedup -> internal/x -> github.com/nats-io/nats.go"},
		checkUnreached(reached, "dedup", "github.com/nats-io/"))
}

// TestRulesAllow shows the rules imports that look odd and are meant.
func TestRulesAllow(t *testing.T) {
	files := []sourceFile{
		{path: "consumer/keys/a.go", imports: []string{modulePath + "/consumer", modulePath + "/dedup", "fmt"}},
		{path: "consumer/consumertest/a.go", imports: []string{modulePath + "/consumer", "github.com/stretchr/testify/require"}},
		{path: "dedup/a_test.go", imports: []string{modulePath + "/integration/testbed", "github.com/nats-io/nats.go"}},
		{path: "examples/payments/main.go", imports: []string{modulePath + "/integration/testbed"}},
		{path: "integration/testbed/a.go", imports: []string{"github.com/nats-io/nats-server/v2/server"}},
	}
	require.Empty(t, checkArrows(files))
	require.Empty(t, checkThirdParty(files))
	require.Empty(t, checkUnreached(files, "dedup", "github.com/nats-io/"))
}

func requireNone(t *testing.T, broken []string) {
	t.Helper()
	require.Empty(t, broken, "broken import rules:\n%s", strings.Join(broken, "\n"))
}
