package main

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// userDefinedCRS returns the CRS of GeoKeys: a projected one on Bessel's ellipsoid, with these codes
// and numbers beside it, alternately keys and values.
func userDefinedCRS(numbers []float64, codes ...float64) (c crsDefinition, m extent, err error) {
	k := geoKeys{entries: []float64{1024, 0, 1, 1, 2048, 0, 1, 32767, 2056, 0, 1, 7004, 3072, 0, 1, 32767}}
	for i := 0; i < len(codes); i += 2 {
		k.entries = append(k.entries, codes[i], 0, 1, codes[i+1])
	}
	for i := 0; i < len(numbers); i += 2 {
		k.doubles = append(k.doubles, numbers[i+1])
		k.entries = append(k.entries, numbers[i], tagGeoDoubleParams, 1, float64(len(k.doubles)-1))
	}
	p := k.parameters()
	c, err = p.definition(&m, new(lastCRS))
	return c, m, err
}

// placeOf returns longitude and latitude of coordinates.
func placeOf(t *testing.T, c *crsDefinition, x, y float64) position {
	t.Helper()
	lon, lat, err := c.projection.inverse(x, y)
	if err != nil {
		t.Error(err)
	}
	return position{lon, lat}
}

// TestSwissProjection: no key and no parameter gives the azimuth of the Swiss projection, which is
// 90° by definition. A place 100 km east and 50 km north of the centre lies there.
func TestSwissProjection(t *testing.T) {
	const latitude, longitude = 46.952405555555565, 7.439583333333333
	want := placeOf(t, crsOf(t, 21781), 700000, 250000)
	keys, _, err := userDefinedCRS([]float64{3089, latitude, 3088, longitude, 3082, 600000, 3083, 200000}, 3075, 5)
	if err != nil {
		t.Fatal(err)
	}
	p, err := crsFromWKT(esriWKT("s", "CH1903", "6377397.155,299.1528128", "Swiss_Oblique_Cylindrical", "1",
		"latitude_of_center", latitude, "longitude_of_center", longitude, "false_easting", 600000, "false_northing", 200000))
	if err != nil {
		t.Fatal(err)
	}
	wkt, err := p.definition(new(extent), new(lastCRS))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*crsDefinition{"GeoKeys": &keys, "WKT": &wkt} {
		if got := placeOf(t, c, 700000, 250000); math.Hypot(got[0]-want[0], got[1]-want[1]) > 1e-9 || len(c.assumed) > 0 {
			t.Errorf("%s: %v, want %v; assumed: %q", name, got, want, c.assumed)
		}
	}
	turned, _, err := userDefinedCRS([]float64{3089, latitude, 3088, longitude, 3094, 60, 3096, 60}, 3075, 5)
	if err != nil || turned.parameters[parameterAzimuth] != 60 {
		t.Errorf("an azimuth that the file gives: %v, %v", turned.parameters, err)
	}
}

// TestUnusedParameters: a parameter that the method lacks is refused unless it is neutral.
func TestUnusedParameters(t *testing.T) {
	const wgs84 = "6378137.0,298.257223563"
	for _, c := range []struct {
		name, method string
		parameters   []any
		says         string // of the error; "" for none
	}{
		{"origin of a cylinder", "Equirectangular", []any{"latitude_of_origin", 40, "central_meridian", 0, "standard_parallel_1", 0}, "Latitude of natural origin"},
		{"origin of a cylinder at its parallel", "Equirectangular", []any{"latitude_of_origin", 40, "central_meridian", 0, "standard_parallel_1", 40}, "Latitude of natural origin"},
		{"neutral origin", "Equirectangular", []any{"latitude_of_origin", 0, "central_meridian", 0, "standard_parallel_1", 30}, ""},
		{"scale of two parallels", "Lambert_Conformal_Conic", []any{"Central_Meridian", 9, "Standard_Parallel_1", 45, "Standard_Parallel_2", 50, "Scale_Factor", 0.9996, "Latitude_Of_Origin", 47}, "Scale factor"},
		{"neutral scale", "Lambert_Conformal_Conic", []any{"Central_Meridian", 9, "Standard_Parallel_1", 45, "Standard_Parallel_2", 50, "Scale_Factor", 1.0, "Latitude_Of_Origin", 47}, ""},
		{"one parallel away from the origin", "Lambert_Conformal_Conic", []any{"Central_Meridian", 9, "Standard_Parallel_1", 45, "Scale_Factor", 0.9996, "Latitude_Of_Origin", 47}, "1st standard parallel"},
		{"one parallel at the origin", "Lambert_Conformal_Conic", []any{"Central_Meridian", 9, "Standard_Parallel_1", 45, "Scale_Factor", 0.9996, "Latitude_Of_Origin", 45}, ""},
		{"one parallel alone", "Lambert_Conformal_Conic", []any{"Central_Meridian", 9, "Standard_Parallel_1", 45}, ""},
		{"scale of a parallel at the pole", "Stereographic_North_Pole", []any{"Central_Meridian", 0, "Standard_Parallel_1", 70, "Scale_Factor", 0.99}, "Scale factor"},
		{"origin and parallel at the pole", "Polar_Stereographic", []any{"central_meridian", 0, "latitude_of_origin", 90, "standard_parallel_1", 70}, "1st standard parallel"},
		{"scale of Mercator's parallel", "Mercator", []any{"Central_Meridian", 0, "Standard_Parallel_1", 42, "Scale_Factor", 0.99}, "Scale factor"},
		{"parallels of 0", "Transverse_Mercator", []any{"central_meridian", 9, "latitude_of_origin", 40, "standard_parallel_1", 0, "standard_parallel_2", 0}, ""},
		{"no number", "Sinusoidal", []any{"central_meridian", 9, "latitude_of_origin", `"x"`}, "Latitude of natural origin"},
	} {
		p, err := crsFromWKT(esriWKT("p", "D_WGS_1984", wgs84, c.method, "1", c.parameters...))
		if err == nil {
			_, err = p.definition(new(extent), new(lastCRS))
		}
		if (err == nil) != (c.says == "") || err != nil && (statusOf(err) != fileStatusNoBBox || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// TestShiftOfTheEarth: a shift to WGS 84 of 10 km or more, or without numbers, is refused.
func TestShiftOfTheEarth(t *testing.T) {
	for shift, ok := range map[string]bool{
		"674.374,15.056,405.346": true, "9999,0,0": true, "598.1,73.7,418.2,0.202,0.045,-2.455,6.7": true,
		"10000000,0,0": false, "0,-10000,0": false, "0,0,x": false, "0,0,0,0,0,1000,0": false, "0,0,0,0,0,0,-1000": false,
	} {
		p, err := crsFromWKT(fmt.Sprintf(`GEOGCS["c",DATUM["of its own",SPHEROID["x",6377397.155,299.1528128],TOWGS84[%s]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]`, shift))
		if err == nil {
			_, err = p.definition(new(extent), new(lastCRS))
		}
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "its shift to WGS 84") {
			t.Errorf("%s: %v", shift, err)
		}
	}
	if _, _, err := userDefinedCRS([]float64{3080, 9}, 3075, 1); err != nil {
		t.Error(err)
	}
	p := geographicCRS(0)
	p.geographic, p.toWGS84 = 4326, []float64{math.NaN(), 0, 0}
	if _, err := p.withoutCode(); err == nil {
		t.Error("a shift that is not a number is accepted")
	}
}

// TestNearPole: a polar projection whose latitude is 90° up to rounding has its scale at the pole.
func TestNearPole(t *testing.T) {
	want := placeOf(t, crsOf(t, 5041), 1e6, 3e6)
	for _, method := range []string{"Polar_Stereographic", "Polar Stereographic (variant A)"} {
		p, err := crsFromWKT(esriWKT("p", "D_WGS_1984", "6378137.0,298.257223563", method, "1",
			"latitude_of_origin", 89.9999999, "central_meridian", 0, "scale_factor", 0.994, "false_easting", 2e6, "false_northing", 2e6))
		if err != nil {
			t.Fatal(err)
		}
		c, err := p.definition(new(extent), new(lastCRS))
		if err != nil {
			t.Errorf("%s: %v", method, err)
		} else if got := placeOf(t, &c, 1e6, 3e6); math.Hypot(got[0]-want[0], got[1]-want[1]) > 1e-9 {
			t.Errorf("%s: %v, want %v", method, got, want)
		}
	}
}

// TestUnknownFigure: the name of an equidistant cylinder does not tell whether its formulas are
// those of the ellipsoid. Its box is that of the ellipsoid, with a warning and the difference.
func TestUnknownFigure(t *testing.T) {
	const wgs84, sphere, grid = "6378137.0,298.257223563", "6371000.0,0.0", "ncols 1\nnrows 1\nxllcorner 1000000\nyllcorner 6000000\ncellsize 1\n1\n"
	esri := func(ellipsoid, method string, parallel float64) string {
		return esriWKT("p", "D_WGS_1984", ellipsoid, method, "1", "False_Easting", 0, "False_Northing", 0, "Central_Meridian", 0, "Standard_Parallel_1", parallel)
	}
	byCode := strings.Replace(esri(wgs84, "Equidistant Cylindrical", 0), `["Equidistant Cylindrical"]`, `["Equidistant Cylindrical",AUTHORITY["EPSG","1028"]]`, 1)
	for _, c := range []struct {
		name, wkt string
		least     float64 // accuracy
		warned    bool
	}{
		{"Esri's plate carrée", esri(wgs84, "Plate_Carree", 0), 25_400, true},
		{"Esri's cylinder", esri(wgs84, "Equidistant_Cylindrical", 0), 25_400, true},
		{"at a parallel", esri(wgs84, "Equidistant_Cylindrical", 60), 75_000, true},
		{"GDAL's", esri(wgs84, "Equirectangular", 0), 25_400, true},
		{"on a sphere", esri(sphere, "Plate_Carree", 0), 0.1, false},
		{"with the method's code", byCode, 0.1, false},
	} {
		m := files{"x.asc": grid, "x.prj": c.wkt}.read("x.asc", 0)
		said := strings.Join(m.Warnings, "; ")
		if m.Status != fileStatusOK || value(m.BBoxAccuracyM) < c.least || c.warned == (value(m.BBoxAccuracyM) < 20_000) || strings.Contains(said, "sphere") != c.warned || c.warned && m.CRS != nil {
			t.Errorf("%s: %s %q, accuracy %v, %q", c.name, m.Status, value(m.CRS), value(m.BBoxAccuracyM), said)
		}
	}
	for method, want := range map[float64]bool{17: true, 1028: false} {
		c, _, err := userDefinedCRS([]float64{3080, 9, 3078, 0}, 3075, method)
		if box, err2 := boxInDegrees(&c, northUp(1e6, 6e6, 1), 1, 1); err != nil || err2 != nil || box.accuracyM > 20_000 != want {
			t.Errorf("GeoTIFF's method %v: accuracy %v, %v, %v", method, box.accuracyM, err, err2)
		}
	}
}
