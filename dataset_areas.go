package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// area is the coordinates of a GeoJSON MultiPolygon (RFC 7946, section 3.1.7): polygons of closed
// rings, the first of which is the outer one.
type area [][][]position

// maxCorners is how many corners an area may have. The area is compared with each file that its box
// meets.
const maxCorners = 1000

// readGeometry reads a GeoJSON Point, Polygon or MultiPolygon. It returns the query parameter of a
// fileFilter, point or bbox, with its value, and the area if it is not a point. ok is false for any
// other text, and for an area of more than maxCorners.
func readGeometry(text string) (parameter, value string, a area, ok bool) {
	// A corner has three numbers at most. Count before anything is built.
	if strings.Count(text, ",") > 3*maxCorners {
		return "", "", nil, false
	}

	var g struct {
		Type        string          `json:"type"`
		Coordinates json.RawMessage `json:"coordinates"`
	}
	var point []float64
	polygons := make([][][][]float64, 1)
	err := json.Unmarshal([]byte(text), &g)
	into := map[string]any{"Point": &point, "Polygon": &polygons[0], "MultiPolygon": &polygons}[g.Type]
	if err != nil || into == nil || json.Unmarshal(g.Coordinates, into) != nil {
		return "", "", nil, false
	}
	if g.Type == "Point" && len(point) >= 2 { // it may have a height
		return "point", fmt.Sprintf("%v,%v", point[0], point[1]), nil, true
	}
	ok = len(polygons) > 0
	corners := 0
	// turned: the same box, with polygons that begin west of 0° moved 360° east
	box, turned := emptyRange(), emptyRange()
	for _, polygon := range polygons {
		ok = ok && len(polygon) > 0
		var rings [][]position
		around := emptyRange()
		for _, ring := range polygon {
			var positions []position
			for _, p := range ring {
				p = append(p, math.NaN(), math.NaN()) // a missing coordinate becomes NaN, which is refused below
				positions = append(positions, position{p[0], p[1]})
				around.add(position{p[0], p[1]})
			}
			n := len(positions)
			corners += n
			ok = ok && n >= 4 && positions[0] == positions[n-1] && !math.IsNaN(around.west+around.south)
			rings = append(rings, positions)
		}
		a = append(a, rings)
		for _, corner := range [...]position{{around.west, around.south}, {around.east, around.north}} {
			box.add(corner)
			if around.west < 0 {
				corner[0] += 360
			}
			turned.add(corner)
		}
	}
	if box.west >= -180 && box.east <= 180 { // else the box is refused as it is
		box.west, box.east = narrower(box.west, box.east, turned.west, turned.east)
	}
	return "bbox", fmt.Sprintf("%v,%v,%v,%v", box.west, box.south, box.east, box.north), a, ok && corners <= maxCorners
}

// narrower returns the narrower of two ranges of longitudes around the same boxes, within ±180.
// Across 180° its west is greater than its east. In the second range, boxes that begin west of 0°
// lie a turn further east, so that boxes on both sides of 180° do not span the globe.
func narrower(west, east, turnedWest, turnedEast float64) (float64, float64) {
	if turnedEast-turnedWest < east-west {
		west, east = turnedWest, turnedEast
	}
	return normalizeLongitudes(west, east)
}

// meets reports whether the area and a footprint have a point in common: an edge of one meets an
// edge of the other, or one of them lies inside the other.
func (a area) meets(footprint multiPolygon) bool {
	for _, part := range footprint {
		for _, polygon := range a {
			if edgesMeet(polygon, part[0]) || isInside(part[0][0], polygon) || isInside(polygon[0][0], part[:]) {
				return true
			}
		}
	}
	return false
}

// edgesMeet reports whether an edge of a polygon meets an edge of a ring.
func edgesMeet(polygon [][]position, ring []position) bool {
	side := func(p, q, of position) float64 { // of the line from p to q: its sign
		return (q[0]-p[0])*(of[1]-p[1]) - (q[1]-p[1])*(of[0]-p[0])
	}
	for _, edges := range polygon {
		for i, p := range edges[1:] {
			q := edges[i]
			for j, a := range ring[1:] {
				b := ring[j]
				if max(p[0], q[0]) >= min(a[0], b[0]) && min(p[0], q[0]) <= max(a[0], b[0]) &&
					max(p[1], q[1]) >= min(a[1], b[1]) && min(p[1], q[1]) <= max(a[1], b[1]) &&
					side(p, q, a)*side(p, q, b) <= 0 && side(a, b, p)*side(a, b, q) <= 0 {
					return true
				}
			}
		}
	}
	return false
}

// isInside reports whether a polygon holds a position: a ray from there to the east crosses its
// rings an odd number of times.
func isInside(p position, polygon [][]position) (inside bool) {
	for _, ring := range polygon {
		for i, b := range ring[1:] {
			a := ring[i]
			if (a[1] > p[1]) != (b[1] > p[1]) && p[0] < a[0]+(p[1]-a[1])/(b[1]-a[1])*(b[0]-a[0]) {
				inside = !inside
			}
		}
	}
	return inside
}
