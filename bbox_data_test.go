package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// dataTIFF returns a TIFF with these tags and so many bytes of samples behind them. The values of
// the offset tags count from the beginning of the samples; one below 0 becomes 0.
func dataTIFF(f testTIFF, samples int) []byte {
	size := float64(len(f.build()))
	tags := slices.Clone(f.tags)
	for i, tag := range tags {
		if tag.tag == tagStripOffsets || tag.tag == tagTileOffsets {
			tags[i].values = slices.Clone(tag.values)
			for j := range tag.values {
				tags[i].values[j] = max(0, tag.values[j]+size)
			}
		}
	}
	f.tags = tags
	return append(f.build(), make([]byte, samples)...)
}

// TestDataCutOff: a TIFF is ok only if all strips or tiles of its first image lie in the file. Each
// case has so many bytes of samples, and is damaged with one byte less.
func TestDataCutOff(t *testing.T) {
	one := math.Inf(-1) // an offset of 0
	strips := func(offsets, counts []float64, more ...testTag) []testTag {
		return with(testSize()[:2], longs(tagStripOffsets, offsets...), longs(tagStripByteCounts, counts...), testPlace(), testKeys(), more)
	}
	tiles := func(offsets, counts []float64, more ...testTag) []testTag {
		return with(testSize()[:2], longs(tagTileOffsets, offsets...), longs(tagTileByteCounts, counts...), shorts(tagTileWidth, 2), shorts(tagTileLength, 16), testPlace(), testKeys(), more)
	}
	lzw, bits16, separate := shorts(tagCompression, 5), shorts(tagBitsPerSample, 16), shorts(tagPlanarConfiguration, 2)
	for _, c := range []struct {
		name    string
		tags    []testTag
		samples int
		says    string // the reason with one byte less
	}{
		{"one strip", strips([]float64{0}, []float64{12}, shorts(tagBitsPerSample, 8)), 12, "strip 0 has 12 bytes"},
		{"one strip of 16 bits", strips([]float64{0}, []float64{24}, bits16), 24, "strip 0 has 24 bytes"},
		{"one strip of single bits", strips([]float64{0}, []float64{3}), 3, "strip 0 has 3 bytes"},
		{"three strips", strips([]float64{0, 8, 16}, []float64{8, 8, 8}, bits16, shorts(tagRowsPerStrip, 1)), 24, "strip 2 has 8 bytes"},
		{"the last strip is shorter", strips([]float64{0, 16}, []float64{16, 8}, bits16, shorts(tagRowsPerStrip, 2)), 24, "strip 1 has 8 bytes"},
		{"strips from back to front", strips([]float64{8, 0}, []float64{16, 8}, bits16, shorts(tagRowsPerStrip, 2)), 24, "strip 0 has 16 bytes"},
		{"more rows in a strip than there are", strips([]float64{0}, []float64{24}, bits16, longs(tagRowsPerStrip, 1<<32-1)), 24, "strip 0 has 24 bytes"},
		{"strips of no rows", strips([]float64{0}, []float64{24}, bits16, longs(tagRowsPerStrip, 0)), 24, "strip 0 has 24 bytes"},
		{"byte counts as SHORT", with(testSize(), longs(tagStripOffsets, 0), shorts(tagStripByteCounts, 12), testPlace(), testKeys()), 12, "strip 0 has 12 bytes"},
		{"byte counts as LONG8", with(testSize(), long8s(tagStripOffsets, 0), long8s(tagStripByteCounts, 12), testPlace(), testKeys()), 12, "strip 0 has 12 bytes"},
		{"without compression the byte count is ignored, as in libtiff", strips([]float64{0}, []float64{999}, bits16), 24, "strip 0 has 24 bytes"},
		{"without compression a small byte count is ignored too", strips([]float64{0}, []float64{7}, bits16), 24, "strip 0 has 24 bytes"},
		{"with compression it counts", strips([]float64{0}, []float64{7}, bits16, lzw), 7, "strip 0 has 7 bytes"},
		{"colours with fewer samples", strips([]float64{0}, []float64{7}, bits16, shorts(tagPhotometric, 6)), 7, "strip 0 has 7 bytes"},
		{"no byte counts", with(testSize(), longs(tagStripOffsets, 0), testPlace(), testKeys()), 12, "strip 0 has 12 bytes"},
		{"compressed without byte counts", with(testSize(), longs(tagStripOffsets, 6), lzw, testPlace(), testKeys()), 7, "strip 0 has 1 bytes"},
		{"planes", strips([]float64{0, 12, 24}, []float64{12, 12, 12}, shorts(tagBitsPerSample, 8, 8, 8), shorts(tagSamplesPerPixel, 3), separate), 36, "strip 2 has 12 bytes"},
		{"the second plane's last strip", strips([]float64{0, 8, 12, 20}, []float64{8, 4, 8, 4}, shorts(tagBitsPerSample, 8, 8), shorts(tagSamplesPerPixel, 2), shorts(tagRowsPerStrip, 2), separate), 24, "strip 3 has 4 bytes"},
		{"samples together", strips([]float64{0}, []float64{36}, shorts(tagBitsPerSample, 8, 8, 8), shorts(tagSamplesPerPixel, 3)), 36, "strip 0 has 36 bytes"},
		{"tiles are whole", tiles([]float64{0, 32}, []float64{32, 32}, shorts(tagBitsPerSample, 8)), 64, "tile 1 has 32 bytes"},
		{"compressed tiles", tiles([]float64{5, 0}, []float64{3, 5}, shorts(tagBitsPerSample, 8), lzw), 8, "tile 0 has 3 bytes"},
		{"tiles in the strips' tags", with(testSize(), longs(tagStripOffsets, 0, 32), longs(tagStripByteCounts, 32, 32), shorts(tagTileWidth, 2), shorts(tagTileLength, 16), testPlace(), testKeys()), 64, "tile 1 has 32 bytes"},
		{"tiles that were never written", tiles([]float64{0, one}, []float64{32, 0}, shorts(tagBitsPerSample, 8)), 32, "tile 0 has 32 bytes"},
		{"a byte count of 0 means that too", tiles([]float64{0, 1 << 20}, []float64{32, 0}, shorts(tagBitsPerSample, 8)), 32, "tile 0 has 32 bytes"},
		{"more offsets than tiles", tiles([]float64{0, 32, 1 << 20}, []float64{32, 32, 32}, shorts(tagBitsPerSample, 8)), 64, "tile 1 has 32 bytes"},
		{"fewer byte counts than tiles", tiles([]float64{0, 32}, []float64{32}, shorts(tagBitsPerSample, 8)), 32, "tile 0 has 32 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range testTIFFKinds(c.tags) {
				whole := dataTIFF(f, c.samples)
				if m := readBytes("x.tif", whole); m.Status != fileStatusOK || len(m.Warnings) > 0 {
					t.Errorf("%v big %v: %s %q %q", f.order, f.big, m.Status, value(m.Reason), m.Warnings)
				}
				m := readBytes("x.tif", whole[:len(whole)-1])
				end := fmt.Sprintf(", but the file ends at %d; 1 bytes are missing", len(whole)-1)
				if m.Status != fileStatusCorrupt || !strings.Contains(value(m.Reason), c.says) || !strings.HasSuffix(value(m.Reason), end) {
					t.Errorf("%v big %v with a byte less: %s %q", f.order, f.big, m.Status, value(m.Reason))
				}
				if m.NativeBBox == nil || m.BBox == nil {
					t.Error("it lost its place")
				}
				if m.withdrawPlace(); m.NativeBBox == nil || m.BBox != nil {
					t.Error("in the database a place would find it")
				}
				checkRow(t, m)
			}
		})
	}
	// A raster without extent is checked too.
	bare := dataTIFF(testTIFF{binary.LittleEndian, false, with(testSize(), longs(tagStripOffsets, 0), longs(tagStripByteCounts, 12))}, 12)
	for size, status := range map[int]string{len(bare): fileStatusNoGeoref, len(bare) - 1: fileStatusCorrupt} {
		if m := readBytes("x.tif", bare[:size]); m.Status != status {
			t.Errorf("%d of %d bytes: %s", size, len(bare), m.Status)
		}
	}
}

// TestLongTables: the tables of 262,144 tiles are not read whole, but a missing last tile, or a
// missing first one, is found, also where the tiles behind were never written.
func TestLongTables(t *testing.T) {
	const tiles, size = 1 << 18, 1 << 30
	for _, c := range []struct {
		name    string
		tile    int // which is missing
		written int // tiles up to this one were written
		status  string
	}{
		{"none", tiles, tiles, "ok"},
		{"the last", tiles - 1, tiles, "corrupt"},
		{"the first", 0, tiles, "corrupt"},
		{"one of the last, before others that were never written", tiles - 8000, tiles - 7999, "corrupt"},
	} {
		offsets, counts := make([]float64, tiles), make([]float64, tiles)
		for i := range c.written {
			offsets[i], counts[i] = float64(16<<20+i*100), 100
		}
		if c.tile < tiles {
			offsets[c.tile] = size - 99
		}
		for _, kind := range testTIFFKinds(with(longs(256, 512*16), longs(257, 512*16), shorts(258, 8), shorts(tagCompression, 5), shorts(tagTileWidth, 16), shorts(tagTileLength, 16),
			long8s(tagTileOffsets, offsets...), longs(tagTileByteCounts, counts...), doubles(33550, 1e-4, 1e-4, 0), testPlace()[1], testKeys())) {
			content := kind.build()
			r := &countingReader{r: zeroPadded(content)}
			m := readExtent("x.tif", r, size, nil)
			if m.Status != c.status || c.status != "ok" && !strings.HasSuffix(value(m.Reason), " 1 bytes are missing") {
				t.Errorf("%s: %s %q", c.name, m.Status, value(m.Reason))
			}
			if m.DataBytes != nil {
				t.Errorf("%s: a sum of %d of tables that were not read whole", c.name, *m.DataBytes)
			}
			if r.reads > 20 || r.bytes > maxHeaderBytes {
				t.Errorf("%s: %d reads of %d bytes", c.name, r.reads, r.bytes)
			}
		}
	}
	// A table that is itself cut off.
	f := testTIFF{binary.LittleEndian, false, with(shorts(256, 4), shorts(257, 300), testPlace(), testKeys(), shorts(tagRowsPerStrip, 1), longs(tagStripOffsets, make([]float64, 300)...))}
	content := f.build()
	if m := readBytes("x.tif", content[:len(content)-1]); m.Status != fileStatusCorrupt || !strings.Contains(value(m.Reason), "the table of 300 strips at") {
		t.Errorf("%s %q", m.Status, value(m.Reason))
	}
}

// TestSecondImage: a cut-off overview is only worth a warning.
func TestSecondImage(t *testing.T) {
	for _, f := range testTIFFKinds(with(testSize(), testPlace(), testKeys())) {
		content := f.build()
		next, size := 8+2+12*len(f.tags), 4
		if f.big {
			next, size = 16+8+20*len(f.tags), 8
		}
		f.put(content[next:], uint64(len(content)))
		m := readBytes("x.tif", content)
		if m.Status != fileStatusOK || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], fmt.Sprintf("lies at %d, beyond", len(content))) {
			t.Errorf("%s %q", m.Status, m.Warnings)
		}
		f.put(content[next:], 8)
		if m := readBytes("x.tif", content); m.Status != fileStatusOK || len(m.Warnings) != 0 {
			t.Errorf("%s %q of %d", m.Status, m.Warnings, size)
		}
	}
}

// TestASCIIGridCutOff: an ASCII grid is ok only if all its samples are there.
func TestASCIIGridCutOff(t *testing.T) {
	const header = "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\nNODATA_value nan\n"
	grid := files{"x.prj": utmPRJ}
	for _, samples := range []string{
		"1 2 3 4\n5 6 7 8\n9 10 11 12\n", "1 2 3 4\r\n5 6 7 8\r\n9 10 11 12", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n\n", "nan 2 3 4\n5 6 7 8\n9 10 11 12 \x1a",
		" -1.5e3 2 3 4 5 6 7 8 9 10 11 12", ".5 2 3 4\n\n5 6 7 8\n9 10 11 inf\n",
	} {
		last := strings.LastIndexFunc(strings.TrimRight(samples, " \r\n\x1a"), func(r rune) bool { return r <= ' ' }) + 1
		for n := range len(samples) + 1 {
			grid["x.asc"] = header + samples[:n]
			m := grid.read("x.asc", 0)
			want := "corrupt"
			if n > last { // a number that is cut off is a number
				want = "ok"
			}
			if m.Status != want || want == "corrupt" && !strings.Contains(value(m.Reason), fmt.Sprintf("the file ends at %d", len(header)+n)) {
				t.Errorf("%q: %s %q", samples[:n], m.Status, value(m.Reason))
			}
			checkRow(t, m)
		}
	}
	// One that is too long to count its samples.
	const columns, rows = 1000, 1000
	line := strings.Repeat("123.45 ", columns) + "\n"
	long := fmt.Sprintf("ncols %d\nnrows %d\nxllcorner 500000\nyllcorner 5000000\ncellsize 10\n", columns, rows) + strings.Repeat(line, rows)
	for cut, want := range map[int]string{0: "ok", 1: "ok", 2: "ok", 9: "corrupt", 3500: "corrupt", 2_000_010: "corrupt", 5_500_000: "corrupt"} {
		grid["x.asc"] = long[:len(long)-cut]
		r := &countingReader{r: strings.NewReader(grid["x.asc"])}
		m := readExtent("x.asc", r, int64(len(grid["x.asc"])), grid.beside)
		if m.Status != want || r.bytes > maxHeaderBytes || r.reads > 3 {
			t.Errorf("%d bytes less: %s %q with %d reads of %d bytes", cut, m.Status, value(m.Reason), r.reads, r.bytes)
		}
	}
	wrapped := strings.ReplaceAll(long, "123.45 123.45 \n", "123.45\n123.45")
	grid["x.asc"] = wrapped
	if m := grid.read("x.asc", 0); m.Status != fileStatusOK {
		t.Errorf("rows that are not lines: %s %q", m.Status, value(m.Reason))
	}
}

// TestOrphanedHeader: the header of a raw raster is no ASCII grid.
func TestOrphanedHeader(t *testing.T) {
	for _, name := range []string{"x.hdr", "X.HDR"} {
		m := files{name: "NROWS 3\nNCOLS 4\nULXMAP 10.5\nULYMAP 22.5\nXDIM 1\nYDIM 1\nDX 1\nDY 1\nXLLCORNER 10\nYLLCORNER 20\n"}.read(name, 0)
		if m.Status != fileStatusUnsupported || !strings.Contains(value(m.Reason), "none lies beside it") || m.NativeBBox != nil {
			t.Errorf("%s: %s %q", name, m.Status, value(m.Reason))
		}
	}
}

// TestAuxiliary: GDAL's .aux.xml places a raster that says nothing itself, and gives it a CRS.
func TestAuxiliary(t *testing.T) {
	const transform, srs = "<GeoTransform> 10,  5.0e-01, 0, 5.0000000000000000e+01, 0, -0.25</GeoTransform>", `<SRS dataAxisToSRSAxisMapping="2,1">GEOGCS[&quot;WGS 84&quot;,DATUM[&quot;WGS_1984&quot;,SPHEROID[&quot;WGS 84&quot;,6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],AUTHORITY["EPSG","4326"]]</SRS>`
	const world = "0.5\n0\n0\n-0.25\n100.25\n49.875\n"
	bare := string(testTIFF{binary.BigEndian, false, testSize()}.build())
	placed := string(testTIFF{binary.LittleEndian, false, with(testSize(), testPlace())}.build())
	whole := string(testTIFF{binary.LittleEndian, true, with(testSize(), testPlace(), testKeys())}.build())
	good, far := []float64{10, 49.25, 12, 50}, []float64{100, 49.25, 102, 50}
	const grid, tags = "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 49.25\ndx 0.5\ndy 0.25\n1 2 3 4 5 6 7 8 9 10 11 12\n", "ModelPixelScale (33550) and ModelTiepoint (33922)"
	for _, c := range []struct {
		name, file, content, aux string
		beside                   files
		status                   string
		native                   []float64
		crs, source              string
	}{
		{"both", "x.tif", bare, transform + srs, nil, "ok", good, "EPSG:4326", "the GeoTransform in x.tif.aux.xml; CRS from x.tif.aux.xml"},
		{"the place alone", "x.tif", bare, transform, nil, "no_bbox", good, "", "the GeoTransform in x.tif.aux.xml"},
		{"before a world file, as in GDAL", "x.tif", bare, transform + srs, files{"x.tfw": world}, "ok", good, "EPSG:4326", "the GeoTransform in x.tif.aux.xml; CRS from x.tif.aux.xml"},
		{"the CRS to a world file", "x.tif", bare, srs, files{"x.tfw": world}, "ok", far, "EPSG:4326", "the world file x.tfw; CRS from x.tif.aux.xml"},
		{"the CRS to tags", "x.tif", placed, srs, nil, "ok", good, "EPSG:4326", tags + "; CRS from x.tif.aux.xml"},
		{"before tags, as in GDAL", "x.tif", whole, "<GeoTransform>100,0.5,0,50,0,-0.25</GeoTransform>", nil, "ok", far, "EPSG:4326", "the GeoTransform in x.tif.aux.xml"},
		{"before keys, as in GDAL", "x.tif", whole, strings.ReplaceAll(srs, "4326", "4269"), nil, "ok", good, "EPSG:4269", tags + "; CRS from x.tif.aux.xml"},
		{"a CRS that is none, over keys", "x.tif", whole, "<SRS>GEOGCS[</SRS>", nil, "ok", good, "EPSG:4326", tags},
		{"rotated", "x.tif", bare, "<GeoTransform>10,0.5,0.1,50,0.2,-0.25</GeoTransform>", nil, "no_bbox", []float64{10, 49.25, 12.3, 50.8}, "", "the GeoTransform in x.tif.aux.xml"},
		{"an ASCII grid", "x.asc", grid, srs, nil, "ok", good, "EPSG:4326", "the header of the ASCII grid; CRS from x.asc.aux.xml"},
		{"not over a .prj", "x.asc", grid, srs, files{"x.prj": `GEOGCS["g",DATUM["D_North_American_1983",SPHEROID["GRS_1980",6378137.0,298.257222101]],PRIMEM["Greenwich",0],UNIT["Degree",0.0174532925199433]]`}, "ok", good, "EPSG:4269", "the header of the ASCII grid; CRS from x.prj"},
		{"a raw raster", "x.bil", "123456789012", transform + srs, files{"x.hdr": "ncols 4\nnrows 3\n"}, "ok", good, "EPSG:4326", "the GeoTransform in x.bil.aux.xml; CRS from x.bil.aux.xml"},
		{"five numbers", "x.tif", bare, "<GeoTransform>1,2,3,4,5</GeoTransform>", nil, "no_georef", nil, "", ""},
		{"no area", "x.tif", bare, "<GeoTransform>1,0,0,4,0,0</GeoTransform>", nil, "no_georef", nil, "", ""},
		{"infinite", "x.tif", bare, "<GeoTransform>1e999,1,0,4,0,1</GeoTransform>", nil, "no_georef", nil, "", ""},
		{"of a band", "x.tif", bare, "<PAMRasterBand>" + transform + srs + "</PAMRasterBand>", nil, "no_georef", nil, "", ""},
		{"a CRS that is none", "x.tif", placed, "<SRS>GEOGCS[</SRS>", nil, "no_bbox", good, "", tags},
		{"a local CRS", "x.tif", placed, "<SRS>LOCAL_CS[&quot;PAM&quot;]</SRS>", nil, "no_bbox", good, "", tags + "; CRS from x.tif.aux.xml"},
		{"statistics only", "x.tif", bare, "<Metadata/>", nil, "no_georef", nil, "", ""},
		{"invalid behind the place", "x.tif", bare, transform + srs + "</x><&>", nil, "ok", good, "EPSG:4326", "the GeoTransform in x.tif.aux.xml; CRS from x.tif.aux.xml"},
		{"entities without end", "x.tif", bare, "&a;&b;" + transform, nil, "no_georef", nil, "", ""},
		{"nested without end", "x.tif", bare, strings.Repeat("<a>", 5000), nil, "no_georef", nil, "", ""},
		{"longer than what is read", "x.tif", bare, transform + srs + strings.Repeat("<a>0</a>", 1<<20), nil, "ok", good, "EPSG:4326", "the GeoTransform in x.tif.aux.xml; CRS from x.tif.aux.xml"},
	} {
		f := files{c.file: c.content, c.file + ".aux.xml": "<PAMDataset>\n  " + c.aux + "\n</PAMDataset>\n"}
		for name, content := range c.beside {
			f[name] = content
		}
		m := f.read(c.file, 0)
		if m.Status != c.status || !near(m.NativeBBox, c.native) || value(m.CRS) != c.crs || value(m.Source) != c.source {
			t.Errorf("%s: %s %q %v %q %q", c.name, m.Status, value(m.Reason), m.NativeBBox, value(m.CRS), value(m.Source))
		}
		checkRow(t, m)
	}
	for aux, want := range map[string]string{
		transform + srs: "[]",
		"<GeoTransform>100,0.5,0,50,0,-0.25</GeoTransform>" + strings.ReplaceAll(srs, "4326", "4269"): "[its .aux.xml and its tags differ by up to 90 units of its CRS, " +
			"or 255 pixels; the .aux.xml is used it lies outside the area of use of its CRS, which reaches from 167.65°, 14.92° to -40.73°, 86.45° its .aux.xml says EPSG:4269, and its keys EPSG:4326; the .aux.xml is used]",
	} {
		m := files{"x.tif": whole, "x.tif.aux.xml": "<PAMDataset>" + aux + "</PAMDataset>"}.read("x.tif", 0)
		if fmt.Sprint(m.Warnings) != want {
			t.Errorf("%s: got %q, want %q", aux, m.Warnings, want)
		}
	}
	vertical := files{"x.tif": placed, "x.tif.aux.xml": "<PAMDataset><SRS>COMPD_CS[&quot;a&quot;,VERT_CS[&quot;b&quot;]]</SRS></PAMDataset>"}
	if m := vertical.read("x.tif", 0); fmt.Sprint(m.Warnings) != "[the CRS in x.tif.aux.xml cannot be used: it has no horizontal part]" {
		t.Errorf("a vertical CRS: %q", m.Warnings)
	}
	other := files{"x.tif": bare, "x.tif.aux.xml": "<VRTDataset>" + transform + "</VRTDataset>"}
	if m := other.read("x.tif", 0); m.Status != fileStatusNoGeoref {
		t.Errorf("of another root element: %s", m.Status)
	}
	failing := func(name string, _ int) ([]byte, bool, error) {
		return nil, strings.HasSuffix(name, auxSuffix), errors.New("input/output error")
	}
	if m := readExtent("x.tif", strings.NewReader(bare), int64(len(bare)), failing); m.Status != fileStatusUnreadable {
		t.Errorf("an I/O error: %s", m.Status)
	}
}

// FuzzAuxiliary reads any text as the .aux.xml of a TIFF.
func FuzzAuxiliary(f *testing.F) {
	f.Add("<PAMDataset><SRS>GEOGCS[&quot;WGS 84&quot;]</SRS><GeoTransform>10, 0.5, 0, 50, 0, -0.25</GeoTransform></PAMDataset>")
	f.Add("<PAMDataset><PAMRasterBand band='1'><UnitType>m</UnitType><Scale>0.1</Scale></PAMRasterBand></PAMDataset>")
	f.Add("<!DOCTYPE a [<!ENTITY b '&b;&b;'>]><PAMDataset><SRS>&b;</SRS></PAMDataset>")
	bare := string(testTIFF{binary.LittleEndian, false, testSize()}.build())
	f.Fuzz(func(t *testing.T, aux string) {
		boundedReader(t, func() extent { return files{"x.tif": bare, "x.tif.aux.xml": aux}.read("x.tif", 0) })
	})
}
