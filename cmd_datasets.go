package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// getDataset returns the dataset with that name or that id. If these are two datasets, it is an
// error.
func (o invocation) getDataset(ctx context.Context, name string) (dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE name = $1 OR id::text = $1`

	found, err := collect[dataset](ctx, o.db, "get dataset", query, name)
	if err != nil {
		return dataset{}, err
	}

	switch len(found) {
	case 0:
		return dataset{}, fmt.Errorf("there is no dataset %q: see cairn dataset list", name)
	case 1:
		return found[0], nil
	}
	return dataset{}, fmt.Errorf("%s is the name of one dataset and the id of another: see cairn dataset list",
		name)
}

// datasetCommand returns the row of a command that runs do with the dataset that it names first.
func datasetCommand(name string, do func(context.Context, invocation, dataset) error) command {
	return command{name, needDatabase, func(ctx context.Context, o invocation) error {
		d, err := o.getDataset(ctx, o.names[0])
		if err != nil {
			return err
		}
		return do(ctx, o, d)
	}}
}

// changeDataset calls a route that creates, changes or deletes a dataset, and returns the dataset
// of the answer, if it has one. tags are the lines of If-Match.
func (o invocation) changeDataset(
	ctx context.Context,
	route string,
	id int64,
	tags []string,
	body map[string]any,
) (after dataset, err error) {
	s, r := o.newCall(ctx)
	r.SetPathValue("id", fmt.Sprint(id))
	r.Header = http.Header{"If-Match": tags}
	answer, err := s.callAPI(r, route, "", body)
	if err != nil || len(answer) == 0 {
		return after, err
	}
	err = json.Unmarshal(answer, &after)
	return after, err
}

// createDatasetCommand is "cairn dataset create".
func createDatasetCommand(ctx context.Context, o invocation) error {
	_, err := o.createDataset(ctx, o.names[0], o.names[1])
	return err
}

// setDatasetCommand is "cairn dataset set".
func setDatasetCommand(ctx context.Context, o invocation, d dataset) error {
	about, err := o.readJSON("about")
	if err != nil {
		return err
	}
	crs := o.crsFields(d.About)
	if about != nil && crs != nil {
		return errors.New("--about sets the CRSs too: leave out --crs and --vertical-crs")
	}

	// The list of folders must not have changed since it was read.
	var tags []string
	if crs != nil {
		about = crs
		tags = []string{tagOf(d)}
	}

	body := formBody(o.options, "name* description* requires* notify*")
	if about != nil {
		body["about"] = about
	}
	d, err = o.changeDataset(ctx, "PATCH /api/v1/datasets/{id}", d.ID, tags, body)
	err = o.print(err, d, "changed dataset %d, %s", d.ID, d.Name)
	if err != nil || crs == nil || o.options.Has("json") {
		return err
	}

	// Wait for the analysis that places the files.
	a, err := newestAnalysis(ctx, o.db, d.ID)
	runs, errRuns := anyInstanceLives(ctx, o.db)
	err = errors.Join(err, errRuns)
	isQueued := a.ID != 0 && a.FinishedAt == nil
	if err != nil || !isQueued || !runs {
		return err
	}
	return o.awaitAnalysis(ctx, d, a.ID)
}

// crsFields returns the fields of a description for --crs and --vertical-crs, in JSON, or nil
// without these options. With --folder, they replace the CRSs of that folder.
func (o invocation) crsFields(about datasetAbout) json.RawMessage {
	fields := map[string]any{}
	for _, name := range [...]string{"crs", "vertical_crs"} {
		if o.options.Has(name) {
			fields["default_"+name] = o.options.Get(name)
		}
	}
	if len(fields) == 0 {
		return nil
	}

	name := strings.Trim(o.options.Get("folder"), "/")
	if name != "" {
		isSameFolder := func(f folderCRS) bool { return f.Folder == name }
		folder := folderCRS{name, o.options.Get("crs"), o.options.Get("vertical_crs")}
		others := slices.DeleteFunc(slices.Clone(about.FolderCRS), isSameFolder)
		fields = map[string]any{"folder_crs": append(others, folder)}
	}
	text, _ := json.Marshal(fields) // never fails
	return text
}

// readJSON returns the content of the JSON file that an option names, or nil without the option.
// "-" is the standard input.
func (o invocation) readJSON(option string) (content json.RawMessage, err error) {
	name := o.options.Get(option)
	switch name {
	case "":
		return nil, nil
	case "-":
		content, err = io.ReadAll(io.LimitReader(o.stdin, medium))
	default:
		content, err = os.ReadFile(name)
	}

	if err == nil {
		err = json.Unmarshal(content, new(any))
	}
	if err != nil {
		err = fmt.Errorf("--%s: %w", option, err)
	}
	return content, err
}

// outsideRoots returns the error for a path that is below no dataset root. It says how to add it.
func (o invocation) outsideRoots(path string) error {
	where := "for the service and in this terminal"
	file := credentialFile(o.cfg.credentialsDir, "cairn.env")
	if file != "" {
		where = "in " + file
	}

	added := path
	if !filepath.IsAbs(path) {
		added = "/your/folder"
	}
	return fmt.Errorf("%s lies outside the dataset roots: set CAIRN_DATASETS_DIR=%s:%s %s, and restart the service",
		path, strings.Join(o.cfg.datasetRoots, ":"), added, where)
}

// createDataset registers a directory with the checks of the API, and prints the dataset.
func (o invocation) createDataset(ctx context.Context, name, path string) (d dataset, err error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE path = $1`

	where, _ := o.cfg.findDirectory(path) // the route says what is wrong with it
	body := map[string]any{
		"name":     name,
		"path":     path,
		"requires": o.options.Get("requires"),
	}
	d, err = o.changeDataset(ctx, "POST /api/v1/datasets", 0, nil, body)

	// If the directory is registered, the error names its dataset.
	p := problemIn(err)
	if p != nil && p.status == http.StatusConflict {
		existing, findErr := collectOne[dataset](ctx, o.db, nil,
			"find dataset", query, where.stored)
		if findErr == nil && existing.ID != 0 {
			err = fmt.Errorf("%s is registered already, as dataset %d, %s",
				path, existing.ID, existing.Name)
		}
	}
	isOutside := func(f fieldError) bool { return f.Code == fieldOutsideRoot }
	if p != nil && slices.ContainsFunc(p.fields, isOutside) {
		err = o.outsideRoots(path)
	}
	return d, o.print(err, nil, "created dataset %d, %s, of %s",
		d.ID, d.Name, filepath.Join(where.root, where.below))
}

// addDatasetCommand is "cairn dataset add". A relative path starts at the working directory or, if
// there is no such file, at the first dataset root.
func addDatasetCommand(ctx context.Context, o invocation) error {
	path := o.names[0]
	absolute, err := filepath.Abs(path)
	if err == nil && isThere(absolute) {
		path = absolute
	}

	name := o.option("name", filepath.Base(path))
	d, err := o.createDataset(ctx, name, path)
	if err != nil {
		return err
	}

	crs := o.crsFields(d.About)
	if crs != nil {
		body := map[string]any{"about": crs}
		d, err = o.changeDataset(ctx, "PATCH /api/v1/datasets/{id}", d.ID, nil, body)
	}
	if err != nil {
		return err
	}
	return o.analyze(ctx, d, true)
}

// listDatasetsCommand is "cairn dataset list".
func listDatasetsCommand(ctx context.Context, o invocation) error {
	datasets, err := listDatasets(ctx, o.db, operatorActor(), datasetFilter{}, "", math.MaxInt32)
	if err != nil {
		return err
	}

	for _, d := range datasets {
		a, err := newestAnalysis(ctx, o.db, d.ID)
		state := cmp.Or(a.State, "never analysed")
		err = o.print(err, d, "%d\t%s\t%s\t%s",
			d.ID, d.Name, d.Path, state)
		if err != nil {
			return err
		}
	}
	return nil
}

// analyzeCommand is "cairn dataset analyze".
func analyzeCommand(ctx context.Context, o invocation, d dataset) error {
	return o.analyze(ctx, d, o.options.Has("wait"))
}

// analyze has the running instances analyse a dataset. With wait, it joins an analysis that runs
// already, and waits for the end.
func (o invocation) analyze(ctx context.Context, d dataset, wait bool) error {
	options := analysisOptions{
		Force:     o.options.Has("force"),
		Checksums: o.options.Has("checksums"),
		Heights:   o.options.Has("heights"),
	}
	a, err := createAnalysis(ctx, o.db, operatorActor(), d.ID, options)

	// If another analysis of the dataset runs, a becomes that one.
	p := problemIn(err)
	isRunning := p != nil && p.code == codeAnalysisRunning
	if isRunning {
		a, err = newestAnalysis(ctx, o.db, d.ID)
	}
	if err != nil {
		return err
	}

	if isRunning && !wait {
		return fmt.Errorf("analysis %d of %s is running already", a.ID, d.Name)
	}
	lacks := ""
	switch {
	case options.Force && !a.Force:
		lacks = "--force"
	case options.Checksums && !a.Checksums:
		lacks = "--checksums"
	case options.Heights && !a.Heights:
		lacks = "--heights"
	}
	if isRunning && lacks != "" {
		return fmt.Errorf("analysis %d of %s is running already, without %s",
			a.ID, d.Name, lacks)
	}
	if !wait {
		return o.print(nil, nil, "analysis %d of %s queued", a.ID, d.Name)
	}

	runs, err := anyInstanceLives(ctx, o.db)
	if err != nil {
		return err
	}
	if !runs {
		return fmt.Errorf("analysis %d of %s is queued, but no instance of the service runs: start it",
			a.ID, d.Name)
	}
	return o.awaitAnalysis(ctx, d, a.ID)
}

// awaitAnalysis waits for the end of an analysis, and prints its counts and the summary of the
// report.
func (o invocation) awaitAnalysis(ctx context.Context, d dataset, id int64) error {
	a, err := getAnalysis(ctx, o.db, d.ID, id)
	for err == nil && a.FinishedAt == nil {
		o.showProgress(a.describe(d.Name))
		pause(ctx, 100*time.Millisecond)
		a, err = getAnalysis(ctx, o.db, d.ID, id)
	}
	o.showProgress("")

	if ctx.Err() != nil {
		return fmt.Errorf("analysis %d of %s goes on: see cairn dataset list",
			id, d.Name)
	}
	if err != nil {
		return err
	}

	if a.State != stateSucceeded {
		reason := cmp.Or(a.Failure, new("it was canceled"))
		return fmt.Errorf("analysis %d of %s failed: %s",
			id, d.Name, *reason)
	}
	fmt.Fprintf(o.stdout, "analysis %d of %s: %s, %d added, %d changed, %d removed\n",
		id, d.Name, plural(a.Total, "file"),
		a.Added, a.Changed, a.Removed)

	report, err := inSnapshot(ctx, o.db, d.report)
	return o.print(err, nil, "%s", report.Summary)
}

// showProgress replaces the line that it has written on standard error, if that is a terminal.
func (o invocation) showProgress(line string) {
	if isTerminal(o.stderr) {
		io.WriteString(o.stderr, "\r\x1b[K") // ECMA-48: erase in line
		fmt.Fprintf(terminalWriter{o.stderr}, "%.79s", line)
	}
}

// describe returns the progress of an analysis as text.
func (a *analysis) describe(name string) string {
	line := fmt.Sprintf("analysis of %s is %s, ", name, a.State)
	if a.Expected == nil {
		line += plural(a.Done, "file")
	} else {
		line += fmt.Sprintf("%d of %s", a.Done, plural(*a.Expected, "file"))
	}
	if a.BytesExpected != nil {
		line += fmt.Sprintf(", %d of %d MB of contents", a.BytesRead/1e6, *a.BytesExpected/1e6)
	}

	if a.SecondsLeft != nil {
		left := time.Duration(*a.SecondsLeft) * time.Second
		line += fmt.Sprintf(", about %v left", left)
	}
	return line
}

// anyInstanceLives reports whether an instance serves the database, or did so a moment ago.
func anyInstanceLives(ctx context.Context, db *pgxpool.Pool) (bool, error) {
	const query = `
		SELECT EXISTS (
			SELECT FROM instances
			WHERE live_until > now())`
	return scalar[bool](ctx, db, "look for instances", query)
}

// expectCommand is "cairn dataset expect". With options it changes the expectation and, if the
// service runs, waits for the checks.
func expectCommand(ctx context.Context, o invocation, d dataset) error {
	if len(o.options) == 0 {
		expected, err := readExpectation(ctx, o.db, d.ID)
		return o.print(err, expected, "%s", expected.describe())
	}

	// The options are turned into the JSON that the API takes.
	boundary, err := o.readJSON("boundary")
	if err != nil {
		return err
	}
	if boundary != nil {
		o.options.Set("boundary", string(boundary))
	}
	const fields = "crs vertical_crs posting sample_type nodata width height name heights boundary{}"
	text, err := encodeBody(formBody(o.options, fields))
	if err != nil {
		return err
	}

	change := func(e *expectation) error { return json.Unmarshal(text, e) }
	expected, analysisID, err := changeExpectation(ctx, o.db, operatorActor(), d.ID, change)
	runs, errRuns := anyInstanceLives(ctx, o.db)
	err = errors.Join(err, errRuns)
	mustWait := analysisID != 0 && runs
	if err != nil || !mustWait {
		return o.print(err, expected, "%s", expected.describe())
	}
	return o.awaitAnalysis(ctx, d, analysisID)
}

// removeDatasetCommand is "cairn dataset remove".
func removeDatasetCommand(ctx context.Context, o invocation, d dataset) error {
	err := o.confirm(ctx, "Forget the dataset %s with its accepted findings? Its files stay.",
		d.Name)
	if err != nil {
		return err
	}

	// Another dataset may have got the name while the question waited.
	_, err = o.changeDataset(ctx, "DELETE /api/v1/datasets/{id}", d.ID, nil, nil)
	return o.print(err, d, "removed dataset %d, %s", d.ID, d.Name)
}

// reportCommand is "cairn report DATASET". It returns errFindings if the report has findings, if no
// file is located, or if the dataset was not checked. It returns another error if the last analysis
// failed.
func reportCommand(ctx context.Context, o invocation, d dataset) error {
	report, err := inSnapshot(ctx, o.db, d.report)
	if err != nil {
		return err
	}

	text, err := report.text()
	if err != nil {
		return err
	}
	_, err = o.stdout.Write(text)
	if err != nil {
		return err
	}

	if report.Failure != nil {
		return fmt.Errorf("the last analysis of %q failed", o.names[0])
	}
	if report.Verdict != hasNoFindings {
		return errFindings
	}
	return nil
}

// compareCommand is "cairn compare DATASET OTHER". It returns errDifferent unless cells were
// compared, all have the same content, and all rasters are located.
func compareCommand(ctx context.Context, o invocation, d dataset) error {
	other, err := o.getDataset(ctx, o.names[1])
	if err != nil {
		return err
	}
	if other.ID == d.ID {
		return fmt.Errorf("%s and %s are the same dataset",
			o.names[0], o.names[1])
	}

	s, _ := o.newCall(ctx)
	compared := comparison{
		catalogue: s.catalogue,
		here:      d,
		there:     other,
		query:     func(do func(context.Context) error) error { return do(ctx) },
	}

	out := bufio.NewWriter(o.stdout)
	err = errors.Join(compared.write(ctx, out, true), out.Flush())
	if err != nil {
		return err
	}

	isSame := len(compared.totals) == 1 && compared.totals[isSameContent] > 0
	notLocated := compared.notLocated["here"] + compared.notLocated["there"]
	if !isSame || notLocated > 0 {
		return errDifferent
	}
	return nil
}

// vrtCommand is "cairn vrt DATASET". The sources are absolute paths of this machine.
func vrtCommand(ctx context.Context, o invocation, d dataset) error {
	where, wrong := o.cfg.findDirectory(d.Path)
	if wrong != nil {
		return o.outsideRoots(d.Path)
	}

	g, err := findGrid(ctx, o.db, d.ID,
		optional(o.options, "crs"),
		optional(o.options, "resolution"))
	if err != nil {
		return err
	}

	source := func(f datasetFile) string {
		raw, _ := decodePath(f.Path) // as the walk wrote it
		return filepath.Join(where.root, where.below, raw)
	}
	run := func(find func(context.Context) error) error { return find(ctx) }
	each := func(emit func(datasetFile) error) error {
		return readInBatches(o.db, g.files(d.ID), run, emit)
	}

	rows, out := o.rows()
	err = g.write(rows, 0, source, each)
	return errors.Join(err, out.Flush())
}

// elevationCommand is "cairn elevation LON LAT".
func elevationCommand(ctx context.Context, o invocation) error {
	var points [][]float64
	for words := range slices.Chunk(o.names, 2) {
		point := readNumbers(strings.Join(words, ","))
		if len(words) != 2 || len(point) != 2 {
			return fmt.Errorf("elevation takes longitudes and latitudes in degrees, such as 9.05 48.8: %w", errUsage)
		}
		points = append(points, point)
	}
	text, _ := json.Marshal(points) // finite numbers: there is no error
	o.names = nil
	o.options.Set("points", string(text))

	const line = "$height\t$path\t$dataset\t${resolution_m:.6}\t$vertical_crs\t$reason"
	return calls("POST /elevation", "points{} interpolation", line)(ctx, o)
}
