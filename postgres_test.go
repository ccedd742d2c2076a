package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// privatePostgresHelperEnv names the state directory to a process of this test binary that stands for a Cairn with a
// private server. A test may kill it.
const privatePostgresHelperEnv = "CAIRN_TEST_PRIVATE_POSTGRES"

// servePrivatePostgres runs a private server until standard input ends, and returns the exit status of the process.
func servePrivatePostgres() int {
	p, err := startPrivatePostgres(context.Background(), os.Getenv(privatePostgresHelperEnv), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err == nil {
		fmt.Println("private server runs")
		io.Copy(io.Discard, os.Stdin)
		err = p.stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startPrivatePostgresHelper starts servePrivatePostgres in a process of its own, in an environment that is meant to
// mislead it.
func startPrivatePostgresHelper(t *testing.T, stateDir string) (cmd *exec.Cmd, output *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), privatePostgresHelperEnv+"="+stateDir,
		"PGHOST=/nowhere", "PGPORT=1", "PGUSER=nobody", "PGSERVICE=none", "PGOPTIONS=-c fsync=off", "PGDATA=/nowhere", "PGSSLMODE=verify-full")
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil { // open until this process ends
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killAndWait(cmd) })
	return cmd, bufio.NewScanner(stdout)
}

// killAndWait kills a child process with SIGKILL and waits for its end.
func killAndWait(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// newStateDir returns the path of a state directory that does not exist yet. The user that root's server runs as can
// reach it. A server that still runs in it at the end of the test is an error, and is ended.
func newStateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cairn-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	stateDir := filepath.Join(dir, "state")
	t.Cleanup(func() {
		if pid := postmasterPID(t, stateDir); pid > 0 && isProcess(pid) {
			t.Errorf("server %d was left behind", pid)
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			waitFor(t, "its end", func() bool { return !isProcess(pid) })
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return stateDir
}

// mustStartPrivatePostgres starts a private server. It stops at the end of the test at the latest.
func mustStartPrivatePostgres(t *testing.T, stateDir string) *privatePostgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := startPrivatePostgres(ctx, stateDir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.stop() })
	return p
}

// postmasterPID returns the process id of a state directory's server. It is 0 if there is none, or if its file is being
// written.
func postmasterPID(t *testing.T, stateDir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(stateDir, "postgres", "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) || len(text) == 0 {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("postmaster.pid: %v", err)
	}
	return pid
}

// isProcess reports whether a process runs. A zombie has no arguments.
func isProcess(pid int) bool {
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(arguments) > 0
}

// dialPrivatePostgres connects as another process does that knows just the state directory.
func dialPrivatePostgres(t *testing.T, stateDir string) (*pgx.Conn, error) {
	t.Helper()
	config, closeDir, err := findPrivatePostgres(stateDir)
	if err != nil {
		return nil, err
	}
	defer closeDir()
	return pgx.ConnectConfig(t.Context(), config.ConnConfig)
}

// execPrivatePostgres runs one statement on a new connection.
func execPrivatePostgres(t *testing.T, stateDir, statement string) error {
	t.Helper()
	conn, err := dialPrivatePostgres(t, stateDir)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), statement)
	return err
}

// mustExecPrivatePostgres is like execPrivatePostgres. An error ends the test.
func mustExecPrivatePostgres(t *testing.T, stateDir, statement string) {
	t.Helper()
	if err := execPrivatePostgres(t, stateDir, statement); err != nil {
		t.Fatal(err)
	}
}

// onlySixIsThere is a statement that fails unless the table kept holds 6 and nothing else.
const onlySixIsThere = `SELECT 1 / (CASE WHEN count(*) = 1 AND min(n) = 6 THEN 1 ELSE 0 END) FROM kept`

// TestPrivatePostgres: the private server runs with safe settings as its own user, is found by other commands, is started
// again after a crash, and is stopped with the service.
func TestPrivatePostgres(t *testing.T) {
	t.Parallel()
	short := newStateDir(t)
	stateDir := filepath.Join(short, strings.Repeat("long", 30), strings.Repeat("path", 30))
	if _, _, err := findPrivatePostgres(stateDir); err == nil || !strings.Contains(err.Error(), "cairn serve") || !strings.Contains(err.Error(), stateDir) {
		t.Errorf("find before the first start: %v", err)
	}

	p := mustStartPrivatePostgres(t, stateDir)
	conn, err := dialPrivatePostgres(t, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		`SELECT current_user || ' in ' || current_database()`: "cairn in cairn",
		`SELECT concat_ws(' ', rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls)
		   FROM pg_roles WHERE rolname = current_user`: "f f f f f",
		`SELECT pg_get_userbyid(datdba) || ' ' || pg_encoding_to_char(encoding) || ' ' || datcollate
		   FROM pg_database WHERE datname = 'cairn'`: "cairn UTF8 C",
		`SHOW listen_addresses`:                "",
		`SHOW fsync`:                           "on",
		`SHOW data_checksums`:                  "on",
		`SHOW jit`:                             "off",
		`SHOW max_parallel_workers_per_gather`: "0",
		`SHOW TimeZone`:                        "UTC",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), query).Scan(&got); err != nil || strings.TrimPrefix(got, "Etc/") != want {
			t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
	if _, err := conn.Exec(t.Context(), "CREATE EXTENSION btree_gist; CREATE EXTENSION pg_trgm; CREATE TABLE kept (n int); INSERT INTO kept VALUES (6)"); err != nil {
		t.Error(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	first := postmasterPID(t, stateDir)
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", first)); err != nil || ownerOf(info) == 0 {
		t.Errorf("the server runs as root, or not at all: %v", err)
	}
	if info, err := os.Stat(p.dataDir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data directory: %v, %v", info.Mode(), err)
	}

	if _, err := startPrivatePostgres(t.Context(), stateDir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "another cairn uses the state directory") {
		t.Errorf("second start: %v", err)
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere) // the first server still works

	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", first)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after stop, process %d is still there, if only as a zombie: %v", first, err)
	}
	if _, _, err := findPrivatePostgres(stateDir); err == nil || !strings.Contains(err.Error(), "cairn serve") || !strings.Contains(err.Error(), p.dataDir()) {
		t.Errorf("find after stop: %v", err)
	}

	logPath := filepath.Join(stateDir, "postgres.log")
	if err := os.Truncate(logPath, serverLogLimit+1); err != nil {
		t.Fatal(err)
	}
	p = mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if info, err := os.Stat(logPath); err != nil || info.Size() > serverLogLimit {
		t.Errorf("the server's log was not emptied: %v", err)
	}
	second := postmasterPID(t, stateDir)
	if err := syscall.Kill(second, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server to run again", func() bool {
		return postmasterPID(t, stateDir) != second && execPrivatePostgres(t, stateDir, onlySixIsThere) == nil
	})
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPrivatePostgresEndsWithCairn: the private server ends when Cairn is killed. The next start works at once, and no
// committed row is lost.
func TestPrivatePostgresEndsWithCairn(t *testing.T) {
	t.Parallel()
	stateDir := newStateDir(t)
	cairn, output := startPrivatePostgresHelper(t, stateDir)
	if !output.Scan() {
		t.Fatal("the helper process did not start a server")
	}
	mustExecPrivatePostgres(t, stateDir, "CREATE TABLE kept (n int)")
	mustExecPrivatePostgres(t, stateDir, "INSERT INTO kept VALUES (6)")
	pid := postmasterPID(t, stateDir)
	killAndWait(cairn)
	waitFor(t, "the server to end after kill -9 of Cairn", func() bool { return !isProcess(pid) })

	// A server starts at once after a kill, and is supervised and stopped.
	cairn, output = startPrivatePostgresHelper(t, stateDir)
	if !output.Scan() {
		t.Fatal("the helper process did not start a server")
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	pid = postmasterPID(t, stateDir)
	killAndWait(cairn)
	p := mustStartPrivatePostgres(t, stateDir)
	if got := postmasterPID(t, stateDir); got == pid {
		t.Errorf("the server of the killed Cairn, %d, is still there", pid)
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	pid = postmasterPID(t, stateDir)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server to run again", func() bool {
		return postmasterPID(t, stateDir) != pid && execPrivatePostgres(t, stateDir, onlySixIsThere) == nil
	})
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// Both are killed with SIGKILL. The next start recovers what was committed.
	cairn, output = startPrivatePostgresHelper(t, stateDir)
	if !output.Scan() {
		t.Fatal("the helper process did not start a server")
	}
	mustExecPrivatePostgres(t, stateDir, "UPDATE kept SET n = n + 1")
	mustExecPrivatePostgres(t, stateDir, "UPDATE kept SET n = n - 1")
	pid = postmasterPID(t, stateDir)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // so that it cannot shut down
		t.Fatal(err)
	}
	killAndWait(cairn)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p = mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// A start waits for a server that is shutting down, here until a process of that server lets it end.
	cairn, output = startPrivatePostgresHelper(t, stateDir)
	if !output.Scan() {
		t.Fatal("the helper process did not start a server")
	}
	client, err := dialPrivatePostgres(t, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	pid = postmasterPID(t, stateDir)
	backend := int(client.PgConn().PID())
	if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(backend, syscall.SIGCONT) })
	killAndWait(cairn)
	waitFor(t, "the server to refuse connections", func() bool {
		refusal, ok := errors.AsType[*pgconn.PgError](execPrivatePostgres(t, stateDir, "SELECT 1"))
		return ok && refusal.Code == cannotConnectNow
	})
	waits := make(chan struct{})
	go func() {
		<-waits
		_ = syscall.Kill(backend, syscall.SIGCONT)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err = startPrivatePostgres(ctx, stateDir, slog.New(slog.NewTextHandler(&closeOn{text: "waits for another server", seen: waits}, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got := postmasterPID(t, stateDir); got == pid {
		t.Error("the server that was shutting down is still there")
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// closeOn is a writer that closes a channel when a text is written for the first time.
type closeOn struct {
	text string
	seen chan struct{}
	done bool
}

// Write implements io.Writer.
func (w *closeOn) Write(p []byte) (int, error) {
	if !w.done && bytes.Contains(p, []byte(w.text)) {
		w.done = true
		close(w.seen)
	}
	return len(p), nil
}

// TestPrivatePostgresStaleProcessID: a start is not misled by a process id that a crash left in a file and that another
// process has now.
func TestPrivatePostgresStaleProcessID(t *testing.T) {
	t.Parallel()
	stateDir := newStateDir(t)
	p := mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, "CREATE TABLE kept AS SELECT 6 AS n")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	// The process id that a crash left in the files now belongs to another process of the server's user.
	other := p.account.command(t.Context(), "/", "/bin/sleep", "300")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	for _, name := range []string{"postmaster.pid", ".s.PGSQL.5432.lock"} {
		path := filepath.Join(p.dataDir(), name)
		text := fmt.Sprintf("%d\n%s\n1700000000\n5432\n.\n\n  1 1\nready   \n", other.Process.Pid, p.dataDir())
		err := os.WriteFile(path, []byte(text), 0o600)
		if err == nil {
			err = os.Chown(path, int(p.account.uid), int(p.account.gid))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// If a process listens there, but is too busy to accept a connection, it may be the server.
	letGo := listenAndRefuse(t, filepath.Join(p.dataDir(), serverSocketName))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := startPrivatePostgres(ctx, stateDir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a second server was started")
	}
	if got := postmasterPID(t, stateDir); got != other.Process.Pid {
		t.Errorf("postmaster.pid of what may be the server: %d", got)
	}
	letGo()

	p = mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Errorf("a process that is not ours was ended: %v", err)
	default:
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended

	// A power failure left the file empty.
	if err := os.WriteFile(filepath.Join(p.dataDir(), "postmaster.pid"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p = mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	// The data directory has a major version that is not installed.
	if err := os.WriteFile(filepath.Join(p.dataDir(), "PG_VERSION"), []byte("3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first start releases the lock
		if _, err := startPrivatePostgres(t.Context(), stateDir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "postgresql-3") {
			t.Errorf("start with a data directory of another version: %v", err)
		}
	}
}

// listenAndRefuse listens on a socket whose queue is full. The function that it returns ends that.
func listenAndRefuse(t *testing.T, path string) (letGo func()) {
	t.Helper()
	var sockets [2]int
	for i := range sockets {
		var err error
		if sockets[i], err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	address := &syscall.SockaddrUnix{Name: path}
	if err := errors.Join(syscall.Bind(sockets[0], address), syscall.Listen(sockets[0], 0), syscall.Connect(sockets[1], address)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(syscall.Close(sockets[0]), syscall.Close(sockets[1]), os.Remove(path)); err != nil {
			t.Error(err)
		}
	}
}

// TestPrivatePostgresInUse: a start waits while other processes still use the data directory.
func TestPrivatePostgresInUse(t *testing.T) {
	t.Parallel()
	stateDir := newStateDir(t)
	cairn, output := startPrivatePostgresHelper(t, stateDir)
	if !output.Scan() {
		t.Fatal("the helper process did not start a server")
	}
	mustExecPrivatePostgres(t, stateDir, "CREATE TABLE kept AS SELECT 6 AS n")

	// A process of a killed server goes on, and the lock file is empty.
	client, err := dialPrivatePostgres(t, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	survivor, err := os.FindProcess(int(client.PgConn().PID()))
	if err != nil {
		t.Fatal(err)
	}
	if err := survivor.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = survivor.Kill() })
	killAndWait(cairn)
	c, err := findCluster(stateDir, "")
	if err != nil {
		t.Fatal(err)
	}
	pid := postmasterPID(t, stateDir)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the server to end", func() bool { return !isProcess(pid) })
	if err := os.Truncate(filepath.Join(c.dataDir(), "postmaster.pid"), 0); err != nil {
		t.Fatal(err)
	}
	type started struct {
		p   *privatePostgres
		err error
	}
	result := make(chan started, 1)
	start := func(log io.Writer) {
		p, err := startPrivatePostgres(t.Context(), stateDir, slog.New(slog.NewTextHandler(log, nil)))
		result <- started{p, err}
	}
	kept := make(chan struct{})
	go start(&closeOn{text: "waits for another server", seen: kept})
	select {
	case <-kept:
	case <-time.After(30 * time.Second):
		t.Error("the survivor was not noticed")
	}
	if err := survivor.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first := <-result
	if first.err != nil {
		t.Fatal(first.err)
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := first.p.stop(); err != nil {
		t.Fatal(err)
	}

	// An operator uses the data directory in single-user mode.
	programs, err := findServerPrograms("")
	if err != nil {
		t.Fatal(err)
	}
	single := c.account.command(t.Context(), c.dataDir(), filepath.Join(programs, "postgres"), "--single", "-D", c.dataDir(), "cairn")
	stdin, err := single.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := single.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it to have the data directory", func() bool { return postmasterPID(t, stateDir) == -single.Process.Pid })
	noticed := make(chan struct{})
	go start(&closeOn{text: "waits for another server", seen: noticed})
	select {
	case <-noticed:
	case <-time.After(30 * time.Second):
		t.Error("single-user mode was not noticed")
	}
	if err := errors.Join(stdin.Close(), single.Wait()); err != nil {
		t.Error(err)
	}
	second := <-result
	if second.err != nil {
		t.Fatal(second.err)
	}
	mustExecPrivatePostgres(t, stateDir, onlySixIsThere)
	if err := second.p.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPrivatePostgresInterruptedFirstStart: a first start that was killed or cancelled leaves nothing that hinders the next.
func TestPrivatePostgresInterruptedFirstStart(t *testing.T) {
	t.Parallel()
	stateDir := newStateDir(t)
	cairn, output := startPrivatePostgresHelper(t, stateDir)
	waitFor(t, "initdb to be at work", func() bool {
		begun, err := filepath.Glob(filepath.Join(stateDir, unfinishedPrefix+"*", "PG_VERSION"))
		return err == nil && len(begun) >= 1
	})
	killAndWait(cairn)
	if output.Scan() && strings.Contains(output.Text(), "runs") {
		t.Fatal("the helper process was not interrupted in time")
	}

	// The same happens again, now by a cancelled context.
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := make(chan error, 1)
	go func() {
		_, err := startPrivatePostgres(ctx, stateDir, slog.New(slog.DiscardHandler))
		interrupted <- err
	}()
	waitFor(t, "initdb to be at work again", func() bool {
		begun, err := filepath.Glob(filepath.Join(stateDir, unfinishedPrefix+"*", "PG_VERSION"))
		return err == nil && len(begun) >= 2
	})
	cancel()
	if err := <-interrupted; err == nil {
		t.Fatal("the start was not interrupted in time")
	}

	p := mustStartPrivatePostgres(t, stateDir)
	mustExecPrivatePostgres(t, stateDir, "CREATE TABLE kept AS SELECT 6 AS n")
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	p = mustStartPrivatePostgres(t, stateDir) // by now the orphaned initdb has ended
	if left, err := filepath.Glob(filepath.Join(stateDir, unfinishedPrefix+"*")); err != nil || left != nil {
		t.Errorf("unfinished data directories are left: %v, %v", left, err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPrivatePostgresTwoFirstStarts: of two first starts in one state directory exactly one succeeds.
func TestPrivatePostgresTwoFirstStarts(t *testing.T) {
	t.Parallel()
	stateDir := newStateDir(t)
	running := make(chan *privatePostgres, 2)
	for range 2 {
		go func() {
			p, err := startPrivatePostgres(t.Context(), stateDir, slog.New(slog.DiscardHandler))
			if err != nil {
				fmt.Fprintln(t.Output(), "refused:", err)
			}
			running <- p
		}()
	}
	first, second := <-running, <-running
	if (first == nil) == (second == nil) {
		t.Error("not just one of two services runs")
	}
	for _, p := range []*privatePostgres{first, second} {
		if p == nil {
			continue
		}
		mustExecPrivatePostgres(t, stateDir, "SELECT 1")
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestFindServerPrograms: the programs of the newest supported version are found, or those of the version asked for. An
// error says which package to install.
func TestFindServerPrograms(t *testing.T) {
	t.Parallel()
	fake := func(version string, names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	old := fake("14.9 (Debian 14.9-1)", "initdb", "postgres")
	fifteen := fake("15.13 (Debian 15.13-0+deb12u1)", "initdb", "postgres")
	beta := fake("18beta2", "initdb", "postgres")
	half := fake("19.1", "postgres")
	linked := t.TempDir()
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.Symlink(filepath.Join(fifteen, name), filepath.Join(linked, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, check := range []struct {
		version string
		path    string
		folders []string
		want    string
		wantErr string
	}{
		{"", linked, nil, fifteen, ""},
		{"", linked, []string{old, beta, half}, beta, ""},
		{"15", old + ":" + beta, []string{linked}, fifteen, ""},
		{"14", beta, []string{old}, old, ""},
		{"", old, []string{half, filepath.Join(old, "missing-*")}, "", "PostgreSQL 15 or later are not installed (found: 14 in " + old + "): apt-get install postgresql"},
		{"", "/nonexistent", nil, "", "(found: none): apt-get install postgresql"},
		{"17", fifteen, nil, "", "needs the server programs of PostgreSQL 17 (found: 15 in " + fifteen + "): apt-get install postgresql-17"},
	} {
		got, err := findServerPrograms(check.version, append(filepath.SplitList(check.path), check.folders...)...)
		if got != check.want || (err == nil) != (check.wantErr == "") || err != nil && (!strings.HasSuffix(err.Error(), check.wantErr) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("version %q in %s and %v: %s, %v; want %s, %s", check.version, check.path, check.folders, got, err, check.want, check.wantErr)
		}
	}
}
