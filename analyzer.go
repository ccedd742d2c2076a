package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analyzer does the work of analyses in this instance: one goroutine walks, others read. All its state that
// matters is in the database, so that it may be killed at any moment, and so that any number of instances share
// the work. A task that is claimed is its instance's for as long as that lives (instances.go); its token keeps out
// whoever has been given up on and comes back.
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
	busy   chan struct{}   // holds those that use the database for chunks: as many as cores
	away   atomic.Bool     // the database is, and the log has it
	alone  sync.RWMutex    // held for reading with every chunk, for writing with a suspect one
	hung   atomic.Int64    // goroutines left behind that have not come back
	stored atomic.Int64    // chunks stored by this instance
}

// Bounds of the analyzer.
const (
	maxDeaths   = 3   // of instances that read a chunk; then it is split, or its only file is at fault
	maxFailures = 10  // to walk or to store a chunk while the database is well; then the analysis fails
	maxHung     = 16  // goroutines left behind, with their threads; then this instance takes no more work
	maxWarnings = 100 // kept of an analysis
	idlePoll    = time.Second
)

// newAnalyzer makes an analyzer with four readers a core. Nothing runs yet.
func newAnalyzer(db *pgxpool.Pool, cfg config, log *slog.Logger, instance string, now func() time.Time) *analyzer {
	a := &analyzer{
		db: db, cfg: cfg, log: log, instance: instance, now: now,
		chunkSize: 1000,
		patience:  30 * time.Second,
		busy:      make(chan struct{}, max(2, runtime.GOMAXPROCS(0))),
	}
	for range 1 + 4*cap(a.busy) { // the walker and the readers, most of whom wait where the file system is slow
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
					a.logTrouble(ctx, err)
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

// logTrouble logs what went wrong with a step; that the database is away, once until it is back.
func (a *analyzer) logTrouble(ctx context.Context, err error) {
	switch away := isUnavailable(err); {
	case ctx.Err() != nil:
	case err != nil && !(away && a.away.Swap(true)):
		a.log.Error("analysis", "error", err)
	case err == nil && a.away.Swap(false):
		a.log.Info("the database is back")
	}
}

// handOver passes a step on to the caller of ask, which takes it unless it has left us behind.
type handOver func(step func() error) error

// ask runs f, which asks the file system, in a goroutine of its own: a dead network file system answers never, and
// must hold up neither other work nor the end of the service. What f finds it hands over as steps, which run here,
// one by one. Where progress stands still and no step comes for as long as our patience lasts (errHangs), a step
// fails or ctx ends, f is left behind: whatever else it sets must not be looked at then.
func (a *analyzer) ask(ctx context.Context, progress *atomic.Int64, f func(ctx context.Context, hand handOver) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	steps, done := make(chan func() error), make(chan error, 1)
	go func() {
		done <- f(ctx, func(step func() error) error {
			select {
			case steps <- step:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	timer := time.NewTimer(a.patience)
	defer timer.Stop()
	var err error
	for seen := progress.Load(); err == nil; timer.Reset(a.patience) {
		select {
		case err := <-done:
			return err
		case step := <-steps:
			err = step()
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			now := progress.Load()
			if now == seen {
				err = errHangs
			}
			seen = now
		}
	}
	a.hung.Add(1)
	go func() {
		<-done
		a.hung.Add(-1)
	}()
	return err
}

// failure is that an analysis has to fail: a code for scripts, and why.
type failure struct{ code, reason string }

func (e *failure) Error() string { return e.reason }

// The codes of a failure.
const (
	failureUnavailable = "dataset_unavailable" // the directory is not there, empty, or does not answer
	failureInternal    = "internal"            // a mistake of ours: the log has it
)

// unavailable is a failure with failureUnavailable.
func unavailable(format string, args ...any) error {
	return &failure{failureUnavailable, fmt.Sprintf(format, args...)}
}

// errHangs is that the file system does not answer.
var errHangs = unavailable("The dataset's directory does not answer.")

// errNotOurs is that a task is another's now, or that its analysis has ended: what was done is void.
var errNotOurs = errors.New("the task is not ours any more")

// oneRow runs a statement that touches the row of a task, or returns errNotOurs.
func oneRow(ctx context.Context, tx pgx.Tx, doing, query string, args ...any) error {
	n, err := execute(ctx, tx, doing, query, args...)
	if err == nil && n == 0 {
		return errNotOurs
	}
	return err
}

// task is what this instance holds of an analysis, its walk or one of its chunks, for as long as the token is
// that of the row.
type task struct {
	AnalysisID int64
	DatasetID  int64
	Path       string // of the dataset
	Force      bool
	Token      string
	Alone      bool // no other instance that lives may see the directory
	Only       bool // none has lived since the analysis was asked for that might have seen it
	Known      bool // the dataset has rows
	Failures   int  // to store what was done
}

// taskColumns are, in SQL, the columns of a task that the instance $1 holds, of the tables analyses a and datasets d.
const taskColumns = `
	a.id AS analysis_id, a.dataset_id, d.path, a.force, NOT ` + othersSee + ` AS alone,
	NOT EXISTS (SELECT FROM instances i WHERE i.id <> $1 AND greatest(i.live_until, i.seen_at) > a.queued_at) AS only,
	EXISTS (SELECT FROM elevation_dataset_file_meta f WHERE f.dataset_id = a.dataset_id) AS known`

// work does a task, unless it has failed too often, and settles it. The context of what it does ends within a second
// of the task's being another's, or of the end of its analysis.
func (a *analyzer) work(ctx context.Context, t task, do func(context.Context) error) error {
	const query = `
		SELECT EXISTS (SELECT FROM analyses WHERE id = $1 AND walker_token::text = $2 AND finished_at IS NULL)
			OR EXISTS (SELECT FROM analysis_chunks WHERE analysis_id = $1 AND token::text = $2)`
	if t.Failures >= maxFailures {
		return a.settle(ctx, t, &failure{failureInternal, "Rows could not be stored; the log says why."})
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for pause(working, idlePoll/2); working.Err() == nil; pause(working, idlePoll/2) {
			ours := true
			if err := a.db.QueryRow(working, query, t.AnalysisID, t.Token).Scan(&ours); err == nil && !ours {
				cancel(errNotOurs)
			}
		}
	}()
	err := do(working)
	if err != nil && context.Cause(working) == errNotOurs {
		err = errNotOurs
	}
	return a.settle(ctx, t, err)
}

// settle decides what becomes of a task that ended with err: it is done or another's, its analysis has to fail, or
// it is given back, since we stop or the database is away or refuses it.
func (a *analyzer) settle(ctx context.Context, t task, err error) error {
	const blind = `
		UPDATE analyses a
		SET blind = array_append(array_remove(blind, $2), $2),
			warnings = CASE WHEN $2 = ANY (blind) THEN warnings ELSE (warnings || $3::text)[1:$4] END
		WHERE id = $1 AND finished_at IS NULL`
	f, failed := errors.AsType[*failure](err)
	switch {
	case failed && f.code == failureUnavailable && !t.Alone:
		host, _ := os.Hostname() // where it is unknown, "" does
		warning := fmt.Sprintf("The instance on %s leaves the work to the others: %s", strings.ToValidUTF8(host, "?"), f.reason)
		a.log.Warn("dataset unavailable", "analysis", t.AnalysisID, "reason", f.reason)
		if _, err = execute(ctx, a.db, "note blind instance", blind, t.AnalysisID, a.instance, warning, maxWarnings); err == nil {
			err = f
		}
	case failed:
		err = pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
			return endAnalysis(ctx, tx, t.AnalysisID, t.Token, stateFailed, *f)
		})
		if err == nil {
			a.log.Warn("analysis failed", "analysis", t.AnalysisID, "reason", f.reason)
		}
	}
	if err == nil || errors.Is(err, errNotOurs) {
		return nil
	}
	// We live, so the files are not to blame. It may take until the database is back to say so.
	said, refused := errors.AsType[*pgconn.PgError](err)
	refused = refused && (!isUnavailable(err) || said.Code == "57014") // a statement that takes too long will again
	for {
		giveErr := a.giveBack(ctx, t.Token, refused)
		if giveErr == nil && err == f {
			return nil
		}
		if giveErr == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, idlePoll)
	}
}

// giveBack gives back what was claimed under the token, if anything was; failed counts that against it. It is tried
// also where ctx has ended.
func (a *analyzer) giveBack(ctx context.Context, token string, failed bool) error {
	const query = `
		WITH walk AS (
			UPDATE analyses
			SET walker = NULL, walker_token = NULL, failures = failures + $2::boolean::int
			WHERE walker_token = $1 AND finished_at IS NULL
		)
		UPDATE analysis_chunks
		SET reader = NULL, token = NULL, failures = failures + $2::boolean::int
		WHERE token = $1`
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, err := execute(limited, a.db, "give task back", query, token, failed)
	return err
}

// claim runs a query that claims a task for the instance $1 under the token $2. Where no answer comes the claim may
// have been made all the same, and would be held for as long as this instance lives: it is given back.
func claim[T any](ctx context.Context, a *analyzer, doing, query string, args ...any) ([]T, error) {
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	token := uuidText(id)
	tasks, err := collect[T](ctx, a.db, doing, query, append([]any{a.instance, token}, args...)...)
	if err != nil {
		for pause(ctx, idlePoll/2); a.giveBack(ctx, token, false) != nil && ctx.Err() == nil; {
			pause(ctx, idlePoll)
		}
	}
	return tasks, err
}

// walkTask is a walk that this instance holds.
type walkTask struct {
	task
	WalkedTo string
}

// walkStep claims the oldest walk that nobody holds who lives, and walks it. It reports whether there was one.
func (a *analyzer) walkStep(ctx context.Context) (worked bool, err error) {
	const query = `
		UPDATE analyses a
		SET state = 'walking',
			started_at = coalesce(a.started_at, now()),
			walker = $1,
			walker_token = $2
		FROM datasets d
		WHERE d.id = a.dataset_id AND a.id = (
			SELECT a.id
			FROM analyses a
			WHERE a.finished_at IS NULL AND a.state IN ('queued', 'walking')
				AND (a.walker IS NULL OR a.walker = ANY (` + deadInstances + `))
				AND ` + maySee + `
			ORDER BY a.failures, a.id
			LIMIT 1
			FOR UPDATE SKIP LOCKED
		)
		RETURNING ` + taskColumns + `, a.walker_token::text AS token, a.failures, a.walked_to`
	tasks, err := claim[walkTask](ctx, a, "claim walk", query)
	if err != nil || len(tasks) == 0 {
		return false, err
	}
	return true, a.work(ctx, tasks[0].task, func(ctx context.Context) error { return a.walk(ctx, tasks[0]) })
}

// chunk is an interval (from, to] of a dataset's paths, to being nil at the end, with the files found in it.
type chunk struct {
	FromPath                  string
	ToPath                    *string
	Paths                     []string
	Sizes, Modified, Sidecars []int64
	Warnings                  []string // of the walk since the chunk before
}

// walk lists the dataset's directory, from where an earlier walk of the same analysis left off, and writes its
// chunks. The last one has no end.
func (a *analyzer) walk(ctx context.Context, t walkTask) error {
	w := &walker{after: t.WalkedTo}
	return a.ask(ctx, &w.progress, func(ctx context.Context, hand handOver) error {
		next := chunk{FromPath: t.WalkedTo}
		flush := func(to *string) error {
			full := next
			full.ToPath = to
			err := hand(func() error { return a.appendChunk(ctx, t, full) })
			if err == nil && to != nil {
				next = chunk{FromPath: *to}
			}
			return err
		}
		w.file = func(e entry) error {
			next.Paths, next.Sizes = append(next.Paths, e.Path), append(next.Sizes, e.Size)
			next.Modified, next.Sidecars = append(next.Modified, e.Modified), append(next.Sidecars, e.Sidecars)
			if len(next.Paths) < a.chunkSize {
				return nil
			}
			return flush(&e.Path)
		}
		w.warn = func(dir string, err error) error {
			if len(next.Warnings) < maxWarnings {
				next.Warnings = append(next.Warnings, fmt.Sprintf("%s: %s", dir, reasonOf(err)))
			}
			return nil
		}
		root, err := a.openDataset(t.task)
		if err != nil {
			return err
		}
		if root != nil {
			defer root.Close()
			if err := w.walk(ctx, root, ""); err != nil {
				if e, ok := errors.AsType[*listError](err); ok {
					return unavailable("The dataset's directory cannot be read: %s.", reasonOf(e.err))
				}
				return err
			}
		}
		if next.FromPath == "" && len(next.Paths) == 0 && t.Known && !t.meant() {
			return unavailable("No file is left in the dataset's directory. If that is so, analyse it with force.")
		}
		return flush(nil)
	})
}

// meant says whether a directory that is missing or empty is meant to be: with force, and no other instance saw more.
func (t task) meant() bool { return t.Force && t.Only }

// openDataset opens a dataset's directory. Where it is missing, or empty though files are known, the analysis has
// to fail and keeps every row: a share that is not mounted must not empty the catalogue. Only force says that it is
// meant; a missing directory is then nil.
func (a *analyzer) openDataset(t task) (*os.Root, error) {
	place, wrong := a.cfg.placeDataset(t.Path)
	if wrong != nil {
		return nil, unavailable("The dataset lies outside the dataset roots.")
	}
	root, empty, err := place.open()
	switch {
	case errors.Is(err, os.ErrNotExist) && t.meant():
		return nil, nil
	case err != nil:
		return nil, unavailable("The dataset's directory cannot be read: %s.", reasonOf(err))
	case empty && t.Known && !t.meant():
		root.Close()
		return nil, unavailable("The dataset's directory is empty, though files are known. If that is so, analyse it with force.")
	}
	return root, nil
}

// appendChunk writes a chunk and moves the walk on, if the walk is still ours; the last chunk ends it.
func (a *analyzer) appendChunk(ctx context.Context, t walkTask, c chunk) error {
	const advance = `
		UPDATE analyses
		SET walked_to = coalesce($3, walked_to),
			state = CASE WHEN $3::text IS NULL THEN 'reading' ELSE state END,
			chunks_left = chunks_left + 1,
			total = total + $4,
			warnings = (warnings || $5::text[])[1:$6]
		WHERE id = $1 AND walker_token = $2 AND state = 'walking'`
	const insert = `
		WITH told AS (SELECT pg_notify('` + workChannel + `', ''))
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, paths, sizes, modified, sidecars)
		SELECT $1, $2, $3, coalesce($4::text[], '{}'), coalesce($5::bigint[], '{}'), coalesce($6::bigint[], '{}'),
			coalesce($7::bigint[], '{}')
		FROM told`
	defer a.wakeAll()
	return pgx.BeginFunc(ctx, a.db, func(tx pgx.Tx) error {
		if err := lockAnalysis(ctx, tx, t.AnalysisID); err != nil {
			return err
		}
		err := oneRow(ctx, tx, "advance walk", advance, t.AnalysisID, t.Token, c.ToPath, len(c.Paths), c.Warnings, maxWarnings)
		if err != nil {
			return err
		}
		_, err = execute(ctx, tx, "add chunk", insert, t.AnalysisID, c.FromPath, c.ToPath, c.Paths, c.Sizes, c.Modified, c.Sidecars)
		return err
	})
}
