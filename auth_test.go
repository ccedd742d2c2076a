package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestLogoutNamesItsActor: the audit row of a logout names the owner of the session, also if only the refresh cookie is
// shown.
func TestLogoutNamesItsActor(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	id := ts.addUser("ada", datasetRead)
	c, cookie := ts.client().login("ada", testPassword)
	session := c.credentialID()
	ts.client().must(204, "POST", "/api/v1/auth/logout", nil, "Cookie: __Host-cairn_refresh="+cookie)
	const logouts = `
		SELECT count(*)
		FROM audit_log
		WHERE action = 'session.logout'
			AND actor = 'ada'
			AND actor_id = $1
			AND credential = 'session:' || $2
			AND target = 'user:ada'`
	check(t, "rows of the logout", ts.queryInt(logouts, id, session), 1)
}

// TestAccounts follows a user from registration to logout.
func TestAccounts(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.client()
	const register = "/api/v1/auth/register"
	a := c.must(201, "POST", register, map[string]string{"username": "Ada", "password": testPassword, "email": "Ada@Example.org", "display_name": "Ada L."})
	check(t, "registered name", a.text("username"), "ada")
	check(t, "registered address", a.text("email"), "ada@example.org")
	check(t, "status", a.text("status"), "active")
	checkLacks(t, "registered", string(a.body), "password")
	c.refused(409, "username_taken", "POST", register, map[string]string{"username": "aDA", "password": testPassword})
	c.refused(409, "email_taken", "POST", register, map[string]string{"username": "ada2", "password": testPassword, "email": "ADA@example.org"})

	signedIn, cookie := c.login("ADA", testPassword)
	c.login("ada@EXAMPLE.org", testPassword)
	me := signedIn.must(200, "GET", "/api/v1/auth/me", nil)
	credential := me.json["credential"].(map[string]any)
	left := time.Until(must(time.Parse(time.RFC3339, credential["expires_at"].(string))))
	check(t, "hours of the access token", left.Round(time.Minute), 8*time.Hour)
	check(t, "my name", me.text("username"), "ada")
	check(t, "my permissions", len(me.json["permissions"].([]any)), 2)
	check(t, "my role", me.json["roles"].([]any)[0], "member")

	login := func(name, password string) answer {
		return c.do("POST", "/api/v1/auth/login", map[string]string{"username": name, "password": password})
	}
	wrong, unknown := login("ada", "wrong password"), login("nobody", testPassword)
	wrong.json["request_id"], unknown.json["request_id"] = "", ""
	check(t, "status of a wrong password", wrong.status, 401)
	check(t, "status of an unknown user", unknown.status, 401)
	for key := range wrong.json {
		check(t, key+" of a wrong password, and of an unknown user", wrong.json[key], unknown.json[key])
	}
	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'ada'`)
	checkAnswer(t, "disabled, wrong password", login("ada", "wrong password"), 401, "invalid_credentials")
	checkAnswer(t, "disabled, right password", login("ada", testPassword), 403, "account_disabled")
	checkAnswer(t, "refresh while disabled", c.refresh(cookie), 401, "session_ended")
	ts.exec(`UPDATE users SET status = 'active' WHERE username = 'ada'`)

	signedIn.must(200, "GET", "/api/v1/auth/me", nil)
	out := signedIn.must(204, "POST", "/api/v1/auth/logout", nil)
	checkHas(t, "cookie after logout", out.header.Get("Set-Cookie"), "__Host-cairn_refresh=;")
	checkHas(t, "cookie after logout", out.header.Get("Set-Cookie"), "Max-Age=0")
	signedIn.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	checkAnswer(t, "refresh after logout", c.refresh(cookie), 401, "session_ended")
}

// TestRefreshCookie: the cookie has the attributes that protect it in a browser, and no other cookie is read.
func TestRefreshCookie(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	login := map[string]string{"username": "ada", "password": testPassword}
	cookie := ts.client().must(200, "POST", "/api/v1/auth/login", login).header.Get("Set-Cookie")
	for _, part := range []string{"__Host-cairn_refresh=", "; Path=/", "; Max-Age=2592000", "; HttpOnly", "; Secure", "; SameSite=Strict"} {
		checkHas(t, "refresh cookie", cookie, part)
	}
	checkLacks(t, "refresh cookie", cookie, "Domain")
	_, value := ts.client().login("ada", testPassword)
	ts.client().refused(401, "refresh_token_missing", "POST", "/api/v1/auth/refresh", nil, "Cookie: cairn_refresh="+value)
	ts.client().refused(401, "refresh_token_invalid", "POST", "/api/v1/auth/refresh", nil, "Cookie: __Host-cairn_refresh="+value[:75]+"!")

	plain := startServer(t, nil, "CAIRN_COOKIE_INSECURE=1")
	plain.addUser("ada", datasetRead)
	cookie = plain.client().must(200, "POST", "/api/v1/auth/login", login).header.Get("Set-Cookie")
	check(t, "name of the insecure cookie", strings.Split(cookie, "=")[0], "cairn_refresh")
	checkLacks(t, "insecure cookie", cookie, "Secure")
}

// TestSessionExpiry: a session expires when it is idle and at its absolute end, by the database's clock. The access token
// never outlives the session.
func TestSessionExpiry(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_SESSION_MAX=1h")
	ts.addUser("ada", datasetRead)
	a := ts.client().must(200, "POST", "/api/v1/auth/login", map[string]string{"username": "ada", "password": testPassword})
	expiresIn := time.Duration(a.number("expires_in")) * time.Second
	check(t, "expires_in", expiresIn.Round(2*time.Minute), time.Hour)
	check(t, "expires_in ends after the session", expiresIn > time.Hour, false)
	checkHas(t, "cookie of a session of an hour", a.header.Get("Set-Cookie"), "Max-Age=3600")
	for _, column := range []string{"idle_expires_at", "expires_at"} {
		c, cookie := ts.client().login("ada", testPassword)
		ts.exec(`UPDATE sessions SET ` + column + ` = now()`)
		c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
		checkAnswer(t, column, c.refresh(cookie), 401, "session_ended")
	}
}

// TestExpiredAccessToken: an access token expires by the service's clock.
func TestExpiredAccessToken(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	offset := time.Duration(0)
	ts := startServer(t, func(o *options) {
		o.now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Now().Add(offset)
		}
	})
	c := ts.signIn("ada", datasetRead)
	c.must(200, "GET", "/api/v1/auth/me", nil)
	mu.Lock()
	offset = 8*time.Hour + time.Second
	mu.Unlock()
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
}

// TestForeignTokens: a token is refused if it is not, byte for byte, what Cairn writes, or if its user is not the
// session's. The answer is always the same.
func TestForeignTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ts := startServer(t, func(o *options) { o.now = func() time.Time { return now } }) // no token expires meanwhile
	c := ts.signIn("ada", "all")
	claims, err := ts.keys.Load().verifyAccessToken(c.token, now, ts.cfg.sessionMax)
	if err != nil {
		t.Fatal(err)
	}
	other := ts.addUser("bob", "all")
	ring := &keyring{keys: append(slices.Clone(ts.keys.Load().keys), testRing(t, "second").keys...)}
	ts.keys.Store(ring)
	sign := func(user, session string) string {
		return ring.signAccessToken(user, session, now, now.Add(time.Hour))
	}
	hostile := hostileAccessTokens(t, ring, c.token, now)
	hostile["another user's session"] = sign(other, claims.SessionID)
	hostile["another session"] = sign(claims.Subject, uuidText([16]byte{1}))
	hostile["a text with a blank"] = c.token + " " + c.token
	for i := range len(c.token) {
		if c.token[i] != '.' { // the other tokens are cases of the table
			b := []byte(c.token)
			b[i] ^= 1
			hostile[fmt.Sprintf("one bit of byte %d", i)] = string(b)
		}
	}
	requestID := regexp.MustCompile(`"request_id":"[A-Z0-9]{26}"`)
	body := ""
	for name, token := range hostile {
		if strings.ContainsRune(token, '\n') || strings.HasSuffix(token, " ") {
			continue // no header can hold it: RFC 9110, section 5.5
		}
		a := c.as("").do("GET", "/api/v1/auth/me", nil, "Authorization: Bearer "+token)
		said := requestID.ReplaceAllString(string(a.body), "")
		if body == "" {
			body = said
		}
		checkAnswer(t, name, a, 401, "invalid_token")
		check(t, name+": body", said, body)
	}
	c.must(200, "GET", "/api/v1/auth/me", nil)
	c.must(200, "GET", "/api/v1/auth/me", nil, "Authorization: bEARER "+c.token)
	c.as("").refused(401, "not_signed_in", "GET", "/api/v1/auth/me", nil, "Authorization: Basic "+c.token)
}

// TestLoginRacesChange: a login whose password or status changes while it hashes opens no session.
func TestLoginRacesChange(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	id := ts.addUser("ada", datasetRead)
	ctx := context.Background()
	before, err := findPasswordRecord(ctx, ts.db, "ada")
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, ts.db, func(tx pgx.Tx) error {
		return setPassword(ctx, tx, operatorActor(), "password.change", user{ID: id}, testPasswordHash())
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = createSession(ctx, ts.db, actor{}, before, "", ts.cfg.refreshTTL, ts.cfg.sessionMax)
	check(t, "a session from old credentials", err, error(errWrongCredentials))

	// The change is under way: the login waits for it, and then sees it.
	waits := func() bool {
		return ts.queryInt(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}
	before, err = findPasswordRecord(ctx, ts.db, "ada")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := ts.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := setPassword(ctx, tx, operatorActor(), "password.change", user{ID: id}, testPasswordHash()); err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error)
	go func() {
		_, _, err := createSession(ctx, ts.db, actor{}, before, "", ts.cfg.refreshTTL, ts.cfg.sessionMax)
		outcome <- err
	}()
	waitFor(t, "the login to wait for the row's lock", waits)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	check(t, "a session from credentials that were changing", <-outcome, error(errWrongCredentials))

	// A role is removed meanwhile: the answer does not show it.
	if tx, err = ts.db.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := replaceUserRoles(ctx, tx, operatorActor(), must(getUser(ctx, tx, id)), []string{memberRole}); err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer)
	go func() {
		a, _ := ts.client().send("POST", "/api/v1/auth/login", strings.NewReader(`{"username":"ada","password":"`+testPassword+`"}`))
		answers <- a
	}()
	waitFor(t, "the login to wait for the row's lock", waits)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	a := <-answers
	check(t, "status of the login as the roles changed", a.status, 200)
	checkHas(t, "the login as the roles changed", string(a.body), `"roles":["member"]`)
}

// waitFor checks again and again until the condition holds, for a minute at most.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
		pause(context.Background(), 5*time.Millisecond) // t.Context() has ended during a cleanup
	}
}

// checkNoFile checks that there is no file of that name.
func checkNoFile(t *testing.T, when, name string) {
	t.Helper()
	_, err := os.Stat(name)
	check(t, "the file exists "+when, errors.Is(err, os.ErrNotExist), true)
}

// TestFirstAdministrator: the operator sets the password of the first administrator once, with the token in a file. Then
// the file is removed.
func TestFirstAdministrator(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	file := filepath.Join(lookup(ts.env, "CAIRN_STATE_DIR"), "first-admin-token")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "mode of the file", must(os.Stat(file)).Mode().Perm(), 0o600)
	token := strings.TrimSpace(string(content))
	checkLacks(t, "log", ts.log.String(), token)
	checkHas(t, "log", ts.log.String(), file)
	ts.stop()

	// A second start leaves the file as it is.
	again := startServer(t, nil, ts.env...)
	check(t, "token after the second start", string(must(os.ReadFile(file))), string(content))
	checkHas(t, "log of the second start", again.log.String(), file)
	again.stop()

	// Another instance makes no file: there is one valid token, in the file that the first instance names in its log.
	other := startServer(t, nil, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	checkNoFile(t, "of the other instance", other.cfg.firstAdminFile())
	checkHas(t, "log of the other instance", other.log.String(), "has no password yet")
	checkLacks(t, "log of the other instance", other.log.String(), "first-admin-token")
	other.stop()

	ts = startServer(t, nil, ts.env...)
	const reset = "/api/v1/auth/password-reset"
	c := ts.client()
	c.refused(422, "invalid", "POST", reset, map[string]string{"token": token, "new_password": "short"})
	c.must(204, "POST", reset, map[string]string{"token": token, "new_password": testPassword})
	c.refused(401, "password_token_invalid", "POST", reset, map[string]string{"token": token, "new_password": testPassword})
	checkNoFile(t, "after the password was set", file)
	admin, _ := c.login("admin", testPassword)
	check(t, "the administrator holds permissions", len(admin.must(200, "GET", "/api/v1/auth/me", nil).json["permissions"].([]any)), len(builtInNames()))
}

// TestFirstAdministratorWithdrawn: once there is an administrator, the token is invalid.
func TestFirstAdministratorWithdrawn(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	content, err := os.ReadFile(ts.cfg.firstAdminFile())
	if err != nil {
		t.Fatal(err)
	}
	ts.addUser("grace", "all")
	ts.stop()
	ts = startServer(t, nil, ts.env...)
	checkNoFile(t, "once there is an administrator", ts.cfg.firstAdminFile())
	ts.client().refused(401, "password_token_invalid", "POST", "/api/v1/auth/password-reset",
		map[string]string{"token": strings.TrimSpace(string(content)), "new_password": testPassword})
}

// TestFirstAdministratorWhileBusy: a start that gets no turn to look for an administrator fails. It does not go on as if
// the name were retired.
func TestFirstAdministratorWhileBusy(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	defer must(ts.accounts.accessQueue.acquire(t.Context(), ""))()
	ended, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	check(t, "error", ts.accounts.ensureAdministrator(ended), error(errBusy))
}

// TestPasswordReset: a token sets the password once, ends all sessions, and expires.
func TestPasswordReset(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	id := ts.addUser("ada", datasetRead)
	ctx := context.Background()
	newToken := func(ttl time.Duration) (token string) {
		err := pgx.BeginFunc(ctx, ts.db, func(tx pgx.Tx) (err error) {
			t, err := createPasswordToken(ctx, tx, id, ttl)
			token = t.PasswordToken
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	c, cookie := ts.client().login("ada", testPassword)
	const reset = "/api/v1/auth/password-reset"
	older, newer := newToken(time.Hour), newToken(time.Hour)
	body := func(token string) any { return map[string]string{"token": token, "new_password": "another password"} }
	ts.client().refused(401, "password_token_invalid", "POST", reset, body(older))

	// Of many simultaneous requests one succeeds.
	var wg sync.WaitGroup
	statuses := make([]int, 8)
	for i := range statuses {
		wg.Go(func() { statuses[i] = ts.client().do("POST", reset, body(newer)).status })
	}
	wg.Wait()
	won := 0
	for _, status := range statuses {
		if status == 204 {
			won++
		} else if status != 401 && status != 503 {
			t.Errorf("status %d", status)
		}
	}
	check(t, "uses of the token", won, 1)
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	checkAnswer(t, "refresh after the reset", c.refresh(cookie), 401, "session_ended")
	ts.client().refused(401, "invalid_credentials", "POST", "/api/v1/auth/login", map[string]string{"username": "ada", "password": testPassword})
	ts.client().login("ada", "another password")

	expired := newToken(time.Hour)
	ts.exec(`UPDATE password_tokens SET expires_at = now()`)
	ts.client().refused(401, "password_token_invalid", "POST", reset, body(expired))
}

// TestRegistrationModes: registration is open, needs approval, or is closed.
func TestRegistrationModes(t *testing.T) {
	t.Parallel()
	body := map[string]string{"username": "ada", "password": testPassword}
	login := func(c client) answer { return c.do("POST", "/api/v1/auth/login", body) }

	approval := startServer(t, nil, "CAIRN_REGISTRATION=approval").client()
	registered := approval.must(201, "POST", "/api/v1/auth/register", body)
	check(t, "status", registered.text("status"), "pending")
	checkAnswer(t, "login", login(approval), 403, "account_pending")
	closed := startServer(t, nil, "CAIRN_REGISTRATION=closed").client()
	closed.refused(403, "registration_closed", "POST", "/api/v1/auth/register", body)
}

// TestUserCreateCommand: "cairn user create" works while the service runs.
func TestUserCreateCommand(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	create := func(input string, args ...string) (string, error) {
		var out lockedBuffer
		err := run(context.Background(), append([]string{"user", "create"}, args...), ts.env, strings.NewReader(input), &out, &out)
		return out.String(), err
	}
	out, err := create(testPassword+"\n", "Grace", "--role", "admin", "--email", "grace@example.org")
	check(t, "error", err, nil)
	checkHas(t, "output", out, "grace")
	checkLacks(t, "output", out, testPassword)
	c, _ := ts.client().login("grace", testPassword)
	c.must(200, "GET", "/api/v1/users", nil)
	for name, test := range map[string]struct {
		input string
		args  []string
		want  string
	}{
		"taken":          {testPassword, []string{"grace"}, "A user has, or had, that name."},
		"unknown role":   {testPassword, []string{"hopper", "--role", "captain"}, "no role"},
		"short password": {"short\n", []string{"hopper"}, "at least 8"},
		"no password":    {"", []string{"hopper"}, "read password"},
		"bad name":       {testPassword, []string{"hop per"}, "username"},
		"no name":        {testPassword, nil, "NAME is missing"},
		"unknown flag":   {testPassword, []string{"hopper", "--sudo"}, "cairn help"},
	} {
		_, err := create(test.input, test.args...)
		checkError(t, name, err, test.want)
	}
	check(t, "users of the name hopper", ts.queryInt(`SELECT count(*) FROM users WHERE username = 'hopper'`), 0)
}
