package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Limits of pictures of heights.
const (
	maxPictureSize = 1024    // pixels along the longer side
	maxPictureWork = 1 << 30 // of the decodeBudget of the picture of a file
	maxTileWork    = 1 << 28 // likewise: 32 million samples of 32 bits, whole blocks
	maxTileFiles   = 64      // a tile that more files meet is empty
	maxProjections = 1 << 30 // pixels of a picture, for all files together
	maxTileZoom    = 24
	tileSize       = 256 // pixels
)

// tileCircumference is the length of the equator in Web Mercator (EPSG:3857), in metres.
const tileCircumference = 2 * math.Pi * 6378137

// getRelief answers GET /api/v1/datasets/{id}/files/{file}/relief.png, a picture of the heights
// with up to size pixels along its longer side.
func (c *catalogue) getRelief(w http.ResponseWriter, r *http.Request) error {
	size := 512
	if text := r.URL.Query().Get("size"); text != "" {
		var err error
		size, err = strconv.Atoi(text)
		if err != nil || size < 1 || size > maxPictureSize {
			return invalid{{"size", fieldOutOfRange, "must be from 1 to 1024"}}.err()
		}
	}

	file, d, err := c.pathFile(r)
	if err != nil {
		return err
	}
	if file.Width == nil || file.Height == nil {
		return d.missingPart("picture of file", r.PathValue("file"))
	}

	// The picture has no more pixels than the file has samples. North is at the top, if the rows of
	// the file run from west to east or from east to west.
	columns := float64(*file.Width)
	rows := float64(*file.Height)
	scale := min(1, float64(size)/max(columns, rows))
	p := newHeightPicture(int(max(1, math.Round(columns*scale))), int(max(1, math.Round(rows*scale))))
	isFromEast, isFromSouth := file.directions()
	for i := range p.places {
		x := (float64(i%p.width) - 0.5) * columns / float64(p.width-2)
		y := (float64(i/p.width) - 0.5) * rows / float64(p.height-2)
		if isFromEast {
			x = columns - x
		}
		if isFromSouth {
			y = rows - y
		}
		p.places[i] = [2]float64{x, y}
	}

	callerOf(r).slots.leavePool()
	err = c.addHeightsOf(r.Context(), d.Path, file, p, &decodeBudget{maxPictureWork})
	if problemIn(err) != nil || r.Context().Err() != nil {
		return err
	}
	if err != nil {
		return newProblem(http.StatusNotFound, codeNotFound, "No picture: heights not read: "+reasonOf(err)+".")
	}

	ground := 30.0 // metres, for a file without a place
	if file.ResolutionM != nil {
		ground = *file.ResolutionM
	}
	return writePicture(w, r, "", p.relief(ground/scale))
}

// writePicture answers with a picture as PNG, or with 304 if the client has it already. tag is its
// entity tag; if it is "", the tag is made from the bytes of the PNG.
func writePicture(w http.ResponseWriter, r *http.Request, tag string, picture image.Image) error {
	var body bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	if err := encoder.Encode(&body, picture); err != nil {
		return err
	}
	if tag == "" {
		tag = entityTag(body.Bytes())
	}
	return writePNG(w, r, tag, body.Bytes())
}

// writePNG answers with a picture and its entity tag, or with 304 if the client has it already.
func writePNG(w http.ResponseWriter, r *http.Request, tag string, body []byte) error {
	w.Header().Set("Cache-Control", "private, no-cache")
	return writeTaggedBytes(w, r, "image/png", tag, body)
}

// addHeightsOf adds the heights of a file to a picture, in metres.
func (c *catalogue) addHeightsOf(
	ctx context.Context,
	directory string,
	file datasetFile,
	p *heightPicture,
	budget *decodeBudget,
) error {
	return c.readRaster(ctx, directory, file, budget, func(raster *raster) error {
		return p.addHeights(ctx, raster, metresOf(file.heightUnit()))
	})
}

// mapTile is a square of Web Mercator: at zoom 0 one is the world, and each zoom cuts it in four. x
// counts from 180° west, y from the north.
type mapTile struct{ zoom, x, y int }

// readTile reads the tile in the path, or returns a 404.
func readTile(r *http.Request) (t mapTile, err error) {
	y, isPNG := strings.CutSuffix(r.PathValue("y"), ".png")
	texts := [3]string{r.PathValue("z"), r.PathValue("x"), y}
	numbers := [3]*int{&t.zoom, &t.x, &t.y}

	isTile := isPNG
	for i, text := range texts {
		n, err := strconv.ParseUint(text, 10, maxTileZoom)
		*numbers[i] = int(n)
		isTile = isTile && err == nil
	}
	if !isTile || t.zoom > maxTileZoom || max(t.x, t.y) >= 1<<t.zoom {
		return t, notFound("tile", strings.Join(texts[:], "/"))
	}
	return t, nil
}

// position returns the longitude and latitude of a place, in pixels from the tile's north-west
// corner. East and west of the world, it is that of its edge.
func (t mapTile) position(x, y float64) (lon, lat float64) {
	const almost = 180 - 1e-9 // 180 would be -180 in some rasters
	world := float64(int(1) << t.zoom)
	lon = (float64(t.x)+x/tileSize)/world*360 - 180
	lat = math.Atan(math.Sinh(math.Pi*(1-2*(float64(t.y)+y/tileSize)/world))) * 180 / math.Pi
	return min(max(lon, -almost), almost), lat
}

// box returns the box of the tile with its margin.
func (t mapTile) box() *mapBox {
	west, north := t.position(-1, -1)
	east, south := t.position(tileSize+1, tileSize+1)
	return new(boxOf([]float64{west, south, east, north}))
}

// setPlaces sets where the pixels of a picture lie in the raster of a file. It reports whether the
// CRS of the file is known. It computes every 16th place of a row and column, and those between lie
// on straight lines. If these would be curved, it computes each. It does so too for a raster around
// the world, whose edge they may cross.
func (p *heightPicture) setPlaces(file datasetFile) (isKnown bool) {
	crs, shift, isKnown := file.knownCRS()
	if !isKnown {
		return false
	}

	step := 16
	if p.isCurved || file.BBox[2]-file.BBox[0] > 180 {
		step = 1
	}

	across := p.width/step + 2
	nodes := make([][2]float64, across*(p.height/step+2))
	for i := range nodes {
		lon, lat := p.position(float64(i%across*step)-0.5, float64(p.top+i/across*step)-0.5)
		column, row, err := file.pixelAt(crs, shift, lon, lat)
		if err != nil {
			column = math.NaN()
		}
		nodes[i] = [2]float64{column, row}
	}

	for i := range p.places {
		column := i % p.width
		row := i / p.width
		node := row/step*across + column/step
		east := float64(column%step) / float64(step)
		south := float64(row%step) / float64(step)
		for axis := range 2 {
			north := nodes[node][axis]*(1-east) + nodes[node+1][axis]*east
			below := nodes[node+across][axis]*(1-east) + nodes[node+across+1][axis]*east
			p.places[i][axis] = north*(1-south) + below*south
		}
	}
	return true
}

// getTile answers GET /api/v1/datasets/{id}/tiles/{z}/{x}/{y}.png with the heights in a tile of
// Web Mercator: as a relief, or as numbers in the form terrarium.
func (c *catalogue) getTile(w http.ResponseWriter, r *http.Request) error {
	style, err := readTileStyle(r)
	if err != nil {
		return err
	}
	t, err := readTile(r)
	if err != nil {
		return err
	}

	p := newHeightPicture(tileSize, tileSize)
	p.position = t.position
	p.isCurved = t.zoom < 8
	whole := func(datasetFile) *heightPicture { return p }
	paint := func() image.Image {
		if style == styleTerrarium {
			return p.terrarium()
		}
		_, lat := t.position(tileSize/2, tileSize/2)
		pixel := tileCircumference * math.Cos(lat*math.Pi/180) / tileSize / float64(int(1)<<t.zoom)
		return p.relief(pixel)
	}
	return c.writeHeights(w, r, t.box(), maxTileFiles, whole, paint)
}

// writeHeights answers with a picture of the heights that the dataset in the path has in a box.
// part returns the part of the picture that a file may lie in. paint returns the picture once the
// heights of all parts are set. The finest file that has a height at a pixel counts. If up to
// maxTileFiles files meet the box, they are read; a file that cannot be read is left out. If more
// files meet it, their grids are drawn, which analyses with heights have kept. If more than limit
// files meet it, the picture stays empty.
func (c *catalogue) writeHeights(
	w http.ResponseWriter,
	r *http.Request,
	box *mapBox,
	limit int,
	part func(datasetFile) *heightPicture,
	paint func() image.Image,
) error {
	f := fileFilter{
		status:    new(fileStatusOK),
		box:       box,
		sort:      []string{sortFinest},
		mostHits:  limit,
		withGrids: true,
	}
	ctx := r.Context()
	d, err := c.selectVisible(r, &f)
	if err != nil {
		return err
	}
	files, next, err := findFiles(ctx, c.core.db, f, firstFile(), limit)
	if err != nil {
		return err
	}
	if next != nil {
		files = nil
	}

	callerOf(r).slots.leavePool()

	tag := tagOfRows(files)
	if isUnchanged(r, tag) { // no file has to be opened
		return writePNG(w, r, tag, nil)
	}

	budget := &decodeBudget{maxTileWork}
	projections := &decodeBudget{maxProjections}
	for _, file := range files {
		p := part(file)
		hasVoid := slices.ContainsFunc(p.heights, math.IsNaN)
		if !hasVoid {
			continue
		}

		// Where the map is curved, a pixel takes some 16 times as long.
		work := len(p.places)
		if p.isCurved {
			work *= 16
		}
		if projections.spend(float64(work)) != nil {
			break
		}

		if err := shareCore(ctx, c.core.db); err != nil {
			return err
		}
		isKnown := p.setPlaces(file)
		if !isKnown {
			continue // only a former version of the registry has its CRS
		}
		if len(files) <= maxTileFiles {
			err = c.addHeightsOf(ctx, d.Path, file, p, budget)
		} else {
			p.addGrid(file)
		}
		if problemIn(err) != nil || ctx.Err() != nil {
			return err
		}
		if err != nil {
			tag = "" // the file may be read next time
		}
	}
	return writePicture(w, r, tag, paint())
}

// tagOfRows returns an entity tag that changes if a row of the files changes, or the program.
func tagOfRows(files []datasetFile) string {
	tag := entityTag([]byte(version))
	for _, file := range files {
		row, _ := encodeJSON(file) // never fails for rows

		// The JSON does not have the grid.
		state := fmt.Sprint(tag, string(row), file.Grid)
		tag = entityTag([]byte(state))
	}
	return tag
}

// The styles of tiles.
const (
	styleRelief    = "relief"
	styleTerrarium = "terrarium"
)

// readTileStyle reads the style of tiles from the query.
func readTileStyle(r *http.Request) (string, error) {
	style := r.URL.Query().Get("style")
	switch style {
	case "":
		return styleRelief, nil
	case styleRelief, styleTerrarium:
		return style, nil
	}
	return "", invalid{{"style", fieldUnknown, "must be relief or terrarium"}}.err()
}

// getTileJSON answers GET /api/v1/datasets/{id}/tiles.json: where the tiles of a dataset are, as
// TileJSON 3.0.0. At the largest zoom a pixel is at most as large as a sample of the finest file;
// two zooms less still need few samples.
func (c *catalogue) getTileJSON(w http.ResponseWriter, r *http.Request, d dataset) error {
	style, err := readTileStyle(r)
	if err != nil {
		return err
	}
	found, err := listCollections(r.Context(), c.core.db, []int64{d.ID})
	if err == nil && len(found) == 0 { // it was deleted meanwhile
		err = notFound("dataset", d.ID)
	}
	if err != nil {
		return err
	}

	path := fmt.Sprintf("/api/v1/datasets/%d/tiles/{z}/{x}/{y}.png?style=%s", d.ID, style)
	answer := object{
		"tilejson":    "3.0.0",
		"name":        d.Name,
		"description": d.Description,
		"tiles":       []string{c.core.baseURL(r) + path},
		"minzoom":     0,
		"maxzoom":     0,
		"encoding":    style,
	}
	box := found[0].bounds()
	if box != nil {
		if box[0] > box[2] { // it crosses 180°
			box[0] = -180
			box[2] = 180
		}
		answer["bounds"] = box
	}

	if finest := found[0].Finest; finest != nil && box != nil {
		pixel := tileCircumference * math.Cos((box[1]+box[3])/2*math.Pi/180) / tileSize
		zoom := int(min(max(math.Ceil(math.Log2(pixel / *finest)), 0), maxTileZoom))
		answer["maxzoom"] = zoom
		answer["minzoom"] = max(0, zoom-2)
	}
	return writeTagged(w, r, answer)
}
