package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// corruptTiles makes a folder of tiles, of which those with these numbers are cut off.
func corruptTiles(t *testing.T, dir string, n int, corrupt ...int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		content := utmTIFF(32632, float64(500+i)*1000, 5200_000)
		if slices.Contains(corrupt, i) {
			content = content[:60]
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("t%02d.tif", i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStoredFindings: an analysis that is canceled or fails leaves the findings of the one before,
// with what happened. Findings know since when they have been there.
func TestStoredFindings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	dir := filepath.Join(ts.datasets, "tiles")
	corruptTiles(t, dir, 12, 11)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	findings := func() string {
		t.Helper()
		var all []string
		for _, item := range c.must(200, "GET", dataset+"/report", nil).json["findings"].([]any) {
			f := item.(map[string]any)
			text := fmt.Sprint(f["code"], " ", f["total"], " ", f["new"])
			for _, file := range f["files"].([]any) {
				text += fmt.Sprint(" ", file.(map[string]any)["path"], " ", file.(map[string]any)["first_seen"])
			}
			all = append(all, text)
		}
		return strings.Join(all, "; ")
	}
	if got, want := findings(), "corrupt 1 <nil> t11.tif 1"; got != want {
		t.Errorf("first: got %q, want %q", got, want)
	}

	corruptTiles(t, dir, 12, 10, 11)
	resume := ts.ownsNothing()
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	if a := c.must(200, "GET", dataset+"/report", nil); a.text("running") != stateQueued || a.text("verdict") != hasFindings {
		t.Errorf("while one runs: %s", a.body)
	}
	c.must(204, "DELETE", location, nil)
	resume()
	if a := c.must(200, "GET", dataset+"/report", nil); a.json["running"] != nil ||
		a.text("summary") != "the last analysis was canceled. Before it: 11 of 12 files located; 1 corrupt" {
		t.Errorf("after one was canceled: %s", a.body)
	}
	c.analyze(dataset, nil)
	if got, want := findings(), "corrupt 2 1 t10.tif 3 t11.tif 1"; got != want {
		t.Errorf("one more: got %q, want %q", got, want)
	}

	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureUnavailable {
		t.Errorf("without the folder: %s", a.body)
	}
	if a := c.must(200, "GET", dataset+"/report", nil); !strings.HasPrefix(a.text("summary"), "the last analysis failed: ") ||
		!strings.HasSuffix(a.text("summary"), " Before it: 10 of 12 files located; 2 corrupt") {
		t.Errorf("after one failed: %s", a.body)
	}
	overview := fmt.Sprint(c.must(200, "GET", "/api/v1/datasets", nil).items()[0]["report"])
	if !strings.HasSuffix(overview, "errors:2 files:12 notes:0 verdict:findings warnings:0]") {
		t.Errorf("the list has %s", overview)
	}
	table := string(c.must(200, "GET", dataset+"/findings.csv", nil).body)
	if lines := strings.Split(table, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], "corrupt,error,t10.tif,") || !strings.HasSuffix(lines[1], ",3,false") {
		t.Errorf("the table is %q", table)
	}
}

// TestAcceptedPatterns: a folder and a pattern are accepted now and at the next analysis, and are
// reported again when the acceptance is withdrawn.
func TestAcceptedPatterns(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	corruptTiles(t, filepath.Join(ts.datasets, "tiles"), 3, 0, 1)
	corruptTiles(t, filepath.Join(ts.datasets, "tiles", "a_b"), 4, 1, 2)
	corruptTiles(t, filepath.Join(ts.datasets, "tiles", "axb"), 4, 3)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	corrupt := func() string { return strings.Join(paths(c.must(200, "GET", dataset+"/findings/corrupt", nil)), " ") }
	for _, test := range []struct{ accepted, left string }{
		{"a_b/", "axb/t03.tif t00.tif t01.tif"}, // the underscore is no wildcard
		{"*0?.tif", "a_b/t01.tif a_b/t02.tif axb/t03.tif t00.tif t01.tif"},
		{"t*1.tif", "a_b/t01.tif a_b/t02.tif axb/t03.tif t00.tif"},
		{"a*", "t00.tif t01.tif"},
		{".*", "a_b/t01.tif a_b/t02.tif axb/t03.tif t00.tif t01.tif"}, // the top folder is no hidden file
		{"./", "a_b/t01.tif a_b/t02.tif axb/t03.tif t00.tif t01.tif"},
		{"*", ""},
	} {
		a := c.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "corrupt", "path": test.accepted, "note": "known"})
		if got := corrupt(); got != test.left {
			t.Errorf("with %s: got %q, want %q", test.accepted, got, test.left)
		}
		report := c.must(200, "GET", dataset+"/report", nil)
		counted := c.must(200, "GET", "/api/v1/datasets", nil).items()[0]["report"].(map[string]any)["errors"]
		if want := float64(len(strings.Fields(test.left))); counted != want {
			t.Errorf("with %s: counted %v, want %v", test.accepted, counted, want)
		}
		c.analyze(dataset, map[string]bool{"force": true})
		if got := corrupt(); got != test.left {
			t.Errorf("with %s, analysed again: got %q, want %q", test.accepted, got, test.left)
		}
		if again := c.must(200, "GET", dataset+"/report", nil); fmt.Sprint(again.json["accepted"]) != fmt.Sprint(report.json["accepted"]) {
			t.Errorf("with %s: %s, analysed again: %s", test.accepted, report.body, again.body)
		}
		c.must(204, "DELETE", fmt.Sprint(dataset, "/accepted-findings/", a.items()[0]["id"]), nil)
	}
	if got, want := corrupt(), "a_b/t01.tif a_b/t02.tif axb/t03.tif t00.tif t01.tif"; got != want {
		t.Errorf("withdrawn: got %q, want %q", got, want)
	}
}

// TestAcceptedAsterisks: the path of a file is accepted whatever it looks like, and accepts nothing else.
func TestAcceptedAsterisks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	const file, folder = "a*b*c*d*e*f.tif", "x*x*x*x*x*"
	broken := utmTIFF(32632, 500_000, 5_200_000)[:60]
	dataset := ts.tilesIn(c, "tiles", file, broken, "a1b2c3d4e5f.tif", broken)
	for _, name := range []string{folder, "xxxxx"} {
		dir := filepath.Join(ts.datasets, "tiles", name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "in.tif"), broken, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	c.analyze(dataset, nil)
	accept := map[string]string{"code": "corrupt", "path": file, "note": "known"}
	c.must(201, "POST", dataset+"/accepted-findings", accept)
	accept["path"] = folder + "/"
	c.must(201, "POST", dataset+"/accepted-findings", accept)
	left := strings.Join(paths(c.must(200, "GET", dataset+"/findings/corrupt", nil)), " ")
	if want := "a1b2c3d4e5f.tif xxxxx/in.tif"; left != want {
		t.Errorf("got %q, want %q", left, want)
	}
}

// paths returns the paths of the items of a list.
func paths(a answer) (all []string) {
	for _, item := range a.items() {
		all = append(all, item["path"].(string))
	}
	return all
}

// TestManyFindings: of a kind only maxFlaws findings are stored. Totals are exact, also of what is
// accepted by folder.
func TestManyFindings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	var files []ElevationDatasetFileMeta
	for i := range maxFlaws + 2000 {
		m := ElevationDatasetFileMeta{Path: fmt.Sprintf("d%d/%06d.tif", i%2, i), extent: extent{Status: fileStatusCorrupt, Warnings: []string{}}}
		files = append(files, m)
	}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addChecked("tiles", files))
	if a := c.must(200, "GET", dataset+"/report", nil); a.json["findings"].([]any)[0].(map[string]any)["total"] != float64(maxFlaws+2000) {
		t.Errorf("%s", a.body)
	}
	c.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "corrupt", "path": "d0/", "note": "known"})
	if a := c.must(200, "GET", dataset+"/report", nil); a.json["findings"].([]any)[0].(map[string]any)["total"] != float64(maxFlaws/2+1000) {
		t.Errorf("d0 accepted: %s", a.body)
	}
}

// TestCanceledWhileChecking: an analysis whose ownership ends during the checks stores nothing of
// them, and another owner continues with the checks.
func TestCanceledWhileChecking(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 })
	c := ts.signIn("root", "all")
	corruptTiles(t, filepath.Join(ts.datasets, "tiles"), 5, 4)
	dataset := c.addDataset("tiles")
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	ctx := t.Context()
	claimed := must(ts.analyzer.claim(ctx, "00000000-0000-4000-8000-000000000001", oldestAnalysis))
	if err := ts.analyzer.merge(ctx, claimed); err != nil {
		t.Fatal(err)
	}
	if err := ts.analyzer.setStep(ctx, claimed, stepCheck); err != nil {
		t.Fatal(err)
	}
	if a := c.must(200, "GET", location, nil); a.text("state") != stateChecking {
		t.Errorf("in the step: %s", a.body)
	}
	ts.exec(`UPDATE analyses SET owner = NULL, owner_token = NULL`)
	if err := ts.analyzer.check(ctx, claimed); !errors.Is(err, errNotOurs) {
		t.Errorf("without ownership: %v", err)
	}
	if a := c.must(200, "GET", dataset+"/report", nil); a.text("verdict") != notChecked || a.text("running") != stateChecking {
		t.Errorf("before the next owner: %s", a.body)
	}
	if _, err := ts.analyzer.work(ctx, oldestAnalysis); err != nil {
		t.Fatal(err)
	}
	if a := c.must(200, "GET", location, nil); a.text("state") != stateSucceeded || counts(a) != [6]int{5, 5, 0, 0, 0, 1} {
		t.Errorf("after the next owner: %s", a.body)
	}
	if a := c.must(200, "GET", dataset+"/report", nil); a.text("verdict") != hasFindings {
		t.Errorf("after the next owner: %s", a.body)
	}
}

// TestChecksThatFail: if what the checks find cannot be stored, the analysis fails and says so.
func TestChecksThatFail(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.addFiles("tiles", []ElevationDatasetFileMeta{placedFile(t, "a.tif", 32632, 10, 0, 500_000, 0, -20, 5_300_000)})
	ts.exec(`UPDATE elevation_dataset_file_meta SET bbox = '{NaN,NaN,NaN,NaN}'`)
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only) VALUES (1, false, 'cairn', 'check', true)`)
	a := c.finished("/api/v1/datasets/1/analyses/1")
	if a.text("failure_code") != failureInternal || !strings.HasPrefix(a.text("failure"), "The ") {
		t.Errorf("%s", a.body)
	}
}

// TestCanceledAfterMassRemoval: an analysis that is canceled while its rows are checked has no failure.
func TestCanceledAfterMassRemoval(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 })
	c := ts.signIn("root", "all")
	ts.addFiles("tiles", nil)
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, step, state, failure_code, failure)
		VALUES (1, false, 'root', 'check', 'checking', 'mass_removal', 'not found')`)
	c.must(204, "DELETE", "/api/v1/datasets/1/analyses/1", nil)
	if a := c.must(200, "GET", "/api/v1/datasets/1/analyses/1", nil); a.text("state") != stateCanceled || a.json["failure"] != nil || a.json["failure_code"] != nil {
		t.Errorf("%s", a.body)
	}
}

// TestManyMissingTiles: a ring of tiles around many missing ones is checked at once, also if no name
// tells where a tile lies.
func TestManyMissingTiles(t *testing.T) {
	t.Parallel()
	s := newFileSet(0, storedExpectation{})
	const n = 3000
	add := func(x, y float64) {
		x, y = x*1000, y*1000
		s.add(fileRow{path: fmt.Sprint(len(s.files)), fileKind: fileKind{status: fileStatusOK, system: "EPSG:25832"}, hasBox: true,
			transform: [6]float64{10, 0, x, 0, -10, y + 1000}, box: [4]float64{x, y, x + 1000, y + 1000}})
	}
	for i := range n {
		add(float64(i), 0)
		add(float64(i), n)
		add(0, float64(i))
		add(n, float64(i))
	}
	if err := s.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if wanted := s.neighboursOfMissing(); len(wanted) != 0 || len(s.grids) != 1 || s.grids[0].Missing != (n-1)*(n-1) {
		t.Errorf("%d named, %d grids, %d missing", len(wanted), len(s.grids), s.grids[0].Missing)
	}
}

// TestTilesOfOneName: the rounded places of missing tiles may be equal; each has a name of its own.
func TestTilesOfOneName(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	var files []ElevationDatasetFileMeta
	for i := range 36 {
		x, y := float64(i%6), float64(i/6)
		isHole := x >= 2 && x < 4 && y >= 2 && y < 4
		if isHole {
			continue
		}
		m := placedFile(t, fmt.Sprintf("%02d.tif", i), 32632, 10, 0, 500_000, 0, -20, 5_300_000)
		x, y = 1e10+10*x, 1e10+10*y
		m.CRS, m.BBox, m.ResolutionM, m.BBoxAccuracyM = nil, nil, nil, nil
		m.Status, m.Reason = fileStatusNoBBox, new("its CRS is unknown")
		m.Transform, m.NativeBBox = []float64{0.1, 0, x, 0, -0.1, y + 10}, []float64{x, y, x + 10, y + 10}
		files = append(files, m)
	}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addChecked("tiles", files))
	if n := len(c.must(200, "GET", dataset+"/findings/missing", nil).items()); n != 4 {
		t.Errorf("%d missing tiles", n)
	}
}

// TestUpgradeKeepsFailure: the checks after an upgrade do not hide why the last analysis failed, nor
// what the one before could not examine.
func TestUpgradeKeepsFailure(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.addFiles("tiles", []ElevationDatasetFileMeta{placedFile(t, "a.tif", 32632, 10, 0, 500_000, 0, -20, 5_300_000)})
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, failure_code, failure, warnings)
		VALUES (1, false, 'root', 'failed', now(), 'dataset_unavailable', 'The directory is gone.',
			'{"a: b/: permission denied", "a: c/: permission denied", "The instance on h leaves the work to the others: x"}')`)
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only) VALUES (1, false, 'cairn', 'check', true)`)
	c.finished("/api/v1/datasets/1/analyses/2")
	if a := c.must(200, "GET", "/api/v1/datasets/1/report", nil); a.text("failure") != "The directory is gone." ||
		a.text("summary") != "the last analysis failed: The directory is gone. Before it: 1 of 1 file located; 2 not examined" {
		t.Errorf("%s", a.body)
	}
	if got := fmt.Sprint(paths(c.must(200, "GET", "/api/v1/datasets/1/findings/not_examined", nil))); got != "[a: b/ a: c/]" {
		t.Errorf("not examined: %s", got)
	}
}

// TestManyWarnings: an analysis keeps 100 warnings, so that the number of directories not examined may be larger.
func TestManyWarnings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.addFiles("tiles", []ElevationDatasetFileMeta{placedFile(t, "a.tif", 32632, 10, 0, 500_000, 0, -20, 5_300_000)})
	for i, test := range []struct {
		warnings    int
		notExamined string
	}{
		{99, "[Heights were not examined: 1 file not read yet. Checksums were not compared.]"},
		{100, "[Heights were not examined: 1 file not read yet. More directories may not have been examined: an analysis keeps 100 warnings. Checksums were not compared.]"},
	} {
		ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, warnings)
			SELECT 1, false, 'root', 'succeeded', now(), array_agg('a: ' || i || '/: permission denied')
			FROM generate_series(1, $1) i`, test.warnings)
		ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only) VALUES (1, false, 'cairn', 'check', true)`)
		c.finished(fmt.Sprint("/api/v1/datasets/1/analyses/", 2*i+2))
		a := c.must(200, "GET", "/api/v1/datasets/1/report", nil)
		if got := fmt.Sprint(a.json["not_examined"]); got != test.notExamined {
			t.Errorf("%d warnings: %s, want %s", test.warnings, got, test.notExamined)
		}
		if finding := a.json["findings"].([]any)[0].(map[string]any); finding["total"] != float64(test.warnings) {
			t.Errorf("%d warnings: %v", test.warnings, finding)
		}
	}
}

// TestChecksThatGoWrong: an error of the checks that is not the database's ends the analysis with its reason.
func TestChecksThatGoWrong(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.addFiles("tiles", []ElevationDatasetFileMeta{placedFile(t, "a.tif", 32632, 10, 0, 500_000, 0, -20, 5_300_000)})
	ts.exec(`INSERT INTO dataset_expectations (dataset_id, expectation) VALUES (1, '{"crs": 7}')`) // no text: it cannot be read
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only) VALUES (1, false, 'cairn', 'check', true)`)
	a := c.finished("/api/v1/datasets/1/analyses/1")
	if a.text("failure_code") != failureInternal || !strings.HasPrefix(a.text("failure"), "The checks failed: ") {
		t.Errorf("%s", a.body)
	}
}
