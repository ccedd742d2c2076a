package main

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomDelivery is a delivery of tiles on a grid, with what is to be found in it.
type randomDelivery struct {
	delivery
	random         *rand.Rand
	system         string
	x, y           float64 // of the lower left corner
	step, pixel    float64
	columns, lines int      // of the grid
	hasFolders     bool     // each column has a folder
	isL            bool     // a quarter of the rectangle has no tiles
	taken          [][2]int // cells that have a fault, by column and row
	want           map[string][]string
}

// newRandomDelivery returns a clean delivery.
func newRandomDelivery(random *rand.Rand) *randomDelivery {
	d := &randomDelivery{delivery: delivery{"random", map[string]*fileRow{}}, random: random,
		columns: 12 + random.IntN(10), lines: 12 + random.IntN(10), isL: random.IntN(2) == 0, want: map[string][]string{}}
	switch random.IntN(3) {
	case 0:
		d.system = "EPSG:25832"
		d.step = 1000
		d.pixel = []float64{0.5, 1, 2, 10}[random.IntN(4)]
		d.x = float64(400+random.IntN(100)) * 1000
		d.y = float64(5300+random.IntN(100)) * 1000
		d.hasFolders = random.IntN(2) == 0
	case 1:
		d.system = "EPSG:2056"
		d.step = 2000
		d.pixel = 0.5
		d.x = float64(1250+random.IntN(50)) * 2000
		d.y = float64(570+random.IntN(50)) * 2000
		d.hasFolders = random.IntN(2) == 0
	case 2: // pixels are registered at their centres
		d.system = "EPSG:4326"
		d.step = 1
		d.pixel = 1.0 / 1200
		d.x = float64(random.IntN(60) - 30)
		d.y = float64(random.IntN(60) - 30)
	}

	for column := range d.columns {
		for row := range d.lines {
			if d.has(column, row) {
				d.add(d.path(column, row), column, row)
			}
		}
	}

	return d
}

// has reports whether a cell has a tile in the clean delivery.
func (d *randomDelivery) has(column, row int) bool {
	isBitten := d.isL && column >= d.columns/2 && row >= d.lines/2
	return min(column, row) >= 0 && column < d.columns && row < d.lines && !isBitten
}

// path returns the path of a tile.
func (d *randomDelivery) path(column, row int) (path string) {
	x := d.x + float64(column)*d.step
	y := d.y + float64(row)*d.step
	if d.hasFolders {
		path = fmt.Sprintf("column%02d/", column)
	}

	if d.system != "EPSG:4326" {
		return path + fmt.Sprintf("dtm_%.0f_%.0f.tif", x/1000, y/1000)
	}

	return path + fmt.Sprintf("%c%02.0f%c%03.0f.hgt", "NS"[b2i(y < 0)], max(y, -y), "EW"[b2i(x < 0)], max(x, -x))
}

// corner returns the lower left corner of a tile as its name tells it, in kilometres or degrees.
func (d *randomDelivery) corner(f *fileRow) (x, y float64) {
	unit := 1000.0
	if d.system == "EPSG:4326" {
		unit = 1
	}
	return math.Round(f.box[0] / unit), math.Round(f.box[1] / unit)
}

// add adds a tile to the delivery, at a cell.
func (d *randomDelivery) add(path string, column, row int) *fileRow {
	x := d.x + float64(column)*d.step
	y := d.y + float64(row)*d.step
	size := d.step
	if d.system == "EPSG:4326" {
		x = x - d.pixel/2
		y = y - d.pixel/2
		size = size + d.pixel
	}
	d.tile(path, d.system, x, y, size, size, d.pixel, d.pixel)
	d.rows[path].size = 900_000 + int64(d.random.IntN(200_000))
	return d.rows[path]
}

// place returns a cell for a fault: not at an edge, and at least three cells from other faults.
func (d *randomDelivery) place() (column, row int, ok bool) {
	for range 100 {
		column = d.random.IntN(d.columns)
		row = d.random.IntN(d.lines)
		ok = true
		for i := range 9 {
			ok = ok && d.has(column+i/3-1, row+i%3-1)
		}

		for _, other := range d.taken {
			ok = ok && max(column-other[0], other[0]-column, row-other[1], other[1]-row) >= 4
		}

		if ok {
			d.taken = append(d.taken, [2]int{column, row})
			return column, row, true
		}
	}

	return 0, 0, false
}

// randomFaults are the faults of a tile, with the codes of the findings that name it. With missing among them, its cell is
// empty.
func randomFaults() map[string]func(d *randomDelivery, path string, f *fileRow) (codes string) {
	another := func(d *randomDelivery, f *fileRow, path string) *fileRow {
		other := *f
		other.path = path
		d.rows[path] = &other
		return &other
	}

	return map[string]func(d *randomDelivery, path string, f *fileRow) string{
		"missing": func(d *randomDelivery, path string, _ *fileRow) string {
			delete(d.rows, path)
			return "missing"
		},
		"moved": func(d *randomDelivery, _ string, f *fileRow) string {
			moveTile(f, d.pixel*float64(2+d.random.IntN(int(d.step/d.pixel/3))), 0)
			return "misaligned overlap"
		},
		"moved by part of a pixel": func(d *randomDelivery, _ string, f *fileRow) string {
			moveTile(f, d.pixel*(0.1+0.8*d.random.Float64()), -d.pixel*0.3)
			return "misaligned"
		},
		"half": func(d *randomDelivery, _ string, f *fileRow) string {
			if d.random.IntN(2) == 0 {
				f.box[1] = (f.box[1] + f.box[3]) / 2
			} else {
				f.box[2] = (f.box[0] + f.box[2]) / 2
			}
			return "misaligned"
		},
		"buffered": func(d *randomDelivery, _ string, f *fileRow) string {
			by := d.pixel * float64(2+d.random.IntN(100))
			f.box = [4]float64{f.box[0] - by, f.box[1] - by, f.box[2] + by, f.box[3] + by}
			return "misaligned overlap"
		},
		"another CRS": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.system = "EPSG:32631"
			return "crs missing"
		},
		"another vertical CRS": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.vertical = "EPSG:7837"
			return "vertical_crs"
		},
		"another type": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.sampleType = "int16"
			return "sample_type"
		},
		"no nodata": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.nodata = notStated
			return "nodata"
		},
		"bands": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.bands = "3"
			return "bands"
		},
		"coarser": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.transform[0] *= 2
			f.transform[4] *= 2
			return "resolution missing"
		},
		"upside down": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.transform[4] *= -1
			return "orientation"
		},
		"corrupt": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.status = fileStatusCorrupt
			return "corrupt missing"
		},
		"without CRS": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.system = ""
			f.status = fileStatusNoBBox
			return "no_extent missing"
		},
		"small": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.size = 20_000
			return "suspect_data"
		},
		"warning": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.isWarned = true
			return "warning"
		},
		"outside": func(_ *randomDelivery, _ string, f *fileRow) string {
			f.isOutside = true
			return "outside_area"
		},
		"half-finished": func(d *randomDelivery, path string, f *fileRow) string {
			delete(d.rows, path)
			another(d, f, path+".part")
			d.want["unread"] = append(d.want["unread"], path+".part")
			return "missing"
		},
		"copy": func(d *randomDelivery, path string, f *fileRow) string {
			copied := "copies/" + path
			another(d, f, copied)
			d.want["duplicate"] = append(d.want["duplicate"], copied)
			return ""
		},
		"older": func(d *randomDelivery, path string, f *fileRow) string {
			older := another(d, f, "older/"+path)
			older.size = older.size + 1
			older.modified = older.modified - 1
			d.want["overlap"] = append(d.want["overlap"], older.path)
			return ""
		},
		"stray": func(d *randomDelivery, _ string, _ *fileRow) string {
			column := d.columns + 60 + d.random.IntN(20)
			row := d.random.IntN(d.lines)
			f := d.add(d.path(column, row), column, row)
			d.want["far"] = append(d.want["far"], f.path)
			return ""
		},
	}
}

// TestRandomDeliveries plants faults into random deliveries. Each is found with its file, and nothing else is.
func TestRandomDeliveries(t *testing.T) {
	t.Parallel()
	faults := randomFaults()
	names := slices.Sorted(maps.Keys(faults))
	planted := map[string]int{}
	for round := range 500 {
		random := rand.New(rand.NewPCG(28, uint64(round)))
		d := newRandomDelivery(random)
		var done []string
		for _, i := range random.Perm(len(names))[:random.IntN(9)] {
			column, row, ok := d.place()
			if !ok {
				break
			}

			done = append(done, names[i])
			planted[names[i]]++
			path := d.path(column, row)
			f := d.rows[path]
			x, y := d.corner(f)
			codes := strings.Fields(faults[names[i]](d, path, f))
			if newX, newY := d.corner(f); newX != x || newY != y { // its name tells the former corner
				codes = append(codes, "name")
			}

			for _, code := range codes {
				if code != "missing" {
					d.want[code] = append(d.want[code], path)
					continue
				}
				d.want[code] = append(d.want[code], fmt.Sprintf("%s %.8g %.8g", d.system, d.x+float64(column)*d.step-d.pixel/2*float64(b2i(d.system == "EPSG:4326")),
					d.y+float64(row)*d.step-d.pixel/2*float64(b2i(d.system == "EPSG:4326"))))
			}
		}

		_, found := d.check(t)
		for code, lines := range found {
			for i, line := range lines {
				lines[i], _, _ = strings.Cut(line, ": ")
			}
			slices.Sort(lines)
			found[code] = lines
		}

		for _, paths := range d.want {
			slices.Sort(paths)
		}

		if !maps.EqualFunc(found, d.want, slices.Equal) {
			t.Errorf("round %d, %s, %d by %d, %q:\n%v, want\n%v", round, d.system, d.columns, d.lines, done, found, d.want)
		}
	}

	for _, name := range names {
		if planted[name] < 50 {
			t.Errorf("%s was planted %d times", name, planted[name])
		}
	}
}
