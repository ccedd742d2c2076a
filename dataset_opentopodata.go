package main

import (
	"net/http"
	"slices"
	"strings"
)

// locationsRequest is a request for heights in the form of Open Topo Data.
type locationsRequest struct {
	Locations     string `json:"locations"` // latitudes and longitudes: "lat,lon|lat,lon"
	Interpolation string `json:"interpolation"`
}

// getLocations answers GET /api/v1/elevation/v1/{dataset}, as postLocations does.
func (c *catalogue) getLocations(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	return c.postLocations(w, r, locationsRequest{query.Get("locations"), query.Get("interpolation")})
}

// postLocations answers POST /api/v1/elevation/v1/{dataset} with the heights of the dataset that
// the path names, in the form of Open Topo Data. The answer for wrong locations has that form too.
// A name counts before an id.
func (c *catalogue) postLocations(w http.ResponseWriter, r *http.Request, in locationsRequest) error {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE ` + isVisible + ` AND (name = $2 OR id::text = $2)
		ORDER BY name <> $2
		LIMIT 1`

	// PostgreSQL takes only UTF-8 text without NUL.
	name := strings.ReplaceAll(r.PathValue("dataset"), "\x00", "\xff")
	name = strings.ToValidUTF8(name, "\uFFFD")
	missing := notFound("dataset", name)
	d, err := oneDataset(r.Context(), c.core.db, missing, "find dataset", query, sightOf(actorOf(r)), name)
	if err != nil {
		return err
	}

	asked := elevationRequest{Dataset: &d.ID, Interpolation: in.Interpolation}
	for location := range strings.SplitSeq(in.Locations, "|") {
		point := readNumbers(location)
		slices.Reverse(point)
		asked.Points = append(asked.Points, point)
	}

	found, err := c.elevations(r, asked)
	if p := problemIn(err); p != nil && p.code == codeInvalid {
		return writeJSON(w, http.StatusBadRequest, object{"status": "INVALID_REQUEST", "error": p.detail})
	}
	if err != nil {
		return err
	}

	var results []object
	for _, e := range found {
		results = append(results, object{
			"elevation": e.Height,
			"location":  object{"lat": e.Point[1], "lng": e.Point[0]},
			"dataset":   d.Name,
		})
	}
	return writeJSON(w, http.StatusOK, object{"results": results, "status": "OK"})
}
