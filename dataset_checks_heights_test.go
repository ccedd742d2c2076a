package main

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"
)

// landscape is a height of believable terrain: ridges and valleys, the sea in the west with cliffs that lie between two
// tiles in the north and a beach in the south, and a lake that covers whole tiles.
func landscape(x, y float64) float64 {
	const tile = 320
	land := hills(x, y)
	shore := x - 4*tile
	cliff := 0.0 // exactly at the edge of tiles
	if shore > 0 {
		inland := min(shore/(3*tile), 1)
		cliff = land*inland + (30+25*(1+math.Sin(y/210)))*(1-inland)
	}
	beach := max(0, min(land, (shore+60*math.Sin(y/150))*0.4))
	south := min(max(y/tile-8, 0), 2) / 2
	land = cliff*(1-south) + beach*south

	const level = 590
	if r := math.Hypot(x-11*tile, y-5*tile); r < 700 {
		land = level
	} else if r < 1400 {
		land = level + (land-level)*(r-700)/700
	}
	return land
}

// tileName returns the name of a tile in a column and a row, up to 51 of each: tile_bYa.tif, say.
func tileName(column, row int) string {
	letters := func(n int) string {
		if n < 26 {
			return string(rune('a' + n))
		}
		return "Y" + string(rune('a'+n-26))
	}
	return "tile_" + letters(column) + letters(row) + ".tif"
}

// landscapeTiles returns 16 by 16 tiles of the landscape by their names. change changes one before it is built.
func landscapeTiles(t *testing.T, change func(column, row int, f *pixelTIFF)) (d delivery, contents map[string][]byte) {
	t.Helper()
	return manyLandscapeTiles(t, 16, 16, change)
}

// manyLandscapeTiles is landscapeTiles with so many columns and rows.
func manyLandscapeTiles(t *testing.T, columns, rows int, change func(column, row int, f *pixelTIFF)) (d delivery, contents map[string][]byte) {
	t.Helper()
	d, contents = delivery{"landscape", map[string]*fileRow{}}, map[string][]byte{}
	for column := range columns {
		for row := range rows {
			f := terrainTIFF(column, row, landscape)
			change(column, row, &f)
			path := tileName(column, row)
			content := f.build()
			contents[path] = content
			raster, err := openBytes(path, content, nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := raster.statistics(t.Context(), 200)
			if err != nil {
				t.Fatal(err)
			}
			d.tile(path, "EPSG:25832", 500_000+float64(column)*320, 5_400_000-float64(row+1)*320, 320, 320, 10, 10)
			d.rows[path].found = &fileHeights{Statistics: &s}
		}
	}
	return d, contents
}

// heightFault is a fault of heights, and the finding that it makes.
type heightFault struct {
	name   string
	code   string
	detail string // how it begins
	plant  func(f *pixelTIFF)
}

// heightFaults returns faults of heights that a delivery may have.
func heightFaults() []heightFault {
	// replace changes heights: new gets the height and the column and row of the sample.
	replace := func(new func(v float64, x, y int) float64) func(f *pixelTIFF) {
		return func(f *pixelTIFF) {
			value := f.value
			f.value = func(band, x, y int) float64 { return new(value(band, x, y), x, y) }
		}
	}
	hole := func(void float64) func(v float64, x, y int) float64 {
		return func(v float64, x, y int) float64 {
			if x >= 10 && x < 20 && y >= 12 && y < 22 {
				return void
			}
			return v
		}
	}
	undeclared := func(void float64) func(f *pixelTIFF) {
		return func(f *pixelTIFF) {
			f.tags = nil
			replace(hole(void))(f)
		}
	}
	spike := func(v float64) func(f *pixelTIFF) {
		return replace(func(was float64, x, y int) float64 {
			if x == 7 && y == 5 {
				return v
			}
			return was
		})
	}
	return []heightFault{
		{"all void", "empty", "all of its 1024 samples are void", replace(func(float64, int, int) float64 { return -9999 })},
		{"a tenth void", "voids", "9.77 % of its samples are void; nine of ten files have at most 0 %", replace(hole(-9999))},
		{"NaN where -9999 is declared", "voids", "9.77 % of its samples are void", replace(hole(math.NaN()))},
		{"voids of -9999, not declared", "undeclared_nodata", "-9999 in 9.77 % of its samples", undeclared(-9999)},
		{"voids of -32768, not declared", "undeclared_nodata", "-32768 in 9.77 % of its samples", undeclared(-32768)},
		{"voids of -3.4e38, not declared", "undeclared_nodata", "-3.4", undeclared(-math.MaxFloat32)},
		{"voids of 0, not declared", "undeclared_nodata", "0 in 9.77 % of its samples, where the others have a mean of ", undeclared(0)},
		{"a spike of 99999", "spikes", "1 spike, first at column 7, row 5; heights from ", spike(99999)},
		{"a spike of -5000", "spikes", "1 spike, first at column 7, row 5; heights from -5000 to ", spike(-5000)},
		{"one height all over", "flat", "512 all over; of ", replace(func(float64, int, int) float64 { return 512 })},
		{"a tile of the sea in the hills", "flat", "0 all over; of ", replace(func(float64, int, int) float64 { return 0 })},
		{"10 m too high", "seam", "a step of ", replace(func(v float64, _, _ int) float64 { return v + 10 })},
		{"10 m too low", "seam", "a step of ", replace(func(v float64, _, _ int) float64 { return v - 10 })},
		{"content of another place", "seam", "a step of ", func(f *pixelTIFF) {
			f.value = terrainTIFF(40, 30, func(x, y float64) float64 { return hills(x, y) + 80 }).value
		}},
		{"feet", "range", "", replace(func(v float64, _, _ int) float64 { return v / 0.3048 })},
		{"bytes in the wrong order", "range", "heights from ", replace(func(v float64, _, _ int) float64 {
			return float64(int16(bits.ReverseBytes16(uint16(int16(v)))))
		})},
		{"a block that is cut", "decode", "2 blocks cannot be decoded, first strip 1 at ", func(f *pixelTIFF) {
			f.compression = compressionLZW
			f.block = func(i int, b []byte) []byte { return b[:len(b)-20*(i%3)] }
		}},
	}
}

// TestTrueTerrain: nothing is found in terrain that is in order.
func TestTrueTerrain(t *testing.T) {
	t.Parallel()
	rounded := func(step float64) func(int, int, *pixelTIFF) {
		return func(_, _ int, f *pixelTIFF) {
			value := f.value
			f.value = func(band, x, y int) float64 { return math.Round(value(band, x, y)/step) * step }
		}
	}
	for name, change := range map[string]func(column, row int, f *pixelTIFF){
		"as it is":        func(int, int, *pixelTIFF) {},
		"in whole metres": rounded(1),
		"in tenths":       rounded(0.1),
		"the sea is void": func(_, _ int, f *pixelTIFF) { f.tags = with(asciiTag(tagGDALNoData, "0\x00")) },
		"cut at a boundary": func(column, row int, f *pixelTIFF) {
			value := f.value
			f.value = func(band, x, y int) float64 {
				if column == 15 && x > 20-row || row == 15 && y > 9 {
					return -9999
				}
				return value(band, x, y)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := landscapeTiles(t, change)
			if name == "in whole metres" {
				for _, f := range d.rows {
					f.sampleType = "int16"
				}
			}
			s, found := d.check(t)
			if name == "the sea is void" { // tiles without any height are named
				delete(found, "empty")
			}
			if len(found) > 0 || len(s.heightsNotExamined()) > 0 {
				t.Errorf("%.3000v %v", found, s.heightsNotExamined())
			}
		})
	}
}

// TestWrongHeights plants each fault into true terrain, at several places, and finds it with its file and nothing else.
func TestWrongHeights(t *testing.T) {
	t.Parallel()
	clean, _ := landscapeTiles(t, func(int, int, *pixelTIFF) {})
	for _, fault := range heightFaults() {
		for _, at := range [][2]int{{9, 12}, {15, 3}, {15, 15}, {8, 0}} {
			path := tileName(at[0], at[1])
			t.Run(fault.name+" in "+path, func(t *testing.T) {
				f := terrainTIFF(at[0], at[1], landscape)
				fault.plant(&f)
				raster, err := openBytes(path, f.build(), nil)
				if err != nil {
					t.Fatal(err)
				}
				s, err := raster.statistics(t.Context(), 200)
				if err != nil {
					t.Fatal(err)
				}
				d := delivery{"landscape", map[string]*fileRow{}}
				for path, row := range clean.rows {
					d.rows[path] = row
				}
				changed := *d.rows[path]
				changed.found = &fileHeights{Statistics: &s}
				d.rows[path] = &changed

				_, found := d.check(t)
				want := path + ": " + fault.detail
				if len(found) != 1 || len(found[fault.code]) != 1 || !strings.HasPrefix(found[fault.code][0], want) {
					t.Errorf("got %.2000q, want %s %q", found, fault.code, want)
				}
			})
		}
	}
}

// TestManyWrongHeights plants all faults again and again among 400 tiles, or 2,000 in make soak, and finds each with its file and nothing else.
func TestManyWrongHeights(t *testing.T) {
	t.Parallel()
	faults := heightFaults()
	planted := map[string]heightFault{} // by path
	d, contents := manyLandscapeTiles(t, 50, soakOr(2000, 400)/50, func(column, row int, f *pixelTIFF) {
		isInHills := column >= 18
		isAlone := column%3 == 0 && row%3 == 0
		if isInHills && isAlone {
			fault := faults[len(planted)%len(faults)]
			planted[tileName(column, row)] = fault
			fault.plant(f)
		}
	})

	// Bytes in the wrong order make heights in the range of terrain, too. Then they are spikes, or a step.
	isRight := func(code, detail string, fault heightFault) bool {
		isOwn := code == fault.code && strings.HasPrefix(detail, fault.detail)
		return isOwn || fault.name == "bytes in the wrong order" && (code == "spikes" || code == "seam")
	}
	_, found := d.check(t)
	hits := map[string]bool{}
	for code, lines := range found {
		for _, line := range lines {
			path, detail, _ := strings.Cut(line, ": ")
			fault, isPlanted := planted[path]
			if !isPlanted || !isRight(code, detail, fault) {
				t.Errorf("%s %s, want %s %q", code, line, fault.code, fault.detail)
			}
			hits[path] = true
		}
	}
	for path, fault := range planted {
		check(t, fault.name+" in "+path+": is found", hits[path], true)
	}
	t.Logf("%d faults in %d tiles", len(planted), len(contents))
}

// TestExpectedHeights: heights outside of those that are expected are found, also spikes, and in the unit of the file.
func TestExpectedHeights(t *testing.T) {
	t.Parallel()
	d, _ := landscapeTiles(t, func(column, row int, f *pixelTIFF) {
		value := f.value
		if column == 9 && row == 12 {
			f.value = func(band, x, y int) float64 {
				if x == 7 && y == 5 {
					return 4000
				}
				return value(band, x, y)
			}
		}
	})
	high, low := math.Inf(-1), math.Inf(1)
	for path, row := range d.rows {
		if path != tileName(9, 12) {
			high = max(high, float64(row.found.Statistics.Max))
			low = min(low, float64(row.found.Statistics.Min))
		}
	}
	all := fmt.Sprintf("%g to %g", math.Floor(low), math.Ceil(high))
	s, found := d.checkExpecting(t, expectation{Heights: all})
	want := fmt.Sprintf("%s: heights from %.7g to 4000, not within %s m", tileName(9, 12), d.rows[tileName(9, 12)].found.Statistics.Min, all)
	check(t, "findings of range", fmt.Sprint(found["range"]), fmt.Sprint([]string{want}))
	check(t, "line", fmt.Sprint(s.lines), fmt.Sprintf("[{heights %s false 1 of 256 files differ}]", all))

	_, found = d.checkExpecting(t, expectation{Heights: "-100 to 4000"})
	check(t, "findings where the spike is expected", len(found["range"])+len(found["spikes"]), 1)

	// An expectation that all terrain misses hides no other finding.
	_, found = d.checkExpecting(t, expectation{Heights: "8000 to 8001"})
	check(t, "findings of range", len(found["range"]), 256)
	check(t, "spikes beside them", len(found["spikes"]), 1)

	for _, row := range d.rows {
		row.heightUnit = "foot"
	}
	s, found = d.checkExpecting(t, expectation{Heights: fmt.Sprintf("%g to %g", math.Floor(low*0.3048), math.Ceil(4000*0.3048))})
	check(t, "findings in feet", len(found["range"]), 0)
	check(t, "line in feet", s.lines[0].Passed, true)

	void := d.rows[tileName(3, 3)].found.Statistics
	void.Voids, void.Min, void.Max = void.Samples, height(math.NaN()), height(math.NaN())
	s, _ = d.checkExpecting(t, expectation{Heights: "-100 to 4000"})
	check(t, "line with a tile of voids", s.lines[0].Passed, true)

	d.rows[tileName(9, 12)].found = nil
	s, _ = d.checkExpecting(t, expectation{Heights: "-100 to 4000"})
	check(t, "line where heights are not read", fmt.Sprint(s.lines), "[{heights -100 to 4000 false 0 of 256 files differ, and not all heights were read}]")
}

// TestStepAmongFewTiles: a step is found among four tiles, which do not tell what steps are usual.
func TestStepAmongFewTiles(t *testing.T) {
	t.Parallel()
	d, _ := landscapeTiles(t, func(column, row int, f *pixelTIFF) {
		value := f.value
		if column == 9 && row == 12 {
			f.value = func(band, x, y int) float64 { return value(band, x, y) + 10 }
		}
	})
	four := []string{tileName(9, 12), tileName(10, 12), tileName(9, 13), tileName(10, 13)}
	maps.DeleteFunc(d.rows, func(path string, _ *fileRow) bool { return !slices.Contains(four, path) })

	_, found := d.check(t)
	seams := found["seam"]
	if len(seams) == 0 || !strings.HasPrefix(seams[0], four[0]+": a step of ") || strings.Contains(seams[0], "usual") {
		t.Errorf("found %.2000q", found)
	}
}

// TestSteps: a step between two lots is found where they meet, and tiles that were not measured are counted.
func TestSteps(t *testing.T) {
	t.Parallel()
	d, _ := landscapeTiles(t, func(column, _ int, f *pixelTIFF) {
		value := f.value
		if column >= 14 {
			f.value = func(band, x, y int) float64 { return value(band, x, y) + 9 }
		}
	})
	d.rows[tileName(3, 3)].found = nil
	d.rows[tileName(3, 4)].found = &fileHeights{Reason: "compressed with ZSTD"}
	d.rows[tileName(3, 5)].found = &fileHeights{Reason: "compressed with ZSTD"}
	s, found := d.check(t)
	check(t, "not examined", fmt.Sprint(s.heightsNotExamined()), "[Heights were not examined: 2 files compressed with ZSTD, 1 file not read yet.]")
	if len(found) != 1 || len(found["seam"]) < 10 {
		t.Errorf("found %.2000q, want only seams, at least 10, between the tiles of columns 13 and 14, of which the eastern ones are 9 m higher", found)
	}
	for _, line := range found["seam"] {
		isAtLot := strings.HasPrefix(line, "tile_o") || strings.HasPrefix(line, "tile_n")
		if !isAtLot {
			t.Error(line)
		}
	}
	if !slices.ContainsFunc(found["seam"], func(line string) bool { return strings.Contains(line, "m all along the edge, where") }) {
		t.Errorf("found %.2000q, want one with the same step all along the edge", found["seam"])
	}
}

// TestLotInFeet: tiles of a lot in feet are found where the lot meets tiles in metres, and no others.
func TestLotInFeet(t *testing.T) {
	t.Parallel()
	d, _ := landscapeTiles(t, func(column, _ int, f *pixelTIFF) {
		value := f.value
		if column >= 14 {
			f.value = func(band, x, y int) float64 { return value(band, x, y) / 0.3048 }
		}
	})
	_, found := d.check(t)
	check(t, "most tiles are found", len(found["range"]) >= 12, true)
	for code, lines := range found {
		for _, line := range lines {
			isFeet := code == "range" && strings.HasSuffix(line, "are 3.28 times those of its neighbours: feet?")
			check(t, code+" "+line, isFeet && strings.HasPrefix(line, "tile_o"), true)
		}
	}
}

// TestWallInRatio: a wall between level grounds is no lot in feet, although the heights above it are 3.28 times those below.
func TestWallInRatio(t *testing.T) {
	t.Parallel()
	d, _ := landscapeTiles(t, func(column, _ int, f *pixelTIFF) {
		value := f.value
		f.value = func(band, x, y int) float64 {
			low := 100 + value(band, x, y)/10_000
			if column >= 14 {
				return low + 228
			}
			return low
		}
	})
	_, found := d.check(t)
	check(t, "tiles in feet", len(found["range"]), 0)
}

// noise returns a number from -1 to 1 for each place of a lattice.
func noise(seed, ix, iy int64) float64 {
	h := uint64(ix)*0x9E3779B97F4A7C15 ^ uint64(iy)*0xC2B2AE3D27D4EB4F ^ uint64(seed)*0x165667B19E3779F9
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return float64(h>>11)/(1<<53)*2 - 1
}

// smooth returns noise between the places of its lattice.
func smooth(seed int64, x, y float64) float64 {
	ix, iy := math.Floor(x), math.Floor(y)
	fx, fy := x-ix, y-iy
	fx = fx * fx * (3 - 2*fx)
	fy = fy * fy * (3 - 2*fy)
	a, b := noise(seed, int64(ix), int64(iy)), noise(seed, int64(ix)+1, int64(iy))
	c, d := noise(seed, int64(ix), int64(iy)+1), noise(seed, int64(ix)+1, int64(iy)+1)
	return (a*(1-fx)+b*fx)*(1-fy) + (c*(1-fx)+d*fx)*fy
}

// fractal returns fractal terrain: each octave has half the size and a part of the height of the one before.
func fractal(seed int64, x, y, rough float64) (v float64) {
	amp, size := 1.0, 3000.0
	for o := range int64(9) {
		v += amp * smooth(seed+o*77, x/size, y/size)
		amp *= rough
		size /= 2
	}
	return v
}

// TestFractalTerrain: nothing is found in fractal terrain, from a plain to high mountains, with sea below 0.
func TestFractalTerrain(t *testing.T) {
	t.Parallel()
	for seed := range int64(soakOr(8, 1)) {
		for _, height := range []float64{2, 100, 2500} {
			for _, rough := range []float64{0.4, 0.6} {
				land := func(x, y float64) float64 { return max(0, height*fractal(7+seed, x, y, rough)) }
				d, _ := landscapeTiles(t, func(column, row int, f *pixelTIFF) { f.value = terrainTIFF(column, row, land).value })
				if _, found := d.check(t); len(found) > 0 {
					t.Errorf("%v m, roughness %v, seed %d: %.2000v", height, rough, seed, found)
				}
			}
		}
	}
}
