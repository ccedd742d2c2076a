package main

import (
	"cmp"
	"math"
	"slices"
)

// system returns the CRS of the grid.
func (g *tileGrid) system() (crsDefinition, error) {
	if g.Definition != "" {
		return crsByDefinition(g.Definition)
	}
	return crsByText(g.CRS)
}

// columnsAround returns how many columns of the grid go around the globe. It is 0 if their number
// is not whole, if x does not run along the longitudes, or if the registry does not know the CRS.
func (g *tileGrid) columnsAround() int64 {
	crs, err := g.system()
	turn := crs.projection.fullTurn()
	columns := math.Round(turn / g.East)
	if err != nil || math.Abs(columns*g.East-turn) > g.DX/2 {
		return 0
	}
	return int64(columns)
}

// findGaps returns the cells that tiles enclose, also across 180°, by row and column. runs are the
// runs of cells with a tile, in the same order. If tiles continue past 180°, gaps between them keep
// the continued column numbers. All other gaps have columns within ±180°.
func (g *tileGrid) findGaps(runs []cellRun) (gaps []cellRun) {
	turn := g.columnsAround()
	if turn == 0 || len(runs) == 0 {
		return gapsOfParts(runs, 0)
	}

	return renumber(gapsOfParts(joinAround(runs, turn)), g.startOfTurn(runs, turn), turn)
}

// startOfTurn returns the first column of those that number the turn columns around the globe.
func (g *tileGrid) startOfTurn(runs []cellRun, turn int64) int64 {
	first, last := columnsOf(runs)
	behind180 := int64(math.Floor(float64(turn)/2-g.X/g.East-0.5)) + 1
	return max(last+1, min(first+turn, behind180)) - turn
}

// gapsOfParts returns the gaps of each connected part of the tiles, so that a stray far away does
// not hide a missing corner. Tiles that go around the globe are one part.
func gapsOfParts(runs []cellRun, around int64) (gaps []cellRun) {
	if around > 0 {
		return gapsBetween(runs, around)
	}

	for _, part := range partsOf(runs) {
		gaps = append(gaps, gapsBetween(part, 0)...)
	}

	slices.SortFunc(gaps, compareRuns)
	return without(mergeRuns(gaps), runs)
}

// strays returns the runs of small parts that lie far from every large part. A small part has at
// most one tile in fifty. It is far if the distance is more than 20 cells and more than the length
// of the large part. So islands near a coast are no strays.
func strays(runs []cellRun) (far []cellRun) {
	var small, large [][]cellRun
	tiles := tilesIn(runs)
	inLarge := int64(0)
	for _, part := range partsOf(runs) {
		if n := tilesIn(part); n <= max(1, tiles/50) {
			small = append(small, part)
		} else {
			large = append(large, part)
			inLarge += n
		}
	}

	if tiles < minLot || inLarge*10 < tiles*9 {
		return nil
	}

	for _, part := range small {
		isNear := slices.ContainsFunc(large, func(other []cellRun) bool {
			between, length := distance(part, other)
			return between <= max(20, length)
		})
		if !isNear {
			far = append(far, part...)
		}
	}

	return far
}

// distance returns how many columns or rows lie between two parts, and how long the second part is.
func distance(a, b []cellRun) (between, length int64) {
	west, east := columnsOf(a)
	from, to := columnsOf(b)
	south := b[0].Row
	north := b[len(b)-1].Row
	between = max(west-to, from-east, a[0].Row-north, south-a[len(a)-1].Row)
	return between, max(to-from, north-south)
}

// columnsOf returns the first and the last column of runs.
func columnsOf(runs []cellRun) (west, east int64) {
	west = runs[0].From
	east = runs[0].To
	for _, run := range runs {
		west = min(west, run.From)
		east = max(east, run.To)
	}
	return west, east
}

// tilesIn counts the cells of runs.
func tilesIn(runs []cellRun) (n int64) {
	for _, run := range runs {
		n += run.To - run.From + 1
	}
	return n
}

// disjointSets has for each element itself, or an earlier element of its set.
type disjointSets []int

// root returns the first element of the set of i.
func (sets disjointSets) root(i int) int {
	for sets[i] != i {
		sets[i] = sets[sets[i]]
		i = sets[i]
	}
	return i
}

// join makes one set of those of i and j.
func (sets disjointSets) join(i, j int) {
	a := sets.root(i)
	b := sets.root(j)
	sets[max(a, b)] = min(a, b)
}

// partsOf returns the connected parts of the tiles, each with its runs in order. Tiles are
// connected if the blocks of 3 by 3 cells that hold them touch.
func partsOf(runs []cellRun) (parts [][]cellRun) {
	const size = 3
	type block struct{ row, column int64 }
	of := func(cell int64) int64 { return int64(math.Floor(float64(cell) / size)) }

	partOf := map[block]int{} // 0: in no part yet
	for _, run := range runs {
		for column := of(run.From); column <= of(run.To); column++ {
			partOf[block{of(run.Row), column}] = 0
		}
	}

	for _, run := range runs {
		first := block{of(run.Row), of(run.From)}
		if partOf[first] == 0 {
			parts = append(parts, nil)
			for open := []block{first}; len(open) > 0; {
				at := open[len(open)-1]
				open = open[:len(open)-1]
				if part, hasTile := partOf[at]; !hasTile || part != 0 {
					continue
				}

				partOf[at] = len(parts)
				for i := range int64(9) {
					open = append(open, block{at.row + i/3 - 1, at.column + i%3 - 1})
				}
			}
		}

		part := partOf[first] - 1
		parts[part] = append(parts[part], run)
	}

	return parts
}

// without returns the cells of gaps that are in no run. Both are in order.
func without(gaps, runs []cellRun) (left []cellRun) {
	for _, gap := range gaps {
		for len(runs) > 0 && (runs[0].Row < gap.Row || runs[0].Row == gap.Row && runs[0].To < gap.From) {
			runs = runs[1:]
		}

		for _, run := range runs {
			if run.Row != gap.Row || run.From > gap.To {
				break
			}
			if run.From > gap.From {
				left = append(left, cellRun{gap.Row, gap.From, run.From - 1})
			}
			gap.From = run.To + 1
		}

		if gap.From <= gap.To {
			left = append(left, gap)
		}
	}

	return left
}

// mergeRuns joins runs that touch or overlap. They are in order.
func mergeRuns(runs []cellRun) (merged []cellRun) {
	for _, run := range runs {
		if n := len(merged) - 1; n >= 0 && run.Row == merged[n].Row && run.From <= merged[n].To+1 {
			merged[n].To = max(merged[n].To, run.To)
		} else {
			merged = append(merged, run)
		}
	}

	return merged
}

// gapsBetween returns the cells without a tile that tiles enclose. It takes the maximal runs of
// cells with a tile, by row and column. If tiles fill seven eighths of the rectangle around them,
// it returns all empty cells of the rectangle.
//
// It goes through the rows with a union-find over the gaps: gaps that touch are one set. A border
// of empty cells around the rectangle makes the outside one set, that of the first gap. If around
// is not 0, that many columns go around the globe: there is no border in the west and in the east,
// and rows without tiles are outside.
func gapsBetween(runs []cellRun, around int64) (enclosed []cellRun) {
	if len(runs) == 0 {
		return nil
	}

	west, east := columnsOf(runs)
	tiles := tilesIn(runs)
	border := int64(1)
	if around > 0 {
		east = west + around - 1
		border = 0
	}

	first := runs[0].Row
	last := runs[len(runs)-1].Row
	full := float64(tiles) >= float64(east-west+1)*float64(last-first+1)*7/8

	gaps := []cellRun{{first - 1, west - border, east + border}}
	sets := disjointSets{0}
	add := func(row, from, to int64) {
		sets = append(sets, len(gaps))
		gaps = append(gaps, cellRun{row, from, to})
	}

	above := 0 // the first gap of the row before
	for row := first; row <= last+1; row++ {
		here := len(gaps)
		at := west - border
		for ; len(runs) > 0 && runs[0].Row == row; runs = runs[1:] {
			add(row, at, runs[0].From-1)
			at = runs[0].To + 1
		}

		add(row, at, east+border)

		// Join the gaps that touch one of the row before.
		for i, j := above, here; i < here && j < len(gaps); {
			if gaps[i].From <= gaps[j].To && gaps[j].From <= gaps[i].To {
				sets.join(i, j)
			}

			if gaps[i].To < gaps[j].To {
				i++
			} else {
				j++
			}
		}

		if around > 0 && at == west {
			sets.join(0, here)
		} else if around > 0 && gaps[here].To >= west && at <= east {
			sets.join(here, len(gaps)-1) // the first and the last gap of the row touch around the globe
		}

		above = here

		isEmpty := at == west-border
		if isEmpty && len(runs) > 0 && !full { // every row up to the next tile is outside
			row = runs[0].Row - 1
		}
	}

	for i := 1; i < len(gaps)-1; i++ {
		gap := cellRun{gaps[i].Row, max(gaps[i].From, west), min(gaps[i].To, east)}
		if gap.From <= gap.To && (full || sets.root(i) != 0) {
			enclosed = append(enclosed, gap)
		}
	}

	return enclosed
}

// compareRuns orders runs by row and column.
func compareRuns(a, b cellRun) int {
	return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.From, b.From))
}

// renumber returns runs on a globe of turn columns with their columns counted from start, by row
// and column. It joins neighbours, and cuts a run that goes beyond the last column.
func renumber(runs []cellRun, start, turn int64) []cellRun {
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
	return mergeRuns(cut)
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

	start := int64(0)
	end := used[len(used)-1].To - turn
	widest := int64(-1)
	for _, run := range used {
		if gap := run.From - end - 1; gap > widest {
			start = run.From
			widest = gap
		}
		end = run.To
	}

	if widest*8 <= turn {
		around = turn
	}

	return renumber(runs, start, turn), around
}
