package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestArchive: an archive has the files that match, under their own names and with their content,
// and urls.txt names them.
func TestArchive(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.signIn("reader", datasetRead)

	dir := filepath.Join(ts.datasets, "tiles")
	contents := map[string]string{
		"a.tif":            string(geographicTIFF(7, 47)),
		"sub/b.tif":        string(geographicTIFF(8, 47)),
		"sub/empty.txt":    "",
		"b\xff.tif":        string(geographicTIFF(9, 47)),
		`x\..\..\y.tif`:    string(geographicTIFF(10, 47)),
		"Höhen & mehr.tif": string(geographicTIFF(11, 47)),
	}
	for name, content := range contents {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	dataset := root.addDataset("tiles")
	root.analyze(dataset, nil)

	// read returns the content of the files in an archive.
	read := func(query string) map[string]string {
		t.Helper()
		a := root.must(200, "GET", dataset+"/archive.zip"+query, nil)
		check(t, "type", a.header.Get("Content-Type"), "application/zip")
		check(t, "name", a.header.Get("Content-Disposition"), "attachment; filename=tiles.zip")
		archive, err := zip.NewReader(bytes.NewReader(a.body), int64(len(a.body)))
		if err != nil {
			t.Fatal(err)
		}

		found := map[string]string{}
		for _, f := range archive.File {
			in, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(in) // it compares the CRC
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
			found[f.Name] = string(content)
		}
		return found
	}

	all := read("")
	check(t, "files", len(all), len(contents))
	for name, content := range contents {
		got, isThere := all[strings.ReplaceAll(name, `\`, "%5C")]
		check(t, name+" is there", isThere, true)
		check(t, "content of "+name, got, content)
	}
	check(t, "files below sub", len(read("?path=sub/")), 2)
	check(t, "files of a search without a match", len(read("?q=nothing")), 0)

	urls := strings.Fields(string(root.must(200, "GET", dataset+"/urls.txt?bbox=7.1,46,8.9,47", nil).body))
	slices.Sort(urls)
	check(t, "URLs", strings.Join(urls, " "), ts.url+dataset+"/data/a.tif "+ts.url+dataset+"/data/sub/b.tif")
	root.must(200, "GET", strings.TrimPrefix(urls[1], ts.url), nil)

	reader, _ := ts.client().login("reader", testPassword)
	reader.refused(403, "permission_missing", "GET", dataset+"/archive.zip", nil)
	reader.refused(403, "permission_missing", "GET", dataset+"/urls.txt", nil)

	// A file that is gone before the archive begins is an error, and no empty archive.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	a := root.refused(404, "not_found", "GET", dataset+"/archive.zip", nil)
	check(t, "name of an answer that is no archive", a.header.Get("Content-Disposition"), "")
}

// TestExportsEndWithTheDataset: an export breaks off if the dataset is hidden from the caller while
// it is made.
func TestExportsEndWithTheDataset(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	root.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	reader := ts.signIn("reader", datasetRead, datasetDownload)

	// More than the sockets hold, so the answer waits for its client.
	files := make([]ElevationDatasetFileMeta, 40_000)
	for i := range files {
		files[i].Path = fmt.Sprintf("%0400d.tif", i)
		files[i].Status = fileStatusUnsupported
		files[i].Warnings = []string{}
	}
	dataset := fmt.Sprint("/api/v1/datasets/", ts.addFiles("many", files))
	r, err := http.NewRequestWithContext(t.Context(), "GET", ts.url+dataset+"/urls.txt", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+reader.token)
	r.Header.Set("Accept-Encoding", "identity")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if _, err := io.CopyN(io.Discard, a.Body, 1<<10); err != nil {
		t.Fatal(err)
	}

	root.must(200, "PATCH", dataset, map[string]string{"requires": "lidar.see"})
	if _, err := io.Copy(io.Discard, a.Body); err == nil {
		t.Error("the export ended as if it were whole")
	}
}

// TestArchiveIsCut: an archive breaks off if a file changes while it is sent.
func TestArchiveIsCut(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	path := filepath.Join(ts.datasets, "tiles", "large.txt")
	const size = 64 << 20 // more than what the sockets hold
	err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644), os.Truncate(path, size))
	if err != nil {
		t.Fatal(err)
	}
	dataset := root.addDataset("tiles")
	root.analyze(dataset, nil)

	// download reads an archive, and calls meanwhile after its first bytes.
	download := func(meanwhile func()) (int64, error) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", ts.url+dataset+"/archive.zip", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+root.token)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()

		check(t, "status", a.StatusCode, 200)
		if _, err := io.CopyN(io.Discard, a.Body, 1<<20); err != nil {
			t.Fatal(err)
		}
		meanwhile()
		return io.Copy(io.Discard, a.Body)
	}

	if n, err := download(func() {}); err != nil || n < size-1<<20 {
		t.Errorf("a file that stays: %d bytes, %v", n, err)
	}
	grow := func() {
		if err := os.Truncate(path, size+1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := download(grow); err == nil {
		t.Error("the archive of a file that has grown ended as if it were whole")
	}
}
