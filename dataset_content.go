package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// dataPath returns the path under which the content of a file is served. It has the file's own
// name, so that GDAL finds the sidecars beside it.
func dataPath(dataset int64, path string) string {
	raw, err := decodePath(path)
	if err != nil {
		raw = path
	}
	u := url.URL{Path: "/api/v1/datasets/" + strconv.FormatInt(dataset, 10) + "/data/" + raw}
	return u.EscapedPath()
}

// mediaType returns the media type of a file.
func mediaType(m extent) string {
	switch {
	case m.COG != nil && *m.COG:
		return typeGeoTIFF + "; profile=cloud-optimized"
	case m.Format != nil && *m.Format == "geotiff":
		return typeGeoTIFF
	}
	return "application/octet-stream"
}

// getContent answers GET /api/v1/datasets/{id}/data/{path...} with a file, or ranges of it. Only a
// regular file that has a row is served. It is opened as an analysis opens it, so that no link
// leads out of the dataset. Once the file is open, the database is not asked any more.
func (s *server) getContent(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT` + fileColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = $2`
	var d dataset
	var m ElevationDatasetFileMeta
	err := s.inPlace(r, quick, func(ctx context.Context) (err error) {
		path := encodeName(r.PathValue("path"))
		if d, err = s.pathDataset(r); err != nil || strings.ContainsRune(path, 0) {
			return cmp.Or(err, error(errNotFound))
		}
		m, err = collectOne[ElevationDatasetFileMeta](ctx, s.db, errNotFound, "get file", query, d.ID, path)
		return err
	})
	if err != nil {
		return err
	}
	f, e, err := s.cfg.openContent(d, m)
	if err != nil {
		return errNotFound
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", mediaType(m.extent))
	h.Set("Cache-Control", "private, no-cache") // a client may keep it, and asks whether it is still the same
	h.Set("ETag", entityTag(fmt.Append(nil, e.Size, e.Modified, e.Changed)))
	modified := time.Unix(0, min(e.Modified, s.now().UnixNano())) // RFC 9110, section 8.8.2.1
	content := io.NewSectionReader(f, 0, e.Size)
	http.ServeContent(&patientWriter{w, r.Context()}, r, "", modified, content)
	return nil
}

// openContent opens the file of a row. Anything but a regular file of the dataset is an error.
func (c config) openContent(d dataset, m ElevationDatasetFileMeta) (openFile, entry, error) {
	place, wrong := c.placeDataset(d.Path)
	if wrong != nil {
		return nil, entry{}, wrong.err()
	}
	root, _, err := place.open()
	if err != nil {
		return nil, entry{}, err
	}
	reader := &fileReader{root: root}
	defer reader.close()
	return reader.open(entry{Path: m.Path, Size: m.SizeBytes})
}

// patientWriter sends a body to a client that may be slow, until ctx ends. The client must take
// each piece within a minute; a piece has at most 64 KiB.
type patientWriter struct {
	http.ResponseWriter
	ctx context.Context
}

// ReadFrom sends a body through a buffer of 16 KiB, half of what io.Copy takes.
func (w *patientWriter) ReadFrom(body io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, body, make([]byte, 16<<10))
}

// Write sends a piece of the body. Any error is context.Canceled: the client left or was too slow,
// or ctx ended.
func (w *patientWriter) Write(b []byte) (int, error) {
	deadline, _ := w.ctx.Deadline()
	if soon := time.Now().Add(time.Minute); soon.Before(deadline) {
		deadline = soon
	}
	http.NewResponseController(w.ResponseWriter).SetWriteDeadline(deadline)
	n, err := w.ResponseWriter.Write(b)
	if err != nil || w.ctx.Err() != nil {
		err = context.Canceled
	}
	return n, err
}
