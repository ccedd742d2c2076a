package main

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
)

// leastZipped is the size of the smallest answer that is compressed, in bytes. A smaller one fits
// into one packet.
const leastZipped = 1 << 10

// newZip returns a function that compresses a text.
func newZip() func(text []byte) []byte {
	// A writer takes 1.2 MB, so each is used again.
	writers := &sync.Pool{New: func() any {
		w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for an unknown level
		return w
	}}

	return func(text []byte) []byte {
		var zipped bytes.Buffer
		w := writers.Get().(*gzip.Writer)
		w.Reset(&zipped)
		w.Write(text) // never fails, and neither does Close: the buffer grows
		w.Close()
		writers.Put(w)
		return zipped.Bytes()
	}
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

// zipped returns the body of a complete answer, compressed if the client accepts that. It only
// compresses JSON, SVG, styles and scripts without an entity tag for If-Match. The tags of lists
// become weak. Pages are sent as they are: another site can choose a part of them, and could guess
// the rest by their size (BREACH).
func (w *responseWriter) zipped(status int, contentType string, body []byte) []byte {
	h := w.Header()
	mediaType, _, _ := strings.Cut(contentType, ";")
	isText := strings.HasSuffix(mediaType, "json") ||
		strings.HasSuffix(mediaType, "xml") ||
		mediaType == "text/css" ||
		mediaType == "text/javascript"
	isTagged := h.Get("ETag") != ""
	isList := h.Get("Vary") == "Accept-Encoding" // see writeTaggedBytes

	canZip := status == http.StatusOK && len(body) >= leastZipped && isText && (isList || !isTagged)
	if canZip && !isList {
		h.Add("Vary", "Accept-Encoding")
	}
	if !canZip || w.zip == nil {
		return body
	}

	h.Set("Content-Encoding", "gzip")
	if isTagged {
		h.Set("ETag", "W/"+h.Get("ETag"))
	}
	return w.zip(body)
}
