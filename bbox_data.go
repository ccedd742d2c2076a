package main

import (
	"bytes"
	"math"
	"slices"
	"strings"
)

// Values of the tag SampleFormat: TIFF 6.0, section 19, and complex numbers as in libtiff.
const (
	sampleFormatUint         = 1
	sampleFormatInt          = 2
	sampleFormatFloat        = 3
	sampleFormatVoid         = 4
	sampleFormatComplexInt   = 5
	sampleFormatComplexFloat = 6
)

// setSamples sets Bands and SampleType from the values of the tags SamplesPerPixel, BitsPerSample
// and SampleFormat. As in GDAL, the type is the smallest that holds the bits.
func (m *extent) setSamples(bands, bits, format float64) {
	if bands >= 1 && bands <= math.MaxUint16 {
		m.Bands = new(int64(bands))
	}

	names := [...][5]string{
		sampleFormatUint:         {"uint8", "uint16", "uint32", "uint64"},
		sampleFormatInt:          {"int8", "int16", "int32", "int64"},
		sampleFormatFloat:        {"", "float32", "float32", "float64"}, // GDAL widens half precision
		sampleFormatVoid:         {"uint8", "uint16", "uint32", "uint64"},
		sampleFormatComplexInt:   {"", "", "complex_int16", "complex_int32"},
		sampleFormatComplexFloat: {"", "", "complex64", "complex64", "complex128"},
	}

	sizes := []float64{8, 16, 32, 64, 128}
	i := slices.IndexFunc(sizes, func(size float64) bool {
		return bits <= size
	})
	hasSize := i >= 0 && bits >= 1
	hasFormat := format >= 1 && format <= sampleFormatComplexFloat
	if hasSize && hasFormat {
		m.SampleType = nonEmpty(names[int(format)][i])
	}
}

// maxTableChunk is how many offsets or byte counts of a TIFF's blocks are read together.
const maxTableChunk = laterReadBytes / 4

// Values of the tags Compression, Photometric and PlanarConfiguration: TIFF 6.0, sections 3, 8 and
// 21.
const (
	uncompressed     = 1
	separatePlanes   = 2
	photometricYCbCr = 6
)

// blockTable is where the blocks (strips or tiles) of a TIFF's first image lie: TIFF 6.0, sections
// 3 and 15.
type blockTable struct {
	kind     string // "strip" or "tile"
	offsets  tiffField
	counts   tiffField // without values if the file has no byte counts
	blocks   uint64    // of all planes, as far as offsets lists them
	perPlane uint64    // blocks of a plane
	columns  float64   // of a block
	bands    float64   // in a block
	rowBytes float64   // of a row of an uncompressed block; 0 if the blocks are compressed
	rows     float64   // of a block
	height   float64   // of the raster

	bytes       float64 // the sum of the byte counts that were looked at
	worst       uint64  // the block that ends the farthest beyond the file's end
	worstLength float64 // bytes of that block; 0 before one is found
	worstEnd    float64 // where that block ends; the file's end before one is found
}

// readBlockTable returns the table without its values, with 0 blocks if the tags do not give it.
func (h *headerReader) readBlockTable(d tiffDirectory, bands, bits float64, m *extent) (t blockTable) {
	width := float64(*m.Width)
	height := float64(*m.Height)
	for _, f := range d {
		switch f.tag {
		case tagStripOffsets, tagTileOffsets: // libtiff takes one for the other
			t.offsets = f
		case tagStripByteCounts, tagTileByteCounts:
			t.counts = f
		}
	}

	compression := h.numberOr(uncompressed, d, tagCompression, m)
	photometric := h.numberOr(0, d, tagPhotometric, m)
	m.Compression = compressionName(compression)

	planar := h.numberOr(1, d, tagPlanarConfiguration, m)
	rows := h.numberOr(0, d, tagRowsPerStrip, m)
	columns := h.numberOr(0, d, tagTileWidth, m)
	tileRows := h.numberOr(0, d, tagTileLength, m)

	t.kind = "tile"
	t.height = height
	t.rows = tileRows
	if columns == 0 {
		t.kind = "strip"
		columns = width
		t.rows = rows
	}
	hasRows := t.rows >= 1 // not if they are NaN
	isTooHigh := t.kind == "strip" && t.rows > height
	if !hasRows || isTooHigh {
		t.rows = height
	}

	planes := 1.0
	if planar == separatePlanes {
		planes = bands
		bands = 1
	}

	isValid := columns >= 1 && planes >= 1
	if !isValid {
		return t
	}

	t.columns = columns
	t.bands = bands
	across := math.Ceil(width / columns)
	down := math.Ceil(height / t.rows)
	perPlane := across * down
	t.perPlane = uint64(perPlane)
	t.blocks = min(uint64(perPlane*planes), t.offsets.count)

	// YCbCr may have fewer samples than pixels.
	if compression == uncompressed && photometric != photometricYCbCr {
		t.rowBytes = math.Ceil(columns * bands * bits / 8)
	}
	return t
}

// length returns how many bytes of a block a reader needs. As in libtiff, a block with a byte count
// of 0 was never written, and any other count of an uncompressed block is ignored.
func (t *blockTable) length(block uint64, count float64) float64 {
	switch {
	case count == 0 || t.rowBytes == 0:
		return count
	case t.kind == "tile":
		return t.rowBytes * t.rows
	}

	// The last strip of a plane may be shorter.
	rowsAbove := float64(block%t.perPlane) * t.rows
	return t.rowBytes * min(t.rows, t.height-rowsAbove)
}

// checkBlocks returns an error if a block of the first image ends beyond the end of the file. Other
// images (overviews, masks) do not count. It sets DataBytes if it reads the whole tables.
//
// Of tables that are too long for maxHeaderBytes it reads the beginning, and as much of the end as
// it can: the last block mostly lies last.
func (h *headerReader) checkBlocks(d tiffDirectory, bands, bits float64, m *extent) error {
	t := h.readBlockTable(d, bands, bits, m)

	// The tables must lie in the file.
	for _, f := range [...]tiffField{t.offsets, t.counts} {
		n := min(t.blocks, f.count)
		size := fieldTypeSize(f.fieldType)
		fits := size > 0 && n <= h.size/size
		isInside := fits && h.within(f.offset, n*size)
		if n > 0 && !isInside {
			return corruptf("its data is cut off: "+
				"the table of %d %ss at %d (TIFF tag %d) ends beyond the file's end at %d",
				n,
				t.kind,
				f.offset,
				f.tag,
				h.size)
		}
	}

	t.worstEnd = float64(h.size)

	// The first chunk, then the last ones from the end on, as many as may be read.
	const (
		chunkBytes = 2 * 8 * maxTableChunk // offsets and counts of 8 bytes at most
		maxExact   = 1 << 53               // of whole numbers in a float64
	)
	first := min(t.blocks, maxTableChunk)
	err := h.checkChunk(&t, 0, first)
	if err != nil {
		return err
	}
	end := t.blocks
	for end > first && h.read+chunkBytes <= maxHeaderBytes {
		from := end - min(end-first, maxTableChunk)
		err = h.checkChunk(&t, from, end)
		if err != nil {
			return err
		}
		end = from
	}

	isWhole := end == first && t.blocks > 0
	hasCounts := t.counts.count > 0
	if isWhole && hasCounts && t.bytes < maxExact {
		m.DataBytes = new(int64(t.bytes))
	}

	if t.worstLength > 0 {
		return corruptf("its data is cut off: "+
			"%s %d has %.0f bytes at %.0f, but the file ends at %d; %.0f bytes are missing",
			t.kind,
			t.worst,
			t.worstLength,
			t.worstEnd-t.worstLength,
			h.size,
			t.worstEnd-float64(h.size))
	}
	return nil
}

// part returns a field with the values of f from first up to end alone.
func (f tiffField) part(first, end uint64) tiffField {
	f.offset += first * fieldTypeSize(f.fieldType)
	f.count = min(end, f.count) - min(first, f.count)
	return f
}

// checkChunk looks for a block from first up to end that ends farther behind than t.worst.
func (h *headerReader) checkChunk(t *blockTable, first, end uint64) error {
	offsets, err := h.numbers(t.offsets.part(first, end))
	if err != nil {
		return err
	}
	counts, err := h.numbers(t.counts.part(first, end))
	if err != nil {
		return err
	}

	for i, offset := range offsets {
		// As in libtiff, a missing count is 0.
		block := first + uint64(i)
		count := 0.0
		switch {
		case i < len(counts):
			count = counts[i]
		case t.counts.count == 0:
			count = 1 // at least
		}

		t.bytes += max(count, 0)
		length := t.length(block, count)
		if length > 0 && offset+length > t.worstEnd {
			t.worst = block
			t.worstLength = length
			t.worstEnd = offset + length
		}
	}
	return nil
}

// checkLength returns an error if samples of length bytes from start on end beyond the file's end.
func (h *headerReader) checkLength(start, length float64) error {
	missing := start + length - float64(h.size)
	if missing > 0 {
		return corruptf("its data is cut off: its samples have %.0f bytes at %.0f, but the file ends at %d; "+
			"%.0f bytes are missing",
			length,
			start,
			h.size,
			missing)
	}
	return nil
}

// checkASCII returns an error if an ASCII grid, whose file begins with head, ends before its last
// sample.
//
// It counts the samples if maxHeaderBytes allows that. Otherwise the file must have two bytes for
// each sample. If its first line has as many samples as a row, its last line must have as many.
func (h *headerReader) checkASCII(head []byte, columns, rows float64) error {
	start := samplesStart(head)
	rest := h.size - start
	missing := func(samples float64) error {
		return corruptf("its data is cut off: "+
			"the file ends at %d, and its last %.0f samples are missing: %.0f bytes or more",
			h.size,
			samples,
			2*samples-1)
	}

	// Count all samples if they may be read.
	want := columns * rows
	if rest <= maxHeaderBytes-h.read {
		b, err := h.at(start, rest, "the samples")
		if err != nil {
			return err
		}
		have := countFields(b)
		if have < want {
			return missing(want - have)
		}
		return nil
	}

	// A sample has a digit and a separator at least.
	if float64(rest) < 2*columns*rows-1 {
		return missing(want - math.Ceil(float64(rest)/2))
	}

	const lineBytes = maxHeaderBytes / 3
	first, err := h.at(start, lineBytes, "the samples")
	if err != nil {
		return err
	}
	last, err := h.at(h.size-lineBytes, lineBytes, "the samples")
	if err != nil {
		return err
	}

	// Compare the last line with the first.
	last = bytes.TrimRightFunc(last, isBlank)
	end := bytes.IndexAny(first, "\r\n")
	begin := bytes.LastIndexAny(last, "\r\n")
	if end < 0 || begin < 0 {
		return nil
	}
	if countFields(first[:end]) != columns {
		return nil
	}

	have := countFields(last[begin:])
	if have < columns {
		return missing(columns - have)
	}
	return nil
}

// samplesStart returns the offset of an ASCII grid's first number that does not follow a key.
func samplesStart(head []byte) uint64 {
	const longest = 64 // bytes that are looked at of a field

	at := 0
	isValue := false // whether this field is the value of a key
	for at < len(head) {
		end := at
		for end < len(head) && head[end] > ' ' {
			end++
		}

		field := strings.ToLower(string(head[at:min(end, at+longest)]))
		if field != "" {
			isNumber := strings.HasPrefix(field, "nan") || strings.HasPrefix(field, "inf")
			isKey := field[0] > '9' && !isNumber
			if !isKey && !isValue {
				break
			}
			isValue = isKey && !isValue
		}
		at = end + 1
	}

	return uint64(min(at, len(head)))
}

// isBlank reports whether a character is a blank or a control character.
func isBlank(r rune) bool { return r <= ' ' }

// countFields returns how many fields, separated by blanks or control characters, a text has.
func countFields(b []byte) (n float64) {
	for range bytes.FieldsFuncSeq(b, isBlank) {
		n++
	}
	return n
}

// withdrawPlace removes the box in degrees of a raster that is not ok, so that no search finds it.
func (m *extent) withdrawPlace() {
	if m.Status != fileStatusOK {
		m.BBox = nil
		m.BBoxAccuracyM = nil
		m.ResolutionM = nil
	}
}

// isCloudOptimized reports whether a reader over HTTP needs little of a GeoTIFF before it reads
// tiles (OGC 21-026, Cloud Optimized GeoTIFF): the first image is tiled, its directory and the next
// lie before its data, and it has overviews if a side has more than 512 pixels.
func (h *headerReader) isCloudOptimized(d tiffDirectory, side float64) bool {
	const smallSide = 512

	offsets, _ := h.numbers(d.field(tagTileOffsets))
	isTiled := d.field(tagTileWidth).count > 0 && len(offsets) > 0
	lacksOverviews := side > smallSide && h.next == 0
	beginsLate := h.start >= firstReadBytes
	if !isTiled || lacksOverviews || beginsLate {
		return false
	}

	directories := float64(max(h.start, h.next))
	liesBefore := func(offset float64) bool {
		isWritten := offset != 0
		return isWritten && offset < directories
	}
	return !slices.ContainsFunc(offsets, liesBefore)
}
