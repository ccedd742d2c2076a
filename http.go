package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// isRead reports whether the request only reads: its method is GET or HEAD.
func isRead(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}

// decodeJSON reads the request's JSON object into v. Unlike encoding/json alone, it refuses unknown
// keys and whatever checkJSON refuses.
func decodeJSON(r *http.Request, v any) error {
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	isUTF8 := charset == "" || charset == "utf-8"
	if err != nil || mediaType != "application/json" || !isUTF8 {
		return newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType,
			"The body must be application/json in UTF-8.")
	}

	body, _ := io.ReadAll(r.Body) // never fails: receiveBody has read it
	if !utf8.Valid(body) {
		return malformed(codeMalformedJSON, "The body is not UTF-8.")
	}
	if err := checkJSON(body); err != nil {
		return err
	}

	// The text is a sound JSON object. It may still not be the object that the route takes.
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err = dec.Decode(v)
	if err == nil {
		return nil
	}

	// Say which field is wrong, in words of the API and not of Go.
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name := e.Field[strings.LastIndex(e.Field, ".")+1:] // without the name of an embedded struct
		return malformed(codeWrongType, "%s cannot be a JSON %s.", name, e.Value)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return malformed(codeUnknownField, "There is no field %.64s.", field)
	}
	return malformed(codeMalformedJSON, "The body is not the JSON expected: %s.", err)
}

// bodyError returns the problem with a body whose reading ended with err.
func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		detail := fmt.Sprintf("The body has more than %d bytes.", tooLarge.Limit)
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, detail)
	}
	if errors.Is(err, errBusy) {
		return errBusy
	}
	return malformed(codeBodyUnreadable, "The body could not be read to its end.")
}

// Bounds of a JSON object, counted before anything is made of it.
const (
	maxNames     = 64    // its names
	maxListItems = 1_000 // of a list
)

// checkJSON checks that a text is one JSON object with nothing after it. The object has at most
// maxNames names, none of them twice. Names are lower case, as all names of Cairn are. A list among
// the values has at most maxListItems items. checkJSON does not look into inner objects: only a
// search has one, a GeoJSON geometry.
func checkJSON(body []byte) error {
	var object json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(body))
	if err := dec.Decode(&object); err != nil {
		at := int64(len(body))
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = e.Offset
		}
		return malformed(codeMalformedJSON, "The body is not JSON: the error is at byte %d.", at)
	}

	if object[0] != '{' {
		return malformed(codeMalformedJSON, "The body must be a JSON object.")
	}
	if _, err := dec.Token(); err != io.EOF {
		return malformed(codeTrailingData, "The body must end after the JSON object.")
	}

	// The text is valid JSON, so the decoder returns no error from here on.
	dec = json.NewDecoder(bytes.NewReader(object))
	dec.Token() // the opening brace
	seen := map[string]bool{}

	for dec.More() {
		token, _ := dec.Token()
		name, _ := token.(string)

		if len(seen) == maxNames {
			return malformed(codeMalformedJSON, "The object in the body has more than %d names.", maxNames)
		}
		if !consistsOf(name, "abcdefghijklmnopqrstuvwxyz0123456789_") {
			return malformed(codeUnknownField, "There is no field %.64q.", name)
		}
		if seen[name] {
			return malformed(codeDuplicateField, "The field %.64q appears twice.", name)
		}
		seen[name] = true

		// Only a list is decoded further, to count its items.
		var value json.RawMessage
		var items []json.RawMessage
		dec.Decode(&value)
		if value[0] == '[' {
			json.Unmarshal(value, &items)
		}
		if len(items) > maxListItems {
			return malformed(codeMalformedJSON, "A list in the body has more than %d items.", maxListItems)
		}
	}
	return nil
}

// consistsOf reports whether text is not empty and has only characters of the set.
func consistsOf(text, set string) bool { return text != "" && strings.Trim(text, set) == "" }

// checkQuery refuses query parameters that are not allowed, duplicate, or not UTF-8 text.
func checkQuery(r *http.Request, allowed string) error {
	if r.URL.RawQuery == "" {
		return nil
	}

	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return malformed(codeMalformedQuery, "The query string is malformed.")
	}

	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(strings.Fields(allowed), name) {
			return malformed(codeUnknownParameter, "There is no query parameter %.64q here.", name)
		}
		if len(query[name]) > 1 {
			return malformed(codeDuplicateParameter, "The query parameter %.64q appears twice.", name)
		}

		value := query.Get(name)
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			return malformed(codeMalformedQuery, "The query parameter %.64q is not UTF-8 text.", name)
		}
	}

	return nil
}

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

// problem is an error that the client gets as problem details (RFC 9457).
type problem struct {
	status     int
	code       problemCode
	detail     string // for people
	permission string // the missing one, with 403
	fields     []fieldError
	retryAfter time.Duration
	location   string // the Location header; empty: none
	err        error  // for the log only; may be nil
}

// Error returns the detail, which the commands print, with the cause.
func (p *problem) Error() string {
	if p.err != nil {
		return strings.TrimSuffix(p.detail, ".") + ": " + p.err.Error()
	}
	return p.detail
}

// Unwrap returns the cause.
func (p *problem) Unwrap() error { return p.err }

// fieldError says what is wrong with one field of a request.
type fieldError struct {
	Field  string    `json:"field"`
	Code   fieldCode `json:"code"`
	Detail string    `json:"detail"`
}

// errNoPath is the 404 for a path without a route.
var errNoPath = newProblem(http.StatusNotFound, codeNotFound, "No such path; see /api/v1/openapi.yaml.")

// noUUID is the id of no object.
const noUUID = "00000000-0000-0000-0000-000000000000"

// notFound returns the 404 for an object that does not exist, as in "No dataset 99." An id that is
// 0 or noUUID stands for text that is no id at all.
func notFound(kind string, id any) error {
	name := cleanText(fmt.Appendf(nil, "%s %v", kind, id), maxNameText)

	if id == int64(0) || id == noUUID {
		name = "such " + kind
	}
	return newProblem(http.StatusNotFound, codeNotFound, "No "+name+".")
}

// errTooSlow is the 503 for a request that ran out of its own time, while the database is up.
var errTooSlow = &problem{
	status:     http.StatusServiceUnavailable,
	code:       codeTooSlow,
	detail:     "The request did not end within its time limit. Ask for less, or try again later.",
	retryAfter: 10 * time.Second,
}

// databaseUnavailable returns the 503 for a database that is unavailable.
func databaseUnavailable(err error) *problem {
	return &problem{
		status:     http.StatusServiceUnavailable,
		code:       codeDatabaseUnavailable,
		detail:     "The database is not available now. Try again.",
		retryAfter: 2 * time.Second,
		err:        err,
	}
}

// newProblem returns a problem with a status, a code and a detail.
func newProblem(status int, code problemCode, detail string) *problem {
	return &problem{status: status, code: code, detail: detail}
}

// unauthorized returns the 401 for a request without a valid proof of identity.
func unauthorized(code problemCode, detail string) *problem {
	return newProblem(http.StatusUnauthorized, code, detail)
}

// forbidden returns the 403 for what the caller may not do.
func forbidden(code problemCode, detail string) *problem {
	return newProblem(http.StatusForbidden, code, detail)
}

// conflict returns the 409 for what the present state does not allow.
func conflict(code problemCode, detail string) *problem {
	return newProblem(http.StatusConflict, code, detail)
}

// malformed returns the 400 for a request that cannot be read.
func malformed(code problemCode, format string, args ...any) error {
	return newProblem(http.StatusBadRequest, code, fmt.Sprintf(format, args...))
}

// invalid collects what is wrong with the fields of a well-formed request.
type invalid []fieldError

// check notes the field unless ok.
func (v *invalid) check(ok bool, field string, code fieldCode, detail string) {
	if !ok {
		*v = append(*v, fieldError{field, code, detail})
	}
}

// oneOf notes the field unless text is nil or one of the values, of which there are several.
func (v *invalid) oneOf(field string, text *string, values ...string) {
	last := len(values) - 1
	detail := "must be " + strings.Join(values[:last], ", ") + " or " + values[last]
	isKnown := text == nil || slices.Contains(values, *text)
	v.check(isKnown, field, fieldUnknown, detail)
}

// time reads a time in the form of RFC 3339, to the microsecond, as the database stores it. It
// notes the field and returns nil if the text is not a time with a zone. Nil stays nil.
func (v *invalid) time(field string, text *string) *time.Time {
	if text == nil {
		return nil
	}

	at, err := time.Parse(time.RFC3339, *text)
	at = at.UTC().Truncate(time.Microsecond)
	hasPlainYear := at.Year() >= 1 && at.Year() <= 9999
	if err != nil || !hasPlainYear {
		v.check(false, field, fieldMalformed,
			"must be a time with its zone, as in RFC 3339: 2026-01-31T12:00:00Z")
		return nil
	}
	return &at
}

// err returns the 422 for the fields that were noted, or nil.
func (v invalid) err() error {
	if len(v) == 0 {
		return nil
	}

	detail := v[0].Field + ": " + v[0].Detail
	return &problem{
		status: http.StatusUnprocessableEntity,
		code:   codeInvalid,
		detail: detail,
		fields: v,
	}
}

// problemOf returns the problem that the client gets for err. If the client left, it panics with
// http.ErrAbortHandler: nobody reads an answer.
func (c *core) problemOf(w *responseWriter, err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}

	switch {
	case errors.Is(err, context.Canceled):
		w.status = 499 // as nginx logs it
		panic(http.ErrAbortHandler)

	case isTooSlow(err) && c.database.answers():
		c.log.Warn("request too slow",
			"id", w.requestID,
			"route", w.route,
			"error", err)
		return errTooSlow

	case isUnavailable(err) || isTooSlow(err):
		return databaseUnavailable(err)
	}

	return &problem{
		status: http.StatusInternalServerError,
		code:   codeInternal,
		detail: "Internal error. The server log has the cause under this request id.",
		err:    err,
	}
}

// writeProblem answers with err as problem details or, for a browser's page, as a page. It logs an
// error that is not a problem, and does not show it to the client. If the client left, or part of
// an answer was sent, it panics with http.ErrAbortHandler, which cuts the connection.
func (c *core) writeProblem(w *responseWriter, err error) {
	p := c.problemOf(w, err)
	if p.err != nil {
		c.log.Error("request failed",
			"id", w.requestID,
			"route", w.route,
			"error", p.err)
	}

	// Part of an answer was sent: the cut shows the client that it is not whole.
	if w.routed && w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	w.routed = true

	setProblemHeaders(w, p)
	if w.page != nil {
		w.page(p)
		return
	}

	// The values are text and numbers, so there is no error.
	encoded, _ := encodeJSON(struct {
		Type       string       `json:"type"`
		Title      string       `json:"title"`
		Status     int          `json:"status"`
		Detail     string       `json:"detail"`
		Code       problemCode  `json:"code"`
		Permission string       `json:"permission,omitempty"`
		Errors     []fieldError `json:"errors,omitempty"`
		RequestID  string       `json:"request_id"`
	}{
		"about:blank",
		http.StatusText(p.status),
		p.status,
		p.detail,
		p.code,
		p.permission,
		p.fields,
		w.requestID,
	})
	writeBytes(w, p.status, "application/problem+json", encoded)
}

// setProblemHeaders sets the headers that go with a problem.
func setProblemHeaders(w *responseWriter, p *problem) {
	h := w.Header()
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(p.retryAfter/time.Second)))
	}
	if p.location != "" {
		h.Set("Location", p.location)
	}

	// A 401 names the ways to sign in (RFC 9110, section 11.6.1).
	if p.status != http.StatusUnauthorized {
		return
	}

	h.Set("WWW-Authenticate", "Bearer")
	if p.code == codeInvalidToken {
		h.Set("WWW-Authenticate", `Bearer error="invalid_token"`) // RFC 6750, section 3.1
	}
	if w.basic {
		h.Add("WWW-Authenticate", `Basic realm="cairn", charset="UTF-8"`)
	}
}

// verifyPath is the route that a proxy asks whether a request may pass.
const verifyPath = "/api/v1/auth/verify"

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

	page func(*problem) // writes a problem as a page, for browsers; nil: as problem details
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

// pathID returns a path value that is a canonical decimal number, else 0, which is the id of
// nothing.
func pathID(r *http.Request, name string) int64 {
	value := r.PathValue(name)
	id, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strconv.FormatInt(id, 10) != value {
		return 0
	}
	return id
}

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
