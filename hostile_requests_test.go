package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestForgedTokens: each of 2,000 forged access tokens is answered 401, those signed with our own key included.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ts := startServer(t, func(s *server) { s.now = func() time.Time { return now } }) // no token expires meanwhile
	c := ts.signIn("ada", "all")
	claims, err := ts.keys.Load().verifyAccess(c.token, now, ts.cfg.sessionMax)
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
