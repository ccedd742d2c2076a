package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const permissionsPath = "/api/v1/permissions"

// TestRoleNameGrantsNothing: somebody who may only manage users gives themself a role that a program behind the proxy
// goes by. The proxy asks by permission, and only its holders pass.
func TestRoleNameGrantsNothing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "wiki-admin", "permissions": []string{}})
	mallory := ts.signIn("mallory", userManage)
	self := "/api/v1/users/" + mallory.must(200, "GET", mePath, nil).text("id")
	mallory.must(200, "PUT", self+"/roles", map[string]any{"roles": []string{"only-mallory", "wiki-admin"}})
	mallory.refused(400, "unknown_parameter", "GET", verifyPath+"?role=wiki-admin", nil)
	check(t, "X-Cairn-Roles", mallory.must(204, "GET", verifyPath, nil).header.Get("X-Cairn-Roles"), "")
	root.must(201, "POST", permissionsPath, map[string]any{"name": "wiki.edit", "meaning": "Edit the wiki."})
	role := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "editor", "permissions": []string{"wiki.edit"}})
	a := mallory.refused(403, "grant_exceeds_own", "PUT", self+"/roles", map[string]any{"roles": []string{"only-mallory", "editor"}})
	check(t, "missing permission", a.text("permission"), "wiki.edit")
	mallory.refused(403, "permission_missing", "GET", verifyPath+"?permission=wiki.edit", nil)
	root.must(204, "GET", verifyPath+"?permission=wiki.edit", nil)
	root.must(200, "PUT", self+"/roles", map[string]any{"roles": []string{"only-mallory", "editor"}})
	mallory, _ = mallory.login("mallory", testPassword)
	a = mallory.must(204, "GET", verifyPath+"?permission=wiki.edit", nil)
	check(t, "X-Cairn-Permissions", a.header.Get("X-Cairn-Permissions"), "user.manage,inbox.read,wiki.edit")
	check(t, "X-Cairn-User-Id", a.header.Get("X-Cairn-User-Id"), strings.TrimPrefix(self, "/api/v1/users/"))
	root.must(200, "PATCH", fmt.Sprint("/api/v1/roles/", role.number("id")), map[string]any{"permissions": []string{}})
	mallory.refused(403, "permission_missing", "GET", verifyPath+"?permission=wiki.edit", nil)
}

// TestTokenDoesOnlyWhatItNames: an administrator's API token for the metrics passes no check for anything else, and
// does not touch the inbox.
func TestTokenDoesOnlyWhatItNames(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	script := ts.addToken("root", "monitor", metricsRead)
	id := root.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"}).number("id")
	script.refused(403, "permission_required", "GET", verifyPath, nil)
	script.refused(403, "token_scope", "GET", verifyPath+"?permission=user.manage", nil)
	a := script.must(204, "GET", verifyPath+"?permission=metrics.read", nil)
	check(t, "X-Cairn-Permissions", a.header.Get("X-Cairn-Permissions"), metricsRead)
	script.refused(403, "token_scope", "GET", "/api/v1/inbox", nil)
	script.refused(403, "token_scope", "GET", "/api/v1/inbox/unread-count", nil)
	script.refused(403, "token_scope", "POST", "/api/v1/inbox/read", map[string]any{"ids": []int{id}})
	script.refused(403, "token_scope", "POST", "/api/v1/inbox/read-all", nil)
	script.refused(403, "token_scope", "POST", fmt.Sprintf("/api/v1/inbox/%d/read", id), nil)
	check(t, "unread", root.must(200, "GET", "/api/v1/inbox/unread-count", nil).number("unread"), 1)
	reader := ts.addToken("root", "reader", "inbox.read")
	reader.must(200, "GET", "/api/v1/inbox", nil)
	ts.signIn("nobody").must(200, "GET", "/api/v1/inbox", nil) // everyone reads their own, without a role for it
}

// TestNoSideDoorToOneself: neither a session without the current password nor an API token changes its owner's
// address or password under /users. Others may, and so may the command line.
func TestNoSideDoorToOneself(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root, other := ts.signIn("root", "all"), ts.signIn("other", "all")
	self := "/api/v1/users/" + root.must(200, "GET", mePath, nil).text("id")
	script := ts.addToken("root", "script", builtInNames()...)
	for _, c := range []client{root, script} {
		c.refused(403, "use_own_route", "PATCH", self, map[string]any{"email": "thief@example.org"})
		c.refused(403, "use_own_route", "PATCH", self, map[string]any{"email": ""})
		c.refused(403, "use_own_route", "POST", self+"/password-reset", nil)
		c.must(200, "PATCH", self, map[string]any{"display_name": "Root"})
	}
	check(t, "addresses", ts.queryInt(`SELECT count(*) FROM users WHERE email IS NOT NULL`), 0)
	check(t, "password tokens", ts.queryInt(`SELECT count(*) FROM password_tokens WHERE user_id = $1`, strings.TrimPrefix(self, "/api/v1/users/")), 0)
	root.must(200, "PATCH", mePath, map[string]any{"email": "root@example.org", "current_password": testPassword})
	other.must(200, "PATCH", self, map[string]any{"email": "root@example.net"})
	other.must(201, "POST", self+"/password-reset", nil)
	_, err := ts.command("user", "reset-password", "root")
	check(t, "error of reset-password", err, nil)
}

// TestPromotionEndsSessions: somebody has reset a member's password and signed in. When the member gets more
// permissions, in any of three ways, that session ends, and so does a password token. A user who gains nothing stays
// signed in.
func TestPromotionEndsSessions(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	keeper := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "keeper", "permissions": []string{datasetManage}})
	keeperPath := fmt.Sprint("/api/v1/roles/", keeper.number("id"))
	ada := ts.signIn("ada", datasetRead)
	self := "/api/v1/users/" + ada.must(200, "GET", mePath, nil).text("id")
	again := func() {
		t.Helper()
		ada.refused(401, "invalid_token", "GET", mePath, nil)
		check(t, "password tokens", ts.queryInt(`SELECT count(*) FROM password_tokens WHERE user_id = $1`, strings.TrimPrefix(self, "/api/v1/users/")), 0)
		ada, _ = ts.client().login("ada", testPassword)
		root.must(201, "POST", self+"/password-reset", nil)
	}
	give := func(roles ...string) { root.must(200, "PUT", self+"/roles", map[string]any{"roles": roles}) }
	root.must(201, "POST", self+"/password-reset", nil)
	give("only-ada", "keeper")
	again()
	root.must(200, "PATCH", keeperPath, map[string]any{"permissions": []string{datasetManage, datasetAnalyze}})
	again()
	_, err := ts.command("user", "set-roles", "ada", "only-ada,keeper,admin")
	check(t, "error of set-roles", err, nil)
	again()
	root.must(200, "PATCH", keeperPath, map[string]any{"permissions": []string{auditRead}}) // an administrator has that
	ada.must(200, "GET", mePath, nil)
	give("only-ada", "keeper")
	root.must(200, "PATCH", keeperPath, map[string]any{"permissions": []string{auditRead, datasetRead}}) // as only-ada has
	root.must(200, "PATCH", keeperPath, map[string]any{"permissions": []string{auditRead}})
	ada.must(200, "GET", mePath, nil)
	root.must(201, "POST", self+"/password-reset", nil)
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "chief", "permissions": []string{auditRead, metricsRead}})
	root.must(204, "DELETE", keeperPath+"?reassign=chief", nil)
	again()
	give("only-ada")
	ada.must(200, "GET", mePath, nil)
	root.must(200, "GET", mePath, nil)
}

// TestManySessionsAndTokens: a user has at most 100 live sessions and 100 API tokens, so that all of them can be ended
// within the time limit. The oldest session ends at a login, and is audited.
func TestManySessionsAndTokens(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ada := ts.signIn("ada", datasetRead)
	id := ada.must(200, "GET", mePath, nil).text("id")
	ts.exec(`UPDATE sessions SET created_at = now() - interval '1 day'`)
	ts.exec(`
		INSERT INTO sessions (id, user_id, created_at, idle_expires_at, expires_at)
		SELECT gen_random_uuid(), $1, now() - n * interval '1 ms', CASE WHEN n > 10 THEN now() + interval '1 day' ELSE now() END, now() + interval '1 day'
		FROM generate_series(1, 109) n`, id)
	live := `SELECT count(*) FROM sessions WHERE ended_at IS NULL AND idle_expires_at > now()`
	check(t, "sessions", ts.queryInt(live), 100)
	again, _ := ts.client().login("ada", testPassword)
	ada.refused(401, "invalid_token", "GET", mePath, nil) // the oldest
	again.must(200, "GET", mePath, nil)
	check(t, "live sessions", ts.queryInt(live), 100)
	check(t, "sessions that have not ended", ts.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL`), 100)
	check(t, "sessions ended in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.end' AND target = 'user:ada'`), 11)
	ts.exec(`
		INSERT INTO api_tokens (user_id, name, token_hash, permissions, expires_at)
		SELECT $1, n::text, n::text::bytea, '{dataset.read}', now() + interval '1 day'
		FROM generate_series(1, 100) n`, id)
	body := map[string]any{"name": "more", "permissions": []string{datasetRead}, "current_password": testPassword}
	again.refused(409, "too_many_tokens", "POST", tokensPath, body)
	ts.exec(`UPDATE api_tokens SET expires_at = now() WHERE name = '7'`)
	check(t, "status of one more token, when one of the hundred has expired", again.do("POST", tokensPath, body).status, 201)
}

// TestLoginInFlightEnds: a login that has checked the password, but has not opened its session, when an administrator
// ends the user's sessions, opens none.
func TestLoginInFlightEnds(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ctx, id := context.Background(), ts.addUser("ada", datasetRead)
	found := must(findPasswordRecord(ctx, ts.db, "ada"))
	root.must(204, "DELETE", "/api/v1/users/"+id+"/sessions", nil)
	_, _, err := createSession(ctx, ts.db, serviceActor(), found, "", time.Hour, time.Hour)
	check(t, "error of the login", err, error(errWrongCredentials))
	// A login whose transaction is open is waited for, and its session ends too.
	tx := must(ts.db.Begin(ctx))
	defer tx.Rollback(ctx)
	must(tx.Exec(ctx, `UPDATE users SET last_login_at = now() WHERE id = $1`, id))
	must(tx.Exec(ctx, `INSERT INTO sessions (id, user_id, idle_expires_at, expires_at) VALUES ($1, $2, now() + interval '1 hour', now() + interval '1 hour')`, [16]byte{1}, id))
	ended := make(chan answer)
	go func() { ended <- root.do("DELETE", "/api/v1/users/"+id+"/sessions", nil) }()
	for waiting := 0; waiting == 0; {
		waiting = ts.queryInt(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		select {
		case a := <-ended:
			t.Fatalf("%d before the login was done", a.status)
		default:
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	check(t, "status", (<-ended).status, 204)
	check(t, "live sessions", ts.queryInt(`SELECT count(*) FROM sessions WHERE user_id = $1 AND ended_at IS NULL`, id), 0)
}

// TestRoleOfMany: a change of a role ends the sessions of those who gain a permission, and writes no row of a user. A role may
// have a hundred thousand holders, and until it has changed, other changes of users wait.
func TestRoleOfMany(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ada, bob := ts.signIn("ada", datasetRead), ts.signIn("bob", datasetRead, auditRead)
	role := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "crowd", "permissions": []string{datasetRead}})
	ts.exec(`INSERT INTO user_roles SELECT u.id, r.id FROM users u, roles r WHERE u.username IN ('ada', 'bob') AND r.name = 'crowd'`)
	ts.exec(`CREATE TABLE users_before AS SELECT id, version FROM users`)
	root.must(200, "PATCH", role.header.Get("Location"), map[string]any{"permissions": []string{datasetRead, auditRead}})
	ada.refused(401, "invalid_token", "GET", mePath, nil) // she gains a permission
	bob.must(200, "GET", mePath, nil)                     // bob held it already
	check(t, "rows of users that were written", ts.queryInt(`SELECT count(*) FROM users JOIN users_before b USING (id) WHERE users.version <> b.version`), 0)
}

// TestDeclaredPermissions: permissions are declared, changed and removed under the subset rule, with rows in the audit
// log. A removed permission comes back to nobody. Every instance knows of a change in the next request.
func TestDeclaredPermissions(t *testing.T) {
	t.Parallel()
	ts, two := startTwoServers(t)
	root, keeper := ts.signIn("root", "all"), ts.signIn("keeper", roleManage, datasetRead)
	for _, name := range []string{"wiki", "Wiki.edit", "wiki..edit", ".edit", "wiki.", "a,b.c", "é.edit", "wiki.edit\n", "",
		"user.x", "role.x", "admin.x", "dataset.x", "audit.x", "metrics.x", "inbox.x", "cairn.x", "w." + strings.Repeat("x", 62)} {
		root.refused(422, "invalid", "POST", permissionsPath, map[string]any{"name": name, "meaning": "Something."})
	}
	for _, meaning := range []string{"", "two\nlines", strings.Repeat("x", 201)} {
		root.refused(422, "invalid", "POST", permissionsPath, map[string]any{"name": "wiki.edit", "meaning": meaning})
	}
	// Grants that were added by hand give nothing when the permission is declared.
	ts.exec(`INSERT INTO role_permissions SELECT id, 'wiki.edit' FROM roles WHERE name = 'only-keeper'`)
	ts.exec(`INSERT INTO api_tokens (user_id, name, token_hash, permissions, expires_at) SELECT id, 'old', convert_to(username, 'UTF8'), '{role.manage,wiki.edit}', now() + interval '1 day' FROM users`)
	keeper.must(201, "POST", permissionsPath, map[string]any{"name": "wiki.edit", "meaning": "Edit the wiki."})
	keeper.refused(409, "name_taken", "POST", permissionsPath, map[string]any{"name": "wiki.edit", "meaning": "Something."})
	path := permissionsPath + "/wiki.edit"
	verify := verifyPath + "?permission=wiki.edit"
	keeper.refused(403, "permission_missing", "GET", verify, nil)
	keeper.refused(403, "grant_exceeds_own", "POST", "/api/v1/roles", map[string]any{"name": "editor", "permissions": []string{"wiki.edit"}})
	keeper.must(200, "PATCH", path, map[string]any{"meaning": "Edit pages."})
	keeper.refused(422, "invalid", "PATCH", path, map[string]any{})
	keeper.refused(400, "unknown_field", "PATCH", path, map[string]any{"name": "wiki.read", "meaning": "Something."})
	root.refused(409, "permission_built_in", "DELETE", permissionsPath+"/user.manage", nil)
	root.refused(409, "permission_built_in", "PATCH", permissionsPath+"/user.manage", map[string]any{"meaning": "Nothing."})
	for _, name := range []string{"wiki.read", "wiki", "%00", "a.%00"} {
		root.refused(404, "not_found", "DELETE", permissionsPath+"/"+name, nil)
	}
	// An administrator holds it in the next request, also at the other instance.
	at2 := root
	at2.url = two.url
	at2.must(204, "GET", verify, nil)
	checkHas(t, "the role admin", string(root.must(200, "GET", "/api/v1/roles/1", nil).body), "wiki.edit")
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "editor", "permissions": []string{"wiki.edit", datasetManage}})
	editor := ts.signIn("ada", "wiki.edit")
	script := ts.addToken("ada", "script", "wiki.edit", datasetRead)
	script.must(204, "GET", verify, nil)
	keeper.refused(403, "grant_exceeds_own", "PATCH", path, map[string]any{"meaning": "Nothing."})
	keeper.refused(403, "grant_exceeds_own", "DELETE", path+"?force", nil)
	root.refused(409, "permission_in_use", "DELETE", path, nil)
	root.refused(409, "permission_in_use", "DELETE", path+"?force=false", nil)

	// An expired API token is in no list, so it does not count.
	old := permissionsPath + "/wiki.old"
	keeper.must(201, "POST", permissionsPath, map[string]any{"name": "wiki.old", "meaning": "Read the old wiki."})
	ts.addToken("root", "expired", "wiki.old")
	keeper.refused(403, "grant_exceeds_own", "DELETE", old, nil)
	root.refused(409, "permission_in_use", "DELETE", old, nil)
	ts.exec(`UPDATE api_tokens SET expires_at = now() WHERE name = 'expired'`)
	keeper.must(204, "DELETE", old, nil)

	root.refused(422, "invalid", "DELETE", path+"?force=maybe", nil)
	root.must(204, "DELETE", path+"?force", nil)
	for _, c := range []client{at2, editor, script} {
		check(t, "status after the removal", c.do("GET", verify, nil).status, 403)
	}
	root.must(201, "POST", permissionsPath, map[string]any{"name": "wiki.edit", "meaning": "Edit the wiki."})
	root.must(204, "GET", verify, nil)
	editor.refused(403, "permission_missing", "GET", verify, nil)
	script.refused(403, "permission_missing", "GET", verify, nil)
	said, err := ts.command("role", "create", "writer", "--permissions", "wiki.edit")
	check(t, "error of role create", err, nil)
	checkHas(t, "created role", said, "wiki.edit")
	_, err = ts.command("token", "create", "robot", "wiki", "--permissions", "wiki.edit")
	check(t, "error of token create", err, nil)
	for action, want := range map[string]int{"permission.create": 2, "permission.update": 1, "permission.delete": 1} {
		check(t, "rows of "+action, ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = $1 AND target = 'permission:wiki.edit'`, action), want)
	}
	check(t, "removals that say from whom", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'permission.delete' AND before @> '{"roles": ["editor", "only-ada"], "api_tokens": 1}'`), 1)
	ts.exec(`INSERT INTO declared_permissions SELECT 'p.' || n, 'One of many.' FROM generate_series(2, 100) n`)
	root.refused(409, "too_many_permissions", "POST", permissionsPath, map[string]any{"name": "one.more", "meaning": "Something."})
}

// TestInboxIsNoGrant: a token without inbox.read may manage users whose roles name it, because every user holds it.
func TestInboxIsNoGrant(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.signIn("root", "all")
	other := "/api/v1/users/" + ts.signIn("other", "all").must(200, "GET", mePath, nil).text("id")
	isOther := func(permission string) bool { return permission == inboxRead }
	script := ts.addToken("root", "script", slices.DeleteFunc(builtInNames(), isOther)...)
	script.must(200, "PATCH", other, map[string]any{"status": "disabled"})
}

// TestAdministratorsByName: the role admin is known by its name alone. In a database where it has another id, as after a
// copy by hand, its last holder stays protected.
func TestAdministratorsByName(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.exec(`INSERT INTO roles (name) VALUES ('other')`)
	ts.exec(`UPDATE roles SET name = 'former' WHERE name = 'admin'`)
	ts.exec(`UPDATE roles SET name = 'admin' WHERE name = 'other'`)
	ts.exec(`UPDATE user_roles SET role_id = (SELECT id FROM roles WHERE name = 'admin')`)
	path := "/api/v1/users/" + userID(ts, "root")
	root.refused(409, "last_administrator", "PATCH", path, map[string]string{"status": "disabled"})
	root.refused(409, "last_administrator", "DELETE", path+"/roles/admin", nil)
}

// TestNobodyIsPermitted: without a principal no route that needs one may be called.
func TestNobodyIsPermitted(t *testing.T) {
	t.Parallel()
	for _, who := range []requirement{signedIn, ownSession, userManage} {
		check(t, string(who), route{who: who}.permit(nil), error(errNotSignedIn))
	}
}
