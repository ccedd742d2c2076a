package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// readGrid reads a file of the formats other than TIFF, known by their extensions or first bytes.
// read is false for a file of any other format.
func (h *headerReader) readGrid(extension string, head []byte, m *extent) (read bool, err error) {
	switch extension {
	case ".hdr": // it may begin like an ASCII grid
		return false, nil
	case ".hgt", ".zip", ".gz":
		read, err = h.readHGT(extension, m)
	case ".bil", ".bip", ".bsq", ".flt", ".dem":
		read, err = h.readEHdr(extension, m)
	}
	if read || err != nil {
		return read, err
	}

	if at := uhlRecord(head); at >= 0 {
		return true, h.readDTED(at, m)
	}

	// An Esri ASCII grid begins with one of its keys and a number.
	keys := []string{
		"ncols",
		"nrows",
		"xllcorner",
		"yllcorner",
		"xllcenter",
		"yllcenter",
		"cellsize",
		"dx",
		"dy",
	}
	beginning := string(head[:min(len(head), 64)])
	fields := strings.Fields(strings.ToLower(beginning) + " ? ?") // two fields at least
	key := strings.TrimPrefix(fields[0], "\ufeff")                // a byte order mark
	_, isNumber := parseNumber(fields[1])

	g := parseGridHeader(head)
	beginsWithKey := isNumber && slices.Contains(keys, key)
	if !beginsWithKey || g["ncols"] == "" {
		return false, nil
	}

	m.Format = new("asc")
	m.Bands = new(int64(1))
	err = h.placeGrid(g, "the header of the ASCII grid", m)
	if m.Width == nil {
		return true, err
	}

	// An error about the samples comes before one about the place.
	columns := float64(*m.Width)
	rows := float64(*m.Height)
	if cut := h.checkASCII(head, columns, rows); cut != nil {
		return true, cut
	}
	return true, err
}

// readHGT reads an SRTM tile (NASA, SRTM Topography, 2015). It has samples without a header. Its
// name and size give its place: the outer samples lie on whole degrees. A ZIP archive or a gzip
// file states the size of its tile. read is false for a file without a tile.
func (h *headerReader) readHGT(extension string, m *extent) (read bool, err error) {
	name := h.name
	size := h.size
	switch extension {
	case ".zip":
		name, size, err = h.zippedHGT()
		if err != nil {
			m.Format = new("zip")
		}
		if name == "" {
			return false, err
		}
	case ".gz":
		const smallestGzip = 18 // bytes of header and trailer

		name = name[:len(name)-len(extension)]
		isHGT := strings.EqualFold(path.Ext(name), ".hgt")
		if !isHGT || h.size < smallestGzip {
			return false, nil
		}

		// RFC 1952, section 2.3.1: ISIZE.
		b, err := h.at(h.size-4, 4, "the size that gzip states")
		if err != nil {
			return true, err
		}
		size = uint64(binary.LittleEndian.Uint32(b))
	}

	m.setHeights("hgt", "-32768")

	shapes := [][2]uint64{
		{1201, 1201}, // SRTM3
		{3601, 3601}, // SRTM1
		{1801, 3601}, // SRTM1 beyond 50 degrees
		{7201, 7201},
	}
	hasSize := func(shape [2]uint64) bool {
		samples := shape[0] * shape[1]
		return size == 2*samples
	}
	i := slices.IndexFunc(shapes, hasSize)
	if i < 0 {
		return true, corruptf("no HGT file has %d bytes: "+
			"it holds 1201², 3601², 1801 × 3601 or 7201² samples of 2 bytes", size)
	}

	columns := float64(shapes[i][0])
	rows := float64(shapes[i][1])
	m.setSize(columns, rows)

	lat, lon, ok := cellOfName(name)
	if !ok || lat == 90 { // its tile would lie beyond the pole
		return true, noGeoreff("only the name of an HGT file gives its place, such as N45E007.hgt")
	}

	upper := strings.ToUpper(name)
	isWithin50 := lat > -51 && lat < 50
	isNarrow := columns == 1801 && isWithin50 // SRTM has this shape beyond 50 degrees only
	isNot1 := strings.Contains(upper, "SRTMGL1") && rows != 3601
	isNot3 := strings.Contains(upper, "SRTMGL3") && rows != 1201
	if isNarrow || isNot1 || isNot3 {
		m.warnf("its size of %v by %v samples contradicts its name %s",
			columns,
			rows,
			cleanText([]byte(name), maxNameText))
	}

	dx := 1 / (columns - 1)
	dy := 1 / (rows - 1)
	t := [6]float64{
		dx, 0, lon - dx/2,
		0, -dy, lat + 1 + dy/2,
	}

	crs := geographicCRS(epsgWGS84)
	return true, h.place(m, t, "the name and the size of the HGT file", crs)
}

// setHeights sets the fields of a format that only has heights at points, in metres and 16 bits.
func (m *extent) setHeights(format, nodata string) {
	m.Format = &format
	m.Nodata = &nodata
	m.Bands = new(int64(1))
	m.PixelIs = new("point")
	m.SampleType = new("int16")
	m.Unit = new("m")
}

// zippedHGT returns the name and size of the only .hgt file in a ZIP archive from its central
// directory: PKWARE APPNOTE 6.3, sections 4.3.12 and 4.3.16. name is "" where there is none, or
// where the directory is not near the end of the file. It is an error if there are several, or if
// the archive is cut off.
func (h *headerReader) zippedHGT() (name string, size uint64, err error) {
	const (
		entrySignature = "PK\x01\x02"
		endSignature   = "PK\x05\x06"
		endSize        = 22       // bytes of the end record at least
		entrySize      = 46       // bytes of an entry before its name
		tailBytes      = 66 << 10 // where the directory must lie; a comment has at most 64 KiB
	)

	// The end record is the last thing in the file but for a comment.
	length := min(h.size, tailBytes)
	tail, err := h.at(h.size-length, length, "the end of the ZIP archive")
	if err != nil {
		return "", 0, err
	}
	end := bytes.LastIndex(tail, []byte(endSignature))
	if end < 0 || len(tail)-end < endSize {
		if strings.HasSuffix(strings.ToLower(h.name), ".hgt.zip") {
			err = corruptf("its data is cut off: a ZIP archive ends with its directory, which is missing")
		}
		return "", 0, err
	}

	// The directory ends where its end record begins. A longer one may list a second tile.
	directorySize := int(binary.LittleEndian.Uint32(tail[end+12:]))
	if directorySize > end {
		return "", 0, nil
	}
	directory := tail[end-directorySize : end]

	for len(directory) >= entrySize && string(directory[:4]) == entrySignature {
		field := func(at int) int {
			return int(binary.LittleEndian.Uint16(directory[at:]))
		}

		// Name, extra field and comment follow the entry.
		nameEnd := entrySize + field(28)
		entryEnd := nameEnd + field(30) + field(32)
		if entryEnd > len(directory) {
			break
		}

		entry := path.Base(string(directory[entrySize:nameEnd]))
		isHGT := strings.EqualFold(path.Ext(entry), ".hgt")
		if isHGT && name != "" {
			return "", 0, extentErrorf(fileStatusUnsupported,
				"the ZIP archive holds several .hgt files: unpack it first")
		}
		if isHGT {
			name = entry
			size = uint64(binary.LittleEndian.Uint32(directory[24:]))
		}
		directory = directory[entryEnd:]
	}
	return name, size, nil
}

// uhlRecord returns the offset of a DTED file's User Header Label, which may follow volume and
// header labels; -1 where there is none.
func uhlRecord(head []byte) int {
	const labelSize = 80

	for at := 0; at+labelSize <= len(head); at += labelSize {
		label := strings.ToUpper(string(head[at : at+3]))
		if label == "UHL" {
			return at
		}
		if label != "VOL" && label != "HDR" {
			break
		}
	}
	return -1
}

// readDTED reads a DTED file (MIL-PRF-89020B, section 3.11): the records UHL, DSI and ACC, then
// columns of samples from the south-west. The box reaches half a sample beyond the samples.
func (h *headerReader) readDTED(at int, m *extent) error {
	const (
		uhlSize = 80
		dsiSize = 648
		accSize = 2700
	)

	m.setHeights("dted", "-32767")
	b, err := h.at(uint64(at), uhlSize+dsiSize+3, "the header of the DTED file")
	if err != nil {
		return err
	}

	uhl := b[:uhlSize]
	dsi := b[uhlSize : uhlSize+dsiSize]
	hasDSI := string(dsi[:3]) == "DSI"
	hasACC := string(b[uhlSize+dsiSize:]) == "ACC"
	if !hasDSI || !hasACC {
		return corruptf("the DTED header has no DSI or no ACC record")
	}

	label, err := parseUHL(uhl)
	if err != nil {
		return err
	}
	if err := m.setSize(label.columns, label.rows); err != nil {
		return err
	}

	// The DSI names the datums.
	p := geographicCRS(epsgWGS84)
	horizontal := cleanText(dsi[144:149], 5)
	if horizontal == "WGS72" {
		p.code = epsgWGS72
	}
	if horizontal != "WGS72" && horizontal != "WGS84" {
		m.warnf("its horizontal datum is %q; read as WGS 84, as GDAL does", horizontal)
	}
	vertical := string(dsi[141:144])
	if vertical == "E96" {
		p.vertical = epsgEGM96
	}

	north := label.lat - label.dy/2 + label.rows*label.dy
	t := [6]float64{
		label.dx, 0, label.lon - label.dx/2,
		0, -label.dy, north,
	}
	err = h.place(m, t, "the User Header Label (UHL) of the DTED file", p)

	// Each column has 12 bytes beside its samples.
	start := float64(at + uhlSize + dsiSize + accSize)
	length := label.columns * (12 + 2*label.rows)
	if cut := h.checkLength(start, length); cut != nil {
		return cut
	}
	return err
}

// dtedLabel is what the User Header Label of a DTED file says of its samples.
type dtedLabel struct {
	lon     float64 // of the sample in the south-west, degrees
	lat     float64
	dx      float64 // interval between samples, degrees
	dy      float64
	columns float64
	rows    float64
}

// parseUHL reads a User Header Label: MIL-PRF-89020B, section 3.11.
func parseUHL(uhl []byte) (label dtedLabel, err error) {
	// number and angle read fields. Offsets count from 1, as in the standard.
	invalid := false
	number := func(from, length int) float64 {
		text := string(uhl[from-1 : from-1+length])
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 0 {
			invalid = true
		}
		return float64(n)
	}
	angle := func(from int) (float64, byte) { // DDDMMSSH
		degrees := number(from, 3)
		minutes := number(from+3, 2)
		seconds := number(from+5, 2)
		hemisphere := uhl[from+6]
		v := degrees + minutes/60 + seconds/3600
		if hemisphere == 'W' || hemisphere == 'S' {
			v = -v
		}
		return v, hemisphere
	}

	lon, first := angle(5)
	lat, _ := angle(13)

	// Before Amendment 1 of MIL-D-89020 the two were swapped.
	isSwapped := first == 'N' || first == 'S'
	if isSwapped {
		lon, lat = lat, lon
	}

	const tenthsOfSeconds = 36000 // in a degree
	label = dtedLabel{
		lon:     lon,
		lat:     lat,
		dx:      number(21, 4) / tenthsOfSeconds,
		dy:      number(25, 4) / tenthsOfSeconds,
		columns: number(48, 4),
		rows:    number(52, 4),
	}
	if invalid {
		return label, corruptf("the User Header Label of the DTED file has fields that are not numbers")
	}
	return label, nil
}

// gridHeader is the header of an Esri grid: keys in lower case, each with its first value.
type gridHeader map[string]string

// parseGridHeader reads lines of keys and values. It takes samples for keys too; that is harmless.
func parseGridHeader(text []byte) gridHeader {
	isLineBreak := func(r rune) bool { return r == '\n' || r == '\r' }
	lines := strings.TrimPrefix(string(text), "\ufeff") // a byte order mark

	header := gridHeader{}
	for line := range strings.FieldsFuncSeq(lines, isLineBreak) {
		fields := strings.Fields(line)
		for i := 0; i+1 < len(fields); i += 2 {
			key := strings.ToLower(fields[i])
			if header[key] == "" {
				header[key] = fields[i+1]
			}
		}
	}

	return header
}

// number returns the value of the first of these keys that has a number, NaN where none has.
func (g gridHeader) number(keys ...string) float64 {
	for _, key := range keys {
		v, ok := parseNumber(g[key])
		if ok {
			return v
		}
	}
	return math.NaN()
}

// placeGrid sets size, extent and CRS of an Esri grid. A cell is cellsize or dx, dy or xdim, ydim.
func (h *headerReader) placeGrid(g gridHeader, source string, m *extent) error {
	columns := g.number("ncols")
	rows := g.number("nrows")
	if err := m.setSize(columns, rows); err != nil {
		return err
	}

	nodata := cmp.Or(g["nodata_value"], g["nodata"])
	m.Nodata = nonEmpty(cleanText([]byte(nodata), maxNodataText))

	// x and y are the lower left corner; the file may give a pixel's centre instead.
	dx := g.number("cellsize", "dx", "xdim")
	dy := g.number("cellsize", "dy", "ydim")
	height := dy * rows
	x := g.number("xllcorner")
	y := g.number("yllcorner")
	m.PixelIs = new("area")
	if math.IsNaN(x) {
		x = g.number("xllcenter", "xllcentre") - dx/2
		m.PixelIs = new("point")
	}
	if math.IsNaN(y) {
		y = g.number("yllcenter", "yllcentre") - dy/2
	}

	// The centre of the north-west pixel.
	ulx := g.number("ulxmap")
	uly := g.number("ulymap")
	if isFinite(ulx + uly) {
		x = ulx - dx/2
		y = uly + dy/2 - height
		m.PixelIs = new("area")
	}

	t := [6]float64{
		dx, 0, x,
		0, -dy, y + height,
	}
	placed := isFinite(x + y + dx + dy)

	crs, err := h.projectionFile(m, &source)
	if err != nil {
		return err
	}
	isGeographic := strings.EqualFold(g["projection"], "geographic")
	saysWGS84 := isGeographic && strings.EqualFold(g["datum"], "wgs84")
	if !crs.present && saysWGS84 {
		crs = geographicCRS(epsgWGS84)
	}

	// The .aux.xml is looked for only if something is missing.
	if !placed || !crs.present {
		aux, err := h.readAuxiliary()
		if err != nil {
			return err
		}
		m.describeHeights(aux.heights)

		if !placed && aux.transform != nil {
			t = [6]float64(aux.transform)
			source = "the GeoTransform in " + aux.name
			placed = true
			m.PixelIs = new("area")
		}
		if !crs.present {
			crs = m.crsFromSidecar(aux.name, aux.wkt, &source)
		}
	}

	if !placed {
		m.PixelIs = nil
		return noGeoreff("its header lacks its place (a corner or a centre) or the size of a cell")
	}
	return h.place(m, t, source, crs)
}

// readEHdr reads Esri's BIL, BIP, BSQ or floating-point grid by its .hdr. read is false without a
// .hdr.
func (h *headerReader) readEHdr(extension string, m *extent) (read bool, err error) {
	content, name, err := h.sidecar(maxSidecarBytes, "hdr")
	if err != nil {
		return false, err
	}
	g := parseGridHeader(content)
	if g["ncols"] == "" || g["nrows"] == "" {
		return false, nil
	}

	// The samples, by the extension and the header.
	m.Format = new("ehdr")
	bands, bits, format := g.samples(extension)
	m.setSamples(bands, bits, format)
	source := "the header " + cleanText([]byte(name), maxNameText)
	err = h.placeGrid(g, source, m)
	if m.Width == nil {
		return true, err
	}

	// Rows may have padding, but the last one needs none.
	start := g.number("skipbytes")
	if !(start > 0) {
		start = 0
	}
	samples := float64(*m.Width) * float64(*m.Height) * bands
	length := math.Ceil(samples * bits / 8)
	if cut := h.checkLength(start, length); cut != nil {
		return true, cut
	}
	return true, err
}

// samples returns the number of bands, and the bits and the format of a sample, as the extension
// and the .hdr of an Esri raster state them.
func (g gridHeader) samples(extension string) (bands, bits, format float64) {
	bands = 1
	bits = 8
	format = sampleFormatUint
	if extension == ".flt" {
		bits = 32
		format = sampleFormatFloat
	}

	if n := g.number("nbands"); n > 0 {
		bands = n
	}
	if n := g.number("nbits"); n > 0 {
		bits = n
	}

	// Without a type, a negative nodata value means that samples have signs.
	pixelType := strings.ToLower(g["pixeltype"])
	hasNoType := pixelType == "" && format == sampleFormatUint
	hasNegativeNodata := hasNoType && g.number("nodata") < 0
	switch {
	case strings.HasPrefix(pixelType, "f"):
		format = sampleFormatFloat
	case strings.HasPrefix(pixelType, "s"), hasNegativeNodata:
		format = sampleFormatInt
	}
	return bands, bits, format
}

// cellOfName returns the cell in a file name such as N43W080, s01e179 or N43_00_W080_00.
func cellOfName(name string) (lat, lon float64, ok bool) {
	for i := range name {
		// A latitude such as N43, not in the middle of a word.
		rest := name[i:]
		if len(rest) < len("N43W080") || !strings.Contains("NSns", rest[:1]) {
			continue
		}
		if i > 0 && unicode.IsLetter(rune(name[i-1])) {
			continue
		}
		latitude := rest[:3]
		rest = rest[3:]

		rest = strings.TrimPrefix(rest, "_00")
		rest = strings.TrimPrefix(rest, "_")

		// A longitude such as W080.
		if len(rest) < len("W080") || !strings.Contains("EWew", rest[:1]) {
			continue
		}
		longitude := rest[:4]

		y, err := strconv.ParseUint(latitude[1:], 10, 8)
		if err != nil || y > 90 {
			continue
		}
		x, err := strconv.ParseUint(longitude[1:], 10, 8)
		if err != nil || x > 180 {
			continue
		}

		const lowerCase = 0x20 // the bit that makes a letter small
		lat = float64(y)
		lon = float64(x)
		if latitude[0]|lowerCase == 's' {
			lat = -lat
		}
		if longitude[0]|lowerCase == 'w' {
			lon = -lon
		}
		return lat, lon, true
	}

	return 0, 0, false
}

// aboutName begins the warning about a name that contradicts the place.
const aboutName = "its name says"

// checkName warns if the degree cell in the file's name does not fit its box. Most series name the
// south-west corner of a cell. Others name another corner, so the box must at least touch the named
// one.
func (m *extent) checkName(name string) {
	lat, lon, ok := cellOfName(name)
	if !ok {
		return
	}

	const margin = 0.02 // degrees, for an overlap of some pixels

	west := m.BBox[0]
	south := m.BBox[1]
	north := m.BBox[3]
	width := math.Mod(m.BBox[2]-west+360, 360) // 0 for a full turn

	// From the named corner, in degrees.
	cell := [2]float64{margin, 1 - margin}
	corner := [2]float64{-margin, margin}
	for _, part := range [...][2]float64{cell, corner} {
		size := part[1] - part[0]
		from := math.Mod(lon+part[0]-west+720, 360)

		isFullTurn := width == 0
		beginsInside := from <= width
		holdsWest := from+size >= 360
		meetsLongitudes := isFullTurn || beginsInside || holdsWest

		beginsBelow := lat+part[0] <= north
		endsAbove := lat+part[1] >= south
		meetsLatitudes := beginsBelow && endsAbove
		if meetsLongitudes && meetsLatitudes {
			return
		}
	}

	m.warnf(aboutName+" latitude %v, longitude %v, but its box lies elsewhere", lat, lon)
}

// unsupportedFormat returns the error for a file of another format, named by its first bytes.
func unsupportedFormat(extension string, head []byte, m *extent) error {
	seems := "of an unknown format"
	ending := ", which is not supported"
	isControl := func(b byte) bool {
		isInText := strings.ContainsRune("\t\n\r\f", rune(b))
		return b < ' ' && !isInText
	}
	beginning := head[:min(len(head), 512)]
	if !slices.ContainsFunc(beginning, isControl) {
		m.Format = new("text")
		seems = "a text file"
	}

	// First bytes, name of the format, and description.
	for _, magic := range [...][3]string{
		{"\x89PNG\r\n\x1a\n", "png", "a PNG picture"},
		{"\xff\xd8\xff", "jpeg", "a JPEG picture"},
		{"\x00\x00\x00\x0cjP  ", "jp2", "a JPEG 2000 picture"},
		{"PK\x03\x04", "zip", "a ZIP archive"},
		{"\x1f\x8b", "gzip", "compressed with gzip"},
		{"BZh", "bzip2", "compressed with bzip2"},
		{"\x28\xb5\x2f\xfd", "zstd", "compressed with zstd"},
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
			m.Format = new(magic[1])
			seems = magic[2]
			if slices.Contains([]string{"zip", "gzip", "bzip2", "zstd"}, magic[1]) {
				ending = ": unpack it first"
			}
		}
	}

	if extension == ".hdr" {
		return extentErrorf(fileStatusUnsupported,
			"it is named .hdr like the header of a raster, but none lies beside it")
	}
	if hasExtension(extension, rasterExtensions) {
		return extentErrorf(fileStatusUnsupported, "it is named %s, but it seems to be %s", extension, seems)
	}
	return extentErrorf(fileStatusUnsupported, "it seems to be %s%s", seems, ending)
}
