//go:build peers

package main

import (
	"os"
	osuser "os/user"
	"path/filepath"
	"strings"
	"testing"
)

// TestPeerPrivatePostgresKeepsOtherUsersOut: the private server refuses other users of the machine, first by the mode of
// its directory and then by peer authentication.
func TestPeerPrivatePostgresKeepsOtherUsersOut(t *testing.T) {
	t.Parallel()
	needRoot(t)
	stateDir := newStateDir(t)
	p := mustStartPrivatePostgres(t, stateDir)
	programs, err := findServerPrograms("")
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := accountOf(osuser.Lookup("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	psql := func(account serverAccount, role string) string {
		output, _ := account.command(t.Context(), "/", filepath.Join(programs, "psql"), "-XAtw", "-h", p.dataDir(), "-U", role, "-d", "cairn", "-c", "SELECT 'let in'").CombinedOutput()
		return strings.TrimSpace(string(output))
	}
	if got := psql(stranger, "cairn"); !strings.Contains(got, "Permission denied") {
		t.Errorf("another OS user reaches the socket: %s", got)
	}
	if err := os.Chmod(p.dataDir(), 0o755); err != nil { // now only peer authentication is between them
		t.Fatal(err)
	}
	root, err := accountOf(osuser.LookupId("0"))
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []struct {
		account serverAccount
		role    string
		want    string
	}{
		{stranger, "cairn", `Peer authentication failed for user "cairn"`},
		{stranger, "postgres", `Peer authentication failed for user "postgres"`},
		{root, "cairn", "let in"},
		{root, "postgres", `Peer authentication failed for user "postgres"`},
		{p.account, "cairn", "let in"},
		{p.account, "postgres", "let in"},
	} {
		if got := psql(check.account, check.role); !strings.Contains(got, check.want) {
			t.Errorf("OS user %s as %s: %q, want %q", check.account.name, check.role, got, check.want)
		}
	}
	if err := os.Chmod(p.dataDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPeerPrivatePostgresInUnreachableStateDir: if the user that root's server runs as cannot reach the state directory, the
// start says what to do and leaves nothing. A cluster that version 0.2 put elsewhere is still found.
func TestPeerPrivatePostgresInUnreachableStateDir(t *testing.T) {
	t.Parallel()
	needRoot(t)
	stateDir := newStateDir(t)
	fallback := filepath.Join(filepath.Dir(stateDir), "fallback")
	if err := os.Mkdir(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := createCluster(t.Context(), stateDir); err == nil ||
		!strings.Contains(err.Error(), "user postgres, as whom PostgreSQL runs, cannot use "+stateDir+"; set CAIRN_STATE_DIR") {
		t.Errorf("created: %v", err)
	}
	if left, err := os.ReadDir(stateDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
	former := fallbackFolder(fallback, stateDir)
	if err := os.MkdirAll(former, 0o755); err != nil {
		t.Fatal(err)
	}
	created, err := createCluster(t.Context(), former)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := findCluster(stateDir, fallback); err != nil || c.dataDir() != created.dataDir() || c.account.uid == 0 {
		t.Errorf("found %+v, %v", c, err)
	}
}
