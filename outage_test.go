package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ownPostgres is a PostgreSQL server that a test may do to as it likes.
type ownPostgres struct {
	t        *testing.T
	programs string
	dir      string
	account  serverAccount
	cmd      *exec.Cmd
}

// newOwnPostgres makes a server's data directory, by initdb or by another program of PostgreSQL's.
func newOwnPostgres(t *testing.T, program string, args ...string) *ownPostgres {
	t.Helper()
	programs, err1 := findServerPrograms("")
	dir, err2 := os.MkdirTemp("/tmp", "cairn-own-")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p := &ownPostgres{t: t, programs: programs, dir: dir}
	t.Cleanup(func() {
		p.kill()
		os.RemoveAll(dir)
	})
	p.account, err1 = accountOf(osuser.Current())
	if os.Geteuid() == 0 {
		p.account, err1 = accountOf(osuser.Lookup("postgres"))
	}
	if err := errors.Join(err1, os.Chown(dir, int(p.account.uid), -1)); err != nil {
		t.Fatal(err)
	}
	p.must(program, append(args, "-D", dir+"/data")...)
	return p
}

// must runs a program of PostgreSQL's to its end.
func (p *ownPostgres) must(program string, args ...string) {
	p.t.Helper()
	if output, err := p.account.command(context.Background(), "/", filepath.Join(p.programs, program), args...).CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", program, err, output)
	}
}

// start starts the server and waits until it takes connections.
func (p *ownPostgres) start() {
	p.t.Helper()
	ready := func() bool {
		conn, err := pgx.Connect(context.Background(), "host="+p.dir+" user=postgres dbname=postgres")
		if err == nil {
			conn.Close(context.Background())
		}
		return err == nil
	}
	var log lockedBuffer
	for range 100 {
		p.cmd = p.account.command(context.Background(), "/", filepath.Join(p.programs, "postgres"), "-D", p.dir+"/data", "-k", p.dir, "-h", "")
		p.cmd.Stderr = &log
		if err := p.cmd.Start(); err != nil {
			p.t.Fatal(err)
		}
		cmd, ended := p.cmd, make(chan bool)
		go func() {
			cmd.Wait()
			close(ended)
		}()
		for {
			if ready() {
				return
			}
			select {
			case <-ended: // what was killed may still hold its shared memory
			case <-p.t.Context().Done():
				p.t.Fatalf("PostgreSQL does not start\n%s", log.String())
			default:
				pause(p.t.Context(), 5*time.Millisecond)
				continue
			}
			break
		}
		pause(p.t.Context(), 20*time.Millisecond)
	}
	p.t.Fatalf("PostgreSQL does not start\n%s", log.String())
}

// processState is what the system tells of a process: "T" where it is stopped, "" where there is none.
func processState(stat string) (pid, parent int, state string) {
	text, _ := os.ReadFile(stat)
	var name string
	fmt.Sscan(string(text), &pid, &name, &state, &parent)
	return pid, parent, state
}

// signal sends a signal to each of the server's processes. Their parent is stopped first, so that it begins no other
// meanwhile.
func (p *ownPostgres) signal(signal syscall.Signal) {
	server := p.cmd.Process.Pid
	syscall.Kill(server, syscall.SIGSTOP)
	for state := "R"; !slices.Contains([]string{"T", "Z", "X", ""}, state); {
		_, _, state = processState(fmt.Sprintf("/proc/%d/stat", server))
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		if pid, parent, _ := processState(stat); parent == server {
			syscall.Kill(pid, signal)
		}
	}
	syscall.Kill(server, signal)
}

// kill is kill -9 of the whole server.
func (p *ownPostgres) kill() {
	if p.cmd != nil {
		p.signal(syscall.SIGKILL)
	}
}

// url names the database cairn.
func (p *ownPostgres) url() string { return "host=" + p.dir + " user=cairn dbname=cairn" }

// sql runs statements as the superuser.
func (p *ownPostgres) sql(database string, statements ...string) {
	p.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "host="+p.dir+" user=postgres dbname="+database)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			p.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// startOwnPostgres starts a server with a database cairn. It keeps what it has said is committed.
func startOwnPostgres(t *testing.T, settings ...string) *ownPostgres {
	t.Helper()
	p := newOwnPostgres(t, "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	conf, err := os.OpenFile(p.dir+"/data/postgresql.auto.conf", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(conf, strings.Join(settings, "\n"))
	conf.Close()
	p.start()
	p.sql("postgres", `CREATE ROLE cairn LOGIN`, `CREATE DATABASE cairn OWNER cairn`)
	return p
}

// writers change things as fast as they can, and remember what was acknowledged.
type writers struct {
	mu       sync.Mutex
	acked    []string
	other    []string // answers that are neither 201 nor 503
	refused  int
	slowest  time.Duration // of the requests answered 503
	sequence atomic.Int64
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// startWriters sends requests over several connections until stop.
func startWriters(c client) *writers {
	ctx, stop := context.WithCancel(context.Background())
	w := &writers{stop: stop}
	for range 8 {
		w.running.Go(func() {
			for ctx.Err() == nil {
				title := fmt.Sprintf("change %d", w.sequence.Add(1))
				began := time.Now()
				a, err := c.send("POST", "/api/v1/system-messages", strings.NewReader(`{"title": "`+title+`", "body": "b"}`))
				w.mu.Lock()
				switch {
				case err == nil && a.status == http.StatusCreated:
					w.acked = append(w.acked, title)
				case err == nil && a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
					w.refused++
					w.slowest = max(w.slowest, time.Since(began))
				default:
					w.other = append(w.other, fmt.Sprint(a.status, string(a.body), err))
				}
				w.mu.Unlock()
				if a.status != http.StatusCreated {
					pause(ctx, 5*time.Millisecond)
				}
			}
		})
	}
	return w
}

// count is how many changes were acknowledged, and how many requests refused.
func (w *writers) count() (acked, refused int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked), w.refused
}

// more waits for further acknowledged changes.
func (w *writers) more(t *testing.T) {
	t.Helper()
	before, _ := w.count()
	waitFor(t, "further changes", func() bool { acked, _ := w.count(); return acked > before+50 })
}

// check ends the writing and looks for every change that was acknowledged.
func (w *writers) check(t *testing.T, p *ownPostgres) {
	t.Helper()
	w.stop()
	w.running.Wait()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, p.url())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := collect[struct{ Title string }](ctx, conn, "list", `SELECT title FROM system_messages`)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]int{}
	for _, row := range rows {
		there[row.Title]++
	}
	for _, title := range w.acked {
		if there[title] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", title, there[title])
		}
	}
	if len(w.other) > 0 {
		t.Errorf("%d answers that are neither 201 nor 503: %s", len(w.other), w.other[0])
	}
	t.Logf("%d changes acknowledged, %d requests answered 503, the slowest of them after %v", len(w.acked), w.refused, w.slowest)
}

// TestDatabaseKilled: kill -9 of the database under load loses no acknowledged change, and the first request after it
// is back works.
func TestDatabaseKilled(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+p.url())
	c := ts.signIn("root", "all")
	w := startWriters(c)
	slowest := time.Duration(0)
	for range soakOr(20, 2) {
		w.more(t)
		p.kill()
		c.refused(503, "database_unavailable", "GET", "/api/v1/users", nil)
		ts.client().refused(503, "database_unavailable", "GET", "/health", nil)
		_, before := w.count()
		waitFor(t, "refusals", func() bool { _, refused := w.count(); return refused > before+20 })
		p.start()
		back := time.Now()
		c.must(200, "GET", "/api/v1/users?limit=1", nil)
		ts.client().must(200, "GET", "/health", nil)
		w.more(t)
		slowest = max(slowest, time.Since(back))
	}
	w.check(t, p)
	t.Logf("it worked fully again at most %v after the database", slowest)
}

// TestDatabaseFrozen: while the database keeps its connections and says nothing no request hangs.
func TestDatabaseFrozen(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+p.url())
	c := ts.signIn("root", "all")
	c.must(200, "GET", "/api/v1/users", nil)
	w := startWriters(c)
	w.more(t)
	p.signal(syscall.SIGSTOP)
	defer p.signal(syscall.SIGCONT)
	var wg sync.WaitGroup
	var mu sync.Mutex
	slowest := time.Duration(0)
	for i := range 60 { // far more than there are connections
		wg.Go(func() {
			began := time.Now()
			path := []string{"/health", "/api/v1/users", "/api/v1/auth/me"}[i%3]
			for range 2 {
				if a, err := c.send("GET", path, nil); err != nil || a.status != 503 && !(a.status == 200 && i%3 == 2) {
					t.Errorf("%s: %v %d %s", path, err, a.status, a.body)
				}
				mu.Lock()
				slowest = max(slowest, time.Since(began))
				mu.Unlock()
				began = time.Now()
			}
		})
	}
	wg.Wait()
	p.signal(syscall.SIGCONT)
	waitFor(t, "the service to work", func() bool { a, err := c.send("GET", "/api/v1/users", nil); return err == nil && a.status == 200 })
	w.more(t)
	w.check(t, p)
	t.Logf("the slowest answer took %v", slowest)
}

// TestFailover: the primary dies, its synchronous standby is promoted, and nothing that was acknowledged is lost.
// What the service had heard of principals from the old one does not count any more.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := startOwnPostgres(t, "synchronous_standby_names = '*'", "synchronous_commit = local") // until there is a standby
	standby := newOwnPostgres(t, "pg_basebackup", "-h", primary.dir, "-U", "postgres", "-R", "-X", "stream", "-c", "fast")
	standby.start()
	primary.sql("postgres", `ALTER SYSTEM SET synchronous_commit = 'on'`, `SELECT pg_reload_conf()`)
	url := fmt.Sprintf("host=%s,%s user=cairn dbname=cairn", primary.dir, standby.dir)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url)
	c, gone := ts.signIn("root", "all"), ts.signIn("gone", datasetRead)
	waitFor(t, "the principal to be cached", func() bool {
		before := ts.principals.hits.Load()
		gone.must(200, "GET", "/api/v1/auth/me", nil)
		return ts.principals.hits.Load() > before
	})
	w := startWriters(c)
	w.more(t)
	primary.kill()
	_, before := w.count()
	waitFor(t, "refusals", func() bool { _, refused := w.count(); return refused > before+20 })
	standby.must("pg_ctl", "promote", "-D", standby.dir+"/data")
	standby.sql("cairn", `SET session_replication_role = replica`, // so that nobody is told
		`UPDATE users SET status = 'disabled' WHERE username = 'gone'`, `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	waitFor(t, "the service to work", func() bool { a, err := c.send("GET", "/api/v1/users", nil); return err == nil && a.status == 200 })
	gone.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	w.more(t)
	w.check(t, standby)
}

// TestPoolFrozen: that the pool's connections get no answer is found out while the listener's own still does.
func TestPoolFrozen(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+p.url())
	c := ts.signIn("root", "all")
	waitFor(t, "a heartbeat", func() bool {
		ts.principals.mu.RLock()
		defer ts.principals.mu.RUnlock()
		return !ts.principals.heard.IsZero()
	})
	conn, err := pgx.Connect(t.Context(), p.url())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	waitFor(t, "it to be found out", func() bool { // a connection may just have been in use, or being made
		const query = `SELECT pid FROM pg_stat_activity WHERE application_name = 'cairn' AND query NOT LIKE 'LISTEN%'`
		backends, err := collect[struct{ PID int }](t.Context(), conn, "list", query)
		if err != nil {
			t.Fatal(err)
		}
		for _, backend := range backends {
			syscall.Kill(backend.PID, syscall.SIGSTOP)
			t.Cleanup(func() { syscall.Kill(backend.PID, syscall.SIGCONT) })
		}
		return ts.outages.Load() > 0
	})
	waitFor(t, "the service to work", func() bool { a, err := c.send("GET", "/api/v1/users", nil); return err == nil && a.status == 200 })
}
