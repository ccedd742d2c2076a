package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCoverage: the picture is well-formed XML of bounded size whatever is in it, and its headers let it do nothing.
func TestCoverage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	random := rand.New(rand.NewPCG(3, 4))
	world := worldFiles(t, random, 6000)
	noisy := make([]ElevationDatasetFileMeta, 30_000) // nothing that could be joined
	for i := range noisy {
		noisy[i] = world[i%6000]
		noisy[i].Path = fmt.Sprint(i)
		lon, lat := random.Float64()*359-180, random.Float64()*179-90
		noisy[i].BBox = []float64{lon, lat, lon + 0.1, lat + 0.1}
		noisy[i].ResolutionM = new(random.Float64() * 150)
	}
	utm := func(n int) (files []ElevationDatasetFileMeta) {
		for i := range n {
			files = append(files, placedFile(t, fmt.Sprint(i), 32632, 10, 0, 400_000+float64(i%40)*1000, 0, -20, 5_300_000+float64(i/40)*1000))
		}
		return files
	}
	across := []ElevationDatasetFileMeta{placedFile(t, "a", 4326, 0.01, 0, 178.5, 0, -0.02, 1), placedFile(t, "b", 4326, 0.01, 0, 179.5, 0, -0.02, 1),
		placedFile(t, "c", 4326, 0.01, 0, -179.5, 0, -0.02, 1)}
	for _, test := range []struct {
		name  string
		files []ElevationDatasetFileMeta
		shows []string
	}{
		{"empty", nil, []string{"no files"}},
		{`</svg><script>alert(1)</script> & "quotes"`, utm(1), []string{"1 files (ok: 1)", "10 m to 30 m: 1"}},
		{"noisy", noisy, []string{"30000 files", "100 m and more: "}},
		{"world", world, []string{"6000 files", "0°", "30°E", "60°W"}},
		{"many", utm(1600), []string{"1600 files", "48°N"}},
		{"across", across, []string{"extent: 178.5°E 0° to 178.5°W 1°N", ">180°E<", ">179°W<"}},
	} {
		dataset := fmt.Sprintf("/api/v1/datasets/%d/coverage.svg", ts.addFiles(test.name, test.files))
		for _, query := range []string{"", "?color=resolution", "?color=status"} {
			a := c.do("GET", dataset+query, nil)
			if a.status != 200 {
				t.Fatal(ts.log)
			}
			text := ""
			for decoder := xml.NewDecoder(bytes.NewReader(a.body)); ; {
				token, err := decoder.Token()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v\n%.500s", test.name, err, a.body)
				}
				if element, ok := token.(xml.StartElement); ok && element.Name.Local == "script" {
					t.Errorf("%s: a script", test.name)
				}
				if data, ok := token.(xml.CharData); ok {
					text += ">" + string(data) + "<"
				}
			}
			for _, want := range append(test.shows, test.name) {
				if query != "?color=status" && !strings.Contains(text, want) {
					t.Errorf("%s: does not show %q", test.name, want)
				}
			}
			if len(a.body) > 1_000_000 || a.header.Get("Content-Type") != "image/svg+xml" ||
				a.header.Get("Content-Security-Policy") != "default-src 'none'; style-src 'unsafe-inline'; sandbox" {
				t.Errorf("%s: %d bytes, %v", test.name, len(a.body), a.header)
			}
			for _, bad := range []string{"NaN", "Inf", "ZgotmplZ"} {
				if strings.Contains(string(a.body), bad) {
					t.Errorf("%s: %s", test.name, bad)
				}
			}
		}
		c.refused(422, "invalid", "GET", dataset+"?color=red", nil)
	}
}
