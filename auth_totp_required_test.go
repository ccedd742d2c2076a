package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestRoleRequiresSecondFactor: the holders of a role that requires a second factor have no permission from any role until they
// have enrolled one, nor have their API tokens, on any instance.
func TestRoleRequiresSecondFactor(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	two := startTOTP(t, clock, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	root := ts.signIn("root", "all")
	keeper := ts.signIn("keeper", roleManage, userManage, datasetRead)
	c := ts.signInCheaply("ada")
	at2 := c
	at2.url = two.url
	script := ts.addToken("ada", "script", datasetRead, inboxRead)
	self := "/api/v1/users/" + c.must(200, "GET", mePath, nil).text("id")
	root.must(200, "POST", self+"/roles", map[string]string{"role": "member"})
	c, _ = ts.client().login("ada", testPassword)
	at2.token = c.token
	all := []client{c, at2, script}
	check := func(status int) {
		t.Helper()
		for i, c := range all {
			a := c.do("GET", "/api/v1/datasets", nil)
			if a.status != status || status == 403 && a.text("code") != "second_factor_missing" {
				t.Errorf("%d: %s", i, a.body)
			}
			if a := c.do("GET", verifyPath+"?permission=dataset.read", nil); status == 200 && a.status != 204 || status == 403 && a.status != 403 {
				t.Errorf("%d: %d %s", i, a.status, a.body)
			}
			c.must(200, "GET", "/api/v1/inbox", nil)
		}
	}
	check(200)
	member := "/api/v1/roles/2"
	require := func(is bool) map[string]bool { return map[string]bool{"requires_second_factor": is} }
	ts.addUser("boss", "all")
	ts.exec(`INSERT INTO user_roles SELECT id, 2 FROM users WHERE username = 'boss'`)
	keeper.refused(403, "grant_exceeds_own", "PATCH", member, require(true)) // an administrator holds it
	keeper.must(200, "PATCH", member, require(false))
	root.must(200, "PATCH", member, require(true))
	if role := keeper.must(200, "GET", member, nil); role.json["requires_second_factor"] != true {
		t.Errorf("%s", role.body)
	}
	keeper.refused(403, "grant_exceeds_own", "PATCH", member, require(false))
	keeper.must(200, "PATCH", member, map[string]any{"requires_second_factor": nil, "description": "People."})
	check(403)
	c.refused(403, "second_factor_missing", "GET", "/api/v1/users", nil)
	if me := c.must(200, "GET", mePath, nil); me.json["second_factor_required"] != true || fmt.Sprint(me.json["permissions"]) != "[inbox.read]" {
		t.Errorf("%s", me.body)
	}
	c.refused(403, "second_factor_missing", "GET", verifyPath, nil)
	narrow := ts.addToken("ada", "narrow", datasetRead)
	narrow.refused(403, "token_scope", "GET", "/api/v1/inbox", nil) // a second factor would not help
	if a := c.must(204, "GET", verifyPath+"?permission="+inboxRead, nil); a.header.Get("X-Cairn-Permissions") != inboxRead {
		t.Errorf("X-Cairn-Permissions is %q", a.header.Get("X-Cairn-Permissions"))
	}
	c.refused(403, "grant_exceeds_own", "POST", tokensPath, map[string]any{"name": "more", "permissions": []string{datasetRead}, "current_password": testPassword})
	phone, _ := c.enrol(clock)
	check(200)
	if me := c.must(200, "GET", mePath, nil); me.json["second_factor_required"] != true || me.json["totp"] != true {
		t.Errorf("%s", me.body)
	}
	c.must(204, "DELETE", totpPath, map[string]string{"current_password": testPassword, "otp": phone.code(0)})
	check(403)
	c.enrol(clock)
	check(200)
	if said, err := ts.command("user", "reset-totp", "ada"); err != nil || !strings.Contains(said, "ada") {
		t.Error(said, err)
	}
	check(403)
	// Reassigning a role neither lifts the requirement nor brings it.
	strict := keeper.must(201, "POST", "/api/v1/roles", map[string]any{"name": "strict", "permissions": []string{}, "requires_second_factor": true})
	loose := keeper.must(201, "POST", "/api/v1/roles", map[string]any{"name": "loose", "permissions": []string{}})
	path := func(role answer) string { return fmt.Sprint("/api/v1/roles/", role.number("id")) }
	ts.exec(`INSERT INTO user_roles SELECT u.id, r.id FROM users u, roles r WHERE u.username = 'boss' AND r.name IN ('strict', 'loose')`)
	keeper.refused(403, "grant_exceeds_own", "DELETE", path(strict)+"?reassign=loose", nil)
	keeper.refused(403, "grant_exceeds_own", "DELETE", path(loose)+"?reassign=strict", nil)
	root.must(204, "DELETE", path(strict)+"?reassign=loose", nil)
	root.must(200, "PATCH", member, require(false))
	c.refused(401, "invalid_token", "GET", mePath, nil) // a change that gives permissions ends sessions
	all[1].refused(401, "invalid_token", "GET", mePath, nil)
	all = []client{script}
	check(200)
}

// TestAdminRequiresSecondFactor: the role admin can require a second factor, and nothing else of it can change. Its holders are
// administrators still, also the last one of them, and the operator can remove a lost factor.
func TestAdminRequiresSecondFactor(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	root := ts.signIn("root", "all")
	self := "/api/v1/users/" + root.must(200, "GET", mePath, nil).text("id")
	script := ts.addToken("root", "script", builtInNames()...)
	for _, body := range []string{`{"requires_second_factor":true,"description":"d"}`, `{"requires_second_factor":true,"permissions":[]}`, `{"requires_second_factor":true,"name":"boss"}`} {
		root.refused(409, "role_built_in", "PATCH", "/api/v1/roles/1", body)
	}
	root.must(200, "PATCH", "/api/v1/roles/1", map[string]bool{"requires_second_factor": true})
	root.refused(403, "second_factor_missing", "GET", "/api/v1/users", nil)
	script.refused(403, "second_factor_missing", "GET", "/api/v1/users", nil)
	root.refused(403, "second_factor_missing", "PATCH", "/api/v1/roles/1", map[string]bool{"requires_second_factor": false})
	_, err := ts.command("user", "disable", "root")
	checkError(t, "error of disabling the last administrator who can sign in", err, "This would leave no administrator who can sign in. Make another one first.")
	root.enrol(clock)
	root.must(200, "GET", "/api/v1/users", nil)
	script.must(200, "GET", "/api/v1/users", nil)
	own := root.refused(403, "use_own_route", "DELETE", self+"/totp", nil)
	checkHas(t, "detail", own.text("detail"), "DELETE /api/v1/auth/passkeys/{id}")
	script.refused(403, "use_own_route", "DELETE", self+"/totp", nil)

	// user.manage removes the second factor of those who hold no more.
	helper := ts.signIn("helper", userManage, datasetRead)
	c := ts.signInCheaply("ada")
	other := "/api/v1/users/" + c.must(200, "GET", mePath, nil).text("id")
	helper.must(204, "DELETE", other+"/totp", nil) // there is none
	phone, recovery := c.enrol(clock)
	helper.refused(403, "grant_exceeds_own", "DELETE", self+"/totp", nil)
	helper.refused(412, "stale", "DELETE", other+"/totp", nil, `If-Match: "old"`)
	helper.must(204, "DELETE", other+"/totp", nil)
	if a := ts.client().loginOTP("ada", testPassword, "", "198.51.100.1"); a.status != 200 {
		t.Errorf("%s", a.body)
	}
	again := c.begin(clock) // what was removed is of no use any more
	c.refused(403, "otp_invalid", "POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)})
	c.must(200, "POST", totpPath+"/confirm", map[string]string{"otp": again.code(0)})
	if a := ts.client().loginOTP("ada", testPassword, recovery[0], "198.51.100.1"); a.status != 401 {
		t.Errorf("%s", a.body)
	}
	if _, err := ts.command("user", "reset-totp", "root"); err != nil {
		t.Error(err)
	}
	root.refused(403, "second_factor_missing", "GET", "/api/v1/users", nil)
	check(t, "removals in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'totp.disable' AND actor IN ('helper', 'operator')`), 2)
	check(t, "changes that tell what the role requires", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'role.update' AND before->>'requires_second_factor' = 'false' AND after->>'requires_second_factor' = 'true'`), 1)
	// A user who is disabled is not asked for a code.
	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'ada'`)
	if a := ts.client().loginOTP("ada", testPassword, "", "198.51.100.1"); a.text("code") != "account_disabled" {
		t.Errorf("%s", a.body)
	}
}

// TestRequirementIsCovered: whoever changes whether a user needs a second factor, by whatever route, must hold what the
// user would hold with one. To hold what the changed roles give is not enough, and more is not needed.
func TestRequirementIsCovered(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	lesser := ts.signIn("lesser", userManage, roleManage, datasetRead)
	peer := ts.signIn("peer", userManage, roleManage, datasetRead, auditRead)
	ts.exec(`INSERT INTO roles (name, requires_second_factor) VALUES ('guarded', true)`)

	// Each user holds audit.read by one role, and dataset.read by the role that is changed.
	type target struct{ user, userPath, role, rolePath, other string }
	cases := map[string]struct {
		isRequired bool // by the role, before the change
		change     func(c client, x target) answer
	}{
		"all roles of the user replaced": {true, func(c client, x target) answer {
			return c.do("PUT", x.userPath+"/roles", map[string]any{"roles": []string{"only-" + x.user, x.other}})
		}},
		"the role taken from the user": {true, func(c client, x target) answer {
			return c.do("DELETE", x.userPath+"/roles/"+x.role, nil)
		}},
		"the requirement taken from the role": {true, func(c client, x target) answer {
			return c.do("PATCH", x.rolePath, map[string]any{"requires_second_factor": false})
		}},
		"the role removed for another": {true, func(c client, x target) answer {
			return c.do("DELETE", x.rolePath+"?reassign="+x.other, nil)
		}},
		"a role that requires it given to the user": {false, func(c client, x target) answer {
			return c.do("POST", x.userPath+"/roles", map[string]any{"role": "guarded"})
		}},
		"the requirement given to the role": {false, func(c client, x target) answer {
			return c.do("PATCH", x.rolePath, map[string]any{"requires_second_factor": true})
		}},
		"the role removed for one that requires it": {false, func(c client, x target) answer {
			return c.do("DELETE", x.rolePath+"?reassign=guarded", nil)
		}},
	}
	users := 0
	for what, tt := range cases {
		users++
		t.Run(what, func(t *testing.T) {
			x := target{user: fmt.Sprint("user", users)}
			x.role, x.other = "first-of-"+x.user, "other-of-"+x.user
			id := ts.addUser(x.user, auditRead)
			ts.exec(`INSERT INTO roles (name, requires_second_factor) VALUES ($1, $2), ($3, false)`, x.role, tt.isRequired, x.other)
			ts.exec(`INSERT INTO role_permissions SELECT id, 'dataset.read' FROM roles WHERE name IN ($1, $2)`, x.role, x.other)
			ts.exec(`INSERT INTO user_roles SELECT $1, id FROM roles WHERE name = $2`, id, x.role)
			x.userPath = "/api/v1/users/" + id
			x.rolePath = fmt.Sprint("/api/v1/roles/", ts.queryInt(`SELECT id FROM roles WHERE name = $1`, x.role))
			owner, _ := ts.client().login(x.user, testPassword)

			if got := tt.change(lesser, x); got.status != 403 || got.text("code") != "grant_exceeds_own" {
				t.Errorf("without audit.read: got %d %s, want 403 grant_exceeds_own", got.status, got.body)
			}
			if got := owner.do("GET", "/api/v1/audit", nil).status == 403; got != tt.isRequired {
				t.Errorf("after the refusal: the user lacks a second factor: got %v, want %v", got, tt.isRequired)
			}
			if got := tt.change(peer, x); got.status > 204 {
				t.Errorf("with the permissions of the user: got %d %s, want a success", got.status, got.body)
			}
			owner, _ = ts.client().login(x.user, testPassword)
			if got := owner.do("GET", "/api/v1/audit", nil).status == 403; got == tt.isRequired {
				t.Errorf("after the change: the user lacks a second factor: got %v, want %v", got, !tt.isRequired)
			}
		})
	}
}

// TestLiftRacesEnrolment: a requirement is lifted while its user enrols. Either the user had enrolled before, and keeps the
// session, or the session ends and the enrolment fails. No session without a code survives the gain.
func TestLiftRacesEnrolment(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	root := ts.signIn("root", "all")
	strict := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "strict", "permissions": []string{datasetManage}, "requires_second_factor": true})
	for i := range 15 {
		name := fmt.Sprint("user", i)
		c := ts.signInCheaply(name)
		user := "/api/v1/users/" + c.must(200, "GET", mePath, nil).text("id")
		root.must(200, "POST", user+"/roles", map[string]string{"role": "strict"})
		c, _ = ts.client().login(name, testPassword)
		phone := c.begin(clock)

		var wg sync.WaitGroup
		var enrolled answer
		wg.Go(func() {
			enrolled = c.do("POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)})
		})
		lifted := root.do("DELETE", user+"/roles/"+strict.text("name"), nil)
		wg.Wait()

		isLive := c.do("GET", mePath, nil).status == 200
		if lifted.status != 200 || enrolled.status != 200 && enrolled.status != 401 {
			t.Errorf("lifted: %d, enrolled: %d %s", lifted.status, enrolled.status, enrolled.body)
		}
		if isEnrolled := enrolled.status == 200; isLive != isEnrolled {
			t.Errorf("the session is live: got %v, want %v as the enrolment", isLive, isEnrolled)
		}
	}
}

// TestRequirementLifted: a user who lacks a required second factor holds nothing. A change that lifts the requirement gives
// permissions, and so ends the user's sessions and password token, as every such change does.
func TestRequirementLifted(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	strict := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "strict", "permissions": []string{}, "requires_second_factor": true}).header.Get("Location")
	for name, lift := range map[string]func(user string, roles []any){
		"patched": func(string, []any) { root.must(200, "PATCH", strict, map[string]any{"requires_second_factor": false}) },
		"taken":   func(user string, _ []any) { root.must(200, "DELETE", user+"/roles/strict", nil) },
		"set":     func(user string, roles []any) { root.must(200, "PUT", user+"/roles", map[string]any{"roles": roles}) },
	} {
		root.must(200, "PATCH", strict, map[string]any{"requires_second_factor": true})
		c := ts.signIn(name, datasetRead)
		me := c.must(200, "GET", mePath, nil)
		user, roles := "/api/v1/users/"+me.text("id"), me.json["roles"].([]any)
		root.must(200, "PUT", user+"/roles", map[string]any{"roles": append(slices.Clone(roles), "strict")})
		token := root.must(201, "POST", user+"/password-reset", nil).text("password_token")
		c, _ = ts.client().login(name, testPassword)
		c.refused(403, "second_factor_missing", "GET", "/api/v1/datasets", nil)
		lift(user, roles)
		c.refused(401, "invalid_token", "GET", mePath, nil)
		ts.client().refused(401, "password_token_invalid", "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": testPassword + "2"})
	}
}
