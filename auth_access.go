package main

import (
	"net/http"
	"strings"
)

// access says who may call a route. It is one of the constants below or the name of a permission.
type access string

// The accesses that are not the name of a permission.
const (
	public        access = "public"         // anyone
	refreshCookie access = "refresh cookie" // anyone; the handler itself demands a valid refresh cookie
	signedIn      access = "signed in"      // a session or an API token
	ownSession    access = "session"        // a session, not an API token
	ownToken      access = "API token"      // an API token, not a session
)

// holds returns the access for callers whose session or API token holds the permission.
func holds(permission string) access { return access(permission) }

// handler answers a request or returns an error. If it has written part of an answer before the
// error, the connection is cut.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is one row of the route table.
type route struct {
	method  string
	path    string
	who     access
	handler handler
	query   []string // the query parameters it takes; any other is refused
	pace    pace     // how long it may take
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
