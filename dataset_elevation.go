package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// elevation is the height at a point, from the finest file that has one there.
type elevation struct {
	Point       [2]float64 `json:"point"`      // longitude and latitude in degrees, WGS 84
	DistanceM   *float64   `json:"distance_m"` // along the line; null: the request has no line
	Height      *float64   `json:"height"`     // in Unit; null: see Reason
	Reason      *string    `json:"reason"`     // why there is no height
	Unit        *string    `json:"unit"`       // see extent.heightUnit
	VerticalCRS *string    `json:"vertical_crs"`
	ResolutionM *float64   `json:"resolution_m"`
	DatasetID   *int64     `json:"dataset_id"` // of the file; null: no file covers the point
	Dataset     *string    `json:"dataset"`    // its name
	FileID      *int64     `json:"file_id"`
	Path        *string    `json:"path"`
}

// Limits of requests for heights.
const (
	maxHeightPoints = 1000
	maxHeightFiles  = 20      // that may be asked for a point: the finest of those whose boxes hold it
	maxHeightBoxes  = 1000    // that are looked at for a point
	maxHeightWork   = 3 << 30 // of the decodeBudget of a request
)

// heightFile is a file whose box holds some of the points of a request.
type heightFile struct {
	Points []int // their numbers
	datasetFile
}

// elevationRequest is the body of POST /api/v1/elevation: points or a line, in degrees.
type elevationRequest struct {
	Points        [][]float64 `json:"points"`
	Line          *lineString `json:"line"`
	Samples       *int64      `json:"samples"` // of the line; nil: 100
	Dataset       *int64      `json:"dataset"` // nil: all that the caller may see
	Interpolation string      `json:"interpolation"`
}

// getElevation answers GET /api/v1/elevation?point=lon,lat with the height there, and
// ?line=lon,lat,lon,lat with the heights along a line.
func (c *catalogue) getElevation(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	in := elevationRequest{Interpolation: query.Get("interpolation")}

	numbers := map[string]**int64{
		"dataset": &in.Dataset,
		"samples": &in.Samples,
	}
	for name, into := range numbers {
		text := query.Get(name)
		if text == "" {
			continue
		}

		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return invalid{{name, fieldMalformed, "must be a whole number"}}.err()
		}
		*into = &number
	}

	if query.Has("line") {
		if query.Has("point") {
			return malformed(codeExclusive, "line cannot be used together with point.")
		}

		corners := slices.Chunk(readNumbers(query.Get("line")), 2)
		in.Line = &lineString{"LineString", slices.Collect(corners)}
		return c.postElevation(w, r, in)
	}

	// The filter checks the point. It is read again, because the filter's box keeps no longitude of
	// a pole.
	_, err := readFileFilter(url.Values{"point": {query.Get("point")}})
	if err != nil {
		return err
	}
	in.Points = [][]float64{readNumbers(query.Get("point"))}

	found, err := c.elevations(r, in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, found[0])
}

// postElevation answers POST /api/v1/elevation with the heights at up to maxHeightPoints points, in
// their order, or along a line.
func (c *catalogue) postElevation(w http.ResponseWriter, r *http.Request, in elevationRequest) error {
	found, err := c.elevations(r, in)
	return writeEntity(w, object{"items": found, "next_cursor": nil}, "", err)
}

// places returns the points of a request, or those along its line. They have no heights yet.
func (in elevationRequest) places() (places []elevation, err error) {
	field := "points"
	positions := in.Points
	least := 1
	mostNumbers := 2
	samples := *cmp.Or(in.Samples, new(int64(100)))

	var v invalid
	if in.Line != nil {
		field = "line"
		positions = in.Line.Coordinates
		least = 2
		mostNumbers = 3 // the third is an altitude (RFC 7946, section 3.1.1)

		isLine := in.Line.Type == "LineString" && in.Points == nil
		v.check(isLine, field, fieldMalformed, "must be a GeoJSON LineString, without points beside it")
		v.check(samples >= 2 && samples <= maxHeightPoints, "samples", fieldOutOfRange, "must be 2 to 1000")
	}

	isNowhere := func(at []float64) bool {
		isPosition := len(at) >= 2 && len(at) <= mostNumbers
		return !isPosition || math.Abs(at[0]) > 180 || math.Abs(at[1]) > 90
	}
	isInRange := len(positions) >= least && len(positions) <= maxHeightPoints
	v.check(
		isInRange && !slices.ContainsFunc(positions, isNowhere),
		field, fieldOutOfRange,
		fmt.Sprintf("must be %d to %d longitudes and latitudes in degrees", least, maxHeightPoints),
	)
	if err := v.err(); err != nil {
		return nil, err
	}

	if in.Line != nil {
		return in.Line.along(int(samples)), nil
	}
	for _, at := range positions {
		places = append(places, elevation{Point: [2]float64(at)})
	}
	return places, nil
}

// elevations returns the heights at the points, from the finest file that has one there. Without
// one, the reason is that of the finest file. Files are read without a slot of the pool.
func (c *catalogue) elevations(r *http.Request, in elevationRequest) (found []elevation, err error) {
	ways := map[string]interpolation{
		"":         interpolateBilinear,
		"nearest":  interpolateNearest,
		"bilinear": interpolateBilinear,
		"cubic":    interpolateCubic,
	}
	way, isWay := ways[in.Interpolation]
	if !isWay {
		return nil, invalid{{"interpolation", fieldUnknown, "must be nearest, bilinear or cubic"}}.err()
	}

	found, err = in.places()
	if err != nil {
		return nil, err
	}

	f := fileFilter{status: new(fileStatusOK), sort: []string{sortFinest}, datasetID: in.Dataset}
	if _, err := c.selectVisible(r, &f); err != nil {
		return nil, err
	}
	isUnknown := in.Dataset != nil && len(f.datasets) == 0
	if isUnknown {
		return nil, notFound("dataset", *in.Dataset)
	}

	// All files that may be needed, and their datasets.
	ctx := r.Context()
	files, err := filesAt(ctx, c.core.db, f, found)
	if err != nil {
		return nil, err
	}
	var all []datasetFile
	for _, file := range files {
		all = append(all, file.datasetFile)
	}
	datasets, err := datasetsOf(ctx, c.core.db, all)
	if err != nil {
		return nil, err
	}
	callerOf(r).slots.leavePool()

	for i := range found {
		found[i].Reason = new("no file covers the point")
	}
	budget := &decodeBudget{maxHeightWork}
	for _, file := range files {
		var points []*elevation
		for _, i := range file.Points {
			p := &found[i]
			if p.Height == nil && file.contains(p.Point[0], p.Point[1]) {
				points = append(points, p)
			}
		}
		if len(points) == 0 {
			continue
		}

		if err := shareCore(ctx, c.core.db); err != nil {
			return nil, err
		}
		err := c.addHeights(ctx, datasets[file.DatasetID].Path, file.datasetFile, points, way, budget)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// filesAt returns the files whose boxes hold one of the points. First come the finest files of all
// points, then those that are the second finest of a point, and so on. So a file may come again.
func filesAt(ctx context.Context, q querier, f fileFilter, points []elevation) ([]heightFile, error) {
	const query = `
		WITH points AS (
			SELECT n::int - 1 AS i, (p #>> '{point,0}')::float8 AS lon, (p #>> '{point,1}')::float8 AS lat
			FROM jsonb_array_elements(@points::jsonb) WITH ORDINALITY a (p, n)
		), hits AS MATERIALIZED (
			SELECT i, hit.*
			FROM points, LATERAL (
				WITH near AS MATERIALIZED (
					SELECT f.id, f.dataset_id, f.path, f.resolution_m, f.modified_ns
					FROM elevation_dataset_file_meta f
					WHERE f.dataset_id = ANY (@datasets::bigint[])
						AND f.bbox IS NOT NULL
						AND degrees_box(f.bbox) && ANY (ARRAY[
							box(point(lon, lat), point(lon, lat)),
							box(point(lon + 360, lat), point(lon + 360, lat)),
							CASE WHEN lon = 180 THEN box(point(-180, lat), point(-180, lat)) END
						])
						AND lat BETWEEN f.bbox[2] AND f.bbox[4]
						AND (
							lon BETWEEN f.bbox[1] AND ` + fileEast + `
							OR lon - 360 >= f.bbox[1]
							OR lon + 360 <= ` + fileEast + `
						)
						AND` + fileMatches + `
					LIMIT @most_boxes::bigint
				), finest AS (
					SELECT id
					FROM near f
					ORDER BY ` + fileOrder + `
					LIMIT @limit
				)
				SELECT id, row_number() OVER () AS rank
				FROM finest
			) hit
		)` + listColumns + `,
			0 AS hits,
			h.points
		FROM (SELECT rank, id, array_agg(i) AS points FROM hits GROUP BY rank, id) h
		JOIN elevation_dataset_file_meta f USING (id)
		ORDER BY h.rank, f.id`

	args := f.args(firstFile(), maxHeightFiles)
	args["points"] = points
	args["most_boxes"] = maxHeightBoxes
	return collect[heightFile](ctx, q, "find files of points", query, args)
}

// datasetsOf returns the datasets of files, by id.
func datasetsOf(ctx context.Context, q querier, files []datasetFile) (map[int64]dataset, error) {
	const query = `
		SELECT ` + datasetColumns + `
		FROM datasets
		WHERE id = ANY ($1::bigint[])`

	var ids []int64
	for _, f := range files {
		ids = append(ids, f.DatasetID)
	}
	datasets, err := collect[dataset](ctx, q, "get datasets of files", query, ids)

	byID := map[int64]dataset{}
	for _, d := range datasets {
		byID[d.ID] = d
	}
	return byID, err
}

// heightPoint is a point in the raster of a file, in pixels from its outer corner.
type heightPoint struct {
	column, row float64
	height      float64 // NaN: void
	err         error   // why the height was not read
	at          *elevation
}

// addHeights adds the heights that a file has at these points, and the reason at points where it
// has none. A reason that a finer file gave stays. The error is that of a file system that does not
// answer.
func (c *catalogue) addHeights(
	ctx context.Context,
	directory string,
	file datasetFile,
	wanted []*elevation,
	way interpolation,
	budget *decodeBudget,
) error {
	crs, shift, isKnown := file.knownCRS()
	if !isKnown {
		return nil // only a file of a former version of the registry
	}

	var points []heightPoint
	for _, at := range wanted {
		column, row, err := file.pixelAt(crs, shift, at.Point[0], at.Point[1])
		if err == nil {
			points = append(points, heightPoint{column: column, row: row, at: at})
		}
	}

	err := c.readRaster(ctx, directory, file, budget, func(r *raster) error {
		return readHeightsAt(ctx, r, points, way)
	})
	if problemIn(err) != nil || ctx.Err() != nil {
		return err
	}

	for _, p := range points {
		reason := "void"
		fault := cmp.Or(err, p.err)
		if fault != nil {
			reason = "heights not read: " + reasonOf(fault)
		}
		hasHeight := fault == nil && p.height-p.height == 0 // neither a void nor infinite
		isFirst := p.at.FileID == nil
		if !hasHeight && !isFirst {
			continue
		}

		p.at.Reason = &reason
		if hasHeight {
			p.at.Height = &p.height
			p.at.Reason = nil
		}
		p.at.Unit = file.heightUnit()
		p.at.VerticalCRS = file.VerticalCRS
		p.at.ResolutionM = file.ResolutionM
		p.at.DatasetID = &file.DatasetID
		p.at.Dataset = &file.Dataset
		p.at.FileID = &file.ID
		p.at.Path = &file.Path
	}
	return nil
}

// readHeightsAt sets the heights at points in a raster, or the error of a point whose block cannot
// be decoded. It returns any other error.
func readHeightsAt(ctx context.Context, r *raster, points []heightPoint, way interpolation) error {
	// The raster keeps only the block that it has decoded last, so points of one block come
	// together.
	slices.SortFunc(points, func(p, q heightPoint) int {
		return cmp.Or(
			int(p.row)/r.blockHeight-int(q.row)/r.blockHeight,
			int(p.column)/r.blockWidth-int(q.column)/r.blockWidth)
	})
	for i := range points {
		p := &points[i]
		p.height, p.err = r.heightAt(ctx, p.column, p.row, way)
		if p.err != nil && statusOf(p.err) == fileStatusUnreadable {
			return p.err
		}
	}
	return nil
}

// readRaster calls use with the raster of a file, and returns its error. If the file system does
// not answer, the error is a problem, and use may still run.
func (c *catalogue) readRaster(
	ctx context.Context,
	directory string,
	file datasetFile,
	budget *decodeBudget,
	use func(*raster) error,
) error {
	read := func() error {
		dir, wrong := c.core.cfg.findDirectory(directory)
		if wrong != nil {
			return errors.New("the directory is not below a root any more")
		}
		root, err := dir.open()
		if err != nil {
			return err
		}

		reader := &fileReader{root: root, now: c.core.now}
		defer reader.close()
		isOpened := false
		reader.opened = func(m *ElevationDatasetFileMeta) {
			isOpened = true
			isSame := m.SizeBytes == file.SizeBytes && m.ModifiedAt.Equal(file.ModifiedAt.Time)
			if m.Status != fileStatusUnreadable { // by sidecars, it may be another raster
				isSame = isSame && slices.Equal(m.Transform, file.Transform) &&
					valueOr(m.Width, 0) == *file.Width && valueOr(m.Height, 0) == *file.Height
			}
			if !isSame {
				err = errors.New("the file has changed since it was analysed")
				return
			}

			err = errors.New("the reader failed on this file") // it stays if the reader panics
			reader.header.budget = budget
			raster, wrong := reader.header.openRaster(ctx, &m.extent)
			if wrong == nil {
				wrong = use(raster)
			}
			err = wrong
		}

		m, isThere := reader.readEntry(entry{Path: file.Path, Size: file.SizeBytes})
		if !isThere {
			return errors.New("the file is gone")
		}
		if !isOpened {
			return errors.New(*m.Reason)
		}
		return err
	}

	// When the client leaves, the goroutine still decodes the present block. Meanwhile the request
	// keeps its slot to compute, so that no more goroutines decode than there are slots.
	return c.askFileSystem(context.WithoutCancel(ctx), directory, read, nil)
}
