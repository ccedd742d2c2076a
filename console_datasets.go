package main

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"
)

// datasetsPage returns the data of a page of the list of datasets. Only those who may register one
// see the roots.
func (c *console) datasetsPage(api *apiReader) any {
	roots := c.core.cfg.datasetRoots

	return map[string]any{
		"List":  api.addAnalyses(getPage[datasetItem](api, "/api/v1/datasets")),
		"Roots": strings.Join(roots, " or "),
		"First": roots[0],
	}
}

// health says how a dataset is: whether its directory could be read, and how many findings it has.
type health struct {
	Class string // of the style sheet
	Text  string
	rank  int // the worst comes first
}

// healthOf returns the health of a dataset by the analysis that addAnalyses has found and by the
// overview of its report. With notes only, it is good.
func healthOf(d datasetDetails) health {
	counts := d.Report.Counts()
	hasFailed := d.Analysis != nil && d.Analysis.State == stateFailed

	switch {
	case hasFailed && *d.Analysis.FailureCode == failureUnavailable:
		return health{"bad", "directory unreachable", 0}
	case hasFailed:
		return health{"bad", "last analysis failed", 0}
	case d.Report.Errors > 0:
		return health{"bad", counts, 1}
	case d.Report.Warnings > 0:
		return health{"warn", counts, 2}
	case d.Report.Verdict == nothingLocated:
		return health{"warn", "no file located", 3}
	case d.Report.Verdict == notChecked:
		return health{"dim", "not checked", 4}
	default:
		return health{"good", cmp.Or(counts, "fine"), 5}
	}
}

// dataset returns the dataset in the path.
func (api *apiReader) dataset() datasetDetails {
	return get[datasetDetails](api, "/api/v1/datasets/{id}", "")
}

// datasetData is a dataset with what its page shows beside it.
type datasetData struct {
	datasetDetails
	Analyses []analysis
	Map      *mapView
	Position string // the longitude and latitude that were asked for, or ""
	Before   string // the position before this one was clicked, or ""
	Covering listOf[datasetFile]
	Height   *elevation // at the position; nil: the reader may not read files

	Tag string // of the dataset, without its totals
}

// datasetPage returns the data of the page of a dataset: its files' totals, its map, the files at a
// position, and its last analyses.
func (c *console) datasetPage(api *apiReader) any {
	d := datasetData{
		datasetDetails: api.dataset(),
	}
	d.Tag = tagOf(d.dataset)
	d.Analyses = get[listOf[analysis]](api, "/api/v1/datasets/{id}/analyses", "limit=10").Items

	// addMap also sets the position.
	if d.BBox != nil && api.err == nil {
		d.addMap(api)
	}
	if d.Position != "" {
		query := url.Values{
			"point": {d.Position},
			"limit": {"50"},
		}
		d.Covering = get[listOf[datasetFile]](api, "/api/v1/datasets/{id}/files", query.Encode())
		d.addHeight(api)
		d.Map.addPlace(d.Position, d.Covering.Items)
	}

	api.title = d.Name
	return &d
}

// addHeight adds the height at the position, with two decimals. If no file can be read now, the
// page is shown without it.
func (d *datasetData) addHeight(api *apiReader) {
	if !d.Map.HasRelief {
		return
	}

	query := url.Values{
		"point":   {d.Position},
		"dataset": {fmt.Sprint(d.ID)},
	}
	reader := &apiReader{console: api.console, r: api.r}
	height := get[elevation](reader, "/api/v1/elevation", query.Encode())
	if refusal := problemIn(reader.err); refusal != nil && refusal.status < 500 {
		api.err = reader.err // such as of a session that has ended
	}
	if reader.err != nil {
		return
	}

	if v := height.Height; v != nil {
		*v = math.Round(*v*100) / 100
	}
	d.Height = &height
}

// profile is the heights along a line, and an SVG of them in metres.
type profile struct {
	ID      int64  // of the dataset
	From    string // as somebody has typed it
	To      string
	Path    string // "": there is no height
	ViewBox string
	Length  float64
	Lowest  float64
	Highest float64
}

// profilePage returns the heights of a dataset along the line between two positions.
func (c *console) profilePage(api *apiReader) any {
	query := api.r.URL.Query()
	p := &profile{
		ID:   api.dataset().ID,
		From: query.Get("from"),
		To:   query.Get("to"),
	}
	if p.From == "" || p.To == "" {
		return p
	}
	readViewBox(api, query, "from", 2)
	readViewBox(api, query, "to", 2)

	line := url.Values{
		"line":    {positionText(p.From) + "," + positionText(p.To)},
		"dataset": {fmt.Sprint(p.ID)},
		"samples": {"600"},
	}
	p.draw(get[listOf[elevation]](api, "/api/v1/elevation", line.Encode()).Items)
	return p
}

// draw draws the heights, with a gap where there is none. A height between two gaps becomes a dot:
// a line to where it begins.
func (p *profile) draw(points []elevation) {
	var path strings.Builder
	p.Lowest = math.Inf(1)
	p.Highest = math.Inf(-1)
	isGap := true
	for _, at := range points {
		p.Length = *at.DistanceM
		if at.Height == nil {
			isGap = true
			continue
		}

		height := *at.Height * metresOf(at.Unit)
		p.Lowest = min(p.Lowest, height)
		p.Highest = max(p.Highest, height)
		place := fmt.Sprintf("%.1f %.2f", p.Length, -height)
		if isGap {
			path.WriteString("M" + place)
		}
		path.WriteString("L" + place)
		isGap = false
	}

	p.Path = path.String()
	p.ViewBox = fmt.Sprintf("0 %.2f %.1f %.2f", -p.Highest, max(p.Length, 1), max(p.Highest-p.Lowest, 1))
}

// filesPage returns the data of a page of the list of a dataset's files or, without a dataset in
// the path, of all files.
func (c *console) filesPage(api *apiReader) any {
	path := "/api/v1/files"
	if api.r.PathValue("id") != "" {
		path = "/api/v1/datasets/{id}/files"
		api.title = "Files of " + api.dataset().Name
	}

	list := getList[datasetFile](api, path, url.Values{"total": {"1"}})
	return map[string]any{
		"Dataset":  api.r.PathValue("id"), // or ""
		"List":     list.Items,
		"Total":    list.listTotal,
		"Statuses": fileStatuses(),
	}
}

// filePage returns the data of the page of a file: its row, its findings and its last changes.
func (c *console) filePage(api *apiReader) any {
	d := api.dataset()
	file := get[fileDetails](api, "/api/v1/datasets/{id}/files/{file}", "")
	content := dataPath(d.ID, file.Path)

	data := struct {
		fileDetails
		Dataset datasetDetails
		Content string   // the path of the file's content
		URL     string   // of the content
		Packed  string   // GDAL's prefix for a packed file, or ""
		Map     *mapView // the file and what is around it; nil: it has no place
	}{
		fileDetails: file,
		Dataset:     d,
		Content:     content,
		URL:         c.core.baseURL(api.r) + content,
		Packed: map[string]string{
			".zip": "/vsizip/",
			".gz":  "/vsigzip/",
		}[path.Ext(file.Path)],
	}

	if file.BBox != nil {
		box := boxOf(file.BBox)
		lon, lat := box.middle()
		data.Map = api.drawMap(d.dataset, box.around(lon, lat, 2))
		data.Map.addHit(file.extent)
	}

	api.title = visibleName(file.Path)
	return data
}

// analysisPage returns the data of the page of an analysis, with what it has changed.
func (c *console) analysisPage(api *apiReader) any {
	d := api.dataset()
	api.title = "Analysis of " + d.Name

	return struct {
		analysis
		Dataset string
		Changes []fileChange
	}{
		get[analysis](api, "/api/v1/datasets/{id}/analyses/{analysis}", ""),
		d.Name,
		getPage[fileChange](api, "/api/v1/datasets/{id}/analyses/{analysis}/changes"),
	}
}

// expectationPage returns what the files of a dataset should be.
func (c *console) expectationPage(api *apiReader) any {
	d := api.dataset()
	api.title = "What is expected of " + d.Name
	expected := get[storedExpectation](api, "/api/v1/datasets/{id}/expectation", "")

	return struct {
		expectation
		ID int64
	}{
		expected.expectation,
		d.ID,
	}
}

// reportPage returns the report about a dataset's files, with the accepted findings.
func (c *console) reportPage(api *apiReader) any {
	d := api.dataset()
	api.title = "Report on " + d.Name

	data := struct {
		folderReport
		List []acceptedFinding
		Map  *mapView // nil: no file is located
	}{
		folderReport: get[folderReport](api, "/api/v1/datasets/{id}/report", ""),
		List:         getPage[acceptedFinding](api, "/api/v1/datasets/{id}/accepted-findings"),
	}
	if d.BBox != nil {
		_, box := api.wholeMap(d)
		data.Map = api.drawMap(d.dataset, box)
	}
	return data
}

// kindText returns what a kind of findings is about.
func kindText(code string) string {
	for _, kind := range findingKinds() {
		if kind.code == code {
			return kind.detail
		}
	}
	return code
}

// viewOf returns the part of the map around a missing tile, or "" if its place is not known.
func viewOf(tile missingTile) string {
	bbox := tile.file().BBox
	if bbox == nil {
		return ""
	}

	box := boxOf(bbox)
	lon, lat := box.middle()
	return box.around(lon, lat, 5).query()
}

// typedPosition matches two numbers of degrees as people type them: "9.5, 47.6" or "47.6 N 9.5 E".
var typedPosition = regexp.MustCompile(`^([-0-9.]+) *°? *([NSEW]?)[ ,;]+([-0-9.]+) *°? *([NSEW]?)$`)

// positionText returns the longitude and the latitude in the text that somebody has typed, as the
// API takes them. Without letters, the longitude is first. Text of another form is returned as it
// is.
func positionText(text string) string {
	m := typedPosition.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(text)))
	if m == nil {
		return text
	}

	first := m[1]
	second := m[3]
	if m[2] == "S" || m[2] == "W" {
		first = "-" + first
	}
	if m[4] == "S" || m[4] == "W" {
		second = "-" + second
	}
	if m[2] == "N" || m[2] == "S" {
		first, second = second, first
	}
	return first + "," + second
}

// filterText returns what the API gets for the text that somebody has typed in a filter of that
// name: a day or a minute in UTC becomes a time, and "until" a day is until its end.
func filterText(name, text string) string {
	if name == "point" {
		return positionText(text)
	}
	if name != "since" && name != "until" {
		return text
	}

	text = strings.TrimSpace(text)
	for _, layout := range []string{time.DateOnly, inputTimeLayout, "2006-01-02 15:04"} {
		at, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if name == "until" && layout == time.DateOnly {
			at = at.AddDate(0, 0, 1)
		}
		return at.Format(time.RFC3339)
	}
	return text
}
