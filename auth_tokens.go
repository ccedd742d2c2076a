package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// tokenIssuer is both iss and aud of an access token: Cairn accepts only its own tokens.
const tokenIssuer = "cairn"

// maxTokenLength bounds the work for a forged token. An access token has about 350 characters.
const maxTokenLength = 1024

// errToken stands for every reason to refuse a token. The client does not learn the reason.
var errToken = errors.New("invalid token")

// tokenClaims are the claims of an access token (RFC 9068, without those that have no meaning
// here). They name the user and the session, never permissions: each request looks those up.
type tokenClaims struct {
	Issuer    string `json:"iss"`
	Audience  string `json:"aud"`
	Subject   string `json:"sub"` // the user's id
	SessionID string `json:"sid"`
	IssuedAt  int64  `json:"iat"` // Unix seconds
	ExpiresAt int64  `json:"exp"` // Unix seconds
	ID        string `json:"jti"`
}

// signAccessToken returns an access token: a JWT (RFC 7519) signed with HS256 (RFC 7515).
func (ring *keyring) signAccessToken(subject, sessionID string, issued, expires time.Time) string {
	payload, _ := json.Marshal(tokenClaims{ // text and numbers: there is no error
		Issuer:    tokenIssuer,
		Audience:  tokenIssuer,
		Subject:   subject,
		SessionID: sessionID,
		IssuedAt:  issued.Unix(),
		ExpiresAt: expires.Unix(),
		ID:        rand.Text(),
	})
	return ring.signer().signJWT(base64.RawURLEncoding.EncodeToString(payload))
}

// signJWT returns the access token for a payload, which is in base64url already.
func (k key) signJWT(payload string) string {
	signed := k.header + "." + payload
	return signed + "." + encodedMAC(k.access, signed)
}

// isSigned reports whether the token equals sign(k) for one of the keys k. It compares the encoded
// text, because base64 can write the same bytes in several ways.
func (ring *keyring) isSigned(token string, sign func(k key) string) bool {
	return slices.ContainsFunc(ring.keys, func(k key) bool {
		return hmac.Equal([]byte(token), []byte(sign(k)))
	})
}

// uuidText returns the text form of a UUID (RFC 9562, section 4).
func uuidText(id [16]byte) string { return pgtype.UUID{Bytes: id, Valid: true}.String() }

// canonicalUUID matches the text form that uuidText returns.
var canonicalUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// noUUID is the id of no object.
const noUUID = "00000000-0000-0000-0000-000000000000"

// verifyAccessToken returns the claims of an access token that one of the keys has signed and that
// is valid at the time now, else errToken. longest is how long a session may last: no access token
// outlives its session.
//
// Nothing is decoded before the MAC has been compared. The header is not interpreted: it must be,
// byte for byte, the one that the key signs. This rules out "alg":"none" and similar tricks (RFC
// 8725, section 3.1). The payload, too, must be what signAccessToken writes for these claims, so
// that no claim passes unread.
func (ring *keyring) verifyAccessToken(token string, now time.Time, longest time.Duration) (tokenClaims, error) {
	if len(token) > maxTokenLength {
		return tokenClaims{}, errToken
	}

	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	sign := func(k key) string { return k.signJWT(payload) }
	if !ring.isSigned(token, sign) {
		return tokenClaims{}, errToken
	}

	var claims tokenClaims
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(payload)
	if err != nil || json.Unmarshal(decoded, &claims) != nil {
		return tokenClaims{}, errToken
	}

	// Accept only a payload that signAccessToken could have written: the same bytes for the same
	// claims, and an ID in the form of rand.Text.
	again, _ := json.Marshal(claims)
	isCanonical := payload == base64.RawURLEncoding.EncodeToString(again)
	isOurs := claims.Issuer == tokenIssuer && claims.Audience == tokenIssuer
	hasIDs := canonicalUUID.MatchString(claims.Subject) && canonicalUUID.MatchString(claims.SessionID)
	isRandom := len(claims.ID) == 26 && consistsOf(claims.ID, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
	if !isCanonical || !isOurs || !hasIDs || !isRandom {
		return tokenClaims{}, errToken
	}

	at := now.Unix()
	isExpired := at >= claims.ExpiresAt
	isFromFuture := claims.IssuedAt > at+maxClockSkew
	isTooLong := claims.ExpiresAt > claims.IssuedAt+int64(longest/time.Second)+maxClockSkew
	if isExpired || isFromFuture || isTooLong {
		return tokenClaims{}, errToken
	}
	return claims, nil
}

// maxClockSkew is how far, in seconds, the clock of another instance or of the database may be
// ahead of this one.
const maxClockSkew = 60

// The first byte of a refresh token, and the length of version, session id, generation and MAC.
const (
	refreshVersion   = 1
	refreshTokenSize = 1 + 16 + 8 + sha256.Size
)

// signRefresh returns the refresh token of one generation of a session. The same input gives the
// same token, so that a lost answer can be given again.
func (k key) signRefresh(session [16]byte, generation int64) string {
	b := append([]byte{refreshVersion}, session[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(generation))
	return base64.RawURLEncoding.EncodeToString(append(b, hmacSHA256(k.refresh, b)...))
}

// verifyRefresh returns the session and generation that a refresh token names, or errToken. It
// refuses a forged token; only the database knows whether the generation is the current one.
func (ring *keyring) verifyRefresh(token string) (session [16]byte, generation int64, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != refreshTokenSize {
		return session, 0, errToken
	}

	// The version, b[0], needs no check of its own: signRefresh writes it anew for the comparison.
	copy(session[:], b[1:17])
	generation = int64(binary.BigEndian.Uint64(b[17:25]))
	sign := func(k key) string { return k.signRefresh(session, generation) }
	if !ring.isSigned(token, sign) {
		return [16]byte{}, 0, errToken
	}
	return session, generation, nil
}

// signCursor returns a cursor that holds the sort keys of a page's last item. The scope names the
// list and its filters; the cursor is valid only there.
func (ring *keyring) signCursor(scope string, keys []string) string {
	payload, _ := json.Marshal(keys) // text: there is no error
	encoded := base64.RawURLEncoding.EncodeToString(payload)
	return encoded + "." + encodedMAC(ring.signer().cursor, encoded+"."+scope)
}

// verifyCursor returns the sort keys in a cursor that signCursor made for this scope, or errToken.
func (ring *keyring) verifyCursor(scope, cursor string) (keys []string, err error) {
	encoded, mac, _ := strings.Cut(cursor, ".")
	sign := func(k key) string { return encodedMAC(k.cursor, encoded+"."+scope) }
	if !ring.isSigned(mac, sign) {
		return nil, errToken
	}

	payload, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || json.Unmarshal(payload, &keys) != nil {
		return nil, errToken // unreachable: Cairn signed it
	}
	return keys, nil
}

// encodedMAC returns the HMAC-SHA-256 of the text in base64url.
func encodedMAC(secret []byte, text string) string {
	return base64.RawURLEncoding.EncodeToString(hmacSHA256(secret, []byte(text)))
}

// hmacSHA256 returns the HMAC of a message with SHA-256 (RFC 2104).
func hmacSHA256(secret, message []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(message)
	return mac.Sum(nil)
}

// apiTokenPrefix begins every API token, so that scanners for leaked secrets recognize one.
const apiTokenPrefix = "cairn_pat_"

// newAPIToken returns an API token and its stored hash. The token is the prefix, 256 random bits
// and a CRC-32 of both, in hexadecimal.
func newAPIToken() (token string, hash []byte) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails (crypto/rand)

	text := apiTokenPrefix + hex.EncodeToString(secret)
	checksum := crc32.ChecksumIEEE([]byte(text))
	token = fmt.Sprintf("%s%08x", text, checksum)
	return token, hashToken(token)
}

// hashAPIToken returns the stored hash of an API token. If its length or its checksum is wrong the
// error is errToken, so that a mistyped token costs no query.
func hashAPIToken(token string) ([]byte, error) {
	const end = len(apiTokenPrefix) + 64
	if len(token) != end+8 {
		return nil, errToken
	}

	checksum := crc32.ChecksumIEEE([]byte(token[:end]))
	if token[end:] != fmt.Sprintf("%08x", checksum) {
		return nil, errToken
	}
	return hashToken(token), nil
}

// hashToken returns the stored hash of an API token, a password token or a recovery code. Their
// random bits are too many to guess, so that a plain SHA-256 is enough.
func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}
