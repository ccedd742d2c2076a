package main

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ElevationDatasetFileMeta is the row of one file of a dataset.
type ElevationDatasetFileMeta struct {
	ID         int64     `json:"id,omitzero" db:"id"`
	Path       string    `json:"path" db:"path"`
	SizeBytes  int64     `json:"size_bytes" db:"size_bytes"`
	ModifiedAt time.Time `json:"modified_at" db:"modified_at"`
	extent
	AnalyzedAt time.Time `json:"analyzed_at" db:"analyzed_at"`

	unsettled bool // may become something else without a change of its own size and time: a link to a directory
}

// datasetFile is a file and the dataset that it is of.
type datasetFile struct {
	DatasetID int64  `json:"dataset_id"`
	Dataset   string `json:"dataset"`
	ElevationDatasetFileMeta
}

// fileFilter says which files are meant: those for which all that is set holds.
type fileFilter struct {
	datasetID *int64 // nil: all
	status    *string
	format    *string
	crs       *string  // a code, or what the file calls it
	part      *string  // of the path, in any case
	west      *float64 // of a box in degrees: all four are set or none
	south     *float64
	east      *float64 // not less than west: beyond 180 where the box crosses it
	north     *float64
	isPoint   bool // the box is a place that the files themselves must cover, the finest first
}

// fileFilters are the query parameters of a fileFilter.
func fileFilters(further ...string) []string {
	return append(further, "bbox", "point", "status", "format", "crs", "q")
}

// readFileFilter reads a fileFilter from the query, of all datasets.
func readFileFilter(query url.Values) (fileFilter, error) {
	f := fileFilter{
		status: optional(query, "status"), format: optional(query, "format"),
		crs: optional(query, "crs"), part: optional(query, "q"), isPoint: query.Has("point"),
	}
	var v invalid
	v.check(f.status == nil || slices.Contains(fileStatuses(), *f.status), "status", "unknown", "must be one of "+strings.Join(fileStatuses(), ", "))
	v.check(!f.isPoint || !query.Has("bbox"), "point", "exclusive", "cannot be asked for together with bbox")
	for name, size := range map[string]int{"bbox": 4, "point": 2} {
		if !query.Has(name) {
			continue
		}
		parts := strings.Split(query.Get(name), ",")
		at := make([]float64, len(parts))
		for i, text := range parts {
			var err error
			if at[i], err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil || !isFinite(at[i]) || len(parts) != size {
				return f, malformed("wrong_type", "%s must be %d numbers separated by commas.", name, size)
			}
			limit := [...]float64{180, 90}[i%2]
			v.check(math.Abs(at[i]) <= limit, name, "out_of_range", "longitudes go from -180 to 180, latitudes from -90 to 90")
		}
		at = append(at, at...)[:4]
		v.check(at[1] <= at[3], name, "out_of_range", "south must not lie north of north")
		if f.isPoint && math.Abs(at[1]) == 90 { // a pole has every longitude
			at[0], at[2] = -180, 180
		}
		if at[2] < at[0] {
			at[2] += 360
		}
		f.west, f.south, f.east, f.north = &at[0], &at[1], &at[2], &at[3]
	}
	return f, v.err()
}

// listFiles answers GET /api/v1/datasets/{id}/files and GET /api/v1/files, of all datasets: in the order of datasets and
// paths; with a point, the finest first.
func (s *server) listFiles(w http.ResponseWriter, r *http.Request) error {
	f, err := readFileFilter(r.URL.Query())
	if err == nil && r.PathValue("id") != "" {
		d, missing := s.pathDataset(r)
		f.datasetID, err = &d.ID, missing
	}
	if err != nil {
		return err
	}
	return writeList(s, w, r, firstFile(), func(after []string, limit int) ([]datasetFile, error) {
		return findFiles(r.Context(), s.db, f, after, limit)
	}, f.key)
}

// firstFile are keys that come before those of every file.
func firstFile() []string { return []string{"-1", "0", ""} }

// key gives the keys that a file is ordered by: how fine it is, where a point is asked for, its dataset and its path.
func (f fileFilter) key(file datasetFile) []string {
	fineness := 0.0
	if f.isPoint {
		fineness = math.Inf(1)
		if file.ResolutionM != nil {
			fineness = *file.ResolutionM
		}
	}
	return []string{strconv.FormatFloat(fineness, 'g', -1, 64), strconv.FormatInt(file.DatasetID, 10), file.Path}
}

// findFiles returns up to limit files after those keys. Of the candidates for a point it keeps those that cover it.
func findFiles(ctx context.Context, q querier, f fileFilter, after []string, limit int) ([]datasetFile, error) {
	var found []datasetFile
	for {
		candidates, err := listFiles(ctx, q, f, after, limit)
		for _, file := range candidates {
			if !f.isPoint || contains(file.ElevationDatasetFileMeta, *f.west, *f.south) {
				found = append(found, file)
			}
		}
		if err != nil || len(candidates) < limit || len(found) >= limit {
			return found[:min(limit, len(found))], err
		}
		after = f.key(candidates[len(candidates)-1])
	}
}

// contains says whether the file's raster covers a place, by its own CRS and transform: its box in degrees is larger
// than the raster. Where the CRS has no code that we know the box decides.
func contains(m ElevationDatasetFileMeta, lon, lat float64) bool {
	crs, shift, ok := m.knownCRS()
	if !ok {
		return m.BBox != nil // it is among the candidates
	}
	t, width, height := [6]float64(m.Transform), float64(*m.Width), float64(*m.Height)
	if math.Abs(lat) == 90 { // a pole has every longitude
		lon = m.BBox[0]
	}
	lon, lat = shift.fromWGS84(crs.ellipsoid, lon, lat)
	determinant := t[0]*t[4] - t[1]*t[3]
	const rounding = 1e-6                             // pixels: of a place on the edge
	for _, turn := range [...]float64{0, 360, -360} { // a raster may count its longitudes from elsewhere
		x, y, err := crs.projection.forward(lon+turn, lat)
		if err != nil {
			continue
		}
		x, y = x-t[2], y-t[5]
		col, row := (t[4]*x-t[1]*y)/determinant, (t[0]*y-t[3]*x)/determinant
		if col >= -rounding && col <= width+rounding && row >= -rounding && row <= height+rounding {
			return true
		}
	}
	return false
}

// knownCRS is the file's CRS and its shift to WGS 84, where that has a code that we know and the raster has a place in it.
func (m *ElevationDatasetFileMeta) knownCRS() (crs crsDefinition, shift datumShift, ok bool) {
	if m.CRS == nil || len(m.Transform) != 6 || m.Width == nil || m.Height == nil {
		return crs, shift, false
	}
	text, isCode := strings.CutPrefix(*m.CRS, "EPSG:") // a missing tile may have a name there
	code, err := strconv.Atoi(text)
	if err == nil && isCode {
		crs, err = crsByCode(code)
	}
	if err == nil {
		shift, err = crs.shiftOver([6]float64(m.Transform), float64(*m.Width), float64(*m.Height))
	}
	return crs, shift, err == nil && isCode
}

// maxHits is how many of the files that a box meets are sorted. Where there are more, files are gone through in order.
const maxHits = 10_000

// foundFile is a file as the queries below return it. Dense says that there were more than maxHits.
type foundFile struct {
	storedFile
	DatasetID int64
	Dataset   string
	Dense     bool
}

// The parts of the queries for files, of the table elevation_dataset_file_meta under the name f: parameters 1 to 5
// are those of isFile, 6 to 9 the box from west to north, and 10 the limit.
const (
	foundColumns = `
		SELECT f.dataset_id, (SELECT d.name FROM datasets d WHERE d.id = f.dataset_id) AS dataset,` + fileColumns
	isFile = `
			AND ($2::text IS NULL OR f.status = $2)
			AND ($3::text IS NULL OR f.format = $3)
			AND ($4::text IS NULL OR f.crs = upper($4) OR f.crs_name = $4)
			AND ($5::text IS NULL OR strpos(lower(f.path), lower($5)) > 0)`
	unwrappedEast = `(f.bbox[3] + CASE WHEN f.bbox[3] < f.bbox[1] THEN 360 ELSE 0 END)`
	meetsBox      = `
			f.bbox[2] <= $9 AND f.bbox[4] >= $7 AND (
				f.bbox[1] <= $8 AND ` + unwrappedEast + ` >= $6
				OR f.bbox[1] <= $8 - 360::float8
				OR ` + unwrappedEast + ` >= $6 + 360::float8
			)`
)

// listFiles returns up to limit files after those keys, of a point all whose box has it. The index for boxes is
// searched for the box and for where it lies in files that cross 180°; it is off by up to 1e-6 degrees, and what it
// finds is checked. In the order of paths each statement is planned for its filters, which may have an index.
func listFiles(ctx context.Context, q querier, f fileFilter, after []string, limit int) ([]datasetFile, error) {
	const (
		near = `
		WITH hits AS MATERIALIZED (
			SELECT f.*, CASE WHEN $11 THEN coalesce(f.resolution_m, 'infinity') ELSE 0 END AS fineness
			FROM elevation_dataset_file_meta f
			WHERE f.bbox IS NOT NULL AND degrees_box(f.bbox) && ANY ($12::box[]) AND` + meetsBox + isFile + `
				AND (CASE WHEN $11 THEN coalesce(f.resolution_m, 'infinity') ELSE 0 END, f.dataset_id, f.path) > ($13::float8, $14::bigint, $15::text)`
		first = `
			LIMIT $16
		)` + foundColumns + `, (SELECT count(*) FROM hits) IS NOT DISTINCT FROM $16::bigint AS dense
		FROM hits f
		ORDER BY f.fineness, f.dataset_id, f.path
		LIMIT $10`
		nearInOne = near + ` AND f.dataset_id = $1::bigint` + first
		nearInAll = near + ` AND $1::bigint IS NULL` + first
		inOrder   = foundColumns + `, false AS dense
		FROM elevation_dataset_file_meta f
		WHERE ($1::bigint IS NULL OR f.dataset_id = $1)` + isFile + `
			AND ($6::float8 IS NULL OR` + meetsBox + `)
			AND (f.dataset_id, f.path) > ($11::bigint, $12::text)
		ORDER BY f.dataset_id, f.path
		LIMIT $10`
	)
	args := []any{f.datasetID, f.status, f.format, f.crs, f.part, f.west, f.south, f.east, f.north, limit}
	files, dense := []foundFile(nil), f.west == nil
	var err error
	if !dense {
		query := nearInOne
		if f.datasetID == nil {
			query = nearInAll
		}
		var most *int // of a point all are sorted
		if !f.isPoint {
			most = new(maxHits + 1)
		}
		files, err = collect[foundFile](ctx, q, "find files", query, append(args, f.isPoint, f.boxes(), after[0], after[1], after[2], most)...)
		dense = len(files) > 0 && files[0].Dense
	}
	if dense {
		args = append([]any{pgx.QueryExecModeExec}, args...)
		files, err = collect[foundFile](ctx, q, "list files", inOrder, append(args, after[1], after[2])...)
	}
	found := make([]datasetFile, len(files))
	for i, file := range files {
		file.ModifiedAt = time.Unix(0, file.ModifiedNS).UTC()
		found[i] = datasetFile{file.DatasetID, file.Dataset, file.ElevationDatasetFileMeta}
	}
	return found, err
}

// boxes are where files may have the filter's box: there, 360 degrees further east where they cross 180°, and 360
// degrees further west where it does so itself.
func (f fileFilter) boxes() (boxes []pgtype.Box) {
	for _, turn := range [...]float64{0, 360, -360} {
		if west, east := *f.west+turn, *f.east+turn; east >= -180 {
			boxes = append(boxes, pgtype.Box{P: [2]pgtype.Vec2{{X: east, Y: *f.north}, {X: west, Y: *f.south}}, Valid: true})
		}
	}
	return boxes
}
