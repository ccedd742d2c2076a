package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// registryKeys returns the keys of the registry, and fails if its lines are not sorted.
func registryKeys(t testing.TB) (keys []string) {
	t.Helper()
	last := ""
	for line := range strings.Lines(epsgCSV) {
		if line[0] == '#' {
			continue
		}
		if line <= last {
			t.Fatalf("%q stands behind %q", line, last)
		}
		key, _, _ := strings.Cut(line, ";")
		keys, last = append(keys, key), line
	}
	return keys
}

// TestRegistry finds every line by its key, reads every number, and makes every CRS of a supported
// method, also from its own text.
func TestRegistry(t *testing.T) {
	if len(epsgCSV) >= 800_000 || !strings.Contains(epsgCSV[:1000], "https://epsg.org/terms-of-use.html") {
		t.Errorf("%d bytes that begin %q", len(epsgCSV), epsgCSV[:1000])
	}
	numeric := map[byte][]int{'A': {1}, 'D': {1, 2}, 'E': {1, 2}, 'L': {1}, 'M': {1}, 'O': {1, 2}, 'P': {1}, 'S': {2, 3, 4}, 'U': {1}}
	unread := map[string]int{}
	crs := 0
	for _, key := range registryKeys(t) {
		fields := recordOfKey(key)
		line := strings.Join(fields, ";")
		if fields.text(0) != key {
			t.Fatalf("%q is found at %q", key, line)
		}
		for _, i := range numeric[key[0]] {
			for _, number := range strings.Fields(fields[i]) {
				if v, err := strconv.ParseFloat(number, 64); err != nil || !isFinite(v) {
					t.Errorf("%s: %q", line, number)
				}
			}
		}
		if key[0] != 'C' {
			continue
		}
		crs++
		code, _ := strconv.Atoi(key[1:])
		c, err := crsByCode(code)
		switch {
		case c.name != fields[len(fields)-1]:
			t.Errorf("%s is called %q", line, c.name)
		case err != nil && fields[1] == "P":
			unread[strconv.Itoa(c.method)]++
		case (err != nil) != strings.Contains("XV", fields[1]):
			t.Errorf("%s: %v", line, err)
		}
		back, err2 := crsByDefinition(c.text())
		if err == nil && (err2 != nil || back.projection != c.projection || back.method != c.method || back.datum != c.datum || back.unit != c.unit || len(back.shifts) != len(c.shifts)) {
			t.Errorf("%s: %q is another CRS: %v", line, c.text(), err2)
		}
		if fields[1] == "P" && err == nil && fields[5] == "nw" && c.parameters[8806] != c.parameters[8807] {
			t.Errorf("%s has different false coordinates, and its axes are exchanged", line)
		}
	}
	t.Logf("%d CRSs; of methods that are not read: %v", crs, unread)
	for _, absent := range []string{"", "C", "C1", "C99999", "C4326x", "S6326", "Z", "#", "~"} {
		if r := recordOfKey(absent); r != nil {
			t.Errorf("%q gives %q", absent, r)
		}
	}
	for code, want := range map[int]string{0: "registry", -1: "registry", 1 << 40: "registry", 4978: "geocentric", 5773: "vertical"} {
		if _, err := crsByCode(code); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// TestDatumShift: the shift from WGS 72 is the example of EPSG Guidance Note 7-2, method 9606, and
// each kind of datum has its accuracy.
func TestDatumShift(t *testing.T) {
	wgs72 := crsOf(t, 4322)
	s := datumShift{values: []float64{0, 0, 4.5, 0, 0, 0.554, 0.219}}
	// The example is 55° N 4° E, which becomes 55°00'00.090" N 4°00'00.554" E.
	lon, lat := s.toWGS84(wgs72.ellipsoid, 4, 55)
	if math.Abs(lon-(4+0.554/3600)) > 1e-9 || math.Abs(lat-(55+0.090/3600)) > 1.4e-7 {
		t.Errorf("WGS 72 gives %.9f %.9f", lon, lat)
	}
	if lon, lat = s.fromWGS84(wgs72.ellipsoid, lon, lat); math.Abs(lon-4) > 1e-12 || math.Abs(lat-55) > 1e-12 {
		t.Errorf("and back %.12f %.12f", lon, lat)
	}
	for _, c := range []struct {
		name       string
		code       int
		lon, lat   float64
		accuracyM  float64
		operations string
		values     int
	}{
		{"WGS 84", 32633, 15, 50, 0.1, "", 0},
		{"ETRS89", 25832, 10, 50, 1, "1149", 0},
		{"Ordnance Survey", 27700, -2, 52, 2, "1314", 7},
		{"ED50 by its country", 4230, -8, 40, 1, "", 7},
		{"NTF from Paris", 4807, 2, 48, 2, "1763+1193", 3},
		{"across 180 degrees", 4301, 150, 35, 9, "", 3},
		{"far outside of where the shift holds", 27700, 100, 0, accuracyUnknown, "", 0},
		{"near", 27700, 3, 52, accuracyUnknown, "", 7},
		{"no shift is known, on the ellipsoid of GRS 1980", 4490, 110, 30, accuracyGeocentric, "", 0},
		{"of an accuracy that EPSG does not state", 4255, 65, 35, accuracyUnknown, "", 3},
		{"no shift is known", 4610, 110, 30, accuracyUnknown, "", 0},
	} {
		s := crsOf(t, c.code).shiftAt(c.lon, c.lat, 0)
		if s.accuracyM != c.accuracyM || c.operations != "" && s.operations != c.operations || len(s.values) != c.values {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// TestWithoutCode: a CRS by its parameters yields the same degrees as the CRS by its code.
func TestWithoutCode(t *testing.T) {
	const wgs84Base = `GEOGCS["w",DATUM["D_WGS_1984",SPHEROID["WGS_1984",6378137,298.257223563]],PRIMEM["Greenwich",0],UNIT["Degree",0.0174532925199433]]`
	at := func(name string, v float64) string {
		return `,PARAMETER["` + name + `",` + strconv.FormatFloat(v, 'f', -1, 64) + `]`
	}
	project := func(base, method, parameters string) string {
		return `PROJCS["p",` + base + `,PROJECTION["` + method + `"]` + parameters + `,UNIT["Meter",1]]`
	}
	for _, c := range []struct {
		name, wkt string
		code      int // the like of it, 0 where there is none
		accuracy  float64
		x, y      float64
	}{
		{"Esri's Transverse Mercator", utmPRJ, 32633, 0.1, 600000, 5000000},
		{"Esri's north pole", project(wgs84Base, "Stereographic_North_Pole", at("Central_Meridian", -45)+at("Standard_Parallel_1", 70)), 3413, 0.1, 1e6, -1e6},
		{"GDAL's polar stereographic", project(wgs84Base, "Polar_Stereographic", at("latitude_of_origin", -71)+at("central_meridian", 0)+at("scale_factor", 1)), 3031, 0.1, 1e6, -1e6},
		{"of a scale at the pole", project(wgs84Base, "Polar_Stereographic", at("latitude_of_origin", 90)+at("central_meridian", 0)+at("scale_factor", 0.994)+at("false_easting", 2e6)+at("false_northing", 2e6)), 5041, 0.1, 1e6, 3e6},
		{"Esri's Mercator", project(wgs84Base, "Mercator", at("Central_Meridian", 0)+at("Standard_Parallel_1", 0)), 3395, 0.1, 1e6, 3e6},
		{"Esri's web Mercator", project(wgs84Base, "Mercator_Auxiliary_Sphere", at("Auxiliary_Sphere_Type", 0)), 3857, 0.1, 1e6, 3e6},
		{"GDAL's web Mercator", project(wgs84Base, "Mercator_1SP", at("scale_factor", 1)+`,EXTENSION["PROJ4","+proj=merc +a=6378137 +b=6378137 +nadgrids=@null +wktext"]`), 3857, 0.1, 1e6, 3e6},
		{"Lambert's cone", project(strings.Replace(wgs84Base, "D_WGS_1984", "D_ETRS_1989", 1), "Lambert_Conformal_Conic_2SP",
			at("latitude_of_origin", 52)+at("central_meridian", 10)+at("standard_parallel_1", 35)+at("standard_parallel_2", 65)+at("false_easting", 4e6)+at("false_northing", 2.8e6)), 3034, 1, 4e6, 3e6},
		{"Lambert's with one parallel", project(wgs84Base, "Lambert_Conformal_Conic", at("Central_Meridian", 0)+at("Standard_Parallel_1", 46.5)+at("Latitude_Of_Origin", 46.5)+at("Scale_Factor", 0.99987742)), 0, 0.1, 0, 0},
		{"Lambert's equal area", project(strings.Replace(wgs84Base, "D_WGS_1984", "European_Terrestrial_Reference_System_1989", 1), "Lambert_Azimuthal_Equal_Area",
			at("latitude_of_center", 52)+at("longitude_of_center", 10)+at("false_easting", 4321000)+at("false_northing", 3210000)), 3035, 1, 4e6, 3e6},
		{"Switzerland by two names", project(`GEOGCS["c",DATUM["CH1903",SPHEROID["Bessel 1841",6377397.155,299.1528128]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]`, "Hotine_Oblique_Mercator_Azimuth_Center",
			at("latitude_of_center", 46.952405555555565)+at("longitude_of_center", 7.439583333333333)+at("azimuth", 90)+at("rectified_grid_angle", 90)+at("scale_factor", 1)+at("false_easting", 600000)+at("false_northing", 200000)), 21781, 1.5, 700000, 250000},
		{"a shift of its own", project(`GEOGCS["c",DATUM["of its own",SPHEROID["x",6377397.155,299.1528128],TOWGS84[674.374,15.056,405.346]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]`, "Hotine_Oblique_Mercator_Azimuth_Center",
			at("latitude_of_center", 46.952405555555565)+at("longitude_of_center", 7.439583333333333)+at("azimuth", 90)+at("rectified_grid_angle", 90)+at("scale_factor", 1)+at("false_easting", 600000)+at("false_northing", 200000)), 21781, accuracyTOWGS84, 700000, 250000},
		{"an unknown datum", project(strings.Replace(wgs84Base, "D_WGS_1984", "mine", 1), "Transverse_Mercator", at("central_meridian", 9)+at("scale_factor", 0.9996)+at("false_easting", 500000)), 32632, accuracyGeocentric, 600000, 5000000},
		{"a datum on another's ellipsoid", project(strings.Replace(wgs84Base, "298.257223563", "297", 1), "Sinusoidal", ""), 0, accuracyUnknown, 0, 0},
		{"an unknown datum on another ellipsoid", project(`GEOGCS["w",DATUM["mine",SPHEROID["x",6370000,0]],UNIT["Degree",0.0174532925199433]]`, "Sinusoidal", ""), 0, accuracyUnknown, 0, 0},
	} {
		p, err := crsFromWKT(c.wkt)
		var m extent
		got, err2 := p.definition(&m, new(lastCRS))
		if err != nil || err2 != nil {
			t.Errorf("%s: %v, %v", c.name, err, err2)
			continue
		}
		if got, err = crsByDefinition(got.text()); err != nil { // as a query does
			t.Errorf("%s: %v", c.name, err)
		}
		lon, lat, err := got.projection.inverse(c.x, c.y)
		s := got.shiftAt(lon, lat, 0)
		if err != nil || s.accuracyM != c.accuracy {
			t.Errorf("%s: %v to %v m by %q", c.name, err, s.accuracyM, s.operations)
		}
		if c.code != 0 {
			like := crsOf(t, c.code)
			lon2, lat2, _ := like.projection.inverse(c.x, c.y)
			s2 := like.shiftAt(lon2, lat2, 0)
			lon, lat = s.toWGS84(got.projection.ellipsoid, lon, lat)
			lon2, lat2 = s2.toWGS84(like.projection.ellipsoid, lon2, lat2)
			if math.Hypot(lon-lon2, lat-lat2) > 1e-9 {
				t.Errorf("%s: %v %v, want %v %v", c.name, lon, lat, lon2, lat2)
			}
		}
	}
	for name, wkt := range map[string]string{
		"the Moon":              project(`GEOGCS["w",DATUM["m",SPHEROID["x",1737400,0]],UNIT["Degree",0.0174532925199433]]`, "Sinusoidal", ""),
		"no ellipsoid":          project(`GEOGCS["w",DATUM["m"],UNIT["Degree",0.0174532925199433]]`, "Sinusoidal", ""),
		"an unknown projection": project(wgs84Base, "Two_Point_Equidistant", ""),
		"no pole":               project(wgs84Base, "Polar_Stereographic", at("central_meridian", 0)),
		"an invalid meridian":   project(wgs84Base, "Transverse_Mercator", `,PARAMETER["central_meridian","x"]`),
		"an invalid unit":       strings.Replace(project(wgs84Base, "Transverse_Mercator", at("central_meridian", 9)), `["Meter",1]`, `["Meter",-1]`, 1),
		"an axis to the south":  strings.TrimSuffix(project(wgs84Base, "Transverse_Mercator", at("central_meridian", 9)), "]") + `,AXIS["Y",WEST],AXIS["X",SOUTH]]`,
		"no cone":               project(wgs84Base, "Lambert_Conformal_Conic_2SP", at("standard_parallel_1", 30)+at("standard_parallel_2", -30)),
	} {
		p, err := crsFromWKT(wkt)
		var m extent
		if c, err2 := p.definition(&m, new(lastCRS)); err != nil || err2 == nil || statusOf(err2) == fileStatusUnreadable {
			t.Errorf("%s: %v, %v gives %+v", name, err, err2, c)
		}
	}
}

// TestGeoKeysWithoutNumbers: a key without a valid number is an error, not a default.
func TestGeoKeysWithoutNumbers(t *testing.T) {
	type entries = [][4]float64
	utm := entries{{1024, 0, 1, 1}, {2048, 0, 1, 4314}, {3072, 0, 1, 32767}, {3075, 0, 1, 1}, {3080, tagGeoDoubleParams, 1, 0}}
	for _, c := range []struct {
		name string
		keys entries
		ok   bool
	}{
		{"whole", nil, true},
		{"no false easting", entries{{3082, tagGeoDoubleParams, 1, 1}}, false},
		{"scale beyond the numbers", entries{{3092, tagGeoDoubleParams, 1, 9}}, false},
		{"a scale of two numbers", entries{{3092, tagGeoDoubleParams, 2, 0}}, false},
		{"a unit without a size", entries{{3076, 0, 1, 32767}}, false},
		{"a unit of no size", entries{{3076, 0, 1, 32767}, {3077, tagGeoDoubleParams, 1, 1}}, false},
		{"a vertical CRS on another datum", entries{{4096, 0, 1, 4326}}, true},
	} {
		k := geoKeys{doubles: []float64{15, math.NaN()}}
		for _, e := range append(slices.Clone(utm), c.keys...) {
			k.entries = append(k.entries, e[:]...)
		}
		p := k.parameters()
		var m extent
		got, err := p.definition(&m, new(lastCRS))
		if (err == nil) != c.ok || c.ok && got.datum != 6314 {
			t.Errorf("%s: %v, datum %d", c.name, err, got.datum)
		}
	}
	var m extent
	k := geoKeys{entries: []float64{1024, 0, 1, 1, 2048, 0, 1, 4326, 3072, 0, 1, 32767, 3075, 0, 1, 1}}
	p := k.parameters()
	if _, err := p.definition(&m, new(lastCRS)); err != nil || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], "Longitude of natural origin") {
		t.Error(err, m.Warnings)
	}
}
