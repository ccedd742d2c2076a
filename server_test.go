package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestBadRequests sends what no well-meaning client sends: each gets its own status and code, in
// problem details.
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
		{"half a surrogate pair", 400, "malformed_json", "POST", messages, `{"title":"\ud800","body":"b"}`, nil},
		{"a body of many parts", 400, "malformed_json", "POST", register, `{"username":[` + strings.Repeat("0,", 500_000) + `0]}`, nil},
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
		{"2 MiB body of who is not signed in", 413, "body_too_large", "POST", register, `{"username":"` + strings.Repeat("x", 2<<20) + `"}`, nil},
		{"unknown parameter", 400, "unknown_parameter", "GET", "/api/v1/users?page=2", nil, nil},
		{"parameter where there is none", 400, "unknown_parameter", "GET", "/health?verbose=1", nil, nil},
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
		{"e-mail that is none", 422, "invalid", "POST", register, `{"username":"abc","password":"12345678","email":"abc"}`, nil},
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
		{"wait that is none", 400, "wrong_type", "GET", "/api/v1/datasets/1/analyses/1?wait=soon", nil, nil},
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

// TestAuthorizationMatrix walks the route table: nobody gets in without signing in, nor with all
// permissions but the one that the route asks for, and with that one alone everyone does.
func TestAuthorizationMatrix(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	anonymous := ts.client()
	if err := os.MkdirAll(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	each := map[string]client{"": ts.signIn("none", "unknown.permission")}
	allBut := map[string]client{}
	for i, permission := range permissions() {
		each[permission] = ts.signIn(fmt.Sprintf("only%d", i), permission)
		others := slices.DeleteFunc(permissions(), func(p string) bool { return p == permission })
		allBut[permission] = ts.signIn(fmt.Sprintf("allbut%d", i), others...)
	}
	disabled := ts.signIn("disabled", "all")
	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'disabled'`)
	pending := ts.signIn("pending", "all")
	ts.exec(`UPDATE users SET status = 'pending' WHERE username = 'pending'`)
	loggedOut := ts.signIn("loggedout", "all")
	loggedOut.must(204, "POST", "/api/v1/auth/logout", nil)
	expired := ts.signIn("expired", "all")
	ts.exec(`UPDATE sessions SET expires_at = now() WHERE user_id = (SELECT id FROM users WHERE username = 'expired')`)

	reader := ts.signIn("reader", datasetRead)
	ts.addUser("scripted", "all")
	narrow := ts.addToken("scripted", "narrow", metricsRead)
	typo := narrow.as(narrow.token[:len(narrow.token)-1] + "x")
	revoked, outdated := ts.addToken("scripted", "revoked", permissions()...), ts.addToken("scripted", "outdated", permissions()...)
	ts.exec(`DELETE FROM api_tokens WHERE name = 'revoked'`)
	ts.exec(`UPDATE api_tokens SET expires_at = now() WHERE name = 'outdated'`)

	fresh := 0
	for _, rt := range ts.routes() {
		t.Run(rt.method+" "+rt.path, func(t *testing.T) {
			// What a request that gets in needs, made anew each time, since some routes delete.
			target := func() (string, any) {
				fresh++
				name := fmt.Sprintf("set%d", fresh)
				os.Mkdir(filepath.Join(ts.datasets, name), 0o755)
				os.WriteFile(filepath.Join(ts.datasets, name, "a.txt"), []byte("text"), 0o644)
				manager, analyst, author := each[datasetManage], each[datasetAnalyze], each[adminSystemMessage]
				dataset := manager.must(201, "POST", "/api/v1/datasets", map[string]string{"name": name, "path": name}).header.Get("Location")
				path := strings.Replace(rt.path, "/api/v1/datasets/{id}", dataset, 1)
				if strings.HasPrefix(path, "/api/v1/users/{id}") {
					path = strings.Replace(path, "{id}", ts.addUser("target"+name), 1)
				}
				if strings.Contains(rt.path, "{analysis}") || strings.Contains(rt.path, "{file}") {
					run := analyst.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
					each[datasetRead].finished(run)
					_, analysis, _ := strings.Cut(run, "/analyses/")
					file := each[datasetRead].must(200, "GET", dataset+"/files", nil).items()[0]["id"]
					path = strings.NewReplacer("{analysis}", analysis, "{file}", fmt.Sprint(file)).Replace(path)
				}
				path = strings.Replace(path, "{code}", "duplicate", 1)
				if strings.Contains(path, "{accepted}") {
					accepted := manager.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "missing", "note": "sea"}).number("id")
					path = strings.Replace(path, "{accepted}", fmt.Sprint(accepted), 1)
				}
				if strings.HasPrefix(path, "/api/v1/roles/{id}") {
					role := each[roleManage].must(201, "POST", "/api/v1/roles", map[string]any{"name": "role-" + name, "permissions": []string{}}).number("id")
					path = strings.Replace(path, "{id}", fmt.Sprint(role), 1)
				}
				message := author.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"}).number("id")
				path = strings.Replace(path, "{id}", fmt.Sprint(message), 1)
				body := map[string]any{
					"POST /api/v1/auth/register":                   map[string]string{"username": "new" + name, "password": testPassword},
					"POST /api/v1/auth/login":                      map[string]string{"username": "none", "password": testPassword},
					"POST /api/v1/auth/password-reset":             map[string]string{"token": "x", "new_password": testPassword},
					"POST /api/v1/system-messages":                 map[string]string{"title": "t", "body": "b"},
					"PATCH /api/v1/system-messages/{id}":           map[string]string{"title": "u"},
					"POST /api/v1/inbox/read":                      map[string]any{"ids": []int{message}},
					"PATCH /api/v1/auth/me":                        map[string]string{"display_name": "new"},
					"PUT /api/v1/auth/password":                    map[string]string{"current_password": testPassword, "new_password": testPassword},
					"POST /api/v1/auth/tokens":                     map[string]any{"name": name, "permissions": []string{datasetRead}, "current_password": testPassword},
					"POST /api/v1/users":                           map[string]any{"username": "new" + name, "roles": []string{}},
					"PATCH /api/v1/users/{id}":                     map[string]string{"display_name": "new"},
					"PUT /api/v1/users/{id}/roles":                 map[string]any{"roles": []string{}},
					"POST /api/v1/roles":                           map[string]any{"name": "new" + name, "permissions": []string{}},
					"PATCH /api/v1/roles/{id}":                     map[string]string{"description": "new"},
					"PATCH /api/v1/datasets/{id}":                  map[string]string{"description": "d"},
					"POST /api/v1/datasets/{id}/analyses":          map[string]bool{"force": true},
					"POST /api/v1/datasets/{id}/accepted-findings": map[string]string{"code": "missing", "note": "sea"},
				}[rt.method+" "+rt.path]
				return path, body
			}
			check := func(c client, status int, code string) {
				t.Helper()
				path, body := target()
				if rt.method == "POST" && rt.path == "/api/v1/datasets" {
					name := fmt.Sprint("more", fresh)
					os.Mkdir(filepath.Join(ts.datasets, name), 0o755)
					body = map[string]string{"name": name, "path": name}
				}
				switch rt.path {
				case "/api/v1/auth/sessions/{id}":
					another, _ := ts.client().login("reader", testPassword)
					path = strings.Replace(rt.path, "{id}", another.credentialID(), 1)
				case "/api/v1/auth/tokens/{id}":
					path = strings.Replace(rt.path, "{id}", ts.addToken("reader", fmt.Sprint("t", fresh), datasetRead).credentialID(), 1)
				}
				a := c.do(rt.method, path, body)
				good := a.status == status && (code == "" || a.text("code") == code)
				if status == 200 {
					good = a.status/100 == 2
				}
				if !good {
					t.Errorf("status %d, want %d %s: %s", a.status, status, code, a.body)
				}
				if status == 401 && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("WWW-Authenticate is %q", a.header.Get("WWW-Authenticate"))
				}
			}
			switch rt.who {
			case public:
				if rt.path == "/api/v1/auth/password-reset" {
					check(anonymous, 401, "password_token_invalid") // reached, and the token is none
				} else {
					check(anonymous, 200, "")
				}
				return
			case refreshCookie:
				check(anonymous, 401, "refresh_token_missing")
				check(each[""], 401, "refresh_token_missing")
				return
			case ownSession:
				check(reader, 200, "")
				check(narrow, 403, "session_required")
			case signedIn:
				check(reader, 200, "")
				check(narrow, 200, "")
			default:
				check(each[""], 403, "permission_missing")
				check(allBut[string(rt.who)], 403, "permission_missing")
				check(each[string(rt.who)], 200, "")
				if rt.who == holds(metricsRead) {
					check(ts.addToken("scripted", "other", datasetRead), 403, "token_scope")
				} else {
					check(narrow, 403, "token_scope")
				}
			}
			check(anonymous, 401, "not_signed_in")
			check(typo, 401, "invalid_token")
			check(revoked, 401, "invalid_token")
			check(outdated, 401, "invalid_token")
			check(anonymous.as("nonsense"), 401, "invalid_token")
			check(disabled, 401, "invalid_token")
			check(pending, 401, "invalid_token")
			check(loggedOut, 401, "invalid_token")
			check(expired, 401, "invalid_token")
		})
	}
}

// TestPanic: a panic is a 500 that says nothing of it, and the log says all.
func TestPanic(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(s *server) {
		s.mux.HandleFunc("GET /panic", func(w http.ResponseWriter, r *http.Request) {
			answer := w.(*responseWriter)
			answer.routed = true
			if err := s.call(route{who: public, handler: func(http.ResponseWriter, *http.Request) error { panic("secret detail") }}, answer, r); err != nil {
				s.writeProblem(answer, err)
			}
		})
	})
	a := ts.client().refused(500, "internal", "GET", "/panic", nil)
	if strings.Contains(string(a.body), "secret detail") || !strings.Contains(ts.log.String(), "secret detail") {
		t.Errorf("answer: %s\nlog: %s", a.body, ts.log)
	}
	ts.client().must(200, "GET", "/health", nil)
}

// TestPaging follows a list to its end: every item once, in order, by cursor and by Link; and a cursor
// is good for its own list and filters only.
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

// TestProxies: forwarded addresses and request ids count only from a proxy that is trusted.
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
	if a.header.Get("X-Request-Id") != "from-proxy" || !strings.Contains(trusting.log.String(), `"203.0.113.9"`) {
		t.Errorf("the trusted proxy was not believed: %s", trusting.log)
	}
	a = trusting.client().must(200, "GET", "/health", nil, "X-Request-Id: bad id\"")
	if strings.Contains(a.header.Get("X-Request-Id"), "bad") {
		t.Error("a malformed request id was taken over")
	}
}

// TestHealthWithoutDatabase: the service says that its database is gone, and works when it is back.
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

// TestShutdown: a request that was accepted is answered although the service is told to stop.
func TestShutdown(t *testing.T) {
	t.Parallel()
	started, proceed := make(chan bool), make(chan bool)
	ts := startServer(t, func(s *server) {
		s.mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
			w.(*responseWriter).routed = true
			started <- true
			<-proceed
			fmt.Fprint(w, "done")
		})
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
	<-ts.server.stopping.Done()
	proceed <- true
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 200 {
		t.Errorf("%v %v", response, err)
	}
	<-stopped
}

// TestShutdownWhileConnecting: a connection that was accepted before the stop gets its answer, though
// its request is not complete yet.
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
	<-ts.server.stopping.Done()
	fmt.Fprintf(conn, "\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 200 {
		t.Errorf("%v %v", response, err)
	}
	<-stopped
}

// TestSchemaNewerThanProgram: an older program leaves a newer database alone.
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
