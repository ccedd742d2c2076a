package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestRefreshRotation: each refresh token is good once; what was just replaced gets the same successor
// for the grace period; anything older ends the session.
func TestRefreshRotation(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	c, first := ts.client().login("ada", testPassword)
	second := refreshCookieOf(c.refresh(first))
	if second == "" || second == first {
		t.Fatal("no new cookie")
	}
	check(t, "successor within the grace period", refreshCookieOf(c.refresh(first)), second)
	third := refreshCookieOf(c.refresh(second))
	if third == "" {
		t.Fatal("no third cookie")
	}
	check(t, "successor of two generations ago, within the grace period", refreshCookieOf(c.refresh(first)), third)
	ts.exec(`UPDATE sessions SET burst_began_at = now() - interval '11 seconds'`)
	check(t, "successor of the generation that was replaced last", refreshCookieOf(c.refresh(second)), third)
	a := c.refresh(first)
	checkAnswer(t, "two generations old, after the grace period", a, 401, "refresh_token_reused")
	checkHas(t, "its cookie", a.header.Get("Set-Cookie"), "Max-Age=0")
	checkAnswer(t, "the newest token after the theft", c.refresh(third), 401, "session_ended")
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)

	c, first = ts.client().login("ada", testPassword)
	c.refresh(first)
	ts.exec(`UPDATE sessions SET rotated_at = now() - interval '11 seconds', burst_began_at = now() - interval '11 seconds' WHERE ended_at IS NULL`)
	checkAnswer(t, "after the grace period", c.refresh(first), 401, "refresh_token_reused")
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)

	c, first = ts.client().login("ada", testPassword)
	id, _, err := ts.keys.Load().verifyRefresh(first)
	if err != nil {
		t.Fatal(err)
	}
	checkAnswer(t, "a generation that has not been", c.refresh(ts.keys.Load().keys[0].signRefresh(id, 5)), 401, "session_lost")
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	checkAnswer(t, "a session that never was", c.refresh(ts.keys.Load().keys[0].signRefresh([16]byte{9}, 1)), 401, "session_ended")
}

// TestParallelRefresh: many tabs refresh at once. All go on, with one successor and one step.
func TestParallelRefresh(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	c, first := ts.client().login("ada", testPassword)
	successors := make([]string, 64)
	var wg sync.WaitGroup
	for i := range successors {
		wg.Go(func() { successors[i] = refreshCookieOf(c.refresh(first)) })
	}
	wg.Wait()
	check(t, "there is a successor", successors[0] != "", true)
	for _, successor := range successors {
		check(t, "successor", successor, successors[0])
	}
	check(t, "generation", ts.queryInt(`SELECT generation FROM sessions`), 2)
}

// TestRefreshBurst: a generation that a burst of refreshes has replaced is valid until the grace period
// after the burst began has passed, however many follow it. The generation replaced last has a grace period of its own.
func TestRefreshBurst(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REFRESH_GRACE=100s") // so that the time that the test takes does not count
	ts.addUser("ada", datasetRead)
	for _, old := range []int{2, 3} { // the index of a cookie that ends the session
		c, cookie := ts.client().login("ada", testPassword)
		cookies := []string{cookie}
		refresh := func(which int) string {
			t.Helper()
			a := c.refresh(cookies[which])
			next := refreshCookieOf(a)
			if next == "" {
				t.Fatalf("generation %d is refused, when %d is the present one, with a grace period of 100 s: %s", which+1, len(cookies), a.body)
			}
			return next
		}
		for i := range 4 { // one every 30 seconds
			cookies = append(cookies, refresh(i))
			for old := range i + 1 {
				check(t, fmt.Sprint("successor of generation ", old+1), refresh(old), cookies[i+1])
			}
			ts.refreshesLater(30)
		}
		// 120 seconds after the burst began the next refresh begins another, with what was replaced last.
		cookies = append(cookies, refresh(4))
		for old := 3; old <= 4; old++ {
			check(t, fmt.Sprint("successor, at most 30 seconds later, of generation ", old+1), refresh(old), cookies[5])
		}
		if old == 3 {
			ts.refreshesLater(80) // 110 seconds after it was replaced
			check(t, "successor, 80 seconds later, of generation 5", refresh(4), cookies[5])
		}
		checkAnswer(t, fmt.Sprint("generation ", old+1), c.refresh(cookies[old]), 401, "refresh_token_reused")
		c.refused(401, "invalid_token", "GET", mePath, nil)
	}
	check(t, "audit rows", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.refresh_token_reused'`), 2)
}

// TestBurstAfterLogin: the login is not the beginning of a burst. Who refreshes three times 8 seconds after it may show
// the first of the new tokens 2.5 seconds later.
func TestBurstAfterLogin(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REFRESH_GRACE=100s") // ten times the default, so that the time that the test takes does not count
	ts.addUser("ada", datasetRead)
	c, login := ts.client().login("ada", testPassword)
	ts.refreshesLater(80)

	tokens := []string{login}
	for i := range 3 {
		tokens = append(tokens, refreshCookieOf(c.refresh(tokens[i])))
	}
	ts.refreshesLater(25)

	for i, token := range tokens {
		a := c.refresh(token)
		checkAnswer(t, fmt.Sprint("generation ", i+1), a, 200, "")
		if i < 3 {
			check(t, fmt.Sprint("successor of generation ", i+1), refreshCookieOf(a), tokens[3])
		}
	}
}

// TestBurstIsNotProlonged: a thief who refreshes every half grace period does not prolong the grace of the token that the
// owner still holds, nor that of any other one.
func TestBurstIsNotProlonged(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REFRESH_GRACE=100s")
	ts.addUser("ada", datasetRead)
	for refreshes := 2; refreshes <= 6; refreshes++ { // 50 seconds apart
		c, owners := ts.client().login("ada", testPassword)
		thief := owners
		for range refreshes {
			thief = refreshCookieOf(c.refresh(thief))
			ts.refreshesLater(50)
		}
		checkAnswer(t, fmt.Sprint("the owner after refreshes: ", refreshes), c.refresh(owners), 401, "refresh_token_reused")
		check(t, fmt.Sprint("status of the thief after refreshes: ", refreshes), c.refresh(thief).status, 401)
	}
}

// refreshesLater moves all refreshes back in time.
func (ts *testServer) refreshesLater(seconds int) {
	ts.t.Helper()
	ts.exec(`UPDATE sessions SET created_at = created_at - make_interval(secs => $1),
		rotated_at = rotated_at - make_interval(secs => $1), burst_began_at = burst_began_at - make_interval(secs => $1)`, seconds)
}

// TestTabsWakeUp: a browser whose six tabs refresh at once, each with the cookie that the browser holds by then, keeps
// its session, whichever instance each of them reaches and however long each way takes.
func TestTabsWakeUp(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	other := startServer(t, nil, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	instances := []client{ts.client(), other.client()}
	ts.addUser("ada", datasetRead)
	ts.addUser("bob", datasetRead) // a user has at most maxSessions
	users := []passwordRecord{must(findPasswordRecord(context.Background(), ts.db, "ada")), must(findPasswordRecord(context.Background(), ts.db, "bob"))}
	const browsers, atOnce, tabs = 200, 25, 6
	way := func() { pause(t.Context(), rand.N(100*time.Millisecond)) } // the network, which is slow
	browser := func(owner passwordRecord) {
		sess, _, err := createSession(context.Background(), ts.db, actor{}, owner, "", ts.cfg.refreshTTL, ts.cfg.sessionMax)
		if err != nil {
			t.Error(err)
			return
		}
		var jar sync.Mutex
		cookie := ts.keys.Load().keys[0].signRefresh(sess.SessionID, sess.Generation)
		var wg sync.WaitGroup
		for range tabs {
			wg.Go(func() {
				pause(t.Context(), rand.N(100*time.Millisecond))
				jar.Lock()
				sent := cookie
				jar.Unlock()
				way()
				a := instances[rand.N(2)].refresh(sent)
				for a.status == 503 { // a busy machine
					a = instances[rand.N(2)].refresh(sent)
				}
				way()
				if a.status != 200 {
					t.Errorf("a tab is signed out: %s", a.body)
					return
				}
				jar.Lock()
				cookie = refreshCookieOf(a)
				jar.Unlock()
			})
		}
		wg.Wait()
	}
	for i := range browsers / atOnce {
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() { browser(users[i%2]) })
		}
		wg.Wait()
	}
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL AND generation > 1`); n != browsers {
		t.Errorf("%d sessions live, want %d", n, browsers)
	}
}
