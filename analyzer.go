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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analyzer does the work of analyses in this instance: one goroutine walks, one a core reads. All its
// state that matters is in the database, so that it may be killed at any moment, and so that any
// number of instances share the work. A task that is claimed is its instance's for as long as that
// lives (instances.go); its token keeps out whoever has been given up on and comes back.
//
// Everything that asks the file system runs in a goroutine that can be left behind: a dead network file
// system answers never, and must hold up neither other work nor the end of the service.
type analyzer struct {
	db       *pgxpool.Pool
	cfg      config
	log      *slog.Logger
	now      func() time.Time
	instance string

	chunkSize  int           // files
	patience   time.Duration // how long the file system may take for one answer
	beforeRead func(path string)

	wake   []chan struct{} // one for each goroutine
	alone  sync.RWMutex    // held for reading with every chunk, for writing with a suspect one
	hung   atomic.Int64    // goroutines left behind that have not come back
	stored atomic.Int64    // chunks stored by this instance
}

// Bounds of the analyzer.
const (
	maxDeaths   = 3   // of instances that read a chunk; then it is split, or its only file is at fault
	maxFailures = 10  // to store a chunk while the database is well; then the analysis fails
	maxHung     = 16  // goroutines left behind, each with a thread; then this instance takes no more work
	maxWarnings = 100 // kept of an analysis
	idlePoll    = time.Second
)

// Why an analysis failed, for scripts.
const (
	failureUnavailable = "dataset_unavailable" // the directory is not there, empty, or does not answer
	failureInternal    = "internal"            // a mistake of ours: the log has it
)

// newAnalyzer makes an analyzer with as many readers as cores. Nothing runs yet.
func newAnalyzer(db *pgxpool.Pool, cfg config, log *slog.Logger, instance string, now func() time.Time) *analyzer {
	a := &analyzer{
		db: db, cfg: cfg, log: log, instance: instance, now: now,
		chunkSize: 500,
		patience:  30 * time.Second,
	}
	for range 1 + max(2, runtime.GOMAXPROCS(0)) { // the walker and the readers
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
				worked, err := false, error(nil)
				if a.hung.Load() < maxHung {
					worked, err = step(ctx)
				}
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

// errNotOurs is that a task is another's now, or that its analysis has ended: what was done is void.
var errNotOurs = errors.New("the task is not ours any more")

// leaveBehind lets a goroutine that hangs go its own way; done is closed when it comes back.
func (a *analyzer) leaveBehind(done <-chan struct{}) {
	a.hung.Add(1)
	go func() {
		<-done
		a.hung.Add(-1)
	}()
}

// inTime runs f, which asks the file system. Where it takes longer than our patience lasts, or we stop, it
// is left behind, and ok is false: whatever f sets must not be looked at then.
func (a *analyzer) inTime(stopping context.Context, f func()) (ok bool) {
	if a.hung.Load() >= maxHung {
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-stopping.Done():
	case <-time.After(a.patience):
	}
	a.leaveBehind(done)
	return false
}

// unavailable is why an analysis has to fail with failureUnavailable.
type unavailable struct{ reason string }

func (e *unavailable) Error() string { return e.reason }

// settle decides what becomes of a task that ended with err: done or another's, to be given back since
// we stop or the database is away, or the end of its analysis. stillOurs checks the token and locks the
// row; release gives the task back, failed or not.
func (a *analyzer) settle(ctx context.Context, analysisID int64, err error, stillOurs func(pgx.Tx) error, release func(ctx context.Context, failed bool) error) error {
	if err == nil || errors.Is(err, errNotOurs) {
		return nil
	}
	gone, isGone := errors.AsType[*unavailable](err)
	if isGone {
		endErr := pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
			if err := errors.Join(lockAnalysis(ctx, tx, analysisID, true), stillOurs(tx)); err != nil {
				return err
			}
			return endAnalysis(ctx, tx, analysisID, stateFailed, failureUnavailable, gone.reason)
		})
		if endErr == nil {
			a.log.Warn("analysis failed", "analysis", analysisID, "reason", gone.reason)
			return nil
		}
		if errors.Is(endErr, errNotOurs) {
			return nil
		}
		err = endErr
	}
	// We live, so the files are not to blame. It may take until the database is back to say so.
	_, refused := errors.AsType[*pgconn.PgError](err)
	failed := refused && !isUnavailable(err)
	for {
		giveBack, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		releaseErr := release(giveBack, failed)
		cancel()
		if releaseErr == nil || ctx.Err() != nil {
			break
		}
		pause(ctx, idlePoll)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
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
	const ours = `
		SELECT
		FROM analyses
		WHERE id = $1
			AND walker_token = $2
			AND state = 'walking'
		FOR UPDATE`
	const release = `
		UPDATE analyses
		SET walker = NULL,
			walker_token = NULL
		WHERE id = $1
			AND walker_token = $2`
	task, err := claimWalk(ctx, a.db, a.instance)
	if err != nil || task == nil {
		return false, err
	}
	err = a.settle(ctx, task.analysisID, a.walk(ctx, task),
		func(tx pgx.Tx) error { return oneRow(ctx, tx, ours, task.analysisID, task.token) },
		func(ctx context.Context, _ bool) error {
			_, err := a.db.Exec(ctx, release, task.analysisID, task.token)
			return err
		})
	return true, err
}

// oneRow runs a statement that touches the row of a task, or returns errNotOurs.
func oneRow(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
	tag, err := tx.Exec(ctx, query, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return errNotOurs
	}
	return err
}

// claimWalk takes the oldest walk that nobody holds who lives, or nil.
func claimWalk(ctx context.Context, q querier, instance string) (*walkTask, error) {
	const query = `
		UPDATE analyses a
		SET state = 'walking',
			started_at = coalesce(a.started_at, now()),
			walker = $1,
			walker_token = gen_random_uuid()
		FROM datasets d
		WHERE d.id = a.dataset_id
			AND a.id = (
				SELECT id
				FROM analyses
				WHERE finished_at IS NULL
					AND state IN ('queued', 'walking')
					AND (walker IS NULL OR walker = ANY (` + deadInstances + `))
				ORDER BY id
				LIMIT 1
				FOR UPDATE SKIP LOCKED
			)
		RETURNING a.id, a.dataset_id, d.path, a.force, a.walked_to, a.walker_token::text`
	var t walkTask
	err := q.QueryRow(ctx, query, instance).Scan(&t.analysisID, &t.datasetID, &t.path, &t.force, &t.walkedTo, &t.token)
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
	warnings []string // of the walk since the chunk before
}

// walk lists the dataset's directory, from where an earlier walk of the same analysis left off, and
// writes its chunks. The listing runs by itself and hands chunks over; where it makes no progress for
// as long as our patience lasts, it is left behind.
func (a *analyzer) walk(ctx context.Context, task *walkTask) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	known, err := hasFiles(ctx, a.db, task.datasetID)
	if err != nil {
		return err
	}
	w := &walker{after: task.walkedTo}
	chunks := make(chan chunk)
	done := make(chan struct{})
	var listErr error
	go func() {
		defer close(done)
		listErr = a.list(ctx, task, w, known, chunks)
	}()
	for progress := int64(-1); ; {
		select {
		case c := <-chunks:
			if err := appendChunk(ctx, a.db, task, c); err != nil {
				return err
			}
			a.wakeAll()
		case <-done:
			return listErr
		case <-ctx.Done():
			a.leaveBehind(done)
			return ctx.Err()
		case <-time.After(a.patience):
			now := w.progress.Load()
			if now == progress {
				a.leaveBehind(done)
				return &unavailable{"The dataset's directory does not answer."}
			}
			progress = now
		}
	}
}

// list is the part of a walk that asks the file system. The last chunk has no end.
func (a *analyzer) list(ctx context.Context, task *walkTask, w *walker, known bool, chunks chan<- chunk) error {
	next := chunk{from: task.walkedTo, files: []entry{}}
	flush := func(to *string) error {
		next.to = to
		select {
		case chunks <- next:
		case <-ctx.Done():
			return ctx.Err()
		}
		if to != nil {
			next = chunk{from: *to, files: []entry{}}
		}
		return nil
	}
	w.file = func(e entry) error {
		next.files = append(next.files, e)
		if len(next.files) < a.chunkSize {
			return nil
		}
		return flush(&e.Path)
	}
	w.warn = func(dir string, err error) error {
		if len(next.warnings) < maxWarnings {
			next.warnings = append(next.warnings, fmt.Sprintf("%s: %s", dir, reasonOf(err)))
		}
		return nil
	}
	root, err := a.openDataset(task.path, known, task.force)
	if err != nil {
		return err
	}
	if root != nil {
		defer root.Close()
		if err := w.walk(ctx, root, ""); err != nil {
			if e, ok := errors.AsType[*listError](err); ok {
				return &unavailable{"The dataset's directory cannot be listed: " + reasonOf(e.err) + "."}
			}
			return err
		}
	}
	if next.from == "" && len(next.files) == 0 && known && !task.force {
		return &unavailable{"No file is left in the dataset's directory. If that is so, analyse it with force."}
	}
	return flush(nil)
}

// openDataset opens a dataset's directory. Where it is missing, or empty though files are known, the
// analysis has to fail and keeps every row: a share that is not mounted must not empty the catalogue.
// Only force says that it is meant; a missing directory is then nil.
func (a *analyzer) openDataset(path string, known, force bool) (*os.Root, error) {
	place, err := a.cfg.placeDataset(path)
	if err != nil {
		return nil, &unavailable{"The dataset lies outside the dataset roots."}
	}
	root, err := place.open()
	if errors.Is(err, os.ErrNotExist) && force {
		return nil, nil
	}
	if err != nil {
		return nil, &unavailable{"The dataset's directory cannot be opened: " + reasonOf(err) + "."}
	}
	empty, err := isEmptyDir(root)
	switch {
	case err != nil:
		root.Close()
		return nil, &unavailable{"The dataset's directory cannot be listed: " + reasonOf(err) + "."}
	case empty && known && !force:
		root.Close()
		return nil, &unavailable{"The dataset's directory is empty, though files are known. If that is so, analyse it with force."}
	}
	return root, nil
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
func appendChunk(ctx context.Context, db *pgxpool.Pool, task *walkTask, c chunk) error {
	const advance = `
		UPDATE analyses
		SET walked_to = coalesce($3, walked_to),
			state = CASE WHEN $3::text IS NULL THEN 'reading' ELSE state END,
			chunks_left = chunks_left + 1,
			total = total + $4,
			warnings = (warnings || $5::text[])[1:$6]
		WHERE id = $1
			AND walker_token = $2
			AND state = 'walking'`
	const insert = `
		WITH told AS (SELECT pg_notify('` + workChannel + `', ''))
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, files)
		SELECT $1, $2, $3, $4
		FROM told`
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := lockAnalysis(ctx, tx, task.analysisID, false); err != nil {
			return err
		}
		if err := oneRow(ctx, tx, advance, task.analysisID, task.token, c.to, len(c.files), c.warnings, maxWarnings); err != nil {
			return fmt.Errorf("advance walk: %w", err)
		}
		_, err := execute(ctx, tx, "add chunk", insert, task.analysisID, c.from, c.to, c.files)
		return err
	})
}
