package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxBody is the largest body of a request, in bytes.
const maxBody = 1 << 20

// decodeJSON reads the request's JSON object into v. Unlike encoding/json alone, it refuses keys in
// another case, duplicate and unknown keys, and anything after the object.
func decodeJSON(w http.ResponseWriter, r *http.Request, v any) error {
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	if err != nil || mediaType != "application/json" || (charset != "" && charset != "utf-8") {
		return &problem{status: http.StatusUnsupportedMediaType, code: "unsupported_media_type", detail: "The body must be application/json in UTF-8."}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return &problem{status: http.StatusRequestEntityTooLarge, code: "body_too_large", detail: fmt.Sprintf("The body has more than %d bytes.", maxBody)}
		}
		return malformed("body_unreadable", "The body could not be read to its end.")
	}
	if !utf8.Valid(body) {
		return malformed("malformed_json", "The body is not UTF-8.")
	}
	if err := checkKeys(body); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return malformed("wrong_type", "%s cannot be a JSON %s.", e.Field, e.Value)
		}
		if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return malformed("unknown_field", "There is no field %.64s.", field)
		}
		return malformed("malformed_json", "The body is not the JSON expected: %s.", err)
	}
	return nil
}

// checkKeys checks that a JSON text is one object with nothing after it, that no object in it has a
// key twice, and that keys are lower case, as all of Cairn's are.
func checkKeys(body []byte) error {
	type level struct {
		seen    map[string]bool // nil in an array
		wantKey bool
	}
	const maxDepth, maxTokens = 16, 2000 // more than any request needs
	var open []level
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	// The decoder turns half of a surrogate pair into U+FFFD, which the body itself may hold too.
	replaced := bytes.ContainsRune(body, utf8.RuneError) || bytes.Contains(bytes.ToLower(body), []byte(`\ufffd`))
	for n := 0; n == 0 || len(open) > 0; n++ {
		token, err := dec.Token()
		if err != nil {
			return malformed("malformed_json", "The body is not JSON: the error is at byte %d.", dec.InputOffset())
		}
		if n == maxTokens {
			return malformed("malformed_json", "The body has more than %d parts.", maxTokens)
		}
		if text, ok := token.(string); ok && !replaced && strings.ContainsRune(text, utf8.RuneError) {
			return malformed("malformed_json", "The body has half of a surrogate pair.")
		}
		if n == 0 && token != json.Delim('{') {
			return malformed("malformed_json", "The body must be a JSON object.")
		}
		if n := len(open); n > 0 && open[n-1].wantKey {
			if key, isKey := token.(string); isKey {
				if key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
					return malformed("unknown_field", "There is no field %.64q.", key)
				}
				if open[n-1].seen[key] {
					return malformed("duplicate_field", "The field %.64q appears twice.", key)
				}
				open[n-1].seen[key] = true
				open[n-1].wantKey = false
				continue
			}
		}
		if len(open) == maxDepth {
			return malformed("malformed_json", "The body is nested more than %d levels deep.", maxDepth-1)
		}
		switch token {
		case json.Delim('{'):
			open = append(open, level{seen: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if n := len(open); n > 0 && open[n-1].seen != nil {
			open[n-1].wantKey = true // an object has begun, or a value in it has ended
		}
	}
	if _, err := dec.Token(); err != io.EOF {
		return malformed("trailing_data", "The body must end after the JSON object.")
	}
	return nil
}

// checkQuery refuses query parameters that are unknown to the route, duplicate, or not UTF-8 text.
func checkQuery(r *http.Request, allowed []string) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return malformed("malformed_query", "The query string is malformed.")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(allowed, name) {
			return malformed("unknown_parameter", "There is no query parameter %.64q here.", name)
		}
		if len(query[name]) > 1 {
			return malformed("duplicate_parameter", "The query parameter %.64q appears twice.", name)
		}
		if value := query.Get(name); !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			return malformed("malformed_query", "The query parameter %.64q is not UTF-8 text.", name)
		}
	}
	return nil
}
