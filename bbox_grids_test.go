package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// files are the files of one directory, in memory.
type files map[string]string

// beside is a besideFunc.
func (f files) beside(name string, limit int) ([]byte, bool, error) {
	content, found := f[name]
	return []byte(content[:min(limit, len(content))]), found, nil
}

// read reads the extent of one of the files. A size larger than its content's means that zeros
// follow.
func (f files) read(name string, size int64) extent {
	content := f[name]
	return readExtent(name, zeroPadded(content), max(size, int64(len(content))), f.beside)
}

// zeroPadded is content that endless zeros follow.
type zeroPadded string

// ReadAt implements io.ReaderAt.
func (z zeroPadded) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(z)) {
		copy(p, z[off:])
	}
	return len(p), nil
}

// utmPRJ is Esri's .prj of a CRS without code.
const utmPRJ = `PROJCS["WGS_1984_UTM_Zone_33N",GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137.0,298.257223563]],` +
	`PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["False_Easting",500000.0],` +
	`PARAMETER["False_Northing",0.0],PARAMETER["Central_Meridian",15.0],PARAMETER["Scale_Factor",0.9996],PARAMETER["Latitude_Of_Origin",0.0],UNIT["Meter",1.0]]`

// TestWorldFile: a world file gives the extent of a TIFF without georeferencing tags, in every kind
// of TIFF.
func TestWorldFile(t *testing.T) {
	good := []float64{10, 49.25, 12, 50}
	const lines = "0.5\n0\n0\n-0.25\n10.25\n49.875\n"
	for _, c := range []struct {
		name, tiff, world, content, status string
		native                             []float64
		source, says                       string
	}{
		{"tfw", "a.tif", "a.tfw", lines, "no_bbox", good, "the world file a.tfw", "CRS"},
		{"tifw", "a.tif", "a.tifw", lines, "no_bbox", good, "a.tifw", ""},
		{"wld", "a.tiff", "a.wld", lines, "no_bbox", good, "a.wld", ""},
		{"upper case", "A.TIF", "A.TFW", lines, "no_bbox", good, "A.TFW", ""},
		{"mixed case", "a.tif", "a.tFw", lines, "no_bbox", good, "a.tFw", ""},
		{"dots in the name", "a.b.tif", "a.b.tfw", lines, "no_bbox", good, "a.b.tfw", ""},
		{"of another file", "a.tif", "b.tfw", lines, "no_georef", nil, "", "no world file"},
		{"comma decimals, CRLF, blank lines", "a.tif", "a.tfw", " 0,5\r\n\r\n0,0\r\n0\r\n-0,25\r\n10,25\r\n49,875", "no_bbox", good, "a.tfw", ""},
		{"a comma behind each number", "a.tif", "a.tfw", "0.5,\n0,\n0,\n-0.25,\n10.25,\n49.875", "no_bbox", good, "a.tfw", ""},
		{"rotated", "a.tif", "a.tfw", "10\n2\n2\n-10\n5\n295", "no_bbox", []float64{-1, 269, 45, 307}, "a.tfw", ""},
		{"five numbers", "a.tif", "a.tfw", "0.5\n0\n0\n-0.25\n10.25\n", "no_georef", nil, "", "six numbers"},
		{"words", "a.tif", "a.tfw", "0.5\n0\n0\n-0.25\nInf\n0x1p4\n", "no_georef", nil, "", "six numbers"},
		{"a line without area", "a.tif", "a.tfw", "1\n1\n1\n1\n500000\n5000000\n", "no_georef", nil, "", "six numbers"},
		{"no scale", "a.tif", "a.tfw", "0\n0\n0\n0\n10\n50\n", "no_georef", nil, "", "six numbers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range testTIFFKinds(testSize()) {
				m := files{c.tiff: string(kind.build()), c.world: c.content}.read(c.tiff, 0)
				if m.Status != c.status || !near(m.NativeBBox, c.native) || !strings.Contains(value(m.Source), c.source) || !strings.Contains(value(m.Reason), c.says) {
					t.Errorf("%s %v %q %q", m.Status, m.NativeBBox, value(m.Source), value(m.Reason))
				}
				checkRow(t, m)
			}
		})
	}
	placed := string(testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), testKeys())}.build())
	bare := string(testTIFF{binary.LittleEndian, false, testSize()}.build())
	for _, c := range []struct {
		name, tiff, world, prj, status string
		native                         []float64
		says                           string
	}{
		{"tags come first", placed, "1\n0\n0\n-1\n100\n200\n", "", "ok", good, "498 pixels"},
		{"a world file that agrees", placed, lines, "", "ok", good, ""},
		{"a world file half a pixel off", placed, "0.5\n0\n0\n-0.25\n10\n50\n", "", "ok", good, "0.791 pixels"},
		{"a broken world file beside tags", placed, "x", "", "ok", good, "six numbers"},
		{"with a .prj", bare, lines, utmPRJ, "ok", good, aboutArea}, // the box of degrees, in metres
		{"keys come before the .prj", placed, lines, utmPRJ, "ok", good, ""},
		{"with an invalid .prj", bare, lines, "Projection UTM", "no_bbox", good, "not valid well-known text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := files{"a.tif": c.tiff, "a.tfw": c.world}
			if c.prj != "" {
				f["a.prj"] = c.prj
			}
			m := f.read("a.tif", 0)
			if warned := strings.Join(m.Warnings, "; "); m.Status != c.status || !near(m.NativeBBox, c.native) || !strings.Contains(warned, c.says) || (c.says == "") != (warned == "") {
				t.Errorf("%s %v %q %q", m.Status, m.NativeBBox, value(m.Reason), warned)
			}
		})
	}
}

// zipOf returns a ZIP archive of files with that many zeros.
func zipOf(t *testing.T, sizes map[string]int) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range sizes {
			if !yield(name) {
				return
			}
		}
	}) {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Write(make([]byte, sizes[name]))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHGT: the name gives the place of an HGT file, the size its resolution.
func TestHGT(t *testing.T) {
	const small, large, narrow, fine = 1201 * 1201 * 2, 3601 * 3601 * 2, 1801 * 3601 * 2, 7201 * 7201 * 2
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	w.Write(make([]byte, small))
	w.Close()
	many := map[string]int{"n45e007.hgt": small, "z.hgt": small} // z.hgt is listed behind 32 KiB
	for i := range 500 {
		many[fmt.Sprintf("n45e007/%050d.txt", i)] = 1
	}
	for _, c := range []struct {
		name    string
		content string
		size    int64
		status  string
		bbox    []float64 // of the sample centres
		columns int64
		says    string // warnings or reason
	}{
		{"N45E007.hgt", "", small, "ok", []float64{7, 45, 8, 46}, 1201, ""},
		{"n45e007.HGT", "", large, "ok", []float64{7, 45, 8, 46}, 3601, ""},
		{"S01W001.hgt", "", fine, "ok", []float64{-1, -1, 0, 0}, 7201, ""},
		{"N60E010.hgt", "", narrow, "ok", []float64{10, 60, 11, 61}, 1801, ""},
		{"N00E000.hgt", "", small, "ok", []float64{0, 0, 1, 1}, 1201, ""},
		{"s01e179.hgt", "", small, "ok", []float64{179, -1, 180, 0}, 1201, ""},
		{"N10E010.hgt", "", narrow, "ok", []float64{10, 10, 11, 11}, 1801, "contradicts its name"},
		{"N45E007.SRTMGL1.hgt", "", small, "ok", []float64{7, 45, 8, 46}, 1201, "contradicts its name"},
		{"N45E007.SRTMGL3.hgt", "", small, "ok", []float64{7, 45, 8, 46}, 1201, ""},
		{"N45E007.hgt", "", small - 2, "corrupt", nil, 0, "no HGT file has"},
		{"alps.hgt", "", small, "no_georef", nil, 1201, "only the name"},
		{"N90E000.hgt", "", small, "no_georef", nil, 1201, "only the name"},
		{"N91E007.hgt", "", small, "no_georef", nil, 1201, "only the name"},
		{"N+5E007.hgt", "", small, "no_georef", nil, 1201, "only the name"},
		{"N45E007.hgt.zip", zipOf(t, map[string]int{"N45E007.hgt": small}), 0, "ok", []float64{7, 45, 8, 46}, 1201, ""},
		{"x.zip", zipOf(t, map[string]int{"a/n45e007.HGT": small, "a/n45e007.num": 9}), 0, "ok", []float64{7, 45, 8, 46}, 1201, ""},
		{"two.zip", zipOf(t, map[string]int{"n45e007.hgt": small, "n45e008.hgt": small}), 0, "unsupported", nil, 0, "holds several .hgt files: unpack it first"},
		{"N45E007.hgt.zip", zipOf(t, map[string]int{"N45E007.hgt": small})[:500], 0, "corrupt", nil, 0, "its data is cut off"},
		{"other.zip", zipOf(t, map[string]int{"N45E007.hgt": small})[:500], 0, "unsupported", nil, 0, "a ZIP archive: unpack it first"},
		{"long.zip", zipOf(t, many), 0, "unsupported", nil, 0, "ZIP"},
		{"none.zip", zipOf(t, map[string]int{"readme.txt": 5}), 0, "unsupported", nil, 0, "ZIP"},
		{"N45E007.hgt.gz", compressed.String(), 0, "ok", []float64{7, 45, 8, 46}, 1201, ""},
		{"N45E007.tar.gz", compressed.String(), 0, "unsupported", nil, 0, "gzip"},
	} {
		m := files{c.name: c.content}.read(c.name, c.size)
		said := value(m.Reason) + strings.Join(m.Warnings, "; ")
		if m.Status != c.status || value(m.Width) != c.columns || !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
			t.Errorf("%s of %d: %s, %d columns, %q", c.name, c.size, m.Status, value(m.Width), said)
		}
		checkRow(t, m)
		if c.bbox == nil {
			continue
		}
		dx, dy := 0.5/float64(*m.Width-1), 0.5/float64(*m.Height-1)
		want := []float64{c.bbox[0] - dx, c.bbox[1] - dy, c.bbox[2] + dx, c.bbox[3] + dy}
		if !near(m.NativeBBox, want) || value(m.CRS) != "EPSG:4326" || value(m.PixelIs) != "point" || value(m.Format) != "hgt" {
			t.Errorf("%s: %v, want %v", c.name, m.NativeBBox, want)
		}
	}
}

// dted returns the header of a DTED file.
func dted(lon, lat, intervals, size, vertical, datum string) string {
	uhl := "UHL1" + lon + lat + intervals + fmt.Sprintf("%-19s", "U") + size + "0"
	dsi := fmt.Sprintf("DSI%138s%s%s", "", vertical, datum)
	return fmt.Sprintf("%-80s%-648s%-2700s", uhl, dsi, "ACC")
}

// TestDTED: the extent follows from the User Header Label, wherever it lies.
func TestDTED(t *testing.T) {
	good := dted("0800000W", "0430000N", "03000300", "01210121", "MSL", "WGS84")
	const size = 3428 + 121*(12+2*121)
	post := 1.0 / 240
	box := []float64{-80 - post, 43 - post, -79 + post, 44 + post}
	for _, c := range []struct {
		name, content string
		size          int64
		status        string
		native        []float64
		crs, vertical string
		says          string
	}{
		{"valid", good, size, "ok", box, "EPSG:4326", "", ""},
		{"behind VOL and HDR labels", fmt.Sprintf("%-80s%-80s%s", "VOL1", "HDR1", good), size + 160, "ok", box, "EPSG:4326", "", ""},
		{"swapped", dted("0430000N", "0800000W", "03000300", "01210121", "MSL", "WGS84"), size, "ok", box, "EPSG:4326", "", ""},
		{"south and west of 0", dted("0010000W", "0010000S", "03000300", "01210121", "MSL", "WGS84"), size, "ok", []float64{-1 - post, -1 - post, post, post}, "EPSG:4326", "", ""},
		{"swapped in the south", dted("0010000S", "0020000W", "03000300", "01210121", "MSL", "WGS84"), size, "ok", []float64{-2 - post, -1 - post, -1 + post, post}, "EPSG:4326", "", ""},
		{"minutes and seconds", dted("0803036W", "0430000N", "03000300", "01210121", "MSL", "WGS84"), size, "ok", []float64{-80.51 - post, 43 - post, -79.51 + post, 44 + post}, "EPSG:4326", "", ""},
		{"level 2 in the north", dted("0100000E", "0600000N", "00200010", "18013601", "E96", "WGS84"), 1e9, "ok", []float64{10 - 1./3600, 60 - 1./7200, 11 + 1./3600, 61 + 1./7200}, "EPSG:4326", "EPSG:5773", ""},
		{"WGS 72", dted("0800000W", "0430000N", "03000300", "01210121", "MSL", "WGS72"), size, "ok", box, "EPSG:4322", "", ""},
		{"an unknown datum", dted("0800000W", "0430000N", "03000300", "01210121", "MSL", "NAD27"), size, "ok", box, "EPSG:4326", "", `"NAD27"`},
		{"cut short", good, size - 1, "corrupt", box, "EPSG:4326", "", "the file ends at 34161; 1 bytes are missing"},
		{"no DSI", strings.Replace(good, "DSI", "XXX", 1), size, "corrupt", nil, "", "", "DSI"},
		{"cut in the header", good[:500], 0, "corrupt", nil, "", "", "cut short"},
		{"no numbers", dted("0800000W", "0430000N", "NANANANA", "01210121", "MSL", "WGS84"), size, "corrupt", nil, "", "", "not numbers"},
		{"no columns", dted("0800000W", "0430000N", "03000300", "00000121", "MSL", "WGS84"), size, "corrupt", nil, "", "", "width"},
		{"no interval", dted("0800000W", "0430000N", "00000300", "01210121", "MSL", "WGS84"), size, "corrupt", nil, "", "", "no area"},
	} {
		m := files{"x.dt0": c.content}.read("x.dt0", c.size)
		said := value(m.Reason) + strings.Join(m.Warnings, "; ")
		if m.Status != c.status || !near(m.NativeBBox, c.native) || value(m.CRS) != c.crs || value(m.VerticalCRS) != c.vertical ||
			!strings.Contains(said, c.says) || (c.says == "") != (said == "") || value(m.Format) != "dted" {
			t.Errorf("%s: got %s %v %s %s %q, want %s %v %s %s %q", c.name, m.Status, m.NativeBBox, value(m.CRS), value(m.VerticalCRS), said,
				c.status, c.native, c.crs, c.vertical, c.says)
		}
		checkRow(t, m)
	}
}

// TestASCIIGrid: the header's keys are read in every form that programs write.
func TestASCIIGrid(t *testing.T) {
	good := []float64{10, 20, 14, 23}
	for _, c := range []struct {
		name, header, status string
		native               []float64
		pixel, nodata, says  string
	}{
		{"corner", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\nNODATA_value -9999\n", "no_bbox", good, "area", "-9999", "CRS"},
		{"centre", "ncols 4\nnrows 3\nxllcenter 10.5\nyllcenter 20.5\ncellsize 1\n", "no_bbox", good, "point", "", ""},
		{"corner in x, centre in y", "ncols 4\nnrows 3\nxllcorner 10\nyllcenter 20.5\ncellsize 1\n", "no_bbox", good, "area", "", ""},
		{"any order, any case, CRLF", "CELLSIZE 1\r\nYLLCORNER 20\r\nNRows 3\r\nNCOLS 4\r\nXllCorner 10\r\n", "", nil, "", "", ""},
		{"two keys of nodata", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\nNODATA -1\nNODATA_value -9999\n", "no_bbox", good, "area", "-9999", ""},
		{"lines end with CR", "ncols 4\rnrows 3\rxllcorner 10\ryllcorner 20\rcellsize 1\r", "no_bbox", good, "area", "", ""},
		{"dx and dy", "ncols 8\nnrows 1\nxllcorner 10\nyllcorner 20\ndx 0.5\ndy 3\n", "no_bbox", good, "area", "", ""},
		{"comma decimals", "ncols 4\nnrows 3\nxllcorner 0,10E+02\nyllcorner 0,20E+02\ncellsize ,1E+01\n", "no_bbox", good, "area", "", ""},
		{"blanks and tabs", "  ncols\t  4 \n\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n", "no_bbox", good, "area", "", ""},
		{"byte order mark", "\xef\xbb\xbfncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n", "no_bbox", good, "area", "", ""},
		{"no corner", "ncols 4\nnrows 3\ncellsize 1\n", "no_georef", nil, "", "", "lacks its place"},
		{"no cell size", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\n", "no_georef", nil, "", "", "size of a cell"},
		{"no rows", "ncols 4\nxllcorner 10\nyllcorner 20\ncellsize 1\n", "corrupt", nil, "", "", "height"},
		{"half a column", "ncols 4.5\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n", "corrupt", nil, "", "", "width"},
		{"infinite", "ncols 4\nnrows 3\nxllcorner 1e999\nyllcorner 20\ncellsize 1\n", "no_georef", nil, "", "", ""},
		{"no cells", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 0\n", "corrupt", nil, "area", "", "no area"},
	} {
		if c.status == "" { // a header that does not begin as GDAL asks is one all the same
			c.status, c.native, c.pixel = "no_bbox", good, "area"
		}
		m := files{"x.asc": c.header + "1 2 3 4\n5 6 7 8\n9 10 11 12\n"}.read("x.asc", 0)
		if m.Status != c.status || !near(m.NativeBBox, c.native) || value(m.PixelIs) != c.pixel || value(m.Nodata) != c.nodata ||
			!strings.Contains(value(m.Reason), c.says) || value(m.Format) != "asc" {
			t.Errorf("%s: %s %v %s %q", c.name, m.Status, m.NativeBBox, value(m.PixelIs), value(m.Reason))
		}
		checkRow(t, m)
	}
	grid := "ncols 4\nnrows 1\nxllcorner 500000\nyllcorner 5000000\ncellsize 10\n1 2 3 4\n"
	m := files{"x.asc": grid, "x.prj": utmPRJ}.read("x.asc", 0)
	if m.Status != "ok" || value(m.CRSName) != "WGS_1984_UTM_Zone_33N" || math.Abs(m.BBox[0]-15) > 1e-9 || value(m.BBoxAccuracyM) != accuracyWGS84 {
		t.Errorf("with a .prj: %s %q %v", m.Status, value(m.CRSName), m.BBox)
	}
}

// TestEHdr: raw rasters are read by their .hdr.
func TestEHdr(t *testing.T) {
	good := []float64{10, 20, 14, 23}
	for _, c := range []struct {
		name, file, header string
		size               int64
		status             string
		native             []float64
		sample, says       string
	}{
		{"BIL", "x.bil", "BYTEORDER I\nNROWS 3\nNCOLS 4\nNBITS 16\nPIXELTYPE SIGNEDINT\nULXMAP 10.5\nULYMAP 22.5\nXDIM 1\nYDIM 1\n", 24, "no_bbox", good, "int16", ""},
		{"bands", "x.bip", "nrows 3\nncols 4\nnbands 2\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n", 24, "no_bbox", good, "uint8", ""},
		{"signed by its nodata", "x.bsq", "nrows 3\nncols 4\nnbits 16\nnodata -1\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n", 24, "no_bbox", good, "int16", ""},
		{"floating-point grid", "x.flt", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\nbyteorder LSBFIRST\n", 48, "no_bbox", good, "float32", ""},
		{"floating-point grid by centres", "x.flt", "ncols 4\nnrows 3\nxllcenter 10.5\nyllcenter 20.5\ncellsize 1\n", 48, "no_bbox", good, "float32", ""},
		{"shorter than its header demands", "x.flt", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n", 47, "corrupt", good, "float32", "48 bytes at 0, but the file ends at 47; 1 bytes are missing"},
		{"shorter with skipped bytes", "x.bil", "nrows 3\nncols 4\nskipbytes 100\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n", 111, "corrupt", good, "uint8", "12 bytes at 100"},
		{"bits", "x.bil", "nrows 3\nncols 4\nnbits 1\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n", 2, "no_bbox", good, "uint8", ""},
		{"larger than its header demands", "x.flt", "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n", 99, "no_bbox", good, "float32", ""},
		{"no place", "x.bil", "nrows 3\nncols 4\n", 12, "no_georef", nil, "uint8", "lacks its place"},
		{"its own datum", "x.bil", "nrows 3\nncols 4\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\nprojection GEOGRAPHIC\ndatum WGS84\n", 12, "ok", good, "uint8", ""},
		{"of ENVI", "x.bil", "ENVI\nsamples = 4\nlines = 3\n", 12, "unsupported", nil, "", "named .bil"},
		{"more bytes than an integer holds", "x.bil", "nrows 2147483647\nncols 2147483647\nnbands 65535\nnbits 64\nulxmap 10\nulymap 22\nxdim 1\nydim 1\n", 12, "corrupt",
			[]float64{9.5, 22.5 - 2147483647, 9.5 + 2147483647, 22.5}, "uint64", "cut off"},
	} {
		m := files{c.file: "\x00\x01", "x.HDR": c.header}.read(c.file, c.size)
		said := strings.Join(m.Warnings, "; ")
		if m.Status == "no_georef" || m.Status == "unsupported" || m.Status == "corrupt" {
			said = value(m.Reason)
		}
		if m.Status != c.status || !near(m.NativeBBox, c.native) || value(m.SampleType) != c.sample || !strings.Contains(said, c.says) || (c.says == "") != (said == "") {
			t.Errorf("%s: %s %v %s %q", c.name, m.Status, m.NativeBBox, value(m.SampleType), said)
		}
		checkRow(t, m)
	}
	if m := (files{"x.bil": "\x00\x01"}).read("x.bil", 0); m.Status != "unsupported" {
		t.Errorf("without a header: %s", m.Status)
	}
}

// TestSidecars: a sidecar names its raster. Without the raster it is an ordinary file.
func TestSidecars(t *testing.T) {
	beside := files{"a.TIF": "", "b.tif": "", "c.flt": "", "d.asc": "", "e.hgt": ""}
	for name, raster := range map[string]string{
		"a.tfw": "a.TIF", "b.tfw": "b.tif", "b.TFW": "b.tif", "b.wld": "b.tif", "c.prj": "c.flt", "c.hdr": "c.flt", "c.stx": "c.flt", "c.clr": "c.flt", "d.prj": "d.asc",
		"b.tif.aux.xml": "b.tif", "b.tif.ovr": "b.tif", "b.tif.msk": "b.tif", "b.tif.msk.ovr": "b.tif", "b.aux": "b.tif", "b.tab": "b.tif", "e.hgt.aux.xml": "e.hgt",
		"x.tfw": "", "x.prj": "", "x.tif.ovr": "", "x.tif.aux.xml": "", "b.txt": "", "b.xml": "", "aux.xml": "", ".tfw": "", "b.tif.png": "",
	} {
		f := files{name: "hello"}
		for other := range beside {
			f[other] = ""
		}
		m := f.read(name, 0)
		if want := "belongs to " + raster + " beside it"; raster != "" && (m.Status != fileStatusSidecar || value(m.Reason) != want) || raster == "" && m.Status != fileStatusUnsupported {
			t.Errorf("%s: %s %q", name, m.Status, value(m.Reason))
		}
		checkRow(t, m)
	}
	// Overviews are TIFFs. Without their raster they are read as such.
	overview := string(testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), testKeys())}.build())
	if m := (files{"x.tif.ovr": overview}).read("x.tif.ovr", 0); m.Status != fileStatusOK {
		t.Errorf("overview alone: %s", m.Status)
	}
}

// TestFileReaderBeside: sidecars are found beside files on disk, and beside links to files.
func TestFileReaderBeside(t *testing.T) {
	dir := t.TempDir()
	bare := testTIFF{binary.LittleEndian, false, testSize()}.build()
	must := func(errs ...error) {
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(name, content string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)
	}
	const world = "0.5\n0\n0\n-0.25\n10.25\n49.875\n"
	must(os.Mkdir(filepath.Join(dir, "sub"), 0o755), write("sub/a.tif", string(bare)), write("sub/a.tfw", world),
		os.Symlink("sub/a.tif", filepath.Join(dir, "linked.tif")), write("linked.TFW", world),
		os.Symlink("sub/a.tif", filepath.Join(dir, "alone.tif")),
		os.Symlink("sub/a.tif", filepath.Join(dir, "both.tif")), os.Symlink("sub/a.tfw", filepath.Join(dir, "both.tfw")),
		write("out.tif", string(bare)), os.Symlink("/etc/passwd", filepath.Join(dir, "out.tfw")),
		write("dir.tif", string(bare)), os.Mkdir(filepath.Join(dir, "dir.tfw"), 0o755),
		write(`odd\name-`+"\xff.tif", string(bare)), write(`odd\name-`+"\xff.tfw", world),
		write(strings.Repeat("x", 251)+".tif", string(bare)))
	fr := &fileReader{root: mustOpenRoot(t, dir), now: time.Now}
	defer fr.close()
	for path, status := range map[string]string{
		"sub/a.tif": "no_bbox", "sub/a.tfw": "sidecar", "linked.tif": "no_bbox", "linked.TFW": "sidecar", "alone.tif": "no_georef", "both.tif": "no_bbox", "both.tfw": "sidecar",
		"out.tif": "unreadable", "dir.tif": "no_georef", `odd\\name-\xff.tif`: "no_bbox", `odd\\name-\xff.tfw`: "sidecar", strings.Repeat("x", 251) + ".tif": "no_georef",
	} {
		if m, found := fr.readEntry(entry{Path: path}); m.Status != status || !found {
			t.Errorf("%s: %s %q", path, m.Status, value(m.Reason))
		}
	}
}

// TestReadEntry: the size that the walk found changes nothing about reading, even if the file is of
// another type by then.
func TestReadEntry(t *testing.T) {
	dir := t.TempDir()
	want := oddFiles(t, dir)
	fr := &fileReader{root: mustOpenRoot(t, dir), now: func() time.Time { return time.Time{} }}
	defer fr.close()
	for path, w := range want {
		plain, found := fr.readEntry(entry{Path: path})
		if known, ok := fr.readEntry(entry{Path: path, Size: 1}); !reflect.DeepEqual(known, plain) || ok != found || plain.Status != w[0] {
			t.Errorf("%s: %+v, then %+v", path, plain, known)
		}
	}
	if _, found := fr.readEntry(entry{Path: "gone.tif", Size: 1}); found {
		t.Error("found what is not there")
	}
}

// TestNames: a warning says that the cell in the file's name does not fit the box.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		name string
		west float64
		warn bool
	}{
		{"N49E010.tif", 10, false}, {"n50e010.tif", 10, false}, {"Copernicus_DSM_COG_10_N49_00_E010_00_DEM.tif", 10, false}, {"ASTGTMV003_N49E010_dem.tif", 10, false},
		{"N43W080.tif", 10, true}, {"N49E110.tif", 10, true}, {"S49E010.tif", 10, true}, {"N49W180.tif", 179, false}, {"N49E180.tif", -180, false}, {"N49E179.tif", 179, false},
		{"version10.tif", 10, false}, {"WGS84_N49.tif", 10, false}, {"plans12e123.tif", 10, false}, {"N48E010.tif", 10, true}, {"N49E011.tif", 10, false}, {"N49E013.tif", 10, true}, {"N51E010.tif", 10, true}, {"N49E010", 10, false},
	} {
		tags := with(testSize(), doubles(33550, 0.5, 0.25, 0), doubles(33922, 0, 0, 0, c.west, 50, 0), testKeys())
		m := readBytes(c.name, testTIFF{binary.LittleEndian, false, tags}.build())
		if (len(m.Warnings) > 0) != c.warn {
			t.Errorf("%s: %v %q", c.name, m.BBox, m.Warnings)
		}
	}
}

// boundedReader checks the bounds of reading one file: memory and time.
func boundedReader(t *testing.T, read func() extent) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	m := read()
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v", took)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d bytes allocated", used)
	}
	checkRow(t, m)
}

// FuzzGrids reads any content under any name with any sidecar.
func FuzzGrids(f *testing.F) {
	f.Add("N45E007.hgt", []byte{0}, int64(1201*1201*2), "")
	f.Add("x.dt0", []byte(dted("0800000W", "0430000N", "03000300", "01210121", "MSL", "WGS84")), int64(0), "")
	f.Add("x.asc", []byte("ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n1 2 3 4\n"), int64(0), utmPRJ)
	f.Add("x.bil", []byte{0, 1}, int64(24), "nrows 3\nncols 4\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n")
	f.Add("x.tif", testTIFF{binary.LittleEndian, false, testSize()}.build(), int64(0), "0.5\n0\n0\n-0.25\n10.25\n49.875\n")
	f.Add("x.zip", []byte("PK\x05\x06"), int64(0), "")
	f.Fuzz(func(t *testing.T, name string, content []byte, size int64, sidecar string) {
		boundedReader(t, func() extent {
			r := &countingReader{r: zeroPadded(content)}
			beside := func(_ string, limit int) ([]byte, bool, error) {
				return []byte(sidecar[:min(limit, len(sidecar))]), sidecar != "", nil
			}
			m := readExtent(name, r, max(size, int64(len(content))), beside)
			if r.bytes > maxHeaderBytes {
				t.Errorf("%d bytes read", r.bytes)
			}
			return m
		})
	})
}

// FuzzGeoKeys reads any content of the three GeoKey tags.
func FuzzGeoKeys(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0, 0, 0, 1, 0, 0, 4, 0, 0, 1, 0, 2, 0}, []byte{}, "")
	f.Add([]byte{1, 0, 1, 0, 0, 0, 2, 0, 0, 4, 0, 0, 1, 0, 1, 0, 1, 4, 0xb1, 0x87, 5, 0, 0, 0}, make([]byte, 16), "name|")
	f.Fuzz(func(t *testing.T, directory, params []byte, ascii string) {
		tags := with(testSize(), testPlace(), shorts(tagGeoKeyDirectory), doubles(tagGeoDoubleParams), asciiTag(tagGeoASCIIParams, ascii))
		for i := 0; i+2 <= len(directory); i += 2 {
			tags[5].values = append(tags[5].values, float64(binary.LittleEndian.Uint16(directory[i:])))
		}
		for i := 0; i+8 <= len(params); i += 8 {
			tags[6].values = append(tags[6].values, math.Float64frombits(binary.LittleEndian.Uint64(params[i:])))
		}
		for _, kind := range testTIFFKinds(tags)[:2] {
			content := kind.build()
			boundedReader(t, func() extent { return readBytes("x.tif", content) })
		}
	})
}

// TestUserDefinedParameters: all keys of a CRS without code are read, in degrees and metres.
func TestUserDefinedParameters(t *testing.T) {
	at := func(id, i float64) [4]float64 { return [4]float64{id, 34736, 1, i} }
	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	tags := with(testSize(), testPlace(), doubles(34736, 6378206.4, 294.9786982, 29.5, 45.5, -96, 23, 1000, 2000, 0.9, 30, 0),
		geoKeyTag(key(1024, 1), key(2048, 4267), key(2050, 6267), key(2051, 32767), [4]float64{2062, 34736, 3, 2}, key(2054, 9102), key(2056, 7008), at(2057, 0), at(2059, 1), key(3072, 32767), key(3074, 32767), key(3075, 11),
			key(3076, 9003), at(3078, 2), at(3079, 3), at(3084, 4), at(3085, 5), at(3086, 6), at(3087, 7), at(3093, 8), at(3094, 9), at(3096, 10)))
	foot := 0.30480060960121924
	want := crsParameters{
		present: true, kind: modelTypeProjected, code: userDefined, geographic: 4267, datum: 6267, ellipsoid: ellipsoid{6378206.4, 294.9786982},
		primeMeridian: math.Inf(1), angularUnit: 1, linearUnit: foot, projectionCode: userDefined, method: 9822, toWGS84: []float64{29.5, 45.5, -96},
		values: map[int]float64{8801: 23, 8802: -96, 8823: 29.5, 8824: 45.5, 8813: 30, 8814: 0, 8805: 0.9, 8806: 1000 * foot, 8807: 2000 * foot},
	}
	for _, kind := range testTIFFKinds(tags) {
		content := kind.build()
		h := &headerReader{r: bytes.NewReader(content), size: uint64(len(content)), order: binary.LittleEndian}
		err := h.readHeader(content)
		if err != nil {
			t.Fatal(err)
		}
		d, err := h.readDirectory(h.start)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := h.readGeoKeys(d)
		if err != nil {
			t.Fatal(err)
		}
		if got := keys.parameters(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
	}
}
