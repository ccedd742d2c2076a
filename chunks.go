package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readTask is a chunk that this instance holds.
type readTask struct {
	chunk
	id         int64
	analysisID int64
	datasetID  int64
	path       string // of the dataset
	force      bool
	token      string
	deaths     int // of instances that held it before
}

// readStep claims a chunk, reads its files and stores their rows. It reports whether there was one. A
// chunk whose reading two instances did not survive may be what killed them: its last attempt is made
// while this instance reads nothing else, so that no other file is blamed for it.
func (a *analyzer) readStep(ctx context.Context) (worked bool, err error) {
	a.alone.RLock()
	task, err := claimChunk(ctx, a.db, a.instance, false)
	if err == nil && task != nil {
		defer a.alone.RUnlock()
		return true, a.readChunk(ctx, task)
	}
	a.alone.RUnlock()
	if err != nil {
		return false, err
	}

	if !a.alone.TryLock() {
		return false, nil // others read; the suspects wait until they have done
	}
	defer a.alone.Unlock()
	task, err = claimChunk(ctx, a.db, a.instance, true)
	if err != nil || task == nil {
		return false, err
	}
	return true, a.readChunk(ctx, task)
}

// claimChunk takes the oldest chunk that nobody holds who lives, or nil: one of those that are suspect,
// or one of the others. That its last holder died counts against it.
func claimChunk(ctx context.Context, q querier, instance string, suspect bool) (*readTask, error) {
	const query = `
		UPDATE analysis_chunks c
		SET token = gen_random_uuid(),
			deaths = c.deaths + (c.reader IS NOT NULL)::int,
			reader = $1
		FROM analyses a
		JOIN datasets d ON d.id = a.dataset_id
		WHERE a.id = c.analysis_id
			AND c.id = (
				SELECT id
				FROM analysis_chunks
				WHERE (reader IS NULL OR reader = ANY (` + deadInstances + `))
					AND (deaths + (reader IS NOT NULL)::int >= $3) = $2
				ORDER BY failures, id
				LIMIT 1
				FOR UPDATE SKIP LOCKED
			)
		RETURNING c.id, c.analysis_id, a.dataset_id, d.path, a.force, c.from_path, c.to_path, c.files,
			c.token::text, c.deaths`
	var t readTask
	err := q.QueryRow(ctx, query, instance, suspect, maxDeaths-1).Scan(&t.id, &t.analysisID, &t.datasetID, &t.path,
		&t.force, &t.from, &t.to, &t.files, &t.token, &t.deaths)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim chunk: %w", err)
	}
	return &t, nil
}

// readChunk does a claimed chunk.
func (a *analyzer) readChunk(ctx context.Context, task *readTask) error {
	const ours = `
		SELECT
		FROM analysis_chunks
		WHERE id = $1
			AND token = $2
		FOR UPDATE`
	const release = `
		UPDATE analysis_chunks
		SET reader = NULL,
			token = NULL,
			failures = failures + $3::boolean::int
		WHERE id = $1
			AND token = $2
		RETURNING failures`
	var failures int
	err := a.settle(ctx, task.analysisID, a.readAndStore(ctx, task),
		func(tx pgx.Tx) error { return oneRow(ctx, tx, ours, task.id, task.token) },
		func(ctx context.Context, failed bool) error {
			err := a.db.QueryRow(ctx, release, task.id, task.token, failed).Scan(&failures)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // another's, or gone
			}
			return err
		})
	if failures < maxFailures {
		return err
	}
	endErr := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		if err := lockAnalysis(ctx, tx, task.analysisID, true); err != nil {
			return err
		}
		return endAnalysis(ctx, tx, task.analysisID, stateFailed, failureInternal, "Rows could not be stored; the log says why.")
	})
	return errors.Join(err, endErr)
}

// readAndStore reads the chunk's files and stores their rows, or splits a chunk that was too deadly.
func (a *analyzer) readAndStore(ctx context.Context, task *readTask) error {
	if task.deaths >= maxDeaths && len(task.files) > 1 {
		return splitChunk(ctx, a.db, task)
	}
	var rows []ElevationDatasetFileMeta
	var gone []string
	if task.deaths >= maxDeaths && len(task.files) == 1 {
		m := a.unreadRow(task.files[0])
		m.fail(fileStatusCorrupt, "reading this file by itself ended the program %d times, so it is not read any more; mend or remove it", maxDeaths)
		rows = append(rows, m)
	} else {
		known, err := hasFiles(ctx, a.db, task.datasetID)
		if err != nil {
			return err
		}
		unlisted, err := unlistedRows(ctx, a.db, task)
		if err != nil {
			return err
		}
		if rows, gone, err = a.readFiles(ctx, task, known, unlisted); err != nil {
			return err
		}
	}
	if err := storeChunk(ctx, a.db, task, rows, gone); err != nil {
		return err
	}
	a.stored.Add(1)
	return nil
}

// unreadRow is the row of a file that was not read, without a status.
func (a *analyzer) unreadRow(file entry) ElevationDatasetFileMeta {
	return ElevationDatasetFileMeta{
		Path:       file.Path,
		SizeBytes:  file.Size,
		ModifiedAt: time.Unix(0, file.Modified).UTC(),
		Warnings:   []string{},
		AnalyzedAt: a.now().UTC(),
	}
}

// readFiles returns the rows of the chunk's files, less those that have vanished since the walk, and
// which of the unlisted rows' files are really gone. The reading runs by itself; where a file takes
// longer than our patience lasts, it is left behind, and another goes on after that file.
func (a *analyzer) readFiles(ctx context.Context, task *readTask, known bool, unlisted []string) (rows []ElevationDatasetFileMeta, gone []string, err error) {
	type result struct {
		meta     ElevationDatasetFileMeta
		found    bool
		unlisted bool     // it is of an unlisted row, not of a file
		gone     []string // unlisted rows
		last     bool
		err      error
	}
	read := func(files []entry, results chan<- result, stop <-chan struct{}) {
		send := func(r result) bool {
			select {
			case results <- r:
				return true
			case <-stop:
				return false
			}
		}
		root, err := a.openDataset(task.path, known, task.force)
		if err != nil || root == nil {
			r := result{last: true, err: err}
			if err == nil {
				r.gone = unlisted // the directory is missing, and that is meant
			}
			send(r)
			return
		}
		fr := &fileReader{root: root, now: a.now, before: a.beforeRead}
		defer fr.close()
		for _, file := range files {
			m, found := fr.readEntry(file)
			if !send(result{meta: m, found: found}) {
				return
			}
		}
		for _, path := range unlisted {
			r := result{unlisted: true}
			if isGone(root, path) {
				r.gone = []string{path}
			}
			if !send(r) {
				return
			}
		}
		send(result{last: true})
	}

	timer := time.NewTimer(a.patience)
	defer timer.Stop()
	for next := 0; ; {
		results, stop, done := make(chan result), make(chan struct{}), make(chan struct{})
		go func(files []entry) {
			defer close(done)
			read(files, results, stop)
		}(task.files[next:])
		for hangs := false; !hangs; {
			timer.Reset(a.patience)
			select {
			case r := <-results:
				gone = append(gone, r.gone...)
				if r.last {
					return rows, gone, r.err
				}
				if r.found {
					rows = append(rows, r.meta)
				}
				if !r.unlisted {
					next++
				}
				continue
			case <-ctx.Done():
			case <-timer.C:
				hangs = true
			}
			close(stop)
			a.leaveBehind(done)
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
		}
		if next == len(task.files) || a.hung.Load() >= maxHung {
			return nil, nil, &unavailable{"The dataset's directory does not answer."}
		}
		m := a.unreadRow(task.files[next])
		m.fail(fileStatusUnreadable, "reading it did not end within %v", a.patience)
		rows = append(rows, m)
		next++
	}
}

// unlistedRows returns the paths of rows in the chunk's interval whose files the walk did not find.
func unlistedRows(ctx context.Context, q querier, task *readTask) ([]string, error) {
	const query = `
		SELECT path
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
			AND path > $2
			AND ($3::text IS NULL OR path <= $3)
			AND path <> ALL ($4::text[])
		ORDER BY path`
	listed := make([]string, len(task.files))
	for i, file := range task.files {
		listed[i] = file.Path
	}
	rows, err := q.Query(ctx, query, task.datasetID, task.from, task.to, listed)
	if err != nil {
		return nil, fmt.Errorf("look for unlisted rows: %w", err)
	}
	paths, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for unlisted rows: %w", err)
	}
	return paths, nil
}

// takeChunk deletes the chunk if it is still ours, as the first step of storing or splitting it.
func takeChunk(ctx context.Context, tx pgx.Tx, task *readTask) error {
	const query = `
		DELETE FROM analysis_chunks
		WHERE id = $1
			AND token = $2`
	if err := lockAnalysis(ctx, tx, task.analysisID, false); err != nil {
		return err
	}
	if err := oneRow(ctx, tx, query, task.id, task.token); err != nil {
		return fmt.Errorf("take chunk: %w", err)
	}
	return nil
}

// splitChunk puts a chunk of one file each in place of a chunk that was too deadly.
func splitChunk(ctx context.Context, db *pgxpool.Pool, task *readTask) error {
	const insert = `
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, files)
		VALUES ($1, $2, $3, $4)`
	const count = `
		UPDATE analyses
		SET chunks_left = chunks_left + $2
		WHERE id = $1
			AND finished_at IS NULL`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := takeChunk(ctx, tx, task); err != nil {
			return err
		}
		from := task.from
		for i, file := range task.files {
			to := &file.Path
			if i == len(task.files)-1 {
				to = task.to
			}
			if _, err := execute(ctx, tx, "split chunk", insert, task.analysisID, from, to, []entry{file}); err != nil {
				return err
			}
			from = file.Path
		}
		return oneRow(ctx, tx, count, task.analysisID, len(task.files)-1)
	})
}

// storeChunk stores the rows of a chunk and removes those that are gone: all of it or, if the chunk is
// not ours any more, nothing. A listed file that was not there when it came to be read keeps the row it
// may have: the next analysis will see.
func storeChunk(ctx context.Context, db *pgxpool.Pool, task *readTask, rows []ElevationDatasetFileMeta, gone []string) error {
	const remove = `
		DELETE FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
			AND path = ANY ($2::text[])`
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
		WHERE id = $1
			AND finished_at IS NULL`
	failed := 0
	for _, m := range rows {
		if slices.Contains([]string{fileStatusCorrupt, fileStatusUnreadable}, m.Status) {
			failed++
		}
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := takeChunk(ctx, tx, task); err != nil {
			return err
		}
		removed, err := tx.Exec(ctx, remove, task.datasetID, gone)
		if err != nil {
			return fmt.Errorf("remove rows: %w", err)
		}
		n, err := upsertFiles(ctx, tx, task.datasetID, rows)
		if err != nil {
			return err
		}
		return oneRow(ctx, tx, finish, task.analysisID, len(task.files)-len(rows), n.Added, n.Changed, n.Unchanged, removed.RowsAffected(), failed)
	})
}
