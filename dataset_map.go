package main

import (
	"cmp"
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// coastline110m and coastline10m are the coasts and borders of the world at scales of 1:110 million
// and 1:10 million. tools/coastline made them from Natural Earth.
//
//go:embed coastline-110m.bin
var coastline110m []byte

//go:embed coastline-10m.bin
var coastline10m []byte

// The kinds of lines in coastline110m and coastline10m.
const (
	lineCoast  = 0
	lineBorder = 1
)

// coastReader is a part of coastline110m or coastline10m that is still to be read.
type coastReader []byte

// metresPerDegree is the length of a degree of latitude.
const metresPerDegree = 111_195

// mapFrame projects degrees to the pixels of a map. The projection is equidistant cylindrical, true
// to scale in the map's middle, or azimuthal equidistant around a pole.
type mapFrame struct {
	// The map in the picture, in pixels.
	left   float64
	top    float64
	width  float64
	height float64

	pole float64 // 1: the North Pole, -1: the South Pole, 0: neither
	lon  float64 // of the middle; around a pole, the meridian that points down or up
	lat  float64 // of the middle

	// Pixels per degree. Around a pole, perLon is not used.
	perLon float64
	perLat float64

	// The pixel of lon and lat or, around a pole, the pixel of the pole.
	x float64
	y float64
}

// mapBox is a box in degrees. East is at least west: longitudes do not jump at 180°.
type mapBox struct {
	West  float64
	South float64
	East  float64
	North float64
}

// filesCell counts the files of a layer in one cell of a grid, and has the box around them.
type filesCell struct {
	Layer    int  // see pixelLimits
	IsWarned bool // these files have warnings
	Col      int64
	Row      int64
	N        int64 // files
	mapBox
}

// joinCells returns one cell with the files of all given ones. There is at least one.
func joinCells(cells ...filesCell) filesCell {
	all := cells[0]

	for _, a := range cells[1:] {
		all.N += a.N
		all.West = min(all.West, a.West)
		all.South = min(all.South, a.South)
		all.East = max(all.East, a.East)
		all.North = max(all.North, a.North)
	}
	return all
}

// asFile returns an extent with nothing but this box.
func (a mapBox) asFile() extent {
	west, east := normalizeLongitudes(a.West, a.East)
	return extent{BBox: []float64{
		west,
		a.South,
		east,
		a.North,
	}}
}

// normalized returns the box with its west within ±180.
func (a mapBox) normalized() mapBox { return boxOf(a.asFile().BBox) }

// middle returns the longitude and latitude in the middle of the box.
func (a mapBox) middle() (lon, lat float64) {
	return (a.West + a.East) / 2, (a.South + a.North) / 2
}

// positionQuery returns a position as the query parameter point takes it.
func positionQuery(lon, lat float64) string {
	const parts = 1e6 // of a degree
	return fmt.Sprintf(
		"%v,%v",
		math.Round(math.Remainder(lon, 360)*parts)/parts,
		math.Round(max(-90, min(90, lat))*parts)/parts,
	)
}

// boxOf returns the box of a file, given its corners in degrees.
func boxOf(bbox []float64) mapBox {
	box := mapBox{
		West:  bbox[0],
		South: bbox[1],
		East:  bbox[2],
		North: bbox[3],
	}
	if box.East <= box.West {
		box.East += 360
	}
	return box
}

// String returns the corners of the box.
func (a mapBox) String() string {
	box := a.asFile().BBox
	return fmt.Sprintf(
		"%s %s to %s %s",
		degrees(box[0], "E", "W"),
		degrees(box[1], "N", "S"),
		degrees(box[2], "E", "W"),
		degrees(box[3], "N", "S"),
	)
}

// splitOutliers takes the outliers out of cells. It grows a box from the cell with the most files:
// a cell is added if its distance from the box is at most the size of the box. The other cells are
// outliers if they have at most a twentieth of the files, or only one of at least four files.
func splitOutliers(cells []filesCell) (rest, outliers []filesCell) {
	total := joinCells(cells...).N
	byFiles := func(a, b filesCell) int {
		return cmp.Compare(a.N, b.N)
	}
	main := slices.MaxFunc(cells, byFiles)

	// A larger box may reach further cells: repeat until none is added.
	for before := -1; before != len(rest); {
		before = len(rest)
		rest = nil
		outliers = nil

		for _, cell := range cells {
			// The length of a degree of longitude in the box's middle, in degrees of latitude.
			cos := math.Cos((main.South + main.North) / 2 * math.Pi / 180)
			size := max(
				main.North-main.South,
				(main.East-main.West)*cos,
			)
			away := max(
				main.South-cell.North,
				cell.South-main.North,
				(main.West-cell.East)*cos,
				(cell.West-main.East)*cos,
			)
			if away > size {
				outliers = append(outliers, cell)
				continue
			}

			rest = append(rest, cell)
			main = joinCells(main, cell)
		}
	}

	n := total - joinCells(rest...).N
	isSmallPart := n <= total/20
	isOneOfSeveral := n <= 1 && total >= 4
	if isSmallPart || isOneOfSeveral {
		return rest, outliers
	}
	return cells, nil
}

// frameFor returns the frame that shows a box.
func frameFor(all mapBox) mapFrame {
	const margin = 1.06
	m := mapFrame{
		left:   60,
		top:    60,
		width:  720,
		height: 540,
		lon:    (all.West + all.East) / 2,
		lat:    (all.South + all.North) / 2,
		perLon: 1,
		perLat: 1,
	}

	// Choose the projection. near and far are the distances of the box from the equator.
	near := all.South
	far := all.North
	if m.lat < 0 {
		near = -all.North
		far = -all.South
	}
	reachesPole := near >= 40 && far >= 80
	isPolar := near >= 60 || reachesPole
	if isPolar {
		m.pole = math.Copysign(1, m.lat)

		// A wide box has no meridian in its middle.
		isWide := all.East-all.West > 180
		if isWide {
			m.lon = 0
		}
	} else {
		m.perLon = max(0.02, math.Cos(m.lat*math.Pi/180))
	}

	// Scale and move the map so that the box fills it.
	around := emptyRange() // in pixels, one per degree of latitude; south is the top
	around.add(m.pixels([]position{
		{all.West, all.South},
		{all.East, all.South},
		{all.East, all.North},
		{all.West, all.North},
	})...)
	width := around.east - around.west
	height := around.north - around.south
	scale := 1 / max(
		height*margin/m.height,
		width*margin/m.width,
		1e-7,
	)
	m.perLon *= scale
	m.perLat *= scale
	m.x = m.left + m.width/2 - (around.west+around.east)/2*scale
	m.y = m.top + m.height/2 - (around.south+around.north)/2*scale
	return m
}

// worldFrame is the frame of the map of the world.
func worldFrame() mapFrame {
	return mapFrame{
		left:   800,
		top:    60,
		width:  240,
		height: 120,
		x:      800 + 240/2,
		y:      60 + 120/2,
		perLon: 240.0 / 360,
		perLat: 120.0 / 180,
	}
}

// at returns the pixel of a position.
func (m mapFrame) at(lon, lat float64) (x, y float64) {
	if m.pole != 0 {
		sin, cos := math.Sincos((lon - m.lon) * math.Pi / 180)
		r := (90 - m.pole*lat) * m.perLat
		x = m.x + r*sin
		y = m.y + m.pole*r*cos
		return x, y
	}

	x = m.x + (lon-m.lon)*m.perLon
	y = m.y - (lat-m.lat)*m.perLat
	return x, y
}

// position returns the longitude and latitude of a pixel: the inverse of at.
func (m mapFrame) position(x, y float64) (lon, lat float64) {
	if m.pole != 0 {
		right := x - m.x
		down := m.pole * (y - m.y)
		lon = m.lon + math.Atan2(right, down)*180/math.Pi
		lat = m.pole * (90 - math.Hypot(right, down)/m.perLat)
		return lon, lat
	}

	lon = m.lon + (x-m.x)/m.perLon
	lat = m.lat - (y-m.y)/m.perLat
	return lon, lat
}

// bounds returns the range of all positions that the map shows. Around a pole, the map does not
// show all of the range.
func (m mapFrame) bounds() degreesRange {
	around := emptyRange()
	if m.pole != 0 && m.shows(m.x, m.y, 0) {
		around.addPoles([]float64{90 * m.pole})
	}

	// The other extremes lie on the edge.
	const parts = 32
	for i := range parts + 1 {
		x := m.left + m.width*float64(i)/parts
		y := m.top + m.height*float64(i)/parts
		for _, pixel := range []position{{x, m.top}, {x, m.top + m.height}, {m.left, y}, {m.left + m.width, y}} {
			lon, lat := m.position(pixel[0], pixel[1])
			around.add(position{lon, max(-90, min(90, lat))})
		}
	}
	return around
}

// shown returns the box with the bounds of the map.
func (m mapFrame) shown() mapBox {
	around := m.bounds()
	return mapBox{
		West:  around.west,
		South: around.south,
		East:  around.east,
		North: around.north,
	}.normalized()
}

// along returns the position at a part of the way from one position to another.
func along(from, to position, part float64) position {
	return position{
		from[0] + (to[0]-from[0])*part,
		from[1] + (to[1]-from[1])*part,
	}
}

// shows reports whether a pixel lies in the map, or outside it by less than a margin.
func (m mapFrame) shows(x, y, margin float64) bool {
	isInWidth := x >= m.left-margin && x <= m.left+m.width+margin
	isInHeight := y >= m.top-margin && y <= m.top+m.height+margin
	return isInWidth && isInHeight
}

// pixels returns the pixels of a line. Around a pole, where parallels are arcs, there is one for
// every three degrees.
func (m mapFrame) pixels(line []position) (pixels []position) {
	for i, to := range line {
		from := line[max(i-1, 0)]
		steps := 1
		if m.pole != 0 {
			steps = 1 + int(math.Abs(to[0]-from[0])/3)
		}

		for step := range steps {
			p := along(from, to, float64(step+1)/float64(steps))
			x, y := m.at(p[0], p[1])
			pixels = append(pixels, position{x, y})
		}
	}
	return pixels
}

// pathOf returns the SVG path of a line of pixels.
func pathOf(pixels []position) string {
	var b strings.Builder
	command := 'M' // move to the first pixel
	for _, p := range pixels {
		fmt.Fprintf(&b, "%c%.1f %.1f", command, p[0], p[1])
		command = 'L' // a line to each other pixel
	}
	return b.String()
}

// rings returns the outline of a file in pixels, a ring for each part.
func (m mapFrame) rings(file extent) (rings [][]position) {
	for _, part := range file.footprint() {
		ring := part[0]

		// Turn the ring to longitudes near those of the map.
		middle := 0.0
		for _, p := range ring {
			middle += p[0] / float64(len(ring))
		}
		for i := range ring {
			ring[i][0] += 360 * math.Round((m.lon-middle)/360)
		}
		rings = append(rings, m.pixels(ring))
	}
	return rings
}

// around returns the range of a file in pixels. South is the top.
func (m mapFrame) around(file extent) degreesRange {
	around := emptyRange()
	around.add(slices.Concat(m.rings(file)...)...)
	return around
}

// mark returns the SVG path of a file: its outline or, if that is small, a rectangle in its middle.
func (m mapFrame) mark(file extent) (path string) {
	const minMark = 4 // pixels

	for _, pixels := range m.rings(file) {
		around := emptyRange() // in pixels; south is the top
		around.add(pixels...)
		if min(around.east-around.west, around.north-around.south) >= minMark {
			path += pathOf(pixels) + "z"
			continue
		}

		width := max(minMark, around.east-around.west)
		height := max(minMark, around.north-around.south)
		left := (around.west + around.east - width) / 2
		top := (around.south + around.north - height) / 2
		path += fmt.Sprintf(
			"M%.1f %.1fh%.1fv%.1fh%.1fz",
			left, top, width, height, -width,
		)
	}
	return path
}

// next returns the next number. The file is part of the program, and a test reads all of it, so
// there is no error.
func (r *coastReader) next() int {
	n, size := binary.Varint(*r)
	*r = (*r)[size:]
	return int(n)
}

// coastline returns the SVG path of the lines of a kind that the map shows. If the path has more
// than maxBytes, points are left out: the step between points grows, but stays below maxStep.
func (m mapFrame) coastline(kind, maxBytes int) string {
	const maxStep = 20 // pixels
	lines := m.coastLines(kind)
	path := m.clippedPath(lines, 1)
	for step := 1.5; len(path) > maxBytes && step < maxStep; step *= 1.5 {
		path = m.clippedPath(lines, step)
	}
	return path
}

// coastLines returns the lines of a kind that the map may show, in whole pixels. A map under 40
// degrees of latitude wide has the finer ones.
func (m mapFrame) coastLines(kind int) (lines [][]position) {
	const parts = 1000 // of a degree

	file := coastReader(coastline110m)
	isNarrow := m.width/m.perLat < 40
	if isNarrow {
		file = coastline10m
	}

	shown := m.bounds()
	for len(file) > 0 {
		size := file.next()
		line := file[:size]
		file = file[size:]

		isKind := line.next() == kind
		west := float64(line.next()) / parts
		south := float64(line.next()) / parts
		east := float64(line.next()) / parts
		north := float64(line.next()) / parts

		// Turn the line to longitudes near those of the map.
		turn := 360 * math.Round((m.lon-(west+east)/2)/360)
		if !isKind || shown.isApart(position{west + turn, south}, position{east + turn, north}) {
			continue
		}

		var pixels []position
		lon := 0
		lat := 0
		for len(line) > 0 {
			lon += line.next()
			lat += line.next()
			x, y := m.at(float64(lon)/parts+turn, float64(lat)/parts)
			pixels = append(pixels, position{math.Round(x), math.Round(y)})
		}
		lines = append(lines, slices.Compact(pixels))
	}
	return lines
}

// clippedPath returns the SVG path of lines in whole pixels, without their segments beside the map.
// It leaves out points closer than a step to the last one, except the ends of lines.
func (m mapFrame) clippedPath(lines [][]position, step float64) string {
	// In pixels; south is the top, because y grows downwards.
	edges := degreesRange{
		west:  m.left,
		south: m.top,
		east:  m.left + m.width,
		north: m.top + m.height,
	}
	var path []byte
	pen := position{math.Inf(1), 0} // the end of the path; at first, none

	for _, line := range lines {
		last := line[0]
		for i, p := range line {
			right := p[0] - last[0]
			down := p[1] - last[1]
			away := math.Hypot(right, down)
			isEnd := i == len(line)-1
			isClose := away < step && !isEnd
			if isClose || away == 0 {
				continue
			}

			if !edges.isApart(last, p) {
				if pen != last {
					path = appendPoint(path, 'M', last[0], last[1])
				}
				path = appendPoint(path, 'l', right, down)
				pen = p
			}
			last = p
		}
	}
	return string(path)
}

// appendPoint appends a command with two whole numbers to an SVG path.
func appendPoint(path []byte, command byte, x, y float64) []byte {
	path = append(path, command)
	path = strconv.AppendInt(path, int64(x), 10)
	path = append(path, ' ')
	return strconv.AppendInt(path, int64(y), 10)
}

// mapLine is a line of the graticule, or only a label. The label lies at X, Y.
type mapLine struct {
	Path  string
	Label string
	X     float64
	Y     float64
}

// degrees returns the label of an angle.
func degrees(v float64, positive, negative string) string {
	letter := "" // of 0°
	switch {
	case v > 0:
		letter = positive
	case v < 0:
		letter = negative
	}
	rounded := math.Abs(math.Round(v*1e7) / 1e7)
	return fmt.Sprintf("%.6g°%s", rounded, letter)
}

// steps returns about six round angles between two angles.
func steps(from, to float64) (at []float64) {
	span := to - from
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

// graticule returns some meridians and parallels that the map shows.
func (m mapFrame) graticule() (lines []mapLine) {
	around := m.bounds()
	if m.pole != 0 {
		around.east = min(around.east, around.west+359) // no meridian twice
	}

	// draw adds a line, if the map shows it. Its label lies right and down of where the line enters
	// the map.
	draw := func(label string, from, to position, right, down float64) {
		margin := 0.0
		if m.pole != 0 { // the label lies inside the map, else beside it
			margin = -22
			right = 0
			down = 4
		}

		const parts = 400
		for i := range parts {
			p := along(from, to, float64(i)/parts)
			x, y := m.at(p[0], p[1])
			if !m.shows(x, y, margin) {
				continue
			}
			lines = append(lines, mapLine{
				Path:  pathOf(m.pixels([]position{from, to})),
				Label: label,
				X:     math.Round(x + right),
				Y:     math.Round(y + down),
			})
			return
		}
	}

	for _, lon := range steps(around.west, around.east) {
		from := position{lon, around.south}
		to := position{lon, around.north}
		if m.pole < 0 {
			from, to = to, from
		}
		draw(degrees(math.Remainder(lon, 360), "E", "W"), from, to, 0, 16)
	}
	for _, lat := range steps(around.south, around.north) {
		from := position{around.west, lat}
		to := position{around.east, lat}
		draw(degrees(lat, "N", "S"), from, to, -26, 4)
	}
	return lines
}

// scaleBar returns the SVG path of a bar of a round length, and its label. The length is right in
// the middle of the map or, around a pole, along meridians.
func (m mapFrame) scaleBar(all mapBox) (path, label string) {
	const maxLength = 160 // pixels

	metre := m.perLat / metresPerDegree // in pixels
	length := math.Pow(10, math.Floor(math.Log10(maxLength/metre)))
	for _, factor := range [...]float64{5, 2} {
		if length*factor*metre <= maxLength {
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

	left := m.left + 14
	top := m.top + m.height - 40
	path = fmt.Sprintf("M%.0f %.0fv6h%.1fv-6", left, top, length*metre)
	return path, label
}
