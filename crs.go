package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// epsgCSV is the registry of coordinate reference systems, EPSG's; its head says how its lines read.
//
//go:embed epsg.csv
var epsgCSV string

// registryAt gives the registry from the line of that key on, "" where there is none: by halving, as lines are sorted.
func registryAt(key string) string {
	key += ";"
	from, to := 0, len(epsgCSV)
	for from < to {
		middle := (from + to) / 2
		start := from + strings.LastIndexByte(epsgCSV[from:middle], '\n') + 1
		end := middle + strings.IndexByte(epsgCSV[middle:], '\n') + 1
		switch line := epsgCSV[start:end]; {
		case strings.HasPrefix(line, key):
			return epsgCSV[start:]
		case line < key:
			from = end
		default:
			to = start
		}
	}
	return ""
}

// registryLine gives the fields of the line of a kind (and a code or name), nil where there is none.
func registryLine(kind string, code int) []string {
	line, _, found := strings.Cut(registryAt(kind+strconv.Itoa(code)), "\n")
	if !found {
		return nil
	}
	return strings.Split(line, ";")
}

// registryName gives the code of a name in one of the lists ND, NM and NP, 0 where it is not there.
func registryName(list, name string) int {
	line, _, _ := strings.Cut(registryAt(list+wktName(name)), "\n")
	_, code, _ := strings.Cut(line, ";")
	return registryCode(code)
}

// registryCode reads a code of the registry.
func registryCode(s string) int {
	code, _ := strconv.Atoi(s)
	return code
}

// registryNumbers reads the numbers of a field of the registry.
func registryNumbers(s string) []float64 {
	fields := strings.Fields(s)
	numbers := make([]float64, len(fields))
	for i, field := range fields {
		numbers[i], _ = strconv.ParseFloat(field, 64) // a test reads every line
	}
	return numbers
}

// crsDefinition is how to get from the coordinates of a CRS to degrees, and back.
type crsDefinition struct {
	name                 string
	method               int             // EPSG code of the projection's method; 0 where the CRS is geographic
	parameters           map[int]float64 // of the method, by EPSG codes; degrees, metres, ratios
	projection           projection      // to degrees from Greenwich on its own datum
	datum                int             // EPSG code, 0 where it is not known
	shift                *datumShift     // to WGS 84, where the file gives it and not the registry
	shifts               []areaShift     // to WGS 84, by the registry
	assumed              []string        // parameters that the file should give and does not: they are 0
	horizontal, vertical int             // EPSG codes of the parts of a compound CRS
	ellipsoid            ellipsoid
	primeMeridian        float64 // degrees east of Greenwich
	unit                 float64 // metres; degrees where geographic
}

// crsByCode gives the CRS of an EPSG code; the error says what it is instead of one with a way to degrees.
func crsByCode(code int) (c crsDefinition, err error) {
	fields := registryLine("C", code)
	if fields == nil {
		return c, fmt.Errorf("EPSG:%d is no CRS of the registry here", code)
	}
	name := fields[len(fields)-1]
	switch fields[1] {
	case "C":
		c, err = crsByCode(registryCode(fields[2]))
		c.horizontal, c.vertical = registryCode(fields[2]), registryCode(fields[3])
	case "G":
		c.setDatum(registryCode(fields[2]))
		c.unit = registryNumbers(fields[3])[0]
		err = c.setProjection()
	case "P":
		c.setDatum(registryCode(registryLine("C", registryCode(fields[2]))[2]))
		c.setParameters(registryCode(fields[3]))
		c.unit = registryNumbers(fields[4])[0]
		err = c.setProjection()
		switch fields[5] {
		case "sw": // x is south and y west, though the method's are east and north
			c.projection.axes = [4]float64{0, -1, -1, 0}
		case "nw": // x is north and y west, though the method's are west and north; its false coordinates are the same
			c.projection.axes = [4]float64{0, 1, -1, 0}
		}
	case "V":
		err = fmt.Errorf("EPSG:%d, %s, is a vertical CRS", code, name)
	case "X":
		err = fmt.Errorf("EPSG:%d, %s, is geocentric: X and Y are not on the ground", code, name)
	}
	c.name = name
	return c, err
}

// lastCRS is the CRS that was asked for last: most files of a folder have the same.
type lastCRS struct {
	code int
	crs  crsDefinition
	err  error
}

// byCode is crsByCode.
func (l *lastCRS) byCode(code int) (crsDefinition, error) {
	if l.code != code {
		l.crs, l.err = crsByCode(code)
		l.code = code
	}
	return l.crs, l.err
}

// isGeographicCode says whether a code is that of a geographic CRS.
func isGeographicCode(code int) bool {
	fields := registryLine("C", code)
	return fields != nil && fields[1] == "G"
}

// setDatum takes ellipsoid and prime meridian of a datum. It does nothing where the code is none.
func (c *crsDefinition) setDatum(code int) {
	if fields := registryLine("D", code); fields != nil {
		c.datum, c.primeMeridian = code, registryNumbers(fields[2])[0]
		c.ellipsoid = ellipsoidByCode(registryCode(fields[1]))
	}
}

// ellipsoidByCode gives the ellipsoid of an EPSG code, NaN where there is none.
func ellipsoidByCode(code int) ellipsoid {
	if fields := registryLine("E", code); fields != nil {
		return ellipsoid{registryNumbers(fields[1])[0], registryNumbers(fields[2])[0]}
	}
	return ellipsoid{math.NaN(), math.NaN()}
}

// setParameters takes method and parameters of a projection. It does nothing where the code is none.
func (c *crsDefinition) setParameters(code int) {
	if fields := registryLine("O", code); fields != nil {
		c.method, c.parameters = registryCode(fields[1]), map[int]float64{}
		values := registryNumbers(fields[2])
		for i, parameter := range c.methodParameters() {
			c.parameters[parameter] = values[i]
		}
	}
}

// methodParameters gives the EPSG codes of the method's parameters, in their order; none where it is not known.
func (c *crsDefinition) methodParameters() (codes []int) {
	if fields := registryLine("M", c.method); fields != nil {
		for _, code := range strings.Fields(fields[1]) {
			codes = append(codes, registryCode(code))
		}
	}
	return codes
}

// setProjection makes the projection of all the rest.
func (c *crsDefinition) setProjection() (err error) {
	c.shifts = datumShifts(c.datum)
	if c.ellipsoid.inverseFlattening == 0 {
		c.ellipsoid.inverseFlattening = math.Inf(1)
	}
	if c.method == 0 {
		c.projection = projection{method: methodGeographic, ellipsoid: c.ellipsoid, longitude: c.primeMeridian, unit: c.unit}
		return nil
	}
	if c.projection, err = newProjection(c.method, c.ellipsoid, c.parameters); err != nil {
		return fmt.Errorf("its projection is not read: %w", err)
	}
	c.projection.longitude += c.primeMeridian
	c.projection.unit = c.unit
	return nil
}

// withoutCode gives a CRS that has no code, by its datum and its parameters.
func (p *crsParameters) withoutCode() (c crsDefinition, err error) {
	c.setDatum(p.datum)
	if isGeographicCode(p.geographic) {
		c.setDatum(registryCode(registryLine("C", p.geographic)[2]))
	}
	if own := c.ellipsoid; isFinite(p.ellipsoid.a) {
		c.ellipsoid = p.ellipsoid
		if !sameUnit(own.a, p.ellipsoid.a) || !(math.Abs(own.inverseFlattening-p.ellipsoid.inverseFlattening) < 1e-3) {
			c.datum = 0 // on another ellipsoid it is another datum
		}
	}
	if !math.IsNaN(p.primeMeridian) {
		c.primeMeridian = p.primeMeridian
	}
	if p.toWGS84 != nil && (c.datum == 0 || slices.Max(p.toWGS84) > 0 || slices.Min(p.toWGS84) < 0) {
		c.shift = &datumShift{operations: "TOWGS84", accuracyM: accuracyTOWGS84, values: p.toWGS84}
	}
	c.unit = cmp.Or(p.linearUnit, 1)
	if p.kind == crsGeographic {
		c.unit = cmp.Or(p.angularUnit, 1)
	}
	const earthRadius, margin = 6.371e6, 0.01 // every ellipsoid of the Earth is within 0.2 %
	switch e := &c.ellipsoid; {
	case p.kind == crsGeographic && p.geographic != 0 && e.a == 0: // degrees, on whatever
		e.a = earthRadius
	case e.a == 0:
		return c, errors.New("its CRS has no EPSG code, and neither its datum nor its ellipsoid is known")
	case !(math.Abs(e.a-earthRadius) <= margin*earthRadius) || !(e.inverseFlattening == 0 || e.inverseFlattening > 100):
		return c, fmt.Errorf("its ellipsoid (semi-major axis %v m, 1/%v) is not one of the Earth", e.a, e.inverseFlattening)
	}
	switch {
	case math.IsInf(c.primeMeridian, 0):
		return c, errors.New("its prime meridian is not one that is known")
	case !(c.unit > 0):
		return c, errors.New("its unit is not one that is known")
	case p.reversed:
		return c, errors.New("its CRS has no EPSG code, and an axis that points west or south")
	case p.kind == crsGeographic:
		return c, c.setProjection()
	}
	return c, p.project(&c)
}

// project sets the projection of a CRS that has no code. As in GDAL what is missing is 0, and a scale is 1.
func (p *crsParameters) project(c *crsDefinition) error {
	if c.setParameters(p.projectionCode); c.method != 0 {
		return c.setProjection()
	}
	c.method = p.method
	_, first := p.values[8823]
	_, second := p.values[8824]
	switch {
	case c.method == 0:
		return errors.New("its CRS has no EPSG code, and its projection is none of those that are read")
	case c.method == 9829 && sameUnit(math.Abs(p.values[8801]), 90): // the scale at the pole
		c.method = 9810
	case c.method == 9829 && p.values[8801] == 0 && p.values[8823] == 0:
		return errors.New("its polar stereographic projection does not say the latitude, nor which pole")
	case c.method == 9802 && !second:
		c.method = 9801
	case c.method == 9804 && first:
		c.method = 9805
	}
	c.parameters = map[int]float64{}
	for _, code := range c.methodParameters() {
		fields := registryLine("P", code)
		like := registryCode(fields[1])
		v, given := p.values[like]
		switch {
		case given:
		case like == 8801: // of the one standard parallel
			v = p.values[8823]
		case like == 8814: // by default the grid is turned to north
			v = p.values[8813]
		case like == 8805, like == 1038:
			v = 1
		case like != 8801 && like != 8806 && like != 8807:
			c.assumed = append(c.assumed, fields[2])
		}
		if !isFinite(v) {
			return fmt.Errorf("its CRS has no EPSG code, and the %s of its projection is no number", fields[2])
		}
		c.parameters[code] = v
	}
	return c.setProjection()
}

// printCRS is "cairn crs": what is known of a CRS, the coordinates in it of a longitude and latitude on WGS 84, or back.
func printCRS(args []string, stdout io.Writer) error {
	inverse := len(args) == 4 && args[1] == "--inverse"
	if inverse {
		args = []string{args[0], args[2], args[3]}
	}
	code, err := strconv.Atoi(strings.TrimPrefix(strings.ToUpper(strings.Join(args[:min(1, len(args))], "")), "EPSG:"))
	if err != nil || len(args) != 1 && len(args) != 3 {
		return fmt.Errorf("crs takes an EPSG code, and a longitude and latitude, or --inverse, x and y: %w", errUsage)
	}
	c, err := crsByCode(code)
	if len(args) == 1 && c.datum != 0 {
		c.describe(code, stdout)
	}
	if err != nil || len(args) == 1 {
		return err
	}
	x, errX := strconv.ParseFloat(args[1], 64)
	y, errY := strconv.ParseFloat(args[2], 64)
	decimals := 9
	if err = errors.Join(errX, errY); err != nil {
		return err
	}
	if inverse {
		if x, y, err = c.projection.inverse(x, y); err == nil {
			s := c.shiftAt(x, y, 0)
			x, y = s.toWGS84(c.ellipsoid, x, y)
		}
	} else {
		s := c.shiftAt(x, y, 0)
		x, y, err = c.projection.forward(s.fromWGS84(c.ellipsoid, x, y))
		if c.method != 0 {
			decimals = 4
		}
	}
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%.*f %.*f\n", decimals, x, decimals, y)
	}
	return err
}

// describe prints what is known of the CRS.
func (c *crsDefinition) describe(code int, w io.Writer) {
	last := func(kind string, code int) string {
		fields := registryLine(kind, code)
		return fmt.Sprintf("%s (EPSG:%d)", fields[len(fields)-1], code)
	}
	fmt.Fprintf(w, "%-16s%s\n", "EPSG:"+strconv.Itoa(code), c.name)
	datum := registryLine("D", c.datum)
	if c.method != 0 {
		fmt.Fprintf(w, "%-16s%s\n", "method", last("M", c.method))
		for _, parameter := range c.methodParameters() {
			fmt.Fprintf(w, "%-16s%-44s%v\n", "", last("P", parameter), c.parameters[parameter])
		}
	}
	fmt.Fprintf(w, "%-16s%v\n%-16s%s\n", "unit", c.unit, "datum", last("D", c.datum))
	e := c.ellipsoid
	fmt.Fprintf(w, "%-16s%s, %.10g m, 1/%.12g\n", "ellipsoid", last("E", registryCode(datum[1])), e.a, e.inverseFlattening)
	fmt.Fprintf(w, "%-16s%v\n", "prime meridian", c.primeMeridian)
	for i := 0; ; i++ {
		line, _, found := strings.Cut(registryAt(fmt.Sprintf("S%d.%02d", c.datum, i)), "\n")
		if fields := strings.Split(line, ";"); found {
			fmt.Fprintf(w, "%-16sby EPSG:%s to %s m in %s: %s\n", "to WGS 84", fields[1], fields[2], fields[3], fields[4])
			continue
		}
		fmt.Fprintf(w, "%-16sno shift is known elsewhere: up to %v m off\n", "", c.shiftAt(math.NaN(), 0, 0).accuracyM)
		return
	}
}
