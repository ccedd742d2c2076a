package main

import (
	"context"
	"math"
)

// interpolation is how many samples in each direction make the height of a place.
type interpolation int

// The interpolations.
const (
	interpolateNearest  interpolation = 1
	interpolateBilinear interpolation = 2
	interpolateCubic    interpolation = 4
)

// heightAt returns the height of a place: x and y count samples from the outer north-west corner of
// the raster, so 0.5, 0.5 is the middle of its first sample. Between the middle of an outermost
// sample and the edge, the height stays the same. If one of the samples is void, the next simpler
// way is used. NaN means that the nearest sample is void. The place must lie in the raster.
func (r *raster) heightAt(ctx context.Context, x, y float64, way interpolation) (float64, error) {
	for ; way > interpolateNearest; way /= 2 {
		v, err := r.interpolate(ctx, x, y, way)
		if err != nil || !math.IsNaN(v) {
			return v, err
		}
	}
	return r.interpolate(ctx, x, y, interpolateNearest)
}

// interpolate is heightAt without a simpler way: NaN if a sample with a weight is void.
func (r *raster) interpolate(ctx context.Context, x, y float64, way interpolation) (float64, error) {
	column, inX := way.weights(x)
	row, inY := way.weights(y)

	// The part of these samples that lies in the raster.
	w := window{
		x: max(0, min(column, r.width-1)),
		y: max(0, min(row, r.height-1)),
	}
	w.width = max(1, min(column+len(inX), r.width)-w.x)
	w.height = max(1, min(row+len(inY), r.height)-w.y)
	heights, err := r.read(ctx, w)
	if err != nil {
		return 0, err
	}

	return way.blend(heights, w, x, y), nil
}

// blend returns the height of a place, from the samples of a window around it: NaN if a sample with
// a weight is void. Samples outside of the window are those at its edge.
func (way interpolation) blend(heights []float64, w window, x, y float64) float64 {
	column, inX := way.weights(x)
	row, inY := way.weights(y)

	sum := 0.0
	for i, weightY := range inY {
		for j, weightX := range inX {
			weight := weightX * weightY
			if weight == 0 {
				continue
			}
			atX := max(0, min(column+j-w.x, w.width-1))
			atY := max(0, min(row+i-w.y, w.height-1))
			sum += weight * heights[atY*w.width+atX]
		}
	}
	return sum
}

// weights returns the first of the samples that make a height along one direction, and the weight
// of each. The cubic ones are those of Keys (1981), with a = -1/2, as in GDAL.
func (way interpolation) weights(at float64) (first int, weights []float64) {
	if way == interpolateNearest {
		return int(math.Floor(at)), []float64{1}
	}

	last := math.Floor(at - 0.5) // the sample whose middle lies before the place
	t := at - 0.5 - last
	if way == interpolateBilinear {
		return int(last), []float64{1 - t, t}
	}
	return int(last) - 1, []float64{
		((-0.5*t+1)*t - 0.5) * t,
		(1.5*t-2.5)*t*t + 1,
		((-1.5*t+2)*t + 0.5) * t,
		(0.5*t - 0.5) * t * t,
	}
}
