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

// coverageTemplate is the picture's template. html/template escapes the values in it.
//
//go:embed dataset_coverage.svg
var coverageTemplate string

// coverage is the picture: the values of the template, and how it projects degrees to pixels.
type coverage struct {
	Name, Summary, Box, Extent string
	Height                     int
	Lines                      []coverageLine
	Layers                     []*coverageLayer
	byStatus                   bool

	// A degree of longitude is everywhere as long as in the middle of the picture, at lon and lat.
	// Longitudes count on from west. perLon and perLat are pixels per degree.
	west, lon, lat, perLon, perLat float64
}

// coverageLine is a line of the graticule and its label.
type coverageLine struct {
	Path, Label, Anchor string
	X, Y                float64
}

// coverageLayer shows the files of one colour.
type coverageLayer struct {
	Label, Color string
	Count        int64
	Y, TextY     int
	path         bytes.Buffer
}

// Path returns the layer's outlines or squares.
func (l *coverageLayer) Path() string { return l.path.String() }

// The map's frame in pixels, and the most files and bytes of the picture for outlines.
const (
	mapLeft, mapTop, mapWidth, mapHeight = 60, 60, 720, 540
	maxOutlined                          = 2000
	maxOutlines                          = 700_000
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
		{"pixels under 1 m", "#440154"}, {"1 m to 5 m", "#414487"}, {"5 m to 10 m", "#2a788e"},
		{"10 m to 30 m", "#22a884"}, {"30 m to 100 m", "#7ad151"}, {"100 m and more", "#d8c200"},
		{"of unknown size", "#999999"},
	}
	if byStatus {
		labels = [][2]string{{"ok", "#2a788e"}, {"ok, with warnings", "#d95f02"}}
	}
	for _, label := range labels {
		c.Layers = append(c.Layers, &coverageLayer{Label: label[0], Color: label[1]})
	}
	if details.BBox != nil {
		c.drawExtent(details.BBox)
		c.drawGraticule()
		if err := c.drawFiles(ctx, q, details); err != nil {
			return nil, err
		}
	}
	for _, layer := range c.Layers { // Height has room for the first line of the legend
		if layer.Count > 0 {
			layer.Y, layer.TextY = c.Height-34, c.Height-22
			c.Height += 20
		}
	}
	return c, nil
}

// drawExtent fits the map to a box in degrees, and draws the box.
func (c *coverage) drawExtent(box []float64) {
	const margin = 1.06
	west, south, east, north := box[0], box[1], box[2], box[3]
	c.Box = fmt.Sprintf("extent: %s %s to %s %s",
		degrees(west, "E", "W"), degrees(south, "N", "S"), degrees(east, "E", "W"), degrees(north, "N", "S"))
	if east < west {
		east += 360
	}
	c.west, c.lon, c.lat = west, (west+east)/2, (south+north)/2
	cos := max(0.02, math.Cos(c.lat*math.Pi/180))
	c.perLat = 1 / max((north-south)*margin/mapHeight, (east-west)*cos*margin/mapWidth, 1e-7)
	c.perLon = c.perLat * cos
	left, top := c.at(west, north)
	width, height := (east-west)*c.perLon, (north-south)*c.perLat
	c.Extent = fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", left, top, width, height, -width)
}

// at returns the pixel of a place.
func (c *coverage) at(lon, lat float64) (x, y float64) {
	const rounding = 1e-6
	if lon < c.west-rounding {
		lon += 360
	}
	return mapLeft + mapWidth/2 + (lon-c.lon)*c.perLon, mapTop + mapHeight/2 - (lat-c.lat)*c.perLat
}

// degrees returns the label of an angle.
func degrees(v float64, positive, negative string) string {
	letter := map[int]string{-1: negative, 1: positive}[cmp.Compare(v, 0)]
	return fmt.Sprintf("%.6g°%s", math.Abs(math.Round(v*1e7)/1e7), letter)
}

// drawGraticule draws about six meridians and six parallels.
func (c *coverage) drawGraticule() {
	draw := func(span, from, to float64, line func(at float64) coverageLine) {
		unit := math.Pow(10, math.Floor(math.Log10(span/4)))
		every := unit
		for _, step := range [...]float64{2 * unit, 5 * unit, 15, 30} {
			if span/step >= 4 {
				every = step
			}
		}
		for i := math.Ceil(from / every); i*every <= to; i++ {
			c.Lines = append(c.Lines, line(i*every))
		}
	}
	lons, lats := mapWidth/c.perLon, mapHeight/c.perLat
	draw(lons, c.lon-lons/2, c.lon+lons/2, func(lon float64) coverageLine {
		x := mapLeft + mapWidth/2 + (lon-c.lon)*c.perLon
		path, label := fmt.Sprintf("M%.1f %dv%d", x, mapTop, mapHeight), degrees(math.Remainder(lon, 360), "E", "W")
		return coverageLine{path, label, "middle", math.Round(x), mapTop + mapHeight + 16}
	})
	draw(lats, max(-90, c.lat-lats/2), min(90, c.lat+lats/2), func(lat float64) coverageLine {
		_, y := c.at(c.lon, lat)
		path, label := fmt.Sprintf("M%d %.1fh%d", mapLeft, y, mapWidth), degrees(lat, "N", "S")
		return coverageLine{path, label, "end", mapLeft - 4, math.Round(y) + 4}
	})
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
			c.drawOutline(file.ElevationDatasetFileMeta)
		}
	}
	size := func() (size int) {
		for _, layer := range c.Layers {
			size += layer.path.Len()
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

// drawOutline draws the outline of a file. Each part counts its longitudes on from its own west.
func (c *coverage) drawOutline(m ElevationDatasetFileMeta) {
	layer := c.Layers[c.layerOf(m)]
	layer.Count++
	for _, part := range footprint(m) {
		west := math.Inf(1)
		for _, p := range part[0] {
			west = min(west, p[0])
		}
		command := 'M'
		for _, p := range part[0][1:] {
			x, y := c.at(west, p[1])
			fmt.Fprintf(&layer.path, "%c%.1f %.1f", command, x+(p[0]-west)*c.perLon, y)
			command = 'L'
		}
		layer.path.WriteByte('z')
	}
}

// layerOf returns the index of a file's layer.
func (c *coverage) layerOf(m ElevationDatasetFileMeta) (layer int) {
	switch {
	case c.byStatus:
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

// drawSquares draws the files' boxes in squares of so many pixels, finer files over coarser ones,
// and joins squares of one layer to rectangles. It replaces the paths of all layers.
func (c *coverage) drawSquares(ctx context.Context, q querier, datasetID int64, square int) error {
	const query = `
		SELECT layer, x1, y1, x2, y2, count(*)
		FROM (
			SELECT
				CASE
					WHEN $7 THEN least(1, cardinality(warnings))
					ELSE coalesce(width_bucket(resolution_m, ARRAY[1, 5, 10, 30, 100]::float8[]), 6)
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
		ORDER BY layer DESC`
	columns, lines := mapWidth/square, mapHeight/square
	field := make([]byte, columns*lines) // the visible layer, from 1
	for _, layer := range c.Layers {
		layer.Count = 0
		layer.path.Reset()
	}
	rows, _ := q.Query(ctx, query, datasetID, c.west, c.lon-mapWidth/2/c.perLon, c.lat+mapHeight/2/c.perLat,
		c.perLon/float64(square), c.perLat/float64(square), c.byStatus) // its error comes back from ForEachRow
	var layer, x1, y1, x2, y2 int
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&layer, &x1, &y1, &x2, &y2, &n}, func() error {
		c.Layers[layer].Count += n
		for y := max(0, y1); y <= min(lines-1, max(y1, y2)); y++ {
			for x := max(0, x1); x <= min(columns-1, max(x1, x2)); x++ {
				field[y*columns+x] = byte(layer + 1)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read coverage: %w", err)
	}
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
	return nil
}
