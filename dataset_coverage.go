package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// coverageTemplate is the picture's template. html/template escapes the values in it.
//
//go:embed dataset_coverage.svg
var coverageTemplate string

// coverage is the picture. The exported fields are the values of the template, and are stored in
// JSON. The others are needed to draw it.
type coverage struct {
	Name    string
	Summary string
	Extent  string
	Height  int
	PixelsY int // of the line above the layers by pixel size; 0: there are none

	Lines    []mapLine       // the graticule
	Layers   []coverageLayer // missing cells, then files as layerOf has them
	Labels   []mapLine       // names of files, without a path
	Coast    string          // an SVG path, as the next four
	Borders  string
	ScaleBar string
	World    string // the coast on the map of the world
	Here     string // the dataset on the map of the world
	Scale    string // the label of the scale bar

	Apart    int64 // outliers
	Unlisted int64 // outliers that are not in Outliers
	Outliers []coverageMark
	All      mapBox // around the files that are no outliers

	byStatus bool
	isInPage bool    // the picture is part of a page, and has to be small
	view     *mapBox // the part to show; nil: all
	frame    mapFrame
	details  datasetDetails
	cells    []filesCell // nil: not counted yet
	bytes    int         // of the marks, about
}

// coverageLayer shows the files of one colour, or the missing cells.
type coverageLayer struct {
	Label string
	Color string
	Class string // of CSS
	Count int64
	Y     int // of the line in the legend
	Marks []coverageMark
}

// layerMissing is the index of the layer of missing cells.
const layerMissing = 0

// coverageMark is an SVG path and its tooltip. Short and Place are texts about an outlier.
type coverageMark struct {
	Path  string
	Title string
	Short string
	Place string
	Point string `json:"-"` // the longitude and latitude of the middle of a single file
}

// Bounds of the picture.
const (
	maxOutlined     = 2000    // files that are drawn one by one; more are drawn by cells of a grid
	maxFileBytes    = 700_000 // of the marks of all files, about
	maxMissingBytes = 150_000 // of the marks of missing cells, about; the others are only counted
	maxOutliers     = 10      // listed beside the map
)

// Bounds of a picture in a page, in place of those above. The pages stay below 60 kB.
const (
	pageOutlined     = 150
	pageFileBytes    = 24_000
	pageMissingBytes = 6_000
)

// Bounds of coasts and borders, also of a picture in a page.
const (
	maxCoastBytes  = 14_000
	maxBorderBytes = 5_000
	maxWorldBytes  = 4_000
)

// bounds returns the bounds of the picture: outlined files, bytes of files, and bytes of missing
// cells.
func (c *coverage) bounds() (outlined, fileBytes, missingBytes int) {
	if c.isInPage {
		return pageOutlined, pageFileBytes, pageMissingBytes
	}
	return maxOutlined, maxFileBytes, maxMissingBytes
}

// getCoverage answers GET /api/v1/datasets/{id}/coverage.svg, a map of the files.
func (c *catalogue) getCoverage(w http.ResponseWriter, r *http.Request, d dataset) error {
	by := r.URL.Query().Get("color")
	isColor := by == "" || by == "resolution" || by == "status"
	if !isColor {
		return invalid{{"color", fieldUnknown, "must be resolution or status"}}.err()
	}

	f, err := readFileFilter(r.URL.Query())
	if err != nil {
		return err
	}

	var drawn *coverage
	if f.box == nil {
		drawn, err = storedPicture(r.Context(), c.core.db, d, by == "status")
	}
	if err == nil && drawn == nil {
		drawn, err = drawView(r, c.core, d, coverage{byStatus: by == "status", view: f.box})
	}
	if err != nil {
		return err
	}

	drawn.Name = d.Name // it may have changed since the picture was stored
	var svg bytes.Buffer
	parsed := template.Must(template.New("coverage").Parse(coverageTemplate))
	if err := parsed.Execute(&svg, drawn); err != nil {
		return fmt.Errorf("draw coverage: %w", err)
	}

	const policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
	w.Header().Set("Content-Security-Policy", policy)
	return writeBytes(w, http.StatusOK, "image/svg+xml", svg.Bytes())
}

// storedPicture returns the picture of the whole dataset that the last analysis stored, or nil if
// there is none.
func storedPicture(ctx context.Context, q querier, d dataset, byStatus bool) (*coverage, error) {
	const query = `
		SELECT CASE WHEN $2 THEN picture_by_status ELSE picture END AS picture
		FROM dataset_results
		WHERE dataset_id = $1`

	stored, err := collectOne[struct{ Picture *coverage }](ctx, q, nil, "get picture", query, d.ID, byStatus)
	return stored.Picture, err
}

// drawView draws a part of the dataset or, if the view is nil, all of it. how has only the view,
// byStatus and isInPage.
func drawView(r *http.Request, core *core, d dataset, how coverage) (*coverage, error) {
	slots := callerOf(r).slots
	if err := slots.acquire(r.Context(), heavy); err != nil {
		return nil, err
	}
	defer slots.leavePool()

	draw := func(ctx context.Context, q querier) (*coverage, error) {
		grids, err := d.storedGrids(ctx, q)
		if err != nil {
			return nil, err
		}
		drawn, err := frameCoverage(ctx, q, d, how)
		if err != nil {
			return nil, err
		}
		return drawn, drawn.draw(ctx, q, grids)
	}
	return inSnapshot(r.Context(), core.db, draw)
}

// frameCoverage returns the picture of a dataset, or of a part of it, without its layers.
func frameCoverage(ctx context.Context, q querier, d dataset, how coverage) (c *coverage, err error) {
	c = &how
	c.Name = d.Name
	c.Summary = "no files"
	c.details, err = summarizeDataset(ctx, q, d)
	if err != nil {
		return nil, err
	}

	var counts []string
	for _, status := range fileStatuses() {
		n := c.details.Files[status]
		if n > 0 {
			counts = append(counts, fmt.Sprintf("%s: %d", status, n))
		}
	}
	if len(counts) > 0 {
		files := plural(c.details.Files["total"], "file")
		c.Summary = fmt.Sprintf("%s (%s)", files, strings.Join(counts, ", "))
	}

	if c.details.BBox != nil {
		err = c.setFrame(ctx, q)
	}
	return c, err
}

// draw draws the layers of a picture that has a frame.
func (c *coverage) draw(ctx context.Context, q querier, grids []tileGrid) error {
	// Each layer of files has a colour and a label.
	labels := `#440154 under 0.7 m
#443983 0.7 m to 1.5 m
#31688e 1.5 m to 7 m
#21918c 7 m to 15 m
#35b779 15 m to 70 m
#90d743 70 m to 200 m
#e5c800 200 m and more
#999999 unknown`
	if c.byStatus {
		labels = `#d95f02 ok, with warnings
#2a788e ok`
	}

	c.Layers = []coverageLayer{{
		Label: "missing cells",
		Color: "#d7191c",
		Class: "missing",
	}}
	for line := range strings.SplitSeq(labels, "\n") {
		color, label, _ := strings.Cut(line, " ")
		c.Layers = append(c.Layers, coverageLayer{
			Label: label,
			Color: color,
			Class: fmt.Sprint("files layer", len(c.Layers)), // a page has its own colours
		})
	}

	if c.details.BBox != nil {
		if err := c.drawFiles(ctx, q); err != nil {
			return err
		}
		if err := c.drawMissing(ctx, grids); err != nil {
			return err
		}
	}

	// The legend has a line for each layer that is not empty.
	c.Height = 670
	for i := range c.Layers {
		layer := &c.Layers[i]
		if layer.Count == 0 {
			continue
		}

		// The layers by pixel size have a heading.
		isByPixel := i != layerMissing && !c.byStatus
		if isByPixel && c.PixelsY == 0 {
			c.PixelsY = c.Height - 22
			c.Height += 20
		}

		layer.Y = c.Height - 34 // the height has room for the first line
		c.Height += 20
	}
	return nil
}

// pixelLimits returns the least pixel size of each layer of files, in metres. Usual pixel
// sizes lie inside a layer.
func pixelLimits() []float64 {
	return []float64{
		0,
		0.7,
		1.5,
		7,
		15,
		70,
		200,
		math.Inf(1), // unknown
	}
}

// Drawn returns the layers as they are drawn: missing cells and the finest files on top.
func (c *coverage) Drawn() []coverageLayer {
	layers := slices.Clone(c.Layers)
	slices.Reverse(layers)
	return layers
}

// setFrame sets the frame around the files that are no outliers, the list of outliers, and what
// shows the place on the globe.
func (c *coverage) setFrame(ctx context.Context, q querier) (err error) {
	if c.view != nil {
		// The map shows more than the view, because it has another shape.
		c.frame = frameFor(*c.view)
		c.All = c.frame.shown()
		c.view = &c.All
	} else {
		c.cells, err = c.filesCells(ctx, q, boxOf(c.details.BBox))
		if err != nil {
			return err
		}

		cells, outliers := splitOutliers(c.cells)
		c.All = joinCells(cells...).normalized()
		c.frame = frameFor(c.All)
		if len(outliers) > 0 {
			c.Extent = "without outliers, "
			c.Apart = joinCells(outliers...).N
			c.cells = nil // drawFiles counts the files again, in smaller cells
			if err := c.listOutliers(ctx, q); err != nil {
				return err
			}
		}
	}

	c.Extent += "extent: " + c.All.String()
	c.Lines = c.frame.graticule()
	c.ScaleBar, c.Scale = c.frame.scaleBar(c.All)
	c.World = worldFrame().coastline(lineCoast, maxWorldBytes)
	c.Here = worldFrame().mark(c.All.asFile())

	// On a map with a larger scale, the coast is off by more than some 20 pixels.
	const maxCoastScale = 1000 // pixels per degree
	if c.frame.perLat < maxCoastScale {
		c.Coast = c.frame.coastline(lineCoast, maxCoastBytes)
		c.Borders = c.frame.coastline(lineBorder, maxBorderBytes)
	}
	return nil
}

// filesCells counts the files in the cells of a grid of 256 columns and rows over a box. It counts
// files of each layer, with and without warnings, apart. A file counts in the cell that has its
// middle, or in the nearest cell if the middle is outside the box. On a zoomed map, files that do
// not meet the box are left out.
func (c *coverage) filesCells(ctx context.Context, q querier, box mapBox) ([]filesCell, error) {
	const query = `
		SELECT layer,
			is_warned,
			floor(least(greatest((west + span / 2 - $2) / $4, 0), 1) * 256)::bigint AS col,
			floor(least(greatest(((south + north) / 2 - $3) / $5, 0), 1) * 256)::bigint AS row,
			count(*) AS n,
			min(west) AS west,
			min(south) AS south,
			max(west + span) AS east,
			max(north) AS north
		FROM (
			SELECT bbox[2] AS south,
				bbox[4] AS north,
				bbox[1] + CASE
					WHEN CASE WHEN $7 THEN ` + fileEast + ` ELSE bbox[1] END < $2::float8 - 1e-6 THEN 360
					WHEN $7 AND bbox[1] > $2 + $4::float8 THEN -360
					ELSE 0
				END AS west,
				` + fileEast + ` - bbox[1] AS span,
				width_bucket(coalesce(resolution_m, 'infinity'), $6::float8[]) AS layer,
				warnings <> '{}' AS is_warned
			FROM elevation_dataset_file_meta f
			WHERE dataset_id = $1
				AND bbox IS NOT NULL
		) f
		WHERE NOT $7
			OR west <= $2 + $4 AND west + span >= $2 AND south <= $3 + $5 AND north >= $3
		GROUP BY 1, 2, 3, 4
		ORDER BY 1, 2, 3, 4`

	width := max(box.East-box.West, 1e-9)
	height := max(box.North-box.South, 1e-9)
	return collect[filesCell](
		ctx, q, "look where the files are", query,
		c.details.ID,
		box.West,
		box.South,
		width,
		height,
		pixelLimits(),
		c.view != nil,
	)
}

// coarser returns the cells of a grid that is coarser by a factor, for the layers of the picture.
func (c *coverage) coarser(factor int64) (coarse []filesCell) {
	at := map[[3]int64]int{} // indices in coarse, by layer, column and row

	for _, cell := range c.cells {
		if c.byStatus {
			cell.Layer = layerByStatus(cell.IsWarned)
		}

		k := [...]int64{
			int64(cell.Layer),
			cell.Col / factor,
			cell.Row / factor,
		}
		i, found := at[k]
		if found {
			coarse[i] = joinCells(coarse[i], cell)
			continue
		}
		at[k] = len(coarse)
		coarse = append(coarse, cell)
	}
	return coarse
}

// layerByStatus returns the index of the layer of files with or without warnings.
func layerByStatus(isWarned bool) int {
	if isWarned {
		return 1
	}
	return 2
}

// drawFiles draws each file if there are few. If there are many, it draws boxes around the files of
// each cell of a grid. It makes the grid coarser until the picture is small enough.
func (c *coverage) drawFiles(ctx context.Context, q querier) (err error) {
	located := fileFilter{
		datasetID: &c.details.ID,
		status:    new(fileStatusOK),
		box:       c.view,
	}
	outlined, maxBytes, _ := c.bounds()
	files, next, err := findFiles(ctx, q, located, firstFile(), outlined)
	if err != nil {
		return err
	}

	if next == nil {
		for _, file := range files {
			layer := c.layerOf(file.extent)
			c.addMark(layer, 1, coverageMark{
				Path:  c.frame.mark(file.extent),
				Title: xmlText(file.Path),
				Point: positionQuery(boxOf(file.BBox).middle()),
			})
			c.label(file)
		}
		if c.bytes <= maxBytes {
			return nil
		}
	}

	if c.cells == nil {
		c.cells, err = c.filesCells(ctx, q, c.All)
		if err != nil {
			return err
		}
	}

	for factor := int64(1); ; factor *= 2 {
		// Forget the marks of the files, or of the finer grid.
		c.bytes = 0
		c.Labels = nil
		for i := range c.Layers {
			c.Layers[i].Count = 0
			c.Layers[i].Marks = nil
		}

		for _, cell := range c.coarser(factor) {
			if err := ctx.Err(); err != nil {
				return err
			}
			c.addMark(cell.Layer, cell.N, coverageMark{Path: c.frame.mark(cell.asFile())})
		}
		if c.bytes <= maxBytes {
			return nil
		}
	}
}

// label writes the name of a file into its outline, where there is room for it.
func (c *coverage) label(file datasetFile) {
	const letter = 7 // pixels
	name := xmlText(path.Base(file.Path))
	width := letter * float64(utf8.RuneCountInString(name))

	for _, pixels := range c.frame.rings(file.extent) {
		around := emptyRange()
		around.add(pixels...)
		x := (around.west + around.east) / 2
		y := (around.south + around.north) / 2

		hasRoom := width < around.east-around.west
		if hasRoom && c.frame.shows(x, y, 0) {
			c.Labels = append(c.Labels, mapLine{
				Label: name,
				X:     math.Round(x),
				Y:     math.Round(y),
			})
		}
	}
}

// addMark adds a mark for count files or missing cells to a layer. Without a path it only counts
// them.
func (c *coverage) addMark(layer int, count int64, mark coverageMark) {
	l := &c.Layers[layer]
	l.Count += count
	if mark.Path == "" {
		return
	}

	l.Marks = append(l.Marks, mark)
	c.bytes += len(mark.Path) + 2*len(mark.Title) + 30 // a title grows where it is escaped
	if c.isInPage && mark.Point != "" {
		c.bytes += 100 // of a link
	}
}

// layerOf returns the index of a file's layer, as filesCells does.
func (c *coverage) layerOf(m extent) (layer int) {
	if c.byStatus {
		return layerByStatus(len(m.Warnings) > 0)
	}

	size := valueOr(m.ResolutionM, math.Inf(1))
	for _, limit := range pixelLimits() {
		if size >= limit {
			layer++
		}
	}
	return layer
}

// drawMissing draws the missing cells of the grids, neighbours in a row as one.
func (c *coverage) drawMissing(ctx context.Context, grids []tileGrid) error {
	_, _, most := c.bounds()
	most += c.bytes

	for _, g := range grids {
		for _, gap := range g.gaps {
			if err := ctx.Err(); err != nil {
				return err
			}

			n := c.cellsInView(g, gap)
			path := ""
			if n > 0 && c.bytes < most {
				path = c.frame.mark(g.tile(gap).file().extent)
			}
			c.addMark(layerMissing, n, coverageMark{Path: path})
		}
	}
	return nil
}

// cellsInView returns how many cells of a run the map shows, at least in part. If only a part of
// the run is on the map, it counts both halves of the run separately.
func (c *coverage) cellsInView(g tileGrid, run cellRun) int64 {
	n := run.To - run.From + 1
	if c.view == nil {
		return n
	}

	m := c.frame
	around := m.around(g.tile(run).file().extent)
	isBeside := around.east < m.left || around.west > m.left+m.width
	isAboveOrBelow := around.north < m.top || around.south > m.top+m.height
	if isBeside || isAboveOrBelow {
		return 0
	}
	isWithin := around.west >= m.left && around.east <= m.left+m.width
	if isWithin || n == 1 {
		return n
	}

	first := run
	second := run
	first.To = run.From + (n-1)/2
	second.From = first.To + 1
	return c.cellsInView(g, first) + c.cellsInView(g, second)
}

// listOutliers lists the first outliers, and marks them on the map of the world.
func (c *coverage) listOutliers(ctx context.Context, q querier) error {
	far := fileFilter{
		datasetID: &c.details.ID,
		box:       &c.All,
		isFar:     true,
	}
	files, _, err := findFiles(ctx, q, far, firstFile(), maxOutliers)

	for _, file := range files {
		name := xmlText(file.Path)
		short := []rune(name)
		if len(short) > 36 {
			short = append([]rune("…"), short[len(short)-35:]...)
		}

		lon := math.Round(file.BBox[0]*1000) / 1000
		lat := math.Round(file.BBox[1]*1000) / 1000
		c.Outliers = append(c.Outliers, coverageMark{
			Path:  worldFrame().mark(file.extent),
			Title: name,
			Short: string(short),
			Place: degrees(lon, "E", "W") + " " + degrees(lat, "N", "S"),
		})
	}
	c.Unlisted = c.Apart - int64(len(files))
	return err
}

// xmlText returns text without characters that XML 1.0 does not allow.
func xmlText(text string) string {
	replace := func(r rune) rune {
		if r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}
	return strings.Map(replace, cleanText([]byte(text), len(text)))
}
