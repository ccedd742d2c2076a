package main

import (
	"math"
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
