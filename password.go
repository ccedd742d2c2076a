package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
)

// Argon2id (RFC 9106) with the parameters of OWASP's Password Storage Cheat Sheet: 19 MiB, two
// passes, one lane.
const (
	argonMemory  = 19456 // KiB
	argonTime    = 2
	argonThreads = 1
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
	cores chan struct{} // a token is in it for each hash that runs

	mu      sync.Mutex
	waiting int
	callers map[netip.Addr]int
}

// newPasswordHasher makes a hasher for all cores.
func newPasswordHasher() *passwordHasher {
	return &passwordHasher{
		cores:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		callers: map[netip.Addr]int{},
	}
}

// enter waits for a free core; leave must be called after. Where the queue is full, or the address
// has more than its part of it, it is a problem 503.
func (h *passwordHasher) enter(ctx context.Context, address netip.Addr) error {
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
	h.forget(address)
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
	sum := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonThreads, argonKeyLen)
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, argonMemory, argonTime, argonThreads,
		base64.RawStdEncoding.EncodeToString(salt), base64.RawStdEncoding.EncodeToString(sum)), nil
}

// dummyHash stands in for the hash of a user who is unknown or has no password, so that the answer
// takes as long as for one who has.
const dummyHash = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// verify says whether the password is the one that the hash was made of. No hash (nil) takes as long
// and is false.
func (h *passwordHasher) verify(ctx context.Context, address netip.Addr, hash *string, password string) (bool, error) {
	if err := h.enter(ctx, address); err != nil {
		return false, err
	}
	defer h.leave(address)
	encoded := dummyHash
	if hash != nil {
		encoded = *hash
	}
	var version, memory, passes uint32
	var lanes uint8
	var rest string
	_, err := fmt.Sscanf(encoded, "$argon2id$v=%d$m=%d,t=%d,p=%d$%s", &version, &memory, &passes, &lanes, &rest)
	encodedSalt, encodedSum, _ := strings.Cut(rest, "$")
	salt, saltErr := base64.RawStdEncoding.Strict().DecodeString(encodedSalt)
	want, sumErr := base64.RawStdEncoding.Strict().DecodeString(encodedSum)
	if err != nil || saltErr != nil || sumErr != nil || version != argon2.Version || passes == 0 || lanes == 0 || len(want) != argonKeyLen {
		return false, fmt.Errorf("a stored password hash is malformed")
	}
	got := argon2.IDKey([]byte(password), salt, passes, memory, lanes, argonKeyLen)
	return subtle.ConstantTimeCompare(got, want) == 1 && hash != nil, nil
}

// checkPassword notes what is wrong with a new password. It is taken as typed.
func (s *server) checkPassword(v *invalid, field, password string) {
	n := utf8.RuneCountInString(password)
	v.check(n >= s.cfg.passwordMin, field, "too_short", fmt.Sprintf("must have at least %d characters", s.cfg.passwordMin))
	v.check(n <= maxPassword, field, "too_long", fmt.Sprintf("must have at most %d characters", maxPassword))
}
