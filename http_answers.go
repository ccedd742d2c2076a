package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// writeJSON answers with v as JSON.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return writeBytes(w, status, "application/json", body)
}

// encodeJSON returns v as JSON, followed by a newline.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)

	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// writeBytes answers with a body that is complete. If large answers take too much memory, because
// their clients are slow, the error is errBusy.
func writeBytes(w http.ResponseWriter, status int, contentType string, body []byte) error {
	// A large answer counts until the client has it. The answer to callAPI is not sent: a page is
	// made of it.
	answer, isSent := w.(*responseWriter)
	if isSent && len(body) > largeAnswer {
		answers := answer.slots.limits.answers
		caller := answer.slots.owner
		n := int64(len(body))

		defer answers.add(caller, -n)
		if !answers.add(caller, n) {
			return errBusy
		}
	}

	if isSent {
		body = answer.zipped(status, contentType, body)
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))

	w.WriteHeader(status)
	w.Write(body) // an error means that the client left
	return nil
}

// writeEntity answers with an object and its entity tag, if it has one. If err is set, it only
// returns err.
func writeEntity(w http.ResponseWriter, v any, tag string, err error) error {
	if err != nil {
		return err
	}

	if tag != "" {
		w.Header().Set("ETag", tag)
	}
	return writeJSON(w, http.StatusOK, v)
}

// writeCreated answers 201 with an object and its path, if any. If err is set, it only returns err.
func writeCreated(w http.ResponseWriter, v any, path string, err error) error {
	if err != nil {
		return err
	}

	if path != "" {
		w.Header().Set("Location", path)
	}
	return writeJSON(w, http.StatusCreated, v)
}

// writeDone answers 204. If err is set, it only returns err.
func writeDone(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}

	w.WriteHeader(http.StatusNoContent)
	return nil
}

// responseWriter records the status of the answer. It drops what the mux itself writes for a
// request without a route.
type responseWriter struct {
	http.ResponseWriter
	requestID string
	basic     bool   // a 401 offers HTTP Basic: see offersBasic
	slots     *slots // of the request
	route     string // the request's path in the route table; empty if it matches no route
	row       int    // its row in the route table, from 1; 0 if it matches no route
	routed    bool   // the answer comes from a handler or from writeProblem, not from the mux
	status    int    // of the answer; 0 while there is none

	zip  func([]byte) []byte // compresses a text; nil: the client does not accept that
	page func(*problem)      // writes a problem as a page, for browsers; nil: as problem details
}

// WriteHeader records the status and sends it, unless one was recorded before.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 {
		return
	}

	w.status = status
	w.slots.beginAnswer()
	if w.routed {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write sends part of the body.
func (w *responseWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)

	if !w.routed {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// scheme returns the scheme of the service's URLs.
func (c *core) scheme() string {
	if c.isHTTPS {
		return "https"
	}
	return "http"
}

// baseURL returns the scheme and the host by which clients know the service.
func (c *core) baseURL(r *http.Request) string {
	if c.cfg.baseURL != "" {
		return c.cfg.baseURL
	}
	return c.scheme() + "://" + r.Host
}
