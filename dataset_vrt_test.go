package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// vrtSource is a source of a VRT as GDAL reads it.
type vrtSource struct {
	Name struct {
		Relative string `xml:"relativeToVRT,attr"`
		Text     string `xml:",chardata"`
	} `xml:"SourceFilename"`
	To struct {
		X float64 `xml:"xOff,attr"`
		Y float64 `xml:"yOff,attr"`
		W float64 `xml:"xSize,attr"`
		H float64 `xml:"ySize,attr"`
	} `xml:"DstRect"`
	Nodata string `xml:"NODATA"`
}

// vrtFile is a VRT as GDAL reads it.
type vrtFile struct {
	Width     int    `xml:"rasterXSize,attr"`
	Height    int    `xml:"rasterYSize,attr"`
	SRS       string `xml:"SRS"`
	Transform string `xml:"GeoTransform"`
	Bands     []struct {
		Type    string      `xml:"dataType,attr"`
		Nodata  string      `xml:"NoDataValue"`
		Simple  []vrtSource `xml:"SimpleSource"`
		Complex []vrtSource `xml:"ComplexSource"`
	} `xml:"VRTRasterBand"`
}

// vrt parses a VRT.
func vrt(t *testing.T, text []byte) (v vrtFile) {
	t.Helper()
	if err := xml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	return v
}

// TestVRT: the mosaic of a dataset has each file of the grid in its place, by URL, by path below the dataset, or by
// absolute path; it opens no file, and a dataset of several grids is told to name one.
func TestVRT(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_BASE_URL=")
	c := ts.signIn("ada", datasetRead)
	place := func(path string, x, y float64) ElevationDatasetFileMeta {
		m := placedFile(t, path, 25832, 10, 0, x, 0, -10, y)
		m.SampleType, m.Nodata, m.Bands = new("int16"), new("-9999"), new(int64(1))
		return m
	}
	turned := placedFile(t, "turned.tif", 25832, 10, 1, 500000, 1, -10, 5300000)
	noisy := placedFile(t, "noisy.tif", 25832, 10*(1+1e-12), 0, 502000, 0, -10, 5300000)
	noisy.SampleType = new("float32")
	files := []ElevationDatasetFileMeta{place("a&b <c>.tif", 500000, 5300000), place(`back\\slash\xff.tif`, 501000, 5299500), noisy, turned}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("tiles", files))
	for _, source := range []string{"", "?source=url", "?source=path", "?crs=epsg:25832&resolution=10"} {
		a := c.must(200, "GET", dataset+"/mosaic.vrt"+source, nil)
		v := vrt(t, a.body)
		if a.header.Get("Content-Type") != "application/xml" || v.Width != 300 || v.Height != 100 || v.SRS != "EPSG:25832" || v.Transform != "500000, 10, 0, 5300000, 0, -10" || len(v.Bands) != 1 {
			t.Fatalf("%s: %+v", source, v)
		}
		b := v.Bands[0]
		if b.Type != "Float64" || b.Nodata != "-9999" || len(b.Complex) != 2 || len(b.Simple) != 1 {
			t.Fatalf("%s: %+v", source, b)
		}
		names := []string{"/vsicurl/" + ts.url + dataset + "/data/a&b%20%3Cc%3E.tif", "/vsicurl/" + ts.url + dataset + "/data/back%5Cslash%FF.tif"}
		relative := "0"
		if source == "?source=path" {
			names, relative = []string{"a&b <c>.tif", "back\\slash\ufffd.tif"}, "1"
		}
		one, two := b.Complex[0], b.Complex[1]
		if one.Name.Text != names[0] || two.Name.Text != names[1] || one.Name.Relative != relative {
			t.Errorf("%s: %q %q", source, one.Name, two.Name)
		}
		if one.To.X != 0 || one.To.Y != 0 || two.To.X != 100 || two.To.Y != 50 || two.To.W != 100 || two.To.H != 50 || two.Nodata != "-9999" || b.Simple[0].To.X != 200 {
			t.Errorf("%s: %+v", source, b)
		}
	}
	out := &lockedBuffer{}
	if err := run(context.Background(), []string{"vrt", "tiles", "--resolution", "10"}, ts.env, nil, out, out); err != nil {
		t.Fatal(err)
	}
	if got := vrt(t, []byte(out.String())).Bands[0].Complex[0].Name.Text; got != filepath.Join(ts.datasets, "tiles", "a&b <c>.tif") {
		t.Error(got)
	}
	other := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("several", append(files, placedFile(t, "d.tif", 4326, 0.0004, 0, 7, 0, -0.0002, 46))))
	a := c.refused(422, "invalid", "GET", other+"/mosaic.vrt", nil)
	for _, part := range []string{"crs=EPSG:25832 resolution=10 (3 files)", "crs=EPSG:4326 resolution=0.0004,0.0002 (1 file)"} {
		if !strings.Contains(a.text("detail"), part) {
			t.Errorf("%s", a.body)
		}
	}
	c.refused(422, "invalid", "GET", other+"/mosaic.vrt?crs=EPSG:3857", nil)
	c.refused(422, "invalid", "GET", other+"/mosaic.vrt?source=file", nil)
	c.refused(422, "invalid", "GET", fmt.Sprintf("/api/v1/datasets/%d/mosaic.vrt", ts.addFiles("none", nil)), nil)
	if v := vrt(t, c.must(200, "GET", other+"/mosaic.vrt?resolution=0.0004,0.0002", nil).body); len(v.Bands[0].Simple) != 1 || v.Width != 100 || v.Height != 50 {
		t.Errorf("%+v", v)
	}
}

// TestVRTResolution: a resolution is compared as a number, rounded as that of the grid is.
func TestVRTResolution(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	third := 1.0 / 3600
	files := []ElevationDatasetFileMeta{
		placedFile(t, "ten.tif", 25832, 10, 0, 500000, 0, -10, 5300000),
		placedFile(t, "third.tif", 4326, third, 0, 7, 0, -third/2, 46),
	}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("tiles", files))
	for resolution, want := range map[string]string{
		"10": "EPSG:25832", "10.0": "EPSG:25832", "1e1": "EPSG:25832", "10.000,10": "EPSG:25832", "10.0000001": "EPSG:25832",
		"0.00027777778,0.00013888889": "EPSG:4326", "0.000277777777777778,0.000138888888888889": "EPSG:4326",
		"10.01": "", "10,20": "", "10,10,10": "", "ten": "", "": "", "10,": "", "NaN": "", "0.00027777778": "", "1e99": "",
	} {
		path := dataset + "/mosaic.vrt?resolution=" + resolution
		if want == "" {
			c.refused(422, "invalid", "GET", path, nil)
			continue
		}
		if v := vrt(t, c.must(200, "GET", path, nil).body); v.SRS != want {
			t.Errorf("%s has the grid of %s, want %s", resolution, v.SRS, want)
		}
	}
}

// TestVRTRanges: a mosaic has a length and an entity tag, and comes in ranges, as GDAL's /vsicurl reads files. In gzip it is
// streamed, and so is one that is larger than maxRanged.
func TestVRTRanges(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	var files []ElevationDatasetFileMeta
	for i := range 12_000 {
		m := placedFile(t, fmt.Sprintf("%05d.tif", i), 25832, 10, 0, 500000, 0, -10, 5300000)
		if i > 50 {
			m.Path = fmt.Sprintf("%s%05d.tif", strings.Repeat("long/", 100), i)
		}
		files = append(files, m)
	}
	mosaic := fmt.Sprintf("/api/v1/datasets/%d/mosaic.vrt", ts.addFiles("tiles", files[:50]))
	plain := "Accept-Encoding: identity"
	whole := c.must(200, "GET", mosaic, nil, plain)
	size, tag := len(whole.body), whole.header.Get("ETag")
	if whole.header.Get("Content-Length") != fmt.Sprint(size) || tag == "" || whole.header.Get("Accept-Ranges") != "bytes" || whole.header.Get("Content-Type") != "application/xml" {
		t.Errorf("the whole has %v", whole.header)
	}
	head := c.must(200, "HEAD", mosaic, nil, plain)
	if head.header.Get("Content-Length") != fmt.Sprint(size) || head.header.Get("ETag") != tag {
		t.Errorf("HEAD has %v, want the length %d", head.header, size)
	}
	var parts []byte
	for from := 0; from < size; from += 5000 {
		a := c.must(206, "GET", mosaic, nil, plain, fmt.Sprintf("Range: bytes=%d-%d", from, from+4999), "If-Range: "+tag)
		parts = append(parts, a.body...)
	}
	if !bytes.Equal(parts, whole.body) {
		t.Errorf("the ranges together have %d bytes, want %d", len(parts), size)
	}
	if a := c.must(206, "GET", mosaic, nil, "Accept-Encoding: gzip", "Range: bytes=0-9"); string(a.body) != string(whole.body[:10]) {
		t.Errorf("beside gzip the range is %q", a.body)
	}
	c.must(304, "GET", mosaic, nil, plain, "If-None-Match: "+tag)
	c.refused(416, "no_such_range", "GET", mosaic, nil, plain, fmt.Sprintf("Range: bytes=%d-", size))
	zipped := c.must(200, "GET", mosaic, nil, "Accept-Encoding: gzip")
	if zipped.header.Get("Content-Encoding") != "gzip" || zipped.header.Get("ETag") != "" {
		t.Errorf("in gzip it has %v", zipped.header)
	}

	large := fmt.Sprintf("/api/v1/datasets/%d/mosaic.vrt", ts.addFiles("large", files))
	a := c.must(200, "GET", large, nil, plain, "Range: bytes=0-9")
	if len(a.body) < maxRanged || a.header.Get("ETag") != "" || a.header.Get("Content-Length") != "" {
		t.Errorf("the large one has %d bytes and %v", len(a.body), a.header)
	}
	if v := vrt(t, a.body); len(v.Bands[0].Simple) != len(files) {
		t.Errorf("the large one has %d sources, want %d", len(v.Bands[0].Simple), len(files))
	}
	c.must(200, "HEAD", large, nil, plain)
}

// TestVRTNodata: where one file has the nodata 0, and another has none, 0 stays a height of the other one.
func TestVRTNodata(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	for i, test := range []struct {
		first, second *string
		sample, want  string
	}{
		{new("0"), nil, "int16", "-32768"},
		{nil, new("0"), "float32", "-32768"},
		{new("0"), new("0"), "int16", "0"},
		{new("0"), nil, "uint8", "0"}, // which has no other value
		{new("-9999"), nil, "int16", "-9999"},
		{nil, nil, "int16", ""},
	} {
		var files []ElevationDatasetFileMeta
		for j, nodata := range []*string{test.first, test.second} {
			m := placedFile(t, fmt.Sprint(j, ".tif"), 25832, 10, 0, 500000+1000*float64(j), 0, -10, 5300000)
			m.SampleType, m.Nodata, m.Bands = &test.sample, nodata, new(int64(1))
			files = append(files, m)
		}
		dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles(fmt.Sprint("nodata", i), files))
		v := vrt(t, c.must(200, "GET", dataset+"/mosaic.vrt", nil).body)
		if got := v.Bands[0].Nodata; got != test.want {
			t.Errorf("%d: nodata is %q, want %q", i, got, test.want)
		}
		if len(v.Bands[0].Complex) > 0 && v.Bands[0].Complex[0].Nodata == "-32768" {
			t.Errorf("%d: the source has another nodata than its file", i)
		}
	}
}

// TestVRTWithoutCode: a CRS without an EPSG code is stored with the same numbers, whether GeoKeys, a .prj or an .aux.xml
// describe it. So its files make one mosaic, which names no CRS.
func TestVRTWithoutCode(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	wkt := esriWKT("ours", "D_WGS_1984", "6378137.0,298.257223563", "Transverse_Mercator", "1.0", "False_Easting", 500_000,
		"False_Northing", 0, "Central_Meridian", 10.4321, "Scale_Factor", 0.9996, "Latitude_Of_Origin", 0)

	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	double := func(id, at float64) [4]float64 { return [4]float64{id, tagGeoDoubleParams, 1, at} }
	keys := geoKeyTag(key(1024, 1), [4]float64{1026, tagGeoASCIIParams, 5, 0}, key(2048, 4326), key(3072, 32767), key(3074, 32767), key(3075, 1), key(3076, 9001),
		double(3080, 0), double(3081, 1), double(3082, 2), double(3083, 1), double(3092, 3))
	numbers := doubles(tagGeoDoubleParams, 10.4321, 0, 500_000, 0.9996)
	for name, content := range map[string]string{
		"aux.tif":         string(testTIFF{binary.LittleEndian, false, with(testSize(), testPlace())}.build()),
		"aux.tif.aux.xml": "<PAMDataset><SRS>" + vrtText(wkt) + "</SRS></PAMDataset>",
		"keys.tif":        string(testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), keys, numbers, asciiTag(tagGeoASCIIParams, "ours|"))}.build()),
		"prj.asc":         "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 49.25\ndx 0.5\ndy 0.25\n1 2 3 4 5 6 7 8 9 10 11 12\n",
		"prj.prj":         wkt,
	} {
		path := filepath.Join(ts.datasets, "own", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	dataset := c.addDataset("own")
	c.analyze(dataset, nil)

	check(t, "files", ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta WHERE status = 'ok' AND crs IS NULL`), 3)
	check(t, "definitions", ts.queryInt(`SELECT count(DISTINCT crs_definition) FROM elevation_dataset_file_meta`), 1)
	v := vrt(t, c.must(200, "GET", dataset+"/mosaic.vrt", nil).body)
	check(t, "CRS", v.SRS, "")
	check(t, "sources", len(v.Bands[0].Simple), 3)
}

// TestVRTOnTerminal: a terminal does not act on the names of files.
func TestVRTOnTerminal(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	m := placedFile(t, "a\u009b31m\u007f\u202eb.tif", 25832, 10, 0, 500000, 0, -10, 5300000)
	m.SampleType, m.Bands = new("int16"), new(int64(1))
	ts.addFiles("tiles", []ElevationDatasetFileMeta{m})
	program, person := openTerminal(t)
	if err := run(t.Context(), []string{"vrt", "tiles"}, ts.env, nil, program, program); err != nil {
		t.Fatal(err)
	}
	var said string
	for lines := bufio.NewReader(person); !strings.Contains(said, "</VRTDataset>"); {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		said += line
	}
	if !strings.Contains(said, `/a\u009b31m\u007f\u202eb.tif<`) {
		t.Errorf("the terminal got %q", said)
	}
}

// TestLargeVRT: a mosaic of very many files is whole.
func TestLargeVRT(t *testing.T) {
	t.Parallel()
	const side = 300
	n := soakOr(70_000, 10_000)
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	files := make([]ElevationDatasetFileMeta, n)
	one := placedFile(t, "", 25832, 10, 0, 500000, 0, -10, 5300000)
	for i := range files {
		x, y := 500000+float64(i%side)*1000, 5300000-float64(i/side)*500
		files[i] = one
		files[i].Path, files[i].Transform = fmt.Sprintf("%05d.tif", i), []float64{10, 0, x, 0, -10, y}
		files[i].NativeBBox = []float64{x, y - 500, x + 1000, y}
	}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("tiles", files))
	v := vrt(t, c.must(200, "GET", dataset+"/mosaic.vrt", nil).body)
	sources := v.Bands[0].Simple
	if len(sources) != n || v.Width != 100*side || v.Height != 50*((n+side-1)/side) {
		t.Fatalf("%d sources, %d × %d", len(sources), v.Width, v.Height)
	}
	for i, source := range sources {
		if source.To.X != float64(i%side*100) || source.To.Y != float64(i/side*50) || !strings.HasSuffix(source.Name.Text, files[i].Path) {
			t.Fatalf("%d: %+v", i, source)
		}
	}
}

// TestTable: the table has each file once and no cell that a spreadsheet takes for a formula, and numbers stay numbers.
func TestTable(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	var files []ElevationDatasetFileMeta
	for _, path := range []string{"=1+2.tif", "+a.tif", "-b.tif", "@SUM(1).tif", "\tc.tif", "\r=d.tif", "plain, \"quoted\"\nand =e.tif", "-12"} {
		m := placedFile(t, path, 4326, 0.01, 0, -8, 0, -0.02, -46)
		m.CRSName, m.Nodata, m.COG = new("=cmd|' /C calc'!A0"), new("-9999"), new(true)
		m.Unit, m.Scale, m.Offset, m.Compression, m.DataBytes = new("=m"), new(1e-7), new(-100.5), new("LZW"), new(int64(1<<40))
		m.Warnings = []string{"@one", "two"}
		files = append(files, m)
	}
	files = append(files, ElevationDatasetFileMeta{Path: "z.txt", extent: extent{Status: fileStatusUnsupported, Reason: new("-no"), Warnings: []string{}}})
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addFiles("tiles", files))
	a := c.must(200, "GET", dataset+"/files.csv", nil)
	rows, err := csv.NewReader(bytes.NewReader(a.body)).ReadAll()
	if err != nil || len(rows) != 10 || a.header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Fatalf("%v %v\n%s", err, a.header, a.body)
	}
	column := func(name string) int { return slices.Index(rows[0], name) }
	for _, row := range rows[1:] {
		for i, cell := range row {
			if _, err := strconv.ParseFloat(cell, 64); err != nil && cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
				t.Errorf("%s: %q", rows[0][i], cell)
			}
		}
		if row[column("path")] == "z.txt" {
			if row[column("west")] != "" || row[column("cog")] != "" || row[column("reason")] != "'-no" {
				t.Errorf("%q", row)
			}
		} else if row[column("west")] != "-8" || row[column("nodata")] != "-9999" || row[column("cog")] != "true" ||
			fmt.Sprint(row[column("unit"):column("pixel_is")]) != "['=m 0.0000001 -100.5 LZW 1099511627776]" || row[column("crs_name")] != "'=cmd|' /C calc'!A0" || row[column("warnings")] != "'@one; two" {
			t.Errorf("%q", row)
		}
	}
	if filtered := c.must(200, "GET", dataset+"/files.csv?status=unsupported", nil); bytes.Count(filtered.body, []byte("\n")) != 2 {
		t.Errorf("%s", filtered.body)
	}
	c.refused(422, "invalid", "GET", dataset+"/files.csv?status=fine", nil)
}
