package main

import (
	"net/http"
	"strings"
)

// requirement says who may call a route: it is one of the constants below, or a permission.
type requirement string

// The requirements that are not a permission.
const (
	public        requirement = "public"         // anyone
	refreshCookie requirement = "refresh cookie" // anyone; the handler itself demands a valid refresh cookie
	signedIn      requirement = "signed in"      // a session or an API token
	ownSession    requirement = "session"        // a session, not an API token
	ownToken      requirement = "API token"      // an API token, not a session
)

// handler answers a request or returns an error. If it returns an error after it has written part
// of an answer, the connection is cut.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one row of the route table.
type route struct {
	method  string
	path    string
	who     requirement
	handler handler
	query   string // the names of its query parameters, with blanks between; any other is refused
	pace    pace   // how long it may take
}

// permit returns nil if the principal may call the route, else the 403.
func (rt route) permit(p *principal) error {
	switch {
	case rt.who == signedIn, rt.who == ownSession && p.Kind == "session",
		rt.who == ownToken && p.Kind == "token", p.holds(string(rt.who)):
		return nil
	case rt.who == ownSession:
		return newProblem(http.StatusForbidden, "session_required", "An API token cannot do this: sign in.")
	case rt.who == ownToken:
		return newProblem(http.StatusForbidden, "token_required", "Only an API token can do this.")
	default:
		return p.lacks(string(rt.who))
	}
}

// isPage reports whether the route is a page for people, or a form on one. Pages accept the session
// cookie on unsafe methods too.
func (rt route) isPage() bool {
	return !strings.HasPrefix(rt.path, "/api/") && rt.path != "/health" && rt.path != "/metrics"
}
