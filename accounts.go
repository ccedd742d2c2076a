package main

import (
	"context"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// accounts is the component of users, roles, sessions, tokens and the audit log. It decides who is
// calling and what the caller may do.
type accounts struct {
	core        *core
	hasher      *passwordHasher
	breached    *breachedPasswords // nil: no list
	guesses     *limiter           // one undecided attempt at an account from a network
	accessQueue *limiter           // one change of users and roles

	users    userCache
	failures tallies
}

// newAccounts returns the accounts. breached may be nil.
func newAccounts(core *core, breached *breachedPasswords) *accounts {
	return &accounts{
		core:        core,
		hasher:      newPasswordHasher(core.cfg.argon),
		breached:    breached,
		guesses:     newLimiter(1, unbounded),
		accessQueue: newLimiter(1, 1),
		users:       userCache{users: map[string]*cachedUser{}},
		failures:    tallies{counts: map[tally]int64{}},
	}
}

// user is an account as every route shows it.
type user struct {
	ID          string     `json:"id"`
	Username    string     `json:"username"`
	Email       *string    `json:"email"`
	DisplayName string     `json:"display_name"`
	Status      string     `json:"status"`
	TOTP        bool       `json:"totp"` // has a second factor
	Roles       []string   `json:"roles"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	LastLoginAt *time.Time `json:"last_login_at"`
}

// tag returns the user's entity tag, for If-Match. It ignores the last login, which is no edit.
func (u user) tag() string {
	u.LastLoginAt = nil
	return tagOf(u)
}

// userColumns are the columns of a user u.
const userColumns = `
	u.id::text AS id,
	u.username,
	u.email,
	u.display_name,
	u.status,
	u.totp,
	ARRAY(
		SELECT r.name
		FROM user_roles ur
		JOIN roles r ON r.id = ur.role_id
		WHERE ur.user_id = u.id
		ORDER BY r.name
	) AS roles,
	u.created_at,
	u.updated_at,
	u.last_login_at`

// The values of users.status.
const (
	statusActive   = "active"
	statusDisabled = "disabled"
	statusPending  = "pending" // registered, waiting for approval
)

// newUser holds the fields of a user to insert. They have been checked.
type newUser struct {
	username     string
	email        *string
	displayName  string
	status       string
	passwordHash *string // nil: no password yet
	roles        []string
}

// checkIdentity notes what is wrong with a user name, an e-mail address and a display name. It
// normalizes the first two. Nil is not checked; an empty e-mail address means none.
func checkIdentity(v *invalid, username, email, displayName *string) {
	if username != nil {
		name, ok := normalizeUsername(*username)
		isReserved := name == "operator" || name == "cairn"
		v.check(!isReserved, "username", fieldReserved, "names the command line or the service in the audit log")
		v.check(ok, "username", fieldMalformed, usernameRule)
		*username = name
	}

	if email != nil && *email != "" {
		address, ok := normalizeEmail(*email)
		v.check(ok, "email", fieldMalformed, "is not an e-mail address")
		*email = address
	}

	isDisplayName := displayName == nil || isLine(*displayName, 0, 100)
	v.check(isDisplayName, "display_name", fieldMalformed,
		"must be at most 100 characters without control characters")
}

// usernameRule says which names of users and roles are valid.
const usernameRule = "must be 2 to 63 letters, digits, dots, dashes or underscores, the first a letter or digit"

// usernames matches the names that follow usernameRule. They are ASCII, so that no two look alike,
// and have no @, so that none is an e-mail address.
var usernames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,62}$`)

// emails matches text with the shape of an e-mail address: printable ASCII without blanks, with one
// @ inside. Cairn sends no mail to it.
var emails = regexp.MustCompile(`^[!-?A-~]+@[!-?A-~]+$`)

// normalizeUsername returns the name in lower case, and whether it follows usernameRule.
func normalizeUsername(name string) (string, bool) {
	return strings.ToLower(name), usernames.MatchString(name)
}

// normalizeEmail returns the address in lower case, and whether it is valid.
func normalizeEmail(address string) (string, bool) {
	return strings.ToLower(address), len(address) <= 254 && emails.MatchString(address)
}

// normalizeLogin returns a user name or e-mail address as it is stored, or "" if it is neither.
func normalizeLogin(login string) string {
	if name, isName := normalizeUsername(login); isName {
		return name
	}
	if address, isAddress := normalizeEmail(login); isAddress {
		return address
	}
	return ""
}

// isLine reports whether text is one line of low to high code points. All must be safe (see
// isUnsafe), and none may be one of the last two of a plane, such as U+FFFE, which stand for no
// character.
func isLine(text string, low, high int) bool {
	n := utf8.RuneCountInString(text)
	if n < low || n > high {
		return false
	}

	isForbidden := func(c rune) bool { return isUnsafe(c) || c&0xfffe == 0xfffe }
	return !strings.ContainsFunc(text, isForbidden)
}

// passwordRecord is a user with the password hash that a login is checked against. The zero value
// stands for an unknown user.
type passwordRecord struct {
	user
	PasswordHash      *string
	CredentialVersion int64 // users.credential_version
}

// findPasswordRecord looks up a user name or e-mail address. Only an address has an @, so that at
// most one user matches.
func findPasswordRecord(ctx context.Context, q querier, login string) (passwordRecord, error) {
	const query = `
		SELECT ` + userColumns + `,
			u.password_hash,
			u.credential_version
		FROM users u
		WHERE u.username = $1
			OR u.email = $1`
	return collectOne[passwordRecord](ctx, q, nil, "find password record", query, normalizeLogin(login))
}

// The refusals of an attempt to sign in. errOTPRequired and errLoginCodeWrong reveal that the
// password is right. errOwnCodeWrong is the 403 for a wrong code of somebody who is signed in.
var (
	errWrongCredentials = unauthorized(codeInvalidCredentials, "The user name or the password is wrong.")
	errOTPRequired      = unauthorized(codeOTPRequired,
		"Send otp too: the code of your authenticator app, or a recovery code.")
	errLoginCodeWrong = unauthorized(codeOTPInvalid, "The code is wrong, or was used before. Wait for the next one.")
	errOwnCodeWrong   = forbidden(codeOTPInvalid, errLoginCodeWrong.detail)
	errSignInAgain    = unauthorized(codeSignInAgain,
		"The code came too late, or your account was changed. Sign in again with your password.")
)
