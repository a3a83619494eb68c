package arch_test

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// arrows says for each layer which layers it may import outside its tests. A
// layer is the first element of a package's directory ("." for the root
// package), or testLayer. Layers without a row may import otherLayer's row.
var arrows = map[string][]string{
	".":           {"internal"},
	"internal":    {"internal", "dedup"},
	"dedup":       {"dedup", "internal"},
	"outbox":      {"outbox", "dedup", "internal"},
	"reconcile":   {"reconcile", "outbox", "dedup", "internal"},
	"consumer":    {"consumer", "outbox", "dedup", "internal"},
	"cmd":         {"cmd", ".", "consumer", "reconcile", "outbox", "dedup", "internal"},
	testLayer:     {testLayer, ".", "consumer", "reconcile", "outbox", "dedup", "internal"},
	"examples":    nil, // anything
	"integration": nil,
	otherLayer:    {otherLayer, ".", "outbox", "dedup", "internal"},
}

const (
	testLayer  = "…test" // public test support: packages whose name ends in "test"
	otherLayer = "other"
)

// layer is the row of arrows which a package's directory falls under.
func layer(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	if first == "integration" || first == "examples" {
		return first
	}
	if strings.HasSuffix(path.Base(pkg), "test") {
		return testLayer
	}
	if _, known := arrows[first]; known {
		return first
	}
	return otherLayer
}

// thirdParty lists what the main module may require directly. Each entry costs
// every user a download, so it is argued for in docs/decisions/0001.
var thirdParty = []dependency{
	{module: "github.com/ThreeDotsLabs/watermill"},
	{module: "github.com/ThreeDotsLabs/watermill-sql/v3"},
	{module: "github.com/jackc/pgx/v5"},
	{module: "github.com/nats-io/nats.go"},
	{module: "github.com/go-json-experiment/json", only: []string{"dedup"}},
	{module: "github.com/stretchr/testify", only: []string{"integration", testLayer}},
	{module: "github.com/nats-io/nats-server/v2", only: []string{"integration"}},
}

// dependency is a module that may be required directly.
type dependency struct {
	module string
	only   []string // layers that may import it outside tests; empty: any
}

// checkArrows returns a line for each import between layers that points the
// wrong way. Tests are free: what they import reaches no user.
func checkArrows(files []sourceFile) []string {
	var broken []string
	for _, file := range files {
		if file.isTest() {
			continue
		}
		from := layer(file.pkg())
		for _, imported := range file.imports {
			pkg, own := ownPackage(imported)
			if !own || arrows[from] == nil || slices.Contains(arrows[from], layer(pkg)) {
				continue
			}
			broken = append(broken, fmt.Sprintf("%s imports %s: layer %q may import only %q",
				file.path, imported, from, arrows[from]))
		}
	}
	return broken
}

// checkThirdParty returns a line for each import of a module that is not in
// thirdParty, or that the importing layer may not use.
func checkThirdParty(files []sourceFile) []string {
	var broken []string
	for _, file := range files {
		for _, imported := range file.imports {
			if _, own := ownPackage(imported); own || isStandard(imported) {
				continue
			}
			dep, known := dependencyOf(imported)
			switch {
			case !known:
				broken = append(broken, fmt.Sprintf("%s imports %s: its module is not in thirdParty", file.path, imported))
			case len(dep.only) > 0 && !file.isTest() && !slices.Contains(dep.only, layer(file.pkg())):
				broken = append(broken, fmt.Sprintf("%s imports %s: only tests and %q may", file.path, imported, dep.only))
			}
		}
	}
	return broken
}

// checkUnreached returns a line for each package from which users of start
// would compile an import with one of the prefixes, through any number of
// packages of the module.
func checkUnreached(files []sourceFile, start string, prefixes ...string) []string {
	var broken []string
	seen := map[string]bool{}
	var visit func(pkg, trail string)
	visit = func(pkg, trail string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, imported := range importsOf(files, pkg) {
			if next, own := ownPackage(imported); own {
				visit(next, trail+" -> "+next)
				continue
			}
			for _, prefix := range prefixes {
				if strings.HasPrefix(imported, prefix) {
					broken = append(broken, trail+" -> "+imported)
				}
			}
		}
	}
	for _, file := range files {
		if pkg := file.pkg(); layer(pkg) == start {
			visit(pkg, pkg)
		}
	}
	return broken
}

// importsOf returns what the package's files import outside tests, each once.
func importsOf(files []sourceFile, pkg string) []string {
	var imports []string
	for _, file := range files {
		if file.pkg() == pkg && !file.isTest() {
			imports = append(imports, file.imports...)
		}
	}
	slices.Sort(imports)
	return slices.Compact(imports)
}

// ownPackage returns the directory of a package of the main module.
func ownPackage(imported string) (string, bool) {
	if imported == modulePath {
		return ".", true
	}
	return strings.CutPrefix(imported, modulePath+"/")
}

// isStandard tells whether the import is of the standard library, whose paths
// have no dot in their first element.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// dependencyOf finds the module of an import among thirdParty.
func dependencyOf(imported string) (dependency, bool) {
	for _, dep := range thirdParty {
		if imported == dep.module || strings.HasPrefix(imported, dep.module+"/") {
			return dep, true
		}
	}
	return dependency{}, false
}
