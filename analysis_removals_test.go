package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// removedIn returns how many changes of an analysis are removals.
func (c client) removedIn(a answer, dataset string) int {
	c.t.Helper()
	return len(c.changes(fmt.Sprintf("%s/analyses/%d", dataset, a.number("id")), "&change=removed"))
}

// startTiles starts a server with a dataset of dirs directories of n tiles each, which lie in dir.
// It stores batchSize files at a time.
func startTiles(t *testing.T, batchSize, dirs, n int) (ts *testServer, c client, dir, dataset string) {
	ts = startServer(t, func(o *options) { o.batchSize = batchSize })
	c = ts.signIn("root", "all")
	dir = filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, dirs, n)
	return ts, c, dir, c.addDataset("tiles")
}

// TestMassRemoval: an analysis that would remove more than a hundred rows and more than half of
// them fails and keeps all of them, unless it is forced. Up to that it removes them.
func TestMassRemoval(t *testing.T) {
	t.Parallel()
	ts, c, dir, dataset := startTiles(t, 50, 3, 80)
	c.analyze(dataset, nil)
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}

	// The share is not mounted, and a file lies in its mount point.
	move(dir, dir+".away")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "NOT-MOUNTED"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		a := c.analyze(dataset, nil)
		if a.text("state") != stateFailed || a.text("failure_code") != "mass_removal" || !strings.Contains(a.text("failure"), "240 of 24") {
			t.Errorf("not mounted: %s", a.body)
		}
		if n := counts(a); len(c.files(dataset)) != 241 || n[0] != 1 || n[4] != 0 || c.removedIn(a, dataset) != 0 {
			t.Errorf("not mounted: %d rows, %s", len(c.files(dataset)), a.body)
		}
	}

	report := c.must(200, "GET", dataset+"/report", nil)
	if first := report.json["findings"].([]any)[0].(map[string]any); first["code"] != "not_found" || first["total"] != 240.0 || first["new"] != 0.0 {
		t.Errorf("not mounted: %s", report.body)
	}

	if n := ts.queryInt(`SELECT count(*) FROM analysis_candidates`); n != 0 {
		t.Errorf("%d candidates are left", n)
	}

	move(dir, dir+".stray")
	move(dir+".away", dir)
	if a := c.analyze(dataset, nil); counts(a) != [6]int{240, 0, 0, 240, 1, 0} {
		t.Errorf("mounted: %s", a.body)
	}

	// One more than half, then half.
	move(filepath.Join(dir, "d1"), dir+".d1")
	extra := func(n int) string { return filepath.Join(dir, fmt.Sprintf("d0/t%d.tif", n)) }
	for n := range 41 {
		move(extra(n), fmt.Sprintf("%s.d1/extra%d", dir, n))
	}

	if a := c.analyze(dataset, nil); a.text("failure_code") != "mass_removal" || len(c.files(dataset)) != 240 {
		t.Errorf("121 of 240: %d rows, %s", len(c.files(dataset)), a.body)
	}

	move(dir+".d1/extra0", extra(0))
	if a := c.analyze(dataset, nil); counts(a) != [6]int{120, 0, 0, 120, 120, 0} || c.removedIn(a, dataset) != 120 {
		t.Errorf("120 of 240: %s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
	// A hundred of 120 may go, 110 of 120 only with force.
	move(filepath.Join(dir, "d2"), dir+".d2")
	for n := 60; n < 80; n++ {
		move(extra(n), fmt.Sprintf("%s.d2/extra%d", dir, n))
	}

	if a := c.analyze(dataset, nil); counts(a) != [6]int{20, 0, 0, 20, 100, 0} {
		t.Errorf("100 of 120: %s", a.body)
	}

	move(dir+".d1", filepath.Join(dir, "d1"))
	c.analyze(dataset, nil)
	move(filepath.Join(dir, "d1"), dir+".d1")
	if a := c.analyze(dataset, nil); a.text("failure_code") != "mass_removal" {
		t.Errorf("120 of 140: %s", a.body)
	}

	if a := c.analyze(dataset, map[string]bool{"force": true}); counts(a) != [6]int{20, 0, 0, 20, 120, 0} {
		t.Errorf("forced: %s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
}

// TestUnlistedIsNotMissing: files that exist where the walk cannot list them do not count as
// missing, however many they are. The directory is too deep here, as in TestUnreadableDirectory.
func TestUnlistedIsNotMissing(t *testing.T) {
	t.Parallel()
	ts, c, dir, dataset := startTiles(t, 50, 2, 120)
	c.analyze(dataset, nil)
	deep := strings.Repeat("d/", maxDepth+1)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, deep), 0o755),
		os.Rename(filepath.Join(dir, "d1"), filepath.Join(dir, deep, "d1")), os.Remove(filepath.Join(dir, "d0", "t7.tif"))); err != nil {
		t.Fatal(err)
	}

	ts.exec(`UPDATE elevation_dataset_file_meta SET path = $1 || path WHERE path LIKE 'd1/%'`, deep)
	a := c.analyze(dataset, nil)
	if counts(a) != [6]int{119, 0, 0, 119, 1, 0} || len(c.files(dataset)) != 239 {
		t.Errorf("%d rows, %s", len(c.files(dataset)), a.body)
	}

	if warnings := fmt.Sprint(a.json["warnings"]); !strings.Contains(warnings, "directories deep") {
		t.Errorf("warnings: %s", warnings)
	}

	if items := c.must(200, "GET", dataset+"/findings/not_examined", nil).items(); len(items) != 1 ||
		!strings.HasPrefix(items[0]["path"].(string), "d/d/") || !strings.Contains(items[0]["detail"].(string), "directories deep") {
		t.Errorf("findings: %v", items)
	}
}

// TestEmptiedDirectory: the rows below a directory that exists and is empty stay, with one warning,
// however many there are and however deep they lay. Only force removes them. Those of a directory
// that is gone go.
func TestEmptiedDirectory(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.batchSize = 50 })
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 2, 200)
	makeTiles(t, filepath.Join(dir, `mount\ed`), 2, 250) // d0 and d1 below the mount point
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	mount := filepath.Join(dir, `mount\ed`)
	if err := errors.Join(os.Rename(mount, mount+".away"), os.Rename(mount+".away", dir+".away"), os.Mkdir(mount, 0o755),
		os.RemoveAll(filepath.Join(dir, "d1"))); err != nil {
		t.Fatal(err)
	}

	a := c.analyze(dataset, nil)
	warnings := fmt.Sprint(a.json["warnings"])
	if counts(a) != [6]int{200, 0, 0, 200, 200, 0} || len(a.json["warnings"].([]any)) != 1 || !strings.Contains(warnings, `mount\\ed/: this directory is empty`) {
		t.Errorf("%s", a.body)
	}

	if n := len(c.files(dataset)); n != 700 {
		t.Errorf("%d rows", n)
	}

	if err := errors.Join(os.Remove(mount), os.Rename(dir+".away", mount)); err != nil {
		t.Fatal(err)
	}

	if a := c.analyze(dataset, nil); counts(a) != [6]int{700, 0, 0, 700, 0, 0} || len(a.json["warnings"].([]any)) != 0 {
		t.Errorf("mounted: %s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
	for _, sub := range []string{"d0", "d1"} { // the directories stay
		if err := errors.Join(os.RemoveAll(filepath.Join(mount, sub)), os.Mkdir(filepath.Join(mount, sub), 0o755)); err != nil {
			t.Fatal(err)
		}
	}

	if a := c.analyze(dataset, nil); counts(a) != [6]int{200, 0, 0, 200, 0, 0} || len(a.json["warnings"].([]any)) != 2 {
		t.Errorf("two emptied: %s", a.body)
	}

	if a := c.analyze(dataset, map[string]bool{"force": true}); counts(a) != [6]int{200, 0, 0, 200, 500, 0} || len(a.json["warnings"].([]any)) != 0 {
		t.Errorf("forced: %s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
}

// TestGoneAndVanished: files that are gone, and files that go before they are read, have no row.
// Changes are listed in order.
func TestGoneAndVanished(t *testing.T) {
	t.Parallel()
	var vanishing atomic.Pointer[string]
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(string) {
			if pattern := vanishing.Load(); pattern != nil {
				names, _ := filepath.Glob(*pattern)
				for _, name := range names {
					os.Remove(name)
				}
			}
		}
	})

	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 1, 9)
	in := func(name string) string { return filepath.Join(dir, "d0", name) }
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	for _, name := range []string{"new1.tif", "t2a.tif", "t9.tif"} {
		if err := os.WriteFile(in(name), sampleTIFF(), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if err := errors.Join(os.Remove(in("t1.tif")), os.Remove(in("t5.tif")), os.Remove(in("t8.tif")),
		os.WriteFile(in("t3.tif"), geographicTIFF(33, 33), 0o644)); err != nil {
		t.Fatal(err)
	}

	vanishing.Store(new(in("*[w2]*[1a].tif"))) // new1.tif and t2a.tif
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	a := c.finished(location)
	want := []string{"removed d0/t1.tif", "changed d0/t3.tif", "removed d0/t5.tif", "removed d0/t8.tif", "added d0/t9.tif"}
	if got := c.changes(location, ""); counts(a) != [6]int{7, 1, 1, 5, 3, 0} || !slices.Equal(got, want) {
		t.Errorf("%q, %s", got, a.body)
	}

	if warnings := fmt.Sprint(a.json["warnings"]); !strings.Contains(warnings, "new1.tif") || !strings.Contains(warnings, "(2 files in all)") {
		t.Errorf("not warned of both: %s", warnings)
	}

	sameRows(t, c.files(dataset), dir)
}

// TestDeathsAfterTheMerge: if the owners of an analysis die again and again after the merge, no
// file is at fault, and the analysis fails. So it does if they die ten times in the merge.
func TestDeathsAfterTheMerge(t *testing.T) {
	t.Parallel()
	for step, deaths := range map[string]int{stepLook: maxDeaths, stepRemove: maxDeaths, stepMerge: 3*maxDeaths + 1} {
		ts, c, location := startQueued(t)
		ts.exec(`UPDATE analyses SET deaths = $1, step = $2`, deaths, step)
		if _, err := ts.analyzer.work(t.Context(), oldestAnalysis); err != nil {
			t.Error(err)
		}

		if a := c.must(200, "GET", location, nil); a.text("failure_code") != failureInternal {
			t.Errorf("%s: %s", step, a.body)
		}
	}
}

// TestOwnerDiesLater: an owner that takes over after the merge does not begin it again, and counts
// stay exact.
func TestOwnerDiesLater(t *testing.T) {
	t.Parallel()
	for _, step := range []string{stepLook, stepRemove} {
		ts, c, dir, dataset := startTiles(t, 2, 2, 5)
		c.analyze(dataset, nil)
		if err := os.RemoveAll(filepath.Join(dir, "d1")); err != nil {
			t.Fatal(err)
		}

		// As if the owner had died, and the file d1/t1.tif had been added in this analysis.
		ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, started_at, step, total, owner, owner_token)
			VALUES (1, false, 'root', 'reading', now(), $1, 5, 'dead', gen_random_uuid())`, step)
		ts.exec(`INSERT INTO analysis_candidates SELECT 2, path FROM elevation_dataset_file_meta WHERE path LIKE 'd1/%'`)
		ts.exec(`UPDATE elevation_dataset_file_meta SET added_in = 2 WHERE path = 'd1/t1.tif'`)
		ts.exec(`INSERT INTO analysis_changes VALUES (2, 'd1/t1.tif', 'added'), (2, 'd1/t2.tif', 'changed')`)
		ts.exec(`INSERT INTO instances VALUES ('dead', '', '{}', now() - interval '1 day', now() - interval '1 day', now())`)
		ts.exec(`UPDATE instances SET alive_since = now() - interval '1 day' WHERE id <> 'dead'`)
		a := c.finished(dataset + "/analyses/2")
		if counts(a) != [6]int{5, 0, 0, 5, 4, 0} || len(c.files(dataset)) != 5 {
			t.Errorf("%s: %s", step, a.body)
		}

		if got := c.changes(dataset+"/analyses/2", ""); len(got) != 4 || got[1] != "removed d1/t2.tif" {
			t.Errorf("%s: %q", step, got)
		}
	}
}

// TestFilesThatComeBack: rows stay whose files are there again when an owner takes over in the
// middle of removals.
func TestFilesThatComeBack(t *testing.T) {
	t.Parallel()
	ts, c, _, dataset := startTiles(t, 2, 2, 5)
	c.analyze(dataset, nil)
	resume := ts.ownsNothing()
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, started_at, step, total)
		VALUES (1, false, 'root', 'reading', now(), 'remove', 5)`)
	ts.exec(`INSERT INTO analysis_candidates SELECT 2, path FROM elevation_dataset_file_meta WHERE path LIKE 'd1/%'`)
	ts.exec(`INSERT INTO analysis_changes SELECT 2, path, 'added' FROM elevation_dataset_file_meta WHERE path LIKE 'd1/%'`)
	resume()
	a := c.finished(dataset + "/analyses/2")
	if counts(a) != [6]int{10, 5, 0, 5, 0, 0} || len(c.files(dataset)) != 10 {
		t.Errorf("%d rows, %s", len(c.files(dataset)), a.body)
	}
}

// TestKnownIsWhatTheLastCompleteAnalysisKnew: rows that failed analyses added do not let the next
// one remove more.
func TestKnownIsWhatTheLastCompleteAnalysisKnew(t *testing.T) {
	t.Parallel()
	_, c, dir, dataset := startTiles(t, 50, 1, 240)
	c.analyze(dataset, nil)
	if err := os.Rename(filepath.Join(dir, "d0"), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}

	for night := range 3 {
		a := c.analyze(dataset, nil)
		if a.text("failure_code") != failureMassRemoval || !strings.Contains(a.text("failure"), "240 of 240") || len(c.files(dataset)) != 480 {
			t.Errorf("night %d: %s", night, a.body)
		}
	}

	if a := c.analyze(dataset, map[string]bool{"force": true}); counts(a) != [6]int{240, 0, 0, 240, 240, 0} {
		t.Errorf("forced: %s", a.body)
	}
}

// TestDeadlyFile: a file that ended the program three times is not read. If it is gone, it has no
// row.
func TestDeadlyFile(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	ts := startServer(t, func(o *options) {
		o.workers = 0
		o.beforeRead = func(string) { reads.Add(1) }
	})
	if err := os.WriteFile(filepath.Join(ts.datasets, "stays.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}

	for name, stays := range map[string]bool{"stays.txt": true, "gone.txt": false} {
		b := batch{files: []batchFile{{entry: entry{Path: name}}}, isDeadly: true}
		if err := ts.analyzer.readFiles(t.Context(), task{Path: ts.datasets}, b); err != nil {
			t.Error(err)
		}
		if row := b.files[0].row; (row != nil) != stays || stays && row.Status != fileStatusCorrupt {
			t.Errorf("%s: %+v", name, row)
		}
	}

	if reads.Load() != 0 {
		t.Errorf("%d reads, want none", reads.Load())
	}
}

// TestMendedPoison: the file after one that has ended the program three times, and that is mended or
// gone now, is not blamed. Nor is a mended file.
func TestMendedPoison(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mended", "gone"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dying := make(chan bool)
			ts := startServer(t, func(o *options) {
				o.workers = 0
				o.beforeRead = func(string) {
					if _, dies := <-dying; dies {
						<-dying
					}
				}
			})

			c := ts.signIn("root", "all")
			dir := filepath.Join(ts.datasets, "tiles")
			makeTiles(t, dir, 1, 3)
			dataset := c.addDataset("tiles")
			location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")

			// Each owner gets as far as the first file.
			ts.exec(`UPDATE analyses SET deaths = 1`)
			for range maxDeaths {
				ctx, die := context.WithCancel(t.Context())
				ended := make(chan bool)
				go func() {
					ts.analyzer.work(ctx, oldestAnalysis)
					close(ended)
				}()
				dying <- true
				die()
				<-ended
				ts.exec(`UPDATE analyses SET deaths = deaths + 1`)
			}

			close(dying)

			poison := filepath.Join(dir, "d0/t0.tif")
			if err := os.Remove(poison); err != nil {
				t.Fatal(err)
			}

			want := 2
			if name == "mended" {
				want = 3
				if err := os.WriteFile(poison, sampleTIFF(), 0o644); err != nil {
					t.Fatal(err)
				}
			}

			if _, err := ts.analyzer.work(t.Context(), oldestAnalysis); err != nil {
				t.Error(err)
			}

			if a := c.finished(location); counts(a) != [6]int{want, want, 0, 0, 0, 0} {
				t.Errorf("want %d files, none corrupt: %s", want, a.body)
			}
		})
	}
}

// TestStopIsNoDeath: a service that is stopped while it reads a file alone does not count that
// against the file.
func TestStopIsNoDeath(t *testing.T) {
	t.Parallel()
	reading := make(chan bool)
	proceed := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.workers = 0
		o.beforeRead = func(string) { reading <- true; <-proceed }
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil)
	ts.exec(`UPDATE analyses SET deaths = 1`)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan bool)
	go func() {
		ts.analyzer.work(ctx, oldestAnalysis)
		close(stopped)
	}()
	<-reading
	if n := ts.queryInt(`SELECT count(*) FROM analyses WHERE suspect LIKE '%t0.tif'`); n != 1 {
		t.Errorf("%d suspects while a file is read alone, want 1", n)
	}

	stop()
	<-stopped
	close(proceed)
	if n := ts.queryInt(`SELECT sum(deaths) FROM analyses`); n != 0 {
		t.Errorf("%d deaths after the stop, want 0", n)
	}
}
