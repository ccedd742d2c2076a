package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDatasetCommands: the command line registers datasets below the roots, has the service analyse them, and knows them by
// name and by id, as the API does.
func TestDatasetCommands(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	settings := t.TempDir()
	if err := errors.Join(os.MkdirAll(ts.datasets+"/2/sub", 0o755), os.WriteFile(ts.datasets+"/2/a.tif", geographicTIFF(7, 47), 0o644),
		os.WriteFile(settings+"/cairn.env", nil, 0o644), os.WriteFile(settings+"/keys", []byte(newKeyLine()), 0o600)); err != nil {
		t.Fatal(err)
	}
	says := func(want int, text string, args ...string) {
		t.Helper()
		if said, got := status(ts.env, "", args...); got != want || !strings.Contains(said, text) {
			t.Errorf("%v: %d %s, want %d %s", args, got, said, want, text)
		}
	}
	outside := t.TempDir() + "/2"
	mend := outside + " lies outside the dataset roots: set CAIRN_DATASETS_DIR=" + ts.datasets + ":" + outside
	says(1, mend+" for the service and in this terminal, and restart", "dataset", "add", outside)
	says(1, ":/your/folder for the service", "dataset", "create", "above", "../2")
	if said, _ := status(append(ts.env, "CREDENTIALS_DIRECTORY="+settings), "", "dataset", "add", outside); !strings.Contains(said, mend+" in "+settings+"/cairn.env") {
		t.Error(said)
	}
	says(1, "there is no such directory", "dataset", "add", ts.datasets+"/3")
	says(0, "created dataset 1, 2, of "+ts.datasets+"/2\nanalysis 1 of 2: 1 file, 1 added, 0 changed, 0 removed\n1 of 1 file located", "dataset", "add", "2")
	says(1, ts.datasets+"/2 is registered already, as dataset 1, 2", "dataset", "add", ts.datasets+"/2")
	says(1, "Another dataset has that name", "dataset", "add", ts.datasets+"/2/sub", "--name", "2")
	says(0, "created dataset 4, all, of "+ts.datasets+"\n", "dataset", "add", ts.datasets, "--name", "all") // refusals use up numbers
	if a := c.must(200, "GET", "/api/v1/datasets/4", nil); a.text("path") != ts.datasets {
		t.Errorf("the root itself: %s", a.body)
	}
	says(0, "1\t2\t2\tsucceeded\n4\tall\t"+ts.datasets+"\tsucceeded\n", "dataset", "list")
	if said, code := status(append(ts.env, "CAIRN_DATASETS_DIR="+t.TempDir()), "", "vrt", "4"); code != 1 || !strings.Contains(said, ts.datasets+" lies outside the dataset roots: set") {
		t.Errorf("a dataset of another root: %d %s", code, said)
	}
	says(0, "no findings: dataset 2", "report", "1") // its id
	says(0, "no findings: dataset 2", "report", "2") // its name
	says(1, `there is no dataset "3": see cairn dataset list`, "report", "3")
	says(0, "analysis 3 of all queued", "dataset", "analyze", "4")
	c.finished("/api/v1/datasets/4/analyses/3")
	if err := os.Remove(ts.datasets + "/2/a.tif"); err != nil {
		t.Fatal(err)
	}
	says(1, "If that is right, analyse it with the option force.", "dataset", "analyze", "2", "--wait")
	if err := os.RemoveAll(ts.datasets + "/2"); err != nil {
		t.Fatal(err)
	}
	says(1, "analysis 5 of 2 failed: The dataset's directory cannot be read", "dataset", "analyze", "2", "--wait")
	says(1, "the last analysis failed: The dataset's directory cannot be read: no such file or directory. Before it: 1 of 1 file located\n", "report", "2")
	says(0, "removed dataset 1, 2", "dataset", "remove", "2")
	c.refused(404, "not_found", "GET", "/api/v1/datasets/1", nil)
	if n := len(c.must(200, "GET", "/api/v1/audit?actor=operator", nil).items()); n != 8 {
		t.Errorf("%d audit rows", n) // three datasets made and removed, five analyses
	}

	ts.stop()
	says(1, "analysis 6 of all is queued, but no instance of the service runs: start it", "dataset", "analyze", "all", "--wait")
	says(1, "cairn: analysis 6 of all is running already\n", "dataset", "analyze", "all")
	says(1, "analysis 6 of all is queued, but no instance", "dataset", "analyze", "all", "--wait") // it joins
	says(1, "cairn: analysis 6 of all is running already, without --force\n", "dataset", "analyze", "all", "--wait", "--force")
	says(1, "cairn: analysis 6 of all is running already, without --checksums\n", "dataset", "analyze", "all", "--wait", "--checksums")
	if err := os.Mkdir(ts.datasets+"/other", 0o755); err != nil {
		t.Fatal(err)
	}
	says(0, "created dataset 5, 4,", "dataset", "create", "4", "other")
	says(1, "4 is the name of one dataset and the id of another", "report", "4")
	says(0, "removed dataset 5, 4", "dataset", "remove", "5")
}

// TestDatasetRootChanges: after a change of the first dataset root, a relative path would name another folder. So the
// service does not start, unless the former root is gone or no path is relative.
func TestDatasetRootChanges(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.stop()
	other := t.TempDir()
	moved := append(ts.env, "CAIRN_DATASETS_DIR="+other)
	ts = startServer(t, nil, moved...) // there is no dataset yet
	for _, root := range []string{ts.datasets, lookup(ts.env[:3], "CAIRN_DATASETS_DIR")} {
		if err := os.MkdirAll(filepath.Join(root, "tiles"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ts.signIn("ada", "all").addDataset("tiles")
	unset := append(moved, "CAIRN_DATASETS_DIR=") // as in a second terminal
	if said, code := status(unset, "", "dataset", "create", "more", other); code != 0 || !strings.Contains(said, ", more, of "+other+"\n") {
		t.Errorf("another root than the service's: %d %s", code, said)
	}
	ts.stop()
	said, code := status(append(moved, "CAIRN_DATASETS_DIR="+lookup(ts.env[:3], "CAIRN_DATASETS_DIR")), "", "serve")
	if code != 1 || !strings.Contains(said, "the paths of 1 dataset are relative to "+other+", the first of CAIRN_DATASETS_DIR at the last start: set it to "+other+":") {
		t.Errorf("%d %s", code, said)
	}
	startServer(t, nil, append(moved, "CAIRN_DATASETS_DIR="+other+":"+t.TempDir())...).stop()
	if err := os.Rename(other, other+"-moved"); err != nil {
		t.Fatal(err)
	}
	startServer(t, nil, append(moved, "CAIRN_DATASETS_DIR="+other+"-moved")...)
}
