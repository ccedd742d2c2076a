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

// readBoundary reads a GeoJSON Polygon or MultiPolygon, or a Feature or FeatureCollection of these.
// Properties are left out. ok is false for any other JSON, for an area of more than
// maxBoundaryCorners, and for one that is not within ±180° and ±90°.
func readBoundary(text json.RawMessage) (boundary area, ok bool) {
	var in struct {
		Type     string
		Geometry json.RawMessage
		Features []struct{ Geometry json.RawMessage }
	}
	if json.Unmarshal(text, &in) != nil {
		return nil, false
	}
	geometries := []json.RawMessage{text}
	switch in.Type {
	case "Feature":
		geometries[0] = in.Geometry
	case "FeatureCollection":
		geometries = nil
		for _, feature := range in.Features {
			geometries = append(geometries, feature.Geometry)
		}
	}

	corners := 0
	for _, geometry := range geometries {
		parameter, _, part, isRead := readGeometry(string(geometry), maxBoundaryCorners-corners)
		if !isRead || parameter != "bbox" {
			return nil, false
		}
		for _, polygon := range part {
			for _, ring := range polygon {
				corners += len(ring)
				isOffGlobe := func(p position) bool { return math.Abs(p[0]) > 180 || math.Abs(p[1]) > 90 }
				if slices.ContainsFunc(ring, isOffGlobe) {
					return nil, false
				}
			}
		}
		boundary = append(boundary, part...)
	}
	return boundary, boundary != nil
}

// cellsWithin holds the cells of a grid of which at least a hundredth lies inside a boundary.
type cellsWithin struct {
	runs   []cellRun
	shares map[[2]int64]float64 // of the cells that are partly inside, by row and column
	total  float64              // the area inside, in cells
	looked int                  // parts of the grid that were looked at
}

// maxCellsWithin is how many cells a boundary may have.
const maxCellsWithin = 10_000_000

// Errors of a boundary that cannot be compared with a grid.
var (
	errBoundaryTooLong = errors.New("the edges of the boundary are too long")
	errGridTooFine     = errors.New("the boundary has too many cells")
)

// within returns the cells of the grid that lie inside a boundary.
func (g *tileGrid) within(ctx context.Context, boundary area) (*cellsWithin, error) {
	crs, err := g.system()
	if err != nil {
		return nil, err
	}
	place := func(p position) (position, error) { // in cells, from the origin of the grid
		shift := crs.shiftAt(p[0], p[1], 0)
		x, y, err := crs.projection.forward(shift.fromWGS84(crs.ellipsoid, p[0], p[1]))
		return position{(x - g.X) / g.East, (y - g.Y) / g.North}, err
	}

	const maxPoints = 10 * maxBoundaryCorners
	var rings [][]position
	around := emptyRange()
	points := 0
	for _, polygon := range boundary {
		for i, ring := range polygon {
			placed, err := followEdges(ring, maxPoints-points, place)
			if err != nil {
				return nil, err
			}
			for _, p := range placed {
				around.add(p)
			}
			points += len(placed)
			if isOuter := i == 0; isOuter != (signedArea(placed) > 0) {
				slices.Reverse(placed)
			}
			rings = append(rings, placed)
		}
	}
	const farthest = 1e9 // cells
	if max(-around.west, -around.south, around.east, around.north) > farthest {
		return nil, errGridTooFine
	}

	w := &cellsWithin{shares: map[[2]int64]float64{}}
	err = w.split(ctx, rings, cellRange{
		from: [2]int64{int64(math.Floor(around.west)), int64(math.Floor(around.south))},
		to:   [2]int64{int64(math.Ceil(around.east)), int64(math.Ceil(around.north))},
	})
	slices.SortFunc(w.runs, compareRuns)
	w.runs = mergeRuns(w.runs)
	return w, err
}

// followEdges returns the places of a ring's corners, and of points between them, because straight
// edges in degrees are curves in other coordinates. There may be at most limit places.
func followEdges(ring []position, limit int, place func(position) (position, error)) (placed []position, err error) {
	const longest = 0.05 // degrees: the middle of such a piece is off by less than a metre
	for i, q := range ring[1:] {
		p := ring[i]
		pieces := max(1, math.Ceil(max(math.Abs(q[0]-p[0]), math.Abs(q[1]-p[1]))/longest))
		if float64(len(placed))+pieces > float64(limit) {
			return nil, errBoundaryTooLong
		}
		for piece := range int(pieces) {
			part := float64(piece) / pieces
			at, err := place(position{p[0] + part*(q[0]-p[0]), p[1] + part*(q[1]-p[1])})
			if err != nil {
				return nil, err
			}
			placed = append(placed, at)
		}
	}
	return placed, nil
}

// clip returns the part of a ring that lies on one side of a line: where the coordinate of an axis
// is at most limit or, if side is -1, at least limit. It is the algorithm of Sutherland and Hodgman
// ("Reentrant polygon clipping", 1974). If the line cuts a ring into several parts, they stay one
// ring, with edges along the line. These have no area.
func clip(ring []position, axis int, limit, side float64) (part []position) {
	for i, p := range ring {
		q := ring[(i+1)%len(ring)]
		isInside, isNextInside := p[axis]*side <= limit*side, q[axis]*side <= limit*side
		if isInside {
			part = append(part, p)
		}
		if isInside != isNextInside {
			at := (limit - p[axis]) / (q[axis] - p[axis])
			crossing := position{p[0] + at*(q[0]-p[0]), p[1] + at*(q[1]-p[1])}
			crossing[axis] = limit
			part = append(part, crossing)
		}
	}
	return part
}

// cellRange is a rectangle of cells, by column and row. It ends before to.
type cellRange struct{ from, to [2]int64 }

// split adds the cells of a rectangle that are inside rings, which have been clipped to it. The
// rings of holes have negative areas. It halves the rectangle until one ring fills it, or it is one
// cell.
func (w *cellsWithin) split(ctx context.Context, rings [][]position, r cellRange) error {
	const maxLooked = 1_000_000
	sum, largest, smallest := 0.0, 0.0, 0.0
	for _, ring := range rings {
		size := signedArea(ring) / 2
		sum += size
		largest, smallest = max(largest, size), min(smallest, size)
	}
	columns, rows := r.to[0]-r.from[0], r.to[1]-r.from[1]
	cells := float64(columns) * float64(rows)
	isWhole := smallest == 0 && largest >= cells*(1-1e-9)

	w.looked++
	if isWhole {
		w.looked += int(min(rows, maxLooked))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case w.looked > maxLooked, w.total > maxCellsWithin:
		return errGridTooFine
	case isWhole:
		for row := r.from[1]; row < r.to[1]; row++ {
			w.runs = append(w.runs, cellRun{row, r.from[0], r.to[0] - 1})
		}
		w.total += cells
		return nil
	case cells == 1:
		const least = 0.01 // so that a boundary along the edges of tiles needs none of its neighbours
		if share := min(sum, 1); share >= least {
			w.runs = append(w.runs, cellRun{r.from[1], r.from[0], r.from[0]})
			w.shares[[2]int64{r.from[1], r.from[0]}] = share
			w.total += share
		}
		return nil
	}

	axis := 0
	if rows > columns {
		axis = 1
	}
	middle := r.from[axis] + (r.to[axis]-r.from[axis])/2
	for _, side := range [...]float64{1, -1} {
		var clipped [][]position
		for _, ring := range rings {
			if part := clip(ring, axis, float64(middle), side); math.Abs(signedArea(part)) > 1e-9 {
				clipped = append(clipped, part)
			}
		}
		half := r
		if side > 0 {
			half.to[axis] = middle
		} else {
			half.from[axis] = middle
		}
		if clipped == nil {
			continue
		}
		if err := w.split(ctx, clipped, half); err != nil {
			return err
		}
	}
	return nil
}

// areaOf returns the area inside the boundary of the cells in runs, in cells.
func (w *cellsWithin) areaOf(runs []cellRun) float64 {
	sum := float64(tilesIn(runs))
	for cell, share := range w.shares {
		at, isFirst := slices.BinarySearchFunc(runs, cellRun{cell[0], cell[1], cell[1]}, compareRuns)
		isIn := isFirst || at > 0 && runs[at-1].Row == cell[0] && runs[at-1].To >= cell[1]
		if isIn {
			sum -= 1 - share
		}
	}
	return sum
}
