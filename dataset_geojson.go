package main

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// multiPolygon is the coordinates of polygons of one ring each (RFC 7946, section 3.1.7).
type multiPolygon [][1][]position

// fileProperties returns the properties of a file's feature: its row, without lists. The field
// location is the path as gdaltindex in the dataset root writes it.
func fileProperties(d dataset, f datasetFile) object {
	raw, _ := decodePath(f.Path) // as the walk wrote it
	if !utf8.ValidString(raw) {  // JSON cannot hold it
		raw = f.Path
	}
	return object{
		"location":        path.Join(d.Path, raw),
		"dataset_id":      f.DatasetID,
		"dataset":         f.Dataset,
		"id":              f.ID,
		"path":            f.Path,
		"size_bytes":      f.SizeBytes,
		"modified_at":     f.ModifiedAt,
		"analyzed_at":     f.AnalyzedAt,
		"format":          f.Format,
		"status":          f.Status,
		"reason":          f.Reason,
		"width":           f.Width,
		"height":          f.Height,
		"bands":           f.Bands,
		"sample_type":     f.SampleType,
		"nodata":          f.Nodata,
		"unit":            f.Unit,
		"scale":           f.Scale,
		"offset":          f.Offset,
		"compression":     f.Compression,
		"data_bytes":      f.DataBytes,
		"pixel_is":        f.PixelIs,
		"cog":             f.COG,
		"crs":             f.CRS,
		"crs_name":        f.CRSName,
		"vertical_crs":    f.VerticalCRS,
		"bbox_accuracy_m": f.BBoxAccuracyM,
		"resolution_m":    f.ResolutionM,
		"source":          f.Source,
		"warnings":        strings.Join(f.Warnings, "; "),
	}
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
		return invalid{{"all", "unknown", "must be 0 or 1"}}.err()
	}
	return writeFeatures(w, r, d.Name, func(emit func(object) error) error {
		return c.eachFile(r, f, func(file datasetFile) error {
			if file.BBox == nil && all != "1" {
				return nil
			}
			return emit(featureOf(file.ElevationDatasetFileMeta, fileProperties(d, file)))
		})
	})
}

// eachFile calls emit for each file that matches the filter. It holds a connection only for each
// batch of rows.
func (c *catalogue) eachFile(r *http.Request, f fileFilter, emit func(datasetFile) error) error {
	return readInBatches(f, func(after []string, limit int) (files []datasetFile, err error) {
		err = withPoolSlot(r, slow, func(ctx context.Context) (err error) {
			files, err = findFiles(ctx, c.core.db, f, after, limit)
			return err
		})
		return files, err
	}, emit)
}

// readInBatches calls emit for each file that find returns. find reads up to limit files after the
// keys in after, as findFiles does.
func readInBatches(f fileFilter, find func(after []string, limit int) ([]datasetFile, error),
	emit func(datasetFile) error) error {
	const batch = 1000
	for after := firstFile(); ; {
		files, err := find(after, batch)
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := emit(file); err != nil {
				return err
			}
		}
		if len(files) < batch {
			return nil
		}
		after = f.key(files[batch-1])
	}
}

// writeFeatures answers with a FeatureCollection of the features that read emits.
func writeFeatures(w http.ResponseWriter, r *http.Request, name string,
	read func(emit func(object) error) error) error {
	return writeStream(w, r, typeGeoJSON, func(out io.Writer) error {
		title, _ := json.Marshal(name) // a text: there is no error
		fmt.Fprintf(out, `{"type":"FeatureCollection","name":%s,"features":[`+"\n", title)
		separator := ""
		err := read(func(f object) error {
			encoded, err := encodeJSON(f)
			if err != nil {
				return err
			}
			_, err = io.WriteString(out, separator+string(encoded))
			separator = ","
			return err
		})
		if err == nil {
			_, err = io.WriteString(out, "]}\n")
		}
		return err
	})
}

// writeStream answers with what write produces, in gzip if the client accepts it. A slow client may
// take its time as long as it goes on reading.
func writeStream(w http.ResponseWriter, r *http.Request, contentType string, write func(out io.Writer) error) error {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Add("Vary", "Accept-Encoding")
	buffer := bufio.NewWriterSize(newPatientWriter(w, r), 64<<10)
	out, finish := io.Writer(buffer), buffer.Flush
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		zipped, _ := gzip.NewWriterLevel(buffer, gzip.BestSpeed) // fails only for an unknown level
		out, finish = zipped, func() error { return errors.Join(zipped.Close(), buffer.Flush()) }
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

// acceptsGzip reports whether Accept-Encoding (RFC 9110, section 12.5.3) allows gzip.
func acceptsGzip(accepted string) bool {
	for one := range strings.SplitSeq(accepted, ",") {
		coding, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(one, " ", "")), ";")
		if coding == "gzip" {
			return strings.Trim(weight, "q=0.") != "" || weight == ""
		}
	}
	return false
}

// featureOf returns the GeoJSON feature of a file (RFC 7946, section 3.2). If the file has no
// outline in degrees, the feature has no geometry, and so no box.
func featureOf(m ElevationDatasetFileMeta, properties any) object {
	f := object{"type": "Feature", "geometry": nil, "properties": properties}
	if m.ID != 0 {
		f["id"] = m.ID
	}
	if parts := m.footprint(); len(parts) > 0 {
		f["geometry"] = object{"type": "MultiPolygon", "coordinates": parts}
		f["bbox"] = m.BBox
	}
	return f
}

// footprint returns the outline of a file's raster in degrees, counter-clockwise and cut at 180°.
// Its edges follow those of the raster in its CRS, and no two parts share an edge. If the registry
// does not know the CRS, or if the raster goes all around the globe, the outline is the box.
// Without a box, or without an area, there are no parts.
func (m *extent) footprint() (parts multiPolygon) {
	if m.BBox == nil {
		return nil
	}
	ring := m.outline()
	west, east := math.Inf(1), math.Inf(-1)
	for _, p := range ring {
		west, east = min(west, p[0]), max(east, p[0])
	}
	const rounding = 1e-9 // degrees
	switch {
	case len(ring) > 0 && math.Abs(ring[len(ring)-1][0]-ring[0][0]) > 180:
		ring, west = aroundPole(ring, math.Copysign(90, m.BBox[3]+m.BBox[1]))
		east = west + 360
	case len(ring) == 0 || east-west >= 360-rounding:
		west, east = m.BBox[0], m.BBox[2]
		if east < west {
			east += 360
		}
		ring = []position{{west, m.BBox[1]}, {east, m.BBox[1]}, {east, m.BBox[3]}, {west, m.BBox[3]}}
	}
	if signedArea(ring) < 0 {
		slices.Reverse(ring)
	}
	for turn := 360 * math.Floor((west+180)/360); turn-180 < east; turn += 360 {
		for _, eastern := range cutRing(ring, 1, turn-180) {
			for _, part := range cutRing(eastern, -1, -turn-180) {
				for i := range part {
					part[i] = position{math.Round((part[i][0]-turn)*1e9) / 1e9, math.Round(part[i][1]*1e9) / 1e9}
				}
				if part = slices.Compact(append(part, part[0])); len(part) >= 4 && signedArea(part) != 0 {
					parts = append(parts, [1][]position{part})
				}
			}
		}
	}
	return parts
}

// outline returns the raster's edges from a corner around and back to it. Longitudes are
// continuous: around a pole they end a turn further. It returns nil if the CRS is unknown, if an
// edge lies outside the projection's domain, or if the raster holds both poles.
func (m *extent) outline() (ring []position) {
	crs, _, ok := m.knownCRS()
	if !ok {
		return nil
	}
	raster, err := placeRaster(&crs, [6]float64(m.Transform), float64(*m.Width), float64(*m.Height))
	if err != nil {
		return nil
	}
	segments := 1
	if crs.projection.formula != formulaGeographic { // about 8 chords a degree: off by some metres at most
		turn := m.BBox[2] - m.BBox[0]
		if turn <= 0 {
			turn += 360
		}
		segments = 2 + int(min(8*max(m.BBox[3]-m.BBox[1], turn), 62))
	}
	points, whole := raster.trace(segments)
	for _, point := range points {
		ring = append(ring, position{point.position[0], max(-90, min(90, point.position[1]))})
	}
	if !whole {
		return nil
	}
	turns := math.Abs(math.Round((ring[len(ring)-1][0] - ring[0][0]) / 360))
	if len(raster.polesWithin(onEdge)) != int(turns) {
		return nil
	}
	return ring
}

// aroundPole returns the ring of the area between a ring around a pole and that pole. The ring is
// repeated a turn to each side, so that it covers the whole turn from west, which lies at ±180°.
func aroundPole(ring []position, pole float64) (area []position, west float64) {
	first, last := ring[0][0], ring[len(ring)-1][0]
	for turn := -1.0; turn <= 1; turn++ {
		for _, p := range ring {
			area = append(area, position{p[0] + turn*(last-first), p[1]})
		}
	}
	area = append(area, position{area[len(area)-1][0], pole}, position{area[0][0], pole})
	return area, 360*math.Round((first+last)/720) - 180
}

// cutRing returns the parts of a ring where side times longitude is more than limit. A part
// consists of pieces of the ring, each from where the ring enters that side to where it leaves it.
// Along the cut, the area lies between the n-th entry and the n-th exit, counted from the south.
func cutRing(ring []position, side, limit float64) (parts [][]position) {
	isOutside := func(p position) bool { return !(side*p[0] > limit) }
	first := slices.IndexFunc(ring, isOutside)
	if first < 0 {
		return [][]position{slices.Clone(ring)}
	}
	var pieces [][]position
	for i := range ring {
		from, to := ring[(first+i)%len(ring)], ring[(first+i+1)%len(ring)]
		if isOutside(from) && isOutside(to) {
			continue
		}
		if isOutside(from) {
			pieces = append(pieces, nil)
		}
		if isOutside(from) != isOutside(to) {
			f := (side*limit - from[0]) / (to[0] - from[0])
			pieces[len(pieces)-1] = append(pieces[len(pieces)-1], position{side * limit, from[1] + f*(to[1]-from[1])})
		}
		if !isOutside(to) {
			pieces[len(pieces)-1] = append(pieces[len(pieces)-1], to)
		}
	}
	entries, exits := make([]int, len(pieces)), make([]int, len(pieces)) // pieces in the order of these
	for i := range pieces {
		entries[i], exits[i] = i, i
	}
	slices.SortFunc(entries, func(a, b int) int { return cmp.Compare(pieces[a][0][1], pieces[b][0][1]) })
	slices.SortFunc(exits, func(a, b int) int {
		return cmp.Compare(pieces[a][len(pieces[a])-1][1], pieces[b][len(pieces[b])-1][1])
	})
	for {
		from := slices.IndexFunc(pieces, func(piece []position) bool { return piece != nil })
		if from < 0 {
			return parts
		}
		var part []position
		for i := from; pieces[i] != nil; i = entries[slices.Index(exits, i)] {
			part, pieces[i] = append(part, pieces[i]...), nil
		}
		parts = append(parts, part)
	}
}

// signedArea returns twice the area of a ring, negative for a clockwise ring.
func signedArea(ring []position) (area float64) {
	for i, to := range ring {
		from := ring[(i+len(ring)-1)%len(ring)]
		area += (from[0]-ring[0][0])*(to[1]-ring[0][1]) - (to[0]-ring[0][0])*(from[1]-ring[0][1])
	}
	return area
}
