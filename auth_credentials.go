package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// checkCredentials looks the user up, counts the attempt and checks the password and the second
// factor. A refusal is errWrongCredentials, errOTPRequired or errLoginCodeWrong. An unknown user
// and a wrong password take the same steps.
//
// The answer of a passkey, without a name and a password, signs in alone: see checkPasskey.
//
// On pages, the code comes in a second step. The second step has a proof that the password was
// right (see passwordProof) instead of the password. If the proof is not valid, the error is
// errSignInAgain, and nothing is counted.
func (a *accounts) checkCredentials(
	r *http.Request,
	login, password string,
	proof *string,
	otp string,
) (found passwordRecord, err error) {
	if login == "" && password == "" && strings.HasPrefix(otp, "{") {
		return a.checkPasskey(r, otp)
	}

	ctx := r.Context()
	found, err = findPasswordRecord(ctx, a.core.db, login)
	if err != nil {
		return found, err
	}

	if proof != nil && !a.core.keys.Load().verifyProof(*proof, found, a.core.now()) {
		return found, errSignInAgain
	}

	guess, err := a.newGuess(ctx, found.ID, login, callerOf(r).address)
	if err != nil {
		return found, err
	}

	err = a.throttledHash(ctx, guess, func() (isSuccess bool, err error) {
		if proof == nil {
			isRight, err := a.hasher.verifyInSlot(found.PasswordHash, password)
			if err != nil {
				return false, err
			}
			if !isRight {
				return false, errWrongCredentials
			}
		}

		err = a.checkSecondFactor(r, &found, otp)
		return err == nil && found.Status == statusActive, err
	})

	return found, err
}

// codeWait is how long after the password the code may follow, on pages.
const codeWait = 5 * time.Minute

// passwordProof returns a proof that the password of these credentials was right. It is valid until
// expires, in Unix seconds, or until the user's credential_version rises. It holds no secret, and
// signs nobody in without a code.
func (k key) passwordProof(found passwordRecord, expires int64) string {
	signed := fmt.Sprintf("%d.%s.%d", expires, found.ID, found.CredentialVersion)
	return fmt.Sprintf("%d.%s", expires, encodedMAC(k.login, signed))
}

// verifyProof reports whether one of the keys made this passwordProof of the credentials, and it is
// valid at the time now.
func (ring *keyring) verifyProof(proof string, found passwordRecord, now time.Time) bool {
	end, _, _ := strings.Cut(proof, ".")
	expires, err := strconv.ParseInt(end, 10, 64)
	if err != nil || now.Unix() >= expires {
		return false
	}

	return ring.isSigned(proof, func(k key) string { return k.passwordProof(found, expires) })
}

// rehash stores a password under the current parameters if it was stored under weaker ones. If this
// fails, the login still succeeds. An empty password stands for one that is not known here.
func (a *accounts) rehash(r *http.Request, found passwordRecord, password string) {
	const query = `
		UPDATE users
		SET password_hash = $3
		WHERE id = $1
			AND password_hash = $2`
	if password == "" || !a.hasher.isWeak(*found.PasswordHash) {
		return
	}

	ctx, cancel := context.WithTimeout(r.Context(), time.Second) // part of the login's time limit
	defer cancel()

	hash, err := a.hasher.hash(ctx, password)
	if err == nil {
		_, err = a.core.db.Exec(ctx, query, found.ID, *found.PasswordHash, hash)
	}
	if err != nil {
		a.core.log.Warn("password kept under weaker parameters", "id", callerOf(r).requestID, "error", err)
	}
}

// confirmation is the caller's password and code, once more. A request sends them for a change that
// must not be possible with a stolen session alone.
type confirmation struct {
	CurrentPassword string `json:"current_password"`
	OTP             string `json:"otp"` // for a caller with a second factor: see checkSecondFactor
}

// confirmPassword checks the caller's own password and, if there is one, the second factor. It
// counts as an attempt to log in. A missing password is a 422 and no attempt. The change that
// follows fails if the password or the second factor has changed meanwhile (see actorNow).
func (a *accounts) confirmPassword(r *http.Request, c confirmation) error {
	if c.CurrentPassword == "" {
		return invalid{{"current_password", fieldMissing, "is required"}}.err()
	}

	// A 401 would say that the session has ended, so each refusal becomes a 403.
	found, err := a.checkCredentials(r, principalOf(r).user.Username, c.CurrentPassword, nil, c.OTP)
	switch err {
	case errWrongCredentials:
		err = forbidden(codeWrongPassword, "The current password is wrong.")
	case errOTPRequired:
		err = forbidden(errOTPRequired.code, errOTPRequired.detail)
	case errLoginCodeWrong:
		err = errOwnCodeWrong
	}
	callerOf(r).confirmed = found.CredentialVersion
	return err
}

// commonPasswords is common-passwords.txt. Its first lines name its source.
//
//go:embed common-passwords.txt
var commonPasswords string

// checkPassword adds to v what is wrong with a new password, and returns the 422 for all faults in
// v, or nil. A password is refused if it is too short or too long, common, breached, or a name of
// its owner. No kind of character is required or forbidden (NIST SP 800-63B-4, section 3.1.1.2).
// If the list of breached passwords cannot be read, the error is a 503: no password is accepted
// unchecked.
func checkPassword(
	v *invalid,
	field, password string,
	least int,
	breached *breachedPasswords,
	owner user,
) error {
	n := utf8.RuneCountInString(password)
	v.check(n >= least, field, fieldTooShort, fmt.Sprintf("must have at least %d characters", least))
	v.check(n <= maxPassword, field, fieldTooLong, fmt.Sprintf("must have at most %d characters", maxPassword))

	// User name and e-mail address are in lower case already.
	lower := strings.ToLower(password)
	names := []string{owner.Username, strings.ToLower(owner.DisplayName)}
	if owner.Email != nil {
		local, _, _ := strings.Cut(*owner.Email, "@")
		names = append(names, *owner.Email, local)
	}
	isOwnName := lower != "" && slices.Contains(names, lower)
	v.check(!isOwnName, field, fieldOwnName, "must not be a name of the account")

	isCommon := !strings.Contains(lower, "\n") && strings.Contains(commonPasswords, "\n"+lower+"\n")
	v.check(!isCommon, field, fieldCommon, "is too common")

	// The list is read last, and only for a password that may be accepted.
	if err := v.err(); err != nil {
		return err
	}
	found, err := breached.contains(password)
	if err != nil {
		return &problem{
			status:     http.StatusServiceUnavailable,
			code:       codePasswordListUnavailable,
			err:        err,
			detail:     "New passwords cannot be checked now. Tell the operator.",
			retryAfter: time.Minute,
		}
	}
	v.check(!found, field, fieldBreached, "is known from a data breach: choose another")
	return v.err()
}

// checkNewPassword returns a 422 for the field new_password, or the 503 of checkPassword.
func (a *accounts) checkNewPassword(password string, u user) error {
	return checkPassword(
		&invalid{}, "new_password", password,
		a.core.cfg.passwordMin, a.breached, u,
	)
}

// passwordRequest is the body of PUT /api/v1/auth/password.
type passwordRequest struct {
	confirmation
	NewPassword string `json:"new_password"`
	EndTokens   bool   `json:"end_tokens"`
}

// changePassword answers PUT /api/v1/auth/password. The user's other sessions end and, with
// end_tokens, the user's API tokens.
func (a *accounts) changePassword(w http.ResponseWriter, r *http.Request, in passwordRequest) error {
	ctx := r.Context()
	p := principalOf(r)
	if err := a.checkNewPassword(in.NewPassword, p.user); err != nil {
		return err
	}

	if err := a.confirmPassword(r, in.confirmation); err != nil {
		return err
	}

	hash, err := a.hasher.hash(ctx, in.NewPassword)
	if err != nil {
		return err
	}

	return writeDone(w, a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		if err := setPassword(ctx, tx, by, "password.change", p.user, hash); err != nil {
			return err
		}
		if in.EndTokens {
			if err := deleteAPITokens(ctx, tx, by, p.user, ""); err != nil {
				return err
			}
		}
		return endSessionsExcept(ctx, tx, by, p.user.ID, p.credentialID)
	}))
}

// passwordResetRequest is the body of POST /api/v1/auth/password-reset.
type passwordResetRequest struct {
	Token       string `json:"token"`
	NewPassword string `json:"new_password"`
}

// resetPassword answers POST /api/v1/auth/password-reset: the holder of a password token sets the
// password, once. All sessions and API tokens of the user end, and the counts of wrong guesses
// restart. The account forgets the networks that it knows, because one may be an intruder's; only
// the network of this request stays, if it was known. Passkeys and the app stay too: SECURITY.md
// says when to remove them.
func (a *accounts) resetPassword(w http.ResponseWriter, r *http.Request, in passwordResetRequest) error {
	const forget = `DELETE FROM known_networks WHERE user_id = $1 AND network <> $2`
	ctx := r.Context()

	// Read before hashing, so that guessing a token costs no hash. It is used up below.
	u, err := getUserByPasswordToken(ctx, a.core.db, in.Token)
	if problemIn(err) != nil {
		refused := tally{
			action:  "password_token.refused",
			address: callerOf(r).network(),
		}
		a.failures.add(refused, 1)
	}
	if err != nil {
		return err
	}

	if err := a.checkNewPassword(in.NewPassword, u); err != nil {
		return err
	}

	hash, err := a.hasher.hash(ctx, in.NewPassword)
	if err != nil {
		return err
	}

	err = a.queueAccessChange(ctx, func(tx pgx.Tx) error {
		u, err = getUserByPasswordToken(ctx, tx, in.Token)
		if err != nil {
			return err
		}

		if err := setPassword(ctx, tx, actorOf(r), "password.reset", u, hash); err != nil {
			return err
		}
		if err := resetThrottles(ctx, tx, a.core.keys.Load(), u); err != nil {
			return err
		}
		_, err := execute(ctx, tx, "forget known networks", forget, u.ID, callerOf(r).network())
		if err != nil {
			return err
		}
		return revokeCredentials(ctx, tx, actorOf(r), u)
	})
	if err != nil {
		return err
	}

	// The token in the first administrator's file is void now.
	if u.Username == "admin" {
		err := removeIfThere(a.core.cfg.firstAdminFile())
		if err != nil {
			a.core.log.Warn("used token file not removed", "error", err)
		}
	}

	return writeDone(w, nil)
}

// getUserByPasswordToken returns the user whose password the token may set, or the 401.
func getUserByPasswordToken(ctx context.Context, q querier, token string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM password_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.token_hash = $1
			AND t.expires_at > now()`
	missing := unauthorized(codePasswordTokenInvalid, "The token is unknown, used or expired.")
	return collectOne[user](ctx, q, missing, "find password token", query, hashToken(token))
}

// passwordToken lets a user set a password once. Only the response to its creation shows it.
type passwordToken struct {
	PasswordToken string    `json:"password_token"`
	PasswordLink  string    `json:"password_link,omitempty"` // the page that takes the token, with CAIRN_BASE_URL
	ExpiresAt     time.Time `json:"expires_at"`
}

// withLink returns the token with its link, if CAIRN_BASE_URL is set.
func (t passwordToken) withLink(cfg config) passwordToken {
	if cfg.baseURL != "" {
		t.PasswordLink = cfg.baseURL + passwordPath(t.PasswordToken)
	}
	return t
}

// passwordPath returns the path of the page that sets a password with a token. The token follows #,
// so that no server gets it with the address, and no log has it. The page's script moves it into
// the form; without scripts, the user types or pastes it.
func passwordPath(token string) string { return "/set-password#" + token }

// firstPasswordTTL is how long the token for a user's first password is valid.
const firstPasswordTTL = 72 * time.Hour

// createPasswordToken creates the user's only password token; an older one is replaced. Requires
// lockAccess.
func createPasswordToken(ctx context.Context, tx pgx.Tx, userID string, ttl time.Duration) (passwordToken, error) {
	const query = `
		INSERT INTO password_tokens (user_id, token_hash, expires_at)
		VALUES ($1, $2, now() + $3::interval)
		ON CONFLICT (user_id) DO UPDATE
		SET token_hash = excluded.token_hash,
			created_at = now(),
			expires_at = excluded.expires_at
		RETURNING expires_at`

	secret := "cairn_pw_" + rand.Text() // 130 random bits
	expires, err := scalar[time.Time](ctx, tx, "create password token", query, userID, hashToken(secret), ttl)
	token := passwordToken{
		PasswordToken: secret,
		ExpiresAt:     expires,
	}
	return token, err
}

// setPassword stores a new password hash, audits it as action and voids the user's password token.
// Requires lockAccess.
//
// It must be called before the sessions are ended, because it locks the user's row. A login under
// way waits for this lock, and then finds that its credentials are old.
func setPassword(
	ctx context.Context,
	tx pgx.Tx,
	by actor,
	action string,
	u user,
	hash string,
) error {
	const update = `
		WITH voided AS (
			DELETE FROM password_tokens
			WHERE user_id = $1
		)
		UPDATE users
		SET password_hash = $2,
			credential_version = credential_version + 1,
			updated_at = now()
		WHERE id = $1`

	if _, err := execute(ctx, tx, "set password", update, u.ID, hash); err != nil {
		return err
	}
	return audit(ctx, tx, by, action, "user:"+u.Username, nil, nil)
}

// voidPasswordToken voids the user's password token. Requires lockAccess.
func voidPasswordToken(ctx context.Context, tx pgx.Tx, userID string) error {
	_, err := execute(ctx, tx, "void password token", `DELETE FROM password_tokens WHERE user_id = $1`, userID)
	return err
}

// revokeCredentials ends a user's sessions, deletes the API tokens and voids the password token.
// Requires lockAccess.
func revokeCredentials(ctx context.Context, tx pgx.Tx, by actor, u user) error {
	if err := endAllSessions(ctx, tx, by, u); err != nil {
		return err
	}
	if err := deleteAPITokens(ctx, tx, by, u, ""); err != nil {
		return err
	}
	return voidPasswordToken(ctx, tx, u.ID)
}
