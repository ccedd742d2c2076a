package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of what is decoded, whatever the file says.
const (
	maxBlockBytes    = 64 << 20 // of a decoded block, all bands that lie in it together
	maxBlockColumns  = 4 << 20
	maxWindowSamples = 8 << 20
	rawBlockBytes    = 1 << 20 // of the blocks that samples without blocks of their own are read in
)

// raster is the first band of an elevation file: heights in the rows of the file, read block by
// block. It is not safe for concurrent use.
type raster struct {
	width       int // samples
	height      int
	isFromEast  bool // see extent.directions
	isFromSouth bool
	blockWidth  int // samples; the last blocks of rows and columns may be cut by the raster's edge
	blockHeight int

	overviews []*raster // the same heights with fewer samples: of a TIFF
	mask      *raster   // 0 where a sample is void; nil without a mask

	samples sampleLayout
	nodata  *voidRange // nil without a nodata value
	scale   float64    // a height is sample · scale + offset
	offset  float64

	decode decodeFunc
	extend extendFunc // nil: decode fills whole blocks
	budget *decodeBudget

	// The block that was decoded last.
	column, row int
	block       []byte // nil before the first
	isWritten   bool
	blockErr    error

	// The last error of extend for this block, or nil, and how many rows extend was to fill then.
	extendErr  error
	failedRows int
	isSpent    bool // extend cannot go on: fewer rows need decode again
}

// decodeFunc fills a block with samples, the lowest byte first where they have a byte order.
// isWritten is false for a block that the file leaves out. If the raster has an extendFunc,
// decodeFunc may fill no rows yet: extendFunc then fills those that are needed.
type decodeFunc func(column, row int, block []byte) (isWritten bool, err error)

// extendFunc decodes more rows of the block that decodeFunc began last, until the first rows of it
// are filled. Rows that are filled already stay as they are.
type extendFunc func(block []byte, rows int) error

// sampleLayout says how the samples of the first band lie in a decoded block. A row
// begins at a whole byte, with a whole sample.
type sampleLayout struct {
	bits     int // of a sample
	format   int // one of the values of the tag SampleFormat
	step     int // bits from a sample to the next
	rowBytes int // from a row to the next
}

// window is a rectangle of samples.
type window struct {
	x, y          int
	width, height int
}

// voidRange is the samples that stand for a missing height.
type voidRange struct{ from, to float64 }

// decodeBudget is how much work decoding may still take, in the unit of blockWork. It bounds the
// time of a request, whatever the files say. A nil budget has no limit.
type decodeBudget struct{ left float64 }

// spend takes work from the budget. If not enough is left, it takes nothing and returns an
// *extentError.
func (b *decodeBudget) spend(work float64) error {
	err := b.allow(work)
	if err == nil && b != nil {
		b.left -= work
	}
	return err
}

// allow returns the error of spend, and takes nothing.
func (b *decodeBudget) allow(work float64) error {
	if b != nil && work > b.left {
		return unreadf("too much of it would have to be decoded for one request")
	}
	return nil
}

// openRaster opens the samples of the file that h has read the extent m of. After the end of ctx,
// they cannot be read any more. The error is an *extentError: unsupported for samples that Cairn
// does not read, such as those with a compression that it does not know; corrupt for broken ones;
// or else an I/O error.
func (h *headerReader) openRaster(ctx context.Context, m *extent) (*raster, error) {
	switch m.Status {
	case fileStatusOK, fileStatusNoBBox, fileStatusNoGeoref:
	default:
		return nil, &extentError{m.Status, *m.Reason}
	}

	h.r = contextReader{ctx, h.r}
	head, err := h.at(0, min(h.size, firstReadBytes), "the file")
	if err != nil {
		return nil, err
	}

	var r *raster
	switch *m.Format {
	case "geotiff":
		r, err = h.openTIFF()
	case "hgt":
		r, err = h.openHGT(m)
	case "dted":
		r, err = h.openDTED(head, m)
	case "asc":
		r, err = h.openASCII(head, m)
	default:
		r, err = h.openEHdr(m)
	}
	if err != nil {
		return nil, err
	}

	r.isFromEast, r.isFromSouth = m.directions()

	// Samples mean the same in the overviews.
	for _, image := range append(r.overviews, r) {
		image.budget = h.budget
		if image.mask != nil {
			image.mask.budget = h.budget
		}
		image.nodata = image.samples.voids(m.Nodata)
		if m.Scale != nil {
			image.scale = *m.Scale
		}
		if m.Offset != nil {
			image.offset = *m.Offset
		}
	}
	return r, nil
}

// contextReader reads a file until ctx ends. A block may need many reads: in an ASCII grid, all of
// the file.
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

// unreadf returns an *extentError for samples that Cairn does not read.
func unreadf(format string, a ...any) error {
	return extentErrorf(fileStatusUnsupported, format, a...)
}

// bytes returns the size of samples that have a byte order: 8, 16, 32 or 64 bits. For others, which
// are packed with their highest bit first, it returns 0.
func (l *sampleLayout) bytes() int {
	switch l.bits {
	case 8, 16, 32, 64:
		return l.bits / 8
	}
	return 0
}

// newLayout returns the layout of rows with so many columns and bands, which are interleaved. All
// arguments may be any number, because files state them.
func newLayout(columns, bands, bits, format float64) (l sampleLayout, err error) {
	rowBytes := math.Ceil(columns * bands * bits / 8)

	isWhole := bits == math.Trunc(bits) && bands == math.Trunc(bands)
	isInRange := bits >= 1 && bits <= 64 && bands >= 1 && bands <= math.MaxUint16
	isFloat := format == sampleFormatFloat
	isRareFloat := isFloat && bits != 16 && bits != 32 && bits != 64
	isNarrow := columns <= maxBlockColumns && rowBytes <= maxBlockBytes
	switch {
	case format == sampleFormatComplexInt || format == sampleFormatComplexFloat:
		return l, unreadf("complex numbers")
	case !isWhole || !isInRange || isRareFloat:
		return l, unreadf("samples of %v bits in %v bands", bits, bands)
	case !isNarrow:
		return l, unreadf("blocks of %.0f columns; at most %d are read", columns, maxBlockColumns)
	}

	return sampleLayout{
		bits:     int(bits),
		format:   int(format),
		step:     int(bits * bands),
		rowBytes: int(rowBytes),
	}, nil
}

// newRaster returns a raster with blocks of so many columns and rows, whose samples are heights.
func newRaster(m *extent, columns, rows int, l sampleLayout, decode decodeFunc) *raster {
	return &raster{
		width:       int(*m.Width),
		height:      int(*m.Height),
		blockWidth:  columns,
		blockHeight: rows,
		samples:     l,
		scale:       1,
		decode:      decode,
	}
}

// overviewFor returns the smallest overview that has at least so many columns, else the raster.
func (r *raster) overviewFor(columns int) *raster {
	best := r
	for _, overview := range r.overviews {
		if overview.width >= columns && overview.width < best.width {
			best = overview
		}
	}
	return best
}

// sampleAt returns the height at a column and a row, NaN where it is void.
func (r *raster) sampleAt(ctx context.Context, column, row int) (float64, error) {
	v, err := r.read(ctx, window{column, row, 1, 1})
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// read returns the heights of a window, row by row, NaN where one is void. The window must lie in
// the raster and have no more than maxWindowSamples.
func (r *raster) read(ctx context.Context, w window) ([]float64, error) {
	isEmpty := w.width < 1 || w.height < 1
	isOutside := w.x < 0 || w.y < 0 || w.x > r.width-w.width || w.y > r.height-w.height
	if isEmpty || isOutside || w.width > maxWindowSamples/w.height {
		return nil, fmt.Errorf("no window of %d by %d samples at %d, %d", w.width, w.height, w.x, w.y)
	}

	heights := make([]float64, w.width*w.height)
	return heights, r.readInto(ctx, w, heights)
}

// readInto is read into a slice of the window's size, without checks.
func (r *raster) readInto(ctx context.Context, w window, heights []float64) error {
	for row := w.y / r.blockHeight; row*r.blockHeight < w.y+w.height; row++ {
		for column := w.x / r.blockWidth; column*r.blockWidth < w.x+w.width; column++ {
			// The part of the window that lies in the block.
			left := column * r.blockWidth
			top := row * r.blockHeight
			from := max(w.x, left)
			to := min(w.x+w.width, left+r.blockWidth)
			bottom := min(w.y+w.height, top+r.blockHeight)

			err := r.load(ctx, column, row, bottom-top)
			if err != nil {
				return err
			}
			for y := max(w.y, top); y < bottom; y++ {
				start := (y-w.y)*w.width - w.x
				r.copyRow(from-left, y-top, heights[start+from:start+to])
			}
		}
	}

	if r.mask == nil {
		return nil
	}
	valid := make([]float64, len(heights))
	err := r.mask.readInto(ctx, w, valid)
	for i, v := range valid {
		if v == 0 {
			heights[i] = math.NaN()
		}
	}
	return err
}

// blockWork returns the work to decode a block, in bytes: its size, 4 for each column of each row,
// and 4,096 for the block itself.
func (r *raster) blockWork() float64 {
	return float64(r.blockHeight*(r.samples.rowBytes+4*r.blockWidth) + 4096)
}

// work returns how much work it is to decode the blocks of a window.
func (r *raster) work(w window) float64 {
	across := (w.x+w.width-1)/r.blockWidth - w.x/r.blockWidth + 1
	down := (w.y+w.height-1)/r.blockHeight - w.y/r.blockHeight + 1
	return float64(across) * float64(down) * r.blockWork()
}

// load decodes the first rows of a block, unless it is the block that was loaded last and has them
// already. Damage in later rows may go unnoticed. Statistics load whole blocks, so they find it.
func (r *raster) load(ctx context.Context, column, row, rows int) error {
	err := ctx.Err()
	if err != nil {
		return err
	}

	isLoaded := r.block != nil && column == r.column && row == r.row
	if !isLoaded {
		r.extendErr = nil
	}
	if r.extendErr != nil && rows >= r.failedRows {
		return r.extendErr
	}

	if !isLoaded || r.isSpent {
		if err := r.budget.spend(r.blockWork()); err != nil {
			return err
		}
		if r.block == nil {
			r.block = make([]byte, r.blockHeight*r.samples.rowBytes)
		}
		r.column = column
		r.row = row
		r.isSpent = false
		r.isWritten, r.blockErr = r.decode(column, row, r.block)
	}

	if r.blockErr != nil || r.extend == nil {
		return r.blockErr
	}
	err = r.extend(r.block, rows)
	if err != nil {
		r.extendErr = err
		r.failedRows = rows
		r.isSpent = true
	}
	return err
}

// copyRow sets heights to those of a row of the loaded block, from a column on.
func (r *raster) copyRow(column, row int, heights []float64) {
	l := r.samples
	if r.isWritten {
		l.values(r.block[row*l.rowBytes:][:l.rowBytes], column, heights)
	} else {
		clear(heights)
	}

	isLeftOut := r.nodata != nil && !r.isWritten // as in GDAL, it is 0 without a nodata value
	for i, v := range heights {
		isVoid := r.nodata != nil && v >= r.nodata.from && v <= r.nodata.to
		v = v*r.scale + r.offset
		isInfinite := v-v != 0 // or NaN
		if isLeftOut || isVoid || isInfinite {
			v = math.NaN()
		}
		heights[i] = v
	}
}

// values sets v to the samples in a row of a block, from a column on.
func (l *sampleLayout) values(row []byte, column int, v []float64) {
	bit := column * l.step
	b := row[bit/8:]
	step := l.step / 8
	size := l.bytes()

	switch {
	case l.format == sampleFormatFloat && l.bits == 32:
		for i := range v {
			v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i*step:])))
		}
	case l.format == sampleFormatInt && l.bits == 16:
		for i := range v {
			v[i] = float64(int16(binary.LittleEndian.Uint16(b[i*step:])))
		}
	case size > 0:
		var sample [8]byte
		for i := range v {
			copy(sample[:], b[i*step:][:size])
			v[i] = l.value(binary.LittleEndian.Uint64(sample[:]))
		}
	default:
		for i := range v {
			var sample uint64
			for at := bit; at < bit+l.bits; at++ {
				sample = sample<<1 | uint64(row[at/8]>>(7-at%8)&1)
			}
			v[i] = l.value(sample)
			bit += l.step
		}
	}
}

// value returns the number in the bits of a sample.
func (l *sampleLayout) value(sample uint64) float64 {
	switch {
	case l.format == sampleFormatInt:
		unused := 64 - l.bits
		return float64(int64(sample<<unused) >> unused)
	case l.format == sampleFormatFloat && l.bits == 64:
		return math.Float64frombits(sample)
	case l.format == sampleFormatFloat:
		return halfFloat(uint32(sample))
	}
	return float64(sample)
}

// halfFloat returns a number of 16 bits: IEEE 754-2008, binary16. It has the bits of a number of 32
// bits whose exponent counts from another zero.
func halfFloat(bits uint32) float64 {
	const (
		sign     = 1 << 15
		exponent = 31 << 10
	)

	v := float64(math.Float32frombits(bits&^sign<<13)) * 0x1p112
	if bits&exponent == exponent { // infinite or not a number
		v = math.NaN()
	}
	if bits&sign != 0 {
		v = -v
	}
	return v
}

// voids returns the samples that are equal to a nodata value in GDAL's sense: floating-point
// numbers may differ by four units of their last place (ARE_REAL_EQUAL). The text may go on behind
// its number, as in C's atof. NaN and infinite samples are always void.
func (l *sampleLayout) voids(nodata *string) *voidRange {
	if nodata == nil || strings.Contains(*nodata, "#") { // Microsoft's C library writes inf as 1.#INF
		return nil
	}

	length := len(*nodata) - len(strings.TrimLeft(*nodata, "0123456789+-.eE"))
	v, err := strconv.ParseFloat((*nodata)[:length], 64)
	if err != nil {
		return nil
	}

	const (
		epsilon32 = 1.0 / (1 << 23)
		epsilon64 = 1.0 / (1 << 52)
	)
	tolerance := 0.0
	switch {
	case l.format == sampleFormatFloat && l.bits == 64:
		tolerance = 4 * epsilon64 * math.Abs(v)
	case l.format == sampleFormatFloat:
		v = float64(float32(v))
		tolerance = 4 * epsilon32 * math.Abs(v)
	}
	return &voidRange{v - tolerance, v + tolerance}
}

// swapBytes reverses the bytes of each sample of so many bytes.
func swapBytes(b []byte, size int) {
	for size > 1 && len(b) > 0 {
		slices.Reverse(b[:size])
		b = b[size:]
	}
}

// readFull reads len(b) bytes at an offset. The error is an *extentError if the file ends before.
func readFull(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	switch {
	case n == len(b):
		return nil
	case err == nil || err == io.EOF || err == io.ErrUnexpectedEOF:
		return corruptf("%d bytes at %d lie beyond the end of the file", len(b), offset)
	}
	return err
}
