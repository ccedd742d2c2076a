package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestConditionalRequests: If-None-Match compares weakly, If-Match strongly (RFC 9110, section 13.1).
func TestConditionalRequests(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	const list = "/api/v1/roles"
	tag := root.must(200, "GET", list, nil).header.Get("ETag")

	for header, status := range map[string]int{
		tag:             304,
		"W/" + tag:      304,
		`"a", W/` + tag: 304,
		" * ":           304,

		`"a"`:                  200,
		"w/" + tag:             200,
		strings.Trim(tag, `"`): 200,
		"":                     200,
		`"a", *`:               200,
	} {
		if a := root.do("GET", list, nil, "If-None-Match: "+header); a.status != status {
			t.Errorf("If-None-Match: %s: %d, want %d", header, a.status, status)
		}
	}

	role := root.must(201, "POST", list, map[string]any{"name": "keeper", "permissions": []string{}}).header.Get("Location")
	message := root.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"}).header.Get("Location")
	user := root.must(201, "POST", "/api/v1/users", map[string]string{"username": "ada"}).header.Get("Location")
	for path, change := range map[string]map[string]string{
		role: {"description": "new"}, message: {"title": "new"}, user: {"display_name": "new"},
	} {
		seen := root.must(200, "GET", path, nil).header.Get("ETag")
		a := root.refused(412, "stale", "PATCH", path, change, "If-Match: W/"+seen)
		if !strings.Contains(a.text("detail"), "without W/") { // a script behind nginx with gzip learns what to do
			t.Errorf("%s: %s", path, a.body)
		}

		a = root.must(200, "PATCH", path, change, "If-Match: "+seen)
		if now := root.must(200, "GET", path, nil).header.Get("ETag"); now == seen || now != a.header.Get("ETag") {
			t.Errorf("%s: ETag %s, then %s, now %s", path, seen, a.header.Get("ETag"), now)
		}

		root.refused(412, "stale", "PATCH", path, change, "If-Match: "+seen)
		root.refused(412, "stale", "DELETE", path, nil, "If-Match: "+seen)
		root.must(200, "PATCH", path, change, "If-Match: *")

		if path == message { // neither a mark nor the time is a change
			before := root.must(200, "GET", path, nil).header.Get("ETag")
			root.must(204, "POST", path+"/read", nil)
			if now := root.must(200, "GET", path, nil).header.Get("ETag"); now != before {
				t.Errorf("a mark changed %s to %s", before, now)
			}
		}

		root.must(204, "DELETE", path, nil, "If-Match: "+root.must(200, "GET", path, nil).header.Get("ETag"))
	}
}

// TestPageSizeMayChange: the next page of a list may have another length.
func TestPageSizeMayChange(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	for i := range 5 {
		ts.addUser(fmt.Sprint("user", i))
	}
	first := root.must(200, "GET", "/api/v1/users?limit=2", nil)
	next := root.must(200, "GET", "/api/v1/users?limit=3&cursor="+url.QueryEscape(first.text("next_cursor")), nil)
	var names []string
	for _, item := range slices.Concat(first.items(), next.items()) {
		names = append(names, item["username"].(string))
	}
	check(t, "names", strings.Join(names, " "), "admin root user0 user1 user2")
}

// TestOptionsOfServer: Cairn itself answers OPTIONS *, with its usual headers and a line in the log.
func TestOptionsOfServer(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	reader := bufio.NewReader(conn)
	for request, status := range map[string]int{"OPTIONS *": 204, "OPTIONS /api/v1/ping": 405} {
		io.WriteString(conn, request+" HTTP/1.1\r\nHost: cairn\r\n\r\n")
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, response.Body)
		id := response.Header.Get("X-Request-Id")
		if response.StatusCode != status || id == "" || !strings.Contains(ts.log.String(), id) {
			t.Errorf("%s: %d %v", request, response.StatusCode, response.Header)
		}
	}
}

// TestMissingFields: a field that is missing, null or malformed is a 422 that names it, everywhere.
func TestMissingFields(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	for _, bad := range []struct{ method, path, body, field, code string }{
		{"POST", tokensPath, `{"name":"x","permissions":["dataset.read"],"expires_at":"tomorrow","current_password":"x"}`, "expires_at", "malformed"},
		{"POST", tokensPath, `{"name":"x","permissions":["dataset.read"],"expires_at":"","current_password":"x"}`, "expires_at", "malformed"},
		{"POST", tokensPath, `{"name":"x","permissions":["dataset.read"]}`, "current_password", "missing"},
		{"PUT", "/api/v1/auth/password", `{"new_password":"another long password"}`, "current_password", "missing"},
		{"PATCH", mePath, `{"email":"root@example.org"}`, "current_password", "missing"},
		{"PATCH", mePath, `{"email":"root@example.org","current_password":null}`, "current_password", "missing"},
		{"POST", "/api/v1/users", `{"username":"ada","roles":null}`, "roles", "missing"},
		{"POST", "/api/v1/auth/register", `{"username":"ada","password":""}`, "password", "too_short"},
		{"GET", "/api/v1/audit?action=user.fly", ``, "action", "unknown"},
		{"GET", "/api/v1/audit?since=now", ``, "since", "malformed"},
		{"GET", "/api/v1/system-messages?until=2026-01-01", ``, "until", "malformed"},
	} {
		var body any
		if bad.body != "" {
			body = bad.body
		}

		a := root.refused(422, "invalid", bad.method, bad.path, body)
		errors, _ := a.json["errors"].([]any)
		if first, _ := append(errors, nil)[0].(map[string]any); len(errors) != 1 || first["field"] != bad.field || first["code"] != bad.code {
			t.Errorf("%s %s %s: %v", bad.method, bad.path, bad.body, errors)
		}
	}

	if n := ts.queryInt(`SELECT coalesce(sum(attempts), 0) FROM throttles WHERE account <> ''`); n > 1 { // the login
		t.Errorf("%d guesses were counted", n)
	}
}

// TestAuditActions: the list of the audit log's actions has every action that the source names.
func TestAuditActions(t *testing.T) {
	t.Parallel()
	_, files := sources(t)
	at := map[string]int{"audit": 3, "auditMessage": 3, "endSessionsWhere": 3, "setPassword": 3, "changeDataset": 4, ".changeDataset": 1}
	found := 0

	for name, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}

			called := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				called = f.Name
			case *ast.SelectorExpr:
				called = "." + f.Sel.Name
			}
			i, ok := at[called]
			if !ok || i >= len(call.Args) {
				return true
			}
			text, ok := call.Args[i].(*ast.BasicLit)
			if !ok || strings.Contains(text.Value, " ") { // the commands' changeDataset takes a route
				return true
			}
			found++
			if action, _ := strconv.Unquote(text.Value); !slices.Contains(auditActions(), action) {
				t.Errorf("%s: %s is not in auditActions", name, action)
			}
			return true
		})
	}

	if found < 20 {
		t.Error(fmt.Sprint(found, " actions found"))
	}
}

// TestTooSlow: a request that runs out of its own time while the database is up is no outage, and no error in the log.
func TestTooSlow(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	id := ts.addFiles("tiles", []ElevationDatasetFileMeta{placedFile(t, "a.tif", 32632, 10, 0, 500_000, 0, -20, 5_300_000)})
	dataset := fmt.Sprintf("/api/v1/datasets/%d", id)

	ts.exec(`
		CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE query_canceled; END $$;
		CREATE TRIGGER cancel BEFORE UPDATE ON datasets EXECUTE FUNCTION cancel()`)
	c.refused(503, "too_slow", "PATCH", dataset, map[string]string{"name": "other"})

	tx := must(ts.db.Begin(t.Context()))
	must(tx.Exec(t.Context(), `LOCK TABLE datasets`))
	if a := c.refused(503, "too_slow", "GET", "/api/v1/datasets", nil); a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}

	tx.Rollback(t.Context())
	ts.stop()
	if log := ts.log.String(); strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, `"msg":"request too slow"`) {
		t.Errorf("log: %s", log)
	}
}

// TestComputingEnds: what Go computes for a request looks at the request's time.
func TestComputingEnds(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	var files []ElevationDatasetFileMeta
	for i := range 12 {
		if i != 5 { // a gap in a grid of four by three
			x, y := 500_000+float64(i%4)*1000, 5_300_000+float64(i/4)*1000
			files = append(files, placedFile(t, fmt.Sprintf("%d.tif", i), 32632, 10, 0, x, 0, -20, y))
		}
	}

	ts.addChecked("tiles", files)
	d := must(listDatasets(t.Context(), ts.db, operatorActor(), datasetFilter{}, "", 1))[0]
	grids := must(d.storedGrids(t.Context(), ts.db))
	details := must(summarizeDataset(t.Context(), ts.db, d))
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()

	// The database is asked in time, and Go computes after it.
	late := lateQuerier{ts.db, t.Context()}
	c := &coverage{frame: worldFrame(), Layers: make([]coverageLayer, 9)}
	for what, do := range map[string]func() error{
		"missing cells": func() error { return c.drawMissing(over, grids) },
		"cells of files": func() error {
			c.details = details
			c.details.Files = map[string]int64{fileStatusOK: maxOutlined + 1}
			return c.drawFiles(over, late)
		},
		"files of an area": func() error {
			_, _, err := findFiles(over, late, fileFilter{datasets: []int64{d.ID}, area: area{}, box: &mapBox{-180, -90, 180, 90}}, firstFile(), 10)
			return err
		},
		"gaps": func() error {
			return writeGaps(httptest.NewRecorder(), computing(t, httptest.NewRequestWithContext(over, "GET", "/", nil)), d, grids)
		},
	} {
		t.Run(what, func(t *testing.T) {
			if err := do(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}
}

// lateQuerier asks the database without the time limit of its caller.
type lateQuerier struct {
	querier
	ctx context.Context
}

func (q lateQuerier) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	return q.querier.Query(q.ctx, sql, args...)
}
