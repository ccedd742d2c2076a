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
		full := 8*n >= 7*(maximum[0]-minimum[0]+1)*(maximum[1]-minimum[1]+1)
		for r := range size + 2 {
			for c := range size + 2 {
				inside := r >= minimum[0] && r <= maximum[0] && c >= minimum[1] && c <= maximum[1]
				if !tile[r][c] && (!wet[r][c] || full && inside && n > 0) {
					want = append(want, fmt.Sprint(r, " ", c))
				}
			}
		}
		for _, gap := range gapsBetween(runs, 0) {
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
	if gaps := gapsBetween([]cellRun{{0, 0, 0}, {1 << 40, 1 << 50, 1 << 50}}, 0); len(gaps) > 0 {
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
	if a := c.must(200, "GET", clean+"/report", nil, "Accept: text/plain"); !strings.HasPrefix(string(a.body), "no findings: dataset clean, 25 files\ngrid: 25 tiles of EPSG:4326, 1 by 1 from") {
		t.Errorf("a clean folder: %s", a.body)
	}
	if a := c.must(200, "GET", clean+"/gaps.geojson", nil); len(a.json["features"].([]any)) != 0 {
		t.Errorf("a clean folder: %s", a.body)
	}
	out := &lockedBuffer{}
	if err := run(context.Background(), []string{"report", "clean"}, ts.env, nil, out, out); err != nil || !strings.HasPrefix(out.String(), "no findings") {
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
		"missing":    "506000 5202000, 503000 5203000, 505000 5205000, 506000 5206000",
		"duplicate":  name(502, 5202),
		"seam":       name(505, 5203),
		"overlap":    name(505, 5202),
		"crs":        name(505, 5205),
		"nodata":     name(502, 5206),
		"name":       "copy of a tile.tif, dtm_32_999_5204.tif",
		"unreadable": name(506, 5202) + ", " + name(506, 5206),
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
		!strings.Contains(out.String(), "\nmissing: tiles are missing inside the area that the others cover (4)\n") {
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

// TestNightly runs the README's script with a token that may do just that: on a clean folder, and on one with a fault.
func TestNightly(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```bash\n(.*?)```").FindStringSubmatch(string(readme))
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(ts.addDataset(c, "tiles", "tiles"), "/datasets/")
	ts.addUser("nightly", datasetAnalyze, datasetRead)
	secrets, script := t.TempDir(), filepath.Join(t.TempDir(), "cairn-nightly")
	token := ts.addToken("nightly", "nightly", datasetAnalyze, datasetRead).token
	if err := errors.Join(os.WriteFile(filepath.Join(secrets, "token"), []byte(token+"\n"), 0o600),
		os.WriteFile(script, []byte(strings.Replace(blocks[1], "http://127.0.0.1:8080", ts.url, 1)), 0o755)); err != nil {
		t.Fatal(err)
	}
	for i, content := range [][]byte{geographicTIFF(7, 47), geographicTIFF(8, 47)[:100]} {
		if err := os.WriteFile(filepath.Join(ts.datasets, "tiles", fmt.Sprint(i, ".tif")), content, 0o644); err != nil {
			t.Fatal(err)
		}
		night := exec.Command(script, id)
		night.Env = append(os.Environ(), "CREDENTIALS_DIRECTORY="+secrets)
		output, err := night.CombinedOutput()
		if got := night.ProcessState.ExitCode(); got != 3*i || !strings.Contains(string(output), []string{"no findings", "1 findings"}[i]) {
			t.Errorf("%v, exit status %d\n%s", err, got, output)
		}
	}
}
