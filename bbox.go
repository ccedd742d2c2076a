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

// ElevationDatasetFileMeta is what is known of one file of a dataset. A nil pointer or slice is "not known" and JSON null. Text that comes
// from the file is valid UTF-8, without NUL, and bounded.
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

	// Transform is [a b c d e f] with x = a·col + b·row + c and y = d·col + e·row + f, col and row counted from the outer corner of the first pixel.
	Transform []float64 `json:"transform" db:"transform"`
	// NativeBBox is [minx miny maxx maxy] of the four outer corners in the file's own CRS.
	NativeBBox  []float64 `json:"native_bbox" db:"native_bbox"`
	CRS         *string   `json:"crs" db:"crs"`           // EPSG:n, or nil where the CRS has no code
	CRSName     *string   `json:"crs_name" db:"crs_name"` // what the file calls it
	VerticalCRS *string   `json:"vertical_crs" db:"vertical_crs"`
	// BBox is [west south east north] in degrees (RFC 7946, section 5): west > east where it crosses 180°.
	BBox          []float64 `json:"bbox" db:"bbox"`
	BBoxAccuracyM *float64  `json:"bbox_accuracy_m" db:"bbox_accuracy_m"` // metres that BBox may be off from WGS 84; nil where unknown
	ResolutionM   *float64  `json:"resolution_m" db:"resolution_m"`       // ground size of a pixel at the raster's centre, metres
	Source        *string   `json:"source" db:"source"`                   // which tag gave the extent
	Warnings      []string  `json:"warnings" db:"warnings"`               // never nil
	AnalyzedAt    time.Time `json:"analyzed_at" db:"analyzed_at"`
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
	firstReadBytes   = 4 << 10   // the first read, and each later one at least: serves most files alone
	directoryBytes   = 8 << 10   // the read that fetches a directory which lies elsewhere, and the values around it
	maxGapBytes      = 8 << 10   // tag values at most this far apart are fetched by one read
	maxClusterBytes  = 48 << 10  // one such read at most
	maxHeaderBytes   = 256 << 10 // all reads of one file together
	maxIFDEntries    = 4096      // far above any real directory; 80 KiB in BigTIFF
	maxTIFFDimension = 1<<31 - 1 // GDAL's own limit of width and height
	maxGeoKeys       = 1024
	maxGeoDoubles    = 1024
	maxGeoASCII      = 16 << 10
	maxNodataText    = 64  // bytes kept of tag 42113
	maxNameText      = 200 // bytes kept of a citation
)

// extentProblem is what is wrong with the content of a file, in contrast to an error of the operating system: a status and its reason.
type extentProblem struct{ status, reason string }

// Error gives the reason.
func (p *extentProblem) Error() string { return p.reason }

// problemf returns an *extentProblem with that status.
func problemf(status, format string, args ...any) error {
	return &extentProblem{status, fmt.Sprintf(format, args...)}
}

// isProblem tells a fault of the content, which costs at most the tag it is in, from an I/O error, which ends the reading.
func isProblem(err error) bool {
	_, ok := errors.AsType[*extentProblem](err)
	return ok
}

// readExtent fills m from Format to Warnings from the header of one open file of size bytes. name is the file's base name; it only helps to say
// what a file is that we do not read. Every outcome is a status: there is no error to handle.
func readExtent(name string, r io.ReaderAt, size int64, m *ElevationDatasetFileMeta) {
	if m.Warnings == nil {
		m.Warnings = []string{}
	}
	h := &headerReader{r: r, size: uint64(max(size, 0)), order: binary.LittleEndian}
	err := readFormat(name, h, m)
	m.Status, m.Reason = fileStatusOK, nil
	if err == nil {
		return
	}
	m.Status = fileStatusUnreadable
	if p, ok := errors.AsType[*extentProblem](err); ok {
		m.Status = p.status
	}
	reason := reasonOf(err)
	m.Reason = &reason
}

// readFormat finds out what the file is and reads it.
func readFormat(name string, h *headerReader, m *ElevationDatasetFileMeta) error {
	if h.size == 0 {
		return problemf(fileStatusUnsupported, "the file is empty")
	}
	head, err := h.at(0, min(h.size, firstReadBytes))
	if err != nil {
		return err
	}
	if isTIFF(head) {
		m.Format = new("geotiff")
		return readGeoTIFF(h, head, m)
	}
	return unsupportedFormat(name, head, m)
}

// readRaster reads what the picture is: width, height, bands, type of sample, nodata. Without width and height there is no raster.
func (h *headerReader) readRaster(d tiffDirectory, m *ElevationDatasetFileMeta) error {
	var dimension [2]int64
	for i, tag := range [...]uint16{tagImageWidth, tagImageLength} {
		v, err := h.number(d, tag, 0)
		if err != nil {
			return err
		}
		if !(v >= 1 && v <= maxTIFFDimension) || v != math.Trunc(v) {
			return problemf(fileStatusCorrupt, "TIFF tag %d (256 is the width, 257 the height) is missing or unusable: %v", tag, v)
		}
		dimension[i] = int64(v)
	}
	m.Width, m.Height = &dimension[0], &dimension[1]

	var samples [3]float64 // samples a pixel, bits a sample, sample format, with the defaults of TIFF 6.0
	for i, tag := range [...]uint16{tagSamplesPerPixel, tagBitsPerSample, tagSampleFormat} {
		v, err := h.number(d, tag, 1)
		if err != nil && !isProblem(err) {
			return err
		}
		if err != nil {
			m.Warnings = append(m.Warnings, err.Error())
		}
		samples[i] = v
	}
	if samples[0] >= 1 && samples[0] <= math.MaxUint16 {
		m.Bands = new(int64(samples[0]))
	}
	if t := sampleType(samples[1], samples[2]); t != "" {
		m.SampleType = &t
	}
	if f, ok := d.field(tagGDALNoData); ok {
		b, err := h.text(f)
		if err != nil && !isProblem(err) {
			return err
		}
		if err != nil {
			m.Warnings = append(m.Warnings, err.Error())
		} else if t := cleanText(b, maxNodataText); t != "" {
			m.Nodata = &t
		}
	}
	return nil
}

// sampleType names the type that GDAL reads a sample into, from tags 258 and 339: the smallest that holds its bits. complex64 is two float32.
func sampleType(bits, format float64) string {
	sizes := [...]float64{8, 16, 32, 64, 128}
	i := slices.IndexFunc(sizes[:], func(size float64) bool { return bits <= size })
	if i < 0 || bits < 1 {
		return ""
	}
	var names [5]string
	switch format {
	case 1, 4: // unsigned; undefined
		names = [5]string{"uint8", "uint16", "uint32", "uint64"}
	case 2: // signed
		names = [5]string{"int8", "int16", "int32", "int64"}
	case 3: // IEEE floating point; GDAL widens half precision
		names = [5]string{"", "float32", "float32", "float64"}
	case 5: // complex integer
		names = [5]string{"", "", "complex_int16", "complex_int32"}
	case 6: // complex IEEE floating point
		names = [5]string{"", "", "complex64", "complex64", "complex128"}
	}
	return names[i]
}

// readGeoTIFF reads the raster, its extent and its CRS from the first directory of a TIFF.
func readGeoTIFF(h *headerReader, head []byte, m *ElevationDatasetFileMeta) error {
	d, err := h.readDirectory(head)
	if err != nil {
		return err
	}
	if err := h.prefetchFields(d); err != nil {
		return err
	}
	if err := h.readRaster(d, m); err != nil {
		return err
	}
	keys, err := h.readGeoKeys(d)
	if err != nil && !isProblem(err) {
		return err
	}
	if err != nil {
		keys = geoKeys{}
		m.Warnings = append(m.Warnings, "the CRS is lost: "+err.Error())
	}
	switch keys.rasterType {
	case 1:
		m.PixelIs = new("area")
	case 2:
		m.PixelIs = new("point")
	}
	transform, source, err := h.readTransform(d, keys.rasterType == 2, m)
	if err != nil {
		return err
	}
	if err := m.setExtent(transform, source); err != nil {
		return err
	}
	keys.nameCRS(m)
	crs, err := keys.crs(m)
	if err != nil {
		return err
	}
	return m.setBBox(crs)
}

// readTransform gives the raster's transform and the tags that it comes from, by the rules of GeoTIFF 1.1 as GDAL follows them:
// a pixel scale (33550) with a tie point (33922), else a matrix (34264) of 16 numbers. A pixel scale that stands without a tie point gives
// no extent, and keeps the matrix from giving one. Where a pixel is a point the tie point means its centre: half a pixel inwards.
func (h *headerReader) readTransform(d tiffDirectory, pixelIsPoint bool, m *ElevationDatasetFileMeta) (t [6]float64, source string, err error) {
	var values [3][16]float64
	var read [3][]float64
	var broken error // of a tag that could not be read: it matters where the others give no extent
	for i, tag := range [...]uint16{tagModelPixelScale, tagModelTiepoint, tagModelTransformation} {
		f, ok := d.field(tag)
		if !ok {
			continue
		}
		read[i], err = h.numbers(f, values[i][:])
		if err != nil && !isProblem(err) {
			return t, "", err
		}
		if err != nil {
			broken = cmp.Or(broken, err)
		}
	}
	scale, tie, matrix := read[0], read[1], read[2]
	tieField, _ := d.field(tagModelTiepoint)
	matrixField, _ := d.field(tagModelTransformation)

	scaled := len(scale) == 2 && scale[0] != 0 && scale[1] != 0
	switch {
	case scaled && len(tie) == 6:
		// A negative Y scale is against the standard; GDAL takes such a raster as north-up all the same.
		if scale[1] < 0 {
			m.Warnings = append(m.Warnings, "the pixel scale in Y is negative; read as north-up, as GDAL does")
		}
		a, e := scale[0], -math.Abs(scale[1])
		t = [6]float64{a, 0, tie[3] - tie[0]*a, 0, e, tie[4] - tie[1]*e}
		source = "ModelPixelScale (33550) and ModelTiepoint (33922)"
	case !scaled && len(matrix) == 16 && matrixField.count == 16:
		t = [6]float64{matrix[0], matrix[1], matrix[3], matrix[4], matrix[5], matrix[7]}
		source = "ModelTransformation (34264)"
	case broken != nil:
		return t, "", broken
	case scaled:
		return t, "", problemf(fileStatusNoGeoref, "it has a pixel scale (tag 33550) but no tie point (tag 33922): where it lies is not said")
	case tieField.count >= 6:
		return t, "", problemf(fileStatusNoGeoref, "it has %d ground control points (tag 33922) but no pixel scale: rectify it first, for example with gdalwarp", tieField.count/6)
	default:
		return t, "", problemf(fileStatusNoGeoref, "the TIFF has no georeferencing tags (33550 and 33922, or 34264); world files and other sidecars are not read yet")
	}
	if broken != nil {
		m.Warnings = append(m.Warnings, broken.Error())
	}
	if pixelIsPoint {
		t[2] -= t[0]*0.5 + t[1]*0.5
		t[5] -= t[3]*0.5 + t[4]*0.5
	}
	return t, source, nil
}

// setExtent sets Transform, NativeBBox and Source. Numbers that are not finite, or span no area, are no extent.
func (m *ElevationDatasetFileMeta) setExtent(t [6]float64, source string) error {
	w, h := float64(*m.Width), float64(*m.Height)
	box := []float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	for _, corner := range [4][2]float64{{0, 0}, {w, 0}, {0, h}, {w, h}} {
		x, y := applyTransform(t, corner[0], corner[1])
		if math.IsNaN(x-x) || math.IsNaN(y-y) {
			return problemf(fileStatusCorrupt, "%s holds numbers that are not finite", source)
		}
		box = []float64{min(box[0], x), min(box[1], y), max(box[2], x), max(box[3], y)}
	}
	if !(box[2] > box[0] && box[3] > box[1]) {
		return problemf(fileStatusCorrupt, "%s gives the raster no area", source)
	}
	m.Transform, m.NativeBBox, m.Source = t[:], box, &source
	return nil
}

// setBBox sets BBox, its accuracy and the resolution from Transform, Width and Height. The problem is one of status no_bbox.
func (m *ElevationDatasetFileMeta) setBBox(crs crsDefinition) error {
	t, w, h := [6]float64(m.Transform), float64(*m.Width), float64(*m.Height)
	box, err := boxInDegrees(crs.projection, t, w, h)
	if err != nil {
		return problemf(fileStatusNoBBox, "the extent cannot be turned into degrees: %v", err)
	}
	m.BBox = box.bounds[:]
	if box.clamped {
		m.Warnings = append(m.Warnings, "the raster reaches beyond a pole; bbox ends there")
	}
	if crs.accuracyM > 0 {
		m.BBoxAccuracyM = new(max(crs.accuracyM, box.cutM))
	}
	if r, err := pixelSizeMetres(crs.projection, t, w/2, h/2); err == nil {
		m.ResolutionM = &r
	}
	return nil
}

// cleanText makes text from a file fit to be stored and shown: it ends at the first NUL, is valid UTF-8 without control characters, trimmed,
// and at most limit bytes long.
func cleanText(b []byte, limit int) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return strings.TrimSpace(s[:limit])
}

// unsupportedFormat says what a file that is no TIFF seems to be, from its first bytes or its name.
func unsupportedFormat(name string, head []byte, m *ElevationDatasetFileMeta) error {
	extension := strings.ToLower(path.Ext(name))
	switch extension {
	case ".hgt":
		m.Format = new("hgt")
	case ".dt0", ".dt1", ".dt2":
		m.Format = new("dted")
	case ".asc":
		m.Format = new("asc")
	case ".bil", ".bip", ".bsq", ".flt":
		m.Format = new("ehdr")
	}
	if m.Format != nil {
		return problemf(fileStatusUnsupported, "elevation files of the format %s are not read yet", *m.Format)
	}
	format, known := magicFormat(head)
	switch {
	case format != "":
		m.Format = &format
	case looksLikeText(head):
		format, known = "text", "a text file"
		m.Format = &format
	default:
		known = "no raster format that is known here"
	}
	if extension == ".tif" || extension == ".tiff" {
		return problemf(fileStatusUnsupported, "it is named %s but is no TIFF; it seems to be %s", extension, known)
	}
	return problemf(fileStatusUnsupported, "it seems to be %s, which is not read", known)
}

// magicFormat knows common files by their first bytes: the name of the format, and the words for it; empty where it knows none.
func magicFormat(head []byte) (format, words string) {
	for _, m := range [...][3]string{
		{"\x89PNG\r\n\x1a\n", "png", "a PNG picture"},
		{"\xff\xd8\xff", "jpeg", "a JPEG picture"},
		{"GIF8", "gif", "a GIF picture"},
		{"BM", "bmp", "a BMP picture"},
		{"\x00\x00\x00\x0cjP  ", "jp2", "a JPEG 2000 picture"},
		{"PK\x03\x04", "zip", "a ZIP archive; unpack it first"},
		{"PK\x05\x06", "zip", "an empty ZIP archive"},
		{"\x1f\x8b", "gzip", "compressed with gzip; unpack it first"},
		{"BZh", "bzip2", "compressed with bzip2; unpack it first"},
		{"\xfd7zXZ\x00", "xz", "compressed with xz; unpack it first"},
		{"\x28\xb5\x2f\xfd", "zstd", "compressed with zstd; unpack it first"},
		{"7z\xbc\xaf\x27\x1c", "7z", "a 7-Zip archive; unpack it first"},
		{"%PDF", "pdf", "a PDF document"},
		{"\x89HDF\r\n\x1a\n", "hdf5", "an HDF5 or netCDF-4 file"},
		{"CDF\x01", "netcdf", "a netCDF file"},
		{"CDF\x02", "netcdf", "a netCDF file"},
		{"CDF\x05", "netcdf", "a netCDF file"},
		{"GRIB", "grib", "a GRIB file"},
		{"EHFA_HEADER_TAG", "hfa", "an Erdas Imagine raster"},
		{"LASF", "las", "a LAS or LAZ point cloud"},
		{"SQLite format 3\x00", "sqlite", "an SQLite file, such as a GeoPackage"},
		{"<?xml", "xml", "an XML file"},
	} {
		if bytes.HasPrefix(head, []byte(m[0])) {
			return m[1], m[2]
		}
	}
	return "", ""
}

// looksLikeText says whether a file begins with characters only.
func looksLikeText(head []byte) bool {
	head = head[:min(len(head), 512)]
	for len(head) > 0 {
		r, n := utf8.DecodeRune(head)
		if (r == utf8.RuneError && n == 1 && len(head) >= utf8.UTFMax) || (r < ' ' && !strings.ContainsRune("\t\n\r\f", r)) {
			return false
		}
		head = head[n:]
	}
	return true
}
