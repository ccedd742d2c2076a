package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// stacPath is the root of a tree that is both a STAC API 1.0 and an OGC API Features 1.0. A dataset
// is a collection in it, and a file with an extent an item. Links are absolute: QGIS follows no
// others.
const stacPath = "/api/v1/stac"

// Media types of the tree.
const (
	typeJSON    = "application/json"
	typeGeoJSON = "application/geo+json"
	typeGeoTIFF = "image/tiff; application=geotiff"
	typeOpenAPI = "application/vnd.oai.openapi+json;version=3.0"
)

// stacAPI describes the tree in OpenAPI 3.0, as clients of OGC API Features demand. They take the
// page size from its parameter limit.
//
//go:embed dataset_stac_api.json
var stacAPI []byte

// stacLink is a link (RFC 8288). Method and Body are for POST.
type stacLink struct {
	Rel    string         `json:"rel"`
	Href   string         `json:"href"`
	Type   string         `json:"type"`
	Title  string         `json:"title,omitempty"`
	Method string         `json:"method,omitempty"`
	Body   map[string]any `json:"body,omitempty"`
}

// stacConformance returns the conformance classes of the tree.
func stacConformance() []string {
	const features, stac = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/", "https://api.stacspec.org/v1.0.0/"
	return []string{features + "core", features + "geojson", features + "oas30",
		stac + "core", stac + "collections", stac + "ogcapi-features", stac + "item-search"}
}

// getSTAC answers GET /api/v1/stac, the landing page and catalogue, with a child for each dataset.
func (s *server) getSTAC(w http.ResponseWriter, r *http.Request) error {
	const query = `SELECT ` + datasetColumns + ` FROM datasets ORDER BY name`
	datasets, err := collect[dataset](r.Context(), s.db, "list datasets", query)
	if err != nil {
		return err
	}
	root := s.baseURL(r) + stacPath
	links := []stacLink{
		{Rel: "self", Href: root, Type: typeJSON},
		{Rel: "root", Href: root, Type: typeJSON},
		{Rel: "service-desc", Href: root + "/api", Type: typeOpenAPI},
		{Rel: "conformance", Href: root + "/conformance", Type: typeJSON},
		{Rel: "data", Href: root + "/collections", Type: typeJSON},
		{Rel: "search", Href: root + "/search", Type: typeGeoJSON, Method: http.MethodGet},
		{Rel: "search", Href: root + "/search", Type: typeGeoJSON, Method: http.MethodPost},
	}
	for _, d := range datasets {
		links = append(links, stacLink{Rel: "child", Href: collectionURL(root, d.ID), Type: typeJSON, Title: d.Name})
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"type": "Catalog", "stac_version": "1.0.0", "id": "cairn", "title": "Cairn",
		"description": "Elevation files", "conformsTo": stacConformance(), "links": links,
	})
}

// getSTACConformance answers GET /api/v1/stac/conformance.
func (s *server) getSTACConformance(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string][]string{"conformsTo": stacConformance()})
}

// getSTACAPI answers GET /api/v1/stac/api.
func (s *server) getSTACAPI(w http.ResponseWriter, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, typeOpenAPI, stacAPI)
}

// collectionURL returns the URL of a dataset's collection.
func collectionURL(root string, dataset int64) string {
	return root + "/collections/" + strconv.FormatInt(dataset, 10)
}

// stacCollection is a dataset as a STAC Collection and as an OGC API collection.
type stacCollection struct {
	Type        string               `json:"type"`
	Version     string               `json:"stac_version"`
	Extensions  []string             `json:"stac_extensions"`
	ID          string               `json:"id"`
	Title       string               `json:"title"`
	Description string               `json:"description"`
	License     string               `json:"license"`
	ItemType    string               `json:"itemType"`
	CRS         []string             `json:"crs"` // of coordinates in the answers
	Extent      stacExtent           `json:"extent"`
	Summaries   map[string]any       `json:"summaries"`
	ItemAssets  map[string]stacAsset `json:"item_assets"`
	Links       []stacLink           `json:"links"`
}

// stacExtent is the place and the time of a collection's files. An open end is null.
type stacExtent struct {
	Spatial struct {
		BBox [][]float64 `json:"bbox"`
	} `json:"spatial"`
	Temporal struct {
		Interval [][2]*time.Time `json:"interval"`
	} `json:"temporal"`
}

// listCollections answers GET /api/v1/stac/collections.
func (s *server) listCollections(w http.ResponseWriter, r *http.Request) error {
	root := s.baseURL(r) + stacPath
	collections, err := findCollections(r.Context(), s.db, nil, root)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"collections": collections, "links": []stacLink{
		{Rel: "self", Href: root + "/collections", Type: typeJSON},
		{Rel: "root", Href: root, Type: typeJSON},
		{Rel: "parent", Href: root, Type: typeJSON},
	}})
}

// getCollection answers GET /api/v1/stac/collections/{id}.
func (s *server) getCollection(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	collections, err := findCollections(r.Context(), s.db, &id, s.baseURL(r)+stacPath)
	if err == nil && len(collections) == 0 {
		err = errNotFound
	}
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, collections[0])
}

// filesGroup sums up the files of a dataset that have one CRS and one format. Without files, all
// but the dataset is nil. West0 and East0 are the ends with all wests in 0…360.
type filesGroup struct {
	dataset
	CRS, Format                            *string
	West, East, West0, East0, South, North *float64
	Finest, Coarsest                       *float64
	First, Last                            *fileTime
}

// findCollections returns the collection of a dataset, or those of all in the order of their names.
func findCollections(ctx context.Context, q querier, id *int64, root string) ([]stacCollection, error) {
	const query = `
		SELECT d.id, d.name, d.path, d.description, d.created_at, d.updated_at, g.*
		FROM datasets d
		LEFT JOIN LATERAL (
			SELECT f.crs, f.format, min(f.bbox[1]) AS west, max(` + fileEast + `) AS east,
				min(f.bbox[1] + CASE WHEN f.bbox[1] < 0 THEN 360 ELSE 0 END) AS west0,
				max(` + fileEast + ` + CASE WHEN f.bbox[1] < 0 THEN 360 ELSE 0 END) AS east0,
				min(f.bbox[2]) AS south, max(f.bbox[4]) AS north,
				min(f.resolution_m) AS finest, max(f.resolution_m) AS coarsest,
				min(f.modified_ns) AS first, max(f.modified_ns) AS last
			FROM elevation_dataset_file_meta f
			WHERE f.dataset_id = d.id AND f.status = 'ok'
			GROUP BY f.crs, f.format
		) g ON true
		WHERE $1::bigint IS NULL OR d.id = $1
		ORDER BY d.name, g.crs, g.format`
	groups, err := collect[filesGroup](ctx, q, "sum up collections", query, id)
	if err != nil {
		return nil, err
	}
	collections := []stacCollection{}
	for len(groups) > 0 {
		n := slices.IndexFunc(groups, func(g filesGroup) bool { return g.ID != groups[0].ID })
		if n < 0 {
			n = len(groups)
		}
		collections = append(collections, collectionOf(groups[:n], root))
		groups = groups[n:]
	}
	return collections, nil
}

// collectionOf returns the collection of a dataset, whose files are summed up in groups. Its box is
// the narrower of two, as in summarizeDataset. A dataset without files has the globe for a box.
func collectionOf(groups []filesGroup, root string) stacCollection {
	d := groups[0].dataset
	url := collectionURL(root, d.ID)
	c := stacCollection{
		Type: "Collection", Version: "1.0.0",
		Extensions: []string{"https://stac-extensions.github.io/item-assets/v1.0.0/schema.json"},
		ID:         strconv.FormatInt(d.ID, 10), Title: d.Name, Description: cmp.Or(d.Description, d.Name),
		License: "proprietary", ItemType: "feature",
		CRS:        []string{"http://www.opengis.net/def/crs/OGC/1.3/CRS84"},
		ItemAssets: map[string]stacAsset{"data": {Title: "The file", Type: typeGeoTIFF, Roles: []string{"data"}}},
		Links: []stacLink{
			{Rel: "self", Href: url, Type: typeJSON},
			{Rel: "root", Href: root, Type: typeJSON},
			{Rel: "parent", Href: root, Type: typeJSON},
			{Rel: "items", Href: url + "/items", Type: typeGeoJSON, Title: d.Name},
		},
	}
	west, east, west0, east0, south, north := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1), 90.0, -90.0
	finest, coarsest := math.Inf(1), 0.0
	var interval [2]*time.Time
	codes, formats, epsg := []string{}, []string{}, []int{}
	for _, g := range groups {
		if g.West == nil {
			continue
		}
		west, east, south = min(west, *g.West), max(east, *g.East), min(south, *g.South)
		west0, east0, north = min(west0, *g.West0), max(east0, *g.East0), max(north, *g.North)
		finest, coarsest = min(finest, *cmp.Or(g.Finest, &finest)), max(coarsest, *cmp.Or(g.Coarsest, &coarsest))
		if interval[0] == nil || g.First.Before(*interval[0]) {
			interval[0] = &g.First.Time
		}
		if interval[1] == nil || g.Last.After(*interval[1]) {
			interval[1] = &g.Last.Time
		}
		if code := epsgCode(g.CRS); code != nil && !slices.Contains(epsg, *code) {
			codes, epsg = append(codes, *g.CRS), append(epsg, *code)
		}
		if format := *cmp.Or(g.Format, new("")); format != "" && !slices.Contains(formats, format) {
			formats = append(formats, format)
		}
	}
	if west > east {
		west, east, south, north = -180, 180, -90, 90
	} else if east0-west0 < east-west {
		west, east = west0, east0
	}
	west, east = normaliseLongitudes(west, east)
	c.Extent.Spatial.BBox = [][]float64{{west, south, east, north}}
	c.Extent.Temporal.Interval = [][2]*time.Time{interval}
	c.Summaries = map[string]any{"proj:code": codes, "proj:epsg": epsg, "format": formats}
	if finest <= coarsest {
		c.Summaries["gsd"] = map[string]float64{"minimum": finest, "maximum": coarsest}
	}
	return c
}

// epsgCode returns the number of a CRS such as EPSG:4326, or nil.
func epsgCode(crs *string) *int {
	var code int
	if crs == nil {
		return nil
	}
	if _, err := fmt.Sscanf(*crs, "EPSG:%d", &code); err != nil {
		return nil
	}
	return &code
}
