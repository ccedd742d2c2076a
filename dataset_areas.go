package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// area is the coordinates of a GeoJSON MultiPolygon (RFC 7946, section 3.1.7): polygons of closed
// rings, the first of which is the outer one.
type area [][][]position

// maxCorners is how many corners the area of a search may have. The area is compared with each file
// that its box meets.
const maxCorners = 1000

// readGeometry reads a GeoJSON Point, Polygon or MultiPolygon. It returns the query parameter of a
// fileFilter, point or bbox, with its value, and the area if it is not a point. ok is false for any
// other text, and for an area of more than most corners.
func readGeometry(text string, most int) (parameter, value string, a area, ok bool) {
	// A corner has three numbers at most. Count before anything is built.
	if strings.Count(text, ",") > 3*most {
		return "", "", nil, false
	}

	var g struct {
		Type        string          `json:"type"`
		Coordinates json.RawMessage `json:"coordinates"`
	}
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return "", "", nil, false
	}

	var point []float64
	polygons := make([][][][]float64, 1)
	targets := map[string]any{
		"Point":        &point,
		"Polygon":      &polygons[0],
		"MultiPolygon": &polygons,
	}
	into := targets[g.Type]
	if into == nil || json.Unmarshal(g.Coordinates, into) != nil {
		return "", "", nil, false
	}

	if g.Type == "Point" && len(point) >= 2 { // it may have a height
		value = fmt.Sprintf("%v,%v", point[0], point[1])
		return "point", value, nil, true
	}

	ok = len(polygons) > 0
	corners := 0
	box := emptyRange()
	turned := emptyRange() // the same box, with polygons that begin west of 0° moved 360° east

	for _, polygon := range polygons {
		ok = ok && len(polygon) > 0
		var rings [][]position
		around := emptyRange()

		for _, ring := range polygon {
			positions := ringPositions(ring)
			for _, p := range positions {
				around.add(p)
			}

			n := len(positions)
			corners += n
			isClosed := n >= 4 && positions[0] == positions[n-1]
			isComplete := !math.IsNaN(around.west + around.south)
			ok = ok && isClosed && isComplete
			rings = append(rings, positions)
		}
		a = append(a, rings)

		outermost := [...]position{
			{around.west, around.south},
			{around.east, around.north},
		}
		for _, corner := range outermost {
			box.add(corner)
			if around.west < 0 {
				corner[0] += 360
			}
			turned.add(corner)
		}
	}

	// A box that lies beyond ±180° is refused as it is.
	if box.west >= -180 && box.east <= 180 {
		box.west, box.east = narrowerRange(box.west, box.east, turned.west, turned.east)
	}
	value = fmt.Sprintf("%v,%v,%v,%v", box.west, box.south, box.east, box.north)
	return "bbox", value, a, ok && corners <= most
}

// ringPositions returns the positions of a ring. A missing coordinate becomes NaN.
func ringPositions(ring [][]float64) (positions []position) {
	for _, p := range ring {
		p = append(p, math.NaN(), math.NaN())
		positions = append(positions, position{p[0], p[1]})
	}
	return positions
}

// narrowerRange returns the narrower of two ranges of longitudes around the same boxes, within
// ±180. Across 180° its west is greater than its east. In the second range, boxes that begin west
// of 0° lie a turn further east, so that boxes on both sides of 180° do not span the globe.
func narrowerRange(west, east, turnedWest, turnedEast float64) (float64, float64) {
	if turnedEast-turnedWest < east-west {
		west = turnedWest
		east = turnedEast
	}
	return normalizeLongitudes(west, east)
}

// meets reports whether the area and a footprint have a point in common: an edge of one meets an
// edge of the other, or one of them lies inside the other.
func (a area) meets(footprint multiPolygon) bool {
	for _, part := range footprint {
		ring := part[0]
		for _, polygon := range a {
			if edgesMeet(polygon, ring) {
				return true
			}

			// One may lie inside the other. Its first corner then does too.
			if isInside(ring[0], polygon) || isInside(polygon[0][0], part[:]) {
				return true
			}
		}
	}
	return false
}

// meetsFile reports whether the area and the footprint of a file with a box have a point in common.
func (a area) meetsFile(m extent) bool {
	box := degreesRange{
		west:  m.BBox[0],
		south: m.BBox[1],
		east:  m.BBox[2],
		north: m.BBox[3],
	}
	crossesAntimeridian := box.west > box.east
	if crossesAntimeridian || a.hasEdgeNear(box) {
		return a.meets(m.footprint())
	}

	// The whole box, and so the footprint, lies inside of a polygon or outside of all.
	corner := position{box.west, box.south}
	holdsCorner := func(polygon [][]position) bool {
		return isInside(corner, polygon)
	}
	return slices.ContainsFunc(a, holdsCorner)
}

// hasEdgeNear reports whether the box around an edge of the area meets a range.
func (a area) hasEdgeNear(r degreesRange) bool {
	for _, polygon := range a {
		for _, ring := range polygon {
			for i, q := range ring[1:] {
				if !r.isApart(ring[i], q) {
					return true
				}
			}
		}
	}
	return false
}

// isApart reports whether the box around the edge from p to q does not meet the range.
func (r degreesRange) isApart(p, q position) bool {
	if max(p[0], q[0]) < r.west || min(p[0], q[0]) > r.east {
		return true
	}
	return max(p[1], q[1]) < r.south || min(p[1], q[1]) > r.north
}

// findInArea returns up to limit files after the keys in after whose footprints meet the filter's
// area. It compares batches of maxHits files of the area's box until a batch has such a file: some
// clients take an empty page for the last one. next are the keys after which a further search goes
// on, or nil if there are no more files.
func findInArea(
	ctx context.Context,
	q querier,
	f fileFilter,
	after []string,
	limit int,
) (found []datasetFile, next []string, err error) {
	for len(found) == 0 {
		candidates, err := listFiles(ctx, q, f, after, maxHits)
		if err != nil {
			return nil, nil, err
		}

		for _, file := range candidates {
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}

			if len(found) == limit {
				return found, f.key(found[limit-1]), nil
			}
			if f.area.meetsFile(file.extent) {
				found = append(found, file)
			}
		}

		if len(candidates) < maxHits {
			return found, nil, nil
		}
		after = f.key(candidates[maxHits-1])
	}
	return found, after, nil
}

// edgesMeet reports whether an edge of a polygon meets an edge of a ring.
func edgesMeet(polygon [][]position, ring []position) bool {
	// The sign of side tells on which side of the line from p to q a position lies.
	side := func(p, q, at position) float64 {
		return (q[0]-p[0])*(at[1]-p[1]) - (q[1]-p[1])*(at[0]-p[0])
	}

	around := emptyRange()
	for _, p := range ring {
		around.add(p)
	}

	for _, edges := range polygon {
		for i, p := range edges[1:] {
			q := edges[i]
			if around.isApart(p, q) {
				continue
			}

			edge := emptyRange()
			edge.add(p)
			edge.add(q)

			for j, a := range ring[1:] {
				b := ring[j]
				if edge.isApart(a, b) {
					continue
				}

				// Each edge has its ends on both sides of the other.
				dividesRing := side(p, q, a)*side(p, q, b) <= 0
				dividesPolygon := side(a, b, p)*side(a, b, q) <= 0
				if dividesRing && dividesPolygon {
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
			crossesLatitude := (a[1] > p[1]) != (b[1] > p[1])
			if !crossesLatitude {
				continue
			}

			crossing := a[0] + (p[1]-a[1])/(b[1]-a[1])*(b[0]-a[0]) // a longitude
			if p[0] < crossing {
				inside = !inside
			}
		}
	}
	return inside
}
