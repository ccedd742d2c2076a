package main

import (
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
)

// extent is what a file's header, name and sidecars say of its raster. A nil pointer or slice means
// "not known". Text from the file is valid UTF-8 without NUL, and limited in length.
type extent struct {
	Format     *string `json:"format"` // geotiff for every TIFF, as in GDAL's list of drivers
	Status     string  `json:"status"` // one of the status constants
	Reason     *string `json:"reason"` // what is wrong; nil only where Status is ok
	Width      *int64  `json:"width"`
	Height     *int64  `json:"height"`
	Bands      *int64  `json:"bands"`
	SampleType *string `json:"sample_type"`
	Nodata     *string `json:"nodata"` // as written in the file, trimmed
	// Unit, Scale and Offset are of the first band: a height is sample · Scale + Offset, in Unit.
	Unit        *string  `json:"unit"`        // as written in the file, trimmed
	Scale       *float64 `json:"scale"`       // nil: not stated, so 1
	Offset      *float64 `json:"offset"`      // nil: not stated, so 0
	Compression *string  `json:"compression"` // see compressionName; nil for other formats than TIFF
	DataBytes   *int64   `json:"data_bytes"`  // the sum of the byte counts of a TIFF's first image
	PixelIs     *string  `json:"pixel_is"`    // area or point; nil where the file does not say
	COG         *bool    `json:"cog"`         // a cloud-optimized GeoTIFF; nil for other formats

	// Transform is [a b c d e f]: x = a·col + b·row + c, y = d·col + e·row + f, from the outer
	// corner.
	Transform []float64 `json:"transform"`
	// NativeBBox is [minx miny maxx maxy] of the four outer corners in the file's own CRS.
	NativeBBox    []float64 `json:"native_bbox"`
	CRS           *string   `json:"crs"`      // EPSG:n, or nil where the CRS has no code
	CRSDefinition *string   `json:"-"`        // of a CRS without a code, for crsByDefinition
	CRSName       *string   `json:"crs_name"` // the name in the file
	VerticalCRS   *string   `json:"vertical_crs"`
	// BBox is [west south east north] in degrees: west > east across 180° (RFC 7946, section 5).
	BBox []float64 `json:"bbox"`
	// BBoxAccuracyM is the largest error in metres of BBox against WGS 84.
	BBoxAccuracyM *float64 `json:"bbox_accuracy_m"`
	ResolutionM   *float64 `json:"resolution_m"` // ground size of a pixel at the centre, metres
	Source        *string  `json:"source"`       // the tag, header or sidecar that gave the extent
	Warnings      []string `json:"warnings"`     // contradictions and guesses; never nil

	// LacksCRS means that the file names no CRS. assume sets the fields after it.
	LacksCRS       bool   `json:"-"`
	SetCRS         string `json:"-"` // the CRS that was set in its place, EPSG:n, or ""
	SetVerticalCRS string `json:"-"`
	OwnWarnings    int    `json:"-"` // with SetCRS: the number of Warnings without those about it
}

// The values of extent.Status.
const (
	fileStatusOK          = "ok"          // has native_bbox and bbox
	fileStatusNoBBox      = "no_bbox"     // has native_bbox, but its CRS is missing or cannot be converted to degrees
	fileStatusNoGeoref    = "no_georef"   // a raster without extent
	fileStatusSidecar     = "sidecar"     // belongs to a raster beside it
	fileStatusUnsupported = "unsupported" // not a supported format
	fileStatusCorrupt     = "corrupt"     // breaks the rules of its format, or its data is cut off
	fileStatusUnreadable  = "unreadable"  // reading failed with an I/O error; it may be tried again
)

// Limits of what is read from one file, whatever the file says.
const (
	firstReadBytes   = 4 << 10   // the first read; mostly the only one
	laterReadBytes   = 16 << 10  // each later read at least, because tag values mostly lie close together
	maxHeaderBytes   = 256 << 10 // all reads of one file together
	maxSidecarBytes  = 16 << 10  // of a world file, .hdr, .prj or .aux.xml
	maxIFDEntries    = 4096      // far above real directories; 80 KiB in BigTIFF
	maxTIFFDimension = 1<<31 - 1 // GDAL's limit of width and height
	maxGeoKeys       = 1024
	maxGeoASCII      = 16 << 10 // also of GDAL's metadata
	maxNodataText    = 64       // bytes kept of a nodata value
	maxUnitText      = 100      // bytes kept of a unit
	maxNameText      = 200      // bytes kept of a name
)

// extentError means that a file's content gives no full extent. Other errors are I/O errors.
type extentError struct {
	status string // one of the status constants
	reason string
}

func (e *extentError) Error() string { return e.reason }

// extentErrorf returns an *extentError with that status.
func extentErrorf(status, format string, a ...any) error {
	return &extentError{status, fmt.Sprintf(format, a...)}
}

// corruptf returns an *extentError for a file that breaks the rules of its format.
func corruptf(format string, a ...any) error {
	return extentErrorf(fileStatusCorrupt, format, a...)
}

// noGeoreff returns an *extentError for a raster that does not say where it lies.
func noGeoreff(format string, a ...any) error {
	return extentErrorf(fileStatusNoGeoref, format, a...)
}

// noBBoxf returns an *extentError for an extent that cannot be converted to degrees.
func noBBoxf(format string, a ...any) error {
	return extentErrorf(fileStatusNoBBox, format, a...)
}

// statusOf returns the status that an error gives its file: for I/O errors fileStatusUnreadable.
func statusOf(err error) string {
	e, ok := errors.AsType[*extentError](err)
	if ok {
		return e.status
	}
	return fileStatusUnreadable
}

// reasonOf returns the message of err without the path that an *fs.PathError repeats.
func reasonOf(err error) string {
	e, ok := errors.AsType[*fs.PathError](err)
	if ok {
		err = e.Err
	}
	return strings.ToValidUTF8(err.Error(), "?")
}

// warnf adds a warning.
func (m *extent) warnf(format string, args ...any) {
	m.Warnings = append(m.Warnings, fmt.Sprintf(format, args...))
}

// warnOnError adds a warning if err is not nil. It must not be given I/O errors.
func (m *extent) warnOnError(err error) {
	if err != nil {
		m.warnf("%v", err)
	}
}

// besideFunc reads up to limit bytes of a regular file in the same directory. With limit 0 it only
// reports whether the file exists.
type besideFunc func(name string, limit int) (content []byte, found bool, err error)

// readExtent reads the extent of the raster in an open file of size bytes. name is the file's base
// name; beside reads its sidecars. Every error becomes a status with a reason.
func (h *headerReader) readExtent(name string, r io.ReaderAt, size int64, beside besideFunc) extent {
	*h = headerReader{
		name:   name,
		r:      r,
		size:   uint64(max(size, 0)),
		beside: beside,
		order:  binary.LittleEndian,
		crs:    h.crs,
	}

	m := extent{
		Status:   fileStatusOK,
		Warnings: []string{},
	}

	err := h.readFormat(&m)
	if m.BBox != nil {
		m.checkName(name)
	}

	if err != nil {
		m.Status = statusOf(err)
		m.Reason = new(reasonOf(err))
	}
	return m
}

// readFormat recognizes the format of the file and reads it.
func (h *headerReader) readFormat(m *extent) error {
	extension := strings.ToLower(path.Ext(h.name))

	// A sidecar is not read on its own.
	raster, err := h.rasterOfSidecar(extension)
	if err != nil {
		return err
	}
	if raster != "" {
		return extentErrorf(fileStatusSidecar, "belongs to %s beside it", cleanText([]byte(raster), maxNameText))
	}

	if h.size == 0 {
		return extentErrorf(fileStatusUnsupported, "the file is empty")
	}
	head, err := h.at(0, min(h.size, firstReadBytes), "the file")
	if err != nil {
		return err
	}

	switch string(head[:min(len(head), 4)]) {
	case "II*\x00", // classic TIFF: version 42
		"MM\x00*",
		"II+\x00", // BigTIFF: version 43
		"MM\x00+":
		return h.readGeoTIFF(head, m)
	}

	read, err := h.readGrid(extension, head, m)
	if read || err != nil {
		return err
	}
	return unsupportedFormat(extension, head, m)
}

// setSize sets Width and Height. It refuses those that GDAL refuses.
func (m *extent) setSize(width, height float64) error {
	isValid := func(v float64) bool {
		isInRange := v >= 1 && v <= maxTIFFDimension
		return isInRange && v == math.Trunc(v)
	}
	if !isValid(width) || !isValid(height) {
		return corruptf("its width or height is missing or invalid: %v by %v", width, height)
	}

	m.Width = new(int64(width))
	m.Height = new(int64(height))
	return nil
}

// readGeoTIFF reads the raster, its extent and its CRS from the first directory of a TIFF.
func (h *headerReader) readGeoTIFF(head []byte, m *extent) error {
	m.Format = new("geotiff")

	err := h.readHeader(head)
	if err != nil {
		return err
	}
	d, err := h.readDirectory(h.start)
	if err != nil {
		return err
	}

	// The raster's size and samples.
	width, err := h.number(d, tagImageWidth, 0)
	if err != nil {
		return err
	}
	height, err := h.number(d, tagImageLength, 0)
	if err != nil {
		return err
	}
	bands := h.numberOr(1, d, tagSamplesPerPixel, m)
	bits := h.numberOr(1, d, tagBitsPerSample, m)
	format := h.numberOr(1, d, tagSampleFormat, m)

	err = m.setSize(width, height)
	if err != nil {
		return err
	}
	m.setSamples(bands, bits, format)

	if !h.within(h.next, 1) {
		m.warnf("its second image, such as an overview, lies at %d, beyond the file's end at %d: it may be cut short",
			h.next,
			h.size)
	}

	nodata, err := h.text(d.field(tagGDALNoData))
	m.warnOnError(err)
	m.Nodata = nonEmpty(cleanText(nodata, maxNodataText))

	// An error about the data itself comes before one about the place.
	err = h.placeGeoTIFF(d, m)
	wrong := h.checkBlocks(d, bands, bits, m)
	if wrong != nil {
		return wrong
	}

	m.COG = new(h.isCloudOptimized(d, max(width, height)))
	return err
}

// placeGeoTIFF sets the extent and the CRS. As in GDAL, the .aux.xml beside the file comes before
// the tags, the world file and the .prj after them.
func (h *headerReader) placeGeoTIFF(d tiffDirectory, m *extent) error {
	keys, err := h.readGeoKeys(d)
	m.warnOnError(err)

	switch keys.code(keyRasterType) {
	case rasterPixelIsArea:
		m.PixelIs = new("area")
	case rasterPixelIsPoint:
		m.PixelIs = new("point")
	}

	aux, err := h.readAuxiliary()
	if err != nil {
		return err
	}

	// The first source that states a unit, or a scale, counts.
	inKeys := keys.parameters()
	m.describeHeights(h.readMetadata(d, m))
	m.describeHeights(aux.heights)
	m.describeHeights(heightTexts{UnitType: keys.heightUnit(&inKeys, &h.crs)})

	// The transform: of the .aux.xml, the tags or the world file.
	t, source, err := h.readTransform(d, m)
	switch {
	case aux.transform != nil:
		inAux := [6]float64(aux.transform)
		if err == nil {
			m.compareTransforms(inAux, t, "its .aux.xml and its tags", "the .aux.xml is used")
		}
		t = inAux
		source = "the GeoTransform in " + aux.name
		err = nil
	case err == nil:
		h.compareWorldFile(t, m)
	default:
		t, source, err = h.worldFile(err, "tfw", "tifw", "tiffw", "wld")
	}
	if err != nil {
		return err
	}

	// The CRS: of the .aux.xml, the keys or the .prj.
	crs := m.crsFromSidecar(aux.name, aux.wkt, &source)
	switch {
	case crs.present && inKeys.present:
		defer h.compareCRS(inKeys, m) // once the CRS is placed
	case inKeys.present:
		crs = inKeys
	case !crs.present:
		crs, err = h.projectionFile(m, &source)
		if err != nil {
			return err
		}
	}

	return h.place(m, t, source, crs)
}

// readTransform returns the raster's transform and the tags that give it: OGC GeoTIFF 1.1, annex
// B.6, as GDAL reads it. They are a pixel scale with a tie point, or else a matrix of 16 numbers. A
// pixel scale without a tie point rules out the matrix. If a pixel is a point, the tags give the
// position of its centre.
func (h *headerReader) readTransform(d tiffDirectory, m *extent) (t [6]float64, source string, err error) {
	scale, err := h.numbers(d.field(tagModelPixelScale))
	tie, err2 := h.numbers(d.field(tagModelTiepoint))
	matrix, err3 := h.numbers(d.field(tagModelTransformation))
	broken := cmp.Or(err, err2, err3) // fatal only if the other tags give no extent

	hasScale := len(scale) >= 2
	scaled := hasScale && scale[0] != 0 && scale[1] != 0
	hasTie := len(tie) >= 6
	hasMatrix := len(matrix) == 16 && d.field(tagModelTransformation).count == 16
	switch {
	case scaled && hasTie:
		if scale[1] < 0 { // against the standard
			m.warnf("the pixel scale in Y is negative; read as north-up, as GDAL does")
		}
		a := scale[0]
		e := -math.Abs(scale[1])
		t = [6]float64{
			a, 0, tie[3] - tie[0]*a,
			0, e, tie[4] - tie[1]*e,
		}
		source = "ModelPixelScale (33550) and ModelTiepoint (33922)"
	case !scaled && hasMatrix:
		t = [6]float64{
			matrix[0], matrix[1], matrix[3],
			matrix[4], matrix[5], matrix[7],
		}
		source = "ModelTransformation (34264)"
	case broken != nil: // no I/O error: readDirectory has read the values
		return t, "", noGeoreff("its place cannot be read: %v", broken)
	case scaled:
		return t, "", noGeoreff("it has a pixel scale (tag 33550) but no tie point (tag 33922): its place is unknown")
	case hasTie:
		return t, "", noGeoreff("it has %d ground control points (tag 33922) but no pixel scale: rectify it first, "+
			"for example with gdalwarp", d.field(tagModelTiepoint).count/6)
	default:
		return t, "", noGeoreff("the TIFF has no georeferencing tags (33550 and 33922, or 34264), " +
			"and no world file lies beside it")
	}

	if m.PixelIs != nil && *m.PixelIs == "point" {
		t = shiftHalfPixel(t)
	}
	m.warnOnError(broken)
	return t, source, nil
}

// shiftHalfPixel moves a transform's origin from the first pixel's centre to its outer corner.
func shiftHalfPixel(t [6]float64) [6]float64 {
	t[2] -= t[0]*0.5 + t[1]*0.5
	t[5] -= t[3]*0.5 + t[4]*0.5
	return t
}

// place sets Transform, NativeBBox, Source and what follows from the CRS. An error about the CRS
// has the status no_bbox.
func (h *headerReader) place(m *extent, t [6]float64, source string, p crsParameters) error {
	// The range of the corners in the file's own CRS.
	width := float64(*m.Width)
	height := float64(*m.Height)
	corners := [4][2]float64{
		{0, 0},
		{width, 0},
		{0, height},
		{width, height},
	}
	native := emptyRange()
	for _, corner := range corners {
		x, y := applyTransform(t, corner[0], corner[1])
		if !isFinite(x) || !isFinite(y) {
			return corruptf("%s holds numbers that are not finite", source)
		}
		native.add(position{x, y})
	}

	hasArea := native.east > native.west && native.north > native.south
	isSingular := t[0]*t[4] == t[1]*t[3]
	if !hasArea || isSingular {
		return corruptf("%s gives the raster no area", source)
	}

	m.Transform = t[:]
	m.Source = &source
	m.NativeBBox = []float64{
		native.west,
		native.south,
		native.east,
		native.north,
	}

	return m.locate(p, &h.crs)
}

// directions reports whether the columns of a raster are counted from the east, and its rows from
// the south. Most are counted from the west and from the north, as is a raster without a place.
func (m *extent) directions() (isFromEast, isFromSouth bool) {
	if len(m.Transform) != 6 {
		return false, false
	}
	return m.Transform[0] < 0, m.Transform[4] > 0
}

// locate sets what follows from the CRS of a raster that has a transform. Errors have the status
// no_bbox.
func (m *extent) locate(p crsParameters, l *lastCRS) error {
	t := [6]float64(m.Transform)
	width := float64(*m.Width)
	height := float64(*m.Height)

	crs, err := p.definition(m, l)
	if err != nil {
		return err
	}
	box, err := boxInDegrees(&crs, t, width, height)
	if err != nil {
		name := "its CRS"
		if m.CRS != nil {
			name = *m.CRS
		}
		return noBBoxf("x from %.9g to %.9g and y from %.9g to %.9g cannot be converted from %s to degrees: %v",
			m.NativeBBox[0], m.NativeBBox[2], m.NativeBBox[1], m.NativeBBox[3], name, err)
	}

	m.BBox = box.bounds[:]
	m.BBoxAccuracyM = &box.accuracyM
	if m.CRS == nil {
		m.CRSDefinition = new(crs.text())
	}

	m.Warnings = append(m.Warnings, box.warnings...)
	m.checkArea(crs.area)

	resolution, err := pixelSizeMetres(crs.projection, t, width/2, height/2)
	if err == nil {
		m.ResolutionM = &resolution
	}
	return nil
}

// aboutArea begins the warning about a raster outside the area of use of its CRS.
const aboutArea = "it lies outside the area of use of its CRS"

// checkArea warns if the box is more than a degree away from the area of use of its CRS.
func (m *extent) checkArea(area []float64) {
	if area == nil {
		return
	}

	const margin = 1 // degree

	box := m.BBox
	reachesSouthEnd := box[3] >= area[1]-margin
	reachesNorthEnd := box[1] <= area[3]+margin
	meetsLatitudes := reachesSouthEnd && reachesNorthEnd

	// Two ranges of longitudes meet if one holds the west end of the other.
	west := area[0] - margin
	width := widthOf(area) + 2*margin
	beginsInside := math.Mod(box[0]-west+720, 360) <= width
	holdsWest := math.Mod(west-box[0]+720, 360) <= widthOf(box)
	meetsLongitudes := beginsInside || holdsWest

	if !meetsLatitudes || !meetsLongitudes {
		m.warnf("%s, which reaches from %g°, %g° to %g°, %g°",
			aboutArea,
			area[0],
			area[1],
			area[2],
			area[3])
	}
}

// widthOf returns the width of a box in degrees, which may cross 180°.
func widthOf(box []float64) float64 {
	west := box[0]
	east := box[2]
	if east < west {
		return east - west + 360
	}
	return east - west
}

// headerReader reads the headers of files, one after the other. Every offset and length that a file
// states goes through at. It is not safe for concurrent use.
type headerReader struct {
	name    string // of the file, without directory
	r       io.ReaderAt
	size    uint64
	beside  besideFunc
	order   binary.ByteOrder // of the TIFF
	windows []headerWindow   // the pieces read so far, a handful
	read    uint64           // the bytes in windows
	big     bool             // whether it is a BigTIFF
	start   uint64           // offset of the TIFF's first directory
	next    uint64           // offset of the directory after the last one read; 0 where there is none
	budget  *decodeBudget    // of the samples
	crs     lastCRS          // kept from file to file
}

// headerWindow is a piece of the file in memory.
type headerWindow struct {
	offset uint64
	data   []byte
}

// within reports whether a range of bytes lies inside the file. It cannot overflow.
func (h *headerReader) within(offset, length uint64) bool {
	return offset <= h.size && length <= h.size-offset
}

// at returns length bytes at offset, from memory if they were read before. Otherwise it reads
// firstReadBytes or laterReadBytes at least: bytes after the range, and before it where the file
// ends.
//
// The error is an *extentError if the range lies beyond the file's end or exceeds maxHeaderBytes;
// what names the range in it.
func (h *headerReader) at(offset, length uint64, what string) ([]byte, error) {
	if !h.within(offset, length) {
		return nil, corruptf("%s: %d bytes at %d lie beyond the end of the file at %d: it may be cut short",
			what,
			length,
			offset,
			h.size)
	}

	// Bytes that were read before are not read again.
	for _, w := range h.windows {
		start := offset - w.offset
		n := uint64(len(w.data))
		isInside := offset >= w.offset && start <= n && length <= n-start
		if isInside {
			return w.data[start : start+length : start+length], nil
		}
	}

	// Read some more, because what comes next mostly lies close by.
	least := uint64(firstReadBytes)
	if len(h.windows) > 0 {
		least = laterReadBytes
	}
	end := min(h.size, offset+max(length, least))
	start := min(offset, end-min(end, least))

	// The limit counts all reads of the file.
	if end-start > maxHeaderBytes-h.read {
		return nil, corruptf("its header refers to more than %d KiB, which no raster needs", maxHeaderBytes>>10)
	}

	h.read += end - start

	data := make([]byte, end-start)
	n, err := h.r.ReadAt(data, int64(start))
	if n < len(data) { // otherwise err may be io.EOF
		isEnd := err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if !isEnd {
			return nil, fmt.Errorf("read at %d: %w", start, err)
		}
		return nil, corruptf("the file ends at %d, short of its size of %d: it may still be written",
			start+uint64(max(n, 0)),
			h.size)
	}

	h.windows = append(h.windows, headerWindow{
		offset: start,
		data:   data,
	})
	at := offset - start
	return data[at:][:length:length], nil
}

// unsigned returns the unsigned integer in 1, 2, 4 or 8 bytes.
func (h *headerReader) unsigned(b []byte) uint64 {
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

// Tags.
const (
	// TIFF 6.0 (Adobe, 1992), sections 8, 14, 15, 18 and 19.
	tagNewSubfileType      = 254
	tagImageWidth          = 256
	tagImageLength         = 257
	tagBitsPerSample       = 258
	tagSamplesPerPixel     = 277
	tagSampleFormat        = 339
	tagCompression         = 259
	tagPhotometric         = 262
	tagFillOrder           = 266
	tagPlanarConfiguration = 284
	tagStripOffsets        = 273
	tagRowsPerStrip        = 278
	tagStripByteCounts     = 279
	tagPredictor           = 317
	tagTileWidth           = 322
	tagTileLength          = 323
	tagTileOffsets         = 324
	tagTileByteCounts      = 325

	// OGC GeoTIFF 1.1, section 7.
	tagModelPixelScale     = 33550
	tagModelTiepoint       = 33922
	tagModelTransformation = 34264
	tagGeoKeyDirectory     = 34735
	tagGeoDoubleParams     = 34736
	tagGeoASCIIParams      = 34737

	// GDAL.
	tagGDALMetadata = 42112
	tagGDALNoData   = 42113
)

// Field types.
const (
	// TIFF 6.0, section 2.
	typeByte      = 1
	typeASCII     = 2
	typeShort     = 3
	typeLong      = 4
	typeRational  = 5
	typeSByte     = 6
	typeUndefined = 7
	typeSShort    = 8
	typeSLong     = 9
	typeSRational = 10
	typeFloat     = 11
	typeDouble    = 12

	// TIFF Technical Note 1.
	typeIFD = 13

	// BigTIFF.
	typeLong8  = 16
	typeSLong8 = 17
	typeIFD8   = 18
)

// tiffField is an entry of an image file directory. Its values lie at offset, perhaps in the entry.
type tiffField struct {
	tag       uint16
	fieldType uint16
	count     uint64 // of values
	offset    uint64 // in the file
}

// tiffDirectory holds the fields of the first image file directory that are read. Of fields with
// the same tag it holds the first, as libtiff does.
type tiffDirectory []tiffField

// field returns the field of a tag; where it is absent, one without values.
func (d tiffDirectory) field(tag uint16) tiffField {
	for _, f := range d {
		if f.tag == tag {
			return f
		}
	}

	return tiffField{}
}

// maxValues returns how many values of a tag are read at most, 0 for a tag that is not read.
func maxValues(tag uint16) uint64 {
	switch tag {
	case tagNewSubfileType,
		tagImageWidth,
		tagImageLength,
		tagBitsPerSample,
		tagSamplesPerPixel,
		tagSampleFormat,
		tagCompression,
		tagPhotometric,
		tagFillOrder,
		tagPredictor,
		tagPlanarConfiguration,
		tagRowsPerStrip,
		tagTileWidth,
		tagTileLength:
		return 1
	case tagStripOffsets,
		tagStripByteCounts,
		tagTileOffsets,
		tagTileByteCounts:
		return maxTableChunk
	case tagModelPixelScale,
		tagModelTiepoint,
		tagModelTransformation:
		return 16
	case tagGeoKeyDirectory:
		return 4 + 4*maxGeoKeys
	case tagGeoDoubleParams:
		return maxGeoKeys
	case tagGeoASCIIParams,
		tagGDALMetadata:
		return maxGeoASCII
	case tagGDALNoData:
		return maxNodataText
	}

	return 0
}

// fieldTypeSize returns the size of a value in bytes, 0 for an unknown field type.
func fieldTypeSize(fieldType uint16) uint64 {
	sizes := [...]uint64{
		typeByte:      1,
		typeASCII:     1,
		typeSByte:     1,
		typeUndefined: 1,
		typeShort:     2,
		typeSShort:    2,
		typeLong:      4,
		typeSLong:     4,
		typeFloat:     4,
		typeIFD:       4,
		typeRational:  8,
		typeSRational: 8,
		typeDouble:    8,
		typeLong8:     8,
		typeSLong8:    8,
		typeIFD8:      8,
	}

	if int(fieldType) < len(sizes) {
		return sizes[fieldType]
	}
	return 0
}

// readHeader reads the header of a TIFF: its byte order, whether it is a BigTIFF, and where its
// first directory lies.
func (h *headerReader) readHeader(head []byte) error {
	const bigTIFF = 43

	if head[0] == 'M' {
		h.order = binary.BigEndian
	}

	headerSize := 8
	h.big = h.order.Uint16(head[2:]) == bigTIFF
	if h.big {
		headerSize = 16
	}
	if len(head) < headerSize {
		return corruptf("the TIFF header is cut short: the file has %d bytes", len(head))
	}

	if !h.big {
		h.start = h.unsigned(head[4:8])
		return nil
	}
	bytesOfOffset := h.order.Uint16(head[4:])
	alwaysZero := h.order.Uint16(head[6:])
	if bytesOfOffset != 8 || alwaysZero != 0 {
		return corruptf("the BigTIFF header is invalid: its offsets do not have 8 bytes")
	}
	h.start = h.unsigned(head[8:16])
	return nil
}

// readDirectory reads an image file directory, brings the values of its fields into memory, and
// sets h.next. Directories after the first (overviews, masks, pages) say nothing about the extent.
func (h *headerReader) readDirectory(start uint64) (tiffDirectory, error) {
	// Classic TIFF counts entries of 12 bytes with a SHORT, BigTIFF entries of 20 with a LONG8.
	countSize := uint64(2)
	entrySize := uint64(12)
	offsetSize := uint64(4)
	if h.big {
		countSize = 8
		entrySize = 20
		offsetSize = 8
	}

	b, err := h.at(start, countSize, "the TIFF directory")
	if err != nil {
		return nil, err
	}

	entries := h.unsigned(b)
	if entries == 0 || entries > maxIFDEntries {
		return nil, corruptf("the TIFF directory at %d claims %d entries", start, entries)
	}

	// libtiff takes a missing offset of the next directory for 0.
	length := entries * entrySize
	if h.within(start+countSize, length+offsetSize) {
		length += offsetSize
	}
	b, err = h.at(start+countSize, length, "the TIFF directory")
	if err != nil {
		return nil, err
	}

	rest := b[entries*entrySize:]
	h.next = 0
	if len(rest) > 0 {
		h.next = h.unsigned(rest)
	}

	directory := h.parseEntries(b[:entries*entrySize], start+countSize, offsetSize)

	// Reading from front to back takes the fewest reads.
	byOffset := func(a, b tiffField) int { return cmp.Compare(a.offset, b.offset) }
	slices.SortFunc(directory, byOffset)

	// Errors of a tag are reported by the code that needs it.
	for _, f := range directory {
		_, err := h.bytes(f)
		if err != nil && statusOf(err) == fileStatusUnreadable {
			return nil, err
		}
	}
	return directory, nil
}

// parseEntries returns the fields in the entries of a directory, which lie at an offset in the
// file. Counts and offsets have offsetSize bytes.
func (h *headerReader) parseEntries(b []byte, at, offsetSize uint64) (directory tiffDirectory) {
	valueAt := 4 + offsetSize
	entrySize := valueAt + offsetSize

	for len(b) > 0 {
		f := tiffField{
			tag:       h.order.Uint16(b),
			fieldType: h.order.Uint16(b[2:]),
			count:     h.unsigned(b[4:valueAt]),
			offset:    h.unsigned(b[valueAt:entrySize]),
		}

		// Values that fit into the entry lie there.
		size := fieldTypeSize(f.fieldType)
		if size > 0 && f.count <= offsetSize/size {
			f.offset = at + valueAt
		}

		isNew := directory.field(f.tag).tag == 0
		if isNew && maxValues(f.tag) > 0 {
			directory = append(directory, f)
		}

		at += entrySize
		b = b[entrySize:]
	}

	return directory
}

// bytes returns a field's values, up to maxValues. All must lie in the file, as libtiff demands.
func (h *headerReader) bytes(f tiffField) ([]byte, error) {
	if f.count == 0 {
		return nil, nil
	}

	size := fieldTypeSize(f.fieldType)
	if size == 0 {
		return nil, corruptf("TIFF tag %d has the unknown field type %d", f.tag, f.fieldType)
	}

	fits := f.count <= h.size/size
	if !fits || !h.within(f.offset, f.count*size) {
		return nil, corruptf("TIFF tag %d points to %d values at %d, beyond the file's end at %d: it may be cut short",
			f.tag,
			f.count,
			f.offset,
			h.size)
	}

	count := min(f.count, maxValues(f.tag))
	return h.at(f.offset, count*size, "TIFF tag values")
}

// numbers returns a numeric field's values, up to maxValues. Valid ones are exact in a float64.
func (h *headerReader) numbers(f tiffField) ([]float64, error) {
	b, err := h.bytes(f)
	if err != nil {
		return nil, err
	}

	size := int(fieldTypeSize(f.fieldType))
	values := make([]float64, 0, len(b)/max(size, 1))
	for len(b) > 0 {
		var v float64
		switch f.fieldType {
		case typeByte,
			typeShort,
			typeLong,
			typeLong8:
			v = float64(h.unsigned(b[:size]))
		case typeSByte,
			typeSShort,
			typeSLong,
			typeSLong8:
			unused := 64 - 8*size
			bits := h.unsigned(b[:size]) << unused
			v = float64(int64(bits) >> unused) // in two's complement
		case typeRational:
			numerator := h.unsigned(b[:4])
			denominator := h.unsigned(b[4:8])
			v = float64(numerator) / float64(denominator)
		case typeFloat:
			bits := h.order.Uint32(b)
			v = float64(math.Float32frombits(bits))
		case typeDouble:
			v = math.Float64frombits(h.order.Uint64(b))
		default:
			return nil, corruptf("TIFF tag %d has field type %d, which is not a number", f.tag, f.fieldType)
		}
		values = append(values, v)
		b = b[size:]
	}

	return values, nil
}

// number returns the first value of a numeric tag, absent where the file does not have the tag.
func (h *headerReader) number(d tiffDirectory, tag uint16, absent float64) (float64, error) {
	v, err := h.numbers(d.field(tag))
	if err != nil {
		return 0, err
	}
	if len(v) == 0 {
		return absent, nil
	}
	return v[0], nil
}

// numberOr is number that warns of an error and then returns 0.
func (h *headerReader) numberOr(absent float64, d tiffDirectory, tag uint16, m *extent) float64 {
	v, err := h.number(d, tag, absent)
	m.warnOnError(err)
	return v
}

// text returns a text field's characters, up to maxValues.
func (h *headerReader) text(f tiffField) ([]byte, error) {
	if f.count > 0 && fieldTypeSize(f.fieldType) != 1 {
		return nil, corruptf("TIFF tag %d has field type %d, which is not text", f.tag, f.fieldType)
	}
	return h.bytes(f)
}

// nonEmpty returns a pointer to s, nil where s is empty.
func nonEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
