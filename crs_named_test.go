package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// esriWKT writes a projected CRS as Esri does. The parameters are alternately names and values.
func esriWKT(name, datum, ellipsoid, method, unit string, parameters ...any) string {
	var b strings.Builder
	fmt.Fprintf(&b, `PROJCS["%s",GEOGCS["g",DATUM["%s",SPHEROID["s",%s]],PRIMEM["Greenwich",0.0],UNIT["Degree",0.0174532925199433]],PROJECTION["%s"]`, name, datum, ellipsoid, method)
	for i := 0; i < len(parameters); i += 2 {
		fmt.Fprintf(&b, `,PARAMETER["%s",%v]`, parameters[i], parameters[i+1])
	}
	return b.String() + `,UNIT["u",` + unit + `]]`
}

// TestNamedCRS: a CRS in an Esri .prj has the EPSG code of the entry with the same datum, projection,
// parameters and unit up to rounding, and of several the one that is named alike.
func TestNamedCRS(t *testing.T) {
	const grs80, wgs84, bessel = "6378137.0,298.257222101", "6378137.0,298.257223563", "6377397.155,299.1528128"
	utm := func(name, datum, ellipsoid string, meridian, easting any) string {
		return esriWKT(name, datum, ellipsoid, "Transverse_Mercator", "1.0", "False_Easting", easting, "False_Northing", 0, "Central_Meridian", meridian, "Scale_Factor", 0.9996, "Latitude_Of_Origin", 0)
	}
	carolina := func(unit string, second any) string {
		return esriWKT("NAD_1983_StatePlane_North_Carolina_FIPS_3200_Feet", "D_North_American_1983", grs80, "Lambert_Conformal_Conic", unit, "False_Easting", 2000000.002616666,
			"False_Northing", 0, "Central_Meridian", -79, "Standard_Parallel_1", 36.16666667, "Standard_Parallel_2", second, "Latitude_Of_Origin", 33.75)
	}
	geographic := func(datum, ellipsoid, meridian, unit string) string {
		return `GEOGCS["g",DATUM["` + datum + `",SPHEROID["s",` + ellipsoid + `]],PRIMEM["m",` + meridian + `],UNIT["u",` + unit + `]]`
	}
	const degree = "0.0174532925199433"
	for _, c := range []struct{ name, wkt, crs string }{
		{"UTM", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", wgs84, 15.0, 500000.0), "EPSG:32633"},
		{"the usual order of axes", utm("ETRS_1989_UTM_Zone_32N", "D_ETRS_1989", grs80, 9, 500000), "EPSG:25832"},
		{"the same numbers, by name", utm("ETRS_1989_UTM_Zone_35N", "D_ETRS_1989", grs80, 27, 500000), "EPSG:25835"},
		{"the same numbers, by another name", utm("EUREF_FIN_TM35FIN", "D_ETRS_1989", grs80, 27, 500000), "EPSG:3067"},
		{"numbers decide, not the name", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", wgs84, 9, 500000), "EPSG:32632"},
		{"another false easting", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", wgs84, 15, 500001), ""},
		{"another meridian", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", wgs84, 15.00001, 500000), ""},
		{"rounded", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", wgs84, 15.0000001, 500000.001), "EPSG:32633"},
		{"an unknown datum", utm("WGS_1984_UTM_Zone_33N", "D_Mine", wgs84, 15, 500000), ""},
		{"another ellipsoid", utm("WGS_1984_UTM_Zone_33N", "D_WGS_1984", bessel, 15, 500000), ""},
		{"feet", carolina("0.3048006096012192", 34.33333333), "EPSG:2264"},
		{"feet of another kind", carolina("0.3048", 34.33333333), ""},
		{"another parallel", carolina("0.3048006096012192", 34.3334), ""},
		{"Lambert azimuthal", esriWKT("ETRS_1989_LAEA", "D_ETRS_1989", grs80, "Lambert_Azimuthal_Equal_Area", "1", "False_Easting", 4321000, "False_Northing", 3210000, "Central_Meridian", 10, "Latitude_Of_Origin", 52), "EPSG:3035"},
		{"oblique", esriWKT("CH1903+_LV95", "D_CH1903+", bessel, "Hotine_Oblique_Mercator_Azimuth_Center", "1", "False_Easting", 2600000, "False_Northing", 1200000, "Scale_Factor", 1, "Azimuth", 90, "Longitude_Of_Center", 7.43958333333333, "Latitude_Of_Center", 46.9524055555556), "EPSG:2056"},
		{"polar", esriWKT("x", "D_WGS_1984", wgs84, "Stereographic_South_Pole", "1", "False_Easting", 0, "False_Northing", 0, "Central_Meridian", 0, "Standard_Parallel_1", -71), "EPSG:3031"},
		{"Web Mercator", esriWKT("x", "D_WGS_1984", wgs84, "Mercator_Auxiliary_Sphere", "1", "False_Easting", 0, "False_Northing", 0, "Central_Meridian", 0, "Standard_Parallel_1", 0, "Auxiliary_Sphere_Type", 0), "EPSG:3857"},
		{"a parameter that is missing", esriWKT("x", "D_WGS_1984", wgs84, "Transverse_Mercator", "1", "False_Easting", 500000, "Latitude_Of_Origin", 0, "Scale_Factor", 0.9996), ""},
		{"geographic", geographic("D_WGS_1984", wgs84, "0", degree), "EPSG:4326"},
		{"geographic with three dimensions beside it", geographic("GDA2020", grs80, "0", degree), "EPSG:7844"},
		{"geographic in grads", geographic("D_WGS_1984", wgs84, "0", "0.015707963267948967"), ""},
		{"geographic from another meridian", geographic("D_WGS_1984", wgs84, "2.5", degree), ""},
	} {
		const grid = "ncols 1\nnrows 1\nxllcorner 1\nyllcorner 1\ncellsize 1\n1\n"
		f := files{"x.asc": grid, "x.prj": c.wkt, "y.asc": grid, "y.prj": utmPRJ}
		var h headerReader
		for range 2 { // because the reader remembers the last one
			if m := h.readExtent("x.asc", strings.NewReader(grid), int64(len(grid)), f.beside); value(m.CRS) != c.crs {
				t.Errorf("%s: %q, want %q: %s %q", c.name, value(m.CRS), c.crs, m.Status, value(m.Reason))
			}
			if m := h.readExtent("y.asc", strings.NewReader(grid), int64(len(grid)), f.beside); value(m.CRS) != "EPSG:32633" {
				t.Errorf("then: %q", value(m.CRS))
			}
		}
	}
}

// TestUserDefinedHasNoCode: a CRS that GeoKeys describe does not get the code of another file's.
func TestUserDefinedHasNoCode(t *testing.T) {
	keys := geoKeyTag([4]float64{1024, 0, 1, 1}, [4]float64{2048, 0, 1, 4326}, [4]float64{3072, 0, 1, 32767}, [4]float64{3074, 0, 1, 3856})
	content := testTIFF{binary.LittleEndian, false, with(testSize(), testPlace(), keys)}.build()
	const grid = "ncols 1\nnrows 1\nxllcorner 1\nyllcorner 1\ncellsize 1\n1\n"
	var h headerReader
	for range 2 {
		if m := h.readExtent("x.tif", bytes.NewReader(content), int64(len(content)), files{}.beside); m.CRS != nil || m.Status != fileStatusOK {
			t.Errorf("%s, %s", value(m.CRS), m.Status)
		}
		h.readExtent("x.asc", strings.NewReader(grid), int64(len(grid)), files{"x.prj": utmPRJ}.beside)
	}
}

// TestCodeOf: projected CRSs of the registry are found by their numbers.
func TestCodeOf(t *testing.T) {
	i := 0
	for r := range registryRecords(recordCRS) {
		c, err := crsByCode(record{strings.TrimPrefix(r[0], recordCRS)}.code(0))
		if i++; err != nil || r[1] != "P" || r[5] != "" || i%23 != 0 {
			continue
		}
		found, err := crsByCode(codeOf(&c, c.name))
		if err != nil || found.name != c.name || found.datum != c.datum || found.method != c.method || fmt.Sprint(found.parameters) != fmt.Sprint(c.parameters) {
			t.Errorf("%s %s becomes %s, %v", r[0], c.name, found.name, err)
		}
	}
}
