package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// epsgCSV is the registry of coordinate reference systems (CRSs), an extract of the EPSG dataset.
// The comment at its head describes its records.
//
//go:embed epsg.csv
var epsgCSV string

// registryLines is the lines of the registry, sorted by their bytes.
var registryLines = strings.Split(strings.TrimSuffix(epsgCSV, "\n"), "\n")

// Kinds of records in the registry. A key is a kind and an EPSG code, or an index and a name.
const (
	recordCRS           = "C"
	recordDatum         = "D"
	recordEllipsoid     = "E"
	recordPrimeMeridian = "L"
	recordUnit          = "U"
	recordMethod        = "M"
	recordParameter     = "P"
	recordProjection    = "O"
	recordShift         = "S"
	recordArea          = "A"

	// Indexes of names.
	indexOfDatums     = "ND"
	indexOfMethods    = "NM"
	indexOfParameters = "NP"
)

// EPSG codes of CRSs and units.
const (
	// Geographic CRSs.
	epsgWGS84       = 4326
	epsgWGS84Height = 4979 // with ellipsoidal heights
	epsgWGS72       = 4322

	// A vertical CRS.
	epsgEGM96 = 5773

	// Units.
	epsgMetre  = 9001
	epsgDegree = 9102
	epsgFoot   = 9002
	epsgFootUS = 9003
)

// record is the fields of a line of the registry. It is nil where there is no such line.
type record []string

// registryRecords iterates over the records whose lines begin with prefix.
func registryRecords(prefix string) iter.Seq[record] {
	return func(yield func(record) bool) {
		first, _ := slices.BinarySearch(registryLines, prefix)

		for _, line := range registryLines[first:] {
			if !strings.HasPrefix(line, prefix) {
				return
			}
			fields := strings.Split(line, ";")
			if !yield(fields) {
				return
			}
		}
	}
}

// recordOfKey returns the record of a key, nil where there is none.
func recordOfKey(key string) record {
	for r := range registryRecords(key + ";") {
		return r
	}
	return nil
}

// findRecord returns the record of a kind and an EPSG code, nil where there is none.
func findRecord(kind string, code int) record {
	return recordOfKey(kind + strconv.Itoa(code))
}

// codeOfName returns the EPSG code of a name in an index, 0 where it is not listed.
func codeOfName(index, name string) int {
	return recordOfKey(index + plainName(name)).code(1)
}

// plainName returns a name's letters and digits in lower case. It keeps "+": CH1903+ is not CH1903.
func plainName(s string) string {
	keep := func(r rune) rune {
		isKept := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '+'
		if isKept {
			return unicode.ToLower(r)
		}
		return -1 // dropped
	}
	return strings.Map(keep, s)
}

// text returns a field, "" where there is none.
func (r record) text(i int) string {
	if i < 0 || i >= len(r) {
		return ""
	}
	return r[i]
}

// name returns the last field, which is the name.
func (r record) name() string { return r.text(len(r) - 1) }

// code returns a field that is an EPSG code, 0 where there is none.
func (r record) code(i int) int {
	code, _ := strconv.Atoi(r.text(i))
	return code
}

// key returns the EPSG code of the record itself, which follows the letter of its kind.
func (r record) key() int {
	code, _ := strconv.Atoi(r[0][1:])
	return code
}

// numbers returns the numbers in a field.
func (r record) numbers(i int) (numbers []float64) {
	for field := range strings.FieldsSeq(r.text(i)) {
		v, _ := strconv.ParseFloat(field, 64) // a test reads every line
		numbers = append(numbers, v)
	}
	return numbers
}

// writeNumbers writes numbers as in a field.
func writeNumbers(numbers []float64) string {
	return strings.Trim(fmt.Sprint(numbers), "[]")
}

// number returns the first number in a field, NaN where there is none.
func (r record) number(i int) float64 {
	numbers := r.numbers(i)
	if len(numbers) == 0 {
		return math.NaN()
	}
	return numbers[0]
}

// crsDefinition converts between the coordinates of a CRS and degrees on WGS 84.
type crsDefinition struct {
	name          string
	method        int                  // EPSG code of the projection's method; 0 for a geographic CRS
	parameters    projectionParameters // of the method
	projection    projection           // to degrees east of Greenwich on the CRS's own datum
	datum         int                  // EPSG code, 0 where unknown
	toWGS84       []float64            // the file's own shift, as in datumShift; nil: use those of the registry
	shifts        []datumShift         // to WGS 84, the most accurate first
	assumed       []string             // names of parameters that the file lacks; they are taken for 0
	horizontal    int                  // EPSG code of the horizontal part of a compound CRS
	vertical      int                  // EPSG code of the vertical part of a compound CRS
	ellipsoid     ellipsoid
	primeMeridian float64   // degrees east of Greenwich
	unit          float64   // of coordinates, in metres; in degrees for a geographic CRS
	accuracyM     float64   // of a projection with sphereOrEllipsoid: the largest error, in metres; else 0
	area          []float64 // of use: west, south, east and north in degrees; nil: the world, or unknown
	axes          string    // "": as in the method's formulas; "sw", "nw": where x and y point to
}

// crsByCode returns the CRS of an EPSG code, or says why its coordinates are not converted to
// degrees.
func crsByCode(code int) (c crsDefinition, err error) {
	r := findRecord(recordCRS, code)

	switch r.text(1) {
	case "C": // compound
		c, err = crsByCode(r.code(2))
		c.horizontal = r.code(2)
		c.vertical = r.code(3)
	case "G": // geographic
		c.setDatum(r.code(2))
		c.unit = r.number(3)
		err = c.setProjection()
	case "P": // projected
		base := findRecord(recordCRS, r.code(2))
		conversion := findRecord(recordProjection, r.code(3))
		c.setDatum(base.code(2))
		c.setParameters(conversion)
		c.unit = r.number(4)
		c.axes = r.text(5)
		err = c.setProjection()
	case "V": // vertical
		err = fmt.Errorf("EPSG:%d, %s, is a vertical CRS", code, r.name())
	case "X": // geocentric
		err = fmt.Errorf("EPSG:%d, %s, is geocentric: its X and Y are not map coordinates", code, r.name())
	default:
		err = fmt.Errorf("EPSG:%d is not a CRS in the built-in registry", code)
	}

	c.name = r.name()
	area := findRecord(recordArea, code).numbers(1)
	if area != nil {
		c.area = area
	}
	return c, err
}

// text returns the CRS as a text for crsByDefinition. Its fields, written as in the registry, are
// the datum, method, parameters, ellipsoid, prime meridian, unit, axes and the file's own shift.
func (c *crsDefinition) text() string {
	var parameters []float64
	for _, r := range c.methodParameters() {
		parameters = append(parameters, c.parameters[r.code(1)])
	}

	return fmt.Sprintf("%d;%d;%s;%v %v;%v;%v;%s;%s",
		c.datum,
		c.method,
		writeNumbers(parameters),
		c.ellipsoid.a,
		c.ellipsoid.inverseFlattening,
		c.primeMeridian,
		c.unit,
		c.axes,
		writeNumbers(c.toWGS84))
}

// crsByDefinition returns the CRS whose text this is.
func crsByDefinition(text string) (c crsDefinition, err error) {
	r := record(strings.Split(text, ";"))

	c.datum = r.code(0)
	c.setParameters(r)
	c.ellipsoid.a = r.number(3)
	if figures := r.numbers(3); len(figures) > 1 {
		c.ellipsoid.inverseFlattening = figures[1]
	}
	c.primeMeridian = r.number(4)
	c.unit = r.number(5)
	c.axes = r.text(6)
	c.toWGS84 = r.numbers(7)

	err = c.setProjection()
	return c, err
}

// lastCRS caches the last results of crsByCode and codeOf: most files of a folder have one CRS.
type lastCRS struct {
	// Of crsByCode.
	code int
	crs  crsDefinition
	err  error

	// Of codeOf.
	wkt    string
	codeOf int // of the CRS in wkt, 0 where there is none
}

// byCode is crsByCode with that cache.
func (l *lastCRS) byCode(code int) (crsDefinition, error) {
	if l.code != code {
		l.crs, l.err = crsByCode(code)
		l.code = code
	}
	return l.crs, l.err
}

// isGeographicCode reports whether code is that of a geographic CRS.
func isGeographicCode(code int) bool {
	return findRecord(recordCRS, code).text(1) == "G"
}

// setDatum sets the datum, its ellipsoid and its prime meridian. It ignores an unknown code.
func (c *crsDefinition) setDatum(code int) {
	r := findRecord(recordDatum, code)
	if r == nil {
		return
	}

	c.datum = code
	c.ellipsoid = ellipsoidByCode(r.code(1))
	c.primeMeridian = r.number(2)
}

// ellipsoidByCode returns the ellipsoid of an EPSG code, one of NaN where there is none.
func ellipsoidByCode(code int) ellipsoid {
	r := findRecord(recordEllipsoid, code)
	return ellipsoid{
		a:                 r.number(1),
		inverseFlattening: r.number(2),
	}
}

// setParameters sets method and parameters from the record of a projection.
func (c *crsDefinition) setParameters(r record) {
	c.method = r.code(1)
	c.parameters = projectionParameters{}
	values := r.numbers(2)
	for i, parameter := range c.methodParameters() {
		if i < len(values) {
			c.parameters[parameter.code(1)] = values[i]
		}
	}
}

// methodParameters returns the records of the method's parameters in their order.
func (c *crsDefinition) methodParameters() (records []record) {
	codes := findRecord(recordMethod, c.method).text(1)
	for code := range strings.FieldsSeq(codes) {
		records = append(records, recordOfKey(recordParameter+code))
	}
	return records
}

// setProjection sets the projection and the datum shifts once all the other fields are set.
func (c *crsDefinition) setProjection() (err error) {
	c.shifts = datumShifts(c.datum)
	if c.toWGS84 != nil {
		c.shifts = []datumShift{{
			operations: "TOWGS84",
			accuracyM:  accuracyTOWGS84,
			area: []float64{
				-180,
				-90,
				180,
				90,
			},
			values: c.toWGS84,
		}}
	}

	if c.ellipsoid.inverseFlattening == 0 {
		c.ellipsoid.inverseFlattening = math.Inf(1)
	}

	if c.method == 0 {
		c.projection = projection{
			formula:   formulaGeographic,
			ellipsoid: c.ellipsoid,
		}
	} else {
		c.projection, err = newProjection(c.method, c.ellipsoid, c.parameters)
		if err != nil {
			return fmt.Errorf("its projection is not supported: %w", err)
		}
	}

	c.projection.longitude += c.primeMeridian
	c.projection.unit = c.unit
	switch c.axes {
	case "sw": // x points south and y west, while the method's coordinates point east and north
		c.projection.axes = [4]float64{
			0, -1,
			-1, 0,
		}
	case "nw": // x points north and y west, the method's west and north; both false coordinates are equal
		c.projection.axes = [4]float64{
			0, 1,
			-1, 0,
		}
	}
	return nil
}

// Kinds of CRSs, as the GeoKey GTModelType numbers them.
const (
	modelTypeProjected  = 1
	modelTypeGeographic = 2
	modelTypeGeocentric = 3
)

// crsParameters is a CRS as a file describes it, in GeoKeys or in WKT. A code of 0 is absent.
type crsParameters struct {
	present           bool // the file describes its CRS
	kind              int  // modelTypeProjected, modelTypeGeographic or modelTypeGeocentric; 0: absent
	name              string
	code              int // EPSG code of the CRS
	geographic        int // EPSG code of the geographic CRS, or of the one below a projected CRS
	datum             int // EPSG code
	ellipsoid         ellipsoid
	primeMeridian     float64 // degrees east of Greenwich; NaN: absent, infinite: unknown
	angularUnit       float64 // degrees; 0: absent, NaN: unknown
	linearUnit        float64 // metres; 0: absent, NaN: unknown
	citedUnit         float64 // metres, as a citation says; 0: absent
	projectionCode    int     // EPSG code of a projection with its parameters
	method            int     // EPSG code of a projection's method
	vertical          int     // EPSG code of the vertical CRS
	verticalName      string
	reversed          bool      // an axis points west or south
	toWGS84           []float64 // as in datumShift; nil where absent
	values            projectionParameters
	sphereOrEllipsoid bool   // programs disagree which of the two the method's name means
	wkt               string // the well-known text that describes the CRS; "" for GeoKeys
}

// newCRSParameters returns a CRS of which nothing is known.
func newCRSParameters() crsParameters {
	return crsParameters{
		ellipsoid: ellipsoid{
			a:                 math.NaN(),
			inverseFlattening: math.NaN(),
		},
		primeMeridian: math.NaN(),
		values:        projectionParameters{},
	}
}

// geographicCRS returns the geographic CRS of an EPSG code.
func geographicCRS(code int) crsParameters {
	return crsParameters{
		present:    true,
		kind:       modelTypeGeographic,
		code:       code,
		geographic: code,
	}
}

// withoutCode returns the CRS that datum and parameters define, or says what is missing or unknown.
func (p *crsParameters) withoutCode() (c crsDefinition, err error) {
	c.setDatum(p.datum)
	if isGeographicCode(p.geographic) {
		c.setDatum(findRecord(recordCRS, p.geographic).code(2))
	}

	// A different ellipsoid makes it a different datum.
	if isFinite(p.ellipsoid.a) {
		difference := c.ellipsoid.inverseFlattening - p.ellipsoid.inverseFlattening
		hasSameAxis := sameUnit(c.ellipsoid.a, p.ellipsoid.a)
		hasSameFlattening := math.Abs(difference) < 1e-3
		if !hasSameAxis || !hasSameFlattening {
			c.datum = 0
		}
		c.ellipsoid = p.ellipsoid
	}

	if !math.IsNaN(p.primeMeridian) {
		c.primeMeridian = p.primeMeridian
	}

	// Zeros beside a datum of the registry are a default.
	isNotZero := func(v float64) bool { return v != 0 }
	isShift := slices.ContainsFunc(p.toWGS84, isNotZero)
	if isShift || c.datum == 0 {
		c.toWGS84 = p.toWGS84
	}

	for i, v := range p.toWGS84 {
		limit := 10_000.0 // metres; EPSG has up to 2624
		if i >= 3 {
			limit = 1_000 // arc-seconds and parts per million; EPSG has up to 268
		}

		isSmall := math.Abs(v) < limit
		if !isSmall { // or NaN
			return c, fmt.Errorf("its shift to WGS 84, TOWGS84[%s], is too large", writeNumbers(p.toWGS84))
		}
	}

	c.unit = cmp.Or(p.linearUnit, 1)
	if p.kind == modelTypeGeographic {
		c.unit = cmp.Or(p.angularUnit, 1)
	}

	const (
		earthRadius = 6.371e6
		margin      = 0.01 // every ellipsoid of the Earth is within 0.2 %
	)

	e := &c.ellipsoid
	isGeographic := p.kind == modelTypeGeographic && p.geographic != 0
	hasRadius := math.Abs(e.a-earthRadius) <= margin*earthRadius
	hasFlattening := e.inverseFlattening == 0 || e.inverseFlattening > 100
	switch {
	case isGeographic && e.a == 0: // degrees on any ellipsoid
		e.a = earthRadius
	case e.a == 0:
		return c, errors.New("its CRS has no EPSG code, and its datum and ellipsoid are unknown")
	case !hasRadius, !hasFlattening:
		return c, fmt.Errorf("its ellipsoid (semi-major axis %v m, 1/%v) is not one of the Earth",
			e.a,
			e.inverseFlattening)
	}

	switch {
	case math.IsInf(c.primeMeridian, 0):
		return c, errors.New("its prime meridian is unknown")
	case !(c.unit > 0):
		return c, errors.New("its unit is unknown")
	case p.reversed:
		return c, errors.New("its CRS has no EPSG code, and one of its axes points west or south")
	case p.kind == modelTypeGeographic:
		return c, c.setProjection()
	}
	return c, p.project(&c)
}

// project sets the projection of c. A missing scale is 1, a missing skew angle the azimuth, a
// missing latitude of origin the only standard parallel, and any other parameter 0.
func (p *crsParameters) project(c *crsDefinition) error {
	// A projection of the registry has all its parameters.
	c.setParameters(findRecord(recordProjection, p.projectionCode))
	if c.method != 0 {
		return c.setProjection()
	}

	// The parameters tell between variants of a method.
	c.method = p.method
	parallel, first := p.values[parameterStandardParallel1]
	_, second := p.values[parameterStandardParallel2]
	latitude := p.values[parameterLatitudeOfOrigin]
	isPolarB := c.method == methodPolarStereographicB
	isPolar := c.method == methodPolarStereographicA || isPolarB
	hasNoLatitude := latitude == 0 && parallel == 0

	switch {
	case c.method == 0:
		return errors.New("its CRS has no EPSG code, and its projection is not supported")
	case isPolar && sameUnit(math.Abs(latitude), 90): // the scale is the one at the pole
		c.method = methodPolarStereographicA
		p.values[parameterLatitudeOfOrigin] = math.Copysign(90, latitude)
	case isPolarB && hasNoLatitude:
		return errors.New("its polar stereographic projection gives neither a latitude nor a pole")
	case c.method == methodLambertConic2SP && !second:
		c.method = methodLambertConic1SP
	case c.method == methodMercatorA && first:
		c.method = methodMercatorB
	}

	c.parameters = projectionParameters{}
	for _, r := range c.methodParameters() {
		canonical := r.code(1)
		v, given := p.values[canonical]
		if !given {
			switch canonical {
			case parameterLatitudeOfOrigin: // the only standard parallel
				v = p.values[parameterStandardParallel1]
			case parameterSkewAngle: // by default the grid is turned to north
				v = p.values[parameterAzimuth]
			case parameterScale, parameterEllipsoidScale:
				v = 1
			case parameterFalseEasting, parameterFalseNorthing:
				v = 0
			default:
				c.assumed = append(c.assumed, r.name())
			}
		}

		if !isFinite(v) {
			return fmt.Errorf("its CRS has no EPSG code, and its projection parameter %q is not a number", r.name())
		}
		c.parameters[canonical] = v
	}

	if code := p.unusedParameter(c); code != 0 {
		return fmt.Errorf("its CRS has no EPSG code, and %q has no parameter %q, which the file gives as %v",
			findRecord(recordMethod, c.method).name(),
			findRecord(recordParameter, code).name(),
			p.values[code])
	}

	err := c.setProjection()

	// On a sphere latitudes differ by up to 25.4 km, and parallels by their length.
	if p.sphereOrEllipsoid && c.projection.e2 > 0 {
		const latitudesM = 25_400

		onSphere := math.Cos(c.parameters[parameterStandardParallel1] * radian)
		ratio := c.projection.axes[0] / onSphere
		c.accuracyM = latitudesM + math.Pi*c.ellipsoid.a*(ratio-1)
	}
	return err
}

// unusedParameter returns a parameter that the file gives and the method of c lacks, 0 where there
// is none. It ignores neutral values: some programs write parameters without a meaning as 0.
func (p *crsParameters) unusedParameter(c *crsDefinition) int {
	codes := [...]int{
		parameterLatitudeOfOrigin,
		parameterScale,
		parameterStandardParallel1,
		parameterStandardParallel2,
	}
	for _, code := range codes {
		neutral := []float64{0}
		switch code {
		case parameterScale:
			neutral = append(neutral, 1)
		case parameterStandardParallel1,
			parameterStandardParallel2:
			neutral = append(neutral,
				c.parameters[parameterLatitudeOfOrigin],
				c.parameters[parameterStandardParallel1])
		}

		_, used := c.parameters[code]
		isNeutral := slices.Contains(neutral, p.values[code])
		if !used && !isNeutral {
			return code
		}
	}

	return 0
}

// sameUnit reports whether two units differ by rounding at most. Both kinds of foot differ by more.
func sameUnit(a, b float64) bool {
	const tolerance = 1e-6 // relative
	return math.Abs(a-b) <= tolerance*math.Abs(b)
}

// codeOf returns the EPSG code of a CRS that a file describes without one. It returns 0 if the
// registry has none with the same datum, projection, parameters and unit.
//
// Of several projected CRSs it returns the one whose name ends most like the file's, and of those
// the one with the lowest code. Of several geographic CRSs it returns the one below projected CRSs:
// the others have three dimensions.
func codeOf(c *crsDefinition, name string) (found int) {
	meridian := findRecord(recordDatum, c.datum).number(2)
	isDoubtful := len(c.assumed) > 0 || c.accuracyM > 0
	hasUsualMeridian := math.Abs(c.primeMeridian-meridian) < maxAngleRounding
	if isDoubtful || c.toWGS84 != nil || !hasUsualMeridian {
		return 0
	}

	// Codes of projections with these parameters.
	var projections []int
	for r := range registryRecords(recordProjection) {
		if r.code(1) == c.method && c.hasParameters(r.numbers(2)) {
			projections = append(projections, r.key())
		}
	}

	// Codes of geographic CRSs on this datum.
	var geographic []int
	for r := range registryRecords(recordCRS) {
		hasUnit := c.method != 0 || sameUnit(r.number(3), c.unit)
		isOnDatum := r[1] == "G" && r.code(2) == c.datum
		if isOnDatum && hasUnit {
			geographic = append(geographic, r.key())
		}
	}

	if c.method == 0 && len(geographic) == 1 {
		return geographic[0]
	}

	// The projected CRS with the best name, or the geographic CRS below the first one.
	likeness := -1
	for r := range registryRecords(recordCRS) {
		if r[1] != "P" || !slices.Contains(geographic, r.code(2)) {
			continue
		}
		if c.method == 0 {
			return r.code(2)
		}

		hasProjection := slices.Contains(projections, r.code(3))
		hasUnit := sameUnit(r.number(4), c.unit)
		hasUsualAxes := r[5] == ""
		if !hasProjection || !hasUnit || !hasUsualAxes {
			continue
		}

		alike := commonSuffix(plainName(r.name()), plainName(name))
		isLower := alike == likeness && r.key() < found
		if alike > likeness || isLower {
			found = r.key()
			likeness = alike
		}
	}

	return found
}

// Differences of parameters that rounding explains: about 5 cm on the ground.
const (
	maxAngleRounding  = 5e-7 // degrees
	maxLengthRounding = 2e-3 // metres
	maxScaleRounding  = 5e-9
)

// hasParameters reports whether these are the parameters of the method, up to rounding.
func (c *crsDefinition) hasParameters(values []float64) bool {
	for i, parameter := range c.methodParameters() {
		if i >= len(values) {
			return false
		}

		canonical := parameter.code(1)
		tolerance := maxAngleRounding
		switch canonical {
		case parameterFalseEasting,
			parameterFalseNorthing,
			parameterPlaneHeight:
			tolerance = maxLengthRounding
		case parameterScale,
			parameterEllipsoidScale:
			tolerance = maxScaleRounding
		}

		isAlike := math.Abs(values[i]-c.parameters[canonical]) <= tolerance
		if !isAlike { // or NaN
			return false
		}
	}
	return true
}

// commonSuffix returns how many bytes at their end two texts have in common.
func commonSuffix(a, b string) (n int) {
	shorter := min(len(a), len(b))
	for n < shorter && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}
