package main

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// userDefined is the value of a code key that says "no EPSG code: see the other keys".
const userDefined = 32767

// geoKeys is a file's GeoKeys (OGC GeoTIFF 1.1, 19-008r4) as they stand.
type geoKeys struct {
	entries []float64 // of GeoKeyDirectory: id, tag of the value (0: here), count, value or index of it; nil where absent
	doubles []float64 // GeoDoubleParams
	ascii   []byte    // GeoAsciiParams
}

// readGeoKeys reads the keys. One that points outside its tag breaks them all, as in libgeotiff: they may be mispaired.
func (h *headerReader) readGeoKeys(d tiffDirectory) (k geoKeys, err error) {
	directory, ok := d.field(tagGeoKeyDirectory)
	if !ok {
		return k, nil
	}
	words, err := h.numbers(directory)
	if err != nil {
		return k, err
	}
	for _, w := range words {
		if !(w >= 0 && w <= math.MaxUint16) || w != math.Trunc(w) {
			return k, problemf(fileStatusCorrupt, "GeoKeyDirectory (tag 34735) holds %v, which is no SHORT", w)
		}
	}
	// Header: version, revision, minor revision, number of keys.
	if len(words) < 4 || words[0] > 1 || words[3] > maxGeoKeys || 4+4*int(words[3]) > len(words) {
		return k, problemf(fileStatusCorrupt, "GeoKeyDirectory (tag 34735) of %d numbers has no header of version 1 that fits", len(words))
	}
	doubleField, ok := d.field(tagGeoDoubleParams)
	if ok {
		k.doubles, err = h.numbers(doubleField)
	}
	asciiField, ok := d.field(tagGeoASCIIParams)
	if ok && err == nil {
		k.ascii, err = h.text(asciiField)
	}
	if err != nil {
		return k, err
	}
	entries := words[4 : 4+4*int(words[3])]
	for e := entries; len(e) > 0; e = e[4:] {
		end, sound := uint64(e[2]+e[3]), false
		switch e[1] {
		case 0: // the value is here
			sound = e[2] == 1
		case tagGeoKeyDirectory:
			sound = end <= directory.count
		case tagGeoDoubleParams:
			sound = end <= doubleField.count
		case tagGeoASCIIParams:
			sound = end <= asciiField.count+1 // writers count a NUL that they did not write
		}
		if !sound {
			return k, problemf(fileStatusCorrupt, "GeoKey %v points outside the file's GeoKey tags", e[0])
		}
	}
	k.entries = entries
	return k, nil
}

// find gives count and value of a key that lies in that tag: the last where it is there twice, as in libgeotiff.
func (k *geoKeys) find(id, tag int) (count, value int, found bool) {
	for i := len(k.entries) - 4; i >= 0; i -= 4 {
		if e := k.entries[i : i+4]; e[0] == float64(id) && e[1] == float64(tag) {
			return int(e[2]), int(e[3]), true
		}
	}
	return 0, 0, false
}

// code gives a key that is a code, 0 where it is absent.
func (k *geoKeys) code(id int) int {
	_, value, _ := k.find(id, 0)
	return value
}

// has says whether a key is there.
func (k *geoKeys) has(id int) bool {
	for i := 0; i < len(k.entries); i += 4 {
		if k.entries[i] == float64(id) {
			return true
		}
	}
	return false
}

// measure gives the first of these keys that is there, a length or an angle, NaN where none is.
func (k *geoKeys) measure(ids ...int) float64 {
	for _, id := range ids {
		if count, i, found := k.find(id, tagGeoDoubleParams); found && count == 1 && i < len(k.doubles) {
			return k.doubles[i]
		}
	}
	return math.NaN()
}

// name gives the name in the first of these citation keys that holds one.
func (k *geoKeys) name(ids ...int) string {
	for _, id := range ids {
		if s := crsNameFromCitation(k.citation(id)); s != "" {
			return s
		}
	}
	return ""
}

// citation gives the text of a key, nil where it is absent.
func (k *geoKeys) citation(id int) []byte {
	count, i, found := k.find(id, tagGeoASCIIParams)
	if !found || i >= len(k.ascii) {
		return nil
	}
	return k.ascii[i:min(i+count, len(k.ascii))]
}

// crsNameFromCitation takes the name out of a citation key: what is before "|"; in Esri's "ESRI PE String =
// PROJCS["name",…", and in the "PCS Name = name|…" and the like of ArcGIS and Erdas Imagine, among other lines.
func crsNameFromCitation(b []byte) string {
	s := cleanText(b, maxGeoASCII)
	if _, wkt, ok := strings.Cut(s, "ESRI PE String ="); ok {
		_, wkt, _ = strings.Cut(wkt, `"`)
		s, _, _ = strings.Cut(wkt, `"`)
	}
	for _, label := range [...]string{"PCS Name =", "GCS Name =", "Projection Name ="} {
		if _, name, ok := strings.Cut(s, label); ok {
			s, _, _ = strings.Cut(name, " Units = ") // Imagine's next line; cleanText made the line break a space
			break
		}
	}
	s, _, _ = strings.Cut(s, "|")
	if strings.HasPrefix(s, "IMAGINE GeoTIFF Support") {
		return "" // boilerplate without a name
	}
	return cleanText([]byte(s), maxNameText)
}

// The values of crsParameters.kind, as GeoKey 1024 numbers them.
const crsProjected, crsGeographic, crsGeocentric = 1, 2, 3

// crsParameters is a CRS as a file describes it, by GeoKeys or in WKT; 0 is an absent code.
type crsParameters struct {
	present        bool // the file says something of its CRS
	kind           int
	name           string
	code           int       // EPSG code of the CRS
	geographic     int       // EPSG code of the geographic CRS that it is, or that it projects
	datum          int       // EPSG code
	ellipsoid      ellipsoid // NaN where the file does not say
	primeMeridian  float64   // degrees east of Greenwich; NaN where the file does not say, infinite where it is not known
	angularUnit    float64   // degrees; 0 where the file does not say, NaN where it is not known
	linearUnit     float64   // metres; likewise
	projectionCode int       // EPSG code of the projection with its parameters: GeoKey 3074
	method         int       // EPSG code
	vertical       int       // EPSG code of the vertical CRS
	verticalName   string
	reversed       bool            // an axis points west or south
	toWGS84        []float64       // as datumShift has them; nil where the file does not say
	values         map[int]float64 // of the method's parameters, by the EPSG code of their like; degrees, metres, ratios
}

// newCRSParameters is a CRS of which nothing is known.
func newCRSParameters() crsParameters {
	nan := math.NaN()
	return crsParameters{ellipsoid: ellipsoid{nan, nan}, primeMeridian: nan, values: map[int]float64{}}
}

// geographicCRS is the geographic CRS of that code.
func geographicCRS(code int) crsParameters {
	p := newCRSParameters()
	p.present, p.kind, p.code, p.geographic = true, crsGeographic, code, code
	return p
}

// parameters gives the CRS that the keys describe.
func (k *geoKeys) parameters() crsParameters {
	p := newCRSParameters()
	p.present, p.kind = k.entries != nil, k.code(1024)
	p.code, p.geographic = k.code(3072), k.code(2048)
	p.name = k.name(3073, 1026)
	p.angularUnit = unitSize(k.code(2054), k.measure(2055)*180/math.Pi)
	p.linearUnit = unitSize(k.code(3076), k.measure(3077))
	p.setVertical(k.code(4096), k.code(4098))
	p.verticalName = k.name(4097)
	if p.kind == crsGeographic {
		p.code, p.name = p.geographic, k.name(2049, 1026)
	}
	if isEPSG(p.code) { // the rest only matters where the CRS has no code
		return p
	}
	if _, wkt, found := strings.Cut(string(k.citation(3073)), "ESRI PE String ="); found { // says all that the keys may say
		if esri, err := crsFromWKT(wkt); err == nil {
			esri.vertical, esri.verticalName = p.vertical, p.verticalName
			return esri
		}
	}
	degrees, metres := cmp.Or(p.angularUnit, 1), cmp.Or(p.linearUnit, 1)
	p.datum = k.code(2050)
	p.ellipsoid = ellipsoidByCode(k.code(2056))
	if a := k.measure(2057); isFinite(a) {
		p.ellipsoid = ellipsoid{a, 0}
		if minor := k.measure(2058); a > minor {
			p.ellipsoid.inverseFlattening = a / (a - minor)
		}
	}
	if inverse := k.measure(2059); isFinite(inverse) {
		p.ellipsoid.inverseFlattening = inverse
	}
	if meridian := k.code(2051); meridian != 0 {
		p.primeMeridian = math.Inf(1)
		if longitude := k.measure(2061); isFinite(longitude) {
			p.primeMeridian = longitude * degrees
		} else if fields := registryLine("L", meridian); fields != nil {
			p.primeMeridian = registryNumbers(fields[1])[0]
		}
	}
	if count, i, found := k.find(2062, tagGeoDoubleParams); found && (count == 3 || count == 7) && i+count <= len(k.doubles) {
		p.toWGS84 = k.doubles[i : i+count]
	}
	p.projectionCode, p.method = k.code(3074), k.code(3075)
	methods := [...]int{ // of the numbers that GeoTIFF gives them; where it has none they go by EPSG's
		1: 9807, 3: 9812, 4: 9813, 5: 9815, 7: 9804, 8: 9802, 9: 9801, 10: 9820, 11: 9822, 15: 9829, 16: 9809, 17: 1028,
		18: 9806, 22: 9818, 24: sinusoidalCode, 26: 9811, 27: 9808, 28: 9835,
	}
	if p.method < len(methods) {
		p.method = methods[p.method]
	}
	p.values[8814] = 90 // as in GDAL where the file does not say
	set := func(parameter int, unit float64, ids ...int) {
		for _, id := range ids {
			if k.has(id) {
				p.values[parameter] = k.measure(ids...) * unit // NaN where the key holds no number
			}
		}
	}
	set(8801, degrees, 3081, 3085, 3089) // of the natural origin, the false origin, the centre
	set(8802, degrees, 3080, 3084, 3088, 3095)
	set(8823, degrees, 3078)
	set(8824, degrees, 3079)
	set(8813, degrees, 3094)
	set(8814, degrees, 3096)
	set(8805, 1, 3092, 3093)
	set(8806, metres, 3082, 3086, 3090)
	set(8807, metres, 3083, 3087, 3091)
	return p
}

// setVertical takes GeoKeys 4096 and 4098, as GDAL reads the datum and ellipsoid codes that GeoTIFF 1.0 listed there:
// 5101 to 5112 mean the CRS 600 above, 5171 (EGM96) means 5773, and 5001 to 5033 heights above an ellipsoid, which have
// no EPSG code. GeoTIFF 1.1 names a geographic CRS of three dimensions here, which must be on the file's own datum; 5030
// is how 1.0 said it of WGS 84.
func (p *crsParameters) setVertical(code, datum int) {
	switch {
	case code == 0:
	case code >= 5101 && code <= 5112 && datum == 0:
		p.vertical = code + 600
	case code == 5171:
		p.vertical = 5773
	case isGeographicCode(code):
		if isGeographicCode(p.geographic) && registryLine("C", code)[2] == registryLine("C", p.geographic)[2] {
			p.geographic = code
		}
	case code == 5030 && p.geographic == 4326:
		p.geographic = 4979
	case code < 5001 || code > 5033:
		p.vertical = code
	}
}

// isEPSG says whether a code key holds an EPSG code: 1024 to 32766, the range that GeoTIFF 1.1 gives them.
func isEPSG(code int) bool { return code >= 1024 && code < userDefined }

// epsg writes a code as the columns have it.
func epsg(code int) *string { return new(string(strconv.AppendInt([]byte("EPSG:"), int64(code), 10))) }

// definition sets CRS, CRSName and VerticalCRS, and gives the way to degrees, by its code or without; the problem is one of status no_bbox.
func (p *crsParameters) definition(m *ElevationDatasetFileMeta, byCode func(code int) (crsDefinition, error)) (c crsDefinition, err error) {
	if name := p.name; name != "" {
		m.CRSName = &name
	}
	if name := p.verticalName; name != "" {
		m.VerticalCRS = &name
	}
	if isEPSG(p.vertical) {
		m.VerticalCRS = epsg(p.vertical)
	}
	switch {
	case !p.present:
		return c, problemf(fileStatusNoBBox, "the file does not say its CRS; give it one, for example with gdal_edit.py -a_srs")
	case p.kind == crsGeocentric:
		return c, problemf(fileStatusNoBBox, "its CRS is geocentric: X and Y are not on the ground")
	case !isEPSG(p.code):
		if c, err = p.withoutCode(); err != nil {
			err = problemf(fileStatusNoBBox, "%v", err)
		} else if len(c.assumed) > 0 {
			m.warnf("its CRS does not give the %s: taken for 0, as GDAL does", strings.Join(c.assumed, " nor the "))
		}
		return c, err
	}
	m.CRS = epsg(p.code)
	if c, err = byCode(p.code); err != nil {
		return c, problemf(fileStatusNoBBox, "%v", err)
	}
	if c.vertical != 0 {
		m.CRS, m.VerticalCRS = epsg(c.horizontal), epsg(c.vertical)
	}
	unit := p.linearUnit
	if c.method == 0 {
		unit = p.angularUnit
	}
	switch unit = cmp.Or(unit, c.unit); {
	case sameUnit(unit, c.unit):
		return c, nil
	case c.method == 0: // libgeotiff overlooks the unit; but which of the two is wrong the file cannot tell
		return c, problemf(fileStatusNoBBox, "EPSG:%d and the file's angular unit of %v° contradict each other", p.code, unit)
	case math.IsNaN(unit):
		return c, problemf(fileStatusNoBBox, "the linear unit of GeoKey 3076 is not known")
	}
	// As in GDAL: the projection of that code, with coordinates in another unit; so no longer its CRS.
	m.warnf("its CRS is EPSG:%d in another unit, of %v m", p.code, unit)
	m.CRS, c.unit, c.projection.unit = nil, unit, unit
	return c, nil
}

// sameUnit says whether two sizes of a unit differ by rounding at most; the two kinds of foot are further apart.
func sameUnit(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }

// userUnit is a unit that the file gives the size of: 1 if it comes to a degree or a metre, NaN if it is none.
func userUnit(size float64) float64 {
	switch {
	case sameUnit(size, 1):
		return 1
	case size > 0 && isFinite(size):
		return size
	}
	return math.NaN()
}

// unitSize gives a unit in degrees or metres, from GeoKeys 2054 and 2055 or 3076 and 3077: 0 where they do
// not say, NaN where it is not known. So is 9110, packed degrees and minutes: no unit to scale by.
func unitSize(code int, size float64) float64 {
	switch code {
	case 0:
		return 0
	case userDefined:
		return userUnit(size)
	case 9001, 9102: // metre and degree, which nearly all files have
		return 1
	}
	if fields := registryLine("U", code); fields != nil {
		return registryNumbers(fields[1])[0]
	}
	return math.NaN()
}
