package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The extensions of STAC that items and collections use. Version 1.2 of Projection has both
// proj:epsg, which GDAL 3.6 reads, and proj:code, which newer clients read.
const (
	stacProjection = "https://stac-extensions.github.io/projection/v1.2.0/schema.json"
	stacRaster     = "https://stac-extensions.github.io/raster/v1.1.0/schema.json"
	stacFile       = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
	stacItemAssets = "https://stac-extensions.github.io/item-assets/v1.0.0/schema.json"
)

// itemsOf returns files as STAC Items for a request.
func (c *catalogue) itemsOf(r *http.Request, files ...datasetFile) ([]object, error) {
	datasets, err := datasetsOf(r.Context(), c.core.db, files)
	items := []object{}
	for _, f := range files {
		items = append(items, c.itemOf(r, f, datasets[f.DatasetID].About))
	}
	return items, err
}

// itemOf returns a file as a STAC Item, which is a GeoJSON feature, for a request. about describes
// its dataset. The property href is for programs that show no assets.
func (c *catalogue) itemOf(r *http.Request, f datasetFile, about datasetAbout) object {
	base := c.core.baseURL(r)
	root := base + stacPath
	href := base + dataPath(f.DatasetID, f.Path)
	id := fmt.Sprint(f.ID)
	collection := collectionURL(root, f.DatasetID)

	properties := object{
		"title":        f.Path,
		"datetime":     inMilliseconds(&f.ModifiedAt),
		"license":      about.stacLicense(),
		"format":       f.Format,
		"proj:code":    f.CRS,
		"proj:epsg":    nil,
		"sample_type":  f.SampleType,
		"nodata":       f.Nodata,
		"vertical_crs": f.VerticalCRS,
		"warnings":     strings.Join(f.Warnings, "; "),
	}
	if first, last := about.survey(); first != nil && last != nil {
		properties["datetime"] = nil
		properties["start_datetime"] = first
		properties["end_datetime"] = last
	}
	if f.CRS != nil {
		code := strings.TrimPrefix(*f.CRS, "EPSG:") // a row has no other text
		properties["proj:epsg"] = json.Number(code)
	}
	if f.ResolutionM != nil {
		properties["gsd"] = f.ResolutionM
	}

	if principalOf(r).holds(datasetDownload) {
		properties["href"] = href
	}

	hasSize := f.Width != nil && f.Height != nil
	if hasSize && f.Transform != nil && f.NativeBBox != nil {
		properties["proj:transform"] = f.Transform
		properties["proj:bbox"] = f.NativeBBox
		properties["proj:shape"] = []int64{*f.Height, *f.Width}
	}

	assets, extensions := stacAssets(f, base, href)
	item := featureOf(f.ElevationDatasetFileMeta, properties)
	maps.Copy(item, object{
		"stac_version":    "1.0.0",
		"stac_extensions": extensions,
		"id":              id,
		"collection":      fmt.Sprint(f.DatasetID),
		"links": []object{
			stacLink("self", collection+"/items/"+id, typeGeoJSON),
			stacLink("root", root, typeJSON),
			stacLink("parent", collection, typeJSON),
			stacLink("collection", collection, typeJSON),
		},
		"assets": assets,
	})
	return item
}

// stacAssets returns the assets of an item, and the extensions that it uses: the file at href, and
// a picture of its heights if an analysis has read them.
func stacAssets(f datasetFile, base, href string) (assets object, extensions []string) {
	data := object{
		"href":      href,
		"type":      mediaType(f.extent),
		"title":     f.Path,
		"roles":     []string{"data"},
		"file:size": f.SizeBytes,
	}
	if checksum := f.multihash(); checksum != "" {
		data["file:checksum"] = checksum
	}

	assets = object{"data": data}
	extensions = []string{stacProjection, stacFile}
	if h := f.Heights; h != nil && h.Statistics != nil {
		extensions = append(extensions, stacRaster)
		data["raster:bands"] = []object{h.Statistics.stac()}
		assets["thumbnail"] = object{
			"href":  fmt.Sprintf("%s/api/v1/datasets/%d/files/%d/relief.png?size=256", base, f.DatasetID, f.ID),
			"type":  "image/png",
			"title": "Picture of the heights",
			"roles": []string{"thumbnail"},
		}
	}
	return assets, extensions
}

// itemFilters are the parameters of a search.
const itemFilters = fileFilters + " limit cursor datetime ids collections sortby"

// getItem answers GET /api/v1/stac/collections/{id}/items/{file}.
func (c *catalogue) getItem(w http.ResponseWriter, r *http.Request) error {
	file, _, err := c.pathFile(r)
	if err != nil {
		return err
	}
	items, err := c.itemsOf(r, file)
	if err != nil {
		return err
	}
	return writeGeoJSON(w, items[0])
}

// writeGeoJSON answers with v as GeoJSON.
func writeGeoJSON(w http.ResponseWriter, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return writeBytes(w, http.StatusOK, typeGeoJSON, body)
}

// readSearch returns the parameters of a search. It first waits for the slot that the search needs.
// The fields of the JSON body of a POST are the parameters of GET, but lists are arrays, limit is a
// number, and the geometry is an object. body is nil for a GET.
func readSearch(r *http.Request) (query url.Values, body object, err error) {
	// A body or an area is read, and compared with files, on a core of the request's own.
	sent := r.URL.Query()
	if r.Method == http.MethodPost || sent.Has("intersects") || sent.Has("bbox") {
		err := callerOf(r).slots.acquire(r.Context(), heavy)
		if err != nil {
			return nil, nil, err
		}
	}

	if isRead(r) {
		return sent, nil, nil
	}
	if err := decodeJSON(r, &body); err != nil {
		return nil, nil, err
	}

	// Write each field as the parameter of a GET.
	types := map[string]string{
		"limit":       "number",
		"bbox":        "array of numbers",
		"point":       "array of numbers",
		"ids":         "array of strings",
		"collections": "array of strings",
		"intersects":  "object",
		"sortby":      "array of objects with field and direction",

		"resolution_min": "number",
		"resolution_max": "number",
		"size_min":       "number",
		"size_max":       "number",
	}
	query = url.Values{}
	for _, name := range slices.Sorted(maps.Keys(body)) {
		if !slices.Contains(strings.Fields(itemFilters), name) {
			return nil, nil, malformed(codeUnknownField, "There is no field %.64q.", name)
		}

		value := body[name]
		if value == nil {
			continue
		}

		want := cmp.Or(types[name], "string")
		text, ok := parameterText(value, want)
		if name == "sortby" {
			text, ok = sortText(value)
		}
		if !ok {
			return nil, nil, malformed(codeWrongType, "%s must be a JSON %s.", name, want)
		}
		if strings.ContainsRune(text, 0) {
			return nil, nil, malformed(codeMalformedJSON, "The field %.64q is not text.", name)
		}
		query.Set(name, text)
	}
	return query, body, nil
}

// parameterText returns a JSON value as the text of a query parameter. ok is false if the value is
// not of the type. It leaves out the texts of an array that have a comma: no id has one.
func parameterText(value any, want string) (text string, ok bool) {
	switch v := value.(type) {
	case string:
		return v, want == "string"
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), want == "number"
	case object:
		encoded, err := json.Marshal(v)
		return string(encoded), err == nil && want == "object"
	case []any:
		kind, isArray := strings.CutPrefix(strings.TrimSuffix(want, "s"), "array of ")
		var texts []string
		for _, item := range v {
			text, isKind := parameterText(item, kind)
			isArray = isArray && isKind
			if !strings.Contains(text, ",") {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, ","), isArray
	}
	return "", false
}

// sortText returns the JSON value of sortby as the text of a query parameter, which readSortBy
// checks. ok is false if it is not a list of objects with two fields.
func sortText(value any) (text string, ok bool) {
	list, ok := value.([]any)
	signs := map[string]string{"asc": "+", "desc": "-"}
	var keys []string
	for _, item := range list {
		key, _ := item.(object)
		sign := signs[fmt.Sprint(key["direction"])]
		ok = ok && len(key) == 2
		keys = append(keys, fmt.Sprint(cmp.Or(sign, "?"), key["field"]))
	}
	return strings.Join(keys, ","), ok
}

// sortKeys matches sortby (STAC API, Sort extension) after a comma. A sign + in a query is often
// decoded to a blank.
var sortKeys = regexp.MustCompile(`^(,[+ -]?(properties\.)?(datetime|gsd)){0,2}(,[+ -]?(properties\.title|title|id))?$`)

// readSortBy reads the order of a search: up to two numbers, and at the end the title or the id,
// which only files of different datasets share. Titles are compared upwards, and the indexes of
// numbers go down. So some orders are those of the swapped signs, reversed.
func (f *fileFilter) readSortBy(text string) error {
	text = "," + text
	if !sortKeys.MatchString(text) {
		return malformed(codeWrongType, "sortby takes properties.datetime and properties.gsd, "+
			"and at the end properties.title or id, each with + or - before it.")
	}

	// A key without a sign goes upwards. Other signs stay.
	named := strings.NewReplacer(
		",+", ",+",
		",-", ",-",
		", ", ",+",
		",", ",+",
		"properties.", "",
		"gsd", "resolution",
	)
	keys := named.Replace(text)
	last := keys[strings.LastIndex(keys, ",")+1:]
	f.isDown = slices.Contains(strings.Fields("-title -id +datetime +resolution"), last)
	if f.isDown {
		swapped := strings.NewReplacer("+", "-", "-", "+")
		keys = swapped.Replace(keys)
	}
	f.sort = strings.Split(keys[1:], ",")
	return nil
}

// The usual and the largest number of items on a page. dataset_stac_api.json states both.
const (
	defaultItems = 100
	maxItems     = 1000
)

// searchItems answers GET and POST /api/v1/stac/search, and GET …/collections/{id}/items for one
// dataset, with a page of items.
func (c *catalogue) searchItems(w http.ResponseWriter, r *http.Request) error {
	query, body, err := readSearch(r)
	if err != nil {
		return err
	}

	f, err := readItemFilter(query)
	if err != nil {
		if p := problemIn(err); p != nil {
			p.status = http.StatusBadRequest // always (OGC API Features, section 7.5.1)
		}
		return err
	}
	if _, err := c.selectVisible(r, &f); err != nil {
		return err
	}

	limit, offset, err := readItemRange(query, maxHits)
	if err != nil {
		return err
	}
	query.Del("offset") // the next page has a cursor

	scope, after, err := c.core.readCursor(r.URL.Path, query, f.first())
	if err != nil {
		return err
	}

	// findFiles may stop early, but the files that offset leaves out must be known.
	var files []datasetFile
	next := after
	for next != nil && len(files) <= offset {
		var more []datasetFile
		more, next, err = findFiles(r.Context(), c.core.db, f, next, offset+limit-len(files))
		if err != nil {
			return err
		}
		files = append(files, more...)
	}

	// numberMatched must be exact, or missing. With a geometry, all files would be compared for it.
	answer := object{"type": "FeatureCollection"}
	isAll := next == nil && !query.Has("cursor")
	if isAll {
		answer["numberMatched"] = len(files)
	} else if !query.Has("intersects") {
		total, err := countFiles(r.Context(), c.core.db, f)
		if err != nil {
			return err
		}
		if !total.TotalIsEstimate {
			answer["numberMatched"] = total.Total
		}
	}

	base := c.core.baseURL(r)
	links := []object{
		stacLink("self", base+r.URL.RequestURI(), typeGeoJSON),
		stacLink("root", base+stacPath, typeJSON),
	}
	if f.datasetID != nil {
		collection := collectionURL(base+stacPath, *f.datasetID)
		links = append(links, stacLink("collection", collection, typeJSON))
	}
	if next != nil {
		cursor := c.core.keys.Load().signCursor(scope, next)
		at := base + r.URL.EscapedPath()
		links = append(links, nextPage(at, query, body, cursor))
	}

	items, err := c.itemsOf(r, files[min(offset, len(files)):]...)
	if err != nil {
		return err
	}
	answer["features"] = items
	answer["links"] = links
	answer["numberReturned"] = len(items)
	return writeGeoJSON(w, answer)
}

// nextPage returns the link to the next page of a search at a URL, with the parameters that
// readSearch returned.
func nextPage(at string, query url.Values, body object, cursor string) object {
	if body == nil {
		query.Set("cursor", cursor)
		return stacLink("next", at+"?"+query.Encode(), typeGeoJSON)
	}

	body["cursor"] = cursor
	link := stacLink("next", at, typeGeoJSON)
	link["method"] = http.MethodPost
	link["body"] = body
	return link
}

// readItemRange returns the number of items on a page, and how many are left out before it, at most
// maxOffset. A greater limit than maxItems becomes maxItems.
func readItemRange(query url.Values, maxOffset int) (limit, offset int, err error) {
	limit, err = strconv.Atoi(cmp.Or(query.Get("limit"), strconv.Itoa(defaultItems)))
	isNumber := err == nil || errors.Is(err, strconv.ErrRange) // then limit is the nearest number
	if !isNumber || limit < 1 {
		return 0, 0, malformed(codeWrongType, "limit must be a number, at least 1.")
	}

	offset, err = strconv.Atoi(cmp.Or(query.Get("offset"), "0"))
	if err != nil || offset < 0 || offset > maxOffset {
		return 0, 0, malformed(codeWrongType, "offset must be a number from 0 to %d.", maxOffset)
	}
	return min(limit, maxItems), offset, nil
}

// readItemFilter reads the parameters of a search: those of a fileFilter, and datetime, ids and
// collections of STAC API, Item Search. A box is an area, too. Without status it selects files
// with an extent.
func readItemFilter(query url.Values) (fileFilter, error) {
	selection := maps.Clone(query)
	selection.Set("sort", sortPath)
	if !selection.Has("status") {
		selection.Set("status", fileStatusOK)
	}

	box, isAtGround := readSearchBox(query.Get("bbox"))
	if query.Has("bbox") {
		selection.Set("bbox", box)
	}

	if query.Get("intersects") == "" {
		selection.Del("intersects")
	}

	f, err := readFileFilter(selection)
	if query.Has("bbox") && err == nil {
		f.area = areaOf(*f.box)
		f.isBox = true
		f.box = f.box.widened()
	}
	if text := query.Get("sortby"); text != "" && err == nil {
		err = f.readSortBy(text)
	}
	f.ids = idList(query, "ids")
	f.datasets = idList(query, "collections")
	if !isAtGround {
		f.ids = []int64{} // which finds nothing
	}
	if text := query.Get("datetime"); text != "" && err == nil {
		f.values["since"], f.values["until"], err = readInterval(text)
	}
	return f, err
}

// readSearchBox returns a box of a search as a fileFilter has it: four numbers, within ±180° and
// ±90°. Longitudes beyond these go on around the globe, and latitudes end at the poles. isAtGround
// is false if the box has heights, but not 0, the height of all footprints (STAC API, Item Search).
// Other text stays as it is: readBox refuses it.
func readSearchBox(text string) (box string, isAtGround bool) {
	at := readNumbers(text)

	// With heights, a box is west, south, lowest, east, north, highest.
	isAtGround = true
	if len(at) == 6 {
		isAtGround = at[2] <= 0 && at[5] >= 0
		at = slices.Delete(at[:5], 2, 3)
	}
	if len(at) != 4 {
		return text, true
	}

	west := at[0]
	east := at[2]
	if max(math.Abs(west), math.Abs(east)) > 180 {
		if east < west {
			east += 360
		}
		west, east = normalizeLongitudes(west, east)
	}
	return fmt.Sprintf("%v,%v,%v,%v", west, max(at[1], -90), east, min(at[3], 90)), isAtGround
}

// idList returns the ids in a parameter, or nil without the parameter. It skips text that is not an
// id: a list of such texts finds no file.
func idList(query url.Values, name string) (ids []int64) {
	if !query.Has(name) {
		return nil
	}

	ids = []int64{}
	for text := range strings.SplitSeq(query.Get(name), ",") {
		id, err := strconv.ParseInt(text, 10, 64)
		isCanonical := strconv.FormatInt(id, 10) == text
		if err == nil && isCanonical {
			ids = append(ids, id)
		}
	}
	return ids
}

// rfc3339 matches a time in the form of RFC 3339, of which time.Parse takes other forms too.
var rfc3339 = regexp.MustCompile(`^.{11}\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:[0-5]\d)$`)

// readInterval reads a time or an interval in the form of RFC 3339 (OGC API Features, section
// 7.15.4). It returns nanoseconds since 1970, and nil for an open end: "" or "..". Times count in
// milliseconds, as items have them: an interval begins and ends with whole ones.
func readInterval(text string) (since, until *int64, err error) {
	wrong := malformed(codeWrongType, "datetime must be a time or an interval, as in 2026-01-31T12:00:00Z/..")
	first, last, isInterval := strings.Cut(text, "/")
	if !isInterval {
		last = first
	}

	var ends [2]*int64
	for i, end := range [...]string{first, last} {
		isOpen := end == "" || end == ".."
		if isInterval && isOpen {
			continue
		}

		text := strings.ToUpper(end)
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || !rfc3339.MatchString(text) {
			return nil, nil, wrong
		}

		at = at.Truncate(time.Millisecond)
		if i == 1 {
			at = at.Add(time.Millisecond - 1)
		}
		ends[i] = new(unixNano(at))
	}

	since = ends[0]
	until = ends[1]
	isUnbounded := since == nil && until == nil
	isReversed := since != nil && until != nil && *since > *until
	if isUnbounded || isReversed {
		return nil, nil, wrong
	}
	return since, until, nil
}
