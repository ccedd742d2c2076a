package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// dataPath returns the path under which the content of a file is served. It has the file's own
// name, so that GDAL finds the sidecars beside it.
func dataPath(dataset int64, path string) string {
	raw, _ := decodePath(path) // as the walk wrote it
	u := url.URL{Path: fmt.Sprintf("/api/v1/datasets/%d/data/%s", dataset, raw)}
	return u.EscapedPath()
}

// mediaType returns the media type of a file.
func mediaType(m extent) string {
	isCOG := m.COG != nil && *m.COG
	if isCOG {
		return typeGeoTIFF + "; profile=cloud-optimized"
	}

	isGeoTIFF := m.Format != nil && *m.Format == "geotiff"
	if isGeoTIFF {
		return typeGeoTIFF
	}
	return "application/octet-stream"
}

// getContent answers GET /api/v1/datasets/{id}/data/{path...} with a file, or ranges of it. Only a
// regular file that has a row is served. It is opened as an analysis opens it, so that no link
// leads out of the dataset. Once the file is open, the database is not asked any more.
func (c *catalogue) getContent(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT d.directory,
			f.path,
			f.format,
			f.cog
		FROM (
			SELECT id, path AS directory
			FROM datasets
			WHERE ` + isVisible + ` AND id = $2
		) d
		LEFT JOIN elevation_dataset_file_meta f ON f.dataset_id = d.id AND f.path = $3`

	path := encodeName(r.PathValue("path"))
	if strings.ContainsRune(path, 0) {
		return notFound("file", path)
	}

	// One statement finds both, because clients ask for many small ranges.
	d := dataset{ID: pathID(r, "id")}
	c.endWithDataset(r, d.ID)
	type row struct {
		Directory string
		Path      *string // nil: there is no such file
		Format    *string
		COG       *bool
	}
	var found row
	err := withPoolSlot(r, quick, func(ctx context.Context) (err error) {
		found, err = collectOne[row](
			ctx, c.core.db, notFound("dataset", d.ID), "get file",
			query, sightOf(actorOf(r)), d.ID, path,
		)
		return err
	})
	if err != nil {
		return err
	}
	if found.Path == nil {
		return d.missingPart("file", r.PathValue("path"))
	}

	f, err := c.openContent(r.Context(), found.Directory, path)
	if err != nil {
		return err
	}
	defer f.closeLater()

	h := w.Header()
	h.Set("Content-Type", mediaType(extent{Format: found.Format, COG: found.COG}))
	h.Set("Cache-Control", "private, no-cache") // a client may keep it, and asks whether it is still the same
	h.Set("ETag", entityTag(fmt.Append(nil, f.Size, f.Modified, f.Changed)))

	// Last-Modified must not lie in the future (RFC 9110, section 8.8.2.1).
	modified := time.Unix(0, min(f.Modified, c.core.now().UnixNano()))
	err = serveContent(w, r, modified, io.NewSectionReader(f, 0, f.Size))
	return cmp.Or(f.err, err)
}

// serveContent answers with the content, or with the range of it for which the request asks. If the
// content has no such range, the error is a 416.
func serveContent(w http.ResponseWriter, r *http.Request, modified time.Time, content *io.SectionReader) error {
	cleanRange(r, content.Size())

	out := newPatientWriter(w, r)
	http.ServeContent(out, r, "", modified, content)
	if out.hasNoRange {
		return newProblem(http.StatusRequestedRangeNotSatisfiable, codeNoSuchRange, "There are no such bytes.")
	}
	return nil
}

// cleanRange writes the header Range as http.ServeContent reads it (RFC 9110, section 14). A range
// in another unit than bytes is ignored, and so are several ranges at once: the client gets all. A
// range of HEAD is ignored too.
func cleanRange(r *http.Request, size int64) {
	unit, bounds, _ := strings.Cut(r.Header.Get("Range"), "=")
	isInBytes := strings.EqualFold(strings.TrimSpace(unit), "bytes")
	isIgnored := r.Method != http.MethodGet || !isInBytes
	if isIgnored || strings.Contains(bounds, ",") {
		r.Header.Del("Range")
		return
	}

	// The last 0 bytes are no range. Neither are those from the end on, which ServeContent refuses.
	bounds = strings.TrimSpace(bounds)
	if strings.TrimRight(bounds, "0") == "-" {
		bounds = fmt.Sprintf("%d-", size)
	}
	r.Header.Set("Range", "bytes="+bounds)
}

// content is a file that a request reads.
type content struct {
	catalogue *catalogue
	ctx       context.Context // of the request, or of the command
	directory string          // of the dataset
	path      string          // as the row has it
	openFile
	entry       // as the file was opened
	err   error // that ended the reading
}

// openContent opens a file in the directory of a dataset for a request with that context. Its
// errors are those of open and of askFileSystem.
func (c *catalogue) openContent(ctx context.Context, directory, path string) (*content, error) {
	f := &content{
		catalogue: c,
		ctx:       ctx,
		directory: directory,
		path:      path,
	}
	closeIt := func() { f.Close() }
	return f, c.askFileSystem(ctx, directory, f.open, closeIt)
}

// closeLater closes the file in a goroutine. Close may hang too, so it takes a slot as any other
// call does, without a time limit.
func (f *content) closeLater() {
	go func() {
		ctx := context.WithoutCancel(f.ctx)
		leave, err := f.catalogue.fileCalls.acquire(ctx, f.directory)
		if err == nil { // with an error the queue is full, and Close does not wait
			defer leave()
		}
		f.Close()
	}()
}

// open opens the file. Anything but a regular file of the dataset is a 404. Another error is that
// of fileUnavailable.
func (f *content) open() error {
	dir, wrong := f.catalogue.core.cfg.findDirectory(f.directory)
	if wrong != nil {
		return notFound("file", f.path)
	}

	root, err := dir.open()
	if err == nil {
		reader := &fileReader{root: root}
		defer reader.close()
		f.openFile, f.entry, err = reader.open(entry{Path: f.path})
	}
	if err == nil {
		return nil
	}

	// An error that is not the system's is a rule that does not allow the file.
	errno, isOfSystem := errors.AsType[syscall.Errno](err)
	isLink := errno == syscall.ELOOP
	if isMissing(err) || isLink || !isOfSystem {
		return notFound("file", f.path)
	}

	err = fmt.Errorf("open %s in the dataset %s: %w", f.path, f.directory, err)
	return fileUnavailable(err)
}

// ReadAt implements io.ReaderAt. Its callers do not use p after an error, so a late answer may
// still be written to it.
func (f *content) ReadAt(p []byte, offset int64) (int, error) {
	n := 0
	read := func() (err error) {
		n, err = f.openFile.ReadAt(p, offset)
		return err
	}

	err := f.catalogue.askFileSystem(f.ctx, f.directory, read, nil)
	if err != nil && err != io.EOF {
		f.err = fmt.Errorf("read %s in the dataset %s: %w", f.path, f.directory, err)
		return 0, f.err
	}
	return n, err
}

// fileUnavailable returns the 503 for a file or directory that cannot be read, although it should
// be there.
func fileUnavailable(err error) *problem {
	return &problem{
		status:     http.StatusServiceUnavailable,
		code:       codeFileUnavailable,
		retryAfter: 30 * time.Second,
		detail: "The file system does not answer, or fails. Try again later. " +
			"The log has the reason under the request id.",
		err: err,
	}
}

// errNoAnswer is the error of a call of the file system that was abandoned.
var errNoAnswer = errors.New("the file system does not answer")

// askFileSystem runs ask, which calls the file system, and returns its error. A call of a dead
// network file system may never return, so ask runs in its own goroutine. askFileSystem abandons
// the goroutine after the patience of analyses, or when ctx ends. If ask succeeds after that, drop
// closes the file that it opened; nil: it opens none. Until ask returns, it holds a slot of its
// directory and a slot of the whole instance, which bounds the number of blocked threads.
func (c *catalogue) askFileSystem(
	ctx context.Context,
	directory string,
	ask func() error,
	drop func(),
) error {
	limited, cancel := context.WithTimeout(ctx, c.core.patience)
	defer cancel()

	leave, err := c.fileCalls.acquire(limited, directory)
	if err != nil {
		return err
	}

	answers := make(chan error)
	go func() {
		defer leave()
		err := ask()
		select {
		case answers <- err:
		case <-limited.Done():
			if err == nil && drop != nil {
				drop()
			}
		}
	}()

	select {
	case err := <-answers:
		return err
	case <-limited.Done():
		if errors.Is(ctx.Err(), context.Canceled) { // the client left
			return ctx.Err()
		}
		err := fmt.Errorf("call the file system of %s: %w", directory, errNoAnswer)
		return fileUnavailable(err)
	}
}

// patientWriter sends a body to a client that may be slow, until ctx ends. The client must take
// each piece within a minute; a piece has at most 64 KiB.
type patientWriter struct {
	http.ResponseWriter
	ctx       context.Context
	caller    *caller
	rechecked time.Time // when the caller's credential was last seen to be valid

	hasNoRange bool // http.ServeContent answered 416: nothing is sent, and the handler returns a problem
}

// newPatientWriter returns a patientWriter for the answer to a request.
func newPatientWriter(w http.ResponseWriter, r *http.Request) *patientWriter {
	return &patientWriter{
		ResponseWriter: w,
		ctx:            r.Context(),
		caller:         callerOf(r),
		rechecked:      time.Now(),
	}
}

// recheckInterval is how long a long answer goes on after the credential has ended.
const recheckInterval = 10 * time.Second

// ReadFrom sends a body through a buffer of 64 KiB, or of the range's length if that is less. With
// the 32 KiB of io.Copy a large file takes a fifth longer.
func (w *patientWriter) ReadFrom(body io.Reader) (int64, error) {
	size := int64(64 << 10)
	limited, isLimited := body.(*io.LimitedReader) // as http.ServeContent sends a range
	if isLimited {
		size = max(1, min(size, limited.N)) // io.CopyBuffer takes no empty buffer
	}

	buffer := make([]byte, size)
	onlyWrite := struct{ io.Writer }{w} // without ReadFrom, which io.CopyBuffer would call
	return io.CopyBuffer(onlyWrite, body, buffer)
}

// WriteHeader sends the status, but for 416.
func (w *patientWriter) WriteHeader(status int) {
	w.hasNoRange = status == http.StatusRequestedRangeNotSatisfiable
	if !w.hasNoRange {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write sends a piece of the body. Meanwhile the request holds no slot to compute. Any error is
// context.Canceled: the client left or was too slow, ctx ended, or the credential is not valid any
// more.
func (w *patientWriter) Write(b []byte) (int, error) {
	if w.hasNoRange {
		return len(b), nil
	}

	if time.Since(w.rechecked) > recheckInterval {
		w.rechecked = time.Now()
		err := w.caller.authorize(w.ctx)

		// An outage of the database does not end the answer.
		refused := problemIn(err)
		if refused != nil && refused.status < 500 {
			return 0, context.Canceled
		}
	}

	n, err := w.send(b)
	if err != nil || w.ctx.Err() != nil {
		err = context.Canceled
	}
	return n, err
}

// send sends a piece of the body, without a slot to compute.
func (w *patientWriter) send(b []byte) (int, error) {
	slots := w.caller.slots
	isComputing := slots.releaseCore != nil
	slots.leaveCore()

	deadline, _ := w.ctx.Deadline()
	soon := time.Now().Add(time.Minute)
	if soon.Before(deadline) {
		deadline = soon
	}
	http.NewResponseController(w.ResponseWriter).SetWriteDeadline(deadline)
	n, err := w.ResponseWriter.Write(b)

	if err == nil && isComputing {
		err = slots.acquireCore(w.ctx)
	}
	return n, err
}
