package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxPage is the largest number of items on a page of a list.
const maxPage = 500

// listTotal is how many items a list has on all its pages together.
type listTotal struct {
	Total           int64 `json:"total"`
	TotalIsEstimate bool  `json:"total_is_estimate"`
}

// writeList answers with one page of a list. Its functions are:
//
//   - read returns up to limit items after the sort keys in after. It is asked for one item more
//     than the page has, which tells whether there is a next page.
//   - key returns the sort keys of an item. first are sort keys before those of every item.
//   - count, if given, returns the total for total=1.
//
// A cursor holds the keys of the last item before it. It is valid only for this list and its
// filters.
func writeList[T any](core *core, w http.ResponseWriter, r *http.Request, first []string,
	read func(after []string, limit int) ([]T, error),
	key func(T) []string,
	count ...func() (*listTotal, error)) error {

	query := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(query.Get("limit"), "50"))
	if err != nil {
		return malformed(codeWrongType, "limit must be a number.")
	}
	if limit < 1 || limit > maxPage {
		detail := fmt.Sprintf("must be from 1 to %d", maxPage)
		return invalid{{"limit", fieldOutOfRange, detail}}.err()
	}

	scope, after, err := core.readCursor(r.URL.Path, query, first)
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
		*listTotal
	}{
		Items: append([]T{}, items[:min(len(items), limit)]...), // never null
	}

	// The total costs a query of its own, so only those who ask for it get it.
	if query.Get("total") == "1" && len(count) > 0 {
		answer.listTotal, err = count[0]()
		if err != nil {
			return err
		}
	}

	if len(items) > limit {
		cursor := core.keys.Load().signCursor(scope, key(items[limit-1]))
		answer.NextCursor = &cursor

		query.Set("cursor", cursor)
		next := r.URL.EscapedPath() + "?" + query.Encode()
		w.Header().Set("Link", "<"+next+`>; rel="next"`)
	}

	return writeTagged(w, r, answer)
}

// readCursor returns the scope of a list, which ties its cursors to its path and its filters. It
// also returns the sort keys in the query's cursor, or first if there is no cursor. The cursor of
// another scope is a 400. The scope has no geometry: for the next page, a client may write it in
// another way.
func (c *core) readCursor(path string, query url.Values, first []string) (scope string, after []string, err error) {
	filters := maps.Clone(query)
	for _, name := range []string{"cursor", "limit", "total", "intersects"} {
		filters.Del(name)
	}
	scope = path + "?" + filters.Encode()

	cursor := query.Get("cursor")
	if cursor == "" {
		return scope, first, nil
	}

	after, err = c.keys.Load().verifyCursor(scope, cursor)
	if err != nil || len(after) != len(first) {
		err = malformed(codeInvalidCursor, "The cursor is not of this list with these filters: begin without one.")
	}
	return scope, after, err
}

// writeRows is writeList for the rows of a query. The parameters of the query are args, then the
// sort keys after which the page begins, then the limit. doing begins the text of an error.
func writeRows[T any](core *core, w http.ResponseWriter, r *http.Request,
	first []string,
	key func(T) []string,
	doing, query string, args ...any) error {

	read := func(after []string, limit int) ([]T, error) {
		for _, sortKey := range after {
			args = append(args, sortKey)
		}
		return collect[T](r.Context(), core.db, doing, query, append(args, limit)...)
	}
	return writeList(core, w, r, first, read, key)
}

// entityTag returns the strong entity tag of a body (RFC 9110, section 8.8.3).
func entityTag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
}

// tagOf returns the strong entity tag of v as JSON. v holds only text, numbers, times and lists.
func tagOf(v any) string {
	body, _ := encodeJSON(v) // never fails for these
	return entityTag(body)
}

// matchesTag reports whether the lines of If-Match or If-None-Match name the strong tag, or are
// "*". The comparison is strong: a weak tag matches nothing (RFC 9110, section 8.8.3.2).
func matchesTag(lines []string, tag string) bool {
	// No tag of Cairn has a blank, so all blanks can go.
	list := strings.Join(strings.Fields(strings.Join(lines, ",")), "")
	return list == "*" || slices.Contains(strings.Split(list, ","), tag)
}

// checkMatch returns the 412 if there are lines of If-Match, and they do not name the tag.
func checkMatch(lines []string, tag string) error {
	if len(lines) == 0 || matchesTag(lines, tag) {
		return nil
	}

	detail := "It has changed since you read it: read it again."
	if strings.Contains(lines[0], "W/") {
		detail = "If-Match compares strongly: send the ETag without W/, which a proxy has put before it."
	}
	return newProblem(http.StatusPreconditionFailed, codeStale, detail)
}

// writeTagged answers with v as JSON and its entity tag, or with 304 if the client has v already.
func writeTagged(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := encodeJSON(v)
	if err != nil {
		return err
	}
	return writeTaggedBytes(w, r, "application/json", entityTag(body), body)
}

// writeTaggedBytes answers with a body and an entity tag, or with 304 if the client has the body
// already.
func writeTaggedBytes(w http.ResponseWriter, r *http.Request, contentType, tag string, body []byte) error {
	w.Header().Set("ETag", tag)
	w.Header().Set("Vary", "Accept-Encoding") // zipped may compress it, and then makes the tag weak
	if isUnchanged(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return writeBytes(w, http.StatusOK, contentType, body)
}

// isUnchanged reports whether the client has the answer with this entity tag already. The
// comparison is weak: a proxy that compresses makes tags weak (RFC 9110, section 13.1.2).
func isUnchanged(r *http.Request, tag string) bool {
	known := r.Header["If-None-Match"]
	isKnown := matchesTag(known, tag) || matchesTag(known, "W/"+tag)
	return isRead(r) && isKnown
}

// isSame reports whether an update would change nothing, because before and after have the same
// JSON. Such an update is not stored, and has no row in the audit log.
func isSame(before, after any) bool {
	a, _ := json.Marshal(before) // never fails for text, numbers, times and lists
	b, _ := json.Marshal(after)
	return bytes.Equal(a, b)
}

// valueOr returns the value that p points to, or other if p is nil.
func valueOr[T any](p *T, other T) T {
	if p != nil {
		return *p
	}
	return other
}
