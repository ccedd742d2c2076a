package main

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// attribute is a property that the files of a folder or a dataset should have in common. In a
// finding, prefix stands before an unusual value.
type attribute struct {
	code   string // of the finding
	name   string // in texts
	prefix string
}

// attributes returns the attributes that are compared.
func attributes() []attribute {
	return []attribute{
		{"crs", "CRS", ""},
		{"vertical_crs", "vertical CRS", ""},
		{"unit", "unit of heights", ""},
		{"resolution", "posting", "pixels of "},
		{"sample_type", "data type", ""},
		{"nodata", "nodata", ""},
		{"scale", "scale", "scale "},
		{"bands", "bands", "bands: "},
		{"orientation", "orientation", ""},
	}
}

// value returns the value that a file has. It is "" if the file has none.
func (a attribute) value(r *fileRecord) string {
	switch a.name {
	// These are known of every file.
	case "status":
		return r.status
	case "format":
		return r.format

	// These are known of rasters.
	case "CRS":
		if r.isLocated() { // else the finding no_extent says that there is none
			return r.system
		}
	case "vertical CRS":
		return r.vertical
	case "unit of heights":
		return r.heightUnit
	case "posting":
		if r.system != "" && r.isTile() {
			return posting(r.dx, r.dy) + r.unit
		}
	case "data type":
		return r.sampleType
	case "nodata":
		return r.nodata
	case "scale":
		return r.scale
	case "bands":
		return r.bands
	case "orientation":
		return r.orientation
	case "size in pixels":
		return pixels(r.w, r.dx) + " × " + pixels(r.h, r.dy)
	}

	return ""
}

// posting returns the size of pixels in the unit of their CRS: "1", or "1 × 1.0001".
func posting(dx, dy float64) string {
	width := strconv.FormatFloat(dx, 'g', 6, 64)
	height := strconv.FormatFloat(dy, 'g', 6, 64)
	if width == height {
		return width
	}
	return width + " × " + height
}

// scope identifies the files that are compared with each other: the files of one folder, or those
// of all folders with fewer than minLot files. The posting is compared only within one CRS and, in
// degrees, within one degree of latitude, because pixels get wider to the poles.
type scope struct {
	folder   uint64 // 0: all folders with fewer than minLot files
	system   string
	latitude float64
}

// minLot is the least number of files with a common value that is taken for intended.
const minLot = 10

// checkAttributes finds the files of each scope with an unusual value. If no value is usual in a
// folder, or several are, the folder is mixed. If folders have different usual values, the dataset
// is mixed. An attribute that is specified is left to checkExpected.
func (s *fileSet) checkAttributes() {
	sizes := map[uint64]int{} // of folders
	for _, r := range s.files {
		sizes[r.folder]++
	}

	mixed := map[uint64]*flaw{} // by folder, 0 for the dataset
	for _, a := range attributes() {
		if s.expected.specifies(a.name) {
			continue
		}

		// The values of all folders together, by scopes without a folder.
		all := map[scope]map[string]int{}  // how many files have each value
		usualOfAll := map[scope][]string{} // the values that are usual in a folder

		scopeOf := func(r *fileRecord) (of scope) {
			if sizes[r.folder] >= minLot {
				of.folder = r.folder
			}

			if a.code == "resolution" {
				of.system = r.system
				if r.unit == "°" {
					of.latitude = math.Floor(r.y + r.h/2)
				}
			}

			return of
		}

		// A value of each scope is compared with the others of the scope.
		key := func(r *fileRecord) uint64 {
			if r.orientation == "" || a.value(r) == "" {
				return 0
			}
			return maphash.Comparable(s.seed, scopeOf(r))
		}

		for files := range s.groups(key) {
			of := scopeOf(&s.files[files[0]])
			usual, counts := s.checkScope(a, files)
			if len(usual) != 1 {
				s.addMixed(mixed, of.folder, files[0], a.name+": "+mostFrequent(counts))
			}

			of.folder = 0
			if all[of] == nil {
				all[of] = map[string]int{}
			}

			for value, n := range counts {
				all[of][value] += n
			}

			if len(usual) == 1 {
				usualOfAll[of] = append(usualOfAll[of], usual...)
			}
		}

		// Folders with different usual values make the dataset mixed.
		for of, usual := range usualOfAll {
			slices.Sort(usual)
			if len(slices.Compact(usual)) > 1 {
				s.addMixed(mixed, 0, noFile, a.name+": "+mostFrequent(all[of]))
			}
		}
	}

	for _, f := range mixed {
		s.found(findingMixed, *f)
	}
}

// checkScope finds the files of one scope with an unusual value of an attribute. Three quarters of
// the files have a usual value, or a tenth of them and at least minLot.
func (s *fileSet) checkScope(a attribute, files []int32) (usual []string, counts map[string]int) {
	counts = map[string]int{}
	for _, i := range files {
		counts[a.value(&s.files[i])]++
	}

	for value, n := range counts {
		isLot := n >= minLot && n*10 >= len(files)
		if isLot || n*4 >= len(files)*3 {
			usual = append(usual, value)
		}
	}

	slices.Sort(usual)
	if len(usual) == 0 || len(usual) == len(counts) {
		return usual, counts
	}

	var texts []string
	for _, value := range usual {
		texts = append(texts, titleOfCode(value))
	}

	comparison := " where " + strings.Join(texts, " or ") + " is usual"
	for _, i := range files {
		value := a.value(&s.files[i])
		if !slices.Contains(usual, value) {
			s.foundIn(a.code, i, a.prefix+titleOfCode(value)+comparison)
		}
	}

	return usual, counts
}

// addMixed adds a detail to the finding of a mixed folder. file is any file of the folder. For the
// top folder and for small folders, the finding is about the whole dataset.
func (s *fileSet) addMixed(mixed map[uint64]*flaw, folder uint64, file int32, detail string) {
	isTop := folder == maphash.String(s.seed, ".")
	if isTop || folder == 0 {
		folder = 0
		file = noFile
	}

	if f := mixed[folder]; f != nil {
		f.detail += "; " + detail
	} else {
		mixed[folder] = &flaw{file: file, other: noFile, detail: detail}
	}
}

// titleOfCode adds the name to an EPSG code. Any other text stays as it is.
func titleOfCode(text string) string {
	code, isCode := epsgCode(text)
	if !isCode {
		return text
	}

	record := findRecord(recordCRS, code)
	if len(record) == 0 {
		return text
	}

	return text + " (" + record.name() + ")"
}

// mostFrequent returns the most frequent values as text: "3 files EPSG:25832, 2 files EPSG:25833".
func mostFrequent(counts map[string]int) string {
	const maxValues = 5
	values := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(
			counts[b]-counts[a],
			cmp.Compare(a, b),
		)
	})

	var texts []string
	for _, value := range values[:min(len(values), maxValues)] {
		files := plural(int64(counts[value]), "file")
		texts = append(texts, fmt.Sprintf("%s %s", files, titleOfCode(value)))
	}

	if more := len(values) - maxValues; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d other values", more))
	}

	return strings.Join(texts, ", ")
}

// contents counts the files by status and by format, and the rasters by each attribute and by their
// size in pixels.
func (s *fileSet) contents() (all []contentCount) {
	ofFiles := []attribute{{name: "status"}, {name: "format"}}
	size := attribute{name: "size in pixels"}
	ofRasters := append(attributes(), size)

	all = []contentCount{}
	for i, a := range slices.Concat(ofFiles, ofRasters) {
		counts := map[string]int{}
		for j := range s.files {
			r := &s.files[j]
			isCounted := i < len(ofFiles) || r.orientation != ""
			if value := a.value(r); isCounted && value != "" {
				counts[value]++
			}
		}

		if len(counts) > 0 {
			all = append(all, contentCount{a.name, mostFrequent(counts)})
		}
	}

	return all
}

// pixels returns the width or height of a box in pixels.
func pixels(size, pixel float64) string {
	return strconv.FormatFloat(math.Round(size/pixel), 'f', 0, 64)
}

// covered returns about how many square kilometres the located tiles cover. Copies do not count.
// Where other tiles overlap, both count.
func (s *fileSet) covered() (area float64) {
	for _, r := range s.files {
		size := r.w * r.h
		isCounted := r.isLocated() && r.isTile() && !r.isCopy
		if !isCounted {
			continue
		}

		switch r.unit {
		case " m":
			area += size / 1e6
		case " ft":
			area += size * 0.3048 * 0.3048 / 1e6
		case "°":
			const degree = 111.2 // kilometres
			latitude := r.y + r.h/2
			area += size * degree * degree * math.Cos(latitude*math.Pi/180)
		}
	}

	return area
}

// checkSamePlace finds tiles with the same extent (to a tenth of a pixel) and size in pixels. The
// tile with the right name, the shortest path or the newest time is no finding. Others of the same
// size in bytes are duplicates, unless compareCopies finds other bytes in them. The rest are
// overlaps.
func (s *fileSet) checkSamePlace() {
	type extentKey struct {
		system     string
		definition string
		x          float64 // in tenths of a pixel
		y          float64
		w          float64 // in pixels
		h          float64
	}

	key := func(r *fileRecord) uint64 {
		if !r.isTile() {
			return 0
		}

		return maphash.Comparable(s.seed, extentKey{
			system:     r.system,
			definition: r.definition,
			x:          math.Round(r.x / r.dx * 10),
			y:          math.Round(r.y / r.dy * 10),
			w:          math.Round(r.w / r.dx),
			h:          math.Round(r.h / r.dy),
		})
	}

	for files := range s.groups(key) {
		first := slices.MinFunc(files, func(i, j int32) int {
			a := s.files[i]
			b := s.files[j]
			return cmp.Or(
				cmp.Compare(a.nameRank, b.nameRank),
				cmp.Compare(a.pathLength, b.pathLength),
				cmp.Compare(b.modified, a.modified),
			)
		})

		for _, i := range files {
			if i == first {
				continue
			}

			s.files[i].isCopy = true

			code := "overlap"
			detail := "the same extent as an older file: "
			a := s.files[i]
			b := s.files[first]
			if a.size == b.size {
				code = "duplicate"
				detail = "the same extent, pixels and size in bytes as "
			} else if a.modified < b.modified {
				detail = "the same extent as a newer file: "
			}
			s.found(code, flaw{i, first, detail})
		}
	}
}
