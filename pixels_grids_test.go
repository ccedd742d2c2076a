package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// zipWith returns a ZIP archive of one file.
func zipWith(t *testing.T, name string, method uint16, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
	if err != nil {
		t.Fatal(err)
	}
	f.Write(content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestPixelsOfHGT: tiles are read plain, from ZIP archives and from gzip, in any order of rows; a tile that is not what
// was packed is an error.
func TestPixelsOfHGT(t *testing.T) {
	t.Parallel()
	const side = 1201
	tile := make([]byte, 2*side*side)
	for i := range side * side {
		binary.BigEndian.PutUint16(tile[2*i:], uint16(int16(i%3000-500)))
	}
	binary.BigEndian.PutUint16(tile[2*5:], 0x8000)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(tile)
	w.Close()

	longer, wrong := bytes.Clone(packed.Bytes()), bytes.Clone(packed.Bytes())
	wrong[len(wrong)-8]++ // the checksum
	longer[len(longer)-12] ^= 0xff
	stored := zipWith(t, "N45E007.hgt", zip.Store, tile)
	damaged := bytes.Clone(stored)
	damaged[3000] ^= 1
	for _, c := range []struct {
		name    string
		content []byte
		says    string
	}{
		{"N45E007.hgt", tile, ""},
		{"N45E007.hgt.gz", packed.Bytes(), ""},
		{"N45E007.zip", zipWith(t, "a/N45E007.hgt", zip.Deflate, tile), ""},
		{"N45E007.zip", stored, ""},
		{"N45E007.hgt.gz", wrong, "its checksum is wrong"},
		{"N45E007.hgt.gz", longer, "its c"},
		{"N45E007.zip", damaged, "its checksum is wrong"},
	} {
		r, err := openBytes(c.name, c.content, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		s, err := r.statistics(t.Context(), 5000)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if c.says != "" {
			if s.BadBlocks == 0 || !strings.Contains(value(s.Damage), c.says) {
				t.Errorf("%s: %d blocks, %q", c.name, s.BadBlocks, value(s.Damage))
			}
			continue
		}
		for _, i := range []int{side*side - 1, 0, 1_000_000, 4, 700_001} {
			got, err := r.sampleAt(t.Context(), i%side, i/side)
			if want := float64(i%3000 - 500); err != nil || got != want {
				t.Errorf("%s: sample %d is %v, want %v, %v", c.name, i, got, want, err)
			}
		}
		if got, _ := r.sampleAt(t.Context(), 5, 0); !math.IsNaN(got) || s.Voids != 1 || s.BadBlocks != 0 {
			t.Errorf("%s: %v, %d voids, %d damaged blocks", c.name, got, s.Voids, s.BadBlocks)
		}
	}
}

// dtedRecords returns data records of columns of samples from the south.
func dtedRecords(columns ...[]uint16) string {
	var b []byte
	for i, samples := range columns {
		record := []byte{0xAA, 0, 0, byte(i), 0, byte(i), 0, 0}
		for _, v := range samples {
			record = binary.BigEndian.AppendUint16(record, v)
		}
		sum := uint32(0)
		for _, v := range record {
			sum += uint32(v)
		}
		b = append(b, binary.BigEndian.AppendUint32(record, sum)...)
	}
	return string(b)
}

// TestPixelsOfGrids reads the formats of rasters other than TIFF.
func TestPixelsOfGrids(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	header := dted("0800000W", "0430000N", "03000300", "00030002", "MSL", "WGS84")
	records := dtedRecords([]uint16{1, 2}, []uint16{0x8003, 0xFFFF}, []uint16{0xFF00, 6})
	asc := "ncols 3\nnrows 2\nxllcorner 10\nyllcorner 20\ncellsize 1\nNODATA_value -9999\n"
	esri := "nrows 2\nncols 3\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\n"
	int16s := func(v ...int16) string { return string(must(binary.Append(nil, binary.BigEndian, v))) }
	little := func(v any) string { return string(must(binary.Append(nil, binary.LittleEndian, v))) }
	for _, c := range []struct {
		name, content, header string
		want                  []float64
		says                  string
	}{
		{"x.dt0", header + records, "", []float64{2, nan, 6, 1, -3, -256}, ""},
		{"x.dt0", header + strings.Replace(records, "\xAA\x00\x00\x01", "\xAB\x00\x00\x01", 1), "", nil, "column 1 at 3444 is damaged"},
		{"x.dt0", header + strings.Replace(records, "\x80\x03", "\x80\x04", 1), "", nil, "column 1 at 3444 is damaged: the checksum is 814, but it states 813"},
		{"x.asc", asc + "1 2.5\t3\r\n-4e1 -9999\n\n  6", "", []float64{1, 2.5, 3, -40, nan, 6}, ""},
		{"x.asc", asc + "1 2,5 3 nan 1.#QNAN -1.#IND\n7 8", "", []float64{1, 2.5, 3, nan, nan, nan}, ""},
		{"x.asc", asc + "1 2 x 4 5 6\n", "", nil, `"x" before`},
		{"x.asc", asc + "1 " + strings.Repeat("2", 70_000) + " 3 4 5 6\n", "", nil, "too long"},
		{"x.bil", int16s(1, 2, 3, -4, 5, 6), esri + "nbits 16\npixeltype signedint\nnodata 5", []float64{1, 2, 3, -4, nan, 6}, ""},
		{"x.bil", int16s(1, 2, 3, 0, 0, 0, 4, 5, 6, 0, 0, 0), esri + "nbits 16\nnbands 2", []float64{1, 2, 3, 4, 5, 6}, ""},
		{"x.bip", little([]int16{1, 0, 2, 0, 3, 0, -4, 0, 5, 0, 6, 0}), esri + "nbits 16\nnbands 2\nlayout bip\nbyteorder I\npixeltype S", []float64{1, 2, 3, -4, 5, 6}, ""},
		{"x.bsq", "12" + int16s(1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0), esri + "nbits 16\nnbands 2\nlayout BSQ\nskipbytes 2", []float64{1, 2, 3, 4, 5, 6}, ""},
		{"x.bil", int16s(1, 2, 3, 99, 4, 5, 6, 99), esri + "nbits 16\ntotalrowbytes 8", []float64{1, 2, 3, 4, 5, 6}, ""},
		{"x.flt", little([]float32{1, 2, 3, -4.5, 5, 6}), esri + "byteorder LSBFIRST", []float64{1, 2, 3, -4.5, 5, 6}, ""},
		{"x.bil", "\xA0\x40", esri + "nbits 1\n", []float64{1, 0, 1, 0, 1, 0}, ""},
		{"x.bil", strings.Repeat("x", 48), esri + "nbits 64\ntotalrowbytes 8\n", nil, "its rows have 24 bytes, but follow each other after 8"},
		{"x.bil", strings.Repeat("x", 48), esri + "nbits 16.5\n", nil, "16.5 bits"},
	} {
		got, err := readAllHeights(c.name, []byte(c.content), files{"x.hdr": c.header})
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s %q: %v, want %s", c.name, c.header, err, c.says)
			}
			continue
		}
		if err != nil || !sameHeights(got, c.want) {
			t.Errorf("%s %q: %v, %v, want %v", c.name, c.header, got, err, c.want)
		}
	}
}

// TestLongASCIIGrid: rows are read in any order, each block from where it begins.
func TestLongASCIIGrid(t *testing.T) {
	t.Parallel()
	const width, height = 1000, 300 // three blocks
	b := []byte("ncols 1000\nnrows 300\nxllcorner 10\nyllcorner 20\ncellsize 1\n")
	for i := range width * height {
		b = fmt.Appendf(b, "%d\n"[:2+i%7/6], i) // lines do not end with rows
		b = append(b, ' ')
	}
	r, err := openBytes("x.asc", b, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{299_999, 0, 150_000, 299_000, 299_999} {
		got, err := r.sampleAt(t.Context(), i%width, i/width)
		if err != nil || got != float64(i) {
			t.Errorf("sample %d is %v, %v", i, got, err)
		}
	}
}

// TestDamageIsReadOnce: when the length of a damaged file is unknown before it is read, or its data is packed, the file
// is not read again for each block behind the damage. A reader that gives up ends the statistics.
func TestDamageIsReadOnce(t *testing.T) {
	t.Parallel()
	short := []byte("ncols 1000\nnrows 13100\nxllcorner 10\nyllcorner 20\ncellsize 1\n" + strings.Repeat("1"+strings.Repeat(" ", 63), 200_000)) // 100 blocks
	const side = 3601
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for range side {
		for i := range side {
			w.Write([]byte{byte(i), byte(i * i)})
		}
	}
	w.Close()
	wrong := packed.Bytes()
	wrong = append(wrong[:len(wrong)/4], wrong[len(wrong)-8:]...) // the end states the size
	for name, content := range map[string][]byte{"x.asc": short, "N45E007.hgt.gz": wrong} {
		var h headerReader
		file := &countingReader{r: bytes.NewReader(content)}
		m := h.readExtent(name, file, int64(len(content)), files{}.beside)
		m.Status = fileStatusOK // whatever the size of the file says
		file.bytes = 0
		s, err := readHeights(t.Context(), &h, &m)
		if err != nil || s.BadBlocks < 10 || file.bytes > 3*len(content) {
			t.Errorf("%s: %v, %d damaged blocks, %d bytes read of %d", name, err, s.BadBlocks, file.bytes, len(content))
		}

		ctx, cancel := context.WithCancel(t.Context())
		h.r = readerFunc(func(p []byte, offset int64) (int, error) {
			if offset > int64(len(content)/8) {
				cancel()
			}
			return file.ReadAt(p, offset)
		})
		file.bytes = 0
		if _, err := readHeights(ctx, &h, &m); err != context.Canceled || file.bytes > len(content)/3 {
			t.Errorf("%s, cancelled: %v, %d bytes read", name, err, file.bytes)
		}
	}
}

// TestStatistics: the figures of small rasters, in strips and in tiles.
func TestStatistics(t *testing.T) {
	t.Parallel()
	const spike = 5000
	f := plainTIFF()
	f.width, f.height, f.bits, f.format = 64, 48, 32, sampleFormatFloat
	f.tags = with(asciiTag(tagGDALNoData, "-1\x00"))
	f.value = func(_, x, y int) float64 {
		switch {
		case x == 10 && y == 20, x == 63 && y == 47:
			return spike // the second in a corner
		case x == 40 && y == 7:
			return -spike
		case x >= 30 && x < 32 && y == 30:
			return spike // two are no spike
		case x < 4:
			return -1
		case y >= 40:
			return 12
		}
		return float64(x) + float64(y)/100
	}
	var valid []float64
	for _, v := range f.values() {
		if v != -1 {
			valid = append(valid, float64(float32(v)))
		}
	}
	var mean, squares float64
	for _, v := range valid {
		mean += v / float64(len(valid))
	}
	for _, v := range valid {
		squares += (v - mean) * (v - mean) / float64(len(valid))
	}

	for _, shape := range [][2]int{{0, 1}, {0, 5}, {0, 48}, {16, 16}, {64, 16}} {
		f.columns, f.rows = shape[0], shape[1]
		r, err := openBytes("x.tif", f.build(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.statistics(t.Context(), 200)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, got, want any) {
			t.Helper()
			if got != want {
				t.Errorf("%v, %s: %v, want %v", shape, what, got, want)
			}
		}
		check("samples", s.Samples, int64(64*48))
		check("voids", s.Voids, int64(4*48))
		check("min", s.Min, height(-spike))
		check("max", s.Max, height(spike))
		check("mode", s.Mode, height(12))
		check("mode samples", s.ModeSamples, int64(60*8))
		check("spikes", s.Spikes, int64(3))
		check("first spike", *s.SpikeAt, [2]int{40, 7})
		check("mean", math.Abs(float64(s.Mean)-mean) < 1e-9*math.Abs(mean), true)
		check("deviation", math.Abs(float64(s.Deviation)-math.Sqrt(squares)) < 1e-9*math.Sqrt(squares), true)
		check("north", s.Edges[0][15], height(62))
		check("north, void", math.IsNaN(float64(s.Edges[0][0])), true)
		check("east", s.Edges[1][2], height(63.07))
		check("south", s.Edges[2][4], height(12))
		check("west", math.IsNaN(float64(s.Edges[3][9])), true)
		check("bad blocks", s.BadBlocks, int64(0))
	}
}

// TestStatisticsOfTurnedFiles: the same terrain has the same edges, grid and first spike, wherever the rows and columns of a file
// begin.
func TestStatisticsOfTurnedFiles(t *testing.T) {
	t.Parallel()
	const width, height = 40, 30
	terrain := func(_, x, y int) float64 {
		if x == 12 && y == 5 || x == 20 && y == 5 || x == 3 && y == 17 {
			return 5000
		}
		return float64(100*y + x)
	}
	north := plainTIFF()
	north.width, north.height, north.rows = width, height, 4
	north.bits, north.format = 32, sampleFormatFloat
	north.value = terrain
	want, err := must(openBytes("x.tif", north.build(), nil)).statistics(t.Context(), 1000)
	check(t, "error", err, nil)
	check(t, "first spike", *want.SpikeAt, [2]int{12, 5})

	for _, columns := range []int{0, 16} {
		for _, step := range [][2]float64{{10, -10}, {10, 10}, {-10, -10}, {-10, 10}} {
			name := fmt.Sprintf("tiles of %d columns, steps %v", columns, step)
			f := north
			f.columns = columns
			if columns > 0 {
				f.rows = 16
			}
			f.place = with(doubles(tagModelTransformation, step[0], 0, 0, 500_000, 0, step[1], 0, 5_400_000, 0, 0, 0, 0, 0, 0, 0, 1), testKeys())
			f.value = func(band, x, y int) float64 {
				if step[0] < 0 {
					x = width - 1 - x
				}
				if step[1] > 0 {
					y = height - 1 - y
				}
				return terrain(band, x, y)
			}
			got, err := must(openBytes("x.tif", f.build(), nil)).statistics(t.Context(), 1000)
			check(t, name+": error", err, nil)
			check(t, name+": edges", got.Edges, want.Edges)
			check(t, name+": grid", fmt.Sprint(got.Grid), fmt.Sprint(want.Grid))
			check(t, name+": first spike", *got.SpikeAt, *want.SpikeAt)
		}
	}
}

// TestStatisticsOfDamage: blocks that cannot be decoded are counted, and the others are read. Without heights, figures are null.
func TestStatisticsOfDamage(t *testing.T) {
	t.Parallel()
	f := plainTIFF()
	f.compression = compressionDeflate
	f.block = func(i int, b []byte) []byte {
		if i > 0 {
			b[len(b)-1]++ // the checksum
		}
		return b
	}
	r, err := openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.statistics(t.Context(), 200)
	if err != nil || s.BadBlocks != 2 || s.Samples != 14 || s.Max != 10 || !strings.Contains(value(s.Damage), "strip 1 at ") {
		t.Errorf("%+v, %v, %q", s, err, value(s.Damage))
	}

	f = plainTIFF()
	f.tags = with(asciiTag(tagGDALNoData, "5\x00"))
	f.value = func(int, int, int) float64 { return 5 }
	for _, f.block = range []func(int, []byte) []byte{nil, func(int, []byte) []byte { return nil }} {
		r, err = openBytes("x.tif", f.build(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err = r.statistics(t.Context(), 200)
		text := string(must(json.Marshal(s)))
		want := `{"samples":35,"voids":35,"min":null,"max":null,"mean":null,"deviation":null,"mode":null,"mode_samples":0,"spikes":0,"spike_at":null,"bad_blocks":0,"damage":null,"edges":[[null,`
		if err != nil || !strings.HasPrefix(text, want) {
			t.Errorf("%s, %v", text, err)
		}
	}
}

// TestStatisticsOfNothing: blocks that were never written are added without a look at their samples, so that a small file
// cannot cost hours. What still would is refused.
func TestStatisticsOfNothing(t *testing.T) {
	t.Parallel()
	f := plainTIFF()
	f.tags = with(longs(tagTileWidth, 2048), longs(tagTileLength, 1024))
	f.value = func(int, int, int) float64 { return 0 }
	f.block = func(int, []byte) []byte { return nil }
	f.compression = compressionPackBits
	open := func(f pixelTIFF, width, height uint32) *raster {
		t.Helper()
		content := f.build()
		binary.LittleEndian.PutUint32(content[10+8:], width)
		binary.LittleEndian.PutUint32(content[10+12+8:], height)
		r, err := openBytes("x.tif", content, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	// 17 thousand million heights, decoded one by one, would take minutes.
	s, err := open(f, 1<<17, 1<<17).statistics(t.Context(), 200)
	isZero := s.Min == 0 && s.Max == 0 && s.Mean == 0 && s.Deviation == 0 && s.Mode == 0
	isEdge := s.Edges[0][0] == 0 && s.Edges[1][15] == 0 && s.Edges[2][7] == 0 && s.Edges[3][8] == 0
	if err != nil || s.Samples != 1<<34 || s.Voids != 0 || s.ModeSamples != 1<<34 || !isZero || !isEdge || s.Spikes != 0 {
		t.Errorf("%+v, %v", s, err)
	}

	for _, c := range []struct {
		name                string
		tileWidth, tileRows float64
		bands               int
		width, height       uint32
	}{
		{"too many samples", 2048, 1024, 1, 1 << 17, 1 << 18},
		{"too many blocks", 1, 1, 1, 1 << 17, 1 << 16},
		{"too many bytes", 128, 128, 1024, 1 << 17, 1 << 16},
	} {
		f.bands = c.bands
		f.tags = with(longs(tagTileWidth, c.tileWidth), longs(tagTileLength, c.tileRows))
		_, err := open(f, c.width, c.height).statistics(t.Context(), 200)
		if err == nil || statusOf(err) != fileStatusUnsupported || !strings.Contains(err.Error(), "too many") {
			t.Errorf("%s: %v", c.name, err)
		}
	}

	// Written blocks beside others: the constant is not mixed with what was decoded before.
	f = plainTIFF()
	f.width, f.height, f.columns, f.rows = 8, 4, 4, 2
	f.value = func(_, x, y int) float64 { return float64(1 + x) }
	f.block = func(i int, encoded []byte) []byte { return encoded[:len(encoded)*(i%2)] } // only the right half
	f.tags = with(asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="OFFSET" sample="0" role="offset">5</Item></GDALMetadata>`+"\x00"))
	r, err := openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err = r.statistics(t.Context(), 200)
	if err != nil || s.Samples != 32 || s.Min != 5 || s.Max != 13 || s.Mean != 8.25 || s.Mode != 5 || s.ModeSamples != 16 || math.Abs(float64(s.Deviation)-math.Sqrt(11.1875)) > 1e-12 {
		t.Errorf("%+v, %v", s, err)
	}
	if s.Edges[0][7] != 5 || s.Edges[0][8] != 10 || s.Edges[1][0] != 13 || s.Edges[3][15] != 5 {
		t.Errorf("%v", s.Edges)
	}

	// Each row of a tile would decode all strips of such a mask again.
	image, mask := plainTIFF(), plainTIFF()
	image.width, image.height, image.columns, image.rows = 64, 4, 32, 2
	mask.width, mask.height, mask.rows, mask.bits, mask.format, mask.tags = 64, 4, 1, 1, sampleFormatUint, with(longs(tagNewSubfileType, subfileMask))
	mask.value = func(int, int, int) float64 { return 1 }
	r, err = openBytes("x.tif", chainTIFFs(image.build(), mask.build()), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.statistics(t.Context(), 200)
	if err == nil || statusOf(err) != fileStatusUnsupported || !strings.Contains(err.Error(), "mask") {
		t.Errorf("a mask in wide blocks: %v", err)
	}
}

// TestHeightAt: the height of a place by each interpolation, at the edges and beside voids too.
func TestHeightAt(t *testing.T) {
	t.Parallel()
	f := plainTIFF()
	f.width, f.height, f.bits, f.format, f.columns, f.rows = 12, 10, 64, sampleFormatFloat, 4, 4
	f.tags = with(asciiTag(tagGDALNoData, "-1\x00"))
	cubic := func(x, y float64) float64 { return 100 + 3*x - 2*y + x*x/8 + x*y/4 } // which cubic convolution repeats
	f.value = func(_, x, y int) float64 {
		if x == 9 && y == 8 {
			return -1
		}
		return cubic(float64(x), float64(y))
	}
	r, err := openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	bilinear := func(x, y float64) float64 {
		i, j := math.Floor(x), math.Floor(y)
		u, v := x-i, y-j
		return (cubic(i, j)*(1-u)+cubic(i+1, j)*u)*(1-v) + (cubic(i, j+1)*(1-u)+cubic(i+1, j+1)*u)*v
	}
	for _, c := range []struct {
		name string
		x, y float64
		way  interpolation
		want float64
	}{
		{"the nearest", 3.999, 4.001, interpolateNearest, cubic(3, 4)},
		{"the nearest in the last corner", 11.999, 9.999, interpolateNearest, cubic(11, 9)},
		{"bilinear over four tiles", 4.25, 4.125, interpolateBilinear, bilinear(3.75, 3.625)},
		{"bilinear in the middle of a sample", 4.5, 4.5, interpolateBilinear, cubic(4, 4)},
		{"bilinear at the first corner", 0.1, 0.2, interpolateBilinear, cubic(0, 0)},
		{"bilinear at the last corner", 11.9, 9.9, interpolateBilinear, cubic(11, 9)},
		{"bilinear at an edge", 0.25, 5.75, interpolateBilinear, bilinear(0, 5.25)},
		{"cubic over tiles", 4.25, 4.125, interpolateCubic, cubic(3.75, 3.625)},
		{"cubic in the middle of a sample", 6.5, 2.5, interpolateCubic, cubic(6, 2)},
		{"cubic beside a void is bilinear", 8.25, 6.75, interpolateCubic, bilinear(7.75, 6.25)},
		{"bilinear beside a void is the nearest", 9.3, 7.9, interpolateBilinear, cubic(9, 7)},
		{"a void", 9.5, 8.5, interpolateCubic, math.NaN()},
	} {
		got, err := r.heightAt(t.Context(), c.x, c.y, c.way)
		isSame := math.Abs(got-c.want) < 1e-9 || math.IsNaN(got) && math.IsNaN(c.want)
		if err != nil || !isSame {
			t.Errorf("%s: %v, want %v, %v", c.name, got, c.want, err)
		}
	}

	huge := plainTIFF()
	huge.compression, huge.tags = compressionPackBits, with(longs(tagTileWidth, 16), longs(tagTileLength, 16))
	huge.width, huge.height = 1<<20, 1
	huge.value = func(int, int, int) float64 { return 0 }
	content := huge.build()
	binary.LittleEndian.PutUint32(content[10+12+8:], 1<<20) // ImageLength
	r, err = openBytes("x.tif", content, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.statistics(t.Context(), 200); err == nil || statusOf(err) != fileStatusUnsupported || !strings.Contains(err.Error(), "too many") {
		t.Errorf("%v", err)
	}

	f.columns, f.rows, f.width, f.height = 0, 1, 1, 1
	r, err = openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.heightAt(t.Context(), 0.9, 0.2, interpolateCubic); err != nil || got != 100 {
		t.Errorf("of a single sample: %v, %v", got, err)
	}
}

// TestBBoxHeights: "cairn bbox --heights" prints what all heights of a file have in common, or why they were not read.
func TestBBoxHeights(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, packed, damaged := plainTIFF(), plainTIFF(), plainTIFF()
	packed.compression = 50000
	damaged.compression = compressionLZW
	damaged.block = func(i int, b []byte) []byte { return b[:len(b)-2*i] }
	infinite := plainTIFF()
	infinite.bits, infinite.format = 64, sampleFormatFloat
	infinite.value = func(int, int, int) float64 { return -math.MaxFloat64 }
	infinite.tags = with(asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="SCALE" sample="0" role="scale">1e308</Item></GDALMetadata>`+"\x00"))
	squares := plainTIFF()
	squares.bits, squares.format = 64, sampleFormatFloat
	squares.value = func(_, x, _ int) float64 { return math.MaxFloat64 * float64(1-x%2) }
	for name, content := range map[string][]byte{"damaged.tif": damaged.build(), "good.tif": good.build(), "infinite.tif": infinite.build(), "notes.txt": []byte("hello"), "packed.tif": packed.build(), "squares.tif": squares.build()} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"bbox", "--heights", "--root", dir, dir}, nil, nil, &out, &errs); err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}
	var got []string
	for line := range bytes.Lines(out.Bytes()) {
		var row struct {
			Path, Status  string
			Heights       *heightStatistics
			HeightsReason *string `json:"heights_reason"`
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		text := row.Path + ", " + row.Status + ": " + value(row.HeightsReason)
		if h := row.Heights; h != nil {
			text += fmt.Sprintf("%v to %v, mean %v, deviation %.4f, %d voids, %d damaged: %s", h.Min, h.Max, h.Mean, h.Deviation, h.Voids, h.BadBlocks, value(h.Damage))
		}
		got = append(got, text)
	}
	want := []string{
		"damaged.tif, ok: -6 to 10, mean 2, deviation 5.3852, 0 voids, 2 damaged: strip 1 at",
		"good.tif, ok: -6 to 40, mean 17, deviation 14.2829, 0 voids, 0 damaged: ",
		"infinite.tif, ok:  to , mean , deviation NaN, 35 voids, 0 damaged: ", // all null
		"notes.txt, unsupported: it seems to be a text file, which is not supported",
		"packed.tif, ok: compressed with ZSTD",
		"squares.tif, ok: 0 to 1797",
	}
	for i, w := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], w) {
			t.Errorf("%q, want %q", got, want)
			break
		}
	}
}

// TestDecodeBudget: a file that is read from its front to its end costs its whole length, each time that this begins again.
func TestDecodeBudget(t *testing.T) {
	t.Parallel()
	const side = 1201
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(make([]byte, 2*side*side))
	w.Close()
	grid := []byte("ncols 1000\nnrows 300\nxllcorner 10\nyllcorner 20\ncellsize 1\n" + strings.Repeat("1 ", 300_000))

	open := func(name string, content []byte, budget float64) (*raster, error) {
		var h headerReader
		m := h.readExtent(name, bytes.NewReader(content), int64(len(content)), files{}.beside)
		h.budget = &decodeBudget{budget}
		return h.openRaster(t.Context(), &m)
	}
	const refusal = "too much of it would have to be decoded"
	_, err := open("x.asc", grid, float64(len(grid)-1))
	checkError(t, "an ASCII grid", err, refusal)
	if _, err = open("x.asc", grid, float64(len(grid))); err != nil {
		t.Error(err)
	}

	// The last block, then the first one, which lies before it.
	r, err := open("N45E007.hgt.gz", packed.Bytes(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	r.budget.left = 2*2*side*side + 3*r.blockWork() - 1
	for _, row := range []int{side - 1, 0, 1} {
		if _, err := r.sampleAt(t.Context(), 0, row); err != nil {
			t.Errorf("row %d: %v", row, err)
		}
	}
	_, err = r.sampleAt(t.Context(), 0, side-1)
	checkError(t, "a third block", err, refusal)
}
