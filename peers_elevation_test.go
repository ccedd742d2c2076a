//go:build peers

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// locatedFile is a raster that heightScript writes, in a place where heights are asked for.
type locatedFile struct {
	Name      string     `json:"name"`
	EPSG      int        `json:"epsg"`
	Transform [6]float64 `json:"transform"`
	Driver    string     `json:"driver"`
	Type      string     `json:"type"`
	Options   string     `json:"options"`

	// Ways is how places are given to GDAL: in degrees on WGS 84; by coordinates, because the raster goes beyond 180°; or by
	// coordinates, because the datum is another one. The last ones are given to Cairn by its own shift.
	Ways string `json:"ways"`
}

// locatedFiles returns rasters in CRSs of all kinds, across 180° and at the poles too, in several formats and layouts.
func locatedFiles() []locatedFile {
	const inDegrees, beyond, shifted = "degrees", "beyond", "shifted"
	at := func(x, y, pixel float64) [6]float64 { return [6]float64{x, pixel, 0, y, 0, -pixel} }
	const cell = 1.0 / 1200
	return []locatedFile{
		{"utm.tif", 32632, at(500000, 5400000, 10), "GTiff", "Float32", "TILED=YES BLOCKXSIZE=64 BLOCKYSIZE=64 COMPRESS=DEFLATE PREDICTOR=3", inDegrees},
		{"turned.tif", 32632, [6]float64{500000, 8, 3, 5200000, 3, -8}, "GTiff", "Float32", "COMPRESS=LZW PREDICTOR=3", inDegrees},
		{"south.asc", 32733, at(300000, 6200000, 5), "AAIGrid", "Int16", "", inDegrees},
		{"utm_across_180.tif", 32660, at(664000, 6655000, 15), "GTiff", "Int16", "COMPRESS=DEFLATE PREDICTOR=2", inDegrees},
		{"lambert.tif", 2154, at(700000, 6600000, 25), "GTiff", "Float32", "COMPRESS=PACKBITS ENDIANNESS=BIG", inDegrees},
		{"europe.tif", 3035, at(4800000, 3000000, 25), "GTiff", "Float64", "COMPRESS=DEFLATE PREDICTOR=3", inDegrees},
		{"south_pole.tif", 3031, at(-20000, 15000, 100), "GTiff", "Float32", "", inDegrees},
		{"north_pole.tif", 3413, at(-200, 29900, 100), "GTiff", "Float32", "TILED=YES COMPRESS=LZW", inDegrees},
		{"degrees_at_pole.tif", 4326, [6]float64{30, 0.01, 0, 90, 0, -cell}, "GTiff", "Float32", "", inDegrees},
		{"mercator.tif", 3857, at(900000, 6600000, 30), "GTiff", "Float32", "BIGTIFF=YES", inDegrees},
		{"mercator_across_180.tif", 3857, at(20034508, 1000000, 20), "GTiff", "Float32", "", beyond},
		{"degrees_across_180.tif", 4326, at(179.9, -17, 1.0/2000), "GTiff", "Float32", "", beyond},
		{"N46E007.hgt", 4326, at(7-cell/2, 47+cell/2, cell), "SRTMHGT", "Int16", "", inDegrees},
		{"new_zealand.tif", 2193, at(1600000, 5430000, 8), "GTiff", "Float32", "", inDegrees},
		{"albers.tif", 5070, at(200000, 1900000, 30), "GTiff", "Float32", "INTERLEAVE=BAND", inDegrees},
		{"nad27.tif", 4267, at(-98.5, 39.5, cell), "GTiff", "Float32", "", shifted},
		{"paris_in_grads.tif", 4807, at(0.5, 54, 0.001), "GTiff", "Float32", "", shifted},
		{"swiss.tif", 2056, at(2600000, 1200000, 10), "GTiff", "Float32", "", shifted},
		{"british.tif", 27700, at(400000, 300000, 50), "GTiff", "Float32", "", shifted},
		{"krovak.tif", 5514, at(-700000, -1050000, 50), "GTiff", "Float32", "", shifted},
		{"dutch.tif", 28992, at(155000, 463000, 5), "GTiff", "Float32", "", shifted},
	}
}

// heightScript writes the rasters of its input, which is a locatedFile a line, into folders of their names. For each it prints
// places in and around the raster, one in 20 on the edge of a sample, with the heights there as NumPy computes them. For
// the places on an edge these are the samples on either side.
const heightScript = `
import json, math, os, sys
import numpy
from osgeo import gdal, osr
gdal.UseExceptions()
random = numpy.random.default_rng(7)

def keys(d): # Keys (1981), equation 4, with a = -1/2
    d = abs(d)
    return numpy.where(d < 1, 1.5 * d**3 - 2.5 * d**2 + 1, numpy.where(d < 2, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2, 0))

def blend(a, x, y, kernel, reach): # the kernel over the samples around, those at the raster's edge again beyond it
    h = numpy.zeros(len(x))
    for j in range(1 - reach, 1 + reach):
        for i in range(1 - reach, 1 + reach):
            column, row = numpy.floor(x - 0.5) + i, numpy.floor(y - 0.5) + j
            at = a[row.clip(0, a.shape[0] - 1).astype(int), column.clip(0, a.shape[1] - 1).astype(int)]
            h += at * kernel(x - 0.5 - column) * kernel(y - 0.5 - row)
    return h

def nearest(a, x, y):
    column, row = math.floor(x), math.floor(y)
    inside = 0 <= column < a.shape[1] and 0 <= row < a.shape[0]
    return a[row, column] if inside else numpy.nan

def plain(v):
    return None if math.isnan(v) else float(v)

for line in sys.stdin:
    f = json.loads(line)
    width, height = (1201, 1201) if f['driver'] == 'SRTMHGT' else (400, 300)
    srs = osr.SpatialReference()
    srs.ImportFromEPSG(f['epsg'])
    srs.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)

    row, column = numpy.mgrid[0:height, 0:width]
    a = 300 * numpy.sin(column / 37) * numpy.cos(row / 23) + 40 * numpy.sin(column / 5 + row / 7)
    a[40:70, 100:160] = -32768
    memory = gdal.GetDriverByName('MEM').Create('', width, height, 1, gdal.GetDataTypeByName(f['type']))
    memory.SetProjection(srs.ExportToWkt())
    memory.SetGeoTransform(f['transform'])
    memory.GetRasterBand(1).SetNoDataValue(-32768)
    memory.GetRasterBand(1).WriteArray(a)
    folder = os.path.join(sys.argv[1], f['name'].split('.')[0])
    os.mkdir(folder)
    gdal.GetDriverByName(f['driver']).CreateCopy(os.path.join(folder, f['name']), memory, options=f['options'].split())
    a = memory.ReadAsArray().astype(float)
    a[a == -32768] = numpy.nan

    # Places in pixels, in the file's CRS, and in degrees: on WGS 84, or on the file's own datum from its own meridian. PROJ's way
    # to degrees is a series in some projections, 0.1 mm off, so the places are those that the way back leads to.
    x, y = random.uniform(-0.03, 1.03, 1000) * width, random.uniform(-0.03, 1.03, 1000) * height
    edges = numpy.arange(1000) % 20 == 0
    x[edges] = x[edges].round()
    t = f['transform']
    X, Y = t[0] + t[1] * x + t[2] * y, t[3] + t[4] * x + t[5] * y
    base = srs.CloneGeogCS()
    if f['ways'] != 'shifted':
        base.ImportFromEPSG(4326)
    base.SetAxisMappingStrategy(osr.OAMS_TRADITIONAL_GIS_ORDER)
    degrees = numpy.array(osr.CoordinateTransformation(srs, base).TransformPoints(list(zip(X, Y))))[:, :2]
    if f['ways'] != 'beyond':
        back = numpy.array(osr.CoordinateTransformation(base, srs).TransformPoints(degrees.clip([-999, -90], [999, 90])))
        X, Y = back[:, 0], back[:, 1]
    t = gdal.InvGeoTransform(t)
    x, y = t[0] + t[1] * X + t[2] * Y, t[3] + t[4] * X + t[5] * Y
    degrees *= math.degrees(base.GetAngularUnits())

    outside = (x < 0) | (x > width) | (y < 0) | (y > height)
    h = numpy.array([nearest(a, *p) for p in zip(x, y)])
    linear = blend(a, x, y, lambda d: 1 - abs(d), 1)
    linear = numpy.where(numpy.isnan(linear), h, linear)
    cubic = blend(a, x, y, keys, 2)
    cubic = numpy.where(numpy.isnan(cubic), linear, cubic)
    linear[outside] = cubic[outside] = numpy.nan
    for i in range(1000):
        if abs(degrees[i, 1]) > 90:
            continue
        near = {plain(nearest(a, x[i] + d, y[i])) for d in ((-0.001, 0.001) if edges[i] else (0,))}
        print(json.dumps({'file': f['name'], 'at': [X[i], Y[i]], 'degrees': degrees[i].tolist(), 'isOutside': bool(outside[i]),
            'near': sorted(near, key=str), 'bilinear': plain(linear[i]), 'cubic': plain(cubic[i])}))
`

// heightPlace is a place of heightScript. A height is nil where there is none.
type heightPlace struct {
	File      string
	At        [2]float64
	Degrees   [2]float64
	IsOutside bool
	Near      []*float64
	Bilinear  *float64
	Cubic     *float64
}

// piped runs a program on an input, and returns its output.
func piped(t *testing.T, input []byte, program string, arguments ...string) []byte {
	t.Helper()
	command := exec.Command(program, arguments...)
	var complaints bytes.Buffer
	command.Stdin, command.Stderr = bytes.NewReader(input), &complaints
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, arguments, err, complaints.String())
	}
	return output
}

// heightsBy returns the heights at places by GDAL: the sample that each lies in.
func heightsBy(t *testing.T, name string, f locatedFile, places []heightPlace) (heights []*float64) {
	t.Helper()
	option := "-geoloc"
	var input []byte
	for _, p := range places {
		at := p.At
		if f.Ways == "degrees" {
			option = "-wgs84"
			at = p.Degrees
		}
		input = fmt.Appendf(input, "%.17g %.17g\n", at[0], at[1])
	}

	output := piped(t, input, "gdallocationinfo", "-valonly", option, name)
	for line := range strings.SplitSeq(strings.TrimSuffix(string(output), "\n"), "\n") {
		height, err := strconv.ParseFloat(line, 64)
		if err != nil || height == -32768 { // a line without a number lies outside
			heights = append(heights, nil)
		} else {
			heights = append(heights, &height)
		}
	}
	check(t, f.Name+": heights by GDAL", len(heights), len(places))
	return heights
}

// isHeight reports whether heights are equal, to a micrometre. Both may be nil.
func isHeight(a, b *float64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return math.Abs(*a-*b) <= 1e-6
}

// heightOf returns the height in an answer, nil if there is none.
func heightOf(item map[string]any) *float64 {
	height, isNumber := item["height"].(float64)
	if !isNumber {
		return nil
	}
	return &height
}

// TestPeerElevation asks for heights at 20,000 places in 17 CRSs. The nearest samples are those of GDAL, and what lies between
// samples is what NumPy computes. On the edge of two samples, either may be the nearest, as the coordinates are rounded.
func TestPeerElevation(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	var specifications []byte
	for _, f := range locatedFiles() {
		specifications = append(append(specifications, must(json.Marshal(f))...), '\n')
	}
	places := map[string][]heightPlace{}
	for line := range bytes.Lines(piped(t, specifications, "/usr/bin/python3", "-c", heightScript, ts.datasets)) {
		var p heightPlace
		if err := json.Unmarshal(line, &p); err != nil {
			t.Fatal(err)
		}
		places[p.File] = append(places[p.File], p)
	}

	total, onEdge, apart, between, wrong := 0, 0, 0, 0, 0
	for _, f := range locatedFiles() {
		folder, _, _ := strings.Cut(f.Name, ".")
		dataset := c.addDataset(folder)
		c.analyze(dataset, nil)
		row := c.files(dataset)[f.Name]
		crs, shift, isKnown := row.knownCRS()
		if !isKnown {
			t.Fatalf("%s: %s %s", f.Name, row.Status, value(row.Reason))
		}

		var points [][2]float64
		for _, p := range places[f.Name] {
			lon, lat := p.Degrees[0], p.Degrees[1]
			if f.Ways == "shifted" {
				lon, lat = shift.toWGS84(crs.ellipsoid, lon+crs.primeMeridian, lat)
			}
			points = append(points, [2]float64{math.Remainder(lon, 360), lat})
		}
		got := func(way string) []map[string]any {
			id := must(strconv.Atoi(filepath.Base(dataset)))
			return c.must(200, "POST", "/api/v1/elevation", map[string]any{"points": points, "dataset": id, "interpolation": way}).items()
		}
		theirs := heightsBy(t, filepath.Join(ts.datasets, folder, f.Name), f, places[f.Name])
		nearest, bilinear, cubic := got("nearest"), got("bilinear"), got("cubic")

		for i, p := range places[f.Name] {
			compare := func(way string, items []map[string]any, want ...*float64) {
				got := heightOf(items[i])
				isRight := slices.ContainsFunc(want, func(want *float64) bool { return isHeight(got, want) })
				isOutside := items[i]["reason"] == "no file covers the point"
				if !isRight || isOutside != p.IsOutside && len(want) == 1 {
					if wrong++; wrong <= 20 {
						t.Errorf("%s: %s at %v: %v, want one of %s", f.Name, way, points[i], items[i], must(json.Marshal(want)))
					}
				}
			}
			total++
			if len(p.Near) > 1 {
				onEdge++
				apart += int(btof(!isHeight(heightOf(nearest[i]), theirs[i])))
				compare("nearest", nearest, p.Near...)
				continue
			}
			compare("nearest", nearest, theirs[i])
			compare("bilinear", bilinear, p.Bilinear)
			compare("cubic", cubic, p.Cubic)
			between += 2
		}
	}
	t.Logf("%d places; %d on the edge of two samples, of which GDAL takes the other one at %d; %d heights between samples; %d wrong",
		total, onEdge, apart, between, wrong)
	if total < 20_000 || onEdge < 800 || wrong > 0 {
		t.Errorf("%d places, %d on an edge, %d wrong", total, onEdge, wrong)
	}
}
