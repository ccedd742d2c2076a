package main

import (
	"bytes"
	"compress/lzw"
	"compress/zlib"
	"context"
	"encoding/binary"
	"math"
	"math/bits"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// openBytes opens the raster of a file in memory, with others beside it.
func openBytes(name string, content []byte, beside files) (*raster, error) {
	h := new(headerReader)
	m := h.readExtent(name, bytes.NewReader(content), int64(len(content)), beside.beside)
	return h.openRaster(context.Background(), &m)
}

// readAllHeights returns all heights of a file in memory.
func readAllHeights(name string, content []byte, beside files) ([]float64, error) {
	r, err := openBytes(name, content, beside)
	if err != nil {
		return nil, err
	}
	return r.read(context.Background(), window{0, 0, r.width, r.height})
}

// sameHeights reports whether heights are equal; NaN is equal to NaN.
func sameHeights(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return a == b || a != a && b != b })
}

// pixelTIFF builds a TIFF with samples, by a way of its own through the specification.
type pixelTIFF struct {
	order         testByteOrder
	big           bool
	width, height int
	bands         int
	separate      bool
	columns, rows int // of a tile; without columns, rows of a strip
	bits, format  int
	compression   int
	oldLZW        bool
	predictor     int
	reversed      bool
	deflate       *zlib.Writer // kept from file to file, because a new one is dear; nil: made where it is needed
	place         []testTag    // and CRS; nil: testPlace and testKeys
	tags          []testTag
	value         func(band, x, y int) float64
	block         func(i int, encoded []byte) []byte // what becomes of a block; nil: nothing
}

// sample returns the bits of a sample.
func (f *pixelTIFF) sample(v float64) uint64 {
	switch {
	case f.format != sampleFormatFloat && v < 0:
		return uint64(int64(v)) & (1<<f.bits - 1)
	case f.format != sampleFormatFloat:
		return uint64(v)
	case f.bits == 32:
		return uint64(math.Float32bits(float32(v)))
	case f.bits == 64:
		return math.Float64bits(v)
	case v == 0:
		return 0
	}
	mantissa, exponent := math.Frexp(math.Abs(v)) // binary16, of normal numbers
	half := uint64(exponent+14)<<10 | uint64(mantissa*2048)&1023
	if v < 0 {
		half |= 1 << 15
	}
	return half
}

// row returns a row of samples of a block, in the file's byte order, as the predictor leaves it.
func (f *pixelTIFF) row(samples []uint64, bands int) (row []byte) {
	size := f.bits / 8
	if f.predictor == predictorFloat {
		for plane := range size {
			for _, v := range samples {
				row = append(row, byte(v>>(8*(size-1-plane))))
			}
		}
		for i := len(row) - 1; i >= bands; i-- {
			row[i] -= row[i-bands]
		}
		return row
	}
	var packed, have uint64
	for i, v := range samples {
		if f.predictor == predictorHorizontal && i >= bands {
			v -= samples[i-bands]
		}
		if slices.Contains([]int{8, 16, 32, 64}, f.bits) {
			b := f.order.AppendUint64(nil, v)
			if f.order == binary.LittleEndian {
				row = append(row, b[:size]...)
			} else {
				row = append(row, b[8-size:]...)
			}
			continue
		}
		for bit := f.bits - 1; bit >= 0; bit-- {
			packed = packed<<1 | v>>bit&1
			if have++; have == 8 {
				row, have = append(row, byte(packed)), 0
			}
		}
	}
	if have > 0 {
		row = append(row, byte(packed<<(8-have)))
	}
	return row
}

// build returns the file.
func (f pixelTIFF) build() []byte {
	columns, rows := f.columns, f.rows
	if columns == 0 {
		columns = f.width
	}
	var blocks [][]byte
	planes, bands := 1, f.bands
	if f.separate {
		planes, bands = f.bands, 1
	}
	for plane := range planes {
		for top := 0; top < f.height; top += rows {
			for left := 0; left < f.width; left += columns {
				var block []byte
				for y := top; y < top+rows && (f.columns > 0 || y < f.height); y++ {
					var samples []uint64
					for x := left; x < left+columns; x++ {
						for band := range bands {
							samples = append(samples, f.sample(f.value(plane+band, min(x, f.width-1), min(y, f.height-1))))
						}
					}
					block = append(block, f.row(samples, bands)...)
				}
				block = f.encode(block)
				if f.block != nil {
					block = f.block(len(blocks), block)
				}
				blocks = append(blocks, block)
			}
		}
	}

	kinds := []uint16{tagStripOffsets, tagStripByteCounts}
	tags := with(longs(tagImageWidth, float64(f.width)), longs(tagImageLength, float64(f.height)), shorts(tagBitsPerSample, slices.Repeat([]float64{float64(f.bits)}, f.bands)...),
		shorts(tagCompression, float64(f.compression)), shorts(tagPhotometric, 1), shorts(tagSamplesPerPixel, float64(f.bands)))
	if f.columns > 0 {
		kinds = []uint16{tagTileOffsets, tagTileByteCounts}
		tags = with(tags, shorts(tagTileWidth, float64(columns)), shorts(tagTileLength, float64(rows)))
	} else {
		tags = with(tags, longs(tagRowsPerStrip, float64(rows)))
	}
	if f.separate {
		tags = with(tags, shorts(tagPlanarConfiguration, separatePlanes))
	}
	if f.predictor > 1 {
		tags = with(tags, shorts(tagPredictor, float64(f.predictor)))
	}
	if f.reversed {
		tags = with(tags, shorts(tagFillOrder, fillOrderLowestFirst))
	}
	tags = with(tags, shorts(tagSampleFormat, slices.Repeat([]float64{float64(f.format)}, f.bands)...))
	if f.place != nil {
		tags = with(tags, f.place, f.tags)
	} else {
		tags = with(tags, testPlace(), testKeys(), f.tags)
	}

	// The size of the directory does not depend on the offsets.
	offsets, counts := make([]float64, len(blocks)), make([]float64, len(blocks))
	file := func() testTIFF {
		return testTIFF{f.order, f.big, with(tags, longs(kinds[0], offsets...), longs(kinds[1], counts...))}
	}
	at := len(file().build())
	for i, block := range blocks {
		if len(block) > 0 {
			offsets[i], counts[i] = float64(at), float64(len(block))
		}
		at += len(block)
	}
	return append(file().build(), bytes.Join(blocks, nil)...)
}

// encode compresses a block.
func (f *pixelTIFF) encode(block []byte) []byte {
	var b bytes.Buffer
	switch f.compression {
	case uncompressed:
		b.Write(block)
	case compressionPackBits:
		for len(block) > 0 { // runs of equal bytes, and other bytes one by one, with -128 between
			n := 1
			for n < min(len(block), 128) && block[n] == block[0] {
				n++
			}
			b.Write([]byte{byte(1 - n), block[0], 0x80})
			block = block[n:]
		}
	case compressionDeflate, compressionOldDeflate:
		if f.deflate == nil {
			f.deflate = zlib.NewWriter(nil)
		}
		f.deflate.Reset(&b)
		f.deflate.Write(block)
		f.deflate.Close()
	case compressionLZW:
		if f.oldLZW {
			w := lzw.NewWriter(&b, lzw.LSB, 8)
			w.Write(block)
			w.Close()
		} else {
			b.Write(encodeLZW(block))
		}
	}
	encoded := b.Bytes()
	if f.reversed {
		for i := range encoded {
			encoded[i] = bits.Reverse8(encoded[i])
		}
	}
	return encoded
}

// encodeLZW compresses as TIFF 6.0, section 13, says.
func encodeLZW(data []byte) (b []byte) {
	var pending uint64
	have, width := 0, 9
	put := func(code int) {
		pending = pending<<width | uint64(code)
		for have += width; have >= 8; have -= 8 {
			b = append(b, byte(pending>>(have-8)))
		}
	}
	table := map[string]int{}
	put(256)
	omega := ""
	code := func(s string) int {
		if len(s) == 1 {
			return int(s[0])
		}
		return table[s]
	}
	for _, k := range data {
		next := omega + string([]byte{k})
		if _, known := table[next]; known || omega == "" {
			omega = next
			continue
		}
		put(code(omega))
		table[next] = 258 + len(table)
		switch 258 + len(table) {
		case 512, 1024, 2048:
			width++
		case 4095:
			put(256)
			table, width = map[string]int{}, 9
		}
		omega = string([]byte{k})
	}
	if omega != "" {
		put(code(omega))
	}
	put(257)
	return append(b, byte(pending<<(8-have)))
}

// plainTIFF returns a TIFF of 7 by 5 samples in strips of 2 rows.
func plainTIFF() pixelTIFF {
	return pixelTIFF{order: binary.LittleEndian, width: 7, height: 5, bands: 1, rows: 2, bits: 16, format: sampleFormatInt, compression: uncompressed,
		value: func(band, x, y int) float64 { return float64(100*band + 10*y - x) }}
}

// values returns the samples of the first band.
func (f pixelTIFF) values() (v []float64) {
	for y := range f.height {
		for x := range f.width {
			v = append(v, f.value(0, x, y))
		}
	}
	return v
}

// TestPixelsOfTIFF reads every combination of what a TIFF may be.
func TestPixelsOfTIFF(t *testing.T) {
	t.Parallel()
	kinds := []struct{ bits, format, predictor int }{
		{8, sampleFormatUint, 1}, {16, sampleFormatUint, 1}, {32, sampleFormatUint, 1}, {64, sampleFormatUint, 1}, {24, sampleFormatUint, 1},
		{8, sampleFormatInt, 1}, {16, sampleFormatInt, 1}, {32, sampleFormatInt, 1}, {64, sampleFormatInt, 1},
		{1, sampleFormatUint, 1}, {3, sampleFormatUint, 1}, {12, sampleFormatUint, 1}, {12, sampleFormatInt, 1}, {31, sampleFormatInt, 1}, {61, sampleFormatUint, 1},
		{16, sampleFormatFloat, 1}, {32, sampleFormatFloat, 1}, {64, sampleFormatFloat, 1}, {32, sampleFormatVoid, 1},
		{8, sampleFormatUint, 2}, {16, sampleFormatInt, 2}, {32, sampleFormatInt, 2}, {64, sampleFormatInt, 2}, {32, sampleFormatFloat, 2},
		{16, sampleFormatFloat, 3}, {32, sampleFormatFloat, 3}, {64, sampleFormatFloat, 3},
	}
	shapes := []struct{ columns, rows int }{{0, 2}, {0, 1}, {0, 5}, {16, 16}, {3, 2}}
	n := 0
	deflate := zlib.NewWriter(nil)
	for _, kind := range kinds {
		for _, compression := range []int{uncompressed, compressionPackBits, compressionLZW, compressionDeflate, compressionOldDeflate, -compressionLZW} {
			if kind.predictor > 1 && (compression == uncompressed || compression == compressionPackBits) {
				continue
			}
			for _, shape := range shapes {
				for variant := range 16 {
					f := plainTIFF()
					f.deflate = deflate
					f.order = []testByteOrder{binary.LittleEndian, binary.BigEndian}[variant&1]
					f.big, f.reversed = variant&2 != 0, variant&3 == 3
					f.bands = 1 + variant>>2&1
					f.separate = variant>>3&1 == 1
					f.columns, f.rows, f.bits, f.format, f.predictor = shape.columns, shape.rows, kind.bits, kind.format, kind.predictor
					f.compression, f.oldLZW = max(compression, -compression), compression < 0
					f.value = func(band, x, y int) float64 {
						v := float64((31*x*x + 17*y + 5*band) % (1 << min(kind.bits-1, 11)))
						if kind.format == sampleFormatInt || kind.format == sampleFormatFloat {
							v -= float64(x * y)
						}
						if kind.format == sampleFormatFloat && kind.bits > 16 {
							v += 0.125
						}
						return v
					}
					got, err := readAllHeights("x.tif", f.build(), nil)
					if want := f.values(); err != nil || !sameHeights(got, want) {
						t.Fatalf("%+v: %v\n%v, want\n%v", f, err, got, want)
					}
					n++
				}
			}
		}
	}
	t.Logf("%d files", n)
}

// TestLongLZW: the table of LZW grows to its end and begins again.
func TestLongLZW(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		f := plainTIFF()
		f.width, f.height, f.rows, f.compression, f.oldLZW = 300, 200, 100, compressionLZW, old
		f.value = func(_, x, y int) float64 { return float64((x*x*y ^ x*7) % 5000) }
		got, err := readAllHeights("x.tif", f.build(), nil)
		if err != nil || !sameHeights(got, f.values()) {
			t.Errorf("old %v: %v", old, err)
		}
		f.value = func(_, x, y int) float64 { return 7 } // each string is the one before and its first byte
		got, err = readAllHeights("x.tif", f.build(), nil)
		if err != nil || !sameHeights(got, f.values()) {
			t.Errorf("old %v, all equal: %v", old, err)
		}
	}
}

// TestSparseAndMasked: what the file leaves out is void, or 0 without a nodata value; masks and overviews of the
// file are used; the scale and the offset make heights of samples.
func TestSparseAndMasked(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	f := plainTIFF()
	f.width, f.height, f.rows = 4, 4, 2
	f.value = func(band, x, y int) float64 { return float64(10*y + x) }
	f.block = func(i int, encoded []byte) []byte { return encoded[:len(encoded)*i] } // the first strip is missing
	check := func(what string, f pixelTIFF, want ...float64) {
		t.Helper()
		got, err := readAllHeights("x.tif", f.build(), nil)
		if err != nil || !sameHeights(got, want) {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	check("sparse", f, 0, 0, 0, 0, 0, 0, 0, 0, 20, 21, 22, 23, 30, 31, 32, 33)
	f.tags = with(asciiTag(tagGDALNoData, "22\x00"))
	check("sparse with nodata", f, nan, nan, nan, nan, nan, nan, nan, nan, 20, 21, nan, 23, 30, 31, 32, 33)
	f.tags = with(f.tags, asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="OFFSET" sample="0" role="offset">-5</Item><Item name="SCALE" sample="0" role="scale">0.5</Item></GDALMetadata>`+"\x00"))
	check("scaled", f, nan, nan, nan, nan, nan, nan, nan, nan, 5, 5.5, nan, 6.5, 10, 10.5, 11, 11.5)

	// An overview, its mask and the mask of the image follow each other behind the file.
	image := plainTIFF()
	image.width, image.height = 4, 2
	overview, mask, reduced := image, image, image
	overview.width, overview.height, overview.tags = 2, 1, with(longs(tagNewSubfileType, subfileReduced))
	overview.value = func(_, x, y int) float64 { return float64(50 + x) }
	mask.bits, mask.format, mask.tags = 1, sampleFormatUint, with(longs(tagNewSubfileType, subfileMask))
	mask.value = func(_, x, y int) float64 { return float64((x + y) % 2) }
	reduced = mask
	reduced.width, reduced.height, reduced.tags = 2, 1, with(longs(tagNewSubfileType, subfileMask|subfileReduced))
	r, err := openBytes("x.tif", chainTIFFs(image.build(), overview.build(), mask.build(), reduced.build()), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.read(t.Context(), window{0, 0, 4, 2})
	if want := []float64{nan, -1, nan, -3, 10, nan, 8, nan}; err != nil || !sameHeights(got, want) {
		t.Errorf("masked: %v, %v, want %v", got, err, want)
	}
	small := r.overviewFor(2)
	got, err = small.read(t.Context(), window{0, 0, 2, 1})
	if want := []float64{nan, 51}; err != nil || !sameHeights(got, want) {
		t.Errorf("overview: %v, %v, want %v", got, err, want)
	}
	if r.overviewFor(3) != r || r.overviewFor(1) != small {
		t.Error("overviewFor does not choose the smallest that is large enough")
	}
}

// chainTIFFs joins little-endian TIFFs of one directory each to one file.
func chainTIFFs(parts ...[]byte) []byte {
	var file []byte
	order := binary.LittleEndian
	last := 0 // where the offset of the next directory lies
	for _, part := range parts {
		base := len(file)
		directory := int(order.Uint32(part[4:]))
		entries := int(order.Uint16(part[directory:]))
		for i := range entries {
			entry := part[directory+2+12*i:]
			tag, kind, count := order.Uint16(entry), order.Uint16(entry[2:]), order.Uint32(entry[4:])
			isOffset := tag == tagStripOffsets
			if uint64(count)*fieldTypeSize(kind) > 4 {
				at := order.Uint32(entry[8:])
				for j := range count {
					if isOffset {
						order.PutUint32(part[at+4*j:], order.Uint32(part[at+4*j:])+uint32(base))
					}
				}
				isOffset = true
			}
			if isOffset {
				order.PutUint32(entry[8:], order.Uint32(entry[8:])+uint32(base))
			}
		}
		if base > 0 {
			order.PutUint32(file[last:], uint32(base+directory))
		}
		last = base + directory + 2 + 12*entries
		file = append(file, part...)
	}
	return file
}

// TestNodata: a sample is void where GDAL compares it as equal to the nodata value.
func TestNodata(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nodata       string
		bits, format int
		sample       float64
		void         bool
	}{
		{"-9999", 16, sampleFormatInt, -9999, true},
		{"-9999", 16, sampleFormatInt, -9998, false},
		{"-9999.4", 16, sampleFormatInt, -9999, false},
		{"-32768.0", 16, sampleFormatInt, -32768, true},
		{"-3.4028234663852886e+38", 32, sampleFormatFloat, -math.MaxFloat32, true},
		{"-3.4028235e+38", 32, sampleFormatFloat, -math.MaxFloat32, true},
		{"-3.40282e+38", 32, sampleFormatFloat, -math.MaxFloat32, false},
		{"0.1", 32, sampleFormatFloat, float64(float32(0.1)), true},
		{"0.1", 32, sampleFormatFloat, float64(math.Nextafter32(0.1, 1)), true},
		{"0.1", 32, sampleFormatFloat, 0.10001, false},
		{"0.1", 64, sampleFormatFloat, float64(float32(0.1)), false},
		{"1e-5", 64, sampleFormatFloat, math.Nextafter(1e-5, 1), true},
		{"-9999 m", 32, sampleFormatFloat, -9999, true},
		{"nan", 32, sampleFormatFloat, math.NaN(), true},
		{"1.#INF", 32, sampleFormatFloat, 1, false},
		{"none", 32, sampleFormatFloat, 0, false},
		{"", 32, sampleFormatFloat, 0, false},
		{"", 32, sampleFormatFloat, math.Inf(-1), true},
	} {
		f := plainTIFF()
		f.bits, f.format = c.bits, c.format
		f.value = func(int, int, int) float64 { return c.sample }
		if c.nodata != "" {
			f.tags = with(asciiTag(tagGDALNoData, c.nodata+"\x00"))
		}
		got, err := readAllHeights("x.tif", f.build(), nil)
		if err != nil || math.IsNaN(got[0]) != c.void {
			t.Errorf("%q: %v in %d bits is %v, %v", c.nodata, c.sample, c.bits, got, err)
		}
	}
}

// TestPixelErrors: what is not read says why, and what is damaged says where.
func TestPixelErrors(t *testing.T) {
	t.Parallel()
	cut := func(_ int, encoded []byte) []byte { return encoded[:len(encoded)/2] }
	for _, c := range []struct {
		name   string
		change func(f *pixelTIFF)
		status string
		says   string
	}{
		{"ZSTD", func(f *pixelTIFF) { f.compression = 50000 }, fileStatusUnsupported, "compressed with ZSTD"},
		{"JPEG", func(f *pixelTIFF) { f.compression = 7 }, fileStatusUnsupported, "compressed with JPEG"},
		{"a compression without a name", func(f *pixelTIFF) { f.compression = 34676 }, fileStatusUnsupported, "compressed with 34676"},
		{"complex", func(f *pixelTIFF) { f.bits, f.format = 32, sampleFormatComplexInt }, fileStatusUnsupported, "complex numbers"},
		{"24-bit float", func(f *pixelTIFF) {
			f.bits, f.format, f.value = 24, sampleFormatFloat, func(int, int, int) float64 { return 0 }
		}, fileStatusUnsupported, "24 bits"},
		{"predictor of bits", func(f *pixelTIFF) { f.compression, f.predictor, f.bits = compressionLZW, 2, 12 }, fileStatusCorrupt, "predictor 2"},
		{"predictor 3 of integers", func(f *pixelTIFF) { f.compression, f.predictor = compressionLZW, 3 }, fileStatusCorrupt, "predictor 3"},
		{"predictor 4", func(f *pixelTIFF) { f.compression, f.predictor = compressionLZW, 4 }, fileStatusCorrupt, "predictor 4"},
		{"a huge block", func(f *pixelTIFF) {
			f.compression, f.columns, f.rows, f.tags = compressionLZW, 0, 1<<30, nil
			f.height = 1
			f.tags = with(longs(tagTileWidth, 4096), longs(tagTileLength, 1<<20))
		}, fileStatusUnsupported, "64 MiB"},
		{"a tile of 1.5 columns", func(f *pixelTIFF) {
			f.order, f.width, f.height, f.bits, f.format = binary.BigEndian, 3, 1, 32, sampleFormatFloat
			f.tags = with(doubles(tagTileWidth, 1.5), longs(tagTileLength, 1))
		}, fileStatusCorrupt, "1.5 by 1"},
		{"a tile of 1.5 rows", func(f *pixelTIFF) { f.tags = with(longs(tagTileWidth, 4), rational(tagTileLength, 3, 2)) }, fileStatusCorrupt, "4 by 1.5"},
		{"Deflate cut short", func(f *pixelTIFF) { f.compression, f.block = compressionDeflate, cut }, fileStatusCorrupt, "strip 0 at 298: its compressed data ends too early"},
		{"Deflate damaged", func(f *pixelTIFF) {
			f.compression, f.block = compressionDeflate, func(_ int, b []byte) []byte { b[4] ^= 0x55; return b }
		}, fileStatusCorrupt, "strip 0 at 298"},
		{"Deflate with a wrong checksum", func(f *pixelTIFF) {
			f.compression, f.block = compressionDeflate, func(_ int, b []byte) []byte { b[len(b)-1]++; return b }
		}, fileStatusCorrupt, "strip 0 at 298: its checksum is wrong"},
		{"LZW cut short", func(f *pixelTIFF) { f.compression, f.block = compressionLZW, cut }, fileStatusCorrupt, "strip 0 at 298: its compressed data ends too early"},
		{"LZW damaged", func(f *pixelTIFF) {
			f.compression, f.block = compressionLZW, func(_ int, b []byte) []byte { b[1], b[2] = 0x7f, 0xff; return b }
		}, fileStatusCorrupt, "strip 0 at 298: its compressed data is damaged"},
		{"PackBits cut short", func(f *pixelTIFF) { f.compression, f.block = compressionPackBits, cut }, fileStatusCorrupt, "strip 0 at 298: its compressed data ends too early"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := plainTIFF()
			c.change(&f)
			_, err := readAllHeights("x.tif", f.build(), nil)
			if err == nil || statusOf(err) != c.status || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}

	r, err := openBytes("x.tif", plainTIFF().build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []window{{-1, 0, 1, 1}, {0, 5, 1, 1}, {0, 0, 8, 1}, {0, 0, 0, 1}, {math.MaxInt, 0, 1, 1}, {1, 1, math.MaxInt, math.MaxInt}} {
		if _, err := r.read(t.Context(), w); err == nil {
			t.Errorf("the window %v was read", w)
		}
	}
	got, err := r.read(t.Context(), window{5, 1, 2, 3})
	if want := []float64{5, 4, 15, 14, 25, 24}; err != nil || !slices.Equal(got, want) {
		t.Errorf("a window: %v, %v", got, err)
	}
	if v, err := r.sampleAt(t.Context(), 6, 4); v != 34 || err != nil {
		t.Errorf("a sample: %v, %v", v, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.sampleAt(ctx, 0, 0); err != context.Canceled {
		t.Errorf("after its end: %v", err)
	}
}

// TestDamageBelow: rows above the damage of a Deflate block are read, whichever rows were asked for before. Statistics count
// the block as damaged.
func TestDamageBelow(t *testing.T) {
	t.Parallel()
	f := plainTIFF()
	f.compression, f.predictor = compressionDeflate, predictorFloat
	f.bits, f.format = 32, sampleFormatFloat
	f.width, f.height, f.columns, f.rows = 64, 64, 64, 64
	f.value = func(_, x, y int) float64 { return float64((x*7919 + y*104729) % 9973) }
	whole := f.build()
	f.block = func(_ int, encoded []byte) []byte { return encoded[:len(encoded)/2] }
	r, err := openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}

	want := must(readAllHeights("x.tif", whole, nil))
	for _, row := range []int{0, 63, 5, 3, 63, 62, 1} {
		got, err := r.read(t.Context(), window{0, row, 64, 1})
		if row >= 62 {
			checkError(t, "a row below the damage", err, "tile 0 at 298: its compressed data ends too early")
		} else if err != nil || !slices.Equal(got, want[64*row:64*row+64]) {
			t.Errorf("row %d above the damage: %v, %v", row, got, err)
		}
	}

	// Rows above and below the damage are asked for in turn. The block is decoded again only once.
	r.budget = &decodeBudget{r.blockWork()}
	for _, row := range []int{5, 63, 6, 62, 7, 63} {
		_, err := r.read(t.Context(), window{0, row, 64, 1})
		isRefused := err != nil && strings.Contains(err.Error(), "too much of it")
		check(t, "refused for its work", isRefused, false)
	}
	r.budget = nil

	s, err := r.statistics(t.Context(), 200)
	if err != nil || s.BadBlocks != 1 || s.Samples != 0 {
		t.Errorf("statistics: %+v, %v", s, err)
	}

	// A wrong checksum counts for the last row only.
	f.block = func(_ int, encoded []byte) []byte { encoded[len(encoded)-1]++; return encoded }
	r, err = openBytes("x.tif", f.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := r.sampleAt(t.Context(), 0, 62); err != nil || v != want[64*62] {
		t.Errorf("above a wrong checksum: %v, %v", v, err)
	}
	_, err = r.sampleAt(t.Context(), 0, 63)
	checkError(t, "a wrong checksum", err, "its checksum is wrong")
}

// TestDamageBelowImage: a tile at the edge of an image has rows below the image, and its checksum comes after them. Statistics
// compare it; a sample does not need it.
func TestDamageBelowImage(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 64*64*4) // it does not become smaller
	for i := range noise {
		noise[i] = byte(i * i * 7919 >> 8)
	}
	for _, c := range []struct {
		name   string
		height int
		block  func(encoded []byte) []byte
		damage string
	}{
		{"whole", 40, func(b []byte) []byte { return b }, ""},
		{"a wrong checksum", 40, func(b []byte) []byte { b[len(b)-1]++; return b }, "tile 0 at 286: its checksum is wrong"},
		{"the end is missing", 40, func(b []byte) []byte { return b[:len(b)-5] }, "tile 0 at 286: its compressed data ends too early"},
		{"noise below the image", 1, func([]byte) []byte {
			var b bytes.Buffer
			w := zlib.NewWriter(&b)
			w.Write(noise)
			w.Close()
			return b.Bytes()
		}, ""},
	} {
		f := plainTIFF()
		f.compression = compressionDeflate
		f.bits, f.format = 32, sampleFormatUint
		f.width, f.height, f.columns, f.rows = 64, c.height, 64, 64
		f.value = func(_, x, y int) float64 { return float64((x*7919 + y*104729) % 9973) }
		f.block = func(_ int, encoded []byte) []byte { return c.block(encoded) }
		r, err := openBytes("x.tif", f.build(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.sampleAt(t.Context(), 0, 0)
		check(t, c.name+": error of the first sample", err, nil)
		s, err := r.statistics(t.Context(), 200)
		check(t, c.name+": error", err, nil)
		check(t, c.name+": damage", value(s.Damage), c.damage)
	}
}

// TestDeflateBomb: a strip of 16 MiB that claims little becomes no more than its block. The test is not parallel, because
// it measures what the whole program allocates.
func TestDeflateBomb(t *testing.T) {
	f := plainTIFF()
	f.compression = compressionDeflate
	f.block = func(int, []byte) []byte {
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		w.Write(make([]byte, 16<<20))
		w.Close()
		return b.Bytes()
	}
	content := f.build()
	before := allocatedBytes()
	got, err := readAllHeights("x.tif", content, nil)
	if used := allocatedBytes() - before; err != nil || got[0] != 0 || used > 1<<20 {
		t.Errorf("a bomb: %v, %v, %d bytes", got, err, used)
	}
}

// allocatedBytes returns how many bytes the program has allocated since its start.
func allocatedBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// FuzzPixels reads all heights of any content under any name with any sidecar.
func FuzzPixels(f *testing.F) {
	tiff := plainTIFF()
	for _, tiff.compression = range []int{uncompressed, compressionPackBits, compressionLZW, compressionDeflate} {
		f.Add("x.tif", tiff.build(), "")
	}
	tiff.bits, tiff.format, tiff.predictor, tiff.columns, tiff.rows = 32, sampleFormatFloat, predictorFloat, 4, 4
	f.Add("x.tif", tiff.build(), "")
	f.Add("x.asc", []byte("ncols 4\nnrows 1\nxllcorner 10\nyllcorner 20\ncellsize 1\n1 2 3 4\n"), "")
	f.Add("x.bil", make([]byte, 24), "nrows 3\nncols 4\nulxmap 10.5\nulymap 22.5\nxdim 1\nydim 1\nnbits 16\n")
	f.Add("x.dt0", []byte(dted("0800000W", "0430000N", "03000300", "00020002", "MSL", "WGS84")+strings.Repeat("\xaa", 32)), "")
	f.Fuzz(func(t *testing.T, name string, content []byte, sidecar string) {
		beside := files{}
		if sidecar != "" {
			beside[strings.TrimSuffix(name, path.Ext(name))+".hdr"] = sidecar
		}
		r, err := openBytes(name, content, beside)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := r.statistics(ctx, 200)
		if err == nil && s.BadBlocks == 0 && s.Samples != int64(r.width)*int64(r.height) {
			t.Errorf("%d of %d by %d samples", s.Samples, r.width, r.height)
		}
	})
}
