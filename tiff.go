package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// headerReader reads pieces of a file's header: every offset and length that a file states goes through at, and only
// through at. It serves one file after the other and keeps its memory; the zero value is ready.
type headerReader struct {
	name    string // of the file, without directory
	r       io.ReaderAt
	size    uint64
	beside  besideFunc
	order   binary.ByteOrder // of the TIFF, once known
	windows []headerWindow   // what was read; a handful
	buffer  []byte           // the memory of windows: all that was read so far
	values  []float64        // the memory of numbers
	fields  tiffDirectory    // the memory of readDirectory
	crs     *lastCRS
}

// headerWindow is a piece of the file in memory.
type headerWindow struct {
	offset uint64
	data   []byte
}

// within says whether a range of bytes lies inside the file; it cannot overflow.
func (h *headerReader) within(offset, length uint64) bool {
	return offset <= h.size && length <= h.size-offset
}

// at returns length bytes at offset, from memory where it can. The error is an *extentProblem of what is
// there where the range does not lie in the file or asks for more than a header may need.
func (h *headerReader) at(offset, length uint64, what string) ([]byte, error) {
	if !h.within(offset, length) {
		return nil, problemf(fileStatusCorrupt, "%s: %d bytes at %d lie beyond the end of the file at %d: it may be cut short", what, length, offset, h.size)
	}
	for _, w := range h.windows {
		if start, n := offset-w.offset, uint64(len(w.data)); offset >= w.offset && start <= n && length <= n-start {
			return w.data[start : start+length : start+length], nil
		}
	}
	return h.fetch(offset, length)
}

// fetch reads a range that lies in the file, and firstReadBytes or laterReadBytes at least: what follows, else precedes.
func (h *headerReader) fetch(offset, length uint64) ([]byte, error) {
	least := uint64(firstReadBytes)
	if len(h.windows) > 0 {
		least = laterReadBytes
	}
	end := min(h.size, offset+max(length, least))
	start := min(offset, end-min(end, least))
	used := len(h.buffer)
	if end-start > uint64(maxHeaderBytes-used) {
		return nil, problemf(fileStatusCorrupt, "its header asks for more than %d KiB: no raster needs that", maxHeaderBytes>>10)
	}
	h.buffer = slices.Grow(h.buffer, int(end-start))[:used+int(end-start)]
	data := h.buffer[used:]
	n, err := h.r.ReadAt(data, int64(start))
	switch {
	case n == len(data): // io.ReaderAt may say io.EOF even so
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, problemf(fileStatusCorrupt, "ends at %d, short of its size of %d: it may still be written", start+uint64(max(n, 0)), h.size)
	default:
		return nil, fmt.Errorf("read at %d: %w", start, err)
	}
	h.windows = append(h.windows, headerWindow{start, data})
	return data[offset-start:][:length:length], nil
}

// whole gives the unsigned integer of 1, 2, 4 or 8 bytes.
func (h *headerReader) whole(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(h.order.Uint16(b))
	case 4:
		return uint64(h.order.Uint32(b))
	}
	return h.order.Uint64(b)
}

// signed gives the integer in two's complement of 1, 2, 4 or 8 bytes.
func (h *headerReader) signed(b []byte) int64 {
	unused := 64 - 8*len(b)
	return int64(h.whole(b)<<unused) >> unused
}

// The TIFF tags that we read: TIFF 6.0 (Adobe, 1992), sections 8 and 19; OGC GeoTIFF 1.1; GDAL's own 42113.
const (
	tagImageWidth          = 256
	tagImageLength         = 257
	tagBitsPerSample       = 258
	tagSamplesPerPixel     = 277
	tagSampleFormat        = 339
	tagModelPixelScale     = 33550
	tagModelTiepoint       = 33922
	tagModelTransformation = 34264
	tagGeoKeyDirectory     = 34735
	tagGeoDoubleParams     = 34736
	tagGeoASCIIParams      = 34737
	tagGDALNoData          = 42113
)

// tiffField is one entry of an image file directory: a tag and where its values lie, be it in the entry itself.
type tiffField struct {
	tag, kind uint16
	count     uint64
	offset    uint64
}

// tiffDirectory is the fields of the first image file directory that we read, each tag once.
type tiffDirectory []tiffField

// field returns the field of that tag. Where the file has the tag twice it is the first, as in libtiff.
func (d tiffDirectory) field(tag uint16) (tiffField, bool) {
	for _, f := range d {
		if f.tag == tag {
			return f, true
		}
	}
	return tiffField{}, false
}

// tiffKeep gives the most values of a tag that we use, 0 for a tag that we do not read.
func tiffKeep(tag uint16) uint64 {
	switch tag {
	case tagImageWidth, tagImageLength, tagBitsPerSample, tagSamplesPerPixel, tagSampleFormat:
		return 1
	case tagModelPixelScale, tagModelTiepoint, tagModelTransformation:
		return 16
	case tagGeoKeyDirectory:
		return 4 + 4*maxGeoKeys
	case tagGeoDoubleParams:
		return maxGeoKeys
	case tagGeoASCIIParams:
		return maxGeoASCII
	case tagGDALNoData:
		return maxNodataText
	}
	return 0
}

// tiffKindSize gives the size of a value of a TIFF field type (TIFF 6.0, section 2), 0 for an unknown one.
func tiffKindSize(kind uint16) uint64 {
	const sizes = "0112481124848400888"
	if int(kind) < len(sizes) {
		return uint64(sizes[kind] - '0')
	}
	return 0
}

// readDirectory reads the first image file directory and the values of its fields. Later ones (overviews, masks,
// pages) say nothing of the extent.
func (h *headerReader) readDirectory(head []byte) (tiffDirectory, error) {
	if head[0] == 'M' {
		h.order = binary.BigEndian
	}
	// Classic TIFF: a directory is a SHORT count and entries of 12 bytes; BigTIFF: a LONG8 count, 20 bytes.
	headerSize, countSize, entrySize, inline := uint64(8), uint64(2), uint64(12), uint64(4)
	big := h.order.Uint16(head[2:]) == 43
	if big {
		headerSize, countSize, entrySize, inline = 16, 8, 20, 8
	}
	if uint64(len(head)) < headerSize {
		return nil, problemf(fileStatusCorrupt, "the TIFF header is cut short: the file has %d bytes", len(head))
	}
	if big && (h.order.Uint16(head[4:]) != 8 || h.order.Uint16(head[6:]) != 0) {
		return nil, problemf(fileStatusCorrupt, "the BigTIFF header is broken: its offsets are not of 8 bytes")
	}
	start := h.whole(head[inline : 2*inline])
	b, err := h.at(start, countSize, "the TIFF directory")
	if err != nil {
		return nil, err
	}
	entries := h.whole(b)
	if entries == 0 || entries > maxIFDEntries {
		return nil, problemf(fileStatusCorrupt, "the TIFF directory at %d claims %d entries", start, entries)
	}
	b, err = h.at(start+countSize, entries*entrySize, "the TIFF directory")
	if err != nil {
		return nil, err
	}
	directory := h.fields
	for i := range entries {
		e, valueAt := b[i*entrySize:][:entrySize], entrySize-inline
		f := tiffField{h.order.Uint16(e), h.order.Uint16(e[2:]), h.whole(e[4:valueAt]), h.whole(e[valueAt:])}
		if _, twice := directory.field(f.tag); twice || tiffKeep(f.tag) == 0 {
			continue
		}
		if size := tiffKindSize(f.kind); size > 0 && f.count <= inline/size {
			f.offset = start + countSize + i*entrySize + valueAt
		}
		directory = append(directory, f)
	}
	h.fields = directory
	// From front to back, so that few reads bring all values into memory.
	slices.SortFunc(directory, func(a, b tiffField) int { return cmp.Compare(a.offset, b.offset) })
	for _, f := range directory {
		if _, err := h.bytes(f); err != nil && !isProblem(err) {
			return nil, err
		}
	}
	return directory, nil
}

// bytes reads the values of a field that we use. The whole field must lie in the file, as libtiff asks.
func (h *headerReader) bytes(f tiffField) ([]byte, error) {
	size := tiffKindSize(f.kind)
	switch {
	case size == 0:
		return nil, problemf(fileStatusCorrupt, "TIFF tag %d has the unknown field type %d", f.tag, f.kind)
	case f.count > h.size/size, !h.within(f.offset, f.count*size):
		return nil, problemf(fileStatusCorrupt, "TIFF tag %d points to %d values at %d, beyond the end of the file at %d: it may be cut short", f.tag, f.count, f.offset, h.size)
	}
	return h.at(f.offset, min(f.count, tiffKeep(f.tag))*size, "TIFF tag values")
}

// numbers reads the values that we keep of a field of any numeric type. A float64 holds each that we use exactly.
func (h *headerReader) numbers(f tiffField) ([]float64, error) {
	b, err := h.bytes(f)
	if err != nil {
		return nil, err
	}
	size, used := int(tiffKindSize(f.kind)), len(h.values)
	for ; len(b) >= size; b = b[size:] {
		var v float64
		switch f.kind {
		case 1, 3, 4, 16: // BYTE, SHORT, LONG, LONG8
			v = float64(h.whole(b[:size]))
		case 6, 8, 9, 17: // SBYTE, SSHORT, SLONG, SLONG8
			v = float64(h.signed(b[:size]))
		case 5: // RATIONAL
			v = float64(h.whole(b[:4])) / float64(h.whole(b[4:8]))
		case 10: // SRATIONAL
			v = float64(h.signed(b[:4])) / float64(h.signed(b[4:8]))
		case 11: // FLOAT
			v = float64(math.Float32frombits(h.order.Uint32(b)))
		case 12: // DOUBLE
			v = math.Float64frombits(h.order.Uint64(b))
		default:
			return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not a number", f.tag, f.kind)
		}
		h.values = append(h.values, v)
	}
	return h.values[used:], nil
}

// text reads a field of characters: as much of it as we keep.
func (h *headerReader) text(f tiffField) ([]byte, error) {
	if tiffKindSize(f.kind) != 1 {
		return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not text", f.tag, f.kind)
	}
	return h.bytes(f)
}
