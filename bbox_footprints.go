package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// multiPolygon is the coordinates of polygons of one ring each (RFC 7946, section 3.1.7).
type multiPolygon [][1][]position

// footprint returns the outline of a file's raster in degrees, counter-clockwise and cut at 180°.
// Its edges follow those of the raster in its CRS, and no two parts share an edge. If the registry
// does not know the CRS, or if the raster goes all around the globe, the outline is the box.
// Without a box, or without an area, there are no parts.
func (m *extent) footprint() (parts multiPolygon) {
	if m.BBox == nil {
		return nil
	}

	ring := m.outline()
	west, east := math.Inf(1), math.Inf(-1)
	for _, p := range ring {
		west, east = min(west, p[0]), max(east, p[0])
	}

	const rounding = 1e-9 // degrees
	isAroundPole := len(ring) > 0 && math.Abs(ring[len(ring)-1][0]-ring[0][0]) > 180
	switch {
	case isAroundPole:
		ring, west = aroundPole(ring, math.Copysign(90, m.BBox[3]+m.BBox[1]))
		east = west + 360
	case len(ring) == 0 || east-west >= 360-rounding:
		west, east = m.BBox[0], m.BBox[2]
		if east < west {
			east += 360
		}
		ring = []position{
			{west, m.BBox[1]},
			{east, m.BBox[1]},
			{east, m.BBox[3]},
			{west, m.BBox[3]},
		}
	}
	if signedArea(ring) < 0 {
		slices.Reverse(ring)
	}

	// Cut the ring at each 180° between west and east, and turn the parts back to ±180°.
	for turn := 360 * math.Floor((west+180)/360); turn-180 < east; turn += 360 {
		for _, eastern := range cutRing(ring, 1, turn-180) {
			for _, part := range cutRing(eastern, -1, -turn-180) {
				for i, p := range part {
					part[i] = position{math.Round((p[0]-turn)*1e9) / 1e9, math.Round(p[1]*1e9) / 1e9}
				}
				part = slices.Compact(append(part, part[0]))
				if len(part) >= 4 && signedArea(part) != 0 {
					parts = append(parts, [1][]position{part})
				}
			}
		}
	}
	return parts
}

// outline returns the raster's edges from a corner around and back to it. Longitudes are
// continuous: around a pole they end a turn further. It returns nil if the CRS is unknown, if an
// edge lies outside the projection's domain, or if the raster holds both poles.
func (m *extent) outline() (ring []position) {
	crs, _, ok := m.knownCRS()
	if !ok {
		return nil
	}
	raster, err := placeRaster(&crs, [6]float64(m.Transform), float64(*m.Width), float64(*m.Height))
	if err != nil {
		return nil
	}

	segments := 1
	if crs.projection.formula != formulaGeographic { // about 8 chords a degree: off by some metres at most
		turn := m.BBox[2] - m.BBox[0]
		if turn <= 0 {
			turn += 360
		}
		segments = 2 + int(min(8*max(m.BBox[3]-m.BBox[1], turn), 62))
	}

	points, whole := raster.trace(segments)
	if !whole {
		return nil
	}
	for _, point := range points {
		ring = append(ring, position{point.position[0], max(-90, min(90, point.position[1]))})
	}

	turns := math.Abs(math.Round((ring[len(ring)-1][0] - ring[0][0]) / 360))
	if len(raster.polesWithin(onEdge)) != int(turns) {
		return nil
	}
	return ring
}

// aroundPole returns the ring of the area between a ring around a pole and that pole. The ring is
// repeated a turn to each side, so that it covers the whole turn from west, which lies at ±180°.
func aroundPole(ring []position, pole float64) (area []position, west float64) {
	first := ring[0][0]
	last := ring[len(ring)-1][0]
	for turn := -1.0; turn <= 1; turn++ {
		for _, p := range ring {
			area = append(area, position{p[0] + turn*(last-first), p[1]})
		}
	}
	end := area[len(area)-1][0]
	start := area[0][0]
	area = append(area, position{end, pole}, position{start, pole})
	return area, 360*math.Round((first+last)/720) - 180
}

// cutRing returns the parts of a ring where side times longitude is more than limit. A part
// consists of pieces of the ring, each from where the ring enters that side to where it leaves it.
// Along the cut, the area lies between the n-th entry and the n-th exit, counted from the south.
func cutRing(ring []position, side, limit float64) (parts [][]position) {
	isOutside := func(p position) bool { return !(side*p[0] > limit) }
	first := slices.IndexFunc(ring, isOutside)
	if first < 0 {
		return [][]position{slices.Clone(ring)}
	}

	var pieces [][]position
	for i := range ring {
		from := ring[(first+i)%len(ring)]
		to := ring[(first+i+1)%len(ring)]
		if isOutside(from) && isOutside(to) {
			continue
		}
		if isOutside(from) {
			pieces = append(pieces, nil)
		}
		if isOutside(from) != isOutside(to) {
			f := (side*limit - from[0]) / (to[0] - from[0])
			cut := position{side * limit, from[1] + f*(to[1]-from[1])}
			pieces[len(pieces)-1] = append(pieces[len(pieces)-1], cut)
		}
		if !isOutside(to) {
			pieces[len(pieces)-1] = append(pieces[len(pieces)-1], to)
		}
	}

	// The pieces in the order of their entries, and in that of their exits.
	var entries, exits []int
	for i := range pieces {
		entries = append(entries, i)
		exits = append(exits, i)
	}
	slices.SortFunc(entries, func(a, b int) int { return cmp.Compare(pieces[a][0][1], pieces[b][0][1]) })
	slices.SortFunc(exits, func(a, b int) int {
		return cmp.Compare(pieces[a][len(pieces[a])-1][1], pieces[b][len(pieces[b])-1][1])
	})

	// Join each piece with the one whose entry has the number of its exit.
	for {
		from := slices.IndexFunc(pieces, func(piece []position) bool { return piece != nil })
		if from < 0 {
			return parts
		}
		var part []position
		for i := from; pieces[i] != nil; i = entries[slices.Index(exits, i)] {
			part = append(part, pieces[i]...)
			pieces[i] = nil
		}
		parts = append(parts, part)
	}
}

// signedArea returns twice the area of a ring, negative for a clockwise ring.
func signedArea(ring []position) (area float64) {
	for i, to := range ring {
		from := ring[(i+len(ring)-1)%len(ring)]
		area += (from[0]-ring[0][0])*(to[1]-ring[0][1]) - (to[0]-ring[0][0])*(from[1]-ring[0][1])
	}
	return area
}

// contains reports whether the file's raster covers a point, by its own CRS and transform: its box
// in degrees is larger than the raster. If the CRS is unknown, the box decides.
func (m *extent) contains(lon, lat float64) bool {
	crs, shift, ok := m.knownCRS()
	if !ok {
		return m.BBox != nil // the query has compared it
	}
	t := [6]float64(m.Transform)
	width := float64(*m.Width)
	height := float64(*m.Height)
	if math.Abs(lat) == 90 && crs.projection.isCylindrical() { // every longitude is that of the pole
		return true // the query has compared the latitude
	}

	lon, lat = shift.fromWGS84(crs.ellipsoid, lon, lat)
	x, y, err := crs.projection.forward(lon, lat)
	if err != nil {
		return false
	}
	if turn := crs.projection.fullTurn(); turn > 0 { // the raster may lie beyond ±180°
		middle, _ := applyTransform(t, width/2, height/2)
		x += turn * math.Round((middle-x)/turn)
	}

	const rounding = 1e-6 // in pixels, of a point on the edge
	col, row := invertTransform(t, x, y)
	isInColumns := col >= -rounding && col <= width+rounding
	isInRows := row >= -rounding && row <= height+rounding
	return isInColumns && isInRows
}

// knownCRS returns the file's CRS and its shift to WGS 84. ok is false if neither the registry nor
// the row knows the CRS, or if the raster has no transform.
func (m *extent) knownCRS() (crs crsDefinition, shift datumShift, ok bool) {
	hasCRS := m.CRS != nil || m.CRSDefinition != nil
	hasTransform := len(m.Transform) == 6 && m.Width != nil && m.Height != nil
	if !hasCRS || !hasTransform {
		return crs, shift, false
	}

	var err error
	if m.CRS != nil {
		crs, err = crsByText(*m.CRS)
	} else {
		crs, err = crsByDefinition(*m.CRSDefinition)
	}
	if err == nil {
		shift, err = crs.shiftOver([6]float64(m.Transform), float64(*m.Width), float64(*m.Height))
	}
	return crs, shift, err == nil
}

// crsByText returns the CRS of a text such as EPSG:4326. Any other text is an error.
func crsByText(text string) (crsDefinition, error) {
	code, err := strconv.Atoi(strings.TrimPrefix(text, "EPSG:"))
	if err != nil || !strings.HasPrefix(text, "EPSG:") {
		return crsDefinition{}, fmt.Errorf("%q is not an EPSG code", text)
	}
	return crsByCode(code)
}
