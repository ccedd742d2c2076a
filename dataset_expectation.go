package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// expectation is what the files of a dataset should be: the specification of a delivery, and the
// boundary that the tiles should cover. The values are written as the report writes them. An empty
// one is not specified.
type expectation struct {
	CRS         string           `json:"crs"`
	VerticalCRS string           `json:"vertical_crs"`
	Posting     string           `json:"posting"` // in the unit of the CRS
	SampleType  string           `json:"sample_type"`
	Nodata      string           `json:"nodata"`
	Width       string           `json:"width"` // in pixels
	Height      string           `json:"height"`
	Name        string           `json:"name"`     // see namePattern
	Boundary    *json.RawMessage `json:"boundary"` // a GeoJSON MultiPolygon
}

// storedExpectation is an expectation with the time of its last change.
type storedExpectation struct {
	expectation
	UpdatedAt *time.Time `json:"updated_at"` // null: nothing was ever specified
}

// getExpectation answers GET /api/v1/datasets/{id}/expectation.
func (a *analyzer) getExpectation(w http.ResponseWriter, r *http.Request) error {
	d, err := a.catalogue.pathDataset(r)
	if err != nil {
		return err
	}
	found, err := readExpectation(r.Context(), a.core.db, d.ID)
	return writeEntity(w, found, "", err)
}

// readExpectation returns the expectation of a dataset.
func readExpectation(ctx context.Context, q querier, datasetID int64) (storedExpectation, error) {
	const query = `SELECT expectation, updated_at FROM dataset_expectations WHERE dataset_id = $1`
	found, err := collectOne[struct {
		Expectation expectation
		UpdatedAt   *time.Time
	}](ctx, q, nil, "get expectation", query, datasetID)
	return storedExpectation{found.Expectation, found.UpdatedAt}, err
}

// updateExpectation answers PATCH /api/v1/datasets/{id}/expectation.
func (a *analyzer) updateExpectation(w http.ResponseWriter, r *http.Request) error {
	after, _, err := changeExpectation(r.Context(), a.core.db, actorOf(r), pathID(r, "id"), func(e *expectation) error {
		return decodeJSON(r, e) // fields that are left out keep their values
	})
	wake(a.queued)
	return writeEntity(w, after, "", err)
}

// changeExpectation changes the expectation of a dataset, and queues an analysis that only checks
// its rows. It returns the id of that. If it is 0, nothing has changed, the dataset has never been
// analysed, or an analysis is running, which then checks at its end.
func changeExpectation(ctx context.Context, db *pgxpool.Pool, by actor, datasetID int64,
	change func(*expectation) error) (after storedExpectation, analysisID int64, err error) {
	const query = `
		INSERT INTO dataset_expectations (dataset_id, expectation)
		VALUES ($1, $2)
		ON CONFLICT (dataset_id) DO UPDATE
		SET expectation = excluded.expectation, updated_at = clock_timestamp()
		RETURNING updated_at`
	err = changeDataset(ctx, db, by, datasetID, "dataset.expect", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		if after, err = readExpectation(ctx, tx, d.ID); err != nil {
			return nil, nil, err
		}
		before, former := after.audited(), tagOf(after.expectation)
		if err := change(&after.expectation); err != nil {
			return nil, nil, err
		}
		if err := after.check(); err != nil {
			return nil, nil, err
		}
		if tagOf(after.expectation) == former {
			return nil, nil, nil
		}

		changed, err := scalar[time.Time](ctx, tx, "store expectation", query, d.ID, after.expectation)
		if err != nil {
			return nil, nil, err
		}
		after.UpdatedAt = &changed
		analysisID, err = queueChecks(ctx, tx, by, d.ID)
		return before, after.audited(), err
	})
	return after, analysisID, err
}

// audited returns the expectation as the audit log shows it, with a hash of the boundary.
func (e expectation) audited() map[string]any {
	shown := map[string]any{}
	if e.Boundary != nil {
		sum := sha256.Sum256(*e.Boundary)
		shown["boundary_sha256"] = hex.EncodeToString(sum[:])
	}
	for _, line := range e.lines() {
		shown[line.name] = line.want
	}
	return shown
}

// queueChecks queues an analysis that only checks the rows of a dataset, unless there is none that
// has succeeded, or one is running.
func queueChecks(ctx context.Context, tx pgx.Tx, by actor, datasetID int64) (int64, error) {
	const query = `
		INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only, total)
		SELECT $1::bigint, false, $2, 'check', true,
			(SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1)
		WHERE EXISTS (SELECT FROM analyses WHERE dataset_id = $1 AND state = 'succeeded')
			AND NOT EXISTS (SELECT FROM analyses WHERE dataset_id = $1 AND finished_at IS NULL)
		RETURNING id`
	queued, err := collectOne[struct{ ID int64 }](ctx, tx, nil, "queue checks", query, datasetID, by.name)
	return queued.ID, err
}

// check returns a 422 that says which fields are wrong. It writes the posting as the report does,
// and the boundary as a MultiPolygon.
func (e *expectation) check() error {
	var v invalid
	for field, text := range map[string]string{"crs": e.CRS, "vertical_crs": e.VerticalCRS,
		"sample_type": e.SampleType, "nodata": e.Nodata, "name": e.Name} {
		isName := !strings.Contains(text, "/") || field != "name"
		v.check(isLine(text, 0, 200) && isName, field, "malformed", "must be one line of at most 200 characters")
	}
	for field, text := range map[string]string{"width": e.Width, "height": e.Height} {
		isNumber := len(text) <= 9 && consistsOf(text, "0123456789")
		v.check(text == "" || isNumber, field, "malformed", "must be a number of pixels")
	}
	if e.CRS != "" {
		_, err := crsByText(e.CRS)
		v.check(err == nil, "crs", "unknown", "must be the code of a known CRS, such as EPSG:25832")
	}
	if e.Posting != "" {
		size, err := strconv.ParseFloat(e.Posting, 64)
		v.check(err == nil && size > 0 && size < 1e9, "posting", "malformed", "must be a size in the unit of the CRS")
		e.Posting = posting(size, size)
	}
	if e.Boundary != nil {
		boundary, ok := readBoundary(*e.Boundary)
		v.check(ok, "boundary", "malformed", "must be a GeoJSON Polygon or MultiPolygon, or features with these, "+
			"of at most 20,000 corners, within ±180° and ±90°")
		text, _ := json.Marshal(map[string]any{"type": "MultiPolygon", "coordinates": boundary}) // never fails
		e.Boundary = (*json.RawMessage)(&text)
	}
	return v.err()
}

// expectedLine is a line of an expectation, and whether the files are as it says.
type expectedLine struct {
	Name     string `json:"name"`
	Expected string `json:"expected"`
	Passed   bool   `json:"passed"`
	Detail   string `json:"detail"`
}

// specifiedLine is a line of a specification.
type specifiedLine struct {
	name, want string
	value      func(r *fileRecord, k *fileKind) string // of a file
}

// lines returns what is specified, without the boundary. The names are those of attributes.
func (e expectation) lines() []specifiedLine {
	lines := []specifiedLine{
		{"CRS", e.CRS, func(_ *fileRecord, k *fileKind) string { return k.system }},
		{"vertical CRS", e.VerticalCRS, func(_ *fileRecord, k *fileKind) string { return k.vertical }},
		{"posting", e.Posting, func(r *fileRecord, _ *fileKind) string { return posting(r.dx, r.dy) }},
		{"data type", e.SampleType, func(_ *fileRecord, k *fileKind) string { return k.sampleType }},
		{"nodata", e.Nodata, func(_ *fileRecord, k *fileKind) string { return k.nodata }},
		{"width", e.Width, func(r *fileRecord, _ *fileKind) string { return pixels(r.w, r.dx) }},
		{"height", e.Height, func(r *fileRecord, _ *fileKind) string { return pixels(r.h, r.dy) }},
		{"name", e.Name, func(_ *fileRecord, k *fileKind) string {
			if k.isNamed {
				return e.Name
			}
			return "another"
		}},
	}
	return slices.DeleteFunc(lines, func(line specifiedLine) bool { return line.want == "" })
}

// specifies reports whether a line of that name is specified.
func (e expectation) specifies(name string) bool {
	return slices.ContainsFunc(e.lines(), func(line specifiedLine) bool { return line.name == name })
}

// describe returns the expectation as lines of text.
func (e expectation) describe() string {
	var lines []string
	for _, line := range e.lines() {
		lines = append(lines, line.name+": "+titleOfCode(line.want))
	}
	if e.Boundary != nil {
		lines = append(lines, "boundary: yes")
	}
	return cmp.Or(strings.Join(lines, "\n"), "nothing is expected")
}

// namePattern returns the pattern of file names. In braces stands the name of a number, which may
// have the letter of a quarter of the globe before it: "{n}{e}.hgt" matches "N47E011.hgt".
func (e expectation) namePattern() *regexp.Regexp {
	const number = `[NSEWnsew]?[0-9]+`
	braces := regexp.MustCompile(`\\\{[a-z_]+\\\}`)
	return regexp.MustCompile("^" + braces.ReplaceAllString(regexp.QuoteMeta(e.Name), number) + "$")
}

// checkExpected compares the files and the grids with what is expected.
func (s *fileSet) checkExpected(ctx context.Context) error {
	specified := s.expected.lines()
	others := make([]int64, len(specified)) // how many files have another value
	files := int64(0)
	for i := range s.files {
		r := &s.files[i]
		k := &s.kinds[r.kind]
		isRaster := k.isLocated() || k.orientation != ""
		if !isRaster {
			continue
		}
		files++
		var texts []string
		for n, line := range specified {
			if value := line.value(r, k); value != line.want {
				others[n]++
				texts = append(texts, fmt.Sprintf("%s %s, not %s", line.name, titleOfCode(cmp.Or(value, notStated)),
					titleOfCode(line.want)))
			}
		}
		if texts != nil {
			s.found(findingSpecification, flaw{file: int32(i), other: noFile, detail: strings.Join(texts, "; ")})
		}
	}

	for n, line := range specified {
		detail := fmt.Sprintf("%d of %s differ", others[n], plural(files, "file"))
		s.lines = append(s.lines, expectedLine{line.name, titleOfCode(line.want), others[n] == 0 && files > 0, detail})
	}
	return s.checkBoundary(ctx)
}

// checkBoundary replaces the missing tiles of a grid by those that are missing inside the boundary.
// It takes the largest regular grid of the specified CRS.
func (s *fileSet) checkBoundary(ctx context.Context) error {
	if s.expected.Boundary == nil {
		return nil
	}
	boundary, _ := readBoundary(*s.expected.Boundary)
	line := expectedLine{Name: "boundary", Expected: "100 % covered", Detail: "the tiles form no grid"}
	isCompared := false
	for i := range s.grids {
		g := &s.grids[i]
		isOther := !g.isRegular || s.expected.CRS != "" && s.expected.CRS != g.CRS
		if isOther {
			continue
		}
		cells, err := g.within(ctx, boundary)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			line.Detail = "it cannot be compared with the grid: " + err.Error()
		case cells.total == 0:
			line.Detail = "it holds no cell of the grid"
		default:
			g.gaps = without(cells.runs, g.runs)
			g.Missing = tilesIn(g.gaps)
			covered := math.Floor(10_000*(1-cells.areaOf(g.gaps)/cells.total)) / 100
			line.Passed = g.Missing == 0
			line.Detail = fmt.Sprintf("%g %%, %s missing", covered, plural(g.Missing, "tile"))
			isCompared = true
		}
		break
	}
	s.lines = append(s.lines, line)
	if !isCompared {
		s.found(findingSpecification, flaw{file: noFile, other: noFile, detail: "boundary: " + line.Detail})
	}
	return nil
}
