package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// delivery is a folder of tiles laid out as a real product is, as rows.
type delivery struct {
	name string
	rows map[string]*fileRow // by path
}

// tile adds a tile.
func (d *delivery) tile(path, crs string, x, y, w, h, dx, dy float64) {
	size := int64(1_000_000 + len(d.rows)*7919%300_000)
	d.rows[path] = &fileRow{path: path, fileRecord: fileRecord{size: size, modified: 1e18}, fileKind: fileKind{status: fileStatusOK,
		format: "geotiff", system: crs, vertical: "EPSG:5773", sampleType: "float32", nodata: "-9999", heightUnit: "m",
		scale: "1", bands: "1"}, hasBox: true, transform: [6]float64{dx, 0, x, 0, -dy, y + h}, box: [4]float64{x, y, x + w, y + h}}
}

// copernicus is laid out as GLO-30 and GLO-90 are in the bucket on AWS: pixels are registered at
// their centres, and get wider at 50°, 60°, 70°, 80° and 85°, so that columns of pixels are 1, 1.5,
// 2, 3, 5 and 10 times as wide.
func copernicus(name string, rows float64) delivery {
	d := delivery{name, map[string]*fileRow{}}
	for lat := 45; lat < 88; lat++ {
		for lon := -12; lon < 18; lon++ {
			factor := 1.0
			for _, limit := range [...][2]float64{{50, 1.5}, {60, 2}, {70, 3}, {80, 5}, {85, 10}} {
				if float64(lat) >= limit[0] {
					factor = limit[1]
				}
			}

			dx := factor / rows
			dy := 1 / rows
			east := fmt.Sprintf("E%03d", lon)
			if lon < 0 {
				east = fmt.Sprintf("W%03d", -lon)
			}

			cell := fmt.Sprintf("Copernicus_DSM_COG_10_N%02d_00_%s_00_DEM", lat, east)
			d.tile(cell+"/"+cell+".tif", "EPSG:4326", float64(lon)-dx/2, float64(lat)+dy/2, 1, 1, dx, dy)
		}
	}

	return d
}

// dtedDelivery is laid out as MIL-PRF-89020B says: a folder for each degree of longitude, posts at
// the edges of cells, which neighbours share, and longitude intervals 1, 2, 3, 4 and 6 times as
// wide from 50°, 70°, 75° and 80° on.
func dtedDelivery(level int, posts float64) delivery {
	d := delivery{fmt.Sprint("DTED", level), map[string]*fileRow{}}
	for lat := 40; lat < 84; lat++ {
		for lon := range 25 {
			factor := 1.0
			for _, limit := range [...][2]float64{{50, 2}, {70, 3}, {75, 4}, {80, 6}} {
				if float64(lat) >= limit[0] {
					factor = limit[1]
				}
			}

			dx := factor / posts
			dy := 1 / posts
			d.tile(fmt.Sprintf("e%03d/n%02d.dt%d", lon, lat, level), "EPSG:4326", float64(lon)-dx/2, float64(lat)-dy/2, 1+dx, 1+dy, dx, dy)
		}
	}

	return d
}

// deliveries returns clean deliveries of 1,000 tiles or more.
func deliveries() []delivery {
	srtm := delivery{"SRTM", map[string]*fileRow{}}
	swiss := delivery{"LV95", map[string]*fileRow{}}
	british := delivery{"British", map[string]*fileRow{}}
	utm := delivery{"UTM", map[string]*fileRow{}}
	for column := range 32 {
		for row := range 32 {
			lat := row - 16
			lon := column - 16 // four quarters of the globe
			name := fmt.Sprintf("%c%02d%c%03d.hgt", "NS"[b2i(lat < 0)], max(lat, -lat), "EW"[b2i(lon < 0)], max(lon, -lon))
			post := 1.0 / 3600
			srtm.tile(name, "EPSG:4326", float64(lon)-post/2, float64(lat)-post/2, 1+post, 1+post, post, post)

			swiss.tile(fmt.Sprintf("swissalti3d_2019_%d-%d_0.5_2056_5728.tif", 2600+column, 1182+row), "EPSG:2056",
				float64(2600+column)*1000, float64(1182+row)*1000, 1000, 1000, 0.5, 0.5)
			british.tile(fmt.Sprintf("ny/ny%02d%02d_dtm_1m.tif", column, row), "EPSG:27700",
				300_000+float64(column)*1000, 500_000+float64(row)*1000, 1000, 1000, 1, 1)
			utm.tile(fmt.Sprintf("lot%d/dgm1_32_%d_%d_1_by.tif", 1+column/16, 500+column, 5400+row), "EPSG:25832",
				float64(500+column)*1000, float64(5400+row)*1000, 1000, 1000, 1, 1)
		}
	}

	return []delivery{copernicus("GLO-30", 3600), copernicus("GLO-90", 1200), dtedDelivery(0, 120), dtedDelivery(1, 1200), dtedDelivery(2, 3600), srtm, swiss, british, utm}
}

// b2i returns 1 for true.
func b2i(v bool) int {
	if v {
		return 1
	}
	return 0
}

// check runs the checks and returns the findings by code, as "path: detail".
func (d delivery) check(t *testing.T) (*fileSet, map[string][]string) {
	t.Helper()
	return d.checkExpecting(t, expectation{})
}

// checkExpecting runs the checks with an expectation.
func (d delivery) checkExpecting(t *testing.T, expected expectation) (*fileSet, map[string][]string) {
	t.Helper()
	s := newFileSet(int64(len(d.rows)), storedExpectation{expectation: expected})
	paths := map[int64]flawRow{}
	for i, path := range slices.Sorted(maps.Keys(d.rows)) {
		row := *d.rows[path]
		row.id = int64(i + 1)
		paths[row.id] = flawRow{ID: row.id, Path: path, Text: row.status}
		s.add(row)
	}

	if err := s.check(t.Context()); err != nil {
		t.Fatal(err)
	}

	found := map[string][]string{}
	for code, list := range s.flaws {
		for _, f := range list.first {
			file := s.describe(code, f, paths)
			found[code] = append(found[code], file.path+": "+file.detail)
		}
		slices.Sort(found[code])
	}

	for i := range s.grids {
		for tile := range s.grids[i].missing() {
			found["missing"] = append(found["missing"], tile.Name)
		}
	}

	return s, found
}

// TestCleanDeliveries: nothing is found in deliveries that are in order.
func TestCleanDeliveries(t *testing.T) {
	t.Parallel()
	for _, d := range deliveries() {
		t.Run(d.name, func(t *testing.T) {
			if _, found := d.check(t); len(found) > 0 || len(d.rows) < 1000 {
				t.Errorf("%d tiles: %.2000v", len(d.rows), found)
			}
		})
	}
}

// TestStripsOnly: rasters that are long strips along both axes are no tiles of a grid.
func TestStripsOnly(t *testing.T) {
	t.Parallel()
	d := delivery{"strips", map[string]*fileRow{}}
	for i := range 2 {
		offset := float64(i) * 1e6
		d.tile(fmt.Sprintf("high%d.tif", i), "EPSG:25832", 100_000+offset, 5_000_000+offset, 1000, 10_000, 1, 1)
		d.tile(fmt.Sprintf("wide%d.tif", i), "EPSG:25832", 400_000+offset, 5_500_000+offset, 10_000, 1000, 1, 1)
	}

	if s, found := d.check(t); len(found) > 0 || len(s.grids) != 1 || s.grids[0].isRegular {
		t.Errorf("%d grids, findings %v", len(s.grids), found)
	}
}

// TestContents: the summary counts statuses, formats and sizes, and the area that tiles cover.
func TestContents(t *testing.T) {
	t.Parallel()
	all := deliveries()
	d := all[slices.IndexFunc(all, func(d delivery) bool { return d.name == "UTM" })]
	d.rows["readme.txt"] = &fileRow{path: "readme.txt", fileKind: fileKind{status: fileStatusUnsupported, format: "text"}}
	copied := *d.rows[utmTile(505, 5410)]
	d.rows["copy.tif"] = &copied
	s, _ := d.check(t)
	want := []contentCount{{"status", "1025 files ok, 1 file unsupported"}, {"format", "1025 files geotiff, 1 file text"},
		{"size in pixels", "1025 files 1000 × 1000"}}
	for _, count := range want {
		if !slices.Contains(s.contents(), count) {
			t.Errorf("%v is not in %v", count, s.contents())
		}
	}

	if got := s.covered(); math.Abs(got-1024) > 1e-6 {
		t.Errorf("%g km² are covered, want 1024", got)
	}

	// From 16° S to 16° N and 16° W to 16° E: 32 degrees of 2πR/360 each, times the difference of the sines of latitude.
	srtm := all[slices.IndexFunc(all, func(d delivery) bool { return d.name == "SRTM" })]
	s, _ = srtm.check(t)
	if got, want := s.covered(), 32*math.Pi/180*6371*6371*2*math.Sin(16*math.Pi/180); math.Abs(got/want-1) > 0.002 {
		t.Errorf("%g km² are covered, want %g", got, want)
	}

	if empty := newFileSet(0, storedExpectation{}); empty.contents() == nil || empty.covered() != 0 {
		t.Error("an empty dataset has contents")
	}
}

// plantedFault is a fault in a clean delivery.
type plantedFault struct {
	name, delivery string
	plant          func(rows map[string]*fileRow)
	want           map[string]string // by code: the beginning of each line, separated by "|"
}

// utmTile is the path of a tile of the UTM delivery.
func utmTile(column, row int) string {
	return fmt.Sprintf("lot%d/dgm1_32_%d_%d_1_by.tif", 1+(column-500)/16, column, row)
}

// moveTile moves a tile.
func moveTile(f *fileRow, x, y float64) {
	f.box = [4]float64{f.box[0] + x, f.box[1] + y, f.box[2] + x, f.box[3] + y}
}

// faultsOfPlace are faults of where tiles lie.
func faultsOfPlace() []plantedFault {
	at := utmTile(505, 5410)
	return []plantedFault{
		{"a tile missing inside", "UTM", func(r map[string]*fileRow) { delete(r, at) }, map[string]string{"missing": "EPSG:25832 505000 5410000"}},
		{"a missing corner beside a stray", "UTM", func(r map[string]*fileRow) {
			delete(r, utmTile(500, 5400))
			stray := *r[at]
			stray.path = "lot2/dgm1_32_900_5900_1_by.tif"
			moveTile(&stray, 395_000, 490_000)
			r[stray.path] = &stray
		}, map[string]string{"missing": "EPSG:25832 500000 5400000", "far": "lot2/dgm1_32_900_5900_1_by.tif: its lower left corner is at 900000, 5900000"}},
		{"a missing corner and edge beside a second lot", "UTM", func(r map[string]*fileRow) {
			delete(r, utmTile(500, 5400))
			delete(r, utmTile(510, 5400))
			for path, f := range maps.Clone(r) {
				lot := *f
				lot.path = "far" + strings.Replace(strings.Replace(path, "_5", "_6", 1), "_5", "_7", 1)
				moveTile(&lot, 100_000, 2_000_000)
				r[lot.path] = &lot
			}

			for _, column := range []int{600, 610} { // of which nothing is missing
				path := fmt.Sprintf("farlot1/dgm1_32_%d_7400_1_by.tif", column)
				f := *r["farlot1/dgm1_32_601_7400_1_by.tif"]
				f.path = path
				moveTile(&f, float64(column-601)*1000, 0)
				r[path] = &f
			}
		}, map[string]string{"missing": "EPSG:25832 500000 5400000|EPSG:25832 510000 5400000"}},
		{"a copy", "UTM", func(r map[string]*fileRow) {
			f := *r[at]
			f.path = strings.Replace(at, ".tif", " (1).tif", 1)
			f.modified++
			r[f.path] = &f
		}, map[string]string{"duplicate": "lot1/dgm1_32_505_5410_1_by (1).tif: the same extent, pixels and size in bytes as " + at}},
		{"an older version", "UTM", func(r map[string]*fileRow) {
			f := *r[at]
			f.path = "old1/" + strings.TrimPrefix(at, "lot1/")
			f.modified -= 1e15
			f.size++
			r[f.path] = &f
		}, map[string]string{"overlap": "old1/dgm1_32_505_5410_1_by.tif: the same extent as a newer file: " + at}},
		{"an older version of the same name", "UTM", func(r map[string]*fileRow) {
			f := *r[at]
			f.path = "lot9/" + strings.TrimPrefix(at, "lot1/")
			f.modified -= 1e15
			f.size++
			r[f.path] = &f
		}, map[string]string{"overlap": "lot9/dgm1_32_505_5410_1_by.tif: the same extent as a newer file: " + at}},
		{"moved by half a pixel", "UTM", func(r map[string]*fileRow) { moveTile(r[at], 0.5, -0.5) },
			map[string]string{"misaligned": at + ": moved by 0.5 pixels in x, -0.5 in y"}},
		{"moved by 30 pixels", "UTM", func(r map[string]*fileRow) { moveTile(r[at], 30, 0) }, map[string]string{
			"misaligned": at + ": moved by 30 pixels in x, 0 in y", "overlap": at + ": it overlaps 1 tile by 0.03 km², first " + utmTile(506, 5410)}},
		{"moved by 400 m in x and y", "UTM", func(r map[string]*fileRow) { moveTile(r[at], 400, 400) }, map[string]string{
			"misaligned": at + ": moved by 400 pixels in x, 400 in y", "overlap": at + ": it overlaps 3 tiles by 0.64 km², first " + utmTile(505, 5411)}},
		{"moved by one tile", "UTM", func(r map[string]*fileRow) { moveTile(r[at], 1000, 0) }, map[string]string{
			"missing": "EPSG:25832 505000 5410000", "name": at + ": its lower left corner is at 506000, 5410000", "overlap": at + ": the same extent as a"}},
		{"with a buffer of 200 m", "UTM", func(r map[string]*fileRow) {
			r[at].box = [4]float64{504_800, 5_409_800, 506_200, 5_411_200}
		}, map[string]string{"misaligned": at + ": larger than its cell by 200 pixels in the west, 200 south, 200 east, 200 north",
			"overlap": at + ": it overlaps 8 tiles by 0.96 km², first "}},
		{"a pixel more in the east", "UTM", func(r map[string]*fileRow) { r[at].box[2] += 30 }, map[string]string{
			"misaligned": at + ": larger than its cell by 0 pixels in the west, 0 south, 30 east, 0 north",
			"overlap":    at + ": it overlaps 1 tile by 0.03 km², first " + utmTile(506, 5410)}},
		{"half a tile", "UTM", func(r map[string]*fileRow) { r[at].box[2] -= 500 }, map[string]string{
			"misaligned": at + ": it covers 50 % of its cell: its edges are off by 0 pixels in the west, 0 south, -500 east, 0 north"}},
		{"a mosaic beside its tiles", "UTM", func(r map[string]*fileRow) {
			f := *r[at]
			f.path = "lot1/mosaic.tif"
			f.size = 4 * f.size
			f.box[2] = f.box[2] + 1000
			f.box[3] = f.box[3] + 1000
			r[f.path] = &f
		}, map[string]string{"misaligned": "lot1/mosaic.tif: larger than its cell by", "overlap": "lot1/mosaic.tif: it overlaps 4 tiles by 4 km², first " + at}},
	}
}

// faultsOfKind are faults of what is in the files.
func faultsOfKind() []plantedFault {
	at := utmTile(505, 5410)
	return []plantedFault{
		{"outside the area of the CRS", "UTM", func(r map[string]*fileRow) {
			r[at].isOutside = true
		}, map[string]string{
			"outside_area": at}},
		{"pixels not square", "UTM", func(r map[string]*fileRow) { r[at].transform[0] = 1.0001; r[at].box[2] += 0.1 }, map[string]string{
			"resolution": at + ": pixels of 1.0001 × 1 m where 1 m is usual", "misaligned": at}},
		{"wider pixels", "UTM", func(r map[string]*fileRow) { r[at].transform[0] = 2 }, map[string]string{
			"resolution": at + ": pixels of 2 × 1 m where 1 m is usual"}},
		{"wider pixels in degrees", "GLO-30", func(r map[string]*fileRow) {
			r["Copernicus_DSM_COG_10_N60_00_E005_00_DEM/Copernicus_DSM_COG_10_N60_00_E005_00_DEM.tif"].transform[0] *= 2
		}, map[string]string{"resolution": "Copernicus_DSM_COG_10_N60_00_E005_00_DEM/"}},
		{"coarser pixels", "UTM", func(r map[string]*fileRow) {
			r[at].transform[0] = 2
			r[at].transform[4] = -2
		}, map[string]string{
			"resolution": at + ": pixels of 2 m where 1 m is usual", "missing": "EPSG:25832 505000 5410000"}},
		{"rotated", "UTM", func(r map[string]*fileRow) { r[at].transform[1] = 0.01 }, map[string]string{
			"orientation": at + ": rotated where north up is usual", "missing": "EPSG:25832 505000 5410000"}},
		{"upside down", "UTM", func(r map[string]*fileRow) { r[at].transform[4] = 1 }, map[string]string{
			"orientation": at + ": south up where north up is usual"}},
		{"another zone", "UTM", func(r map[string]*fileRow) { r[at].system = "EPSG:25833" }, map[string]string{
			"crs": at + ": EPSG:25833 (ETRS89 / UTM zone 33N) where EPSG:25832 (ETRS89 / UTM zone 32N) is usual", "missing": "EPSG:25832 505000 5410000"}},
		{"many tiles of another zone", "UTM", func(r map[string]*fileRow) {
			for column := range 10 {
				for row := range 10 {
					f := *r[at]
					f.path = fmt.Sprintf("lot3/dgm1_33_%d_%d_1_by.tif", 300+column, 5400+row)
					f.system = "EPSG:25833"
					moveTile(&f, float64(300+column-505)*1000, float64(5400+row-5410)*1000)
					f.size += int64(column)
					r[f.path] = &f
				}
			}
		}, map[string]string{"mixed": ".: CRS: 1024 files EPSG:25832 (ETRS89 / UTM zone 32N), 100 files EPSG:25833 (ETRS89 / UTM zone 33N)"}},
		{"another vertical CRS", "UTM", func(r map[string]*fileRow) { r[at].vertical = "EPSG:7837" }, map[string]string{
			"vertical_crs": at + ": EPSG:7837 (DHHN2016 height) where EPSG:5773 (EGM96 height) is usual"}},
		{"no vertical CRS", "LV95", func(r map[string]*fileRow) { r["swissalti3d_2019_2610-1190_0.5_2056_5728.tif"].vertical = notStated }, map[string]string{
			"vertical_crs": "swissalti3d_2019_2610-1190_0.5_2056_5728.tif: not stated where EPSG:5773 (EGM96 height) is usual"}},
		{"ellipsoidal heights", "SRTM", func(r map[string]*fileRow) {
			r["N05E007.hgt"].system = "EPSG:4979"
			r["N05E007.hgt"].vertical = notStated
		}, map[string]string{
			"vertical_crs": "N05E007.hgt: ellipsoidal (EPSG:4979) where EPSG:5773 (EGM96 height) is usual"}},
		{"half with another vertical CRS", "SRTM", func(r map[string]*fileRow) {
			for path, f := range r {
				if path[0] == 'S' {
					f.vertical = "EPSG:3855"
				}
			}
		}, map[string]string{"mixed": ".: vertical CRS: 512 files EPSG:3855 (EGM2008 height), 512 files EPSG:5773 (EGM96 height)"}},
		{"a folder with another nodata value", "UTM", func(r map[string]*fileRow) {
			for path, f := range r {
				if strings.HasPrefix(path, "lot2/") {
					f.nodata = "-32768"
				}
			}
		}, map[string]string{"mixed": ".: nodata: 512 files -32768, 512 files -9999"}},
		{"another data type", "GLO-90", func(r map[string]*fileRow) {
			r["Copernicus_DSM_COG_10_N47_00_W003_00_DEM/Copernicus_DSM_COG_10_N47_00_W003_00_DEM.tif"].sampleType = "int16"
		}, map[string]string{"sample_type": "Copernicus_DSM_COG_10_N47_00_W003_00_DEM/Copernicus_DSM_COG_10_N47_00_W003_00_DEM.tif: int16 where float32 is usual"}},
		{"no nodata value", "British", func(r map[string]*fileRow) { r["ny/ny0705_dtm_1m.tif"].nodata = notStated }, map[string]string{
			"nodata": "ny/ny0705_dtm_1m.tif: not stated where -9999 is usual"}},
		{"heights in feet", "UTM", func(r map[string]*fileRow) { r[at].heightUnit = "foot" }, map[string]string{"unit": at + ": foot where m is usual"}},
		{"heights in feet, by the vertical CRS", "UTM", func(r map[string]*fileRow) { r[at].heightUnit, r[at].vertical = "", "EPSG:6360" }, map[string]string{
			"unit": at + ": US survey foot where m is usual", "vertical_crs": at + ": EPSG:6360 (NAVD88 height (ftUS)) where EPSG:5773 (EGM96 height) is usual"}},
		{"no unit", "UTM", func(r map[string]*fileRow) { r[at].heightUnit = "" }, map[string]string{}},
		{"no unit in any file", "UTM", func(r map[string]*fileRow) {
			for _, f := range r {
				f.heightUnit = ""
			}
		}, nil},
		{"another scale", "UTM", func(r map[string]*fileRow) { r[at].scale = "0.1, offset 100" }, map[string]string{
			"scale": at + ": scale 0.1, offset 100 where 1 is usual"}},
		{"a folder with another scale", "UTM", func(r map[string]*fileRow) {
			for path, f := range r {
				if strings.HasPrefix(path, "lot2/") {
					f.scale = "0.01"
				}
			}
		}, map[string]string{"mixed": ".: scale: 512 files 0.01, 512 files 1"}},
		{"three bands", "UTM", func(r map[string]*fileRow) { r[at].bands = "3" }, map[string]string{"bands": at + ": bands: 3 where 1 is usual"}},
	}
}

// faultsOfNames are faults of names, and of files that cannot be read.
func faultsOfNames() []plantedFault {
	at := utmTile(505, 5410)
	return []plantedFault{
		{"another place, UTM", "UTM", func(r map[string]*fileRow) {
			f := r[at]
			other := r[utmTile(520, 5420)]
			f.box, other.box = other.box, f.box
		}, map[string]string{"name": at + ": its lower left corner is at 520000, 5420000|" + utmTile(520, 5420)}},
		{"another place, Copernicus", "GLO-30", func(r map[string]*fileRow) {
			f := r["Copernicus_DSM_COG_10_N47_00_W003_00_DEM/Copernicus_DSM_COG_10_N47_00_W003_00_DEM.tif"]
			other := r["Copernicus_DSM_COG_10_N48_00_E003_00_DEM/Copernicus_DSM_COG_10_N48_00_E003_00_DEM.tif"]
			f.box, other.box = other.box, f.box
		}, map[string]string{"name": "Copernicus_DSM_COG_10_N47_00_W003_00_DEM/|Copernicus_DSM_COG_10_N48_00_E003_00_DEM/"}},
		{"another place, DTED", "DTED1", func(r map[string]*fileRow) { moveTile(r["e013/n45.dt1"], 0, 1) }, map[string]string{
			"name": "e013/n45.dt1: its lower left corner is at", "missing": "EPSG:4326 12.99", "overlap": "e013/n45.dt1: the same extent as"}},
		{"another hemisphere", "SRTM", func(r map[string]*fileRow) {
			f := r["N05E007.hgt"]
			other := r["S05E007.hgt"]
			f.box, other.box = other.box, f.box
		}, map[string]string{"name": "N05E007.hgt: its lower left corner|S05E007.hgt: its lower left corner"}},
		{"swapped axes", "LV95", func(r map[string]*fileRow) {
			f := r["swissalti3d_2019_2610-1190_0.5_2056_5728.tif"]
			f.box = [4]float64{f.box[1], f.box[0], f.box[3], f.box[2]}
		}, map[string]string{"far": "swissalti3d_2019_2610-1190", "name": "swissalti3d_2019_2610-1190", "missing": "EPSG:2056 2610000 1190000"}},
		{"swapped axes, a name without coordinates", "British", func(r map[string]*fileRow) { moveTile(r["ny/ny0705_dtm_1m.tif"], 198_000, -202_000) },
			map[string]string{"far": "ny/ny0705_dtm_1m.tif", "missing": "EPSG:27700 307000 505000"}},
		{"names without coordinates", "UTM", func(r map[string]*fileRow) {
			for _, name := range []string{"lot1/overview.tif", "lot1/preview 7.tif"} {
				f := *r[at]
				f.path = name
				f.size = 9000 + int64(len(name))
				f.box = [4]float64{500_000, 5_400_000, 532_000, 5_432_000}
				f.transform[0] = 100
				f.transform[4] = -100
				r[name] = &f
			}
		}, map[string]string{"resolution": "lot1/overview.tif: pixels of 100 m where 1 m is usual|lot1/preview 7.tif",
			"overlap": "lot1/preview 7.tif: the same extent as an older file: lot1/overview.tif"}},
		{"no CRS", "UTM", func(r map[string]*fileRow) {
			r[at].system = ""
			r[at].status = fileStatusNoBBox
		}, map[string]string{
			"no_extent": at, "missing": "EPSG:25832 505000 5410000"}},
		{"cut off", "UTM", func(r map[string]*fileRow) { r[at].status = fileStatusCorrupt }, map[string]string{
			"corrupt": at, "missing": "EPSG:25832 505000 5410000"}},
		{"half-finished", "UTM", func(r map[string]*fileRow) {
			f := r[at]
			delete(r, at)
			f.path = at + ".part"
			r[f.path] = f
		}, map[string]string{"unread": at + ".part: half-finished copy", "missing": "EPSG:25832 505000 5410000"}},
		{"formats that are not read", "UTM", func(r map[string]*fileRow) {
			for _, name := range []string{"a.img", "b.laz", "c.nc", "d.xyz", "e.jp2", "README.txt"} {
				r[name] = &fileRow{path: name, fileKind: fileKind{status: fileStatusUnsupported}}
			}
			r["f.dat"] = &fileRow{path: "f.dat", fileKind: fileKind{status: fileStatusUnsupported, format: "hfa"}}
		}, map[string]string{"unread": "a.img: Erdas Imagine|b.laz: LAZ point cloud|c.nc: netCDF|d.xyz: XYZ text|e.jp2: JPEG 2000|f.dat: Erdas Imagine"}},
		{"a page instead of a raster", "UTM", func(r map[string]*fileRow) {
			r["lot1/page.tif"] = &fileRow{path: "lot1/page.tif", fileKind: fileKind{status: fileStatusUnsupported, format: "text"}}
		}, map[string]string{"unreadable": "lot1/page.tif"}},
		{"no data", "UTM", func(r map[string]*fileRow) { r[at].size = 20_000 }, map[string]string{
			"suspect_data": at + ": it has 20000 bytes, its neighbours have at least 1"}},
		{"a warning", "UTM", func(r map[string]*fileRow) { r[at].isWarned = true }, map[string]string{"warning": at}},
	}
}

// TestPlantedFaults plants one fault of each kind into a clean delivery, and finds it with its
// file, and nothing else.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	for _, test := range slices.Concat(faultsOfPlace(), faultsOfKind(), faultsOfNames()) {
		t.Run(test.name, func(t *testing.T) {
			all := deliveries()
			d := all[slices.IndexFunc(all, func(d delivery) bool { return d.name == test.delivery })]
			test.plant(d.rows)
			_, found := d.check(t)
			for code, want := range test.want {
				lines := strings.Split(want, "|")
				isRight := len(lines) == len(found[code])
				for i := range min(len(lines), len(found[code])) {
					isRight = isRight && strings.HasPrefix(found[code][i], lines[i])
				}

				if !isRight {
					t.Errorf("%s: got %.1000q, want %q", code, found[code], lines)
				}

				delete(found, code)
			}

			if len(found) > 0 {
				t.Errorf("findings that are none: %.2000v", found)
			}
		})
	}
}

// blockOfTiles is a block of tiles of 1 km, or of degrees whose posts at the edges are shared. Each moved tile, by column and
// row, is moved by that many pixels in x and y.
type blockOfTiles struct {
	columns, lines int
	isShared       bool
	without        [][2]int
	moved          map[[2]int][2]float64
}

// delivery returns the tiles.
func (b blockOfTiles) delivery() delivery {
	d := delivery{"block", map[string]*fileRow{}}
	crs, step, pixel, border := "EPSG:25832", 1000.0, 10.0, 0.0
	if b.isShared {
		crs, step, pixel, border = "EPSG:4326", 1.0, 0.01, 0.01
	}

	for column := range b.columns {
		for row := range b.lines {
			at := [2]int{column, row}
			if slices.Contains(b.without, at) {
				continue
			}

			by := b.moved[at]
			x := (float64(column)+5)*step - border/2 + by[0]*pixel
			y := (float64(row)+5)*step - border/2 + by[1]*pixel
			d.tile(fmt.Sprintf("%c%c.tif", 'a'+column, 'a'+row), crs, x, y, step+border, step+border, pixel, pixel)
		}
	}
	return d
}

// TestMisplacedTilesInSmallBlocks: a moved tile is found with its own path, in whatever block, and all others are in order.
func TestMisplacedTilesInSmallBlocks(t *testing.T) {
	t.Parallel()
	sizes := [][2]int{{4, 1}, {8, 1}, {2, 2}, {3, 2}, {30, 2}, {3, 3}, {30, 3}, {4, 4}, {6, 6}}
	for _, size := range sizes {
		for _, isShared := range []bool{false, true} {
			for _, by := range [][2]float64{{0.5, 0}, {0, -0.5}, {0, -25}, {-25, -25}, {25, 25}, {10, 40}, {-40, 10}} {
				isAmbiguous := isShared && size[0]*size[1] <= 4 // one pair of tiles contradicts another
				if isAmbiguous {
					continue
				}

				for column := range size[0] {
					for row := range size[1] {
						for _, around := range [][2]int{{column, row}, {row, column}} { // also with the axes swapped
							b := blockOfTiles{columns: size[0], lines: size[1], isShared: isShared, moved: map[[2]int][2]float64{around: by}}
							if around[0] != column {
								b.columns, b.lines = b.lines, b.columns
							}
							checkMisplaced(t, b, around, by)
						}
					}
				}
			}
		}
	}
}

// checkMisplaced checks that only the moved tile of a block is misaligned, by the pixels that it was moved, and that no
// neighbour is to blame for the overlap.
func checkMisplaced(t *testing.T, b blockOfTiles, at [2]int, by [2]float64) {
	t.Helper()
	s, found := b.delivery().check(t)
	path := fmt.Sprintf("%c%c.tif: ", 'a'+at[0], 'a'+at[1])
	want := []string{path + fmt.Sprintf("moved by %g pixels in x, %g in y", by[0], by[1])}
	if !slices.Equal(found["misaligned"], want) {
		t.Errorf("%d by %d, shared %v: got %.300q, want %q; grid %g by %g", b.columns, b.lines, b.isShared, found["misaligned"], want, s.grids[0].East, s.grids[0].North)
	}
	for _, line := range found["overlap"] {
		if !strings.HasPrefix(line, path) {
			t.Errorf("%d by %d, shared %v: overlap %q", b.columns, b.lines, b.isShared, line)
		}
	}
	delete(found, "misaligned")
	delete(found, "overlap")
	if len(found) > 0 {
		t.Errorf("%d by %d, shared %v, %v moved by %v: %v", b.columns, b.lines, b.isShared, at, by, found)
	}
}

// TestMissingBesideMisplaced: an inner tile is missing, and another one is moved.
func TestMissingBesideMisplaced(t *testing.T) {
	t.Parallel()
	b := blockOfTiles{columns: 30, lines: 3, without: [][2]int{{20, 1}}, moved: map[[2]int][2]float64{{4, 2}: {0, -25}}}
	_, found := b.delivery().check(t)
	want := map[string][]string{
		"misaligned": {"ec.tif: moved by 0 pixels in x, -25 in y"},
		"missing":    {"EPSG:25832 25000 6000"},
		"overlap":    {"ec.tif: it overlaps 1 tile by 0.25 km², first eb.tif"},
	}
	if !maps.EqualFunc(found, want, slices.Equal) {
		t.Errorf("got %q, want %q", found, want)
	}
}

// TestOutlines: tiles are missing at an outline if the rectangle is nearly full, and where a column or a row is missing straight
// through. Otherwise the report says that the outline was not judged.
func TestOutlines(t *testing.T) {
	t.Parallel()
	column := func(column, from, to int) (cells [][2]int) {
		for row := from; row <= to; row++ {
			cells = append(cells, [2]int{column, row})
		}
		return cells
	}

	for _, test := range []struct {
		name           string
		columns, lines int
		without        [][2]int
		missing        int
		isJudged       bool
	}{
		{"a full rectangle", 5, 5, nil, 0, true},
		{"three at the outline", 5, 5, [][2]int{{0, 2}, {4, 1}, {2, 4}}, 3, true},
		{"four at the outline", 5, 5, [][2]int{{0, 2}, {4, 1}, {2, 4}, {3, 0}}, 0, false},
		{"a column straight through", 6, 6, column(3, 0, 5), 6, true},
		{"and a tile beside it", 6, 6, append(column(3, 0, 5), [2]int{2, 0}), 7, true},
		{"a short column", 6, 3, column(3, 0, 2), 0, false},
		{"two columns of nine", 9, 5, append(column(3, 0, 4), column(4, 0, 4)...), 10, true},
		{"an island of one tile", 8, 6, append(column(6, 0, 5), column(7, 0, 4)...), 0, false},
		{"a bay", 6, 6, column(3, 0, 4), 0, false},
		{"a column and one inside", 6, 6, append(column(3, 0, 5), [2]int{1, 1}), 7, true},
		{"an inlet beside a hole", 6, 6, append(column(3, 0, 4), [2]int{1, 1}), 1, false},
		{"an island whose shore is short", 6, 6, slices.Concat(column(4, 0, 5), column(5, 0, 2), column(3, 0, 1)), 0, false},
		{"every second column and row", 7, 7, slices.Concat(column(1, 0, 6), column(3, 0, 6), column(5, 0, 6),
			[][2]int{{0, 1}, {2, 1}, {4, 1}, {6, 1}, {0, 3}, {2, 3}, {4, 3}, {6, 3}, {0, 5}, {2, 5}, {4, 5}, {6, 5}}), 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, isTurned := range []bool{false, true} {
				b := blockOfTiles{columns: test.columns, lines: test.lines, without: slices.Clone(test.without)}
				if isTurned {
					b.columns, b.lines = b.lines, b.columns
					for i, at := range b.without {
						b.without[i] = [2]int{at[1], at[0]}
					}
				}

				s, found := b.delivery().check(t)
				check(t, "missing tiles", len(found["missing"]), test.missing)
				check(t, "is judged", !s.grids[0].Open, test.isJudged)
				delete(found, "missing")
				if len(found) > 0 {
					t.Errorf("findings that are none: %v", found)
				}
			}
		})
	}
}
