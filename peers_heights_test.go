//go:build peers

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPeerHeights compares all heights of files that GDAL writes, and their statistics, with what GDAL reads of them.
func TestPeerHeights(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wide := heightSource(t, filepath.Join(dir, "wide.flt"), 301, 203)
	cell := heightSource(t, filepath.Join(dir, "cell.flt"), 1201, 1201)
	for i, c := range []struct{ source, name, arguments string }{
		{wide, "x.tif", ""},
		{wide, "x.tif", "-ot Float64 -co COMPRESS=DEFLATE -co PREDICTOR=3 -co TILED=YES -co BLOCKXSIZE=64 -co BLOCKYSIZE=32"},
		{wide, "x.tif", "-co COMPRESS=DEFLATE -co PREDICTOR=3 -co ENDIANNESS=BIG"},
		{wide, "x.tif", "-co COMPRESS=LZW -co PREDICTOR=3 -co BIGTIFF=YES"},
		{wide, "x.tif", "-ot Int16 -co COMPRESS=LZW -co PREDICTOR=2 -co ENDIANNESS=BIG -co TILED=YES"},
		{wide, "x.tif", "-ot Int32 -co COMPRESS=DEFLATE -co PREDICTOR=2 -co BIGTIFF=YES -co ENDIANNESS=BIG"},
		{wide, "x.tif", "-ot Int64 -co COMPRESS=DEFLATE"},
		{wide, "x.tif", "-ot UInt16 -a_nodata 7 -co NBITS=12 -co COMPRESS=PACKBITS"},
		{wide, "x.tif", "-ot Byte -scale -400 400 0 31 -a_nodata none -co NBITS=5"},
		{wide, "x.tif", "-ot UInt32 -a_nodata 7 -co NBITS=24"},
		{wide, "x.tif", "-a_nodata none -ot Float32 -co NBITS=16 -co COMPRESS=DEFLATE -co PREDICTOR=2"},
		{wide, "x.tif", "-b 1 -b 1 -b 1 -co INTERLEAVE=PIXEL -co COMPRESS=DEFLATE -co PREDICTOR=3"},
		{wide, "x.tif", "-b 1 -b 1 -co INTERLEAVE=BAND -co TILED=YES -co COMPRESS=LZW"},
		{wide, "x.tif", "-srcwin 0 0 301 203 -co TILED=YES -co SPARSE_OK=YES -co BLOCKXSIZE=16 -co BLOCKYSIZE=16"},
		{wide, "x.tif", "-a_nodata 0.1 -a_scale 0.5 -a_offset -20"},
		{wide, "x.asc", "-of AAIGrid -co SIGNIFICANT_DIGITS=9"},
		{wide, "x.bil", "-of EHdr -ot Int16"},
		{cell, "N46E007.hgt", "-of SRTMHGT -ot Int16"},
		{cell, "n46.dt1", "-of DTED -ot Int16"},
	} {
		t.Run(fmt.Sprintf("%s %s", c.name, c.arguments), func(t *testing.T) {
			folder := filepath.Join(dir, strconv.Itoa(i))
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(folder, c.name)
			gdal(t, "gdal_translate", append(append([]string{"-q"}, strings.Fields(c.arguments)...), c.source, name)...)
			compareHeights(t, name)
		})
	}
}

// TestPeerTiles: GDAL finds the heights of a raster in the tiles of its dataset, at their places, to 1/256 m.
func TestPeerTiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	name := filepath.Join(ts.datasets, "terrain", "a.tif")
	err := errors.Join(os.Mkdir(filepath.Dir(name), 0o755), os.WriteFile(name, terrainTIFF(0, 0, hills).build(), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	dataset := c.addDataset("terrain")
	c.analyze(dataset, nil)

	const zoom = 16
	description := filepath.Join(t.TempDir(), "tiles.xml")
	if err := os.WriteFile(description, fmt.Appendf(nil, `<GDAL_WMS>
		<Service name="TMS"><ServerUrl>%s%s/tiles/${z}/${x}/${y}.png?style=terrarium</ServerUrl></Service>
		<DataWindow><UpperLeftX>-20037508.34</UpperLeftX><UpperLeftY>20037508.34</UpperLeftY>
			<LowerRightX>20037508.34</LowerRightX><LowerRightY>-20037508.34</LowerRightY>
			<TileLevel>%d</TileLevel><TileCountX>1</TileCountX><TileCountY>1</TileCountY><YOrigin>top</YOrigin></DataWindow>
		<Projection>EPSG:3857</Projection><BlockSizeX>256</BlockSizeX><BlockSizeY>256</BlockSizeY><BandsCount>4</BandsCount>
		<UserPwd>any:%s</UserPwd></GDAL_WMS>`, c.url, dataset, zoom, ts.addToken("root", "gdal", datasetRead, datasetDownload).token), 0o644); err != nil {
		t.Fatal(err)
	}

	tile, x, y := c.middle(dataset, zoom)
	for _, step := range [][2]float64{{0, 0}, {-40, 30}, {25, -50}, {33, 61}} {
		column, row := math.Floor(x+step[0]), math.Floor(y+step[1])
		lon, lat := tile.position(column+0.5, row+0.5)
		values := strings.Fields(string(gdal(t, "gdallocationinfo", "-valonly", description,
			fmt.Sprint(float64(tile.x*tileSize)+column), fmt.Sprint(float64(tile.y*tileSize)+row))))
		var colours [3]float64
		for i := range colours {
			colours[i], err = strconv.ParseFloat(values[i], 64)
			if err != nil {
				t.Fatal(err)
			}
		}

		got := colours[0]*256 + colours[1] + colours[2]/256 - 32768
		place := fmt.Sprintf("%.9f,%.9f", lon, lat)
		want := c.must(200, "GET", "/api/v1/elevation?point="+place, nil).json["height"].(float64)
		check(t, fmt.Sprintf("height %v of a pixel at %s is %v", got, place, want), math.Abs(got-want) < 1.0/256+0.01, true)
	}
}

// heightSource writes a raster of heights with voids, below the sea too, and returns its name.
func heightSource(t *testing.T, name string, width, height int) string {
	t.Helper()
	var b []byte
	for y := range height {
		for x := range width {
			v := float32(300*math.Sin(float64(x)/37)*math.Cos(float64(y)/23)) + float32(x*y%11)/8
			if x > 20 && x < 90 && y < 40 || (x*y)%97 == 5 {
				v = -9999
			}
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	header := fmt.Sprintf("nrows %d\nncols %d\nulxmap 7\nulymap 47\nxdim %[3]v\nydim %[3]v\nnodata -9999\nbyteorder I\n", height, width, 1.0/1200)
	for path, content := range map[string][]byte{
		name:                                    b,
		strings.TrimSuffix(name, "flt") + "hdr": []byte(header),
		strings.TrimSuffix(name, "flt") + "prj": gdal(t, "gdalsrsinfo", "-o", "wkt_esri", "EPSG:4326"),
	} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// compareHeights compares one file.
func compareHeights(t *testing.T, name string) {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	beside := files{}
	for _, extension := range []string{"hdr", "prj"} {
		sidecar := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)) + "." + extension
		if text, err := os.ReadFile(filepath.Join(filepath.Dir(name), sidecar)); err == nil {
			beside[sidecar] = string(text)
		}
	}
	r, err := openBytes(filepath.Base(name), content, beside)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.read(t.Context(), window{0, 0, r.width, r.height})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.statistics(t.Context(), 200)
	if err != nil {
		t.Fatal(err)
	}

	// Each sample, as GDAL writes it in 64 bits.
	var open []string
	if filepath.Ext(name) == ".asc" {
		open = []string{"-oo", "DATATYPE=Float64"}
	}
	raw := filepath.Join(filepath.Dir(name), "raw.img")
	gdal(t, "gdal_translate", append(open, "-q", "-b", "1", "-ot", "Float64", "-of", "ENVI", name, raw)...)
	samples, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float64, len(samples)/8)
	if err := binary.Read(bytes.NewReader(samples), binary.LittleEndian, want); err != nil {
		t.Fatal(err)
	}

	var info struct {
		Bands []struct {
			NoDataValue *float64
			Metadata    map[string]map[string]string
		}
	}
	if err := json.Unmarshal(gdal(t, "gdalinfo", append(open, "-stats", "-json", name)...), &info); err != nil {
		t.Fatal(err)
	}
	nodata := info.Bands[0].NoDataValue
	differ := 0
	for i, v := range want {
		isVoid := math.IsNaN(v) || nodata != nil && math.Abs(v-*nodata) <= 4*math.Abs(*nodata)/(1<<23)
		same := got[i] == v*r.scale+r.offset
		if isVoid != math.IsNaN(got[i]) || !isVoid && !same {
			if differ++; differ < 5 {
				t.Errorf("sample %d is %v, want %v", i, got[i], v)
			}
		}
	}

	statistics := info.Bands[0].Metadata[""]
	if filepath.Ext(name) == ".bil" { // GDAL's driver EHdr keeps them elsewhere, with three digits
		return
	}
	figure := func(name string) float64 { return must(strconv.ParseFloat(statistics["STATISTICS_"+name], 64)) }
	near := func(what string, got height, want float64) {
		t.Helper()
		if math.Abs(float64(got)-want) > 1e-9*math.Max(1, math.Abs(want)) {
			t.Errorf("%s %v, want %v", what, got, want)
		}
	}
	near("minimum", s.Min, figure("MINIMUM")*r.scale+r.offset)
	near("maximum", s.Max, figure("MAXIMUM")*r.scale+r.offset)
	near("mean", s.Mean, figure("MEAN")*r.scale+r.offset)
	near("deviation", s.Deviation, figure("STDDEV")*r.scale)
	valid := 100 * float64(s.Samples-s.Voids) / float64(s.Samples)
	if math.Abs(valid-figure("VALID_PERCENT")) > 0.01 {
		t.Errorf("%v %% are valid, want %v", valid, figure("VALID_PERCENT"))
	}
}
