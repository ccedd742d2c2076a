package main

import (
	"math"
	"slices"
)

// meanRadiusM is the mean radius of the earth in metres: that of WGS 84, by NIMA TR8350.2.
const meanRadiusM = 6_371_008.7714

// lineString is a GeoJSON LineString (RFC 7946, section 3.1.4).
type lineString struct {
	Type        string      `json:"type"`
	Coordinates [][]float64 `json:"coordinates"`
}

// along returns so many points of the line, at least two, with equal distances between them. The
// first and the last are its ends. Between two corners the line is the great circle of a sphere. So
// it goes the shorter way, also across 180° and over a pole. The distances are up to 0.6 % off
// those on the ellipsoid. Between corners exactly opposite each other, any way may be taken.
func (line *lineString) along(samples int) (points []elevation) {
	// The corners on a sphere, whose radius is 1, and the angle along the line up to each.
	sphere := ellipsoid{1, math.Inf(1)}
	var corners [][3]float64
	angles := []float64{0}
	for i, at := range line.Coordinates {
		here := sphere.geocentric(at[0], at[1])
		corners = append(corners, here)
		if i == 0 {
			continue
		}

		last := corners[i-1]
		chord := math.Hypot(math.Hypot(here[0]-last[0], here[1]-last[1]), here[2]-last[2])
		angles = append(angles, angles[i-1]+2*math.Asin(min(chord/2, 1)))
	}

	length := angles[len(angles)-1]
	for i := range samples {
		angle := length * float64(i) / float64(samples-1)
		end, _ := slices.BinarySearch(angles, angle)
		end = max(1, min(end, len(angles)-1))

		// The weights of the corners before and after the point. If both were 0, the corners are
		// equal, and so is the point.
		before := max(math.Sin(angles[end]-angle), 1e-300)
		after := math.Sin(angle - angles[end-1])
		var v [3]float64
		for axis := range v {
			v[axis] = before*corners[end-1][axis] + after*corners[end][axis]
		}

		lon := math.Atan2(v[1], v[0])
		lat := math.Atan2(v[2], math.Hypot(v[0], v[1]))
		points = append(points, elevation{
			Point:     [2]float64{roundDegrees(lon), roundDegrees(lat)},
			DistanceM: new(math.Round(angle*meanRadiusM*1000) / 1000),
		})
	}
	return points
}

// roundDegrees returns an angle in degrees, with nine decimals: a tenth of a millimetre.
func roundDegrees(radians float64) float64 {
	return math.Round(radians*180/math.Pi*1e9) / 1e9
}
