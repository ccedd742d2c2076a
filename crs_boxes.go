package main

import (
	"fmt"
	"math"
)

// applyTransform gives the coordinate of a place in the raster.
func applyTransform(t [6]float64, col, row float64) (x, y float64) {
	return t[0]*col + t[1]*row + t[2], t[3]*col + t[4]*row + t[5]
}

// edgeSegments is into how many parts each edge of a raster is cut to follow its curve in degrees: 21 points between
// the corners, as GDAL calls PROJ's proj_trans_bounds, so that the boxes are the same.
const edgeSegments = 22

// degreesBox is a rectangle of degrees around a raster.
type degreesBox struct {
	bounds    [4]float64 // west south east north on WGS 84, as in RFC 7946, section 5
	accuracyM float64    // by how many metres it may be off
	clamped   bool       // the raster reaches over a pole by more than a pixel
	turned    bool       // its longitudes go beyond ±360 by more than a pixel
}

// shiftOver gives the transformation to WGS 84 for all of a raster, that of its middle. The error says why there is none.
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

// boxInDegrees gives the box of a raster of that transform, width and height. The error says why there is none.
func boxInDegrees(c *crsDefinition, t [6]float64, width, height float64) (degreesBox, error) {
	p := &c.projection
	shift, err := c.shiftOver(t, width, height)
	if err != nil {
		return degreesBox{}, err
	}
	segments := edgeSegments
	if p.isCylindrical() && len(shift.values) == 0 { // longitude and latitude are at their least and greatest at the corners
		segments = 1
	}
	corners := [5][2]float64{{0, 0}, {width, 0}, {width, height}, {0, height}, {0, 0}}
	west, east, south, north := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	box := degreesBox{accuracyM: shift.accuracyM}
	outside := false        // of the projection's domain is a part of the raster
	var lon, lat [3]float64 // of the point at hand and the two before it
	for edge := range 4 {
		from, to := corners[edge], corners[edge+1]
		for i := range segments + 1 {
			f := float64(i) / float64(segments)
			l, phi, err := p.inverse(applyTransform(t, from[0]+f*(to[0]-from[0]), from[1]+f*(to[1]-from[1])))
			if err != nil {
				outside = true
				continue
			}
			l, phi = shift.toWGS84(p.ellipsoid, l, phi)
			if !p.isCylindrical() && edge+i > 0 {
				l = lon[0] + math.Remainder(l-lon[0], 360) // keep the ring in one piece across 180°
			}
			lon, lat = [3]float64{l, lon[0], lon[1]}, [3]float64{phi, lat[0], lat[1]}
			west, east = min(west, l), max(east, l)
			south, north = min(south, phi), max(north, phi)
			if i >= 2 { // a parabola through three points rises by an eighth of their second difference above its chords
				bulge := math.Hypot((lon[0]-2*lon[1]+lon[2])*math.Cos(phi*math.Pi/180), lat[0]-2*lat[1]+lat[2]) / 8
				box.accuracyM = max(box.accuracyM, bulge*math.Pi/180*p.ellipsoid.a)
			}
		}
	}
	if outside { // a map of the world, perhaps: what there is of it, by a grid of points, as exact as that is narrow
		west, east, south, north = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
		for i := range edgeSegments + 1 {
			for j := range edgeSegments + 1 {
				x, y := applyTransform(t, width*float64(i)/edgeSegments, height*float64(j)/edgeSegments)
				if l, phi, err := p.inverse(x, y); err == nil {
					l, phi = shift.toWGS84(p.ellipsoid, l, phi)
					west, east = min(west, l), max(east, l)
					south, north = min(south, phi), max(north, phi)
				}
			}
		}
		cell := math.Hypot(math.Hypot(t[0], t[3])*width, math.Hypot(t[1], t[4])*height) / edgeSegments
		box.accuracyM = max(shift.accuracyM, cell*p.unit)
	}
	for _, pole := range [...]float64{-90, 90} {
		if !p.isCylindrical() && p.contains(t, width, height, pole) {
			west, east = -180, 180
			south, north = min(south, pole), max(north, pole)
		}
	}
	if !(south < 90 && north > -90 && west >= -540 && east <= 540) {
		return box, fmt.Errorf("longitudes %.6g to %.6g, latitudes %.6g to %.6g are not on the globe", west, east, south, north)
	}
	pixel := max(math.Abs(t[3]), math.Abs(t[4])) * p.unit
	box.clamped = p.method == methodGeographic && max(north-90, -90-south) > pixel
	box.turned = max(east, -west) > 360+max(math.Abs(t[0]), math.Abs(t[1]))*p.unit
	if !isFinite(box.accuracyM) {
		return box, errOutsideProjection
	}
	west, east = normaliseLongitudes(west, east)
	box.bounds = [4]float64{west, max(south, -90), east, min(north, 90)}
	for i, v := range box.bounds {
		if math.Abs(v) < 1e-12 { // the database's index cannot work with numbers that are next to 0
			box.bounds[i] = 0
		}
	}
	return box, nil
}

// normaliseLongitudes brings an interval of longitudes into ±180, west > east across 180°, a full turn as -180 to 180.
func normaliseLongitudes(west, east float64) (float64, float64) {
	const rounding = 1e-9 // of 360 added pixels, degrees
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

// isCylindrical says whether longitude depends on x alone and latitude on y alone, both continuously.
func (p *projection) isCylindrical() bool {
	return p.method >= methodGeographic && p.method <= methodEquidistantCylinder
}

// contains says whether a pole lies in the raster.
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

// pixelSizeMetres gives the size on the ground of the pixel around a place: the square root of its area, one number
// however the raster is turned and whatever shape a pixel in degrees has.
func pixelSizeMetres(p projection, t [6]float64, col, row float64) (float64, error) {
	var lon, lat [3]float64
	for i, at := range [3][2]float64{{col, row}, {col + 0.5, row}, {col, row + 0.5}} {
		x, y := applyTransform(t, at[0], at[1])
		var err error
		if lon[i], lat[i], err = p.inverse(x, y); err != nil {
			return 0, err
		}
	}
	// Metres of a radian east and north, by the radii of curvature in the prime vertical and the meridian.
	sin, cos := math.Sincos(lat[0] * math.Pi / 180)
	e2 := p.ellipsoid.eccentricity2()
	w2 := 1 - e2*sin*sin
	primeVertical := p.ellipsoid.a / math.Sqrt(w2)
	east, north := primeVertical*cos, primeVertical*(1-e2)/w2
	turn := func(to float64) float64 { return math.Remainder(to-lon[0], 360) * math.Pi / 90 }
	rise := func(to float64) float64 { return (to - lat[0]) * math.Pi / 90 }
	area := math.Abs(turn(lon[1])*rise(lat[2])-turn(lon[2])*rise(lat[1])) * east * north
	if !(area > 0 && isFinite(area)) || math.Abs(lat[0]) > 90 {
		return 0, errOutsideProjection
	}
	return math.Sqrt(area), nil
}
