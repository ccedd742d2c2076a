package main

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"strconv"
)

// mapView is the part of a dataset's map that a page shows.
type mapView struct {
	*coverage
	Path  string    // of the dataset's page
	BBox  string    // the part, as the query parameter bbox takes it
	Hits  string    // an SVG path: the outlines of the files that are marked
	Point string    // the position that was asked for, or ""
	Place *position // the pixel of that position
	Whole *coverage // the stored picture of all files, with a list of outliers; nil: not drawn yet
	Links []mapLink // to other parts; none: the page shows only this one

	HasRelief bool // the reader may see heights
}

// mapLink is a link to another part of the map.
type mapLink struct {
	Label string
	Sign  string // the visible text; screen readers read Label
	BBox  string
}

// drawMap draws a part of a dataset's map.
func (api *apiReader) drawMap(d dataset, box mapBox) *mapView {
	m := &mapView{
		coverage: &coverage{},
		Path:     fmt.Sprintf("/datasets/%d", d.ID),
		BBox:     box.query(),
	}
	if api.err == nil {
		how := coverage{isInPage: true, view: &box}
		drawn, err := drawView(api.r, api.console.core, d, how)
		api.err = err
		if err == nil {
			m.coverage = drawn
		}
	}
	return m
}

// addMap adds the part of the map that the page's query asks for: bbox, or the extent without
// outliers. at.x and at.y are the pixel of the map that was clicked. The page shows the files at
// that pixel, or at the position in point. With scale, the middle of the part moves to that pixel
// or, without one, to the position in point. The part's width and height are multiplied by scale,
// and the click sets no position.
func (d *datasetData) addMap(api *apiReader) {
	query := api.r.URL.Query()
	whole, box := api.wholeMap(d.datasetDetails)
	if asked := readViewBox(api, query, "bbox", 4); asked != nil {
		box = *asked
	}

	d.Position = positionText(query.Get("point"))
	lon, lat := box.middle()
	if point := readViewBox(api, query, "point", 2); point != nil {
		lon, lat = point.middle()
	}

	x := readNumber(query, "at.x")
	y := readNumber(query, "at.y")
	scale := readNumber(query, "scale")
	isClicked := x != 0 && y != 0
	if isClicked {
		lon, lat = frameFor(box).position(x, y)
	}
	if scale > 0 {
		box = box.around(lon, lat, scale)
	} else if isClicked {
		d.Before = d.Position
		d.Position = positionQuery(lon, lat)
	}

	d.Map = api.drawMap(d.dataset, box)
	d.Map.Whole = whole
	d.Map.HasRelief = principalOf(api.r).holds(datasetDownload)
	d.Map.Point = d.Position
	d.Map.addLinks(box)
}

// wholeMap returns the stored picture of a dataset that has located files, or nil if it is not
// drawn yet. It also returns the box around all files but outliers. Without a usable picture, that
// is the box around all files, outliers included.
func (api *apiReader) wholeMap(d datasetDetails) (whole *coverage, box mapBox) {
	if api.err == nil {
		whole, api.err = storedPicture(api.r.Context(), api.console.core.db, d.dataset, false)
	}
	if whole != nil && whole.All.East > whole.All.West {
		return whole, whole.All
	}
	return whole, boxOf(d.BBox) // the picture is not drawn yet, or shows no place
}

// readViewBox returns the box in the parameter of that name, or nil if it is empty or api.err is
// set already. The box has size numbers: 4, or 2 of a point, which is a box without an area.
// readViewBox stores an error in api.err. Then the box must not be used.
func readViewBox(api *apiReader, query url.Values, name string, size int) *mapBox {
	text := query.Get(name)
	if text == "" || api.err != nil {
		return nil
	}

	var v invalid
	box, err := readBox(&v, name, readNumbers(positionText(text)), size)
	api.err = cmp.Or(err, v.err())
	return box
}

// readNumber returns the number in a parameter, or 0 if it is missing, malformed, or 1e6 or more in
// size.
func readNumber(query url.Values, name string) float64 {
	n, err := strconv.ParseFloat(query.Get(name), 64)
	isUsual := math.Abs(n) < 1e6
	if err != nil || !isUsual {
		return 0
	}
	return n
}

// addLinks adds the links to the parts near a part.
func (m *mapView) addLinks(box mapBox) {
	lon, lat := box.middle()
	width := box.East - box.West
	height := box.North - box.South

	for _, to := range []struct {
		label    string
		sign     string
		scale    float64
		lon, lat float64
	}{
		{"Zoom in", "+", 0.5, lon, lat},
		{"Zoom out", "−", 2, lon, lat},
		{"West", "←", 1, lon - width/2, lat},
		{"East", "→", 1, lon + width/2, lat},
		{"North", "↑", 1, lon, lat + height/2},
		{"South", "↓", 1, lon, lat - height/2},
	} {
		next := box.around(to.lon, to.lat, to.scale)
		m.Links = append(m.Links, mapLink{to.label, to.sign, next.query()})
	}
}

// addPlace marks a position that was asked for, and the files there.
func (m *mapView) addPlace(point string, files []datasetFile) {
	for _, file := range files {
		m.addHit(file.extent)
	}

	at := readNumbers(point)
	if len(at) == 2 {
		eastward := math.Remainder(at[0]-m.frame.lon, 360)
		x, y := m.frame.at(m.frame.lon+eastward, at[1])
		m.Place = &position{math.Round(x), math.Round(y)}
	}
}

// addHit marks a file.
func (m *mapView) addHit(file extent) { m.Hits += m.frame.mark(file) }

// around returns a box with this middle. Its width and height are those of the receiver, times
// scale.
func (a mapBox) around(lon, lat, scale float64) mapBox {
	width := (a.East - a.West) * scale
	height := (a.North - a.South) * scale
	box := mapBox{
		West:  lon - width/2,
		South: lat - height/2,
		East:  lon + width/2,
		North: lat + height/2,
	}

	// The box stays on the map, and does not vanish.
	const least = 1e-5 // degrees, about a metre
	box.East = max(box.East, box.West+least)
	box.South = min(max(box.South, -90), 90-least)
	box.North = max(min(box.North, 90), box.South+least)
	return box
}

// query returns the box as the query parameter bbox takes it. Each corner is rounded to a
// ten-thousandth of the box's shorter side, or finer.
func (a mapBox) query() string {
	west, east := normalizeLongitudes(a.West, a.East)
	parts := math.Pow(10, math.Ceil(math.Log10(1e4/min(a.East-a.West, a.North-a.South))))
	round := func(v float64) float64 { return math.Round(v*parts) / parts }
	return fmt.Sprintf("%v,%v,%v,%v", round(west), round(a.South), round(east), round(a.North))
}
