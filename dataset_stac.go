package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// stacPath is the root of a tree that is both a STAC API 1.0 and an OGC API Features 1.0. Datasets
// are its collections, and files its items. Links are absolute, because QGIS follows no others.
const stacPath = "/api/v1/stac"

// Media types of the tree, and of archives.
const (
	typeJSON    = "application/json"
	typeGeoJSON = "application/geo+json"
	typeGeoTIFF = "image/tiff; application=geotiff"
	typeZIP     = "application/zip"
	typeOpenAPI = "application/vnd.oai.openapi+json;version=3.0"
	typeHTML    = "text/html"
)

// stacAPI describes the tree in OpenAPI 3.0. Clients of OGC API Features read it, and take the page
// size from its parameter limit.
//
//go:embed dataset_stac_api.json
var stacAPI []byte

// stacAPIPage is the template of a page that shows stacAPI to people.
//
//go:embed dataset_stac_api.html
var stacAPIPage string

// object is a JSON object.
type object = map[string]any

// stacLink returns a link (RFC 8288).
func stacLink(rel, href, mediaType string) object {
	titles := map[string]string{
		"self":         "this page",
		"root":         "the catalogue",
		"parent":       "one level up",
		"collection":   "the dataset",
		"items":        "the files",
		"next":         "the next page",
		"search":       "search",
		"data":         "the datasets",
		"conformance":  "conformance classes",
		"service-desc": "the tree in OpenAPI 3.0",
		"service-doc":  "the tree, explained",
	}

	return object{
		"rel":   rel,
		"href":  href,
		"type":  mediaType,
		"title": titles[rel],
	}
}

// stacConformance returns the conformance classes of the tree.
func stacConformance() []string {
	const features = "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/"
	const stac = "https://api.stacspec.org/v1.0.0/"
	return []string{
		features + "core",
		features + "geojson",
		features + "oas30",
		stac + "core",
		stac + "collections",
		stac + "ogcapi-features",
		stac + "item-search",
		stac + "item-search#sort",
		stac + "ogcapi-features#sort",
	}
}

// inJSON returns a handler that takes the parameter f, which names the format: json.
func inJSON(next handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		query := r.URL.Query()
		if query.Has("f") && query.Get("f") != "json" {
			return malformed(codeWrongType, "f must be json.")
		}
		return next(w, r)
	}
}

// getSTAC answers GET /api/v1/stac, the landing page and catalogue, with a child for each dataset.
func (c *catalogue) getSTAC(w http.ResponseWriter, r *http.Request) error {
	datasets, err := listDatasets(r.Context(), c.core.db, actorOf(r), datasetFilter{}, "", math.MaxInt32)
	if err != nil {
		return err
	}

	root := c.core.baseURL(r) + stacPath
	links := []object{
		stacLink("self", root, typeJSON),
		stacLink("root", root, typeJSON),
		stacLink("service-desc", root+"/api", typeOpenAPI),
		stacLink("service-doc", root+"/api.html", typeHTML),
		stacLink("conformance", root+"/conformance", typeJSON),
		stacLink("data", root+"/collections", typeJSON),
	}
	for _, method := range [...]string{http.MethodGet, http.MethodPost} {
		search := stacLink("search", root+"/search", typeGeoJSON)
		search["method"] = method
		links = append(links, search)
	}
	for _, d := range datasets {
		child := stacLink("child", collectionURL(root, d.ID), typeJSON)
		child["title"] = d.Name
		links = append(links, child)
	}

	return writeJSON(w, http.StatusOK, object{
		"type":         "Catalog",
		"stac_version": "1.0.0",
		"id":           "cairn",
		"title":        "Cairn",
		"description":  "Elevation files",
		"conformsTo":   stacConformance(),
		"links":        links,
	})
}

// getSTACConformance answers GET /api/v1/stac/conformance.
func (c *catalogue) getSTACConformance(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, object{"conformsTo": stacConformance()})
}

// getSTACAPI answers GET /api/v1/stac/api.
func (c *catalogue) getSTACAPI(w http.ResponseWriter, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, typeOpenAPI, stacAPI)
}

// getSTACAPIPage answers GET /api/v1/stac/api.html, which OGC API Features demands.
func (c *catalogue) getSTACAPIPage(w http.ResponseWriter, _ *http.Request) error {
	var api object
	if err := json.Unmarshal(stacAPI, &api); err != nil {
		return err
	}

	var page bytes.Buffer
	parsed := template.Must(template.New("api").Parse(stacAPIPage))
	if err := parsed.Execute(&page, api); err != nil {
		return fmt.Errorf("show description of the tree: %w", err)
	}
	return writeBytes(w, http.StatusOK, typeHTML, page.Bytes())
}

// collectionURL returns the URL of a dataset's collection.
func collectionURL(root string, dataset int64) string {
	return fmt.Sprint(root, "/collections/", dataset)
}

// listCollections answers GET /api/v1/stac/collections with all collections or, if there is a
// limit, with a page of them.
func (c *catalogue) listCollections(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, offset, err := readItemRange(query, math.MaxInt32)
	if err != nil {
		return err
	}

	var f fileFilter
	if _, err := c.selectVisible(r, &f); err != nil {
		return err
	}
	found, err := listCollections(r.Context(), c.core.db, f.datasets)
	if err != nil {
		return err
	}

	root := c.core.baseURL(r) + stacPath
	links := []object{
		stacLink("self", root+"/collections", typeJSON),
		stacLink("root", root, typeJSON),
		stacLink("parent", root, typeJSON),
	}

	found = found[min(offset, len(found)):]
	if query.Has("limit") && len(found) > limit {
		found = found[:limit]
		query.Set("offset", strconv.Itoa(offset+limit))
		next := root + "/collections?" + query.Encode()
		links = append(links, stacLink("next", next, typeJSON))
	}

	collections := []object{}
	for _, collection := range found {
		collections = append(collections, collection.object(root))
	}

	return writeJSON(w, http.StatusOK, object{
		"collections": collections,
		"links":       links,
	})
}

// getCollection answers GET /api/v1/stac/collections/{id}.
func (c *catalogue) getCollection(w http.ResponseWriter, r *http.Request, d dataset) error {
	found, err := listCollections(r.Context(), c.core.db, []int64{d.ID})
	if err != nil {
		return err
	}
	if len(found) == 0 { // it was deleted meanwhile
		return notFound("dataset", d.ID)
	}

	root := c.core.baseURL(r) + stacPath
	return writeJSON(w, http.StatusOK, found[0].object(root))
}

// stacCollection is a dataset with a summary of its files that have an extent.
type stacCollection struct {
	dataset
	overallBox
	Finest   *float64 // pixel sizes in metres
	Coarsest *float64
	First    *fileTime
	Last     *fileTime
	Codes    []string
	Formats  []string
}

// listCollections returns the collections of datasets, in the order of names. The statement is
// planned for its values: one dataset may have few of the rows.
func listCollections(ctx context.Context, q querier, ids []int64) ([]stacCollection, error) {
	const query = `
		WITH kinds AS (
			SELECT f.dataset_id,
				f.crs,
				f.format,
				min(f.resolution_m) AS finest,
				max(f.resolution_m) AS coarsest,
				min(f.modified_ns) AS first,
				max(f.modified_ns) AS last,` + overallColumns + `
			FROM elevation_dataset_file_meta f
			WHERE f.status = 'ok' AND f.dataset_id = ANY ($1::bigint[])
			GROUP BY f.dataset_id, f.crs, f.format
		)
		SELECT ` + datasetColumns + `,
			min(finest) AS finest,
			max(coarsest) AS coarsest,
			min(first) AS first,
			max(last) AS last,
			min(west) AS west,
			max(east) AS east,
			min(turned_west) AS turned_west,
			max(turned_east) AS turned_east,
			min(south) AS south,
			max(north) AS north,
			array_remove(array_agg(DISTINCT crs), NULL) AS codes,
			array_remove(array_agg(DISTINCT format), NULL) AS formats
		FROM datasets
		LEFT JOIN kinds ON dataset_id = id
		WHERE id = ANY ($1)
		GROUP BY id
		ORDER BY name`

	return collect[stacCollection](
		ctx, q, "list collections",
		query, pgx.QueryExecModeCacheDescribe, ids,
	)
}

// inMilliseconds returns a time cut to milliseconds, because some clients of STAC misread finer
// ones. Nil stays nil.
func inMilliseconds(t *fileTime) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.Truncate(time.Millisecond))
}

// object returns the collection in JSON. Without files its box is the globe.
func (c stacCollection) object(root string) object {
	summaries := object{} // without empty lists, which STAC forbids
	if len(c.Codes) > 0 {
		summaries["proj:code"] = c.Codes
	}
	if len(c.Formats) > 0 {
		summaries["format"] = c.Formats
	}
	if c.Finest != nil {
		summaries["gsd"] = object{
			"minimum": c.Finest,
			"maximum": c.Coarsest,
		}
	}

	box := c.bounds()
	if box == nil {
		box = []float64{
			-180,
			-90,
			180,
			90,
		}
	}

	// It is rounded as the footprints are, so that it holds them.
	for i, corner := range box {
		box[i] = math.Round(corner*1e9) / 1e9
	}

	// The survey, if it is known, else the times of the files.
	interval := []*time.Time{inMilliseconds(c.First), inMilliseconds(c.Last)}
	if from, until := c.About.survey(); from != nil || until != nil {
		interval = []*time.Time{from, until}
	}

	url := collectionURL(root, c.ID)
	collection := object{
		"type":            "Collection",
		"stac_version":    "1.0.0",
		"stac_extensions": []string{stacItemAssets, stacProjection},
		"id":              fmt.Sprint(c.ID),
		"title":           c.Name,
		"description":     cmp.Or(c.Description, c.Name),
		"itemType":        "feature",
		"crs":             []string{"http://www.opengis.net/def/crs/OGC/1.3/CRS84"},
		"extent": object{
			"spatial":  object{"bbox": [][]float64{box}},
			"temporal": object{"interval": [][]*time.Time{interval}},
		},
		"summaries": summaries,
		"item_assets": object{"data": object{
			"title": "The file",
			"roles": []string{"data"},
		}},
	}

	collection["links"] = c.About.addTo(collection, []object{
		stacLink("self", url, typeJSON),
		stacLink("root", root, typeJSON),
		stacLink("parent", root, typeJSON),
		stacLink("items", url+"/items", typeGeoJSON),
	})
	return collection
}
