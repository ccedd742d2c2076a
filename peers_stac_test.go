//go:build peers

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// gdalTree starts a service with a dataset of side × side GeoTIFFs of 20 × 20 pixels that GDAL wrote, in one grid of
// EPSG:25832. It returns the dataset, an API token that may read and download, and the folder.
func gdalTree(t *testing.T, side int) (ts *testServer, dataset, token, dir string) {
	t.Helper()
	ts = startServer(t, nil)
	dir = filepath.Join(ts.datasets, "tiles")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	python(t, `
import sys
from osgeo import gdal, osr
import math
dir, side = sys.argv[1], int(sys.argv[2])
srs = osr.SpatialReference(); srs.ImportFromEPSG(25832)
for i in range(side * side):
    ds = gdal.GetDriverByName("GTiff").Create(f"{dir}/t{i:05d}.tif", 20, 20, 1, gdal.GDT_Int16)
    ds.SetProjection(srs.ExportToWkt())
    ds.SetGeoTransform([500000 + 200 * (i % side), 10, 0, 5300000 - 200 * (i // side), 0, -10])
    band = ds.GetRasterBand(1)
    band.SetNoDataValue(-9999)
    band.WriteRaster(0, 0, 20, 20, b"".join(
        int(900 + 800 * math.sin(x / 90) * math.cos(y / 70) + 30 * math.sin(x * y)).to_bytes(2, "little", signed=True)
        for y in range(i // side * 20, i // side * 20 + 20) for x in range(i % side * 20, i % side * 20 + 20)))
`, dir, fmt.Sprint(side))
	c := ts.signIn("ada", datasetRead, datasetDownload, datasetManage, datasetAnalyze)
	dataset = c.addDataset("tiles")
	if a := c.analyze(dataset, nil); counts(a)[0] != side*side {
		t.Fatalf("%s", a.body)
	}
	return ts, dataset, ts.addToken("ada", "gis", datasetRead, datasetDownload).token, dir
}

// python runs a script with Debian's Python and returns what it prints.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	return peer(t, "", "/usr/bin/python3", append([]string{"-c", script}, args...)...)
}

// peer runs a program that gives an API token as the password of HTTP Basic, and returns what it prints.
func peer(t *testing.T, token, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home, "QT_QPA_PLATFORM=offscreen", "PYTHONPATH=", "GDAL_HTTP_USERPWD=any:"+token, "GDAL_HTTP_AUTH=BASIC", "TOKEN="+token)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %.200q: %v\n%s\n%s", program, args, err, output, stderr.String())
	}
	return string(output)
}

// pixel returns the value of a raster at a place in its CRS, by gdallocationinfo.
func pixel(t *testing.T, token, raster string, x, y float64) string {
	t.Helper()
	return strings.TrimSpace(peer(t, token, "gdallocationinfo", "-valonly", "-geoloc", raster, fmt.Sprint(x), fmt.Sprint(y)))
}

// TestPeerGDAL has GDAL open the tree as vectors and as rasters, and a file over HTTP: all with HTTP Basic.
func TestPeerGDAL(t *testing.T) {
	ts, dataset, token, dir := gdalTree(t, 10)
	id := strings.TrimPrefix(dataset, "/api/v1/datasets/")
	all := peer(t, token, "ogrinfo", "-ro", "-so", "OAPIF:"+ts.url+stacPath, id)
	if !strings.Contains(all, "Feature Count: 100\n") || !strings.Contains(all, "Geometry: Multi Polygon") || !strings.Contains(all, "title: String") {
		t.Error(all)
	}

	// The survey and the license of the dataset are fields of its files.
	ts.exec(`UPDATE datasets SET about = about || '{"license": "CC-BY-4.0", "surveyed_from": "2024-03-01", "surveyed_until": "2024-04-30"}'`)
	table := filepath.Join(t.TempDir(), "files.csv")
	if err := os.WriteFile(table, ts.client().as(token).must(200, "GET", dataset+"/files.csv", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	for source, fields := range map[string][]string{
		"OAPIF:" + ts.url + stacPath:                         {"license (String) = CC-BY-4.0", "start_datetime (DateTime) = 2024/03/01 00:00:00", "end_datetime (DateTime) = 2024/04/30 23:59:59"},
		ts.url + dataset + "/footprints.geojson?path=t00000": {"license (String) = CC-BY-4.0", "surveyed_from (Date) = 2024/03/01", "surveyed_until (Date) = 2024/04/30"},
		table: {"license (String) = CC-BY-4.0", "surveyed_from (String) = 2024-03-01", "surveyed_until (String) = 2024-04-30"},
	} {
		said := peer(t, token, "ogrinfo", "-ro", "-q", "-al", source)
		for _, field := range fields {
			if !strings.Contains(said, field) {
				t.Errorf("%s: no %q in %.3000s", source, field, said)
			}
		}
	}

	var box []float64 // of the first file
	c := ts.client().as(token)
	first := c.must(200, "GET", stacPath+"/collections/"+id+"/items?limit=1", nil).json["features"].([]any)[0].(map[string]any)
	for _, corner := range first["bbox"].([]any) {
		box = append(box, corner.(float64))
	}
	middle := []string{fmt.Sprint((box[0] + box[2]) / 2), fmt.Sprint((box[1] + box[3]) / 2), fmt.Sprint((box[0]+box[2])/2 + 1e-6), fmt.Sprint((box[1]+box[3])/2 + 1e-6)}
	if here := peer(t, token, "ogrinfo", append(append([]string{"-ro", "-so", "-spat"}, middle...), "OAPIF:"+ts.url+stacPath, id)...); !strings.Contains(here, "Feature Count: 1\n") {
		t.Error(here)
	}
	if one := peer(t, token, "ogrinfo", "-ro", "-so", "-where", "title = 't00042.tif'", "OAPIF:"+ts.url+stacPath, id); !strings.Contains(one, "Feature Count: 1\n") {
		t.Error(one)
	}
	x, y := 500000+200*5+55.0, 5300000-200*4-35.0 // in the file 45
	want := pixel(t, "", filepath.Join(dir, "t00045.tif"), x, y)
	for _, raster := range []string{
		"/vsicurl/" + ts.url + dataset + "/data/t00045.tif",
		fmt.Sprintf(`STACIT:"%s%s/collections/%s/items":asset=data`, ts.url, stacPath, id),
	} {
		if got := pixel(t, token, raster, x, y); got != want || want == "" {
			t.Errorf("%s: %q, want %q", raster, got, want)
		}
	}
	info := peer(t, token, "gdalinfo", fmt.Sprintf(`STACIT:"%s%s/collections/%s/items?crs=EPSG:25832":asset=data`, ts.url, stacPath, id))
	if !strings.Contains(info, "Size is 200, 200") || !strings.Contains(info, "Pixel Size = (10.0") || !strings.Contains(info, "Type=Int16") {
		t.Error(info)
	}
}

// TestPeerVRT compares the mosaic with that of gdalbuildvrt: it has the same pixels, also over HTTP, and to open it GDAL
// needs none of the files.
func TestPeerVRT(t *testing.T) {
	ts, dataset, token, dir := gdalTree(t, 32)
	theirs, ours := filepath.Join(dir, "..", "theirs.vrt"), filepath.Join(dir, "ours.vrt")
	files, err := filepath.Glob(filepath.Join(dir, "*.tif"))
	list := filepath.Join(dir, "..", "list")
	if err := errors.Join(err, os.WriteFile(list, []byte(strings.Join(files, "\n")), 0o644)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	peer(t, "", "gdalbuildvrt", "-q", "-input_file_list", list, theirs)
	built := time.Since(began)
	c := ts.client().as(token)
	if err := os.WriteFile(ours, c.must(200, "GET", dataset+"/mosaic.vrt?source=path", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	web := filepath.Join(dir, "..", "web.vrt")
	if err := os.WriteFile(web, c.must(200, "GET", dataset+"/mosaic.vrt", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	checksum := regexp.MustCompile(`Checksum=(\d+)`)
	sum := func(raster string) string {
		return strings.Join(checksum.FindAllString(peer(t, token, "gdalinfo", "-checksum", raster), -1), " ")
	}
	if want := sum(theirs); want == "" || sum(ours) != want {
		t.Errorf("ours has %q, theirs %q", sum(ours), want)
	}
	if got, want := pixel(t, token, web, 503015, 5298985), pixel(t, "", theirs, 503015, 5298985); got != want || want == "" {
		t.Errorf("over HTTP %q, want %q", got, want)
	}
	remote := "/vsicurl/" + ts.url + dataset + "/mosaic.vrt" // read in ranges
	if got, want := pixel(t, token, remote, 503015, 5298985), pixel(t, "", theirs, 503015, 5298985); got != want {
		t.Errorf("by its address %q, want %q", got, want)
	}
	if pictures := os.Getenv("CAIRN_TEST_PICTURES"); pictures != "" {
		colours := filepath.Join(dir, "..", "colours.txt")
		if err := os.WriteFile(colours, []byte("100 26 90 60\n400 82 140 80\n700 170 190 110\n1000 215 200 130\n1300 180 140 90\n1500 150 110 80\n1700 245 245 245\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		peer(t, token, "gdaldem", "color-relief", "-of", "PNG", "-nearest_color_entry", web, colours, filepath.Join(pictures, "gdal.png"))
	}
	const open = `
import sys, time
from osgeo import gdal
gdal.UseExceptions()
began = time.perf_counter()
if sys.argv[2:]: gdal.BuildVRT("/vsimem/built.vrt", open(sys.argv[2]).read().split("\n"))
else: gdal.Open(sys.argv[1])
print(time.perf_counter() - began)`
	t.Logf("gdalbuildvrt took %v; within GDAL, building takes %s s, opening ours %s s", built, strings.TrimSpace(python(t, open, "", list)), strings.TrimSpace(python(t, open, ours)))
	alone := filepath.Join(t.TempDir(), "ours.vrt") // without the files
	if err := os.WriteFile(alone, c.must(200, "GET", dataset+"/mosaic.vrt?source=path", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	python(t, open, alone)
}

// TestPeerCOG compares what Cairn says of GeoTIFFs with what GDAL's own check says.
func TestPeerCOG(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base.tif")
	gdal(t, "gdal_create", "-of", "GTiff", "-bands", "1", "-burn", "7", "-ot", "Int16", "-outsize", "1500", "1400", "-a_srs", "EPSG:25832", "-a_ullr", "500000", "5300000", "515000", "5286000", base)
	for name, args := range map[string]string{
		"cog.tif": "-of COG", "deflated.tif": "-of COG -co COMPRESS=DEFLATE -co BLOCKSIZE=256", "big.tif": "-of COG -co BIGTIFF=YES", "small.tif": "-of COG -outsize 200 200",
		"strips.tif": "-of GTiff", "tiled.tif": "-of GTiff -co TILED=YES", "overviews.tif": "-of GTiff -co TILED=YES -co COMPRESS=DEFLATE", "smalltiled.tif": "-of GTiff -outsize 300 300 -co TILED=YES",
	} {
		gdal(t, "gdal_translate", append(append([]string{"-q"}, strings.Fields(args)...), base, filepath.Join(dir, name))...)
	}
	gdal(t, "gdaladdo", "-q", filepath.Join(dir, "overviews.tif"), "2", "4")
	said := python(t, `
import sys, json, glob
from osgeo import gdal
from osgeo_utils.samples.validate_cloud_optimized_geotiff import validate
print(json.dumps({name.split("/")[-1]: len(validate(name)[0]) + len(validate(name)[1]) == 0 for name in glob.glob(sys.argv[1] + "/*.tif")}))`, dir)
	want := map[string]bool{}
	if err := json.Unmarshal([]byte(said), &want); err != nil || len(want) != 9 || !want["cog.tif"] || want["overviews.tif"] {
		t.Fatal(err, said)
	}
	out := &lockedBuffer{}
	if err := run(t.Context(), []string{"bbox", "--root", dir, dir}, nil, nil, out, out); err != nil {
		t.Fatal(err)
	}
	for path, row := range rowsByPath(t, []byte(out.String())) {
		if row.COG == nil || *row.COG != want[path] {
			t.Errorf("%s: GDAL says %v: %+v", path, want[path], row.extent)
		}
	}
}

// TestPeerRecipes runs the examples of docs/gis.md for GDAL and Python as they stand, but for the token.
func TestPeerRecipes(t *testing.T) {
	c := startUsed(t).openShell()
	first := examples(t, "docs/gis.md", "sh")[0]
	token := regexp.MustCompile(`cairn_pat_\S+`).FindString(c.run("sh", first, ""))
	withToken := func(language string) string {
		return strings.ReplaceAll(strings.Join(examples(t, "docs/gis.md", language), ""), "cairn_pat_…", token)
	}
	c.shows(c.run("bash", "set -euo pipefail\n"+withToken("bash"), ""),
		append(strings.Split(strings.TrimSpace(examples(t, "docs/gis.md", "text")[0]), "\n"), "Size is ", "Value: ")...)
	for _, name := range []string{"tiles.gpkg", "missing.gpkg", "mosaic.vrt"} {
		if info, err := os.Stat(filepath.Join(c.dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	script := filepath.Join(c.dir, "search.py")
	if err := os.WriteFile(script, []byte(strings.ReplaceAll(withToken("python"), "http://127.0.0.1:8080", c.url)), 0o600); err != nil {
		t.Fatal(err)
	}
	found := c.run("sh", "/usr/bin/python3 "+script, "")
	c.shows(found, "n46e007.tif [7", c.url+"/api/v1/datasets/1/data/n46e007.tif\n")
	if pictures := os.Getenv("CAIRN_TEST_PICTURES"); pictures != "" { // needs python3-matplotlib
		python(t, `
import re, sys
import matplotlib; matplotlib.use("Agg")
from matplotlib import pyplot
figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=100)
for i, (title, box) in enumerate(re.findall(r"(\S+) \[(.*?)\]", sys.argv[2])):
    west, south, east, north = map(float, box.split(","))
    axes.fill([west, east, east, west], [south, south, north, north], f"C{i}", alpha=0.3, edgecolor=f"C{i}")
    axes.text((west + east) / 2, (south + north) / 2, title, ha="center", va="bottom" if i % 2 else "top", color=f"C{i}", fontsize=9)
axes.plot([7, 8, 8, 7, 7], [46, 46, 47, 47, 46], "k--", label="the search")
axes.set_xlabel("longitude"); axes.set_ylabel("latitude"); axes.set_aspect(1.45); axes.legend(loc="upper right")
figure.savefig(sys.argv[1], bbox_inches="tight")`, filepath.Join(pictures, "python.png"), string(found))
	}
}

// TestPeerOWSLib has OWSLib walk the tree as OGC API Features.
func TestPeerOWSLib(t *testing.T) {
	ts, dataset, token, _ := gdalTree(t, 10)
	said := peer(t, token, "/usr/bin/python3", "-c", `
import os, sys, json
from owslib.ogcapi.features import Features
from owslib.util import Authentication
f = Features(sys.argv[1], auth=Authentication(username="any", password=os.environ["TOKEN"]))
id = sys.argv[2]
page = f.collection_items(id, limit=30)
box = page["features"][0]["bbox"]
x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
print(json.dumps([f.feature_collections(), f.conformance()["conformsTo"][0][-4:], f.collection(id)["type"], f.api()["openapi"], page["numberMatched"], page["numberReturned"],
  f.collection_items(id, bbox=[x, y, x, y])["numberMatched"], f.collection_item(id, page["features"][0]["id"])["properties"]["title"]]))`, ts.url+stacPath, strings.TrimPrefix(dataset, "/api/v1/datasets/"))
	if want := `[["1"], "core", "Collection", "3.0.3", 100, 30, 1, "t00000.tif"]`; strings.TrimSpace(said) != want {
		t.Errorf("%s\nwant %s", said, want)
	}
}

// TestPeerQGIS has QGIS open the tree as a layer of OGC API Features, and a file as a raster: its own dialog's way, with
// user name and password in the connection.
func TestPeerQGIS(t *testing.T) {
	ts, dataset, token, dir := gdalTree(t, 71)
	mosaic := filepath.Join(dir, "mosaic.vrt")
	if err := os.WriteFile(mosaic, ts.client().as(token).must(200, "GET", dataset+"/mosaic.vrt?source=path", nil).body, 0o644); err != nil {
		t.Fatal(err)
	}
	picture := ""
	if pictures := os.Getenv("CAIRN_TEST_PICTURES"); pictures != "" {
		picture = filepath.Join(pictures, "qgis.png")
	}
	said := peer(t, token, "/usr/bin/python3", "-c", `
import os, sys, json
from osgeo import gdal
from qgis.core import *
from qgis.PyQt.QtCore import QSize
from qgis.PyQt.QtGui import QColor, QImage
QgsApplication.setPrefixPath("/usr", True)
app = QgsApplication([], False)
app.initQgis()
url, id, raster, picture = sys.argv[1:5]
token = os.environ["TOKEN"]
layer = QgsVectorLayer(f"url='{url}' typename='{id}' username='any' password='{token}' restrictToRequestBBOX='1'", "tiles", "OAPIF")
assert layer.isValid(), layer.error().message()
count = layer.featureCount()
titles = [f["title"] for f in layer.getFeatures()]
box = next(layer.getFeatures()).geometry().boundingBox()
middle = QgsRectangle(box.center().x(), box.center().y(), box.center().x() + 1e-6, box.center().y() + 1e-6)
here = [f["title"] for f in layer.getFeatures(QgsFeatureRequest().setFilterRect(middle))]
one = [f["title"] for f in layer.getFeatures(QgsFeatureRequest().setFilterExpression("\"title\" = 't01234.tif'"))]
layer.setSubsetString("\"title\" = 't00042.tif'")
subset = [f["title"] for f in layer.getFeatures()]
layer.setSubsetString("")
tile = QgsRasterLayer(raster, "tile", "gdal")
assert tile.isValid(), tile.error().message()
value, ok = tile.dataProvider().sample(QgsPointXY(501055, 5299165), 1)
print(json.dumps([count, len(titles), len(set(titles)), len(here), one, subset, value]))
if picture:
    layer.setRenderer(QgsSingleSymbolRenderer(QgsFillSymbol.createSimple({"style": "no", "outline_color": "#33a02c", "outline_width": "0.15"})))
    mosaic = QgsRasterLayer(sys.argv[5], "mosaic", "gdal")
    settings = QgsMapSettings()
    settings.setLayers([layer, mosaic]); settings.setOutputSize(QSize(640, 480)); settings.setBackgroundColor(QColor("white"))
    settings.setDestinationCrs(QgsCoordinateReferenceSystem("EPSG:25832"))
    extent = QgsCoordinateTransform(layer.crs(), settings.destinationCrs(), QgsProject.instance()).transformBoundingBox(layer.extent())
    settings.setExtent(QgsRectangle(extent.xMinimum(), extent.yMaximum() - 4000, extent.xMinimum() + 5000, extent.yMaximum() + 200))
    job = QgsMapRendererParallelJob(settings); job.start(); job.waitForFinished()
    job.renderedImage().convertToFormat(QImage.Format_Indexed8).save(picture)
sys.stdout.flush()
os._exit(0) # QGIS crashes when Python clears up
`, ts.url+stacPath, strings.TrimPrefix(dataset, "/api/v1/datasets/"), "/vsicurl/"+ts.url+dataset+"/data/t00289.tif", picture, mosaic)
	want := fmt.Sprintf(`[5041, 5041, 5041, 1, ["t01234.tif"], ["t00042.tif"], %s.0]`, pixel(t, "", filepath.Join(dir, "t00289.tif"), 501055, 5299165))
	if strings.TrimSpace(said) != want {
		t.Errorf("%s\nwant %s", said, want)
	}
}

// TestSTACSchemas has stac-node-validator check the catalogue, a collection and items against the schemas in the
// directory CAIRN_STAC_SCHEMAS, which mirrors schemas.stacspec.org, stac-extensions.github.io, geojson.org and proj.org. It is for
// "make test-stac-schemas".
func TestSTACSchemas(t *testing.T) {
	schemas := os.Getenv("CAIRN_STAC_SCHEMAS")
	if schemas == "" {
		t.Fatal("CAIRN_STAC_SCHEMAS names no directory")
	}
	ts, dataset, token, _ := gdalTree(t, 3)
	ts.exec(`UPDATE elevation_dataset_file_meta SET sha256 = repeat('0a', 32), vertical_crs = 'EPSG:7837'`)
	ts.exec(`UPDATE datasets SET about = about || '{"license": "CC-BY-4.0", "surveyed_from": "2024-03-01", "surveyed_until": "2024-04-30"}'`)
	c := ts.client().as(token)
	collection := stacPath + "/collections" + strings.TrimPrefix(dataset, "/api/v1/datasets")
	empty := fmt.Sprintf("%s/collections/%d", stacPath, ts.addFiles("empty", nil))
	page := c.must(200, "GET", collection+"/items?limit=5", nil)
	objects := []any{c.must(200, "GET", stacPath, nil).json, c.must(200, "GET", collection, nil).json, c.must(200, "GET", empty, nil).json}
	objects = append(objects, page.json["features"].([]any)...)
	arguments := []string{"--yes", "stac-node-validator@2.0.0"}
	for i, object := range objects {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i, ".json"))
		encoded, err := json.Marshal(object)
		if err := errors.Join(err, os.WriteFile(file, encoded, 0o644)); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, file)
	}
	said := peer(t, "", "npx", append(arguments, "--schemaMap", "https://="+schemas+"/")...)
	if !strings.Contains(said, "Passed: 8\n") {
		t.Error(said)
	}
}

// TestPeerRasterLibraries has rasterio, and terra of R, read a file and the mosaic by their addresses, with HTTP Basic. They
// say what GDAL says of the files on the disk.
func TestPeerRasterLibraries(t *testing.T) {
	ts, dataset, token, dir := gdalTree(t, 4)
	data := "/vsicurl/" + ts.url + dataset
	addresses := []string{data + "/data/t00005.tif", data + "/mosaic.vrt"}
	want := python(t, `
import glob, sys
from osgeo import gdal
gdal.UseExceptions()
gdal.BuildVRT("/vsimem/all.vrt", glob.glob(sys.argv[1] + "/*.tif"))
for name in [sys.argv[1] + "/t00005.tif", "/vsimem/all.vrt"]:
    raster = gdal.Open(name)
    pixels = raster.ReadAsArray()
    print("EPSG:25832", raster.RasterXSize, raster.RasterYSize, int(pixels.sum()), pixels[3, 7])`, dir)

	scripts := map[string]string{
		"/usr/bin/python3 -c": `
import rasterio, sys
for name in sys.argv[1:]:
    with rasterio.open(name) as raster:
        pixels = raster.read(1)
        print(raster.crs, raster.width, raster.height, pixels.sum(), pixels[3, 7])`,
		"Rscript -e": `
library(terra)
for (name in commandArgs(TRUE)) {
  raster <- rast(name)
  code <- crs(raster, describe = TRUE)
  cat(paste0(code$authority, ":", code$code), ncol(raster), nrow(raster), sum(values(raster)), raster[4, 8][[1]])
  cat("\n")
}`,
	}
	for program, script := range scripts {
		command, option, _ := strings.Cut(program, " ")
		got := peer(t, token, command, append([]string{option, script}, addresses...)...)
		check(t, command, got, want)
	}
}
