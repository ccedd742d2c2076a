package main

import (
	"errors"
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
