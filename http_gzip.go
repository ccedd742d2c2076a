package main

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
)

// leastZipped is the size of the smallest answer that is compressed, in bytes. A smaller one fits
// into one packet.
const leastZipped = 1 << 10

// withGzip returns a handler whose answers are compressed if the client accepts gzip. It compresses
// only complete answers of text to GET and HEAD. None of them has both a secret and a text that
// another site chooses, so their sizes reveal nothing (the attack BREACH needs both).
func withGzip(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isRead(r) {
			next.ServeHTTP(w, r)
			return
		}

		zipped := &gzipWriter{
			ResponseWriter: w,
			isAccepted:     acceptsGzip(r.Header.Get("Accept-Encoding")),
		}
		next.ServeHTTP(zipped, r)

		// After a panic, the answer must not look complete.
		if zipped.body != nil {
			zipped.body.Close()
		}
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
	isAccepted bool
	body       *gzip.Writer // nil: the answer is sent as it is
}

// WriteHeader decides whether the answer is compressed, and sends its headers.
func (w *gzipWriter) WriteHeader(status int) {
	h := w.Header()
	size, _ := strconv.Atoi(h.Get("Content-Length"))
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	isText := strings.HasPrefix(mediaType, "text/") ||
		strings.HasSuffix(mediaType, "json") ||
		strings.HasSuffix(mediaType, "yaml") ||
		strings.HasSuffix(mediaType, "xml")
	isWhole := h.Get("Accept-Ranges") == "" && h.Get("Content-Encoding") == ""
	isTagged := h.Get("ETag") != ""
	isList := h.Get("Vary") == "Accept-Encoding" // see writeTaggedBytes

	canZip := status == http.StatusOK && size >= leastZipped && isText && isWhole && (isList || !isTagged)
	if canZip && !isList {
		h.Add("Vary", "Accept-Encoding")
	}
	if canZip && w.isAccepted {
		h.Del("Content-Length")
		h.Set("Content-Encoding", "gzip")
		if isTagged {
			h.Set("ETag", "W/"+h.Get("ETag"))
		}
		w.body, _ = gzip.NewWriterLevel(w.ResponseWriter, gzip.BestSpeed) // fails only for an unknown level
	}

	w.ResponseWriter.WriteHeader(status)
}

// Write sends part of the body.
func (w *gzipWriter) Write(b []byte) (int, error) {
	if w.body != nil {
		return w.body.Write(b)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
