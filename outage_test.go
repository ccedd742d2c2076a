package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
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

// ownPostgres is a PostgreSQL server of one test, which may stop, freeze or kill it.
type ownPostgres struct {
	t        *testing.T
	programs string
	dir      string
	account  serverAccount
	listen   string // addresses beside the socket, separated by commas
	cmd      *exec.Cmd
}

// newOwnPostgres makes the folder of a server, without its data directory, which is p.dir+"/data".
func newOwnPostgres(t *testing.T) *ownPostgres {
	t.Helper()
	programs, err1 := findServerPrograms("")
	dir, err2 := os.MkdirTemp("", "cairn-own-")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p := &ownPostgres{t: t, programs: programs, dir: dir}
	t.Cleanup(func() {
		p.kill()
		os.RemoveAll(dir)
	})
	p.account, err1 = postgresAccount()
	if err := errors.Join(err1, os.Chown(dir, int(p.account.uid), -1)); err != nil {
		t.Fatal(err)
	}
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
		p.cmd = p.account.command(context.Background(), "/", filepath.Join(p.programs, "postgres"), "-D", p.dir+"/data", "-k", p.dir, "-h", p.listen)
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

// processState returns the state of a process in /proc: "T" if it is stopped, "" if there is no such process.
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

// kill kills all processes of the server with SIGKILL.
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

// startOwnPostgres starts a server with a database cairn. Unlike the one of the suite it loses no commit in a crash.
func startOwnPostgres(t *testing.T, settings ...string) *ownPostgres {
	t.Helper()
	p := newOwnPostgres(t)
	if err := makeDataDir(p.dir + "/data"); err != nil {
		t.Fatal(err)
	}
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

// writers publish messages as fast as they can, and remember which were acknowledged.
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

// count returns the numbers of acknowledged changes and of refused requests.
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

// TestDatabaseFrozen: while the database is frozen, with its connections open, no request hangs.
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

// TestFailover: the primary dies, its synchronous standby is promoted, and no acknowledged change is lost. A user who is
// disabled on the new primary is refused.
func TestFailover(t *testing.T) {
	t.Parallel()
	primary := startOwnPostgres(t, "synchronous_standby_names = '*'", "synchronous_commit = local") // until there is a standby
	standby := newOwnPostgres(t)
	standby.must("pg_basebackup", "-h", primary.dir, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-D", standby.dir+"/data")
	standby.start()
	primary.sql("postgres", `ALTER SYSTEM SET synchronous_commit = 'on'`, `SELECT pg_reload_conf()`)
	url := fmt.Sprintf("host=%s,%s user=cairn dbname=cairn", primary.dir, standby.dir)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url)
	c, gone := ts.signIn("root", "all"), ts.signIn("gone", datasetRead)
	gone.must(200, "GET", "/api/v1/auth/me", nil)
	w := startWriters(c)
	w.more(t)
	primary.kill()
	_, before := w.count()
	waitFor(t, "refusals", func() bool { _, refused := w.count(); return refused > before+20 })
	standby.must("pg_ctl", "promote", "-D", standby.dir+"/data")
	standby.sql("cairn", `UPDATE users SET status = 'disabled' WHERE username = 'gone'`,
		`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	waitFor(t, "the service to work", func() bool { a, err := c.send("GET", "/api/v1/users", nil); return err == nil && a.status == 200 })
	gone.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	w.more(t)
	w.check(t, standby)
}

// TestDemotedPrimary: after a write is refused because the host has become a standby, no connection to it is used again.
func TestDemotedPrimary(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+p.url())
	c := ts.signIn("root", "all")
	message := map[string]string{"title": "t", "body": "b"}
	var wg sync.WaitGroup
	for range 16 { // fill the pool
		wg.Go(func() { c.must(201, "POST", "/api/v1/system-messages", message) })
	}
	wg.Wait()
	p.sql("postgres", `ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
	waitFor(t, "a write to be refused", func() bool {
		return c.do("POST", "/api/v1/system-messages", message).status == 503
	})
	ts.client().must(204, "POST", "/api/v1/auth/logout", nil) // of nothing: there is nothing to write
	before := ts.db.Stat().NewConnsCount()
	c.must(200, "GET", mePath, nil)
	if ts.db.Stat().NewConnsCount() == before {
		t.Error("a connection to the standby was used again")
	}
	p.sql("postgres", `ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`)
	waitFor(t, "writes to work", func() bool {
		a, err := c.send("POST", "/api/v1/system-messages", strings.NewReader(`{"title": "t", "body": "b"}`))
		return err == nil && a.status == 201
	})
}

// TestRefusedConnectionIsAnAnswer: a database that refuses a new connection does not count as unreachable, and working
// connections stay open.
func TestRefusedConnectionIsAnAnswer(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	conn, err := ts.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	name := ts.db.Config().ConnConfig.Database
	if err := asSuperuser(fmt.Sprintf(`ALTER DATABASE %s CONNECTION LIMIT 1`, name)); err != nil {
		t.Fatal(err)
	}
	ts.database.probes.Reset()
	waitFor(t, "the refusal to be seen", ts.database.down.Load)
	if _, err := conn.Exec(t.Context(), `SELECT`); err != nil {
		t.Errorf("a working connection was cut: %v", err)
	}
	if err := asSuperuser(fmt.Sprintf(`ALTER DATABASE %s CONNECTION LIMIT -1`, name)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the database to be reachable", func() bool { return !ts.database.down.Load() })
}

// lossyNetwork passes connections on to a database until it is cut. Then it swallows what is sent over
// them, for good, and so it does with new ones, until it is mended.
type lossyNetwork struct {
	listener net.Listener
	target   string // a Unix socket
	mu       sync.Mutex
	isCut    bool
	servers  []net.Conn
}

// newLossyNetwork listens on a free port.
func newLossyNetwork(t *testing.T, target string) *lossyNetwork {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &lossyNetwork{listener: listener, target: target}
	t.Cleanup(func() { n.cut(); listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			n.connect(client)
		}
	}()
	return n
}

// connect begins to pass on what a client sends, and what it is answered.
func (n *lossyNetwork) connect(client net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut {
		return // the client waits
	}
	server, err := net.Dial("unix", n.target)
	if err != nil {
		client.Close()
		return
	}
	n.servers = append(n.servers, server)
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	go func() {
		io.Copy(client, server)
		n.mu.Lock()
		defer n.mu.Unlock()
		if slices.Contains(n.servers, server) { // it is the server that has closed it
			client.Close()
		}
	}()
}

// cut cuts all connections.
func (n *lossyNetwork) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = true
	for _, server := range n.servers {
		server.Close()
	}
	n.servers = nil
}

// mend lets new connections through.
func (n *lossyNetwork) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = false
}

// TestNetworkCut: when packets to the database are lost every request is answered 503, and the first request after
// the network is back works, although the old connections never answer again.
func TestNetworkCut(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	network := newLossyNetwork(t, p.dir+"/.s.PGSQL.5432")
	_, port, _ := net.SplitHostPort(network.listener.Addr().String())
	ts := startServer(t, nil, "CAIRN_DATABASE_URL=host=127.0.0.1 port="+port+" user=cairn dbname=cairn sslmode=disable")
	var clients []client
	for i := range 4 { // together they may use the whole pool
		clients = append(clients, ts.signIn(fmt.Sprintf("root%d", i), "all"))
	}
	c := clients[0]
	w := startWriters(c)
	for range soakOr(10, 2) {
		w.more(t)
		network.cut()
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				if a, err := clients[i%4].send("GET", mePath, nil); err != nil || a.status != 503 || a.text("code") == "too_slow" {
					t.Errorf("while cut: %v %d %s", err, a.status, a.body)
				}
			})
		}
		wg.Wait()
		ts.client().refused(503, "database_unavailable", "GET", "/health", nil)
		waitFor(t, "the outage to be noticed", func() bool { return ts.database.down.Load() })
		network.mend()
		c.must(200, "GET", mePath, nil)
		ts.client().must(200, "GET", "/health", nil)
	}
	w.more(t)
	w.check(t, p)
}
