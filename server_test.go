package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBadRequests: each kind of bad request is answered with its own status and code, as problem details.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	const register, messages = "/api/v1/auth/register", "/api/v1/system-messages"
	ok := `{"title":"t","body":"b"}`
	for _, test := range []struct {
		name         string
		status       int
		code         string
		method, path string
		body         any
		headers      []string
	}{
		{"unknown path", 404, "not_found", "GET", "/nowhere", nil, nil},
		{"path with a slash at the end", 404, "not_found", "GET", "/api/v1/ping/", nil, nil},
		{"path that is not clean", 404, "not_found", "GET", "/api//v1/ping", nil, nil},
		{"path with dots", 404, "not_found", "GET", "/api/v1/x/../ping", nil, nil},
		{"wrong method", 405, "method_not_allowed", "DELETE", "/api/v1/ping", nil, nil},
		{"invented method", 405, "method_not_allowed", "BREW", "/api/v1/ping", nil, nil},
		{"id that is no number", 404, "not_found", "GET", messages + "/one", nil, nil},
		{"id with a sign", 404, "not_found", "GET", messages + "/+1", nil, nil},
		{"id too large", 404, "not_found", "GET", messages + "/99999999999999999999", nil, nil},
		{"malformed JSON", 400, "malformed_json", "POST", messages, `{"title":`, nil},
		{"JSON that is no object", 400, "malformed_json", "POST", messages, `["title"]`, nil},
		{"null", 400, "malformed_json", "POST", messages, `null`, nil},
		{"empty body", 400, "malformed_json", "POST", messages, ``, nil},
		{"bytes that are not UTF-8", 400, "malformed_json", "POST", messages, "{\"title\":\"\xff\"}", nil},
		{"a body of many parts", 400, "malformed_json", "POST", register, `{"username":[` + strings.Repeat("0,", maxListItems) + `0]}`, nil},
		{"deep nesting", 400, "malformed_json", "POST", messages, strings.Repeat(`{"a":`, 1000), nil},
		{"unknown field", 400, "unknown_field", "POST", messages, `{"title":"t","body":"b","colour":"red"}`, nil},
		{"field in another case", 400, "unknown_field", "POST", messages, `{"Title":"t","body":"b"}`, nil},
		{"field that folds to ours", 400, "unknown_field", "POST", messages, `{"title":"t","body":"b","\u017feverity":"info"}`, nil},
		{"field twice", 400, "duplicate_field", "POST", messages, `{"title":"t","title":"u","body":"b"}`, nil},
		{"trailing data", 400, "trailing_data", "POST", messages, ok + ok, nil},
		{"trailing brace", 400, "trailing_data", "POST", messages, ok + "}", nil},
		{"wrong type", 400, "wrong_type", "POST", messages, `{"title":7,"body":"b"}`, nil},
		{"no content type", 415, "unsupported_media_type", "POST", messages, ok, []string{"Content-Type: "}},
		{"form", 415, "unsupported_media_type", "POST", messages, "title=t", []string{"Content-Type: application/x-www-form-urlencoded"}},
		{"other charset", 415, "unsupported_media_type", "POST", messages, ok, []string{"Content-Type: application/json; charset=latin1"}},
		{"2 MiB body", 413, "body_too_large", "POST", messages, `{"title":"` + strings.Repeat("x", 2<<20) + `"}`, nil},
		{"2 MiB body, not signed in", 413, "body_too_large", "POST", register, `{"username":"` + strings.Repeat("x", 2<<20) + `"}`, nil},
		{"unknown parameter", 400, "unknown_parameter", "GET", "/api/v1/users?page=2", nil, nil},
		{"parameter of a route without parameters", 400, "unknown_parameter", "GET", "/health?verbose=1", nil, nil},
		{"parameter twice", 400, "duplicate_parameter", "GET", "/api/v1/users?limit=1&limit=2", nil, nil},
		{"malformed query", 400, "malformed_query", "GET", "/api/v1/users?limit=%zz", nil, nil},
		{"NUL in a parameter", 400, "malformed_query", "GET", "/api/v1/users?q=abc%00", nil, nil},
		{"parameter that is not UTF-8", 400, "malformed_query", "GET", "/api/v1/users?q=abc%ff", nil, nil},
		{"limit that is no number", 400, "wrong_type", "GET", "/api/v1/users?limit=ten", nil, nil},
		{"limit 0", 422, "invalid", "GET", "/api/v1/users?limit=0", nil, nil},
		{"limit 501", 422, "invalid", "GET", "/api/v1/users?limit=501", nil, nil},
		{"cursor of ours, by hand", 400, "invalid_cursor", "GET", "/api/v1/users?cursor=WyJhIl0.AAAA", nil, nil},
		{"q of two characters", 422, "invalid", "GET", "/api/v1/users?q=ab", nil, nil},
		{"unknown status", 422, "invalid", "GET", "/api/v1/users?status=dead", nil, nil},
		{"another site's page", 403, "cross_origin", "POST", "/api/v1/auth/logout", nil, []string{"Sec-Fetch-Site: cross-site"}},
		{"another origin", 403, "cross_origin", "POST", "/api/v1/auth/login", `{}`, []string{"Origin: https://evil.example"}},
		{"user name with a space", 422, "invalid", "POST", register, `{"username":"a b","password":"12345678"}`, nil},
		{"user name that looks like an address", 422, "invalid", "POST", register, `{"username":"a@b","password":"12345678"}`, nil},
		{"user name of one letter", 422, "invalid", "POST", register, `{"username":"a","password":"12345678"}`, nil},
		{"user name with NUL", 422, "invalid", "POST", register, `{"username":"ab\u0000","password":"12345678"}`, nil},
		{"short password", 422, "invalid", "POST", register, `{"username":"abc","password":"1234567"}`, nil},
		{"long password", 422, "invalid", "POST", register, `{"username":"abc","password":"` + strings.Repeat("x", 257) + `"}`, nil},
		{"malformed e-mail address", 422, "invalid", "POST", register, `{"username":"abc","password":"12345678","email":"abc"}`, nil},
		{"display name with a newline", 422, "invalid", "POST", register, `{"username":"abc","password":"12345678","display_name":"a\nb"}`, nil},
		{"display name with NUL", 422, "invalid", "POST", register, `{"username":"abc","password":"12345678","display_name":"a\u0000"}`, nil},
		{"login name with NUL", 401, "invalid_credentials", "POST", "/api/v1/auth/login", `{"username":"a\u0000@b","password":"12345678"}`, nil},
		{"empty title", 422, "invalid", "POST", messages, `{"title":" ","body":"b"}`, nil},
		{"empty body text", 422, "invalid", "POST", messages, `{"title":"t","body":"\n"}`, nil},
		{"title of two lines", 422, "invalid", "POST", messages, `{"title":"a\nb","body":"b"}`, nil},
		{"title written backwards", 422, "invalid", "POST", messages, `{"title":"a\u202eb","body":"b"}`, nil},
		{"name of the first administrator", 422, "invalid", "POST", register, `{"username":"Admin","password":"a long enough one"}`, nil},
		{"common password", 422, "invalid", "POST", register, `{"username":"abc","password":"Password1"}`, nil},
		{"own name as password", 422, "invalid", "POST", register, `{"username":"abcdefghi","password":"ABCDEFGHI"}`, nil},
		{"own address as password", 422, "invalid", "POST", register, `{"username":"abc","password":"abcdefgh@x.org","email":"abcdefgh@x.org"}`, nil},
		{"escape character", 422, "invalid", "POST", messages, `{"title":"t","body":"\u001b[2J"}`, nil},
		{"unknown severity", 422, "invalid", "POST", messages, `{"title":"t","body":"b","severity":"loud"}`, nil},
		{"wait too long", 422, "invalid", "GET", "/api/v1/datasets/1/analyses/1?wait=61s", nil, nil},
		{"wait that is no duration", 400, "wrong_type", "GET", "/api/v1/datasets/1/analyses/1?wait=soon", nil, nil},
		{"unknown file status", 422, "invalid", "GET", "/api/v1/datasets/1/files?status=fine", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := c
			c.t = t
			a := c.refused(test.status, test.code, test.method, test.path, test.body, test.headers...)
			if fields, _ := a.json["errors"].([]any); (test.status == 422) != (len(fields) > 0) {
				t.Errorf("errors name %d fields: %s", len(fields), a.body)
			}
			if test.status == 405 && !strings.Contains(a.header.Get("Allow"), "GET") {
				t.Errorf("Allow is %q", a.header.Get("Allow"))
			}
		})
	}
	if n := ts.queryInt(`SELECT (SELECT count(*) FROM system_messages) + (SELECT count(*) FROM users) - 2`); n != 0 {
		t.Errorf("%d rows were stored", n)
	}
}

// matrix holds the clients of TestAuthorizationMatrix.
type matrix struct {
	*testServer
	anonymous, reader, narrow client
	each, allBut              map[string]client // by permission: a user with it alone, and with all others. each[""] has none
	tokens                    map[string]client // by permission: an administrator's API token for it alone
	refused                   map[string]client // these get 401 everywhere
	fresh                     int               // targets so far
	next                      *matrixTarget     // of the request before, if that was refused
}

// matrixTarget is a request that succeeds for a caller who is allowed to send it.
type matrixTarget struct {
	route route
	path  string
	body  any
}

// newMatrix starts a service and signs everyone in.
func newMatrix(t *testing.T) *matrix {
	t.Helper()
	ts := startServer(t, nil)
	ts.core.cfg.baseURL = ts.url // with it there are passkeys
	m := &matrix{testServer: ts, anonymous: ts.client(), allBut: map[string]client{}, tokens: map[string]client{}, refused: map[string]client{}}
	m.each = map[string]client{"": ts.signIn("none", "unknown.permission")}
	for i, permission := range builtInNames() {
		m.each[permission] = ts.signIn(fmt.Sprintf("only%d", i), permission)
		others := slices.DeleteFunc(builtInNames(), func(p string) bool { return p == permission })
		m.allBut[permission] = ts.signIn(fmt.Sprintf("allbut%d", i), others...)
	}
	for _, status := range []string{"disabled", "pending"} {
		m.refused[status] = ts.signIn(status, "all")
		ts.exec(`UPDATE users SET status = $1 WHERE username = $1`, status)
	}
	m.refused["logged out"] = ts.signIn("loggedout", "all")
	m.refused["logged out"].must(204, "POST", "/api/v1/auth/logout", nil)
	m.refused["expired"] = ts.signIn("expired", "all")
	ts.exec(`UPDATE sessions SET expires_at = now() WHERE user_id = (SELECT id FROM users WHERE username = 'expired')`)

	m.reader = ts.signIn("reader", datasetRead)
	ts.addUser("scripted", "all")
	ts.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
	for _, permission := range append(builtInNames(), "wiki.edit") {
		m.tokens[permission] = ts.addToken("scripted", "only "+permission, permission)
	}
	m.narrow = ts.addToken("scripted", "narrow", metricsRead)
	m.refused["typo"] = m.narrow.as(m.narrow.token[:len(m.narrow.token)-1] + "x")
	m.refused["revoked"] = ts.addToken("scripted", "revoked", builtInNames()...)
	m.refused["outdated"] = ts.addToken("scripted", "outdated", builtInNames()...)
	m.refused["nonsense"] = m.anonymous.as("nonsense")
	ts.exec(`DELETE FROM api_tokens WHERE name = 'revoked'`)
	ts.exec(`UPDATE api_tokens SET expires_at = now() WHERE name = 'outdated'`)
	return m
}

// target returns the path and the body of a request that succeeds for a caller who is allowed to send it. Its objects
// are new, since some routes delete them.
func (m *matrix) target(rt route) (path string, body any) {
	m.t.Helper()
	if rt.isPage() {
		return m.pageTarget(rt)
	}
	m.fresh++
	name := fmt.Sprintf("set%d", m.fresh)
	m.exec(`UPDATE users SET totp = false`)
	m.exec(`DELETE FROM totp_secrets`)
	m.exec(`DELETE FROM passkeys`)
	if strings.HasPrefix(rt.path, passkeysPath) {
		return m.passkeyTarget(rt)
	}
	var phone *app
	for _, dir := range []string{name, "more" + name} {
		os.Mkdir(filepath.Join(m.datasets, dir), 0o755)
	}
	os.WriteFile(filepath.Join(m.datasets, name, "a.txt"), []byte("text"), 0o644)
	if strings.HasSuffix(rt.path, ".vrt") || strings.HasPrefix(rt.path, stacPath) || strings.HasSuffix(rt.path, "/relief.png") {
		os.WriteFile(filepath.Join(m.datasets, name, "a.tif"), terrainTIFF(0, 0, hills).build(), 0o644)
	}
	manager, analyst, author := m.each[datasetManage], m.each[datasetAnalyze], m.each[adminSystemMessage]
	dataset := manager.must(201, "POST", "/api/v1/datasets", map[string]string{"name": name, "path": name}).header.Get("Location")
	path = strings.Replace(rt.path, "/api/v1/datasets/{id}", dataset, 1)
	path = strings.Replace(path, "/collections/{id}", "/collections"+strings.TrimPrefix(dataset, "/api/v1/datasets"), 1)
	switch {
	case strings.HasPrefix(path, "/api/v1/users/{id}"):
		path = strings.Replace(path, "{id}", m.addUser("target"+name), 1)
		if strings.HasSuffix(path, "{session}") || strings.HasSuffix(path, "{token}") {
			session, _ := m.client().login("target"+name, testPassword)
			token := m.addToken("target"+name, "t", datasetRead)
			path = strings.NewReplacer("{session}", session.credentialID(), "{token}", token.credentialID()).Replace(path)
		}
		path = strings.Replace(path, "{name}", "only-target"+name, 1)
	case strings.HasPrefix(path, "/api/v1/roles/{id}"):
		role := m.each[roleManage].must(201, "POST", "/api/v1/roles", map[string]any{"name": "role-" + name, "permissions": []string{}})
		path = strings.Replace(path, "{id}", fmt.Sprint(role.number("id")), 1)
	case strings.HasPrefix(path, totpPath+"/"):
		phone = m.reader.begin(&testClock{})
	case rt.method == "DELETE" && path == totpPath:
		clock := &testClock{}
		clock.start.Do(func() {})        // the service has the clock of the machine
		phone, _ = m.reader.enrol(clock) // which is a step ahead now
	case strings.HasPrefix(path, "/api/v1/permissions/{name}"):
		m.each[roleManage].must(201, "POST", "/api/v1/permissions", map[string]string{"name": "p." + name, "meaning": "A test."})
		path = strings.Replace(path, "{name}", "p."+name, 1)
	case path == "/api/v1/auth/sessions/{id}":
		another, _ := m.client().login("reader", testPassword)
		path = strings.Replace(path, "{id}", another.credentialID(), 1)
	case path == "/api/v1/auth/tokens/{id}":
		path = strings.Replace(path, "{id}", m.addToken("reader", "t"+name, datasetRead).credentialID(), 1)
	case strings.Contains(path, "{analysis}") || strings.Contains(path, "{file}") || strings.Contains(path, "{path...}") || strings.HasSuffix(path, ".vrt"):
		run := analyst.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
		m.each[datasetRead].finished(run)
		_, analysis, _ := strings.Cut(run, "/analyses/")
		file := m.each[datasetRead].must(200, "GET", dataset+"/files", nil).items()[0]["id"]
		path = strings.NewReplacer("{analysis}", analysis, "{file}", fmt.Sprint(file), "{path...}", "a.txt").Replace(path)
	case strings.HasSuffix(path, "/{z}/{x}/{y}"):
		path = strings.TrimSuffix(path, "{z}/{x}/{y}") + "1/0/0.png"
	case path == dataset+"/relief.png":
		path += "?bbox=7,46,8,47"
	case strings.HasSuffix(path, "/elevation") && rt.method == "GET":
		path += "?point=7,46"
	case strings.HasSuffix(path, "/{dataset}"):
		path = strings.Replace(path, "{dataset}", dataset[strings.LastIndex(dataset, "/")+1:], 1)
		if rt.method == "GET" {
			path += "?locations=46,7"
		}
	case strings.HasSuffix(path, "/compare"):
		other := manager.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "more" + name, "path": "more" + name})
		for _, location := range []string{dataset, other.header.Get("Location")} {
			run := analyst.must(202, "POST", location+"/analyses", nil).header.Get("Location")
			m.each[datasetRead].finished(run)
		}
		path += fmt.Sprint("?with=", other.number("id"))
	case strings.Contains(path, "{code}"):
		path = strings.Replace(path, "{code}", "duplicate", 1)
	case strings.Contains(path, "{accepted}"):
		accepted := manager.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "missing", "note": "sea"})
		path = strings.Replace(path, "{accepted}", fmt.Sprint(accepted.items()[0]["id"]), 1)
	}
	otp := ""
	if phone != nil {
		otp = phone.code(0)
	}
	message := author.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"}).number("id")
	path = strings.Replace(path, "{id}", fmt.Sprint(message), 1)
	return path, map[string]any{
		"POST /api/v1/auth/register":                   map[string]string{"username": "new" + name, "password": testPassword},
		"POST /api/v1/auth/login":                      map[string]string{"username": "none", "password": testPassword},
		"POST /api/v1/auth/password-reset":             map[string]string{"token": "x", "new_password": testPassword},
		"POST /api/v1/system-messages":                 map[string]string{"title": "t", "body": "b"},
		"PATCH /api/v1/system-messages/{id}":           map[string]string{"title": "u"},
		"POST /api/v1/inbox/read":                      map[string]any{"ids": []int{message}},
		"PATCH /api/v1/auth/me":                        map[string]string{"display_name": "new"},
		"POST /api/v1/auth/totp":                       map[string]string{"current_password": testPassword},
		"POST /api/v1/auth/totp/confirm":               map[string]string{"otp": otp},
		"DELETE /api/v1/auth/totp":                     map[string]string{"current_password": testPassword, "otp": otp},
		"PUT /api/v1/auth/password":                    map[string]string{"current_password": testPassword, "new_password": testPassword},
		"POST /api/v1/auth/tokens":                     map[string]any{"name": name, "permissions": []string{datasetRead}, "current_password": testPassword},
		"POST /api/v1/users":                           map[string]any{"username": "new" + name, "roles": []string{}},
		"PATCH /api/v1/users/{id}":                     map[string]string{"display_name": "new"},
		"PUT /api/v1/users/{id}/roles":                 map[string]any{"roles": []string{}},
		"POST /api/v1/permissions":                     map[string]any{"name": "q." + name, "meaning": "A test."},
		"PATCH /api/v1/permissions/{name}":             map[string]any{"meaning": "Another test."},
		"POST /api/v1/roles":                           map[string]any{"name": "new" + name, "permissions": []string{}},
		"PATCH /api/v1/roles/{id}":                     map[string]string{"description": "new"},
		"POST /api/v1/datasets":                        map[string]string{"name": "more" + name, "path": "more" + name},
		"PATCH /api/v1/datasets/{id}":                  map[string]string{"description": "d"},
		"PATCH /api/v1/datasets/{id}/expectation":      map[string]string{"posting": "1"},
		"POST /api/v1/datasets/{id}/analyses":          map[string]bool{"force": true},
		"POST /api/v1/datasets/{id}/accepted-findings": map[string]string{"code": "missing", "note": "sea"},
		"POST /api/v1/users/{id}/roles":                map[string]any{"role": "only-target" + name},
		"POST /api/v1/stac/search":                     map[string]any{"limit": 1},
		"POST /api/v1/elevation":                       map[string]any{"points": [][2]float64{{7, 46}}},
		"POST /api/v1/elevation/v1/{dataset}":          map[string]string{"locations": "46,7"},
	}[rt.method+" "+rt.path]
}

// passkeyTarget is target for the routes of passkeys.
func (m *matrix) passkeyTarget(rt route) (path string, body any) {
	m.t.Helper()
	key := m.newAuthenticator()
	switch rt.method {
	case "POST":
		return rt.path, m.reader.newPasskey(key, "")
	case "DELETE":
		id := m.reader.addPasskey(key)
		return passkeysPath + "/" + id, map[string]string{"current_password": testPassword, "otp": key.answer(m.reader, "get")}
	}
	return rt.path, nil
}

// check sends a request to a route as a client, in a subtest that is named after the client. status 200 stands for every
// status of success; code may be empty. Each request that is let in uses up its target. A refused one changes nothing, so
// the next request has the same target.
func (m *matrix) check(t *testing.T, rt route, as string, c client, status int, code string) {
	t.Run(as, func(t *testing.T) {
		if m.next == nil || m.next.route.method != rt.method || m.next.route.path != rt.path {
			path, body := m.target(rt)
			m.next = &matrixTarget{rt, path, body}
		}
		a := c.do(rt.method, m.next.path, m.next.body, m.headers(rt)...)
		if a.status < 400 {
			m.next = nil
		}
		good := a.status == status && (code == "" || a.text("code") == code)
		if status == 200 {
			good = a.status/100 == 2 || rt.isPage() && a.status == 303
		}
		if !good {
			t.Errorf("status %d, want %d %s: %s", a.status, status, code, a.body)
		}
		if status == 401 && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("WWW-Authenticate is %q", a.header.Get("WWW-Authenticate"))
		}
	})
}

// TestAuthorizationMatrix walks the route table. Nobody gets in without signing in, nor with all permissions but the one
// that the route asks for. With that one alone everyone gets in. An administrator's API token for a single permission
// gets in where the route asks for just that.
func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	for _, rt := range m.routes() {
		t.Run(rt.method+" "+rt.path, func(t *testing.T) {
			check := func(as string, c client, status int, code string) { m.check(t, rt, as, c, status, code) }
			switch rt.who {
			case public:
				if rt.path == "/api/v1/auth/password-reset" || rt.path == "/set-password" && rt.method == "POST" {
					check("anonymous", m.anonymous, 401, "password_token_invalid") // the handler refuses the token
				} else {
					check("anonymous", m.anonymous, 200, "")
				}
				return
			case refreshCookie:
				check("anonymous", m.anonymous, 401, "refresh_token_missing")
				check("without permission", m.each[""], 401, "refresh_token_missing")
				return
			case ownSession:
				check("session", m.reader, 200, "")
				for permission, token := range m.tokens {
					check("API token for "+permission, token, 403, "session_required")
				}
			case signedIn:
				check("session", m.reader, 200, "")
				for permission, token := range m.tokens {
					if rt.path == verifyPath {
						check("API token for "+permission, token, 403, "permission_required")
					} else {
						check("API token for "+permission, token, 200, "")
					}
				}
			default:
				if rt.who == inboxRead { // every user holds it
					check("without permission", m.each[""], 200, "")
				} else {
					check("without permission", m.each[""], 403, "permission_missing")
					check("all other permissions", m.allBut[string(rt.who)], 403, "permission_missing")
				}
				check("this permission alone", m.each[string(rt.who)], 200, "")
				for permission, token := range m.tokens {
					if rt.who == requirement(permission) {
						check("API token for "+permission, token, 200, "")
					} else {
						check("API token for "+permission, token, 403, "token_scope")
					}
				}
			}
			check("anonymous", m.anonymous, 401, "not_signed_in")
			for as, c := range m.refused {
				check(as, c, 401, "invalid_token")
			}
		})
	}
}

// TestPanic: a panic is answered with a 500 that does not show it. The log shows it.
func TestPanic(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) {
		o.started = func(s *server) {
			s.mux.HandleFunc("GET /panic", func(w http.ResponseWriter, r *http.Request) {
				answer := w.(*responseWriter)
				answer.routed = true
				if err := s.call(route{who: public, handler: func(http.ResponseWriter, *http.Request) error { panic("secret detail") }}, answer, r); err != nil {
					s.core.writeProblem(answer, err)
				}
			})
		}
	})
	a := ts.client().refused(500, "internal", "GET", "/panic", nil)
	if strings.Contains(string(a.body), "secret detail") || !strings.Contains(ts.log.String(), "secret detail") {
		t.Errorf("answer: %s\nlog: %s", a.body, ts.log)
	}
	ts.client().must(200, "GET", "/health", nil)
}

// TestPaging follows a list to its end by cursor and by Link: every item comes once and in order. A cursor is valid for
// its own list and filters only.
func TestPaging(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.exec(`INSERT INTO users (username, status) SELECT 'user' || lpad(n::text, 3, '0'), CASE WHEN n % 2 = 0 THEN 'active' ELSE 'disabled' END FROM generate_series(1, 120) n`)
	var names []string
	next := "/api/v1/users?limit=50"
	first := ""
	for next != "" {
		a := c.must(200, "GET", next, nil)
		for _, item := range a.items() {
			names = append(names, item["username"].(string))
		}
		link := a.header.Get("Link")
		if (a.json["next_cursor"] == nil) != (link == "") {
			t.Fatalf("next_cursor %v, Link %q", a.json["next_cursor"], link)
		}
		if first == "" {
			first = a.text("next_cursor")
		}
		next, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">")
	}
	if len(names) != 122 || !slices.IsSorted(names) || len(slices.Compact(names)) != 122 {
		t.Errorf("got %d names: %v", len(names), names)
	}
	c.refused(400, "invalid_cursor", "GET", "/api/v1/users?status=active&cursor="+first, nil)
	c.refused(400, "invalid_cursor", "GET", "/api/v1/datasets?cursor="+first, nil)
	if items := c.must(200, "GET", "/api/v1/users?status=disabled&limit=500", nil).items(); len(items) != 60 {
		t.Errorf("%d disabled users, want 60", len(items))
	}
	if items := c.must(200, "GET", "/api/v1/users?q=SER01", nil).items(); len(items) != 10 {
		t.Errorf("%d users with ser01, want 10", len(items))
	}
	if items := c.must(200, "GET", "/api/v1/users?q=%25_%25", nil).items(); len(items) != 0 {
		t.Errorf("%d users match a pattern as text", len(items))
	}
}

// TestProxies: forwarded addresses and request ids count only if a trusted proxy sends them.
func TestProxies(t *testing.T) {
	t.Parallel()
	plain := startServer(t, nil)
	a := plain.client().must(200, "GET", "/health", nil, "X-Request-Id: from-outside", "X-Forwarded-For: 203.0.113.9")
	if a.header.Get("X-Request-Id") == "from-outside" || strings.Contains(plain.log.String(), "203.0.113.9") {
		t.Errorf("an untrusted peer was believed: %s", plain.log)
	}
	if !strings.Contains(plain.log.String(), "CAIRN_TRUSTED_PROXIES") {
		t.Error("no warning of the likely mistake")
	}
	trusting := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32,10.0.0.0/8")
	a = trusting.client().must(200, "GET", "/health", nil, "X-Request-Id: from-proxy", "X-Forwarded-For: 198.51.100.1, 203.0.113.9, 10.1.2.3")
	id := a.header.Get("X-Request-Id")
	if id == "from-proxy" || !strings.Contains(trusting.log.String(), `"203.0.113.9","proxy_id":"from-proxy"}`) {
		t.Errorf("the id is %s, the log %s", id, trusting.log)
	}
	if !strings.Contains(trusting.log.String(), `"msg":"request","id":"`+id+`"`) {
		t.Errorf("the log has another id than the answer: %s", trusting.log)
	}
	trusting.client().must(200, "GET", "/health", nil, "X-Request-Id: bad id\"")
	trusting.client().must(200, "GET", "/health", nil)
	if n := strings.Count(trusting.log.String(), "proxy_id"); n != 1 {
		t.Errorf("%d log lines have the id of a proxy: %s", n, trusting.log)
	}

	// Whoever may choose the ids of audit rows could hide among others, or put rows in another's name.
	a = trusting.client().must(201, "POST", "/api/v1/auth/register", map[string]string{"username": "ada", "password": testPassword}, "X-Request-Id: chosen")
	if n := trusting.queryInt(`SELECT count(*) FROM audit_log WHERE request_id = $1`, a.header.Get("X-Request-Id")); n == 0 {
		t.Error("the audit log does not have the request's id")
	}
	if n := trusting.queryInt(`SELECT count(*) FROM audit_log WHERE request_id = 'chosen'`); n > 0 {
		t.Error("the audit log has an id that a client chose")
	}
}

// TestHealthWithoutDatabase: GET /health says that the database is gone. The service works again when it is back.
func TestHealthWithoutDatabase(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.client()
	c.must(200, "GET", "/health", nil)
	name := ts.db.Config().ConnConfig.Database
	if err := asSuperuser(`ALTER DATABASE `+name+` ALLOW_CONNECTIONS false`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+name+`'`); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		c.refused(503, "database_unavailable", "GET", "/health", nil)
		a := c.refused(503, "database_unavailable", "POST", "/api/v1/auth/login", map[string]string{"username": "ab", "password": "12345678"})
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	c.must(200, "GET", "/api/v1/ping", nil)
	if err := asSuperuser(`ALTER DATABASE ` + name + ` ALLOW_CONNECTIONS true`); err != nil {
		t.Fatal(err)
	}
	c.must(200, "GET", "/health", nil)
}

// TestShutdown: a request that was accepted before the stop is answered.
func TestShutdown(t *testing.T) {
	t.Parallel()
	started, proceed := make(chan bool), make(chan bool)
	ts := startServer(t, func(o *options) {
		o.started = func(s *server) {
			s.mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
				w.(*responseWriter).routed = true
				started <- true
				<-proceed
				fmt.Fprint(w, "done")
			})
		}
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /slow HTTP/1.1\r\nHost: cairn\r\n\r\n")
	<-started
	stopped := make(chan bool)
	go func() {
		ts.stop()
		close(stopped)
	}()
	<-ts.server.core.stopping.Done()
	proceed <- true
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 200 {
		t.Errorf("%v %v", response, err)
	}
	<-stopped
}

// TestShutdownWhileConnecting: a connection that was accepted before the stop is answered, even if its request was not
// complete then.
func TestShutdownWhileConnecting(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /api/v1/ping HTTP/1.1\r\nHost: cairn\r\n")
	ts.client().must(200, "GET", "/api/v1/ping", nil) // the connection before this one has been accepted
	stopped := make(chan bool)
	go func() {
		ts.stop()
		close(stopped)
	}()
	<-ts.server.core.stopping.Done()
	fmt.Fprintf(conn, "\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 200 {
		t.Errorf("%v %v", response, err)
	}
	<-stopped
}

// TestSchemaNewerThanProgram: a program does not start on a database with a newer schema, and leaves it unchanged.
func TestSchemaNewerThanProgram(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	config, err := databaseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDatabase(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if _, err := d.pool.Exec(context.Background(), `INSERT INTO schema_migrations (version) VALUES (999)`); err != nil {
		t.Fatal(err)
	}
	err = run(context.Background(), []string{"migrate"}, []string{"CAIRN_DATABASE_URL=" + url}, nil, &lockedBuffer{}, &lockedBuffer{})
	if err == nil || !strings.Contains(err.Error(), "newer than this program") {
		t.Errorf("got %v", err)
	}
}

// TestHeadIsLogged: a HEAD is logged with the status of its answer.
func TestHeadIsLogged(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	for _, path := range []string{"/health", "/", "/metrics", "/api/v1/users", "/api/v1/openapi.yaml", "/api/v1/nothing", "/api/v1/datasets/7"} {
		a := c.do("HEAD", path, nil)
		id, status := a.header.Get("X-Request-Id"), a.status
		waitFor(t, "the log", func() bool { return strings.Contains(ts.log.String(), id) })
		line := regexp.MustCompile(`.*` + id + `.*`).FindString(ts.log.String())
		if !strings.Contains(line, `"method":"HEAD"`) || !strings.Contains(line, fmt.Sprintf(`"status":%d`, status)) || status < 200 {
			t.Errorf("%s: %d is logged as %s", path, status, line)
		}
	}
}

// TestNotFoundNamesIt: a 404 names what is missing, on every route whose path has an id. Without a route it names the
// document that lists them.
func TestNotFoundNamesIt(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	c.addDataset("tiles") // 1
	ada := c.must(200, "GET", "/api/v1/auth/me", nil).text("id")
	const unknown = "5b2d2a7e-2f5b-4c0e-9a35-0f6c9f3f3f10"
	const none = "00000000-0000-0000-0000-000000000000"

	// The objects that routes name by their ids, in the order in which a request finds out that they are missing.
	bodies := map[string]any{
		"PATCH /api/v1/users/{id}":                     map[string]any{"display_name": "Bob"},
		"PUT /api/v1/users/{id}/roles":                 map[string]any{"roles": []string{}},
		"POST /api/v1/users/{id}/roles":                map[string]any{"role": "member"},
		"PATCH /api/v1/permissions/{name}":             map[string]any{"meaning": "edits"},
		"PATCH /api/v1/roles/{id}":                     map[string]any{"description": "text"},
		"PATCH /api/v1/system-messages/{id}":           map[string]any{"title": "text"},
		"PATCH /api/v1/datasets/{id}":                  map[string]any{"name": "text"},
		"POST /api/v1/datasets/{id}/accepted-findings": map[string]any{"code": "overlap", "note": "text"},
		"POST /api/v1/elevation/v1/{dataset}":          map[string]any{"locations": "46,7"},
		"DELETE /api/v1/auth/passkeys/{id}":            map[string]any{"current_password": testPassword},
	}
	kinds := map[string]string{"users": "user", "roles": "role", "permissions": "permission", "system-messages": "announcement",
		"inbox": "announcement", "datasets": "dataset", "collections": "dataset", "v1": "dataset", "sessions": "session", "tokens": "token", "passkeys": "passkey"}
	for _, rt := range apiRoutes(ts.server) {
		segment, rest, hasID := strings.Cut(strings.TrimPrefix(rt.path, "/api/v1/"), "/{")
		if !hasID {
			continue
		}
		segment = segment[strings.LastIndex(segment, "/")+1:]
		id := map[bool]string{true: unknown, false: "99"}[strings.Contains("users sessions tokens passkeys", segment)]
		if segment == "permissions" {
			id = "wiki.edit"
		}
		_, rest, _ = strings.Cut(rest, "}")
		path := strings.Split(rt.path, "/{")[0] + "/" + id
		rest = strings.NewReplacer("{name}", "member", "{session}", unknown, "{token}", unknown, "{analysis}", "7",
			"{file}", "3", "{code}", "overlap", "{accepted}", "5", "{path...}", "a.tif", "{z}/{x}/{y}", "2/1/1.png").Replace(rest)
		t.Run(rt.method+" "+rt.path, func(t *testing.T) {
			c := c
			c.t = t
			if rt.path == "/api/v1/system-messages/{id}/read" || rt.path == "/api/v1/inbox/{id}/read" {
				c.refused(404, "not_addressed", rt.method, path+rest, nil)
				return
			}
			a := c.refused(404, "not_found", rt.method, path+rest, bodies[rt.method+" "+rt.path])
			check(t, "detail", a.text("detail"), "No "+kinds[segment]+" "+id+".")
		})
	}

	for _, test := range []struct{ method, path, want string }{
		{"GET", "/datasets/x%01y", "No such dataset."},
		{"GET", "/users/bob", "No such user."},
		{"GET", "/users/" + none, "No such user."},
		{"POST", "/inbox/abc/read", "No such announcement."},
		{"DELETE", "/users/" + ada + "/roles/curator", "No role of ada called curator."},
		{"DELETE", "/users/" + ada + "/sessions/" + unknown, "No session " + unknown + "."},
		{"DELETE", "/users/" + ada + "/tokens/" + unknown, "No token " + unknown + "."},
		{"GET", "/datasets/1/analyses/9", "No analysis 9 of dataset 1."},
		{"GET", "/datasets/1/analyses/9/changes", "No analysis 9 of dataset 1."},
		{"DELETE", "/datasets/1/analyses/9", "No analysis 9 of dataset 1."},
		{"GET", "/datasets/1/files/abc", "No file abc of dataset 1."},
		{"GET", "/stac/collections/1/items/3", "No file 3 of dataset 1."},
		{"GET", "/datasets/1/data/folder/" + strings.Repeat("x", 300), "No file folder/" + strings.Repeat("x", maxNameText-len("file folder/")) + "."},
		{"GET", "/datasets/1/data/a%00b", "No file a."},
		{"GET", "/datasets/1/findings/nothing", "No list of findings nothing."},
		{"DELETE", "/datasets/1/accepted-findings/5", "No accepted finding 5."},
		{"GET", "/datasets/", "No such path; see /api/v1/openapi.yaml."},
	} {
		if a := c.refused(404, "not_found", test.method, "/api/v1"+test.path, nil); a.text("detail") != test.want {
			t.Errorf("%s %s: detail %q, want %q", test.method, test.path, a.text("detail"), test.want)
		}
	}
	if a := c.refused(404, "not_found", "GET", "/console/nothing.css", nil); a.text("detail") != errNoPath.detail {
		t.Errorf("a file of the console: detail %q, want %q", a.text("detail"), errNoPath.detail)
	}

	page := c.do("GET", "/datasets/99", nil, "Accept: text/html")
	if page.status != http.StatusNotFound || !strings.Contains(string(page.body), "No dataset 99.") {
		t.Errorf("%d %s", page.status, page.body)
	}
}

// TestHalfPairs: half of a surrogate pair in a body is read as U+FFFD.
func TestHalfPairs(t *testing.T) {
	t.Parallel()
	c := startServer(t, nil).signIn("ada", "all")
	for text, want := range map[string]string{
		`\ud800`:             "\ufffd",
		`\uDE00\uD83D`:       "\ufffd\ufffd",
		`\ud83d\ude00\ude00`: "\U0001f600\ufffd",
		`\\ud800`:            `\ud800`,
	} {
		t.Run(text, func(t *testing.T) {
			c := c
			c.t = t
			a := c.must(201, "POST", "/api/v1/system-messages", `{"title":"`+text+`","body":"b"}`)
			if got := a.text("title"); got != want {
				t.Errorf("title %q, want %q", got, want)
			}
		})
	}
}

// TestClientLeaves: a client that leaves does not cancel the statement that says who it is, on an unknown path neither.
// To cancel it would close a connection to the database.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	for _, path := range []string{"/account", "/nothing"} {
		tx, err := ts.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `LOCK TABLE sessions`); err != nil {
			t.Fatal(err)
		}
		waiting := func() int {
			// The sweep may wait for the table too.
			return ts.queryInt(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE NOT l.granted AND l.relation = 'sessions'::regclass AND a.query LIKE '%user_version%'`)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nCookie: %s\r\n\r\n", path, b.cookie)
		waitFor(t, "the statement to wait", func() bool { return waiting() == 1 })
		conn.Close()
		for closed := time.Now(); time.Since(closed) < time.Second/2; { // the route's limit is four times that
			ts.client().must(200, "GET", "/health", nil)
			if n := ts.db.Stat().AcquiredConns(); n < 2 { // the transaction and the statement
				t.Errorf("%s: %d connections are in use after the client has left", path, n)
				break
			}
		}
		tx.Rollback(t.Context())
		waitFor(t, "the statement to end", func() bool { return waiting() == 0 })
	}
}

// TestChangeOutlivesClient: a change is made although its client has left, also one that may take long.
func TestChangeOutlivesClient(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 })
	root := ts.signIn("root", "all")
	role := root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "crew", "permissions": []string{datasetRead}}).header.Get("Location")
	release := ts.holdLock(`SELECT pg_advisory_xact_lock($1)`, int64(lockAccess))
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	const change = `{"description": "They know."}`
	fmt.Fprintf(conn, "PATCH %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		role, root.token, len(change), change)
	waitFor(t, "the change to wait", func() bool { return waitingQueries(ts) == 1 })
	conn.Close()
	for range 50 { // meanwhile the service learns that the client has left
		ts.client().must(200, "GET", "/health", nil)
	}
	check(t, "changes that wait", waitingQueries(ts), 1)
	release()
	waitFor(t, "the change", func() bool {
		return root.must(200, "GET", role, nil).text("description") == "They know."
	})
}
