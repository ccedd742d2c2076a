package main

import (
	"math"
	"math/rand/v2"
	"testing"
)

// grs80 returns the ellipsoid of ETRS89 and NAD83, EPSG 7019.
func grs80() ellipsoid { return ellipsoid{6378137, 298.257222101} }

// dms converts degrees, minutes and seconds to degrees.
func dms(degrees, minutes, seconds float64) float64 {
	return math.Copysign(math.Abs(degrees)+minutes/60+seconds/3600, degrees)
}

// alike returns parameters by the codes of those that are alike, as newProjection takes them.
func alike(parameters map[int]float64) projectionParameters {
	by := projectionParameters{}
	for code, v := range parameters {
		like := findRecord(recordParameter, code).code(1)
		if _, own := parameters[like]; code == like || !own {
			by[like] = v
		}
	}
	return by
}

// TestProjectionsPublished compares with published examples in both directions: those of EPSG
// Guidance Note 7-2, unless another source is named. Lengths are in the example's unit.
func TestProjectionsPublished(t *testing.T) {
	airy1830 := ellipsoid{6377563.396, 299.3249646}
	clarke1866 := ellipsoid{6378206.4, 294.978698214}
	bessel1841 := ellipsoid{6377397.155, 299.1528128}
	international1924 := ellipsoid{6378388, 297}
	const foot, link = 1200.0 / 3937, 0.201166195164 // US survey, Clarke's
	rso := map[int]float64{8811: 4, 8812: 115, 8813: dms(53, 18, 56.9537), 8814: dms(53, 7, 48.3685), 8815: 0.99984,
		8806: 0, 8807: 0, 8816: 590476.87, 8817: 442857.65}
	krovak := map[int]float64{8811: 49.5, 8833: 42.5, 1036: dms(30, 17, 17.3031), 8818: 78.5, 8819: 0.9999, 8806: 0, 8807: 0}
	for _, c := range []struct {
		name      string
		method    int
		ellipsoid ellipsoid
		unit      float64
		p         map[int]float64
		lon, lat  float64
		x, y      float64
		tolerance float64
	}{
		{"British National Grid", 9807, airy1830, 1, map[int]float64{8801: 49, 8802: -2, 8805: 0.9996012717, 8806: 400000, 8807: -100000},
			0.5, 50.5, 577274.99, 69740.50, 0.01},
		{"Transverse Mercator, Snyder p. 269", 9807, clarke1866, 1, map[int]float64{8801: 0, 8802: -75, 8805: 0.9996},
			-73.5, 40.5, 127106.5, 4484124.4, 0.1},
		{"UTM 38N, GeographicLib's GeoConvert, 38SMB4414084706", 9807, wgs84(), 1, map[int]float64{8801: 0, 8802: 45, 8805: 0.9996, 8806: 500000},
			44.4, 33.3, 444140.5, 3684706.5, 0.5},
		{"Hartebeesthoek94 / Lo29", 9808, wgs84(), 1, map[int]float64{8801: 0, 8802: 29, 8805: 1, 8806: 0, 8807: 0},
			dms(28, 16, 57.479), dms(-25, 43, 55.302), 71984.48, 2847342.74, 0.01},
		{"Jamaica National Grid", 9801, clarke1866, 1, map[int]float64{8801: 18, 8802: -77, 8805: 1, 8806: 250000, 8807: 150000},
			dms(-76, 56, 37.26), dms(17, 55, 55.80), 255966.58, 142493.51, 0.01},
		{"NAD27 / Texas South Central", 9802, clarke1866, foot, map[int]float64{8821: dms(27, 50, 0), 8822: -99, 8823: dms(28, 23, 0),
			8824: dms(30, 17, 0), 8826: 2000000, 8827: 0}, -96, 28.5, 2963503.91, 254759.80, 0.01},
		{"NAD27 / Michigan Central", 1051, clarke1866, foot, map[int]float64{8821: dms(43, 19, 0), 8822: dms(-84, 20, 0), 8823: dms(44, 11, 0),
			8824: dms(45, 42, 0), 8826: 2000000, 8827: 0, 1038: 1.0000382}, dms(-83, 10, 0), dms(43, 45, 0), 2308335.75, 160210.48, 0.01},
		{"Belge Lambert 72", 9803, international1924, 1, map[int]float64{8821: 90, 8822: dms(4, 21, 24.983), 8823: dms(49, 50, 0),
			8824: dms(51, 10, 0), 8826: 150000.01, 8827: 5400088.44}, dms(5, 48, 26.533), dms(50, 40, 46.461), 251763.20, 153034.13, 0.01},
		{"Albers, Snyder p. 292", 9822, clarke1866, 1, map[int]float64{8821: 23, 8822: -96, 8823: 29.5, 8824: 45.5, 8826: 0, 8827: 0},
			-75, 35, 1885472.7, 1535925.0, 0.1},
		{"ETRS89-LAEA", 9820, grs80(), 1, map[int]float64{8801: 52, 8802: 10, 8806: 4321000, 8807: 3210000}, 5, 50, 3962799.45, 2999718.85, 0.01},
		{"UPS North", 9810, wgs84(), 1, map[int]float64{8801: 90, 8802: 0, 8805: 0.994, 8806: 2000000, 8807: 2000000},
			44, 73, 3320416.75, 632668.43, 0.01},
		{"Australian Antarctic Polar Stereographic", 9829, wgs84(), 1, map[int]float64{8832: -71, 8833: 70, 8806: 6000000, 8807: 6000000},
			120, -75, 7255380.79, 7053389.56, 0.01},
		{"Petrels 1972 / Terre Adelie", 9830, international1924, 1, map[int]float64{8832: -67, 8833: 140, 8826: 300000, 8827: 200000},
			dms(140, 4, 17.040), dms(-66, 36, 18.820), 303169.52, 244055.72, 0.01},
		{"RD New", 9809, bessel1841, 1, map[int]float64{8801: dms(52, 9, 22.178), 8802: dms(5, 23, 15.5), 8805: 0.9999079, 8806: 155000, 8807: 463000},
			6, 53, 196105.283, 557057.739, 0.001},
		{"Makassar / NEIEZ", 9804, bessel1841, 1, map[int]float64{8801: 0, 8802: 110, 8805: 0.997, 8806: 3900000, 8807: 900000},
			120, -3, 5009726.58, 569150.82, 0.01},
		{"Caspian Sea Mercator", 9805, ellipsoid{6378245, 298.3}, 1, map[int]float64{8823: 42, 8802: 51, 8806: 0, 8807: 0},
			53, 53, 165704.29, 5171848.07, 0.01},
		{"Caspian Sea Mercator, variant C", 1044, ellipsoid{6378245, 298.3}, 1, map[int]float64{8823: 42, 8802: 51, 8821: 42, 8826: 0, 8827: 0},
			53, 53, 165704.29, 1351950.22, 0.01},
		{"Pseudo-Mercator", 1024, wgs84(), 1, map[int]float64{8801: 0, 8802: 0, 8806: 0, 8807: 0},
			dms(-100, 20, 0), dms(24, 22, 54.433), -11169055.58, 2800000.00, 0.01},
		{"Timbalai 1948 / RSO Borneo", 9812, ellipsoid{6377298.556, 300.8017}, 1, rso,
			dms(115, 48, 19.8196), dms(5, 23, 14.1129), 679245.73, 596562.78, 0.01},
		{"the same, variant B", 9815, ellipsoid{6377298.556, 300.8017}, 1, map[int]float64{8811: 4, 8812: 115, 8813: rso[8813],
			8814: rso[8814], 8815: 0.99984, 8816: 590476.87, 8817: 442857.65}, dms(115, 48, 19.8196), dms(5, 23, 14.1129), 679245.73, 596562.78, 0.01},
		{"S-JTSK (Ferro) / Krovak", 9819, bessel1841, 1, krovak, dms(34, 30, 59.179), dms(50, 12, 32.442), 1050538.63, 568991.00, 0.01},
		{"Krovak East North", 1041, bessel1841, 1, krovak, dms(34, 30, 59.179), dms(50, 12, 32.442), -568991.00, -1050538.63, 0.01},
		{"Trinidad Grid", 9806, ellipsoid{31706587.88 * link, 294.2606764}, link, map[int]float64{8801: dms(10, 26, 30), 8802: dms(-61, 20, 0),
			8806: 430000, 8807: 325000}, -62, 10, 66644.94, 82536.22, 0.05},
		{"polyconic, Snyder p. 304", 9818, clarke1866, 1, map[int]float64{8801: 30, 8802: -96, 8806: 0, 8807: 0}, -75, 40, 1776774.5, 1319657.8, 0.1},
		{"World Equidistant Cylindrical", 1028, wgs84(), 1, map[int]float64{8823: 0, 8802: 0, 8806: 0, 8807: 0}, 10, 55, 1113194.91, 6097230.31, 0.01},
		{"cylindrical equal area, Snyder p. 281", 9835, clarke1866, 1, map[int]float64{8823: 5, 8802: -75}, -78, 5, -332699.8, 554248.5, 0.1},
		{"sinusoidal, Snyder p. 365", methodSinusoidal, clarke1866, 1, map[int]float64{8802: -90}, -75, -50, 1075471.5, -5540628.0, 0.1},
		{"Bogota urban grid", 1052, grs80(), 1, map[int]float64{8801: dms(4, 40, 49.75), 8802: dms(-74, 8, 47.73), 8806: 92334.879,
			8807: 109320.965, 1039: 2550}, dms(-74, 15, 0), dms(4, 48, 0), 80859.033, 122543.174, 0.01},
	} {
		for _, length := range []int{8806, 8807, 8816, 8817, 8826, 8827} {
			if v, ok := c.p[length]; ok && c.unit != 1 {
				c.p[length] = v * c.unit
			}
		}
		p, err := newProjection(c.method, c.ellipsoid, alike(c.p))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		p.unit = c.unit
		x, y, err := p.forward(c.lon, c.lat)
		if err != nil || !(math.Abs(x-c.x) <= c.tolerance && math.Abs(y-c.y) <= c.tolerance) {
			t.Errorf("%s: forward gives %.4f %.4f, %v; want %.4f %.4f", c.name, x, y, err, c.x, c.y)
		}
		lon, lat, err := p.inverse(c.x, c.y)
		degrees := c.tolerance * c.unit / 60000
		if err != nil || !(math.Abs(lon-c.lon) <= degrees && math.Abs(lat-c.lat) <= degrees) {
			t.Errorf("%s: inverse gives %.9f %.9f, %v; want %v %v", c.name, lon, lat, err, c.lon, c.lat)
		}
	}
}

// someProjections returns projections for every formula and every special case in it.
func someProjections(t *testing.T) map[string]projection {
	projections := map[string]projection{}
	for name, c := range map[string]struct {
		method     int
		parameters map[int]float64
	}{
		"Transverse Mercator": {9807, map[int]float64{8801: 49, 8802: -2, 8805: 0.9996, 8806: 400000, 8807: -100000}},
		"TM south":            {9808, map[int]float64{8801: 0, 8802: 29}},
		"Mercator":            {9804, map[int]float64{8802: 110, 8805: 0.997, 8806: 3900000}},
		"Mercator B":          {9805, map[int]float64{8823: -41, 8802: 100}},
		"pseudo-Mercator":     {1024, map[int]float64{8802: 0}},
		"equidistant":         {1028, map[int]float64{8823: 30, 8802: 10}},
		"equal area cylinder": {9835, map[int]float64{8823: 30, 8802: 10}},
		"LCC 1SP":             {9801, map[int]float64{8801: 46.5, 8802: 3, 8805: 0.9999, 8806: 600000}},
		"LCC south":           {9802, map[int]float64{8821: -37, 8822: 145, 8823: -36, 8824: -38, 8826: 2500000, 8827: 2500000}},
		"LCC flat":            {9801, map[int]float64{8801: 4, 8802: 30}},
		"LCC west":            {9826, map[int]float64{8801: 62, 8802: -45}},
		"Albers":              {9822, map[int]float64{8821: 23, 8822: -96, 8823: 29.5, 8824: 45.5}},
		"Albers south":        {9822, map[int]float64{8821: -32, 8822: -60, 8823: -5, 8824: -42}},
		"azimuthal":           {9820, map[int]float64{8801: 52, 8802: 10, 8806: 4321000, 8807: 3210000}},
		"azimuthal south":     {9820, map[int]float64{8801: -30, 8802: 170}},
		"azimuthal equator":   {9820, map[int]float64{8801: 0, 8802: 20}},
		"azimuthal N pole":    {9820, map[int]float64{8801: 90, 8802: 180}},
		"azimuthal S pole":    {9820, map[int]float64{8801: -90, 8802: 0}},
		"UPS N":               {9810, map[int]float64{8801: 90, 8802: 0, 8805: 0.994, 8806: 2000000, 8807: 2000000}},
		"UPS S":               {9810, map[int]float64{8801: -90, 8802: 0, 8805: 0.994, 8806: 2000000, 8807: 2000000}},
		"oblique stereo":      {9809, map[int]float64{8801: 52.2, 8802: 5.4, 8805: 0.9999, 8806: 155000, 8807: 463000}},
		"oblique stereo S":    {9809, map[int]float64{8801: -22, 8802: 35}},
		"HOM A":               {9812, map[int]float64{8811: 57, 8812: -133.7, 8813: 323.13, 8814: 323.13, 8815: 0.9999, 8806: 5e6, 8807: -5e6}},
		"HOM B 90":            {9815, map[int]float64{8811: 46.95, 8812: 7.44, 8813: 90, 8814: 90, 8815: 1, 8816: 2600000, 8817: 1200000}},
		"HOM B south":         {9815, map[int]float64{8811: -21, 8812: 46, 8813: 21, 8814: 21, 8815: 0.9995}},
		"Krovak":              {9819, map[int]float64{8811: 49.5, 8833: 24.8, 1036: 30.288, 8818: 78.5, 8819: 0.9999}},
		"Cassini":             {9806, map[int]float64{8801: 10.4, 8802: -61.3}},
		"polyconic":           {9818, map[int]float64{8801: 0, 8802: -54, 8806: 5000000, 8807: 10000000}},
		"Colombia":            {1052, map[int]float64{8801: 4.7, 8802: -74, 1039: 2550}},
		"sinusoidal":          {methodSinusoidal, map[int]float64{8802: -90}},
	} {
		for kind, e := range map[string]ellipsoid{"": wgs84(), ", sphere": {6371000, 0}} {
			p, err := newProjection(c.method, e, alike(c.parameters))
			if err != nil {
				t.Fatal(name, err)
			}
			projections[name+kind] = p
		}
	}
	return projections
}

// TestProjectionsRoundTrip: places all over the globe come back from every projection that accepts
// them. Places near the origin are accepted.
func TestProjectionsRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, p := range someProjections(t) {
		accepted, near, origin := 0, 0, p.latitude/radian
		for range 20000 {
			dLon, lat := random.Float64()*360-180, random.Float64()*179.8-89.9
			x, y, err := p.forward(p.longitude+dLon, lat)
			inside := math.Abs(dLon) < 20 && math.Abs(lat-origin) < 10 && math.Abs(lat) < 80
			if inside {
				near++
			}
			if err != nil {
				if inside {
					t.Errorf("%s does not take %v %v", name, p.longitude+dLon, lat)
				}
				continue
			}
			accepted++
			lon, back, err := p.inverse(x, y)
			off := math.Hypot(math.Remainder(lon-p.longitude-dLon, 360)*math.Cos(lat*radian), back-lat)
			tolerance := 1e-9
			if p.formula == formulaTransverseMercator && math.Abs(dLon) > 30 {
				tolerance = 1e-7
			}
			if err != nil || !(off <= tolerance) {
				t.Errorf("%s: %v %v goes to %v %v and comes back as %v %v, %v", name, p.longitude+dLon, lat, x, y, lon, back, err)
				break
			}
		}
		t.Logf("%s: %d of 20000 accepted, %d near", name, accepted, near)
	}
}

// TestProjectionsHostile: coordinates outside the domain are an error, or come back.
func TestProjectionsHostile(t *testing.T) {
	numbers := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e9, 1e8, -2e7, 1e7, -90, 90, 90.0001, 180, -180, 0, 5e-324, 89.99999999}
	for name, p := range someProjections(t) {
		for _, a := range append(numbers, p.longitude, p.longitude+180) {
			for _, b := range append(numbers, p.latitude/radian, -p.latitude/radian) {
				if x, y, err := p.forward(a, b); err == nil {
					lon, lat, err := p.inverse(x, y)
					off := math.Hypot(math.Remainder(lon-a, 360)*math.Cos(b*radian), lat-b)
					if err != nil || !(off < 5e-6) { // an equal-area map has its poles only to the root of rounding
						t.Errorf("%s: %v %v goes to %v %v and comes back as %v %v, %v", name, a, b, x, y, lon, lat, err)
					}
				}
				if lon, lat, err := p.inverse(a, b); err == nil && !(isFinite(lon) && math.Abs(lat) <= 90) {
					t.Errorf("%s: inverse of %v %v gives %v %v", name, a, b, lon, lat)
				}
			}
		}
	}
	for _, c := range []struct{ method int }{{9802}, {9822}, {9812}, {9819}, {1052}, {9835}, {4711}} {
		if _, err := newProjection(c.method, wgs84(), map[int]float64{8802: 0}); err == nil {
			t.Errorf("method %d needs no parameters", c.method)
		}
	}
}

// TestProjectionRoundTrip: coordinates come back within a micrometre, and within a millimetre far
// from the central meridian.
func TestProjectionRoundTrip(t *testing.T) {
	for _, code := range []int{4326, 4807, 4805, 3857, 32601, 32633, 32660, 32733, 25832, 26917} {
		p := crsOf(t, code).projection
		for lat := -84.0; lat <= 84; lat += 7 {
			for dLon := -60.0; dLon <= 60; dLon += 5 {
				x, y, err := p.forward(p.longitude+dLon, lat)
				if err != nil {
					t.Fatalf("EPSG:%d forward %v %v: %v", code, p.longitude+dLon, lat, err)
				}
				lon, back, err := p.inverse(x, y)
				tolerance := 1e-6 / 111000
				if math.Abs(dLon) > 30 {
					tolerance = 1e-3 / 111000
				}
				off := math.Abs(math.Remainder(lon-p.longitude-dLon, 360)) * math.Cos(lat*math.Pi/180)
				if err != nil || off > tolerance || math.Abs(back-lat) > tolerance {
					t.Fatalf("EPSG:%d %v %v comes back as %v %v, %v", code, p.longitude+dLon, lat, lon, back, err)
				}
			}
		}
	}
}

// TestProjectionRefuses: coordinates that are not finite or lie outside are an error, never a
// number.
func TestProjectionRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, code := range []int{4326, 3857, 32633} {
		crs := crsOf(t, code)
		for _, at := range [][2]float64{{nan, 0}, {0, nan}, {inf, 0}, {0, -inf}, {nan, nan}, {1e308, 1e308}, {math.MaxFloat64, 5}} {
			lon, lat, err := crs.projection.inverse(at[0], at[1])
			if code != 32633 && at[0] > 1e300 && !math.IsInf(at[0], 0) {
				continue // a cylindrical longitude has no end; the box refuses it
			}
			if err == nil {
				t.Errorf("EPSG:%d inverse %v gives %v %v", code, at, lon, lat)
			}
		}
		for _, at := range [][2]float64{{nan, 0}, {0, nan}, {inf, 0}, {0, inf}} {
			if x, y, err := crs.projection.forward(at[0], at[1]); err == nil {
				t.Errorf("EPSG:%d forward %v gives %v %v", code, at, x, y)
			}
		}
	}
	var none projection
	if _, _, err := none.inverse(1, 1); err == nil {
		t.Error("no projection gives a number")
	}
	if _, _, err := crsOf(t, 3857).projection.forward(0, 90); err == nil {
		t.Error("Mercator has a pole")
	}
}
