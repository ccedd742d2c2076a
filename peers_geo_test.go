//go:build peers

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPeerOGR has GDAL read the footprints over HTTP, with an API token as the password.
func TestPeerOGR(t *testing.T) {
	ts, c, dataset := analyzeCorpus(t, makeCorpus(t))
	token := ts.addToken("ada", "gdal", datasetRead).token
	files := c.must(200, "GET", dataset, nil).json["files"].(map[string]any)
	var all collection
	if err := json.Unmarshal(c.must(200, "GET", dataset+"/footprints.geojson?all=1", nil).body, &all); err != nil {
		t.Fatal(err)
	}
	west, south, east, north := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, f := range all.Features {
		if f.Geometry == nil {
			continue
		}
		for _, part := range f.Geometry.Coordinates {
			for _, p := range part[0] {
				west, south, east, north = min(west, p[0]), min(south, p[1]), max(east, p[0]), max(north, p[1])
			}
		}
	}
	for query, want := range map[string]float64{"": files["ok"].(float64), "?all=1": files["total"].(float64), "?status=corrupt&all=1": files["corrupt"].(float64)} {
		ogrinfo := exec.Command("ogrinfo", "-so", "-al", "-ro", ts.url+dataset+"/footprints.geojson"+query)
		ogrinfo.Env = append(os.Environ(), "GDAL_HTTP_USERPWD=ada:"+token, "GDAL_HTTP_AUTH=BASIC")
		output, err := ogrinfo.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if !strings.Contains(string(output), fmt.Sprintf("Feature Count: %.0f\n", want)) || strings.Contains(string(output), "ERROR") {
			t.Errorf("%s: want %v features:\n%s", query, want, output)
		}
		if query != "" {
			continue
		}
		extent := regexp.MustCompile(`Extent: \(([-0-9.]+), ([-0-9.]+)\) - \(([-0-9.]+), ([-0-9.]+)\)`).FindStringSubmatch(string(output))
		if extent == nil || strings.Join(extent[1:], " ") != fmt.Sprintf("%f %f %f %f", west, south, east, north) {
			t.Errorf("%v, want %f %f %f %f", extent, west, south, east, north)
		}
		for _, part := range []string{"Layer name: corpus", "Geometry: Multi Polygon", "location: String", "resolution_m: Real", "modified_at: DateTime"} {
			if !strings.Contains(string(output), part) {
				t.Errorf("no %q in\n%s", part, output)
			}
		}
	}
}

// TestPeerGEOS has GEOS look at the footprints of our own corpus and of awkward grids: each is valid.
func TestPeerGEOS(t *testing.T) {
	ts, c, dataset := analyzeCorpus(t, makeCorpus(t))
	checkFootprints(t, c, dataset, 10)
	checkFootprints(t, c, fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("awkward", awkwardFiles(t, 600))), 1000)
}

// checkFootprints has GEOS, through GDAL's SQLite dialect, look at the footprints of a dataset. There are at least so
// many, and each is valid.
func checkFootprints(t *testing.T, c client, dataset string, least int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "footprints.geojson")
	if err := os.WriteFile(file, c.must(200, "GET", dataset+"/footprints.geojson", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	sqlite := func(sql string) string {
		t.Helper()
		output, err := exec.Command("ogrinfo", "-q", "-ro", "-dialect", "SQLite", "-sql", sql, file).CombinedOutput()
		if err != nil || strings.Contains(string(output), "ERROR") {
			t.Fatalf("%v\n%s", err, output)
		}
		return string(output)
	}
	layer := c.must(200, "GET", dataset, nil).text("name")
	var valid, all int
	counted := sqlite(`SELECT COUNT(*) AS n, SUM(ST_IsValid(geometry)) AS valid FROM "` + layer + `"`)
	for _, line := range regexp.MustCompile(`(n|valid) \(Integer\) = (\d+)`).FindAllStringSubmatch(counted, -1) {
		fmt.Sscan(line[2], map[string]*int{"n": &all, "valid": &valid}[line[1]])
	}
	t.Logf("%s: %d of %d footprints are valid", layer, valid, all)
	if valid != all || all < least {
		t.Error(sqlite(`SELECT path, crs, ST_IsValidReason(geometry) AS reason FROM "` + layer + `" WHERE NOT ST_IsValid(geometry)`))
	}
}

// search is a search by a box or a geometry, and the files that it found.
type search struct {
	Box      []float64      `json:"box,omitempty"` // west, south, east, north
	Geometry map[string]any `json:"geometry,omitempty"`
	Found    []string       `json:"found"`
}

// randomSearches makes n random searches by a box or a geometry of each type.
func randomSearches(t *testing.T, ts *testServer, dataset int64, r randomGeometries, n int) (all []search) {
	t.Helper()
	kinds := append(geometryTypes(), "bbox")
	for i := range n {
		s := search{Found: []string{}}
		query := url.Values{}
		if kind := kinds[i%len(kinds)]; kind == "bbox" {
			corners := r.chain(2, false)
			a, b := corners[0], corners[1]
			s.Box = []float64{a[0], min(a[1], b[1]), b[0], max(a[1], b[1])}
			query.Set("bbox", strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Box), " ", ","), "[]"))
		} else {
			s.Geometry, _ = r.geometry(kind, 0)
			text, err := json.Marshal(s.Geometry)
			if err != nil {
				t.Fatal(err)
			}
			query.Set("intersects", string(text))
		}

		f, err := readItemFilter(query)
		if err != nil {
			t.Fatalf("%v: %v", query, err)
		}
		f.datasetID = &dataset
		files, next, err := findFiles(t.Context(), ts.db, f, f.first(), 1000)
		if err != nil || next != nil {
			t.Fatal(err, next)
		}
		for _, file := range files {
			s.Found = append(s.Found, file.Path)
		}
		all = append(all, s)
	}
	return all
}

// geosSearch has GEOS compare each part of a geometry with each footprint, and prints the searches that found other files.
// Last it prints how many searches have an invalid polygon, and how many pairs of a search and a file meet.
const geosSearch = `
import json, sys
from osgeo import ogr
ogr.UseExceptions()
data = json.load(open(sys.argv[1]))
def parts(g):
    if g["type"] == "GeometryCollection":
        return [p for part in g["geometries"] for p in parts(part)]
    if g["type"].startswith("Multi"):
        return [{"type": g["type"][5:], "coordinates": c} for c in g["coordinates"]]
    return [g]
def box(west, south, east, north):
    if east == -180 and west > east:
        east = 180 # the same meridian, so there is no second part
    if west > east:
        return box(west, south, 180, north) + box(-180, south, east, north)
    corners = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    if west == east and south == north:
        return [{"type": "Point", "coordinates": corners[0]}]
    if west == east or south == north:
        return [{"type": "LineString", "coordinates": [corners[0], corners[2]]}]
    return [{"type": "Polygon", "coordinates": [corners]}]
def load(g):
    points = g["coordinates"]
    if g["type"] == "LineString" and all(p == points[0] for p in points):
        g = {"type": "Point", "coordinates": points[0]}
    return ogr.CreateGeometryFromJson(json.dumps(g))
tiles = {path: load(g) for path, g in data["footprints"].items()}
met = invalid = 0
for s in data["searches"]:
    asked = [load(p) for p in (box(*s["box"]) if "box" in s else parts(s["geometry"]))]
    if not all(g.IsValid() for g in asked):
        invalid += 1 # a ring that touches itself: GEOS has no answer
        continue
    want = [path for path, tile in sorted(tiles.items()) if any(tile.Intersects(g) for g in asked)]
    met += len(want)
    if want != s["found"]:
        print(json.dumps({**s, "want": want}))
print(invalid)
print(met)
`

// TestPeerSearchGEOS compares 10,000 random searches by a box and by geometries of every type with GEOS.
func TestPeerSearchGEOS(t *testing.T) {
	ts, dataset, files, r := awkwardTiles(t, 17)
	footprints := map[string]any{}
	for _, m := range files {
		footprints[m.Path] = map[string]any{"type": "MultiPolygon", "coordinates": m.footprint()}
	}
	data := map[string]any{"footprints": footprints, "searches": randomSearches(t, ts, dataset, r, 10_000)}
	encoded, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "searches.json")
	if err := os.WriteFile(file, encoded, 0o644); err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSpace(python(t, geosSearch, file)), "\n")
	last := len(lines) - 2
	for _, line := range lines[:last] {
		t.Errorf("%.2000s", line)
	}
	invalid, _ := strconv.Atoi(lines[last])
	met, _ := strconv.Atoi(lines[last+1])
	t.Logf("of 10,000 searches, %d found other files than GEOS, and %d are invalid; %d pairs meet", last, invalid, met)
	if invalid > 1000 || met < 10_000 {
		t.Errorf("%d searches are invalid, want at most 1,000; %d pairs of a search and a file meet, want 10,000", invalid, met)
	}
}

// TestPeerSVG has librsvg draw the picture: tiles are coloured where they lie, and only there, and their gap is empty.
func TestPeerSVG(t *testing.T) {
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	render := func(dataset int64) image.Image {
		t.Helper()
		svg := c.must(200, "GET", fmt.Sprintf("/api/v1/datasets/%d/coverage.svg", dataset), nil).body
		rsvg := exec.Command("rsvg-convert")
		rsvg.Stdin = bytes.NewReader(svg)
		output, err := rsvg.Output()
		if err != nil {
			t.Fatal(err)
		}
		if dir := os.Getenv("CAIRN_TEST_PICTURES"); dir != "" {
			os.WriteFile(filepath.Join(dir, fmt.Sprint(dataset, ".png")), output, 0o644)
		}
		picture, err := png.Decode(bytes.NewReader(output))
		if err != nil || picture.Bounds().Dx() != 1060 {
			t.Fatal(err, picture.Bounds())
		}
		return picture
	}
	coloured := func(picture image.Image, x, y int) bool { // files are green, lines and paper are not
		c := color.NRGBAModel.Convert(picture.At(x, y)).(color.NRGBA)
		return int(c.G)-int(c.R) > 40
	}
	for _, side := range []int{10, 100} { // outlines, and squares
		var files []ElevationDatasetFileMeta
		size := 1.0 / float64(side)
		for x := range side {
			for y := range side {
				if x*10/side == 5 && y*10/side == 5 {
					continue // the gap: a tenth of the width, right above the middle
				}
				m := placedFile(t, fmt.Sprint(x, y), 4326, size/100, 0, float64(x)*size-0.5, 0, -size/50, float64(y+1)*size-0.5)
				m.ResolutionM = new(20.0)
				files = append(files, m)
			}
		}
		picture := render(ts.addChecked(fmt.Sprint("tiles ", side), files))
		edge := 540 / 1.06 / 2
		n := 0
		for x := range 20 {
			for y := range 20 {
				at := [2]float64{(float64(x) - 9.47) / 10, (float64(y) - 9.47) / 10} // -1 to 1 from the middle, y up, off the lines
				gap := at[0] > 0.01 && at[0] < 0.19 && at[1] > 0.01 && at[1] < 0.19
				if coloured(picture, 420+int(at[0]*edge), 330-int(at[1]*edge)) == gap {
					t.Errorf("%d tiles: at %v coloured: %v", len(files), at, !gap)
				}
				n++
			}
		}
		for _, outside := range [][2]int{{420, 65}, {420, 595}, {150, 330}, {700, 330}, {30, 300}} {
			if coloured(picture, outside[0], outside[1]) {
				t.Errorf("%d tiles: coloured outside, at %v", len(files), outside)
			}
		}
		dark := 0
		for x := 60; x < 600; x++ {
			for y := 5; y < 55; y++ {
				if r, _, _, _ := picture.At(x, y).RGBA(); r < 0x6000 {
					dark++
				}
			}
		}
		// Above the files' square in the legend are the missing tile's and the line about pixels.
		if dark < 100 || !coloured(picture, 66, 676+7) {
			t.Errorf("%d tiles: the name (%d dark pixels) or the legend is missing", len(files), dark)
		}
	}
	render(ts.addFiles("the world", worldFiles(t, rand.New(rand.NewPCG(1, 2)), 1500)))
}
