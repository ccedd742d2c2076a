package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A passkey is a key pair in a user's authenticator. Cairn has the public key. The authenticator
// signs challenges (WebAuthn Level 2, with ES256; the sections below are those of that
// recommendation). With a PIN or a fingerprint, a passkey counts as two factors and signs in alone.
// After a password, a touch is enough.

// challenge returns a challenge for a time, in Unix nanoseconds. Only Cairn can compute it, so
// whoever answers it got it after that time.
func (k key) challenge(issued int64) string {
	text := strconv.FormatInt(issued, 10)
	return text + "." + encodedMAC(k.passkey, text)
}

// verifyChallenge returns the time in a challenge. isValid reports whether one of the keys made the
// challenge, and it may still be answered now.
func (ring *keyring) verifyChallenge(challenge string, now time.Time) (issued int64, isValid bool) {
	text, _, _ := strings.Cut(challenge, ".")
	issued, _ = strconv.ParseInt(text, 10, 64) // after an error, it is 1970 or centuries away

	age := now.Sub(time.Unix(0, issued))
	isTimely := age > -time.Minute && age < 5*time.Minute // clocks of instances may differ a little
	isSigned := ring.isSigned(challenge, func(k key) string { return k.challenge(issued) })
	return issued, isTimely && isSigned
}

// getChallenge answers GET /api/v1/auth/passkeys/challenge with a challenge, which each passkey may
// answer once (see usePasskey). It is stored nowhere.
func (a *accounts) getChallenge(w http.ResponseWriter, _ *http.Request) error {
	challenge := a.core.keys.Load().signer().challenge(a.core.now().UnixNano())
	return writeJSON(w, http.StatusOK, map[string]string{"challenge": challenge})
}

// Flags of the authenticator data (section 6.1).
const (
	userPresent   = 1 << 0 // somebody touched the authenticator
	userVerified  = 1 << 2 // and proved to be its user, by a PIN or a fingerprint
	hasCredential = 1 << 6 // the data has the id of a new key
)

// maxCredentialID is the length of the longest credential id (Level 3, section 7.1), in bytes.
const maxCredentialID = 1023

// passkeyAnswer is the answer of a browser and an authenticator to a challenge. It is JSON, with
// fields in base64.
type passkeyAnswer struct {
	CredentialID  []byte `json:"credential_id"`      // the authenticator's name of the key
	ClientData    []byte `json:"client_data"`        // JSON of the browser: the challenge, who asked
	Authenticator []byte `json:"authenticator_data"` // the host's hash (32 bytes), flags, counter (4)
	Proof         []byte `json:"proof"`              // the signature or, of a new passkey, the public key in DER
}

// readAnswer returns the answer in this text. If there is none, verifyAnswer refuses the result.
func readAnswer(text string) (answer passkeyAnswer) {
	json.Unmarshal([]byte(text), &answer)
	return answer
}

// counter returns the authenticator's signature counter, or 0 if it has none. It requires an answer
// that verifyAnswer accepted.
func (answer passkeyAnswer) counter() uint32 {
	return binary.BigEndian.Uint32(answer.Authenticator[33:])
}

// verifyAnswer checks the client data and the authenticator data of an answer (sections 7.1, 7.2).
// It does not check the signature, the counter or the credential id. kind is "get", or "create" for
// a new passkey. All flags must be set. The answer must be for the origin and the host of
// CAIRN_BASE_URL, so an answer that a page of another site asked for is refused. issued is the time
// of the challenge.
//
// The pages add a purpose to the challenge before the authenticator signs it: ":sign-in" or
// ":second-factor". The answer is refused for another purpose. So an answer that was given in place
// of a code cannot sign in alone. An answer without a purpose is good for both.
func (a *accounts) verifyAnswer(
	answer passkeyAnswer,
	kind, purpose string,
	flags byte,
) (issued int64, isValid bool) {
	// A map, because a struct would also match names in other letter case. Browsers may add fields
	// (section 5.8.1), which are ignored.
	var client map[string]any
	err := json.Unmarshal(answer.ClientData, &client)
	base := a.core.cfg.baseURL
	if err != nil || base == "" || len(answer.Authenticator) < 37 {
		return 0, false
	}

	encoded, _ := client["challenge"].(string)
	signed, _ := base64.RawURLEncoding.DecodeString(encoded) // the MAC decides, error or not
	issued, isChallengeValid := a.core.keys.Load().verifyChallenge(
		strings.TrimSuffix(string(signed), purpose), a.core.now())

	site, _ := url.Parse(base) // loadConfig has checked it
	host := sha256.Sum256([]byte(site.Hostname()))
	isFramed := client["crossOrigin"] == true || client["topOrigin"] != nil
	isOurs := client["origin"] == base && !isFramed && bytes.HasPrefix(answer.Authenticator, host[:])
	isOfKind := client["type"] == "webauthn."+kind && answer.Authenticator[32]&flags == flags
	return issued, isChallengeValid && isOurs && isOfKind
}

// passkeyKey returns a public key on the curve P-256, or nil for anything else.
func passkeyKey(der []byte) *ecdsa.PublicKey {
	parsed, _ := x509.ParsePKIXPublicKey(der)
	public, isECDSA := parsed.(*ecdsa.PublicKey)
	if !isECDSA || public.Curve != elliptic.P256() {
		return nil
	}
	return public
}

// usePasskey returns the user's passkey that signed this answer with these flags for this purpose,
// or nil. It stores the time of the challenge. No instance then accepts an answer of this passkey
// to this challenge or an older one. If the authenticator counts, its counter must have risen.
// Otherwise somebody may have a copy of the key (section 7.2, step 21).
func (a *accounts) usePasskey(
	ctx context.Context,
	userID, purpose string,
	answer passkeyAnswer,
	flags byte,
) (*passkey, error) {
	const get = `
		SELECT public_key
		FROM passkeys
		WHERE user_id = nullif($1, '')::uuid
			AND credential_id = $2`
	const use = `
		UPDATE passkeys
		SET last_challenge = $3,
			sign_count = $4,
			last_used_at = now()
		WHERE user_id = $1
			AND credential_id = $2
			AND last_challenge < $3
			AND (sign_count < $4 OR (sign_count = 0 AND $4 = 0))
		RETURNING ` + passkeyColumns

	issued, isValid := a.verifyAnswer(answer, "get", purpose, flags)
	if !isValid {
		return nil, nil
	}
	found, err := collectOne[struct{ PublicKey []byte }](ctx, a.core.db, nil, "get passkey", get,
		userID, answer.CredentialID)
	if err != nil || found.PublicKey == nil {
		return nil, err
	}

	client := sha256.Sum256(answer.ClientData)
	signed := sha256.Sum256(slices.Concat(answer.Authenticator, client[:]))
	if !ecdsa.VerifyASN1(passkeyKey(found.PublicKey), signed[:], answer.Proof) {
		return nil, nil
	}

	used, err := collect[passkey](ctx, a.core.db, "use passkey", use,
		userID, answer.CredentialID, issued, answer.counter())
	if len(used) == 0 {
		return nil, err
	}
	return &used[0], nil
}

// checkPasskey checks an answer that signs in alone, and returns its user. The credential id finds
// the user. Attempts are counted by that id, as they are by a login name. If the answer is wrong,
// the error is errPasskeyWrong. The user may be inactive: the caller checks the status.
func (a *accounts) checkPasskey(r *http.Request, text string) (found passwordRecord, err error) {
	ctx := r.Context()
	answer := readAnswer(text)
	found, err = findPasskeyOwner(ctx, a.core.db, answer.CredentialID)
	if err != nil {
		return found, err
	}

	// The prefix has a colon, and no login name has one. Without the prefix, a passkey whose id in
	// hex is somebody's name could restart the counts of that name.
	guess, err := a.newGuess(ctx, found.ID, fmt.Sprintf("passkey:%x", answer.CredentialID), callerOf(r).address)
	if err != nil {
		return found, err
	}

	err = a.throttledHash(ctx, guess, func() (isSuccess bool, err error) {
		found.usedPasskey, err = a.usePasskey(ctx, found.ID, ":sign-in", answer, userPresent|userVerified)
		if err == nil && found.usedPasskey == nil {
			err = errPasskeyWrong
		}
		return err == nil && found.Status == statusActive, err
	})
	return found, err
}

// passkeyRequest is the body of POST /api/v1/auth/passkeys.
type passkeyRequest struct {
	confirmation
	Name    string `json:"name"`
	Passkey string `json:"passkey"`
}

// createOwnPasskey answers POST /api/v1/auth/passkeys. The passkey outlives the session, so the
// caller must give the password and, if there is one, the second factor. Nothing is attested: the
// browser is trusted to send the user's own key. The other sessions end, and a login under way
// fails, because they may have been opened without a second factor.
func (a *accounts) createOwnPasskey(w http.ResponseWriter, r *http.Request, in passkeyRequest) error {
	// createTOTP shows the secret of an app only to somebody who has used a passkey, if the account
	// has one. A secret that was shown before is not safe in this way, so it is deleted.
	const query = `
		WITH void AS (
			DELETE FROM totp_secrets
			WHERE user_id = $1 AND expires_at IS NOT NULL
		)
		INSERT INTO passkeys (
			user_id,
			name,
			credential_id,
			public_key,
			sign_count,
			last_challenge
		)
		SELECT $1, $2, $3, $4, $5, $6
		WHERE (SELECT count(*) FROM passkeys WHERE user_id = $1) < 10
		RETURNING ` + passkeyColumns

	answer := readAnswer(in.Passkey)
	issued, isValid := a.verifyAnswer(answer, "create", "", userPresent|userVerified|hasCredential)

	// The authenticator data repeats the id. Before it come 37 bytes of header, 16 bytes for the
	// model and 2 bytes for the length of the id. After it comes the key in CBOR. That is not read:
	// the browser sends the same key in DER.
	id := answer.CredentialID
	lengthAndID := append(binary.BigEndian.AppendUint16(nil, uint16(len(id))), id...)
	isValid = isValid && len(id) > 0 && len(id) <= maxCredentialID && passkeyKey(answer.Proof) != nil &&
		len(answer.Authenticator) > 53 && bytes.HasPrefix(answer.Authenticator[53:], lengthAndID)

	var v invalid
	v.check(isLine(in.Name, 1, 100), "name", fieldMalformed, "must be one line of 1 to 100 characters")
	v.check(isValid, "passkey", fieldMalformed, "must be a new ES256 key for the host of CAIRN_BASE_URL: try again")
	if err := v.err(); err != nil {
		return err
	}
	if err := a.confirmPassword(r, in.confirmation); err != nil {
		return err
	}

	p := principalOf(r)
	var created passkey
	err := a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		tooMany := conflict(codeTooManyPasskeys, "A user can have at most ten passkeys. End one that is not needed.")
		created, err = collectOne[passkey](ctx, tx, tooMany, "add passkey", query,
			p.user.ID, in.Name, id, answer.Proof, answer.counter(), issued)
		if err != nil {
			return takenError(err)
		}

		err = audit(ctx, tx, by, "passkey.add", "user:"+p.user.Username, nil, created)
		if err != nil {
			return err
		}
		return endSessionsExcept(ctx, tx, by, p.user.ID, p.credentialID)
	})
	return writeCreated(w, created, "", err)
}

// endOwnPasskey answers DELETE /api/v1/auth/passkeys/{id}. It needs what createOwnPasskey needs.
// The other sessions end, because the passkey may have opened one.
func (a *accounts) endOwnPasskey(w http.ResponseWriter, r *http.Request, in confirmation) error {
	if err := a.confirmPassword(r, in); err != nil {
		return err
	}

	p := principalOf(r)
	return writeDone(w, a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		if err := deletePasskeys(ctx, tx, by, p.user, pathUUID(r, "id")); err != nil {
			return err
		}
		return endSessionsExcept(ctx, tx, by, p.user.ID, p.credentialID)
	}))
}

// deletePasskeys deletes the user's passkey with that id, or returns a 404. With the id "" it
// deletes all of the user's passkeys, if there are any. Requires lockAccess and a checked target
// (see actOnUser).
func deletePasskeys(ctx context.Context, tx pgx.Tx, by actor, target user, id string) error {
	const query = `
		WITH ended AS (
			DELETE FROM passkeys
			WHERE user_id = @user
				AND (@id = '' OR id = nullif(@id, '')::uuid)
			RETURNING ` + passkeyColumns + `
		)` + insertAudit + `
		SELECT
			` + actorValues + `,
			'passkey.end',
			@target,
			to_jsonb(ended) || jsonb_build_object( -- before
				'credential_id', translate(encode(credential_id, 'base64'), E'\n', '')
			),
			NULL -- after
		FROM ended
		ORDER BY created_at, id`

	args := by.named()
	args["target"] = "user:" + target.Username
	args["user"] = target.ID
	args["id"] = id
	n, err := execute(ctx, tx, "end passkeys", query, args)
	if err == nil && n == 0 && id != "" {
		err = notFound("passkey", id)
	}
	return err
}
