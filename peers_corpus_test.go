//go:build peers

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPeerCorpus compares files that GDAL writes with what GDAL and PROJ say about them.
func TestPeerCorpus(t *testing.T) {
	root := makeCorpus(t)
	compareWithGDAL(t, root)
	analyzeCorpus(t, root)
}

// TestCorpus is TestPeerCorpus with the files in the directory that CAIRN_CORPUS names. make test-corpus runs it.
func TestCorpus(t *testing.T) {
	if os.Getenv("CAIRN_CORPUS") == "" {
		t.Fatal("CAIRN_CORPUS is not set: it names the directory of the corpus")
	}
	root, err := filepath.Abs(os.Getenv("CAIRN_CORPUS"))
	if err != nil {
		t.Fatal(err)
	}
	compareWithGDAL(t, root)
	_, c, dataset := analyzeCorpus(t, root)
	checkFootprints(t, c, dataset, 1)
}

// analyzeCorpus analyses the files of a corpus. The API returns exactly the rows that "cairn bbox" prints.
func analyzeCorpus(t *testing.T, root string) (ts *testServer, c client, dataset string) {
	t.Helper()
	ts = startServer(t, func(o *options) { o.batchSize = 50 }, "CAIRN_DATASETS_DIR="+root)
	c = ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	dataset = ts.addDataset(c, "corpus", "files")
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded {
		t.Errorf("%s", a.body)
	}
	sameRows(t, c.files(dataset), filepath.Join(root, "files"))
	return ts, c, dataset
}

// corpusFile is a raster that makeCorpus has GDAL write.
type corpusFile struct {
	name    string
	epsg    int        // 0: none
	corners [4]float64 // left, top, right, bottom, in the file's CRS
	size    int        // pixels on each side
	create  string     // further arguments of gdal_create
	as      string     // arguments of gdal_translate, which then makes the file of name
}

// corpusFiles returns the files of our own corpus. They cover byte orders, BigTIFF, tiles, kinds of CRS, and every format
// that both GDAL writes and the program reads.
func corpusFiles() []corpusFile {
	utm := [4]float64{500000, 5300000, 504000, 5297000}
	return []corpusFile{
		{"degrees.tif", 4326, [4]float64{7, 47, 8, 46}, 60, "", ""},
		{"etrs89.tif", 4258, [4]float64{-3, 51, -2, 50.5}, 60, "", ""},
		{"utm.tif", 32632, utm, 40, "", ""},
		{"utm_big.tif", 32632, utm, 40, "-co BIGTIFF=YES", ""},
		{"utm_big_endian.tif", 32632, utm, 40, "-co ENDIANNESS=BIG", ""},
		{"utm_tiled.tif", 32632, utm, 400, "-co TILED=YES -co COMPRESS=DEFLATE", ""},
		{"utm_south.tif", 32733, [4]float64{300000, 6200000, 310000, 6190000}, 40, "", ""},
		{"utm_point.tif", 32632, utm, 40, "", "-mo AREA_OR_POINT=Point"},
		{"nad83.tif", 26910, [4]float64{500000, 5000000, 510000, 4990000}, 40, "", ""},
		{"swiss.tif", 2056, [4]float64{2600000, 1200000, 2601000, 1199000}, 40, "", ""},
		{"british.tif", 27700, [4]float64{400000, 300000, 410000, 290000}, 40, "", ""},
		{"lambert93.tif", 2154, [4]float64{700000, 6600000, 710000, 6590000}, 40, "", ""},
		{"europe.tif", 3035, [4]float64{4000000, 3000000, 4010000, 2990000}, 40, "", ""},
		{"mercator.tif", 3857, [4]float64{800000, 6000000, 810000, 5990000}, 40, "", ""},
		{"antarctica.tif", 3031, [4]float64{1000000, 500000, 1010000, 490000}, 40, "", ""},
		{"no_crs.tif", 0, utm, 40, "", ""},
		{"scaled.tif", 32632, utm, 40, "", "-a_scale 0.1 -a_offset -100"},
		{"arc.asc", 32632, utm, 40, "", "-of AAIGrid"},
		{"esri.bil", 32632, utm, 40, "", "-of EHdr"},
		{"N46E007.hgt", 4326, halfPixelAround(7, 46, 1200), 1201, "-ot Int16", "-of SRTMHGT"},
		{"n46.dt1", 4326, halfPixelAround(7, 46, 1200), 1201, "-ot Int16", "-of DTED"},
	}
}

// halfPixelAround returns the corners of a cell of one degree whose outermost pixels lie on its edges.
func halfPixelAround(west, south float64, steps float64) [4]float64 {
	half := 0.5 / steps
	return [4]float64{west - half, south + 1 + half, west + 1 + half, south - half}
}

// makeCorpus writes corpusFiles below files of a new directory, and oracle.jsonl with what GDAL and PROJ say about them.
func makeCorpus(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	dir, sources := filepath.Join(root, "files"), t.TempDir()
	broken, err := os.ReadFile("testdata/elevation/broken.tif") // which has no line in oracle.jsonl
	if err := errors.Join(err, os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "broken.tif"), broken, 0o644)); err != nil {
		t.Fatal(err)
	}
	areas := crsAreas(t)
	var lines []byte
	for _, f := range corpusFiles() {
		target := filepath.Join(dir, f.name)
		created := target
		if f.as != "" {
			created = filepath.Join(sources, f.name+".tif")
		}
		arguments := strings.Fields(fmt.Sprintf("-of GTiff -bands 1 -burn 7 -outsize %d %[1]d -a_ullr %v %v %v %v", f.size,
			f.corners[0], f.corners[1], f.corners[2], f.corners[3]))
		if f.epsg != 0 {
			arguments = append(arguments, "-a_srs", fmt.Sprintf("EPSG:%d", f.epsg))
		}
		gdal(t, "gdal_create", append(append(arguments, strings.Fields(f.create)...), created)...)
		if f.as != "" {
			gdal(t, "gdal_translate", append(strings.Fields(f.as), created, target)...)
		}
		line, err := json.Marshal(describe(t, dir, f, areas))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if err := os.WriteFile(filepath.Join(root, "oracle.jsonl"), lines, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// gdal runs a program of GDAL and returns its output.
func gdal(t *testing.T, program string, arguments ...string) []byte {
	t.Helper()
	command := exec.Command(program, arguments...)
	var complaints strings.Builder
	command.Stderr = &complaints
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arguments, err, complaints.String())
	}
	return output
}

// describe returns what GDAL and PROJ say about a file of makeCorpus.
func describe(t *testing.T, dir string, f corpusFile, areas map[int]crsArea) corpusRow {
	t.Helper()
	var info struct {
		Files     []string
		Size      [2]int64
		Transform []float64            `json:"geoTransform"`
		CRS       struct{ WKT string } `json:"coordinateSystem"`
		Bands     []struct {
			Unit          string
			Scale, Offset float64
		}
	}
	if err := json.Unmarshal(gdal(t, "gdalinfo", "-json", filepath.Join(dir, f.name)), &info); err != nil {
		t.Fatal(err)
	}
	g := info.Transform
	row := corpusRow{Path: f.name, GDAL: "ok", Width: info.Size[0], Height: info.Size[1], Transform: g, Internal: g}
	band := info.Bands[0]
	row.Heights = new(fmt.Sprintf("unit %q, scale %v, offset %v", band.Unit, cmp.Or(band.Scale, 1), band.Offset))
	for _, name := range info.Files[1:] {
		row.Sidecars = append(row.Sidecars, filepath.Base(name))
	}
	if id := regexp.MustCompile(`ID\["EPSG",(\d+)\]\]$`).FindStringSubmatch(info.CRS.WKT); id != nil {
		row.EPSG, _ = strconv.Atoi(id[1])
	}
	row.BBox = []float64{g[0], g[3] + g[5]*float64(row.Height), g[0] + g[1]*float64(row.Width), g[3]}
	if f.epsg == 0 {
		return row
	}
	var edges [][2]float64
	for i := range 101 {
		x, y := row.BBox[0]+(row.BBox[2]-row.BBox[0])*float64(i)/100, row.BBox[1]+(row.BBox[3]-row.BBox[1])*float64(i)/100
		edges = append(edges, [2]float64{x, row.BBox[1]}, [2]float64{x, row.BBox[3]}, [2]float64{row.BBox[0], y}, [2]float64{row.BBox[2], y})
	}
	base := f.epsg
	if r := findRecord(recordCRS, f.epsg); r.text(1) == "P" {
		base = r.code(2)
	}
	row.LonLat = boxAround(cs2cs(f.epsg, base, slices.Clone(edges), areas[f.epsg].swapped, areas[base].swapped))
	row.WGS84 = boxAround(cs2cs(f.epsg, 4326, slices.Clone(edges), areas[f.epsg].swapped, true))
	return row
}

// boxAround returns the box around points.
func boxAround(points [][2]float64) []float64 {
	box := []float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	for _, p := range points {
		box = []float64{min(box[0], p[0]), min(box[1], p[1]), max(box[2], p[0]), max(box[3], p[1])}
	}
	return box
}

// corpusRow is what GDAL and PROJ say about a file of a corpus.
type corpusRow struct {
	Path       string    `json:"path"`
	GDAL       string    `json:"gdal"`
	Format     string    `json:"format"`
	Width      int64     `json:"width"`
	Height     int64     `json:"height"`
	Transform  []float64 `json:"geotransform"`
	Internal   []float64 `json:"internal_geotransform"`
	BBox       []float64 `json:"bbox"`
	EPSG       int       `json:"epsg"`
	Horizontal int       `json:"epsg_horizontal"`
	Sidecars   []string  `json:"sidecars_used"`
	LonLat     []float64 `json:"lonlat_no_shift"`
	WGS84      []float64 `json:"lonlat_wgs84"`
	Heights    *string   `json:"heights"` // null: not compared
}

// compareWithGDAL compares the files of a corpus, below files, with what GDAL says about them in oracle.jsonl.
func compareWithGDAL(t *testing.T, root string) {
	t.Helper()
	oracle, err := os.Open(filepath.Join(root, "oracle.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer oracle.Close()
	deviations, err := os.ReadFile(filepath.Join("testdata", "deviations.md"))
	if err != nil {
		t.Fatal(err)
	}
	type score struct{ good, all int }
	var status, size, native, crs, bbox, heights score
	count := func(s *score, good bool, path, format string, args ...any) {
		s.all++
		if good {
			s.good++
		} else {
			t.Logf("%s: %s", path, fmt.Sprintf(format, args...))
		}
	}
	lines := bufio.NewScanner(oracle)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o corpusRow
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(filepath.Join(root, "files", o.Path))
		if err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		r := &countingReader{r: file}
		beside := func(name string, limit int) ([]byte, bool, error) {
			b, err := os.ReadFile(filepath.Join(filepath.Dir(file.Name()), name))
			return b[:min(len(b), limit)], err == nil, nil
		}
		m := readExtent(filepath.Base(o.Path), r, info.Size(), beside)
		file.Close()
		checkRow(t, m)
		most := 64 << 10
		if value(m.Format) == "asc" { // its samples are counted, if that takes no more
			most = maxHeaderBytes
		}
		if r.reads > 3 || r.bytes > most {
			t.Errorf("%s: %d reads of %d bytes", o.Path, r.reads, r.bytes)
		}
		aux := slices.ContainsFunc(o.Sidecars, func(s string) bool { return strings.HasSuffix(s, ".aux.xml") })
		if o.GDAL != "ok" || strings.Contains(string(deviations), filepath.Base(o.Path)) || (aux && !slices.Equal(o.Internal, o.Transform)) {
			continue
		}
		count(&status, (m.NativeBBox != nil) == (o.Transform != nil), o.Path, "%s, %s", m.Status, value(m.Reason))
		count(&size, value(m.Width) == o.Width && value(m.Height) == o.Height, o.Path, "%d by %d", value(m.Width), value(m.Height))
		if o.Heights != nil {
			got := fmt.Sprintf("unit %q, scale %v, offset %v", value(m.Unit), *cmp.Or(m.Scale, new(1.0)), value(m.Offset))
			count(&heights, got == *o.Heights, o.Path, "%s, want %s", got, *o.Heights)
		}
		if o.Transform == nil || m.NativeBBox == nil {
			continue
		}
		count(&native, nearBox(m.NativeBBox, o.BBox, 1e-9), o.Path, "native_bbox %v, want %v", m.NativeBBox, o.BBox)
		if want := max(o.EPSG, o.Horizontal); want != 0 {
			count(&crs, value(m.CRS) == fmt.Sprintf("EPSG:%d", want), o.Path, "%s, want EPSG:%d", value(m.CRS), want)
		}
		if m.BBox != nil && o.LonLat != nil {
			count(&bbox, sameDegrees(m.BBox, o.LonLat, 1e-6) || sameDegrees(m.BBox, o.WGS84, 2e-4), o.Path, "bbox %v, want %v or on WGS 84 %v", m.BBox, o.LonLat, o.WGS84)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		score score
		least float64
	}{{"status", status, 1}, {"size", size, 1}, {"native_bbox", native, 1}, {"crs", crs, 1}, {"bbox", bbox, 0.99}, {"heights", heights, 1}} {
		if c.name == "heights" && c.score.all == 0 { // the oracle says nothing about them
			continue
		}
		share := float64(c.score.good) / float64(c.score.all)
		t.Logf("%s: %d of %d, %.2f %%", c.name, c.score.good, c.score.all, 100*share)
		if !(share >= c.least) {
			t.Errorf("%s: less than %.0f %%", c.name, 100*c.least)
		}
	}
}

// sameDegrees reports whether boxes in degrees agree once both are clamped to the globe.
func sameDegrees(a, b []float64, tolerance float64) bool {
	if len(a) != 4 || len(b) != 4 {
		return false
	}
	w, e := normalizeLongitudes(b[0], b[2]+360*math.Round(max(0, b[0]-b[2])/360))
	off := 0.0
	for i, v := range []float64{w, max(b[1], -90), e, min(b[3], 90)} {
		off = max(off, math.Abs(math.Remainder(a[i]-v, 360)))
	}
	return off <= tolerance
}

// nearBox reports whether boxes agree up to a part of their size or of the coordinate.
func nearBox(a, b []float64, part float64) bool {
	if len(a) != 4 || len(b) != 4 {
		return false
	}
	span := max(b[2]-b[0], b[3]-b[1])
	for i := range a {
		if math.Abs(a[i]-b[i]) > part*max(span, math.Abs(b[i])) {
			return false
		}
	}
	return true
}
