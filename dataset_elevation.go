package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
)

// elevation is the height at a point, from the finest file that has one there.
type elevation struct {
	Point       [2]float64 `json:"point"`  // longitude and latitude in degrees, WGS 84
	Height      *float64   `json:"height"` // in the unit of the file; null: see Reason
	Reason      *string    `json:"reason"` // why there is no height
	Unit        *string    `json:"unit"`   // as the file states it; null: it states none
	VerticalCRS *string    `json:"vertical_crs"`
	ResolutionM *float64   `json:"resolution_m"`
	DatasetID   *int64     `json:"dataset_id"` // of the file; null: no file covers the point
	FileID      *int64     `json:"file_id"`
	Path        *string    `json:"path"`
}

// Limits of requests for heights.
const (
	maxHeightPoints = 1000
	maxHeightFiles  = 5 // that are looked at for a point
)

// elevationRequest is the body of POST /api/v1/elevation.
type elevationRequest struct {
	Points        [][2]float64 `json:"points"`
	Dataset       *int64       `json:"dataset"` // nil: all that the caller may see
	Interpolation string       `json:"interpolation"`
}

// getElevation answers GET /api/v1/elevation?point=lon,lat with the height there.
func (c *catalogue) getElevation(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	f, err := readFileFilter(url.Values{"point": {query.Get("point")}})
	if err != nil {
		return err
	}

	in := elevationRequest{
		Points:        [][2]float64{{f.box.West, f.box.South}},
		Interpolation: query.Get("interpolation"),
	}
	if text := query.Get("dataset"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return invalid{{"dataset", fieldMalformed, "must be the id of a dataset"}}.err()
		}
		in.Dataset = &id
	}

	found, err := c.elevations(r, in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, found[0])
}

// postElevation answers POST /api/v1/elevation with the heights at up to maxHeightPoints points, in
// their order.
func (c *catalogue) postElevation(w http.ResponseWriter, r *http.Request, in elevationRequest) error {
	var v invalid
	isInRange := len(in.Points) > 0 && len(in.Points) <= maxHeightPoints
	v.check(isInRange, "points", fieldOutOfRange, fmt.Sprintf("must be 1 to %d points", maxHeightPoints))
	for _, point := range in.Points {
		isOnEarth := math.Abs(point[0]) <= 180 && math.Abs(point[1]) <= 90
		v.check(isOnEarth, "points", fieldOutOfRange, "must be longitudes and latitudes in degrees")
	}
	if err := v.err(); err != nil {
		return err
	}

	found, err := c.elevations(r, in)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, object{"items": found, "next_cursor": nil})
}

// elevations returns the heights at the points. Files are read without a slot of the pool.
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

	status := fileStatusOK
	f := fileFilter{status: &status, isPoint: true}
	if in.Dataset != nil {
		f.datasets = []int64{*in.Dataset}
	}
	if _, err := c.selectVisible(r, &f); err != nil {
		return nil, err
	}
	callerOf(r).slots.leavePool()

	for _, point := range in.Points {
		if err := shareCore(r.Context()); err != nil {
			return nil, err
		}
		at, err := c.elevationAt(r, f, point, way)
		if err != nil {
			return nil, err
		}
		found = append(found, at)
	}
	return found, nil
}

// elevationAt returns the height at a point. It takes the finest file of the filter that has one
// there. Without one, the reason is that of the finest file.
func (c *catalogue) elevationAt(
	r *http.Request,
	f fileFilter,
	point [2]float64,
	way interpolation,
) (at elevation, err error) {
	const directories = `SELECT path FROM datasets WHERE id = $1`

	at = elevation{Point: point}
	f.box = &mapBox{
		West:  point[0],
		South: point[1],
		East:  point[0],
		North: point[1],
	}

	var files []datasetFile
	var places []string // the directories of their datasets
	err = withPoolSlot(r, slow, func(ctx context.Context) (err error) {
		files, err = findFiles(ctx, c.core.db, f, firstFile(), maxHeightFiles)
		for _, file := range files {
			if err != nil {
				return err
			}
			var place string
			place, err = scalar[string](ctx, c.core.db, "get directory", directories, file.DatasetID)
			places = append(places, place)
		}
		return err
	})
	if err != nil {
		return at, err
	}

	for i, file := range files {
		height, reason, err := c.heightIn(r.Context(), places[i], file, point, way)
		if err != nil {
			return at, err
		}

		isFirst := at.FileID == nil
		if height != nil || isFirst {
			at.Height = height
			at.Reason = nonEmpty(reason)
			at.Unit = file.Unit
			at.VerticalCRS = file.VerticalCRS
			at.ResolutionM = file.ResolutionM
			at.DatasetID = &file.DatasetID
			at.FileID = &file.ID
			at.Path = &file.Path
		}
		if height != nil {
			return at, nil
		}
	}

	if len(files) == 0 {
		at.Reason = new("no file covers the point")
	}
	return at, nil
}

// heightIn returns the height that a file has at a point, or the reason why it has none. The error
// is that of a file system that does not answer.
func (c *catalogue) heightIn(
	ctx context.Context,
	directory string,
	file datasetFile,
	point [2]float64,
	way interpolation,
) (height *float64, reason string, err error) {
	crs, shift, isKnown := file.knownCRS()
	if !isKnown {
		return nil, "the CRS of the file is not known", nil
	}
	column, row, err := file.pixelAt(crs, shift, point[0], point[1])
	if err != nil {
		return nil, err.Error(), nil
	}

	v := math.NaN()
	read := func() error {
		dir, wrong := c.core.cfg.findDirectory(directory)
		if wrong != nil {
			return errors.New("the directory is not below a root any more")
		}
		root, _, err := dir.open()
		if err != nil {
			return err
		}

		reader := &fileReader{root: root, now: c.core.now}
		defer reader.close()
		var readErr error
		reader.opened = func(m *extent) {
			isSame := m.Width != nil && m.Height != nil && *m.Width == *file.Width && *m.Height == *file.Height
			if !isSame {
				readErr = errors.New("the file has changed since it was analysed")
				return
			}

			var raster *raster
			raster, readErr = reader.header.openRaster(m)
			if readErr == nil {
				v, readErr = raster.heightAt(ctx, column, row, way)
			}
		}
		m, isThere := reader.readEntry(entry{Path: file.Path, Size: file.SizeBytes})
		if !isThere {
			return errors.New("the file is gone")
		}
		if readErr == nil && m.Reason != nil {
			return errors.New(*m.Reason)
		}
		return readErr
	}

	err = c.askFileSystem(ctx, directory, read, func() {})
	if _, isProblem := errors.AsType[*problem](err); isProblem || ctx.Err() != nil {
		return nil, "", err
	}
	if err != nil {
		return nil, "heights not read: " + reasonOf(err), nil
	}
	if math.IsNaN(v) {
		return nil, "void", nil
	}
	return &v, "", nil
}
