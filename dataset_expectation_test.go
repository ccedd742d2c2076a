package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// square returns a GeoJSON Polygon around a range of degrees.
func square(west, south, east, north float64) json.RawMessage {
	text, _ := json.Marshal(map[string]any{"type": "Polygon", "coordinates": [][][2]float64{
		{{west, south}, {east, south}, {east, north}, {west, north}, {west, south}}}})
	return text
}

// TestSpecification: each line of a specification passes on a clean delivery, and names the files that differ.
func TestSpecification(t *testing.T) {
	for _, d := range deliveries() {
		if d.name != "UTM" {
			continue
		}
		specified := expectation{CRS: "EPSG:25832", VerticalCRS: "EPSG:5773", Posting: "1", SampleType: "float32", Nodata: "-9999",
			Width: "1000", Height: "1000", Name: "dgm1_{zone}_{e}_{n}_1_by.tif"}
		s, found := d.checkExpecting(t, specified)
		for _, line := range s.lines {
			if !line.Passed {
				t.Errorf("%s %s: %s", line.Name, line.Expected, line.Detail)
			}
		}
		if len(s.lines) != 8 || len(found) != 0 {
			t.Errorf("%d lines, found %.300v", len(s.lines), found)
		}

		specified = expectation{CRS: "EPSG:25833", VerticalCRS: "EPSG:7837", Posting: "2", SampleType: "int16", Nodata: "0", Width: "999",
			Height: "1001", Name: "dgm1_{e}_{n}.tif"}
		s, found = d.checkExpecting(t, specified)
		for _, line := range s.lines {
			if line.Passed || line.Detail != "1024 of 1024 files differ" {
				t.Errorf("%s %s: %s", line.Name, line.Expected, line.Detail)
			}
		}
		first := "lot1/dgm1_32_500_5400_1_by.tif: CRS EPSG:25832 (ETRS89 / UTM zone 32N), not EPSG:25833 (ETRS89 / UTM zone 33N); " +
			"vertical CRS EPSG:5773 (EGM96 height), not EPSG:7837 (DHHN2016 height); posting 1, not 2; data type float32, not int16; nodata -9999, not 0; " +
			"width 1000, not 999; height 1000, not 1001; name another, not dgm1_{e}_{n}.tif"
		if got := found[findingSpecification]; len(got) != 1024 || got[0] != first {
			t.Errorf("%d findings, the first is\n%q, want\n%q", len(got), got[0], first)
		}

		// What is specified is not compared with what is usual.
		for name, row := range d.rows {
			row.sampleType = "int16"
			if strings.HasSuffix(name, "5400_1_by.tif") {
				row.nodata = "0"
			}
		}
		_, found = d.checkExpecting(t, expectation{Nodata: "-9999", SampleType: "int16"})
		if len(found) != 1 || len(found[findingSpecification]) != 32 {
			t.Errorf("found %v", found)
		}
	}
}

// TestBoundary: the missing tiles are those inside the boundary, also at its edges and where no tile encloses them.
func TestBoundary(t *testing.T) {
	tests := []struct {
		name     string
		boundary json.RawMessage
		without  [][2]int // column and row of a tile that is left out
		missing  []string
		detail   string
	}{
		{"along the edges", square(0, 0, 4, 4), nil, nil, "100 %, 0 tiles missing"},
		{"a corner", square(0, 0, 4, 4), [][2]int{{3, 3}}, []string{"EPSG:4326 3 3"}, "93.75 %, 1 tile missing"},
		{"a row beyond the tiles", square(0, 0, 4, 5), nil,
			[]string{"EPSG:4326 0 4", "EPSG:4326 1 4", "EPSG:4326 2 4", "EPSG:4326 3 4"}, "80 %, 4 tiles missing"},
		{"a gap outside", square(0, 0, 1, 4), [][2]int{{2, 2}}, nil, "100 %, 0 tiles missing"},
		{"half of a cell", square(0, 0, 4.5, 1), nil, []string{"EPSG:4326 4 0"}, "88.88 %, 1 tile missing"},
		{"a sliver", square(0, 0, 4.005, 1), nil, nil, "100 %, 0 tiles missing"},
		{"slivers of nested areas", json.RawMessage(`{"type":"FeatureCollection","features":[` + strings.Repeat(`{"type":"Feature","geometry":`+string(square(0, 0, 4.005, 1))+`},`, 2) +
			`{"type":"Feature","geometry":` + string(square(0, 0, 4.005, 2)) + `}]}`), nil, nil, "100 %, 0 tiles missing"},
		{"less than a hundredth of a tile", square(1.5, 1.5, 1.59, 1.59), nil, nil, "100 %, 0 tiles missing"},
		{"less than a hundredth of a missing tile", square(8.5, 1.5, 8.59, 1.59), nil, []string{"EPSG:4326 8 1"}, "0 %, 1 tile missing"},
		{"crossed rings", json.RawMessage(`{"type":"Polygon","coordinates":[[[0,0],[8,4],[8,0],[0,4],[0,0]]]}`), nil, nil,
			"it cannot be compared with the grid: its rings cross, or a hole lies outside"},
		{"many long edges", json.RawMessage(`{"type":"MultiPolygon","coordinates":[` + strings.Repeat(`[[[-179,-80],[179,-80],[179,80],[-179,-80]]],`, 100) +
			`[[[0,0],[4,0],[4,4],[0,0]]]]}`), nil, nil, "it cannot be compared with the grid: its edges are too long"},
		{"no area", json.RawMessage(`{"type":"Polygon","coordinates":[[[0,0],[1,1],[2,2],[0,0]]]}`), nil, nil, "it cannot be compared with the grid: it has no area"},
		{"a small part missing", json.RawMessage(`{"type":"MultiPolygon","coordinates":[[[[0,0],[4,0],[4,4],[0,4],[0,0]]],[[[8.5,0.1],[8.501,0.1],[8.501,0.101],[8.5,0.101],[8.5,0.1]]]]}`),
			nil, []string{"EPSG:4326 8 0"}, "99.99 %, 1 tile missing"},
		{"elsewhere", square(100, 0, 101, 1), nil, []string{"EPSG:4326 100 0"}, "0 %, 1 tile missing"},
		{"a hole", json.RawMessage(`{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,4],[0,0]],[[2,2],[3,2],[3,3],[2,3],[2,2]]]}`), [][2]int{{2, 2}}, nil, "100 %, 0 tiles missing"},
		{"features", json.RawMessage(`{"type":"FeatureCollection","features":[{"type":"Feature","properties":{"name":"a,b"},"geometry":` + string(square(0, 0, 1, 1)) +
			`},{"type":"Feature","properties":null,"geometry":` + string(square(5, 0, 6, 1)) + `}]}`), nil, []string{"EPSG:4326 5 0"}, "50 %, 1 tile missing"},
		{"too fine", square(-180, -90, 180, 90), nil, nil, "it cannot be compared with the grid: it has too many cells of the grid"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := delivery{"degrees", map[string]*fileRow{}}
			size := 1.0
			if test.name == "too fine" {
				size = 1e-5
			}
			for column := range 4 {
				for row := range 4 {
					d.tile(fmt.Sprintf("%d_%d.tif", column, row), "EPSG:4326", float64(column)*size, float64(row)*size, size, size, size/100, size/100)
				}
			}
			for _, at := range test.without {
				delete(d.rows, fmt.Sprintf("%d_%d.tif", at[0], at[1]))
			}
			s, found := d.checkExpecting(t, expectation{Boundary: &test.boundary})
			line := s.lines[0]
			if strings.HasPrefix(test.detail, "it cannot") {
				if line.Passed || line.Detail != test.detail || len(found[findingSpecification]) != 1 {
					t.Errorf("%+v, found %v", line, found)
				}
				return
			}
			if got := found[findingMissing]; fmt.Sprint(got) != fmt.Sprint(test.missing) {
				t.Errorf("missing %q, want %q", got, test.missing)
			}
			if line.Detail != test.detail || line.Passed != (test.missing == nil) {
				t.Errorf("%+v, want %s", line, test.detail)
			}
		})
	}

	// Without a grid, nothing can be said about the boundary, and without heights nothing about them. This is one
	// finding, because its path is that of the whole dataset.
	d := delivery{"single", map[string]*fileRow{}}
	d.tile("a.tif", "EPSG:4326", 0, 0, 1, 1, 0.01, 0.01)
	boundary := square(0, 0, 1, 1)
	s, found := d.checkExpecting(t, expectation{Boundary: &boundary})
	if s.lines[0].Passed || fmt.Sprint(found[findingSpecification]) != "[.: boundary: the tiles form no grid]" {
		t.Errorf("%+v, found %v", s.lines, found)
	}
	s, found = d.checkExpecting(t, expectation{Boundary: &boundary, Heights: "0 to 10"})
	if s.lines[0].Passed || fmt.Sprint(found[findingSpecification]) != "[.: heights: not all were read: 1 file not read yet; boundary: the tiles form no grid]" {
		t.Errorf("%+v, found %v", s.lines, found)
	}
}

// TestBoundaryAround: columns around the globe may be counted from anywhere.
func TestBoundaryAround(t *testing.T) {
	const worldWidth = 2 * math.Pi * 6378137
	tests := []struct {
		name        string
		system      string
		west, size  float64
		boundary    string
		wantMissing string
	}{
		{"from 0° to 360°", "EPSG:4326", 350, 1, `[[[-10,0],[-6,0],[-6,4],[-10,4],[-10,0]]]`, "[]"},
		{"east past 180°", "EPSG:4326", 178, 1, `[[[178,0],[180,0],[180,4],[178,4],[178,0]]],[[[-180,0],[-178,0],[-178,4],[-180,4],[-180,0]]]`, "[]"},
		{"west past 180°", "EPSG:4326", -182, 1, `[[[178,0],[180,0],[180,4],[178,4],[178,0]]],[[[-180,0],[-178,0],[-178,4],[-180,4],[-180,0]]]`, "[]"},
		{"a tile missing past 180°", "EPSG:4326", 178, 1, `[[[178,0],[180,0],[180,4],[178,4],[178,0]]],[[[-180,0],[-177,0],[-177,1],[-180,1],[-180,0]]]`,
			"[EPSG:4326 -178 0]"},
		{"across the edge of a map", "EPSG:3832", 38 * worldWidth / 80, worldWidth / 80, `[[[-38.9,1],[-21.1,1],[-21.1,17],[-38.9,17],[-38.9,1]]]`, "[]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := delivery{"around", map[string]*fileRow{}}
			for column := range 4 {
				for row := range 4 {
					d.tile(fmt.Sprintf("%d_%d.tif", column, row), test.system, test.west+float64(column)*test.size, float64(row)*test.size, test.size, test.size, test.size/100, test.size/100)
				}
			}
			boundary := json.RawMessage(`{"type":"MultiPolygon","coordinates":[` + test.boundary + `]}`)
			s, found := d.checkExpecting(t, expectation{Boundary: &boundary})
			if got := fmt.Sprint(found["missing"]); got != test.wantMissing {
				t.Errorf("missing %s, want %s; %+v", got, test.wantMissing, s.lines)
			}
		})
	}
}

// TestExpectationPlain: values that mean the same are written as the rows of files have them.
func TestExpectationPlain(t *testing.T) {
	for _, test := range []struct{ in, want expectation }{
		{expectation{CRS: "EPSG:04326"}, expectation{CRS: "EPSG:4326"}},
		{expectation{CRS: "EPSG:4979"}, expectation{CRS: "EPSG:4326", VerticalCRS: ellipsoidal}},
		{expectation{VerticalCRS: "EPSG:+5773"}, expectation{VerticalCRS: "EPSG:5773"}},
		{expectation{SampleType: "Float32"}, expectation{SampleType: "float32"}},
		{expectation{Width: "0100", Height: "1"}, expectation{Width: "100", Height: "1"}},
		{expectation{Posting: "0.010 × 0.02"}, expectation{Posting: "0.01 × 0.02"}},
		{expectation{Posting: "1x1"}, expectation{Posting: "1"}},
		{expectation{Posting: " "}, expectation{}},
		{expectation{Heights: "-10.0,3000"}, expectation{Heights: "-10 to 3000"}},
		{expectation{Heights: " -0.5 to -0.5 "}, expectation{Heights: "-0.5 to -0.5"}},
	} {
		got := test.in
		if err := got.check(); err != nil || got != test.want {
			t.Errorf("%+v: got %+v, %v", test.in, got, err)
		}
	}
	for _, wrong := range []expectation{{CRS: "EPSG:7405"}, {CRS: "EPSG:5773"}, {Name: "a{b"}, {Name: "a}b"}, {Name: "{{n}}"}, {Posting: "1 1 1"}, {Posting: "1 ×"}, {Posting: "Inf"},
		{Heights: "10 to 9"}, {Heights: "1 to"}, {Heights: "1"}, {Heights: "0 to 1 to 2"}, {Heights: "NaN to 1"}, {Heights: "0 to Inf"}, {Heights: "low to high"}} {
		before := wrong
		if err := wrong.check(); err == nil && before.Posting != "1 ×" {
			t.Errorf("%+v is accepted", before)
		}
	}
	for pattern, names := range map[string][2]string{
		"{n}{e}.hgt": {"N47E011.hgt", "N47E011.hgt2"}, "a+{Zone-1}.(tif)": {"a+32.(tif)", "aa32.(tif)"}, "x_{}_{ü}.tif": {"x_1_2.tif", "x_1_.tif"},
	} {
		matches := expectation{Name: pattern}.namePattern().MatchString
		if !matches(names[0]) || matches(names[1]) {
			t.Errorf("%s: %q %v, %q %v", pattern, names[0], matches(names[0]), names[1], matches(names[1]))
		}
	}
	if !isSameNumber("nan", "NaN") || !isSameNumber("-9999", "-9999.0") || isSameNumber("1", "2") || isSameNumber("a", "a") {
		t.Error("isSameNumber is wrong")
	}
}

// TestBoundaryRandom compares the shares of cells inside random polygons with the shares of random points.
func TestBoundaryRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(28, 6))
	for round := range soakOr(200, 20) {
		// A star around a middle, with or without a hole, on an UTM grid.
		middle := position{9 + random.Float64()*0.02, 48 + random.Float64()*0.02}
		star := func(least, most float64) (ring []position) {
			n := 3 + random.IntN(40)
			for i := range n {
				sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(n))
				far := least + (most-least)*random.Float64()
				ring = append(ring, position{middle[0] + far*cos*1.5, middle[1] + far*sin})
			}
			return append(ring, ring[0])
		}
		boundary := area{{star(0.02, 0.1)}}
		if round%2 == 0 {
			boundary[0] = append(boundary[0], star(0.005, 0.019))
		}
		g := tileGrid{CRS: "EPSG:25832", X: 500_000, Y: 5_300_000, East: 1000 + 1000*random.Float64(), North: 1000, DX: 1, DY: 1}
		cells := &cellsWithin{shares: map[cellRun]float64{}}
		if err := g.addCells(t.Context(), cells, boundary[0]); err != nil {
			t.Fatal(err)
		}

		crs := crsOf(t, 25832)
		isIn := map[[2]int64]bool{}
		for _, run := range cells.runs {
			for column := run.From; column <= run.To; column++ {
				isIn[[2]int64{run.Row, column}] = true
			}
		}
		for range 200 {
			column, row := int64(random.IntN(40)-20), int64(random.IntN(40)-10)
			const tried = 400
			inside := 0
			for range tried {
				lon, lat, _ := crs.projection.inverse(g.X+(float64(column)+random.Float64())*g.East, g.Y+(float64(row)+random.Float64())*g.North)
				if isInside(position{lon, lat}, boundary[0]) {
					inside++
				}
			}
			share := float64(inside) / tried
			got, isPartly := cells.shares[cellRun{row, column, column}]
			if !isPartly && isIn[[2]int64{row, column}] {
				got = 1
			}
			if math.Abs(got-share) > 0.12 {
				t.Errorf("round %d: column %d, row %d: %.3f inside, want %.3f", round, column, row, got, share)
			}
		}
	}
}

// startColumn starts a service with a dataset of five tiles, one above the other, each 1° wide and 0.75° high. The lowest
// begins at 0° E, 0° N. It is not analysed.
func startColumn(t *testing.T) (ts *testServer, c client, dataset string) {
	t.Helper()
	ts = startServer(t, nil)
	dir := filepath.Join(ts.datasets, "tiles")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("t%d.tif", i)), geographicTIFF(0, float64(i+1)*0.75), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c = ts.signIn("root", "all")
	return ts, c, c.addDataset("tiles")
}

// TestExpectation sets what is expected by the API, and reads what the report says.
func TestExpectation(t *testing.T) {
	t.Parallel()
	ts, c, dataset := startColumn(t)
	c.analyze(dataset, nil)
	report, path := dataset+"/report", dataset+"/expectation"
	if a := c.must(200, "GET", path, nil); a.json["updated_at"] != nil || a.text("crs") != "" || a.json["boundary"] != nil {
		t.Errorf("at first: %s", a.body)
	}
	expected := func(want ...string) {
		t.Helper()
		var got []string
		waitFor(t, "the checks", func() bool {
			a := c.must(200, "GET", report, nil)
			got = nil
			for _, line := range a.json["expected"].([]any) {
				l := line.(map[string]any)
				got = append(got, fmt.Sprintf("%v %v %v: %v", l["passed"], l["name"], l["expected"], l["detail"]))
			}
			return a.json["running"] == nil
		})
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("got %q, want %q", got, want)
		}
	}

	c.must(200, "PATCH", path, map[string]any{"posting": "1.0", "boundary": square(-1, 0, 2, 3.75)})
	expected("false posting 1: 5 of 5 files differ", "false boundary 100 % covered: 33.33 %, 10 tiles missing")
	analyses := c.must(200, "GET", dataset+"/analyses", nil).items()
	if len(analyses) != 2 || analyses[0]["checks_only"] != true {
		t.Errorf("%d analyses; the last: %v", len(analyses), analyses[0])
	}
	a := c.must(200, "GET", path, nil)
	if a.text("posting") != "1" || !strings.Contains(string(a.body), `"type":"MultiPolygon"`) {
		t.Errorf("set: %.300s", a.body)
	}

	// The same again changes nothing. Empty values and null take back what was expected.
	c.must(200, "PATCH", path, map[string]any{"posting": "1"})
	if n := len(c.must(200, "GET", dataset+"/analyses", nil).items()); n != 2 {
		t.Errorf("%d analyses after the same again", n)
	}
	// So does a boundary that is sent as it is stored, but not with another corner.
	stored := map[string]any{"coordinates": [][][][2]float64{{{{-1, 0}, {2, 0}, {2, 3.75}, {-1, 3.75}, {-1, 0}}}}, "type": "MultiPolygon"}
	c.must(200, "PATCH", path, map[string]any{"boundary": stored})
	if n := len(c.must(200, "GET", dataset+"/analyses", nil).items()); n != 2 {
		t.Errorf("%d analyses after the same boundary again", n)
	}
	stored["coordinates"] = [][][][2]float64{{{{0, 0}, {1, 0}, {1, 3.75}, {0, 3.75}, {0, 0}}}}
	c.must(200, "PATCH", path, map[string]any{"boundary": stored})
	expected("false posting 1: 5 of 5 files differ", "true boundary 100 % covered: 100 %, 0 tiles missing")
	c.must(200, "PATCH", path, map[string]any{"posting": "", "boundary": nil, "crs": "EPSG:4326"})
	expected("true CRS EPSG:4326 (WGS 84): 0 of 5 files differ")
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.expect'`); n != 3 {
		t.Errorf("%d rows of the audit log, want 3", n)
	}

	for _, wrong := range []map[string]any{
		{"crs": "EPSG:1"}, {"crs": "a\nb"}, {"posting": "0"}, {"posting": "one"}, {"posting": "NaN"}, {"crs": "EPSG:5773"}, {"width": "-1"}, {"height": "1e3"},
		{"name": "a/b"}, {"name": strings.Repeat("a", 201)}, {"boundary": map[string]any{"type": "Point", "coordinates": []int{1, 2}}},
		{"boundary": square(-181, 0, 1, 1)}, {"boundary": square(0, 0, 1, 91)}, {"boundary": "text"}, {"boundary": []int{1}},
		{"boundary": map[string]any{"type": "FeatureCollection", "features": []any{}}},
		{"boundary": map[string]any{"type": "Feature", "geometry": nil}},
	} {
		c.refused(422, "invalid", "PATCH", path, wrong)
	}
	c.refused(400, "wrong_type", "PATCH", path, map[string]any{"posting": 1})
	c.refused(400, "unknown_field", "PATCH", path, map[string]any{"updated_at": "2026-01-01T00:00:00Z"})
	c.refused(413, "body_too_large", "PATCH", path, map[string]any{"name": strings.Repeat("a", 1<<20)})
	c.refused(404, "not_found", "PATCH", "/api/v1/datasets/999/expectation", map[string]any{"crs": ""})
	c.refused(404, "not_found", "GET", "/api/v1/datasets/999/expectation", nil)

	var corners [][2]float64
	for i := range maxBoundaryCorners {
		sin, cos := math.Sincos(float64(i))
		corners = append(corners, [2]float64{cos, sin})
	}
	star := func(n int) any {
		ring := append(slices.Clone(corners[:n-1]), corners[0])
		return map[string]any{"boundary": map[string]any{"type": "Polygon", "coordinates": [][][2]float64{ring}}}
	}
	c.refused(422, "invalid", "PATCH", path, star(maxBoundaryCorners+1))
	c.must(200, "PATCH", path, star(maxBoundaryCorners))
}

// TestExpectationWhileChecked: if the expectation changes while the files are compared with the former one, they are
// checked again. So they are if that analysis is canceled. If the checks are canceled, too, the report says that it is
// outdated until somebody asks for them.
func TestExpectationWhileChecked(t *testing.T) {
	t.Parallel()
	ts, c, location := startColumn(t)
	c.analyze(location, nil)
	resume := ts.ownsNothing()
	id, _ := strconv.ParseInt(path.Base(location), 10, 64)
	expect := func(size string) int64 {
		_, analysis, err := changeExpectation(t.Context(), ts.db, operatorActor(), id, func(e *expectation) error {
			e.Posting = size
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return analysis
	}
	analysis := expect("2")
	found, err := ts.analyzer.catalogue.findResults(t.Context(), ts.db, dataset{ID: id}, analysis)
	if err != nil {
		t.Fatal(err)
	}
	if again := expect("3"); again != 0 {
		t.Errorf("analysis %d was queued beside %d", again, analysis)
	}
	const claim = `UPDATE analyses SET owner = $1, owner_token = '00000000-0000-0000-0000-000000000001', state = 'checking' WHERE id = $2`
	ts.exec(claim, ts.analyzer.instance, analysis)
	err = ts.analyzer.storeResults(t.Context(), task{AnalysisID: analysis, DatasetID: id, Token: "00000000-0000-0000-0000-000000000001"}, found)
	if err != nil {
		t.Fatal(err)
	}
	if n := ts.queryInt(`SELECT count(*) FROM analyses WHERE checks_only AND finished_at IS NULL`); n != 1 {
		t.Errorf("%d analyses were queued, want 1", n)
	}

	// A real analysis ends one that only checks.
	a := c.must(202, "POST", location+"/analyses", nil)
	if n := ts.queryInt(`SELECT count(*) FROM analyses WHERE checks_only AND state = 'canceled'`); n != 1 {
		t.Errorf("%d analyses were canceled, want 1", n)
	}
	c.must(204, "DELETE", a.header.Get("Location"), nil)
	checks := c.must(200, "GET", location+"/analyses", nil).items()[0]
	check(t, "queued after the cancel", fmt.Sprint(checks["checks_only"], " ", checks["state"]), "true queued")
	c.must(204, "DELETE", fmt.Sprintf("%s/analyses/%.0f", location, checks["id"]), nil)
	check(t, "queued after a cancel of the checks", ts.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL`), 0)
	const outdated = "what is expected has changed since the files were checked; "
	if got := c.must(200, "GET", location+"/report", nil).text("summary"); !strings.Contains(got, outdated) {
		t.Errorf("after a cancel: %s", got)
	}
	if expect("3") == 0 {
		t.Error("nothing was queued for an expectation that no checks have seen")
	}
	resume()
	waitFor(t, "the checks", func() bool {
		return !strings.Contains(c.must(200, "GET", location+"/report", nil).text("summary"), outdated)
	})
	if lines := c.must(200, "GET", location+"/report", nil).json["expected"].([]any); lines[0].(map[string]any)["expected"] != "3" {
		t.Errorf("checked: %v", lines)
	}
	if again := expect("3"); again != 0 {
		t.Errorf("analysis %d was queued for the same expectation", again)
	}
}

// TestExpectationAfterMassRemoval: known files that were not found stay findings when only the expectation changes.
func TestExpectationAfterMassRemoval(t *testing.T) {
	t.Parallel()
	_, c, dir, dataset := startTiles(t, 50, 3, 40)
	c.analyze(dataset, nil)
	for i := range 3 {
		if err := os.Rename(filepath.Join(dir, fmt.Sprint("d", i)), filepath.Join(filepath.Dir(dir), fmt.Sprint("away", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.must(202, "POST", dataset+"/analyses", nil)
	report := func() (summary string, notFound float64) {
		var a answer
		waitFor(t, "the end", func() bool {
			a = c.must(200, "GET", dataset+"/report", nil)
			return a.json["running"] == nil
		})
		for _, f := range a.json["findings"].([]any) {
			if finding := f.(map[string]any); finding["code"] == findingNotFound {
				notFound = finding["total"].(float64)
			}
		}
		return a.text("summary"), notFound
	}
	before, n := report()
	if n != 120 || !strings.Contains(before, "What is there:") {
		t.Fatalf("%v not found: %s", n, before)
	}
	c.must(200, "PATCH", dataset+"/expectation", map[string]string{"crs": "EPSG:4326"})
	if after, n := report(); n != 120 || after != before {
		t.Errorf("%v not found, want 120: %s, want %s", n, after, before)
	}
}

// TestExpectCommand sets what is expected by the command, and takes it back.
func TestExpectCommand(t *testing.T) {
	t.Parallel()
	ts, c, dataset := startColumn(t)
	file := filepath.Join(t.TempDir(), "area.geojson")
	if err := errors.Join(os.WriteFile(file, square(0, 0, 1, 3.75), 0o600), os.WriteFile(file+".txt", []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	says := func(want int, text string, args ...string) {
		t.Helper()
		if said, got := status(ts.env, "", args...); got != want || !strings.Contains(said, text) {
			t.Errorf("%v: %d %s, want %d %s", args, got, said, want, text)
		}
	}
	says(0, "nothing is expected\n", "dataset", "expect", "tiles")
	says(0, "posting: 1\n", "dataset", "expect", "tiles", "--posting", "1") // it was never analysed
	c.analyze(dataset, nil)
	says(0, "5 of 5 files located", "dataset", "expect", "tiles", "--posting", "", "--crs", "EPSG:4326", "--boundary", file)
	says(0, "CRS: EPSG:4326 (WGS 84)\nboundary: yes\n", "dataset", "expect", "tiles")
	says(0, "EXPECTED\n  pass: CRS EPSG:4326 (WGS 84): 0 of 5 files differ\n  pass: boundary 100 % covered: 100 %, 0 tiles missing\n", "report", "tiles")
	says(0, "5 of 5 files located; 1 not as specified", "dataset", "expect", "tiles", "--heights", "-10 to 3000")
	says(0, "boundary: yes\n", "dataset", "expect", "tiles")
	says(3, "  fail: heights -10 to 3000: 0 of 5 files differ, and not all heights were read\n", "report", "tiles")
	says(3, "\n  .: heights: not all were read: 5 files not read yet\n", "report", "tiles")
	says(0, "5 of 5 files located", "dataset", "expect", "tiles", "--heights", "")
	says(1, "--boundary: ", "dataset", "expect", "tiles", "--boundary", file+".txt")
	says(1, "no such file", "dataset", "expect", "tiles", "--boundary", file+".none")
	says(1, "must be the code of a known CRS", "dataset", "expect", "tiles", "--crs", "EPSG:1")
	says(0, "5 of 5 files located", "dataset", "expect", "tiles", "--crs", "", "--boundary", "")
	says(0, "nothing is expected\n", "dataset", "expect", "tiles")
}
