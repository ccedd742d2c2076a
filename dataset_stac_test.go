package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stacTree starts a service with a dataset of these files and returns a client that may read it, and the path of its
// collection.
func stacTree(t *testing.T, files []ElevationDatasetFileMeta) (ts *testServer, c client, collection string) {
	t.Helper()
	ts = startServer(t, nil, "CAIRN_BASE_URL=")
	c = ts.signIn("ada", datasetRead)
	return ts, c, fmt.Sprintf("%s/collections/%d", stacPath, ts.addFiles("tiles", files))
}

// gridOfTiles returns side × side files of one degree around 0, 0, modified one second after the other.
func gridOfTiles(t testing.TB, side int) (files []ElevationDatasetFileMeta) {
	for i := range side * side {
		lon, lat := float64(i%side-side/2), float64(i/side-side/2)
		m := placedFile(t, fmt.Sprintf("t%05d.tif", i), 4326, 0.01, 0, lon, 0, -0.02, lat+1)
		m.ModifiedAt = fileTime{time.Unix(1_700_000_000+int64(i), 0)}
		files = append(files, m)
	}
	return files
}

// itemTitles returns the titles of the items in an answer, in order.
func itemTitles(a answer) (titles []string) {
	features, _ := a.json["features"].([]any)
	for _, f := range features {
		titles = append(titles, f.(map[string]any)["properties"].(map[string]any)["title"].(string))
	}
	return titles
}

// linkTo returns the first link of an answer with that relation, or nil.
func linkTo(a answer, rel string) map[string]any {
	links, _ := a.json["links"].([]any)
	for _, link := range links {
		if link := link.(map[string]any); link["rel"] == rel {
			return link
		}
	}
	return nil
}

// TestSTACRules: what clients of STAC API 1.0 and of OGC API Features 1.0 rely on: media types, relations of links, all
// of them absolute, and status codes.
func TestSTACRules(t *testing.T) {
	t.Parallel()
	ts, c, collection := stacTree(t, gridOfTiles(t, 4))
	empty := fmt.Sprintf("%s/collections/%d", stacPath, ts.addFiles("empty", nil))
	item := linkTo(answer{json: c.must(200, "GET", collection+"/items?limit=1", nil).json["features"].([]any)[0].(map[string]any)}, "self")["href"].(string)
	item = strings.TrimPrefix(item, ts.url)
	const catalog, geo = "application/json", "application/geo+json"
	for _, rule := range []struct{ path, mediaType, rels string }{
		{stacPath, catalog, "child child conformance data root search search self service-desc service-doc"},
		{stacPath + "/", catalog, "child child conformance data root search search self service-desc service-doc"},
		{stacPath + "/api", "application/vnd.oai.openapi+json;version=3.0", ""},
		{stacPath + "/conformance", catalog, ""},
		{stacPath + "/collections", catalog, "parent root self"},
		{collection, catalog, "items parent root self"},
		{empty, catalog, "items parent root self"},
		{collection + "/items", geo, "collection root self"},
		{collection + "/items?limit=3", geo, "collection next root self"},
		{empty + "/items", geo, "collection root self"},
		{item, geo, "collection parent root self"},
		{stacPath + "/search", geo, "root self"},
	} {
		a := c.must(200, "GET", rule.path, nil)
		var rels []string
		links, _ := a.json["links"].([]any)
		for _, link := range links {
			link := link.(map[string]any)
			rels = append(rels, link["rel"].(string))
			if href := link["href"].(string); !strings.HasPrefix(href, ts.url+"/api/v1/") || link["type"] == nil || link["title"] == "" {
				t.Errorf("%s: %v", rule.path, link)
			} else if link["method"] != "POST" {
				got := c.must(200, "GET", strings.TrimPrefix(href, ts.url), nil).header.Get("Content-Type")
				if got != link["type"] {
					t.Errorf("%s: %s is %s, not %s", rule.path, href, got, link["type"])
				}
			}
		}
		slices.Sort(rels)
		if kind := a.header.Get("Content-Type"); kind != rule.mediaType || strings.Join(rels, " ") != rule.rels {
			t.Errorf("%s: %s with %q", rule.path, kind, rels)
		}
		if head := c.must(200, "HEAD", rule.path, nil); head.header.Get("Content-Type") != rule.mediaType {
			t.Errorf("HEAD %s: %v", rule.path, head.header)
		}
	}
	for query, code := range map[string]string{
		"bbox=1,2,3": "wrong_type", "bbox=1,2,3,4,5": "wrong_type", "bbox=a,b,c,d": "wrong_type", "bbox=": "wrong_type", "bbox=0,50,1,40": "invalid",
		"bbox=0,0,0,NaN": "wrong_type", "bbox=0,0,0,0,0,0,0": "wrong_type", "bbox=1,2,3,4&bbox=1,2,3,4": "duplicate_parameter",
		"limit=0": "wrong_type", "limit=-1": "wrong_type", "limit=ten": "wrong_type", "limit=1.5": "wrong_type",
		"datetime=2026": "wrong_type", "datetime=2026-01-01": "wrong_type", "datetime=2026-01-01T00:00:00": "wrong_type", "datetime=/": "wrong_type", "datetime=../..": "wrong_type",
		"datetime=2026-01-02T00:00:00Z/2026-01-01T00:00:00Z": "wrong_type", "datetime=2026-01-01T00:00:00Z/2026-01-02T00:00:00Z/..": "wrong_type",
		"status=fine": "invalid", "intersects=x": "wrong_type", "intersects={}": "wrong_type", "cursor=x": "invalid_cursor", "nope=1": "unknown_parameter", "sort=path": "unknown_parameter",
		"intersects=" + url.QueryEscape(`{"type":"LineString","coordinates":[[0,0]]}`):                            "wrong_type",
		"intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[[[0,0],[1,1],[0,1]]]}`):                 "wrong_type",
		"intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[]}`):                                    "wrong_type",
		"intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[[[0,0],[1],[0,1],[0,0]]]}`):             "wrong_type",
		"intersects=" + url.QueryEscape(`{"type":"MultiPolygon","coordinates":[[]]}`):                             "wrong_type",
		"intersects=" + url.QueryEscape(`{"type":"Point","coordinates":[200,0]}`):                                 "invalid",
		"bbox=1,2,3,4&intersects=" + url.QueryEscape(`{"type":"Point","coordinates":[0,0]}`):                      "exclusive",
		"point=0,0&intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[[[0,0],[1,0],[0,1],[0,0]]]}`): "exclusive",
	} {
		c.refused(400, code, "GET", collection+"/items?"+query, nil)
		c.refused(400, code, "GET", stacPath+"/search?"+query, nil)
	}
	for body, code := range map[string]string{
		`{"bbox":[1,2,3]}`: "wrong_type", `{"bbox":[[1]]}`: "wrong_type", `{"limit":true}`: "wrong_type", `{"limit":0}`: "wrong_type", `{"nope":1}`: "unknown_field", `{"sort":"path"}`: "unknown_field",
		`{"datetime":"soon"}`: "wrong_type", `{"intersects":{"type":"Point"}}`: "wrong_type", `{"intersects":{"type":"Point","coordinates":[0,0]},"bbox":[0,0,1,1]}`: "exclusive", `[]`: "malformed_json",
	} {
		c.refused(400, code, "POST", stacPath+"/search", body)
	}
	for _, path := range []string{"/collections/99", "/collections/99/items", "/collections/tiles", strings.TrimPrefix(collection, stacPath) + "/items/99999", "/collections/", "/queryables", "//"} {
		c.refused(404, "not_found", "GET", stacPath+path, nil)
	}
	if a := c.must(200, "GET", collection+"/items?limit=99999999", nil); a.number("numberReturned") != 16 || a.number("numberMatched") != 16 {
		t.Errorf("%s", a.body)
	}
	for path, want := range map[string]string{
		empty:      `{"extent":{"spatial":{"bbox":[[-180,-90,180,90]]},"temporal":{"interval":[[null,null]]}},"summaries":{}}`,
		collection: `{"extent":{"spatial":{"bbox":[[-2,-2,2,2]]},"temporal":{"interval":[["2023-11-14T22:13:20Z","2023-11-14T22:13:35Z"]]}},"summaries":{"format":["geotiff"],"gsd":{"maximum":2,"minimum":1},"proj:code":["EPSG:4326"]}}`,
	} {
		a := c.must(200, "GET", path, nil)
		if gsd, ok := a.json["summaries"].(map[string]any)["gsd"].(map[string]any); ok && gsd["minimum"].(float64) > 0 && gsd["maximum"].(float64) >= gsd["minimum"].(float64) {
			gsd["minimum"], gsd["maximum"] = 1, 2
		}
		if got, _ := json.Marshal(object{"extent": a.json["extent"], "summaries": a.json["summaries"]}); string(got) != want {
			t.Errorf("%s: %s\nwant %s", path, got, want)
		}
	}
	ts.signIn("bob", metricsRead).refused(403, "permission_missing", "GET", stacPath, nil)
	basic := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("any:"+ts.addToken("ada", "gis", datasetRead).token))
	ts.client().must(200, "GET", stacPath, nil, basic)
	ts.client().must(200, "POST", stacPath+"/search", map[string]int{"limit": 1}, basic) // which only reads
	ts.client().refused(401, "not_signed_in", "POST", "/api/v1/datasets", map[string]string{"name": "a", "path": "a"}, basic)
	var api struct {
		OpenAPI    string
		Paths      map[string]any
		Components struct {
			Parameters map[string]struct {
				Schema struct{ Default, Maximum any }
			}
		}
	}
	if err := json.Unmarshal(c.must(200, "GET", stacPath+"/api", nil).body, &api); err != nil || !strings.HasPrefix(api.OpenAPI, "3.0") || len(api.Paths) != 7 {
		t.Errorf("%v %+v", err, api)
	}
	if limit := api.Components.Parameters["limit"].Schema; limit.Default != float64(defaultItems) || limit.Maximum != float64(maxItems) {
		t.Errorf("%+v", limit)
	}
	for _, name := range strings.Fields(itemFilters) {
		if _, ok := api.Components.Parameters[name]; !ok {
			t.Errorf("the parameter %s is not described", name)
		}
	}
}

// TestSTACFilters: each filter finds the items that it should, alike by GET and by POST.
func TestSTACFilters(t *testing.T) {
	t.Parallel()
	files := gridOfTiles(t, 4)
	files[3].Format, files[5].CRS = new("hgt"), nil
	files[6].Status, files[6].BBox, files[6].Reason = fileStatusNoBBox, nil, new("no CRS")
	ts, c, collection := stacTree(t, files)
	other := ts.addFiles("other", []ElevationDatasetFileMeta{placedFile(t, "other.tif", 25832, 10, 0, 500000, 0, -10, 5300000)})
	first := c.must(200, "GET", collection+"/items?limit=2", nil).json["features"].([]any)
	id := func(i int) string { return first[i].(map[string]any)["id"].(string) }
	all := []string{}
	for i := range 16 {
		if i != 6 {
			all = append(all, fmt.Sprintf("t%05d.tif", i))
		}
	}
	polygon := func(coordinates string) string { return `{"type":"Polygon","coordinates":[` + coordinates + `]}` }
	for _, test := range []struct {
		query, body string // the latter without braces
		want        []string
	}{
		{"", "", append(all, "other.tif")},
		{"", `"ids":null,"bbox":null,"datetime":null`, append(all, "other.tif")},
		{"collections=" + strings.TrimPrefix(collection, stacPath+"/collections/"), `"collections":["` + strings.TrimPrefix(collection, stacPath+"/collections/") + `"]`, all},
		{"collections=999,nope", `"collections":["999","nope"]`, nil},
		{fmt.Sprint("collections=", other), fmt.Sprintf(`"collections":["%d"]`, other), []string{"other.tif"}},
		{"ids=" + id(0) + "," + id(1), `"ids":["` + id(0) + `","` + id(1) + `"]`, all[:2]},
		{"ids=nope", `"ids":["nope"]`, nil},
		{"ids=", `"ids":[""]`, nil},
		{"bbox=-1.9,-1.9,-1.1,-1.1", `"bbox":[-1.9,-1.9,-1.1,-1.1]`, all[:1]},
		{"bbox=-1.9,-1.9,0,-1.1,-1.1,9", `"bbox":[-1.9,-1.9,0,-1.1,-1.1,9]`, all[:1]},
		{"bbox=170,-2,-1.5,-1.5", `"bbox":[170,-2,-1.5,-1.5]`, all[:1]},
		{"datetime=2023-11-14T22:13:20Z", `"datetime":"2023-11-14T22:13:20Z"`, all[:1]},
		{"datetime=../2023-11-14t22:13:21z", `"datetime":"../2023-11-14t22:13:21z"`, []string{all[0], all[1], "other.tif"}},
		{"datetime=2023-11-14T22:13:34.5Z/", `"datetime":"2023-11-14T22:13:34.5Z/"`, all[14:]},
		{"datetime=2023-11-14T23:13:21%2B01:00/2023-11-14T22:13:22Z", `"datetime":"2023-11-14T23:13:21+01:00/2023-11-14T22:13:22Z"`, all[1:3]},
		{"format=hgt", `"format":"hgt"`, all[3:4]},
		{"crs=EPSG:25832", `"crs":"EPSG:25832"`, []string{"other.tif"}},
		{"q=00003", `"q":"00003"`, all[3:4]},
		{"path=other", `"path":"other"`, []string{"other.tif"}},
		{"status=no_bbox", `"status":"no_bbox"`, []string{"t00006.tif"}},
		{"point=-1.5,-1.5", `"point":[-1.5,-1.5]`, all[:1]},
		{"intersects=" + url.QueryEscape(`{"type":"Point","coordinates":[-1.5,-1.5,100]}`), `"intersects":{"type":"Point","coordinates":[-1.5,-1.5]}`, all[:1]},
		{"intersects=" + url.QueryEscape(polygon(`[[-1.9,-1.9],[-1.1,-1.9],[-1.9,-1.1],[-1.9,-1.9]]`)), `"intersects":` + polygon(`[[-1.9,-1.9],[-1.1,-1.9],[-1.9,-1.1],[-1.9,-1.9]]`), all[:1]},
		// A triangle whose box holds nine tiles, but that meets six. A polygon around all with a hole that holds all but those at its edge.
		{"", `"intersects":` + polygon(`[[-1.9,-1.9],[0.8,-1.9],[-1.9,0.8],[-1.9,-1.9]]`), []string{all[0], all[1], all[2], all[4], all[5], all[7]}},
		{"", `"intersects":` + polygon(`[[-9,-9],[9,-9],[9,9],[-9,9],[-9,-9]],[[-1.5,-1.5],[-1.5,3],[3,3],[3,-1.5],[-1.5,-1.5]]`), []string{all[0], all[1], all[2], all[3], all[4], all[7], all[11]}},
		{"", `"intersects":{"type":"MultiPolygon","coordinates":[[[[-1.9,-1.9],[-1.1,-1.9],[-1.9,-1.1],[-1.9,-1.9]]],[[[50,50],[60,50],[60,60],[50,50]]]]}`, all[:1]},
	} {
		if test.query != "" || test.body == "" {
			if a := c.must(200, "GET", stacPath+"/search?"+test.query, nil); !slices.Equal(itemTitles(a), test.want) || a.number("numberMatched") != len(test.want) {
				t.Errorf("%s: %v, not %v", test.query, itemTitles(a), test.want)
			}
		}
		if a := c.must(200, "POST", stacPath+"/search", "{"+test.body+"}"); !slices.Equal(itemTitles(a), test.want) || a.number("numberMatched") != len(test.want) {
			t.Errorf("%s: %v, not %v", test.body, itemTitles(a), test.want)
		}
	}
}

// TestCollectionsBesidePath: the items of a collection take the parameter collections, which pystac-client sends. It
// selects among them.
func TestCollectionsBesidePath(t *testing.T) {
	t.Parallel()
	_, c, collection := stacTree(t, gridOfTiles(t, 2))
	id := strings.TrimPrefix(collection, stacPath+"/collections/")
	for query, want := range map[string]int{
		"collections=" + id:          4,
		"collections=999," + id:      4,
		"collections=999":            0,
		"collections=":               0,
		"limit=2&collections=" + id:  2,
		"ids=999&collections=" + id:  0,
		"q=t00001&collections=" + id: 1,
	} {
		a := c.must(200, "GET", collection+"/items?"+query, nil)
		if got := a.number("numberReturned"); got != want {
			t.Errorf("%s: %d items, want %d", query, got, want)
		}
		next := linkTo(a, "next")
		if next == nil {
			continue
		}
		href, _ := next["href"].(string)
		if second := c.must(200, "GET", href[strings.Index(href, stacPath):], nil); second.number("numberReturned") != 2 {
			t.Errorf("%s: the second page has %d items, want 2", query, second.number("numberReturned"))
		}
	}
}

// TestSearchBounds: a search by POST refuses text that the database cannot hold and areas without measure, and clamps any
// limit.
func TestSearchBounds(t *testing.T) {
	t.Parallel()
	c := startServer(t, nil).signIn("ada", datasetRead)
	c.refused(400, "malformed_json", "POST", stacPath+"/search", `{"path":"\u0000"}`)
	for name, test := range map[string]struct {
		corners string
		status  int
	}{
		"1,000 corners":       {"[0,0]," + strings.Repeat("[1,0,5],[1,1,5],", 499) + "[0,0]", 200},
		"1,001 corners":       {"[0,0]," + strings.Repeat("[1,0,5],[1,1,5],", 499) + "[1,2],[0,0]", 400},
		"a corner of many":    {"[0,0" + strings.Repeat(",0", 3001) + "],[0,1],[1,1],[0,0]", 400},
		"8,000 equal corners": {strings.Repeat("[0,0],", 8000) + "[0,0]", 400},
	} {
		t.Run(name, func(t *testing.T) {
			a := c.do("POST", stacPath+"/search", `{"intersects":{"type":"Polygon","coordinates":[[`+test.corners+`]]}}`)
			if a.status != test.status {
				t.Errorf("status %d, want %d: %s", a.status, test.status, a.body)
			}
			if a.status == 400 && !strings.Contains(a.text("detail"), "at most 1000 corners") {
				t.Errorf("detail %q does not say how many corners", a.text("detail"))
			}
		})
	}
	c.must(200, "GET", stacPath+"/search?limit=99999999999999999999", nil)
}

// TestHarmlessCells: no part of a cell begins like a formula, also where a spreadsheet divides rows by semicolons.
func TestHarmlessCells(t *testing.T) {
	for text, want := range map[string]string{
		"a.tif": "a.tif", "-1.5": "-1.5", "1e+5": "1e+5", "=1+1": "'=1+1", "-a": "'-a", "@a": "'@a", "\ta": "'\ta",
		"x;=cmd()": "x;'=cmd()", "x\n +1": "x\n' +1", "a=b": "a=b",
		"＝1+1": "'＝1+1", "＋a": "'＋a", "－a": "'－a", "＠a": "'＠a", "x;\u3000＝1": "x;'\u3000＝1", "\u00a0=1": "'\u00a0=1", "a＝b": "a＝b",
	} {
		if got := harmlessCell(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestAreas: an area meets a footprint just where a point of a fine raster lies in both.
func TestAreas(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 18))
	ring := func() (ring []position) { // a star around a random place
		x, y, n := random.Float64()*6, random.Float64()*6, 3+random.IntN(6)
		for i := range n {
			sin, cos := math.Sincos(2 * math.Pi * float64(i) / float64(n))
			r := 0.5 + 2*random.Float64()
			ring = append(ring, position{x + r*cos, y + r*sin})
		}
		return append(ring, ring[0])
	}
	met := 0
	for range 500 {
		a, b := ring(), ring()
		both := false
		for x := -3.0; x < 9 && !both; x += 0.05 {
			for y := -3.0; y < 9 && !both; y += 0.05 {
				both = isInside(position{x, y}, [][]position{a}) && isInside(position{x, y}, [][]position{b})
			}
		}
		got := area{{a}}.meets(multiPolygon{{b}})
		if got != (area{{b}}).meets(multiPolygon{{a}}) || both && !got {
			t.Errorf("%v and %v: %v, in both: %v", a, b, got, both)
		}
		if got {
			met++
		}
	}
	if met < 100 || met > 450 {
		t.Errorf("%d of 500 meet", met)
	}
}

// TestAreaAcross180: the box of a MultiPolygon that is cut at 180° (RFC 7946, section 3.1.9) has the longitudes of its
// parts alone, so that only files near them are compared with it.
func TestAreaAcross180(t *testing.T) {
	t.Parallel()
	square := func(west, east float64) string {
		return fmt.Sprintf("[[[%[1]v,-10],[%[2]v,-10],[%[2]v,10],[%[1]v,10],[%[1]v,-10]]]", west, east)
	}
	area := func(polygons ...string) string {
		return `{"type":"MultiPolygon","coordinates":[` + strings.Join(polygons, ",") + `]}`
	}
	for text, want := range map[string]string{
		area(square(170, 180), square(-180, -170)): "[170 -10 -170 10]",
		area(square(-110, -100), square(100, 110)): "[100 -10 -100 10]",
		area(square(-10, 10), square(20, 30)):      "[-10 -10 30 10]",
		area(square(-180, 180)):                    "[-180 -10 180 10]",
		area(square(170, 190), square(-175, -170)): "[-175 -10 190 10]", // beyond 180°: refused
	} {
		if box, _, ok := readGeometry(text, maxCorners); fmt.Sprint(box) != want || !ok {
			t.Errorf("%s: the box is %v, not %s", text, box, want)
		}
	}
	_, c, _ := stacTree(t, []ElevationDatasetFileMeta{
		placedFile(t, "east.tif", 4326, 0.01, 0, 175, 0, -0.02, 1), placedFile(t, "far.tif", 4326, 0.01, 0, 0, 0, -0.02, 1),
		placedFile(t, "over.tif", 4326, 0.01, 0, 179.5, 0, -0.02, 1), placedFile(t, "west.tif", 4326, 0.01, 0, -175, 0, -0.02, 1),
	})
	cut := area(square(170, 180), square(-180, -170))
	if titles := itemTitles(c.must(200, "POST", stacPath+"/search", `{"intersects":`+cut+`}`)); !slices.Equal(titles, []string{"east.tif", "over.tif", "west.tif"}) {
		t.Errorf("%q", titles)
	}
	c.refused(400, "invalid", "POST", stacPath+"/search", `{"intersects":`+area(square(170, 190))+`}`)
}

// TestAreaTotal: a search by an area says how many items match only where they are all on one page: to count the others
// may take as long as to compare every file.
func TestAreaTotal(t *testing.T) {
	t.Parallel()
	_, c, _ := stacTree(t, gridOfTiles(t, 4))
	search := map[string]any{"limit": 15, "intersects": json.RawMessage(`{"type":"Polygon","coordinates":[[[-9,-9],[9,-9],[9,9],[-9,9],[-9,-9]]]}`)}
	first := c.must(200, "POST", stacPath+"/search", search)
	next := linkTo(first, "next")
	if next == nil || first.json["numberMatched"] != nil || len(itemTitles(first)) != 15 {
		t.Fatalf("%s", first.body)
	}
	if last := c.must(200, "POST", stacPath+"/search", next["body"]); last.json["numberMatched"] != nil || len(itemTitles(last)) != 1 || linkTo(last, "next") != nil {
		t.Errorf("%s", last.body)
	}
	search["limit"] = 16
	if all := c.must(200, "POST", stacPath+"/search", search); all.number("numberMatched") != 16 {
		t.Errorf("%s", all.body)
	}
}

// pageThrough returns the ids of all items of a search, page by page. It calls before with the number of each page.
func (c client) pageThrough(body map[string]any, before func(page int)) (ids []string) {
	c.t.Helper()
	for page := 0; ; page++ {
		before(page)
		a := c.must(200, "POST", stacPath+"/search", body)
		for _, f := range a.json["features"].([]any) {
			ids = append(ids, f.(map[string]any)["id"].(string))
		}
		next := linkTo(a, "next")
		if next == nil {
			return ids
		}
		body = maps.Clone(next["body"].(map[string]any))
	}
}

// TestSTACPaging: a search finds each file just once while analyses add, change and remove other rows.
func TestSTACPaging(t *testing.T) {
	t.Parallel()
	n := soakOr(100_000, 1000)
	checkPaging(t, n, n/50)
}

// checkPaging pages through n files, with so many on a page. Between two pages an analysis stores at least one chunk; when
// it has ended, files are written, added and removed, and the next one begins.
func checkPaging(t *testing.T, n, limit int) {
	ts := startServer(t, func(o *options) { o.batchSize = n / 30 })
	dir := filepath.Join(ts.datasets, "tiles")
	path := func(i int, suffix string) string {
		return filepath.Join(dir, fmt.Sprintf("d%02d/kept%06d%s.tif", i*100/n, i, suffix))
	}
	// Each file has a place of its own: each analysis would compare the contents of files at the same place.
	write := func(i int, suffix string, shift float64) {
		name, past := path(i, suffix), time.Unix(1_700_000_000, 0) // else each analysis would read it again
		lon := -170 + 300*float64(i)/float64(n) + shift
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, geographicTIFF(lon, 45), 0o644), os.Chtimes(name, past, past)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		write(i, "", 0)
	}
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	dataset := c.addDataset("tiles")
	running, rounds, found := fmt.Sprintf("%s/analyses/%d", dataset, c.analyze(dataset, nil).number("id")), 0, [6]int{}
	ts.exec(`ANALYZE elevation_dataset_file_meta`) // as autovacuum does after so many new rows
	ended := func() bool { return c.must(200, "GET", running, nil).json["finished_at"] != nil }
	search := map[string]any{"collections": []string{strings.TrimPrefix(dataset, "/api/v1/datasets/")}, "limit": limit}
	ids := c.pageThrough(search, func(int) {
		if ended() {
			for i := 0; i < n; i += 50 {
				write(i, "", 0.01*float64(1+rounds))
				write(i, fmt.Sprintf("-new%d", rounds), 30)
				os.Remove(path(i, fmt.Sprintf("-new%d", rounds-1)))
			}
			rounds++
			running = c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
		}
		stored := ts.analyzer.stored.Load()
		waitFor(t, "rows to change", func() bool { return ts.analyzer.stored.Load() > stored || ended() })
	})
	c.finished(running)
	for _, a := range c.must(200, "GET", dataset+"/analyses?limit=500", nil).items()[:rounds] {
		for i, count := range counts(answer{json: a}) {
			found[i] += count
		}
	}
	t.Logf("%d pages, %d analyses: added %d, changed %d, removed %d", len(ids)/limit, rounds, found[1], found[2], found[4])
	if rounds < 3 || min(found[1], found[2], found[4]) < n/50 {
		t.Errorf("%d analyses changed too little: %v", rounds, found)
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			t.Fatalf("%s comes twice", id)
		}
		seen[id] = true
	}
	kept, err := collect[struct{ ID string }](t.Context(), ts.db, "list", `SELECT id::text FROM elevation_dataset_file_meta WHERE path NOT LIKE '%-new%'`)
	if err != nil || len(kept) != n {
		t.Fatal(err, len(kept))
	}
	for _, row := range kept {
		if !seen[row.ID] {
			t.Errorf("%s is missing", row.ID)
		}
	}
	c.refused(400, "invalid_cursor", "POST", stacPath+"/search", map[string]any{"bbox": []int{0, 0, 1, 1},
		"cursor": linkTo(c.must(200, "POST", stacPath+"/search", map[string]any{"limit": 1}), "next")["body"].(map[string]any)["cursor"]})
}

// TestAreaOfManyFiles: a search for an area compares 10,000 files at a time. It answers with what it found among them,
// and a link to the next page. If that is nothing it goes on, because some clients take an empty page for the last.
func TestAreaOfManyFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage)
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.addDataset("tiles")
	// 100 × 101 tiles of a hundredth of a degree, from west to east in the order of their paths.
	ts.exec(`
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, format, status, width, height,
			transform, native_bbox, crs, bbox, resolution_m, source, warnings, analyzed_at)
		SELECT d.id, format('%s_%s.tif', 1000 + i, 1000 + j), 1, 1, 'geotiff', 'ok', 10, 10,
			ARRAY[0.001, 0, i * 0.01, 0, -0.001, j * 0.01 + 0.01], ARRAY[i * 0.01, j * 0.01, i * 0.01 + 0.01, j * 0.01 + 0.01],
			'EPSG:4326', ARRAY[i * 0.01, j * 0.01, i * 0.01 + 0.01, j * 0.01 + 0.01], 100, 'x', '{}', now()
		FROM datasets d, generate_series(0, 100) i, generate_series(0, 99) j`)

	// The area has the tile in the south-east corner inside, and meets no other.
	area := `{"intersects":{"type":"Polygon","coordinates":[[[-0.5,-0.5],[1.009,0.001],[1.011,0.001],[1.02,1.5],[1.02,0],[-0.5,-0.6],[-0.5,-0.5]]]}}`
	only := c.must(200, "POST", stacPath+"/search", area)
	if got := itemTitles(only); !slices.Equal(got, []string{"1100_1000.tif"}) {
		t.Errorf("the first page has %q, want the tile in the corner", got)
	}

	// With a tile among the first 10,000 too, there are two pages, with fewer items than the limit.
	area = strings.Replace(area, `"Polygon","coordinates":[`, `"MultiPolygon","coordinates":[[[[0,0],[0.001,0],[0,0.001],[0,0]]],[`, 1)
	area = strings.Replace(area, "]]]}}", "]]]]}}", 1)
	first := c.must(200, "POST", stacPath+"/search", area)
	if got := itemTitles(first); !slices.Equal(got, []string{"1000_1000.tif"}) {
		t.Errorf("the first page has %q, want the tile in the south-west", got)
	}
	if _, isThere := first.json["numberMatched"]; isThere {
		t.Error("the first page says how many match, before all were compared")
	}
	var next map[string]any
	for _, link := range first.json["links"].([]any) {
		if link := link.(map[string]any); link["rel"] == "next" {
			next = link["body"].(map[string]any)
		}
	}
	if next == nil {
		t.Fatalf("the first page has no link to the next: %s", first.body)
	}
	second := c.must(200, "POST", stacPath+"/search", next)
	if got := itemTitles(second); !slices.Equal(got, []string{"1100_1000.tif"}) {
		t.Errorf("the second page has %q, want the tile in the corner", got)
	}
}
