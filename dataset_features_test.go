package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// featuresTree is a service with four collections, as a client of OGC API Features sees it.
type featuresTree struct {
	t  *testing.T
	ts *testServer
	c  client

	api    map[string]any    // the definition in OpenAPI
	unable string            // the token of a user who may not read datasets
	ways   map[string]string // headers that sign in, by the names of the definition
}

// TestAbstractTests runs the abstract tests of OGC API Features 1.0 (OGC 17-069r4, Annex A): those of the classes core,
// geojson and oas30. Each function says what its test demands.
func TestAbstractTests(t *testing.T) {
	t.Parallel()
	f := newFeaturesTree(t)
	for _, test := range []struct {
		name string
		run  func(featuresTree)
	}{
		{"/conf/core/http", featuresTree.http},
		{"/conf/core/crs84", featuresTree.crs84},
		{"/conf/core/root-op", featuresTree.rootOp},
		{"/conf/core/root-success", featuresTree.rootSuccess},
		{"/conf/core/api-definition-op", featuresTree.apiDefinitionOp},
		{"/conf/core/api-definition-success", featuresTree.apiDefinitionSuccess},
		{"/conf/core/conformance-op", featuresTree.conformanceOp},
		{"/conf/core/conformance-success", featuresTree.conformanceSuccess},
		{"/conf/core/fc-md-op", featuresTree.fcMdOp},
		{"/conf/core/fc-md-success", featuresTree.fcMdSuccess},
		{"/conf/core/fc-md-links", featuresTree.fcMdLinks},
		{"/conf/core/fc-md-items", featuresTree.fcMdItems},
		{"/conf/core/fc-md-items-links", featuresTree.fcMdItemsLinks},
		{"/conf/core/fc-md-extent", featuresTree.fcMdExtent},
		{"/conf/core/sfc-md-op", featuresTree.sfcMdOp},
		{"/conf/core/sfc-md-success", featuresTree.sfcMdSuccess},
		{"/conf/core/fc-op", featuresTree.fcOp},
		{"/conf/core/fc-bbox-definition", featuresTree.fcBboxDefinition},
		{"/conf/core/fc-bbox-response", featuresTree.fcBboxResponse},
		{"/conf/core/fc-limit-definition", featuresTree.fcLimitDefinition},
		{"/conf/core/fc-limit-response", featuresTree.fcLimitResponse},
		{"/conf/core/fc-time-definition", featuresTree.fcTimeDefinition},
		{"/conf/core/fc-time-response", featuresTree.fcTimeResponse},
		{"/conf/core/query-param-invalid", featuresTree.queryParamInvalid},
		{"/conf/core/query-param-unknown", featuresTree.queryParamUnknown},
		{"/conf/core/fc-response", featuresTree.fcResponse},
		{"/conf/core/fc-links", featuresTree.fcLinks},
		{"/conf/core/fc-timeStamp", featuresTree.fcTimeStamp},
		{"/conf/core/fc-numberMatched", featuresTree.fcNumberMatched},
		{"/conf/core/fc-numberReturned", featuresTree.fcNumberReturned},
		{"/conf/core/f-op", featuresTree.fOp},
		{"/conf/core/f-success", featuresTree.fSuccess},
		{"/conf/core/f-links", featuresTree.fLinks},
		{"/conf/geojson/definition", featuresTree.geojsonDefinition},
		{"/conf/geojson/content", featuresTree.geojsonContent},
		{"/conf/oas30/completeness", featuresTree.completeness},
		{"/conf/oas30/exceptions-codes", featuresTree.exceptionsCodes},
		{"/conf/oas30/oas-definition-1", featuresTree.oasDefinition1},
		{"/conf/oas30/oas-definition-2", featuresTree.oasDefinition2},
		{"/conf/oas30/oas-impl", featuresTree.oasImpl},
		{"/conf/oas30/security", featuresTree.security},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.t, f.c.t = t, t
			test.run(f)
		})
	}
}

// newFeaturesTree starts the service. The collections are a grid, files whose footprints do not fill their boxes, files
// of a survey, and none.
func newFeaturesTree(t *testing.T) featuresTree {
	ts := startServer(t, nil, "CAIRN_BASE_URL=")
	ts.addFiles("tiles", gridOfTiles(t, 4))
	ts.addFiles("mixed", []ElevationDatasetFileMeta{
		placedFile(t, "utm.tif", 25832, 10, 0, 500_000, 0, -10, 5_300_000),
		placedFile(t, "turned.tif", 32633, 3000, 2000, 300_000, 2000, -3000, 5_000_000),
		placedFile(t, "north.tif", 3413, 9000, 0, -450_000, 0, -9000, -1_000_000),
		placedFile(t, "across.tif", 4326, 0.01, 0, 179.5, 0, -0.02, 1),
	})
	surveyed := ts.addFiles("surveyed", gridOfTiles(t, 2))
	ts.exec(`UPDATE datasets SET about = about || '{"surveyed_from": "2024-03-01", "surveyed_until": "2024-04-30"}' WHERE id = $1`, surveyed)
	ts.addFiles("empty", nil)

	c := ts.signIn("ada", datasetRead)
	token := ts.addToken("ada", "desk", datasetRead).token
	return featuresTree{
		t: t, ts: ts, c: c,
		api:    c.must(200, "GET", stacPath+"/api", nil).json,
		unable: ts.signIn("bob", metricsRead).token,
		ways: map[string]string{
			"basic":  "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("any:"+token)),
			"bearer": "Authorization: Bearer " + token,
			"cookie": "Cookie: " + ts.browse("ada").cookie,
		},
	}
}

// get returns the JSON object at a path below the landing page.
func (f featuresTree) get(path string) map[string]any {
	f.t.Helper()
	return f.c.must(200, "GET", stacPath+path, nil).json
}

// objects returns the objects of the list in a field.
func objects(o map[string]any, field string) (list []map[string]any) {
	values, _ := o[field].([]any)
	for _, value := range values {
		object, _ := value.(map[string]any)
		list = append(list, object)
	}
	return list
}

// linked returns the paths below the landing page of the links with a relation. Those to other places are whole.
func (f featuresTree) linked(o map[string]any, rel string) (paths []string) {
	for _, link := range objects(o, "links") {
		if link["rel"] == rel {
			paths = append(paths, strings.TrimPrefix(fmt.Sprint(link["href"]), f.ts.url+stacPath))
		}
	}
	return paths
}

// checkLinks checks that an object has a link to itself, and that all its links have a URL, a relation and a media type.
func (f featuresTree) checkLinks(path string, o map[string]any) {
	f.t.Helper()
	check(f.t, path+": links to itself", fmt.Sprint(f.linked(o, "self")), fmt.Sprint([]string{path}))
	for _, link := range objects(o, "links") {
		for _, field := range []string{"href", "rel", "type"} {
			text, _ := link[field].(string)
			check(f.t, fmt.Sprint(path, ": ", link, " has ", field), text != "", true)
		}
	}
}

// collections returns the collections by their paths below the landing page.
func (f featuresTree) collections() map[string]map[string]any {
	f.t.Helper()
	collections := map[string]map[string]any{}
	for _, collection := range objects(f.get("/collections"), "collections") {
		collections[fmt.Sprint("/collections/", collection["id"])] = collection
	}
	check(f.t, "collections", len(collections), 4)
	return collections
}

// all returns the features of a query, page by page.
func (f featuresTree) all(path string) (features []map[string]any) {
	f.t.Helper()
	for next := []string{path}; len(next) > 0; {
		page := f.get(next[0])
		features = append(features, objects(page, "features")...)
		next = f.linked(page, "next")
	}
	return features
}

// itemPaths returns the paths of the features of all collections.
func (f featuresTree) itemPaths() (paths []string) {
	f.t.Helper()
	for collection := range f.collections() {
		for _, feature := range f.all(collection + "/items") {
			paths = append(paths, fmt.Sprint(collection, "/items/", feature["id"]))
		}
	}
	check(f.t, "features", len(paths), 16+4+4)
	return paths
}

// paths returns the paths of all resources but search, whose answers are those of a collection's items.
func (f featuresTree) paths() []string {
	paths := append([]string{"", "/", "/conformance", "/collections"}, f.itemPaths()...)
	for collection := range f.collections() {
		paths = append(paths, collection, collection+"/items")
	}
	return paths
}

// featurePages returns pages of features by their paths: of each collection, with and without filters.
func (f featuresTree) featurePages() map[string]map[string]any {
	pages := map[string]map[string]any{}
	for collection := range f.collections() {
		for _, query := range []string{"", "?limit=3", "?bbox=-1.5,-1.5,0.5,0.5", "?datetime=2023-11-14T22:13:21Z/..", "?bbox=50,0,60,1", "?limit=1&bbox=-2,-2,2,2&datetime=../2024-03-15T00:00:00Z"} {
			pages[collection+"/items"+query] = f.get(collection + "/items" + query)
		}
	}
	return pages
}

// ringsOf returns the rings of a Polygon or a MultiPolygon without holes. It checks that they are rings of GeoJSON.
func (f featuresTree) ringsOf(geometry any) (rings [][]position) {
	f.t.Helper()
	object, _ := geometry.(map[string]any)
	encoded, err := json.Marshal(object["coordinates"])
	if err != nil {
		f.t.Fatal(err)
	}
	polygons := make([][][]position, 1)
	var target any = &polygons
	if object["type"] == "Polygon" {
		target = &polygons[0]
	} else {
		check(f.t, "the type of a geometry", object["type"], any("MultiPolygon"))
	}
	if err := json.Unmarshal(encoded, target); err != nil {
		f.t.Fatal(err)
	}

	for _, polygon := range polygons {
		check(f.t, "rings of a polygon", len(polygon), 1)
		ring := polygon[0]
		check(f.t, fmt.Sprint(ring, " is closed"), len(ring) >= 4 && ring[0] == ring[len(ring)-1], true)
		rings = append(rings, ring)
	}
	return rings
}

// meets reports whether a feature has a point in common with a box of west, south, east and north.
func (f featuresTree) meets(feature map[string]any, box [4]float64) bool {
	var shapes []modelShape
	for i, ring := range f.ringsOf(feature["geometry"]) {
		shape := modelShape{isRing: true, part: i}
		for _, p := range ring {
			shape.chain = append(shape.chain, exactly(p))
		}
		shapes = append(shapes, shape)
	}

	parts := [][2]float64{{box[0], box[2]}}
	if box[0] > box[2] { // it crosses 180°
		parts = [][2]float64{{box[0], 180}, {-180, box[2]}}
	}
	for _, part := range parts {
		shape := modelShape{isRing: true}
		for _, p := range []position{{part[0], box[1]}, {part[1], box[1]}, {part[1], box[3]}, {part[0], box[3]}, {part[0], box[1]}} {
			shape.chain = append(shape.chain, exactly(p))
		}
		if modelMeets(shapes, []modelShape{shape}) {
			return true
		}
	}
	return false
}

// spanOf returns the first and the last moment of a feature.
func (f featuresTree) spanOf(feature map[string]any) (first, last time.Time) {
	f.t.Helper()
	properties, _ := feature["properties"].(map[string]any)
	at := func(field string) time.Time {
		text, _ := properties[field].(string)
		moment, err := time.Parse(time.RFC3339, text)
		check(f.t, fmt.Sprint(field, " of ", properties), err, nil)
		return moment
	}
	if properties["datetime"] != nil {
		return at("datetime"), at("datetime")
	}
	return at("start_datetime"), at("end_datetime")
}

// http: every answer is one of HTTP/1.1. TestTLS asks over TLS.
func (f featuresTree) http() {
	for _, path := range f.paths() {
		r, err := http.NewRequest("GET", f.ts.url+stacPath+path, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+f.c.token)
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			f.t.Fatal(err)
		}
		response.Body.Close()
		check(f.t, path, fmt.Sprint(response.Proto, response.StatusCode), "HTTP/1.1200")
	}
}

// crs84: without a CRS in the request, geometries are in longitude and latitude of WGS 84.
func (f featuresTree) crs84() {
	for collection := range f.collections() {
		for _, feature := range f.all(collection + "/items") {
			for _, ring := range f.ringsOf(feature["geometry"]) {
				for _, p := range ring {
					isOnGlobe := p[0] >= -180 && p[0] <= 180 && p[1] >= -90 && p[1] <= 90
					check(f.t, fmt.Sprint(feature["id"], ": ", p, " is on the globe"), isOnGlobe, true)
				}
			}
		}
	}

	// The north-west corner of utm.tif lies on the central meridian of its zone.
	utm := f.all("/collections/2/items?path=utm.tif")
	corner := position{9, 47.8535}
	box := [4]float64{corner[0] - 0.001, corner[1] - 0.001, corner[0] + 0.001, corner[1] + 0.001}
	check(f.t, "utm.tif at 9° east", len(utm) == 1 && f.meets(utm[0], box), true)
	check(f.t, "utm.tif west of 9°", f.meets(utm[0], [4]float64{8, 47, 8.999, 48}), false)
}

// root-op: there is a landing page.
func (f featuresTree) rootOp() {
	f.get("/")
	f.rootSuccess()
}

// root-success: the landing page has links to the API's definition, to the conformance classes and to the data.
func (f featuresTree) rootSuccess() {
	page := f.get("/")
	f.checkLinks("", page)
	check(f.t, "links to the definition", fmt.Sprint(f.linked(page, "service-desc")), "[/api]")
	check(f.t, "links to the page of the definition", fmt.Sprint(f.linked(page, "service-doc")), "[/api.html]")
	check(f.t, "links to the conformance classes", fmt.Sprint(f.linked(page, "conformance")), "[/conformance]")
	check(f.t, "links to the data", fmt.Sprint(f.linked(page, "data")), "[/collections]")
	for _, field := range []string{"title", "description"} {
		check(f.t, field+" is text", reflect.TypeOf(page[field]), reflect.TypeFor[string]())
	}
}

// conformance-op: the conformance classes are at the path of the standard and where the landing page says.
func (f featuresTree) conformanceOp() {
	for _, path := range append(f.linked(f.get("/"), "conformance"), "/conformance") {
		f.get(path)
	}
	f.conformanceSuccess()
}

// conformance-success: the classes are a list of URLs. It has all classes that the service implements, first the core.
func (f featuresTree) conformanceSuccess() {
	var classes []string
	for _, class := range f.get("/conformance")["conformsTo"].([]any) {
		classes = append(classes, class.(string))
	}
	for _, class := range []string{"core", "geojson", "oas30"} {
		class = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/" + class
		check(f.t, class+" is listed", slices.Contains(classes, class), true)
	}
	check(f.t, "classes of the landing page", fmt.Sprint(f.get("/")["conformsTo"]), fmt.Sprint(classes))
}

// fc-md-op: the collections are at the path of the standard.
func (f featuresTree) fcMdOp() {
	f.get("/collections")
	f.fcMdSuccess()
}

// fc-md-success: the collections are as fc-md-links and fc-md-items demand, and the first of their CRSs is CRS84.
func (f featuresTree) fcMdSuccess() {
	f.fcMdLinks()
	f.fcMdItems()
	for path, collection := range f.collections() {
		crs, _ := collection["crs"].([]any)
		check(f.t, path+": the first CRS", crs[0], any("http://www.opengis.net/def/crs/OGC/1.3/CRS84"))
		check(f.t, path+": title is text", reflect.TypeOf(collection["title"]), reflect.TypeFor[string]())
		check(f.t, path+": description is text", reflect.TypeOf(collection["description"]), reflect.TypeFor[string]())
		check(f.t, path+": type of its items", collection["itemType"], any("feature"))
	}
}

// fc-md-links: the list of collections links to itself.
func (f featuresTree) fcMdLinks() { f.checkLinks("/collections", f.get("/collections")) }

// fc-md-items: every collection is in the list, with an id, links and an extent.
func (f featuresTree) fcMdItems() {
	var titles []string
	for path, collection := range f.collections() {
		titles = append(titles, fmt.Sprint(collection["title"]))
		check(f.t, path+": id is text", reflect.TypeOf(collection["id"]), reflect.TypeFor[string]())
	}
	slices.Sort(titles)
	check(f.t, "collections", fmt.Sprint(titles), "[empty mixed surveyed tiles]")
	f.fcMdItemsLinks()
	f.fcMdExtent()
}

// fc-md-items-links: each collection in the list links to its features.
func (f featuresTree) fcMdItemsLinks() {
	for path, collection := range f.collections() {
		f.checkLinks(path, collection)
		check(f.t, path+": links to its features", fmt.Sprint(f.linked(collection, "items")), fmt.Sprint([]string{path + "/items"}))
		for _, link := range objects(collection, "links") {
			if link["rel"] == "items" {
				check(f.t, path+": type of its features", link["type"], any(typeGeoJSON))
			}
		}
	}
}

// fc-md-extent: the extent of a collection holds the geometries and times of all its features.
func (f featuresTree) fcMdExtent() {
	for path, collection := range f.collections() {
		extent := collection["extent"].(map[string]any)
		box := extent["spatial"].(map[string]any)["bbox"].([]any)[0].([]any)
		west, south, east, north := box[0].(float64), box[1].(float64), box[2].(float64), box[3].(float64)
		interval := extent["temporal"].(map[string]any)["interval"].([]any)[0].([]any)

		for _, feature := range f.all(path + "/items") {
			for _, ring := range f.ringsOf(feature["geometry"]) {
				for _, p := range ring {
					isWithin := p[0] >= west && p[0] <= east
					if west > east { // it crosses 180°
						isWithin = p[0] >= west || p[0] <= east
					}
					isWithin = isWithin && p[1] >= south && p[1] <= north
					check(f.t, fmt.Sprint(path, ": ", box, " holds ", p), isWithin, true)
				}
			}

			first, last := f.spanOf(feature)
			begin, err := time.Parse(time.RFC3339, interval[0].(string))
			check(f.t, path+": begin of the interval", err, nil)
			end, err := time.Parse(time.RFC3339, interval[1].(string))
			check(f.t, path+": end of the interval", err, nil)
			check(f.t, fmt.Sprint(path, ": ", interval, " holds ", first, last), !first.Before(begin) && !last.After(end), true)
		}
	}
}

// sfc-md-op: every collection of the list is at its own path.
func (f featuresTree) sfcMdOp() { f.sfcMdSuccess() }

// sfc-md-success: a collection says the same at its own path as in the list.
func (f featuresTree) sfcMdSuccess() {
	for path, collection := range f.collections() {
		if alone := f.get(path); !reflect.DeepEqual(alone, collection) {
			f.t.Errorf("%s: %v\nin the list: %v", path, alone, collection)
		}
	}
}

// fc-op: the features of every collection are at their path, all of them and by box and time. Both at once select the
// features that each of them selects.
func (f featuresTree) fcOp() {
	f.fcResponse()
	for collection := range f.collections() {
		path := collection + "/items?"
		for _, box := range []string{"-1.5,-1.5,0.5,0.5", "179,-90,-170,90", "8,40,20,50"} {
			for _, interval := range []string{"2023-11-14T22:13:24Z/..", "../2023-11-14T22:13:24Z", "2024-04-01T00:00:00Z"} {
				byTime := titlesOf(f.all(path + "datetime=" + interval))
				var want []string
				for _, title := range titlesOf(f.all(path + "bbox=" + box)) {
					if slices.Contains(byTime, title) {
						want = append(want, title)
					}
				}
				got := titlesOf(f.all(path + "bbox=" + box + "&datetime=" + interval))
				check(f.t, fmt.Sprint(path, box, " ", interval), fmt.Sprint(got), fmt.Sprint(want))
			}
		}
	}
}

// titlesOf returns the titles of features, in order.
func titlesOf(features []map[string]any) (titles []string) {
	for _, feature := range features {
		properties, _ := feature["properties"].(map[string]any)
		titles = append(titles, fmt.Sprint(properties["title"]))
	}
	return titles
}

// parameter returns a parameter of the features of a collection as the definition has it, without the description and
// what the standard leaves open.
func (f featuresTree) parameter(name string) map[string]any {
	operation := f.api["paths"].(map[string]any)["/collections/{collectionId}/items"].(map[string]any)["get"]
	for _, p := range objects(operation.(map[string]any), "parameters") {
		if p = f.resolved(p); p["name"] == name {
			p, schema := maps.Clone(p), maps.Clone(p["schema"].(map[string]any))
			delete(p, "description")
			for _, open := range []string{"default", "minimum", "maximum"} {
				delete(schema, open)
			}
			p["schema"] = schema
			return p
		}
	}
	f.t.Fatalf("the definition has no parameter %s", name)
	return nil
}

// checkParameter checks the definition of a parameter.
func (f featuresTree) checkParameter(name, schema string) {
	f.t.Helper()
	got, err := json.Marshal(f.parameter(name))
	check(f.t, name, err, nil)
	check(f.t, name, string(got), `{"explode":false,"in":"query","name":"`+name+`","required":false,"schema":`+schema+`,"style":"form"}`)
}

// fc-bbox-definition: bbox is a list of four numbers or six. The version of 2019 has minItems and maxItems, that of 2022
// oneOf: both are there.
func (f featuresTree) fcBboxDefinition() {
	f.checkParameter("bbox", `{"items":{"type":"number"},"maxItems":6,"minItems":4,`+
		`"oneOf":[{"maxItems":4,"minItems":4},{"maxItems":6,"minItems":6}],"type":"array"}`)
}

// fc-bbox-response: a box selects the features whose geometry it meets, and no others. All features have a geometry.
func (f featuresTree) fcBboxResponse() {
	random := rand.New(rand.NewPCG(1, 2))
	for collection := range f.collections() {
		features := f.all(collection + "/items")
		for range 25 {
			box := [4]float64{random.Float64()*8 - 4, random.Float64()*8 - 4}
			if len(features) > 0 { // near a corner of a feature
				rings := f.ringsOf(features[random.IntN(len(features))]["geometry"])
				corner := rings[0][random.IntN(len(rings[0]))]
				box[0] = max(corner[0]+random.Float64()*2-2, -180)
				box[1] = max(corner[1]+random.Float64()*2-2, -90)
			}
			box[2] = box[0] + random.Float64()*2
			box[3] = min(box[1]+random.Float64()*2, 90)
			if box[2] > 180 {
				box[2] -= 360
			}

			found := titlesOf(f.all(fmt.Sprintf("%s/items?bbox=%v,%v,%v,%v", collection, box[0], box[1], box[2], box[3])))
			for i, title := range titlesOf(features) {
				check(f.t, fmt.Sprint(collection, ": ", box, " finds ", title), slices.Contains(found, title), f.meets(features[i], box))
			}
		}
	}
}

// fc-limit-definition: limit is a whole number.
func (f featuresTree) fcLimitDefinition() { f.checkParameter("limit", `{"type":"integer"}`) }

// fc-limit-response: a page has no more features than limit says, and than the maximum. A greater limit is no error.
func (f featuresTree) fcLimitResponse() {
	for collection := range f.collections() {
		for _, limit := range []int{1, 3, maxItems, maxItems + 1, 10 * maxItems} {
			page := f.get(fmt.Sprint(collection, "/items?limit=", limit))
			check(f.t, fmt.Sprint(collection, " with limit ", limit), len(objects(page, "features")) <= min(limit, maxItems), true)
		}
	}
}

// fc-time-definition: datetime is text.
func (f featuresTree) fcTimeDefinition() { f.checkParameter("datetime", `{"type":"string"}`) }

// fc-time-response: a time or an interval selects the features whose time it meets, and no others. All features have a
// time.
func (f featuresTree) fcTimeResponse() {
	for collection := range f.collections() {
		features := f.all(collection + "/items")
		for _, interval := range []string{
			"2023-11-14T22:13:22Z", "2023-11-14T23:13:22+01:00", "2024-03-15T12:00:00Z", "2024-04-30T23:59:59.9Z",
			"2023-11-14T22:13:22Z/2023-11-14T22:13:25Z", "2023-11-14T22:13:30Z/..", "2023-11-14T22:13:30Z/",
			"../2023-11-14T22:13:30Z", "/1970-01-01T00:00:00Z", "2024-04-15T00:00:00Z/2025-01-01T00:00:00Z",
		} {
			begin, end, isInterval := strings.Cut(interval, "/")
			if !isInterval {
				end = begin
			}
			found := titlesOf(f.all(collection + "/items?datetime=" + strings.Replace(interval, "+", "%2B", 1)))
			for i, title := range titlesOf(features) {
				first, last := f.spanOf(features[i])
				from, err := time.Parse(time.RFC3339, begin)
				isAfter := err != nil || !last.Before(from)
				until, err := time.Parse(time.RFC3339, end)
				isBefore := err != nil || !first.After(until)
				check(f.t, fmt.Sprint(collection, ": ", interval, " finds ", title), slices.Contains(found, title), isAfter && isBefore)
			}
		}
	}
}

// query-param-invalid: a parameter with a wrong value is answered with 400.
func (f featuresTree) queryParamInvalid() {
	for collection := range f.collections() {
		for _, query := range []string{
			"bbox=1,2,3", "bbox=1,2,3,x", "bbox=1,2,3,4,5", "limit=0", "limit=-1", "limit=many",
			"datetime=yesterday", "datetime=2023-11-14", "datetime=2024-01-02T00:00:00Z/2024-01-01T00:00:00Z",
		} {
			f.c.must(400, "GET", stacPath+collection+"/items?"+query, nil)
		}
	}
}

// query-param-unknown: a parameter that the definition does not have is answered with 400.
func (f featuresTree) queryParamUnknown() {
	for _, path := range f.paths() {
		f.c.must(400, "GET", stacPath+path+"?unknown=1", nil)
	}
}

// fc-response: a page of features is a FeatureCollection, with features that the query selects.
func (f featuresTree) fcResponse() {
	for path, page := range f.featurePages() {
		check(f.t, path+": type", page["type"], any("FeatureCollection"))
		check(f.t, path+": features is a list", reflect.TypeOf(page["features"]), reflect.TypeFor[[]any]())
		for _, feature := range objects(page, "features") {
			check(f.t, path+": type of a feature", feature["type"], any("Feature"))
		}
	}
}

// fc-links: a page of features links to itself.
func (f featuresTree) fcLinks() {
	for path, page := range f.featurePages() {
		f.checkLinks(path, page)
	}
}

// fc-timeStamp: timeStamp is optional, and a page has none.
func (f featuresTree) fcTimeStamp() {
	for path, page := range f.featurePages() {
		check(f.t, path+": timeStamp", page["timeStamp"], nil)
	}
}

// fc-numberMatched: it is the number of features on all pages of the query.
func (f featuresTree) fcNumberMatched() {
	for path, page := range f.featurePages() {
		check(f.t, path+": numberMatched", page["numberMatched"], any(float64(len(f.all(path)))))
	}
}

// fc-numberReturned: it is the number of features on the page.
func (f featuresTree) fcNumberReturned() {
	for path, page := range f.featurePages() {
		check(f.t, path+": numberReturned", page["numberReturned"], any(float64(len(objects(page, "features")))))
	}
}

// f-op: every feature is at its path.
func (f featuresTree) fOp() { f.fSuccess() }

// f-success: a feature is as f-links and geojson/content demand.
func (f featuresTree) fSuccess() {
	f.fLinks()
	f.geojsonContent()
}

// f-links: a feature links to itself and to its collection.
func (f featuresTree) fLinks() {
	for _, path := range f.itemPaths() {
		feature := f.get(path)
		f.checkLinks(path, feature)
		collection, _, _ := strings.Cut(path, "/items/")
		check(f.t, path+": links to its collection", fmt.Sprint(f.linked(feature, "collection")), fmt.Sprint([]string{collection}))
	}
}

// geojson/definition: features come as application/geo+json, and all else as application/json, whatever of both the
// client prefers.
func (f featuresTree) geojsonDefinition() {
	for _, path := range f.paths() {
		want := typeJSON
		if strings.Contains(path, "/items") {
			want = typeGeoJSON
		}
		for _, accept := range []string{typeGeoJSON, typeJSON, "*/*"} {
			a := f.c.must(200, "GET", stacPath+path, nil, "Accept: "+accept)
			check(f.t, path+" for Accept: "+accept, a.header.Get("Content-Type"), want)
		}
	}
}

// geojson/content: a feature is one of GeoJSON, and its id is the last part of its path.
func (f featuresTree) geojsonContent() {
	for _, path := range f.itemPaths() {
		feature := f.get(path)
		check(f.t, path+": type", feature["type"], any("Feature"))
		check(f.t, path+": id", path[strings.LastIndex(path, "/")+1:], fmt.Sprint(feature["id"]))
		check(f.t, path+": properties are an object", reflect.TypeOf(feature["properties"]), reflect.TypeFor[map[string]any]())
		check(f.t, path+": has a ring", len(f.ringsOf(feature["geometry"])) > 0, true)
	}
}
