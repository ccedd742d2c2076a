package main

import (
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// register answers POST /api/v1/auth/register.
func (a *accounts) register(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username    string  `json:"username"`
		Password    string  `json:"password"`
		Email       *string `json:"email"`
		DisplayName string  `json:"display_name"`
	}
	if a.core.cfg.registration == registrationClosed {
		return forbidden(codeRegistrationClosed, "Only an administrator can create accounts here.")
	}
	if err := decodeJSON(r, &in); err != nil {
		return err
	}

	n := newUser{
		username:    in.Username,
		email:       in.Email,
		displayName: in.DisplayName,
		status:      statusActive,
		roles:       []string{memberRole},
	}
	if a.core.cfg.registration == registrationApproval {
		n.status = statusPending
	}

	var v invalid
	checkIdentity(&v, &n.username, n.email, &n.displayName)
	v.check(n.username != "admin", "username", fieldReserved, "is the name of the first administrator")
	err := checkPassword(
		&v, "password", in.Password,
		a.core.cfg.passwordMin, a.breached,
		user{Username: n.username, Email: n.email, DisplayName: n.displayName},
	)
	if err != nil {
		return err
	}

	// A registration stays counted, unless a fault of the server ends it.
	ctx := r.Context()
	counted := newRegistration(callerOf(r).address)
	var hash string
	err = a.throttledHash(ctx, counted, func() (isSuccess bool, err error) {
		hash = a.hasher.hashInSlot(in.Password)
		return false, nil // false: the registration stays counted
	})
	if err != nil {
		return err
	}

	n.passwordHash = &hash
	var created user
	err = a.queueAccessChange(ctx, func(tx pgx.Tx) (err error) {
		created, err = insertUser(ctx, tx, n)
		if err != nil {
			return err
		}
		return audit(ctx, tx, actorOf(r), "user.register", "user:"+created.Username, nil, created)
	})
	err = a.refundIfFault(ctx, counted, err)
	return writeCreated(w, created, "", err)
}

// loginRequest is the body of POST /api/v1/auth/login.
type loginRequest struct {
	Username string `json:"username"`
	Password string `json:"password"`
	OTP      string `json:"otp"` // see checkSecondFactor; the answer of a passkey may also come alone
}

// login answers POST /api/v1/auth/login. An unknown user, a user without a password and a wrong
// password get the same answer. They also take the same time, unless the user's hash was made with
// other parameters. Only a client that knows the password learns that the account is disabled or
// pending, or has a second factor.
func (a *accounts) login(w http.ResponseWriter, r *http.Request, in loginRequest) error {
	found, err := a.checkCredentials(r, in.Username, in.Password, nil, in.OTP)
	if err == nil {
		err = a.openSession(w, r, found, in.Password)
	}
	return a.auditLoginRefusal(r, found, err)
}

// auditLoginRefusal audits a login that ended with err, if err is a refusal. It returns err, or the
// error of the audit log. found is the user, or the zero value for an unknown one.
func (a *accounts) auditLoginRefusal(r *http.Request, found passwordRecord, err error) error {
	refused := problemIn(err)
	if refused == nil {
		return err
	}

	// A 429 and a 503 are no refusals.
	isRefusal := refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden
	if !isRefusal {
		return err
	}

	target := ""
	if found.Username != "" {
		target = "user:" + found.Username
	}

	// Being asked for the code is no failure, and no throttle counts it. Many of these answers
	// share an audit row.
	if err == errOTPRequired {
		asked := tally{
			action:  "session.otp_required",
			target:  target,
			address: callerOf(r).network(),
		}
		a.failures.add(asked, 1)
		return err
	}

	// The audit log must have every failed guess.
	ctx, cancel := lastMoment(r.Context())
	defer cancel()
	code := map[string]any{"code": refused.code}
	auditErr := audit(ctx, a.core.db, actorOf(r), "session.login_refused", target, nil, code)
	if auditErr != nil {
		return auditErr
	}
	return err
}

// openSession opens a session for a user whose credentials were checked, and answers. A user who is
// not active is refused. On a page, it first ends the session of the cookie that the browser has.
// If that fails, no session is opened. password is empty if an earlier step checked it.
func (a *accounts) openSession(w http.ResponseWriter, r *http.Request, found passwordRecord, password string) error {
	if found.Status == statusPending {
		return forbidden(codeAccountPending, "The account waits for an administrator's approval.")
	}
	if found.Status != statusActive {
		return forbidden(codeAccountDisabled, "The account is disabled.")
	}

	inBrowser := callerOf(r).inBrowser
	if inBrowser {
		if err := a.endBrowserSession(r); err != nil {
			return err
		}
	}

	idle, longest := a.lifetimes(r)
	sess, u, err := createSession(r.Context(), a.core.db, actorOf(r), found, device(r), idle, longest)
	if err != nil {
		return err
	}
	a.rehash(r, found, password)

	if inBrowser {
		a.writeSessionCookie(w, r, u, sess)
		return nil
	}
	return a.writeTokens(w, u, sess)
}

// writeTokens answers with an access token and sets the refresh cookie.
func (a *accounts) writeTokens(w http.ResponseWriter, u user, sess session) error {
	now := a.core.now()
	expires := now.Add(a.core.cfg.accessTTL)
	if sess.SessionExpiresAt.Before(expires) {
		expires = sess.SessionExpiresAt
	}

	ring := a.core.keys.Load()
	access := ring.signAccessToken(u.ID, uuidText(sess.SessionID), now, expires)
	refresh := ring.signer().signRefresh(sess.SessionID, sess.Generation)
	left := sess.SessionExpiresAt.Sub(now)
	maxAge := max(1, int(left.Round(time.Second).Seconds()))
	a.setCookie(w, refreshCookieKind, refresh, maxAge)

	return writeJSON(w, http.StatusOK, struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int64  `json:"expires_in"` // seconds
		User        user   `json:"user"`
	}{
		AccessToken: access,
		TokenType:   "Bearer",
		ExpiresIn:   expires.Unix() - now.Unix(),
		User:        u,
	})
}

// refresh answers POST /api/v1/auth/refresh: it exchanges the cookie's token for the next one (see
// rotateSession).
func (a *accounts) refresh(w http.ResponseWriter, r *http.Request) error {
	cookie, err := r.Cookie(a.cookieName(refreshCookieKind))
	if err != nil {
		return unauthorized(codeRefreshTokenMissing, "There is no refresh cookie. Sign in.")
	}

	// An invalid cookie stays: it may be valid once the right key file is in place.
	id, generation, err := a.core.keys.Load().verifyRefresh(cookie.Value)
	if err != nil {
		return unauthorized(codeRefreshTokenInvalid, "The refresh cookie is invalid. Sign in.")
	}

	sess, err := rotateSession(r.Context(), a.core.db, id, generation, actorOf(r), a.core.cfg)
	if refusal := problemIn(err); refusal != nil && refusal.status == http.StatusUnauthorized {
		a.setCookie(w, refreshCookieKind, "", -1) // the session has ended
	}
	if err != nil {
		return err
	}

	found, err := a.users.get(r.Context(), a.core.db, sess.UserID, sess.accessVersions)
	if err != nil {
		return err
	}
	return a.writeTokens(w, found.user, sess.session)
}

// logout answers POST /api/v1/auth/logout: it ends the sessions that the refresh cookies and the
// access token name. A cookie of any generation will do: the holder of an old one could end the
// session with a refresh, too.
func (a *accounts) logout(w http.ResponseWriter, r *http.Request) error {
	// A cookie or token that is not valid names no session.
	ids := []string{}
	for _, cookie := range r.CookiesNamed(a.cookieName(refreshCookieKind)) {
		id, _, err := a.core.keys.Load().verifyRefresh(cookie.Value)
		if err == nil {
			ids = append(ids, uuidText(id))
		}
	}
	if token, ok := bearerToken(r); ok {
		claims, err := a.core.keys.Load().verifyAccessToken(token, a.core.now(), a.core.cfg.sessionMax)
		if err == nil {
			ids = append(ids, claims.SessionID)
		}
	}

	// A logout of nothing does not need the database.
	if len(ids) > 0 {
		const condition = `s.id = ANY (@ids::uuid[])`
		named := pgx.NamedArgs{"ids": ids}
		_, err := endSessionsWhere(r.Context(), a.core.db, actorOf(r), "session.logout", condition, named)
		if err != nil {
			return err
		}
	}

	a.setCookie(w, refreshCookieKind, "", -1)
	return writeDone(w, nil)
}

// verifyCaller answers GET /api/v1/auth/verify, which a proxy asks before it passes a request on.
// If the credential holds the permission in the query, the answer names the caller and what the
// credential may do. An API token may do only what it names, so the proxy must name a permission.
// Without a permission in the query, every user with a session who is not suspended is named.
func (a *accounts) verifyCaller(w http.ResponseWriter, r *http.Request) error {
	if callerOf(r).inBrowser {
		if err := a.checkProxiedOrigin(r); err != nil {
			return err
		}
	}

	p := principalOf(r)
	permission := optional(r.URL.Query(), "permission")
	switch {
	case permission == nil && p.kind == "token":
		return forbidden(codePermissionRequired,
			"An API token is accepted here only with ?permission=, and only if it names that permission.")
	case permission == nil && p.isSuspended():
		return errSecondFactorMissing
	case permission != nil && !p.holds(*permission):
		return p.lacks(*permission)
	}

	w.Header().Set("X-Cairn-User", p.user.Username)
	w.Header().Set("X-Cairn-User-Id", p.user.ID)
	w.Header().Set("X-Cairn-Permissions", strings.Join(p.permissions, ","))
	return writeDone(w, nil)
}
