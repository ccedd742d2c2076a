package main

import (
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// withChecksums is the body of a request for an analysis with checksums.
var withChecksums = map[string]bool{"checksums": true}

// listedFolder is a folder of files with lists of checksums. Files are old, so that their rows count as settled.
type listedFolder struct {
	t   *testing.T
	dir string
}

// write writes a file that was modified long ago.
func (d listedFolder) write(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	old := time.Now().Add(-time.Hour)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644), os.Chtimes(path, old, old))
	if err != nil {
		d.t.Fatal(err)
	}
}

// md5Line returns the line of a list for a content.
func md5Line(name, content string) string {
	return fmt.Sprintf("%x  %s\n", md5.Sum([]byte(content)), name)
}

// sha256Line returns the line of a list for a content.
func sha256Line(name, content string) string {
	return fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(content)), name)
}

// checksumFindings returns the findings of kind checksum, by path.
func (c client) checksumFindings(dataset string) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	for _, f := range c.must(200, "GET", dataset+"/findings/checksum?limit=500", nil).items() {
		found[f["path"].(string)] = f["detail"].(string)
	}
	return found
}

// checkMaps notes each key with another value.
func checkMaps(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		check(t, what+" "+key, got[key], want[key])
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("%s %s: got %q, want none", what, key, got[key])
		}
	}
}

// contentReads counts the contents that a service reads.
type contentReads struct {
	lock  sync.Mutex
	paths []string
}

// note is for options.beforeRead.
func (r *contentReads) note(path string) {
	if name, isContent := strings.CutPrefix(path, "content of "); isContent {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.paths = append(r.paths, name)
	}
}

// take returns the paths since the last call, sorted.
func (r *contentReads) take() string {
	r.lock.Lock()
	defer r.lock.Unlock()
	slices.Sort(r.paths)
	defer func() { r.paths = nil }()
	return strings.Join(r.paths, " ")
}

// TestChecksums: planted faults are found and nothing else. Files that have not changed are not read again. Changed lists
// are.
func TestChecksums(t *testing.T) {
	t.Parallel()
	var read contentReads
	ts := startServer(t, func(o *options) { o.beforeRead = read.note; o.batchSize = 3 })
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	good, other := string(geographicTIFF(7, 46)), string(geographicTIFF(8, 46))
	for _, name := range []string{"a/good.tif", "a/bare.tif", "a/both.tif", "a/twice.tif", "a/wrong.tif", "b/above.tif", "unlisted.tif"} {
		d.write(name, good)
	}
	d.write("a/MD5SUMS", md5Line("good.tif", good)+md5Line("wrong.tif", other)+md5Line("both.tif", good)+md5Line("twice.tif", good)+
		md5Line("gone.tif", good)+"what is this?\n"+md5Line("../b/above.tif", good)+md5Line("/etc/passwd", good))
	d.write("a/both.tif.sha256", sha256Line("both.tif", good))
	d.write("a/bare.tif.md5", strings.TrimSpace(strings.Fields(md5Line("", good))[0]))
	d.write("a/twice.txt.md5", md5Line("twice.tif", other))
	d.write("SHA256SUMS", sha256Line("b/above.tif", good)+sha256Line("b/link/x.tif", good))
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "x.tif"), []byte(good), 0o644),
		os.Symlink(outside, filepath.Join(d.dir, "b/link")), os.Symlink("/etc/hostname", filepath.Join(d.dir, "out.md5"))); err != nil {
		t.Fatal(err)
	}

	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	check(t, "read without the option", read.take(), "")
	report := c.must(200, "GET", dataset+"/report", nil)
	if report.json["checksums"] != nil || !strings.Contains(string(report.body), "Checksums were not compared.") {
		t.Errorf("the report without checksums: %s", report.body)
	}

	a := c.analyze(dataset, withChecksums)
	check(t, "state", a.text("state"), stateSucceeded)
	check(t, "checksums", a.json["checksums"], any(true))
	progress := a.json["progress"].(map[string]any)
	check(t, "bytes expected", progress["bytes_expected"], any(float64(6*len(good))))
	check(t, "bytes read", progress["bytes_read"], any(float64(6*len(good))))
	sum := func(content string) string { return strings.Fields(md5Line("", content))[0] }
	twice := []string{sum(good) + " (a/MD5SUMS, line 4)", sum(other) + " (a/twice.txt.md5, line 1)"}
	slices.Sort(twice)
	want := map[string]string{
		"a/wrong.tif":  fmt.Sprintf("has MD5 %s, but is listed with %s (a/MD5SUMS, line 2)", sum(good), sum(other)),
		"a/gone.tif":   fmt.Sprintf("is not there, but listed with MD5 %s (a/MD5SUMS, line 5)", sum(good)),
		"b/link/x.tif": fmt.Sprintf("is not there, but listed with SHA256 %s (SHA256SUMS, line 2)", strings.Fields(sha256Line("", good))[0]),
		"a/MD5SUMS":    "line 6: not understood (and 2 lines more)",
		"a/twice.tif":  fmt.Sprintf("is listed with different digests: MD5 %s and %s; it has %s", twice[0], twice[1], sum(good)),
	}
	checkMaps(t, "finding", c.checksumFindings(dataset), want)
	check(t, "read", read.take(), "SHA256SUMS a/MD5SUMS a/bare.tif a/bare.tif.md5 a/both.tif a/both.tif.sha256 a/good.tif a/twice.tif "+
		"a/twice.txt.md5 a/wrong.tif b/above.tif")

	// The digests are where they are known.
	rows := c.files(dataset)
	if m := rows["a/both.tif"]; m.MD5 == nil || m.SHA256 == nil || *m.MD5 != sum(good) {
		t.Errorf("digests of both.tif: %v %v", m.MD5, m.SHA256)
	}
	if m := rows["unlisted.tif"]; m.MD5 != nil || m.SHA256 != nil {
		t.Error("an unlisted file has digests")
	}
	item := c.must(200, "GET", fmt.Sprintf("%s/collections/%s/items/%d", stacPath, filepath.Base(dataset), rows["a/both.tif"].ID), nil)
	if !strings.Contains(string(item.body), `"file:checksum":"1220`+*rows["a/both.tif"].SHA256+`"`) {
		t.Errorf("STAC: %s", item.body)
	}
	item = c.must(200, "GET", fmt.Sprintf("%s/collections/%s/items/%d", stacPath, filepath.Base(dataset), rows["a/good.tif"].ID), nil)
	if !strings.Contains(string(item.body), `"file:checksum":"d50110`+sum(good)+`"`) {
		t.Errorf("STAC: %s", item.body)
	}
	if table := c.must(200, "GET", dataset+"/files.csv", nil); !strings.Contains(string(table.body), ","+*rows["a/both.tif"].MD5+","+*rows["a/both.tif"].SHA256+"\n") {
		t.Errorf("CSV: %s", table.body)
	}
	page := c.must(200, "GET", fmt.Sprintf("%s/files/%d", strings.TrimPrefix(dataset, "/api/v1"), rows["a/both.tif"].ID), nil)
	if !strings.Contains(string(page.body), "<dt>MD5</dt><dd>"+sum(good)+"</dd>") {
		t.Errorf("the page of a file: %s", page.body)
	}
	report = c.must(200, "GET", dataset+"/report", nil)
	check(t, "counts", fmt.Sprint(report.json["checksums"]), "map[compared:6 listed:6 unlisted:3]")
	if page := c.must(200, "GET", strings.TrimPrefix(dataset, "/api/v1")+"/report", nil); !strings.Contains(string(page.body), "6 of 6 listed files compared") {
		t.Errorf("the page of the report: %s", page.body)
	}

	// Nothing has changed: nothing is read again.
	a = c.analyze(dataset, withChecksums)
	check(t, "second", counts(a), [6]int{14, 0, 0, 14, 0, 2})
	check(t, "read again", read.take(), "")
	checkMaps(t, "finding again", c.checksumFindings(dataset), want)

	// A corrected list costs only itself, and a changed file itself. An analysis without the option keeps what is known.
	d.write("a/twice.txt.md5", md5Line("twice.tif", good)+"# corrected\n")
	d.write("a/wrong.tif", other)
	delete(want, "a/wrong.tif")
	delete(want, "a/twice.tif")
	c.analyze(dataset, nil)
	checkMaps(t, "finding without the option", c.checksumFindings(dataset), want)
	c.analyze(dataset, withChecksums)
	check(t, "read after changes", read.take(), "a/twice.txt.md5 a/wrong.tif")
	checkMaps(t, "finding after changes", c.checksumFindings(dataset), want)

	// With force alone the digests stay; with both options each is computed again.
	c.analyze(dataset, map[string]bool{"force": true})
	check(t, "read with force", read.take(), "")
	if m := c.files(dataset)["a/good.tif"]; m.MD5 == nil {
		t.Error("force forgets a digest")
	}
	a = c.analyze(dataset, map[string]bool{"force": true, "checksums": true})
	check(t, "with both", counts(a), [6]int{14, 0, 0, 14, 0, 2})
	if got := read.take(); !strings.Contains(got, "a/good.tif") {
		t.Errorf("read with both: %s", got)
	}

	// A list that has gone says nothing any more.
	if err := errors.Join(os.Remove(filepath.Join(d.dir, "a/MD5SUMS")), os.Remove(filepath.Join(d.dir, "out.md5"))); err != nil {
		t.Fatal(err)
	}
	c.analyze(dataset, nil)
	delete(want, "a/gone.tif")
	delete(want, "a/MD5SUMS")
	checkMaps(t, "finding without the list", c.checksumFindings(dataset), want)
}
