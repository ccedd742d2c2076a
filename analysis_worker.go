package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analyzer does the work of analyses in this instance. It owns at most three at a time. All state
// is in the database, so any instance may own any analysis, and any may be killed at any moment.
//
// An analysis is claimed with a fencing token. The claim is a lease: it lasts while the owner
// renews its row in instances (see deadInstances). Every write checks the token, so an owner that
// was declared dead and comes back stores nothing.
type analyzer struct {
	core      *core
	catalogue *catalogue
	db        *pgxpool.Pool // for the work of analyses
	instance  string
	tuning

	queued   chan struct{} // has an element if a worker should look for an analysis now
	contents chan struct{} // likewise, for the worker that reads contents
	reading  *limiter      // slots for batches that are read and stored
	checking *limiter      // one dataset is checked at a time, because its rows are in memory
	waits    *limiter      // requests of one user that wait for a change; none waits in line
	held     sync.Map      // the fencing tokens of analyses that are claimed or worked on
	outage   atomic.Bool   // the log has said that the database is unavailable
	hung     atomic.Int64  // abandoned goroutines that have not returned
	stored   atomic.Int64  // batches stored by this instance
}

// Bounds of the analyzer.
const (
	maxReaders  = 6   // see newAnalyzer; each has a connection, and the pool for analyses has two more
	maxDeaths   = 3   // deaths while one file was read alone; then that file is at fault
	maxFailures = 10  // attempts that the database refuses; then the analysis fails
	maxHung     = 16  // abandoned goroutines, each with a thread; then this instance owns nothing
	maxWarnings = 100 // warnings that an analysis keeps
	idlePoll    = time.Second
)

// newAnalyzer returns an analyzer. run starts it.
func newAnalyzer(core *core, catalogue *catalogue, instance string, tuning tuning) *analyzer {
	waits := newLimiter(maxWaiting, unbounded)
	waits.maxQueue = maxWaiting

	// Half of the cores are left to requests. Of two readers, one reads while the other stores.
	readers := min(maxReaders, max(2, runtime.GOMAXPROCS(0)/2))

	return &analyzer{
		core:      core,
		catalogue: catalogue,
		db:        core.database.work,
		instance:  instance,
		tuning:    tuning,
		queued:    make(chan struct{}, 1),
		contents:  make(chan struct{}, 1),
		reading:   newLimiter(readers, readers),
		checking:  newLimiter(1, 1),
		waits:     waits,
	}
}

// wake makes an idle goroutine look for work now. Other instances find it when they poll.
func wake(idle chan struct{}) {
	select {
	case idle <- struct{}{}:
	default: // all have been woken already
	}
}

// run works until ctx ends. It returns when all claimed work is stored or released.
func (a *analyzer) run(ctx context.Context) {
	// They look for work one after another, so that an idle instance needs one connection for all.
	turn := idlePoll / time.Duration(a.workers+1)

	var all sync.WaitGroup
	all.Go(func() {
		pause(ctx, idlePoll-turn)
		for ; ctx.Err() == nil; pause(ctx, idlePoll) {
			a.releaseStray(ctx)
			releaseDead(ctx, a.db, a.instance)
		}
	})

	for i := range a.workers {
		duty := smallestAnalysis
		queued := a.queued
		switch i {
		case 0:
			duty = oldestAnalysis
		case 1:
			duty = onlyContents
			queued = a.contents
		}

		all.Go(func() {
			pause(ctx, time.Duration(i)*turn)
			for ctx.Err() == nil {
				if a.tryWork(ctx, duty) {
					continue
				}

				select {
				case <-ctx.Done():
				case <-queued:
				case <-time.After(idlePoll):
				}
			}
		})
	}

	all.Wait()
}

// tryWork works on an analysis, if there is one to be claimed. It reports whether the next one may
// be tried at once.
func (a *analyzer) tryWork(ctx context.Context, duty duty) bool {
	if a.hung.Load() >= maxHung {
		return false
	}

	worked, err := a.work(ctx, duty)
	if err == nil {
		a.outage.Store(false)
		return worked
	}

	// An outage is logged once.
	if ctx.Err() == nil && !(isUnavailable(err) && a.outage.Swap(true)) {
		a.core.log.Error("analysis step failed", "error", err)
	}
	return false
}

// sendFunc passes a function to the goroutine that has called runDetached, and waits until it is
// taken. After that goroutine has given up, it returns an error.
type sendFunc func(result func() error) error

// runDetached runs work in its own goroutine, because a call of a dead network file system may
// never return. Functions that work passes to send run in the caller's goroutine, in order. The
// goroutine is abandoned if ctx ends, if such a function fails, or (errHangs) if neither a function
// nor progress comes within a.patience. Abandoned work must not touch the caller's data; its send
// fails.
func (a *analyzer) runDetached(ctx context.Context, progress *atomic.Int64,
	work func(ctx context.Context, send sendFunc) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	results := make(chan func() error)
	done := make(chan error, 1)
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

	// Run what work sends until it ends, or an error comes first.
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

	// Abandon the goroutine.
	a.hung.Add(1)
	go func() {
		<-done
		a.hung.Add(-1)
	}()
	return err
}

// failure is an error that ends the analysis as failed. The code is for scripts.
type failure struct {
	code   string
	reason string
}

func (e *failure) Error() string { return e.reason }

// The codes of a failure.
const (
	failureUnavailable = "dataset_unavailable" // the directory is missing, empty, or does not answer
	failureViewsDiffer = "views_differ"        // an instance finds files that another does not
	failureMassRemoval = "mass_removal"        // most files are not found
	failureInternal    = "internal"            // rows could not be stored maxFailures times; the log has the errors
)

// unavailable returns a failure with failureUnavailable.
func unavailable(format string, args ...any) error {
	return &failure{failureUnavailable, fmt.Sprintf(format, args...)}
}

// errHangs is the failure of a file system that does not answer.
var errHangs = unavailable("The dataset's directory does not answer.")

// errNotOurs is the error if this instance no longer owns an analysis, or if it has ended.
var errNotOurs = errors.New("the analysis has another owner or has ended")

// oneRow executes a statement that changes an analysis, or returns errNotOurs if it changes none.
func oneRow(ctx context.Context, tx pgx.Tx, doing, query string, args ...any) error {
	n, err := execute(ctx, tx, doing, query, args...)
	if err == nil && n == 0 {
		return errNotOurs
	}
	return err
}

// task is an analysis that this instance has claimed.
type task struct {
	AnalysisID int64
	DatasetID  int64
	Path       string // of the dataset
	About      datasetAbout
	analysisOptions
	Token    string // the fencing token: the claim is void once the row has another
	Known    bool   // the dataset has rows
	Step     string // stepMerge and so on
	Failures int    // attempts that the database refused
	Deaths   int    // of owners

	OthersMaySee    bool // another living instance may see the directory
	OthersHaveLived bool // another instance has lived since the analysis was queued
	OthersLooked    bool // another instance did not find the candidates

	room *atomic.Int64 // lines of lists that may still be stored; an abandoned goroutine may count, too
}

// The steps of an analysis.
const (
	stepMerge  = "merge"  // the directory is compared with the rows
	stepLook   = "look"   // the files of the candidates are looked for
	stepRemove = "remove" // the rows of the candidates go
	stepCheck  = "check"  // the rows are checked

	// With checksums or heights, this step comes before the checks. The contents of files are read.
	stepContents = "contents"
)

// duty says which analyses a worker claims.
type duty string

// The duties of workers. One worker reads contents, which may take days, so that the others are
// free for the other steps. Another takes the analysis with the fewest expected files, so that a
// small dataset need not wait for two large ones. It leaves analyses whose owners died to the first
// worker, so that a process reads no more than one suspect.
const (
	oldestAnalysis   duty = "oldest" // of those with the fewest failures
	smallestAnalysis duty = "smallest"
	onlyContents     duty = "contents"
)

// claim claims an analysis without an owner. If there is none, the id of the task is 0.
func (a *analyzer) claim(ctx context.Context, token string, duty duty) (task, error) {
	const query = `
		UPDATE analyses a
		SET
			state = CASE WHEN a.step = 'check' THEN 'checking' ELSE 'reading' END,
			started_at = coalesce(a.started_at, now()),
			owner = $1,
			owner_token = $2
		FROM datasets d
		WHERE d.id = a.dataset_id AND a.id = (
			SELECT a.id
			FROM analyses a
			WHERE a.finished_at IS NULL
				AND a.owner IS NULL
				AND (a.step = 'contents') = ($3 = 'contents')
				AND ($3 <> 'smallest' OR a.deaths = 0)
				AND ` + mayOwn + `
			ORDER BY a.failures, CASE WHEN $3 = 'smallest' THEN a.expected END, a.id
			LIMIT 1
			FOR UPDATE SKIP LOCKED
		)
		RETURNING
			a.id AS analysis_id,
			a.dataset_id,
			d.path,
			d.about,
			a.force,
			a.checksums,
			a.heights,
			a.owner_token::text AS token,
			a.step,
			a.failures,
			a.deaths,
			array_remove(a.missed_by, $1) <> '{}' AS others_looked,
			$1 <> ALL (a.blind) AND ` + othersSee + ` AS others_may_see,
			EXISTS (
				SELECT
				FROM instances i
				WHERE i.id <> $1 AND greatest(i.live_until, i.seen_at) > a.queued_at
			) AS others_have_lived,
			EXISTS (
				SELECT FROM elevation_dataset_file_meta f WHERE f.dataset_id = a.dataset_id
			) AS known`

	return collectOne[task](ctx, a.db, nil, "claim analysis", query, a.instance, token, duty)
}

// work claims an analysis, does it and settles it. It reports whether there was one. The context of
// the work ends within a second after this instance lost the analysis or the analysis ended.
func (a *analyzer) work(ctx context.Context, duty duty) (worked bool, err error) {
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	token := uuidText(id)
	a.held.Store(token, true)
	defer a.held.Delete(token)

	t, err := a.claim(ctx, token, duty)
	if err != nil { // the claim may have been committed
		a.release(ctx, token, false)
	}

	if t.AnalysisID == 0 {
		return false, err
	}

	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go a.watchOwnership(working, t, cancel)

	if err = a.analyze(working, t); err != nil {
		err = cmp.Or(context.Cause(working), err)
	}

	return true, a.settle(ctx, t, err)
}

// watchOwnership cancels the work on an analysis when this instance no longer owns it.
func (a *analyzer) watchOwnership(ctx context.Context, t task, cancel context.CancelCauseFunc) {
	const query = `
		SELECT EXISTS (
			SELECT
			FROM analyses
			WHERE id = $1 AND owner_token::text = $2 AND finished_at IS NULL
		)`
	for ours := true; ctx.Err() == nil; {
		pause(ctx, idlePoll/2)
		if err := a.db.QueryRow(ctx, query, t.AnalysisID, t.Token).Scan(&ours); err == nil && !ours {
			cancel(errNotOurs)
		}
	}
}

// analyze does what is left of an analysis. An analysis that has failed too often fails. So does
// one whose owners died three times in a row after the merge, unless that was over the heights of a
// file.
func (a *analyzer) analyze(ctx context.Context, t task) (err error) {
	if t.Failures >= maxFailures {
		return &failure{failureInternal, "Rows could not be stored; the log says why."}
	}

	if t.Deaths >= maxDeaths && t.Step == stepContents {
		isNamed, err := a.nameDeadly(ctx, t)
		if err != nil {
			return err
		}
		if isNamed {
			t.Deaths = 0
		}
	}

	if t.Deaths >= maxDeaths && t.Step != stepMerge {
		return &failure{failureInternal, "The program ended three times after it had read the files."}
	}

	// In the merge, a file that ends the program is found after fewer deaths than these.
	if t.Deaths > 3*maxDeaths {
		return &failure{failureInternal, "The program ended ten times while it compared the directory with the rows."}
	}

	// The former owner may have looked long ago, so files may be back.
	if t.Step == stepRemove {
		t.OthersLooked = false
		if _, err := a.lookForAll(ctx, t); err != nil {
			return err
		}
	}

	if t.Step == stepMerge {
		if err := a.merge(ctx, t); err != nil {
			return err
		}
		t.Step = stepLook
	}

	if t.Step == stepLook {
		t.Step, err = a.look(ctx, t)
		if err != nil || t.Step == stepLook { // another instance looks
			return err
		}
	}

	if t.Step == stepRemove {
		if err := a.removeCandidates(ctx, t); err != nil {
			return err
		}
		if t.Checksums || t.Heights { // another worker goes on
			return nil
		}
	}

	if t.Step == stepContents {
		if err := a.readContents(ctx, t); err != nil {
			return err
		}
	}

	return a.check(ctx, t)
}

// check places the rows whose CRS was set since the last checks, runs the checks over all rows,
// stores what they find, and ends the analysis.
func (a *analyzer) check(ctx context.Context, t task) error {
	release, err := a.checking.acquire(ctx, everybody)
	if err != nil {
		return err
	}
	defer release()

	placed, err := a.placeAnew(ctx, t)
	if err != nil {
		return err
	}

	// After an analysis of an unchanged folder, the former results stay.
	isCurrent, err := scalar[bool](ctx, a.db, "look for results", resultsAreCurrent,
		t.DatasetID, t.AnalysisID, checksVersion, placed)
	if err != nil {
		return err
	}

	var found *results
	if !isCurrent {
		if found, err = a.runChecks(ctx, t); err != nil {
			return err
		}
		found.crsVersion = placed
	}

	return a.storeResults(ctx, t, found)
}

// resultsAreCurrent is SQL for whether the checks of analysis $2 would find in dataset $1 what the
// results have: no row was stored or removed since, and no content was read. The expectation, the
// checks and the CRSs that are set ($4) are the same, and neither analysis had a failure or a
// warning. Copies are compared again, because a file that could not be read then may be read now.
const resultsAreCurrent = `
	SELECT EXISTS (
		SELECT
		FROM dataset_results r
		JOIN analyses a ON a.id = $2
			AND NOT a.checks_only
			AND NOT a.checksums
			AND NOT a.heights
			AND a.failure_code IS NULL
			AND a.warnings = '{}'
		WHERE r.dataset_id = $1
			AND r.checks_version = $3
			AND r.crs_version = $4
			AND r.expected_at IS NOT DISTINCT FROM (SELECT updated_at FROM dataset_expectations WHERE dataset_id = $1)
	) AND NOT EXISTS (
		SELECT
		FROM dataset_finding_totals
		WHERE dataset_id = $1 AND code IN ('` + findingNotFound + `', '` + findingNotExamined + `', 'duplicate')
	) AND NOT EXISTS (
		SELECT
		FROM analyses a
		JOIN dataset_results r USING (dataset_id)
		WHERE dataset_id = $1 AND a.id > r.analysis_id AND (a.removed > 0 OR a.bytes_read > 0)
	) AND NOT EXISTS (
		SELECT
		FROM elevation_dataset_file_meta f
		JOIN dataset_results r USING (dataset_id)
		WHERE dataset_id = $1 AND f.read_in > r.analysis_id
	)`

// runChecks returns what the checks find. A panic is a failure. So is any error but one of the
// database, which may pass, or the end of ctx, and so are results that are no JSON.
func (a *analyzer) runChecks(ctx context.Context, t task) (*results, error) {
	d := dataset{ID: t.DatasetID, Path: t.Path}
	found, err := inSnapshot(ctx, a.db, func(ctx context.Context, q querier) (found *results, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("%v", v)
			}
		}()
		return a.catalogue.findResults(ctx, q, d, t.AnalysisID)
	})

	// The database stores no numbers that are infinite or NaN.
	if err == nil {
		_, err = json.Marshal([]any{found.summary, found.picture, found.byStatus})
	}

	mayPass := ctx.Err() != nil || isUnavailable(err) || isRefused(err)
	if err != nil && !mayPass {
		err = &failure{failureInternal, fmt.Sprintf("The checks failed: %v", err)}
	}
	return found, err
}

// storeResults ends an analysis and stores what its checks found; nil keeps the former results. If
// the expectation has changed meanwhile, it queues an analysis that checks again.
func (a *analyzer) storeResults(ctx context.Context, t task, found *results) error {
	const keep = `
		UPDATE dataset_results
		SET
			analysis_id = $2,
			is_first = false,
			risen = '{}',
			analyzed_at = now(),
			checked_at = now()
		WHERE dataset_id = $1`

	return inTransaction(ctx, a.db, func(tx pgx.Tx) error {
		if _, err := execute(ctx, tx, "lift time limit", `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}

		if err := endAnalysis(ctx, tx, t.AnalysisID, t.Token, stateSucceeded, failure{}); err != nil {
			return err
		}

		var err error
		if found == nil {
			_, err = execute(ctx, tx, "keep results", keep, t.DatasetID, t.AnalysisID)
		} else {
			err = found.store(ctx, tx, t.DatasetID)
		}
		if err != nil {
			return err
		}

		if _, err := queueChecks(ctx, tx, "cairn", t.DatasetID, 0); err != nil {
			return err
		}
		return a.announceEnd(ctx, tx, t, "")
	})
}

// settle ends the ownership of an analysis whose work returned err, and returns the error to be
// logged. A failure fails the analysis, except that an instance that does not see the directory
// leaves it to the others. After any other error the analysis is given back.
func (a *analyzer) settle(ctx context.Context, t task, err error) error {
	fail, isFailure := errors.AsType[*failure](err)
	switch {
	case isFailure && fail.code == failureUnavailable && t.OthersMaySee:
		err = a.leaveToOthers(ctx, t, fail.reason)
	case isFailure:
		err = inTransaction(ctx, a.db, func(tx pgx.Tx) error {
			if err := endAnalysis(ctx, tx, t.AnalysisID, t.Token, stateFailed, *fail); err != nil {
				return err
			}
			if _, err := queueChecks(ctx, tx, "cairn", t.DatasetID, t.AnalysisID); err != nil {
				return err
			}
			return a.announceEnd(ctx, tx, t, fail.code)
		})
		if err == nil {
			a.core.log.Warn("analysis failed", "analysis", t.AnalysisID, "reason", fail.reason)
		}
	}

	if errors.Is(err, errNotOurs) {
		return nil
	}
	if err != nil {
		// An outage, or the end of the service, is no failure of the analysis.
		isOutage := isUnavailable(err) || errors.Is(err, context.Canceled)
		hasFailed := ctx.Err() == nil && (isRefused(err) || !isOutage)
		a.release(ctx, t.Token, hasFailed)
	}

	return err
}

// leaveToOthers releases an analysis whose directory this instance does not see, with a warning.
func (a *analyzer) leaveToOthers(ctx context.Context, t task, reason string) error {
	const query = `
		UPDATE analyses
		SET
			owner = NULL,
			owner_token = NULL,
			blind = array_append(blind, $3),
			blind_at = now(),
			warnings = (array_append(warnings, $4))[1:$5]
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	host, _ := os.Hostname() // "" if unknown
	host = strings.ToValidUTF8(host, "?")
	warning := fmt.Sprintf("The instance on %s leaves the work to the others: %s", host, reason)

	a.core.log.Warn("dataset unavailable", "analysis", t.AnalysisID, "reason", reason)
	_, err := execute(ctx, a.db, "leave analysis", query, t.AnalysisID, t.Token, a.instance, warning, maxWarnings)
	return err
}

// isRefused reports whether the database refused a statement, also if it was for the time limit
// (57014), for memory (53200) or for the size of temporary files (53400). An outage is no refusal.
func isRefused(err error) bool {
	said, refused := errors.AsType[*pgconn.PgError](err)
	return refused && (!isUnavailable(err) || slices.Contains([]string{"57014", "53200", "53400"}, said.Code))
}

// release releases the analysis that was claimed with the token, if there is one. With failed it
// counts a failure of it. If the database does not answer, releaseStray releases it later.
func (a *analyzer) release(ctx context.Context, token string, failed bool) {
	const query = `
		UPDATE analyses
		SET
			owner = NULL,
			owner_token = NULL,
			failures = failures + $2::boolean::int
		WHERE owner_token = $1 AND finished_at IS NULL`
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	execute(ctx, a.db, "give analysis back", query, token, failed)
}

// releaseStray gives back the analyses that this instance owns and does not work on. The database
// may commit a claim long after the connection was lost: a commit waits for a synchronous standby.
// run calls it once a second, so an error does no harm.
func (a *analyzer) releaseStray(ctx context.Context) {
	const query = `SELECT owner_token::text AS token FROM analyses WHERE owner = $1 AND finished_at IS NULL`
	owned, _ := collect[struct{ Token string }](ctx, a.db, "list analyses", query, a.instance)
	for _, t := range owned {
		if _, held := a.held.Load(t.Token); !held { // a token is held before it is in the database
			a.release(ctx, t.Token, false)
		}
	}
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
	dir, wrong := a.core.cfg.findDirectory(t.Path)
	if wrong != nil {
		return nil, unavailable("The dataset lies outside the dataset roots of the running service.")
	}

	root, empty, err := dir.openToList()
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

// counters returns how many batches this instance has stored, and how many of its reads wait for a
// stuck file system.
func (a *analyzer) counters() (stored, hung int64) { return a.stored.Load(), a.hung.Load() }
