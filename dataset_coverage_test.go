package main

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCoverage: the picture is well-formed XML of bounded size whatever is in it, and its headers let it do nothing.
func TestCoverage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	random := rand.New(rand.NewPCG(3, 4))
	world := worldFiles(t, random, 6000)
	noisy := make([]ElevationDatasetFileMeta, 30_000) // nothing that could be joined
	for i := range noisy {
		noisy[i] = world[i%6000]
		noisy[i].Path = fmt.Sprint(i)
		lon, lat := random.Float64()*359-180, random.Float64()*179-90
		noisy[i].BBox = []float64{lon, lat, lon + 0.1, lat + 0.1}
		noisy[i].ResolutionM = new(random.Float64() * 150)
	}
	utm := func(n int) (files []ElevationDatasetFileMeta) {
		for i := range n {
			files = append(files, placedFile(t, fmt.Sprint(i), 32632, 10, 0, 400_000+float64(i%40)*1000, 0, -20, 5_300_000+float64(i/40)*1000))
		}
		return files
	}
	across := []ElevationDatasetFileMeta{placedFile(t, "a", 4326, 0.01, 0, 178.5, 0, -0.02, 1), placedFile(t, "b", 4326, 0.01, 0, 179.5, 0, -0.02, 1),
		placedFile(t, "c", 4326, 0.01, 0, -179.5, 0, -0.02, 1)}
	for _, test := range []struct {
		name  string
		files []ElevationDatasetFileMeta
		shows []string
	}{
		{"empty", nil, []string{"no files"}},
		{`</svg><script>alert(1)</script> & "quotes"`, utm(1), []string{"1 file (ok: 1)", "7 m to 15 m: 1"}},
		{"noisy", noisy, []string{"30000 files", "70 m to 200 m: "}},
		{"world", world, []string{"6000 files", "0°", "30°E", "60°W"}},
		{"many", utm(1600), []string{"1600 files", "48°N"}},
		{"across", across, []string{"extent: 178.5°E 0° to 178.5°W 1°N", ">180°E<", ">179°W<"}},
	} {
		dataset := fmt.Sprintf("/api/v1/datasets/%d/coverage.svg", ts.addChecked(test.name, test.files))
		for _, query := range []string{"", "?color=resolution", "?color=status"} {
			a := c.do("GET", dataset+query, nil)
			if a.status != 200 {
				t.Fatal(ts.log)
			}
			text := ""
			for decoder := xml.NewDecoder(bytes.NewReader(a.body)); ; {
				token, err := decoder.Token()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v\n%.500s", test.name, err, a.body)
				}
				if element, ok := token.(xml.StartElement); ok && element.Name.Local == "script" {
					t.Errorf("%s: a script", test.name)
				}
				if data, ok := token.(xml.CharData); ok {
					text += ">" + string(data) + "<"
				}
			}
			for _, want := range append(test.shows, test.name) {
				if query != "?color=status" && !strings.Contains(text, want) {
					t.Errorf("%s: does not show %q", test.name, want)
				}
			}
			// Sizes of pixels are not taken for heights, and a picture by status has none.
			if got, want := strings.Contains(text, ">size of a pixel:<"), len(test.files) > 0 && query != "?color=status"; got != want {
				t.Errorf("%s%s: says what the sizes are: %v, want %v", test.name, query, got, want)
			}
			if len(a.body) > 1_000_000 || a.header.Get("Content-Type") != "image/svg+xml" ||
				a.header.Get("Content-Security-Policy") != "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'" {
				t.Errorf("%s: %d bytes, %v", test.name, len(a.body), a.header)
			}
			for _, bad := range []string{"NaN", "Inf", "ZgotmplZ"} {
				if strings.Contains(string(a.body), bad) {
					t.Errorf("%s: %s", test.name, bad)
				}
			}
		}
		c.refused(422, "invalid", "GET", dataset+"?color=red", nil)
	}
}

// georeferenced is a small GeoTIFF of n by n pixels of that size in a CRS, with its lower left corner at x and y.
func georeferenced(code int, pixel float64, n, x, y float64) []byte {
	key := [4]float64{3072, 0, 1, float64(code)}
	model := 1.0
	if crs, err := crsByCode(code); err == nil && crs.projection.formula == formulaGeographic {
		key[0], model = 2048, 2
	}
	return testTIFF{order: binary.LittleEndian, tags: with(shorts(tagImageWidth, n), shorts(tagImageLength, n), shorts(tagBitsPerSample, 16),
		doubles(tagModelPixelScale, pixel, pixel, 0), doubles(tagModelTiepoint, 0, 0, 0, x, y+n*pixel, 0),
		geoKeyTag([4]float64{1024, 0, 1, model}, [4]float64{1025, 0, 1, 1}, key))}.build()
}

// TestCoastlineFiles: the files of the coast are small, and each of their points is a place in the box of its line.
func TestCoastlineFiles(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]coastReader{"110m": coastline110m, "10m": coastline10m} {
		points, kinds := 0, map[int]int{}
		for rest := file; len(rest) > 0; {
			size := rest.next()
			line := rest[:size]
			rest = rest[size:]
			kinds[line.next()]++
			west, south, east, north := line.next(), line.next(), line.next(), line.next()
			if west < -180_000 || south < -90_000 || east > 180_000 || north > 90_000 {
				t.Fatalf("%s: a box %d %d %d %d", name, west, south, east, north)
			}
			for lon, lat := 0, 0; len(line) > 0; points++ {
				lon += line.next()
				lat += line.next()
				if lon < west || lon > east || lat < south || lat > north {
					t.Fatalf("%s: %d, %d outside %d %d %d %d", name, lon, lat, west, south, east, north)
				}
			}
		}
		if points < 8000 || len(file) > 900_000 || len(kinds) != 2 || kinds[lineCoast] < 250 || kinds[lineBorder] < 250 {
			t.Errorf("%s: %d points in %d bytes, lines by kind: %v", name, points, len(file), kinds)
		}
	}
}

// TestClippedPath: a path has the segments that the map shows, and leaves out points that are close to the last one.
func TestClippedPath(t *testing.T) {
	t.Parallel()
	m := mapFrame{left: 60, top: 60, width: 720, height: 540}
	for _, test := range []struct {
		name  string
		lines [][]position
		step  float64
		want  string
	}{
		{"inside", [][]position{{{100, 100}, {110, 90}, {120, 90}}}, 1, "M100 100l10 -10l10 0"},
		{"a point twice", [][]position{{{100, 100}, {100, 100}, {120, 90}}}, 1, "M100 100l20 -10"},
		{"beside the map", [][]position{{{0, 100}, {50, 300}, {0, 500}}}, 1, ""},
		{"out and in again", [][]position{{{70, 100}, {50, 100}, {40, 100}, {50, 120}, {70, 120}}}, 1, "M70 100l-20 0M50 120l20 0"},
		{"across the map", [][]position{{{0, 300}, {900, 310}}}, 1, "M0 300l900 10"},
		{"lines that go on", [][]position{{{100, 100}, {110, 100}}, {{110, 100}, {120, 100}}}, 1, "M100 100l10 0l10 0"},
		{"close points", [][]position{{{100, 100}, {103, 100}, {106, 100}, {107, 100}}}, 5, "M100 100l6 0l1 0"},
		{"a small island", [][]position{{{100, 100}, {103, 100}, {100, 100}}}, 5, ""},
	} {
		check(t, test.name, m.clippedPath(test.lines, test.step), test.want)
	}
}

// TestCoastline: a map under 40 degrees of latitude wide shows the fine coast, a wider one the coarse coast. The paths stay
// small wherever the map is, and have their points in whole pixels.
func TestCoastline(t *testing.T) {
	t.Parallel()
	points := func(m mapFrame) (n int) {
		for _, line := range m.coastLines(lineCoast) {
			n += len(line)
		}
		return n
	}
	norway := mapBox{8, 58, 32, 71}
	fine, coarse := frameFor(norway), frameFor(norway.around(20, 64, 2.5))
	if fine.width/fine.perLat >= 40 || coarse.width/coarse.perLat < 40 {
		t.Fatalf("the frames have %v and %v pixels per degree", fine.perLat, coarse.perLat)
	}
	if points(fine) < 5000 || points(coarse) > 2000 {
		t.Errorf("%d fine and %d coarse points", points(fine), points(coarse))
	}

	isPath := regexp.MustCompile(`^(M-?\d+ -?\d+(l-?\d+ -?\d+)+)*$`)
	for width := 0.5; width < 300; width *= 2.2 {
		for lon := -180.0; lon < 180; lon += 45 {
			for lat := -75.0; lat <= 75; lat += 25 {
				m := frameFor(mapBox{lon, max(lat-width/3, -90), lon + width, min(lat+width/3, 90)})
				coasts, borders := m.coastline(lineCoast, maxCoastBytes), m.coastline(lineBorder, maxBorderBytes)
				if len(coasts) > maxCoastBytes || len(borders) > maxBorderBytes {
					t.Errorf("at %v, %v, %v wide: %d and %d bytes", lon, lat, width, len(coasts), len(borders))
				}
				if !isPath.MatchString(coasts) || !isPath.MatchString(borders) {
					t.Errorf("at %v, %v, %v wide: %.80s, %.80s", lon, lat, width, coasts, borders)
				}
			}
		}
	}

	// The coast goes on across 180 degrees, and a pole may lie in the map.
	fiji, antarctica := frameFor(mapBox{170, -25, 190, -10}), frameFor(mapBox{-180, -90, 180, -62})
	if points(fiji) < 300 || points(antarctica) < 500 {
		t.Errorf("%d points around Fiji, %d around Antarctica", points(fiji), points(antarctica))
	}
	check(t, "coast in the middle of Asia", frameFor(mapBox{80, 46, 81, 47}).coastline(lineCoast, maxCoastBytes), "")
}

// TestOutliers: files at one end and far from the others are outliers, unless they are many.
func TestOutliers(t *testing.T) {
	t.Parallel()
	cell := func(n int64, west, south float64) filesCell {
		return filesCell{N: n, mapBox: mapBox{west, south, west + 1, south + 1}}
	}
	for _, test := range []struct {
		name  string
		cells []filesCell
		want  int64
	}{
		{"one block", []filesCell{cell(50, 7, 47), cell(50, 8, 47)}, 0},
		{"one far away", []filesCell{cell(50, 7, 47), cell(50, 8, 47), cell(1, 0, 0)}, 1},
		{"on both sides", []filesCell{cell(50, 7, 47), cell(1, -120, 47), cell(1, 120, 47)}, 2},
		{"near", []filesCell{cell(50, 7, 47), cell(1, 8.5, 47)}, 0},
		{"two countries", []filesCell{cell(50, 7, 47), cell(50, -100, 40)}, 0},
		{"of four", []filesCell{cell(3, 7, 47), cell(1, 80, 40)}, 1},
		{"of two", []filesCell{cell(1, 7, 47), cell(1, 80, 40)}, 0},
		{"all over the world", []filesCell{cell(9, -170, -50), cell(9, -60, 0), cell(9, 60, 40), cell(1, 170, 80)}, 0},
	} {
		rest, outliers := splitOutliers(test.cells)
		n := int64(0)
		for _, c := range outliers {
			n += c.N
		}
		if n != test.want || len(rest)+len(outliers) != len(test.cells) {
			t.Errorf("%s: %d outliers, want %d", test.name, n, test.want)
		}
	}
}

// sampleFolders returns five folders as teams have them, by name, with what their files hold by path.
func sampleFolders() map[string]map[string][]byte {
	folders := map[string]map[string][]byte{"holes": {}, "state": {}, "world": {}, "polar": {}, "outlier": {}}
	for lon := 5; lon < 18; lon++ {
		for lat := 44; lat < 52; lat++ {
			if !slices.Contains([]int{844, 946, 1047, 1048, 1146, 1549, 1247, 650}, lon*100+lat) {
				folders["holes"][fmt.Sprintf("n%02de%03d.tif", lat, lon)] = georeferenced(4326, 0.1, 10, float64(lon), float64(lat))
			}
		}
	}
	for x := range 60 {
		for y := range 50 {
			dx, dy := float64(x-30)/30, float64(y-25)/25
			hole := x > 20 && x < 24 && y > 30 && y < 34 || (x+7*y)%211 == 0
			if dx*dx+dy*dy+0.15*math.Sin(5*math.Atan2(dy, dx)) < 0.9 && !hole {
				folders["state"][fmt.Sprintf("dgm1_32_%d_%d.tif", 500+x, 5400+y)] =
					georeferenced(25832, 1, 1000, float64(500+x)*1000, float64(5400+y)*1000)
			}
		}
	}
	world := folders["world"]
	world["global/1km.tif"] = georeferenced(4326, 0.5, 180, -90, -45)
	for i := range 12 {
		x, y := float64(i%4), float64(i/4)
		world[fmt.Sprintf("alps/%d.tif", i)] = georeferenced(4326, 0.01, 100, 6+x, 45+y)
		world[fmt.Sprintf("canada/%d.tif", i)] = georeferenced(32612, 10, 10_000, 400_000+x*100_000, 5_600_000+y*100_000)
		world[fmt.Sprintf("australia/%d.tif", i)] = georeferenced(32755, 30, 4000, 300_000+x*120_000, 6_000_000+y*120_000)
	}
	world["wellington/1m.tif"] = georeferenced(2193, 1, 1000, 1_748_000, 5_427_000)
	for x := -6; x < 6; x++ {
		for y := -6; y < 6; y++ {
			if x*x+y*y < 30 && (x != 2 || y != 1) {
				folders["polar"][fmt.Sprintf("rema_%d_%d.tif", x, y)] =
					georeferenced(3031, 4000, 100, float64(x)*400_000, float64(y)*400_000)
			}
		}
	}
	for x := range 10 {
		for y := range 10 {
			folders["outlier"][fmt.Sprintf("dgm5_%d_%d.tif", x, y)] = georeferenced(25832, 5, 400, 680_000+float64(x)*2000, 5_330_000+float64(y)*2000)
		}
	}
	folders["outlier"]["swapped.tif"] = georeferenced(4326, 0.001, 10, 48.1, 11.6)
	return folders
}

// TestPictures: a picture says where the files lie and how fine they are, shows missing cells, lists outliers beside the map,
// and looks at polar data from above the pole.
func TestPictures(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	says := map[string][]string{
		"holes":   {">8°E<", ">46°N<", "200 m and more: 96", "missing cells: 8", "<title>n44e005.tif</title>", ">200 km at 48°N<"},
		"state":   {"0.7 m to 1.5 m: 2", "missing cells: ", ">10 km<"},
		"world":   {"0.7 m to 1.5 m: 1", "7 m to 15 m: 12", "15 m to 70 m: 12", "200 m and more: 13", "<title>wellington/1m.tif</title>"},
		"polar":   {"200 m and more: ", "missing cells: 1<", ">1000 km<", "extent: 180°W 90°S to 180°E 65", ">60°S<", ">90°E<"},
		"outlier": {"1.5 m to 7 m: 100", "1 file far from the others, not on the map:", ">swapped.tif<", "at 48.1°E 11.6°N", "without outliers, extent: 11."},
	}
	for name, files := range sampleFolders() {
		dir := filepath.Join(ts.datasets, name)
		for path, content := range files {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755), os.WriteFile(filepath.Join(dir, path), content, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		dataset := ts.addDataset(c, name, name)
		c.analyze(dataset, nil)
		picture := string(c.must(200, "GET", dataset+"/coverage.svg", nil).body)
		for _, want := range says[name] {
			if !strings.Contains(picture, want) {
				t.Errorf("%s: does not show %q", name, want)
			}
		}
	}
}

// marksOf returns the number in the legend of a layer, "" without one, and how many marks of its colour a picture has.
func marksOf(picture, label, color string) (count string, marks int) {
	if _, after, found := strings.Cut(picture, ">"+label+": "); found {
		count, _, _ = strings.Cut(after, "<")
	}
	_, layer, _ := strings.Cut(picture, ` fill="`+color+`" stroke="`+color+`">`)
	layer, _, _ = strings.Cut(layer, "</g>")
	return count, strings.Count(layer, "<path ")
}

// TestMissingInView: a zoomed map draws and counts the missing cells in its frame, which is wider or higher than the box
// that was asked for, however many lie elsewhere. Cells side by side are one mark.
func TestMissingInView(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	var files []ElevationDatasetFileMeta
	for column := range 120 {
		for row := range 120 { // a chessboard, and one row with a long gap
			if (column+row)%2 == 0 && (row != 110 || column < 40 || column > 80) {
				files = append(files, placedFile(t, fmt.Sprint(column, " ", row), 4326, 0.001, 0, float64(column)/10, 0, -0.002, 40.1+float64(row)/10))
			}
		}
	}
	picture := fmt.Sprintf("/api/v1/datasets/%d/coverage.svg", ts.addChecked("chess", files))
	for box, want := range map[string][2]string{"5.05,51.05,5.25,51.25": {"10", "6"}, "5.05,30,5.25,31": {"", "0"}, "-5,51.05,5.25,51.08": {"943", "927"}} {
		count, marks := marksOf(string(c.must(200, "GET", picture+"?bbox="+box, nil).body), "missing cells", "#d7191c")
		if got := [2]string{count, fmt.Sprint(marks)}; got != want {
			t.Errorf("%s: %q cells in the legend, %q marks, want %q", box, got[0], got[1], want)
		}
	}
}

// TestMosaicsInView: a zoomed map with many files shows a mosaic that covers part of it, wherever the mosaic's middle lies.
func TestMosaicsInView(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	for i, test := range []struct{ view, mosaic, width float64 }{
		{7, 0, 7.5}, {7, 7.5, 80}, {7, -50, 100}, {179.5, 100, 79.9}, {179.5, -179.9, 80}, {179.5, 179.9, 80}, {-180, 170, 10.4}, {-180, -179.5, 40},
	} {
		var files []ElevationDatasetFileMeta
		for j := range 2100 {
			lon := math.Remainder(test.view+float64(j%50)*0.02, 360)
			files = append(files, placedFile(t, fmt.Sprint(j), 4326, 0.0002, 0, lon, 0, -0.0004, 46.02+float64(j/50)*0.02))
		}
		files = append(files, placedFile(t, "mosaic", 4326, test.width/100, 0, test.mosaic, 0, -0.4, 60))
		picture := fmt.Sprintf("/api/v1/datasets/%d/coverage.svg?bbox=%v,46,%v,47", ts.addFiles(fmt.Sprint(i), files), test.view, math.Remainder(test.view+1, 360))
		body := string(c.must(200, "GET", picture, nil).body)
		if count, marks := marksOf(body, "200 m and more", "#e5c800"); count != "1" || marks != 1 {
			t.Errorf("%v: %q mosaics in the legend, %d marks", test, count, marks)
		}
		if count, _ := marksOf(body, "15 m to 70 m", "#35b779"); count != "2100" {
			t.Errorf("%v: %q tiles", test, count)
		}
	}
}

// TestNamesOnlyOfDrawnFiles: a picture that falls back to cells, because the paths are long, has no names of files.
func TestNamesOnlyOfDrawnFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	for n, named := range map[int]bool{5: true, 1500: false} {
		var files []ElevationDatasetFileMeta
		for i := range n {
			files = append(files, placedFile(t, fmt.Sprintf("%s%d/tile", strings.Repeat("long", 100), i), 4326, 0.01, 0, 7, 0, -0.02, 47))
		}
		picture := fmt.Sprintf("/api/v1/datasets/%d/coverage.svg", ts.addFiles(fmt.Sprint(n), files))
		if body := string(c.must(200, "GET", picture, nil).body); strings.Contains(body, ">tile<") != named {
			t.Errorf("%d files: names: %v, want %v", n, !named, named)
		}
	}
}

// TestManyOutliers: of many outliers only as many are listed as the list has room for. All are counted. A file that meets
// the box of the others is none, on either side of 180°.
func TestManyOutliers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	var files []ElevationDatasetFileMeta
	for i := range 30 {
		files = append(files, placedFile(t, fmt.Sprint("far", i), 4326, 0.001, 0, float64(2*i), 0, -0.002, 10))
	}
	for i, lon := range []float64{179, 179.95, -180, -179.5} {
		files = append(files, placedFile(t, fmt.Sprint("a", i), 4326, 0.001, 0, lon, 0, -0.002, 10))
	}
	id := ts.addFiles("many", files)
	for _, west := range []float64{179, -181} {
		c := coverage{All: mapBox{West: west, South: 9, East: west + 2, North: 10}, Apart: 30}
		c.details.ID = id
		if err := c.listOutliers(t.Context(), ts.db); err != nil {
			t.Fatal(err)
		}
		if len(c.Outliers) != maxOutliers || c.Unlisted != 20 || !strings.HasPrefix(c.Outliers[0].Title, "far") {
			t.Errorf("%v: listed %v, %d unlisted", west, c.Outliers, c.Unlisted)
		}
	}
}
