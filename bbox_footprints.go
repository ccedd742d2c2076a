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
	west := math.Inf(1)
	east := math.Inf(-1)
	for _, p := range ring {
		west = min(west, p[0])
		east = max(east, p[0])
	}

	// An outline around a pole ends a turn further than it begins.
	isAroundPole := len(ring) > 0 && math.Abs(ring[len(ring)-1][0]-ring[0][0]) > 180

	const rounding = 1e-9 // degrees
	isAroundGlobe := east-west >= 360-rounding
	switch {
	case isAroundPole:
		pole := math.Copysign(90, m.BBox[3]+m.BBox[1])
		ring, west = aroundPole(ring, pole)
		east = west + 360
	case len(ring) == 0 || isAroundGlobe:
		west = m.BBox[0]
		east = m.BBox[2]
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

	isClockwise := signedArea(ring) < 0
	if isClockwise {
		slices.Reverse(ring)
	}

	// Cut the ring at each 180° between west and east, and turn the parts back to ±180°.
	turn := 360 * math.Floor((west+180)/360)
	for ; turn-180 < east; turn += 360 {
		for _, eastern := range cutRing(ring, 1, turn-180) {
			for _, part := range cutRing(eastern, -1, -turn-180) {
				for i, p := range part {
					part[i] = position{
						math.Round((p[0]-turn)*1e9) / 1e9,
						math.Round(p[1]*1e9) / 1e9,
					}
				}

				// Close the ring, and leave out repeated corners.
				part = slices.Compact(append(part, part[0]))
				isRing := len(part) >= 4
				if isRing && signedArea(part) != 0 {
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

	raster, err := placeRaster(
		&crs,
		[6]float64(m.Transform),
		float64(*m.Width),
		float64(*m.Height),
	)
	if err != nil {
		return nil
	}

	// With about 8 chords a degree, a curved edge is off by some metres at most.
	segments := 1
	isCurved := crs.projection.formula != formulaGeographic
	if isCurved {
		turn := m.BBox[2] - m.BBox[0]
		if turn <= 0 {
			turn += 360
		}
		degrees := max(m.BBox[3]-m.BBox[1], turn)
		segments = 2 + int(min(8*degrees, 62))
	}

	points, whole := raster.trace(segments)
	if !whole {
		return nil
	}

	for _, point := range points {
		lon := point.position[0]
		lat := max(-90, min(90, point.position[1]))
		ring = append(ring, position{lon, lat})
	}

	// The ring makes a turn around each pole that the raster holds.
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
			lon := p[0] + turn*(last-first)
			area = append(area, position{lon, p[1]})
		}
	}

	// Close the ring along the pole.
	end := area[len(area)-1][0]
	start := area[0][0]
	area = append(
		area,
		position{end, pole},
		position{start, pole},
	)

	west = 360*math.Round((first+last)/720) - 180
	return area, west
}

// cutRing returns the parts of a ring where side times longitude is more than limit. A part
// consists of pieces of the ring, each from where the ring enters that side to where it leaves it.
// Along the cut, the area lies between the n-th entry and the n-th exit, counted from the south.
func cutRing(ring []position, side, limit float64) (parts [][]position) {
	isOutside := func(p position) bool {
		return !(side*p[0] > limit)
	}
	first := slices.IndexFunc(ring, isOutside)
	if first < 0 {
		return [][]position{slices.Clone(ring)}
	}

	var pieces [][]position
	for i := range ring {
		from := ring[(first+i)%len(ring)]
		to := ring[(first+i+1)%len(ring)]
		startsOutside := isOutside(from)
		endsOutside := isOutside(to)
		if startsOutside && endsOutside {
			continue
		}

		if startsOutside {
			pieces = append(pieces, nil)
		}

		last := len(pieces) - 1
		if startsOutside != endsOutside {
			f := (side*limit - from[0]) / (to[0] - from[0])
			lat := from[1] + f*(to[1]-from[1])
			cut := position{side * limit, lat}
			pieces[last] = append(pieces[last], cut)
		}
		if !endsOutside {
			pieces[last] = append(pieces[last], to)
		}
	}

	// Sort the pieces by the latitudes of their entries, and by those of their exits.
	var entries []int
	var exits []int
	for i := range pieces {
		entries = append(entries, i)
		exits = append(exits, i)
	}
	entryLat := func(i int) float64 {
		return pieces[i][0][1]
	}
	exitLat := func(i int) float64 {
		piece := pieces[i]
		return piece[len(piece)-1][1]
	}
	slices.SortFunc(entries, func(a, b int) int {
		return cmp.Compare(entryLat(a), entryLat(b))
	})
	slices.SortFunc(exits, func(a, b int) int {
		return cmp.Compare(exitLat(a), exitLat(b))
	})

	// Join each piece with the one whose entry has the number of its exit.
	isUnused := func(piece []position) bool {
		return piece != nil
	}
	for {
		from := slices.IndexFunc(pieces, isUnused)
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
		area += (from[0]-ring[0][0])*(to[1]-ring[0][1]) -
			(to[0]-ring[0][0])*(from[1]-ring[0][1])
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

	// A pole has every longitude. The query has compared the latitude.
	if math.Abs(lat) == 90 && crs.projection.isCylindrical() {
		return true
	}

	const rounding = 1e-6 // in pixels, of a point on the edge
	column, row, err := m.pixelAt(crs, shift, lon, lat)
	isInColumns := column >= -rounding && column <= float64(*m.Width)+rounding
	isInRows := row >= -rounding && row <= float64(*m.Height)+rounding
	return err == nil && isInColumns && isInRows
}

// pixelAt returns where a point in degrees lies in the raster, in pixels from its outer corner. The
// CRS and its shift are those of knownCRS. The error is that of the projection.
func (m *extent) pixelAt(crs crsDefinition, shift datumShift, lon, lat float64) (column, row float64, err error) {
	lon, lat = shift.fromWGS84(crs.ellipsoid, lon, lat)
	x, y, err := crs.projection.forward(lon, lat)
	if err != nil {
		return 0, 0, err
	}

	t := [6]float64(m.Transform)
	turn := crs.projection.fullTurn()
	if turn > 0 { // the raster may lie beyond ±180°
		middle, _ := applyTransform(t, float64(*m.Width)/2, float64(*m.Height)/2)
		x += turn * math.Round((middle-x)/turn)
	}

	column, row = invertTransform(t, x, y)
	return column, row, nil
}

// knownCRS returns the file's CRS and its shift to WGS 84. ok is false if neither the registry nor
// the row knows the CRS, or if the raster has no transform.
func (m *extent) knownCRS() (crs crsDefinition, shift datumShift, ok bool) {
	hasCRS := m.CRS != nil || m.CRSDefinition != nil
	hasSize := m.Width != nil && m.Height != nil
	hasTransform := hasSize && len(m.Transform) == 6
	if !hasCRS || !hasTransform {
		return crs, shift, false
	}

	var err error
	if m.CRS != nil {
		crs, err = crsByText(*m.CRS)
	} else {
		crs, err = crsByDefinition(*m.CRSDefinition)
	}
	if err != nil {
		return crs, shift, false
	}

	shift, err = crs.shiftOver(
		[6]float64(m.Transform),
		float64(*m.Width),
		float64(*m.Height),
	)
	return crs, shift, err == nil
}

// crsByText returns the CRS of a text such as EPSG:4326. Any other text is an error.
func crsByText(text string) (crsDefinition, error) {
	code, isCode := epsgCode(text)
	if !isCode {
		return crsDefinition{}, fmt.Errorf("%q is not an EPSG code", text)
	}
	return crsByCode(code)
}

// epsgCode returns the number of a text such as EPSG:4326.
func epsgCode(text string) (code int, ok bool) {
	number, isCode := strings.CutPrefix(text, "EPSG:")
	code, err := strconv.Atoi(number)
	isNumber := err == nil
	return code, isCode && isNumber
}
