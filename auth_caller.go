package main

import (
	"context"
	"net/http"
	"net/netip"
)

// caller is the sender of a request, as far as it is known.
type caller struct {
	requestID  string
	address    netip.Addr
	credential credential
	inBrowser  bool       // signs in on a page, or the credential is a browser's session cookie
	principal  *principal // nil on public routes, and before authorize has found it
	leave      func()     // gives back the caller's place: see callerLimit
	dropBody   func()     // gives back the place of the request's body
}

// network returns the name under which the caller's network has its places.
func (c *caller) network() string { return clientNetwork(c.address).String() }

// callerKey is the key of the caller in a request's context.
type callerKey struct{}

// callerOf returns the caller that ServeHTTP put into the request.
func callerOf(r *http.Request) *caller { return r.Context().Value(callerKey{}).(*caller) }

// principalOf returns the signed-in caller, or nil on a public route.
func principalOf(r *http.Request) *principal { return callerOf(r).principal }

// inPlace runs do in one of the caller's places. It is for handlers that gave their place back
// before and now ask the database again.
func (s *server) inPlace(r *http.Request, p pace, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.Context(), p.limit())
	defer cancel()
	leave, err := s.places.enter(ctx, principalOf(r).User.ID)
	if err != nil {
		return err
	}
	defer leave()
	return do(ctx)
}
