package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
		{"5000 degrees to the north", geographic, [6]float64{1, 0, 0, 0, 1, 0}, 100, 5000, [4]float64{}, 0, true},
		{"5000 degrees to the south", geographic, northUp(0, 0, 1), 100, 5000, [4]float64{}, 0, true},
		{"ten degrees beyond the pole, as in PROJ", geographic, northUp(0, 100, 1), 20, 20, [4]float64{0, 80, 20, 90}, 1e-12, false},
		{"a pixel of 9 degrees beyond the pole", geographic, northUp(0, 94.5, 9), 4, 3, [4]float64{0, 67.5, 36, 90}, 0, false},
		{"metres far beyond the pole", crsOf(t, 4087), [6]float64{1000, 0, 0, 0, 1000, 0}, 100, 50_000, [4]float64{}, 0, true},
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

// TestBoxBeyondTheWorld: a raster whose corner lies beyond the edge of the projected world has a box up to its last row. The
// latitude of a distance of 4,000 km from the equator is that of the ellipsoid.
func TestBoxBeyondTheWorld(t *testing.T) {
	p, err := crsFromWKT(`PROJCS["s",GEOGCS["w",DATUM["D_WGS_1984",SPHEROID["w",6378137,298.257223563]],PRIMEM["Greenwich",0],` +
		`UNIT["Degree",0.0174532925199433]],PROJECTION["Sinusoidal"],PARAMETER["central_meridian",0],UNIT["Meter",1]]`)
	var m extent
	crs, err2 := p.definition(&m, new(lastCRS))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	box, err := boxInDegrees(&crs, northUp(-20e6, 10e6, 14000), 2000, 1000)
	if err != nil || math.Abs(box.bounds[1]+36.13) > 0.01 {
		t.Errorf("box %v, %v; want one whose south is -36.13, where the last row ends", box.bounds, err)
	}
}

// TestBoxAtPole: a raster with a pole in a corner or on an edge has the longitudes on its side of the pole. Corners are
// PROJ 9.1's: cs2cs.
func TestBoxAtPole(t *testing.T) {
	const far, near, north = -88.6984598067, -88.9710262088, 88.6945538352
	sin, cos := math.Sincos(0.5)
	for _, c := range []struct {
		name          string
		code          int
		t             [6]float64
		width, height float64
		want          [4]float64
	}{
		{"corner, upper left", 3031, northUp(0, 0, 1000), 100, 100, [4]float64{90, -90, 180, far}},
		{"corner, upper right", 3031, northUp(-100_000, 0, 1000), 100, 100, [4]float64{-180, -90, -90, far}},
		{"corner, lower left", 3031, northUp(0, 100_000, 1000), 100, 100, [4]float64{0, -90, 90, far}},
		{"corner, lower right", 3031, northUp(-100_000, 100_000, 1000), 100, 100, [4]float64{-90, -90, 0, far}},
		{"corner, upside down", 3031, [6]float64{1000, 0, 0, 0, 1000, 0}, 100, 100, [4]float64{0, -90, 90, far}},
		{"corner, turned", 3031, [6]float64{1000 * cos, 1000 * sin, 0, 1000 * sin, -1000 * cos, 0}, 100, 100,
			[4]float64{90 - 0.5*180/math.Pi, -90, 180 - 0.5*180/math.Pi, far}},
		{"upper edge", 3031, northUp(-50_000, 0, 1000), 100, 100, [4]float64{90, -90, -90, near}},
		{"lower edge", 3031, northUp(-50_000, 100_000, 1000), 100, 100, [4]float64{-90, -90, 90, near}},
		{"left edge", 3031, northUp(0, 50_000, 1000), 100, 100, [4]float64{0, -90, 180, near}},
		{"right edge", 3031, northUp(-100_000, 50_000, 1000), 100, 100, [4]float64{-180, -90, 0, near}},
		{"edge, not in its middle", 3031, northUp(-70_000, 0, 1000), 100, 100, [4]float64{90, -90, -90, -88.8749}},
		{"edge of pixels that round", 3031, northUp(-0.1*300_000, 0.1+0.2-0.3, 0.1), 1_000_000, 1_000_000, [4]float64{90, -90, -90, -88.8749}},
		{"beside the pole", 3031, northUp(10, 50_000, 1000), 100, 100, [4]float64{0.0114591, -90 + 10/0.97276/111_694, 179.9885409, near}},
		{"across 180 beside the pole", 3031, northUp(-50_000, -10, 1000), 100, 100, [4]float64{90.0114591, -90 + 10/0.97276/111_694, -90.0114591, near}},
		{"north corner", 3413, northUp(0, 0, 1000), 100, 100, [4]float64{-45, north, 45, 90}},
		{"north edge across 180, turned", 3413, [6]float64{1000 * cos, 1000 * sin, -1e5 * (sin + cos), 1000 * sin, -1000 * cos, 1e5 * (cos - sin)}, 200, 100,
			[4]float64{45 + 0.5*180/math.Pi, north, -135 + 0.5*180/math.Pi, 90}},
		{"equal area", 3571, northUp(0, 0, 1000), 100, 100, [4]float64{180, 88.73, -90, 90}},
		{"UTM, corner", 32633, northUp(500_000, 9997964.942987, 1000), 50, 100, [4]float64{15, 88.9986, 105, 90}},
		{"UTM, edge", 32633, northUp(450_000, 9997964.942987, 1000), 100, 100, [4]float64{-75, 88.9986, 105, 90}},
		{"the pole inside, near an edge", 3031, northUp(-50_000, 10, 1000), 100, 100, [4]float64{-180, -90, 180, near}},
	} {
		box, err := boxInDegrees(crsOf(t, c.code), c.t, c.width, c.height)
		for i, want := range c.want {
			off := math.Abs(box.bounds[i] - want)
			if err != nil || !(min(off, math.Abs(off-360)) <= [...]float64{1e-5, 1e-2}[i%2]) || box.accuracyM != accuracyWGS84 {
				t.Errorf("%s: gives %v to %v m, %v; want %v", c.name, box.bounds, box.accuracyM, err, c.want)
				break
			}
		}
	}
}

// TestBoxAccuracy: where no shift is needed, and the extreme places are corners, a box is as exact as the formulas.
func TestBoxAccuracy(t *testing.T) {
	for _, c := range []struct {
		name          string
		code          int
		t             [6]float64
		width, height float64
		least, most   float64 // metres
	}{
		{"Antarctica", 3031, northUp(-3_333_000, 3_333_000, 500), 13_332, 13_332, 0, accuracyWGS84},
		{"Antarctica, not centred", 3031, northUp(-3_333_250, 3_333_100, 500), 13_000, 13_300, 0, accuracyWGS84},
		{"the Arctic", 3413, northUp(-4_000_000, 4_000_000, 1000), 8000, 8000, 0, accuracyWGS84},
		{"a quarter", 3031, northUp(0, 3_000_000, 1000), 3000, 3000, 0, accuracyWGS84},
		{"a tile beside the pole", 3031, northUp(100_000, 300_000, 100), 1000, 1000, 0, accuracyWGS84},
		{"a UTM tile", 32633, northUp(399_960, 5_300_040, 10), 10_980, 10_980, 0, accuracyWGS84},
		{"degrees", 4326, northUp(7, 48, 1.0/3600), 3600, 3600, 0, accuracyWGS84},
		{"the globe in Web Mercator", 3857, northUp(-20037508.342789244, 20037508.342789244, 20037508.342789244/128), 256, 256, 0, accuracyWGS84},
		{"half a zone, bent", 32633, northUp(-1_700_000, 6_000_000, 1000), 3000, 3000, 1, 2000}, // its northernmost place lies between two points
		{"Europe on another datum", 31467, northUp(3_400_000, 5_400_000, 10), 10_000, 10_000, 1, 10},
	} {
		box, err := boxInDegrees(crsOf(t, c.code), c.t, c.width, c.height)
		if err != nil || !(box.accuracyM >= c.least && box.accuracyM <= c.most) {
			t.Errorf("%s: %v to %v m, %v; want %v to %v m", c.name, box.bounds, box.accuracyM, err, c.least, c.most)
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

// polarGrids are grids in many CRSs, turned or not, that hold a pole, have it on an edge or in a corner, or lie beside it.
func polarGrids(t testing.TB, random *rand.Rand, n int) (codes []int, transforms [][6]float64) {
	for i := range n {
		code := [...]int{3031, 3413, 3571, 3408, 3409, 5041, 32661, 32633, 32733, 3035, 3995, 5936}[i%12]
		latitude := 90.0
		if code == 3031 || code == 3409 || code == 32733 {
			latitude = -90
		}
		size := math.Pow(10, 1+random.Float64()*3.5) // pixels of 10 m to 30 km
		if code/100 == 326 || code/100 == 327 {
			size = min(size, 3000)
		}
		angle := random.Float64() * 2 * math.Pi * float64(i/12%2)
		sin, cos := math.Sincos(angle)
		col, row := 100*random.Float64(), 50*random.Float64() // where the pole lies
		switch i / 24 % 5 {
		case 0: // anywhere near it
			col, row = 3*col-100, 3*row-50
		case 1:
			col = math.Round(col/100) * 100
		case 2:
			row = math.Round(row/50) * 50
		case 3:
			col, row = math.Round(col/100)*100, math.Round(row/50)*50
		}
		transform := [6]float64{size * cos, size * sin, 0, size * sin, -size * cos, 0}
		x, y := applyTransform(transform, col, row)
		p := crsOf(t, code).projection
		poleX, poleY, err := p.forward(p.longitude, latitude)
		if err != nil {
			t.Fatal(err)
		}
		transform[2], transform[5] = poleX-x, poleY-y
		codes, transforms = append(codes, code), append(transforms, transform)
	}
	return codes, transforms
}

// TestPolarBoxes: a box around a grid near a pole holds each place of the grid, and is as narrow as the grid's longitudes.
func TestPolarBoxes(t *testing.T) {
	narrow := 0
	codes, transforms := polarGrids(t, rand.New(rand.NewPCG(5, 6)), 2400)
	for i, transform := range transforms {
		crs := crsOf(t, codes[i])
		raster, err := placeRaster(crs, transform, 100, 50)
		if err != nil {
			continue
		}
		box, err := boxInDegrees(crs, transform, 100, 50)
		if err != nil {
			t.Errorf("EPSG:%d %v: %v", codes[i], transform, err)
			continue
		}
		var fractions []float64
		for k := range 201 {
			fractions = append(fractions, float64(k)/200)
		}
		for _, pole := range raster.poles {
			for k := range 32 {
				away := math.Pow(10, -float64(k)/8)
				fractions = append(fractions, pole[0]/100-away, pole[0]/100+away, pole[1]/50-away, pole[1]/50+away)
			}
		}
		var lons []float64
		for _, f := range fractions {
			if !(f >= 0 && f <= 1) {
				continue
			}
			for _, place := range [...][2]float64{{0, f * 50}, {100, f * 50}, {f * 100, 0}, {f * 100, 50}, {f * 100, 25}, {37, f * 50}} {
				at, err := raster.at(place[0], place[1])
				_, pole := raster.poleOn(place[0], place[1])
				if err != nil || pole {
					continue
				}
				slack := 1e-9 + 1.1*box.accuracyM/111_000
				wide := slack / max(1e-9, math.Cos(at[1]*math.Pi/180))
				east := math.Mod(box.bounds[2]-box.bounds[0]+360, 360) + 360*btof(box.bounds[2]-box.bounds[0] == 360)
				if from := math.Mod(at[0]-box.bounds[0]+wide+720, 360); at[1] < box.bounds[1]-slack || at[1] > box.bounds[3]+slack || from > east+2*wide {
					t.Fatalf("grid %d of EPSG:%d %v: %v at %v is not in %v to %v m", i, codes[i], transform, at, place, box.bounds, box.accuracyM)
				}
				lons = append(lons, math.Mod(at[0]+720, 360))
			}
		}
		slices.Sort(lons)
		gap := lons[0] + 360 - lons[len(lons)-1]
		for k := range lons[1:] {
			gap = max(gap, lons[k+1]-lons[k])
		}
		width := box.bounds[2] - box.bounds[0]
		if width < 0 {
			width += 360
		}
		if width < 300 {
			narrow++
			if math.Abs(360-gap-width) > 0.5 {
				t.Errorf("grid %d of EPSG:%d %v: longitudes of %v, box %v", i, codes[i], transform, 360-gap, box.bounds)
			}
		} else if gap > 60 {
			t.Errorf("grid %d of EPSG:%d %v: all longitudes, but for %v", i, codes[i], transform, gap)
		}
	}
	if narrow < 500 {
		t.Errorf("%d have an end in the west and in the east", narrow)
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

// TestAreaOfUse: a box more than a degree away from the area of use of its CRS has a warning, also
// across 180°.
func TestAreaOfUse(t *testing.T) {
	for _, test := range []struct {
		name      string
		area, box []float64
		isOutside bool
	}{
		{"inside", []float64{6, 38, 12, 84}, []float64{7, 46, 8, 47}, false},
		{"around the area", []float64{6, 38, 12, 84}, []float64{-180, -90, 180, 90}, false},
		{"just beyond", []float64{6, 38, 12, 84}, []float64{12.5, 46, 12.9, 47}, false},
		{"a degree to the east", []float64{6, 38, 12, 84}, []float64{13.1, 46, 14, 47}, true},
		{"a degree to the west", []float64{6, 38, 12, 84}, []float64{4, 46, 4.9, 47}, true},
		{"to the south", []float64{6, 38, 12, 84}, []float64{7, 0, 8, 36.9}, true},
		{"to the north", []float64{6, 38, 12, 60}, []float64{7, 61.1, 8, 62}, true},
		{"of an area across 180°", []float64{167, 14, -40, 86}, []float64{-179, 20, -178, 21}, false},
		{"far from it", []float64{167, 14, -40, 86}, []float64{7, 46, 8, 47}, true},
		{"a box across 180°", []float64{-180, -60, -170, 0}, []float64{179, -20, -179, -19}, false},
		{"a box that ends at 180°", []float64{-180, -60, -170, 0}, []float64{179.5, -20, 180, -19}, false},
		{"around the globe", []float64{-180, -85, 180, 85}, []float64{7, 46, 8, 47}, false},
		{"an unknown area", nil, []float64{7, 46, 8, 47}, false},
	} {
		m := extent{BBox: test.box}
		m.checkArea(test.area)
		if got := len(m.Warnings) > 0; got != test.isOutside {
			t.Errorf("%s: got %v, want %v", test.name, m.Warnings, test.isOutside)
		}
	}
	if c := must(crsByCode(25832)); fmt.Sprint(c.area) != "[6 38.76 12.01 84.33]" {
		t.Errorf("the area of EPSG:25832 is %v", c.area)
	}
	if c := must(crsByCode(5555)); fmt.Sprint(c.area) != "[6 38.76 12.01 84.33]" { // ETRS89 / UTM zone 32N + DHHN92 height
		t.Errorf("the area of EPSG:5555 is %v", c.area)
	}
}
