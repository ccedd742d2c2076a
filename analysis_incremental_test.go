package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestIncremental: only what changed is read again, also what changed beside a file, and what
// changed is listed.
func TestIncremental(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reads []string
	ts := startServer(t, func(o *options) {
		o.batchSize = 3
		o.beforeRead = func(path string) {
			mu.Lock()
			defer mu.Unlock()
			reads = append(reads, path)
		}
	})
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	stamp := time.Now().Add(-time.Hour)
	write := func(name, content string) error { // each change is at another time
		stamp = stamp.Add(time.Second)
		name = filepath.Join(dir, name)
		return errors.Join(os.WriteFile(name, []byte(content), 0o644), os.Chtimes(name, stamp, stamp))
	}
	rewrite := func(name, content string) error { // with the same size and time
		name = filepath.Join(dir, name)
		before, err := os.Stat(name)
		if err == nil {
			err = errors.Join(os.WriteFile(name, []byte(content), 0o644), os.Chtimes(name, before.ModTime(), before.ModTime()))
		}
		after, again := os.Stat(name)
		if err == nil && again == nil && (after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime())) {
			err = errors.New("another size or time")
		}
		return errors.Join(err, again)
	}
	remove := func(name string) error { return os.Remove(filepath.Join(dir, name)) }
	bare := string(testTIFF{order: binary.LittleEndian, tags: testSize()}.build())
	geo := string(sampleTIFF())
	world := "1\n0\n0\n-1\n10\n50\n"
	if err := os.MkdirAll(filepath.Join(dir, "sub.tfw"), 0o755); err != nil {
		t.Fatal(err)
	}
	all := []string{"a-b.tif", "a.b.tif", "a.tfw", "a.tif", "a.tif.aux.xml", "plain", "sub.tfw/a.tif", "z.tif"}
	for _, name := range all {
		content := map[string]string{"a.tfw": world, "a.tif": bare, "plain": bare, "z.tif": geo}[name]
		if err := write(name, content); err != nil {
			t.Fatal(err)
		}
	}
	dataset := c.addDataset("tiles")
	for _, test := range []struct {
		name    string
		change  func() error
		force   bool
		reads   []string
		changes []string
	}{
		{"first", nil, false, all, []string{"added a-b.tif", "added a.b.tif", "added a.tfw", "added a.tif", "added a.tif.aux.xml", "added plain", "added sub.tfw/a.tif", "added z.tif"}},
		{"nothing", nil, false, nil, nil},
		{"force", nil, true, all, nil},
		{"another reader", func() error { ts.exec(`UPDATE elevation_dataset_file_meta SET reader_version = -1`); return nil }, false, all, nil},
		{"content", func() error { return write("z.tif", bare) }, false, []string{"z.tif"}, []string{"changed z.tif"}},
		{"world file", func() error { return write("a.tfw", "1\n0\n0\n-1\n20\n50\n") }, false, []string{"a.tfw", "a.tif", "a.tif.aux.xml"}, []string{"changed a.tfw", "changed a.tif"}},
		{"world file gone", func() error { return remove("a.tfw") }, false, []string{"a.tif", "a.tif.aux.xml"}, []string{"removed a.tfw", "changed a.tif"}},
		{"world file there", func() error { return write("a.tfw", world) }, false, []string{"a.tfw", "a.tif", "a.tif.aux.xml"}, []string{"added a.tfw", "changed a.tif"}},
		{"upper case", func() error { return write("plain.PRJ", "LOCAL_CS[\"x\"]") }, false, []string{"plain", "plain.PRJ"}, []string{"added plain.PRJ"}},
		{"and gone", func() error { return remove("plain.PRJ") }, false, []string{"plain"}, []string{"removed plain.PRJ"}},
		{"raster gone", func() error { return remove("a.tif") }, false, []string{"a.tfw", "a.tif.aux.xml"}, []string{"changed a.tfw", "removed a.tif", "changed a.tif.aux.xml"}},
		{"raster there", func() error { return write("a.tif", bare) }, false, []string{"a.tfw", "a.tif", "a.tif.aux.xml"}, []string{"changed a.tfw", "added a.tif", "changed a.tif.aux.xml"}},
		{"just now", func() error { return os.WriteFile(filepath.Join(dir, "z.tif"), []byte(geo), 0o644) }, false, []string{"z.tif"}, []string{"changed z.tif"}},
		{"still too new", nil, false, []string{"z.tif"}, nil},
		{"a link", func() error {
			return errors.Join(write("z.tif", geo), os.Symlink("z.tif", filepath.Join(dir, "l.tif")))
		}, false, []string{"l.tif", "z.tif"}, []string{"added l.tif", "changed z.tif"}},
		{"a link again", nil, false, []string{"l.tif"}, nil},
		{"same size and time, another place", func() error {
			return rewrite("z.tif", string(geographicTIFF(20, 50)))
		}, false, []string{"l.tif", "z.tif"}, []string{"changed l.tif", "changed z.tif"}},
		{"mode", func() error { return os.Chmod(filepath.Join(dir, "plain"), 0o600) }, false, []string{"l.tif", "plain"}, nil},
		{"same world file, another place", func() error {
			return rewrite("a.tfw", "1\n0\n0\n-1\n30\n50\n")
		}, false, []string{"a.tfw", "a.tif", "a.tif.aux.xml", "l.tif"}, []string{"changed a.tif"}},
	} {
		if test.change != nil {
			if err := test.change(); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		reads = nil
		mu.Unlock()
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": test.force}).header.Get("Location")
		a := c.finished(location)
		mu.Lock()
		slices.Sort(reads)
		if !slices.Equal(reads, test.reads) {
			t.Errorf("%s: read %q, want %q", test.name, reads, test.reads)
		}
		mu.Unlock()
		changes := c.changes(location, "")
		if !slices.Equal(changes, test.changes) {
			t.Errorf("%s: changes %q, want %q; %s", test.name, changes, test.changes, a.body)
		}
		for i, change := range []string{"added", "changed", "removed"} {
			if n := counts(a)[[]int{1, 2, 4}[i]]; len(c.changes(location, "&change="+change)) != n {
				t.Errorf("%s: %d %s, %s", test.name, n, change, a.body)
			}
		}
		rows := c.files(dataset)
		if n := counts(a); n[0] != len(rows) || n[0] != n[1]+n[2]+n[3] {
			t.Errorf("%s: %s", test.name, a.body)
		}
		sameRows(t, rows, dir)
	}
	c.refused(422, "invalid", "GET", dataset+"/analyses/1/changes?change=failed", nil)
}

// TestChecksOfUnchangedFolder: checks run again only if they may find something else.
func TestChecksOfUnchangedFolder(t *testing.T) {
	t.Parallel()
	ts, c, dir, dataset := startTiles(t, 20, 2, 5)
	settle := func() error { // else files are read again, because they were written just now
		old := time.Now().Add(-time.Hour)
		files, err := filepath.Glob(filepath.Join(dir, "*/*"))
		for _, file := range files {
			err = errors.Join(err, os.Chtimes(file, old, old))
		}
		return err
	}

	if err := settle(); err != nil {
		t.Fatal(err)
	}

	c.analyze(dataset, nil)

	sql := func(query string) func() error {
		return func() error {
			ts.exec(query)
			return nil
		}
	}

	emptied := filepath.Join(dir, "d1")
	for _, test := range []struct {
		name   string
		change func() error
		force  bool
		isKept bool
	}{
		{"nothing", sql(`SELECT`), false, true},
		{"nothing again", sql(`SELECT`), false, true},
		{"force", sql(`SELECT`), true, false},
		{"other checks", sql(`UPDATE dataset_results SET checks_version = 0`), false, false},
		{"another expectation", sql(`UPDATE dataset_results SET expected_at = now()`), false, false},
		{"rows of a canceled analysis", sql(`UPDATE elevation_dataset_file_meta SET read_in = 1000 WHERE path = 'd0/t0.tif'`), false, false},
		{"its removals", sql(`
			WITH reset AS (UPDATE elevation_dataset_file_meta SET read_in = 0)
			INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, removed)
			VALUES (1, false, 'root', 'canceled', now(), 1)`), false, false},
		{"contents that it read", sql(`
			INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, bytes_read)
			VALUES (1, false, 'root', 'canceled', now(), 1)`), false, false},
		{"a new file", func() error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "d0/new.tif"), sampleTIFF(), 0o644), settle())
		}, false, false},
		{"a file is gone", func() error { return os.Remove(filepath.Join(dir, "d0/new.tif")) }, false, false},
		{"a directory is emptied", func() error { return errors.Join(os.Rename(emptied, dir+".away"), os.Mkdir(emptied, 0o755)) }, false, false},
		{"it is filled", func() error { return errors.Join(os.Remove(emptied), os.Rename(dir+".away", emptied)) }, false, false},
		{"nothing at last", sql(`SELECT`), false, true},
	} {
		if err := test.change(); err != nil {
			t.Fatal(err)
		}

		ts.exec(`UPDATE dataset_results SET summary = jsonb_set(summary, '{files}', '77')`)
		a := c.analyze(dataset, map[string]bool{"force": test.force})
		isKept := ts.queryInt(`SELECT (summary -> 'files')::int FROM dataset_results`) == 77
		if isKept != test.isKept {
			t.Errorf("%s: the results were kept: %v, want %v; %s", test.name, isKept, test.isKept, a.body)
		}

		if n := ts.queryInt(`SELECT analysis_id FROM dataset_results`); n != a.number("id") {
			t.Errorf("%s: the results are of analysis %d, want %d", test.name, n, a.number("id"))
		}
	}
}

// TestOldChangesAreForgotten: changes are kept for a year, and of the newest analyses.
func TestOldChangesAreForgotten(t *testing.T) {
	t.Parallel()
	ts, c, _, dataset := startTiles(t, 50, 1, 3)
	c.analyze(dataset, nil)
	kept := func() int { return ts.queryInt(`SELECT count(*) FROM analysis_changes`) }
	c.analyze(dataset, nil)
	if n := kept(); n != 3 {
		t.Errorf("%d changes after a day, want 3", n)
	}

	ts.exec(`UPDATE analyses SET added = $1 WHERE id = 1`, maxChangesKept+1)
	c.analyze(dataset, nil)
	if n := kept(); n != 0 {
		t.Errorf("%d changes beside too many others, want 0", n)
	}

	ts.exec(`INSERT INTO analysis_changes (analysis_id, path, change) VALUES (2, 'a', 'added'), (3, 'a', 'changed')`)
	ts.exec(`UPDATE analyses SET added = 0, queued_at = now() - interval '366 days' WHERE id < 3`)
	c.analyze(dataset, nil)
	if n := kept(); n != 1 {
		t.Errorf("%d changes after a year, want 1", n)
	}
}

// TestAnalysesOfFormerVersion: after the upgrade an analysis that ran begins again, former changes
// are listed, and what was accepted stays accepted under its new code.
func TestAnalysesOfFormerVersion(t *testing.T) {
	t.Parallel()
	url := formerDatabase(t, `
		INSERT INTO datasets (name, path) VALUES ('tiles', 'tiles');
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, warnings, analyzed_at)
			VALUES (1, 'd0/t0.tif', 1, 0, 'unsupported', '{}', now()), (1, 'gone.tif', 1, 0, 'unsupported', '{}', now());
		INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, total, added, unchanged)
			VALUES (1, false, 'root', 'succeeded', now(), 5, 3, 2);
		INSERT INTO analysis_changes VALUES (1, '', '{b,d}', '{a}', '{c}');
		INSERT INTO analyses (dataset_id, force, requested_by, state, total, added, walker, walker_token, chunks_left)
			VALUES (1, false, 'root', 'walking', 3, 1, 'dead', gen_random_uuid(), 1);
		INSERT INTO analysis_changes VALUES (2, '', '{d0/t0.tif}', '{}', '{}');
		INSERT INTO analysis_chunks (analysis_id, from_path, paths, sizes, modified, changed, sidecars)
			VALUES (2, 'd0/t0.tif', '{d0/t1.tif}', '{1}', '{1}', '{1}', '{0}');
		INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by)
			VALUES (1, 'seam', 'x', '', 'root'), (1, 'duplicate', 'y', '', 'root');
		INSERT INTO datasets (name, path) VALUES ('not there', 'not there');
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, reason, warnings, analyzed_at)
			VALUES (2, 'a.tif', 1, 0, 'corrupt', 'cut off', '{}', now());
		INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at)
			VALUES (2, false, 'root', 'succeeded', '2026-01-05')`)

	top := t.TempDir()
	makeTiles(t, filepath.Join(top, "tiles"), 1, 3)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	if a := c.finished("/api/v1/datasets/2/analyses/4"); a.json["checks_only"] != true || a.text("state") != stateSucceeded || counts(a) != [6]int{1, 0, 0, 1, 0, 0} {
		t.Errorf("the checks after the upgrade: %s", a.body)
	}

	if a := c.must(200, "GET", "/api/v1/datasets/2/report", nil); a.text("summary") != "0 of 1 file located; 1 corrupt" ||
		!strings.HasPrefix(a.text("analyzed_at"), "2026-01-05") {
		t.Errorf("the report after the upgrade: %s", a.body)
	}

	const dataset = "/api/v1/datasets/1"
	if a := c.finished(dataset + "/analyses/2"); counts(a) != [6]int{3, 2, 1, 0, 1, 0} {
		t.Errorf("the analysis that ran: %s", a.body)
	}

	sameRows(t, c.files(dataset), filepath.Join(top, "tiles"))
	if got, want := c.changes(dataset+"/analyses/1", ""), []string{"changed a", "added b", "removed c", "added d"}; !slices.Equal(got, want) {
		t.Errorf("former changes: got %q, want %q", got, want)
	}

	var accepted []string
	for _, item := range c.must(200, "GET", dataset+"/accepted-findings", nil).items() {
		accepted = append(accepted, fmt.Sprint(item["code"], " ", item["path"]))
	}

	if want := []string{"misaligned x", "duplicate y", "overlap y"}; !slices.Equal(accepted, want) {
		t.Errorf("accepted: got %q, want %q", accepted, want)
	}
}

// TestLinkThroughFile: a symbolic link whose way leads through a file leads to nothing, whether it
// has led somewhere before or not. So does the world file of a raster.
func TestLinkThroughFile(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "links")
	in := func(name string) string { return filepath.Join(dir, name) }
	bare := testTIFF{order: binary.LittleEndian, tags: testSize()}.build()
	err := errors.Join(
		os.MkdirAll(in("ways"), 0o755),
		os.WriteFile(in("ways/r.tif"), sampleTIFF(), 0o644),
		os.WriteFile(in("ways/r.tfw"), []byte("1\n0\n0\n-1\n10\n50\n"), 0o644),
		os.Symlink("ways/r.tif", in("thru.tif")),
		os.WriteFile(in("bare.tif"), bare, 0o644),
		os.Symlink("ways/r.tfw", in("bare.tfw")),
	)
	if err != nil {
		t.Fatal(err)
	}

	dataset := c.addDataset("links")
	c.analyze(dataset, nil)
	if rows := c.files(dataset); rows["thru.tif"].Status != fileStatusOK || rows["bare.tif"].Source == nil {
		t.Errorf("%+v", rows)
	}

	if err := errors.Join(os.RemoveAll(in("ways")), os.WriteFile(in("ways"), nil, 0o644), os.Symlink("ways/x.tif", in("new.tif"))); err != nil {
		t.Fatal(err)
	}

	a := c.analyze(dataset, nil)
	rows := c.files(dataset)
	for _, name := range []string{"thru.tif", "new.tif"} {
		if m := rows[name]; m.Status != fileStatusUnreadable || m.Reason == nil || *m.Reason != "the symbolic link leads to nothing" {
			t.Errorf("%s: %+v", name, m)
		}
	}

	if counts(a)[0] != 5 || len(rows) != 5 {
		t.Errorf("%d rows, %s", len(rows), a.body)
	}

	sameRows(t, rows, dir)
}

// TestChangedWhileAnalysed: files that are added, changed, truncated and removed while analyses run
// crash nothing, and the analysis after it is exact.
func TestChangedWhileAnalysed(t *testing.T) {
	t.Parallel()
	_, c, dir, dataset := startTiles(t, 20, 10, 50)
	stop := make(chan bool)
	restless := sync.WaitGroup{}
	restless.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}

			name := filepath.Join(dir, fmt.Sprintf("d%d/t%d.tif", i%10, i*7%60))
			switch i % 5 {
			case 0, 1:
				os.WriteFile(name, geographicTIFF(float64(i%180), 10), 0o644)
			case 2:
				os.Truncate(name, int64(i%200))
			case 3:
				os.Remove(name)
			case 4:
				os.WriteFile(name[:len(name)-3]+"tfw", []byte("1\n0\n0\n-1\n20\n50\n"), 0o644)
			}
		}
	})

	for range 5 {
		if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded {
			t.Errorf("%s", a.body)
		}
	}

	close(stop)
	restless.Wait()
	a := c.analyze(dataset, nil)
	rows := c.files(dataset)
	if n := counts(a); n[0] != len(rows) || n[0] != n[1]+n[2]+n[3] {
		t.Errorf("%d rows, %s", len(rows), a.body)
	}

	sameRows(t, rows, dir)
}

// TestLargeDirectory: a directory of many files is listed whole, in order.
func TestLargeDirectory(t *testing.T) {
	t.Parallel()
	dir := memoryDir(t)
	files := soakOr(101_000, 20_000)
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%06d", i*7919%files)))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}

	next := 0
	w := walker{
		file: func(e entry) error {
			if e.Path != fmt.Sprintf("%06d", next) {
				return fmt.Errorf("%s comes as number %d", e.Path, next)
			}
			next++
			return nil
		},
		warn: func(_ string, err error) error { return err },
	}

	if err := w.walk(t.Context(), mustOpenRoot(t, dir), ""); err != nil || next != files {
		t.Errorf("%d files, %v", next, err)
	}
}
