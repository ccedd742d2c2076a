package main

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// GeoKeys, less "GeoKey" in their names: OGC GeoTIFF 1.1 (19-008r4), section 7.
const (
	keyModelType  = 1024
	keyRasterType = 1025
	keyCitation   = 1026

	// Geodetic CRS and datum.
	keyGeodeticCRS            = 2048
	keyGeodeticCitation       = 2049
	keyGeodeticDatum          = 2050
	keyPrimeMeridian          = 2051
	keyPrimeMeridianLongitude = 2061
	keyGeogAngularUnits       = 2054
	keyGeogAngularUnitSize    = 2055
	keyEllipsoid              = 2056
	keyEllipsoidInvFlattening = 2059
	keyEllipsoidSemiMajorAxis = 2057
	keyEllipsoidSemiMinorAxis = 2058
	keyGeogTOWGS84            = 2062 // GDAL's own

	// Projected CRS.
	keyProjectedCRS       = 3072
	keyProjectedCitation  = 3073
	keyProjection         = 3074
	keyProjMethod         = 3075
	keyProjLinearUnits    = 3076
	keyProjLinearUnitSize = 3077

	// Parameters of a projection.
	keyProjStdParallel1         = 3078
	keyProjStdParallel2         = 3079
	keyProjNatOriginLong        = 3080
	keyProjNatOriginLat         = 3081
	keyProjFalseEasting         = 3082
	keyProjFalseNorthing        = 3083
	keyProjFalseOriginLong      = 3084
	keyProjFalseOriginLat       = 3085
	keyProjFalseOriginEasting   = 3086
	keyProjFalseOriginNorthing  = 3087
	keyProjCenterLong           = 3088
	keyProjCenterLat            = 3089
	keyProjCenterEasting        = 3090
	keyProjCenterNorthing       = 3091
	keyProjScaleAtNatOrigin     = 3092
	keyProjScaleAtCenter        = 3093
	keyProjAzimuthAngle         = 3094
	keyProjRectifiedGridAngle   = 3096
	keyProjStraightVertPoleLong = 3095

	// Vertical CRS.
	keyVertical         = 4096
	keyVerticalCitation = 4097
	keyVerticalDatum    = 4098
	keyVerticalUnits    = 4099
)

// Values of GeoKeys.
const (
	rasterPixelIsArea  = 1
	rasterPixelIsPoint = 2
	userDefined        = 32767 // instead of a code: other keys describe the thing
)

// geoKeys is the GeoKeys of a file: OGC GeoTIFF 1.1, section 7.1.
type geoKeys struct {
	entries []float64 // nil, or for each key: id, tag of the value (0: here), count, value or its index
	doubles []float64 // GeoDoubleParams
	ascii   []byte    // GeoAsciiParams
}

// readGeoKeys reads the GeoKeys. If one points outside its tag, the result is an error, as in
// libgeotiff: the tags may belong to different files.
func (h *headerReader) readGeoKeys(d tiffDirectory) (k geoKeys, err error) {
	directory := d.field(tagGeoKeyDirectory)
	doubles := d.field(tagGeoDoubleParams)
	ascii := d.field(tagGeoASCIIParams)

	words, err := h.numbers(directory)
	if err != nil || len(words) == 0 {
		return k, err
	}

	// The specification allows SHORT only.
	for _, w := range words {
		isInRange := w >= 0 && w <= math.MaxUint16
		if !isInRange || w != math.Trunc(w) {
			return k, corruptf("GeoKeyDirectory (tag 34735) holds %v, which is not a SHORT", w)
		}
	}

	// Header: version, revision, minor revision, number of keys.
	const headerWords = 4
	invalid := func() error {
		return corruptf("GeoKeyDirectory (tag 34735) of %d numbers has no valid header of version 1", len(words))
	}
	if len(words) < headerWords {
		return k, invalid()
	}
	version := words[0]
	keys := words[3]
	wordsEnd := headerWords + 4*int(keys)
	if version > 1 || keys > maxGeoKeys || wordsEnd > len(words) {
		return k, invalid()
	}

	k.doubles, err = h.numbers(doubles)
	if err != nil {
		return k, err
	}
	k.ascii, err = h.text(ascii)
	if err != nil {
		return k, err
	}

	// Every value must lie in its tag.
	entries := words[headerWords:wordsEnd]
	for e := entries; len(e) > 0; e = e[4:] {
		end := uint64(e[2] + e[3])
		count := uint64(0)
		switch e[1] {
		case tagGeoKeyDirectory:
			count = directory.count
		case tagGeoDoubleParams:
			count = doubles.count
		case tagGeoASCIIParams:
			count = ascii.count + 1 // some writers count a NUL that they did not write
		}

		isHere := e[1] == 0 && e[2] == 1
		if !isHere && end > count {
			return k, corruptf("GeoKey %v points outside the file's GeoKey tags", e[0])
		}
	}

	k.entries = entries
	return k, nil
}

// entry returns the last entry of a key, as libgeotiff does; zeros where it is absent.
func (k *geoKeys) entry(id int) [4]int {
	for i := len(k.entries) - 4; i >= 0; i -= 4 {
		e := k.entries[i : i+4]
		if e[0] == float64(id) {
			return [4]int{
				id,
				int(e[1]),
				int(e[2]),
				int(e[3]),
			}
		}
	}
	return [4]int{}
}

// code returns the value of a key that is a code, 0 where it is absent.
func (k *geoKeys) code(id int) int {
	e := k.entry(id)
	if e[1] != 0 {
		return 0
	}
	return e[3]
}

// doublesOf returns the numbers of a key, nil where it is absent or has none.
func (k *geoKeys) doublesOf(id int) []float64 {
	e := k.entry(id)
	start := e[3]
	end := start + e[2]
	if e[1] != tagGeoDoubleParams || end > len(k.doubles) {
		return nil
	}
	return k.doubles[start:end]
}

// measure returns the length or angle in the first of these keys that has one, otherwise NaN.
func (k *geoKeys) measure(ids ...int) float64 {
	for _, id := range ids {
		v := k.doublesOf(id)
		if len(v) == 1 {
			return v[0]
		}
	}
	return math.NaN()
}

// name returns the name in the first of these citation keys that has one.
func (k *geoKeys) name(ids ...int) string {
	for _, id := range ids {
		name := crsNameFromCitation(k.citation(id))
		if name != "" {
			return name
		}
	}
	return ""
}

// citation returns the text of a key, nil where it is absent.
func (k *geoKeys) citation(id int) []byte {
	e := k.entry(id)
	start := e[3]
	if e[1] != tagGeoASCIIParams || start >= len(k.ascii) {
		return nil
	}

	end := min(start+e[2], len(k.ascii))
	return k.ascii[start:end]
}

// esriPE introduces well-known text that Esri writes into citation keys.
const esriPE = "ESRI PE String ="

// crsNameFromCitation returns the name in a citation key: the text before "|", in Esri's well-known
// text, or in lines such as "PCS Name = name|…" of ArcGIS and Erdas Imagine.
func crsNameFromCitation(b []byte) string {
	// The first text in Esri's well-known text.
	s := cleanText(b, maxGeoASCII)
	if _, wkt, ok := strings.Cut(s, esriPE); ok {
		_, wkt, _ = strings.Cut(wkt, `"`)
		s, _, _ = strings.Cut(wkt, `"`)
	}

	labels := [...]string{
		"PCS Name =",
		"GCS Name =",
		"Projection Name =",
	}
	for _, label := range labels {
		_, name, ok := strings.Cut(s, label)
		if ok {
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

// citedUnit returns the size of the foot that a citation names as the unit of a projected CRS. It
// returns 0 if the citation names none, or seems to be the name of a compound CRS: there the unit
// may be that of the heights.
func citedUnit(citation []byte) float64 {
	replacer := strings.NewReplacer(
		"_", " ",
		"-", " ",
		"foot", "feet")
	s := strings.ToLower(string(citation))
	s = replacer.Replace(s)

	contains := func(parts ...string) bool {
		isPart := func(part string) bool { return strings.Contains(s, part) }
		return slices.ContainsFunc(parts, isPart)
	}

	switch {
	case contains(
		"+",
		"height",
		"vertical",
		"navd",
		"ngvd"):
		return 0
	case contains(
		"us feet",
		"feet us",
		"survey feet",
		"(ftus)"):
		return findRecord(recordUnit, epsgFootUS).number(1)
	case contains(
		"international feet",
		"feet international",
		"intl feet",
		"feet intl",
		"(ft)"):
		return findRecord(recordUnit, epsgFoot).number(1)
	}
	return 0
}

// parameters returns the CRS that the keys describe.
func (k *geoKeys) parameters() crsParameters {
	p := newCRSParameters()

	// GDAL writes this key alone for a raster of points without a CRS.
	isRasterTypeOnly := len(k.entries) == 4 && k.entries[0] == keyRasterType
	p.present = k.entries != nil && !isRasterTypeOnly

	p.kind = k.code(keyModelType)
	p.code = k.code(keyProjectedCRS)
	p.geographic = k.code(keyGeodeticCRS)
	p.name = k.name(keyProjectedCitation, keyCitation)

	degrees := k.measure(keyGeogAngularUnitSize) * 180 / math.Pi
	metres := k.measure(keyProjLinearUnitSize)
	p.angularUnit = unitSize(k.code(keyGeogAngularUnits), degrees)
	p.linearUnit = unitSize(k.code(keyProjLinearUnits), metres)

	p.setVertical(k.code(keyVertical), k.code(keyVerticalDatum))
	p.verticalName = k.name(keyVerticalCitation)

	if p.kind == modelTypeGeographic {
		p.code = p.geographic
		p.name = k.name(keyGeodeticCitation, keyCitation)
	}

	// The other keys only matter for a CRS without a code.
	if isEPSG(p.code) {
		if p.linearUnit == 0 && p.kind != modelTypeGeographic {
			inName := citedUnit(k.citation(keyProjectedCitation))
			p.citedUnit = cmp.Or(inName, citedUnit(k.citation(keyCitation)))
		}
		return p
	}

	// Esri's well-known text is complete.
	citation := string(k.citation(keyProjectedCitation))
	_, wkt, found := strings.Cut(citation, esriPE)
	if found {
		esri, err := crsFromWKT(wkt)
		if err == nil {
			esri.vertical = p.vertical
			esri.verticalName = p.verticalName
			return esri
		}
	}

	k.readDatum(&p)
	k.readProjection(&p)
	return p
}

// readDatum sets datum, ellipsoid, prime meridian and shift of a CRS without a code.
func (k *geoKeys) readDatum(p *crsParameters) {
	p.datum = k.code(keyGeodeticDatum)

	p.ellipsoid = ellipsoidByCode(k.code(keyEllipsoid))
	major := k.measure(keyEllipsoidSemiMajorAxis)
	if isFinite(major) {
		p.ellipsoid = ellipsoid{major, 0}
		minor := k.measure(keyEllipsoidSemiMinorAxis)
		if major > minor {
			p.ellipsoid.inverseFlattening = major / (major - minor)
		}
	}
	inverse := k.measure(keyEllipsoidInvFlattening)
	if isFinite(inverse) {
		p.ellipsoid.inverseFlattening = inverse
	}

	meridian := k.code(keyPrimeMeridian)
	if meridian != 0 {
		longitude := k.measure(keyPrimeMeridianLongitude)
		r := findRecord(recordPrimeMeridian, meridian)
		switch {
		case isFinite(longitude):
			p.primeMeridian = longitude * cmp.Or(p.angularUnit, 1)
		case r != nil:
			p.primeMeridian = r.number(1)
		default:
			p.primeMeridian = math.Inf(1)
		}
	}

	shift := k.doublesOf(keyGeogTOWGS84)
	if len(shift) == 3 || len(shift) == 7 {
		p.toWGS84 = shift
	}
}

// readProjection sets the projection of a CRS without a code: OGC GeoTIFF 1.1, section 7.5.
func (k *geoKeys) readProjection(p *crsParameters) {
	p.projectionCode = k.code(keyProjection)
	p.method = k.code(keyProjMethod)

	// By the numbers that GeoTIFF gives to methods.
	methods := [...]int{
		1:  methodTransverseMercator,
		3:  methodObliqueMercatorA,
		4:  methodLaborde,
		5:  methodObliqueMercatorB,
		7:  methodMercatorA,
		8:  methodLambertConic2SP,
		9:  methodLambertConic1SP,
		10: methodLambertAzimuthal,
		11: methodAlbers,
		15: methodPolarStereographicB,
		16: methodObliqueStereographic,
		17: methodEquidistantCylindrical,
		18: methodCassiniSoldner,
		22: methodPolyconic,
		24: methodSinusoidal,
		26: methodNewZealandMapGrid,
		27: methodTransverseMercatorSouth,
		28: methodLambertCylindrical,
	}
	if p.method < len(methods) {
		p.method = methods[p.method]
		p.sphereOrEllipsoid = p.method == methodEquidistantCylindrical
	}

	// set sets a parameter from the first of its keys that has a number, NaN if none has.
	set := func(parameter int, unit float64, ids ...int) {
		isPresent := func(id int) bool { return k.entry(id)[0] != 0 }
		if slices.ContainsFunc(ids, isPresent) {
			p.values[parameter] = k.measure(ids...) * unit // NaN where the keys hold no number
		}
	}

	degrees := cmp.Or(p.angularUnit, 1)
	metres := cmp.Or(p.linearUnit, 1)

	// Defaults. No key gives the azimuth of the Swiss projection, which is 90° by definition.
	const methodSwiss = 5             // GeoTIFF's number
	p.values[parameterSkewAngle] = 90 // as in GDAL
	if k.code(keyProjMethod) == methodSwiss {
		p.values[parameterAzimuth] = 90
	}

	set(parameterLatitudeOfOrigin, degrees,
		keyProjNatOriginLat,
		keyProjFalseOriginLat,
		keyProjCenterLat)
	set(parameterLongitudeOfOrigin, degrees,
		keyProjNatOriginLong,
		keyProjFalseOriginLong,
		keyProjCenterLong,
		keyProjStraightVertPoleLong)

	set(parameterStandardParallel1, degrees, keyProjStdParallel1)
	set(parameterStandardParallel2, degrees, keyProjStdParallel2)
	set(parameterAzimuth, degrees, keyProjAzimuthAngle)
	set(parameterSkewAngle, degrees, keyProjRectifiedGridAngle)
	set(parameterScale, 1,
		keyProjScaleAtNatOrigin,
		keyProjScaleAtCenter)

	set(parameterFalseEasting, metres,
		keyProjFalseEasting,
		keyProjFalseOriginEasting,
		keyProjCenterEasting)
	set(parameterFalseNorthing, metres,
		keyProjFalseNorthing,
		keyProjFalseOriginNorthing,
		keyProjCenterNorthing)
}

// setVertical sets the vertical CRS from keyVertical and keyVerticalDatum. It reads the codes of
// GeoTIFF 1.0 as GDAL does: a datum means its CRS, and heights above an ellipsoid have no code. A
// geographic CRS with three dimensions counts only on the file's own datum.
func (p *crsParameters) setVertical(code, datum int) {
	const (
		firstDatum           = 5101
		lastDatum            = 5112
		datumToCRS           = 600
		heightEGM96          = 5171
		firstEllipsoid       = 5001
		heightWGS84Ellipsoid = 5030
		lastEllipsoid        = 5033
	)

	if code == 0 {
		return
	}

	isDatum := code >= firstDatum && code <= lastDatum
	isEllipsoid := code >= firstEllipsoid && code <= lastEllipsoid
	switch {
	case isDatum && datum == 0:
		p.vertical = code + datumToCRS
	case code == heightEGM96:
		p.vertical = epsgEGM96
	case isGeographicCode(code):
		datumOf := func(code int) int { return findRecord(recordCRS, code).code(2) }
		if isGeographicCode(p.geographic) && datumOf(code) == datumOf(p.geographic) {
			p.geographic = code
		}
	case code == heightWGS84Ellipsoid && p.geographic == epsgWGS84:
		p.geographic = epsgWGS84Height
	case !isEllipsoid:
		p.vertical = code
	}
}

// heightUnit returns the unit of the vertical CRS in the keys, as GDAL's GetUnitType does: that of
// a vertical CRS with a code, or else VerticalUnitsGeoKey, or else the metre. It returns "" if the
// keys have no vertical CRS, or an unknown unit. p is the CRS that the keys describe.
func (k *geoKeys) heightUnit(p *crsParameters, l *lastCRS) string {
	crs, _ := l.byCode(p.code) // a compound CRS, perhaps
	vertical := cmp.Or(crs.vertical, p.vertical)

	unit := k.code(keyVerticalUnits)
	switch {
	case isEPSG(vertical):
		unit = findRecord(recordCRS, vertical).code(2)
	case vertical != 0:
		unit = cmp.Or(unit, epsgMetre)
	}
	return findRecord(recordUnit, unit).name()
}

// isEPSG reports whether a code is one of EPSG: OGC GeoTIFF 1.1 reserves 1024 to 32766 for them.
func isEPSG(code int) bool {
	const first = 1024
	return code >= first && code < userDefined
}

// epsg writes an EPSG code as in extent.CRS.
func epsg(code int) *string {
	return new("EPSG:" + strconv.Itoa(code))
}

// definition sets CRS, CRSName and VerticalCRS, and returns the CRS. Errors have status no_bbox.
func (p *crsParameters) definition(m *extent, l *lastCRS) (c crsDefinition, err error) {
	m.CRSName = nonEmpty(p.name)
	m.VerticalCRS = nonEmpty(p.verticalName)
	if isEPSG(p.vertical) {
		m.VerticalCRS = epsg(p.vertical)
	}

	switch {
	case !p.present:
		m.LacksCRS = true
		return c, noBBoxf(lacksCRS)
	case p.kind == modelTypeGeocentric:
		return c, noBBoxf("its CRS is geocentric: its X and Y are not map coordinates")
	case !isEPSG(p.code):
		return p.definitionWithoutCode(m, l)
	}

	m.CRS = epsg(p.code)
	c, err = l.byCode(p.code)
	if err != nil {
		return c, noBBoxf("%v", err)
	}
	if c.vertical != 0 {
		m.CRS = epsg(c.horizontal)
		m.VerticalCRS = epsg(c.vertical)
	}

	// The file may state the unit too.
	unit := p.linearUnit
	isCited := unit == 0 && c.unit == 1
	switch {
	case c.method == 0:
		unit = p.angularUnit
	case isCited:
		unit = p.citedUnit
	}
	unit = cmp.Or(unit, c.unit)

	switch {
	case sameUnit(unit, c.unit):
		return c, nil
	case c.method == 0: // libgeotiff ignores the unit; but the file does not tell which of the two is wrong
		return c, noBBoxf("EPSG:%d and the file's angular unit of %v° contradict each other", p.code, unit)
	case math.IsNaN(unit):
		return c, noBBoxf("the linear unit in GeoKey 3076 is unknown")
	}

	// As in GDAL: that code's projection with coordinates in another unit, which is another CRS.
	m.warnf("its CRS is EPSG:%d, but in another unit, of %v m", p.code, unit)
	m.CRS = nil
	c.unit = unit
	c.projection.unit = unit
	return c, nil
}

// definitionWithoutCode is definition of a CRS without a code. If well-known text describes a CRS
// of the registry, it gets its code.
func (p *crsParameters) definitionWithoutCode(m *extent, l *lastCRS) (c crsDefinition, err error) {
	c, err = p.withoutCode()
	if err != nil {
		return c, noBBoxf("%v", err)
	}

	if len(c.assumed) > 0 {
		m.warnf("its CRS lacks the %s; taken for 0, as GDAL does", strings.Join(c.assumed, " and the "))
		return c, nil
	}
	if p.wkt == "" {
		return c, nil
	}

	// The search is slow, so its last result is kept.
	if p.wkt != l.wkt {
		l.codeOf = codeOf(&c, p.name)
		l.wkt = p.wkt
	}
	if l.codeOf == 0 {
		return c, nil
	}

	m.CRS = epsg(l.codeOf)
	return l.byCode(l.codeOf) // never fails: it has the method and parameters of c
}

// userUnit returns the size of a unit that a file defines: exactly 1 where it is near 1, and NaN
// where it is not a positive number.
func userUnit(size float64) float64 {
	switch {
	case sameUnit(size, 1):
		return 1
	case size > 0 && isFinite(size):
		return size
	}
	return math.NaN()
}

// unitSize returns the size of a unit in degrees or metres from its code and size in GeoKeys. It
// returns 0 if they are absent, and NaN for an unknown unit. Packed degrees (9110) count as
// unknown: no factor converts them.
func unitSize(code int, size float64) float64 {
	switch code {
	case 0:
		return 0
	case userDefined:
		return userUnit(size)
	}
	return findRecord(recordUnit, code).number(1)
}
