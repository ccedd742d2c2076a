package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// The values of ElevationDatasetFileMeta.Status.
const (
	fileStatusOK          = "ok"          // native_bbox and bbox
	fileStatusNoBBox      = "no_bbox"     // native_bbox, but its CRS is missing or none that we turn into degrees
	fileStatusNoGeoref    = "no_georef"   // a raster without extent
	fileStatusSidecar     = "sidecar"     // belongs to a raster beside it
	fileStatusUnsupported = "unsupported" // not a format that we read
	fileStatusCorrupt     = "corrupt"     // says it is a format that we read, but breaks its rules
	fileStatusUnreadable  = "unreadable"  // the operating system gave an error; worth another try
)

// Limits of what the reader takes from one file, whatever the file says of itself.
const (
	firstReadBytes   = 4 << 10   // the first read: serves most files alone
	laterReadBytes   = 16 << 10  // each later one at least: tag values mostly lie near each other
	maxHeaderBytes   = 256 << 10 // all reads of one file together
	maxSidecarBytes  = 16 << 10  // of a world file, .hdr or .prj
	maxIFDEntries    = 4096      // far above any real directory; 80 KiB in BigTIFF
	maxTIFFDimension = 1<<31 - 1 // GDAL's own limit of width and height
	maxGeoKeys       = 1024
	maxGeoASCII      = 16 << 10
	maxNodataText    = 64  // bytes kept of a nodata value
	maxNameText      = 200 // bytes kept of a name
)

// extentProblem is what is wrong with the content of a file, not an error of the operating system.
type extentProblem struct{ status, reason string }

// Error gives the reason.
func (p *extentProblem) Error() string { return p.reason }

// problemf returns an *extentProblem with that status.
func problemf(status, format string, args ...any) error {
	return &extentProblem{status, fmt.Sprintf(format, args...)}
}

// isProblem tells a fault of the content, which costs at most the tag it is in, from an I/O error, which ends all.
func isProblem(err error) bool {
	_, ok := errors.AsType[*extentProblem](err)
	return ok
}

// reasonOf is what went wrong, without the path that an *fs.PathError repeats.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == io.EOF {
		return "unexpected end"
	}
	return strings.ToValidUTF8(err.Error(), "?")
}

// warnf adds a warning.
func (m *ElevationDatasetFileMeta) warnf(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

// survive makes a fault a warning. Of a TIFF no other errors come once its directory is read.
func (m *ElevationDatasetFileMeta) survive(err error) {
	if err != nil {
		m.warnf("%v", err)
	}
}

// besideFunc reads at most limit bytes of a regular file in the same directory; limit 0 only asks whether it is there.
type besideFunc func(name string, limit int) (content []byte, found bool, err error)

// readExtent fills m from Format to Warnings from the header of one open file of size bytes. name is the file's base
// name, beside reads its sidecars. Every outcome is a status.
func (h *headerReader) readExtent(name string, r io.ReaderAt, size int64, beside besideFunc, m *ElevationDatasetFileMeta) {
	if h.crs == nil {
		h.crs = new(lastCRS)
	}
	*h = headerReader{
		name: name, r: r, size: uint64(max(size, 0)), beside: beside, order: binary.LittleEndian,
		buffer: h.buffer[:0], windows: h.windows[:0], values: h.values[:0], fields: h.fields[:0], crs: h.crs,
	}
	m.Warnings = []string{}
	err := h.readFormat(m)
	if m.BBox != nil {
		m.checkName(name)
	}
	m.Status, m.Reason = fileStatusOK, nil
	if p, ok := errors.AsType[*extentProblem](err); ok {
		m.Status, m.Reason = p.status, &p.reason
	} else if err != nil {
		m.fail(fileStatusUnreadable, "%s", reasonOf(err))
	}
}

// readFormat finds out what the file is and reads it.
func (h *headerReader) readFormat(m *ElevationDatasetFileMeta) error {
	extension := strings.ToLower(path.Ext(h.name))
	if raster, err := h.sidecarOf(extension); err != nil || raster != "" {
		return cmp.Or(err, problemf(fileStatusSidecar, "belongs to %s beside it", cleanText([]byte(raster), maxNameText)))
	}
	if h.size == 0 {
		return problemf(fileStatusUnsupported, "the file is empty")
	}
	head, err := h.at(0, min(h.size, firstReadBytes), "the file")
	if err != nil {
		return err
	}
	switch string(head[:min(len(head), 4)]) { // classic TIFF (42) or BigTIFF (43) of either byte order
	case "II*\x00", "MM\x00*", "II+\x00", "MM\x00+":
		return h.readGeoTIFF(head, m)
	}
	if read, err := h.readGrid(extension, head, m); read || err != nil {
		return err
	}
	return unsupportedFormat(extension, head, m)
}

// setSize sets Width and Height, if they are whole numbers that GDAL would take as well.
func (m *ElevationDatasetFileMeta) setSize(width, height float64) error {
	usable := func(v float64) bool { return v >= 1 && v <= maxTIFFDimension && v == math.Trunc(v) }
	if !usable(width) || !usable(height) {
		return problemf(fileStatusCorrupt, "its width or height is missing or unusable: %v by %v", width, height)
	}
	m.Width, m.Height = new(int64(width)), new(int64(height))
	return nil
}

// setNodata sets Nodata from text of the file.
func (m *ElevationDatasetFileMeta) setNodata(text []byte) {
	if t := cleanText(text, maxNodataText); t != "" {
		m.Nodata = &t
	}
}

// setSamples sets Bands and SampleType as GDAL has them, from tags 277, 258 and 339: the smallest type that holds the bits.
func (m *ElevationDatasetFileMeta) setSamples(bands, bits, format float64) {
	if bands >= 1 && bands <= math.MaxUint16 {
		m.Bands = new(int64(bands))
	}
	names := [...][5]string{ // of 8, 16, 32, 64 and 128 bits
		1: {"uint8", "uint16", "uint32", "uint64"},
		2: {"int8", "int16", "int32", "int64"},
		3: {"", "float32", "float32", "float64"}, // GDAL widens half precision
		4: {"uint8", "uint16", "uint32", "uint64"},
		5: {"", "", "complex_int16", "complex_int32"},
		6: {"", "", "complex64", "complex64", "complex128"},
	}
	for i, size := range [...]float64{8, 16, 32, 64, 128} {
		if bits >= 1 && bits <= size && format >= 1 && format <= 6 {
			if name := names[int(format)][i]; name != "" {
				m.SampleType = &name
			}
			return
		}
	}
}

// readGeoTIFF reads the raster, its extent and its CRS from the first directory of a TIFF; where the tags
// give no extent, from the world file; where they say no CRS, from the .prj beside it.
func (h *headerReader) readGeoTIFF(head []byte, m *ElevationDatasetFileMeta) error {
	m.Format = new("geotiff")
	d, err := h.readDirectory(head)
	if err != nil {
		return err
	}
	numbers := [...]float64{0, 0, 1, 1, 1} // the defaults of TIFF 6.0; without width and height there is no raster
	for i, tag := range [...]uint16{tagImageWidth, tagImageLength, tagSamplesPerPixel, tagBitsPerSample, tagSampleFormat} {
		f, ok := d.field(tag)
		if !ok {
			continue
		}
		v, err := h.numbers(f)
		if err == nil && len(v) == 0 {
			err = problemf(fileStatusCorrupt, "TIFF tag %d has no value", tag)
		}
		if numbers[i] = 0; err == nil {
			numbers[i] = v[0]
		} else if i < 2 {
			return err
		}
		m.survive(err)
	}
	if err := m.setSize(numbers[0], numbers[1]); err != nil {
		return err
	}
	m.setSamples(numbers[2], numbers[3], numbers[4])
	if f, ok := d.field(tagGDALNoData); ok {
		b, err := h.text(f)
		m.setNodata(b)
		m.survive(err)
	}
	keys, err := h.readGeoKeys(d)
	m.survive(err)
	switch keys.code(1025) { // GTRasterType
	case 1:
		m.PixelIs = new("area")
	case 2:
		m.PixelIs = new("point")
	}
	t, source, err := h.readTransform(d, keys.code(1025) == 2, m)
	if err == nil {
		h.compareWorldFile(t, m)
	} else if t, source, err = h.worldFile(err, "tfw", "tifw", "tiffw", "wld"); err != nil {
		return err
	}
	crs := keys.parameters()
	if !crs.present {
		if crs, err = h.projectionFile(m); err != nil {
			return err
		}
	}
	return h.place(m, t, source, crs)
}

// readTransform gives the raster's transform and the tags that it comes from, by the rules of GeoTIFF 1.1 as GDAL
// follows them: a pixel scale (33550) with a tie point (33922), else a matrix (34264) of 16 numbers. A pixel scale
// without a tie point keeps the matrix from giving an extent. Where a pixel is a point the tie point means its centre.
func (h *headerReader) readTransform(d tiffDirectory, pixelIsPoint bool, m *ElevationDatasetFileMeta) (t [6]float64, source string, err error) {
	var values [3][]float64
	var counts [3]uint64
	var broken error // of a tag that could not be read: it matters where the others give no extent
	for i, tag := range [...]uint16{tagModelPixelScale, tagModelTiepoint, tagModelTransformation} {
		if f, ok := d.field(tag); ok {
			counts[i] = f.count
			values[i], err = h.numbers(f)
			broken = cmp.Or(broken, err)
		}
	}
	scale, tie, matrix := values[0], values[1], values[2]
	scaled := len(scale) >= 2 && scale[0] != 0 && scale[1] != 0
	switch {
	case scaled && len(tie) >= 6:
		// A negative Y scale is against the standard; GDAL takes such a raster as north-up all the same.
		if scale[1] < 0 {
			m.warnf("the pixel scale in Y is negative; read as north-up, as GDAL does")
		}
		a, e := scale[0], -math.Abs(scale[1])
		t = [6]float64{a, 0, tie[3] - tie[0]*a, 0, e, tie[4] - tie[1]*e}
		source = "ModelPixelScale (33550) and ModelTiepoint (33922)"
	case !scaled && len(matrix) == 16 && counts[2] == 16:
		t = [6]float64{matrix[0], matrix[1], matrix[3], matrix[4], matrix[5], matrix[7]}
		source = "ModelTransformation (34264)"
	case broken != nil:
		return t, "", broken
	case scaled:
		return t, "", problemf(fileStatusNoGeoref, "it has a pixel scale (tag 33550) but no tie point (tag 33922): where it lies is not said")
	case counts[1] >= 6:
		return t, "", problemf(fileStatusNoGeoref, "it has %d ground control points (tag 33922) but no pixel scale: rectify it first, for example with gdalwarp", counts[1]/6)
	default:
		return t, "", problemf(fileStatusNoGeoref, "the TIFF has no georeferencing tags (33550 and 33922, or 34264), and no world file lies beside it")
	}
	if pixelIsPoint {
		t = shiftHalfPixel(t)
	}
	m.survive(broken)
	return t, source, nil
}

// shiftHalfPixel turns a transform from the centre of the first pixel into one from its outer corner.
func shiftHalfPixel(t [6]float64) [6]float64 {
	t[2] -= t[0]*0.5 + t[1]*0.5
	t[5] -= t[3]*0.5 + t[4]*0.5
	return t
}

// place sets the extent, and all that comes of it and the CRS; a problem with the CRS is one of status no_bbox.
func (h *headerReader) place(m *ElevationDatasetFileMeta, t [6]float64, source string, p crsParameters) error {
	width, height := float64(*m.Width), float64(*m.Height)
	native := [4]float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	for _, corner := range [4][2]float64{{0, 0}, {width, 0}, {0, height}, {width, height}} {
		x, y := applyTransform(t, corner[0], corner[1])
		if !isFinite(x) || !isFinite(y) {
			return problemf(fileStatusCorrupt, "%s holds numbers that are not finite", source)
		}
		native = [4]float64{min(native[0], x), min(native[1], y), max(native[2], x), max(native[3], y)}
	}
	if !(native[2] > native[0] && native[3] > native[1]) {
		return problemf(fileStatusCorrupt, "%s gives the raster no area", source)
	}
	m.Transform, m.NativeBBox, m.Source = t[:], native[:], &source
	crs, err := p.definition(m, h.crs.byCode)
	if err != nil {
		return err
	}
	box, err := boxInDegrees(&crs, t, width, height)
	if err != nil {
		return problemf(fileStatusNoBBox, "the extent cannot be turned into degrees: %v", err)
	}
	m.BBox = box.bounds[:]
	if box.clamped {
		m.warnf("the raster reaches beyond a pole; bbox ends there")
	}
	if box.turned {
		m.warnf("its longitudes go beyond ±360°; bbox gives them within ±180°")
	}
	m.BBoxAccuracyM = &box.accuracyM
	if r, err := pixelSizeMetres(crs.projection, t, width/2, height/2); err == nil {
		m.ResolutionM = &r
	}
	return nil
}

// cleanText gives text of a file up to the first NUL: valid UTF-8, no control characters, trimmed, at most limit bytes.
func cleanText(b []byte, limit int) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
	s = strings.TrimSpace(s)
	return strings.TrimSpace(strings.ToValidUTF8(s[:min(limit, len(s))], ""))
}

// unsupportedFormat says what a file that we do not read seems to be, by its first bytes.
func unsupportedFormat(extension string, head []byte, m *ElevationDatasetFileMeta) error {
	known := "no raster format that is known here"
	if !slices.ContainsFunc(head[:min(len(head), 512)], func(b byte) bool {
		return b < ' ' && !strings.ContainsRune("\t\n\r\f", rune(b))
	}) {
		m.Format, known = new("text"), "a text file"
	}
	for _, magic := range [...][3]string{
		{"\x89PNG\r\n\x1a\n", "png", "a PNG picture"},
		{"\xff\xd8\xff", "jpeg", "a JPEG picture"},
		{"\x00\x00\x00\x0cjP  ", "jp2", "a JPEG 2000 picture"},
		{"PK\x03\x04", "zip", "a ZIP archive; unpack it first"},
		{"\x1f\x8b", "gzip", "compressed with gzip; unpack it first"},
		{"BZh", "bzip2", "compressed with bzip2; unpack it first"},
		{"\x28\xb5\x2f\xfd", "zstd", "compressed with zstd; unpack it first"},
		{"%PDF", "pdf", "a PDF document"},
		{"\x89HDF\r\n\x1a\n", "hdf5", "an HDF5 or netCDF-4 file"},
		{"CDF", "netcdf", "a netCDF file"},
		{"GRIB", "grib", "a GRIB file"},
		{"EHFA_HEADER_TAG", "hfa", "an Erdas Imagine raster"},
		{"LASF", "las", "a LAS or LAZ point cloud"},
		{"SQLite format 3\x00", "sqlite", "an SQLite file, such as a GeoPackage"},
		{"<?xml", "xml", "an XML file"},
	} {
		if bytes.HasPrefix(head, []byte(magic[0])) {
			m.Format, known = new(magic[1]), magic[2]
		}
	}
	if isListed(extension, rasterExtensions) {
		return problemf(fileStatusUnsupported, "it is named %s but is none; it seems to be %s", extension, known)
	}
	return problemf(fileStatusUnsupported, "it seems to be %s, which is not read", known)
}

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
