package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// readExtent reads an extent with a new headerReader.
func readExtent(name string, r io.ReaderAt, size int64, beside besideFunc) extent {
	if beside == nil {
		beside = files{}.beside // nothing lies beside it
	}
	return new(headerReader).readExtent(name, r, size, beside)
}

// readBytes reads the extent of a file in memory.
func readBytes(name string, b []byte) extent {
	return readExtent(name, bytes.NewReader(b), int64(len(b)), nil)
}

// value returns the value that p points to, the zero value for nil.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// TestTagRules has a case for every rule of the tags. Each is read in every kind of TIFF.
func TestTagRules(t *testing.T) {
	good := []float64{10, 49.25, 12, 50}
	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name   string
		tags   []testTag
		status string
		native []float64
		says   string // a part of the reason, or else of the warnings
	}{
		{"scale and tie point", with(testSize(), testPlace(), testKeys()), "ok", good, ""},
		{"width as BYTE", with(bytesTag(256, 4), bytesTag(257, 3), testPlace(), testKeys()), "ok", good, ""},
		{"width as LONG", with(longs(256, 4), longs(257, 3), testPlace(), testKeys()), "ok", good, ""},
		{"width as LONG8", with(long8s(256, 4), long8s(257, 3), testPlace(), testKeys()), "ok", good, ""},
		{"scale and tie point as FLOAT", with(testSize(), floats(33550, 0.5, 0.25, 0), floats(33922, 0, 0, 0, 10, 50, 0), testKeys()), "ok", good, ""},
		{"tie point as SHORT", with(testSize(), testPlace()[0], shorts(33922, 0, 0, 0, 10, 50, 0), testKeys()), "ok", good, ""},
		{"matrix of SLONG", with(testSize(), testTag{tag: 34264, fieldType: 9, values: []float64{1, 0, 0, -7, 0, -1, 0, -5, 0, 0, 0, 0, 0, 0, 0, 1}}, testKeys()), "ok", []float64{-7, -8, -3, -5}, ""},
		{"unsorted tags", with(testKeys(), testPlace()[1], testSize(), testPlace()[0]), "ok", good, ""},
		{"the first duplicate wins", with(testSize(), testPlace(), doubles(33550, 9, 9, 0), shorts(256, 99), testKeys()), "ok", good, ""},
		{"scale of two numbers", with(testSize(), doubles(33550, 0.5, 0.25), testPlace()[1], testKeys()), "ok", good, ""},
		{"scale of one number", with(testSize(), doubles(33550, 0.5), testPlace()[1], testKeys()), "no_georef", nil, "control points"},
		{"scale of 0", with(testSize(), doubles(33550, 0, 0.25, 0), testPlace()[1], testKeys()), "no_georef", nil, "control points"},
		{"scale of 0 leaves it to the matrix", with(testSize(), doubles(33550, 0, 0, 0), testPlace()[1], matrixTag(0.5, 0, 10, 0, -0.25, 50), testKeys()), "ok", good, ""},
		{"scale comes before matrix", with(testSize(), testPlace(), matrixTag(1, 0, 0, 0, -1, 0), testKeys()), "ok", good, ""},
		{"scale without tie point gives no extent", with(testSize(), testPlace()[0], testKeys()), "no_georef", nil, "no tie point"},
		{"scale without tie point beside a matrix, as GDAL", with(testSize(), testPlace()[0], matrixTag(1, 0, 0, 0, -1, 0), testKeys()), "no_georef", nil, "no tie point"},
		{"tie point of five numbers", with(testSize(), testPlace()[0], doubles(33922, 0, 0, 0, 10, 50), testKeys()), "no_georef", nil, "no tie point"},
		{"tie point not at 0,0", with(testSize(), testPlace()[0], doubles(33922, 2, 1, 0, 11, 49.75, 0), testKeys()), "ok", good, ""},
		{"several tie points with a scale", with(testSize(), testPlace()[0], doubles(33922, 0, 0, 0, 10, 50, 0, 4, 3, 0, 99, 99, 0), testKeys()), "ok", good, ""},
		{"several tie points without", with(testSize(), doubles(33922, 0, 0, 0, 10, 50, 0, 4, 3, 0, 12, 49, 0), testKeys()), "no_georef", nil, "2 ground control points"},
		{"a negative scale in Y is read as north-up", with(testSize(), doubles(33550, 0.5, -0.25, 0), testPlace()[1], testKeys()), "ok", good, "negative"},
		{"a negative scale in X is read as it is", with(testSize(), doubles(33550, -0.5, 0.25, 0), testPlace()[1], testKeys()), "ok", []float64{8, 49.25, 10, 50}, ""},
		{"a rotated matrix", with(testSize(), matrixTag(0.5, 0.1, 10, 0.2, -0.25, 50), testKeys()), "ok", []float64{10, 49.25, 12.3, 50.8}, ""},
		{"a south-up matrix", with(testSize(), matrixTag(0.5, 0, 10, 0, 0.25, 49.25), testKeys()), "ok", good, ""},
		{"a matrix of 12 numbers", with(testSize(), doubles(34264, 0.5, 0, 0, 10, 0, -0.25, 0, 50, 0, 0, 0, 0), testKeys()), "no_georef", nil, "no georeferencing tags"},
		{"a matrix of 17 numbers", with(testSize(), doubles(34264, 0.5, 0, 0, 10, 0, -0.25, 0, 50, 0, 0, 0, 0, 0, 0, 0, 1, 0), testKeys()), "no_georef", nil, "no georeferencing tags"},
		{"a matrix of nothing", with(testSize(), matrixTag(0, 0, 0, 0, 0, 0), testKeys()), "corrupt", nil, "no area"},
		{"a matrix of a line", with(testSize(), matrixTag(1, 1, 500000, 1, 1, 5000000), testKeys()), "corrupt", nil, "no area"},
		{"nothing", testSize(), "no_georef", nil, "no world file"},
		{"no CRS", with(testSize(), testPlace()), "no_bbox", good, "gdal_edit"},
		{"x without the zone", with(testSize(), testPlace(), geoKeyTag(key(1024, 1), key(3072, 4647))), "no_bbox", good, "x from 10 to 12 and y from 49.25 to 50 cannot be converted from EPSG:4647 to degrees: coordinates outside"},
		{"scale is NaN", with(testSize(), doubles(33550, nan, 1, 0), testPlace()[1], testKeys()), "corrupt", nil, "not finite"},
		{"infinite tie point", with(testSize(), testPlace()[0], doubles(33922, 0, 0, 0, inf, 50, 0), testKeys()), "corrupt", nil, "not finite"},
		{"overflow to infinity", with(testSize(), doubles(33550, 1e308, 1e308, 0), doubles(33922, -10, 0, 0, 0, 0, 0), testKeys()), "corrupt", nil, "not finite"},
		{"rational over 0", with(testSize(), testPlace(), rational(34264, 1, 0), testKeys()), "ok", good, ""},
		{"pixel is point", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(1025, 2), key(2048, 4326))), "ok", []float64{9.75, 49.375, 11.75, 50.125}, ""},
		{"pixel is point with a matrix", with(testSize(), matrixTag(0.5, 0.1, 10, 0.2, -0.25, 50), geoKeyTag(key(1024, 2), key(1025, 2), key(2048, 4326))), "ok", []float64{9.7, 49.275, 12, 50.825}, ""},
		{"pixel is 3", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(1025, 3), key(2048, 4326))), "ok", good, ""},
		{"keys out of order", with(testSize(), testPlace(), geoKeyTag(key(2048, 4326), key(1025, 1), key(1024, 2))), "ok", good, ""},
		{"the last of two keys counts", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(1025, 1), key(1025, 2), key(2048, 4269), key(2048, 4326))), "ok", []float64{9.75, 49.375, 11.75, 50.125}, ""},
		{"more keys claimed than there are", with(testSize(), testPlace(), geoKeyTagN(9, key(1024, 2), key(2048, 4326))), "no_bbox", good, "no valid header"},
		{"keys of version 2", with(testSize(), testPlace(), shorts(34735, 2, 1, 0, 0)), "no_bbox", good, "version 1"},
		{"a key outside its tag", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(1025, 2), key(2048, 4326), [4]float64{1026, 34737, 9, 99}), asciiTag(34737, "name|\x00")), "no_bbox", good, "GeoKey 1026"},
		{"a key in an absent tag", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(2048, 4326), [4]float64{2057, 34736, 1, 0})), "no_bbox", good, "GeoKey 2057"},
		{"a key in an unknown place", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), key(2048, 4326), [4]float64{1026, 7, 1, 0})), "no_bbox", good, "GeoKey 1026"},
		{"keys that are text", with(testSize(), testPlace(), asciiTag(34735, "not numbers")), "no_bbox", good, "not a number"},
		{"keys as LONG", with(testSize(), testPlace(), longs(34735, 1, 1, 0, 2, 1024, 0, 1, 2, 2048, 0, 1, 4326)), "ok", good, ""},
		{"keys that are not SHORT", with(testSize(), testPlace(), doubles(34735, 1, 1, 0, nan)), "no_bbox", good, "not a SHORT"},
		{"a code that is a double", with(testSize(), testPlace(), geoKeyTag(key(1024, 2), [4]float64{2048, 34736, 1, 0}), doubles(34736, 4326.5)), "no_bbox", good, "no EPSG code"},
		{"width 0", with(shorts(256, 0), shorts(257, 3), testPlace(), testKeys()), "corrupt", nil, "width"},
		{"no width", with(shorts(257, 3), testPlace(), testKeys()), "corrupt", nil, "width"},
		{"a width of 2 to the 31", with(longs(256, 1<<31), shorts(257, 3), testPlace(), testKeys()), "corrupt", nil, "width"},
		{"height of text", with(shorts(256, 4), asciiTag(257, "3"), testPlace(), testKeys()), "corrupt", nil, "tag 257"},
		{"sample tags of text are only a warning", with(shorts(256, 4), shorts(257, 3), asciiTag(258, "8"), testPlace(), testKeys()), "ok", good, "tag 258"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range testTIFFKinds(c.tags) {
				m := readBytes("x.tif", f.build())
				said := value(m.Reason) + strings.Join(m.Warnings, "; ")
				if m.Status != c.status || !near(m.NativeBBox, c.native) || !strings.Contains(said, c.says) {
					t.Errorf("%v big %v: %s %v %q; want %s %v %q", f.order, f.big, m.Status, m.NativeBBox, said, c.status, c.native, c.says)
				}
				if (m.BBox == nil) != (m.ResolutionM == nil) || (m.BBox == nil) != (m.BBoxAccuracyM == nil) {
					t.Errorf("bbox %v with resolution %v and accuracy %v", m.BBox, m.ResolutionM, m.BBoxAccuracyM)
				}
				checkRow(t, m)
			}
		})
	}
}

// testTIFFKinds returns TIFFs with these tags in both byte orders, as classic TIFF and as BigTIFF.
func testTIFFKinds(tags []testTag) []testTIFF {
	return []testTIFF{{binary.LittleEndian, false, tags}, {binary.BigEndian, false, tags}, {binary.LittleEndian, true, tags}, {binary.BigEndian, true, tags}}
}

// near reports whether two boxes are equal up to rounding.
func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) <= 1e-12*math.Max(1, math.Abs(y)) })
}

// checkRow checks the rules that hold for every extent.
func checkRow(t *testing.T, m extent) {
	t.Helper()
	if (m.Status == fileStatusOK) != (m.Reason == nil) || (m.Reason != nil && *m.Reason == "") {
		t.Errorf("status %s with reason %v", m.Status, m.Reason)
	}
	located := m.Status == fileStatusOK || m.Status == fileStatusNoBBox
	if m.Status == fileStatusCorrupt { // a raster whose data is cut off may keep its place
		located = m.NativeBBox != nil
	}
	if located != (m.NativeBBox != nil) || located != (m.Transform != nil) || located != (m.Source != nil) ||
		m.Status == fileStatusOK && m.BBox == nil || m.BBox != nil && m.Status != fileStatusOK && m.Status != fileStatusCorrupt {
		t.Errorf("status %s with native_bbox %v, transform %v, bbox %v", m.Status, m.NativeBBox, m.Transform, m.BBox)
	}
	if m.BBox != nil && !(m.BBox[1] >= -90 && m.BBox[3] <= 90 && m.BBox[1] <= m.BBox[3] && min(m.BBox[0], m.BBox[2]) >= -180 && max(m.BBox[0], m.BBox[2]) <= 180) {
		t.Errorf("bbox %v", m.BBox)
	}
	if m.Warnings == nil {
		t.Error("warnings are nil")
	}
	if _, err := json.Marshal(m); err != nil { // fails for numbers that are not finite
		t.Error(err)
	}
	for _, s := range []*string{m.Reason, m.Nodata, m.CRSName, m.CRS, m.VerticalCRS, m.Format, m.SampleType, m.Unit, m.Compression} {
		if s != nil && (strings.ToValidUTF8(*s, "") != *s || strings.ContainsRune(*s, 0) || len(*s) > 500) {
			t.Errorf("text %q", *s)
		}
	}
}

// TestCRSRules has a case for every rule of the GeoKeys that describe the CRS.
func TestCRSRules(t *testing.T) {
	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	double := func(id, at float64) [4]float64 { return [4]float64{id, 34736, 1, at} }
	for _, c := range []struct {
		name                string
		keys                [][4]float64
		doubles             []float64
		crs, vertical, says string
		west                float64 // of bbox; 0 for none
	}{
		{"geographic", [][4]float64{key(1024, 2), key(2048, 4326)}, nil, "EPSG:4326", "", "", 10},
		{"a projected key beside a geographic model", [][4]float64{key(1024, 2), key(2048, 4326), key(3072, 32633)}, nil, "EPSG:4326", "", "", 10},
		{"projected", [][4]float64{key(1024, 1), key(2048, 4326), key(3072, 3857)}, nil, "EPSG:3857", "", "", 10 / 111319.49079327358},
		{"projected without a model, as GDAL", [][4]float64{key(3072, 3857)}, nil, "EPSG:3857", "", "", 10 / 111319.49079327358},
		{"geographic without a model, as GDAL", [][4]float64{key(2048, 4326)}, nil, "", "", "no EPSG code", 0},
		{"geocentric", [][4]float64{key(1024, 3), key(2048, 4978)}, nil, "", "", "geocentric", 0},
		{"user-defined projected", [][4]float64{key(1024, 1), key(2048, 4326), key(3072, 32767)}, nil, "", "", "no EPSG code", 0},
		{"private code", [][4]float64{key(1024, 1), key(3072, 54009)}, nil, "", "", "no EPSG code", 0},
		{"an unsupported projection", [][4]float64{key(1024, 1), key(3072, 27200)}, nil, "EPSG:27200", "", "is not supported: projection method 9811", 0},
		{"an unassigned code", [][4]float64{key(1024, 1), key(3072, 1999)}, nil, "EPSG:1999", "", "not a CRS in the built-in registry", 0},
		{"a vertical code", [][4]float64{key(1024, 1), key(3072, 5773)}, nil, "EPSG:5773", "", "vertical CRS", 0},
		{"a compound code", [][4]float64{key(1024, 1), key(3072, 9518)}, nil, "EPSG:4326", "EPSG:3855", "", 10},
		{"a projection by its code", [][4]float64{key(1024, 1), key(2048, 4326), key(3072, 32767), key(3074, 3856)}, nil, "", "", "", 10 / 111319.49079327358},
		{"in Clarke's feet", [][4]float64{key(1024, 1), key(3072, 2314), key(3076, 9005)}, nil, "EPSG:2314", "", "", -62.121174361749325},
		{"in feet", [][4]float64{key(1024, 1), key(3072, 3857), key(3076, 9002)}, nil, "", "", "another unit", 3.048 / 111319.49079327358},
		{"in its own metres", [][4]float64{key(1024, 1), key(3072, 3857), key(3076, 9001)}, nil, "EPSG:3857", "", "", 10 / 111319.49079327358},
		{"in a unit of its own", [][4]float64{key(1024, 1), key(3072, 3857), key(3076, 32767), double(3077, 0)}, []float64{2}, "", "", "another unit", 20 / 111319.49079327358},
		{"in an unknown unit", [][4]float64{key(1024, 1), key(3072, 3857), key(3076, 9199)}, nil, "EPSG:3857", "", "linear unit", 0},
		{"degrees in the unit key too", [][4]float64{key(1024, 2), key(2048, 4326), key(2054, 9102)}, nil, "EPSG:4326", "", "", 10},
		{"a code in degrees with radians", [][4]float64{key(1024, 2), key(2048, 4326), key(2054, 9101)}, nil, "EPSG:4326", "", "contradict", 0},
		{"a code in grads from Paris", [][4]float64{key(1024, 2), key(2048, 4807), key(2054, 9105)}, nil, "EPSG:4807", "", "", 11.33690191418632},
		{"user-defined in arc-seconds", [][4]float64{key(1024, 2), key(2048, 32767), key(2054, 9104)}, nil, "", "", "", 10.0 / 3600},
		{"user-defined in packed degrees", [][4]float64{key(1024, 2), key(2048, 32767), key(2054, 9110)}, nil, "", "", "its unit", 0},
		{"user-defined in a degree of its own", [][4]float64{key(1024, 2), key(2048, 32767), key(2054, 32767), double(2055, 0)}, []float64{0.0174532925199433}, "", "", "", 10},
		{"user-defined in another unit of its own", [][4]float64{key(1024, 2), key(2048, 32767), key(2054, 32767), double(2055, 0)}, []float64{math.Pi / 200}, "", "", "", 9},
		{"user-defined from a meridian of its own", [][4]float64{key(1024, 2), key(2048, 32767), key(2051, 32767), double(2061, 1)}, []float64{6378137, 2.5}, "", "", "", 12.5},
		{"user-defined in grads from a meridian of its own", [][4]float64{key(1024, 2), key(2048, 32767), key(2054, 9105), key(2051, 32767), double(2061, 0)}, []float64{2.5969213}, "", "", "", 9 + 2.33722917},
		{"user-defined from Paris", [][4]float64{key(1024, 2), key(2048, 32767), key(2051, 8903)}, nil, "", "", "", 12.33722917},
		{"user-defined from an unknown meridian", [][4]float64{key(1024, 2), key(2048, 32767), key(2051, 8999)}, nil, "", "", "prime meridian", 0},
		{"on the Moon's ellipsoid", [][4]float64{key(1024, 2), key(2048, 32767), double(2057, 0)}, []float64{1737400}, "", "", "of the Earth", 0},
		{"on a sphere", [][4]float64{key(1024, 2), key(2048, 32767), double(2057, 0), double(2059, 1)}, []float64{6371000, 0}, "", "", "", 10},
		{"vertical", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 5773)}, nil, "EPSG:4326", "EPSG:5773", "", 10},
		{"vertical by a datum's code", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 5103)}, nil, "EPSG:4326", "EPSG:5703", "", 10},
		{"vertical by EGM96's datum", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 5171)}, nil, "EPSG:4326", "EPSG:5773", "", 10},
		{"heights above the ellipsoid", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 5030)}, nil, "EPSG:4979", "", "", 10},
		{"three-dimensional", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 4979)}, nil, "EPSG:4979", "", "", 10},
		{"user-defined vertical", [][4]float64{key(1024, 2), key(2048, 4326), key(4096, 32767)}, nil, "EPSG:4326", "", "", 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			tags := with(testSize(), testPlace(), geoKeyTag(c.keys...))
			if c.doubles != nil {
				tags = append(tags, doubles(tagGeoDoubleParams, c.doubles...))
			}
			for _, f := range testTIFFKinds(tags) {
				m := readBytes("x.tif", f.build())
				said := value(m.Reason) + strings.Join(m.Warnings, "; ")
				west := 0.0
				if m.BBox != nil {
					west = m.BBox[0]
				}
				if value(m.CRS) != c.crs || value(m.VerticalCRS) != c.vertical || !strings.Contains(said, c.says) || math.Abs(west-c.west) > 1e-9 {
					t.Errorf("%q %q west %v %q; want %q %q %v %q", value(m.CRS), value(m.VerticalCRS), west, said, c.crs, c.vertical, c.west, c.says)
				}
				checkRow(t, m)
			}
		})
	}
}

// TestCRSName: the name of a CRS is found in citations of every style.
func TestCRSName(t *testing.T) {
	for citation, want := range map[string]string{
		"WGS 84 / UTM zone 33N|":                                        "WGS 84 / UTM zone 33N",
		"WGS 84 / UTM zone 33N|WGS 84|\x00":                             "WGS 84 / UTM zone 33N",
		"PCS Name = NAD_1927_UTM_Zone_11N|":                             "NAD_1927_UTM_Zone_11N",
		"GCS Name = GCS_North_American_1927|Primem = Greenwich||":       "GCS_North_American_1927",
		`ESRI PE String = PROJCS["ETRS_LAEA",GEOGCS["GCS_ETRS_1989",…|`: "ETRS_LAEA",
		"ESRI PE String = ":                                             "",
		"IMAGINE GeoTIFF Support\nCopyright 1991 - 2001 by ERDAS\nProjection Name = UTM\nUnits = meters\n": "UTM",
		"IMAGINE GeoTIFF Support\nCopyright 1991 - 2001 by ERDAS":                                          "",
		"caf\xe9\x07 |":          "caf\uFFFD",
		strings.Repeat("é", 200): strings.Repeat("é", 100),
	} {
		if got := crsNameFromCitation([]byte(citation)); got != want {
			t.Errorf("%q gives %q, want %q", citation, got, want)
		}
	}
	key := [4]float64{1026, 34737, 7, 0}
	m := readBytes("x.tif", testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), geoKeyTag([4]float64{1024, 0, 1, 1}, key), asciiTag(34737, "My Map|"))}.build())
	if value(m.CRSName) != "My Map" || m.CRS != nil || m.Status != fileStatusNoBBox {
		t.Errorf("user-defined CRS gives %q, %v, %s", value(m.CRSName), m.CRS, m.Status)
	}
}

// TestCitedUnits: a citation that names a foot contradicts a code in metres, and wins as key 3076 does.
func TestCitedUnits(t *testing.T) {
	const feet, feetUS, metres = -122.85121, -122.85115, -62.35000 // the western edges
	for _, c := range []struct {
		citation string
		more     [][4]float64
		code     float64
		west     float64
		crs      string
	}{
		{"NAD83(HARN) / Oregon North (International Feet)", nil, 2838, feet, ""},
		{"NAD_1983_HARN_StatePlane_Oregon_North_FIPS_3601_Feet_Intl", nil, 2838, feet, ""},
		{"NAD83(HARN) / Oregon North (ft)", nil, 2838, feet, ""},
		{"PCS Name = Oregon|LUnits = international_feet|", nil, 2838, feet, ""},
		{"NAD83(HARN) / Oregon North, US survey foot", nil, 2838, feetUS, ""},
		{"NAD83(HARN) / Oregon North (ftUS)", nil, 2838, feetUS, ""},
		{"Oregon", [][4]float64{{3076, 0, 1, 9002}}, 2838, feet, ""},
		{"Oregon (International Feet)", [][4]float64{{3076, 0, 1, 9001}}, 2838, metres, "EPSG:2838"},
		{"NAD83(HARN) / Oregon North", nil, 2838, metres, "EPSG:2838"},
		{"NAD83(HARN) / Oregon North + NAVD88 height (ftUS)", nil, 2838, metres, "EPSG:2838"},
		{"NAD83(HARN) / Oregon North; vertical: US survey feet", nil, 2838, metres, "EPSG:2838"},
		{"NAD83(HARN) / Oregon North (International Feet)", nil, 2913, feet, "EPSG:2913"},
		{"NAD83(HARN) / Oregon North, US survey foot", nil, 2913, feet, "EPSG:2913"},
	} {
		for _, id := range []float64{1026, 3073} {
			keys := append([][4]float64{{1024, 0, 1, 1}, {id, 34737, float64(len(c.citation)), 0}, {3072, 0, 1, c.code}}, c.more...)
			tags := with(testSize(), doubles(33550, 10, 10, 0), doubles(33922, 0, 0, 0, 7600000, 700000, 0), geoKeyTag(keys...), asciiTag(34737, c.citation))
			m := readBytes("x.tif", testTIFF{binary.LittleEndian, false, tags}.build())
			said := strings.Join(m.Warnings, "; ")
			if m.BBox == nil || math.Abs(m.BBox[0]-c.west) > 2e-5 || value(m.CRS) != c.crs || (c.crs == "") != strings.Contains(said, "in another unit, of 0.3048") {
				t.Errorf("%s in %v: %v %q %q", c.citation, id, m.BBox, value(m.CRS), said)
			}
		}
	}
}

// TestESRIString: ArcGIS writes the CRS as WKT into a citation.
func TestESRIString(t *testing.T) {
	text := "ESRI PE String = " + utmPRJ + "|"
	tags := with(testSize(), testPlace(), geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{3072, 0, 1, 32767}, [4]float64{3073, 34737, float64(len(text)), 0}), asciiTag(34737, text))
	m := readBytes("x.tif", testTIFF{binary.LittleEndian, false, tags}.build())
	if value(m.CRSName) != "WGS_1984_UTM_Zone_33N" || m.Status != fileStatusOK || math.Abs(m.BBox[0]-10.51136) > 1e-4 {
		t.Errorf("%s %q %v %q", m.Status, value(m.CRSName), m.BBox, value(m.Reason))
	}
}

// TestRasterTags: bands, sample type, nodata and pixel type are read, and all numbers of a row are right.
func TestRasterTags(t *testing.T) {
	tags := with(shorts(256, 4), shorts(257, 3), shorts(258, 16, 16, 16), shorts(277, 3), shorts(339, 2, 2, 2), testPlace(), testKeys(), asciiTag(42113, " -9999 \x00junk"))
	for _, f := range testTIFFKinds(tags) {
		m := readBytes("x.tif", f.build())
		if value(m.Bands) != 3 || value(m.SampleType) != "int16" || value(m.Nodata) != "-9999" || value(m.PixelIs) != "area" || value(m.Width) != 4 || value(m.Height) != 3 ||
			value(m.Format) != "geotiff" || value(m.BBoxAccuracyM) != 0.1 || !reflect.DeepEqual(m.Transform, []float64{0.5, 0, 10, 0, -0.25, 50}) {
			t.Errorf("%+v", m)
		}
		// Half a degree by a quarter at 49.625° north is 36.2 by 27.8 km.
		if r := value(m.ResolutionM); math.Abs(r-31710) > 30 {
			t.Errorf("resolution %v m", r)
		}
	}
	for _, c := range []struct {
		bits, format float64
		want         string
	}{
		{1, 1, "uint8"}, {8, 1, "uint8"}, {12, 1, "uint16"}, {32, 1, "uint32"}, {64, 1, "uint64"}, {8, 2, "int8"}, {64, 2, "int64"}, {8, 4, "uint8"},
		{16, 3, "float32"}, {32, 3, "float32"}, {64, 3, "float64"}, {32, 5, "complex_int16"}, {64, 6, "complex64"}, {128, 6, "complex128"},
		{128, 1, ""}, {8, 3, ""}, {0, 1, ""}, {math.NaN(), 1, ""}, {8, 99, ""}, {1e9, 1, ""},
	} {
		var m extent
		if m.setSamples(1, c.bits, c.format); value(m.SampleType) != c.want {
			t.Errorf("%v bits of format %v: %q, want %q", c.bits, c.format, value(m.SampleType), c.want)
		}
	}
}

// TestUnsupported: the reason names the format of a file that is not supported.
func TestUnsupported(t *testing.T) {
	for _, c := range []struct{ name, content, format, says string }{
		{"empty.tif", "", "", "empty"},
		{"a.png", "\x89PNG\r\n\x1a\n....", "png", "PNG"},
		{"a.tif", "\x89PNG\r\n\x1a\n....", "png", "is named .tif, but it seems to be a PNG"},
		{"a.jpg", "\xff\xd8\xff\xe0", "jpeg", "JPEG"},
		{"a.zip", "PK\x03\x04", "zip", "unpack"},
		{"a.gz", "\x1f\x8b\x08", "gzip", "unpack"},
		{"a.pdf", "%PDF-1.7", "pdf", "PDF"},
		{"a.h5", "\x89HDF\r\n\x1a\n", "hdf5", "HDF5"},
		{"a.nc", "CDF\x01", "netcdf", "netCDF"},
		{"readme.txt", "hello\n", "text", "text"},
		{"a.tif", "version https://git-lfs", "text", "but it seems to be a text file"},
		{"core", "\x00\x01\x02", "", "known"},
		{"n43.DT0", "UHL1", "text", "named .dt0"},
		{"a.asc", "rows 4", "text", "named .asc"},
		{"a.bil", "\x00", "", "named .bil"},
	} {
		m := readBytes(c.name, []byte(c.content))
		if m.Status != fileStatusUnsupported || value(m.Format) != c.format || !strings.Contains(value(m.Reason), c.says) {
			t.Errorf("%s %q: %s %q %q", c.name, c.content, m.Status, value(m.Format), value(m.Reason))
		}
		checkRow(t, m)
	}
}

// TestJSON: an empty row has no id, null for unknown fields, and a list of warnings. Only the definition of a CRS is stored
// and not shown.
func TestJSON(t *testing.T) {
	b, err := json.Marshal(ElevationDatasetFileMeta{extent: readBytes("empty", nil)})
	want := `{"path":"","size_bytes":0,"modified_at":"0001-01-01T00:00:00Z","format":null,"status":"unsupported","reason":"the file is empty",` +
		`"width":null,"height":null,"bands":null,"sample_type":null,"nodata":null,"unit":null,"scale":null,"offset":null,"compression":null,"data_bytes":null,"pixel_is":null,"cog":null,"transform":null,"native_bbox":null,"crs":null,` +
		`"crs_name":null,"vertical_crs":null,"bbox":null,"bbox_accuracy_m":null,"resolution_m":null,"source":null,"warnings":[],"analyzed_at":"0001-01-01T00:00:00Z"}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[ElevationDatasetFileMeta]()) {
		// pgx finds the column of a field by the field's name, without underscores and in any case.
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		isShown := name != "" && name != "-"
		if column := strings.ReplaceAll(name, "_", ""); isShown && !strings.EqualFold(column, field.Name) {
			t.Errorf("field %s is %q in JSON, want the name of its column", field.Name, name)
		}
	}
}

// BenchmarkReadExtent measures reading one file whose first 4 KiB are in memory.
func BenchmarkReadExtent(b *testing.B) {
	utm := geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{1025, 0, 1, 1}, [4]float64{3072, 0, 1, 32633})
	for _, c := range []struct {
		name string
		tags []testTag
	}{
		{"geographic", with(testSize(), testPlace(), testKeys())},
		{"geographic with strips", with(testSize(), longs(tagStripOffsets, 8), longs(tagStripByteCounts, 12), shorts(tagRowsPerStrip, 3), shorts(tagCompression, 1), shorts(tagPhotometric, 1), shorts(tagPlanarConfiguration, 1), testPlace(), testKeys())},
		{"utm", with(testSize(), doubles(33550, 10, 10, 0), doubles(33922, 0, 0, 0, 600000, 5000000, 0), utm)},
		{"utm across the meridian", with(testSize(), doubles(33550, 10, 10, 0), doubles(33922, 0, 0, 0, 499990, 5000000, 0), utm)},
	} {
		r := bytes.NewReader(append(testTIFF{binary.LittleEndian, false, c.tags}.build(), make([]byte, 8<<10)...))
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var h headerReader
			for b.Loop() {
				if m := h.readExtent("x.tif", r, r.Size(), files{}.beside); m.Status != fileStatusOK {
					b.Fatal(*m.Reason)
				}
			}
		})
	}
}
