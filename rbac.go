package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The permissions. Each guards the routes that name it in the route table.
const (
	userManage         = "user.manage"
	roleManage         = "role.manage"
	adminSystemMessage = "admin.system_message"
	datasetRead        = "dataset.read"
	datasetAnalyze     = "dataset.analyze"
	datasetManage      = "dataset.manage"
	auditRead          = "audit.read"
	metricsRead        = "metrics.read"
)

// permissions lists every permission in the order it is shown.
func permissions() []string {
	return []string{userManage, roleManage, adminSystemMessage, datasetRead, datasetAnalyze, datasetManage, auditRead, metricsRead}
}

// The built-in roles.
const (
	adminRole  = "admin"  // holds every permission
	memberRole = "member" // given at registration
)

// principal is a signed-in caller: who, by which credential, and what he may do now. It does not change
// once loaded, and may be shared by requests.
type principal struct {
	User         user
	Kind         string // "session" or "token"
	CredentialID string
	ExpiresAt    time.Time // of the access token or the API token
	Permissions  []string  // that the credential may use: for an API token some of the user's
	owned        []string  // that the user holds

	reload   func(ctx context.Context, q querier) (*principal, error) // reads it again; errToken where it is no longer good
	until    time.Time                                                // by our clock: from then on it has to be loaded again
	me       []byte                                                   // the answer of GET /api/v1/auth/me
	usedNote atomic.Int64                                             // when the use of an API token was last written, in Unix seconds
}

// holds says whether the principal may do what needs the permission.
func (p *principal) holds(permission string) bool {
	return slices.Contains(p.Permissions, permission)
}

// lacks is the 403 of a principal who does not hold the permission.
func (p *principal) lacks(permission string) error {
	code, detail := "permission_missing", "This needs the permission "+permission+"."
	if slices.Contains(p.owned, permission) {
		code, detail = "token_scope", "You hold the permission "+permission+", but this API token does not."
	}
	return &problem{status: http.StatusForbidden, code: code, detail: detail, permission: permission}
}

// effectivePermissions is what a user with these roles holds: all with the role admin, else the
// stored grants; names that the code does not know count as not held.
func effectivePermissions(roles, grants []string) []string {
	all := permissions()
	if slices.Contains(roles, adminRole) {
		return all
	}
	return slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(grants, p) })
}

// The 401 of a client that showed no credential, and of one that did: it learns that it is no longer good, and
// nothing of why.
var (
	errNotSignedIn  = &problem{status: http.StatusUnauthorized, code: "not_signed_in", detail: "This needs an access token: Authorization: Bearer …"}
	errInvalidToken = &problem{status: http.StatusUnauthorized, code: "invalid_token", detail: "The token is not good, or no longer: sign in again."}
)

// authenticate finds out who sent the request, in the common case without a query, or returns the 401.
func (s *server) authenticate(r *http.Request) (*principal, error) {
	token, shown := bearerToken(r)
	method := r.Method
	if original := r.Header.Get("X-Original-Method"); original != "" && r.URL.Path == verifyPath {
		method = original // a proxy asks with GET, whatever it is asked itself
	}
	if !shown && (method == http.MethodGet || method == http.MethodHead) && len(r.Header["Authorization"]) == 1 {
		// HTTP Basic, for programs that can do no other: an API token as the password, never the account's.
		if _, password, ok := r.BasicAuth(); ok {
			token, shown = password, true
			if !strings.HasPrefix(token, apiTokenPrefix) {
				return nil, errInvalidToken
			}
		}
	}
	if !shown {
		return nil, errNotSignedIn
	}
	var p *principal
	var err error
	if strings.HasPrefix(token, apiTokenPrefix) {
		p, err = s.tokenPrincipal(r.Context(), token)
	} else {
		p, err = s.sessionPrincipal(r.Context(), token)
	}
	if errors.Is(err, errToken) {
		return nil, errInvalidToken
	}
	return p, err
}

// sessionPrincipal returns whose access token it is, or errToken. The signature is checked each time.
func (s *server) sessionPrincipal(ctx context.Context, token string) (*principal, error) {
	payload, err := s.keys.Load().openAccess(token)
	if err != nil {
		return nil, err
	}
	return s.principals.get(token, func() (*principal, error) {
		claims, err := readClaims(payload, s.now())
		if err != nil {
			return nil, err
		}
		p, err := getSessionPrincipal(ctx, s.db, claims.SessionID, claims.Subject)
		if err != nil {
			return nil, err
		}
		p.ExpiresAt = time.Unix(claims.ExpiresAt, 0).UTC()
		return p, nil
	})
}

// tokenPrincipal returns whose API token it is, or errToken.
func (s *server) tokenPrincipal(ctx context.Context, token string) (*principal, error) {
	hash, err := hashAPIToken(token)
	if err != nil {
		return nil, err
	}
	p, err := s.principals.get(string(hash), func() (*principal, error) { return getTokenPrincipal(ctx, s.db, hash) })
	if err != nil {
		return nil, err
	}
	now, noted := s.now().Unix(), p.usedNote.Load()
	if now-noted >= 60 && p.usedNote.CompareAndSwap(noted, now) {
		return p, noteTokenUse(ctx, s.db, p.CredentialID)
	}
	return p, nil
}

// bearerToken is the token of the request's only Authorization header (RFC 6750, section 2.1).
func bearerToken(r *http.Request) (token string, ok bool) {
	headers := r.Header["Authorization"]
	if len(headers) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	return token, strings.EqualFold(scheme, "Bearer")
}

// principalColumns are what a principal is made of, of the table users under the name u.
const principalColumns = userColumns + `,
	ARRAY(
		SELECT DISTINCT rp.permission
		FROM user_roles ur
		JOIN role_permissions rp ON rp.role_id = ur.role_id
		WHERE ur.user_id = u.id
	) AS grants`

// getSessionPrincipal returns who holds the session, if it and the user are good; else errToken.
func getSessionPrincipal(ctx context.Context, q querier, sessionID, userID string) (*principal, error) {
	const query = `
		SELECT
			s.id::text AS credential_id,
			NULL::text[] AS narrowed,
			least(s.idle_expires_at, s.expires_at) AS credential_expires_at,
			extract(epoch FROM least(s.idle_expires_at, s.expires_at) - now())::float8 AS seconds_left,` + principalColumns + `
		FROM sessions s
		JOIN users u ON u.id = s.user_id
		WHERE s.id = $1 AND s.user_id = $2 AND s.ended_at IS NULL AND s.idle_expires_at > now()
			AND s.expires_at > now()
			AND u.status = 'active'`
	return onePrincipal(ctx, q, "session", query, sessionID, userID)
}

// onePrincipal collects the principal that a query returns; none is errToken.
func onePrincipal(ctx context.Context, q querier, kind, query string, args ...any) (*principal, error) {
	found, err := collectOne[struct {
		user
		CredentialID        string
		Narrowed            []string // nil: no narrower than the user
		CredentialExpiresAt time.Time
		SecondsLeft         float64 // by the database's clock
		Grants              []string
	}](ctx, q, errToken, "get principal", query, args...)
	if err != nil {
		return nil, err
	}
	p := &principal{
		User:         found.user,
		Kind:         kind,
		CredentialID: found.CredentialID,
		ExpiresAt:    found.CredentialExpiresAt,
		owned:        effectivePermissions(found.Roles, found.Grants),
		until:        time.Time{}.Add(time.Duration(found.SecondsLeft * float64(time.Second))), // from now on: see get
	}
	p.reload = func(ctx context.Context, q querier) (*principal, error) {
		return onePrincipal(ctx, q, kind, query, args...)
	}
	p.Permissions = p.owned
	if found.Narrowed != nil {
		p.Permissions = slices.DeleteFunc(slices.Clone(p.owned), func(held string) bool { return !slices.Contains(found.Narrowed, held) })
	}
	return p, nil
}

// grantRoles gives the user the roles of those names, which are there: see rolePermissions. The caller holds
// lockAccess.
func grantRoles(ctx context.Context, tx pgx.Tx, userID string, names []string) error {
	const query = `
		INSERT INTO user_roles (user_id, role_id)
		SELECT $1, id
		FROM roles
		WHERE name = ANY ($2)
		ON CONFLICT DO NOTHING`
	_, err := execute(ctx, tx, "grant roles", query, userID, names)
	return err
}

// Bounds of the principal cache.
const (
	maxPrincipals  = 10_000
	heartbeatPause = time.Second
	maxSilence     = 5 * time.Second // since the sending of the last heartbeat that came back
)

// principalCache holds principals by the token that was shown. It is told of every change through the
// database (see schema.sql), and drops what the change touches; the instance that made a change drops
// it by itself before it answers. It trusts itself only while it is sure to be told: a heartbeat goes
// out through the pool every second and has to come back over the listening connection.
type principalCache struct {
	instance string
	now      func() time.Time
	start    time.Time
	hits     atomic.Int64
	misses   atomic.Int64

	mu      sync.RWMutex
	entries map[string]*principal
	epoch   uint64    // rises with every change: what was loaded before one is not kept after it
	heard   time.Time // when the newest heartbeat that came back was sent; zero while not listening
}

// newPrincipalCache makes a cache that is off until the first heartbeat comes back.
func newPrincipalCache(now func() time.Time) *principalCache {
	return &principalCache{instance: rand.Text(), now: now, start: now(), entries: map[string]*principal{}}
}

// get returns the principal of a token, loaded if it is not cached.
func (c *principalCache) get(token string, load func() (*principal, error)) (*principal, error) {
	now := c.now()
	c.mu.RLock()
	p, epoch, sure := c.entries[token], c.epoch, now.Sub(c.heard) <= maxSilence
	c.mu.RUnlock()
	if sure && p != nil && now.Before(p.until) {
		c.hits.Add(1)
		return p, nil
	}
	c.misses.Add(1)
	p, err := load()
	if err != nil {
		return nil, err
	}
	p.until = now.Add(p.until.Sub(time.Time{}))
	if p.ExpiresAt.Before(p.until) {
		p.until = p.ExpiresAt
	}
	if p.me, err = renderMe(p); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if sure && epoch == c.epoch {
		if len(c.entries) >= maxPrincipals {
			for other := range c.entries { // any one
				delete(c.entries, other)
				break
			}
		}
		c.entries[token] = p
	}
	return p, nil
}

// drop forgets the principals of these users, sessions and API tokens; an empty id means all.
func (c *principalCache) drop(ids ...string) {
	if len(ids) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	if slices.Contains(ids, "") {
		clear(c.entries)
		return
	}
	for token, p := range c.entries {
		if slices.Contains(ids, p.CredentialID) || slices.Contains(ids, p.User.ID) {
			delete(c.entries, token)
		}
	}
}

// mute is that nothing will be heard: the cache is off until a heartbeat comes back.
func (c *principalCache) mute() {
	c.mu.Lock()
	c.heard = time.Time{}
	c.mu.Unlock()
	c.drop("")
}

// beat sends a heartbeat. It says when it was sent, since our start.
func (c *principalCache) beat(ctx context.Context, q querier) error {
	payload := fmt.Sprintf("heartbeat %s %d", c.instance, c.now().Sub(c.start))
	if _, err := q.Exec(ctx, `SELECT pg_notify('`+principalsChannel+`', $1)`, payload); err != nil {
		return fmt.Errorf("send heartbeat: %w", err)
	}
	return nil
}

// received takes in a notification of principalsChannel.
func (c *principalCache) received(payload string) {
	sent, isHeartbeat := strings.CutPrefix(payload, "heartbeat ")
	if !isHeartbeat {
		c.drop(payload)
		return
	}
	instance, since, _ := strings.Cut(sent, " ")
	offset, err := strconv.ParseInt(since, 10, 64)
	if instance != c.instance || err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = c.start.Add(time.Duration(offset))
}

// renderMe makes the answer of GET /api/v1/auth/me.
func renderMe(p *principal) ([]byte, error) {
	return encodeJSON(struct {
		user
		Permissions []string       `json:"permissions"`
		Credential  map[string]any `json:"credential"`
	}{p.User, p.Permissions, map[string]any{"kind": p.Kind, "id": p.CredentialID, "expires_at": p.ExpiresAt}})
}

// changeAccess runs do in a transaction that holds lockAccess, as every write to users, roles, grants and
// password tokens does. It keeps the last administrator: what leaves nobody who is active, holds the role
// admin and can sign in, where there was one, is a problem 409.
func changeAccess(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockAccess); err != nil {
			return err
		}
		before, err := administratorExists(ctx, tx)
		if err != nil {
			return err
		}
		if err := do(tx); err != nil || !before {
			return err
		}
		after, err := administratorExists(ctx, tx)
		if err == nil && !after {
			err = &problem{status: http.StatusConflict, code: "last_administrator", detail: "Nobody else is an administrator and can sign in."}
		}
		return err
	})
}

// administratorExists says whether somebody who is active and holds the role admin can sign in.
func administratorExists(ctx context.Context, q querier) (exists bool, err error) {
	const query = `
		SELECT EXISTS (
			SELECT
			FROM user_roles ur
			JOIN users u ON u.id = ur.user_id
			WHERE ur.role_id = 1 -- the role admin: its number lets the planner know that few hold it
				AND u.status = 'active' AND u.password_hash IS NOT NULL
		)`
	if err := q.QueryRow(ctx, query).Scan(&exists); err != nil {
		return false, fmt.Errorf("look for an administrator: %w", err)
	}
	return exists, nil
}

// administer is changeAccess for a request that needs the permission, or none if that is empty. Who sent it is read
// again under the lock, so that nobody acts by what was taken from him a moment ago.
func (s *server) administer(r *http.Request, permission string, do func(ctx context.Context, tx pgx.Tx, by actor) error) error {
	ctx, by := r.Context(), actorOf(r)
	return changeAccess(ctx, s.db, func(tx pgx.Tx) error {
		p, err := principalOf(r).reload(ctx, tx)
		switch {
		case errors.Is(err, errToken):
			return errInvalidToken
		case err != nil:
			return err
		case permission != "" && !p.holds(permission):
			return p.lacks(permission)
		}
		by.permissions = p.Permissions
		return do(ctx, tx, by)
	})
}

// covers is the subset rule: nil if the actor may do all that is held, else the 403.
func (a actor) covers(held []string) error {
	for _, permission := range held {
		if !slices.Contains(a.permissions, permission) {
			return &problem{status: http.StatusForbidden, code: "grant_exceeds_own", detail: "This takes the permission " + permission + ", which you do not hold.", permission: permission}
		}
	}
	return nil
}

// rolePermissions is what the roles of those names allow together. One that is not there is a problem 422.
func rolePermissions(ctx context.Context, q querier, names []string) ([]string, error) {
	const query = `
		SELECT coalesce(array_agg(DISTINCT r.name), '{}') AS known,
			coalesce(array_agg(DISTINCT rp.permission) FILTER (WHERE rp.permission IS NOT NULL), '{}') AS grants
		FROM roles r
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE r.name = ANY ($1)`
	possible := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.ContainsRune(name, 0) }) // PostgreSQL takes no NUL
	var known, grants []string
	if err := q.QueryRow(ctx, query, possible).Scan(&known, &grants); err != nil {
		return nil, fmt.Errorf("get permissions of roles: %w", err)
	}
	var v invalid
	for _, name := range names {
		v.check(slices.Contains(known, name), "roles", "unknown", fmt.Sprintf("there is no role %.64q", name))
	}
	return effectivePermissions(known, grants), v.err()
}

// checkTarget returns the user with that id, if the actor may act on him: what a target holds, whatever
// its status, must be no more than what the actor's credential may do. The caller holds lockAccess.
func checkTarget(ctx context.Context, tx pgx.Tx, by actor, id string) (user, error) {
	target, err := getUser(ctx, tx, id)
	if err != nil {
		return user{}, err
	}
	held, err := rolePermissions(ctx, tx, target.Roles)
	if err != nil {
		return user{}, err
	}
	return target, by.covers(held)
}
