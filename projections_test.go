package main

import (
	"math"
	"testing"
)

// TestTransverseMercatorPublished holds the formulas against worked examples from print, in both directions.
func TestTransverseMercatorPublished(t *testing.T) {
	airy1830 := ellipsoid{6377563.396, 299.32496}
	clarke1866 := ellipsoid{6378206.4, 294.978698214}
	for _, c := range []struct {
		name                string
		p                   projection
		lon, lat, east, nor float64
		metres              float64
	}{
		{"EPSG Guidance Note 7-2, method 9807, OSGB 1936 / British National Grid", transverseMercator(airy1830, 49, -2, 0.9996012717, 400000, -100000),
			0.5, 50.5, 577274.99, 69740.50, 0.01},
		{"Snyder, USGS Professional Paper 1395, p. 269", transverseMercator(clarke1866, 0, -75, 0.9996, 0, 0),
			-73.5, 40.5, 127106.5, 4484124.4, 0.1},
		{"GeographicLib's GeoConvert, 38SMB4414084706", utmProjection(wgs84(), 38, false),
			44.4, 33.3, 444140.5, 3684706.5, 0.5},
		{"equator on the central meridian, southern zone", utmProjection(wgs84(), 33, true), 15, 0, 500000, 10000000, 1e-6},
	} {
		x, y, err := c.p.forward(c.lon, c.lat)
		if err != nil || math.Abs(x-c.east) > c.metres || math.Abs(y-c.nor) > c.metres {
			t.Errorf("%s: forward gives %.3f %.3f, %v; want %.3f %.3f", c.name, x, y, err, c.east, c.nor)
		}
		lon, lat, err := c.p.inverse(c.east, c.nor)
		degrees := c.metres / 70000
		if err != nil || math.Abs(lon-c.lon) > degrees || math.Abs(lat-c.lat) > degrees {
			t.Errorf("%s: inverse gives %.9f %.9f, %v; want %v %v", c.name, lon, lat, err, c.lon, c.lat)
		}
	}
}

// TestPseudoMercatorPublished is the worked example of EPSG Guidance Note 7-2, method 1024.
func TestPseudoMercatorPublished(t *testing.T) {
	crs, _ := crsByCode(3857)
	lon, lat := -(100 + 20.0/60), 24+22.0/60+54.433/3600
	x, y, err := crs.projection.forward(lon, lat)
	if err != nil || math.Abs(x+11169055.58) > 0.01 || math.Abs(y-2800000) > 0.01 {
		t.Errorf("forward gives %.3f %.3f, %v", x, y, err)
	}
	gotLon, gotLat, err := crs.projection.inverse(-11169055.58, 2800000)
	if err != nil || math.Abs(gotLon-lon) > 1e-6 || math.Abs(gotLat-lat) > 1e-6 {
		t.Errorf("inverse gives %.9f %.9f, %v", gotLon, gotLat, err)
	}
}

// TestProjectionRoundTrip goes to the ground and back: to a millionth of a metre, and to a millimetre as far as the series is followed.
func TestProjectionRoundTrip(t *testing.T) {
	for _, code := range []int{4326, 4807, 4805, 3857, 32601, 32633, 32660, 32733, 25832, 26917} {
		crs, ok := crsByCode(code)
		if !ok {
			t.Fatalf("EPSG:%d is unknown", code)
		}
		p := crs.projection
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

// TestProjectionRefuses: what is not finite, or outside, is an error and never a number.
func TestProjectionRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, code := range []int{4326, 3857, 32633} {
		crs, _ := crsByCode(code)
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
	mercator, _ := crsByCode(3857)
	if _, _, err := mercator.projection.forward(0, 90); err == nil {
		t.Error("Mercator has a pole")
	}
}

// TestCRSByCode names codes at the borders of what is known.
func TestCRSByCode(t *testing.T) {
	for code, want := range map[int]projectionMethod{
		32600: methodNone, 32601: methodTransverseMercator, 32660: methodTransverseMercator, 32661: methodNone,
		32700: methodNone, 32701: methodTransverseMercator, 32760: methodTransverseMercator, 32761: methodNone,
		25827: methodNone, 25828: methodTransverseMercator, 25838: methodTransverseMercator, 25839: methodNone,
		26900: methodNone, 26901: methodTransverseMercator, 26923: methodTransverseMercator, 26924: methodNone,
		3857: methodPseudoMercator, 4326: methodGeographic, 4979: methodGeographic, 4978: methodNone, 4269: methodGeographic,
		6318: methodGeographic, 5488: methodGeographic, 7844: methodGeographic, 5773: methodNone, 0: methodNone, -1: methodNone, 1 << 40: methodNone,
	} {
		crs, ok := crsByCode(code)
		if crs.projection.method != want || ok != (want != methodNone) {
			t.Errorf("EPSG:%d is of method %v, %v; want %v", code, crs.projection.method, ok, want)
		}
	}
}

// northUp is the transform of a raster without rotation, from its upper left corner and its pixel.
func northUp(x, y, pixel float64) [6]float64 { return [6]float64{pixel, 0, x, 0, -pixel, y} }

// TestBoxInDegrees names the cases of the box: seams, poles, and what is not on the globe.
func TestBoxInDegrees(t *testing.T) {
	geographic := geographicProjection(0, 1)
	utm := func(zone int) projection { return utmProjection(wgs84(), zone, false) }
	for _, c := range []struct {
		name          string
		p             projection
		t             [6]float64
		width, height float64
		want          [4]float64
		tolerance     float64
		refused       bool
	}{
		{"degrees as they are", geographic, northUp(10, 50, 0.5), 4, 3, [4]float64{10, 48.5, 12, 50}, 0, false},
		{"the whole globe", geographic, northUp(-180, 90, 0.5), 720, 360, [4]float64{-180, -90, 180, 90}, 0, false},
		{"the whole globe from 0 to 360", geographic, northUp(0, 90, 0.5), 720, 360, [4]float64{-180, -90, 180, 90}, 0, false},
		{"more than a turn", geographic, northUp(-4.5, 90, 9), 41, 20, [4]float64{-180, -90, 180, 90}, 0, false},
		{"the west in 0 to 360", geographic, northUp(190, 10, 1), 10, 10, [4]float64{-170, 0, -160, 10}, 1e-12, false},
		{"across 180", geographic, northUp(179, -16, 0.1), 20, 20, [4]float64{179, -18, -179, -16}, 1e-12, false},
		{"half a pixel over", geographic, northUp(-180.25, 90.25, 0.5), 721, 361, [4]float64{-180, -90, 180, 90}, 0, false},
		{"a tile half a pixel over", geographic, northUp(-180.25, 10.25, 0.5), 20, 20, [4]float64{179.75, 0.25, -170.25, 10.25}, 1e-12, false},
		{"up to 180", geographic, northUp(170, 10, 1), 10, 10, [4]float64{170, 0, 180, 10}, 0, false},
		{"from 180", geographic, northUp(180, 10, 1), 10, 10, [4]float64{-180, 0, -170, 10}, 0, false},
		{"from -180", geographic, northUp(-180, 10, 1), 10, 10, [4]float64{-180, 0, -170, 10}, 0, false},
		{"metres called degrees", geographic, northUp(500000, 5000000, 30), 10, 10, [4]float64{}, 0, true},
		{"a longitude no one counts to", geographic, northUp(1000, 10, 1), 10, 10, [4]float64{}, 0, true},
		{"grads from Paris", geographicProjection(2.5969213*gradDegrees, gradDegrees), northUp(0, 50, 1), 10, 10, [4]float64{2.33722917, 36, 11.33722917, 45}, 1e-9, false},
		// The oracle of the next two is PROJ 9.1's cs2cs.
		{"UTM on one side", utmProjection(grs80(), 17, false), northUp(500000, 4500000, 50), 20, 20, [4]float64{-81, 40.64184711787324, -80.9881718055447, 40.65085651660554}, 1e-9, false},
		{"UTM across 180", utm(1), northUp(300000, 7400000, 5000), 20, 20, [4]float64{178.4741726516775, 65.7589622834817, -179.18702819378754, 66.7022045727602}, 1e-9, false},
		{"UTM over the north pole", utm(33), northUp(400000, 10100000, 1000), 200, 200, [4]float64{-180, 88.7204, 180, 90}, 1e-4, false},
		{"UTM without end", utm(33), northUp(0, 0, 1e9), 10, 10, [4]float64{}, 0, true},
		{"not finite", utm(33), northUp(math.NaN(), 0, 1), 10, 10, [4]float64{}, 0, true},
	} {
		box, err := boxInDegrees(c.p, c.t, c.width, c.height)
		if c.refused {
			if err == nil {
				t.Errorf("%s: gives %v", c.name, box.bounds)
			}
			continue
		}
		for i := range c.want {
			if err != nil || !(math.Abs(box.bounds[i]-c.want[i]) <= c.tolerance) {
				t.Errorf("%s: gives %v, %v; want %v", c.name, box.bounds, err, c.want)
				break
			}
		}
	}
}

// TestCornersSuffice holds the shortcut against a fine walk along every edge, over boxes all around a zone; and the stated bulge against the
// same walk where there is no shortcut.
func TestCornersSuffice(t *testing.T) {
	shortcuts := 0
	for _, south := range []bool{false, true} {
		p := utmProjection(wgs84(), 31, south)
		for x := -600_000.0; x <= 1_400_000; x += 190_000 {
			for y := -9_100_000.0; y <= 9_100_000; y += 1_300_000 {
				transform := [6]float64{1000, 0, x, 0, -1000, y + p.falseNorth}
				box, err := boxInDegrees(p, transform, 100, 100)
				if err != nil {
					t.Fatal(err)
				}
				slack := 1e-10
				if p.cornersSuffice(transform, 100, 100) {
					shortcuts++
				} else {
					slack += box.cutM / 111000 * 1.1 / math.Cos(max(math.Abs(box.bounds[1]), math.Abs(box.bounds[3]))*math.Pi/180)
				}
				for i := range 400 {
					f := float64(i) / 4
					for _, at := range [4][2]float64{{f, 0}, {f, 100}, {0, f}, {100, f}} {
						lon, lat, _ := p.inverse(applyTransform(transform, at[0], at[1]))
						if lon < box.bounds[0]-slack || lon > box.bounds[2]+slack || lat < box.bounds[1]-slack || lat > box.bounds[3]+slack {
							t.Fatalf("%v: %v %v lies outside %v by more than %v", transform, lon, lat, box.bounds, slack)
						}
					}
				}
			}
		}
	}
	if shortcuts < 200 {
		t.Errorf("only %d boxes took the shortcut", shortcuts)
	}
}

// TestPixelSize: a pixel's size on the ground, whatever the unit and the turn.
func TestPixelSize(t *testing.T) {
	metre := 1.0 / 111319.49079327358 // degrees of longitude at the equator of WGS 84
	sin, cos := math.Sincos(0.5)
	for _, c := range []struct {
		name string
		p    projection
		t    [6]float64
		want float64
	}{
		{"UTM at the central meridian", utmProjection(wgs84(), 33, false), northUp(500000, 5000000, 30), 30 / 0.9996},
		{"UTM turned", utmProjection(wgs84(), 33, false), [6]float64{30 * cos, 30 * sin, 500000, 30 * sin, -30 * cos, 5000000}, 30 / 0.9996},
		{"Web Mercator at 60 degrees", projection{method: methodPseudoMercator, ellipsoid: wgs84(), unit: 1}, northUp(0, 8399737.89, 100), 50},
		{"degrees at the equator", geographicProjection(0, 1), northUp(0, 0, 10*metre), 10},
	} {
		got, err := pixelSizeMetres(c.p, c.t, 0, 0)
		if err != nil || math.Abs(got-c.want) > 0.004*c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}
