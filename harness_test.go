package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	osuser "os/user"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sickDirEnv names the mount point to a process that serves a faulty file system: see peers_faults_test.go.
const sickDirEnv = "CAIRN_TEST_SICK_DIR"

// scaleEnv names the folder of deploy/test-scale to a process that runs a test of scale_test.go.
const scaleEnv = "CAIRN_TEST_SCALE"

// packageEnv names the folder of a package's settings to a process that is the program itself.
const packageEnv = "TEST_CAIRN_PACKAGE"

// suite is the PostgreSQL server that all tests share. Each test has a database of its own in it.
var suite struct {
	dir       string
	databases atomic.Int64
	initdb    func() (dir string, err error) // runs initdb once: the data directory that those of all servers are copies of
	admin     *pgxpool.Pool                  // of the superuser
	start     func() error                   // starts the server once, with the migrated database that the others are copies of
	stop      func() error                   // nil until the server runs
}

// TestMain runs the suite. With one of these variables set, a test has started this process for another purpose.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("CAIRN_TEST_COMMAND") != "":
		os.Exit(commandUnderTest())
	case os.Getenv("CAIRN_TEST_SERVE") != "":
		os.Exit(serveUnderTest())
	case os.Getenv(privatePostgresHelperEnv) != "":
		os.Exit(servePrivatePostgres())
	case os.Getenv(packageEnv) != "":
		err := runPackaged(context.Background(), os.Getenv(packageEnv), os.Args[1:], os.Environ())
		fmt.Fprintln(os.Stderr, err, "as", os.Geteuid())
		os.Exit(exitStatus(err))
	case os.Getenv(sickDirEnv) != "", os.Getenv(scaleEnv) != "":
		os.Exit(m.Run()) // just TestServeSick, or a test of scale_test.go
	}
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test suite:", err)
		code = 1
	}
	os.Exit(code)
}

// runSuite runs the tests and then stops the PostgreSQL of the suite, if a test has started it.
func runSuite(m *testing.M) (code int, err error) {
	if suite.dir, err = os.MkdirTemp(fastDir(), "cairn-suite-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(suite.dir)
	if err := os.Chmod(suite.dir, 0o755); err != nil { // each PostgreSQL runs as another user than root
		return 1, err
	}
	os.Setenv("TMPDIR", suite.dir)
	suite.initdb = sync.OnceValues(runInitdb)
	suite.start = sync.OnceValue(func() error {
		if err := startSuitePostgres(); err != nil {
			return fmt.Errorf("start the suite's PostgreSQL: %w", err)
		}
		return makeTemplate()
	})
	debug.SetGCPercent(1000) // collecting garbage less often saves processor time

	code = m.Run()
	if suite.stop != nil {
		err = suite.stop()
	}
	return code, err
}

// postgresAccount returns the OS user of the tests' PostgreSQL, which does not run as root.
func postgresAccount() (serverAccount, error) {
	if os.Geteuid() == 0 {
		return accountOf(osuser.Lookup("postgres"))
	}
	return accountOf(osuser.Current())
}

// runInitdb makes a data directory. Without PostgreSQL's programs it returns an error.
func runInitdb() (dir string, err error) {
	programs, err1 := findServerPrograms("")
	account, err2 := postgresAccount()
	dir = filepath.Join(suite.dir, "initdb")
	if err := errors.Join(err1, err2, os.Mkdir(dir, 0o700), os.Chown(dir, int(account.uid), -1)); err != nil {
		return "", err
	}

	output, err := account.command(context.Background(), "/", filepath.Join(programs, "initdb"),
		"-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, output)
	}
	return dir, nil
}

// makeDataDir makes the data directory of a server, a copy of the one that initdb has made.
func makeDataDir(data string) error {
	source, err1 := suite.initdb()
	account, err2 := postgresAccount()
	if err := errors.Join(err1, err2, os.Mkdir(data, 0o700), os.Chown(data, int(account.uid), -1)); err != nil {
		return err
	}

	output, err := account.command(context.Background(), "/", "cp", "-r", source+"/.", data).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cp: %w\n%s", err, output)
	}
	return nil
}

// startSuitePostgres starts the PostgreSQL of the suite. Without PostgreSQL's programs it returns an error, so that each
// test that needs a database fails.
func startSuitePostgres() error {
	data := filepath.Join(suite.dir, "data")
	programs, err1 := findServerPrograms("")
	account, err2 := postgresAccount()
	if err := errors.Join(err1, err2, makeDataDir(data)); err != nil {
		return err
	}

	postgres := account.command(context.Background(), "/", filepath.Join(programs, "postgres"), "-D", data, "-k", data, "-h", "",
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "jit=off", "-c", "max_connections=300",
		"-c", "autovacuum=off", "-c", "max_wal_size=128MB", "-c", "wal_level=minimal", "-c", "max_wal_senders=0")
	log, err := postgres.StderrPipe()
	if err != nil {
		return err
	}
	if err := postgres.Start(); err != nil {
		return err
	}
	suite.stop = func() error {
		suite.admin.Close()
		err := postgres.Process.Signal(syscall.SIGINT)
		postgres.Wait()
		return err
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() && !strings.Contains(lines.Text(), "ready to accept connections") {
	}
	go io.Copy(io.Discard, log)
	suite.admin, err = pgxpool.New(context.Background(), databaseURL("postgres", "postgres"))
	return err
}

// fastDir returns a directory in memory, if the machine has one with enough room and allows programs there. Else it
// returns "", the default directory for temporary files. A test creates thousands of small files.
func fastDir() string {
	const memory, room, noExec = "/dev/shm", 2 << 30, 8 // ST_NOEXEC of statfs(2)
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Flags&noExec != 0 || int64(fs.Bavail)*fs.Bsize < room {
		return ""
	}
	return memory
}

// databaseURL names a database of the suite's server.
func databaseURL(user, database string) string {
	return fmt.Sprintf("host=%s user=%s dbname=%s", filepath.Join(suite.dir, "data"), user, database)
}

// asSuperuser runs statements in the suite's server.
func asSuperuser(statements ...string) error {
	for _, statement := range statements {
		if _, err := suite.admin.Exec(context.Background(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// makeTemplate makes the database that newDatabase copies.
func makeTemplate() error {
	if err := asSuperuser(`CREATE ROLE cairn LOGIN`, `CREATE DATABASE cairn_template OWNER cairn`); err != nil {
		return err
	}
	pool, err := pgxpool.New(context.Background(), databaseURL("cairn", "cairn_template"))
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrate(context.Background(), pool, slog.New(slog.DiscardHandler))
}

// newDatabase makes a database for one test and returns its URL. Its owner is no superuser.
func newDatabase(t *testing.T) string {
	t.Helper()
	return copyDatabase(t, "cairn_template")
}

// copyDatabase makes a database for one test, a copy of one to which nobody is connected, and returns its URL.
func copyDatabase(t *testing.T, source string) string {
	t.Helper()
	if err := suite.start(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cairn_test_%d", suite.databases.Add(1))
	if err := asSuperuser(`CREATE DATABASE ` + name + ` OWNER cairn TEMPLATE ` + source + ` STRATEGY FILE_COPY`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { asSuperuser(`DROP DATABASE ` + name + ` WITH (FORCE)`) })
	return databaseURL("cairn", name)
}

// testServer is a service that runs for one test, in this process, with its settings in env.
type testServer struct {
	*server
	*core
	t        *testing.T
	url      string
	env      []string
	log      *lockedBuffer
	datasets string // the dataset root
	stop     func()
}

// lockedBuffer is a buffer that a logger may write to while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startServer starts the service on a free port and a database of its own. env adds settings; of two with the same name
// the last counts. adjust may change the options.
func startServer(t *testing.T, adjust func(*options), env ...string) *testServer {
	t.Helper()
	dir := t.TempDir()
	roots := filepath.Join(dir, "datasets")
	if err := errors.Join(os.Mkdir(roots, 0o755), os.Mkdir(filepath.Join(dir, "state"), 0o700)); err != nil {
		t.Fatal(err)
	}
	base := []string{"CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR=" + filepath.Join(dir, "state"), "CAIRN_DATASETS_DIR=" + roots}
	if lookup(env, "CAIRN_DATABASE_URL") == "" {
		base = append(base, "CAIRN_DATABASE_URL="+newDatabase(t))
	}
	ts := &testServer{t: t, env: append(base, env...), log: &lockedBuffer{}}
	cfg, err := loadConfig(ts.env)
	if err != nil {
		t.Fatal(err)
	}
	if lookup(ts.env, "CAIRN_ARGON2") == "" {
		cfg.argon = cheapArgon()
	}
	ts.datasets = cfg.datasetRoots[0]
	opts := defaultOptions()
	if adjust != nil {
		adjust(&opts)
	}
	started := opts.started
	opts.started = func(s *server) {
		ts.server, ts.core = s, s.core
		started(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stdout, lines := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, cfg, slog.New(slog.NewJSONHandler(ts.log, nil)), lines, opts)
		lines.CloseWithError(fmt.Errorf("serve: %w", errors.Join(err, io.EOF)))
		done <- err
	}()
	ts.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(ts.stop)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, address, _ := strings.Cut(strings.TrimSpace(line), "listening on ")
	ts.url = address
	go io.Copy(io.Discard, stdout)
	return ts
}

// startTwoServers starts two instances that share a database and a key file.
func startTwoServers(t *testing.T, env ...string) (one, two *testServer) {
	t.Helper()
	one = startServer(t, nil, env...)
	return one, startServer(t, nil, append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath())...)
}

// commandUnderTest runs a command of the operator in a process of its own, and returns its exit status.
func commandUnderTest() int {
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "CAIRN_TEST_") })
	err := run(context.Background(), os.Args[1:], env, os.Stdin, os.Stdout, os.Stderr)
	if exitStatus(err) == 3 {
		return 3
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cairn:", err)
		return 1
	}
	return 0
}

// serveUnderTest runs the service in a process of its own, which a test may kill. CAIRN_TEST_DIE_ON names a file whose
// reading kills it. CAIRN_TEST_CHUNK is the number of files in a chunk, CAIRN_TEST_LIFE the length of the lease.
func serveUnderTest() int {
	env := os.Environ()
	cfg, err := loadConfig(env)
	if err == nil {
		if lookup(env, "CAIRN_ARGON2") == "" {
			cfg.argon = cheapArgon()
		}
		limitMemory(cfg)
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err = serve(ctx, cfg, slog.New(slog.NewJSONHandler(os.Stderr, nil)), os.Stdout, optionsUnderTest(env))
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// optionsUnderTest returns the options of serveUnderTest.
func optionsUnderTest(env []string) options {
	o := defaultOptions()
	o.leaseTTL = time.Second
	if life, err := time.ParseDuration(lookup(env, "CAIRN_TEST_LIFE")); err == nil {
		o.leaseTTL = life
	}
	if size, err := strconv.Atoi(lookup(env, "CAIRN_TEST_CHUNK")); err == nil {
		o.batchSize = size
	}
	if name := lookup(env, "CAIRN_TEST_DIE_ON"); name != "" {
		o.beforeRead = func(path string) {
			if path == name {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	return o
}

// process is a service that runs in a process of its own.
type process struct {
	cmd  *exec.Cmd
	url  string
	exit chan struct{} // closed when it has ended
	log  lockedBuffer
}

// startProcess starts the service with these settings in a process of its own. adjust may change how.
func startProcess(t *testing.T, env []string, adjust ...func(*exec.Cmd)) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self), exit: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "CAIRN_TEST_SERVE=1"), env...)
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = &p.log
	for _, change := range adjust {
		change(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		p.cmd.Wait()
		close(p.exit)
	}()
	if err != nil {
		t.Fatalf("the service did not start: %v\n%s", err, p.log.String())
	}
	_, address, _ := strings.Cut(strings.TrimSpace(line), "listening on ")
	p.url = address
	return p
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exit
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
	json   map[string]any // of an object
}

// text returns a string of the answer's object, or "".
func (a answer) text(key string) string {
	s, _ := a.json[key].(string)
	return s
}

// number returns a number of the answer's object, or 0.
func (a answer) number(key string) int {
	n, _ := a.json[key].(float64)
	return int(n)
}

// items returns the items of a list.
func (a answer) items() []map[string]any {
	list, _ := a.json["items"].([]any)
	items := make([]map[string]any, len(list))
	for i := range list {
		items[i] = list[i].(map[string]any)
	}
	return items
}

// failures counts the checks that failed, by test.
var failures sync.Map

// maxFailedChecks is the number of failed checks after which a test stops.
const maxFailedChecks = 5

// check notes what, got and want, unless got is want.
func check[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got == want {
		return
	}
	t.Errorf("%s: got %#v, want %#v", what, got, want)

	counted, _ := failures.LoadOrStore(t, new(atomic.Int32))
	if counted.(*atomic.Int32).Add(1) == maxFailedChecks {
		t.Fatalf("%d checks failed", maxFailedChecks)
	}
}

// checkHas checks that a text has a part.
func checkHas(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		check(t, what, text, "… "+part+" …")
	}
}

// checkLacks checks that a text does not have a part.
func checkLacks(t *testing.T, what, text, part string) {
	t.Helper()
	if strings.Contains(text, part) {
		check(t, what, text, "a text without "+part)
	}
}

// checkAnswer checks the status and the code of an answer.
func checkAnswer(t *testing.T, what string, a answer, status int, code string) {
	t.Helper()
	check(t, what+": status and code of "+string(a.body), fmt.Sprint(a.status, " ", a.text("code")), fmt.Sprint(status, " ", code))
}

// checkError checks that an error has a text.
func checkError(t *testing.T, what string, err error, part string) {
	t.Helper()
	checkHas(t, what, fmt.Sprint(err), part)
}

// onlyItem returns the item of a list of one item.
func onlyItem(t *testing.T, what string, items []map[string]any) map[string]any {
	t.Helper()
	if len(items) != 1 {
		t.Fatalf("%s: got %d items, want 1: %v", what, len(items), items)
	}
	return items[0]
}

// client sends requests to a service.
type client struct {
	t     *testing.T
	url   string
	token string // access token, if any
}

// client returns a client that is not signed in.
func (ts *testServer) client() client { return client{t: ts.t, url: ts.url} }

// do sends a request with a JSON body (unless nil) and further headers, "Name: value".
func (c client) do(method, path string, body any, headers ...string) answer {
	c.t.Helper()
	var reader io.Reader
	if text, ok := body.(string); ok {
		reader = strings.NewReader(text)
	} else if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	a, err := c.send(method, path, reader, headers...)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// send sends a request. It returns an error if there is no answer.
func (c client) send(method, path string, body io.Reader, headers ...string) (a answer, err error) {
	r, err := http.NewRequest(method, c.url+path, body)
	if err != nil {
		return a, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	r.Host = r.Header.Get("Host") // the one of the address, unless a header names another
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	a = answer{status: response.StatusCode, header: response.Header}
	if a.body, err = io.ReadAll(response.Body); err != nil {
		return a, err
	}
	json.Unmarshal(a.body, &a.json) // not every answer is an object
	if said := breach(method, path, a); said != "" && strings.HasPrefix(path, "/api/") {
		c.t.Errorf("openapi.yaml: %s %s: %s", method, path, said)
	}
	return a, nil
}

// must is like do. It ends the test if the answer has another status.
func (c client) must(status int, method, path string, body any, headers ...string) answer {
	c.t.Helper()
	a := c.do(method, path, body, headers...)
	if a.status != status {
		c.t.Fatalf("%s %s: status %d, want %d\n%s", method, path, a.status, status, a.body)
	}
	return a
}

// refused checks that the request is answered with that status and code, as problem details.
func (c client) refused(status int, code, method, path string, body any, headers ...string) answer {
	c.t.Helper()
	a := c.do(method, path, body, headers...)
	if a.status != status || a.text("code") != code || a.header.Get("Content-Type") != "application/problem+json" ||
		a.number("status") != status || a.text("request_id") == "" || a.text("request_id") != a.header.Get("X-Request-Id") {
		c.t.Errorf("%s %s: got %d %s, want %d %s as problem details", method, path, a.status, a.body, status, code)
	}
	return a
}

// as returns the client with another token.
func (c client) as(token string) client {
	c.token = token
	return c
}

const testPassword = "correct horse battery"

// addUser adds an active user with testPassword and a role that holds just these permissions. "all" stands for the role
// admin.
func (ts *testServer) addUser(name string, permissions ...string) (id string) {
	ts.t.Helper()
	ctx := context.Background()
	role := "only-" + name
	if len(permissions) == 1 && permissions[0] == "all" {
		role = adminRole
	} else if _, err := ts.db.Exec(ctx, `
		WITH r AS (INSERT INTO roles (name) VALUES ($1) RETURNING id)
		INSERT INTO role_permissions (role_id, permission) SELECT r.id, unnest($2::text[]) FROM r`, role, permissions); err != nil {
		ts.t.Fatal(err)
	}
	hash := testPasswordHash()
	err := pgx.BeginFunc(ctx, ts.db, func(tx pgx.Tx) error {
		u, err := insertUser(ctx, tx, newUser{username: name, status: statusActive, passwordHash: &hash, roles: []string{role}})
		id = u.ID
		return err
	})
	if err != nil {
		ts.t.Fatal(err)
	}
	return id
}

// realArgon is the setting of a service whose test is about the cost of hashing: the default of the program.
const realArgon = "CAIRN_ARGON2=m=19456,t=2,p=1"

// cheapArgon is the least cost of argon2id. Services of tests hash at this cost unless CAIRN_ARGON2, such as realArgon,
// is among their settings.
func cheapArgon() argonParameters {
	return argonParameters{memory: 8, passes: 1, lanes: 1}
}

// testPasswordHash returns the hash of testPassword, which is made once.
var testPasswordHash = sync.OnceValue(func() string {
	hash, err := newPasswordHasher(cheapArgon()).hash(context.Background(), testPassword)
	if err != nil {
		panic(err)
	}
	return hash
})

// login signs a user in and returns the client with the access token, and the refresh cookie.
func (c client) login(name, password string) (client, string) {
	c.t.Helper()
	a := c.must(http.StatusOK, "POST", "/api/v1/auth/login", map[string]string{"username": name, "password": password})
	return c.as(a.text("access_token")), refreshCookieOf(a)
}

// signIn adds a user who holds just these permissions, and signs the user in.
func (ts *testServer) signIn(name string, permissions ...string) client {
	ts.t.Helper()
	ts.addUser(name, permissions...)
	c, _ := ts.client().login(name, testPassword)
	return c
}

// refreshCookieOf returns the value of the refresh cookie that an answer sets.
func refreshCookieOf(a answer) string {
	for _, cookie := range (&http.Response{Header: a.header}).Cookies() {
		if cookie.Name == "__Host-cairn_refresh" {
			return cookie.Value
		}
	}
	return ""
}

// refresh sends a refresh token.
func (c client) refresh(token string) answer {
	c.t.Helper()
	return c.do("POST", "/api/v1/auth/refresh", nil, "Cookie: __Host-cairn_refresh="+token)
}

// exec runs a statement in the database of the service.
func (ts *testServer) exec(statement string, args ...any) {
	ts.t.Helper()
	if _, err := ts.db.Exec(context.Background(), statement, args...); err != nil {
		ts.t.Fatal(err)
	}
}

// queryInt returns the number that a query selects.
func (ts *testServer) queryInt(query string, args ...any) (n int) {
	ts.t.Helper()
	if err := ts.db.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		ts.t.Fatal(err)
	}
	return n
}

// finished waits for the end of an analysis and returns it.
func (c client) finished(path string) answer {
	c.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		a := c.must(http.StatusOK, "GET", path+"?wait=10s", nil)
		if a.json["finished_at"] != nil {
			return a
		}
	}
	c.t.Fatalf("%s has not ended after two minutes", path)
	panic("unreachable")
}

// analyze starts an analysis, waits for its end and returns it.
func (c client) analyze(dataset string, body any) answer {
	c.t.Helper()
	a := c.must(http.StatusAccepted, "POST", dataset+"/analyses", body)
	return c.finished(a.header.Get("Location"))
}

// counts returns the counts of an analysis, in the order total, added, changed, unchanged, removed, failed.
func counts(a answer) [6]int {
	m, _ := a.json["counts"].(map[string]any)
	var n [6]int
	for i, key := range []string{"total", "added", "changed", "unchanged", "removed", "failed"} {
		f, _ := m[key].(float64)
		n[i] = int(f)
	}
	return n
}

// geographicTIFF returns a small GeoTIFF in degrees (EPSG:4326) whose upper left corner is at this longitude and latitude.
func geographicTIFF(lon, lat float64) []byte {
	place := []testTag{doubles(tagModelPixelScale, 0.25, 0.25, 0), doubles(tagModelTiepoint, 0, 0, 0, lon, lat, 0)}
	keys := geoKeyTag([4]float64{1024, 0, 1, 2}, [4]float64{1025, 0, 1, 1}, [4]float64{2048, 0, 1, 4326})
	return testTIFF{order: binary.LittleEndian, tags: with(testSize(), place, keys)}.build()
}

// addToken makes an API token of a user and returns a client that uses it.
func (ts *testServer) addToken(username, name string, granted ...string) client {
	ts.t.Helper()
	ctx := context.Background()
	var secret string
	err := pgx.BeginFunc(ctx, ts.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, username)
		if err != nil {
			return err
		}
		_, secret, err = createAPIToken(ctx, tx, operatorActor(), u, apiToken{Name: name, Permissions: granted, ExpiresAt: time.Now().Add(time.Hour)})
		return err
	})
	if err != nil {
		ts.t.Fatal(err)
	}
	return ts.client().as(secret)
}

// credentialID returns the id of the session or API token that the client uses.
func (c client) credentialID() string {
	c.t.Helper()
	return c.must(200, "GET", "/api/v1/auth/me", nil).json["credential"].(map[string]any)["id"].(string)
}

// soakOr returns the first number in make soak, else the second: how often a test repeats something that takes long.
func soakOr(soak, test int) int {
	if os.Getenv("CAIRN_SOAK") != "" {
		return soak
	}
	return test
}
