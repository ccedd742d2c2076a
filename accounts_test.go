package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const tokensPath, sessionsPath, mePath = "/api/v1/auth/tokens", "/api/v1/auth/sessions", "/api/v1/auth/me"

// TestOwnSessions: users list their sessions with address and device, end one of them, and end all but the current one.
func TestOwnSessions(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	one := ts.signIn("ada", datasetRead)
	two, _ := ts.client().login("ada", testPassword)
	three, cookie := ts.client().login("ada", testPassword)
	other := ts.signIn("bob", datasetRead)
	items := two.must(200, "GET", sessionsPath, nil).items()
	if len(items) != 3 {
		t.Fatalf("sessions: got %v, want 3", items)
	}
	check(t, "the newest session is current", items[0]["current"], false)
	check(t, "the second session is current", items[1]["current"], true)
	check(t, "address", items[1]["address"], "127.0.0.1")
	check(t, "there is no device", items[1]["device"] == "", false)
	two.refused(404, "not_found", "DELETE", sessionsPath+"/"+other.credentialID(), nil)
	two.refused(404, "not_found", "DELETE", sessionsPath+"/nonsense", nil)
	two.must(204, "DELETE", sessionsPath+"/"+three.credentialID(), nil)
	three.refused(401, "invalid_token", "GET", mePath, nil)
	if a := three.refresh(cookie); a.text("code") != "session_ended" {
		t.Errorf("refresh: %s", a.body)
	}
	two.must(204, "DELETE", sessionsPath, nil)
	one.refused(401, "invalid_token", "GET", mePath, nil)
	two.must(200, "GET", mePath, nil)
	other.must(200, "GET", mePath, nil)
	if items := two.must(200, "GET", sessionsPath, nil).items(); len(items) != 1 {
		t.Errorf("%d sessions left", len(items))
	}
}

// TestAPITokens: creating an API token takes the password. Its secret is shown once. The token may do what both it names
// and its owner may, until it expires or is ended.
func TestAPITokens(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	body := func(changes map[string]any) map[string]any {
		b := map[string]any{"name": "nightly", "permissions": []string{datasetRead}, "current_password": testPassword}
		for k, v := range changes {
			b[k] = v
		}
		return b
	}
	c.refused(403, "wrong_password", "POST", tokensPath, body(map[string]any{"current_password": "wrong password"}))
	c.refused(403, "grant_exceeds_own", "POST", tokensPath, body(map[string]any{"permissions": []string{userManage}}))
	c.refused(422, "invalid", "POST", tokensPath, body(map[string]any{"permissions": []string{"fly"}}))
	c.refused(422, "invalid", "POST", tokensPath, body(map[string]any{"permissions": []string{}}))
	c.refused(422, "invalid", "POST", tokensPath, body(map[string]any{"name": ""}))
	c.refused(422, "invalid", "POST", tokensPath, body(map[string]any{"expires_at": "2001-01-01T00:00:00Z"}))
	c.refused(422, "invalid", "POST", tokensPath, body(map[string]any{"expires_at": time.Now().AddDate(2, 0, 0)}))
	a := c.must(201, "POST", tokensPath, body(nil))
	c.refused(409, "name_taken", "POST", tokensPath, body(nil))
	secret := a.text("token")
	left := time.Until(must(time.Parse(time.RFC3339, a.text("expires_at"))))
	check(t, "time of the token", left.Round(2*time.Hour), 90*24*time.Hour)
	checkHas(t, "secret", secret, "cairn_pat_")
	list := c.must(200, "GET", tokensPath, nil)
	check(t, "tokens", len(list.items()), 1)
	checkLacks(t, "list of tokens", string(list.body), secret)

	script := ts.client().as(secret)
	me := script.must(200, "GET", mePath, nil)
	check(t, "permissions", fmt.Sprint(me.json["permissions"]), "["+datasetRead+"]")
	check(t, "kind of the credential", me.json["credential"].(map[string]any)["kind"], "token")
	script.must(200, "GET", "/api/v1/datasets", nil)
	script.refused(403, "token_scope", "POST", "/api/v1/datasets", map[string]string{"name": "x", "path": "x"})
	script.refused(403, "permission_missing", "GET", "/api/v1/users", nil)
	script.refused(403, "session_required", "GET", tokensPath, nil)
	basic := func(user, password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	anonymous := ts.client()
	anonymous.must(200, "GET", "/api/v1/datasets", nil, basic("whoever", secret))
	anonymous.must(200, "HEAD", "/api/v1/datasets", nil, basic("", secret))
	anonymous.refused(401, "not_signed_in", "POST", "/api/v1/inbox/read-all", nil, basic("ada", secret))
	anonymous.refused(401, "invalid_token", "GET", "/api/v1/datasets", nil, basic("ada", testPassword))
	anonymous.refused(401, "invalid_token", "GET", "/api/v1/datasets", nil, basic("ada", c.token))
	check(t, "tokens with a recent use", ts.queryInt(`SELECT count(*) FROM api_tokens WHERE last_used_at > now() - interval '1 minute'`), 1)

	// An expired token does not keep its name.
	ts.addToken("ada", "old", datasetRead)
	c.refused(409, "name_taken", "POST", tokensPath, body(map[string]any{"name": "old"}))
	ts.exec(`UPDATE api_tokens SET expires_at = now() WHERE name = 'old'`)
	c.must(201, "POST", tokensPath, body(map[string]any{"name": "old"}))
	ts.exec(`DELETE FROM api_tokens WHERE name = 'old'`)
	// A proxy asks with GET, whatever the method of its own request.
	const ask = verifyPath + "?permission=" + datasetRead
	for _, method := range []string{"X-Other: 1", "X-Original-Method: GET", "X-Forwarded-Method: GET"} {
		anonymous.refused(401, "not_signed_in", "GET", ask, nil, basic("ada", secret), method)
	}
	anonymous.must(204, "GET", ask, nil, "Authorization: Bearer "+secret)

	// A permission that the owner loses is lost to the token.
	ts.exec(`DELETE FROM role_permissions WHERE permission = $1 AND role_id = (SELECT id FROM roles WHERE name = 'only-ada')`, datasetRead)
	script.refused(403, "permission_missing", "GET", "/api/v1/datasets", nil)
	c.must(204, "DELETE", tokensPath+"/"+a.text("id"), nil)
	script.refused(401, "invalid_token", "GET", mePath, nil)
	c.refused(404, "not_found", "DELETE", tokensPath+"/"+a.text("id"), nil)
	second, third := ts.addToken("ada", "second", datasetRead), ts.addToken("ada", "third", datasetRead)
	second.must(200, "GET", mePath, nil)
	c.must(204, "DELETE", tokensPath, nil)
	second.refused(401, "invalid_token", "GET", mePath, nil)
	third.refused(401, "invalid_token", "GET", mePath, nil)
}

// TestOthersCredentials: a manager of users lists and ends the sessions and tokens of users who hold no more than the
// manager does.
func TestOthersCredentials(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	manager := ts.signIn("manager", userManage, datasetRead)
	id := ts.addUser("ada", datasetRead)
	ada, _ := ts.client().login("ada", testPassword)
	script := ts.addToken("ada", "script", datasetRead)
	path := "/api/v1/users/" + id
	check(t, "sessions", len(manager.must(200, "GET", path+"/sessions", nil).items()), 1)
	check(t, "tokens", len(manager.must(200, "GET", path+"/tokens", nil).items()), 1)
	script.must(200, "GET", mePath, nil)
	manager.must(204, "DELETE", path+"/tokens", nil)
	script.refused(401, "invalid_token", "GET", mePath, nil)
	ada.must(200, "GET", mePath, nil)
	manager.must(204, "DELETE", path+"/sessions", nil)
	ada.refused(401, "invalid_token", "GET", mePath, nil)

	root := ts.addUser("root", "all")
	rootClient, _ := ts.client().login("root", testPassword)
	manager.refused(403, "grant_exceeds_own", "DELETE", "/api/v1/users/"+root+"/sessions", nil)
	manager.refused(403, "grant_exceeds_own", "DELETE", "/api/v1/users/"+root+"/tokens", nil)
	rootClient.must(200, "GET", mePath, nil)
	manager.refused(404, "not_found", "DELETE", "/api/v1/users/"+uuidText([16]byte{1})+"/sessions", nil)
}

// TestChangePassword: a new password takes the current one. The other sessions end, this one stays.
func TestChangePassword(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	other, cookie := ts.client().login("ada", testPassword)
	const path, next = "/api/v1/auth/password", "another long password"
	c.refused(403, "wrong_password", "PUT", path, map[string]string{"current_password": "wrong", "new_password": next})
	c.refused(422, "invalid", "PUT", path, map[string]string{"current_password": testPassword, "new_password": "password1"})
	c.must(204, "PUT", path, map[string]string{"current_password": testPassword, "new_password": next})
	c.must(200, "GET", mePath, nil)
	other.refused(401, "invalid_token", "GET", mePath, nil)
	if a := other.refresh(cookie); a.text("code") != "session_ended" {
		t.Errorf("refresh: %s", a.body)
	}
	ts.client().login("ada", next)
	script := ts.addToken("ada", "script", datasetRead)
	c.must(204, "PUT", path, map[string]string{"current_password": next, "new_password": testPassword})
	script.must(200, "GET", mePath, nil)
	c.must(204, "PUT", path, map[string]any{"current_password": testPassword, "new_password": next, "end_tokens": true})
	script.refused(401, "invalid_token", "GET", mePath, nil)

	c.refused(403, "wrong_password", "PATCH", mePath, map[string]string{"email": "ada@example.org", "current_password": "wrong"})
	a := c.must(200, "PATCH", mePath, map[string]string{"email": "Ada@example.org", "current_password": next, "display_name": "Ada"})
	check(t, "e-mail address", a.text("email"), "ada@example.org")
	check(t, "display name", a.text("display_name"), "Ada")
	if me := c.must(200, "GET", mePath, nil); me.text("display_name") != "Ada" {
		t.Errorf("a change is not seen at once: %s", me.body)
	}
}

// TestRevocationOnAnotherInstance: a right that is revoked at one instance is refused by another in the next request.
func TestRevocationOnAnotherInstance(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	root := one.signIn("root", "all")
	userOf := func(c client) string { return "/api/v1/users/" + c.must(200, "GET", mePath, nil).text("id") }
	changes := []struct {
		what   string
		change func(c client, name string)
		status int
		code   string
	}{
		{"logout", func(c client, _ string) { c.must(204, "POST", "/api/v1/auth/logout", nil) }, 401, "invalid_token"},
		{"disabling", func(c client, _ string) {
			root.must(200, "PATCH", userOf(c), map[string]string{"status": "disabled"})
		}, 401, "invalid_token"},
		{"deletion", func(c client, _ string) { root.must(204, "DELETE", userOf(c), nil) }, 401, "invalid_token"},
		{"end of sessions", func(c client, _ string) { root.must(204, "DELETE", userOf(c)+"/sessions", nil) }, 401, "invalid_token"},
		{"roles replaced", func(c client, _ string) {
			root.must(200, "PUT", userOf(c)+"/roles", map[string]any{"roles": []string{}})
		}, 403, "permission_missing"},
		{"role row deleted by hand", func(_ client, name string) {
			one.exec(`DELETE FROM user_roles WHERE user_id = (SELECT id FROM users WHERE username = $1)`, name)
		}, 403, "permission_missing"},
		{"permission deleted by hand", func(_ client, name string) {
			one.exec(`DELETE FROM role_permissions WHERE role_id = (SELECT id FROM roles WHERE name = 'only-' || $1)`, name)
		}, 403, "permission_missing"},
		{"disabled by hand", func(_ client, name string) {
			one.exec(`UPDATE users SET status = 'disabled' WHERE username = $1`, name)
		}, 401, "invalid_token"},
		{"role changed", func(c client, name string) {
			id := one.queryInt(`SELECT id::int FROM roles WHERE name = 'only-' || $1`, name)
			root.must(200, "PATCH", fmt.Sprintf("/api/v1/roles/%d", id), map[string]any{"permissions": []string{}})
		}, 403, "permission_missing"},
	}
	for i, change := range changes {
		for _, script := range []bool{false, true} {
			name := fmt.Sprintf("user%d%t", i, script)
			at1 := one.signIn(name, datasetRead)
			at2 := at1
			if script {
				at2 = one.addToken(name, "script", datasetRead)
			}
			at2.url = two.url
			at2.must(200, "GET", "/api/v1/datasets", nil)
			change.change(at1, name)
			if script && (change.what == "logout" || change.what == "end of sessions") {
				at2.must(200, "GET", "/api/v1/datasets", nil) // an API token is no session
				continue
			}
			what := fmt.Sprintf("%s, API token %t", change.what, script)
			checkAnswer(t, what, at2.do("GET", "/api/v1/datasets", nil), change.status, change.code)
		}
	}
	// GET /auth/me shows the last change of a user, also one made by hand.
	ada := one.signIn("ada", datasetRead)
	ada.url = two.url
	for i := range 20 {
		ada.must(200, "GET", mePath, nil)
		name := fmt.Sprint("Ada ", i)
		one.exec(`UPDATE users SET display_name = $1 WHERE username = 'ada'`, name)
		if got := ada.must(200, "GET", mePath, nil).text("display_name"); got != name {
			t.Errorf("%q is shown, want %q", got, name)
		}
		grants := i % 2
		one.exec(`DELETE FROM role_permissions WHERE permission = 'user.manage' AND role_id = (SELECT id FROM roles WHERE name = 'only-ada')`)
		if grants == 1 {
			one.exec(`INSERT INTO role_permissions SELECT id, 'user.manage' FROM roles WHERE name = 'only-ada'`)
		}
		if a := ada.do("GET", "/api/v1/users", nil); (a.status == 200) != (grants == 1) {
			t.Errorf("round %d: %d", i, a.status)
		}
	}
	owner := one.signIn("owner", datasetRead)
	script := one.addToken("owner", "script", datasetRead)
	script.url = two.url
	script.must(200, "GET", mePath, nil)
	owner.must(204, "DELETE", "/api/v1/auth/tokens/"+script.credentialID(), nil)
	script.refused(401, "invalid_token", "GET", mePath, nil)
}

// TestQueriesPerRequest: a signed-in request asks the database once. A forged token, an API token with a
// typo and a forged refresh cookie do not reach it.
func TestQueriesPerRequest(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.leaseTTL = time.Hour })
	c := ts.signIn("ada", datasetRead)
	script := ts.addToken("ada", "script", datasetRead)
	script.must(200, "GET", mePath, nil) // notes its use, at most once a minute
	forged := testRing(t, "foreign").keys[0].signRefresh([16]byte{1}, 1)
	secret, _ := newAPIToken()
	typo := secret[:20] + "0" + secret[21:]
	if typo == secret {
		typo = secret[:20] + "1" + secret[21:]
	}
	const rounds = 300
	before, start := ts.db.Stat().AcquireCount(), time.Now()
	for range rounds {
		if a := ts.client().refresh(forged); a.status != 401 {
			t.Fatalf("%s", a.body)
		}
		ts.client().as(typo).refused(401, "invalid_token", "GET", mePath, nil)
		ts.client().as(c.token+"x").refused(401, "invalid_token", "GET", mePath, nil)
	}
	background := func() int64 { return int64(20 * (1 + time.Since(start).Seconds())) } // queries that the service makes by itself
	if n := ts.db.Stat().AcquireCount() - before; n > background() {
		t.Errorf("%d queries for %d refused requests", n, 3*rounds)
	}
	before, start = ts.db.Stat().AcquireCount(), time.Now()
	for range rounds {
		c.must(200, "GET", mePath, nil)
		script.must(204, "GET", verifyPath+"?permission=dataset.read", nil)
	}
	if n := ts.db.Stat().AcquireCount() - before; n > 2*rounds+background() {
		t.Errorf("%d queries for %d signed-in requests", n, 2*rounds)
	}
}

// TestRehash: after the parameters rose, the first login hashes the password again, and later ones do not.
func TestRehash(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, realArgon)
	ts.addUser("ada", datasetRead)
	ts.client().login("ada", testPassword) // hashes the password at the cost of the service
	ts.stop()
	ts = startServer(t, nil, append(ts.env, "CAIRN_ARGON2=m=20480,t=2,p=1")...)
	var first string
	read := func() (hash string) {
		if err := ts.db.QueryRow(context.Background(), `SELECT password_hash FROM users WHERE username = 'ada'`).Scan(&hash); err != nil {
			t.Fatal(err)
		}
		return hash
	}
	waitFor(t, "the new hash", func() bool { // a login on a busy machine keeps the old one
		ts.client().login("ada", testPassword)
		first = read()
		return strings.Contains(first, "$m=20480,t=2,p=1$")
	})
	ts.client().login("ada", testPassword)
	checkHas(t, "hash", first, "$m=20480,t=2,p=1$")
	check(t, "hash after another login", read(), first)
	for _, weak := range []string{"m=1024,t=2,p=1", "m=19456,t=1,p=1", "m=19456", "m=19456,t=2,p=0", "m=19456,t=2,p=1 "} {
		if _, err := loadConfig([]string{"CAIRN_ARGON2=" + weak}); err == nil {
			t.Errorf("%q was taken", weak)
		}
	}
}

// TestKeysCommand rotates the keys of a running service. Tokens of the old key stay valid until it is pruned. It is
// pruned once its last token has expired and no seal of the audit log needs it.
func TestKeysCommand(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	ts.stop()
	db, err := pgxpool.New(t.Context(), lookup(ts.env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	p := startProcess(t, ts.env)
	c := client{t: t, url: p.url}
	old, cookie := c.login("ada", testPassword)
	keys := func(args ...string) string {
		t.Helper()
		var out lockedBuffer
		if err := run(context.Background(), append([]string{"keys"}, args...), ts.env, nil, &out, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	listed := strings.Fields(keys("list"))
	first, fingerprint := listed[0], listed[1]
	waitFor(t, "a seal by the first key", func() (sealed bool) {
		err := db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM audit_seals WHERE kid = $1)`, first).Scan(&sealed)
		return err == nil && sealed
	})
	second := strings.TrimSuffix(strings.Fields(keys("add"))[2], ":")
	list := keys("list")
	check(t, "keys after add", strings.Count(list, "\n"), 2)
	check(t, "signer after add", strings.HasPrefix(list, first), true)
	keys("promote", second)
	if list := keys("list"); !strings.HasPrefix(list, second) {
		t.Errorf("after promote:\n%s", list)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	kid := func(token string) string {
		header, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
		if err != nil {
			t.Fatal(err)
		}
		return string(header)
	}
	waitFor(t, "the new key to sign", func() bool {
		fresh, _ := c.login("ada", testPassword)
		return strings.Contains(kid(fresh.token), second)
	})
	old.must(200, "GET", mePath, nil)
	if a := old.refresh(cookie); a.status != 200 {
		t.Errorf("a refresh token of the old key: %s", a.body)
	}
	prune := func(want, when string) {
		t.Helper()
		if out := keys("prune"); !strings.Contains(out, want) {
			t.Errorf("prune %s: %s, want %s", when, out, want)
		}
	}
	change := func(statement string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	prune("every key is needed", "while tokens of the first key live")
	change(`UPDATE instances SET seen_at = now() - interval '31 days' WHERE signer = $1`, fingerprint)
	prune("every key is needed", "while seals of the first key exist")
	change(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	change(`DELETE FROM audit_seals WHERE kid = $1`, first)
	prune("removed key "+first, "when nothing needs the first key")
	if list := keys("list"); strings.Count(list, "\n") != 1 {
		t.Errorf("after prune:\n%s", list)
	}
	info, err := os.Stat(filepath.Join(lookup(ts.env, "CAIRN_STATE_DIR"), "keys"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// TestForeignInstance: an instance whose signing key is unknown to the others does not start.
func TestForeignInstance(t *testing.T) {
	t.Parallel()
	one := startServer(t, nil)
	env := append(one.env, "CAIRN_STATE_DIR="+t.TempDir())
	err := run(context.Background(), []string{"serve"}, env, nil, &lockedBuffer{}, &lockedBuffer{})
	checkError(t, "with other keys", err, "not known to another instance")
	err = run(context.Background(), []string{"serve"}, one.env, nil, &lockedBuffer{}, &lockedBuffer{})
	checkError(t, "on the same state directory", err, "another cairn uses the state directory")
}

// TestVerify: GET /auth/verify answers a proxy whether a request may pass, and for whom.
func TestVerify(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	a := c.must(204, "GET", verifyPath, nil)
	id := c.must(200, "GET", mePath, nil).text("id")
	check(t, "X-Cairn-User", a.header.Get("X-Cairn-User"), "ada")
	check(t, "X-Cairn-User-Id", a.header.Get("X-Cairn-User-Id"), id)
	check(t, "X-Cairn-Permissions", a.header.Get("X-Cairn-Permissions"), "dataset.read,inbox.read")
	c.must(204, "GET", verifyPath+"?permission=dataset.read", nil)
	c.refused(403, "permission_missing", "GET", verifyPath+"?permission=user.manage", nil)
	c.refused(403, "permission_missing", "GET", verifyPath+"?permission=", nil)
	c.refused(400, "unknown_parameter", "GET", verifyPath+"?role=only-ada", nil)
	a = ts.client().refused(401, "not_signed_in", "GET", verifyPath, nil)
	check(t, "challenges", strings.Join(a.header.Values("WWW-Authenticate"), ", "), "Bearer")
}

// TestTokenCommands: the command line creates, lists and deletes API tokens and service accounts.
func TestTokenCommands(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	cairn := func(args ...string) (string, error) {
		var out lockedBuffer
		err := run(context.Background(), args, ts.env, nil, &out, &out)
		return strings.TrimSpace(out.String()), err
	}
	secret, err := cairn("token", "create", "robot", "nightly", "--permissions", "dataset.read", "--days", "10")
	if err != nil {
		t.Fatal(err)
	}
	robot := ts.client().as(secret)
	robot.must(200, "GET", "/api/v1/datasets", nil)
	ts.client().refused(401, "invalid_credentials", "POST", "/api/v1/auth/login", map[string]string{"username": "robot", "password": ""})
	list, err := cairn("token", "list", "robot")
	check(t, "error of token list", err, nil)
	checkHas(t, "token list", list, "nightly")
	checkLacks(t, "token list", list, secret)
	if _, err := cairn("token", "revoke", "robot", "nightly"); err != nil {
		t.Error(err)
	}
	robot.refused(401, "invalid_token", "GET", mePath, nil)
	c := ts.signIn("ada", datasetRead)
	script := ts.addToken("ada", "script", datasetRead)
	script.must(200, "GET", mePath, nil)
	if _, err := cairn("user", "revoke", "ada"); err != nil {
		t.Error(err)
	}
	c.refused(401, "invalid_token", "GET", mePath, nil)
	script.refused(401, "invalid_token", "GET", mePath, nil)
	for _, bad := range [][]string{
		{"token", "create", "robot", "x", "--permissions", "fly"},
		{"token", "create", "robot", "x"},
		{"token", "create", "robot", "x", "--permissions", "dataset.read", "--days", "1000"},
		{"token", "create", "new robot", "x", "--permissions", "dataset.read"},
		{"token", "create", "robot2", "x", "--permissions", "dataset.read", "--role", "captain"},
		{"token", "revoke", "robot", "nightly"},
		{"token", "list", "nobody"},
		{"user", "revoke", "nobody"},
	} {
		if out, err := cairn(bad...); err == nil {
			t.Errorf("%v: %s", bad, out)
		}
	}
}

// TestNoSecrets: no password, token or cookie in the life of an account appears in the log or the audit log.
func TestNoSecrets(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	file, err := os.ReadFile(ts.cfg.firstAdminFile())
	if err != nil {
		t.Fatal(err)
	}
	reset, first, second := strings.TrimSpace(string(file)), "the first pass phrase", "the second pass phrase"
	c := ts.client()
	c.must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": reset, "new_password": first})
	const unknown = "hunter2-typed-as-name"
	c.do("POST", "/api/v1/auth/login", map[string]string{"username": unknown, "password": first})
	c.do("POST", "/api/v1/auth/login", map[string]string{"username": "admin", "password": "a wrong pass phrase"})
	admin, cookie := c.login("admin", first)
	next := refreshCookieOf(admin.refresh(cookie))
	token := admin.must(201, "POST", tokensPath, map[string]any{"name": "script", "permissions": []string{datasetRead}, "current_password": first}).text("token")
	c.as(token).must(200, "GET", mePath, nil)
	c.as(token[:len(token)-1]+"x").do("GET", mePath, nil)
	admin.must(204, "PUT", "/api/v1/auth/password", map[string]string{"current_password": first, "new_password": second})
	admin.do("GET", mePath+"?"+token, nil)
	admin.do("GET", "/"+token, nil)
	admin.refresh(cookie)
	ts.exec(`UPDATE sessions SET rotated_at = now() - interval '1 minute', burst_began_at = now() - interval '1 minute'`)
	admin.refresh(cookie)
	keys, err := os.ReadFile(ts.cfg.keysPath())
	if err != nil {
		t.Fatal(err)
	}
	var audited string
	err = ts.db.QueryRow(context.Background(), `SELECT string_agg(a::text, E'\n') FROM audit_log a`).Scan(&audited)
	if err != nil {
		t.Fatal(err)
	}
	for what, secret := range map[string]string{
		"reset token": reset, "first password": first, "second password": second, "unknown name": unknown, "wrong password": "a wrong pass phrase",
		"access token": admin.token, "cookie": cookie, "next cookie": next, "API token": token, "key": strings.Fields(string(keys))[1],
	} {
		if strings.Contains(ts.log.String(), secret) {
			t.Errorf("the log holds the %s", what)
		}
		if strings.Contains(audited, secret) {
			t.Errorf("the audit log holds the %s", what)
		}
	}
	for _, action := range []string{"password.reset", "session.login", "session.login_refused", "token.create", "password.change", "session.refresh_token_reused"} {
		if !strings.Contains(audited, action) {
			t.Errorf("the audit log holds no %s:\n%s", action, audited)
		}
	}
	if _, err := ts.db.Exec(context.Background(), `DELETE FROM audit_log`); err == nil {
		t.Error("audit rows can be deleted")
	}
}

// TestKeyFileChanges: a malformed key file is not loaded. A new secret under an old id is a change
// of keys. A key file behind a link stays behind it.
func TestKeyFileChanges(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	path := ts.cfg.keysPath()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(content string) error {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return ts.operations.reloadKeys(t.Context())
	}
	if err := reload("k1 nonsense\n"); err == nil {
		t.Error("a malformed key file was loaded")
	}
	id, _, _ := strings.Cut(string(before), " ")
	_, secret, _ := strings.Cut(newKeyLine(), " ")
	if err := reload(id + " " + secret); err != nil {
		t.Error(err)
	}
	check(t, "changes of keys in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`), 1)

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if said, err := cairn(append(ts.env, "CAIRN_KEYS_FILE="+link), "keys", "add"); err != nil {
		t.Fatal(said, err)
	}
	after, _ := os.ReadFile(path)
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 || strings.Count(string(after), "\n") != 2 {
		t.Errorf("%v, %v: %s", info.Mode(), err, after)
	}
}

// TestKeysAtOnce: commands that edit the key file at the same time lose no key.
func TestKeysAtOnce(t *testing.T) {
	t.Parallel()
	env := []string{"CAIRN_STATE_DIR=" + t.TempDir()}
	cfg := must(loadConfig(env))
	first := must(loadKeys(cfg.keysPath(), "", true)).keys[0].id
	for round := range 10 {
		var running sync.WaitGroup
		ran := func(args ...string) {
			if said, err := cairn(env, args...); err != nil {
				t.Errorf("%v: %v %s", args, err, said)
			}
		}
		for range 8 {
			running.Go(func() { ran("keys", "add") })
		}
		running.Go(func() { ran("keys", "promote", first) })
		running.Wait()
		ring, err := loadKeys(cfg.keysPath(), "", false)
		if err != nil {
			t.Fatal(err)
		}
		check(t, fmt.Sprint("keys after round ", round), len(ring.keys), 1+8*(round+1))
		check(t, fmt.Sprint("signer after round ", round), ring.keys[0].id, first)
	}

	dir := must(os.Open(cfg.stateDir))
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := run(ctx, []string{"keys", "add"}, env, nil, io.Discard, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("Ctrl-C does not end a wait for another command: %v", err)
	}
}

// TestPruneKeepsSigner: "keys prune" does not remove a key that another command has made the signer meanwhile.
func TestPruneKeepsSigner(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	path := ts.cfg.keysPath()
	if said, err := ts.command("keys", "add"); err != nil {
		t.Fatal(said, err)
	}
	before := must(loadKeys(path, "", false))
	spent := before.keys[1]
	ts.exec(`
		INSERT INTO instances
		VALUES ('former', $1, '{}', now() - interval '1 year', now() - interval '1 year', now() - interval '1 year')`,
		spent.fingerprint)

	if said, err := ts.command("keys", "promote", spent.id); err != nil {
		t.Fatal(said, err)
	}
	var out lockedBuffer
	o := invocation{cfg: ts.cfg, db: ts.db, stdout: &out}
	if err := pruneKeys(t.Context(), o, before); err != nil {
		t.Fatal(err)
	}

	after := must(loadKeys(path, "", false))
	check(t, "keys after promote and prune", len(after.keys), 2)
	check(t, "signer after promote and prune", after.keys[0].id, spent.id)
	check(t, "prune says", out.String(), "every key is needed\n")
	check(t, "rows that tell of removed keys", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'keys.prune'`), 0)
}

// TestReadInput: Ctrl-C ends a program that waits for input.
func TestReadInput(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	typed := make(chan string)
	defer close(typed)
	interrupt()
	if text, err := readInput(ctx, func() (string, error) { return <-typed, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%q, %v", text, err)
	}
}
