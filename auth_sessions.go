package main

import (
	"context"
	"maps"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is one login. Its access tokens are valid until they expire or the session ends.
type session struct {
	SessionID        [16]byte
	Generation       int64     // of the present refresh token; only that one renews the session
	SessionExpiresAt time.Time // later with each refresh, up to a fixed end
}

// endOwnSessions answers DELETE /api/v1/auth/sessions, which ends the caller's sessions except the
// current one, and DELETE /api/v1/auth/sessions/{id}.
func (a *accounts) endOwnSessions(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	by := actorOf(r)
	p := principalOf(r)
	id := pathUUID(r, "id")
	return writeDone(w, inTransaction(ctx, a.core.db, func(tx pgx.Tx) error {
		if id == "" {
			return endSessionsExcept(ctx, tx, by, p.user.ID, p.credentialID)
		}
		return endOneSession(ctx, tx, by, id, p.user.ID)
	}))
}

// maxSessions is how many live sessions a user may have, so that all of them can be ended within
// the time limit of a request.
const maxSessions = 100

// createSession opens a session for a user whose credentials were checked, and returns the user as
// of now. If the status is not active, or credential_version has risen since the check, the error
// is errWrongCredentials. The user's oldest sessions beyond maxSessions end.
//
// The update locks the user's row. So a change of the user that is committed later sees this
// session and ends it.
func createSession(
	ctx context.Context,
	db *pgxpool.Pool,
	by actor,
	found passwordRecord,
	device string,
	idle, longest time.Duration,
) (sess session, u user, err error) {
	const query = `
		WITH u AS (
			UPDATE users
			SET last_login_at = now()
			WHERE id = $1
				AND status = 'active'
				AND credential_version = $2
			RETURNING id
		)
		INSERT INTO sessions (
			id,
			user_id,
			device,
			address,
			idle_expires_at,
			expires_at
		)
		SELECT
			gen_random_uuid(),
			u.id,
			$3,
			$4,
			now() + least($5::interval, $6::interval),
			now() + $6::interval
		FROM u
		RETURNING
			id AS session_id,
			generation,
			least(idle_expires_at, expires_at) AS session_expires_at`
	// The newest live sessions come first and stay: OFFSET skips as many as a user may have. The
	// others end, also those that have expired: 1,000 at a time.
	const surplus = `
			s.id IN (
				SELECT id
				FROM sessions
				WHERE user_id = @user
					AND ended_at IS NULL
				ORDER BY
					least(idle_expires_at, expires_at) > now() DESC, -- true, which is live, before false
					created_at DESC,
					id DESC
				OFFSET @most
				LIMIT 1000
			)`

	err = inTransaction(ctx, db, func(tx pgx.Tx) (err error) {
		sess, err = collectOne[session](ctx, tx, errWrongCredentials, "create session", query,
			found.ID, found.CredentialVersion, device, by.address, idle, longest)
		if err != nil {
			return err
		}

		// Read after the update, because the update may have waited for another change.
		u, err = getUser(ctx, tx, found.ID)
		if err != nil {
			return err
		}

		// From here on, the user acts by the new session.
		by.id = &u.ID
		by.name = u.Username
		by.credential = "session:" + uuidText(sess.SessionID)
		if err := audit(ctx, tx, by, "session.login", "user:"+u.Username, nil, found.usedPasskey); err != nil {
			return err
		}
		named := pgx.NamedArgs{"user": u.ID, "most": maxSessions}
		_, err = endSessionsWhere(ctx, tx, by, "session.end", surplus, named)
		return err
	})

	return sess, u, err
}

// The refusals of a refresh. errSessionEnded: the session has ended or never existed.
// errTokenReused: the refresh token was replaced before. errSessionLost: its generation is higher
// than the one in the database.
var (
	errSessionEnded = unauthorized(codeSessionEnded, "The session has ended. Sign in again.")
	errTokenReused  = unauthorized(codeRefreshTokenReused,
		"This refresh token was used before. The session has been ended; sign in again.")
	errSessionLost = unauthorized(codeSessionLost,
		"The server has lost the state of this session. Sign in again.")
)

// rotatedSession is a session after a refresh, with its user and accessVersions.
type rotatedSession struct {
	session
	accessVersions
	UserID        string
	IsWithinGrace bool // the token was not the current one, but within the grace period
}

// rotateSession replaces the current generation of a session by the next one, in one statement.
//
// An answer may be lost, and several tabs may refresh at once. So a generation that was replaced
// still gets the current one for a while, by either of two rules:
//
//   - (a) It was replaced last, less than a grace period ago.
//   - (b) It was replaced in the latest burst of refreshes, which began less than a grace period
//     ago. Without this rule, a tab that is two refreshes behind would end the session.
//
// A burst begins at burst_began_at and lasts a grace period. It covers every generation from
// burst_generation on that has been replaced. If no burst lasts, a refresh from generation n to
// n+1 begins one. It sets burst_generation to n-1, and burst_began_at to the time of the refresh
// before, which replaced n-1. So the burst covers that refresh too. The first refresh after a
// login has none before it: its burst begins with itself. An example with a grace period of 10
// seconds:
//
//	second  refresh  burst began  accepted by (a)  accepted by (b)
//	0       1 to 2   0            1 until 10       1 until 10
//	4       2 to 3   0            2 until 14       1 and 2 until 10
//	9       3 to 4   0            3 until 19       1, 2 and 3 until 10
//	12      4 to 5   9            4 until 22       3 and 4 until 19
//
// Any other replaced generation comes from a thief, or from the owner after a thief has used the
// token (RFC 9700, section 4.14.2). A generation that is too high was given before the database was
// restored. In both cases the session ends, which is audited, and the error is a 401.
func rotateSession(
	ctx context.Context,
	db *pgxpool.Pool,
	id [16]byte,
	generation int64,
	by actor,
	cfg config,
) (sess rotatedSession, err error) {
	const columns = `
			s.id AS session_id,
			s.generation,
			least(s.idle_expires_at, s.expires_at) AS session_expires_at,
			s.user_id::text,
			` + versionColumns
	const isLive = `
			s.id = $1
			AND s.ended_at IS NULL
			AND s.idle_expires_at > now()
			AND s.expires_at > now()
			AND u.id = s.user_id
			AND u.status = 'active'`
	const inBurst = `s.burst_began_at + $3::interval > now()`
	const rotate = `
		UPDATE sessions s
		SET generation = s.generation + 1,
			rotated_at = now(),
			burst_generation = CASE WHEN ` + inBurst + ` THEN s.burst_generation ELSE s.generation - 1 END,
			burst_began_at = CASE
				WHEN ` + inBurst + ` THEN s.burst_began_at
				WHEN s.generation = 1 THEN now() -- rotated_at is the time of the login
				ELSE s.rotated_at
			END,
			idle_expires_at = least(now() + $4::interval, s.expires_at)
		FROM users u, access_version a -- both for versionColumns
		WHERE ` + isLive + ` AND s.generation = $2
		RETURNING
			false AS is_within_grace,` + columns
	const wasLast = `($2 = s.generation - 1 AND s.rotated_at + $3::interval > now())`
	const wasInBurst = `($2 < s.generation AND $2 >= s.burst_generation AND ` + inBurst + `)`
	const look = `
		SELECT
			` + wasLast + ` OR ` + wasInBurst + ` AS is_within_grace,` + columns + `
		FROM sessions s, users u, access_version a -- the last for versionColumns
		WHERE ` + isLive

	// It returns the zero value, without an error, if no row was changed.
	sess, err = collectOne[rotatedSession](ctx, db, nil, "rotate session", rotate,
		id, generation, cfg.refreshGrace, cfg.refreshTTL)
	isRotated := sess.UserID != ""
	if err != nil || isRotated {
		return sess, err
	}

	// The session has ended, or this generation is not the current one.
	sess, err = collectOne[rotatedSession](ctx, db, errSessionEnded, "look at session", look,
		id, generation, cfg.refreshGrace)
	if err != nil || sess.IsWithinGrace {
		return sess, err
	}

	action := "session.refresh_token_reused"
	ended := errTokenReused
	if generation > sess.Generation {
		action = "session.lost"
		ended = errSessionLost
	}
	_, err = endSessionsWhere(ctx, db, by, action, `s.id = @id`, pgx.NamedArgs{"id": id})
	if err != nil {
		return sess, err
	}
	return sess, ended
}

// endSessionsExcept ends the live sessions of a user, except one; "" excepts none. It locks the
// user's row first, so that it waits for a login whose new session is not committed yet.
//
// Without an exception it raises credential_version, so that a login under way fails. With an
// exception it does not. Otherwise a thief with a stolen session could make every login of the
// owner fail.
func endSessionsExcept(ctx context.Context, tx pgx.Tx, by actor, userID, except string) error {
	const lock = `
		UPDATE users
		SET credential_version = credential_version + CASE WHEN $2 = '' THEN 1 ELSE 0 END
		WHERE id = $1`
	const others = `s.user_id = @user AND s.id IS DISTINCT FROM nullif(@except, '')::uuid`

	if _, err := execute(ctx, tx, "stop logins", lock, userID, except); err != nil {
		return err
	}
	named := pgx.NamedArgs{"user": userID, "except": except}
	_, err := endSessionsWhere(ctx, tx, by, "session.end", others, named)
	return err
}

// endAllSessions ends all sessions of a user. The caller has checked the target (see actOnUser), or
// the request has proved to come from that user.
func endAllSessions(ctx context.Context, tx pgx.Tx, by actor, target user) error {
	return endSessionsExcept(ctx, tx, by, target.ID, "")
}

// endOneSession ends a live session of that user, or returns a 404.
func endOneSession(ctx context.Context, tx pgx.Tx, by actor, id, userID string) error {
	named := pgx.NamedArgs{"id": id, "user": userID}
	n, err := endSessionsWhere(ctx, tx, by, "session.end", `s.id = @id AND s.user_id = @user`, named)
	if err == nil && n == 0 {
		err = notFound("session", id)
	}
	return err
}

// endSessionsWhere ends the live sessions s that fulfil a condition, and returns how many. The
// condition is SQL, and named has its parameters. Each session gets an audit row with this action.
// The actor of a logout is the owner of the session, because the request has its cookie or token.
//
// Sessions are locked in the order of their ids. So two changes that end sessions of one user wait
// for each other, and do not deadlock.
func endSessionsWhere(
	ctx context.Context,
	q querier,
	by actor,
	action string,
	condition string,
	named pgx.NamedArgs,
) (int64, error) {
	const begin = `
		WITH chosen AS (
			SELECT s.id
			FROM sessions s
			WHERE s.ended_at IS NULL
				AND `
	const end = `
			ORDER BY s.id
			FOR NO KEY UPDATE
		),
		ended AS (
			UPDATE sessions s
			SET ended_at = now(),
				end_reason = @action
			FROM users u
			WHERE u.id = s.user_id
				AND s.id IN (SELECT id FROM chosen)
			RETURNING
				s.id,
				s.user_id,
				u.username,
				@action = 'session.logout' AS is_logout
		)` + insertAudit + `
		SELECT
			CASE WHEN is_logout THEN user_id ELSE @actor_id END,
			CASE WHEN is_logout THEN username ELSE @actor END,
			CASE WHEN is_logout THEN 'session:' || id ELSE @credential END,
			@address,
			@request_id,
			@action,
			'user:' || username,
			jsonb_build_object('session', id), -- before
			NULL -- after
		FROM ended
		ORDER BY id`

	args := by.named()
	args["action"] = action
	maps.Copy(args, named)
	return execute(ctx, q, "end sessions", begin+condition+end, args)
}

// A browser's session ends after browserIdle without use. A look at a page that is open to all does
// not count as use. At the latest it ends browserMax or CAIRN_SESSION_MAX after the login,
// whichever is less.
const (
	browserIdle = 24 * time.Hour
	browserMax  = 30 * 24 * time.Hour
)

// lifetimes returns how long the session of this login may be idle, and how long it lasts in all.
// loginForm has set inBrowser for a login on a page.
func (a *accounts) lifetimes(r *http.Request) (idle, longest time.Duration) {
	if callerOf(r).inBrowser {
		longest = min(a.core.cfg.sessionMax, browserMax)
		return min(longest, browserIdle), longest
	}
	return a.core.cfg.refreshTTL, a.core.cfg.sessionMax
}

// writeSessionCookie sets the session cookie after a login on a page.
func (a *accounts) writeSessionCookie(w http.ResponseWriter, r *http.Request, u user, sess session) {
	_, longest := a.lifetimes(r)
	signer := a.core.keys.Load().signer()
	expires := a.core.now().Add(longest)
	cookie := signer.signSessionCookie(uuidText(sess.SessionID), u.ID, expires)
	a.setCookie(w, sessionCookieKind, cookie, int(longest/time.Second))
}

// endBrowserSession ends the session of the request's session cookie, if it has one.
func (a *accounts) endBrowserSession(r *http.Request) error {
	c, err := a.readSessionCookie(r)
	if err != nil {
		return nil // nothing to end
	}

	named := pgx.NamedArgs{"id": c.SessionID}
	_, err = endSessionsWhere(r.Context(), a.core.db, actorOf(r), "session.logout", `s.id = @id`, named)
	return err
}

// noteSessionUse stores that a browser uses its session now, at most once in five minutes, and
// renews the session's idle time.
func noteSessionUse(ctx context.Context, q querier, id string) error {
	const query = `
		UPDATE sessions
		SET rotated_at = now(),
			idle_expires_at = least(now() + $2::interval, expires_at)
		WHERE id = $1
			AND rotated_at < now() - interval '5 minutes'`
	_, err := execute(ctx, q, "note use of a session", query, id, browserIdle)
	return err
}
