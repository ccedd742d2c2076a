package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// addDataset registers a directory of the dataset root and returns the dataset's path in the API.
func (c client) addDataset(name string) string {
	c.t.Helper()
	return c.must(201, "POST", "/api/v1/datasets", map[string]string{"name": name, "path": name}).header.Get("Location")
}

// files returns all rows of a dataset, from all pages.
func (c client) files(dataset string) map[string]ElevationDatasetFileMeta {
	c.t.Helper()
	rows := map[string]ElevationDatasetFileMeta{}
	for cursor := ""; ; {
		var page struct {
			Items      []ElevationDatasetFileMeta `json:"items"`
			NextCursor *string                    `json:"next_cursor"`
		}

		a := c.must(200, "GET", dataset+"/files?limit=500"+cursor, nil)
		if err := json.Unmarshal(a.body, &page); err != nil {
			c.t.Fatal(err)
		}

		for _, m := range page.Items {
			if _, twice := rows[m.Path]; twice {
				c.t.Errorf("%s is there twice", m.Path)
			}
			rows[m.Path] = m
		}

		if page.NextCursor == nil {
			return rows
		}

		cursor = "&cursor=" + *page.NextCursor
	}
}

// sameRows compares rows of the API with those that "cairn bbox" prints for the directory. The id
// and the time of reading may differ.
func sameRows(t *testing.T, got map[string]ElevationDatasetFileMeta, dir string) {
	t.Helper()
	var out, errs bytes.Buffer
	if err := run(context.Background(), []string{"bbox", "--root", dir, dir}, nil, nil, &out, &errs); err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}

	want := rowsByPath(t, out.Bytes())
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Errorf("%d paths, the command prints %d", len(g), len(w))
	}

	for path, m := range got {
		w := want[path]
		m.ID = 0
		m.AnalyzedAt = time.Time{}
		w.AnalyzedAt = time.Time{}
		w.withdrawPlace() // the command shows where a damaged raster would lie; an analysis does not store it
		g, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}

		if p, err := json.Marshal(w); err != nil || !bytes.Equal(g, p) {
			t.Errorf("stored  %s\nprinted %s", g, p)
		}
	}
}

// TestAnalysis: an analysis stores a row for every kind of file. A later one stores exactly the
// changes.
func TestAnalysis(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "odd")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	want := oddFiles(t, dir)
	dataset := c.addDataset("odd")
	a := c.analyze(dataset, nil)
	failed := 0
	for _, w := range want {
		if w[0] == "corrupt" || w[0] == "unreadable" {
			failed++
		}
	}

	n := len(want)
	if counts(a) != [6]int{n, n, 0, 0, 0, failed} || a.text("state") != "succeeded" {
		t.Errorf("first: %s", a.body)
	}

	rows := c.files(dataset)
	sameRows(t, rows, dir)
	one := c.must(200, "GET", fmt.Sprintf("%s/files/%d", dataset, rows["good.tif"].ID), nil)
	if box, err := json.Marshal(one.json["bbox"]); err != nil || string(box) != "[10,49.25,11,50]" {
		t.Errorf("bbox %s, %v", box, err)
	}

	details := c.must(200, "GET", dataset, nil)
	if box, err := json.Marshal(details.json["bbox"]); err != nil || string(box) != "[10,49.25,11,50]" || details.json["files"].(map[string]any)["total"] != float64(n) {
		t.Errorf("details: %s", details.body)
	}

	if items := c.must(200, "GET", dataset+"/files?status=corrupt", nil).items(); len(items) != 1 {
		t.Errorf("%d corrupt", len(items))
	}

	if a := c.analyze(dataset, nil); counts(a) != [6]int{n, 0, 0, n, 0, failed} {
		t.Errorf("unchanged: %s", a.body)
	}

	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "added.tif"), sampleTIFF(), 0o644),
		os.WriteFile(filepath.Join(dir, "text.txt"), []byte("another text\n"), 0o644),
		os.Remove(filepath.Join(dir, "empty.tif")),
		os.Remove(filepath.Join(dir, "pipe.tif")),
	)
	if err != nil {
		t.Fatal(err)
	}

	// piped.tif is a dangling link now.
	if a := c.analyze(dataset, nil); counts(a) != [6]int{n - 1, 1, 2, n - 4, 2, failed + 1} {
		t.Errorf("changed: %s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
	if id := c.files(dataset)["good.tif"].ID; id != rows["good.tif"].ID {
		t.Error("the id of an unchanged file changed")
	}
}

// TestDatasets: a dataset is registered, edited and forgotten, and lies in a dataset root.
func TestDatasets(t *testing.T) {
	t.Parallel()
	second := t.TempDir()
	outside := t.TempDir()
	ts := startServer(t, nil)
	ts.stop()
	ts = startServer(t, nil, append(ts.env, "CAIRN_DATASETS_DIR="+ts.datasets+":"+second)...)
	c := ts.signIn("root", "all")
	err := errors.Join(
		os.MkdirAll(filepath.Join(ts.datasets, "a/b"), 0o755),
		os.Mkdir(filepath.Join(second, "c"), 0o755),
		os.WriteFile(filepath.Join(ts.datasets, "file"), nil, 0o644),
		os.Symlink(outside, filepath.Join(ts.datasets, "out")),
		os.Symlink("a/b", filepath.Join(ts.datasets, "in")),
		syscall.Mkfifo(filepath.Join(ts.datasets, "pipe"), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}

	create := func(name, path string) answer {
		return c.do("POST", "/api/v1/datasets", map[string]string{"name": name, "path": path})
	}

	for _, test := range []struct {
		path   string
		status int
		code   string // of the field
	}{
		{"..", 422, "outside_root"},
		{"../" + filepath.Base(ts.datasets), 422, "outside_root"},
		{"a/../../etc", 422, "outside_root"},
		{"/etc", 422, "outside_root"},
		{"/", 422, "outside_root"},
		{ts.datasets + "x", 422, "outside_root"},
		{outside, 422, "outside_root"},
		{"out", 422, "outside_root"},
		{"missing", 422, "not_found"},
		{"file", 422, "not_a_directory"},
		{"pipe", 422, "not_a_directory"}, // nobody writes to it: to open it for reading would wait without end
		{"", 422, "malformed"},
		{"a\x00b", 422, "malformed"},
		{strings.Repeat("x", 1025), 422, "malformed"},
	} {
		a := create("bad", test.path)
		fields, _ := a.json["errors"].([]any)
		if a.status != test.status || len(fields) != 1 || fields[0].(map[string]any)["field"] != "path" || fields[0].(map[string]any)["code"] != test.code {
			t.Errorf("%q: %d %s", test.path, a.status, a.body)
		}

		if strings.Contains(string(a.body), "does not answer") {
			t.Errorf("%q: opening it hangs", test.path)
		}
	}

	a := create("first", "a/./b/")
	location := a.header.Get("Location")
	if a.status != 201 || a.text("path") != "a/b" {
		t.Fatalf("%s", a.body)
	}

	c.refused(409, "path_taken", "POST", "/api/v1/datasets", map[string]string{"name": "again", "path": filepath.Join(ts.datasets, "a/b")})
	c.refused(409, "name_taken", "POST", "/api/v1/datasets", map[string]string{"name": "first", "path": "a"})
	if a := create("second root", filepath.Join(second, "c")); a.status != 201 || a.text("path") != filepath.Join(second, "c") {
		t.Errorf("%s", a.body)
	}

	if a := create("whole root", "."); a.status != 201 {
		t.Errorf("%s", a.body)
	}

	if items := c.must(200, "GET", "/api/v1/datasets?name=first", nil).items(); len(items) != 1 {
		t.Errorf("%d named first", len(items))
	}

	c.refused(409, "name_taken", "PATCH", location, map[string]string{"name": "whole root"})
	c.refused(422, "invalid", "PATCH", location, map[string]string{"name": " "})
	c.refused(400, "unknown_field", "PATCH", location, map[string]string{"path": "a"})
	if a := c.must(200, "PATCH", location, map[string]string{"description": "Alps"}); a.text("name") != "first" || a.text("description") != "Alps" {
		t.Errorf("%s", a.body)
	}

	c.analyze(location, nil)
	c.must(204, "DELETE", location, nil)
	c.refused(404, "not_found", "GET", location, nil)
	c.refused(404, "not_found", "DELETE", location, nil)
	c.refused(404, "not_found", "GET", location+"/files", nil)
	c.refused(404, "not_found", "POST", location+"/analyses", nil)
	if _, err := os.Stat(filepath.Join(ts.datasets, "a/b")); err != nil {
		t.Errorf("forgetting a dataset touched its directory: %v", err)
	}
}

// TestRootsHoldNoSecrets: the service does not start if a dataset root holds the state directory or
// the keys.
func TestRootsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), os.Symlink(dir, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}

	for _, env := range [][]string{
		{"CAIRN_STATE_DIR=" + dir + "/state", "CAIRN_DATASETS_DIR=" + dir},
		{"CAIRN_STATE_DIR=" + dir + "/state", "CAIRN_DATASETS_DIR=" + dir + "/link"},
		{"CAIRN_STATE_DIR=" + dir + "/state", "CAIRN_DATASETS_DIR=" + dir + "/data:" + dir + "/state"},
		{"CAIRN_STATE_DIR=" + dir + "/state", "CAIRN_DATASETS_DIR=" + dir + "/data", "CAIRN_KEYS_FILE=" + dir + "/data/keys"},
	} {
		err := run(context.Background(), []string{"serve"}, env, nil, &lockedBuffer{}, &lockedBuffer{})
		if err == nil || !strings.Contains(err.Error(), "CAIRN_DATASETS_DIR") {
			t.Errorf("%v: %v", env, err)
		}
	}
}

// TestUnavailableDataset: if the directory is missing, or empty though files are known, the
// analysis fails and keeps every row, unless it is forced. The failure does not tell where the
// server keeps its files.
func TestUnavailableDataset(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	make3 := func() {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}

		for _, name := range []string{"a.tif", "b.tif", "sub/c.tif"} {
			if err := os.WriteFile(filepath.Join(dir, name), sampleTIFF(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}

	make3()
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	unavailable := func(what string) {
		t.Helper()
		a := c.analyze(dataset, nil)
		if a.text("state") != "failed" || a.text("failure_code") != "dataset_unavailable" || a.text("failure") == "" || strings.Contains(string(a.body), ts.datasets) || len(c.files(dataset)) != 3 {
			t.Errorf("%s: %d rows left, %s", what, len(c.files(dataset)), a.body)
		}
	}

	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}

	unavailable("missing")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	unavailable("empty")
	if err := os.MkdirAll(filepath.Join(dir, "sub/sub"), 0o755); err != nil {
		t.Fatal(err)
	}

	unavailable("only empty directories")
	if a := c.analyze(dataset, map[string]bool{"force": true}); a.text("state") != "succeeded" || counts(a) != [6]int{0, 0, 0, 0, 3, 0} {
		t.Errorf("empty, with force: %s", a.body)
	}

	make3()
	c.analyze(dataset, nil)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}

	if a := c.analyze(dataset, map[string]bool{"force": true}); a.text("state") != "succeeded" || counts(a) != [6]int{0, 0, 0, 0, 3, 0} {
		t.Errorf("missing, with force: %s", a.body)
	}
}

// TestEmptiedWhileAnalysed: the directory goes away between the walk and the reading. No row is
// lost.
func TestEmptiedWhileAnalysed(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"moved", "emptied", "part"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			var dir string
			var once sync.Once
			var ts *testServer
			ts = startServer(t, func(o *options) {
				o.batchSize = 10
				o.beforeRead = func(string) {
					if !armed.Load() {
						return
					}

					once.Do(func() {
						waitFor(t, "all readers to have a batch", func() bool { return len(ts.analyzer.reading.total) == cap(ts.analyzer.reading.total) })
						switch how {
						case "moved":
							os.Rename(dir, dir+".away")
						case "emptied":
							os.RemoveAll(dir)
							os.Mkdir(dir, 0o755)
						case "part":
							os.RemoveAll(filepath.Join(dir, "d5"))
						}
					})
				}
			})

			c := ts.signIn("root", "all")
			dir = filepath.Join(ts.datasets, "tiles")
			makeTiles(t, dir, 10, 10)
			dataset := c.addDataset("tiles")
			c.analyze(dataset, nil)
			armed.Store(true)
			ts.exec(`UPDATE elevation_dataset_file_meta SET reader_version = 0`) // all are read again
			a := c.analyze(dataset, nil)
			if how != "part" && (a.text("state") != "failed" || a.text("failure_code") != "dataset_unavailable") {
				t.Errorf("%s", a.body)
			}

			if how != "part" {
				if n := len(c.files(dataset)); n != 100 {
					t.Errorf("%d rows left of 100", n)
				}
			} else if a := c.analyze(dataset, nil); counts(a)[0] != 90 || counts(a)[3] != 90 || len(c.files(dataset)) != 90 {
				t.Errorf("the next analysis: %s", a.body)
			}
		})
	}
}

// makeTiles makes dirs directories d0, d1, … of files small GeoTIFFs each. Each has a place of its own, because each
// analysis compares the contents of files at the same place.
func makeTiles(t *testing.T, dir string, dirs, files int) {
	t.Helper()
	for d := range dirs {
		sub := filepath.Join(dir, fmt.Sprintf("d%d", d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}

		for f := range files {
			content := geographicTIFF(float64(d%180), float64(f%80)+float64(f/80%100)/100)
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("t%d.tif", f)), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnreadableDirectory: rows below a directory that cannot be listed are kept, with a warning.
// The directory is too deep here, which holds for every user; root may list any other.
// TestPeerSickSubdirectory has other errors.
func TestUnreadableDirectory(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 3, 2)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	if err := os.RemoveAll(filepath.Join(dir, "d1")); err != nil {
		t.Fatal(err)
	}

	deep := strings.Repeat("d/", maxDepth+1)
	makeTiles(t, filepath.Join(dir, deep), 2, 2)
	ts.exec(`UPDATE elevation_dataset_file_meta SET path = $1 || path WHERE path LIKE 'd1/%'`, deep)
	a := c.analyze(dataset, nil)
	if warnings := a.json["warnings"].([]any); len(warnings) != 1 || counts(a) != [6]int{4, 0, 0, 4, 0, 0} || len(c.files(dataset)) != 6 {
		t.Errorf("%d rows, %s", len(c.files(dataset)), a.body)
	}
}

// TestStreamedOptions: the options of an analysis are never ignored, also if they come without
// length and type.
func TestStreamedOptions(t *testing.T) {
	t.Parallel()
	_, c, location := startQueued(t)
	c.must(204, "DELETE", location, nil)
	analyses := filepath.Dir(location)
	for kind, status := range map[string]int{"": 415, "application/json": 202} {
		body := io.MultiReader(strings.NewReader(`{"force": true}`)) // its length is unknown
		a, err := c.send("POST", analyses, body, "Content-Type: "+kind)
		if err != nil || a.status != status || status == 202 && a.json["force"] != true {
			t.Errorf("%q: %d %s %v", kind, a.status, a.body, err)
		}

		if path := a.header.Get("Location"); path != "" {
			c.must(204, "DELETE", path, nil)
		}
	}

	if a, err := c.send("POST", analyses, io.MultiReader(), "Content-Type: "); err != nil || a.status != 202 {
		t.Errorf("a stream without a byte: %d %s %v", a.status, a.body, err)
	}
}

// TestAnalysisConflictAndCancel: a dataset has one analysis at a time. A canceled one stops even
// while a read hangs.
func TestAnalysisConflictAndCancel(t *testing.T) {
	t.Parallel()
	reading := make(chan bool, 1)
	proceed := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(string) {
			select {
			case reading <- true:
			default:
			}
			<-proceed
		}
	})

	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	<-reading
	if a := c.refused(409, "analysis_running", "POST", dataset+"/analyses", nil); a.header.Get("Location") != location {
		t.Errorf("Location %q, want %q", a.header.Get("Location"), location)
	}

	c.must(204, "DELETE", location, nil)
	c.must(204, "DELETE", location, nil)
	waitFor(t, "the read to be abandoned", func() bool { return ts.analyzer.hung.Load() == 1 })
	close(proceed)
	if a := c.finished(location); a.text("state") != "canceled" || len(c.files(dataset)) != 0 {
		t.Errorf("%s", a.body)
	}

	if a := c.analyze(dataset, nil); counts(a) != [6]int{3, 3, 0, 0, 0, 0} {
		t.Errorf("after the canceled one: %s", a.body)
	}

	if items := c.must(200, "GET", dataset+"/analyses", nil).items(); len(items) != 2 || items[0]["state"] != "succeeded" {
		t.Errorf("list: %v", items)
	}
}

// waitersOf returns the number of waiting requests.
func (ts *testServer) waitersOf() (waiters int) {
	waits := ts.analyzer.waits
	waits.mu.Lock()
	defer waits.mu.Unlock()
	for _, line := range waits.callers {
		waiters += len(line.slots)
	}
	return waiters
}

// startQueued starts a server that reads no files, and queues an analysis there. It returns a
// client with all permissions and the analysis.
func startQueued(t *testing.T) (ts *testServer, c client, location string) {
	ts = startServer(t, func(o *options) { o.workers = 0 })
	c = ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	return ts, c, c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil).header.Get("Location")
}

// TestManyWaiters: requests that wait for an analysis hold no connection. All are answered when the
// analysis ends, and then none is counted as waiting.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	ts, c, location := startQueued(t)
	if a := c.must(200, "GET", location+"?wait=1ms", nil); a.text("state") != stateQueued {
		t.Errorf("%s", a.body)
	}

	const users = 8
	var all sync.WaitGroup
	for i := range users {
		u := ts.signIn(fmt.Sprintf("user%d", i), datasetRead)
		for range maxWaiting {
			all.Go(func() {
				a, err := u.send("GET", location+"?wait=60s", nil)
				if err != nil || a.status != 200 || a.text("state") != stateCanceled {
					t.Errorf("%d %s %v", a.status, a.body, err)
				}
			})
		}
	}

	waitFor(t, "all to wait", func() bool { return ts.waitersOf() == users*maxWaiting })
	waitFor(t, "the requests to hold no connection", func() bool { return ts.db.Stat().AcquiredConns() == 0 })
	c.must(204, "DELETE", location, nil)
	all.Wait()
	waitFor(t, "no request to count as waiting", func() bool { return ts.waitersOf() == 0 })
}

// TestWaitingIsCapped: if one user sends very many requests that wait, all but a few are refused,
// and other users are answered meanwhile. The service stops while requests wait.
func TestWaitingIsCapped(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 }) // nothing runs by itself
	c := ts.signIn("root", "all")
	other := ts.signIn("other")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	location := c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil).header.Get("Location")
	var waiting, refused, sent atomic.Int64
	var all sync.WaitGroup
	const requests, clients = 2500, maxWaiting + 50 // so that at most 50 requests at a time want an answer at once
	for range clients {
		all.Go(func() {
			for sent.Add(1) <= requests {
				a, err := c.send("GET", location+"?wait=60s", nil)
				switch {
				case err == nil && a.status == 200 && a.text("state") == stateQueued:
					waiting.Add(1)
				case err == nil && a.status == 429 && a.text("code") == "too_many_waiting" && a.header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("%d %s %v", a.status, a.body, err)
				}
			}
		})
	}

	for refused.Load() < requests-maxWaiting && !t.Failed() {
		other.must(200, "GET", "/api/v1/auth/me", nil)
	}

	waitFor(t, "the others to wait", func() bool { return ts.waitersOf() == maxWaiting })
	other.must(200, "GET", "/api/v1/auth/me", nil)
	ts.stop()
	all.Wait()
	if waiting.Load() != maxWaiting {
		t.Errorf("%d requests waited", waiting.Load())
	}
}

// TestWaitEndsInOutage: after a wait, a request reads the analysis within the short time limit of
// most routes.
func TestWaitEndsInOutage(t *testing.T) {
	t.Parallel()
	ts, c, location := startQueued(t)
	answered := make(chan int, 1)
	go func() {
		a, _ := c.send("GET", location+"?wait=1s", nil)
		answered <- a.status
	}()
	waitFor(t, "the request to wait after its first look", func() bool {
		return ts.waitersOf() == 1 && len(ts.limits.pool.total) == 0
	})
	tx := must(ts.db.Begin(t.Context()))
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `LOCK TABLE analyses`); err != nil {
		t.Fatal(err)
	}

	waitFor(t, "an answer", func() bool { return len(answered) == 1 }) // before the time limit of the route
	if status := <-answered; status != 503 {
		t.Errorf("%d", status)
	}
}

// TestHungRead: a read that does not return is abandoned, and the other files are read.
func TestHungRead(t *testing.T) {
	t.Parallel()
	hang := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.patience = 200 * time.Millisecond
		o.beforeRead = func(path string) {
			if path == "d0/t1.tif" {
				<-hang
			}
		}
	})

	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	a := c.analyze(dataset, nil)
	rows := c.files(dataset)
	if counts(a) != [6]int{3, 3, 0, 0, 0, 1} || rows["d0/t1.tif"].Status != "unreadable" || rows["d0/t2.tif"].Status != "ok" {
		t.Errorf("%s %+v", a.body, rows)
	}

	close(hang)
	waitFor(t, "the hung read to come back", func() bool { return ts.analyzer.hung.Load() == 0 })
}

// TestReaderPanics: a panic in a parser spoils one row only.
func TestReaderPanics(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(path string) {
			if path == "d0/t1.tif" {
				panic("mistake")
			}
		}
	})

	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	if rows := c.files(dataset); rows["d0/t1.tif"].Status != "corrupt" || rows["d0/t2.tif"].Status != "ok" {
		t.Errorf("%+v", rows)
	}
}

// TestTwoInstances: two services on one database analyse two datasets at a time.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	// Each instance waits with its first file until the other has one too.
	var meeting sync.WaitGroup
	meeting.Add(2)
	meet := func(o *options) {
		var once sync.Once
		o.workers = 1
		o.beforeRead = func(string) {
			once.Do(func() {
				meeting.Done()
				meeting.Wait()
			})
		}
	}

	one := startServer(t, meet)
	two := startServer(t, meet, append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath())...)
	c := one.signIn("root", "all")
	var analyses []string
	for _, name := range []string{"a", "b"} {
		makeTiles(t, filepath.Join(one.datasets, name), 1, 50)
		analyses = append(analyses, c.must(202, "POST", c.addDataset(name)+"/analyses", nil).header.Get("Location"))
	}

	for _, location := range analyses {
		if a := c.finished(location); counts(a) != [6]int{50, 50, 0, 0, 0, 0} {
			t.Errorf("%s", a.body)
		}
	}

	if x, y := one.analyzer.stored.Load(), two.analyzer.stored.Load(); x != 1 || y != 1 {
		t.Errorf("one stored %d batches, the other %d", x, y)
	}
}

// TestPoisonFile: a file whose reading kills the process gets a row that says so. Every other file
// gets its row, and is not blamed.
func TestPoisonFile(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 2, 5)
	if err := os.Symlink("nowhere", filepath.Join(dir, "d0/a.tif")); err != nil { // each owner reads it again
		t.Fatal(err)
	}

	dataset := c.addDataset("tiles")
	innocent := c.addDataset("tiles/d1") // its analysis runs beside the other
	ts.ownsNothing()                     // the processes under test do the work
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	other := c.must(202, "POST", innocent+"/analyses", nil).header.Get("Location")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_DIE_ON=d0/t3.tif", "CAIRN_LISTEN=127.0.0.1:0")
	p := startProcess(t, env)
	c.url = p.url
	deaths := 0
	for ended := false; !ended; {
		watch := make(chan bool)
		go func(c client) {
			defer close(watch)
			for {
				a, err := c.try("GET", location+"?wait=10s")
				if err != nil {
					return
				}

				if a.json["finished_at"] != nil {
					ended = true
					return
				}
			}
		}(c)
		<-watch
		if !ended {
			<-p.exit
			deaths++
			if deaths > 12 {
				t.Fatal("the file kills the service again and again")
			}
			p = startProcess(t, env)
			c.url = p.url
		}
	}

	rows := c.files(dataset)
	for path, m := range rows {
		want := fileStatusOK
		switch path {
		case "d0/a.tif":
			want = fileStatusUnreadable
		case "d0/t3.tif":
			want = fileStatusCorrupt
		}

		if m.Status != want {
			t.Errorf("%s: %s, want %s", path, m.Status, want)
		}
	}

	if a := c.finished(other); counts(a) != [6]int{5, 5, 0, 0, 0, 0} {
		t.Errorf("the other dataset: %s", a.body)
	}

	check(t, fmt.Sprintf("rows after %d deaths", deaths), len(rows), 11)
	check(t, "total, added, changed, unchanged, removed and failed files, all of them counted once", counts(c.finished(location)), [6]int{11, 11, 0, 0, 0, 2})

	t.Logf("the file killed the service %d times", deaths)
}

// TestKilledWhileAnalysing kills the service several times during an analysis. The analysis ends by
// itself, every file has one row, and the counts add up.
func TestKilledWhileAnalysing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	files := soakOr(20_000, 4000)
	makeTiles(t, dir, 40, files/40)
	dataset := c.addDataset("tiles")
	ts.stop()
	var location string
	for round := range 4 {
		p := startProcess(t, ts.env)
		c.url = p.url
		if round == 0 {
			location = c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
		}

		if round < 3 {
			// It is killed after it has made some progress.
			done := func() int {
				a := c.must(200, "GET", location, nil)
				return counts(a)[1]
			}

			before := done()
			waitFor(t, "progress", func() bool { n := done(); return n > before || n == files })
			p.kill()
		}
	}

	a := c.finished(location)
	if counts(a) != [6]int{files, files, 0, 0, 0, 0} || a.text("state") != "succeeded" {
		t.Errorf("%s", a.body)
	}

	rows := c.files(dataset)
	if len(rows) != files {
		t.Errorf("%d rows", len(rows))
	}

	sameRows(t, rows, dir)
}

// TestKilledWithDatabase kills the service and its private PostgreSQL at once. Every account that
// was answered 201 exists after the next start.
func TestKilledWithDatabase(t *testing.T) {
	t.Parallel()
	state := newStateDir(t)
	env := []string{"CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR=" + state, "CAIRN_DATASETS_DIR=" + t.TempDir(), "CAIRN_DATABASE_URL="}
	p := startProcess(t, env)
	c := client{t: t, url: p.url}
	var mu sync.Mutex
	var registered []string
	var wg sync.WaitGroup
	enough := make(chan bool)
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("user-%d-%d", worker, i)
				a, err := c.try("POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword})
				if err != nil {
					return
				}

				if a.status == 201 {
					mu.Lock()
					registered = append(registered, name)
					if len(registered) == 8 { // a network may register ten without waiting
						close(enough)
					}
					mu.Unlock()
				}
			}
		})
	}

	<-enough
	postmaster := postmasterPID(t, state)
	p.cmd.Process.Kill()
	if err := syscall.Kill(-postmaster, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}

	<-p.exit
	wg.Wait()
	p = startProcess(t, env)
	c.url = p.url
	for _, name := range registered {
		c.login(name, testPassword)
	}

	t.Logf("all %d accounts that were answered 201 are there", len(registered))
	p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.exit
}

// try is like do, for a service that may die: it returns an error if there is no answer.
func (c client) try(method, path string, body ...any) (a answer, err error) {
	var reader bytes.Buffer
	for _, b := range body {
		json.NewEncoder(&reader).Encode(b)
	}
	return c.send(method, path, &reader)
}
