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

// TestPeerPrivatePostgresOutsideUnreachableStateDir: if the user that root's server runs as cannot reach the state
// directory, the cluster lies elsewhere, and stays there.
func TestPeerPrivatePostgresOutsideUnreachableStateDir(t *testing.T) {
	t.Parallel()
	needRoot(t)
	stateDir := newStateDir(t)
	fallback := filepath.Join(filepath.Dir(stateDir), "fallback")
	if err := os.Mkdir(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	created, err := createCluster(t.Context(), stateDir, fallback)
	if err != nil {
		t.Fatal(err)
	}
	if created.folder != fallbackFolder(fallback, stateDir) || !strings.HasSuffix(strings.Split(created.folder, "-state-")[0], filepath.Base(filepath.Dir(stateDir))) {
		t.Errorf("the cluster lies in %s", created.folder)
	}
	if err := os.Chmod(stateDir, 0o755); err != nil { // it stays where it is
		t.Fatal(err)
	}
	if c, err := findCluster(stateDir, fallback); err != nil || c.dataDir() != created.dataDir() || c.account.uid == 0 {
		t.Errorf("found %+v, %v", c, err)
	}
}
