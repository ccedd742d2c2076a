package main

import (
	"context"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// apiToken is a token for scripts, without its secret.
type apiToken struct {
	ID          string     `json:"id"`
	Name        string     `json:"name"`
	Permissions []string   `json:"permissions"` // of these, a use may do what the owner holds then
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   time.Time  `json:"expires_at"`
	LastUsedAt  *time.Time `json:"last_used_at"` // the true one may be a minute later
}

// apiTokenColumns are the columns of an API token.
const apiTokenColumns = `
	id::text AS id, name, permissions, created_at, expires_at, last_used_at`

// The lifetime of an API token: the default and the maximum.
const (
	defaultTokenTTL = 90 * 24 * time.Hour
	maxTokenTTL     = 366 * 24 * time.Hour
)

// maxTokens is how many API tokens a user may have, so that all of them can be ended within the
// time limit of a request.
const maxTokens = 100

// listOwnTokens answers GET /api/v1/auth/tokens.
func (a *accounts) listOwnTokens(w http.ResponseWriter, r *http.Request) error {
	return a.writeAPITokens(w, r, principalOf(r).User.ID)
}

// writeAPITokens answers with a user's unexpired API tokens in the order of their names.
func (a *accounts) writeAPITokens(w http.ResponseWriter, r *http.Request, userID string) error {
	return writeList(a.core, w, r, []string{""}, func(after []string, limit int) ([]apiToken, error) {
		return listAPITokens(r.Context(), a.core.db, userID, after[0], limit)
	}, func(t apiToken) []string { return []string{t.Name} })
}

// tokenRequest is the body of POST /api/v1/auth/tokens.
type tokenRequest struct {
	confirmation
	Name        string   `json:"name"`
	Permissions []string `json:"permissions"`
	ExpiresAt   *string  `json:"expires_at"`
}

// createOwnToken answers POST /api/v1/auth/tokens. Only this response shows the secret. It needs
// the password and the second factor: the token outlives the session by up to a year.
func (a *accounts) createOwnToken(w http.ResponseWriter, r *http.Request, in tokenRequest) error {
	known, err := knownPermissions(r.Context(), a.core.db)
	if err != nil {
		return err
	}

	var v invalid
	now, expires := a.core.now(), a.core.now().Add(defaultTokenTTL)
	if at := v.time("expires_at", in.ExpiresAt); at != nil {
		expires = *at
	}
	checkAPIToken(&v, known, in.Name, in.Permissions, now, expires)
	if err := v.err(); err != nil {
		return err
	}

	if _, err := a.confirmPassword(r, in.confirmation); err != nil {
		return err
	}

	var created apiToken
	var secret string
	err = a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		if err := by.covers(in.Permissions); err != nil {
			return err
		}
		n := apiToken{Name: in.Name, Permissions: in.Permissions, ExpiresAt: expires}
		created, secret, err = createAPIToken(ctx, tx, by, principalOf(r).User, n)
		return err
	})

	return writeCreated(w, createdToken{created, secret}, "/api/v1/auth/tokens/"+created.ID, err)
}

// createdToken is an API token with its secret. Only one response shows it.
type createdToken struct {
	apiToken
	Token string `json:"token"`
}

// listAllTokens answers GET /api/v1/tokens with the unexpired API tokens of all users, in the order
// in which they expire.
func (a *accounts) listAllTokens(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT t.*, u.username
		FROM (SELECT ` + apiTokenColumns + `, user_id::text FROM api_tokens
			WHERE expires_at > now() AND (expires_at, api_tokens.id) > ($1::text::timestamptz, $2::text::uuid)
			ORDER BY expires_at, api_tokens.id
			LIMIT $3) t
		JOIN users u ON u.id = t.user_id::uuid
		ORDER BY t.expires_at, t.id::uuid`
	type ownedToken struct {
		apiToken
		UserID   string `json:"user_id"`
		Username string `json:"username"`
	}
	first := []string{"-infinity", noUUID}
	key := func(t ownedToken) []string { return []string{t.ExpiresAt.Format(time.RFC3339Nano), t.ID} }
	return writeRows(a.core, w, r, first, key, "list all API tokens", query)
}

// endOwnTokens answers DELETE /api/v1/auth/tokens, and DELETE /api/v1/auth/tokens/{id} for only
// that token.
func (a *accounts) endOwnTokens(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, endOneOrAll(r, "token", "id", func(id *string) (int64, error) {
		return deleteAPITokens(r.Context(), a.core.db, actorOf(r), principalOf(r).User, id)
	}))
}

// checkAPIToken notes what is wrong with a new API token. known is from knownPermissions.
func checkAPIToken(v *invalid, known []string, name string, granted []string, now, expires time.Time) {
	v.check(isLine(name, 1, 100), "name", "malformed", "must be one line of 1 to 100 characters")
	v.check(len(granted) > 0, "permissions", "missing", "must name what the token may do")
	v.permissions(known, granted)
	inRange := expires.After(now) && !expires.After(now.Add(maxTokenTTL))
	v.check(inRange, "expires_at", "out_of_range", "must be in the future, at most a year ahead")
}

// createAPIToken creates the API token n, which checkAPIToken has checked, and returns it with its
// secret. It deletes the owner's expired tokens first. If the owner has a token of that name, or
// maxTokens of them, the error is a problem 409. Requires lockAccess.
func createAPIToken(ctx context.Context, tx pgx.Tx, by actor, owner user,
	n apiToken) (t apiToken, secret string, err error) {
	const query = `
		INSERT INTO api_tokens (user_id, name, token_hash, permissions, expires_at)
		VALUES ($1, $2, $3, $4, $5)
		RETURNING ` + apiTokenColumns
	const count = `
		WITH expired AS (DELETE FROM api_tokens WHERE user_id = $1 AND expires_at <= now())
		SELECT count(*)
		FROM api_tokens
		WHERE user_id = $1 AND expires_at > now()`

	has, err := scalar[int](ctx, tx, "count API tokens", count, owner.ID)
	if err != nil {
		return t, "", err
	}

	if has >= maxTokens {
		return t, "", conflict("too_many_tokens",
			"A user can have at most a hundred API tokens. End one that is not needed.")
	}
	secret, hash := newAPIToken()
	t, err = collectOne[apiToken](ctx, tx, nil, "create API token", query,
		owner.ID, n.Name, hash, asSet(n.Permissions), n.ExpiresAt)
	if isUniqueViolation(err, "api_tokens_name_key") {
		return t, "", conflict("name_taken", "There is a token of that name.")
	}
	if err != nil {
		return t, "", err
	}

	return t, secret, audit(ctx, tx, by, "token.create", "user:"+owner.Username, nil, t)
}

// listAPITokens returns up to limit of a user's unexpired API tokens after a name, in the order of
// names.
func listAPITokens(ctx context.Context, q querier, userID, after string, limit int) ([]apiToken, error) {
	const query = `
		SELECT ` + apiTokenColumns + `
		FROM api_tokens
		WHERE user_id = $1 AND name > $2 AND expires_at > now()
		ORDER BY name
		LIMIT $3`
	return collect[apiToken](ctx, q, "list API tokens", query, userID, after, limit)
}

// deleteAPITokens deletes the owner's API token with that id, or all of them if id is nil. It
// returns how many it deleted.
func deleteAPITokens(ctx context.Context, q querier, by actor, owner user, id *string) (int64, error) {
	const query = `
		WITH ended AS (
			DELETE FROM api_tokens
			WHERE user_id = $7 AND ($8::uuid IS NULL OR id = $8)
			RETURNING ` + apiTokenColumns + `
		)` + insertAudit + `
		SELECT $1, $2, $3, $4, $5, 'token.end', $6, to_jsonb(ended), NULL
		FROM ended
		ORDER BY name`
	return execute(ctx, q, "end API tokens", query,
		by.id, by.name, by.credential, by.address, by.requestID, "user:"+owner.Username, owner.ID, id)
}

// noteTokenUse stores that the API token with this hash was used now, at most once a minute.
func noteTokenUse(ctx context.Context, q querier, hash []byte) error {
	const query = `
		UPDATE api_tokens
		SET last_used_at = now()
		WHERE token_hash = $1
			AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`
	_, err := execute(ctx, q, "note token use", query, hash)
	return err
}
