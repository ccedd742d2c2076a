package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// examples returns the fenced blocks of a document that are in this language.
func examples(t *testing.T, document, language string) (blocks []string) {
	t.Helper()
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readAll(t, document), -1) {
		blocks = append(blocks, block[1])
	}
	if blocks == nil {
		t.Fatalf("%s has no example in %s", document, language)
	}
	return blocks
}

// readerShell is a folder in which the examples of a document run against a service, as on the machine of a reader: with the
// command cairn, with sudo, and with the state directory as var.
type readerShell struct {
	*testServer
	dir string
}

// openShell returns such a folder.
func (ts *testServer) openShell() readerShell {
	ts.t.Helper()
	self, err := os.Executable()
	dir := ts.t.TempDir()
	programs := map[string]string{
		"cairn":     "CAIRN_TEST_COMMAND=1 exec " + self + ` "$@"`,
		"sudo":      `[ "$1" != -u ] || shift 2` + "\n" + `exec "$@"`,
		"systemctl": "exit 0",
	}
	err = errors.Join(err, os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.Mkdir(filepath.Join(dir, "etc"), 0o755),
		os.Symlink(ts.cfg.stateDir, filepath.Join(dir, "var")))
	for name, script := range programs {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	if err != nil {
		ts.t.Fatal(err)
	}
	return readerShell{ts, dir}
}

// run runs a script with the address and the directories of the service instead of the documented ones, and returns all
// that it prints. stdin is what the reader types.
func (c readerShell) run(shell, script, stdin string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	script = strings.NewReplacer("http://127.0.0.1:8080", c.url, "/var/lib/cairn", c.cfg.stateDir,
		"/etc/cairn", filepath.Join(c.dir, "etc"), "/srv/elevation", c.datasets).Replace(script)
	cmd := exec.CommandContext(ctx, shell, "-c", script)
	cmd.WaitDelay = time.Second
	cmd.Dir, cmd.Stdin = c.dir, strings.NewReader(stdin)
	cmd.Env = append(append(os.Environ(), c.env...), "PATH="+filepath.Join(c.dir, "bin")+":"+os.Getenv("PATH"))
	output, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}

// shows fails the test for each text that is not in the output.
func (c readerShell) shows(output string, texts ...string) {
	c.t.Helper()
	for _, want := range texts {
		if !strings.Contains(output, want) {
			c.t.Errorf("the output does not show %s:\n%s", want, output)
		}
	}
}

// startSample starts a service with the sample files as dataset 1, as "make run" does.
func startSample(t *testing.T) *testServer {
	t.Helper()
	samples, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	ts := startServer(t, nil, "CAIRN_DATASETS_DIR="+samples)
	var out lockedBuffer
	if err := run(context.Background(), []string{"dataset", "create", "sample", "elevation"}, ts.env, nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	return ts
}

// startUsed starts the sample service, sets the password of its administrator as in the README's tour, and analyses the
// sample files.
func startUsed(t *testing.T) *testServer {
	t.Helper()
	ts := startSample(t)
	token, err := os.ReadFile(ts.cfg.firstAdminFile())
	if err != nil {
		t.Fatal(err)
	}
	const password = "change me please"
	ts.client().must(204, "POST", "/api/v1/auth/password-reset",
		map[string]string{"token": strings.TrimSpace(string(token)), "new_password": password})
	admin, _ := ts.client().login("admin", password)
	admin.analyze("/api/v1/datasets/1", nil)
	return ts
}

// TestReadmeTour runs the README's tour as it stands, but for the address and the folder, against the service with the
// sample files.
func TestReadmeTour(t *testing.T) {
	t.Parallel()
	c := startSample(t).openShell()
	output := c.run("sh", "set -eu\n"+strings.Join(examples(t, "README.md", "sh"), ""), "")
	c.shows(output, `"username":"admin"`, `"username":"ada"`, `{"unread":1,`, `"state":"succeeded"`, `"total":6`,
		`"path":"n46e007.tif","status":"ok","bbox":[7,46,8,47]`, "sample: n46e007.tif, pixels of 3849 m", `1 error, 2 warnings: dataset sample, 6 files`, `"code":"invalid_token"`)
	if picture, err := os.ReadFile(filepath.Join(c.dir, "sample.svg")); err != nil || !strings.HasPrefix(string(picture), "<svg") {
		t.Errorf("the picture: %v %.80s", err, picture)
	}
	if n := strings.Count(output, `"code":`); n != 1 { // of the token that was logged out
		t.Errorf("something in the tour failed:\n%s", output)
	}
}

// TestDocumentExamples runs the shell examples of the other documents as they stand.
func TestDocumentExamples(t *testing.T) {
	t.Parallel()
	for document, texts := range map[string][]string{
		"docs/accounts.md": {"user.manage: ", "\ncairn_pw_", `"display_name":"Grace"`, `["keeper","member"]`, `"description":"Keeps the data in order"`, `"stale"`,
			`"requires_second_factor":true`, `"requires_second_factor":false`, " curl/", "\ncairn_pat_", "admin user.roles"},
		"docs/gis.md":       {`"path":"n46e007.tif","resolution_m":`, `"path":"n46e008.tif"`, `{"total":1,"paths":["utm32_500_5298.tif"]}`, "changed dataset 1, sample"},
		"docs/operating.md": {"admin", `{"status":"ok"}`, "CAIRN_REGISTRATION=", "\ncairn_pat_"},
	} {
		t.Run(filepath.Base(document), func(t *testing.T) {
			t.Parallel()
			c := startUsed(t).openShell()
			c.shows(c.run("sh", "set -eu\n"+strings.Join(examples(t, document, "sh"), ""), ""), texts...)
			for _, name := range []string{"files.csv", "footprints.geojson", "gaps.geojson", "part.svg", "var/cairn.backup"} {
				info, err := os.Stat(filepath.Join(c.dir, name))
				if isWritten := strings.Contains(readAll(t, document), filepath.Base(name)); isWritten && (err != nil || info.Size() < 50) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// TestJobs runs the jobs of docs/jobs.md in one bash, as they stand. A block that begins with #! is saved under the name
// in its second line.
func TestJobs(t *testing.T) {
	t.Parallel()
	ts := startUsed(t)
	admin, _ := ts.client().login("admin", "change me please")
	people := "username,email,display_name\nada,ada@example.org,Ada Lovelace\n"
	for i := range 10 {
		people += fmt.Sprintf("user%d,user%[1]d@example.org,User %[1]d\n", i)
	}
	joan := ts.addUser("joan", datasetRead)
	ts.addToken("joan", "backup", datasetRead)
	c := ts.openShell()
	if err := os.WriteFile(filepath.Join(c.dir, "people.csv"), []byte(people+"joan,joan@example.org,Joan Blaeu\r"), 0o644); err != nil {
		t.Fatal(err)
	}
	admin.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "News", "body": "Read this.", "include_new_users": true})
	admin.must(200, "PATCH", "/api/v1/datasets/1", map[string]string{"name": "alps"})
	admin.analyze(ts.addDataset(admin, "alps-old", "."), nil)
	admin.must(201, "POST", "/api/v1/roles", map[string]any{"name": "surveyor", "permissions": []string{datasetRead, datasetAnalyze}})
	admin.must(200, "POST", "/api/v1/users/"+joan+"/roles", map[string]string{"role": "surveyor"})
	script := "set -euo pipefail\n"
	for _, block := range examples(t, "docs/jobs.md", "bash") {
		if name := regexp.MustCompile(`^#!/bin/bash\n# ([a-z-]+) `).FindStringSubmatch(block); name != nil {
			block = fmt.Sprintf("cat > %s <<'END'\n%sEND\nchmod +x %[1]s\n", name[1], block)
		}
		script += block
	}
	output := c.run("bash", script, "change me please\n")
	c.shows(output, `"kind":"token"`, " Maintenance on Sunday\n", "scheduled: Maintenance on Monday\n", "retracted: Maintenance on Monday\n",
		"backup (dataset.read), last used never\n", "joan is disabled\n", "role.create role:surveyor added: dataset.read dataset.analyze", "admin user.roles user:joan added: surveyor removed: \n", "\nadmin \n", "added n46e007.tif\n",
		"accepted: corrupt broken.tif\n", "1 alps\n", `"name":"wiki.edit"`, `{"name":"editor","permissions":["wiki.edit"]}`, "204 admin\n", "cells: {\"same_content\":4}\n")
	invitations, err := os.ReadFile(filepath.Join(c.dir, "invitations.csv"))
	if n := strings.Count(string(invitations), `"cairn_pw_`); err != nil || n != 11 || !strings.Contains(string(invitations), `"joan","A user has, or had, that name."`) {
		t.Errorf("%d invitations, %v:\n%s", n, err, invitations)
	}
	admin.refused(404, "not_found", "GET", "/api/v1/users/"+joan, nil)
	header, err := os.ReadFile(filepath.Join(c.dir, "nightly-token"))
	if err != nil || !strings.HasPrefix(string(header), "Authorization: Bearer cairn_pat_") {
		t.Errorf("the nightly token: %v %q", err, header)
	}
	waitFor(t, "the checks", func() bool {
		return admin.must(200, "GET", "/api/v1/datasets/1/report", nil).json["running"] == nil
	})
	if report := admin.must(200, "GET", "/api/v1/datasets/1/report", nil).json; len(report["findings"].([]any)) > 0 {
		t.Errorf("findings that were not accepted: %v", report["findings"])
	}
}

// TestSettingsInDocuments: the table of docs/settings.md has every setting, and no other.
func TestSettingsInDocuments(t *testing.T) {
	t.Parallel()
	var got, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(CAIRN_[A-Z0-9_]+)` \\|").FindAllStringSubmatch(readAll(t, "docs/settings.md"), -1) {
		got = append(got, row[1])
	}
	for _, s := range settings(new(config), nil) {
		want = append(want, s.name)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("docs/settings.md has %v, the program %v", got, want)
	}
}
