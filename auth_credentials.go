package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// credentials is what a login is checked against; the zero value for an unknown user.
type credentials struct {
	userID       string
	username     string
	passwordHash *string
	status       string
	version      int64 // rises with every change of password or status
}

// getCredentials looks a login name up: as an e-mail address if it holds an @, else as a user name.
func getCredentials(ctx context.Context, q querier, login string) (credentials, error) {
	const query = `
		SELECT id::text, username, password_hash, status, credential_version
		FROM users
		WHERE `
	column, value := "username", ""
	if address, ok := normalizeEmail(login); ok {
		column, value = "email", address
	} else if name, ok := normalizeUsername(login); ok {
		value = name
	}
	var c credentials
	err := q.QueryRow(ctx, query+column+" = $1", value).Scan(&c.userID, &c.username, &c.passwordHash, &c.status, &c.version)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return credentials{}, fmt.Errorf("get credentials: %w", err)
	}
	return c, nil
}

// rehash stores a password under stronger parameters, if it was stored under weaker ones. The login that it follows
// succeeds even if this fails.
func (s *server) rehash(ctx context.Context, r *http.Request, found credentials, password string) {
	const query = `
		UPDATE users
		SET password_hash = $3
		WHERE id = $1
			AND password_hash = $2`
	if !s.hasher.isWeak(*found.passwordHash) {
		return
	}
	err := s.hasher.withCore(ctx, func() error {
		_, err := s.db.Exec(ctx, query, found.userID, *found.passwordHash, s.hasher.newHash(password))
		return err
	})
	if err != nil {
		s.log.Warn("password not hashed anew", "id", callerOf(r).requestID, "error", err)
	}
}

// checkCredentials looks the user up, counts the attempt and says whether the password is right. The caller
// forgives the attempt if so, and ends it by leave. An unknown user and a wrong password take the same steps.
func (s *server) checkCredentials(r *http.Request, login, password string) (found credentials, guess *attempt, right bool, err error) {
	ctx := r.Context()
	if found, err = getCredentials(ctx, s.db, login); err != nil {
		return found, nil, false, err
	}
	guess = s.keys.Load().keys[0].newGuess(found, login, callerOf(r).address)
	err = s.hashCounted(ctx, guess, func() (err error) {
		right, err = s.hasher.verify(found.passwordHash, password)
		return err
	})
	return found, guess, right, err
}

// confirmPassword checks the caller's own password, before what only its owner may do. It counts as an attempt to
// log in.
func (s *server) confirmPassword(r *http.Request, password string) (credentials, error) {
	found, guess, right, err := s.checkCredentials(r, principalOf(r).User.Username, password)
	if err != nil {
		return credentials{}, err
	}
	defer guess.leave()
	if !right {
		return credentials{}, &problem{status: http.StatusForbidden, code: "wrong_password", detail: "The current password is wrong."}
	}
	return found, s.forgiveFault(r.Context(), guess, guess.forgive(r.Context(), s.db))
}

// changePassword answers PUT /api/v1/auth/password. The user's other sessions end.
func (s *server) changePassword(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		CurrentPassword string `json:"current_password"`
		NewPassword     string `json:"new_password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	ctx, p := r.Context(), principalOf(r)
	var v invalid
	checkPassword(&v, "new_password", in.NewPassword, s.cfg.passwordMin, p.User.Username, p.User.Email, p.User.DisplayName)
	if err := v.err(); err != nil {
		return err
	}
	found, err := s.confirmPassword(r, in.CurrentPassword)
	if err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, in.NewPassword)
	if err != nil {
		return err
	}
	err = changeAccess(ctx, s.db, func(tx pgx.Tx) error {
		if err := setPassword(ctx, tx, actorOf(r), "password.change", p.User, found.version, hash); err != nil {
			return err
		}
		_, err := endUserSessions(ctx, tx, actorOf(r), p.User.ID, p.CredentialID)
		return err
	})
	return writeDone(w, err)
}

// resetPassword answers POST /api/v1/auth/password-reset: who holds a password token sets the
// password, once. All the user's sessions and API tokens end, and so does a siege of the account.
func (s *server) resetPassword(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Token       string `json:"token"`
		NewPassword string `json:"new_password"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	ctx := r.Context()
	// Looked at before hashing, so that guessing costs us nothing; used up below.
	u, err := findPasswordToken(ctx, s.db, in.Token)
	if err != nil {
		return err
	}
	var v invalid
	checkPassword(&v, "new_password", in.NewPassword, s.cfg.passwordMin, u.Username, u.Email, u.DisplayName)
	if err := v.err(); err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, in.NewPassword)
	if err != nil {
		return err
	}
	err = changeAccess(ctx, s.db, func(tx pgx.Tx) error {
		if u, err = findPasswordToken(ctx, tx, in.Token); err != nil {
			return err
		}
		if err := setPassword(ctx, tx, actorOf(r), "password.reset", u, 0, hash); err != nil {
			return err
		}
		if err := s.keys.Load().keys[0].endSiege(ctx, tx, u.ID); err != nil {
			return err
		}
		return endEverything(ctx, tx, actorOf(r), u)
	})
	if err != nil {
		return err
	}
	waiting, err := s.firstAdminToken()
	if err == nil && waiting == in.Token {
		err = removeIfThere(s.cfg.firstAdminFile())
	}
	if err != nil {
		s.log.Warn("the used token file could not be removed", "error", err)
	}
	return writeDone(w, nil)
}

// findPasswordToken returns whose password the token may set; a problem 401 if it is not good (any more).
func findPasswordToken(ctx context.Context, q querier, token string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM password_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.token_hash = $1
			AND t.expires_at > now()`
	missing := &problem{status: http.StatusUnauthorized, code: "password_token_invalid", detail: "The token is unknown, used or expired."}
	return collectOne[user](ctx, q, missing, "find password token", query, hashToken(token))
}

// createPasswordToken makes the user's one password token, in place of an older. The caller holds lockAccess.
func createPasswordToken(ctx context.Context, tx pgx.Tx, userID string, ttl time.Duration) (t passwordToken, err error) {
	const query = `
		INSERT INTO password_tokens (user_id, token_hash, expires_at)
		VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (user_id) DO UPDATE
		SET token_hash = excluded.token_hash,
			created_at = now(),
			expires_at = excluded.expires_at
		RETURNING expires_at`
	t.PasswordToken = "cairn_pw_" + rand.Text() // 130 random bits
	if err := tx.QueryRow(ctx, query, userID, hashToken(t.PasswordToken), ttl).Scan(&t.ExpiresAt); err != nil {
		return t, fmt.Errorf("create password token: %w", err)
	}
	return t, nil
}

// setPassword stores a new password hash, audited as action, and voids the user's password token. With a version
// other than 0 it is a problem 409 where the password or status has changed since. The user's row comes before
// his sessions, which the caller ends next: a login under way waits for it, and then finds that its credentials
// are old. The caller holds lockAccess.
func setPassword(ctx context.Context, tx pgx.Tx, by actor, action string, u user, version int64, hash string) error {
	const update = `
		UPDATE users
		SET password_hash = $3,
			credential_version = credential_version + 1,
			updated_at = now()
		WHERE id = $1
			AND $2::bigint IN (0, credential_version)`
	n, err := execute(ctx, tx, "set password", update, u.ID, version, hash)
	if err != nil {
		return err
	}
	if n == 0 {
		return &problem{status: http.StatusConflict, code: "password_changed", detail: "The password was changed in the meantime."}
	}
	if err := audit(ctx, tx, by, action, "user:"+u.Username, nil, nil); err != nil {
		return err
	}
	return voidPasswordToken(ctx, tx, u.ID)
}

// voidPasswordToken voids the user's password token.
func voidPasswordToken(ctx context.Context, tx pgx.Tx, userID string) error {
	_, err := execute(ctx, tx, "void password token", `DELETE FROM password_tokens WHERE user_id = $1`, userID)
	return err
}

// endEverything ends all that a user holds: sessions, API tokens and password tokens.
func endEverything(ctx context.Context, tx pgx.Tx, by actor, u user) error {
	if _, err := endUserSessions(ctx, tx, by, u.ID, ""); err != nil {
		return err
	}
	if _, err := deleteAPITokens(ctx, tx, by, u, nil); err != nil {
		return err
	}
	return voidPasswordToken(ctx, tx, u.ID)
}

// firstPasswordTTL is how long the token for a first password is good.
const firstPasswordTTL = 72 * time.Hour
