package main

import (
	"cmp"
	"context"
	"io"
	"math"
	"strconv"
)

// edgeHeights is how many heights of each edge are kept, to compare them with those of a neighbour.
const edgeHeights = 16

// maxStatisticsSamples is how many samples of a file are added up at most: a file of a few bytes
// may claim any number of samples that it leaves out.
const maxStatisticsSamples = 1 << 36

// heightStatistics is what all heights of a raster have in common. Without valid heights, those of
// its numbers that need some are NaN.
type heightStatistics struct {
	Samples int64 `json:"samples"` // that were decoded, voids too
	Voids   int64 `json:"voids"`

	Min       height `json:"min"`
	Max       height `json:"max"`
	Mean      height `json:"mean"`
	Deviation height `json:"deviation"` // the root of the variance of all heights

	// Mode is the most frequent height, and ModeSamples how often it was seen. They are exact for
	// whole heights from -32,768 to 32,767. Of others, one with less than a thousandth of the
	// samples may be missed, and so may some samples of any.
	Mode        height `json:"mode"`
	ModeSamples int64  `json:"mode_samples"`

	// Spikes is how many heights stand out from all those around them, and SpikeAt the column and
	// the row of the first.
	Spikes  int64   `json:"spikes"`
	SpikeAt *[2]int `json:"spike_at"`

	// Edges are heights at equal distances along the north, east, south and west edge: in the
	// middle of each sixteenth of it, from west to east or from north to south.
	Edges [4][edgeHeights]height `json:"edges"`

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
	isFinite := h-h == 0
	if !isFinite {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(h), 'g', -1, 64), nil
}

// readHeights returns what all heights of the file that h has just read have in common. It returns
// the errors of openRaster and statistics.
func readHeights(ctx context.Context, h *headerReader, m *extent) (heightStatistics, error) {
	h.r = contextReader{ctx, h.r}
	r, err := h.openRaster(m)
	if err != nil {
		return heightStatistics{}, err
	}
	return r.statistics(ctx, spikeStep(m))
}

// contextReader reads a file until ctx ends. To decode one block of an ASCII grid may mean to read
// the whole file.
type contextReader struct {
	ctx context.Context
	io.ReaderAt
}

// ReadAt implements io.ReaderAt.
func (r contextReader) ReadAt(p []byte, offset int64) (int, error) {
	err := r.ctx.Err()
	if err != nil {
		return 0, err
	}
	return r.ReaderAt.ReadAt(p, offset)
}

// statistics reads all heights of a raster. A height is a spike if it is more than step above all
// its neighbours, or below them; those beyond the edge of a tile are not looked at. The error is
// that of ctx, or of reading the file; it is no error that a block cannot be decoded.
func (r *raster) statistics(ctx context.Context, step float64) (heightStatistics, error) {
	if r.width > maxStatisticsSamples/r.height {
		return heightStatistics{}, unreadf("%d by %d samples are too many", r.width, r.height)
	}

	c := &heightCounter{
		r:     r,
		step:  step,
		slots: make([]modeSlot, 1<<16),
	}
	c.Min = height(math.Inf(1))
	c.Max = height(math.Inf(-1))
	for side := range c.Edges {
		for i := range c.Edges[side] {
			c.Edges[side][i] = height(math.NaN())
		}
	}

	for top := 0; top < r.height; top += r.blockHeight {
		for left := 0; left < r.width; left += r.blockWidth {
			block := window{
				x:      left,
				y:      top,
				width:  min(r.blockWidth, r.width-left),
				height: min(r.blockHeight, r.height-top),
			}
			err := c.addBlock(ctx, block)
			if err != nil && statusOf(err) == fileStatusUnreadable {
				return c.heightStatistics, err
			}
			if err != nil {
				c.BadBlocks++
				c.Damage = cmp.Or(c.Damage, new(err.Error()))
			}
			if ctx.Err() != nil {
				return c.heightStatistics, ctx.Err()
			}
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
	err := c.r.load(block.x/c.r.blockWidth, block.y/c.r.blockHeight)
	if err != nil {
		return err
	}
	isVoid := !c.r.isWritten && c.r.nodata != nil
	if isVoid {
		count := int64(block.width) * int64(block.height)
		c.Samples += count
		c.Voids += count
		return nil
	}

	for y := block.y; y < block.y+block.height; y++ {
		row := make([]float64, block.width)
		err := c.r.readInto(ctx, window{block.x, y, block.width, 1}, row)
		if err != nil {
			return err
		}

		c.addHeights(row)
		c.addEdges(row, block.x, y)

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

// addHeights adds heights to all figures that do not depend on their places.
func (c *heightCounter) addHeights(row []float64) {
	var count, sum float64
	for _, v := range row {
		if v != v {
			continue
		}
		count++
		sum += v
		c.Min = min(c.Min, height(v))
		c.Max = max(c.Max, height(v))
		c.vote(v)
	}

	before := float64(c.Samples - c.Voids)
	c.Samples += int64(len(row))
	c.Voids += int64(len(row)) - int64(count)
	if count == 0 {
		return
	}

	// Chan, Golub and LeVeque (1979): the mean and the squares of two sets together.
	mean := sum / count
	for _, v := range row {
		if v == v {
			c.squares += (v - mean) * (v - mean)
		}
	}
	delta := mean - float64(c.Mean)
	c.Mean += height(delta * count / (before + count))
	c.squares += delta * delta * before * count / (before + count)
}

// vote counts a height for the mode.
func (c *heightCounter) vote(v float64) {
	slot := uint16(int64(v))
	isWhole := float64(int16(slot)) == v
	if !isWhole {
		slot = uint16(math.Float64bits(v) * 0x9E3779B97F4A7C15 >> 48) // Knuth's multiplicative hash
	}

	s := &c.slots[slot]
	switch {
	case s.votes == 0:
		*s = modeSlot{v, 1, 1}
	case s.value == v:
		s.votes++
		s.seen++
	default:
		s.votes--
	}
}

// addEdges keeps those heights of a part of a row that lie at the places of Edges.
func (c *heightCounter) addEdges(row []float64, x, y int) {
	const north, east, south, west = 0, 1, 2, 3

	for i := range edgeHeights {
		middle := 2*i + 1 // of the part, in halves
		column := middle*c.r.width/(2*edgeHeights) - x
		isInRow := column >= 0 && column < len(row)
		if isInRow && y == 0 {
			c.Edges[north][i] = height(row[column])
		}
		if isInRow && y == c.r.height-1 {
			c.Edges[south][i] = height(row[column])
		}

		isInPlace := y == middle*c.r.height/(2*edgeHeights)
		if isInPlace && x == 0 {
			c.Edges[west][i] = height(row[0])
		}
		if isInPlace && x+len(row) == c.r.width {
			c.Edges[east][i] = height(row[len(row)-1])
		}
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
		c.SpikeAt = cmp.Or(c.SpikeAt, &[2]int{c.x + i, c.y})
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
	valid := c.Samples - c.Voids
	if valid == 0 {
		none := height(math.NaN())
		c.Min = none
		c.Max = none
		c.Mean = none
		c.Deviation = none
		c.Mode = none
		return c.heightStatistics
	}

	c.Deviation = height(math.Sqrt(c.squares / float64(valid)))
	for _, s := range c.slots {
		if s.seen > c.ModeSamples {
			c.Mode = height(s.value)
			c.ModeSamples = s.seen
		}
	}
	return c.heightStatistics
}
