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

// readerVersion rises whenever the same file may give another row than before: then all are read again.
const readerVersion = 2

// readTask is a chunk that this instance holds.
type readTask struct {
	task
	ID       int64
	FromPath string
	ToPath   string
	Files    int
	Deaths   int // of instances that held it before
}

// endOfPaths comes after every path, in the place of the to_path that the last chunk lacks.
func endOfPaths() string { return strings.Repeat(string(utf8.MaxRune), maxPath/utf8.UTFMax+1) }

// readStep claims a chunk, reads its files and stores their rows. It reports whether there was one. A chunk whose
// reading two instances did not survive may be what killed them: its last attempt is made while this instance reads
// nothing else, so that no other file is blamed for it.
func (a *analyzer) readStep(ctx context.Context) (worked bool, err error) {
	a.alone.RLock()
	worked, err = a.readNext(ctx, false)
	a.alone.RUnlock()
	if worked || err != nil || !a.alone.TryLock() {
		return worked, err // where others read, the suspects wait until they have done
	}
	defer a.alone.Unlock()
	return a.readNext(ctx, true)
}

// readNext is readStep for the oldest chunk that nobody holds who lives: of those that are suspect, or of the
// others. That its last holder died counts against a chunk.
func (a *analyzer) readNext(ctx context.Context, suspect bool) (worked bool, err error) {
	const query = `
		UPDATE analysis_chunks c
		SET token = $2,
			deaths = c.deaths + (c.reader IS NOT NULL)::int,
			reader = $1
		FROM analyses a
		JOIN datasets d ON d.id = a.dataset_id
		WHERE a.id = c.analysis_id AND c.id = (
			SELECT c.id
			FROM analysis_chunks c
			JOIN analyses a ON a.id = c.analysis_id
			WHERE (c.reader IS NULL OR c.reader = ANY (` + deadInstances + `))
				AND (c.deaths + (c.reader IS NOT NULL)::int >= $4) = $3
				AND ` + maySee + `
			ORDER BY c.failures, c.id
			LIMIT 1
			FOR UPDATE OF c SKIP LOCKED
		)
		RETURNING ` + taskColumns + `, c.token::text AS token, c.failures, c.id, c.from_path,
			coalesce(c.to_path, $5) AS to_path, cardinality(c.paths) AS files, c.deaths`
	a.busy <- struct{}{}
	defer func() { <-a.busy }()
	tasks, err := claim[readTask](ctx, a, "claim chunk", query, suspect, maxDeaths-1, endOfPaths())
	if err != nil || len(tasks) == 0 {
		return false, err
	}
	return true, a.work(ctx, tasks[0].task, func(ctx context.Context) error { return a.readChunk(ctx, tasks[0]) })
}

// readChunk reads those of a chunk's files that are not as they were and stores their rows, or cuts a chunk that was
// too deadly.
func (a *analyzer) readChunk(ctx context.Context, t readTask) error {
	found, err := compareChunk(ctx, a.db, t)
	if err != nil {
		return err
	}
	switch deadly := t.Deaths >= maxDeaths; {
	case found.cutAt != "":
		return cutChunk(ctx, a.db, t, []string{found.cutAt})
	case deadly && t.Files > 1:
		return cutChunk(ctx, a.db, t, nil)
	case deadly && len(found.read) == 1:
		row := found.read[0].row(a.now())
		row.fail(fileStatusCorrupt, "reading this file by itself ended the program %d times, so it is not read any more; mend or remove it", maxDeaths)
		found.rows, found.read = append(found.rows, fileRow{row, found.read[0]}), nil
	}
	if len(found.read)+len(found.unlisted) > 0 {
		<-a.busy
		err := a.readFiles(ctx, t, &found)
		a.busy <- struct{}{}
		if err != nil {
			return err
		}
	}
	if err := storeChunk(ctx, a.db, t, found); err != nil {
		return err
	}
	a.stored.Add(1)
	return nil
}

// knownEntry is a file that the walk found, with the id of the row that it has or will have.
type knownEntry struct {
	entry
	ID    int64
	Known bool // it has a row
}

// fileRow is a file that was read.
type fileRow struct {
	ElevationDatasetFileMeta
	of knownEntry
}

// findings are what becomes of a chunk.
type findings struct {
	unchanged int          // files that are as they were
	failed    int          // those of them whose row is corrupt
	read      []knownEntry // files that are to be read
	unlisted  []string     // rows whose files the walk did not find
	rows      []fileRow    // of the files that were read, less those that have vanished since the walk
	gone      []string     // unlisted rows whose files are really gone
	cutAt     string       // where there are too many rows for one chunk, a path in the middle of them
}

// maxUnlisted is about how many rows whose files are gone one chunk may have: a whole directory may be gone.
const maxUnlisted = 5000

// compareChunk holds the files of a chunk against the rows of its interval.
func compareChunk(ctx context.Context, q querier, t readTask) (f findings, err error) {
	const query = `
		WITH pairs AS (
			SELECT e.path AS found, f.path AS stored, e.size, e.modified, e.sidecars, f.id, f.status,
				coalesce(NOT $6 AND f.status <> 'unreadable' AND f.reader_version = $7 AND f.size_bytes = e.size
					AND f.modified_ns = e.modified AND f.sidecars = e.sidecars, false) AS same
			FROM (
				SELECT e.*
				FROM analysis_chunks c, unnest(c.paths, c.sizes, c.modified, c.sidecars) AS e (path, size, modified, sidecars)
				WHERE c.id = $1 AND c.token = $2
			) e
			FULL JOIN (
				SELECT *
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $3 AND path > $4 AND path <= $5
			) f ON f.path = e.path
		)
		SELECT coalesce(found, stored) AS path, coalesce(size, 0) AS size, coalesce(modified, 0) AS modified,
			coalesce(sidecars, 0) AS sidecars, id IS NOT NULL AS known, found IS NOT NULL AS listed, same,
			coalesce(id, nextval('elevation_dataset_file_meta_id_seq')) AS id
		FROM pairs
		WHERE NOT same OR status = 'corrupt'
		ORDER BY 1
		LIMIT $8`
	pairs, err := collect[struct {
		knownEntry
		Listed, Same bool
	}](ctx, q, "compare files", query, t.ID, t.Token, t.DatasetID, t.FromPath, t.ToPath, t.Force, readerVersion, t.Files+maxUnlisted)
	if len(pairs) == t.Files+maxUnlisted {
		f.cutAt = pairs[len(pairs)/2].Path
	}
	for _, p := range pairs {
		switch {
		case p.Same:
			f.failed++
		case p.Listed:
			f.read = append(f.read, p.knownEntry)
		default:
			f.unlisted = append(f.unlisted, p.Path)
		}
	}
	f.unchanged = t.Files - len(f.read)
	return f, err
}

// readFiles makes the rows of the files that are to be read, and finds out which unlisted ones are really gone. A file
// that hangs is left behind, and another reader goes on after it.
func (a *analyzer) readFiles(ctx context.Context, t readTask, found *findings) error {
	found.rows = slices.Grow(found.rows, len(found.read))
	for {
		read, unlisted := found.read, found.unlisted // what this reader has yet to do
		err := a.ask(ctx, new(atomic.Int64), func(_ context.Context, hand handOver) error {
			root, err := a.openDataset(t.task)
			if err != nil {
				return err
			}
			if root == nil { // the directory is missing, and that is meant
				return hand(func() error {
					found.gone = unlisted
					return nil
				})
			}
			fr := &fileReader{root: root, now: a.now, before: a.beforeRead}
			defer fr.close()
			for _, file := range read {
				m, there := fr.readEntry(file.entry)
				err := hand(func() error {
					found.read = found.read[1:]
					if there {
						found.rows = append(found.rows, fileRow{m, file})
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			for _, path := range unlisted {
				lost := isGone(root, path)
				err := hand(func() error {
					if lost {
						found.gone = append(found.gone, path)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, errHangs) || len(found.read) == 0 || a.hung.Load() >= maxHung {
			return err
		}
		file := found.read[0]
		found.read = found.read[1:]
		m := file.row(a.now())
		m.fail(fileStatusUnreadable, "reading it did not end within %v", a.patience)
		found.rows = append(found.rows, fileRow{m, file})
	}
}

// cutChunk puts several chunks in place of one: cut after each of the paths or, where those are nil, after each file.
func cutChunk(ctx context.Context, db *pgxpool.Pool, t readTask, after []string) error {
	const cut = `
		WITH c AS (
			DELETE FROM analysis_chunks
			WHERE id = $1 AND token = $2
			RETURNING *
		), part AS (
			SELECT lag(p.ends, 1, c.from_path) OVER (ORDER BY p.n) AS begins, p.ends
			FROM c, unnest(array_append(coalesce($3, c.paths[:cardinality(c.paths) - 1]), c.to_path)) WITH ORDINALITY AS p (ends, n)
		), e AS (
			SELECT e.*
			FROM c, unnest(c.paths, c.sizes, c.modified, c.sidecars) WITH ORDINALITY AS e (path, size, modified, sidecars, n)
		)
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, paths, sizes, modified, sidecars)
		SELECT c.analysis_id, begins, ends,
			coalesce(array_agg(e.path ORDER BY n) FILTER (WHERE n > 0), '{}'),
			coalesce(array_agg(e.size ORDER BY n) FILTER (WHERE n > 0), '{}'),
			coalesce(array_agg(e.modified ORDER BY n) FILTER (WHERE n > 0), '{}'),
			coalesce(array_agg(e.sidecars ORDER BY n) FILTER (WHERE n > 0), '{}')
		FROM c CROSS JOIN part LEFT JOIN e ON e.path > begins AND coalesce(e.path <= ends, true)
		GROUP BY c.analysis_id, begins, ends
		ORDER BY begins`
	const count = `
		UPDATE analyses
		SET chunks_left = chunks_left + $2
		WHERE id = $1 AND finished_at IS NULL`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := lockAnalysis(ctx, tx, t.AnalysisID); err != nil {
			return err
		}
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

// storeChunk stores what was found: all of it or, if the chunk is not ours any more, nothing. While the chunk is ours
// nobody else touches rows of its interval. A listed file that was not there when it came to be read keeps the row it
// may have: the next analysis will see.
func storeChunk(ctx context.Context, db *pgxpool.Pool, t readTask, found findings) error {
	const take = `
		DELETE FROM analysis_chunks
		WHERE id = $1 AND token = $2`
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY ($2::text[])
		RETURNING ` + fileColumns
	const note = `
		INSERT INTO analysis_changes (analysis_id, from_path, added, changed, removed)
		VALUES ($1, $2, coalesce($3::text[], '{}'), coalesce($4::text[], '{}'), coalesce($5::text[], '{}'))`
	const finish = `
		UPDATE analyses
		SET chunks_left = chunks_left - 1,
			total = total - $2,
			added = added + $3,
			changed = changed + $4,
			unchanged = unchanged + $5,
			removed = removed + $6,
			failed = failed + $7,
			state = CASE WHEN state = 'reading' AND chunks_left = 1 THEN 'succeeded' ELSE state END,
			finished_at = CASE WHEN state = 'reading' AND chunks_left = 1 THEN now() END
		WHERE id = $1 AND finished_at IS NULL`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := lockAnalysis(ctx, tx, t.AnalysisID); err != nil {
			return err
		}
		if err := oneRow(ctx, tx, "take chunk", take, t.ID, t.Token); err != nil {
			return err
		}
		replaced := slices.Clone(found.gone)
		for _, row := range found.rows {
			if row.of.Known {
				replaced = append(replaced, row.Path)
			}
		}
		before := map[string]ElevationDatasetFileMeta{}
		if len(replaced) > 0 {
			rows, err := collectFiles(ctx, tx, "remove rows", remove, t.DatasetID, replaced)
			if err != nil {
				return err
			}
			for _, row := range rows {
				before[row.Path] = row
			}
		}
		if len(found.rows) > 0 {
			rows := pgx.CopyFromSlice(len(found.rows), func(i int) ([]any, error) { return fileValues(t.DatasetID, found.rows[i]), nil })
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"elevation_dataset_file_meta"}, fileColumnNames(), rows); err != nil {
				return fmt.Errorf("store rows: %w", err)
			}
		}
		var added, changed []string
		unchanged, failed := found.unchanged, found.failed
		for _, row := range found.rows {
			old, known := before[row.Path]
			switch {
			case !known:
				added = append(added, row.Path)
			case sameContent(old, row.ElevationDatasetFileMeta):
				unchanged++
			default:
				changed = append(changed, row.Path)
			}
			if row.Status == fileStatusCorrupt || row.Status == fileStatusUnreadable {
				failed++
			}
		}
		if len(added)+len(changed)+len(found.gone) > 0 {
			_, err := execute(ctx, tx, "note changes", note, t.AnalysisID, t.FromPath, added, changed, found.gone)
			if err != nil {
				return err
			}
		}
		vanished := t.Files - found.unchanged - len(found.rows)
		return oneRow(ctx, tx, "count files", finish, t.AnalysisID, vanished, len(added), len(changed), unchanged,
			len(found.gone), failed)
	})
}

// sameContent says whether two rows of a file differ in no more than the id and the time of reading.
func sameContent(a, b ElevationDatasetFileMeta) bool {
	a.ID, a.AnalyzedAt, b.ID, b.AnalyzedAt = 0, time.Time{}, 0, time.Time{}
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// fileColumnNames are the columns of a file's row that fileValues gives.
func fileColumnNames() []string {
	return append(strings.Fields(strings.ReplaceAll(storedColumns, ",", " ")), "dataset_id", "sidecars", "reader_version", "id")
}

// fileValues are the values of fileColumnNames. What was written so lately that a later change might not show in the
// file's time has no reader version, and so is read again.
func fileValues(datasetID int64, row fileRow) []any {
	m, version := row.ElevationDatasetFileMeta, readerVersion
	if m.unsettled || !isSettled(m.ModifiedAt, m.AnalyzedAt) {
		version = 0
	}
	return []any{
		m.Path, m.SizeBytes, m.ModifiedAt.UnixNano(), m.Format, m.Status, m.Reason, m.Width, m.Height, m.Bands,
		m.SampleType, m.Nodata, m.PixelIs, m.Transform, m.NativeBBox, m.CRS, m.CRSName, m.VerticalCRS, m.BBox,
		m.BBoxAccuracyM, m.ResolutionM, m.Source, m.Warnings, m.AnalyzedAt,
		datasetID, row.of.Sidecars, version, row.of.ID,
	}
}
