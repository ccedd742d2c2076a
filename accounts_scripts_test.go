package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestOneRole: a role is given to a user and taken away by its name, under the subset rule; users and roles are found by
// their exact name.
func TestOneRole(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	root, path := x.root, x.path
	found := func(list, field string) (names string) {
		for _, item := range root.must(200, "GET", "/api/v1/"+list, nil).items() {
			names += fmt.Sprint(item[field], " ")
		}
		return names
	}
	for _, name := range []string{"ada", "ADA"} {
		check(t, "users named "+name, found("users?username="+name, "username"), "ada ")
	}
	x.addUser("ad")
	check(t, "a name of two letters", found("users?username=ad&role=only-ad&status=active", "username"), "ad ")
	check(t, "a pattern", found("users?username=a%25", "username"), "")
	check(t, "role", found("roles?name=Keeper", "name"), "keeper ")
	check(t, "part of a role", found("roles?name=keep", "name"), "")
	roles := func(want string, a answer) {
		t.Helper()
		check(t, "roles", fmt.Sprint(a.json["roles"]), want)
		check(t, "there is no ETag", a.header.Get("ETag") == "", false)
	}
	roles("[keeper member]", root.must(200, "POST", path+"/roles", map[string]string{"role": "Member"}))
	roles("[keeper member]", root.must(200, "POST", path+"/roles", map[string]string{"role": "member"}))
	roles("[member]", root.must(200, "DELETE", path+"/roles/keeper", nil))
	root.refused(404, "not_found", "DELETE", path+"/roles/keeper", nil)
	root.refused(404, "not_found", "DELETE", path+"/roles/%00", nil)
	root.refused(422, "invalid", "POST", path+"/roles", map[string]string{"role": "captain"})
	root.refused(422, "invalid", "POST", path+"/roles", map[string]string{"role": "a\x00"})
	root.refused(422, "invalid", "POST", path+"/roles", map[string]string{})
	manager := x.signIn("manager", userManage, datasetRead)
	manager.refused(403, "grant_exceeds_own", "POST", path+"/roles", map[string]string{"role": "admin"})
	manager.refused(403, "grant_exceeds_own", "POST", path+"/roles", map[string]string{"role": "keeper"})
	rootPath := "/api/v1/users/" + root.must(200, "GET", mePath, nil).text("id")
	manager.refused(403, "grant_exceeds_own", "DELETE", rootPath+"/roles/admin", nil)
	root.refused(409, "last_administrator", "DELETE", rootPath+"/roles/admin", nil)
	check(t, "audited changes of roles", x.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'user.roles' AND target = 'user:ada'`), 2)
}

// TestEndOne: a manager of users ends one session or one API token of a user, and no other's.
func TestEndOne(t *testing.T) {
	t.Parallel()
	x := startAdministration(t)
	root, path := x.root, x.path
	another, _ := x.client().login("ada", testPassword)
	one, two := x.addToken("ada", "one", datasetRead), x.addToken("ada", "two", datasetRead)
	sessionID, tokenID := another.credentialID(), one.credentialID()
	bob := x.signIn("bob", datasetRead)
	root.refused(404, "not_found", "DELETE", path+"/sessions/"+bob.credentialID(), nil)
	root.refused(404, "not_found", "DELETE", path+"/tokens/"+sessionID, nil)
	root.refused(404, "not_found", "DELETE", path+"/tokens/none", nil)
	root.must(204, "DELETE", path+"/sessions/"+sessionID, nil)
	root.must(204, "DELETE", path+"/tokens/"+tokenID, nil)
	root.refused(404, "not_found", "DELETE", path+"/tokens/"+tokenID, nil)
	another.refused(401, "invalid_token", "GET", mePath, nil)
	one.refused(401, "invalid_token", "GET", mePath, nil)
	x.ada.must(200, "GET", mePath, nil)
	two.must(200, "GET", mePath, nil)
	bob.must(200, "GET", mePath, nil)

	x.exec(`UPDATE api_tokens SET expires_at = now() + interval '1 minute' WHERE name = 'two'`)
	x.addToken("root", "three", datasetRead)
	tokens := root.must(200, "GET", "/api/v1/tokens?limit=1", nil)
	next := root.must(200, "GET", "/api/v1/tokens?limit=1&cursor="+tokens.text("next_cursor"), nil)
	first := onlyItem(t, "tokens of the first page", tokens.items())
	check(t, "first token", first["name"], "two")
	check(t, "its owner", first["username"], "ada")
	second := onlyItem(t, "tokens of the second page", next.items())
	check(t, "second token", second["name"], "three")
	check(t, "its owner", second["username"], "root")
	check(t, "next_cursor of the second page", next.json["next_cursor"], nil)
}

// TestUnreadBy: the sender of a message sees which recipients who can sign in have not read it, and can delete it for good.
func TestUnreadBy(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author, reader := ts.signIn("author", adminSystemMessage), ts.signIn("reader")
	ts.addUser("slow")
	ts.addUser("robot")
	ts.exec(`UPDATE users SET password_hash = NULL WHERE username = 'robot'`)
	ts.addUser("gone")
	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'gone'`)
	id := author.publish("Read this")
	path := fmt.Sprintf("/api/v1/system-messages/%d", id)
	reader.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", id), nil)
	m := author.must(200, "GET", path, nil)
	check(t, "recipients", m.number("recipients"), 3)
	check(t, "readers", m.number("readers"), 1)
	first := author.must(200, "GET", path+"/unread-by?limit=1", nil)
	second := author.must(200, "GET", path+"/unread-by?limit=1&cursor="+first.text("next_cursor"), nil)
	check(t, "first of unread-by", onlyItem(t, "first page", first.items())["username"], "author")
	check(t, "second of unread-by", onlyItem(t, "second page", second.items())["username"], "slow")
	check(t, "next_cursor of the second page", second.json["next_cursor"], nil)
	reader.refused(403, "permission_missing", "GET", path+"/unread-by", nil)
	author.refused(404, "not_found", "GET", "/api/v1/system-messages/999/unread-by", nil)

	author.refused(422, "invalid", "DELETE", path+"?permanently=yes", nil)
	author.must(204, "DELETE", path+"?permanently=false", nil)
	author.must(200, "GET", path, nil)
	author.must(204, "DELETE", path+"?permanently=true", nil)
	author.refused(404, "not_found", "GET", path, nil)
	author.refused(404, "not_found", "DELETE", path+"?permanently=true", nil)
	check(t, "rows of the deletion", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'message.delete' AND before->>'title' = 'Read this'`), 1)
}

// TestListsAsJSON: every listing command prints JSON, one object a line, with --json.
func TestListsAsJSON(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead, adminSystemMessage)
	author, _ := ts.client().login("ada", testPassword)
	author.publish("One")
	cairn := func(args ...string) string {
		t.Helper()
		var out lockedBuffer
		if err := run(context.Background(), args, ts.env, nil, &out, &out); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	cairn("token", "create", "ada", "script", "--permissions", datasetRead)
	for command, field := range map[string]string{
		"user list": "username", "role list": "name", "message list": "title", "token list ada": "permissions", "keys list": "fingerprint", "routes": "access",
	} {
		lines := strings.Split(strings.TrimSpace(cairn(append(strings.Fields(command), "--json")...)), "\n")
		for _, line := range lines {
			var object map[string]any
			check(t, command+": error of "+line, json.Unmarshal([]byte(line), &object), nil)
			check(t, command+": "+field+" is missing in "+line, object[field] == nil, false)
		}
	}
}
