//go:build peers

package main

import (
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pageForm is a form of the pages, and the hazards under which TestPeerBrowserForms sends it.
type pageForm struct {
	path    string                 // as in formTable
	typed   string                 // what is typed, as a query. USER is the user's name
	make    func(*formCase) string // makes what the form is about, and returns the ids in its path, with slashes between
	done    string                 // counts how often the form has acted: an action of the audit log, or SQL with USER as $1
	hazards string                 // the first letters of their names: a capital is for each run, the others for one with CAIRN_SOAK
}

// pageForms returns the forms of all pages. Left out are previews, which change nothing; sign-in by a passkey, which
// TestPeerPasskeys does; and the form that cancels an analysis, because the analyses of this test end too soon.
func pageForms() []pageForm {
	const password = "current_password=" + testPassword
	const new = "&new_password=a long enough one"
	return []pageForm{
		// These forms are for people without a session, so none can end.
		{"/login", "username=USER-other&password=" + testPassword, (*formCase).otherName,
			`SELECT count(*) FROM sessions s JOIN users u ON u.id = user_id WHERE username = $1 || '-other' AND ended_at IS NULL`, "DbtrO"},
		{"/register", "username=USER-new&password=a long enough one", nil, `SELECT count(*) FROM users WHERE username = $1 || '-new'`, "dBtrO"},
		{"/set-password", "new_password=a long enough one", (*formCase).passwordToken,
			`SELECT count(*) FROM audit_log WHERE action = 'password.reset' AND target = 'user:' || $1 || '-other'`, "dbTRo"},
		{"/logout", "", nil, "session.logout", "DTro"},

		{"/inbox/{id}/read", "", (*formCase).message, `SELECT count(*) FROM system_message_reads JOIN system_messages m ON m.id = message_id WHERE title = $1`, "Dbtreo"},
		{"/inbox/read-all", "", (*formCase).message,
			`SELECT count(*) FROM system_message_reads JOIN system_messages m ON m.id = message_id WHERE title = $1`, "dbTreo"},

		{"/account/name", "display_name=Ada", nil, "user.update", "dbtrEo"},
		{"/account/email", "email=USER@example.org&" + password, nil, "user.update", "dBtrEo"},
		{"/account/password", password + new, nil, "password.change", "dbTrEo"},
		{"/account/sessions/end", "", (*formCase).ownSession, "session.end", "Dbtreo"},
		{"/account/sessions/{id}/end", "", (*formCase).ownSession, "session.end", "dBtreo"},
		{"/account/tokens", "name=t&permissions=dataset.read&" + password, nil, "token.create", "DbtReO"},
		{"/account/tokens/{id}/end", "", (*formCase).ownToken, "token.end", "dbTreo"},
		// To add a passkey, the script asks the service before it sends the form: without a session or a network nothing is sent.
		{"/account/passkeys", "name=phone&" + password, nil, "passkey.add", "Dbr"},
		// With a second factor, a sign-in does not lead to the form at once. A secret is shown in one tab only.
		{"/account/passkeys/{id}/end", password, (*formCase).ownPasskey, "passkey.end", "Dbtro"},
		{"/account/totp", password, nil, `SELECT count(*) FROM totp_secrets JOIN users u ON u.id = user_id WHERE username = $1`, "dbtREo"},
		{"/account/totp/confirm", "", (*formCase).ownSecret, "totp.enable", "DbReo"},
		{"/account/totp/end", password, (*formCase).ownApp, "totp.disable", "dBtro"},

		// Two tabs with a new announcement are two of them. So are two with a link for a password, or with a new analysis.
		{"/messages", "title=USER&body=b&roles=", nil, "message.create", "DBrEo"},
		{"/messages/{id}", "title=new", (*formCase).message, "message.update", "dbTrEo"},
		{"/messages/{id}/retract", "", (*formCase).message, "message.retract", "dbtreO"},

		{"/users", "username=USER-new&roles=member", nil, "user.create", "dBtReo"},
		{"/users/{id}", "display_name=Ada", (*formCase).other, "user.update", "dbTreO"},
		{"/users/{id}/roles", "roles=member", (*formCase).other, "user.roles", "dbTreo"},
		{"/users/{id}/password-reset", "", (*formCase).other, "user.password_reset", "DbReo"},
		{"/users/{id}/sessions/end", "", (*formCase).other, "session.end", "dbtreO"},
		{"/users/{id}/tokens/end", "", (*formCase).other, "token.end", "Dbtreo"},
		{"/users/{id}/totp/end", "", (*formCase).other, "totp.disable", "dBtreo"},
		{"/users/{id}/delete", "", (*formCase).other, "user.delete", "dBTreo"},

		{"/roles", "name=USER", nil, "role.create", "dBtreo"},
		{"/roles/{id}", "permissions=dataset.read", (*formCase).role, "role.update", "dbTrEo"},
		{"/roles/{id}/second-factor", "requires_second_factor=true", (*formCase).role, "role.update", "Dbtreo"},
		{"/roles/{id}/delete", "", (*formCase).role, "role.delete", "dbtreO"},
		{"/permissions", "name=USER.edit&meaning=m", nil, "permission.create", "dbTreo"},
		{"/permissions/{name}/delete", "", (*formCase).permission, "permission.delete", "Dbtreo"},

		{"/datasets", "name=USER&path=USER", (*formCase).directory, "dataset.create", "DBtreO"},
		{"/datasets/{id}", "description=new", (*formCase).dataset, "dataset.update", "dbTrEo"},
		{"/datasets/{id}/expectation", "crs=EPSG:4326", (*formCase).analyzed, "dataset.expect", "dbtrEo"},
		{"/datasets/{id}/delete", "", (*formCase).dataset, "dataset.delete", "dbtReo"},
		{"/datasets/{id}/analyses", "", (*formCase).dataset, "analysis.create", "DbReo"},
		{"/datasets/{id}/accepted", "paths=broken.tif&note=known", (*formCase).analyzed, "finding.accept", "dBtrEo"},
		{"/datasets/{id}/accepted/{accepted}/reopen", "", (*formCase).accepted, "finding.reopen", "Dbtreo"},
	}
}

// formCase is a form that a user of its own sends in a browser.
type formCase struct {
	*chromium
	ts    *testServer
	root  client
	clock *testClock
	form  pageForm
	user  string
	http  *browser // the same session, without a browser

	page   string // the path of the page with the form
	action string // the path that the form is sent to
	typed  url.Values
}

// create creates an object by the API and returns its id.
func (x *formCase) create(path string, body any) string {
	x.t.Helper()
	a := x.root.must(201, "POST", path, body)
	if id := a.text("id"); id != "" {
		return id
	}
	return fmt.Sprint(a.number("id"))
}

func (x *formCase) message() string {
	return x.create("/api/v1/system-messages", map[string]string{"title": x.user, "body": "b"})
}

func (x *formCase) role() string {
	return x.create("/api/v1/roles", map[string]any{"name": x.user, "permissions": []string{}})
}

func (x *formCase) permission() string {
	x.root.must(201, "POST", permissionsPath, map[string]string{"name": x.user + ".edit", "meaning": "m"})
	return x.user + ".edit"
}

func (x *formCase) otherName() string { x.ts.addUser(x.user+"-other", "all"); return "" }

// other adds a user with a session, an API token and a second factor.
func (x *formCase) other() string {
	x.otherName()
	c, _ := x.ts.client().login(x.user+"-other", testPassword)
	c.enrol(x.clock)
	x.ts.addToken(x.user+"-other", "nightly", datasetRead)
	return userID(x.ts, x.user+"-other")
}

func (x *formCase) passwordToken() string {
	reset := "/api/v1/users/" + x.other() + "/password-reset"
	x.typed.Set("token", x.root.must(201, "POST", reset, nil).text("password_token"))
	return ""
}

// own signs the user in once more.
func (x *formCase) own() client {
	c, _ := x.ts.client().login(x.user, testPassword)
	return c
}

func (x *formCase) ownSession() string { return strings.TrimPrefix(x.own().credentialID(), "session:") }

func (x *formCase) ownToken() string {
	x.ts.addToken(x.user, "nightly", datasetRead)
	return x.own().must(200, "GET", tokensPath, nil).items()[0]["id"].(string)
}

// phone adds an app by the page that sets one up, and returns it.
func (x *formCase) phone() *app {
	shown := x.http.shows(200, "POST", "/account/totp", "current_password="+testPassword)
	secret := regexp.MustCompile(`<code class="secret">([A-Z2-7]{32})<`).FindStringSubmatch(shown)[1]
	return &app{x.t, x.clock, must(base32.StdEncoding.DecodeString(secret)), secret}
}

func (x *formCase) ownApp() string {
	phone := x.phone()
	x.http.shows(200, "POST", "/account/totp/confirm", "otp="+phone.code(0))
	x.clock.step()
	x.typed.Set("otp", phone.code(0))
	return ""
}

func (x *formCase) ownPasskey() string {
	key := x.ts.newAuthenticator()
	key.host = "localhost"
	x.http.goes("/account?done=saved", "/account/passkeys", "name=phone&current_password="+testPassword+"&passkey="+key.answer(x.root, "create"))
	x.typed.Set("otp", key.answer(x.root, "get"))
	id := ""
	if err := x.ts.db.QueryRow(x.t.Context(), `SELECT id::text FROM passkeys WHERE credential_id = $1`, key.id).Scan(&id); err != nil {
		x.t.Fatal(err)
	}
	return id
}

// ownSecret opens the page with the secret of an app, which answers another form.
func (x *formCase) ownSecret() string {
	x.page, x.action = "/account/totp", "/account/totp"
	x.typed.Set("current_password", testPassword)
	x.open(x.page)
	x.fillIn()
	x.submit()
	secret := x.call("GET", x.find("//code[@class='secret']")+"/text", nil).(string)
	phone := &app{x.t, x.clock, must(base32.StdEncoding.DecodeString(secret)), secret}
	x.typed = url.Values{"otp": {phone.code(0)}}
	return ""
}

func (x *formCase) directory() string {
	dir := filepath.Join(x.ts.datasets, x.user)
	os.Mkdir(dir, 0o755)
	os.WriteFile(filepath.Join(dir, "broken.tif"), []byte("II*\x00"), 0o644)
	return ""
}

func (x *formCase) dataset() string {
	x.directory()
	return x.create("/api/v1/datasets", map[string]string{"name": x.user, "path": x.user})
}

func (x *formCase) analyzed() string {
	id := x.dataset()
	x.root.analyze("/api/v1/datasets/"+id, nil)
	return id
}

func (x *formCase) accepted() string {
	id := x.analyzed()
	body := map[string]any{"code": "corrupt", "paths": []string{"broken.tif"}, "note": "n"}
	items := x.root.must(201, "POST", "/api/v1/datasets/"+id+"/accepted-findings", body).items()
	return fmt.Sprintf("%s/%.0f", id, items[0]["id"])
}

// prepare signs a new user in, makes what the form is about, and opens the page of the form, filled in.
func (x *formCase) prepare() {
	x.t.Helper()
	x.ts.exec(`DELETE FROM throttles`)
	x.ts.addUser(x.user, "all")
	x.http = x.ts.browse(x.user)
	name, value, _ := strings.Cut(x.http.cookie, "=")
	x.devtools("Network.setCookie", map[string]any{"name": name, "value": value, "url": x.site, "path": "/", "secure": true, "httpOnly": true})

	x.typed, _ = url.ParseQuery(strings.ReplaceAll(x.form.typed, "USER", x.user))
	ids := ""
	if x.form.make != nil {
		ids = x.form.make(x)
	}
	isOpen := x.page != ""
	x.page = x.form.path // of the login page
	for _, f := range forms() {
		if f.path == x.form.path {
			x.page = f.page
		}
	}
	if x.form.path == "/logout" {
		x.page = "/"
	}
	x.page, x.action = withIDs(x.page, ids), withIDs(x.form.path, ids)
	if !isOpen {
		x.open(x.page)
	}
	x.fillIn()
}

// withIDs returns a path with ids, which have slashes between them, in place of its variables.
func withIDs(path, ids string) string {
	for id := range strings.SplitSeq(ids, "/") {
		before, rest, _ := strings.Cut(path, "{")
		if _, after, isVariable := strings.Cut(rest, "}"); isVariable {
			path = before + id + after
		}
	}
	return path
}

// fillIn fills the form in, as far as it is not yet, names its button and marks the document.
func (x *formCase) fillIn() {
	x.t.Helper()
	typed := must(json.Marshal(x.typed))
	fault := x.run(fmt.Sprintf(`const typed = %s, action = %q, done = arguments[arguments.length - 1];
		const form = [...document.forms].find(f => f.getAttribute("action") === action && Object.keys(typed).every(name => f.elements[name]));
		if (!form) return done("no form for " + action + " at " + location);
		document.querySelectorAll("details").forEach(d => { d.open = true; });
		for (const input of form.elements) {
			const values = typed[input.name] ?? [];
			if (input.type === "checkbox" && values.includes(input.value) && !input.checked) input.click();
			if (input.type !== "checkbox" && values.length) input.value = values[0];
		}
		document.getElementById("button")?.removeAttribute("id");
		const button = [...form.elements].find(e => e.tagName === "BUTTON" && !e.hasAttribute("formaction") && e.textContent !== "Use a passkey");
		button.id = "button";
		button.scrollIntoView({ block: "center" });
		done("")`, typed, x.action))
	if fault != "" {
		x.t.Fatal(fault)
	}
	x.mark()
}

// submit clicks the button and waits for the next page.
func (x *formCase) submit() {
	x.t.Helper()
	x.click("//*[@id='button']")
	x.arrives()
}

// arrives waits for another document than the one that mark has marked.
func (x *formCase) arrives() {
	x.t.Helper()
	x.find("//html[not(@data-old)]")
}

// mark marks the document.
func (x *formCase) mark() {
	x.t.Helper()
	x.run(`document.documentElement.dataset.old = ""; arguments[arguments.length - 1]()`)
}

// times returns how often the form has acted.
func (x *formCase) times() int {
	x.t.Helper()
	if strings.Contains(x.form.done, " ") {
		return x.ts.queryInt(x.form.done, x.user)
	}
	return x.ts.queryInt(`SELECT count(*) FROM audit_log WHERE actor = $1 AND action = $2`, x.user, x.form.done)
}

// lost returns the names of the fields of a refused form, other than secrets, that do not hold what was typed.
func (x *formCase) lost() string {
	x.t.Helper()
	return fmt.Sprint(x.run(fmt.Sprintf(`const typed = %s, done = arguments[arguments.length - 1];
		if (!document.querySelector(".refusal")) return done("");
		const holds = (name, value) => [...document.getElementsByName(name)].some(i => i.value === value && (i.type !== "checkbox" || i.checked));
		const isSecret = name => /password|otp|token/.test(name);
		done(Object.keys(typed).filter(name => !isSecret(name) && !typed[name].every(value => holds(name, value))).join(" "))`,
		must(json.Marshal(x.typed)))))
}

// secrets returns the secrets that the page shows.
func (x *formCase) secrets() string {
	x.t.Helper()
	return fmt.Sprint(x.run(`arguments[arguments.length - 1]([...document.querySelectorAll(".secret")].map(e => e.textContent).join())`))
}

// doubleClick clicks the button twice.
func (x *formCase) doubleClick() {
	x.t.Helper()
	element := strings.TrimPrefix(x.find("//*[@id='button']"), "/element/")
	over := map[string]any{"type": "pointerMove", "x": 0, "y": 0, "origin": map[string]string{"element-6066-11e4-a52e-4f735466cecf": element}}
	down := map[string]any{"type": "pointerDown", "button": 0}
	up := map[string]any{"type": "pointerUp", "button": 0}
	mouse := map[string]any{"type": "pointer", "id": "mouse", "actions": []any{over, down, up, down, up}}
	x.call("POST", "/actions", map[string]any{"actions": []any{mouse}})
	x.arrives()
}

// back goes back after the form was sent, and sends it again.
func (x *formCase) back() {
	x.t.Helper()
	x.submit()
	x.call("POST", "/back", nil)
	if x.isThere() {
		x.fillIn()
		x.submit()
	}
}

// isThere reports whether the page has the form.
func (x *formCase) isThere() bool {
	return x.run(fmt.Sprintf(`arguments[arguments.length - 1]([...document.forms].some(f => f.getAttribute("action") === %q))`, x.action)) == true
}

// reload loads the answer to the form again.
func (x *formCase) reload() {
	x.t.Helper()
	x.submit()
	shown := x.secrets()
	x.call("POST", "/refresh", nil)
	check(x.t, "the secrets after a reload", x.secrets(), shown)
}

// twoTabs sends the same form from another tab first.
func (x *formCase) twoTabs() {
	x.t.Helper()
	first := x.call("GET", "/window", nil)
	for _, tab := range x.call("GET", "/window/handles", nil).([]any) {
		if tab != first {
			x.call("POST", "/window", map[string]any{"handle": tab})
		}
	}
	x.open(x.page)
	x.fillIn()
	x.submit()
	x.call("POST", "/window", map[string]any{"handle": first})
	x.submit()
}

// ended ends the session before the form is sent, and signs in again. Passwords and codes are typed once more.
func (x *formCase) ended() {
	x.t.Helper()
	x.ts.exec(`UPDATE sessions SET ended_at = now() WHERE id = (
		SELECT s.id FROM sessions s JOIN users u ON u.id = user_id WHERE username = $1 ORDER BY s.created_at DESC LIMIT 1)`, x.user)
	x.submit()
	x.signIn(x.user, testPassword)
	x.find("//button[.='Send it']")
	x.mark()
	x.press("Send it")
	x.arrives()
	if strings.Contains(x.form.typed, "password") {
		check(x.t, "fields lost after the sign-in", x.lost(), "")
		x.fillIn()
		x.submit()
	}
}

// offline sends the form without a network, and reloads the browser's own error page once there is one.
func (x *formCase) offline() {
	x.t.Helper()
	network := func(isOff bool) {
		x.devtools("Network.emulateNetworkConditions", map[string]any{"offline": isOff, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})
	}
	network(true)
	defer network(false)
	x.run(`setTimeout(() => document.getElementById("button").click()); arguments[arguments.length - 1]()`)
	x.find("//*[@id='main-frame-error']")
	network(false)
	x.call("POST", "/refresh", nil)
	x.find("//main")
}

// TestPeerBrowserForms sends the forms of the pages under hazards. Each form acts once. What was typed is done, or is there
// still.
func TestPeerBrowserForms(t *testing.T) {
	clock := &testClock{}
	ts := startTOTP(t, clock)
	ts.url = strings.Replace(ts.url, "127.0.0.1", "localhost", 1) // passkeys are bound to a name
	ts.core.cfg.baseURL = ts.url
	root := ts.signIn("root", "all")
	c := startChromium(t, ts.url, true)
	c.call("POST", "/window/new", map[string]any{"type": "tab"})
	c.open("/login")
	c.addAuthenticator()
	c.devtools("Network.enable", map[string]any{})

	hazards := map[string]func(*formCase){
		"double click": (*formCase).doubleClick,
		"back":         (*formCase).back,
		"tabs":         (*formCase).twoTabs,
		"reload":       (*formCase).reload,
		"ended":        (*formCase).ended,
		"offline":      (*formCase).offline,
	}
	n := 0
	for _, form := range pageForms() {
		for name, hazard := range hazards {
			isChosen := strings.Contains(form.hazards, strings.ToUpper(name[:1]))
			applies := strings.Contains(strings.ToLower(form.hazards), name[:1])
			if !isChosen && !(applies && soakOr(1, 0) == 1) {
				continue
			}
			n++
			t.Run(strings.ReplaceAll(form.path[1:], "/", " ")+", "+name, func(t *testing.T) {
				b := *c
				b.t = t
				root.t = t
				x := &formCase{chromium: &b, ts: ts, root: root, clock: clock, form: form, user: fmt.Sprintf("u%d", n)}
				x.prepare()
				before := x.times()
				hazard(x)
				check(t, "times that the form has acted", x.times()-before, 1)
				check(t, "fields lost", x.lost(), "")
			})
		}
	}
}
