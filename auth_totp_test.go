package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const totpPath = "/api/v1/auth/totp"

// app is an authenticator app with one account. It shares the clock of the services under test.
type app struct {
	t      *testing.T
	clock  *testClock
	secret []byte
	text   string // the secret in base32
}

// testClock is a clock that a test sets forward. It starts at the beginning of a time step, so that a test that takes a
// few seconds sees no other step than those it asks for.
type testClock struct {
	start sync.Once
	ahead atomic.Int64 // nanoseconds
}

func (c *testClock) now() time.Time {
	const step = int64(30 * time.Second)
	c.start.Do(func() { c.ahead.Add(step - time.Now().UnixNano()%step) })
	return time.Now().Add(time.Duration(c.ahead.Load()))
}

// step goes on by a time step.
func (c *testClock) step() { c.ahead.Add(int64(30 * time.Second)) }

// code returns the code of the step that is so many after the present one.
func (a *app) code(later int64) string {
	mac := hmac.New(sha1.New, a.secret)
	binary.Write(mac, binary.BigEndian, a.clock.now().Unix()/30+later)
	sum := mac.Sum(nil)
	at := sum[19] & 15
	number := (int(sum[at])&0x7f)<<24 | int(sum[at+1])<<16 | int(sum[at+2])<<8 | int(sum[at+3])
	return fmt.Sprintf("%06d", number%1000000)
}

// wrong returns a code that no step near the present one has.
func (a *app) wrong() string {
	for n := 0; ; n++ {
		text := fmt.Sprintf("%06d", n)
		if !slices.Contains([]string{a.code(-2), a.code(-1), a.code(0), a.code(1), a.code(2)}, text) {
			return text
		}
	}
}

// startTOTP starts a service with a clock that the test sets, a trusted proxy and cheap hashes.
func startTOTP(t *testing.T, clock *testClock, env ...string) *testServer {
	t.Helper()
	return startServer(t, func(o *options) {
		o.now = clock.now
	}, append([]string{"CAIRN_TRUSTED_PROXIES=127.0.0.1/32"}, env...)...)
}

// signInCheaply adds a user, whose password costs next to nothing to check, and signs the user in.
func (ts *testServer) signInCheaply(name string) client {
	ts.t.Helper()
	ts.addUserCheaply(name)
	c, _ := ts.client().login(name, testPassword)
	return c
}

// begin begins an enrolment.
func (c client) begin(clock *testClock) *app {
	c.t.Helper()
	a := c.must(201, "POST", totpPath, map[string]string{"current_password": testPassword})
	secret := must(base32.StdEncoding.DecodeString(a.text("secret")))
	return &app{c.t, clock, secret, a.text("secret")}
}

// enrol enrols a second factor and returns the recovery codes. Further codes are of the next step.
func (c client) enrol(clock *testClock) (a *app, recovery []string) {
	c.t.Helper()
	a = c.begin(clock)
	for _, code := range c.must(200, "POST", totpPath+"/confirm", map[string]string{"otp": a.code(0)}).json["recovery_codes"].([]any) {
		recovery = append(recovery, code.(string))
	}
	clock.step()
	return a, recovery
}

// loginOTP logs in from an address with a password and a code.
func (c client) loginOTP(name, password, otp, address string) answer {
	c.t.Helper()
	return c.do("POST", loginPath, map[string]string{"username": name, "password": password, "otp": otp}, "X-Forwarded-For: "+address)
}

// TestTOTPVectors: RFC 6238, appendix B, for SHA-1, with the last six of the eight digits.
func TestTOTPVectors(t *testing.T) {
	t.Parallel()
	secret := []byte("12345678901234567890")
	for at, code := range map[int64]string{59: "94287082", 1111111109: "07081804", 1111111111: "14050471",
		1234567890: "89005924", 2000000000: "69279037", 20000000000: "65353130"} {
		for off, want := range map[int64]bool{-61: false, -30: true, 0: true, 30: true, 61: false} {
			if step, found := totpStep(secret, code[2:], time.Unix(at+off, 0)); at+off >= 0 && (found != want || found && step != at/30) {
				t.Errorf("%s at %d%+d: %d %v", code, at, off, step, found)
			}
		}
		for _, other := range []string{"", code, code[3:], code[2:] + " ", "+" + code[3:]} {
			if _, found := totpStep(secret, other, time.Unix(at, 0)); found {
				t.Errorf("%q is accepted", other)
			}
		}
	}
}

// TestTOTP follows a second factor from its enrolment to its removal.
func TestTOTP(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	c := ts.signInCheaply("ada")
	other, cookie := ts.client().login("ada", testPassword)
	confirm := totpPath + "/confirm"
	if me := c.must(200, "GET", mePath, nil); me.json["totp"] != false || me.json["second_factor_required"] != false {
		t.Errorf("%s", me.body)
	}
	c.refused(409, "totp_not_begun", "POST", confirm, map[string]string{"otp": "123456"})
	c.refused(422, "invalid", "POST", totpPath, map[string]string{})
	c.refused(403, "wrong_password", "POST", totpPath, map[string]string{"current_password": "wrong password"})
	first := c.begin(clock)
	a := c.must(201, "POST", totpPath, map[string]string{"current_password": testPassword})
	host := strings.ReplaceAll(strings.TrimPrefix(ts.url, "http://"), ":", "%3A")
	if !regexp.MustCompile(`^[A-Z2-7]{32}$`).MatchString(a.text("secret")) || a.text("uri") != "otpauth://totp/ada@"+host+"?secret="+a.text("secret")+"&issuer=Cairn" {
		t.Errorf("%s", a.body)
	}
	phone := &app{t, clock, must(base32.StdEncoding.DecodeString(a.text("secret"))), a.text("secret")}
	ts.exec(`DELETE FROM throttles`)
	for i, code := range []string{"", phone.wrong(), phone.code(-2), phone.code(2), first.code(0)} {
		c.refused(403, "otp_invalid", "POST", confirm, map[string]string{"otp": code})
		if n := ts.queryInt(`SELECT max(attempts) FROM throttles WHERE account <> ''`); n != i+1 {
			t.Errorf("after %d wrong codes %d are counted", i+1, n)
		}
	}
	c.refused(429, "too_many_attempts", "POST", confirm, map[string]string{"otp": phone.code(0)})
	ts.client().refused(429, "too_many_attempts", "POST", loginPath, map[string]string{"username": "ada", "password": testPassword})
	ts.throttlesLater(24 * time.Hour)
	if login := ts.client().do("POST", loginPath, map[string]string{"username": "ada", "password": testPassword}); login.status != 200 {
		t.Errorf("before the confirmation: %s", login.body)
	}
	code := phone.code(0)
	confirmed := c.must(200, "POST", confirm, map[string]string{"otp": code[:2] + " " + code[2:4] + "-" + code[4:]})
	var recovery []string
	for _, text := range confirmed.json["recovery_codes"].([]any) {
		recovery = append(recovery, text.(string))
	}
	if slices.Sort(recovery); len(slices.Compact(slices.Clone(recovery))) != 10 || !regexp.MustCompile(`^([A-Z2-7]{6}-){3}[A-Z2-7]{6}$`).MatchString(recovery[0]) {
		t.Errorf("%v", recovery)
	}
	c.refused(409, "totp_not_begun", "POST", confirm, map[string]string{"otp": phone.code(1)})
	c.refused(409, "totp_enabled", "POST", totpPath, map[string]string{"current_password": testPassword})
	if me := c.must(200, "GET", mePath, nil); me.json["totp"] != true {
		t.Errorf("%s", me.body)
	}
	other.refused(401, "invalid_token", "GET", mePath, nil) // it was opened without the code
	if a := ts.client().refresh(cookie); a.status != 401 {
		t.Errorf("another session is refreshed: %s", a.body)
	}

	login := func(status int, why, password, otp string) client {
		t.Helper()
		a := ts.client().loginOTP("ada", password, otp, "198.51.100.1")
		if a.status != status || a.text("code") != why {
			t.Errorf("login with %q: %s", otp, a.body)
		}
		return ts.client().as(a.text("access_token"))
	}
	login(401, "otp_required", testPassword, "")
	login(401, "otp_required", testPassword, " - ")
	login(401, "invalid_credentials", "wrong password", phone.code(1))
	login(401, "otp_invalid", testPassword, code) // it has confirmed the secret
	login(200, "", testPassword, phone.code(1))
	login(401, "otp_invalid", testPassword, phone.code(1))
	login(401, "otp_invalid", testPassword, phone.code(0)) // older than the one that was used
	clock.step()
	clock.step()
	login(401, "otp_invalid", testPassword, phone.code(-2))
	login(200, "", testPassword, phone.code(0))
	script := ts.addToken("ada", "script", datasetRead)
	script.must(200, "GET", "/api/v1/datasets", nil) // no code is asked of it

	login(200, "", testPassword, strings.ToLower(strings.ReplaceAll(recovery[3], "-", " ")))
	for _, code := range []string{recovery[3], recovery[4][:26], recovery[4] + "A", "000000000000000000000000"} {
		login(401, "otp_invalid", testPassword, code)
	}
	login(200, "", testPassword, recovery[4])

	// A reset of the password leaves the second factor.
	clock.step()
	c.must(204, "PUT", "/api/v1/auth/password", map[string]string{"current_password": testPassword, "new_password": "another long password", "otp": phone.code(0)})
	login(401, "otp_required", "another long password", "")
	token := must(ts.command("user", "reset-password", "ada"))
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": strings.TrimSpace(token), "new_password": testPassword})
	login(401, "otp_required", testPassword, "")
	c = login(200, "", testPassword, recovery[5])

	clock.step()
	remove := func(password, otp string) map[string]string {
		return map[string]string{"current_password": password, "otp": otp}
	}
	c.refused(403, "otp_required", "DELETE", totpPath, remove(testPassword, ""))
	c.refused(403, "otp_required", "DELETE", totpPath, remove(testPassword, " - "))
	c.refused(422, "invalid", "DELETE", totpPath, remove("", phone.code(0)))
	for _, code := range []string{phone.wrong(), recovery[5]} {
		c.refused(403, "otp_invalid", "DELETE", totpPath, remove(testPassword, code))
	}
	c.must(200, "GET", mePath, nil)
	ts.throttlesLater(24 * time.Hour)
	c.refused(403, "wrong_password", "DELETE", totpPath, remove("wrong password", phone.code(0)))
	c.must(204, "DELETE", totpPath, remove(testPassword, phone.code(0)))
	c.refused(404, "not_found", "DELETE", totpPath, remove(testPassword, phone.code(1)))
	login(200, "", testPassword, "")
	login(200, "", testPassword, recovery[0]) // it is not looked at
	for action, want := range map[string]int{"totp.enable": 1, "totp.disable": 1, "totp.recovery_code": 3} {
		if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = $1 AND target = 'user:ada'`, action); n != want {
			t.Errorf("%d rows for %s", n, action)
		}
	}
}

// TestCodeForLastingChanges: with a second factor, a new API token, e-mail address or password needs a code too, so that a
// stolen session and the password are not enough. The code is checked, counted and used up as at a login.
func TestCodeForLastingChanges(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	c := ts.signInCheaply("ada")
	phone, recovery := c.enrol(clock)
	requests := map[string]struct {
		method, path string
		body         map[string]any
		status       int
	}{
		"an API token": {"POST", tokensPath, map[string]any{"name": "year", "permissions": []string{datasetRead}}, 201},
		"the address":  {"PATCH", mePath, map[string]any{"email": "ada@example.org"}, 200},
		"the password": {"PUT", "/api/v1/auth/password", map[string]any{"new_password": testPassword}, 204},
	}
	changes := func() int {
		return ts.queryInt(`SELECT count(*) FROM audit_log WHERE action IN ('token.create', 'user.update', 'password.change')`)
	}
	for what, r := range requests {
		t.Run(what, func(t *testing.T) {
			c := c
			c.t = t
			send := func(status int, code, password, otp string) {
				t.Helper()
				body := maps.Clone(r.body)
				body["current_password"] = password
				if otp != "" {
					body["otp"] = otp
				}
				if a := c.do(r.method, r.path, body); a.status != status || a.text("code") != code {
					t.Errorf("with otp %q: got %d %s, want %d %s", otp, a.status, a.body, status, code)
				}
			}
			ts.throttlesLater(24 * time.Hour)
			before := changes()
			send(403, "otp_required", testPassword, "")
			send(403, "otp_required", testPassword, " - ")
			send(403, "wrong_password", "wrong password", phone.code(0))
			for range 4 {
				send(403, "otp_invalid", testPassword, phone.wrong())
			}
			send(429, "too_many_attempts", testPassword, phone.code(0))
			if after := changes(); after != before {
				t.Errorf("changes in the audit log: got %d, want %d", after, before)
			}

			ts.throttlesLater(24 * time.Hour)
			clock.step()
			send(r.status, "", testPassword, phone.code(0))
			send(403, "otp_invalid", testPassword, phone.code(0)) // it was used
			if after := changes(); after != before+1 {
				t.Errorf("changes in the audit log: got %d, want %d", after, before+1)
			}
		})
	}
	c.must(201, "POST", tokensPath, map[string]any{"name": "another", "permissions": []string{datasetRead},
		"current_password": testPassword, "otp": recovery[0]})
	c.must(200, "PATCH", mePath, map[string]any{"display_name": "Ada"}) // no lasting way in
}

// TestNoSecretInDump: neither the database nor the log shows the secret, a recovery code or a code, in any encoding.
// The secret of one user is of no use in the row of another.
func TestNoSecretInDump(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	phone, recovery := ts.signInCheaply("ada").enrol(clock)
	if a := ts.client().loginOTP("ada", testPassword, recovery[0], "198.51.100.1"); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	ts.signInCheaply("eve").begin(clock)
	dump := ts.log.String()
	for _, table := range must(collect[struct{ Name string }](t.Context(), ts.db, "list tables", `SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'public'`)) {
		var content string
		if err := ts.db.QueryRow(t.Context(), `SELECT coalesce(string_agg(t::text, ' '), '') FROM `+table.Name+` t`).Scan(&content); err != nil {
			t.Fatal(err)
		}
		dump += content
	}
	if !strings.Contains(dump, "totp.enable") {
		t.Fatal("the dump is not whole")
	}
	for _, secret := range append(slices.Clone(recovery), phone.text, string(phone.secret)) {
		for _, text := range []string{secret, strings.ReplaceAll(secret, "-", "")} {
			for _, encoded := range []string{text, hex.EncodeToString([]byte(text)), base64.RawStdEncoding.EncodeToString([]byte(text))} {
				if strings.Contains(strings.ToLower(dump), strings.ToLower(encoded)) {
					t.Errorf("the dump has %q", encoded)
				}
			}
		}
	}
	// Somebody who can write to the database gives eve the secret of their own account.
	ts.exec(`UPDATE totp_secrets SET (kid, secret, expires_at) = (SELECT kid, secret, expires_at FROM totp_secrets WHERE user_id = (SELECT id FROM users WHERE username = 'ada')) WHERE expires_at IS NOT NULL`)
	ts.exec(`UPDATE users SET totp = true`)
	if a := ts.client().loginOTP("eve", testPassword, phone.code(0), "198.51.100.1"); a.status != 500 {
		t.Errorf("another user's secret: %s", a.body)
	}
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), "198.51.100.1"); a.status != 200 {
		t.Errorf("%s", a.body)
	}
}

// TestTOTPAtOnce: of two logins with one code at the same time, on two instances, one succeeds. So it is for a recovery
// code, and for two confirmations.
func TestTOTPAtOnce(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	two := startTOTP(t, clock, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	c := ts.signInCheaply("ada")
	atOnce := func(send func(c client, i int) answer) (statuses []int) {
		var wg sync.WaitGroup
		answers := make([]answer, 4)
		for i := range answers {
			wg.Go(func() { answers[i] = send([]*testServer{ts, two}[i%2].client(), i) })
		}
		wg.Wait()
		for _, a := range answers {
			statuses = append(statuses, a.status)
		}
		slices.Sort(statuses)
		return statuses
	}
	phone := c.begin(clock)
	code := phone.code(0)
	statuses := atOnce(func(at client, _ int) answer {
		return at.as(c.token).do("POST", totpPath+"/confirm", map[string]string{"otp": code})
	})
	if !slices.Equal(statuses, []int{200, 409, 409, 409}) {
		t.Errorf("confirmations: %v", statuses)
	}
	c.must(200, "GET", mePath, nil)
	login := func(otp string, round int) {
		t.Helper()
		statuses := atOnce(func(c client, i int) answer {
			return c.loginOTP("ada", testPassword, otp, fmt.Sprintf("198.51.%d.%d", round, i))
		})
		if !slices.Equal(statuses, []int{200, 401, 401, 401}) {
			t.Errorf("logins with %s: %v", otp, statuses)
		}
	}
	for round := range 10 {
		clock.step()
		login(phone.code(0), round)
	}
	clock.step()
	c = ts.client().as(ts.client().loginOTP("ada", testPassword, phone.code(0), "198.51.100.1").text("access_token"))
	clock.step()
	c.must(204, "DELETE", totpPath, map[string]string{"current_password": testPassword, "otp": phone.code(0)})
	_, recovery := c.enrol(clock)
	for round, code := range recovery {
		login(code, 100+round)
	}
	login2 := ts.client().loginOTP("ada", testPassword, recovery[0], "198.51.100.1")
	if left := ts.queryInt(`SELECT cardinality(recovery_hashes) FROM totp_secrets`); left != 0 || login2.status != 401 {
		t.Errorf("%d recovery codes are left, %s", left, login2.body)
	}
}

// TestTOTPGuesses: whoever knows the password can guess codes no faster than passwords, though right passwords without
// a code, and confirmations of the password, come in between. The owner signs in from a known network all the same.
func TestTOTPGuesses(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	c := ts.signInCheaply("ada")
	phone, _ := c.enrol(clock)
	const home, thief = "203.0.113.9", "198.51.100.1"
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), home); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	clock.step()
	counted := func() int {
		return ts.queryInt(`SELECT coalesce(max(attempts), 0) FROM throttles WHERE account <> '' AND network = ''`)
	}
	for i := range 4 {
		for range 10 {
			if a := ts.client().loginOTP("ada", testPassword, "", thief); a.text("code") != "otp_required" {
				t.Fatalf("%s", a.body)
			}
			c.refused(422, "invalid", "POST", tokensPath, map[string]any{"name": "", "current_password": testPassword})
			c.refused(409, "totp_enabled", "POST", totpPath, map[string]any{"current_password": testPassword}, "X-Forwarded-For: "+thief)
		}
		if a := ts.client().loginOTP("ada", testPassword, phone.wrong(), thief); a.text("code") != "otp_invalid" || counted() != i+1 {
			t.Fatalf("guess %d: %s, %d are counted", i, a.body, counted())
		}
	}
	check(t, "attempts of the network", ts.queryInt(`SELECT max(attempts) FROM throttles WHERE account = ''`), 4)
	statuses := map[int]int{}
	tries := soakOr(1000, 200)
	began := time.Now()
	for range tries {
		statuses[ts.client().loginOTP("ada", testPassword, phone.wrong(), thief).status]++
	}
	// One is free, and a further one after 1, 3, 7, … seconds, which pass on a slow machine.
	most := 1 + bits.Len(uint(time.Since(began)/time.Second)+1)
	if n := statuses[401]; n < 1 || n > most || n+statuses[429] != tries {
		t.Errorf("statuses: %v, want 1 to %d of 401", statuses, most)
	}
	c.refused(429, "too_many_attempts", "DELETE", totpPath, map[string]string{"current_password": testPassword, "otp": phone.wrong()}, "X-Forwarded-For: "+thief)

	// From many networks, a hundred guesses in all.
	heard := counted()
	for i := range tries {
		a := ts.client().loginOTP("ada", testPassword, phone.wrong(), fmt.Sprintf("2001:db8:%d::1", i))
		if a.text("code") == "otp_invalid" {
			heard++
		}
	}
	if heard != 100 {
		t.Errorf("%d guesses were heard", heard)
	}
	for range 10 { // without a code the lockout neither ends nor grows
		if a := ts.client().loginOTP("ada", testPassword, "", home); a.text("code") != "otp_required" || counted() != 100 {
			t.Errorf("%s, %d are counted", a.body, counted())
		}
	}
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), "192.0.2.1"); a.status != 429 {
		t.Errorf("a new network is heard: %s", a.body)
	}
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), home); a.status != 200 || counted() != 0 {
		t.Errorf("%s, %d are counted", a.body, counted())
	}
	check(t, "rows in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.login_refused' AND after->>'code' = 'otp_invalid'`), heard)
	check(t, "rows for what is not counted", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.login_refused' AND after->>'code' = 'otp_required'`), 0)
	if err := ts.accounts.failures.flush(t.Context(), ts.db); err != nil {
		t.Fatal(err)
	}
	check(t, "attempts without a code in the audit log", ts.queryInt(`SELECT sum((after->>'attempts')::int) FROM audit_log WHERE action = 'session.otp_required' AND target = 'user:ada'`), 50)
}

// TestTOTPFaults: an attempt that ends with a fault is no failure and uses up no code. Without the key of a secret its
// codes cannot be checked, but recovery codes can.
func TestTOTPFaults(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	phone, recovery := ts.signInCheaply("ada").enrol(clock)
	login := func(status int, why, otp string) {
		t.Helper()
		if a := ts.client().loginOTP("ada", testPassword, otp, "198.51.100.1"); a.status != status || a.text("code") != why {
			t.Errorf("%s", a.body)
		}
	}
	ts.exec(`
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;
		CREATE TRIGGER fail BEFORE UPDATE ON totp_secrets FOR EACH ROW EXECUTE FUNCTION fail()`)
	for range 10 {
		login(503, "database_unavailable", phone.code(0))
		login(503, "database_unavailable", recovery[0])
	}
	ts.exec(`DROP FUNCTION fail CASCADE`)
	ring := ts.keys.Load()
	ts.keys.Store(testRing(t, "another"))
	for range 10 {
		login(503, "totp_unavailable", phone.code(0))
	}
	login(200, "", recovery[0])
	ts.keys.Store(ring)
	login(200, "", phone.code(0))
	check(t, "counted attempts", ts.queryInt(`SELECT max(attempts) FROM throttles`), 0)
}

// TestEnrolmentRaces: an enrolment whose session has ended is not confirmed. One that is confirmed lets no login pass that
// began before it, and never leaves half a second factor.
func TestEnrolmentRaces(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	c := ts.signInCheaply("ada")
	phone := c.begin(clock)
	c.must(204, "POST", "/api/v1/auth/logout", nil)
	c.refused(401, "invalid_token", "POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)})
	c.refused(401, "invalid_token", "POST", totpPath, map[string]string{"current_password": testPassword})
	if a := ts.client().loginOTP("ada", testPassword, "", "198.51.100.1"); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	outcomes := map[int]int{}
	for i := range 30 {
		name := fmt.Sprint("user", i)
		c := ts.signInCheaply(name)
		phone := c.begin(clock)
		var wg sync.WaitGroup
		var confirmed answer
		wg.Go(func() { c.do("POST", "/api/v1/auth/logout", nil) })
		wg.Go(func() { confirmed = c.do("POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)}) })
		wg.Wait()
		outcomes[confirmed.status]++
		c.refused(401, "invalid_token", "GET", mePath, nil)
		a := ts.client().loginOTP(name, testPassword, "", fmt.Sprint("198.51.100.", i))
		half := ts.queryInt(`SELECT count(*) FROM totp_secrets t JOIN users u ON u.id = t.user_id WHERE (t.expires_at IS NULL) <> u.totp`)
		if half != 0 || confirmed.status == 200 && a.text("code") != "otp_required" || confirmed.status == 401 && a.status != 200 {
			t.Errorf("confirmed with %d, then %s; %d halves", confirmed.status, a.body, half)
		}
	}
	if outcomes[200]+outcomes[401] != 30 {
		t.Errorf("%v", outcomes)
	}
	// A login that has checked the password, but has not opened its session, when the factor is enrolled.
	c = ts.signInCheaply("bob")
	found := must(findPasswordRecord(t.Context(), ts.db, "bob"))
	c.enrol(clock)
	if _, _, err := createSession(t.Context(), ts.db, serviceActor(), found, "", ts.cfg.refreshTTL, ts.cfg.sessionMax); err != errWrongCredentials {
		t.Errorf("the login opened a session: %v", err)
	}
	// A secret that is not confirmed within 15 minutes.
	c = ts.signInCheaply("eve")
	phone = c.begin(clock)
	ts.exec(`UPDATE totp_secrets SET expires_at = now() WHERE expires_at IS NOT NULL`)
	c.refused(409, "totp_not_begun", "POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)})
}

// TestTOTPKeys: prune keeps a key that encrypts a secret. A login encrypts the secret under the key that signs now.
func TestTOTPKeys(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	phone, _ := ts.signInCheaply("ada").enrol(clock)
	first := ts.keys.Load().keys[0]
	added := must(ts.command("keys", "add"))
	second := strings.TrimSuffix(strings.Fields(added)[2], ":")
	must(ts.command("keys", "promote", second))
	ts.keys.Store(must(loadKeys(ts.cfg.keysPath(), "", false)))
	waitFor(t, "a heartbeat under the new key", func() bool {
		return ts.queryInt(`SELECT count(*) FROM instances WHERE signer = $1`, ts.keys.Load().keys[0].fingerprint) == 1
	})
	ts.exec(`UPDATE instances SET seen_at = now() - interval '31 days' WHERE signer = $1`, first.fingerprint)
	spend := func() {
		t.Helper()
		ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
		ts.exec(`DELETE FROM audit_seals WHERE kid = $1`, first.id)
	}
	spend()
	if said := must(ts.command("keys", "prune")); !strings.Contains(said, "every key is needed") {
		t.Errorf("while a secret needs the key: %s", said)
	}
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), "198.51.100.1"); a.status != 200 {
		t.Fatalf("%s", a.body)
	}
	spend()
	if said := must(ts.command("keys", "prune")); !strings.Contains(said, "removed key "+first.id) {
		t.Errorf("after a login: %s", said)
	}
	ts.keys.Store(must(loadKeys(ts.cfg.keysPath(), "", false)))
	clock.step()
	if a := ts.client().loginOTP("ada", testPassword, phone.code(0), "198.51.100.1"); a.status != 200 || len(ts.keys.Load().keys) != 1 {
		t.Errorf("%s", a.body)
	}
}

// TestTakenBackAttempt: an attempt that is taken back leaves what was there before it, except what a success would.
func TestTakenBackAttempt(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	guess := must(ts.accounts.newGuess(t.Context(), "", "ada", netip.MustParseAddr("198.51.100.1")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, before := range []int{0, 1, 4, 5, 7, 98} {
		ts.exec(`TRUNCATE throttles`)
		ts.exec(`INSERT INTO throttles (account, network, attempts, expires_at) VALUES ($1, $2, $3, now() + interval '1 day'), ($1, '', $3, now() + interval '1 day'), ('', $2, $3, now() + interval '1 day')`, guess.subject, guess.network, before)
		if err := guess.count(ctx, ts.db); err != nil {
			t.Fatal(err)
		}
		ts.accounts.refund(ctx, guess)
		if n := ts.queryInt(`SELECT count(*) FROM throttles WHERE attempts = $1 AND next_at IS NULL`, before); n != 3 {
			t.Errorf("%d attempts before: %d rows are as before", before, n)
		}
	}
}
