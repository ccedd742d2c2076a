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
		3857: methodMercator, 4326: methodGeographic, 4979: methodGeographic, 4978: methodNone, 4269: methodGeographic,
		6318: methodGeographic, 5488: methodGeographic, 7844: methodGeographic, 5773: methodNone, 0: methodNone, -1: methodNone, 1 << 40: methodNone,
	} {
		crs, ok := crsByCode(code)
		if crs.projection.method != want || ok != (want != methodNone) {
			t.Errorf("EPSG:%d is of method %v, %v; want %v", code, crs.projection.method, ok, want)
		}
	}
}
