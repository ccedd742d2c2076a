package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// headerReader reads pieces of a file's header. Every offset and length that a file states goes through at, and only through at.
type headerReader struct {
	r       io.ReaderAt
	size    uint64
	order   binary.ByteOrder // of the TIFF, once known
	fetched uint64           // bytes read so far
	windows []headerWindow   // what was read; a handful
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
		if s.offset >= w.offset && s.offset-w.offset <= uint64(len(w.data)) && s.length <= uint64(len(w.data))-(s.offset-w.offset) {
			start := s.offset - w.offset
			return w.data[start : start+s.length : start+s.length]
		}
	}
	return nil
}

// at returns length bytes at offset, from memory where it can. The error is an *extentProblem where the range does not lie in the file or
// asks for more than a header may need.
func (h *headerReader) at(offset, length uint64) ([]byte, error) {
	s := span{offset, length}
	if !h.within(s) {
		return nil, problemf(fileStatusCorrupt, "points to %d bytes at %d, beyond the end of the file at %d: it may be cut short", length, offset, h.size)
	}
	if b := h.cached(s); b != nil {
		return b, nil
	}
	if err := h.fetch(s, firstReadBytes); err != nil {
		return nil, err
	}
	return h.cached(s), nil
}

// fetch reads a range that lies in the file, and up to want bytes of what follows it, or precedes it where the file ends first.
func (h *headerReader) fetch(s span, want uint64) error {
	end := min(h.size, s.offset+max(s.length, want))
	start := s.offset
	if end-start < want {
		start = min(start, end-min(end, want))
	}
	if end-start > maxHeaderBytes-h.fetched {
		return problemf(fileStatusCorrupt, "its header asks for more than %d KiB: no raster needs that", maxHeaderBytes>>10)
	}
	h.fetched += end - start
	data := make([]byte, end-start)
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

// prefetch brings ranges into memory with few reads: those near each other come together. Ranges outside the file are left for at to refuse.
func (h *headerReader) prefetch(spans []span) error {
	spans = slices.DeleteFunc(spans, func(s span) bool { return !h.within(s) || h.cached(s) != nil })
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.offset, b.offset) })
	for len(spans) > 0 {
		first, end, n := spans[0].offset, spans[0].offset+spans[0].length, 1
		for _, s := range spans[1:] {
			if (s.offset > end && s.offset-end > maxGapBytes) || s.offset+s.length-first > maxClusterBytes {
				break
			}
			end, n = max(end, s.offset+s.length), n+1
		}
		if err := h.fetch(span{first, end - first}, firstReadBytes); err != nil {
			return err
		}
		spans = spans[n:]
	}
	return nil
}

// The TIFF tags that we read: TIFF 6.0 (Adobe, 1992), sections 8 and 19; OGC GeoTIFF 1.1 (19-008r4); GDAL's own 42113.
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

// tiffField is one entry of an image file directory: a tag and where its values lie. Values that fit into the entry lie in the entry.
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
	case tagModelPixelScale:
		return 2
	case tagModelTiepoint:
		return 6
	case tagModelTransformation:
		return 16
	case tagGeoKeyDirectory:
		return 4 + 4*maxGeoKeys
	case tagGeoDoubleParams:
		return maxGeoDoubles
	case tagGeoASCIIParams:
		return maxGeoASCII
	case tagGDALNoData:
		return maxNodataText
	}
	return 0
}

// tiffKindSize gives the bytes of one value of a TIFF field type (TIFF 6.0, section 2; BigTIFF's 16 to 18), 0 for an unknown type.
func tiffKindSize(kind uint16) uint64 {
	switch kind {
	case 1, 2, 6, 7: // BYTE, ASCII, SBYTE, UNDEFINED
		return 1
	case 3, 8: // SHORT, SSHORT
		return 2
	case 4, 9, 11, 13: // LONG, SLONG, FLOAT, IFD
		return 4
	case 5, 10, 12, 16, 17, 18: // RATIONAL, SRATIONAL, DOUBLE, LONG8, SLONG8, IFD8
		return 8
	}
	return 0
}

// isTIFF says whether a file begins as a classic TIFF (42) or a BigTIFF (43) of either byte order.
func isTIFF(head []byte) bool {
	for _, magic := range [...]string{"II*\x00", "MM\x00*", "II+\x00", "MM\x00+"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}

// readDirectory reads the first image file directory. Later ones (overviews, masks, pages) say nothing of the extent, so the pointer to the
// next directory is not even looked at.
func (h *headerReader) readDirectory(head []byte) (tiffDirectory, error) {
	if head[0] == 'M' {
		h.order = binary.BigEndian
	}
	// Classic TIFF: a directory is a SHORT count and entries of 12 bytes; BigTIFF: a LONG8 count and entries of 20.
	headerSize, countSize, entrySize, inline := uint64(8), uint64(2), uint64(12), uint64(4)
	big := h.order.Uint16(head[2:]) == 43
	if big {
		headerSize, countSize, entrySize, inline = 16, 8, 20, 8
	}
	if uint64(len(head)) < headerSize {
		return nil, problemf(fileStatusCorrupt, "the TIFF header is cut short: the file has %d bytes", len(head))
	}
	start := uint64(h.order.Uint32(head[4:]))
	if big {
		if h.order.Uint16(head[4:]) != 8 || h.order.Uint16(head[6:]) != 0 {
			return nil, problemf(fileStatusCorrupt, "the BigTIFF header is broken: its offsets are not of 8 bytes")
		}
		start = h.order.Uint64(head[8:])
	}
	if s := (span{start, countSize}); h.within(s) && h.cached(s) == nil {
		if err := h.fetch(s, directoryBytes); err != nil {
			return nil, err
		}
	}
	b, err := h.at(start, countSize)
	if err != nil {
		return nil, inTIFF(err, "the TIFF directory")
	}
	entries := uint64(h.order.Uint16(b))
	if big {
		entries = h.order.Uint64(b)
	}
	if entries == 0 || entries > maxIFDEntries {
		return nil, problemf(fileStatusCorrupt, "the TIFF directory at %d claims %d entries", start, entries)
	}
	b, err = h.at(start+countSize, entries*entrySize)
	if err != nil {
		return nil, inTIFF(err, "the TIFF directory")
	}
	directory := make(tiffDirectory, 0, 12)
	for i := range entries {
		e := b[i*entrySize:]
		f := tiffField{tag: h.order.Uint16(e), kind: h.order.Uint16(e[2:])}
		if tiffKeep(f.tag) == 0 {
			continue
		}
		if _, twice := directory.field(f.tag); twice {
			continue
		}
		valueAt := entrySize - inline
		if big {
			f.count, f.offset = h.order.Uint64(e[4:]), h.order.Uint64(e[valueAt:])
		} else {
			f.count, f.offset = uint64(h.order.Uint32(e[4:])), uint64(h.order.Uint32(e[valueAt:]))
		}
		if size := tiffKindSize(f.kind); size > 0 && f.count <= inline/size {
			f.offset = start + countSize + i*entrySize + valueAt
		}
		directory = append(directory, f)
	}
	return directory, nil
}

// inTIFF says in which part of the file a problem is; other errors it passes on.
func inTIFF(err error, part string) error {
	if p, ok := errors.AsType[*extentProblem](err); ok {
		return &extentProblem{p.status, part + " " + p.reason}
	}
	return err
}

// keptSpan is where the values lie that we use of a field. The field must lie in the file as a whole, as libtiff asks, not only that part.
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

// prefetchFields brings the values of all fields into memory.
func (h *headerReader) prefetchFields(d tiffDirectory) error {
	spans := make([]span, 0, len(d))
	for _, f := range d {
		if s, err := h.keptSpan(f); err == nil {
			spans = append(spans, s)
		}
	}
	return h.prefetch(spans)
}

// numbers reads the first values of a field, at most len(dst), into dst and returns the part that it filled. Every numeric type is taken, as
// in libtiff. float64 holds every value that we use exactly.
func (h *headerReader) numbers(f tiffField, dst []float64) ([]float64, error) {
	s, err := h.keptSpan(f)
	if err != nil {
		return nil, err
	}
	b, err := h.at(s.offset, s.length)
	if err != nil {
		return nil, inTIFF(err, fmt.Sprintf("TIFF tag %d", f.tag))
	}
	size := tiffKindSize(f.kind)
	dst = dst[:min(uint64(len(dst)), s.length/size)]
	for i := range dst {
		v := b[uint64(i)*size:]
		switch f.kind {
		case 1: // BYTE
			dst[i] = float64(v[0])
		case 3: // SHORT
			dst[i] = float64(h.order.Uint16(v))
		case 4: // LONG
			dst[i] = float64(h.order.Uint32(v))
		case 5: // RATIONAL
			dst[i] = float64(h.order.Uint32(v)) / float64(h.order.Uint32(v[4:]))
		case 6: // SBYTE
			dst[i] = float64(int8(v[0]))
		case 8: // SSHORT
			dst[i] = float64(int16(h.order.Uint16(v)))
		case 9: // SLONG
			dst[i] = float64(int32(h.order.Uint32(v)))
		case 10: // SRATIONAL
			dst[i] = float64(int32(h.order.Uint32(v))) / float64(int32(h.order.Uint32(v[4:])))
		case 11: // FLOAT
			dst[i] = float64(math.Float32frombits(h.order.Uint32(v)))
		case 12: // DOUBLE
			dst[i] = math.Float64frombits(h.order.Uint64(v))
		case 16: // LONG8
			dst[i] = float64(h.order.Uint64(v))
		case 17: // SLONG8
			dst[i] = float64(int64(h.order.Uint64(v)))
		default:
			return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not a number", f.tag, f.kind)
		}
	}
	return dst, nil
}

// number reads the first value of a tag, absent where the file does not have the tag.
func (h *headerReader) number(d tiffDirectory, tag uint16, absent float64) (float64, error) {
	f, ok := d.field(tag)
	if !ok {
		return absent, nil
	}
	var one [1]float64
	v, err := h.numbers(f, one[:])
	if err != nil {
		return 0, err
	}
	if len(v) == 0 {
		return 0, problemf(fileStatusCorrupt, "TIFF tag %d has no value", tag)
	}
	return v[0], nil
}

// text reads a field of characters: as much of it as we keep.
func (h *headerReader) text(f tiffField) ([]byte, error) {
	s, err := h.keptSpan(f)
	if err != nil {
		return nil, err
	}
	if tiffKindSize(f.kind) != 1 {
		return nil, problemf(fileStatusCorrupt, "TIFF tag %d is of field type %d, not text", f.tag, f.kind)
	}
	b, err := h.at(s.offset, s.length)
	return b, inTIFF(err, fmt.Sprintf("TIFF tag %d", f.tag))
}
