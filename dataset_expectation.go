package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
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
	Heights     string           `json:"heights"`  // see readHeightRange
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
	decode := func(e *expectation) error {
		return decodeJSON(r, e) // fields that are left out keep their values
	}
	after, _, err := changeExpectation(r.Context(), a.core.db, actorOf(r), pathID(r, "id"), decode)
	wake(a.queued)
	return writeEntity(w, after, "", err)
}

// changeExpectation changes the expectation of a dataset, and queues an analysis that only checks
// its rows. It returns the id of that analysis, or 0 if queueChecks has queued none.
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

		before := after.audited()
		former := tagOf(after.expectation)
		if err := change(&after.expectation); err != nil {
			return nil, nil, err
		}
		if err := after.check(); err != nil {
			return nil, nil, err
		}

		// Checks are queued even if nothing has changed: the last ones may have seen another
		// expectation.
		isChanged := tagOf(after.expectation) != former
		if isChanged {
			changed, err := scalar[time.Time](ctx, tx, "store expectation", query, d.ID, after.expectation)
			if err != nil {
				return nil, nil, err
			}
			after.UpdatedAt = &changed
		}

		analysisID, err = queueChecks(ctx, tx, by.name, d.ID, 0)
		if !isChanged {
			return nil, nil, err
		}
		return before, after.audited(), err
	})

	return after, analysisID, err
}

// audited returns the expectation as the audit log shows it, with a hash of the boundary.
func (e expectation) audited() map[string]any {
	shown := map[string]any{}
	if e.Boundary != nil {
		shown["boundary_sha256"] = fmt.Sprintf("%x", sha256.Sum256(*e.Boundary))
	}

	for _, line := range e.lines() {
		shown[line.name] = line.want
	}

	return shown
}

// queueChecks queues an analysis that only places and checks the rows of a dataset, and returns its
// id. It queues none and returns 0 in these cases: the dataset was never analysed; an analysis has
// not ended; the last results are not outdated (see outdatedResults). after is the analysis that
// was canceled or has failed just now, or 0. If that one only checked, or its checks failed, none
// is queued either, because this would repeat without end.
func queueChecks(ctx context.Context, tx pgx.Tx, by string, datasetID, after int64) (int64, error) {
	const query = `
		INSERT INTO analyses (
			dataset_id,
			force,
			requested_by,
			step,
			checks_only,
			total
		)
		SELECT
			$1::bigint,
			false,
			$2,
			'check',
			true,
			(SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1)
		WHERE EXISTS (SELECT FROM analyses WHERE dataset_id = $1 AND state = 'succeeded')
			AND NOT EXISTS (SELECT FROM analyses WHERE dataset_id = $1 AND finished_at IS NULL)
			AND EXISTS (SELECT FROM (` + outdatedResults + `) r WHERE is_outdated)
			AND NOT EXISTS (
				SELECT
				FROM analyses
				WHERE id = $3 AND (checks_only OR state = 'failed' AND step = 'check')
			)
		RETURNING id`

	queued, err := collectOne[struct{ ID int64 }](ctx, tx, nil, "queue checks", query, datasetID, by, after)
	return queued.ID, err
}

// outdatedResults is SQL for whether the expectation of dataset $1, or the CRS that is set for
// files that name none, has changed since the last results.
const outdatedResults = `
	SELECT
		r.expected_at IS DISTINCT FROM e.updated_at OR coalesce(r.crs_version, 0) <> d.crs_version AS is_outdated
	FROM datasets d
	LEFT JOIN dataset_results r ON r.dataset_id = d.id
	LEFT JOIN dataset_expectations e ON e.dataset_id = d.id
	WHERE d.id = $1`

// check returns a 422 that says which fields are wrong. It rewrites the values as the rows of files
// have them, and the boundary as a MultiPolygon.
func (e *expectation) check() error {
	var v invalid

	texts := [...]struct {
		field string
		text  string
	}{
		{"crs", e.CRS},
		{"vertical_crs", e.VerticalCRS},
		{"sample_type", e.SampleType},
		{"nodata", e.Nodata},
		{"name", e.Name},
	}
	for _, of := range texts {
		v.check(isLine(of.text, 0, 200), of.field, fieldMalformed, "must be one line of at most 200 characters")
	}

	isBraced := !strings.ContainsAny(nameParts().ReplaceAllString(e.Name, ""), "{}/")
	v.check(isBraced, "name", fieldMalformed,
		"must be the name of a file without folders, in which braces come in pairs")

	// An empty size is not specified.
	for i, size := range [...]*string{&e.Width, &e.Height} {
		field := [...]string{"width", "height"}[i]
		n, err := strconv.ParseInt(cmp.Or(*size, "1"), 10, 32)
		v.check(err == nil && n > 0, field, fieldMalformed, "must be a number of pixels")
		if *size != "" {
			*size = strconv.FormatInt(n, 10)
		}
	}

	if e.CRS != "" {
		crs, err := crsByText(e.CRS)
		v.check(err == nil && crs.vertical == 0, "crs", fieldUnknown,
			"must be the code of a known CRS, such as EPSG:25832; that of heights is vertical_crs")
		e.CRS = plainCode(e.CRS)
	}

	if e.CRS == "EPSG:4979" { // as in fileSet.add
		e.CRS = "EPSG:4326"
		e.VerticalCRS = cmp.Or(e.VerticalCRS, ellipsoidal)
	}

	e.VerticalCRS = plainCode(e.VerticalCRS)
	e.SampleType = strings.ToLower(e.SampleType)

	// A posting is one number or two.
	parts := strings.FieldsFunc(e.Posting, func(r rune) bool { return strings.ContainsRune(" x×", r) })
	e.Posting = ""
	if len(parts) > 0 {
		sizes := readNumbers(strings.Join(parts, ","))
		areSizes := sizes != nil && len(sizes) <= 2 && slices.Min(sizes) > 0 && slices.Max(sizes) < 1e9
		v.check(areSizes, "posting", fieldMalformed, "must be a size in the unit of the CRS, or a width × a height")
		if areSizes {
			e.Posting = posting(sizes[0], sizes[len(sizes)-1])
		}
	}

	if e.Heights != "" {
		heights, ok := readHeightRange(e.Heights)
		v.check(ok, "heights", fieldMalformed, "must be two heights in metres, such as -10 to 3000")
		e.Heights = heights.String()
	}

	if e.Boundary != nil {
		boundary, ok := readBoundary(*e.Boundary)
		v.check(ok, "boundary", fieldMalformed, "must be a GeoJSON Polygon or MultiPolygon, or features with these, "+
			"of at most 20,000 corners, within ±180° and ±90°")

		text, _ := json.Marshal(map[string]any{ // never fails
			"type":        "MultiPolygon",
			"coordinates": boundary,
		})
		e.Boundary = (*json.RawMessage)(&text)
	}

	return v.err()
}

// heightRange is the lowest and the highest height that is expected, in metres.
type heightRange struct{ low, high float64 }

// String implements fmt.Stringer. readHeightRange reads the text again.
func (r heightRange) String() string { return fmt.Sprintf("%g to %g", r.low, r.high) }

// readHeightRange returns the range in a text such as "-10 to 3000".
func readHeightRange(text string) (r heightRange, ok bool) {
	heights := readNumbers(strings.Replace(text, "to", ",", 1))
	if len(heights) != 2 || heights[0] > heights[1] {
		return r, false
	}
	return heightRange{heights[0], heights[1]}, true
}

// plainCode returns an EPSG code without a sign or zeros before it. Any other text stays as it is.
func plainCode(text string) string {
	code, isCode := epsgCode(text)
	if !isCode {
		return text
	}
	return "EPSG:" + strconv.Itoa(code)
}

// expectedLine is a line of an expectation, and whether the files are as it says.
type expectedLine struct {
	Name     string `json:"name"`
	Expected string `json:"expected"`
	Passed   bool   `json:"passed"`
	Detail   string `json:"detail"`
}

// lineOfHeights is the name of the line of heights. Files that differ are findings of another kind:
// see checkHeights.
const lineOfHeights = "heights"

// specifiedLine is a line of an expectation, before the files are compared with it.
type specifiedLine struct{ name, want string }

// lines returns what is specified, without the boundary. The names are those of attributes.
func (e expectation) lines() []specifiedLine {
	lines := []specifiedLine{
		{"CRS", e.CRS},
		{"vertical CRS", e.VerticalCRS},
		{"posting", e.Posting},
		{"data type", e.SampleType},
		{"nodata", e.Nodata},
		{"width", e.Width},
		{"height", e.Height},
		{"name", e.Name},
		{lineOfHeights, e.Heights},
	}

	return slices.DeleteFunc(lines, func(line specifiedLine) bool { return line.want == "" })
}

// value returns the value of a file that is compared with the line, or "" if the file has none. If
// the number or the name fits, it returns what the line wants.
func (line specifiedLine) value(r *fileRecord) string {
	isOfTiles := line.name == "posting" || line.name == "width" || line.name == "height"
	if isOfTiles && !r.isTile() {
		return ""
	}

	switch line.name {
	case "CRS":
		return cmp.Or(r.system, notStated)
	case "posting":
		return posting(r.dx, r.dy)
	case "nodata":
		if !isSameNumber(r.nodata, line.want) {
			return r.nodata
		}
	case "width":
		return pixels(r.w, r.dx)
	case "height":
		return pixels(r.h, r.dy)
	case "name":
		if !r.isNamed {
			return "another"
		}
	case lineOfHeights:
		h := r.heights
		wanted, _ := readHeightRange(line.want)
		if h != nil && h.Voids < h.Samples && !h.isWithin(wanted, h.Min, h.Max) {
			return "others"
		}
	default:
		return attribute{name: line.name}.value(r)
	}

	return line.want
}

// isSameNumber reports whether two texts are the same number, or both are NaN.
func isSameNumber(a, b string) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	areNumbers := errX == nil && errY == nil
	return areNumbers && cmp.Compare(x, y) == 0 // NaN equals NaN
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

// nameParts matches the parts of a name in braces.
func nameParts() *regexp.Regexp { return regexp.MustCompile(`\{[^{}]*\}`) }

// namePattern returns the pattern of file names. Braces stand for a number, which may have the
// letter of a quarter of the globe before it: "{n}{e}.hgt" matches "N47E011.hgt".
func (e expectation) namePattern() *regexp.Regexp {
	var pattern strings.Builder
	for i, text := range nameParts().Split(e.Name, -1) {
		if i > 0 {
			pattern.WriteString(`[NSEWnsew]?[0-9]+`)
		}
		pattern.WriteString(regexp.QuoteMeta(text))
	}

	return regexp.MustCompile("^" + pattern.String() + "$")
}

// checkExpected compares the files and the grids with what is expected.
func (s *fileSet) checkExpected(ctx context.Context) error {
	specified := s.expected.lines()
	others := make([]int64, len(specified)) // how many files have another value
	files := int64(0)
	for i := range s.files {
		r := &s.files[i]
		isRaster := r.isLocated() || r.orientation != ""
		if !isRaster {
			continue
		}
		files++

		var texts []string
		for n, line := range specified {
			value := line.value(r)
			if value == "" || value == line.want {
				continue
			}

			others[n]++
			if line.name == lineOfHeights {
				continue
			}
			text := fmt.Sprintf("%s %s, not %s", line.name, titleOfCode(value), titleOfCode(line.want))
			texts = append(texts, text)
		}

		if texts != nil {
			s.foundIn(findingSpecification, int32(i), strings.Join(texts, "; "))
		}
	}

	for n, line := range specified {
		result := expectedLine{
			Name:     line.name,
			Expected: titleOfCode(line.want),
			Passed:   others[n] == 0 && files > 0,
			Detail:   fmt.Sprintf("%d of %s differ", others[n], plural(files, "file")),
		}
		if line.name == lineOfHeights && len(s.unmeasured) > 0 {
			result.Passed = false
			result.Detail += ", and not all heights were read"
			s.whyFailed = append(s.whyFailed, "heights: not all were read: "+mostFrequent(s.unmeasured))
		}
		s.lines = append(s.lines, result)
	}

	err := s.checkBoundary(ctx)
	if err != nil {
		return err
	}

	// A line may fail for another reason than a file that differs. All such lines make one finding,
	// because a code has at most one finding about the whole dataset.
	if s.whyFailed != nil {
		s.foundIn(findingSpecification, noFile, strings.Join(s.whyFailed, "; "))
	}
	return nil
}

// checkBoundary replaces the missing tiles of a grid by those that are missing inside the boundary.
// It takes the largest regular grid of the specified CRS and posting or, without one, of the CRS.
func (s *fileSet) checkBoundary(ctx context.Context) error {
	if s.expected.Boundary == nil {
		return nil
	}

	boundary, _ := readBoundary(*s.expected.Boundary)
	line := expectedLine{
		Name:     "boundary",
		Expected: "100 % covered",
		Detail:   "the tiles form no grid",
	}
	isCompared := false

	// The grids are sorted, so that the first one that fits is the largest.
	hasCRS := func(g tileGrid) bool {
		isSpecified := s.expected.CRS == "" || s.expected.CRS == g.CRS
		return g.isRegular && isSpecified
	}
	at := slices.IndexFunc(s.grids, func(g tileGrid) bool {
		return hasCRS(g) && s.expected.Posting == posting(g.DX, g.DY)
	})
	if at < 0 {
		at = slices.IndexFunc(s.grids, hasCRS)
	}

	if at >= 0 {
		g := &s.grids[at]
		covered, err := g.compareBoundary(ctx, boundary)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			line.Detail = "it cannot be compared with the grid: " + err.Error()
		default:
			isCompared = true
			line.Passed = g.Missing == 0
			line.Detail = fmt.Sprintf("%g %%, %s missing", covered, plural(g.Missing, "tile"))
		}
	}

	s.lines = append(s.lines, line)
	if !isCompared {
		s.whyFailed = append(s.whyFailed, "boundary: "+line.Detail)
	}

	return nil
}
