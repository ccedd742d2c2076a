package main

import (
	"errors"
	"fmt"
	"math"
)

// ellipsoid is a figure of the Earth: semi-major axis in metres and inverse flattening, infinite for a sphere.
type ellipsoid struct{ a, inverseFlattening float64 }

// wgs84 is the ellipsoid EPSG 7030.
func wgs84() ellipsoid { return ellipsoid{6378137, 298.257223563} }

// eccentricity2 is the square of the first eccentricity.
func (e ellipsoid) eccentricity2() float64 {
	f := 1 / e.inverseFlattening
	return f * (2 - f)
}

// projectionMethod says by which formulas a projection goes. Many methods of the EPSG dataset share theirs.
type projectionMethod int

// The formulas, in "cylinder" and "cone" with an axis that may be oblique.
const (
	methodNone                projectionMethod = iota
	methodGeographic                           // no projection: longitude and latitude in some unit from some meridian
	methodMercator                             // conformal cylinder: x depends on longitude alone, y on latitude alone,
	methodEqualAreaCylinder                    // as here
	methodEquidistantCylinder                  // and here
	methodObliqueMercator                      // conformal cylinder about an oblique axis
	methodConformalCone                        // Lambert's, and as its limits the stereographic ones
	methodEqualAreaCone                        // Albers', and as its limits the azimuthal ones
	methodTransverseMercator
	methodSinusoidal
	methodCassini
	methodPolyconic
	methodColombiaUrban
)

// sinusoidalCode stands for the sinusoidal projection, which the EPSG dataset has no method code for; its parameters are 8802,
// 8806 and 8807.
const sinusoidalCode = -24 // as GeoTIFF's CT_Sinusoidal

// projection turns coordinates of a CRS into degrees on its own datum, and back. What its method does not use is 0.
//
// The formulas of EPSG Guidance Note 7-2 ("GN" below) are taken apart into steps that methods share:
//   - the ellipsoid onto a sphere of equal angles or equal areas, perhaps onto Gauss's, which fits best at one latitude;
//   - the sphere turned, so that its pole comes to lie in the centre of the map or beside its centre line;
//   - the sphere onto a cone or a cylinder, in metres from the origin;
//   - then the scale, the axes, the false origin and the unit.
type projection struct {
	method    projectionMethod
	ellipsoid ellipsoid
	unit      float64 // of coordinates: metres, and degrees where geographic
	longitude float64 // of the natural origin or the prime meridian, degrees

	scale                 float64    // at the natural origin; negative where axes point south and west
	axes                  [4]float64 // the matrix, row by row, from metres east and north to the two axes, before scale
	falseEast, falseNorth float64    // metres, of the first axis and the second
	originNorthing        float64    // of the natural origin, from the formulas' own, before scale and false northing, metres

	e2, e  float64 // square of the eccentricity, and it, in the formulas: 0 where they are spherical
	kruger krugerSeries
	qPole  float64 // q of the pole, GN 9820

	gauss, gaussShift          float64 // factor of longitude and isometric latitude, and what is added to the latter
	sinPole, cosPole, poleLong float64 // the place on the sphere that becomes its pole; both 0 if it is not turned
	cone                       float64 // the cone's constant n: 1 and -1 are planes at the poles
	radius                     float64 // conformal: of the cone where the isometric latitude is 0; or of the sphere, metres
	inner                      float64 // equal area: square of the radius of the cone's pole, in semi-major axes, times n²
	along                      float64 // longitude on the turned sphere where the oblique Mercator's u is 0, radians
	latitude, height           float64 // of the origin, radians and metres
}

// Bounds of what is taken for a place on the map.
const (
	radian   = math.Pi / 180 // a degree in radians
	farthest = 1e8           // metres from the origin: beyond are only the poles of conformal projections, at infinity
	rounding = 1e-12         // relative, by which a coordinate on the edge of its domain may be over it

	searchedLong, searchedLat = 1.1, 1.5 // radians from the central meridian and the equator: as far as search goes
)

// errOutsideProjection is the answer for coordinates that a projection has no place for.
var errOutsideProjection = errors.New("coordinates outside the projection's domain")

// newProjection gives the projection of an EPSG method and its parameters, by their EPSG codes: angles in degrees, lengths in
// metres, scales as ratios. Of those that are absent, scale is 1, latitude of origin, false easting and northing are 0, and the
// others an error. An inverse flattening of 0 is a sphere's. Coordinates come in the order of GIS software: east, north; but
// west, south in method 9808, south, west in 9819, west, north in 9826.
func newProjection(code int, e ellipsoid, parameters map[int]float64) (projection, error) {
	get := func(absent float64, codes ...int) float64 {
		for _, c := range codes {
			if v, ok := parameters[c]; ok {
				return v
			}
		}
		return absent
	}
	angle := func(code int) float64 { return get(math.NaN(), code) * radian }
	if e.inverseFlattening == 0 {
		e.inverseFlattening = math.Inf(1)
	}
	p := projection{
		ellipsoid: e, unit: 1, axes: [4]float64{1, 0, 0, 1}, e2: e.eccentricity2(), kruger: newKrugerSeries(e), gauss: 1,
		longitude: get(math.NaN(), 8802, 8812, 8822, 8833), latitude: get(0, 8821, 8801, 8811, 8832) * radian,
		scale: get(1, 8805, 8815, 8819, 1038), falseEast: get(0, 8806, 8816, 8826), falseNorth: get(0, 8807, 8817, 8827),
	}
	if code == 1024 || code == 1029 || code == 9841 { // spherical formulas on the semi-major axis
		p.e2, p.kruger = 0, newKrugerSeries(ellipsoid{e.a, math.Inf(1)})
	}
	p.e = math.Sqrt(p.e2)
	p.qPole = p.authalicQ(1)
	sinLatitude, hemisphere := math.Sin(p.latitude), math.Copysign(1, p.latitude)
	switch code {
	case 9807: // Transverse Mercator
		p.method = methodTransverseMercator
	case 9808: // the same, south-orientated
		p.method, p.scale = methodTransverseMercator, -p.scale
	case 9804, 9841, 1024: // Mercator variant A, the spherical one, and pseudo-Mercator
		p.method = methodMercator
	case 9805, 1044: // Mercator variants B and C
		p.method, p.scale = methodMercator, p.parallelRadius(angle(8823))
	case 1028, 1029, 9823: // equidistant cylindrical, and the spherical ones
		p.method, p.axes[0] = methodEquidistantCylinder, p.parallelRadius(angle(8823))
	case 9835, 9834: // Lambert cylindrical equal area, and the spherical one
		k := p.parallelRadius(angle(8823))
		p.method, p.axes = methodEqualAreaCylinder, [4]float64{k, 0, 0, 1 / k}
	case 9801, 1102: // Lambert conic conformal with one parallel, variants A and B
		p.conformalCone(math.Sin(angle(8801)), angle(8801))
	case 9826: // the same, west-orientated
		p.conformalCone(sinLatitude, p.latitude)
		p.axes[0] = -1
	case 9802, 9803, 1051: // Lambert conic conformal with two parallels, Belgium, Michigan: Snyder, equation 15-8
		phi1, phi2, n := angle(8823), angle(8824), math.Sin(angle(8823))
		if phi1 != phi2 {
			n = math.Log(p.parallelRadius(phi1)/p.parallelRadius(phi2)) / (p.isometric(phi2) - p.isometric(phi1))
		}
		p.conformalCone(n, phi1)
		if code == 9803 { // GN: the angle of the cone less 29.2985"
			p.longitude += 29.2985 / 3600 / n
		}
	case 9810: // polar stereographic variant A, at 90° or -90°
		p.conformalCone(math.Trunc(p.latitude/(math.Pi/2)), p.latitude)
	case 9829: // polar stereographic variant B
		p.conformalCone(hemisphere, p.latitude)
		p.latitude = hemisphere * math.Pi / 2
	case 9830: // polar stereographic variant C
		p.conformalCone(hemisphere, p.latitude)
	case 9822: // Albers: Snyder, equations 14-13 and 14-14
		phi1, phi2, n := angle(8823), angle(8824), math.Sin(angle(8823))
		m1, q1 := p.parallelRadius(phi1), p.authalicQ(n)
		if phi1 != phi2 {
			n = (m1*m1 - math.Pow(p.parallelRadius(phi2), 2)) / (p.authalicQ(math.Sin(phi2)) - q1)
		}
		p.method, p.cone, p.inner = methodEqualAreaCone, n, m1*m1+n*q1-math.Abs(n)*p.qPole
	case 9820, 1027: // Lambert azimuthal equal area, and the spherical one
		p.method, p.cone = methodEqualAreaCone, hemisphere
		if math.Abs(p.latitude) != math.Pi/2 {
			p.cone, p.sinPole = 1, p.authalicQ(sinLatitude)/p.qPole
			p.cosPole = math.Sqrt(1 - p.sinPole*p.sinPole)
			d := p.parallelRadius(p.latitude) / p.cosPole / math.Sqrt(p.qPole/2)
			p.axes = [4]float64{d, 0, 0, 1 / d}
		}
	case 9809: // oblique stereographic
		p.sinPole, p.cosPole = p.gaussSphere()
		p.method, p.cone, p.radius = methodConformalCone, 1, 2*p.radius
	case 9819, 1041: // Krovak, and the north-orientated one
		p.gaussSphere()
		p.cosPole, p.sinPole = math.Sincos(angle(1036))
		sin, cos := math.Sincos(angle(8818))
		p.method, p.cone, p.radius = methodConformalCone, sin, p.radius*cos/sin*math.Exp(sin*math.Atanh(sin))
		if code == 9819 {
			p.axes = [4]float64{0, -1, -1, 0}
		}
	case 9812, 9815: // Hotine oblique Mercator, variants A and B
		sin, cos := p.gaussSphere()
		sinAzimuth, cosAzimuth := math.Sincos(angle(8813))
		p.method, p.sinPole = methodObliqueMercator, sinAzimuth*cos // the pole is 90° to the left of the initial line
		p.cosPole, p.poleLong = math.Sqrt(1-p.sinPole*p.sinPole), math.Atan2(-cosAzimuth, -sin*sinAzimuth)
		p.along = math.Pi / 2 // where the initial line crosses the sphere's equator
		if code == 9815 {
			p.along, _ = turnSphere(-p.poleLong, sin/cos, p.sinPole, p.cosPole)
		}
		sin, cos = math.Sincos(angle(8814))
		p.axes = [4]float64{cos, sin, -sin, cos}
	case 9806: // Cassini-Soldner
		p.method = methodCassini
	case 9818: // American polyconic
		p.method = methodPolyconic
	case 1052: // Colombia urban
		p.method, p.height = methodColombiaUrban, get(math.NaN(), 1039)
	case sinusoidalCode:
		p.method = methodSinusoidal
	default:
		return projection{}, fmt.Errorf("projection method %d is not known", code)
	}
	if p.cosPole == 0 {
		_, p.originNorthing = p.project(0, p.latitude)
	}
	sum := p.longitude + p.falseEast + p.falseNorth + p.originNorthing + p.axes[0] + p.axes[3] + p.radius + p.inner + p.height
	if !(e.a > 0 && p.e2 >= 0 && p.e2 < 1 && p.scale != 0 && isFinite(sum+p.scale+p.cosPole+p.gaussShift)) {
		return projection{}, fmt.Errorf("parameters of projection method %d are missing or make no projection", code)
	}
	return p, nil
}

// conformalCone makes the projection a conformal cone of constant n that is true to scale at a latitude, before p.scale: Snyder,
// equations 15-7 and 15-10 with t as exp(-ψ). At 90° rounding in math.Pi/2 gives the limit, GN 9810's 2a/√((1+e)^(1+e)(1-e)^(1-e)).
func (p *projection) conformalCone(n, phi float64) {
	p.method, p.cone = methodConformalCone, n
	p.radius = p.ellipsoid.a * p.parallelRadius(phi) / n * math.Exp(n*p.isometric(phi))
}

// gaussSphere has longitudes and isometric latitudes taken to Gauss's conformal sphere that fits best at p.latitude; it gives
// that on the sphere. GN 9809, n, c and R; GN 9812's B, A / kc and H, and 9819's B, t0 and A are the same.
func (p *projection) gaussSphere() (sin, cos float64) {
	sinPhi, cosPhi := math.Sincos(p.latitude)
	p.gauss = math.Sqrt(1 + p.e2*math.Pow(cosPhi, 4)/(1-p.e2))
	sin = sinPhi / p.gauss
	p.gaussShift = math.Atanh(sin) - p.gauss*p.isometric(p.latitude)
	p.radius = p.ellipsoid.a * math.Sqrt(1-p.e2) / (1 - p.e2*sinPhi*sinPhi)
	return sin, math.Sqrt(1 - sin*sin)
}

// turnSphere gives longitude and tangent of latitude from those on a sphere whose pole was at longitude 0 and a latitude, of
// which sine and cosine are given; new longitudes begin at the far meridian. Minus the cosine is the way back.
func turnSphere(lam, tan, sinPole, cosPole float64) (newLam, newTan float64) {
	cos := 1 / math.Hypot(1, tan)
	sinLam, cosLam := math.Sincos(lam)
	x, y, z := cos*cosLam, cos*sinLam, tan*cos
	x, z = x*sinPole-z*cosPole, x*cosPole+z*sinPole
	return math.Atan2(y, x), z / max(math.Hypot(x, y), 1e-17)
}

// forward gives the coordinate of a longitude and latitude in degrees; the error is errOutsideProjection.
func (p *projection) forward(lon, lat float64) (x, y float64, err error) {
	if p.method == methodGeographic {
		return finite((lon-p.longitude)/p.unit, lat/p.unit)
	}
	east, north := p.project(math.Remainder(lon-p.longitude, 360)*radian, lat*radian)
	north -= p.originNorthing
	if !(math.Abs(lat) <= 90 && math.Abs(east) <= farthest && math.Abs(north) <= farthest) {
		return 0, 0, errOutsideProjection
	}
	x = p.falseEast + p.scale*(p.axes[0]*east+p.axes[1]*north)
	y = p.falseNorth + p.scale*(p.axes[2]*east+p.axes[3]*north)
	return finite(x/p.unit, y/p.unit)
}

// inverse gives longitude, which may lie outside ±180 and in a cylindrical projection is continuous, and latitude; the
// error is errOutsideProjection.
func (p *projection) inverse(x, y float64) (lon, lat float64, err error) {
	if p.method == methodGeographic {
		return finite(x*p.unit+p.longitude, y*p.unit)
	}
	x, y = (x*p.unit-p.falseEast)/p.scale, (y*p.unit-p.falseNorth)/p.scale
	determinant := p.axes[0]*p.axes[3] - p.axes[1]*p.axes[2]
	east, north := (p.axes[3]*x-p.axes[1]*y)/determinant, (p.axes[0]*y-p.axes[2]*x)/determinant
	if !(math.Abs(east) <= 1.01*farthest && math.Abs(north) <= 1.01*farthest) {
		return 0, 0, errOutsideProjection
	}
	lam, phi := p.unproject(east, north+p.originNorthing)
	return finite(p.longitude+lam/radian, phi/radian)
}

// isFinite says whether v is a number that is not infinite.
func isFinite(v float64) bool { return !math.IsNaN(v - v) }

// finite hands on two coordinates, or the error if either is none.
func finite(a, b float64) (float64, float64, error) {
	if !isFinite(a) || !isFinite(b) {
		return 0, 0, errOutsideProjection
	}
	return a, b, nil
}

// project goes from radians, longitude from p.longitude, to metres at scale 1; NaN where there are none.
func (p *projection) project(lam, phi float64) (x, y float64) {
	switch p.method {
	case methodTransverseMercator:
		return p.kruger.forward(lam, p.conformalTan(math.Tan(phi)))
	case methodEquidistantCylinder: // GN 1028
		return p.ellipsoid.a * lam, p.meridianArc(phi)
	case methodSinusoidal: // Snyder, equation 30-8
		return p.ellipsoid.a * lam * p.parallelRadius(phi), p.meridianArc(phi)
	case methodCassini, methodPolyconic, methodColombiaUrban:
		if math.Abs(lam) <= searchedLong && math.Abs(phi) <= searchedLat {
			return p.projectLocal(lam, phi)
		}
		return math.NaN(), math.NaN()
	}
	lam, tan := p.toSphere(lam, phi)
	h := math.Hypot(1, tan)
	switch p.method {
	case methodMercator: // GN 9804 with ψ
		return p.ellipsoid.a * lam, p.ellipsoid.a * math.Asinh(tan)
	case methodEqualAreaCylinder: // GN 9835
		return p.ellipsoid.a * lam, p.ellipsoid.a * p.qPole / 2 * tan / h
	case methodObliqueMercator: // GN 9812, v and u
		return -p.radius * math.Asinh(tan), p.radius * math.Remainder(lam-p.along, 2*math.Pi)
	}
	var rho float64
	switch p.method {
	case methodConformalCone: // GN 9801 with t = exp(-ψ)
		rho = p.radius * math.Exp(-p.cone*math.Asinh(tan))
	case methodEqualAreaCone: // GN 9822 with α = n²ρ² / a², of 1 - sin β as it is exact near the pole
		versine := 1 / (h * (h + math.Abs(tan)))
		if tan*p.cone < 0 {
			versine = 2 - versine
		}
		if p.inner == 0 && versine > 2-1e-9 {
			return math.NaN(), math.NaN()
		}
		rho = p.ellipsoid.a * math.Sqrt(p.inner+math.Abs(p.cone)*p.qPole*versine) / p.cone
	}
	sin, cos := math.Sincos(p.cone * lam)
	return rho * sin, -rho * cos
}

// unproject is the way back from project.
func (p *projection) unproject(x, y float64) (lam, phi float64) {
	a := p.ellipsoid.a
	var tan float64
	switch p.method {
	case methodTransverseMercator:
		lam, tan = p.kruger.inverse(x, y)
		return lam, math.Atan(p.geodeticTan(tan))
	case methodEquidistantCylinder:
		return x / a, p.footpoint(y)
	case methodSinusoidal:
		phi = p.footpoint(y)
		return onGlobe(x/a/p.parallelRadius(phi), x), phi
	case methodCassini, methodPolyconic, methodColombiaUrban:
		return p.search(x, y)
	case methodMercator:
		lam, tan = x/a, math.Sinh(y/a)
	case methodEqualAreaCylinder:
		lam, tan = x/a, tanOfVersine(1-2*y/a/p.qPole)
	case methodObliqueMercator:
		lam, tan = onGlobe(y/p.radius, y)+p.along, math.Sinh(-x/p.radius)
	case methodConformalCone, methodEqualAreaCone:
		rho := math.Copysign(math.Hypot(x, y), p.cone)
		if math.Abs(rho) > 1e-6 { // otherwise it is the pole, and the direction is rounding
			lam = onGlobe(math.Atan2(x/p.cone, -y/p.cone)/p.cone, rho)
		}
		if p.method == methodConformalCone {
			tan = math.Sinh(max(-40, min(math.Log(p.radius/rho)/p.cone, 40))) // 40 is 90° in all digits
			break
		}
		r := rho * p.cone / a
		tan = math.Copysign(1, p.cone) * tanOfVersine((r*r-p.inner)/(math.Abs(p.cone)*p.qPole))
	}
	return p.fromSphere(lam, tan)
}

// toSphere gives longitude and tangent of latitude on the sphere, conformal or authalic, of radians on the ellipsoid.
func (p *projection) toSphere(lam, phi float64) (sphereLam, tan float64) {
	if p.method == methodEqualAreaCylinder || p.method == methodEqualAreaCone { // GN 9820, β
		sin := p.authalicQ(math.Sin(phi)) / p.qPole
		tan = sin / math.Sqrt(max(1-sin*sin, 1e-34))
	} else {
		tan = p.conformalTan(math.Tan(phi))
	}
	if p.gauss != 1 {
		lam = onGlobe(lam*p.gauss, p.radius) // less than all longitudes cover Gauss's sphere
		tan = math.Sinh(p.gauss*math.Asinh(tan) + p.gaussShift)
	}
	if p.cosPole != 0 {
		return turnSphere(lam-p.poleLong, tan, p.sinPole, p.cosPole)
	}
	return lam, tan
}

// fromSphere is the way back from toSphere.
func (p *projection) fromSphere(lam, tan float64) (ellipsoidLam, phi float64) {
	if p.cosPole != 0 {
		lam, tan = turnSphere(lam, tan, p.sinPole, -p.cosPole)
		lam = math.Remainder(lam+p.poleLong, 2*math.Pi)
	}
	if p.method == methodEqualAreaCylinder || p.method == methodEqualAreaCone {
		return lam, math.Asin(p.authalicSine(tan / math.Hypot(1, tan)))
	}
	if p.gauss != 1 {
		lam, tan = lam/p.gauss, math.Sinh((math.Asinh(tan)-p.gaussShift)/p.gauss)
	}
	return lam, math.Atan(p.geodeticTan(tan))
}

// onGlobe gives a longitude that is within ±π or, at the end of a lever in metres, over it by rounding; otherwise NaN.
func onGlobe(lam, lever float64) float64 {
	over := math.Abs(lam) - math.Pi
	if over*math.Abs(lever) > 1e-6 {
		return math.NaN()
	}
	return math.Copysign(math.Abs(lam)-max(over, 0), lam)
}

// tanOfVersine gives the tangent of a latitude from 1 less its sine; NaN where there is none.
func tanOfVersine(versine float64) float64 {
	if !(versine >= -rounding && versine <= 2+rounding) {
		return math.NaN()
	}
	return (1 - versine) / math.Sqrt(max(versine*(2-versine), 1e-34))
}

// parallelRadius is the radius of a parallel in semi-major axes: Snyder's m, equation 14-15.
func (p *projection) parallelRadius(phi float64) float64 {
	sin, cos := math.Sincos(phi)
	return cos / math.Sqrt(1-p.e2*sin*sin)
}

// meridianRadius is the radius of curvature in the meridian: Snyder, equation 4-18.
func (p *projection) meridianRadius(phi float64) float64 {
	return p.ellipsoid.a * (1 - p.e2) / math.Pow(1-p.e2*math.Pow(math.Sin(phi), 2), 1.5)
}

// authalicQ is q of the sine of a latitude: Snyder, equation 3-12.
func (p *projection) authalicQ(sin float64) float64 {
	if p.e == 0 {
		return 2 * sin
	}
	return (1 - p.e2) * (sin/(1-p.e2*sin*sin) + math.Atanh(p.e*sin)/p.e)
}

// authalicSine gives the sine of the latitude whose q, in that of the pole, is given: Newton's method as in Snyder, equation
// 3-16, but for the sine, so that it does not slow down near the pole.
func (p *projection) authalicSine(part float64) float64 {
	sin := part
	for range 8 {
		w := 1 - p.e2*sin*sin
		step := (part*p.qPole - p.authalicQ(sin)) * w * w / (2 * (1 - p.e2))
		if sin += step; math.Abs(step) < 1e-15 {
			break
		}
	}
	return max(-1, min(sin, 1))
}

// conformalTan gives the tangent of the conformal latitude from that of the latitude: Karney 2011, equations 7 to 9.
func (p *projection) conformalTan(tau float64) float64 {
	secant := math.Sqrt(1 + tau*tau)
	sigma := math.Sinh(p.e * math.Atanh(p.e*tau/secant))
	return tau*math.Sqrt(1+sigma*sigma) - sigma*secant
}

// geodeticTan is the way back from conformalTan: Karney 2011, equations 19 to 21, Newton's method; two steps mostly do.
func (p *projection) geodeticTan(tauC float64) float64 {
	tau := tauC / (1 - p.e2)
	for range 6 {
		secant, guess := math.Sqrt(1+tau*tau), p.conformalTan(tau)
		step := (tauC - guess) / math.Sqrt(1+guess*guess) * (1 + (1-p.e2)*tau*tau) / ((1 - p.e2) * secant)
		if tau += step; !(math.Abs(step) > 1e-9*max(1, math.Abs(tau))) { // then the next would be rounding
			break
		}
	}
	return tau
}

// isometric is the isometric latitude ψ, radians.
func (p *projection) isometric(phi float64) float64 { return math.Asinh(p.conformalTan(math.Tan(phi))) }

// meridianArc is the length of the meridian from the equator, metres: the Transverse Mercator's northing at its centre.
func (p *projection) meridianArc(phi float64) float64 {
	_, north := p.kruger.forward(0, p.conformalTan(math.Tan(phi)))
	return north
}

// footpoint is the latitude at an end of that length, radians; NaN beyond the poles.
func (p *projection) footpoint(arc float64) float64 {
	if math.Abs(arc) > (math.Pi/2+rounding)*p.kruger.radius {
		return math.NaN()
	}
	_, tan := p.kruger.inverse(0, arc)
	return math.Atan(p.geodeticTan(tan))
}

// projectLocal has the formulas that search inverts. GN gives inverse series for them that are less exact.
func (p *projection) projectLocal(lam, phi float64) (x, y float64) {
	sin, cos := math.Sincos(phi)
	nu := p.ellipsoid.a * p.parallelRadius(phi) / cos // radius of curvature in the prime vertical
	east := nu * cos * lam                            // along the parallel
	arc := p.meridianArc(phi) - p.meridianArc(p.latitude)
	switch p.method {
	case methodPolyconic: // GN 9818, with the cotangent cancelled so that the equator is no exception
		l := lam*sin + 1e-300 // never 0
		half := math.Sin(l / 2)
		return east * math.Sin(l) / l, arc + east*half*half*2/l
	case methodColombiaUrban: // GN 1052
		nu0, rho0 := p.ellipsoid.a*p.parallelRadius(p.latitude)/math.Cos(p.latitude), p.meridianRadius(p.latitude)
		curve := math.Tan(p.latitude) / (2 * rho0 * nu0) * east * east
		return east * (1 + p.height/nu0), (1 + p.height/p.meridianRadius((phi+p.latitude)/2)) * rho0 * (phi - p.latitude + curve)
	}
	// GN 9806
	a, t, c := lam*cos, math.Tan(phi)*math.Tan(phi), p.e2/(1-p.e2)*cos*cos
	a2 := a * a
	x = nu * (a - t*a2*a/6 - (8-t+8*c)*t*a2*a2*a/120)
	return x, arc + nu*math.Tan(phi)*(a2/2+(5-t+6*c)*a2*a2/24)
}

// search inverts projectLocal by Newton's method, with differences for derivatives.
func (p *projection) search(x, y float64) (lam, phi float64) {
	const step = 1e-6
	phi = max(-searchedLat, min(p.latitude+y/p.ellipsoid.a, searchedLat))
	lam = max(-searchedLong, min(x/p.ellipsoid.a/math.Cos(phi), searchedLong))
	for range 20 {
		x0, y0 := p.projectLocal(lam, phi)
		dx, dy := x-x0, y-y0
		if math.Hypot(dx, dy) < 1e-8 && math.Abs(lam) <= searchedLong+rounding && math.Abs(phi) <= searchedLat+rounding {
			return lam, phi
		}
		xl, yl := p.projectLocal(lam+step, phi)
		xp, yp := p.projectLocal(lam, phi+step)
		xl, yl, xp, yp = xl-x0, yl-y0, xp-x0, yp-y0
		determinant := (xl*yp - xp*yl) / step
		lam, phi = lam+(dx*yp-dy*xp)/determinant, phi+(xl*dy-yl*dx)/determinant
	}
	return math.NaN(), math.NaN()
}

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

// forward projects radians from the central meridian and the tangent of the conformal latitude to metres east and north.
func (k *krugerSeries) forward(lam, tauC float64) (east, north float64) {
	sin, cos := math.Sincos(lam)
	xi, eta := math.Atan2(tauC, cos), math.Asinh(sin/math.Hypot(tauC, cos))
	dXi, dEta := krugerSum(&k.alpha, xi, eta)
	if !(max(math.Abs(eta), math.Abs(eta+dEta)) <= maxKrugerEta) {
		return math.NaN(), math.NaN()
	}
	return k.radius * (eta + dEta), k.radius * (xi + dXi)
}

// inverse is the way back from forward; NaN beyond maxKrugerEta, and beyond the whole globe northwards.
func (k *krugerSeries) inverse(east, north float64) (lam, tauC float64) {
	xi, eta := north/k.radius, east/k.radius
	if !(math.Abs(eta) <= maxKrugerEta+rounding && math.Abs(xi) <= math.Pi+rounding) {
		return math.NaN(), math.NaN()
	}
	dXi, dEta := krugerSum(&k.beta, xi, eta)
	sin, cos := math.Sincos(xi - dXi)
	sinh := math.Sinh(eta - dEta)
	return math.Atan2(sinh, cos), sin / math.Hypot(sinh, cos)
}
