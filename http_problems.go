package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// problemIn returns the problem in an error, or nil.
func problemIn(err error) *problem {
	p, _ := errors.AsType[*problem](err)
	return p
}

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

// decodingProblem returns the 400 for sound JSON that is not the object expected. It says which
// field is wrong, in words of the API and not of Go.
func decodingProblem(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name := e.Field[strings.LastIndex(e.Field, ".")+1:] // without the name of an embedded struct
		return malformed(codeWrongType, "%s cannot be a JSON %.64s.", cmp.Or(name, "The value"), e.Value)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return malformed(codeUnknownField, "There is no field %.64s.", field)
	}
	return malformed(codeMalformedJSON, "The body is not the JSON expected: %.100s.", err)
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

// timeRule says which text is a time.
const timeRule = "must be a time with its zone, as in RFC 3339: 2026-01-31T12:00:00Z"

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
		v.check(false, field, fieldMalformed, timeRule)
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
	if p := problemIn(err); p != nil {
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
