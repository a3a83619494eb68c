package arch_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// modulePath is the path of the main module.
const modulePath = "github.com/oncemill/oncemill"

// root is the main module's directory, seen from this package.
const root = "../.."

// sourceFile is one Go file of the main module, whatever its build tags.
type sourceFile struct {
	path    string   // slash-separated, relative to the module's root
	imports []string // import paths as written
}

// pkg is the file's directory relative to the module's root, "." for the root.
func (f sourceFile) pkg() string { return path.Dir(f.path) }

// isTest tells whether only `go test` compiles the file.
func (f sourceFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// sourceFiles parses the imports of every Go file of the main module. Reading
// the tree rather than asking `go list` sees files of every build tag at once.
func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	var files []sourceFile
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipForeign(name, entry.Name())
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		file, err := parseImports(name)
		files = append(files, file)
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, files, "no Go file found below %s", root)
	return files
}

// skipForeign skips the directories that hold no package of the main module:
// those the go command ignores, and nested modules.
func skipForeign(name, base string) error {
	if name == root {
		return nil
	}
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func parseImports(name string) (sourceFile, error) {
	rel, err := filepath.Rel(root, name)
	if err != nil {
		return sourceFile{}, err
	}
	file := sourceFile{path: filepath.ToSlash(rel)}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
	if err != nil {
		return file, err
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file, err
		}
		file.imports = append(file.imports, imported)
	}
	return file, nil
}
