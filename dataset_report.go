package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// folderReport lists the faults of a dataset's files, found in their rows alone, the worst first.
type folderReport struct {
	DatasetID  int64           `json:"dataset_id"`
	Dataset    string          `json:"dataset"`
	AnalyzedAt *time.Time      `json:"analyzed_at"` // null: it never was, and there is nothing to report
	Failure    *string         `json:"failure"`     // why the last analysis failed; null: it did not
	Summary    string          `json:"summary"`     // one line
	Files      int64           `json:"files"`
	Placed     int64           `json:"placed"`
	Grids      []tileGrid      `json:"grids"`
	Findings   []finding       `json:"findings"`
	Accepted   []acceptedCount `json:"accepted"`
}

// tileGrid is the grid of the tiles of one CRS and pixel size, a cell for each step between tiles.
type tileGrid struct {
	CRS     string  `json:"crs"`
	Tiles   int64   `json:"tiles"`
	DX      float64 `json:"pixel_width"`
	DY      float64 `json:"pixel_height"`
	X       float64 `json:"origin_x"`
	Y       float64 `json:"origin_y"`
	East    float64 `json:"step_x"`
	North   float64 `json:"step_y"`
	Missing int64   `json:"missing" db:"-"`

	Definition string `json:"-"` // of a CRS without a code, as a row has it; empty: unknown
	gaps       []cellRun
}

// cellRun is a run of cells in one row of a grid, from one column to another, both included.
type cellRun struct{ Row, From, To int64 }

// finding is a kind of fault, with the first files or missing tiles that nobody has accepted.
type finding struct {
	Code   string        `json:"code"`
	Detail string        `json:"detail"`
	Total  int64         `json:"total"`
	All    string        `json:"all"` // where they are listed; for missing tiles, with the accepted ones
	Files  []findingFile `json:"files"`
	Tiles  []missingTile `json:"tiles,omitempty"`
}

// acceptedCount is how many findings of a code were accepted.
type acceptedCount struct {
	Code  string `json:"code"`
	Total int64  `json:"total"`
}

// findingFile is a file with a fault.
type findingFile struct {
	Path   string `json:"path"`
	Detail string `json:"detail"`
}

// missingTile is the place of a missing tile. Name identifies it in an accepted finding.
type missingTile struct {
	Name   string  `json:"name"`
	CRS    string  `json:"crs"`
	Column int64   `json:"column"`
	Row    int64   `json:"row"`
	MinX   float64 `json:"min_x"`
	MinY   float64 `json:"min_y"`
	MaxX   float64 `json:"max_x"`
	MaxY   float64 `json:"max_y"`

	definition string // as in tileGrid
}

// reportSQL holds the queries of the report.
//
//go:embed dataset_report.sql
var reportSQL string

// reportQuery returns the query of that name. In it :findings stands for the query named findings.
func reportQuery(name, findings string) string {
	section := func(name string) string {
		_, text, _ := strings.Cut(reportSQL, "-- query "+name+"\n")
		text, _, _ = strings.Cut(text, "-- query ")
		return text
	}
	query := section(name)
	for _, part := range [...][2]string{{":findings", findings}, {":accepted", "accepted"},
		{":grid_tiles", "grid_tiles"}, {":tiles", "tiles"}} {
		query = strings.ReplaceAll(query, part[0], section(part[1]))
	}
	return query
}

// maxFindingFiles is how many files or tiles a finding names.
const maxFindingFiles = 20

// errFindings is returned for a report with findings. It means exit status 3.
var errFindings = errors.New("the report has findings")

// heavyQuery runs read in a snapshot for the dataset in the path of a request. read may go through
// all its rows. Before the answer is sent, it frees the slot of the pool: the client may be slow.
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

// print writes the report as text for a terminal: the summary, a line for scripts, the findings.
func (report folderReport) print(w io.Writer) {
	fmt.Fprintln(w, report.Summary)
	if report.AnalyzedAt == nil {
		fmt.Fprintf(w, "no report: dataset %s; start an analysis first\n", report.Dataset)
		return
	}
	found := "no findings"
	if n := len(report.Findings); n > 0 {
		found = plural(int64(n), "finding")
	}
	w = terminalWriter{w}
	clean := func(text string) string { return strings.ReplaceAll(text, "\n", " ") }
	fmt.Fprintf(w, "%s: dataset %s, %s, analysed %s\n", found, report.Dataset, plural(report.Files, "file"),
		report.AnalyzedAt.UTC().Format("2006-01-02 15:04 UTC"))
	for _, f := range report.Findings {
		fmt.Fprintf(w, "\n%s: %s (%d)\n", f.Code, f.Detail, f.Total)
		for _, file := range f.Files {
			fmt.Fprintf(w, "  %s: %s\n", clean(file.Path), clean(file.Detail))
		}
		for _, tile := range f.Tiles {
			unit := unitOfCRS(tile.CRS)
			fmt.Fprintf(w, "  column %d, row %d: from %.8g%s, %.8g%s to %.8g%s, %.8g%s\n",
				tile.Column, tile.Row, tile.MinX, unit, tile.MinY, unit, tile.MaxX, unit, tile.MaxY, unit)
		}
		if rest := f.Total - int64(len(f.Files)+len(f.Tiles)); rest > 0 {
			fmt.Fprintf(w, "  and %d more: %s\n", rest, f.All)
		}
	}
	if len(report.Grids) > 0 {
		fmt.Fprintln(w)
	}
	for _, g := range report.Grids {
		unit := unitOfCRS(g.CRS)
		fmt.Fprintf(w, "grid: %s of %s, %.7g%s by %.7g%s from %.8g%s, %.8g%s, pixels of %.4g%s by %.4g%s\n",
			plural(g.Tiles, "tile"), cmp.Or(g.CRS, "no CRS"), g.East, unit, g.North, unit, g.X, unit, g.Y, unit,
			g.DX, unit, g.DY, unit)
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
	report = folderReport{DatasetID: d.ID, Dataset: d.Name, Summary: "never analysed",
		Grids: []tileGrid{}, Findings: []finding{}, Accepted: []acceptedCount{}}
	const analyzed = `
		SELECT max(finished_at) FILTER (WHERE state = 'succeeded'), (array_agg(failure ORDER BY finished_at DESC))[1]
		FROM analyses
		WHERE dataset_id = $1 AND finished_at IS NOT NULL`
	if err := q.QueryRow(ctx, analyzed, d.ID).Scan(&report.AnalyzedAt, &report.Failure); err != nil {
		return report, fmt.Errorf("find the last analysis: %w", err)
	}
	defer func() {
		if report.Failure != nil {
			report.Summary = "the last analysis failed: " + *report.Failure + " Before it: " + report.Summary
		}
	}()
	if report.AnalyzedAt == nil {
		return report, nil
	}
	if report.Grids, err = d.grids(ctx, q); err != nil {
		return report, err
	}
	if err := report.findMissing(ctx, q); err != nil {
		return report, err
	}
	args := d.gridArgs(report.Grids)
	args["limit"] = maxFindingFiles
	for _, query := range [...]string{"unusable", "warnings", "duplicates", "odd", "names", "overlaps", "seams"} {
		if err := report.find(ctx, q, query, args); err != nil {
			return report, err
		}
	}
	slices.SortFunc(report.Findings, func(a, b finding) int { return kindOf(a.Code) - kindOf(b.Code) })
	slices.SortFunc(report.Accepted, func(a, b acceptedCount) int { return kindOf(a.Code) - kindOf(b.Code) })
	details, err := summarizeDataset(ctx, q, d)
	report.summarize(details.Files)
	return report, err
}

// summarize counts the files and writes the summary, which leaves out empty groups.
func (report *folderReport) summarize(files map[string]int64) {
	report.Files, report.Placed = files["total"], files[fileStatusOK]
	report.Summary = fmt.Sprintf("%d of %s placed", report.Placed, plural(report.Files, "file"))
	if report.Files == 0 {
		report.Summary = "no files in the directory"
	}
	totals := map[string]int64{} // by code, with those that were accepted
	for _, f := range report.Findings {
		totals[f.Code] += f.Total
	}
	for _, a := range report.Accepted {
		totals[a.Code] += a.Total
	}
	others := report.Files - report.Placed - totals["unreadable"] - totals[fileStatusCorrupt] - totals["no_extent"]
	for _, part := range [...]struct {
		n    int64
		text string
	}{
		{totals["unreadable"], "unreadable"}, {totals[fileStatusCorrupt], "corrupt"},
		{totals["no_extent"], "without a place"}, {totals[findingMissing], "cells missing"}, {others, "other files"},
	} {
		if part.n == 1 {
			part.text = strings.NewReplacer("cells", "cell", "files", "file").Replace(part.text)
		}
		if part.n > 0 {
			report.Summary += fmt.Sprintf("; %d %s", part.n, part.text)
		}
	}
}

// findMissing adds the missing tiles of the grids, less those that were accepted.
func (report *folderReport) findMissing(ctx context.Context, q querier) error {
	const query = `
		SELECT coalesce(path, '') AS name FROM accepted_findings WHERE dataset_id = $1 AND code = 'missing'`
	accepted, err := collect[struct{ Name string }](ctx, q, "list accepted gaps", query, report.DatasetID)
	names := map[string]bool{}
	for _, a := range accepted {
		names[a.Name] = true
	}
	all := names[""]
	lost := finding{Code: findingMissing, Files: []findingFile{}}
	known := int64(0)
	for _, g := range report.Grids {
		lost.Total += g.Missing
		for tile := range g.missing() {
			if all || len(names) == 0 && len(lost.Tiles) == maxFindingFiles {
				break
			}
			if names[tile.Name] {
				known++
			} else if len(lost.Tiles) < maxFindingFiles {
				lost.Tiles = append(lost.Tiles, tile)
			}
		}
	}
	if all {
		known = lost.Total
	}
	lost.Total -= known
	report.add(lost, known)
	return err
}

// add adds the findings of a code, and the number of those that were accepted.
func (report *folderReport) add(f finding, accepted int64) {
	if accepted > 0 {
		report.Accepted = append(report.Accepted, acceptedCount{f.Code, accepted})
	}
	if f.Total == 0 {
		return
	}
	f.Detail = findingKinds()[kindOf(f.Code)].detail
	f.All = fmt.Sprintf("/api/v1/datasets/%d/findings/%s", report.DatasetID, f.Code)
	if f.Code == findingMissing {
		f.All = fmt.Sprintf("/api/v1/datasets/%d/gaps.geojson", report.DatasetID)
	}
	report.Findings = append(report.Findings, f)
}

// find adds what the query of that name finds. Each of its rows has the totals of the row's code.
func (report *folderReport) find(ctx context.Context, q querier, name string, args pgx.NamedArgs) error {
	rows, err := collect[struct {
		findingFile
		Code       string
		IsAccepted bool
		Total      int64
		Accepted   int64
	}](ctx, q, "look for "+name, reportQuery("found", name), args)
	for len(rows) > 0 {
		f, accepted := finding{Code: rows[0].Code, Total: rows[0].Total, Files: []findingFile{}}, rows[0].Accepted
		for ; len(rows) > 0 && rows[0].Code == f.Code; rows = rows[1:] {
			if !rows[0].IsAccepted {
				f.Files = append(f.Files, rows[0].findingFile)
			}
		}
		report.add(f, accepted)
	}
	return err
}

// grids returns the grids with the most tiles, and their gaps.
func (d dataset) grids(ctx context.Context, q querier) ([]tileGrid, error) {
	grids, err := collect[tileGrid](ctx, q, "find grids", reportQuery("grids", ""), d.gridArgs(nil))
	if err != nil {
		return nil, err
	}
	cells, err := collect[struct {
		Grid int64 // from 1
		cellRun
	}](ctx, q, "read the cells of grids", reportQuery("cells", ""), d.gridArgs(grids))
	for i := range grids {
		var runs []cellRun
		for ; len(cells) > 0 && cells[0].Grid == int64(i+1); cells = cells[1:] {
			runs = append(runs, cells[0].cellRun)
		}
		grids[i].gaps = grids[i].findGaps(runs)
		for _, gap := range grids[i].gaps {
			grids[i].Missing += gap.To - gap.From + 1
		}
	}
	return grids, err
}

// gridArgs returns the parameters of the queries for the tiles of grids.
func (d dataset) gridArgs(grids []tileGrid) pgx.NamedArgs {
	definitions := make([]string, len(grids)) // which a grid in JSON lacks
	for i, g := range grids {
		definitions[i] = g.Definition
	}
	return pgx.NamedArgs{"dataset": d.ID, "grids": grids, "definitions": definitions}
}

// gapsBetween returns the cells without a tile that tiles enclose. It takes the maximal runs of
// cells with a tile, by row and column. If tiles fill seven eighths of the rectangle around them,
// it returns all empty cells of the rectangle.
//
// It goes through the rows with a union-find over the gaps: gaps that touch are one set. A border
// of empty cells around the rectangle makes the outside one set, that of the first gap. If around
// is not 0, that many columns go around the globe: there is no border in the west and in the east,
// and rows without tiles are outside.
func gapsBetween(runs []cellRun, around int64) (enclosed []cellRun) {
	if len(runs) == 0 {
		return nil
	}
	west, east, tiles := runs[0].From, runs[0].To, int64(0)
	for _, run := range runs {
		west, east, tiles = min(west, run.From), max(east, run.To), tiles+run.To-run.From+1
	}
	border := int64(1)
	if around > 0 {
		east, border = west+around-1, 0
	}
	first, last := runs[0].Row, runs[len(runs)-1].Row
	full := float64(tiles) >= float64(east-west+1)*float64(last-first+1)*7/8
	gaps := []cellRun{{first - 1, west - border, east + border}}
	parents := []int{0} // of each gap: itself, or an earlier gap of its set
	root := func(i int) int {
		for parents[i] != i {
			parents[i] = parents[parents[i]]
			i = parents[i]
		}
		return i
	}
	join := func(i, j int) {
		a, b := root(i), root(j)
		parents[max(a, b)] = min(a, b)
	}
	above := 0 // the first gap of the row before
	for row := first; row <= last+1; row++ {
		here, at := len(gaps), west-border
		for ; len(runs) > 0 && runs[0].Row == row; runs = runs[1:] {
			gaps, parents = append(gaps, cellRun{row, at, runs[0].From - 1}), append(parents, len(gaps))
			at = runs[0].To + 1
		}
		gaps, parents = append(gaps, cellRun{row, at, east + border}), append(parents, len(gaps))
		for i, j := above, here; i < here && j < len(gaps); {
			if gaps[i].From <= gaps[j].To && gaps[j].From <= gaps[i].To {
				join(i, j)
			}
			if gaps[i].To < gaps[j].To {
				i++
			} else {
				j++
			}
		}
		if around > 0 && at == west {
			join(0, here)
		} else if around > 0 && gaps[here].To >= west && at <= east {
			join(here, len(gaps)-1) // the first and the last gap of the row touch around the globe
		}
		above = here
		if at == west-border && len(runs) > 0 && !full { // every row up to the next tile is outside
			row = runs[0].Row - 1
		}
	}
	for i := 1; i < len(gaps)-1; i++ {
		gap := cellRun{gaps[i].Row, max(gaps[i].From, west), min(gaps[i].To, east)}
		if gap.From <= gap.To && (full || root(i) != 0) {
			enclosed = append(enclosed, gap)
		}
	}
	return enclosed
}

// missing iterates over the missing tiles of the grid, row by row.
func (g tileGrid) missing() iter.Seq[missingTile] {
	return func(yield func(missingTile) bool) {
		for _, gap := range g.gaps {
			for column := gap.From; column <= gap.To; column++ {
				if !yield(g.tile(cellRun{gap.Row, column, column})) {
					return
				}
			}
		}
	}
}

// tile returns the place of a run of cells.
func (g tileGrid) tile(run cellRun) missingTile {
	x, y := g.X+float64(run.From)*g.East, g.Y+float64(run.Row)*g.North
	name := fmt.Sprintf("%s %.8g %.8g", g.CRS, x, y)
	width := float64(run.To-run.From+1) * g.East
	return missingTile{name, g.CRS, run.From, run.Row, x, y, x + width, y + g.North, g.Definition}
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
