package main

import (
	"net/http"
	"net/netip"
)

// caller is the sender of a request, as far as it is known.
type caller struct {
	requestID  string
	address    netip.Addr
	credential credential
	principal  *principal // nil on public routes
	leave      func()     // gives back the caller's place: see callerLimit
}

// name returns the name under which the caller's places are counted: that of the user or, on public
// routes, of the network.
func (c *caller) name() string {
	if c.principal != nil {
		return "user " + c.principal.User.ID
	}
	return "network " + clientNetwork(c.address).String()
}

// callerKey is the key of the caller in a request's context.
type callerKey struct{}

// callerOf returns the caller that ServeHTTP put into the request.
func callerOf(r *http.Request) *caller { return r.Context().Value(callerKey{}).(*caller) }

// principalOf returns the signed-in caller, or nil on a public route.
func principalOf(r *http.Request) *principal { return callerOf(r).principal }
