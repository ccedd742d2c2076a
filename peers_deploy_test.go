//go:build peers

package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// TestPeerPackage: lintian finds nothing wrong with the Debian package, nor systemd with its units, and it rates the
// exposure of each service at 1.2 of 10 or less.
func TestPeerPackage(t *testing.T) {
	dir := t.TempDir()
	runIn(t, ".", "make", "build")
	runIn(t, ".", "deploy/build-deb", "amd64", "cairn", dir)
	deb := "cairn_" + version + "_amd64.deb"
	runIn(t, dir, "lintian", "--fail-on", "error,warning", "--allow-root", deb)

	runIn(t, dir, "dpkg-deb", "--extract", deb, "root")
	runIn(t, dir, "sh", "-c", "mkdir root/bin && cp /bin/sh root/bin && cp -n /lib/systemd/system/*.target root/lib/systemd/system")
	units := []string{"cairn.service", "cairn.socket", "cairn-nightly@tiles.service", "cairn-nightly@tiles.timer",
		"cairn-audit.service", "cairn-audit.timer"}
	runIn(t, dir, "systemd-analyze", append([]string{"verify", "--root=root", "--man=no"}, units...)...)
	for _, unit := range []string{units[0], units[2], units[4]} {
		runIn(t, dir, "systemd-analyze", "security", "--root=root", "--offline=true", "--threshold=12", "--no-pager", unit)
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

// TestPeerRedocly: a linter of OpenAPI documents finds no error in ours, nor in the one for clients of OGC API Features.
func TestPeerRedocly(t *testing.T) {
	lint := exec.Command("npx", "--yes", "@redocly/cli@1.34.5", "lint", "openapi.yaml", "dataset_stac_api.json")
	lint.Env = append(os.Environ(), "REDOCLY_TELEMETRY=off", "npm_config_cache="+t.TempDir())
	if output, err := lint.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
