package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// placedFile is a file of 100 by 50 pixels with that transform in the CRS of a code.
func placedFile(t testing.TB, path string, code int, transform ...float64) ElevationDatasetFileMeta {
	t.Helper()
	crs, err := crsByCode(code)
	if err != nil {
		t.Fatal(err)
	}
	m := ElevationDatasetFileMeta{Path: path, ModifiedAt: fileTime{time.Unix(0, 0)}, AnalyzedAt: time.Now(), extent: extent{
		Status: fileStatusOK, Format: new("geotiff"), CRS: new(fmt.Sprintf("EPSG:%d", code)),
		Width: new(int64(100)), Height: new(int64(50)), Transform: transform, Warnings: []string{}}}
	box, err := boxInDegrees(&crs, [6]float64(transform), 100, 50)
	if err != nil {
		t.Fatal(err)
	}
	m.BBox = box.bounds[:]
	m.NativeBBox = []float64{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	for _, corner := range [4][2]float64{{0, 0}, {100, 0}, {0, 50}, {100, 50}} {
		x, y := applyTransform([6]float64(transform), corner[0], corner[1])
		m.NativeBBox = []float64{min(m.NativeBBox[0], x), min(m.NativeBBox[1], y), max(m.NativeBBox[2], x), max(m.NativeBBox[3], y)}
	}
	if r, err := pixelSizeMetres(crs.projection, [6]float64(transform), 50, 25); err == nil {
		m.ResolutionM = &r
	}
	return m
}

// addFiles stores rows as those of a new dataset, and returns its id.
func (ts *testServer) addFiles(name string, files []ElevationDatasetFileMeta) int64 {
	ts.t.Helper()
	ctx := context.Background()
	const query = `INSERT INTO datasets (name, path) VALUES ($1, $1) RETURNING ` + datasetColumns
	d, err := collectOne[dataset](ctx, ts.db, nil, "create dataset", query, name)
	if err != nil {
		ts.t.Fatal(err)
	}
	ts.addRows(d.ID, files)
	return d.ID
}

// addRows adds rows of files to a dataset.
func (ts *testServer) addRows(dataset int64, files []ElevationDatasetFileMeta) {
	ts.t.Helper()
	source := pgx.CopyFromSlice(len(files), func(i int) ([]any, error) {
		_, values := files[i].stored()
		return append(values, dataset), nil
	})
	columns, _ := new(ElevationDatasetFileMeta).stored()
	table, columns := pgx.Identifier{"elevation_dataset_file_meta"}, append(columns, "dataset_id")
	if _, err := ts.db.CopyFrom(context.Background(), table, columns, source); err != nil {
		ts.t.Fatal(err)
	}
}

// addChecked adds a dataset with these files, which have been checked.
func (ts *testServer) addChecked(name string, files []ElevationDatasetFileMeta) (dataset int64) {
	ts.t.Helper()
	id := ts.addFiles(name, files)
	ts.checkRows(id)
	return id
}

// checkRows checks the rows of a dataset, which has no files.
func (ts *testServer) checkRows(id int64) {
	ts.t.Helper()
	const analysis = `
		INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at)
		VALUES ($1, false, 'test', 'succeeded', now())
		RETURNING id`
	err := inTransaction(ts.t.Context(), ts.db, func(tx pgx.Tx) error {
		// The checks leave the transaction idle while they compute, for long on a busy machine.
		if _, err := tx.Exec(ts.t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
			return err
		}
		analysisID, err := scalar[int64](ts.t.Context(), tx, "add analysis", analysis, id)
		if err != nil {
			return err
		}
		found, err := ts.analyzer.catalogue.findResults(ts.t.Context(), tx, dataset{ID: id}, analysisID)
		if err != nil {
			return err
		}
		return found.store(ts.t.Context(), tx, id)
	})
	if err != nil {
		ts.t.Fatal(err)
	}
}

// worldFiles are files all over the globe, in degrees, UTM and Web Mercator, some turned, across 180° and at the poles.
func worldFiles(t testing.TB, random *rand.Rand, n int) (files []ElevationDatasetFileMeta) {
	quarter := func(from, to float64) float64 { return math.Round((from+random.Float64()*(to-from))*4) / 4 }
	for i := range n {
		path := fmt.Sprintf("d%d/f%05d.tif", i%7, i)
		switch i % 5 {
		case 0, 1: // in degrees, with edges that meet those of others and of queries
			w, h := quarter(0.25, 4), quarter(0.25, 4)
			lon, lat := quarter(-180, 179.75), quarter(-90, 90-h)
			if i%50 == 0 {
				lat = [...]float64{-90, 90 - h}[i/50%2]
			}
			files = append(files, placedFile(t, path, 4326, w/100, 0, lon, 0, -h/50, lat+h))
		case 2: // the same counted from 0 to 360
			w := quarter(0.25, 4)
			files = append(files, placedFile(t, path, 4326, w/100, 0, quarter(0, 359), 0, -0.02, quarter(-89, 90)))
		case 3: // UTM, turned or not
			zone, angle := 1+random.IntN(60), 0.0
			if i%2 == 0 {
				angle = random.Float64() * 2 * math.Pi
			}
			if i%10 == 3 {
				zone = 1 + 59*random.IntN(2) // at 180°
			}
			size := 100 + random.Float64()*2000
			sin, cos := math.Sincos(angle)
			files = append(files, placedFile(t, path, 32600+zone, size*cos, size*sin, 200_000+random.Float64()*600_000,
				size*sin, -size*cos, random.Float64()*9_900_000))
		case 4:
			if i%10 == 4 { // on a datum some hundred metres off
				size := 1 + random.Float64()*10
				files = append(files, placedFile(t, path, 31467, size, 0, 3_400_000+random.Float64()*200_000, 0, -size, 5_300_000+random.Float64()*700_000))
				continue
			}
			size := 100 + random.Float64()*2000
			files = append(files, placedFile(t, path, 3857, size, 0, (random.Float64()*2-1)*20_037_508, 0, -size, (random.Float64()*2-1)*15_000_000))
		}
	}
	return files
}

// meets says whether two boxes in degrees have a place in common, on the circle of longitudes.
func meets(a, b []float64) bool {
	width := func(box []float64) float64 { return math.Mod(box[2]-box[0]+360, 360) + 360*btof(box[2]-box[0] == 360) }
	from := func(x, y float64) float64 { return math.Mod(y-x+720, 360) }
	return a[1] <= b[3] && b[1] <= a[3] && (from(a[0], b[0]) <= width(a) || from(b[0], a[0]) <= width(b))
}

// btof is 1 for true.
func btof(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// TestFileQueries asks for random boxes and points, in part across 180° and at the poles, and compares with all files
// looked at one by one.
func TestFileQueries(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	checkFileQueries(ts, 1500, soakOr(1000, 400))
}

// checkFileQueries makes n files and asks as many queries.
func checkFileQueries(ts *testServer, n, queries int) {
	t, random := ts.t, rand.New(rand.NewPCG(1, 2))
	files := worldFiles(t, random, n)
	one := ts.addFiles("one", files)
	two := ts.addFiles("two", files[:n/2])
	quarter := func(limit float64) float64 { return math.Round((random.Float64()*2-1)*limit*4) / 4 }
	inBoxNotTile, across, poles, hits := 0, 0, 0, 0
	for i := range queries {
		query := url.Values{}
		var covers func(ElevationDatasetFileMeta) bool
		target := files[random.IntN(n)]
		if i%2 == 0 {
			box := []float64{quarter(180), quarter(90), 0, 0}
			box[2], box[3] = math.Mod(box[0]+math.Abs(quarter(6))+540, 360)-180, min(90, box[1]+math.Abs(quarter(6)))
			if i%20 == 0 {
				box = slices.Clone(target.BBox)
				box[2], box[0] = box[0], box[2] // all but the file
			}
			if i%22 == 0 {
				box[0], box[2] = 180-math.Abs(quarter(3)), -180+math.Abs(quarter(3))
			}
			across += int(btof(box[2] < box[0]))
			query.Set("bbox", strings.Trim(strings.ReplaceAll(fmt.Sprint(box), " ", ","), "[]"))
			covers = func(m ElevationDatasetFileMeta) bool { return meets(m.BBox, box) }
		} else {
			crs, shift, _ := target.knownCRS()
			col, row := -20+140*random.Float64(), -10+70*random.Float64()
			if i%9 == 0 {
				col, row = 0, 50 // a corner
			}
			x, y := applyTransform([6]float64(target.Transform), col, row)
			lon, lat, err := crs.projection.inverse(x, y)
			if err != nil || math.Abs(lat) > 90 {
				continue
			}
			lon, lat = shift.toWGS84(crs.ellipsoid, lon, lat)
			if i%25 == 0 {
				lat = math.Copysign(90, lat)
			}
			poles += int(btof(math.Abs(lat) == 90))
			lon = math.Remainder(lon, 360)
			query.Set("point", fmt.Sprintf("%v,%v", lon, lat))
			covers = func(m ElevationDatasetFileMeta) bool {
				if math.Abs(lat) == 90 {
					return m.BBox[1] == lat || m.BBox[3] == lat
				}
				return m.contains(lon, lat)
			}
			within := col >= 0 && col <= 100 && row >= 0 && row <= 50
			if math.Abs(lat) < 90 && within != covers(target) {
				t.Errorf("%s: %v,%v is column %v, row %v: %v", target.Path, lon, lat, col, row, covers(target))
			}
			inBoxNotTile += int(btof(!within && meets(target.BBox, []float64{lon, lat, lon, lat})))
		}
		filter, err := readFileFilter(query)
		if err != nil {
			t.Fatal(query, err)
		}
		filter.datasetID = []*int64{&one, &two, nil}[i%3]
		filter.datasets = []int64{one, two}
		var got, want []string
		finest := 0.0
		for after := firstFile(); ; {
			page, next, err := findFiles(context.Background(), ts.db, filter, after, 5)
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range page {
				got = append(got, fmt.Sprint(file.DatasetID, file.Path))
				if filter.isPoint && *file.ResolutionM < finest {
					t.Errorf("%v: %s is finer than the one before", query, file.Path)
				}
				finest = *file.ResolutionM
			}
			if next == nil {
				break
			}
			if len(page) < 5 || !slices.Equal(next, page[4].key()) {
				t.Fatalf("%v: %d files, and the next page begins after %q", query, len(page), next)
			}
			after = next
		}
		for j, m := range files {
			for _, dataset := range []int64{one, two} {
				if (dataset == one || j < n/2) && (filter.datasetID == nil || *filter.datasetID == dataset) && covers(m) {
					want = append(want, fmt.Sprint(dataset, m.Path))
				}
			}
		}
		if slices.Sort(want); !filter.isPoint && !slices.IsSorted(got) {
			t.Errorf("%v: not in order", query)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%v: got %v, want %v", query, got, want)
		}
		hits += len(got)
	}
	t.Logf("%d hits; %d boxes across 180°, %d poles, %d points in a file's box but not in the file", hits, across, poles, inBoxNotTile)
	if hits < queries || across < queries/50 || poles < queries/100 || inBoxNotTile < queries/100 {
		t.Error("these queries ask too little")
	}
}

// TestPointsBeyond180 asks for points in rasters on cylinders whose coordinates go on beyond 180°, -180° or a pole.
func TestPointsBeyond180(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	dataset := ts.addFiles("beyond", []ElevationDatasetFileMeta{
		placedFile(t, "web", 3857, 7000, 0, 19.8e6, 0, -7000, -1.8e6),             // 177.9 to 184.2, -19.1 to -16
		placedFile(t, "web west", 3857, 7000, 0, -20.6e6, 0, -7000, -1.8e6),       // -185.1 to -178.8
		placedFile(t, "web whole", 3857, 500_000, 0, 0, 0, -500_000, 12.5e6),      // 0 to 360 and more
		placedFile(t, "pacific", 3832, 7000, 0, -37.0e6, 0, -7000, -1.8e6),        // -182.4 to -176.1
		placedFile(t, "plate carree", 4087, 111_000, 0, 16e6, 0, -11_100, -1.7e6), // 143.7 to 243.4, -20.3 to -15.3
		placedFile(t, "degrees", 4326, 0.36, 0, 170, 0, -0.1, -15),                // 170 to 206, -20 to -15
		placedFile(t, "degrees west", 4326, 0.36, 0, -190, 0, -0.1, -15),          // -190 to -154
		placedFile(t, "turned across a pole", 4326, 0.84, -0.24, 60, -0.55, -0.84, -4.5),
	})
	for point, want := range map[string]string{
		"-178,-17.5":   "web,pacific,degrees,degrees west,plate carree,web whole",
		"178.5,-17.5":  "web,web west,pacific,degrees,degrees west,plate carree,web whole",
		"-179.5,-17.5": "web,web west,pacific,degrees,degrees west,plate carree,web whole",
		"180,-17.5":    "web,web west,pacific,degrees,degrees west,plate carree,web whole",
		"-180,-17.5":   "web,web west,pacific,degrees,degrees west,plate carree,web whole",
		"-175,-17.5":   "degrees,degrees west,plate carree,web whole",
		"-120,-17.5":   "plate carree,web whole",
		"-175,-21":     "web whole",
		"172,-17.5":    "degrees,degrees west,plate carree,web whole",
		"-153,-17.5":   "plate carree,web whole",
		"10,10":        "web whole",
		"10,-90":       "turned across a pole",
	} {
		filter, err := readFileFilter(url.Values{"point": {point}})
		if err != nil {
			t.Fatal(err)
		}
		filter.datasetID = &dataset
		files, _, err := findFiles(t.Context(), ts.db, filter, firstFile(), 100)
		var got []string
		for _, file := range files {
			got = append(got, file.Path)
		}
		slices.Sort(got)
		wanted := strings.Split(want, ",")
		slices.Sort(wanted)
		if err != nil || !slices.Equal(got, wanted) {
			t.Errorf("%s: got %q, want %q, %v", point, got, wanted, err)
		}
	}
}

// TestPointsWithoutCode asks for points in rasters whose CRS has no EPSG code and is turned against the meridians, so that
// the box in degrees is much larger. The places are those of PROJ's cs2cs.
func TestPointsWithoutCode(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead, datasetManage, datasetAnalyze)
	size := []testTag{shorts(tagImageWidth, 10), shorts(tagImageLength, 10)}
	square := func(x, y, pixel float64) []testTag { // around a place
		return []testTag{doubles(tagModelPixelScale, pixel, pixel, 0), doubles(tagModelTiepoint, 5, 5, 0, x, y, 0)}
	}
	key := func(id, v float64) [4]float64 { return [4]float64{id, 0, 1, v} }
	double := func(id, n, at float64) [4]float64 { return [4]float64{id, tagGeoDoubleParams, n, at} }
	mercator := testTIFF{order: binary.LittleEndian, tags: with(size, square(-3445000, 6841000, 10_000), geoKeyTag(
		key(1024, 1), key(2048, 32767), double(2057, 1, 0), double(2059, 1, 1), double(2062, 7, 2), key(3072, 32767),
		key(3075, 1), double(3080, 1, 9)),
		doubles(tagGeoDoubleParams, 6377397.155, 299.1528128, 598.1, 73.7, 418.2, 0.202, 0.045, -2.455, 6.7, 60))}
	feet := testTIFF{order: binary.LittleEndian, tags: with(size, square(7290000, 324000, 30_000),
		geoKeyTag(key(1024, 1), key(3072, 2838), key(3076, 9002)))}
	cone := "ncols 10\nnrows 10\nxllcorner 3642793.786\nyllcorner 1466935.670\ncellsize 10000\n" + strings.Repeat("1 ", 100)
	dataset := ts.tilesIn(c, "turned", "cone.asc", []byte(cone), "cone.prj", []byte(esriWKT("Mine", "D_WGS_1984",
		"6378137.0,298.257223563", "Lambert_Conformal_Conic", "1.0", "Central_Meridian", -48, "Standard_Parallel_1", 40,
		"Standard_Parallel_2", 60, "Latitude_Of_Origin", 50)),
		"mercator.tif", mercator.build(), "feet.tif", feet.build())
	for _, file := range c.files(dataset) {
		if file.Status == fileStatusOK && (file.CRS != nil || file.BBox == nil) {
			t.Errorf("%s: CRS %q, bbox %v", file.Path, value(file.CRS), file.BBox)
		}
	}
	for point, want := range map[string]string{
		"9.020,49.992":          "cone.asc", // by its western corner
		"10.0,50.632":           "cone.asc", // by its northern one
		"10.5103,49.6716":       "",         // a kilometre outside
		"9.2,50.6":              "",
		"10.85,50.5":            "",
		"10.846,49.973":         "cone.asc,mercator.tif",
		"10.456,50.26467":       "cone.asc,mercator.tif", // 50 m inside mercator.tif; the next one is 50 m outside
		"10.45688,50.26518":     "cone.asc",
		"9.584,50.295":          "cone.asc",
		"-124.532,44.080":       "feet.tif",
		"-123.422985,44.517544": "feet.tif",
		"-123.421836,44.517574": "",
		"-124.58,44.10":         "",
	} {
		var got []string
		for _, item := range c.must(200, "GET", dataset+"/files?point="+point, nil).items() {
			got = append(got, item["path"].(string))
		}
		if slices.Sort(got); strings.Join(got, ",") != want {
			t.Errorf("%s: %q, want %q", point, got, want)
		}
	}
}

// TestFileFilters asks over HTTP: each filter, a list's pages, what is refused, and a box that meets too many to sort.
func TestFileFilters(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	files := worldFiles(t, rand.New(rand.NewPCG(3, 4)), maxHits+500)
	files[3].Status, files[3].BBox, files[3].Reason = fileStatusNoBBox, nil, new("no CRS")
	files[4].CRS, files[4].CRSName = nil, new("Local grid")
	files[5].Format = new("asc")
	one, two := ts.addFiles("one", files), ts.addFiles("two", files[:10])
	paths := func(query string) (paths []string) {
		t.Helper()
		for next := query; next != ""; {
			a := c.must(200, "GET", next, nil)
			for _, item := range a.items() {
				paths = append(paths, fmt.Sprint(item["dataset"], " ", item["path"]))
			}
			link, _, _ := strings.Cut(a.header.Get("Link"), ">")
			next = strings.TrimPrefix(link, "<")
		}
		return paths
	}
	ofOne := fmt.Sprintf("/api/v1/datasets/%d/files", one)
	for query, want := range map[string]int{
		ofOne + "?limit=500": maxHits + 500,
		fmt.Sprintf("/api/v1/datasets/%d/files?limit=3", two):     10,
		"/api/v1/files?q=D3/F0000":                                2,
		"/api/v1/files?status=no_bbox":                            2,
		"/api/v1/files?crs=Local%20grid":                          2,
		ofOne + "?crs=epsg:4326&q=f00004":                         0,
		ofOne + "?crs=epsg:4326&q=f00005":                         1,
		ofOne + "?format=asc":                                     1,
		ofOne + "?bbox=-180,-90,180,90&limit=500":                 maxHits + 499, // more than are sorted
		ofOne + "?bbox=-180,-90,180,90&q=/f0000":                  9,
		ofOne + "?bbox=-180,-90,180,90&status=no_bbox":            0,
		"/api/v1/files?bbox=-180,-90,180,90&limit=500&q=%25":      0,
		"/api/v1/files?bbox=-180,-90,180,90&limit=500&crs=x":      0,
		"/api/v1/files?bbox=-180,-90,180,90&limit=500&format=asc": 2,
	} {
		got := paths(query)
		if unique := slices.Compact(slices.Sorted(slices.Values(got))); len(got) != want || len(unique) != want || !slices.Equal(got, unique) {
			t.Errorf("%s: %d files, %d different, want %d", query, len(got), len(unique), want)
		}
	}
	for query, code := range map[string]string{
		"bbox=1,2,3": "wrong_type", "bbox=1,2,3,x": "wrong_type", "point=1,2,3": "wrong_type", "point=NaN,1": "wrong_type", "point=": "wrong_type",
		"bbox=-181,0,1,1": "invalid", "bbox=0,2,1,1": "invalid", "point=0,90.1": "invalid", "point=1,1&bbox=1,1,2,2": "invalid", "status=fine": "invalid",
	} {
		status := map[string]int{"invalid": 422, "wrong_type": 400}[code]
		c.refused(status, code, "GET", "/api/v1/files?"+query, nil)
		c.refused(status, code, "GET", ofOne+"?"+query, nil)
	}
}

// TestDatasetAudit: what is done to datasets and analyses is in the audit log.
func TestDatasetAudit(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 2)
	path := c.addDataset("tiles")
	c.must(200, "PATCH", path, map[string]string{"name": "renamed"})
	analysis := path + "/analyses/" + fmt.Sprint(c.must(202, "POST", path+"/analyses", nil).number("id"))
	c.finished(analysis)
	c.must(204, "DELETE", analysis, nil) // it has ended: nothing is cancelled
	ts.ownsNothing()
	ts.exec(`UPDATE analyses SET finished_at = NULL, state = 'reading', owner = NULL`)
	c.must(204, "DELETE", analysis, nil)
	c.must(204, "DELETE", path, nil)
	if _, err := ts.command("dataset", "create", "again", "tiles"); err != nil {
		t.Fatal(err)
	}
	rows, err := collect[struct{ Row string }](t.Context(), ts.db, "read audit log",
		`SELECT actor || ' ' || action || ' ' || target AS row FROM audit_log WHERE target LIKE 'dataset:%' ORDER BY id`)
	want := []string{"root dataset.create dataset:tiles", "root dataset.update dataset:tiles", "root analysis.create dataset:renamed",
		"root analysis.cancel dataset:renamed", "root dataset.delete dataset:renamed", "operator dataset.create dataset:again"}
	var got []string
	for _, row := range rows {
		got = append(got, row.Row)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, got %q", err, got)
	}
}

// TestFileLists: each filter and each order of /files against all files looked at one by one, page by page, and totals.
func TestFileLists(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	random := rand.New(rand.NewPCG(9, 1))
	files := worldFiles(t, random, 600)
	for i := range files {
		files[i].ModifiedAt = fileTime{time.Unix(1_700_000_000+int64(random.IntN(200)), int64(random.IntN(2))*500_000_000)}
		files[i].Path = fmt.Sprintf("%s/%s", []string{"höhe", "HÖHE", "hohe", "Straße", "a.b", "aXb", "ДЕМ"}[i%7], files[i].Path)
		if i%9 == 0 {
			files[i].Warnings = []string{"one"}
		}
		if i%11 == 0 {
			files[i].ResolutionM = nil
		}
		files[i].SizeBytes = int64(i) * 1000
		files[i].VerticalCRS = []*string{nil, new("EPSG:7837"), new("Local height")}[i%3]
		files[i].SampleType = []*string{nil, new("float32"), new("int16"), new("float32")}[i%4]
		files[i].Nodata = []*string{new("-9999"), nil, new("-32768"), new("0"), nil}[i%5]
	}
	dataset := ts.addFiles("one", files)
	ts.addFiles("two", files[:100])
	list := func(path string) (got []string) {
		t.Helper()
		for next := path; next != ""; {
			a := c.must(200, "GET", next, nil)
			for _, item := range a.items() {
				got = append(got, item["path"].(string))
			}
			next, _, _ = strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
		}
		return got
	}
	every := func(ElevationDatasetFileMeta) bool { return true }
	has := func(part string) func(ElevationDatasetFileMeta) bool {
		return func(m ElevationDatasetFileMeta) bool { return strings.Contains(strings.ToLower(m.Path), part) }
	}
	byPath := func(a, b ElevationDatasetFileMeta) int { return cmp.Compare(a.Path, b.Path) }
	is := func(field func(ElevationDatasetFileMeta) *string, want string) func(ElevationDatasetFileMeta) bool {
		return func(m ElevationDatasetFileMeta) bool { return value(field(m)) == want }
	}
	vertical := func(m ElevationDatasetFileMeta) *string { return m.VerticalCRS }
	sampleType := func(m ElevationDatasetFileMeta) *string { return m.SampleType }
	nodata := func(m ElevationDatasetFileMeta) *string { return m.Nodata }
	const triangle = `{"type":"Polygon","coordinates":[[[-60,-40],[100,-30],[10,70],[-60,-40]]]}`
	_, within, _ := readGeometry(triangle, maxCorners)
	meetsTriangle := func(m ElevationDatasetFileMeta) bool { return within.meets(m.footprint()) }
	for _, test := range []struct {
		query string
		keep  func(ElevationDatasetFileMeta) bool
		less  func(a, b ElevationDatasetFileMeta) int
	}{
		{"", every, byPath},
		{"&q=" + url.QueryEscape("hÖhE"), has("höhe"), byPath},
		{"&q=" + url.QueryEscape("дем/D1"), has("дем/d1"), byPath},
		{"&q=A.B%2F", has("a.b/"), byPath},
		{"&q=%5C", has(`\`), byPath},
		{"&path=" + url.QueryEscape("höhe/d1"), func(m ElevationDatasetFileMeta) bool { return strings.HasPrefix(m.Path, "höhe/d1") }, byPath},
		{"&warnings=1", func(m ElevationDatasetFileMeta) bool { return len(m.Warnings) > 0 }, byPath},
		{"&sort=path&q=d3", has("d3"), byPath},
		{"&vertical_crs=epsg:7837", is(vertical, "EPSG:7837"), byPath},
		{"&vertical_crs=Local+height", is(vertical, "Local height"), byPath},
		{"&vertical_crs=none", is(vertical, ""), byPath},
		{"&sample_type=float32", is(sampleType, "float32"), byPath},
		{"&sample_type=none", is(sampleType, ""), byPath},
		{"&nodata=-9999", is(nodata, "-9999"), byPath},
		{"&nodata=none", is(nodata, ""), byPath},
		{"&resolution_min=500&resolution_max=2e3", func(m ElevationDatasetFileMeta) bool {
			return m.ResolutionM != nil && *m.ResolutionM >= 500 && *m.ResolutionM <= 2000
		}, byPath},
		{"&resolution_min=0", func(m ElevationDatasetFileMeta) bool { return m.ResolutionM != nil }, byPath},
		{"&size_min=100000&size_max=200000", func(m ElevationDatasetFileMeta) bool {
			return m.SizeBytes >= 100_000 && m.SizeBytes <= 200_000
		}, byPath},
		{"&sort=-modified&intersects=" + url.QueryEscape(triangle), meetsTriangle, func(a, b ElevationDatasetFileMeta) int {
			return b.ModifiedAt.Compare(a.ModifiedAt.Time)
		}},
		{"&sample_type=int16&intersects=" + url.QueryEscape(triangle), func(m ElevationDatasetFileMeta) bool {
			return value(m.SampleType) == "int16" && meetsTriangle(m)
		}, byPath},
		{"&sort=-resolution", every, func(a, b ElevationDatasetFileMeta) int {
			return cmp.Compare(value(b.ResolutionM), value(a.ResolutionM))
		}},
		{"&sort=-modified&bbox=-90,-45,90,45", func(m ElevationDatasetFileMeta) bool { return meets(m.BBox, []float64{-90, -45, 90, 45}) },
			func(a, b ElevationDatasetFileMeta) int { return b.ModifiedAt.Compare(a.ModifiedAt.Time) }},
		{"&sort=-modified", every, func(a, b ElevationDatasetFileMeta) int { return b.ModifiedAt.Compare(a.ModifiedAt.Time) }},
	} {
		want := slices.DeleteFunc(slices.Clone(files), func(m ElevationDatasetFileMeta) bool { return !test.keep(m) })
		slices.SortFunc(want, func(a, b ElevationDatasetFileMeta) int { return cmp.Or(test.less(a, b), byPath(a, b)) })
		var paths []string
		for _, m := range want {
			paths = append(paths, m.Path)
		}
		path := fmt.Sprintf("/api/v1/datasets/%d/files?limit=70%s", dataset, test.query)
		if got := list(path); !slices.Equal(got, paths) {
			t.Errorf("%s: got %d %.200v, want %d %.200v", test.query, len(got), got, len(paths), paths)
		}
		if a := c.must(200, "GET", path+"&total=1", nil); a.number("total") != len(paths) || a.json["total_is_estimate"] != false {
			t.Errorf("%s: total %v, want %d", test.query, a.json["total"], len(paths))
		}
		if a := c.must(200, "GET", path, nil); a.json["total"] != nil {
			t.Errorf("%s: a total that nobody asked for", test.query)
		}
	}
	if got := list("/api/v1/files?sort=-resolution&limit=50"); len(got) != 700 {
		t.Errorf("%d files of all datasets", len(got))
	}
	if a := c.must(200, "GET", "/api/v1/files?limit=1&total=1&q=HOHE", nil); a.number("total") != len(list("/api/v1/files?q=hohe&limit=500")) {
		t.Errorf("total %v", a.json["total"])
	}
	for _, wrong := range []string{"sort=size", "warnings=2", "total=yes", "q=" + strings.Repeat("a", 256),
		"resolution_min=-1", "resolution_max=x", "size_min=NaN", "size_max=Inf", "size_max=", "surveyed_from=2024", "surveyed_until=2024-13-01"} {
		c.refused(422, "invalid", "GET", fmt.Sprintf("/api/v1/datasets/%d/files?%s", dataset, wrong), nil)
	}
}

// TestLargeTotal: above 10,000 files the total is an estimate, and says so.
func TestLargeTotal(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	dataset := ts.addFiles("many", nil)
	fill := func(from, to int) {
		ts.exec(`INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, warnings, analyzed_at)
			SELECT $1, 'f' || i, 1, 0, 'sidecar', '{}', now() FROM generate_series($2::int, $3) i`, dataset, from, to)
	}
	fill(1, 10_000)
	path := fmt.Sprintf("/api/v1/datasets/%d/files?limit=1&total=1", dataset)
	if a := c.must(200, "GET", path, nil); a.number("total") != 10_000 || a.json["total_is_estimate"] != false {
		t.Errorf("%s", a.body)
	}
	fill(10_001, 25_000)
	ts.exec(`ANALYZE elevation_dataset_file_meta`)
	for _, query := range []string{"", "&status=sidecar", "&path=f", "&sort=-modified"} {
		if a := c.must(200, "GET", path+query, nil); a.number("total") < 10_001 || a.number("total") > 26_000 || a.json["total_is_estimate"] != true {
			t.Errorf("%s: %s", query, a.body)
		}
	}
	for _, query := range []string{"&status=ok", "&bbox=-180,-90,180,90", "&bbox=-180,-90,180,90&status=sidecar"} {
		if a := c.must(200, "GET", path+query, nil); a.number("total") != 0 || a.json["total_is_estimate"] != false {
			t.Errorf("%s: %s", query, a.body)
		}
	}
}
