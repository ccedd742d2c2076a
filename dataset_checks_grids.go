package main

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
)

// tileGrid is the grid of the tiles with one CRS and one pixel height. Its cells are as far apart
// as the tiles.
type tileGrid struct {
	CRS     string  `json:"crs"`
	Tiles   int64   `json:"tiles"`
	DX      float64 `json:"pixel_width"` // of most tiles
	DY      float64 `json:"pixel_height"`
	X       float64 `json:"origin_x"`
	Y       float64 `json:"origin_y"`
	East    float64 `json:"step_x"`
	North   float64 `json:"step_y"`
	Missing int64   `json:"missing"`
	Open    bool    `json:"outline_open,omitempty"` // tiles that are missing at the outline are not found

	Definition string `json:"definition,omitempty"` // of a CRS without a code, as a row has it

	index     int     // in the list of grids
	w         float64 // the size of most tiles
	h         float64
	isRegular bool       // see fillCells; a grid that is not regular has no missing tiles
	files     []int32    // the tiles
	cells     []tileCell // by row, column and file
	runs      []cellRun  // of cells with a tile
	gaps      []cellRun
	named     map[cellRun]missingTile // missing tiles whose paths are known
}

// cellRun is a run of cells in one row of a grid, from one column to another, both included.
type cellRun struct{ Row, From, To int64 }

// tileCell is a cell of a grid, with a tile that covers it.
type tileCell struct {
	row    int64
	column int64
	file   int32 // an index of fileSet.files
}

// missingTile is the place of a missing tile. Name identifies it in an accepted finding.
type missingTile struct {
	Name     string  `json:"name"`
	Grid     int     `json:"grid"` // an index of the report's grids
	CRS      string  `json:"crs"`
	Column   int64   `json:"column"`
	Row      int64   `json:"row"`
	MinX     float64 `json:"min_x"`
	MinY     float64 `json:"min_y"`
	MaxX     float64 `json:"max_x"`
	MaxY     float64 `json:"max_y"`
	Expected string  `json:"expected,omitempty"` // the path that its neighbours' names suggest
	There    string  `json:"there,omitempty"`    // what is wrong with the file of this path; "": there is none

	definition string // as in tileGrid
}

// makeGrids makes a grid for each CRS and pixel height, to 6 digits, of at least three tiles. It
// keeps the 20 grids with the most tiles. In degrees, the pixels of one grid may get wider to the
// poles.
func (s *fileSet) makeGrids() {
	const maxGrids = 20
	key := func(r *fileRecord) uint64 {
		if !r.isTile() {
			return 0
		}
		height := strconv.FormatFloat(r.dy, 'e', 5, 64)
		return maphash.Comparable(s.seed, [...]string{r.system, r.definition, height})
	}

	s.grids = []tileGrid{}
	for files := range s.groups(key) {
		if len(files) < 3 {
			continue
		}

		r := s.files[files[0]]
		s.grids = append(s.grids, tileGrid{
			CRS:        r.system,
			Definition: r.definition,
			DY:         r.dy,
			Tiles:      int64(len(files)),
			files:      slices.Clone(files),
		})
	}

	// The largest grids come first.
	slices.SortFunc(s.grids, func(a, b tileGrid) int {
		return cmp.Or(
			cmp.Compare(b.Tiles, a.Tiles),
			cmp.Compare(a.CRS, b.CRS),
			cmp.Compare(a.Definition, b.Definition),
			cmp.Compare(a.DY, b.DY),
		)
	})

	s.grids = s.grids[:min(len(s.grids), maxGrids)]

	for i := range s.grids {
		g := &s.grids[i]
		g.index = i
		g.named = map[cellRun]missingTile{}

		s.measure(g)
		s.fillCells(g)
		if g.isRegular {
			s.findMissing(g)
		}
	}
}

// median returns the middle of a number of each tile of the grid.
func (s *fileSet) median(g *tileGrid, number func(r *fileRecord) float64) float64 {
	values := make([]float64, len(g.files))
	for i, file := range g.files {
		values[i] = number(&s.files[file])
	}
	return median(values)
}

// measure sets the steps and the origin of a grid.
func (s *fileSet) measure(g *tileGrid) {
	g.DX = s.median(g, func(r *fileRecord) float64 { return r.dx })
	g.w = s.median(g, func(r *fileRecord) float64 { return r.w })
	g.h = s.median(g, func(r *fileRecord) float64 { return r.h })

	var xs, ys []float64
	for _, file := range g.files {
		r := &s.files[file]
		isUsual := math.Abs(r.dx-g.DX) < g.DX*1e-6
		if isUsual { // the columns of other tiles may begin elsewhere
			xs = append(xs, r.x)
		}
		ys = append(ys, r.y)
	}

	g.X, g.East = lattice(xs, g.w, g.DX)
	g.Y, g.North = lattice(ys, g.h, g.DY)
}

// maxMisfit is how far an edge of a tile may lie from that of its cell, in pixels.
const maxMisfit = 0.05

// edgeLine is a line along which tiles begin, and their number.
type edgeLine struct {
	at    float64
	tiles int
}

// lattice returns the origin and the step of the edges of tiles of that size, with pixels of that
// size. The step is the median distance of lines whose tiles touch or overlap by at most half. A
// distance counts as often as the line with fewer tiles has tiles, so that a few misplaced tiles do
// not change the step. The origin is the median position of the edges after whole steps are taken
// off.
func lattice(edges []float64, size, pixel float64) (origin, step float64) {
	slices.Sort(edges)

	lines := []edgeLine{{at: edges[0]}}
	last := 0
	for _, edge := range edges {
		if edge-lines[last].at > pixel*maxMisfit {
			lines = append(lines, edgeLine{at: edge})
			last++
		}
		lines[last].tiles++
	}

	// The distances of neighbours; 1.001 allows for rounded coordinates. Between two neighbours
	// there may be lines of a few misplaced tiles, so each line is compared with several before it.
	const maxLinesBack = 20

	var steps []float64
	for i, line := range lines {
		for _, other := range lines[max(0, i-maxLinesBack):i] {
			d := line.at - other.at
			isNeighbour := d >= size/2 && d <= size*1.001
			if isNeighbour {
				tiles := min(line.tiles, other.tiles)
				steps = append(steps, slices.Repeat([]float64{d}, tiles)...)
			}
		}
	}

	step = size
	if len(steps) > 0 {
		slices.Sort(steps)

		// Of the two middle ones, take the larger: a misplaced tile makes distances smaller.
		step = steps[len(steps)/2]
	}

	for i, edge := range edges {
		edges[i] = edge - step*math.Round((edge-lines[0].at)/step)
	}

	return median(edges), step
}

// originFor returns the x of column 0 for a tile. If pixels get wider to the poles, columns begin
// at an edge of a pixel or, as in Copernicus and DTED, in the middle of one.
func (g *tileGrid) originFor(r *fileRecord) float64 {
	off := func(origin float64) float64 {
		cells := (r.x - origin) / g.East
		return math.Abs(cells - math.Round(cells))
	}

	middle := g.X + (g.DX-r.dx)/2
	if off(middle) < off(g.X) {
		return middle
	}

	return g.X
}

// fillCells finds the cells of each tile: the cell around its centre, and every cell whose centre
// it covers. A raster as wide or as high as 8 cells is no tile. The grid is regular if at least
// half of its tiles fill their cells.
func (s *fileSet) fillCells(g *tileGrid) {
	const largest = 8 // cells

	// span returns the first and the last cell of a tile, along one axis.
	span := func(from, size float64) (first, last int64) {
		middle := math.Floor(from + size/2)
		lowest := math.Ceil(from - 0.49)
		highest := math.Floor(from + size - 0.51)
		return int64(min(middle, lowest)), int64(max(middle, highest))
	}

	g.files = slices.DeleteFunc(g.files, func(file int32) bool {
		r := &s.files[file]
		return r.w >= largest*g.East || r.h >= largest*g.North
	})

	g.cells = make([]tileCell, 0, len(g.files))
	filled := 0
	for _, file := range g.files {
		r := &s.files[file]
		if g.misfit(r).fills() {
			filled++
		}

		x := (r.x - g.originFor(r)) / g.East
		y := (r.y - g.Y) / g.North
		west, east := span(x, r.w/g.East)
		south, north := span(y, r.h/g.North)

		for row := south; row <= north; row++ {
			for column := west; column <= east; column++ {
				g.cells = append(g.cells, tileCell{row, column, file})
			}
		}
	}

	slices.SortFunc(g.cells, compareCells)
	g.isRegular = filled > 0 && filled*2 >= len(g.files)
}

// compareCells orders cells by row, column and file.
func compareCells(a, b tileCell) int {
	return cmp.Or(
		cmp.Compare(a.row, b.row),
		cmp.Compare(a.column, b.column),
		cmp.Compare(a.file, b.file),
	)
}

// tileMisfit holds how far each edge of a tile lies east or north of that edge of its cell, in
// pixels of the tile. If most tiles are larger than their cells, only the rest counts.
type tileMisfit struct {
	west  float64
	south float64
	east  float64
	north float64
}

// misfit returns the misfit of a tile.
func (g *tileGrid) misfit(r *fileRecord) (off tileMisfit) {
	// edges returns the misfit along one axis. Most tiles are larger than a cell by usual pixels.
	edges := func(from, size, step, pixel, usual float64) (lower, upper float64) {
		cell := math.Floor((from + size/2) / step)
		lower = (from - cell*step) / pixel
		upper = (from+size-(cell+1)*step)/pixel - usual
		return lower, upper
	}

	off.west, off.east = edges(
		r.x-g.originFor(r),
		r.w,
		g.East,
		r.dx,
		(g.w-g.East)/g.DX,
	)
	off.south, off.north = edges(
		r.y-g.Y,
		r.h,
		g.North,
		r.dy,
		(g.h-g.North)/g.DY,
	)
	return off
}

// fills reports whether a tile fills its cell: no edge is off by more than a twentieth of a pixel.
func (off tileMisfit) fills() bool {
	largest := max(
		math.Abs(off.west),
		math.Abs(off.south),
		math.Abs(off.east),
		math.Abs(off.north),
	)
	return largest <= maxMisfit
}

// String returns the misfit as text: "moved by 0.5 pixels in x, 0 in y".
func (off tileMisfit) String() string {
	round := func(v float64) float64 { return math.Round(v*100)/100 + 0 } // 0, never -0
	west := round(off.west)
	south := round(off.south)
	east := round(off.east)
	north := round(off.north)

	isMoved := math.Abs(west-east) <= 0.05 && math.Abs(south-north) <= 0.05
	isLarger := west <= 0 && south <= 0 && east >= 0 && north >= 0
	switch {
	case isMoved:
		return fmt.Sprintf("moved by %g pixels in x, %g in y", west, south)
	case isLarger:
		const format = "larger than its cell by %g pixels in the west, %g south, %g east, %g north"
		return fmt.Sprintf(format, round(-west), round(-south), east, north)
	}

	return fmt.Sprintf("its edges are off by %g pixels in the west, %g south, %g east, %g north",
		west, south, east, north)
}

// find returns the index of the first tile of a cell, or of the next cell that has one.
func (g *tileGrid) find(row, column int64) int {
	at, _ := slices.BinarySearchFunc(g.cells, tileCell{row, column, 0}, compareCells)
	return at
}

// at returns the first tiles of a cell, at most limit.
func (g *tileGrid) at(row, column int64, limit int) []tileCell {
	from := g.find(row, column)
	to := from
	for to < min(len(g.cells), from+limit) {
		c := g.cells[to]
		if c.row != row || c.column != column {
			break
		}
		to++
	}
	return g.cells[from:to]
}

// around returns the other tiles in the cells of a tile, and in the cells that touch them: at most
// maxStack of each cell.
func (g *tileGrid) around(file int32, cells []tileCell) (others []int32) {
	for _, c := range cells {
		for i := range int64(9) { // the cell, and the eight around it
			row := c.row + i/3 - 1
			column := c.column + i%3 - 1
			for _, other := range g.at(row, column, maxStack) {
				if other.file != file {
					others = append(others, other.file)
				}
			}
		}
	}

	slices.Sort(others)
	return slices.Compact(others)
}

// maxStack is how many tiles in one place are compared with each other.
const maxStack = 100

// checkCells finds tiles that do not exactly fill their cell, and overlaps with their neighbours.
// It also finds tiles that are far smaller files than all their neighbours, if there are at least
// five: a tile without data, or of one height, compresses well.
func (s *fileSet) checkCells(g *tileGrid) {
	const factor = 10 // how much larger the neighbours of a suspect tile are

	if len(g.cells) == 0 {
		return // all its rasters are too large for tiles
	}

	// Most tiles are of the usual size and fill their cells. Only the others are looked at.
	usual := s.median(g, func(r *fileRecord) float64 { return float64(r.size) })
	cellsOf := map[int32][]tileCell{}
	for _, c := range g.cells {
		r := &s.files[c.file]
		isSmall := float64(r.size)*factor <= usual
		isMisaligned := g.isRegular && !g.misfit(r).fills()
		if isSmall || isMisaligned {
			cellsOf[c.file] = append(cellsOf[c.file], c)
		}
	}

	for _, file := range slices.Sorted(maps.Keys(cellsOf)) {
		r := &s.files[file]
		others := g.around(file, cellsOf[file])

		if off := g.misfit(r); g.isRegular && !off.fills() {
			detail := off.String()
			if share := r.w * r.h / g.w / g.h; share < 0.99 {
				detail = fmt.Sprintf("it covers %.0f %% of its cell: %s", share*100, detail)
			}
			s.foundIn("misaligned", file, detail)
			s.checkOverlap(g, file, others)
		}

		least := int64(math.MaxInt64)
		for _, other := range others {
			least = min(least, s.files[other].size)
		}

		isFarSmaller := least > 0 && r.size*factor <= least
		if len(others) >= 5 && isFarSmaller {
			const format = "it has %d bytes, its neighbours have at least %d: it may hold no data, or one height"
			detail := fmt.Sprintf(format, r.size, least)
			s.foundIn("suspect_data", file, detail)
		}
	}
}

// overlap returns the area that two tiles share, in the square of the unit of their CRS. It is 0 if
// they share no more than neighbours usually do, and one pixel.
func (g *tileGrid) overlap(a, b *fileRecord) float64 {
	width := min(a.x+a.w, b.x+b.w) - max(a.x, b.x)
	height := min(a.y+a.h, b.y+b.h) - max(a.y, b.y)

	usualWidth := max(g.w-g.East, 0) + max(a.dx, b.dx)
	usualHeight := max(g.h-g.North, 0) + max(a.dy, b.dy)
	if width <= usualWidth || height <= usualHeight {
		return 0
	}
	return width * height
}

// checkOverlap finds the neighbours that a misaligned tile overlaps. If both are misaligned, the
// one with the later path gets the finding. Tiles with the same extent are left to checkSamePlace.
func (s *fileSet) checkOverlap(g *tileGrid, file int32, around []int32) {
	r := &s.files[file]
	if r.isCopy {
		return
	}

	area := 0.0 // what they share
	first := noFile
	n := int64(0) // how many neighbours it overlaps
	for _, other := range around {
		o := &s.files[other]
		shared := g.overlap(r, o)
		larger := max(r.w*r.h, o.w*o.h)
		isSame := shared > 0.999*larger
		isLater := other > file && !g.misfit(o).fills() // it gets the finding
		if shared == 0 || isSame || isLater {
			continue
		}

		if n == 0 {
			first = other
		}
		area += shared
		n++
	}

	if n == 0 {
		return
	}

	share := fmt.Sprintf("%.3g %% of a tile", area/g.w/g.h*100)
	if unitOfCRS(g.CRS) == " m" {
		share = threeDigits(area/1e6) + " km²"
	}

	detail := fmt.Sprintf("it overlaps %s by %s, first ", plural(n, "tile"), share)
	s.found("overlap", flaw{file: file, other: first, detail: detail})
}

// findMissing finds the missing tiles of the grid, and the tiles that lie far from all others.
func (s *fileSet) findMissing(g *tileGrid) {
	// Cells beside each other make a run.
	for _, c := range g.cells {
		g.runs = append(g.runs, cellRun{c.row, c.column, c.column})
	}

	g.runs = mergeRuns(g.runs)
	g.gaps, g.Open = g.findGaps(g.runs)
	g.Missing = tilesIn(g.gaps)

	// Each far tile is one finding.
	far := map[int32]bool{} // a tile may have several cells
	for _, run := range strays(g.runs) {
		for column := run.From; column <= run.To; column++ {
			for _, c := range g.at(run.Row, column, len(g.cells)) {
				far[c.file] = true
			}
		}
	}

	for _, file := range slices.Sorted(maps.Keys(far)) {
		r := &s.files[file]
		detail := fmt.Sprintf("its lower left corner is at %.10g, %.10g, far from the other tiles", r.x, r.y)
		s.foundIn("far", file, detail)
	}
}

// missing iterates over the missing tiles of the grid, row by row.
func (g *tileGrid) missing() iter.Seq[missingTile] {
	return func(yield func(missingTile) bool) {
		for _, gap := range g.gaps {
			for column := gap.From; column <= gap.To; column++ {
				if !yield(g.tile(cellRun{gap.Row, column, column})) {
					return
				}
			}
		}
	}
}

// tile returns the place of a run of cells.
func (g *tileGrid) tile(run cellRun) missingTile {
	x := g.X + float64(run.From)*g.East
	y := g.Y + float64(run.Row)*g.North
	width := float64(run.To-run.From+1) * g.East
	named := g.named[run]
	return missingTile{
		Name:       fmt.Sprintf("%s %.8g %.8g", g.CRS, x, y),
		Grid:       g.index,
		CRS:        g.CRS,
		Column:     run.From,
		Row:        run.Row,
		MinX:       x,
		MinY:       y,
		MaxX:       x + width,
		MaxY:       y + g.North,
		Expected:   named.Expected,
		There:      named.There,
		definition: g.Definition,
	}
}

// setNamed stores a missing tile whose path is known, for its cell.
func (g *tileGrid) setNamed(tile missingTile) {
	g.named[cellRun{tile.Row, tile.Column, tile.Column}] = tile
}

// wantedTile is a missing tile, and a neighbour whose name follows a rule.
type wantedTile struct {
	missingTile
	neighbour tileCell
}

// neighboursOfMissing returns those of the first maxFlaws missing tiles that have a neighbour whose
// name follows a rule.
func (s *fileSet) neighboursOfMissing() (wanted []wantedTile) {
	tried := 0
	for i := range s.grids {
		g := &s.grids[i]
		for tile := range g.missing() {
			if tried == maxFlaws {
				return wanted
			}

			tried++
			if c := s.neighbour(g, tile); c.file != noFile {
				wanted = append(wanted, wantedTile{tile, c})
			}
		}
	}

	return wanted
}

// neighbour returns the nearest tile whose name follows a rule, or noFile. It looks at the few
// tiles before and after the missing one, in the order of cells.
func (s *fileSet) neighbour(g *tileGrid, tile missingTile) tileCell {
	const tried = 8
	at := g.find(tile.Row, tile.Column)
	first := max(0, at-tried)
	last := min(len(g.cells), at+tried)

	nearest := tileCell{file: noFile}
	least := math.Inf(1)
	for _, c := range g.cells[first:last] {
		r := &s.files[c.file]
		rows := float64(c.row - tile.Row)
		columns := float64(c.column - tile.Column)
		away := math.Hypot(rows, columns)
		if away < least && r.nameRank == nameFollows && g.misfit(r).fills() {
			nearest = c
			least = away
		}
	}

	return nearest
}
