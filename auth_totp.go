package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// totpStep returns the time step whose code this is (RFC 6238, with SHA-1, six digits and steps of
// 30 seconds): the present step or, since clocks differ, the one before or after it.
func totpStep(secret []byte, code string, now time.Time) (step int64, found bool) {
	present := now.Unix() / 30
	for at := present - 1; at <= present+1; at++ {
		mac := hmac.New(sha1.New, secret)
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(at)))
		sum := mac.Sum(nil)

		// Dynamic truncation (RFC 4226, section 5.3).
		offset := sum[len(sum)-1] & 0xf
		number := binary.BigEndian.Uint32(sum[offset:]) & 0x7fffffff
		want := fmt.Appendf(nil, "%06d", number%1_000_000)

		// All three steps are computed, whichever matches.
		if subtle.ConstantTimeCompare(want, []byte(code)) == 1 {
			step = at
			found = true
		}
	}
	return step, found
}

// useTOTP reports whether the code is right for the user's secret. It stores the time step of a
// right code: no instance accepts this code or an older one again. If the key file does not have
// the key of the secret, the error is a 503.
//
// The user's id is additional authenticated data, so that a secret cannot be decrypted in another
// user's row. With each right code the secret is encrypted again, under the signer. So in time no
// secret needs a former key.
func (a *accounts) useTOTP(ctx context.Context, q querier, userID, code string) (bool, error) {
	const get = `SELECT kid, secret FROM totp_secrets WHERE user_id = $1`
	const use = `
		UPDATE totp_secrets
		SET last_step = $3,
			kid = $4,
			secret = $5
		WHERE user_id = $1
			AND secret = $2
			AND last_step < $3`

	found, err := collectOne[struct {
		KID    string
		Secret []byte
	}](ctx, q, nil, "get TOTP secret", get, userID)
	if err != nil || found.KID == "" {
		return false, err
	}

	ring := a.core.keys.Load()
	k, isKnown := ring.find(found.KID)
	if !isKnown {
		return false, &problem{
			status:     http.StatusServiceUnavailable,
			code:       codeTOTPUnavailable,
			retryAfter: time.Minute,
			detail:     "Codes cannot be checked now. Use a recovery code, or tell the operator.",
			err:        errors.New("the key file has no key " + found.KID),
		}
	}
	secret, err := k.totp.Open(nil, nil, found.Secret, []byte(userID))
	if err != nil {
		return false, fmt.Errorf("decrypt TOTP secret: %w", err)
	}

	step, isRight := totpStep(secret, code, a.core.now())
	if !isRight {
		return false, nil
	}

	k = ring.signer()
	stored := k.totp.Seal(nil, nil, secret, []byte(userID))

	// No row changes if another request has used this step meanwhile, or a later one.
	n, err := execute(ctx, q, "use TOTP code", use, userID, found.Secret, step, k.id, stored)
	return n == 1, err
}

// useRecoveryCode reports whether the user has this recovery code, and uses it up.
func useRecoveryCode(ctx context.Context, q querier, by actor, u user, code string) (bool, error) {
	const query = `
		WITH used AS (
			UPDATE totp_secrets
			SET recovery_hashes = array_remove(recovery_hashes, @hash)
			WHERE user_id = @user
				AND @hash = ANY (recovery_hashes)
			RETURNING cardinality(recovery_hashes) AS codes_left
		)` + insertAudit + `
		SELECT
			` + actorValues + `,
			'totp.recovery_code',
			@target,
			NULL, -- before
			to_jsonb(used) -- after
		FROM used`

	args := by.named()
	args["target"] = "user:" + u.Username
	args["user"] = u.ID
	args["hash"] = hashToken(code)
	n, err := execute(ctx, q, "use recovery code", query, args)
	return n == 1, err
}

// normalizeCode returns a code without the blanks and dashes between its groups, in capitals as in
// recovery codes.
func normalizeCode(otp string) string {
	return strings.ToUpper(strings.NewReplacer(" ", "", "-", "").Replace(otp))
}

// checkSecondFactor checks the second factor of an attempt whose password is right: otp is a code
// of the app, a recovery code, or the answer of a passkey, which is JSON. It notes the passkey in
// found. A refusal is errOTPRequired or errLoginCodeWrong. A user who is not active cannot sign in,
// and needs no code to learn that.
//
// An attempt without a code is no failure, and no success either. If it restarted the counts,
// somebody who knows the password could guess codes without end.
func (a *accounts) checkSecondFactor(r *http.Request, found *passwordRecord, otp string) error {
	if !found.HasSecondFactor() || found.Status != statusActive {
		return nil
	}
	code := normalizeCode(otp)
	if code == "" {
		return errOTPRequired
	}

	var isRight bool
	var err error
	switch {
	case strings.HasPrefix(otp, "{"):
		// The password is the other factor, so the passkey need not verify its user.
		found.usedPasskey, err = a.usePasskey(r.Context(), found.ID, ":second-factor", readAnswer(otp), userPresent)
		isRight = found.usedPasskey != nil
	case !found.TOTP:
		isRight = false // a secret that waits for its confirmation is no second factor
	case len(code) == 6:
		isRight, err = a.useTOTP(r.Context(), a.core.db, found.ID, code)
	default:
		isRight, err = useRecoveryCode(r.Context(), a.core.db, actorOf(r), found.user, code)
	}
	if err == nil && !isRight {
		err = errLoginCodeWrong
	}
	return err
}

// createTOTP answers POST /api/v1/auth/totp: it checks the caller's password, and the passkey of a
// caller who has one. It stores a new secret, which replaces one that was not confirmed. The answer
// has the secret in base32 and its otpauth URI for qrSVG. enableTOTP accepts the secret within 15
// minutes.
//
// The account name in the URI includes the host, if it fits. An app replaces an account of the same
// name, so without the host an account on another service could be lost.
func (a *accounts) createTOTP(w http.ResponseWriter, r *http.Request, in confirmation) error {
	const query = `
		INSERT INTO totp_secrets AS t (user_id, kid, secret, expires_at)
		VALUES ($1, $2, $3, now() + interval '15 minutes')
		ON CONFLICT (user_id) DO UPDATE
		SET kid = $2,
			secret = $3,
			last_step = 0,
			expires_at = excluded.expires_at
		WHERE t.expires_at IS NOT NULL`

	u := principalOf(r).user
	if u.TOTP {
		return errTOTPEnabled
	}
	if err := a.confirmPassword(r, in); err != nil {
		return err
	}

	k := a.core.keys.Load().signer()
	random := make([]byte, 20)
	rand.Read(random) // never fails (crypto/rand)
	secret := base32.StdEncoding.EncodeToString(random)
	sealed := k.totp.Seal(nil, nil, random, []byte(u.ID))

	const room = 134 - 68 // bytes: the QR code holds 134, and the rest of the URI has 68
	account := u.Username + "@" + url.QueryEscape(r.Host)
	if len(account) > room {
		account = u.Username
	}
	uri := "otpauth://totp/" + account + "?secret=" + secret + "&issuer=Cairn"

	err := a.administer(r, "", func(ctx context.Context, tx pgx.Tx, _ actor) error {
		n, err := execute(ctx, tx, "begin TOTP", query, u.ID, k.id, sealed)
		if err == nil && n == 0 {
			err = errTOTPEnabled
		}
		return err
	})

	answer := map[string]string{
		"secret": secret,
		"uri":    uri,
	}
	return writeCreated(w, answer, "", err)
}

// errTOTPEnabled is the 409 for a user who has an authenticator app already.
var errTOTPEnabled = conflict(codeTOTPEnabled, "Remove your authenticator app first.")

// totpConfirmRequest is the body of POST /api/v1/auth/totp/confirm.
type totpConfirmRequest struct {
	OTP string `json:"otp"`
}

// enableTOTP answers POST /api/v1/auth/totp/confirm: it makes the secret of createTOTP the caller's
// second factor, if the code is right. The answer has ten recovery codes, of which only the hashes
// are stored. The caller's other sessions end and a login under way fails, because neither has used
// the second factor.
func (a *accounts) enableTOTP(w http.ResponseWriter, r *http.Request, in totpConfirmRequest) error {
	const enable = `
		WITH enabled AS (
			UPDATE totp_secrets
			SET recovery_hashes = $2,
				expires_at = NULL
			WHERE user_id = $1
				AND expires_at > now()
			RETURNING user_id
		)
		UPDATE users
		SET totp = true,
			credential_version = credential_version + 1,
			updated_at = now()
		WHERE id = (SELECT user_id FROM enabled)`

	var recovery []string
	var hashes [][]byte
	for range 10 {
		text := rand.Text()[:24] // 120 random bits: too many to guess from the hash
		groups := []string{text[:6], text[6:12], text[12:18], text[18:]}
		recovery = append(recovery, strings.Join(groups, "-"))
		hashes = append(hashes, hashToken(text))
	}

	// The code is a guess: it counts as an attempt to log in.
	p := principalOf(r)
	guess, err := a.newGuess(r.Context(), p.user.ID, p.user.Username, callerOf(r).address)
	if err != nil {
		return err
	}
	if err := guess.count(r.Context(), a.core.db); err != nil {
		return err
	}

	err = a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		n, err := execute(ctx, tx, "enable TOTP", enable, p.user.ID, hashes)
		if err == nil && n == 0 {
			err = conflict(codeTOTPNotBegun, "Ask for a secret first.")
		}
		if err != nil {
			return err
		}

		// The code is checked after the change. A wrong one rolls the change back.
		isRight, err := a.useTOTP(ctx, tx, p.user.ID, normalizeCode(in.OTP))
		if err == nil && !isRight {
			err = errOwnCodeWrong
		}
		if err != nil {
			return err
		}

		if err := endSessionsExcept(ctx, tx, by, p.user.ID, p.credentialID); err != nil {
			return err
		}
		return audit(ctx, tx, by, "totp.enable", "user:"+p.user.Username, nil, nil)
	})

	// A wrong code stays counted, as a wrong password does. All else is refunded, a success too.
	if err != errOwnCodeWrong {
		a.refund(r.Context(), guess)
	}
	return writeEntity(w, map[string][]string{"recovery_codes": recovery}, "", err)
}

// deleteOwnTOTP answers DELETE /api/v1/auth/totp: it removes the caller's authenticator app,
// if password and code are right.
func (a *accounts) deleteOwnTOTP(w http.ResponseWriter, r *http.Request, in confirmation) error {
	u := principalOf(r).user
	if !u.TOTP {
		return notFound("authenticator app of", u.Username)
	}
	if err := a.confirmPassword(r, in); err != nil {
		return err
	}

	return writeDone(w, a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		return deleteTOTP(ctx, tx, by, u)
	}))
}

// deleteTOTP removes a user's second factor, if there is one. Requires lockAccess and a checked
// target (see actOnUser).
func deleteTOTP(ctx context.Context, tx pgx.Tx, by actor, target user) error {
	const query = `
		WITH removed AS (
			DELETE FROM totp_secrets
			WHERE user_id = $1
		)
		UPDATE users
		SET totp = false,
			credential_version = credential_version + 1, -- so that a login under way begins again
			updated_at = now()
		WHERE id = $1
			AND totp`

	n, err := execute(ctx, tx, "remove TOTP", query, target.ID)
	if err != nil || n == 0 {
		return err
	}
	return audit(ctx, tx, by, "totp.disable", "user:"+target.Username, nil, nil)
}
