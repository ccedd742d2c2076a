package main

import (
	"fmt"
	"net/http"
	"strconv"
)

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
