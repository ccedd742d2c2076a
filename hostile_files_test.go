package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hostileTIFF is a north-up GeoTIFF of so many pixels, whose upper left corner is at x, y in the CRS of a code.
func hostileTIFF(code, pixels, scale, x, y float64) []byte {
	size := []testTag{shorts(tagImageWidth, pixels), shorts(tagImageLength, pixels), shorts(tagBitsPerSample, 8)}
	keys := geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{3072, 0, 1, code})
	if isGeographicCode(int(code)) {
		keys = geoKeyTag([4]float64{1024, 0, 1, 2}, [4]float64{2048, 0, 1, code})
	}
	place := []testTag{doubles(tagModelPixelScale, scale, scale, 0), doubles(tagModelTiepoint, 0, 0, 0, x, y, 0)}
	return testTIFF{order: binary.LittleEndian, tags: with(size, place, keys)}.build()
}

// TestHostileFiles: files at numbers that are next to nothing, or far beyond the globe, spoil neither their own
// dataset's answers nor those of another.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "hostile")
	makeTiles(t, dir, 1, 60)
	for i, content := range [][]byte{
		hostileTIFF(4326, 1, 1, -1e-323, 10), hostileTIFF(4326, 1, 1e-200, 1e-200, 0), hostileTIFF(4326, 1, 1e-13, 7, 47),
		hostileTIFF(32633, 2, 0.75e308, -0.75e308, 0.75e308), hostileTIFF(32632, 10, 100, 3e-322, 5000), hostileTIFF(32632, 1, 5e-324, 0, 5000),
		hostileTIFF(32632, 10, 1e20, 1e30, 5000), hostileTIFF(32632, 10, 1e305, -1.7e308, 5000), hostileTIFF(32632, 10, 1e290, 1e300, 5000),
	} {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("hostile%d.tif", i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
		for j := range 5 { // a grid, where there is one to be
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("tile%d.tif", j)), hostileTIFF(32632, 10, 100, 500_000+1000*float64(j), 5_200_000), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	dataset := c.addDataset("hostile")
	if a := c.analyze(dataset, nil); a.json["state"] != "succeeded" {
		t.Fatalf("%s", a.body)
	}
	for _, path := range []string{"", "/files", "/files?bbox=-180,-90,180,90", "/files?point=7,47", "/footprints.geojson", "/report", "/gaps.geojson", "/coverage.svg"} {
		c.must(200, "GET", dataset+path, nil)
	}
	makeTiles(t, filepath.Join(ts.datasets, "clean"), 1, 900)
	if a := c.analyze(c.addDataset("clean"), nil); a.json["state"] != "succeeded" {
		t.Errorf("the index does not take other rows any more: %s", a.body)
	}
}

// TestForceWhereTheSeeingInstanceStops: that an instance without the share is the only one left does not make the
// files' absence meant.
func TestForceWhereTheSeeingInstanceStops(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one := startServer(t, func(o *options) { o.leaseTTL = time.Second; o.batchSize = 10 })
	c := one.signIn("root", "all")
	makeTiles(t, filepath.Join(one.datasets, "tiles"), 4, 10)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	env := append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath(), "CAIRN_DATASETS_DIR="+t.TempDir())
	two := startServer(t, func(o *options) { o.leaseTTL = time.Second }, env...)
	resume := two.ownsNothing()
	tx := must(two.db.Begin(ctx)) // holds the walk back
	defer tx.Rollback(ctx)
	if err := advisoryLock(ctx, tx, lockAnalyses+2); err != nil {
		t.Fatal(err)
	}
	location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true}).header.Get("Location")
	waitFor(t, "the claim", func() bool {
		return one.queryInt(`SELECT count(*) FROM analyses WHERE owner = $1 AND finished_at IS NULL`, one.analyzer.instance) > 0
	})
	stopped := make(chan bool)
	go func() {
		one.stop()
		close(stopped)
	}()
	waitFor(t, "the stop", func() bool { return one.stopping.Err() != nil })
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	<-stopped
	resume()
	c.url = two.url
	a := c.finished(location)
	if n := two.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta`); n != 40 || a.json["state"] == "succeeded" && a.json["counts"].(map[string]any)["removed"] != 0.0 {
		t.Errorf("%d rows are left: %s", n, a.body)
	}
}

// TestManyRowsGone: where more rows go than the merge reads at a time, each is counted and listed once.
func TestManyRowsGone(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 10)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	const n = 10_001
	ts.exec(`INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, reason, warnings, analyzed_at)
		SELECT 1, 'd' || i % 3 || '/gone' || i, 1, 0, 'unsupported', 'x', '{}', now() FROM generate_series(1, $1::int) i`, n)
	a := c.analyze(dataset, nil)
	if want := fmt.Sprintf("%d of %d known files", n, n+20); a.text("failure_code") != failureMassRemoval || !strings.HasPrefix(a.text("failure"), want) {
		t.Errorf("not forced: %s", a.body)
	}
	a = c.analyze(dataset, map[string]bool{"force": true})
	if got, want := counts(a), [6]int{20, 0, 0, 20, n, 0}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	var listed int
	for next := dataset + fmt.Sprintf("/analyses/%d/changes?limit=500", a.number("id")); ; {
		page := c.must(200, "GET", next, nil)
		listed += len(page.items())
		if page.json["next_cursor"] == nil {
			break
		}
		next = dataset + fmt.Sprintf("/analyses/%d/changes?limit=500&cursor=%s", a.number("id"), page.text("next_cursor"))
	}
	if rows := ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta`); rows != 20 || listed != n {
		t.Errorf("%d rows, %d changes", rows, listed)
	}
}
