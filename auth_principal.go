package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// credential is the proof of identity in a request: the claims of a verified access token, or an
// API token.
type credential struct {
	sessionID string
	userID    string
	expiresAt time.Time
	tokenHash []byte // SHA-256 of an API token; nil for an access token
}

// principal is a signed-in caller: who it is, by which credential, and what that credential may do
// now.
type principal struct {
	User         user
	Kind         string // "session" or "token"
	CredentialID string // the id of the session or of the API token
	ExpiresAt    time.Time
	Permissions  []string // what the credential may do
	owned        []string // what the user may do; an API token may be narrower
	noteUse      bool     // no use of the API token's present secret was noted in the last minute
	rendered     []byte   // the beginning of the answer of GET /auth/me: see renderMe
}

// holds reports whether the credential has the permission.
func (p *principal) holds(permission string) bool {
	return slices.Contains(p.Permissions, permission)
}

// lacks returns the 403 for a principal who does not hold the permission.
func (p *principal) lacks(permission string) error {
	code, detail := "permission_missing", "This needs the permission "+permission+"."
	if slices.Contains(p.owned, permission) {
		code, detail = "token_scope", "You hold the permission "+permission+", but this API token does not."
	}
	return &problem{status: http.StatusForbidden, code: code, detail: detail, permission: permission}
}

// The 401 for a request without a credential, and the 401 for one whose credential is not valid.
// The latter does not tell the reason.
var (
	errNotSignedIn = newProblem(http.StatusUnauthorized, "not_signed_in",
		"This needs an access token: Authorization: Bearer …")
	errInvalidToken = newProblem(http.StatusUnauthorized, "invalid_token",
		"The token is invalid or has expired. Sign in again.")
)

// readCredential returns the credential in the request, or the 401. It checks signature and expiry
// of an access token and the checksum of an API token. It does not ask the database.
func (s *server) readCredential(r *http.Request) (credential, error) {
	token, isBearer := bearerToken(r)
	if !isBearer {
		var shown bool
		if token, shown = basicToken(r); !shown {
			return credential{}, errNotSignedIn
		}
	}
	if strings.HasPrefix(token, apiTokenPrefix) {
		hash, err := hashAPIToken(token)
		if err != nil {
			return credential{}, errInvalidToken
		}
		return credential{tokenHash: hash}, nil
	}
	if !isBearer { // only an API token may be given as Basic
		return credential{}, errInvalidToken
	}
	claims, err := s.keys.Load().verifyAccess(token, s.now(), s.cfg.sessionMax)
	if err != nil {
		return credential{}, errInvalidToken
	}
	return credential{claims.SessionID, claims.Subject, time.Unix(claims.ExpiresAt, 0).UTC(), nil}, nil
}

// bearerToken returns the token of the request's only Authorization header (RFC 6750, section 2.1).
func bearerToken(r *http.Request) (token string, shown bool) {
	headers := r.Header["Authorization"]
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	return token, strings.EqualFold(scheme, "Bearer")
}

// searchPath is the route of STAC API that reads with POST.
const searchPath = "/api/v1/stac/search"

// basicToken returns the password of HTTP Basic (RFC 7617), on routes that only read: browsers send
// it by themselves, also from other sites' pages. A proxy asks verifyPath with GET, whatever the
// method of its own request, so there Basic needs headers that name that method, and all must name
// GET or HEAD: a client may add one. The caller must refuse a password that is not an API token.
func basicToken(r *http.Request) (token string, shown bool) {
	methods := []string{r.Method}
	if r.URL.Path == verifyPath {
		methods = slices.Concat(r.Header["X-Original-Method"], r.Header["X-Forwarded-Method"])
	}
	isChange := func(method string) bool {
		return method != http.MethodGet && method != http.MethodHead && r.URL.Path != searchPath
	}
	if len(r.Header["Authorization"]) != 1 || len(methods) == 0 || slices.ContainsFunc(methods, isChange) {
		return "", false
	}
	_, token, shown = r.BasicAuth()
	return token, shown
}

// userAccess is a user and what the user may do, with the versions under which both were read.
type userAccess struct {
	versions    accessVersions
	user        user
	permissions []string
	rendered    []byte // by renderMe
}

// accessVersions are users.version, which changes with the user's row, and access_version, which
// changes with any role, its permissions, its holders, and any declared permission.
type accessVersions struct{ user, access [16]byte }

// userCache remembers users that were read before. A cached user is valid only while the database
// has the same versions; each request asks.
type userCache struct {
	mu    sync.RWMutex
	users map[string]*userAccess // by id
}

// maxCachedUsers bounds the memory of a userCache, to about 10 MB.
const maxCachedUsers = 10_000

// get returns the user from memory if it was read under these versions, else from the database as
// it is now.
func (c *userCache) get(ctx context.Context, q querier, id string, versions accessVersions) (*userAccess, error) {
	c.mu.RLock()
	known := c.users[id]
	c.mu.RUnlock()
	if known != nil && known.versions == versions {
		return known, nil
	}
	found, err := getUserAccess(ctx, q, id)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.users) >= maxCachedUsers {
		clear(c.users)
	}
	c.users[id] = found
	return found, nil
}

// getUserAccess reads a user with the versions under which it was read, or returns errInvalidToken.
func getUserAccess(ctx context.Context, q querier, id string) (*userAccess, error) {
	const query = `
		SELECT ` + userColumns + `,
			ARRAY(
				SELECT rp.permission
				FROM user_roles ur
				JOIN role_permissions rp ON rp.role_id = ur.role_id
				WHERE ur.user_id = u.id
			) AS grants,
			` + declaredPermissions + ` AS declared,
			u.version AS user_version, (SELECT version FROM access_version) AS access_version
		FROM users u
		WHERE u.id = $1`
	found, err := collectOne[struct {
		user
		Grants, Declared           []string
		UserVersion, AccessVersion [16]byte
	}](ctx, q, errInvalidToken, "get access of user", query, id)
	if err != nil {
		return nil, err
	}
	held := effectivePermissions(found.Declared, found.Roles, append(found.Grants, inboxRead))
	a := &userAccess{user: found.user, permissions: held}
	a.versions = accessVersions{found.UserVersion, found.AccessVersion}
	a.rendered, err = renderMe(a.user, a.permissions)
	return a, err
}

// getPrincipal returns who holds the credential and what it may do now, or errInvalidToken if the
// session or API token has ended or expired or its user is not active. Every signed-in request runs
// its statement at least once. Its row also holds the versions under which a cached user is valid.
// So a logout, a disabled user, a removed role and a revoked token act at once on every instance.
func getPrincipal(ctx context.Context, q querier, cache *userCache, c credential) (*principal, error) {
	const versions = `u.version, (SELECT version FROM access_version)`
	const bySession = `
		SELECT ` + versions + `
		FROM sessions s
		JOIN users u ON u.id = s.user_id
		WHERE s.id = $1 AND s.user_id = $2 AND u.status = 'active'
			AND s.ended_at IS NULL AND s.idle_expires_at > now() AND s.expires_at > now()`
	const byToken = `
		SELECT ` + versions + `, u.id::text, t.id::text, t.permissions, t.expires_at,
			t.token_hash = $1 AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		FROM api_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE (t.token_hash = $1 OR (t.former_hash = $1 AND t.former_until > now()))
			AND t.expires_at > now() AND u.status = 'active'`
	var now accessVersions
	var narrowed []string // the permissions of an API token
	var err error
	userID := c.userID
	p := &principal{Kind: "session", CredentialID: c.sessionID, ExpiresAt: c.expiresAt}
	if c.tokenHash == nil {
		err = q.QueryRow(ctx, bySession, c.sessionID, c.userID).Scan(&now.user, &now.access)
	} else {
		p.Kind = "token"
		err = q.QueryRow(ctx, byToken, c.tokenHash).Scan(&now.user, &now.access, &userID, &p.CredentialID, &narrowed,
			&p.ExpiresAt, &p.noteUse)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errInvalidToken
	}
	if err != nil {
		return nil, fmt.Errorf("get principal: %w", err)
	}
	access, err := cache.get(ctx, q, userID, now)
	if err != nil {
		return nil, err
	}
	p.User, p.owned, p.Permissions, p.rendered = access.user, access.permissions, access.permissions, access.rendered
	if p.Kind == "token" {
		isRefused := func(permission string) bool { return !slices.Contains(narrowed, permission) }
		p.Permissions = slices.DeleteFunc(slices.Clone(p.owned), isRefused)
	}
	return p, nil
}
