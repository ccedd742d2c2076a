package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNotice: NOTICE names every module and every file of data by others, and has the terms of LICENSE.
func TestNotice(t *testing.T) {
	t.Parallel()
	notice := readAll(t, "NOTICE")
	for _, module := range regexp.MustCompile(`(?m)^\t([a-z.]+/\S+?)(?:/v\d+)? v`).FindAllStringSubmatch(readAll(t, "go.mod"), -1) {
		if !regexp.MustCompile(`[\s,]` + regexp.QuoteMeta(module[1]) + `[\s,.]`).MatchString(notice) {
			t.Errorf("NOTICE lacks the module %s", module[1])
		}
	}
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"cmd_usage.txt", "metrics.txt"}
	for _, name := range names {
		isKind := slices.Contains([]string{".csv", ".txt", ".bin"}, filepath.Ext(name.Name()))
		isData := isKind && !slices.Contains(ours, name.Name())
		if isData && !regexp.MustCompile(`(?m)^Files:.* `+regexp.QuoteMeta(name.Name())+`( |$)`).MatchString(notice) {
			t.Errorf("NOTICE lacks the file %s", name.Name())
		}
	}
	_, terms, _ := strings.Cut(readAll(t, "LICENSE"), "\n\n") // after the title
	_, terms, _ = strings.Cut(terms, "\n\n")                  // after the copyright
	terms = strings.ReplaceAll("\n"+strings.TrimSpace(terms), "\n\n", "\n.\n")
	if !strings.Contains(notice, "\nLicense: MIT"+strings.ReplaceAll(terms, "\n", "\n ")+"\n") {
		t.Error("NOTICE has other terms than LICENSE")
	}
}

// TestNightlyUnit runs the commands of the nightly unit: on a clean folder, on one with a fault, once that is accepted, and
// on one that is gone.
func TestNightlyUnit(t *testing.T) {
	t.Parallel()
	commands := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/cairn (.*)$`).FindAllStringSubmatch(readAll(t, "deploy/cairn-nightly@.service"), -1)
	if len(commands) != 2 {
		t.Fatalf("the unit has the commands %q", commands)
	}
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	folder := filepath.Join(ts.datasets, "tiles")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	dataset := ts.addDataset(c, "tiles", "tiles")
	night := func() (string, error) {
		var out lockedBuffer
		for _, command := range commands {
			args := strings.Fields(strings.ReplaceAll(command[1], "%i", "tiles"))
			if err := run(t.Context(), args, ts.env, nil, &out, io.Discard); err != nil { // systemd stops here too
				return out.String(), err
			}
		}
		return out.String(), nil
	}
	for i, content := range [][]byte{geographicTIFF(7, 47), geographicTIFF(8, 47)[:100]} {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i, ".tif")), content, 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := night()
		if want := []string{"1 of 1 file located", "1 of 2 files located"}[i]; !strings.Contains(out, want) || errors.Is(err, errFindings) != (i == 1) {
			t.Errorf("night %d: %v, %s", i, err, out)
		}
	}
	c.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "no_extent", "path": "1.tif", "note": "known"})
	if out, err := night(); err != nil || !strings.Contains(out, "\nno findings") {
		t.Errorf("accepted: %v, %s", err, out)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if out, err := night(); err == nil || errors.Is(err, errFindings) || strings.Contains(out, "findings") {
		t.Errorf("the folder is gone: %v, %s", err, out)
	}
}

// TestAuditUnit runs the command of the unit that checks the audit log, with the credentials that systemd gives it and no
// other file of the service: on a whole log, on one with a changed row, and once that is known.
func TestAuditUnit(t *testing.T) {
	t.Parallel()
	unit := readAll(t, "deploy/cairn-audit.service")
	command := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/cairn (.*)$`).FindStringSubmatch(unit)
	if command == nil {
		t.Fatal("the unit has no command")
	}
	ts := startServer(t, nil)
	waitFor(t, "a seal", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_seals`) > 0 })

	etc := map[string]string{
		"/etc/cairn/keys":         readAll(t, ts.cfg.keysPath()),
		"/etc/cairn/database-url": lookup(ts.env, "CAIRN_DATABASE_URL"),
	}
	credentials := t.TempDir()
	for _, line := range regexp.MustCompile(`(?m)^LoadCredential=(\S+):(\S+)$`).FindAllStringSubmatch(unit, -1) {
		if err := os.WriteFile(filepath.Join(credentials, line[1]), []byte(etc[line[2]]), 0o440); err != nil {
			t.Fatal(err)
		}
	}
	night := func(when string, want int) {
		t.Helper()
		env := []string{"CREDENTIALS_DIRECTORY=" + credentials, "CAIRN_STATE_DIR=" + t.TempDir()}
		said, got := status(env, "", strings.Fields(command[1])...)
		if got != want || !strings.Contains(said, "head ") {
			t.Errorf("%s: status %d, want %d: %s", when, got, want, said)
		}
	}

	night("a whole log", 0)
	ts.changeSealed(1)
	night("a changed row", 3)
	night("the same row again", 0)
}
