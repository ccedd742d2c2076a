package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// picture gets a picture.
func (c client) picture(path string) image.Image {
	c.t.Helper()
	a := c.must(200, "GET", path, nil)
	check(c.t, path+": type", a.header.Get("Content-Type"), "image/png")
	drawn, err := png.Decode(bytes.NewReader(a.body))
	if err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
	return drawn
}

// startTerrain starts a service with a dataset of these files, and returns a client and the dataset.
func startTerrain(t *testing.T, files map[string]pixelTIFF) (c client, dataset string) {
	t.Helper()
	ts := startServer(t, nil)
	c = ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "terrain")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		if err := os.WriteFile(filepath.Join(dir, name), f.build(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dataset = c.addDataset("terrain")
	c.analyze(dataset, nil)
	return c, dataset
}

// TestRelief: the picture of a file has a pixel for each sample at most. Slopes towards the north-west are brighter than
// others, and voids are transparent.
func TestRelief(t *testing.T) {
	t.Parallel()
	ridge := terrainTIFF(0, 0, func(x, y float64) float64 {
		if x < 50 && y < 50 {
			return -9999
		}
		return 300 - math.Abs(x-160)
	})
	packed := terrainTIFF(1, 0, hills)
	packed.compression = 50000
	c, dataset := startTerrain(t, map[string]pixelTIFF{"ridge.tif": ridge, "packed.tif": packed})
	of := func(name string) string {
		return fmt.Sprintf("%s/files/%d/relief.png", dataset, c.files(dataset)[name].ID)
	}

	drawn := c.picture(of("ridge.tif"))
	check(t, "size", drawn.Bounds().Size(), image.Pt(32, 32))
	brightness := func(x, y int) int {
		r, g, b, _ := drawn.At(x, y).RGBA()
		return int(r+g+b) / 3 >> 8
	}
	west, east := brightness(8, 16), brightness(24, 16)
	check(t, fmt.Sprintf("the western slope (%d) is brighter than the eastern one (%d)", west, east), west > east+20, true)
	_, _, _, opaque := drawn.At(2, 2).RGBA()
	check(t, "opacity of a void", opaque, 0)

	check(t, "size of a small picture", c.picture(of("ridge.tif")+"?size=8").Bounds().Size(), image.Pt(8, 8))
	a := c.refused(404, "not_found", "GET", of("packed.tif"), nil)
	checkHas(t, "reason", a.text("detail"), "heights not read: compressed with ZSTD")
	for _, size := range []string{"0", "1025", "x"} {
		c.refused(422, "invalid", "GET", of("ridge.tif")+"?size="+size, nil)
	}

	tag := c.must(200, "GET", of("ridge.tif"), nil).header.Get("ETag")
	c.must(304, "GET", of("ridge.tif"), nil, "If-None-Match: "+tag)

	c.analyze(dataset, withHeights)
	for _, feature := range c.must(200, "GET", stacPath+"/search", nil).json["features"].([]any) {
		thumbnail, has := feature.(map[string]any)["assets"].(map[string]any)["thumbnail"].(map[string]any)
		title := feature.(map[string]any)["properties"].(map[string]any)["title"]
		check(t, fmt.Sprint(title, " has a thumbnail"), has, title == "ridge.tif")
		if has {
			c.picture(strings.TrimPrefix(thumbnail["href"].(string), c.url))
		}
	}
}

// middle returns the tile that has the middle of a dataset, and where it lies there.
func (c client) middle(dataset string, zoom int) (t mapTile, x, y float64) {
	c.t.Helper()
	bounds := c.must(200, "GET", dataset+"/tiles.json", nil).json["bounds"].([]any)
	lon := (bounds[0].(float64) + bounds[2].(float64)) / 2
	lat := (bounds[1].(float64) + bounds[3].(float64)) / 2
	world := float64(int(1) << zoom)
	column, x := math.Modf((lon + 180) / 360 * world)
	row, y := math.Modf((1 - math.Asinh(math.Tan(lat*math.Pi/180))/math.Pi) / 2 * world)
	return mapTile{zoom, int(column), int(row)}, x * tileSize, y * tileSize
}

// heightIn returns the height that a pixel of the form terrarium has, as MapLibre reads it.
func heightIn(drawn image.Image, x, y int) float64 {
	r, g, b, _ := drawn.At(x, y).RGBA()
	return float64(r>>8)*256 + float64(g>>8) + float64(b>>8)/256 - 32768
}

// TestTiles: the pixels of a tile have the heights of their places, from the finest file that has one there.
func TestTiles(t *testing.T) {
	t.Parallel()
	coarse := terrainTIFF(0, 0, hills)
	fine := terrainTIFF(0, 0, func(x, y float64) float64 {
		if x < 80 {
			return -9999 // there, the coarse file counts
		}
		return 2000 + x
	})
	fine.place = with(doubles(tagModelPixelScale, 5, 5, 0), doubles(tagModelTiepoint, 0, 0, 0, 500_000, 5_400_000, 0),
		geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 25832}))
	packed := terrainTIFF(0, 0, hills)
	packed.compression = 50000
	c, dataset := startTerrain(t, map[string]pixelTIFF{"coarse.tif": coarse, "fine.tif": fine, "packed.tif": packed})

	source := c.must(200, "GET", dataset+"/tiles.json?style=terrarium", nil).json
	check(t, "largest zoom", fmt.Sprint(source["maxzoom"], source["minzoom"]), "15 13")

	for zoom := 5; zoom <= 20; zoom++ {
		tile, _, _ := c.middle(dataset, zoom)
		drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))

		// Compare with the heights of places. At small zooms the picture is of an overview, if there is one; here is none.
		var points [][2]float64
		var got []float64
		for i := range 1000 {
			x, y := i*37%256, i*101%256
			lon, lat := tile.position(float64(x)+0.5, float64(y)+0.5)
			points = append(points, [2]float64{lon, lat})
			got = append(got, heightIn(drawn, x, y))
		}
		wrong, land := 0, 0
		for i, item := range c.must(200, "POST", "/api/v1/elevation", map[string]any{"points": points}).items() {
			want, _ := item["height"].(float64) // 0: none
			if want != 0 {
				land++
			}
			// Straight lines between every 16th place are a little off, which the steepest slope turns into a height.
			if math.Abs(got[i]-want) > 1.0/256+0.01 {
				wrong++
			}
		}
		check(t, fmt.Sprintf("wrong heights of %d at zoom %d", land, zoom), wrong > 3, false)
		if zoom >= 16 {
			check(t, fmt.Sprintf("tile %v has heights", tile), land > 0, true)
		}
	}

	c.picture(dataset + "/tiles/15/17000/11000.png")
	for _, path := range []string{"15/1/1", "15/1/1.jpg", "25/0/0.png", "3/8/0.png", "3/0/8.png", "x/0/0.png", "3/-1/0.png"} {
		c.refused(404, "not_found", "GET", dataset+"/tiles/"+path, nil)
	}
	c.refused(422, "invalid", "GET", dataset+"/tiles/1/0/0.png?style=best", nil)
	c.refused(422, "invalid", "GET", dataset+"/tiles.json?style=best", nil)
	tag := c.must(200, "GET", dataset+"/tiles/13/1/1.png", nil).header.Get("ETag")
	c.must(304, "GET", dataset+"/tiles/13/1/1.png", nil, "If-None-Match: "+tag)
}

// TestTilesOfTheWorld: tiles of a raster around the world have its heights on both sides of its edge, wherever that lies.
func TestTilesOfTheWorld(t *testing.T) {
	t.Parallel()
	for _, west := range []float64{-180, 0} {
		world := terrainTIFF(0, 0, hills)
		world.width, world.height = 360, 180
		world.value = func(_, x, y int) float64 { return float64(x*10 + y) }
		world.place = with(doubles(tagModelPixelScale, 1, 1, 0), doubles(tagModelTiepoint, 0, 0, 0, west, 90, 0),
			geoKeyTag([4]float64{1024, 0, 1, 2}, [4]float64{1025, 0, 1, 1}, [4]float64{2048, 0, 1, 4326}))
		c, dataset := startTerrain(t, map[string]pixelTIFF{"world.tif": world})

		for _, tile := range []mapTile{{0, 0, 0}, {1, 1, 0}, {3, 7, 3}, {8, 255, 100}, {8, 0, 100}, {8, 127, 100}, {8, 128, 100}, {9, 511, 255}} {
			drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))
			for i := range 256 {
				lon, lat := tile.position(float64(i)+0.5, 128.5)
				x := min(max(math.Mod(lon-west+360, 360)-0.5, 0), 359)
				y := min(max(90-lat-0.5, 0), 179)
				if got, want := heightIn(drawn, i, 128), x*10+y; math.Abs(got-want) > 0.05 {
					t.Errorf("west %v, tile %v, pixel %d: got %v, want %v", west, tile, i, got, want)
					break
				}
			}
		}
	}
}

// TestTileOfManySamples: a file that has too many samples for a tile is left out, and leaves the place to the others. Feet
// become metres.
func TestTileOfManySamples(t *testing.T) {
	t.Parallel()
	placed := func(f pixelTIFF, pixel float64) pixelTIFF {
		f.place = with(doubles(tagModelPixelScale, pixel, pixel, 0), doubles(tagModelTiepoint, 0, 0, 0, 500_000, 5_400_000, 0),
			geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 25832}))
		return f
	}
	large := placed(pixelTIFF{}, 0.04)
	feet := placed(terrainTIFF(0, 0, func(x, y float64) float64 { return 1000 }), 10)
	feet.tags = append(feet.tags, asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="UNITTYPE" sample="0" role="unittype">ft</Item></GDALMetadata>`+"\x00"))
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	ts.write("d", map[string]string{"large.tif": string(sparseTIFF(2, large.place)), "feet.tif": string(feet.build())})
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)

	tile, x, y := c.middle(dataset, 16)
	drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))
	got := heightIn(drawn, int(x), int(y))
	check(t, fmt.Sprintf("height %v of the file in feet is 304.8 m", got), math.Abs(got-304.8) < 0.01, true)
}

// TestPictureOfMissingFiles: a picture that lacks a file for now has another entity tag than the whole one. A client with
// the whole one needs no file to hear that the rows are still the same, until they change.
func TestPictureOfMissingFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "d")
	good := terrainTIFF(0, 0, hills)
	southUp := terrainTIFF(0, 0, func(x, y float64) float64 {
		if y < 60 {
			return -9999 // the first rows, which lie in the south
		}
		return 100
	})
	southUp.place = with(doubles(tagModelTransformation, 10, 0, 0, 501_000, 0, 10, 0, 5_399_000, 0, 0, 0, 0, 0, 0, 0, 1),
		geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 25832}))
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "a.tif"), good.build(), 0o644),
		os.WriteFile(filepath.Join(dir, "south-up.tif"), southUp.build(), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)

	files := c.files(dataset)
	drawn := c.picture(fmt.Sprintf("%s/files/%d/relief.png", dataset, files["south-up.tif"].ID))
	_, _, _, north := drawn.At(16, 1).RGBA()
	_, _, _, south := drawn.At(16, 30).RGBA()
	check(t, "the void is in the south", north > 0 && south == 0, true)

	middle, _, _ := c.middle(dataset, 9)
	tile := fmt.Sprintf("%s/tiles/%d/%d/%d.png", dataset, middle.zoom, middle.x, middle.y)
	relief := fmt.Sprintf("%s/files/%d/relief.png", dataset, files["a.tif"].ID)
	_, bbox := c.reliefBox(dataset)
	part := dataset + "/relief.png?bbox=" + bbox
	whole := c.must(200, "GET", tile, nil).header.Get("ETag")
	wholePart := c.must(200, "GET", part, nil).header.Get("ETag")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	without := c.must(200, "GET", tile, nil).header.Get("ETag")
	c.must(304, "GET", tile, nil, "If-None-Match: "+whole)
	unchanged := c.must(304, "GET", part, nil, "If-None-Match: W/"+wholePart)
	check(t, "tag of what is unchanged", unchanged.header.Get("ETag"), wholePart)
	check(t, "caching of what is unchanged", unchanged.header.Get("Cache-Control"), "private, no-cache")
	a := c.do("GET", relief, nil, "If-None-Match: *")
	check(t, "status and tag of a picture that cannot be made", fmt.Sprint(a.status, a.header.Get("ETag")), "404")
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	c.must(200, "GET", tile, nil, "If-None-Match: "+without)
	c.must(304, "GET", tile, nil, "If-None-Match: "+whole)

	if err := os.WriteFile(filepath.Join(dir, "a.tif"), southUp.build(), 0o644); err != nil {
		t.Fatal(err)
	}
	c.analyze(dataset, nil)
	c.must(200, "GET", tile, nil, "If-None-Match: "+whole)
	c.must(200, "GET", part, nil, "If-None-Match: "+wholePart)
}

// TestOddPictures: the picture of a raster with odd sides is as large as it should be, and made of the right overview.
func TestOddPictures(t *testing.T) {
	t.Parallel()
	p := newHeightPicture(401, 401)
	for i := range p.places {
		p.places[i] = [2]float64{float64(i % p.width), float64(i / p.width)}
	}
	read := 0
	full := &raster{width: 403, height: 403, blockWidth: 403, blockHeight: 403, scale: 1, samples: sampleLayout{bits: 8, format: sampleFormatUint, step: 8, rowBytes: 403}}
	full.decode = func(column, row int, block []byte) (bool, error) { read++; return true, nil }
	full.overviews = []*raster{{width: 12, height: 12}}
	if err := p.addHeights(t.Context(), full, 1); err != nil {
		t.Fatal(err)
	}
	check(t, "blocks of the full raster that were read", read, 1)
}

// TestReaderFails: if reading a raster panics, that is an error.
func TestReaderFails(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	if err := os.WriteFile(filepath.Join(ts.datasets, "a.tif"), terrainTIFF(0, 0, hills).build(), 0o644); err != nil {
		t.Fatal(err)
	}
	c := ts.signIn("root", "all")
	dataset := c.addDataset(".")
	c.analyze(dataset, nil)
	var file datasetFile
	file.ElevationDatasetFileMeta = c.files(dataset)["a.tif"]
	err := ts.catalogue.readRaster(t.Context(), ".", file, nil, func(*raster) error { panic("odd") })
	checkError(t, "error", err, "the reader failed on this file")
}

// geographicPlace returns the tags of a raster whose north-west corner is at 7° east and 47° north.
func geographicPlace(degrees float64) []testTag {
	return with(doubles(tagModelPixelScale, degrees, degrees, 0), doubles(tagModelTiepoint, 0, 0, 0, 7, 47, 0),
		geoKeyTag([4]float64{1024, 0, 1, 2}, [4]float64{1025, 0, 1, 1}, [4]float64{2048, 0, 1, 4326}))
}

// sparseTIFF returns a raster of so many by so many tiles of 4,096 by 4,096 samples, which the file leaves out: all heights
// are 0.
func sparseTIFF(across int, place []testTag) []byte {
	side, none := float64(across*4096), make([]float64, across*across)
	return testTIFF{binary.LittleEndian, false, with(longs(tagImageWidth, side), longs(tagImageLength, side), shorts(tagBitsPerSample, 32),
		shorts(tagCompression, compressionDeflate), shorts(tagPhotometric, 1), shorts(tagSamplesPerPixel, 1), shorts(tagTileWidth, 4096), shorts(tagTileLength, 4096),
		shorts(tagSampleFormat, sampleFormatFloat), longs(tagTileOffsets, none...), longs(tagTileByteCounts, none...),
		place)}.build()
}

// TestLargeBlocks: the blocks that have to be decoded count, not the samples that are wanted of them. A file that needs too
// many is left out, and the next one counts.
func TestLargeBlocks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	const block = 0.04 // degrees
	coarse := terrainTIFF(0, 0, func(x, y float64) float64 { return 1000 })
	coarse.place = geographicPlace(8 * block / 32)
	ts.write("d", map[string]string{"a.tif": string(sparseTIFF(8, geographicPlace(block/4096))), "coarse.tif": string(coarse.build())})
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)

	// A tile in one block, and one around the corner of four.
	var points [][2]float64
	for i := range 64 {
		points = append(points, [2]float64{7 + block*(float64(i%8)+0.5), 47 - block*(float64(i/8)+0.5)})
	}
	points = append(points, [2]float64{7 + 4*block, 47 - 4*block})
	for i, want := range map[int]float64{0: 0, 64: 1000} {
		tile := tileAt(points[i][0], points[i][1], 15)
		x, y := tile.pixelOf(points[i][0], points[i][1])
		drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))
		check(t, fmt.Sprint("height in the tile of point ", i), heightIn(drawn, x, y), want)
	}

	count := map[float64]int{}
	for _, item := range c.must(200, "POST", "/api/v1/elevation", map[string]any{"points": points[:64]}).items() {
		height, _ := item["height"].(float64)
		count[math.Round(height)]++
	}
	check(t, "points with a height", count[0]+count[1000], 64)
	const work = 4096*4096*(4+4) + 4096 // for a block
	check(t, "points of which the large blocks are read", count[0], maxHeightWork/work)
}

// TestPicturesInFeet: the unit of a vertical CRS that is set for the dataset counts as if the file named it.
func TestPicturesInFeet(t *testing.T) {
	t.Parallel()
	hill := terrainTIFF(0, 0, func(x, y float64) float64 { return 12_000 + x/100 })
	metres := terrainTIFF(1, 0, func(x, y float64) float64 { return 3000 + x/100 })
	metres.tags = append(metres.tags, asciiTag(tagGDALMetadata, `<GDALMetadata><Item name="UNITTYPE" sample="0" role="unittype">m</Item></GDALMetadata>`+"\x00"))
	c, dataset := startTerrain(t, map[string]pixelTIFF{"hill.tif": hill, "metres.tif": metres})
	c.about(dataset, `{"default_vertical_crs":"EPSG:6360"}`)
	c.idle(dataset)
	c.analyze(dataset, withHeights)

	bounds := c.must(200, "GET", dataset+"/tiles.json", nil).json["bounds"].([]any)
	west, lat := bounds[0].(float64), (bounds[1].(float64)+bounds[3].(float64))/2
	lon := west + (bounds[2].(float64)-west)/4
	a := c.must(200, "GET", fmt.Sprintf("/api/v1/elevation?point=%v,%v", lon, lat), nil)
	check(t, "unit", a.text("unit"), "US survey foot")

	tile := tileAt(lon, lat, 16)
	drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))
	x, y := tile.pixelOf(lon, lat)
	want := a.json["height"].(float64) * 1200 / 3937
	got := heightIn(drawn, x, y)
	check(t, fmt.Sprintf("the height %v is %v m", got, want), math.Abs(got-want) < 0.1, true)

	check(t, "findings of wrong heights", len(c.must(200, "GET", dataset+"/findings/range", nil).items()), 0)
}

// TestPixelsOfChangedFile: a file that was written again is not read until it is analysed, though its size and its place
// are the same.
func TestPixelsOfChangedFile(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	before := terrainTIFF(0, 0, func(x, y float64) float64 { return 100 })
	after := terrainTIFF(0, 0, func(x, y float64) float64 { return 200 })
	ts.write("d", map[string]string{"a.tif": string(before.build())})
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	bounds := c.must(200, "GET", dataset+"/tiles.json", nil).json["bounds"].([]any)
	lon, lat := (bounds[0].(float64)+bounds[2].(float64))/2, (bounds[1].(float64)+bounds[3].(float64))/2
	tile := tileAt(lon, lat, 16)
	x, y := tile.pixelOf(lon, lat)
	drawn := func() float64 {
		return heightIn(c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y)), x, y)
	}
	point := fmt.Sprintf("/api/v1/elevation?point=%v,%v", lon, lat)
	relief := fmt.Sprintf("%s/files/%d/relief.png", dataset, c.files(dataset)["a.tif"].ID)
	check(t, "height", drawn(), 100.0)

	path := filepath.Join(ts.datasets, "d", "a.tif")
	if err := os.WriteFile(path, after.build(), 0o644); err != nil {
		t.Fatal(err)
	}
	const reason = "heights not read: the file has changed since it was analysed"
	check(t, "height in the tile of a changed file", drawn(), 0.0)
	check(t, "reason", c.must(200, "GET", point, nil).text("reason"), reason)
	checkHas(t, "no picture", c.refused(404, "not_found", "GET", relief, nil).text("detail"), reason)

	c.analyze(dataset, nil)
	check(t, "height after an analysis", drawn(), 200.0)
	check(t, "height at the point", c.must(200, "GET", point, nil).json["height"].(float64), 200.0)
}

// TestTileOfManyFiles: a tile that 64 files meet has their heights, and one that 65 meet is empty.
func TestTileOfManyFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	hill := terrainTIFF(0, 0, func(x, y float64) float64 { return 100 })
	file := string(hill.build())
	content := map[string]string{}
	for i := range maxTileFiles {
		content[fmt.Sprintf("%d.tif", i)] = file
	}
	ts.write("d", content)
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	tile, x, y := c.middle(dataset, 16)
	for _, want := range []float64{100, 0} {
		drawn := c.picture(fmt.Sprintf("%s/tiles/%d/%d/%d.png?style=terrarium", dataset, tile.zoom, tile.x, tile.y))
		check(t, "height", heightIn(drawn, int(x), int(y)), want)
		ts.write("d", map[string]string{"more.tif": file})
		c.analyze(dataset, nil)
	}
}

// tileAt returns the tile that has a place.
func tileAt(lon, lat float64, zoom int) mapTile {
	world := float64(int(1) << zoom)
	return mapTile{zoom, int((lon + 180) / 360 * world), int((1 - math.Asinh(math.Tan(lat*math.Pi/180))/math.Pi) / 2 * world)}
}

// pixelOf returns the pixel that has a place.
func (t mapTile) pixelOf(lon, lat float64) (x, y int) {
	fine := tileAt(lon, lat, t.zoom+8) // a tile has 2⁸ pixels
	return fine.x - t.x*tileSize, fine.y - t.y*tileSize
}
