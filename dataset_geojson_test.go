package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
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
		{"the globe from 0", placedFile(t, "", 4326, 3.6, 0, 0, 0, -3.6, 90), 2},
		{"more than the globe", placedFile(t, "", 4326, 3.7, 0, -180, 0, -3.6, 90), 1},
		{"to 180", placedFile(t, "", 4326, 0.01, 0, 179, 0, -0.02, 47), 1},
		{"from -180", placedFile(t, "", 4326, 0.01, 0, -180, 0, -0.02, 47), 1},
		{"UTM", placedFile(t, "", 32632, 1000, 0, 400_000, 0, -1000, 5_300_000), 1},
		{"UTM, turned", placedFile(t, "", 32632, 700, 700, 500_000, 700, -700, 5_300_000), 1},
		{"UTM across 180°", placedFile(t, "", 32660, 1000, 0, 800_000, 0, -1000, 1_000_000), 2},
		{"UTM at the pole", placedFile(t, "", 32633, 1000, 0, 450_000, 0, -1000, 10_020_000), 2},
		{"Web Mercator", placedFile(t, "", 3857, 1000, 0, 20_000_000, 0, -1000, 1_000_000), 2},
	} {
		parts, area := footprint(test.file), 0.0
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
	c := ts.signIn("ada", datasetRead)
	files := worldFiles(t, rand.New(rand.NewPCG(3, 4)), 2500)
	files[7].Status, files[7].BBox, files[7].Reason = fileStatusNoBBox, nil, new("no <CRS>")
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
		"": 2499, "?all=1": 2500, "?all=1&status=no_bbox": 1, "?status=no_bbox": 0, "?q=f00001": 1, "?q=nothing": 0, "?crs=EPSG:3857": 250,
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
		if f.Properties["location"] != `tiles "A" & <B>/`+f.Properties["path"].(string) {
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
