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
// runs of cells with a tile, in the same order. If tiles continue past 180°, gaps between them keep
// the continued column numbers. All other gaps have columns within ±180°.
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
	return renumber(gapsBetween(joinAround(runs, turn)), end-turn, turn)
}

// compareRuns orders runs by row and column.
func compareRuns(a, b cellRun) int {
	return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.From, b.From))
}

// renumber returns runs on a globe of turn columns with their columns counted from start, by row
// and column. It joins neighbours, and cuts a run that goes beyond the last column.
func renumber(runs []cellRun, start, turn int64) (maximal []cellRun) {
	var cut []cellRun
	for _, run := range runs {
		from := start + ((run.From-start)%turn+turn)%turn
		to := from + min(run.To-run.From, turn-1)
		cut = append(cut, cellRun{run.Row, from, min(to, start+turn-1)})
		if to >= start+turn {
			cut = append(cut, cellRun{run.Row, start, to - turn})
		}
	}
	slices.SortFunc(cut, compareRuns)
	for _, run := range cut {
		if n := len(maximal) - 1; n >= 0 && run.Row == maximal[n].Row && run.From <= maximal[n].To+1 {
			maximal[n].To = max(maximal[n].To, run.To)
		} else {
			maximal = append(maximal, run)
		}
	}
	return maximal
}

// joinAround renumbers the columns of runs on a globe of turn columns, so that they begin after
// the widest gap between columns with tiles. around is turn if no gap is wider than an eighth of
// it, so that the tiles go around the globe, else 0.
func joinAround(runs []cellRun, turn int64) (joined []cellRun, around int64) {
	inOneRow := slices.Clone(runs)
	for i := range inOneRow {
		inOneRow[i].Row = 0
	}
	used := renumber(inOneRow, 0, turn)
	start, end, widest := int64(0), used[len(used)-1].To-turn, int64(-1)
	for _, run := range used {
		if gap := run.From - end - 1; gap > widest {
			start, widest = run.From, gap
		}
		end = run.To
	}
	if widest*8 <= turn {
		around = turn
	}
	return renumber(runs, start, turn), around
}
