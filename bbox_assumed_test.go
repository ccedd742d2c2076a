package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// plainExtent returns an extent as JSON, without what may differ between a CRS that a file names and one that is set.
func plainExtent(t *testing.T, m extent) string {
	t.Helper()
	m.CRSName = nil
	m.Source = nil
	m.withdrawPlace()
	text, err := json.MarshalIndent(struct {
		extent
		Footprint multiPolygon
	}{m, m.footprint()}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAssume: a CRS that is set for a file gives the same extent as the same CRS in a .prj beside it, also if another
// one was set before. Without one, the extent is as the file says.
func TestAssume(t *testing.T) {
	t.Parallel()
	grid := func(x, y, cell float64) string {
		return fmt.Sprintf("ncols 4\nnrows 3\nxllcorner %v\nyllcorner %v\ncellsize %v\n1 2 3 4 5 6 7 8 9 10 11 12\n", x, y, cell)
	}
	tags := []testTag{doubles(tagModelPixelScale, 25, 25, 0), doubles(tagModelTiepoint, 0, 0, 0, 700000, 6600000, 0)}
	tiff := string(testTIFF{order: binary.LittleEndian, tags: with(testSize(), tags)}.build())
	points := string(testTIFF{order: binary.LittleEndian, tags: with(testSize(), tags, geoKeyTag([4]float64{keyRasterType, 0, 1, rasterPixelIsPoint}))}.build())
	plain := string(testTIFF{order: binary.LittleEndian, tags: testSize()}.build())

	for _, c := range []struct {
		name, file string
		beside     files
		codes      string
		status     string // with the first code
	}{
		{"an ASCII grid", "a.asc", files{"a.asc": grid(700000, 6600000, 25)}, "2154 32631 2157", fileStatusOK},
		{"in degrees", "N20E010.asc", files{"N20E010.asc": grid(10, 20, 0.25)}, "4326 4258", fileStatusOK},
		{"with another cell in its name", "N45E007.asc", files{"N45E007.asc": grid(10, 20, 0.25)}, "4326", fileStatusOK},
		{"in feet", "a.asc", files{"a.asc": grid(6000000, 2000000, 100)}, "2227 2154", fileStatusOK},
		{"axes to the south and west", "a.asc", files{"a.asc": grid(1000, 2000, 10)}, "8044 8045", fileStatusOK},
		{"across 180 degrees", "a.asc", files{"a.asc": grid(179, -17, 1)}, "4326", fileStatusOK},
		{"of WGS 84 with heights", "a.asc", files{"a.asc": grid(10, 20, 1)}, "4979", fileStatusOK},
		{"outside the area of use", "a.asc", files{"a.asc": grid(0, 0, 25)}, "2154", fileStatusOK},
		{"beyond the projection", "a.asc", files{"a.asc": grid(1e9, 1e9, 25)}, "2154 3857", fileStatusNoBBox},
		{"cut off", "a.asc", files{"a.asc": "ncols 4\nnrows 3\nxllcorner 700000\nyllcorner 6600000\ncellsize 25\n1 2\n"}, "2154", fileStatusCorrupt},
		{"a GeoTIFF", "a.tif", files{"a.tif": tiff}, "2154", fileStatusOK},
		{"a GeoTIFF of points", "a.tif", files{"a.tif": points}, "2154", fileStatusOK},
		{"a TIFF with a world file", "a.tif", files{"a.tif": plain, "a.tfw": "25\n0\n0\n-25\n700000\n6600000\n"}, "2154", fileStatusOK},
		{"a TIFF without a place", "a.tif", files{"a.tif": plain}, "2154", fileStatusNoGeoref},
		{"a raw raster", "a.bil", files{"a.bil": "123456789012", "a.hdr": "ncols 4\nnrows 3\nulxmap 700000\nulymap 6600000\nxdim 25\nydim 25\n"}, "2154", fileStatusOK},
		{"text", "a.txt", files{"a.txt": "hello"}, "2154", fileStatusUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l lastCRS
			alone := c.beside.read(c.file, 0)
			set := c.beside.read(c.file, 0)
			for i, code := range strings.Fields(c.codes) {
				named := files{}
				for name, content := range c.beside {
					named[name] = content
				}
				unit := "" // that of the code
				if code == "2227" {
					unit = `UNIT["US survey foot",0.3048006096012192],`
				}
				named[c.file[:len(c.file)-4]+".prj"] = `COMPD_CS["x",PROJCS["x",` + unit + `AUTHORITY["EPSG","` + code + `"]],VERT_CS["y",AUTHORITY["EPSG","5720"]]]`
				want := named.read(c.file, 0)

				set.assume("EPSG:"+code, "EPSG:5720", c.file, &l)
				if code == "4979" {
					want.VerticalCRS = nil // it is one already
				}
				check(t, "with EPSG:"+code, plainExtent(t, set), plainExtent(t, want))
				if i == 0 {
					check(t, "status", set.Status, c.status)
				}
				if set.LacksCRS {
					checkHas(t, "source", *set.Source, "; CRS set for the dataset")
				}
			}

			set.assume("", "", c.file, &l)
			alone.withdrawPlace()
			if !reflect.DeepEqual(set, alone) {
				t.Errorf("without a CRS again: %+v, want %+v", set, alone)
			}
		})
	}
}

// TestAssumeOnlyWhatIsMissing: what a file says of its CRS stays. Its heights get a vertical CRS if it names none.
func TestAssumeOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	const grid = "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n1 2 3 4 5 6 7 8 9 10 11 12\n"
	for _, c := range []struct{ name, prj, crs, vertical, source string }{
		{"a CRS", `GEOGCS["x",AUTHORITY["EPSG","4258"]]`, "EPSG:4258", "EPSG:5720", "the header of the ASCII grid; CRS from a.prj; vertical CRS set for the dataset"},
		{"both", `COMPD_CS["x",GEOGCS["x",AUTHORITY["EPSG","4258"]],VERT_CS["y",AUTHORITY["EPSG","5773"]]]`, "EPSG:4258", "EPSG:5773", "the header of the ASCII grid; CRS from a.prj"},
		{"a CRS that cannot be used", `GEOCCS["x",AUTHORITY["EPSG","4978"]]`, "", "EPSG:5720", "the header of the ASCII grid; CRS from a.prj; vertical CRS set for the dataset"},
		{"none", "", "EPSG:2154", "EPSG:5720", "the header of the ASCII grid; CRS set for the dataset; vertical CRS set for the dataset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			here := files{"a.asc": grid}
			if c.prj != "" {
				here["a.prj"] = c.prj
			}
			m := here.read("a.asc", 0)
			m.assume("EPSG:2154", "EPSG:5720", "a.asc", new(lastCRS))
			crs := ""
			if m.CRS != nil {
				crs = *m.CRS
			}
			check(t, "CRS", crs, c.crs)
			check(t, "vertical CRS", *m.VerticalCRS, c.vertical)
			check(t, "source", *m.Source, c.source)
		})
	}
}
