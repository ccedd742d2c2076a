package main

import (
	"math"
	"strings"
	"testing"
)

// TestWKT: name, code, datum, projection, parameters and units are read in each dialect.
func TestWKT(t *testing.T) {
	const usFoot = 1200.0 / 3937
	utm33 := map[int]float64{8801: 0, 8802: 15, 8805: 0.9996, 8806: 500000, 8807: 0}
	for _, c := range []struct {
		name, wkt string
		want      crsParameters // of the fields compared
	}{
		{"Esri, geographic", `GEOGCS["GCS_WGS_1984",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137.0,298.257223563]],PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]]`,
			crsParameters{kind: modelTypeGeographic, name: "GCS_WGS_1984", geographic: userDefined, datum: 6326, angularUnit: 1}},
		{"Esri, projected", utmPRJ,
			crsParameters{kind: modelTypeProjected, name: "WGS_1984_UTM_Zone_33N", geographic: userDefined, angularUnit: 1, linearUnit: 1, datum: 6326, method: 9807, values: utm33}},
		{"Esri, in feet", `PROJCS["x",GEOGCS["g",DATUM["D_North_American_1983",SPHEROID["GRS_1980",6378137,298.257222101]],PRIMEM["Greenwich",0],UNIT["Degree",0.0174532925199433]],` +
			`PROJECTION["Lambert_Conformal_Conic"],PARAMETER["False_Easting",3.0],PARAMETER["Central_Meridian",-100],PARAMETER["Standard_Parallel_1",30],PARAMETER["Standard_Parallel_2",31],PARAMETER["Latitude_Of_Origin",29],UNIT["Foot_US",0.3048006096012192]]`,
			crsParameters{kind: modelTypeProjected, name: "x", geographic: userDefined, angularUnit: 1, linearUnit: usFoot, datum: 6269, method: 9802, values: map[int]float64{8801: 29, 8802: -100, 8823: 30, 8824: 31, 8806: 3 * usFoot}}},
		{"GDAL, with codes", `PROJCS["WGS 84 / UTM zone 33N",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],` +
			`PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AUTHORITY["EPSG","4326"]],PROJECTION["Transverse_Mercator"],` +
			`PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",15],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",0],` +
			`UNIT["metre",1,AUTHORITY["EPSG","9001"]],AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","32633"]]`,
			crsParameters{kind: modelTypeProjected, name: "WGS 84 / UTM zone 33N", code: 32633, geographic: 4326, angularUnit: 1, linearUnit: 1, datum: 6326, method: 9807, values: utm33}},
		{"WKT 2, projected", `PROJCRS["ETRS89 / UTM zone 32N",BASEGEOGCRS["ETRS89",ENSEMBLE["European Terrestrial Reference System 1989 ensemble",MEMBER["x"],ELLIPSOID["GRS 1980",6378137,298.257222101,LENGTHUNIT["metre",1]]],` +
			`PRIMEM["Greenwich",0,ANGLEUNIT["degree",0.0174532925199433]],ID["EPSG",4258]],CONVERSION["UTM zone 32N",METHOD["Transverse Mercator",ID["EPSG",9807]],` +
			`PARAMETER["Latitude of natural origin",0,ANGLEUNIT["degree",0.0174532925199433],ID["EPSG",8801]],PARAMETER["Longitude of natural origin",10,ANGLEUNIT["grad",0.015707963267948967]],` +
			`PARAMETER["Scale factor at natural origin",0.9996,SCALEUNIT["unity",1]],PARAMETER["False easting",500,LENGTHUNIT["kilometre",1000]]],CS[Cartesian,2],AXIS["(E)",east,ORDER[1],LENGTHUNIT["metre",1]],ID["EPSG",25832]]`,
			crsParameters{kind: modelTypeProjected, name: "ETRS89 / UTM zone 32N", code: 25832, geographic: 4258, angularUnit: 1, linearUnit: 1, datum: 6258, method: 9807, values: map[int]float64{8801: 0, 8802: 9, 8805: 0.9996, 8806: 500000}}},
		{"WKT 2, geographic", `GEOGCRS["WGS 84",DATUM["World Geodetic System 1984",ELLIPSOID["WGS 84",6378137,298.257223563]],CS[ellipsoidal,2],AXIS["lat",north],AXIS["lon",east],ANGLEUNIT["degree",0.0174532925199433],ID["EPSG",4326]]`,
			crsParameters{kind: modelTypeGeographic, name: "WGS 84", code: 4326, geographic: 4326, datum: 6326, angularUnit: 1}},
		{"WKT 2, geocentric", `GEODCRS["x",DATUM["d",ELLIPSOID["e",6378137,298]],CS[Cartesian,3],LENGTHUNIT["metre",1]]`,
			crsParameters{kind: modelTypeGeocentric, name: "x"}},
		{"compound", `COMPD_CS["both",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],AUTHORITY["EPSG","4326"]],VERT_CS["EGM96",VERT_DATUM["g",2005],UNIT["metre",1],AUTHORITY["EPSG","5773"]]]`,
			crsParameters{kind: modelTypeGeographic, name: "both", code: 4326, geographic: 4326, datum: 6326, vertical: 5773, verticalName: "EGM96", angularUnit: 1}},
		{"Esri, with heights", utmPRJ + `,VERTCS["NAVD_1988",VDATUM["North_American_Vertical_Datum_1988"],PARAMETER["Vertical_Shift",0.0],UNIT["Meter",1.0]]`,
			crsParameters{kind: modelTypeProjected, name: "WGS_1984_UTM_Zone_33N", geographic: userDefined, verticalName: "NAVD_1988", angularUnit: 1, linearUnit: 1, datum: 6326, method: 9807, values: utm33}},
		{"bound", `BOUNDCRS[SOURCECRS[GEOGCRS["a",DATUM["b",ELLIPSOID["e",6377397.155,299.1528128]],CS[ellipsoidal,2],ANGLEUNIT["degree",0.0174532925199433]]],TARGETCRS[GEOGCRS["WGS 84"]]]`,
			crsParameters{kind: modelTypeGeographic, name: "a", geographic: userDefined, angularUnit: 1}},
		{"round brackets, quotes in a name, white space", "\n GEOGCS (\"a \"\"b\"\"\" ,\r\n DATUM(\"WGS_1984\" , SPHEROID(\"x\",6378137,298.257223563)), UNIT(\"grad\",0.015707963267948967))",
			crsParameters{kind: modelTypeGeographic, name: `a "b"`, geographic: userDefined, datum: 6326, angularUnit: 0.9}},
	} {
		p, err := crsFromWKT(c.wkt)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		same := func(a, b float64) bool { return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*math.Abs(b) }
		w := c.want
		values := len(p.values) == len(w.values)
		for code, v := range w.values {
			values = values && same(p.values[code], v)
		}
		if p.kind != w.kind || p.name != w.name || p.code != w.code || p.geographic != w.geographic || p.datum != w.datum || p.vertical != w.vertical || p.verticalName != w.verticalName || p.method != w.method ||
			!p.present || !values || !same(p.angularUnit, w.angularUnit) || !same(p.linearUnit, w.linearUnit) {
			t.Errorf("%s:\n%+v, want\n%+v", c.name, p, w)
		}
	}
	for _, broken := range []string{"", "x", `GEOGCS`, `GEOGCS[`, `GEOGCS["a`, `GEOGCS["a"`, `GEOGCS["a",`, `[]`, `]`, `("a")`, `COMPD_CS["a",VERT_CS["b"]]`, strings.Repeat("A[", 100), "Projection GEOGRAPHIC\nUnits DD\n"} {
		if _, err := crsFromWKT(broken); err == nil || statusOf(err) == fileStatusUnreadable {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

// TestWKTPrimeMeridian: the prime meridian is in the unit of the CRS, except GDAL's Paris.
func TestWKTPrimeMeridian(t *testing.T) {
	for wkt, want := range map[string]float64{
		`GEOGCS["a",DATUM["d",SPHEROID["s",6378249.2,293.466]],PRIMEM["Paris",2.33722917],UNIT["grad",0.015707963267948967]]`:                                         2.33722917,
		`GEOGCRS["a",DATUM["d",ELLIPSOID["s",6378249.2,293.466]],PRIMEM["Paris",2.5969213,ANGLEUNIT["grad",0.015707963267948967]],UNIT["degree",0.0174532925199433]]`: 2.33722917,
		`GEOGCS["a",DATUM["d",SPHEROID["s",6378249.2,293.466]],PRIMEM["Bern",7.439583333333333],UNIT["degree",0.0174532925199433]]`:                                   7.439583333333333,
	} {
		if p, err := crsFromWKT(wkt); err != nil || math.Abs(p.primeMeridian-want) > 1e-8 {
			t.Errorf("%s: %v, %v", wkt, p.primeMeridian, err)
		}
	}
}

// FuzzWKT reads any text as the .prj of a grid.
func FuzzWKT(f *testing.F) {
	f.Add(utmPRJ)
	f.Add(`GEOGCRS["WGS 84",DATUM["World Geodetic System 1984",ELLIPSOID["WGS 84",6378137,298.257223563]],CS[ellipsoidal,2],AXIS["lat",north],ANGLEUNIT["degree",0.0174532925199433],ID["EPSG",4326]]`)
	f.Add(strings.Repeat("A[", 8000))
	f.Add(`A["` + strings.Repeat(`""`, 8000))
	f.Fuzz(func(t *testing.T, wkt string) {
		boundedReader(t, func() extent {
			const grid = "ncols 4\nnrows 3\nxllcorner 10\nyllcorner 20\ncellsize 1\n1 2 3 4\n"
			return files{"x.asc": grid, "x.prj": wkt}.read("x.asc", 0)
		})
	})
}
