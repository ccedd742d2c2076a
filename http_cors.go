package main

import (
	"net/http"
	"regexp"
	"slices"
)

// sharedPaths matches the paths that pages of other origins may read: the STAC tree and the
// contents of files.
var sharedPaths = regexp.MustCompile(`^/api/v1/(stac|datasets/[0-9]+/data)(/|$)`)

// isCrossOrigin reports whether Cairn would refuse the request, as one from a page of another
// origin, if it had this method. A method that only reads is never refused.
func (c *core) isCrossOrigin(r *http.Request, method string) bool {
	other := r.Clone(r.Context())
	other.Method = method
	return c.origins.Check(other) != nil
}

// isShared reports whether the request is for a shared path, and CAIRN_CORS_ORIGINS names exactly
// the origin of the page that sent it.
func (c *core) isShared(r *http.Request) bool {
	origin := r.Header["Origin"]
	isNamed := len(origin) == 1 && slices.Contains(c.cfg.corsOrigins, origin[0])
	return isNamed && sharedPaths.MatchString(r.URL.EscapedPath())
}

// share sets the headers by which browsers show the answer to pages of other origins (Fetch
// standard, section 3.2), and answers a preflight. There is no Access-Control-Allow-Credentials: a
// page reads with the API token that somebody gave it, never with the browser's cookies.
func (c *core) share(w *responseWriter, r *http.Request) {
	if len(c.cfg.corsOrigins) == 0 || !sharedPaths.MatchString(r.URL.EscapedPath()) {
		return
	}

	// Caches must not give the answer for one origin to another.
	h := w.Header()
	h.Add("Vary", "Origin")
	if !c.isShared(r) {
		return
	}
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	h.Set("Access-Control-Expose-Headers",
		"ETag, Content-Range, Content-Length, Accept-Ranges, Link, Retry-After, X-Request-Id")

	isPreflight := r.Method == http.MethodOptions && r.Header["Access-Control-Request-Method"] != nil
	if isPreflight {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Range, If-None-Match")
		h.Set("Access-Control-Max-Age", "600")
		w.routed = true
		w.WriteHeader(http.StatusNoContent)
	}
}
