package main

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
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
	unsettled bool  // not a regular file: what it is or leads to can change while its own size and time stay
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
const fileColumns = ` id, path, size_bytes, modified_ns AS modified_at, analyzed_at, ` +
	`format, status, reason, width, height, bands, sample_type, nodata, unit, scale, "offset", ` +
	`compression, data_bytes, pixel_is, transform, native_bbox, crs, crs_definition, crs_name, ` +
	`vertical_crs, bbox, bbox_accuracy_m, resolution_m, source, warnings, cog, md5, sha256, heights, ` +
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
	all := append(m.columns(),
		column{"path", m.Path},
		column{"size_bytes", m.SizeBytes},
		column{"modified_ns", m.ModifiedAt.UnixNano()},
		column{"analyzed_at", m.AnalyzedAt},
		column{"transform", m.Transform},
		column{"crs_definition", m.CRSDefinition},
		column{"warnings", m.Warnings},
		column{"md5", m.MD5},
		column{"sha256", m.SHA256},
		column{"heights", m.Heights},
		column{"lacks_crs", m.LacksCRS},
		column{"set_crs", m.SetCRS},
		column{"set_vertical_crs", m.SetVerticalCRS},
		column{"own_warnings", m.OwnWarnings},
	)

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
	Hits int64 `json:"-"` // files that meet the query's box, up to maxHits + 1
}

// fileFilter selects the files that meet every condition that is set.
type fileFilter struct {
	datasetID *int64 // nil: those of datasets
	status    *string
	format    *string
	crs       *string // a code, or the name in the file
	vertical  *string // "none": files that state none; also of the next two
	sample    *string
	nodata    *string
	part      *string  // a pattern for a part of the path, as foldPattern makes it
	prefix    *string  // the path begins with it
	warned    bool     // only files with warnings
	finest    *float64 // the least and the greatest resolution_m
	coarsest  *float64
	smallest  *float64 // the least and the greatest size in bytes
	largest   *float64
	ids       []int64       // of files; nil: all
	datasets  []int64       // see selectVisible; nil: none
	of        datasetFilter // of datasets
	since     *int64        // the first and the last modification time, in nanoseconds since 1970
	until     *int64
	surveys
	box      *mapBox // nil: anywhere; east is at least west, and more than 180 if the box crosses 180°
	isPoint  bool    // the box is a point, and the rasters themselves must cover it
	isPartly bool    // only files that may lie partly outside of the box
	area     area    // inside the box; the files' footprints must meet it; nil: any
	sort     string  // "": as order says
}

// surveys are the datasets that say when they were surveyed. For their files this time counts, and
// not the time of the file.
type surveys struct {
	Surveyed []int64 // it has the time of the filter
	Others   []int64 // it has not
}

// The orders of files. Files of the same resolution or time are in the order of their paths.
const (
	sortPath     = "path"
	sortCoarsest = "-resolution" // files without a resolution come last
	sortNewest   = "-modified"
	sortFinest   = "finest" // for a point; not for a client to name
)

// fileFilters are the query parameters of a fileFilter.
const fileFilters = "bbox point intersects status format crs vertical_crs sample_type nodata q path warnings " +
	"resolution_min resolution_max size_min size_max keyword surveyed_from surveyed_until"

// order returns sort or, without it, the order for a point or by path.
func (f fileFilter) order() string {
	if f.sort == "" && f.isPoint {
		return sortFinest
	}
	return cmp.Or(f.sort, sortPath)
}

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
		status:   optional(query, "status"),
		format:   optional(query, "format"),
		crs:      optional(query, "crs"),
		vertical: optional(query, "vertical_crs"),
		sample:   optional(query, "sample_type"),
		nodata:   optional(query, "nodata"),
		part:     v.pattern(query, "q"),
		prefix:   optional(query, "path"),
		warned:   query.Get("warnings") == "1",
		finest:   v.number(query, "resolution_min"),
		coarsest: v.number(query, "resolution_max"),
		smallest: v.number(query, "size_min"),
		largest:  v.number(query, "size_max"),
		of:       readDatasetFilter(&v, query),
		isPoint:  query.Has("point"),
		sort:     query.Get("sort"),
	}

	orders := []string{
		"",
		sortPath,
		sortCoarsest,
		sortNewest,
	}
	v.check(
		slices.Contains(orders, f.sort),
		"sort", fieldUnknown,
		"must be path, -resolution or -modified",
	)

	flags := []string{"", "0", "1"}
	for _, name := range [...]string{"warnings", "total"} {
		v.check(
			slices.Contains(flags, query.Get(name)),
			name, fieldUnknown,
			"must be 0 or 1",
		)
	}

	statuses := fileStatuses()
	v.check(
		f.status == nil || slices.Contains(statuses, *f.status),
		"status", fieldUnknown,
		"must be one of "+strings.Join(statuses, ", "),
	)

	v.check(
		!f.isPoint || !query.Has("bbox"),
		"point", fieldExclusive,
		"cannot be used together with bbox",
	)

	var err error
	switch {
	case query.Has("intersects"):
		err = f.readArea(&v, query)
	case f.isPoint:
		f.box, err = readBox(&v, "point", query.Get("point"), 2)
	case query.Has("bbox"):
		f.box, err = readBox(&v, "bbox", query.Get("bbox"), 4)
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
		return malformed(codeExclusive, "intersects cannot be used together with bbox or point.")
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

// readBox reads the box of a parameter: west, south, east and north or, if size is 2, the longitude
// and latitude of a point. It notes in v if there is no such box on the globe.
func readBox(v *invalid, name, text string, size int) (*mapBox, error) {
	var at []float64
	parts := strings.Split(text, ",")
	for i, part := range parts {
		angle, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		isNumber := err == nil && isFinite(angle)
		if !isNumber || len(parts) != size {
			return nil, malformed(codeWrongType, "%s must be %d numbers separated by commas.", name, size)
		}
		at = append(at, angle)

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

// pathFile returns the file whose id and dataset are in the path, or a 404. It leaves out the
// dataset's name.
func (c *catalogue) pathFile(r *http.Request) (file datasetFile, err error) {
	const query = `
		SELECT` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND id = $2`

	d, err := c.pathDataset(r)
	if err != nil {
		return file, err
	}

	file.DatasetID = d.ID
	file.ElevationDatasetFileMeta, err = collectOne[ElevationDatasetFileMeta](
		r.Context(), c.core.db, d.missingPart("file", r.PathValue("file")), "get file",
		query, d.ID, pathID(r, "file"),
	)
	return file, err
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

	find := func(after []string, limit int) ([]datasetFile, error) {
		return findFiles(r.Context(), c.core.db, f, after, limit)
	}
	count := func() (*listTotal, error) {
		return countInArea(r.Context(), c.core.db, f, false)
	}
	return writeList(c.core, w, r, firstFile(), find, f.key, count)
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
func firstFile() []string { return []string{"-Infinity", "0", ""} }

// key returns a file's position in the order: its rank as in fileRank, the dataset, the path.
func (f fileFilter) key(file datasetFile) []string {
	rank := 0.0
	switch f.order() {
	case sortFinest:
		rank = *cmp.Or(file.ResolutionM, new(math.Inf(1)))
	case sortCoarsest:
		rank = -*cmp.Or(file.ResolutionM, new(0.0))
	case sortNewest:
		rank = -float64(file.ModifiedAt.UnixNano())
	}

	return []string{
		strconv.FormatFloat(rank, 'g', -1, 64),
		strconv.FormatInt(file.DatasetID, 10),
		file.Path,
	}
}

// findFiles returns up to limit files after the keys in after. For a point or an area it compares
// the files of the box one by one, until there are enough: findInArea may give up before.
func findFiles(
	ctx context.Context,
	q querier,
	f fileFilter,
	after []string,
	limit int,
) ([]datasetFile, error) {
	var found []datasetFile
	batch := limit
	for {
		candidates, err := listFiles(ctx, q, f, after, batch)

		// Each candidate meets the filter's box.
		for _, file := range candidates {
			if err := shareCore(ctx); err != nil {
				return nil, err
			}
			isApart := f.area != nil && !f.area.meetsFile(file.extent)
			isBeside := f.isPoint && !file.contains(f.box.West, f.box.South)
			if !isApart && !isBeside {
				found = append(found, file)
			}
		}

		isEnough := len(candidates) < batch || len(found) >= limit
		if err != nil || isEnough {
			return found[:min(limit, len(found))], err
		}
		after = f.key(candidates[len(candidates)-1])
		batch = min(2*batch, maxHits)
	}
}

// maxHits is how many hits of a box are sorted. If there are more, the files are scanned in order.
// Lists with more files are not counted to their end.
const maxHits = 10_000

// Parts of the queries for files f. Their parameters are those of fileFilter.args.
const (
	fileMatches = `
			(@dataset::bigint IS NULL OR f.dataset_id = @dataset)
			AND (@status::text IS NULL OR f.status = @status)
			AND (@format::text IS NULL OR f.format = @format)
			AND (@crs::text IS NULL OR f.crs = upper(@crs) OR f.crs_name = @crs)
			AND (@vertical::text IS NULL OR coalesce(f.vertical_crs, 'none') IN (@vertical, upper(@vertical)))
			AND (@sample::text IS NULL OR coalesce(f.sample_type, 'none') = @sample)
			AND (@nodata::text IS NULL OR coalesce(f.nodata, 'none') = @nodata)
			AND (@finest::float8 IS NULL OR f.resolution_m >= @finest)
			AND (@coarsest::float8 IS NULL OR f.resolution_m <= @coarsest)
			AND (@smallest::float8 IS NULL OR f.size_bytes >= @smallest)
			AND (@largest::float8 IS NULL OR f.size_bytes <= @largest)
			AND (@part::text IS NULL OR f.path ~ @part)
			AND (@prefix::text IS NULL OR f.path ^@ @prefix)
			AND (@warned::boolean IS NOT TRUE OR f.warnings <> '{}')
			AND (@ids::bigint[] IS NULL OR f.id = ANY (@ids))
			AND (@dataset::bigint IS NOT NULL OR f.dataset_id = ANY (@datasets::bigint[]))
			AND (@since::bigint IS NULL OR f.modified_ns >= @since OR f.dataset_id = ANY (@surveyed::bigint[]))
			AND (@until::bigint IS NULL OR f.modified_ns <= @until OR f.dataset_id = ANY (@surveyed::bigint[]))
			AND (@others::bigint[] IS NULL OR f.dataset_id <> ALL (@others))
			AND (@partly::boolean IS NOT TRUE OR NOT f.bbox[1] BETWEEN @west AND f.bbox[3]
				OR f.bbox[3] > @east OR f.bbox[2] < @south OR f.bbox[4] > @north)`
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

	// The planner expects three elements of this array, but ten of @boxes as a whole.
	fileNearBox = `
			f.bbox IS NOT NULL
			AND degrees_box(f.bbox) && ANY (ARRAY[(@boxes::box[])[1], (@boxes::box[])[2], (@boxes::box[])[3]])
			AND` + fileMeetsBox

	fileRank = `
		CASE @order::text
			WHEN 'finest' THEN coalesce(f.resolution_m, 'infinity')
			WHEN '-resolution' THEN -coalesce(f.resolution_m, 0)
			WHEN '-modified' THEN (-f.modified_ns)::float8
			ELSE 0
		END`
	fileOrder = fileRank + `, f.dataset_id, f.path`
)

// args returns the parameters of the queries for up to limit files after the keys in after. Without
// a box, boxes is null, and no query looks at the corners.
func (f fileFilter) args(after []string, limit int) pgx.NamedArgs {
	box := mapBox{}
	if f.box != nil {
		box = *f.box
	}
	if f.datasetID != nil {
		f.datasets = []int64{*f.datasetID}
	}

	return pgx.NamedArgs{
		"dataset":  f.datasetID,
		"status":   f.status,
		"format":   f.format,
		"crs":      f.crs,
		"vertical": f.vertical,
		"sample":   f.sample,
		"nodata":   f.nodata,
		"finest":   f.finest,
		"coarsest": f.coarsest,
		"smallest": f.smallest,
		"largest":  f.largest,
		"part":     f.part,
		"prefix":   f.prefix,
		"warned":   f.warned,
		"ids":      f.ids,
		"datasets": f.datasets,
		"since":    f.since,
		"until":    f.until,
		"surveyed": f.Surveyed,
		"others":   f.Others,
		"partly":   f.isPartly,

		"west":  box.West,
		"south": box.South,
		"east":  box.East,
		"north": box.North,
		"boxes": f.boxes(),

		"order":         f.order(),
		"after_rank":    after[0],
		"after_dataset": after[1],
		"after_path":    after[2],
		"limit":         limit,
	}
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
	const columns = `
		SELECT f.dataset_id,
			(SELECT d.name FROM datasets d WHERE d.id = f.dataset_id) AS dataset,` + fileColumns
	const isAfter = `(` + fileOrder + `) > (@after_rank::float8, @after_dataset::bigint, @after_path::text)`
	const near = `
		WITH hits AS MATERIALIZED (
			SELECT f.*, ` + fileRank + ` AS rank
			FROM elevation_dataset_file_meta f
			WHERE f.dataset_id = ANY (@datasets::bigint[])
				AND` + fileNearBox + `
				AND` + fileMatches + `
				AND ` + isAfter + `
			LIMIT @most_hits::bigint
		)` + columns + `,
			(SELECT count(*) FROM hits) AS hits
		FROM hits f
		ORDER BY f.rank, f.dataset_id, f.path
		LIMIT @limit`
	const inOrder = columns + `,
			0 AS hits
		FROM elevation_dataset_file_meta f
		WHERE
			CASE
				WHEN @order = 'path' THEN (f.dataset_id, f.path) > (@after_dataset, @after_path)
				WHEN @dataset::bigint IS NULL THEN ` + isAfter + `
				ELSE (` + fileRank + `, f.path) > (@after_rank, @after_path)
			END
			AND (@boxes::box[] IS NULL OR` + fileMeetsBox + `)
			AND` + fileMatches + `
		ORDER BY ` + fileOrder + `
		LIMIT @limit`

	args := f.args(after, limit)

	// The GiST index finds the files of a box. It rounds by up to 1e-6 degrees, so each hit is
	// compared exactly. Few files cover a point, and none may be missed before the sort.
	if f.box != nil {
		args["most_hits"] = maxHits + 1
		if f.isPoint {
			args["most_hits"] = nil
		}

		files, err := collect[datasetFile](ctx, q, "find files", near, args)
		if err != nil || f.isPoint {
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

// countFiles returns how many files match the filter. The number is exact up to maxHits; above, it
// is an estimate of the database from its statistics. countFiles ignores the filter's area: see
// countInArea. The statements are planned for their values.
func countFiles(ctx context.Context, q querier, f fileFilter) (*listTotal, error) {
	const matching = `
		SELECT
		FROM elevation_dataset_file_meta f
		WHERE (@boxes::box[] IS NULL OR` + fileNearBox + `)
			AND` + fileMatches
	const counting = `SELECT count(*) FROM (` + matching + ` LIMIT @limit) f`
	const estimating = `EXPLAIN (FORMAT JSON)` + matching

	// Every file with a box meets the globe, and only those are ok.
	isGlobe := f.box != nil && f.box.East-f.box.West >= 360 && f.box.North-f.box.South >= 180
	isAnyOK := f.status == nil || *f.status == fileStatusOK
	if isGlobe && isAnyOK {
		f.box = nil
		f.status = new(fileStatusOK)
	}

	args := f.args(firstFile(), maxHits+1)
	var n int64
	var err error
	if f.isPoint {
		var files []datasetFile
		files, err = findFiles(ctx, q, f, firstFile(), maxHits+1)
		n = int64(len(files))
	} else {
		n, err = scalar[int64](
			ctx, q, "count files",
			counting, pgx.QueryExecModeCacheDescribe, args,
		)
	}
	if err != nil || n <= maxHits {
		return &listTotal{Total: n}, err
	}

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

// boxes returns the boxes to look up in the index. These are the filter's box, the same box 360°
// further east for files that cross 180°, and the same box 360° further west if it crosses 180°
// itself. Without a box there are none.
func (f fileFilter) boxes() (boxes []pgtype.Box) {
	if f.box == nil {
		return nil
	}

	for _, turn := range [...]float64{0, 360, -360} {
		west := f.box.West + turn
		east := f.box.East + turn
		if east < -180 {
			continue
		}
		corners := [2]pgtype.Vec2{
			{X: east, Y: f.box.North},
			{X: west, Y: f.box.South},
		}
		boxes = append(boxes, pgtype.Box{P: corners, Valid: true})
	}
	return boxes
}
