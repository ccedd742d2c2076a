package main

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stacItem is a file with an extent, as a STAC Item and as a feature.
type stacItem struct {
	Type       string               `json:"type"`
	Version    string               `json:"stac_version"`
	Extensions []string             `json:"stac_extensions"`
	ID         string               `json:"id"`
	Collection string               `json:"collection"`
	BBox       []float64            `json:"bbox,omitempty"`
	Geometry   *geometry            `json:"geometry"`
	Properties stacProperties       `json:"properties"`
	Links      []stacLink           `json:"links"`
	Assets     map[string]stacAsset `json:"assets"`
}

// stacProperties are the properties of an item. Version 1.2 of the extension Projection has both
// proj:code and proj:epsg, of which GDAL 3.6 reads the latter.
type stacProperties struct {
	Title       string    `json:"title"`    // the path
	Datetime    fileTime  `json:"datetime"` // of the last modification
	Format      *string   `json:"format"`
	Code        *string   `json:"proj:code"`
	EPSG        *int      `json:"proj:epsg"`
	ProjBBox    []float64 `json:"proj:bbox,omitempty"`
	Shape       []int64   `json:"proj:shape,omitempty"` // rows, columns
	Transform   []float64 `json:"proj:transform,omitempty"`
	GSD         *float64  `json:"gsd,omitempty"`
	SampleType  *string   `json:"sample_type"`
	Nodata      *string   `json:"nodata"`
	VerticalCRS *string   `json:"vertical_crs"`
	Warnings    string    `json:"warnings"`
}

// stacAsset is the file of an item or, in a collection, of each item.
type stacAsset struct {
	Href  string   `json:"href,omitempty"`
	Type  string   `json:"type"`
	Title string   `json:"title"`
	Roles []string `json:"roles"`
	Size  int64    `json:"file:size,omitempty"`
}

// itemOf returns the item of a file. base is the service's base URL.
func itemOf(f datasetFile, base string) stacItem {
	root := base + stacPath
	collection := collectionURL(root, f.DatasetID)
	item := stacItem{
		Type: "Feature", Version: "1.0.0",
		Extensions: []string{"https://stac-extensions.github.io/projection/v1.2.0/schema.json",
			"https://stac-extensions.github.io/file/v2.1.0/schema.json"},
		ID: strconv.FormatInt(f.ID, 10), Collection: strconv.FormatInt(f.DatasetID, 10),
		Properties: stacProperties{
			Title: f.Path, Datetime: f.ModifiedAt, Format: f.Format, Code: f.CRS, EPSG: epsgCode(f.CRS),
			ProjBBox: f.NativeBBox, Transform: f.Transform, GSD: f.ResolutionM, SampleType: f.SampleType,
			Nodata: f.Nodata, VerticalCRS: f.VerticalCRS, Warnings: strings.Join(f.Warnings, "; "),
		},
		Links: []stacLink{
			{Rel: "self", Href: collection + "/items/" + strconv.FormatInt(f.ID, 10), Type: typeGeoJSON},
			{Rel: "root", Href: root, Type: typeJSON},
			{Rel: "parent", Href: collection, Type: typeJSON},
			{Rel: "collection", Href: collection, Type: typeJSON},
		},
		Assets: map[string]stacAsset{"data": {Href: base + dataPath(f.DatasetID, f.Path), Type: mediaType(f.extent),
			Title: f.Path, Roles: []string{"data"}, Size: f.SizeBytes}},
	}
	if f.Width != nil && f.Height != nil {
		item.Properties.Shape = []int64{*f.Height, *f.Width}
	}
	if parts := footprint(f.ElevationDatasetFileMeta); len(parts) > 0 { // without a geometry there is no box
		item.Geometry, item.BBox = &geometry{"MultiPolygon", parts}, f.BBox
	}
	return item
}

// itemFilters returns the parameters of a search.
func itemFilters() []string {
	return fileFilters("limit", "cursor", "datetime", "ids", "intersects")
}

// getItem answers GET /api/v1/stac/collections/{id}/items/{file}.
func (s *server) getItem(w http.ResponseWriter, r *http.Request) error {
	datasetID, err := pathID(r, "id")
	if err != nil {
		return err
	}
	id, err := pathID(r, "file")
	if err != nil {
		return err
	}
	f := fileFilter{datasetID: &datasetID, ids: []int64{id}, status: new(fileStatusOK)}
	files, err := findFiles(r.Context(), s.db, f, firstFile(), 1)
	if err == nil && len(files) == 0 {
		err = errNotFound
	}
	if err != nil {
		return err
	}
	return writeGeoJSON(w, itemOf(files[0], s.baseURL(r)))
}

// writeGeoJSON answers with v as GeoJSON.
func writeGeoJSON(w http.ResponseWriter, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return writeBytes(w, http.StatusOK, typeGeoJSON, body)
}

// listItems answers GET /api/v1/stac/collections/{id}/items.
func (s *server) listItems(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	return s.writeItems(w, r, r.URL.Query(), &d.ID, nil)
}

// searchItems answers GET /api/v1/stac/search.
func (s *server) searchItems(w http.ResponseWriter, r *http.Request) error {
	return s.writeItems(w, r, r.URL.Query(), nil, nil)
}

// postSearch answers POST /api/v1/stac/search. The body has the parameters of the query; lists are
// arrays, and the geometry is an object.
func (s *server) postSearch(w http.ResponseWriter, r *http.Request) error {
	body := map[string]any{}
	if err := decodeJSON(r, &body); err != nil {
		return err
	}
	query := url.Values{}
	for name, value := range body {
		if !slices.Contains(append(itemFilters(), "collections"), name) {
			return malformed("unknown_field", "There is no field %.64q.", name)
		}
		text, ok := parameterText(value)
		if !ok {
			return malformed("wrong_type", "%s must be text, a number or an array of them.", name)
		}
		if text != "" {
			query.Set(name, text)
		}
	}
	return s.writeItems(w, r, query, nil, body)
}

// parameterText returns a JSON value as a query has it: an array separated by commas, an object as
// JSON. ok is false for true and false, and for anything else in an array.
func parameterText(value any) (text string, ok bool) {
	switch v := value.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), true
	case map[string]any:
		encoded, err := encodeJSON(v)
		return string(encoded), err == nil
	case []any:
		var parts []string
		for _, one := range v {
			switch one.(type) {
			case string, float64:
				part, _ := parameterText(one)
				parts = append(parts, part)
			default:
				return "", false
			}
		}
		return strings.Join(parts, ","), true
	}
	return "", false
}

// The number of items on a page, unless the client asks for another, and at most. Both are in
// dataset_stac_api.json too.
const (
	defaultItems = 100
	maxItems     = 1000
)

// writeItems answers with a page of items, those of one dataset or of all. body is that of a POST.
func (s *server) writeItems(w http.ResponseWriter, r *http.Request, query url.Values, datasetID *int64,
	body map[string]any) error {
	f, err := readItemFilter(query)
	if p, ok := errors.AsType[*problem](err); ok { // OGC API Features, section 7.5.1: always 400
		p.status = http.StatusBadRequest
		return p
	}
	f.datasetID = datasetID
	limit := defaultItems
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return malformed("wrong_type", "limit must be a number, at least 1.")
		}
		limit = min(limit, maxItems)
	}
	selection := maps.Clone(query)
	selection.Del("cursor")
	selection.Del("limit")
	scope, after := r.URL.Path+"?"+selection.Encode(), firstFile()
	if cursor := query.Get("cursor"); cursor != "" {
		if after, err = s.keys.Load().verifyCursor(scope, cursor); err != nil || len(after) != len(firstFile()) {
			return malformed("invalid_cursor", "The cursor is not one of this search.")
		}
	}
	ctx := r.Context()
	files, err := findFiles(ctx, s.db, f, after, limit+1)
	if err != nil {
		return err
	}
	total, err := countFiles(ctx, s.db, f)
	if err != nil {
		return err
	}
	base := s.baseURL(r)
	links := []stacLink{
		{Rel: "self", Href: base + r.URL.RequestURI(), Type: typeGeoJSON},
		{Rel: "root", Href: base + stacPath, Type: typeJSON},
	}
	if datasetID != nil {
		url := collectionURL(base+stacPath, *datasetID)
		links = append(links, stacLink{Rel: "collection", Href: url, Type: typeJSON})
	}
	if len(files) > limit {
		files = files[:limit]
		cursor := s.keys.Load().signCursor(scope, f.key(files[limit-1]))
		next := stacLink{Rel: "next", Href: base + r.URL.EscapedPath(), Type: typeGeoJSON, Method: r.Method}
		if body != nil {
			next.Body = maps.Clone(body)
			next.Body["cursor"] = cursor
		} else {
			query.Set("cursor", cursor)
			next.Href += "?" + query.Encode()
		}
		links = append(links, next)
	}
	answer := struct {
		Type     string     `json:"type"`
		Features []stacItem `json:"features"`
		Links    []stacLink `json:"links"`
		Matched  *int64     `json:"numberMatched,omitempty"` // only where it is exact
		Returned int        `json:"numberReturned"`
	}{"FeatureCollection", []stacItem{}, links, nil, len(files)}
	if !total.TotalIsEstimate {
		answer.Matched = &total.Total
	}
	for _, file := range files {
		answer.Features = append(answer.Features, itemOf(file, base))
	}
	return writeGeoJSON(w, answer)
}

// readItemFilter reads the filter of a search, which selects only files with an extent. Parameters
// that are not of a fileFilter are those of STAC API, Item Search.
func readItemFilter(query url.Values) (fileFilter, error) {
	selection := maps.Clone(query)
	selection.Set("sort", sortPath)
	if !selection.Has("status") {
		selection.Set("status", fileStatusOK)
	}
	if corners := strings.Split(query.Get("bbox"), ","); len(corners) == 6 { // with heights
		selection.Set("bbox", strings.Join([]string{corners[0], corners[1], corners[3], corners[4]}, ","))
	}
	var within area
	if text := query.Get("intersects"); text != "" {
		if query.Has("bbox") || query.Has("point") {
			return fileFilter{}, malformed("exclusive", "intersects cannot be used together with bbox or point.")
		}
		parameter, value, a, ok := readGeometry(text)
		if !ok {
			return fileFilter{}, malformed("wrong_type", "intersects must be a GeoJSON Point, Polygon or MultiPolygon.")
		}
		selection.Set(parameter, value)
		within = a
	}
	f, err := readFileFilter(selection)
	f.area = within
	f.ids, f.datasets = idList(query, "ids"), idList(query, "collections")
	if text := query.Get("datetime"); text != "" && err == nil {
		f.since, f.until, err = readInterval(text)
	}
	return f, err
}

// idList returns the ids in a parameter, or nil without one. A text that cannot be an id names
// nothing.
func idList(query url.Values, name string) (ids []int64) {
	if !query.Has(name) {
		return nil
	}
	ids = []int64{}
	for text := range strings.SplitSeq(query.Get(name), ",") {
		if id, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(id, 10) == text {
			ids = append(ids, id)
		}
	}
	return ids
}

// readInterval reads a time or an interval in the form of RFC 3339 (OGC API Features, section
// 7.15.4), in nanoseconds since 1970. An end that is open, "" or "..", is nil.
func readInterval(text string) (since, until *int64, err error) {
	wrong := malformed("wrong_type", "datetime must be a time or an interval, as in 2026-01-31T12:00:00Z/..")
	first, last, isInterval := strings.Cut(text, "/")
	if !isInterval {
		last = first
	}
	for i, end := range [...]string{first, last} {
		if isInterval && (end == "" || end == "..") {
			continue
		}
		at, err := time.Parse(time.RFC3339, strings.ToUpper(end))
		if err != nil {
			return nil, nil, wrong
		}
		*[...]**int64{&since, &until}[i] = new(unixNano(at))
	}
	if since == nil && until == nil || since != nil && until != nil && *since > *until {
		return nil, nil, wrong
	}
	return since, until, nil
}
