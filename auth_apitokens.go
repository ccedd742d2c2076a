package main

import (
	"context"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// The lifetime of an API token: the default and the maximum.
const (
	defaultTokenTTL = 90 * 24 * time.Hour
	maxTokenTTL     = 366 * 24 * time.Hour
)

// maxTokens is how many API tokens a user may have, so that all of them can be ended within the
// time limit of a request.
const maxTokens = 100

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
	now := a.core.now()
	expires := now.Add(defaultTokenTTL)
	if at := v.time("expires_at", in.ExpiresAt); at != nil {
		expires = *at
	}
	checkAPIToken(&v, known, in.Name, in.Permissions, now, expires)
	if err := v.err(); err != nil {
		return err
	}

	if err := a.confirmPassword(r, in.confirmation); err != nil {
		return err
	}

	var created apiToken
	var secret string
	err = a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		if err := by.covers(in.Permissions); err != nil {
			return err
		}
		n := apiToken{
			Name:        in.Name,
			Permissions: in.Permissions,
			ExpiresAt:   expires,
		}
		created, secret, err = createAPIToken(ctx, tx, by, principalOf(r).user, n)
		return err
	})

	return writeCreated(w, createdToken{created, secret}, "/api/v1/auth/tokens/"+created.ID, err)
}

// createdToken is an API token with its secret. Only one response shows it.
type createdToken struct {
	apiToken
	Token string `json:"token"`
}

// endOwnTokens answers DELETE /api/v1/auth/tokens, and DELETE /api/v1/auth/tokens/{id} for only
// that token.
func (a *accounts) endOwnTokens(w http.ResponseWriter, r *http.Request) error {
	err := deleteAPITokens(r.Context(), a.core.db, actorOf(r), principalOf(r).user, pathUUID(r, "id"))
	return writeDone(w, err)
}

// checkAPIToken notes what is wrong with a new API token. known is from knownPermissions.
func checkAPIToken(v *invalid, known []string, name string, granted []string, now, expires time.Time) {
	v.check(isLine(name, 1, 100), "name", fieldMalformed, "must be one line of 1 to 100 characters")
	v.check(len(granted) > 0, "permissions", fieldMissing, "must name what the token may do")
	v.checkPermissions(known, granted)
	inRange := expires.After(now) && !expires.After(now.Add(maxTokenTTL))
	v.check(inRange, "expires_at", fieldOutOfRange, "must be in the future, at most a year ahead")
}

// createAPIToken creates the API token n, which checkAPIToken has checked, and returns it with its
// secret. It deletes the owner's expired tokens first. If the owner has a token of that name, or
// maxTokens of them, the error is a problem 409. Requires lockAccess.
func createAPIToken(
	ctx context.Context,
	tx pgx.Tx,
	by actor,
	owner user,
	n apiToken,
) (t apiToken, secret string, err error) {
	const query = `
		INSERT INTO api_tokens (
			user_id,
			name,
			token_hash,
			permissions,
			expires_at
		)
		VALUES ($1, $2, $3, $4, $5)
		RETURNING ` + apiTokenColumns
	const count = `
		WITH expired AS (
			DELETE FROM api_tokens
			WHERE user_id = $1 AND expires_at <= now()
		)
		SELECT count(*)
		FROM api_tokens
		WHERE user_id = $1 AND expires_at > now()`

	has, err := scalar[int](ctx, tx, "count API tokens", count, owner.ID)
	if err != nil {
		return t, "", err
	}
	if has >= maxTokens {
		return t, "", conflict(codeTooManyTokens,
			"A user can have at most a hundred API tokens. End one that is not needed.")
	}

	secret, hash := newAPIToken()
	t, err = collectOne[apiToken](ctx, tx, nil, "create API token", query,
		owner.ID, n.Name, hash, asSet(n.Permissions), n.ExpiresAt)
	if isUniqueViolation(err, "api_tokens_name_key") {
		return t, "", conflict(codeNameTaken, "There is a token of that name.")
	}
	if err != nil {
		return t, "", err
	}

	return t, secret, audit(ctx, tx, by, "token.create", "user:"+owner.Username, nil, t)
}

// deleteAPITokens deletes the owner's API token with that id, or returns a 404. With the id "" it
// deletes all of the owner's API tokens, if there are any.
func deleteAPITokens(ctx context.Context, q querier, by actor, owner user, id string) error {
	const query = `
		WITH ended AS (
			DELETE FROM api_tokens
			WHERE user_id = @user
				AND (@id = '' OR id = nullif(@id, '')::uuid)
			RETURNING ` + apiTokenColumns + `
		)` + insertAudit + `
		SELECT
			` + actorValues + `,
			'token.end',
			@target,
			to_jsonb(ended), -- before
			NULL -- after
		FROM ended
		ORDER BY name`

	args := by.named()
	args["target"] = "user:" + owner.Username
	args["user"] = owner.ID
	args["id"] = id
	n, err := execute(ctx, q, "end API tokens", query, args)
	if err == nil && n == 0 && id != "" {
		err = notFound("token", id)
	}
	return err
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
