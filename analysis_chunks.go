package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readerVersion is stored with each row. Raise it when the same file may get another row: then all
// files are read again.
const readerVersion = 3

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
	return a.work(ctx, "claim chunk", query, []any{suspect, maxDeaths - 1, endOfPaths()},
		func(ctx context.Context, t task) error {
			o, tooMany, err := compareChunk(ctx, a.db, t)
			switch {
			case err != nil:
				return err
			case tooMany:
				return cutChunk(ctx, a.db, t, maxUnlisted/2)
			case t.Deaths >= maxDeaths && t.Files > 1:
				return cutChunk(ctx, a.db, t, 0)
			}
			if err := a.readFiles(ctx, t, o.files); err != nil {
				return err
			}
			return a.storeChunk(ctx, t, o)
		})
}

// chunkFile is a file of a chunk, with the outcome of reading it or looking for it.
type chunkFile struct {
	entry
	ID     int64                     // of its row, or of the row that it will have
	Known  bool                      // it has a row
	Listed bool                      // the walk found it
	Same   bool                      // it need not be read again
	row    *ElevationDatasetFileMeta // if it is listed and was there when it was to be read
	absent absence                   // if it is not listed
}

// outcome is the result of a chunk.
type outcome struct {
	files                   []chunkFile // new or changed, or no longer found by the walk
	added, changed, removed []string
	vanished                []string // listed by the walk, and not found by the last look
	missing                 int      // rows that this look adds to the column missing
	unchanged, failed       int
	warnings                []string
}

// maxUnlisted is about how many rows of files that the walk did not find a chunk may have uncut.
const maxUnlisted = 5000

// compareChunk compares the files of a chunk with the rows of its interval, and reports whether
// there are too many rows for one chunk. A file is unchanged if its size, times and sidecars are
// those of its row, and a reader of this version made the row.
func compareChunk(ctx context.Context, q querier, t task) (o outcome, tooMany bool, err error) {
	const query = `
		WITH pairs AS (
			SELECT coalesce(e.path, f.path) AS path, e.path IS NOT NULL AS found, e.size, e.modified, e.changed,
				e.sidecars, f.id, f.status,
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
		SELECT path, coalesce(size, 0) AS size, coalesce(modified, 0) AS modified,
			coalesce(changed, 0) AS changed, coalesce(sidecars, 0) AS sidecars,
			id IS NOT NULL AS known, size IS NOT NULL AS listed, same,
			coalesce(id, nextval('elevation_dataset_file_meta_id_seq')) AS id
		FROM pairs
		WHERE (NOT same OR status = 'corrupt') AND (NOT $9 OR found)
		ORDER BY path
		LIMIT $8`
	limit := t.Files + maxUnlisted
	files, err := collect[chunkFile](ctx, q, "compare files", query,
		t.ID, t.Token, t.DatasetID, t.FromPath, t.ToPath, t.Force, readerVersion, limit, t.SecondLook)
	o = outcome{unchanged: t.Files, added: []string{}, changed: []string{}, removed: []string{}}
	for _, f := range files {
		if f.Same {
			o.failed++ // its row is corrupt
			continue
		}
		o.files = append(o.files, f)
		if f.Listed {
			o.unchanged--
		}
	}
	return o, len(files) == limit, err
}

// readFiles reads the files that the walk found, and looks for the others. A file whose reading
// hangs becomes unreadable, and another goroutine continues after it. If the dataset's directory
// hangs when it is opened, no file is at fault, and readFiles returns errHangs.
func (a *analyzer) readFiles(ctx context.Context, t task, files []chunkFile) error {
	for len(files) > 0 {
		todo := slices.Clone(files) // an abandoned goroutine keeps its own
		var opened atomic.Int64     // 1 once the dataset's directory is open
		err := a.runDetached(ctx, &opened, func(_ context.Context, send func(func() error) error) error {
			root, err := a.openDataset(t, true)
			if err != nil {
				return err
			}
			opened.Store(1)
			fr := &fileReader{root: root, now: a.core.now, before: a.beforeRead, listed: true}
			if root != nil { // else the directory is missing, which is intended
				defer fr.close()
			}
			for _, f := range todo {
				f.read(fr, t)
				err := send(func() error {
					files[0], files = f, files[1:]
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			return nil
		}
		if !errors.Is(err, errHangs) || opened.Load() == 0 || len(files) == 0 || !files[0].Listed ||
			a.hung.Load() >= maxHung {
			return err
		}
		f := &files[0]
		f.row = new(f.unread(a.core.now(), fileStatusUnreadable, "reading it did not end within %v", a.core.patience))
		files = files[1:]
	}
	return nil
}

// read reads the file or looks for it.
func (f *chunkFile) read(fr *fileReader, t task) {
	switch {
	case !f.Listed && fr.root == nil:
		f.absent.gone = true
	case !f.Listed:
		f.absent = lookFor(fr.root, f.Path)
		if t.Force && f.absent.emptied != "" {
			f.absent = absence{gone: true}
		}
	case fr.root == nil: // the directory is missing, so the file is too
	case t.Deaths >= maxDeaths:
		if absent := lookFor(fr.root, f.Path); !absent.gone && absent.emptied == "" {
			f.row = new(f.unread(fr.now(), fileStatusCorrupt, "reading this file ended the program %d times, so it is "+
				"not read any more; mend or remove it", maxDeaths))
		}
	default:
		if m, found := fr.readEntry(f.entry); found {
			m.withdrawPlace()
			f.row = &m
		}
	}
}

// cutChunk replaces a chunk by several. It cuts after every so many rows of its interval or, if
// every is 0, after each file. Chunks for a second look keep from_path, the key of their changes.
func cutChunk(ctx context.Context, db *pgxpool.Pool, t task, every int) error {
	const query = `
		WITH c AS (
			DELETE FROM analysis_chunks
			WHERE id = $1 AND token = $2
			RETURNING *
		), known AS (
			SELECT path, row_number() OVER (ORDER BY path) AS n
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $4 AND path > $5 AND path <= $6 AND $3 > 0
		), cut AS (
			SELECT c.*, p.ends, p.n,
				(SELECT count(*) FROM unnest(c.paths) path WHERE coalesce(path <= p.ends, true))::int AS last
			FROM c, unnest(array_append(CASE
				WHEN $3 > 0 THEN ARRAY(SELECT path FROM known WHERE n % $3 = 0 ORDER BY n)
				ELSE c.paths[:cardinality(c.paths) - 1]
			END, c.to_path)) WITH ORDINALITY AS p (ends, n)
		), part AS (
			SELECT *, lag(ends, 1, from_path) OVER parts AS begins, lag(last, 1, 0) OVER parts + 1 AS first
			FROM cut
			WINDOW parts AS (ORDER BY n)
		), added AS (
			INSERT INTO analysis_chunks (analysis_id, missed_by, missed_at, from_path, to_path,
				paths, sizes, modified, changed, sidecars)
			SELECT analysis_id, missed_by, missed_at, CASE WHEN missed_by = '{}' THEN begins ELSE from_path END, ends,
				paths[first:last], sizes[first:last], modified[first:last], changed[first:last], sidecars[first:last]
			FROM part
			ORDER BY n
			RETURNING analysis_id
		)
		UPDATE analyses
		SET chunks_left = chunks_left + (SELECT count(*) FROM added) - 1
		WHERE id = (SELECT DISTINCT analysis_id FROM added) AND finished_at IS NULL`
	return changeAnalysis(ctx, db, t.AnalysisID, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "cut chunk", query, t.ID, t.Token, every, t.DatasetID, t.FromPath, t.ToPath)
	})
}

// missed returns the paths that this look did not find: listed files, and known files that the walk
// did not list.
func (o *outcome) missed() (paths []string) {
	for _, f := range o.files {
		if f.Listed && f.row == nil || f.absent.gone {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// classify sorts the files into added, changed, unchanged, removed and vanished, and collects
// warnings. before holds the rows that were replaced or removed.
func (o *outcome) classify(t task, before map[string]ElevationDatasetFileMeta) {
	for _, f := range o.files {
		old, known := before[f.Path]
		switch {
		case f.absent.emptied != "":
			warning := f.absent.emptied + ": this directory is empty now, so the rows of its files stay; " +
				"if the files are gone, analyse with the option force"
			if !slices.Contains(o.warnings, warning) {
				o.warnings = append(o.warnings, warning)
			}
		case f.absent.gone && t.Last:
			o.removed = append(o.removed, f.Path)
		case f.absent.gone && !t.SecondLook:
			o.missing++
		case f.Listed && f.row == nil && t.Last:
			o.vanished = append(o.vanished, f.Path)
		case f.row == nil:
		case !known:
			o.added = append(o.added, f.Path)
		case sameContent(old, *f.row):
			o.unchanged++
		default:
			o.changed = append(o.changed, f.Path)
		}
		if f.row != nil && (f.row.Status == fileStatusCorrupt || f.row.Status == fileStatusUnreadable) {
			o.failed++
		}
	}
	if n := len(o.vanished); n > 0 {
		o.warnings = append(o.warnings, fmt.Sprintf("%s: this file was found, but was gone when it was to be read "+
			"(%s in all)", o.vanished[0], plural(int64(n), "file")))
	}
}

// storeChunk stores the outcome of a chunk or, if this instance no longer holds the chunk, nothing.
// Only the holder of a chunk changes rows of its interval. Files that were not found stay in the
// chunk for a second look, unless this was the last look.
func (a *analyzer) storeChunk(ctx context.Context, t task, o outcome) error {
	const count = `
		WITH noted AS (
			INSERT INTO analysis_changes AS c (analysis_id, from_path, added, changed, removed)
			SELECT $1, $2, $3, $4, $5
			WHERE cardinality($3::text[] || $4::text[] || $5::text[]) > 0
			ON CONFLICT (analysis_id, from_path) DO UPDATE
			SET added = c.added || excluded.added, changed = c.changed || excluded.changed,
				removed = c.removed || excluded.removed
		)
		UPDATE analyses a
		SET chunks_left = chunks_left - $6, added = added + cardinality($3), changed = changed + cardinality($4),
			removed = removed + cardinality($5), total = total - $7, unchanged = unchanged + $8, failed = failed + $9,
			missing = missing + $10,
			warnings = (warnings || ARRAY(SELECT w FROM unnest($11::text[]) w WHERE w <> ALL (a.warnings)))[1:$12]
		WHERE id = $1 AND finished_at IS NULL
		RETURNING state = 'reading' AND chunks_left = 0 AS ended`
	var failed *failure
	err := changeAnalysis(ctx, a.db, t.AnalysisID, func(tx pgx.Tx) error {
		done, err := a.takeChunk(ctx, tx, t, o.missed())
		if err != nil {
			return err
		}
		before, err := replaceRows(ctx, tx, t, o.files)
		if err != nil {
			return err
		}
		o.classify(t, before)
		analysis, err := collectOne[struct{ Ended bool }](ctx, tx, errNotOurs, "count files", count,
			t.AnalysisID, t.FromPath, o.added, o.changed, o.removed, done, len(o.vanished), o.unchanged, o.failed,
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
		a.core.log.Warn("analysis failed", "analysis", t.AnalysisID, "reason", failed.reason)
	}
	a.stored.Add(1)
	return nil
}

// takeChunk deletes a chunk that this instance holds. If files were missed, and this was not the
// last look, it keeps the chunk with just these, whose size is null if the walk did not find them.
// done is 1 if the chunk no longer counts in chunks_left, else 0. endReading sets chunks_left to
// the number of kept chunks.
func (a *analyzer) takeChunk(ctx context.Context, tx pgx.Tx, t task, missed []string) (done int, err error) {
	const take = `DELETE FROM analysis_chunks WHERE id = $1 AND token = $2`
	const keep = `
		UPDATE analysis_chunks
		SET missed_by = array_append(missed_by, $3), missed_at = CASE WHEN missed_by <> '{}' THEN now() END,
			reader = NULL, token = NULL, deaths = 0,
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

// replaceRows deletes the rows of files that were read again and, after the last look, of files
// that are gone. It returns these rows by path, and adds the new ones. A vanished file keeps its
// row.
func replaceRows(ctx context.Context, tx pgx.Tx, t task, files []chunkFile) (
	before map[string]ElevationDatasetFileMeta, err error) {
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY ($2::text[])
		RETURNING` + fileColumns
	var replaced, columns []string
	var rows [][]any
	for _, f := range files {
		if f.row != nil && f.Known || f.absent.gone && t.Last {
			replaced = append(replaced, f.Path)
		}
		if f.row != nil {
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
	a.ID, a.AnalyzedAt = b.ID, b.AnalyzedAt
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errors.Join(errA, errB) == nil && bytes.Equal(x, y)
}

// absence is the outcome of looking for a known file that the walk did not find. It is zero if the
// file is there, or if an error prevented the look.
type absence struct {
	gone    bool   // no walk would find it
	emptied string // the lowest existing directory above the file, if it is empty: "a/b"
}

// lookFor looks for a file. An empty directory may be the mount point of a share that is not
// mounted now, so the files that it held are not known to be gone.
func lookFor(root *os.Root, path string) absence {
	raw, err := decodePath(path)
	if err != nil {
		return absence{}
	}
	above := "."
	for i := range len(raw) + 1 {
		if i < len(raw) && raw[i] != '/' {
			continue
		}
		info, err := root.Lstat(raw[:i])
		switch {
		case isMissing(err):
			empty, err := isEmpty(root, above)
			if empty {
				return absence{emptied: encodeName(above)}
			}
			return absence{gone: err == nil}
		case err != nil:
			return absence{}
		case info.IsDir() == (i == len(raw)):
			return absence{gone: true} // a directory became a file or a symbolic link, or the file became a directory
		}
		above = raw[:i]
	}
	return absence{}
}

// isEmpty reports whether a directory is empty.
func isEmpty(root *os.Root, name string) (bool, error) {
	dir, err := root.Open(name + "/")
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if _, err = dir.Readdirnames(1); err == io.EOF {
		return true, nil
	}
	return false, err
}

// massRemoval is the number of rows that any analysis may remove. To remove more than these and
// more than half of all rows, it needs force.
const massRemoval = 100

// endReading is called when only chunks for a second look are left. It releases these, and is
// called again when they are stored; if there are none, it ends the analysis. So no row is removed
// before it is known how many would be. If they are too many, it fails the analysis and returns
// why.
func endReading(ctx context.Context, tx pgx.Tx, id int64) (*failure, error) {
	const missing = `
		SELECT a.missing,
			(SELECT count(*) FROM elevation_dataset_file_meta f WHERE f.dataset_id = a.dataset_id) - a.added AS known
		FROM analyses a
		WHERE a.id = $1 AND a.missing > $2 AND NOT a.force`
	const release = `
		WITH released AS (
			UPDATE analysis_chunks SET missed_at = now() WHERE analysis_id = $1 RETURNING 1
		)
		UPDATE analyses
		SET missing = 0, chunks_left = n, state = CASE WHEN n = 0 THEN 'succeeded' ELSE state END,
			finished_at = CASE WHEN n = 0 THEN now() END
		FROM (SELECT count(*) AS n FROM released) left_over
		WHERE id = $1`
	n, err := collectOne[struct{ Missing, Known int64 }](ctx, tx, nil, "count missing rows", missing, id, massRemoval)
	if err != nil {
		return nil, err
	}
	if 2*n.Missing > n.Known {
		fail := &failure{failureMassRemoval, fmt.Sprintf("%d of %d known files were not found. "+
			"No row was removed. If a share was not mounted, mount it; if the files are gone, "+
			"analyse with the option force.", n.Missing, n.Known)}
		return fail, closeAnalysis(ctx, tx, id, "", stateFailed, *fail)
	}
	return nil, oneRow(ctx, tx, "release chunks", release, id)
}
