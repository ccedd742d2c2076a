package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// folderReport is what is wrong with a dataset's files, by their rows alone.
type folderReport struct {
	DatasetID int64      `json:"dataset_id"`
	Dataset   string     `json:"dataset"`
	Files     int64      `json:"files"`
	Grids     []tileGrid `json:"grids"`
	Findings  []finding  `json:"findings"`
}

// tileGrid is a grid that the tiles of a CRS and pixel size lie on. A cell is as large as the step from a tile to the next.
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
	Missing int64   `json:"missing"`
	gaps    []cellRun
}

// cellRun is cells of a row of a grid, from one column to another.
type cellRun struct{ Row, From, To int64 }

// finding is one kind of fault and the first of the files, or missing tiles, that have it.
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

// missingTile says where a missing tile would lie.
type missingTile struct {
	CRS    string  `json:"crs"`
	Column int64   `json:"column"`
	Row    int64   `json:"row"`
	MinX   float64 `json:"min_x"`
	MinY   float64 `json:"min_y"`
	MaxX   float64 `json:"max_x"`
	MaxY   float64 `json:"max_y"`
}

// reportSQL is the queries of the report.
//
//go:embed report.sql
var reportSQL string

// reportQuery is the query of that name.
func reportQuery(name string) string {
	section := func(name string) string {
		_, text, _ := strings.Cut(reportSQL, "-- query "+name+"\n")
		text, _, _ = strings.Cut(text, "-- query ")
		return text
	}
	query := strings.ReplaceAll(section(name), ":grid_tiles", section("grid_tiles"))
	return strings.ReplaceAll(query, ":tiles", section("tiles"))
}

// maxFindingFiles is how many files a finding names.
const maxFindingFiles = 20

// errFindings is that a report has findings: exit status 3.
var errFindings = errors.New("the report has findings")

// unhurried is the context of work that takes longer than others, as it goes through all rows of a dataset. There are
// turns for it, so that it does not keep all else waiting; end gives the turn back, before the answer is written.
func (s *server) unhurried(w http.ResponseWriter, r *http.Request) (ctx context.Context, end func(), err error) {
	const limit = 5 * time.Minute
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + time.Minute)) // without it the answer may be cut off
	ctx, cancel := s.era.Load().bound(r.Context().(*requestContext).Context, limit)
	select {
	case s.turns <- struct{}{}:
		return ctx, sync.OnceFunc(func() {
			cancel()
			<-s.turns
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)) // for the answer
		}), nil
	case <-ctx.Done():
		cancel()
		return ctx, nil, context.Cause(ctx)
	}
}

// getReport answers GET /api/v1/datasets/{id}/report: in JSON, or as text where that is asked for.
func (s *server) getReport(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	ctx, end, err := s.unhurried(w, r)
	if err != nil {
		return err
	}
	report, err := reportOn(ctx, s.db, d)
	end()
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

// getGaps answers GET /api/v1/datasets/{id}/gaps.geojson: the tiles that are missing.
func (s *server) getGaps(w http.ResponseWriter, r *http.Request) error {
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	ctx, end, err := s.unhurried(w, r)
	if err != nil {
		return err
	}
	var grids []tileGrid
	err = inSnapshot(ctx, s.db, func(tx pgx.Tx) error {
		grids, err = findGrids(ctx, tx, d.ID)
		return err
	})
	end()
	if err != nil {
		return err
	}
	return s.writeFeatures(w, r, d.Name, func(_ context.Context, emit func(feature) error) error {
		for _, g := range grids {
			for tile := range g.missing() {
				m := tile.file()
				if m.BBox == nil {
					continue // it cannot be turned into degrees
				}
				if err := emit(feature{"Feature", 0, m.BBox, geometryOf(m), tile}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// reportCommand is "cairn report DATASET": errFindings where there are any.
func reportCommand(ctx context.Context, o operation) error {
	var name string
	if err := o.parse(flag.NewFlagSet("report", flag.ContinueOnError), &name); err != nil {
		return err
	}
	found, err := listDatasets(ctx, o.db, &name, "", 1)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("there is no dataset %q", name)
	}
	if err != nil {
		return err
	}
	report, err := reportOn(ctx, o.db, found[0])
	if err != nil {
		return err
	}
	report.print(o.stdout)
	if len(report.Findings) > 0 {
		return errFindings
	}
	return nil
}

// print writes the report as text. Its first line is what a script looks at.
func (report folderReport) print(w io.Writer) {
	count := "no"
	if n := len(report.Findings); n > 0 {
		count = strconv.Itoa(n)
	}
	fmt.Fprintf(w, "%s findings: dataset %s, %d files\n", count, report.Dataset, report.Files)
	for _, g := range report.Grids {
		fmt.Fprintf(w, "grid: %d tiles of %s, %.10g by %.10g from %.10g %.10g, pixels of %.10g by %.10g\n",
			g.Tiles, cmp.Or(g.CRS, "no CRS"), g.East, g.North, g.X, g.Y, g.DX, g.DY)
	}
	for _, f := range report.Findings {
		fmt.Fprintf(w, "\n%s: %s (%d)\n", f.Code, f.Detail, f.Total)
		for _, file := range f.Files {
			fmt.Fprintf(w, "  %s: %s\n", cleanText([]byte(file.Path), len(file.Path)), cleanText([]byte(file.Detail), len(file.Detail)))
		}
		for _, tile := range f.Tiles {
			fmt.Fprintf(w, "  column %d, row %d: from %.10g %.10g to %.10g %.10g\n", tile.Column, tile.Row, tile.MinX, tile.MinY, tile.MaxX, tile.MaxY)
		}
		if rest := f.Total - int64(len(f.Files)+len(f.Tiles)); rest > 0 {
			fmt.Fprintf(w, "  and %d more\n", rest)
		}
	}
}

// inSnapshot runs do on the rows as they are at one moment, with no limit to the time of a statement but that of ctx.
func inSnapshot(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return fmt.Errorf("lift the time limit: %w", err)
		}
		return do(tx)
	})
}

// reportOn goes through the dataset's rows for everything that a report tells.
func reportOn(ctx context.Context, db *pgxpool.Pool, d dataset) (report folderReport, err error) {
	err = inSnapshot(ctx, db, func(tx pgx.Tx) error {
		report, err = readReport(ctx, tx, d)
		return err
	})
	return report, err
}

// readReport is reportOn with the rows of one moment.
func readReport(ctx context.Context, q querier, d dataset) (folderReport, error) {
	report := folderReport{DatasetID: d.ID, Dataset: d.Name, Grids: []tileGrid{}, Findings: []finding{}}
	err := q.QueryRow(ctx, `SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1`, d.ID).Scan(&report.Files)
	if err != nil {
		return report, fmt.Errorf("count files: %w", err)
	}
	if report.Grids, err = findGrids(ctx, q, d.ID); err != nil {
		return report, err
	}
	lost := finding{Code: "missing", Detail: "tiles are missing inside the area that the others cover"}
	for _, g := range report.Grids {
		lost.Total += g.Missing
		for tile := range g.missing() {
			if len(lost.Tiles) == maxFindingFiles {
				break
			}
			lost.Tiles = append(lost.Tiles, tile)
		}
	}
	if lost.Total > 0 {
		lost.Files = []findingFile{}
		report.Findings = append(report.Findings, lost)
	}
	for _, name := range [...]string{"unread", "duplicates", "overlaps", "seams", "odd", "names"} {
		scopes := [][]any{{d.ID}}
		if name == "overlaps" || name == "seams" {
			scopes = nil
			for _, g := range report.Grids {
				scopes = append(scopes, g.args(d.ID))
			}
		}
		for _, args := range scopes {
			rows, err := collect[struct {
				findingFile
				Code  string
				Total int64
			}](ctx, q, "look for "+name, reportQuery(name), args...)
			if err != nil {
				return report, err
			}
			last := "" // the rows of a finding follow each other
			for _, row := range rows {
				at := slices.IndexFunc(report.Findings, func(f finding) bool { return f.Code == row.Code })
				if at < 0 {
					at = len(report.Findings)
					report.Findings = append(report.Findings, finding{Code: row.Code, Detail: findingDetails()[row.Code]})
				}
				f := &report.Findings[at]
				if last != row.Code {
					f.Total += row.Total
				}
				if last = row.Code; len(f.Files) < maxFindingFiles {
					f.Files = append(f.Files, row.findingFile)
				}
			}
		}
	}
	return report, nil
}

// findingDetails say what each kind of finding means.
func findingDetails() map[string]string {
	return map[string]string{
		"unreadable":   "files that should be rasters cannot be read as such",
		"no_extent":    "files do not say where they lie, or in a CRS that is not known",
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

// args are the parameters of a query for a grid.
func (g tileGrid) args(datasetID int64) []any {
	return []any{datasetID, g.CRS, g.Pixel, g.X, g.Y, g.East, g.North}
}

// findGrids finds the grids of the dataset that have most tiles, and the tiles that are missing there. A grid's step
// and origin are those of the median tile: a few that lie elsewhere do not move it.
func findGrids(ctx context.Context, q querier, datasetID int64) ([]tileGrid, error) {
	grids, err := collect[tileGrid](ctx, q, "find grids", reportQuery("groups"), datasetID)
	for i := range grids {
		g := &grids[i]
		if err == nil {
			err = q.QueryRow(ctx, reportQuery("step"), g.args(datasetID)...).Scan(&g.East, &g.North)
		}
		if err == nil {
			err = q.QueryRow(ctx, reportQuery("origin"), g.args(datasetID)...).Scan(&g.X, &g.Y)
		}
		if err != nil {
			return nil, fmt.Errorf("find grids: %w", err)
		}
		var runs []cellRun
		rows, err := q.Query(ctx, reportQuery("cells"), g.args(datasetID)...)
		if err != nil {
			return nil, fmt.Errorf("read cells: %w", err)
		}
		var cell cellRun
		_, err = pgx.ForEachRow(rows, []any{&cell.Row, &cell.From, &cell.To}, func() error {
			if n := len(runs); n > 0 && runs[n-1].Row == cell.Row && runs[n-1].To == cell.From-1 {
				runs[n-1].To = cell.To
			} else {
				runs = append(runs, cell)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read cells: %w", err)
		}
		g.gaps = gapsBetween(runs)
		for _, gap := range g.gaps {
			g.Missing += gap.To - gap.From + 1
		}
	}
	return grids, err
}

// gapsBetween gives the cells without a tile inside the area that the runs, in the order of rows, cover: those that
// tiles enclose. Where tiles fill seven eighths of the rectangle around them, that is the area.
func gapsBetween(runs []cellRun) (gaps []cellRun) {
	if len(runs) == 0 {
		return nil
	}
	west, east, tiles := runs[0].From, runs[0].To, int64(0)
	for _, run := range runs {
		west, east, tiles = min(west, run.From), max(east, run.To), tiles+run.To-run.From+1
	}
	first, last := runs[0].Row, runs[len(runs)-1].Row
	full := float64(tiles) >= float64(east-west+1)*float64(last-first+1)*7/8
	var sets []int // of each gap, itself or another gap that it is one with; set 0 is what lies outside
	root := func(i int) int {
		for sets[i] != i {
			sets[i] = sets[sets[i]]
			i = sets[i]
		}
		return i
	}
	join := func(a, b int) { sets[max(root(a), root(b))] = min(root(a), root(b)) }
	add := func(row, from, to int64, outside bool) {
		if from <= to {
			gaps, sets = append(gaps, cellRun{row, from, to}), append(sets, len(gaps))
			if outside && !full {
				join(0, len(gaps)-1)
			}
		}
	}
	add(first-1, math.MinInt64, math.MaxInt64, false)
	above := 0 // the first gap of the row before
	for row := first; row <= last; row++ {
		here, at := len(gaps), west
		blank := runs[0].Row > row
		for len(runs) > 0 && runs[0].Row == row {
			add(row, at, runs[0].From-1, at == west)
			at, runs = runs[0].To+1, runs[1:]
		}
		add(row, at, east, true)
		edge := row == first || row == last
		for i, j := above, here; i < here && j < len(gaps); {
			if gaps[i].From <= gaps[j].To && gaps[j].From <= gaps[i].To && (i > 0 || !full) {
				join(i, j)
			}
			if gaps[i].To < gaps[j].To {
				i++
			} else {
				j++
			}
		}
		for j := here; j < len(gaps) && edge && !full; j++ {
			join(0, j)
		}
		if above = here; blank && !full { // all that is empty up to the next tile is outside
			row = runs[0].Row - 1
		}
	}
	enclosed := gaps[:0]
	for i, gap := range gaps {
		if root(i) != 0 {
			enclosed = append(enclosed, gap)
		}
	}
	return enclosed
}

// missing gives the tiles that are missing in a grid, row by row.
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

// file is the file that a missing tile would be, of one pixel; without BBox where its CRS is not known.
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
