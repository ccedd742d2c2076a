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
	isUneven := math.Abs(columns*g.East-turn) > g.DX/2
	if err != nil || isUneven {
		return 0
	}
	return int64(columns)
}

// findGaps returns the cells that tiles enclose, also across 180°, by row and column. runs are the
// runs of cells with a tile, in the same order, at least one. If tiles continue past 180°, gaps
// between them keep the continued column numbers. All other gaps have columns within ±180°. isOpen
// is as in gapsOfParts.
func (g *tileGrid) findGaps(runs []cellRun) (gaps []cellRun, isOpen bool) {
	turn := g.columnsAround()
	if turn == 0 {
		return gapsOfParts(runs, 0)
	}

	gaps, isOpen = gapsOfParts(joinAround(runs, turn))
	return renumber(gaps, g.startOfTurn(runs, turn), turn), isOpen
}

// startOfTurn returns the first column of those that number the turn columns around the globe.
func (g *tileGrid) startOfTurn(runs []cellRun, turn int64) int64 {
	first, last := columnsOf(runs)
	lastBefore180 := math.Floor(float64(turn)/2 - g.X/g.East - 0.5)
	behind180 := int64(lastBefore180) + 1

	end := max(last+1, min(first+turn, behind180))
	return end - turn
}

// gapsOfParts returns the gaps of each connected part of the tiles, so that a stray far away does
// not hide a missing corner. Tiles that go around the globe are one part (see joinAround). isOpen
// reports whether a part has an open outline (see gapsBetween).
func gapsOfParts(runs []cellRun, around int64) (gaps []cellRun, isOpen bool) {
	if around > 0 {
		return gapsBetween(runs, around)
	}

	for _, part := range partsOf(runs) {
		enclosed, isPartOpen := gapsBetween(part, 0)
		gaps = append(gaps, enclosed...)
		isOpen = isOpen || isPartOpen
	}

	// A cell may be a gap of one part and have a tile of another.
	slices.SortFunc(gaps, compareRuns)
	return without(mergeRuns(gaps), runs), isOpen
}

// strays returns the runs of small parts that lie far from every large part. A small part has at
// most one tile in fifty. It is far if its distance is more than 20 cells, and more than the length
// of the large part. So islands near a coast are no strays.
func strays(runs []cellRun) (far []cellRun) {
	var small [][]cellRun
	var large [][]cellRun
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

	// Without large parts that have nearly all tiles, no part is a stray.
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
	westA, eastA := columnsOf(a)
	southA := a[0].Row
	northA := a[len(a)-1].Row

	westB, eastB := columnsOf(b)
	southB := b[0].Row
	northB := b[len(b)-1].Row

	between = max(
		westA-eastB,
		westB-eastA,
		southA-northB,
		southB-northA,
	)
	length = max(eastB-westB, northB-southB)
	return between, length
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

// disjointSets are sets of numbers from 0 on. It has for each number an earlier one of its set, or,
// for the first one, the number itself.
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
	later := max(a, b)
	sets[later] = min(a, b)
}

// joinRows joins the sets of gaps that touch each other, of two rows. The gaps of the first row
// begin at index above, those of the second at here.
func (sets disjointSets) joinRows(gaps []cellRun, above, here int) {
	i := above
	j := here
	for i < here && j < len(gaps) {
		touch := gaps[i].From <= gaps[j].To && gaps[j].From <= gaps[i].To
		if touch {
			sets.join(i, j)
		}

		// Go on behind the gap that ends first.
		if gaps[i].To < gaps[j].To {
			i++
		} else {
			j++
		}
	}
}

// partsOf returns the connected parts of the tiles, each with its runs in order. Tiles are
// connected if the blocks of 3 by 3 cells that hold them touch.
func partsOf(runs []cellRun) (parts [][]cellRun) {
	const size = 3
	type block struct{ row, column int64 }

	// of returns the row or column of the block that holds a cell.
	of := func(cell int64) int64 { return int64(math.Floor(float64(cell) / size)) }

	// Blocks that touch are one set.
	numbers := map[block]int{}
	var sets disjointSets
	for _, run := range runs {
		for column := of(run.From); column <= of(run.To); column++ {
			at := block{of(run.Row), column}
			if _, isKnown := numbers[at]; isKnown {
				continue
			}

			numbers[at] = len(sets)
			sets = append(sets, len(sets))
			for i := range int64(9) { // the block, and the eight around it
				other, hasTile := numbers[block{at.row + i/3 - 1, at.column + i%3 - 1}]
				if hasTile {
					sets.join(numbers[at], other)
				}
			}
		}
	}

	// A part is in the place of the first block of its set.
	parts = make([][]cellRun, len(sets))
	for _, run := range runs {
		part := sets.root(numbers[block{of(run.Row), of(run.From)}])
		parts[part] = append(parts[part], run)
	}

	return slices.DeleteFunc(parts, func(part []cellRun) bool { return part == nil })
}

// without returns the cells of gaps that are in no run. Both are in order.
func without(gaps, runs []cellRun) (left []cellRun) {
	isBefore := func(run, gap cellRun) bool {
		if run.Row != gap.Row {
			return run.Row < gap.Row
		}
		return run.To < gap.From
	}

	for _, gap := range gaps {
		// Skip the runs that lie before this gap, and so before all later ones.
		for len(runs) > 0 && isBefore(runs[0], gap) {
			runs = runs[1:]
		}

		// Cut the gap at each run within it. The rest of the gap begins behind the run.
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
		n := len(merged) - 1
		isNext := n >= 0 && run.Row == merged[n].Row && run.From <= merged[n].To+1
		if isNext {
			merged[n].To = max(merged[n].To, run.To)
		} else {
			merged = append(merged, run)
		}
	}

	return merged
}

// isRectangle reports whether tiles form a rectangle. The smallest rectangle around them has that
// many columns and rows. They form it if they fill at least seven eighths of its cells.
//
// They also form it if whole columns, or whole rows, are missing inside it. Then they must fill
// three quarters of the rectangle, and 24 of 25 cells of the columns (or rows) that have a tile.
// Example: of 10 by 10 cells, columns 4 and 5 are missing, and 80 tiles fill the other 8 columns.
// With fewer than four columns or rows, the tiles may as well be two deliveries.
func isRectangle(runs []cellRun, columns, rows int64) bool {
	tiles := float64(tilesIn(runs))
	cells := float64(columns * rows)
	if tiles >= cells*7/8 {
		return true
	}

	usedColumns := map[int64]bool{}
	usedRows := map[int64]bool{}
	for _, run := range runs {
		usedRows[run.Row] = true
		for column := run.From; column <= run.To; column++ {
			usedColumns[column] = true
		}
	}

	// The cells of the columns with a tile, or of the rows with a tile if those are fewer cells.
	used := min(
		int64(len(usedColumns))*rows,
		int64(len(usedRows))*columns,
	)
	isWide := columns >= 4 && rows >= 4
	return isWide && tiles >= cells*3/4 && tiles >= float64(used)*24/25
}

// gapsBetween returns the cells without a tile that tiles enclose. It takes the maximal runs of
// cells with a tile, by row and column, at least one. If the tiles form a rectangle, it returns all
// empty cells of it. If not, isOpen is true: tiles that are missing at the outline are not found.
//
// It goes through the rows with a union-find over the gaps: gaps that touch are one set. A border
// of empty cells around the rectangle makes the outside one set, that of the first gap. If around
// is not 0, that many columns go around the globe. Then there is no border in the west and in the
// east, and rows without tiles are outside.
func gapsBetween(runs []cellRun, around int64) (enclosed []cellRun, isOpen bool) {
	// The rectangle, and the width of its border in the west and in the east.
	west, east := columnsOf(runs)
	border := int64(1)
	if around > 0 {
		east = west + around - 1
		border = 0
	}

	first := runs[0].Row
	last := runs[len(runs)-1].Row
	isOpen = !isRectangle(runs, east-west+1, last-first+1)

	// The first gap is the row below the rectangle.
	gaps := []cellRun{{first - 1, west - border, east + border}}
	sets := disjointSets{0}
	add := func(row, from, to int64) {
		sets = append(sets, len(gaps))
		gaps = append(gaps, cellRun{row, from, to})
	}

	above := 0 // the first gap of the row before
	for row := first; row <= last+1; row++ {
		// The gaps of this row are those between its tiles.
		here := len(gaps)   // the first gap of this row
		at := west - border // the first column that is not looked at yet
		for ; len(runs) > 0 && runs[0].Row == row; runs = runs[1:] {
			add(row, at, runs[0].From-1)
			at = runs[0].To + 1
		}

		add(row, at, east+border)

		sets.joinRows(gaps, above, here)

		// Around the globe, an empty row is outside. In any other, the first gap touches the last
		// one, if neither is empty.
		if around > 0 && at == west {
			sets.join(0, here)
		} else if around > 0 && gaps[here].To >= west && at <= east {
			sets.join(here, len(gaps)-1)
		}
		above = here

		// After an empty row, every row up to the next tile is outside.
		isEmpty := at == west-border
		if isEmpty && len(runs) > 0 && isOpen {
			row = runs[0].Row - 1
		}
	}

	// A gap outside the set of the first one is enclosed. The border does not count.
	for i := 1; i < len(gaps)-1; i++ {
		gap := cellRun{
			Row:  gaps[i].Row,
			From: max(gaps[i].From, west),
			To:   min(gaps[i].To, east),
		}
		isEnclosed := !isOpen || sets.root(i) != 0
		if gap.From <= gap.To && isEnclosed {
			enclosed = append(enclosed, gap)
		}
	}

	return enclosed, isOpen
}

// compareRuns orders runs by row and column.
func compareRuns(a, b cellRun) int {
	return cmp.Or(
		cmp.Compare(a.Row, b.Row),
		cmp.Compare(a.From, b.From),
	)
}

// renumber returns runs on a globe of turn columns with their columns counted from start, by row
// and column. It joins neighbours, and cuts a run that goes beyond the last column.
func renumber(runs []cellRun, start, turn int64) []cellRun {
	var cut []cellRun
	for _, run := range runs {
		offset := ((run.From-start)%turn + turn) % turn // from 0 to turn - 1
		from := start + offset
		to := from + min(run.To-run.From, turn-1)
		last := start + turn - 1

		cut = append(cut, cellRun{run.Row, from, min(to, last)})
		if to > last {
			cut = append(cut, cellRun{run.Row, start, to - turn})
		}
	}

	slices.SortFunc(cut, compareRuns)
	return mergeRuns(cut)
}

// joinAround renumbers the columns of runs on a globe of turn columns, so that they begin after
// the widest gap between columns with tiles. If no gap is wider than an eighth of the globe, the
// tiles go around it, and around is turn; else it is 0.
func joinAround(runs []cellRun, turn int64) (joined []cellRun, around int64) {
	inOneRow := slices.Clone(runs)
	for i := range inOneRow {
		inOneRow[i].Row = 0
	}

	used := renumber(inOneRow, 0, turn)

	// The gap before the first column begins after the last one, a turn before.
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
