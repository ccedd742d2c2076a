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
	beside  besideFunc       // nil where there are no sidecars
	order   binary.ByteOrder // of the TIFF, once known
	fetched uint64           // bytes read so far
	windows []headerWindow   // what was read; a handful
	buffer  []byte           // the memory of windows
	values  []float64        // the memory of numbers
	fields  tiffDirectory    // the memory of readDirectory
}

// headerWindow is a piece of the file in memory.
type headerWindow struct {
	offset uint64
	data   []byte
}

// span is a range of bytes of the file.
type span struct{ offset, length uint64 }

// within says whether the range lies inside the file; it cannot overflow.
func (h *headerReader) within(s span) bool {
	return s.offset <= h.size && s.length <= h.size-s.offset
}

// cached returns the bytes of a range that has been read already, else nil.
func (h *headerReader) cached(s span) []byte {
	for _, w := range h.windows {
		if start := s.offset - w.offset; s.offset >= w.offset && start <= uint64(len(w.data)) && s.length <= uint64(len(w.data))-start {
			return w.data[start : start+s.length : start+s.length]
		}
	}
	return nil
}

// at returns length bytes at offset, from memory where it can. The error is an *extentProblem of what is
// there where the range does not lie in the file or asks for more than a header may need.
func (h *headerReader) at(offset, length uint64, what string) ([]byte, error) {
	s := span{offset, length}
	if !h.within(s) {
		return nil, problemf(fileStatusCorrupt, "%s: %d bytes at %d lie beyond the end of the file at %d: it may be cut short", what, length, offset, h.size)
	}
	if b := h.cached(s); b != nil {
		return b, nil
	}
	err := h.fetch(s)
	return h.cached(s), err
}

// fetch reads a range that lies in the file, and firstReadBytes at least: with what follows it, or else precedes it.
func (h *headerReader) fetch(s span) error {
	end := min(h.size, s.offset+max(s.length, firstReadBytes))
	start := min(s.offset, end-min(end, firstReadBytes))
	if end-start > maxHeaderBytes-h.fetched {
		return problemf(fileStatusCorrupt, "its header asks for more than %d KiB: no raster needs that", maxHeaderBytes>>10)
	}
	h.fetched += end - start
	used := len(h.buffer)
	h.buffer = slices.Grow(h.buffer, int(end-start))[:used+int(end-start)]
	data := h.buffer[used:]
	n, err := h.r.ReadAt(data, int64(start))
	switch {
	case n == len(data): // io.ReaderAt may say io.EOF even so
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return problemf(fileStatusCorrupt, "ends at %d, short of its size of %d: it may still be written", start+uint64(max(n, 0)), h.size)
	default:
		return fmt.Errorf("read at %d: %w", start, err)
	}
	h.windows = append(h.windows, headerWindow{start, data})
	return nil
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
	for _, kept := range [...]struct {
		tag  uint16
		most uint64
	}{
		{tagImageWidth, 1}, {tagImageLength, 1}, {tagBitsPerSample, 1}, {tagSamplesPerPixel, 1}, {tagSampleFormat, 1},
		{tagModelPixelScale, 16}, {tagModelTiepoint, 16}, {tagModelTransformation, 16}, {tagGDALNoData, maxNodataText},
		{tagGeoKeyDirectory, 4 + 4*maxGeoKeys}, {tagGeoDoubleParams, maxGeoKeys}, {tagGeoASCIIParams, maxGeoASCII},
	} {
		if kept.tag == tag {
			return kept.most
		}
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
	word := func(b []byte) uint64 { // a count of values, or an offset
		if big {
			return h.order.Uint64(b)
		}
		return uint64(h.order.Uint32(b))
	}
	start := word(head[inline:])
	b, err := h.at(start, countSize, "the TIFF directory")
	if err != nil {
		return nil, err
	}
	entries := uint64(h.order.Uint16(b))
	if big {
		entries = h.order.Uint64(b)
	}
	if entries == 0 || entries > maxIFDEntries {
		return nil, problemf(fileStatusCorrupt, "the TIFF directory at %d claims %d entries", start, entries)
	}
	b, err = h.at(start+countSize, entries*entrySize, "the TIFF directory")
	if err != nil {
		return nil, err
	}
	directory := h.fields[:0]
	for i := range entries {
		e := b[i*entrySize:]
		valueAt := entrySize - inline
		f := tiffField{h.order.Uint16(e), h.order.Uint16(e[2:]), word(e[4:]), word(e[valueAt:])}
		if _, twice := directory.field(f.tag); twice || tiffKeep(f.tag) == 0 {
			continue
		}
		if size := tiffKindSize(f.kind); size > 0 && f.count <= inline/size {
			f.offset = start + countSize + i*entrySize + valueAt
		}
		directory = append(directory, f)
	}
	h.fields = directory
	return directory, h.prefetch(directory)
}

// keptSpan is where the values lie that we use of a field. The whole field must lie in the file, as libtiff asks.
func (h *headerReader) keptSpan(f tiffField) (span, error) {
	size := tiffKindSize(f.kind)
	switch {
	case size == 0:
		return span{}, problemf(fileStatusCorrupt, "TIFF tag %d has the unknown field type %d", f.tag, f.kind)
	case f.count > h.size/size, !h.within(span{f.offset, f.count * size}):
		return span{}, problemf(fileStatusCorrupt, "TIFF tag %d points to %d values at %d, beyond the end of the file at %d: it may be cut short", f.tag, f.count, f.offset, h.size)
	}
	return span{f.offset, min(f.count, tiffKeep(f.tag)) * size}, nil
}

// prefetch brings the values of all fields into memory with few reads: those near each other come together.
func (h *headerReader) prefetch(d tiffDirectory) error {
	var spans []span
	for _, f := range d {
		if s, err := h.keptSpan(f); err == nil && h.cached(s) == nil {
			spans = append(spans, s)
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.offset, b.offset) })
	for len(spans) > 0 {
		first, end, n := spans[0].offset, spans[0].offset+spans[0].length, 1
		for _, s := range spans[1:] {
			if (s.offset > end && s.offset-end > maxGapBytes) || s.offset+s.length-first > maxClusterBytes {
				break
			}
			end, n = max(end, s.offset+s.length), n+1
		}
		if err := h.fetch(span{first, end - first}); err != nil {
			return err
		}
		spans = spans[n:]
	}
	return nil
}

// bytes reads the values of a field that we use.
func (h *headerReader) bytes(f tiffField) ([]byte, error) {
	s, err := h.keptSpan(f)
	if err != nil {
		return nil, err
	}
	return h.at(s.offset, s.length, "TIFF tag values")
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
		case 1: // BYTE
			v = float64(b[0])
		case 3: // SHORT
			v = float64(h.order.Uint16(b))
		case 4: // LONG
			v = float64(h.order.Uint32(b))
		case 5: // RATIONAL
			v = float64(h.order.Uint32(b)) / float64(h.order.Uint32(b[4:]))
		case 6: // SBYTE
			v = float64(int8(b[0]))
		case 8: // SSHORT
			v = float64(int16(h.order.Uint16(b)))
		case 9: // SLONG
			v = float64(int32(h.order.Uint32(b)))
		case 10: // SRATIONAL
			v = float64(int32(h.order.Uint32(b))) / float64(int32(h.order.Uint32(b[4:])))
		case 11: // FLOAT
			v = float64(math.Float32frombits(h.order.Uint32(b)))
		case 12: // DOUBLE
			v = math.Float64frombits(h.order.Uint64(b))
		case 16: // LONG8
			v = float64(h.order.Uint64(b))
		case 17: // SLONG8
			v = float64(int64(h.order.Uint64(b)))
		default:
			return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not a number", f.tag, f.kind)
		}
		h.values = append(h.values, v)
	}
	return h.values[used:], nil
}

// number reads the first value of a tag, absent where the file does not have the tag.
func (h *headerReader) number(d tiffDirectory, tag uint16, absent float64) (float64, error) {
	f, ok := d.field(tag)
	if !ok {
		return absent, nil
	}
	v, err := h.numbers(f)
	if err == nil && len(v) == 0 {
		err = problemf(fileStatusCorrupt, "TIFF tag %d has no value", tag)
	}
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// text reads a field of characters: as much of it as we keep.
func (h *headerReader) text(f tiffField) ([]byte, error) {
	if tiffKindSize(f.kind) != 1 {
		return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not text", f.tag, f.kind)
	}
	return h.bytes(f)
}
