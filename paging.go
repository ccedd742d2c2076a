package main

import (
	"fmt"
	"net/http"
	"strconv"
)

// page is which part of a list is asked for: at most limit items, those after the item with the keys
// in after (nil: from the beginning).
type page struct {
	limit int
	after []string
	scope string // what a cursor of this list is bound to
}

// maxPage is the most items a list answers at once.
const maxPage = 500

// readPage reads limit and cursor; keys is by how many keys the list is ordered.
func (s *server) readPage(r *http.Request, keys int) (page, error) {
	query := r.URL.Query()
	p := page{limit: 50}
	if text := query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil {
			return page{}, malformed("wrong_type", "limit must be a number.")
		}
		var v invalid
		v.check(limit >= 1 && limit <= maxPage, "limit", "out_of_range", fmt.Sprintf("must be from 1 to %d", maxPage))
		if err := v.err(); err != nil {
			return page{}, err
		}
		p.limit = limit
	}
	cursor := query.Get("cursor")
	query.Del("cursor")
	query.Del("limit")
	p.scope = r.URL.Path + "?" + query.Encode()
	if cursor != "" {
		after, err := s.keys.Load().verifyCursor(p.scope, cursor)
		if err != nil || len(after) != keys {
			return page{}, malformed("invalid_cursor", "The cursor is not one of this list with these filters.")
		}
		p.after = after
	}
	return p, nil
}

// writeList answers one page. items holds up to limit+1 rows: one more than asked for means that
// there is a next page. key gives the keys that an item is ordered by.
func writeList[T any](s *server, w http.ResponseWriter, r *http.Request, p page, items []T, key func(T) []string) error {
	answer := struct {
		Items      []T     `json:"items"`
		NextCursor *string `json:"next_cursor"`
	}{Items: items}
	if len(items) > p.limit {
		answer.Items = items[:p.limit]
		cursor, err := s.keys.Load().signCursor(p.scope, key(items[p.limit-1]))
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
	return writeJSON(w, http.StatusOK, answer)
}
