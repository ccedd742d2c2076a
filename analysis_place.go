package main

import (
	"context"
	"path"

	"github.com/jackc/pgx/v5"
)

// placeAnew sets other CRSs in the rows whose files name none, if those of the dataset have changed
// since its last checks. It opens no file: a row has all that is needed. It returns the number of
// that change: see datasets.crs_version.
func (a *analyzer) placeAnew(ctx context.Context, t task) (version int, err error) {
	const present = `
		SELECT
			d.about,
			d.crs_version AS version,
			d.crs_version = coalesce(r.crs_version, 0) AS is_current
		FROM datasets d
		LEFT JOIN dataset_results r ON r.dataset_id = d.id
		WHERE d.id = $1`

	const rows = `
		SELECT` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
			AND path > $2
			AND native_bbox IS NOT NULL
			AND (lacks_crs OR vertical_crs IS NULL OR set_vertical_crs <> '')
		ORDER BY path
		LIMIT $3`

	d, err := collectOne[struct {
		About     datasetAbout
		Version   int
		IsCurrent bool
	}](ctx, a.db, errNotOurs, "get the CRSs that are set", present, t.DatasetID)
	if err != nil || d.IsCurrent {
		return d.Version, err
	}

	const atOnce = 1000
	var last lastCRS
	after := ""
	for {
		found, err := collect[ElevationDatasetFileMeta](ctx, a.db, "read rows", rows, t.DatasetID, after, atOnce)
		if err != nil {
			return 0, err
		}

		var changed []ElevationDatasetFileMeta
		for _, row := range found {
			after = row.Path
			before := row.extent
			raw, _ := decodePath(row.Path) // as the walk wrote it

			crs, verticalCRS := d.About.of(row.Path)
			row.assume(crs, verticalCRS, path.Base(raw), &last)
			isChanged := row.SetCRS != before.SetCRS || row.SetVerticalCRS != before.SetVerticalCRS
			if isChanged {
				changed = append(changed, row)
			}
		}

		if err := a.storePlaces(ctx, t, changed); err != nil {
			return 0, err
		}
		if len(found) < atOnce {
			return d.Version, nil
		}
	}
}

// storePlaces stores where files lie, or nothing if this instance no longer owns the analysis.
func (a *analyzer) storePlaces(ctx context.Context, t task, files []ElevationDatasetFileMeta) error {
	const store = `
		WITH stored AS (
			UPDATE elevation_dataset_file_meta f
			SET
				status = r.status,
				reason = r.reason,
				crs = r.crs,
				crs_definition = r.crs_definition,
				vertical_crs = r.vertical_crs,
				bbox = r.bbox,
				bbox_accuracy_m = r.bbox_accuracy_m,
				resolution_m = r.resolution_m,
				source = r.source,
				warnings = r.warnings,
				set_crs = r.set_crs,
				set_vertical_crs = r.set_vertical_crs,
				own_warnings = r.own_warnings
			FROM json_populate_recordset(NULL::elevation_dataset_file_meta, $3::json) r
			WHERE f.id = r.id
			RETURNING f.path
		), noted AS (
			INSERT INTO analysis_changes (analysis_id, path, change)
			SELECT $1::bigint, path, 'changed'
			FROM stored
			ON CONFLICT DO NOTHING
			RETURNING path
		)
		UPDATE analyses
		SET changed = changed + (SELECT count(*) FROM noted)
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	if len(files) == 0 {
		return nil
	}

	var rows []object
	for _, file := range files {
		row := object{"id": file.ID}
		names, values := file.stored()
		for i, name := range names {
			row[name] = values[i]
		}
		rows = append(rows, row)
	}

	return a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "store places", store, t.AnalysisID, t.Token, rows)
	})
}
