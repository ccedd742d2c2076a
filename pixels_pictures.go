package main

import (
	"context"
	"image"
	"math"
)

// heightPicture is the heights of the pixels of a picture, in rows from the north. The rows and
// columns at the edges are a margin, which is not drawn.
type heightPicture struct {
	width, height int          // with the margin
	top           int          // of a part: its first row in the whole picture
	places        [][2]float64 // where each pixel lies in a raster: see heightAt; the column is NaN: nowhere
	heights       []float64    // in metres; NaN is void

	// position returns the longitude and latitude of a place in the whole picture, in pixels from
	// its north-west corner.
	position func(x, y float64) (lon, lat float64)
	isCurved bool // straight lines in a raster are curved in the picture
}

// newHeightPicture returns a picture of so many pixels, with a margin of one pixel around them. All
// heights are void.
func newHeightPicture(width, height int) *heightPicture {
	p := &heightPicture{
		width:  width + 2,
		height: height + 2,
	}
	p.places = make([][2]float64, p.width*p.height)
	p.heights = make([]float64, p.width*p.height)
	for i := range p.heights {
		p.heights[i] = math.NaN()
	}
	return p
}

// addHeights sets the heights that are void and whose places lie in the raster. It reads the
// overview whose samples are about as large as the pixels. If the budget of the raster is too small
// for all of them, it returns an error and reads nothing. metres is the length of the unit of the
// heights.
func (p *heightPicture) addHeights(ctx context.Context, r *raster, metres float64) error {
	// The distance of two pixels in the middle, in samples.
	middle := p.height/2*p.width + p.width/2 - 1
	one, next := p.places[middle], p.places[middle+1]
	distance := math.Hypot(next[0]-one[0], next[1]-one[1])

	image := r
	if distance > 1 {
		image = r.overviewFor(int(float64(r.width) / distance))
	}
	scaleX := float64(image.width) / float64(r.width)
	scaleY := float64(image.height) / float64(r.height)
	for i, at := range p.places {
		p.places[i] = [2]float64{at[0] * scaleX, at[1] * scaleY}
		if !math.IsNaN(p.heights[i]) {
			p.places[i][0] = math.NaN()
		}
	}

	w := image.windowAround(p.places)
	if w.width < 1 || w.height < 1 {
		return nil
	}
	if err := image.budget.allow(image.work(w)); err != nil {
		return err
	}
	return p.addRows(ctx, image, 0, p.height, metres)
}

// addRows is addHeights for the rows of pixels in this range. It reads the window of samples around
// them or, if that is too large, the windows of both halves.
func (p *heightPicture) addRows(ctx context.Context, r *raster, from, to int, metres float64) error {
	places := p.places[from*p.width : to*p.width]
	w := r.windowAround(places)
	if w.width < 1 || w.height < 1 {
		return nil
	}

	if w.width > maxWindowSamples/w.height && to-from > 1 {
		middle := (from + to) / 2
		if err := p.addRows(ctx, r, from, middle, metres); err != nil {
			return err
		}
		return p.addRows(ctx, r, middle, to, metres)
	}

	samples, err := r.read(ctx, w)
	if err != nil {
		return err
	}

	for i, at := range places {
		height := &p.heights[from*p.width+i]
		isInside := at[0] >= 0 && at[1] >= 0 && at[0] <= float64(r.width) && at[1] <= float64(r.height)
		if !isInside {
			continue
		}
		for way := interpolateBilinear; way >= interpolateNearest && math.IsNaN(*height); way /= 2 {
			*height = way.blend(samples, w, at[0], at[1]) * metres
		}
		if math.IsInf(*height, 0) {
			*height = math.NaN()
		}
	}
	return nil
}

// windowAround returns the samples that make the heights of places. It has none if the places lie
// outside of the raster.
func (r *raster) windowAround(places [][2]float64) window {
	west, north := math.Inf(1), math.Inf(1)
	east, south := math.Inf(-1), math.Inf(-1)
	for _, at := range places {
		if !math.IsNaN(at[0]) {
			west = min(west, at[0])
			east = max(east, at[0])
			north = min(north, at[1])
			south = max(south, at[1])
		}
	}

	x := max(0, math.Floor(west)-1)
	y := max(0, math.Floor(north)-1)
	return window{
		x:      int(min(x, float64(r.width))),
		y:      int(min(y, float64(r.height))),
		width:  int(max(0, min(east+2, float64(r.width))-x)),
		height: int(max(0, min(south+2, float64(r.height))-y)),
	}
}

// reliefColour returns the red, green and blue of a height in metres, from 0 to 255. Between two of
// the heights below, the colours mix.
func reliefColour(metres float64) [3]float64 {
	colours := [...]struct{ metres, red, green, blue float64 }{
		{-4000, 62, 98, 140},
		{-200, 122, 162, 192},
		{-1, 176, 204, 212},
		{0, 116, 154, 116},
		{200, 160, 186, 134},
		{600, 216, 206, 154},
		{1500, 190, 154, 112},
		{3000, 154, 130, 118},
		{5000, 250, 250, 250},
	}

	low := colours[0]
	for _, high := range colours {
		if metres < high.metres {
			part := max(0, metres-low.metres) / (high.metres - low.metres)
			return [3]float64{
				low.red + part*(high.red-low.red),
				low.green + part*(high.green-low.green),
				low.blue + part*(high.blue-low.blue),
			}
		}
		low = high
	}
	return [3]float64{low.red, low.green, low.blue}
}

// relief draws colours by height, with the light from the north-west at 45°. A pixel covers so
// many metres of ground. Voids are transparent. Slopes between pixels that lie far apart are drawn
// steeper than they are, or they would not show.
func (p *heightPicture) relief(ground float64) image.Image {
	steeper := max(1, math.Sqrt(ground/5))

	// slope returns the rise between the pixels on both sides of one with the height v. In place of
	// a void it takes the pixel itself, which is half as far away.
	slope := func(v float64, from, to int) float64 {
		distance := 2 * ground
		ends := [2]float64{p.heights[from], p.heights[to]}
		for i, end := range ends {
			if math.IsNaN(end) {
				ends[i] = v
				distance -= ground
			}
		}
		return steeper * (ends[1] - ends[0]) / max(distance, ground)
	}

	return p.draw(func(i int, pixel []uint8) {
		v := p.heights[i]
		if math.IsNaN(v) {
			return
		}

		// The light on a slope, as a share of that on level ground: the cosine of the angle between
		// the light and the normal of the slope.
		toEast := slope(v, i-1, i+1)
		toNorth := slope(v, i+p.width, i-p.width)
		light := (math.Sqrt2/2*(toEast-toNorth) + 1) / math.Sqrt(1+toEast*toEast+toNorth*toNorth)
		brightness := 0.35 + 0.65*min(max(light, 0), 1.2)
		for j, value := range reliefColour(v) {
			pixel[j] = uint8(min(255, value*brightness))
		}
		pixel[3] = 255
	})
}

// terrarium draws the heights as numbers, in steps of 1/256 m: red · 256 + green + blue / 256 −
// 32768. Voids have the height 0, because programs that read this form know no void.
func (p *heightPicture) terrarium() image.Image {
	return p.draw(func(i int, pixel []uint8) {
		v := p.heights[i]
		if math.IsNaN(v) {
			v = 0
		}

		steps := uint32(min(max(math.Round((v+32768)*256), 0), 1<<24-1))
		pixel[0] = uint8(steps >> 16)
		pixel[1] = uint8(steps >> 8)
		pixel[2] = uint8(steps)
		pixel[3] = 255
	})
}

// draw calls set for each pixel that is not of the margin: with its number in p, and its red,
// green, blue and opacity, which are 0.
func (p *heightPicture) draw(set func(i int, pixel []uint8)) image.Image {
	drawn := image.NewNRGBA(image.Rect(0, 0, p.width-2, p.height-2))
	for row := 1; row < p.height-1; row++ {
		for column := 1; column < p.width-1; column++ {
			set(row*p.width+column, drawn.Pix[drawn.PixOffset(column-1, row-1):])
		}
	}
	return drawn
}
