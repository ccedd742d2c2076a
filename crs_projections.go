package main

import (
	"errors"
	"fmt"
	"math"
)

// ellipsoid is a figure of the Earth.
type ellipsoid struct {
	a                 float64 // semi-major axis in metres
	inverseFlattening float64 // infinite for a sphere
}

// wgs84 returns the ellipsoid of WGS 84, EPSG 7030.
func wgs84() ellipsoid {
	return ellipsoid{
		a:                 6378137,
		inverseFlattening: 298.257223563,
	}
}

// eccentricity2 returns the square of the first eccentricity.
func (e ellipsoid) eccentricity2() float64 {
	f := 1 / e.inverseFlattening
	return f * (2 - f)
}

// EPSG codes of the projection methods, by their names in EPSG Guidance Note 7-2.
const (
	methodMercatorA                    = 9804
	methodMercatorB                    = 9805
	methodMercatorC                    = 1044
	methodMercatorSphere               = 9841
	methodPseudoMercator               = 1024
	methodTransverseMercator           = 9807
	methodTransverseMercatorSouth      = 9808
	methodObliqueMercatorA             = 9812
	methodObliqueMercatorB             = 9815
	methodEquidistantCylindrical       = 1028
	methodEquidistantCylindricalSphere = 1029
	methodLambertCylindrical           = 9835
	methodLambertCylindricalSphere     = 9834
	methodLambertConic1SP              = 9801
	methodLambertConicWest             = 9826
	methodLambertConic2SP              = 9802
	methodLambertConicBelgium          = 9803
	methodLambertConicMichigan         = 1051
	methodLambertAzimuthal             = 9820
	methodLambertAzimuthalSphere       = 1027
	methodPolarStereographicA          = 9810
	methodPolarStereographicB          = 9829
	methodPolarStereographicC          = 9830
	methodObliqueStereographic         = 9809
	methodKrovak                       = 9819
	methodKrovakNorth                  = 1041
	methodAlbers                       = 9822
	methodCassiniSoldner               = 9806
	methodPolyconic                    = 9818
	methodColombiaUrban                = 1052
	methodNewZealandMapGrid            = 9811
	methodLaborde                      = 9813 // not supported

	// The EPSG dataset has no sinusoidal projection: minus GeoTIFF's code for it.
	methodSinusoidal = -24
)

// EPSG codes of the parameters of projection methods. Some methods have others, for example for a
// false origin: the registry names the one of these that is alike.
const (
	parameterLatitudeOfOrigin  = 8801
	parameterLongitudeOfOrigin = 8802
	parameterScale             = 8805
	parameterEllipsoidScale    = 1038
	parameterFalseEasting      = 8806
	parameterFalseNorthing     = 8807
	parameterStandardParallel1 = 8823
	parameterStandardParallel2 = 8824
	parameterAzimuth           = 8813
	parameterSkewAngle         = 8814
	parameterPlaneHeight       = 1039
)

// projectionParameters holds parameters by these codes, in degrees, metres, and 1 for scales.
type projectionParameters map[int]float64

// value returns a parameter, absent where it is not given.
func (p projectionParameters) value(code int, absent float64) float64 {
	v, ok := p[code]
	if !ok {
		return absent
	}
	return v
}

// angle returns a parameter in radians, NaN where it is not given.
func (p projectionParameters) angle(code int) float64 {
	degrees := p.value(code, math.NaN())
	return degrees * radian
}

// formula selects the formulas of a projection. Many methods of the EPSG dataset share theirs.
type formula int

// The formulas. The axis of a cylinder or a cone may be oblique.
const (
	formulaNone                formula = iota
	formulaGeographic                  // no projection: longitude and latitude in some unit from some meridian
	formulaMercator                    // conformal cylinder; x depends on longitude alone, y on latitude alone
	formulaEqualAreaCylinder           // likewise
	formulaEquidistantCylinder         // likewise
	formulaObliqueMercator             // conformal cylinder about an oblique axis
	formulaConformalCone               // Lambert's; its limits are the stereographic projections
	formulaEqualAreaCone               // Albers'; its limits are the azimuthal equal-area projections
	formulaTransverseMercator
	formulaSinusoidal
	formulaCassini
	formulaPolyconic
	formulaColombiaUrban
)

// projection converts between a CRS's coordinates and degrees on its datum. Unused fields are 0.
//
// It splits the formulas of EPSG Guidance Note 7-2 ("GN" below) into steps that methods share:
//   - from the ellipsoid to a sphere of equal angles or areas, or to Gauss's of best fit;
//   - a turn of the sphere, which brings its pole to the map's centre or beside its centre line;
//   - from the sphere to a cone or cylinder, in metres from the origin;
//   - the scale, the axes, the false origin and the unit.
type projection struct {
	formula   formula
	ellipsoid ellipsoid
	unit      float64 // of coordinates, in metres; in degrees for a geographic CRS
	longitude float64 // of the natural origin or the prime meridian, degrees

	scale          float64    // at the natural origin; negative where the axes point south and west
	axes           [4]float64 // matrix, row by row; it makes metres east and north metres along the axes
	falseEast      float64    // metres along the first axis
	falseNorth     float64    // metres along the second axis
	originNorthing float64    // northing of the natural origin in the formulas, metres

	e2     float64 // eccentricity squared in the formulas; 0 where they are spherical
	e      float64 // eccentricity
	kruger krugerSeries
	qPole  float64 // q of the pole, GN 9820

	gauss      float64 // factor of longitude and isometric latitude
	gaussShift float64 // summand of isometric latitude

	// The position on the sphere that becomes the pole.
	sinPole  float64
	cosPole  float64 // 0 without a turn
	poleLong float64 // radians

	cone     float64 // constant n of the cone; 1 and -1 are planes at the poles
	radius   float64 // of a conformal cone at isometric latitude 0, or of the sphere, metres
	inner    float64 // equal area: n² times squared radius of the cone's pole, semi-major axes
	along    float64 // longitude on the turned sphere where the oblique Mercator's u is 0, radians
	latitude float64 // of the origin, radians
	height   float64 // of the origin, metres
}

// Bounds of the positions that a projection accepts.
const (
	radian   = math.Pi / 180 // one degree in radians
	farthest = 1e8           // metres from the origin; only the poles of conformal projections, at infinity, lie beyond
	rounding = 1e-12         // relative tolerance at the edge of the domain

	// The domain of search.
	searchedLong = 1.1 // radians from the central meridian
	searchedLat  = 1.5 // radians from the equator
)

// errOutsideProjection is the error for coordinates outside a projection's domain.
var errOutsideProjection = errors.New("coordinates outside the projection's domain")

// newProjection returns the projection of an EPSG method. By default the scale is 1, and the
// latitude of origin and the false coordinates are 0. Other parameters must be given.
//
// Coordinates are east and north. They are west and south in method 9808, south and west in 9819,
// and west and north in 9826.
func newProjection(method int, e ellipsoid, parameters projectionParameters) (projection, error) {
	if e.inverseFlattening == 0 {
		e.inverseFlattening = math.Inf(1)
	}

	// The formulas of some methods are those of a sphere of radius a.
	figure := e
	switch method {
	case methodPseudoMercator,
		methodEquidistantCylindricalSphere,
		methodMercatorSphere:
		figure.inverseFlattening = math.Inf(1)
	}

	scaleAtOrigin := parameters.value(parameterScale, 1)
	scaleOfEllipsoid := parameters.value(parameterEllipsoidScale, 1)
	e2 := figure.eccentricity2()
	p := projection{
		ellipsoid: e,
		unit:      1,
		axes: [4]float64{
			1, 0,
			0, 1,
		},
		gauss:      1,
		e2:         e2,
		e:          math.Sqrt(e2),
		kruger:     newKrugerSeries(figure),
		longitude:  parameters.value(parameterLongitudeOfOrigin, math.NaN()),
		latitude:   parameters[parameterLatitudeOfOrigin] * radian,
		scale:      scaleAtOrigin * scaleOfEllipsoid,
		falseEast:  parameters[parameterFalseEasting],
		falseNorth: parameters[parameterFalseNorthing],
	}

	p.qPole = p.authalicQ(1)
	if !p.setFormula(method, parameters) {
		return projection{}, fmt.Errorf("projection method %d is unknown", method)
	}

	if p.cosPole == 0 {
		_, p.originNorthing = p.project(0, p.latitude)
	}

	// A sum is finite if all its terms are.
	origin := p.longitude +
		p.falseEast +
		p.falseNorth +
		p.originNorthing +
		p.height
	figures := p.axes[0] +
		p.axes[3] +
		p.scale +
		p.radius +
		p.inner +
		p.cosPole +
		p.gaussShift

	isEllipsoid := e.a > 0 && p.e2 >= 0 && p.e2 < 1
	isComplete := isFinite(origin + figures)
	if !isEllipsoid || p.scale == 0 || !isComplete {
		return projection{}, fmt.Errorf("parameters of projection method %d are missing or out of range", method)
	}
	return p, nil
}

// setFormula sets the formula of an EPSG method and its fields, or returns false if it is unknown.
func (p *projection) setFormula(method int, parameters projectionParameters) bool {
	hemisphere := math.Copysign(1, p.latitude)
	phi1 := parameters.angle(parameterStandardParallel1)
	phi2 := parameters.angle(parameterStandardParallel2)

	switch method {
	case methodTransverseMercator:
		p.formula = formulaTransverseMercator
	case methodTransverseMercatorSouth:
		p.formula = formulaTransverseMercator
		p.scale = -p.scale
	case methodMercatorA, methodMercatorSphere, methodPseudoMercator:
		p.formula = formulaMercator
	case methodMercatorB, methodMercatorC:
		p.formula = formulaMercator
		p.scale = p.parallelRadius(phi1)
	case methodEquidistantCylindrical, methodEquidistantCylindricalSphere:
		p.formula = formulaEquidistantCylinder
		p.axes[0] = p.parallelRadius(phi1)
	case methodLambertCylindrical, methodLambertCylindricalSphere:
		k := p.parallelRadius(phi1)
		p.formula = formulaEqualAreaCylinder
		p.axes = [4]float64{
			k, 0,
			0, 1 / k,
		}
	case methodLambertConic1SP:
		p.setConformalCone(math.Sin(p.latitude), p.latitude)
	case methodLambertConicWest:
		p.setConformalCone(math.Sin(p.latitude), p.latitude)
		p.axes[0] = -1
	case methodLambertConic2SP,
		methodLambertConicBelgium,
		methodLambertConicMichigan:
		n := p.constantOfCone(phi1, phi2)
		p.setConformalCone(n, phi1)
		if method == methodLambertConicBelgium { // GN 9803: the angle of the cone less 29.2985"
			p.longitude += 29.2985 / 3600 / n
		}
	case methodPolarStereographicA: // the latitude is 90° or -90°
		p.setConformalCone(math.Trunc(p.latitude/(math.Pi/2)), p.latitude)
	case methodPolarStereographicB:
		p.setConformalCone(hemisphere, p.latitude)
		p.latitude = hemisphere * math.Pi / 2
	case methodPolarStereographicC:
		p.setConformalCone(hemisphere, p.latitude)
	case methodAlbers:
		p.setAlbers(phi1, phi2)
	case methodLambertAzimuthal, methodLambertAzimuthalSphere:
		p.setLambertAzimuthal(hemisphere)
	case methodObliqueStereographic:
		p.sinPole, p.cosPole = p.setGaussSphere()
		p.formula = formulaConformalCone
		p.cone = 1
		p.radius = 2 * p.radius
	case methodKrovak, methodKrovakNorth:
		p.setKrovak(parameters)
		if method == methodKrovak {
			p.axes = [4]float64{
				0, -1,
				-1, 0,
			}
		}
	case methodObliqueMercatorA, methodObliqueMercatorB:
		p.setObliqueMercator(method, parameters)
	case methodCassiniSoldner:
		p.formula = formulaCassini
	case methodPolyconic:
		p.formula = formulaPolyconic
	case methodColombiaUrban:
		p.formula = formulaColombiaUrban
		p.height = parameters.value(parameterPlaneHeight, math.NaN())
	case methodSinusoidal:
		p.formula = formulaSinusoidal
	default:
		return false
	}

	return true
}

// constantOfCone returns n of Lambert's conformal cone with two standard parallels: Snyder,
// equation 15-8.
func (p *projection) constantOfCone(phi1, phi2 float64) float64 {
	if phi1 == phi2 {
		return math.Sin(phi1)
	}

	ratio := p.parallelRadius(phi1) / p.parallelRadius(phi2)
	difference := p.isometric(phi2) - p.isometric(phi1)
	return math.Log(ratio) / difference
}

// setAlbers sets Albers' cone with two standard parallels: Snyder, equations 14-13 and 14-14.
func (p *projection) setAlbers(phi1, phi2 float64) {
	n := math.Sin(phi1)
	m1 := p.parallelRadius(phi1)
	q1 := p.authalicQ(n)

	if phi1 != phi2 {
		m2 := p.parallelRadius(phi2)
		q2 := p.authalicQ(math.Sin(phi2))
		n = (m1*m1 - math.Pow(m2, 2)) / (q2 - q1)
	}

	p.formula = formulaEqualAreaCone
	p.cone = n
	p.inner = m1*m1 + n*q1 - math.Abs(n)*p.qPole
}

// setLambertAzimuthal sets Lambert's azimuthal equal-area projection about p.latitude: GN 9820.
func (p *projection) setLambertAzimuthal(hemisphere float64) {
	p.formula = formulaEqualAreaCone
	p.cone = hemisphere
	if math.Abs(p.latitude) == math.Pi/2 {
		return
	}

	// Turn the sphere, so that the centre becomes the pole.
	p.cone = 1
	p.sinPole = p.authalicQ(math.Sin(p.latitude)) / p.qPole
	p.cosPole = math.Sqrt(1 - p.sinPole*p.sinPole)

	radius := math.Sqrt(p.qPole / 2) // of the authalic sphere, in semi-major axes
	d := p.parallelRadius(p.latitude) / p.cosPole / radius
	p.axes = [4]float64{
		d, 0,
		0, 1 / d,
	}
}

// setKrovak sets Krovak's oblique conformal cone with axes east and north: GN 9819.
func (p *projection) setKrovak(parameters projectionParameters) {
	p.setGaussSphere()

	coLatitude := parameters.angle(parameterAzimuth) // of the cone's axis
	p.cosPole, p.sinPole = math.Sincos(coLatitude)

	pseudoParallel := parameters.angle(parameterStandardParallel1)
	sin, cos := math.Sincos(pseudoParallel)
	p.formula = formulaConformalCone
	p.cone = sin
	isometric := math.Atanh(sin) // of the pseudo standard parallel
	p.radius = p.radius * cos / sin * math.Exp(sin*isometric)
}

// setObliqueMercator sets Hotine's oblique Mercator: GN 9812. Variant A counts from where the
// initial line crosses the sphere's equator, variant B from the centre.
func (p *projection) setObliqueMercator(method int, parameters projectionParameters) {
	sin, cos := p.setGaussSphere()
	sinAzimuth, cosAzimuth := math.Sincos(parameters.angle(parameterAzimuth))

	// The pole is 90° to the left of the initial line.
	p.formula = formulaObliqueMercator
	p.sinPole = sinAzimuth * cos
	p.cosPole = math.Sqrt(1 - p.sinPole*p.sinPole)
	p.poleLong = math.Atan2(-cosAzimuth, -sin*sinAzimuth)

	// Where u is 0.
	p.along = math.Pi / 2
	if method == methodObliqueMercatorB {
		p.along, _ = turnSphere(-p.poleLong, sin/cos, p.sinPole, p.cosPole)
	}

	// Turn u and v to the axes of the grid.
	sin, cos = math.Sincos(parameters.angle(parameterSkewAngle))
	p.axes = [4]float64{
		cos, sin,
		-sin, cos,
	}
}

// setConformalCone sets a cone of constant n that is true to scale at latitude phi, before p.scale:
// Snyder, equations 15-7 and 15-10 with exp(-ψ) for t. At 90° it yields the limit of GN 9810,
// 2a/√((1+e)^(1+e)·(1-e)^(1-e)), because math.Pi/2 is rounded.
func (p *projection) setConformalCone(n, phi float64) {
	p.formula = formulaConformalCone
	p.cone = n
	p.radius = p.ellipsoid.a * p.parallelRadius(phi) / n *
		math.Exp(n*p.isometric(phi))
}

// setGaussSphere puts Gauss's conformal sphere, which fits best at p.latitude, between ellipsoid
// and map. It returns sine and cosine of p.latitude on that sphere. Its constants are n, c and R of
// GN 9809; B, A/kc and H of GN 9812; and B, t0 and A of GN 9819.
func (p *projection) setGaussSphere() (sin, cos float64) {
	sinPhi, cosPhi := math.Sincos(p.latitude)

	cos4 := math.Pow(cosPhi, 4)
	p.gauss = math.Sqrt(1 + p.e2*cos4/(1-p.e2))

	sin = sinPhi / p.gauss
	isometric := p.isometric(p.latitude)
	p.gaussShift = math.Atanh(sin) - p.gauss*isometric

	w2 := 1 - p.e2*sinPhi*sinPhi
	p.radius = p.ellipsoid.a * math.Sqrt(1-p.e2) / w2

	cos = math.Sqrt(1 - sin*sin)
	return sin, cos
}

// turnSphere turns a sphere so that the position at longitude 0 and the latitude of sinPole and
// cosPole becomes the pole. Longitudes then begin at the far meridian. -cosPole turns it back.
// Latitudes are given by their tangents.
func turnSphere(lam, tan, sinPole, cosPole float64) (newLam, newTan float64) {
	// To geocentric coordinates on a sphere of radius 1.
	cos := 1 / math.Hypot(1, tan)
	sinLam, cosLam := math.Sincos(lam)
	x := cos * cosLam
	y := cos * sinLam
	z := tan * cos

	// Turn about the y axis.
	turnedX := x*sinPole - z*cosPole
	turnedZ := x*cosPole + z*sinPole

	const least = 1e-17 // never divide by 0
	newLam = math.Atan2(y, turnedX)
	newTan = turnedZ / max(math.Hypot(turnedX, y), least)
	return newLam, newTan
}

// forward returns the coordinates of degrees. The error is errOutsideProjection.
func (p *projection) forward(lon, lat float64) (x, y float64, err error) {
	if p.formula == formulaGeographic {
		x = (lon - p.longitude) / p.unit
		y = lat / p.unit
		return finite(x, y)
	}

	lam := math.Remainder(lon-p.longitude, 360) * radian
	phi := lat * radian
	east, north := p.project(lam, phi)
	north -= p.originNorthing

	isNear := math.Abs(east) <= farthest && math.Abs(north) <= farthest
	isInDomain := math.Abs(lat) <= 90 && isNear
	if !isInDomain {
		return 0, 0, errOutsideProjection
	}

	// Metres along the axes, then coordinates.
	alongX := p.axes[0]*east + p.axes[1]*north
	alongY := p.axes[2]*east + p.axes[3]*north
	x = p.falseEast + p.scale*alongX
	y = p.falseNorth + p.scale*alongY
	return finite(x/p.unit, y/p.unit)
}

// inverse returns longitude and latitude in degrees. The longitude may lie outside ±180; on a
// cylinder it is continuous. The error is errOutsideProjection.
func (p *projection) inverse(x, y float64) (lon, lat float64, err error) {
	if p.formula == formulaGeographic {
		lon = x*p.unit + p.longitude
		lat = y * p.unit
		return finite(lon, lat)
	}

	// Metres along the axes from the origin, then metres east and north.
	x = (x*p.unit - p.falseEast) / p.scale
	y = (y*p.unit - p.falseNorth) / p.scale
	m := p.axes
	determinant := m[0]*m[3] - m[1]*m[2]
	east := (m[3]*x - m[1]*y) / determinant
	north := (m[0]*y - m[2]*x) / determinant

	const limit = 1.01 * farthest // more than in forward, whose results must come back
	isNear := math.Abs(east) <= limit && math.Abs(north) <= limit
	if !isNear {
		return 0, 0, errOutsideProjection
	}

	lam, phi := p.unproject(east, north+p.originNorthing)
	lon = p.longitude + lam/radian
	lat = phi / radian
	return finite(lon, lat)
}

// isFinite reports whether v is neither infinite nor NaN.
func isFinite(v float64) bool {
	difference := v - v // NaN if v is infinite
	return !math.IsNaN(difference)
}

// finite returns a and b, or errOutsideProjection if one of them is not finite.
func finite(a, b float64) (float64, float64, error) {
	if !isFinite(a) || !isFinite(b) {
		return 0, 0, errOutsideProjection
	}
	return a, b, nil
}

// project converts radians, longitude from p.longitude, to metres at scale 1. It returns NaN
// outside the formula's domain.
func (p *projection) project(lam, phi float64) (x, y float64) {
	// Formulas that do not go through a sphere.
	a := p.ellipsoid.a
	switch p.formula {
	case formulaTransverseMercator:
		return p.kruger.forward(lam, p.conformalTan(math.Tan(phi)))
	case formulaEquidistantCylinder: // GN 1028
		x = a * lam
		y = p.meridianArc(phi)
		return x, y
	case formulaSinusoidal: // Snyder, equation 30-8
		x = a * lam * p.parallelRadius(phi)
		y = p.meridianArc(phi)
		return x, y
	case formulaCassini,
		formulaPolyconic,
		formulaColombiaUrban:
		inDomain := math.Abs(lam) <= searchedLong && math.Abs(phi) <= searchedLat
		if !inDomain {
			return math.NaN(), math.NaN()
		}
		return p.projectLocal(lam, phi)
	}

	// Cylinders.
	lam, tan := p.toSphere(lam, phi)
	h := math.Hypot(1, tan)
	switch p.formula {
	case formulaMercator: // GN 9804 with ψ
		x = a * lam
		y = a * math.Asinh(tan)
		return x, y
	case formulaEqualAreaCylinder: // GN 9835
		x = a * lam
		y = a * p.qPole / 2 * tan / h
		return x, y
	case formulaObliqueMercator: // GN 9812, v and u
		x = -p.radius * math.Asinh(tan)
		y = p.radius * math.Remainder(lam-p.along, 2*math.Pi)
		return x, y
	}

	// Cones: rho is the distance from the cone's apex.
	var rho float64
	switch p.formula {
	case formulaConformalCone: // GN 9801 with t = exp(-ψ)
		rho = p.radius * math.Exp(-p.cone*math.Asinh(tan))
	case formulaEqualAreaCone:
		// GN 9822 with α = n²ρ²/a², from the versine 1 - sin β, which is exact near the pole.
		versine := 1 / (h * (h + math.Abs(tan)))
		if tan*p.cone < 0 {
			versine = 2 - versine
		}

		isFarPole := versine > 2-1e-9
		if p.inner == 0 && isFarPole {
			return math.NaN(), math.NaN()
		}
		alpha := p.inner + math.Abs(p.cone)*p.qPole*versine
		rho = a * math.Sqrt(alpha) / p.cone
	}

	sin, cos := math.Sincos(p.cone * lam)
	x = rho * sin
	y = -rho * cos
	return x, y
}

// unproject inverts project.
func (p *projection) unproject(x, y float64) (lam, phi float64) {
	a := p.ellipsoid.a

	var tan float64
	switch p.formula {
	case formulaTransverseMercator:
		lam, tan = p.kruger.inverse(x, y)
		phi = math.Atan(p.geodeticTan(tan))
		return lam, phi
	case formulaEquidistantCylinder:
		lam = x / a
		phi = p.footpoint(y)
		return lam, phi
	case formulaSinusoidal:
		phi = p.footpoint(y)
		lam = onGlobe(x/a/p.parallelRadius(phi), x)
		return lam, phi
	case formulaCassini,
		formulaPolyconic,
		formulaColombiaUrban:
		return p.search(x, y)

	// The others give a position on the sphere.
	case formulaMercator:
		lam = x / a
		tan = math.Sinh(y / a)
	case formulaEqualAreaCylinder:
		lam = x / a
		tan = tanOfVersine(1 - 2*y/a/p.qPole)
	case formulaObliqueMercator:
		lam = onGlobe(y/p.radius, y) + p.along
		tan = math.Sinh(-x / p.radius)
	case formulaConformalCone, formulaEqualAreaCone:
		rho := math.Copysign(math.Hypot(x, y), p.cone)

		const atPole = 1e-6 // metres; the direction from the pole would be rounding error
		if math.Abs(rho) > atPole {
			direction := math.Atan2(x/p.cone, -y/p.cone)
			lam = onGlobe(direction/p.cone, rho)
		}

		if p.formula == formulaConformalCone {
			const most = 40 // 90° to all digits
			isometric := math.Log(p.radius/rho) / p.cone
			tan = math.Sinh(max(-most, min(isometric, most)))
			break
		}

		r := rho * p.cone / a
		alpha := r * r
		versine := (alpha - p.inner) / (math.Abs(p.cone) * p.qPole)
		hemisphere := math.Copysign(1, p.cone)
		tan = hemisphere * tanOfVersine(versine)
	}

	return p.fromSphere(lam, tan)
}

// toSphere converts radians to a position on the conformal or authalic sphere: the longitude and
// the tangent of the latitude.
func (p *projection) toSphere(lam, phi float64) (sphereLam, tan float64) {
	isEqualArea := p.formula == formulaEqualAreaCylinder ||
		p.formula == formulaEqualAreaCone
	if isEqualArea { // GN 9820, β
		const least = 1e-34 // never divide by 0
		sin := p.authalicQ(math.Sin(phi)) / p.qPole
		tan = sin / math.Sqrt(max(1-sin*sin, least))
	} else {
		tan = p.conformalTan(math.Tan(phi))
	}

	if p.gauss != 1 {
		// Gauss's sphere has a gap at ±180°.
		lam = onGlobe(lam*p.gauss, p.radius)
		isometric := math.Asinh(tan)
		tan = math.Sinh(p.gauss*isometric + p.gaussShift)
	}

	if p.cosPole != 0 {
		return turnSphere(lam-p.poleLong, tan, p.sinPole, p.cosPole)
	}
	return lam, tan
}

// fromSphere inverts toSphere.
func (p *projection) fromSphere(lam, tan float64) (ellipsoidLam, phi float64) {
	if p.cosPole != 0 {
		lam, tan = turnSphere(lam, tan, p.sinPole, -p.cosPole)
		lam = math.Remainder(lam+p.poleLong, 2*math.Pi)
	}

	isEqualArea := p.formula == formulaEqualAreaCylinder ||
		p.formula == formulaEqualAreaCone
	if isEqualArea {
		sin := tan / math.Hypot(1, tan)
		return lam, math.Asin(p.authalicSine(sin))
	}

	if p.gauss != 1 {
		lam = lam / p.gauss
		isometric := math.Asinh(tan)
		tan = math.Sinh((isometric - p.gaussShift) / p.gauss)
	}
	return lam, math.Atan(p.geodeticTan(tan))
}

// onGlobe returns a longitude within ±π, or NaN. It cuts off an excess of up to 1 µm on the map, at
// a distance of lever metres.
func onGlobe(lam, lever float64) float64 {
	const tolerance = 1e-6 // metres

	over := math.Abs(lam) - math.Pi
	if over*math.Abs(lever) > tolerance {
		return math.NaN()
	}
	return math.Copysign(math.Abs(lam)-max(over, 0), lam)
}

// projectLocal is project for the formulas that search inverts. GN has inverse series for them, but
// these are less exact.
func (p *projection) projectLocal(lam, phi float64) (x, y float64) {
	sin, cos := math.Sincos(phi)
	nu := p.ellipsoid.a * p.parallelRadius(phi) / cos // radius of curvature in the prime vertical

	// Along the parallel and along the meridian.
	east := nu * cos * lam
	arc := p.meridianArc(phi) - p.meridianArc(p.latitude)

	switch p.formula {
	case formulaPolyconic: // GN 9818, with the cotangent cancelled so that the equator is no exception
		l := lam*sin + 1e-300 // never 0
		half := math.Sin(l / 2)
		x = east * math.Sin(l) / l
		y = arc + east*half*half*2/l
		return x, y
	case formulaColombiaUrban: // GN 1052
		parallel0 := p.ellipsoid.a * p.parallelRadius(p.latitude)
		nu0 := parallel0 / math.Cos(p.latitude)
		rho0 := p.meridianRadius(p.latitude)
		curve := math.Tan(p.latitude) / (2 * rho0 * nu0) * east * east
		rho := p.meridianRadius((phi + p.latitude) / 2)
		scale := 1 + p.height/rho

		x = east * (1 + p.height/nu0)
		y = scale * rho0 * (phi - p.latitude + curve)
		return x, y
	}

	// Cassini-Soldner: GN 9806.
	a := lam * cos
	t := math.Tan(phi) * math.Tan(phi)
	c := p.e2 / (1 - p.e2) * cos * cos
	a2 := a * a
	x = nu * (a -
		t*a2*a/6 -
		(8-t+8*c)*t*a2*a2*a/120)
	y = arc + nu*math.Tan(phi)*(a2/2+
		(5-t+6*c)*a2*a2/24)
	return x, y
}

// search inverts projectLocal by Newton's method with differences. It returns NaN if the method
// does not converge.
func (p *projection) search(x, y float64) (lam, phi float64) {
	const (
		step   = 1e-6 // radians
		enough = 1e-8 // metres
	)

	// Begin with the position on a sphere, within the domain.
	a := p.ellipsoid.a
	phi = p.latitude + y/a
	phi = max(-searchedLat, min(phi, searchedLat))
	lam = x / a / math.Cos(phi)
	lam = max(-searchedLong, min(lam, searchedLong))

	for range 20 {
		x0, y0 := p.projectLocal(lam, phi)
		dx := x - x0
		dy := y - y0
		isNearMeridian := math.Abs(lam) <= searchedLong+rounding
		isNearEquator := math.Abs(phi) <= searchedLat+rounding
		inDomain := isNearMeridian && isNearEquator
		if math.Hypot(dx, dy) < enough && inDomain {
			return lam, phi
		}

		// Differences along the parallel and along the meridian.
		xl, yl := p.projectLocal(lam+step, phi)
		xp, yp := p.projectLocal(lam, phi+step)
		xl = xl - x0
		yl = yl - y0
		xp = xp - x0
		yp = yp - y0

		determinant := (xl*yp - xp*yl) / step
		lam = lam + (dx*yp-dy*xp)/determinant
		phi = phi + (xl*dy-yl*dx)/determinant
	}

	return math.NaN(), math.NaN()
}
