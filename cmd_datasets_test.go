package main

import (
	"errors"
	"os"
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
	says(1, outside+" lies outside the dataset roots ("+ts.datasets+"): add its folder to CAIRN_DATASETS_DIR, and restart", "dataset", "add", outside)
	if said, _ := status(append(ts.env, "CREDENTIALS_DIRECTORY="+settings), "", "dataset", "add", outside); !strings.Contains(said, "CAIRN_DATASETS_DIR in "+settings+"/cairn.env") {
		t.Error(said)
	}
	says(1, "there is no such directory", "dataset", "add", ts.datasets+"/3")
	says(0, "created dataset 1, 2, of "+ts.datasets+"/2\nanalysis 1 of 2: 1 files, 1 added, 0 changed, 0 removed\n1 of 1 files placed", "dataset", "add", "2")
	says(1, "Another dataset has that", "dataset", "add", ts.datasets+"/2")
	says(0, "created dataset 3, all, of "+ts.datasets+"\n", "dataset", "add", ts.datasets, "--name", "all") // a number is used up by a refusal
	says(0, "1\t2\t2\tsucceeded\n3\tall\t.\tsucceeded\n", "dataset", "list")
	says(0, "no findings: dataset 2", "report", "1") // its id
	says(0, "no findings: dataset 2", "report", "2") // its name
	says(1, `there is no dataset "4": see cairn dataset list`, "report", "4")
	says(0, "analysis 3 of all queued", "dataset", "analyze", "3")
	c.finished("/api/v1/datasets/3/analyses/3")
	if err := os.RemoveAll(ts.datasets + "/2"); err != nil {
		t.Fatal(err)
	}
	says(1, "analysis 4 of 2 failed: The dataset's directory cannot be read", "dataset", "analyze", "2", "--wait")
	says(0, "removed dataset 1, 2", "dataset", "remove", "2")
	c.refused(404, "not_found", "GET", "/api/v1/datasets/1", nil)
	if n := len(c.must(200, "GET", "/api/v1/audit?actor=operator", nil).items()); n != 7 {
		t.Errorf("%d audit rows", n) // three datasets made and removed, four analyses
	}

	ts.stop()
	says(1, "analysis 5 of all is queued, but no instance of the service runs: start it", "dataset", "analyze", "all", "--wait")
	says(1, "analysis_running: An analysis of this dataset is running.", "dataset", "analyze", "all")
}
