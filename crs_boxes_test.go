package main

import (
	"math"
	"testing"
)

// northUp returns the transform of a north-up raster from its upper left corner and pixel size.
func northUp(x, y, pixel float64) [6]float64 { return [6]float64{pixel, 0, x, 0, -pixel, y} }

// crsOf returns the CRS of an EPSG code.
func crsOf(t testing.TB, code int) *crsDefinition {
	t.Helper()
	c, err := crsByCode(code)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestBoxInDegrees has the special cases of boxes: 180°, poles, and coordinates off the globe.
func TestBoxInDegrees(t *testing.T) {
	geographic, utm := crsOf(t, 4326), func(zone int) *crsDefinition { return crsOf(t, 32600+zone) }
	for _, c := range []struct {
		name          string
		crs           *crsDefinition
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
		{"metres in a CRS of degrees", geographic, northUp(500000, 5000000, 30), 10, 10, [4]float64{}, 0, true},
		{"a longitude of 1000", geographic, northUp(1000, 10, 1), 10, 10, [4]float64{}, 0, true},
		{"grads from Paris", crsOf(t, 4902), northUp(0, 50, 1), 10, 10, [4]float64{2.33722917, 36, 11.33722917, 45}, 1e-9, false}, // no shift is known
		// The next two are PROJ 9.1's: cs2cs.
		{"UTM on one side", crsOf(t, 26917), northUp(500000, 4500000, 50), 20, 20, [4]float64{-81, 40.64184711787324, -80.9881718055447, 40.65085651660554}, 1e-9, false},
		{"UTM across 180", utm(1), northUp(300000, 7400000, 5000), 20, 20, [4]float64{178.4741726516775, 65.7589622834817, -179.18702819378754, 66.7022045727602}, 1e-9, false},
		{"UTM over the north pole", utm(33), northUp(400000, 10100000, 1000), 200, 200, [4]float64{-180, 88.7204, 180, 90}, 1e-4, false},
		{"an endless UTM raster", utm(33), northUp(0, 0, 1e9), 10, 10, [4]float64{}, 0, true},
		{"not finite", utm(33), northUp(math.NaN(), 0, 1), 10, 10, [4]float64{}, 0, true},
	} {
		box, err := boxInDegrees(c.crs, c.t, c.width, c.height)
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

// TestBoxBulge follows every edge of boxes around a zone closely: no box is off by more than its
// accuracy.
func TestBoxBulge(t *testing.T) {
	for _, code := range []int{32631, 32731, 3035, 3413} {
		crs := crsOf(t, code)
		p := &crs.projection
		for x := -600_000.0; x <= 1_400_000; x += 190_000 {
			for y := -9_100_000.0; y <= 9_100_000; y += 1_300_000 {
				transform := [6]float64{1000, 0, p.falseEast + x, 0, -1000, y + p.falseNorth}
				box, err := boxInDegrees(crs, transform, 100, 100)
				if err != nil || box.bounds[0] == -180 || box.bounds[0] > box.bounds[2] {
					continue
				}
				slack := 1e-9 + box.accuracyM/111000*1.1/math.Cos(max(math.Abs(box.bounds[1]), math.Abs(box.bounds[3]))*math.Pi/180)
				for i := range 400 {
					f := float64(i) / 4
					for _, at := range [4][2]float64{{f, 0}, {f, 100}, {0, f}, {100, f}} {
						lon, lat, _ := p.inverse(applyTransform(transform, at[0], at[1]))
						lon = math.Remainder(lon, 360)
						if lon < box.bounds[0]-slack || lon > box.bounds[2]+slack || lat < box.bounds[1]-slack || lat > box.bounds[3]+slack {
							t.Fatalf("EPSG:%d %v: %v %v lies outside %v by more than %v", code, transform, lon, lat, box.bounds, slack)
						}
					}
				}
			}
		}
	}
}

// TestPixelSize: the size of a pixel on the ground does not depend on unit, rotation and the pole.
func TestPixelSize(t *testing.T) {
	metre := 1.0 / 111319.49079327358 // degrees of longitude at the equator of WGS 84
	sin, cos := math.Sincos(0.5)
	for _, c := range []struct {
		name string
		p    projection
		t    [6]float64
		want float64
	}{
		{"UTM at the central meridian", crsOf(t, 32633).projection, northUp(500000, 5000000, 30), 30 / 0.9996},
		{"UTM turned", crsOf(t, 32633).projection, [6]float64{30 * cos, 30 * sin, 500000, 30 * sin, -30 * cos, 5000000}, 30 / 0.9996},
		{"Web Mercator at 60 degrees", crsOf(t, 3857).projection, northUp(0, 8399737.89, 100), 50},
		{"degrees at the equator", crsOf(t, 4326).projection, northUp(0, 0, 10*metre), 10},
		{"across 180 degrees", crsOf(t, 4326).projection, northUp(180-2*metre, 0, 10*metre), 10},
		// The scale at the pole is (1 + sin 71°) / 2 in 3031, 1 in 3571, and 0.994 in UPS.
		{"south pole", crsOf(t, 3031).projection, northUp(0, 0, 500), 500 / 0.97276},
		{"south pole, turned", crsOf(t, 3031).projection, [6]float64{500 * cos, 500 * sin, 0, 500 * sin, -500 * cos, 0}, 500 / 0.97276},
		{"a metre from the south pole", crsOf(t, 3031).projection, northUp(0.6, 0.8, 500), 500 / 0.97276},
		{"north pole of equal area", crsOf(t, 3571).projection, northUp(0, 0, 10), 10},
		{"north pole of UPS", crsOf(t, 32661).projection, northUp(2e6, 2e6, 10), 10 / 0.994},
		{"north pole of UTM", crsOf(t, 32633).projection, northUp(5e5, 9997964.942987, 30), 30 / 0.9996},
	} {
		got, err := pixelSizeMetres(c.p, c.t, 0, 0)
		if err != nil || math.Abs(got-c.want) > 0.004*c.want {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}
