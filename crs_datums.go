package main

import (
	"math"
	"strconv"
)

// Accuracy in metres of degrees that are taken for WGS 84.
const (
	accuracyWGS84 = 0.1 // the best: rounding and the formulas may add this much

	// Without a known shift: the largest in EPSG, 2,203 m over the ground, of Kusaie 1951.
	accuracyUnknown = 2210
	// The same on the ellipsoid of WGS 84 or GRS 1980: 325 m, of GGRS87 in Greece.
	accuracyGeocentric = 330
	// For TOWGS84 in a file, without accuracy. In EPSG a stated accuracy is up to 50 m, once 800 m.
	accuracyTOWGS84 = 50
	// In EPSG an accuracy of 999 m means that it is not known.
	accuracyNotStated = 999
)

// datumShift is a transformation to WGS 84: EPSG methods 9603 and 9606 (position vector).
type datumShift struct {
	operations string // EPSG codes of the operations
	accuracyM  float64
	area       []float64 // that it is made for: west south east north in degrees

	// X, Y and Z in metres. There may be four more: turns about X, Y and Z in arc-seconds, and the
	// scale in parts per million. None: no shift is known.
	values []float64
}

// datumShifts returns a datum's shifts to WGS 84, the most accurate first.
func datumShifts(datum int) (shifts []datumShift) {
	for r := range registryRecords(recordShift + strconv.Itoa(datum) + ".") {
		s := datumShift{
			operations: r.text(1),
			accuracyM:  r.number(2),
			area:       r.numbers(3),
			values:     r.numbers(4),
		}
		if s.accuracyM == accuracyNotStated {
			s.accuracyM = accuracyUnknown
		}
		shifts = append(shifts, s)
	}

	return shifts
}

// shiftAt returns the most accurate shift to WGS 84 for a raster around lon, lat that reaches so
// many degrees from there.
//
// If no shift is made for lon, lat, the result has the accuracy of an unknown shift. Its values are
// those of the shift with the largest area within 10 degrees of the raster, if there is one.
func (c *crsDefinition) shiftAt(lon, lat, reach float64) datumShift {
	const near = 10 // degrees

	unknown := datumShift{accuracyM: accuracyUnknown}
	const tolerance = 1e-4 // GRS 1980 differs from WGS 84 by less
	w := wgs84()
	difference := math.Abs(c.ellipsoid.inverseFlattening - w.inverseFlattening)
	isAlmostWGS84 := c.ellipsoid.a == w.a && difference < tolerance
	if isAlmostWGS84 {
		unknown.accuracyM = accuracyGeocentric
	}

	largest := 0.0 // square degrees
	for _, s := range c.shifts {
		west := s.area[0]
		south := s.area[1]
		north := s.area[3]

		half := math.Mod(s.area[2]-west+360, 360) / 2
		if half == 0 {
			half = 180
		}

		// How many degrees lon, lat is away from the area.
		fromMiddle := math.Remainder(lon-west-half, 360)
		away := max(
			math.Abs(fromMiddle)-half,
			south-lat,
			lat-north)
		if away <= 0 {
			s.accuracyM = max(s.accuracyM, accuracyWGS84)
			return s
		}

		size := half * (north - south)
		if away <= near+reach && size > largest {
			largest = size
			unknown.values = s.values
		}
	}

	return unknown
}

// geocentric returns the geocentric X, Y and Z in metres of a longitude and latitude in degrees, at
// height 0: EPSG Guidance Note 7-2, method 9602.
func (e ellipsoid) geocentric(lon, lat float64) [3]float64 {
	e2 := e.eccentricity2()
	sinLat, cosLat := math.Sincos(lat * math.Pi / 180)
	sinLon, cosLon := math.Sincos(lon * math.Pi / 180)

	n := e.a / math.Sqrt(1-e2*sinLat*sinLat)
	return [3]float64{
		n * cosLat * cosLon,
		n * cosLat * sinLon,
		n * (1 - e2) * sinLat,
	}
}

// toWGS84 moves a point at height 0 to WGS 84, in degrees. The longitude is continuous at ±180.
//
// It goes to geocentric coordinates and shifts them: EPSG Guidance Note 7-2, methods 9602 and 9606.
// It comes back by Bowring's formula.
func (s *datumShift) toWGS84(e ellipsoid, lon, lat float64) (float64, float64) {
	if len(s.values) == 0 {
		return lon, lat
	}

	at := e.geocentric(lon, lat)
	x := at[0]
	y := at[1]
	z := at[2]

	// Turn and scale.
	if v := s.values; len(v) == 7 {
		const second = math.Pi / 180 / 3600

		m := 1 + v[6]*1e-6
		rx := v[3] * second
		ry := v[4] * second
		rz := v[5] * second

		turnedX := m * (x - rz*y + ry*z)
		turnedY := m * (rz*x + y - rx*z)
		turnedZ := m * (-ry*x + rx*y + z)
		x = turnedX
		y = turnedY
		z = turnedZ
	}

	// Move.
	x = x + s.values[0]
	y = y + s.values[1]
	z = z + s.values[2]

	// Back to degrees, by Bowring's formula.
	w := wgs84()
	p := math.Hypot(x, y)
	e2 := w.eccentricity2()
	b := w.a * math.Sqrt(1-e2)
	sinU, cosU := math.Sincos(math.Atan2(z*w.a, p*b))

	lat = math.Atan2(
		z+e2/(1-e2)*b*sinU*sinU*sinU,
		p-e2*w.a*cosU*cosU*cosU) * 180 / math.Pi
	newLon := math.Atan2(y, x) * 180 / math.Pi
	return lon + math.Remainder(newLon-lon, 360), lat
}

// fromWGS84 inverts toWGS84 by fixed-point iteration. Each step gains at least three digits.
func (s *datumShift) fromWGS84(e ellipsoid, lon, lat float64) (float64, float64) {
	if len(s.values) == 0 || math.Abs(lat) > 90 {
		return lon, lat
	}

	atLon := lon
	atLat := lat
	for range 5 {
		toLon, toLat := s.toWGS84(e, atLon, atLat)
		atLon = atLon + lon - toLon
		atLat = min(max(atLat+lat-toLat, -90), 90)
	}

	return atLon, atLat
}
