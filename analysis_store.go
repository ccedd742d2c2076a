package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// storeBatch stores a batch or, if this instance no longer owns the analysis, nothing. A warning
// tells of files that were gone when they were to be read. Those with a row become candidates.
func (a *analyzer) storeBatch(ctx context.Context, t task, b batch) error {
	// A file that a former owner added stays added, even if it has changed since.
	const count = `
		WITH noted AS (
			INSERT INTO analysis_changes (analysis_id, path, change)
			SELECT $1::bigint, unnest($3::text[]), 'added'
			UNION ALL
			SELECT $1::bigint, unnest($4::text[]), 'changed'
			ON CONFLICT DO NOTHING
		), candidates AS (
			INSERT INTO analysis_candidates (analysis_id, path)
			SELECT $1, unnest($5::text[])
			ON CONFLICT DO NOTHING
		)
		UPDATE analyses a
		SET
			total = total + $6,
			added = added + coalesce(cardinality($3), 0),
			changed = changed + coalesce(cardinality($4), 0),
			failed = failed + $7,
			warnings = (warnings || ARRAY(SELECT w FROM unnest($8::text[]) w WHERE w <> ALL (a.warnings)))[1:$9]
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	err := a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
		before, err := replaceRows(ctx, tx, t, b.files)
		if err != nil {
			return err
		}

		b.classify(before)
		return oneRow(ctx, tx, "count files", count,
			t.AnalysisID,
			t.Token,
			b.added,
			b.changed,
			b.missing,
			b.seen,
			b.failed,
			b.warnings,
			maxWarnings)
	})
	if err == nil {
		a.stored.Add(1)
	}

	return err
}

// classify completes a batch whose files have been read, by what has become of them. before holds
// the rows that were replaced, by path.
func (b *batch) classify(before map[string]ElevationDatasetFileMeta) {
	var vanished []string
	for _, f := range b.files {
		old, isKnown := before[f.Path]
		switch {
		case f.row == nil:
			vanished = append(vanished, f.Path)
			b.seen--
			if f.known.ID != 0 {
				b.missing = append(b.missing, f.Path)
			}
		case !isKnown:
			b.added = append(b.added, f.Path)
		case !sameContent(old, *f.row):
			b.changed = append(b.changed, f.Path)
		}

		if f.row != nil && isFailed(f.row.Status) {
			b.failed++
		}
	}

	if n := len(vanished); n > 0 {
		const format = "%s: this file was found, but was gone when it was to be read (%s in all)"
		text := fmt.Sprintf(format, vanished[0], plural(int64(n), "file"))
		b.warnings = append(b.warnings, text)
	}
}

// isFailed reports whether a file with this status counts as failed.
func isFailed(status string) bool {
	return status == fileStatusCorrupt || status == fileStatusUnreadable
}

// replaceRows deletes the rows of files that were read again, and adds the new ones, with the same
// ids. It returns the deleted rows by path.
func replaceRows(ctx context.Context, tx pgx.Tx, t task, files []batchFile) (
	before map[string]ElevationDatasetFileMeta, err error) {
	const newIDs = `
		SELECT ARRAY(
			SELECT nextval('elevation_dataset_file_meta_id_seq') FROM generate_series(1, $1::integer)
		)`

	// The files that were not gone, and the paths of those that have a row.
	var read []batchFile
	var replaced []string
	for _, f := range files {
		if f.row == nil {
			continue
		}

		read = append(read, f)
		if f.known.ID != 0 {
			replaced = append(replaced, f.Path)
		}
	}

	if len(read) == 0 {
		return nil, nil
	}

	before, err = removeRows(ctx, tx, t.DatasetID, replaced)
	if err != nil {
		return nil, err
	}

	ids, err := scalar[[]int64](ctx, tx, "take ids", newIDs, len(read)-len(replaced))
	if err != nil {
		return nil, err
	}

	var columns []string
	var rows [][]any
	for _, f := range read {
		// A file that had a row keeps its id.
		if f.known.ID == 0 {
			f.known.ID = ids[0]
			f.known.AddedIn = t.AnalysisID
			ids = ids[1:]
		}

		version := readerVersion
		if f.row.unsettled || !isSettled(f.row.ModifiedAt.Time, f.row.AnalyzedAt) {
			version = 0 // a later change may keep size and time, so the file is read again next time
		}

		f.keepContent(before[f.Path], t)
		names, row := f.row.stored()
		columns = append(names,
			"id",
			"changed_ns",
			"sidecars",
			"reader_version",
			"added_in",
			"read_in",
			"is_list",
			"content_fault")
		row = append([]any{t.DatasetID}, row...)
		row = append(row,
			f.known.ID,
			f.row.changed,
			f.Sidecars,
			version,
			f.known.AddedIn,
			t.AnalysisID,
			f.known.IsList,
			f.known.ContentFault)
		rows = append(rows, row)
	}

	return before, copyRows(ctx, tx, "elevation_dataset_file_meta", rows, columns...)
}

// keepContent copies the digests and the heights from the row that the file had, and keeps what
// known has of its content. If the file may have changed since, or the analysis is to read contents
// anew, it keeps none of these. A file with the same size and times has not changed: see
// readContents. The meaning of heights depends on the rest of the row and on sidecars, too: an .hdr
// says in which order the bytes are.
func (f *batchFile) keepContent(old ElevationDatasetFileMeta, t task) {
	isSame := old.SizeBytes == f.row.SizeBytes &&
		old.ModifiedAt.Equal(f.row.ModifiedAt.Time) &&
		f.known.Changed == f.row.changed

	isSameRaster := isSame && sameContent(old, *f.row) && f.known.Sidecars == f.Sidecars
	isForced := t.Force && t.Heights
	if isSameRaster && !isForced {
		f.row.Heights = old.Heights
	}

	isAnew := t.Force && t.Checksums
	if !isSame || isAnew {
		f.known.IsList = false
		f.known.ContentFault = nil
		return
	}

	f.row.MD5 = old.MD5
	f.row.SHA256 = old.SHA256
}

// removeRows deletes the rows with these paths, and returns them by path.
func removeRows(ctx context.Context, tx pgx.Tx, datasetID int64, paths []string) (
	map[string]ElevationDatasetFileMeta, error) {
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY ($2::text[])
		RETURNING` + fileColumns

	removed, err := collect[ElevationDatasetFileMeta](ctx, tx, "remove rows", remove, datasetID, paths)
	if err != nil {
		return nil, err
	}

	before := map[string]ElevationDatasetFileMeta{}
	for _, row := range removed {
		before[row.Path] = row
	}

	return before, nil
}

// sameContent reports whether two rows of a file are equal, but for the id, the time of reading and
// the digests.
func sameContent(a, b ElevationDatasetFileMeta) bool {
	a.ID = b.ID
	a.AnalyzedAt = b.AnalyzedAt
	a.MD5 = b.MD5
	a.SHA256 = b.SHA256
	return isSame(a, b)
}
