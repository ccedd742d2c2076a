package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
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
		waitFor(t, "the queries to wait", func() bool { return waitingQueries(ts) == ts.limits.pool.perCaller })
		others(t)

		// The database takes a moment to end a query whose request ran out of its time.
		waitFor(t, "one caller to have its share of the connections at most", func() bool {
			return waitingQueries(ts) <= ts.limits.pool.perCaller
		})
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

	t.Run("requests that compute", func(t *testing.T) {
		reporter := ts.signIn("reporter", datasetRead)

		// A request that computes for as long as the others run has this slot, and shares it.
		busy := newSlots(ts.limits, reporter.must(200, "GET", mePath, nil).text("id"))
		if err := busy.acquireCore(t.Context()); err != nil {
			t.Fatal(err)
		}
		computing, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			for computing.Err() == nil {
				busy.shareCore(computing, false)
			}
			busy.release()
		})
		for range 4 {
			running.Go(func() { reporter.must(200, "GET", dataset+"/coverage.svg", nil) })
		}
		others(t)
		reporter.must(200, "GET", mePath, nil)
		end()
		running.Wait()
	})
}

// waitingQueries counts the statements of this test's database that wait for a lock.
func waitingQueries(ts *testServer) int {
	return ts.queryInt(`SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}

// TestLimiter: slots are given in the order of asking, given back once, and forgotten when nobody wants them.
func TestLimiter(t *testing.T) {
	t.Parallel()
	l := newLimiter(2, 3)
	acquire := func(caller string) (release func()) {
		t.Helper()
		release, err := l.acquire(t.Context(), caller)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}

	refused := func(want error, ctx context.Context, caller string) {
		t.Helper()
		release, err := l.acquire(ctx, caller)
		if err != want || release != nil {
			t.Errorf("%s: got %v, want %v", caller, err, want)
		}
	}

	gone, leave := context.WithCancel(t.Context())
	leave()
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()

	first, second := acquire("a"), acquire("a")
	refused(context.Canceled, gone, "a")
	other := acquire("b")
	refused(errBusy, late, "c") // three callers together have all slots
	other()
	first()
	first() // does nothing
	third := acquire("a")
	refused(errBusy, late, "a")
	second()
	third()
	if len(l.callers) != 0 || len(l.total) != 0 {
		t.Errorf("%d callers are remembered, %d slots are held", len(l.callers), len(l.total))
	}
}

// TestFullQueue: a request that finds its queue full is refused at once.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	l := newLimiter(2, unbounded)
	for range maxQueue {
		go l.acquire(t.Context(), "a")
	}
	waitFor(t, "the queue to fill", func() bool { return l.length("a") == maxQueue })
	if _, err := l.acquire(t.Context(), "a"); err != errBusy {
		t.Errorf("acquired: %v", err)
	}
}

// TestSharedCore: a request that shares its slot to compute lets others use its slot of the pool meanwhile, unless it is in a
// transaction.
func TestSharedCore(t *testing.T) {
	t.Parallel()
	for _, isInTransaction := range []bool{false, true} {
		l := newLimits(1)
		l.computing = newLimiter(1, 1)
		one, two := newSlots(l, "one"), newSlots(l, "two")
		if err := one.acquire(t.Context(), heavy); err != nil {
			t.Fatal(err)
		}

		computes := make(chan error)
		go func() { computes <- two.acquireCore(t.Context()) }()
		waitFor(t, "the other to wait", func() bool { return l.computing.length("two") == 1 })

		again := make(chan error)
		go func() { again <- one.shareCore(t.Context(), isInTransaction) }()
		if err := <-computes; err != nil {
			t.Fatal(err)
		}
		want := 0
		if isInTransaction {
			want = 1
		}
		check(t, fmt.Sprint("slots of the pool; in a transaction: ", isInTransaction), l.pool.length("one"), want)

		two.release()
		if err := <-again; err != nil {
			t.Fatal(err)
		}
		check(t, "slots of the pool afterwards", l.pool.length("one"), 1)
	}
}

// TestSlots: a request adds only what it lacks, and waits for nothing while others wait for what it holds.
func TestSlots(t *testing.T) {
	t.Parallel()
	l := newLimits(8)
	check(t, "slots to compute", cap(l.computing.total), max(1, runtime.GOMAXPROCS(0)-1))

	held := func(caller string) [3]int {
		return [3]int{l.pool.length(caller), l.classes[slow].length(caller), l.computing.length(caller)}
	}

	acquire := func(s *slots, class class, want [3]int) {
		t.Helper()
		if err := s.acquire(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		if got := held(s.owner); got != want {
			t.Errorf("got %v of the pool, slow and heavy; want %v", got, want)
		}
	}

	one := newSlots(l, "a")
	acquire(one, quick, [3]int{1, 0, 0})
	acquire(one, slow, [3]int{1, 1, 0})
	acquire(one, bulk, [3]int{1, 1, 0})
	acquire(one, heavy, [3]int{1, 0, 1})
	acquire(one, slow, [3]int{1, 0, 1})
	one.release()
	if got := held("a"); got != [3]int{} {
		t.Errorf("after release: %v", got)
	}

	acquire(one, heavy, [3]int{1, 0, 1})
	two := newSlots(l, "a")
	acquire(two, slow, [3]int{2, 1, 1})
	waiting := make(chan error)
	go func() { waiting <- two.acquire(t.Context(), heavy) }()
	waitFor(t, "the second to wait for heavy without a slot of the pool", func() bool { return held("a") == [3]int{1, 0, 2} })
	one.release()
	if err := <-waiting; err != nil {
		t.Error(err)
	}

	two.release()
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
		// Writes wait, and reads do not.
		release := ts.holdLock(`LOCK TABLE sessions, users IN SHARE MODE`)
		conn := ts.raw()
		if status, err := conn.send(request); status != 503 {
			t.Errorf("%.30s: %d %v", request, status, err)
		}
		release()

		next := "GET " + mePath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + c.token + "\r\n\r\n"
		for range 2 {
			if status, err := conn.send(next); status != 200 {
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

	waitFor(t, "the tokens to be looked up", func() bool { return waitingQueries(ts) == ts.limits.pool.perCaller })
	for range 20 {
		c.must(200, "GET", mePath, nil)
	}
	if n := waitingQueries(ts); n > ts.limits.pool.perCaller {
		t.Errorf("%d connections, at most %d", n, ts.limits.pool.perCaller)
	}

	release()
	stop()
}

// TestSlowBodies: bodies that do not arrive hold no slot that another request of the network needs.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	cookie := ts.signInForCookie("ada")
	var slow []*raw

	for range 300 {
		conn := ts.raw()
		io.WriteString(conn, "POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		slow = append(slow, conn)
	}

	waitFor(t, "the bodies to be read", func() bool {
		ts.limits.bodies.mu.Lock()
		defer ts.limits.bodies.mu.Unlock()
		return ts.limits.bodies.all == int64(len(slow))
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

// TestByteLimiter: bytes in memory have a bound for each caller, and one for all. A caller with nothing else in memory
// always has room.
func TestByteLimiter(t *testing.T) {
	t.Parallel()
	l := newByteLimiter(400)
	for _, step := range []struct {
		caller string
		bytes  int64
		want   bool
	}{
		{"a", 60, true},
		{"a", 40, true},
		{"a", 1, false}, // more than a fourth
		{"a", -1, true},
		{"b", 300, true}, // nothing else of b is in memory
		{"b", 1, false},
		{"b", -1, true},
		{"c", 50, true}, // nor of c, although all have their bound
		{"c", 1, false},
		{"c", -51, true},
		{"b", -300, true},
		{"a", -100, true},
	} {
		got := l.add(step.caller, step.bytes)
		if isMore := step.bytes > 0; isMore && got != step.want {
			t.Errorf("%d more bytes of %s have room: %v, want %v", step.bytes, step.caller, got, step.want)
		}
	}

	if len(l.callers) > 0 || l.all != 0 {
		t.Errorf("%d bytes of %d callers are left, want none", l.all, len(l.callers))
	}
}

// fillBodies sends requests with large bodies that never end, until those of the client's caller have no more room.
func (ts *testServer) fillBodies(token, caller string) {
	ts.t.Helper()
	part := strings.Repeat(" ", large-1)
	for range maxBodies/ownShare/large + 8 {
		conn := ts.raw()
		fmt.Fprintf(conn, "POST /api/v1/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", token, large, part)
	}
	waitFor(ts.t, "the bodies to fill the room", func() bool {
		ts.limits.bodies.mu.Lock()
		defer ts.limits.bodies.mu.Unlock()
		return ts.limits.bodies.callers[caller] > maxBodies/ownShare-large
	})
}

// TestBodiesOfOthers: large bodies that come with an ended session do not keep its user from sending. A caller whose
// bodies fill the room can send no more, but others can.
func TestBodiesOfOthers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	mal := ts.signIn("mal", "all")
	ada := ts.signIn("ada", "all")

	stolen, _ := ts.client().login("ada", testPassword)
	stolen.must(204, "POST", "/api/v1/auth/logout", nil)
	conn := ts.raw()
	status, err := conn.send(fmt.Sprintf("POST /api/v1/datasets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n{", stolen.token, large))
	if status != 401 {
		t.Errorf("a large body of an ended session: %d %v, want 401 before it has come", status, err)
	}

	ts.fillBodies(mal.token, userID(ts, "mal"))
	ada.must(200, "PATCH", mePath, map[string]string{"display_name": "Ada"})
	ts.client().login("ada", testPassword)
}

// TestEndedSessionTakesNoSlot: a session that has ended is refused even while its account has no slot left, because it
// does not wait for one of them.
func TestEndedSessionTakesNoSlot(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.signIn("ada", "all")
	stolen, _ := ts.client().login("ada", testPassword)
	stolen.must(204, "POST", "/api/v1/auth/logout", nil)

	account := userID(ts, "ada")
	for range ts.limits.pool.perCaller {
		release, err := ts.limits.pool.acquire(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	stolen.must(401, "GET", mePath, nil)
	stolen.must(401, "PATCH", mePath, map[string]string{"display_name": "Ada"})
}

// headerWatcher is a client that looks at the server when it gets the status.
type headerWatcher struct {
	http.ResponseWriter
	look func()
}

func (w headerWatcher) WriteHeader(status int) {
	w.look()
	w.ResponseWriter.WriteHeader(status)
}

// TestAnswerHoldsNoSlot: while the client takes the answer, the request holds no slot.
func TestAnswerHoldsNoSlot(t *testing.T) {
	t.Parallel()
	l := newLimits(8)
	s := newSlots(l, "a")
	client := headerWatcher{httptest.NewRecorder(), func() {
		cores := l.computing.length("a")
		pool := l.pool.length("a")
		searches := l.classes[slow].length("a")
		if cores+pool+searches > 0 {
			t.Errorf("the request holds %d cores, %d slots of the pool and %d of searches, want none",
				cores, pool, searches)
		}
	}}

	for _, class := range []class{heavy, slow, bulk, quick} {
		if err := s.acquire(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		w := &responseWriter{ResponseWriter: client, slots: s, routed: true}
		if err := writeJSON(w, http.StatusOK, "x"); err != nil {
			t.Error(err)
		}
		s.release()
	}

	// Large answers of one caller have a bound, beyond which there is a 503 and nothing is sent.
	l.answers.add("a", maxAnswers/ownShare)
	recorder := httptest.NewRecorder()
	w := &responseWriter{ResponseWriter: recorder, slots: s, routed: true}
	if err := writeJSON(w, http.StatusOK, strings.Repeat("x", largeAnswer)); err != errBusy || recorder.Body.Len() > 0 {
		t.Errorf("a large answer beyond the bound: %v, and %d bytes are sent; want errBusy and none",
			err, recorder.Body.Len())
	}

	if err := writeJSON(w, http.StatusOK, "x"); err != nil {
		t.Errorf("a small answer: %v", err)
	}

	if n := l.answers.callers["a"]; n != maxAnswers/ownShare {
		t.Errorf("%d bytes are counted after the answers, want %d", n, maxAnswers/ownShare)
	}
}

// TestLongAnswerRechecks: a long answer ends before the next piece once the credential is refused, and goes on while the
// database is away.
func TestLongAnswerRechecks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		recheck error
		want    string
	}{
		"valid":    {nil, "piece"},
		"refused":  {errInvalidToken, ""},
		"database": {databaseUnavailable(nil), "piece"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := httptest.NewRecorder()
			c := &caller{
				slots:     newSlots(newLimits(8), "a"),
				authorize: func(context.Context) error { return test.recheck },
			}

			w := &patientWriter{recorder, t.Context(), c, time.Now().Add(-recheckInterval - time.Second), false}
			w.Write([]byte("piece"))
			if got := recorder.Body.String(); got != test.want {
				t.Errorf("the client got %q, want %q", got, test.want)
			}
		})
	}
}

// TestEndedWhileWaiting: a session that ends while its request waits for a slot is refused.
func TestEndedWhileWaiting(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ada := ts.signIn("ada", "all")
	release := ts.holdLock(`LOCK TABLE system_messages`)
	n := ts.limits.pool.perCaller
	answers := make(chan int, n)

	for range n {
		go func() {
			a, _ := ada.send("GET", "/api/v1/inbox", nil)
			answers <- a.status
		}()
	}

	waitFor(t, "the slots to be taken", func() bool { return waitingQueries(ts) == n })

	waiting := make(chan int, 1)
	go func() {
		a, _ := ada.send("GET", mePath, nil)
		waiting <- a.status
	}()

	id := userID(ts, "ada")
	waitFor(t, "the last request to wait", func() bool { return ts.limits.pool.length(id) == n+1 })
	ts.exec(`DELETE FROM sessions`)
	release()
	if got := <-waiting; got != 401 {
		t.Errorf("the request that waited: %d, want 401", got)
	}

	for range n {
		<-answers
	}
}

// TestWaitForChange: requests that wait for another change of users or roles hold no connection of the pool meanwhile,
// but the one that waits for the lock of the database.
func TestWaitForChange(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REGISTRATION=open", "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	root := ts.signIn("root", "all")
	release := ts.holdLock(`SELECT pg_advisory_xact_lock($1)`, int64(lockAccess))
	const n = 20
	answers := make(chan int, n)

	for i := range n {
		go func() {
			body := fmt.Sprintf(`{"username":"new%d","password":%q}`, i, testPassword)
			network := fmt.Sprintf("X-Forwarded-For: 192.0.2.%d", i+1)
			a, _ := ts.client().send("POST", "/api/v1/auth/register", strings.NewReader(body), network)
			answers <- a.status
		}()
	}

	waitFor(t, "the registrations to wait", func() bool { return ts.accounts.accessQueue.length("") == n })
	if got := waitingQueries(ts); got > 1 {
		t.Errorf("%d connections wait for the lock, want at most 1", got)
	}

	root.must(200, "GET", mePath, nil)
	release()
	for range n {
		if got := <-answers; got != 201 {
			t.Errorf("a registration that waited: %d, want 201", got)
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
		if n := ts.database.probes.Stat().AcquiredConns(); n > maxProbes {
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

// TestManySessions: a user with twenty times as many sessions as maxSessions can be disabled within the time limit.
func TestManySessions(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c, root := ts.signIn("ada", datasetRead), ts.signIn("root", "all")
	ada := c.must(200, "GET", mePath, nil).text("id")
	ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at)
		SELECT gen_random_uuid(), $1, now() + interval '1 day', now() + interval '1 day' FROM generate_series(1, 2000)`, ada)
	root.must(200, "PATCH", "/api/v1/users/"+ada, map[string]string{"status": "disabled"})
	c.refused(401, "invalid_token", "GET", mePath, nil)
	if n := ts.queryInt(`SELECT count(*)::int FROM audit_log WHERE action = 'session.end' AND target = 'user:ada'`); n != 2001 {
		t.Errorf("%d sessions are audited", n)
	}
}

// TestLastMoment: what has to be stored at the end of a request gets 0.4 s, with and without a time limit.
func TestLastMoment(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	limited, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()

	for name, ctx := range map[string]context.Context{"no limit": canceled, "limit": limited} {
		last, cancel := lastMoment(ctx)
		defer cancel()
		end, _ := last.Deadline()
		if left := time.Until(end); last.Err() != nil || left <= 0 || left > 400*time.Millisecond {
			t.Errorf("%s: %v are left, want up to 0.4 s (%v)", name, left, last.Err())
		}
	}
}

// computing returns the request of a caller who holds a slot to compute.
func computing(t *testing.T, r *http.Request) *http.Request {
	t.Helper()
	c := &caller{slots: newSlots(newLimits(4), "caller")}
	if err := c.slots.acquireCore(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}
