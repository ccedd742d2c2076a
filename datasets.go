package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// dataset is a directory of elevation files.
type dataset struct {
	ID          int64     `json:"id"`
	Name        string    `json:"name"`
	Path        string    `json:"path"` // relative to the first dataset root, or absolute
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// datasetColumns are the columns of a dataset, of the table datasets under the name d.
const datasetColumns = `
	d.id, d.name, d.path, d.description, d.created_at, d.updated_at`

// datasetDetails is a dataset with what its files add up to.
type datasetDetails struct {
	dataset
	Files      map[string]int64 `json:"files"` // files by status, and "total"
	TotalBytes int64            `json:"total_bytes"`
	BBox       []float64        `json:"bbox"` // of all files; null where none has one
	Analysis   *analysis        `json:"analysis"`
}

// listDatasets answers GET /api/v1/datasets, in the order of their names.
func (s *server) listDatasets(w http.ResponseWriter, r *http.Request) error {
	return writeList(s, w, r, []string{""}, func(after []string, limit int) ([]dataset, error) {
		return listDatasets(r.Context(), s.db, optional(r.URL.Query(), "name"), after[0], limit)
	}, func(d dataset) []string { return []string{d.Name} })
}

// createDataset answers POST /api/v1/datasets: the directory must be there, below a dataset root.
func (s *server) createDataset(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Name        string `json:"name"`
		Path        string `json:"path"`
		Description string `json:"description"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	var place place
	var err error
	if !s.analyzer.inTime(s.stopping, func() { place, err = s.cfg.checkDataset(in.Name, in.Path, in.Description) }) {
		return invalid{{"path", "not_a_directory", "cannot be opened as a directory: it does not answer"}}.err()
	}
	if err != nil {
		return err
	}
	d, err := createDataset(r.Context(), s.db, in.Name, place.stored, in.Description)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/datasets/"+strconv.FormatInt(d.ID, 10))
	return writeJSON(w, http.StatusCreated, d)
}

// checkDataset checks what a new dataset is to be made of, and that its directory is there.
func (c config) checkDataset(name, path, description string) (place, error) {
	var v invalid
	checkDatasetTexts(&v, name, description)
	place, err := c.placeDataset(path)
	if err == nil {
		err = place.check()
	}
	if p, ok := errors.AsType[*problem](err); ok {
		v = append(v, fieldError{"path", p.code, p.detail})
	} else if err != nil {
		return place, err
	}
	return place, v.err()
}

// checkDatasetTexts notes what is wrong with a dataset's name or description.
func checkDatasetTexts(v *invalid, name, description string) {
	v.check(isLine(name, 1, 100) && strings.TrimSpace(name) == name, "name", "malformed", "must be one line of 1 to 100 characters, not beginning or ending with a blank")
	v.check(description == "" || isText(description, 4000), "description", "malformed", "must be text of at most 4,000 characters, without control characters other than tab and newline")
}

// getDataset answers GET /api/v1/datasets/{id}.
func (s *server) getDataset(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	d, err := getDataset(r.Context(), s.db, id)
	if err != nil {
		return err
	}
	details, err := summarizeDataset(r.Context(), s.db, d)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, details)
}

// updateDataset answers PATCH /api/v1/datasets/{id}: name and description.
func (s *server) updateDataset(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	var in struct {
		Name        *string `json:"name"`
		Description *string `json:"description"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	d, err := getDataset(r.Context(), s.db, id)
	if err != nil {
		return err
	}
	if in.Name != nil {
		d.Name = *in.Name
	}
	if in.Description != nil {
		d.Description = *in.Description
	}
	var v invalid
	checkDatasetTexts(&v, d.Name, d.Description)
	if err := v.err(); err != nil {
		return err
	}
	if d, err = updateDataset(r.Context(), s.db, id, in.Name, in.Description); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

// deleteDataset answers DELETE /api/v1/datasets/{id}: the dataset and its rows go, the files stay.
func (s *server) deleteDataset(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) error {
		return deleteDataset(r.Context(), tx, id)
	})
	return s.writeDone(w, err)
}

// place is where a dataset lies: below is its path in the root, stored how the database says it.
type place struct {
	root   string
	below  string
	stored string
}

// placeDataset finds the root that a dataset's path lies below, or is a problem outside_root. It looks at the
// text only: os.Root sees to it that no symbolic link leads out.
func (c config) placeDataset(path string) (place, error) {
	bad := func(code, detail string) (place, error) {
		return place{}, &problem{status: http.StatusUnprocessableEntity, code: code, detail: detail}
	}
	if path == "" || len(path) > 1024 || !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return bad("malformed", "must be the path of a directory, of at most 1,024 bytes")
	}
	if !filepath.IsAbs(path) {
		if !filepath.IsLocal(path) {
			return bad("outside_root", "lies outside the dataset roots")
		}
		path = filepath.Join(c.datasetRoots[0], path)
	}
	for i, root := range c.datasetRoots {
		below, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(below) {
			continue
		}
		if i == 0 {
			return place{root, below, below}, nil
		}
		return place{root, below, filepath.Join(root, below)}, nil
	}
	return bad("outside_root", "lies outside the dataset roots")
}

// open opens the dataset's directory. Nothing outside the dataset root can be reached through it.
func (p place) open() (*os.Root, error) {
	root, err := os.OpenRoot(p.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.OpenRoot(p.below)
}

// check says as a problem why the dataset's directory cannot be listed.
func (p place) check() error {
	root, err := p.open()
	if err == nil {
		defer root.Close()
		_, err = isEmptyDir(root)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		return &problem{status: http.StatusUnprocessableEntity, code: "not_found", detail: "there is no such directory"}
	case isEscape(err):
		return &problem{status: http.StatusUnprocessableEntity, code: "outside_root", detail: "a symbolic link leads out of the dataset root"}
	default:
		return &problem{status: http.StatusUnprocessableEntity, code: "not_a_directory", detail: "cannot be opened as a directory: " + reasonOf(err)}
	}
}

// isEmptyDir says whether the directory itself has no entry.
func isEmptyDir(root *os.Root) (bool, error) {
	dir, err := root.Open(".")
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if _, err = dir.Readdirnames(1); err == io.EOF {
		return true, nil
	}
	return false, err
}

// listDatasets returns datasets in the order of their names, all or the one with that name.
func listDatasets(ctx context.Context, q querier, name *string, after string, limit int) ([]dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets d
		WHERE d.name > $1
			AND ($2::text IS NULL OR d.name = $2)
		ORDER BY d.name
		LIMIT $3`
	return collect[dataset](ctx, q, "list datasets", query, after, name, limit)
}

// oneDataset collects a query's dataset; none is errNotFound, a name or path that is taken a problem 409.
func oneDataset(ctx context.Context, q querier, doing, query string, args ...any) (dataset, error) {
	d, err := collectOne[dataset](ctx, q, errNotFound, doing, query, args...)
	switch {
	case isUniqueViolation(err, "datasets_name_key"):
		return dataset{}, &problem{status: http.StatusConflict, code: "name_taken", detail: "There is a dataset of that name."}
	case isUniqueViolation(err, "datasets_path_key"):
		return dataset{}, &problem{status: http.StatusConflict, code: "path_taken", detail: "There is a dataset of that directory."}
	}
	return d, err
}

// createDataset adds a dataset.
func createDataset(ctx context.Context, q querier, name, path, description string) (dataset, error) {
	const query = `
		INSERT INTO datasets AS d (name, path, description)
		VALUES ($1, $2, $3)
		RETURNING ` + datasetColumns
	return oneDataset(ctx, q, "create dataset", query, name, path, description)
}

// getDataset returns the dataset with that id.
func getDataset(ctx context.Context, q querier, id int64) (dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets d
		WHERE d.id = $1`
	return oneDataset(ctx, q, "get dataset", query, id)
}

// updateDataset changes what is not nil.
func updateDataset(ctx context.Context, q querier, id int64, name, description *string) (dataset, error) {
	const query = `
		UPDATE datasets d
		SET name = coalesce($2, d.name),
			description = coalesce($3, d.description),
			updated_at = now()
		WHERE d.id = $1
		RETURNING ` + datasetColumns
	return oneDataset(ctx, q, "update dataset", query, id, name, description)
}

// lockDataset keeps others from deleting the dataset or beginning an analysis of it, to the end of the
// transaction; errNotFound where there is none.
func lockDataset(ctx context.Context, tx pgx.Tx, id int64) error {
	n, err := execute(ctx, tx, "lock dataset", `SELECT FROM datasets WHERE id = $1 FOR NO KEY UPDATE`, id)
	if err == nil && n == 0 {
		return errNotFound
	}
	return err
}

// deleteDataset removes the dataset and all rows that hang on it, ending a running analysis.
func deleteDataset(ctx context.Context, tx pgx.Tx, id int64) error {
	if err := lockDataset(ctx, tx, id); err != nil {
		return err
	}
	running, err := runningAnalysis(ctx, tx, id)
	if err != nil {
		return err
	}
	if running != 0 {
		if err := lockAnalysis(ctx, tx, running, true); err != nil {
			return err
		}
		if err := endAnalysis(ctx, tx, running, stateCanceled, "", ""); err != nil {
			return err
		}
	}
	_, err = execute(ctx, tx, "delete dataset", `DELETE FROM datasets WHERE id = $1`, id)
	return err
}

// summarizeDataset adds up the dataset's files. The overall box is the narrower of two: one counted
// from -180°, one from 0°, so that files on both sides of 180° do not span the globe.
func summarizeDataset(ctx context.Context, q querier, d dataset) (datasetDetails, error) {
	const counts = `
		SELECT status, count(*) AS n, least(sum(size_bytes), 1e18)::bigint AS size
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
		GROUP BY status`
	details := datasetDetails{dataset: d, Files: map[string]int64{"total": 0}}
	for _, status := range fileStatuses() {
		details.Files[status] = 0
	}
	found, err := collect[struct {
		Status  string
		N, Size int64
	}](ctx, q, "count files", counts, d.ID)
	if err != nil {
		return details, err
	}
	for _, f := range found {
		details.Files[f.Status] = f.N
		details.Files["total"] += f.N
		details.TotalBytes += f.Size
	}

	const extent = `
		SELECT
			min(a.west), max(a.east), min(b.west0), max(b.east0), min(f.bbox[2]), max(f.bbox[4])
		FROM elevation_dataset_file_meta f
		CROSS JOIN LATERAL (SELECT
			f.bbox[1] AS west,
			f.bbox[3] + CASE WHEN f.bbox[3] < f.bbox[1] THEN 360 ELSE 0 END AS east
		) a
		CROSS JOIN LATERAL (SELECT
			a.west + CASE WHEN a.west < 0 THEN 360 ELSE 0 END AS west0,
			a.east + CASE WHEN a.west < 0 THEN 360 ELSE 0 END AS east0
		) b
		WHERE f.dataset_id = $1
			AND f.bbox IS NOT NULL`
	var west, east, west0, east0, south, north *float64
	if err := q.QueryRow(ctx, extent, d.ID).Scan(&west, &east, &west0, &east0, &south, &north); err != nil {
		return details, fmt.Errorf("read extent of dataset: %w", err)
	}
	if west != nil {
		details.BBox = overallBox(*west, *east, *west0, *east0, *south, *north)
	}

	const latest = `
		SELECT ` + analysisColumns + `
		FROM analyses a
		WHERE a.dataset_id = $1
		ORDER BY a.id DESC
		LIMIT 1`
	analyses, err := collect[analysis](ctx, q, "get latest analysis", latest, d.ID)
	if len(analyses) > 0 {
		details.Analysis = &analyses[0]
	}
	return details, err
}

// overallBox is [west, south, east, north] of the narrower of two spans of longitude, in degrees: one
// with all wests in -180…180, one with all in 0…360. A full turn is -180…180.
func overallBox(west, east, west0, east0, south, north float64) []float64 {
	if east0-west0 < east-west {
		west, east = west0, east0
	}
	if east-west >= 360 {
		return []float64{-180, south, 180, north}
	}
	if west > 180 {
		west -= 360
	}
	if east > 180 {
		east -= 360
	}
	return []float64{west, south, east, north}
}
