package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// server holds everything that a handler needs. The fields above the blank line are set before the
// service starts to serve, and not assigned after that. The fields below it change while it serves;
// each has its own lock or is atomic.
type server struct {
	cfg           config
	log           *slog.Logger
	database      *database
	db            *pgxpool.Pool           // the database's pool, for all requests
	keys          atomic.Pointer[keyring] // replaced after SIGHUP
	instance      string                  // a random name, to tell instances that share a database apart
	hasher        *passwordHasher
	breached      *breachedPasswords // nil: no list
	analyzer      *analyzer
	users         userCache
	places        *callerLimit // at most half of the pool for one account
	bodies        *callerLimit // bodies in memory for one network
	streams       *callerLimit // streamed answers for one account
	files         *callerLimit // files sent to one account
	fileCalls     *callerLimit // calls of the file system for the contents of one dataset, and of all
	guesses       *callerLimit // one undecided attempt at an account from a network
	expensive     *callerLimit // one expensive request for each caller, and a few in all
	networkPlaces *callerLimit // at most a quarter of the pool for one network, while no account is known
	health        *healthCheck
	life          time.Duration    // how long the instance's lease lasts after a heartbeat
	now           func() time.Time // the clock; a test sets its own
	stopping      context.Context  // ends when the service is told to stop
	hangups       <-chan os.Signal // SIGHUP: reload the key file
	mux           *http.ServeMux
	table         map[string]route   // the route table, by method and path
	pages         *template.Template // of the console
	origins       *http.CrossOriginProtection
	certificate   *certificate // nil: plain HTTP

	counts          []*routeCounts
	sealer          sealer
	refused         tallies     // refused requests, by credential
	tallied         tallies     // other repeated failures
	warnedForwarded atomic.Bool // the warning about X-Forwarded-For from an untrusted loopback was logged
}

// paged are the query parameters of every list.
const paged = "limit cursor"

// routes returns the route table: every endpoint, who may call it and how long it may take. It
// serves requests, is printed by "cairn routes", and drives the authorization tests.
func (s *server) routes() []route {
	api := s.apiRoutes()
	return append(api, s.pageRoutes(func(path, to, fields string, formPage loader, next string, p pace) route {
		to = strings.Replace(to, " ", " /api/v1", 1)
		at := slices.IndexFunc(api, func(rt route) bool { return rt.method+" "+rt.path == to })
		return route{"POST", path, api[at].who, s.act(to, fields, formPage, next), "", p}
	})...)
}

// apiRoutes returns the rows of the API.
func (s *server) apiRoutes() []route {
	return []route{
		{"GET", "/health", public, s.getHealth, "", light},
		{"GET", "/api/v1/ping", public, s.ping, "", light},
		{"GET", "/api/v1/openapi.yaml", public, s.getContract, "", light},
		{"GET", "/metrics", metricsRead, s.getMetrics, "", quick},

		{"POST", "/api/v1/auth/register", public, s.register, "", hashing},
		{"POST", "/api/v1/auth/login", public, s.login, "", hashing},
		{"POST", "/api/v1/auth/refresh", refreshCookie, s.refresh, "", quick},
		{"POST", "/api/v1/auth/logout", public, s.logout, "", quick},
		{"GET", "/api/v1/auth/me", signedIn, s.getMe, "", quick},
		{"PATCH", "/api/v1/auth/me", ownSession, s.updateMe, "", hashing},
		{"PUT", "/api/v1/auth/password", ownSession, s.changePassword, "", hashing},
		{"POST", "/api/v1/auth/password-reset", public, s.resetPassword, "", hashing},
		{"POST", "/api/v1/auth/totp", ownSession, s.createTOTP, "", hashing},
		{"POST", "/api/v1/auth/totp/confirm", ownSession, s.enableTOTP, "", quick},
		{"DELETE", "/api/v1/auth/totp", ownSession, s.deleteTOTP, "", hashing},
		{"GET", "/api/v1/auth/sessions", ownSession, s.listOwnSessions, paged, quick},
		{"DELETE", "/api/v1/auth/sessions", ownSession, s.endOwnSessions, "", quick},
		{"DELETE", "/api/v1/auth/sessions/{id}", ownSession, s.endOwnSessions, "", quick},
		{"GET", "/api/v1/auth/tokens", ownSession, s.listOwnTokens, paged, quick},
		{"POST", "/api/v1/auth/tokens", ownSession, s.createOwnToken, "", hashing},
		{"DELETE", "/api/v1/auth/tokens", ownSession, s.endOwnTokens, "", quick},
		{"DELETE", "/api/v1/auth/tokens/{id}", ownSession, s.endOwnTokens, "", quick},
		{"POST", "/api/v1/auth/tokens/self/renew", ownToken, s.renewOwnToken, "", quick},
		{"GET", verifyPath, signedIn, s.verifyCaller, "permission", quick},

		{"GET", "/api/v1/users", userManage, s.listUsers, paged + " q username status role sort", slow},
		{"POST", "/api/v1/users", userManage, s.createUser, "", quick},
		{"GET", "/api/v1/users/{id}", userManage, s.getUser, "", quick},
		{"PATCH", "/api/v1/users/{id}", userManage, s.updateUser, "", quick},
		{"DELETE", "/api/v1/users/{id}", userManage, s.deleteUser, "", quick},
		{"PUT", "/api/v1/users/{id}/roles", userManage, s.replaceUserRoles, "", quick},
		{"POST", "/api/v1/users/{id}/roles", userManage, s.addUserRole, "", quick},
		{"DELETE", "/api/v1/users/{id}/roles/{name}", userManage, s.removeUserRole, "", quick},
		{"POST", "/api/v1/users/{id}/password-reset", userManage, s.createPasswordReset, "", quick},
		{"DELETE", "/api/v1/users/{id}/totp", userManage, s.deleteTOTPOfUser, "", quick},
		{"GET", "/api/v1/users/{id}/sessions", userManage, s.ofUser(s.writeSessions), paged, quick},
		{"DELETE", "/api/v1/users/{id}/sessions", userManage, s.endSessionsOfUser, "", quick},
		{"DELETE", "/api/v1/users/{id}/sessions/{session}", userManage, s.endSessionsOfUser, "", quick},
		{"GET", "/api/v1/users/{id}/tokens", userManage, s.ofUser(s.writeAPITokens), paged, quick},
		{"DELETE", "/api/v1/users/{id}/tokens", userManage, s.endTokensOfUser, "", quick},
		{"DELETE", "/api/v1/users/{id}/tokens/{token}", userManage, s.endTokensOfUser, "", quick},
		{"GET", "/api/v1/tokens", userManage, s.listAllTokens, paged, quick},
		{"GET", "/api/v1/permissions", userManage, s.listPermissions, "", quick},
		{"POST", "/api/v1/permissions", roleManage, s.declarePermission, "", slow},
		{"PATCH", "/api/v1/permissions/{name}", roleManage, s.updatePermission, "", slow},
		{"DELETE", "/api/v1/permissions/{name}", roleManage, s.removePermission, "force", slow},
		{"GET", "/api/v1/roles", userManage, s.listRoles, paged + " name", quick},
		{"POST", "/api/v1/roles", roleManage, s.createRole, "", quick},
		{"GET", "/api/v1/roles/{id}", userManage, s.getRole, "", quick},
		{"PATCH", "/api/v1/roles/{id}", roleManage, s.updateRole, "", bulk},
		{"DELETE", "/api/v1/roles/{id}", roleManage, s.deleteRole, "reassign", bulk},
		{"GET", "/api/v1/audit", auditRead, s.listAudit,
			paged + " actor credential action target request_id since until", slow},

		{"POST", "/api/v1/system-messages", adminSystemMessage, s.createMessage, "", quick},
		{"GET", "/api/v1/system-messages", adminSystemMessage, s.listMessages(false),
			paged + " q severity state since until", slow},
		{"GET", "/api/v1/system-messages/unread-count", adminSystemMessage, s.countUnread, "", quick},
		{"POST", "/api/v1/system-messages/read-all", adminSystemMessage, s.readAllMessages, "", quick},
		{"GET", "/api/v1/system-messages/{id}", adminSystemMessage, s.getMessage, "", quick},
		{"PATCH", "/api/v1/system-messages/{id}", adminSystemMessage, s.updateMessage, "", quick},
		{"DELETE", "/api/v1/system-messages/{id}", adminSystemMessage, s.deleteMessage, "permanently", quick},
		{"GET", "/api/v1/system-messages/{id}/unread-by", adminSystemMessage, s.listUnreadBy, paged, slow},
		{"POST", "/api/v1/system-messages/{id}/read", adminSystemMessage, s.readMessages, "", quick},
		{"GET", "/api/v1/inbox", inboxRead, s.listMessages(true), paged + " unread", quick},
		{"GET", "/api/v1/inbox/unread-count", inboxRead, s.countUnread, "", quick},
		{"POST", "/api/v1/inbox/read", inboxRead, s.readMessages, "", quick},
		{"POST", "/api/v1/inbox/read-all", inboxRead, s.readAllMessages, "", quick},
		{"POST", "/api/v1/inbox/{id}/read", inboxRead, s.readMessages, "", quick},

		{"GET", "/api/v1/datasets", datasetRead, s.listDatasets, paged + " name", quick},
		{"POST", "/api/v1/datasets", datasetManage, s.createDataset, "", slow},
		{"GET", "/api/v1/datasets/{id}", datasetRead, s.getDataset, "", slow},
		{"PATCH", "/api/v1/datasets/{id}", datasetManage, s.updateDataset, "", bulk},
		{"DELETE", "/api/v1/datasets/{id}", datasetManage, s.deleteDataset, "", bulk},
		{"POST", "/api/v1/datasets/{id}/analyses", datasetAnalyze, s.createAnalysis, "", quick},
		{"GET", "/api/v1/datasets/{id}/analyses", datasetRead, s.listAnalyses, paged, quick},
		{"GET", "/api/v1/datasets/{id}/analyses/{analysis}", datasetRead, s.getAnalysis, "wait", waiting},
		{"GET", "/api/v1/datasets/{id}/analyses/{analysis}/changes", datasetRead, s.listChanges,
			paged + " change", quick},
		{"DELETE", "/api/v1/datasets/{id}/analyses/{analysis}", datasetAnalyze, s.cancelAnalysis, "", bulk},
		{"GET", "/api/v1/datasets/{id}/files", datasetRead, s.listFiles,
			fileFilters + " limit cursor sort total", slow},
		{"GET", "/api/v1/datasets/{id}/files/{file}", datasetRead, s.getFile, "", quick},
		{"GET", "/api/v1/datasets/{id}/footprints.geojson", datasetRead, s.getFootprints,
			fileFilters + " all", streaming},
		{"GET", "/api/v1/datasets/{id}/gaps.geojson", datasetRead, s.getGaps, "", expensive},
		{"GET", "/api/v1/datasets/{id}/coverage.svg", datasetRead, s.getCoverage, "color bbox", expensive},
		{"GET", "/api/v1/datasets/{id}/report", datasetRead, s.getReport, "", expensive},
		{"GET", "/api/v1/datasets/{id}/findings/{code}", datasetRead, s.listFindings, paged, expensive},
		{"GET", "/api/v1/datasets/{id}/accepted-findings", datasetRead, s.listAccepted, paged, quick},
		{"POST", "/api/v1/datasets/{id}/accepted-findings", datasetManage, s.acceptFinding, "", quick},
		{"DELETE", "/api/v1/datasets/{id}/accepted-findings/{accepted}", datasetManage, s.reopenFinding, "", quick},
		{"GET", "/api/v1/datasets/{id}/files.csv", datasetRead, s.getTable, fileFilters + " sort", streaming},
		{"GET", "/api/v1/datasets/{id}/mosaic.vrt", datasetRead, s.getMosaic, "crs resolution source", streaming},
		{"GET", "/api/v1/datasets/{id}/data/{path...}", datasetDownload, s.getContent, "", sending},
		{"GET", "/api/v1/files", datasetRead, s.listFiles, fileFilters + " limit cursor sort total", slow},

		{"GET", stacPath, datasetRead, s.getSTAC, "", quick},
		{"GET", stacPath + "/api", datasetRead, s.getSTACAPI, "", quick},
		{"GET", stacPath + "/conformance", datasetRead, s.getSTACConformance, "", quick},
		{"GET", stacPath + "/collections", datasetRead, s.listCollections, "", expensive},
		{"GET", stacPath + "/collections/{id}", datasetRead, s.getCollection, "", slow},
		{"GET", stacPath + "/collections/{id}/items", datasetRead, s.searchItems, itemFilters, slow},
		{"GET", stacPath + "/collections/{id}/items/{file}", datasetRead, s.getItem, "", quick},
		{"GET", searchPath, datasetRead, s.searchItems, itemFilters + " collections", slow},
		{"POST", searchPath, datasetRead, s.searchItems, "", slow},
	}
}

// messageFields are those of the form of an announcement.
const messageFields = "title body* severity roles[] include_new_users! publish_at@ expires_at@"

// pageRoutes returns the rows of pages and their forms. show reads a page. form returns the row of
// a form at path: it is sent to a route of the API (to, below /api/v1), and whoever may call that
// may send the form. formBody explains the suffixes of the fields. next is the page after it.
func (s *server) pageRoutes(form func(path, to, fields string, formPage loader, next string, p pace) route) []route {
	return []route{
		{"GET", "/{$}", public, s.show(s.homePage), "", quick},
		{"GET", "/console/{file}", public, s.getConsoleFile, "", light},
		{"GET", "/login", public, s.show(s.loginPage), "next done", quick},
		{"POST", "/login", public, s.signInForm, "", hashing},
		{"POST", "/logout", public, s.signOutForm, "", quick},
		{"GET", "/register", public, s.show(s.registerPage), "", quick},
		form("/register", "POST /auth/register", "username password* email? display_name", s.registerPage,
			"/login?done=registered", hashing),
		{"GET", "/set-password", public, s.show(s.passwordPage), "token", quick},
		form("/set-password", "POST /auth/password-reset", "token new_password*", s.passwordPage, "/login?done=reset",
			hashing),

		{"GET", "/inbox", inboxRead, s.show(s.inboxPage), "unread cursor done", quick},
		form("/inbox/{id}/read", "POST /inbox/{id}/read", "", s.inboxPage, "/inbox?done=read", quick),
		form("/inbox/read-all", "POST /inbox/read-all", "up_to#", s.inboxPage, "/inbox?done=read", quick),
		{"GET", "/account", ownSession, s.show(s.accountPage), "done", quick},
		form("/account/name", "PATCH /auth/me", "display_name", s.accountPage, "/account?done=saved", quick),
		form("/account/email", "PATCH /auth/me", "email current_password*", s.accountPage, "/account?done=saved",
			hashing),
		form("/account/password", "PUT /auth/password", "current_password* new_password* end_tokens!", s.accountPage,
			"/account?done=password", hashing),
		form("/account/sessions/end", "DELETE /auth/sessions", "", s.accountPage, "/account?done=ended", quick),
		form("/account/sessions/{id}/end", "DELETE /auth/sessions/{id}", "", s.accountPage, "/account?done=ended",
			quick),
		form("/account/tokens", "POST /auth/tokens", "name permissions[] expires_at@ renewable! current_password*",
			s.accountPage, "", hashing),
		form("/account/tokens/{id}/end", "DELETE /auth/tokens/{id}", "", s.accountPage, "/account?done=ended", quick),
		{"GET", "/account/totp", ownSession, s.show(s.totpPage), "done", quick},
		form("/account/totp", "POST /auth/totp", "current_password*", s.totpPage, "", hashing),
		form("/account/totp/confirm", "POST /auth/totp/confirm", "otp", s.totpPage, "", quick),
		form("/account/totp/end", "DELETE /auth/totp", "current_password* otp", s.totpPage, "/account/totp?done=ended",
			hashing),

		{"GET", "/messages", adminSystemMessage, s.show(s.messagesPage), "q severity state cursor done", slow},
		form("/messages", "POST /system-messages", messageFields, s.messagePage, "/messages?done=saved", slow),
		{"POST", "/messages/preview", adminSystemMessage, s.previewMessage, "", slow},
		{"GET", "/messages/new", adminSystemMessage, s.show(s.messagePage), "", quick},
		{"GET", "/messages/{id}", adminSystemMessage, s.show(s.messagePage), "", slow},
		form("/messages/{id}", "PATCH /system-messages/{id}", messageFields, s.messagePage, "/messages?done=saved",
			slow),
		{"POST", "/messages/{id}/preview", adminSystemMessage, s.previewMessage, "", slow},
		form("/messages/{id}/retract", "DELETE /system-messages/{id}", "", s.messagePage, "/messages?done=saved", slow),
		{"GET", "/users", userManage, s.show(s.usersPage), "q status role sort cursor done", slow},
		form("/users", "POST /users", "username email? display_name roles[]", s.usersPage, "", slow),
		{"GET", "/users/{id}", userManage, s.show(s.userPage), "done", quick},
		form("/users/{id}", "PATCH /users/{id}", "display_name email status", s.userPage, "/users/{id}?done=saved",
			quick),
		form("/users/{id}/roles", "PUT /users/{id}/roles", "roles[]", s.userPage, "/users/{id}?done=saved", quick),
		form("/users/{id}/password-reset", "POST /users/{id}/password-reset", "", s.userPage, "", quick),
		form("/users/{id}/sessions/end", "DELETE /users/{id}/sessions", "", s.userPage, "/users/{id}?done=ended",
			quick),
		form("/users/{id}/tokens/end", "DELETE /users/{id}/tokens", "", s.userPage, "/users/{id}?done=ended", quick),
		form("/users/{id}/totp/end", "DELETE /users/{id}/totp", "", s.userPage, "/users/{id}?done=ended", quick),
		form("/users/{id}/delete", "DELETE /users/{id}", "", s.userPage, "/users?done=deleted", quick),
		{"GET", "/roles", userManage, s.show(s.rolesPage), "cursor done", quick},
		form("/roles", "POST /roles", "name description permissions[]", s.rolesPage, "/roles?done=saved", quick),
		form("/roles/{id}", "PATCH /roles/{id}", "permissions[]", s.rolesPage, "/roles?done=saved", bulk),
		form("/roles/{id}/totp", "PATCH /roles/{id}", "requires_totp!", s.rolesPage, "/roles?done=saved", bulk),
		form("/roles/{id}/delete", "DELETE /roles/{id}", "", s.rolesPage, "/roles?done=deleted", bulk),
		form("/permissions", "POST /permissions", "name meaning", s.rolesPage, "/roles?done=saved", slow),
		form("/permissions/{name}/delete", "DELETE /permissions/{name}", "", s.rolesPage, "/roles?done=deleted", slow),
		{"GET", "/audit", auditRead, s.show(s.auditPage), "actor action target request_id since until cursor", slow},

		{"GET", "/datasets", datasetRead, s.show(s.datasetsPage), "cursor done", quick},
		form("/datasets", "POST /datasets", "name path description", s.datasetsPage,
			"/datasets/{new}?done=added", slow),
		{"GET", "/datasets/{id}", datasetRead, s.show(s.datasetPage), "bbox move at.x at.y point done", slow},
		form("/datasets/{id}", "PATCH /datasets/{id}", "name description", s.datasetPage,
			"/datasets/{id}?done=saved", bulk),
		form("/datasets/{id}/delete", "DELETE /datasets/{id}", "", s.datasetPage, "/datasets?done=deleted", bulk),
		{"GET", "/datasets/{id}/files", datasetRead, s.show(s.filesPage),
			"q status warnings path point sort cursor", slow},
		form("/datasets/{id}/analyses", "POST /datasets/{id}/analyses", "force!", s.datasetPage,
			"/datasets/{id}/analyses/{new}?done=started", slow),
		{"GET", "/datasets/{id}/analyses/{analysis}", datasetRead, s.show(s.analysisPage), "change cursor done", slow},
		form("/datasets/{id}/analyses/{analysis}/cancel", "DELETE /datasets/{id}/analyses/{analysis}", "",
			s.analysisPage,
			"/datasets/{id}/analyses/{analysis}?done=canceled", bulk),
		{"GET", "/datasets/{id}/report", datasetRead, s.show(s.reportPage), "cursor done", expensive},
		form("/datasets/{id}/accepted", "POST /datasets/{id}/accepted-findings", "code path? note", s.reportPage,
			"/datasets/{id}/report?done=saved", expensive),
		form("/datasets/{id}/accepted/{accepted}/reopen", "DELETE /datasets/{id}/accepted-findings/{accepted}", "",
			s.reportPage, "/datasets/{id}/report?done=saved", expensive),
	}
}

// buildMux builds the mux from the route table.
func (s *server) buildMux() {
	s.mux, s.table, s.pages = http.NewServeMux(), map[string]route{}, parsePages(s.cfg.passwordMin)
	s.origins = http.NewCrossOriginProtection()
	s.counts = []*routeCounts{{}} // for requests that match no route
	for i, rt := range s.routes() {
		s.table[rt.method+" "+rt.path] = rt
		s.counts = append(s.counts, &routeCounts{method: rt.method, path: rt.path})
		s.mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
			answer := w.(*responseWriter) // ServeHTTP passes nothing else
			answer.route, answer.row, answer.routed = rt.path, i+1, true
			err := s.call(rt, answer, r)
			if err == errNotFound {
				err = notFound(rt.path, r)
			}
			if err != nil {
				s.writeProblem(answer, err)
			}
		})
	}
}

// ServeHTTP answers every request. It gives the request an id, refuses it if a page of another
// origin sent it, finds its route and writes one log line.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.now()
	c := &caller{requestID: s.requestID(r), address: s.clientAddress(r), leave: func() {}, dropBody: func() {}}
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
	answer := &responseWriter{ResponseWriter: w, requestID: c.requestID, basic: offersBasic(r)}
	h := answer.Header()
	h.Set("X-Request-Id", c.requestID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if s.certificate != nil {
		h.Set("Strict-Transport-Security", "max-age=31536000") // RFC 6797; a year
	}
	if wantsPage(r) {
		answer.page = func(p *problem) { s.writeErrorPage(answer, r, nil, p) }
	}
	defer func() {
		user := actorOf(r).name
		took := s.now().Sub(start)
		s.counts[answer.row].count(answer.status, took)
		s.log.Info("request", "id", c.requestID, "user", user, "method", r.Method, "route", answer.route,
			"status", answer.status, "ms", float64(took.Microseconds())/1000, "address", c.address)
	}()

	switch err := s.origins.Check(r); {
	case !s.cfg.isOwnHost(r.Host) && r.URL.Path != "/health" && r.URL.Path != "/metrics":
		s.writeProblem(answer, newProblem(http.StatusMisdirectedRequest, "wrong_host",
			"This service has another host name: use the one in CAIRN_BASE_URL."))
	case err != nil:
		s.writeProblem(answer, errCrossOrigin)
	case r.Method == http.MethodOptions && r.RequestURI == "*": // about the server (RFC 9110, section 9.3.7)
		answer.routed = true
		answer.WriteHeader(http.StatusNoContent)
	case path.Clean(r.URL.Path) != r.URL.Path && r.URL.Path != stacPath+"/": // the mux would redirect
		s.writeProblem(answer, errNoPath)
	default:
		if r.URL.Path == stacPath+"/" { // some clients of STAC end its root with a slash
			r.URL.Path = stacPath
		}
		s.mux.ServeHTTP(answer, r)
		if !answer.routed {
			// The mux answered 404, or 405 with Allow, and responseWriter dropped its text.
			h.Del("Content-Type")
			err := error(errNoPath)
			if answer.status == http.StatusMethodNotAllowed {
				detail := "This path does not take " + r.Method + "; it takes " + h.Get("Allow") + "."
				err = newProblem(answer.status, "method_not_allowed", detail)
			}
			answer.status = 0
			s.writeProblem(answer, err)
		}
	}
}

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
	ctx, limit := r.Context(), rt.pace.limit()
	if !isRead(r) || limit <= hashing.limit() {
		// A change, such as a logout, is completed even if the client leaves. So is a short read:
		// to cancel its statement would close the connection to the database.
		ctx = context.WithoutCancel(ctx)
	}
	if limit > time.Minute { // more than the server's WriteTimeout may allow
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + time.Minute))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r = r.WithContext(ctx)
	c := callerOf(r)
	defer func() {
		c.leave()
		c.dropBody()
	}()
	if err = s.authorize(rt, w, r); err == nil {
		err = s.takePlace(rt, r)
	}
	if err == nil {
		err = rt.handler(w, r)
	} else if rt.path == verifyPath {
		err = withLoginPage(r, err, s.cfg.baseURL)
	}
	return s.auditRefusal(rt, r, err)
}

// authorize returns an error unless the caller may call the route. It reads the body before it asks
// the database: a slow body must not delay the request between this check and the change.
func (s *server) authorize(rt route, w http.ResponseWriter, r *http.Request) (err error) {
	c, ctx := callerOf(r), r.Context()
	isPublic := rt.who == public || rt.who == refreshCookie
	if !isPublic {
		c.credential, err = s.readCredential(r, rt.isPage())
		if err == errNotSignedIn && (isRead(r) || rt.isPage()) { // never on an unsafe route of the API
			c.credential, err = s.readSessionCookie(r)
			c.inBrowser = err == nil
			if err == nil && rt.path == verifyPath {
				err = s.checkProxiedOrigin(r)
			}
		}
		if err != nil {
			return err
		}
	}
	if err := s.receiveBody(w, r); err != nil || isPublic {
		return err
	}
	if c.credential.tokenHash == nil {
		c.leave, err = s.places.enter(ctx, c.credential.Subject)
	} else { // the owner of an API token is not known yet
		c.leave, err = s.networkPlaces.enter(ctx, c.network())
	}
	if err != nil {
		return err
	}
	return s.identify(rt, r)
}

// identify finds the caller's principal and checks that it may call the route.
func (s *server) identify(rt route, r *http.Request) error {
	c, ctx := callerOf(r), r.Context()
	p, err := getPrincipal(ctx, s.db, &s.users, c.credential)
	if err == errInvalidToken && c.credential.tokenHash != nil {
		err = cmp.Or(s.tallyToken(ctx, c), err)
	}
	if err != nil {
		return err
	}
	c.principal = p
	switch {
	case !p.noteUse:
	case c.inBrowser:
		err = noteSessionUse(ctx, s.db, p.CredentialID)
	case p.Kind == "token":
		err = noteTokenUse(ctx, s.db, c.credential.tokenHash)
	}
	if err != nil {
		s.log.Warn("last use not stored", "id", c.requestID, "credential", p.Kind, "error", err)
	}
	return rt.permit(p)
}

// bodyTimeout is how long a body may take to arrive.
const bodyTimeout = 10 * time.Second

// receiveBody reads the request's body into memory, at most maxBody bytes, within bodyTimeout and
// the route's time limit. Until the request ends, the body keeps a place among those of its
// network. A body of GET or HEAD has no meaning (RFC 9110, section 9.3.1) and is dropped.
func (s *server) receiveBody(w http.ResponseWriter, r *http.Request) (err error) {
	if r.ContentLength == 0 { // with HTTP/2, r.Body is not http.NoBody then
		r.Body = http.NoBody
		return nil
	}
	c, ctx := callerOf(r), r.Context()
	if c.dropBody, err = s.bodies.enter(ctx, c.network()); err != nil {
		return err
	}
	response := http.NewResponseController(w)
	deadline, _ := ctx.Deadline()
	response.SetReadDeadline(time.Now().Add(min(bodyTimeout, time.Until(deadline))))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		response.SetReadDeadline(time.Time{}) // it would end the connection's later requests
	}
	if isRead(r) {
		r.Body = http.NoBody
		c.dropBody()
		return nil
	}
	if err != nil {
		return bodyError(err)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return nil
}

// errCrossOrigin is the 403 for a request that a page of another origin sent.
var errCrossOrigin = newProblem(http.StatusForbidden, "cross_origin",
	"This request came from a page of another origin.")

// checkProxiedOrigin checks the request about which a proxy asks verifyPath. It returns
// errCrossOrigin if that request may change something and a page of another origin sent it: the
// browser may have added the session cookie by itself. If no method is named, it may be a change.
func (s *server) checkProxiedOrigin(r *http.Request) error {
	methods := slices.Concat(r.Header["X-Original-Method"], r.Header["X-Forwarded-Method"])
	if len(methods) == 0 {
		methods = []string{http.MethodPost}
	}
	for _, method := range methods {
		proxied := r.Clone(r.Context())
		proxied.Method = method
		if s.origins.Check(proxied) != nil {
			return errCrossOrigin
		}
	}
	return nil
}

// takePlace exchanges the caller's place for the one that the route's pace needs. A request with a
// session keeps its place, unless the pace has a limit of its own. If the wait takes more than a
// second, takePlace identifies the caller again: the credential may have been revoked.
func (s *server) takePlace(rt route, r *http.Request) (err error) {
	c, ctx, began := callerOf(r), r.Context(), time.Now()
	limit := map[pace]*callerLimit{expensive: s.expensive, streaming: s.streams, sending: s.files}[rt.pace]
	switch {
	case rt.pace == light: // it needs no place
	case c.principal == nil:
		c.leave, err = s.networkPlaces.enter(ctx, c.network())
	case limit != nil || c.principal.Kind == "token":
		c.leave()
		c.leave, err = cmp.Or(limit, s.places).enter(ctx, c.principal.User.ID)
	}
	if err != nil || c.principal == nil || time.Since(began) < time.Second {
		return err
	}
	return s.identify(rt, r)
}

// auditRefusal returns err. It audits the refusal of a signed-in caller, and counts attempts that
// were throttled: logins, registrations and others alike.
func (s *server) auditRefusal(rt route, r *http.Request, err error) error {
	p, ok := errors.AsType[*problem](err)
	if !ok {
		return err
	}
	c, by := callerOf(r), actorOf(r)
	isRefusal := p.status == http.StatusForbidden || p.code == "last_administrator"
	switch {
	case p.code == "too_many_attempts":
		s.tallied.add(tally{action: "login.throttled"}, 1) // without the network: a flood has too many
		return err
	case c.principal == nil || rt.who == public || !isRefusal:
		return err
	case rt.path == verifyPath: // a proxy asks for each request, so these are only counted
		s.tallied.add(tally{"verify.refused", "user:" + by.name, by.credential, c.network()}, 1)
		return err
	case s.refused.add(tally{"request.refused", "user:" + by.name, by.credential, ""}, 1) > maxRefusals:
		return err
	}
	ctx, cancel := lastMoment(r.Context()) // also if the client left
	defer cancel()
	path := cleanText([]byte(r.URL.Path), maxNameText)
	after := map[string]string{"code": p.code, "permission": p.permission, "path": path}
	if auditErr := audit(ctx, s.db, by, "request.refused", rt.method+" "+rt.path, nil, after); auditErr != nil {
		s.log.Error("refusal not audited", "id", c.requestID, "error", auditErr)
	}
	return err
}

// requestIDs matches the request ids that are accepted from a proxy.
var requestIDs = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID returns the id that a trusted proxy gave the request, else a new one.
func (s *server) requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); s.cfg.trusts(remoteAddress(r)) && requestIDs.MatchString(id) {
		return id
	}
	return rand.Text()
}

// clientAddress returns the client's address: the other end of the connection or, behind trusted
// proxies, the last address in X-Forwarded-For that is not one of theirs.
func (s *server) clientAddress(r *http.Request) netip.Addr {
	address := remoteAddress(r)
	forwarded := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	if forwarded == "" {
		return address
	}
	if !s.cfg.trusts(address) {
		if address.IsLoopback() && s.warnedForwarded.CompareAndSwap(false, true) {
			s.log.Warn("X-Forwarded-For ignored: CAIRN_TRUSTED_PROXIES does not name the proxy on this machine")
		}
		return address
	}
	for _, hop := range slices.Backward(strings.Split(forwarded, ",")) {
		next, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if address = next.Unmap().WithZone(""); !s.cfg.trusts(address) {
			break
		}
	}
	return address
}

// remoteAddress returns the other end of the connection, or the zero Addr for a Unix socket.
func remoteAddress(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	return ap.Addr().Unmap().WithZone("")
}

// healthCheck is the latest probe of the database for GET /health.
type healthCheck struct {
	limit *callerLimit // its one place guards the fields below
	began time.Time
	err   error
}

// getHealth answers GET /health: 200 if the database answers, else 503. One request at a time asks
// the database, so that a flood of requests leaves connections for probes and heartbeats. A request
// shares the result of a probe that began after it arrived, unless the probe ran out of time.
func (s *server) getHealth(w http.ResponseWriter, r *http.Request) error {
	arrived, h := time.Now(), s.health
	leave, err := h.limit.enter(r.Context(), "")
	if err != nil {
		return err
	}
	defer leave()
	if h.began.Before(arrived) || errors.Is(h.err, context.DeadlineExceeded) {
		h.began, h.err = time.Now(), s.database.probe(r.Context())
	}
	if h.err != nil {
		return databaseUnavailable(h.err)
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// ping answers GET /api/v1/ping.
func (s *server) ping(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"message": "pong"})
}

// contract is openapi.yaml, which describes every route.
//
//go:embed openapi.yaml
var contract []byte

// getContract answers GET /api/v1/openapi.yaml.
func (s *server) getContract(w http.ResponseWriter, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, "application/yaml", contract)
}
