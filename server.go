package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// server is the whole service. It makes the components, has the route table and serves requests. It
// alone knows all components.
type server struct {
	core          *core
	accounts      *accounts
	announcements *announcements
	catalogue     *catalogue
	analyzer      *analyzer
	console       *console
	operations    *operations
	mux           *http.ServeMux
	table         map[string]route // the route table, by method and path

	warnedForwarded atomic.Bool // the warning about X-Forwarded-For from an untrusted loopback was logged
}

// paged are the query parameters of every list.
const paged = "limit cursor"

// routes returns the route table: every endpoint, who may call it and how long it may take. It
// serves requests, is printed by "cairn routes", and drives the authorization tests. "cairn routes"
// builds the table with nil components, so building it must not read their fields.
//
// A row has two or three lines:
//
//  1. the path, and who may call the route: a requirement (public …, in http.go) or a permission
//     (userManage …, in accounts.go);
//  2. the handler, its class (quick …, in http_limits.go) and, for a change, the largest body
//     (small …, in http.go);
//  3. the query parameters, if the route takes any.
//
// A handler without withBody takes no body, or decodes it itself, because the body is optional or
// has defaults. A body that no handler takes is read and ignored.
func (s *server) routes() []route {
	api := s.apiRoutes()
	return slices.Concat(
		api,
		pageRoutes(s.console),
		formRoutes(s.console, api),
	)
}

// apiRoutes returns the rows of the API.
func (s *server) apiRoutes() []route {
	return slices.Concat(
		operationRoutes(s.operations),
		authRoutes(s.accounts),
		administrationRoutes(s.accounts),
		messageRoutes(s.announcements),
		datasetRoutes(s.catalogue),
		analysisRoutes(s.analyzer),
		stacRoutes(s.catalogue),
	)
}

// authRoutes returns the rows of the caller's own account.
func authRoutes(a *accounts) []route {
	return []route{
		changes("POST /api/v1/auth/register", public,
			a.register, hashing, small),
		changes("POST /api/v1/auth/login", public,
			withBody(a.login), hashing, small),
		changes("POST /api/v1/auth/refresh", refreshCookie,
			a.refresh, quick, small),
		changes("POST /api/v1/auth/logout", public,
			a.logout, quick, small),

		reads("/api/v1/auth/me", signedIn,
			a.getMe, quick),
		changes("PATCH /api/v1/auth/me", ownSession,
			withBody(a.updateMe), hashing, small),
		changes("PUT /api/v1/auth/password", ownSession,
			withBody(a.changePassword), hashing, small),
		changes("POST /api/v1/auth/password-reset", public,
			withBody(a.resetPassword), hashing, small),

		changes("POST /api/v1/auth/totp", ownSession,
			withBody(a.createTOTP), hashing, small),
		changes("POST /api/v1/auth/totp/confirm", ownSession,
			withBody(a.enableTOTP), quick, small),
		changes("DELETE /api/v1/auth/totp", ownSession,
			withBody(a.deleteOwnTOTP), hashing, small),

		reads("/api/v1/auth/passkeys/challenge", public,
			a.getChallenge, light),
		reads("/api/v1/auth/passkeys", ownSession,
			a.listOwnPasskeys, quick),
		changes("POST /api/v1/auth/passkeys", ownSession,
			withBody(a.createOwnPasskey), hashing, small),
		changes("DELETE /api/v1/auth/passkeys/{id}", ownSession,
			withBody(a.endOwnPasskey), hashing, small),

		reads("/api/v1/auth/sessions", ownSession,
			a.listOwnSessions, quick,
			paged),
		changes("DELETE /api/v1/auth/sessions", ownSession,
			a.endOwnSessions, quick, small),
		changes("DELETE /api/v1/auth/sessions/{id}", ownSession,
			a.endOwnSessions, quick, small),

		reads("/api/v1/auth/tokens", ownSession,
			a.listOwnTokens, quick,
			paged),
		changes("POST /api/v1/auth/tokens", ownSession,
			withBody(a.createOwnToken), hashing, small),
		changes("DELETE /api/v1/auth/tokens", ownSession,
			a.endOwnTokens, quick, small),
		changes("DELETE /api/v1/auth/tokens/{id}", ownSession,
			a.endOwnTokens, quick, small),

		reads(verifyPath, signedIn,
			a.verifyCaller, quick,
			"permission"),
	}
}

// administrationRoutes returns the rows of users, roles, permissions and the audit log.
func administrationRoutes(a *accounts) []route {
	return []route{
		reads("/api/v1/users", userManage,
			a.listUsers, slow,
			paged, "q username status role"),
		changes("POST /api/v1/users", userManage,
			a.createUser, quick, medium),
		reads("/api/v1/users/{id}", userManage,
			a.getUser, quick),
		changes("PATCH /api/v1/users/{id}", userManage,
			withBody(a.updateUser), quick, medium),
		changes("DELETE /api/v1/users/{id}", userManage,
			a.deleteUser, quick, medium),

		changes("PUT /api/v1/users/{id}/roles", userManage,
			withBody(a.replaceUserRoles), quick, medium),
		changes("POST /api/v1/users/{id}/roles", userManage,
			withBody(a.addUserRole), quick, medium),
		changes("DELETE /api/v1/users/{id}/roles/{name}", userManage,
			a.removeUserRole, quick, medium),
		changes("POST /api/v1/users/{id}/password-reset", userManage,
			a.createPasswordReset, quick, medium),
		changes("DELETE /api/v1/users/{id}/totp", userManage,
			a.deleteTOTPOfUser, quick, medium),

		reads("/api/v1/users/{id}/sessions", userManage,
			a.ofUser(a.writeSessions), quick,
			paged),
		changes("DELETE /api/v1/users/{id}/sessions", userManage,
			a.endSessionsOfUser, quick, medium),
		changes("DELETE /api/v1/users/{id}/sessions/{session}", userManage,
			a.endSessionsOfUser, quick, medium),

		reads("/api/v1/users/{id}/tokens", userManage,
			a.ofUser(a.writeAPITokens), quick,
			paged),
		changes("DELETE /api/v1/users/{id}/tokens", userManage,
			a.endTokensOfUser, quick, medium),
		changes("DELETE /api/v1/users/{id}/tokens/{token}", userManage,
			a.endTokensOfUser, quick, medium),
		reads("/api/v1/tokens", userManage,
			a.listAllTokens, quick,
			paged),

		reads("/api/v1/permissions", userManage,
			a.listPermissions, quick),
		// These three are slow, because they read all API tokens: one may name the permission.
		changes("POST /api/v1/permissions", roleManage,
			withBody(a.declarePermission), slow, medium),
		changes("PATCH /api/v1/permissions/{name}", roleManage,
			withBody(a.updatePermission), slow, medium),
		changes("DELETE /api/v1/permissions/{name}", roleManage,
			a.removePermission, slow, medium,
			"force"),

		reads("/api/v1/roles", userManage,
			a.listRoles, quick,
			paged, "name"),
		changes("POST /api/v1/roles", roleManage,
			withBody(a.createRole), quick, medium),
		reads("/api/v1/roles/{id}", userManage,
			a.getRole, quick),
		changes("PATCH /api/v1/roles/{id}", roleManage,
			withBody(a.updateRole), bulk, medium),
		changes("DELETE /api/v1/roles/{id}", roleManage,
			a.deleteRole, bulk, medium,
			"reassign"),

		reads("/api/v1/audit", auditRead,
			a.listAudit, slow,
			paged, "actor credential action target request_id since until"),
	}
}

// buildMux builds the mux from the route table.
func (s *server) buildMux() {
	s.mux = http.NewServeMux()
	s.table = map[string]route{}
	s.console.call = s.callAPI
	s.operations.counts = []*routeCounts{{}} // row 0 counts requests that match no route

	for i, rt := range s.routes() {
		pattern := rt.method + " " + rt.path
		s.table[pattern] = rt

		counts := &routeCounts{method: rt.method, path: rt.path}
		s.operations.counts = append(s.operations.counts, counts)

		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer := w.(*responseWriter) // ServeHTTP passes nothing else
			answer.route = rt.path
			answer.row = i + 1
			answer.routed = true

			if err := s.call(rt, answer, r); err != nil {
				s.core.writeProblem(answer, err)
			}
		})
	}
}

// ServeHTTP answers every request. It gives the request an id, refuses it if checkTarget does, and
// writes one log line. serveRoute (server_routes.go) passes the request to the mux, and so to call.
// If no route matches, it answers 404 or 405.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.core.now()
	c := s.newCaller(r)
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))

	answer := &responseWriter{
		ResponseWriter: w,
		requestID:      c.requestID,
		basic:          offersBasic(r),
		slots:          c.slots,
	}
	if wantsPage(r) {
		answer.page = func(p *problem) { s.console.writeErrorPage(answer, r, nil, p) }
	}
	s.setHeaders(answer)

	// The line is written even if the connection is cut with a panic.
	defer func() {
		took := s.core.now().Sub(start)
		s.operations.counts[answer.row].count(answer.status, took)

		s.core.log.Info("request",
			"id", c.requestID,
			"user", actorOf(r).name,
			"method", r.Method,
			"route", answer.route,
			"status", answer.status,
			"ms", float64(took.Microseconds())/1000,
			"address", c.address,
			s.proxyID(r))
	}()

	if err := s.checkTarget(r); err != nil {
		s.core.writeProblem(answer, err)
	} else {
		s.serveRoute(answer, r)
	}
}

// newCaller returns the caller of a request. Only the address of the caller is known yet. The
// function authorize does nothing until admit (auth_access.go) replaces it. admit does so for every
// route except the public ones and that of the refresh cookie.
func (s *server) newCaller(r *http.Request) *caller {
	c := &caller{
		requestID:   rand.Text(),
		address:     s.clientAddress(r),
		releaseBody: func() {},
		authorize:   func(context.Context) error { return nil },
	}
	c.slots = newSlots(s.core.limits, c.network())
	return c
}

// setHeaders sets the headers that every answer has.
func (s *server) setHeaders(w *responseWriter) {
	h := w.Header()
	h.Set("X-Request-Id", w.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")

	if s.core.isHTTPS {
		h.Set("Strict-Transport-Security", "max-age=31536000") // RFC 6797; a year
	}
}

// checkTarget refuses a request for another host, or for a path that the mux would redirect. It
// refuses an unsafe request, which may change something, from a page of another origin. A search by
// POST changes nothing: it passes if CAIRN_CORS_ORIGINS names its origin (see isShared).
func (s *server) checkTarget(r *http.Request) error {
	// Monitors ask for these two by the address of the machine.
	isProbe := r.URL.Path == "/health" || r.URL.Path == "/metrics"
	if !isProbe && !s.core.cfg.isOwnHost(r.Host) {
		return newProblem(http.StatusMisdirectedRequest, codeWrongHost,
			"This service has another host name: use the one in CAIRN_BASE_URL.")
	}

	if s.core.origins.Check(r) != nil && !s.core.isShared(r) {
		return errCrossOrigin
	}

	isClean := path.Clean(r.URL.Path) == r.URL.Path
	isLandingPage := r.URL.Path == stacPath+"/" // some clients of STAC end it with a slash
	if !isClean && !isLandingPage {
		return errNoPath
	}
	return nil
}

// shortRead is the time limit up to which a read is completed even if its client leaves.
const shortRead = 5 * time.Second

// call runs the route's handler within the route's time limit, if the caller may call it. A panic
// is returned as an error.
func (s *server) call(rt route, w *responseWriter, r *http.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()

	if err := checkQuery(r, rt.query); err != nil {
		return err
	}
	if err := checkLength(w, r, rt.maxBody); err != nil {
		return err
	}

	// A change, such as a logout, is completed even if the client leaves. So is a short read: to
	// cancel its statement would close the connection to the database.
	ctx := r.Context()
	limit := rt.class.timeout()
	if !isRead(r) || limit <= shortRead {
		ctx = context.WithoutCancel(ctx)
	}

	// A longer answer may take more time than the server's WriteTimeout allows.
	if limit > time.Minute {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + time.Minute))
	}

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r = r.WithContext(ctx)

	// The caller's slots and the memory of the body are given back in any case.
	c := callerOf(r)
	defer func() {
		c.slots.release()
		c.releaseBody()
	}()

	// If admit refuses, its error is answered. withLoginPage adds the address of the login page, to
	// which a proxy can send the browser. keepForm adds a copy of the form, which the login page
	// sends after the login.
	err = s.accounts.admit(rt, w, r)
	switch {
	case err == nil:
		err = rt.handler(w, r)
	case rt.path == verifyPath:
		err = withLoginPage(r, err, s.core.cfg.baseURL)
	default:
		err = s.console.keepForm(rt, w, r, err)
	}

	// auditRefusal returns err as it is.
	return s.accounts.auditRefusal(rt, r, err)
}

// buffered keeps the answer of a handler in memory.
type buffered struct {
	bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (w *buffered) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. The status is not needed: handlers return errors.
func (w *buffered) WriteHeader(int) {}

// callAPI calls the handler of an API route for a page or, as the operator, for a command, and
// returns the answer. For a page it checks the route's own permission. r has the path values of the
// route.
func (s *server) callAPI(r *http.Request, route, query string, body map[string]any) ([]byte, error) {
	rt, isRoute := s.table[route]
	if !isRoute {
		return nil, fmt.Errorf("call %s: there is no such route", route)
	}

	// The route may need slots that the page does not hold yet.
	if err := waitForSlots(r, rt.class); err != nil {
		return nil, err
	}

	// The page and the route may ask for different permissions. The operator may do all.
	if rt.who != public && !callerOf(r).isOperator {
		if err := rt.permit(principalOf(r)); err != nil {
			return nil, err
		}
	}

	// The route gets a request of its own, with the few headers that matter to it.
	inner := r.Clone(r.Context())
	inner.Method = rt.method
	inner.URL = &url.URL{Path: fillPath(r, rt.path), RawQuery: query}
	inner.Header = http.Header{}
	for _, name := range []string{"User-Agent", "If-Match", "Cookie"} {
		inner.Header[name] = r.Header[name]
	}

	inner.Body = http.NoBody
	inner.ContentLength = 0
	if body != nil {
		encoded, err := encodeBody(body)
		if err != nil {
			return nil, err
		}

		inner.Header.Set("Content-Type", "application/json")
		inner.Body = io.NopCloser(bytes.NewReader(encoded))
		inner.ContentLength = int64(len(encoded))
	}

	if err := checkQuery(inner, rt.query); err != nil {
		return nil, err
	}

	answer := &buffered{header: http.Header{}}
	err := rt.handler(answer, inner)
	return answer.Bytes(), err
}

// proxyIDs matches the request ids of proxies that are logged.
var proxyIDs = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// proxyID returns the request id of a trusted proxy, for the log. Without one it returns the zero
// Attr, which is not logged. The id has no other use: many proxies pass on what the client sent.
func (s *server) proxyID(r *http.Request) slog.Attr {
	id := r.Header.Get("X-Request-Id")

	if s.core.cfg.trusts(peerAddress(r.RemoteAddr)) && proxyIDs.MatchString(id) {
		return slog.String("proxy_id", id)
	}
	return slog.Attr{}
}

// clientAddress returns the client's address: the other end of the connection. Behind trusted
// proxies it is the last address in X-Forwarded-For that is not one of theirs.
func (s *server) clientAddress(r *http.Request) netip.Addr {
	address := peerAddress(r.RemoteAddr)
	forwarded := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	if forwarded == "" {
		return address
	}

	// Anybody may send the header. Without trust it means nothing.
	if !s.core.cfg.trusts(address) {
		if address.IsLoopback() && s.warnedForwarded.CompareAndSwap(false, true) {
			s.core.log.Warn("X-Forwarded-For ignored: CAIRN_TRUSTED_PROXIES does not name the proxy on this machine")
		}
		return address
	}

	// Each proxy adds the address before it at the end, so the list is read from there.
	for _, hop := range slices.Backward(strings.Split(forwarded, ",")) {
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}

		address = next.Unmap().WithZone("")
		if !s.core.cfg.trusts(address) {
			break
		}
	}

	return address
}
