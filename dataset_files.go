package main

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ElevationDatasetFileMeta is the row of one file of a dataset.
type ElevationDatasetFileMeta struct {
	ID         int64    `json:"id,omitzero"`
	Path       string   `json:"path"`
	SizeBytes  int64    `json:"size_bytes"`
	ModifiedAt fileTime `json:"modified_at"`
	extent
	AnalyzedAt time.Time `json:"analyzed_at"`
	MD5        *string   `json:"md5,omitzero"` // in hex; left out: not known
	SHA256     *string   `json:"sha256,omitzero"`

	Heights *fileHeights `json:"-"` // nil: no analysis with heights has read them

	changed   int64 // the file's st_ctime, in nanoseconds since 1970
	unsettled bool  // not a regular file, such as a link: its content may change while size and time stay
}

// fileTime is a time that the database holds in nanoseconds since 1970. Its own times have only
// microseconds.
type fileTime struct{ time.Time }

// ScanInt64 sets the time from a column.
func (t *fileTime) ScanInt64(ns pgtype.Int8) error {
	t.Time = time.Unix(0, ns.Int64).UTC()
	return nil
}

// fileColumns are the columns of elevation_dataset_file_meta that are read as a file.
const fileColumns = plainColumns + `, heights`

// plainColumns are the columns that lists of files read unchanged. They read heights without edges
// and grid, because these are most of a row.
const plainColumns = ` id, path, size_bytes, modified_ns AS modified_at, analyzed_at, ` +
	`format, status, reason, width, height, bands, sample_type, nodata, unit, scale, "offset", ` +
	`compression, data_bytes, pixel_is, transform, native_bbox, crs, crs_definition, crs_name, ` +
	`vertical_crs, bbox, bbox_accuracy_m, resolution_m, source, warnings, cog, md5, sha256, ` +
	`lacks_crs, set_crs, set_vertical_crs, own_warnings`

// column is a column of the table of files, with the value of a file.
type column struct {
	name  string
	value any
}

// columns returns the columns that GeoJSON and CSV show as well. Lists are boxes.
func (m *extent) columns() []column {
	return []column{
		{"format", m.Format},
		{"status", m.Status},
		{"reason", m.Reason},

		// The raster.
		{"width", m.Width},
		{"height", m.Height},
		{"bands", m.Bands},
		{"sample_type", m.SampleType},
		{"nodata", m.Nodata},
		{"unit", m.Unit},
		{"scale", m.Scale},
		{"offset", m.Offset},
		{"compression", m.Compression},
		{"data_bytes", m.DataBytes},
		{"pixel_is", m.PixelIs},
		{"cog", m.COG},

		// Where it lies.
		{"crs", m.CRS},
		{"crs_name", m.CRSName},
		{"vertical_crs", m.VerticalCRS},
		{"native_bbox", m.NativeBBox},
		{"bbox", m.BBox},
		{"bbox_accuracy_m", m.BBoxAccuracyM},
		{"resolution_m", m.ResolutionM},
		{"source", m.Source},
	}
}

// stored returns the columns of the table that hold the file, and their values.
func (m *ElevationDatasetFileMeta) stored() (names []string, values []any) {
	all := append(m.columns(), []column{
		{"path", m.Path},
		{"size_bytes", m.SizeBytes},
		{"modified_ns", m.ModifiedAt.UnixNano()},
		{"analyzed_at", m.AnalyzedAt},
		{"transform", m.Transform},
		{"crs_definition", m.CRSDefinition},
		{"warnings", m.Warnings},
		{"md5", m.MD5},
		{"sha256", m.SHA256},
		{"heights", m.Heights},
		{"lacks_crs", m.LacksCRS},
		{"set_crs", m.SetCRS},
		{"set_vertical_crs", m.SetVerticalCRS},
		{"own_warnings", m.OwnWarnings},
	}...)

	for _, c := range all {
		names = append(names, c.name)
		values = append(values, c.value)
	}
	return names, values
}

// fileStatuses returns every value of a file's status.
func fileStatuses() []string {
	return []string{
		fileStatusOK,
		fileStatusNoBBox,
		fileStatusNoGeoref,
		fileStatusSidecar,
		fileStatusUnsupported,
		fileStatusCorrupt,
		fileStatusUnreadable,
	}
}

// datasetFile is a file and its dataset.
type datasetFile struct {
	DatasetID int64  `json:"dataset_id"`
	Dataset   string `json:"dataset"`
	ElevationDatasetFileMeta
	Hits int64     `json:"-"` // files that meet the query's box, up to maxHits + 1
	Grid []float64 `json:"-"` // see heightStatistics; empty: there is none, or it was not asked for

	// The sort keys before the path; see fileKeys.
	Rank   float64 `json:"-"`
	Second float64 `json:"-"`
	Title  string  `json:"-"`
	Number int64   `json:"-"`
}

// fileFilter selects the files that meet every condition that is set.
type fileFilter struct {
	datasetID *int64 // nil: those of datasets
	status    *string
	values    pgx.NamedArgs // of other parameters of fileMatches; a missing one is no condition
	ids       []int64       // of files; nil: all
	datasets  []int64       // see selectVisible; nil: none
	of        datasetFilter // of datasets
	surveyed  []int64       // datasets whose time of survey counts instead of the times of their files
	surveys   []float64     // their beginnings, in nanoseconds since 1970
	box       *mapBox       // nil: anywhere; east is at least west, and more than 180 if the box crosses 180°
	isPoint   bool          // the box is a point, and the rasters themselves must cover it
	area      area          // inside the box; the files' footprints must meet it; nil: any
	isBox     bool          // the area is the box
	isPartly  bool          // only files that may lie partly outside of the box
	isFar     bool          // only files that do not meet the box
	withGrids bool          // the files have their grids
	mostHits  int           // if more files meet the box, any of them are returned; 0: see maxHits
	sort      []string      // sort keys, as fileKeys names them; none: by path
	isDown    bool          // the whole order is reversed
}

// The sort keys of lists. Files of the same resolution or time are in the order of their paths.
const (
	sortPath     = "path"
	sortCoarsest = "-resolution" // files without a resolution come last
	sortNewest   = "-modified"
	sortFinest   = "finest" // the order for a point; clients cannot ask for it
)

// fileFilters are the query parameters of a fileFilter.
const fileFilters = "bbox point intersects status format crs vertical_crs sample_type nodata q path warnings " +
	"resolution_min resolution_max size_min size_max keyword surveyed_from surveyed_until"

// foldPattern returns a regular expression of PostgreSQL for text in any case, in every script.
func foldPattern(text string) string {
	var pattern strings.Builder

	for _, r := range text {
		variants := string(r)
		for c := unicode.SimpleFold(r); c != r; c = unicode.SimpleFold(c) {
			variants += string(c)
		}

		hasVariants := len(variants) > utf8.RuneLen(r)
		if hasVariants {
			pattern.WriteString("[" + variants + "]")
		} else {
			pattern.WriteString(regexp.QuoteMeta(variants))
		}
	}

	return pattern.String()
}

// readFileFilter reads a fileFilter from the query. It selects from no dataset yet.
func readFileFilter(query url.Values) (fileFilter, error) {
	var v invalid
	f := fileFilter{
		status:  optional(query, "status"),
		of:      readDatasetFilter(&v, query),
		isPoint: query.Has("point"),
		values: pgx.NamedArgs{
			"q":        v.pattern(query, "q"),
			"warnings": query.Get("warnings") == "1",
		},
	}
	for name := range strings.FieldsSeq("format crs vertical_crs sample_type nodata path") {
		f.values[name] = optional(query, name)
	}
	for name := range strings.FieldsSeq("resolution_min resolution_max size_min size_max") {
		f.values[name] = v.number(query, name)
	}

	v.oneOf("status", f.status, fileStatuses()...)
	sort := query.Get("sort")
	v.oneOf("sort", nonEmpty(sort), sortPath, sortCoarsest, sortNewest)
	if sort == "" && f.isPoint {
		sort = sortFinest
	}
	f.sort = []string{sort}
	for _, name := range [...]string{"warnings", "total"} {
		v.oneOf(name, nonEmpty(query.Get(name)), "0", "1")
	}

	v.check(
		!f.isPoint || !query.Has("bbox"),
		"point", fieldExclusive,
		"cannot be used together with a box",
	)

	var err error
	switch {
	case query.Has("intersects"):
		err = f.readArea(&v, query)
	case f.isPoint:
		f.box, err = readBox(&v, "point", readNumbers(query.Get("point")), 2)
	case query.Has("bbox"):
		f.box, err = readBox(&v, "bbox", readNumbers(query.Get("bbox")), 4)
	}
	if err != nil {
		return f, err
	}
	return f, v.err()
}

// pattern returns a pattern for the text in a parameter, as foldPattern makes it, or nil without
// the parameter.
func (v *invalid) pattern(query url.Values, name string) *string {
	text := optional(query, name)
	if text == nil {
		return nil
	}
	v.check(utf8.RuneCountInString(*text) <= 255, name, fieldTooLong, "must have at most 255 characters")
	return new(foldPattern(*text))
}

// number returns the number in a parameter, or nil without the parameter.
func (v *invalid) number(query url.Values, name string) *float64 {
	text := optional(query, name)
	if text == nil {
		return nil
	}
	n, err := strconv.ParseFloat(*text, 64)
	v.check(err == nil && isFinite(n) && n >= 0, name, fieldMalformed, "must be a number, at least 0")
	return &n
}

// readArea reads the area and its box from the parameter intersects.
func (f *fileFilter) readArea(v *invalid, query url.Values) (err error) {
	if query.Has("bbox") || query.Has("point") {
		return malformed(codeExclusive, "intersects must be alone, without a box or a point.")
	}

	box, within, ok := readGeometry(query.Get("intersects"), maxCorners)
	if !ok {
		return malformed(
			codeWrongType,
			"intersects must be a GeoJSON geometry of at most %d corners.",
			maxCorners,
		)
	}

	f.area = within
	f.box, err = readBox(v, "intersects", box, 4)
	if err == nil {
		f.box = f.box.widened()
	}
	return err
}

// readNumbers returns the numbers in a text, which commas separate. It returns nil if one of them
// is not a finite number.
func readNumbers(text string) (numbers []float64) {
	for part := range strings.SplitSeq(text, ",") {
		number, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !isFinite(number) {
			return nil
		}
		numbers = append(numbers, number)
	}
	return numbers
}

// readBox returns the box in the numbers of a parameter: west, south, east and north or, if size is
// 2, the longitude and latitude of a point. It notes in v if there is no such box on the globe.
func readBox(v *invalid, name string, at []float64, size int) (*mapBox, error) {
	if len(at) != size {
		return nil, malformed(codeWrongType, "%s must be %d numbers separated by commas.", name, size)
	}
	for i, angle := range at {
		most := [...]float64{180, 90}[i%2] // of a longitude, and of a latitude
		v.check(
			math.Abs(angle) <= most,
			name, fieldOutOfRange,
			"longitudes go from -180 to 180, latitudes from -90 to 90",
		)
	}

	// A point is a box without an area. A pole has every longitude.
	if size == 2 {
		at = append(at, at...)
		if math.Abs(at[1]) == 90 {
			at[0] = -180
			at[2] = 180
		}
	}

	box := mapBox{
		West:  at[0],
		South: at[1],
		East:  at[2],
		North: at[3],
	}
	v.check(
		box.South <= box.North,
		name, fieldOutOfRange,
		"south must not lie north of north",
	)
	if box.East < box.West {
		box.East += 360
	}
	return &box, nil
}

// pathFile returns the file whose id and dataset are in the path, and the dataset, or a 404. The
// file lacks the dataset's name.
func (c *catalogue) pathFile(r *http.Request) (file datasetFile, d dataset, err error) {
	const query = `
		SELECT` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND id = $2`

	d, err = c.pathDataset(r)
	if err != nil {
		return file, d, err
	}

	file.DatasetID = d.ID
	file.ElevationDatasetFileMeta, err = collectOne[ElevationDatasetFileMeta](
		r.Context(), c.core.db, d.missingPart("file", r.PathValue("file")), "get file",
		query, d.ID, pathID(r, "file"),
	)
	return file, d, err
}

// listFiles answers GET /api/v1/datasets/{id}/files, and GET /api/v1/files for all datasets.
func (c *catalogue) listFiles(w http.ResponseWriter, r *http.Request) error {
	// An area is compared with files on a core of the request's own.
	if r.URL.Query().Has("intersects") {
		err := callerOf(r).slots.acquire(r.Context(), heavy)
		if err != nil {
			return err
		}
	}

	_, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}

	find := func(after []string, limit int) (files []datasetFile, err error) {
		for after != nil && len(files) < limit {
			more, next, err := findFiles(r.Context(), c.core.db, f, after, limit-len(files))
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
			after = next
		}
		return files, nil
	}
	count := func() (*listTotal, error) {
		return countFiles(r.Context(), c.core.db, f)
	}
	return writeList(c.core, w, r, firstFile(), find, datasetFile.key, count)
}

// pathFilter returns the filter that the query gives, for the files of the dataset in the path or,
// without one, of all that the caller may see.
func (c *catalogue) pathFilter(r *http.Request) (d dataset, f fileFilter, err error) {
	f, err = readFileFilter(r.URL.Query())
	if err == nil {
		d, err = c.selectVisible(r, &f)
	}
	return d, f, err
}

// firstFile returns keys before those of every file.
func firstFile() []string { return []string{"-Infinity", "0", "", "0", ""} }

// first returns keys before those of every file in the order of the filter.
func (f fileFilter) first() []string {
	if f.isDown {
		return []string{"Infinity", "0", "", strconv.Itoa(math.MaxInt64), ""}
	}
	return firstFile()
}

// key returns a file's position in the order of the query that found it.
func (f datasetFile) key() []string {
	return []string{
		strconv.FormatFloat(f.Rank, 'g', -1, 64),
		strconv.FormatFloat(f.Second, 'g', -1, 64),
		f.Title,
		strconv.FormatInt(f.Number, 10),
		f.Path,
	}
}

// findFiles returns up to limit files after the keys in after. next are the keys with which to go
// on, or nil if there are no more files. For a point or an area it compares the files of the box
// one by one. After maxHits of them it returns the files it has found. If there are none, it goes
// on, because some clients take an empty page for the last one.
func findFiles(
	ctx context.Context,
	q querier,
	f fileFilter,
	after []string,
	limit int,
) (found []datasetFile, next []string, err error) {
	batch := limit + 1
	compared := 0
	for {
		candidates, err := listFiles(ctx, q, f, after, batch)
		if err != nil {
			return nil, nil, err
		}

		for _, file := range candidates {
			if err := shareCore(ctx, q); err != nil {
				return nil, nil, err
			}
			if !f.holds(file) {
				continue
			}
			if len(found) == limit {
				return found, found[limit-1].key(), nil
			}
			found = append(found, file)
		}

		if len(candidates) < batch {
			return found, nil, nil
		}
		after = candidates[batch-1].key()

		compared += batch
		if compared >= maxHits {
			if len(found) > 0 {
				return found, after, nil
			}
			compared = 0
		}
		batch = min(4*batch, maxHits-compared)
	}
}

// holds reports whether a file that meets the filter's box also meets its area, or covers its
// point.
func (f fileFilter) holds(file datasetFile) bool {
	if f.isPoint {
		return file.contains(f.box.West, f.box.South)
	}
	return f.area == nil || f.area.meets(file.footprint())
}

// maxHits is how many hits of a box are sorted. If there are more, the files are scanned in order.
// Lists with more files are not counted to their end.
const maxHits = 10_000

// Parts of the queries for files f. Their parameters are those of fileFilter.args.
const (
	fileMatches = `
			(@dataset::bigint IS NULL OR f.dataset_id = @dataset)
			AND (@dataset::bigint IS NOT NULL OR f.dataset_id = ANY (@datasets::bigint[]))
			AND (@status::text IS NULL OR f.status = @status)
			AND (@format::text IS NULL OR f.format = @format)
			AND (@crs::text IS NULL OR f.crs = upper(@crs) OR f.crs_name = @crs)
			AND (@vertical_crs::text IS NULL
				OR coalesce(f.vertical_crs, 'none') IN (@vertical_crs, upper(@vertical_crs)))
			AND (@sample_type::text IS NULL OR coalesce(f.sample_type, 'none') = @sample_type)
			AND (@nodata::text IS NULL OR coalesce(f.nodata, 'none') = @nodata)
			AND (@resolution_min::float8 IS NULL OR f.resolution_m >= @resolution_min)
			AND (@resolution_max::float8 IS NULL OR f.resolution_m <= @resolution_max)
			AND (@size_min::float8 IS NULL OR f.size_bytes >= @size_min)
			AND (@size_max::float8 IS NULL OR f.size_bytes <= @size_max)
			AND (@q::text IS NULL OR f.path ~ @q)
			AND (@path::text IS NULL OR f.path ^@ @path)
			AND (@warnings::boolean IS NOT TRUE OR f.warnings <> '{}')
			AND (@ids::bigint[] IS NULL OR f.id = ANY (@ids))
			AND (@since::bigint IS NULL OR f.modified_ns >= @since OR f.dataset_id = ANY (@surveyed::bigint[]))
			AND (@until::bigint IS NULL OR f.modified_ns <= @until OR f.dataset_id = ANY (@surveyed::bigint[]))
			AND (@partly::boolean IS NOT TRUE OR NOT f.bbox[1] BETWEEN @west AND f.bbox[3]
				OR f.bbox[3] > @east OR f.bbox[2] < @south OR f.bbox[4] > @north)`

	// The grid is a vrtGrid. Its pixel size is rounded, which fails beyond the range of real.
	fileInGrid = `
			coalesce(f.crs, f.crs_name, '') = @grid_crs
			AND coalesce(f.crs_definition, '') = @grid_definition::text
			AND CASE
				WHEN f.transform[1] BETWEEN 1e-30 AND 1e30 AND -f.transform[5] BETWEEN 1e-30 AND 1e30
				THEN f.transform[1]::real = @grid_dx::float8::real AND -f.transform[5]::real = @grid_dy::float8::real
			END
			AND f.transform[2] = 0
			AND f.transform[4] = 0
			AND f.native_bbox[1] >= @grid_west::float8
			AND f.native_bbox[2] >= @grid_south::float8
			AND f.native_bbox[3] <= @grid_east::float8
			AND f.native_bbox[4] <= @grid_north::float8`

	fileEast = `(f.bbox[3] + CASE WHEN f.bbox[3] < f.bbox[1] THEN 360 ELSE 0 END)`
	fileTurn = `CASE WHEN f.bbox[1] < 0 THEN 360 ELSE 0 END` // see narrowerRange

	fileMeetsBox = `
			f.bbox[2] <= @north
			AND f.bbox[4] >= @south
			AND (
				f.bbox[1] <= @east AND ` + fileEast + ` >= @west
				OR f.bbox[1] <= @east - 360::float8
				OR ` + fileEast + ` >= @west + 360::float8
			)`

	// The boxes to look up in the index: the filter's box, the same box 360° further east for files
	// that cross 180°, and the same box 360° further west if it crosses 180° itself.
	fileNearBox = `
			f.bbox IS NOT NULL
			AND degrees_box(f.bbox) && ANY (ARRAY[
				box(point(@west::float8, @south::float8), point(@east::float8, @north::float8)),
				box(point(@west + 360::float8, @south), point(@east + 360::float8, @north)),
				CASE
					WHEN @east >= 180
					THEN box(point(@west - 360::float8, @south), point(@east - 360::float8, @north))
				END
			])
			AND` + fileMeetsBox

	// The sort keys: up to two numbers, the title if it is sorted by, a number, and the path. A key
	// that @sort does not name is constant, so PostgreSQL leaves it out of the order.
	fileRank      = `CASE (@sort::text[])[1]` + fileNumbers
	fileSecond    = `CASE (@sort::text[])[2]` + fileNumbers
	fileIsByTitle = `coalesce('+title' = ANY (@sort::text[]) AND @dataset::bigint IS NULL, false)`
	fileTitle     = `CASE WHEN ` + fileIsByTitle + ` THEN f.path ELSE '' END`
	fileNumber    = `
		CASE
			WHEN '+id' = ANY (@sort::text[]) THEN f.id
			WHEN '-id' = ANY (@sort::text[]) THEN -f.id
			ELSE f.dataset_id
		END`
	fileKeys = `(` + fileRank + `, ` + fileSecond + `, ` + fileTitle + `, ` + fileNumber + `, f.path)`

	// With one dataset, the first two of these have an index, and so has -datetime without surveys.
	fileNumbers = `
			WHEN '-resolution' THEN -coalesce(f.resolution_m, 0)
			WHEN '-modified' THEN (-f.modified_ns)::float8
			WHEN 'finest' THEN coalesce(f.resolution_m, 'infinity')
			WHEN '+resolution' THEN coalesce(f.resolution_m, 0)
			WHEN '+datetime' THEN ` + fileBegins + `
			WHEN '-datetime' THEN
				CASE WHEN @surveys::float8[] IS NULL THEN (-f.modified_ns)::float8 ELSE -` + fileBegins + ` END
			ELSE 0
		END`
	fileBegins = `coalesce(
			(@surveys::float8[])[array_position(@surveyed::bigint[], f.dataset_id)],
			f.modified_ns
		)`

	// The columns of a datasetFile, but for hits.
	listColumns = `
		SELECT f.dataset_id,
			(SELECT d.name FROM datasets d WHERE d.id = f.dataset_id) AS dataset,
			` + fileRank + ` AS rank,
			` + fileSecond + ` AS second,
			` + fileTitle + ` AS title,
			` + fileNumber + ` AS number,
			CASE
				WHEN @with_grids::boolean
				THEN ARRAY(
					SELECT coalesce(v::float8, 'NaN')
					FROM jsonb_array_elements_text(heights #> '{statistics,grid}') WITH ORDINALITY AS g (v, i)
					ORDER BY i
				)
			END AS grid,
			heights #- '{statistics,edges}' #- '{statistics,grid}' AS heights,` + plainColumns

	// Either part is constant.
	fileOrder = `
			CASE WHEN NOT @down::boolean THEN ` + fileRank + ` END,
			CASE WHEN NOT @down THEN ` + fileSecond + ` END,
			CASE WHEN NOT @down THEN ` + fileTitle + ` END,
			CASE WHEN NOT @down THEN ` + fileNumber + ` END,
			CASE WHEN NOT @down THEN f.path END,
			CASE WHEN @down THEN ` + fileRank + ` END DESC,
			CASE WHEN @down THEN ` + fileSecond + ` END DESC,
			CASE WHEN @down THEN ` + fileTitle + ` END DESC,
			CASE WHEN @down THEN ` + fileNumber + ` END DESC,
			CASE WHEN @down THEN f.path END DESC`

	// The files after some keys. With few keys, only these are compared, so that an index serves.
	fileIsAfter = `
			CASE
				WHEN coalesce((@sort::text[])[1], '') IN ('', 'path', '+id', '+title') AND NOT ` + fileIsByTitle + `
				THEN CASE
					WHEN @down::boolean THEN (` + fileNumber + `, f.path) < (@after_number::bigint, @after_path::text)
					ELSE (` + fileNumber + `, f.path) > (@after_number, @after_path)
				END
				WHEN @dataset IS NOT NULL AND cardinality(@sort) = 1
				THEN CASE
					WHEN @down THEN (` + fileRank + `, f.path) < (@after_rank::float8, @after_path)
					ELSE (` + fileRank + `, f.path) > (@after_rank, @after_path)
				END
				WHEN @down THEN ` + fileKeys + ` < ` + fileAfter + `
				ELSE ` + fileKeys + ` > ` + fileAfter + `
			END`
	fileAfter = `(@after_rank, @after_second::float8, @after_title::text, @after_number, @after_path)`
)

// args returns the parameters of the queries for up to limit files after the keys in after. Without
// a box, west is null, and no query looks at the corners.
func (f fileFilter) args(after []string, limit int) pgx.NamedArgs {
	if f.datasetID != nil {
		f.datasets = []int64{*f.datasetID}
	}

	args := pgx.NamedArgs{
		"dataset":  f.datasetID,
		"datasets": f.datasets,
		"status":   f.status,
		"ids":      f.ids,
		"surveyed": f.surveyed,
		"partly":   f.isPartly,
		"is_far":   f.isFar,

		"with_grids": f.withGrids,

		"sort":         f.sort,
		"down":         f.isDown,
		"surveys":      f.surveys,
		"after_rank":   after[0],
		"after_second": after[1],
		"after_title":  after[2],
		"after_number": after[3],
		"after_path":   after[4],
		"limit":        limit,
	}
	maps.Copy(args, f.values)

	if f.box != nil {
		args["west"] = f.box.West
		args["south"] = f.box.South
		args["east"] = f.box.East
		args["north"] = f.box.North
	}
	return args
}

// listFiles returns up to limit files after the keys in after. For a point these are the files
// whose box covers it.
func listFiles(
	ctx context.Context,
	q querier,
	f fileFilter,
	after []string,
	limit int,
) ([]datasetFile, error) {
	const near = `
		WITH hits AS MATERIALIZED (
			SELECT f.*
			FROM elevation_dataset_file_meta f
			WHERE f.dataset_id = ANY (@datasets::bigint[])
				AND` + fileNearBox + `
				AND` + fileMatches + `
				AND ` + fileIsAfter + `
			LIMIT @most_hits::bigint
		)` + listColumns + `,
			(SELECT count(*) FROM hits) AS hits
		FROM hits f
		ORDER BY ` + fileOrder + `
		LIMIT @limit`
	const inOrder = listColumns + `,
			0 AS hits
		FROM elevation_dataset_file_meta f
		WHERE
			` + fileIsAfter + `
			AND (@west::float8 IS NULL OR (` + fileMeetsBox + `) <> @is_far::boolean)
			AND (@grid_crs::text IS NULL OR` + fileInGrid + `)
			AND` + fileMatches + `
		ORDER BY ` + fileOrder + `
		LIMIT @limit`

	args := f.args(after, limit)

	// The GiST index finds the files of a box. It rounds by up to 1e-6 degrees, so each hit is
	// compared exactly. Hits of a point are not limited: they are few, and all have to be sorted.
	if f.box != nil && !f.isFar {
		args["most_hits"] = cmp.Or(f.mostHits, maxHits) + 1
		if f.isPoint {
			args["most_hits"] = nil
		}

		files, err := collect[datasetFile](ctx, q, "find files", near, args)
		if err != nil || f.isPoint || f.mostHits > 0 {
			return files, err
		}
		areAll := len(files) == 0 || files[0].Hits <= maxHits
		if areAll {
			return files, nil
		}
	}

	// Otherwise PostgreSQL scans the files in order. It plans for the values of the parameters
	// (CacheDescribe), so that it can use a partial index.
	return collect[datasetFile](
		ctx, q, "list files",
		inOrder, pgx.QueryExecModeCacheDescribe, args,
	)
}

// countFiles returns how many files match the filter. If more than maxHits match it, its area and
// point aside, the number is an estimate from the statistics of the database. The statements are
// planned for the values of their parameters.
func countFiles(ctx context.Context, q querier, f fileFilter) (*listTotal, error) {
	const matching = `
		SELECT
		FROM elevation_dataset_file_meta f
		WHERE (@west::float8 IS NULL OR` + fileNearBox + `)
			AND` + fileMatches
	const counting = `SELECT count(*) FROM (` + matching + ` LIMIT @limit) f`
	const estimating = `EXPLAIN (FORMAT JSON)` + matching

	// Every file with a box meets the globe, and only those are ok.
	isGlobe := f.box != nil && f.box.East-f.box.West >= 360 && f.box.North-f.box.South >= 180
	isAnyOK := f.status == nil || *f.status == fileStatusOK
	if isGlobe && isAnyOK && f.area == nil {
		f.box = nil
		f.status = new(fileStatusOK)
	}

	args := f.args(firstFile(), maxHits+1)
	n, err := scalar[int64](
		ctx, q, "count files",
		counting, pgx.QueryExecModeCacheDescribe, args,
	)
	if err != nil {
		return nil, err
	}

	if n > maxHits {
		type planned struct {
			Plan struct {
				Rows float64 `json:"Plan Rows"`
			}
		}
		plans, err := scalar[[]planned](
			ctx, q, "estimate files",
			estimating, pgx.QueryExecModeCacheDescribe, args,
		)
		if err != nil {
			return nil, err
		}

		estimate := int64(plans[0].Plan.Rows)
		return &listTotal{
			Total:           max(n, estimate),
			TotalIsEstimate: true,
		}, nil
	}

	if f.area == nil && !f.isPoint {
		return &listTotal{Total: n}, nil
	}

	// A file of the box does not count if it lies beside the area or the point. If the area is the
	// box, only files that lie partly outside the box have to be compared.
	f.isPartly = f.isBox
	candidates, err := listFiles(ctx, q, f, f.first(), maxHits)
	if err != nil {
		return nil, err
	}
	for _, file := range candidates {
		if err := shareCore(ctx, q); err != nil {
			return nil, err
		}
		if !f.holds(file) {
			n--
		}
	}
	return &listTotal{
		Total:           max(0, n),
		TotalIsEstimate: n < 0, // files have been stored between the two statements
	}, nil
}
