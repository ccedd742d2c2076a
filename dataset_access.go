package main

import (
	"context"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// isVisible is the SQL condition that an actor may see a row of datasets. $1 is the result of
// sightOf for the actor; if it is null, no row is visible. Each statement that looks for datasets
// on behalf of somebody has this condition. A statement about one dataset runs only after one with
// the condition has found that dataset.
const isVisible = `(requires = ANY ($1) OR '*' = ANY ($1))`

// shownTo returns the dataset as the actor may see it: without its directory, unless the actor may
// manage datasets.
func (d dataset) shownTo(by actor) dataset {
	if by.covers([]string{datasetManage}) != nil {
		d.Path = ""
	}
	return d
}

// pathDataset returns the dataset whose id is in the path: see datasetOf.
func (c *catalogue) pathDataset(r *http.Request) (dataset, error) {
	return c.datasetOf(r, pathID(r, "id"))
}

// ofDataset returns a handler that runs do with the dataset in the path.
func (c *catalogue) ofDataset(do func(w http.ResponseWriter, r *http.Request, d dataset) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		d, err := c.pathDataset(r)
		if err != nil {
			return err
		}
		return do(w, r, d)
	}
}

// datasetOf returns the dataset with that id. If there is none, or the caller may not see it, the
// error is the same 404. Long answers end as endWithDataset says.
func (c *catalogue) datasetOf(r *http.Request, id int64) (dataset, error) {
	c.endWithDataset(r, id)
	return c.findDataset(r.Context(), actorOf(r), id)
}

// findDataset returns the dataset with that id, or the 404, if the actor may not see it either.
func (c *catalogue) findDataset(ctx context.Context, by actor, id int64) (dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE ` + isVisible + ` AND id = $2`

	return oneDataset(ctx, c.core.db, notFound("dataset", id), "get dataset", query, sightOf(by), id)
}

// endWithDataset extends the caller's authorize, which ends long answers: that fails once the
// caller may not see the dataset any more.
func (c *catalogue) endWithDataset(r *http.Request, id int64) {
	who := callerOf(r)
	authorize := who.authorize
	who.authorize = func(ctx context.Context) error {
		if who.slots.releasePool == nil {
			if err := who.slots.acquirePool(ctx); err != nil {
				return err
			}
			defer who.slots.leavePool()
		}
		if err := authorize(ctx); err != nil {
			return err
		}
		_, err := c.findDataset(ctx, actorOf(r), id)
		return err
	}
}

// missingPart returns the 404 for a part of the dataset.
func (d dataset) missingPart(kind, name string) error {
	return notFound(kind+" "+name+" of dataset", d.ID)
}

// selectVisible limits a filter to the dataset in the path, and returns that dataset. If the path
// has none, it limits the filter to the datasets that the caller may see. Of these it keeps those
// that match the filter's conditions about datasets. If none is left, the filter selects no file. A
// dataset may say when it was surveyed. For its files that time counts, and not the time of the
// file.
func (c *catalogue) selectVisible(r *http.Request, f *fileFilter) (d dataset, err error) {
	const from = `nullif(about ->> 'surveyed_from', '')::date`
	const until = `nullif(about ->> 'surveyed_until', '')::date`
	const query = `
		WITH selected AS (
			SELECT id, CASE WHEN ` + until + ` IS NOT NULL THEN extract(epoch FROM ` + from + `) * 1e9 END AS survey
			FROM datasets
			WHERE ` + isVisible + `
				AND ($7::bigint[] IS NULL OR id = ANY ($7))
				AND ($8::bigint IS NULL OR id = $8)
				AND ` + datasetMatches + `
				AND ($9::bigint IS NULL OR ` + from + ` IS NULL
					OR coalesce(extract(epoch FROM ` + until + ` + 1) * 1e9 - 1e9 >= $9, true))
				AND ($10::bigint IS NULL OR ` + until + ` IS NULL
					OR coalesce(extract(epoch FROM ` + from + `) * 1e9 <= $10, true))
		)
		SELECT coalesce(array_agg(id), '{}') AS visible,
			array_agg(id ORDER BY id) FILTER (WHERE survey IS NOT NULL) AS surveyed,
			array_agg(survey::float8 ORDER BY id) FILTER (WHERE survey IS NOT NULL) AS surveys
		FROM selected`

	if r.PathValue("id") != "" {
		d, err = c.pathDataset(r)
		if err != nil {
			return d, err
		}
		f.datasetID = &d.ID
	}

	args := append(f.of.args(actorOf(r)), f.datasets, f.datasetID, f.values["since"], f.values["until"])
	found, err := collectOne[struct {
		Visible  []int64
		Surveyed []int64
		Surveys  []float64
	}](r.Context(), c.core.db, nil, "list visible datasets", query, args...)

	f.datasets = found.Visible
	f.surveyed = found.Surveyed
	f.surveys = found.Surveys
	if len(f.datasets) == 0 {
		f.ids = []int64{}
	}
	return d, err
}

// datasetChange changes a dataset. Its objects go into the audit log.
type datasetChange func(tx pgx.Tx, d dataset) (before, after any, err error)

// changeDataset is the function changeDataset for the dataset in the path of a request.
func (c *catalogue) changeDataset(r *http.Request, action string, do datasetChange) error {
	return changeDataset(r.Context(), c.core.db, actorOf(r), pathID(r, "id"), action, do)
}

// changeDataset runs do in a transaction that has locked the dataset, and writes an audit row with
// the objects that do returns, unless both are nil. Until the transaction ends, no other can change
// or delete the dataset or begin an analysis of it. If the actor may not see the dataset, the error
// is the 404 for one that does not exist.
func changeDataset(
	ctx context.Context,
	db *pgxpool.Pool,
	by actor,
	id int64,
	action string,
	do datasetChange,
) error {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE ` + isVisible + ` AND id = $2
		FOR NO KEY UPDATE`

	return inTransaction(ctx, db, func(tx pgx.Tx) error {
		d, err := oneDataset(ctx, tx, notFound("dataset", id), "lock dataset", query, sightOf(by), id)
		if err != nil {
			return err
		}

		before, after, err := do(tx, d)
		isUnchanged := before == nil && after == nil
		if err != nil || isUnchanged {
			return err
		}
		return audit(ctx, tx, by, action, d.target(), before, after)
	})
}

// mayRequire returns nil if the caller may change what a dataset requires, from one permission to
// another; "" is none. By the subset rule the caller must hold both. mayRequire takes lockAccess:
// until the transaction ends, neither permission can be removed. Call it after the dataset is
// locked, and before anything is written. No transaction that holds lockAccess waits for a dataset.
func (c *catalogue) mayRequire(ctx context.Context, tx pgx.Tx, r *http.Request, before, after string) error {
	if before == after {
		return nil
	}

	// A 403 and its audit row name the permission.
	var v invalid
	isName := permissionName.MatchString(after) && len(after) <= maxPermissionName
	v.check(after == "" || isName, "requires", fieldMalformed, "must be the name of a permission, or empty")
	if err := v.err(); err != nil {
		return err
	}

	if err := advisoryLock(ctx, tx, lockAccess); err != nil {
		return err
	}
	by, err := c.accounts.actorNow(ctx, tx, r, datasetManage)
	if err != nil {
		return err
	}

	isEmpty := func(name string) bool { return name == "" }
	named := slices.DeleteFunc([]string{before, after}, isEmpty)
	if err := by.covers(named); err != nil {
		return err
	}

	// Only the operator gets here with an unknown one.
	known, err := knownPermissions(ctx, tx)
	if err != nil {
		return err
	}
	isKnown := after == "" || slices.Contains(known, after)
	v.check(isKnown, "requires", fieldUnknown,
		"there is no such permission: declare it by POST /api/v1/permissions, or on the page Roles")
	return v.err()
}
