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
	n := ts.queryInt(`SELECT count(*) FROM audit_log
		WHERE action = 'session.logout' AND actor = 'ada' AND actor_id = $1 AND credential = 'session:' || $2 AND target = 'user:ada'`, id, session)
	if n != 1 {
		t.Errorf("%d rows of the logout", n)
	}
}

// TestAccounts follows a user from registration to logout.
func TestAccounts(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.client()
	const register = "/api/v1/auth/register"
	a := c.must(201, "POST", register, map[string]string{"username": "Ada", "password": testPassword, "email": "Ada@Example.org", "display_name": "Ada L."})
	if a.text("username") != "ada" || a.text("email") != "ada@example.org" || a.text("status") != "active" || strings.Contains(string(a.body), "password") {
		t.Errorf("registered: %s", a.body)
	}
	c.refused(409, "username_taken", "POST", register, map[string]string{"username": "aDA", "password": testPassword})
	c.refused(409, "email_taken", "POST", register, map[string]string{"username": "ada2", "password": testPassword, "email": "ADA@example.org"})

	signedIn, cookie := c.login("ADA", testPassword)
	c.login("ada@EXAMPLE.org", testPassword)
	me := signedIn.must(200, "GET", "/api/v1/auth/me", nil)
	credential := me.json["credential"].(map[string]any)
	expires, err := time.Parse(time.RFC3339, credential["expires_at"].(string))
	if left := time.Until(expires); err != nil || left < 8*time.Hour-time.Minute || left > 8*time.Hour {
		t.Errorf("the access token is good for %v", left)
	}
	if me.text("username") != "ada" || len(me.json["permissions"].([]any)) != 2 || me.json["roles"].([]any)[0] != "member" {
		t.Errorf("me: %s", me.body)
	}

	login := func(name, password string) answer {
		return c.do("POST", "/api/v1/auth/login", map[string]string{"username": name, "password": password})
	}
	wrong, unknown := login("ada", "wrong password"), login("nobody", testPassword)
	wrong.json["request_id"], unknown.json["request_id"] = "", ""
	for key := range wrong.json {
		if wrong.json[key] != unknown.json[key] || wrong.status != 401 || unknown.status != 401 {
			t.Errorf("a wrong password and an unknown user differ: %s, %s", wrong.body, unknown.body)
		}
	}
	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'ada'`)
	if a := login("ada", "wrong password"); a.text("code") != "invalid_credentials" {
		t.Errorf("disabled is told without the password: %s", a.body)
	}
	if a := login("ada", testPassword); a.status != 403 || a.text("code") != "account_disabled" {
		t.Errorf("disabled: %s", a.body)
	}
	if a := c.refresh(cookie); a.status != 401 || a.text("code") != "session_ended" {
		t.Errorf("refresh while disabled: %s", a.body)
	}
	ts.exec(`UPDATE users SET status = 'active' WHERE username = 'ada'`)

	signedIn.must(200, "GET", "/api/v1/auth/me", nil)
	out := signedIn.must(204, "POST", "/api/v1/auth/logout", nil)
	if !strings.Contains(out.header.Get("Set-Cookie"), "__Host-cairn_refresh=;") || !strings.Contains(out.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("logout does not clear the cookie: %s", out.header.Get("Set-Cookie"))
	}
	signedIn.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	if a := c.refresh(cookie); a.status != 401 || a.text("code") != "session_ended" {
		t.Errorf("refresh after logout: %s", a.body)
	}
}

// TestRefreshCookie: the cookie has the attributes that protect it in a browser, and no other cookie is read.
func TestRefreshCookie(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	login := map[string]string{"username": "ada", "password": testPassword}
	cookie := ts.client().must(200, "POST", "/api/v1/auth/login", login).header.Get("Set-Cookie")
	for _, part := range []string{"__Host-cairn_refresh=", "; Path=/", "; Max-Age=2592000", "; HttpOnly", "; Secure", "; SameSite=Strict"} {
		if !strings.Contains(cookie, part) {
			t.Errorf("no %q in %q", part, cookie)
		}
	}
	if strings.Contains(cookie, "Domain") {
		t.Errorf("Domain in %q", cookie)
	}
	_, value := ts.client().login("ada", testPassword)
	ts.client().refused(401, "refresh_token_missing", "POST", "/api/v1/auth/refresh", nil, "Cookie: cairn_refresh="+value)
	ts.client().refused(401, "refresh_token_invalid", "POST", "/api/v1/auth/refresh", nil, "Cookie: __Host-cairn_refresh="+value[:75]+"!")

	plain := startServer(t, nil, "CAIRN_COOKIE_INSECURE=1")
	plain.addUser("ada", datasetRead)
	cookie = plain.client().must(200, "POST", "/api/v1/auth/login", login).header.Get("Set-Cookie")
	if !strings.HasPrefix(cookie, "cairn_refresh=") || strings.Contains(cookie, "Secure") {
		t.Errorf("insecure cookie is %q", cookie)
	}
}

// TestSessionExpiry: a session expires when it is idle and at its absolute end, by the database's clock. The access token
// never outlives the session.
func TestSessionExpiry(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_SESSION_MAX=1h")
	ts.addUser("ada", datasetRead)
	a := ts.client().must(200, "POST", "/api/v1/auth/login", map[string]string{"username": "ada", "password": testPassword})
	if n := a.number("expires_in"); n > 3600 || n < 3500 {
		t.Errorf("expires_in %d, want the session's hour", n)
	}
	if !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=3600") {
		t.Errorf("cookie outlives the session: %s", a.header.Get("Set-Cookie"))
	}
	for _, column := range []string{"idle_expires_at", "expires_at"} {
		c, cookie := ts.client().login("ada", testPassword)
		ts.exec(`UPDATE sessions SET ` + column + ` = now()`)
		c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
		if a := c.refresh(cookie); a.status != 401 || a.text("code") != "session_ended" {
			t.Errorf("%s: %s", column, a.body)
		}
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
	claims, err := ts.keys.Load().verifyAccess(c.token, now, ts.cfg.sessionMax)
	if err != nil {
		t.Fatal(err)
	}
	other := ts.addUser("bob", "all")
	ring := &keyring{keys: append(slices.Clone(ts.keys.Load().keys), testRing(t, "second").keys...)}
	ts.keys.Store(ring)
	sign := func(user, session string) string {
		return ring.signAccess(user, session, now, now.Add(time.Hour))
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
		if a.status != 401 || a.text("code") != "invalid_token" || said != body {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
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
		return setPassword(ctx, tx, operatorActor(), "password.change", user{ID: id}, 0, testPasswordHash())
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := createSession(ctx, ts.db, actor{}, before, "", ts.cfg.refreshTTL, ts.cfg.sessionMax); !errors.Is(err, errWrongCredentials) {
		t.Errorf("a session from old credentials: %v", err)
	}

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
	if err := setPassword(ctx, tx, operatorActor(), "password.change", user{ID: id}, 0, testPasswordHash()); err != nil {
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
	if err := <-outcome; !errors.Is(err, errWrongCredentials) {
		t.Errorf("a session from credentials that were changing: %v", err)
	}

	// A role is removed meanwhile: the answer does not show it.
	if tx, err = ts.db.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if err := replaceRoles(ctx, tx, operatorActor(), must(getUser(ctx, tx, id)), []string{memberRole}); err != nil {
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
	if a := <-answers; a.status != 200 || !strings.Contains(string(a.body), `"roles":["member"]`) {
		t.Errorf("signed in as the roles changed: %s", a.body)
	}
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
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	token := strings.TrimSpace(string(content))
	if strings.Contains(ts.log.String(), token) || !strings.Contains(ts.log.String(), file) {
		t.Error("the log must name the file and not hold the token")
	}
	ts.stop()

	// A second start leaves the file as it is.
	again := startServer(t, nil, ts.env...)
	if second, err := os.ReadFile(file); err != nil || string(second) != string(content) {
		t.Errorf("the second start changed the token: %v", err)
	}
	if !strings.Contains(again.log.String(), file) {
		t.Errorf("the log of the second start does not name the file: %s", again.log)
	}
	again.stop()

	// Another instance makes no file: there is one valid token, in the file that the first instance names in its log.
	other := startServer(t, nil, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	if _, err := os.Stat(other.cfg.firstAdminFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other instance made a token too: %v", err)
	}
	if log := other.log.String(); !strings.Contains(log, "has no password yet") || strings.Contains(log, "first-admin-token") {
		t.Errorf("the other instance names a file that it does not have: %s", log)
	}
	other.stop()

	ts = startServer(t, nil, ts.env...)
	const reset = "/api/v1/auth/password-reset"
	c := ts.client()
	c.refused(422, "invalid", "POST", reset, map[string]string{"token": token, "new_password": "short"})
	c.must(204, "POST", reset, map[string]string{"token": token, "new_password": testPassword})
	c.refused(401, "password_token_invalid", "POST", reset, map[string]string{"token": token, "new_password": testPassword})
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	admin, _ := c.login("admin", testPassword)
	if n := len(admin.must(200, "GET", "/api/v1/auth/me", nil).json["permissions"].([]any)); n != len(builtInNames()) {
		t.Errorf("the administrator holds %d permissions", n)
	}
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
	if _, err := os.Stat(ts.cfg.firstAdminFile()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	ts.client().refused(401, "password_token_invalid", "POST", "/api/v1/auth/password-reset",
		map[string]string{"token": strings.TrimSpace(string(content)), "new_password": testPassword})
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
	if won != 1 {
		t.Errorf("%d used the token, want 1", won)
	}
	c.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	if a := c.refresh(cookie); a.text("code") != "session_ended" {
		t.Errorf("refresh after reset: %s", a.body)
	}
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
	if a := approval.must(201, "POST", "/api/v1/auth/register", body); a.text("status") != "pending" {
		t.Errorf("registered: %s", a.body)
	}
	if a := login(approval); a.status != 403 || a.text("code") != "account_pending" {
		t.Errorf("login: %s", a.body)
	}
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
	if err != nil || !strings.Contains(out, "grace") || strings.Contains(out, testPassword) {
		t.Fatalf("%s %v", out, err)
	}
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
		if _, err := create(test.input, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := ts.queryInt(`SELECT count(*) FROM users WHERE username = 'hopper'`); n != 0 {
		t.Error("a refused user was made")
	}
}
