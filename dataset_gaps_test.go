package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// isFullRectangle reports whether tiles fill seven eighths of a rectangle or, with at least four rows and columns, three quarters
// of it, and 24 of 25 cells apart from the rows, or the columns, without a tile.
func isFullRectangle(rows, columns int, has func(row, column int) bool) bool {
	tiles := 0
	usedRows := map[int]bool{}
	usedColumns := map[int]bool{}
	for row := range rows {
		for column := range columns {
			if has(row, column) {
				tiles++
				usedRows[row] = true
				usedColumns[column] = true
			}
		}
	}

	rest := min(len(usedRows)*columns, rows*len(usedColumns))
	isStraight := rows >= 4 && columns >= 4 && 4*tiles >= 3*rows*columns && 25*tiles >= 24*rest
	return isStraight || 8*tiles >= 7*rows*columns
}

// TestGapsAround compares with a flood of each field of tiles on a globe of 16 columns from north and south. The columns of
// tiles are counted from anywhere.
func TestGapsAround(t *testing.T) {
	t.Parallel()
	const turn, rows = 16, 6
	random := rand.New(rand.NewPCG(9, 10))
	found, across, fullWithout := 0, 0, 0
	for range 5000 {
		density, width, offset := random.Float64(), 1+random.IntN(turn), random.IntN(turn)
		var tile, wet [rows + 2][turn]bool
		var runs []cellRun
		for r := 1; r <= rows; r++ {
			for c := range width {
				if random.Float64() < density {
					tile[r][(c+offset)%turn] = true
				}
			}
		}
		first, last, n := rows+1, 0, 0
		var used [turn]bool
		for r := 1; r <= rows; r++ {
			for c := range turn {
				if tile[r][c] {
					first, last, used[c] = min(first, r), max(last, r), true
					n++
					at := int64(c + turn*(random.IntN(3)-1))
					runs = append(runs, cellRun{int64(r), at, at})
				}
			}
		}
		if len(runs) == 0 {
			continue
		}
		slices.SortFunc(runs, compareRuns)
		var flood func(r, c int)
		flood = func(r, c int) {
			c = (c + turn) % turn
			if r >= max(0, first-1) && r <= last+1 && !tile[r][c] && !wet[r][c] {
				wet[r][c] = true
				flood(r-1, c)
				flood(r+1, c)
				flood(r, c-1)
				flood(r, c+1)
			}
		}
		for r := range rows + 2 {
			if tile[r] == [turn]bool{} { // nothing holds north and south apart there
				flood(r, 0)
			}
		}
		gap, west := 0, 0 // the most columns without a tile in a row, and the column behind them
		for c := range turn {
			empty := 0
			for ; empty < turn && !used[(c+empty)%turn]; empty++ {
			}
			if empty > gap {
				gap, west = empty, (c+empty)%turn
			}
		}
		if gap*8 <= turn {
			gap = 0
		}
		cells := (last - first + 1) * (turn - gap)
		full := isFullRectangle(last-first+1, turn-gap, func(row, column int) bool { return tile[first+row][(west+column)%turn] })
		var want, got []string
		for r := first; r <= last; r++ {
			for c := range turn {
				if inside := (c-west+turn)%turn < turn-gap; !tile[r][c] && (!wet[r][c] || full && inside) {
					want = append(want, fmt.Sprint(r, " ", c))
				}
			}
		}
		gaps, isOpen := gapsBetween(joinAround(runs, turn))
		if isOpen == full {
			t.Fatalf("%v: open %v, full %v", tile, isOpen, full)
		}
		fullWithout += b2i(full && 8*n < 7*cells)
		for _, gap := range gaps {
			for c := gap.From; c <= gap.To; c++ {
				got = append(got, fmt.Sprint(gap.Row, " ", (c%turn+turn)%turn))
				across += int(btof(c != (c%turn+turn)%turn))
			}
		}
		found += len(got)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%v: got %v, want %v", tile, got, want)
		}
	}
	if found < 1000 || across < 100 || fullWithout < 2 {
		t.Errorf("%d gaps, %d across the end of the columns, %d full but for a line", found, across, fullWithout)
	}
}

// TestGapsAcross180 has tiles around the Fiji islands and all around the globe, and holes on both sides of 180°.
func TestGapsAcross180(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	const mercator = 20037508.342789244
	for name, of := range map[string]struct {
		code          int
		size          float64 // of a tile
		from, columns int     // the first column, from the meridian where x is 0
		rows          int
		wraps, east   int // tiles from this column on, from the first, count a turn less; columns of a turn
		holes         [][2]int
		want          []string
	}{
		"degrees":              {4326, 1, 176, 8, 5, 4, 360, [][2]int{{3, 2}, {4, 3}}, []string{"-180 3", "179 2"}},
		"counted from 0":       {4326, 1, 176, 8, 5, 8, 360, [][2]int{{3, 2}, {4, 3}}, []string{"179 2", "180 3"}},
		"a hole to both sides": {4326, 1, 177, 6, 3, 3, 360, [][2]int{{2, 1}, {3, 1}}, []string{"-180 1", "179 1"}},
		"no tile at 180":       {4326, 1, 177, 6, 3, 3, 360, [][2]int{{2, 1}, {3, 1}, {2, 2}, {3, 2}}, nil},
		"the globe":            {4326, 10, -18, 36, 3, 36, 36, [][2]int{{0, 1}, {17, 1}, {35, 0}}, []string{"-10 1", "-180 1", "170 0"}},
		"half degrees":         {4326, 0.5, 356, 9, 5, 4, 720, [][2]int{{4, 2}}, []string{"-180 2"}},
		"Web Mercator":         {3857, mercator / 128, 124, 8, 5, 4, 256, [][2]int{{3, 2}, {4, 3}}, []string{"-20037508 3", "19880965 2"}},
	} {
		var files []ElevationDatasetFileMeta
		for column := range of.columns {
			for row := range of.rows {
				if slices.Contains(of.holes, [2]int{column, row}) {
					continue
				}
				x := of.from + column
				if column >= of.wraps {
					x -= of.east
				}
				files = append(files, placedFile(t, fmt.Sprint(column, " ", row), of.code,
					of.size/100, 0, float64(x)*of.size, 0, -of.size/50, float64(row+1)*of.size))
			}
		}
		a := c.must(200, "GET", fmt.Sprintf("/api/v1/datasets/%d/gaps.geojson", ts.addChecked(name, files)), nil)
		var got []string
		for _, item := range a.json["features"].([]any) {
			tile := item.(map[string]any)["properties"].(map[string]any)
			got = append(got, fmt.Sprintf("%.0f %.0f", tile["min_x"], tile["min_y"].(float64)/of.size))
		}
		if slices.Sort(got); !slices.Equal(got, of.want) {
			t.Errorf("%s: got %q, want %q", name, got, of.want)
		}
	}
}

// TestGapsWithoutCode has tiles in two CRSs that have one name and no code. Each CRS has its own grid, whose gap is listed in
// degrees and drawn, and tiles of one are no faults of the other.
func TestGapsWithoutCode(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	var files []ElevationDatasetFileMeta
	for _, code := range []int{32632, 32633} {
		for i := range 9 {
			if i != 4 {
				m := placedFile(t, fmt.Sprint(code, " ", i), code, 10, 0, 500_000+float64(i%3)*1000, 0, -20, 5_300_000+float64(i/3)*1000)
				crs := crsOf(t, code)
				m.CRS, m.CRSName, m.CRSDefinition = nil, new("ours"), new(crs.text())
				files = append(files, m)
			}
		}
	}
	dataset := fmt.Sprintf("/api/v1/datasets/%d", ts.addChecked("ours", files))
	var got []string
	for _, item := range c.must(200, "GET", dataset+"/gaps.geojson", nil).json["features"].([]any) {
		f := item.(map[string]any)
		got = append(got, fmt.Sprintf("%.1f %v", f["bbox"].([]any)[0], f["properties"].(map[string]any)["name"]))
	}
	if slices.Sort(got); !slices.Equal(got, []string{"15.0 ours 501000 5300000", "9.0 ours 501000 5300000"}) {
		t.Errorf("gaps: %q", got)
	}
	for _, code := range []string{"duplicate", "overlap", "misaligned"} {
		if items := c.must(200, "GET", dataset+"/findings/"+code, nil).items(); len(items) > 0 {
			t.Errorf("%s: %v", code, items)
		}
	}
	picture := string(c.must(200, "GET", dataset+"/coverage.svg", nil).body)
	_, missing, _ := strings.Cut(picture, `<g class="missing"`)
	missing, _, _ = strings.Cut(missing, "</g>")
	if n := strings.Count(missing, "<path "); n != 2 || !strings.Contains(picture, "missing cells: 2<") {
		t.Errorf("%d missing cells are drawn", n)
	}
}
