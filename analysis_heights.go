package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"
)

// fileHeights is what an analysis with heights has found in the samples of a file.
type fileHeights struct {
	Statistics *heightStatistics `json:"statistics,omitzero"`
	Reason     string            `json:"reason,omitzero"` // without statistics: why the heights were not read
	Again      bool              `json:"again,omitzero"`  // the reason may pass: the next analysis tries again
}

// unmeasured is SQL for the rasters of dataset $1 whose heights are to be read.
const unmeasured = `
	FROM elevation_dataset_file_meta f
	WHERE dataset_id = $1
		AND status IN ('ok', 'no_bbox', 'no_georef')
		AND (heights IS NULL OR heights ? 'again')`

// addTo adds the heights of a file, which may be nil, to the cells of a table.
func (h *fileHeights) addTo(cells object) {
	if h == nil {
		return
	}

	cells["heights_reason"] = h.Reason
	if s := h.Statistics; s != nil {
		maps.Copy(cells, object{
			"height_min":          s.Min.String(),
			"height_max":          s.Max.String(),
			"height_mean":         s.Mean.String(),
			"height_deviation":    s.Deviation.String(),
			"height_samples":      s.Samples,
			"height_voids":        s.Voids,
			"height_mode":         s.Mode.String(),
			"height_mode_samples": s.ModeSamples,
			"height_spikes":       s.Spikes,
		})
	}
}

// stac returns the statistics as the extension Raster of STAC has them, which has no numbers that
// are not finite.
func (s *heightStatistics) stac() object {
	statistics := object{}
	valid := 100 * float64(s.Samples-s.Voids) / float64(s.Samples) // NaN if no block decodes

	for name, v := range map[string]height{
		"valid_percent": height(valid),
		"minimum":       s.Min,
		"maximum":       s.Max,
		"mean":          s.Mean,
		"stddev":        s.Deviation,
	} {
		if isFinite(float64(v)) {
			statistics[name] = v
		}
	}
	return object{"statistics": statistics}
}

// heightsFault returns what is stored of a file whose heights cannot be read now.
func heightsFault(reason string) contentFound {
	return contentFound{heights: &fileHeights{Reason: reason, Again: true}}
}

// brokenOff is the reason that a file has while its heights are read, once two owners have died. If
// a third one dies, the reason stays, and nameDeadly finds the file by it.
const brokenOff = "reading them was broken off"

// nameDeadly is called after three deaths over heights. It finds the file that the last owner was
// reading, and stores that its heights end the program. So they are not read again, and the count
// of deaths restarts. It reports whether there was such a file.
func (a *analyzer) nameDeadly(ctx context.Context, t task) (bool, error) {
	const query = `
		WITH named AS (
			UPDATE elevation_dataset_file_meta f
			SET heights = jsonb_build_object('reason', 'reading them ended the program')
			WHERE dataset_id = $1 AND path = (
				SELECT min(path COLLATE "C")
				FROM elevation_dataset_file_meta
				WHERE dataset_id = $1 AND heights ->> 'reason' = $4
			) AND EXISTS (
				SELECT FROM analyses WHERE id = $2 AND owner_token = $3 AND finished_at IS NULL
			)
			RETURNING 1
		)
		UPDATE analyses
		SET deaths = 0
		WHERE id = $2 AND owner_token = $3 AND EXISTS (SELECT FROM named)`
	n, err := execute(ctx, a.db, "name a deadly file", query, t.DatasetID, t.AnalysisID, t.Token, brokenOff)
	return n > 0, err
}

// measureFile reads the heights of a file.
func (a *analyzer) measureFile(ctx context.Context, t task, r *detachedReader, f contentFile) (
	found contentFound, err error) {
	if t.Deaths >= maxDeaths-1 {
		mark := func() error { return a.storeContent(ctx, t, f, heightsFault(brokenOff)) }
		if err := r.send(mark); err != nil {
			return found, err
		}
		if err := r.flush(); err != nil {
			return found, err
		}
	}

	heights, err := r.measure(f, a.heightTime)
	return contentFound{heights: heights, bytes: f.Size}, err
}

// measure returns what the heights of a file have in common, or why they are not read. If the file
// is not that of its row, the error is errChanged. Any other error is that of reading the file.
func (r *detachedReader) measure(f contentFile, limit time.Duration) (*fileHeights, error) {
	if r.root == nil {
		return nil, errChanged
	}
	r.before("heights of " + f.Path)

	timed, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	ctx := progressContext{timed, r.progress}

	var found heightStatistics
	var err error
	isRead := false
	r.opened = func(m *ElevationDatasetFileMeta) {
		found, err = readHeights(ctx, &r.header, &m.extent)
		isRead = err == nil
	}
	defer func() { r.opened = nil }()

	row, isThere := r.readEntry(entry{Path: f.Path, Size: f.Size, Sidecars: f.Sidecars})
	isOfRow := isThere && f.isOf(entry{
		Size:     row.SizeBytes,
		Modified: row.ModifiedAt.UnixNano(),
		Changed:  row.changed,
	})
	if !isOfRow {
		return nil, errChanged
	}

	switch {
	case isRead:
		return &fileHeights{Statistics: &found}, r.lookAgain(f)
	case r.ctx.Err() != nil:
		return nil, r.ctx.Err()
	case timed.Err() != nil:
		return &fileHeights{Reason: fmt.Sprintf("reading them took longer than %v", limit)}, nil
	case err != nil && statusOf(err) != fileStatusUnreadable:
		return &fileHeights{Reason: reasonOf(err)}, nil
	case err != nil:
		return nil, err
	case row.Status == fileStatusUnreadable:
		return nil, errors.New(*row.Reason)
	}
	return &fileHeights{Reason: *row.Reason}, nil // the reader panicked
}

// progressContext notes progress each time that somebody looks whether it has ended: before each
// block and each read of the file.
type progressContext struct {
	context.Context
	progress *atomic.Int64
}

// Err implements context.Context.
func (c progressContext) Err() error {
	c.progress.Add(1)
	return c.Context.Err()
}
