//go:build peers

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// startPgBouncer starts PgBouncer in transaction mode in front of a server. It has fewer connections to the server than
// clients have to it. startPgBouncer returns the URL of the database cairn through it.
func startPgBouncer(t *testing.T, p *ownPostgres) string {
	t.Helper()
	dir := filepath.Join(p.dir, "bouncer")
	conf := fmt.Sprintf(`[databases]
cairn = host=%s
[pgbouncer]
unix_socket_dir = %s
listen_addr =
auth_type = trust
auth_file = %[2]s/users
pool_mode = transaction
default_pool_size = 6
max_client_conn = 200
server_login_retry = 0.1
`, p.dir, dir)
	err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, int(p.account.uid), -1),
		os.WriteFile(dir+"/ini", []byte(conf), 0o644), os.WriteFile(dir+"/users", []byte("\"cairn\" \"\"\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
	}
	cmd := p.account.command(t.Context(), "/", program, dir+"/ini")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	var log lockedBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	url := "host=" + dir + " port=6432 user=cairn dbname=cairn"
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := pgx.Connect(t.Context(), url)
		if err == nil {
			conn.Close(t.Context())
			return url
		}
		if time.Now().After(deadline) {
			t.Fatalf("PgBouncer does not answer: %v\n%s", err, log.String())
		}
		pause(t.Context(), 10*time.Millisecond)
	}
}

// TestPeerPgBouncer: two instances behind PgBouncer in transaction mode do all that they do without it.
func TestPeerPgBouncer(t *testing.T) {
	p := startOwnPostgres(t)
	url := startPgBouncer(t, p)
	one, two := startTwoServers(t, "CAIRN_DATABASE_URL="+url, "CAIRN_REGISTRATION=open", "CAIRN_TRUSTED_PROXIES=127.0.0.1/32")
	for i := range 40 { // enough transactions to change the session of the database again and again
		name := fmt.Sprintf("user%d", i)
		first, other := one, two
		if i%2 == 1 {
			first, other = two, one
		}
		first.client().must(201, "POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword},
			fmt.Sprintf("X-Forwarded-For: 10.0.0.%d", i))
		c, cookie := first.client().login(name, testPassword)
		c.url = other.url
		c.must(200, "GET", mePath, nil)
		if a := other.client().refresh(cookie); a.status != 200 {
			t.Fatalf("refresh: %s", a.body)
		}
		c.must(204, "POST", "/api/v1/auth/logout", nil)
		c.url = first.url
		c.refused(401, "invalid_token", "GET", mePath, nil)
	}
	root := one.signIn("root", "all")
	location := root.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "b"}).number("id")
	reader := two.signIn("reader", datasetRead)
	if n := len(reader.must(200, "GET", "/api/v1/inbox", nil).items()); n != 0 {
		t.Errorf("%d messages for a user who joined later", n)
	}
	root.url = two.url
	root.must(200, "PATCH", fmt.Sprintf("/api/v1/system-messages/%d", location), map[string]string{"title": "u"})
	root.must(204, "DELETE", fmt.Sprintf("/api/v1/system-messages/%d", location), nil)
	root.must(200, "GET", "/api/v1/audit?limit=500", nil)
}

// TestPeerPgBouncerKilledInstances: analyses behind PgBouncer survive kill -9 of an instance and of the database.
func TestPeerPgBouncerKilledInstances(t *testing.T) {
	p := startOwnPostgres(t)
	killInstances(t, 3, p, startPgBouncer(t, p))
}
