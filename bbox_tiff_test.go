package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
)

// testTIFF builds a TIFF in memory: the directory with the tags in that order, then the values.
type testTIFF struct {
	order testByteOrder
	big   bool
	tags  []testTag
}

// testByteOrder reads and writes numbers.
type testByteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// testTag is a tag with values of one field type.
type testTag struct {
	tag, fieldType uint16
	values         []float64
	text           string
}

func bytesTag(tag uint16, v ...float64) testTag { return testTag{tag: tag, fieldType: 1, values: v} }
func shorts(tag uint16, v ...float64) testTag   { return testTag{tag: tag, fieldType: 3, values: v} }
func longs(tag uint16, v ...float64) testTag    { return testTag{tag: tag, fieldType: 4, values: v} }
func floats(tag uint16, v ...float64) testTag   { return testTag{tag: tag, fieldType: 11, values: v} }
func doubles(tag uint16, v ...float64) testTag  { return testTag{tag: tag, fieldType: 12, values: v} }
func long8s(tag uint16, v ...float64) testTag   { return testTag{tag: tag, fieldType: 16, values: v} }
func asciiTag(tag uint16, text string) testTag  { return testTag{tag: tag, fieldType: 2, text: text} }
func geoKeyTag(keys ...[4]float64) testTag      { return geoKeyTagN(len(keys), keys...) }
func rational(tag uint16, top, b float64) testTag {
	return testTag{tag: tag, fieldType: 5, values: []float64{top, b}}
}

// geoKeyTagN returns a GeoKey directory that claims n keys.
func geoKeyTagN(n int, keys ...[4]float64) testTag {
	v := []float64{1, 1, 0, float64(n)}
	for _, k := range keys {
		v = append(v, k[:]...)
	}
	return shorts(tagGeoKeyDirectory, v...)
}

// encode returns the tag's values as bytes, and their count.
func (f testTIFF) encode(t testTag) (b []byte, count uint64) {
	for _, v := range t.values {
		switch t.fieldType {
		case 1, 6:
			b = append(b, byte(int64(v)))
		case 3, 8:
			b = f.order.AppendUint16(b, uint16(int64(v)))
		case 4, 5, 9, 10:
			b = f.order.AppendUint32(b, uint32(int64(v)))
		case 11:
			b = f.order.AppendUint32(b, math.Float32bits(float32(v)))
		case 12:
			b = f.order.AppendUint64(b, math.Float64bits(v))
		default:
			b = f.order.AppendUint64(b, uint64(int64(v)))
		}
	}
	count = uint64(len(t.values) + len(t.text))
	if t.fieldType == 5 || t.fieldType == 10 {
		count /= 2
	}
	return append(b, t.text...), count
}

// build returns the file.
func (f testTIFF) build() []byte {
	b := []byte("II")
	if f.order == binary.BigEndian {
		b = []byte("MM")
	}
	inline, entry := 4, 12
	head, foot := 8+2, 4
	if f.big {
		inline, entry, head, foot = 8, 20, 16+8, 8
	}
	number := func(b []byte, v uint64) []byte { // of the size of an offset
		if f.big {
			return f.order.AppendUint64(b, v)
		}
		return f.order.AppendUint32(b, uint32(v))
	}
	if f.big {
		b = f.order.AppendUint16(b, 43)
		b = f.order.AppendUint16(b, 8)
		b = f.order.AppendUint16(b, 0)
		b = f.order.AppendUint64(b, 16)
		b = f.order.AppendUint64(b, uint64(len(f.tags)))
	} else {
		b = f.order.AppendUint16(b, 42)
		b = f.order.AppendUint32(b, 8)
		b = f.order.AppendUint16(b, uint16(len(f.tags)))
	}
	var data []byte
	dataAt := head + entry*len(f.tags) + foot
	for _, t := range f.tags {
		values, count := f.encode(t)
		b = f.order.AppendUint16(b, t.tag)
		b = f.order.AppendUint16(b, t.fieldType)
		b = number(b, count)
		if len(values) <= inline {
			b = append(append(b, values...), make([]byte, inline-len(values))...)
		} else {
			b = number(b, uint64(dataAt+len(data)))
			data = append(data, values...)
		}
	}
	return append(number(b, 0), data...)
}

// testSize returns the size of the good file: 4 by 3 pixels of 0.5° by 0.25° from 10° east, 50°
// north, in WGS 84.
func testSize() []testTag {
	return []testTag{shorts(tagImageWidth, 4), shorts(tagImageLength, 3), shorts(tagBitsPerSample, 8)}
}

// testPlace returns its place.
func testPlace() []testTag {
	return []testTag{doubles(tagModelPixelScale, 0.5, 0.25, 0), doubles(tagModelTiepoint, 0, 0, 0, 10, 50, 0)}
}

// testKeys returns its CRS.
func testKeys() testTag {
	return geoKeyTag([4]float64{1024, 0, 1, 2}, [4]float64{1025, 0, 1, 1}, [4]float64{2048, 0, 1, 4326})
}

// with joins tags and lists of tags.
func with(parts ...any) (tags []testTag) {
	for _, p := range parts {
		switch p := p.(type) {
		case testTag:
			tags = append(tags, p)
		case []testTag:
			tags = append(tags, p...)
		}
	}
	return tags
}

// matrixTag returns the ModelTransformation of a transform.
func matrixTag(a, b, c, d, e, f float64) testTag {
	return doubles(tagModelTransformation, a, b, 0, c, d, e, 0, f, 0, 0, 0, 0, 0, 0, 0, 1)
}

// readerFunc is a function as an io.ReaderAt.
type readerFunc func(p []byte, off int64) (int, error)

// ReadAt implements io.ReaderAt.
func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// TestReadErrors: an I/O error makes a file unreadable, an early end makes it corrupt.
func TestReadErrors(t *testing.T) {
	good := testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), testKeys())}.build()
	for _, c := range []struct {
		name, status string
		r            readerFunc
	}{
		{"I/O error", fileStatusUnreadable, func([]byte, int64) (int, error) { return 0, errors.New("input/output error") }},
		{"EOF", fileStatusCorrupt, func(p []byte, _ int64) (int, error) { return copy(p, good[:20]), io.EOF }},
		{"short without error", fileStatusCorrupt, func(p []byte, _ int64) (int, error) { return copy(p, good[:20]), nil }},
		{"whole with EOF", fileStatusOK, func(p []byte, _ int64) (int, error) { return copy(p, good), io.EOF }},
	} {
		m := readExtent("x.tif", c.r, int64(len(good)), nil)
		if m.Status != c.status {
			t.Errorf("%s: %s %q", c.name, m.Status, value(m.Reason))
		}
		checkRow(t, m)
	}
	// An I/O error after the first read must not make tags look absent.
	far := append(good[:8:8], make([]byte, 1<<20)...)
	far = append(far, good[8:]...)
	binary.LittleEndian.PutUint32(far[4:], 8+1<<20)
	m := readExtent("x.tif", readerFunc(func(p []byte, off int64) (int, error) {
		if off > 0 {
			return 0, errors.New("input/output error")
		}
		return copy(p, far), nil
	}), int64(len(far)), nil)
	if m.Status != fileStatusUnreadable {
		t.Errorf("late I/O error: %s %q", m.Status, value(m.Reason))
	}
}

// countingReader counts reads and their bytes.
type countingReader struct {
	r     io.ReaderAt
	reads int
	bytes int
}

// ReadAt implements io.ReaderAt.
func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	c.bytes += len(p)
	return c.r.ReadAt(p, off)
}

// layout puts directory and values of a classic little-endian TIFF where some writers put them.
func layout(tags []testTag, size, directoryAt int, valuesAt func(tag uint16) int) []byte {
	f := testTIFF{order: binary.LittleEndian}
	b := make([]byte, size)
	copy(b, "II*\x00")
	binary.LittleEndian.PutUint32(b[4:], uint32(directoryAt))
	binary.LittleEndian.PutUint16(b[directoryAt:], uint16(len(tags)))
	used := map[int]int{}
	for i, t := range tags {
		values, count := f.encode(t)
		e := b[directoryAt+2+12*i:]
		binary.LittleEndian.PutUint16(e, t.tag)
		binary.LittleEndian.PutUint16(e[2:], t.fieldType)
		binary.LittleEndian.PutUint32(e[4:], uint32(count))
		if len(values) <= 4 {
			copy(e[8:12], values)
			continue
		}
		at := valuesAt(t.tag)
		at, used[at] = at+used[at], used[at]+len(values)
		binary.LittleEndian.PutUint32(e[8:], uint32(at))
		copy(b[at:], values)
	}
	return b
}

// TestReadBudget: five reads and 80 KiB are enough for every writer's layout, two of them for the
// tables of strips.
func TestReadBudget(t *testing.T) {
	strips := longs(273, make([]float64, 100_000)...)
	counts := longs(279, make([]float64, 100_000)...)
	tags := with(shorts(256, 4), shorts(257, 3), shorts(258, 8, 8, 8), strips, counts, shorts(277, 3), shorts(339, 1, 1, 1), testPlace(), testKeys(), asciiTag(34737, "name|"), asciiTag(42113, "-9999"))
	const size = 4 << 20
	heavy := func(tag uint16) bool { return tag == 273 || tag == 279 }
	for _, c := range []struct {
		name  string
		file  []byte
		reads int
	}{
		{"all at the start", layout(tags, size, 8, func(tag uint16) int {
			if heavy(tag) {
				return 2 << 20
			}
			return 400
		}), 3},
		{"directory first, values in tag order around the strip arrays, as libtiff", layout(tags, size, 8, func(tag uint16) int {
			switch {
			case tag == 258:
				return 400
			case heavy(tag):
				return 500
			}
			return 900_000
		}), 4},
		{"directory and values at the end", layout(tags, size, size-2000, func(tag uint16) int {
			if heavy(tag) {
				return 2 << 20
			}
			return size - 1000
		}), 4},
		{"values just before the directory at the end", layout(tags, size, size-2000, func(tag uint16) int {
			if heavy(tag) {
				return 2 << 20
			}
			return size - 3000
		}), 4},
		{"directory in the middle, values elsewhere", layout(tags, size, 1<<20, func(tag uint16) int {
			if heavy(tag) {
				return 2 << 20
			}
			return 1<<20 - 50_000
		}), 5},
	} {
		r := &countingReader{r: bytes.NewReader(c.file)}
		m := readExtent("x.tif", r, size, nil)
		if m.Status != fileStatusOK || r.reads > c.reads || r.bytes > 80<<10 {
			t.Errorf("%s: %s %q with %d reads of %d bytes", c.name, m.Status, value(m.Reason), r.reads, r.bytes)
		}
	}
}

// TestHostile: malicious files end with a status after few reads and little memory.
func TestHostile(t *testing.T) {
	files := map[string][]byte{}
	for _, f := range testTIFFKinds(with(testSize(), testPlace(), testKeys(), asciiTag(34737, "name|name|name|"), doubles(34736, 1, 2, 3), asciiTag(42113, "-9999.99999"))) {
		good := f.build()
		headerSize, countAt, entry := 8, 8, 12
		if f.big {
			headerSize, countAt, entry = 16, 16, 20
		}
		first := countAt + 2
		if f.big {
			first = countAt + 8
		}
		mutate := func(name string, change func(b []byte)) {
			b := slices.Clone(good)
			change(b)
			files[fmt.Sprintf("%s %v big %v", name, f.order, f.big)] = b
		}
		ones := func(b []byte) {
			for i := range b {
				b[i] = 0xff
			}
		}
		offsetSize := 4
		if f.big {
			offsetSize = 8
		}
		mutate("directory at the largest offset", func(b []byte) { ones(b[headerSize-offsetSize : headerSize]) })
		mutate("directory in the header", func(b []byte) { ones(b[headerSize-offsetSize : headerSize]); f.put(b[headerSize-offsetSize:], 4) })
		mutate("directory at the end", func(b []byte) { f.put(b[headerSize-offsetSize:], uint64(len(b))) })
		mutate("directory at the last byte", func(b []byte) { f.put(b[headerSize-offsetSize:], uint64(len(b)-1)) })
		mutate("as many entries as can be said", func(b []byte) { ones(b[countAt:first]) })
		mutate("no entries", func(b []byte) { clear(b[countAt:first]) })
		mutate("next directory is this one", func(b []byte) { f.put(b[first+entry*len(f.tags):], uint64(headerSize)) })
		mutate("next directory is nowhere", func(b []byte) { ones(b[first+entry*len(f.tags):][:offsetSize]) })
		for i, tag := range f.tags {
			e := first + entry*i
			mutate(fmt.Sprintf("tag %d counts to the end of numbers", tag.tag), func(b []byte) { ones(b[e+4 : e+4+offsetSize]) })
			mutate(fmt.Sprintf("tag %d lies at the end of numbers", tag.tag), func(b []byte) { f.put(b[e+4:], 1000); ones(b[e+4+offsetSize : e+entry]) })
			mutate(fmt.Sprintf("tag %d lies at 2 to the 63", tag.tag), func(b []byte) {
				clear(b[e+4+offsetSize : e+entry])
				f.put(b[e+4:], 1<<20)
				b[e+4+offsetSize] = 0x80
				b[e+entry-1] = 0x80
			})
			mutate(fmt.Sprintf("tag %d overlaps the header", tag.tag), func(b []byte) { f.put(b[e+4:], 9); f.put(b[e+4+offsetSize:], 0) })
			mutate(fmt.Sprintf("tag %d is of no type", tag.tag), func(b []byte) { b[e+2], b[e+3] = 0x77, 0x77 })
		}
		if f.big {
			mutate("offsets of 4 bytes", func(b []byte) { f.order.PutUint16(b[4:], 4) })
		}
	}
	// A large file whose tags each claim a mebibyte, far from each other.
	large := make([]byte, 32<<20)
	var claims []testTag
	for _, tag := range []uint16{33550, 33922, 34264, 34735, 34736, 34737, 42113, 258, 339} {
		kind := uint16(12)
		switch tag {
		case 34737, 42113:
			kind = 2
		case 34735, 258, 339:
			kind = 3
		}
		claims = append(claims, testTag{tag: tag, fieldType: kind})
	}
	copy(large, testTIFF{binary.LittleEndian, false, with(testSize()[:2], claims)}.build())
	for i := range claims {
		e := large[10+12*(2+i):]
		binary.LittleEndian.PutUint32(e[4:], 1<<20)
		binary.LittleEndian.PutUint32(e[8:], uint32((1+2*i)<<20))
	}
	files["every tag claims a mebibyte"] = large
	// A BigTIFF with the most entries allowed, all of tags that are read.
	many := testTIFF{binary.LittleEndian, true, slices.Repeat(with(testSize(), testPlace()), maxIFDEntries/5)}
	files["a directory of 4095 entries"] = many.build()
	many.tags = append(many.tags, testSize()...)
	files["a directory of 4098 entries"] = many.build()

	for name, file := range files {
		r := &countingReader{r: bytes.NewReader(file)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m := readExtent("x.tif", r, int64(len(file)), nil)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: %d bytes allocated", name, used)
		}
		if r.reads > 16 || r.bytes > maxHeaderBytes {
			t.Errorf("%s: %d reads of %d bytes", name, r.reads, r.bytes)
		}
		checkRow(t, m)
	}
}

// put writes a number of the size of an offset.
func (f testTIFF) put(b []byte, v uint64) {
	if f.big {
		f.order.PutUint64(b, v)
	} else {
		f.order.PutUint32(b, uint32(v))
	}
}

// TestTruncated cuts a good file at every byte, as a short file and as one shorter than its size. It
// is always found corrupt, and never has another extent than the whole file.
func TestTruncated(t *testing.T) {
	for _, f := range testTIFFKinds(with(testSize(), longs(tagStripOffsets, 0), longs(tagStripByteCounts, 12), testPlace(), testKeys())) {
		f.tags[3].values[0] = float64(len(f.build()))
		good := append(f.build(), make([]byte, 12)...)
		whole := readBytes("x.tif", good)
		if whole.Status != fileStatusOK {
			t.Fatalf("%s %q", whole.Status, value(whole.Reason))
		}
		for n := range len(good) {
			m := readBytes("x.tif", good[:n])
			checkRow(t, m)
			if m.NativeBBox != nil && !near(m.NativeBBox, whole.NativeBBox) {
				t.Fatalf("cut at %d: %v", n, m.NativeBBox)
			}
			if n >= 4 && m.Status != fileStatusCorrupt {
				t.Fatalf("cut at %d of %d: %s %q %q", n, len(good), m.Status, value(m.Reason), m.Warnings)
			}
			short := readExtent("x.tif", bytes.NewReader(good[:n]), int64(len(good)), nil)
			if n < len(good)-12 && short.Status != fileStatusCorrupt {
				t.Fatalf("%d of %d bytes: %s", n, len(good), short.Status)
			}
		}
	}
}

// FuzzTIFF reads any content as a TIFF.
func FuzzTIFF(f *testing.F) {
	for _, kind := range testTIFFKinds(with(testSize(), testPlace(), matrixTag(1, 0, 0, 0, -1, 0), testKeys(), asciiTag(34737, "name|"), doubles(34736, 1), asciiTag(42113, "0"))) {
		f.Add(kind.build())
		kind.tags = with(testSize(), testKeys(), metadataTag(metadataItem("unittype", "m", 0), metadataItem("scale", "0.1", 0)))
		f.Add(kind.build())
		kind.tags = with(testSize(), longs(tagStripOffsets, 8, 9, 0), longs(tagStripByteCounts, 4, 4, 0), shorts(tagRowsPerStrip, 1), shorts(tagCompression, 5))
		f.Add(kind.build())
		kind.tags = with(testSize(), longs(tagTileOffsets, 8, 9), longs(tagTileByteCounts, 4, 4), shorts(tagTileWidth, 2), shorts(tagTileLength, 16), shorts(tagPlanarConfiguration, 2))
		f.Add(kind.build())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		boundedReader(t, func() extent {
			r := &countingReader{r: bytes.NewReader(b)}
			m := readExtent("x.tif", r, int64(len(b)), nil)
			if r.bytes > maxHeaderBytes {
				t.Errorf("%d bytes read", r.bytes)
			}
			return m
		})
	})
}
