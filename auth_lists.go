package main

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// sessionView is a session as lists show it.
type sessionView struct {
	ID         string    `json:"id"`
	Device     string    `json:"device"` // the client's User-Agent
	Address    string    `json:"address"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"` // the last refresh or, within five minutes, use by a browser
	ExpiresAt  time.Time `json:"expires_at"`
	Current    bool      `json:"current"`
}

// listOwnSessions answers GET /api/v1/auth/sessions.
func (a *accounts) listOwnSessions(w http.ResponseWriter, r *http.Request) error {
	return a.writeSessions(w, r, principalOf(r).user.ID)
}

// writeSessions answers with the live sessions of a user, newest first.
func (a *accounts) writeSessions(w http.ResponseWriter, r *http.Request, userID string) error {
	const query = `
		SELECT
			id::text,
			device,
			address,
			created_at,
			rotated_at AS last_used_at,
			least(idle_expires_at, expires_at) AS expires_at,
			id::text = $2 AS current
		FROM sessions
		WHERE user_id = $1
			AND ended_at IS NULL
			AND idle_expires_at > now()
			AND expires_at > now()
			AND (created_at, id) < ($3::text::timestamptz, $4::text::uuid)
		ORDER BY created_at DESC, sessions.id DESC
		LIMIT $5`

	first := []string{"infinity", noUUID}
	key := func(v sessionView) []string {
		return []string{v.CreatedAt.Format(time.RFC3339Nano), v.ID}
	}
	current := principalOf(r).credentialID
	return writeRows(a.core, w, r, first, key, "list sessions", query, userID, current)
}

// listOwnTokens answers GET /api/v1/auth/tokens.
func (a *accounts) listOwnTokens(w http.ResponseWriter, r *http.Request) error {
	return a.writeAPITokens(w, r, principalOf(r).user.ID)
}

// writeAPITokens answers with a user's unexpired API tokens in the order of their names.
func (a *accounts) writeAPITokens(w http.ResponseWriter, r *http.Request, userID string) error {
	list := func(after []string, limit int) ([]apiToken, error) {
		return listAPITokens(r.Context(), a.core.db, userID, after[0], limit)
	}
	key := func(t apiToken) []string { return []string{t.Name} }
	return writeList(a.core, w, r, []string{""}, list, key)
}

// listAPITokens returns up to limit of a user's unexpired API tokens after a name, in the order of
// names.
func listAPITokens(ctx context.Context, q querier, userID, after string, limit int) ([]apiToken, error) {
	const query = `
		SELECT ` + apiTokenColumns + `
		FROM api_tokens
		WHERE user_id = $1
			AND name > $2
			AND expires_at > now()
		ORDER BY name
		LIMIT $3`

	return collect[apiToken](ctx, q, "list API tokens", query, userID, after, limit)
}

// listAllTokens answers GET /api/v1/tokens with the unexpired API tokens of all users, in the order
// in which they expire.
func (a *accounts) listAllTokens(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT t.*, u.username
		FROM (
			SELECT ` + apiTokenColumns + `,
				user_id::text
			FROM api_tokens
			WHERE expires_at > now()
				AND (expires_at, api_tokens.id) > ($1::text::timestamptz, $2::text::uuid)
			ORDER BY expires_at, api_tokens.id
			LIMIT $3
		) t
		JOIN users u ON u.id = t.user_id::uuid
		ORDER BY t.expires_at, t.id::uuid`

	type ownedToken struct {
		apiToken
		UserID   string `json:"user_id"`
		Username string `json:"username"`
	}
	first := []string{"-infinity", noUUID}
	key := func(t ownedToken) []string {
		return []string{t.ExpiresAt.Format(time.RFC3339Nano), t.ID}
	}
	return writeRows(a.core, w, r, first, key, "list all API tokens", query)
}

// ofUser returns a handler that calls write with the id of the user of the path.
func (a *accounts) ofUser(write func(http.ResponseWriter, *http.Request, string) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		u, err := a.pathUser(r)
		if err != nil {
			return err
		}
		return write(w, r, u.ID)
	}
}

// listRoles answers GET /api/v1/roles in the order of names: all roles, or the one of that name.
func (a *accounts) listRoles(w http.ResponseWriter, r *http.Request) error {
	list := func(after []string, limit int) ([]role, error) {
		only := optional(r.URL.Query(), "name")
		return listRoles(r.Context(), a.core.db, only, after[0], limit)
	}
	key := func(r role) []string { return []string{r.Name} }
	return writeList(a.core, w, r, []string{""}, list, key)
}

// listRoles returns up to limit roles after a name, in the order of names. With only it returns at
// most the role of that name, in any case.
func listRoles(ctx context.Context, q querier, only *string, after string, limit int) ([]role, error) {
	const query = `
		SELECT ` + roleColumns + `
		FROM roles r
		WHERE r.name > $1
			AND ($3::text IS NULL OR r.name = lower($3))
		ORDER BY r.name
		LIMIT $2`

	roles, err := collect[role](ctx, q, "list roles", query, after, limit, only)
	for i, r := range roles {
		roles[i].Permissions = effectivePermissions(r.Declared, []string{r.Name}, r.Permissions)
	}
	return roles, err
}

// listPermissions answers GET /api/v1/permissions with every permission and what it allows.
func (a *accounts) listPermissions(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT
			name,
			meaning,
			true AS declared
		FROM declared_permissions
		ORDER BY name`
	declared, err := collect[permissionView](r.Context(), a.core.db, "list permissions", query)
	if err != nil {
		return err
	}

	answer := map[string]any{
		"items":       append(builtInPermissions(), declared...),
		"next_cursor": nil,
	}
	return writeJSON(w, http.StatusOK, answer)
}

// getMe answers GET /api/v1/auth/me.
func (a *accounts) getMe(w http.ResponseWriter, r *http.Request) error {
	type shown struct {
		Kind      string    `json:"kind"`
		ID        string    `json:"id"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	p := principalOf(r)

	return writeJSON(w, http.StatusOK, struct {
		user
		SecondFactorRequired bool     `json:"second_factor_required"`
		Permissions          []string `json:"permissions"`
		Credential           shown    `json:"credential"`
	}{
		user:                 p.user,
		SecondFactorRequired: p.secondFactorRequired,
		Permissions:          p.permissions,
		Credential: shown{
			Kind:      p.kind,
			ID:        p.credentialID,
			ExpiresAt: p.expiresAt,
		},
	})
}

// passkey is a passkey of a user.
type passkey struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	CredentialID []byte     `json:"credential_id"` // the authenticator's name of the key
	CreatedAt    time.Time  `json:"created_at"`
	LastUsedAt   *time.Time `json:"last_used_at"`
}

// passkeyColumns are the columns of a passkey.
const passkeyColumns = `
	id::text AS id,
	name,
	credential_id,
	created_at,
	last_used_at`

// listOwnPasskeys answers GET /api/v1/auth/passkeys, the oldest first.
func (a *accounts) listOwnPasskeys(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT ` + passkeyColumns + `
		FROM passkeys
		WHERE user_id = $1
		ORDER BY created_at, id`
	list, err := collect[passkey](r.Context(), a.core.db, "list passkeys", query, principalOf(r).user.ID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"items": list, "next_cursor": nil})
}

// device returns the client's User-Agent, reduced to printable ASCII and at most 200 characters.
func device(r *http.Request) string {
	printable := func(c rune) rune {
		if c < ' ' || c > '~' {
			return -1 // dropped
		}
		return c
	}
	text := strings.Map(printable, r.UserAgent())
	return text[:min(len(text), 200)]
}

// apiToken is a token for scripts, without its secret.
type apiToken struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	Permissions []string   `json:"permissions"` // a request may use those that the owner holds then
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   time.Time  `json:"expires_at"`
	LastUsedAt  *time.Time `json:"last_used_at"` // may be up to a minute too early
}

// apiTokenColumns are the columns of an API token.
const apiTokenColumns = `
	id::text AS id,
	name,
	permissions,
	created_at,
	expires_at,
	last_used_at`
