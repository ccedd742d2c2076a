package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// folderReport lists the faults of a dataset's files, found in their rows alone, the worst first.
type folderReport struct {
	DatasetID   int64           `json:"dataset_id"`
	Dataset     string          `json:"dataset"`
	AnalyzedAt  *time.Time      `json:"analyzed_at"` // null: it never was, and there is nothing to report
	Failure     *string         `json:"failure"`     // why the last analysis failed; null: it did not
	Summary     string          `json:"summary"`     // one line
	Files       int64           `json:"files"`
	Placed      int64           `json:"placed"` // located files
	Grids       []tileGrid      `json:"grids"`
	Contents    []contentCount  `json:"contents"`
	Findings    []finding       `json:"findings"`
	Accepted    []acceptedCount `json:"accepted"`
	NotExamined []string        `json:"not_examined"`
}

// contentCount says how many rasters have which values of an attribute, such as the CRS.
type contentCount struct {
	Attribute string `json:"attribute"`
	Values    string `json:"values"`
}

// finding is a kind of fault, with the first files or missing tiles that nobody has accepted.
type finding struct {
	Code     string        `json:"code"`
	Severity string        `json:"severity"`
	Detail   string        `json:"detail"`
	Total    int64         `json:"total"`
	All      string        `json:"all"` // where they are listed; for missing tiles, with the accepted ones
	Files    []findingFile `json:"files"`
	Tiles    []missingTile `json:"tiles,omitempty"`
}

// acceptedCount is how many findings of a code were accepted.
type acceptedCount struct {
	Code  string `json:"code"`
	Total int64  `json:"total"`
}

// findingFile is a file with a fault. The path of a mixed folder is that of the folder, "." for the
// dataset's own.
type findingFile struct {
	Path   string `json:"path"`
	Detail string `json:"detail"`
}

// maxFindingFiles is how many files or tiles a finding names.
const maxFindingFiles = 20

// errFindings is returned for a report with findings, and if no file was located. It means exit
// status 3.
var errFindings = errors.New("the report has findings")

// heavyQuery runs read in a snapshot for the dataset in the path of a request. read may go through
// all its rows. It frees the slot of the pool, because the answer may still have to be computed.
func heavyQuery[T any](c *catalogue, r *http.Request, read func(dataset, context.Context, querier) (T, error)) (
	d dataset, result T, err error) {
	defer callerOf(r).slots.leavePool()
	if d, err = c.pathDataset(r); err != nil {
		return d, result, err
	}
	result, err = inSnapshot(r.Context(), c.core.db, func(ctx context.Context, q querier) (T, error) {
		return read(d, ctx, q)
	})
	return d, result, err
}

// inSnapshot runs read in one snapshot of the database. Only ctx limits the time of its statements.
func inSnapshot[T any](ctx context.Context, db *pgxpool.Pool, read func(context.Context, querier) (T, error)) (
	result T, err error) {
	const begin = `BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL statement_timeout = 0`
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		result, err = read(ctx, tx)
		return err
	})
	return result, err
}

// getReport answers GET /api/v1/datasets/{id}/report in JSON, or as text for Accept: text/plain.
func (c *catalogue) getReport(w http.ResponseWriter, r *http.Request) error {
	_, report, err := heavyQuery(c, r, dataset.report)
	if err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	if !strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
		return writeJSON(w, http.StatusOK, report)
	}
	var text bytes.Buffer
	report.print(&text)
	return writeBytes(w, http.StatusOK, "text/plain; charset=utf-8", text.Bytes())
}

// getGaps answers GET /api/v1/datasets/{id}/gaps.geojson with the missing tiles.
func (c *catalogue) getGaps(w http.ResponseWriter, r *http.Request) error {
	d, grids, err := heavyQuery(c, r, dataset.grids)
	if err != nil {
		return err
	}
	return writeGaps(w, r, d, grids)
}

// writeGaps answers with the missing tiles of a dataset's grids.
func writeGaps(w http.ResponseWriter, r *http.Request, d dataset, grids []tileGrid) error {
	return writeFeatures(w, r, d.Name, func(emit func(object) error) error {
		for _, g := range grids {
			for tile := range g.missing() {
				if err := r.Context().Err(); err != nil {
					return err
				}
				if m := tile.file(); m.BBox != nil { // else its CRS cannot be converted to degrees
					if err := emit(featureOf(m, tile)); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// isClean reports whether there is no finding and at least one file is located.
func (report *folderReport) isClean() bool { return len(report.Findings) == 0 && report.Placed > 0 }

// print writes the report as text for a terminal: the verdict in two lines, the second for scripts,
// the findings, what is there, and what was not examined.
func (report folderReport) print(w io.Writer) {
	fmt.Fprintln(w, report.Summary)
	if report.AnalyzedAt == nil {
		fmt.Fprintf(w, "no report: dataset %s; start an analysis first\n", report.Dataset)
		return
	}

	w = terminalWriter{w}
	found := "no findings"
	if n := len(report.Findings); n > 0 {
		found = plural(int64(n), "finding")
	} else if !report.isClean() {
		found = "no file located"
	}
	fmt.Fprintf(w, "%s: dataset %s, %s, analysed %s\n", found, report.Dataset, plural(report.Files, "file"),
		report.AnalyzedAt.UTC().Format("2006-01-02 15:04 UTC"))

	severity := ""
	for _, f := range report.Findings {
		if f.Severity != severity {
			severity = f.Severity
			fmt.Fprintf(w, "\n%s\n", strings.ToUpper(severity+"s"))
		}
		f.print(w)
	}
	report.printContents(w)

	fmt.Fprintln(w)
	for _, text := range report.NotExamined {
		fmt.Fprintln(w, text)
	}
}

// print writes a finding with its first files or tiles.
func (f finding) print(w io.Writer) {
	clean := func(text string) string { return strings.ReplaceAll(text, "\n", " ") }
	fmt.Fprintf(w, "\n%s: %s (%d)\n", f.Code, f.Detail, f.Total)
	for _, file := range f.Files {
		fmt.Fprintf(w, "  %s: %s\n", clean(file.Path), clean(file.Detail))
	}
	for _, tile := range f.Tiles {
		unit := unitOfCRS(tile.CRS)
		fmt.Fprint(w, "  ")
		if tile.Expected != "" {
			fmt.Fprintf(w, "%s: ", clean(tile.Expected))
		}
		fmt.Fprintf(w, "from %.8g%s, %.8g%s to %.8g%s, %.8g%s",
			tile.MinX, unit, tile.MinY, unit, tile.MaxX, unit, tile.MaxY, unit)
		if tile.There != "" {
			fmt.Fprintf(w, "; the file of this name: %s", clean(tile.There))
		}
		fmt.Fprintln(w)
	}
	if rest := f.Total - int64(len(f.Files)+len(f.Tiles)); rest > 0 {
		fmt.Fprintf(w, "  and %d more: %s\n", rest, f.All)
	}
}

// printContents writes what is there: grids, the values of attributes, and what was accepted.
func (report folderReport) printContents(w io.Writer) {
	if len(report.Contents) > 0 {
		fmt.Fprintln(w)
	}
	for _, g := range report.Grids {
		unit := unitOfCRS(g.CRS)
		fmt.Fprintf(w, "grid: %s of %s, %.7g%s by %.7g%s from %.8g%s, %.8g%s, pixels of %.4g%s by %.4g%s\n",
			plural(g.Tiles, "tile"), cmp.Or(g.CRS, "no CRS"), g.East, unit, g.North, unit, g.X, unit, g.Y, unit,
			g.DX, unit, g.DY, unit)
	}
	for _, c := range report.Contents {
		fmt.Fprintf(w, "%s: %s\n", c.Attribute, c.Values)
	}
	for _, a := range report.Accepted {
		fmt.Fprintf(w, "accepted: %s (%d)\n", a.Code, a.Total)
	}
}

// plural returns a number of things: "1 file", "2 files".
func plural(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.FormatInt(n, 10) + " " + thing
}

// unitOfCRS returns the unit of a CRS's coordinates, as written after a number. It is empty where
// the registry does not know the CRS, and for rare units.
func unitOfCRS(name string) string {
	crs, err := crsByText(name)
	switch isDegrees := crs.method == 0; {
	case err != nil:
	case isDegrees && crs.unit == 1:
		return "°"
	case !isDegrees && crs.unit == 1:
		return " m"
	case !isDegrees && math.Abs(crs.unit-0.3048) < 1e-5:
		return " ft"
	}
	return ""
}

// report looks for every kind of fault in the dataset's rows.
func (d dataset) report(ctx context.Context, q querier) (report folderReport, err error) {
	report = folderReport{DatasetID: d.ID, Dataset: d.Name, Summary: "never analysed", Grids: []tileGrid{},
		Contents: []contentCount{}, Findings: []finding{}, Accepted: []acceptedCount{}, NotExamined: []string{}}
	const analyzed = `
		SELECT max(finished_at) FILTER (WHERE state = 'succeeded'), (array_agg(failure ORDER BY finished_at DESC))[1]
		FROM analyses
		WHERE dataset_id = $1 AND finished_at IS NOT NULL`
	if err := q.QueryRow(ctx, analyzed, d.ID).Scan(&report.AnalyzedAt, &report.Failure); err != nil {
		return report, fmt.Errorf("find the last analysis: %w", err)
	}

	if report.AnalyzedAt != nil {
		s, err := d.examine(ctx, q)
		if err != nil {
			return report, err
		}
		report.Grids = s.grids
		report.Contents = s.contents()
		report.Files = int64(len(s.files))
		report.Placed = s.located()
		report.NotExamined = []string{"Heights were not examined."}
		if err := report.addFindings(ctx, q, s); err != nil {
			return report, err
		}
		report.summarize(s)
	}
	if report.Failure != nil {
		report.Summary = "the last analysis failed: " + *report.Failure + " Before it: " + report.Summary
	}
	return report, nil
}

// addFindings adds the findings of each kind, the worst first, and the numbers of accepted ones.
func (report *folderReport) addFindings(ctx context.Context, q querier, s *fileSet) error {
	for _, kind := range findingKinds() {
		list := s.flaws[kind.code]
		if list == nil {
			continue
		}
		if list.accepted > 0 {
			report.Accepted = append(report.Accepted, acceptedCount{kind.code, list.accepted})
		}
		if list.total == 0 {
			continue
		}

		f := finding{Code: kind.code, Severity: kind.severity, Detail: kind.detail, Total: list.total}
		f.All = fmt.Sprintf("/api/v1/datasets/%d/findings/%s", report.DatasetID, kind.code)
		f.Tiles = list.tiles
		if kind.code == findingMissing {
			f.All = fmt.Sprintf("/api/v1/datasets/%d/gaps.geojson", report.DatasetID)
		}
		var err error
		if f.Files, err = s.list(ctx, q, kind.code, maxFindingFiles); err != nil {
			return err
		}
		report.Findings = append(report.Findings, f)
	}
	return nil
}

// summarize sets the summary: how many files are located, how many findings of each kind there are,
// accepted ones included, and how many other files.
func (report *folderReport) summarize(s *fileSet) {
	report.Summary = fmt.Sprintf("%d of %s located", report.Placed, plural(report.Files, "file"))
	if report.Files == 0 {
		report.Summary = "no files in the directory"
	}
	others := report.Files - report.Placed
	for _, kind := range findingKinds() {
		list := s.flaws[kind.code]
		if list == nil {
			continue
		}
		n := list.total + list.accepted
		text := fmt.Sprintf("%d %s", n, kind.short)
		if isNoun := strings.HasSuffix(kind.short, "tile"); isNoun {
			text = plural(n, kind.short)
		}
		report.Summary += "; " + text
		if kind.isUnlocated {
			others -= n
		}
	}
	if others > 0 {
		report.Summary += "; " + plural(others, "other file")
	}
}

// examine reads the rows of the dataset, in one statement, and runs the checks.
func (d dataset) examine(ctx context.Context, q querier) (*fileSet, error) {
	const (
		countRows = `SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1`
		query     = `
		SELECT id, path, size_bytes, modified_ns, status, coalesce(format, ''), coalesce(crs, crs_name, ''),
			coalesce(crs_definition, ''), coalesce(vertical_crs, ''), coalesce(sample_type, ''), coalesce(nodata, ''),
			coalesce(bands::text, ''), native_bbox IS NOT NULL AND transform IS NOT NULL,
			coalesce(transform[1], 0), coalesce(transform[2], 0), coalesce(transform[4], 0), coalesce(transform[5], 0),
			coalesce(native_bbox[1], 0), coalesce(native_bbox[2], 0), coalesce(native_bbox[3], 0),
			coalesce(native_bbox[4], 0),
			cardinality(warnings),
			CASE
				WHEN warnings = '{}' THEN 0
				ELSE (SELECT count(*) FROM unnest(warnings) warning WHERE warning LIKE 'its name says%')
			END
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
		ORDER BY path`
		acceptedKeys = `SELECT code, coalesce(path, '') AS path FROM accepted_findings WHERE dataset_id = $1`
	)
	n, err := scalar[int64](ctx, q, "count files", countRows, d.ID)
	if err != nil {
		return nil, err
	}
	s := newFileSet(n)
	accepted, err := collect[acceptedKey](ctx, q, "list accepted findings", acceptedKeys, d.ID)
	if err != nil {
		return nil, err
	}
	for _, a := range accepted {
		s.accept(a)
	}

	var f fileRow
	rows, _ := q.Query(ctx, query, d.ID) // its error comes back from ForEachRow
	_, err = pgx.ForEachRow(rows, []any{&f.id, &f.path, &f.size, &f.modified, &f.status, &f.format, &f.crs,
		&f.definition, &f.vertical, &f.sampleType, &f.nodata, &f.bands, &f.hasBox,
		&f.transform[0], &f.transform[1], &f.transform[3], &f.transform[4],
		&f.box[0], &f.box[1], &f.box[2], &f.box[3],
		&f.warnings, &f.nameWarnings},
		func() error {
			s.add(f)
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read files: %w", err)
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	if err := s.nameMissing(ctx, q, d.ID); err != nil {
		return nil, err
	}
	s.listMissing()
	return s, nil
}

// grids returns the grids with the most tiles, and their gaps.
func (d dataset) grids(ctx context.Context, q querier) ([]tileGrid, error) {
	s, err := d.examine(ctx, q)
	if err != nil {
		return nil, err
	}
	return s.grids, nil
}

// list returns the first findings of a code that nobody has accepted, by path.
func (s *fileSet) list(ctx context.Context, q querier, code string, limit int) ([]findingFile, error) {
	files := []findingFile{}
	list := s.flaws[code]
	if list == nil {
		return files, nil
	}

	slices.SortStableFunc(list.first, func(a, b flaw) int { return cmp.Compare(a.file, b.file) })
	first := list.first[:min(len(list.first), limit)]
	var wanted []int32
	for _, f := range first {
		wanted = append(wanted, f.file, f.other)
	}
	rows, err := s.rowsOf(ctx, q, wanted)

	for _, f := range first {
		files = append(files, s.describe(code, f, rows))
	}
	// Folders are in another order than their files.
	slices.SortFunc(files, func(a, b findingFile) int { return cmp.Compare(a.Path, b.Path) })
	return files, err
}

// rowsOf reads the rows of files, by id. noFile is no file.
func (s *fileSet) rowsOf(ctx context.Context, q querier, files []int32) (map[int64]flawRow, error) {
	const query = `
		SELECT id, path, coalesce(reason, status) AS reason, warnings
		FROM elevation_dataset_file_meta
		WHERE id = ANY($1::bigint[])`
	var ids []int64
	for _, file := range files {
		if file != noFile {
			ids = append(ids, s.files[file].id)
		}
	}
	rows, err := collect[flawRow](ctx, q, "read the files of findings", query, ids)
	byID := map[int64]flawRow{}
	for _, row := range rows {
		byID[row.ID] = row
	}
	return byID, err
}

// flawRow is what a finding shows of a row.
type flawRow struct {
	ID       int64
	Path     string
	Reason   string
	Warnings []string
}

// describe returns a finding with its text. rows has the rows of its files.
func (s *fileSet) describe(code string, f flaw, rows map[int64]flawRow) findingFile {
	if f.file == noFile {
		return findingFile{".", f.detail}
	}
	row := rows[s.files[f.file].id]
	if code == findingMixed {
		return findingFile{path.Dir(row.Path), f.detail}
	}
	if f.detail != "" {
		if f.other != noFile {
			f.detail += rows[s.files[f.other].id].Path
		}
		return findingFile{row.Path, f.detail}
	}

	var texts []string
	if s.kinds[s.files[f.file].kind].status != fileStatusOK && code != "name" {
		texts = append(texts, row.Reason)
	}
	for _, warning := range row.Warnings {
		if isAboutName := strings.HasPrefix(warning, "its name says"); isAboutName == (code == "name") {
			texts = append(texts, warning)
		}
	}
	return findingFile{row.Path, strings.Join(texts, "; ")}
}

// nameMissing gives the first missing tiles the paths that the names of their neighbours suggest,
// and says what is wrong with the file that has such a path.
func (s *fileSet) nameMissing(ctx context.Context, q querier, datasetID int64) error {
	const present = `
		SELECT path, status, coalesce(crs, crs_name, '') AS crs, coalesce(abs(transform[5]), 0) AS pixel
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY($2::text[])`
	wanted := s.neighboursOfMissing()
	var neighbours []int32
	for _, tile := range wanted {
		neighbours = append(neighbours, tile.neighbour)
	}
	rows, err := s.rowsOf(ctx, q, neighbours)
	if err != nil {
		return err
	}

	var expected []string
	for i, tile := range wanted {
		r := s.files[tile.neighbour]
		wanted[i].path = s.rules[r.pattern].rename(rows[r.id].Path, tile.east, tile.north)
		expected = append(expected, wanted[i].path)
	}
	files, err := collect[presentFile](ctx, q, "look for missing tiles by name", present, datasetID, expected)
	there := map[string]presentFile{}
	for _, f := range files {
		there[f.Path] = f
	}
	for _, tile := range wanted {
		named := namedTile{expected: tile.path}
		if f, found := there[tile.path]; found {
			named.there = f.fault(tile.grid)
		}
		tile.grid.named[tile.at] = named
	}
	return err
}

// presentFile is a file that has the path of a missing tile.
type presentFile struct {
	Path, Status, CRS string
	Pixel             float64
}

// fault says why the file does not fill its cell.
func (f presentFile) fault(g *tileGrid) string {
	switch {
	case f.Status == fileStatusCorrupt, f.Status == fileStatusUnreadable:
		return "it is " + f.Status
	case f.Status != fileStatusOK:
		return "it has no georeference or CRS"
	case f.CRS != g.CRS:
		return "it is in " + titleOfCode(f.CRS)
	case math.Abs(f.Pixel-g.DY) > g.DY*1e-5:
		return "its pixels are of " + posting(f.Pixel, f.Pixel) + unitOfCRS(g.CRS)
	}
	return "it lies elsewhere"
}

// file returns the missing tile as a file of one pixel. It has no BBox if its CRS is unknown.
func (tile missingTile) file() ElevationDatasetFileMeta {
	m := ElevationDatasetFileMeta{extent: extent{CRS: &tile.CRS, Width: new(int64(1)), Height: new(int64(1)),
		Transform: []float64{tile.MaxX - tile.MinX, 0, tile.MinX, 0, tile.MinY - tile.MaxY, tile.MaxY}}}
	if tile.definition != "" {
		m.CRS, m.CRSDefinition = nil, &tile.definition
	}
	if crs, _, ok := m.knownCRS(); ok {
		if box, err := boxInDegrees(&crs, [6]float64(m.Transform), 1, 1); err == nil {
			m.BBox = box.bounds[:]
		}
	}
	return m
}
