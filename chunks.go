package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readTask is a chunk that this instance holds.
type readTask struct {
	task
	chunk
	ID       int64
	Deaths   int // of instances that held it before
	Failures int // to store it
}

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
	const claim = `
		UPDATE analysis_chunks c
		SET token = gen_random_uuid(),
			deaths = c.deaths + (c.reader IS NOT NULL)::int,
			reader = $1
		FROM analyses a
		JOIN datasets d ON d.id = a.dataset_id
		WHERE a.id = c.analysis_id AND c.id = (
			SELECT id
			FROM analysis_chunks
			WHERE (reader IS NULL OR reader = ANY (` + deadInstances + `))
				AND (deaths + (reader IS NOT NULL)::int >= $3) = $2
			ORDER BY failures, id
			LIMIT 1
			FOR UPDATE SKIP LOCKED
		)
		RETURNING c.id, c.analysis_id, a.dataset_id, d.path, a.force, c.from_path, c.to_path, c.files,
			c.token::text AS token, c.deaths, c.failures`
	tasks, err := collect[readTask](ctx, a.db, "claim chunk", claim, a.instance, suspect, maxDeaths-1)
	if err != nil || len(tasks) == 0 {
		return false, err
	}
	return true, a.settle(ctx, tasks[0].task, a.readChunk(ctx, tasks[0]))
}

// readChunk reads a chunk's files and stores their rows, or splits a chunk that was too deadly.
func (a *analyzer) readChunk(ctx context.Context, t readTask) (err error) {
	var rows []ElevationDatasetFileMeta
	var gone []string
	switch deadly := t.Deaths >= maxDeaths; {
	case t.Failures >= maxFailures:
		return &failure{failureInternal, "Rows could not be stored; the log says why."}
	case deadly && len(t.Files) > 1:
		return splitChunk(ctx, a.db, t)
	case deadly && len(t.Files) == 1:
		rows = append(rows, t.Files[0].row(a.now()))
		rows[0].fail(fileStatusCorrupt, "reading this file by itself ended the program %d times, so it is not read any more; mend or remove it", maxDeaths)
	default:
		if rows, gone, err = a.readFiles(ctx, t); err != nil {
			return err
		}
	}
	if err := storeChunk(ctx, a.db, t, rows, gone); err != nil {
		return err
	}
	a.stored.Add(1)
	return nil
}

// readFiles returns the rows of the chunk's files, less those that have vanished since the walk, and which rows of its
// interval are of files that are really gone. A file that hangs is left behind, and another reader goes on after it.
func (a *analyzer) readFiles(ctx context.Context, t readTask) (rows []ElevationDatasetFileMeta, gone []string, err error) {
	known, unlisted, err := storedRows(ctx, a.db, t)
	if err != nil {
		return nil, nil, err
	}
	for files := t.Files; ; files = files[1:] {
		left := files // what this reader has yet to read
		err = a.ask(ctx, new(atomic.Int64), func(_ context.Context, hand handOver) error {
			root, err := a.openDataset(t.task, known)
			if err != nil {
				return err
			}
			if root == nil { // the directory is missing, and that is meant
				return hand(func() error {
					gone = unlisted
					return nil
				})
			}
			fr := &fileReader{root: root, now: a.now, before: a.beforeRead}
			defer fr.close()
			for _, file := range left {
				m, found := fr.readEntry(file)
				err := hand(func() error {
					files = files[1:]
					if found {
						rows = append(rows, m)
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
						gone = append(gone, path)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, errHangs) || len(files) == 0 || a.hung.Load() >= maxHung {
			return rows, gone, err
		}
		m := files[0].row(a.now())
		m.fail(fileStatusUnreadable, "reading it did not end within %v", a.patience)
		rows = append(rows, m)
	}
}

// storedRows says whether the dataset has rows, and of which rows in the chunk's interval the walk found no file.
func storedRows(ctx context.Context, q querier, t readTask) (known bool, unlisted []string, err error) {
	const query = `
		SELECT
			EXISTS (SELECT FROM elevation_dataset_file_meta WHERE dataset_id = $1),
			ARRAY(
				SELECT path
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $1 AND path > $2 AND ($3::text IS NULL OR path <= $3) AND path <> ALL ($4::text[])
				ORDER BY path
			)`
	listed := make([]string, len(t.Files))
	for i, file := range t.Files {
		listed[i] = file.Path
	}
	if err := q.QueryRow(ctx, query, t.DatasetID, t.FromPath, t.ToPath, listed).Scan(&known, &unlisted); err != nil {
		return false, nil, fmt.Errorf("look for stored rows: %w", err)
	}
	return known, unlisted, nil
}

// takeChunk deletes the chunk if it is still ours, as the first step of storing or splitting it.
func takeChunk(ctx context.Context, tx pgx.Tx, t readTask) error {
	if err := lockAnalysis(ctx, tx, t.AnalysisID); err != nil {
		return err
	}
	return oneRow(ctx, tx, "take chunk", `DELETE FROM analysis_chunks WHERE id = $1 AND token = $2`, t.ID, t.Token)
}

// splitChunk puts a chunk of one file each in place of a chunk that was too deadly.
func splitChunk(ctx context.Context, db *pgxpool.Pool, t readTask) error {
	const insert = `
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, files)
		VALUES ($1, $2, $3, $4)`
	const count = `
		UPDATE analyses
		SET chunks_left = chunks_left + $2
		WHERE id = $1 AND finished_at IS NULL`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := takeChunk(ctx, tx, t); err != nil {
			return err
		}
		from := t.FromPath
		for i, file := range t.Files {
			to := &file.Path
			if i == len(t.Files)-1 {
				to = t.ToPath
			}
			if _, err := execute(ctx, tx, "split chunk", insert, t.AnalysisID, from, to, []entry{file}); err != nil {
				return err
			}
			from = file.Path
		}
		return oneRow(ctx, tx, "count chunks", count, t.AnalysisID, len(t.Files)-1)
	})
}

// storeChunk stores the rows of a chunk and removes those that are gone: all of it or, if the chunk is not ours any
// more, nothing. A listed file that was not there when it came to be read keeps the row it may have: the next
// analysis will see.
func storeChunk(ctx context.Context, db *pgxpool.Pool, t readTask, rows []ElevationDatasetFileMeta, gone []string) error {
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY ($2::text[])`
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
		if err := takeChunk(ctx, tx, t); err != nil {
			return err
		}
		removed, err := execute(ctx, tx, "remove rows", remove, t.DatasetID, gone)
		if err != nil {
			return err
		}
		n, err := upsertFiles(ctx, tx, t.DatasetID, rows)
		if err != nil {
			return err
		}
		return oneRow(ctx, tx, "count files", finish,
			t.AnalysisID, len(t.Files)-len(rows), n.Added, n.Changed, n.Unchanged, removed, n.Failed)
	})
}
