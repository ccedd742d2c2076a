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
// recommendation). With a PIN or a fingerprint it stands for two factors, and so signs in alone.
// After a password, a touch is enough.

// challenge returns the challenge of a time, in Unix nanoseconds. Nobody else can compute it, so an
// answer to it was made after that time.
func (k key) challenge(issued int64) string {
	text := strconv.FormatInt(issued, 10)
	return text + "." + encodedMAC(k.passkey, text)
}

// verifyChallenge returns the time of a challenge that one of the keys made, and whether it may
// still be answered at the time now.
func (ring *keyring) verifyChallenge(challenge string, now time.Time) (issued int64, isValid bool) {
	text, _, _ := strings.Cut(challenge, ".")
	issued, _ = strconv.ParseInt(text, 10, 64) // after an error, the time is long ago or to come

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

// maxCredentialID is the length of the longest credential id (section 5.8.3), in bytes.
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

// counter returns how many signatures the authenticator has made, or 0 if it does not count.
func (answer passkeyAnswer) counter() uint32 {
	return binary.BigEndian.Uint32(answer.Authenticator[33:])
}

// verifyAnswer checks all of an answer but the signature: sections 7.1 and 7.2. It returns the time
// of the challenge. kind is "get", or "create" for a new passkey. The origin and the host are those
// of CAIRN_BASE_URL. So an answer that a page of another site has asked for is refused.
func (a *accounts) verifyAnswer(answer passkeyAnswer, kind string, flags byte) (issued int64, isValid bool) {
	// Browsers may add fields (section 5.8.1). The names are compared exactly.
	var client map[string]any
	err := json.Unmarshal(answer.ClientData, &client)
	base := a.core.cfg.baseURL
	if err != nil || base == "" || len(answer.Authenticator) < 37 {
		return 0, false
	}

	encoded, _ := client["challenge"].(string)
	challenge, _ := base64.RawURLEncoding.DecodeString(encoded) // after an error, it is not ours
	issued, isTimely := a.core.keys.Load().verifyChallenge(string(challenge), a.core.now())

	site, _ := url.Parse(base) // loadConfig has checked it
	host := sha256.Sum256([]byte(site.Hostname()))
	isFramed := client["crossOrigin"] == true || client["topOrigin"] != nil
	isOurs := client["origin"] == base && !isFramed && bytes.HasPrefix(answer.Authenticator, host[:])
	isOfKind := client["type"] == "webauthn."+kind && answer.Authenticator[32]&flags == flags
	return issued, isTimely && isOurs && isOfKind
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

// usePasskey returns the user's passkey that has given this answer, with these flags, or nil. It
// stores the time of the challenge: no instance accepts this answer again, or one to an older
// challenge. The counter of an authenticator that counts must have risen. Otherwise somebody has a
// copy of the key (section 7.2, step 21).
func (a *accounts) usePasskey(ctx context.Context, userID string, answer passkeyAnswer, flags byte) (*passkey, error) {
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

	issued, isValid := a.verifyAnswer(answer, "get", flags)
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

// checkPasskey checks an answer that signs in alone, and returns its user. The credential id names
// the user, and attempts are counted for it as for a login name. A refusal is errPasskeyWrong.
func (a *accounts) checkPasskey(r *http.Request, text string) (found passwordRecord, err error) {
	ctx := r.Context()
	answer := readAnswer(text)
	found, err = findPasskeyOwner(ctx, a.core.db, answer.CredentialID)
	if err != nil {
		return found, err
	}

	// No login name has a colon. Without it, a passkey whose id is somebody's name could restart
	// the counts of that name.
	guess, err := a.newGuess(ctx, found.ID, fmt.Sprintf("passkey:%x", answer.CredentialID), callerOf(r).address)
	if err != nil {
		return found, err
	}

	err = a.throttledHash(ctx, guess, func() (isSuccess bool, err error) {
		found.usedPasskey, err = a.usePasskey(ctx, found.ID, answer, userPresent|userVerified)
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

// createOwnPasskey answers POST /api/v1/auth/passkeys. It needs the password and the second factor,
// because the passkey outlives the session. Nothing is attested: after these two, the browser is
// trusted to tell the key of its own user. The other sessions end and a login under way fails,
// because neither may have used a second factor.
func (a *accounts) createOwnPasskey(w http.ResponseWriter, r *http.Request, in passkeyRequest) error {
	// A secret of an app that waits for its confirmation was given without this passkey.
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
	issued, isValid := a.verifyAnswer(answer, "create", userPresent|userVerified|hasCredential)

	// The authenticator data has the id too: after 16 bytes for the model, and its length. The key
	// after it is in CBOR, which is not read: the browser has given the same key in DER.
	id := answer.CredentialID
	named := append(binary.BigEndian.AppendUint16(nil, uint16(len(id))), id...)
	isValid = isValid && len(id) > 0 && len(id) <= maxCredentialID && passkeyKey(answer.Proof) != nil &&
		len(answer.Authenticator) > 53 && bytes.HasPrefix(answer.Authenticator[53:], named)

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

// endOwnPasskey answers DELETE /api/v1/auth/passkeys/{id}, if password and second factor are right.
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
			to_jsonb(ended) || jsonb_build_object('credential_id', encode(credential_id, 'base64')), -- before
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
