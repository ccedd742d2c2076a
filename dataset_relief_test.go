package main

import (
	"fmt"
	"image"
	"math"
	"path/filepath"
	"testing"
)

// reliefTile returns a raster of 32 by 32 samples with this north-west corner and side, in a CRS of the model type: 1 is
// projected, 2 geographic.
func reliefTile(model, code int, west, north, side float64, height func(x, y float64) float64) pixelTIFF {
	const size = 32
	f := terrainTIFF(0, 0, height)
	f.place = with(doubles(tagModelPixelScale, side/size, side/size, 0), doubles(tagModelTiepoint, 0, 0, 0, west, north, 0),
		geoKeyTag([4]float64{1024, 0, 1, float64(model)}, [4]float64{1025, 0, 1, 1}, [4]float64{float64(4096 - 1024*model), 0, 1, float64(code)}))
	return f
}

// reliefBox returns the box of a dataset, as the parameter bbox takes it.
func (c client) reliefBox(dataset string) (box mapBox, query string) {
	c.t.Helper()
	var bbox []float64
	for _, v := range c.must(200, "GET", dataset, nil).json["bbox"].([]any) {
		bbox = append(bbox, v.(float64))
	}
	box = boxOf(bbox)
	return box, fmt.Sprintf("%v,%v,%v,%v", bbox[0], bbox[1], bbox[2], bbox[3])
}

// isOpaque reports whether a picture shows something at a pixel.
func isOpaque(drawn image.Image, x, y int) bool {
	_, _, _, alpha := drawn.At(x, y).RGBA()
	return alpha > 0
}

// TestReliefOnMap: the relief of a dataset lies on the map where its files are, to a pixel: whether few files are read or
// many drawn from their grids, across 180°, around a pole, and with CRSs of any kind.
func TestReliefOnMap(t *testing.T) {
	t.Parallel()
	flat := func(x, y float64) float64 { return 100 }
	few := map[string]pixelTIFF{}
	many := map[string]pixelTIFF{}
	for i := range 72 {
		many[fmt.Sprint(i, ".tif")] = reliefTile(1, 25832, 600_000+float64(i%9)*1000, 5_200_000-float64(i/9)*1000, 1000, flat)
	}
	few["a.tif"] = reliefTile(1, 25832, 600_000, 5_200_000, 1000, flat)
	few["b.tif"] = reliefTile(1, 25832, 601_500, 5_199_000, 1000, flat)

	for name, files := range map[string]map[string]pixelTIFF{
		"few":  few,
		"many": many,
		"180°": {
			"a.tif": reliefTile(2, 4326, 178, 60, 1.5, flat),
			"b.tif": reliefTile(2, 4326, -179.5, 59, 1.5, flat),
			"c.tif": reliefTile(1, 32601, 167_000, 6_600_000, 60_000, flat),
		},
		"pole":  {"a.tif": reliefTile(1, 3031, 100_000, 900_000, 400_000, flat), "b.tif": reliefTile(1, 3031, -800_000, -100_000, 300_000, flat)},
		"world": {"a.tif": reliefTile(2, 4326, -150, 60, 20, flat), "b.tif": reliefTile(2, 4326, 100, -20, 40, flat)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, dataset := startTerrain(t, files)
			c.analyze(dataset, withHeights)
			box, bbox := c.reliefBox(dataset)
			frame := frameFor(box)
			drawn := c.picture(dataset + "/relief.png?bbox=" + bbox)
			check(t, "size", drawn.Bounds().Size(), image.Pt(720, 540))

			rows := c.files(dataset)
			covered := func(x, y float64) bool {
				lon, lat := frame.position(frame.left+x, frame.top+y)
				for _, file := range rows {
					if math.Abs(lat) <= 90 && file.contains(math.Remainder(lon, 360), lat) {
						return true
					}
				}
				return false
			}

			// Within a pixel of an edge, either will do.
			wrong, inside, outside := 0, 0, 0
			for y := 0; y < 540; y += 7 {
				for x := 0; x < 720; x += 7 {
					n := 0
					for _, by := range [][2]float64{{0, 0}, {-1, -1}, {1, -1}, {-1, 1}, {1, 1}} {
						if covered(float64(x)+0.5+by[0], float64(y)+0.5+by[1]) {
							n++
						}
					}
					got := isOpaque(drawn, x, y)
					switch n {
					case 0:
						outside++
					case 5:
						inside++
					}
					if n == 0 && got || n == 5 && !got {
						wrong++
					}
				}
			}
			check(t, fmt.Sprintf("wrong pixels of %d inside and %d outside", inside, outside), wrong, 0)
			check(t, "there are pixels inside", inside > 100, true)
			check(t, "there are pixels outside", outside > 0, true)
		})
	}
}

// TestReliefOfManyFiles: many files are drawn from the grids that an analysis with heights has kept, in metres. A file without
// one is left out, and so is one whose row is of a version that kept none.
func TestReliefOfManyFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	content := map[string]string{}
	for i := range maxTileFiles + 6 {
		f := reliefTile(1, 25832, 600_000+float64(i%10)*1000, 5_200_000-float64(i/10)*1000, 1000, func(x, y float64) float64 { return 1000 })
		f.tags = append(f.tags, asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="UNITTYPE" sample="0" role="unittype">ft</Item></GDALMetadata>`+"\x00"))
		content[fmt.Sprint(i, ".tif")] = string(f.build())
	}
	ts.write("d", content)
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	box, bbox := c.reliefBox(dataset)
	frame := frameFor(box)
	relief := dataset + "/relief.png?bbox=" + bbox

	// middle returns the colour in the middle of the map, and whether there is one.
	middle := func() (color [3]int, isThere bool) {
		lon, lat := box.middle()
		x, y := frame.at(lon, lat)
		drawn := c.picture(relief)
		r, g, b, _ := drawn.At(int(x-frame.left), int(y-frame.top)).RGBA()
		return [3]int{int(r >> 8), int(g >> 8), int(b >> 8)}, isOpaque(drawn, int(x-frame.left), int(y-frame.top))
	}
	_, isThere := middle()
	check(t, "a height before heights were read", isThere, false)

	c.analyze(dataset, withHeights)
	var want [3]int
	for i, v := range reliefColour(304.8) {
		want[i] = int(v)
	}
	got, _ := middle()
	check(t, "colour of 304.8 m on level ground", got, want)

	tag := c.must(200, "GET", relief, nil).header.Get("ETag")
	c.must(304, "GET", relief, nil, "If-None-Match: "+tag)

	ts.exec(`UPDATE elevation_dataset_file_meta SET heights = heights #- '{statistics,grid}'`)
	_, isThere = middle()
	check(t, "a height of rows without grids", isThere, false)
	c.must(200, "GET", relief, nil, "If-None-Match: "+tag)
	c.must(200, "GET", dataset+"/files", nil)
}

// TestGridOfHeights: a grid gives the heights between its own. Beside a void the nearest height counts. Heights that are
// there stay, and none is drawn outside of the file.
func TestGridOfHeights(t *testing.T) {
	t.Parallel()
	file := datasetFile{}
	file.Width, file.Height = new(int64(101)), new(int64(51))
	for i := range gridHeights * gridHeights {
		column, row := float64(i%gridHeights), float64(i/gridHeights)
		file.Grid = append(file.Grid, 10*column+row)
	}
	file.Grid[gridHeights*gridHeights-1] = math.NaN()

	p := newHeightPicture(4, 1)
	p.heights[3] = 7
	places := [][2]float64{{50.5, 25.5}, {101.0 / 7 * 2.5, 51.0 / 7 * 3}, {101, 51}, {50, 25}, {-0.1, 20}, {20, 51.1}, {math.NaN(), 0}, {80, 51}, {101.0 / 7 * 6.4, 51}}
	for i := range p.places {
		p.places[i] = [2]float64{math.NaN(), 0}
	}
	copy(p.places, places)
	p.addGrid(file)
	for i, want := range []float64{38.5, 28, math.NaN(), 7, math.NaN(), math.NaN(), math.NaN(), 62.4, 67} {
		isRight := math.Abs(p.heights[i]-want) < 0.1 || math.IsNaN(want) && math.IsNaN(p.heights[i])
		check(t, fmt.Sprintf("height %v at %v is %v", p.heights[i], places[i], want), isRight, true)
	}

	// The grid begins in the north-west. The columns and rows of this file begin in the south-east.
	file.Transform = []float64{-1, 0, 0, 0, 1, 0}
	p = newHeightPicture(4, 1)
	for i := range p.places {
		p.places[i] = [2]float64{101 - 101.0/7*2.5, 51 - 51.0/7*3}
	}
	p.addGrid(file)
	check(t, "a turned height is 28", math.Abs(p.heights[0]-28) < 0.1, true)
}

// TestKeptGrid: the grid has heights from edge to edge of a raster, also of one in many blocks or with few samples.
func TestKeptGrid(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3, 8, 100} {
		f := plainTIFF()
		f.width, f.height = size, size
		f.tags = nil
		f.value = func(_, x, y int) float64 { return float64(x + 100*y) }
		r, err := openBytes("x.tif", f.build(), nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.statistics(t.Context(), 200)
		if err != nil {
			t.Fatal(err)
		}
		check(t, fmt.Sprint("heights kept of ", size), len(s.Grid), gridHeights*gridHeights)
		last := float64(size - 1)
		check(t, fmt.Sprint("corners of ", size), fmt.Sprint(s.Grid[0], s.Grid[7], s.Grid[56], s.Grid[63]), fmt.Sprint(height(0), height(last), height(100*last), height(101*last)))
	}
}

// startWithHills starts a service with a dataset of one file, which lies in the box 7, 46.9, 7.1, 47.
func startWithHills(t *testing.T) (ts *testServer, c client, dataset string) {
	t.Helper()
	ts = startServer(t, nil)
	c = ts.signIn("root", "all")
	ts.write("d", map[string]string{"a.tif": string(reliefTile(2, 4326, 7, 47, 0.1, hills).build())})
	dataset = c.addDataset("d")
	c.analyze(dataset, nil)
	return ts, c, dataset
}

// TestReliefIsRefused: a relief needs a box, and what tiles need.
func TestReliefIsRefused(t *testing.T) {
	t.Parallel()
	ts, c, dataset := startWithHills(t)
	relief := dataset + "/relief.png"
	c.picture(relief + "?bbox=7,46.9,7.1,47")
	c.picture(relief + "?bbox=7,47,7,47")
	c.picture(relief + "?bbox=-180,-90,180,90")
	c.refused(400, "wrong_type", "GET", relief, nil)
	c.refused(400, "wrong_type", "GET", relief+"?bbox=7,46,8", nil)
	c.refused(422, "invalid", "GET", relief+"?bbox=7,46,8,470", nil)
	c.refused(400, "unknown_parameter", "GET", relief+"?bbox=7,46,8,47&size=9999", nil)

	ts.signIn("looker", datasetRead).refused(403, "permission_missing", "GET", relief+"?bbox=7,46,8,47", nil)
	c.must(201, "POST", "/api/v1/permissions", map[string]string{"name": lidarSee, "meaning": "x"})
	reader := ts.signIn("reader", datasetRead, datasetDownload)
	reader.picture(relief + "?bbox=7,46,8,47")
	c.must(200, "PATCH", dataset, map[string]string{"requires": lidarSee})
	reader.refused(404, "not_found", "GET", relief+"?bbox=7,46,8,47", nil)
}

// TestReliefOnPage: the map of a dataset has the relief for those who may read files, and two clicks lead to a profile.
func TestReliefOnPage(t *testing.T) {
	t.Parallel()
	ts, _, dataset := startWithHills(t)
	page := "/datasets/" + filepath.Base(dataset)
	browser := ts.browse("root")
	checkHas(t, "page", browser.shows(200, "GET", page, ""), `href="/api/v1`+page+`/relief.png?bbox=7%2c46.9%2c7.1%2c47"`)

	first := browser.shows(200, "GET", page+"?at.x=400&at.y=300", "", "Height:")
	checkLacks(t, "the page after a click", first, "along the line")
	const second = "?point=7.02,46.95&at.x=400&at.y=300"
	checkHas(t, "the page after another", browser.shows(200, "GET", page+second, ""),
		`<a href="`+page+`/profile?from=7.02%2c46.95&amp;to=7.0442`)
	checkLacks(t, "the page after a move", browser.shows(200, "GET", page+second+"&scale=0.5", ""), "along the line")

	ts.signIn("looker", datasetRead)
	seen := ts.browse("looker").shows(200, "GET", page+second, "")
	checkLacks(t, "page without dataset.download", seen, "relief.png")
	checkLacks(t, "page without dataset.download", seen, "along the line")
}
