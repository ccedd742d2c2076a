package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

const loginPath = "/api/v1/auth/login"

// guess tries to log in from an address, through a proxy that is trusted.
func (c client) guess(name, password, address string) answer {
	c.t.Helper()
	return c.do("POST", loginPath, map[string]string{"username": name, "password": password}, "X-Forwarded-For: "+address)
}

// startThrottled starts a service that trusts the proxy of guess and hashes for next to nothing.
func startThrottled(t *testing.T, env ...string) *testServer {
	t.Helper()
	return startServer(t, nil, append([]string{"CAIRN_TRUSTED_PROXIES=127.0.0.1/32"}, env...)...)
}

// addUserCheaply adds a user whose password costs next to nothing to check.
func (ts *testServer) addUserCheaply(name string) (id string) {
	ts.t.Helper()
	id = ts.addUser(name, datasetRead)
	hash := ts.accounts.hasher.hashInSlot(testPassword)
	ts.exec(`UPDATE users SET password_hash = $2 WHERE id = $1`, id, hash)
	return id
}

// lockOut lets guesses at the password of a user or of an unknown name fail until the account is locked out.
func (ts *testServer) lockOut(name string) {
	ts.t.Helper()
	for i := range 20 {
		for range 5 {
			if a := ts.client().guess(name, "wrong password", fmt.Sprintf("192.0.2.%d", i)); a.status != 401 {
				ts.t.Fatalf("guess from %d: %s", i, a.body)
			}
		}
	}
}

// throttlesLater moves all that is counted back in time.
func (ts *testServer) throttlesLater(d time.Duration) {
	ts.t.Helper()
	ts.exec(`UPDATE throttles SET next_at = next_at - $1::interval, expires_at = expires_at - $1::interval`, d)
}

// TestThrottle: guesses at an account from one network have to wait. A right password from another network gets in,
// however many guesses there are. Unknown names are treated as known ones are.
func TestThrottle(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	for _, name := range []string{"ada", "bob"} {
		ts.addUser(name, datasetRead)
	}
	c := ts.client()
	for _, name := range []string{"ada", "nobody"} {
		for i := range 5 {
			if a := c.guess(name, "wrong password", "198.51.100.1"); a.status != 401 {
				t.Errorf("%s, attempt %d: %d %s", name, i+1, a.status, a.body)
			}
		}
	}
	// Five are free. The next has to wait.
	for _, name := range []string{"ada", "nobody"} {
		// On a slow machine the second is over by now. Let it begin again.
		ts.exec(`UPDATE throttles SET next_at = now() + interval '1 second' WHERE next_at IS NOT NULL`)
		a := c.guess(name, testPassword, "198.51.100.1")
		if a.status != 429 || a.text("code") != "too_many_attempts" || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := c.guess("bob", testPassword, "198.51.100.1"); a.status != 200 {
		t.Errorf("another account from there: %s", a.body)
	}
	if a := c.guess("ada", testPassword, "203.0.113.9"); a.status != 200 {
		t.Errorf("from a quiet address: %s", a.body)
	}
	// After the wait an attempt is accepted again, and a success clears the account for this address.
	ts.throttlesLater(time.Hour)
	if a := c.guess("ada", testPassword, "198.51.100.1"); a.status != 200 {
		t.Errorf("after the delay: %s", a.body)
	}
	check(t, "counts after success", ts.queryInt(`SELECT count(*) FROM throttles WHERE account = $1`, ts.keys.Load().loginSubjects("ada")[0]), 0)
	// An IPv6 client has one /64, not 2^64 addresses.
	for i := range 5 {
		c.guess("bob", "wrong password", fmt.Sprintf("2001:db8::%d", i))
	}
	if a := c.guess("bob", testPassword, "2001:db8::99"); a.status != 429 {
		t.Errorf("another address of the /64: %d", a.status)
	}
	if a := c.guess("bob", testPassword, "2001:db8:0:1::1"); a.status != 200 {
		t.Errorf("another /64: %s", a.body)
	}
}

// TestThrottleRules: of each rule, how long an attempt has to wait after so many, and when they are forgotten.
func TestThrottleRules(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	address := netip.MustParseAddr("198.51.100.1")
	guess := must(ts.accounts.newGuess(t.Context(), "", "ada", address)).rules
	network, account, both := guess[0], guess[1], guess[2]
	registration, change := newRegistration(address).rules[0], newOwnChange("ada", false, address).rules[0]
	for _, test := range []struct {
		name   string
		rule   throttleRule
		before int // attempts that were counted
		ago    time.Duration
		want   time.Duration // that the next has to wait, once this one is counted
	}{
		{"network", network, 98, 0, 0},
		{"network", network, 99, 0, time.Second},
		{"network", network, 100, 0, 2 * time.Second},
		{"network", network, 1 << 40, 0, time.Minute},
		{"network", network, 1 << 40, time.Hour, 0},
		{"account", account, 98, 0, 0},
		{"account", account, 99, 0, 24 * time.Hour},
		{"account", account, 1 << 40, 0, 24 * time.Hour},
		{"account", account, 1 << 40, 24 * time.Hour, 0},
		{"account and network", both, 3, 0, 0},
		{"account and network", both, 4, 0, time.Second},
		{"account and network", both, 5, 0, 2 * time.Second},
		{"account and network", both, 12, 0, 256 * time.Second},
		{"account and network", both, 13, 0, 5 * time.Minute},
		{"account and network", both, 13, 23 * time.Hour, 5 * time.Minute},
		{"account and network", both, 13, 24 * time.Hour, 0},
		{"registration", registration, 8, 0, 0},
		{"registration", registration, 9, 0, time.Minute},
		{"registration", registration, 15, 0, time.Hour},
		{"registration", registration, 15, 24 * time.Hour, 0},
		{"own change", change, 18, 0, 0},
		{"own change", change, 19, 0, time.Hour},
		{"own change", change, 19, time.Hour, 0},
	} {
		ts.exec(`TRUNCATE throttles`)
		ts.exec(`INSERT INTO throttles (account, network, attempts, expires_at) VALUES ('a', 'b', $1, now() + $2::interval - $3::interval)`, test.before, test.rule.resetAfter, test.ago)
		test.rule.subject, test.rule.network = "a", "b"
		counted := attempt{rules: []throttleRule{test.rule}}
		if err := counted.count(t.Context(), ts.db); err != nil {
			t.Fatal(err)
		}
		wait := ts.queryInt(`SELECT coalesce(extract(epoch FROM next_at - (expires_at - $1::interval)), 0) FROM throttles`, test.rule.resetAfter)
		if time.Duration(wait)*time.Second != test.want {
			t.Errorf("%s, %d attempts %v ago: %d s, want %v", test.name, test.before, test.ago, wait, test.want)
		}
	}
}

// TestThrottleAtOnce: attempts are counted before they are decided. So many attempts at once get no further than one
// after the other, on however many instances.
func TestThrottleAtOnce(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	other := startThrottled(t, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	var mu sync.Mutex
	statuses := map[int]int{}
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			a := []*testServer{ts, other}[i%2].client().guess("ada", "wrong password", "198.51.100.1")
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
		})
	}
	wg.Wait()
	// Five are free, and a further one after 1, 3, 7, … seconds, which pass on a slow machine.
	most := 5 + bits.Len(uint(time.Since(began)/time.Second))
	if n := statuses[401]; n < 5 || n > most || n+statuses[429] != 64 {
		t.Errorf("statuses: %v, want 5 to %d of 401", statuses, most)
	}
}

// TestRightLoginsAtOnce: many right logins at once from one address are no attack, of one account or of many.
func TestRightLoginsAtOnce(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	other := startThrottled(t, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	for i := range 20 {
		ts.addUserCheaply(fmt.Sprint("user", i))
	}
	for _, name := range []func(i int) string{func(int) string { return "user0" }, func(i int) string { return fmt.Sprint("user", i) }} {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if a := []*testServer{ts, other}[i%2].client().guess(name(i), testPassword, "198.51.100.1"); a.status != 200 {
					t.Errorf("%s: %d %s", name(i), a.status, a.body)
				}
			})
		}
		wg.Wait()
	}
	check(t, "counted attempts", ts.queryInt(`SELECT max(attempts) FROM throttles`), 0)
}

// TestThrottledNetwork: an attempt that is refused leaves nothing in the database.
func TestThrottledNetwork(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	for i := range 100 {
		if a := ts.client().guess(fmt.Sprint("nobody", i), "wrong password", "198.51.100.1"); a.status != 401 {
			t.Fatalf("attempt %d: %d %s", i, a.status, a.body)
		}
	}
	ts.exec(`UPDATE throttles SET next_at = now() + interval '1 hour' WHERE account = ''`)
	const all = `SELECT count(*) * 1000000 + sum(attempts) FROM throttles`
	before := ts.queryInt(all)
	for i := range soakOr(3000, 300) {
		if a := ts.client().guess(fmt.Sprint("other", i), "wrong password", "198.51.100.1"); a.status != 429 {
			t.Fatalf("attempt %d: %d %s", i, a.status, a.body)
		}
	}
	if after := ts.queryInt(all); after != before {
		t.Errorf("refused attempts were counted: %d, then %d", before, after)
	}
	if a := ts.client().guess("ada", testPassword, "198.51.100.2"); a.status != 200 {
		t.Errorf("another network: %s", a.body)
	}

	// Nor does an attempt that only its last counter refuses raise the others, if it comes so early that check passes.
	for range 6 {
		counted := must(ts.accounts.newGuess(t.Context(), "", "guessed", netip.MustParseAddr("198.51.100.7")))
		before = ts.queryInt(all)
		if err := counted.count(t.Context(), ts.db); err != nil {
			if p, ok := errors.AsType[*problem](err); !ok || p.status != 429 || ts.queryInt(all) != before {
				t.Errorf("%v; %d, then %d", err, before, ts.queryInt(all))
			}
			return
		}
	}
	t.Error("the sixth attempt was counted")
}

// TestSiege: after 100 failures an account is locked out: only networks that it has signed in from are accepted. A success
// of the owner ends the lockout, and so do a password reset, the operator and a day without failures. Nothing else ends
// it, and only failures prolong it. A name that does not exist gets the same answers.
func TestSiege(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	id := ts.addUserCheaply("ada")
	ts.exec(`UPDATE users SET email = 'ada@example.org' WHERE id = $1`, id)
	root := ts.signIn("root", "all")
	const home, away, new1 = "203.0.113.9", "203.0.113.10", "another password"
	password := testPassword
	signedIn := func(name, address string) client {
		t.Helper()
		a := ts.client().guess(name, password, address)
		if a.status != 200 {
			t.Fatalf("from %s: %s", address, a.body)
		}
		return ts.client().as(a.text("access_token"))
	}
	refused := func(name, address string) answer {
		t.Helper()
		a := ts.client().guess(name, password, address)
		if a.status != 429 || len(a.header.Get("Retry-After")) != 5 {
			t.Errorf("%s from %s is heard: %d %s", name, address, a.status, a.body)
		}
		return a
	}
	signedIn("ada@example.org", home)
	signedIn("ada@example.org", "203.0.113.8") // a second place that it knows
	ts.lockOut("ada")
	ts.lockOut("nobody")
	for _, name := range []string{"ada", "ADA", "nobody"} {
		refused(name, away)
	}

	// A user who signed in by e-mail can confirm the password, which is a success like any other.
	c := signedIn("ada@example.org", home)
	refused("ada", away) // the success was another name's
	signedIn("ada", home)
	signedIn("ada", away)
	check(t, "locked accounts", ts.queryInt(`SELECT count(*) FROM throttles WHERE attempts >= 100 AND network = ''`), 1)
	failures := func(n int) {
		t.Helper()
		ts.exec(`INSERT INTO throttles VALUES ($1, '', $2, now() + interval '1 day', now() + interval '1 day')`,
			ts.keys.Load().loginSubjects("ada")[0], n)
	}
	failures(100)
	c.must(200, "PATCH", mePath, map[string]string{"email": "a@example.org", "current_password": password}, "X-Forwarded-For: "+home)
	signedIn("ada", "203.0.113.20")

	// Failures from a known network do not prolong the lockout, or how long the network is known.
	failures(100)
	ts.throttlesLater(time.Hour)
	ts.exec(`UPDATE known_networks SET expires_at = now() + interval '1 hour'`)
	lockouts := func() int {
		return ts.queryInt(`SELECT count(*) FROM throttles WHERE network = '' AND account = $1 AND next_at < now() + interval '23 hours'`,
			ts.keys.Load().loginSubjects("ada")[0])
	}
	ts.client().guess("ada", "wrong password", home)
	check(t, "lockouts", lockouts(), 1)
	check(t, "networks that are known for longer", ts.queryInt(`SELECT count(*) FROM known_networks WHERE expires_at > now() + interval '1 hour'`), 0)
	ts.exec(`UPDATE known_networks SET expires_at = now()`)
	refused("ada", home)
	ts.exec(`DELETE FROM throttles`)
	signedIn("ada", home)
	failures(100)

	// By a password reset.
	token := root.must(201, "POST", "/api/v1/users/"+id+"/password-reset", nil).text("password_token")
	refused("ada", "203.0.113.21")
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": new1})
	password = new1
	signedIn("ada", "203.0.113.21")

	// By the operator, who ends the waits of networks too.
	failures(100)
	for range 5 {
		ts.client().guess("ada", "wrong password", home)
	}
	if a := ts.client().guess("ada", password, home); a.status != 429 {
		t.Errorf("%s", a.body)
	}
	refused("ada", "203.0.113.22")
	if out, err := ts.command("user", "unlock", "ada"); err != nil {
		t.Error(out, err)
	}
	signedIn("ada", "203.0.113.22")
	signedIn("ada", home)
	check(t, "audit rows", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'user.unlock' AND target = 'user:ada' AND actor = 'operator'`), 1)
	if _, err := ts.command("user", "unlock", "nobody"); err == nil || !strings.Contains(err.Error(), "there is no user") {
		t.Error(err)
	}

	// By a day without failures, although others went on trying: their attempts were refused.
	failures(100)
	ts.throttlesLater(23 * time.Hour)
	refusedStill := ts.client().guess("ada", password, "203.0.113.23")
	if refusedStill.status != 429 {
		t.Errorf("after 23 hours: %s", refusedStill.body)
	}
	ts.throttlesLater(time.Hour)
	signedIn("ada", "203.0.113.23")
}

// TestFailuresInARow: a success restarts the count of failures, and so does a day without any.
func TestFailuresInARow(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	for i := range 30 {
		for range 4 {
			if a := ts.client().guess("ada", "wrong password", "198.51.100.1"); a.status != 401 {
				t.Fatalf("round %d: %d %s", i, a.status, a.body)
			}
		}
		if i%2 == 0 {
			if a := ts.client().guess("ada", testPassword, "198.51.100.1"); a.status != 200 {
				t.Fatalf("round %d: %d %s", i, a.status, a.body)
			}
		} else {
			ts.throttlesLater(24 * time.Hour)
		}
		if n := ts.queryInt(`SELECT coalesce(max(attempts), 0) FROM throttles WHERE account <> ''`); n > 4 {
			t.Fatalf("round %d: %d attempts", i, n)
		}
	}
}

// TestFaultIsNoFailure: an attempt that ends with 503 is not counted.
func TestFaultIsNoFailure(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	if a := ts.client().guess("ada", "wrong password", "198.51.100.1"); a.status != 401 {
		t.Fatalf("%s", a.body)
	}
	const all = `SELECT coalesce(sum(attempts), 0) FROM throttles`
	login := map[string]string{"username": "ada", "password": testPassword}
	register := map[string]string{"username": "bob", "password": testPassword}
	// The session, or the user, cannot be stored.
	ts.exec(`
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;
		CREATE TRIGGER fail BEFORE INSERT ON sessions EXECUTE FUNCTION fail();
		CREATE TRIGGER fail BEFORE INSERT ON users EXECUTE FUNCTION fail()`)
	for range 20 {
		for path, body := range map[string]any{loginPath: login, "/api/v1/auth/register": register} {
			ts.client().refused(503, "database_unavailable", "POST", path, body, "X-Forwarded-For: 198.51.100.1")
		}
	}
	if n := ts.queryInt(all); n != 1 { // one of the network; the right password restarted the others
		t.Errorf("%d attempts are counted", n)
	}
	ts.exec(`DROP FUNCTION fail CASCADE`)
	// The wait for a core runs out, or there is no room to wait.
	leave := ts.takeCores()
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := ts.accounts.hasher.hash(ctx, testPassword); err != errBusy {
		t.Errorf("the time runs out: %v", err)
	}
	ts.lengthenLine(queuePerCore * cap(ts.accounts.hasher.running))
	for range 20 {
		for path, body := range map[string]any{loginPath: login, "/api/v1/auth/register": register} {
			ts.client().refused(503, "busy", "POST", path, body, "X-Forwarded-For: 198.51.100.1")
		}
	}
	ts.lengthenLine(-queuePerCore * cap(ts.accounts.hasher.running))
	leave()
	check(t, "counted attempts after the queue was full", ts.queryInt(all), 1)
	ts.client().must(201, "POST", "/api/v1/auth/register", register)
}

// TestRegistrationThrottle: a network may register 10 accounts, and then has to wait.
func TestRegistrationThrottle(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	register := func(name, address string) answer {
		return ts.client().do("POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword}, "X-Forwarded-For: "+address)
	}
	for i := range 20 { // costs no hash, so it is not counted
		if a := register(fmt.Sprint("bad name ", i), "198.51.100.1"); a.status != 422 {
			t.Errorf("%s", a.body)
		}
	}
	for i := range 10 {
		if a := register(fmt.Sprint("user", i/2), "198.51.100.1"); a.status != []int{201, 409}[i%2] {
			t.Errorf("registration %d: %d %s", i, a.status, a.body)
		}
	}
	if a := register("another", "198.51.100.1"); a.status != 429 || a.text("code") != "too_many_attempts" || a.header.Get("Retry-After") != "60" {
		t.Errorf("the eleventh: %d %s", a.status, a.body)
	}
	if a := register("another", "198.51.100.2"); a.status != 201 {
		t.Errorf("another network: %s", a.body)
	}
	if a := ts.client().guess("user0", testPassword, "198.51.100.1"); a.status != 200 {
		t.Errorf("login: %s", a.body)
	}
	ts.throttlesLater(time.Minute)
	if a := register("third", "198.51.100.1"); a.status != 201 {
		t.Errorf("after the wait: %s", a.body)
	}
	if a := register("fourth", "198.51.100.1"); a.status != 429 || a.header.Get("Retry-After") != "120" {
		t.Errorf("the wait doubles: %d %s", a.status, a.body)
	}
}

// TestConfirmationIsThrottled: the current password cannot be guessed with a stolen session.
func TestConfirmationIsThrottled(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	body := map[string]string{"current_password": "wrong password", "new_password": "another long password"}
	for range 5 {
		c.refused(403, "wrong_password", "PUT", "/api/v1/auth/password", body)
	}
	ts.exec(`UPDATE throttles SET next_at = next_at + interval '1 minute'`) // on a slow machine the second may be over
	c.refused(429, "too_many_attempts", "PUT", "/api/v1/auth/password", body)
}

// TestSpellingsOfUnknownNames: a spelling that can be nobody's name does not count for a name, known or not.
func TestSpellingsOfUnknownNames(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("kate")
	for i, name := range []string{"kate", "karl"} {
		address := fmt.Sprint("198.51.100.", i+1)
		for range 5 {
			ts.client().guess("\u212A"+name[1:], "wrong password", address) // KELVIN SIGN, whose lower case is k
		}
		if a := ts.client().guess(name, "wrong password", address); a.status != 401 {
			t.Errorf("%s: %d", name, a.status)
		}
	}
}

// takeCores takes all places to hash until leave is called.
func (ts *testServer) takeCores() (leave func()) {
	ts.t.Helper()
	var leaves []func()
	for range ts.accounts.hasher.queue.perCaller {
		leave, err := ts.accounts.hasher.queue.acquire(ts.t.Context(), "")
		if err != nil {
			ts.t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// lengthenLine adds to the requests that wait for a place to hash. Some must be in line already.
func (ts *testServer) lengthenLine(more int) {
	ts.accounts.hasher.queue.mu.Lock()
	defer ts.accounts.hasher.queue.mu.Unlock()
	ts.accounts.hasher.queue.callers[""].length += more
}

// TestHashQueue: few requests of one network wait for a core at a time, so that others need not wait for all of them.
func TestHashQueue(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	const logins = 30
	for i := range logins {
		ts.addUserCheaply(fmt.Sprint("user", i))
	}
	leave := ts.takeCores()
	answers := make(chan answer)
	for i := range logins {
		address := "198.51.100.1"
		if i == 0 {
			address = "198.51.100.2"
		}
		go func() { answers <- ts.client().guess(fmt.Sprint("user", i), testPassword, address) }()
	}
	waitFor(t, "the logins to wait for a core", func() bool {
		return ts.accounts.hasher.queue.length("") == ts.accounts.hasher.queue.perCaller+ts.limits.pool.perCaller+1
	})
	ts.client().must(200, "GET", "/health", nil)
	leave()
	for range logins {
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("a login that waited: %s", a.body)
		}
	}
	waitFor(t, "the lines to be forgotten", func() bool { // the last login leaves after its answer
		ts.accounts.guesses.mu.Lock()
		defer ts.accounts.guesses.mu.Unlock()
		return len(ts.accounts.guesses.callers) == 0
	})
}

// TestAddressChangesAreLimited: changing one's own address tells whether one is taken, so asking is limited.
func TestAddressChangesAreLimited(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("bob")
	ts.exec(`UPDATE users SET email = 'bob@example.org' WHERE username = 'bob'`)
	c := ts.signIn("ada")
	change := map[string]string{"email": "bob@example.org", "current_password": testPassword}
	ts.exec(`
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;
		CREATE TRIGGER fail BEFORE UPDATE OF email ON users EXECUTE FUNCTION fail()`)
	for range 11 { // a fault of the server does not count
		c.refused(503, "database_unavailable", "PATCH", mePath, change)
	}
	ts.exec(`DROP FUNCTION fail CASCADE`)
	for range 10 {
		c.refused(409, "email_taken", "PATCH", mePath, change)
	}
	c.refused(429, "too_many_attempts", "PATCH", mePath, change)
	c.must(200, "PATCH", mePath, map[string]string{"display_name": "Ada"})
}

// failures lets as many guesses at the password of a login name fail, from one network, without the waits between them.
func (ts *testServer) failures(n int, name, address string) {
	ts.t.Helper()
	for i := range n {
		if a := ts.client().guess(name, "wrong password", address); a.status != 401 {
			ts.t.Fatalf("guess %d at %s from %s: got %d, want 401: %s", i+1, name, address, a.status, a.body)
		}
		ts.exec(`UPDATE throttles SET next_at = NULL WHERE network <> ''`)
	}
}

// TestNamesAreCountedApart: guesses at a user name say nothing about an e-mail address, whether or not it is the user's.
func TestNamesAreCountedApart(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	id := ts.addUserCheaply("bob")
	ts.exec(`UPDATE users SET email = 'bob@example.org' WHERE id = $1`, id)
	names := []string{"bob@example.org", "nobody@example.org", "nobody"}

	for i := range 5 {
		if a := ts.client().guess("bob", "wrong password", "198.51.100.1"); a.status != 401 {
			t.Fatalf("guess %d: %d", i+1, a.status)
		}
	}
	for _, name := range names {
		if a := ts.client().guess(name, "wrong password", "198.51.100.1"); a.status != 401 {
			t.Errorf("%s after guesses at bob: got %d, want 401", name, a.status)
		}
	}

	ts.exec(`DELETE FROM throttles`)
	ts.lockOut("bob")
	for _, name := range append(names, "bob") {
		want := map[bool]int{true: 429, false: 401}[name == "bob"]
		if a := ts.client().guess(name, "wrong password", "198.51.100.2"); a.status != want {
			t.Errorf("%s during a lockout of bob: got %d, want %d", name, a.status, want)
		}
	}
}

// TestKnownNetworks: whatever others do elsewhere, or the owner mistypes at home, the owner gets in from a known network,
// under each name, and nothing at home locks anybody out elsewhere.
func TestKnownNetworks(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	id := ts.addUserCheaply("ada")
	ts.exec(`UPDATE users SET email = 'ada@example.org' WHERE id = $1`, id)
	const home, away, thief = "203.0.113.9", "203.0.113.10", "198.51.100.1"
	login := func(name, address string, want int) {
		t.Helper()
		if a := ts.client().guess(name, testPassword, address); a.status != want {
			t.Errorf("%s from %s: got %d, want %d: %s", name, address, a.status, want, a.body)
		}
	}
	login("ada", home, 200)

	ts.failures(99, "ada", home)
	login("ada", away, 200)
	ts.failures(100, "ada", home)
	login("ada", "203.0.113.11", 200)

	ts.failures(100, "ada", thief)
	ts.failures(100, "ada@example.org", thief)
	for name, elsewhere := range map[string]string{"ada": "203.0.113.12", "ada@example.org": "203.0.113.13"} {
		login(name, elsewhere, 429)
		login(name, home, 200)
		login(name, elsewhere, 200)
	}
}

// TestResetForgetsNetworks: a password reset forgets the networks that the account knows, except the one that resets.
func TestResetForgetsNetworks(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	const home, intruder = "203.0.113.9", "198.51.100.1"
	for _, address := range []string{home, intruder} {
		if a := ts.client().guess("ada", testPassword, address); a.status != 200 {
			t.Fatalf("from %s: %s", address, a.body)
		}
	}
	token := strings.TrimSpace(must(ts.command("user", "reset-password", "ada")))
	reset := map[string]string{"token": token, "new_password": "another password"}
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", reset, "X-Forwarded-For: "+home)
	ts.lockOut("ada")
	if a := ts.client().guess("ada", "another password", intruder); a.status != 429 {
		t.Errorf("from the intruder's network: got %d, want 429", a.status)
	}
	if a := ts.client().guess("ada", "another password", home); a.status != 200 {
		t.Errorf("from the network that reset: got %d, want 200", a.status)
	}
}

// TestResetEndsLockouts: a password reset, and "cairn user unlock", end the lockout of an account under each of its names.
func TestResetEndsLockouts(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	id := ts.addUserCheaply("ada")
	ts.exec(`UPDATE users SET email = 'ada@example.org' WHERE id = $1`, id)
	guesses := 0
	elsewhere := func(name string) int { // the account knows no network yet
		guesses++
		return ts.client().guess(name, testPassword, fmt.Sprintf("203.0.113.%d", guesses)).status
	}
	names := []string{"ada", "ada@example.org"}
	unlock := func() { must(ts.command("user", "unlock", "ada")) }
	reset := func() {
		token := strings.TrimSpace(must(ts.command("user", "reset-password", "ada")))
		ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword})
	}
	for what, end := range map[string]func(){"unlock": unlock, "reset": reset} {
		for _, name := range names {
			ts.lockOut(name)
			check(t, name+" before "+what, elsewhere(name), 429)
		}
		end()
		for _, name := range names {
			check(t, name+" after "+what, elsewhere(name), 200)
		}
	}
}

// TestCountsOutliveKeyRotation: a new signing key ends no wait and no lockout, and the account still knows its networks.
func TestCountsOutliveKeyRotation(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	ts.addUserCheaply("ada")
	const home, away, thief = "203.0.113.9", "203.0.113.10", "198.51.100.1"
	guess := func(name, address string, want int) {
		t.Helper()
		if a := ts.client().guess(name, testPassword, address); a.status != want {
			t.Errorf("%s from %s: got %d, want %d: %s", name, address, a.status, want, a.body)
		}
	}
	guess("ada", home, 200)
	ts.lockOut("ada")
	ts.lockOut("nobody")
	ts.failures(5, "karl", thief)
	ts.exec(`UPDATE throttles SET next_at = now() + interval '1 minute' WHERE attempts = 5`)

	former := ts.keys.Load().keys
	ts.keys.Store(&keyring{keys: append(testRing(t, "new").keys, former...)})
	guess("ada", away, 429)
	guess("nobody", away, 429)
	guess("karl", thief, 429)
	guess("ada", home, 200)
	guess("ada", away, 200)
	guess("nobody", away, 429)

	// Counts that begin now do so under the new key.
	ts.lockOut("late")
	ts.keys.Store(&keyring{keys: ts.keys.Load().keys[:1]}) // the former key is pruned
	guess("late", away, 429)
}

// TestOwnChangesAreLimited: an account changes its own name 20 times, and then has to wait for an hour. A change that
// changes nothing is free, and leaves no trace.
func TestOwnChangesAreLimited(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada")
	rename := func(i int) map[string]string { return map[string]string{"display_name": fmt.Sprint("Ada ", i)} }
	for i := range 20 {
		c.must(200, "PATCH", mePath, rename(i))
		before := c.must(200, "PATCH", mePath, map[string]string{}).text("updated_at")
		if got := c.must(200, "PATCH", mePath, rename(i)).text("updated_at"); got != before {
			t.Errorf("change %d: updated_at is %s, want %s", i, got, before)
		}
	}
	a := c.refused(429, "too_many_attempts", "PATCH", mePath, rename(20))
	check(t, "Retry-After", a.header.Get("Retry-After"), "3600")
	c.must(200, "PATCH", mePath, rename(19))
	check(t, "changes in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'user.update'`), 20)
	ts.signIn("bob").must(200, "PATCH", mePath, rename(0))
	ts.throttlesLater(time.Hour)
	c.must(200, "PATCH", mePath, rename(20))
}

// atOnce sends guesses of n callers at once, each from a network of its own, to both instances in turn, and returns how
// many got each status. A 503, which counts as no attempt, is tried again.
func (ts *testServer) atOnce(other *testServer, n int, name, password string) map[int]int {
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			guess := func() answer {
				return []*testServer{ts, other}[i%2].client().guess(name, password, fmt.Sprintf("2001:db8:%x::1", i))
			}
			a := guess()
			for ; a.status == 503; a = guess() { // it counted until it was refused, so another may have got 429
				mu.Lock()
				statuses[503]++
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[a.status]++
		})
	}
	wg.Wait()
	return statuses
}

// TestLockoutAtOnce: guesses from many networks at once get no further than a hundred, on however many instances. The
// owner gets in from a known network meanwhile, each time.
func TestLockoutAtOnce(t *testing.T) {
	t.Parallel()
	ts := startThrottled(t)
	other := startThrottled(t, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	id := ts.addUserCheaply("ada")
	ts.exec(`UPDATE users SET email = 'ada@example.org' WHERE id = $1`, id)
	got := ts.atOnce(other, 150, "ada", "wrong password")
	if n := got[401] + got[503]; got[401] > 100 || n < 100 || got[401]+got[429] != 150 {
		t.Errorf("guesses at ada: got %v, want 100 of 401 and 50 of 429", got)
	}

	const home = "203.0.113.9"
	if a := ts.client().guess("ada@example.org", testPassword, home); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		name := []string{"ada", "ada@example.org"}[i%2]
		wg.Go(func() {
			if a := []*testServer{ts, other}[i/2%2].client().guess(name, testPassword, home); a.status != 200 {
				t.Errorf("%s from home: got %d, want 200: %s", name, a.status, a.body)
			}
		})
		wg.Go(func() {
			got := ts.atOnce(other, 10, name, "wrong password")
			if got[401]+got[429] != 10 {
				t.Errorf("guesses at %s: got %v, want only 401 and 429", name, got)
			}
		})
	}
	wg.Wait()
}

// TestBusyIsNotCounted: a registration and a change of one's own account that found the server busy are not counted.
func TestBusyIsNotCounted(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REGISTRATION=open")
	ada := ts.signIn("ada", "all")

	ts.accounts.accessQueue.maxQueue = 0
	ts.client().must(503, "POST", "/api/v1/auth/register", map[string]string{"username": "bob", "password": testPassword})
	ada.must(503, "PATCH", mePath, map[string]string{"display_name": "Ada"})

	check(t, "counted attempts", ts.queryInt(`SELECT coalesce(sum(attempts), 0) FROM throttles`), 0)
}

// TestRefundEndsNoOtherWait: an attempt that is taken back ends the wait that it has set itself, and none that another
// attempt has set.
func TestRefundEndsNoOtherWait(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ts := startServer(t, nil)
	count := func(address string) attempt {
		guess := must(ts.accounts.newGuess(ctx, "", "ada", netip.MustParseAddr(address)))
		if err := guess.count(ctx, ts.db); err != nil {
			t.Fatal(err)
		}
		return guess
	}
	lockouts := func() int {
		return ts.queryInt(`SELECT count(*) FROM throttles WHERE network = '' AND next_at > now()`)
	}

	first := count("192.0.2.1")
	ts.exec(`UPDATE throttles SET attempts = 99 WHERE network = ''`)
	second := count("192.0.2.2")
	check(t, "lockouts after the hundredth attempt", lockouts(), 1)
	ts.accounts.refund(ctx, first)
	check(t, "lockouts after an earlier attempt was taken back", lockouts(), 1)
	ts.accounts.refund(ctx, second)
	check(t, "lockouts after the hundredth attempt was taken back", lockouts(), 0)
}
