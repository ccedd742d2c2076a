//go:build peers

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Versions of the libraries, of npm, that read the tree and the files.
const (
	stacJSVersion    = "0.5.5"
	geotiffVersion   = "3.0.5"
	ogcClientVersion = "1.3.0"
)

// TestPeerJavaScript: libraries for JavaScript read the tree and a file with an API token. They are fetched once.
func TestPeerJavaScript(t *testing.T) {
	dir := t.TempDir()
	install := exec.Command("npm", "install", "--prefix", dir, "--cache", filepath.Join(dir, "cache"), "--ignore-scripts", "--no-audit", "--no-fund",
		"stac-js@"+stacJSVersion, "geotiff@"+geotiffVersion, "@camptocamp/ogc-client@"+ogcClientVersion)
	if output, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}

	ts, dataset, token, files := gdalTree(t, 4)
	ts.exec(`UPDATE elevation_dataset_file_meta SET modified_ns = (1700000000 + id) * 1000000000 + 123456789`)
	collection := "/collections" + strings.TrimPrefix(dataset, "/api/v1/datasets")
	node := func(t *testing.T, script string, args ...string) map[string]any {
		t.Helper()
		path := filepath.Join(dir, "script.mjs")
		if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		said := peer(t, token, "node", append([]string{path}, args...)...)
		found := map[string]any{}
		if err := json.Unmarshal([]byte(said), &found); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		return found
	}

	c := ts.client().as(token)
	tree := ts.url + stacPath
	var titles []string
	for i := range 16 {
		titles = append(titles, fmt.Sprintf("t%05d.tif", i))
	}
	extent := c.must(200, "GET", stacPath+collection, nil).json["extent"].(map[string]any)

	t.Run("stac-js", func(t *testing.T) {
		item := c.must(200, "GET", stacPath+collection+"/items/4", nil).json
		compareJSON(t, node(t, stacJSScript, tree), map[string]any{
			"titles":  titles,
			"counts":  []int{1, 16, 16, 16},
			"kinds":   []string{"Catalog", "Collection", "Feature"},
			"equal":   []bool{true, true},
			"up":      []string{tree + collection, tree + collection, tree, tree},
			"extent":  []any{extent["spatial"].(map[string]any)["bbox"].([]any)[0], []string{"2023-11-14T22:13:21.123Z", "2023-11-14T22:13:36.123Z"}},
			"summary": []string{"EPSG:25832"},
			"item":    []any{item["bbox"], "2023-11-14T22:13:24.123Z", "EPSG:25832"},
			"asset":   []any{"data", true, ts.url + dataset + "/data/t00003.tif", item["assets"].(map[string]any)["data"].(map[string]any)["file:size"]},
		})
	})

	t.Run("ogc-client", func(t *testing.T) {
		compareJSON(t, node(t, ogcClientScript, tree, strings.TrimPrefix(collection, "/collections/")), map[string]any{
			"info":        map[string]string{"title": "Cairn", "description": "Elevation files"},
			"conformance": stacConformance(),
			"collections": []any{[]any{map[string]any{"name": "1", "hasFeatures": true}}, []string{"1"}, []string{"1"}, []string{}},
			"collection":  []any{"tiles", []string{typeGeoJSON}, []string{"http://www.opengis.net/def/crs/OGC/1.3/CRS84"}, extent},
			"items":       titles[:10],
			"page":        titles[6:9],
			"sorted":      []string{"t00015.tif", "t00014.tif"},
			"box":         []string{"t00000.tif", "t00004.tif"},
			"time":        titles[9:],
			"item":        "t00002.tif",
			"query":       titles[5:6],
		})
	})

	t.Run("geotiff", func(t *testing.T) {
		for name, options := range map[string]string{
			"big.tif":   "-of GTiff -co BIGTIFF=YES -co ENDIANNESS=BIG",
			"cog.tif":   "-of COG -co COMPRESS=DEFLATE -co PREDICTOR=YES -co BLOCKSIZE=128",
			"tiled.tif": "-of GTiff -ot Float32 -co TILED=YES -co COMPRESS=LZW -co PREDICTOR=3",
		} {
			arguments := append(strings.Fields("-q -outsize 300 200 -r bilinear"), strings.Fields(options)...)
			gdal(t, "gdal_translate", append(arguments, filepath.Join(files, "t00000.tif"), filepath.Join(files, name))...)
		}
		ts.signIn("eve", datasetRead, datasetAnalyze).analyze(dataset, nil)

		want := map[string]any{}
		said := python(t, rasterScript, files)
		if err := json.Unmarshal([]byte(said), &want); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		want["statuses"] = []int{206} // each request is for a range
		compareJSON(t, node(t, geotiffScript, ts.url+dataset+"/data/"), want)
	})
}

// compareJSON checks that two objects are the same in JSON, field by field.
func compareJSON(t *testing.T, got, want map[string]any) {
	t.Helper()
	for _, object := range []map[string]any{got, want} {
		for name := range object {
			inGot, err := json.Marshal(got[name])
			check(t, name, err, nil)
			inWant, err := json.Marshal(want[name])
			check(t, name, err, nil)
			check(t, name, string(inGot), string(inWant))
		}
	}
}

// stacJSScript walks the tree with stac-js.
const stacJSScript = `
import create from "stac-js";

const read = async (url, options = {}) => {
  const headers = { Authorization: "Bearer " + process.env.TOKEN, "Content-Type": "application/json" };
  const response = await fetch(url, { ...options, headers });
  if (!response.ok) throw new Error(url + ": " + await response.text());
  const object = create(await response.json());
  object.setAbsoluteUrl(url);
  return object;
};
const pages = async (page) => {
  const items = [];
  for (;;) {
    items.push(...page.getAll());
    const next = page.getPaginationLinks().next;
    if (!next) return items;
    page = await read(next.getAbsoluteUrl(), next.method === "POST" ? { method: "POST", body: JSON.stringify(next.body) } : {});
  }
};

const catalog = await read(process.argv[2]);
const collections = await read(catalog.getApiCollectionsLink().getAbsoluteUrl());
const collection = await read(catalog.getChildLinks()[0].getAbsoluteUrl());
const byCollection = await pages(await read(collection.getApiItemsLink().getAbsoluteUrl() + "?limit=5"));
const byGet = await pages(await read(catalog.getSearchLink("GET").getAbsoluteUrl() + "?limit=7"));
const byPost = await pages(await read(catalog.getSearchLink("POST").getAbsoluteUrl(), { method: "POST", body: '{"limit": 9}' }));
const item = await read(byCollection[3].getSelfLink().getAbsoluteUrl());
const asset = item.getAssetWithRole("data");

console.log(JSON.stringify({
  titles: byCollection.map((item) => item.properties.title),
  counts: [collections.getAll().length, byCollection.length, byGet.length, byPost.length],
  kinds: [catalog.type, collection.type, item.type],
  equal: [collections.getAll()[0].equals(collection), item.equals(byCollection[3])],
  up: [item.getCollectionLink(), item.getParentLink(), item.getRootLink(), collection.getParentLink()].map((link) => link.getAbsoluteUrl()),
  extent: [collection.getBoundingBox(), collection.getTemporalExtent()],
  summary: collection.getSummary("proj:code"),
  item: [item.getBoundingBox(), item.getDateTime(), item.getMetadata("proj:code")],
  asset: [item.getDefaultGeoFile("geotiff").getKey(), asset.isHTTP, asset.getAbsoluteUrl(), asset.getMetadata("file:size")],
}));
`

// geotiffScript reads files with geotiff.js over HTTP.
const geotiffScript = `
import { fromUrl } from "geotiff";

const statuses = [];
const plainFetch = globalThis.fetch;
globalThis.fetch = async (url, options) => {
  const response = await plainFetch(url, options);
  statuses.push(response.status);
  return response;
};

const found = {};
for (const name of ["t00005.tif", "big.tif", "cog.tif", "tiled.tif"]) {
  const tiff = await fromUrl(process.argv[2] + name, { headers: { Authorization: "Bearer " + process.env.TOKEN } });
  const image = await tiff.getImage();
  const [x, y] = [image.getWidth() / 2, image.getHeight() / 2];
  const part = await image.readRasters({ window: [x, y, x + 4, y + 2], interleave: true });
  const sums = [];
  for (let i = 0; i < await tiff.getImageCount(); i++) {
    const pixels = await (await tiff.getImage(i)).readRasters({ interleave: true });
    sums.push(pixels.reduce((sum, pixel) => sum + pixel, 0));
  }
  found[name] = [
    image.getWidth(), image.getHeight(), image.getBoundingBox(),
    image.getGDALNoData(), image.getGeoKeys().ProjectedCSTypeGeoKey, Array.from(part), sums,
  ];
}
found.statuses = [...new Set(statuses)];
console.log(JSON.stringify(found));
`

// rasterScript reads the same as geotiffScript with GDAL.
const rasterScript = `
import sys, json, struct
from osgeo import gdal

def pixels(band, x, y, w, h):
    return struct.unpack(f"{w * h}d", band.ReadRaster(x, y, w, h, buf_type=gdal.GDT_Float64))

found = {}
for name in ["t00005.tif", "big.tif", "cog.tif", "tiled.tif"]:
    ds = gdal.Open(sys.argv[1] + "/" + name)
    band = ds.GetRasterBand(1)
    left, dx, _, top, _, dy = ds.GetGeoTransform()
    w, h = ds.RasterXSize, ds.RasterYSize
    levels = [band] + [band.GetOverview(i) for i in range(band.GetOverviewCount())]
    found[name] = [w, h, [left, top + h * dy, left + w * dx, top], band.GetNoDataValue(), int(ds.GetSpatialRef().GetAuthorityCode(None)),
        pixels(band, w // 2, h // 2, 4, 2), [sum(pixels(level, 0, 0, level.XSize, level.YSize)) for level in levels]]
print(json.dumps(found))
`

// ogcClientScript reads the tree with ogc-client as OGC API Features.
const ogcClientScript = `
import { OgcApiEndpoint, setFetchOptions } from "@camptocamp/ogc-client";

setFetchOptions({ headers: { Authorization: "Bearer " + process.env.TOKEN } });
const [url, id] = process.argv.slice(2);
const endpoint = new OgcApiEndpoint(url);
const titles = (items) => items.map((item) => item.properties.title);
const start = new Date("2023-11-14T22:13:30Z");
const collection = await endpoint.getCollectionInfo(id);
const byQuery = await fetch(
  await endpoint.getCollectionItemsUrl(id, { limit: 5, asJson: true, query: "q=00005&crs=EPSG:25832" }),
  { headers: { Authorization: "Bearer " + process.env.TOKEN } },
);

console.log(JSON.stringify({
  info: await endpoint.info,
  conformance: await endpoint.conformanceClasses,
  collections: [
    await endpoint.allCollections, await endpoint.featureCollections,
    await new OgcApiEndpoint(url + "/collections/" + id).featureCollections, await endpoint.recordCollections,
  ],
  collection: [collection.title, collection.itemFormats, collection.crs, collection.extent],
  items: titles(await endpoint.getCollectionItems(id)),
  page: titles(await endpoint.getCollectionItems(id, 3, 6)),
  sorted: titles(await endpoint.getCollectionItems(id, 2, 0, null, ["-datetime"])),
  box: titles(await endpoint.getCollectionItems(id, 10, 0, null, null, [9, 47.85, 9.001, 47.9])),
  time: titles(await endpoint.getCollectionItems(id, 10, 0, null, null, null, null, { start })),
  item: (await endpoint.getCollectionItem(id, "3")).properties.title,
  query: titles((await byQuery.json()).features),
}));
`
