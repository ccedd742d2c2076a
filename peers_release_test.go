//go:build peers

package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPeerRelease: "make release" gives the same bytes in two folders, with other settings of the user and nothing left
// over from the first build. What it gives is what CONTRIBUTING.md says, for both architectures, and runs.
func TestPeerRelease(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another", "folder")
	release(t, first, "022")
	release(t, second, "077", "GOCACHE="+t.TempDir(), "TZ=Asia/Kathmandu", "LC_ALL=C.UTF-8", "GOAMD64=v2")
	names, err := os.ReadDir(filepath.Join(first, "dist"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range names {
		got = append(got, name.Name())
		a, err := os.ReadFile(filepath.Join(first, "dist", name.Name()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(second, "dist", name.Name()))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %d and %d bytes, not the same, %v", name.Name(), len(a), len(b), err)
		}
	}
	want := []string{"SHA256SUMS"}
	for _, architecture := range []string{"amd64", "arm64"} {
		program := "cairn-" + version + "-linux-" + architecture
		want = append(want, program, program+".spdx.json", program+".tar.gz", "cairn_"+version+"_"+architecture+".deb")
	}
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Fatalf("dist has %v, not %v", got, want)
	}
	dist := filepath.Join(first, "dist")
	runIn(t, dist, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		program := "cairn-" + version + "-linux-" + architecture
		checkProgram(t, filepath.Join(dist, program), machine)
		deb := "cairn_" + version + "_" + architecture + ".deb"
		if got := runIn(t, dist, "dpkg-deb", "--field", deb, "Architecture", "Version"); got != "Architecture: "+architecture+"\nVersion: "+version+"\n" {
			t.Errorf("the package is of %s", got)
		}
		runIn(t, dist, "lintian", "--fail-on", "error,warning", "--allow-root", deb)
		list := runIn(t, dist, "tar", "-tf", program+".tar.gz")
		for _, file := range []string{"cairn", "cairn.1", "cairn.service", "cairn.socket", "cairn-nightly@.service", "cairn-nightly@.timer", "LICENSE", "NOTICE"} {
			if !strings.Contains(list, program+"/"+file+"\n") {
				t.Errorf("the archive lacks %s:\n%s", file, list)
			}
		}
	}
	arm := filepath.Join(dist, "cairn-"+version+"-linux-arm64")
	for line, want := range map[string]string{"version": "cairn " + version, "help": "usage: cairn", "crs 25832 9 48": "500000"} {
		if got := runIn(t, dist, "qemu-aarch64-static", append([]string{arm}, strings.Fields(line)...)...); !strings.Contains(got, want) {
			t.Errorf("on arm64, %s prints %s", line, got)
		}
	}
}

// release clones the commit that is checked out into dir and makes a release of it, with this umask and environment.
func release(t *testing.T, dir, umask string, env ...string) {
	t.Helper()
	runIn(t, ".", "git", "clone", "--quiet", ".", dir)
	build := exec.Command("sh", "-c", "umask "+umask+" && make release")
	build.Dir, build.Env = dir, append(os.Environ(), env...)
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// runIn runs a command in dir and returns its output.
func runIn(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = dir
	output, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, output)
	}
	return string(output)
}

// checkProgram: a program of a release needs no library, knows its commit, and its SBOM lists the modules within.
func checkProgram(t *testing.T, file string, machine elf.Machine) {
	t.Helper()
	program, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	libraries, err := program.ImportedLibraries()
	if program.Machine != machine || err != nil || len(libraries) > 0 || program.Section(".interp") != nil {
		t.Errorf("%s: %v, needs %v, %v", file, program.Machine, libraries, err)
	}
	built, err := buildinfo.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/stdlib@" + strings.TrimPrefix(built.GoVersion, "go")}
	for _, module := range built.Deps {
		want = append(want, "pkg:golang/"+module.Path+"@"+module.Version)
	}
	settings := map[string]string{}
	for _, s := range built.Settings {
		settings[s.Key] = s.Value
	}
	commit := strings.TrimSpace(runIn(t, ".", "git", "rev-parse", "HEAD"))
	if settings["vcs.revision"] != commit || settings["vcs.time"] == "" || settings["vcs.modified"] != "false" {
		t.Errorf("%s is of %v, not of %s", file, settings, commit)
	}
	content, err := os.ReadFile(file + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var sbom struct {
		SPDXVersion string
		Packages    []struct {
			SourceInfo   string
			ExternalRefs []struct{ ReferenceLocator string }
		}
	}
	if err := json.Unmarshal(content, &sbom); err != nil || sbom.SPDXVersion != "SPDX-2.3" {
		t.Fatalf("%v\n%s", err, content)
	}
	var got []string
	for _, p := range sbom.Packages {
		for _, ref := range p.ExternalRefs {
			got = append(got, ref.ReferenceLocator)
		}
		if len(p.ExternalRefs) == 0 && p.SourceInfo != "git commit "+commit {
			t.Errorf("the SBOM names %q", p.SourceInfo)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the SBOM has %v, the program %v", got, want)
	}
}
