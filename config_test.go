package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestConfigCheck: the command prints the settings in force without secrets. An error names the setting.
func TestConfigCheck(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env       string
		says, err string
	}{
		{"", "CAIRN_STATE_DIR=" + here + "/var\n", ""},
		{"", "CAIRN_KEYS_FILE=" + here + "/var/keys\n", ""},
		{"CAIRN_STATE_DIR=no-state", "CAIRN_DATASETS_DIR=" + here + "/datasets\n", ""}, // ./var may be that of make run
		{"", "CAIRN_DATABASE_URL=(unset: a private PostgreSQL", ""},
		{"STATE_DIRECTORY=/s", "CAIRN_STATE_DIR=/s\n", ""},
		{"STATE_DIRECTORY=/s CAIRN_STATE_DIR=/t", "CAIRN_STATE_DIR=/t\n", ""},
		{"CAIRN_DATABASE_URL=postgres://u:secret@h/d", "CAIRN_DATABASE_URL=(database d of user u on h)\n", ""},
		{"CAIRN_DATABASE_URL=postgres://u:secret@h:x/d", "", "CAIRN_DATABASE_URL is not a PostgreSQL connection string"},
		{"CAIRN_LISTEN=8080", "", "CAIRN_LISTEN: must be an address and a port"},
		{"CAIRN_LISTEN=localhost:99999", "", "CAIRN_LISTEN: must be an address and a port"},
		{"CAIRN_LISTEN=[::1]:0", "CAIRN_LISTEN=[::1]:0\n", ""},
		{"CAIRN_LISTEN=:8080", "CAIRN_LISTEN=:8080\n", ""},
		{"CAIRN_STATE_DIR=/s CAIRN_DATASETS_DIR=/", "", "holds /s"},
		{"CAIRN_LOG_FORMAT=json", "CAIRN_LOG_FORMAT=json\n", ""},
		{"CAIRN_LISTN=1", "CAIRN_LISTEN=127.0.0.1:8080\n", "there is no setting CAIRN_LISTN (did you mean CAIRN_LISTEN?)"},
		{"CAIRN_X=1", "", "there is no setting CAIRN_X"},
		{"CAIRN_DATASETS_DIR=/no-such-root", "warning: CAIRN_DATASETS_DIR: stat /no-such-root: no such file", ""},
		{"CAIRN_ACCESS_TTL=0s", "", "CAIRN_ACCESS_TTL: must be a duration"},
		{"CAIRN_REFRESH_GRACE=6m", "", "CAIRN_REFRESH_GRACE: must be a duration of at most 5m"},
		{"CAIRN_PASSWORD_MIN=7", "", "CAIRN_PASSWORD_MIN: must be a number from 8 to 64"},
		{"CAIRN_REGISTRATION=yes", "", "CAIRN_REGISTRATION: must be one of open approval closed"},
		{"CAIRN_TRUSTED_PROXIES=10.0.0.1", "", "CAIRN_TRUSTED_PROXIES: must be networks"},
		{"CAIRN_COOKIE_INSECURE=secret", "", "CAIRN_COOKIE_INSECURE: must be 0 or 1"},
		{"CAIRN_LOG_LEVEL=secret", "", "CAIRN_LOG_LEVEL: must be debug, info, warn or error"},
		{"CAIRN_DATABASE_URL=postgres://u:secret@h/d?search_path=app", "", "must not set search_path"},
		{"CAIRN_DATABASE_URL=postgres://u:secret@h/d?statement_timeout=1", "", "must not set statement_timeout"},
		{"CAIRN_DATABASE_URL=postgres://u@h/d?password=secret", "", "must have its password as in postgres://user:password@host"},
		{"CAIRN_DATABASE_URL=password='secret'", "", "must have its password as in postgres://user:password@host"},
		{"CAIRN_DATABASE_URL=postgres://u:password=secret@h/d", "(database d of user u on h)", ""},
		{"CAIRN_DATABASE_URL=postgres://u@h/d?sslrootcert=system", "", "must set sslmode=verify-full"},
		{"CAIRN_TLS_CERT=a", "", "must be set together"},
		{"CAIRN_DATASETS_DIR=a::b", "", "CAIRN_DATASETS_DIR: must be directories"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"config", "check"}, strings.Fields(c.env), nil, &out, &out)
		if said := out.String(); !strings.Contains(said, c.says) || strings.Contains(said, "secret") || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %s", c.env, err, said)
		}
	}
}

// TestAdoptRoot: a command, which root may run, reads the last dataset root of the service from a short regular file only.
func TestAdoptRoot(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("/secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		make func(path string) error
		want string // empty: the default
	}{
		"a regular file": {func(path string) error { return os.WriteFile(path, []byte("/srv/elevation"), 0o600) }, "/srv/elevation"},
		"an empty file":  {func(path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
		"a large file":   {func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("/a"), 2049), 0o600) }, ""},
		"a link":         {func(path string) error { return os.Symlink(secret, path) }, ""},
		"an endless one": {func(path string) error { return os.Symlink("/dev/zero", path) }, ""},
		"a named pipe":   {func(path string) error { return syscall.Mkfifo(path, 0o600) }, ""},
		"a directory":    {func(path string) error { return os.Mkdir(path, 0o700) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			env := []string{"CAIRN_STATE_DIR=" + filepath.Join(dir, "state")}
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), c.make(filepath.Join(dir, "state", "dataset-root"))); err != nil {
				t.Fatal(err)
			}
			done := make(chan string, 1)
			go func() {
				said, err := cairn(env, "config", "check")
				done <- fmt.Sprint(said, err)
			}()
			waitFor(t, "the command", func() bool { return len(done) == 1 })
			want := cmp.Or(c.want, filepath.Join(dir, "datasets"))
			if said := <-done; !strings.Contains(said, "CAIRN_DATASETS_DIR="+want+"\n") {
				t.Errorf("want %s, got %.500s", want, said)
			}
		})
	}
}

// TestPackagedEnvironment: a command uses the settings of the packaged service, and its own environment overrides them.
func TestPackagedEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if env := packagedEnvironment(dir); env != nil {
		t.Errorf("without a package: %v", env)
	}
	for name, content := range map[string]string{
		"cairn.env": "# a comment\n; CAIRN_LISTEN=no\n\n CAIRN_REGISTRATION = approval \nCAIRN_PASSWORD_MIN='12'\nCAIRN_DATASETS_DIR=\"/srv/my elevation\"\n" +
			`CAIRN_TLS_CERT="/a\\b\$\"\c"` + "\n" + `CAIRN_TLS_KEY=/a\ \\b\c` + "\n" + `CAIRN_BREACHED_PASSWORDS='/a\\b'` + "\n", "database-url": "host=h dbname=d\n", "keys": newKeyLine(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := loadConfig(append(packagedEnvironment(dir), "CAIRN_PASSWORD_MIN=9"))
	if err != nil || cfg.registration != registrationApproval || cfg.passwordMin != 9 || cfg.databaseURL != "host=h dbname=d" || cfg.keysFile != dir+"/keys" ||
		cfg.datasetRoots[0] != "/srv/my elevation" || cfg.tlsCert != `/a\b$"\c` || cfg.tlsKey != `/a \bc` || cfg.breachedFile != `/a\\b` {
		t.Errorf("%v %+v", err, cfg)
	}
	if cfg, err := loadConfig(packagedEnvironment(dir)); err != nil || cfg.passwordMin != 12 {
		t.Errorf("%v %+v", err, cfg)
	}
	if err := os.WriteFile(dir+"/database-url", []byte("\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := loadConfig(packagedEnvironment(dir)); err == nil || !strings.Contains(err.Error(), "database-url is empty") {
		t.Errorf("an empty credential: %v", err)
	}
	if _, err := loadConfig(append(packagedEnvironment(dir), "CAIRN_DATABASE_URL=host=h")); err != nil {
		t.Errorf("an empty credential that nothing needs: %v", err)
	}
	if _, err := loadKeys(cfg.keysPath(), cfg.credentialsDir, false); err != nil { // its group may read it there
		t.Error(err)
	}
}
