//go:build peers

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// judgedFile is a file with what PROJ says of it: where the poles lie in its raster, and the box around places in it.
type judgedFile struct {
	ElevationDatasetFileMeta
	code          int
	accuracyM     float64
	turn          float64      // of x around the globe, 0 where the CRS is none of a cylinder
	poles         [][2]float64 // column and row
	poleInside    [2]bool      // south and north
	south, north  float64
	west, degrees float64 // the longitudes go so many degrees to the east
}

// cylinderTurn is how far x goes around the globe in the CRSs on cylinders that the tests use.
func cylinderTurn(code int) float64 {
	return map[int]float64{4326: 360, 3857: 40075016.68557849, 3832: 40075016.68557849}[code]
}

// pixel is the column and row of coordinates, x taken a turn further where that is nearer to the raster's middle.
func (f *judgedFile) pixel(at [2]float64) (col, row float64) {
	t := [6]float64(f.Transform)
	if middle, _ := applyTransform(t, 50, 25); f.turn > 0 {
		at[0] += f.turn * math.Round((middle-at[0])/f.turn)
	}
	return invertTransform(t, at[0], at[1])
}

// places are columns and rows on the edges and inside, dense near the poles.
func (f *judgedFile) places() (places [][2]float64) {
	var fractions []float64
	for k := range 101 {
		fractions = append(fractions, float64(k)/100)
	}
	for _, pole := range f.poles {
		for k := range 40 {
			away := math.Pow(10, -float64(k)/10)
			fractions = append(fractions, pole[0]/100-away, pole[0]/100+away, pole[1]/50-away, pole[1]/50+away)
		}
	}
	for _, f := range fractions {
		if f >= 0 && f <= 1 {
			places = append(places, [2]float64{0, f * 50}, [2]float64{100, f * 50}, [2]float64{f * 100, 0}, [2]float64{f * 100, 50}, [2]float64{f * 100, 24})
		}
	}
	return slices.DeleteFunc(places, func(p [2]float64) bool { // a pole has no longitude
		return slices.ContainsFunc(f.poles, func(pole [2]float64) bool { return math.Hypot(pole[0]-p[0], pole[1]-p[1]) < 1e-4 })
	})
}

// judge sets the box by the longitudes and latitudes of places.
func (f *judgedFile) judge(degrees [][2]float64) {
	f.south, f.north = math.Inf(1), math.Inf(-1)
	var lons []float64
	for _, p := range degrees {
		if isFinite(p[0] + p[1]) {
			f.south, f.north = min(f.south, p[1]), max(f.north, p[1])
			lons = append(lons, math.Mod(p[0]+720, 360))
		}
	}
	slices.Sort(lons)
	gap := lons[0] + 360 - lons[len(lons)-1]
	f.west = lons[0]
	for i := range lons[1:] {
		if lons[i+1]-lons[i] > gap {
			gap, f.west = lons[i+1]-lons[i], lons[i+1]
		}
	}
	f.degrees = 360 - gap
	for i, inside := range f.poleInside {
		if inside {
			f.south, f.north = [...]float64{-90, f.south}[i], [...]float64{f.north, 90}[i]
			f.west, f.degrees = -180, 360
		}
	}
}

// meets says whether the file's box meets a box, once it is so much larger on each side: a part of its size and its accuracy.
func (f *judgedFile) meets(box []float64, larger float64) bool {
	lat := larger * (0.01*(f.north-f.south) + 1e-6 + 1.5*f.accuracyM/111_000)
	lon := larger * (0.01*f.degrees + 1e-6 + 1.5*f.accuracyM/111_000/max(0.01, math.Cos(max(math.Abs(f.south), math.Abs(f.north))*math.Pi/180)))
	if f.degrees == 360 {
		lon = 0
	}
	width := math.Mod(box[2]-box[0]+360, 360)
	if box[2]-box[0] == 360 {
		width = 360
	}
	from := func(x, y float64) float64 { return math.Mod(math.Mod(y-x, 360)+360, 360) }
	west, degrees := f.west-lon, f.degrees+2*lon
	return f.south-lat <= box[3] && box[1] <= f.north+lat && degrees >= 0 &&
		(degrees >= 360 || from(west, box[0]) <= degrees || from(box[0], west) <= width)
}

// judgeFiles asks PROJ where the files' poles and places lie.
func judgeFiles(t *testing.T, areas map[int]crsArea, files []ElevationDatasetFileMeta) map[int][]*judgedFile {
	t.Helper()
	byCode := map[int][]*judgedFile{}
	for _, m := range files {
		f := &judgedFile{ElevationDatasetFileMeta: m}
		fmt.Sscanf(*m.CRS, "EPSG:%d", &f.code)
		box, err := boxInDegrees(crsOf(t, f.code), [6]float64(m.Transform), 100, 50)
		if err != nil {
			t.Fatal(err)
		}
		f.accuracyM, f.turn = box.accuracyM, cylinderTurn(f.code)
		byCode[f.code] = append(byCode[f.code], f)
	}
	var codes []int
	for code := range byCode {
		codes = append(codes, code)
	}
	onTwoCores(codes, func(code int) {
		var poles, coordinates [][2]float64
		if cylinderTurn(code) == 0 {
			poles = cs2cs(4326, code, [][2]float64{{0, -90}, {0, 90}}, true, areas[code].swapped)
		}
		for _, f := range byCode[code] {
			for i, pole := range poles {
				if isFinite(pole[0] + pole[1]) {
					col, row := f.pixel(pole)
					f.poles = append(f.poles, [2]float64{col, row})
					f.poleInside[i] = min(col, row, 100-col, 50-row) > 1e-3
				}
			}
			for _, p := range f.places() {
				x, y := applyTransform([6]float64(f.Transform), p[0], p[1])
				coordinates = append(coordinates, [2]float64{x, y})
			}
		}
		degrees := cs2cs(code, 4326, coordinates, areas[code].swapped, true)
		for _, f := range byCode[code] {
			n := len(f.places())
			f.judge(degrees[:n])
			degrees = degrees[n:]
		}
	})
	return byCode
}

// TestPeerQueries asks for 3,000 points and boxes over HTTP, in part at poles and across 180°, and looks at each file by
// PROJ: a point's column and row in the raster, a box against the one around the raster's places. Where the accuracy of
// PROJ's and of the file's CRS leaves it open, a file may be there or not.
func TestPeerQueries(t *testing.T) {
	areas := crsAreas(t)
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	random := rand.New(rand.NewPCG(11, 12))
	files := append(worldFiles(t, random, 800), awkwardFiles(t, 250)...)
	files = slices.DeleteFunc(files, func(m ElevationDatasetFileMeta) bool {
		return *m.CRS == "EPSG:4087" // PROJ takes the ellipsoid for a sphere: testdata/deviations.md
	})
	ts.addFiles("places", files)
	byCode := judgeFiles(t, areas, files)
	var points, boxes [][]float64
	for i := range 1500 {
		target := files[random.IntN(len(files))]
		crs, shift, _ := target.knownCRS()
		lon, lat, err := crs.projection.inverse(applyTransform([6]float64(target.Transform), -20+140*random.Float64(), -10+70*random.Float64()))
		if lon, lat = shift.toWGS84(crs.ellipsoid, lon, lat); err != nil || math.Abs(lat) > 90 {
			lon, lat = random.Float64()*360, random.Float64()*180-90
		}
		switch i % 50 {
		case 0:
			lat = math.Copysign(90, lat)
		case 1:
			lon = 180
		}
		points = append(points, []float64{math.Remainder(lon, 360), lat})
		width, height := math.Pow(10, random.Float64()*4-2), math.Pow(10, random.Float64()*3-2)
		west, south := math.Remainder(lon-width/2, 360), max(-90, lat-height/2)
		boxes = append(boxes, []float64{west, south, math.Remainder(west+min(width, 359), 360), min(90, south+height)})
	}
	pixels := map[int][][2]float64{} // coordinates of each point in each CRS
	for code := range byCode {
		var degrees [][2]float64
		for _, p := range points {
			degrees = append(degrees, [2]float64(p))
		}
		pixels[code] = cs2cs(4326, code, degrees, true, areas[code].swapped)
	}
	hits, open, wrong := 0, 0, 0
	ask := func(name string, query []float64, judge func(f *judgedFile) (inside, sure bool)) {
		text := strings.Trim(strings.ReplaceAll(fmt.Sprint(query), " ", ","), "[]")
		found := map[string]bool{}
		for next := fmt.Sprintf("/api/v1/files?limit=500&%s=%s", name, text); next != ""; {
			a := c.must(200, "GET", next, nil)
			for _, item := range a.items() {
				found[item["path"].(string)] = true
			}
			link, _, _ := strings.Cut(a.header.Get("Link"), ">")
			next = strings.TrimPrefix(link, "<")
		}
		for _, of := range byCode {
			for _, f := range of {
				inside, sure := judge(f)
				hits += int(btof(inside))
				open += int(btof(!sure))
				if sure && inside != found[f.Path] {
					if wrong++; wrong <= 20 {
						t.Errorf("%s=%s: %s of %s, %v, box %v: found: %v", name, text, f.Path, *f.CRS, f.Transform, f.BBox, found[f.Path])
					}
				}
			}
		}
	}
	for i := range points {
		ask("point", points[i], func(f *judgedFile) (inside, sure bool) {
			col, row := f.pixel(pixels[f.code][i])
			depth := min(col, row, 100-col, 50-row)                     // NaN where PROJ has no coordinates
			if lat := points[i][1]; math.Abs(lat) == 90 && f.turn > 0 { // there, longitudes make no difference
				return f.south <= -90+1e-9 && lat < 0 || f.north >= 90-1e-9 && lat > 0, true
			}
			slack := 1e-5
			if f.ResolutionM != nil {
				slack += 2 * f.accuracyM / *f.ResolutionM
			}
			return depth >= 0, !(math.Abs(depth) < slack)
		})
		ask("bbox", boxes[i], func(f *judgedFile) (inside, sure bool) {
			inside = f.meets(boxes[i], 0)
			return inside, inside == f.meets(boxes[i], 1) && inside == f.meets(boxes[i], -1)
		})
	}
	t.Logf("%d queries over %d files: %d hits, %d left open, %d wrong", 2*len(points), len(files), hits, open, wrong)
	if hits < 10_000 || open > hits/5 || wrong > 0 {
		t.Errorf("%d hits, %d left open, %d wrong", hits, open, wrong)
	}
}
