package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
)

// maxBoundaryCorners is how many corners a boundary may have.
const maxBoundaryCorners = 20_000

// readBoundary reads a GeoJSON Polygon or MultiPolygon, or a Feature or FeatureCollection of these,
// without their properties. ok is false for any other JSON, for an area of more than
// maxBoundaryCorners, and for one that is not within ±180° and ±90°.
func readBoundary(text json.RawMessage) (boundary area, ok bool) {
	var in struct {
		geometry
		Geometry geometry
		Features []struct{ Geometry geometry }
	}

	if json.Unmarshal(text, &in) != nil {
		return nil, false
	}

	geometries := []geometry{in.geometry}
	switch in.Type {
	case "Feature":
		geometries[0] = in.Geometry
	case "FeatureCollection":
		geometries = nil
		for _, feature := range in.Features {
			geometries = append(geometries, feature.Geometry)
		}
	}

	for _, g := range geometries {
		if g.Type != "Polygon" && g.Type != "MultiPolygon" {
			return nil, false
		}
	}

	all := geometry{Type: "GeometryCollection", Geometries: geometries}
	box, boundary, ok := all.area(maxBoundaryCorners)
	isOnGlobe := ok && min(box[0], box[2]) >= -180 && max(box[0], box[2]) <= 180 && box[1] >= -90 && box[3] <= 90
	return boundary, isOnGlobe
}

// cellsWithin holds the cells of a grid that a boundary needs.
type cellsWithin struct {
	runs   []cellRun
	shares map[cellRun]float64 // the inner part of cells that are only partly inside, from 0 to 1
	cells  float64             // how many cells have been found
	points int                 // how many points followEdges has returned
	looked int                 // how many parts of the grid were looked at
}

// errBoundaryTooFine says that a boundary needs too many cells of a grid.
var errBoundaryTooFine = errors.New("it has too many cells of the grid")

// compareBoundary replaces the gaps of the grid by those cells without a tile that the boundary
// needs. It returns how many percent of the boundary's area have a tile. An error says why the
// boundary cannot be compared with the grid.
func (g *tileGrid) compareBoundary(ctx context.Context, boundary area) (covered float64, err error) {
	w := &cellsWithin{shares: map[cellRun]float64{}}
	for _, polygon := range boundary {
		if err := g.addCells(ctx, w, polygon); err != nil {
			return 0, err
		}
	}

	if w.runs == nil {
		return 0, errors.New("it has no area")
	}

	// Around the globe, both count their columns from the same one.
	tiles := g.runs
	if turn := g.columnsAround(); turn > 0 {
		start := g.startOfTurn(tiles, turn)
		tiles = renumber(tiles, start, turn)
		w.runs = renumber(w.runs, start, turn)

		shares := map[cellRun]float64{}
		for cell, share := range w.shares {
			renumbered := renumber([]cellRun{cell}, start, turn)[0]
			shares[renumbered] = share
		}
		w.shares = shares
	}

	// Several polygons may need the same cells.
	slices.SortFunc(w.runs, compareRuns)
	w.runs = mergeRuns(w.runs)

	g.gaps = without(w.runs, tiles)
	g.Missing = tilesIn(g.gaps)
	g.Open = false
	if g.Missing == 0 {
		return 100, nil
	}

	// The share is rounded down to hundredths of a percent. 1e-6 allows for errors of the sums.
	missing := w.areaOf(g.gaps) / w.areaOf(w.runs)
	percent := math.Floor(10_000*(1-missing)+1e-6) / 100
	return min(max(percent, 0), 99.99), nil
}

// addCells adds the cells that a polygon needs: those of which at least a hundredth lies inside. So
// a boundary along the edges of tiles needs none of their neighbours. Tiles whose pixels are points
// end in the middle of a pixel, so at least half a pixel must lie inside. If the polygon is smaller
// than a cell, that part of the polygon is enough.
func (g *tileGrid) addCells(ctx context.Context, w *cellsWithin, polygon [][]position) error {
	crs, err := g.system()
	if err != nil {
		return err
	}

	const maxPoints = 10 * maxBoundaryCorners
	turn := crs.projection.fullTurn() / g.East
	around := emptyRange()

	// Positions on the grid are in cells.
	project := func(p position) (position, error) {
		shift := crs.shiftAt(p[0], p[1], 0)
		x, y, err := crs.projection.forward(shift.fromWGS84(crs.ellipsoid, p[0], p[1]))
		at := position{
			(x - g.X) / g.East,
			(y - g.Y) / g.North,
		}
		return at, err
	}

	var rings [][]position
	size := 0.0
	for i, ring := range polygon {
		projected, err := followEdges(ring, maxPoints-w.points, project)
		if err != nil {
			return err
		}

		// If the ring crosses the edge of the map, it goes on behind the edge.
		for j := 1; turn > 0 && j < len(projected); j++ {
			jump := math.Round((projected[j][0] - projected[j-1][0]) / turn)
			if jump != 0 && g.columnsAround() == 0 {
				return errors.New("it crosses the edge of the map")
			}
			projected[j][0] -= turn * jump
		}
		around.add(projected...)

		// Outer rings have a positive area, holes a negative one.
		if isOuter := i == 0; isOuter != (signedArea(projected) > 0) {
			slices.Reverse(projected)
		}

		size += signedArea(projected) / 2
		w.points += len(projected)
		rings = append(rings, projected)
	}

	const farthest = 1e9 // cells
	distance := max(
		-around.west,
		-around.south,
		around.east,
		around.north,
	)
	if distance > farthest {
		return errBoundaryTooFine
	}

	pixel := max(g.DX/g.East, g.DY/g.North) // in cells
	halfPixel := 0.6 * pixel                // and a little more
	least := max(0.01, halfPixel) * min(size, 1)
	return w.split(ctx, rings, least, cellRange{
		from: [2]int64{int64(math.Floor(around.west)), int64(math.Floor(around.south))},
		to:   [2]int64{int64(math.Ceil(around.east)), int64(math.Ceil(around.north))},
	})
}

// followEdges projects a ring's corners, and points between them, because straight edges in degrees
// are curves in other coordinates. There may be at most limit points.
func followEdges(ring []position, limit int, project func(position) (position, error)) (points []position, err error) {
	const longest = 0.05 // degrees: the middle of such a piece is off by less than a metre
	for i, q := range ring[1:] {
		p := ring[i]
		length := max(
			math.Abs(q[0]-p[0]),
			math.Abs(q[1]-p[1]),
		)
		pieces := max(1, math.Ceil(length/longest))
		if float64(len(points))+pieces > float64(limit) {
			return nil, errors.New("its edges are too long")
		}

		for piece := range int(pieces) {
			at, err := project(along(p, q, float64(piece)/pieces))
			if err != nil {
				return nil, err
			}
			points = append(points, at)
		}
	}

	return points, nil
}

// clip returns the part of a ring that lies on one side of a line: where the coordinate of an axis
// is at most limit or, if side is -1, at least limit. It is the algorithm of Sutherland and Hodgman
// ("Reentrant polygon clipping", 1974). If the line cuts a ring into several parts, they stay one
// ring, with edges along the line. These have no area.
func clip(ring []position, axis int, limit, side float64) (part []position) {
	for i, p := range ring {
		q := ring[(i+1)%len(ring)]
		isInside := p[axis]*side <= limit*side
		isNextInside := q[axis]*side <= limit*side
		if isInside {
			part = append(part, p)
		}

		// The edge from p to q crosses the line.
		if isInside != isNextInside {
			crossing := along(p, q, (limit-p[axis])/(q[axis]-p[axis]))
			crossing[axis] = limit // exactly
			part = append(part, crossing)
		}
	}

	return part
}

// cellRange is a rectangle of cells, by column and row. It ends before to.
type cellRange struct {
	from [2]int64 // column, row
	to   [2]int64
}

// split adds the cells of a rectangle of which at least a share of least is inside the rings of a
// polygon. The rings are clipped to the rectangle; those of holes have negative areas. split halves
// the rectangle until the polygon fills it, or it is one cell.
func (w *cellsWithin) split(ctx context.Context, rings [][]position, least float64, r cellRange) error {
	const (
		maxLooked = 1_000_000  // parts of the grid
		maxCells  = 10_000_000 // that the boundary needs
	)

	sum := 0.0 // the area inside the polygon, in cells
	for _, ring := range rings {
		sum += signedArea(ring) / 2
	}

	columns := r.to[0] - r.from[0]
	rows := r.to[1] - r.from[1]
	cells := float64(columns) * float64(rows)

	// The parts of a simple polygon are within the rectangle.
	isCrossed := sum < -1e-6 || sum > cells*(1+1e-6)
	isWhole := sum >= cells*(1-1e-9)

	w.looked++
	if isWhole {
		w.looked += int(min(rows, maxLooked))
	}

	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isCrossed:
		return errors.New("its rings cross, or a hole lies outside")
	case w.looked > maxLooked, isWhole && w.cells+cells > maxCells:
		return errBoundaryTooFine
	case isWhole:
		for row := r.from[1]; row < r.to[1]; row++ {
			w.runs = append(w.runs, cellRun{row, r.from[0], r.to[0] - 1})
		}
		w.cells += cells
		return nil
	case cells == 1:
		if sum > 0 && sum >= least {
			cell := cellRun{r.from[1], r.from[0], r.from[0]}
			w.runs = append(w.runs, cell)
			w.shares[cell] = min(w.shares[cell]+sum, 1)
			w.cells++
		}
		return nil
	}

	return w.halve(ctx, rings, least, r)
}

// halve calls split for the two halves of a rectangle. It cuts the longer side.
func (w *cellsWithin) halve(ctx context.Context, rings [][]position, least float64, r cellRange) error {
	axis := 0
	if r.to[1]-r.from[1] > r.to[0]-r.from[0] {
		axis = 1
	}

	middle := r.from[axis] + (r.to[axis]-r.from[axis])/2
	for _, side := range [...]float64{1, -1} {
		var clipped [][]position
		for _, ring := range rings {
			part := clip(ring, axis, float64(middle), side)
			if math.Abs(signedArea(part)) > 1e-12 {
				clipped = append(clipped, part)
			}
		}

		if clipped == nil {
			continue
		}

		half := r
		if side > 0 {
			half.to[axis] = middle
		} else {
			half.from[axis] = middle
		}
		if err := w.split(ctx, clipped, least, half); err != nil {
			return err
		}
	}

	return nil
}

// areaOf returns the area inside the boundary of the cells in runs, in cells.
func (w *cellsWithin) areaOf(runs []cellRun) float64 {
	sum := float64(tilesIn(runs))

	// The parts of cells that lie outside do not count.
	for cell, share := range w.shares {
		at, isFirst := slices.BinarySearchFunc(runs, cell, compareRuns)
		isWithin := at > 0 && runs[at-1].Row == cell.Row && runs[at-1].To >= cell.From
		if isFirst || isWithin {
			sum -= 1 - share
		}
	}

	return sum
}
