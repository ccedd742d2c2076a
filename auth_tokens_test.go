package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testSessionMax is how long a session lasts at most, by default.
const testSessionMax = 2160 * time.Hour

// testRing is a keyring of keys with these ids.
func testRing(t testing.TB, ids ...string) *keyring {
	t.Helper()
	var ring keyring
	for _, id := range ids {
		secret := sha256.Sum256([]byte("secret of " + id))
		ring.keys = append(ring.keys, newKey(id, secret[:]))
	}
	return &ring
}

// TestJWSVector is RFC 7515, appendix A.1: the published HS256 signature.
func TestJWSVector(t *testing.T) {
	t.Parallel()
	key, err := base64.RawURLEncoding.DecodeString("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
	if err != nil {
		t.Fatal(err)
	}
	const signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
	check(t, "MAC of the example", encodedMAC(key, signed), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
}

// TestHostileAccessTokens: anything but a token as we write it is refused.
func TestHostileAccessTokens(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	ring := testRing(t, "first", "second")
	user, session := uuidText([16]byte{1}), uuidText([16]byte{2})
	good := ring.signAccessToken(user, session, now, now.Add(time.Hour))
	claims, err := ring.verifyAccessToken(good, now, testSessionMax)
	if err != nil || claims.Subject != user || claims.SessionID != session {
		t.Fatalf("the good token: %+v, %v", claims, err)
	}
	if _, err := (&keyring{keys: []key{ring.keys[1], ring.keys[0]}}).verifyAccessToken(good, now, testSessionMax); err != nil {
		t.Errorf("a key that signs no more must still verify: %v", err)
	}
	hostile := hostileAccessTokens(t, ring, good, now)
	for i := range len(good) {
		b := []byte(good)
		b[i] ^= 1
		hostile[fmt.Sprintf("one bit of byte %d", i)] = string(b)
	}
	for name, token := range hostile {
		if claims, err := ring.verifyAccessToken(token, now, testSessionMax); !errors.Is(err, errToken) || claims != (tokenClaims{}) {
			t.Errorf("%s: %+v, %v", name, claims, err)
		}
	}
}

// hostileAccessTokens is made of a good one, which the first of the ring's two keys has signed.
func hostileAccessTokens(t *testing.T, ring *keyring, good string, now time.Time) map[string]string {
	t.Helper()
	claims, err := ring.verifyAccessToken(good, now, testSessionMax)
	if err != nil {
		t.Fatal(err)
	}
	k := ring.keys[0]
	parts := strings.Split(good, ".")
	header, payload, mac := parts[0], parts[1], parts[2]
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	decode := func(text string) string {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// sign signs as we do, whatever the header and payload.
	sign := func(k key, header, payload string) string {
		signed := header + "." + payload
		return signed + "." + encodedMAC(k.access, signed)
	}
	with := func(change func(*tokenClaims)) string {
		c := claims
		change(&c)
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return sign(k, header, encode(string(b)))
	}
	other := func(text string) string { return sign(k, encode(strings.ReplaceAll(text, "KID", k.id)), payload) }
	lastMAC := mac[:len(mac)-1]
	hostile := map[string]string{
		"empty":                       "",
		"dots":                        "..",
		"one part":                    header,
		"two parts":                   header + "." + payload,
		"four parts":                  good + "." + mac,
		"no signature":                header + "." + payload + ".",
		"no payload":                  header + ".." + mac,
		"alg none":                    encode(`{"alg":"none","kid":"`+k.id+`","typ":"at+jwt"}`) + "." + payload + ".",
		"alg none, signed":            other(`{"alg":"none","kid":"KID","typ":"at+jwt"}`),
		"alg None":                    encode(`{"alg":"None"}`) + "." + payload + ".",
		"alg HS384":                   other(`{"alg":"HS384","kid":"KID","typ":"at+jwt"}`),
		"alg HS512":                   other(`{"alg":"HS512","kid":"KID","typ":"at+jwt"}`),
		"alg RS256":                   other(`{"alg":"RS256","kid":"KID","typ":"at+jwt"}`),
		"alg hs256":                   other(`{"alg":"hs256","kid":"KID","typ":"at+jwt"}`),
		"typ JWT":                     other(`{"alg":"HS256","kid":"KID","typ":"JWT"}`),
		"no typ":                      other(`{"alg":"HS256","kid":"KID"}`),
		"no kid":                      other(`{"alg":"HS256","typ":"at+jwt"}`),
		"unknown kid":                 other(`{"alg":"HS256","kid":"third","typ":"at+jwt"}`),
		"kid that is a path":          other(`{"alg":"HS256","kid":"../../dev/null","typ":"at+jwt"}`),
		"kid of the other key":        sign(k, ring.keys[1].header, payload),
		"header in another order":     other(`{"typ":"at+jwt","alg":"HS256","kid":"KID"}`),
		"header with a space":         other(`{"alg": "HS256","kid":"KID","typ":"at+jwt"}`),
		"header with more":            other(`{"alg":"HS256","kid":"KID","typ":"at+jwt","crit":["b64"],"b64":false}`),
		"header with jwk":             other(`{"alg":"HS256","kid":"KID","typ":"at+jwt","jwk":{"kty":"oct","k":""}}`),
		"header with alg twice":       other(`{"alg":"HS256","alg":"none","kid":"KID","typ":"at+jwt"}`),
		"header padded":               sign(k, header+"=", payload),
		"key as hex":                  header + "." + payload + "." + fmt.Sprintf("%x", decode(mac)),
		"MAC in standard base64":      header + "." + payload + "." + base64.StdEncoding.EncodeToString([]byte(decode(mac))),
		"MAC padded":                  good + "=",
		"MAC with a newline":          good[:len(good)-4] + "\n" + good[len(good)-4:],
		"MAC with a newline after it": good + "\n",
		"space before":                " " + good,
		"space after":                 good + " ",
		"MAC one short":               good[:len(good)-1],
		"MAC of nothing":              header + "." + payload + "." + strings.Repeat("A", 43),
		"payload padded":              header + "." + payload + "=." + mac,
		"payload with a newline":      sign(k, header, payload[:4]+"\n"+payload[4:]),
		"payload of another":          header + "." + encode(`{"iss":"cairn","aud":"cairn","sub":"root","exp":9999999999}`) + "." + mac,
		"signed by the refresh key":   header + "." + payload + "." + encodedMAC(k.refresh, header+"."+payload),
		"signed by the cursor key":    header + "." + payload + "." + encodedMAC(k.cursor, header+"."+payload),
		"signed by a foreign key":     sign(testRing(t, "foreign").keys[0], header, payload),
		"signed by an empty key":      header + "." + payload + "." + encodedMAC(nil, header+"."+payload),
		"refresh token":               ring.keys[0].signRefresh([16]byte{1}, 1),
		"another issuer":              with(func(c *tokenClaims) { c.Issuer = "other" }),
		"no issuer":                   with(func(c *tokenClaims) { c.Issuer = "" }),
		"another audience":            with(func(c *tokenClaims) { c.Audience = "other" }),
		"expired":                     with(func(c *tokenClaims) { c.ExpiresAt = now.Unix() }),
		"no expiry":                   with(func(c *tokenClaims) { c.ExpiresAt = 0 }),
		"issued in the future":        with(func(c *tokenClaims) { c.IssuedAt = now.Unix() + maxClockSkew + 1 }),
		"audience that is a list":     sign(k, header, encode(strings.Replace(decode(payload), `"aud":"cairn"`, `"aud":["cairn"]`, 1))),
		"expiry that is a text":       sign(k, header, encode(`{"iss":"cairn","aud":"cairn","exp":"9999999999"}`)),
		"64 KiB":                      header + "." + strings.Repeat("A", 64<<10) + "." + mac,
	}
	for name, change := range ownForgeries() {
		hostile["signed by us: "+name] = sign(k, header, encode(change(decode(payload), claims)))
	}
	// Every other spelling of the last character that decodes to the same MAC.
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if spelling := lastMAC + string(c); spelling != mac && decode(spelling) == decode(mac) {
			hostile["MAC spelled with "+string(c)] = header + "." + payload + "." + spelling
		}
	}
	return hostile
}

// ownForgeries are changes of a payload and its claims that Cairn never writes, by their names.
func ownForgeries() map[string]func(payload string, claims tokenClaims) string {
	with := func(change func(*tokenClaims)) func(string, tokenClaims) string {
		return func(_ string, c tokenClaims) string {
			change(&c)
			text, _ := json.Marshal(c) // text and numbers: there is no error
			return string(text)
		}
	}
	add := func(claim string) func(string, tokenClaims) string {
		return func(payload string, _ tokenClaims) string {
			return strings.TrimSuffix(payload, "}") + "," + claim + "}"
		}
	}
	replace := func(old, next string) func(string, tokenClaims) string {
		return func(payload string, _ tokenClaims) string { return strings.Replace(payload, old, next, 1) }
	}
	return map[string]func(string, tokenClaims) string{
		"a space":            replace(":", ": "),
		"a space before":     func(payload string, _ tokenClaims) string { return " " + payload },
		"a newline after":    func(payload string, _ tokenClaims) string { return payload + "\n" },
		"a claim twice":      add(`"iss":"cairn"`),
		"another claim":      add(`"admin":true`),
		"nbf in the future":  add(`"nbf":99999999999`),
		"a claim in capital": replace(`"sub"`, `"SUB"`),
		"an escape":          replace(`"iss":"cairn"`, `"iss":"\u0063airn"`),
		"another order":      replace(`"iss":"cairn","aud":"cairn"`, `"aud":"cairn","iss":"cairn"`),
		"an exponent":        replace(`"exp":1`, `"exp":1e0`),
		"sub that is none":   with(func(c *tokenClaims) { c.Subject = "root" }),
		"sub that is empty":  with(func(c *tokenClaims) { c.Subject = "" }),
		"sub in capitals":    with(func(c *tokenClaims) { c.Subject = strings.ToUpper(c.Subject[:35] + "a") }),
		"sub in braces":      with(func(c *tokenClaims) { c.Subject = "{" + c.Subject + "}" }),
		"sid that is none":   with(func(c *tokenClaims) { c.SessionID = "none" }),
		"sid without dashes": with(func(c *tokenClaims) { c.SessionID = strings.ReplaceAll(c.SessionID, "-", "") }),
		"sid and a newline":  with(func(c *tokenClaims) { c.SessionID += "\n" }),
		"exp in 10000":       with(func(c *tokenClaims) { c.ExpiresAt = 253_402_300_800 }),
		"exp at the end":     with(func(c *tokenClaims) { c.ExpiresAt = math.MaxInt64 }),
		"iat at the start":   with(func(c *tokenClaims) { c.IssuedAt = math.MinInt64 }),
		"exp too far ahead": with(func(c *tokenClaims) {
			c.ExpiresAt = c.IssuedAt + int64(testSessionMax/time.Second) + maxClockSkew + 1
		}),
		"jti that is empty":  with(func(c *tokenClaims) { c.ID = "" }),
		"jti that is a text": with(func(c *tokenClaims) { c.ID = strings.Repeat("é", 13) }),
	}
}

// TestRefreshTokens: a refresh token names its session and generation, in one spelling only.
func TestRefreshTokens(t *testing.T) {
	t.Parallel()
	ring := testRing(t, "first", "second")
	session := [16]byte{1, 2, 3}
	good := ring.keys[0].signRefresh(session, 7)
	check(t, "the same generation must give the same token", ring.keys[0].signRefresh(session, 7), good)
	if s, g, err := ring.verifyRefresh(good); err != nil || s != session || g != 7 {
		t.Fatalf("got %v %d %v", s, g, err)
	}
	if _, _, err := (&keyring{keys: []key{ring.keys[1], ring.keys[0]}}).verifyRefresh(good); err != nil {
		t.Errorf("a key that signs no more must still verify: %v", err)
	}
	hostile := []string{"", good[:75], good + "A", good + "=", good[:72] + "\n\n" + good[74:], good[:75] + "\n", "\n" + good[:75],
		testRing(t, "foreign").keys[0].signRefresh(session, 7), strings.Repeat("A", 76), strings.ToLower(good)}
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		b := bytes.Clone(raw)
		b[bit/8] ^= 1 << (bit % 8)
		hostile = append(hostile, base64.RawURLEncoding.EncodeToString(b))
	}
	mac := hmac.New(sha256.New, ring.keys[0].access)
	mac.Write(raw[:25])
	hostile = append(hostile, base64.RawURLEncoding.EncodeToString(mac.Sum(raw[:25:25])))
	for _, token := range hostile {
		if _, _, err := ring.verifyRefresh(token); !errors.Is(err, errToken) {
			t.Errorf("%q was accepted", token)
		}
	}
}

// TestKeyFile: an error in a key file stops the start. The message names the line and does not show the secret.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	other := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{8}, 32))
	for _, test := range []struct{ name, content, want string }{
		{"good", "# comment\n\na " + secret + "\nb " + other + "\n", ""},
		{"empty", "", "no key"},
		{"short", "a " + base64.StdEncoding.EncodeToString(make([]byte, 31)), "line 1"},
		{"no base64", "a " + secret + "\nb !!!", "line 2"},
		{"no secret", "a " + secret + "\nb", "line 2"},
		{"id twice", "a " + secret + "\na " + other, "line 2"},
		{"secret twice", "a " + secret + "\nb " + secret, "line 2"},
		{"bad id", "a.b " + secret, "line 1"},
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadKeys(path, "", false)
		if (err == nil) != (test.want == "") || (err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), secret))) {
			t.Errorf("%s: %v", test.name, err)
		}
	}

	dir := t.TempDir()
	path := filepath.Join(dir, "keys")
	if _, err := loadKeys(path, "", false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is missing: %v", err)
	}
	first, err := loadKeys(path, "", true)
	if err != nil {
		t.Fatal(err)
	}
	second, err := loadKeys(path, "", true)
	if err != nil || second.keys[0].id != first.keys[0].id {
		t.Errorf("the second start made other keys: %v", err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := loadKeys(path, "", false); (err == nil) != want {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := loadKeys(path, dir, false); err != nil {
		t.Errorf("group-readable below $CREDENTIALS_DIRECTORY: %v", err)
	}
	if _, err := loadKeys(dir, "", false); err == nil {
		t.Error("a directory was taken for a key file")
	}

	// Nothing can be created in /proc/self/fd, as in a directory that is mounted read-only.
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ring, err := loadKeys(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), "", true); err != nil || ring.keys[0].id != first.keys[0].id {
		t.Errorf("where no file can be created: %v", err)
	}
}

func FuzzVerifyAccess(f *testing.F) {
	ring, now := testRing(f, "first"), time.Unix(1_800_000_000, 0)
	// Not made by signAccessToken, whose token ids are random: all the fuzzer's processes must have the same token.
	payload, err := json.Marshal(tokenClaims{tokenIssuer, tokenIssuer, uuidText([16]byte{1}), uuidText([16]byte{2}), now.Unix(), now.Unix() + 3600, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})
	if err != nil {
		f.Fatal(err)
	}
	signed := ring.keys[0].header + "." + base64.RawURLEncoding.EncodeToString(payload)
	good := signed + "." + encodedMAC(ring.keys[0].access, signed)
	f.Add(good)
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := ring.verifyAccessToken(token, now, testSessionMax); err == nil && token != good {
			t.Errorf("forged: %q", token)
		}
	})
}

func FuzzVerifyRefresh(f *testing.F) {
	ring := testRing(f, "first")
	good := ring.keys[0].signRefresh([16]byte{1}, 1)
	f.Add(good)
	f.Fuzz(func(t *testing.T, token string) {
		if _, _, err := ring.verifyRefresh(token); err == nil && token != good {
			t.Errorf("forged: %q", token)
		}
	})
}

func FuzzHashAPIToken(f *testing.F) {
	good, _ := newAPIToken()
	f.Add(good)
	f.Add(apiTokenPrefix + strings.Repeat("0", 72))
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := hashAPIToken(token); err == nil && (len(token) != len(good) || !strings.HasPrefix(token, apiTokenPrefix)) {
			t.Errorf("taken for an API token: %q", token)
		}
	})
}
