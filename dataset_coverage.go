package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// coverageTemplate is the picture's template. html/template escapes the values in it.
//
//go:embed dataset_coverage.svg
var coverageTemplate string

// coverage is the picture: the values of the template, and how it projects degrees to pixels.
type coverage struct {
	Name, Summary, Box, Extent   string
	Height                       int
	Lines                        []coverageLine
	Layers                       []*coverageLayer
	Missing                      coverageLayer
	Coast, World, ScaleBar, Here string
	Scale                        string
	Outliers                     []coverageNote
	Notes                        []coverageNote
	byStatus                     bool
	frame                        mapFrame
	all                          filesCell
}

// coverageNote is a line of text beside the map. Title is shown as a tooltip.
type coverageNote struct {
	Text, Title string
	X, Y        float64
	Dot         string // the path of a mark on the map of the world
}

// coverageLayer shows the files of one colour: one by one, or their joined area.
type coverageLayer struct {
	Label, Color string
	Count        int64
	Y, TextY     int
	Files        []coverageFile
	path         bytes.Buffer
	size         int // of the files' paths and titles, in bytes
}

// coverageFile is the outline of a file and its tooltip.
type coverageFile struct{ Path, Title string }

// Path returns the layer's squares.
func (l *coverageLayer) Path() string { return l.path.String() }

// Drawn returns the layers that show anything in the order in which they are drawn: the finest on
// top, or files with warnings.
func (c *coverage) Drawn() []*coverageLayer {
	layers := slices.Clone(c.Layers)
	if !c.byStatus {
		slices.Reverse(layers)
	}
	return slices.DeleteFunc(layers, func(l *coverageLayer) bool { return l.Count == 0 })
}

// Bounds of the picture: the most files that are drawn one by one, their bytes, the most missing
// cells that are, the most files of a dataset whose grids are looked for, and the most outliers
// listed.
const (
	maxOutlined = 2000
	maxOutlines = 700_000
	maxMissing  = 2000
	maxGridded  = 100_000
	maxOutliers = 10
)

// getCoverage answers GET /api/v1/datasets/{id}/coverage.svg, a map of the files.
func (s *server) getCoverage(w http.ResponseWriter, r *http.Request) error {
	by := r.URL.Query().Get("color")
	if by != "" && by != "resolution" && by != "status" {
		return invalid{{"color", "unknown", "must be resolution or status"}}.err()
	}
	_, c, err := heavyQuery(s, r, func(d dataset, ctx context.Context, q querier) (*coverage, error) {
		return drawCoverage(ctx, q, d, by == "status")
	})
	if err != nil {
		return err
	}
	var svg bytes.Buffer
	if err := template.Must(template.New("coverage").Parse(coverageTemplate)).Execute(&svg, c); err != nil {
		return fmt.Errorf("draw coverage: %w", err)
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	return writeBytes(w, http.StatusOK, "image/svg+xml", svg.Bytes())
}

// drawCoverage returns the picture of a dataset.
func drawCoverage(ctx context.Context, q querier, d dataset, byStatus bool) (*coverage, error) {
	details, err := summarizeDataset(ctx, q, d)
	if err != nil {
		return nil, err
	}
	c := &coverage{Name: d.Name, Summary: "no files", byStatus: byStatus, Height: 670}
	var counts []string
	for _, status := range fileStatuses() {
		if n := details.Files[status]; n > 0 {
			counts = append(counts, fmt.Sprintf("%s: %d", status, n))
		}
	}
	if len(counts) > 0 {
		c.Summary = fmt.Sprintf("%d files (%s)", details.Files["total"], strings.Join(counts, ", "))
	}
	labels := [][2]string{
		{"pixels under 0.7 m", "#440154"}, {"0.7 m to 1.5 m", "#443983"}, {"1.5 m to 7 m", "#31688e"},
		{"7 m to 15 m", "#21918c"}, {"15 m to 70 m", "#35b779"}, {"70 m to 200 m", "#90d743"},
		{"200 m and more", "#e5c800"}, {"of unknown size", "#999999"},
	}
	if byStatus {
		labels = [][2]string{{"ok", "#2a788e"}, {"ok, with warnings", "#d95f02"}}
	}
	for _, label := range labels {
		c.Layers = append(c.Layers, &coverageLayer{Label: label[0], Color: label[1]})
	}
	c.Missing = coverageLayer{Label: "missing cells", Color: "#d7191c"}
	if details.BBox != nil {
		if err := c.drawMap(ctx, q, details); err != nil {
			return nil, err
		}
	}
	for _, layer := range append(slices.Clone(c.Layers), &c.Missing) {
		if layer.Count > 0 {
			layer.Y, layer.TextY = c.Height-34, c.Height-22 // Height has room for the first of them
			c.Height += 20
		}
	}
	return c, nil
}

// drawMap draws the files that are no outliers, and all that helps to find them on the globe.
func (c *coverage) drawMap(ctx context.Context, q querier, d datasetDetails) error {
	cells, err := filesCells(ctx, q, d.ID, d.BBox)
	if err != nil {
		return err
	}
	cells, outliers := splitOutliers(cells)
	c.all = joinCells(cells)
	c.frame = frameFor(cells)
	c.drawExtent(len(outliers) > 0)
	c.Lines = c.frame.graticule(c.all)
	var length float64
	length, c.Scale = c.frame.scaleBar(c.all)
	c.ScaleBar = fmt.Sprintf("M%d %dv6h%.1fv-6", mapLeft+14, mapTop+mapHeight-20, length)
	world := worldFrame()
	c.World = world.coastline(func(float64, float64) bool { return true })
	c.Here = world.spot(c.all)
	const coarsest = 90 // pixels per degree: beyond it the coast is off by more than some 20 pixels
	if c.frame.perLat < coarsest {
		c.Coast = c.frame.coastline(func(x, y float64) bool { return c.frame.shows(x, y, 40) })
	}
	if err := c.drawFiles(ctx, q, d); err != nil {
		return err
	}
	if err := c.drawMissing(ctx, q, d); err != nil {
		return err
	}
	return c.listOutliers(ctx, q, d.ID, outliers)
}

// filesCells returns the cells of a grid over a box that have files, and how many.
func filesCells(ctx context.Context, q querier, datasetID int64, box []float64) ([]filesCell, error) {
	const query = `
		SELECT floor((west + span / 2 - $2) * 256 / $3)::bigint AS col,
			floor(((south + north) / 2 - $4) * 256 / $5)::bigint AS row,
			count(*) AS n, min(west) AS west, min(south) AS south, max(west + span) AS east, max(north) AS north
		FROM (
			SELECT bbox[2] AS south, bbox[4] AS north,
				bbox[1] + CASE WHEN bbox[1] < $2::float8 - 1e-6 THEN 360 ELSE 0 END AS west,
				bbox[3] - bbox[1] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END AS span
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $1 AND bbox IS NOT NULL
		) f
		GROUP BY 1, 2
		ORDER BY 1, 2`
	width := box[2] - box[0]
	if width <= 0 {
		width += 360
	}
	return collect[filesCell](ctx, q, "look where the files are", query, datasetID, box[0], width, box[1],
		max(box[3]-box[1], 1e-9))
}

// drawExtent draws and writes the box around the files of the map.
func (c *coverage) drawExtent(isPart bool) {
	west, south, east, north := c.all.West, c.all.South, c.all.East, c.all.North
	if east-west >= 360 {
		west, east = -180, 180
	}
	c.Box = fmt.Sprintf("extent: %s %s to %s %s",
		degrees(math.Remainder(west, 360), "E", "W"), degrees(south, "N", "S"),
		degrees(math.Remainder(east, 360), "E", "W"), degrees(north, "N", "S"))
	if isPart {
		c.Box = "without outliers, " + c.Box
	}
	if c.frame.pole == 0 {
		left, top := c.frame.at(west, north)
		width, height := (east-west)*c.frame.perLon, (north-south)*c.frame.perLat
		c.Extent = fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", left, top, width, height, -width)
	}
}

// spot returns the path of a rectangle around a place on the map of the world, large enough to see.
func (m mapFrame) spot(place filesCell) string {
	const least = 6
	left, top := m.at(math.Remainder(place.West, 360), place.North)
	width, height := (place.East-place.West)*m.perLon, (place.North-place.South)*m.perLat
	if left+width > worldLeft+worldWidth+1 { // across 180°
		left, width = worldLeft, worldWidth
	}
	w, h := max(least, width), max(least, height)
	return fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", left+(width-w)/2, top+(height-h)/2, w, h, -w)
}

// listOutliers lists the first files that lie apart from the others, and marks them on the map of
// the world.
func (c *coverage) listOutliers(ctx context.Context, q querier, datasetID int64, cells []filesCell) error {
	total, listed, line := int64(0), map[string]bool{}, 0.0
	note := func(title, format string, args ...any) {
		c.Outliers = append(c.Outliers, coverageNote{Text: fmt.Sprintf(format, args...), Title: title, X: worldLeft,
			Y: worldTop + worldWidth/2 + 30 + line})
		line += 16
	}
	for _, cell := range cells {
		total += cell.N
	}
	if total > 0 {
		note("", "%s far from the others, not on the map:", counted(total, "file", "files"))
	}
	for _, cell := range cells {
		west, east := math.Remainder(cell.West, 360), math.Remainder(cell.West, 360)+cell.East-cell.West
		f := fileFilter{datasetID: &datasetID, west: &west, south: &cell.South, east: &east, north: &cell.North}
		files, err := findFiles(ctx, q, f, firstFile(), maxOutliers)
		if err != nil {
			return err
		}
		for _, file := range files {
			if listed[file.Path] || len(listed) == maxOutliers {
				continue
			}
			listed[file.Path] = true
			name := xmlText(file.Path)
			short := []rune(name)
			if len(short) > 36 {
				short = append([]rune("…"), short[len(short)-35:]...)
			}
			note(name, "%s", string(short))
			note(name, "  at %s %s", degrees(math.Round(file.BBox[0]*1000)/1000, "E", "W"),
				degrees(math.Round(file.BBox[1]*1000)/1000, "N", "S"))
			c.Outliers[len(c.Outliers)-1].Dot = worldFrame().spot(filesCell{West: file.BBox[0], East: file.BBox[0],
				South: file.BBox[1], North: file.BBox[1]})
		}
	}
	if rest := total - int64(len(listed)); rest > 0 {
		note("", "and %d more", rest)
	}
	return nil
}

// xmlText returns text without characters that XML 1.0 does not allow.
func xmlText(text string) string {
	return strings.Map(func(r rune) rune {
		if r == 0xfffe || r == 0xffff {
			return utf8.RuneError
		}
		return r
	}, cleanText([]byte(text), len(text)))
}

// drawMissing draws the missing cells of the dataset's grids: each, or joined in rows if they are
// many.
func (c *coverage) drawMissing(ctx context.Context, q querier, d datasetDetails) error {
	if d.Files[fileStatusOK] > maxGridded {
		text := fmt.Sprintf("missing cells: not looked for in more than %d files", maxGridded)
		c.Notes = append(c.Notes, coverageNote{Text: text})
		return nil
	}
	grids, err := d.grids(ctx, q)
	for _, g := range grids {
		c.Missing.Count += g.Missing
	}
	join, drawn := c.Missing.Count > maxMissing, 0
	for _, g := range grids {
		for _, gap := range g.gaps {
			for from := gap.From; from <= gap.To && drawn < maxMissing; drawn++ {
				to := from
				if join {
					to = gap.To
				}
				x, y := g.X+float64(from)*g.East, g.Y+float64(gap.Row)*g.North
				maxX := x + float64(to-from+1)*g.East
				tile := missingTile{CRS: g.CRS, MinX: x, MinY: y, MaxX: maxX, MaxY: y + g.North}
				c.Missing.path.WriteString(c.frame.mark(tile.file()))
				from = to + 1
			}
		}
	}
	return err
}

// drawFiles draws the outline of each file if they are few, else the area they cover, in squares.
func (c *coverage) drawFiles(ctx context.Context, q querier, d datasetDetails) error {
	few := d.Files[fileStatusOK] <= maxOutlined
	if few {
		located := fileFilter{datasetID: &d.ID, status: new(fileStatusOK)}
		files, err := findFiles(ctx, q, located, firstFile(), maxOutlined)
		if err != nil {
			return err
		}
		for _, file := range files {
			layer := c.Layers[c.layerOf(file.ElevationDatasetFileMeta)]
			outline := coverageFile{c.frame.mark(file.ElevationDatasetFileMeta), xmlText(file.Path)}
			layer.Count++
			layer.Files = append(layer.Files, outline)
			layer.size += len(outline.Path) + 2*len(outline.Title) // a title grows where it is escaped
		}
	}
	size := func() (size int) {
		for _, layer := range c.Layers {
			size += layer.path.Len() + layer.size
		}
		return size
	}
	for square := 2; square == 2 && !few || size() > maxOutlines; square *= 2 {
		if err := c.drawSquares(ctx, q, d.ID, square); err != nil {
			return err
		}
	}
	return nil
}

// layerOf returns the index of a file's layer.
func (c *coverage) layerOf(m ElevationDatasetFileMeta) (layer int) {
	switch {
	case c.byStatus:
		return min(1, len(m.Warnings))
	case m.ResolutionM == nil:
		return len(c.Layers) - 1
	}
	for _, limit := range [...]float64{0.7, 1.5, 7, 15, 70, 200} { // usual sizes lie inside
		if *m.ResolutionM >= limit {
			layer++
		}
	}
	return layer
}

// drawSquares draws the files' boxes in squares of so many pixels, finer files over coarser ones,
// and joins squares of one layer to rectangles. It replaces the paths of all layers. On a polar map
// the boxes are first put into squares of longitude and latitude, and these on the map.
func (c *coverage) drawSquares(ctx context.Context, q querier, datasetID int64, square int) error {
	const query = `
		SELECT layer, x1, y1, x2, y2, count(*)
		FROM (
			SELECT
				CASE
					WHEN $7 THEN least(1, cardinality(warnings))
					ELSE coalesce(width_bucket(resolution_m, ARRAY[0.7, 1.5, 7, 15, 70, 200]::float8[]), 7)
				END AS layer,
				floor((west - $3) * $5)::int AS x1, floor(($4 - bbox[4]) * $6)::int AS y1,
				floor((west + span - $3) * $5 - 1e-3)::int AS x2, floor(($4 - bbox[2]) * $6 - 1e-3)::int AS y2
			FROM (
				SELECT warnings, resolution_m, bbox,
					bbox[1] + CASE WHEN bbox[1] < $2::float8 - 1e-6 THEN 360 ELSE 0 END AS west,
					bbox[3] - bbox[1] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END AS span
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $1 AND bbox IS NOT NULL
			) f
		) f
		GROUP BY layer, x1, y1, x2, y2
		ORDER BY CASE WHEN $7 THEN layer ELSE -layer END`
	columns, lines := mapWidth/square, mapHeight/square
	field := make([]byte, columns*lines) // the visible layer, from 1
	for _, layer := range c.Layers {
		layer.Count, layer.Files, layer.size = 0, nil, 0
		layer.path.Reset()
	}
	frame := c.frame
	left, top := frame.lon-mapWidth/2/frame.perLon, frame.lat+mapHeight/2/frame.perLat
	perLon, perLat := frame.perLon/float64(square), frame.perLat/float64(square)
	if frame.pole != 0 {
		left, top, perLon, perLat = -180, 90, 2*perLon, 2*perLat
	}
	paint := func(x, y, layer int) {
		if x >= 0 && x < columns && y >= 0 && y < lines {
			field[y*columns+x] = byte(layer + 1)
		}
	}
	// Its error comes back from ForEachRow.
	rows, _ := q.Query(ctx, query, datasetID, frame.west, left, top, perLon, perLat, c.byStatus)
	var layer, x1, y1, x2, y2 int
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&layer, &x1, &y1, &x2, &y2, &n}, func() error {
		c.Layers[layer].Count += n
		if frame.pole != 0 {
			for y := y1; y <= max(y1, y2); y++ {
				lat := max(-90, min(90, 90-(float64(y)+0.5)/perLat))
				step := max(1, int(40/(90-frame.pole*lat+0.1))) // near the pole longitudes lie close together
				for x := x1; x <= max(x1, x2); x += step {
					px, py := frame.at((float64(x)+0.5)/perLon-180, lat)
					column, row := math.Floor((px-mapLeft)/float64(square)), math.Floor((py-mapTop)/float64(square))
					paint(int(column), int(row), layer)
				}
			}
			return nil
		}
		for y := max(0, y1); y <= min(lines-1, max(y1, y2)); y++ {
			for x := max(0, x1); x <= min(columns-1, max(x1, x2)); x++ {
				paint(x, y, layer)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read coverage: %w", err)
	}
	c.joinSquares(field, columns, square)
	return nil
}

// joinSquares writes the squares of a field as rectangles of one layer each, and clears the field.
func (c *coverage) joinSquares(field []byte, columns, square int) {
	for at, value := range field {
		if value == 0 {
			continue
		}
		width, height := 1, 1
		for (at+width)%columns != 0 && field[at+width] == value {
			width++
		}
		run := bytes.Clone(field[at : at+width])
		for below := at + columns; below < len(field) && bytes.Equal(field[below:below+width], run); below += columns {
			clear(field[below : below+width])
			height++
		}
		clear(field[at : at+width])
		left, top := mapLeft+at%columns*square, mapTop+at/columns*square
		fmt.Fprintf(&c.Layers[value-1].path, "M%d %dh%dv%dh-%dz", left, top, width*square, height*square, width*square)
	}
}
