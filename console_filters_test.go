package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRefusedFilters: a filter that is refused leaves the reader on the page, with what was typed, and with an error that
// begins with the label of the field. Days and positions are taken as people type them.
func TestRefusedFilters(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	os.WriteFile(filepath.Join(ts.datasets, "set", "a.tif"), geographicTIFF(7, 46), 0o644)
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location"), nil)

	b := ts.browse("root")
	b.shows(422, "GET", "/audit?since=yesterday&actor=root", "",
		`value="yesterday"`, `value="root"`, `role="alert"`, "Details of row", "<title>Error: Audit log")
	b.shows(400, "GET", "/datasets/1/files?point=here", "", `value="here"`, "a.tif")
	for _, test := range []struct{ path, alert, kept string }{
		{"/users?q=ab", "Name or address: must have 3 or more", `value="ab"`},
		{"/users?role=nobody", "Role: there is no role", `value="nobody"`},
		{"/audit?until=soon", "To (UTC): must be a day or a time, such as 2026-01-31", `value="soon"`},
		{"/files?resolution_min=fine", "Pixels from, in metres: must be a number", `value="fine"`},
		{"/files?point=here", "At longitude, latitude: must be 2 numbers", `value="here"`},
		{"/files?bbox=7,46", "In west, south, east, north: must be 4 numbers", `value="7,46"`},
		{"/files?intersects=area", "In an area (GeoJSON): must be a GeoJSON geometry", ">area</textarea>"},
		{"/files?point=7,46&intersects=area", "In an area (GeoJSON): must be alone", `value="7,46"`},
		{"/files?point=7,46&bbox=7,46,8,47", "At longitude, latitude: cannot be used together with a box", `value="7,46,8,47"`},
		{"/datasets/1?point=400,46", "Files at longitude, latitude: longitudes go from", `value="400,46"`},
		{"/datasets/1/profile?from=here&to=7.5,45.9", "From longitude, latitude: must be 2 numbers", `value="7.5,45.9"`},
		{"/users?nothing=1", "The address has a part that this page does not know", ""},
	} {
		a := b.page("GET", test.path, "")
		_, alert, _ := strings.Cut(string(a.body), `role="alert"`)
		alert, _, _ = strings.Cut(alert, "</div>")
		if a.status < 400 || a.status >= 500 {
			t.Errorf("%s: status %d", test.path, a.status)
		}
		checkHas(t, test.path, alert, test.alert)
		checkLacks(t, test.path, alert, "query parameter")
		checkHas(t, test.path, string(a.body), test.kept)
	}
	b.shows(422, "GET", "/datasets/1?bbox=7,46,10,400", "", "longitudes go from", "Start an analysis")
	b.shows(200, "GET", "/audit?since=2020-01-31", "", "Details of row")
	b.shows(200, "GET", "/audit?since=2020-01-31+12:00&until=2999-01-31", "", "Details of row")
	b.shows(200, "GET", "/audit?until=2020-01-31", "", "No row.")
	for _, point := range []string{"7.5,45.9", "7.5+45.9", "45.9N+7.5E", "45.9+n,+7.5%C2%B0+E"} {
		b.shows(200, "GET", "/datasets/1?point="+point, "", "Files at 7.5,45.9", ">a.tif<")
		b.shows(200, "GET", "/datasets/1/files?point="+point, "", ">a.tif<")
	}
	check(t, "south and west", positionText("45 S 7 W"), "-7,-45")

	// A page that does not exist, or that the reader may not see, is no page with a refused filter.
	b.shows(404, "GET", "/datasets/9?done=saved", "", "To the home page")
}

// TestAddressesOfForms: the address of a form leads to the page that has it, and only for a browser.
func TestAddressesOfForms(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := ts.browse("root")
	for path, want := range map[string]string{
		"/messages/new/preview": "/messages/new",
		"/account/totp/confirm": "/account/totp",
		"/account/name":         "/account",
		"/users/1/roles":        "/users/1",
		"/roles/3/delete":       "/roles",
		"/logout":               "/",
	} {
		if a := b.page("GET", path, ""); a.status != 303 || a.header.Get("Location") != want {
			t.Errorf("GET %s: got %d to %q, want %q", path, a.status, a.header.Get("Location"), want)
		}
	}
	check(t, "for a program", b.do("GET", "/account/name", nil).status, 405)
	check(t, "another method", b.page("DELETE", "/account/name", "").status, 405)
}

// TestRequiredFactorBanner: each page tells somebody who lacks a required second factor, with a link to where it is set up.
func TestRequiredFactorBanner(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("bob", datasetRead)
	b := ts.browse("bob")
	const banner = `<a href="/account/totp">Set it up.</a>`
	if shown := b.shows(200, "GET", "/", ""); strings.Contains(shown, banner) {
		t.Error("the banner is shown to somebody who needs no second factor")
	}
	ts.exec(`UPDATE roles SET requires_second_factor = true WHERE name = 'only-bob'`)
	b.shows(200, "GET", "/", "", banner)
	b.shows(200, "GET", "/account", "", banner)
	b.shows(403, "GET", "/datasets", "", banner)
}

// TestLinksBehindProxies: the link with a password token has the address that the browser has, or is left out.
func TestLinksBehindProxies(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := ts.browse("root")
	host := strings.TrimPrefix(ts.url, "http://")
	for i, test := range []struct{ header, want string }{
		{"Origin: " + ts.url, ts.url + "/set-password#cairn_pw_"},
		{"Origin: https://" + host, "https://" + host + "/set-password#cairn_pw_"},
		{"X-Forwarded-For: 192.0.2.1", ""},
	} {
		a := b.page("POST", "/users", fmt.Sprint("username=user", i), test.header)
		shown := string(a.body)
		check(t, "status", a.status, 200)
		check(t, test.header+": the token is shown", strings.Contains(shown, ">cairn_pw_"), true)
		if test.want == "" {
			check(t, test.header+": a link is shown", strings.Contains(shown, "set-password#"), false)
		} else {
			check(t, test.header+": the link", strings.Contains(shown, test.want), true)
		}
	}
}

// TestFocusOfRefusal: the first wrong field has the focus, and says what is wrong.
func TestFocusOfRefusal(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := ts.browse("root")
	for _, test := range []struct{ path, form, id string }{
		{"/account/tokens", "name=x&permissions=dataset.read&current_password=wrong", "f-account-tokens-current-password"},
		{"/account/password", "current_password=" + testPassword + "&new_password=x", "f-account-password-new-password"},
		{"/users", "username=A B&email=no", "f-users-username"},
	} {
		shown := b.shows(b.page("POST", test.path, test.form).status, "POST", test.path, test.form, `id="`+test.id+`-error"`)
		_, field, _ := strings.Cut(shown, `id="`+test.id+`"`)
		field, _, _ = strings.Cut(field, ">")
		if strings.Count(shown, "autofocus") != 1 || !strings.Contains(field, "autofocus") {
			t.Errorf("POST %s: the focus is not on %s alone", test.path, test.id)
		}
	}
	shown := b.shows(409, "POST", "/users", "username=root", `role="alert" tabindex="-1" autofocus`)
	check(t, "fields with the focus", strings.Count(shown, "autofocus"), 1)
}

// TestOwnUserPage: the page of the reader's own user offers nothing that is refused there.
func TestOwnUserPage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	own := ts.addUser("root", "all")
	other := ts.addUser("ada", datasetRead)
	b := ts.browse("root")
	if shown := b.shows(200, "GET", "/users/"+own, "", "your own account"); strings.Contains(shown, "/delete") {
		t.Error("the page offers to delete the reader")
	}
	b.shows(200, "GET", "/users/"+other, "", "/users/"+other+"/delete", "/password-reset")
	b.shows(200, "GET", "/inbox?unread=true", "", "You have read everything.")
}

// TestInvitedUsers: pages call an active user without a password invited. The API's status stays active. A disabled user
// is not invited.
func TestInvitedUsers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	created := root.must(201, "POST", "/api/v1/users", map[string]string{"username": "ada"})
	page := "/users/" + created.text("id")
	b := ts.browse("root")
	const tag = `<span class="tag invited">invited</span>`

	ts.exec(`UPDATE users SET status = 'disabled' WHERE username = 'admin'`) // it has no password either
	check(t, "invited users", strings.Count(b.shows(200, "GET", "/users", ""), tag), 1)
	b.shows(200, "GET", page, "", tag, "No password yet.", "Make a link to set the password")
	check(t, "status", created.text("status"), "active")

	reset := map[string]string{"token": created.text("password_token"), "new_password": testPassword}
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", reset)
	checkLacks(t, "the page of a user with a password", b.shows(200, "GET", page, ""), tag)
	checkLacks(t, "the list", b.shows(200, "GET", "/users", ""), tag)
}

// TestFactorWithoutApp: the forms of somebody who has only passkeys offer no field to type a code into. Without JavaScript
// they say what is missing.
func TestFactorWithoutApp(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	ts.exec(`UPDATE users SET passkey = true WHERE username = 'ada'`)
	page := b.shows(200, "GET", "/account", "", `<input type="hidden" name="otp" value="">`, "passkeys need JavaScript")
	checkLacks(t, "the page", page, `type="text" name="otp"`)
	form := "email=ada@example.org&current_password=" + testPassword
	b.shows(403, "POST", "/account/email", form, `<p class="error">Type the code`)
}

// TestApprovalPages: an administrator learns of accounts that wait for approval, and their owners learn that they wait.
func TestApprovalPages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_REGISTRATION=approval")
	ts.addUser("root", "all")
	b := &browser{client: ts.client()}
	b.goes("/login?done=registered", "/register", "username=ada&password="+testPassword)
	b.shows(200, "GET", "/login?done=registered", "", "once an administrator has approved it")
	ts.browse("root").shows(200, "GET", "/", "", `<a href="/users?status=pending">1 account to approve</a>`)
}
