package main

import (
	"cmp"
	"encoding/xml"
	"math"
	"path"
	"strconv"
	"strings"
	"unicode"
)

// Lists of extensions: supported rasters; sidecars with a raster's stem; and sidecars with its
// whole name (statistics, overviews, masks). GDAL, ArcGIS and QGIS write these sidecars.
const (
	rasterExtensions  = " tif tiff hgt dt0 dt1 dt2 asc bil bip bsq flt dem "
	sidecarExtensions = " tfw tifw tiffw wld blw bilw bpw bqw prj qpj hdr aux rrd stx clr tab imd rpb "
	sidecarSuffixes   = " aux.xml ovr msk aux xml "
)

// auxSuffix is what GDAL adds to a raster's whole name for the file with its own metadata.
const auxSuffix = ".aux.xml"

// hasExtension reports whether list holds an extension, which begins with a dot, in any case.
func hasExtension(extension, list string) bool {
	if len(extension) < 2 {
		return false
	}
	bare := strings.ToLower(extension[1:])
	return strings.Contains(list, " "+bare+" ")
}

// rasterOfSidecar returns the name of the raster whose sidecar this file is, "" where it is none.
func (h *headerReader) rasterOfSidecar(extension string) (string, error) {
	if hasExtension(extension, rasterExtensions) {
		return "", nil
	}

	// Cut off the suffixes, twice, because masks have overviews.
	base := h.name
	for _, suffix := range strings.Fields(sidecarSuffixes + sidecarSuffixes) {
		n := len(base) - len(suffix) - 1
		if n > 0 && strings.EqualFold(base[n:], "."+suffix) {
			base = base[:n]
		}
	}

	// A raster's whole name and a suffix.
	if base != h.name && hasExtension(path.Ext(base), rasterExtensions) {
		_, found, err := h.beside(base, 0)
		if found || err != nil {
			return base, err
		}
	}

	// A raster's stem and another extension.

	if !hasExtension(extension, sidecarExtensions) {
		return "", nil
	}
	_, raster, err := h.sidecar(0, strings.Fields(rasterExtensions)...)
	return raster, err
}

// sidecar returns up to limit bytes of the file with this file's stem and one of the extensions, in
// any case. name is "" if there is none. It tries each spelling instead of listing the directory,
// which may hold a million files.
func (h *headerReader) sidecar(limit int, extensions ...string) (content []byte, name string, err error) {
	stem := strings.TrimSuffix(h.name, path.Ext(h.name)) + "."
	for _, extension := range extensions {
		for upper := range 1 << len(extension) { // one bit for each letter
			b := []byte(stem + extension)
			for i := range extension {
				isUpper := upper>>i&1 == 1
				if isUpper {
					letter := unicode.ToUpper(rune(extension[i]))
					b[len(stem)+i] = byte(letter)
				}
			}

			name := string(b)
			content, found, err := h.beside(name, limit)
			if found || err != nil {
				return content, name, err
			}
		}
	}

	return nil, "", nil
}

// worldFile returns the transform of a world file. Without one it returns the error missing.
func (h *headerReader) worldFile(missing error, extensions ...string) (t [6]float64, source string, err error) {
	content, name, err := h.sidecar(maxSidecarBytes, extensions...)
	if err != nil {
		return t, "", err
	}
	if name == "" {
		return t, "", missing
	}

	t, err = parseWorldFile(content)
	source = "the world file " + cleanText([]byte(name), maxNameText)
	return t, source, err
}

// parseWorldFile reads a world file. Its six lines are a, d, b and e of a transform, and x and y of
// the centre of the first pixel.
func parseWorldFile(content []byte) ([6]float64, error) {
	var v []float64
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || len(v) == 6 {
			continue
		}

		n, ok := parseNumber(strings.TrimSuffix(fields[0], ","))
		if !ok {
			break
		}
		v = append(v, n)
	}

	if len(v) < 6 || v[0]*v[3] == v[1]*v[2] {
		return [6]float64{}, noGeoreff("its world file does not hold six numbers that place a raster")
	}

	t := [6]float64{
		v[0], v[2], v[4],
		v[1], v[3], v[5],
	}
	return shiftHalfPixel(t), nil
}

// compareWorldFile warns if a GeoTIFF and its .tfw disagree.
func (h *headerReader) compareWorldFile(tags [6]float64, m *extent) {
	t, source, err := h.worldFile(nil, "tfw")
	if err != nil {
		m.warnf("the world file beside it cannot be used: %s", reasonOf(err))
		return
	}
	if source == "" {
		return
	}

	m.compareTransforms(t, tags, "its world file and its tags", "the tags are used")
}

// compareTransforms warns if two transforms of a raster differ by more than a hundredth of a pixel.
func (m *extent) compareTransforms(t, tags [6]float64, what, used string) {
	corners := [...][2]float64{
		{0, 0},
		{float64(*m.Width), 0},
		{0, float64(*m.Height)},
	}
	off := 0.0 // largest distance between the corners, in units of the CRS
	for _, at := range corners {
		x, y := applyTransform(t, at[0], at[1])
		tagX, tagY := applyTransform(tags, at[0], at[1])
		off = max(off, math.Hypot(x-tagX, y-tagY))
	}

	area := math.Abs(tags[0]*tags[4] - tags[1]*tags[3])
	pixel := math.Sqrt(area)
	if off > 0.01*pixel {
		m.warnf("%s differ by up to %.6g units of its CRS, or %.3g pixels; %s",
			what,
			off,
			off/pixel,
			used)
	}
}

// compareCRS warns if the CRS of m, from the .aux.xml, is not that of the keys.
func (h *headerReader) compareCRS(keys crsParameters, m *extent) {
	var other extent
	crs, err := keys.definition(&other, &h.crs)
	isKnown := err == nil && m.CRSDefinition != nil
	isSame := isKnown && *m.CRSDefinition == crs.text()

	used := m.nameOfCRS()
	unused := other.nameOfCRS()
	if used != unused && !isSame {
		m.warnf("its .aux.xml says %s, and its keys %s; the .aux.xml is used", used, unused)
	}
}

// nameOfCRS returns the code or else the name of the CRS, with that of the vertical CRS.
func (m *extent) nameOfCRS() string {
	name := *cmp.Or(
		m.CRS,
		m.CRSName,
		new("a CRS without a name"))
	if m.VerticalCRS != nil {
		name += " with " + *m.VerticalCRS
	}
	return name
}

// projectionFile returns the CRS in the .prj beside the file, and adds its name to source.
func (h *headerReader) projectionFile(m *extent, source *string) (crsParameters, error) {
	content, name, err := h.sidecar(maxSidecarBytes, "prj")
	if name == "" || err != nil {
		return crsParameters{}, err
	}

	name = cleanText([]byte(name), maxNameText)
	return m.crsFromSidecar(name, string(content), source), nil
}

// crsFromSidecar returns the CRS in well-known text from a sidecar, and adds the sidecar's name to
// source. It warns if the text is invalid. Without text there is no CRS.
func (m *extent) crsFromSidecar(name, wkt string, source *string) crsParameters {
	if wkt == "" {
		return crsParameters{}
	}

	p, err := crsFromWKT(wkt)
	if err != nil {
		m.warnf("the CRS in %s cannot be used: %v", name, err)
		return p
	}

	*source += "; CRS from " + name
	return p
}

// auxiliary is what GDAL's .aux.xml beside a raster says of its place and heights. It is zero
// without such a file.
type auxiliary struct {
	name      string
	transform []float64 // as in extent.Transform, nil where absent
	wkt       string    // "" where absent
	heights   heightTexts
}

// readAuxiliary reads the beginning of the .aux.xml beside the file, where GDAL writes SRS,
// GeoTransform and the first band. Errors are I/O errors.
func (h *headerReader) readAuxiliary() (a auxiliary, err error) {
	name := h.name + auxSuffix
	content, found, err := h.beside(name, maxSidecarBytes)
	if !found || err != nil {
		return a, err
	}

	var dataset struct {
		XMLName      xml.Name `xml:"PAMDataset"`
		SRS          string
		GeoTransform string
		Bands        []struct {
			Number string `xml:"band,attr"` // from 1
			heightTexts
		} `xml:"PAMRasterBand"`
	}
	// Unmarshal sets what it reads before an error, such as the end of the part that is read.
	xml.Unmarshal(content, &dataset)

	a.name = cleanText([]byte(name), maxNameText)
	a.wkt = dataset.SRS
	a.transform = parseGeoTransform(dataset.GeoTransform)

	for _, band := range dataset.Bands {
		if band.Number == "1" {
			a.heights = band.heightTexts
		}
	}
	return a, nil
}

// parseGeoTransform returns the transform in a GDAL geotransform, which lists c, a, b, f, d and e.
// It returns nil where the text is not six numbers that place a raster.
func parseGeoTransform(s string) []float64 {
	var v []float64
	for field := range strings.SplitSeq(s, ",") {
		n, ok := parseNumber(strings.TrimSpace(field))
		if !ok {
			return nil
		}
		v = append(v, n)
	}

	if len(v) != 6 || v[1]*v[5] == v[2]*v[4] {
		return nil
	}
	return []float64{
		v[1], v[2], v[0],
		v[4], v[5], v[3],
	}
}

// parseNumber reads a decimal number, which is finite. Its decimal separator may be a comma.
func parseNumber(s string) (float64, bool) {
	// ParseFloat also accepts names, hexadecimal and underscores.
	if strings.Trim(s, "0123456789+-.,eE") != "" {
		return 0, false
	}

	s = strings.Replace(s, ",", ".", 1)
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}
