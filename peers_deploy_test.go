//go:build peers

package main

import (
	"os/exec"
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
