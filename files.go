package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// listFiles answers GET /api/v1/datasets/{id}/files, in the order of their paths.
func (s *server) listFiles(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	return writeList(s, w, r, []string{""}, func(after []string, limit int) ([]ElevationDatasetFileMeta, error) {
		status := optional(r.URL.Query(), "status")
		var v invalid
		v.check(status == nil || slices.Contains(fileStatuses(), *status), "status", "unknown", "must be one of "+strings.Join(fileStatuses(), ", "))
		if err := v.err(); err != nil {
			return nil, err
		}
		return listFiles(r.Context(), s.db, d.ID, status, after[0], limit)
	}, func(f ElevationDatasetFileMeta) []string { return []string{f.Path} })
}

// getFile answers GET /api/v1/datasets/{id}/files/{file}.
func (s *server) getFile(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	fileID, err := pathID(r, "file")
	if err != nil {
		return err
	}
	f, err := getFile(r.Context(), s.db, id, fileID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, f)
}

// storedColumns are the columns of a file that are read from it: all but its id and its dataset's.
const storedColumns = `
	path, size_bytes, modified_ns, format, status, reason, width, height, bands, sample_type, nodata, pixel_is,
	transform, native_bbox, crs, crs_name, vertical_crs, bbox, bbox_accuracy_m, resolution_m, source, warnings,
	analyzed_at`

// fileColumns are the columns of a file, of the table elevation_dataset_file_meta.
const fileColumns = `
	id, to_timestamp(modified_ns / 1e9) AS modified_at,` + storedColumns

// storedFile is a file as its row has it: with nanoseconds, finer than the database's own times.
type storedFile struct {
	ElevationDatasetFileMeta
	ModifiedNS int64 `json:"modified_ns"`
}

// collectFiles returns the files of a query for fileColumns.
func collectFiles(ctx context.Context, q querier, doing, query string, args ...any) ([]ElevationDatasetFileMeta, error) {
	stored, err := collect[storedFile](ctx, q, doing, query, args...)
	files := make([]ElevationDatasetFileMeta, len(stored))
	for i, f := range stored {
		files[i] = f.ElevationDatasetFileMeta
		files[i].ModifiedAt = time.Unix(0, f.ModifiedNS).UTC()
	}
	return files, err
}

// listFiles returns files of a dataset in the order of their paths, all or those with a status.
func listFiles(ctx context.Context, q querier, datasetID int64, status *string, after string, limit int) ([]ElevationDatasetFileMeta, error) {
	const query = `
		SELECT ` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path > $2 AND ($3::text IS NULL OR status = $3)
		ORDER BY path
		LIMIT $4`
	return collectFiles(ctx, q, "list files", query, datasetID, after, status, limit)
}

// getFile returns a file of a dataset, or errNotFound.
func getFile(ctx context.Context, q querier, datasetID, id int64) (ElevationDatasetFileMeta, error) {
	const query = `
		SELECT ` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND id = $2`
	files, err := collectFiles(ctx, q, "get file", query, datasetID, id)
	if err == nil && len(files) == 0 {
		err = errNotFound
	}
	if err != nil {
		return ElevationDatasetFileMeta{}, err
	}
	return files[0], nil
}

// upsertFiles stores rows, and counts those that are new, differ from what was stored, or do not.
func upsertFiles(ctx context.Context, tx pgx.Tx, datasetID int64, rows []ElevationDatasetFileMeta) (n analysisCounts, err error) {
	const query = `
		WITH new AS MATERIALIZED (
			SELECT *
			FROM json_populate_recordset(NULL::elevation_dataset_file_meta, $2)
		),
		known AS MATERIALIZED (
			SELECT to_jsonb(f) - '{id,dataset_id,analyzed_at}'::text[]
				= to_jsonb(new) - '{id,dataset_id,analyzed_at}'::text[] AS same
			FROM new
			JOIN elevation_dataset_file_meta f ON f.dataset_id = $1 AND f.path = new.path
		),
		put AS (
			INSERT INTO elevation_dataset_file_meta (dataset_id,` + storedColumns + `)
			SELECT $1,` + storedColumns + `
			FROM new
			ON CONFLICT (dataset_id, path) DO UPDATE
			SET (` + storedColumns + `) = (SELECT ` + storedColumns + ` FROM (SELECT excluded.*) e)
		)
		SELECT
			(SELECT count(*) FROM new) - (SELECT count(*) FROM known),
			(SELECT count(*) FROM known WHERE NOT same),
			(SELECT count(*) FROM known WHERE same),
			(SELECT count(*) FROM new WHERE status IN ('corrupt', 'unreadable'))`
	in := make([]storedFile, len(rows))
	for i, m := range rows {
		in[i] = storedFile{m, m.ModifiedAt.UnixNano()}
	}
	encoded, err := json.Marshal(in)
	if err != nil {
		return n, fmt.Errorf("encode rows: %w", err)
	}
	if err := tx.QueryRow(ctx, query, datasetID, encoded).Scan(&n.Added, &n.Changed, &n.Unchanged, &n.Failed); err != nil {
		return n, fmt.Errorf("store rows: %w", err)
	}
	return n, nil
}

// fileStatuses are all values of a file's status.
func fileStatuses() []string {
	return []string{fileStatusOK, fileStatusNoBBox, fileStatusNoGeoref, fileStatusSidecar, fileStatusUnsupported, fileStatusCorrupt, fileStatusUnreadable}
}
