package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const passkeysPath = "/api/v1/auth/passkeys"

// authenticator is an authenticator with one key, and the browser that asks it. Its fields may be set to what an attacker
// would send.
type authenticator struct {
	key         *ecdsa.PrivateKey
	id          []byte
	origin      string
	host        string
	crossOrigin bool
	more        map[string]any // further fields of the client data
	flags       byte           // of assertions
	count       uint32         // is raised by each assertion, unless it is 0
	challenge   string         // is answered instead of a new one
	purpose     string         // is added to the challenge
}

// newAuthenticator returns an authenticator with a new key for a service, which does not count.
func (ts *testServer) newAuthenticator() *authenticator {
	ts.t.Helper()
	id := make([]byte, 64) // PostgreSQL would break base64 of more than 57 bytes
	rand.Read(id)
	return &authenticator{
		key:    must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)),
		id:     id,
		origin: ts.core.cfg.baseURL,
		host:   "127.0.0.1",
		flags:  userPresent | userVerified,
	}
}

// credentialID returns the credential id as answers have it.
func (k *authenticator) credentialID() string { return base64.StdEncoding.EncodeToString(k.id) }

// answer returns the answer to a challenge of the service.
func (k *authenticator) answer(c client, kind string) string {
	c.t.Helper()
	challenge := k.challenge
	if challenge == "" {
		challenge = c.must(200, "GET", passkeysPath+"/challenge", nil).text("challenge")
	}
	client := map[string]any{
		"type":        "webauthn." + kind,
		"challenge":   base64.RawURLEncoding.EncodeToString([]byte(challenge + k.purpose)),
		"origin":      k.origin,
		"crossOrigin": k.crossOrigin,
		"other":       "browsers may add fields",
	}
	maps.Copy(client, k.more)
	clientData := must(json.Marshal(client))

	flags := k.flags
	if kind == "create" {
		flags |= hasCredential
	} else if k.count > 0 {
		k.count++
	}
	host := sha256.Sum256([]byte(k.host))
	data := append(host[:], flags)
	data = binary.BigEndian.AppendUint32(data, k.count)

	var proof []byte
	if kind == "create" {
		data = append(data, make([]byte, 16)...)
		data = binary.BigEndian.AppendUint16(data, uint16(len(k.id)))
		data = append(append(data, k.id...), "a key in CBOR"...)
		proof = must(x509.MarshalPKIXPublicKey(&k.key.PublicKey))
	} else {
		sum := sha256.Sum256(clientData)
		signed := sha256.Sum256(slices.Concat(data, sum[:]))
		proof = must(ecdsa.SignASN1(rand.Reader, k.key, signed[:]))
	}
	return string(must(json.Marshal(map[string]any{
		"credential_id":      k.id,
		"client_data":        clientData,
		"authenticator_data": data,
		"proof":              proof,
	})))
}

// startPasskeys starts a service that offers passkeys.
func startPasskeys(t *testing.T, clock *testClock) *testServer {
	t.Helper()
	ts := startTOTP(t, clock)
	ts.core.cfg.baseURL = ts.url
	return ts
}

// newPasskey returns the body that adds an authenticator's key. otp is the second factor, if there is one.
func (c client) newPasskey(k *authenticator, otp string) map[string]string {
	c.t.Helper()
	return map[string]string{
		"name":             "phone",
		"passkey":          k.answer(c, "create"),
		"current_password": testPassword,
		"otp":              otp,
	}
}

// addPasskey adds a passkey for a user without a second factor, and returns its id.
func (c client) addPasskey(k *authenticator) (id string) {
	c.t.Helper()
	return c.must(201, "POST", passkeysPath, c.newPasskey(k, "")).text("id")
}

// loginPasskey signs in with the answer alone.
func (c client) loginPasskey(answer string) answer {
	c.t.Helper()
	return c.do("POST", loginPath, map[string]string{"otp": answer})
}

// TestPasskey follows a passkey from the account's page to its end.
func TestPasskey(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	ada := ts.signInCheaply("ada")
	other, _ := ts.client().login("ada", testPassword)
	key := ts.newAuthenticator()
	ada.refused(403, "wrong_password", "POST", passkeysPath, map[string]string{"name": "phone", "passkey": key.answer(ada, "create"), "current_password": "wrong password"})
	id := ada.addPasskey(key)
	check(t, "passkey of the user", ada.must(200, "GET", mePath, nil).json["passkey"], any(true))
	other.refused(401, "invalid_token", "GET", mePath, nil) // it was opened without a second factor
	item := onlyItem(t, "passkeys", ada.must(200, "GET", passkeysPath, nil).items())
	check(t, "credential id", item["credential_id"], any(key.credentialID()))
	check(t, "last use", item["last_used_at"], nil)

	// It signs in alone, and is the second factor after the password.
	signedIn := ts.client().loginPasskey(key.answer(ada, "get"))
	checkAnswer(t, "sign-in", signedIn, 200, "")
	ts.client().as(signedIn.text("access_token")).must(200, "GET", mePath, nil)
	check(t, "logins with the passkey in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.login' AND after ->> 'name' = 'phone'`), 1)
	checkAnswer(t, "password alone", ts.client().loginOTP("ada", testPassword, "", "198.51.100.1"), 401, "otp_required")
	key.flags = userPresent
	checkAnswer(t, "password and a touch", ts.client().loginOTP("ada", testPassword, key.answer(ada, "get"), "198.51.100.1"), 200, "")
	checkAnswer(t, "a wrong password and a touch", ts.client().loginOTP("ada", "wrong password", key.answer(ada, "get"), "198.51.100.1"), 401, "invalid_credentials")
	checkAnswer(t, "a touch alone", ts.client().loginPasskey(key.answer(ada, "get")), 401, "passkey_invalid")
	item = onlyItem(t, "passkeys", ada.must(200, "GET", passkeysPath, nil).items())
	check(t, "was used", item["last_used_at"] != nil, true)

	// A session and the password make no lasting way in, and end none.
	second := ts.newAuthenticator()
	ada.refused(403, "otp_required", "POST", passkeysPath, ada.newPasskey(second, ""))
	ada.refused(403, "otp_invalid", "POST", passkeysPath, ada.newPasskey(second, second.answer(ada, "get")))
	ada.refused(403, "otp_required", "POST", totpPath, map[string]string{"current_password": testPassword})
	ada.refused(403, "otp_required", "POST", tokensPath, map[string]any{"name": "t", "permissions": []string{inboxRead}, "current_password": testPassword})
	ada.refused(403, "otp_required", "DELETE", passkeysPath+"/"+id, map[string]string{"current_password": testPassword})
	ada.must(201, "POST", passkeysPath, ada.newPasskey(second, key.answer(ada, "get")))

	// An ended key opens nothing, and the sessions that it may have opened end.
	thief := ts.client().as(ts.client().loginPasskey(second.answer(ada, "get")).text("access_token"))
	thief.must(200, "GET", mePath, nil)
	ada.must(204, "DELETE", passkeysPath+"/"+id, map[string]string{"current_password": testPassword, "otp": second.answer(ada, "get")})
	thief.refused(401, "invalid_token", "GET", mePath, nil)
	key.flags = userPresent | userVerified
	checkAnswer(t, "an ended key", ts.client().loginPasskey(key.answer(ada, "get")), 401, "passkey_invalid")
	checkAnswer(t, "an ended key as second factor", ts.client().loginOTP("ada", testPassword, key.answer(ada, "get"), "198.51.100.1"), 401, "otp_invalid")
	check(t, "passkey of the user", ada.must(200, "GET", mePath, nil).json["passkey"], any(true))
	check(t, "rows of the first key", ts.queryInt(`SELECT count(*) FROM audit_log WHERE coalesce(before, after) ->> 'credential_id' = $1 AND action LIKE 'passkey.%'`, key.credentialID()), 2)
	for action, want := range map[string]int{"passkey.add": 2, "passkey.end": 1} {
		check(t, action, ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = $1 AND target = 'user:ada'`, action), want)
	}
}

// TestPasskeyAttacks: an answer counts once, in time, for this site, by the key of this user.
func TestPasskeyAttacks(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startPasskeys(t, clock)
	ada, bob := ts.signInCheaply("ada"), ts.signInCheaply("bob")
	key, bobs := ts.newAuthenticator(), ts.newAuthenticator()
	ada.addPasskey(key)
	bob.addPasskey(bobs)
	used := key.answer(ada, "get")
	older := key.answer(ada, "get")
	first := ada.must(200, "GET", passkeysPath+"/challenge", nil).text("challenge")
	checkAnswer(t, "sign-in", ts.client().loginPasskey(key.answer(ada, "get")), 200, "")

	attacks := map[string]func(k *authenticator) string{
		"a page of another origin": func(k *authenticator) string { k.origin = "https://evil.example"; return k.answer(ada, "get") },
		"another port":             func(k *authenticator) string { k.origin += "1"; return k.answer(ada, "get") },
		"no origin":                func(k *authenticator) string { k.origin = ""; return k.answer(ada, "get") },
		"a frame of another site":  func(k *authenticator) string { k.crossOrigin = true; return k.answer(ada, "get") },
		"a frame, told in another field": func(k *authenticator) string {
			k.more = map[string]any{"topOrigin": "https://evil.example"}
			return k.answer(ada, "get")
		},
		"the right origin in a field of almost that name": func(k *authenticator) string {
			k.origin = "https://evil.example"
			k.more = map[string]any{"oriGin": ts.url}
			return k.answer(ada, "get")
		},
		"another host":                func(k *authenticator) string { k.host = "evil.example"; return k.answer(ada, "get") },
		"nobody is there":             func(k *authenticator) string { k.flags = userVerified; return k.answer(ada, "get") },
		"the user is not verified":    func(k *authenticator) string { k.flags = userPresent; return k.answer(ada, "get") },
		"a challenge of the thief":    func(k *authenticator) string { k.challenge = "9" + first; return k.answer(ada, "get") },
		"another time in a challenge": func(k *authenticator) string { k.challenge = "1" + first[1:]; return k.answer(ada, "get") },
		"no challenge":                func(k *authenticator) string { k.challenge = "."; return k.answer(ada, "get") },
		"an older challenge":          func(k *authenticator) string { k.challenge = first; return k.answer(ada, "get") },
		"a registration":              func(k *authenticator) string { return k.answer(ada, "create") },
		"a replay":                    func(*authenticator) string { return used },
		"an older answer":             func(*authenticator) string { return older },
		"the key of another user":     func(k *authenticator) string { k.key = bobs.key; return k.answer(ada, "get") },
		"an unknown credential id":    func(k *authenticator) string { k.id = []byte("unknown"); return k.answer(ada, "get") },
		"no credential id":            func(k *authenticator) string { k.id = nil; return k.answer(ada, "get") },
		"no bytes": func(k *authenticator) string {
			return strings.Replace(k.answer(ada, "get"), k.credentialID(), `\u0000`, 1)
		},
		"no JSON":   func(*authenticator) string { return "{" },
		"no fields": func(*authenticator) string { return "{}" },
		"a byte more": func(k *authenticator) string {
			return strings.Replace(k.answer(ada, "get"), `"client_data":"`, `"client_data":"IA`, 1)
		},
	}
	checkAnswer(t, "sign-in once more", ts.client().loginPasskey(key.answer(ada, "get")), 200, "")
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			ts.exec(`DELETE FROM throttles`)
			attacker := *key
			text := attack(&attacker)
			before := ts.queryInt(`SELECT last_challenge FROM passkeys WHERE credential_id = $1`, key.id)
			checkAnswer(t, "sign-in", ts.client().loginPasskey(text), 401, "passkey_invalid")
			check(t, "last challenge", ts.queryInt(`SELECT last_challenge FROM passkeys WHERE credential_id = $1`, key.id), before)
		})
	}
	ts.exec(`DELETE FROM throttles`)
	late := key.answer(ada, "get")
	clock.ahead.Add(int64(5 * time.Minute))
	checkAnswer(t, "an answer that comes too late", ts.client().loginPasskey(late), 401, "passkey_invalid")

	// The clock was ahead for a while. Answers of that time do not count, and later ones do.
	clock.ahead.Add(int64(23 * time.Hour))
	early := key.answer(ada, "get")
	clock.ahead.Add(-int64(23 * time.Hour))
	checkAnswer(t, "an answer from the future", ts.client().loginPasskey(early), 401, "passkey_invalid")
	checkAnswer(t, "an answer of now", ts.client().loginPasskey(key.answer(ada, "get")), 200, "")

	// The thief of a password has a passkey too, and no other way past the second factor.
	checkAnswer(t, "another user's key", ts.client().loginOTP("ada", testPassword, bobs.answer(ada, "get"), "198.51.100.1"), 401, "otp_invalid")
	stolen := key.answer(ada, "get")
	checkAnswer(t, "second factor", ts.client().loginOTP("ada", testPassword, stolen, "198.51.100.1"), 200, "")
	checkAnswer(t, "the same answer", ts.client().loginOTP("ada", testPassword, stolen, "198.51.100.1"), 401, "otp_invalid")
	checkAnswer(t, "the same answer alone", ts.client().loginPasskey(stolen), 401, "passkey_invalid")
	checkAnswer(t, "no name, but a password", ts.client().do("POST", loginPath, map[string]string{"password": testPassword, "otp": key.answer(ada, "get")}), 401, "invalid_credentials")
	check(t, "refusals for ada in the audit log", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'session.login_refused' AND target = 'user:ada'`) > 10, true)
}

// TestPasskeyPurpose: an answer that names a purpose is good for that one alone. No purpose makes a challenge valid.
func TestPasskeyPurpose(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	ada := ts.signInCheaply("ada")
	key := ts.newAuthenticator()
	key.purpose = ":sign-in"
	ada.refused(422, "invalid", "POST", passkeysPath, ada.newPasskey(key, ""))
	key.purpose = ""
	ada.addPasskey(key)

	for _, test := range []struct {
		purpose, challenge string
		alone, asFactor    int
	}{
		{"", "", 200, 200},
		{":sign-in", "", 200, 401},
		{":second-factor", "", 401, 200},
		{":sign-in:second-factor", "", 401, 401},
		{":sign-in:sign-in", "", 401, 401},
		{":", "", 401, 401},
		{"sign-in", "", 401, 401},
		{":sign-in", "1.x", 401, 401},
		{":sign-in", ":sign-in", 401, 401},
	} {
		t.Run(test.challenge+test.purpose, func(t *testing.T) {
			ts.exec(`DELETE FROM throttles`)
			key.purpose, key.challenge = test.purpose, test.challenge
			check(t, "alone", ts.client().loginPasskey(key.answer(ada, "get")).status, test.alone)
			check(t, "as second factor", ts.client().loginOTP("ada", testPassword, key.answer(ada, "get"), "198.51.100.1").status, test.asFactor)
		})
	}
}

// TestPasskeyCounter: a counter that does not rise shows a copy of the key.
func TestPasskeyCounter(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	ada := ts.signInCheaply("ada")
	key := ts.newAuthenticator()
	key.count = 7
	ada.addPasskey(key)
	login := func(what string, count uint32, status int, code string) {
		t.Helper()
		key.count = count
		checkAnswer(t, what, ts.client().loginPasskey(key.answer(ada, "get")), status, code)
	}
	login("the count at the registration", 6, 401, "passkey_invalid") // answer counts before it signs
	login("a higher count", 7, 200, "")
	login("a much higher count", 99, 200, "")
	login("the same count", 99, 401, "passkey_invalid")
	login("a lower count", 50, 401, "passkey_invalid")
	login("no count", 0, 401, "passkey_invalid")
	login("a higher count again", 100, 200, "")
}

// TestPasskeyRegistration: only a new ES256 key for this site, by an authenticator that has verified its user, is added.
func TestPasskeyRegistration(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startPasskeys(t, clock)
	ada := ts.signInCheaply("ada")
	bob := ts.signInCheaply("bob")
	for name, change := range map[string]func(k *authenticator, body map[string]string){
		"another origin":      func(k *authenticator, body map[string]string) { k.origin = "https://evil.example" },
		"another host":        func(k *authenticator, body map[string]string) { k.host = "evil.example" },
		"not verified":        func(k *authenticator, body map[string]string) { k.flags = userPresent },
		"nobody there":        func(k *authenticator, body map[string]string) { k.flags = userVerified },
		"a frame":             func(k *authenticator, body map[string]string) { k.crossOrigin = true },
		"a challenge made up": func(k *authenticator, body map[string]string) { k.challenge = "1.x" },
		"the curve P-384": func(k *authenticator, body map[string]string) {
			k.key = must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
		},
		"an id that is too long": func(k *authenticator, body map[string]string) {
			k.id = make([]byte, 1024)
		},
		"another id":          func(k *authenticator, body map[string]string) { body["other id"] = "" },
		"an assertion":        func(k *authenticator, body map[string]string) { body["passkey"] = k.answer(ada, "get") },
		"nothing":             func(k *authenticator, body map[string]string) { body["passkey"] = "" },
		"no name":             func(k *authenticator, body map[string]string) { body["name"] = "" },
		"a name of two lines": func(k *authenticator, body map[string]string) { body["name"] = "a\nb" },
		"without CAIRN_BASE_URL": func(k *authenticator, body map[string]string) {
			body["passkey"] = k.answer(ada, "create")
			ts.core.cfg.baseURL = ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { ts.core.cfg.baseURL = ts.url }()
			key := ts.newAuthenticator()
			body := map[string]string{"name": "phone", "current_password": testPassword}
			change(key, body)
			if _, isSet := body["passkey"]; !isSet {
				body["passkey"] = key.answer(ada, "create")
			}
			if _, isSet := body["other id"]; isSet {
				delete(body, "other id")
				body["passkey"] = strings.Replace(body["passkey"], key.credentialID(), ts.newAuthenticator().credentialID(), 1)
			}
			ada.refused(422, "invalid", "POST", passkeysPath, body)
		})
	}

	key := ts.newAuthenticator()
	late := ada.newPasskey(key, "")
	clock.ahead.Add(int64(5 * time.Minute))
	ada.refused(422, "invalid", "POST", passkeysPath, late)
	body := ada.newPasskey(key, "")
	ada.must(201, "POST", passkeysPath, body)
	body["otp"] = key.answer(ada, "get")
	ada.refused(409, "passkey_taken", "POST", passkeysPath, body)
	bob.refused(409, "passkey_taken", "POST", passkeysPath, bob.newPasskey(key, ""))
	for range 9 {
		ada.must(201, "POST", passkeysPath, ada.newPasskey(ts.newAuthenticator(), key.answer(ada, "get")))
	}
	ada.refused(409, "too_many_passkeys", "POST", passkeysPath, ada.newPasskey(ts.newAuthenticator(), key.answer(ada, "get")))
	bobs := bob.addPasskey(ts.newAuthenticator())
	ada.refused(404, "not_found", "DELETE", passkeysPath+"/"+bobs, map[string]string{"current_password": testPassword, "otp": key.answer(ada, "get")})
}

// TestPasskeyAsSecondFactor: a passkey fulfils the requirement of a role, until it ends. Whoever manages users, and the
// operator, end it with the second factor.
func TestPasskeyAsSecondFactor(t *testing.T) {
	t.Parallel()
	clock := &testClock{}
	ts := startPasskeys(t, clock)
	root := ts.signIn("root", "all")
	ada := ts.signInCheaply("ada")
	self := "/api/v1/users/" + ada.must(200, "GET", mePath, nil).text("id")
	root.must(200, "POST", self+"/roles", map[string]string{"role": "member"})
	root.must(200, "PATCH", "/api/v1/roles/2", map[string]bool{"requires_second_factor": true})
	ada, _ = ts.client().login("ada", testPassword)
	ada.refused(403, "second_factor_missing", "GET", "/api/v1/datasets", nil)

	// A secret that waits for its confirmation is no second factor, and ends when a passkey is added.
	phone := ada.begin(clock)
	key := ts.newAuthenticator()
	id := ada.addPasskey(key)
	ada.refused(409, "totp_not_begun", "POST", totpPath+"/confirm", map[string]string{"otp": phone.code(0)})
	begun := ada.must(201, "POST", totpPath, map[string]string{"current_password": testPassword, "otp": key.answer(ada, "get")})
	phone.secret = must(base32.StdEncoding.DecodeString(begun.text("secret")))
	checkAnswer(t, "a code of a secret that waits", ts.client().loginOTP("ada", testPassword, phone.code(0), "198.51.100.1"), 401, "otp_invalid")
	ada.must(200, "GET", "/api/v1/datasets", nil)
	signedIn := ts.client().as(ts.client().loginPasskey(key.answer(ada, "get")).text("access_token"))
	signedIn.must(200, "GET", "/api/v1/datasets", nil)

	// A change of the requirement ends no session of a user who fulfils it.
	for _, is := range []bool{false, true} {
		root.must(200, "PATCH", "/api/v1/roles/2", map[string]bool{"requires_second_factor": is})
		ada.must(200, "GET", "/api/v1/datasets", nil)
	}

	// Reading announcements about datasets needs what reading datasets needs.
	ts.exec(`INSERT INTO datasets (name, path) VALUES ('tiles', 'tiles')`)
	ts.exec(`INSERT INTO system_messages (title, body, severity, author, publish_at, include_new_users, dataset_id)
		VALUES ('new', 'new', 'info', 'cairn', now(), true, (SELECT id FROM datasets))`)
	check(t, "announcements", len(ada.must(200, "GET", "/api/v1/inbox", nil).items()), 1)

	ada.must(204, "DELETE", passkeysPath+"/"+id, map[string]string{"current_password": testPassword, "otp": key.answer(ada, "get")})
	ada.refused(403, "second_factor_missing", "GET", "/api/v1/datasets", nil)
	ada.addPasskey(key)
	root.must(204, "DELETE", self+"/totp", nil)
	ada, _ = ts.client().login("ada", testPassword)
	ada.refused(403, "second_factor_missing", "GET", "/api/v1/datasets", nil)
	checkAnswer(t, "a key that was ended", ts.client().loginPasskey(key.answer(ada, "get")), 401, "passkey_invalid")
	ada.addPasskey(key)
	if _, err := ts.command("user", "reset-totp", "ada"); err != nil {
		t.Error(err)
	}
	check(t, "passkeys", ts.queryInt(`SELECT count(*) FROM passkeys`), 0)
	check(t, "users with passkeys", ts.queryInt(`SELECT count(*) FROM users WHERE passkey`), 0)

	// Both kinds of second factor stand beside each other.
	ada, _ = ts.client().login("ada", testPassword)
	phone, _ = ada.enrol(clock)
	id = ada.must(201, "POST", passkeysPath, ada.newPasskey(key, phone.code(0))).text("id")
	clock.step()
	ada.must(204, "DELETE", passkeysPath+"/"+id, map[string]string{"current_password": testPassword, "otp": phone.code(0)})
	clock.step()
	ada.must(201, "POST", passkeysPath, ada.newPasskey(key, phone.code(0)))
	ada.must(204, "DELETE", totpPath, map[string]string{"current_password": testPassword, "otp": key.answer(ada, "get")})
	checkAnswer(t, "the password alone", ts.client().loginOTP("ada", testPassword, "", "198.51.100.1"), 401, "otp_required")

	// A reset of the password leaves the passkey, as it leaves the app. Users who are deleted leave none.
	token := root.must(201, "POST", self+"/password-reset", nil).text("password_token")
	ts.client().must(204, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": "another good one"})
	checkAnswer(t, "after a reset", ts.client().loginPasskey(key.answer(ada, "get")), 200, "")
	root.must(204, "DELETE", self, nil)
	checkAnswer(t, "a deleted user", ts.client().loginPasskey(key.answer(root, "get")), 401, "passkey_invalid")
	check(t, "passkeys", ts.queryInt(`SELECT count(*) FROM passkeys`), 0)
}

// TestPasskeyOfInactiveUser: a user who is not active does not sign in, and learns why.
func TestPasskeyOfInactiveUser(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	ada := ts.signInCheaply("ada")
	key := ts.newAuthenticator()
	ada.addPasskey(key)
	for status, code := range map[string]string{"disabled": "account_disabled", "pending": "account_pending"} {
		ts.exec(`UPDATE users SET status = $1 WHERE username = 'ada'`, status)
		checkAnswer(t, status, ts.client().loginPasskey(key.answer(ts.client(), "get")), 403, code)
	}
	check(t, "sessions", ts.queryInt(`SELECT count(*) FROM sessions`), 1)
}

// TestPasskeyThrottle: wrong answers wait as wrong passwords do, for known and unknown keys alike. They do not count for
// the user's name, and a right answer restarts only the counts of its own key.
func TestPasskeyThrottle(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	ada := ts.signInCheaply("ada")
	key := ts.newAuthenticator()
	ada.addPasskey(key)
	stranger := ts.newAuthenticator()
	ts.exec(`DELETE FROM throttles`)
	for name, k := range map[string]*authenticator{"a known key": key, "an unknown key": stranger} {
		forged := *k
		forged.key = ts.newAuthenticator().key
		for range 5 {
			checkAnswer(t, name, ts.client().loginPasskey(forged.answer(ada, "get")), 401, "passkey_invalid")
		}
		checkAnswer(t, name, ts.client().loginPasskey(k.answer(ada, "get")), 429, "too_many_attempts")
	}
	checkAnswer(t, "the password and the key", ts.client().loginOTP("ada", testPassword, key.answer(ada, "get"), "198.51.100.1"), 200, "")

	// An unlock of the account restarts the counts of its passkeys too, and of no other.
	must(ts.command("user", "unlock", "ada"))
	checkAnswer(t, "the known key after an unlock", ts.client().loginPasskey(key.answer(ada, "get")), 200, "")
	checkAnswer(t, "the unknown key after an unlock", ts.client().loginPasskey(stranger.answer(ada, "get")), 429, "too_many_attempts")
	ts.throttlesLater(24 * time.Hour)

	// A passkey whose id is a name counts for itself.
	ts.addUserCheaply("root4321")
	for range 5 {
		ts.client().refused(401, "invalid_credentials", "POST", loginPath, map[string]string{"username": "root4321", "password": "wrong password"})
	}
	bob := ts.signInCheaply("bob")
	named := ts.newAuthenticator()
	named.id = []byte("root4321")
	bob.addPasskey(named)
	checkAnswer(t, "a passkey with that id", ts.client().loginPasskey(named.answer(bob, "get")), 200, "")
	ts.client().refused(429, "too_many_attempts", "POST", loginPath, map[string]string{"username": "root4321", "password": testPassword})
}

// TestPasskeyOnTwoInstances: an answer that one instance has accepted is refused by the other.
func TestPasskeyOnTwoInstances(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	one.core.cfg.baseURL, two.core.cfg.baseURL = one.url, one.url
	ada := one.signIn("ada", datasetRead)
	key := one.newAuthenticator()
	ada.addPasskey(key)
	login := func(ts *testServer, text string) answer {
		return ts.client().do("POST", loginPath, map[string]string{"otp": text}, "Host: "+strings.TrimPrefix(one.url, "http://"))
	}
	text := key.answer(ada, "get")
	checkAnswer(t, "the first", login(one, text), 200, "")
	checkAnswer(t, "the same at the other", login(two, text), 401, "passkey_invalid")
	checkAnswer(t, "another at the other", login(two, key.answer(ada, "get")), 200, "")
}

// TestPasskeyRemoved: an administrator who removes a second factor ends the sessions too, because a thief's passkey may
// have opened one. A user who is deleted loses the passkeys, with a row in the audit log.
func TestPasskeyRemoved(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	root := ts.signIn("root", "all")
	ada := ts.signInCheaply("ada")
	thiefs := ts.newAuthenticator()
	ada.addPasskey(thiefs)
	id := ada.must(200, "GET", mePath, nil).text("id")
	noApp := ada.refused(404, "not_found", "DELETE", "/api/v1/auth/totp", map[string]string{"current_password": testPassword})
	check(t, "detail", noApp.text("detail"), "No authenticator app of ada.")

	thief := ts.client().as(ts.client().loginPasskey(thiefs.answer(ts.client(), "get")).text("access_token"))
	thief.must(200, "GET", mePath, nil)
	root.must(204, "DELETE", "/api/v1/users/"+id+"/totp", nil)
	thief.refused(401, "invalid_token", "GET", mePath, nil)
	checkAnswer(t, "sign-in", ts.client().loginPasskey(thiefs.answer(ts.client(), "get")), 401, "passkey_invalid")

	ada, _ = ts.client().login("ada", testPassword)
	ada.addPasskey(ts.newAuthenticator())
	root.must(204, "DELETE", "/api/v1/users/"+id, nil)
	check(t, "rows of ended passkeys", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'passkey.end' AND target = 'user:ada'`), 2)
}

// TestConfirmationRacesChange: a change that the old password has confirmed fails if the password changes before it is
// made.
func TestConfirmationRacesChange(t *testing.T) {
	t.Parallel()
	ts := startPasskeys(t, &testClock{})
	c := ts.signInCheaply("ada")
	for path, body := range map[string]any{
		passkeysPath:          c.newPasskey(ts.newAuthenticator(), ""),
		"/api/v1/auth/totp":   map[string]string{"current_password": testPassword},
		"/api/v1/auth/tokens": map[string]any{"name": "late", "permissions": []string{inboxRead}, "current_password": testPassword},
	} {
		tx := must(ts.db.Begin(t.Context()))
		if err := advisoryLock(t.Context(), tx, lockAccess); err != nil {
			t.Fatal(err)
		}
		late := make(chan answer)
		go func() { late <- c.do("POST", path, body) }()
		waitFor(t, "the request to wait", func() bool { return waitingQueries(ts) == 1 })
		if _, err := tx.Exec(t.Context(), `UPDATE users SET credential_version = credential_version + 1 WHERE username = 'ada'`); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, path, <-late, 409, "password_changed")
	}
}
