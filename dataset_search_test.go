package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// searched is a service with three datasets: two are described, and one of these is hidden.
func searched(t *testing.T) (ts *testServer, root client, ids map[string]int64) {
	t.Helper()
	ts = startServer(t, nil)
	ts.declareLidar()
	root = ts.signIn("root", "all")
	ids = map[string]int64{}
	for _, name := range []string{"alps", "plain", "okapi"} {
		files := []ElevationDatasetFileMeta{placedFile(t, name+".tif", 4326, 0.01, 0, 7, 0, -0.01, 47)}
		files[0].VerticalCRS = new("EPSG:7837")
		ids[name] = ts.addFiles(name, files)
	}
	describe := func(name, fields string) { root.must(200, "PATCH", fmt.Sprint("/api/v1/datasets/", ids[name]), fields) }
	describe("alps", `{"description":"Laser scans\nof the HÖHEN","about":{"title":"Terrain model","keywords":["Lidar","snow"],"surveyed_from":"2024-03-01","surveyed_until":"2024-04-30"}}`)
	describe("okapi", `{"requires":"lidar.see","about":{"title":"Terrain model","keywords":["lidar","secret"],"surveyed_from":"2024-03-01","surveyed_until":"2024-04-30"}}`)
	return ts, root, ids
}

// TestSearchByDataset: files are found by what their dataset says of itself, in the lists of all datasets and of one, in
// the exports and in STAC. Nobody finds anything of a hidden dataset.
func TestSearchByDataset(t *testing.T) {
	t.Parallel()
	ts, root, ids := searched(t)
	outsider := ts.signIn("outsider", datasetRead)
	both := "alps.tif okapi.tif"
	for query, want := range map[string]string{
		"keyword=lidar":             both,
		"keyword=LIDAR":             both,
		"keyword=secret":            "okapi.tif",
		"keyword=lid":               "",
		"keyword=lid.*":             "",
		"keyword=":                  "",
		"surveyed_from=2024-04-30":  both,
		"surveyed_from=2024-05-01":  "",
		"surveyed_until=2024-03-01": both,
		"surveyed_until=2024-02-29": "",
		"surveyed_from=2023-01-01&surveyed_until=2024-03-15":    both,
		"keyword=snow&surveyed_from=2024-01-01&q=alps":          "alps.tif",
		"vertical_crs=EPSG:7837":                                both + " plain.tif",
		"vertical_crs=EPSG:7837&keyword=lidar&resolution_min=1": both,
	} {
		for as, c := range map[string]client{"insider": root, "outsider": outsider} {
			t.Run(as+" "+query, func(t *testing.T) {
				c.t = t
				want := strings.Fields(want)
				if as == "outsider" {
					want = slices.DeleteFunc(want, func(path string) bool { return path == "okapi.tif" })
				}
				a := c.must(200, "GET", "/api/v1/files?total=1&"+query, nil)
				var got []string
				for _, item := range a.items() {
					got = append(got, item["path"].(string))
				}
				slices.Sort(got)
				check(t, "files", fmt.Sprint(got), fmt.Sprint(want))
				check(t, "total", a.number("total"), len(want))

				a = c.must(200, "GET", stacPath+"/search?"+query, nil)
				check(t, "items", a.number("numberMatched"), len(want))

				for _, name := range []string{"alps", "plain"} {
					has := slices.Contains(want, name+".tif")
					base := fmt.Sprint("/api/v1/datasets/", ids[name])
					check(t, name, len(c.must(200, "GET", base+"/files?"+query, nil).items()) == 1, has)
					for _, export := range []string{"/files.csv?", "/footprints.geojson?"} {
						text := string(c.must(200, "GET", base+export+query, nil).body)
						check(t, name+export, strings.Contains(text, name+".tif"), has)
					}
					a := c.must(200, "GET", fmt.Sprint(stacPath, "/collections/", ids[name], "/items?", query), nil)
					check(t, name+" items", a.number("numberReturned") == 1, has)
				}
			})
		}
	}
	outsider.refused(404, "not_found", "GET", fmt.Sprintf("/api/v1/datasets/%d/files?keyword=lidar", ids["okapi"]), nil)
	outsider.refused(404, "not_found", "GET", fmt.Sprintf("/api/v1/datasets/%d/files?keyword=none", ids["okapi"]), nil)

	a := root.must(200, "POST", stacPath+"/search", `{"resolution_min":1,"size_max":1e9,"keyword":"snow","intersects":{"type":"Point","coordinates":[7.1,46.9]}}`)
	check(t, "items by POST", a.number("numberReturned"), 1)
	root.refused(400, "wrong_type", "POST", stacPath+"/search", `{"resolution_min":"1"}`)
}

// TestSearchArea: an area has the limits that it has in STAC, in each list and export.
func TestSearchArea(t *testing.T) {
	t.Parallel()
	_, root, ids := searched(t)
	point := url.QueryEscape(`{"type":"Point","coordinates":[7.1,46.9]}`)
	apart := url.QueryEscape(`{"type":"Point","coordinates":[9,46.9]}`)
	many := url.QueryEscape(`{"type":"MultiPoint","coordinates":[` + strings.Repeat("[7,46],", maxCorners) + `[7,46]]}`)
	base := fmt.Sprintf("/api/v1/datasets/%d/", ids["alps"])
	for _, list := range []string{"/api/v1/files?", base + "files?", base + "files.csv?", base + "footprints.geojson?"} {
		checkHas(t, list, string(root.must(200, "GET", list+"intersects="+point, nil).body), "alps.tif")
		checkLacks(t, list, string(root.must(200, "GET", list+"intersects="+apart, nil).body), "alps.tif")
		root.refused(400, "wrong_type", "GET", list+"intersects=7,46", nil)
		root.refused(400, "wrong_type", "GET", list+"intersects=", nil)
		root.refused(400, "wrong_type", "GET", list+"intersects="+many, nil)
		root.refused(400, "exclusive", "GET", list+"bbox=1,2,3,4&intersects="+point, nil)
		root.refused(400, "exclusive", "GET", list+"point=1,2&intersects="+point, nil)
		root.refused(422, "invalid", "GET", list+"intersects="+url.QueryEscape(`{"type":"Point","coordinates":[7,91]}`), nil)
	}
}

// TestSearchDatasets: datasets are found by a part of the name, title or description, and by a keyword, in any case.
func TestSearchDatasets(t *testing.T) {
	t.Parallel()
	ts, root, _ := searched(t)
	outsider := ts.signIn("outsider", datasetRead)
	for query, want := range map[string]string{
		"q=ALP":                "alps",
		"q=terrain":            "alps okapi",
		"q=h%C3%B6hen":         "alps",
		"q=.":                  "",
		"q=secret":             "",
		"keyword=Snow":         "alps",
		"keyword=lidar":        "alps okapi",
		"q=lai&keyword=lidar":  "",
		"q=terr&keyword=lidar": "alps okapi",
		"name=alps&q=alps":     "alps",
		"name=alps&q=plain":    "",
		"q=":                   "alps okapi plain",
	} {
		names := func(c client) (names string) {
			for _, item := range c.must(200, "GET", "/api/v1/datasets?"+query, nil).items() {
				names += " " + item["name"].(string)
			}
			return strings.TrimSpace(names)
		}
		check(t, query, names(root), want)
		check(t, query+" as an outsider", names(outsider), strings.TrimSpace(strings.Replace(want, " okapi", "", 1)))
	}
	root.refused(422, "invalid", "GET", "/api/v1/datasets?q="+strings.Repeat("a", 256), nil)
	root.refused(422, "invalid", "GET", "/api/v1/datasets?keyword="+strings.Repeat("a", 256), nil)
}

// TestSearchPages: a page with filters has them in its address, names those that are set, and has a link that takes each
// away.
func TestSearchPages(t *testing.T) {
	t.Parallel()
	ts, root, ids := searched(t)
	ts.addUser("ada", datasetRead)
	b := ts.browse("ada")
	b.shows(200, "GET", "/datasets?q=terrain&keyword=LIDAR", "", ">alps</a>", `value="terrain"`, `value="LIDAR"`,
		`href="/datasets?keyword=LIDAR"`, `href="/datasets?q=terrain"`, `href="/datasets?keyword=LIDAR&amp;q=terrain"`)
	checkLacks(t, "the page", b.shows(200, "GET", "/datasets?q=terrain", ""), ">okapi</a>")
	checkLacks(t, "a page without filters", b.shows(200, "GET", "/datasets?q=&done=saved", ""), "Filters:")
	b.shows(422, "GET", "/datasets?q="+strings.Repeat("a", 256), "", `role="alert"`, ">alps</a>")
	b.shows(200, "GET", "/datasets", "", `href="/datasets?keyword=snow"`, `href="/files"`)

	files := fmt.Sprintf("/datasets/%d/files", ids["alps"])
	area := url.QueryEscape(`{"type":"Point","coordinates":[7.1,46.9]}`)
	b.shows(200, "GET", files+"?vertical_crs=EPSG:7837&size_max=5&warnings=&sample_type=none", "", ">alps.tif<", "Vertical CRS: EPSG:7837",
		`href="`+files+`?sample_type=none&amp;size_max=5"`, `href="/api/v1`+files+`.csv?sample_type=none&amp;size_max=5&amp;vertical_crs=EPSG%3A7837"`)
	b.shows(200, "GET", files+"?intersects="+area, "", ">alps.tif<")
	b.shows(400, "GET", files+"?intersects=here", "", ">here</textarea>", ">alps.tif<")
	b.shows(200, "GET", files+"?status=corrupt", "", "State: corrupt", `href="`+files+`"`, "No file.")

	shown := b.shows(200, "GET", "/files?keyword=lidar&surveyed_from=2024-01-01&sort=-modified", "", ">alps.tif<", ">alps</a>", "Keyword: lidar", "Order: newest first")
	checkLacks(t, "the page of all files", shown, "okapi")
	b.shows(422, "GET", "/files?surveyed_from=May", "", `value="May"`, ">plain.tif<")
	root.must(200, "GET", "/files", nil)
	ts.signIn("bob", inboxRead).must(403, "GET", "/files", nil)
}
