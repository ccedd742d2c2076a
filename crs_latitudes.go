package main

import "math"

// tanOfVersine returns the tangent of a latitude from 1 minus its sine, NaN outside 0 to 2.
func tanOfVersine(versine float64) float64 {
	isInDomain := versine >= -rounding && versine <= 2+rounding
	if !isInDomain {
		return math.NaN()
	}

	const least = 1e-34 // never divide by 0
	sin := 1 - versine
	cos2 := max(versine*(2-versine), least)
	return sin / math.Sqrt(cos2)
}

// parallelRadius returns the radius of a parallel in semi-major axes: m in Snyder, equation 14-15.
func (p *projection) parallelRadius(phi float64) float64 {
	sin, cos := math.Sincos(phi)
	w2 := 1 - p.e2*sin*sin
	return cos / math.Sqrt(w2)
}

// meridianRadius returns the radius of curvature in the meridian, in metres: Snyder, equation 4-18.
func (p *projection) meridianRadius(phi float64) float64 {
	sin2 := math.Pow(math.Sin(phi), 2)
	w2 := 1 - p.e2*sin2
	return p.ellipsoid.a * (1 - p.e2) / math.Pow(w2, 1.5)
}

// authalicQ returns q for the sine of a latitude: Snyder, equation 3-12.
func (p *projection) authalicQ(sin float64) float64 {
	if p.e == 0 {
		return 2 * sin
	}

	return (1 - p.e2) *
		(sin/(1-p.e2*sin*sin) +
			math.Atanh(p.e*sin)/p.e)
}

// authalicSine inverts authalicQ / qPole by Newton's method: Snyder, equation 3-16, for the sine.
func (p *projection) authalicSine(part float64) float64 {
	const enough = 1e-15

	sin := part
	for range 8 {
		w := 1 - p.e2*sin*sin
		missing := part*p.qPole - p.authalicQ(sin)

		step := missing * w * w / (2 * (1 - p.e2))
		sin += step
		if math.Abs(step) < enough {
			break
		}
	}

	return max(-1, min(sin, 1))
}

// conformalTan returns the tangent of the conformal latitude: Karney 2011, equations 7 to 9.
func (p *projection) conformalTan(tau float64) float64 {
	secant := math.Sqrt(1 + tau*tau)
	sigma := math.Sinh(p.e * math.Atanh(p.e*tau/secant))
	return tau*math.Sqrt(1+sigma*sigma) - sigma*secant
}

// geodeticTan inverts conformalTan by Newton's method: Karney 2011, equations 19 to 21.
func (p *projection) geodeticTan(tauC float64) float64 {
	const enough = 1e-9 // relative; the next step would be rounding error

	tau := tauC / (1 - p.e2)
	for range 6 {
		secant := math.Sqrt(1 + tau*tau)
		guess := p.conformalTan(tau)

		step := (tauC - guess) /
			math.Sqrt(1+guess*guess) *
			(1 + (1-p.e2)*tau*tau) /
			((1 - p.e2) * secant)
		tau += step

		goesOn := math.Abs(step) > enough*max(1, math.Abs(tau))
		if !goesOn { // or tau is NaN
			break
		}
	}

	return tau
}

// isometric returns the isometric latitude ψ in radians.
func (p *projection) isometric(phi float64) float64 {
	return math.Asinh(p.conformalTan(math.Tan(phi)))
}

// meridianArc returns the metres from the equator along a meridian.
func (p *projection) meridianArc(phi float64) float64 {
	tauC := p.conformalTan(math.Tan(phi))
	_, north := p.kruger.forward(0, tauC)
	return north
}

// footpoint inverts meridianArc: it returns the latitude in radians, NaN beyond the poles.
func (p *projection) footpoint(arc float64) float64 {
	quarter := (math.Pi/2 + rounding) * p.kruger.radius
	if math.Abs(arc) > quarter {
		return math.NaN()
	}

	_, tan := p.kruger.inverse(0, arc)
	return math.Atan(p.geodeticTan(tan))
}

// krugerSeries is the Transverse Mercator of an ellipsoid by Krüger's series of sixth order: C. F.
// F. Karney, "Transverse Mercator with an accuracy of a few nanometers", Journal of Geodesy 85
// (2011), 475–485, equations 14, 35 and 36.
type krugerSeries struct {
	radius float64    // of the rectifying sphere, metres: equation 14
	alpha  [6]float64 // forward: equation 35
	beta   [6]float64 // inverse: equation 36
}

// newKrugerSeries returns the constants for an ellipsoid.
func newKrugerSeries(e ellipsoid) krugerSeries {
	// Powers of the third flattening.
	n := 1 / (2*e.inverseFlattening - 1)
	n2 := n * n
	n3 := n2 * n
	n4 := n2 * n2
	n5 := n2 * n2 * n
	n6 := n2 * n2 * n2

	return krugerSeries{
		radius: e.a / (1 + n) * (1 +
			n2/4 +
			n4/64 +
			n6/256),

		alpha: [6]float64{
			n/2 -
				n2*2/3 +
				n3*5/16 +
				n4*41/180 -
				n5*127/288 +
				n6*7891/37800,
			n2*13/48 -
				n3*3/5 +
				n4*557/1440 +
				n5*281/630 -
				n6*1983433/1935360,
			n3*61/240 -
				n4*103/140 +
				n5*15061/26880 +
				n6*167603/181440,
			n4*49561/161280 -
				n5*179/168 +
				n6*6601661/7257600,
			n5*34729/80640 -
				n6*3418889/1995840,
			n6 * 212378941 / 319334400,
		},

		beta: [6]float64{
			n/2 -
				n2*2/3 +
				n3*37/96 -
				n4/360 -
				n5*81/512 +
				n6*96199/604800,
			n2/48 +
				n3/15 -
				n4*437/1440 +
				n5*46/105 -
				n6*1118711/3870720,
			n3*17/480 -
				n4*37/840 -
				n5*209/4480 +
				n6*5569/90720,
			n4*4397/161280 -
				n5*11/504 -
				n6*830251/7257600,
			n5*4583/161280 -
				n6*108847/3991680,
			n6 * 20648693 / 638668800,
		},
	}
}

// maxKrugerEta limits the distance from the central meridian, in rectifying radii, to about
// 9,500 km. At that distance a position comes back from forward and inverse within a millimetre;
// within 4,000 km it comes back within nanometres.
const maxKrugerEta = 1.5

// krugerSum returns the real and the imaginary part of Σ c[j] sin 2jζ, where ζ is ξ+iη: equations
// 11 and 15, by Clenshaw's recurrence.
func krugerSum(c *[6]float64, xi, eta float64) (dXi, dEta float64) {
	sin, cos := math.Sincos(2 * xi)
	sinh := math.Sinh(2 * eta)
	cosh := math.Sqrt(1 + sinh*sinh)

	// The factor of the recurrence is 2 cos 2ζ.
	re := 2 * cos * cosh
	im := -2 * sin * sinh

	// (r1, i1) is the last result, (r2, i2) the one before it.
	var r1, i1 float64
	var r2, i2 float64
	for j := len(c) - 1; j >= 0; j-- {
		nextR := re*r1 - im*i1 - r2 + c[j]
		nextI := re*i1 + im*r1 - i2

		r2 = r1
		i2 = i1
		r1 = nextR
		i1 = nextI
	}

	// Multiply by sin 2ζ, which is (sin cosh, cos sinh).
	dXi = sin*cosh*r1 - cos*sinh*i1
	dEta = sin*cosh*i1 + cos*sinh*r1
	return dXi, dEta
}

// forward converts radians of longitude and the tangent of the conformal latitude to metres east
// and north, NaN beyond maxKrugerEta.
func (k *krugerSeries) forward(lam, tauC float64) (east, north float64) {
	// Spherical Transverse Mercator.
	sin, cos := math.Sincos(lam)
	xi := math.Atan2(tauC, cos)
	eta := math.Asinh(sin / math.Hypot(tauC, cos))

	dXi, dEta := krugerSum(&k.alpha, xi, eta)
	isNear := max(math.Abs(eta), math.Abs(eta+dEta)) <= maxKrugerEta
	if !isNear {
		return math.NaN(), math.NaN()
	}

	east = k.radius * (eta + dEta)
	north = k.radius * (xi + dXi)
	return east, north
}

// inverse inverts forward, NaN beyond maxKrugerEta and for more than half a turn northwards.
func (k *krugerSeries) inverse(east, north float64) (lam, tauC float64) {
	xi := north / k.radius
	eta := east / k.radius
	isNear := math.Abs(eta) <= maxKrugerEta+rounding
	isWithinTurn := math.Abs(xi) <= math.Pi+rounding
	if !isNear || !isWithinTurn {
		return math.NaN(), math.NaN()
	}

	dXi, dEta := krugerSum(&k.beta, xi, eta)
	sin, cos := math.Sincos(xi - dXi)
	sinh := math.Sinh(eta - dEta)

	lam = math.Atan2(sinh, cos)
	tauC = sin / math.Hypot(sinh, cos)
	return lam, tauC
}
