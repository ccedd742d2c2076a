package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestReadmeFolder runs the README's lines for one's own folder as they stand, but for the directories.
func TestReadmeFolder(t *testing.T) {
	t.Parallel()
	c := startServer(t, nil).openShell()
	alps := filepath.Join(c.datasets, "alps")
	if err := errors.Join(os.Mkdir(alps, 0o755), os.WriteFile(filepath.Join(alps, "n47e007.tif"), geographicTIFF(7, 47), 0o644)); err != nil {
		t.Fatal(err)
	}
	c.shows(c.run("sh", "set -eu\n"+examples(t, "README.md", "console")[0], ""),
		"created dataset 1, alps, of "+alps, "1 of 1 file located", "no findings: dataset alps, 1 file,")
}
