package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestFootprint: outlines are counter-clockwise, within ±180 and ±90, closed, of the file's own area, and as wide as its box.
func TestFootprint(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		file  ElevationDatasetFileMeta
		parts int
	}{
		{"degrees", placedFile(t, "", 4326, 0.01, 0, 7, 0, -0.02, 47), 1},
		{"upside down", placedFile(t, "", 4326, 0.01, 0, 7, 0, 0.02, 46), 1},
		{"across 180°", placedFile(t, "", 4326, 0.02, 0, 179, 0, -0.02, 47), 2},
		{"counted from 0", placedFile(t, "", 4326, 0.02, 0, 200, 0, -0.02, 47), 1},
		{"the globe", placedFile(t, "", 4326, 3.6, 0, -180, 0, -3.6, 90), 1},
		{"the globe from 0", placedFile(t, "", 4326, 3.6, 0, 0, 0, -3.6, 90), 1},
		{"more than the globe", placedFile(t, "", 4326, 3.7, 0, -180, 0, -3.6, 90), 1},
		{"to 180", placedFile(t, "", 4326, 0.01, 0, 179, 0, -0.02, 47), 1},
		{"from -180", placedFile(t, "", 4326, 0.01, 0, -180, 0, -0.02, 47), 1},
		{"UTM", placedFile(t, "", 32632, 1000, 0, 400_000, 0, -1000, 5_300_000), 1},
		{"UTM, turned", placedFile(t, "", 32632, 700, 700, 500_000, 700, -700, 5_300_000), 1},
		{"UTM across 180°", placedFile(t, "", 32660, 1000, 0, 800_000, 0, -1000, 1_000_000), 2},
		{"UTM at the pole", placedFile(t, "", 32633, 1000, 0, 450_000, 0, -1000, 10_020_000), 1},
		{"Web Mercator", placedFile(t, "", 3857, 1000, 0, 20_000_000, 0, -1000, 1_000_000), 2},
	} {
		parts, area := test.file.footprint(), 0.0
		if len(parts) != test.parts {
			t.Errorf("%s: %d parts, want %d: %v", test.name, len(parts), test.parts, parts)
		}
		west, south, east, north := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
		for _, part := range parts {
			ring := part[0]
			area += signedArea(ring) / 2
			if len(ring) < 4 || ring[0] != ring[len(ring)-1] || signedArea(ring) <= 0 {
				t.Errorf("%s: ring %v", test.name, ring)
			}
			for _, p := range ring {
				lon := p[0]
				if test.file.BBox[0] > test.file.BBox[2] && lon < 0 {
					lon += 360
				}
				west, east, south, north = min(west, lon), max(east, lon), min(south, p[1]), max(north, p[1])
				if math.Abs(p[0]) > 180 || math.Abs(p[1]) > 90 {
					t.Errorf("%s: %v", test.name, p)
				}
			}
		}
		box := test.file.BBox
		span := math.Mod(box[2]-box[0]+360, 360)
		if span == 0 {
			span = 360
		}
		full := span * (box[3] - box[1])
		least, off := 0.97*full, max(math.Abs(west-box[0]), math.Abs(math.Mod(east-box[2]+540, 360)-180), math.Abs(south-box[1]), math.Abs(north-box[3]))
		if strings.Contains(test.name, "turned") {
			least = 0.4 * full
		} else if strings.Contains(test.name, "UTM") {
			least = 0.4 * full
		}
		if area > full*(1+1e-6) || area < least || off > 2e-3 {
			t.Errorf("%s: area %v of %v, %v degrees off the box %v", test.name, area, full, off, box)
		}
	}
}

// awkwardFiles are rasters whose footprints are hard to draw: around poles, beside them, all around the globe, turned, bent
// and across 180°. The first 50 are one of each kind, many more follow.
func awkwardFiles(t testing.TB, n int) (files []ElevationDatasetFileMeta) {
	random := rand.New(rand.NewPCG(7, 8))
	codes, transforms := polarGrids(t, random, n)
	add := func(code int, transform ...float64) {
		if _, err := boxInDegrees(crsOf(t, code), [6]float64(transform), 100, 50); err == nil { // else it is off the globe
			files = append(files, placedFile(t, fmt.Sprintf("%05d.tif", len(files)), code, transform...))
		}
	}
	for _, west := range []float64{0, -180, -0.125, -180.25, 20, -360, 179.5} {
		add(4326, 3.6, 0, west, 0, -3.6, 90) // the globe
		add(4326, 3.6, 0, west, 0, -1, 25)   // its middle
		add(4326, 3.5, 0, west, 0, -3.6, 90) // nearly all of it
		add(4087, 400_000, 0, west*111_319, 0, -2e5, 5e6)
	}
	for _, west := range []float64{0, -20037508.342789244, -20037508.34, 19.8e6} {
		add(3857, 400750.16685578486, 0, west, 0, -400_000, 1e7)
		add(3857, 4007.5, 0, west, 0, -4000, 1e7)
	}
	for i, code := range codes {
		add(code, transforms[i][:]...)
		angle, size := random.Float64()*2*math.Pi, math.Pow(10, 2+random.Float64()*2.3)
		sin, cos := math.Sincos(angle)
		switch i % 4 {
		case 0: // turned, at the edges of zones that meet at 180°
			add(32601+59*random.IntN(2)+100*random.IntN(2), size*cos, size*sin, 500_000+(random.Float64()*2-1)*600_000, size*sin, -size*cos, random.Float64()*9e6)
		case 1: // bent: long columns or lines along 180°
			tall := 100 * (1 + 300*random.Float64())
			add(32601+59*random.IntN(2), 1000, 0, 100_000+random.Float64()*700_000, 0, -tall, tall*50*random.Float64())
		case 2: // turned and sheared, in degrees
			add(4326, cos, sin*random.Float64(), random.Float64()*360-180, sin, -cos, random.Float64()*60-30)
		case 3: // in cones and planes, anywhere
			code := [...]int{3035, 2154, 3034, 102, 3832, 3577, 3978, 3338}[random.IntN(8)]
			if code != 102 {
				add(code, 10*size*cos, 10*size*sin, random.Float64()*4e6, 10*size*sin, -10*size*cos, random.Float64()*4e6)
			}
		}
	}
	return files
}

// TestFootprintsAreValid: rings do not touch or cross themselves, and parts share no edge (OGC Simple Features, section 6.1.14).
func TestFootprintsAreValid(t *testing.T) {
	t.Parallel()
	files := awkwardFiles(t, 600)
	turns := 0
	for _, m := range files {
		parts := m.footprint()
		fault := faultOf(parts)
		if len(parts) == 0 {
			fault = "has no part"
		}
		if m.BBox[2]-m.BBox[0] == 360 {
			turns++
			if len(parts) != 1 {
				fault = fmt.Sprint("goes all around the globe in parts: ", len(parts))
			}
		}
		if fault != "" {
			t.Errorf("%s of %s, %v, box %v: %s", m.Path, *m.CRS, m.Transform, m.BBox, fault)
		}
	}
	if len(files) < 1000 || turns < 100 {
		t.Errorf("%d files, %d all around the globe", len(files), turns)
	}
}

// TestFeatureBoxes: the box of a feature holds its geometry (RFC 7946, section 5), and is hardly larger than the row's.
func TestFeatureBoxes(t *testing.T) {
	t.Parallel()
	extended := 0
	for _, m := range awkwardFiles(t, 600) {
		box := featureOf(m, nil)["bbox"].([]float64)
		for i, grown := range [4]float64{m.BBox[0] - box[0], m.BBox[1] - box[1], box[2] - m.BBox[2], box[3] - m.BBox[3]} {
			if grown < 0 || grown > 0.25 {
				t.Errorf("%s: the box %v has become %v, side %d", m.Path, m.BBox, box, i)
			}
			if grown > 1e-6 {
				extended++
			}
		}
		for _, part := range m.footprint() {
			for _, p := range part[0] {
				isInside := p[0] >= box[0] && p[0] <= box[2]
				if box[0] > box[2] {
					isInside = p[0] >= box[0] || p[0] <= box[2]
				}
				if !isInside || p[1] < box[1] || p[1] > box[3] {
					t.Errorf("%s: %v lies outside of %v", m.Path, p, box)
				}
			}
		}
	}
	if extended == 0 {
		t.Error("no box of a row was too small")
	}
}

// faultOf says why a footprint is not valid, or "".
func faultOf(parts multiPolygon) string {
	type segment struct {
		a, b    position
		part, i int
	}
	var segments []segment
	for part := range parts {
		ring := parts[part][0]
		for i := range len(ring) - 1 {
			segments = append(segments, segment{ring[i], ring[i+1], part, i})
		}
	}
	side := func(a, b, c position) float64 { return (b[0]-a[0])*(c[1]-a[1]) - (b[1]-a[1])*(c[0]-a[0]) }
	within := func(a, b, c position) bool { // of c on the line through a and b
		return min(a[0], b[0]) <= c[0] && c[0] <= max(a[0], b[0]) && min(a[1], b[1]) <= c[1] && c[1] <= max(a[1], b[1])
	}
	for i, s := range segments {
		last := len(parts[s.part][0]) - 2
		for _, o := range segments[i+1:] {
			if max(s.a[0], s.b[0]) < min(o.a[0], o.b[0]) || max(o.a[0], o.b[0]) < min(s.a[0], s.b[0]) {
				continue
			}
			sides := [4]float64{side(s.a, s.b, o.a), side(s.a, s.b, o.b), side(o.a, o.b, s.a), side(o.a, o.b, s.b)}
			crossing := sides[0]*sides[1] < 0 && sides[2]*sides[3] < 0
			touching := 0 // ends of one on the other
			for k, c := range [4]position{o.a, o.b, s.a, s.b} {
				a, b := s.a, s.b
				if k >= 2 {
					a, b = o.a, o.b
				}
				if sides[k] == 0 && within(a, b, c) {
					touching++
				}
			}
			neighbours := s.part == o.part && (o.i == s.i+1 || s.i == 0 && o.i == last)
			switch {
			case crossing:
				return fmt.Sprintf("%v crosses %v", s, o)
			case s.part == o.part && neighbours && touching > 2, s.part == o.part && !neighbours && touching > 0:
				return fmt.Sprintf("%v touches %v", s, o)
			case s.part != o.part && touching > 2, s.part != o.part && touching == 2 && s.a != o.a && s.a != o.b && s.b != o.a && s.b != o.b:
				return fmt.Sprintf("%v shares a part of %v", s, o)
			}
		}
	}
	return ""
}

// collection is a FeatureCollection as a client reads it.
type collection struct {
	Type, Name string
	Features   []struct {
		Type     string
		ID       int64
		BBox     []float64
		Geometry *struct {
			Type        string
			Coordinates [][][][2]float64
		}
		Properties map[string]any
	}
}

// TestFootprints reads the collection over HTTP, plain and in gzip, with and without filters, of more files than a batch.
func TestFootprints(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	files := worldFiles(t, rand.New(rand.NewPCG(3, 4)), 2100)
	files[7].Status, files[7].BBox, files[7].Reason = fileStatusNoBBox, nil, new("no <CRS>")
	files[8].Path, files[9].Path = encodeName(`d1\f.tif`), encodeName("d1/\xff.tif")
	path := fmt.Sprintf("/api/v1/datasets/%d/footprints.geojson", ts.addFiles(`tiles "A" & <B>`, files))
	get := func(query string, headers ...string) (all collection) {
		t.Helper()
		a := c.must(200, "GET", path+query, nil, headers...)
		var body io.Reader = bytes.NewReader(a.body)
		if a.header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		if err := json.NewDecoder(body).Decode(&all); err != nil || a.header.Get("Content-Type") != "application/geo+json" || a.header.Get("Vary") != "Accept-Encoding" {
			t.Fatal(err, a.header)
		}
		if zipped := a.header.Get("Content-Encoding") == "gzip"; zipped != (strings.Contains(fmt.Sprint(headers), "gzip") && !strings.Contains(fmt.Sprint(headers), "q=0]")) {
			t.Errorf("%v: in gzip: %v", headers, zipped)
		}
		return all
	}
	for query, want := range map[string]int{
		"": 2099, "?all=1": 2100, "?all=1&status=no_bbox": 1, "?status=no_bbox": 0, "?q=f00001": 1, "?q=nothing": 0, "?crs=EPSG:3857": 210,
	} {
		for _, encoding := range []string{"identity", "gzip, br", "deflate, gzip;q=0"} {
			all := get(query, "Accept-Encoding: "+encoding)
			if len(all.Features) != want || all.Type != "FeatureCollection" || all.Name != `tiles "A" & <B>` {
				t.Errorf("%s: %s %s of %d, want %d", query, all.Type, all.Name, len(all.Features), want)
			}
		}
	}
	for i, f := range get("?all=1").Features {
		if f.Type != "Feature" || f.ID == 0 || (f.Geometry == nil) != (f.Properties["status"] == "no_bbox") || f.Geometry != nil && f.Geometry.Type != "MultiPolygon" {
			t.Fatalf("feature %d: %+v", i, f)
		}
		want := f.Properties["path"].(string)
		if want == `d1\\f.tif` {
			want = `d1\f.tif` // the name of the file; JSON cannot hold the other's
		}
		if f.Properties["location"] != `tiles "A" & <B>/`+want {
			t.Errorf("location %v", f.Properties["location"])
		}
		for name, value := range f.Properties {
			switch value.(type) {
			case map[string]any, []any:
				t.Errorf("property %s is not flat", name)
			}
		}
	}
	c.refused(422, "invalid", "GET", path+"?all=2", nil)
	c.refused(422, "invalid", "GET", path+"?point=0,91", nil, "Accept-Encoding: gzip")
	c.refused(404, "not_found", "GET", "/api/v1/datasets/99/footprints.geojson", nil)
}

// TestStreamIsCut: an answer whose time limit ends before its last bytes are sent is an error, so that the connection is cut.
func TestStreamIsCut(t *testing.T) {
	t.Parallel()
	for _, accepted := range []string{"identity", "gzip"} {
		ctx, cancel := context.WithCancel(t.Context())
		r := computing(t, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		r.Header.Set("Accept-Encoding", accepted)
		err := writeStream(httptest.NewRecorder(), r, "text/plain", func(out io.Writer) error {
			_, err := io.WriteString(out, "all that there is")
			cancel()
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", accepted, err)
		}
	}
}
