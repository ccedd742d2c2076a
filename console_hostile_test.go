package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestHostileForms: each of 3,000 hostile forms and queries, spread over every page, is answered, and none with a 5xx
// but 503.
func TestHostileForms(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	os.WriteFile(filepath.Join(ts.datasets, "set", "a.tif"), geographicTIFF(7, 46), 0o644)
	setup := ts.signIn("setup", "all")
	setup.analyze(setup.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location"), nil)
	setup.publish("A message")
	ids := []string{"1", "2", "3", ts.addUser("victim", datasetRead), setup.credentialID(), "wiki.edit", "x"}

	var names []string // of all fields and parameters
	for _, name := range []string{"base", "public", "account", "admin", "datasets"} {
		content, err := consoleFiles.ReadFile("console/" + name + ".html")
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?:name="|(?:Field|Choice|Choices|Boxes) [^ ]+ ")([a-z_]+)"`).FindAllStringSubmatch(string(content), -1) {
			names = append(names, found[1])
		}
	}

	pages := slices.DeleteFunc(ts.routes(), func(rt route) bool { return !rt.isPage() })
	random := rand.New(rand.NewPCG(7, 19))
	statuses := map[int]int{}
	requests := soakOr(3200, 1000)
	var b *browser
	for i := range requests {
		if i%20 == 0 { // requests may have ended these
			ts.exec(`DELETE FROM throttles`)
			ts.exec(`DELETE FROM users WHERE username = 'root'`)
			ts.exec(`DELETE FROM retired_usernames`)
			ts.addUser("root", "all")
			b = ts.browse("root")
		}

		rt := pages[i%len(pages)]
		path := regexp.MustCompile(`{[\w$]+}`).ReplaceAllStringFunc(rt.path, func(part string) string {
			if part == "{$}" {
				return ""
			}
			if random.IntN(8) == 0 {
				return url.PathEscape(hostileText(random))
			}
			return ids[random.IntN(len(ids))]
		})

		values := url.Values{}
		for range random.IntN(12) {
			name := names[random.IntN(len(names))]
			values.Add(name, []string{
				hostileText(random), "root", "1", "active", "on", "2026-01-02T03:04", "dataset.read", testPassword,
			}[random.IntN(8)])
		}

		query := url.Values{}
		for _, name := range strings.Fields(rt.query) {
			if random.IntN(3) == 0 {
				query.Set(name, []string{
					hostileText(random), "1", "7,46,8,47", "-180,-90,180,90", "170,-10,-170,10", "in", "out", "pan",
				}[random.IntN(8)])
			}
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}

		form := rawForm + values.Encode()
		if random.IntN(30) == 0 {
			form = rawForm + []string{"%zz", "a=%ff", "&&&;;", "=", "\xff", strings.Repeat("a=b&", 10000)}[random.IntN(6)]
		}

		a := b.page(rt.method, path, form)
		statuses[a.status]++
		if a.status >= 500 && a.status != 503 {
			t.Errorf("%s %s %q: %d\n%s", rt.method, path, form, a.status, ts.log)
			return
		}
	}

	t.Logf("statuses: %v", statuses)
	if statuses[200] < requests*3/32 || statuses[303] < requests/32 || statuses[422] < requests/32 {
		t.Error("the requests do not reach the pages")
	}
}

// TestMapPlaces: a pixel of the picture is the position that was drawn there, and a move keeps it where it should be.
func TestMapPlaces(t *testing.T) {
	t.Parallel()
	for _, box := range []mapBox{
		{West: 7, South: 46, East: 15, North: 51},
		{West: 170, South: -20, East: 190, North: 10},
		{West: -180, South: -90, East: 180, North: 90},
		{West: 10, South: 70, East: 40, North: 85},
		{West: -60, South: -88, East: 90, North: -65},
		{West: 0, South: 88, East: 360, North: 90},
	} {
		frame := frameFor(box)
		for _, part := range []float64{0.1, 0.5, 0.8} {
			lon := box.West + part*(box.East-box.West)
			lat := box.South + part*(box.North-box.South)
			gotLon, gotLat := frame.position(frame.at(lon, lat))
			if math.Abs(math.Remainder(gotLon-lon, 360)) > 1e-6 || math.Abs(gotLat-lat) > 1e-6 {
				t.Errorf("%v: %v %v is found at %v %v", box, lon, lat, gotLon, gotLat)
			}
		}
	}

	box := mapBox{West: 7, South: 46, East: 15, North: 50}
	for scale, want := range map[float64]mapBox{
		0.5: {West: 7, South: 46, East: 11, North: 48},
		1:   {West: 5, South: 45, East: 13, North: 49},
		2:   {West: 1, South: 43, East: 17, North: 51},
		100: {West: -391, South: -90, East: 409, North: 90},
	} {
		check(t, fmt.Sprint("the box around 9, 47, times ", scale), box.around(9, 47, scale), want)
	}
	check(t, "a box as a query", mapBox{West: 179.123456, South: -1.5, East: 181.23456, North: 1}.query(), "179.1235,-1.5,-178.7654,1")
}

// TestMapPage: a click on the map lists the files at that position, the finest first, and the part of the picture that
// the page shows has their names.
func TestMapPage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "set"), 0o755)
	for lon := range 3 {
		os.WriteFile(filepath.Join(ts.datasets, "set", fmt.Sprintf("t%d.tif", lon)), geographicTIFF(7+float64(lon), 46.75), 0o644)
	}

	root := ts.signIn("root", "all")
	root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "set", "path": "set"}).header.Get("Location"), nil)
	b := ts.browse("root")
	whole := b.shows(200, "GET", "/datasets/1",
		"", `data-part="/datasets/1?bbox=7,46,10,46.75"`, `<title>t1.tif</title>`,
		`<a href="/datasets/1?bbox=7%2c46%2c10%2c46.75&amp;point=8.5%2c46.375#map">`)
	if strings.Contains(whole, "Files at 8.5") || strings.Contains(whole, `class="hit"`) {
		t.Error("files are listed without a click")
	}

	x, y := frameFor(mapBox{7, 46, 10, 46.75}).at(8.5, 46.4)
	clicked := fmt.Sprintf("/datasets/1?bbox=7,46,10,46.75&at.x=%.0f&at.y=%.0f", x, y)
	shown := b.shows(200, "GET", clicked, "", "t1.tif", "Files at 8.5")
	for name, want := range map[string]bool{"t0.tif": false, "t1.tif": true, "t2.tif": false} {
		check(t, name+" is listed", strings.Contains(shown, name+"</bdi>"), want)
	}
	_, hits, _ := strings.Cut(shown, `class="hit"`)
	hits, _, _ = strings.Cut(hits, "/>")
	check(t, "marked outlines", strings.Count(hits, "M"), 1)
	if !strings.Contains(shown, fmt.Sprintf(`<circle class="place" cx="%.0f" cy="%.0f"`, x, y)) {
		t.Errorf("the position is not marked: %s", shown)
	}

	// The part moves around a pixel or a position, which stays marked.
	b.shows(200, "GET", clicked+"&scale=0.5", "", `data-part="/datasets/1?bbox=7.75`)
	b.shows(200, "GET", "/datasets/1?point=0,0", "", "No file covers this position")
	b.shows(200, "GET", "/datasets/1?bbox=7,46,8,47&point=47.5N+9.5E&scale=1", "", `?bbox=9,47,10,48&amp;point=9.5,47.5"`)
	b.shows(422, "GET", "/datasets/1?point=9.5,100", "", "latitudes")
	for _, odd := range []string{"scale=NaN", "scale=-1", "scale=1e-300&at.x=1&at.y=1", "scale=999999", "at.x=1e300&at.y=1", "at.x=Inf&at.y=-Inf&scale=2"} {
		b.shows(200, "GET", "/datasets/1?"+odd, "", `id="map"`)
	}
	b.shows(422, "GET", "/datasets/1?bbox=7,46,10,400", "", "longitudes go from")
	picture := b.must(200, "GET", "/api/v1/datasets/1/coverage.svg?bbox=8,46,9,46.75", nil, "Cookie: "+b.cookie)
	if !strings.Contains(string(picture.body), ">t1.tif</text>") || strings.Contains(string(picture.body), ">t0.tif</text>") {
		t.Errorf("%s", picture.body)
	}

	root.refused(422, "invalid", "GET", "/api/v1/datasets/1/coverage.svg?bbox=1,2,3,400", nil)

	// The view is so narrow that two neighbouring numbers are further apart than the steps between its meridians.
	root.must(200, "GET", "/api/v1/datasets/1/coverage.svg?bbox=150,80,150.00000000000003,81", nil)
}

// TestMapInPage: a page with a map stays below 60 kB, also where there are many files, gaps, and a coast with many islands.
// Many files have no links.
func TestMapInPage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	var world, dense []ElevationDatasetFileMeta
	for i := range 36 * 16 {
		if i%3 > 0 {
			world = append(world, placedFile(t, fmt.Sprintf("a rather long name of a file %d.tif", i), 4326, 1, 0, float64(i%36*10-180), 0, -1, float64(i/36*10-70)))
		}
	}
	for i := range 145 {
		dense = append(dense, placedFile(t, fmt.Sprintf("%s %d.tif", strings.Repeat("<&>", 20), i), 4326, 0.1, 0, float64(5+i%12), 0, -0.1, float64(58+i/12)))
	}
	ts.signIn("root", "all")
	b := ts.browse("root")
	for name, files := range map[string][]ElevationDatasetFileMeta{"world": world, "dense": dense} {
		page := b.shows(200, "GET", fmt.Sprintf("/datasets/%d", ts.addChecked(name, files)), "", `id="map"`)
		if len(page) > 60_000 {
			t.Errorf("the page of %s has %d bytes", name, len(page))
		}
	}
}

// TestMapNotDrawn: a page whose map cannot be drawn, because its request has ended or waits for a core too long, answers
// the reason.
func TestMapNotDrawn(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	r := computing(t, httptest.NewRequestWithContext(ctx, "GET", "/datasets/1", nil))
	cancel()

	api := &apiReader{console: ts.console, r: r}
	m := api.drawMap(dataset{}, mapBox{West: 7, South: 46, East: 8, North: 47})
	m.addHit(extent{})
	m.addPlace("7,46", []datasetFile{{}})
	check(t, "reason", errors.Is(api.err, context.Canceled), true)
}

// TestZoomedMap: a part of the map has every file that its frame shows. The page of the whole map names the files that lie
// far from the others.
func TestZoomedMap(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	for i, set := range [][]byte{geographicTIFF(179.5, 1), geographicTIFF(9, 45.5)} {
		name := fmt.Sprint("set", i)
		os.Mkdir(filepath.Join(ts.datasets, name), 0o755)
		os.WriteFile(filepath.Join(ts.datasets, name, "below.tif"), set, 0o644)
		if i == 1 {
			for at, content := range map[string][]byte{
				"above.tif": geographicTIFF(9, 46.25), "east.tif": geographicTIFF(10, 45.5), "far.tif": geographicTIFF(-70, 30), "copy.tif": set,
			} {
				os.WriteFile(filepath.Join(ts.datasets, name, at), content, 0o644)
			}
		}
		root.analyze(root.must(201, "POST", "/api/v1/datasets", map[string]string{"name": name, "path": name}).header.Get("Location"), nil)
	}

	// The view lies in below.tif; the frame is higher.
	picture := string(root.must(200, "GET", "/api/v1/datasets/2/coverage.svg?bbox=9.2,45.45,9.8,45.49", nil).body)
	if !strings.Contains(picture, "<title>above.tif</title>") || strings.Contains(picture, "<title>east.tif</title>") {
		t.Errorf("the map of a view lacks a file, or has too many: %s", picture)
	}
	b := ts.browse("root")
	b.shows(200, "GET", "/datasets/2", "", "1 file far from the others", "far.tif</a> at 70°W 29.25°N")

	dateLine := string(root.must(200, "GET", "/api/v1/datasets/1/coverage.svg", nil).body)
	_, here, _ := strings.Cut(dateLine, `class="here" d="`)
	if here, _, _ = strings.Cut(here, `"`); strings.Contains(here, "h240") || strings.Count(here, "M") != 2 {
		t.Errorf("where it lies, at the date line: %s", here)
	}
}

// TestMapShown: the box that a map shows reaches to its edge, and over the pole.
func TestMapShown(t *testing.T) {
	t.Parallel()
	for _, box := range []mapBox{
		{West: 7, South: 46, East: 15, North: 46.1},
		{West: 170, South: -20, East: 190, North: 10},
		{West: 10, South: 70, East: 11, North: 70.1},
		{West: -60, South: -88, East: 90, North: -65},
		{West: -180, South: -90, East: 180, North: 90},
	} {
		frame := frameFor(box)
		shown := frame.shown()
		for range 1000 {
			lon, lat := frame.position(60+720*rand.Float64(), 60+540*rand.Float64())
			isIn := shown.South-0.01 <= lat && lat <= shown.North+0.01 && math.Mod(lon-shown.West+720, 360) <= shown.East-shown.West+0.01
			if math.Abs(lat) <= 90 && !isIn {
				t.Fatalf("%v: the map shows %v %v, which is not in %v", box, lon, lat, shown)
			}
		}
	}
}

// TestUnreadableForms: a form that is too large and one that does not arrive whole are told apart, as bodies of the API are.
func TestUnreadableForms(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	for body, want := range map[string][2]string{
		"Content-Length: 2000000\r\n\r\nusername=" + strings.Repeat("x", 1_999_991): {"413", "The form is too large."},
		"Transfer-Encoding: chunked\r\n\r\nzz\r\n":                                  {"400", "The form did not arrive whole."},
	} {
		// Cairn need not read all of it.
		conn := ts.raw()
		go io.WriteString(conn, "POST /login HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n"+formHeader+"\r\n"+body)

		a, err := http.ReadResponse(conn.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		shown, _ := io.ReadAll(a.Body)
		if got := fmt.Sprint(a.StatusCode); got != want[0] || !strings.Contains(string(shown), want[1]) {
			t.Errorf("%.30q: %s, want %q\n%s", body, got, want, shown)
		}
	}
}
