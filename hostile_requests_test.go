package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

// TestForgedTokens: each of 2,000 forged access tokens is answered 401, those signed with our own key included.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ts := startServer(t, func(o *options) { o.now = func() time.Time { return now } }) // no token expires meanwhile
	c := ts.signIn("ada", "all")
	claims, err := ts.keys.Load().verifyAccessToken(c.token, now, ts.cfg.sessionMax)
	if err != nil {
		t.Fatal(err)
	}
	// A payload of this form names a live session of its user: Cairn could have written it.
	ours := regexp.MustCompile(fmt.Sprintf(`^{"iss":"cairn","aud":"cairn","sub":"%s","sid":"%s","iat":[1-9][0-9]*,"exp":[1-9][0-9]*,"jti":"[A-Z2-7]{26}"}$`,
		claims.Subject, claims.SessionID))
	k, changes := ts.keys.Load().keys[0], ownForgeries()
	parts := strings.Split(c.token, ".")
	payload := string(must(base64.RawURLEncoding.DecodeString(parts[1])))
	if !ours.MatchString(payload) {
		t.Fatal(payload)
	}
	random, names := rand.New(rand.NewPCG(1, 17)), slices.Sorted(maps.Keys(changes))
	for i := range 2000 {
		text := payload
		if i < len(names) {
			text = changes[names[i]](payload, claims)
		}
		for i >= len(names) && ours.MatchString(text) { // change, put in or take out a byte, until it is none of ours
			at, put := random.IntN(len(text)), string(rune(' '+random.IntN(95)))
			text = []string{text[:at] + put + text[at+1:], text[:at] + put + text[at:], text[:at] + text[at+1:]}[random.IntN(3)]
		}
		signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(text))
		token := signed + "." + encodedMAC(k.access, signed)
		if i%4 == 3 {
			token = signed + "." + parts[2] // the signature of another
		}
		if a := c.as(token).do("GET", mePath, nil); a.status != 401 || a.text("code") != "invalid_token" {
			t.Errorf("%s: %d %s", text, a.status, a.body)
		}
		if i >= len(names) {
			continue
		}
		if a := c.as(token).do("POST", "/api/v1/auth/logout", nil); a.status != 204 {
			t.Errorf("logout with %s: %d %s", text, a.status, a.body)
		}
	}
	c.must(200, "GET", mePath, nil)
}

// hostileText returns a text that no well-meaning client sends.
func hostileText(random *rand.Rand) string {
	texts := []string{"", "\x00", "a\x00b", "\xff\xfe", "\u202eexe", strings.Repeat("x", 5000), "' OR 1=1 --", "../../etc/passwd", "%00", "%", "_",
		"-1", "0", "1", "9223372036854775807", "9223372036854775808", "1e9", "NaN", "null", "true", "[]", "{}", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z",
		"10000-01-01T00:00:00Z", "infinity", "-infinity", "{1,2}", "\u00e9\U0001f600", "admin", "member", noUUID, "ffffffff-ffff-ffff-ffff-ffffffffffff",
		strings.Repeat("(", 200), `\`, `"`, "\r\n", "*", "dataset.read", "EPSG:4326", "180,90", "-180,-90,180,90", "1,2,3,4,5", "60s", "-1s", "\ufdd0\uffff"}
	return texts[random.IntN(len(texts))]
}

// hostileValue returns a JSON value that no well-meaning client sends.
func hostileValue(random *rand.Rand, depth int) any {
	switch n := random.IntN(14); {
	case n == 0:
		return nil
	case n == 1:
		return random.IntN(2) == 0
	case n == 2:
		return []any{0, 1, -1, 1e308, 1.5, int64(1) << 62}[random.IntN(6)]
	case n == 3 && depth > 0:
		return []any{hostileValue(random, depth-1), hostileValue(random, depth-1)}
	case n == 4 && depth > 0:
		return map[string]any{"a": hostileValue(random, depth-1)}
	}
	return strings.ToValidUTF8(hostileText(random), "?")
}

// hostileRequest returns a request to a route of which some parts are hostile: path values, query, body and headers.
func hostileRequest(random *rand.Rand, rt route, ids []string) (path string, body any, headers []string) {
	path = rt.path
	for strings.Contains(path, "{") {
		before, rest, _ := strings.Cut(path, "{")
		_, after, _ := strings.Cut(rest, "}")
		value := ids[random.IntN(len(ids))]
		if random.IntN(3) == 0 {
			value = url.PathEscape(hostileText(random))
		}
		path = before + value + after
	}
	query := url.Values{}
	for _, name := range strings.Fields(rt.query) {
		if random.IntN(3) == 0 {
			query.Set(name, hostileText(random))
		}
	}
	if random.IntN(8) == 0 {
		query.Add([]string{"limit", "nope", "Limit", ""}[random.IntN(4)], hostileText(random))
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	properties := fields(at(document(), "paths", rt.path, strings.ToLower(rt.method), "requestBody", "content", "application/json", "schema", "properties"))
	example := fields(at(document(), "paths", rt.path, strings.ToLower(rt.method), "requestBody", "content", "application/json", "example"))
	switch {
	case len(properties) > 0 && random.IntN(8) > 0:
		object := maps.Clone(example)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if random.IntN(3) == 0 {
				object[name] = hostileValue(random, 3)
			}
		}
		body = object
	case len(properties) > 0 || random.IntN(8) == 0:
		body = []string{"", "null", "[]", `{"a":`, "{}", "\xff", `{"name":"a","name":"b"}`, strings.Repeat("[", 5000)}[random.IntN(8)]
	}
	for _, name := range []string{"If-Match", "If-None-Match", "Accept", "Content-Type", "X-Request-Id", "X-Original-Method", "X-Forwarded-For", "Accept-Encoding", "Cookie"} {
		if random.IntN(12) == 0 {
			isControl := func(c rune) bool { return c < ' ' || c > '~' }
			headers = append(headers, name+": "+strings.TrimFunc(strings.Map(func(c rune) rune {
				if isControl(c) {
					return '?'
				}
				return c
			}, hostileText(random)), unicode.IsSpace))
		}
	}
	return path, body, headers
}

// TestHostileRequests: each of many hostile requests, spread over every route, is answered as openapi.yaml says, and
// none with a 5xx but 503. client.send holds the answers against the document.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	os.WriteFile(filepath.Join(ts.datasets, "set", "a.tif"), geographicTIFF(7, 46), 0o644)
	setup := ts.signIn("setup", "all")
	dataset := setup.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location")
	setup.analyze(dataset, nil)
	setup.publish("A message")
	user := ts.addUser("victim", datasetRead)
	ids := []string{"1", "2", "3", user, setup.credentialID(), "victim", "only-victim"}
	random := rand.New(rand.NewPCG(2, 17))
	routes := apiRoutes(ts.server)
	var root, script client
	statuses := map[int]int{}
	requests := soakOr(7000, 2000)
	for i := range requests {
		if i%50 == 0 { // requests may have ended these
			ts.exec(`DELETE FROM throttles`)
			ts.exec(`DELETE FROM users WHERE username IN ('root', 'script')`)
			ts.exec(`DELETE FROM retired_usernames`)
			ts.exec(`DELETE FROM roles WHERE name = 'only-script'`)
			root = ts.signIn("root", "all")
			ts.addUser("script", builtInNames()...)
			script = ts.addToken("script", "t", builtInNames()...)
		}
		rt := routes[i%len(routes)]
		c := []client{root, root, root, root, root, script, script, ts.client()}[random.IntN(8)]
		path, body, headers := hostileRequest(random, rt, ids)
		method := rt.method
		if random.IntN(40) == 0 {
			method = []string{"HEAD", "OPTIONS", "PUT", "TRACE", "BREW"}[random.IntN(5)]
		}
		a := c.do(method, path, body, headers...)
		statuses[a.status]++
		if a.status >= 500 && a.status != 503 {
			t.Errorf("%s %s %v %q: %d %s", method, path, body, headers, a.status, a.body)
		}
	}
	t.Logf("statuses: %v", statuses)
	if statuses[200] < requests/14 || statuses[422] < requests/28 {
		t.Error("the requests do not reach the handlers")
	}
}
