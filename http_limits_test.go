package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// holdLock holds what a statement locks until release is called.
func (ts *testServer) holdLock(statement string, args ...any) (release func()) {
	ts.t.Helper()
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, ts.db.Config().ConnConfig)
	if err == nil {
		_, err = conn.Exec(ctx, `BEGIN`)
	}
	if err == nil {
		_, err = conn.Exec(ctx, statement, args...)
	}
	if err != nil {
		ts.t.Fatal(err)
	}
	release = sync.OnceFunc(func() { conn.Close(ctx) })
	ts.t.Cleanup(release)
	return release
}

// loop sends a request over and over from several connections at once, until stop is called.
func loop(times int, send func() (answer, error)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range times {
		running.Go(func() {
			for ctx.Err() == nil {
				send()
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// TestOneCallerStarvesNobody: however many requests of one caller are under way, and however long they take, other
// callers are served.
func TestOneCallerStarvesNobody(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32", "CAIRN_REGISTRATION=open")
	root := ts.signIn("root", "all")
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	dataset := root.addDataset("tiles")
	others := func(t *testing.T) {
		t.Helper()
		for range 20 {
			root.must(200, "GET", mePath, nil)
			root.must(200, "GET", "/health", nil)
			root.must(200, "GET", dataset+"/coverage.svg", nil)
		}
	}
	t.Run("24 loops of a query that takes as long as it may", func(t *testing.T) {
		member := ts.signIn("looper", datasetRead)
		script := ts.addToken("looper", "script", datasetRead)
		release := ts.holdLock(`LOCK TABLE system_messages`)
		stop := loop(12, func() (answer, error) { return member.send("GET", "/api/v1/inbox", nil) })
		stopScript := loop(12, func() (answer, error) { return script.send("GET", "/api/v1/inbox", nil) })
		waitFor(t, "the queries to wait", func() bool { return waitingQueries(ts) == ts.places.size })
		others(t)
		if n := waitingQueries(ts); n > ts.places.size {
			t.Errorf("one caller has %d connections, at most %d", n, ts.places.size)
		}
		release()
		stop()
		stopScript()
	})
	t.Run("30 registrations while the lock of all accounts is held", func(t *testing.T) {
		release := ts.holdLock(`SELECT pg_advisory_xact_lock($1)`, int64(lockAccess))
		var running sync.WaitGroup
		for i := range 30 {
			running.Go(func() {
				body := map[string]string{"username": fmt.Sprintf("late%d", i), "password": testPassword}
				ts.client().do("POST", "/api/v1/auth/register", body, "X-Forwarded-For: 10.9.9.9")
			})
		}
		waitFor(t, "the registrations to wait", func() bool { return waitingQueries(ts) > 0 })
		others(t)
		release()
		running.Wait()
	})
	t.Run("four reports", func(t *testing.T) {
		reporter := ts.signIn("reporter", datasetRead)
		// A report that takes its time has this place.
		leave, err := ts.expensive.enter(t.Context(), reporter.must(200, "GET", mePath, nil).text("id"))
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() { reporter.must(200, "GET", dataset+"/report", nil) })
		}
		others(t)
		reporter.must(200, "GET", mePath, nil)
		leave()
		running.Wait()
	})
}

// waitingQueries counts the statements of this test's database that wait for a lock.
func waitingQueries(ts *testServer) int {
	return ts.queryInt(`SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}

// TestCallerLimit: places are given in the order of asking, given back once, and forgotten when nobody wants them.
func TestCallerLimit(t *testing.T) {
	t.Parallel()
	l := newCallerLimit(2)
	first, err1 := l.enter(t.Context(), "a")
	second, err2 := l.enter(t.Context(), "a")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if leave, err := l.enter(gone, "a"); err != context.Canceled {
		t.Errorf("a third entered: %v", err)
	} else {
		leave()
	}
	other, err := l.enter(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	first()
	first() // does nothing
	third, err := l.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	if _, err := l.enter(late, "a"); err == nil || err.(*problem).status != http.StatusServiceUnavailable {
		t.Errorf("a fourth entered: %v", err)
	}
	second()
	third()
	if len(l.callers) != 0 {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
}

// TestFullLine: a line that is full is refused at once.
func TestFullLine(t *testing.T) {
	t.Parallel()
	l := newCallerLimit(2)
	for range maxInLine {
		go l.enter(t.Context(), "a")
	}
	waitFor(t, "the line to fill", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.callers["a"] != nil && l.callers["a"].inLine == maxInLine
	})
	if _, err := l.enter(t.Context(), "a"); err != errBusy {
		t.Errorf("entered: %v", err)
	}
}

// raw is a connection on which a test writes requests itself.
type raw struct {
	net.Conn
	in *bufio.Reader
}

// raw connects to the service.
func (ts *testServer) raw() *raw {
	ts.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		ts.t.Fatal(err)
	}
	ts.t.Cleanup(func() { conn.Close() })
	return &raw{conn, bufio.NewReader(conn)}
}

// send writes a request, or the rest of one, and returns the status of the answer.
func (c *raw) send(text string) (status int, err error) {
	if _, err := io.WriteString(c, text); err != nil {
		return 0, err
	}
	a, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	return a.StatusCode, err
}

// TestConnectionOutlivesTimeLimit: a change that runs into its time limit leaves its connection usable.
func TestConnectionOutlivesTimeLimit(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	for _, request := range []string{
		"DELETE /api/v1/auth/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + c.token + "\r\n\r\n",
		"PATCH /api/v1/auth/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + c.token +
			"\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{\"display_name\": \"x\"}",
	} {
		release := ts.holdLock(`LOCK TABLE sessions, users IN SHARE MODE`) // writes wait, reads do not
		conn := ts.raw()
		if status, err := conn.send(request); status != 503 {
			t.Errorf("%.30s: %d %v", request, status, err)
		}
		release()
		for range 2 {
			if status, err := conn.send("GET " + mePath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + c.token + "\r\n\r\n"); status != 200 {
				t.Errorf("the next request after %.30s: %d %v", request, status, err)
			}
		}
	}
}

// TestUnknownTokensShareAPlace: a network that sends unknown API tokens is one caller, however many tokens it sends.
func TestUnknownTokensShareAPlace(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	release := ts.holdLock(`LOCK TABLE api_tokens`)
	stop := loop(40, func() (answer, error) {
		token, _ := newAPIToken()
		return ts.client().as(token).send("GET", mePath, nil)
	})
	waitFor(t, "the tokens to be looked up", func() bool { return waitingQueries(ts) == ts.networkPlaces.size })
	for range 20 {
		c.must(200, "GET", mePath, nil)
	}
	if n := waitingQueries(ts); n > ts.networkPlaces.size {
		t.Errorf("%d connections, at most %d", n, ts.networkPlaces.size)
	}
	release()
	stop()
}

// TestSlowBodies: bodies that do not arrive hold no place that another request of the network needs.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	cookie := ts.signInForCookie("ada")
	var slow []*raw
	for range 24 {
		conn := ts.raw()
		io.WriteString(conn, "POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		slow = append(slow, conn)
	}
	waitFor(t, "the bodies to be read", func() bool {
		ts.bodies.mu.Lock()
		defer ts.bodies.mu.Unlock()
		line := ts.bodies.callers["127.0.0.1"]
		return line != nil && line.inLine == len(slow)
	})
	for range 6 {
		a := ts.client().refresh(cookie)
		if a.status != 200 {
			t.Fatalf("refresh: %d %s", a.status, a.body)
		}
		cookie = refreshCookieOf(a)
	}
	if status, err := slow[0].send(strings.Repeat("x", 99)); status != 400 {
		t.Errorf("the body that arrives at last: %d %v", status, err)
	}
	// The others never arrive. That is no fault of the server.
	for _, conn := range slow[1:] {
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if a, err := io.ReadAll(conn.in); err != nil || !bytes.HasPrefix(a, []byte("HTTP/1.1 400 ")) {
			t.Errorf("a connection whose body never arrives: %v %s", err, a)
		}
	}
}

// TestHealthFlood: the instance's own probes are answered, however many requests for GET /health there are.
func TestHealthFlood(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	before := ts.database.outages.Load()
	stop := loop(200, func() (answer, error) { return ts.client().send("GET", "/health", nil) })
	for range 200 {
		if err := ts.database.probe(t.Context()); err != nil {
			t.Errorf("probe: %v", err)
		}
		if n := ts.database.own.Stat().AcquiredConns(); n > 2 {
			t.Fatalf("%d connections", n)
		}
	}
	stop()
	if n := ts.database.outages.Load(); n != before {
		t.Errorf("%d outages were seen", n-before)
	}
}

// signInForCookie adds a user and returns a refresh cookie.
func (ts *testServer) signInForCookie(name string) string {
	ts.addUser(name, "all")
	_, cookie := ts.client().login(name, testPassword)
	return cookie
}

// TestRevokedWhileReceived: a credential that is revoked while the body arrives is refused.
func TestRevokedWhileReceived(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c, root := ts.signIn("ada", datasetManage, datasetRead), ts.signIn("root", "all")
	ada := c.must(200, "GET", mePath, nil).text("id")
	conn := ts.raw()
	body := `{"name": "changed by nobody"}`
	fmt.Fprintf(conn, "PATCH /api/v1/datasets/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", c.token, len(body), body[:5])
	root.must(200, "PATCH", "/api/v1/users/"+ada, map[string]string{"status": "disabled"})
	if status, err := conn.send(body[5:]); status != 401 {
		t.Errorf("%d %v", status, err)
	}
}

// TestManySessions: a user with 20,000 sessions can be disabled within the time limit.
func TestManySessions(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c, root := ts.signIn("ada", datasetRead), ts.signIn("root", "all")
	ada := c.must(200, "GET", mePath, nil).text("id")
	ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at)
		SELECT gen_random_uuid(), $1, now() + interval '1 day', now() + interval '1 day' FROM generate_series(1, 20000)`, ada)
	root.must(200, "PATCH", "/api/v1/users/"+ada, map[string]string{"status": "disabled"})
	c.refused(401, "invalid_token", "GET", mePath, nil)
	if n := ts.queryInt(`SELECT count(*)::int FROM audit_log WHERE action = 'session.end' AND target = 'user:ada'`); n != 20001 {
		t.Errorf("%d sessions are audited", n)
	}
}
