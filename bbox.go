package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ElevationDatasetFileMeta is what is known of one file of a dataset. A nil pointer or slice is "not known"
// and JSON null. Text that comes from the file is valid UTF-8, without NUL, and bounded.
type ElevationDatasetFileMeta struct {
	ID         int64     `json:"id,omitzero" db:"id"`
	Path       string    `json:"path" db:"path"`
	SizeBytes  int64     `json:"size_bytes" db:"size_bytes"`
	ModifiedAt time.Time `json:"modified_at" db:"modified_at"`
	Format     *string   `json:"format" db:"format"` // geotiff for every TIFF, as in GDAL's driver list
	Status     string    `json:"status" db:"status"` // one of the status constants
	Reason     *string   `json:"reason" db:"reason"` // what to do about it; nil only where Status is ok
	Width      *int64    `json:"width" db:"width"`
	Height     *int64    `json:"height" db:"height"`
	Bands      *int64    `json:"bands" db:"bands"`
	SampleType *string   `json:"sample_type" db:"sample_type"`
	Nodata     *string   `json:"nodata" db:"nodata"`     // as written in the file, trimmed
	PixelIs    *string   `json:"pixel_is" db:"pixel_is"` // area or point; nil where the file does not say

	// Transform is [a b c d e f]: x = a·col + b·row + c, y = d·col + e·row + f, from the first pixel's outer corner.
	Transform []float64 `json:"transform" db:"transform"`
	// NativeBBox is [minx miny maxx maxy] of the four outer corners in the file's own CRS.
	NativeBBox  []float64 `json:"native_bbox" db:"native_bbox"`
	CRS         *string   `json:"crs" db:"crs"`           // EPSG:n, or nil where the CRS has no code
	CRSName     *string   `json:"crs_name" db:"crs_name"` // what the file calls it
	VerticalCRS *string   `json:"vertical_crs" db:"vertical_crs"`
	// BBox is [west south east north] in degrees (RFC 7946, section 5): west > east where it crosses 180°.
	BBox []float64 `json:"bbox" db:"bbox"`
	// BBoxAccuracyM is by how many metres BBox may be off from WGS 84; nil where unknown.
	BBoxAccuracyM *float64  `json:"bbox_accuracy_m" db:"bbox_accuracy_m"`
	ResolutionM   *float64  `json:"resolution_m" db:"resolution_m"` // ground size of a pixel at the centre, metres
	Source        *string   `json:"source" db:"source"`             // which tag, header or sidecar gave the extent
	Warnings      []string  `json:"warnings" db:"warnings"`         // what disagrees; never nil
	AnalyzedAt    time.Time `json:"analyzed_at" db:"analyzed_at"`

	unsettled bool // may become something else without a change of its own size and time: a link to a directory
}

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
