package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// session is one login: an access token and a refresh token at a time.
type session struct {
	id            [16]byte
	generation    int64     // of the refresh token that is good now
	idleExpiresAt time.Time // moves with each refresh
	expiresAt     time.Time
}

// uuidText is the text form of a UUID (RFC 9562, section 4).
func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// register answers POST /api/v1/auth/register.
func (s *server) register(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username    string  `json:"username"`
		Password    string  `json:"password"`
		Email       *string `json:"email"`
		DisplayName string  `json:"display_name"`
	}
	if s.cfg.registration == registrationClosed {
		return &problem{status: http.StatusForbidden, code: "registration_closed", detail: "Accounts are made by an administrator here."}
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	n := newUser{displayName: in.DisplayName, status: statusActive, role: memberRole}
	if s.cfg.registration == registrationApproval {
		n.status = statusPending
	}
	var v invalid
	n.username, n.email = checkIdentity(&v, in.Username, in.Email, in.DisplayName)
	s.checkPassword(&v, "password", in.Password)
	if err := v.err(); err != nil {
		return err
	}
	hash, err := s.hasher.hash(r.Context(), callerOf(r).address, in.Password)
	if err != nil {
		return err
	}
	n.passwordHash = &hash
	var created user
	err = pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) error {
		if err := advisoryLock(r.Context(), tx, lockAccess); err != nil {
			return err
		}
		created, err = createUser(r.Context(), tx, n)
		return err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, created)
}

// login answers POST /api/v1/auth/login. An unknown user, one without a password and a wrong
// password take the same time and get the same answer; that an account is disabled or pending is told
// only to who knows its password.
func (s *server) login(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	ctx := r.Context()
	found, err := getCredentials(ctx, s.db, in.Username)
	if err != nil {
		return err
	}
	right, err := s.hasher.verify(ctx, callerOf(r).address, found.passwordHash, in.Password)
	if err != nil {
		return err
	}
	wrong := &problem{status: http.StatusUnauthorized, code: "invalid_credentials", detail: "The user name or the password is wrong."}
	switch {
	case !right:
		return wrong
	case found.status == statusPending:
		return &problem{status: http.StatusForbidden, code: "account_pending", detail: "The account waits for an administrator's approval."}
	case found.status != statusActive:
		return &problem{status: http.StatusForbidden, code: "account_disabled", detail: "The account is disabled."}
	}
	sess, err := createSession(ctx, s.db, found.userID, found.version, s.cfg)
	if errors.Is(err, errToken) {
		return wrong // the password or the status changed while we hashed
	}
	if err != nil {
		return err
	}
	u, err := getUser(ctx, s.db, found.userID)
	if err != nil {
		return err
	}
	return s.writeTokens(w, u, sess)
}

// writeTokens answers with an access token and sets the cookie with the refresh token.
func (s *server) writeTokens(w http.ResponseWriter, u user, sess session) error {
	now := s.now()
	sessionEnd := sess.expiresAt
	if sess.idleExpiresAt.Before(sessionEnd) {
		sessionEnd = sess.idleExpiresAt
	}
	expires := now.Add(s.cfg.accessTTL)
	if sessionEnd.Before(expires) {
		expires = sessionEnd
	}
	token, err := s.keys.signAccess(u.ID, uuidText(sess.id), now, expires)
	if err != nil {
		return err
	}
	http.SetCookie(w, s.cookie(s.keys.signRefresh(sess.id, sess.generation), int(sessionEnd.Sub(now).Round(time.Second)/time.Second)))
	return writeJSON(w, http.StatusOK, struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int64  `json:"expires_in"` // seconds
		User        user   `json:"user"`
	}{token, "Bearer", expires.Unix() - now.Unix(), u})
}

// cookie is the refresh cookie. The prefix __Host- makes browsers insist on Secure, Path=/ and no
// Domain (RFC 6265bis, section 4.1.3.2), so no neighbouring host can plant one. maxAge is in seconds;
// negative clears it.
func (s *server) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name:     s.cookieName(),
		Value:    value,
		Path:     "/",
		MaxAge:   maxAge,
		Secure:   !s.cfg.cookieInsecure,
		HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	}
}

// cookieName is the one name under which a refresh cookie is written and read.
func (s *server) cookieName() string {
	if s.cfg.cookieInsecure {
		return "cairn_refresh"
	}
	return "__Host-cairn_refresh"
}

// refresh answers POST /api/v1/auth/refresh: the cookie's token is exchanged for the next one. Each
// is good once. Shown a second time it is either a lost answer or a parallel tab, which for a short
// time get the same successor, or it is theft, which ends the session for thief and owner.
func (s *server) refresh(w http.ResponseWriter, r *http.Request) error {
	cookie, err := r.Cookie(s.cookieName())
	if err != nil {
		return &problem{status: http.StatusUnauthorized, code: "refresh_token_missing", detail: "There is no refresh cookie."}
	}
	refused := func(code, detail string) error {
		http.SetCookie(w, s.cookie("", -1))
		return &problem{status: http.StatusUnauthorized, code: code, detail: detail}
	}
	id, generation, err := s.keys.verifyRefresh(cookie.Value)
	if err != nil {
		return refused("refresh_token_invalid", "The refresh cookie is not one of ours.")
	}
	userID, sess, outcome, err := rotateSession(r.Context(), s.db, id, generation, s.cfg)
	if err != nil {
		return err
	}
	switch outcome {
	case rotated:
	case reused:
		s.log.Warn("refresh token shown twice, session ended", "id", callerOf(r).requestID, "session", uuidText(id), "user_id", userID)
		return refused("refresh_token_reused", "This refresh token was used before. The session has been ended; sign in again.")
	case lost:
		s.log.Warn("refresh token from the future, session ended", "id", callerOf(r).requestID, "session", uuidText(id), "user_id", userID)
		return refused("session_lost", "The server has lost the state of this session. Sign in again.")
	default:
		return refused("session_ended", "The session has ended. Sign in again.")
	}
	u, err := getUser(r.Context(), s.db, userID)
	if err != nil {
		return err
	}
	return s.writeTokens(w, u, sess)
}

// logout answers POST /api/v1/auth/logout: it ends the sessions that the cookie and the access token
// name. A cookie of any generation will do: who holds an old one may end the session too.
func (s *server) logout(w http.ResponseWriter, r *http.Request) error {
	ids := []string{}
	if cookie, err := r.Cookie(s.cookieName()); err == nil {
		if id, _, err := s.keys.verifyRefresh(cookie.Value); err == nil {
			ids = append(ids, uuidText(id))
		}
	}
	if token, ok := bearerToken(r); ok {
		if claims, err := s.keys.verifyAccess(token, s.now()); err == nil {
			ids = append(ids, claims.SessionID)
		}
	}
	if len(ids) > 0 {
		const query = `
			UPDATE sessions
			SET ended_at = now(), end_reason = 'logout'
			WHERE id = ANY ($1::uuid[])
				AND ended_at IS NULL`
		if _, err := s.db.Exec(r.Context(), query, ids); err != nil {
			return fmt.Errorf("end session: %w", err)
		}
	}
	http.SetCookie(w, s.cookie("", -1))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// getMe answers GET /api/v1/auth/me.
func (s *server) getMe(w http.ResponseWriter, r *http.Request) error {
	type credential struct {
		Kind      string    `json:"kind"`
		SessionID string    `json:"session_id"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	p := principalOf(r)
	return writeJSON(w, http.StatusOK, struct {
		user
		Permissions []string   `json:"permissions"`
		Credential  credential `json:"credential"`
	}{p.User, p.Permissions, credential{"session", p.SessionID, p.ExpiresAt}})
}

// resetPassword answers POST /api/v1/auth/password-reset: who holds a password token sets the
// password, once. All the user's sessions end.
func (s *server) resetPassword(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Token       string `json:"token"`
		NewPassword string `json:"new_password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	var v invalid
	s.checkPassword(&v, "new_password", in.NewPassword)
	if err := v.err(); err != nil {
		return err
	}
	ctx := r.Context()
	// Looked at before hashing, so that guessing costs us nothing; used up below.
	if _, err := findPasswordToken(ctx, s.db, in.Token); err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, callerOf(r).address, in.NewPassword)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockAccess); err != nil {
			return err
		}
		userID, err := findPasswordToken(ctx, tx, in.Token)
		if err != nil {
			return err
		}
		return setPassword(ctx, tx, userID, hash)
	})
	if err != nil {
		return err
	}
	if err := s.removeFirstAdminToken(in.Token); err != nil {
		s.log.Warn("the used token file could not be removed", "error", err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// credentials is what a login is checked against; the zero value for an unknown user.
type credentials struct {
	userID       string
	passwordHash *string
	status       string
	version      int64 // rises with every change of password or status
}

// getCredentials looks a login name up: as an e-mail address if it holds an @, else as a user name.
func getCredentials(ctx context.Context, q querier, login string) (credentials, error) {
	const query = `
		SELECT id::text, password_hash, status, credential_version
		FROM users
		WHERE username = $1
			OR email = $2`
	var username, email *string
	if strings.Contains(login, "@") {
		address := strings.ToValidUTF8(strings.ToLower(strings.ReplaceAll(login, "\x00", "")), "")
		email = &address
	} else if name, ok := normalizeUsername(login); ok {
		username = &name
	}
	var c credentials
	err := q.QueryRow(ctx, query, username, email).Scan(&c.userID, &c.passwordHash, &c.status, &c.version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return credentials{}, fmt.Errorf("get credentials: %w", err)
	}
	return c, nil
}

// createSession opens a session, unless the user's password or status has changed since the
// credentials were read: errToken. The user's row is locked by the update, so a change that commits
// first is seen, and one that comes later finds the session and ends it.
func createSession(ctx context.Context, q querier, userID string, version int64, cfg config) (session, error) {
	const query = `
		WITH u AS (
			UPDATE users
			SET last_login_at = now()
			WHERE id = $2
				AND status = 'active'
				AND credential_version = $3
			RETURNING id
		)
		INSERT INTO sessions (id, user_id, idle_expires_at, expires_at)
		SELECT $1, u.id, now() + least($4::interval, $5::interval), now() + $5::interval
		FROM u
		RETURNING generation, idle_expires_at, expires_at`
	var sess session
	rand.Read(sess.id[:]) // never fails (crypto/rand)
	err := q.QueryRow(ctx, query, sess.id, userID, version, cfg.refreshTTL, cfg.sessionMax).
		Scan(&sess.generation, &sess.idleExpiresAt, &sess.expiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return session{}, errToken
	}
	if err != nil {
		return session{}, fmt.Errorf("create session: %w", err)
	}
	return sess, nil
}

// rotation is what became of a refresh token.
type rotation int

// The values of rotation.
const (
	ended   rotation = iota // the session is over, or was never there
	rotated                 // the session's next generation is good now
	reused                  // an old generation: the session has been ended
	lost                    // a generation that has not been yet: the session has been ended
)

// rotateSession exchanges one generation of a session for the next. In the common case that is one
// statement; of several at once one wins, and the others find the generation raised: within the grace
// period they get the same successor.
func rotateSession(ctx context.Context, db *pgxpool.Pool, id [16]byte, generation int64, cfg config) (userID string, sess session, outcome rotation, err error) {
	const rotate = `
		UPDATE sessions s
		SET generation = s.generation + 1,
			rotated_at = now(),
			idle_expires_at = least(now() + $3::interval, s.expires_at)
		FROM users u
		WHERE s.id = $1
			AND s.generation = $2
			AND s.ended_at IS NULL
			AND s.idle_expires_at > now()
			AND s.expires_at > now()
			AND u.id = s.user_id
			AND u.status = 'active'
		RETURNING s.user_id::text, s.generation, s.idle_expires_at, s.expires_at`
	sess.id = id
	err = db.QueryRow(ctx, rotate, id, generation, cfg.refreshTTL).
		Scan(&userID, &sess.generation, &sess.idleExpiresAt, &sess.expiresAt)
	if err == nil {
		return userID, sess, rotated, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return "", session{}, ended, fmt.Errorf("rotate session: %w", err)
	}

	const look = `
		SELECT s.user_id::text, s.generation, s.idle_expires_at, s.expires_at,
			s.rotated_at + $2::interval > now()
		FROM sessions s
		JOIN users u ON u.id = s.user_id
		WHERE s.id = $1
			AND s.ended_at IS NULL
			AND s.idle_expires_at > now()
			AND s.expires_at > now()
			AND u.status = 'active'
		FOR UPDATE OF s`
	const end = `
		UPDATE sessions
		SET ended_at = now(), end_reason = $2
		WHERE id = $1`
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var inGrace bool
		err := tx.QueryRow(ctx, look, id, cfg.refreshGrace).
			Scan(&userID, &sess.generation, &sess.idleExpiresAt, &sess.expiresAt, &inGrace)
		if errors.Is(err, pgx.ErrNoRows) {
			outcome = ended
			return nil
		}
		if err != nil {
			return fmt.Errorf("look at session: %w", err)
		}
		reason := ""
		switch {
		case generation == sess.generation-1 && inGrace:
			outcome = rotated
			return nil
		case generation > sess.generation:
			outcome, reason = lost, "session_lost"
		default:
			outcome, reason = reused, "refresh_token_reused"
		}
		if _, err := tx.Exec(ctx, end, id, reason); err != nil {
			return fmt.Errorf("end session: %w", err)
		}
		return nil
	})
	if err != nil {
		return "", session{}, ended, err
	}
	return userID, sess, outcome, nil
}

// findPasswordToken returns whose password the token may set; a problem 401 if it is unknown, used or
// expired.
func findPasswordToken(ctx context.Context, q querier, token string) (userID string, err error) {
	const query = `
		SELECT user_id::text
		FROM password_tokens
		WHERE token_hash = $1
			AND expires_at > now()`
	err = q.QueryRow(ctx, query, hashPasswordToken(token)).Scan(&userID)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", &problem{status: http.StatusUnauthorized, code: "password_token_invalid", detail: "The token is unknown, used or expired."}
	}
	if err != nil {
		return "", fmt.Errorf("find password token: %w", err)
	}
	return userID, nil
}

// createPasswordToken makes the one token that may set the user's password, in place of any older.
// The caller holds lockAccess.
func createPasswordToken(ctx context.Context, tx pgx.Tx, userID string, ttl time.Duration) (token string, err error) {
	const query = `
		INSERT INTO password_tokens (user_id, token_hash, expires_at)
		VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (user_id) DO UPDATE
		SET token_hash = excluded.token_hash,
			created_at = now(),
			expires_at = excluded.expires_at`
	token, hash := newPasswordToken()
	if _, err := tx.Exec(ctx, query, userID, hash, ttl); err != nil {
		return "", fmt.Errorf("create password token: %w", err)
	}
	return token, nil
}

// setPassword stores a new password hash, uses up the user's password token and ends all his
// sessions. The user's row comes first: a login under way waits for it, and then finds that its
// credentials are old. The caller holds lockAccess.
func setPassword(ctx context.Context, tx pgx.Tx, userID, hash string) error {
	const update = `
		UPDATE users
		SET password_hash = $2,
			credential_version = credential_version + 1,
			updated_at = now()
		WHERE id = $1`
	if _, err := tx.Exec(ctx, update, userID, hash); err != nil {
		return fmt.Errorf("set password: %w", err)
	}
	const useUp = `
		DELETE FROM password_tokens
		WHERE user_id = $1`
	if _, err := tx.Exec(ctx, useUp, userID); err != nil {
		return fmt.Errorf("use up password token: %w", err)
	}
	const end = `
		UPDATE sessions
		SET ended_at = now(), end_reason = 'password_reset'
		WHERE user_id = $1
			AND ended_at IS NULL`
	if _, err := tx.Exec(ctx, end, userID); err != nil {
		return fmt.Errorf("end sessions: %w", err)
	}
	return nil
}

// firstPasswordTTL is how long the token for a first password is good.
const firstPasswordTTL = 72 * time.Hour

// ensureAdministrator gives a new installation its first administrator: where nobody who is active
// and has the role admin can sign in, it makes the user "admin" without a password and writes a token
// to set one into a file that only the operator can read.
func (s *server) ensureAdministrator(ctx context.Context) error {
	const canSignIn = `
		SELECT EXISTS (
			SELECT
			FROM users u
			JOIN user_roles ur ON ur.user_id = u.id
			JOIN roles r ON r.id = ur.role_id
			WHERE r.name = 'admin'
				AND u.status = 'active'
				AND u.password_hash IS NOT NULL
		)`
	const existing = `
		SELECT u.id::text, u.status = 'active' AND u.password_hash IS NULL AND EXISTS (
			SELECT
			FROM user_roles ur
			JOIN roles r ON r.id = ur.role_id
			WHERE ur.user_id = u.id
				AND r.name = 'admin'
		)
		FROM users u
		WHERE u.username = 'admin'`
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockAccess); err != nil {
			return err
		}
		var exists bool
		if err := tx.QueryRow(ctx, canSignIn).Scan(&exists); err != nil {
			return fmt.Errorf("look for an administrator: %w", err)
		}
		if exists {
			return removeIfThere(s.cfg.firstAdminFile())
		}
		var id string
		var ours bool
		err := tx.QueryRow(ctx, existing).Scan(&id, &ours)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			u, err := createUser(ctx, tx, newUser{username: "admin", status: statusActive, role: adminRole})
			if err != nil {
				return err
			}
			id = u.ID
		case err != nil:
			return fmt.Errorf("look for the user admin: %w", err)
		case !ours:
			s.log.Warn("no administrator can sign in; make one with: cairn user create NAME --role admin")
			return nil
		}
		if content, err := os.ReadFile(s.cfg.firstAdminFile()); err == nil {
			owner, err := findPasswordToken(ctx, tx, strings.TrimSpace(string(content)))
			if err == nil && owner == id {
				s.log.Info("the first administrator's password is not set yet; the token to set it is in a file", "user", "admin", "file", s.cfg.firstAdminFile())
				return nil
			}
		}
		token, err := createPasswordToken(ctx, tx, id, firstPasswordTTL)
		if err != nil {
			return err
		}
		// The file comes before the commit: a token that is good is always in a file.
		if err := removeIfThere(s.cfg.firstAdminFile()); err != nil {
			return err
		}
		if err := writeNewFile(s.cfg.firstAdminFile(), []byte(token+"\n")); err != nil {
			return fmt.Errorf("write the first administrator's token: %w", err)
		}
		s.log.Info("made the first administrator; the token to set the password is in a file", "user", "admin", "file", s.cfg.firstAdminFile())
		return nil
	})
}

// removeFirstAdminToken removes the file of the first administrator's token if that token was used.
func (s *server) removeFirstAdminToken(used string) error {
	content, err := os.ReadFile(s.cfg.firstAdminFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(content)) != used {
		return nil
	}
	return removeIfThere(s.cfg.firstAdminFile())
}

// removeIfThere removes a file that may be gone already.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// operator is the address under which the command line hashes passwords.
func operator() netip.Addr { return netip.Addr{} }
