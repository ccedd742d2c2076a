package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analyzer does the work of analyses in this instance: one goroutine walks, one a core reads. All its
// state that matters is in the database, so that it may be killed at any moment, and so that any
// number of instances share the work.
type analyzer struct {
	db  *pgxpool.Pool
	cfg config
	log *slog.Logger
	now func() time.Time

	readers     int
	chunkSize   int           // files
	lease       time.Duration // how long work is another's to take over after its holder's last sign
	readTimeout time.Duration // for one file
	beforeRead  func(path string)

	wake   []chan struct{} // one for each goroutine
	alone  sync.RWMutex    // held for reading with every chunk, for writing with a suspect one
	hung   atomic.Int64    // reads given up on that have not come back
	stored atomic.Int64    // chunks stored by this instance
}

// Bounds of the analyzer.
const (
	maxAttempts  = 3   // to read a chunk; then it is split, or its only file is at fault
	maxHungReads = 16  // given up on, each with a goroutine and a thread; then this instance reads no more
	maxWarnings  = 100 // kept of an analysis
	idlePoll     = time.Second
)

// newAnalyzer makes an analyzer with as many readers as cores. Nothing runs yet.
func newAnalyzer(db *pgxpool.Pool, cfg config, log *slog.Logger, now func() time.Time) *analyzer {
	a := &analyzer{
		db: db, cfg: cfg, log: log, now: now,
		readers:     max(2, runtime.GOMAXPROCS(0)),
		chunkSize:   500,
		lease:       10 * time.Second,
		readTimeout: 30 * time.Second,
	}
	for range a.readers + 1 {
		a.wake = append(a.wake, make(chan struct{}, 1))
	}
	return a
}

// wakeAll lets every idle goroutine look for work now.
func (a *analyzer) wakeAll() {
	for _, wake := range a.wake {
		select {
		case wake <- struct{}{}:
		default: // it is awake already
		}
	}
}

// run works until ctx ends, and returns when everything it had begun is stored or given back.
func (a *analyzer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, wake := range a.wake {
		step := a.readStep
		if i == 0 {
			step = a.walkStep
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				worked, err := step(ctx)
				if err != nil && ctx.Err() == nil {
					a.log.Error("analysis", "error", err)
				}
				if worked && err == nil {
					continue
				}
				select {
				case <-ctx.Done():
				case <-wake:
				case <-time.After(idlePoll):
				}
			}
		})
	}
	wg.Wait()
}

// errLeaseLost is that another has taken over, or that the analysis has ended: what was done is void.
var errLeaseLost = errors.New("lease lost")

// hold renews a lease in the background until stop is called. The context it returns ends with
// errLeaseLost when the lease is lost.
func (a *analyzer) hold(ctx context.Context, renew string, id int64, token string) (held context.Context, stop func()) {
	held, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pause(held, a.lease/3)
			if held.Err() != nil {
				return
			}
			tag, err := a.db.Exec(held, renew, id, token, a.lease)
			if err == nil && tag.RowsAffected() == 0 {
				cancel(errLeaseLost)
			} else if err != nil && held.Err() == nil {
				a.log.Warn("renew lease", "error", err)
			}
		}
	})
	return held, func() { cancel(context.Canceled); wg.Wait() }
}

// walkTask is a walk that this instance holds.
type walkTask struct {
	analysisID int64
	datasetID  int64
	path       string // of the dataset
	force      bool
	walkedTo   string
	token      string
}

// walkStep claims a walk and walks it. It reports whether there was one.
func (a *analyzer) walkStep(ctx context.Context) (worked bool, err error) {
	const renew = `
		UPDATE analyses
		SET walker_lease = now() + $3::interval
		WHERE id = $1
			AND walker_token = $2
			AND state = 'walking'`
	task, err := claimWalk(ctx, a.db, a.lease)
	if err != nil || task == nil {
		return false, err
	}
	held, stop := a.hold(ctx, renew, task.analysisID, task.token)
	err = a.walk(held, task)
	stop()
	if context.Cause(held) == errLeaseLost || errors.Is(err, errLeaseLost) {
		return true, nil
	}
	if err == nil {
		return true, nil
	}
	const release = `
		UPDATE analyses
		SET walker_lease = '-infinity'
		WHERE id = $1
			AND walker_token = $2`
	releaseErr := a.release(release, task.analysisID, task.token)
	if ctx.Err() != nil { // stopping: another instance, or the next start, goes on
		return true, nil
	}
	return true, errors.Join(err, releaseErr)
}

// release gives a lease back, also while ctx is over.
func (a *analyzer) release(query string, id int64, token string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := a.db.Exec(ctx, query, id, token); err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

// claimWalk takes the oldest walk that nobody holds, or nil.
func claimWalk(ctx context.Context, q querier, lease time.Duration) (*walkTask, error) {
	const query = `
		UPDATE analyses a
		SET state = 'walking',
			started_at = coalesce(a.started_at, now()),
			walker_token = gen_random_uuid(),
			walker_lease = now() + $1::interval
		FROM datasets d
		WHERE d.id = a.dataset_id
			AND a.id = (
				SELECT id
				FROM analyses
				WHERE finished_at IS NULL
					AND state IN ('queued', 'walking')
					AND walker_lease < now()
				ORDER BY id
				LIMIT 1
				FOR UPDATE SKIP LOCKED
			)
		RETURNING a.id, a.dataset_id, d.path, a.force, a.walked_to, a.walker_token::text`
	var t walkTask
	err := q.QueryRow(ctx, query, lease).Scan(&t.analysisID, &t.datasetID, &t.path, &t.force, &t.walkedTo, &t.token)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim walk: %w", err)
	}
	return &t, nil
}

// chunk is an interval (from, to] of a dataset's paths with the files found in it; to is nil at the
// end.
type chunk struct {
	from     string
	to       *string
	files    []entry
	keptDirs []string // directories ("a/b/") below which nothing may be removed
	warnings []string
}

// walk lists the dataset's directory, from where an earlier walk of the same analysis left off, and
// writes its chunks.
func (a *analyzer) walk(ctx context.Context, task *walkTask) error {
	root, err := a.openDataset(ctx, task.analysisID, task.datasetID, task.path, task.force)
	if err != nil {
		return err
	}
	next := chunk{from: task.walkedTo, files: []entry{}, keptDirs: []string{}}
	flush := func(to *string) error {
		next.to = to
		if err := appendChunk(ctx, a.db, task, next, a.lease); err != nil {
			return err
		}
		a.wakeAll()
		if to != nil {
			next = chunk{from: *to, files: []entry{}, keptDirs: []string{}}
		}
		return nil
	}
	w := walker{
		after: task.walkedTo,
		file: func(e entry) error {
			next.files = append(next.files, e)
			if len(next.files) < a.chunkSize {
				return nil
			}
			return flush(&e.Path)
		},
		warn: func(dir string, err error) error {
			next.keptDirs = append(next.keptDirs, dir)
			next.warnings = append(next.warnings, fmt.Sprintf("%s: %s", dir, reasonOf(err)))
			return nil
		},
	}
	if root != nil {
		defer root.Close()
		if err := w.walk(ctx, root, ""); err != nil {
			if e, ok := errors.AsType[*listError](err); ok {
				return a.fail(ctx, task.analysisID, "The dataset's directory cannot be listed: "+reasonOf(e.err)+".")
			}
			return err
		}
	}
	if next.from == "" && len(next.files) == 0 && len(next.keptDirs) == 0 && !task.force {
		known, err := hasFiles(ctx, a.db, task.datasetID)
		if err != nil {
			return err
		}
		if known {
			return a.fail(ctx, task.analysisID, "No file is left in the dataset's directory. If that is so, analyse it with force.")
		}
	}
	return flush(nil)
}

// openDataset opens a dataset's directory. Where it is missing, or empty though files are known, the
// analysis fails and keeps every row: a share that is not mounted must not empty the catalogue. Only
// force says that it is meant; a missing directory is then nil.
func (a *analyzer) openDataset(ctx context.Context, analysisID, datasetID int64, path string, force bool) (*os.Root, error) {
	place, err := a.cfg.placeDataset(path)
	if err != nil {
		return nil, errors.Join(errLeaseLost, a.fail(ctx, analysisID, "The dataset lies outside the dataset roots."))
	}
	root, err := place.open()
	if err == nil {
		var empty bool
		if empty, err = isEmptyDir(root); err == nil && !empty {
			return root, nil
		}
	}
	if err != nil && root != nil {
		root.Close()
		root = nil
	}
	switch {
	case err != nil && force && errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, errors.Join(errLeaseLost, a.fail(ctx, analysisID, "The dataset's directory cannot be opened: "+reasonOf(err)+"."))
	case force:
		return root, nil
	}
	known, err := hasFiles(ctx, a.db, datasetID)
	if err == nil && !known {
		return root, nil
	}
	root.Close()
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(errLeaseLost, a.fail(ctx, analysisID, "The dataset's directory is empty, though files are known. If that is so, analyse it with force."))
}

// fail ends the analysis as failed, with the code dataset_unavailable.
func (a *analyzer) fail(ctx context.Context, id int64, failure string) error {
	err := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		return endAnalysis(ctx, tx, id, stateFailed, "dataset_unavailable", failure)
	})
	if err == nil {
		a.log.Warn("analysis failed", "analysis", id, "reason", failure)
	}
	return err
}

// hasFiles says whether the dataset has a row.
func hasFiles(ctx context.Context, q querier, datasetID int64) (known bool, err error) {
	const query = `SELECT EXISTS (SELECT FROM elevation_dataset_file_meta WHERE dataset_id = $1)`
	if err := q.QueryRow(ctx, query, datasetID).Scan(&known); err != nil {
		return false, fmt.Errorf("look for known files: %w", err)
	}
	return known, nil
}

// appendChunk writes a chunk and moves the walk on, if the walk is still ours; the last chunk, with no
// to, ends it.
func appendChunk(ctx context.Context, db *pgxpool.Pool, task *walkTask, c chunk, lease time.Duration) error {
	const advance = `
		UPDATE analyses
		SET walked_to = coalesce($3, walked_to),
			state = CASE WHEN $3::text IS NULL THEN 'reading' ELSE state END,
			walker_lease = now() + $4::interval,
			chunks_left = chunks_left + 1,
			total = total + $5,
			warnings = (warnings || $6::text[])[1:$7]
		WHERE id = $1
			AND walker_token = $2
			AND state = 'walking'`
	const insert = `
		WITH told AS (SELECT pg_notify('` + workChannel + `', ''))
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, files, kept_dirs)
		SELECT $1, $2, $3, $4, $5
		FROM told`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, advance, task.analysisID, task.token, c.to, lease, len(c.files), c.warnings, maxWarnings)
		if err != nil {
			return fmt.Errorf("advance walk: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errLeaseLost
		}
		if _, err := tx.Exec(ctx, insert, task.analysisID, c.from, c.to, c.files, c.keptDirs); err != nil {
			return fmt.Errorf("add chunk: %w", err)
		}
		return nil
	})
}

// readTask is a chunk that this instance holds.
type readTask struct {
	chunk
	id         int64
	analysisID int64
	datasetID  int64
	path       string // of the dataset
	force      bool
	token      string
	attempts   int // this one included
}

// readStep claims a chunk, reads its files and stores their rows. It reports whether there was one. A
// chunk that was claimed twice before without being stored may be what ended the program, so its last
// attempt is made while this instance reads nothing else: no other file is blamed for it.
func (a *analyzer) readStep(ctx context.Context) (worked bool, err error) {
	if a.hung.Load() >= maxHungReads {
		return false, nil
	}
	a.alone.RLock()
	task, err := claimChunk(ctx, a.db, a.lease, false)
	if err == nil && task != nil {
		defer a.alone.RUnlock()
		return true, a.readChunk(ctx, task)
	}
	a.alone.RUnlock()
	if err != nil {
		return false, err
	}

	var suspects bool
	const query = `SELECT EXISTS (SELECT FROM analysis_chunks WHERE lease_until < now() AND attempts >= $1)`
	if err := a.db.QueryRow(ctx, query, maxAttempts-1).Scan(&suspects); err != nil || !suspects {
		return false, err
	}
	a.alone.Lock()
	defer a.alone.Unlock()
	task, err = claimChunk(ctx, a.db, a.lease, true)
	if err != nil || task == nil {
		return false, err
	}
	return true, a.readChunk(ctx, task)
}

// claimChunk takes the oldest chunk that nobody holds, or nil: one of those that failed twice, or one
// of the others.
func claimChunk(ctx context.Context, q querier, lease time.Duration, suspect bool) (*readTask, error) {
	const query = `
		UPDATE analysis_chunks c
		SET token = gen_random_uuid(),
			lease_until = now() + $1::interval,
			attempts = c.attempts + 1
		FROM analyses a
		JOIN datasets d ON d.id = a.dataset_id
		WHERE a.id = c.analysis_id
			AND c.id = (
				SELECT id
				FROM analysis_chunks
				WHERE lease_until < now()
					AND (attempts >= $3) = $2
				ORDER BY id
				LIMIT 1
				FOR UPDATE SKIP LOCKED
			)
		RETURNING c.id, c.analysis_id, a.dataset_id, d.path, a.force, c.from_path, c.to_path, c.files,
			c.kept_dirs, c.token::text, c.attempts`
	var t readTask
	err := q.QueryRow(ctx, query, lease, suspect, maxAttempts-1).Scan(&t.id, &t.analysisID, &t.datasetID, &t.path,
		&t.force, &t.from, &t.to, &t.files, &t.keptDirs, &t.token, &t.attempts)
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
	const renew = `
		UPDATE analysis_chunks
		SET lease_until = now() + $3::interval
		WHERE id = $1
			AND token = $2`
	held, stop := a.hold(ctx, renew, task.id, task.token)
	defer stop()
	err := a.readAndStore(held, task)
	switch {
	case err == nil:
		a.stored.Add(1)
		return nil
	case context.Cause(held) == errLeaseLost || errors.Is(err, errLeaseLost):
		return nil
	}
	// We live, so the files are not to blame: the attempt does not count.
	const release = `
		UPDATE analysis_chunks
		SET lease_until = '-infinity',
			attempts = attempts - 1
		WHERE id = $1
			AND token = $2`
	if releaseErr := a.release(release, task.id, task.token); ctx.Err() == nil {
		return errors.Join(err, releaseErr)
	}
	return nil
}

// readAndStore reads the chunk's files and stores their rows, or splits a chunk that failed too often.
func (a *analyzer) readAndStore(ctx context.Context, task *readTask) error {
	if task.attempts > maxAttempts && len(task.files) > 1 {
		return splitChunk(ctx, a.db, task)
	}
	var rows []ElevationDatasetFileMeta
	var vanished []string
	if task.attempts > maxAttempts && len(task.files) == 1 {
		file := task.files[0]
		m := ElevationDatasetFileMeta{Path: file.Path, SizeBytes: file.Size, ModifiedAt: time.Unix(0, file.Modified).UTC(), Warnings: []string{}, AnalyzedAt: a.now().UTC()}
		m.fail(fileStatusCorrupt, "reading this file by itself ended the program %d times, so it is not read any more; mend or remove it", maxAttempts)
		rows = append(rows, m)
	} else {
		root, err := a.openDataset(ctx, task.analysisID, task.datasetID, task.path, task.force)
		if err != nil {
			return err
		}
		if root == nil { // missing, and that is meant
			for _, file := range task.files {
				vanished = append(vanished, file.Path)
			}
		} else if rows, vanished, err = a.readFiles(ctx, root, task.files); err != nil {
			return err
		}
	}
	return storeChunk(ctx, a.db, task, rows, vanished)
}

// readFiles reads files below root, which it closes. vanished are those that are gone.
func (a *analyzer) readFiles(ctx context.Context, root *os.Root, files []entry) (rows []ElevationDatasetFileMeta, vanished []string, err error) {
	type result struct {
		meta  ElevationDatasetFileMeta
		found bool
	}
	fr := &fileReader{root: root, now: a.now, before: a.beforeRead}
	defer func() { fr.close() }()
	timer := time.NewTimer(a.readTimeout)
	defer timer.Stop()
	for _, file := range files {
		done := make(chan result, 1)
		reader := fr
		go func() {
			m, found := reader.read(file.Path)
			done <- result{m, found}
		}()
		timer.Reset(a.readTimeout)
		select {
		case r := <-done:
			if r.found {
				rows = append(rows, r.meta)
			} else {
				vanished = append(vanished, file.Path)
			}
			continue
		case <-ctx.Done():
		case <-timer.C:
		}
		// The read hangs, as on a dead network file system. It is left behind with its reader.
		a.hung.Add(1)
		fresh, openErr := root.OpenRoot(".")
		go func() {
			<-done
			reader.close()
			a.hung.Add(-1)
		}()
		fr = &fileReader{root: fresh, now: a.now, before: a.beforeRead}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if openErr != nil {
			return nil, nil, fmt.Errorf("open dataset again: %w", openErr)
		}
		root = fresh
		m := ElevationDatasetFileMeta{Path: file.Path, SizeBytes: file.Size, ModifiedAt: time.Unix(0, file.Modified).UTC(), Warnings: []string{}, AnalyzedAt: a.now().UTC()}
		m.fail(fileStatusUnreadable, "reading it did not end within %v", a.readTimeout)
		rows = append(rows, m)
	}
	return rows, vanished, nil
}

// takeChunk deletes the chunk if it is still ours, as the first step of storing or splitting it.
func takeChunk(ctx context.Context, tx pgx.Tx, task *readTask) error {
	const query = `
		DELETE FROM analysis_chunks
		WHERE id = $1
			AND token = $2`
	tag, err := tx.Exec(ctx, query, task.id, task.token)
	if err != nil {
		return fmt.Errorf("take chunk: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errLeaseLost
	}
	return nil
}

// splitChunk puts a chunk of one file each in place of a chunk that failed too often.
func splitChunk(ctx context.Context, db *pgxpool.Pool, task *readTask) error {
	const insert = `
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, files, kept_dirs)
		VALUES ($1, $2, $3, $4, $5)`
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
			if _, err := tx.Exec(ctx, insert, task.analysisID, from, to, []entry{file}, task.keptDirs); err != nil {
				return fmt.Errorf("split chunk: %w", err)
			}
			from = file.Path
		}
		tag, err := tx.Exec(ctx, count, task.analysisID, len(task.files)-1)
		if err != nil {
			return fmt.Errorf("count chunks: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errLeaseLost
		}
		return nil
	})
}

// storeChunk stores the rows of a chunk: all of it or, if the chunk is not ours any more, nothing.
// Rows of the interval whose files were not listed go; those of vanished files, which were listed and
// then not found, stay for the next analysis to judge.
func storeChunk(ctx context.Context, db *pgxpool.Pool, task *readTask, rows []ElevationDatasetFileMeta, vanished []string) error {
	const remove = `
		DELETE FROM elevation_dataset_file_meta f
		WHERE f.dataset_id = $1
			AND f.path > $2
			AND ($3::text IS NULL OR f.path <= $3)
			AND f.path <> ALL ($4::text[])
			AND NOT EXISTS (SELECT FROM unnest($5::text[]) AS kept (dir) WHERE starts_with(f.path, kept.dir))`
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
	present := make([]string, 0, len(rows)+len(vanished))
	present = append(present, vanished...)
	failed := 0
	for _, m := range rows {
		present = append(present, m.Path)
		if m.Status == fileStatusCorrupt || m.Status == fileStatusUnreadable {
			failed++
		}
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := takeChunk(ctx, tx, task); err != nil {
			return err
		}
		removed, err := tx.Exec(ctx, remove, task.datasetID, task.from, task.to, present, task.keptDirs)
		if err != nil {
			return fmt.Errorf("remove rows: %w", err)
		}
		n, err := upsertFiles(ctx, tx, task.datasetID, rows)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, finish, task.analysisID, len(vanished), n.Added, n.Changed, n.Unchanged, removed.RowsAffected(), failed)
		if err != nil {
			return fmt.Errorf("count chunk: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return errLeaseLost
		}
		return nil
	})
}
