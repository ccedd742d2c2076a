package main

import (
	"fmt"
	"math"
)

// applyTransform returns the coordinates of a place in the raster.
func applyTransform(t [6]float64, col, row float64) (x, y float64) {
	return t[0]*col + t[1]*row + t[2], t[3]*col + t[4]*row + t[5]
}

// edgeSegments is how many segments follow the curve of a raster's edge in degrees. GDAL calls
// PROJ's proj_trans_bounds with the same 21 points between two corners, so the boxes are equal.
const edgeSegments = 22

// degreesBox is a rectangle in degrees around a raster.
type degreesBox struct {
	bounds    [4]float64 // west south east north on WGS 84, as in RFC 7946, section 5
	accuracyM float64    // largest error in metres
	clamped   bool       // the raster reaches beyond a pole by more than a pixel
	turned    bool       // its longitudes go beyond ±360 by more than a pixel
}

// degreesRange is a range of longitudes and latitudes that grows; longitudes may lie outside ±180.
type degreesRange struct{ west, south, east, north float64 }

// emptyRange returns the range that holds nothing.
func emptyRange() degreesRange {
	return degreesRange{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
}

// add extends the range to a place.
func (r *degreesRange) add(lon, lat float64) {
	r.west, r.east = min(r.west, lon), max(r.east, lon)
	r.south, r.north = min(r.south, lat), max(r.north, lat)
}

// shiftOver returns the shift to WGS 84 for all of a raster, which is the one for its middle. The
// error is errOutsideProjection.
func (c *crsDefinition) shiftOver(t [6]float64, width, height float64) (datumShift, error) {
	lon, lat, err := c.projection.inverse(applyTransform(t, width/2, height/2))
	if err != nil {
		return datumShift{}, err
	}
	cornerLon, cornerLat, err := c.projection.inverse(applyTransform(t, 0, 0))
	if err != nil {
		cornerLon, cornerLat = lon+180, lat
	}
	return c.shiftAt(lon, lat, max(math.Abs(math.Remainder(cornerLon-lon, 360)), math.Abs(cornerLat-lat))), nil
}

// boxInDegrees returns the box around a raster. The error says why there is none.
func boxInDegrees(c *crsDefinition, t [6]float64, width, height float64) (degreesBox, error) {
	p := &c.projection
	shift, err := c.shiftOver(t, width, height)
	if err != nil {
		return degreesBox{}, err
	}
	r, bulge, whole := p.rangeOfEdges(shift, t, width, height)
	box := degreesBox{accuracyM: max(shift.accuracyM, bulge)}
	if !whole { // for example a map of the world
		r = p.rangeOfGrid(shift, t, width, height)
		cell := math.Hypot(math.Hypot(t[0], t[3])*width, math.Hypot(t[1], t[4])*height) / edgeSegments
		box.accuracyM = max(shift.accuracyM, cell*p.unit)
	}
	for _, pole := range [...]float64{-90, 90} {
		if !p.isCylindrical() && p.contains(t, width, height, pole) {
			r = degreesRange{-180, min(r.south, pole), 180, max(r.north, pole)}
		}
	}
	if !(r.south < 90 && r.north > -90 && r.west >= -540 && r.east <= 540) {
		return box, fmt.Errorf("longitudes %.6g to %.6g, latitudes %.6g to %.6g are not on the globe",
			r.west, r.east, r.south, r.north)
	}
	pixel := max(math.Abs(t[3]), math.Abs(t[4])) * p.unit
	box.clamped = p.formula == formulaGeographic && max(r.north-90, -90-r.south) > pixel
	box.turned = max(r.east, -r.west) > 360+max(math.Abs(t[0]), math.Abs(t[1]))*p.unit
	if !isFinite(box.accuracyM) {
		return box, errOutsideProjection
	}
	west, east := normaliseLongitudes(r.west, r.east)
	box.bounds = [4]float64{west, max(r.south, -90), east, min(r.north, 90)}
	for i, v := range box.bounds {
		if math.Abs(v) < 1e-12 { // the database's index fails on numbers that close to 0
			box.bounds[i] = 0
		}
	}
	return box, nil
}

// rangeOfEdges follows a raster's edges. Between its points, the curve may leave the range by bulge
// metres. whole is false if a part of the edges lies outside the projection's domain.
func (p *projection) rangeOfEdges(shift datumShift, t [6]float64, width, height float64) (
	r degreesRange, bulge float64, whole bool,
) {
	segments := edgeSegments
	if p.isCylindrical() && len(shift.values) == 0 { // the corners have the extreme longitudes and latitudes
		segments = 1
	}
	corners := [5][2]float64{{0, 0}, {width, 0}, {width, height}, {0, height}, {0, 0}}
	r, whole = emptyRange(), true
	var lon, lat [3]float64 // of this point and the two before it
	for edge := range 4 {
		from, to := corners[edge], corners[edge+1]
		for i := range segments + 1 {
			f := float64(i) / float64(segments)
			l, phi, err := p.inverse(applyTransform(t, from[0]+f*(to[0]-from[0]), from[1]+f*(to[1]-from[1])))
			if err != nil {
				whole = false
				continue
			}
			l, phi = shift.toWGS84(p.ellipsoid, l, phi)
			if !p.isCylindrical() && edge+i > 0 {
				l = lon[0] + math.Remainder(l-lon[0], 360) // continuous across 180°
			}
			lon, lat = [3]float64{l, lon[0], lon[1]}, [3]float64{phi, lat[0], lat[1]}
			r.add(l, phi)
			if i >= 2 { // a parabola through three points rises an eighth of their second difference above its chords
				rise := math.Hypot((lon[0]-2*lon[1]+lon[2])*math.Cos(phi*math.Pi/180), lat[0]-2*lat[1]+lat[2]) / 8
				bulge = max(bulge, rise*math.Pi/180*p.ellipsoid.a)
			}
		}
	}
	return r, bulge, whole
}

// rangeOfGrid is the range of those points of a grid that lie in the projection's domain.
func (p *projection) rangeOfGrid(shift datumShift, t [6]float64, width, height float64) degreesRange {
	r := emptyRange()
	for i := range edgeSegments + 1 {
		for j := range edgeSegments + 1 {
			x, y := applyTransform(t, width*float64(i)/edgeSegments, height*float64(j)/edgeSegments)
			if lon, lat, err := p.inverse(x, y); err == nil {
				r.add(shift.toWGS84(p.ellipsoid, lon, lat))
			}
		}
	}
	return r
}

// normaliseLongitudes brings a range into ±180: west > east across 180°; -180, 180 for a full turn.
func normaliseLongitudes(west, east float64) (float64, float64) {
	const rounding = 1e-9 // degrees, from adding up 360 pixels
	if east-west >= 360-rounding {
		return -180, 180
	}
	for west < -180 {
		west += 360
	}
	for west >= 180 {
		west -= 360
	}
	for east <= -180 {
		east += 360
	}
	for east > 180 {
		east -= 360
	}
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
		return math.Abs(2 * math.Pi * p.ellipsoid.a * p.axes[0] * p.scale / p.unit)
	}
	return 0
}

// contains reports whether a pole lies in the raster.
func (p *projection) contains(t [6]float64, width, height, pole float64) bool {
	x, y, err := p.forward(p.longitude, pole)
	determinant := t[0]*t[4] - t[1]*t[3]
	if err != nil || determinant == 0 {
		return false
	}
	x, y = x-t[2], y-t[5]
	col, row := (t[4]*x-t[1]*y)/determinant, (t[0]*y-t[3]*x)/determinant
	return col > 0 && col < width && row > 0 && row < height
}

// pixelSizeMetres returns the size of a pixel on the ground, as the square root of its area: one
// number for turned rasters and for pixels in degrees too. It measures between geocentric places, as
// a degree of longitude has no length at a pole. The error is errOutsideProjection.
func pixelSizeMetres(p projection, t [6]float64, col, row float64) (float64, error) {
	var at [3][3]float64
	for i, place := range [3][2]float64{{col, row}, {col + 0.5, row}, {col, row + 0.5}} {
		x, y := applyTransform(t, place[0], place[1])
		lon, lat, err := p.inverse(x, y)
		if err != nil || i == 0 && p.isCylindrical() && math.Abs(lat) >= 90 {
			return 0, errOutsideProjection
		}
		at[i] = p.ellipsoid.geocentric(lon, lat)
	}
	var u, v [3]float64 // half a pixel along the row and along the column
	for i := range 3 {
		u[i], v[i] = at[1][i]-at[0][i], at[2][i]-at[0][i]
	}
	area := 4 * math.Hypot(math.Hypot(u[1]*v[2]-u[2]*v[1], u[2]*v[0]-u[0]*v[2]), u[0]*v[1]-u[1]*v[0])
	if !(area > 0 && isFinite(area)) {
		return 0, errOutsideProjection
	}
	return math.Sqrt(area), nil
}
