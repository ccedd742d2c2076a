package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

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
		leave, err := ts.expensive.enter(t.Context(), "user "+reporter.must(200, "GET", mePath, nil).text("id"))
		if err != nil {
			t.Fatal(err)
		}
		ts.slots <- struct{}{} // as by a report that takes its time
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() { reporter.must(200, "GET", dataset+"/report", nil) })
		}
		others(t)
		reporter.must(200, "GET", mePath, nil)
		<-ts.slots
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
