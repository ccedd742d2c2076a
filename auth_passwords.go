package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/crypto/argon2"
)

// argonParameters are the parameters of argon2id (RFC 9106). The default is also the minimum: 19
// MiB, two passes, one lane, as in OWASP's Password Storage Cheat Sheet.
type argonParameters struct {
	memory uint32 // KiB
	passes uint32
	lanes  uint8
}

// String returns the parameters as settings and PHC strings write them.
func (argon argonParameters) String() string {
	return fmt.Sprintf("m=%d,t=%d,p=%d", argon.memory, argon.passes, argon.lanes)
}

// parseArgon reads the parameters as String writes them.
func parseArgon(text string) (argon argonParameters, err error) {
	_, err = fmt.Sscanf(text, "m=%d,t=%d,p=%d", &argon.memory, &argon.passes, &argon.lanes)
	isCanonical := err == nil && argon.String() == text
	if !isCanonical || argon.passes == 0 || argon.lanes == 0 {
		return argon, errors.New("must be written as m=19456,t=2,p=1")
	}
	return argon, nil
}

// The lengths of the salt and the result of argon2id, in bytes.
const (
	argonSaltLen = 16
	argonKeyLen  = 32
)

// maxPassword is the length of the longest password, in code points.
const maxPassword = 256

// queuePerCore is how many requests for each core may have a slot or wait for one. A hash takes
// about 20 ms, so the last request waits little more than a second.
const queuePerCore = 64

// passwordHasher makes and compares password hashes. It computes at most one on each core at a
// time: more would be slower together and need 19 MiB each. The caller of a method "InSlot" must
// hold a slot of the queue; the method hash takes one itself. The request holds it in addition to
// the slots of its class.
type passwordHasher struct {
	argon   argonParameters
	queue   *limiter      // requests that hash a password or are about to, all as one caller: everybody
	running chan struct{} // holds an element for each hash that runs
}

// newPasswordHasher returns a hasher for all cores. It has two slots more than cores: while some
// requests ask the database, others use the cores.
func newPasswordHasher(argon argonParameters) *passwordHasher {
	cores := runtime.GOMAXPROCS(0)
	queue := newLimiter(cores+2, unbounded)
	queue.maxQueue = queuePerCore * cores
	return &passwordHasher{
		argon:   argon,
		queue:   queue,
		running: make(chan struct{}, cores),
	}
}

// argon2idInSlot waits for a core and returns the argon2id hash of a password. There are two slots
// more than cores, so at most two requests wait for a core.
func (h *passwordHasher) argon2idInSlot(argon argonParameters, password string, salt []byte) []byte {
	h.running <- struct{}{}
	defer func() { <-h.running }()

	return argon2.IDKey([]byte(password), salt, argon.passes, argon.memory, argon.lanes, argonKeyLen)
}

// hash waits for a slot and returns the stored form of a password.
func (h *passwordHasher) hash(ctx context.Context, password string) (string, error) {
	leave, err := h.queue.acquire(ctx, everybody)
	if err != nil {
		return "", err
	}
	defer leave()

	return h.hashInSlot(password), nil
}

// hashInSlot returns the stored form of a password, a PHC string.
func (h *passwordHasher) hashInSlot(password string) string {
	salt := make([]byte, argonSaltLen)
	rand.Read(salt) // never fails (crypto/rand)
	sum := h.argon2idInSlot(h.argon, password, salt)
	return phcString(h.argon, salt, sum)
}

// phcString returns a hash in the PHC string format.
func phcString(argon argonParameters, salt, sum []byte) string {
	return fmt.Sprintf(
		"$argon2id$v=%d$%v$%s$%s",
		argon2.Version,
		argon,
		base64.RawStdEncoding.EncodeToString(salt),
		base64.RawStdEncoding.EncodeToString(sum),
	)
}

// parsePHC reads a PHC string that phcString has written.
func parsePHC(stored string) (argon argonParameters, salt, sum []byte, err error) {
	parts := strings.Split(stored, "$")
	if len(parts) == 6 {
		argon, err = parseArgon(parts[3])
		salt, _ = base64.RawStdEncoding.DecodeString(parts[4])
		sum, _ = base64.RawStdEncoding.DecodeString(parts[5])
	}

	// phcString must write the same text for these values. So errors of base64 need no check above.
	hasAllParts := err == nil && len(sum) == argonKeyLen
	if !hasAllParts || phcString(argon, salt, sum) != stored {
		return argon, nil, nil, errors.New("a stored password hash is malformed")
	}
	return argon, salt, sum, nil
}

// isWeak reports whether a stored hash was made with weaker parameters than the current ones.
func (h *passwordHasher) isWeak(stored string) bool {
	argon, _, _, err := parsePHC(stored)
	isWeaker := argon.memory < h.argon.memory || argon.passes < h.argon.passes
	return err == nil && isWeaker
}

// verifyInSlot reports whether the stored hash was made from the password. stored is nil if the
// user is unknown or has no password. It hashes even then, because the time must not reveal this.
func (h *passwordHasher) verifyInSlot(stored *string, password string) (bool, error) {
	argon := h.argon
	salt := make([]byte, argonSaltLen)
	want := make([]byte, argonKeyLen)
	if stored != nil {
		var err error
		argon, salt, want, err = parsePHC(*stored)
		if err != nil {
			return false, err
		}
	}

	// The comparison comes first, so that it is made for an unknown user too.
	got := h.argon2idInSlot(argon, password, salt)
	isEqual := subtle.ConstantTimeCompare(got, want) == 1
	return isEqual && stored != nil, nil
}
