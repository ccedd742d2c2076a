package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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
	requires map[string]string          // what each dataset requires, by its name
}

// visible returns the names of the datasets that somebody who may do this sees.
func (m accessModel) visible(can map[string]bool) (names []string) {
	for name, required := range m.requires {
		if can[datasetRead] && (required == "" || can[required]) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// model reads the database.
func (w *gainWalk) model() accessModel {
	w.t.Helper()
	ctx := context.Background()
	m := accessModel{held: map[string]map[string]bool{}, admins: map[string]bool{}}
	m.declared = must(pgx.CollectRows(must(w.db.Query(ctx, `SELECT name FROM declared_permissions`)), pgx.RowTo[string]))
	all := append(strings.Fields("user.manage role.manage admin.system_message dataset.read dataset.download dataset.analyze dataset.manage audit.read metrics.read inbox.read"), m.declared...)
	rows := must(w.db.Query(ctx, `
		SELECT u.id::text, coalesce(r.name, ''), coalesce(rp.permission, ''), coalesce(r.requires_second_factor, false)
		FROM users u
		LEFT JOIN user_roles ur ON ur.user_id = u.id
		LEFT JOIN roles r ON r.id = ur.role_id
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE u.status = 'active'`))
	var id, role, permission string
	var isRequired bool
	suspended := map[string]bool{}
	must(pgx.ForEachRow(rows, []any{&id, &role, &permission, &isRequired}, func() error {
		if m.held[id] == nil {
			m.held[id] = map[string]bool{"inbox.read": true}
		}
		for _, known := range all {
			if role == "admin" || permission == known {
				m.held[id][known] = true
			}
		}
		m.admins[id] = m.admins[id] || role == "admin"
		suspended[id] = suspended[id] || isRequired // nobody here has a second factor
		return nil
	}))
	for id := range m.held {
		if suspended[id] {
			m.held[id] = map[string]bool{"inbox.read": true}
		}
	}
	m.requires = map[string]string{}
	var dataset, required string
	must(pgx.ForEachRow(must(w.db.Query(ctx, `SELECT name, requires FROM datasets`)), []any{&dataset, &required}, func() error {
		m.requires[dataset] = required
		return nil
	}))
	return m
}

// checkDatasets compares the datasets that the service shows to a credential with the model.
func (w *gainWalk) checkDatasets(who string, c client, m accessModel, can map[string]bool) {
	w.t.Helper()
	a := c.do("GET", "/api/v1/datasets?limit=500", nil)
	var shown []string
	for _, item := range a.items() {
		shown = append(shown, item["name"].(string))
	}
	if want := m.visible(can); !slices.Equal(shown, want) || a.status == 200 != can[datasetRead] {
		w.t.Fatalf("%s sees the datasets %v (%d), by the model %v", who, shown, a.status, want)
	}
	one := w.pick(slices.Collect(maps.Keys(m.requires)))
	id := fmt.Sprint(w.queryInt(`SELECT id FROM datasets WHERE name = $1`, one))
	if got := c.do("GET", "/api/v1/datasets/"+id+"/report", nil).status; got == 200 != slices.Contains(m.visible(can), one) {
		w.t.Fatalf("%s gets %d for the dataset %s, which requires %q; the model: %v", who, got, one, m.requires[one], can)
	}
}

// checkRequired: a step changes what a dataset requires only if its agent could do so, and leaves none that requires a
// permission that does not exist.
func (w *gainWalk) checkRequired(step int, did string, before, after accessModel, could map[string]bool) {
	w.t.Helper()
	for name, required := range after.requires {
		former, isOld := before.requires[name]
		known := append(builtInNames(), after.declared...)
		if required != "" && !slices.Contains(known, required) {
			w.t.Fatalf("step %d: %s requires %s, which %s has removed", step, name, required, did)
		}
		for _, needed := range []string{former, required} {
			isChanged := former != required || !isOld
			if isChanged && (needed != "" && !could[needed] || !could[datasetManage]) {
				w.t.Fatalf("step %d: %s requires %q and not %q by %s of an agent that may do %v", step, name, required, former, did, could)
			}
		}
	}
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
		w.checkDatasets(a.name, c, m, want)
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
	switch w.random.IntN(22) {
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
			do("POST", "/api/v1/roles", map[string]any{"name": fmt.Sprint("role", step), "permissions": w.some(known),
				"requires_second_factor": w.random.IntN(4) == 0})
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
	case 17, 18:
		do("PATCH", "/api/v1/roles/"+w.pick(roleIDs), map[string]any{"requires_second_factor": w.random.IntN(3) == 0})
	case 19:
		dataset := fmt.Sprint("/api/v1/datasets/", w.queryInt(`SELECT id FROM datasets ORDER BY random() LIMIT 1`))
		do("PATCH", dataset, map[string]any{"requires": w.pick(append(w.declarable, "", datasetRead, roleManage))})
	case 20, 21:
		name := fmt.Sprint("set", step)
		w.addFolder(name)
		if w.queryInt(`SELECT count(*) FROM datasets`) < 12 {
			do("POST", "/api/v1/datasets", map[string]any{"name": name, "path": name, "requires": w.pick(append(w.declarable, ""))})
		} else {
			dataset := fmt.Sprint("/api/v1/datasets/", w.queryInt(`SELECT id FROM datasets ORDER BY random() LIMIT 1`))
			do("DELETE", dataset, nil)
		}
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
// users, roles, what these require, declared permissions, and datasets that require permissions. Each credential sees just
// the datasets that it may see by the model. No step may let its agent do, directly or through an account under its control,
// anything that the agent could not do before. Two things are no gain: an administrator holds what is declared anew, and
// everybody may read the inbox. There is always an administrator who can sign in.
func TestNobodyGains(t *testing.T) {
	t.Parallel()
	steps := soakOr(20_000, 300)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &gainWalk{testServer: startServer(t, nil), random: rand.New(rand.NewPCG(seed, 1)),
		declarable: []string{"wiki.edit", "wiki.read", "forum.post"}, named: map[string][]string{}}
	w.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
	w.exec(`INSERT INTO datasets (name, path, requires) VALUES ('open', 'open', ''), ('wiki', 'wiki', 'wiki.edit'), ('managed', 'managed', 'dataset.manage')`)
	w.start("root", "all")
	w.start("second", "all")
	w.start("keeper", datasetRead, datasetManage, "wiki.edit")
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
		if w.random.IntN(20) == 0 { // the operator lifts a requirement that leaves nobody to lift it
			w.exec(`UPDATE roles SET requires_second_factor = false WHERE id <= 2`)
		}
		modelBefore := w.model()
		before, isAdmin := a.reach(w, modelBefore)
		could := modelBefore.of(w, c.do("GET", mePath, nil).text("id"), c)
		did, got := w.act(a, c, step)
		if got.status >= 500 {
			t.Fatalf("step %d: %s: %d %s", step, did, got.status, got.body)
		}
		outcomes[fmt.Sprint(got.status)]++
		modelAfter := w.model()
		w.checkPromoted(step, did, modelBefore, modelAfter)
		w.checkRequired(step, did, modelBefore, modelAfter, could)
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
