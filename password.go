package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// argonParameters are those of argon2id (RFC 9106). The default, and the least, is that of OWASP's
// Password Storage Cheat Sheet: 19 MiB, two passes, one lane.
type argonParameters struct {
	memory uint32 // KiB
	passes uint32
	lanes  uint8
}

// String is the form in which a setting and a PHC string have them.
func (a argonParameters) String() string {
	return fmt.Sprintf("m=%d,t=%d,p=%d", a.memory, a.passes, a.lanes)
}

// parseArgon reads the parameters as String writes them.
func parseArgon(text string) (a argonParameters, err error) {
	_, err = fmt.Sscanf(text, "m=%d,t=%d,p=%d", &a.memory, &a.passes, &a.lanes)
	if err != nil || a.String() != text || a.passes == 0 || a.lanes == 0 {
		return a, errors.New("must be written as m=19456,t=2,p=1")
	}
	return a, nil
}

// Lengths in bytes of what argon2id takes and gives.
const (
	argonSaltLen = 16
	argonKeyLen  = 32
)

// maxPassword is the longest password in code points.
const maxPassword = 256

// Bounds of the queue for hashing. A hash takes about 20 ms of a core, so at 64 a core the last one
// in the queue waits little more than a second.
const (
	maxHashesWaiting = 64 // for each core
	maxHashesCaller  = 8  // waiting or running, for each address
)

// passwordHasher makes and compares password hashes, at most one a core at a time: more would lose
// throughput and need 19 MiB each.
type passwordHasher struct {
	argon argonParameters
	cores chan struct{} // a token is in it for each hash that runs

	mu      sync.Mutex
	waiting int
	callers map[netip.Addr]int
}

// newPasswordHasher makes a hasher for all cores.
func newPasswordHasher(argon argonParameters) *passwordHasher {
	return &passwordHasher{
		argon:   argon,
		cores:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		callers: map[netip.Addr]int{},
	}
}

// enter waits for a free core; leave must be called after. Where the queue is full, or the address
// has more than its part of it, it is a problem 503.
func (h *passwordHasher) enter(ctx context.Context, address netip.Addr) error {
	address = customer(address)
	h.mu.Lock()
	full := h.waiting >= maxHashesWaiting*cap(h.cores) || h.callers[address] >= maxHashesCaller
	if !full {
		h.waiting++
		h.callers[address]++
	}
	h.mu.Unlock()
	if full {
		return &problem{status: http.StatusServiceUnavailable, code: "busy", detail: "Too many passwords are being checked at the moment.", retryAfter: 2 * time.Second}
	}
	select {
	case h.cores <- struct{}{}:
		return nil
	case <-ctx.Done():
		h.forget(address)
		return ctx.Err()
	}
}

// leave frees the core that enter waited for.
func (h *passwordHasher) leave(address netip.Addr) {
	<-h.cores
	h.forget(customer(address))
}

// forget takes the address out of the queue's books.
func (h *passwordHasher) forget(address netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
	if h.callers[address]--; h.callers[address] == 0 {
		delete(h.callers, address)
	}
}

// hash makes the hash under which a password is stored, as a PHC string.
func (h *passwordHasher) hash(ctx context.Context, address netip.Addr, password string) (string, error) {
	if err := h.enter(ctx, address); err != nil {
		return "", err
	}
	defer h.leave(address)
	salt := make([]byte, argonSaltLen)
	rand.Read(salt) // never fails (crypto/rand)
	sum := argon2.IDKey([]byte(password), salt, h.argon.passes, h.argon.memory, h.argon.lanes, argonKeyLen)
	return phcString(h.argon, salt, sum), nil
}

// phcString is a hash as it is stored, in the PHC string format.
func phcString(argon argonParameters, salt, sum []byte) string {
	return fmt.Sprintf("$argon2id$v=%d$%v$%s$%s", argon2.Version, argon,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(sum))
}

// parsePHC takes a stored hash apart.
func parsePHC(stored string) (argon argonParameters, salt, sum []byte, err error) {
	malformed := errors.New("a stored password hash is malformed")
	parts := strings.Split(stored, "$")
	if len(parts) != 6 || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return argon, nil, nil, malformed
	}
	if argon, err = parseArgon(parts[3]); err != nil {
		return argon, nil, nil, malformed
	}
	if salt, err = base64.RawStdEncoding.Strict().DecodeString(parts[4]); err != nil {
		return argon, nil, nil, malformed
	}
	if sum, err = base64.RawStdEncoding.Strict().DecodeString(parts[5]); err != nil || len(sum) != argonKeyLen {
		return argon, nil, nil, malformed
	}
	return argon, salt, sum, nil
}

// isWeak says whether a stored hash was made with less than the parameters of now.
func (h *passwordHasher) isWeak(stored string) bool {
	argon, _, _, err := parsePHC(stored)
	return err == nil && (argon.memory < h.argon.memory || argon.passes < h.argon.passes)
}

// verify says whether the password is the one that the hash was made of. No hash (nil), of a user who is
// unknown or has no password, takes as long as one of the parameters of now, and is false.
func (h *passwordHasher) verify(ctx context.Context, address netip.Addr, stored *string, password string) (bool, error) {
	if err := h.enter(ctx, address); err != nil {
		return false, err
	}
	defer h.leave(address)
	text := phcString(h.argon, make([]byte, argonSaltLen), make([]byte, argonKeyLen))
	if stored != nil {
		text = *stored
	}
	argon, salt, want, err := parsePHC(text)
	if err != nil {
		return false, err
	}
	got := argon2.IDKey([]byte(password), salt, argon.passes, argon.memory, argon.lanes, argonKeyLen)
	return subtle.ConstantTimeCompare(got, want) == 1 && stored != nil, nil
}

// commonPasswords is common-passwords.txt: its first lines say where it comes from.
//
//go:embed common-passwords.txt
var commonPasswords string

// checkPassword notes what is wrong with a new password: its length, that many others use it, or that it
// is one of the account's own names. It is taken as typed, and may be made of anything.
func checkPassword(v *invalid, field, password string, least int, username string, email *string, displayName string) {
	n := utf8.RuneCountInString(password)
	v.check(n >= least, field, "too_short", fmt.Sprintf("must have at least %d characters", least))
	v.check(n <= maxPassword, field, "too_long", fmt.Sprintf("must have at most %d characters", maxPassword))
	lower := strings.ToLower(password)
	names := []string{username, strings.ToLower(displayName)}
	if email != nil {
		local, _, _ := strings.Cut(*email, "@")
		names = append(names, *email, local)
	}
	v.check(!slices.Contains(names, lower), field, "own_name", "must not be a name of the account")
	v.check(strings.Contains(lower, "\n") || !strings.Contains(commonPasswords, "\n"+lower+"\n"), field, "common", "is one that many people use, and that is tried first")
}
