package main

import (
	"bytes"
	"encoding/binary"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// cellOfName gives the latitude and longitude of a cell named in a file name: N43W080, s01e179, N43_00_W080_00.
func cellOfName(name string) (lat, lon float64, ok bool) {
	for i := range name {
		rest := name[i:]
		if len(rest) < 7 || !strings.Contains("NSns", rest[:1]) || (i > 0 && unicode.IsLetter(rune(name[i-1]))) {
			continue
		}
		north, rest := rest[:3], strings.TrimPrefix(strings.TrimPrefix(rest[3:], "_00"), "_")
		if len(rest) < 4 || !strings.Contains("EWew", rest[:1]) {
			continue
		}
		y, err := strconv.ParseUint(north[1:], 10, 8)
		x, err2 := strconv.ParseUint(rest[1:4], 10, 8)
		if err != nil || err2 != nil || y > 90 || x > 180 {
			continue
		}
		lat, lon = float64(y), float64(x)
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

// checkName warns where a degree cell in the file's name does not fit its box: most series name the cell by
// its south-west corner; others name another corner, which the box must touch then.
func (m *ElevationDatasetFileMeta) checkName(name string) {
	lat, lon, ok := cellOfName(name)
	if !ok {
		return
	}
	const margin = 0.02 // degrees: some pixels of overlap
	width := math.Mod(m.BBox[2]-m.BBox[0]+360, 360)
	for _, part := range [...][2]float64{{margin, 1 - margin}, {-margin, margin}} { // the cell, the corner
		size, from := part[1]-part[0], math.Mod(lon+part[0]-m.BBox[0]+720, 360)
		if (width == 0 || from <= width || from+size >= 360) && lat+part[0] <= m.BBox[3] && lat+part[1] >= m.BBox[1] {
			return
		}
	}
	m.warnf("its name says latitude %v, longitude %v, but its box lies elsewhere", lat, lon)
}

// readGrid reads a file of the formats other than TIFF, by its extension or its first bytes; read is false for others.
func (h *headerReader) readGrid(extension string, head []byte, m *ElevationDatasetFileMeta) (read bool, err error) {
	switch extension {
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
	if !number || !slices.Contains(keys, strings.TrimPrefix(fields[0], "\ufeff")) {
		return false, nil
	}
	if g := parseGridHeader(head); g["ncols"] != "" {
		m.Format, m.Bands = new("asc"), new(int64(1)) // the samples behind the header are not looked at
		return true, h.placeGrid(g, "the header of the ASCII grid", m)
	}
	return false, nil
}

// readHGT reads an SRTM tile (NASA, SRTM Topography, 2015): samples without header, placed by name and size, the outer
// ones on whole degrees. A tile in a ZIP archive or gzip is known by the size stated there.
func (h *headerReader) readHGT(extension string, m *ElevationDatasetFileMeta) (read bool, err error) {
	name, size := h.name, h.size
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
	m.Format, m.Bands, m.PixelIs, m.SampleType, m.Nodata = new("hgt"), new(int64(1)), new("point"), new("int16"), new("-32768")
	var columns, rows float64
	for _, shape := range [...][2]uint64{{1201, 1201}, {3601, 3601}, {1801, 3601}, {7201, 7201}} {
		if size == shape[0]*shape[1]*2 {
			columns, rows = float64(shape[0]), float64(shape[1])
		}
	}
	if columns == 0 {
		return true, problemf(fileStatusCorrupt, "its %d bytes are the size of no HGT file: 1201², 3601², 1801 × 3601 or 7201² samples of 2 bytes", size)
	}
	m.setSize(columns, rows)
	lat, lon, ok := cellOfName(name)
	if !ok {
		return true, problemf(fileStatusNoGeoref, "an HGT file says where it lies only in its name, such as N45E007.hgt")
	}
	upper := strings.ToUpper(name)
	if (columns == 1801 && lat > -51 && lat < 50) || // SRTM only has such beyond 50 degrees
		(strings.Contains(upper, "SRTMGL1") && rows != 3601) || (strings.Contains(upper, "SRTMGL3") && rows != 1201) {
		m.warnf("its size of %v by %v samples is not what its name %s promises", columns, rows, cleanText([]byte(name), maxNameText))
	}
	dx, dy := 1/(columns-1), 1/(rows-1)
	return true, h.place(m, [6]float64{dx, 0, lon - dx/2, 0, -dy, lat + 1 + dy/2}, "the name and the size of the HGT file", geographicCRS(4326))
}

// zippedHGT finds the only .hgt file of a ZIP archive by its directory (PKWARE APPNOTE 6.3, section 4.3), else "".
func (h *headerReader) zippedHGT() (name string, size uint64, err error) {
	const endSize, entrySize, most = 22, 46, 32 << 10
	b, err := h.at(h.size-min(h.size, firstReadBytes), min(h.size, firstReadBytes), "the end of the ZIP archive")
	i := bytes.LastIndex(b, []byte("PK\x05\x06"))
	if i < 0 || len(b)-i < endSize {
		return "", 0, err
	}
	le := binary.LittleEndian
	length, offset := uint64(le.Uint32(b[i+12:])), uint64(le.Uint32(b[i+16:]))
	if b, err = h.at(offset, min(length, most), "the directory of the ZIP archive"); isProblem(err) {
		return "", 0, nil // an archive of another kind, such as ZIP64
	}
	for len(b) >= entrySize && string(b[:4]) == "PK\x01\x02" {
		end := entrySize + int(le.Uint16(b[28:]))
		next := end + int(le.Uint16(b[30:])) + int(le.Uint16(b[32:]))
		if next > len(b) {
			break
		}
		if entry := path.Base(string(b[entrySize:end])); strings.EqualFold(path.Ext(entry), ".hgt") {
			if name != "" {
				return "", 0, nil
			}
			name, size = entry, uint64(le.Uint32(b[24:]))
		}
		b = b[next:]
	}
	return name, size, err
}

// uhlRecord gives where the User Header Label of a DTED file is, behind volume and header labels; -1 where it is not.
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

// readDTED reads a DTED file (MIL-PRF-89020B, section 3.11): the records UHL, DSI and ACC, and columns of samples. The
// origin is the south-west sample, so the box reaches half a sample beyond.
func (h *headerReader) readDTED(at int, m *ElevationDatasetFileMeta) error {
	const uhlSize, dsiSize, accSize = 80, 648, 2700
	m.Format, m.Bands, m.PixelIs, m.SampleType, m.Nodata = new("dted"), new(int64(1)), new("point"), new("int16"), new("-32767")
	b, err := h.at(uint64(at), uhlSize+dsiSize+3, "the header of the DTED file")
	if err != nil {
		return err
	}
	uhl, dsi := b[:uhlSize], b[uhlSize:uhlSize+dsiSize]
	if string(dsi[:3]) != "DSI" || string(b[uhlSize+dsiSize:]) != "ACC" {
		return problemf(fileStatusCorrupt, "the DTED header has no DSI or no ACC record")
	}
	broken := false
	number := func(from, length int) float64 { // counted from 1, as in the standard
		n, err := strconv.Atoi(strings.TrimSpace(string(uhl[from-1 : from-1+length])))
		broken = broken || err != nil || n < 0
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
	dx, dy := number(21, 4)/36000, number(25, 4)/36000 // tenths of arc-seconds
	columns, rows := number(48, 4), number(52, 4)
	if broken {
		return problemf(fileStatusCorrupt, "the User Header Label of the DTED file holds fields that are no numbers")
	}
	if err := m.setSize(columns, rows); err != nil {
		return err
	}
	m.checkLength(h.size, float64(at+uhlSize+dsiSize+accSize)+columns*(12+2*rows))
	p := geographicCRS(4326)
	switch datum := cleanText(dsi[144:149], 5); datum {
	case "WGS84":
	case "WGS72":
		p.code = 4322
	default:
		m.warnf("its horizontal datum is %q; read as WGS 84, as GDAL does", datum)
	}
	if string(dsi[141:144]) == "E96" { // EGM96
		p.vertical = 5773
	}
	return h.place(m, [6]float64{dx, 0, lon - dx/2, 0, -dy, lat - dy/2 + rows*dy}, "the User Header Label (UHL) of the DTED file", p)
}

// checkLength warns where a file has less than the bytes that its header asks for.
func (m *ElevationDatasetFileMeta) checkLength(size uint64, want float64) {
	if float64(size) < want {
		m.warnf("the file has %d bytes where its header asks for %.16g: it may be cut short", size, want)
	}
}

// gridHeader is what the header of an Esri grid says: keys in lower case, with the first value of each.
type gridHeader map[string]string

// parseGridHeader reads lines of keys and values. It takes samples for keys as well, which does no harm.
func parseGridHeader(text []byte) gridHeader {
	header := gridHeader{}
	for line := range strings.FieldsFuncSeq(strings.TrimPrefix(string(text), "\ufeff"), func(r rune) bool { return r == '\n' || r == '\r' }) {
		fields := strings.Fields(line)
		for i := 0; i+1 < len(fields); i += 2 {
			if key := strings.ToLower(fields[i]); header[key] == "" {
				header[key] = fields[i+1]
			}
		}
	}
	return header
}

// number gives the first of these keys that is a number; NaN where none is.
func (g gridHeader) number(keys ...string) float64 {
	for _, key := range keys {
		if v, ok := parseNumber(g[key]); ok {
			return v
		}
	}
	return math.NaN()
}

// placeGrid sets size, extent and CRS of a grid. A cell is square (cellsize) or not (dx, dy; xdim, ydim).
func (h *headerReader) placeGrid(g gridHeader, source string, m *ElevationDatasetFileMeta) error {
	if err := m.setSize(g.number("ncols"), g.number("nrows")); err != nil {
		return err
	}
	m.setNodata([]byte(g["nodata_value"] + g["nodata"]))
	dx, dy := g.number("cellsize", "dx", "xdim"), g.number("cellsize", "dy", "ydim")
	x, y := g.number("xllcorner"), g.number("yllcorner")
	centre := math.IsNaN(x)
	if centre {
		x = g.number("xllcenter", "xllcentre") - dx/2
	}
	if math.IsNaN(y) {
		y = g.number("yllcenter", "yllcentre") - dy/2
	}
	if ulx, uly := g.number("ulxmap"), g.number("ulymap"); isFinite(ulx + uly) { // centre of the north-west pixel
		x, y, centre = ulx-dx/2, uly+dy/2-dy*float64(*m.Height), false
	}
	if !isFinite(x + y + dx + dy) {
		return problemf(fileStatusNoGeoref, "its header does not say where it lies: corner or centre, and size of a cell")
	}
	m.PixelIs = new("area")
	if centre {
		m.PixelIs = new("point")
	}
	crs, err := h.projectionFile(m)
	if err != nil {
		return err
	}
	if !crs.present && strings.EqualFold(g["projection"], "geographic") && strings.EqualFold(g["datum"], "wgs84") {
		crs = geographicCRS(4326)
	}
	return h.place(m, [6]float64{dx, 0, x, 0, -dy, y + dy*float64(*m.Height)}, source, crs)
}

// readEHdr reads Esri's BIL, BIP, BSQ and floating-point grid by the .hdr beside it; without one it is no such raster.
func (h *headerReader) readEHdr(extension string, m *ElevationDatasetFileMeta) (bool, error) {
	content, name, err := h.sidecar(maxSidecarBytes, "hdr")
	g := parseGridHeader(content)
	if err != nil || g["ncols"] == "" || g["nrows"] == "" {
		return false, err
	}
	m.Format = new("ehdr")
	bands, bits, format := 1.0, 8.0, 1.0
	if extension == ".flt" {
		bits, format = 32, 3
	}
	if n := g.number("nbands"); n > 0 {
		bands = n
	}
	if n := g.number("nbits"); n > 0 {
		bits = n
	}
	switch kind := strings.ToLower(g["pixeltype"]); {
	case strings.HasPrefix(kind, "f"):
		format = 3
	case strings.HasPrefix(kind, "s"), kind == "" && format == 1 && g.number("nodata") < 0:
		format = 2
	}
	m.setSamples(bands, bits, format)
	err = h.placeGrid(g, "the header "+cleanText([]byte(name), maxNameText), m)
	if m.Width != nil {
		m.checkLength(h.size, float64(*m.Width)*float64(*m.Height)*bands*bits/8)
	}
	return true, err
}
