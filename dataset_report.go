package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// folderReport lists the faults of a dataset's files, the worst first, as the checks of the last
// analysis found them.
type folderReport struct {
	DatasetID int64  `json:"dataset_id"`
	Dataset   string `json:"dataset"`
	Verdict   string `json:"verdict"`
	Counts    string `json:"-"` // see resultOverview
	reportState
	Summary string `json:"summary"` // one line
	resultSummary
	Findings []finding       `json:"findings"`
	Accepted []acceptedCount `json:"accepted"`
}

// reportState says when a dataset was checked, and how its analyses go.
type reportState struct {
	AnalyzedAt *time.Time `json:"analyzed_at"` // when the checked rows were read; null: never checked
	CheckedAt  *time.Time `json:"checked_at"`
	Running    *string    `json:"running"` // the state of the analysis that runs now
	Failure    *string    `json:"failure"` // why the last analysis failed; null: it did not
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
	New      *int64        `json:"new"` // how many the checks before did not find; null: there were none
	All      string        `json:"all"` // where they are listed
	Files    []findingFile `json:"files"`
	Tiles    []missingTile `json:"tiles,omitempty"`
}

// acceptedCount is how many findings of a code were accepted.
type acceptedCount struct {
	Code  string `json:"code"`
	Total int64  `json:"total"`
}

// findingFile is a file with a fault, or a mixed folder, with "." for the dataset's top folder.
type findingFile struct {
	Path      string `json:"path"`
	FileID    *int64 `json:"file_id"` // null: the path is not that of a file, or its row is gone
	Detail    string `json:"detail"`
	FirstSeen int64  `json:"first_seen"` // the analysis since which it has been found each time
}

// maxFindingFiles is how many files or tiles a finding names.
const maxFindingFiles = 20

// errFindings is the error of the command for every report whose verdict is not hasNoFindings. It
// means exit status 3.
var errFindings = errors.New("the report has findings")

// inSnapshot runs read in one snapshot of the database. Only ctx limits the time of its statements.
func inSnapshot[T any](ctx context.Context, db *pgxpool.Pool, read func(context.Context, querier) (T, error)) (
	result T, err error) {
	const begin = `
		BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
		SET LOCAL statement_timeout = 0;
		SET LOCAL idle_in_transaction_session_timeout = 0`

	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
		result, err = read(ctx, tx)
		return err
	})
	return result, err
}

// getReport answers GET /api/v1/datasets/{id}/report in JSON, or as text for Accept: text/plain.
func (c *catalogue) getReport(w http.ResponseWriter, r *http.Request, d dataset) error {
	report, err := inSnapshot(r.Context(), c.core.db, d.report)
	if err != nil {
		return err
	}

	w.Header().Set("Vary", "Accept")
	if !strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
		return writeJSON(w, http.StatusOK, report)
	}

	text, err := report.text()
	if err != nil {
		return err
	}
	return writeBytes(w, http.StatusOK, "text/plain; charset=utf-8", text)
}

// getGaps answers GET /api/v1/datasets/{id}/gaps.geojson with the missing tiles.
func (c *catalogue) getGaps(w http.ResponseWriter, r *http.Request, d dataset) error {
	grids, err := inSnapshot(r.Context(), c.core.db, d.storedGrids)
	if err != nil {
		return err
	}

	callerOf(r).slots.leavePool()
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

				m := tile.file()
				if m.BBox == nil { // its CRS cannot be converted to degrees
					continue
				}
				if err := emit(featureOf(m, tile)); err != nil {
					return err
				}
			}
		}

		return nil
	})
}

// reportTemplate is the report as text. Its first line is the summary, its second the verdict, for
// scripts. Then come a running analysis, the expectation, the findings, the contents, and what was
// not examined.
const reportTemplate = `{{.Summary}}
{{if eq .Verdict "findings"}}{{.Counts}}
{{- else if eq .Verdict "no_findings"}}no findings
{{- else if eq .Verdict "nothing_located"}}no file located
{{- else}}not checked
{{- end}}: dataset {{.Dataset}}, {{plural .Files "file"}}
{{- with .AnalyzedAt}}, analysed {{.UTC.Format "2006-01-02 15:04 UTC"}}{{end}}
{{with .Running}}an analysis is {{.}} now
{{end}}

{{- if .Expected}}
EXPECTED
{{end}}
{{- range .Expected}}  {{if .Passed}}pass{{else}}fail{{end}}: {{.Name}} {{.Expected}}: {{.Detail}}
{{end}}

{{- $severity := ""}}
{{- range .Findings}}
{{- if ne .Severity $severity}}
{{$severity = .Severity}}{{upper .Severity}}S
{{end}}
{{.Code}}: {{.Detail}} ({{.Total}}{{with valueOr .New 0}}, {{.}} new{{end}})
{{range .Files}}  {{line .Path}}: {{line .Detail}}
{{end}}
{{- range .Tiles}}  {{line .Name}}: {{line .String}}
{{end}}
{{- if .More}}  and {{.More}} more: {{.All}}
{{end}}
{{- end}}

{{- if .Contents}}
{{end}}
{{- range .Grids}}
{{- $unit := unit .CRS -}}
grid: {{plural .Tiles "tile"}} of {{or .CRS "no CRS"}}
{{- printf ", %.7g%s by %.7g%s" .East $unit .North $unit}}
{{- printf " from %.8g%s, %.8g%s" .X $unit .Y $unit}}
{{- printf ", pixels of %.4g%s by %.4g%s" .DX $unit .DY $unit}}
{{if .Open}}The outline was not judged: the tiles form no rectangle. A boundary says where tiles have to be.
{{end}}
{{- end}}
{{- range .Contents}}{{.Attribute}}: {{.Values}}
{{end}}
{{- if .Covered}}covered: about {{digits .Covered}} km²
{{end}}
{{- with .Checksums}}checksums: {{.Compared}} of {{plural .Listed "listed file"}} compared
{{- "; "}}{{plural .Unlisted "other file"}} not listed
{{end}}
{{- range .Accepted}}accepted: {{.Code}} ({{.Total}})
{{end}}
{{range .NotExamined}}{{.}}
{{end}}`

// text returns the report as text for a terminal.
func (report folderReport) text() ([]byte, error) {
	parsed := template.Must(template.New("report").Funcs(template.FuncMap{
		"line":    strings.NewReplacer("\n", " ").Replace,
		"digits":  threeDigits,
		"plural":  plural,
		"unit":    unitOfCRS,
		"upper":   strings.ToUpper,
		"valueOr": valueOr[int64],
	}).Parse(reportTemplate))

	var text bytes.Buffer
	err := parsed.Execute(terminalWriter{&text}, report)
	return text.Bytes(), err
}

// More returns how many findings have neither a file nor a tile here.
func (f finding) More() int64 { return max(0, f.Total-int64(len(f.Files)+len(f.Tiles))) }

// String returns the tile's expected path, its place, and what is wrong with the file of that path.
func (tile missingTile) String() (text string) {
	unit := unitOfCRS(tile.CRS)
	if tile.Expected != "" {
		text = tile.Expected + ": "
	}

	text += fmt.Sprintf("from %.8g%s, %.8g%s to %.8g%s, %.8g%s",
		tile.MinX, unit,
		tile.MinY, unit,
		tile.MaxX, unit,
		tile.MaxY, unit)
	if tile.There != "" {
		text += "; the file of this name: " + tile.There
	}

	return text
}

// plural returns a number of things: "1 file", "2 files".
func plural(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.FormatInt(n, 10) + " " + thing
}

// unitOfCRS returns the unit of a CRS's coordinates, as written after a number. It is empty for
// rare units, and if the registry does not know the CRS.
func unitOfCRS(name string) string {
	crs, err := crsByText(name)
	if err != nil {
		return ""
	}

	isDegrees := crs.method == 0
	switch {
	case isDegrees && crs.unit == 1:
		return "°"
	case !isDegrees && crs.unit == 1:
		return " m"
	case !isDegrees && math.Abs(crs.unit-0.3048) < 1e-5:
		return " ft"
	}

	return ""
}

// storedReport is what the database has of a report, besides the findings.
type storedReport struct {
	reportState
	Summary     resultSummary
	IsChecked   bool
	LastEnd     string // how the last analysis ended, unless it succeeded
	WasAnalyzed bool
	IsOutdated  bool
}

// reportQuery is SQL for the storedReport of dataset $1. The rows that an analysis leaves are
// checked also if it fails with mass_removal.
const reportQuery = `
	SELECT
		r.analyzed_at,
		r.checked_at,
		coalesce(
			r.summary,
			'{"grids": [], "contents": [], "expected": [], "not_examined": []}'
		) AS summary,
		r.dataset_id IS NOT NULL AS is_checked,
		CASE
			WHEN last.failure IS NOT NULL THEN concat(
				'the last analysis failed: ',
				last.failure,
				CASE WHEN last.failure_code = 'mass_removal' THEN ' What is there: ' ELSE ' Before it: ' END
			)
			WHEN last.state = 'canceled' THEN 'the last analysis was canceled. Before it: '
			ELSE ''
		END AS last_end,
		last.failure,
		(
			SELECT state FROM analyses WHERE dataset_id = d.id AND finished_at IS NULL
		) AS running,
		EXISTS (
			SELECT FROM analyses WHERE dataset_id = d.id AND state = 'succeeded'
		) AS was_analyzed,
		(` + outdatedResults + `)
	FROM datasets d
	LEFT JOIN dataset_results r ON r.dataset_id = d.id
	LEFT JOIN LATERAL (
		SELECT
			id,
			state,
			failure_code,
			failure
		FROM analyses
		WHERE dataset_id = d.id
			AND finished_at IS NOT NULL
			AND NOT (checks_only AND state <> 'failed')
		ORDER BY id DESC
		LIMIT 1
	) last ON true
	WHERE d.id = $1`

// report returns what the last checks of the dataset found, and what has happened since.
func (d dataset) report(ctx context.Context, q querier) (folderReport, error) {
	report := folderReport{
		DatasetID: d.ID,
		Dataset:   d.Name,
		Findings:  []finding{},
		Accepted:  []acceptedCount{},
	}

	stored, err := collectOne[storedReport](ctx, q, notFound("dataset", d.ID), "get results", reportQuery, d.ID)
	if err != nil {
		return report, err
	}

	overview, err := overviews(ctx, q, []int64{d.ID})
	if err != nil {
		return report, err
	}
	report.Verdict = overview[d.ID].Verdict
	report.Counts = overview[d.ID].Counts()
	report.reportState = stored.reportState
	report.resultSummary = stored.Summary

	switch {
	case stored.IsChecked:
		if err := report.addFindings(ctx, q); err != nil {
			return report, err
		}

		if stored.IsOutdated {
			report.Summary = "what is expected has changed since the files were checked; " + report.Summary
		}
	case stored.WasAnalyzed:
		report.Summary = "not checked since the upgrade: an analysis is waiting to do so, or can be started"
	default:
		report.Summary = "never analysed"
	}

	report.Summary = stored.LastEnd + report.Summary
	return report, nil
}

// addFindings adds the findings of each kind, the worst first, and the summary.
func (report *folderReport) addFindings(ctx context.Context, q querier) error {
	byCode, err := countFindings(ctx, q, report.DatasetID)
	if err != nil {
		return err
	}

	report.summarize(byCode)
	for _, kind := range findingKinds() {
		t := byCode[kind.code]
		if t.Accepted > 0 {
			report.Accepted = append(report.Accepted, acceptedCount{kind.code, t.Accepted})
		}
		if t.Total == t.Accepted {
			continue
		}

		f := finding{
			Code:     kind.code,
			Severity: kind.severity,
			Detail:   kind.detail,
			Total:    t.Total - t.Accepted,
			New:      t.New,
			All:      fmt.Sprintf("/api/v1/datasets/%d/findings/%s", report.DatasetID, kind.code),
			Files:    []findingFile{},
		}

		if err := f.list(ctx, q, report.DatasetID); err != nil {
			return err
		}
		report.Findings = append(report.Findings, f)
	}

	return nil
}

// list adds the first files or tiles of a finding.
func (f *finding) list(ctx context.Context, q querier, datasetID int64) error {
	const first = `
		SELECT
			path,
			f.id AS file_id,
			detail,
			first_seen,
			tile
		FROM dataset_findings d
		LEFT JOIN elevation_dataset_file_meta f USING (dataset_id, path)
		WHERE dataset_id = $1 AND code = $2 AND NOT is_accepted
		ORDER BY path
		LIMIT $3`

	rows, err := collect[struct {
		findingFile
		Tile *missingTile
	}](ctx, q, "list findings", first, datasetID, f.Code, maxFindingFiles)
	if err != nil {
		return err
	}

	for _, row := range rows {
		if row.Tile != nil {
			f.Tiles = append(f.Tiles, *row.Tile)
		} else {
			f.Files = append(f.Files, row.findingFile)
		}
	}

	return nil
}

// summarize sets the summary: how many files are located, how many findings of each kind there are
// (with accepted ones), and how many other files.
func (report *folderReport) summarize(byCode map[string]findingCount) {
	report.Summary = fmt.Sprintf("%d of %s located", report.Placed, plural(report.Files, "file"))
	if report.Files == 0 {
		report.Summary = "no files in the directory"
	}

	others := report.Files - report.Placed
	for _, kind := range findingKinds() {
		n := byCode[kind.code].Total
		if n == 0 {
			continue
		}

		text := fmt.Sprintf("%d %s", n, kind.short)
		if isNoun := strings.HasSuffix(kind.short, "tile"); isNoun {
			text = plural(n, kind.short)
		}

		report.Summary += "; " + text

		// These are the kinds of files that are not located.
		switch kind.code {
		case fileStatusCorrupt, "unreadable", "no_extent", "unread":
			others -= n
		}
	}

	if others > 0 {
		report.Summary += "; " + plural(others, "other file")
	}
}

// file returns the missing tile as a file of one pixel. It has no BBox if its CRS is unknown.
func (tile missingTile) file() ElevationDatasetFileMeta {
	m := ElevationDatasetFileMeta{extent: extent{
		CRS:    &tile.CRS,
		Width:  new(int64(1)),
		Height: new(int64(1)),
		Transform: []float64{
			tile.MaxX - tile.MinX, 0, tile.MinX,
			0, tile.MinY - tile.MaxY, tile.MaxY,
		},
	}}
	if tile.definition != "" {
		m.CRS = nil
		m.CRSDefinition = &tile.definition
	}

	if crs, _, ok := m.knownCRS(); ok {
		if box, err := boxInDegrees(&crs, [6]float64(m.Transform), 1, 1); err == nil {
			m.BBox = box.bounds[:]
		}
	}

	return m
}

// threeDigits returns a positive number with three digits, or whole where it has more.
func threeDigits(n float64) string {
	if n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}
