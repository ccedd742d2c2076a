package main

import (
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// fresh returns the beginning of a form for a path: the path with the random text of a page that shows the form.
func (b *browser) fresh(page, action string) string {
	b.t.Helper()
	_, form, _ := strings.Cut(b.shows(200, "GET", page, ""), `action="`+action+`"`)
	found := regexp.MustCompile(`name="once" value="([A-Z2-7]{26})"`).FindStringSubmatch(form)
	if found == nil {
		b.t.Fatalf("%s has no form for %s that acts once", page, action)
	}
	return "once=" + found[1] + "&"
}

// secretsOn returns the secrets that a page shows once.
func secretsOn(page string) string {
	return fmt.Sprint(regexp.MustCompile(`<code class="secret">[^<]*<`).FindAllString(page, -1))
}

// TestFormSentTwice: a form that arrives twice, from a double click or a reload of its answer, acts once, and each
// arrival shows the secrets.
func TestFormSentTwice(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	ts.addUser("root", "all")
	b := ts.browse("root")
	twice := func(page, path, form string) string {
		t.Helper()
		form = b.fresh(page, path) + form
		first := b.shows(200, "POST", path, form)
		if second := b.shows(200, "POST", path, form); secretsOn(first) == "[]" || secretsOn(second) != secretsOn(first) {
			t.Errorf("POST %s: got %s, then %s", path, secretsOn(first), secretsOn(second))
		}
		return first
	}

	twice("/account", "/account/tokens", "name=script&permissions=dataset.read&current_password="+testPassword)
	twice("/users", "/users", "username=ada&roles=member")
	ada := "/users/" + userID(ts, "ada")
	twice(ada, ada+"/password-reset", "")

	form := b.fresh("/messages/new", "/messages") + "title=Hello&body=World&severity=info&roles="
	b.goes("/messages?done=saved", "/messages", form)
	b.goes("/messages?done=saved", "/messages", form)
	for query, want := range map[string]int{
		`SELECT count(*) FROM api_tokens`:                                     1,
		`SELECT count(*) FROM system_messages`:                                1,
		`SELECT count(*) FROM audit_log WHERE action = 'user.password_reset'`: 1,
	} {
		if got := ts.queryInt(query); got != want {
			t.Errorf("%s: got %d, want %d", query, got, want)
		}
	}

	shown := twice("/account/totp", "/account/totp", "current_password="+testPassword)
	secret := regexp.MustCompile(`<code class="secret">([A-Z2-7]{32})<`).FindStringSubmatch(shown)[1]
	phone := &app{t, clock, must(base32.StdEncoding.DecodeString(secret)), secret}
	form = strings.TrimPrefix(hiddenOn(t, shown, "/account/totp/confirm"), rawForm) + "&otp=" + phone.code(0)
	codes := secretsOn(b.shows(200, "POST", "/account/totp/confirm", rawForm+form, "They are shown only now"))
	if again := secretsOn(b.shows(200, "POST", "/account/totp/confirm", rawForm+form)); again != codes {
		t.Errorf("the recovery codes: got %s, want %s", again, codes)
	}
}

// TestOnceIsOfOneForm: the answer to a form goes to the same form of the same session alone, for ten minutes. It does not
// lie in the database in clear.
func TestOnceIsOfOneForm(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := ts.browse("root")
	form := b.fresh("/users", "/users") + "username=ada&roles=member"
	b.shows(200, "POST", "/users", form, "cairn_pw_")

	stored := `SELECT count(*) FROM form_answers WHERE position('cairn_pw_'::bytea IN answer) > 0`
	if n := ts.queryInt(stored); n != 0 {
		t.Error("a secret lies in the database in clear")
	}

	other := ts.browse("root")
	if shown := other.shows(409, "POST", "/users", form); strings.Contains(shown, "cairn_pw_") {
		t.Error("another session gets the secret")
	}
	b.shows(409, "POST", "/users", form+"&display_name=Ada") // after Back, with another name: it acts again
	b.shows(200, "POST", "/users", strings.Replace(form, "ada", "eve", 1), "cairn_pw_")
	b.shows(422, "POST", "/roles", form)

	ts.exec(`UPDATE form_answers SET expires_at = now() - interval '1 second'`)
	b.shows(409, "POST", "/users", form)
	form = b.fresh("/account", "/account/tokens") + "name=x&permissions=dataset.read&current_password=" + testPassword
	b.shows(200, "POST", "/account/tokens", form, "cairn_pat_")
	stale := b.cookie
	b.goes("/login?done=out", "/logout", "")
	b.cookie = stale
	if shown := b.shows(401, "POST", "/account/tokens", form); strings.Contains(shown, "cairn_pat_") {
		t.Error("the secret is shown after the session has ended")
	}
}

// TestRefusedFormAgain: a form that was refused may be sent again as it is.
func TestRefusedFormAgain(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("root", "all")
	b := ts.browse("root")
	form := b.fresh("/users", "/users") + "username=ada&roles=later"
	b.shows(422, "POST", "/users", form)
	ts.exec(`INSERT INTO roles (name) VALUES ('later')`)
	b.shows(200, "POST", "/users", form, "cairn_pw_")
}

// TestFormOnTwoInstances: the second arrival waits for the end of the first, also on another instance, and holds nothing
// meanwhile that the first needs.
func TestFormOnTwoInstances(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	one.addUser("root", "all")
	b := one.browse("root")
	form := b.fresh("/users", "/users") + "username=ada&roles=member"
	far := &browser{client: two.client(), cookie: b.cookie}

	answers := make(chan answer)
	unlock := one.holdLock(`SELECT pg_advisory_xact_lock($1)`, int64(lockAccess))
	for _, sender := range []*browser{b, far, b} {
		go func() { answers <- sender.page("POST", "/users", form) }()
	}
	waitFor(t, "a first request at work", func() bool {
		return one.queryInt(`SELECT count(*) FROM form_answers WHERE answer IS NULL`) == 1
	})
	unlock()

	shown := map[string]bool{}
	for range 3 {
		a := <-answers
		if a.status != 200 {
			t.Errorf("got %d: %s", a.status, a.body)
		}
		shown[secretsOn(string(a.body))] = true
	}
	if len(shown) != 1 {
		t.Errorf("the answers differ: %v", shown)
	}
}

// TestOnceIsBounded: a session has at most a hundred answers, and expired ones are swept.
func TestOnceIsBounded(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	ts.exec(`INSERT INTO form_answers (id, session_id, expires_at)
		SELECT n::text::bytea, s.id, now() + interval '10 minutes' FROM sessions s, generate_series(1, 150) n`)
	b.goes("/account?done=saved", "/account/name", "once=x&display_name=Ada")
	if n := ts.queryInt(`SELECT count(*) FROM form_answers`); n > 100 {
		t.Errorf("%d rows of a session", n)
	}
	ts.exec(`UPDATE form_answers SET expires_at = now() - interval '1 second'`)
	if err := sweep(t.Context(), ts.db); err != nil {
		t.Fatal(err)
	}
	if n := ts.queryInt(`SELECT count(*) FROM form_answers`); n != 0 {
		t.Errorf("%d expired rows are left", n)
	}
}

// TestFormAfterItsSession: a form whose session has ended is kept on the login page, without passwords and codes, and
// is sent after the sign-in, also with a second factor.
func TestFormAfterItsSession(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startTOTP(t, clock)
	phone, _ := ts.signIn("root", "all").enrol(clock)
	b := &browser{client: ts.client()}
	form := "title=Hello&body=Line one\r\nL\u00e4nge <b>&severity=info&roles=&otp=123456&current_password=secret"

	shown := b.shows(401, "POST", "/messages", form, "Your session has ended", `name="next" value="/messages"`, "Hello")
	for _, secret := range []string{"123456", "secret"} {
		if strings.Contains(shown, secret) {
			t.Errorf("the page keeps %q", secret)
		}
	}
	shown = b.shows(401, "POST", "/login", hiddenOn(t, shown, "/login")+"&username=root&password=wrong", "is wrong")
	shown = b.shows(200, "POST", "/login", hiddenOn(t, shown, "/login")+"&username=root&password="+testPassword, "Code that")
	clock.step()
	login := hiddenOn(t, shown, "/login") + "&otp=" + phone.code(0)
	shown = b.shows(200, "POST", "/login", login, "You are signed in as root", "<code>/messages</code>", "Send it")
	if n := ts.queryInt(`SELECT count(*) FROM system_messages`); n != 0 {
		t.Error("the announcement is published before somebody has sent it again")
	}
	b.goes("/messages?done=saved", "/messages", hiddenOn(t, shown, "/messages"))
	if n := ts.queryInt(`SELECT count(*) FROM system_messages WHERE title = 'Hello' AND body = E'Line one\nL\u00e4nge <b>'`); n != 1 {
		t.Error("the announcement is not published as it was typed")
	}

	// A large text of a session that has ended arrives too. A form that Cairn cannot keep does no harm.
	stale := b.cookie
	b.goes("/login?done=out", "/logout", "")
	b.cookie = stale
	text := strings.Repeat("\U0001F600", 19_000)
	shown = b.shows(401, "POST", "/messages", "title=Long&body="+text+"&severity=info&roles=", text)
	if n := len(hiddenOn(t, shown, "/login")); n >= large {
		t.Errorf("the login form has %d bytes", n)
	}
	b.shows(401, "POST", "/messages", rawForm+"%zz", "Your session has ended")
	b.shows(401, "POST", "/account/name", rawForm+"form=%00null", "Your session has ended")
	b.shows(401, "POST", "/account/name", "form=null", "Your session has ended")
}
