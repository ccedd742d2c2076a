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
	fields := strings.Fields(strings.ToLower(string(head[:min(len(head), 64)])) + " ? ?")
	_, number := parseNumber(fields[1])
	keys := strings.Fields("ncols nrows xllcorner yllcorner xllcenter yllcenter cellsize dx dy")
	g := parseGridHeader(head)
	beginsWithKey := number && slices.Contains(keys, strings.TrimPrefix(fields[0], "\ufeff"))
	if !beginsWithKey || g["ncols"] == "" {
		return false, nil
	}

	m.Format = new("asc")
	m.Bands = new(int64(1))
	err = h.placeGrid(g, "the header of the ASCII grid", m)
	if m.Width != nil {
		if cut := h.checkASCII(head, float64(*m.Width), float64(*m.Height)); cut != nil {
			return true, cut
		}
	}
	return true, err
}

// readHGT reads an SRTM tile (NASA, SRTM Topography, 2015): samples without header, placed by name
// and size, the outer ones on whole degrees. A ZIP archive or gzip states the size of its tile.
func (h *headerReader) readHGT(extension string, m *extent) (read bool, err error) {
	name := h.name
	size := h.size
	switch extension {
	case ".zip":
		if name, size, err = h.zippedHGT(); name == "" {
			return false, err
		}
	case ".gz":
		if name = name[:len(name)-len(extension)]; !strings.EqualFold(path.Ext(name), ".hgt") || h.size < 18 {
			return false, nil
		}
		b, err := h.at(h.size-4, 4, "the size that gzip states") // RFC 1952, section 2.3.1: ISIZE
		if err != nil {
			return true, err
		}
		size = uint64(binary.LittleEndian.Uint32(b))
	}

	m.setHeights("hgt", "-32768")

	shapes := [][2]uint64{{1201, 1201}, {3601, 3601}, {1801, 3601}, {7201, 7201}}
	i := slices.IndexFunc(shapes, func(shape [2]uint64) bool {
		return size == shape[0]*shape[1]*2
	})
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
	isNarrow := columns == 1801 && lat > -51 && lat < 50 // SRTM has this shape beyond 50 degrees only
	isNot1 := strings.Contains(upper, "SRTMGL1") && rows != 3601
	isNot3 := strings.Contains(upper, "SRTMGL3") && rows != 1201
	if isNarrow || isNot1 || isNot3 {
		m.warnf("its size of %v by %v samples contradicts its name %s",
			columns, rows, cleanText([]byte(name), maxNameText))
	}

	dx := 1 / (columns - 1)
	dy := 1 / (rows - 1)
	t := [6]float64{dx, 0, lon - dx/2, 0, -dy, lat + 1 + dy/2}
	return true, h.place(m, t, "the name and the size of the HGT file", geographicCRS(epsgWGS84))
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
// directory: PKWARE APPNOTE 6.3, sections 4.3.12 and 4.3.16. name is "" where there is not exactly
// one, or where the directory is not near the end of the file.
func (h *headerReader) zippedHGT() (name string, size uint64, err error) {
	const endSize = 22
	const entrySize = 46
	const tailBytes = 32 << 10
	tail, err := h.at(h.size-min(h.size, tailBytes), min(h.size, tailBytes), "the end of the ZIP archive")
	end := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if end < 0 || len(tail)-end < endSize {
		return "", 0, err
	}

	// The directory ends where its end record begins. A longer one may list a second tile.
	length := int(binary.LittleEndian.Uint32(tail[end+12:]))
	if length > end {
		return "", 0, nil
	}
	directory := tail[end-length : end]

	for len(directory) >= entrySize && string(directory[:4]) == "PK\x01\x02" {
		field := func(at int) int { return int(binary.LittleEndian.Uint16(directory[at:])) }
		nameEnd := entrySize + field(28)
		entryEnd := nameEnd + field(30) + field(32)
		if entryEnd > len(directory) {
			break
		}
		entry := path.Base(string(directory[entrySize:nameEnd]))
		if strings.EqualFold(path.Ext(entry), ".hgt") {
			if name != "" {
				return "", 0, nil
			}
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
	for at := 0; at+80 <= len(head); at += 80 {
		if label := strings.ToUpper(string(head[at : at+3])); label == "UHL" {
			return at
		} else if label != "VOL" && label != "HDR" {
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
	if string(dsi[:3]) != "DSI" || string(b[uhlSize+dsiSize:]) != "ACC" {
		return corruptf("the DTED header has no DSI or no ACC record")
	}

	// number and angle read fields of the UHL. Offsets count from 1, as in the standard.
	invalid := false
	number := func(from, length int) float64 {
		n, err := strconv.Atoi(strings.TrimSpace(string(uhl[from-1 : from-1+length])))
		invalid = invalid || err != nil || n < 0
		return float64(n)
	}
	angle := func(from int) (float64, byte) { // DDDMMSSH
		hemisphere := uhl[from+6]
		v := number(from, 3) + number(from+3, 2)/60 + number(from+5, 2)/3600
		if hemisphere == 'W' || hemisphere == 'S' {
			v = -v
		}
		return v, hemisphere
	}

	lon, first := angle(5)
	lat, _ := angle(13)
	if first == 'N' || first == 'S' { // before Amendment 1 of MIL-D-89020 the two were swapped
		lon, lat = lat, lon
	}
	// The intervals are tenths of arc-seconds.
	dx := number(21, 4) / 36000
	dy := number(25, 4) / 36000
	columns := number(48, 4)
	rows := number(52, 4)

	if invalid {
		return corruptf("the User Header Label of the DTED file has fields that are not numbers")
	}
	if err := m.setSize(columns, rows); err != nil {
		return err
	}

	p := geographicCRS(epsgWGS84)
	switch datum := cleanText(dsi[144:149], 5); datum {
	case "WGS84":
	case "WGS72":
		p.code = epsgWGS72
	default:
		m.warnf("its horizontal datum is %q; read as WGS 84, as GDAL does", datum)
	}
	if string(dsi[141:144]) == "E96" {
		p.vertical = epsgEGM96
	}

	t := [6]float64{dx, 0, lon - dx/2, 0, -dy, lat - dy/2 + rows*dy}
	err = h.place(m, t, "the User Header Label (UHL) of the DTED file", p)
	if cut := h.checkLength(float64(at+uhlSize+dsiSize+accSize), columns*(12+2*rows)); cut != nil {
		return cut
	}
	return err
}

// gridHeader is the header of an Esri grid: keys in lower case, each with its first value.
type gridHeader map[string]string

// parseGridHeader reads lines of keys and values. It takes samples for keys too; that is harmless.
func parseGridHeader(text []byte) gridHeader {
	header := gridHeader{}
	lineBreak := func(r rune) bool { return r == '\n' || r == '\r' }
	for line := range strings.FieldsFuncSeq(strings.TrimPrefix(string(text), "\ufeff"), lineBreak) {
		fields := strings.Fields(line)
		for i := 0; i+1 < len(fields); i += 2 {
			if key := strings.ToLower(fields[i]); header[key] == "" {
				header[key] = fields[i+1]
			}
		}
	}
	return header
}

// number returns the value of the first of these keys that has a number, NaN where none has.
func (g gridHeader) number(keys ...string) float64 {
	for _, key := range keys {
		if v, ok := parseNumber(g[key]); ok {
			return v
		}
	}
	return math.NaN()
}

// placeGrid sets size, extent and CRS of an Esri grid. A cell is cellsize or dx, dy or xdim, ydim.
func (h *headerReader) placeGrid(g gridHeader, source string, m *extent) error {
	if err := m.setSize(g.number("ncols"), g.number("nrows")); err != nil {
		return err
	}

	m.Nodata = nonEmpty(cleanText([]byte(cmp.Or(g["nodata_value"], g["nodata"])), maxNodataText))

	dx := g.number("cellsize", "dx", "xdim")
	dy := g.number("cellsize", "dy", "ydim")
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
	if ulx, uly := g.number("ulxmap"), g.number("ulymap"); isFinite(ulx + uly) { // centre of the north-west pixel
		x = ulx - dx/2
		y = uly + dy/2 - dy*float64(*m.Height)
		m.PixelIs = new("area")
	}

	t := [6]float64{dx, 0, x, 0, -dy, y + dy*float64(*m.Height)}
	placed := isFinite(x + y + dx + dy)

	crs, err := h.projectionFile(m, &source)
	if err != nil {
		return err
	}
	saysWGS84 := strings.EqualFold(g["projection"], "geographic") && strings.EqualFold(g["datum"], "wgs84")
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

// readEHdr reads Esri's BIL, BIP, BSQ or floating-point grid by its .hdr. Without, read is false.
func (h *headerReader) readEHdr(extension string, m *extent) (read bool, err error) {
	content, name, err := h.sidecar(maxSidecarBytes, "hdr")
	g := parseGridHeader(content)
	if err != nil || g["ncols"] == "" || g["nrows"] == "" {
		return false, err
	}

	m.Format = new("ehdr")
	bands := 1.0
	bits := 8.0
	format := float64(sampleFormatUint)
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

	pixelType := strings.ToLower(g["pixeltype"])
	hasNegativeNodata := pixelType == "" && format == sampleFormatUint && g.number("nodata") < 0
	switch {
	case strings.HasPrefix(pixelType, "f"):
		format = sampleFormatFloat
	case strings.HasPrefix(pixelType, "s"), hasNegativeNodata:
		format = sampleFormatInt
	}

	m.setSamples(bands, bits, format)
	err = h.placeGrid(g, "the header "+cleanText([]byte(name), maxNameText), m)
	if m.Width == nil {
		return true, err
	}

	// Rows may have padding, but the last one needs none.
	start := g.number("skipbytes")
	if !(start > 0) {
		start = 0
	}
	samples := float64(*m.Width) * float64(*m.Height) * bands
	if cut := h.checkLength(start, math.Ceil(samples*bits/8)); cut != nil {
		return true, cut
	}
	return true, err
}

// cellOfName returns the cell in a file name such as N43W080, s01e179 or N43_00_W080_00.
func cellOfName(name string) (lat, lon float64, ok bool) {
	for i := range name {
		rest := name[i:]
		if len(rest) < 7 || !strings.Contains("NSns", rest[:1]) || (i > 0 && unicode.IsLetter(rune(name[i-1]))) {
			continue
		}

		north := rest[:3]
		rest = strings.TrimPrefix(strings.TrimPrefix(rest[3:], "_00"), "_")
		if len(rest) < 4 || !strings.Contains("EWew", rest[:1]) {
			continue
		}

		y, err := strconv.ParseUint(north[1:], 10, 8)
		x, err2 := strconv.ParseUint(rest[1:4], 10, 8)
		if err != nil || err2 != nil || y > 90 || x > 180 {
			continue
		}

		lat = float64(y)
		lon = float64(x)
		if north[0]|0x20 == 's' {
			lat = -lat
		}
		if rest[0]|0x20 == 'w' {
			lon = -lon
		}
		return lat, lon, true
	}

	return 0, 0, false
}

// aboutName begins the warning about a name that contradicts the place.
const aboutName = "its name says"

// checkName warns if the degree cell in the file's name does not fit its box. Most series name its
// south-west corner; others another one, so the box must at least touch the named place.
func (m *extent) checkName(name string) {
	lat, lon, ok := cellOfName(name)
	if !ok {
		return
	}

	const margin = 0.02 // degrees, for an overlap of some pixels
	width := math.Mod(m.BBox[2]-m.BBox[0]+360, 360)
	cell := [2]float64{margin, 1 - margin}
	corner := [2]float64{-margin, margin}
	for _, part := range [...][2]float64{cell, corner} {
		size := part[1] - part[0]
		from := math.Mod(lon+part[0]-m.BBox[0]+720, 360)
		meetsLongitudes := width == 0 || from <= width || from+size >= 360
		meetsLatitudes := lat+part[0] <= m.BBox[3] && lat+part[1] >= m.BBox[1]
		if meetsLongitudes && meetsLatitudes {
			return
		}
	}

	m.warnf(aboutName+" latitude %v, longitude %v, but its box lies elsewhere", lat, lon)
}

// unsupportedFormat returns the error for a file of another format, named by its first bytes.
func unsupportedFormat(extension string, head []byte, m *extent) error {
	seems := "of an unknown format"
	isBinary := slices.ContainsFunc(head[:min(len(head), 512)], func(b byte) bool {
		return b < ' ' && !strings.ContainsRune("\t\n\r\f", rune(b))
	})
	if !isBinary {
		m.Format = new("text")
		seems = "a text file"
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
			m.Format = new(magic[1])
			seems = magic[2]
		}
	}

	if extension == ".hdr" {
		return extentErrorf(fileStatusUnsupported,
			"it is named .hdr like the header of a raster, but none lies beside it")
	}
	if hasExtension(extension, rasterExtensions) {
		return extentErrorf(fileStatusUnsupported, "it is named %s, but it seems to be %s", extension, seems)
	}
	return extentErrorf(fileStatusUnsupported, "it seems to be %s, which is not supported", seems)
}
