package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// fileProperties returns the properties of a file's feature: its row, without lists, and the
// license and survey of its dataset. The field location is the path as gdaltindex in the dataset
// root writes it. If d has no directory, which is not shown to all, it is the path below that
// directory.
func fileProperties(d dataset, f datasetFile) object {
	raw, _ := decodePath(f.Path) // as the walk wrote it
	if !utf8.ValidString(raw) {  // JSON cannot hold it
		raw = f.Path
	}

	properties := object{
		"location":    path.Join(d.Path, raw),
		"dataset_id":  f.DatasetID,
		"dataset":     f.Dataset,
		"id":          f.ID,
		"path":        f.Path,
		"size_bytes":  f.SizeBytes,
		"modified_at": f.ModifiedAt,
		"analyzed_at": f.AnalyzedAt,
		"warnings":    strings.Join(f.Warnings, "; "),
		"md5":         f.MD5,
		"sha256":      f.SHA256,

		"license":        nonEmpty(d.About.License),
		"surveyed_from":  nonEmpty(d.About.SurveyedFrom),
		"surveyed_until": nonEmpty(d.About.SurveyedUntil),
	}

	for _, c := range f.columns() {
		_, isList := c.value.([]float64)
		if !isList {
			properties[c.name] = c.value
		}
	}
	return properties
}

// getFootprints answers GET /api/v1/datasets/{id}/footprints.geojson with the files that match the
// filter. It leaves out files without an extent unless all=1.
func (c *catalogue) getFootprints(w http.ResponseWriter, r *http.Request) error {
	d, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}

	all := r.URL.Query().Get("all")
	if !slices.Contains([]string{"", "0", "1"}, all) {
		return invalid{{"all", fieldUnknown, "must be 0 or 1"}}.err()
	}

	shown := d.shownTo(actorOf(r))
	read := func(emit func(object) error) error {
		return c.eachFile(r, f, func(file datasetFile) error {
			if file.BBox == nil && all != "1" {
				return nil
			}
			properties := fileProperties(shown, file)
			return emit(featureOf(file.ElevationDatasetFileMeta, properties))
		})
	}
	return writeFeatures(w, r, d.Name, read)
}

// eachFile calls emit for each file that matches the filter. It holds a connection only for each
// batch of rows.
func (c *catalogue) eachFile(r *http.Request, f fileFilter, emit func(datasetFile) error) error {
	inSlot := func(find func(context.Context) error) error {
		return withPoolSlot(r, slow, func(ctx context.Context) error {
			// The dataset may have been removed meanwhile, or hidden from the caller.
			if f.datasetID != nil {
				if _, err := c.pathDataset(r.WithContext(ctx)); err != nil {
					return err
				}
			}
			return find(ctx)
		})
	}
	return readInBatches(c.core.db, f, inSlot, emit)
}

// readInBatches calls emit for each file that matches the filter. It calls run for each batch, with
// the function that finds its files.
func readInBatches(
	q querier,
	f fileFilter,
	run func(find func(context.Context) error) error,
	emit func(datasetFile) error,
) error {
	const batch = 1000

	after := f.first()
	for after != nil {
		var files []datasetFile
		err := run(func(ctx context.Context) (err error) {
			files, after, err = findFiles(ctx, q, f, after, batch)
			return err
		})
		if err != nil {
			return err
		}

		for _, file := range files {
			if err := emit(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFeatures answers with a FeatureCollection of the features that read emits.
func writeFeatures(
	w http.ResponseWriter,
	r *http.Request,
	name string,
	read func(emit func(object) error) error,
) error {
	return writeStream(w, r, typeGeoJSON, func(out io.Writer) error {
		title, _ := json.Marshal(name) // text never fails
		fmt.Fprintf(out, `{"type":"FeatureCollection","name":%s,"features":[`+"\n", title)

		separator := ""
		emit := func(f object) error {
			encoded, err := encodeJSON(f)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, separator+string(encoded))
			separator = ","
			return err
		}

		err := read(emit)
		if err == nil {
			_, err = io.WriteString(out, "]}\n")
		}
		return err
	})
}

// writeStream answers with the output of write, in gzip if the client accepts it and the output is
// text. A slow client may take its time as long as it goes on reading.
func writeStream(
	w http.ResponseWriter,
	r *http.Request,
	contentType string,
	write func(out io.Writer) error,
) error {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Add("Vary", "Accept-Encoding")
	isText := contentType != typeZIP

	buffer := bufio.NewWriterSize(newPatientWriter(w, r), 64<<10) // bytes
	out := io.Writer(buffer)
	finish := buffer.Flush
	if isText && acceptsGzip(r.Header.Get("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		zipped, _ := gzip.NewWriterLevel(buffer, gzip.BestSpeed) // fails only for an unknown level
		out = zipped
		finish = func() error {
			return errors.Join(zipped.Close(), buffer.Flush())
		}
	}
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return nil
	}

	// The answer is computed in pieces, while it is sent.
	slots := callerOf(r).slots
	slots.leavePool()
	err := slots.acquireCore(r.Context())
	if err == nil {
		err = write(out)
	}
	if err == nil {
		err = finish()
	}
	if err != nil {
		h.Del("Content-Encoding") // if nothing has been sent yet, the answer is a problem
	}
	return err
}

// maxRanged is how many bytes an answer may have of which clients can ask for ranges. It is kept in
// memory.
const maxRanged = 8 << 20

// rangedBuffer is an answer of at most maxRanged bytes. A larger answer is cut after a little more
// than these.
type rangedBuffer []byte

// Write implements io.Writer.
func (b *rangedBuffer) Write(p []byte) (int, error) {
	if len(*b) > maxRanged {
		return 0, errors.New("the answer is too large for ranges")
	}
	*b = append(*b, p...)
	return len(p), nil
}

// writeRanged answers with the output of write, with its length and entity tag, so that a client
// may ask for ranges. It streams an output that is too large for this, and one in gzip.
func writeRanged(
	w http.ResponseWriter,
	r *http.Request,
	contentType string,
	write func(out io.Writer) error,
) error {
	wantsRange := r.Header.Get("Range") != ""
	if !wantsRange && acceptsGzip(r.Header.Get("Accept-Encoding")) {
		return writeStream(w, r, contentType, write)
	}

	slots := callerOf(r).slots
	answers := slots.limits.answers
	giveBack := sync.OnceFunc(func() { answers.add(slots.owner, -maxRanged) })
	defer giveBack()
	if !answers.add(slots.owner, maxRanged) {
		return errBusy
	}

	slots.leavePool()
	err := slots.acquireCore(r.Context())
	if err != nil {
		return err
	}

	var body rangedBuffer
	err = write(&body)
	if len(body) > maxRanged {
		body = nil // which frees the memory
		giveBack()
		return writeStream(w, r, contentType, write)
	}
	if err != nil {
		return err
	}

	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Add("Vary", "Accept-Encoding")
	h.Set("ETag", entityTag(body))

	content := bytes.NewReader(body)
	return serveContent(w, r, time.Time{}, io.NewSectionReader(content, 0, content.Size()))
}

// featureOf returns the GeoJSON feature of a file (RFC 7946, section 3.2). If the file has no
// outline in degrees, the feature has no geometry, and so no box.
func featureOf(m ElevationDatasetFileMeta, properties any) object {
	f := object{
		"type":       "Feature",
		"geometry":   nil,
		"properties": properties,
	}
	if m.ID != 0 {
		f["id"] = m.ID
	}

	parts := m.footprint()
	if len(parts) > 0 {
		f["geometry"] = object{
			"type":        "MultiPolygon",
			"coordinates": parts,
		}
		f["bbox"] = extendBox(parts, m.BBox)
	}
	return f
}

// extendBox returns the box of a file, extended to its outline: where a raster is curved, the two
// differ by a little.
func extendBox(parts multiPolygon, box []float64) []float64 {
	around := slices.Clone(box)
	crossesAntimeridian := box[0] > box[2]

	for _, part := range parts {
		for _, p := range part[0] {
			// Across 180°, a position belongs to the side that is nearer.
			isEastern := p[0] > (box[0]+box[2])/2
			if !crossesAntimeridian || isEastern {
				around[0] = min(around[0], p[0])
			}
			if !crossesAntimeridian || !isEastern {
				around[2] = max(around[2], p[0])
			}

			around[1] = min(around[1], p[1])
			around[3] = max(around[3], p[1])
		}
	}
	return around
}
