package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
)

// coverageTemplate is the picture. html/template escapes the values in it.
//
//go:embed dataset_coverage.svg
var coverageTemplate string

// coverage holds the values of the template.
type coverage struct {
	Name, Summary, Box, Extent string
	Height                     int
	Lines                      []coverageLine
	Layers                     []*coverageLayer
	view                       coverageView
}

// coverageLine is a line of the graticule and its label.
type coverageLine struct {
	Path, Label, Anchor string
	X, Y                float64
}

// coverageLayer shows the files of one colour.
type coverageLayer struct {
	Label, Color string
	Path         string
	Count        int64
	Y, TextY     int
}

// coverageView projects degrees to pixels. A degree of longitude is everywhere as long as in the
// middle of the picture. Longitudes count on from west.
type coverageView struct{ west, lon, lat, perLon, perLat float64 }

// The map's frame in pixels, and the most files and bytes of the picture for outlines.
const (
	mapLeft, mapTop, mapWidth, mapHeight = 60, 60, 720, 540
	maxOutlined                          = 2000
	maxOutlines                          = 700_000
)

// at returns the pixel of a place.
func (v coverageView) at(lon, lat float64) (x, y float64) {
	const rounding = 1e-6
	if lon < v.west-rounding {
		lon += 360
	}
	return mapLeft + mapWidth/2 + (lon-v.lon)*v.perLon, mapTop + mapHeight/2 - (lat-v.lat)*v.perLat
}

// getCoverage answers GET /api/v1/datasets/{id}/coverage.svg, a map of the files.
func (s *server) getCoverage(w http.ResponseWriter, r *http.Request) error {
	by := r.URL.Query().Get("color")
	if by != "" && by != "resolution" && by != "status" {
		return invalid{{"color", "unknown", "must be resolution or status"}}.err()
	}
	d, err := s.pathDataset(r)
	if err != nil {
		return err
	}
	c, err := heavyQuery(s, r, func(ctx context.Context, q querier) (*coverage, error) {
		return drawCoverage(ctx, q, d, by == "status")
	})
	if err != nil {
		return err
	}
	page, err := template.New("coverage").Parse(coverageTemplate)
	if err != nil {
		return fmt.Errorf("parse coverage.svg: %w", err)
	}
	var svg bytes.Buffer
	if err := page.Execute(&svg, c); err != nil {
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
	c := newCoverage(details, byStatus)
	if details.BBox != nil {
		if err := c.drawFiles(ctx, q, details, byStatus); err != nil {
			return nil, err
		}
	}
	c.Height = 670 // with the first line of the legend
	for _, layer := range c.Layers {
		if layer.Count > 0 {
			layer.Y, layer.TextY = c.Height-34, c.Height-22
			c.Height += 20
		}
	}
	return c, nil
}

// newCoverage returns the picture without the files.
func newCoverage(d datasetDetails, byStatus bool) *coverage {
	c := &coverage{Name: d.Name, Summary: "no files"}
	var counts []string
	for _, status := range fileStatuses() {
		if n := d.Files[status]; n > 0 {
			counts = append(counts, fmt.Sprintf("%s: %d", status, n))
		}
	}
	if len(counts) > 0 {
		c.Summary = fmt.Sprintf("%d files (%s)", d.Files["total"], strings.Join(counts, ", "))
	}
	labels := [][2]string{{"pixels under 1 m", "#440154"}, {"1 m to 5 m", "#414487"}, {"5 m to 10 m", "#2a788e"}, {"10 m to 30 m", "#22a884"},
		{"30 m to 100 m", "#7ad151"}, {"100 m and more", "#d8c200"}, {"of unknown size", "#999999"}}
	if byStatus {
		labels = [][2]string{{"ok", "#2a788e"}, {"ok, with warnings", "#d95f02"}}
	}
	for _, label := range labels {
		c.Layers = append(c.Layers, &coverageLayer{Label: label[0], Color: label[1]})
	}
	if d.BBox == nil {
		return c
	}
	west, south, east, north := d.BBox[0], d.BBox[1], d.BBox[2], d.BBox[3]
	c.Box = fmt.Sprintf("extent: %s %s to %s %s", degrees(west, "E", "W"), degrees(south, "N", "S"), degrees(east, "E", "W"), degrees(north, "N", "S"))
	if east < west {
		east += 360
	}
	const margin = 1.06
	cos := max(0.02, math.Cos((south+north)/2*math.Pi/180))
	perLat := 1 / max((north-south)*margin/mapHeight, (east-west)*cos*margin/mapWidth, 1e-7)
	c.view = coverageView{west, (west + east) / 2, (south + north) / 2, perLat * cos, perLat}
	left, top := c.view.at(west, north)
	c.Extent = fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", left, top, (east-west)*c.view.perLon, (north-south)*c.view.perLat, -(east-west)*c.view.perLon)
	c.drawGraticule()
	return c
}

// degrees returns the label of an angle.
func degrees(v float64, positive, negative string) string {
	letter := map[int]string{-1: negative, 1: positive}[cmp.Compare(v, 0)]
	return fmt.Sprintf("%.6g°%s", math.Abs(math.Round(v*1e7)/1e7), letter)
}

// drawGraticule draws about six meridians and six parallels.
func (c *coverage) drawGraticule() {
	step := func(span float64) float64 {
		unit := math.Pow(10, math.Floor(math.Log10(span/4)))
		for _, step := range [...]float64{30, 15, 5 * unit, 2 * unit} {
			if span/step >= 4 {
				return step
			}
		}
		return unit
	}
	v, lons, lats := c.view, mapWidth/c.view.perLon, mapHeight/c.view.perLat
	every := step(lons)
	for i := math.Ceil((v.lon - lons/2) / every); i*every <= v.lon+lons/2; i++ {
		x := mapLeft + mapWidth/2 + (i*every-v.lon)*v.perLon
		label := degrees(math.Remainder(i*every, 360), "E", "W")
		c.Lines = append(c.Lines, coverageLine{fmt.Sprintf("M%.1f %dv%d", x, mapTop, mapHeight), label, "middle", math.Round(x), mapTop + mapHeight + 16})
	}
	every = step(lats)
	for i := math.Ceil(max(-90, v.lat-lats/2) / every); i*every <= min(90, v.lat+lats/2); i++ {
		_, y := v.at(v.lon, i*every)
		c.Lines = append(c.Lines, coverageLine{fmt.Sprintf("M%d %.1fh%d", mapLeft, y, mapWidth), degrees(i*every, "N", "S"), "end", mapLeft - 4, math.Round(y) + 4})
	}
}

// drawFiles draws the outline of each file if they are few, else the area they cover, in squares.
func (c *coverage) drawFiles(ctx context.Context, q querier, d datasetDetails, byStatus bool) error {
	if d.Files[fileStatusOK] <= maxOutlined {
		files, err := findFiles(ctx, q, fileFilter{datasetID: &d.ID, status: new(fileStatusOK)}, firstFile(), maxOutlined)
		if err != nil || c.drawOutlines(files, byStatus) <= maxOutlines {
			return err
		}
	}
	for square := 2; ; square *= 2 {
		if size, err := c.drawSquares(ctx, q, d.ID, byStatus, square); err != nil || size <= maxOutlines {
			return err
		}
	}
}

// drawOutlines draws the outline of each file. It returns the length of the paths.
func (c *coverage) drawOutlines(files []datasetFile, byStatus bool) (size int) {
	paths := make([]bytes.Buffer, len(c.Layers))
	for _, file := range files {
		layer := layerOf(file.ElevationDatasetFileMeta, byStatus)
		c.Layers[layer].Count++
		c.outline(&paths[layer], footprint(file.ElevationDatasetFileMeta))
	}
	return c.setPaths(paths)
}

// setPaths sets the path of each layer. It returns their length.
func (c *coverage) setPaths(paths []bytes.Buffer) (size int) {
	for i, layer := range c.Layers {
		layer.Path = paths[i].String()
		size += len(layer.Path)
	}
	return size
}

// layerOf returns the index of a file's layer.
func layerOf(m ElevationDatasetFileMeta, byStatus bool) (layer int) {
	switch {
	case byStatus:
		return min(1, len(m.Warnings))
	case m.ResolutionM == nil:
		return 6
	}
	for _, limit := range [...]float64{1, 5, 10, 30, 100} {
		if *m.ResolutionM >= limit {
			layer++
		}
	}
	return layer
}

// outline adds a footprint to a path. Each part counts its longitudes on from its own west.
func (c *coverage) outline(path *bytes.Buffer, parts multiPolygon) {
	for _, part := range parts {
		west := math.Inf(1)
		for _, p := range part[0] {
			west = min(west, p[0])
		}
		left, _ := c.view.at(west, 0)
		command := byte('M')
		for _, p := range part[0][1:] {
			_, y := c.view.at(west, p[1])
			fmt.Fprintf(path, "%c%.1f %.1f", command, left+(p[0]-west)*c.view.perLon, y)
			command = 'L'
		}
		path.WriteByte('z')
	}
}

// drawSquares draws the files' boxes in squares of so many pixels, finer files over coarser ones,
// and joins squares of one layer to rectangles. It returns the length of the paths.
func (c *coverage) drawSquares(ctx context.Context, q querier, datasetID int64, byStatus bool, square int) (size int, err error) {
	const query = `
		SELECT layer, x1, y1, x2, y2, count(*)
		FROM (
			SELECT
				CASE WHEN $7 THEN least(1, cardinality(warnings)) ELSE coalesce(width_bucket(resolution_m, ARRAY[1, 5, 10, 30, 100]::float8[]), 6) END AS layer,
				floor((west - $3) * $5)::int AS x1, floor(($4 - bbox[4]) * $6)::int AS y1,
				floor((west + span - $3) * $5 - 1e-3)::int AS x2, floor(($4 - bbox[2]) * $6 - 1e-3)::int AS y2
			FROM (
				SELECT warnings, resolution_m, bbox, bbox[1] + CASE WHEN bbox[1] < $2::float8 - 1e-6 THEN 360 ELSE 0 END AS west,
					bbox[3] - bbox[1] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END AS span
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $1 AND bbox IS NOT NULL
			) f
		) f
		GROUP BY layer, x1, y1, x2, y2
		ORDER BY layer DESC`
	columns, lines := mapWidth/square, mapHeight/square
	field := make([]byte, columns*lines) // the visible layer, from 1
	for _, layer := range c.Layers {
		layer.Count = 0
	}
	v := c.view
	rows, _ := q.Query(ctx, query, datasetID, v.west, v.lon-mapWidth/2/v.perLon, v.lat+mapHeight/2/v.perLat,
		v.perLon/float64(square), v.perLat/float64(square), byStatus) // its error comes back from ForEachRow
	var layer, x1, y1, x2, y2 int
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&layer, &x1, &y1, &x2, &y2, &n}, func() error {
		c.Layers[layer].Count += n
		for y := max(0, y1); y <= min(lines-1, max(y1, y2)); y++ {
			for x := max(0, x1); x <= min(columns-1, max(x1, x2)); x++ {
				field[y*columns+x] = byte(layer + 1)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read coverage: %w", err)
	}
	paths := make([]bytes.Buffer, len(c.Layers))
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
		fmt.Fprintf(&paths[value-1], "M%d %dh%dv%dh-%dz", mapLeft+at%columns*square, mapTop+at/columns*square, width*square, height*square, width*square)
	}
	return c.setPaths(paths), nil
}
