package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// checksVersion is stored with results. Raise it when the checks may find something else in the
// same rows: then they run again after the next analysis, even if no file has changed.
const checksVersion = 4

// results holds all that the checks found in the rows of a dataset. It is stored when an analysis
// ends.
type results struct {
	analysisID int64
	expectedAt *time.Time // when the expectation was last changed; nil: never
	crsVersion int        // datasets.crs_version with which the rows were placed
	summary    resultSummary
	findings   []findingRow
	totals     map[findingKey]int64 // by code and folder
	picture    *coverage
	byStatus   *coverage // the same picture in other colours
}

// resultSummary says what is in a dataset, apart from the findings.
type resultSummary struct {
	Files    int64          `json:"files"`
	Placed   int64          `json:"placed"` // located files
	Bytes    int64          `json:"bytes"`
	Covered  float64        `json:"covered_km2"` // see fileSet.covered
	Grids    []tileGrid     `json:"grids"`
	Contents []contentCount `json:"contents"`
	Expected []expectedLine `json:"expected"`

	Checksums   *checksumCounts `json:"checksums"`    // null: they were never compared
	NotExamined []string        `json:"not_examined"` // sentences
}

// findingRow is a row of dataset_findings, before it is stored.
type findingRow struct {
	code   string
	path   string
	folder string
	detail string
	tile   *missingTile
}

// findingKey is the code of findings, with a path or a folder.
type findingKey struct {
	code string
	name string
}

// findResults runs the checks over the rows of a dataset after an analysis.
func (c *catalogue) findResults(ctx context.Context, q querier, d dataset, analysisID int64) (*results, error) {
	s, err := d.examine(ctx, q)
	if err != nil {
		return nil, err
	}

	if err := s.compareCopies(ctx, q, comparison{catalogue: c, here: d, there: d}); err != nil {
		return nil, err
	}

	located, bytes := s.count()
	r := &results{
		analysisID: analysisID,
		expectedAt: s.expected.UpdatedAt,
		totals:     map[findingKey]int64{},
		summary: resultSummary{
			Files:    int64(len(s.files)),
			Placed:   located,
			Bytes:    bytes,
			Covered:  s.covered(),
			Grids:    s.grids,
			Contents: s.contents(),
			Expected: s.lines,

			NotExamined: s.heightsNotExamined(),
		},
	}

	for _, kind := range findingKinds() {
		if list := s.flaws[kind.code]; list != nil {
			if err := r.add(ctx, q, s, kind.code, list); err != nil {
				return nil, err
			}
		}
	}

	r.addMissing()

	// The picture needs much memory, too.
	for i := range s.grids {
		s.grids[i].files = nil
		s.grids[i].cells = nil
		s.grids[i].runs = nil
	}

	if err := r.addNotFound(ctx, q); err != nil {
		return nil, err
	}

	if err := r.addNotExamined(ctx, q); err != nil {
		return nil, err
	}

	if err := r.draw(ctx, q, d); err != nil {
		return nil, err
	}

	return r, r.addChecksums(ctx, q, d.ID) // last, because it changes how queries are planned
}

// draw draws the picture of the whole dataset twice: by pixel size and by status.
func (r *results) draw(ctx context.Context, q querier, d dataset) (err error) {
	if r.picture, err = frameCoverage(ctx, q, d, coverage{}); err != nil {
		return err
	}

	r.byStatus = new(*r.picture)
	r.byStatus.byStatus = true

	if err := r.picture.draw(ctx, q, r.summary.Grids); err != nil {
		return err
	}

	r.byStatus.cells = r.picture.cells
	return r.byStatus.draw(ctx, q, r.summary.Grids)
}

// add adds the findings of a kind, and their numbers in each folder.
func (r *results) add(ctx context.Context, q querier, s *fileSet, code string, list *flawList) error {
	// Read the rows of the files with findings, and of one file of each folder.
	var wanted []int32
	for _, folder := range list.folders {
		wanted = append(wanted, folder.file)
	}

	for _, f := range list.first {
		wanted = append(wanted, f.file, f.other)
	}

	rows, err := s.rowsOf(ctx, q, code, wanted)
	if err != nil {
		return err
	}

	for _, f := range list.first {
		r.findings = append(r.findings, s.describe(code, f, rows))
	}

	// The findings of the whole dataset count with those of its top folder.
	for _, f := range list.folders {
		one := flaw{file: f.file, other: noFile}
		folder := s.describe(code, one, rows).folder
		r.totals[findingKey{code, folder}] += f.total
	}

	return nil
}

// addMissing adds the first missing tiles, and their number in each grid. Their folder is the CRS.
func (r *results) addMissing() {
	isTaken := map[string]bool{}
	for i := range r.summary.Grids {
		g := &r.summary.Grids[i]
		if g.Missing > 0 {
			r.totals[findingKey{findingMissing, g.CRS}] += g.Missing
		}

		for tile := range g.missing() {
			if len(isTaken) == maxFlaws {
				break
			}

			if isTaken[tile.Name] { // another grid has a cell there, or the numbers are rounded
				tile.Name += fmt.Sprintf(", grid %d, column %d, row %d", i+1, tile.Column, tile.Row)
			}

			isTaken[tile.Name] = true
			r.findings = append(r.findings, findingRow{
				code:   findingMissing,
				path:   tile.Name,
				folder: g.CRS,
				detail: tile.String(),
				tile:   &tile,
			})
		}
	}
}

// addNotFound adds the known files that the analysis did not find, if there are too many to be
// removed. An analysis that only checks has looked for no file; it keeps the former findings.
func (r *results) addNotFound(ctx context.Context, q querier) error {
	const first = `
		SELECT
			path,
			path AS place,
			'the analysis did not find it; its row is kept' AS detail
		FROM analysis_candidates
		WHERE analysis_id = $1
		UNION ALL
		SELECT
			f.path,
			f.path,
			f.detail
		FROM analyses a
		JOIN dataset_findings f ON f.dataset_id = a.dataset_id AND f.code = '` + findingNotFound + `'
		WHERE a.id = $1 AND a.checks_only
		ORDER BY path
		LIMIT $2`

	const count = `
		SELECT
			coalesce(nullif(regexp_replace(path, '/?[^/]*$', ''), ''), '.') AS folder,
			count(*) AS total
		FROM analysis_candidates
		WHERE analysis_id = $1
		GROUP BY folder
		UNION ALL
		SELECT f.folder, f.total
		FROM analyses a
		JOIN dataset_finding_totals f ON f.dataset_id = a.dataset_id AND f.code = '` + findingNotFound + `'
		WHERE a.id = $1 AND a.checks_only`

	return r.addFiles(ctx, q, findingNotFound, first, count, r.analysisID)
}

// addFiles adds the findings that the query first returns, and their number in each folder, which
// the query count returns. A finding counts in the folder of place. The parameters are id and, for
// first, maxFlaws.
func (r *results) addFiles(ctx context.Context, q querier, code, first, count string, id int64) error {
	found, err := collect[struct{ Path, Place, Detail string }](ctx, q, "list "+code, first, id, maxFlaws)
	if err != nil {
		return err
	}

	for _, f := range found {
		r.findings = append(r.findings, findingRow{
			code:   code,
			path:   f.Path,
			folder: path.Dir(f.Place),
			detail: f.Detail,
		})
	}

	totals, err := collect[struct {
		Folder string
		Total  int64
	}](ctx, q, "count "+code, count, id)
	for _, t := range totals {
		r.totals[findingKey{code, t.Folder}] += t.Total
	}

	return err
}

// addNotExamined adds the directories that the analysis could not examine, as its warnings say. An
// analysis that only checks has looked at no directory. Then the warnings of the last one that has
// are used.
func (r *results) addNotExamined(ctx context.Context, q querier) error {
	const walked = `
		WITH walked AS (
			SELECT b.warnings
			FROM analyses own
			JOIN analyses b ON b.dataset_id = own.dataset_id AND NOT b.checks_only AND b.state <> 'canceled'
			WHERE own.id = $1
			ORDER BY b.id DESC
			LIMIT 1
		), directories AS (
			SELECT
				left(part[1], 600) AS path,
				min(part[2]) AS detail
			FROM
				walked,
				unnest(warnings) w,
				regexp_match(w, '^(.*/): (.*)$') part
			WHERE part IS NOT NULL
			GROUP BY 1
		)`

	const first = walked + `
		SELECT
			path,
			'.' AS place,
			detail
		FROM directories
		ORDER BY path
		LIMIT $2`

	const count = walked + `
		SELECT
			'.' AS folder,
			count(*) AS total
		FROM directories
		HAVING count(*) > 0`

	const isFull = walked + `
		SELECT EXISTS (
			SELECT FROM walked, directories WHERE cardinality(warnings) >= $2
		)`

	mayBeMore, err := scalar[bool](ctx, q, "count warnings", isFull, r.analysisID, maxWarnings)
	if mayBeMore {
		more := fmt.Sprintf("More directories may not have been examined: an analysis keeps %d warnings.", maxWarnings)
		r.summary.NotExamined = append(r.summary.NotExamined, more)
	}
	if err != nil {
		return err
	}

	return r.addFiles(ctx, q, findingNotExamined, first, count, r.analysisID)
}

// storeSummary replaces the row of a dataset's results.
func (r *results) storeSummary(ctx context.Context, tx pgx.Tx, datasetID int64) error {
	const replace = `
		INSERT INTO dataset_results (
			dataset_id,
			analysis_id,
			is_first,
			expected_at,
			analyzed_at,
			summary,
			picture,
			picture_by_status,
			checks_version,
			crs_version
		)
		SELECT
			$1,
			id,
			true,
			$6::timestamptz,
			CASE WHEN checks_only THEN (
				SELECT coalesce(max(finished_at), now())
				FROM analyses
				WHERE dataset_id = $1 AND state = 'succeeded' AND NOT checks_only
			) ELSE now() END,
			$3,
			$4,
			$5,
			$7,
			$8
		FROM analyses
		WHERE id = $2
		ON CONFLICT (dataset_id) DO UPDATE
		SET
			analysis_id = excluded.analysis_id,
			is_first = false,
			expected_at = excluded.expected_at,
			analyzed_at = excluded.analyzed_at,
			checks_version = excluded.checks_version,
			crs_version = excluded.crs_version,
			checked_at = now(),
			summary = excluded.summary,
			picture = excluded.picture,
			picture_by_status = excluded.picture_by_status`

	_, err := execute(ctx, tx, "store results", replace,
		datasetID, r.analysisID, r.summary, r.picture, r.byStatus, r.expectedAt, checksVersion, r.crsVersion)
	return err
}

// formerFinding is a finding of the results before.
type formerFinding struct {
	Code      string
	Path      string
	FirstSeen int64
}

// store replaces the results of a dataset. A finding that was there before keeps its first_seen.
func (r *results) store(ctx context.Context, tx pgx.Tx, datasetID int64) error {
	const remove = `
		WITH gaps AS (
			DELETE FROM dataset_gaps WHERE dataset_id = $1
		), totals AS (
			DELETE FROM dataset_finding_totals WHERE dataset_id = $1
		)
		DELETE FROM dataset_findings
		WHERE dataset_id = $1
		RETURNING code, path, first_seen`

	if err := r.storeSummary(ctx, tx, datasetID); err != nil {
		return err
	}

	formerCounts, err := scalar[json.RawMessage](ctx, tx, "count former findings", countsByCode, datasetID)
	if err != nil {
		return err
	}

	former, err := collect[formerFinding](ctx, tx, "remove former findings", remove, datasetID)
	if err != nil {
		return err
	}

	firstSeen := map[findingKey]int64{} // by code and path
	for _, f := range former {
		firstSeen[findingKey{f.Code, f.Path}] = f.FirstSeen
	}

	var findings, totals, gaps [][]any
	for _, f := range r.findings {
		first := cmp.Or(firstSeen[findingKey{f.code, f.path}], r.analysisID)
		findings = append(findings, []any{
			datasetID,
			f.code,
			f.path,
			f.folder,
			f.detail,
			f.tile,
			first,
		})
	}

	for of, total := range r.totals {
		totals = append(totals, []any{datasetID, of.code, of.name, total})
	}

	for i, g := range r.summary.Grids {
		for _, run := range g.gaps {
			gaps = append(gaps, []any{
				datasetID,
				i,
				run.Row,
				run.From,
				run.To,
			})
		}
	}

	err = copyRows(ctx, tx, "dataset_findings", findings, "code", "path", "folder", "detail", "tile", "first_seen")
	if err != nil {
		return err
	}

	if err := copyRows(ctx, tx, "dataset_finding_totals", totals, "code", "folder", "total"); err != nil {
		return err
	}

	if err := copyRows(ctx, tx, "dataset_gaps", gaps, "grid", "row", "first_column", "last_column"); err != nil {
		return err
	}

	if err := flagAccepted(ctx, tx, datasetID); err != nil {
		return err
	}

	_, err = execute(ctx, tx, "store rises", storeRises, datasetID, formerCounts, maxFlaws)
	return err
}

// countsByCode is SQL for a JSON object: for each code, how many findings dataset $1 has, and how
// many of them are not accepted.
const countsByCode = `
	SELECT coalesce(jsonb_object_agg(code, jsonb_build_object('total', total, 'open', open)), '{}')
	FROM (
		SELECT
			code,
			sum(total) AS total,
			sum(total - accepted) AS open
		FROM dataset_finding_totals
		WHERE dataset_id = $1
		GROUP BY code
	) counted`

// storeRises is SQL that stores, for each code that had or has more than $3 findings, how many more
// there are now than in $2, an object of countsByCode. Accepted findings do not count. If 50 of
// 10,060 findings go and 51 come, the rise is 1.
const storeRises = `
	UPDATE dataset_results
	SET risen = (
		SELECT coalesce(jsonb_object_agg(code, greatest(0, least(total - former_total, open - former_open))), '{}')
		FROM (
			SELECT
				now.key AS code,
				(now.value -> 'total')::bigint AS total,
				(now.value -> 'open')::bigint AS open,
				coalesce(($2::jsonb -> now.key -> 'total')::bigint, 0) AS former_total,
				coalesce(($2::jsonb -> now.key -> 'open')::bigint, 0) AS former_open
			FROM jsonb_each((` + countsByCode + `)) now
		) compared
		WHERE greatest(total, former_total) > $3
	)
	WHERE dataset_id = $1`

// findingCount counts the findings of a code.
type findingCount struct {
	Code     string
	Total    int64
	Accepted int64
	New      *int64 // not accepted, and not found by the analysis before; nil if there was none
}

// countFindings counts the findings of the last results of a dataset, for each code that has any.
// If a code has or had more than maxFlaws findings, the stored ones do not tell how many are new.
// Then New is the rise that storeRises has stored.
func countFindings(ctx context.Context, q querier, datasetID int64) (map[string]findingCount, error) {
	const query = `
		SELECT
			t.code,
			sum(t.total)::bigint AS total,
			sum(t.accepted)::bigint AS accepted,
			CASE
				WHEN r.is_first THEN NULL
				WHEN r.risen ? t.code THEN least((r.risen ->> t.code)::bigint, sum(t.total - t.accepted)::bigint)
				ELSE (
					SELECT count(*)
					FROM dataset_findings f
					WHERE f.dataset_id = $1
						AND f.code = t.code
						AND f.first_seen = r.analysis_id
						AND NOT f.is_accepted
				)
			END AS new
		FROM dataset_results r
		JOIN dataset_finding_totals t ON t.dataset_id = r.dataset_id
		WHERE r.dataset_id = $1
		GROUP BY r.dataset_id, t.code`

	found, err := collect[findingCount](ctx, q, "count findings", query, datasetID)
	byCode := map[string]findingCount{}
	for _, f := range found {
		byCode[f.Code] = f
	}
	return byCode, err
}

// copyRows stores rows in a table. Their columns are dataset_id and the named ones.
func copyRows(ctx context.Context, tx pgx.Tx, table string, rows [][]any, columns ...string) error {
	columns = append([]string{"dataset_id"}, columns...)
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromRows(rows)); err != nil {
		return fmt.Errorf("store %s: %w", table, err)
	}
	return nil
}

// acceptedPatterns is the beginning of SQL about the accepted findings of dataset $1. Their paths
// mean what flagAccepted says. accepted has a row for each, patterns only those for several paths.
const acceptedPatterns = `
	WITH given AS MATERIALIZED (
		SELECT
			code,
			path,
			regexp_replace(path, '([\\%_])', '\\\1', 'g') AS escaped,
			path LIKE '%/' AS is_folder,
			length(path) - length(replace(path, '*', '')) BETWEEN 1 AND 4 AS has_asterisks
		FROM accepted_findings
		WHERE dataset_id = $1
	), accepted AS MATERIALIZED (
		SELECT
			code,
			path,
			CASE WHEN has_asterisks THEN replace(escaped, '*', '%') ELSE escaped END
				|| CASE WHEN is_folder THEN '%' ELSE '' END AS pattern,
			path IS NULL OR (is_folder OR has_asterisks) AND NOT EXISTS (
				SELECT FROM dataset_findings f WHERE f.dataset_id = $1 AND f.code = g.code AND f.path = g.path
			) AS is_pattern
		FROM given g
	), patterns AS MATERIALIZED (
		SELECT
			code,
			coalesce(pattern, '%') AS pattern
		FROM accepted
		WHERE is_pattern
	)`

// flagAccepted sets which findings of a dataset are accepted. An accepted path is that of one
// finding. If it ends with a slash, it stands for all in that folder. Up to four asterisks in it
// stand for any characters; with more, the path is meant as it is written, because such patterns
// take long. A path of a stored finding means only that finding. Findings that are not stored are
// accepted with their folder, or with all of their code.
func flagAccepted(ctx context.Context, tx pgx.Tx, datasetID int64) error {
	const flag = acceptedPatterns + `, now_accepted AS MATERIALIZED (
			SELECT code, path FROM accepted WHERE NOT is_pattern
			UNION
			SELECT f.code, f.path
			FROM dataset_findings f
			JOIN patterns p ON p.code = f.code AND f.path LIKE p.pattern
			WHERE f.dataset_id = $1
		)
		UPDATE dataset_findings f
		SET is_accepted = NOT is_accepted
		WHERE dataset_id = $1 AND is_accepted <> ((code, path) IN (SELECT code, path FROM now_accepted))`

	const count = acceptedPatterns + `, counted AS MATERIALIZED (
			SELECT
				code,
				folder,
				count(*) AS n
			FROM dataset_findings
			WHERE dataset_id = $1 AND is_accepted
			GROUP BY code, folder
		), whole AS MATERIALIZED (
			SELECT DISTINCT t.code, t.folder
			FROM dataset_finding_totals t
			JOIN patterns p ON p.code = t.code AND (
				p.pattern = '%'
				OR t.code NOT IN ('` + findingMissing + `', '` + findingMixed + `')
				AND t.folder <> '.'
				AND t.folder || '/' LIKE p.pattern
			)
			WHERE t.dataset_id = $1
		)
		UPDATE dataset_finding_totals t
		SET accepted = new.n
		FROM (
			SELECT code, folder, max(n) AS n
			FROM (
				SELECT code, folder, n FROM counted
				UNION ALL
				SELECT
					code,
					folder,
					CASE WHEN (code, folder) IN (SELECT code, folder FROM whole) THEN total ELSE 0 END
				FROM dataset_finding_totals
				WHERE dataset_id = $1
			) both_numbers
			GROUP BY code, folder
		) new
		WHERE t.dataset_id = $1 AND t.code = new.code AND t.folder = new.folder AND t.accepted <> new.n`

	if _, err := execute(ctx, tx, "flag accepted findings", flag, datasetID); err != nil {
		return err
	}

	_, err := execute(ctx, tx, "count accepted findings", count, datasetID)
	return err
}

// storedGrids returns the grids of the last results of a dataset, with their gaps.
func (d dataset) storedGrids(ctx context.Context, q querier) ([]tileGrid, error) {
	const query = `
		SELECT
			grid,
			row,
			first_column AS "from",
			last_column AS "to"
		FROM dataset_gaps
		WHERE dataset_id = $1
		ORDER BY grid, row, first_column`

	const missing = `
		SELECT tile
		FROM dataset_findings
		WHERE dataset_id = $1 AND code = '` + findingMissing + `'`

	stored, err := collect[struct{ Summary resultSummary }](ctx, q, "get results",
		`SELECT summary FROM dataset_results WHERE dataset_id = $1`, d.ID)
	if err != nil || len(stored) == 0 {
		return nil, err
	}

	gaps, err := collect[struct {
		Grid int
		cellRun
	}](ctx, q, "list gaps", query, d.ID)
	if err != nil {
		return nil, err
	}

	tiles, err := collect[struct{ Tile missingTile }](ctx, q, "list missing tiles", missing, d.ID)
	grids := stored[0].Summary.Grids
	for i := range grids {
		grids[i].index = i
		grids[i].named = map[cellRun]missingTile{}
	}

	for _, row := range tiles {
		grids[row.Tile.Grid].setNamed(row.Tile)
	}

	for _, gap := range gaps {
		g := &grids[gap.Grid]
		g.gaps = append(g.gaps, gap.cellRun)
	}

	return grids, err
}

// resultOverview is a verdict, with the numbers of the findings that nobody has accepted and of the
// files that were checked.
type resultOverview struct {
	Verdict   string     `json:"verdict"`
	Files     int64      `json:"files"`
	Bytes     int64      `json:"bytes"` // of these files
	Errors    int64      `json:"errors"`
	Warnings  int64      `json:"warnings"`
	Notes     int64      `json:"notes"`
	CheckedAt *time.Time `json:"checked_at"` // null: never
}

// Counts returns the numbers of findings by severity, such as "2 errors, 1 note".
func (o resultOverview) Counts() string {
	var texts []string
	add := func(n int64, severity string) {
		if n > 0 {
			texts = append(texts, plural(n, severity))
		}
	}
	add(o.Errors, severe)
	add(o.Warnings, warning)
	add(o.Notes, note)
	return strings.Join(texts, ", ")
}

// Verdicts.
const (
	notChecked     = "not_checked"
	hasFindings    = "findings"
	nothingLocated = "nothing_located" // no file is located, so that nothing was checked
	hasNoFindings  = "no_findings"
)

// overviews returns the overviews of datasets, by id. Findings do not count if their code is not in
// kindsOfFindings any more.
func overviews(ctx context.Context, q querier, ids []int64) (map[int64]resultOverview, error) {
	const query = `
		SELECT
			id,
			CASE
				WHEN r.dataset_id IS NULL THEN '` + notChecked + `'
				WHEN count(t.code) > 0 THEN '` + hasFindings + `'
				WHEN (r.summary -> 'placed')::bigint = 0 THEN '` + nothingLocated + `'
				ELSE '` + hasNoFindings + `'
			END AS verdict,
			coalesce((r.summary -> 'files')::bigint, 0) AS files,
			coalesce((r.summary -> 'bytes')::bigint, 0) AS bytes,
			coalesce(sum(t.n) FILTER (WHERE t.severity = '` + severe + `'), 0)::bigint AS errors,
			coalesce(sum(t.n) FILTER (WHERE t.severity = '` + warning + `'), 0)::bigint AS warnings,
			coalesce(sum(t.n) FILTER (WHERE t.severity = '` + note + `'), 0)::bigint AS notes,
			r.checked_at
		FROM unnest($1::bigint[]) AS ids (id)
		LEFT JOIN dataset_results r ON r.dataset_id = id
		LEFT JOIN (
			SELECT
				dataset_id,
				code,
				severity,
				total - accepted AS n
			FROM dataset_finding_totals
			JOIN jsonb_each_text($2) AS kinds (code, severity) USING (code)
			WHERE total > accepted
		) t ON t.dataset_id = r.dataset_id
		GROUP BY id, r.dataset_id`

	found, err := collect[struct {
		ID int64
		resultOverview
	}](ctx, q, "count findings", query, ids, severities())

	all := map[int64]resultOverview{}
	for _, f := range found {
		all[f.ID] = f.resultOverview
	}

	return all, err
}
