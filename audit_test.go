package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Bounds of Go tokens: of a file of the program, of a test file, of the whole program, and of the auditor's list in
// ARCHITECTURE.md. Comments, blank lines and automatic semicolons cost nothing.
const (
	maxFileTokens     = 5_000
	maxTestFileTokens = 8_000
	maxProgramTokens  = 214_518
	maxAuditorTokens  = 33_500
)

// program is the program's own Go files, which are parsed once for all tests. Its importer reads the types that the
// packages they import export from what the compiler left in Go's build cache.
var program struct {
	once     sync.Once
	err      error
	set      *token.FileSet
	files    map[string]*ast.File // by name
	checking sync.Mutex           // is held while importer is used
	importer types.Importer
}

// parseProgram parses the files of program.
func parseProgram() error {
	names, err := filepath.Glob("*.go")
	if err != nil {
		return err
	}
	program.set, program.files = token.NewFileSet(), map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if program.files[name], err = parser.ParseFile(program.set, name, nil, parser.ParseComments); err != nil {
			return err
		}
	}

	exported, err := exportFiles(program.files)
	if err != nil {
		return err
	}
	program.importer = importer.ForCompiler(program.set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exported[path])
	})
	return nil
}

// exportFiles returns, for each package that these files import, the file in Go's build cache with the types that it
// exports. go list compiles a package that is not in the cache.
func exportFiles(files map[string]*ast.File) (map[string]string, error) {
	arguments := []string{"list", "-export", "-tags", "nopgxregisterdefaulttypes", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, file := range files {
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return nil, err
			}
			arguments = append(arguments, path)
		}
	}
	output, err := exec.Command("go", arguments...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}

	exported := map[string]string{}
	for line := range strings.Lines(string(output)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exported[path] = file
	}
	return exported, nil
}

// sources returns the program's own Go files, which no test may change.
func sources(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	program.once.Do(func() { program.err = parseProgram() })
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.set, program.files
}

// typeCheck checks the types of files that sources returned. Each error fails the test.
func typeCheck(t *testing.T, files []*ast.File, info *types.Info) *types.Package {
	t.Helper()
	program.checking.Lock()
	defer program.checking.Unlock()
	config := types.Config{Importer: program.importer, Error: func(err error) { t.Error(err) }}
	pkg, _ := config.Check("cairn", program.set, files, info) // reports each error through Error
	return pkg
}

// TestSize: each file, the whole program and the auditor's list stay within their bounds. A file of oversized that has
// become short enough must leave that list.
func TestSize(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}

	tokens := map[string]int{}
	total := 0
	for _, name := range names {
		n := countTokens(t, name)
		tokens[name] = n

		limit := maxFileTokens
		if strings.HasSuffix(name, "_test.go") {
			limit = maxTestFileTokens
		} else {
			total += n
		}
		if n > limit {
			t.Errorf("%s has %d tokens, at most %d", name, n, limit)
		}
	}
	if total > maxProgramTokens {
		t.Errorf("the program has %d tokens, at most %d", total, maxProgramTokens)
	}

	auditor := 0
	for _, name := range auditorsList(t) {
		if tokens[name] == 0 {
			t.Errorf("ARCHITECTURE.md: the auditor's list names %s, which does not exist", name)
		}
		auditor += tokens[name]
	}
	if auditor > maxAuditorTokens {
		t.Errorf("the auditor's list has %d tokens, at most %d", auditor, maxAuditorTokens)
	}
	t.Logf("%d tokens, %d of them on the auditor's list", total, auditor)
}

// countTokens counts the Go tokens of a file, without comments and automatic semicolons.
func countTokens(t *testing.T, name string) (n int) {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}

	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(name, -1, len(content)), content, nil, 0)
	for {
		_, kind, text := s.Scan()
		if kind == token.EOF {
			return n
		}
		isAutomatic := kind == token.SEMICOLON && text == "\n"
		if !isAutomatic {
			n++
		}
	}
}

// auditorsList returns the Go files that the section "The auditor's list" of ARCHITECTURE.md names, each once.
func auditorsList(t *testing.T) []string {
	t.Helper()
	_, section, _ := strings.Cut(readAll(t, "ARCHITECTURE.md"), "\n## The auditor's list\n")
	section, _, found := strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("ARCHITECTURE.md has no section of that name, or it is the last one")
	}

	var names []string
	for _, m := range regexp.MustCompile("`([a-z_]+\\.go)`").FindAllStringSubmatch(section, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
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
							slices.Contains([]string{"schemaSQL", "catalogueSQL", "commonPasswords", "epsgCSV", "registryLines", "coverageTemplate", "coastline110m", "coastline10m", "contract", "metricsText", "usageText", "stacAPI", "stacAPIPage", "consoleFiles"}, name.Name)
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

// checkPageFiles checks the lines of templates, and the number of lines of the style sheet and of the script.
func checkPageFiles(t *testing.T) {
	t.Helper()
	const mostLines = 400

	names, err := filepath.Glob("console/*")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(content), "\n")
		if filepath.Ext(name) != ".html" {
			check(t, name+" has few lines", len(lines) < mostLines, true)
			continue
		}
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > maxColumns {
				t.Errorf("%s:%d has %d columns, at most %d", name, i+1, n, maxColumns)
			}
		}
	}
}

// TestLengths: functions, and the lines of the program and of its pages, are short enough to read.
func TestLengths(t *testing.T) {
	t.Parallel()
	checkPageFiles(t)
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

// TestPureLayerCompilesAlone: the files of extents, coordinate reference systems and heights need no other file of the
// program, and of the standard library only packages that reach neither the network nor the file system. (archive/zip can,
// but is given its file.)
func TestPureLayerCompilesAlone(t *testing.T) {
	t.Parallel()
	allowed := strings.Fields("archive/zip bufio bytes cmp compress/flate compress/gzip compress/zlib context embed encoding/binary encoding/xml errors fmt hash hash/crc32 image io io/fs iter math math/bits path slices strconv strings unicode unicode/utf8")
	_, files := sources(t)
	var pure []*ast.File
	for name, file := range files {
		if fileLayer(name) != 0 {
			continue
		}
		pure = append(pure, file)
		for _, spec := range file.Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err != nil || !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", name, spec.Path.Value)
			}
		}
	}
	typeCheck(t, pure, nil)
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
		"6debcc265aa7869d6ecf5e9d450f83fb6dd26b1a67262e0923db7454ce181e4c", // 0.2.0
		"3405a917da65fb5acafd1b664fff9dca3801a549928051e3d81d2c63590c33fc", // 1.0.0
	}
	steps := migrations()
	for i, step := range steps {
		heading := fmt.Sprintf("\n-- migration %d: ", i+1)
		if !strings.HasPrefix(step, heading) || strings.Count(step, heading) != 2 {
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
	tests := words(readAll(t, "*_test.go"))
	for _, document := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(readAll(t, document), -1) {
			for name := range strings.SplitSeq(strings.Trim(strings.ReplaceAll(m[2]+m[3], "`", ""), ", "), ", ") {
				source := tests
				if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Fuzz") {
					source = words(readAll(t, m[1]))
				}
				if !source[name] {
					t.Errorf("%s: %s %s is missing", document, m[1], name)
				}
			}
		}
	}
}

// words returns the words of a text: runs of letters, digits and underscores.
func words(text string) map[string]bool {
	found := map[string]bool{}
	isNoWord := func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for word := range strings.FieldsFuncSeq(text, isNoWord) {
		found[word] = true
	}
	return found
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

// TestUpdatesThatChangeNothing: an update that changes nothing is answered as any other. It stores nothing, so that the
// entity tag stays, and it has no row in the audit log.
func TestUpdatesThatChangeNothing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	bob := "/api/v1/users/" + ts.addUser("bob")
	ts.exec(`UPDATE users SET email = 'bob@example.org' WHERE username = 'bob'`)
	ts.exec(`INSERT INTO datasets (name, path, description) VALUES ('tiles', 'tiles', 'heights')`)
	role := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "ops", "permissions": []string{datasetRead, userManage}}).header.Get("Location")
	root.must(201, "POST", "/api/v1/permissions", map[string]string{"name": "wiki.edit", "meaning": "Edit."})
	text := root.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "Hello", "body": "Hello.",
		"roles": []string{"ops"}, "publish_at": "2031-01-01T12:00:00.5Z", "expires_at": "2032-01-01T12:00:00Z"}).header.Get("Location")
	rows := func() int { return ts.queryInt(`SELECT count(*) FROM audit_log`) }
	for _, update := range []struct{ name, path, same, other string }{
		{"no field of a user", bob, `{}`, ``},
		{"a user", bob, `{"username":"Bob","email":"BOB@example.org","display_name":"","status":"active"}`, `{"display_name":"Bob"}`},
		{"the address of a user", bob, `{"email":"bob@example.org"}`, `{"email":""}`},
		{"no address of a user", bob, `{"email":""}`, `{"email":"bob@example.org"}`},
		{"no field of a role", role, `{}`, ``},
		{"a role", role, `{"name":"ops","description":"","permissions":["user.manage","dataset.read","dataset.read"],"requires_second_factor":false}`, `{"permissions":["dataset.read"]}`},
		{"the name of a role", role, `{"name":"OPS"}`, `{"name":"ops2"}`},
		{"a permission", "/api/v1/permissions/wiki.edit", `{"meaning":"Edit."}`, `{"meaning":"Read."}`},
		{"no field of a message", text, `{}`, ``},
		{"a message", text, `{"title":"Hello","body":"Hello.","severity":"info","roles":["ops2","ops2"],"include_new_users":false}`, `{"severity":"critical"}`},
		{"the times of a message", text, `{"publish_at":"2031-01-01T13:00:00.5+01:00","expires_at":"2032-01-01T12:00:00Z"}`, `{"expires_at":null}`},
		{"no end of a message", text, `{"expires_at":null}`, `{"publish_at":null}`},
		{"everybody", text, `{"title":"Hello"}`, `{"roles":null}`},
		{"no field of a dataset", "/api/v1/datasets/1", `{}`, ``},
		{"a dataset", "/api/v1/datasets/1", `{"name":"tiles","description":"heights","requires":""}`, `{"description":""}`},
	} {
		t.Run(update.name, func(t *testing.T) {
			before, count := root.must(200, "PATCH", update.path, update.same), rows()
			after := root.must(200, "PATCH", update.path, update.same)
			if got, want := after.header.Get("ETag"), before.header.Get("ETag"); got != want {
				t.Errorf("entity tag: got %s, want %s", got, want)
			}
			if got, want := after.json["updated_at"], before.json["updated_at"]; got != want {
				t.Errorf("updated_at: got %v, want %v", got, want)
			}
			if got := rows(); got != count {
				t.Errorf("rows in the audit log: got %d, want %d", got, count)
			}
			if update.other == "" {
				return
			}
			root.must(200, "PATCH", update.path, update.other)
			if got := rows(); got != count+1 {
				t.Errorf("rows in the audit log after a change: got %d, want %d", got, count+1)
			}
		})
	}
	for action, want := range map[string]int{"user.update": 3, "role.update": 2, "permission.update": 1, "message.update": 4, "dataset.update": 1} {
		if got := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = $1`, action); got != want {
			t.Errorf("%s: got %d rows, want %d", action, got, want)
		}
	}
}
