package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestGapsBetween compares with a flood of each field of tiles from outside.
func TestGapsBetween(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 8))
	found := 0
	for range 5000 {
		const size = 9
		density := random.Float64()
		var tile, wet [size + 2][size + 2]bool
		var runs []cellRun
		minimum, maximum, n := [2]int{size + 2, size + 2}, [2]int{}, 0
		for r := 1; r <= size; r++ {
			for c := 1; c <= size; c++ {
				if tile[r][c] = random.Float64() < density; !tile[r][c] {
					continue
				}
				n++
				minimum, maximum = [2]int{min(minimum[0], r), min(minimum[1], c)}, [2]int{max(maximum[0], r), max(maximum[1], c)}
				if k := len(runs); k > 0 && runs[k-1].Row == int64(r) && runs[k-1].To == int64(c-1) {
					runs[k-1].To++
				} else {
					runs = append(runs, cellRun{int64(r), int64(c), int64(c)})
				}
			}
		}
		if n == 0 {
			continue
		}
		var flood func(r, c int)
		flood = func(r, c int) {
			if r >= 0 && c >= 0 && r < size+2 && c < size+2 && !tile[r][c] && !wet[r][c] {
				wet[r][c] = true
				flood(r-1, c)
				flood(r+1, c)
				flood(r, c-1)
				flood(r, c+1)
			}
		}
		flood(0, 0)
		var want, got []string
		full := isFullRectangle(maximum[0]-minimum[0]+1, maximum[1]-minimum[1]+1, func(row, column int) bool {
			return tile[minimum[0]+row][minimum[1]+column]
		})
		for r := range size + 2 {
			for c := range size + 2 {
				inside := r >= minimum[0] && r <= maximum[0] && c >= minimum[1] && c <= maximum[1]
				if !tile[r][c] && (!wet[r][c] || full && inside) {
					want = append(want, fmt.Sprint(r, " ", c))
				}
			}
		}
		gaps, isOpen := gapsBetween(runs, 0)
		if isOpen == full {
			t.Fatalf("%v: open %v, full %v", tile, isOpen, full)
		}
		for _, gap := range gaps {
			for c := gap.From; c <= gap.To; c++ {
				got = append(got, fmt.Sprint(gap.Row, " ", c))
			}
		}
		found += len(got)
		if !slices.Equal(got, want) {
			t.Fatalf("%v: got %v, want %v", tile, got, want)
		}
	}
	if found < 1000 {
		t.Errorf("%d gaps", found)
	}
	if gaps, _ := gapsBetween([]cellRun{{0, 0, 0}, {1 << 40, 1 << 50, 1 << 50}}, 0); len(gaps) > 0 {
		t.Errorf("between two far from each other: %v", gaps)
	}
}

// utmTIFF is a small GeoTIFF in UTM of 10 by 10 pixels of 100 m, whose lower left corner is there.
func utmTIFF(code, x, y float64, further ...testTag) []byte {
	tags := []testTag{shorts(tagImageWidth, 10), shorts(tagImageLength, 10), shorts(tagBitsPerSample, 16),
		doubles(tagModelPixelScale, 100, 100, 0), doubles(tagModelTiepoint, 0, 0, 0, x, y+1000, 0)}
	keys := geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, code})
	return testTIFF{order: binary.LittleEndian, tags: with(tags, keys, further)}.build()
}

// TestReport makes a clean folder, of which nothing is to be said, then plants each fault.
func TestReport(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	dir := filepath.Join(ts.datasets, "tiles")
	write := func(name string, content []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	name := func(x, y int) string { return fmt.Sprintf("dtm_32_%d_%d.tif", x, y) }
	for x := range 8 {
		for y := range 8 {
			if x+y > 3 { // not the corner: the covered area is not always a rectangle
				write(name(500+x, 5200+y), utmTIFF(32632, float64(500+x)*1000, float64(5200+y)*1000))
			}
		}
	}
	write("README.txt", []byte("These are tiles."))
	for x := range 5 { // and another grid, in degrees
		for y := range 5 {
			write(fmt.Sprintf("deg/n%02de%03d.tif", 46+y, 7+x), testTIFF{order: binary.LittleEndian, tags: with(testSize(), testKeys(),
				doubles(tagModelPixelScale, 0.25, 1.0/3, 0), doubles(tagModelTiepoint, 0, 0, 0, float64(7+x), float64(47+y), 0))}.build())
		}
	}
	clean := ts.addDataset(c, "clean", "tiles/deg")
	all := ts.addDataset(c, "all", "tiles")
	c.analyze(clean, nil)
	if a := c.must(200, "GET", clean+"/report", nil); len(a.json["findings"].([]any)) != 0 || a.number("files") != 25 || len(a.json["grids"].([]any)) != 1 {
		t.Errorf("a clean folder: %s", a.body)
	}
	if a := c.must(200, "GET", clean+"/report", nil, "Accept: text/plain"); !strings.HasPrefix(string(a.body), "25 of 25 files located\nno findings: dataset clean, 25 files, analysed 20") ||
		!strings.Contains(string(a.body), "\ngrid: 25 tiles of EPSG:4326, 1° by 1° from 7°, 46°, pixels of 0.25° by 0.3333°\n") {
		t.Errorf("a clean folder: %s", a.body)
	}
	if a := c.must(200, "GET", clean+"/gaps.geojson", nil); len(a.json["features"].([]any)) != 0 {
		t.Errorf("a clean folder: %s", a.body)
	}
	out := &lockedBuffer{}
	if err := run(context.Background(), []string{"report", "clean"}, ts.env, nil, out, out); err != nil || !strings.Contains(out.String(), "\nno findings") {
		t.Errorf("%v\n%s", err, out.String())
	}

	// Faults, each at a tile of its own.
	if err := os.RemoveAll(filepath.Join(dir, "deg")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, name(503, 5203))); err != nil {
		t.Fatal(err)
	}
	write("copy of a tile.tif", utmTIFF(32632, 502_000, 5202_000))
	write(name(505, 5203), utmTIFF(32632, 505_050, 5203_000))
	write(name(505, 5205), utmTIFF(32633, 505_000, 5205_000))
	write(name(502, 5206), utmTIFF(32632, 502_000, 5206_000, testTag{tag: tagGDALNoData, fieldType: 2, text: "-9999"}))
	write("dtm_32_999_5204.tif", utmTIFF(32632, 502_000, 5204_000))
	os.Remove(filepath.Join(dir, name(502, 5204)))
	write(name(506, 5206), utmTIFF(32632, 506_000, 5206_000)[:60])
	write(name(506, 5202), nil)
	write("dtm_32_504_5202b.tif", utmTIFF(32632, 504_500, 5202_000))
	c.analyze(all, nil)
	a := c.must(200, "GET", all+"/report", nil)
	got := map[string]string{}
	for _, item := range a.json["findings"].([]any) {
		f := item.(map[string]any)
		var of []string
		for _, file := range f["files"].([]any) {
			of = append(of, file.(map[string]any)["path"].(string))
		}
		tiles, _ := f["tiles"].([]any)
		for _, tile := range tiles {
			of = append(of, fmt.Sprintf("%.0f %.0f", tile.(map[string]any)["min_x"], tile.(map[string]any)["min_y"]))
		}
		if int(f["total"].(float64)) != len(of) || f["detail"] == "" {
			t.Errorf("%v", f)
		}
		got[f["code"].(string)] = strings.Join(of, ", ")
	}
	for code, want := range map[string]string{
		"missing":    "503000 5203000, 505000 5205000, 506000 5202000, 506000 5206000",
		"duplicate":  "copy of a tile.tif",
		"misaligned": "dtm_32_504_5202b.tif, " + name(505, 5203),
		"overlap":    "dtm_32_504_5202b.tif",
		"crs":        name(505, 5205),
		"nodata":     name(502, 5206),
		"name":       "dtm_32_999_5204.tif", // "copy of a tile.tif" holds no coordinates
		"corrupt":    name(506, 5206),
		"unreadable": name(506, 5202),
	} {
		if got[code] != want {
			t.Errorf("%s: got %q, want %q", code, got[code], want)
		}
		delete(got, code)
	}
	if len(got) > 0 {
		t.Errorf("findings that are none: %v", got)
	}
	gaps := c.must(200, "GET", all+"/gaps.geojson", nil).json["features"].([]any)
	if len(gaps) != 4 || gaps[1].(map[string]any)["properties"].(map[string]any)["min_x"] != 503_000.0 {
		t.Errorf("gaps: %v", gaps)
	}
	out = &lockedBuffer{}
	if err := run(context.Background(), []string{"report", "all"}, ts.env, nil, out, out); !errors.Is(err, errFindings) ||
		!strings.Contains(out.String(), "\nThe outline was not judged: the tiles form no rectangle. A boundary says where tiles have to be.\n") ||
		!strings.Contains(out.String(), "\nmissing: tiles are missing between the others, or inside the boundary (4)\n") ||
		!strings.HasPrefix(out.String(), "53 of 56 files located; 1 corrupt; 1 unreadable; 4 missing tiles; 1 misnamed; 2 misaligned; 1 overlapping; 1 in another CRS; 1 with another nodata value; 1 duplicate; 1 other file\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := run(context.Background(), []string{"report", "nothing"}, ts.env, nil, out, out); err == nil || errors.Is(err, errFindings) {
		t.Errorf("a dataset that is not there: %v", err)
	}
}

// addDataset registers a directory and returns the dataset's path.
func (ts *testServer) addDataset(c client, name, path string) string {
	ts.t.Helper()
	return c.must(201, "POST", "/api/v1/datasets", map[string]string{"name": name, "path": path}).header.Get("Location")
}

// TestNightly runs the nightly script of docs/jobs.md with a token that may do just that: on a clean folder, on one with a
// fault, once that is accepted, for a dataset that is unknown, without the token, and when the token has ended.
func TestNightly(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	dataset := ts.addDataset(c, "tiles of the alps", "tiles")
	ts.addUser("nightly", datasetAnalyze, datasetRead)
	home, script := t.TempDir(), filepath.Join(t.TempDir(), "cairn-nightly")
	token := ts.addToken("nightly", "nightly", datasetAnalyze, datasetRead).token
	blocks := examples(t, "docs/jobs.md", "bash")
	nightly := blocks[slices.IndexFunc(blocks, func(b string) bool { return strings.Contains(b, "\n# cairn-nightly ") })]
	if err := errors.Join(os.WriteFile(filepath.Join(home, "nightly-token"), []byte("Authorization: Bearer "+token+"\n"), 0o600),
		os.WriteFile(script, []byte(strings.Replace(nightly, "http://127.0.0.1:8080", ts.url, 1)), 0o755)); err != nil {
		t.Fatal(err)
	}
	nightOf := func(home, dataset string, status int, shows string) {
		t.Helper()
		cmd := exec.Command(script, dataset)
		cmd.Env = append(os.Environ(), "HOME="+home)
		output, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(string(output), shows) {
			t.Errorf("%v, exit status %d\n%s", err, got, output)
		}
	}
	night := func(status int, shows string) {
		t.Helper()
		nightOf(home, "tiles of the alps", status, shows)
	}
	for i, content := range [][]byte{geographicTIFF(7, 47), geographicTIFF(8, 47)[:100]} {
		if err := os.WriteFile(filepath.Join(ts.datasets, "tiles", fmt.Sprint(i, ".tif")), content, 0o644); err != nil {
			t.Fatal(err)
		}
		night(3*i, []string{"\nno findings", "\n1 error:"}[i])
	}
	c.must(201, "POST", dataset+"/accepted-findings", map[string]string{"code": "no_extent", "path": "1.tif", "note": "known"})
	night(0, "\nno findings")
	nightOf(home, "tiles", 1, "cairn-nightly: "+ts.url+" has no dataset tiles\n")
	nightOf(t.TempDir(), "tiles of the alps", 1, "cairn-nightly: there is no token in ")
	ts.exec(`DELETE FROM api_tokens`)
	night(1, `"code":"invalid_token"`)
}

// reported returns the findings of a report: of each code the files and tiles, with their details.
func (c client) reported(dataset string) map[string][]string {
	c.t.Helper()
	found := map[string][]string{}
	for _, item := range c.must(200, "GET", dataset+"/report", nil).json["findings"].([]any) {
		f := item.(map[string]any)
		code := f["code"].(string)
		for _, file := range f["files"].([]any) {
			found[code] = append(found[code], fmt.Sprint(file.(map[string]any)["path"], ": ", file.(map[string]any)["detail"]))
		}
		tiles, _ := f["tiles"].([]any)
		for _, tile := range tiles {
			found[code] = append(found[code], tile.(map[string]any)["name"].(string))
		}
	}
	return found
}

// tilesIn registers and analyses a directory with these files, each a second older than the one before.
func (ts *testServer) tilesIn(c client, name string, files ...any) (dataset string) {
	ts.t.Helper()
	if err := os.Mkdir(filepath.Join(ts.datasets, name), 0o755); err != nil {
		ts.t.Fatal(err)
	}
	for i := 0; i < len(files); i += 2 {
		path, at := filepath.Join(ts.datasets, name, files[i].(string)), time.Now().Add(-time.Hour-time.Duration(i)*time.Second)
		if err := errors.Join(os.WriteFile(path, files[i+1].([]byte), 0o644), os.Chtimes(path, at, at)); err != nil {
			ts.t.Fatal(err)
		}
	}
	dataset = ts.addDataset(c, name, name)
	c.analyze(dataset, nil)
	return dataset
}

// TestNoFalseStatements: folders that are in order, or have one fault, of which the report says nothing more.
func TestNoFalseStatements(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	utm := func(code, x float64, further ...testTag) []byte { return utmTIFF(code, x*1000, 5200_000, further...) }
	double := []testTag{shorts(tagSampleFormat, 3), shorts(tagBitsPerSample, 64)}
	inUnit := func(unit string) testTag { return metadataTag(metadataItem("unittype", unit, 0)) }
	place := []testTag{doubles(tagModelPixelScale, 100, 100, 0), doubles(tagModelTiepoint, 0, 0, 0, 503_000, 5201_000, 0)}
	size := []testTag{shorts(tagImageWidth, 10), shorts(tagImageLength, 10), shorts(tagBitsPerSample, 16)}
	noCRS := testTIFF{order: binary.LittleEndian, tags: with(size, place)}.build()
	degrees := testTIFF{order: binary.LittleEndian, tags: with(size, testKeys(),
		doubles(tagModelPixelScale, 0.1, 0.1, 0), doubles(tagModelTiepoint, 0, 0, 0, 7, 47, 0))}.build()
	coarse := testTIFF{order: binary.LittleEndian, tags: with(size, doubles(tagModelPixelScale, 300, 300, 0), place[1],
		geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 32632}))}.build()
	for _, test := range []struct {
		name  string
		files []any
		want  map[string][]string
	}{
		{"metres and degrees", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32632, 502), "d", utm(32632, 503), "e", degrees},
			map[string][]string{"crs": {"e: EPSG:4326 (WGS 84) where EPSG:32632 (WGS 84 / UTM zone 32N) is usual"}}},
		{"a tie", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32632, 502, double...), "d", utm(32632, 503, double...)},
			map[string][]string{"mixed": {".: data type: 2 files float32, 2 files uint16"}}},
		{"two zones", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32633, 500), "d", utm(32633, 501), "e", utm(32632, 502)},
			map[string][]string{"mixed": {".: CRS: 3 files EPSG:32632 (WGS 84 / UTM zone 32N), 2 files EPSG:32633 (WGS 84 / UTM zone 33N)"}}},
		{"a copy that sorts first", []any{"a copy of b", utm(32632, 500), "b", utm(32632, 500), "c", utm(32632, 501), "d", utm(32632, 502)},
			map[string][]string{"duplicate": {"a copy of b: the same content as b"}}},
		{"no CRS", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32632, 502), "d", noCRS, "e", utm(32632, 504), "f", utm(32632, 505)},
			map[string][]string{"no_extent": {"d: the file does not name its CRS; set one for the dataset, or assign one to the file, for example with gdal_edit.py -a_srs"}}},
		{"the metre in several spellings", []any{"a", utm(32632, 500, inUnit("m")), "b", utm(32632, 501, inUnit("Metre")), "c", utm(32632, 502, inUnit("meters"))},
			map[string][]string{}},
		{"feet", []any{"a", utm(32632, 500, inUnit("m")), "b", utm(32632, 501, inUnit("m")), "c", utm(32632, 502, inUnit("metre")), "d", utm(32632, 503, inUnit("ft"))},
			map[string][]string{"unit": {"d: foot where m is usual"}}},
		{"no unit", []any{"a", utm(32632, 500, inUnit("m")), "b", utm(32632, 501, inUnit("m")), "c", utm(32632, 502, inUnit("m")), "d", utm(32632, 503)},
			map[string][]string{}},
		{"a scale", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32632, 502), "d", utm(32632, 503, metadataTag(metadataItem("scale", "0.10", 0), metadataItem("offset", "-1e2", 0)))},
			map[string][]string{"scale": {"d: scale 0.1, offset -100 where 1 is usual"}}},
		{"another pixel size", []any{"a", utm(32632, 500), "b", utm(32632, 501), "c", utm(32632, 502), "d", coarse},
			map[string][]string{"resolution": {"d: pixels of 300 m where 100 m is usual"}}},
	} {
		got := c.reported(ts.tilesIn(c, test.name, test.files...))
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

// TestCopies: files at one place with the same size are duplicates if their contents are equal, else overlaps. Links to a
// file are neither.
func TestCopies(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	raster := utmTIFF(32632, 500_000, 5_200_000)
	content, other := append(raster, 1), append(slices.Clone(raster), 2) // a byte that no tag refers to
	dataset := ts.tilesIn(c, "copies", "a.tif", content, "a copy.tif", content, "another.tif", other)
	dir := filepath.Join(ts.datasets, "copies")
	err := errors.Join(os.Link(filepath.Join(dir, "a.tif"), filepath.Join(dir, "a hard link.tif")), os.Symlink("a.tif", filepath.Join(dir, "a symbolic link.tif")))
	if err != nil {
		t.Fatal(err)
	}
	c.analyze(dataset, nil)
	want := map[string][]string{"duplicate": {"a copy.tif: the same content as a.tif"},
		"overlap": {"another.tif: the same extent and size in bytes, but other content: a.tif"}}
	if got := c.reported(dataset); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}

	// Without the files, nobody can say more than that they seem to be copies.
	var id int64
	fmt.Sscanf(dataset, "/api/v1/datasets/%d", &id)
	ts.checkRows(id)
	const seems = "the same extent, pixels and size in bytes as a.tif"
	if got := fmt.Sprint(c.reported(dataset)["duplicate"]); strings.Count(got, seems) != 4 {
		t.Errorf("without files: %s", got)
	}
}

// TestReportWarnings: the report names the files that were read with a warning, and so does the list that it links to.
func TestReportWarnings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	var files []any
	for x := range 30 {
		files = append(files, fmt.Sprintf("%02d.tif", x), utmTIFF(32632, float64(500+x)*1000, 5200_000))
		if x >= 5 {
			files = append(files, fmt.Sprintf("%02d.tfw", x), []byte("100\n0\n0\n-100\n1\n2\n"))
		}
	}
	dataset := ts.tilesIn(c, "stale", files...)
	got := c.reported(dataset)
	if len(got["warning"]) != 20 || len(got) != 1 || !strings.HasPrefix(got["warning"][0], "05.tif: its world file and its tags differ by") {
		t.Errorf("%v", got)
	}
	finding := c.must(200, "GET", dataset+"/report", nil).json["findings"].([]any)[0].(map[string]any)
	var all []string
	for next := finding["all"].(string) + "?limit=10"; next != ""; {
		a := c.must(200, "GET", next, nil)
		for _, item := range a.items() {
			all = append(all, item["path"].(string))
		}
		next, _, _ = strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
	}
	if len(all) != 25 || finding["total"] != 25.0 || !slices.IsSorted(all) || all[24] != "29.tif" {
		t.Errorf("%v: %v", finding, all)
	}
	c.refused(404, "not_found", "GET", dataset+"/findings/nothing", nil)
}

// TestAcceptedFindings: an accepted finding is no longer reported, a new one of the same kind is, and who accepted it and
// why is kept and audited.
func TestAcceptedFindings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	tile := func(x float64) []byte { return utmTIFF(32632, x*1000, 5200_000) }
	var files []any
	for _, x := range []int{0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19} {
		files = append(files, fmt.Sprintf("%02d.tif", x), tile(500+float64(x)))
	}
	dataset := ts.tilesIn(c, "tiles", append([]any{"old.tif", tile(0)[:60], "odd.tif", tile(0)[:60]}, files...)...)
	report := func(status int, first, second string) {
		t.Helper()
		out := &lockedBuffer{}
		err := run(context.Background(), []string{"report", "tiles"}, ts.env, nil, out, out)
		if lines := strings.SplitN(out.String(), "\n", 3); status != map[bool]int{true: 3, false: 0}[errors.Is(err, errFindings)] || status == 0 && err != nil ||
			lines[0] != first || !strings.HasPrefix(lines[1], second) {
			t.Errorf("%v\n%s", err, out)
		}
	}
	const sum = "18 of 20 files located; 2 corrupt; 2 missing tiles"
	report(3, sum, "4 errors: dataset tiles, 20 files, analysed ")
	accept := func(body map[string]any) map[string]any {
		t.Helper()
		return onlyItem(t, "accepted", c.must(201, "POST", dataset+"/accepted-findings", body).items())
	}
	a := accept(map[string]any{"code": "corrupt", "path": "old.tif", "note": "kept for the lawyers"})
	if a["path"] != "old.tif" || a["note"] != "kept for the lawyers" || a["accepted_by"] != "ada" {
		t.Errorf("%v", a)
	}
	accept(map[string]any{"code": "missing", "path": "EPSG:32632 503000 5200000", "note": "a lake"})
	if got := c.reported(dataset); len(got["corrupt"]) != 1 || !strings.HasPrefix(got["corrupt"][0], "odd.tif") ||
		fmt.Sprint(got["missing"]) != "[EPSG:32632 506000 5200000]" {
		t.Errorf("%v", got)
	}
	if items := c.must(200, "GET", dataset+"/findings/corrupt", nil).items(); len(items) != 1 || items[0]["path"] != "odd.tif" {
		t.Errorf("%v", items)
	}
	c.refused(409, "already_accepted", "POST", dataset+"/accepted-findings", map[string]any{"code": "corrupt", "path": "old.tif", "note": "again"})
	accept(map[string]any{"code": "corrupt", "paths": []string{"old.tif", "odd.tif"}, "note": "too"}) // only one is new
	last := accept(map[string]any{"code": "missing", "note": "all lakes"})["id"]
	report(0, sum, "no findings: dataset tiles, 20 files")
	if a := c.must(200, "GET", dataset+"/report", nil); fmt.Sprint(a.json["accepted"]) != "[map[code:corrupt total:2] map[code:missing total:2]]" {
		t.Errorf("%s", a.body)
	}
	if items := c.must(200, "GET", dataset+"/accepted-findings", nil).items(); len(items) != 4 || items[3]["path"] != nil || items[3]["code"] != "missing" {
		t.Errorf("%v", items)
	}
	if err := os.WriteFile(filepath.Join(ts.datasets, "tiles", "new.tif"), tile(0)[:60], 0o644); err != nil {
		t.Fatal(err)
	}
	c.analyze(dataset, nil)
	report(3, "18 of 21 files located; 3 corrupt; 2 missing tiles", "1 error:")
	c.must(204, "DELETE", fmt.Sprint(dataset, "/accepted-findings/", last), nil)
	c.refused(404, "not_found", "DELETE", fmt.Sprint(dataset, "/accepted-findings/", last), nil)
	if got := c.reported(dataset); fmt.Sprint(got["missing"]) != "[EPSG:32632 506000 5200000]" {
		t.Errorf("%v", got)
	}
	for _, body := range []map[string]any{{"code": "corrupt"}, {"code": "nothing", "note": "n"}, {"code": "corrupt", "path": "none.tif", "note": "n"},
		{"code": "corrupt", "paths": []string{"old.tif", "none.tif"}, "note": "n"}, {"code": "corrupt", "paths": []string{}, "note": "n"},
		{"code": "corrupt", "path": "old.tif", "paths": []string{"odd.tif"}, "note": "n"},
		{"code": "corrupt", "path": "", "note": "n"}, {"code": "corrupt", "path": "*a*b*c*d*", "note": "n"},
		{"code": "corrupt", "path": strings.Repeat("a", maxPath+1) + "*", "note": "n"}} {
		c.refused(422, "invalid", "POST", dataset+"/accepted-findings", body)
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE target = 'dataset:tiles' AND actor = 'ada'
		AND (action = 'finding.accept' AND after ->> 'note' <> '' OR action = 'finding.reopen' AND before ->> 'note' = 'all lakes')`); n != 5 {
		t.Errorf("%d rows of the audit log", n)
	}
}

// TestAcceptedMissing: a missing tile is accepted by its name, or by the path that its file should have. The text has both.
func TestAcceptedMissing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	name := func(x, y int) string { return fmt.Sprintf("dtm_32_%d_%d.tif", x, y) }
	var files []any
	for i := range 36 {
		x, y := 500+i%6, 5200+i/6
		if x != y-4700 || i == 0 || i == 35 { // four are missing: 501 5201 to 504 5204
			files = append(files, name(x, y), utmTIFF(32632, float64(x)*1000, float64(y)*1000))
		}
	}
	dataset := ts.tilesIn(c, "tiles", files...)
	text := string(c.must(200, "GET", dataset+"/report", nil, "Accept: text/plain").body)
	checkHas(t, "text", text, "\n  EPSG:32632 501000 5201000: "+name(501, 5201)+": from 501000 m, 5201000 m to 502000 m, 5202000 m\n")

	accept := dataset + "/accepted-findings"
	for _, path := range []string{"nonsense", name(500, 5200)} {
		a := c.refused(422, "invalid", "POST", accept, map[string]any{"code": "missing", "paths": []string{path}, "note": "a lake"})
		checkHas(t, "refusal", string(a.body), "for a missing tile, give its name, such as EPSG:")
	}
	paths := []string{name(501, 5201), "EPSG:32632 502000 5202000", "EPSG:32632 501000 5201000"}
	items := c.must(201, "POST", accept, map[string]any{"code": "missing", "paths": paths, "note": "lakes"}).items()
	accepted := make([]string, len(items))
	for i, item := range items {
		accepted[i] = item["path"].(string)
	}
	slices.Sort(accepted)
	check(t, "accepted tiles", strings.Join(accepted, ", "), "EPSG:32632 501000 5201000, EPSG:32632 502000 5202000")
	check(t, "missing tiles after that", fmt.Sprint(c.reported(dataset)["missing"]), "[EPSG:32632 503000 5203000 EPSG:32632 504000 5204000]")
	c.refused(409, "already_accepted", "POST", accept, map[string]any{"code": "missing", "path": name(501, 5201), "note": "again"})
}

// TestNeverAnalysed: of a dataset that was never analysed the report says so, and the command ends as with findings.
func TestNeverAnalysed(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("new", nil))
	out := &lockedBuffer{}
	err := run(context.Background(), []string{"report", "new"}, ts.env, nil, out, out)
	if !errors.Is(err, errFindings) || !strings.HasPrefix(out.String(), "never analysed\nnot checked: dataset new, 0 files\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if a := c.must(200, "GET", dataset+"/report", nil); a.text("summary") != "never analysed" || a.json["analyzed_at"] != nil {
		t.Errorf("%s", a.body)
	}
	if err := os.Mkdir(filepath.Join(ts.datasets, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	c = ts.signIn("bob", datasetRead, datasetManage, datasetAnalyze)
	empty := c.addDataset("empty")
	c.analyze(empty, nil)
	if a := c.must(200, "GET", empty+"/report", nil); a.text("summary") != "no files in the directory" {
		t.Errorf("%s", a.body)
	}
}

// TestLargeTiles: a raster as large as 8 cells of a grid of tiles is no tile of it.
func TestLargeTiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	for cells, want := range map[float64]int{7: 1, 9: 0} {
		t.Run(fmt.Sprintf("%v cells", cells), func(t *testing.T) {
			var files []ElevationDatasetFileMeta
			for i := range 20 { // 1 km each
				x, y := 500_000+float64(i%5)*1000, 5_300_000+float64(i/5)*1000
				files = append(files, placedFile(t, fmt.Sprintf("%d.tif", i), 32632, 10, 0, x, 0, -20, y))
			}
			large := placedFile(t, "large.tif", 32632, 10, 0, 500_000, 0, -20, 5_303_000)
			large.Width, large.Height = new(int64(100*cells)), new(int64(50*cells))
			large.NativeBBox[2] = large.NativeBBox[0] + 1000*cells
			large.NativeBBox[1] = large.NativeBBox[3] - 1000*cells
			id := ts.addChecked(fmt.Sprintf("tiles %v", cells), append(files, large))

			found := c.must(200, "GET", fmt.Sprintf("/api/v1/datasets/%d/findings/overlap", id), nil).items()
			if len(found) < want || want == 0 && len(found) > 0 {
				t.Errorf("overlaps %v, want at least %d", found, want)
			}
		})
	}
}

// TestReportArea: a large area is written in digits, without an exponent.
func TestReportArea(t *testing.T) {
	t.Parallel()
	ts := startUsed(t)
	report := ts.signIn("root", "all").must(200, "GET", "/api/v1/datasets/1/report", nil, "Accept: text/plain")
	if covered := regexp.MustCompile(`covered: about \d{5} km²\n`); !covered.Match(report.body) {
		t.Errorf("%s", report.body)
	}
}
