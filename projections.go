package main

import (
	"errors"
	"fmt"
	"math"
)

// ellipsoid is a figure of the Earth: semi-major axis in metres and inverse flattening.
type ellipsoid struct{ a, inverseFlattening float64 }

// wgs84 is the ellipsoid EPSG 7030.
func wgs84() ellipsoid { return ellipsoid{6378137, 298.257223563} }

// grs80 is the ellipsoid EPSG 7019, of ETRS89 and NAD83.
func grs80() ellipsoid { return ellipsoid{6378137, 298.257222101} }

// eccentricity2 is the square of the first eccentricity.
func (e ellipsoid) eccentricity2() float64 {
	f := 1 / e.inverseFlattening
	return f * (2 - f)
}

// projectionMethod says by which formulas a projection goes.
type projectionMethod int

// The methods that are known, with their codes in the EPSG dataset.
const (
	methodNone               projectionMethod = iota
	methodGeographic                          // no projection: longitude and latitude in some unit from some meridian
	methodTransverseMercator                  // EPSG 9807
	methodPseudoMercator                      // EPSG 1024, the web's
)

// projection turns coordinates of a CRS into degrees on its own datum, and back. What its method does not use is 0.
type projection struct {
	method    projectionMethod
	ellipsoid ellipsoid
	unit      float64 // of coordinates: metres, and degrees where geographic
	longitude float64 // of the natural origin or the prime meridian, degrees
	scale     float64 // at the natural origin
	kruger    krugerSeries

	falseEast, falseNorth float64 // metres
	originNorthing        float64 // of the latitude of origin, from the equator, before scale and false northing, metres
}

// errOutsideProjection is the answer for coordinates that a projection has no place for.
var errOutsideProjection = errors.New("coordinates outside the projection's domain")

// geographicProjection is longitude and latitude in a unit (of degrees) from a prime meridian (degrees east).
func geographicProjection(longitude, unit float64) projection {
	return projection{method: methodGeographic, ellipsoid: wgs84(), longitude: longitude, unit: unit}
}

// utmProjection is a UTM zone.
func utmProjection(e ellipsoid, zone int, south bool) projection {
	p := transverseMercator(e, 0, float64(6*zone-183), 0.9996, 500_000, 0)
	if south {
		p.falseNorth = 10_000_000
	}
	return p
}

// transverseMercator is a projection by EPSG method 9807; angles in degrees, lengths in metres.
func transverseMercator(e ellipsoid, latitude, longitude, scale, falseEast, falseNorth float64) projection {
	k, origin := newKrugerSeries(e), 0.0
	if latitude != 0 {
		_, origin = k.forward(e, 0, latitude*math.Pi/180)
	}
	return projection{
		method: methodTransverseMercator, ellipsoid: e, unit: 1, longitude: longitude, scale: scale, kruger: k,
		falseEast: falseEast, falseNorth: falseNorth, originNorthing: origin,
	}
}

// inverse gives longitude, which is continuous and may lie outside ±180, and latitude; the error is errOutsideProjection.
func (p *projection) inverse(x, y float64) (lon, lat float64, err error) {
	ok := isFinite(x) && isFinite(y)
	east, north := x*p.unit-p.falseEast, y*p.unit-p.falseNorth
	switch p.method {
	case methodGeographic:
		lon, lat = x*p.unit+p.longitude, y*p.unit
	case methodPseudoMercator: // EPSG Guidance Note 7-2, method 1024: spherical formulas on the semi-major axis
		lon = p.longitude + east/p.ellipsoid.a*180/math.Pi
		lat = math.Atan(math.Sinh(north/p.ellipsoid.a)) * 180 / math.Pi
	case methodTransverseMercator:
		var inside bool
		lon, lat, inside = p.kruger.inverse(p.ellipsoid, east/p.scale, north/p.scale+p.originNorthing)
		lon, lat, ok = p.longitude+lon*180/math.Pi, lat*180/math.Pi, ok && inside
	default:
		ok = false
	}
	if !ok || !isFinite(lon) || !isFinite(lat) {
		return 0, 0, errOutsideProjection
	}
	return lon, lat, nil
}

// forward gives the coordinate of a longitude and latitude in degrees; the error is as that of inverse.
func (p *projection) forward(lon, lat float64) (x, y float64, err error) {
	ok, dLon := isFinite(lon) && isFinite(lat), lon-p.longitude
	switch p.method {
	case methodGeographic:
		x, y = dLon/p.unit, lat/p.unit
	case methodPseudoMercator:
		x = (p.falseEast + p.ellipsoid.a*dLon*math.Pi/180) / p.unit
		y = (p.falseNorth + p.ellipsoid.a*math.Asinh(math.Tan(lat*math.Pi/180))) / p.unit
		ok = ok && math.Abs(lat) < 90
	case methodTransverseMercator:
		dLon = math.Remainder(dLon, 360)
		x, y = p.kruger.forward(p.ellipsoid, dLon*math.Pi/180, lat*math.Pi/180)
		x = (x*p.scale + p.falseEast) / p.unit
		y = ((y-p.originNorthing)*p.scale + p.falseNorth) / p.unit
		ok = ok && math.Abs(lat) <= 90 && !(math.Abs(dLon) > 90 && lat == 0)
	default:
		ok = false
	}
	if !ok || !isFinite(x) || !isFinite(y) {
		return 0, 0, errOutsideProjection
	}
	return x, y, nil
}

// isFinite says whether v is a number that is not infinite.
func isFinite(v float64) bool { return !math.IsNaN(v - v) }

// krugerSeries holds the constants of an ellipsoid's Transverse Mercator: C. F. F. Karney, "Transverse Mercator with an
// accuracy of a few nanometers", Journal of Geodesy 85 (2011), 475–485, equations 14, 35, 36: Krüger's series, sixth order.
type krugerSeries struct {
	radius      float64    // of the rectifying sphere, metres: equation 14
	alpha, beta [6]float64 // to project and to go back
}

// newKrugerSeries computes the constants.
func newKrugerSeries(e ellipsoid) krugerSeries {
	n := 1 / (2*e.inverseFlattening - 1)
	n2 := n * n
	n3, n4, n5, n6 := n2*n, n2*n2, n2*n2*n, n2*n2*n2
	return krugerSeries{
		radius: e.a / (1 + n) * (1 + n2/4 + n4/64 + n6/256),
		alpha: [6]float64{
			n/2 - n2*2/3 + n3*5/16 + n4*41/180 - n5*127/288 + n6*7891/37800,
			n2*13/48 - n3*3/5 + n4*557/1440 + n5*281/630 - n6*1983433/1935360,
			n3*61/240 - n4*103/140 + n5*15061/26880 + n6*167603/181440,
			n4*49561/161280 - n5*179/168 + n6*6601661/7257600,
			n5*34729/80640 - n6*3418889/1995840,
			n6 * 212378941 / 319334400,
		},
		beta: [6]float64{
			n/2 - n2*2/3 + n3*37/96 - n4/360 - n5*81/512 + n6*96199/604800,
			n2/48 + n3/15 - n4*437/1440 + n5*46/105 - n6*1118711/3870720,
			n3*17/480 - n4*37/840 - n5*209/4480 + n6*5569/90720,
			n4*4397/161280 - n5*11/504 - n6*830251/7257600,
			n5*4583/161280 - n6*108847/3991680,
			n6 * 20648693 / 638668800,
		},
	}
}

// maxKrugerEta is how far from the central meridian the series is followed, in rectifying radii: 1.5 is some 9,500 km,
// where projecting and going back closes to under a millimetre; within 4,000 km to nanometres.
const maxKrugerEta = 1.5

// krugerSum evaluates Σ c[j] sin 2j(ξ+iη), the complex series of equations 11 and 15, by Clenshaw's recurrence.
func krugerSum(c *[6]float64, xi, eta float64) (dXi, dEta float64) {
	sin, cos := math.Sincos(2 * xi)
	sinh := math.Sinh(2 * eta)
	cosh := math.Sqrt(1 + sinh*sinh)
	// 2 cos 2ζ = (re, im); sin 2ζ = (sin cosh, cos sinh)
	re, im := 2*cos*cosh, -2*sin*sinh
	var r1, i1, r2, i2 float64
	for j := len(c) - 1; j >= 0; j-- {
		r1, i1, r2, i2 = re*r1-im*i1-r2+c[j], re*i1+im*r1-i2, r1, i1
	}
	return sin*cosh*r1 - cos*sinh*i1, sin*cosh*i1 + cos*sinh*r1
}

// forward projects radians from the central meridian and the equator to metres east and north of them at scale 1.
func (k *krugerSeries) forward(e ellipsoid, lon, lat float64) (east, north float64) {
	ecc := math.Sqrt(e.eccentricity2())
	sinLat, cosLat := math.Sincos(lat)
	// Equations 7 to 9: tau is the tangent of the latitude, tauC that of the conformal latitude.
	tau := sinLat / cosLat
	sigma := math.Sinh(ecc * math.Atanh(ecc*sinLat))
	tauC := tau*math.Sqrt(1+sigma*sigma) - sigma*math.Sqrt(1+tau*tau)
	sinLon, cosLon := math.Sincos(lon)
	xi := math.Atan2(tauC, cosLon)
	eta := math.Asinh(sinLon / math.Hypot(tauC, cosLon))
	dXi, dEta := krugerSum(&k.alpha, xi, eta)
	return k.radius * (eta + dEta), k.radius * (xi + dXi)
}

// inverse is the way back from forward; it fails beyond maxKrugerEta, and beyond the whole globe northwards.
func (k *krugerSeries) inverse(e ellipsoid, east, north float64) (lon, lat float64, ok bool) {
	xi, eta := north/k.radius, east/k.radius
	if !(math.Abs(eta) <= maxKrugerEta && math.Abs(xi) <= math.Pi) {
		return 0, 0, false
	}
	dXi, dEta := krugerSum(&k.beta, xi, eta)
	xi, eta = xi-dXi, eta-dEta
	sinXi, cosXi := math.Sincos(xi)
	sinhEta := math.Sinh(eta)
	lon = math.Atan2(sinhEta, cosXi)
	tauC := sinXi / math.Hypot(sinhEta, cosXi)
	// Equations 19 to 21: Newton's method from the conformal latitude back; two steps are exact to rounding.
	e2 := e.eccentricity2()
	ecc := math.Sqrt(e2)
	tau := tauC / (1 - e2)
	for range 2 {
		secant := math.Sqrt(1 + tau*tau)
		sigma := math.Sinh(ecc * math.Atanh(ecc*tau/secant))
		guess := tau*math.Sqrt(1+sigma*sigma) - sigma*secant
		tau += (tauC - guess) / math.Sqrt(1+guess*guess) * (1 + (1-e2)*tau*tau) / ((1 - e2) * secant)
	}
	return lon, math.Atan(tau), true
}

// applyTransform gives the coordinate of a place in the raster.
func applyTransform(t [6]float64, col, row float64) (x, y float64) {
	return t[0]*col + t[1]*row + t[2], t[3]*col + t[4]*row + t[5]
}

// edgeSegments is into how many parts each edge of a raster is cut to follow its curve in degrees: 21 points between
// the corners, as GDAL calls PROJ's proj_trans_bounds, so that the boxes are the same.
const edgeSegments = 22

// degreesBox is a rectangle of degrees around a raster.
type degreesBox struct {
	bounds  [4]float64 // west south east north, as in RFC 7946, section 5
	clamped bool       // the raster reaches over a pole by more than a pixel
	turned  bool       // its longitudes go beyond ±360 by more than a pixel
	cutM    float64    // metres by which the raster may bulge out of the box between two points of a curved edge
}

// boxInDegrees gives the box of a raster of that transform, width and height. The error says why there is none.
func boxInDegrees(p projection, t [6]float64, width, height float64) (degreesBox, error) {
	segments := edgeSegments
	if p.cornersSuffice(t, width, height) {
		segments = 1
	}
	corners := [5][2]float64{{0, 0}, {width, 0}, {width, height}, {0, height}, {0, 0}}
	west, east, south, north := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	var box degreesBox
	var lon, lat [3]float64 // of the point at hand and the two before it
	for edge := range 4 {
		from, to := corners[edge], corners[edge+1]
		for i := range segments {
			f := float64(i) / float64(segments)
			x, y := applyTransform(t, from[0]+f*(to[0]-from[0]), from[1]+f*(to[1]-from[1]))
			l, phi, err := p.inverse(x, y)
			if err != nil {
				return box, err
			}
			if !p.isCylindrical() && edge+i > 0 {
				l = lon[0] + math.Remainder(l-lon[0], 360) // keep the ring in one piece across 180°
			}
			lon, lat = [3]float64{l, lon[0], lon[1]}, [3]float64{phi, lat[0], lat[1]}
			west, east = min(west, l), max(east, l)
			south, north = min(south, phi), max(north, phi)
			if i >= 2 { // a parabola through three points rises by an eighth of their second difference above its chords
				bulge := math.Hypot((lon[0]-2*lon[1]+lon[2])*math.Cos(phi*math.Pi/180), lat[0]-2*lat[1]+lat[2]) / 8
				box.cutM = max(box.cutM, bulge*math.Pi/180*p.ellipsoid.a)
			}
		}
	}
	for _, pole := range [...]float64{-90, 90} {
		if segments > 1 && p.contains(t, width, height, pole) {
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
	west, east = normaliseLongitudes(west, east)
	box.bounds = [4]float64{west, max(south, -90), east, min(north, 90)}
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
	return p.method == methodGeographic || p.method == methodPseudoMercator
}

// cornersSuffice says whether longitude and latitude are at their least and greatest at the raster's corners: in a
// cylindrical projection; and in a Transverse Mercator for a raster with edges along the axes that keeps to one side of
// the central meridian and of the equator, short of the pole: there both grow or shrink along every edge.
func (p *projection) cornersSuffice(t [6]float64, width, height float64) bool {
	if p.isCylindrical() {
		return true
	}
	if p.method != methodTransverseMercator || t[1] != 0 || t[3] != 0 {
		return false
	}
	x0, y0 := applyTransform(t, 0, 0)
	x1, y1 := applyTransform(t, width, height)
	centre, equator := p.falseEast/p.unit, (p.falseNorth-p.originNorthing*p.scale)/p.unit
	oneSide := (x0 >= centre) == (x1 >= centre) && (y0 >= equator) == (y1 >= equator)
	pole := p.kruger.radius * p.scale * math.Pi / 2 / p.unit
	return oneSide && max(math.Abs(y0-equator), math.Abs(y1-equator)) < pole
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
	return col >= 0 && col <= width && row >= 0 && row <= height
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
