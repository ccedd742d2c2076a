package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analyzer does the work of analyses in this instance. One goroutine walks directories and writes
// chunks of files, the others read chunks and store rows. All state is in the database, so any
// number of instances share the work, and any may be killed at any moment.
//
// A walk or a chunk is claimed with a fencing token. The claim is a lease: it lasts while the
// holder renews its row in instances (see deadInstances). Every write checks the token, so a holder
// that was declared dead and comes back stores nothing.
type analyzer struct {
	core      *core
	catalogue *catalogue
	db        *pgxpool.Pool // for the work of analyses
	instance  string

	chunkSize  int // files
	beforeRead func(path string)

	workers int           // goroutines: the first walks, the others read
	walks   chan struct{} // has an element if the walker should look for work now
	chunks  chan struct{} // has an element for each reader that should
	solo    sync.RWMutex  // held for writing while a suspect is read, else for reading; see readStep
	waits   *limiter      // requests of one user that wait for a change; none waits in line
	held    sync.Map      // the fencing tokens of tasks that are claimed or worked on
	outage  atomic.Bool   // the log has said that the database is unavailable
	hung    atomic.Int64  // abandoned goroutines that have not returned
	stored  atomic.Int64  // chunks stored by this instance
}

// Bounds of the analyzer.
const (
	readers     = 8   // half of the connections of the pool, so that requests have the others
	maxDeaths   = 3   // deaths of a chunk's holders; then it is cut, or its only file is at fault
	maxFailures = 10  // attempts at a task that the database refuses; then the analysis fails
	maxHung     = 16  // abandoned goroutines, each with a thread; then this instance claims no work
	maxWarnings = 100 // warnings that an analysis keeps
	idlePoll    = time.Second
)

// newAnalyzer returns an analyzer. run starts it.
func newAnalyzer(core *core, catalogue *catalogue, instance string, tuning tuning) *analyzer {
	waits := newLimiter(maxWaiting, unbounded)
	waits.maxQueue = maxWaiting
	return &analyzer{
		core: core, catalogue: catalogue, db: core.database.work, instance: instance,
		chunkSize:  tuning.batchSize,
		workers:    tuning.workers,
		beforeRead: tuning.beforeRead,
		walks:      make(chan struct{}, 1),
		chunks:     make(chan struct{}, readers),
		waits:      waits,
	}
}

// wake makes an idle goroutine look for work now. Other instances find it when they poll.
func wake(idle chan struct{}) {
	select {
	case idle <- struct{}{}:
	default: // all have been woken already
	}
}

// run works until ctx ends. It returns when all claimed work is stored or given back.
func (a *analyzer) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, idlePoll) {
			a.releaseStray(ctx)
		}
	})
	for i := range a.workers {
		step, woken := a.readStep, a.chunks
		if i == 0 {
			step, woken = a.walkStep, a.walks
		}
		all.Go(func() {
			for ctx.Err() == nil {
				if a.hung.Load() < maxHung {
					worked, err := step(ctx)
					if err == nil {
						a.outage.Store(false)
					} else if ctx.Err() == nil && !(isUnavailable(err) && a.outage.Swap(true)) {
						a.core.log.Error("analysis step failed", "error", err)
					}
					if worked && err == nil {
						continue
					}
				}
				select {
				case <-ctx.Done():
				case <-woken:
				case <-time.After(idlePoll):
				}
			}
		})
	}
	all.Wait()
}

// runDetached runs work in its own goroutine, because a call of a dead network file system may
// never return. Functions that work passes to send run in the caller's goroutine, in order. The
// goroutine is abandoned if ctx ends, if such a function fails, or (errHangs) if neither a function
// nor progress comes within a.patience. Abandoned work must not touch the caller's data; its send
// fails.
func (a *analyzer) runDetached(ctx context.Context, progress *atomic.Int64,
	work func(ctx context.Context, send func(func() error) error) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, done := make(chan func() error), make(chan error, 1)
	go func() {
		done <- work(ctx, func(result func() error) error {
			select {
			case results <- result:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	timer := time.NewTimer(a.core.patience)
	defer timer.Stop()
	var err error
	for seen := progress.Load(); err == nil; timer.Reset(a.core.patience) {
		select {
		case err := <-done:
			return err
		case result := <-results:
			err = result()
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			before := seen
			if seen = progress.Load(); seen == before {
				err = errHangs
			}
		}
	}
	a.hung.Add(1)
	go func() {
		<-done
		a.hung.Add(-1)
	}()
	return err
}

// failure is an error that ends the analysis as failed. The code is for scripts.
type failure struct{ code, reason string }

func (e *failure) Error() string { return e.reason }

// The codes of a failure.
const (
	failureUnavailable = "dataset_unavailable" // the directory is missing, empty, or does not answer
	failureMassRemoval = "mass_removal"        // most files are not found
	failureInternal    = "internal"            // rows could not be stored maxFailures times; the log has the errors
)

// unavailable returns a failure with failureUnavailable.
func unavailable(format string, args ...any) error {
	return &failure{failureUnavailable, fmt.Sprintf(format, args...)}
}

// errHangs is the failure of a file system that does not answer.
var errHangs = unavailable("The dataset's directory does not answer.")

// errNotOurs is the error if this instance no longer holds a task, or if the analysis has ended.
var errNotOurs = errors.New("the task has another holder or has ended")

// oneRow executes a statement that changes the row of a task, or returns errNotOurs if it is gone.
func oneRow(ctx context.Context, tx pgx.Tx, doing, query string, args ...any) error {
	n, err := execute(ctx, tx, doing, query, args...)
	if err == nil && n == 0 {
		return errNotOurs
	}
	return err
}

// task is the part of an analysis that this instance has claimed: its walk or one of its chunks. At
// first a chunk has all files and rows of an interval of paths, later those that a holder did not
// find, for a second look by another instance if one lives.
type task struct {
	AnalysisID int64
	DatasetID  int64
	Path       string // of the dataset
	Force      bool
	Token      string // the fencing token: the claim is void once the row has another
	Known      bool   // the dataset has rows
	Failures   int    // attempts that the database refused
	FromPath   string // the last path that was walked, or the path after which the chunk begins

	OthersMaySee    bool // another living instance may see the directory
	OthersHaveLived bool // another instance has lived since the analysis was queued

	// Of a chunk alone:
	ID         int64
	ToPath     string
	Files      int // number of its files that the walk found
	Deaths     int // number of instances that died while they held it
	SecondLook bool
	Last       bool // it is a second look, and no other instance may look after this one
}

// taskColumns is SQL for the columns of a task of instance $1, from analyses a and datasets d.
const taskColumns = `
	a.id AS analysis_id, a.dataset_id, d.path, a.force, ` + othersSee + ` AS others_may_see,
	EXISTS (SELECT FROM instances i
		WHERE i.id <> $1 AND greatest(i.live_until, i.seen_at) > a.queued_at) AS others_have_lived,
	EXISTS (SELECT FROM elevation_dataset_file_meta f WHERE f.dataset_id = a.dataset_id) AS known`

// work claims a task with a query for instance $1 and the fencing token $2, does it and settles it.
// It reports whether there was one. A task that has failed too often fails its analysis. The
// context of do ends within a second after this instance lost the task or the analysis ended.
func (a *analyzer) work(ctx context.Context, doing, claim string, args []any,
	do func(context.Context, task) error) (worked bool, err error) {
	const query = `
		SELECT EXISTS (SELECT FROM analyses WHERE id = $1 AND walker_token::text = $2 AND finished_at IS NULL)
			OR EXISTS (SELECT FROM analysis_chunks WHERE analysis_id = $1 AND token::text = $2)`
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	token := uuidText(id)
	a.held.Store(token, true)
	defer a.held.Delete(token)
	tasks, err := collect[task](ctx, a.db, doing, claim, append([]any{a.instance, token}, args...)...)
	if err != nil { // the claim may have been committed
		a.giveBack(ctx, token, false)
	}
	if len(tasks) == 0 {
		return false, err
	}
	t := tasks[0]
	if t.Failures >= maxFailures {
		return true, a.settle(ctx, t, &failure{failureInternal, "Rows could not be stored; the log says why."})
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for ours := true; working.Err() == nil; {
			pause(working, idlePoll/2)
			if err := a.db.QueryRow(working, query, t.AnalysisID, t.Token).Scan(&ours); err == nil && !ours {
				cancel(errNotOurs)
			}
		}
	}()
	if err = do(working, t); err != nil {
		err = cmp.Or(context.Cause(working), err)
	}
	return true, a.settle(ctx, t, err)
}

// settle ends a task whose work returned err, and returns the error to be logged. Without an error
// the task is done. A failure fails the analysis, except that an instance that does not see the
// directory gives the task back to the others. After any other error the task is given back, too.
func (a *analyzer) settle(ctx context.Context, t task, err error) error {
	const blind = `
		UPDATE analyses
		SET blind = array_append(blind, $2), warnings = (array_append(warnings, $3))[1:$4]
		WHERE id = $1 AND finished_at IS NULL AND $2 <> ALL (blind)`
	fail, failed := errors.AsType[*failure](err)
	leave := failed && fail.code == failureUnavailable && t.OthersMaySee
	switch {
	case leave:
		host, _ := os.Hostname() // "" if unknown
		warning := fmt.Sprintf("The instance on %s leaves the work to the others: %s",
			strings.ToValidUTF8(host, "?"), fail.reason)
		a.core.log.Warn("dataset unavailable", "analysis", t.AnalysisID, "reason", fail.reason)
		_, err = execute(ctx, a.db, "note blind instance", blind, t.AnalysisID, a.instance, warning, maxWarnings)
	case failed:
		err = inTransaction(ctx, a.db, func(tx pgx.Tx) error {
			return endAnalysis(ctx, tx, t.AnalysisID, t.Token, stateFailed, *fail)
		})
		if err == nil {
			a.core.log.Warn("analysis failed", "analysis", t.AnalysisID, "reason", fail.reason)
		}
	}
	if err == nil && !leave || errors.Is(err, errNotOurs) {
		return nil
	}
	// An error of a statement counts as a failure of the task, also its time limit (57014). An
	// outage does not; then giveBack waits until the database is back.
	said, refused := errors.AsType[*pgconn.PgError](err)
	refused = refused && (!isUnavailable(err) || said.Code == "57014")
	a.giveBack(ctx, t.Token, refused)
	return err
}

// giveBack releases the task that was claimed with the token, if there is one. With failed it
// counts a failure of the task. It tries until it succeeds or ctx ends, but at least once.
func (a *analyzer) giveBack(ctx context.Context, token string, failed bool) {
	const query = `
		WITH walk AS (
			UPDATE analyses
			SET walker = NULL, walker_token = NULL, failures = failures + $2::boolean::int
			WHERE walker_token = $1 AND finished_at IS NULL
		)
		UPDATE analysis_chunks
		SET reader = NULL, token = NULL, failures = failures + $2::boolean::int
		WHERE token = $1`
	for {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_, err := execute(limited, a.db, "give task back", query, token, failed)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		pause(ctx, idlePoll)
	}
}

// releaseStray gives back the tasks that this instance holds and does not work on. The database may
// commit a claim long after the connection was lost: a commit waits for a synchronous standby.
// run calls it once a second, so an error does no harm.
func (a *analyzer) releaseStray(ctx context.Context) {
	const query = `
		SELECT walker_token::text AS token FROM analyses WHERE walker = $1 AND state = 'walking'
		UNION ALL
		SELECT token::text FROM analysis_chunks WHERE reader = $1`
	tasks, _ := collect[struct{ Token string }](ctx, a.db, "list tasks", query, a.instance)
	for _, t := range tasks {
		if _, held := a.held.Load(t.Token); !held { // a token is held before it is in the database
			a.giveBack(ctx, t.Token, false)
		}
	}
}

// walkStep claims a walk without a living holder, the oldest of those with the fewest failures, and
// does it. It reports whether there was one.
func (a *analyzer) walkStep(ctx context.Context) (worked bool, err error) {
	const query = `
		UPDATE analyses a
		SET state = 'walking', started_at = coalesce(a.started_at, now()), walker = $1, walker_token = $2
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
		RETURNING ` + taskColumns + `, a.walker_token::text AS token, a.failures, a.walked_to AS from_path,
			0 AS id, '' AS to_path, 0 AS files, 0 AS deaths, false AS second_look, false AS last`
	return a.work(ctx, "claim walk", query, nil, a.walk)
}

// chunk is an interval (from, to] of a dataset's paths, with the files that the walk found in it.
type chunk struct {
	from                               string
	to                                 *string // nil: to the end
	paths                              []string
	sizes, modified, changed, sidecars []int64
	warnings                           []string // of the walk since the last chunk
}

// walk lists the dataset's directory, from where an earlier holder ended, and writes its chunks.
// The last one is open at its end.
func (a *analyzer) walk(ctx context.Context, t task) error {
	w := &walker{after: t.FromPath}
	return a.runDetached(ctx, &w.progress, func(detached context.Context, send func(func() error) error) error {
		next := chunk{from: t.FromPath}
		w.file = func(e entry) error {
			next.paths, next.sizes = append(next.paths, e.Path), append(next.sizes, e.Size)
			next.modified, next.changed = append(next.modified, e.Modified), append(next.changed, e.Changed)
			next.sidecars = append(next.sidecars, e.Sidecars)
			if len(next.paths) < a.chunkSize {
				return nil
			}
			full := next
			full.to, next = &e.Path, chunk{from: e.Path}
			return send(func() error { return a.appendChunk(ctx, t, full) })
		}
		w.warn = func(dir string, err error) error {
			if dir == "" {
				return unavailable("The dataset's directory cannot be read: %s.", reasonOf(err))
			}
			if len(next.warnings) < maxWarnings {
				next.warnings = append(next.warnings, fmt.Sprintf("%s: %s", dir, reasonOf(err)))
			}
			return nil
		}
		expected := t.Known || t.OthersMaySee // files; another instance may see some
		root, err := a.openDataset(t, expected)
		if err != nil {
			return err
		}
		if root != nil {
			defer root.Close()
			if err := w.walk(detached, root, ""); err != nil {
				return err
			}
		}
		if next.from == "" && len(next.paths) == 0 && expected && !t.emptyIsIntended() {
			return t.unexpectedlyEmpty("No file is in the dataset's directory.")
		}
		return send(func() error { return a.appendChunk(ctx, t, next) })
	})
}

// emptyIsIntended reports whether a missing or empty directory is accepted, so that its rows go:
// with force, if no other instance may have seen files there.
func (t task) emptyIsIntended() bool { return t.Force && !t.OthersHaveLived }

// unexpectedlyEmpty returns the failure of a directory for which emptyIsIntended is false.
func (t task) unexpectedlyEmpty(what string) error {
	advice := "If that is right, analyse it with the option force."
	if t.Force {
		advice = "The option force does not apply, because another instance has run since the analysis was queued. " +
			"Stop all other instances, and analyse again."
	}
	return unavailable("%s %s", what, advice)
}

// openDataset opens a dataset's directory. A directory that is missing, or empty although files are
// expected, is a failure: a share that is not mounted must not empty the catalogue. If that is
// intended, it returns nil for a missing directory.
func (a *analyzer) openDataset(t task, filesExpected bool) (*os.Root, error) {
	place, wrong := a.core.cfg.placeDataset(t.Path)
	if wrong != nil {
		return nil, unavailable("The dataset lies outside the dataset roots of the running service.")
	}
	root, empty, err := place.open()
	switch {
	case errors.Is(err, os.ErrNotExist) && t.emptyIsIntended():
		return nil, nil
	case err != nil:
		return nil, unavailable("The dataset's directory cannot be read: %s.", reasonOf(err))
	case empty && filesExpected && !t.emptyIsIntended():
		root.Close()
		return nil, t.unexpectedlyEmpty("The dataset's directory is empty.")
	}
	return root, nil
}

// appendChunk writes a chunk and advances the walk, if it is still ours. The last chunk ends it.
func (a *analyzer) appendChunk(ctx context.Context, t task, c chunk) error {
	const add = `
		WITH walk AS (
			UPDATE analyses
			SET walked_to = coalesce($4, walked_to), state = CASE WHEN $4::text IS NULL THEN 'reading' ELSE state END,
				chunks_left = chunks_left + 1, total = total + coalesce(cardinality($5::text[]), 0),
				warnings = (warnings || $10::text[])[1:$11]
			WHERE id = $1 AND walker_token = $2 AND state = 'walking'
			RETURNING id
		)
		INSERT INTO analysis_chunks (analysis_id, from_path, to_path, paths, sizes, modified, changed, sidecars)
		SELECT id, $3, $4, coalesce($5, '{}'), coalesce($6::bigint[], '{}'), coalesce($7::bigint[], '{}'),
			coalesce($8::bigint[], '{}'), coalesce($9::bigint[], '{}')
		FROM walk`
	defer wake(a.chunks)
	return changeAnalysis(ctx, a.db, t.AnalysisID, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "add chunk", add, t.AnalysisID, t.Token, c.from, c.to, c.paths, c.sizes, c.modified,
			c.changed, c.sidecars, c.warnings, maxWarnings)
	})
}

// counters returns how many chunks this instance has stored, and how many of its reads wait for a
// stuck file system.
func (a *analyzer) counters() (stored, hung int64) { return a.stored.Load(), a.hung.Load() }
