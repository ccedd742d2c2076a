package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// withHeights is the body of a request for an analysis with heights.
var withHeights = map[string]bool{"heights": true}

// terrainTIFF returns a tile of 32 by 32 heights of 10 m in UTM, whose upper left corner is at this column and row of a
// grid of such tiles. height gets metres east and south of the corner of the grid.
func terrainTIFF(column, row int, height func(x, y float64) float64) pixelTIFF {
	const size, pixel = 32, 10.0
	left, top := float64(column)*size*pixel, float64(row)*size*pixel
	return pixelTIFF{
		order:       binary.LittleEndian,
		width:       size,
		height:      size,
		bands:       1,
		rows:        8,
		bits:        32,
		format:      sampleFormatFloat,
		compression: uncompressed,
		place: with(doubles(tagModelPixelScale, pixel, pixel, 0), doubles(tagModelTiepoint, 0, 0, 0, 500_000+left, 5_400_000-top, 0),
			geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 25832})),
		tags:  with(asciiTag(tagGDALNoData, "-9999\x00")),
		value: func(_, x, y int) float64 { return height(left+(float64(x)+0.5)*pixel, top+(float64(y)+0.5)*pixel) },
	}
}

// hills is a height without anything wrong.
func hills(x, y float64) float64 {
	return 600 + 150*math.Sin(x/900)*math.Cos(y/700) + 40*math.Abs(math.Sin(x/310+y/530)) + 3*math.Sin(x/37)*math.Cos(y/41)
}

// heightsOf returns the details of a file, by its path.
func (c client) heightsOf(dataset, path string) answer {
	c.t.Helper()
	return c.must(200, "GET", fmt.Sprintf("%s/files/%d", dataset, c.files(dataset)[path].ID), nil)
}

// TestAnalysisHeights: the heights of rasters are read once, as long as nothing changes. They are shown where the file is.
func TestAnalysisHeights(t *testing.T) {
	t.Parallel()
	read := contentReads{ofHeights: true}
	ts := startServer(t, func(o *options) { o.beforeRead = read.note; o.batchSize = 3 })
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	good := terrainTIFF(0, 0, hills)
	packed, damaged := good, good
	packed.compression = 50000
	damaged.compression = compressionLZW
	damaged.block = func(i int, b []byte) []byte { return b[:len(b)-20*i] }
	contents := map[string]string{"good.tif": string(good.build()), "packed.tif": string(packed.build()), "damaged.tif": string(damaged.build())}
	bytes := 0
	for name, content := range contents {
		d.write(name, content)
		bytes += len(content)
	}
	d.write("notes.txt", "x")
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	check(t, "read without the option", read.take(), "")
	if file := c.heightsOf(dataset, "good.tif"); file.json["heights"] != nil || file.json["heights_reason"] != nil {
		t.Errorf("heights without the option: %s", file.body)
	}

	a := c.analyze(dataset, withHeights)
	check(t, "state", a.text("state"), stateSucceeded)
	check(t, "heights", a.json["heights"], any(true))
	progress := a.json["progress"].(map[string]any)
	check(t, "bytes expected", progress["bytes_expected"], any(float64(bytes)))
	check(t, "bytes read", progress["bytes_read"], any(float64(bytes)))
	check(t, "read", read.take(), "damaged.tif good.tif packed.tif")
	check(t, "files with another row", counts(a), [6]int{4, 0, 0, 4, 0, 0})

	// They are those of the reader.
	raster, err := openBytes("good.tif", good.build(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := raster.statistics(t.Context(), 200)
	if err != nil {
		t.Fatal(err)
	}
	file := c.heightsOf(dataset, "good.tif")
	heights := file.json["heights"].(map[string]any)
	for name, v := range map[string]height{"min": want.Min, "max": want.Max, "mean": want.Mean, "deviation": want.Deviation, "mode": want.Mode} {
		check(t, name, heights[name], any(float64(v)))
	}
	north := heights["edges"].([]any)[0].([]any)[0].(float64)
	check(t, "the first height of the north edge", north, math.Round(float64(want.Edges[0][0])*1000)/1000)
	check(t, "reason of packed.tif", c.heightsOf(dataset, "packed.tif").text("heights_reason"), "compressed with ZSTD")
	checkHas(t, "damage", string(c.heightsOf(dataset, "damaged.tif").body), `"damage":"strip 1 at `)

	// Tables, STAC and pages have them.
	table := string(c.must(200, "GET", dataset+"/files.csv?q=good", nil).body)
	checkHas(t, "CSV", table, fmt.Sprintf(",%v,%v,%v,%v,1024,0,%v,", want.Min, want.Max, want.Mean, want.Deviation, want.Mode))
	checkHas(t, "CSV", string(c.must(200, "GET", dataset+"/files.csv?q=packed", nil).body), ",compressed with ZSTD\n")
	id := int(file.json["id"].(float64))
	item := string(c.must(200, "GET", fmt.Sprintf("%s/collections/%s/items/%d", stacPath, filepath.Base(dataset), id), nil).body)
	checkHas(t, "STAC", item, `"raster:bands":[{"statistics":{"maximum":`)
	checkHas(t, "STAC", item, stacRaster)
	page := string(c.must(200, "GET", fmt.Sprintf("%s/files/%d", strings.TrimPrefix(dataset, "/api/v1"), id), nil).body)
	checkHas(t, "page", page, fmt.Sprintf("<dt>Lowest</dt><dd>%.2f</dd>", want.Min))
	checkHas(t, "page", page, "of 1,024 samples")

	// Nothing is read again, unless it has changed or must be.
	c.analyze(dataset, withHeights)
	c.analyze(dataset, map[string]bool{"force": true})
	c.analyze(dataset, map[string]bool{"checksums": true, "heights": true})
	check(t, "read again", read.take(), "")
	if c.heightsOf(dataset, "good.tif").json["heights"] == nil {
		t.Error("heights are lost")
	}
	d.write("good.tif", string(terrainTIFF(0, 0, func(x, y float64) float64 { return 7 }).build()))
	c.analyze(dataset, nil)
	if c.heightsOf(dataset, "good.tif").json["heights"] != nil {
		t.Error("a changed file has its former heights")
	}
	if said, err := ts.command("dataset", "analyze", "d", "--heights", "--wait"); err != nil {
		t.Errorf("the command says %s %v", said, err)
	}
	check(t, "read after a change", read.take(), "good.tif")
	check(t, "mean after a change", c.heightsOf(dataset, "good.tif").json["heights"].(map[string]any)["mean"], any(7.0))
	d.write("good.tif.aux.xml", "<PAMDataset><PAMRasterBand band=\"1\"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>")
	c.analyze(dataset, withHeights)
	check(t, "read after a sidecar came", read.take(), "good.tif")
	c.analyze(dataset, map[string]bool{"force": true, "heights": true})
	check(t, "read with force", read.take(), "damaged.tif good.tif packed.tif")
	d.write("good.tif.aux.xml", "<PAMDataset> <PAMRasterBand band=\"1\"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>")
	c.analyze(dataset, withHeights)
	check(t, "read after a change of a sidecar that leaves the row as it is", read.take(), "good.tif")

	// A file of which nothing can be read has no share of heights.
	rotten := damaged
	rotten.block = func(_ int, b []byte) []byte { return b[:1] }
	d.write("rotten.tif", string(rotten.build()))
	c.analyze(dataset, withHeights)
	samples := c.heightsOf(dataset, "rotten.tif").json["heights"].(map[string]any)["samples"]
	check(t, "samples of rotten.tif", samples, any(0.0))
	items := string(c.must(200, "GET", fmt.Sprintf("%s/collections/%s/items", stacPath, filepath.Base(dataset)), nil).body)
	checkHas(t, "STAC of a file that is rotten", items, `"raster:bands":[{"statistics":{}}]`)

	// Whoever may not see the dataset sees no heights.
	c.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	reader := ts.signIn("reader", datasetRead)
	reader.must(200, "GET", fmt.Sprintf("%s/files/%d", dataset, id), nil)
	c.must(200, "PATCH", dataset, map[string]any{"requires": "lidar.see"})
	for _, path := range []string{fmt.Sprintf("%s/files/%d", dataset, id), dataset + "/files.csv", dataset + "/report"} {
		reader.must(404, "GET", path, nil)
	}
}

// TestKilledWhileMeasuring: a service that is killed while it reads heights goes on with the file that it had in hand.
func TestKilledWhileMeasuring(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	size := listedFolder{t, filepath.Join(ts.datasets, "tiles")}.listTiles(2, 5)
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_LIFE=1h", "CAIRN_TEST_CHUNK=3")
	p := startProcess(t, append(slices.Clone(env), "CAIRN_TEST_DIE_ON=heights of d1/t2.tif"))
	c.url = p.url
	location := c.must(202, "POST", dataset+"/analyses", withHeights).header.Get("Location")
	<-p.exit
	check(t, "heights at the kill", countRows(t, env, `heights IS NOT NULL`), 7)

	p = startProcess(t, env)
	c.url = p.url
	a := c.finished(location)
	check(t, "state", a.text("state"), stateSucceeded)
	check(t, "heights", countRows(t, env, `heights IS NOT NULL`), 10)
	check(t, "bytes read by both", a.json["progress"].(map[string]any)["bytes_read"], any(float64(size)))

	// The file over which three owners die is named, and the heights of the others are read.
	p.kill()
	location = c.diesThrice(env, "heights of d0/t1.tif", dataset, "heights")
	p = startProcess(t, append(slices.Clone(env), "CAIRN_TEST_DIE_ON=heights of d0/t1.tif"))
	c.url = p.url
	check(t, "state after three deaths", c.finished(location).text("state"), stateSucceeded)
	check(t, "heights after three deaths", countRows(t, env, `heights IS NOT NULL`), 10)
	check(t, "reason", c.heightsOf(dataset, "d0/t1.tif").text("heights_reason"), "reading them ended the program")
	check(t, "reason of another file", c.heightsOf(dataset, "d1/t2.tif").text("heights_reason"), "it has no strips or tiles")
}

// TestSlowHeights: heights that take too long are not read, and not tried again.
func TestSlowHeights(t *testing.T) {
	t.Parallel()
	read := contentReads{ofHeights: true}
	ts := startServer(t, func(o *options) { o.beforeRead = read.note; o.heightTime = 1 })
	c := ts.signIn("root", "all")
	listedFolder{t, filepath.Join(ts.datasets, "d")}.write("x.tif", string(terrainTIFF(0, 0, hills).build()))
	dataset := c.addDataset("d")
	for range 2 {
		check(t, "state", c.analyze(dataset, withHeights).text("state"), stateSucceeded)
		check(t, "reason", c.heightsOf(dataset, "x.tif").text("heights_reason"), "reading them took longer than 1ns")
	}
	check(t, "read", read.take(), "x.tif")
}

// TestHungHeights: heights whose reading hangs have that reason, and those of the other files are read. The next analysis
// with heights tries again.
func TestHungHeights(t *testing.T) {
	t.Parallel()
	hang := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.patience = 200 * time.Millisecond
		o.beforeRead = func(path string) {
			if path == "heights of d0/t3.tif" {
				<-hang
			}
		}
	})
	c := ts.signIn("root", "all")
	listedFolder{t, filepath.Join(ts.datasets, "tiles")}.listTiles(1, 5)
	dataset := c.addDataset("tiles")
	check(t, "state", c.analyze(dataset, withHeights).text("state"), stateSucceeded)
	check(t, "reason", c.heightsOf(dataset, "d0/t3.tif").text("heights_reason"), "no answer within 200ms")
	check(t, "heights", ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta WHERE NOT heights ? 'again'`), 4)
	close(hang)
	c.analyze(dataset, withHeights)
	check(t, "heights after it", ts.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta WHERE NOT heights ? 'again'`), 5)
	check(t, "reason after it", c.heightsOf(dataset, "d0/t3.tif").text("heights_reason"), "it has no strips or tiles")
}

// TestWrongHeightsInFolder: an analysis with heights finds each planted fault with its file, and nothing else. Those who may
// not see the dataset see no finding.
func TestWrongHeightsInFolder(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	faults := heightFaults()
	planted := map[string]heightFault{} // by path
	_, contents := landscapeTiles(t, func(column, row int, f *pixelTIFF) {
		isPlace := column >= 8 && column%3 == 2 && row%3 == 0
		if isPlace && len(planted) < len(faults) {
			fault := faults[len(planted)]
			planted[tileName(column, row)] = fault
			fault.plant(f)
		}
	})
	check(t, "faults", len(planted), len(faults))
	for path, content := range contents {
		d.write(path, string(content))
	}
	dataset := c.addDataset("d")

	c.analyze(dataset, nil)
	report := c.must(200, "GET", dataset+"/report", nil)
	checkHas(t, "the report without heights", string(report.body), "Heights were not examined: 256 files not read yet.")
	c.analyze(dataset, withHeights)
	report = c.must(200, "GET", dataset+"/report", nil)
	checkLacks(t, "the report with heights", string(report.body), "Heights were not examined")
	found := map[string]bool{}
	for _, kind := range findingKinds() {
		for _, f := range c.must(200, "GET", dataset+"/findings/"+kind.code+"?limit=500", nil).items() {
			path, detail := f["path"].(string), f["detail"].(string)
			isOfTag := kind.code == "nodata" && planted[path].code == "undeclared_nodata"
			isRight := planted[path].code == kind.code && strings.HasPrefix(detail, planted[path].detail)
			if !isOfTag && !isRight {
				t.Errorf("%s: %s %s, want %s %s", path, kind.code, detail, planted[path].code, planted[path].detail)
			}
			found[path] = found[path] || isRight
		}
	}
	check(t, "files with a fault that was found", len(found), len(planted))

	c.must(201, "POST", permissionsPath, map[string]string{"name": "lidar.see", "meaning": "See them."})
	reader := ts.signIn("reader", datasetRead)
	reader.must(200, "GET", dataset+"/findings/seam", nil)
	c.must(200, "PATCH", dataset, map[string]any{"requires": "lidar.see"})
	reader.must(404, "GET", dataset+"/findings/seam", nil)
}
