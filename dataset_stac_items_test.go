package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJSONParameter: each address of the tree takes f=json, which many clients add to all requests, and no other f.
func TestJSONParameter(t *testing.T) {
	t.Parallel()
	ts, c, collection := stacTree(t, gridOfTiles(t, 2))
	page := c.must(200, "GET", collection+"/items?f=json&limit=1", nil)
	self := linkTo(answer{json: page.json["features"].([]any)[0].(map[string]any)}, "self")["href"].(string)
	next := linkTo(page, "next")["href"].(string)
	if second := c.must(200, "GET", strings.TrimPrefix(next, ts.url), nil); len(itemTitles(second)) != 1 {
		t.Errorf("the second page is %s", second.body)
	}
	for _, path := range []string{
		stacPath, stacPath + "/", stacPath + "/api", stacPath + "/conformance", stacPath + "/collections",
		collection, collection + "/items", strings.TrimPrefix(self, ts.url), stacPath + "/search",
	} {
		c.must(200, "GET", path+"?f=json", nil)
		c.must(200, "HEAD", path+"?f=json", nil)
		c.refused(400, "wrong_type", "GET", path+"?f=html", nil)
		c.refused(400, "wrong_type", "GET", path+"?f=", nil)
	}
}

// TestCollectionPages: all collections come at once. With a limit they come in pages.
func TestCollectionPages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_BASE_URL=")
	c := ts.signIn("ada", datasetRead)
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("d", i))
		ts.addFiles(want[i], nil)
	}
	titles := func(a answer) (titles []string) {
		for _, one := range a.json["collections"].([]any) {
			titles = append(titles, one.(map[string]any)["title"].(string))
		}
		return titles
	}
	for query, pages := range map[string]int{"": 1, "?limit=2": 3, "?f=json&limit=5": 1, "?limit=99999999999999999999": 1, "?limit=1": 5} {
		var got []string
		n := 0
		for next := stacPath + "/collections" + query; next != ""; n++ {
			a := c.must(200, "GET", next, nil)
			got = append(got, titles(a)...)
			next = ""
			if link := linkTo(a, "next"); link != nil {
				next = strings.TrimPrefix(link["href"].(string), ts.url)
			}
		}
		if !slices.Equal(got, want) || n != pages {
			t.Errorf("%q: %q on %d pages, want %q on %d", query, got, n, want, pages)
		}
	}
	for _, query := range []string{"limit=0", "limit=x", "limit=1.5", "limit=2&offset=-1", "limit=2&offset=x"} {
		c.refused(400, "wrong_type", "GET", stacPath+"/collections?"+query, nil)
	}
	if got := titles(c.must(200, "GET", stacPath+"/collections?limit=2&offset=99", nil)); len(got) > 0 {
		t.Errorf("beyond the last there are %q", got)
	}
}

// TestSearchTypes: a search by POST takes each parameter in the type that the contract names, and in no other. The
// refusal names the parameter.
func TestSearchTypes(t *testing.T) {
	t.Parallel()
	c := startServer(t, nil).signIn("ada", datasetRead)
	values := map[string]string{
		"text": `"1"`, "empty text": `""`, "number": `1`, "boolean": `true`, "object": `{}`, "point": `{"type":"Point","coordinates":[7,46]}`,
		"empty array": `[]`, "numbers": `[7,46,8,47]`, "two numbers": `[7,46]`, "texts": `["3"]`, "both": `["3",4]`, "nulls": `[null,null,null,null]`,
		"null among numbers": `[7,46,null,47]`, "booleans": `[true]`, "arrays": `[[7,46],[8,47]]`, "empty arrays": `[[],[]]`, "objects": `[{}]`,
		"text of numbers": `"7,46,8,47"`, "text of a geometry": `"{\"type\":\"Point\",\"coordinates\":[7,46]}"`,
	}
	for name, right := range map[string]string{
		"limit": "number", "bbox": "numbers", "point": "two numbers", "ids": "texts, empty array", "collections": "texts, empty array", "intersects": "point",
		"status": "", "format": "text", "crs": "text", "q": "text", "path": "text", "warnings": "text", "datetime": "", "cursor": "",
	} {
		for kind, value := range values {
			body := fmt.Sprintf(`{%q:%s}`, name, value)
			if slices.Contains(strings.Split(right, ", "), kind) {
				c.must(200, "POST", stacPath+"/search", body)
				continue
			}
			isText := strings.HasPrefix(value, `"`)
			takesText := right == "text" || right == ""
			if isText && takesText {
				continue // whether its value is right is another question
			}
			if a := c.refused(400, "wrong_type", "POST", stacPath+"/search", body); !strings.Contains(a.text("detail"), name) {
				t.Errorf("%s: the detail %q does not name the field", body, a.text("detail"))
			}
		}
		c.must(200, "POST", stacPath+"/search", fmt.Sprintf(`{%q:null}`, name))
	}
	for _, limit := range []string{"1e3", "99999999999999999999", "1e300"} {
		c.must(200, "POST", stacPath+"/search", `{"limit":`+limit+`}`)
	}
	for _, limit := range []string{"1.5", "0", "-1", "1e999", "1e-3"} {
		c.refused(400, "wrong_type", "POST", stacPath+"/search", `{"limit":`+limit+`}`)
	}
}

// TestSearchLists: a text of a list is one id, also if it has a comma. An empty list names nothing, so it finds nothing.
func TestSearchLists(t *testing.T) {
	t.Parallel()
	_, c, collection := stacTree(t, gridOfTiles(t, 2))
	id := strings.TrimPrefix(collection, stacPath+"/collections/")
	features := c.must(200, "GET", collection+"/items", nil).json["features"].([]any)
	one, two := features[0].(map[string]any)["id"].(string), features[1].(map[string]any)["id"].(string)
	for body, want := range map[string]int{
		`{"ids":["` + one + `"]}`:                              1,
		`{"ids":["` + one + `","` + two + `"]}`:                2,
		`{"ids":["` + one + `,` + two + `"]}`:                  0,
		`{"ids":["` + one + `,","` + two + `"]}`:               1,
		`{"ids":[]}`:                                           0,
		`{"ids":[""]}`:                                         0,
		`{"ids":null}`:                                         4,
		`{"collections":["` + id + `,` + id + `"]}`:            0,
		`{"collections":[]}`:                                   0,
		`{"collections":["` + id + `"],"ids":["` + one + `"]}`: 1,
		`{"collections":["` + id + `"],"ids":[]}`:              0,
	} {
		if a := c.must(200, "POST", stacPath+"/search", body); a.number("numberMatched") != want {
			t.Errorf("%s finds %d, want %d", body, a.number("numberMatched"), want)
		}
	}
}

// TestSearchTimes: times in a search have the form of RFC 3339 exactly. Items and searches have milliseconds, so that a
// search for an item's time finds it.
func TestSearchTimes(t *testing.T) {
	t.Parallel()
	files := gridOfTiles(t, 2)[:3]
	for i, ns := range []int64{280_578_775, 281_000_000, 0} {
		files[i].ModifiedAt = fileTime{time.Unix(1_700_000_000, ns)}
	}
	files[2].ModifiedAt = fileTime{time.Date(1969, 12, 31, 23, 59, 59, 999_999_999, time.UTC)}
	_, c, collection := stacTree(t, files)
	features := c.must(200, "GET", collection+"/items", nil).json["features"].([]any)
	for i, want := range []string{"2023-11-14T22:13:20.28Z", "2023-11-14T22:13:20.281Z", "1969-12-31T23:59:59.999Z"} {
		properties := features[i].(map[string]any)["properties"].(map[string]any)
		got := properties["datetime"].(string)
		if got != want {
			t.Errorf("the item %d is of %s, want %s", i, got, want)
		}
		for _, datetime := range []string{got, got + "/" + got, "../" + got, got + "/.."} {
			found := itemTitles(c.must(200, "GET", stacPath+"/search?datetime="+datetime, nil))
			if !slices.Contains(found, properties["title"].(string)) || !strings.Contains(datetime, "/") && len(found) != 1 {
				t.Errorf("%s finds %q", datetime, found)
			}
		}
	}
	interval := c.must(200, "GET", collection, nil).json["extent"].(map[string]any)["temporal"].(map[string]any)["interval"]
	if got := fmt.Sprint(interval); got != "[[1969-12-31T23:59:59.999Z 2023-11-14T22:13:20.281Z]]" {
		t.Errorf("the collection is of %s", got)
	}
	for datetime, want := range map[string]int{
		"2023-11-14T22:13:20.280578775Z": 1,
		"2023-11-14T22:13:20.2805Z":      1,
		"2023-11-14T22:13:20.279999Z":    0,
		"../2023-11-14T22:13:20.28Z":     2,
		"2023-11-14T22:13:20.2801Z/..":   2,
		"2023-11-14T22:12:60Z":           -1,
		"1990-12-31T23:59:60Z":           -1, // Cairn knows no leap seconds
		"1990-12-31t23:59:59z/..":        2,
		"1985-04-12T23:20:50,52Z":        -1,
		"1985-04-12T23:20:50.Z":          -1,
		"1985-04-12T3:20:50Z":            -1,
		"1985-04-12T23:20:50+25:00":      -1,
		"1985-04-12T23:20:50+01:60":      -1,
		"1985-04-12T23:20:61Z":           -1,
		"1985-04-12T23:60:00Z":           -1,
		"1985-04-12 23:20:50Z":           -1,
		"1985-02-29T23:20:50Z":           -1,
	} {
		path := stacPath + "/search?datetime=" + url.QueryEscape(datetime)
		if want < 0 {
			c.refused(400, "wrong_type", "GET", path, nil)
			continue
		}
		if a := c.must(200, "GET", path, nil); a.number("numberMatched") != want {
			t.Errorf("%s finds %q, want %d", datetime, itemTitles(a), want)
		}
	}
}

// TestItemOffset: a page of items leaves out as many as offset says. The next page has a cursor, and no offset.
func TestItemOffset(t *testing.T) {
	t.Parallel()
	ts, c, collection := stacTree(t, gridOfTiles(t, 3))
	all := itemTitles(c.must(200, "GET", collection+"/items", nil))
	for query, want := range map[string][]string{
		"offset=0":         all,
		"offset=4":         all[4:],
		"offset=4&limit=2": all[4:6],
		"offset=8&limit=1": all[8:],
		"offset=9&limit=1": nil,
		"offset=10000":     nil,
		"offset=1&limit=2&bbox=-1.5,-1.5,0.5,0.5": {all[1], all[3]},
		"offset=1&limit=2&sortby=-id":             {all[7], all[6]},
	} {
		a := c.must(200, "GET", collection+"/items?"+query, nil)
		check(t, query, fmt.Sprint(itemTitles(a)), fmt.Sprint(want))
		check(t, query+": numberReturned", a.number("numberReturned"), len(want))
		if !strings.Contains(query, "bbox") {
			check(t, query+": numberMatched", a.number("numberMatched"), len(all))
		}
	}

	next := linkTo(c.must(200, "GET", collection+"/items?offset=4&limit=2", nil), "next")["href"].(string)
	checkLacks(t, "the next page", next, "offset")
	second := c.must(200, "GET", strings.TrimPrefix(next, ts.url), nil)
	check(t, "the next page", fmt.Sprint(itemTitles(second)), fmt.Sprint(all[6:8]))
	for _, offset := range []string{"-1", "10001", "x", "1.5"} {
		c.refused(400, "wrong_type", "GET", collection+"/items?offset="+offset, nil)
	}
}

// TestSearchBoxes: footprints are at height 0, so a box of heights without 0 finds nothing. A box may go beyond ±180° and
// ±90°, as the views of maps do.
func TestSearchBoxes(t *testing.T) {
	t.Parallel()
	_, c, _ := stacTree(t, []ElevationDatasetFileMeta{
		placedFile(t, "east.tif", 4326, 0.01, 0, 175, 0, -0.02, 1),
		placedFile(t, "over.tif", 4326, 0.01, 0, 179.5, 0, -0.02, 1),
		placedFile(t, "west.tif", 4326, 0.01, 0, -175, 0, -0.02, 1),
		placedFile(t, "zero.tif", 4326, 0.01, 0, 0, 0, -0.02, 1),
	})
	for box, want := range map[string]string{
		"-1,-1,-5,2,2,9":        "zero.tif",
		"-1,-1,0,2,2,0":         "zero.tif",
		"-1,-1,1000,2,2,2000":   "",
		"-1,-1,-9,2,2,-0.1":     "",
		"-1,-1,9,2,2,-9":        "",
		"-1,-1,abc,2,2,def":     "wrong_type",
		"-1,-1,,2,2,":           "wrong_type",
		"-1,-1,NaN,2,2,1":       "wrong_type",
		"-1,-1,-1,2,2,Inf":      "wrong_type",
		"-1,-1,0,2,2":           "wrong_type",
		"174,-1,186,2":          "east.tif over.tif west.tif",
		"-186,-1,-174,2":        "east.tif over.tif west.tif",
		"181,-1,186,2":          "west.tif",
		"-185,-1,-181,2":        "east.tif",
		"354,-1,362,2":          "zero.tif",
		"-200,-1,-20,2":         "east.tif over.tif west.tif",
		"-200,-1,200,2":         "east.tif over.tif west.tif zero.tif",
		"-1000,-1000,1000,1000": "east.tif over.tif west.tif zero.tif",
		"-1,-100,2,100":         "zero.tif",
		"-1,91,2,95":            "invalid",
		"-1,-95,2,-91":          "invalid",
		"1,50,2,40":             "invalid",
		"170,-1,-170,2":         "east.tif over.tif west.tif",
		"-1,-1e400,2,2":         "wrong_type",
	} {
		body := `{"bbox":[` + box + `]}`
		isJSON := !strings.ContainsAny(box, "aI") && !strings.Contains(box, ",,")
		if want == "wrong_type" || want == "invalid" {
			c.refused(400, want, "GET", stacPath+"/search?bbox="+box, nil)
			if isJSON {
				c.refused(400, want, "POST", stacPath+"/search", body)
			}
			continue
		}
		byGET := itemTitles(c.must(200, "GET", stacPath+"/search?bbox="+box, nil))
		byPOST := itemTitles(c.must(200, "POST", stacPath+"/search", body))
		if strings.Join(byGET, " ") != want || strings.Join(byPOST, " ") != want {
			t.Errorf("%s finds %q and %q, want %q", box, byGET, byPOST, want)
		}
	}
}

// TestAPIDescription: the description of the tree is as OGC's test suite reads it: the server is a path from the root, and
// each parameter says how its value is written.
func TestAPIDescription(t *testing.T) {
	t.Parallel()
	var api struct {
		Servers    []struct{ URL string }
		Components struct {
			Parameters map[string]struct {
				In, Style string
				Explode   *bool
			}
		}
	}
	if err := json.Unmarshal(stacAPI, &api); err != nil {
		t.Fatal(err)
	}
	if len(api.Servers) != 1 || api.Servers[0].URL != stacPath {
		t.Errorf("the servers are %v, want %s", api.Servers, stacPath)
	}
	for name, p := range api.Components.Parameters {
		if p.In == "query" && (p.Style != "form" || p.Explode == nil || *p.Explode) {
			t.Errorf("the parameter %s is %+v", name, p)
		}
	}
}

// TestItemAddress: an item has the address of its file as a property, for programs that show properties but not assets,
// if the caller may download the file.
func TestItemAddress(t *testing.T) {
	t.Parallel()
	ts, reader, collection := stacTree(t, gridOfTiles(t, 1))
	downloader := ts.signIn("bob", datasetRead, datasetDownload)
	items := firstItems(t, collection+"/items", reader, downloader)
	if href := items[0]["properties"].(map[string]any)["href"]; href != nil {
		t.Errorf("without the permission to download the address is %v", href)
	}
	asset := items[1]["assets"].(map[string]any)["data"].(map[string]any)
	if href := items[1]["properties"].(map[string]any)["href"]; href != asset["href"] || href == nil {
		t.Errorf("the address is %v, that of the asset %v", href, asset["href"])
	}
	self := strings.TrimPrefix(linkTo(answer{json: items[1]}, "self")["href"].(string), ts.url)
	for i, c := range []client{reader, downloader} {
		properties := c.must(200, "GET", self, nil).json["properties"].(map[string]any)
		if _, hasAddress := properties["href"]; hasAddress != (i == 1) {
			t.Errorf("the item alone has %v", properties)
		}
	}
	ts.addToken("bob", "gis", datasetRead).must(200, "GET", self, nil)
	if properties := ts.addToken("bob", "desk", datasetRead).must(200, "GET", self, nil).json["properties"].(map[string]any); properties["href"] != nil {
		t.Errorf("a token that may not download gets %v", properties)
	}
}

// firstItems returns the first item of a page, as each client gets it.
func firstItems(t *testing.T, path string, clients ...client) (items []map[string]any) {
	t.Helper()
	for _, c := range clients {
		items = append(items, c.must(200, "GET", path, nil).json["features"].([]any)[0].(map[string]any))
	}
	return items
}
