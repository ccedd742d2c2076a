package main

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// key is one line of the key file. HKDF (RFC 5869) derives one key for each use from its secret, so
// that a signature for one use is worth nothing for another.
type key struct {
	id          string
	header      string // the only access token header that this key signs, encoded
	access      []byte
	refresh     []byte
	browser     []byte // for the session cookie of browsers
	login       []byte // for the proof of a right password, on the page that asks for the code
	passkey     []byte // for the challenges that passkeys answer
	cursor      []byte
	names       []byte      // for the HMACs of user names and e-mail addresses that throttling counts
	audit       []byte      // for the seals of the audit log
	totp        cipher.AEAD // encrypts the secrets of second factors
	fingerprint string      // identifies the key in the database and reveals nothing about it
}

// keyring holds the keys: the first signs, all verify. It is immutable.
type keyring struct {
	keys []key
}

// signer returns the key that signs.
func (ring *keyring) signer() key { return ring.keys[0] }

// newKey derives the key of each use from one line. parseKeys has checked its id and secret.
func newKey(id string, secret []byte) key {
	derive := func(use string) []byte {
		derived, err := hkdf.Key(sha256.New, secret, nil, use, sha256.Size)
		if err != nil {
			panic(err) // unreachable: it fails only for a length over 8,160 bytes
		}
		return derived
	}

	header := fmt.Sprintf(`{"alg":"HS256","kid":%q,"typ":"at+jwt"}`, id)
	block, _ := aes.NewCipher(derive("cairn totp v1")) // fails only for a key of another length
	totp, _ := cipher.NewGCMWithRandomNonce(block)     // fails only for another block size

	return key{
		id:          id,
		header:      base64.RawURLEncoding.EncodeToString([]byte(header)),
		access:      derive("cairn access token v1"),
		refresh:     derive("cairn refresh token v1"),
		browser:     derive("cairn browser v1"),
		login:       derive("cairn login v1"),
		passkey:     derive("cairn passkey v1"),
		cursor:      derive("cairn cursor v1"),
		names:       derive("cairn names v1"),
		audit:       derive("cairn audit v1"),
		totp:        totp,
		fingerprint: hex.EncodeToString(derive("cairn fingerprint v1")[:8]),
	}
}

// parseKeys reads a key file: one key a line, "kid base64", with a secret of at least 32 bytes in
// standard base64. It skips empty lines and comments (#). Errors name the line and never show its
// content.
func parseKeys(file []byte) (*keyring, error) {
	kid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

	var ring keyring
	seen := map[string]bool{}
	for i, line := range strings.Split(string(file), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}

		id, encoded, _ := strings.Cut(line, " ")
		secret, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(encoded))
		switch {
		case !kid.MatchString(id):
			return nil, fmt.Errorf("line %d: a key is written as: kid, a space, base64", i+1)
		case err != nil:
			return nil, fmt.Errorf("line %d: the secret is not base64", i+1)
		case len(secret) < 32:
			return nil, fmt.Errorf("line %d: the secret has %d bytes; it needs 32", i+1, len(secret))
		case seen[id] || seen[string(secret)]:
			return nil, fmt.Errorf("line %d: another line has the same key id or secret", i+1)
		}

		seen[id] = true
		seen[string(secret)] = true
		ring.keys = append(ring.keys, newKey(id, secret))
	}
	if len(ring.keys) == 0 {
		return nil, errors.New("it holds no key")
	}

	return &ring, nil
}

// fingerprints returns the fingerprints of the keys, the signer's first.
func (ring *keyring) fingerprints() (fingerprints []string) {
	for _, k := range ring.keys {
		fingerprints = append(fingerprints, k.fingerprint)
	}
	return fingerprints
}

// checkSecretFile returns an error if the file is not a regular one or if its group or others have
// any permission for it. In credentialsDir, which systemd fills, the group may have some.
func checkSecretFile(path string, info os.FileInfo, credentialsDir string) error {
	excluded := os.FileMode(0o077)
	isCredential := credentialsDir != "" &&
		strings.HasPrefix(filepath.Clean(path), filepath.Clean(credentialsDir)+"/")
	if isCredential {
		excluded = 0o007
	}

	if info.Mode().Perm()&excluded != 0 || !info.Mode().IsRegular() {
		return fmt.Errorf("%s has mode %v: it must be a regular file that only its owner can read (chmod 600)",
			path, info.Mode())
	}
	return nil
}

// readRegular reads a regular file of at most limit bytes. It does not wait for a named pipe. flags
// are more flags for open(2).
func readRegular(path string, flags, limit int) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}

	content, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(content) > limit {
		err = fmt.Errorf("%s is too long: at most %d bytes are read", path, limit)
	}
	return content, info, err
}

// maxKeyFile is the size of the largest key file that is read.
const maxKeyFile = 64 << 10

// loadKeys reads the key file, which must pass checkSecretFile. With create, a missing file is
// created with one new key.
func loadKeys(path, credentialsDir string, create bool) (*keyring, error) {
	content, info, err := readRegular(path, 0, maxKeyFile)
	if create && errors.Is(err, os.ErrNotExist) {
		// Another instance may have created it meanwhile.
		createErr := writeNewFile(path, []byte(newKeyLine()))
		if createErr != nil && !errors.Is(createErr, os.ErrExist) {
			return nil, fmt.Errorf("create key file: %w", createErr)
		}
		content, info, err = readRegular(path, 0, maxKeyFile)
	}

	if err == nil {
		err = checkSecretFile(path, info, credentialsDir)
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}

	ring, err := parseKeys(content)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return ring, nil
}

// find returns the key with that id, and whether there is one.
func (ring *keyring) find(id string) (key, bool) {
	for _, k := range ring.keys {
		if k.id == id {
			return k, true
		}
	}
	return key{}, false
}

// newKeyLine returns a line of the key file with a new random key.
func newKeyLine() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails (crypto/rand)

	id := "k" + strings.ToLower(rand.Text()[:8])
	return fmt.Sprintf("%s %s\n", id, base64.StdEncoding.EncodeToString(secret))
}

// writeNewFile creates a file of mode 0600. If the name is taken, the error is os.ErrExist.
func writeNewFile(path string, content []byte) error {
	return placeFile(path, os.Link, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// placeFile writes a file and then gives it its name by os.Link or os.Rename. The content is on
// disk before the file gets its name. So after a crash the path has the whole new file, or what was
// there before.
func placeFile(path string, giveName func(old, new string) error, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()

	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}

	// The name comes last, when the content is on disk.
	if err := giveName(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()

	return d.Sync()
}

// replaceFile creates a file of mode 0600, or replaces the one at path.
func replaceFile(path string, write func(*os.File) error) error {
	return placeFile(path, os.Rename, write)
}
