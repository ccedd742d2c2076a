package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// caller is the sender of a request, as far as it is known.
type caller struct {
	requestID  string
	address    netip.Addr
	credential credential
	inBrowser  bool       // a browser that has a session cookie, or gets one with the answer to its login
	principal  *principal // set by authorize or, on a page that is open to all, by recognize; nil before
	slots      *slots     // what the request holds of the limits
	confirmed  int64      // the credential_version that confirmPassword has looked at; 0: it was not called
	isOperator bool       // a command of the operator calls the route within the program; there is no credential

	releaseBody func() // gives back the memory of the body
	// authorize is accounts.authorize for the route of this request. It is called again while the
	// request runs, and fails if the session or the API token has ended meanwhile. An access token
	// may expire meanwhile: that is checked only when the request begins.
	authorize func(ctx context.Context) error
}

// network returns the name under which the caller's network holds slots.
func (c *caller) network() string { return clientNetwork(c.address).String() }

// clientNetwork returns the network that one client has: an IPv4 address or an IPv6 /64.
func clientNetwork(address netip.Addr) netip.Addr {
	network, _ := address.Prefix(min(address.BitLen(), 64)) // fails only for the zero Addr
	return network.Addr()
}

// peerAddress returns the address in the name of a connection's other end, or the zero Addr for a
// Unix socket.
func peerAddress(name string) netip.Addr {
	ap, _ := netip.ParseAddrPort(name)
	return ap.Addr().Unmap().WithZone("")
}

// callerKey is the key of the caller in a request's context.
type callerKey struct{}

// callerOf returns the caller that ServeHTTP put into the request.
func callerOf(r *http.Request) *caller { return r.Context().Value(callerKey{}).(*caller) }

// principalOf returns the caller's principal, or nil if none has been found.
func principalOf(r *http.Request) *principal { return callerOf(r).principal }

// withPoolSlot runs do with a slot of the pool, within the time limit of the class. It is for
// handlers that hold no slot while they send or wait, and now ask the database.
func withPoolSlot(r *http.Request, class class, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.Context(), class.timeout())
	defer cancel()

	c := callerOf(r)
	if err := c.slots.acquirePool(ctx); err != nil {
		return err
	}
	defer c.slots.leavePool()

	return do(ctx)
}

// credential is the proof of identity in a request: the claims of a verified access token or
// session cookie, or the hash of an API token.
type credential struct {
	tokenClaims
	tokenHash []byte // SHA-256 of an API token; nil for a session
}

// principal is a signed-in caller: the user, the credential, and what this credential may do now.
type principal struct {
	*cachedUser
	kind         string // "session" or "token"
	credentialID string // the id of the session or of the API token
	expiresAt    time.Time
	permissions  []string // what the credential may do; an API token may do less than its owner
	lastUseIsDue bool     // the time of the last use has to be stored: see noteTokenUse and noteSessionUse
}

// holds reports whether the credential has the permission.
func (p *principal) holds(permission string) bool {
	return slices.Contains(p.permissions, permission)
}

// errSecondFactorMissing is the 403 for a user who is suspended: see isSuspended.
var errSecondFactorMissing = forbidden(codeSecondFactorMissing,
	"One of your roles requires a second factor. Set one up to use your permissions.")

// The 401 for a request without a credential, and the 401 for one whose credential is not valid.
// errInvalidToken does not tell the reason.
var (
	errNotSignedIn  = unauthorized(codeNotSignedIn, "This needs an access token: Authorization: Bearer TOKEN")
	errInvalidToken = unauthorized(codeInvalidToken, "The token is invalid or has expired. Sign in again.")
)

// The kinds of cookies: that of the refresh token, and that of a browser's session.
const (
	refreshCookieKind = "refresh"
	sessionCookieKind = "session"
)

// cookieName returns the only name under which a cookie of that kind is written and read. The
// prefix __Host- makes browsers insist on Secure, Path=/ and no Domain (RFC 6265bis, section
// 4.1.3.2), so that no other host of the domain can set one.
func (a *accounts) cookieName(kind string) string {
	if a.core.cfg.cookieInsecure {
		return "cairn_" + kind
	}
	return "__Host-cairn_" + kind
}

// setCookie sets a cookie of that kind. maxAge is in seconds; a negative one clears the cookie. A
// session cookie is SameSite=Lax: the browser sends it when a person follows a link from another
// site, but not with a form of another site.
func (a *accounts) setCookie(w http.ResponseWriter, kind, value string, maxAge int) {
	cookie := &http.Cookie{
		Name:     a.cookieName(kind),
		Value:    value,
		Path:     "/",
		MaxAge:   maxAge,
		Secure:   !a.core.cfg.cookieInsecure,
		HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
	if kind == sessionCookieKind {
		cookie.SameSite = http.SameSiteLaxMode
	}

	http.SetCookie(w, cookie)
}

// headerCredential returns the credential in the Authorization header, or the 401. It checks the
// signature and the expiry of an access token, and the checksum of an API token. It does not ask
// the database.
//
// Browsers send stored Basic credentials by themselves, and a page of another site can make a
// browser store them. So on pages and beside a session cookie, Basic is ignored: it counts as
// absent.
func (a *accounts) headerCredential(r *http.Request, onPage bool) (c credential, err error) {
	token, isBearer := bearerToken(r)
	isPresent := isBearer

	hasCookie := len(r.CookiesNamed(a.cookieName(sessionCookieKind))) > 0
	mayBeBasic := !onPage && !hasCookie
	if !isBearer && mayBeBasic {
		token, isPresent = basicToken(r)
	}

	switch {
	case !isPresent:
		return c, errNotSignedIn
	case strings.HasPrefix(token, apiTokenPrefix):
		c.tokenHash, err = hashAPIToken(token)
	case isBearer:
		c.tokenClaims, err = a.core.keys.Load().verifyAccessToken(token, a.core.now(), a.core.cfg.sessionMax)
	default: // only an API token may be given as Basic
		err = errToken
	}
	if err != nil {
		return credential{}, errInvalidToken
	}

	return c, nil
}

// bearerToken returns the token of the request's only Authorization header (RFC 6750, section 2.1).
func bearerToken(r *http.Request) (token string, isPresent bool) {
	headers := r.Header["Authorization"]
	if len(headers) != 1 {
		return "", false
	}

	scheme, token, _ := strings.Cut(headers[0], " ")
	return token, strings.EqualFold(scheme, "Bearer")
}

// searchPath is the route of the STAC API that reads with POST.
const searchPath = "/api/v1/stac/search"

// takesBasic reports whether the request may send an API token as HTTP Basic. Only requests that
// read may: browsers send Basic by themselves, also from other sites' pages. A proxy asks
// verifyPath with GET about requests of every method, so Basic is not taken there.
func takesBasic(r *http.Request) bool {
	isReading := isRead(r) || r.URL.Path == searchPath
	return isReading && r.URL.Path != verifyPath
}

// offersBasic reports whether a 401 offers HTTP Basic. It does not for a page's pictures and
// scripts: a browser would open its own dialog in front of the page.
func offersBasic(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	isDirect := mode == "" || mode == "navigate"
	return isRead(r) && takesBasic(r) && isDirect
}

// basicToken returns the password of HTTP Basic (RFC 7617). headerCredential refuses one that is
// not an API token.
func basicToken(r *http.Request) (token string, isPresent bool) {
	if len(r.Header["Authorization"]) != 1 || !takesBasic(r) {
		return "", false
	}
	_, token, isPresent = r.BasicAuth()
	return token, isPresent
}

// signSessionCookie returns the session cookie of a browser: the ids of the session and of its
// user, the end of the session in Unix seconds, and a MAC over them. It cannot be exchanged for an
// access token or a refresh token.
func (k key) signSessionCookie(sessionID, userID string, expires time.Time) string {
	signed := fmt.Sprintf("%s.%s.%d", sessionID, userID, expires.Unix())
	return signed + "." + encodedMAC(k.browser, signed)
}

// verifySessionCookie returns the credential in a session cookie that one of the keys has signed
// and that is valid at the time now, else errToken.
func (ring *keyring) verifySessionCookie(cookie string, now time.Time) (credential, error) {
	parts := strings.SplitN(cookie, ".", 4)
	if len(parts) != 4 || len(cookie) > maxTokenLength {
		return credential{}, errToken
	}

	expires, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil {
		return credential{}, errToken
	}
	isSigned := ring.isSigned(cookie, func(k key) string {
		return k.signSessionCookie(parts[0], parts[1], time.Unix(expires, 0))
	})
	isExpired := now.Unix() >= expires
	if !isSigned || isExpired {
		return credential{}, errToken
	}

	claims := tokenClaims{
		SessionID: parts[0],
		Subject:   parts[1],
		ExpiresAt: expires,
	}
	return credential{tokenClaims: claims}, nil
}

// readSessionCookie returns the credential in the request's session cookie, or the 401.
func (a *accounts) readSessionCookie(r *http.Request) (credential, error) {
	cookie, err := r.Cookie(a.cookieName(sessionCookieKind))
	if err != nil {
		return credential{}, errNotSignedIn
	}

	c, err := a.core.keys.Load().verifySessionCookie(cookie.Value, a.core.now())
	if err != nil {
		return credential{}, errInvalidToken
	}
	return c, nil
}

// accessVersions are the versions under which a user was read. UserVersion is users.version, which
// changes with the row. AccessVersion is access_version, which changes with any role, its
// permissions or holders, and any declared permission.
type accessVersions struct{ UserVersion, AccessVersion [16]byte }

// versionColumns is SQL for accessVersions. The statement must name the user u, and the table
// access_version a.
const versionColumns = `u.version AS user_version, a.version AS access_version`

// cachedUser is a user with what the user may do, and the versions under which both were read.
type cachedUser struct {
	accessVersions
	user                 user
	secondFactorRequired bool     // one of the user's roles requires a second factor
	userPermissions      []string // what the user may do; a principal may do this or less
}

// isSuspended reports whether the user lacks a second factor that one of the roles requires. No
// role gives a suspended user any permission.
func (u *cachedUser) isSuspended() bool { return u.secondFactorRequired && !u.user.HasSecondFactor() }

// userCache remembers users that were read before. A cached user is valid only while the database
// has the same versions; each request compares them.
type userCache struct {
	mu    sync.RWMutex
	users map[string]*cachedUser // by id
}

// maxCachedUsers bounds the memory of a userCache. A user takes some kilobytes.
const maxCachedUsers = 10_000

// get returns the user from memory if it was read under these versions, else from the database. If
// there is no such user, the error is errInvalidToken.
func (c *userCache) get(ctx context.Context, q querier, id string, versions accessVersions) (*cachedUser, error) {
	const query = `
		SELECT ` + userColumns + `,
			ARRAY(
				SELECT rp.permission
				FROM user_roles ur
				JOIN role_permissions rp ON rp.role_id = ur.role_id
				WHERE ur.user_id = u.id
			) AS grants,
			` + declaredPermissions + ` AS declared,
			EXISTS (
				SELECT FROM user_roles ur JOIN roles r ON r.id = ur.role_id
				WHERE ur.user_id = u.id AND r.requires_second_factor
			) AS second_factor_required,
			` + versionColumns + `
		FROM users u, access_version a
		WHERE u.id = $1`

	c.mu.RLock()
	cached := c.users[id]
	c.mu.RUnlock()
	if cached != nil && cached.accessVersions == versions {
		return cached, nil
	}

	found, err := collectOne[struct {
		user
		accessVersions
		Grants, Declared     []string // the permissions of the user's roles; all declared permissions
		SecondFactorRequired bool
	}](ctx, q, errInvalidToken, "get user and permissions", query, id)
	if err != nil {
		return nil, err
	}

	permissions := effectivePermissions(found.Declared, found.Roles, append(found.Grants, inboxRead))
	cached = &cachedUser{
		accessVersions:       found.accessVersions,
		user:                 found.user,
		secondFactorRequired: found.SecondFactorRequired,
		userPermissions:      permissions,
	}
	if cached.isSuspended() {
		cached.userPermissions = []string{inboxRead} // all else comes from roles
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.users) >= maxCachedUsers {
		clear(c.users)
	}
	c.users[id] = cached
	return cached, nil
}

// getPrincipal returns the principal of a credential. If the session or API token has ended or
// expired, or its user is not active, the error is errInvalidToken.
//
// Every signed-in request runs one of the two statements at least once. The row that it gets has
// the versions under which a cached user is valid. So a logout, a disabled user, a removed role and
// a revoked token act at once on every instance.
//
// Both statements return the same columns. A session names no permissions, and its credential has
// the expiry already ($3).
func (a *accounts) getPrincipal(ctx context.Context, q querier, c credential) (*principal, error) {
	const bySession = `
		SELECT ` + versionColumns + `,
			s.user_id::text,
			s.id::text AS credential_id,
			s.rotated_at < now() - interval '5 minutes' AS is_stale,
			'{}'::text[] AS permissions,
			$3::timestamptz AS expires_at
		FROM sessions s, users u, access_version a -- the last for versionColumns
		WHERE s.id = $1
			AND s.user_id = $2
			AND u.id = $2
			AND u.status = 'active'
			AND s.ended_at IS NULL
			AND s.idle_expires_at > now()
			AND s.expires_at > now()`
	const byToken = `
		SELECT ` + versionColumns + `,
			t.user_id::text,
			t.id::text AS credential_id,
			t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute' AS is_stale,
			t.permissions,
			t.expires_at
		FROM api_tokens t, users u, access_version a
		WHERE t.token_hash = $1
			AND u.id = t.user_id
			AND u.status = 'active'
			AND t.expires_at > now()`

	kind := "session"
	query := bySession
	args := []any{c.SessionID, c.Subject, time.Unix(c.ExpiresAt, 0)}
	if c.tokenHash != nil {
		kind = "token"
		query = byToken
		args = []any{c.tokenHash}
	}

	found, err := collectOne[struct {
		accessVersions
		UserID       string
		CredentialID string
		IsStale      bool
		Permissions  []string
		ExpiresAt    time.Time
	}](ctx, q, errInvalidToken, "get principal", query, args...)
	if err != nil {
		return nil, err
	}

	u, err := a.users.get(ctx, q, found.UserID, found.accessVersions)
	if err != nil {
		return nil, err
	}

	p := &principal{
		cachedUser:   u,
		kind:         kind,
		credentialID: found.CredentialID,
		expiresAt:    found.ExpiresAt,
		permissions:  u.userPermissions,
		lastUseIsDue: found.IsStale,
	}
	// An API token may do what it names and its owner may do. The cached list stays as it is.
	if c.tokenHash != nil {
		isUnnamed := func(permission string) bool {
			return !slices.Contains(found.Permissions, permission)
		}
		p.permissions = slices.DeleteFunc(slices.Clone(u.userPermissions), isUnnamed)
	}
	return p, nil
}
