package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readerVersion is stored with each row. A release whose reader may make another row of the same
// file raises it, so that all files are read again.
const readerVersion = 3

// readTask is a chunk that this instance holds. At first a chunk has all files and rows of its
// interval. Later it has the files that a holder did not find, for a second look by another
// instance if one lives: files that the walk found, and files of rows.
type readTask struct {
	task
	ID         int64
	FromPath   string
	ToPath     string
	Files      int // number of its files that the walk found
	Deaths     int // number of instances that died while they held it
	SecondLook bool
	Last       bool // it is a second look, and no other instance may look after this one
}

// endOfPaths returns a text that sorts after every path. The last chunk ends there.
func endOfPaths() string { return strings.Repeat(string(utf8.MaxRune), maxPath/utf8.UTFMax+1) }

// readStep claims a chunk, reads its files and stores their rows. It reports whether there was one.
//
// When an instance dies, each chunk that it held counts a death, although only one of them may be
// at fault. A chunk that has one attempt left is a suspect. The instance reads it alone, when it
// has no other chunk. If it dies again, that chunk is at fault.
func (a *analyzer) readStep(ctx context.Context) (worked bool, err error) {
	a.solo.RLock()
	worked, err = a.readChunk(ctx, false)
	a.solo.RUnlock()
	if worked || err != nil || !a.solo.TryLock() {
		return worked, err
	}
	defer a.solo.Unlock()
	return a.readChunk(ctx, true)
}

// readChunk is readStep for suspects or for the other chunks. It claims the first one without a
// living holder. Chunks whose rows the database refused come last.
func (a *analyzer) readChunk(ctx context.Context, suspect bool) (worked bool, err error) {
	const query = `
		UPDATE analysis_chunks c
		SET token = $2, deaths = c.deaths + (c.reader IS NOT NULL)::int, reader = $1
		FROM analyses a
		JOIN datasets d ON d.id = a.dataset_id
		WHERE a.id = c.analysis_id AND c.id = (
			SELECT c.id
			FROM analysis_chunks c
			JOIN analyses a ON a.id = c.analysis_id
			WHERE (c.reader IS NULL OR c.reader = ANY (` + deadInstances + `))
				AND (c.deaths + (c.reader IS NOT NULL)::int >= $4) = $3
				AND ` + maySee + ` AND (c.missed_by = '{}'
					OR c.missed_at IS NOT NULL AND ($1 <> ALL (c.missed_by) OR NOT ` + othersMayFind + `))
			ORDER BY c.failures, c.id
			LIMIT 1
			FOR UPDATE OF c SKIP LOCKED
		)
		RETURNING ` + taskColumns + `, c.token::text AS token, c.failures, c.id, c.from_path,
			coalesce(c.to_path, $5) AS to_path, cardinality(array_remove(c.sizes, NULL)) AS files, c.deaths,
			c.missed_by <> '{}' AS second_look, c.missed_by <> '{}' AND NOT ` + othersMayFind + ` AS last`
	tasks, err := claim[readTask](ctx, a, "claim chunk", query, suspect, maxDeaths-1, endOfPaths())
	if err != nil || len(tasks) == 0 {
		return false, err
	}
	t := tasks[0]
	return true, a.work(ctx, t.task, func(ctx context.Context) error {
		found, err := compareChunk(ctx, a.db, t)
		switch {
		case err != nil:
			return err
		case len(found.cuts) > 0:
			return cutChunk(ctx, a.db, t, found.cuts)
		case t.Deaths >= maxDeaths && t.Files > 1:
			return cutChunk(ctx, a.db, t, nil)
		}
		if err := a.readFiles(ctx, t, found.files); err != nil {
			return err
		}
		return a.storeChunk(ctx, t, found)
	})
}

// chunkFile is a file of a chunk, with the outcome of reading it or looking for it.
type chunkFile struct {
	entry
	ID     int64                    // of its row, or of the row that it will have
	Known  bool                     // it has a row
	Listed bool                     // the walk found it
	Same   bool                     // it need not be read again
	row    ElevationDatasetFileMeta // if it is listed and there
	absent absence                  // if it is not listed
}

// isRead reports whether the file was there when it was to be read.
func (f chunkFile) isRead() bool { return f.row.Status != "" }

// comparison is the difference between the files of a chunk and the rows of its interval.
type comparison struct {
	files     []chunkFile // new or changed, or no longer found by the walk
	unchanged int
	failed    int      // unchanged files whose row is corrupt
	cuts      []string // if there are too many rows for one chunk: the paths to cut it after
}

// missed returns the files that were not found now: files that the walk found, and files of rows.
func (c comparison) missed() (paths []string) {
	for _, f := range c.files {
		if f.Listed && !f.isRead() || f.absent.gone {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// maxUnlisted is about how many rows without files a chunk may have. A chunk with more, because a
// whole directory is gone, is cut.
const maxUnlisted = 5000

// compareChunk compares the files of a chunk with the rows of its interval. A file is unchanged if
// its size, times and sidecars are those of its row, and a reader of this version made the row.
func compareChunk(ctx context.Context, q querier, t readTask) (c comparison, err error) {
	const query = `
		WITH pairs AS (
			SELECT e.path AS found, f.path AS stored, e.size, e.modified, e.changed, e.sidecars, f.id, f.status,
				coalesce(NOT $6 AND f.status <> 'unreadable' AND f.reader_version = $7 AND f.size_bytes = e.size
					AND f.modified_ns = e.modified AND f.changed_ns = e.changed
					AND f.sidecars = e.sidecars, false) AS same
			FROM (
				SELECT e.*
				FROM analysis_chunks c, unnest(c.paths, c.sizes, c.modified, c.changed, c.sidecars)
					AS e (path, size, modified, changed, sidecars)
				WHERE c.id = $1 AND c.token = $2
			) e
			FULL JOIN (
				SELECT *
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $3 AND path > $4 AND path <= $5
			) f ON f.path = e.path
		)
		SELECT coalesce(found, stored) AS path, coalesce(size, 0) AS size, coalesce(modified, 0) AS modified,
			coalesce(changed, 0) AS changed, coalesce(sidecars, 0) AS sidecars,
			id IS NOT NULL AS known, size IS NOT NULL AS listed, same,
			coalesce(id, nextval('elevation_dataset_file_meta_id_seq')) AS id
		FROM pairs
		WHERE (NOT same OR status = 'corrupt') AND (NOT $9 OR found IS NOT NULL)
		ORDER BY 1
		LIMIT $8`
	const cut = `
		SELECT path
		FROM (
			SELECT path, row_number() OVER (ORDER BY path) AS n
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $1 AND path > $2 AND path <= $3
		) r
		WHERE n % $4 = 0
		ORDER BY path`
	limit := t.Files + maxUnlisted
	files, err := collect[chunkFile](ctx, q, "compare files", query,
		t.ID, t.Token, t.DatasetID, t.FromPath, t.ToPath, t.Force, readerVersion, limit, t.SecondLook)
	if err == nil && len(files) == limit {
		ends, err := collect[struct{ Path string }](ctx, q, "find cuts", cut,
			t.DatasetID, t.FromPath, t.ToPath, maxUnlisted/2)
		for _, end := range ends {
			c.cuts = append(c.cuts, end.Path)
		}
		return c, err
	}
	c.unchanged = t.Files
	for _, f := range files {
		if f.Same {
			c.failed++
			continue
		}
		c.files = append(c.files, f)
		if f.Listed {
			c.unchanged--
		}
	}
	return c, err
}

// readFiles reads the files that the walk found, and looks for the others. A file whose reading
// hangs becomes unreadable, and another goroutine continues after it.
func (a *analyzer) readFiles(ctx context.Context, t readTask, files []chunkFile) error {
	for len(files) > 0 {
		todo := slices.Clone(files) // an abandoned goroutine keeps its own
		err := runDetached(ctx, a, new(atomic.Int64), func(_ context.Context, send func(chunkFile) error) error {
			return a.readInOrder(t, todo, send)
		}, func(f chunkFile) error {
			files[0] = f
			files = files[1:]
			return nil
		})
		if err == nil {
			return nil
		}
		if !errors.Is(err, errHangs) || len(files) == 0 || !files[0].Listed || a.hung.Load() >= maxHung {
			return err
		}
		files[0].row = files[0].entry.row(a.now())
		files[0].row.fail(fileStatusUnreadable, "reading it did not end within %v", a.patience)
		files = files[1:]
	}
	return nil
}

// readInOrder reads or looks for each file, and sends it with its outcome. It runs in a goroutine
// that may be abandoned.
func (a *analyzer) readInOrder(t readTask, files []chunkFile, send func(chunkFile) error) error {
	root, err := a.openDataset(t.task, true)
	if err != nil {
		return err
	}
	fr := &fileReader{root: root, now: a.now, before: a.beforeRead}
	if root != nil { // else the directory is missing, which is intended
		defer fr.close()
	}
	for _, f := range files {
		switch {
		case !f.Listed && root == nil:
			f.absent.gone = true
		case !f.Listed:
			f.absent = lookFor(root, f.Path)
			if t.Force && f.absent.emptied != "" {
				f.absent = absence{gone: true}
			}
		case t.Deaths >= maxDeaths:
			f.row = f.entry.row(a.now())
			f.row.fail(fileStatusCorrupt, "reading this file ended the program %d times, so it is not read "+
				"any more; mend or remove it", maxDeaths)
		case root != nil:
			f.row, _ = fr.readEntry(f.entry)
			f.row.withdrawPlace()
		}
		if err := send(f); err != nil {
			return err
		}
	}
	return nil
}

// cutChunk replaces a chunk by several. It cuts after each of the paths or, if after is nil, after
// each file. Chunks for a second look keep from_path, by which noteChanges finds their interval.
func cutChunk(ctx context.Context, db *pgxpool.Pool, t readTask, after []string) error {
	const cut = `
		WITH c AS (
			DELETE FROM analysis_chunks
			WHERE id = $1 AND token = $2
			RETURNING *
		), cut AS (
			SELECT c.*, p.ends, p.n,
				(SELECT count(*) FROM unnest(c.paths) path WHERE coalesce(path <= p.ends, true))::int AS last
			FROM c, unnest(array_append(coalesce($3, c.paths[:cardinality(c.paths) - 1]), c.to_path))
				WITH ORDINALITY AS p (ends, n)
		), part AS (
			SELECT *, lag(ends, 1, from_path) OVER parts AS begins, lag(last, 1, 0) OVER parts + 1 AS first
			FROM cut
			WINDOW parts AS (ORDER BY n)
		)
		INSERT INTO analysis_chunks (analysis_id, missed_by, missed_at, from_path, to_path,
			paths, sizes, modified, changed, sidecars)
		SELECT analysis_id, missed_by, missed_at, CASE WHEN missed_by = '{}' THEN begins ELSE from_path END, ends,
			paths[first:last], sizes[first:last], modified[first:last], changed[first:last], sidecars[first:last]
		FROM part
		ORDER BY n`
	const count = `UPDATE analyses SET chunks_left = chunks_left + $2 WHERE id = $1 AND finished_at IS NULL`
	return changeAnalysis(ctx, db, t.AnalysisID, func(tx pgx.Tx) error {
		n, err := execute(ctx, tx, "cut chunk", cut, t.ID, t.Token, after)
		if err == nil && n == 0 {
			err = errNotOurs
		}
		if err != nil {
			return err
		}
		return oneRow(ctx, tx, "count chunks", count, t.AnalysisID, n-1)
	})
}

// outcome is the result of a chunk.
type outcome struct {
	added, changed, removed []string
	vanished                []string // found by the walk, and by nobody when they were to be read
	missing                 int      // rows whose files the walk did not find, and that no empty directory keeps
	unchanged, failed       int
	warnings                []string
}

// outcomeOf returns the outcome of a chunk. before holds the rows that were replaced or removed.
func outcomeOf(t readTask, found comparison, before map[string]ElevationDatasetFileMeta) outcome {
	o := outcome{unchanged: found.unchanged, failed: found.failed}
	for _, f := range found.files {
		old, known := before[f.Path]
		switch {
		case f.absent.emptied != "":
			warning := f.absent.emptied + ": this directory is empty now, so the rows of its files stay; " +
				"if the files are gone, analyse with force"
			if !slices.Contains(o.warnings, warning) {
				o.warnings = append(o.warnings, warning)
			}
		case f.absent.gone && t.Last:
			o.removed = append(o.removed, f.Path)
		case !f.Listed && !f.absent.unsure && !t.SecondLook:
			o.missing++
		case f.Listed && !f.isRead() && t.Last:
			o.vanished = append(o.vanished, f.Path)
		case !f.isRead():
		case !known:
			o.added = append(o.added, f.Path)
		case sameContent(old, f.row):
			o.unchanged++
		default:
			o.changed = append(o.changed, f.Path)
		}
		if f.row.Status == fileStatusCorrupt || f.row.Status == fileStatusUnreadable {
			o.failed++
		}
	}
	if n := len(o.vanished); n > 0 {
		o.warnings = append(o.warnings, fmt.Sprintf("%s: this file was found, but was gone when it was to be read "+
			"(%d files in all)", o.vanished[0], n))
	}
	return o
}

// storeChunk stores the outcome of a chunk or, if this instance no longer holds the chunk, nothing.
// Only the holder of a chunk changes rows of its interval. Files that were not found stay in the
// chunk for a second look, unless this was the last look.
func (a *analyzer) storeChunk(ctx context.Context, t readTask, found comparison) error {
	const count = `
		UPDATE analyses a
		SET chunks_left = chunks_left - $2, total = total - $3, added = added + $4, changed = changed + $5,
			unchanged = unchanged + $6, removed = removed + $7, failed = failed + $8, missing = missing + $9,
			warnings = (warnings || ARRAY(SELECT w FROM unnest($10::text[]) w WHERE w <> ALL (a.warnings)))[1:$11]
		WHERE id = $1 AND finished_at IS NULL
		RETURNING state = 'reading' AND chunks_left = 0 AS ended`
	var failed *failure
	err := changeAnalysis(ctx, a.db, t.AnalysisID, func(tx pgx.Tx) error {
		done, err := a.takeChunk(ctx, tx, t, found.missed())
		if err != nil {
			return err
		}
		before, err := replaceRows(ctx, tx, t, found.files)
		if err != nil {
			return err
		}
		o := outcomeOf(t, found, before)
		if err := noteChanges(ctx, tx, t, o); err != nil {
			return err
		}
		analysis, err := collectOne[struct{ Ended bool }](ctx, tx, errNotOurs, "count files", count,
			t.AnalysisID, done, len(o.vanished), len(o.added), len(o.changed), o.unchanged, len(o.removed), o.failed,
			o.missing, o.warnings, maxWarnings)
		if err == nil && analysis.Ended {
			failed, err = endReading(ctx, tx, t.AnalysisID)
		}
		return err
	})
	if err != nil {
		return err
	}
	if failed != nil {
		a.log.Warn("analysis failed", "analysis", t.AnalysisID, "reason", failed.reason)
	}
	a.stored.Add(1)
	return nil
}

// takeChunk deletes a chunk that this instance holds. If files were missed, and this was not the
// last look for them, it keeps the chunk with just these files; the size is null for a file that
// the walk did not find. It returns by how much chunks_left falls. A chunk that becomes one for a
// second look is not counted any more, until endReading counts it again.
func (a *analyzer) takeChunk(ctx context.Context, tx pgx.Tx, t readTask, missed []string) (done int, err error) {
	const take = `DELETE FROM analysis_chunks WHERE id = $1 AND token = $2`
	const keep = `
		UPDATE analysis_chunks
		SET missed_by = array_append(missed_by, $3), missed_at = CASE WHEN missed_by <> '{}' THEN now() END,
			reader = NULL, token = NULL,
			(paths, sizes, modified, changed, sidecars) = (
				SELECT array_agg(m.path ORDER BY n), array_agg(size ORDER BY n), array_agg(mtime ORDER BY n),
					array_agg(ctime ORDER BY n), array_agg(sidecar ORDER BY n)
				FROM unnest($4::text[] COLLATE "C") WITH ORDINALITY AS m (path, n)
				LEFT JOIN unnest(paths, sizes, modified, changed, sidecars)
					AS e (path, size, mtime, ctime, sidecar) ON e.path = m.path
			)
		WHERE id = $1 AND token = $2`
	if len(missed) == 0 || t.Last {
		return 1, oneRow(ctx, tx, "take chunk", take, t.ID, t.Token)
	}
	if !t.SecondLook {
		done = 1
	}
	return done, oneRow(ctx, tx, "keep chunk for a second look", keep, t.ID, t.Token, a.instance, missed)
}

// noteChanges notes the changes of a chunk in analysis_changes, in the row of its interval.
func noteChanges(ctx context.Context, tx pgx.Tx, t readTask, o outcome) error {
	const note = `
		INSERT INTO analysis_changes AS c (analysis_id, from_path, added, changed, removed)
		VALUES ($1, $2, coalesce($3::text[], '{}'), coalesce($4::text[], '{}'), coalesce($5::text[], '{}'))
		ON CONFLICT (analysis_id, from_path) DO UPDATE
		SET added = c.added || excluded.added, changed = c.changed || excluded.changed,
			removed = c.removed || excluded.removed`
	if len(o.added)+len(o.changed)+len(o.removed) == 0 {
		return nil
	}
	_, err := execute(ctx, tx, "note changes", note, t.AnalysisID, t.FromPath, o.added, o.changed, o.removed)
	return err
}

// replaceRows deletes the rows of files that were read again, and adds the new rows. After the last
// look it deletes the rows whose files are gone, too. It returns the deleted rows by path. A file
// that the walk found, but that was gone when it was to be read, keeps its row until the next
// analysis.
func replaceRows(ctx context.Context, tx pgx.Tx, t readTask, files []chunkFile) (
	before map[string]ElevationDatasetFileMeta, err error) {
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY ($2::text[])
		RETURNING` + fileColumns
	var replaced, columns []string
	var rows [][]any
	for _, f := range files {
		if f.isRead() && f.Known || f.absent.gone && t.Last {
			replaced = append(replaced, f.Path)
		}
		if f.isRead() {
			version := readerVersion
			if f.row.unsettled || !isSettled(f.row.ModifiedAt.Time, f.row.AnalyzedAt) {
				version = 0 // a later change may keep size and time, so the file is read again next time
			}
			names, row := f.row.stored()
			columns = append(names, "id", "dataset_id", "changed_ns", "sidecars", "reader_version")
			rows = append(rows, append(row, f.ID, t.DatasetID, f.row.changed, f.Sidecars, version))
		}
	}
	before = map[string]ElevationDatasetFileMeta{}
	if len(replaced) > 0 {
		removed, err := collect[ElevationDatasetFileMeta](ctx, tx, "remove rows", remove, t.DatasetID, replaced)
		if err != nil {
			return nil, err
		}
		for _, row := range removed {
			before[row.Path] = row
		}
	}
	if len(rows) > 0 {
		table := pgx.Identifier{"elevation_dataset_file_meta"}
		if _, err := tx.CopyFrom(ctx, table, columns, pgx.CopyFromRows(rows)); err != nil {
			return nil, fmt.Errorf("store rows: %w", err)
		}
	}
	return before, nil
}

// sameContent reports whether two rows of a file are equal, but for the id and the time of reading.
func sameContent(a, b ElevationDatasetFileMeta) bool {
	a.ID, a.AnalyzedAt, b.ID, b.AnalyzedAt = 0, time.Time{}, 0, time.Time{}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errors.Join(errA, errB) == nil && bytes.Equal(x, y)
}
