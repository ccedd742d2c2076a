package main

import (
	"bufio"
	"bytes"
	"crypto/hkdf"
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
	"strings"
	"time"
)

// tokenIssuer is both iss and aud of our access tokens: Cairn accepts none but its own.
const tokenIssuer = "cairn"

// maxTokenLength bounds what is looked at: our own access tokens have about 350 characters.
const maxTokenLength = 1024

// errToken is every reason to refuse a token. The client is not told which.
var errToken = errors.New("invalid token")

// key is one line of the key file. HKDF (RFC 5869) makes of its secret one key for each use, so that
// what one signs means nothing to another.
type key struct {
	id      string
	header  string // the only access token header we write with this key, encoded
	access  []byte
	refresh []byte
	cursor  []byte
	names   []byte // for login names that are counted without being stored
	audit   []byte // for the seals of the audit log

	fingerprint string // tells the key in the database; it gives nothing away
}

// keyring holds the keys: the first signs, all verify. It does not change once loaded.
type keyring struct {
	keys []key
}

// newKey derives the keys of one line. The id is as parseKeys wants it, the secret has at least 32 bytes.
func newKey(id string, secret []byte) (key, error) {
	header := fmt.Sprintf(`{"alg":"HS256","kid":%q,"typ":"at+jwt"}`, id)
	k := key{id: id, header: base64.RawURLEncoding.EncodeToString([]byte(header))}
	var fingerprint []byte
	var err error
	for use, to := range map[string]*[]byte{
		"cairn access token v1":  &k.access,
		"cairn refresh token v1": &k.refresh,
		"cairn cursor v1":        &k.cursor,
		"cairn names v1":         &k.names,
		"cairn audit v1":         &k.audit,
		"cairn fingerprint v1":   &fingerprint,
	} {
		if *to, err = hkdf.Key(sha256.New, secret, nil, use, sha256.Size); err != nil {
			return key{}, fmt.Errorf("derive %s key: %w", use, err)
		}
	}
	k.fingerprint = hex.EncodeToString(fingerprint[:8])
	return k, nil
}

// parseKeys reads a key file: a line a key, "kid base64", the secret of at least 32 bytes in standard base64. Empty
// lines and lines that begin with # are passed over. Errors name the line, never what is on it.
func parseKeys(file []byte) (*keyring, error) {
	kid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	var ring keyring
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(file))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, _ := strings.Cut(line, " ")
		secret, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(encoded))
		switch {
		case !kid.MatchString(id):
			return nil, fmt.Errorf("line %d: a key is written as: kid, a space, base64", n)
		case err != nil:
			return nil, fmt.Errorf("line %d: the secret is not base64", n)
		case len(secret) < 32:
			return nil, fmt.Errorf("line %d: the secret has %d bytes, needed are 32", n, len(secret))
		case seen[id] || seen[string(secret)]:
			return nil, fmt.Errorf("line %d: a key id or secret is there twice", n)
		}
		seen[id], seen[string(secret)] = true, true
		k, err := newKey(id, secret)
		if err != nil {
			return nil, err
		}
		ring.keys = append(ring.keys, k)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(ring.keys) == 0 {
		return nil, errors.New("no key in it")
	}
	return &ring, nil
}

// accessClaims are the claims of an access token (RFC 9068, less what has no meaning here). It says
// who and in which session, never what he may do: that is looked up at each request.
type accessClaims struct {
	Issuer    string `json:"iss"`
	Audience  string `json:"aud"`
	Subject   string `json:"sub"` // the user's id
	SessionID string `json:"sid"`
	IssuedAt  int64  `json:"iat"` // Unix seconds
	ExpiresAt int64  `json:"exp"` // Unix seconds
	ID        string `json:"jti"`
}

// signAccess makes an access token: a JWT (RFC 7519) signed with HS256 (RFC 7515).
func (ring *keyring) signAccess(subject, sessionID string, issued, expires time.Time) (string, error) {
	payload, err := json.Marshal(accessClaims{
		Issuer:    tokenIssuer,
		Audience:  tokenIssuer,
		Subject:   subject,
		SessionID: sessionID,
		IssuedAt:  issued.Unix(),
		ExpiresAt: expires.Unix(),
		ID:        rand.Text(),
	})
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	k := ring.keys[0]
	signed := k.header + "." + base64.RawURLEncoding.EncodeToString(payload)
	return signed + "." + encodedMAC(k.access, signed), nil
}

// openAccess returns the payload of an access token that one of our keys has signed, still encoded, else errToken.
// Nothing of a token is decoded before its signature has been compared, and that in its encoded form: base64url as Go
// reads it has several spellings of one MAC. The header is not interpreted at all: it is one that we write, byte for
// byte, or it is refused, which leaves no room for "alg":"none" and its kin (RFC 8725, section 3.1).
func (ring *keyring) openAccess(token string) (payload string, err error) {
	end := strings.LastIndexByte(token, '.')
	if end < 0 || len(token) > maxTokenLength {
		return "", errToken
	}
	signed, mac := token[:end], token[end+1:]
	header, payload, _ := strings.Cut(signed, ".")
	for _, k := range ring.keys {
		if header == k.header && hmac.Equal([]byte(mac), []byte(encodedMAC(k.access, signed))) {
			return payload, nil
		}
	}
	return "", errToken
}

// readClaims decodes the payload that openAccess returned and checks that the token is for us and good
// at the time now, else errToken.
func readClaims(payload string, now time.Time) (accessClaims, error) {
	var claims accessClaims
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(payload)
	if err != nil || json.Unmarshal(decoded, &claims) != nil {
		return accessClaims{}, errToken // unreachable: we signed it
	}
	at := now.Unix()
	if claims.Issuer != tokenIssuer || claims.Audience != tokenIssuer || at >= claims.ExpiresAt ||
		claims.IssuedAt > at+maxClockSkew {
		return accessClaims{}, errToken
	}
	return claims, nil
}

// verifyAccess returns the claims of an access token of ours that is good at the time now, else errToken.
func (ring *keyring) verifyAccess(token string, now time.Time) (accessClaims, error) {
	payload, err := ring.openAccess(token)
	if err != nil {
		return accessClaims{}, err
	}
	return readClaims(payload, now)
}

// maxClockSkew is by how many seconds the clocks of two instances may differ: a token issued by one
// is good on the other at once.
const maxClockSkew = 60

// refreshVersion is the first byte of a refresh token.
const refreshVersion = 1

// refreshTokenSize is version, session id, generation and MAC, in bytes. It is a multiple of three,
// so base64url has no unused bits in it.
const refreshTokenSize = 1 + 16 + 8 + sha256.Size

// signRefresh makes the refresh token of one generation of a session. The same input gives the same
// token, so a lost answer can be given again.
func (k key) signRefresh(session [16]byte, generation int64) string {
	b := append([]byte{refreshVersion}, session[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(generation))
	mac := hmac.New(sha256.New, k.refresh)
	mac.Write(b)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(b))
}

// verifyRefresh returns the session and generation that a refresh token names, or errToken. Whether
// that generation is still good is the database's to say; a forged token never gets there.
func (ring *keyring) verifyRefresh(token string) (session [16]byte, generation int64, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != refreshTokenSize {
		return session, 0, errToken
	}
	copy(session[:], b[1:17])
	generation = int64(binary.BigEndian.Uint64(b[17:25]))
	// Compared encoded, as access tokens are: Go passes over newlines in what it decodes.
	for _, k := range ring.keys {
		if hmac.Equal([]byte(token), []byte(k.signRefresh(session, generation))) {
			return session, generation, nil
		}
	}
	return [16]byte{}, 0, errToken
}

// signCursor makes of a list's last keys a cursor that is good only for the same route and filters.
func (ring *keyring) signCursor(scope string, keys []string) (string, error) {
	payload, err := json.Marshal(keys)
	if err != nil {
		return "", fmt.Errorf("encode cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(payload) + "." + cursorMAC(ring.keys[0], scope, payload), nil
}

// verifyCursor returns the keys in a cursor that signCursor made for this scope, or errToken.
func (ring *keyring) verifyCursor(scope, cursor string) ([]string, error) {
	encoded, mac, _ := strings.Cut(cursor, ".")
	payload, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return nil, errToken
	}
	for _, k := range ring.keys {
		var keys []string
		if hmac.Equal([]byte(mac), []byte(cursorMAC(k, scope, payload))) && json.Unmarshal(payload, &keys) == nil {
			return keys, nil
		}
	}
	return nil, errToken
}

// cursorMAC binds the payload to the scope. The scope's length comes first, so that no other pair of
// the two gives the same bytes.
func cursorMAC(k key, scope string, payload []byte) string {
	return encodedMAC(k.cursor, fmt.Sprintf("%d:%s%s", len(scope), scope, payload))
}

// encodedMAC is the HMAC-SHA-256 of the text in base64url.
func encodedMAC(secret []byte, text string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// apiTokenPrefix begins every API token, so that scanners for leaked secrets know it.
const apiTokenPrefix = "cairn_pat_"

// newAPIToken makes an API token, of which hash is stored: the prefix, 256 random bits and a CRC-32 of both, in
// hexadecimal.
func newAPIToken() (token string, hash []byte) {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails (crypto/rand)
	text := apiTokenPrefix + hex.EncodeToString(secret)
	token = fmt.Sprintf("%s%08x", text, crc32.ChecksumIEEE([]byte(text)))
	return token, hashToken(token)
}

// hashAPIToken returns what is stored of an API token, or errToken for what can be none: a typo costs no query.
func hashAPIToken(token string) ([]byte, error) {
	end := len(token) - 8
	if len(token) != len(apiTokenPrefix)+64+8 || token[end:] != fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(token[:end]))) {
		return nil, errToken
	}
	return hashToken(token), nil
}

// hashToken is what is stored of an API token or a password token: of so many random bits a plain SHA-256 is enough.
func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}
