package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// catalogue is the component of datasets and their files.
type catalogue struct {
	core      *core
	accounts  *accounts
	fileCalls *limiter // calls of the file system for the contents of one dataset, and of all
}

// newCatalogue returns the catalogue.
func newCatalogue(core *core, accounts *accounts) *catalogue {
	return &catalogue{
		core:      core,
		accounts:  accounts,
		fileCalls: newLimiter(maxFileCalls, maxAllFileCalls),
	}
}

// dataset is a directory of elevation files.
type dataset struct {
	ID          int64        `json:"id"`
	Name        string       `json:"name"`
	Path        string       `json:"path,omitzero"` // relative to the first dataset root, else absolute; see shownTo
	Description string       `json:"description"`
	About       datasetAbout `json:"about"`
	Requires    string       `json:"requires"` // the permission needed to see it, besides dataset.read; "": none
	Notify      string       `json:"notify"`   // see announceEnd
	CreatedAt   time.Time    `json:"created_at"`
	UpdatedAt   time.Time    `json:"updated_at"`
}

// datasetColumns are the columns of a dataset, in the table datasets.
const datasetColumns = `id, name, path, description, about, requires, notify, created_at, updated_at`

// datasetDetails is a dataset with totals of its files and its newest analysis.
type datasetDetails struct {
	dataset
	Files      map[string]int64 `json:"files"` // files by status, and "total"
	TotalBytes int64            `json:"total_bytes"`
	BBox       []float64        `json:"bbox"` // of all files; null if none has one
	Analysis   *analysis        `json:"analysis"`
	Report     resultOverview   `json:"report"`
}

// datasetItem is a dataset in a list.
type datasetItem struct {
	dataset
	Report resultOverview `json:"report"`
}

// datasetFilter selects the datasets that meet every condition that is set.
type datasetFilter struct {
	name          *string
	part          *string // a pattern for a part of the name, title or description
	keyword       *string // a pattern for a whole keyword
	surveyedFrom  *string // the survey ended on this day or later
	surveyedUntil *string // the survey began on this day or before
}

// datasetMatches is SQL for whether a row of datasets meets the conditions. The parameters $1 to $6
// are the result of datasetFilter.args. Days compare as text. A dataset that does not say when it
// was surveyed does not match a day.
const datasetMatches = `
	($2::text IS NULL OR name = $2)
	AND ($3::text IS NULL OR concat_ws(E'\n', name, about ->> 'title', description) ~ $3)
	AND ($4::text IS NULL OR EXISTS (
		SELECT
		FROM jsonb_array_elements_text(about -> 'keywords') keyword
		WHERE keyword ~ $4
	))
	AND ($5::text IS NULL OR nullif(about ->> 'surveyed_until', '') >= $5)
	AND ($6::text IS NULL OR nullif(about ->> 'surveyed_from', '') <= $6)`

// args returns the parameters $1 to $6 of a statement with isVisible and datasetMatches.
func (f datasetFilter) args(by actor) []any {
	return []any{
		sightOf(by),
		f.name,
		f.part,
		f.keyword,
		f.surveyedFrom,
		f.surveyedUntil,
	}
}

// readDatasetFilter reads the conditions about keywords and the survey from the query. It notes in
// v if one is malformed.
func readDatasetFilter(v *invalid, query url.Values) datasetFilter {
	f := datasetFilter{
		keyword:       v.pattern(query, "keyword"),
		surveyedFrom:  optional(query, "surveyed_from"),
		surveyedUntil: optional(query, "surveyed_until"),
	}
	if f.keyword != nil {
		f.keyword = new("^" + *f.keyword + "$")
	}

	for _, name := range [...]string{"surveyed_from", "surveyed_until"} {
		_, err := time.Parse(time.DateOnly, query.Get(name))
		v.check(err == nil || !query.Has(name), name, fieldMalformed, "must be a day such as 2026-01-31")
	}
	return f
}

// listDatasets answers GET /api/v1/datasets, ordered by name.
func (c *catalogue) listDatasets(w http.ResponseWriter, r *http.Request) error {
	by := actorOf(r)
	query := r.URL.Query()

	var v invalid
	f := readDatasetFilter(&v, query)
	f.name = optional(query, "name")
	f.part = v.pattern(query, "q")
	if err := v.err(); err != nil {
		return err
	}

	list := func(after []string, limit int) ([]datasetItem, error) {
		datasets, err := listDatasets(r.Context(), c.core.db, by, f, after[0], limit)
		if err != nil {
			return nil, err
		}

		var ids []int64
		for _, d := range datasets {
			ids = append(ids, d.ID)
		}
		reports, err := overviews(r.Context(), c.core.db, ids)

		items := []datasetItem{}
		for _, d := range datasets {
			items = append(items, datasetItem{d.shownTo(by), reports[d.ID]})
		}
		return items, err
	}
	key := func(d datasetItem) []string {
		return []string{d.Name}
	}

	return writeList(c.core, w, r, []string{""}, list, key)
}

// listDatasets returns the datasets that the actor may see and that match the filter, with names
// after a given one, ordered by name.
func listDatasets(
	ctx context.Context,
	q querier,
	by actor,
	f datasetFilter,
	after string,
	limit int,
) ([]dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE ` + isVisible + ` AND name > $7 AND ` + datasetMatches + `
		ORDER BY name
		LIMIT $8`
	args := append(f.args(by), after, limit)
	return collect[dataset](ctx, q, "list datasets", query, args...)
}

// datasetRequest is the body of POST /api/v1/datasets.
type datasetRequest struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	Description string `json:"description"`
	Requires    string `json:"requires"`
}

// createDataset answers POST /api/v1/datasets. The directory must exist below a dataset root. If
// the file system does not answer within 5 s, the error is that of fileUnavailable. The abandoned
// call keeps one of its root's 64 slots until it returns.
func (c *catalogue) createDataset(w http.ResponseWriter, r *http.Request, in datasetRequest) error {
	const query = `
		INSERT INTO datasets (
			name,
			path,
			description,
			requires
		)
		VALUES ($1, $2, $3, $4)
		RETURNING ` + datasetColumns

	var v invalid
	checkDatasetTexts(&v, &in.Name, &in.Description)
	dir, wrong := c.core.cfg.findDirectory(in.Path)
	if err := append(v, wrong...).err(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(r.Context(), slow.timeout()/2)
	defer cancel()
	err := c.askFileSystem(ctx, dir.root, dir.check, nil)
	if err != nil {
		return err
	}

	var d dataset
	err = inTransaction(r.Context(), c.core.db, func(tx pgx.Tx) error {
		if err := c.mayRequire(r.Context(), tx, r, "", in.Requires); err != nil {
			return err
		}

		d, err = oneDataset(
			r.Context(), tx, nil, "create dataset",
			query, in.Name, dir.stored, in.Description, in.Requires,
		)
		if err != nil {
			return err
		}
		return audit(r.Context(), tx, actorOf(r), "dataset.create", d.target(), nil, d)
	})
	location := fmt.Sprint("/api/v1/datasets/", d.ID)
	return writeCreated(w, d, location, err)
}

// check returns a 422 if the directory cannot be listed.
func (d datasetDirectory) check() error {
	opened, _, err := d.openToList()
	if err == nil {
		opened.Close()
		return nil
	}

	var v invalid
	switch {
	case errors.Is(err, os.ErrNotExist):
		v.check(false, "path", fieldNotFound, "there is no such directory")
	case isEscape(err):
		v.check(false, "path", fieldOutsideRoot, "a symbolic link leads out of the dataset root")
	default:
		v.check(false, "path", fieldNotADirectory, "cannot be opened as a directory: "+reasonOf(err))
	}
	return v.err()
}

// checkDatasetTexts notes what is wrong with a dataset's name and description. Nil is not checked.
func checkDatasetTexts(v *invalid, name, description *string) {
	if name != nil {
		isTrimmed := strings.TrimSpace(*name) == *name
		v.check(
			isLine(*name, 1, 100) && isTrimmed,
			"name", fieldMalformed,
			"must be one line of 1 to 100 characters without blanks at either end",
		)
	}

	if description != nil {
		v.check(
			*description == "" || isText(*description, 4000),
			"description", fieldMalformed,
			"must be text of at most 4,000 characters, without control characters other than tab and newline, "+
				"and without those that change the direction of text",
		)
	}
}

// getDataset answers GET /api/v1/datasets/{id}.
func (c *catalogue) getDataset(w http.ResponseWriter, r *http.Request, d dataset) error {
	// The tag is of what is shown: it must not tell the directory.
	shown := d.shownTo(actorOf(r))
	details, err := summarizeDataset(r.Context(), c.core.db, shown)
	return writeEntity(w, details, tagOf(shown), err)
}

// datasetChangeRequest is the body of PATCH /api/v1/datasets/{id}. Nil is no change.
type datasetChangeRequest struct {
	Name        *string         `json:"name"`
	Description *string         `json:"description"`
	About       json.RawMessage `json:"about"` // see datasetAbout.changedBy
	Requires    *string         `json:"requires"`
	Notify      *string         `json:"notify"`
}

// updateDataset answers PATCH /api/v1/datasets/{id}, which changes all but the directory. With
// If-Match, it changes only what the caller has read. If the change sets other CRSs, it queues an
// analysis that places the files.
func (c *catalogue) updateDataset(w http.ResponseWriter, r *http.Request, in datasetChangeRequest) error {
	const query = `
		UPDATE datasets
		SET name = $2,
			description = $3,
			requires = $4,
			about = $5,
			crs_version = crs_version + $6::boolean::integer,
			notify = $7,
			updated_at = now()
		WHERE id = $1
		RETURNING ` + datasetColumns

	var v invalid
	checkDatasetTexts(&v, in.Name, in.Description)
	v.oneOf("notify", in.Notify, notifyNone, notifyDraft, notifyPublish)
	if err := v.err(); err != nil {
		return err
	}

	ctx := r.Context()
	by := actorOf(r)
	var after dataset
	err := c.changeDataset(r, "dataset.update", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		if err := checkMatch(r.Header["If-Match"], tagOf(d)); err != nil {
			return nil, nil, err
		}

		after = d
		if in.About != nil {
			after.About, err = d.About.changedBy(in.About)
			if err != nil {
				return nil, nil, err
			}
		}
		after.Name = valueOr(in.Name, d.Name)
		after.Description = valueOr(in.Description, d.Description)
		after.Requires = valueOr(in.Requires, d.Requires)
		after.Notify = valueOr(in.Notify, d.Notify)
		if isSame(d, after) {
			return nil, nil, nil
		}

		if err := c.mayRequire(ctx, tx, r, d.Requires, after.Requires); err != nil {
			return nil, nil, err
		}

		// The setting outlives the permission of whoever makes it, as an announcement does.
		beginsToPublish := after.Notify == notifyPublish && d.Notify != notifyPublish
		if beginsToPublish {
			if err := by.covers([]string{adminSystemMessage}); err != nil {
				return nil, nil, err
			}
		}

		isPlacedAnew := !isSame(d.About.setCRSs, after.About.setCRSs)
		after, err = oneDataset(
			ctx, tx, nil, "update dataset",
			query, d.ID, after.Name, after.Description, after.Requires, after.About, isPlacedAnew, after.Notify,
		)
		if err == nil && isPlacedAnew {
			_, err = queueChecks(ctx, tx, by.name, d.ID, 0)
		}
		return d, after, err
	})
	return writeEntity(w, after, tagOf(after), err)
}

// deleteDataset answers DELETE /api/v1/datasets/{id}: it deletes the rows of a dataset. The files
// stay.
func (c *catalogue) deleteDataset(w http.ResponseWriter, r *http.Request) error {
	const lock = `
		SELECT pg_advisory_xact_lock($2::bigint + id)
		FROM analyses
		WHERE dataset_id = $1 AND finished_at IS NULL`

	ctx := r.Context()
	return writeDone(w, c.changeDataset(r, "dataset.delete", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		// Wait for the batches that are being stored.
		_, err = execute(ctx, tx, "lock analysis", lock, d.ID, lockAnalyses)
		if err != nil {
			return nil, nil, err
		}

		_, err = execute(ctx, tx, "delete dataset", `DELETE FROM datasets WHERE id = $1`, d.ID)
		return d, nil, err
	}))
}

// datasetDirectory is where a dataset's files are.
type datasetDirectory struct {
	root   string // the dataset root
	below  string // the path below the root
	stored string // the path in datasets.path
}

// findDirectory finds the dataset root above a path, or returns what is wrong with the path. It
// looks at the text alone: os.Root makes sure later that no symbolic link leads out of the root.
func (c config) findDirectory(path string) (datasetDirectory, invalid) {
	outside := invalid{{"path", fieldOutsideRoot, "lies outside the dataset roots"}}

	hasLength := path != "" && len(path) <= 1024
	isUTF8 := utf8.ValidString(path)
	if !hasLength || !isUTF8 || strings.ContainsRune(path, 0) {
		return datasetDirectory{}, invalid{{
			"path",
			fieldMalformed,
			"must be the path of a directory, of at most 1,024 bytes",
		}}
	}

	if !filepath.IsAbs(path) {
		if !filepath.IsLocal(path) {
			return datasetDirectory{}, outside
		}
		path = filepath.Join(c.datasetRoots[0], path)
	}

	for i, root := range c.datasetRoots {
		below, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(below) {
			continue
		}

		// A path below the first root is stored as a relative one.
		stored := filepath.Join(root, below)
		if i == 0 && below != "." {
			stored = below
		}
		return datasetDirectory{root, below, stored}, nil
	}
	return datasetDirectory{}, outside
}

// rootFile returns the path of the file with the first dataset root of the last start.
func (c config) rootFile() string {
	return filepath.Join(c.stateDir, "dataset-root")
}

// adoptRoot makes the service's first dataset root the only one, if keepRoot has stored one.
func (c *config) adoptRoot() {
	root, err := c.readRoot()
	if err == nil && len(root) > 0 {
		c.datasetRoots = []string{string(root)}
	}
}

// readRoot reads the file with the first dataset root. It opens neither a link nor a named pipe:
// the service's user owns the directory and could put one there for root, who reads the file too.
func (c config) readRoot() ([]byte, error) {
	content, _, err := readRegular(c.rootFile(), syscall.O_NOFOLLOW, 4096)
	return content, err
}

// keepRoot stores the first dataset root in the state directory. If another one is stored there and
// datasets have relative paths, it returns an error: those paths would name other directories. If
// the former root no longer exists, it accepts the new one: the files may have moved.
func (c config) keepRoot(ctx context.Context, q querier) error {
	const query = `
		SELECT count(*)
		FROM datasets
		WHERE path NOT LIKE '/%'`

	relative, err := scalar[int64](ctx, q, "look for relative paths", query)
	if err != nil {
		return err
	}

	name := c.rootFile()
	root := c.datasetRoots[0]
	content, err := c.readRoot()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the last dataset root: %w", err)
	}

	before := string(content)
	if before == root {
		return nil
	}
	if relative > 0 && isThere(before) {
		return fmt.Errorf(
			"the paths of %s are relative to %s, the first of CAIRN_DATASETS_DIR at the last start: "+
				"set it to %[2]s:%s, or remove %s if the files have moved",
			plural(relative, "dataset"), before, root, name,
		)
	}

	if err := removeIfThere(name); err != nil {
		return err
	}
	return writeNewFile(name, []byte(root))
}

// isThere reports whether there is a file of that name.
func isThere(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// open opens the dataset's directory. Nothing outside the dataset root can be reached through dir.
func (d datasetDirectory) open() (dir *os.Root, err error) {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	// With the slash, only a directory is opened: opening a named pipe would wait without end.
	return root.OpenRoot(d.below + "/")
}

// openToList opens the dataset's directory and reports whether it is empty. A directory that cannot
// be listed is an error.
func (d datasetDirectory) openToList() (dir *os.Root, empty bool, err error) {
	dir, err = d.open()
	if err != nil {
		return nil, false, err
	}

	empty, err = isEmpty(dir, ".")
	if err != nil {
		dir.Close()
		return nil, false, err
	}
	return dir, empty, nil
}

// oneDataset returns the dataset of a query, or the error missing. A taken name or path is a 409.
func oneDataset(
	ctx context.Context,
	q querier,
	missing error,
	doing, query string,
	args ...any,
) (dataset, error) {
	d, err := collectOne[dataset](ctx, q, missing, doing, query, args...)

	switch {
	case isUniqueViolation(err, "datasets_name_key"):
		err = conflict(codeNameTaken, "Another dataset has that name.")
	case isUniqueViolation(err, "datasets_path_key"):
		err = conflict(codePathTaken, "Another dataset has that directory.")
	}

	return d, err
}

// target returns the dataset as the audit log names it.
func (d dataset) target() string {
	return "dataset:" + d.Name
}

// overallBox has two ranges of longitudes around all files: the longitudes as they are, and those
// with files that begin west of 0° moved 360° east. narrowerRange picks one. All fields are nil
// without files.
type overallBox struct {
	West       *float64
	East       *float64
	TurnedWest *float64
	TurnedEast *float64
	South      *float64
	North      *float64
}

// overallColumns is SQL for the columns of an overallBox, of files f.
const overallColumns = `
	min(f.bbox[1]) AS west,
	max(` + fileEast + `) AS east,
	min(f.bbox[1] + ` + fileTurn + `) AS turned_west,
	max(` + fileEast + ` + ` + fileTurn + `) AS turned_east,
	min(f.bbox[2]) AS south,
	max(f.bbox[4]) AS north`

// bounds returns west, south, east and north, or nil without files.
func (b overallBox) bounds() []float64 {
	if b.West == nil {
		return nil
	}

	west, east := narrowerRange(*b.West, *b.East, *b.TurnedWest, *b.TurnedEast)
	return []float64{
		west,
		*b.South,
		east,
		*b.North,
	}
}

// summarizeDataset returns the dataset with the totals of its files. Only files with status ok have
// a box.
func summarizeDataset(ctx context.Context, q querier, d dataset) (datasetDetails, error) {
	const query = `
		WITH kinds AS (
			SELECT f.status,
				count(*) AS n,
				sum(f.size_bytes) AS size,` + overallColumns + `
			FROM elevation_dataset_file_meta f
			WHERE f.dataset_id = $1
			GROUP BY f.status
		)
		SELECT
			jsonb_object_agg(status, coalesce(n, 0)) || jsonb_build_object('total', coalesce(sum(n), 0)) AS files,
			least(coalesce(sum(size), 0), 1e18)::bigint AS total_bytes,
			min(west) AS west,
			max(east) AS east,
			min(turned_west) AS turned_west,
			max(turned_east) AS turned_east,
			min(south) AS south,
			max(north) AS north
		FROM unnest($2::text[]) AS s (status)
		LEFT JOIN kinds USING (status)`

	files, err := collectOne[struct {
		Files      map[string]int64
		TotalBytes int64
		overallBox
	}](ctx, q, nil, "summarize files", query, d.ID, fileStatuses())
	if err != nil {
		return datasetDetails{}, err
	}

	details := datasetDetails{
		dataset:    d,
		Files:      files.Files,
		TotalBytes: files.TotalBytes,
		BBox:       files.bounds(),
	}
	newest, err := newestAnalysis(ctx, q, d.ID)
	if err != nil {
		return details, err
	}
	if newest.ID != 0 {
		details.Analysis = &newest
	}

	reports, err := overviews(ctx, q, []int64{d.ID})
	details.Report = reports[d.ID]
	return details, err
}
