package main

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// area is the coordinates of a GeoJSON MultiPolygon (RFC 7946, section 3.1.7): polygons of closed
// rings. The first ring is the outer one. A polygon may have no inside: see geometry.polygons.
type area [][][]position

// maxCorners is how many corners the area of a search may have. The area is compared with each file
// that its box meets.
const maxCorners = 1000

// geometry is a GeoJSON geometry (RFC 7946, section 3.1).
type geometry struct {
	Type        string          `json:"type"`
	Coordinates json.RawMessage `json:"coordinates"`
	Geometries  []geometry      `json:"geometries"` // of a GeometryCollection
}

// errNoGeometry says that a text is not a geometry.
var errNoGeometry = errors.New("not a GeoJSON geometry")

// polygons returns the geometry as the coordinates of a MultiPolygon, and how many corners it has.
// Lines and points are polygons without an inside: the ring of a line goes there and back, and a
// point is a line of two equal corners.
func (g geometry) polygons() (polygons area, corners int, err error) {
	if g.Type == "GeometryCollection" {
		for _, part := range g.Geometries {
			more, n, err := part.polygons()
			if err != nil {
				return nil, 0, err
			}
			polygons = append(polygons, more...)
			corners += n
		}
		return polygons, corners, nil
	}

	// One point, line or polygon is a list of one.
	kind, isMulti := strings.CutPrefix(g.Type, "Multi")
	list := string(g.Coordinates)
	if !isMulti {
		list = "[" + list + "]"
	}

	var points []position
	var lines [][]position
	into := map[string]any{
		"Point":      &points,
		"LineString": &lines,
		"Polygon":    &polygons,
	}[kind]

	// Unmarshal takes null for 0, and so a second coordinate that is missing.
	lacksNumber, _ := regexp.MatchString(`null|\[[^,[\]]*\]`, list)
	if into == nil || lacksNumber || json.Unmarshal([]byte(list), into) != nil {
		return nil, 0, errNoGeometry
	}

	for _, polygon := range polygons {
		for _, ring := range polygon {
			corners += len(ring)
		}
	}

	for _, line := range lines {
		corners += len(line)
		back := slices.Clone(line)
		slices.Reverse(back)
		polygons = append(polygons, [][]position{append(line, back...)})
	}

	corners += len(points)
	for _, p := range points {
		polygons = append(polygons, [][]position{{p, p, p, p}})
	}
	return polygons, corners, nil
}

// readGeometry reads a GeoJSON geometry, and returns what geometry.area does. ok is false for any
// other text.
func readGeometry(text string, most int) (box []float64, a area, ok bool) {
	// A corner has three numbers at most. Count before anything is built.
	var g geometry
	isTooLong := strings.Count(text, ",") > 3*most
	if isTooLong || json.Unmarshal([]byte(text), &g) != nil {
		return nil, nil, false
	}

	return g.area(most)
}

// area returns the geometry as an area, and the box around it: west, south, east, north. ok is
// false if it has more than most corners, or none.
func (g geometry) area(most int) (box []float64, a area, ok bool) {
	a, corners, err := g.polygons()
	if err != nil || len(a) == 0 || corners > most {
		return nil, nil, false
	}

	all := emptyRange()
	turned := emptyRange() // the same, with polygons that begin west of 0° moved 360° east
	for _, polygon := range a {
		around := emptyRange()
		for _, ring := range polygon {
			isClosed := len(ring) >= 4 && ring[0] == ring[len(ring)-1]
			if !isClosed {
				return nil, nil, false
			}
			around.add(ring...)
		}

		if len(polygon) == 0 {
			return nil, nil, false
		}

		outermost := [...]position{
			{around.west, around.south},
			{around.east, around.north},
		}
		for _, corner := range outermost {
			all.add(corner)
			if around.west < 0 {
				corner[0] += 360
			}
			turned.add(corner)
		}
	}

	// readBox refuses a box that lies beyond ±180°.
	if all.west >= -180 && all.east <= 180 {
		all.west, all.east = narrowerRange(all.west, all.east, turned.west, turned.east)
	}
	return []float64{all.west, all.south, all.east, all.north}, a, true
}

// boxMargin is how far, in degrees, a footprint may reach out of its file's box, which is rounded.
const boxMargin = 1e-8

// widened returns the box with a margin of boxMargin.
func (b mapBox) widened() *mapBox {
	return &mapBox{
		West:  b.West - boxMargin,
		South: b.South - boxMargin,
		East:  b.East + boxMargin,
		North: b.North + boxMargin,
	}
}

// areaOf returns a box as an area. It is cut at 180°.
func areaOf(box mapBox) (a area) {
	addPart := func(west, east float64) {
		a = append(a, [][]position{{
			{west, box.South},
			{east, box.South},
			{east, box.North},
			{west, box.North},
			{west, box.South},
		}})
	}

	addPart(box.West, min(box.East, 180))
	if box.East > 180 {
		addPart(-180, box.East-360)
	}
	return a
}

// narrowerRange returns the narrower of two ranges of longitudes around the same boxes. In the
// second range, boxes that begin west of 0° lie a turn further east. So boxes on both sides of 180°
// do not span the globe. The result is within ±180; across 180° its west is greater than its east.
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

// isApart reports whether the box around the edge from p to q does not meet the range.
func (r degreesRange) isApart(p, q position) bool {
	if max(p[0], q[0]) < r.west || min(p[0], q[0]) > r.east {
		return true
	}
	return max(p[1], q[1]) < r.south || min(p[1], q[1]) > r.north
}

// shareCore is slots.shareCore for the request of a context, whose statements q runs. It also
// returns the error of a context that has ended. In a command there is no request.
func shareCore(ctx context.Context, q querier) error {
	c, isRequest := ctx.Value(callerKey{}).(*caller)
	if !isRequest || ctx.Err() != nil {
		return ctx.Err()
	}

	_, isInTransaction := q.(pgx.Tx)
	return c.slots.shareCore(ctx, isInTransaction)
}

// edgesMeet reports whether an edge of a polygon meets an edge of a ring.
func edgesMeet(polygon [][]position, ring []position) bool {
	// The sign of side tells whether a position lies left or right of the line from p to q.
	side := func(p, q, at position) float64 {
		return (q[0]-p[0])*(at[1]-p[1]) - (q[1]-p[1])*(at[0]-p[0])
	}

	around := emptyRange()
	around.add(ring...)

	for _, edges := range polygon {
		for i, p := range edges[1:] {
			q := edges[i]
			if around.isApart(p, q) {
				continue
			}

			edge := emptyRange()
			edge.add(p, q)

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
