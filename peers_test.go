//go:build peers

package main

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// proxied is a program that knows nothing of tokens, behind a proxy that is set up as docs/proxies.md says.
type proxied struct {
	t   *testing.T
	web client // of the proxy

	mu   sync.Mutex
	seen http.Header // of the last request that got through; nil if none did
}

// snippets returns the blocks of docs/proxies.md for a proxy, with other addresses.
func snippets(t *testing.T, language, cairn, upstream string) (blocks []string) {
	t.Helper()
	addresses := strings.NewReplacer("127.0.0.1:8080", strings.TrimPrefix(cairn, "http://"),
		"127.0.0.1:9000", strings.TrimPrefix(upstream, "http://"))
	for _, block := range examples(t, "docs/proxies.md", language) {
		blocks = append(blocks, addresses.Replace(block))
	}
	return blocks
}

// startProxied starts the upstream program and the proxy. configure writes the proxy's configuration for the addresses
// of the proxy and of the upstream program into a directory, and returns the proxy's command.
func startProxied(t *testing.T, configure func(dir, address, upstream string) []string) *proxied {
	t.Helper()
	x := &proxied{t: t}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.seen = r.Header.Clone()
		fmt.Fprint(w, "{}")
	}))
	t.Cleanup(upstream.Close)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	dir := t.TempDir()
	args := configure(dir, address, upstream.URL)
	program := args[0]
	if path, err := exec.LookPath("/usr/sbin/" + program); err == nil {
		program = path
	}
	proxy := exec.Command(program, args[1:]...)
	proxy.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	var log lockedBuffer
	proxy.Stdout, proxy.Stderr = &log, &log
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		proxy.Process.Signal(syscall.SIGTERM)
		proxy.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	waitFor(t, program+" to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	x.web = client{t: t, url: "http://" + address}
	return x
}

// request sends a request through the proxy. It returns the status and the headers that the upstream program saw, or nil.
func (x *proxied) request(method, token string, headers ...string) (int, http.Header) {
	x.t.Helper()
	r, err := http.NewRequest(method, x.web.url+"/page", nil)
	if err != nil {
		x.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header[name] = append(r.Header[name], value) // in the letters given
	}
	x.mu.Lock()
	x.seen = nil
	x.mu.Unlock()
	a, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		x.t.Fatal(err)
	}
	a.Body.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	return a.StatusCode, x.seen
}

// check attacks the program behind the proxy.
func (x *proxied) check(ts *testServer) {
	t := x.t
	ts.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
	c := ts.signIn("ada", datasetRead, "wiki.edit")
	other := ts.signIn("bob", auditRead)
	a := x.web.do("GET", "/page", nil, "X-Cairn-User: admin")
	if challenges := strings.Join(a.header.Values("WWW-Authenticate"), ", "); a.status != 401 || !strings.Contains(challenges, "Bearer") {
		t.Errorf("anonymous: %d %s", a.status, challenges)
	}
	if x.seen != nil {
		t.Error("an anonymous request got through")
	}
	bearer := "Bearer " + c.token
	if status, seen := x.request("GET", "Bearer "+other.token); status != 403 || seen != nil {
		t.Errorf("without the permission: %d %v", status, seen)
	}
	status, seen := x.request("POST", bearer, "Cookie: a=1; __Host-cairn_refresh=secret; b=2")
	if status != 200 || seen.Get("X-Cairn-User") != "ada" || seen.Get("Authorization") != "" || seen.Get("Cookie") != "a=1; b=2" {
		t.Errorf("%d %v", status, seen)
	}
	id := c.must(200, "GET", mePath, nil).text("id")
	if seen.Get("X-Cairn-User-Id") != id || seen.Get("X-Cairn-Permissions") != "dataset.read,inbox.read,wiki.edit" {
		t.Errorf("%v, want the id %s", seen, id)
	}
	x.checkSpoofed(bearer)
	x.checkCookies(bearer)

	narrow := ts.addToken("ada", "narrow", datasetRead)
	if status, seen := x.request("GET", "Bearer "+narrow.token); status != 403 || seen != nil {
		t.Errorf("by an API token without the permission: %d %v", status, seen)
	}
	script := ts.addToken("ada", "script", "wiki.edit")
	if status, seen := x.request("POST", "Bearer "+script.token); status != 200 || seen.Get("X-Cairn-User") != "ada" {
		t.Errorf("by API token: %d %v", status, seen)
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+script.token))
	for _, method := range []string{"GET", "HEAD", "POST"} {
		for _, claim := range []string{"X-Other: GET", "X-Original-Method: GET", "X-Forwarded-Method: GET"} {
			if status, seen := x.request(method, basic, claim); status != 401 || seen != nil {
				t.Errorf("%s by Basic, which another site's page could make a browser send, with %s: %d", method, claim, status)
			}
		}
	}
	x.checkBrowser()
	c.must(204, "POST", "/api/v1/auth/logout", nil)
	if status, seen := x.request("GET", bearer); status != 401 || seen != nil {
		t.Errorf("after logout: %d", status)
	}
}

// checkBrowser asks for a page as a person with a browser does: it leads to the login page and back.
func (x *proxied) checkBrowser() {
	t := x.t
	b := &browser{client: x.web}
	for page, next := range map[string]string{"/page?a=1&b=2": "/page?a=1&b=2", "/": "/", "//evil.example/x": "/", "/%5Cevil.example": "/%5Cevil.example"} {
		a := b.page("GET", page, "")
		if want := loginPathTo(next); a.status != 302 || a.header.Get("Location") != want {
			t.Errorf("%s: %d to %q, want %q", page, a.status, a.header.Get("Location"), want)
		}
	}
	b.shows(200, "GET", loginPathTo("/page?a=1&b=2"), "", `name="next" value="/page?a=1&amp;b=2"`, "/console/style.css")
	b.must(200, "GET", "/console/style.css", nil)
	form := "username=ada&password=" + testPassword + "&next=/page"
	if a := b.page("POST", "/login", form, "Sec-Fetch-Site: cross-site", "Origin: https://evil.example"); a.status != 403 || b.cookie != "" {
		t.Errorf("a form of another site: %d", a.status)
	}
	b.goes("/page", "/login", form)
	status, seen := x.request("GET", "", "Cookie: "+b.cookie+"; a=1")
	if status != 200 || seen.Get("X-Cairn-User") != "ada" || seen.Get("Cookie") != "a=1" {
		t.Errorf("signed in: %d %v", status, seen)
	}
	handshake := []string{"Cookie: " + b.cookie, "Connection: Upgrade", "Upgrade: websocket", "Sec-Websocket-Version: 13",
		"Sec-Websocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Origin: https://evil.example"}
	if status, seen := x.request("GET", "", handshake...); status != 403 || seen != nil {
		t.Errorf("a WebSocket of a page of another origin: %d %v", status, seen)
	}
	cookie := b.cookie
	b.goes("/login?done=out", "/logout", "")
	if status, seen := x.request("GET", "", "Cookie: "+cookie); status != 401 || seen != nil {
		t.Errorf("signed out: %d", status)
	}
}

// checkSpoofed sends headers that only the proxy may send.
func (x *proxied) checkSpoofed(bearer string) {
	for _, name := range []string{"X-Cairn-User", "x-cairn-user", "X-CAIRN-USER", "X_Cairn_User", "X-Cairn_User", "X-Cairn-User-Id", "X_Cairn_User_Id",
		"X-Cairn-Permissions", "x_cairn_permissions", "X-Cairn-Roles", "X_Cairn-Roles", "X-Request-Id", "x-request-id"} {
		status, seen := x.request("GET", bearer, name+": spoofed", name+": spoofed,again")
		if status != 200 || seen.Get("X-Cairn-User") != "ada" || len(seen.Values("X-Cairn-User")) != 1 || strings.Contains(fmt.Sprint(seen), "spoofed") {
			x.t.Errorf("%s: %d %v", name, status, seen)
		}
		if id := seen.Get("X-Request-Id"); id == "" {
			x.t.Errorf("no request id: %v", seen)
		}
	}
}

// checkCookies sends cookie headers that are made to carry one of our cookies through. A program of the same site can
// set any cookie but ours, before and after it.
func (x *proxied) checkCookies(bearer string) {
	ours := []string{"__Host-cairn_refresh", "__Host-cairn_session", "cairn_refresh", "cairn_session"}
	cases := map[string]string{ // the headers, one a line, with @ for one of our cookies; what the program sees, where it matters
		"@":                                      "",
		"@; @":                                   "",
		"@; a=1":                                 "a=1",
		"a=1; @":                                 "a=1",
		"a=1; @; b=2":                            "a=1; b=2",
		"a=1;@;b=2":                              "a=1;b=2",
		"a=; @; b=2":                             "a=; b=2",
		"a=Zm8==; @; b=2":                        "a=Zm8==; b=2",
		"a=1; @; @; b=2":                         "a=1; b=2",
		"@; a=1; @; b=2":                         "a=1; b=2",
		"my_@; @":                                "my_@",
		"my-@; @; b=2":                           "my-@; b=2",
		"my.@; @":                                "my.@",
		"@2; @":                                  "",
		"a=1; my_@; @":                           "a=1; my_@",
		"my_@; @; my_@; @; b=2":                  "my_@; my_@; b=2",
		"a=1\n@\nb=2":                            "?",
		"my_@\n@":                                "?",
		"@\n@\n@":                                "",
		"@; @; @; @; a=1":                        "?",
		"@; @; a=1; @; @; b=2":                   "?",
		"a=\"; @; b=\"":                          "?",
		"a=\"1;@\"":                              "?",
		"a=1,@":                                  "?",
		"a=@":                                    "?",
		"=@":                                     "?",
		";@":                                     "?",
		";;; ; @;;":                              "?",
		"x; @; y":                                "?",
		"a=1;\t@":                                "?",
		"a=1;   @   ; b=2":                       "?",
		"$Version=1; @; $Path=/":                 "?",
		strings.Repeat("a=1;   ", 300) + "@":     "?",
		strings.Repeat("my_@; ", 60) + "@":       "?",
		strings.Repeat("@; ", 40) + "a=1":        "?",
		strings.Repeat(" ;", 1000) + "@":         "?",
		strings.Repeat("-", 4000) + "=1; @":      "?",
		"a=" + strings.Repeat("_", 4000) + "; @": "?",
		"a=\xff\xfe; @; b=\x80":                  "?",
		"a={cookie}; b=$http_cookie; $1; @; ${1}": "?",
		"a=1; my_@; c=3; @":                       "a=1; my_@; c=3",
		"a=1; @;":                                 "?",
	}
	n := 0
	for _, name := range ours {
		for sent, want := range cases {
			n++
			fill := func(text string) string { return strings.ReplaceAll(text, "my_@", "my_"+name+"=x") }
			fill2 := func(text string) string {
				text = strings.NewReplacer("my-@", "my-"+name+"=x", "my.@", "my."+name+"=x", "@2", name+"2=x").Replace(fill(text))
				return strings.ReplaceAll(text, "@", name+"=secret")
			}
			var headers []string
			for line := range strings.SplitSeq(fill2(sent), "\n") {
				headers = append(headers, "Cookie: "+line)
			}
			status, seen := x.request("GET", bearer, headers...)
			got := strings.Join(seen.Values("Cookie"), "; ")
			if status == 400 && want == "?" { // refused by the proxy itself
				continue
			}
			if status != 200 || strings.Contains(fmt.Sprint(seen), "secret") {
				x.t.Errorf("%q: %d %q", sent, status, got)
			}
			if wanted := fill2(want); want != "?" && sent != "@2; @" && strings.TrimRight(got, "; ") != wanted {
				x.t.Errorf("%q: the program sees %q, want %q", sent, got, wanted)
			}
		}
	}
	x.t.Logf("%d cookie headers", n)
}

// nginx writes the configuration of an nginx into the directory, with what stands in its http and server blocks, and
// returns the command that runs it.
func nginx(t *testing.T, dir, address, http, server string) []string {
	t.Helper()
	conf := fmt.Sprintf("daemon off;\npid %s/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n"+
		"%s\nserver {\nlisten %s;\n%s\n}\n}\n", dir, http, address, server)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"nginx", "-p", dir, "-c", path}
}

// TestPeerNginx runs nginx, with the snippets of docs/proxies.md, between a client and a program that knows nothing of tokens.
func TestPeerNginx(t *testing.T) {
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	startNginx(t, ts).check(ts)
}

// startNginx starts nginx with the snippets of the README.
func startNginx(t *testing.T, ts *testServer) *proxied {
	t.Helper()
	return startProxied(t, func(dir, address, upstream string) []string {
		blocks := snippets(t, "nginx", ts.url, upstream)
		if len(blocks) != 2 {
			t.Fatalf("docs/proxies.md has %d blocks for nginx", len(blocks))
		}
		return nginx(t, dir, address, blocks[0], blocks[1])
	})
}

// TestPeerNginxGzip asks for an answer that nginx compresses, and so gives a weak tag: If-None-Match with it gets a 304.
// If-Match with it gets a 412 that says what to send instead.
func TestPeerNginxGzip(t *testing.T) {
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	x := startProxied(t, func(dir, address, _ string) []string {
		location := "location / {\nproxy_pass " + ts.url + ";\nproxy_http_version 1.1;\n}"
		return nginx(t, dir, address, "gzip on;\ngzip_types application/json;\ngzip_proxied any;\ngzip_min_length 1;", location)
	})
	c := ts.signIn("root", "all")
	c.url = x.web.url
	role := c.must(201, "POST", "/api/v1/roles", map[string]any{"name": "surveyor", "permissions": []string{}})
	path := role.header.Get("Location")
	for _, asked := range []string{path, "/api/v1/roles"} {
		a := c.must(200, "GET", asked, nil, "Accept-Encoding: gzip")
		tag := a.header.Get("ETag")
		if a.header.Get("Content-Encoding") != "gzip" || !strings.HasPrefix(tag, "W/") {
			t.Fatalf("%s: not compressed: %v", asked, a.header)
		}
		if asked != path {
			c.must(304, "GET", asked, nil, "Accept-Encoding: gzip", "If-None-Match: "+tag)
			continue
		}
		change := map[string]any{"description": "Flies drones."}
		if refused := c.must(412, "PATCH", path, change, "If-Match: "+tag); !strings.Contains(string(refused.body), "without W/") {
			t.Errorf("%s", refused.body)
		}
		c.must(200, "PATCH", path, change, "If-Match: "+strings.TrimPrefix(tag, "W/"))
	}
}

// TestPeerCaddy does the same with Caddy.
func TestPeerCaddy(t *testing.T) {
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	startCaddy(t, ts).check(ts)
}

// startCaddy starts Caddy with the snippet of the README.
func startCaddy(t *testing.T, ts *testServer) *proxied {
	t.Helper()
	return startProxied(t, func(dir, address, upstream string) []string {
		blocks := snippets(t, "caddy", ts.url, upstream)
		if len(blocks) != 1 {
			t.Fatalf("docs/proxies.md has %d blocks for Caddy", len(blocks))
		}
		conf := fmt.Sprintf("{\nadmin off\n}\nhttp://%s {\n%s\n}\n", address, blocks[0])
		if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		return []string{"caddy", "run", "--adapter", "caddyfile", "--config", filepath.Join(dir, "Caddyfile")}
	})
}
