package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"html/template"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// formHeader is the media type of a form.
const formHeader = "Content-Type: application/x-www-form-urlencoded"

// headers returns the headers of a request of the matrix.
func (m *matrix) headers(rt route) []string {
	if rt.isPage() && rt.method == "POST" {
		return []string{formHeader}
	}
	return nil
}

// pageTarget is target for a page: its objects are those of the API's route of the same kind.
func (m *matrix) pageTarget(rt route) (path string, body any) {
	m.t.Helper()
	inner := "/api/v1" + strings.Replace(rt.path, "/account/", "/auth/", 1)
	end := ""
	if strings.HasPrefix(rt.path, "/account/") {
		if before, ok := strings.CutSuffix(inner, "{id}/end"); ok {
			inner = before + "{id}"
			end = "/end"
		}
	}

	inner = strings.Replace(inner, "/console/{file}", "/console/style.css", 1)
	method := rt.method
	if rt.path == "/account/totp/end" {
		method = "DELETE"
		inner = totpPath
	}

	if rt.path == "/account/passkeys/{id}/end" {
		method = "DELETE"
	}

	path, body = m.target(route{method: method, path: inner})
	if method == "DELETE" {
		path += "/end"
	}

	ofFactor := strings.HasPrefix(rt.path, "/account/totp") || strings.HasPrefix(rt.path, "/account/passkeys")
	if ofFactor && rt.method == "POST" {
		values := url.Values{}
		for name, value := range body.(map[string]string) {
			values.Set(name, value)
		}
		return strings.Replace(strings.TrimPrefix(path, "/api/v1"), "/auth/", "/account/", 1), values.Encode()
	}

	path = strings.Replace(strings.TrimPrefix(path, "/api/v1"), "/auth/", "/account/", 1) + end
	path = strings.Replace(path, "/{$}", "/", 1)

	name := fmt.Sprint("page", m.fresh)
	return path, formOf(map[string]string{
		"POST /login":                  "username=none&password=" + testPassword,
		"POST /register":               "username=" + name + "&password=" + testPassword,
		"POST /set-password":           "token=x&new_password=" + testPassword,
		"POST /inbox/read-all":         "up_to=1",
		"POST /account/name":           "display_name=New",
		"POST /account/email":          "email=" + name + "@example.org&current_password=" + testPassword,
		"POST /account/password":       "current_password=" + testPassword + "&new_password=" + testPassword,
		"POST /account/tokens":         "name=" + name + "&permissions=dataset.read&current_password=" + testPassword,
		"POST /messages":               "title=t&body=b&severity=info&roles=",
		"POST /messages/new/preview":   "title=t&body=b&severity=info&roles=",
		"POST /messages/{id}":          "title=u&body=b&severity=info&roles=",
		"POST /messages/{id}/preview":  "title=u&body=b&severity=info&roles=",
		"POST /users":                  "username=" + name,
		"POST /users/{id}":             "display_name=New&status=active",
		"POST /roles":                  "name=" + name,
		"POST /roles/{id}":             "name=" + name,
		"POST /permissions":            "name=p." + name + "&meaning=A test.",
		"POST /datasets":               fmt.Sprintf("name=%s&path=moreset%d", name, m.fresh),
		"POST /datasets/{id}":          "name=" + name,
		"POST /datasets/{id}/accepted": "code=missing&paths=&note=sea",
	}[rt.method+" "+rt.path])
}

// formOf returns the body of a form whose values are not encoded yet.
func formOf(text string) any {
	if text == "" {
		return nil
	}
	if encoded, ok := strings.CutPrefix(text, rawForm); ok {
		return encoded
	}
	values := url.Values{}
	for pair := range strings.SplitSeq(text, "&") {
		name, value, _ := strings.Cut(pair, "=")
		values.Add(name, value)
	}
	return values.Encode()
}

// userID returns the id of a user.
func userID(ts *testServer, name string) (id string) {
	ts.t.Helper()
	if err := ts.db.QueryRow(ts.t.Context(), `SELECT id::text FROM users WHERE username = $1`, name).Scan(&id); err != nil {
		ts.t.Fatal(err)
	}
	return id
}

// browser sends requests as a browser does: for pages, with forms, and with the session cookie that it was given.
type browser struct {
	client
	cookie string
}

// page sends a request for a page.
func (b *browser) page(method, path, form string, headers ...string) answer {
	b.t.Helper()
	headers = append([]string{"Accept: text/html,application/xhtml+xml"}, headers...)
	if b.cookie != "" {
		headers = append(headers, "Cookie: "+b.cookie)
	}

	var body any
	if method == "POST" {
		body, headers = formOf(form), append([]string{formHeader}, headers...)
		if body == nil {
			body = ""
		}
	}

	a := b.do(method, path, body, headers...)
	for _, cookie := range (&http.Response{Header: a.header}).Cookies() {
		if cookie.Name == "__Host-cairn_session" {
			b.cookie = cookie.Name + "=" + cookie.Value
		}
	}

	b.checkForms(method+" "+path, string(a.body))
	return a
}

// shows checks the status of a page and that it shows the texts. It returns the page.
func (b *browser) shows(status int, method, path, form string, texts ...string) string {
	b.t.Helper()
	a := b.page(method, path, form)
	if a.status != status || a.header.Get("Content-Type") != "text/html; charset=utf-8" {
		b.t.Fatalf("%s %s: status %d %s, want page with %d\n%s", method, path, a.status, a.header, status, a.body)
	}
	if strings.Contains(string(a.body), "%!") { // a value of the wrong type
		b.t.Errorf("%s %s: %s", method, path, a.body)
	}

	for _, text := range texts {
		if !strings.Contains(string(a.body), text) {
			b.t.Errorf("%s %s does not show %q:\n%s", method, path, text, a.body)
		}
	}
	return string(a.body)
}

// goes checks that a form is accepted, and which page comes next.
func (b *browser) goes(next, path, form string) {
	b.t.Helper()
	a := b.page("POST", path, form)
	if a.status != 303 || a.header.Get("Location") != next {
		b.t.Errorf("POST %s: %d to %q, want %q\n%s", path, a.status, a.header.Get("Location"), next, a.body)
	}
}

// browse signs a user in on the login page.
func (ts *testServer) browse(name string) *browser {
	ts.t.Helper()
	b := &browser{client: ts.client()}
	b.goes("/", "/login", "username="+name+"&password="+testPassword)
	return b
}

// TestSearchForms: the API takes every choice that the search forms of pages offer.
func TestSearchForms(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}

	dataset := strings.TrimPrefix(root.addDataset("tiles"), "/api/v1")
	b := ts.browse("root")

	search := regexp.MustCompile(`(?s)<form class="filter" role="search".*?</form>`)
	selects := regexp.MustCompile(`(?s)<select [^>]*name="(\w+)".*?</select>`)
	options := regexp.MustCompile(`<option value="([^"]*)"`)
	for _, path := range []string{"/messages", "/users", "/audit", dataset + "/files"} {
		form := search.FindString(b.shows(200, "GET", path, ""))
		if form == "" {
			t.Errorf("%s has no search form", path)
		}
		for _, chosen := range selects.FindAllStringSubmatch(form, -1) {
			for _, option := range options.FindAllStringSubmatch(chosen[0], -1) {
				b.shows(200, "GET", path+"?"+url.Values{chosen[1]: {option[1]}}.Encode(), "")
			}
		}
	}
}

// TestUnknownPath: the page about a path that does not exist knows its reader.
func TestUnknownPath(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	page := b.shows(404, "GET", "/nothing", "",
		`<a href="/account">ada</a>`,
		`<a href="/datasets">Datasets</a>`,
		"<p>There is no such page.</p>")
	if strings.Contains(page, "Sign in") {
		t.Error("the page asks a reader who is signed in to sign in")
	}
	stranger := &browser{client: ts.client(), cookie: b.cookie + "x"}
	stranger.shows(404, "GET", "/nothing", "", `<a href="/login">Sign in</a>`)
}

// TestDatasetPageWords: those who may register a directory see below which roots. A number goes with its word, and a
// broken file has one word on all pages.
func TestDatasetPageWords(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	if err := errors.Join(os.Mkdir(ts.datasets+"/set", 0o755), os.WriteFile(ts.datasets+"/set/a.tif", []byte("II*\x00"), 0o644)); err != nil {
		t.Fatal(err)
	}

	root := ts.signIn("root", "all")
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location"), nil)
	root.publish("A message")
	b := ts.browse("root")
	b.shows(200, "GET", "/datasets", "", "A folder below "+ts.datasets+". A relative path starts at "+ts.datasets+".")
	all := b.shows(200, "GET", "/datasets/1", "", " 1 file, 4 B", ">corrupt</span> 1<", ">Corrupt or unreadable</th>")
	all += b.shows(200, "GET", "/datasets/1/analyses/1", "", "<dt>Corrupt or unreadable</dt><dd>1</dd>")
	all += b.shows(200, "GET", "/datasets/1/report", "", "0 of 1 file located; 1 corrupt", "files are corrupt: 1")
	if strings.Contains(all, "amaged") || strings.Contains(all, "Failed") {
		t.Error(all)
	}

	b.shows(200, "GET", "/messages/1", "", "One person sees it now, 0 have read it.")
	ts.addUser("ada", datasetRead)
	if page := ts.browse("ada").shows(200, "GET", "/datasets", ""); strings.Contains(page, ts.datasets) {
		t.Error("somebody who may not register a directory sees the roots")
	}
}

// TestThreeDigits: sizes of pixels and files have no exponents.
func TestThreeDigits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0:           "0 B",
		999:         "999 B",
		1500:        "1.5 kB",
		99_960:      "100 kB",
		999_499:     "999 kB",
		999_500:     "1 MB",
		999_600:     "1 MB",
		999_600_000: "1 GB",
		123_456_789: "123 MB",
	} {
		if got := sizeText(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}

	for metres, want := range map[float64]string{
		0.5:       "0.5 m",
		30.87:     "30.9 m",
		99.96:     "100 m",
		999.7:     "1000 m",
		3850.4:    "3850 m",
		111_319.5: "111320 m",
	} {
		var b strings.Builder
		page := template.Must(template.Must(parsePages(8).Clone()).New("pixel").Parse("{{digits .}} m"))
		if err := page.Execute(&b, metres); err != nil || b.String() != want {
			t.Errorf("%v m: %s, want %s %v", metres, b.String(), want, err)
		}
	}
}

// TestAnalysisPage: the form for a new dataset leads to its page, which starts an analysis. An analysis is said to be queued
// only until it has finished, in the part of the page that the script replaces. One without changes says so.
func TestAnalysisPage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	if err := errors.Join(os.Mkdir(ts.datasets+"/set", 0o755), os.WriteFile(ts.datasets+"/set/a.tif", geographicTIFF(7, 46), 0o644)); err != nil {
		t.Fatal(err)
	}

	root, b := ts.signIn("root", "all"), ts.browse("root")
	b.goes("/datasets/1?done=added", "/datasets", "name=set&path=set")
	b.shows(200, "GET", "/datasets/1?done=added", "", "The dataset is registered. Start an analysis to read its files.")
	root.analyze("/api/v1/datasets/1", nil)
	root.analyze("/api/v1/datasets/1", nil)
	first := b.shows(200, "GET", "/datasets/1/analyses/1?done=started",
		"", "succeeded", `<span class="tag">added</span> <bdi>a.tif</bdi>`)
	second := b.shows(200, "GET", "/datasets/1/analyses/2?done=started", "", "succeeded", "No files changed.")
	if strings.Contains(first+second, "has been queued") {
		t.Error("an analysis that has finished is said to be queued")
	}

	b.shows(200, "GET", "/datasets/1/analyses/1?change=removed", "", "No file was removed.")
	ts.exec(`DELETE FROM analysis_changes`)
	for _, query := range []string{"", "?change=added"} {
		b.shows(200, "GET", "/datasets/1/analyses/1"+query, "", "The list of changes is no longer kept.")
	}

	ts.ownsNothing()
	ts.exec(`UPDATE analyses SET state = 'reading', finished_at = NULL WHERE id = 2`)
	_, live, _ := strings.Cut(b.shows(200, "GET", "/datasets/1/analyses/2?done=started", "", "No change yet."), `<div id="live"`)
	if live, _, _ = strings.Cut(live, "</div>"); !strings.Contains(live, "The analysis has been queued.") {
		t.Error("the notice is not in the part that is replaced")
	}
}

// TestFailedSecondLogin: a login on a page that cannot end the browser's former session opens no other one.
func TestFailedSecondLogin(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	former := b.cookie
	ts.exec(`
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$;
		CREATE TRIGGER fail BEFORE UPDATE OF ended_at ON sessions FOR EACH ROW EXECUTE FUNCTION fail()`)

	b.shows(503, "POST", "/login", "username=ada&password="+testPassword)
	if b.cookie != former {
		t.Errorf("cookie: got %q, want the former one", b.cookie)
	}

	for table, query := range map[string]string{
		"sessions":           `SELECT count(*) FROM sessions`,
		"rows of the logins": `SELECT count(*) FROM audit_log WHERE action = 'session.login'`,
	} {
		if n := ts.queryInt(query); n != 1 {
			t.Errorf("%s: got %d, want 1", table, n)
		}
	}

	ts.exec(`DROP FUNCTION fail CASCADE`)
	b.goes("/", "/login", "username=ada&password="+testPassword)
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL`); n != 1 {
		t.Errorf("live sessions: got %d, want 1", n)
	}
}

// injections returns texts that a page must show as text and nothing else.
func injections() []string {
	return []string{
		`<script>alert(1)</script>`,
		`</script><script>alert(1)</script>`,
		`<img src=x onerror=alert(1)>`,
		`"><img src=x onerror=alert(1)>`,
		`'><svg onload=alert(1)>`,
		`" onfocus="alert(1)" autofocus="`,
		`' onfocus='alert(1)' autofocus='`,
		"` onfocus=`alert(1)` autofocus=`",
		` onmouseover=alert(1) `,
		`javascript:alert(1)`,
		`JaVaScRiPt:alert(1)`,
		"java\tscript:alert(1)",
		`data:text/html,<script>alert(1)</script>`,
		`vbscript:msgbox(1)`,
		`</textarea><script>alert(1)</script>`,
		`</title><script>alert(1)</script>`,
		`</style><script>alert(1)</script>`,
		`</option></select><script>alert(1)</script>`,
		`--><script>alert(1)</script>`,
		`<!--`,
		`<!--><img src=x onerror=alert(1)>`,
		`]]><script>alert(1)</script>`,
		`<![CDATA[<script>alert(1)</script>]]>`,
		`<?xml version="1.0"?>`,
		`&lt;script&gt;alert(1)&lt;/script&gt;`,
		`&#60;script&#62;alert(1)`,
		`&quot;&gt;&lt;b&gt;`,
		`&amp;lt;b&amp;gt;`,
		`{{.User}}`,
		`{{template "top" .}}`,
		`${alert(1)}`,
		`#{7*7}`,
		`<%= 7*7 %>`,
		`{% raw %}`,
		`\"><b>`,
		`\u003cb\u003e`,
		`\x3cb\x3e`,
		`%3Cscript%3E`,
		`<iframe srcdoc="<script>alert(1)</script>">`,
		`<base href="//evil.example/">`,
		`<meta http-equiv=refresh content="0;url=//evil.example">`,
		`<form action=//evil.example><button>`,
		`<link rel=stylesheet href=//evil.example>`,
		`<math><mtext></form><form>`,
		`<svg><animate onbegin=alert(1)>`,
		`<details open ontoggle=alert(1)>`,
		`<template><script>alert(1)</script></template>`,
		`<noscript><p title="</noscript><img src=x onerror=alert(1)>">`,
		"<a href=\u2028javascript:alert(1)>",
		`//evil.example/%2f..`,
		`<plaintext>`,
		`</main></body></html>`,
	}
}

// skeleton returns the elements of a page with the names of their attributes, without any text or value. The title of
// the page and times are left out.
func skeleton(t *testing.T, page string) string {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(page, "<!doctype html>")))
	d.Strict = false
	d.AutoClose = xml.HTMLAutoClose
	d.Entity = xml.HTMLEntity

	unsafe := regexp.MustCompile(`(?i)^\s*(javascript|data|vbscript):|^//`)
	var b strings.Builder

	for {
		token, err := d.Token()
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, page)
		}

		switch token := token.(type) {
		case xml.StartElement:
			fmt.Fprintf(&b, "<%s", token.Name.Local)
			for _, attr := range token.Attr {
				fmt.Fprintf(&b, " %s", attr.Name.Local)
				isAddress := slices.Contains([]string{"href", "src", "action"}, attr.Name.Local)
				if isAddress && unsafe.MatchString(attr.Value) {
					t.Errorf("%s=%q", attr.Name.Local, attr.Value)
				}
			}
			b.WriteString(">\n")

		case xml.EndElement:
			fmt.Fprintf(&b, "</%s>\n", token.Name.Local)

		case xml.Comment, xml.ProcInst, xml.Directive:
			t.Errorf("%T in\n%s", token, page)
		}
	}
}

// TestInjection: whatever texts the database holds and people type, every page has the same elements and attributes as
// with harmless ones. The texts stand in the database, so that no check on the way in helps.
func TestInjection(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	os.WriteFile(filepath.Join(ts.datasets, "set", "a.tif"), geographicTIFF(7, 46), 0o644)
	os.WriteFile(filepath.Join(ts.datasets, "set", "b.tif"), []byte("no TIFF"), 0o644)
	root := ts.signIn("root", "all")
	dataset := root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location")
	root.analyze(dataset, nil)
	root.must(201, "POST", "/api/v1/datasets/1/accepted-findings", map[string]string{"code": "missing", "note": "sea"})
	root.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"})
	root.must(201, "POST", permissionsPath, map[string]string{"name": "wiki.edit", "meaning": "Edit."})
	ts.addToken("root", "token", datasetRead)
	id := root.must(200, "GET", mePath, nil).text("id")
	b := ts.browse("root")
	ts.exec(`INSERT INTO passkeys (user_id, name, credential_id, public_key, sign_count, last_challenge) SELECT id, 'phone', 'x', '', 0, 0 FROM users WHERE username = 'root'`)
	pages := strings.Fields(`/ /login /register /set-password /inbox /account /account/totp /messages /messages/new /messages/1 /users /users/` + id + ` /roles /datasets /datasets/1
		/datasets/1?point=7.1,45.9 /datasets/1/files /files /datasets/1/analyses/1 /datasets/1/report`)

	forms := map[string]string{
		"/login":                  "username=@&password=@&next=@",
		"/login?":                 "username=@&proof=@&otp=@&next=@",
		"/account/passkeys":       "name=@&passkey=@&current_password=@&otp=@",
		"/set-password":           "token=@&new_password=@",
		"/messages/new/preview":   "title=@&body=@&severity=@&publish_at=@&expires_at=@&roles=@",
		"/messages/1":             "tag=@&title=@&body=@",
		"/users":                  "username=@&email=@&display_name=@&roles=@",
		"/users/" + id:            "tag=@&email=@&status=@&display_name=@",
		"/users/" + id + "/roles": "roles=@",
		"/roles":                  "name=@&description=@&permissions=@",
		"/permissions":            "name=@&meaning=@",
		"/datasets":               "name=@&path=@&description=@",
		"/account/tokens":         "name=@&permissions=@&expires_at=@&current_password=@",
		"/datasets/1/accepted":    "code=@&paths=@&note=@",
		"/account/email":          "email=@&current_password=@",
		"/account/totp/confirm":   "otp=@&uri=@&secret=@",
	}

	queries := []string{
		"/login?next=@",
		"/users?q=@&role=root",
		"/audit?actor=@&target=@&request_id=@",
		"/audit?request_id=@",
		"/datasets/1/files?q=@&path=@",
		"/inbox?@=1",
		"/datasets/1?bbox=@",
		"/inbox?cursor=@",
		"/datasets/1?point=@",
		"/@",
	}

	// The elements of harmless pages are known, and those that say what is wrong with a field.
	var base []string
	known := map[string]bool{
		"<p class id>": true,
		"<fieldset class aria-describedby tabindex>":           true,
		"<fieldset class aria-describedby tabindex autofocus>": true,
		"<div class role>":                    true,
		"<div class role tabindex autofocus>": true,
	}
	for _, attrs := range []string{"", " autocomplete"} {
		for _, required := range []string{"", " required"} {
			known["<input id type name value"+attrs+required+" aria-invalid aria-describedby>"] = true
			known["<input id type name value"+attrs+required+" autofocus aria-invalid aria-describedby>"] = true
		}
	}

	for _, required := range []string{"", " required"} {
		known["<textarea id name rows"+required+" aria-invalid aria-describedby>"] = true
		known["<textarea id name rows"+required+" autofocus aria-invalid aria-describedby>"] = true
	}

	for i, text := range append([]string{"harmless"}, injections()...) {
		plant(ts, text)

		var got []string
		see := func(a answer) {
			if a.status >= 500 {
				t.Errorf("%q: %d %s", text, a.status, a.body)
			}
			got = append(got, fmt.Sprint(a.header.Get("Content-Type"), "\n", skeleton(t, string(a.body))))
		}

		for _, path := range pages {
			see(b.page("GET", path, ""))
		}
		for _, path := range slices.Sorted(maps.Keys(forms)) {
			values, _ := url.ParseQuery(forms[path])
			for _, list := range values {
				list[0] = strings.Replace(list[0], "@", text, 1)
			}
			see(b.page("POST", path, rawForm+values.Encode()))
			ts.exec(`DELETE FROM throttles`)
		}
		for _, path := range queries {
			see(b.page("GET", strings.ReplaceAll(path, "@", url.QueryEscape(text)), ""))
		}

		if i == 0 {
			base = got
			for line := range strings.Lines(strings.Join(base, "")) {
				known[strings.TrimSpace(line)] = true
			}
		}

		for j := range got {
			if j < len(pages) && got[j] != base[j] {
				t.Fatalf("%q in %s:\n%s\nwant\n%s", text, pages[j], got[j], base[j])
			}
			for line := range strings.Lines(got[j]) { // what was typed may be refused for another reason
				if !known[strings.TrimSpace(line)] || strings.Count(got[j], "<script") > 1 {
					t.Fatalf("%q on page %d: %s in\n%s", text, j, line, got[j])
				}
			}
		}
	}
}

// plant writes a text into every column of the database that a page shows.
func plant(ts *testServer, text string) {
	ts.t.Helper()
	for _, statement := range []string{
		`UPDATE users SET display_name = $1, email = $1::text || id::text`,
		`UPDATE roles SET description = $1`,
		`UPDATE declared_permissions SET meaning = $1`,
		`UPDATE datasets SET name = $1, path = $1, description = $1`,
		`UPDATE system_messages SET title = $1, body = $1, author = $1`,
		`UPDATE api_tokens SET name = $1, permissions = ARRAY[$1]`,
		`UPDATE passkeys SET name = $1`,
		`UPDATE sessions SET device = $1, address = $1`,
		`UPDATE accepted_findings SET path = $1, note = $1, accepted_by = $1`,
		`UPDATE elevation_dataset_file_meta SET path = $1::text || id::text, reason = $1, warnings = ARRAY[$1]`,
		`UPDATE analyses SET requested_by = $1, warnings = ARRAY[$1], failure = $1`,
		`INSERT INTO audit_log (actor, credential, address, request_id, action, target, before, after) VALUES ($1, $1, $1, $1, $1, $1, to_jsonb($1::text), to_jsonb($1::text))`,
	} {
		ts.exec(statement, text)
	}
}

// TestPageHeaders: pages and their errors have a strict policy. The style sheet is asked for by its tag, and no path
// leads to another file.
func TestPageHeaders(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")

	for _, path := range []string{"/", "/login", "/account", "/nowhere", "/users"} {
		h := b.page("GET", path, "").header
		if h.Get("Content-Security-Policy") != pagePolicy || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cross-Origin-Opener-Policy") != "same-origin" ||
			h.Get("Cross-Origin-Resource-Policy") != "same-origin" || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, h)
		}
	}

	const identity = "Accept-Encoding: identity"
	style := b.must(200, "GET", "/console/style.css", nil, identity)
	head := b.must(200, "HEAD", "/console/style.css", nil, identity)
	if length := fmt.Sprint(len(style.body)); style.header.Get("Content-Length") != length || head.header.Get("Content-Length") != length {
		t.Errorf("Content-Length %v, of HEAD %v", style.header, head.header)
	}

	for _, tag := range []string{style.header.Get("ETag"), "W/" + style.header.Get("ETag")} { // a proxy that compresses makes it weak
		b.must(200, "GET", "/console/style.css", nil, identity, "Range: bytes=99999999-", `If-Match: "other"`)
		h := b.must(304, "GET", "/console/style.css", nil, identity, "If-None-Match: "+tag).header
		if h.Get("Cache-Control") != "no-cache" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("ETag") != style.header.Get("ETag") {
			t.Errorf("%s: %v", tag, h)
		}
	}

	for _, path := range []string{"/console/base.html", "/console/x.css", "/console/", "/console/..%2fgo.mod", "/console/%2e%2e%2fserver.go"} {
		if a := b.do("GET", path, nil); a.status != 404 {
			t.Errorf("%s: %d", path, a.status)
		}
	}

	home := len(b.page("GET", "/", "").body) + len(style.body) + len(b.must(200, "GET", "/console/console.js", nil).body)
	if home > 50_000 {
		t.Errorf("the first page has %d bytes in all", home)
	}

	// Programs get problem details from pages too.
	b.refused(403, "permission_missing", "GET", "/users", nil, "Cookie: "+b.cookie)
}

// tagOn returns the entity tag in the form for a path on a page.
func tagOn(t *testing.T, page, action string) string {
	t.Helper()
	_, form, _ := strings.Cut(page, `action="`+action+`"`)
	found := regexp.MustCompile(`name="tag" value="([^"]*)"`).FindStringSubmatch(form)
	if found == nil {
		t.Fatalf("no tag for %s in\n%s", action, page)
	}
	return html.UnescapeString(found[1])
}

// TestForms: a form does what the API does, not over somebody else's change. A refused one says beside the field what is
// wrong, and keeps what was typed.
func TestForms(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	b := ts.browse("root")

	// Users: invite, approve, change.
	shown := b.shows(200, "POST", "/users", "username=ada&display_name=Ada L&roles=member", "/set-password#cairn_pw_")
	token := regexp.MustCompile(`<code class="secret">(cairn_pw_[^<]*)<`).FindStringSubmatch(shown)[1]
	b.goes("/login?done=reset", "/set-password", "token="+token+"&new_password="+testPassword)
	b.shows(409, "POST", "/users", "username=ada&display_name=Other", `value="ada"`, `value="Other"`, "role=\"alert\"")
	b.shows(422, "POST", "/users", "username=A B", `aria-invalid="true"`, `value="A B"`)
	id := root.must(200, "GET", "/api/v1/users?username=ada", nil).items()[0]["id"].(string)
	path := "/users/" + id
	tag := tagOn(t, b.shows(200, "GET", path, "", "Ada L"), path)
	b.goes(path+"?done=saved", path, "display_name=Ada&status=active&email=ada@example.org&former_email=&tag="+tag)
	b.shows(412, "POST", path,
		"display_name=Late&status=disabled&tag="+tag, "Somebody has changed this", `value="Late"`)
	if u := root.must(200, "GET", "/api/v1/users/"+id, nil); u.text("display_name") != "Ada" || u.text("email") != "ada@example.org" || u.text("status") != "active" {
		t.Errorf("%s", u.body)
	}

	// Roles: ticks are kept as they were typed.
	b.goes("/roles?done=saved", "/roles", "name=keeper&description=x")
	keeper := fmt.Sprintf("/roles/%.0f", root.must(200, "GET", "/api/v1/roles?name=keeper", nil).items()[0]["id"])
	tag = tagOn(t, b.shows(200, "GET", "/roles", ""), keeper)
	b.goes("/roles?done=saved", keeper, "permissions=dataset.read&permissions=dataset.manage&tag="+tag)
	b.shows(412, "POST", keeper,
		"permissions=audit.read&tag="+tag,
		`aria-label="keeper may audit.read" name="permissions" value="audit.read" form="role`)
	if list := root.must(200, "GET", "/api/v1/roles?name=keeper", nil).items()[0]["permissions"]; fmt.Sprint(list) != "[dataset.read dataset.manage]" {
		t.Errorf("%v", list)
	}

	// Announcements: a preview stores nothing; a scheduled one can be published later.
	b.shows(200, "POST", "/messages/new/preview",
		"title=Hello&body=World&severity=info&roles=member", "One person would get it now: ada",
		`value="Hello"`)
	b.shows(200, "POST", "/messages/new/preview",
		"title=Hello&body=World&severity=info&roles=", "2 people would get it now: ada, root")
	b.shows(422, "POST", "/messages",
		"title=Hello&body=World&severity=info", "must name a role", `value="Hello"`,
		"World</textarea>")
	if n := ts.queryInt(`SELECT count(*) FROM system_messages`); n != 0 {
		t.Errorf("%d messages", n)
	}

	b.goes("/messages?done=saved", "/messages",
		"title=Hello&body=one\r\ntwo&severity=warning&roles=&publish_at=2999-01-02T03:04&expires_at=")
	if n := ts.queryInt(`SELECT count(*) FROM system_messages WHERE publish_at = '2999-01-02 03:04Z' AND body = E'one\ntwo' AND expires_at IS NULL`); n != 1 {
		t.Error("the message is not stored as typed")
	}

	shown = b.shows(200, "GET", "/messages/1", "", `value="2999-01-02T03:04"`, "scheduled")
	b.goes("/messages?done=saved", "/messages/1",
		"title=Hello&body=now&severity=info&roles=&publish_at=&expires_at=&tag="+tagOn(t, shown, "/messages/1"))
	b.shows(200, "GET", "/inbox", "", `<span class="badge">1<`, "now", "unread")
	b.goes("/inbox?done=read", "/inbox/read-all", "up_to=1")
	if shown := b.shows(200, "GET", "/inbox?done=read", "", "Marked as read"); strings.Contains(shown, "badge") {
		t.Errorf("%s", shown)
	}

	b.goes("/messages?done=saved", "/messages/1/retract", "")

	// Own account: a token is shown once, and a wrong password changes nothing.
	expires := time.Now().Add(48 * time.Hour).UTC().Format("2006-01-02T15:04")
	shown = b.shows(200, "POST", "/account/tokens",
		"name=script&permissions=dataset.read&expires_at="+expires+"&current_password="+testPassword,
		"cairn_pat_")
	script := root.as(regexp.MustCompile(`cairn_pat_\w+`).FindString(shown))
	script.must(200, "GET", "/api/v1/datasets", nil)
	if strings.Contains(b.shows(200, "GET", "/account", "", "script"), "cairn_pat_") {
		t.Error("the secret is shown again")
	}

	b.shows(403, "POST", "/account/password",
		"current_password=wrong&new_password=another good one", "The current password is wrong")
	b.goes("/account?done=password", "/account/password",
		"current_password="+testPassword+"&new_password=another good one&end_tokens=true")
	script.refused(401, "invalid_token", "GET", "/api/v1/datasets", nil)
	root.refused(401, "invalid_token", "GET", mePath, nil)
	b.shows(200, "GET", "/account", "", "This session")

	// A refusal on a page is audited as one of the API is.
	member := ts.browse("ada")
	member.shows(403, "POST", "/roles", "name=x", "role.manage")
	member.shows(403, "GET", "/audit", "", "audit.read")
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'request.refused' AND target IN ('POST /roles', 'GET /audit') AND actor = 'ada'`); n != 2 {
		t.Errorf("%d refusals in the audit log", n)
	}
}

// follows checks that each link, picture and form on a page leads to a route.
func (b *browser) follows(what, page string) {
	b.t.Helper()
	for _, found := range regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		address := html.UnescapeString(found[1])
		if strings.HasPrefix(address, "#") {
			continue
		}
		if !strings.HasPrefix(address, "/") {
			b.t.Errorf("%s: the link %q is not absolute", what, address)
			continue
		}
		if a := b.page("GET", address, ""); a.status != 200 && !strings.Contains(found[0], "action") {
			b.t.Errorf("%s: %s leads to %d", what, address, a.status)
		}
	}
}

// TestRefusedLinks: the links on a page that a refused form shows again are right, although the page stands at the
// form's address.
func TestRefusedLinks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	os.WriteFile(filepath.Join(ts.datasets, "set", "a.tif"), geographicTIFF(7, 46), 0o644)
	root := ts.signIn("root", "all")
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location"), nil)
	ts.exec(`INSERT INTO analysis_changes SELECT 1, 'f' || lpad(n::text, 2, '0'), 'added' FROM generate_series(1, 60) n`)
	ts.exec(`INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by) SELECT 1, 'corrupt', 'f' || n, 'x', 'root' FROM generate_series(1, 60) n`)
	ts.exec(`INSERT INTO roles (name) SELECT 'role' || n FROM generate_series(1, 60) n`)
	for i := range 60 {
		root.publish(fmt.Sprint("Message ", i))
	}

	b := ts.browse("root")
	for path, form := range map[string]string{
		"/inbox/999/read":      "",
		"/datasets/1/accepted": "code=x&note=y",
		"/roles/1/delete":      "",
		"/roles/3":             "tag=x",
		"/permissions":         "name=x",
		"/datasets/1":          "name=",
		"/users":               "username=A B",
		"/account/name":        "display_name=" + strings.Repeat("x", 200),
	} {
		a := b.page("POST", path, form)
		if a.status < 400 || a.status >= 500 || !strings.Contains(string(a.body), `role="alert"`) {
			t.Errorf("POST %s: %d", path, a.status)
		}
		b.follows("POST "+path, string(a.body))
	}

	ts.exec(`UPDATE analyses SET state = 'queued', finished_at = NULL`)
	b.follows("a running analysis", b.shows(409, "POST", "/datasets/1/analyses", "", "is running"))
	for _, path := range []string{"/inbox", "/roles", "/datasets/1/report", "/datasets/1/analyses/1"} {
		b.follows("GET "+path, b.shows(200, "GET", path, "", `rel="next"`))
	}
}

// TestLongLists: no list on a page ends without a word. Where it has further pages, they can be reached.
func TestLongLists(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	for i := range 3 {
		os.WriteFile(filepath.Join(ts.datasets, "set", fmt.Sprintf("t%d.tif", i)), geographicTIFF(7, 46), 0o644)
	}

	root := ts.signIn("root", "all")
	set := root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location")
	for range 10 {
		root.analyze(set, nil)
	}

	ts.exec(`INSERT INTO roles (name) SELECT 'role' || lpad(n::text, 4, '0') FROM generate_series(1, 600) n`)
	ts.exec(`INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by) SELECT 1, 'corrupt', 'f' || lpad(n::text, 4, '0'), 'x', 'root' FROM generate_series(1, 600) n`)
	b := ts.browse("root")
	next := regexp.MustCompile(`rel="next" href="([^"]*)"`)

	for path, last := range map[string]string{"/roles": "role0600", "/datasets/1/report": "f0600"} {
		for range 20 {
			shown := b.shows(200, "GET", path, "")
			found := next.FindStringSubmatch(shown)
			if found == nil {
				if !strings.Contains(shown, last) {
					t.Errorf("%s: the last page lacks %s", path, last)
				}
				break
			}
			path = html.UnescapeString(found[1])
		}
	}

	b.shows(200, "GET", "/datasets/1/report", "", "50 accepted, and more")

	// Saving a user's roles must not take away those that the page has no room for.
	b.shows(200, "GET", "/users/"+userID(ts, "root"), "", `value="role0600"`)
	b.shows(200, "GET", "/messages/new", "", `value="role0600"`)
	b.shows(200, "GET", "/datasets/1", "", "the last ten")
	b.shows(200, "GET", "/", "", `<a href="/datasets">`)
	b.shows(200, "GET", "/datasets/1/files?point=7.1,45.9", "", "t2.tif")
}

// TestRefusalTexts: a page says what to click, not which route of the API to call.
func TestRefusalTexts(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.addUser("ada", datasetRead)
	root.must(201, "POST", permissionsPath, map[string]string{"name": "wiki.edit", "meaning": "Edit."})
	root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "editor", "permissions": []string{"wiki.edit"}})
	root.must(200, "POST", "/api/v1/users/"+userID(ts, "ada")+"/roles", map[string]string{"role": "editor"})
	editor := fmt.Sprintf("/roles/%.0f/delete", root.must(200, "GET", "/api/v1/roles?name=editor", nil).items()[0]["id"])
	b := ts.browse("root")

	for _, test := range [][3]string{
		{"/users/" + userID(ts, "root"), "email=x@example.org&former_email=", "own page"},
		{"/users/" + userID(ts, "root") + "/password-reset", "", "own page"},
		{editor, "", "Take it from them first"},
		{"/permissions/wiki.edit/delete", "", "Take it from the roles"},
		{"/inbox/99/read", "", "no such announcement"},
		{"/roles/1/delete", "", "roles admin and member"},
		{"/account/totp/confirm", "otp=123456", "Set the second factor up again"},
		{"/account/password", "current_password=x&new_password=short", "New password: must have"},
	} {
		a := b.page("POST", test[0], test[1])
		_, alert, _ := strings.Cut(string(a.body), `role="alert"`)
		alert, _, _ = strings.Cut(alert, "</div>")
		if a.status < 400 || !strings.Contains(alert, test[2]) || regexp.MustCompile(`/api/|PATCH|DELETE|PUT |GET |\?\w|_`).MatchString(alert) {
			t.Errorf("POST %s: %d %s", test[0], a.status, alert)
		}
	}
}

// TestPreview: the preview of an announcement counts those who will see it. A published one is not for later users, unless
// it says so.
func TestPreview(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	b := ts.browse("root")
	root.publish("Hello")
	b.goes("/messages?done=saved", "/messages", "title=Later&body=b&severity=info&roles=&publish_at=2999-01-02T03:04")
	ts.addUser("ada", datasetRead)

	for _, test := range []struct{ path, form, want string }{
		{"/messages/1", "", "One person would get it now: root."},
		{"/messages/1", "&include_new_users=true", "2 people would get it now: ada, root."},
		{"/messages/2", "&publish_at=2999-01-02T03:04", "2 people would get it now: ada, root."},
		{"/messages", "", "2 people would get it now: ada, root."},
	} {
		b.shows(200, "POST", strings.Replace(test.path+"/preview", "/messages/preview", "/messages/new/preview", 1), "title=t&body=b&severity=info&roles="+test.form, test.want)
	}

	b.goes("/messages?done=saved", "/messages/1", "title=t&body=b&severity=info&roles=")
	if root.must(200, "GET", "/api/v1/system-messages/1", nil).number("recipients") != 1 {
		t.Error("the announcement has other recipients than its preview")
	}

	b.shows(404, "POST", "/messages/99/preview", "title=t&body=b&severity=info&roles=")
}

// TestNewestAnalyses: the list of datasets has the newest analysis of each.
func TestNewestAnalyses(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	for i, name := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(ts.datasets, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for dataset := root.addDataset(name); i > 0; i-- {
			root.analyze(dataset, nil)
		}
	}

	shown := ts.browse("root").shows(200, "GET", "/datasets", "", `"/datasets/2/analyses/1"`, `"/datasets/3/analyses/3"`, ">never</td>")
	if n := strings.Count(shown, "/analyses/"); n != 2 {
		t.Errorf("%d analyses", n)
	}
}

// TestPageStopsReading: after an error a page asks the database for nothing more.
func TestPageStopsReading(t *testing.T) {
	t.Parallel()
	api := &apiReader{console: &console{}, r: httptest.NewRequest("GET", "/", nil), err: errNoPath} // without a database
	if states, names := api.addAnalyses([]datasetItem{{dataset: dataset{ID: 1}}}), api.roleNames(); len(states)+len(names) > 0 || api.err != errNoPath {
		t.Errorf("%v, %v, %v", states, names, api.err)
	}
}

// TestStaleForm: a form that was refused because somebody else has changed the object can be sent again as it is shown.
// One that was refused for another reason cannot write over a change that its reader has not seen.
func TestStaleForm(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	id := ts.addUser("ada", datasetRead)
	b := ts.browse("root")
	path := "/users/" + id
	old := hiddenOn(t, b.shows(200, "GET", path, ""), path)
	root.must(200, "PATCH", "/api/v1"+path, map[string]string{"display_name": "Other"})
	shown := b.shows(422, "POST", path, old+"&display_name=Ada&email=no", `value="Ada"`)
	if !strings.Contains(old, url.QueryEscape(tagOn(t, shown, path))) {
		t.Error("a form that was refused for another reason has another tag")
	}

	shown = b.shows(412, "POST", path,
		old+"&display_name=Ada&status=active", "Somebody has changed this", `value="Ada"`)
	b.goes(path+"?done=saved", path, hiddenOn(t, shown, path)+"&display_name=Ada&status=active")
	if name := root.must(200, "GET", "/api/v1"+path, nil).text("display_name"); name != "Ada" {
		t.Errorf("the name is %q", name)
	}

	role := fmt.Sprint("/roles/", root.must(201, "POST", "/api/v1/roles", map[string]any{"name": "keeper", "permissions": []string{}}).number("id"))
	old = hiddenOn(t, b.shows(200, "GET", "/roles", ""), role)
	root.must(200, "PATCH", "/api/v1"+role, map[string]string{"description": "x"})
	shown = b.shows(412, "POST", role, old+"&permissions=dataset.read", "Somebody has changed this")
	b.goes("/roles?done=saved", role, hiddenOn(t, shown, role)+"&permissions=dataset.read")
}

// TestBrokenErrorPage: an error whose page cannot be written is a plain 500.
func TestBrokenErrorPage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.server.console.pages = template.Must(template.New("").Parse(`{{define "error"}}{{.Nothing}}{{end}}`))
	b := &browser{client: ts.client()}
	for _, path := range []string{"/nowhere", "/", "/login"} {
		a := b.page("GET", path, "")
		if a.status != 500 || a.header.Get("Content-Type") != "text/plain; charset=utf-8" || !strings.Contains(string(a.body), a.header.Get("X-Request-Id")) {
			t.Errorf("%s: %d %s %q", path, a.status, a.header, a.body)
		}
	}
}

// TestMessageOfDeletedRole: a message whose only role was deleted does not become one for everybody on its page.
func TestMessageOfDeletedRole(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := &browser{client: ts.client()}
	b.goes("/inbox", "/login", "username=root&password="+testPassword+"&next=/inbox")
	b.goes("/messages?done=saved", "/messages",
		"title=Hello&body=World&severity=info&roles=member&expires_at=2999-01-02T03:04")
	ts.exec(`UPDATE system_messages SET role_ids = '{}', expires_at = expires_at + interval '30 seconds'`)
	shown := b.shows(200, "GET", "/messages/1", "", `name="roles" value=""`, `name="former_expires_at"`)
	if strings.Contains(shown, `name="roles" value="" checked`) {
		t.Error("Everybody is ticked")
	}
	b.shows(200, "GET", "/messages", "", "its roles were deleted")
}
