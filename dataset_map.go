package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// coastlineCSV is the world's coastline. The comment at its head names its source.
//
//go:embed coastline.csv
var coastlineCSV string

// mapFrame projects degrees to pixels. A map has a degree of longitude everywhere as long as at its
// middle, at lon and lat, or it looks at a pole from above (azimuthal equidistant projection).
type mapFrame struct {
	pole           float64 // 1: the North Pole, -1: the South Pole, 0: neither
	west, lon, lat float64 // longitudes count on from west
	perLon, perLat float64 // pixels per degree; for a pole, perLat counts from it
	x, y           float64 // the pixel of the middle; for a pole, that of the pole
}

// The map in the picture, in pixels, and the map of the world beside it.
const (
	mapLeft, mapTop, mapWidth, mapHeight = 60, 60, 720, 540
	worldLeft, worldTop, worldWidth      = 800, 60, 240
	metresPerDegree                      = 111_195 // of latitude
)

// filesCell is the part of a dataset whose files have their middle in one cell of a grid.
// Longitudes count on, so that east is at least west.
type filesCell struct {
	Col, Row, N              int64
	West, South, East, North float64
}

// join returns a cell that holds both.
func (a filesCell) join(b filesCell) filesCell {
	return filesCell{N: a.N + b.N, West: min(a.West, b.West), South: min(a.South, b.South),
		East: max(a.East, b.East), North: max(a.North, b.North)}
}

// joinCells returns a cell that holds all; there is at least one.
func joinCells(cells []filesCell) filesCell {
	all := cells[0]
	for _, cell := range cells[1:] {
		all = all.join(cell)
	}
	return all
}

// size returns the larger side of a cell, in degrees of latitude.
func (a filesCell) size() float64 {
	return max(a.North-a.South, (a.East-a.West)*math.Cos((a.North+a.South)/2*math.Pi/180))
}

// splitOutliers takes the outliers out of cells: at most a twentieth of the files, at one end of
// the rest and farther from it than it is large.
func splitOutliers(cells []filesCell) (rest, outliers []filesCell) {
	left := joinCells(cells).N / 20
	if joinCells(cells).N >= 4 {
		left = max(left, 1)
	}
	sides := [...]func(filesCell) (from, to float64){
		func(c filesCell) (float64, float64) { return c.West, c.East },
		func(c filesCell) (float64, float64) { return -c.East, -c.West },
		func(c filesCell) (float64, float64) { return c.South, c.North },
		func(c filesCell) (float64, float64) { return -c.North, -c.South },
	}
	rest = slices.Clone(cells)
	for found := true; found; {
		found = false
		for i, side := range sides {
			slices.SortFunc(rest, func(a, b filesCell) int {
				fromA, _ := side(a)
				fromB, _ := side(b)
				return cmp.Compare(fromA, fromB)
			})
			others := slices.Clone(rest) // from each cell on, all together
			for n := len(rest) - 2; n >= 0; n-- {
				others[n] = others[n].join(others[n+1])
			}
			apart := rest[0]
			for n := 1; n < len(rest) && apart.N <= left; n++ { // the first n lie apart from the others
				_, end := side(apart)
				start, _ := side(others[n])
				gap := start - end
				if i < 2 {
					gap *= math.Cos((others[n].South + others[n].North) / 2 * math.Pi / 180)
				}
				if gap > others[n].size() {
					outliers, rest, left, found = append(outliers, rest[:n]...), rest[n:], left-apart.N, true
					break
				}
				apart = apart.join(rest[n])
			}
		}
	}
	return rest, outliers
}

// frameFor returns the frame that shows the cells.
func frameFor(cells []filesCell) mapFrame {
	const margin = 1.06
	all := joinCells(cells)
	m := mapFrame{west: all.West, lon: (all.West + all.East) / 2, lat: (all.South + all.North) / 2,
		x: mapLeft + mapWidth/2, y: mapTop + mapHeight/2}
	near, far := all.South, all.North // of the equator
	if m.lat < 0 {
		near, far = -all.North, -all.South
	}
	if near < 60 && (near < 40 || far < 80) {
		cos := max(0.02, math.Cos(m.lat*math.Pi/180))
		m.perLat = 1 / max((all.North-all.South)*margin/mapHeight, (all.East-all.West)*cos*margin/mapWidth, 1e-7)
		m.perLon = m.perLat * cos
		return m
	}
	m.pole = math.Copysign(1, m.lat)
	if all.East-all.West > 180 { // else the meridian in the middle points to the pole, up or down
		m.lon = 0
	}
	m.x, m.y, m.perLat = 0, 0, 1
	left, top, right, bottom := math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, cell := range cells {
		const steps = 32
		for i := range steps + 1 {
			for _, lat := range [...]float64{cell.South, cell.North} {
				x, y := m.at(cell.West+(cell.East-cell.West)*float64(i)/steps, lat)
				left, top, right, bottom = min(left, x), min(top, y), max(right, x), max(bottom, y)
			}
		}
	}
	m.perLat = 1 / max((bottom-top)*margin/mapHeight, (right-left)*margin/mapWidth, 1e-7)
	m.perLon = m.perLat
	m.x = mapLeft + mapWidth/2 - (left+right)/2*m.perLat
	m.y = mapTop + mapHeight/2 - (top+bottom)/2*m.perLat
	return m
}

// worldFrame is the frame of the map of the world.
func worldFrame() mapFrame {
	const scale = worldWidth / 360.0
	return mapFrame{west: -180, perLon: scale, perLat: scale, x: worldLeft + worldWidth/2, y: worldTop + worldWidth/4}
}

// at returns the pixel of a place. Longitudes left of the map's west count as 360 degrees further
// east.
func (m mapFrame) at(lon, lat float64) (x, y float64) {
	const rounding = 1e-6
	if m.pole != 0 {
		sin, cos := math.Sincos((lon - m.lon) * math.Pi / 180)
		r := (90 - m.pole*lat) * m.perLat
		return m.x + r*sin, m.y + m.pole*r*cos
	}
	if lon < m.west-rounding {
		lon += 360
	}
	return m.x + (lon-m.lon)*m.perLon, m.y - (lat-m.lat)*m.perLat
}

// shows reports whether a pixel lies in the map, or outside it by less than a margin.
func (m mapFrame) shows(x, y, margin float64) bool {
	return x >= mapLeft-margin && x <= mapLeft+mapWidth+margin && y >= mapTop-margin && y <= mapTop+mapHeight+margin
}

// ring returns the SVG path of a ring and the box around it in pixels. The ring's longitudes count
// on from its own west.
func (m mapFrame) ring(ring []position) (path string, left, top, right, bottom float64) {
	var b strings.Builder
	left, top, right, bottom = math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	west := math.Inf(1)
	for _, p := range ring {
		west = min(west, p[0])
	}
	command := 'M'
	for i, p := range ring[1:] {
		steps := 1
		if m.pole != 0 { // a parallel is an arc
			steps = 1 + int(math.Abs(p[0]-ring[i][0])/3)
		}
		for step := 1; step <= steps; step++ {
			part := float64(step) / float64(steps)
			lon, lat := ring[i][0]+(p[0]-ring[i][0])*part, ring[i][1]+(p[1]-ring[i][1])*part
			x, y := m.at(west, lat)
			if x += (lon - west) * m.perLon; m.pole != 0 {
				x, y = m.at(lon, lat)
			}
			left, top, right, bottom = min(left, x), min(top, y), max(right, x), max(bottom, y)
			fmt.Fprintf(&b, "%c%.1f %.1f", command, x, y)
			command = 'L'
		}
	}
	b.WriteByte('z')
	return b.String(), left, top, right, bottom
}

// mark returns the SVG path of a file or a missing cell: its outline, or a square of minMark pixels
// in its middle if it would be smaller.
func (m mapFrame) mark(meta ElevationDatasetFileMeta) string {
	const minMark = 4
	path, left, top, right, bottom := "", math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, part := range footprint(meta) {
		p, l, t, r, b := m.ring(part[0])
		path, left, top, right, bottom = path+p, min(left, l), min(top, t), max(right, r), max(bottom, b)
	}
	width, height := max(minMark, right-left), max(minMark, bottom-top)
	if path == "" || right-left >= minMark && bottom-top >= minMark {
		return path
	}
	return fmt.Sprintf("M%.1f %.1fh%.1fv%.1fh%.1fz", (left+right-width)/2, (top+bottom-height)/2, width, height, -width)
}

// coastline returns the SVG path of the coast. Points closer than a pixel to the one before are
// left out.
func (m mapFrame) coastline(shows func(x, y float64) bool) string {
	var b strings.Builder
	for line := range strings.Lines(coastlineCSV) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		lon, lat, lastX, lastY := 0, 0, math.Inf(1), math.Inf(1)
		for point := range strings.FieldsSeq(line) {
			east, north, _ := strings.Cut(point, ",")
			dx, _ := strconv.Atoi(east) // a test reads every point
			dy, _ := strconv.Atoi(north)
			lon, lat = lon+dx, lat+dy
			place := math.Remainder(float64(lon)/100-m.lon, 360) + m.lon
			x, y := m.x+(place-m.lon)*m.perLon, m.y-(float64(lat)/100-m.lat)*m.perLat
			if m.pole != 0 {
				x, y = m.at(float64(lon)/100, float64(lat)/100)
			}
			jump := math.Hypot(x-lastX, y-lastY)
			switch {
			case !shows(x, y):
				lastX, lastY = math.Inf(1), math.Inf(1)
				continue
			case jump < 1:
				continue
			case math.IsInf(jump, 1) || jump > 100*m.perLat:
				fmt.Fprintf(&b, "M%.1f %.1f", x, y)
			default:
				fmt.Fprintf(&b, "L%.1f %.1f", x, y)
			}
			lastX, lastY = x, y
		}
	}
	return b.String()
}

// coverageLine is a line of the graticule and its label.
type coverageLine struct {
	Path, Label, Anchor string
	X, Y                float64
}

// degrees returns the label of an angle.
func degrees(v float64, positive, negative string) string {
	letter := map[int]string{-1: negative, 1: positive}[cmp.Compare(v, 0)]
	return fmt.Sprintf("%.6g°%s", math.Abs(math.Round(v*1e7)/1e7), letter)
}

// steps returns about six round angles between two angles.
func steps(span, from, to float64) (at []float64) {
	unit := math.Pow(10, math.Floor(math.Log10(span/4)))
	every := unit
	for _, step := range [...]float64{2 * unit, 5 * unit, 15, 30} {
		if span/step >= 4 {
			every = step
		}
	}
	for i := math.Ceil(from / every); i*every <= to; i++ {
		at = append(at, i*every)
	}
	return at
}

// graticule returns about six meridians and six parallels.
func (m mapFrame) graticule(all filesCell) (lines []coverageLine) {
	if m.pole != 0 {
		return m.polarGraticule(all)
	}
	lons, lats := mapWidth/m.perLon, mapHeight/m.perLat
	for _, lon := range steps(lons, m.lon-lons/2, m.lon+lons/2) {
		x := m.x + (lon-m.lon)*m.perLon
		path, label := fmt.Sprintf("M%.1f %dv%d", x, mapTop, mapHeight), degrees(math.Remainder(lon, 360), "E", "W")
		lines = append(lines, coverageLine{path, label, "middle", math.Round(x), mapTop + mapHeight + 16})
	}
	for _, lat := range steps(lats, max(-90, m.lat-lats/2), min(90, m.lat+lats/2)) {
		y := m.y - (lat-m.lat)*m.perLat
		path, label := fmt.Sprintf("M%d %.1fh%d", mapLeft, y, mapWidth), degrees(lat, "N", "S")
		lines = append(lines, coverageLine{path, label, "end", mapLeft - 4, math.Round(y) + 4})
	}
	return lines
}

// polarGraticule returns meridians and parallels around a pole. Their labels lie inside the map.
func (m mapFrame) polarGraticule(all filesCell) (lines []coverageLine) {
	far, near := 0.0, math.Inf(1) // the corners of the map, in degrees from the pole
	for i := range 4 {
		x, y := float64(mapLeft+i%2*mapWidth), float64(mapTop+i/2*mapHeight)
		r := math.Hypot(x-m.x, y-m.y) / m.perLat
		far, near = max(far, r), min(near, r)
	}
	if m.shows(m.x, m.y, 0) {
		near = 0
	}
	far = min(far, 90)
	draw := func(label string, n int, place func(i int) (lon, r float64)) {
		const inset = -22
		var b strings.Builder
		line := coverageLine{Label: label, Anchor: "middle"}
		for i := range n + 1 {
			lon, r := place(i)
			x, y := m.at(lon, m.pole*(90-r))
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], x, y)
			isNearer := n == 180 && math.Abs(x-mapLeft-150) < math.Abs(line.X-mapLeft-150)
			if m.shows(x, y, inset) && (line.X == 0 || isNearer) {
				line.X, line.Y = math.Round(x), math.Round(y)+4
			}
		}
		if line.Path = b.String(); line.X != 0 {
			lines = append(lines, line)
		}
	}
	lons := steps(all.East-all.West, all.West, all.East)
	if all.East-all.West > 180 {
		lons = steps(359, -179, 180)
	}
	for _, lon := range lons {
		draw(degrees(math.Remainder(lon, 360), "E", "W"), 100, func(i int) (float64, float64) {
			return lon, far - (far-min(near, far))*float64(i)/100
		})
	}
	for _, r := range steps(far-near, max(near, 1e-9), far) {
		draw(degrees(m.pole*(90-r), "N", "S"), 180, func(i int) (float64, float64) { return float64(2 * i), r })
	}
	return lines
}

// scaleBar returns the length in pixels of a bar of a round length, and its label. The length holds
// in the middle of the map, or along meridians of a polar one.
func (m mapFrame) scaleBar(all filesCell) (pixels float64, label string) {
	metre := m.perLat / metresPerDegree
	length := math.Pow(10, math.Floor(math.Log10(160/metre)))
	for _, factor := range [...]float64{5, 2} {
		if length*factor*metre <= 160 {
			length *= factor
			break
		}
	}
	label = fmt.Sprintf("%g m", length)
	if length >= 1000 {
		label = fmt.Sprintf("%.0f km", length/1000)
	}
	if m.pole == 0 && all.North-all.South > 5 {
		label += " at " + degrees(math.Round(m.lat), "N", "S")
	}
	return length * metre, label
}
