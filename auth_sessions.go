package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is one login. Its access tokens are valid until they expire or the session ends.
type session struct {
	SessionID        [16]byte
	Generation       int64     // of the only refresh token that can be exchanged for the next one
	SessionExpiresAt time.Time // later with each refresh, up to a fixed end
}

// uuidText returns the text form of a UUID (RFC 9562, section 4).
func uuidText(id [16]byte) string { return pgtype.UUID{Bytes: id, Valid: true}.String() }

// pathUUID returns the path value if it is a canonical UUID, else errNotFound.
func pathUUID(r *http.Request, name string) (string, error) {
	id := r.PathValue(name)
	if !canonicalUUID.MatchString(id) {
		return "", errNotFound
	}
	return id, nil
}

// sessionView is a session as lists show it.
type sessionView struct {
	ID         string    `json:"id"`
	Device     string    `json:"device"` // the client's User-Agent
	Address    string    `json:"address"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"` // the last refresh or, to five minutes, use by a browser
	ExpiresAt  time.Time `json:"expires_at"`
	Current    bool      `json:"current"`
}

// listOwnSessions answers GET /api/v1/auth/sessions.
func (s *server) listOwnSessions(w http.ResponseWriter, r *http.Request) error {
	return s.writeSessions(w, r, principalOf(r).User.ID)
}

// writeSessions answers with the live sessions of a user, newest first.
func (s *server) writeSessions(w http.ResponseWriter, r *http.Request, userID string) error {
	const query = `
		SELECT
			id::text, device, address, created_at, rotated_at AS last_used_at,
			least(idle_expires_at, expires_at) AS expires_at,
			id::text = $2 AS current
		FROM sessions
		WHERE user_id = $1 AND ended_at IS NULL AND idle_expires_at > now() AND expires_at > now()
			AND (created_at, id) < ($3::text::timestamptz, $4::text::uuid)
		ORDER BY created_at DESC, id DESC
		LIMIT $5`
	current, first := principalOf(r).CredentialID, []string{"infinity", uuidText([16]byte{})}
	return writeList(s, w, r, first, func(after []string, limit int) ([]sessionView, error) {
		return collect[sessionView](r.Context(), s.db, "list sessions", query,
			userID, current, after[0], after[1], limit)
	}, func(v sessionView) []string { return []string{v.CreatedAt.Format(time.RFC3339Nano), v.ID} })
}

// endOtherSessions answers DELETE /api/v1/auth/sessions: it ends the caller's sessions except the
// current one.
func (s *server) endOtherSessions(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
		p := principalOf(r)
		return endSessionsOf(r.Context(), tx, actorOf(r), []string{p.User.ID}, p.CredentialID)
	}))
}

// endOwnSession answers DELETE /api/v1/auth/sessions/{id}.
func (s *server) endOwnSession(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}
	return writeDone(w, inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
		n, err := endSessionsByID(r.Context(), tx, actorOf(r), "session.end", []string{id}, principalOf(r).User.ID)
		if err == nil && n == 0 {
			err = errNotFound
		}
		return err
	}))
}

// maxSessions is how many live sessions a user may have, so that all of them can be ended within
// the time limit of a request.
const maxSessions = 100

// createSession opens a session for a user whose credentials were checked, and returns the user as
// of now. The user's oldest sessions beyond maxSessions end. If the status is not active, or
// credential_version has risen since the check, the error is errToken. The update locks the user's
// row: a change that is committed later sees this session and ends it.
func createSession(ctx context.Context, db *pgxpool.Pool, by actor, found credentials, device string,
	cfg config) (sess session, u user, err error) {
	const query = `
		WITH u AS (
			UPDATE users
			SET last_login_at = now()
			WHERE id = $2 AND status = 'active' AND credential_version = $3
			RETURNING id
		)
		INSERT INTO sessions (id, user_id, device, address, idle_expires_at, expires_at)
		SELECT $1, u.id, $4, $5, now() + least($6::interval, $7::interval), now() + $7::interval
		FROM u
		RETURNING id AS session_id, generation, least(idle_expires_at, expires_at) AS session_expires_at`
	const oldest = `
		SELECT coalesce(array_agg(id::text), '{}')
		FROM (
			SELECT id
			FROM sessions
			WHERE user_id = $1 AND ended_at IS NULL
			ORDER BY least(idle_expires_at, expires_at) > now() DESC, created_at DESC, id DESC -- the expired last
			OFFSET $2
			LIMIT 1000
		) s`
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	err = inTransaction(ctx, db, func(tx pgx.Tx) (err error) {
		sess, err = collectOne[session](ctx, tx, errToken, "create session", query,
			id, found.ID, found.CredentialVersion, device, by.address, cfg.refreshTTL, cfg.sessionMax)
		if err != nil {
			return err
		}
		// Read after the update, because the update may have waited for another change.
		if u, err = getUser(ctx, tx, found.ID); err != nil {
			return err
		}
		by.id, by.name, by.credential = &u.ID, u.Username, "session:"+uuidText(id)
		if err := audit(ctx, tx, by, "session.login", "user:"+u.Username, nil, nil); err != nil {
			return err
		}
		var beyond []string
		if err := tx.QueryRow(ctx, oldest, u.ID, maxSessions).Scan(&beyond); err != nil {
			return fmt.Errorf("list the oldest sessions: %w", err)
		}
		_, err = endSessionsByID(ctx, tx, by, "session.end", beyond, "")
		return err
	})
	return sess, u, err
}

// The 401 for a session that has ended or never existed, for a refresh token that was replaced
// before, and for a refresh token whose generation is higher than the database's.
var (
	errSessionEnded = newProblem(http.StatusUnauthorized, "session_ended", "The session has ended. Sign in again.")
	errTokenReused  = newProblem(http.StatusUnauthorized, "refresh_token_reused",
		"This refresh token was used before. The session has been ended; sign in again.")
	errSessionLost = newProblem(http.StatusUnauthorized, "session_lost",
		"The server has lost the state of this session. Sign in again.")
)

// rotatedSession is a session after a refresh, with its user and accessVersions.
type rotatedSession struct {
	session
	accessVersions
	UserID string
	Graced bool // the token was not the current one, but within the grace period
}

// rotateSession replaces the current generation of a session by the next one, in one statement.
//
// An answer may be lost, and several tabs may refresh at once. So a replaced generation still gets
// the current one in two cases: it was the last one to be replaced, less than a grace period ago;
// or it was replaced in the latest burst, which began less than a grace period ago.
//
// Any other replaced generation is shown by a thief, or by the owner after a thief (RFC 9700,
// section 4.14.2). A generation that is too high is shown after the database was restored. Both end
// the session. The end is committed and audited before the error, a problem 401, is returned.
func rotateSession(ctx context.Context, db *pgxpool.Pool, id [16]byte, generation int64, by actor,
	cfg config) (sess rotatedSession, err error) {
	const live = `
		WHERE s.id = $1 AND s.ended_at IS NULL AND s.idle_expires_at > now() AND s.expires_at > now()
			AND (SELECT u.status FROM users u WHERE u.id = s.user_id) = 'active'`
	const columns = ` AS graced, s.id AS session_id, s.generation,
			least(s.idle_expires_at, s.expires_at) AS session_expires_at, s.user_id::text,
			(SELECT u.version FROM users u WHERE u.id = s.user_id) AS user_version,
			(SELECT version FROM access_version) AS access_version`
	const rotate = `
		UPDATE sessions s
		SET generation = s.generation + 1,
			rotated_at = now(),
			burst_generation = CASE WHEN s.burst_began_at + $3::interval > now() THEN s.burst_generation
				ELSE s.generation - 1 END,
			burst_began_at = CASE WHEN s.burst_began_at + $3::interval > now() THEN s.burst_began_at
				ELSE s.rotated_at END,
			idle_expires_at = least(now() + $4::interval, s.expires_at)` + live + `
			AND s.generation = $2
		RETURNING false` + columns
	const look = `
		SELECT
			$2 < s.generation AND ($2 = s.generation - 1 AND s.rotated_at + $3::interval > now()
				OR $2 >= s.burst_generation AND s.burst_began_at + $3::interval > now())` + columns + `
		FROM sessions s` + live + `
		FOR UPDATE`
	sess, err = collectOne[rotatedSession](ctx, db, errSessionEnded, "rotate session", rotate,
		id, generation, cfg.refreshGrace, cfg.refreshTTL)
	if err != errSessionEnded {
		return sess, err
	}
	var ended error // the reason for which the session was ended
	err = inTransaction(ctx, db, func(tx pgx.Tx) (err error) {
		sess, err = collectOne[rotatedSession](ctx, tx, errSessionEnded, "look at session", look,
			id, generation, cfg.refreshGrace)
		if err != nil || sess.Graced {
			return err
		}
		action := "session.refresh_token_reused"
		ended = errTokenReused
		if generation > sess.Generation {
			action, ended = "session.lost", errSessionLost
		}
		_, err = endSessionsByID(ctx, tx, by, action, []string{uuidText(id)}, "")
		return err
	})
	return sess, cmp.Or(err, ended)
}

// endSessionsOf ends the live sessions of these users, except one; "" excepts none. It locks the
// users' rows first, so that it waits for a login whose new session is not committed yet. If it
// excepts none, it raises credential_version: a login that is under way finds that its credentials
// are old. With an exception it does not: a stolen session must not keep its owner from signing in.
func endSessionsOf(ctx context.Context, tx pgx.Tx, by actor, userIDs []string, except string) error {
	const lock = `
		UPDATE users
		SET credential_version = credential_version + ($2 = '')::int
		WHERE id = ANY ($1::uuid[])`
	const query = `
		SELECT coalesce(array_agg(id::text ORDER BY id), '{}')
		FROM sessions
		WHERE user_id = ANY ($1::uuid[]) AND ended_at IS NULL
			AND id IS DISTINCT FROM nullif($2, '')::uuid`
	if _, err := execute(ctx, tx, "stop logins", lock, userIDs, except); err != nil {
		return err
	}
	var ids []string
	if err := tx.QueryRow(ctx, query, userIDs, except).Scan(&ids); err != nil {
		return fmt.Errorf("list live sessions: %w", err)
	}
	_, err := endSessionsByID(ctx, tx, by, "session.end", ids, "")
	return err
}

// endSessionsByID ends the sessions with these ids, unless they have ended before, and returns how
// many it ended. Each gets an audit row with this action. If userID is not "", only sessions of
// that user are ended.
func endSessionsByID(ctx context.Context, tx pgx.Tx, by actor, action string, ids []string,
	userID string) (int64, error) {
	const end = `
		WITH ended AS (
			UPDATE sessions s
			SET ended_at = now(), end_reason = $6
			FROM users u
			WHERE s.id = ANY ($7::uuid[]) AND u.id = s.user_id AND ($8 = '' OR u.id::text = $8) AND s.ended_at IS NULL
			RETURNING s.id, u.username
		)` + insertAudit + `
		SELECT $1, $2, $3, $4, $5, $6, 'user:' || username, jsonb_build_object('session', id), NULL
		FROM ended
		ORDER BY id`
	if len(ids) == 0 { // as at nearly every login
		return 0, nil
	}
	return execute(ctx, tx, "end sessions", end,
		by.id, by.name, by.credential, by.address, by.requestID, action, ids, userID)
}
