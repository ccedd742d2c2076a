package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// gridAt returns a small ASCII grid with its lower left corner there.
func gridAt(x, y float64) string {
	return fmt.Sprintf("ncols 4\nnrows 3\nxllcorner %v\nyllcorner %v\ncellsize 25\n1 2 3 4 5 6 7 8 9 10 11 12\n", x, y)
}

// write writes files below a folder of the dataset root, each an hour old.
func (ts *testServer) write(folder string, content map[string]string) {
	ts.t.Helper()
	old := time.Now().Add(-time.Hour)
	for name, text := range content {
		path := filepath.Join(ts.datasets, folder, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, old, old))
		if err != nil {
			ts.t.Fatal(err)
		}
	}
}

// idle waits until no analysis of a dataset runs, and returns the newest.
func (c client) idle(dataset string) (newest map[string]any) {
	c.t.Helper()
	waitFor(c.t, "the end of all analyses", func() bool {
		newest = c.must(200, "GET", dataset+"/analyses?limit=1", nil).items()[0]
		return newest["finished_at"] != nil
	})
	return newest
}

// about changes the description of a dataset.
func (c client) about(dataset, fields string, headers ...string) answer {
	c.t.Helper()
	return c.must(200, "PATCH", dataset, `{"about":`+fields+`}`, headers...)
}

// placesOf returns where the files of a dataset lie, without the names of their CRSs and sources.
func (c client) placesOf(dataset string) map[string]string {
	c.t.Helper()
	places := map[string]string{}
	for path, m := range c.files(dataset) {
		if m.Status != fileStatusSidecar {
			places[path] = plainExtent(c.t, m.extent)
		}
	}
	return places
}

// TestSetCRS: files that name no CRS lie where they would lie with a .prj beside them, once a CRS is set for the dataset or
// their folder. No file is read for that: the directory is away. Without the CRS, all is as before.
func TestSetCRS(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	const prj = `COMPD_CS["x",PROJCS["x",AUTHORITY["EPSG","%s"]],VERT_CS["y",AUTHORITY["EPSG","%s"]]]`
	alone, named := map[string]string{}, map[string]string{}
	for i := range 12 {
		// One is missing, one lies twice there, and one is cut off.
		name := fmt.Sprintf("a/t%02d", i)
		crs := [2]string{"2154", "5720"}
		if i >= 6 {
			name, crs = fmt.Sprintf("a/b/t%02d", i), [2]string{"32631", "5720"}
		}
		if i >= 10 {
			name, crs = fmt.Sprintf("ab/t%02d", i), [2]string{"2154", "5721"}
		}
		if i == 3 {
			continue
		}
		text := gridAt(float64(500000+100*(i%11)), 4600000)
		if i == 4 {
			text = strings.TrimSuffix(text, "12\n")
		}
		alone[name+".asc"], named[name+".asc"], named[name+".prj"] = text, text, fmt.Sprintf(prj, crs[0], crs[1])
		alone[name+".stx"] = "1" // as many files as there
	}
	ts.write("named", named)
	ts.write("alone", alone)
	want, set := root.addDataset("named"), root.addDataset("alone")
	root.analyze(want, nil)
	root.analyze(set, nil)
	before := root.placesOf(set)
	check(t, "findings before", len(root.reported(set)["no_extent"]), 10)

	if err := os.Rename(filepath.Join(ts.datasets, "alone"), filepath.Join(ts.datasets, "away")); err != nil {
		t.Fatal(err)
	}
	const fields = `{"default_crs":"EPSG:2154","default_vertical_crs":"EPSG:5720","folder_crs":[` +
		`{"folder":"/ab/","crs":"","vertical_crs":"EPSG:5721"},{"folder":"a/b","crs":"EPSG:32631","vertical_crs":""}]}`
	changed := root.about(set, fields)
	checkHas(t, "the dataset", string(changed.body), `"folder_crs":[{"folder":"a/b","crs":"EPSG:32631","vertical_crs":""},{"folder":"ab","crs":"","vertical_crs":"EPSG:5721"}]`)
	last := root.idle(set)
	check(t, "the analysis", fmt.Sprint(last["state"], " ", last["checks_only"], " ", last["counts"].(map[string]any)["changed"]), "succeeded true 11")
	if changes := root.must(200, "GET", fmt.Sprintf("%s/analyses/%v/changes", set, last["id"]), nil).items(); len(changes) != 11 {
		t.Errorf("%d changes", len(changes))
	}

	got := root.placesOf(set)
	places := root.placesOf(want)
	if !maps.Equal(got, places) {
		for path, place := range got {
			check(t, path, place, places[path])
		}
	}
	files := root.files(set)
	check(t, "source", *files["a/t00.asc"].Source, "the header of the ASCII grid; CRS set for the dataset; vertical CRS set for the dataset")

	reported := func(dataset string) string {
		found := root.reported(dataset)
		delete(found, "duplicate") // needs the files
		return fmt.Sprint(found)
	}
	check(t, "findings", reported(set), reported(want))

	// The footprints are those of files that name their CRS.
	feature := func(dataset, path string) string {
		features := root.must(200, "GET", dataset+"/footprints.geojson?path="+path, nil).json["features"].([]any)
		text, _ := json.Marshal(features[0].(map[string]any)["geometry"])
		return string(text)
	}
	check(t, "the footprint", feature(set, "a/b/t07.asc"), feature(want, "a/b/t07.asc"))

	// The same again changes nothing. Another CRS, and none, do.
	analyses := ts.queryInt(`SELECT count(*) FROM analyses`)
	root.about(set, fields)
	check(t, "analyses after the same again", ts.queryInt(`SELECT count(*) FROM analyses`), analyses)
	root.about(set, `{"default_crs":"EPSG:32630","folder_crs":[]}`)
	root.idle(set)
	check(t, "another CRS", *root.files(set)["a/b/t07.asc"].CRS, "EPSG:32630")
	root.about(set, `{"default_crs":"","default_vertical_crs":""}`)
	root.idle(set)
	if after := root.placesOf(set); !maps.Equal(after, before) {
		t.Errorf("without a CRS again: %v, want %v", after, before)
	}
	check(t, "findings without a CRS", len(root.reported(set)["no_extent"]), 10)

	// A file that is read again gets the CRS while it is read.
	root.about(set, `{"default_crs":"EPSG:2154"}`)
	root.idle(set)
	if err := os.Rename(filepath.Join(ts.datasets, "away"), filepath.Join(ts.datasets, "alone")); err != nil {
		t.Fatal(err)
	}
	ts.write("alone", map[string]string{"new.asc": gridAt(600000, 6600000)})
	a := root.analyze(set, `{"force":true}`)
	check(t, "counts", counts(a), [6]int{23, 1, 0, 22, 0, 1})
	check(t, "the new file", root.files(set)["new.asc"].Status, fileStatusOK)
}

// TestSetCRSRights: only who may manage datasets sets a CRS, of a dataset that they may see, and not over somebody else's
// change. A wrong one is refused. The audit log tells of each change.
func TestSetCRSRights(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.write("set", map[string]string{"a.asc": gridAt(700000, 6600000)})
	set := root.addDataset("set")
	root.analyze(set, nil)
	const body = `{"about":{"default_crs":"EPSG:2154"}}`

	ts.signIn("reader", datasetRead).refused(403, "permission_missing", "PATCH", set, body)
	root.must(201, "POST", "/api/v1/permissions", map[string]string{"name": "lidar.see", "meaning": "x"})
	root.must(200, "PATCH", set, `{"requires":"lidar.see"}`)
	other := ts.signIn("other", datasetRead, datasetManage, datasetAnalyze)
	hidden := other.refused(404, "not_found", "PATCH", set, body)
	absent := other.refused(404, "not_found", "PATCH", "/api/v1/datasets/2", body)
	check(t, "the refusal", hidden.text("detail"), strings.ReplaceAll(absent.text("detail"), "2", "1"))
	check(t, "analyses", ts.queryInt(`SELECT count(*) FROM analyses`), 1)

	tag := root.must(200, "GET", set, nil).header.Get("ETag")
	root.about(set, `{"default_crs":"EPSG:2154"}`, "If-Match: "+tag)
	root.refused(412, "stale", "PATCH", set, `{"about":{"default_crs":"EPSG:32631"}}`, "If-Match: "+tag)
	root.idle(set)
	check(t, "CRS", *root.files(set)["a.asc"].CRS, "EPSG:2154")
	audited := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.update' AND actor = 'root'
		AND before -> 'about' ->> 'default_crs' = '' AND after -> 'about' ->> 'default_crs' = 'EPSG:2154'`)
	check(t, "rows of the audit log", audited, 1)

	before := string(root.must(200, "GET", set, nil).body)
	for _, wrong := range []string{
		`{"default_crs":"EPSG:1"}`, `{"default_crs":"2154"}`, `{"default_crs":"EPSG:5720"}`, `{"default_crs":"EPSG:4978"}`, `{"default_crs":"EPSG:5698"}`,
		`{"default_crs":"EPSG:2154; DROP"}`, `{"default_vertical_crs":"EPSG:2154"}`, `{"default_vertical_crs":"EPSG:5698"}`, `{"default_vertical_crs":"height"}`,
		`{"default_crs":2154}`, `{"folder_crs":{}}`, `{"folder_crs":[{"folder":"a","crs":"EPSG:1"}]}`, `{"folder_crs":[{"folder":"","crs":"EPSG:2154"}]}`,
		`{"folder_crs":[{"folder":"../x","crs":"EPSG:2154"}]}`, `{"folder_crs":[{"folder":".","crs":"EPSG:2154"}]}`, `{"folder_crs":[{"folder":"a\u0000","crs":"EPSG:2154"}]}`,
		`{"folder_crs":[{"name":"a"}]}`,
		`{"folder_crs":[` + strings.Repeat(`{"folder":"a","crs":"EPSG:2154"},`, 100) + `{"folder":"b","crs":"EPSG:2154"}]}`,
	} {
		root.refused(422, "invalid", "PATCH", set, `{"about":`+wrong+`}`)
	}
	check(t, "the dataset after refused changes", string(root.must(200, "GET", set, nil).body), before)
}

// TestSetCRSOnPages: a folder of ASCII grids is on the map three clicks after it was registered.
func TestSetCRSOnPages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	grids := map[string]string{}
	for i := range 140 {
		grids[fmt.Sprintf("t%03d.asc", i)] = gridAt(float64(700000+100*(i%14)), float64(6600000+75*(i/14)))
	}
	ts.write("grids", grids)
	b := ts.browse("root")
	b.goes("/datasets/1?done=added", "/datasets", "name=grids&path=grids&description=")
	page := b.shows(200, "GET", "/datasets/1?done=added", "", `name="about.default_crs"`)

	// Click 1: save the form, with a CRS that was typed.
	b.goes("/datasets/1?done=saved", "/datasets/1", "about.default_crs=EPSG:2154&tag="+tagOn(t, page, "/datasets/1"))
	b.shows(200, "GET", "/datasets/1?done=saved", "", `action="/datasets/1/analyses"`, `value="EPSG:2154"`)

	// Click 2: start an analysis. Its page shows how it goes on.
	b.goes("/datasets/1/analyses/1?done=started", "/datasets/1/analyses", "")
	check(t, "the analysis", root.finished("/api/v1/datasets/1/analyses/1").text("state"), stateSucceeded)
	page = b.shows(200, "GET", "/datasets/1/analyses/1", "")
	link := regexp.MustCompile(`<a href="(/datasets/1)">`).FindStringSubmatch(page)
	if link == nil {
		t.Fatalf("no link to the dataset in %s", page)
	}

	// Click 3: go to the dataset.
	b.shows(200, "GET", link[1], "", `id="map"`, `data-part="/datasets/1?bbox=`, `>ok</span> 140<`)
	check(t, "files on the map", ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta WHERE bbox IS NOT NULL`), 140)

	// The page of a dataset that was analysed before needs one click.
	page = b.shows(200, "GET", "/datasets/1", "")
	b.goes("/datasets/1?done=saved", "/datasets/1", "about.default_crs=EPSG:32631&about.folder_crs=[]&tag="+tagOn(t, page, "/datasets/1"))
	root.idle("/api/v1/datasets/1")
	check(t, "files in the other CRS", ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta WHERE crs = 'EPSG:32631'`), 140)
	b.shows(422, "POST", "/datasets/1", "about.default_crs=EPSG:1", `value="EPSG:1"`, "must be the code of a known CRS")
}

// TestSetCRSCommand: one command registers a folder with its CRS, and one sets another, also for a folder in it.
func TestSetCRSCommand(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.write("grids", map[string]string{"a.asc": gridAt(700000, 6600000), "b/b.asc": gridAt(700000, 6600000)})
	said := func(want string, args ...string) {
		t.Helper()
		out, err := ts.command(append([]string{"dataset"}, args...)...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("cairn dataset %v: %s %v, want %s", args, out, err, want)
		}
	}
	codes := func(want string) {
		t.Helper()
		got, err := scalar[string](t.Context(), ts.db, "list", `SELECT string_agg(coalesce(crs, '-') || ' ' || coalesce(vertical_crs, '-'), ', ' ORDER BY path)
			FROM elevation_dataset_file_meta`)
		if err != nil {
			t.Fatal(err)
		}
		check(t, "CRSs", got, want)
	}

	said("2 of 2 files located", "add", filepath.Join(ts.datasets, "grids"), "--crs", "EPSG:2154")
	codes("EPSG:2154 -, EPSG:2154 -")
	said("2 files, 0 added, 2 changed", "set", "grids", "--vertical-crs", "EPSG:5720")
	codes("EPSG:2154 EPSG:5720, EPSG:2154 EPSG:5720")
	said("1 changed", "set", "grids", "--crs", "EPSG:32631", "--folder", "b/")
	codes("EPSG:2154 EPSG:5720, EPSG:32631 EPSG:5720")
	said("1 changed", "set", "grids", "--crs", "EPSG:32631", "--vertical-crs", "EPSG:5721", "--folder", "b")
	codes("EPSG:2154 EPSG:5720, EPSG:32631 EPSG:5721")
	said(`"folder_crs":[]`, "set", "grids", "--vertical-crs", "", "--crs", "", "--folder", "b", "--json")
	waitFor(t, "the analysis", func() bool { return ts.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL`) == 0 })
	codes("EPSG:2154 EPSG:5720, EPSG:2154 EPSG:5720")
	for _, args := range [][]string{{"--crs", "EPSG:1"}, {"--crs", "EPSG:2154", "--about", "/dev/null"}} {
		if out, err := ts.command(append([]string{"dataset", "set", "grids"}, args...)...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

// TestSetCRSAtAnyTime: whatever changes while analyses run, in the end each file has the CRS that is set for it.
func TestSetCRSAtAnyTime(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	grids := map[string]string{}
	for i := range 40 {
		grids[fmt.Sprintf("%c/t%d.asc", 'a'+i%3, i)] = gridAt(float64(700000+100*i), 6600000)
	}
	ts.write("set", grids)
	set := root.addDataset("set")
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	code := func() string { return pick("", "EPSG:2154", "EPSG:32631", "EPSG:2157") }
	var about datasetAbout
	for step := range 60 {
		switch random.IntN(4) {
		case 0:
			root.do("POST", set+"/analyses", fmt.Sprintf(`{"force":%v}`, random.IntN(2) == 0))
		case 1:
			root.about(set, fmt.Sprintf(`{"default_crs":%q,"default_vertical_crs":%q}`, code(), pick("", "EPSG:5720", "EPSG:5721")))
		case 2:
			root.about(set, fmt.Sprintf(`{"folder_crs":[{"folder":%q,"crs":%q,"vertical_crs":""}]}`, pick("a", "b", "c"), code()))
		case 3:
			root.do("DELETE", fmt.Sprintf("%s/analyses/%d", set, ts.queryInt(`SELECT coalesce(max(id), 1) FROM analyses`)), nil)
		}
		if step%10 != 9 {
			continue
		}

		// An analysis that was canceled may leave some for the next.
		root.do("POST", set+"/analyses", `{}`)
		root.idle(set)
		d := root.must(200, "GET", set, nil)
		var shown struct{ About datasetAbout }
		if err := json.Unmarshal(d.body, &shown); err != nil {
			t.Fatal(err)
		}
		about = shown.About
		for path, m := range root.files(set) {
			crs, vertical := about.of(path)
			want := files{"a.asc": grids[path]}.read("a.asc", 0)
			want.assume(crs, vertical, "a.asc", new(lastCRS))
			check(t, path, plainExtent(t, m.extent), plainExtent(t, want))
		}
	}
}

// TestSurveyInExports: items have the time of the survey, by which a search finds them. The table and the footprints have
// the license and the survey.
func TestSurveyInExports(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	for _, name := range []string{"old", "new", "open", "plain"} {
		ts.write(name, map[string]string{"a.tif": string(geographicTIFF(3, 42))})
		root.analyze(root.addDataset(name), nil)
	}
	root.about("/api/v1/datasets/1", `{"license":"CC-BY-4.0","surveyed_from":"2011-03-01","surveyed_until":"2011-04-30","default_vertical_crs":"EPSG:5720"}`)
	root.about("/api/v1/datasets/2", `{"license":"MIT OR Apache-2.0","surveyed_from":"2024-03-01","surveyed_until":"2024-03-01"}`)
	root.about("/api/v1/datasets/3", `{"license":"https://example.org/l","surveyed_from":"2012-01-01"}`)
	root.idle("/api/v1/datasets/1")

	properties := func(id int) map[string]any {
		a := root.must(200, "GET", fmt.Sprintf("/api/v1/stac/collections/%d/items", id), nil)
		return a.json["features"].([]any)[0].(map[string]any)["properties"].(map[string]any)
	}
	times := func(id int) string {
		p := properties(id)
		return fmt.Sprint(p["datetime"], " ", p["start_datetime"], " ", p["end_datetime"], " ", p["license"])
	}
	check(t, "times of an item", times(1), "<nil> 2011-03-01T00:00:00Z 2011-04-30T23:59:59Z CC-BY-4.0")
	check(t, "times of an item of one day", times(2), "<nil> 2024-03-01T00:00:00Z 2024-03-01T23:59:59Z various")
	check(t, "vertical CRS", properties(1)["vertical_crs"], any("EPSG:5720"))
	modified := root.files("/api/v1/datasets/3")["a.tif"].ModifiedAt.Truncate(time.Millisecond).Format(time.RFC3339Nano)
	check(t, "times without an end", times(3), modified+" <nil> <nil> proprietary")
	item := root.must(200, "GET", "/api/v1/stac/collections/1/items/1", nil)
	check(t, "an item by its id", item.json["properties"].(map[string]any)["end_datetime"], any("2011-04-30T23:59:59Z"))

	found := func(query string) (names []string) {
		for _, feature := range root.must(200, "GET", "/api/v1/stac/"+query, nil).json["features"].([]any) {
			names = append(names, feature.(map[string]any)["collection"].(string))
		}
		slices.Sort(names)
		return names
	}
	now := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	for query, want := range map[string]string{
		"search?datetime=2011-04-15T00:00:00Z":                                                                            "[1]",
		"search?datetime=2011-04-30T23:59:59Z/2024-03-01T00:00:00Z":                                                       "[1 2]",
		"search?datetime=../2011-03-01T00:00:00Z":                                                                         "[1]",
		"search?datetime=../2011-02-28T23:59:59Z":                                                                         "[]",
		"search?datetime=2011-05-01T00:00:00Z/2024-02-29T23:59:59Z":                                                       "[]",
		"search?datetime=2024-03-01T12:00:00Z/..":                                                                         "[2 3 4]",
		"search?datetime=" + now + "/..":                                                                                  "[3 4]",
		"search?collections=1,4&datetime=" + now + "/..":                                                                  "[4]",
		"search?bbox=0,40,10,50&datetime=2011-04-15T00:00:00Z":                                                            "[1]",
		"collections/1/items?datetime=2011-04-15T00:00:00Z":                                                               "[1]",
		"collections/1/items?datetime=" + now + "/..":                                                                     "[]",
		"collections/4/items?datetime=" + now + "/..":                                                                     "[4]",
		"collections/4/items?datetime=2011-04-15T00:00:00Z":                                                               "[]",
		"search?datetime=2011-04-15T00:00:00Z&intersects=" + url.QueryEscape(`{"type":"Point","coordinates":[3.1,41.9]}`): "[1]",
	} {
		check(t, query, fmt.Sprint(found(query)), want)
	}
	check(t, "matched", root.must(200, "GET", "/api/v1/stac/search?datetime="+now+"/..&limit=1", nil).json["numberMatched"], any(2.0))

	table, err := csv.NewReader(strings.NewReader(string(root.must(200, "GET", "/api/v1/datasets/1/files.csv", nil).body))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	n := slices.Index(table[0], "license")
	check(t, "the table", fmt.Sprint(table[0][n:n+3], table[1][n:n+3]), "[license surveyed_from surveyed_until] [CC-BY-4.0 2011-03-01 2011-04-30]")
	for id, want := range map[int]string{1: "CC-BY-4.0 2011-03-01 2011-04-30", 4: "<nil> <nil> <nil>"} {
		features := root.must(200, "GET", fmt.Sprintf("/api/v1/datasets/%d/footprints.geojson", id), nil).json["features"].([]any)
		p := features[0].(map[string]any)["properties"].(map[string]any)
		check(t, "the footprint", fmt.Sprint(p["license"], " ", p["surveyed_from"], " ", p["surveyed_until"]), want)
	}
}

// TestSetCRSWhileAnAnalysisFails: a CRS that is set while an analysis runs is used also if that analysis fails, unless it
// fails in its checks, or only checks: then nothing is queued, because the next one would fail in the same way.
func TestSetCRSWhileAnAnalysisFails(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name       string
		change     string // of the analysis that fails
		wantQueued int
	}{
		{"while it reads", `UPDATE analyses SET step = 'merge' WHERE id = $1`, 1},
		{"in its checks", `UPDATE analyses SET step = 'check' WHERE id = $1`, 0},
		{"when it only checks", `UPDATE analyses SET checks_only = true WHERE id = $1`, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ts := startServer(t, func(o *options) { o.workers = 0 })
			c := ts.signIn("root", "all")
			dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addChecked("tiles", nil))
			c.must(202, "POST", dataset+"/analyses", nil)
			claimed := must(ts.analyzer.claim(t.Context(), "00000000-0000-4000-8000-000000000001", oldestAnalysis))
			ts.exec(row.change, claimed.AnalysisID)
			c.must(200, "PATCH", dataset, map[string]any{"about": map[string]any{"default_crs": "EPSG:2154"}})
			ts.analyzer.settle(t.Context(), claimed, unavailable("gone"))

			failed := ts.queryInt(`SELECT count(*) FROM analyses WHERE state = 'failed'`)
			check(t, "failed", failed, 1)
			queued := ts.queryInt(`SELECT count(*) FROM analyses WHERE checks_only AND state = 'queued'`)
			check(t, "queued", queued, row.wantQueued)
		})
	}
}
