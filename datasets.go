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
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// dataset is a directory of elevation files.
type dataset struct {
	ID          int64     `json:"id"`
	Name        string    `json:"name"`
	Path        string    `json:"path"` // relative to the first dataset root, else absolute
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

// datasetColumns are the columns of a dataset. The table datasets is d.
const datasetColumns = `
	d.id, d.name, d.path, d.description, d.created_at, d.updated_at`

// datasetDetails is a dataset with totals of its files and its newest analysis.
type datasetDetails struct {
	dataset
	Files      map[string]int64 `json:"files"` // files by status, and "total"
	TotalBytes int64            `json:"total_bytes"`
	BBox       []float64        `json:"bbox"` // of all files; null if none has one
	Analysis   *analysis        `json:"analysis"`
}

// listDatasets answers GET /api/v1/datasets, in the order of their names.
func (s *server) listDatasets(w http.ResponseWriter, r *http.Request) error {
	return writeList(s, w, r, []string{""}, func(after []string, limit int) ([]dataset, error) {
		return listDatasets(r.Context(), s.db, optional(r.URL.Query(), "name"), after[0], limit)
	}, func(d dataset) []string { return []string{d.Name} })
}

// createDataset answers POST /api/v1/datasets. The directory must exist below a dataset root. A
// file system that does not answer in time counts as a missing directory.
func (s *server) createDataset(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Name        string `json:"name"`
		Path        string `json:"path"`
		Description string `json:"description"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	var dir place
	err := errHangs
	if s.analyzer.hung.Load() < maxHung {
		ctx, cancel := context.WithTimeout(s.stopping, slow.limit()/2)
		defer cancel()
		err = runDetached(ctx, s.analyzer, new(atomic.Int64), func(_ context.Context, send func(place) error) error {
			found, err := s.cfg.checkDataset(in.Name, in.Path, in.Description)
			if err != nil {
				return err
			}
			return send(found)
		}, func(found place) error {
			dir = found
			return nil
		})
	}
	if errors.Is(err, errHangs) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) { // or the service stops
		return invalid{{"path", "not_a_directory", "cannot be opened as a directory: the file system does not answer"}}.err()
	}
	if err != nil {
		return err
	}
	d, err := createDataset(r.Context(), s.db, actorOf(r), in.Name, dir.stored, in.Description)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/datasets/"+strconv.FormatInt(d.ID, 10))
	return writeJSON(w, http.StatusCreated, d)
}

// checkDataset checks the fields of a new dataset, and that its directory can be listed.
func (c config) checkDataset(name, path, description string) (place, error) {
	var v invalid
	checkDatasetTexts(&v, &name, &description)
	where, wrong := c.placeDataset(path)
	if wrong == nil {
		wrong = where.check()
	}
	return where, append(v, wrong...).err()
}

// checkDatasetTexts notes what is wrong with a dataset's name and description. Nil is not checked.
func checkDatasetTexts(v *invalid, name, description *string) {
	v.check(name == nil || isLine(*name, 1, 100) && strings.TrimSpace(*name) == *name, "name", "malformed", "must be one line of 1 to 100 characters without blanks at either end")
	v.check(description == nil || *description == "" || isText(*description, 4000), "description", "malformed", "must be text of at most 4,000 characters, without control characters other than tab and newline")
}

// getDataset answers GET /api/v1/datasets/{id}.
func (s *server) getDataset(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	details, err := summarizeDataset(r.Context(), s.db, d)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, details)
}

// updateDataset answers PATCH /api/v1/datasets/{id}, which changes name and description.
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
	var v invalid
	checkDatasetTexts(&v, in.Name, in.Description)
	if err := v.err(); err != nil {
		return err
	}
	d, err := updateDataset(r.Context(), s.db, actorOf(r), id, in.Name, in.Description)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

// deleteDataset answers DELETE /api/v1/datasets/{id}. It deletes rows only; the files stay.
func (s *server) deleteDataset(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	err = inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
		d, err := lockDataset(r.Context(), tx, id)
		if err != nil {
			return err
		}
		running, err := runningAnalysis(r.Context(), tx, id)
		if err != nil {
			return err
		}
		if running != 0 { // wait for the chunk that is being stored
			if err := advisoryLock(r.Context(), tx, lockAnalyses+running); err != nil {
				return err
			}
		}
		if _, err := execute(r.Context(), tx, "delete dataset", `DELETE FROM datasets WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(r.Context(), tx, actorOf(r), "dataset.delete", d.target(), d, nil)
	})
	return writeDone(w, err)
}

// pathDataset returns the dataset whose id is in the path, or errNotFound.
func (s *server) pathDataset(r *http.Request) (dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets d
		WHERE d.id = $1`
	id, err := pathID(r, "id")
	if err != nil {
		return dataset{}, err
	}
	return oneDataset(r.Context(), s.db, "get dataset", query, id)
}

// place is a dataset's directory: its root, the path below that, and the path in datasets.path.
type place struct {
	root   string
	below  string
	stored string
}

// placeDataset finds the dataset root above a path, or returns what is wrong with the path. It
// looks at the text alone: os.Root makes sure later that no symbolic link leads out of the root.
func (c config) placeDataset(path string) (place, invalid) {
	outside := invalid{{"path", "outside_root", "lies outside the dataset roots"}}
	if path == "" || len(path) > 1024 || !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return place{}, invalid{{"path", "malformed", "must be the path of a directory, of at most 1,024 bytes"}}
	}
	if !filepath.IsAbs(path) {
		if !filepath.IsLocal(path) {
			return place{}, outside
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
	return place{}, outside
}

// open opens the dataset's directory and reports whether it is empty. A directory that cannot be
// listed is an error. Through dir nothing outside the dataset root can be reached.
func (p place) open() (dir *os.Root, empty bool, err error) {
	root, err := os.OpenRoot(p.root)
	if err != nil {
		return nil, false, err
	}
	defer root.Close()
	if dir, err = root.OpenRoot(p.below); err != nil {
		return nil, false, err
	}
	list, err := dir.Open(".")
	if err == nil {
		_, err = list.Readdirnames(1)
		list.Close()
	}
	if err != nil && err != io.EOF {
		dir.Close()
		return nil, false, err
	}
	return dir, err == io.EOF, nil
}

// check returns why the dataset's directory cannot be listed, or nil.
func (p place) check() invalid {
	dir, _, err := p.open()
	switch {
	case err == nil:
		dir.Close()
		return nil
	case errors.Is(err, os.ErrNotExist):
		return invalid{{"path", "not_found", "there is no such directory"}}
	case isEscape(err):
		return invalid{{"path", "outside_root", "a symbolic link leads out of the dataset root"}}
	}
	return invalid{{"path", "not_a_directory", "cannot be opened as a directory: " + reasonOf(err)}}
}

// listDatasets returns up to limit datasets after a name, in that order; with name, only that one.
func listDatasets(ctx context.Context, q querier, name *string, after string, limit int) ([]dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets d
		WHERE d.name > $1 AND ($2::text IS NULL OR d.name = $2)
		ORDER BY d.name
		LIMIT $3`
	return collect[dataset](ctx, q, "list datasets", query, after, name, limit)
}

// oneDataset returns the dataset of a query, or errNotFound. A taken name or path is a 409.
func oneDataset(ctx context.Context, q querier, doing, query string, args ...any) (dataset, error) {
	d, err := collectOne[dataset](ctx, q, errNotFound, doing, query, args...)
	switch {
	case isUniqueViolation(err, "datasets_name_key"):
		return dataset{}, &problem{status: http.StatusConflict, code: "name_taken", detail: "Another dataset has that name."}
	case isUniqueViolation(err, "datasets_path_key"):
		return dataset{}, &problem{status: http.StatusConflict, code: "path_taken", detail: "Another dataset has that directory."}
	}
	return d, err
}

// target returns the dataset's name in the audit log.
func (d dataset) target() string { return "dataset:" + d.Name }

// createDataset creates a dataset, with an audit row.
func createDataset(ctx context.Context, db *pgxpool.Pool, by actor, name, path, description string) (d dataset, err error) {
	const query = `
		INSERT INTO datasets AS d (name, path, description)
		VALUES ($1, $2, $3)
		RETURNING ` + datasetColumns
	err = inTransaction(ctx, db, func(tx pgx.Tx) error {
		if d, err = oneDataset(ctx, tx, "create dataset", query, name, path, description); err != nil {
			return err
		}
		return audit(ctx, tx, by, "dataset.create", d.target(), nil, d)
	})
	return d, err
}

// updateDataset changes the fields that are not nil, with an audit row.
func updateDataset(ctx context.Context, db *pgxpool.Pool, by actor, id int64, name, description *string) (d dataset, err error) {
	const query = `
		UPDATE datasets d
		SET name = coalesce($2, d.name),
			description = coalesce($3, d.description),
			updated_at = now()
		WHERE d.id = $1
		RETURNING ` + datasetColumns
	err = inTransaction(ctx, db, func(tx pgx.Tx) error {
		before, err := lockDataset(ctx, tx, id)
		if err != nil {
			return err
		}
		if d, err = oneDataset(ctx, tx, "update dataset", query, id, name, description); err != nil {
			return err
		}
		return audit(ctx, tx, by, "dataset.update", before.target(), before, d)
	})
	return d, err
}

// lockDataset locks and returns a dataset, or errNotFound. Until the transaction ends, nobody else
// changes or deletes it or begins an analysis of it.
func lockDataset(ctx context.Context, tx pgx.Tx, id int64) (dataset, error) {
	return oneDataset(ctx, tx, "lock dataset", `SELECT `+datasetColumns+` FROM datasets d WHERE d.id = $1 FOR NO KEY UPDATE`, id)
}

// summarizeDataset returns the dataset with the totals of its files. The overall box is the
// narrower of two, with longitudes from -180° and from 0°, so that files on both sides of 180° do
// not span the globe.
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
		SELECT min(west), max(east), min(west + turn), max(east + turn), min(south), max(north)
		FROM (
			SELECT bbox[1] AS west, bbox[2] AS south, bbox[4] AS north,
				bbox[3] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END AS east,
				CASE WHEN bbox[1] < 0 THEN 360 ELSE 0 END AS turn
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $1 AND bbox IS NOT NULL
		) f`
	var west, east, west0, east0, south, north *float64
	if err := q.QueryRow(ctx, extent, d.ID).Scan(&west, &east, &west0, &east0, &south, &north); err != nil {
		return details, fmt.Errorf("read extent of dataset: %w", err)
	}
	if west != nil {
		details.BBox = overallBox(*west, *east, *west0, *east0, *south, *north)
	}

	analyses, err := listAnalyses(ctx, q, d.ID, newestAnalysis, 1)
	if len(analyses) > 0 {
		details.Analysis = &analyses[0]
	}
	return details, err
}

// overallBox returns [west, south, east, north] in degrees, of the narrower of two spans of
// longitude: one with all wests in -180…180, one with all in 0…360. A full turn is -180…180.
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

// getFile answers GET /api/v1/datasets/{id}/files/{file}.
func (s *server) getFile(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT ` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND id = $2`
	datasetID, err := pathID(r, "id")
	if err != nil {
		return err
	}
	id, err := pathID(r, "file")
	if err != nil {
		return err
	}
	stored, err := collectOne[storedFile](r.Context(), s.db, errNotFound, "get file", query, datasetID, id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, stored.file())
}

// storedColumns are the columns of a file that an analysis writes: all but the two ids.
const storedColumns = `
	path, size_bytes, modified_ns, format, status, reason, width, height, bands, sample_type, nodata, pixel_is,
	transform, native_bbox, crs, crs_name, vertical_crs, bbox, bbox_accuracy_m, resolution_m, source, warnings,
	analyzed_at`

// fileColumns are the columns of a file, in the table elevation_dataset_file_meta.
const fileColumns = `
	id, to_timestamp(modified_ns / 1e9) AS modified_at,` + storedColumns

// storedFile is a row of fileColumns, with a time finer than the database's own times.
type storedFile struct {
	ElevationDatasetFileMeta
	ModifiedNS int64
}

// file returns the file of the row.
func (f storedFile) file() ElevationDatasetFileMeta {
	m := f.ElevationDatasetFileMeta
	m.ModifiedAt = time.Unix(0, f.ModifiedNS).UTC()
	return m
}

// collectFiles returns the files of a query for fileColumns.
func collectFiles(ctx context.Context, q querier, doing, query string, args ...any) (files []ElevationDatasetFileMeta, err error) {
	rows, err := collect[storedFile](ctx, q, doing, query, args...)
	for _, row := range rows {
		files = append(files, row.file())
	}
	return files, err
}

// fileStatuses returns every value of a file's status.
func fileStatuses() []string {
	return []string{fileStatusOK, fileStatusNoBBox, fileStatusNoGeoref, fileStatusSidecar, fileStatusUnsupported, fileStatusCorrupt, fileStatusUnreadable}
}
