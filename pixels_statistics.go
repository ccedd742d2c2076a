package main

import (
	"cmp"
	"context"
	"math"
	"strconv"
)

// edgeHeights is how many heights of each edge are kept, to compare them with those of a neighbour.
const edgeHeights = 16

// gridHeights is how many heights of a row and of a column of Grid are kept, to draw the file among
// many others.
const gridHeights = 8

// maxStatisticsWork limits the heights that are added up, because a file of a few bytes may claim
// any number of samples that it leaves out, and its blocks may share one place. Its unit is that of
// blockWork. So up to 17 thousand million samples of 32 bits are read.
const maxStatisticsWork = 1 << 37

// heightStatistics is what all heights of a raster have in common. Without a valid height, the
// numbers that are computed from heights are not finite.
type heightStatistics struct {
	heightFigures

	// Edges are heights at equal distances along the north, east, south and west edge: in the
	// middle of each sixteenth of it, from west to east or from north to south.
	Edges [4][edgeHeights]height `json:"edges"`

	// Grid are heights at equal distances, from edge to edge, in rows from the north. It is left
	// out if an older version has read the file.
	Grid []height `json:"grid,omitzero"`
}

// heightFigures are the statistics without single heights.
type heightFigures struct {
	Samples int64 `json:"samples"` // that were decoded, voids too
	Voids   int64 `json:"voids"`

	Min       height `json:"min"`
	Max       height `json:"max"`
	Mean      height `json:"mean"`
	Deviation height `json:"deviation"` // the root of the variance of all heights

	// Mode is the most frequent height, and ModeSamples how often it was seen. They are exact for
	// whole heights from -32,768 to 32,767. Of other heights, one that has less than a
	// thousandth of the samples may be missed, and ModeSamples may be too low.
	Mode        height `json:"mode"`
	ModeSamples int64  `json:"mode_samples"`

	// Spikes is how many heights stand out from all those around them, and SpikeAt the column and
	// the row of the northernmost, counted from the north-west.
	Spikes  int64   `json:"spikes"`
	SpikeAt *[2]int `json:"spike_at"`

	BadBlocks int64   `json:"bad_blocks"` // blocks that cannot be decoded
	Damage    *string `json:"damage"`     // where and how the first of them is damaged
}

// spikeStep returns by how much a height must differ from all its neighbours to be a spike: 200
// units, or twice the ground size of a sample if that is more. With samples of 1 m, a mast of 150 m
// is no spike; with samples of 1 km, a peak of 1,500 m is none.
func spikeStep(m *extent) float64 {
	const least = 200

	if m.ResolutionM == nil {
		return least
	}
	return max(least, 2**m.ResolutionM)
}

// height is a height, or NaN where there is none. A file may make it infinite, by a scale of 1e308
// for example.
type height float64

// MarshalJSON implements json.Marshaler. JSON has only finite numbers; any other is null.
func (h height) MarshalJSON() ([]byte, error) {
	if h-h != 0 {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(h), 'g', -1, 64), nil
}

// String implements fmt.Stringer. It is "" where there is no height.
func (h height) String() string {
	if h-h != 0 {
		return ""
	}
	return strconv.FormatFloat(float64(h), 'f', -1, 64)
}

// UnmarshalJSON implements json.Unmarshaler, for what MarshalJSON writes.
func (h *height) UnmarshalJSON(text []byte) (err error) {
	v := math.NaN()
	if string(text) != "null" {
		v, err = strconv.ParseFloat(string(text), 64)
	}
	*h = height(v)
	return err
}

// readHeights returns what all heights of the file that h has just read have in common. It returns
// the errors of openRaster and statistics.
func readHeights(ctx context.Context, h *headerReader, m *extent) (heightStatistics, error) {
	r, err := h.openRaster(ctx, m)
	if err != nil {
		return heightStatistics{}, err
	}
	return r.statistics(ctx, spikeStep(m))
}

// statistics reads all heights of a raster. A height is a spike if it is more than step above all
// its neighbours, or below them; those beyond the edge of a tile, or in a block that was never
// written, are not looked at. The error is that of ctx, or of reading the file; it is no error that
// a block cannot be decoded.
func (r *raster) statistics(ctx context.Context, step float64) (heightStatistics, error) {
	all := window{0, 0, r.width, r.height}
	work := r.work(all)
	if m := r.mask; m != nil {
		blocks := work / r.blockWork()
		work += blocks * float64(r.blockHeight+m.blockHeight) * float64(m.samples.rowBytes)

		// Each row of heights would decode all blocks of the mask beside it again.
		if m.blockWidth != r.blockWidth {
			return heightStatistics{}, unreadf("the blocks of its mask are not as wide as the others")
		}
	}
	if work > maxStatisticsWork {
		return heightStatistics{}, unreadf("%d by %d samples are too many", r.width, r.height)
	}

	c := &heightCounter{
		r:     r,
		step:  step,
		slots: make([]modeSlot, 1<<16),
	}
	c.Min = height(math.Inf(1))
	c.Max = height(math.Inf(-1))
	c.Mode = height(math.NaN())
	c.Grid = make([]height, gridHeights*gridHeights)

	for top := 0; top < r.height; top += r.blockHeight {
		for left := 0; left < r.width; left += r.blockWidth {
			block := window{left, top, min(r.blockWidth, r.width-left), min(r.blockHeight, r.height-top)}
			err := c.addBlock(ctx, block)
			if err == nil {
				continue
			}
			if statusOf(err) == fileStatusUnreadable {
				return c.heightStatistics, err
			}

			c.BadBlocks++
			c.Damage = cmp.Or(c.Damage, new(err.Error()))
			c.addPlaces([]float64{math.NaN()}, block)
		}
	}
	c.endRows()
	return c.result(), nil
}

// heightCounter adds up the rows of a raster.
type heightCounter struct {
	heightStatistics
	r    *raster
	step float64

	squares float64 // the sum of the squared distances from the mean
	slots   []modeSlot

	firstSpike int // the number of samples before SpikeAt, row by row from the north-west

	// The last two rows, and where the lower one begins.
	above, row []float64
	x, y       int
}

// modeSlot is the candidate for the most frequent height among those with the same slot: Boyer and
// Moore's majority vote (MJRTY, 1981).
type modeSlot struct {
	value float64
	votes int64 // how often it was seen, less how often others were
	seen  int64 // how often it was seen since it became the candidate
}

// addBlock adds the heights of a block.
func (c *heightCounter) addBlock(ctx context.Context, block window) error {
	err := c.r.load(ctx, block.x/c.r.blockWidth, block.y/c.r.blockHeight, block.height)
	if err != nil {
		return err
	}

	// All samples of a block that was never written are the same.
	isUniform := !c.r.isWritten && (c.r.mask == nil || c.r.nodata != nil)
	if isUniform {
		v := []float64{0}
		c.r.copyRow(0, 0, v)
		c.addHeights(v, int64(block.width)*int64(block.height))
		c.addPlaces(v, block)
		return nil
	}

	for y := block.y; y < block.y+block.height; y++ {
		row := make([]float64, block.width)
		part := window{block.x, y, block.width, 1}
		err := c.r.readInto(ctx, part, row)
		if err != nil {
			return err
		}

		c.addHeights(row, 1)
		c.addPlaces(row, part)

		// Rows of strips follow each other, those of tiles do not.
		follows := block.x == c.x && y == c.y+1 && block.width == len(c.row)
		if !follows {
			c.endRows()
		}
		c.findSpikes(row)
		c.above = c.row
		c.row = row
		c.x = block.x
		c.y = y
	}
	return nil
}

// endRows looks for spikes in the last row, below which there is none.
func (c *heightCounter) endRows() {
	c.findSpikes(nil)
	c.above = nil
	c.row = nil
}

// addHeights adds heights, each so many times, to all figures that do not depend on their places.
func (c *heightCounter) addHeights(row []float64, times int64) {
	var valid, sum float64
	for _, v := range row {
		if v != v {
			continue
		}
		valid++
		sum += v
		c.Min = min(c.Min, height(v))
		c.Max = max(c.Max, height(v))
		c.vote(v, times)
	}

	before := float64(c.Samples - c.Voids)
	c.Samples += int64(len(row)) * times
	c.Voids += (int64(len(row)) - int64(valid)) * times
	if valid == 0 {
		return
	}

	// Chan, Golub and LeVeque (1979): the mean and the squares of two sets together.
	mean := sum / valid
	count := valid * float64(times)
	for _, v := range row {
		if v == v {
			c.squares += (v - mean) * (v - mean) * float64(times)
		}
	}
	delta := mean - float64(c.Mean)
	c.Mean += height(delta * count / (before + count))
	c.squares += delta * delta * before * count / (before + count)
}

// vote counts a height, so many times, for the mode.
func (c *heightCounter) vote(v float64, times int64) {
	slot := uint16(int64(v))
	if float64(int16(slot)) != v { // it is not whole, or large
		slot = uint16(math.Float64bits(v) * 0x9E3779B97F4A7C15 >> 48) // Knuth's multiplicative hash
	}

	// Votes for another height cancel as many of the candidate's. With more, it is the candidate.
	s := &c.slots[slot]
	switch {
	case s.value == v:
		s.votes += times
		s.seen += times
	case s.votes >= times:
		s.votes -= times
	default:
		times -= s.votes
		*s = modeSlot{v, times, times}
	}
}

// flip turns the column and the row of a sample, counted from the north-west, into those in the
// file, or back.
func (r *raster) flip(column, row int) (int, int) {
	if r.isFromEast {
		column = r.width - 1 - column
	}
	if r.isFromSouth {
		row = r.height - 1 - row
	}
	return column, row
}

// addPlaces keeps those heights of a part of the raster that lie at the places of Edges and Grid.
// The part has a row of heights, or one that stands for all. Those that are kept are rounded to
// thousandths, because they are most of what is stored.
func (c *heightCounter) addPlaces(heights []float64, part window) {
	r := c.r
	keep := func(x, y int, into *height) {
		x, y = r.flip(x, y)
		column := x - part.x
		row := y - part.y
		isInside := column >= 0 && column < part.width && row >= 0 && row < part.height
		if isInside {
			*into = height(math.Round(heights[min(column, len(heights)-1)]*1000) / 1000)
		}
	}

	for i := range edgeHeights {
		middle := 2*i + 1 // of a sixteenth, in halves
		x := middle * r.width / (2 * edgeHeights)
		y := middle * r.height / (2 * edgeHeights)
		for side, place := range [...][2]int{{x, 0}, {r.width - 1, y}, {x, r.height - 1}, {0, y}} {
			keep(place[0], place[1], &c.Edges[side][i])
		}
	}
	for i := range c.Grid {
		x := i % gridHeights * (r.width - 1) / (gridHeights - 1)
		y := i / gridHeights * (r.height - 1) / (gridHeights - 1)
		keep(x, y, &c.Grid[i])
	}
}

// findSpikes counts the spikes in c.row.
func (c *heightCounter) findSpikes(below []float64) {
	for i, v := range c.row {
		isLikeLast := i > 0 && math.Abs(v-c.row[i-1]) <= c.step // as are most
		if isLikeLast || !c.isSpike(below, i) {
			continue
		}
		c.Spikes++

		// Blocks do not come in the order of rows.
		column, row := c.r.flip(c.x+i, c.y)
		place := row*c.r.width + column
		if c.SpikeAt == nil || place < c.firstSpike {
			c.firstSpike = place
			c.SpikeAt = &[2]int{column, row}
		}
	}
}

// isSpike reports whether a height of c.row stands out from its neighbours, three at least.
func (c *heightCounter) isSpike(below []float64, column int) bool {
	v := c.row[column]
	var neighbours, higher, lower int
	for _, row := range [...][]float64{c.above, c.row, below} {
		if row == nil {
			continue
		}
		for _, other := range row[max(0, column-1):min(len(row), column+2)] {
			switch {
			case v-other > c.step:
				higher++
			case other-v > c.step:
				lower++
			}
			if other == other {
				neighbours++
			}
		}
	}

	neighbours-- // the height itself
	return neighbours >= 3 && max(higher, lower) == neighbours
}

// result returns the statistics of all that was added.
func (c *heightCounter) result() heightStatistics {
	valid := float64(c.Samples - c.Voids)
	c.Deviation = height(math.Sqrt(c.squares / valid)) // NaN without heights
	if valid == 0 {
		c.Mean = c.Deviation
	}

	for _, s := range c.slots {
		if s.seen > c.ModeSamples {
			c.Mode = height(s.value)
			c.ModeSamples = s.seen
		}
	}
	return c.heightStatistics
}
