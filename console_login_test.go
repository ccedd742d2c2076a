package main

import (
	"encoding/base32"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestFirstLogin: while nobody has a password, the login page says where the first administrator's token is.
func TestFirstLogin(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_PASSWORD_MIN=9")
	b := &browser{client: ts.client()}
	b.shows(200, "GET", "/login",
		"", "<code>first-admin-token</code>", `<a href="/set-password">`,
		`<a href="/register">Create an account</a>`)
	b.shows(200, "GET", "/register", "", "At least 9 characters.")
	b.shows(200, "GET", "/set-password", "", "At least 9 characters.")
	ts.addUser("ada", datasetRead)
	if page := b.shows(200, "GET", "/login", ""); strings.Contains(page, "first-admin-token") {
		t.Error("the page tells of the token although somebody has a password")
	}
}

// TestBrowserSession: signing in on the page gives a cookie that opens pages and reads the API, but changes nothing
// there. It ends by signing out, by idleness and in the end.
func TestBrowserSession(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead, userManage)
	b := &browser{client: ts.client()}
	if a := b.page("GET", "/inbox?unread=true", ""); a.status != 303 || a.header.Get("Location") != "/login?next=%2Finbox%3Funread%3Dtrue" {
		t.Errorf("not signed in: %d %s", a.status, a.header)
	}

	b.shows(200, "GET", "/login?next=%2Finbox%3Funread%3Dtrue", "", `value="/inbox?unread=true"`)
	refused := b.shows(401, "POST", "/login",
		"username=ada&password=wrong&next=/inbox", `value="ada"`, `value="/inbox"`,
		"password is wrong")
	if strings.Contains(refused, `"wrong"`) || b.cookie != "" {
		t.Errorf("%s %s", b.cookie, refused)
	}

	b.goes("/inbox", "/login", "username=ada&password="+testPassword+"&next=/inbox")
	first := b.cookie
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE idle_expires_at = created_at + interval '1 day' AND expires_at = created_at + interval '30 days'`); n != 1 {
		t.Error("the session does not last 24 hours idle and 30 days in all")
	}

	b.shows(200, "GET", "/inbox", "", "ada", "Sign out")
	b.must(204, "GET", verifyPath+"?permission="+userManage, nil, "Cookie: "+b.cookie)

	// A proxy asks about a form of a page on a sibling host, with which a browser sends the cookie.
	b.must(204, "GET", verifyPath, nil, "Cookie: "+b.cookie, "X-Original-Method: POST", "Sec-Fetch-Site: same-origin")
	b.refused(403, "cross_origin", "GET", verifyPath,
		nil, "Cookie: "+b.cookie, "X-Original-Method: POST", "Sec-Fetch-Site: same-site")
	b.refused(403, "cross_origin", "GET", verifyPath, nil, "Cookie: "+b.cookie, "Sec-Fetch-Site: same-site") // of any method
	b.must(204, "GET", verifyPath, nil, "Cookie: "+b.cookie, "X-Original-Method: GET", "Sec-Fetch-Site: same-site")

	// A handshake of a WebSocket is a GET, and lets a page act in the user's name: an Upgrade, which Caddy passes on, or
	// Sec-WebSocket-Version, which nginx and Traefik pass on too.
	for _, handshake := range []string{"Upgrade: websocket", "Sec-WebSocket-Version: 13"} {
		ask := []string{"Cookie: " + b.cookie, "X-Original-Method: GET", handshake}
		b.refused(403, "cross_origin", "GET", verifyPath, nil, append(ask, "Sec-Fetch-Site: same-site")...)
		b.refused(403, "cross_origin", "GET", verifyPath, nil, append(ask, "Origin: https://evil.example")...)
		b.must(204, "GET", verifyPath, nil, append(ask, "Sec-Fetch-Site: same-origin")...)
		b.must(204, "GET", verifyPath, nil, append(ask, "Origin: "+ts.url)...)
		b.must(204, "GET", verifyPath, nil, ask...)
	}
	if err := ts.accounts.flushTallies(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(t, "audit rows of refusals", ts.queryInt(`SELECT count(*) FROM audit_log
		WHERE action = 'verify.refused' AND target = 'user:ada' AND credential LIKE 'session:%' AND after = '{"attempts": 6}'`), 1)

	me := b.must(200, "GET", mePath, nil, "Cookie: "+b.cookie)
	if until := me.json["credential"].(map[string]any)["expires_at"]; until == "" || me.text("username") != "ada" {
		t.Errorf("%s", me.body)
	}

	for _, rt := range apiRoutes(ts.server) {
		if rt.who == public || rt.who == refreshCookie || rt.method == "GET" {
			continue
		}
		path := strings.NewReplacer("{id}", "1", "{name}", "x").Replace(rt.path)
		b.refused(401, "not_signed_in", rt.method, path, nil, "Cookie: "+b.cookie)
	}

	// Use moves the end by idleness, at most to the end in all.
	ts.exec(`UPDATE sessions SET rotated_at = now() - interval '6 minutes', idle_expires_at = now() + interval '1 minute'`)
	b.shows(200, "GET", "/inbox", "")
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE idle_expires_at > now() + interval '23 hours'`); n != 1 {
		t.Error("use does not keep the session")
	}

	ts.exec(`UPDATE sessions SET rotated_at = now() - interval '6 minutes', expires_at = now() + interval '1 hour'`)
	b.shows(200, "GET", "/inbox", "")
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE idle_expires_at = expires_at`); n != 1 {
		t.Error("use keeps the session beyond its end")
	}

	// Signing in again ends the session before.
	b.goes("/", "/login", "username=ada&password="+testPassword)
	if n := ts.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL`); n != 1 || b.cookie == first {
		t.Errorf("%d live sessions", n)
	}

	stale := b.cookie
	b.goes("/login?done=out", "/logout", "")
	b.cookie = stale
	b.shows(401, "POST", "/account/name", "display_name=Thief", "Your session has ended")
	b.cookie = first
	b.shows(401, "POST", "/account/name", "display_name=Thief", "Your session has ended")
	for _, forged := range []string{stale + "x", stale[:len(stale)-1], "__Host-cairn_session=", "__Host-cairn_session=..."} {
		b.refused(401, "invalid_token", "GET", mePath, nil, "Cookie: "+forged)
	}

	ts.server.core.now = func() time.Time { return time.Now().Add(31 * 24 * time.Hour) }
	if _, err := ts.keys.Load().verifySessionCookie(strings.TrimPrefix(stale, "__Host-cairn_session="), ts.server.core.now()); err == nil {
		t.Error("the cookie is accepted after 31 days")
	}
}

// rawForm begins a form that is encoded already.
const rawForm = "\x00"

// TestPasswordLinks: where CAIRN_BASE_URL is set, the API and the command line give a link with each password token.
// The page of the link sets the password, once.
func TestPasswordLinks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_BASE_URL=https://cairn.example.org")
	ts.addUser("root", "all")
	browser := func(method, path, form string) answer {
		r, err := http.NewRequest(method, ts.url+path, strings.NewReader(fmt.Sprint(formOf(form))))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "cairn.example.org"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Accept", "text/html")
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return answer{status: response.StatusCode, header: response.Header, body: body}
	}

	said, err := ts.command("user", "reset-password", "root")
	link := strings.TrimSpace(said)
	path, ok := strings.CutPrefix(link, "https://cairn.example.org")
	if err != nil || !ok || !strings.HasPrefix(path, "/set-password#cairn_pw_") {
		t.Fatalf("%q %v", said, err)
	}

	// A browser does not send what follows #. No page takes a token from its address, which logs would have.
	page, token, _ := strings.Cut(path, "#")
	if a := browser("GET", page, ""); a.status != 200 || !strings.Contains(string(a.body), `name="token"`) {
		t.Errorf("the page: got %d %s, want a form that takes the token", a.status, a.body)
	}
	if a := browser("GET", page+"?token="+token, ""); a.status != 400 || strings.Contains(string(a.body), token) {
		t.Errorf("a token in the query: got %d %s, want 400", a.status, a.body)
	}

	for _, want := range []int{303, 401} {
		if a := browser("POST", "/set-password", "token="+token+"&new_password=another good one"); a.status != want {
			t.Errorf("%d, want %d: %s", a.status, want, a.body)
		}
	}
}

// TestSafeNext: the login never leads to another host.
func TestSafeNext(t *testing.T) {
	t.Parallel()
	const base = "https://cairn.example.org"
	for next, want := range map[string]string{
		"":                      "/",
		"/":                     "/",
		"/inbox":                "/inbox",
		"/a?b=//c":              "/a?b=//c",
		base + "/x?y=1":         "/x?y=1",
		"/a/../b":               "/a/../b",
		base:                    "/",
		base + ".evil.example/": "/",
		base + "//evil.example": "/",
		base + "@evil.example/": "/",
		"https://evil.example/": "/",
		"//evil.example":        "/",
		"///evil.example":       "/",
		`/\evil.example`:        "/",
		`\/evil.example`:        "/",
		"/\t/evil.example":      "/",
		"/\n/evil.example":      "/",
		"/\u2028/x":             "/",
		"http:/x":               "/",
		"javascript:alert(1)":   "/",
		" /x":                   "/",
		"inbox":                 "/",
		"?x":                    "/",
		"/%zz":                  "/",
		"https:///evil.example": "/",
		"/\x00":                 "/",
	} {
		if got := safeNext(next, base); got != want {
			t.Errorf("%q leads to %q, want %q", next, got, want)
		}
	}

	if got := safeNext("/x", ""); got != "/x" {
		t.Errorf("without a base URL: %q", got)
	}
}

// TestTOTPPages: a second factor is set up, asked for and removed on pages. The secret and the recovery codes are shown
// once; a wrong code keeps the picture of the secret.
func TestTOTPPages(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	root := ts.signIn("root", "all")
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	b.shows(200, "GET", "/account/totp", "", "Set up")
	b.shows(403, "POST", "/account/totp", "current_password=wrong", "The current password is wrong")
	shown := b.shows(200, "POST", "/account/totp", "current_password="+testPassword, "<svg", "<title>QR code</title>")
	hidden := func(name string) string {
		return html.UnescapeString(regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(shown)[1])
	}

	secret := hidden("secret")
	phone := &app{t, clock, must(base32.StdEncoding.DecodeString(secret)), secret}
	confirm := rawForm + url.Values{"uri": {hidden("uri")}, "secret": {secret}}.Encode() + "&otp="
	shown = b.shows(403, "POST", "/account/totp/confirm", confirm+phone.wrong(), "<svg", secret)
	shown = b.shows(200, "POST", "/account/totp/confirm", confirm+phone.code(0), "They are shown only now")
	recovery := regexp.MustCompile(`<code class="secret">([A-Z2-7-]+)<`).FindAllStringSubmatch(shown, -1)
	if len(recovery) != 10 || strings.Contains(b.shows(200, "GET", "/account/totp", "", "Remove the app"), secret) {
		t.Errorf("%d recovery codes", len(recovery))
	}

	clock.step()
	b.goes("/login?done=out", "/logout", "")
	b.cookie = ""
	second := hiddenOn(t, b.shows(200, "POST", "/login", "username=ada&next=/inbox&password="+testPassword, "Code that your app shows"), "/login")
	b.shows(401, "POST", "/login", second+"&otp="+phone.wrong(), "The code is wrong", "Code that your app shows")
	if b.cookie != "" {
		t.Error("signed in without a code")
	}

	b.goes("/inbox", "/login", second+"&otp="+phone.code(0))
	b.shows(403, "POST", "/account/totp/end", "current_password="+testPassword, "Type the code that your app shows")
	b.shows(200, "GET", "/account",
		"", `id="f-account-tokens-otp"`, `id="f-account-email-otp"`, `id="f-account-password-otp"`)
	b.shows(403, "POST", "/account/tokens",
		"name=x&permissions=dataset.read&current_password="+testPassword+"&otp=",
		"Type the code that your app shows", `value="x"`)
	b.shows(200, "POST", "/account/tokens",
		"name=x&permissions=dataset.read&current_password="+testPassword+"&otp="+recovery[2][1],
		"cairn_pat_")
	b.goes("/account/totp?done=ended", "/account/totp/end", "otp="+recovery[0][1]+"&current_password="+testPassword)
	b.shows(200, "GET", "/account", "", "You have none.")

	// The holders of a role that requires it may only do what everybody may.
	admin := ts.browse("root")
	role := fmt.Sprintf("/roles/%.0f/second-factor", root.must(200, "GET", "/api/v1/roles?name=only-ada", nil).items()[0]["id"])
	admin.goes("/roles?done=saved", role,
		"requires_second_factor=true&tag="+tagOn(t, admin.shows(200, "GET", "/roles", ""), role))
	b.shows(403, "GET", "/datasets", "", "second factor")
	b.shows(200, "GET", "/account", "", "Set one up")
}

// hiddenOn returns the hidden fields of the form for a path on a page, as the beginning of a form.
func hiddenOn(t *testing.T, page, action string) string {
	t.Helper()
	_, form, found := strings.Cut(page, `method="post" action="`+action+`"`)
	if !found {
		t.Fatalf("no form for %s in\n%s", action, page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	values := url.Values{}
	for _, input := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
		values.Add(input[1], html.UnescapeString(input[2]))
	}
	return rawForm + values.Encode()
}

// TestSecondStep: the page asks for the code only after a right password. Its form has neither the password nor anything
// that is of use without a code, or for another user, or later, or after a change of the password.
func TestSecondStep(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	phone, _ := ts.signInCheaply("ada").enrol(clock)
	other, _ := ts.signInCheaply("eve").enrol(clock)
	ts.signInCheaply("bob")
	b := &browser{client: ts.client()}
	if shown := b.shows(200, "GET", "/login?next=/inbox", ""); strings.Contains(shown, "otp") {
		t.Error("the code is asked for at once")
	}
	if shown := b.shows(401, "POST", "/login", "username=ada&password=wrong", "password is wrong"); strings.Contains(shown, "proof") {
		t.Error("a wrong password is taken for a right one")
	}

	b.goes("/", "/login", "username=bob&password="+testPassword) // has no second factor
	b.cookie = ""
	first := func(name string) string {
		t.Helper()
		shown := b.shows(200, "POST", "/login",
			"username="+name+"&otp="+phone.code(0)+"&password="+testPassword,
			"Code that your app shows")
		if strings.Contains(shown, testPassword) || strings.Contains(shown, `type="password"`) {
			t.Errorf("the page has the password:\n%s", shown)
		}
		return hiddenOn(t, shown, "/login")
	}

	ada, eve := first("ada"), first("eve")
	again := func(form string) {
		t.Helper()
		if shown := b.shows(401, "POST", "/login", form, "Sign in again", `type="password"`); strings.Contains(shown, "proof") {
			t.Errorf("%s", shown)
		}
	}

	refusals := `SELECT count(*) FROM audit_log WHERE action = 'session.login_refused'`
	before := ts.queryInt(refusals)
	proof := must(url.ParseQuery(strings.TrimPrefix(ada, rawForm))).Get("proof")
	end, mac, _ := strings.Cut(proof, ".")
	for _, forged := range []string{"", ".", "x", end, "." + mac, end + ".", end + "0." + mac, "+" + proof, "9" + proof, proof + "A", proof[:len(proof)-1], proof + "." + mac, strings.ToUpper(proof)} {
		again("username=ada&otp=" + phone.code(0) + "&proof=" + url.QueryEscape(forged))
	}

	again(strings.Replace(eve, "username=eve", "username=ada", 1) + "&otp=" + phone.code(0))
	again(strings.Replace(ada, "username=ada", "username=nobody", 1) + "&otp=" + phone.code(0))
	if n := ts.queryInt(refusals) - before; n != 0 {
		t.Errorf("%d forged proofs in the audit log", n)
	}

	b.refused(400, "unknown_field", "POST", loginPath,
		map[string]string{"username": "ada", "proof": proof, "otp": phone.code(0)})

	// Without a code, or with a wrong one, the page asks again, and the proof lasts no longer. Wrong codes count.
	ts.exec(`DELETE FROM throttles`)
	clock.step()
	for _, code := range []string{"", "+-+", phone.wrong(), phone.wrong()} {
		if shown := b.shows(401, "POST", "/login", ada+"&otp="+code, "Code that your app shows"); hiddenOn(t, shown, "/login") != ada {
			t.Errorf("the proof is another after the code %q", code)
		}
	}

	if n := ts.queryInt(`SELECT max(attempts) FROM throttles WHERE account <> ''`); n != 2 {
		t.Errorf("%d wrong codes are counted", n)
	}
	if n := ts.queryInt(refusals + ` AND target = 'user:ada' AND after->>'code' = 'otp_invalid'`); n != 2 {
		t.Errorf("%d wrong codes in the audit log", n)
	}

	for range 3 {
		b.shows(401, "POST", "/login", ada+"&otp="+phone.wrong(), "The code is wrong")
	}

	b.shows(429, "POST", "/login", ada+"&otp="+phone.code(0), "Too many attempts", "Code that your app shows")
	ts.exec(`DELETE FROM throttles`)
	if b.cookie != "" {
		t.Fatal("signed in")
	}

	b.goes("/", "/login", ada+"&otp="+phone.code(0))
	if n := ts.queryInt(`SELECT coalesce(max(attempts), 0) FROM throttles WHERE account <> ''`); n != 0 {
		t.Errorf("%d attempts are counted after a success", n)
	}

	clock.ahead.Add(int64(5 * time.Minute))
	again(ada + "&otp=" + phone.code(0))
	again(eve + "&otp=" + other.code(0))
	eve = first("eve")
	ts.exec(`UPDATE users SET credential_version = credential_version + 1`) // as a new password does
	again(eve + "&otp=" + other.code(0))
	eve = first("eve")
	if said, code := status(ts.env, "", "user", "reset-totp", "eve"); code != 0 {
		t.Fatal(said)
	}

	again(eve + "&otp=") // the second factor is gone, and the proof with it
	again(eve + "&otp=" + other.code(0))
}

// TestForeignBasic: HTTP Basic is not taken for a credential of Cairn where a browser shows its session, nor on pages. It may
// be a proxy's in front of Cairn, or an API token that another site's page made the browser store.
func TestForeignBasic(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	ts.addUser("bob", datasetRead)
	token := ts.addToken("bob", "script", datasetRead).token
	b := ts.browse("ada")
	basic := func(password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("proxy:"+password))
	}
	if a := b.page("GET", "/inbox", "", basic("secret")); a.status != 200 || !strings.Contains(string(a.body), "ada") {
		t.Errorf("a page: %d %s", a.status, a.header)
	}
	if a := b.page("POST", "/account/name", "display_name=Ada", basic("secret")); a.status != 303 {
		t.Errorf("a form: %d %s", a.status, a.body)
	}

	cookie := "Cookie: " + b.cookie
	if a := b.must(204, "GET", verifyPath, nil, cookie, basic("secret"), "X-Original-Method: GET"); a.header.Get("X-Cairn-User") != "ada" {
		t.Errorf("a proxy's question: %s", a.header)
	}

	for _, password := range []string{token, token + "0"} {
		if a := b.must(200, "GET", mePath, nil, cookie, basic(password)); a.text("username") != "ada" {
			t.Errorf("an API token beside a session cookie: %s", a.body)
		}
		if a := b.page("GET", "/inbox", "", basic(password)); a.status != 200 || !strings.Contains(string(a.body), "ada") {
			t.Errorf("an API token on a page: %d %s", a.status, a.header)
		}
		if a := ts.client().do("GET", "/inbox", nil, basic(password)); a.status == 200 {
			t.Errorf("an API token on a page, without a session: %s", a.body)
		}
	}

	if a := b.must(200, "GET", mePath, nil, basic(token)); a.text("username") != "bob" {
		t.Errorf("an API token without a session cookie: %s", a.body)
	}

	b.refused(401, "invalid_token", "GET", mePath, nil, basic("secret"))
	b.refused(401, "invalid_token", "GET", mePath, nil, basic("secret"), "Cookie: __Host-cairn_session=forged")
	b.refused(401, "not_signed_in", "POST", stacPath+"/search", "{}", cookie, basic("secret"))
}

// TestBrowserKeys: a former signing key stays as long as it may have signed a session cookie that is still good.
func TestBrowserKeys(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_ACCESS_TTL=1h", "CAIRN_REFRESH_TTL=1h")
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	first := ts.keys.Load().keys[0]
	added := must(ts.command("keys", "add"))
	must(ts.command("keys", "promote", strings.TrimSuffix(strings.Fields(added)[2], ":")))
	ts.keys.Store(must(loadKeys(ts.cfg.keysPath(), "", false)))
	waitFor(t, "a heartbeat under the new key", func() bool {
		return ts.queryInt(`SELECT count(*) FROM instances WHERE signer = $1`, ts.keys.Load().keys[0].fingerprint) == 1
	})

	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	for _, test := range [][2]string{{"29 days", "every key is needed"}, {"31 days", "removed key " + first.id}} {
		ts.exec(`UPDATE instances SET seen_at = now() - $2::text::interval WHERE signer = $1`, first.fingerprint, test[0])
		ts.exec(`DELETE FROM audit_seals WHERE kid = $1`, first.id)
		if said := must(ts.command("keys", "prune")); !strings.Contains(said, test[1]) {
			t.Fatalf("after %s: %s, want %s", test[0], said, test[1])
		}
		b.shows(200, "GET", "/inbox", "") // the service still has both keys in memory
	}
}
