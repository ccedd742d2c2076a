package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// agent is an actor of TestNobodyGains, with the credentials that it has and those that it can get.
type agent struct {
	name      string
	sessions  map[string]client // by the id of the user, whose password the agent knows
	scripts   []client          // API tokens
	takeovers map[string]string // the id of the user, by password token
}

// newScript returns an agent that has just an API token.
func newScript(name string, token client) *agent {
	return &agent{name: name, scripts: []client{token}, sessions: map[string]client{}, takeovers: map[string]string{}}
}

// accessModel is what every user may do, worked out from the rows of the database by none of the program's own code.
type accessModel struct {
	declared []string
	held     map[string]map[string]bool // permissions by the id of an active user
	admins   map[string]bool            // ids of active users with the role admin
}

// model reads the database.
func (w *gainWalk) model() accessModel {
	w.t.Helper()
	ctx := context.Background()
	m := accessModel{held: map[string]map[string]bool{}, admins: map[string]bool{}}
	m.declared = must(pgx.CollectRows(must(w.db.Query(ctx, `SELECT name FROM declared_permissions`)), pgx.RowTo[string]))
	all := append(strings.Fields("user.manage role.manage admin.system_message dataset.read dataset.download dataset.analyze dataset.manage audit.read metrics.read inbox.read"), m.declared...)
	rows := must(w.db.Query(ctx, `
		SELECT u.id::text, coalesce(r.name, ''), coalesce(rp.permission, '')
		FROM users u
		LEFT JOIN user_roles ur ON ur.user_id = u.id
		LEFT JOIN roles r ON r.id = ur.role_id
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE u.status = 'active'`))
	var id, role, permission string
	must(pgx.ForEachRow(rows, []any{&id, &role, &permission}, func() error {
		if m.held[id] == nil {
			m.held[id] = map[string]bool{"inbox.read": true}
		}
		for _, known := range all {
			if role == "admin" || permission == known {
				m.held[id][known] = true
			}
		}
		m.admins[id] = m.admins[id] || role == "admin"
		return nil
	}))
	return m
}

// of returns what a live credential of the user may do.
func (m accessModel) of(w *gainWalk, id string, c client) map[string]bool {
	can := maps.Clone(m.held[id])
	if named, isToken := w.named[c.token]; isToken {
		maps.DeleteFunc(can, func(permission string, _ bool) bool { return !slices.Contains(named, permission) })
	}
	return can
}

// reach returns the permissions that the agent can use now, directly or through an account under its control, and
// whether one of these accounts is an administrator's. For each credential, the service and what a proxy lets through
// must agree with the model.
func (a *agent) reach(w *gainWalk, m accessModel) (can map[string]bool, isAdmin bool) {
	w.t.Helper()
	can = map[string]bool{}
	add := func(c client) {
		me := c.do("GET", "/api/v1/auth/me", nil)
		if me.status != 200 {
			return // the credential has ended
		}
		want := m.of(w, me.text("id"), c)
		said := []string{}
		for _, permission := range me.json["permissions"].([]any) {
			said = append(said, permission.(string))
		}
		if !slices.Equal(slices.Sorted(slices.Values(said)), slices.Sorted(maps.Keys(want))) {
			w.t.Fatalf("%s holds %v by the service, %v by the model", a.name, said, want)
		}
		asked := w.pick(append(slices.Clone(w.declarable), builtInNames()...))
		proxy := c.do("GET", verifyPath+"?permission="+asked, nil)
		if proxy.status == 204 != want[asked] || proxy.status == 204 && proxy.header.Get("X-Cairn-Permissions") != strings.Join(said, ",") {
			w.t.Fatalf("%s: the proxy is answered %d %v about %s; the model: %v", a.name, proxy.status, proxy.header, asked, want)
		}
		maps.Copy(can, want)
		if _, isToken := w.named[c.token]; !isToken {
			isAdmin = isAdmin || m.admins[me.text("id")]
		}
	}
	for _, c := range append(slices.Collect(maps.Values(a.sessions)), a.scripts...) {
		add(c)
	}
	for token := range a.takeovers {
		if u, err := getUserByPasswordToken(context.Background(), w.db, token); err == nil { // else the token is void
			maps.Copy(can, m.held[u.ID])
			isAdmin = isAdmin || m.admins[u.ID]
		}
	}
	return can, isAdmin
}

// gainWalk is the state of TestNobodyGains.
type gainWalk struct {
	*testServer
	random     *rand.Rand
	agents     []*agent
	everyone   []string            // ids of users, some of whom may be gone
	declarable []string            // the permissions that agents declare and remove
	named      map[string][]string // the permissions of each API token
}

// pick returns one of a list.
func (w *gainWalk) pick(list []string) string { return list[w.random.IntN(len(list))] }

// some returns about a third of a list.
func (w *gainWalk) some(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(string) bool { return w.random.IntN(3) > 0 })
}

// start adds a user with these permissions, as an agent. All users have the same password, because hashing a new one for
// each takeover would be most of the work.
func (w *gainWalk) start(name string, granted ...string) {
	id := w.addUser(name, granted...)
	c, _ := w.client().login(name, testPassword)
	w.agents = append(w.agents, &agent{name: name, sessions: map[string]client{id: c}, takeovers: map[string]string{}})
	w.everyone = append(w.everyone, id)
}

// credential returns a live credential of the agent. If it has none left, a newcomer takes its place.
func (w *gainWalk) credential(a *agent, step int) (c client, ok bool) {
	dead := func(c client) bool { return c.do("GET", "/api/v1/auth/me", nil).status != 200 }
	maps.DeleteFunc(a.sessions, func(_ string, c client) bool { return dead(c) })
	a.scripts = slices.DeleteFunc(a.scripts, dead)
	credentials := append(slices.Collect(maps.Values(a.sessions)), a.scripts...)
	if len(credentials) > 0 {
		return credentials[w.random.IntN(len(credentials))], true
	}
	w.agents = slices.DeleteFunc(w.agents, func(other *agent) bool { return other == a })
	granted := w.some(append(builtInNames(), w.declarable...))
	if w.random.IntN(3) == 0 {
		granted = []string{"all"}
	}
	w.start(fmt.Sprint("newcomer", step), granted...)
	return c, false
}

// act has the agent do one thing with a credential. It returns the request and its answer.
func (w *gainWalk) act(a *agent, c client, step int) (did string, got answer) {
	w.t.Helper()
	var roleIDs, roleNames []string
	for _, r := range must(listRoles(context.Background(), w.db, nil, "", 1000)) {
		roleIDs, roleNames = append(roleIDs, fmt.Sprint(r.ID)), append(roleNames, r.Name)
	}
	known := append(builtInNames(), w.model().declared...)
	target := w.pick(w.everyone)
	user := "/api/v1/users/" + target
	do := func(method, path string, body any) {
		did, got = method+" "+path+" "+fmt.Sprint(body), c.do(method, path, body)
	}
	switch w.random.IntN(17) {
	case 0:
		do("POST", "/api/v1/users", map[string]any{"username": fmt.Sprint("user", step), "roles": w.some(roleNames)})
		if got.status == 201 {
			w.everyone = append(w.everyone, got.text("id"))
			a.takeovers[got.text("password_token")] = got.text("id")
		}
	case 1:
		do("PATCH", user, map[string]any{"status": w.pick([]string{statusActive, statusActive, statusDisabled, statusPending})})
	case 2:
		do("PATCH", user, map[string]any{"display_name": fmt.Sprint(step), "email": fmt.Sprintf("m%d@example.org", step)})
	case 3, 4:
		do("PUT", user+"/roles", map[string]any{"roles": w.some(roleNames)})
	case 5, 6:
		do("POST", user+"/password-reset", nil)
		if got.status == 201 {
			a.takeovers[got.text("password_token")] = target
		}
	case 7:
		if w.random.IntN(4) == 0 {
			do("DELETE", user, nil)
		} else {
			do("DELETE", user+"/"+w.pick([]string{"sessions", "tokens"}), nil)
		}
	case 8:
		if len(roleNames) < 14 {
			do("POST", "/api/v1/roles", map[string]any{"name": fmt.Sprint("role", step), "permissions": w.some(known)})
		}
	case 9, 10:
		do("PATCH", "/api/v1/roles/"+w.pick(roleIDs), map[string]any{"permissions": w.some(known)})
	case 11:
		do("DELETE", "/api/v1/roles/"+w.pick(roleIDs)+w.pick([]string{"", "?reassign=" + w.pick(roleNames)}), nil)
	case 12: // a thief gets one of the agent's API tokens
		if len(w.agents) < 16 {
			named := w.some(known)
			do("POST", "/api/v1/auth/tokens", map[string]any{"name": fmt.Sprint(step), "permissions": named, "current_password": testPassword})
			if got.status == 201 {
				w.named[got.text("token")] = named
				w.agents = append(w.agents, newScript(fmt.Sprint("thief", step), c.as(got.text("token"))))
			}
		}
	case 13:
		for token := range a.takeovers {
			did, got = "takeover", w.takeOver(a, token)
			break
		}
	case 14:
		do("POST", permissionsPath, map[string]any{"name": w.pick(w.declarable), "meaning": "Something."})
	case 15:
		name := w.pick(w.declarable)
		do("DELETE", permissionsPath+"/"+name+w.pick([]string{"", "?force"}), nil)
		for token, named := range w.named {
			if got.status == 204 {
				w.named[token] = slices.DeleteFunc(named, func(p string) bool { return p == name })
			}
		}
	case 16:
		do("PATCH", permissionsPath+"/"+w.pick(w.declarable), map[string]any{"meaning": "Something else."})
	}
	return did, got
}

// takeOver has the agent set the password of an account with a password token, and sign in.
func (w *gainWalk) takeOver(a *agent, token string) answer {
	w.t.Helper()
	id := a.takeovers[token]
	delete(a.takeovers, token)
	got := w.client().do("POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword})
	if got.status != 204 {
		return got
	}
	for _, other := range w.agents { // those who knew the old password do not know the new one
		delete(other.sessions, id)
	}
	name := must(getUser(context.Background(), w.db, id)).Username
	if in := w.client().do("POST", "/api/v1/auth/login", map[string]string{"username": name, "password": testPassword}); in.status == 200 {
		a.sessions[id] = w.client().as(in.text("access_token"))
	}
	return got
}

// checkPromoted: an agent that may do more after a step has no session and no password token from before it.
func (w *gainWalk) checkPromoted(step int, did string, before, after accessModel) {
	w.t.Helper()
	for id, can := range after.held {
		for permission := range can {
			isNew := slices.Contains(w.declarable, permission) && !slices.Contains(before.declared, permission)
			if before.held[id] == nil || before.held[id][permission] || isNew && after.admins[id] && before.admins[id] {
				continue
			}
			if n := w.queryInt(`SELECT (SELECT count(*) FROM sessions WHERE user_id = $1 AND ended_at IS NULL) + (SELECT count(*) FROM password_tokens WHERE user_id = $1)`, id); n > 0 {
				w.t.Fatalf("step %d: %d sessions and password tokens of %s outlive the gain of %s by %s", step, n, id, permission, did)
			}
		}
	}
}

// TestNobodyGains is a random walk over HTTP: users of all kinds, with sessions and API tokens of few permissions, change
// users, roles and declared permissions. No step may let its agent do, directly or through an account under its control,
// anything that the agent could not do before. Two things are no gain: an administrator holds what is declared anew, and
// everybody may read the inbox. There is always an administrator who can sign in.
func TestNobodyGains(t *testing.T) {
	t.Parallel()
	steps := soakOr(20_000, 1000)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &gainWalk{testServer: startServer(t, nil), random: rand.New(rand.NewPCG(seed, 1)),
		declarable: []string{"wiki.edit", "wiki.read", "forum.post"}, named: map[string][]string{}}
	w.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
	w.start("root", "all")
	w.start("second", "all")
	w.start("editor", roleManage, "wiki.edit")
	w.start("manager", userManage)
	w.start("helper", userManage, datasetRead)
	w.start("curator", userManage, roleManage, datasetRead, datasetManage)
	w.start("roles", roleManage, adminSystemMessage)
	w.start("reader", datasetRead)
	for i, granted := range [][]string{{userManage}, {userManage, roleManage}, {roleManage, datasetRead}, {roleManage, "wiki.edit"}} {
		script := w.addToken("root", fmt.Sprint("narrow", i), granted...)
		w.named[script.token] = granted
		w.agents = append(w.agents, newScript(fmt.Sprint("script", i), script))
	}
	outcomes := map[string]int{}
	for step := range steps {
		a := w.agents[w.random.IntN(len(w.agents))]
		c, ok := w.credential(a, step)
		if !ok {
			continue
		}
		modelBefore := w.model()
		before, isAdmin := a.reach(w, modelBefore)
		did, got := w.act(a, c, step)
		if got.status >= 500 {
			t.Fatalf("step %d: %s: %d %s", step, did, got.status, got.body)
		}
		outcomes[fmt.Sprint(got.status)]++
		modelAfter := w.model()
		w.checkPromoted(step, did, modelBefore, modelAfter)
		after, _ := a.reach(w, modelAfter)
		for permission := range after {
			isNew := isAdmin && strings.HasPrefix(did, "POST "+permissionsPath) && strings.Contains(did, permission)
			if !before[permission] && !isNew && permission != inboxRead {
				t.Fatalf("step %d: %s has gained %s by %s: %d %s", step, a.name, permission, did, got.status, got.body)
			}
		}
		if ok := must(administratorExists(context.Background(), w.db)); !ok {
			t.Fatalf("step %d: %s has left no administrator by %s", step, a.name, did)
		}
	}
	t.Logf("answers: %v", outcomes)
	if outcomes["403"] < steps/50 || outcomes["200"]+outcomes["201"]+outcomes["204"] < steps/50 {
		t.Errorf("the walk had too few refusals or too few changes: %v", outcomes)
	}
}

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
	for round := range 200 {
		ts.exec(`DELETE FROM user_roles WHERE role_id = 1`)
		var ids [2]string
		var clients [2]client
		for i := range ids {
			name := fmt.Sprintf("admin-%d-%d", round, i)
			ids[i] = ts.addUser(name, "all")
			session := [16]byte{byte(round), byte(i), 1}
			ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at) VALUES ($1, $2, now() + interval '1 hour', now() + interval '1 hour')`, session, ids[i])
			clients[i] = ts.client().as(ts.keys.Load().signAccess(ids[i], uuidText(session), time.Now(), time.Now().Add(time.Hour)))
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
		if won != 1 || !must(administratorExists(context.Background(), ts.db)) {
			t.Fatalf("round %d: %v", round, statuses)
		}
	}
}

// TestAdministrationRefuses: bad input has its status and code, and changes nothing.
func TestAdministrationRefuses(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	rootID := root.must(200, "GET", mePath, nil).text("id")
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
		{422, "invalid", "GET", "/users?sort=password_hash", ``},
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
		state := ts.queryInt(`SELECT (SELECT count(*) FROM users) * 1000000 + (SELECT count(*) FROM roles) * 1000 + (SELECT count(*) FROM user_roles)`)
		root.refused(bad.status, bad.code, bad.method, "/api/v1"+bad.path, body)
		if now := ts.queryInt(`SELECT (SELECT count(*) FROM users) * 1000000 + (SELECT count(*) FROM roles) * 1000 + (SELECT count(*) FROM user_roles)`); now != state {
			t.Errorf("%s %s %s changed something", bad.method, bad.path, bad.body)
		}
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
	if !slices.Equal(listed, builtInNames()) {
		t.Errorf("permissions: %v", listed)
	}
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
	if left := time.Until(must(time.Parse(time.RFC3339, created.text("expires_at")))); left < 71*time.Hour || left > 73*time.Hour {
		t.Errorf("the first password's token is good for %v", left)
	}
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
	if changed.status != 200 || changed.header.Get("ETag") != root.must(200, "GET", path, nil).header.Get("ETag") {
		t.Errorf("%d %s", changed.status, changed.body)
	}
	for _, request := range [][2]string{{"PATCH", ""}, {"PUT", "/roles"}, {"DELETE", ""}} {
		body := map[string]map[string]any{"PATCH": {"display_name": "lost"}, "PUT": {"roles": []string{}}}[request[0]]
		if a := root.do(request[0], path+request[1], body, "If-Match: "+tag); a.status != 412 || a.text("code") != "stale" {
			t.Errorf("%s: %d %s", request[0], a.status, a.body)
		}
	}
	if name := root.must(200, "GET", path, nil).text("display_name"); name != "Ada L." {
		t.Error(name)
	}
	root.must(200, "PATCH", path, map[string]string{"email": ""})
	if root.must(200, "GET", path, nil).json["email"] != nil {
		t.Error("the e-mail address is still there")
	}
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
	if n := x.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'user.roles'`); n != 0 {
		t.Errorf("%d changes of roles are audited", n)
	}
	x.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword})
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
	if roles := root.must(200, "GET", path, nil).json["roles"]; fmt.Sprint(roles) != "[member]" {
		t.Error(roles)
	}
	if a := root.must(200, "GET", fmt.Sprintf("/api/v1/system-messages/%d", secret.number("id")), nil); a.number("recipients") != 0 {
		t.Errorf("what was for keepers is now for %s", a.body)
	}
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
		if items := root.must(200, "GET", "/api/v1/audit?action="+action, nil).items(); len(items) == 0 {
			t.Errorf("no %s in the audit log", action)
		}
	}
	found := root.must(200, "GET", "/api/v1/audit?actor=root&target=user:countess", nil).items()
	if len(found) != 1 || found[0]["action"] != "user.delete" || found[0]["before"].(map[string]any)["username"] != "countess" {
		t.Error(found)
	}
	if items := root.must(200, "GET", "/api/v1/audit?until=2020-01-01T00:00:00Z", nil).items(); len(items) != 0 {
		t.Error(items)
	}
}

// TestApproval: a registered user waits until somebody with user.manage approves the account.
func TestApproval(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REGISTRATION=approval")
	manager := ts.signIn("manager", userManage, datasetRead)
	id := ts.client().must(201, "POST", "/api/v1/auth/register", map[string]string{"username": "ada", "password": testPassword}).text("id")
	credentials := map[string]string{"username": "ada", "password": testPassword}
	ts.client().refused(403, "account_pending", "POST", "/api/v1/auth/login", credentials)
	if items := manager.must(200, "GET", "/api/v1/users?status=pending", nil).items(); len(items) != 1 || items[0]["id"] != id {
		t.Error(items)
	}
	manager.must(200, "PATCH", "/api/v1/users/"+id, map[string]string{"status": "active"})
	ts.client().must(200, "POST", "/api/v1/auth/login", credentials)
}

// TestListUsersOrders: each order and filter lists every user it should once, page by page.
func TestListUsersOrders(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.exec(`INSERT INTO users (username, email, display_name, status, created_at, last_login_at)
		SELECT 'u' || i, 'mail' || i || '@example.org', 'Per%son_' || i, 'active', now() - (i % 7) * interval '1 day', CASE WHEN i % 3 = 0 THEN now() - (i % 5) * interval '1 hour' END
		FROM generate_series(1, 40) i`)
	ts.exec(`INSERT INTO user_roles SELECT id, 2 FROM users WHERE username IN ('u1', 'u22', 'u33')`)
	for query, want := range map[string]int{
		"sort=username": 42, "sort=-username": 42, "sort=created_at": 42, "sort=-created_at": 42, "sort=last_login_at": 42, "sort=-last_login_at": 42,
		"q=U22": 1, "q=mail3": 11, "q=PER%25SON_1": 11, "q=r%25s": 40, "q=%25%25%25": 0, "q=per_son": 0, "q=mail&sort=-created_at": 40,
		"role=member": 3, "role=admin": 2, "role=member&sort=-last_login_at": 3, "role=member&q=u22": 1, "status=disabled": 0, "status=active&sort=-username": 42,
	} {
		var names []string
		keys := []string{}
		for cursor := ""; ; {
			a := root.must(200, "GET", "/api/v1/users?limit=7&"+query+cursor, nil)
			for _, item := range a.items() {
				names = append(names, item["username"].(string))
				for _, column := range []string{"username", "created_at", "last_login_at"} {
					if strings.Contains(query+"&", "sort="+column+"&") || strings.Contains(query+"&", "sort=-"+column+"&") {
						key, _ := item[column].(string)
						keys = append(keys, key)
					}
				}
			}
			if a.json["next_cursor"] == nil {
				break
			}
			cursor = "&cursor=" + a.text("next_cursor")
		}
		if strings.Contains(query, "sort=-") {
			slices.Reverse(keys)
		}
		if !slices.IsSorted(keys) {
			t.Errorf("%s: not in order: %v", query, keys)
		}
		slices.Sort(names)
		if n := len(slices.Compact(names)); n != want || n != len(names) {
			t.Errorf("%s: %d different of %d users, want %d", query, n, len(names), want)
		}
	}
}

// TestAuditSeals: every change of the audit log or its seals by hand is found, and the finding names it.
func TestAuditSeals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ harm, found string }{
		"nothing":                  {`SELECT`, ""},
		"a row changed":            {`UPDATE audit_log SET actor = 'nobody' WHERE id = 5`, "row 5 or its seal 5 was changed"},
		"a row's detail changed":   {`UPDATE audit_log SET after = '{"roles":[]}' WHERE id = 6`, "row 6 or its seal 6 was changed"},
		"a row's time changed":     {`UPDATE audit_log SET at = at + interval '1 microsecond' WHERE id = 7`, "row 7 or its seal 7 was changed"},
		"null made empty":          {`UPDATE audit_log SET before = 'null' WHERE id = 4`, "row 4 or its seal 4 was changed"},
		"a row deleted":            {`DELETE FROM audit_log WHERE id = 5`, "row 5 (seal 5) is missing"},
		"the first rows deleted":   {`DELETE FROM audit_log WHERE id <= 3; DELETE FROM audit_seals WHERE seq <= 3`, "the seals from 1 to 3 are missing"},
		"a row and its seal gone":  {`DELETE FROM audit_log WHERE id = 5; DELETE FROM audit_seals WHERE seq = 5`, "the seals from 5 to 5 are missing"},
		"the gap closed":           {`DELETE FROM audit_log WHERE id = 5; DELETE FROM audit_seals WHERE seq = 5; UPDATE audit_seals SET seq = seq - 1 WHERE seq > 5`, "row 6 or its seal 5 was changed"},
		"a row inserted":           {`INSERT INTO audit_log (actor, credential, address, request_id, action, target) VALUES ('root', '', '', '', 'user.create', '')`, "row 11 has no seal"},
		"rows truncated":           {`TRUNCATE audit_log`, "row 1 (seal 1) is missing"},
		"seals truncated":          {`TRUNCATE audit_seals`, "row 1 has no seal"},
		"a seal deleted":           {`DELETE FROM audit_seals WHERE seq = 5`, "the seals from 5 to 5 are missing"},
		"a seal changed":           {`UPDATE audit_seals SET mac = decode(repeat('00', 32), 'hex') WHERE seq = 5`, "row 5 or its seal 5 was changed"},
		"a seal inserted":          {`INSERT INTO audit_seals SELECT 11, 99, kid, mac FROM audit_seals WHERE seq = 5`, "row 99 (seal 11) is missing"},
		"two rows exchanged":       {`UPDATE audit_seals SET audit_id = CASE audit_id WHEN 4 THEN -5 WHEN 5 THEN -4 END WHERE audit_id IN (4, 5); UPDATE audit_seals SET audit_id = -audit_id WHERE audit_id < 0`, "row 5 or its seal 4 was changed"},
		"a key that is not ours":   {`UPDATE audit_seals SET kid = 'other' WHERE seq = 2`, "the key file has no key other"},
		"a checkpoint made up":     {`DELETE FROM audit_log WHERE id <= 3; DELETE FROM audit_seals WHERE seq < 3; UPDATE audit_seals SET checkpoint = mac WHERE seq = 3`, "seal 3 is not a valid checkpoint"},
		"the tail cut":             {`DELETE FROM audit_log WHERE id > 8; DELETE FROM audit_seals WHERE seq > 8`, "the log does not hold the seal 10:"},
		"all of it cut":            {`TRUNCATE audit_log; TRUNCATE audit_seals`, "the log does not hold the seal 10:"},
		"a checkpoint's row":       {`UPDATE audit_seals SET checkpoint = mac WHERE seq = 1`, "seal 1 is not a valid checkpoint"},
		"a waiting row deleted":    {`INSERT INTO audit_unsealed VALUES (77)`, "row 77, which waited for its seal, is missing"},
		"a row and its seal again": {`UPDATE audit_seals SET seq = 11 WHERE seq = 10`, "the seals from 10 to 10 are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ts := startServer(t, nil)
			ctx := context.Background()
			for i := range 9 { // after the row of the first administrator
				if err := audit(ctx, ts.db, operatorActor(), "test", fmt.Sprint("target:", i), nil, map[string]int{"i": i}); err != nil {
					t.Fatal(err)
				}
			}
			waitFor(t, "the seals", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_seals`) == 10 })
			head, waiting, err := verifyAudit(ctx, ts.db, ts.keys.Load(), "")
			if err != nil || waiting != 0 || !strings.HasPrefix(head, "10:") {
				t.Fatal(head, waiting, err)
			}
			for _, statement := range []string{`UPDATE audit_log SET actor = ''`, `DELETE FROM audit_log`, `TRUNCATE audit_log`, `UPDATE audit_seals SET kid = ''`, `DELETE FROM audit_seals`, `TRUNCATE audit_seals`} {
				if _, err := ts.db.Exec(ctx, statement); err == nil || !strings.Contains(err.Error(), "can only be added") {
					t.Errorf("%s: %v", statement, err)
				}
			}
			ts.stop() // so that nothing is sealed meanwhile
			err = connect(ctx, ts.cfg, func(d *database) error {
				pool := d.pool
				const off = `ALTER TABLE audit_log DISABLE TRIGGER USER; ALTER TABLE audit_seals DISABLE TRIGGER USER; `
				if _, err := pool.Exec(ctx, off+test.harm, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
				_, _, err := verifyAudit(ctx, pool, ts.keys.Load(), head)
				return err
			})
			if test.found == "" && err != nil || test.found != "" && (err == nil || !strings.Contains(err.Error(), test.found)) {
				t.Errorf("got %v, want %q", err, test.found)
			}
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
	if err != nil || !strings.Contains(said, "whole; head 10:") {
		t.Fatal(said, err)
	}
	var middle time.Time
	if err := ts.db.QueryRow(ctx, `SELECT at FROM audit_log WHERE id = 6`).Scan(&middle); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{5, 0} {
		removed, err := pruneAudit(ctx, ts.db, ts.keys.Load().keys[0], middle)
		if err != nil || removed != want {
			t.Fatal(removed, err)
		}
		sealed(11 + i)
		if _, err := ts.command("audit", "verify"); err != nil {
			t.Error(err)
		}
	}
	// A row that retention deleted cannot be put back with another content.
	const forged = `INSERT INTO audit_log (id, actor, credential, address, request_id, action, target) OVERRIDING SYSTEM VALUE SELECT min(audit_id), 'root', '', '', '', 'forged', '' FROM audit_seals`
	ts.exec(forged)
	ts.exec(`DELETE FROM audit_unsealed`)
	if _, err := ts.command("audit", "verify"); err == nil || !strings.Contains(err.Error(), "was put in place of one that retention took") {
		t.Error(err)
	}
	for _, statement := range []string{`ALTER TABLE audit_log DISABLE TRIGGER USER`, `DELETE FROM audit_log WHERE action = 'forged'`, `ALTER TABLE audit_log ENABLE TRIGGER USER`} {
		ts.exec(statement)
	}
	if said, err = ts.command("audit", "prune", "--before", "2999-01-01"); err != nil || said != "removed 7 rows from the audit log\n" {
		t.Error(said, err)
	}
	sealed(13)
	if said, err = ts.command("audit", "verify"); err != nil {
		t.Error(said, err)
	}
	if _, err := ts.command("audit", "verify", "--head", "10:00"); err == nil {
		t.Error("a head that never was is accepted")
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_log`); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}

// TestSealerIsNoOracle: a row that was changed and queued again by hand is not sealed as if it were new.
func TestSealerIsNoOracle(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ctx := context.Background()
	for i := range 4 { // after the row of the first administrator
		if err := audit(ctx, ts.db, operatorActor(), "test", fmt.Sprint("target:", i), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the seals", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_seals`) == 5 })
	ts.exec(`ALTER TABLE audit_log DISABLE TRIGGER USER`)
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	ts.exec(`WITH gone AS (DELETE FROM audit_seals WHERE seq >= 3 RETURNING audit_id) INSERT INTO audit_unsealed SELECT audit_id FROM gone`)
	ts.exec(`UPDATE audit_log SET actor = 'nobody' WHERE id = 3`)
	waitFor(t, "the alarm", func() bool { return strings.Contains(ts.log.String(), "the audit log was tampered with") })
	if n := ts.queryInt(`SELECT count(*) FROM audit_seals`); n != 2 {
		t.Errorf("%d seals", n)
	}
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
		if said, err := ts.command(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %s %v, want %q", args, said, err, want)
		}
	}
	if said := good("role", "create", "keeper", "--permissions", datasetManage+","+datasetRead, "--description", "Keeps files"); said != "keeper\tdataset.read,dataset.manage\tKeeps files\n" {
		t.Error(said)
	}
	bad("TITLE is missing", "message", "send", "--severity", "critical")
	bad("there is no permission", "role", "edit", "keeper", "--permissions", "all")
	good("role", "edit", "keeper", "--permissions", datasetManage)
	bad("The role admin cannot be removed or changed", "role", "edit", "admin", "--permissions", "")
	if said := good("user", "set-roles", "ada", "keeper,member"); said != "ada\tactive\tkeeper,member\n" {
		t.Error(said)
	}
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
	if err := json.Unmarshal([]byte(good("user", "show", "ada", "--json")), &shown); err != nil || shown.Username != "ada" || fmt.Sprint(shown.Roles) != "[member]" {
		t.Error(shown, err)
	}
	if said := good("user", "list"); said != "ada\tactive\tmember\nadmin\tactive\tadmin\nroot\tactive\tadmin\n" {
		t.Errorf("%q", said)
	}
	if said := good("role", "list"); !strings.HasPrefix(said, "admin\t"+strings.Join(builtInNames(), ",")) {
		t.Error(said)
	}
	good("user", "delete", "ada")
	root.refused(404, "not_found", "GET", path, nil)
	if items := root.must(200, "GET", "/api/v1/audit?actor=operator&credential=command+line", nil).items(); len(items) < 10 {
		t.Errorf("%d rows", len(items))
	}
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
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'request.refused'`); n != 20 {
		t.Errorf("%d rows", n)
	}
	if err := ts.accounts.refused.flush(context.Background(), ts.db); err != nil {
		t.Fatal(err)
	}
	if n := ts.queryInt(`SELECT (after ->> 'more')::int FROM audit_log WHERE action = 'request.refused' AND actor = 'cairn'`); n != 23 {
		t.Errorf("%d more", n)
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'request.refused' AND credential = $1`, "session:"+reader.credentialID()); n != 21 {
		t.Errorf("%d rows name the credential", n)
	}
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
		if a := <-late; a.status != 401 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	race("ada", "POST", "/api/v1/auth/tokens", map[string]any{"name": "late", "permissions": []string{datasetRead}, "current_password": testPassword})
	race("bob", "PATCH", "/api/v1/auth/me", map[string]any{"email": "late@example.org", "current_password": testPassword})
	if n := ts.queryInt(`SELECT count(*) FROM api_tokens`) + ts.queryInt(`SELECT count(*) FROM users WHERE email = 'late@example.org'`); n != 0 {
		t.Error("something was made for a disabled user")
	}
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
	if !strings.Contains(ts.log.String(), "no administrator can sign in") {
		t.Error("the log does not say so")
	}
	ts.client().must(200, "GET", "/health", nil)
}
