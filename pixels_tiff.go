package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// maxDirectories is how many images of a TIFF are looked at: the heights, overviews and masks.
const maxDirectories = 64

// Bits of the tag NewSubfileType: TIFF 6.0, section 8.
const (
	subfileReduced = 1 << 0
	subfileMask    = 1 << 2
)

// fillOrderLowestFirst is the value of the tag FillOrder for bytes with their lowest bit first:
// TIFF 6.0, section 8.
const fillOrderLowestFirst = 2

// Values of the tag Predictor: TIFF 6.0, section 14, and Adobe's TIFF Technical Note 3.
const (
	predictorNone       = 1
	predictorHorizontal = 2
	predictorFloat      = 3
)

// openTIFF opens the first image of a TIFF, with its overviews and masks: GDAL, driver GTiff,
// "Overviews" and "Internal nodata masks". h has read the header.
func (h *headerReader) openTIFF() (*raster, error) {
	d, err := h.readDirectory(h.start)
	if err != nil {
		return nil, err
	}
	next := h.next
	r, err := h.openImage(d)
	if err != nil {
		return nil, err
	}

	var masks []*raster
	for range maxDirectories {
		if next == 0 {
			break
		}

		// If a later directory is broken, the heights can still be read.
		other := h.again()
		d, err := other.readDirectory(next)
		if err != nil && statusOf(err) == fileStatusUnreadable {
			return nil, err
		}
		if err != nil {
			break
		}
		next = other.next

		image, err := other.openImage(d)
		if err != nil {
			continue
		}
		subfile, _ := other.number(d, tagNewSubfileType, 0)
		kind := int(subfile)
		switch {
		case kind&subfileMask != 0:
			masks = append(masks, image)
		case kind&subfileReduced != 0 && image.width < r.width:
			r.overviews = append(r.overviews, image)
		}
	}

	for _, image := range append(r.overviews, r) {
		for _, mask := range masks {
			if mask.width == image.width && mask.height == image.height {
				image.mask = mask
			}
		}
	}
	return r, nil
}

// again returns a headerReader of the same file that may read maxHeaderBytes of its own.
func (h *headerReader) again() *headerReader {
	return &headerReader{
		r:     h.r,
		size:  h.size,
		order: h.order,
		big:   h.big,
	}
}

// openImage opens the first band of the image of a directory.
func (h *headerReader) openImage(d tiffDirectory) (*raster, error) {
	var m extent // of this image; readExtent has given its warnings
	err := m.setSize(h.numberOr(0, d, tagImageWidth, &m), h.numberOr(0, d, tagImageLength, &m))
	if err != nil {
		return nil, err
	}
	all := h.numberOr(1, d, tagSamplesPerPixel, &m)
	bits := h.numberOr(1, d, tagBitsPerSample, &m)
	format := h.numberOr(sampleFormatUint, d, tagSampleFormat, &m)

	table := h.readBlockTable(d, all, bits, &m)
	switch {
	case table.blocks == 0:
		return nil, corruptf("it has no strips or tiles")
	case table.columns != math.Trunc(table.columns) || table.rows != math.Trunc(table.rows):
		return nil, corruptf("its %ss have %v by %v samples", table.kind, table.columns, table.rows)
	case h.numberOr(0, d, tagPhotometric, &m) == photometricYCbCr:
		return nil, unreadf("a picture in the colours YCbCr")
	}

	// A decoded block holds all bands, or one.
	l, err := newLayout(table.columns, table.bands, bits, format)
	if err != nil {
		return nil, err
	}

	t := &tiffBlocks{
		file:       h.again(),
		table:      table,
		layout:     l,
		bands:      int(table.bands),
		across:     int(math.Ceil(float64(*m.Width) / table.columns)),
		isReversed: h.numberOr(1, d, tagFillOrder, &m) == fillOrderLowestFirst,
	}
	compression := h.numberOr(uncompressed, d, tagCompression, &m)
	predictor := h.numberOr(predictorNone, d, tagPredictor, &m)
	err = t.setMethods(compression, predictor)
	if err != nil {
		return nil, err
	}
	return t.open(&m)
}

// tiffBlocks decodes the blocks (strips or tiles) of a band in a TIFF.
type tiffBlocks struct {
	file  *headerReader // of the same file; it reads the values of the table
	table blockTable

	layout      sampleLayout // of a block
	bands       int          // in a block
	across      int          // blocks in a row of blocks
	compression int
	predictor   int
	isReversed  bool // each byte of the file has its lowest bit first

	// A part of the table, from the block listed on.
	listed  uint64
	offsets []float64
	counts  []float64

	// The block that was decoded last, or is being decoded.
	name   string // for errors
	rows   int    // rows of the block that lie inside the image
	filled int    // how many of these rows are decoded, from the top

	encoded  []byte // kept from block to block, as are the next two
	scratch  []byte
	inflater io.ReadCloser
}

// setMethods sets how blocks are encoded, or returns an error if Cairn does not decode that.
func (t *tiffBlocks) setMethods(compression, predictor float64) error {
	t.compression = int(compression)
	t.predictor = predictorNone
	switch t.compression {
	case uncompressed, compressionPackBits: // as in libtiff, without predictor
		return nil
	case compressionLZW, compressionDeflate, compressionOldDeflate:
		t.predictor = int(predictor)
	default:
		return unreadf("compressed with %s", *compressionName(compression))
	}

	hasBytes := t.layout.bytes() > 0
	isFloat := t.layout.format == sampleFormatFloat
	switch {
	case t.predictor == predictorNone,
		t.predictor == predictorHorizontal && hasBytes,
		t.predictor == predictorFloat && isFloat:
		return nil
	}
	return corruptf("its predictor %v does not fit samples of %d bits in format %d",
		predictor,
		t.layout.bits,
		t.layout.format)
}

// open returns the raster of the blocks.
func (t *tiffBlocks) open(m *extent) (*raster, error) {
	rowBytes := t.layout.rowBytes

	// A single strip that is not compressed is read row by row, however large it is.
	isSingle := t.table.kind == "strip" && t.table.perPlane == 1
	if isSingle && t.compression == uncompressed && !t.isReversed {
		offset, length, err := t.find(0)
		if err != nil {
			return nil, err
		}
		if length > 0 {
			isBigEndian := t.file.order == binary.BigEndian
			return openRows(t.file.r, int64(offset), int64(rowBytes), isBigEndian, t.layout, m), nil
		}
	}

	isSmall := t.table.rows*float64(rowBytes) <= maxBlockBytes
	if !isSmall {
		return nil, unreadf("%ss of %.0f rows with %d bytes each; at most %d MiB are read",
			t.table.kind,
			t.table.rows,
			rowBytes,
			maxBlockBytes>>20)
	}
	r := newRaster(m, int(t.table.columns), int(t.table.rows), t.layout, t.decode)
	r.extend = t.extend
	return r, nil
}

// find returns where a block lies, and how many bytes of it are read at most. A block that the file
// leaves out has none.
func (t *tiffBlocks) find(block uint64) (offset, length float64, err error) {
	if block >= t.table.blocks {
		return 0, 0, nil
	}

	// The tables are read in parts.
	first := block - block%maxTableChunk
	if t.offsets == nil || first != t.listed {
		t.offsets = nil
		part := t.file.again()
		t.counts, err = part.numbers(t.table.counts.part(first, first+maxTableChunk))
		if err != nil {
			return 0, 0, err
		}
		t.offsets, err = part.numbers(t.table.offsets.part(first, first+maxTableChunk))
		if err != nil {
			return 0, 0, err
		}
		t.listed = first
	}

	// As in libtiff, a missing count is 0; without any count, a block is read as far as needed.
	i := int(block - first)
	offset = t.offsets[i]
	count := 0.0
	switch {
	case i < len(t.counts):
		count = t.counts[i]
	case t.table.counts.count == 0:
		count = math.Max(0, float64(t.file.size)-offset)
	}
	length = t.table.length(block, count)

	isInside := offset >= 0 && length >= 0 && offset+length <= float64(t.file.size)
	if !isInside {
		return 0, 0, corruptf("%s %d has %.0f bytes at %.0f, but the file ends at %d",
			t.table.kind, block, length, offset, t.file.size)
	}
	return offset, length, nil
}

// decode is raster.decode.
func (t *tiffBlocks) decode(column, row int, block []byte) (isWritten bool, err error) {
	// The last strip ends with the image. As in GDAL, tiles may do so too.
	t.rows = min(int(t.table.rows), int(t.table.height)-row*int(t.table.rows))
	t.filled = t.rows
	block = block[:t.rows*t.layout.rowBytes]

	n := uint64(row*t.across + column)
	offset, length, err := t.find(n)
	if err != nil || length == 0 {
		return false, err
	}
	t.name = fmt.Sprintf("%s %d at %.0f", t.table.kind, n, offset)

	// No encoding needs twice the bytes, however many the file states.
	length = min(length, 2*t.table.rows*float64(t.layout.rowBytes)+1024)
	t.encoded = slices.Grow(t.encoded[:0], int(length))[:int(length)]
	err = readFull(t.file.r, t.encoded, int64(offset))
	if err != nil {
		return false, err
	}
	err = t.unpack(block)
	if err != nil {
		return false, corruptf("%s: %v", t.name, err)
	}

	t.undoPredictor(block[:t.filled*t.layout.rowBytes])
	return true, nil
}

// extend is raster.extend, for blocks in Deflate: others are filled already. To inflate takes most
// of the time of a height, and the rows below it are not needed.
func (t *tiffBlocks) extend(block []byte, rows int) error {
	if rows <= t.filled {
		return nil
	}

	next := block[t.filled*t.layout.rowBytes : rows*t.layout.rowBytes]
	err := t.inflate(next, rows == t.rows)
	if err != nil {
		return corruptf("%s: %v", t.name, err)
	}
	t.undoPredictor(next)
	t.filled = rows
	return nil
}

// unpack decompresses t.encoded into a block. Deflate only begins here: see extend.
func (t *tiffBlocks) unpack(block []byte) error {
	if t.isReversed {
		reverseBits(t.encoded)
	}

	switch t.compression {
	case compressionPackBits:
		return unpackBits(t.encoded, block)
	case compressionLZW:
		return unpackLZW(t.encoded, block)
	case compressionDeflate, compressionOldDeflate:
		t.filled = 0 // extend decodes the rows
		return t.startInflater()
	}
	copy(block, t.encoded)
	return nil
}

// undoPredictor turns the differences in a block into samples, the lowest byte first.
func (t *tiffBlocks) undoPredictor(block []byte) {
	size := t.layout.bytes()
	isBigEndian := t.file.order == binary.BigEndian
	if isBigEndian && t.predictor != predictorFloat {
		swapBytes(block, size)
	}

	for row := range slices.Chunk(block, t.layout.rowBytes) {
		switch t.predictor {
		case predictorHorizontal:
			undoDifferences(row, size, t.bands)
		case predictorFloat:
			t.scratch = append(t.scratch[:0], row...)
			undoFloatDifferences(row, t.scratch, size, t.bands)
		}
	}
}
