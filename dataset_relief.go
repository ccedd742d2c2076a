package main

import (
	"image"
	"math"
	"net/http"
	"net/url"
)

// maxReliefFiles limits the files in the relief of a dataset.
const maxReliefFiles = 5000

// getDatasetRelief answers GET /api/v1/datasets/{id}/relief.png with the heights in the map that
// coverage.svg draws for the same bbox, pixel by pixel.
func (c *catalogue) getDatasetRelief(w http.ResponseWriter, r *http.Request, _ dataset) error {
	// Without the parameter, the filter refuses the empty text.
	asked, err := readFileFilter(url.Values{"bbox": {r.URL.Query().Get("bbox")}})
	if err != nil {
		return err
	}
	frame := frameFor(*asked.box)
	box := frame.shown()

	// Its pixels count from the corner of the picture.
	frame.x -= frame.left
	frame.y -= frame.top
	p := newHeightPicture(int(frame.width), int(frame.height))
	p.position = frame.position
	p.isCurved = frame.pole != 0 || frame.perLat < 16

	// rows returns the rows of pixels around a file.
	rows := func(file datasetFile) *heightPicture {
		around := frame.around(file.extent)
		part := *p
		part.top = max(0, min(int(around.south), p.height-1))
		part.height = max(1, min(int(around.north)+3, p.height)-part.top)
		part.places = p.places[part.top*p.width:][:part.height*p.width]
		part.heights = p.heights[part.top*p.width:][:part.height*p.width]
		return &part
	}
	paint := func() image.Image { return p.relief(metresPerDegree / frame.perLat) }
	return c.writeHeights(w, r, &box, maxReliefFiles, rows, paint)
}

// addGrid is addHeights for the grid of a file, if an analysis has kept it.
func (p *heightPicture) addGrid(file datasetFile) {
	if len(file.Grid) == 0 {
		return
	}

	metres := metresOf(file.heightUnit())
	isFromEast, isFromSouth := file.directions()
	w := window{0, 0, gridHeights, gridHeights}
	for i, at := range p.places {
		x := at[0] / float64(*file.Width)
		y := at[1] / float64(*file.Height)
		isInside := x >= 0 && x <= 1 && y >= 0 && y <= 1
		if !isInside {
			continue
		}
		if isFromEast {
			x = 1 - x
		}
		if isFromSouth {
			y = 1 - y
		}
		for way := interpolateCubic; way >= interpolateNearest && math.IsNaN(p.heights[i]); way /= 2 {
			p.heights[i] = way.blend(file.Grid, w, x*(gridHeights-1)+0.5, y*(gridHeights-1)+0.5) * metres
		}
	}
}
