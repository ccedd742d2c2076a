package main

import (
	"cmp"
	"math"
	"slices"
)

// columnsAround returns how many columns of the grid go around the globe. It is 0 if their number
// is not whole, if x does not run along the longitudes, or if the registry does not know the CRS.
func (g tileGrid) columnsAround() int64 {
	tile := g.tile(cellRun{}).file()
	crs, _, ok := tile.knownCRS()
	turn := crs.projection.fullTurn()
	columns := math.Round(turn / g.East)
	if !ok || math.Abs(columns*g.East-turn) > g.DX/2 {
		return 0
	}
	return int64(columns)
}

// findGaps returns the cells that tiles enclose, also across 180°, by row and column. runs are the
// runs of cells with a tile, in the same order. Columns beyond 180° are counted on as far as those
// of the tiles are; the others lie within ±180°.
func (g tileGrid) findGaps(runs []cellRun) (gaps []cellRun) {
	turn := g.columnsAround()
	if turn == 0 || len(runs) == 0 {
		return gapsBetween(runs, 0)
	}
	first, last := runs[0].From, runs[0].To
	for _, run := range runs {
		first, last = min(first, run.From), max(last, run.To)
	}
	behind180 := int64(math.Floor(float64(turn)/2-g.X/g.East-0.5)) + 1
	end := max(last+1, min(first+turn, behind180)) // from here on, columns count a turn less
	for _, gap := range gapsBetween(joinAround(runs, turn)) {
		if gap.From < end {
			gaps = append(gaps, cellRun{gap.Row, gap.From, min(gap.To, end-1)})
		}
		if gap.To >= end {
			gaps = append(gaps, cellRun{gap.Row, max(gap.From, end) - turn, gap.To - turn})
		}
	}
	slices.SortFunc(gaps, compareRuns)
	return gaps
}

// compareRuns orders runs by row and column.
func compareRuns(a, b cellRun) int {
	return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.From, b.From))
}

// joinAround renumbers the columns of runs on a globe of turn columns, so that they begin behind
// the widest gap between columns with tiles. It returns the runs in order and joins neighbours.
// around is turn if no gap is wider than an eighth of it, so that the tiles go around the globe,
// else 0.
func joinAround(runs []cellRun, turn int64) (joined []cellRun, around int64) {
	column := func(run cellRun) int64 { return ((run.From % turn) + turn) % turn }
	byColumn := slices.Clone(runs)
	slices.SortFunc(byColumn, func(a, b cellRun) int {
		return cmp.Or(cmp.Compare(column(a), column(b)), cmp.Compare(a.From, b.From))
	})
	reach := column(byColumn[0]) // the first column that no run before covers
	for _, run := range byColumn {
		reach = max(reach, column(run)+run.To-run.From+1)
	}
	reach -= turn // the runs beyond the last column cover the first ones
	widest, start := int64(-1), byColumn[0].From
	for _, run := range byColumn {
		if gap := column(run) - reach; gap > widest {
			widest, start = gap, run.From
		}
		reach = max(reach, column(run)+run.To-run.From+1)
	}
	if widest*8 <= turn {
		around = turn
	}
	for _, run := range runs {
		from := start + ((run.From-start)%turn+turn)%turn
		to := from + min(run.To-run.From, turn-1)
		joined = append(joined, cellRun{run.Row, from, min(to, start+turn-1)})
		if to >= start+turn {
			joined = append(joined, cellRun{run.Row, start, to - turn})
		}
	}
	slices.SortFunc(joined, compareRuns)
	n := 0 // of runs that are maximal
	for _, run := range joined[1:] {
		if last := &joined[n]; run.Row == last.Row && run.From <= last.To+1 {
			last.To = max(last.To, run.To)
		} else {
			n++
			joined[n] = run
		}
	}
	return joined[:n+1], around
}
