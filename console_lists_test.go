package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVisibleNames: a file name shows the characters that are not seen, and those that turn the text around them.
func TestVisibleNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Höhe 東京 👩‍🚀 'a' \"b\" \\.tif": "Höhe 東京 👩‍🚀 'a' \"b\" \\.tif",
		"\u202egnp.fit.tif":            `\u202egnp.fit.tif`,
		"a\nb\tc\x00\u200f.tif":        `a\nb\tc\x00\u200f.tif`,
	} {
		check(t, "the shown name", visibleName(name), want)
	}
}

// TestLists: the page of files has their number, and headings that sort them. Each page but the first leads back to it.
// The report has a map, and the missing tiles lead to their place.
func TestLists(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	for i := range 61 {
		if i == 30 {
			continue
		}
		name := fmt.Sprintf("t%02d.tif", i)
		if i == 7 {
			name = "\u202e" + name
		}
		os.WriteFile(filepath.Join(ts.datasets, "set", name), geographicTIFF(float64(i%8), 46.75+0.75*float64(i/8)), 0o644)
	}
	root.analyze(root.addDataset("set"), nil)
	b := ts.browse("root")

	page := b.shows(200, "GET", "/datasets/1/files?q=tif&sort=-modified", "", "60 files.", `<th scope="col" aria-sort="descending"><a href="/datasets/1/files?q=tif&amp;sort=-modified">Changed</a>`,
		`<a href="/datasets/1/files?q=tif&amp;sort=path">File</a>`, `rel="next"`)
	checkLacks(t, "the first page", page, "First page")
	_, next, _ := strings.Cut(page, `<a rel="next" href="`)
	next, _, _ = strings.Cut(next, `"`)
	b.shows(200, "GET", strings.ReplaceAll(next, "&amp;", "&"), "", `<a href="/datasets/1/files?q=tif&amp;sort=-modified">First page</a>`)
	b.shows(200, "GET", "/datasets/1/files?q=t07", "", `<bdi>\u202et07.tif</bdi>`)
	b.shows(200, "GET", "/files?q=t01", "", "1 file.", `>Dataset</th>`)

	tile := `href="/datasets/1?bbox=`
	report := b.shows(200, "GET", "/datasets/1/report", "", `class="moving"`, tile, "What was not examined")
	checkLacks(t, "the report", report, `class="mapnav"`)
	_, link, _ := strings.Cut(report, `href="/datasets/1?bbox=`)
	link, _, _ = strings.Cut(link, "#")
	b.shows(200, "GET", "/datasets/1?bbox="+link, "", "missing cells: ", `class="missing"`)
}
