package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// metadataTag returns GDAL's tag of metadata with these items.
func metadataTag(items ...string) testTag {
	return asciiTag(tagGDALMetadata, "<GDALMetadata>\n"+strings.Join(items, "\n")+"\n</GDALMetadata>\n\x00")
}

// metadataItem returns an item of a band, as GDAL writes it.
func metadataItem(role, value string, sample int) string {
	return fmt.Sprintf(`  <Item name="%s" sample="%d" role="%s">%s</Item>`, strings.ToUpper(role), sample, role, value)
}

// heightsOf returns unit, scale and offset of a file as text, and its warnings.
func heightsOf(m extent) string {
	number := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprint(*v)
	}
	return fmt.Sprint(value(m.Unit), " ", number(m.Scale), " ", number(m.Offset), " ", strings.Join(m.Warnings, "; "))
}

// TestHeights has a case for every rule of GDAL's metadata and of the .aux.xml. Each is read in every kind of TIFF.
func TestHeights(t *testing.T) {
	unit, scale, offset := metadataItem("unittype", "m", 0), metadataItem("scale", "0.1", 0), metadataItem("offset", "-100", 0)
	const notFinite = "the scale or offset %q of its heights is not a finite number"
	for _, c := range []struct {
		name string
		tag  []testTag
		aux  string
		want string
	}{
		{"nothing", nil, "", " - - "},
		{"all three", with(metadataTag(unit, scale, offset)), "", "m 0.1 -100 "},
		{"among other items", with(metadataTag("<Item name=\"a\">b</Item>", unit, scale)), "", "m 0.1 - "},
		{"of the second band", with(metadataTag(metadataItem("unittype", "m", 1), metadataItem("scale", "2", 1))), "", " - - "},
		{"the last of two", with(metadataTag(unit, metadataItem("unittype", "ft", 0))), "", "ft - - "},
		{"the role counts, not the name", with(metadataTag(`<Item name="SCALE" sample="0" role="x">9</Item>`)), "", " - - "},
		{"a role in capitals", with(metadataTag(`<Item name="x" sample="0" role="UNITTYPE">ft</Item>`)), "", "ft - - "},
		{"with blanks", with(metadataTag(metadataItem("unittype", " \n m\t", 0), metadataItem("scale", " 2 ", 0))), "", "m 2 - "},
		{"a decimal comma", with(metadataTag(metadataItem("scale", "0,5", 0))), "", " 0.5 - "},
		{"not a number", with(metadataTag(metadataItem("scale", "nan", 0), metadataItem("offset", "0x10", 0))), "",
			" - - " + fmt.Sprintf(notFinite, "nan") + "; " + fmt.Sprintf(notFinite, "0x10")},
		{"infinite", with(metadataTag(metadataItem("scale", "1e999", 0), offset)), "", " - -100 " + fmt.Sprintf(notFinite, "1e999")},
		{"a long unit", with(metadataTag(metadataItem("unittype", strings.Repeat("é", 5000), 0))), "", strings.Repeat("é", 50) + " - - "},
		{"control characters", with(metadataTag(metadataItem("unittype", "a&#x9;b&#x85;c", 0))), "", "a b c - - "},
		{"cut off", with(asciiTag(tagGDALMetadata, "<GDALMetadata>"+unit+scale+"<It")), "", "m 0.1 - "},
		{"longer than what is read", with(metadataTag(unit, strings.Repeat("<Item>0</Item>", 5000), scale)), "", "m - - "},
		{"entities without end", with(asciiTag(tagGDALMetadata, "<!DOCTYPE a [<!ENTITY b '&b;&b;'>]><GDALMetadata>&b;"+unit)), "", " - - "},
		{"nested without end", with(asciiTag(tagGDALMetadata, strings.Repeat("<a>", 5000))), "", " - - "},
		{"not XML", with(asciiTag(tagGDALMetadata, "\x00\xff<<<")), "", " - - "},
		{"numbers", with(longs(tagGDALMetadata, 1, 2, 3)), "", " - - TIFF tag 42112 has field type 4, which is not text"},
		{"the .aux.xml", nil, "<UnitType>ft</UnitType><Offset>5</Offset><Scale>2</Scale>", "ft 2 5 "},
		{"the tag before the .aux.xml, as in GDAL", with(metadataTag(unit)), "<UnitType>ft</UnitType><Scale>2</Scale>", "m 2 - "},
		{"scale and offset of one source", with(metadataTag(offset)), "<UnitType>ft</UnitType><Scale>2</Scale>", "ft - -100 "},
		{"not a number in the .aux.xml", nil, "<Scale>abc</Scale>", " - - " + fmt.Sprintf(notFinite, "abc")},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range testTIFFKinds(with(testSize(), testPlace(), testKeys(), c.tag)) {
				other := `<PAMRasterBand band="2"><UnitType>x</UnitType></PAMRasterBand>`
				beside := files{"x.tif": string(f.build()), "x.tif.aux.xml": `<PAMDataset><PAMRasterBand band="1">` + c.aux + "</PAMRasterBand>" + other + "</PAMDataset>"}
				m := beside.read("x.tif", 0)
				if got := heightsOf(m); got != c.want || m.Status != fileStatusOK {
					t.Errorf("%v big %v: %s %q, want %q", f.order, f.big, m.Status, got, c.want)
				}
				checkRow(t, m)
			}
		})
	}
	grid := files{
		"x.asc":         "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 49.25\ndx 0.5\ndy 0.25\n1 2 3 4 5 6 7 8 9 10 11 12\n",
		"x.asc.aux.xml": `<PAMDataset><PAMRasterBand band="1"><UnitType>ft</UnitType></PAMRasterBand></PAMDataset>`,
	}
	if got := heightsOf(grid.read("x.asc", 0)); got != "ft - - " {
		t.Errorf("an ASCII grid: %q", got)
	}
}

// TestHeightUnits: the unit of the vertical CRS is that of its code, or else that of key 4099.
func TestHeightUnits(t *testing.T) {
	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	degrees := []any{key(1024, 2), key(2048, 4326)}
	for _, c := range []struct {
		name string
		keys []any
		want string
	}{
		{"no vertical CRS", degrees, ""},
		{"a code in metres", append(degrees, key(4096, 5773)), "metre"},
		{"a code in feet", append(degrees, key(4096, 6360)), "US survey foot"},
		{"a code before key 4099", append(degrees, key(4096, 6360), key(4099, 9001)), "US survey foot"},
		{"the code of a datum", append(degrees, key(4096, 5103)), "metre"},
		{"an unknown code", append(degrees, key(4096, 19999), key(4099, 9002)), ""},
		{"of its own, in feet", append(degrees, key(4096, 32767), key(4099, 9002)), "foot"},
		{"of its own, without a unit", append(degrees, key(4096, 32767)), "metre"},
		{"of its own, in a unit of its own", append(degrees, key(4096, 32767), key(4099, 32767)), ""},
		{"of its own, in an unknown unit", append(degrees, key(4096, 32767), key(4099, 65000)), ""},
		{"a unit alone", append(degrees, key(4099, 9003)), "US survey foot"},
		{"heights above the ellipsoid", append(degrees, key(4096, 5030)), ""},
		{"a compound code", []any{key(1024, 1), key(3072, 8771)}, "US survey foot"},
	} {
		var keys [][4]float64
		for _, k := range c.keys {
			keys = append(keys, k.([4]float64))
		}
		for _, f := range testTIFFKinds(with(testSize(), testPlace(), geoKeyTag(keys...))) {
			if m := readBytes("x.tif", f.build()); value(m.Unit) != c.want {
				t.Errorf("%s: %q, want %q", c.name, value(m.Unit), c.want)
			}
		}
		item := metadataTag(metadataItem("unittype", "yard", 0))
		f := testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), geoKeyTag(keys...), item)}
		if m := readBytes("x.tif", f.build()); value(m.Unit) != "yard" {
			t.Errorf("%s, with the tag: %q", c.name, value(m.Unit))
		}
	}
	// Every vertical CRS of the registry has a unit.
	for r := range registryRecords(recordCRS) {
		if r.text(1) == "V" && findRecord(recordUnit, r.code(2)).number(1) <= 0 {
			t.Errorf("%v has no unit", r)
		}
	}
}

// TestCompression: the compression has its name, or its number, and the byte counts are added up.
func TestCompression(t *testing.T) {
	for code, want := range map[float64]string{
		1: "none", 5: "LZW", 7: "JPEG", 8: "Deflate", 32773: "PackBits", 32946: "Deflate", 34887: "LERC", 50000: "ZSTD", 50001: "50001", 0: "0",
	} {
		for _, f := range testTIFFKinds(with(testSize(), testPlace(), testKeys(), shorts(tagCompression, code))) {
			if m := readBytes("x.tif", f.build()); value(m.Compression) != want {
				t.Errorf("%v: %q, want %q", code, value(m.Compression), want)
			}
		}
	}
	const lots = 9000
	counts := make([]float64, lots)
	for i := range counts {
		counts[i] = float64(i)
	}
	place := with(testPlace(), testKeys(), shorts(tagCompression, 5), shorts(tagRowsPerStrip, 1), shorts(256, 4))
	for _, c := range []struct {
		name string
		tags []testTag
		want int64 // -1: nil
	}{
		{"strips", with(shorts(257, 3), longs(tagStripOffsets, 0, 1, 2), longs(tagStripByteCounts, 1, 5, 9)), 15},
		{"more than are read at once", with(shorts(257, lots), longs(tagStripOffsets, make([]float64, lots)...), longs(tagStripByteCounts, counts...)), lots * (lots - 1) / 2},
		{"more counts than strips", with(shorts(257, 2), longs(tagStripOffsets, 0, 1), longs(tagStripByteCounts, 1, 5, 9)), 6},
		{"no strip was written", with(shorts(257, 2), longs(tagStripOffsets, 0, 0), longs(tagStripByteCounts, 0, 0)), 0},
		{"no counts", with(shorts(257, 2), longs(tagStripOffsets, 0, 1)), -1},
		{"no offsets", with(shorts(257, 2), longs(tagStripByteCounts, 1, 5)), -1},
		{"too large", with(shorts(257, 2), longs(tagStripOffsets, 0, 1), long8s(tagStripByteCounts, 1<<53, 1<<62)), -1},
		{"negative", with(shorts(257, 2), longs(tagStripOffsets, 0, 1), testTag{tag: tagStripByteCounts, fieldType: 9, values: []float64{-5, 7}}), 7},
	} {
		for _, f := range testTIFFKinds(with(place, c.tags)) {
			m := files{"x.tif": string(f.build())}.read("x.tif", 1<<20)
			if got := m.DataBytes; (got == nil) != (c.want < 0) || got != nil && *got != c.want {
				t.Errorf("%s: %v %s, want %d", c.name, value(got), m.Status, c.want)
			}
			checkRow(t, m)
		}
	}
}
