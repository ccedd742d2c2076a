package main

import (
	"go/ast"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layers lists the program's files from the bottom up. A file uses only files of its own layer and of those below.
func layers() []string {
	return []string{
		"bbox*.go crs*.go pixels*.go",
		"core.go db*.go http*.go config.go auth_tokens.go auth_keys.go auth_passwords.go auth_breached.go",
		"audit*.go rbac.go accounts.go auth*.go users*.go roles.go messages.go",
		"datasets.go dataset_*.go analysis*.go",
		"console*.go",
		"operations.go postgres.go systemd.go tls.go metrics.go",
		"server*.go main.go cmd_*.go",
	}
}

// fileLayer returns the number of the first layer with a pattern that the file's name matches, or -1.
func fileLayer(name string) int {
	return slices.IndexFunc(layers(), func(layer string) bool {
		return slices.ContainsFunc(strings.Fields(layer), func(pattern string) bool {
			matches, _ := filepath.Match(pattern, name)
			return matches
		})
	})
}

// TestLayers: no file uses a declaration of a layer above its own.
func TestLayers(t *testing.T) {
	t.Parallel()
	set, files := sources(t)
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg := typeCheck(t, slices.Collect(maps.Values(files)), info)
	for name := range files {
		if fileLayer(name) < 0 {
			t.Errorf("%s is in no layer", name)
		}
	}
	seen := map[string]bool{}
	for ident, object := range info.Uses {
		if object.Pkg() != pkg {
			continue
		}
		user, used := set.Position(ident.Pos()), set.Position(object.Pos())
		if fileLayer(used.Filename) > fileLayer(user.Filename) {
			if line := user.Filename + " uses " + object.Name() + " of " + used.Filename; !seen[line] {
				seen[line] = true
				t.Error(line)
			}
		}
	}
}
