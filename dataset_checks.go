package main

import (
	"cmp"
	"context"
	"hash/maphash"
	"iter"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
)

// This file and dataset_checks_*.go hold the checks of the report. They look at records in memory
// and know neither the database nor HTTP.

// fileRow is a file's row, as the checks read it. fileRecord.fileKind is not set.
type fileRow struct {
	fileRecord
	fileKind
	path      string
	found     *fileHeights // nil: its heights were not read
	hasBox    bool         // box and transform are known
	transform [6]float64   // as in extent
	box       [4]float64   // minx, miny, maxx, maxy in the file's own CRS
}

// fileRecord holds what the checks know of a file, in a fixed size: a million records take 120 MB.
// A path is examined while its row is read. It is read again only for a finding.
type fileRecord struct {
	id       int64
	size     int64     // in bytes
	modified int64     // in nanoseconds since 1970
	folder   uint64    // a hash of the folder
	pattern  uint64    // a hash of the path without its numbers; 0 if they cannot be coordinates
	fits     [3]uint32 // see nameNumber.fits: the left, the lower and the upper edge

	pathLength uint16 // in bytes
	nameRank   uint8  // nameFollows and so on
	isCopy     bool   // it is at the place of another file

	heights *heightRecord // nil: they were not read
	*fileKind

	x  float64 // the lower left corner of the box, in its own CRS
	y  float64
	w  float64 // the size of the box
	h  float64
	dx float64 // the size of a pixel
	dy float64
}

// fileKind holds values that many files share. Files with the same values share one fileKind.
type fileKind struct {
	status      string
	format      string
	extension   string // of the path, in lower case
	unread      string // the name of a format that Cairn does not read, or halfFinished; else ""
	system      string // the CRS: a code, a name or ""
	definition  string // of a CRS without a code
	unit        string // of the CRS; see internKind
	vertical    string // notStated without one; so are the next two
	sampleType  string
	nodata      string
	heightUnit  string // see extent.heightUnit; "": not known
	scale       string
	bands       string
	orientation string // isNorthUp, isSouthUp or rotated; "": the file has no box that counts
	isNamed     bool   // the name is as expected
	isNameWrong bool   // a warning says that the name is wrong
	isOutside   bool   // a warning says that the file is outside the area of use of its CRS
	isWarned    bool   // there are other warnings
}

// halfFinished stands for the format of a file whose copying has not ended.
const halfFinished = "half-finished copy"

// notStated stands for a value that a file lacks.
const notStated = "not stated"

// ellipsoidal stands for the vertical CRS of EPSG:4979.
const ellipsoidal = "ellipsoidal (EPSG:4979)"

// Orientations of a raster.
const (
	isNorthUp = "north up"
	isSouthUp = "south up"
	isRotated = "rotated"
)

// isLocated reports whether it is known where on the globe the file lies.
func (k fileKind) isLocated() bool { return k.status == fileStatusOK && k.unread == "" }

// isTile reports whether the edges of a raster are parallel to the axes of its CRS.
func (k fileKind) isTile() bool { return k.orientation == isNorthUp || k.orientation == isSouthUp }

// fileSet holds the records of a dataset in the order of paths, and what the checks found.
type fileSet struct {
	expected  storedExpectation
	lines     []expectedLine
	whyFailed []string // why lines of the expectation failed, apart from files that differ

	files      []fileRecord
	heights    []*heightRecord
	unmeasured map[string]int // how many rasters have no heights, by the reason

	grids []tileGrid
	rules map[uint64]nameRule  // by pattern
	flaws map[string]*flawList // by code

	seed    maphash.Seed
	names   *regexp.Regexp         // as expected
	kinds   map[fileKind]*fileKind // the kinds of files, by their values without a unit
	formats map[string]string      // namesOfUnread
}

// flawList is what one kind of check found.
type flawList struct {
	total   int64
	first   []flaw                 // at most maxFlaws
	folders map[uint64]folderFlaws // by fileRecord.folder; 0 for the whole dataset
}

// folderFlaws counts the findings of a folder.
type folderFlaws struct {
	file  int32 // any file of the folder
	total int64
}

// flaw is one finding. A file has at most one of each kind. If other is a file, its path is added
// to detail. Without a detail, the finding shows the reason or the warnings of the row.
type flaw struct {
	file   int32 // an index of fileSet.files, as other
	other  int32
	detail string
}

// noFile stands for no file. A flaw without a file is a finding about the whole dataset.
const noFile = int32(-1)

// maxFlaws is how many findings of a kind are kept. The totals are always exact.
const maxFlaws = 10_000

// newFileSet returns an empty set with room for n files.
func newFileSet(n int64, expected storedExpectation) *fileSet {
	return &fileSet{
		expected:   expected,
		lines:      []expectedLine{},
		files:      make([]fileRecord, 0, n),
		flaws:      map[string]*flawList{},
		unmeasured: map[string]int{},
		seed:       maphash.MakeSeed(),
		names:      expected.namePattern(),
		kinds:      map[fileKind]*fileKind{},
		formats:    namesOfUnread(),
	}
}

// unreadFormats names the raster and point-cloud formats that Cairn does not read, each with its
// extensions, and with the formats that unsupportedFormat recognizes.
const unreadFormats = `
	half-finished copy: .crdownload .download .filepart .part .partial .tmp

	E57 point cloud: .e57
	LAS point cloud: .las las
	LAZ point cloud: .laz

	Arc/Info grid: .adf
	BAG: .bag
	BIL: .bil
	BIP: .bip
	BSQ: .bsq
	Binary Terrain: .bt
	ECW: .ecw
	Erdas Imagine: .img hfa
	GDAL VRT: .vrt
	GRD grid: .grd
	GRIB: .grb .grb2 .grib grib
	GeoPackage: .gpkg
	HDF5 or netCDF-4: hdf5
	HDF5: .h5
	HDF: .hdf
	Idrisi: .rst
	JPEG 2000: .jp2 jp2
	KEA: .kea
	MBTiles: .mbtiles
	MrSID: .sid
	PCIDSK: .pix
	Terragen: .ter
	USGS DEM: .dem
	XYZ text: .xyz
	netCDF: .nc netcdf`

// namesOfUnread returns the names of unreadFormats, by extension and by format.
func namesOfUnread() map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(unreadFormats) {
		name, keys, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for _, key := range strings.Fields(keys) {
			names[key] = name
		}
	}
	return names
}

// add appends the record of a row. Rows come in the order of their paths.
func (s *fileSet) add(row fileRow) {
	k := row.fileKind
	k.extension = strings.ToLower(path.Ext(row.path))
	if k.heightUnit == "" {
		k.heightUnit = heightUnitIn(k.vertical)
	}
	k.heightUnit = heightUnitOf(k.heightUnit)
	k.isNamed = s.expected.Name != "" && s.names.MatchString(path.Base(row.path))

	if k.system == "EPSG:4979" { // WGS 84 with heights above the ellipsoid
		k.system = "EPSG:4326"
		k.vertical = ellipsoidal
	}

	format := s.formats[k.extension]
	if format == halfFinished {
		k.unread = format
	} else if row.status == fileStatusUnsupported {
		k.unread = cmp.Or(format, s.formats[row.format])
	}

	r := row.fileRecord
	r.folder = maphash.String(s.seed, path.Dir(row.path))
	r.pathLength = uint16(len(row.path))

	// The place of a damaged file, or of one that was not read, does not count.
	isBroken := row.status == fileStatusCorrupt || k.unread != ""
	if row.hasBox && !isBroken {
		k.orientation = r.setBox(row)
	}

	if k.isTile() {
		s.readName(&r, row.path)
	}

	r.fileKind = s.internKind(k)
	s.addHeights(&r, row.found)
	s.files = append(s.files, r)
}

// setBox sets the box and the pixel size of a record, and returns the orientation. It returns "" if
// a number is too large or too small to compute with.
func (r *fileRecord) setBox(row fileRow) string {
	const (
		largest  = 1e15
		smallest = 1e-12
	)
	for i, v := range row.box {
		if !(math.Abs(v) < largest) { // or NaN
			return ""
		}
		if math.Abs(v) < smallest {
			row.box[i] = 0
		}
	}

	r.x = row.box[0]
	r.y = row.box[1]
	r.w = row.box[2] - r.x
	r.h = row.box[3] - r.y
	r.dx = math.Abs(row.transform[0])
	r.dy = math.Abs(row.transform[4])

	switch t := row.transform; {
	case t[1] != 0 || t[3] != 0:
		return isRotated
	case min(r.dx, r.dy, r.w, r.h) <= smallest:
		return ""
	case t[4] > 0:
		return isSouthUp
	}

	return isNorthUp
}

// internKind returns the one fileKind with the values of k, and the unit of its CRS.
func (s *fileSet) internKind(k fileKind) *fileKind {
	kind, isKnown := s.kinds[k]
	if !isKnown {
		kind = new(k)
		kind.unit = unitOfCRS(k.system)
		s.kinds[k] = kind
	}

	return kind
}

// foundIn notes a finding about one file.
func (s *fileSet) foundIn(code string, file int32, detail string) {
	s.found(code, flaw{file: file, other: noFile, detail: detail})
}

// found notes a finding.
func (s *fileSet) found(code string, f flaw) {
	list := s.flaws[code]
	if list == nil {
		list = &flawList{folders: map[uint64]folderFlaws{}}
		s.flaws[code] = list
	}

	list.total++
	if len(list.first) < maxFlaws {
		list.first = append(list.first, f)
	}

	folder := uint64(0)
	if f.file != noFile {
		folder = s.files[f.file].folder
	}

	list.folders[folder] = folderFlaws{f.file, list.folders[folder].total + 1}
}

// groups iterates over the files with the same key, each group in the order of paths. Files with
// the key 0 are in no group. The slice is valid until the next group.
func (s *fileSet) groups(key func(r *fileRecord) uint64) iter.Seq[[]int32] {
	type keyed struct {
		key  uint64
		file int32
	}

	all := make([]keyed, 0, len(s.files))
	for i := range s.files {
		if n := key(&s.files[i]); n != 0 {
			all = append(all, keyed{n, int32(i)})
		}
	}

	slices.SortFunc(all, func(a, b keyed) int {
		return cmp.Or(
			cmp.Compare(a.key, b.key),
			cmp.Compare(a.file, b.file),
		)
	})

	return func(yield func([]int32) bool) {
		var group []int32
		for i, k := range all {
			group = append(group, k.file)
			isLast := i+1 == len(all) || all[i+1].key != k.key
			if !isLast {
				continue
			}

			if !yield(group) {
				return
			}
			group = group[:0]
		}
	}
}

// check runs all checks. Their order matters: later ones use results that earlier ones stored in
// the records. It ends early if ctx does.
func (s *fileSet) check(ctx context.Context) error {
	steps := [...]func(){
		s.checkStatus,
		s.checkNames,
		s.checkAttributes,
		s.checkSamePlace,
		s.makeGrids,
	}
	for _, step := range steps {
		step()
		if err := ctx.Err(); err != nil {
			return err
		}
	}

	// A boundary changes which tiles of its grid are missing.
	if err := s.checkExpected(ctx); err != nil {
		return err
	}

	for i := range s.grids {
		s.checkCells(&s.grids[i])
	}

	s.checkHeights()
	return ctx.Err()
}

// count returns how many files are located, and the size of all files.
func (s *fileSet) count() (located, bytes int64) {
	for _, r := range s.files {
		bytes += r.size
		if r.isLocated() {
			located++
		}
	}
	return located, bytes
}

// checkStatus finds files that were not read as rasters, and files that were read with a warning.
func (s *fileSet) checkStatus() {
	// A file of an unsupported format should be a raster if other files of its extension are.
	isRead := map[string]bool{} // by extension
	for _, k := range s.kinds {
		if k.isLocated() && k.extension != "" {
			isRead[k.extension] = true
		}
	}

	for i, r := range s.files {
		file := int32(i)
		hasNoExtent := r.status == fileStatusNoBBox || r.status == fileStatusNoGeoref
		isUnsupported := r.status == fileStatusUnsupported

		switch {
		case r.unread != "":
			s.foundIn("unread", file, r.unread)
		case r.status == fileStatusCorrupt:
			s.foundIn(fileStatusCorrupt, file, "")
		case r.status == fileStatusUnreadable, isUnsupported && isRead[r.extension]:
			s.foundIn("unreadable", file, "")
		case hasNoExtent:
			s.foundIn("no_extent", file, "")
		case r.isWarned:
			s.foundIn("warning", file, "")
		}

		if r.isOutside {
			s.foundIn("outside_area", file, "")
		}
	}
}

// median returns the middle one of at least one value; of two, the smaller. It sorts the values.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}
