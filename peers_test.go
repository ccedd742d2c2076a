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
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestPeerNginx runs nginx, with the snippets of the README, between a client and a program that knows nothing of tokens.
func TestPeerNginx(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d blocks for nginx", len(blocks))
	}
	ts := startServer(t, nil, "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	ts.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('wiki.edit', 'Edit the wiki.')`)
	c := ts.signIn("ada", datasetRead, "wiki.edit")
	var mu sync.Mutex
	var seen http.Header
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Clone()
		fmt.Fprint(w, "{}")
	}))
	defer upstream.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()

	dir := t.TempDir()
	addresses := strings.NewReplacer("http://127.0.0.1:8080", ts.url, "http://127.0.0.1:9000", upstream.URL)
	conf := fmt.Sprintf("daemon off;\npid %s/pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n"+
		"%s\nserver {\nlisten %s;\n%s\n}\n}\n", dir, blocks[0][1], address, addresses.Replace(blocks[1][1]))
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	nginx := exec.Command("nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
	nginx.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin")
	if path, err := exec.LookPath("/usr/sbin/nginx"); err == nil {
		nginx = exec.Command(path, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
	}
	var log lockedBuffer
	nginx.Stderr = &log
	if err := nginx.Start(); err != nil {
		t.Fatal(err)
	}
	defer nginx.Wait()
	defer nginx.Process.Signal(syscall.SIGQUIT)
	waitFor(t, "nginx to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	web := client{t: t, url: "http://" + address}
	a := web.do("GET", "/page", nil, "X-Cairn-User: admin")
	if challenges := strings.Join(a.header.Values("WWW-Authenticate"), ", "); a.status != 401 || !strings.Contains(challenges, "Bearer") {
		t.Errorf("anonymous: %d %s %s", a.status, challenges, log.String())
	}
	if seen != nil {
		t.Error("an anonymous request got through")
	}
	through := func(who client, headers ...string) http.Header {
		t.Helper()
		a := who.do("POST", "/page", map[string]string{}, headers...)
		if a.status != 200 {
			t.Fatalf("%d %s %s", a.status, a.body, log.String())
		}
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
	got := through(web.as(c.token), "X-Cairn-User: admin", "X-Cairn-User-Id: 1", "X-Cairn-Permissions: user.manage", "Cookie: a=1; __Host-cairn_refresh=secret; b=2")
	if got.Get("X-Cairn-User") != "ada" || got.Get("X-Cairn-User-Id") != c.must(200, "GET", mePath, nil).text("id") || got.Get("X-Cairn-Permissions") != "dataset.read,inbox.read,wiki.edit" || len(got.Values("X-Cairn-User")) != 1 {
		t.Errorf("the user is wrong: %v", got)
	}
	if got.Get("Authorization") != "" || strings.Contains(fmt.Sprint(got), "secret") || got.Get("Cookie") != "a=1; b=2" {
		t.Errorf("secrets or forged headers got through: %v", got)
	}
	if got = through(web.as(c.token), "Cookie: __Host-cairn_refresh=secret"); got.Get("Cookie") != "" {
		t.Errorf("our cookie alone: %v", got)
	}
	if a := web.as(ts.addToken("ada", "narrow", datasetRead).token).do("GET", "/page", nil); a.status != 403 {
		t.Errorf("by an API token without the permission: %d", a.status)
	}
	script := ts.addToken("ada", "script", "wiki.edit")
	if got = through(web.as(script.token)); got.Get("X-Cairn-User") != "ada" {
		t.Errorf("by API token: %v", got)
	}
	basic := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+script.token))
	if a := web.do("GET", "/page", nil, basic); a.status != 200 {
		t.Errorf("GET by Basic: %d", a.status)
	}
	if a := web.do("POST", "/page", map[string]string{}, basic); a.status != 401 {
		t.Errorf("POST by Basic, which another site's page could make a browser send: %d", a.status)
	}
	c.must(204, "POST", "/api/v1/auth/logout", nil)
	if a := web.as(c.token).do("GET", "/page", nil); a.status != 401 {
		t.Errorf("after logout: %d", a.status)
	}
}
