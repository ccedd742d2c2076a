package main

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// leastZipped is the size of the smallest answer that is compressed, in bytes. A smaller one fits
// into one packet.
const leastZipped = 1 << 10

// withGzip returns a handler whose answers are compressed if the client accepts gzip. It compresses
// only complete answers to GET and HEAD: JSON, SVG, styles and scripts. Pages are sent as they are:
// another site can choose a part of them, and could guess the rest by their size (BREACH).
func withGzip(next http.Handler) http.Handler {
	// A writer takes 1.2 MB, so each is used again.
	writers := &sync.Pool{New: func() any {
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for an unknown level
		return w
	}}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isRead(r) {
			w = &gzipWriter{ResponseWriter: w, request: r, writers: writers}
		}
		next.ServeHTTP(w, r)
	})
}

// acceptsGzip reports whether Accept-Encoding (RFC 9110, section 12.5.3) allows gzip.
func acceptsGzip(accepted string) bool {
	for one := range strings.SplitSeq(accepted, ",") {
		one = strings.ToLower(strings.ReplaceAll(one, " ", ""))
		coding, weight, _ := strings.Cut(one, ";")
		if coding != "gzip" {
			continue
		}

		isRefused := weight != "" && strings.Trim(weight, "q=0.") == "" // q=0 and q=0.000
		return !isRefused
	}
	return false
}

// gzipWriter compresses an answer whose headers say that it is complete, is text, and has no ranges
// and no entity tag for If-Match. The tags of lists become weak.
type gzipWriter struct {
	http.ResponseWriter
	request      *http.Request
	writers      *sync.Pool // of *gzip.Writer
	waitsForBody bool       // the headers are sent with the body, which is compressed first
}

// WriteHeader decides whether the answer is compressed. If it is not, it sends the headers.
func (w *gzipWriter) WriteHeader(status int) {
	h := w.Header()
	size, _ := strconv.Atoi(h.Get("Content-Length"))
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	isText := strings.HasSuffix(mediaType, "json") ||
		strings.HasSuffix(mediaType, "xml") ||
		mediaType == "text/css" ||
		mediaType == "text/javascript"
	isWhole := h.Get("Accept-Ranges") == "" && h.Get("Content-Encoding") == ""
	isTagged := h.Get("ETag") != ""
	isList := h.Get("Vary") == "Accept-Encoding" // see writeTaggedBytes

	canZip := status == http.StatusOK && size >= leastZipped && isText && isWhole && (isList || !isTagged)
	if canZip && !isList {
		h.Add("Vary", "Accept-Encoding")
	}
	if !canZip || !acceptsGzip(w.request.Header.Get("Accept-Encoding")) {
		w.ResponseWriter.WriteHeader(status)
		return
	}

	h.Del("Content-Length")
	h.Set("Content-Encoding", "gzip")
	if isTagged {
		h.Set("ETag", "W/"+h.Get("ETag"))
	}
	w.waitsForBody = w.request.Method == http.MethodGet
	if !w.waitsForBody {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write sends the body. One that is compressed comes in one piece, from writeBytes.
func (w *gzipWriter) Write(b []byte) (int, error) {
	if !w.waitsForBody {
		return w.ResponseWriter.Write(b)
	}

	// The client may be slow, so the writer is given back before the answer is sent.
	var body bytes.Buffer
	zipped := w.writers.Get().(*gzip.Writer)
	zipped.Reset(&body)
	zipped.Write(b) // never fails, and neither does Close: the buffer grows
	zipped.Close()
	w.writers.Put(zipped)

	w.waitsForBody = false
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.ResponseWriter.WriteHeader(http.StatusOK)
	_, err := w.ResponseWriter.Write(body.Bytes())
	return len(b), err
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
