package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// exactPosition is a position in units of 1e-9 degrees, in which the model of a search computes without rounding.
type exactPosition [2]int64

// exactly returns a position in whole units.
func exactly(p position) exactPosition {
	return exactPosition{int64(math.Round(p[0] * 1e9)), int64(math.Round(p[1] * 1e9))}
}

// compareProducts compares a*b with c*d, in 128 bits.
func compareProducts(a, b, c, d int64) int {
	product := func(a, b int64) (sign int, high, low uint64) {
		magnitude := func(v int64) uint64 { return uint64(max(v, -v)) }
		high, low = bits.Mul64(magnitude(a), magnitude(b))
		switch {
		case a == 0 || b == 0:
			return 0, high, low
		case (a < 0) != (b < 0):
			return -1, high, low
		}
		return 1, high, low
	}
	s, high, low := product(a, b)
	s2, high2, low2 := product(c, d)
	if s != s2 {
		return s - s2
	}
	switch {
	case high > high2 || high == high2 && low > low2:
		return s
	case high == high2 && low == low2:
		return 0
	}
	return -s
}

// turn says on which side of the line from a to b the position c lies: it is positive on the left, and 0 on the line.
func turn(a, b, c exactPosition) int {
	return compareProducts(b[0]-a[0], c[1]-a[1], b[1]-a[1], c[0]-a[0])
}

// isOn reports whether c lies on the segment from a to b.
func isOn(a, b, c exactPosition) bool {
	return turn(a, b, c) == 0 && min(a[0], b[0]) <= c[0] && c[0] <= max(a[0], b[0]) && min(a[1], b[1]) <= c[1] && c[1] <= max(a[1], b[1])
}

// segmentsMeet reports whether two segments have a point in common.
func segmentsMeet(a, b, c, d exactPosition) bool {
	if isOn(a, b, c) || isOn(a, b, d) || isOn(c, d, a) || isOn(c, d, b) {
		return true
	}
	return turn(a, b, c)*turn(a, b, d) < 0 && turn(c, d, a)*turn(c, d, b) < 0
}

// modelShape is a part of a geometry in the model of a search: a chain of positions, which is a point, a line or a ring.
type modelShape struct {
	chain  []exactPosition
	isRing bool
	part   int // rings of one part are those of one polygon
}

// holds reports whether the rings of a part hold a position: its winding number around an odd number of them is not 0.
func holds(shapes []modelShape, part int, p exactPosition) (inside bool) {
	for _, s := range shapes {
		if !s.isRing || s.part != part {
			continue
		}
		winding := 0
		for i, b := range s.chain[1:] {
			a := s.chain[i]
			if a[1] <= p[1] && b[1] > p[1] && turn(a, b, p) > 0 {
				winding++
			}
			if a[1] > p[1] && b[1] <= p[1] && turn(a, b, p) < 0 {
				winding--
			}
		}
		inside = inside != (winding%2 != 0)
	}
	return inside
}

// modelMeets reports whether two geometries have a point in common.
func modelMeets(a, b []modelShape) bool {
	segment := func(chain []exactPosition, i int) (p, q exactPosition) {
		return chain[i], chain[min(i+1, len(chain)-1)]
	}
	for _, one := range a {
		for _, other := range b {
			for i := range one.chain {
				for j := range other.chain {
					p, q := segment(one.chain, i)
					r, s := segment(other.chain, j)
					if segmentsMeet(p, q, r, s) {
						return true
					}
				}
			}
			if other.isRing && holds(b, other.part, one.chain[0]) || one.isRing && holds(a, one.part, other.chain[0]) {
				return true
			}
		}
	}
	return false
}

// footprintModel returns the footprint of a file in the model.
func footprintModel(m extent) (shapes []modelShape) {
	for i, part := range m.footprint() {
		s := modelShape{isRing: true, part: i}
		for _, p := range part[0] {
			s.chain = append(s.chain, exactly(p))
		}
		shapes = append(shapes, s)
	}
	return shapes
}

// randomGeometries makes GeoJSON geometries of every type around places.
type randomGeometries struct {
	*rand.Rand
	places []position
}

// near returns a position near one of the places, in millionths of a degree. A tenth are corners of files exactly.
func (r randomGeometries) near(spread float64) position {
	p := r.places[r.IntN(len(r.places))]
	if r.IntN(10) == 0 {
		return p
	}
	x := min(max(p[0]+spread*(2*r.Float64()-1), -180), 180)
	y := min(max(p[1]+spread*(2*r.Float64()-1), -90), 90)
	return position{math.Round(x*1e6) / 1e6, math.Round(y*1e6) / 1e6}
}

// chain returns a ring or line of n corners around a place.
func (r randomGeometries) chain(n int, isRing bool) (chain []position) {
	spread := math.Pow(10, r.Float64()*4-3)
	center := r.near(spread)
	local := randomGeometries{r.Rand, []position{center}}
	for range n {
		chain = append(chain, local.near(spread))
	}
	if isRing { // sorted around the center, so that it does not cross itself
		angle := func(p position) float64 { return math.Atan2(p[1]-center[1], p[0]-center[0]) }
		slices.SortFunc(chain, func(a, b position) int {
			if angle(a) < angle(b) {
				return -1
			}
			return 1
		})
		chain = append(chain, chain[0])
	}
	return chain
}

// geometry returns a geometry of a type, and the same in the model. part is the number of its first part.
func (r randomGeometries) geometry(kind string, part int) (g map[string]any, shapes []modelShape) {
	var coordinates any
	add := func(chain []position, isRing bool) []position {
		s := modelShape{isRing: isRing, part: part + len(shapes)}
		for _, p := range chain {
			s.chain = append(s.chain, exactly(p))
		}
		shapes = append(shapes, s)
		return chain
	}
	switch kind {
	case "Point":
		coordinates = add(r.chain(1, false), false)[0]
	case "MultiPoint":
		points := r.chain(1+r.IntN(4), false)
		for _, p := range points {
			add([]position{p}, false)
		}
		coordinates = points
	case "LineString":
		coordinates = add(r.chain(2+r.IntN(4), false), false)
	case "MultiLineString":
		lines := [][]position{}
		for range 1 + r.IntN(3) {
			lines = append(lines, add(r.chain(2+r.IntN(4), false), false))
		}
		coordinates = lines
	case "Polygon":
		coordinates = [][]position{add(r.chain(3+r.IntN(5), true), true)}
	case "MultiPolygon":
		polygons := [][][]position{}
		for range 1 + r.IntN(3) {
			polygons = append(polygons, [][]position{add(r.chain(3+r.IntN(5), true), true)})
		}
		coordinates = polygons
	case "GeometryCollection":
		parts := []any{}
		for range 1 + r.IntN(3) {
			one, more := r.geometry(geometryTypes()[r.IntN(6)], part+len(shapes))
			parts, shapes = append(parts, one), append(shapes, more...)
		}
		return map[string]any{"type": kind, "geometries": parts}, shapes
	}
	return map[string]any{"type": kind, "coordinates": coordinates}, shapes
}

// geometryTypes returns the types of GeoJSON geometries. The last one consists of others.
func geometryTypes() []string {
	return []string{"Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon", "GeometryCollection"}
}

// awkwardTiles returns a dataset of tiles with footprints of many shapes, and random geometries near them.
func awkwardTiles(t *testing.T, seed uint64) (ts *testServer, dataset int64, files []ElevationDatasetFileMeta, r randomGeometries) {
	t.Helper()
	ts = startServer(t, nil)
	add := func(code int, transform ...float64) {
		files = append(files, placedFile(t, fmt.Sprintf("%03d.tif", len(files)), code, transform...))
	}
	for i := range 9 { // tiles of a grid in UTM, turned ones, tiles in degrees, and some at 180° and at the pole
		x, y := 480_000+float64(i%3)*1000, 5_300_000+float64(i/3)*1000
		add(25832, 10, 0, x, 0, -20, y)
		add(25832, 5, 5, x+200, 5, -5, y+5000)
		add(4326, 0.001, 0, 8.5+float64(i%3)*0.1, 0, -0.002, 47.9+float64(i/3)*0.1)
	}
	add(25832, 1000, 0, 300_000, 0, -2000, 5_400_000)
	add(4326, 0.01, 0, 179.5, 0, -0.02, 1)
	add(4326, 0.01, 0, -180, 0, -0.02, 1)
	add(32601, 1000, 0, 200_000, 0, -1000, 5_000_000)
	add(3413, 1000, 0, -50_000, 0, -1000, 20_000)
	dataset = ts.addFiles("tiles", files)

	r = randomGeometries{rand.New(rand.NewPCG(seed, 13)), []position{{8.9, 48}}}
	for _, m := range files {
		for _, part := range m.footprint() {
			r.places = append(r.places, part[0][0], part[0][len(part[0])/2])
		}
	}
	return ts, dataset, files, r
}

// TestSearchGeometries compares 2,000 random searches by a box or a geometry of every type, in the database, with a slow
// model that compares the footprint of each file in whole numbers.
func TestSearchGeometries(t *testing.T) {
	t.Parallel()
	ts, dataset, files, r := awkwardTiles(t, 11)
	models := map[string][]modelShape{}
	for _, m := range files {
		models[m.Path] = footprintModel(m.extent)
	}

	found := map[string]int{}
	for n := range 2000 {
		kind := append(geometryTypes(), "bbox")[n%8]
		query, shapes := url.Values{}, []modelShape(nil)
		if kind == "bbox" {
			corners := r.chain(2, false)
			a, b := corners[0], corners[1]
			a[1], b[1] = min(a[1], b[1]), max(a[1], b[1])
			query.Set("bbox", fmt.Sprintf("%v,%v,%v,%v", a[0], a[1], b[0], b[1]))
			parts := [][2]float64{{a[0], b[0]}}
			if a[0] > b[0] {
				parts = [][2]float64{{a[0], 180}, {-180, b[0]}}
			}
			for i, p := range parts {
				ring := []exactPosition{exactly(position{p[0], a[1]}), exactly(position{p[1], a[1]}), exactly(position{p[1], b[1]}), exactly(position{p[0], b[1]})}
				shapes = append(shapes, modelShape{append(ring, ring[0]), true, i})
			}
		} else {
			var g map[string]any
			g, shapes = r.geometry(kind, 0)
			text, _ := json.Marshal(g)
			query.Set("intersects", string(text))
		}

		var want []string
		for _, m := range files {
			if modelMeets(shapes, models[m.Path]) {
				want = append(want, m.Path)
			}
		}
		f, err := readItemFilter(query)
		if err != nil {
			t.Fatalf("%v: %v", query, err)
		}
		f.datasetID = &dataset
		items, next, err := findFiles(t.Context(), ts.db, f, firstFile(), 1000)
		if err != nil || next != nil {
			t.Fatal(err, next)
		}
		var got []string
		for _, item := range items {
			got = append(got, item.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d: %v finds %q, want %q", n, query, got, want)
		}
		if kind == "bbox" {
			if total, err := countFiles(t.Context(), ts.db, f); err != nil || *total != (listTotal{Total: int64(len(want))}) {
				t.Errorf("%v: the count is %v, %v, want %d", query, total, err, len(want))
			}
		}
		if len(want) > 0 && len(want) < len(files) {
			found[kind]++
		}
	}
	t.Logf("searches that found some files: %v", found)
	for _, kind := range append(geometryTypes(), "bbox") {
		if found[kind] < 50 {
			t.Errorf("only %d searches of 250 by %s found some of the files", found[kind], kind)
		}
	}
}

// TestGeometryTypes: a search takes every type of GeoJSON geometry, alike by GET and by POST, and refuses what is none.
func TestGeometryTypes(t *testing.T) {
	t.Parallel()
	_, c, _ := stacTree(t, gridOfTiles(t, 4)) // of one degree, from -2, -2 on
	for geometry, want := range map[string]string{
		`{"type":"Point","coordinates":[-1.5,-1.5]}`:                                                                                                        "t00000.tif",
		`{"type":"MultiPoint","coordinates":[[-1.5,-1.5],[1.5,1.5,99],[50,50]]}`:                                                                            "t00000.tif t00015.tif",
		`{"type":"LineString","coordinates":[[-1.5,-1.5],[-0.5,-1.5]]}`:                                                                                     "t00000.tif t00001.tif",
		`{"type":"LineString","coordinates":[[-1.6,-1.5],[-1.4,-1.5]]}`:                                                                                     "t00000.tif",
		`{"type":"LineString","coordinates":[[-1.5,-1.5],[-1.5,-1.5]]}`:                                                                                     "t00000.tif",
		`{"type":"LineString","coordinates":[[-1.5,-0.5],[-0.5,0.5],[-1.5,1.5]]}`:                                                                           "t00004.tif t00005.tif t00008.tif t00009.tif t00012.tif t00013.tif",
		`{"type":"MultiLineString","coordinates":[[[-1.5,-1.5],[-1.4,-1.5]],[[9,9],[8,8]]]}`:                                                                "t00000.tif",
		`{"type":"Polygon","coordinates":[[[-1.6,-1.6],[-1.4,-1.6],[-1.5,-1.4],[-1.6,-1.6]]]}`:                                                              "t00000.tif",
		`{"type":"MultiPolygon","coordinates":[[[[-1.6,-1.6],[-1.4,-1.6],[-1.5,-1.4],[-1.6,-1.6]]]]}`:                                                       "t00000.tif",
		`{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[-1.5,-1.5]},{"type":"LineString","coordinates":[[1.5,1.5],[1.6,1.6]]}]}`: "t00000.tif t00015.tif",
		`{"type":"GeometryCollection","geometries":[{"type":"GeometryCollection","geometries":[{"type":"Point","coordinates":[-1.5,-1.5]}]}]}`:              "t00000.tif",
		`{"type":"LineString","coordinates":[[50,50],[60,60]]}`:                                                                                             "",
		`{"type":"MultiPoint","coordinates":[[179,0],[-179,0]]}`:                                                                                            "",
		`{"type":"LineString","coordinates":[[-1.5,-1.5]]}`:                                                                                                 "wrong_type",
		`{"type":"LineString","coordinates":[]}`:                                                                                                            "wrong_type",
		`{"type":"LineString","coordinates":[[0],[1]]}`:                                                                                                     "wrong_type",
		`{"type":"LineString","coordinates":[0,0]}`:                                                                                                         "wrong_type",
		`{"type":"LineString"}`:                                                                                              "wrong_type",
		`{"type":"MultiPoint","coordinates":[]}`:                                                                             "wrong_type",
		`{"type":"MultiPoint","coordinates":[[]]}`:                                                                           "wrong_type",
		`{"type":"MultiLineString","coordinates":[[]]}`:                                                                      "wrong_type",
		`{"type":"Point","coordinates":[]}`:                                                                                  "wrong_type",
		`{"type":"Point","coordinates":[null,null]}`:                                                                         "wrong_type",
		`{"type":"GeometryCollection","geometries":[]}`:                                                                      "wrong_type",
		`{"type":"GeometryCollection"}`:                                                                                      "wrong_type",
		`{"type":"GeometryCollection","geometries":[{"type":"Feature"}]}`:                                                    "wrong_type",
		`{"type":"GeometryCollection","geometries":[null]}`:                                                                  "wrong_type",
		`{"type":"Feature","geometry":{"type":"Point","coordinates":[0,0]}}`:                                                 "wrong_type",
		`{"type":"Curve","coordinates":[[0,0],[1,1]]}`:                                                                       "wrong_type",
		`{"type":"LineString","coordinates":[[0,0],[200,0]]}`:                                                                "invalid",
		`{"type":"LineString","coordinates":[[0,0],[0,91]]}`:                                                                 "invalid",
		`{"type":"MultiPoint","coordinates":[` + strings.TrimSuffix(strings.Repeat("[0.5,0.5],", 1001), ",") + `]}`:          "wrong_type",
		`{"type":"MultiPoint","coordinates":[` + strings.TrimSuffix(strings.Repeat("[0.5,0.5],", 1000), ",") + `]}`:          "t00010.tif",
		`{"type":"LineString","coordinates":[` + strings.TrimSuffix(strings.Repeat("[0.5,0.5],[0.6,0.6],", 500), ",") + `]}`: "t00010.tif",
		`{"type":"GeometryCollection","geometries":[` + strings.TrimSuffix(strings.Repeat(`{"type":"MultiPoint","coordinates":[[0.5,0.5],[0.5,0.5]]},`, 501), ",") + `]}`: "wrong_type",
	} {
		get, post := stacPath+"/search?intersects="+url.QueryEscape(geometry), `{"intersects":`+geometry+`}`
		if want == "wrong_type" || want == "invalid" {
			c.refused(400, want, "GET", get, nil)
			c.refused(400, want, "POST", stacPath+"/search", post)
			continue
		}
		byGET := itemTitles(c.must(200, "GET", get, nil))
		byPOST := itemTitles(c.must(200, "POST", stacPath+"/search", post))
		if strings.Join(byGET, " ") != want || strings.Join(byPOST, " ") != want {
			t.Errorf("%.200s finds %q and %q, want %q", geometry, byGET, byPOST, want)
		}
	}
}

// TestBoxPages: a search by a box finds files by their footprints, on full pages, and says how many there are: tiles of a
// turned grid have boxes that meet boxes which they do not meet themselves.
func TestBoxPages(t *testing.T) {
	t.Parallel()
	var files []ElevationDatasetFileMeta
	for i := range 400 {
		row, column := float64(i/20), float64(i%20)
		files = append(files, placedFile(t, fmt.Sprintf("%03d.tif", i), 25832, 10, 10, 500_000+1000*column+500*row, 10, -10, 5_300_000+1000*column-500*row))
	}
	_, c, _ := stacTree(t, files)
	search := "/search?bbox=9.1,47.85,9.15,47.9&limit=10"
	box := areaOf(mapBox{West: 9.1, South: 47.85, East: 9.15, North: 47.9})
	var want []string
	boxes := 0
	for _, m := range files {
		if m.BBox[0] <= 9.15 && m.BBox[2] >= 9.1 && m.BBox[1] <= 47.9 && m.BBox[3] >= 47.85 {
			boxes++
		}
		if box.meets(m.footprint()) {
			want = append(want, m.Path)
		}
	}
	if len(want) < 30 || boxes <= len(want) {
		t.Fatalf("%d boxes and %d footprints meet the box", boxes, len(want))
	}
	var got []string
	for next := stacPath + search; next != ""; {
		a := c.must(200, "GET", next, nil)
		got = append(got, itemTitles(a)...)
		if a.number("numberMatched") != len(want) {
			t.Errorf("numberMatched: got %d, want %d, on the page %s", a.number("numberMatched"), len(want), next)
		}
		link := linkTo(a, "next")
		if link == nil {
			break
		}
		if n := a.number("numberReturned"); n != 10 {
			t.Errorf("a page that is not the last has %d items", n)
		}
		next = link["href"].(string)[len(c.url):]
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}
