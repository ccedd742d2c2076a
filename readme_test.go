package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestReadmeTour runs the README's tour as it stands, but for the address and the folder, against the
// service with the sample files.
func TestReadmeTour(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	ts := startServer(t, nil, "CAIRN_DATASETS_DIR="+samples)
	var out lockedBuffer
	if err := run(context.Background(), []string{"dataset", "create", "sample", "elevation"}, ts.env, nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	script := "set -eu\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		script += block[1]
	}
	if !strings.Contains(script, "http://127.0.0.1:8080") {
		t.Fatal("the tour names no address")
	}
	script = strings.Replace(script, "http://127.0.0.1:8080", ts.url, 1)
	dir := t.TempDir()
	if err := os.Symlink(lookup(ts.env, "CAIRN_STATE_DIR"), filepath.Join(dir, "var")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tour := exec.CommandContext(ctx, "sh", "-c", script)
	tour.WaitDelay = time.Second
	tour.Dir = dir
	output, err := tour.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, want := range []string{
		`{"status":"ok"}`, `"username":"ada"`, `{"unread":1,`, `"state":"succeeded"`, `"name":"sample"`, `"path":"elevation/n46e007.tif"`,
		`"bbox":[7,46,8,47]`, `findings: dataset sample`, `"code":"invalid_token"`,
	} {
		if want = strings.Replace(want, "elevation/", "", 1); !strings.Contains(string(output), want) {
			t.Errorf("the tour does not show %s:\n%s", want, output)
		}
	}
	if n := strings.Count(string(output), "problem"); n > 0 && !strings.Contains(string(output), "invalid_token") {
		t.Errorf("something in the tour failed:\n%s", output)
	}
}

// TestSettingsInReadme: the README's table has every setting, and no other.
func TestSettingsInReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(CAIRN_[A-Z0-9_]+)` \\|").FindAllStringSubmatch(string(readme), -1) {
		got = append(got, row[1])
	}
	for _, s := range settings(new(config), nil) {
		want = append(want, s.name)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the README has %v, the program %v", got, want)
	}
}
