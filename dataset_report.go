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
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// folderReport lists the faults of a dataset's files, found in their rows alone.
type folderReport struct {
	DatasetID int64      `json:"dataset_id"`
	Dataset   string     `json:"dataset"`
	Files     int64      `json:"files"`
	Grids     []tileGrid `json:"grids"`
	Findings  []finding  `json:"findings"`
}

// tileGrid is the grid of the tiles of one CRS and pixel size, a cell for each step between tiles.
type tileGrid struct {
	CRS     string  `json:"crs"`
	Pixel   string  `json:"-"` // the pixel's height to six digits
	Tiles   int64   `json:"tiles"`
	DX      float64 `json:"pixel_width"`
	DY      float64 `json:"pixel_height"`
	X       float64 `json:"origin_x"`
	Y       float64 `json:"origin_y"`
	East    float64 `json:"step_x"`
	North   float64 `json:"step_y"`
	Missing int64   `json:"missing" db:"-"`
	gaps    []cellRun
}

// cellRun is a run of cells in one row of a grid, from one column to another, both included.
type cellRun struct{ Row, From, To int64 }

// finding is one kind of fault, with the first files or missing tiles that have it.
type finding struct {
	Code   string        `json:"code"`
	Detail string        `json:"detail"`
	Total  int64         `json:"total"`
	Files  []findingFile `json:"files"`
	Tiles  []missingTile `json:"tiles,omitempty"`
}

// findingFile is a file with a fault.
type findingFile struct {
	Path   string `json:"path"`
	Detail string `json:"detail"`
}

// missingTile is the place of a missing tile.
type missingTile struct {
	CRS    string  `json:"crs"`
	Column int64   `json:"column"`
	Row    int64   `json:"row"`
	MinX   float64 `json:"min_x"`
	MinY   float64 `json:"min_y"`
	MaxX   float64 `json:"max_x"`
	MaxY   float64 `json:"max_y"`
}

// reportSQL holds the queries of the report.
//
//go:embed dataset_report.sql
var reportSQL string

// reportQuery returns the query of that name.
func reportQuery(name string) string {
	section := func(name string) string {
		_, text, _ := strings.Cut(reportSQL, "-- query "+name+"\n")
		text, _, _ = strings.Cut(text, "-- query ")
		return text
	}
	query := strings.ReplaceAll(section(name), ":grid_tiles", section("grid_tiles"))
	return strings.ReplaceAll(query, ":tiles", section("tiles"))
}

// maxFindingFiles is how many files or tiles a finding names.
const maxFindingFiles = 20

// errFindings is returned for a report with findings. It means exit status 3.
var errFindings = errors.New("the report has findings")

// heavyQuery runs read in a snapshot for the dataset in the path of a request. read may go through
// all its rows. Then the caller's slot is free, because a slow client may take long to read.
func heavyQuery[T any](s *server, r *http.Request, read func(dataset, context.Context, querier) (T, error)) (
	d dataset, result T, err error) {
	defer callerOf(r).leave()
	if d, err = s.pathDataset(r); err != nil {
		return d, result, err
	}
	result, err = inSnapshot(r.Context(), s.db, func(ctx context.Context, q querier) (T, error) {
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
func (s *server) getReport(w http.ResponseWriter, r *http.Request) error {
	_, report, err := heavyQuery(s, r, dataset.report)
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
func (s *server) getGaps(w http.ResponseWriter, r *http.Request) error {
	d, grids, err := heavyQuery(s, r, dataset.grids)
	if err != nil {
		return err
	}
	return writeFeatures(w, r, d.Name, func(emit func(feature) error) error {
		for _, g := range grids {
			for tile := range g.missing() {
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

// print writes the report as text that a terminal may show. Scripts read the first line.
func (report folderReport) print(w io.Writer) {
	count := "no"
	if n := len(report.Findings); n > 0 {
		count = strconv.Itoa(n)
	}
	w = terminalWriter{w}
	clean := func(text string) string { return strings.ReplaceAll(text, "\n", " ") }
	fmt.Fprintf(w, "%s findings: dataset %s, %d files\n", count, report.Dataset, report.Files)
	for _, g := range report.Grids {
		fmt.Fprintf(w, "grid: %d tiles of %s, %.10g by %.10g from %.10g %.10g, pixels of %.10g by %.10g\n",
			g.Tiles, cmp.Or(g.CRS, "no CRS"), g.East, g.North, g.X, g.Y, g.DX, g.DY)
	}
	for _, f := range report.Findings {
		fmt.Fprintf(w, "\n%s: %s (%d)\n", f.Code, f.Detail, f.Total)
		for _, file := range f.Files {
			fmt.Fprintf(w, "  %s: %s\n", clean(file.Path), clean(file.Detail))
		}
		for _, tile := range f.Tiles {
			fmt.Fprintf(w, "  column %d, row %d: from %.10g %.10g to %.10g %.10g\n",
				tile.Column, tile.Row, tile.MinX, tile.MinY, tile.MaxX, tile.MaxY)
		}
		if rest := f.Total - int64(len(f.Files)+len(f.Tiles)); rest > 0 {
			fmt.Fprintf(w, "  and %d more\n", rest)
		}
	}
}

// report looks for every kind of fault in the dataset's rows.
func (d dataset) report(ctx context.Context, q querier) (report folderReport, err error) {
	report = folderReport{DatasetID: d.ID, Dataset: d.Name, Findings: []finding{}}
	const count = `SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1`
	if err := q.QueryRow(ctx, count, d.ID).Scan(&report.Files); err != nil {
		return report, fmt.Errorf("count files: %w", err)
	}
	if report.Grids, err = d.grids(ctx, q); err != nil {
		return report, err
	}
	lost := finding{Code: "missing", Detail: findingDetails()["missing"], Files: []findingFile{}}
	ofDataset, ofGrids := [][]any{{d.ID}}, [][]any{}
	for _, g := range report.Grids {
		ofGrids = append(ofGrids, g.args(d.ID))
		lost.Total += g.Missing
		for tile := range g.missing() {
			if len(lost.Tiles) == maxFindingFiles {
				break
			}
			lost.Tiles = append(lost.Tiles, tile)
		}
	}
	if lost.Total > 0 {
		report.Findings = append(report.Findings, lost)
	}
	for _, look := range [...]struct {
		query string
		args  [][]any
	}{{"unread", ofDataset}, {"duplicates", ofDataset}, {"overlaps", ofGrids}, {"seams", ofGrids}, {"odd", ofDataset},
		{"names", ofDataset}} {
		for _, args := range look.args {
			if err := report.find(ctx, q, look.query, args...); err != nil {
				return report, err
			}
		}
	}
	return report, nil
}

// find adds what the query of that name finds. Each of its rows has the total of the row's code.
func (report *folderReport) find(ctx context.Context, q querier, name string, args ...any) error {
	rows, err := collect[struct {
		findingFile
		Code  string
		Total int64
	}](ctx, q, "look for "+name, reportQuery(name), args...)
	for i, row := range rows {
		at := slices.IndexFunc(report.Findings, func(f finding) bool { return f.Code == row.Code })
		if at < 0 {
			at = len(report.Findings)
			report.Findings = append(report.Findings, finding{Code: row.Code, Detail: findingDetails()[row.Code]})
		}
		f := &report.Findings[at]
		if i == 0 || rows[i-1].Code != row.Code {
			f.Total += row.Total
		}
		if len(f.Files) < maxFindingFiles {
			f.Files = append(f.Files, row.findingFile)
		}
	}
	return err
}

// findingDetails returns the meaning of each code of a finding.
func findingDetails() map[string]string {
	return map[string]string{
		"missing":      "tiles are missing inside the area that the others cover",
		"unreadable":   "files that should be rasters cannot be read as such",
		"no_extent":    "files have no position, or an unknown CRS",
		"duplicate":    "files cover the same place with the same pixels",
		"overlap":      "tiles cover the same cell of their grid",
		"seam":         "tiles lie off the grid by a part of a pixel",
		"crs":          "files have another CRS than most",
		"resolution":   "files have another pixel size than most",
		"sample_type":  "files have another data type than most",
		"nodata":       "files have another nodata value than most",
		"vertical_crs": "files have another vertical system than most",
		"name":         "file names contradict what is in the files",
	}
}

// args returns the parameters of a query for one grid.
func (g tileGrid) args(datasetID int64) []any {
	return []any{datasetID, g.CRS, g.Pixel, g.X, g.Y, g.East, g.North}
}

// grids returns the grids with the most tiles, and their gaps. Step and origin of a grid are those
// of the median tile, so that a few misplaced tiles do not move it.
func (d dataset) grids(ctx context.Context, q querier) ([]tileGrid, error) {
	grids, err := collect[tileGrid](ctx, q, "find grids", reportQuery("groups"), d.ID)
	if err != nil {
		return nil, err
	}
	for i := range grids {
		g := &grids[i]
		for _, found := range [...]struct {
			name string
			x, y *float64
		}{{"step", &g.East, &g.North}, {"origin", &g.X, &g.Y}} {
			err := q.QueryRow(ctx, reportQuery(found.name), g.args(d.ID)...).Scan(found.x, found.y)
			if err != nil {
				return nil, fmt.Errorf("find the %s of a grid: %w", found.name, err)
			}
		}
		runs, err := collect[cellRun](ctx, q, "read the cells of a grid", reportQuery("cells"), g.args(d.ID)...)
		if err != nil {
			return nil, err
		}
		g.gaps = gapsBetween(runs)
		for _, gap := range g.gaps {
			g.Missing += gap.To - gap.From + 1
		}
	}
	return grids, nil
}

// gapsBetween returns the cells without a tile that tiles enclose. It takes the maximal runs of
// cells with a tile, by row and column. If tiles fill seven eighths of the rectangle around them,
// it returns all empty cells of the rectangle.
//
// It goes through the rows with a union-find over the gaps: gaps that touch are one set. A border
// of empty cells around the rectangle makes the outside one set, that of the first gap.
func gapsBetween(runs []cellRun) (enclosed []cellRun) {
	if len(runs) == 0 {
		return nil
	}
	west, east, tiles := runs[0].From, runs[0].To, int64(0)
	for _, run := range runs {
		west, east, tiles = min(west, run.From), max(east, run.To), tiles+run.To-run.From+1
	}
	first, last := runs[0].Row, runs[len(runs)-1].Row
	full := float64(tiles) >= float64(east-west+1)*float64(last-first+1)*7/8
	gaps := []cellRun{{first - 1, west - 1, east + 1}}
	parents := []int{0} // of each gap: itself, or an earlier gap of its set
	root := func(i int) int {
		for parents[i] != i {
			parents[i] = parents[parents[i]]
			i = parents[i]
		}
		return i
	}
	above := 0 // the first gap of the row before
	for row := first; row <= last+1; row++ {
		here, at := len(gaps), west-1
		for ; len(runs) > 0 && runs[0].Row == row; runs = runs[1:] {
			gaps, parents = append(gaps, cellRun{row, at, runs[0].From - 1}), append(parents, len(gaps))
			at = runs[0].To + 1
		}
		gaps, parents = append(gaps, cellRun{row, at, east + 1}), append(parents, len(gaps))
		for i, j := above, here; i < here && j < len(gaps); {
			if gaps[i].From <= gaps[j].To && gaps[j].From <= gaps[i].To {
				a, b := root(i), root(j)
				parents[max(a, b)] = min(a, b)
			}
			if gaps[i].To < gaps[j].To {
				i++
			} else {
				j++
			}
		}
		above = here
		if at < west && len(runs) > 0 && !full { // every row up to the next tile is outside
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
				x, y := g.X+float64(column)*g.East, g.Y+float64(gap.Row)*g.North
				if !yield(missingTile{g.CRS, column, gap.Row, x, y, x + g.East, y + g.North}) {
					return
				}
			}
		}
	}
}

// file returns the missing tile as a file of one pixel. It has no BBox if its CRS is unknown.
func (tile missingTile) file() ElevationDatasetFileMeta {
	m := ElevationDatasetFileMeta{extent: extent{CRS: &tile.CRS, Width: new(int64(1)), Height: new(int64(1)),
		Transform: []float64{tile.MaxX - tile.MinX, 0, tile.MinX, 0, tile.MinY - tile.MaxY, tile.MaxY}}}
	if crs, _, ok := m.knownCRS(); ok {
		if box, err := boxInDegrees(&crs, [6]float64(m.Transform), 1, 1); err == nil {
			m.BBox = box.bounds[:]
		}
	}
	return m
}
