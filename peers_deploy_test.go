//go:build peers

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPeerSandbox: systemd rates the unit's exposure at 1.2 of 10 or less.
func TestPeerSandbox(t *testing.T) {
	output, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=12", "--no-pager", "deploy/cairn.service").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	for line := range strings.Lines(string(output)) {
		if strings.Contains(line, "Overall") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// TestPeerPrometheus: Prometheus's own linter finds nothing wrong with the metrics.
func TestPeerPrometheus(t *testing.T) {
	ts := startServer(t, nil)
	c := ts.signIn("prometheus", metricsRead, datasetManage, datasetAnalyze, datasetRead)
	if err := os.Mkdir(ts.datasets+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	c.analyze(c.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "d", "path": "d"}).header.Get("Location"), nil)
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(c.must(200, "GET", "/metrics", nil).body)
	if output, err := check.CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("%v\n%s", err, output)
	}
}

// TestPeerRedocly: a linter of OpenAPI documents finds no error in ours.
func TestPeerRedocly(t *testing.T) {
	lint := exec.Command("npx", "--yes", "@redocly/cli@1.34.5", "lint", "openapi.yaml")
	lint.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "npm_config_cache="+t.TempDir())
	if output, err := lint.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// TestPeerPackage: the Debian package has no error that lintian knows.
func TestPeerPackage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cairn_"+version+"_amd64.deb")
	for _, command := range [][]string{{"make", "build"}, {"deploy/build-deb", file}, {"lintian", "--fail-on", "error,warning", "--allow-root", file}} {
		if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, output)
		}
	}
}
