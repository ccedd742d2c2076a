package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// requirement says who may call a route: it is one of the constants below, or a permission.
type requirement string

// The requirements that are not a permission.
const (
	public        requirement = "public"         // anyone
	refreshCookie requirement = "refresh cookie" // anyone; the handler itself demands a valid refresh cookie
	signedIn      requirement = "signed in"      // a session or an API token
	ownSession    requirement = "session"        // a session, not an API token
)

// handler answers a request or returns an error. If it returns an error after it has written part
// of an answer, the connection is cut.
type handler func(w http.ResponseWriter, r *http.Request) error

// withBody returns a handler that decodes the request's JSON object and passes it to do.
func withBody[T any](do func(w http.ResponseWriter, r *http.Request, in T) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var in T
		if err := decodeJSON(r, &in); err != nil {
			return err
		}
		return do(w, r, in)
	}
}

// The largest bodies of requests, in bytes. A route that only reads takes none.
const (
	small  = 16 << 10  // names, passwords and tokens
	medium = 64 << 10  // most
	large  = 256 << 10 // a text of 20,000 characters; in a form, one character may take 12 bytes: %F0%9F%98%80
	huge   = 1 << 20   // an area of 20,000 corners
)

// route is one row of the route table.
type route struct {
	method  string
	path    string
	who     requirement
	handler handler
	query   string // the names of its query parameters, with blanks between; any other is refused
	class   class  // what it needs, and how long it may take
	maxBody int64  // the largest body, in bytes
}

// reads returns the row of a route that only reads. It takes no body.
func reads(path string, who requirement, handler handler, class class, query ...string) route {
	return route{
		method:  http.MethodGet,
		path:    path,
		who:     who,
		handler: handler,
		query:   strings.Join(query, " "),
		class:   class,
	}
}

// changes returns the row of a route that may change something. A body of up to maxBody bytes is
// read, and ignored if the handler takes none. The pattern is the method and the path.
func changes(pattern string, who requirement, handler handler, class class, maxBody int64, query ...string) route {
	method, path, _ := strings.Cut(pattern, " ")
	row := reads(path, who, handler, class, query...)
	row.method = method
	row.maxBody = maxBody
	return row
}

// verifyPath is the route that a proxy asks whether a request may pass.
const verifyPath = "/api/v1/auth/verify"

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
	if err := dec.Decode(v); err != nil {
		return decodingProblem(err)
	}
	return nil
}

// Bounds of a JSON object. They are checked before the object is decoded.
const (
	maxNames     = 64    // names in the object
	maxListItems = 1_000 // items in one of its lists
)

// checkJSON checks that a text is one JSON object with nothing after it. The object has at most
// maxNames names, none of them twice. Names are lower case, as all names of Cairn are. A list among
// the values has at most maxListItems items. checkJSON does not look into inner objects, such as
// the geometry of a search. Bodies below /auth, of users, of roles and of messages have none.
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

// consistsOf reports whether text is not empty and has only characters of the set. Trim leaves
// nothing exactly if all characters are of the set.
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

// pathUUID returns the path value, or "" if the route has none of that name. For text that is no
// canonical UUID it returns noUUID.
func pathUUID(r *http.Request, name string) string {
	id := r.PathValue(name)
	if id == "" || canonicalUUID.MatchString(id) {
		return id
	}
	return noUUID
}

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

// optional returns the value of a query parameter or of a field of a form, or nil if it is absent.
func optional(query map[string][]string, name string) *string {
	if values := query[name]; len(values) > 0 {
		return &values[0]
	}
	return nil
}
