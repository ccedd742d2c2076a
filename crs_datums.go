package main

import (
	"math"
	"strconv"
	"strings"
)

// Accuracy of degrees that are taken for WGS 84, in metres.
const (
	accuracyWGS84 = 0.1 // at best: what rounding and the formulas may add
	// Where no shift is known, the largest that EPSG knows: that of Kusaie 1951 moves places by 2,203 m over the ground;
	// where the datum has the ellipsoid of WGS 84 or GRS 1980 at least, that of the Greek GGRS87, 325 m.
	accuracyUnknown, accuracyGeocentric = 2210, 330
	// Of TOWGS84 in a file, which does not say: as the least accurate of the shifts that EPSG gives an accuracy for.
	accuracyTOWGS84 = 50
)

// datumShift is a transformation to WGS 84, EPSG methods 9603 and 9606 (position vector).
type datumShift struct {
	operations string // their EPSG codes
	accuracyM  float64
	values     []float64 // metres X Y Z, arc-seconds X Y Z, parts per million; the first three; none where there is no shift
}

// areaShift is a transformation and the area, in degrees, that it is for.
type areaShift struct {
	datumShift
	west, south, east, north float64
}

// datumShifts gives the registry's transformations of a datum, the most accurate first.
func datumShifts(datum int) (shifts []areaShift) {
	key := "S" + strconv.Itoa(datum) + "."
	for rest := registryAt(key + "00"); strings.HasPrefix(rest, key); {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		fields := strings.Split(line, ";")
		area := registryNumbers(fields[3])
		shift := datumShift{fields[1], max(accuracyWGS84, registryNumbers(fields[2])[0]), registryNumbers(fields[4])}
		shifts = append(shifts, areaShift{shift, area[0], area[1], area[2], area[3]})
	}
	return shifts
}

// shiftAt gives the transformation to WGS 84 that is the most accurate at the middle of a raster that reaches so many
// degrees around. Where none is made for the place it is the one of the largest area, if the raster comes near that, or
// none; its accuracy is then unknown.
func (c *crsDefinition) shiftAt(lon, lat, reach float64) datumShift {
	if c.shift != nil {
		return *c.shift
	}
	const near = 10 // degrees
	unknown := datumShift{accuracyM: accuracyUnknown}
	if c.ellipsoid.a == wgs84().a && math.Abs(c.ellipsoid.inverseFlattening-wgs84().inverseFlattening) < 1e-4 {
		unknown.accuracyM = accuracyGeocentric
	}
	largest := 0.0 // area near the place, in degrees
	for _, s := range c.shifts {
		half := math.Mod(s.east-s.west+360, 360) / 2
		if half == 0 {
			half = 180
		}
		away := max(math.Abs(math.Remainder(lon-s.west-half, 360))-half, s.south-lat, lat-s.north)
		if away <= 0 {
			return s.datumShift
		}
		if size := half * (s.north - s.south); away <= near+reach && size > largest {
			largest, unknown.values = size, s.values
		}
	}
	return unknown
}

// toWGS84 moves degrees from an ellipsoid at height 0 to WGS 84: EPSG Guidance Note 7-2, methods 9602 (geocentric
// coordinates; back by Bowring's formula) and 9606 (position vector). The longitude stays within half a turn.
func (s *datumShift) toWGS84(e ellipsoid, lon, lat float64) (float64, float64) {
	if len(s.values) == 0 {
		return lon, lat
	}
	e2 := e.eccentricity2()
	sinLat, cosLat := math.Sincos(lat * math.Pi / 180)
	sinLon, cosLon := math.Sincos(lon * math.Pi / 180)
	n := e.a / math.Sqrt(1-e2*sinLat*sinLat)
	x, y, z := n*cosLat*cosLon, n*cosLat*sinLon, n*(1-e2)*sinLat
	if v := s.values; len(v) == 7 {
		const second = math.Pi / 180 / 3600
		m, rx, ry, rz := 1+v[6]*1e-6, v[3]*second, v[4]*second, v[5]*second
		x, y, z = m*(x-rz*y+ry*z), m*(rz*x+y-rx*z), m*(-ry*x+rx*y+z)
	}
	x, y, z = x+s.values[0], y+s.values[1], z+s.values[2]
	w, p := wgs84(), math.Hypot(x, y)
	e2 = w.eccentricity2()
	b := w.a * math.Sqrt(1-e2)
	sinU, cosU := math.Sincos(math.Atan2(z*w.a, p*b))
	lat = math.Atan2(z+e2/(1-e2)*b*sinU*sinU*sinU, p-e2*w.a*cosU*cosU*cosU) * 180 / math.Pi
	return lon + math.Remainder(math.Atan2(y, x)*180/math.Pi-lon, 360), lat
}

// fromWGS84 is the way back from toWGS84, by fixed-point iteration: each step gains three digits or more.
func (s *datumShift) fromWGS84(e ellipsoid, lon, lat float64) (float64, float64) {
	if len(s.values) == 0 || math.Abs(lat) > 90 {
		return lon, lat
	}
	atLon, atLat := lon, lat
	for range 5 {
		toLon, toLat := s.toWGS84(e, atLon, atLat)
		atLon, atLat = atLon+lon-toLon, min(max(atLat+lat-toLat, -90), 90)
	}
	return atLon, atLat
}
