package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// analysis is one run over a dataset's directory.
type analysis struct {
	ID        int64  `json:"id"`
	DatasetID int64  `json:"dataset_id"`
	State     string `json:"state"`
	analysisOptions
	ChecksOnly     bool `json:"checks_only"` // it skips the directory, and only checks the rows
	analysisCounts `json:"counts"`
	progress       `json:"progress"`
	Warnings       []string   `json:"warnings"`     // what the analysis could not see, and instances that left its work
	FailureCode    *string    `json:"failure_code"` // with state failed
	Failure        *string    `json:"failure"`
	RequestedBy    string     `json:"requested_by"`
	QueuedAt       time.Time  `json:"queued_at"`
	StartedAt      *time.Time `json:"started_at"`
	FinishedAt     *time.Time `json:"finished_at"`
}

// analysisCounts counts files. When an analysis has succeeded, total = added + changed + unchanged.
// Among these, failed counts files whose row is corrupt or unreadable.
type analysisCounts struct {
	Total     int64 `json:"total"` // found in the directory, less those that were gone before they were read
	Added     int64 `json:"added"`
	Changed   int64 `json:"changed"`
	Unchanged int64 `json:"unchanged"`
	Removed   int64 `json:"removed"` // rows whose file is gone
	Failed    int64 `json:"failed"`
}

// progress tells how far an analysis is.
type progress struct {
	Done        int64  `json:"done"`         // files whose row is stored
	Expected    *int64 `json:"expected"`     // files of the last analysis, if there was one; at the end all files
	SecondsLeft *int64 `json:"seconds_left"` // an estimate; null if there is none

	BytesRead     int64  `json:"bytes_read"`     // of contents, for checksums and heights
	BytesExpected *int64 `json:"bytes_expected"` // null before contents are read
}

// The states of an analysis: queued, reading, checking, then one of the last three.
const (
	stateQueued    = "queued"
	stateReading   = "reading"
	stateChecking  = "checking" // the rows are complete
	stateSucceeded = "succeeded"
	stateFailed    = "failed"
	stateCanceled  = "canceled"
)

// analysisColumns is SQL for the columns of an analysis a.
const analysisColumns = `
	a.id,
	a.dataset_id,
	a.state,
	a.force,
	a.checksums,
	a.heights,
	a.checks_only,
	a.bytes_read,
	a.bytes_expected,
	a.total,
	a.added,
	a.changed,
	greatest(a.total - a.added - a.changed, 0) AS unchanged,
	a.removed,
	a.failed,
	a.warnings,
	CASE WHEN a.state = 'failed' THEN a.failure_code END AS failure_code,
	CASE WHEN a.state = 'failed' THEN a.failure END AS failure,
	a.requested_by,
	a.queued_at,
	a.started_at,
	a.finished_at,
	a.total AS done,
	CASE
		WHEN a.finished_at IS NOT NULL THEN a.total
		WHEN a.expected > 0 THEN greatest(a.expected, a.total)
	END AS expected,
	CASE
		WHEN a.state = 'reading' AND a.step = 'contents' THEN (
			extract(epoch FROM now() - a.contents_at)
			* (a.bytes_expected / nullif(a.bytes_read, 0)::float8 - 1)
		)::bigint
		WHEN a.state = 'reading' AND a.expected > 0 THEN (
			extract(epoch FROM now() - a.started_at)
			* (greatest(a.expected, a.total) / nullif(a.total, 0)::float8 - 1)
		)::bigint
	END AS seconds_left`

// analysisPath returns the path of an analysis in the API.
func analysisPath(datasetID, id int64) string {
	return fmt.Sprintf("/api/v1/datasets/%d/analyses/%d", datasetID, id)
}

// createAnalysis answers POST /api/v1/datasets/{id}/analyses; the body may be left out.
func (a *analyzer) createAnalysis(w http.ResponseWriter, r *http.Request) error {
	var in analysisOptions
	if r.ContentLength != 0 || r.Header.Get("Content-Type") != "" {
		if err := decodeJSON(r, &in); err != nil {
			return err
		}
	}

	created, err := createAnalysis(r.Context(), a.core.db, actorOf(r), pathID(r, "id"), in)
	if err != nil {
		return err
	}

	wake(a.queued)
	w.Header().Set("Location", analysisPath(created.DatasetID, created.ID))
	return writeJSON(w, http.StatusAccepted, created)
}

// analysisOptions are the options of an analysis.
type analysisOptions struct {
	Force     bool `json:"force"`     // everything is read again, and any number of rows may go
	Checksums bool `json:"checksums"` // files are compared with lists of checksums
	Heights   bool `json:"heights"`   // the heights of files are read
}

// createAnalysis queues an analysis. If one is running, the error is a 409, but an analysis that
// only checks is canceled: the new one checks, too.
func createAnalysis(ctx context.Context, db *pgxpool.Pool, by actor, datasetID int64, options analysisOptions) (
	a analysis, err error) {
	const query = `
		INSERT INTO analyses AS a (
			dataset_id,
			force,
			checksums,
			heights,
			requested_by,
			expected
		)
		SELECT
			$1,
			$2,
			$3,
			$4,
			$5,
			coalesce((
				SELECT total
				FROM analyses
				WHERE dataset_id = $1 AND state = 'succeeded' AND NOT checks_only
				ORDER BY id DESC
				LIMIT 1
			), 0)
		RETURNING ` + analysisColumns

	const present = `
		SELECT id, checks_only
		FROM analyses
		WHERE dataset_id = $1 AND finished_at IS NULL`

	err = changeDataset(ctx, db, by, datasetID, "analysis.create", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		running, err := collectOne[struct {
			ID         int64
			ChecksOnly bool
		}](ctx, tx, nil, "get running analysis", present, d.ID)
		switch {
		case running.ChecksOnly:
			err = endAnalysis(ctx, tx, running.ID, "", stateCanceled, failure{})
		case running.ID != 0:
			err = &problem{
				status:   http.StatusConflict,
				code:     codeAnalysisRunning,
				location: analysisPath(d.ID, running.ID),
				detail:   "An analysis of this dataset is running. Wait for its end, or cancel it.",
			}
		}
		if err != nil {
			return nil, nil, err
		}

		a, err = collectOne[analysis](ctx, tx, nil, "create analysis", query,
			d.ID, options.Force, options.Checksums, options.Heights, by.name)
		audited := struct {
			ID int64 `json:"id"`
			analysisOptions
		}{a.ID, options}
		return nil, audited, err
	})

	return a, err
}

// listAnalyses answers GET /api/v1/datasets/{id}/analyses, the newest first.
func (a *analyzer) listAnalyses(w http.ResponseWriter, r *http.Request) error {
	d, err := a.catalogue.pathDataset(r)
	if err != nil {
		return err
	}

	key := func(found analysis) []string { return []string{fmt.Sprint(found.ID)} }
	return writeRows(a.core, w, r, []string{lastAnalysisID}, key, "list analyses", analysesBefore, d.ID)
}

// getAnalysis answers GET …/analyses/{analysis}. With wait=30s it first waits up to 30 seconds
// until the state changes or the service stops.
func (a *analyzer) getAnalysis(w http.ResponseWriter, r *http.Request) error {
	wait, err := time.ParseDuration(cmp.Or(r.URL.Query().Get("wait"), "0s"))
	if err != nil {
		return malformed(codeWrongType, "wait must be a duration like 30s.")
	}

	if wait < 0 || wait > maxWait {
		return invalid{{"wait", fieldOutOfRange, "must be from 0s to 60s"}}.err()
	}

	// The slot to wait comes before the first query, so that refusals are cheap.
	if wait > 0 {
		leave, err := a.waits.acquire(r.Context(), principalOf(r).user.ID)
		if errors.Is(err, errBusy) {
			return errTooManyWaiting
		}
		if err != nil {
			return err
		}
		defer leave()
	}

	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(a.core.stopping, cancel)()

	// While it waits, the request holds no connection.
	found, err := a.pathAnalysis(r)
	callerOf(r).slots.leavePool()

	// Most analyses take a moment, so the first looks are close together.
	interval := time.Second / 32
	before := found.State
	for err == nil && ctx.Err() == nil {
		hasChanged := found.State != before || found.FinishedAt != nil
		if hasChanged {
			break
		}

		pause(ctx, interval)
		interval = min(2*interval, time.Second/2)
		err = withPoolSlot(r, quick, func(ctx context.Context) (err error) {
			if err := callerOf(r).authorize(ctx); err != nil {
				return err
			}
			found, err = getAnalysis(ctx, a.core.db, found.DatasetID, found.ID)
			return err
		})
		if errors.Is(err, errBusy) { // the caller's other requests were before it; look again
			err = nil
		}
	}

	return writeEntity(w, found, "", err)
}

// maxWaiting is how many requests of one user may wait in this instance.
const maxWaiting = 16

// errTooManyWaiting is the 429 for one more request than maxWaiting.
var errTooManyWaiting = &problem{
	status:     http.StatusTooManyRequests,
	code:       codeTooManyWaiting,
	detail:     "You have 16 requests waiting for analyses. Wait until one of them is answered.",
	retryAfter: 5 * time.Second,
}

// fileChange is one file that an analysis found added, changed or removed.
type fileChange struct {
	Path   string `json:"path"`
	Change string `json:"change"` // added, changed or removed
}

// listChanges answers GET …/analyses/{analysis}/changes, of all kinds or one, ordered by path.
func (a *analyzer) listChanges(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT path, change
		FROM analysis_changes
		WHERE analysis_id = $1 AND path > $3 AND ($2::text IS NULL OR change = $2)
		ORDER BY path
		LIMIT $4`

	change := optional(r.URL.Query(), "change")
	var v invalid
	v.oneOf("change", change, "added", "changed", "removed")
	if err := v.err(); err != nil {
		return err
	}

	found, err := a.pathAnalysis(r)
	if err != nil {
		return err
	}

	key := func(f fileChange) []string { return []string{f.Path} }
	return writeRows(a.core, w, r, []string{""}, key, "list changes", query, found.ID, change)
}

// cancelAnalysis answers DELETE …/analyses/{analysis}. Rows that have been stored stay.
func (a *analyzer) cancelAnalysis(w http.ResponseWriter, r *http.Request) error {
	found, err := a.pathAnalysis(r)
	if err != nil {
		return err
	}

	err = a.catalogue.changeDataset(r, "analysis.cancel", func(tx pgx.Tx, _ dataset) (_, _ any, err error) {
		id := map[string]int64{"id": found.ID}
		if err := endAnalysis(r.Context(), tx, found.ID, "", stateCanceled, failure{}); err != nil {
			return nil, nil, err
		}
		_, err = queueChecks(r.Context(), tx, "cairn", found.DatasetID, found.ID)
		return id, nil, err
	})
	wake(a.queued)
	if errors.Is(err, errNotOurs) {
		err = nil // it has ended
	}

	return writeDone(w, err)
}

// pathAnalysis returns the analysis that the request's path names, or a 404.
func (a *analyzer) pathAnalysis(r *http.Request) (analysis, error) {
	d, err := a.catalogue.pathDataset(r)
	if err != nil {
		return analysis{}, err
	}

	found, err := getAnalysis(r.Context(), a.core.db, d.ID, pathID(r, "analysis"))
	if problemIn(err) != nil {
		err = d.missingPart("analysis", r.PathValue("analysis"))
	}
	return found, err
}

// getAnalysis returns an analysis of a dataset, or a 404.
func getAnalysis(ctx context.Context, q querier, datasetID, id int64) (analysis, error) {
	const query = `
		SELECT ` + analysisColumns + `
		FROM analyses a
		WHERE a.dataset_id = $1 AND a.id = $2`
	return collectOne[analysis](ctx, q, notFound("analysis", id), "get analysis", query, datasetID, id)
}

// lastAnalysisID is greater than the id of any analysis.
const lastAnalysisID = "9223372036854775807"

// analysesBefore is SQL for $3 analyses of dataset $1 with ids less than $2, the newest first.
const analysesBefore = `
	SELECT ` + analysisColumns + `
	FROM analyses a
	WHERE a.dataset_id = $1 AND a.id < $2::text::bigint
	ORDER BY a.id DESC
	LIMIT $3`

// newestAnalysis returns the newest analysis of a dataset. If there is none, its id is 0.
func newestAnalysis(ctx context.Context, q querier, datasetID int64) (analysis, error) {
	return collectOne[analysis](ctx, q, nil, "get newest analysis", analysesBefore, datasetID, lastAnalysisID, 1)
}

// changeAnalysis runs do in a transaction with the advisory lock of the task's analysis. Such
// transactions share the lock. A takeover, the step to removals, endAnalysis and the removal of a
// dataset take it exclusively. All take it before any row of the analysis, so that they cannot
// deadlock. claim and release change the analysis without the lock, in single statements.
func (a *analyzer) changeAnalysis(ctx context.Context, t task, do func(pgx.Tx) error) error {
	return inTransaction(ctx, a.db, func(tx pgx.Tx) error {
		const lock = `SELECT pg_advisory_xact_lock_shared($1)`
		if _, err := execute(ctx, tx, "lock analysis", lock, lockAnalyses+t.AnalysisID); err != nil {
			return err
		}
		return do(tx)
	})
}

// endAnalysis ends an analysis. With a token it does so for the owner. It returns errNotOurs if the
// analysis has ended already, or the token is stale. Without a new failure, a stored one stays, and
// then the state is failed, not succeeded. It counts the added and the changed files anew, from the
// stored changes. The dataset is locked first, as in changeDataset, so that nothing deadlocks.
func endAnalysis(ctx context.Context, tx pgx.Tx, id int64, token, state string, why failure) error {
	const lock = `
		SELECT
		FROM datasets
		WHERE id = (SELECT dataset_id FROM analyses WHERE id = $1)
		FOR NO KEY UPDATE`

	const query = `
		WITH dropped AS (
			DELETE FROM analysis_candidates WHERE analysis_id = $1
		)
		UPDATE analyses
		SET
			state = CASE WHEN $2 = 'succeeded' AND failure_code IS NOT NULL THEN 'failed' ELSE $2 END,
			failure_code = coalesce(nullif($3, ''), CASE WHEN $2 = 'canceled' THEN NULL ELSE failure_code END),
			failure = coalesce(nullif($4, ''), CASE WHEN $2 = 'canceled' THEN NULL ELSE failure END),
			finished_at = now(),
			(added, changed) = (
				SELECT
					count(*) FILTER (WHERE change = 'added'),
					count(*) FILTER (WHERE change = 'changed')
				FROM analysis_changes
				WHERE analysis_id = $1
			)
		WHERE id = $1
			AND finished_at IS NULL
			AND $5 IN ('', owner_token::text)`

	if _, err := execute(ctx, tx, "lock dataset", lock, id); err != nil {
		return err
	}

	if err := advisoryLock(ctx, tx, lockAnalyses+id); err != nil {
		return err
	}

	return oneRow(ctx, tx, "end analysis", query, id, state, why.code, why.reason, token)
}
