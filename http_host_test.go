package main

import (
	"net/http"
	"strings"
	"testing"
)

// TestBasicChallenge: a 401 to GET and HEAD offers HTTP Basic beside Bearer, on every route but verifyPath; other methods get Bearer
// alone, since Basic is not accepted there. A client that waits for the challenge, as QGIS does, gets in.
func TestBasicChallenge(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", "all")
	token := ts.addToken("ada", "gis", datasetRead).token

	for _, rt := range ts.routes() {
		if rt.who == public || rt.who == refreshCookie || strings.Contains(rt.path, "{") {
			continue
		}
		for _, c := range []client{ts.client(), ts.client().as("wrong")} {
			a := c.do(rt.method, rt.path, nil)
			challenges := a.header.Values("WWW-Authenticate")
			offered := len(challenges) == 2 &&
				strings.HasPrefix(challenges[0], "Bearer") &&
				challenges[1] == `Basic realm="cairn", charset="UTF-8"`
			if a.status != 401 || offered != (rt.method == "GET" && rt.path != verifyPath) || len(challenges) == 0 {
				t.Errorf("%s %s: %d %q", rt.method, rt.path, a.status, challenges)
			}
		}
	}

	r, err := http.NewRequest("GET", strings.Replace(ts.url, "//", "//any:"+token+"@", 1)+"/api/v1/datasets", nil)
	if err != nil {
		t.Fatal(err)
	}

	response, err := http.DefaultClient.Do(r)
	if err != nil || response.StatusCode != 200 {
		t.Errorf("%v %v", response, err)
	}

	response.Body.Close()
	if a := ts.client().must(401, "HEAD", "/api/v1/datasets", nil); len(a.header.Values("WWW-Authenticate")) != 2 {
		t.Errorf("HEAD: %v", a.header)
	}
}

// TestBaseURL: where CAIRN_BASE_URL is set, requests for another host are refused, except for the health and the
// metrics, which programs on the machine ask for by its address.
func TestBaseURL(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_BASE_URL=https://Cairn.example.org/")
	ask := func(host, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequest("GET", ts.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode, response.Header.Get("Content-Type")
	}

	for host, want := range map[string]int{
		"cairn.example.org":     200,
		"CAIRN.example.ORG":     200,
		"cairn.example.org:443": 200,

		"":                               421,
		"cairn.example.org:80":           421,
		"cairn.example.org.":             421,
		"evil.example":                   421,
		"cairn.example.org.evil.example": 421,
		"127.0.0.1":                      421,
		"localhost:8080":                 421,
	} {
		if status, kind := ask(host, "/api/v1/ping"); status != want || want == 421 && kind != "application/problem+json" {
			t.Errorf("%q: %d %s, want %d", host, status, kind, want)
		}
		if status, _ := ask(host, "/health"); status != 200 {
			t.Errorf("health for %q: %d", host, status)
		}
		if status, _ := ask(host, "/metrics"); status != 401 {
			t.Errorf("metrics for %q: %d", host, status)
		}
	}

	ts.client().refused(421, "wrong_host", "GET", "/api/v1/nothing", nil)
	for _, wrong := range []string{
		"cairn.example.org",
		"ftp://cairn.example.org",
		"https://u:p@cairn.example.org",
		"https://cairn.example.org/a",
		"https://cairn.example.org?a",
		"https://",
		"https://cairn.example.org#a",
		"https://:443",
		"https://a b",
	} {
		if _, err := loadConfig([]string{"CAIRN_BASE_URL=" + wrong}); err == nil || !strings.HasPrefix(err.Error(), "CAIRN_BASE_URL: ") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
