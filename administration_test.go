package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// must returns v. An error would be a mistake in the test itself.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestAdministratorsAtOnce: two administrators delete, disable or demote each other at the same time. Exactly one
// succeeds, each of 200 times.
func TestAdministratorsAtOnce(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	for round := range soakOr(200, 45) {
		ts.exec(`DELETE FROM user_roles WHERE role_id = 1`)
		var ids [2]string
		var clients [2]client
		for i := range ids {
			name := fmt.Sprintf("admin-%d-%d", round, i)
			ids[i] = ts.addUser(name, "all")
			session := [16]byte{byte(round), byte(i), 1}
			ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at) VALUES ($1, $2, now() + interval '1 hour', now() + interval '1 hour')`, session, ids[i])
			clients[i] = ts.client().as(ts.keys.Load().signAccessToken(ids[i], uuidText(session), time.Now(), time.Now().Add(time.Hour)))
		}
		var statuses [2]int
		var wg sync.WaitGroup
		for i, c := range clients {
			path := "/api/v1/users/" + ids[1-i]
			wg.Go(func() {
				switch (round + i) % 3 {
				case 0:
					statuses[i] = c.do("PUT", path+"/roles", map[string]any{"roles": []string{}}).status
				case 1:
					statuses[i] = c.do("PATCH", path, map[string]string{"status": statusDisabled}).status
				case 2:
					statuses[i] = c.do("DELETE", path, nil).status
				}
			})
		}
		wg.Wait()
		won := 0
		for _, status := range statuses {
			switch status {
			case 200, 204:
				won++
			case 401, 403, 404: // signed out, demoted or gone
			default:
				t.Errorf("round %d: statuses %v", round, statuses)
			}
		}
		check(t, fmt.Sprintf("successes in round %d: %v", round, statuses), won, 1)
		check(t, "an administrator is left", must(administratorExists(context.Background(), ts.db)), true)
	}
}

// TestAdministrationRefuses: bad input has its status and code, and changes nothing.
func TestAdministrationRefuses(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	rootID := root.must(200, "GET", mePath, nil).text("id")
	const states = `
		SELECT (SELECT count(*) FROM users) * 1000000
			+ (SELECT count(*) FROM roles) * 1000
			+ (SELECT count(*) FROM user_roles)`
	for _, bad := range []struct {
		status       int
		code         string
		method, path string
		body         string
	}{
		{422, "invalid", "POST", "/users", `{"username":"a b"}`},
		{422, "invalid", "POST", "/users", `{"username":"é-mile"}`},
		{422, "invalid", "POST", "/users", `{"username":"ada","email":"none"}`},
		{422, "invalid", "POST", "/users", `{"username":"ada","roles":["none"]}`},
		{409, "username_taken", "POST", "/users", `{"username":"ROOT"}`},
		{400, "unknown_field", "POST", "/users", `{"username":"ada","password":"chosen by me"}`},
		{422, "invalid", "PUT", "/users/" + rootID + "/roles", `{"roles":["none"]}`},
		{422, "invalid", "PUT", "/users/" + rootID + "/roles", `{}`},
		{409, "last_administrator", "PUT", "/users/" + rootID + "/roles", `{"roles":["member"]}`},
		{409, "last_administrator", "PATCH", "/users/" + rootID, `{"status":"disabled"}`},
		{409, "last_administrator", "PATCH", "/users/" + rootID, `{"status":"pending"}`},
		{409, "last_administrator", "DELETE", "/users/" + rootID, ``},
		{422, "invalid", "PATCH", "/users/" + rootID, `{"status":"gone"}`},
		{404, "not_found", "PATCH", "/users/" + uuidText([16]byte{1}), `{"status":"active"}`},
		{422, "invalid", "POST", "/roles", `{"name":"x y"}`},
		{422, "invalid", "POST", "/roles", `{"name":null,"permissions":[]}`},
		{422, "invalid", "POST", "/roles", `{"permissions":[]}`},
		{422, "invalid", "POST", "/roles", `{"name":"keeper","permissions":["all"]}`},
		{409, "name_taken", "POST", "/roles", `{"name":"Member","permissions":[]}`},
		{409, "role_built_in", "PATCH", "/roles/1", `{"permissions":[]}`},
		{409, "role_built_in", "PATCH", "/roles/2", `{"name":"people"}`},
		{409, "role_built_in", "DELETE", "/roles/2", ``},
		{409, "role_built_in", "DELETE", "/roles/1?reassign=member", ``},
		{422, "invalid", "GET", "/users?role=none", ``},
		{400, "unknown_parameter", "GET", "/users?sort=password_hash", ``},
		{422, "invalid", "GET", "/users?q=ab", ``},
		{422, "invalid", "GET", "/audit?since=yesterday", ``},
		{422, "invalid", "GET", "/audit?until=", ``},
		{422, "invalid", "GET", "/users?q=" + strings.Repeat("x", 255), ``},
		{422, "invalid", "POST", "/roles", `{"name":"keeper"}`},
	} {
		var body any
		if bad.body != "" {
			body = bad.body
		}
		state := ts.queryInt(states)
		root.refused(bad.status, bad.code, bad.method, "/api/v1"+bad.path, body)
		check(t, "state after "+bad.method+" "+bad.path+" "+bad.body, ts.queryInt(states), state)
	}
}

// TestPermissions: the API lists every permission.
func TestPermissions(t *testing.T) {
	t.Parallel()
	root := startServer(t, nil).signIn("root", "all")
	var listed []string
	for _, item := range root.must(200, "GET", "/api/v1/permissions", nil).items() {
		listed = append(listed, item["name"].(string))
	}
	check(t, "permissions", strings.Join(listed, " "), strings.Join(builtInNames(), " "))
}

// administration is a service with an administrator, a role Keeper and its holder ada.
type administration struct {
	*testServer
	root, ada      client
	rolePath, path string // of the role, and of ada
}

// startAdministration starts a service. Its administrator creates a role and a user, who sets the password and signs in.
func startAdministration(t *testing.T) *administration {
	t.Helper()
	ts := startServer(t, nil)
	x := &administration{testServer: ts, root: ts.signIn("root", "all")}
	keeper := x.root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "Keeper", "permissions": []string{datasetManage, datasetRead}})
	created := x.root.must(201, "POST", "/api/v1/users", map[string]any{"username": "Ada", "email": "ada@example.org", "roles": []string{"keeper"}})
	x.path, x.rolePath = created.header.Get("Location"), fmt.Sprint("/api/v1/roles/", keeper.number("id"))
	left := time.Until(must(time.Parse(time.RFC3339, created.text("expires_at"))))
	check(t, "time of the first password's token", left.Round(2*time.Hour), 72*time.Hour)
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": created.text("password_token"), "new_password": testPassword})
	x.ada, _ = ts.client().login("ada@example.org", testPassword)
	return x
}

// TestIfMatch: a request with the ETag of an older state gets 412 and changes nothing.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	ts, root, path := x.testServer, x.root, x.path
	seen := root.must(200, "GET", path, nil)
	tag := seen.header.Get("ETag")
	ts.client().login("ada", testPassword) // a login leaves the ETag as it is
	changed := root.do("PATCH", path, map[string]string{"display_name": "Ada L."}, "If-Match: "+tag)
	check(t, "status of the change", changed.status, 200)
	check(t, "ETag of the change", changed.header.Get("ETag"), root.must(200, "GET", path, nil).header.Get("ETag"))
	for _, request := range [][2]string{{"PATCH", ""}, {"PUT", "/roles"}, {"DELETE", ""}} {
		body := map[string]map[string]any{"PATCH": {"display_name": "lost"}, "PUT": {"roles": []string{}}}[request[0]]
		root.refused(412, "stale", request[0], path+request[1], body, "If-Match: "+tag)
	}
	check(t, "display name", root.must(200, "GET", path, nil).text("display_name"), "Ada L.")
	root.must(200, "PATCH", path, map[string]string{"email": ""})
	check(t, "e-mail address", root.must(200, "GET", path, nil).json["email"], nil)
}

// TestPasswordTokenIsVoid: a password token is void once another is made, and once roles or status change.
func TestPasswordTokenIsVoid(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	ts, root, ada, path := x.testServer, x.root, x.ada, x.path
	reset := func() string {
		return root.must(201, "POST", path+"/password-reset", nil).text("password_token")
	}
	void := func(token string) {
		t.Helper()
		ts.client().refused(401, "password_token_invalid", "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword})
	}
	older := reset()
	token := reset()
	void(older)
	root.must(200, "PUT", path+"/roles", map[string]any{"roles": []string{"keeper", "member"}})
	void(token)
	token = reset()
	root.must(200, "PATCH", x.rolePath, map[string]any{"permissions": []string{datasetRead}})
	void(token)
	ada.refused(403, "permission_missing", "POST", "/api/v1/datasets", map[string]string{"name": "n", "path": "p"})
	token = reset()
	root.must(200, "PATCH", path, map[string]string{"status": "disabled"})
	void(token)
	ada.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil)
	root.must(200, "PATCH", path, map[string]string{"status": "active"})
	ada.refused(401, "invalid_token", "GET", "/api/v1/auth/me", nil) // enabling the user revives no session
}

// TestSameAccessVoidsNothing: roles and permissions that are set again as they are void no password token, end no
// session and are not audited as a change of the user's roles.
func TestSameAccessVoidsNothing(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	token := x.root.must(201, "POST", x.path+"/password-reset", nil).text("password_token")
	x.root.must(200, "PUT", x.path+"/roles", map[string]any{"roles": []string{"keeper", "keeper"}})
	x.root.must(200, "PATCH", x.rolePath, map[string]any{"name": "keeper", "permissions": []string{datasetRead, datasetManage, datasetRead}})
	x.ada.must(200, "GET", mePath, nil)
	check(t, "audited changes of roles", x.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'user.roles'`), 0)
	x.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword})
}

// TestRolesLockTheUserFirst: a change of a user's roles waits for the user's row before it locks the user's sessions, as
// a login does. So the two cannot wait for each other.
func TestRolesLockTheUserFirst(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	x.signIn("bob", datasetRead)
	release := x.holdLock(`SELECT FROM users WHERE username = 'bob' FOR UPDATE`)

	var changing sync.WaitGroup
	changing.Go(func() {
		x.root.must(200, "POST", "/api/v1/users/"+userID(x.testServer, "bob")+"/roles", map[string]string{"role": "admin"})
	})
	waitFor(t, "the change to wait", func() bool { return waitingQueries(x.testServer) == 1 })

	x.exec(`SELECT FROM sessions WHERE user_id = (SELECT id FROM users WHERE username = 'bob') FOR UPDATE NOWAIT`)
	release()
	changing.Wait()
}

// TestRoleInUse: a role in use is deleted only if another takes its place. Messages for it are not shown to the holders
// of the other role.
func TestRoleInUse(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	root, path, role := x.root, x.path, x.rolePath
	root.must(200, "PUT", path+"/roles", map[string]any{"roles": []string{"keeper", "member"}})
	root.refused(409, "role_in_use", "DELETE", role, nil)
	secret := root.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "t", "body": "b", "roles": []string{"keeper"}, "include_new_users": true})
	root.must(204, "DELETE", role+"?reassign=member", nil)
	check(t, "roles", fmt.Sprint(root.must(200, "GET", path, nil).json["roles"]), "[member]")
	message := root.must(200, "GET", fmt.Sprintf("/api/v1/system-messages/%d", secret.number("id")), nil)
	check(t, "recipients of the message for keepers", message.number("recipients"), 0)
}

// TestNamesAreNotReused: nobody gets the name of a deleted user, or a former name of a user.
func TestNamesAreNotReused(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	ts, root, path := x.testServer, x.root, x.path
	root.must(200, "PATCH", path, map[string]string{"username": "countess"})
	root.must(204, "DELETE", path, nil)
	for _, name := range []string{"ada", "Countess"} {
		root.refused(409, "username_taken", "POST", "/api/v1/users", map[string]string{"username": name})
		ts.client().refused(409, "username_taken", "POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword})
	}
}

// TestAdministrationIsAudited: every change of users and roles is in the audit log, and so is a refusal.
func TestAdministrationIsAudited(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	root := x.root
	root.must(200, "PATCH", x.path, map[string]string{"display_name": "Ada L."})
	root.must(201, "POST", x.path+"/password-reset", nil)
	root.must(200, "PUT", x.path+"/roles", map[string]any{"roles": []string{"member"}})
	root.must(200, "PATCH", x.rolePath, map[string]any{"permissions": []string{datasetRead}})
	x.ada.refused(403, "permission_missing", "POST", "/api/v1/datasets", map[string]string{"name": "n", "path": "p"})
	root.must(204, "DELETE", x.rolePath, nil)
	root.must(200, "PATCH", x.path, map[string]string{"status": statusDisabled}) // which ends the sessions
	root.must(200, "PATCH", x.path, map[string]string{"username": "countess"})
	root.must(204, "DELETE", x.path, nil)
	for _, action := range []string{"role.create", "user.create", "password.reset", "user.update", "user.password_reset", "user.roles", "role.update", "role.delete", "user.delete", "request.refused"} {
		items := root.must(200, "GET", "/api/v1/audit?action="+action, nil).items()
		check(t, "the audit log has "+action, len(items) > 0, true)
	}
	found := onlyItem(t, "rows about countess", root.must(200, "GET", "/api/v1/audit?actor=root&target=user:countess", nil).items())
	check(t, "action", found["action"], "user.delete")
	check(t, "name before", found["before"].(map[string]any)["username"], "countess")
	old := root.must(200, "GET", "/api/v1/audit?until=2020-01-01T00:00:00Z", nil).items()
	check(t, "rows until 2020", len(old), 0)
}

// TestApproval: a registered user waits until somebody with user.manage approves the account.
func TestApproval(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REGISTRATION=approval")
	manager := ts.signIn("manager", userManage, datasetRead)
	id := ts.client().must(201, "POST", "/api/v1/auth/register", map[string]string{"username": "ada", "password": testPassword}).text("id")
	credentials := map[string]string{"username": "ada", "password": testPassword}
	ts.client().refused(403, "account_pending", "POST", "/api/v1/auth/login", credentials)
	pending := onlyItem(t, "pending users", manager.must(200, "GET", "/api/v1/users?status=pending", nil).items())
	check(t, "pending user", pending["id"], any(id))
	manager.must(200, "PATCH", "/api/v1/users/"+id, map[string]string{"status": "active"})
	ts.client().must(200, "POST", "/api/v1/auth/login", credentials)
}

// TestListUsers: the list has every user that a filter selects once, by name, page by page.
func TestListUsers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.exec(`INSERT INTO users (username, email, display_name, status)
		SELECT 'u' || i, 'mail' || i || '@example.org', 'Per%son_' || i, 'active'
		FROM generate_series(1, 40) i`)
	ts.exec(`INSERT INTO user_roles SELECT id, 2 FROM users WHERE username IN ('u1', 'u22', 'u33')`)

	for query, want := range map[string]int{
		"":                     42,
		"status=active":        42,
		"status=disabled":      0,
		"username=U22":         1,
		"q=U22":                1,
		"q=mail3":              11,
		"q=PER%25SON_1":        11,
		"q=r%25s":              40,
		"q=%25%25%25":          0,
		"q=per_son":            0,
		"role=member":          3,
		"role=admin":           2,
		"role=member&q=u22":    1,
		"role=member&q=mail":   3,
		"status=active&q=mail": 40,
	} {
		t.Run(query, func(t *testing.T) {
			var names []string
			for cursor := ""; ; {
				a := root.must(200, "GET", "/api/v1/users?limit=7&"+query+cursor, nil)
				for _, item := range a.items() {
					names = append(names, item["username"].(string))
				}
				if a.json["next_cursor"] == nil {
					break
				}
				cursor = "&cursor=" + a.text("next_cursor")
			}

			check(t, "users", len(names), want)
			check(t, fmt.Sprint("sorted: ", names), slices.IsSorted(names), true)
			check(t, "different users", len(slices.Compact(names)), want)
		})
	}

	root.refused(400, "unknown_parameter", "GET", "/api/v1/users?sort=-created_at", nil)
	root.refused(422, "invalid", "GET", "/api/v1/users?role=nobody", nil)
	indexes := `SELECT count(*) FROM pg_indexes WHERE indexname IN ('users_created_at_id_idx', 'users_last_login_at_id_idx')`
	check(t, "indexes of orders that do not exist", ts.queryInt(indexes), 0)
}

// auditHarms returns statements that tamper with ten rows and their seals, and what is found then: by "cairn audit
// verify", and by an instance that remembers the newest seal.
func auditHarms() map[string]struct{ harm, verified, sealed string } {
	const changed = ": the row or the seal was changed ["
	return map[string]struct{ harm, verified, sealed string }{
		"nothing":                  {`SELECT`, "", ""},
		"a row changed":            {`UPDATE audit_log SET actor = 'nobody' WHERE id = 5`, "seals 5 to 5 (rows 5 to 5)" + changed, ""},
		"a row's detail changed":   {`UPDATE audit_log SET after = '{"roles":[]}' WHERE id = 6`, "seals 6 to 6 (rows 6 to 6)" + changed, ""},
		"a row's time changed":     {`UPDATE audit_log SET at = at + interval '1 microsecond' WHERE id = 7`, "seals 7 to 7 (rows 7 to 7)" + changed, ""},
		"null made empty":          {`UPDATE audit_log SET before = 'null' WHERE id = 4`, "seals 4 to 4 (rows 4 to 4)" + changed, ""},
		"the newest row changed":   {`UPDATE audit_log SET actor = 'nobody' WHERE id = 10`, "seals 10 to 10 (rows 10 to 10)" + changed, ""},
		"a row deleted":            {`DELETE FROM audit_log WHERE id = 5`, "seals 5 to 5 (rows 5 to 5): the row is missing [", ""},
		"the first rows deleted":   {`DELETE FROM audit_log WHERE id <= 3; DELETE FROM audit_seals WHERE seq <= 3`, "the seals 1 to 3 are missing", ""},
		"a row and its seal gone":  {`DELETE FROM audit_log WHERE id = 5; DELETE FROM audit_seals WHERE seq = 5`, "the seals 5 to 5 are missing", ""},
		"the gap closed":           {`DELETE FROM audit_log WHERE id = 5; DELETE FROM audit_seals WHERE seq = 5; UPDATE audit_seals SET seq = seq - 1 WHERE seq > 5`, "seals 5 to 5 (rows 6 to 6)" + changed, "the seals 10 to 10 are missing"},
		"a row inserted":           {`INSERT INTO audit_log (actor, credential, address, request_id, action, target) VALUES ('root', '', '', '', 'user.create', '')`, "or that waited and are gone: 1 (11 to 11)", ""},
		"rows truncated":           {`TRUNCATE audit_log`, "seals 1 to 10 (rows 1 to 10): the row is missing [", ""},
		"seals truncated":          {`TRUNCATE audit_seals`, "or that waited and are gone: 10 (1 to 10)", "the seals 1 to 10 are missing"},
		"a seal deleted":           {`DELETE FROM audit_seals WHERE seq = 5`, "the seals 5 to 5 are missing", ""},
		"a seal changed":           {`UPDATE audit_seals SET mac = decode(repeat('00', 32), 'hex') WHERE seq = 5`, "seals 5 to 6 (rows 5 to 6)" + changed, ""},
		"the newest seal changed":  {`UPDATE audit_seals SET mac = decode(repeat('00', 32), 'hex') WHERE seq = 10`, "seals 10 to 10 (rows 10 to 10)" + changed, ""},
		"a seal inserted":          {`INSERT INTO audit_seals SELECT 11, 99, kid, mac FROM audit_seals WHERE seq = 5`, "seals 11 to 11 (rows 99 to 99): the row is missing [", ""},
		"a seal below the first":   {`INSERT INTO audit_seals SELECT -5, 99, kid, mac FROM audit_seals WHERE seq = 5`, "seals -5 to -5 (rows 99 to 99): the row is missing [", ""},
		"two rows exchanged":       {`UPDATE audit_seals SET audit_id = CASE audit_id WHEN 4 THEN -5 WHEN 5 THEN -4 END WHERE audit_id IN (4, 5); UPDATE audit_seals SET audit_id = -audit_id WHERE audit_id < 0`, "seals 4 to 5 (rows 5 to 4)" + changed, ""},
		"a key that is not ours":   {`UPDATE audit_seals SET kid = 'other' WHERE seq = 2`, `seals 2 to 2 (rows 2 to 2): the key file has no key "other" [`, ""},
		"a checkpoint made up":     {`DELETE FROM audit_log WHERE id <= 3; DELETE FROM audit_seals WHERE seq < 3; UPDATE audit_seals SET checkpoint = mac WHERE seq = 3`, "seals 3 to 3 (rows 3 to 3): it is not a valid checkpoint", ""},
		"the tail cut":             {`DELETE FROM audit_log WHERE id > 8; DELETE FROM audit_seals WHERE seq > 8`, "", "the seals 9 to 10 are missing"},
		"all of it cut":            {`TRUNCATE audit_log; TRUNCATE audit_seals`, "", "the seals 1 to 10 are missing"},
		"a checkpoint's row":       {`UPDATE audit_seals SET checkpoint = mac WHERE seq = 1`, "seals 1 to 1 (rows 1 to 1): it is not a valid checkpoint", ""},
		"a waiting row deleted":    {`INSERT INTO audit_unsealed VALUES (77)`, "or that waited and are gone: 1 (77 to 77)", ""},
		"a row and its seal again": {`UPDATE audit_seals SET seq = 11 WHERE seq = 10`, "the seals 10 to 10 are missing", ""},
		"a sealed row waits again": {`INSERT INTO audit_unsealed VALUES (10)`, "", ""},
	}
}

// TestAuditSeals: every change of the audit log or its seals by hand is found. It is recorded once, and sealing goes on.
func TestAuditSeals(t *testing.T) {
	t.Parallel()
	first := startServer(t, nil)
	first.auditRows(9) // after the row of the first administrator
	first.sealedUpTo(10)
	said, status := first.verify()
	head := headOf(said)
	check(t, "status before", status, 0)
	check(t, "seals before", strings.Split(head, ":")[0], "10")
	checkHas(t, "verify before", said, "their seal: 0")
	for _, statement := range []string{`UPDATE audit_log SET actor = ''`, `DELETE FROM audit_log`, `TRUNCATE audit_log`, `UPDATE audit_seals SET kid = ''`, `DELETE FROM audit_seals`, `TRUNCATE audit_seals`} {
		_, err := first.db.Exec(t.Context(), statement)
		checkError(t, statement, err, "can only be added")
	}
	first.stop() // its database is copied, and nothing is sealed meanwhile

	for name, test := range auditHarms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ts := *first
			ts.t = t
			ts.env = append(slices.Clone(first.env), "CAIRN_DATABASE_URL="+copyDatabase(t, first.db.Config().ConnConfig.Database))
			cfg, err := loadConfig(ts.env)
			if err != nil {
				t.Fatal(err)
			}
			change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER; ALTER TABLE audit_seals DISABLE TRIGGER USER; `+test.harm+
				`; ALTER TABLE audit_log ENABLE TRIGGER USER`)

			rows := 0
			if test.verified != "" {
				rows = 1
			}
			for _, want := range []int{3 * rows, 0} {
				said, status := ts.verify()
				check(t, "status", status, want)
				checkHas(t, "the finding", said, test.verified)
			}
			err = connect(t.Context(), cfg, func(d *database) error {
				z := sealer{}
				z.last, _ = parseHead(head)
				for n := 1; n > 0; {
					var found []string
					var err error
					if n, found, err = z.sealRows(t.Context(), d.pool, ts.keys.Load()); err != nil {
						return err
					}
					if len(found) > 0 {
						rows++
						check(t, "found when sealing", strings.Join(found, ";"), test.sealed)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			said, status := ts.verify()
			check(t, "status after sealing", status, 0)
			checkHas(t, "what sealing found", said, test.sealed)
			check(t, "breaks are printed in "+said, strings.Contains(said, "Z: "), rows > 0)
			_, status = ts.verify("--head", head)
			check(t, "status with the old head", status, min(3*rows, 3))
			_, status = ts.verify("--head", headOf(said))
			check(t, "status with the new head", status, 0)
		})
	}
}

// TestAuditRetention: retention deletes old rows. A checkpoint still proves the rows that are left, and the commands say
// so.
func TestAuditRetention(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ctx := context.Background()
	for i := range 9 { // after the row of the first administrator
		if err := audit(ctx, ts.db, operatorActor(), "test", fmt.Sprint("target:", i), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	sealed := func(n int) {
		t.Helper()
		waitFor(t, "the seals", func() bool {
			return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 && ts.queryInt(`SELECT max(seq) FROM audit_seals`) == n
		})
	}
	sealed(10)
	said, err := ts.command("audit", "verify")
	check(t, "error of verify", err, nil)
	checkHas(t, "verify", said, "head 10:")
	var middle time.Time
	if err := ts.db.QueryRow(ctx, `SELECT at FROM audit_log WHERE id = 6`).Scan(&middle); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{5, 0} { // the second time there is nothing to do, and no row says so
		removed, found, err := pruneAudit(ctx, ts.db, ts.keys.Load(), middle)
		check(t, "error of pruning", err, nil)
		check(t, "findings of pruning", len(found), 0)
		check(t, "removed rows", removed, want)
		sealed(11)
		_, err = ts.command("audit", "verify")
		check(t, "error of verify after pruning", err, nil)
	}
	// A row that retention deleted cannot be put back with another content.
	const forged = `INSERT INTO audit_log (id, actor, credential, address, request_id, action, target) OVERRIDING SYSTEM VALUE SELECT min(audit_id), 'root', '', '', '', 'forged', '' FROM audit_seals`
	ts.exec(forged)
	ts.exec(`DELETE FROM audit_unsealed`)
	said, status := ts.verify()
	check(t, "status with a forged row", status, 3)
	checkHas(t, "verify with a forged row", said, "the row is in the place of one that retention deleted")
	sealed(12) // the row of the break
	for _, statement := range []string{`ALTER TABLE audit_log DISABLE TRIGGER USER`, `DELETE FROM audit_log WHERE action = 'forged'`, `ALTER TABLE audit_log ENABLE TRIGGER USER`} {
		ts.exec(statement)
	}
	said, err = ts.command("audit", "prune", "--before", "2999-01-01")
	check(t, "error of prune", err, nil)
	check(t, "prune", said, "removed 7 rows from the audit log\n")
	sealed(13)
	_, err = ts.command("audit", "verify")
	check(t, "error of verify after prune", err, nil)
	_, err = ts.command("audit", "verify", "--head", "10:00")
	check(t, "a head that never was is accepted", err == nil, false)
	check(t, "rows that are left", ts.queryInt(`SELECT count(*) FROM audit_log`), 1)
}

// TestAccountCommands: the operator's commands work while the service runs. They follow the same rules and are audited.
func TestAccountCommands(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ada := ts.signIn("ada", datasetRead)
	path := "/api/v1/users/" + ada.must(200, "GET", "/api/v1/auth/me", nil).text("id")
	good := func(args ...string) string {
		t.Helper()
		said, err := ts.command(args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return said
	}
	bad := func(want string, args ...string) {
		t.Helper()
		_, err := ts.command(args...)
		checkError(t, strings.Join(args, " "), err, want)
	}
	said := good("role", "create", "keeper", "--permissions", datasetManage+","+datasetRead, "--description", "Keeps files")
	check(t, "created role", said, "keeper\tdataset.read,dataset.manage\tKeeps files\n")
	bad("TITLE is missing", "message", "send", "--severity", "critical")
	bad("there is no permission", "role", "edit", "keeper", "--permissions", "all")
	good("role", "edit", "keeper", "--permissions", datasetManage)
	bad("The role admin cannot be removed or changed", "role", "edit", "admin", "--permissions", "")
	check(t, "roles of ada", good("user", "set-roles", "ada", "keeper,member"), "ada\tactive\tkeeper,member\n")
	ada.refused(401, "invalid_token", "GET", mePath, nil) // with dataset.manage ada has gained something
	ada, _ = ada.login("ada", testPassword)
	waitFor(t, "the service to hear of it", func() bool {
		return fmt.Sprint(ada.must(200, "GET", "/api/v1/auth/me", nil).json["permissions"]) == "[dataset.read dataset.manage inbox.read]"
	})
	bad("Users hold this role.", "role", "delete", "keeper")
	good("role", "delete", "keeper", "--reassign", "member")
	good("user", "end-sessions", "ada")
	waitFor(t, "the service to hear of it", func() bool { return ada.do("GET", "/api/v1/auth/me", nil).status == 401 })
	token := strings.TrimSpace(good("user", "reset-password", "ada"))
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": "another password"})
	good("user", "disable", "ada")
	ts.client().refused(403, "account_disabled", "POST", "/api/v1/auth/login", map[string]string{"username": "ada", "password": "another password"})
	good("user", "enable", "ada")
	ts.client().login("ada", "another password")
	bad("This would leave no administrator", "user", "disable", "root")
	bad("This would leave no administrator", "user", "delete", "root")
	bad("This would leave no administrator", "user", "set-roles", "root", "member")
	bad("there is no user", "user", "show", "nobody")
	bad("cairn help", "user", "set-roles", "ada")
	bad("cairn help", "audit", "verify", "--head", "")
	bad("in the audit log", "token", "create", "operator", "t", "--permissions", datasetRead)
	ts.exec(`UPDATE users SET email = 'boss@example.org' WHERE username = 'ada'`)
	bad("there is no user", "user", "set-roles", "boss@example.org", "admin")
	var shown user
	check(t, "error of the JSON", json.Unmarshal([]byte(good("user", "show", "ada", "--json")), &shown), nil)
	check(t, "shown name", shown.Username, "ada")
	check(t, "shown roles", fmt.Sprint(shown.Roles), "[member]")
	check(t, "users", good("user", "list"), "ada\tactive\tmember\nadmin\tactive\tadmin\nroot\tactive\tadmin\n")
	checkHas(t, "roles", good("role", "list"), "admin\t"+strings.Join(builtInNames(), ","))
	good("user", "delete", "ada")
	root.refused(404, "not_found", "GET", path, nil)
	items := root.must(200, "GET", "/api/v1/audit?actor=operator&credential=command+line", nil).items()
	check(t, "at least ten rows of the operator", len(items) >= 10, true)
}

// command runs a command of the program on the database of a service.
func (ts *testServer) command(args ...string) (string, error) {
	var out bytes.Buffer
	err := run(context.Background(), args, ts.env, strings.NewReader(""), &out, &out)
	return out.String(), err
}

// TestRefusalsAreBounded: a caller who is refused again and again gets at most twenty rows a minute in the audit log, and
// a count of the rest. A path that is not UTF-8 is audited too.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	reader := ts.signIn("reader", datasetRead)
	for _, id := range []string{"%00", "%ff", strings.Repeat("a", 8000)} {
		reader.refused(403, "permission_missing", "GET", "/api/v1/users/"+id, nil)
	}
	for range 40 {
		reader.refused(403, "permission_missing", "GET", "/api/v1/users", nil)
	}
	check(t, "rows of refusals", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'request.refused'`), 20)
	if err := ts.accounts.failures.flush(context.Background(), ts.db); err != nil {
		t.Fatal(err)
	}
	check(t, "further refusals", ts.queryInt(`SELECT (after ->> 'more')::int FROM audit_log WHERE action = 'request.refused' AND actor = 'cairn'`), 23)
	check(t, "rows that name the credential", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'request.refused' AND credential = $1`, "session:"+reader.credentialID()), 21)
}

// TestTokenRacesDisable: a request for an API token fails if its owner is disabled meanwhile. A request to change
// the e-mail address fails too.
func TestTokenRacesDisable(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ctx := context.Background()
	race := func(name, method, path string, body any) {
		c := ts.signIn(name, datasetRead)
		tx := must(ts.db.Begin(ctx))
		defer tx.Rollback(ctx)
		if err := advisoryLock(ctx, tx, lockAccess); err != nil { // the request waits for the lock after the password was hashed
			t.Fatal(err)
		}
		late := make(chan answer)
		go func() { late <- c.do(method, path, body) }()
		waitFor(t, "the request to wait", func() bool {
			return ts.queryInt(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
		})
		if _, err := tx.Exec(ctx, `UPDATE users SET status = 'disabled', credential_version = credential_version + 1 WHERE username = $1`, name); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		check(t, "status of "+path, (<-late).status, 401)
	}
	race("ada", "POST", "/api/v1/auth/tokens", map[string]any{"name": "late", "permissions": []string{datasetRead}, "current_password": testPassword})
	race("bob", "PATCH", "/api/v1/auth/me", map[string]any{"email": "late@example.org", "current_password": testPassword})
	check(t, "tokens and addresses of disabled users", ts.queryInt(`SELECT count(*) FROM api_tokens`)+ts.queryInt(`SELECT count(*) FROM users WHERE email = 'late@example.org'`), 0)
}

// TestAdminNameRetired: if the first administrator was deleted before the first login, the service still starts, and the
// operator creates another.
func TestAdminNameRetired(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	if said, err := ts.command("user", "delete", "admin"); err != nil {
		t.Fatal(said, err)
	}
	ts.stop()
	ts = startServer(t, nil, ts.env...)
	checkHas(t, "log", ts.log.String(), "no administrator can sign in")
	ts.client().must(200, "GET", "/health", nil)
}
