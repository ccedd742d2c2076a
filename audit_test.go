package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// Bounds of lines: of one file, of the whole program, and of the auditor's list in ARCHITECTURE.md.
const (
	maxFileLines  = 700
	maxGoLines    = 21_160
	maxAuditLines = 6_845
)

// sources parses the program's own Go files.
func sources(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set, files := token.NewFileSet(), map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if files[name], err = parser.ParseFile(set, name, nil, parser.ParseComments); err != nil {
			t.Fatal(err)
		}
	}
	return set, files
}

// TestSize: each file, the whole program and the auditor's list stay within their bounds.
func TestSize(t *testing.T) {
	t.Parallel()
	lines := func(name string) int {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(content, []byte("\n"))
	}
	_, files := sources(t)
	total, audit := 0, 0
	for name := range files {
		n := lines(name)
		total += n
		if n > maxFileLines {
			t.Errorf("%s has %d lines, at most %d", name, n, maxFileLines)
		}
	}
	for name := range files {
		base, _, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
		if slices.Contains([]string{"server", "http", "db", "auth", "rbac", "users", "roles", "audit"}, base) {
			audit += lines(name)
		}
	}
	audit += lines("schema.sql")
	t.Logf("%d lines of Go, %d for an auditor", total, audit)
	if total > maxGoLines || audit > maxAuditLines {
		t.Errorf("%d lines of Go (at most %d), %d for an auditor (at most %d)", total, maxGoLines, audit, maxAuditLines)
	}
}

// TestDeclarations: there is no init and no package variable that could change, as a compiled regular expression cannot,
// and every declaration has a comment.
func TestDeclarations(t *testing.T) {
	t.Parallel()
	set, files := sources(t)
	for _, file := range files {
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" {
					t.Errorf("%s: an init function", set.Position(d.Pos()))
				}
				if d.Doc == nil && !slices.Contains([]string{"Error", "Unwrap", "String", "Write", "WriteHeader"}, d.Name.Name) {
					t.Errorf("%s: %s has no comment", set.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				if d.Tok != token.IMPORT && d.Doc == nil {
					t.Errorf("%s: a declaration without comment", set.Position(d.Pos()))
				}
				if d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					spec := spec.(*ast.ValueSpec)
					for i, name := range spec.Names {
						fixed := strings.HasPrefix(name.Name, "err") || i < len(spec.Values) && isRegexp(spec.Values[i]) ||
							slices.Contains([]string{"schemaSQL", "commonPasswords", "epsgCSV", "coverageTemplate", "coastlineCSV", "reportSQL", "contract", "stacAPI", "consoleFiles"}, name.Name)
						if !fixed {
							t.Errorf("%s: package variable %s", set.Position(name.Pos()), name.Name)
						}
					}
				}
			}
		}
	}
}

// Bounds of what a reader takes in at once. A tab counts as four columns.
const (
	maxTestFileLines     = 1200
	maxFunctionLines     = 80 // but for tables
	maxTestFunctionLines = 120
	maxColumns           = 120
	maxCommentColumns    = 100
)

// isTable reports whether a function only returns a value.
func isTable(f *ast.FuncDecl) bool {
	if len(f.Body.List) != 1 {
		return false
	}
	_, ok := f.Body.List[0].(*ast.ReturnStmt)
	return ok
}

// TestLengths: functions, test files and the program's lines are short enough to read.
func TestLengths(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		isTest := strings.HasSuffix(name, "_test.go")
		checkFunctions(t, name, content, isTest)
		if isTest {
			if n := bytes.Count(content, []byte("\n")); n > maxTestFileLines {
				t.Errorf("%s has %d lines, at most %d", name, n, maxTestFileLines)
			}
			continue
		}
		for i, line := range strings.Split(string(content), "\n") {
			limit := maxColumns
			if strings.HasPrefix(strings.TrimSpace(line), "//") {
				limit = maxCommentColumns
			}
			if n := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); n > limit {
				t.Errorf("%s:%d has %d columns, at most %d", name, i+1, n, limit)
			}
		}
	}
}

// TestTestsRun: no test is skipped and none sleeps.
func TestTestsRun(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	for _, name := range names {
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			f, ok := node.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow", "Sleep"}, f.Sel.Name) {
				t.Errorf("%s: %s", set.Position(f.Pos()), f.Sel.Name)
			}
			return true
		})
	}
}

// checkFunctions notes the functions of a file that are too long.
func checkFunctions(t *testing.T, name string, content []byte, isTest bool) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, content, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, declaration := range file.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
		if isTest && lines > maxTestFunctionLines || !isTest && lines > maxFunctionLines && !isTable(f) {
			t.Errorf("%s: %s has %d lines", set.Position(f.Pos()), f.Name.Name, lines)
		}
	}
}

// isRegexp says whether an expression is a regular expression that is compiled at start.
func isRegexp(value ast.Expr) bool {
	call, ok := value.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "MustCompile"
}

// TestSQLIsConstant: every SQL statement is a constant of the source. None is formatted from values. PostgreSQL gives the
// types of its parameters, since the program is built without pgx's own (TAGS in the Makefile).
func TestSQLIsConstant(t *testing.T) {
	t.Parallel()
	set, files := sources(t)
	sqlVerbs := regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|LISTEN)\b`)
	for name, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if f, ok := node.(*ast.SelectorExpr); ok && f.Sel.Name == "QueryExecModeExec" {
				t.Errorf("%s: QueryExecModeExec: QueryExecModeCacheDescribe plans for the values as well", set.Position(f.Pos()))
			}
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(f.Sel.Name, "rintf") {
				for _, argument := range call.Args {
					if text, ok := argument.(*ast.BasicLit); ok && sqlVerbs.MatchString(text.Value) {
						t.Errorf("%s: %s: SQL is made by %s", name, set.Position(call.Pos()), f.Sel.Name)
					}
				}
			}
			return true
		})
	}
}

// TestPureLayerCompilesAlone: the files of extents and of coordinate reference systems need no other file of the
// program, and of the standard library only packages that reach neither the network nor the file system.
func TestPureLayerCompilesAlone(t *testing.T) {
	t.Parallel()
	allowed := strings.Fields("bytes cmp embed encoding/binary encoding/xml errors fmt io io/fs iter math path slices strconv strings unicode unicode/utf8")
	set, files := sources(t)
	var pure []*ast.File
	for name, file := range files {
		if !strings.HasPrefix(name, "bbox") && !strings.HasPrefix(name, "crs") {
			continue
		}
		pure = append(pure, file)
		for _, spec := range file.Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err != nil || !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
	}
	config := types.Config{Importer: importer.ForCompiler(set, "source", nil), Error: func(err error) { t.Error(err) }}
	config.Check("main", set, pure, nil) // reports each error through Error
	if len(pure) < 2 {
		t.Errorf("%d files", len(pure))
	}
}

// TestModules: the program and its tests use these modules and no other.
func TestModules(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var direct, indirect []string
	for _, line := range regexp.MustCompile(`(?m)^(?:require )?\t?([a-z.]+/\S+) v\S+( // indirect)?$`).FindAllStringSubmatch(string(content), -1) {
		if line[2] == "" {
			direct = append(direct, line[1])
		} else {
			indirect = append(indirect, line[1])
		}
	}
	if !slices.Equal(direct, []string{"github.com/jackc/pgx/v5", "golang.org/x/crypto"}) {
		t.Errorf("direct: %v", direct)
	}
	if !slices.Equal(indirect, []string{"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/puddle/v2",
		"golang.org/x/sync", "golang.org/x/sys", "golang.org/x/text"}) {
		t.Errorf("indirect: %v", indirect)
	}
}

// TestReleasedMigrations: the statements of a released migration never change; its comments may. When a
// version is released, the hashes of its migrations are added here.
func TestReleasedMigrations(t *testing.T) {
	t.Parallel()
	released := []string{ // SHA-256, in hex, of migration 1, 2, … without comments and blank lines
		"24d20e415c5b0a5e7f91d22c60e3656e80b014b9451e797ec26ba140bd851cc6", // 0.2.0
		"f63b99a3012b6217b6a8168f4540f4720d18c32433447d17679e3526b4ba56ac", // 1.0.0
	}
	steps := parseMigrations(schemaSQL)
	for i, step := range steps {
		if !strings.HasPrefix(step, fmt.Sprintf("\n-- migration %d: ", i+1)) {
			t.Errorf("migration %.20q is out of order", step)
		}
	}
	for i, want := range released {
		var lines []string
		for line := range strings.Lines(steps[i]) {
			code, _, _ := strings.Cut(line, "--")
			if code = strings.TrimRight(code, " \n"); code != "" {
				lines = append(lines, code)
			}
		}
		if sum := sha256.Sum256([]byte(strings.Join(lines, "\n"))); hex.EncodeToString(sum[:]) != want {
			t.Errorf("migration %d was changed after its release", i+1)
		}
	}
}

// TestDocumentedNames: the tests and functions that the documents name exist, in the file that is named with them.
func TestDocumentedNames(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`([a-z_]+\\.go)` ((?:`[A-Za-z]+`(?:, )?)+)|(`(?:Test|Fuzz)[A-Za-z]+`)")
	tests := readAll(t, "*_test.go")
	for _, document := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(readAll(t, document), -1) {
			for name := range strings.SplitSeq(strings.Trim(strings.ReplaceAll(m[2]+m[3], "`", ""), ", "), ", ") {
				source := tests
				if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Fuzz") {
					source = readAll(t, m[1])
				}
				if !regexp.MustCompile(`\b` + name + `\b`).MatchString(source) {
					t.Errorf("%s: %s %s is missing", document, m[1], name)
				}
			}
		}
	}
}

// readAll returns the files of that pattern, one after the other. There is at least one.
func readAll(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: no such file, %v", pattern, err)
	}
	var all strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}
