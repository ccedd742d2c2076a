package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rampTiles registers and analyses the dataset ramp. Between 0° and 40° east, and 40° and 60° north, the height of a place
// is 10 times its longitude plus its latitude; without heights is a sample in the north-west.
func rampTiles(t *testing.T, ts *testServer, root client) (location string) {
	var text strings.Builder
	text.WriteString("ncols 40\nnrows 20\nxllcorner 0\nyllcorner 40\ncellsize 1\nNODATA_value -9999\n")
	for row := range 20 {
		for column := range 40 {
			height := 10*(float64(column)+0.5) + 60 - (float64(row) + 0.5)
			if row == 0 && column == 0 {
				height = -9999
			}
			fmt.Fprint(&text, height, " ")
		}
		text.WriteString("\n")
	}
	const wgs84 = `GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],` +
		`PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]`
	dir := filepath.Join(ts.datasets, "ramp")
	err := errors.Join(
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "ramp.asc"), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "ramp.prj"), []byte(wgs84), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	location = root.addDataset("ramp")
	root.analyze(location, nil)
	return location
}

// TestLinePoints: points along a line have equal distances between them, and lie on the great circles of its corners.
func TestLinePoints(t *testing.T) {
	t.Parallel()
	const degree = math.Pi / 180 * 6371008.7714 // on the ground, in metres
	for name, test := range map[string]struct {
		corners [][]float64
		want    [][3]float64 // longitude, latitude and distance in degrees of a great circle
	}{
		"along a meridian":         {[][]float64{{7, 40}, {7, 50}}, [][3]float64{{7, 40, 0}, {7, 45, 5}, {7, 50, 10}}},
		"along the equator":        {[][]float64{{-3, 0}, {9, 0}}, [][3]float64{{-3, 0, 0}, {0, 0, 3}, {3, 0, 6}, {6, 0, 9}, {9, 0, 12}}},
		"east across 180°":         {[][]float64{{179, 0}, {-177, 0}}, [][3]float64{{179, 0, 0}, {-179, 0, 2}, {-177, 0, 4}}},
		"west across 180°":         {[][]float64{{-177, 0}, {179, 0}}, [][3]float64{{-177, 0, 0}, {-179, 0, 2}, {179, 0, 4}}},
		"over a pole":              {[][]float64{{10, 80}, {-170, 80}}, [][3]float64{{10, 80, 0}, {10, 85, 5}, {0, 90, 10}, {-170, 85, 15}, {-170, 80, 20}}},
		"to another meridian":      {[][]float64{{0, 45}, {90, 45}}, [][3]float64{{0, 45, 0}, {45, math.Atan(math.Sqrt2) * 180 / math.Pi, 30}, {90, 45, 60}}},
		"around a corner":          {[][]float64{{0, 30}, {0, 0}, {60, 0}}, [][3]float64{{0, 30, 0}, {15, 0, 45}, {60, 0, 90}}},
		"with an altitude":         {[][]float64{{7, 40, 900}, {7, 50, 1}}, [][3]float64{{7, 40, 0}, {7, 50, 10}}},
		"with equal corners":       {[][]float64{{7, 40}, {7, 40}, {7, 50}, {7, 50}}, [][3]float64{{7, 40, 0}, {7, 45, 5}, {7, 50, 10}}},
		"of one place":             {[][]float64{{7, 40}, {7, 40}}, [][3]float64{{7, 40, 0}, {7, 40, 0}}},
		"of one place, said twice": {[][]float64{{180, 40}, {-180, 40}}, [][3]float64{{180, 40, 0}, {180, 40, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&lineString{"LineString", test.corners}).along(len(test.want))
			for i, want := range test.want {
				at := got[i]
				apart := math.Abs(math.Remainder(at.Point[0]-want[0], 360))
				if math.Abs(want[1]) == 90 {
					apart = 0 // a pole has every longitude
				}
				if apart > 2e-9 || math.Abs(at.Point[1]-want[1]) > 2e-9 || math.Abs(*at.DistanceM-want[2]*degree) > 0.002 {
					t.Errorf("point %d is %v at %v m, want %v", i, at.Point, *at.DistanceM, want)
				}
			}
		})
	}
}

// TestElevationLine: the points of a line have the heights of their places, as points have.
func TestElevationLine(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	location := rampTiles(t, ts, ts.signIn("root", "all"))
	reader := ts.signIn("reader", datasetRead, datasetDownload)

	line := map[string]any{"type": "LineString", "coordinates": [][]float64{{5.5, 45.5}, {5.5, 55.5}}}
	answers := map[string]answer{
		"GET":  reader.must(200, "GET", "/api/v1/elevation?line=5.5,45.5,5.5,55.5&samples=11&dataset=1", nil),
		"POST": reader.must(200, "POST", "/api/v1/elevation", map[string]any{"line": line, "samples": 11}),
	}
	for method, a := range answers {
		items := a.items()
		check(t, method+": points", len(items), 11)
		for i, item := range items {
			height, _ := item["height"].(float64)
			distance, _ := item["distance_m"].(float64)
			wantHeight := 55 + 45.5 + float64(i)
			wantDistance := float64(i) * math.Pi / 180 * 6371008.7714
			if math.Abs(height-wantHeight) > 1e-6 || math.Abs(distance-wantDistance) > 0.001 {
				t.Errorf("%s: point %d has %v at %v m, want %v at %v m", method, i, height, distance, wantHeight, wantDistance)
			}
			check(t, method+": dataset", fmt.Sprint(item["dataset"]), "ramp")
		}
	}
	check(t, "points without samples", len(reader.must(200, "GET", "/api/v1/elevation?line=5,45,6,46", nil).items()), 100)

	// Across 180° no file covers the points, and a void is a reason too.
	items := reader.must(200, "GET", "/api/v1/elevation?line=0.5,59.5,-0.5,59.5&samples=2&interpolation=nearest", nil).items()
	check(t, "reasons", fmt.Sprint(items[0]["reason"], ", ", items[1]["reason"]), "void, no file covers the point")
	point := reader.must(200, "GET", "/api/v1/elevation?point=5.5,45.5", nil).json
	check(t, "distance of a point", point["distance_m"], any(nil))

	for query, status := range map[string]int{
		"line=":                              422,
		"line=7,46":                          422,
		"line=7,46,8":                        422,
		"line=7,46,8,91":                     422,
		"line=7,46,8,NaN":                    422,
		"line=7,46,8,47&samples=1":           422,
		"line=7,46,8,47&samples=1001":        422,
		"line=7,46,8,47&samples=x":           422,
		"line=7,46,8,47&point=7,46":          400,
		"line=7,46,8,47&interpolation=magic": 422,
	} {
		check(t, query, reader.do("GET", "/api/v1/elevation?"+query, nil).status, status)
	}
	for _, body := range []map[string]any{
		{},
		{"points": [][]float64{{7}}},
		{"points": [][]float64{{7, 46, 8}}},
		{"points": [][]float64{{7, 46}}, "line": line},
		{"line": map[string]any{"type": "MultiPoint", "coordinates": [][]float64{{7, 46}, {8, 46}}}},
		{"line": map[string]any{"type": "LineString", "coordinates": [][]float64{{7, 46}}}},
		{"line": map[string]any{"type": "LineString", "coordinates": [][]float64{{7, 46}, {8, 46, 1, 2}}}},
		{"line": line, "samples": 0},
	} {
		check(t, fmt.Sprint(body), reader.do("POST", "/api/v1/elevation", body).status, 422)
	}

	// A hidden dataset has no heights for others.
	root := ts.signIn("owner", "all")
	root.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	root.must(200, "PATCH", location, map[string]string{"requires": "lidar.see"})
	hidden := reader.must(200, "GET", "/api/v1/elevation?line=5.5,45.5,5.5,55.5&samples=2", nil).items()
	check(t, "dataset and reason", fmt.Sprint(hidden[0]["dataset"], hidden[0]["reason"]), "<nil>no file covers the point")

	// The operator sees it.
	printed, code := status(ts.env, "", "elevation", "5.5", "45.5", "--interpolation", "nearest", "0.5", "59.5", "-5", "45")
	check(t, "exit status", code, 0)
	size := strings.Split(printed, "\t")[3]
	check(t, "printed", printed, "100.5\tramp.asc\tramp\t"+size+"\t-\t-\n-\tramp.asc\tramp\t"+size+"\t-\tvoid\n-\t-\t-\t-\t-\tno file covers the point\n")
	for _, args := range []string{"7", "7 46 8", "x 46", "7 91"} {
		said, code := status(ts.env, "", append([]string{"elevation"}, strings.Fields(args)...)...)
		if code == 0 {
			t.Errorf("cairn elevation %s: %s", args, said)
		}
	}
}

// TestOpenTopoData: clients of Open Topo Data get its answers and its errors.
func TestOpenTopoData(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	location := rampTiles(t, ts, root)
	reader := ts.signIn("reader", datasetRead, datasetDownload)

	const path = "/api/v1/elevation/v1/"
	const want = `{"results":[{"dataset":"ramp","elevation":100.5,"location":{"lat":45.5,"lng":5.5}},` +
		`{"dataset":"ramp","elevation":null,"location":{"lat":-10,"lng":-20}}],"status":"OK"}`
	body := map[string]string{"locations": "45.5,5.5|-10,-20", "interpolation": "nearest"}
	for name, a := range map[string]answer{
		"by name": reader.must(200, "GET", path+"ramp?locations=45.5,5.5|-10,-20", nil),
		"by id":   reader.must(200, "GET", path+"1?locations=45.5,5.5%7C-10,-20&interpolation=cubic", nil),
		"POST":    reader.must(200, "POST", path+"ramp", body),
	} {
		check(t, name, strings.TrimSpace(string(a.body)), want)
	}
	most := strings.Repeat("|45.5,5.5", 1000)[1:]
	a := reader.must(200, "POST", path+"ramp", map[string]string{"locations": most})
	check(t, "1,000 locations", strings.Count(string(a.body), "100.5"), 1000)

	// A name counts before an id.
	if err := os.Mkdir(filepath.Join(ts.datasets, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	root.addDataset("other")
	root.must(200, "PATCH", "/api/v1/datasets/2", map[string]string{"name": "1"})
	a = reader.must(200, "GET", path+"1?locations=45.5,5.5", nil)
	check(t, "dataset named 1", strings.Contains(string(a.body), `"dataset":"1","elevation":null`), true)

	root.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	root.must(200, "PATCH", location, map[string]string{"requires": "lidar.see"})
	for _, test := range []struct {
		target string
		status int
		detail string
	}{
		{"2?locations=45.5", 400, "points: must be 1 to 1000 longitudes and latitudes in degrees"},
		{"2?locations=45.5,5.5,3", 400, "points: must be 1 to 1000 longitudes and latitudes in degrees"},
		{"2?locations=95,5", 400, "points: must be 1 to 1000 longitudes and latitudes in degrees"},
		{"2?locations=gfo}EtohhU", 400, "points: must be 1 to 1000 longitudes and latitudes in degrees"},
		{"2?locations=" + most[:9*400] + "45.5,5.5", 200, ""},
		{"2?locations=45.5,5.5&interpolation=magic", 400, "interpolation: must be nearest, bilinear or cubic"},
	} {
		a := reader.do("GET", path+test.target, nil)
		check(t, test.target, a.status, test.status)
		if test.status == 400 {
			check(t, test.target, fmt.Sprint(a.json["status"], " ", a.json["error"]), "INVALID_REQUEST "+test.detail)
		}
	}
	check(t, "hidden dataset", reader.must(404, "GET", path+"ramp?locations=45.5,5.5", nil).text("detail"), "No dataset ramp.")
	check(t, "unknown dataset", reader.must(404, "GET", path+"none?locations=45.5,5.5", nil).text("detail"), "No dataset none.")
	for _, name := range []string{"%00", "1%00", "%ff", "%2F", "a,b"} {
		reader.must(404, "GET", path+name+"?locations=45.5,5.5", nil)
	}
	reader.must(400, "POST", path+"2", map[string]string{"locations": ""})
}

// TestProfilePage: a page draws the heights along a line, with a gap where there is none.
func TestProfilePage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	pages := strings.TrimPrefix(rampTiles(t, ts, ts.signIn("root", "all")), "/api/v1")
	browser := ts.browse("root")
	checkHas(t, "the form", browser.shows(200, "GET", pages, "", "Show the profile"), pages+"/profile")
	checkLacks(t, "the page without a line", browser.shows(200, "GET", pages+"/profile", ""), "<svg class")

	// Eastwards along the equator of the ramp it rises from 60 to 160 m; the line begins in a void.
	page := browser.shows(200, "GET", pages+"/profile?from=47+N,+1.5+E&to=11.5,47", "", "62.0 to 162", " m, along 7")
	checkHas(t, "path", page, `<path d="M0.0 -62.00L0.0 -62.00L12`)
	page = browser.shows(200, "GET", pages+"/profile?from=0.5,59.5&to=10.5,59.5", "")
	check(t, "pieces that begin in the void", strings.Count(page, "M0.0 "), 0)
	checkHas(t, "the piece behind the void", page, `<path d="M`)

	browser.shows(200, "GET", pages+"/profile?from=100,0&to=101,0", "", "There is no height along this line.")
	browser.shows(400, "GET", pages+"/profile?from=here&to=there", "", "From longitude, latitude: must be 2 numbers", `value="there"`)
	ts.signIn("looker", datasetRead)
	checkLacks(t, "page without dataset.download", ts.browse("looker").shows(200, "GET", pages, ""), "Show the profile")
	ts.browse("looker").shows(403, "GET", pages+"/profile?from=1.5,47&to=11.5,47", "", "dataset.download")
}
