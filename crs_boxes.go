package main

import (
	"fmt"
	"math"
	"slices"
)

// applyTransform returns the coordinates of a column and a row of the raster.
func applyTransform(t [6]float64, col, row float64) (x, y float64) {
	x = t[0]*col + t[1]*row + t[2]
	y = t[3]*col + t[4]*row + t[5]
	return x, y
}

// invertTransform returns column and row of coordinates. They are not finite if t has no inverse.
func invertTransform(t [6]float64, x, y float64) (col, row float64) {
	determinant := t[0]*t[4] - t[1]*t[3]
	x -= t[2]
	y -= t[5]

	col = (t[4]*x - t[1]*y) / determinant
	row = (t[0]*y - t[3]*x) / determinant
	return col, row
}

// edgeSegments is how many segments follow the curve of a raster's edge in degrees. GDAL calls
// PROJ's proj_trans_bounds with the same 21 points between two corners, so the boxes are equal.
const edgeSegments = 22

// onEdge is how far from an edge, in pixels, a position still counts as on the edge.
const onEdge = 1e-6

// position is longitude and latitude in degrees, or x and y.
type position [2]float64

// degreesBox is a rectangle in degrees around a raster.
type degreesBox struct {
	bounds    [4]float64 // west south east north on WGS 84, as in RFC 7946, section 5
	accuracyM float64    // largest error in metres
	warnings  []string
}

// degreesRange is a range of longitudes and latitudes that grows; longitudes may lie outside ±180.
type degreesRange struct {
	west  float64
	south float64
	east  float64
	north float64
}

// emptyRange returns the range that holds nothing.
func emptyRange() degreesRange {
	return degreesRange{
		west:  math.Inf(1),
		south: math.Inf(1),
		east:  math.Inf(-1),
		north: math.Inf(-1),
	}
}

// add extends the range to positions.
func (r *degreesRange) add(positions ...position) {
	for _, at := range positions {
		r.west = min(r.west, at[0])
		r.east = max(r.east, at[0])
		r.south = min(r.south, at[1])
		r.north = max(r.north, at[1])
	}
}

// addPoles extends the range to poles, which have every longitude.
func (r *degreesRange) addPoles(latitudes []float64) {
	for _, pole := range latitudes {
		*r = degreesRange{
			west:  -180,
			south: min(r.south, pole),
			east:  180,
			north: max(r.north, pole),
		}
	}
}

// shiftOver returns the shift to WGS 84 for the middle of a raster, or errOutsideProjection.
func (c *crsDefinition) shiftOver(t [6]float64, width, height float64) (datumShift, error) {
	x, y := applyTransform(t, width/2, height/2)
	lon, lat, err := c.projection.inverse(x, y)
	if err != nil {
		return datumShift{}, err
	}

	// How far the raster reaches from there; half the globe if its corner has no position.
	x, y = applyTransform(t, 0, 0)
	cornerLon, cornerLat, err := c.projection.inverse(x, y)
	if err != nil {
		cornerLon = lon + 180
		cornerLat = lat
	}
	reachLon := math.Abs(math.Remainder(cornerLon-lon, 360))
	reachLat := math.Abs(cornerLat - lat)

	reach := max(reachLon, reachLat)
	return c.shiftAt(lon, lat, reach), nil
}

// boxInDegrees returns the box around a raster. The error says why there is none.
func boxInDegrees(c *crsDefinition, t [6]float64, width, height float64) (degreesBox, error) {
	raster, err := placeRaster(c, t, width, height)
	if err != nil {
		return degreesBox{}, err
	}

	// The range of the edges, or of a grid if edges have no position.
	p := &c.projection
	r, overshoot, whole := raster.rangeOfEdges()
	box := degreesBox{accuracyM: max(raster.shift.accuracyM, overshoot)}
	if !whole { // for example a map of the world
		r = raster.rangeOfGrid()

		// The diagonal of a cell of the grid.
		alongRow := math.Hypot(t[0], t[3]) * width
		alongColumn := math.Hypot(t[1], t[4]) * height
		cell := math.Hypot(alongRow, alongColumn) / edgeSegments
		box.accuracyM = max(raster.shift.accuracyM, cell*p.unit)
	}

	// Longitudes may count from elsewhere. Latitudes beyond 90 are cut off below.
	const farthestDegrees = 540
	least := min(r.west, r.south)
	most := max(r.east, r.north)
	meetsGlobe := r.south < 90 && r.north > -90
	isNear := least >= -farthestDegrees && most <= farthestDegrees
	if !meetsGlobe || !isNear {
		return box, fmt.Errorf("longitudes %.6g to %.6g, latitudes %.6g to %.6g are not on the globe",
			r.west,
			r.east,
			r.south,
			r.north)
	}

	if c.accuracyM > 0 {
		box.accuracyM = max(box.accuracyM, c.accuracyM)
		box.warnings = append(box.warnings,
			"its projection is read by the formulas of the ellipsoid, "+
				"but some programs mean those of a sphere by its name; an EPSG code tells which")
	}

	if !isFinite(box.accuracyM) {
		return box, errOutsideProjection
	}

	// A pixel more than the globe needs no warning.
	pixelX := max(
		math.Abs(t[0]),
		math.Abs(t[1])) * p.unit
	pixelY := max(
		math.Abs(t[3]),
		math.Abs(t[4])) * p.unit
	beyondPole := max(r.north-90, -90-r.south)
	if p.formula == formulaGeographic && beyondPole > pixelY {
		box.warnings = append(box.warnings,
			"the raster reaches beyond a pole; bbox ends there")
	}
	farthestLon := max(r.east, -r.west)
	if farthestLon > 360+pixelX {
		box.warnings = append(box.warnings,
			"its longitudes go beyond ±360°; bbox has them within ±180°")
	}

	west, east := normalizeLongitudes(r.west, r.east)
	box.bounds = [4]float64{
		west,
		max(r.south, -90),
		east,
		min(r.north, 90),
	}

	// The database's index fails on numbers that are not 0, but too close to it.
	const tiny = 1e-12 // degrees
	for i, v := range box.bounds {
		if math.Abs(v) < tiny {
			box.bounds[i] = 0
		}
	}
	return box, nil
}

// rasterPlace is where a raster lies on the globe.
type rasterPlace struct {
	projection *projection
	shift      datumShift
	transform  [6]float64
	width      float64      // in pixels
	height     float64      // in pixels
	poles      [][3]float64 // column, row and latitude of each pole that is on the map
}

// placeRaster returns the place of a raster in a CRS. The error is errOutsideProjection.
func placeRaster(c *crsDefinition, t [6]float64, width, height float64) (r rasterPlace, err error) {
	r = rasterPlace{
		projection: &c.projection,
		transform:  t,
		width:      width,
		height:     height,
	}
	r.shift, err = c.shiftOver(t, width, height)
	if err != nil || c.projection.isCylindrical() {
		return r, err
	}

	for _, latitude := range [...]float64{-90, 90} {
		x, y, err := c.projection.forward(c.projection.longitude, latitude)
		if err == nil {
			col, row := invertTransform(t, x, y)
			r.poles = append(r.poles, [3]float64{col, row, latitude})
		}
	}
	return r, nil
}

// polesWithin returns the latitudes of the poles that lie more than margin pixels inside the
// raster. With a negative margin they may lie outside by less than that.
func (r *rasterPlace) polesWithin(margin float64) (latitudes []float64) {
	for _, pole := range r.poles {
		inside := min(
			pole[0],
			pole[1],
			r.width-pole[0],
			r.height-pole[1])
		if inside > margin {
			latitudes = append(latitudes, pole[2])
		}
	}
	return latitudes
}

// at returns the position on WGS 84 of a column and a row. The error is errOutsideProjection.
func (r *rasterPlace) at(col, row float64) (position, error) {
	x, y := applyTransform(r.transform, col, row)
	lon, lat, err := r.projection.inverse(x, y)
	if err != nil {
		return position{}, err
	}

	lon, lat = r.shift.toWGS84(r.projection.ellipsoid, lon, lat)
	return position{lon, lat}, nil
}

// onEdges returns column and row of a point on the edges. along counts the edges from the origin,
// down the first column and around: 1.5 is the middle of the second edge, which is the last row.
func (r *rasterPlace) onEdges(along float64) (col, row float64) {
	edge, part := math.Modf(along)
	edges := [4][2]float64{
		{0, part},     // down the first column
		{part, 1},     // along the last row
		{1, 1 - part}, // up the last column
		{1 - part, 0}, // back along the first row
	}

	at := edges[int(edge)%4]
	col = at[0] * r.width
	row = at[1] * r.height
	return col, row
}

// nearPoles returns the points on an edge that are nearest to a pole, in order. If the edge has
// segments, poles farther away than one segment is long are left out.
func (r *rasterPlace) nearPoles(edge, segments int) (along []float64) {
	// The edge is a vector from one corner to the next.
	col, row := r.onEdges(float64(edge))
	toCol, toRow := r.onEdges(float64(edge + 1))
	toCol -= col
	toRow -= row
	length2 := toCol*toCol + toRow*toRow

	for _, pole := range r.poles {
		x := pole[0] - col
		y := pole[1] - row

		// Lengths along the edge and across, in lengths of the edge.
		part := (x*toCol + y*toRow) / length2
		away := (x*toRow - y*toCol) / length2

		isOnEdge := part > 0 && part < 1
		isNear := math.Abs(away)*float64(segments) < 1
		if isOnEdge && isNear {
			along = append(along, float64(edge)+part)
		}
	}

	slices.Sort(along)
	return along
}

// poleOn returns the latitude of the pole at a point on an edge. ok is false if none lies there.
func (r *rasterPlace) poleOn(col, row float64) (latitude float64, ok bool) {
	for _, pole := range r.poles {
		away := math.Hypot(pole[0]-col, pole[1]-row)
		if away <= onEdge {
			return pole[2], true
		}
	}
	return 0, false
}

// edgePoint is a point on the edges of a raster.
type edgePoint struct {
	position
	along float64 // as onEdges counts
}

// trace follows the edges from a corner around and back to it, each in so many segments.
//
// Longitudes are continuous. A pole on an edge becomes two points: one for the meridian on which
// the edges reach it, and one for the meridian on which they leave it. whole is false if points are
// left out because they lie outside the projection's domain.
func (r *rasterPlace) trace(segments int) (points []edgePoint, whole bool) {
	middle, err := r.at(r.width/2, r.height/2)
	whole = err == nil
	fromPole := false // the point before is a pole

	// add appends the point at a distance along the edges.
	add := func(along float64) {
		col, row := r.onEdges(along)
		at, err := r.at(col, row)
		if err != nil {
			whole = false
			return
		}

		isFirst := len(points) == 0
		if isFirst || r.projection.isCylindrical() {
			points = append(points, edgePoint{at, along})
			return
		}

		// The edges reach a pole on the meridian of the point before.
		last := points[len(points)-1]
		if latitude, pole := r.poleOn(col, row); pole {
			reached := position{last.position[0], latitude}
			points = append(points, edgePoint{
				position: reached,
				along:    along,
			})
			fromPole = true
			return
		}

		// Of the longitudes that are equal but for full turns, take the nearest.
		near := last.position[0]
		if fromPole { // the raster lies on the side of its middle
			near += math.Remainder(middle[0]-near, 360)
		}
		at[0] = near + math.Remainder(at[0]-near, 360)

		// The edges leave a pole on the meridian of the point after it.
		if fromPole {
			left := position{at[0], last.position[1]}
			points = append(points, edgePoint{
				position: left,
				along:    last.along,
			})
			fromPole = false
		}
		points = append(points, edgePoint{at, along})
	}

	// Begin at a corner that is no pole.
	first := 0
	for first < 3 {
		_, pole := r.poleOn(r.onEdges(float64(first)))
		if !pole {
			break
		}
		first++
	}

	add(float64(first))
	for edge := first; edge < first+4; edge++ {
		near := r.nearPoles(edge, segments)
		for i := range segments {
			part := float64(i+1) / float64(segments)
			along := float64(edge) + part
			for len(near) > 0 && near[0] < along {
				add(near[0])
				near = near[1:]
			}
			add(along)
		}
	}

	return points, whole
}

// rangeOfEdges returns the range of points on the edges, and by how many metres the edges leave it
// between the points. whole is false if a part of them lies outside the projection's domain.
func (r *rasterPlace) rangeOfEdges() (bounds degreesRange, overshoot float64, whole bool) {
	// On a cylinder the corners have the extremes.
	segments := edgeSegments
	if r.projection.isCylindrical() && len(r.shift.values) == 0 {
		segments = 1
	}

	points, whole := r.trace(segments)
	bounds = emptyRange()
	for _, point := range points {
		bounds.add(point.position)
	}
	bounds.addPoles(r.polesWithin(onEdge))

	// measure raises overshoot to the distance from the range to a point on the edges.
	measure := func(along float64) {
		at, err := r.at(r.onEdges(along))
		if err != nil {
			whole = false
			return
		}

		degree := math.Pi / 180 * r.projection.ellipsoid.a // in metres
		overshoot = max(overshoot,
			degree*(bounds.south-at[1]),
			degree*(at[1]-bounds.north))

		// A full turn has no end in the west and in the east.
		half := (bounds.east - bounds.west) / 2
		if half < 180 {
			fromMiddle := math.Remainder(at[0]-bounds.west-half, 360)
			east := math.Abs(fromMiddle) - half
			degreeEast := degree * math.Cos(at[1]*math.Pi/180)
			overshoot = max(overshoot, degreeEast*east)
		}
	}

	// Extremes between the points lie near poles.
	for edge := range 4 {
		for _, along := range r.nearPoles(edge, 0) {
			measure(along)
		}
	}

	// And at turning points.
	for i := 2; i < len(points); i++ {
		three := [3]edgePoint(points[i-2:])
		for axis := range 2 {
			along, ok := turningPoint(three, axis)
			if ok {
				measure(along)
			}
		}
	}

	return bounds, overshoot, whole
}

// turningPoint returns the point on an edge where the parabola through three points has its
// extreme, in longitude (axis 0) or latitude. ok is false if it does not lie between the points.
func turningPoint(points [3]edgePoint, axis int) (along float64, ok bool) {
	a := points[0]
	b := points[1]
	c := points[2]
	if c.along > math.Floor(a.along)+1 { // around a corner
		return 0, false
	}

	// Divided differences of first and second order.
	atA := a.position[axis]
	atB := b.position[axis]
	atC := c.position[axis]
	length := c.along - a.along
	rise := (atB - atA) / (b.along - a.along)
	nextRise := (atC - atB) / (c.along - b.along)
	curve := (nextRise - rise) / length

	const least = 1e-9 // degrees: flatter is rounding error
	isCurved := math.Abs(curve)*length*length > least
	if !isCurved {
		return 0, false
	}

	middle := (a.along + b.along) / 2
	along = middle - rise/curve/2
	isBetween := along > a.along && along < c.along
	return along, isBetween
}

// rangeOfGrid returns the range of those points of a grid that lie in the projection's domain.
func (r *rasterPlace) rangeOfGrid() degreesRange {
	bounds := emptyRange()
	for i := range edgeSegments + 1 {
		for j := range edgeSegments + 1 {
			col := r.width * float64(i) / edgeSegments
			row := r.height * float64(j) / edgeSegments
			if at, err := r.at(col, row); err == nil {
				bounds.add(at)
			}
		}
	}

	bounds.addPoles(r.polesWithin(-onEdge))
	return bounds
}

// normalizeLongitudes brings a range into ±180. West is greater than east across 180°. A full turn
// becomes -180 and 180.
func normalizeLongitudes(west, east float64) (float64, float64) {
	const rounding = 1e-9 // degrees, from adding up 360 pixels
	if east-west >= 360-rounding {
		return -180, 180
	}

	west = west - 360*math.Floor((west+180)/360)
	east = east - 360*math.Ceil((east-180)/360)
	return west, east
}

// isCylindrical reports whether longitude depends on x alone, latitude on y alone, continuously.
func (p *projection) isCylindrical() bool {
	return p.formula >= formulaGeographic && p.formula <= formulaEquidistantCylinder
}

// fullTurn returns how far x goes on for 360 degrees of longitude on a cylinder, 0 elsewhere.
func (p *projection) fullTurn() float64 {
	switch {
	case p.formula == formulaGeographic:
		return 360 / p.unit
	case p.isCylindrical():
		equator := 2 * math.Pi * p.ellipsoid.a // metres
		return math.Abs(equator * p.axes[0] * p.scale / p.unit)
	}
	return 0
}

// pixelSizeMetres returns the square root of a pixel's area on the ground, or errOutsideProjection.
// It measures between geocentric positions, because a degree of longitude has no length at a pole.
func pixelSizeMetres(p projection, t [6]float64, col, row float64) (float64, error) {
	pixels := [3][2]float64{
		{col, row},
		{col + 0.5, row},
		{col, row + 0.5},
	}
	var at [3][3]float64
	for i, pixel := range pixels {
		x, y := applyTransform(t, pixel[0], pixel[1])
		lon, lat, err := p.inverse(x, y)
		if err != nil {
			return 0, errOutsideProjection
		}

		// A cylinder's row at a pole is a point on the ground.
		isAtPole := p.isCylindrical() && math.Abs(lat) >= 90
		if i == 0 && isAtPole {
			return 0, errOutsideProjection
		}
		at[i] = p.ellipsoid.geocentric(lon, lat)
	}

	var u [3]float64 // half a pixel along the row
	var v [3]float64 // half a pixel along the column
	for i := range 3 {
		u[i] = at[1][i] - at[0][i]
		v[i] = at[2][i] - at[0][i]
	}

	// The length of their cross product is the area of a quarter of a pixel.
	x := u[1]*v[2] - u[2]*v[1]
	y := u[2]*v[0] - u[0]*v[2]
	z := u[0]*v[1] - u[1]*v[0]

	quarter := math.Hypot(math.Hypot(x, y), z)
	area := 4 * quarter
	isValid := area > 0 && isFinite(area)
	if !isValid {
		return 0, errOutsideProjection
	}
	return math.Sqrt(area), nil
}
