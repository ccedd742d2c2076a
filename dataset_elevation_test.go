package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestElevation: the height at a point comes from the finest file that has one there, and each
// point without one has its reason.
func TestElevation(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	root.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	reader := ts.signIn("reader", datasetRead, datasetDownload)

	// Rows from the north; the first sample of the finer file is void, and it declares that.
	const wgs84 = `GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],` +
		`PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]`
	grid := func(columns, south int, cell float64, values string) []byte {
		return fmt.Appendf(nil, "ncols %d\nnrows 2\nxllcorner 7\nyllcorner %d\ncellsize %v\nNODATA_value -9999\n%s\n",
			columns, south, cell, values)
	}
	dir := filepath.Join(ts.datasets, "tiles")
	err := os.Mkdir(dir, 0o755)
	for name, content := range map[string][]byte{
		"coarse.asc": grid(3, 46, 1, "100 200 300\n400 500 600"),
		"fine.asc":   grid(2, 46, 0.5, "-9999 20\n30 40"),
		"polar.asc":  grid(3, 88, 1, "1 2 3\n4 5 6"),
	} {
		prj := filepath.Join(dir, name[:len(name)-3]+"prj")
		err = errors.Join(err,
			os.WriteFile(filepath.Join(dir, name), content, 0o644),
			os.WriteFile(prj, []byte(wgs84), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	dataset := root.addDataset("tiles")
	root.analyze(dataset, nil)

	for _, test := range []struct {
		lon, lat float64
		way      string
		want     float64 // NaN: none
		path     string
		reason   string
	}{
		{8.5, 47.5, "nearest", 200, "coarse.asc", ""},
		{9.9, 46.1, "nearest", 600, "coarse.asc", ""},
		{9, 47, "bilinear", 400, "coarse.asc", ""}, // between 200, 300, 500 and 600
		{8.5, 47.5, "cubic", 200, "coarse.asc", ""},
		{7.75, 46.25, "nearest", 40, "fine.asc", ""},
		{7.25, 46.9, "nearest", 400, "coarse.asc", ""}, // void in the finer one
		{7.5, 46.25, "bilinear", 35, "fine.asc", ""},
		{8.5, 90, "nearest", 2, "polar.asc", ""},
		{0, 0, "nearest", math.NaN(), "", "no file covers the point"},
	} {
		path := fmt.Sprintf("/api/v1/elevation?point=%v,%v&interpolation=%s", test.lon, test.lat, test.way)
		a := reader.must(200, "GET", path, nil).json
		height, hasHeight := a["height"].(float64)
		check(t, path+": has a height", hasHeight, !math.IsNaN(test.want))
		if hasHeight && math.Abs(height-test.want) > 1e-6 {
			t.Errorf("%s: got %v, want %v", path, height, test.want)
		}
		got, _ := a["path"].(string)
		check(t, path+": file", got, test.path)
		reason, _ := a["reason"].(string)
		check(t, path+": reason", reason, test.reason)
	}

	points := [][2]float64{{8.5, 47.5}, {0, 0}, {7.75, 46.25}}
	items := reader.must(200, "POST", "/api/v1/elevation", map[string]any{"points": points, "dataset": 1}).items()
	check(t, "heights", fmt.Sprint(items[0]["height"], items[1]["height"], items[2]["height"]), "200 <nil> 40")

	for _, query := range []string{"", "?point=7", "?point=7,46&interpolation=best", "?point=7,46&dataset=x", "?point=200,0"} {
		if a := reader.do("GET", "/api/v1/elevation"+query, nil); a.status != 400 && a.status != 422 {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	for _, body := range []any{
		map[string]any{"points": [][2]float64{}},
		map[string]any{"points": make([][2]float64, 1001)},
		map[string]any{"points": [][2]float64{{181, 0}}},
	} {
		if a := reader.do("POST", "/api/v1/elevation", body); a.status < 400 || a.status >= 500 {
			t.Errorf("%v: %d %s", body, a.status, a.body)
		}
	}

	// The page says it where somebody clicks.
	pages := dataset[len("/api/v1"):]
	ts.browse("root").shows(200, "GET", pages+"?point=8.5,47.5", "", "Height: 200 (no unit stated)")
	ts.signIn("looker", datasetRead)
	checkLacks(t, "page without dataset.download", ts.browse("looker").shows(200, "GET", pages+"?point=8.5,47.5", ""), "Height")

	// A file that is gone or has changed is a reason, and the next file is taken.
	if err := os.Remove(filepath.Join(dir, "fine.asc")); err != nil {
		t.Fatal(err)
	}
	a := reader.must(200, "GET", "/api/v1/elevation?point=7.75,46.25&interpolation=nearest", nil)
	check(t, "file in place of one that is gone", a.text("path"), "coarse.asc")
	if err := os.WriteFile(filepath.Join(dir, "coarse.asc"), grid(2, 46, 1, "1 2\n3 4"), 0o644); err != nil {
		t.Fatal(err)
	}
	a = reader.must(200, "GET", "/api/v1/elevation?point=8.5,47.5", nil)
	check(t, "reason", a.text("reason"), "heights not read: the file has changed since it was analysed")

	// A hidden dataset has no heights for others, and is refused as one that does not exist.
	root.must(200, "PATCH", dataset, map[string]string{"requires": "lidar.see"})
	a = reader.must(200, "GET", "/api/v1/elevation?point=8.5,47.5", nil)
	check(t, "reason for a hidden dataset", a.text("reason"), "no file covers the point")
	for _, id := range []int{1, 99} {
		const query = "/api/v1/elevation?%s=8.5,47.5%s&dataset=%d"
		want := reader.refused(404, "not_found", "GET", fmt.Sprint("/api/v1/datasets/", id), nil).text("detail")
		for _, got := range []answer{
			reader.refused(404, "not_found", "GET", fmt.Sprintf(query, "point", "", id), nil),
			reader.refused(404, "not_found", "GET", fmt.Sprintf(query, "line", ",9,48", id), nil),
			reader.refused(404, "not_found", "POST", "/api/v1/elevation", map[string]any{"points": points, "dataset": id}),
		} {
			check(t, fmt.Sprintf("refusal for dataset %d", id), got.text("detail"), want)
		}
	}
}
