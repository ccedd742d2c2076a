package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// packagedHost is what the package and its service have made on a host, in a folder that every user can reach.
type packagedHost struct {
	program string // the test's own, as the program itself
	etc     string // the settings
	owner   uint32 // of the state directory
	service *testServer
}

// newPackagedHost makes a host. If the test runs as root, the state directory belongs to the user postgres.
func newPackagedHost(t *testing.T) packagedHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "cairn-package-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := packagedHost{dir + "/cairn", dir + "/etc", uint32(os.Geteuid()), startServer(t, nil)}
	program, err := os.ReadFile(must(os.Executable()))
	if err := errors.Join(err, os.Chmod(dir, 0o755), os.Mkdir(h.etc, 0o755), os.Mkdir(dir+"/state", 0o755), os.WriteFile(h.program, program, 0o755),
		os.WriteFile(h.etc+"/cairn.env", []byte("CAIRN_STATE_DIR="+dir+"/state\n"), 0o644),
		os.WriteFile(h.etc+"/database-url", []byte(lookup(h.service.env, "CAIRN_DATABASE_URL")), 0o644)); err != nil {
		t.Fatal(err)
	}
	if h.owner == 0 {
		account := must(accountOf(osuser.Lookup("postgres")))
		h.owner = account.uid
		if err := os.Chown(dir+"/state", int(account.uid), int(account.gid)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// run runs a command on the host. It returns what it prints, with its error and its user, and its exit status.
func (h packagedHost) run(as *syscall.Credential, args ...string) (string, int) {
	cmd := exec.Command(h.program, args...)
	cmd.Dir = filepath.Dir(h.program)
	cmd.Env = []string{packageEnv + "=" + h.etc}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	output, _ := cmd.CombinedOutput()
	return string(output), cmd.ProcessState.ExitCode()
}

// TestPackagedCommands: on a host with the package, commands find its settings. Root becomes the service's user for commands
// that need it, and only for those. Other users read what to type.
func TestPackagedCommands(t *testing.T) {
	t.Parallel()
	h := newPackagedHost(t)
	self, owner := fmt.Sprint("<nil> as ", os.Geteuid(), "\n"), fmt.Sprint("<nil> as ", h.owner, "\n")
	if said, status := h.run(nil, "user", "list"); status != 0 || !strings.HasPrefix(said, "admin\t") || !strings.HasSuffix(said, owner) {
		t.Errorf("user list: %d %s", status, said)
	}
	if said, status := h.run(nil, "config", "check"); status != 0 || !strings.Contains(said, "CAIRN_STATE_DIR="+filepath.Dir(h.etc)+"/state\n") || !strings.HasSuffix(said, self) {
		t.Errorf("config check: %d %s", status, said)
	}
	if said, status := h.run(nil, "user", "create"); status != 2 || !strings.Contains(said, "NAME is missing") {
		t.Errorf("user create: %d %s", status, said)
	}
	if said, status := h.run(nil, "user", "show", "nobody"); status != 1 || !strings.Contains(said, "there is no user") {
		t.Errorf("user show: %d %s", status, said)
	}
	if said, status := h.run(nil, "restore", h.program); status != 1 || !strings.Contains(said, "; stop it first: sudo systemctl stop cairn.socket cairn.service") {
		t.Errorf("restore: %d %s", status, said)
	}
	var nobody *syscall.Credential
	if os.Geteuid() == 0 {
		said, status := h.run(nil, "backup", "here")
		if user := must(osuser.LookupId(fmt.Sprint(h.owner))).Username; status != 1 ||
			!strings.Contains(said, "permission denied: for root this command runs as user "+user+", who needs access") {
			t.Errorf("backup: %d %s", status, said)
		}
		nobody = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if err := os.Chmod(h.etc+"/database-url", 0); err != nil {
		t.Fatal(err)
	}
	if said, status := h.run(nobody, "user", "list"); status != 1 || !strings.Contains(said, "permission denied: run it as root: sudo cairn user list") {
		t.Errorf("as nobody: %d %s", status, said)
	}
	if said, status := h.run(nobody, "version"); status != 0 {
		t.Errorf("version as nobody: %d %s", status, said)
	}
}

// TestPackagedPrivateBackup: on a host with the package and a private PostgreSQL, root makes a backup, although root has
// become the service's user.
func TestPackagedPrivateBackup(t *testing.T) {
	t.Parallel()
	h := newPackagedHost(t)
	if err := os.Remove(h.etc + "/database-url"); err != nil {
		t.Fatal(err)
	}
	state := filepath.Dir(h.etc) + "/state"
	mustStartPrivatePostgres(t, state)
	for _, args := range [][]string{{"migrate"}, {"backup", state + "/backup"}} {
		if said, status := h.run(nil, args...); status != 0 {
			t.Errorf("%v: %d %s", args, status, said)
		}
	}
	if info, err := os.Stat(state + "/backup"); err != nil || info.Size() == 0 || info.Mode() != 0o600 || ownerOf(info) != h.owner {
		t.Errorf("%v %v", info, err)
	}
}

// TestMakeRun: if Cairn cannot start, "make run" fails with 1, and the message names the setting that helps.
func TestMakeRun(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("tools/run")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/run", script, 0o755), os.Symlink(must(os.Executable()), dir+"/cairn"), os.Mkdir(dir+"/testdata", 0o755),
		os.Mkdir(dir+"/var", 0o755), os.WriteFile(dir+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	lock, err := lockStateDir(dir + "/locked")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	database := newDatabase(t)
	for want, env := range map[string]string{
		"address already in use: set CAIRN_LISTEN to another address":                 "CAIRN_LISTEN=" + taken.Addr().String(),
		"(set CAIRN_STATE_DIR to use another): mkdir ":                                "CAIRN_STATE_DIR=file",
		"locked; stop it, or set CAIRN_STATE_DIR and CAIRN_LISTEN for this one":       "CAIRN_STATE_DIR=locked",
		"CAIRN_LISTEN: must be an address and a port, such as 127.0.0.1:8080 or :808": "CAIRN_LISTEN=8080",
	} {
		cmd := exec.Command("./run")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), packageEnv+"=/nonexistent", "CAIRN_DATABASE_URL="+database, "CAIRN_LISTEN=127.0.0.1:0", env)
		output, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(string(output), want) {
			t.Errorf("%s: %d %s", env, status, output)
		}
	}

	// It prints the link that sets the first password, and registers the sample files once.
	if err := os.Mkdir(dir+"/testdata/elevation", 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		cmd := exec.Command("./run")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), packageEnv+"=/nonexistent", "CAIRN_DATABASE_URL="+database, "CAIRN_LISTEN=127.0.0.1:0")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdout := must(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := ""
		for lines := bufio.NewScanner(stdout); !strings.Contains(said, "report sample") && lines.Scan(); {
			said += lines.Text() + "\n"
		}
		token := must(os.ReadFile(dir + "/var/first-admin-token"))
		checkHas(t, "make run", said, "/set-password#"+strings.TrimSpace(string(token))+"\n")
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, must(os.ReadFile(dir+"/run.log")))
		}
		checkHas(t, "the log", string(must(os.ReadFile(dir+"/run.log"))), `"msg":"`)
	}
	conn := must(pgx.Connect(t.Context(), database))
	defer conn.Close(t.Context())
	check(t, "ids of datasets", must(scalar[int](t.Context(), conn, "", `SELECT last_value FROM datasets_id_seq`)), 1)
}

// TestJournalPriorities: on a stream to the journal each line begins with the priority of its level. On any other it does not.
func TestJournalPriorities(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	info := must(w.Stat()).Sys().(*syscall.Stat_t)
	env := []string{fmt.Sprintf("JOURNAL_STREAM=%d:%d", info.Dev, info.Ino)}
	for _, format := range []string{"json", "text"} {
		log := newLogger(config{logFormat: format, logLevel: slog.LevelDebug}, newLogWriter(env, w))
		log.Debug("low", "level", "ERROR")
		log.Info(`a "level":"WARN" level=WARN`)
		log.Warn("odd")
		log.Error("bad")
	}
	fmt.Fprintln(newLogWriter(env, w), "cairn: not started")
	w.Close()
	lines := strings.Split(string(must(io.ReadAll(r))), "\n")
	for i, want := range strings.Fields("<7> <6> <4> <3> <7> <6> <4> <3> <3>") {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("%s, want %s", lines[i], want)
		}
		if line, ok := strings.CutPrefix(lines[i], want+"{"); ok && !json.Valid([]byte("{"+line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	var out bytes.Buffer
	if newLogWriter(env, os.Stderr) != io.Writer(os.Stderr) || newLogWriter(env, &out) != io.Writer(&out) || newLogWriter(nil, w) != io.Writer(w) {
		t.Error("a stream that is not the journal's")
	}
}
