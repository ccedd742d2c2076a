package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// compared returns the comparison of two datasets as text, one cell a line: result, paths, detail.
func (c client) compared(here, there string) []string {
	c.t.Helper()
	with := strings.TrimPrefix(there, "/api/v1/datasets/")
	a := c.must(200, "GET", here+"/compare?with="+with, nil)
	var lines []string
	for _, item := range a.json["cells"].([]any) {
		cell := item.(map[string]any)
		line := fmt.Sprint(cell["result"])
		for _, name := range []string{"here", "there", "detail"} {
			if text, _ := cell[name].(string); text != "" {
				line += " | " + text
			}
		}
		lines = append(lines, line)
	}
	return append(lines, fmt.Sprint(a.json["totals"], a.json["not_located"]))
}

// compareTest starts a service and returns a client that may do all of this.
func compareTest(t *testing.T, env ...string) (*testServer, client) {
	t.Helper()
	ts := startServer(t, nil, env...)
	return ts, ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
}

// tile returns a tile of 1 km by 1 km at so many kilometres, with this text after it.
func tile(x, y float64, text string, further ...testTag) []byte {
	return append(utmTIFF(32632, x*1000, y*1000, further...), text...)
}

// TestCompare: each result, with its detail.
func TestCompare(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	nodata := testTag{tag: tagGDALNoData, fieldType: 2, text: "-9999"}
	coarse := testTIFF{order: binary.LittleEndian, tags: with(
		[]testTag{shorts(tagImageWidth, 5), shorts(tagImageLength, 5), shorts(tagBitsPerSample, 16)},
		doubles(tagModelPixelScale, 200, 200, 0), doubles(tagModelTiepoint, 0, 0, 0, 503_000, 5201_000, 0),
		geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 32632}))}.build()
	here := ts.tilesIn(c, "new", "a.tif", tile(500, 5200, "same"), "b.tif", tile(501, 5200, "this"), "c new.tif", tile(502, 5200, "longer"),
		"d.tif", coarse, "e.tif", tile(504.05, 5200, ""), "f.tif", tile(505, 5200, "", nodata), "g.tif", tile(506, 5200, ""),
		"i.tif", tile(508, 5200, ""), "i copy.tif", tile(508, 5200, ""), "readme.txt", []byte("Read me."))
	there := ts.tilesIn(c, "old", "a.tif", tile(500, 5200, "same"), "b.tif", tile(501, 5200, "that"), "c old.tif", tile(502, 5200, "long"),
		"d.tif", tile(503, 5200, ""), "e.tif", tile(504, 5200, ""), "f.tif", tile(505, 5200, ""), "h.tif", tile(507, 5200, ""), "i.tif", tile(508, 5200, ""))
	size := len(tile(501, 5200, ""))
	want := []string{
		"other_content | b.tif | b.tif | their bytes differ",
		fmt.Sprintf("other_content | c new.tif | c old.tif | %d bytes here, %d there", size+6, size+4),
		"other_metadata | d.tif | d.tif | pixels of 200 × 200 here, 100 × 100 there; size in pixels 5 × 5 here, 10 × 10 there",
		"other_metadata | e.tif | e.tif | box 504050 5200000 505050 5201000 here, 504000 5200000 505000 5201000 there",
		"other_metadata | f.tif | f.tif | nodata -9999 here, not stated there",
		"only_here | g.tif",
		"only_there | h.tif",
		"only_here | i copy.tif | another file of this cell was compared",
		"map[only_here:2 only_there:1 other_content:2 other_metadata:3 same_content:2] map[here:0 there:0]",
	}
	if got := c.compared(here, there); !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	text := string(c.must(200, "GET", here+"/compare?with=2", nil, "Accept: text/plain").body)
	printed, status := status(ts.env, "", "compare", "new", "2")
	if !strings.HasPrefix(printed, text) || status != 3 || !strings.Contains(text, "\nonly_here\tg.tif\t\t\n") ||
		!strings.HasSuffix(printed, "cairn: not all cells have the same content\n") {
		t.Errorf("status %d\n%s\n%s", status, text, printed)
	}
}

// TestCompareInOneCell: in a cell with several files, those of the same path are compared, then the others in order.
func TestCompareInOneCell(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	file := func(path string, x float64, size int64) ElevationDatasetFileMeta {
		m := placedFile(t, path, 32632, 10, 0, x, 0, -20, 5_300_000)
		m.SizeBytes = size
		return m
	}
	here := ts.addChecked("new", []ElevationDatasetFileMeta{file("a", 500_000, 1), file("c", 500_000, 3), file("d", 500_000, 4), file("e", 500_000, 5),
		file("x", 501_000, 1), file("y", 502_000, 1)})
	there := ts.addChecked("old", []ElevationDatasetFileMeta{file("b", 500_000, 20), file("c", 500_000, 30),
		file("w", 501_000, 10), file("x", 501_000, 11), file("y", 502_000, 1)})
	want := []string{
		"other_content | c | c | 3 bytes here, 30 there",
		"other_content | a | b | 1 bytes here, 20 there",
		"only_here | d | another file of this cell was compared",
		"only_here | e | another file of this cell was compared",
		"other_content | x | x | 1 bytes here, 11 there",
		"only_there | w | another file of this cell was compared",
		"not_compared | y | y | here: No file y.",
		"map[not_compared:1 only_here:2 only_there:1 other_content:3] map[here:0 there:0]",
	}
	got := c.compared(fmt.Sprint("/api/v1/datasets/", here), fmt.Sprint("/api/v1/datasets/", there))
	if !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestPairFiles: in a cell, files are paired by path, then by name, by place, by the size of pixels, and then in order.
func TestPairFiles(t *testing.T) {
	t.Parallel()
	file := func(id int64, path string, x, pixel float64) cellFile {
		return cellFile{id: id, isHere: id < 10, path: path, x: x, pixel: pixel}
	}
	for _, test := range []struct {
		name string
		cell []cellFile
		want []filePair
	}{
		{"nothing", nil, nil},
		{"one side", []cellFile{file(1, "a", 0, 1), file(2, "b", 0, 1)}, []filePair{{1, 0, false}, {2, 0, false}}},
		{"path before name", []cellFile{file(1, "x/a", 0, 1), file(2, "y/a", 0, 1), file(10, "y/a", 0, 1)},
			[]filePair{{2, 10, true}, {1, 0, true}}},
		{"name before place", []cellFile{file(1, "new/a", 0, 1), file(2, "new/b", 0, 2), file(10, "old/a", 0, 2), file(11, "old/b", 0, 1)},
			[]filePair{{1, 10, true}, {2, 11, true}}},
		{"two resolutions with other names", []cellFile{file(1, "fine", 0, 1), file(2, "rough", 0, 5), file(10, "1 m", 0, 1), file(11, "5 m", 0, 5)},
			[]filePair{{1, 10, true}, {2, 11, true}}},
		{"two resolutions in the other order", []cellFile{file(1, "a", 0, 1), file(2, "b", 0, 5), file(10, "c", 0, 5), file(11, "d", 0, 1)},
			[]filePair{{1, 11, true}, {2, 10, true}}},
		{"place before the size of pixels", []cellFile{file(1, "a", 0, 1), file(10, "b", 50, 1), file(11, "c", 0, 1)},
			[]filePair{{1, 11, true}, {0, 10, true}}},
		{"moved by half a pixel", []cellFile{file(1, "a", 0, 1), file(10, "b", 0.5, 5), file(11, "c", 0.6, 1)},
			[]filePair{{1, 11, true}, {0, 10, true}}},
		{"another resolution", []cellFile{file(1, "a", 0, 1), file(10, "b", 0, 5)}, []filePair{{1, 10, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := pairFiles(test.cell); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestCompareGrids: files with other names, moved by half a pixel, of a CRS that only one dataset has a grid for, or none, or
// of several resolutions are in the same cell. Files in another CRS are not.
func TestCompareGrids(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	// tiles returns n tiles of 100 by 50 pixels side by side; the pixels are of size by 2·size.
	tiles := func(name string, code, n int, x, size float64) (files []ElevationDatasetFileMeta) {
		for i := range n {
			m := placedFile(t, fmt.Sprint(name, i), code, size, 0, x+float64(i)*100*size, 0, -2*size, 5_300_000)
			m.SizeBytes = int64(len(name))
			files = append(files, m)
		}
		return files
	}
	pairs := func(names, other string, n int, detail string) (lines []string) {
		for i := range n {
			lines = append(lines, fmt.Sprintf("other_%s | %s%d | %s%[3]d | ", detail, names, i, other))
		}
		return lines
	}
	tiny := tiles("tiny", 32632, 1, 500_000, 10)
	tiny[0].Transform = []float64{5e-324, 0, 500_000, 0, -5e-324, 5_300_000}
	turned := []ElevationDatasetFileMeta{placedFile(t, "new0", 32632, 10, 0, 500_000, 0, 20, 5_299_000)}
	turned[0].SizeBytes = 3
	huge := tiles("huge", 32632, 1, 500_000, 10)
	huge[0].NativeBBox = []float64{-1.7e308, 0, 1.7e308, 1}
	none := []ElevationDatasetFileMeta{}
	for _, test := range []struct {
		name        string
		here, there []ElevationDatasetFileMeta
		want        []string // prefixes
	}{
		{"other names", tiles("new", 32632, 4, 500_000, 10), tiles("older", 32632, 4, 500_000, 10), pairs("new", "older", 4, "content")},
		{"half a pixel", tiles("new", 32632, 4, 500_005, 10), tiles("older", 32632, 4, 500_000, 10), pairs("new", "older", 4, "metadata")},
		{"half a pixel, without a grid", tiles("new", 32632, 2, 499_995, 10), tiles("older", 32632, 2, 500_000, 10), pairs("new", "older", 2, "metadata")},
		{"noise", tiles("new", 32632, 4, 500_000.000001, 10), tiles("older", 32632, 4, 500_000, 10), pairs("new", "older", 4, "content")},
		{"noise, without a grid", tiles("new", 32632, 1, 499_999.999999, 10), tiles("older", 32632, 1, 500_000, 10), pairs("new", "older", 1, "content")},
		{"a grid there only", tiles("new", 32632, 2, 500_000, 10), tiles("older", 32632, 4, 500_000, 10),
			append(pairs("new", "older", 2, "content"), "only_there | older2", "only_there | older3")},
		{"another CRS", tiles("new", 32633, 1, 500_000, 10), tiles("older", 32632, 1, 500_000, 10), []string{"only_there | older0", "only_here | new0"}},
		{"two grids of the same tiles", slices.Concat(tiles("a fine", 32632, 4, 500_000, 10), tiles("b coarse", 32632, 3, 500_000, 20)),
			slices.Concat(tiles("coarse", 32632, 1, 500_000, 20), tiles("small", 32632, 4, 500_000, 10)),
			append(pairs("a fine", "small", 4, "content"), "other_content | b coarse0 | coarse0", "only_here | b coarse1", "only_here | b coarse2")},
		{"pixels without a size", tiny, tiles("older", 32632, 1, 500_000, 10), []string{
			"other_metadata | tiny0 | older0 | pixels of 0 × 0 here, 10 × 20 there"}},
		{"a centre on the edge of cells", append(tiles("new", 32632, 4, 500_000, 10), tiles("overview", 32632, 1, 500_000, 20)...),
			append(tiles("older", 32632, 4, 500_000, 10), tiles("overview", 32632, 1, 499_999.9999999, 20)...),
			slices.Insert(pairs("new", "older", 4, "content"), 1, "not_compared | overview0 | overview0")},
		{"upside down", tiles("new", 32632, 1, 500_000, 10), turned,
			[]string{"other_metadata | new0 | new0 | orientation 10 0 500000 0 -20 5300000 here, 10 0 500000 0 20 5299000 there"}},
		{"huge numbers", huge, huge, nil},
		{"nothing", none, none, nil},
	} {
		here, there := ts.addChecked(test.name, test.here), ts.addChecked(test.name+" there", test.there)
		got := c.compared(fmt.Sprint("/api/v1/datasets/", here), fmt.Sprint("/api/v1/datasets/", there))
		cells := got[:len(got)-1]
		if !slices.EqualFunc(cells, test.want, strings.HasPrefix) {
			t.Errorf("%s: got %s\nwant %s", test.name, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
	if _, code := status(ts.env, "", "compare", "nothing", "nothing there"); code != 3 {
		t.Errorf("nothing was compared: status %d", code)
	}
}

// TestCompareUnreadable: files that cannot be read now are not compared, with the reason. The others are.
func TestCompareUnreadable(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	var files []any
	for i, name := range []string{"a.tif", "b.tif", "c.tif", "d.tif", "e.tif"} {
		files = append(files, name, tile(500+float64(i), 5200, "same"))
	}
	here, there := ts.tilesIn(c, "new", files...), ts.tilesIn(c, "old", files...)
	at := func(folder, name string) string { return filepath.Join(ts.datasets, folder, name) }
	if err := errors.Join(
		os.Remove(at("new", "a.tif")),
		os.Remove(at("old", "b.tif")), os.Mkdir(at("old", "b.tif"), 0o755),
		os.WriteFile(at("new", "c.tif"), []byte("short"), 0o644),
		os.Remove(at("old", "d.tif")), os.Symlink("/etc/passwd", at("old", "d.tif")),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"not_compared | a.tif | a.tif | here: No file a.tif.",
		"not_compared | b.tif | b.tif | there: No file b.tif.",
		"not_compared | c.tif | c.tif | here: it has changed since it was analysed",
		"not_compared | d.tif | d.tif | there: No file d.tif.",
		"map[not_compared:4 same_content:1] map[here:0 there:0]",
	}
	if got := c.compared(here, there); !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestComparePermissionDenied: in sysfs nobody can read an attribute that is only for writing, not even root.
func TestComparePermissionDenied(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t, "CAIRN_DATASETS_DIR=/sys/bus")
	row := placedFile(t, "drivers_probe", 4326, 0.01, 0, 7, 0, -0.02, 46)
	here, there := ts.addChecked("platform", []ElevationDatasetFileMeta{row}), ts.addChecked("pci", []ElevationDatasetFileMeta{row})
	got := c.compared(fmt.Sprint("/api/v1/datasets/", here), fmt.Sprint("/api/v1/datasets/", there))
	if !strings.HasPrefix(got[0], "not_compared | drivers_probe | drivers_probe | here: ") || !strings.HasSuffix(got[0], "permission denied") || len(got) != 2 {
		t.Errorf("got %q", got)
	}
}

// TestCompareLarge: a difference behind the first block is found.
func TestCompareLarge(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	long := strings.Repeat("long text ", 60_000)
	here := ts.tilesIn(c, "new", "a.tif", tile(500, 5200, long+"x"), "b.tif", tile(501, 5200, long))
	there := ts.tilesIn(c, "old", "a.tif", tile(500, 5200, long+"y"), "b.tif", tile(501, 5200, long))
	const want = "other_content | a.tif | a.tif | their bytes differ"
	if got := c.compared(here, there); got[0] != want || got[1] != "map[other_content:1 same_content:1] map[here:0 there:0]" {
		t.Errorf("got %q, want %q", got, want)
	}
	if said, code := status(ts.env, "", "compare", "new", "old"); code != 3 {
		t.Errorf("status %d: %s", code, said)
	}
	if err := os.WriteFile(filepath.Join(ts.datasets, "new", "a.tif"), tile(500, 5200, long+"y"), 0o644); err != nil {
		t.Fatal(err)
	}
	if said, code := status(ts.env, "", "compare", "new", "old"); code != 0 || !strings.HasPrefix(said, `cells: {"same_content":2}`) {
		t.Errorf("status %d: %s", code, said)
	}
}

// TestCompareRefused: what the other dataset may be, and who may ask. A dataset that is not there is named as in any path.
func TestCompareRefused(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	ts.addChecked("new", nil)
	ts.addChecked("old", nil)
	const path = "/api/v1/datasets/1/compare"
	for query, code := range map[string]string{"": "wrong_type", "?with=": "wrong_type", "?with=old": "wrong_type", "?with=1": "wrong_type",
		"?with=99999999999999999999": "wrong_type", "?with=2&with=2": "duplicate_parameter", "?other=2": "unknown_parameter"} {
		c.refused(400, code, "GET", path+query, nil)
	}
	missing := c.refused(404, "not_found", "GET", "/api/v1/datasets/99", nil).text("detail")
	for _, path := range []string{path + "?with=99", "/api/v1/datasets/99/compare?with=1"} {
		if got := c.refused(404, "not_found", "GET", path, nil).text("detail"); got != missing {
			t.Errorf("%s: %q", path, got)
		}
	}
	ts.addFiles("never", nil)
	c.refused(409, "not_checked", "GET", path+"?with=3", nil)
	ts.client().refused(401, "not_signed_in", "GET", path+"?with=2", nil)
	ts.signIn("eve", datasetDownload).refused(403, "permission_missing", "GET", path+"?with=2", nil)
	if a := c.must(200, "GET", path+"?with=2", nil); strings.Join(a.header["Vary"], ",") != "Accept,Accept-Encoding" || string(a.body) == "" {
		t.Errorf("%v %s", a.header, a.body)
	}
	c.must(200, "HEAD", path+"?with=2", nil)
}

// TestCompareWhileRowsChange: rows that an analysis removes or changes meanwhile are not compared, and an error of the
// database or of the writer, or the end of the request, ends the comparison.
func TestCompareWhileRowsChange(t *testing.T) {
	t.Parallel()
	ts, _ := compareTest(t)
	var files []ElevationDatasetFileMeta
	for i := range 3 {
		files = append(files, placedFile(t, fmt.Sprint(i), 32632, 10, 0, 500_000+float64(i)*1000, 0, -20, 5_300_000))
	}
	ts.addChecked("new", files)
	ts.addChecked("old", files)
	failure := errors.New("the writer fails")
	compare := func(ctx context.Context, before func(statement int) error, emit func(comparedCell) error) (map[string]int64, error) {
		n := 0
		c := comparison{catalogue: ts.catalogue, here: dataset{ID: 1, Path: "new"}, there: dataset{ID: 2, Path: "old"}}
		c.query = func(do func(context.Context) error) error {
			n++
			return errors.Join(before(n), do(ctx))
		}
		err := c.each(ctx, emit)
		return c.totals, err
	}
	nothing := func(int) error { return nil }
	if _, err := compare(t.Context(), nothing, func(comparedCell) error { return failure }); err != failure {
		t.Errorf("the writer: %v", err)
	}
	for i := range 2 {
		_, err := compare(t.Context(), func(n int) error { return map[int]error{i + 1: failure}[n] }, func(comparedCell) error { return nil })
		if !errors.Is(err, failure) {
			t.Errorf("statement %d: %v", i+1, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	totals, err := compare(ctx, nothing, func(comparedCell) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || totals[isNotCompared] != 1 {
		t.Errorf("canceled: %v %v", totals, err)
	}

	totals, err = compare(t.Context(), func(n int) error {
		if n == 2 {
			ts.exec(`DELETE FROM elevation_dataset_file_meta WHERE path = '0' OR path = '1' AND dataset_id = 2`)
			ts.exec(`UPDATE elevation_dataset_file_meta SET status = 'corrupt', bbox = NULL WHERE path = '2' AND dataset_id = 1`)
		}
		return nil
	}, func(cell comparedCell) error {
		if cell.Detail != "an analysis has changed a row meanwhile" {
			t.Errorf("%v", cell)
		}
		return nil
	})
	if err != nil || !maps.Equal(totals, map[string]int64{isNotCompared: 3}) {
		t.Errorf("%v %v", totals, err)
	}
}

// TestCompareClientLeaves: when the client has left, the statement ends, and the request gives back all that it held.
func TestCompareClientLeaves(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 }) // no other statement waits for the lock
	c := ts.signIn("ada", datasetRead)
	ts.addChecked("new", nil)
	ts.addChecked("old", nil)
	release := ts.holdLock(`LOCK TABLE elevation_dataset_file_meta`)
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /api/v1/datasets/1/compare?with=2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", c.token)
	waitFor(t, "the statement to wait", func() bool { return waitingQueries(ts) == 1 })
	conn.Close()
	waitFor(t, "the slots to be given back", func() bool {
		return len(ts.limits.computing.total) == 0 && len(ts.limits.classes[stream].total) == 0 && len(ts.limits.pool.total) == 0
	})
	waitFor(t, "the statement to end", func() bool { return waitingQueries(ts) == 0 })
	release()
	c.must(200, "GET", "/api/v1/datasets/1/compare?with=2", nil)
}

// TestCompareModel compares random deliveries with a model: in each cell the files of the same path,
// then those with the same corner, then the others in order.
func TestCompareModel(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	random := rand.New(rand.NewPCG(11, 12))
	type key struct{ north, east int }
	for round := range 8 {
		var cells [2]map[key][]ElevationDatasetFileMeta
		var ids [2]int64
		for side := range cells {
			cells[side] = map[key][]ElevationDatasetFileMeta{}
			var all []ElevationDatasetFileMeta
			for i := range 60 {
				at := key{random.IntN(6), random.IntN(6)}
				x, y := 500_000+float64(at.east)*1000, 5_300_000+float64(at.north)*1000
				if i%10 == 9 { // it is moved by some pixels
					x += float64(random.IntN(7)-3) * 10
				}
				path := fmt.Sprintf("%d_%d_%d.tif", at.east, at.north, random.IntN(6))
				if slices.ContainsFunc(all, func(m ElevationDatasetFileMeta) bool { return m.Path == path }) {
					continue
				}
				m := placedFile(t, path, 32632, 10, 0, x, 0, -20, y+1000)
				m.SizeBytes = int64(side)*1000 + int64(i)
				m.Bands = new(1 + random.Int64N(2))
				all = append(all, m)
				cells[side][at] = append(cells[side][at], m)
			}
			ids[side] = ts.addChecked(fmt.Sprint(round, side), all)
		}

		var want []string
		for i := range 36 {
			at := key{i / 6, i % 6}
			want = append(want, modelOfCell(cells[0][at], cells[1][at])...)
		}
		got := c.compared(fmt.Sprint("/api/v1/datasets/", ids[0]), fmt.Sprint("/api/v1/datasets/", ids[1]))
		if got = got[:len(got)-1]; !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Fatalf("round %d: got %s\nwant %s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// modelOfCell returns how the cells of the comparison begin that these files make.
func modelOfCell(here, there []ElevationDatasetFileMeta) (lines []string) {
	byPath := func(a, b ElevationDatasetFileMeta) int { return strings.Compare(a.Path, b.Path) }
	slices.SortFunc(here, byPath)
	slices.SortFunc(there, byPath)
	pair := func(a, b ElevationDatasetFileMeta) {
		result := "other_content"
		if *a.Bands != *b.Bands || a.NativeBBox[0] != b.NativeBBox[0] {
			result = "other_metadata"
		}
		lines = append(lines, fmt.Sprintf("%s | %s | %s | ", result, a.Path, b.Path))
	}
	ours := here
	isSamePath := func(a, b ElevationDatasetFileMeta) bool { return a.Path == b.Path }
	isSameCorner := func(a, b ElevationDatasetFileMeta) bool { return a.NativeBBox[0] == b.NativeBBox[0] }
	for _, isPartner := range []func(a, b ElevationDatasetFileMeta) bool{isSamePath, isSameCorner} {
		var left []ElevationDatasetFileMeta
		for _, a := range ours {
			i := slices.IndexFunc(there, func(b ElevationDatasetFileMeta) bool { return isPartner(a, b) })
			if i < 0 {
				left = append(left, a)
				continue
			}
			pair(a, there[i])
			there = slices.Delete(slices.Clone(there), i, i+1)
		}
		ours = left
	}
	for i := range max(len(ours), len(there)) {
		switch {
		case i >= len(ours):
			lines = append(lines, "only_there | "+there[i].Path)
		case i >= len(there):
			lines = append(lines, "only_here | "+ours[i].Path)
		default:
			pair(ours[i], there[i])
		}
	}
	return lines
}

// TestCompareHoldsNothing: while files are read, the request holds neither a connection nor a slot to compute.
func TestCompareHoldsNothing(t *testing.T) {
	t.Parallel()
	ts, c := compareTest(t)
	here := ts.tilesIn(c, "new", "a.tif", tile(500, 5200, ""))
	there := ts.tilesIn(c, "old", "a.tif", tile(500, 5200, ""))
	var leave []func()
	for range maxFileCalls {
		release, err := ts.catalogue.fileCalls.acquire(t.Context(), "new")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, release)
	}
	answered := make(chan []string)
	go func() { answered <- c.compared(here, there) }()
	waitFor(t, "the opening to wait", func() bool { return ts.catalogue.fileCalls.length("new") > maxFileCalls })
	if cores, pool, streams := len(ts.limits.computing.total), len(ts.limits.pool.total), len(ts.limits.classes[stream].total); cores+pool != 0 || streams != 1 {
		t.Errorf("it holds %d slots to compute, %d of the pool, %d of streams", cores, pool, streams)
	}
	for _, release := range leave {
		release()
	}
	if got := <-answered; len(got) != 1 || got[0] != "map[same_content:1] map[here:0 there:0]" {
		t.Errorf("got %q", got)
	}
}
