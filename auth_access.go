package main

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// permit returns nil if the principal may call the route, else the 403. Without a principal it
// returns the 401.
func (rt route) permit(p *principal) error {
	switch {
	case p == nil:
		return errNotSignedIn
	case rt.who == signedIn,
		rt.who == ownSession && p.kind == "session",
		p.holds(string(rt.who)):
		return nil
	case rt.who == ownSession:
		return forbidden(codeSessionRequired, "An API token cannot do this: sign in.")
	default:
		return p.lacks(string(rt.who))
	}
}

// isPage reports whether the route is a page for people, or a form on one. Pages accept the session
// cookie on unsafe methods too.
func (rt route) isPage() bool {
	isOfAPI := strings.HasPrefix(rt.path, "/api/")
	isForMachines := rt.path == "/health" || rt.path == "/metrics"
	return !isOfAPI && !isForMachines
}

// admit returns nil if the caller may call the route, once the request holds what its class needs.
// These are its steps:
//
//  1. readCredential reads the access token, the API token or the cookie, and verifies it without
//     the database.
//  2. If the route takes more than a small body, authorize asks the database whether this caller
//     may send it.
//  3. receiveBody reads the body, which may arrive slowly.
//  4. authorize asks the database, because the caller may have lost a permission meanwhile.
//  5. The request waits for its slots. If it had to wait, authorize asks the database again.
//
// Routes that are public or take the refresh cookie skip step 1, and their authorize does nothing.
func (a *accounts) admit(rt route, w http.ResponseWriter, r *http.Request) (err error) {
	c := callerOf(r)
	if rt.who != public && rt.who != refreshCookie {
		if err := a.readCredential(rt, r); err != nil {
			return err
		}
		c.authorize = func(ctx context.Context) error { return a.authorize(ctx, rt, c) }
	}

	// Unless the route is public, a body that may be large is read only for an account that may
	// send it.
	if rt.maxBody > small {
		if err := c.authorize(r.Context()); err != nil {
			return err
		}
	}

	// releaseBody is not nil, even with an error. server.call calls it.
	c.releaseBody, err = receiveBody(w, r, c.slots, rt.maxBody)
	if err != nil {
		return err
	}
	if err := c.authorize(r.Context()); err != nil {
		return err
	}

	return waitForSlots(r, rt.class)
}

// waitForSlots waits until the request holds the slots that the class needs. The caller's
// credential may have ended during the wait, so authorize asks the database again.
func waitForSlots(r *http.Request, needed class) error {
	c := callerOf(r)
	began := time.Now()
	if err := c.slots.acquire(r.Context(), needed); err != nil {
		return err
	}

	if time.Since(began) > time.Millisecond {
		return c.authorize(r.Context())
	}
	return nil
}

// readCredential reads and verifies the credential in the request. It does not ask the database.
// The session cookie counts on pages and on routes that only read, never on an unsafe route of the
// API, nor for a script of another origin: browsers send Origin with its requests.
func (a *accounts) readCredential(rt route, r *http.Request) (err error) {
	c := callerOf(r)
	c.credential, err = a.headerCredential(r, rt.isPage())

	// isCrossOrigin objects to no read, so it is asked about a POST. The verify route has its own
	// check, checkProxiedOrigin.
	isForeign := r.Header["Origin"] != nil && rt.path != verifyPath && a.core.isCrossOrigin(r, http.MethodPost)
	mayUseCookie := rt.isPage() || isRead(r) && !isForeign

	// A credential in the header decides, even if it is not valid. errNotSignedIn: there is none.
	if err != errNotSignedIn || !mayUseCookie {
		return err
	}

	c.credential, err = a.readSessionCookie(r)
	c.inBrowser = err == nil
	return err
}

// authorize asks the database who the caller is, and returns nil if this principal may call the
// route. It is called again when time has passed, because the session or the API token may have
// ended.
//
// Slots that the request takes afterwards count for the account. Until the account is known, they
// count for the session or, with an API token, for the network. So a credential that has ended
// takes no slot from the account.
func (a *accounts) authorize(ctx context.Context, rt route, c *caller) error {
	isSession := c.credential.tokenHash == nil
	if c.principal == nil && isSession {
		c.slots.owner = "session:" + c.credential.SessionID
	}

	// If the request holds no slot of the pool, it takes one for this question.
	if c.slots.releasePool == nil {
		if err := c.slots.acquirePool(ctx); err != nil {
			return err
		}
		defer c.slots.leavePool()
	}

	// A refused API token may still be in the database: it has expired, or its owner is disabled.
	// Then its use is counted for the audit log.
	p, err := a.getPrincipal(ctx, a.core.db, c.credential)
	if err == errInvalidToken && !isSession {
		if tallyErr := a.tallyToken(ctx, c); tallyErr != nil {
			return tallyErr
		}
	}
	c.principal = p // nil with an error
	if err != nil {
		return err
	}
	c.slots.owner = p.user.ID

	if err := a.storeUse(ctx, c); err != nil {
		a.core.log.Warn("last use not stored", "id", c.requestID, "credential", p.kind, "error", err)
	}
	return rt.permit(p)
}

// storeUse stores that the credential is used now, if that is due.
func (a *accounts) storeUse(ctx context.Context, c *caller) error {
	p := c.principal
	if !p.lastUseIsDue {
		return nil
	}
	if p.kind == "token" {
		return noteTokenUse(ctx, a.core.db, c.credential.tokenHash)
	}
	if c.inBrowser {
		return noteSessionUse(ctx, a.core.db, p.credentialID)
	}
	return nil
}

// errCrossOrigin is the 403 for a request that a page of another origin sent.
var errCrossOrigin = forbidden(codeCrossOrigin, "This request came from a page of another origin.")

// checkProxiedOrigin checks a request with a session cookie, about which a proxy asks verifyPath.
// It returns errCrossOrigin if the request may change something and a page of another origin sent
// it: the browser may have added the cookie by itself.
//
// A request whose method the proxy does not name counts as a change. So does the handshake of a
// WebSocket, although it is a GET. Proxies pass on at least one of its two headers, Upgrade and
// Sec-WebSocket-Version.
func (a *accounts) checkProxiedOrigin(r *http.Request) error {
	methods := slices.Concat(r.Header["X-Original-Method"], r.Header["X-Forwarded-Method"])
	isWebSocket := r.Header["Upgrade"] != nil || r.Header["Sec-Websocket-Version"] != nil

	if len(methods) == 0 || isWebSocket {
		methods = []string{http.MethodPost}
	}
	for _, method := range methods {
		if a.core.isCrossOrigin(r, method) {
			return errCrossOrigin
		}
	}
	return nil
}

// safeNext returns the page that a browser opens after the login: next, without baseURL before it.
// If next is not a path of this service, or could lead to another host, it returns "/".
func safeNext(next, baseURL string) string {
	if rest, ok := strings.CutPrefix(next, baseURL+"/"); ok && baseURL != "" {
		next = "/" + rest
	}

	u, err := url.Parse(next)
	if err != nil || u.Host != "" || u.Scheme != "" {
		return "/"
	}

	// Browsers read \ as / and skip control characters.
	isForbidden := func(c rune) bool { return c == '\\' || isUnsafe(c) }
	isPath := strings.HasPrefix(next, "/") && !strings.HasPrefix(next, "//")
	if !isPath || strings.ContainsFunc(next, isForbidden) {
		return "/"
	}
	return next
}

// loginPathTo returns the path of the login page, which goes on to next.
func loginPathTo(next string) string { return "/login?next=" + url.QueryEscape(next) }

// withLoginPage returns err, a refusal of verifyPath. If it is a 401 and a browser asks for a page,
// the result also has a Location: the login page, to which the proxy sends the browser. The proxy
// names the page that was asked for in X-Original-Uri or X-Forwarded-Uri.
func withLoginPage(r *http.Request, err error, baseURL string) error {
	refused := problemIn(err)
	if refused == nil || refused.status != http.StatusUnauthorized {
		return err
	}

	uri := r.Header.Get("X-Original-Uri")
	if uri == "" {
		uri = r.Header.Get("X-Forwarded-Uri")
	}
	isForPage := strings.Contains(r.Header.Get("Accept"), "text/html")
	if uri == "" || !isForPage {
		return err
	}

	// A copy, because many requests share the problem.
	redirect := *refused
	redirect.location = loginPathTo(safeNext(uri, baseURL))
	return &redirect
}

// maxRefusals is how many refusals of one credential get a row of their own in a minute.
const maxRefusals = 20

// auditRefusal returns err, which may be nil. If it is the refusal of a signed-in caller, it is
// audited. An attempt that was throttled is counted as login.throttled, also if it was no login.
func (a *accounts) auditRefusal(rt route, r *http.Request, err error) error {
	answer := problemIn(err)
	if answer == nil {
		return err
	}

	// All networks share one count. A flood comes from many, and each would get a row.
	if answer.code == codeTooManyAttempts {
		a.failures.add(tally{action: "login.throttled"}, 1)
		return err
	}

	// A public route may have a principal (see recognize), but does not refuse because of it.
	c := callerOf(r)
	by := actorOf(r)
	isAnonymous := c.principal == nil || rt.who == public
	isRefusal := answer.status == http.StatusForbidden || answer.code == codeLastAdministrator
	if isAnonymous || !isRefusal {
		return err
	}

	// A proxy asks about each request of its clients, so these refusals are only counted.
	if rt.path == verifyPath {
		refused := tally{
			action:     "verify.refused",
			target:     "user:" + by.name,
			credential: by.credential,
			address:    c.network(),
		}
		a.failures.add(refused, 1)
		return err
	}

	// The first maxRefusals of a minute get a row each. The rest are counted, and get one row.
	refused := tally{
		action:     "request.refused",
		target:     "user:" + by.name,
		credential: by.credential,
	}
	if a.failures.add(refused, 1) > maxRefusals {
		return err
	}

	// The row is written even if the client has left.
	ctx, cancel := lastMoment(r.Context())
	defer cancel()
	after := map[string]any{
		"code":       answer.code,
		"permission": answer.permission,
		"path":       cleanText([]byte(r.URL.Path), maxNameText), // short, and without unsafe characters
	}
	// A request of the class sending holds no slot of the pool. server.call releases this one.
	auditErr := c.slots.acquirePool(ctx)
	if auditErr == nil {
		auditErr = audit(ctx, a.core.db, by, "request.refused", rt.method+" "+rt.path, nil, after)
	}
	if auditErr != nil {
		a.core.log.Error("refusal not audited", "id", c.requestID, "error", auditErr)
	}
	return err
}

// lacks returns the 403 for a principal that does not hold the permission.
func (p *principal) lacks(permission string) error {
	code := codePermissionMissing
	detail := "This needs the permission " + permission + "."
	if slices.Contains(p.userPermissions, permission) {
		code = codeTokenScope
		detail = "You hold the permission " + permission + ", but this API token does not."
	} else if p.isSuspended() {
		code = errSecondFactorMissing.code
		detail = errSecondFactorMissing.detail
	}

	return &problem{
		status:     http.StatusForbidden,
		code:       code,
		detail:     detail,
		permission: permission,
	}
}
