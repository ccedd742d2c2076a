package main

import (
	"cmp"
	"context"
	_ "embed"
	"net/http"
	"strconv"
	"strings"
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

// object is a JSON object.
type object = map[string]any

// stacLink returns a link (RFC 8288).
func stacLink(rel, href, mediaType string) object {
	return object{"rel": rel, "href": href, "type": mediaType}
}

// stacConformance returns the conformance classes of the tree.
func stacConformance() []string {
	const features, stac = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/", "https://api.stacspec.org/v1.0.0/"
	return []string{features + "core", features + "geojson", features + "oas30",
		stac + "core", stac + "collections", stac + "ogcapi-features", stac + "item-search"}
}

// listAllDatasets returns every dataset in the order of names.
func listAllDatasets(ctx context.Context, q querier) ([]dataset, error) {
	return collect[dataset](ctx, q, "list datasets", `SELECT `+datasetColumns+` FROM datasets ORDER BY name`)
}

// getSTAC answers GET /api/v1/stac, the landing page and catalogue, with a child for each dataset.
func (s *server) getSTAC(w http.ResponseWriter, r *http.Request) error {
	datasets, err := listAllDatasets(r.Context(), s.db)
	if err != nil {
		return err
	}
	root := s.baseURL(r) + stacPath
	get, post := stacLink("search", root+"/search", typeGeoJSON), stacLink("search", root+"/search", typeGeoJSON)
	get["method"], post["method"] = http.MethodGet, http.MethodPost
	links := []object{
		stacLink("self", root, typeJSON), stacLink("root", root, typeJSON),
		stacLink("service-desc", root+"/api", typeOpenAPI), stacLink("conformance", root+"/conformance", typeJSON),
		stacLink("data", root+"/collections", typeJSON), get, post,
	}
	for _, d := range datasets {
		child := stacLink("child", collectionURL(root, d.ID), typeJSON)
		child["title"] = d.Name
		links = append(links, child)
	}
	return writeJSON(w, http.StatusOK, object{
		"type": "Catalog", "stac_version": "1.0.0", "id": "cairn", "title": "Cairn",
		"description": "Elevation files", "conformsTo": stacConformance(), "links": links,
	})
}

// getSTACConformance answers GET /api/v1/stac/conformance.
func (s *server) getSTACConformance(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, object{"conformsTo": stacConformance()})
}

// getSTACAPI answers GET /api/v1/stac/api.
func (s *server) getSTACAPI(w http.ResponseWriter, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, typeOpenAPI, stacAPI)
}

// collectionURL returns the URL of a dataset's collection.
func collectionURL(root string, dataset int64) string {
	return root + "/collections/" + strconv.FormatInt(dataset, 10)
}

// listCollections answers GET /api/v1/stac/collections.
func (s *server) listCollections(w http.ResponseWriter, r *http.Request) error {
	datasets, err := listAllDatasets(r.Context(), s.db)
	if err != nil {
		return err
	}
	root := s.baseURL(r) + stacPath
	collections := []object{}
	for _, d := range datasets {
		c, err := collectionOf(r.Context(), s.db, d, root)
		if err != nil {
			return err
		}
		collections = append(collections, c)
	}
	links := []object{stacLink("self", root+"/collections", typeJSON), stacLink("root", root, typeJSON),
		stacLink("parent", root, typeJSON)}
	return writeJSON(w, http.StatusOK, object{"collections": collections, "links": links})
}

// getCollection answers GET /api/v1/stac/collections/{id}.
func (s *server) getCollection(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	c, err := collectionOf(r.Context(), s.db, d, s.baseURL(r)+stacPath)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, c)
}

// collectionOf returns a dataset as a STAC Collection and a collection of OGC API Features. A
// dataset without files with an extent has the globe for a box.
func collectionOf(ctx context.Context, q querier, d dataset, root string) (object, error) {
	const query = `
		WITH f AS (
			SELECT crs, format, min(resolution_m) AS finest, max(resolution_m) AS coarsest,
				min(modified_ns) AS first, max(modified_ns) AS last
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $1 AND status = 'ok'
			GROUP BY crs, format
		)
		SELECT min(finest) AS finest, max(coarsest) AS coarsest, min(first) AS first, max(last) AS last,
			array_remove(array_agg(DISTINCT crs), NULL) AS codes,
			array_remove(array_agg(DISTINCT format), NULL) AS formats
		FROM f`
	details, err := summarizeDataset(ctx, q, d)
	if err != nil {
		return nil, err
	}
	sum, err := collectOne[struct {
		Finest, Coarsest *float64
		First, Last      *fileTime
		Codes, Formats   []string
	}](ctx, q, errNotFound, "sum up collection", query, d.ID)
	if err != nil {
		return nil, err
	}
	summaries := object{} // without empty lists, which STAC forbids
	if len(sum.Codes) > 0 {
		summaries["proj:code"] = sum.Codes
	}
	if len(sum.Formats) > 0 {
		summaries["format"] = sum.Formats
	}
	if sum.Finest != nil {
		summaries["gsd"] = object{"minimum": sum.Finest, "maximum": sum.Coarsest}
	}
	box := details.BBox
	if box == nil {
		box = []float64{-180, -90, 180, 90}
	}
	url := collectionURL(root, d.ID)
	return object{
		"type": "Collection", "stac_version": "1.0.0",
		"stac_extensions": []string{"https://stac-extensions.github.io/item-assets/v1.0.0/schema.json"},
		"id":              strconv.FormatInt(d.ID, 10), "title": d.Name, "description": cmp.Or(d.Description, d.Name),
		"license": "proprietary", "itemType": "feature",
		"crs": []string{"http://www.opengis.net/def/crs/OGC/1.3/CRS84"},
		"extent": object{
			"spatial":  object{"bbox": [][]float64{box}},
			"temporal": object{"interval": [][]*fileTime{{sum.First, sum.Last}}},
		},
		"summaries":   summaries,
		"item_assets": object{"data": object{"title": "The file", "roles": []string{"data"}}},
		"links": []object{stacLink("self", url, typeJSON), stacLink("root", root, typeJSON),
			stacLink("parent", root, typeJSON), stacLink("items", url+"/items", typeGeoJSON)},
	}, nil
}

// epsgCode returns the number of a CRS such as EPSG:4326, or nil.
func epsgCode(crs *string) *int {
	if crs == nil {
		return nil
	}
	code, err := strconv.Atoi(strings.TrimPrefix(*crs, "EPSG:"))
	if err != nil {
		return nil
	}
	return &code
}
