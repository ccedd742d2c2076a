package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// writeJSON answers with v in JSON.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return writeBytes(w, status, "application/json", body)
}

// encodeJSON is v in JSON, with a newline at the end.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// writeBytes answers with a body that is complete.
func writeBytes(w http.ResponseWriter, status int, contentType string, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body) // an error means that the client left
	return nil
}

// entityTag is the strong entity tag of a body (RFC 9110, section 8.8.3).
func entityTag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// matchesTag says whether a list of entity tags, If-Match's or If-None-Match's, names this one.
func matchesTag(list, tag string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(one string) bool {
		one = strings.TrimSpace(one)
		return one == tag || one == "*"
	})
}

// writeTagged answers with v in JSON and its entity tag; 304 where a GET shows that the client has it.
func writeTagged(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	tag := entityTag(body)
	w.Header().Set("ETag", tag)
	if r.Method != http.MethodPatch && r.Method != http.MethodPut && matchesTag(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return writeBytes(w, http.StatusOK, "application/json", body)
}

// writeDone answers 204 to a change, where err is nil, once the principals that it touches are dropped.
func (s *server) writeDone(w http.ResponseWriter, err error, touched ...string) error {
	if err != nil {
		return err
	}
	s.principals.drop(touched...)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxPage is the most items a list answers at once.
const maxPage = 500

// readPage reads limit, and from the cursor the keys after which the page begins; first are those of the
// first page. A cursor is bound to scope, the list with its filters.
func (s *server) readPage(r *http.Request, first []string) (limit int, after []string, scope string, err error) {
	query := r.URL.Query()
	limit, after = 50, first
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil {
			return 0, nil, "", malformed("wrong_type", "limit must be a number.")
		}
		var v invalid
		v.check(limit >= 1 && limit <= maxPage, "limit", "out_of_range", fmt.Sprintf("must be from 1 to %d", maxPage))
		if err := v.err(); err != nil {
			return 0, nil, "", err
		}
	}
	cursor := query.Get("cursor")
	query.Del("cursor")
	query.Del("limit")
	scope = r.URL.Path + "?" + query.Encode()
	if cursor != "" {
		after, err = s.keys.Load().verifyCursor(scope, cursor)
		if err != nil || len(after) != len(first) {
			return 0, nil, "", malformed("invalid_cursor", "The cursor is not one of this list with these filters.")
		}
	}
	return limit, after, scope, nil
}

// writeList answers with one page of a list. read returns up to limit rows after the one with the keys in
// after, in text, or from the beginning where these are first. It is asked for one row more than the
// client: that there is one means a next page. key gives the keys that an item is ordered by.
func writeList[T any](s *server, w http.ResponseWriter, r *http.Request, first []string,
	read func(after []string, limit int) ([]T, error), key func(T) []string) error {
	limit, after, scope, err := s.readPage(r, first)
	if err != nil {
		return err
	}
	items, err := read(after, limit+1)
	if err != nil {
		return err
	}
	answer := struct {
		Items      []T     `json:"items"`
		NextCursor *string `json:"next_cursor"`
	}{Items: items}
	if len(items) > limit {
		answer.Items = items[:limit]
		cursor, err := s.keys.Load().signCursor(scope, key(items[limit-1]))
		if err != nil {
			return err
		}
		answer.NextCursor = &cursor
		query := r.URL.Query()
		query.Set("cursor", cursor)
		w.Header().Set("Link", "<"+r.URL.EscapedPath()+"?"+query.Encode()+`>; rel="next"`)
	}
	if answer.Items == nil {
		answer.Items = []T{}
	}
	return writeTagged(w, r, answer)
}
