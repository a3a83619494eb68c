package arch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The worker in the README is the Example that a test runs.
func TestREADMEShowsTheExample(t *testing.T) {
	root := filepath.Join("..", "..")
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	example, err := os.ReadFile(filepath.Join(root, "consumer", "example_worker_test.go"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(example), "func Example_worker() {\n")
	require.True(t, found)
	body, _, found := strings.Cut(rest, "\n}\n")
	require.True(t, found)
	lines := strings.Split(body, "\n")
	require.Less(t, len(lines), 40)
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "\t")
	}
	require.Contains(t, string(readme), strings.Join(lines, "\n"))
}
