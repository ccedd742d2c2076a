package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is one login: an access token and a refresh token at a time.
type session struct {
	SessionID        [16]byte
	Generation       int64     // of the refresh token that is good now
	SessionExpiresAt time.Time // moves with each refresh, up to a fixed end
}

// uuidText is the text form of a UUID (RFC 9562, section 4).
func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// pathUUID reads a UUID of the path. What is none names nothing: 404.
func pathUUID(r *http.Request, name string) (string, error) {
	id := r.PathValue(name)
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		return "", errNotFound
	}
	return id, nil
}

// sessionView is a session as its owner sees it.
type sessionView struct {
	ID         string    `json:"id"`
	Device     string    `json:"device"` // what the client said it was
	Address    string    `json:"address"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"` // the last refresh
	ExpiresAt  time.Time `json:"expires_at"`
	Current    bool      `json:"current"`
}

// listOwnSessions answers GET /api/v1/auth/sessions.
func (s *server) listOwnSessions(w http.ResponseWriter, r *http.Request) error {
	return s.writeSessions(w, r, principalOf(r).User.ID)
}

// writeSessions answers with the live sessions of a user, the newest first.
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
	return writeList(s, w, r, []string{"infinity", uuidText([16]byte{})}, func(after []string, limit int) ([]sessionView, error) {
		return collect[sessionView](r.Context(), s.db, "list sessions", query, userID, principalOf(r).CredentialID, after[0], after[1], limit)
	}, func(v sessionView) []string { return []string{v.CreatedAt.Format(time.RFC3339Nano), v.ID} })
}

// endOtherSessions answers DELETE /api/v1/auth/sessions: all of one's own but this one.
func (s *server) endOtherSessions(w http.ResponseWriter, r *http.Request) error {
	err := inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
		_, err := endUserSessions(r.Context(), tx, actorOf(r), principalOf(r).User.ID, principalOf(r).CredentialID)
		return err
	})
	return writeDone(w, err)
}

// endOwnSession answers DELETE /api/v1/auth/sessions/{id}.
func (s *server) endOwnSession(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}
	err = inTransaction(r.Context(), s.db, func(tx pgx.Tx) error {
		n, err := endSessions(r.Context(), tx, actorOf(r), "session.end", []string{id}, principalOf(r).User.ID)
		if err == nil && n == 0 {
			return errNotFound
		}
		return err
	})
	return writeDone(w, err)
}

// createSession opens a session, unless the user's password or status has changed since the credentials were read:
// errToken. The user's row is locked by the update, so a change that commits first is seen, and one that comes later
// finds the session and ends it.
func createSession(ctx context.Context, q querier, userID string, version int64, device, address string, cfg config) (session, error) {
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
	var id [16]byte
	rand.Read(id[:]) // never fails (crypto/rand)
	return collectOne[session](ctx, q, errToken, "create session", query, id, userID, version, device, address, cfg.refreshTTL, cfg.sessionMax)
}

// The 401 of a session that is over or was never there, and of one that is ended now: an old generation was
// shown, or one that has not been yet.
var (
	errSessionEnded = &problem{status: http.StatusUnauthorized, code: "session_ended", detail: "The session has ended. Sign in again."}
	errTokenReused  = &problem{status: http.StatusUnauthorized, code: "refresh_token_reused", detail: "This refresh token was used before. The session has been ended; sign in again."}
	errSessionLost  = &problem{status: http.StatusUnauthorized, code: "session_lost", detail: "The server has lost the state of this session. Sign in again."}
)

// rotateSession exchanges a generation of a session for the next, in one statement. A generation that was replaced
// within the grace period gets the current one: either its answer was lost or several tabs refresh at once. It was so
// if it was replaced last, or in a burst of refreshes that began within the grace period. An older generation, shown
// by a thief or by the owner after a thief, ends the session: a problem 401, as for a session that is over.
func rotateSession(ctx context.Context, db *pgxpool.Pool, id [16]byte, generation int64, by actor, cfg config) (session, user, error) {
	const live = `
		WHERE s.id = $1 AND s.ended_at IS NULL AND s.idle_expires_at > now() AND s.expires_at > now()
			AND u.id = s.user_id AND u.status = 'active'`
	const columns = `
			s.id AS session_id, s.generation, least(s.idle_expires_at, s.expires_at) AS session_expires_at,` + userColumns
	const rotate = `
		UPDATE sessions s
		SET generation = s.generation + 1,
			rotated_at = now(),
			burst_generation = CASE WHEN s.burst_began_at + $4::interval > now() THEN s.burst_generation ELSE s.generation - 1 END,
			burst_began_at = CASE WHEN s.burst_began_at + $4::interval > now() THEN s.burst_began_at ELSE s.rotated_at END,
			idle_expires_at = least(now() + $3::interval, s.expires_at)
		FROM users u` + live + `
			AND s.generation = $2
		RETURNING true AS graced,` + columns
	const look = `
		SELECT
			$2 = s.generation - 1 AND s.rotated_at + $3::interval > now() OR
			$2 BETWEEN s.burst_generation AND s.generation - 1 AND s.burst_began_at + $3::interval > now() AS graced,` + columns + `
		FROM sessions s, users u` + live + `
		FOR UPDATE OF s`
	type found struct {
		session
		user
		Graced bool
	}
	f, err := collectOne[found](ctx, db, errToken, "rotate session", rotate, id, generation, cfg.refreshTTL, cfg.refreshGrace)
	if err != errToken {
		return f.session, f.user, err
	}
	var refused error // returned once the session's end is committed
	err = inTransaction(ctx, db, func(tx pgx.Tx) error {
		f, err = collectOne[found](ctx, tx, errSessionEnded, "look at session", look, id, generation, cfg.refreshGrace)
		if err != nil || f.Graced {
			return err
		}
		action := "session.refresh_token_reused"
		if refused = errTokenReused; generation > f.Generation {
			action, refused = "session.lost", errSessionLost
		}
		_, err := endSessions(ctx, tx, by, action, []string{uuidText(id)}, "")
		return err
	})
	return f.session, f.user, cmp.Or(err, refused)
}

// endUserSessions ends all live sessions of the user but one, and returns their ids.
func endUserSessions(ctx context.Context, tx pgx.Tx, by actor, userID, but string) (ids []string, err error) {
	const query = `
		SELECT array_agg(id::text ORDER BY id)
		FROM sessions
		WHERE user_id = $1 AND ended_at IS NULL
			AND id IS DISTINCT FROM nullif($2, '')::uuid`
	if err := tx.QueryRow(ctx, query, userID, but).Scan(&ids); err != nil {
		return nil, fmt.Errorf("list live sessions: %w", err)
	}
	_, err = endSessions(ctx, tx, by, "session.end", ids, userID)
	return ids, err
}

// endSessions ends those of the sessions that live, and returns how many; with a userID only that user's.
func endSessions(ctx context.Context, tx pgx.Tx, by actor, action string, ids []string, userID string) (n int, err error) {
	const end = `
		UPDATE sessions s
		SET ended_at = now(), end_reason = $3
		FROM users u
		WHERE s.id = ANY ($1::uuid[]) AND u.id = s.user_id AND ($2 = '' OR u.id::text = $2)
			AND s.ended_at IS NULL
		RETURNING s.id::text, u.username`
	done, err := collect[struct{ ID, Username string }](ctx, tx, "end sessions", end, ids, userID, action)
	if err != nil {
		return 0, err
	}
	for _, e := range done {
		if err := audit(ctx, tx, by, action, "user:"+e.Username, map[string]string{"session": e.ID}, nil); err != nil {
			return 0, err
		}
	}
	return len(done), nil
}
