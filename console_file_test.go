package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFilePage: every path in lists and reports leads to the page of the file. The page shows what
// the file says, what was found about it, and its history. Findings are accepted by ticks.
func TestFilePage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	ts.signIn("reader", datasetRead)

	// A file whose name a shell and a browser might take for something else, and one that is cut off.
	folder := filepath.Join(ts.datasets, "tiles")
	odd := "a'$(b) #1.tif"
	whole := geographicTIFF(7, 47)
	err := errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, odd), whole, 0o644),
		os.WriteFile(filepath.Join(folder, "cut.tif"), whole[:len(whole)/2], 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
	dataset := root.addDataset("tiles")
	root.analyze(dataset, nil)
	pages := strings.TrimPrefix(dataset, "/api/v1")

	b := ts.browse("root")
	link := regexp.MustCompile(fmt.Sprintf(`href="(%s/files/\d+)"`, pages))
	linkOf := func(page, name string) string {
		t.Helper()
		for row := range strings.SplitSeq(page, "<tr>") {
			if found := link.FindStringSubmatch(row); strings.Contains(row, name) && found != nil {
				return found[1]
			}
		}
		t.Fatalf("no link to %s in\n%s", name, page)
		return ""
	}

	list := b.shows(200, "GET", pages+"/files", "")
	b.shows(200, "GET", linkOf(list, "#1.tif"), "",
		"EPSG:4326", "4 × 3", "No finding names this file.", "added", `class="hit"`,
		"/data/a%27$%28b%29%20%231.tif'")
	cut := linkOf(list, "cut.tif")
	b.shows(200, "GET", cut, "", "no_georef", "report#f-no_extent", "error")
	b.shows(200, "GET", pages+"/report", "", `href="`+cut+`"`, `<details class="accept"><summary>`)
	checkLacks(t, "report for a reader", ts.browse("reader").shows(200, "GET", pages+"/report", ""), "<details")

	// Ticks on the report accept findings together, and none is refused. The refused form is open.
	accept := pages + "/accepted"
	b.shows(422, "POST", accept, "code=no_extent&note=known", "<p>Accept these findings: must name at least one finding",
		`<details class="accept" open><summary>`, `value="known"`)
	b.goes(pages+"/report?done=saved#f-no_extent", accept, "code=no_extent&note=known&paths=cut.tif&paths=old/")
	b.shows(200, "GET", pages+"/report", "", "2 accepted", "No findings.")
	b.shows(200, "GET", cut, "", "(accepted)")

	// Somebody who may not download sees no button and no address.
	reader := ts.browse("reader")
	page := reader.shows(200, "GET", cut, "", "cut.tif")
	checkLacks(t, "page without dataset.download", page, "Download")
	checkLacks(t, "page without dataset.download", page, "/data/")
	reader.shows(404, "GET", pages+"/files/999", "")
}

// TestFileNumbers: the page of a file rounds its heights to the centimetre, and says the posting of
// the grid and the unit of both.
func TestFileNumbers(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"7":           "7",
		"-999":        "-999",
		"1000":        "1,000",
		"-1234567.50": "-1,234,567.50",
		"12345.00":    "12,345",
		"1024 tiles":  "1,024 tiles",
		"NaN":         "NaN",
	} {
		check(t, "grouped "+number, grouped(number), want)
	}

	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	folder := filepath.Join(ts.datasets, "tiles")
	slope := terrainTIFF(0, 0, func(x, y float64) float64 { return 1000.1234 + x })
	empty := terrainTIFF(1, 0, func(x, y float64) float64 { return -9999 })
	err := errors.Join(
		os.MkdirAll(folder, 0o755),
		os.WriteFile(filepath.Join(folder, "a.tif"), slope.build(), 0o644),
		os.WriteFile(filepath.Join(folder, "b.tif"), empty.build(), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
	dataset := root.addDataset("tiles")
	root.analyze(dataset, withHeights)

	b := ts.browse("root")
	page := strings.TrimPrefix(dataset, "/api/v1") + "/files/"
	files := root.files(dataset)
	b.shows(200, "GET", fmt.Sprint(page, files["a.tif"].ID), "",
		"<dd>10 m per column", "-10 m per row</dd>", "does not say in which unit",
		"<dt>Lowest</dt><dd>1,005.12</dd>", "<dt>Highest</dt><dd>1,315.12</dd>",
		"<dd>500000, 5399680, 500320, 5400000</dd>", "<dd>0 of 1,024 samples</dd>")
	void := b.shows(200, "GET", fmt.Sprint(page, files["b.tif"].ID), "", "<dd>1,024 of 1,024 samples</dd>")
	checkLacks(t, "page without heights", void, "Lowest")
}

// TestHealth: the start page shows the datasets with problems first, and the steps of a new
// administrator until they are done.
func TestHealth(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	b := ts.browse("root")
	b.shows(200, "GET", "/", "", "First steps", "Register a directory", "✓ There are 2 accounts.")

	// A dataset without a fault, one with a file that is cut off, and one whose directory goes.
	file := geographicTIFF(7, 47)
	for name, content := range map[string][]byte{"fine": file, "broken": file[:60], "gone": file} {
		dir := filepath.Join(ts.datasets, name)
		err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "a.tif"), content, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		root.analyze(root.addDataset(name), nil)
	}
	if err := os.RemoveAll(filepath.Join(ts.datasets, "gone")); err != nil {
		t.Fatal(err)
	}
	gone := root.must(200, "GET", "/api/v1/datasets?name=gone", nil).items()[0]["id"]
	root.analyze(fmt.Sprint("/api/v1/datasets/", gone), nil)
	root.addDataset(".")

	page := b.shows(200, "GET", "/", "")
	order := regexp.MustCompile(`class="health (\w+)" href="[^"]*">([^<]*)<`).FindAllStringSubmatch(page, -1)
	var got []string
	for _, found := range order {
		got = append(got, found[1]+" "+found[2])
	}
	want := "bad directory unreachable, bad 1 error, dim not checked, good fine"
	check(t, "health", strings.Join(got, ", "), want)
	checkHas(t, "page", page, fmt.Sprintf(`<td class="n">%d B</td>`, len(file)))
	checkLacks(t, "page", page, "First steps")
}
