package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// accounts is the component of users, roles, sessions, tokens and the audit log. It decides who is
// calling and what the caller may do.
type accounts struct {
	core        *core
	hasher      *passwordHasher
	breached    *breachedPasswords // nil: no list
	guesses     *limiter           // one attempt at a time for each login name and network
	accessQueue *limiter           // one change of users and roles at a time

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

// The built-in permissions. Each guards the routes that name it in the route table.
const (
	userManage         = "user.manage"
	roleManage         = "role.manage"
	adminSystemMessage = "admin.system_message"
	datasetRead        = "dataset.read"
	datasetDownload    = "dataset.download"
	datasetAnalyze     = "dataset.analyze"
	datasetManage      = "dataset.manage"
	auditRead          = "audit.read"
	metricsRead        = "metrics.read"
	inboxRead          = "inbox.read" // held by every user, whatever the roles
)

// permissionView is a permission as GET /api/v1/permissions shows it.
type permissionView struct {
	Name     string `json:"name"`
	Meaning  string `json:"meaning"`
	Declared bool   `json:"declared"` // by the team, for a program behind the proxy
}

// builtInPermissions returns the built-in permissions with what each allows.
func builtInPermissions() []permissionView {
	return []permissionView{
		{userManage,
			"Create, change, disable and delete users who hold no more than you do; see all users and roles.", false},
		{roleManage,
			"Manage roles that hold no more than you do, and permissions. Seeing them needs user.manage.", false},
		{adminSystemMessage, "Publish, change and retract system messages.", false},
		{datasetRead, "See datasets and their files.", false},
		{datasetDownload, "Read the content of files.", false},
		{datasetAnalyze, "Start and cancel analyses.", false},
		{datasetManage, "Register, change and remove datasets.", false},
		{auditRead, "Read the audit log.", false},
		{metricsRead, "Read the metrics.", false},
		{inboxRead, "Read the inbox and mark its messages. Every user holds it; an API token has to name it.", false},
	}
}

// builtInNames returns the names of the built-in permissions, in the order in which they are shown.
func builtInNames() (names []string) {
	for _, p := range builtInPermissions() {
		names = append(names, p.Name)
	}
	return names
}

// declaredPermissions is SQL for the names of the declared permissions, in order.
const declaredPermissions = `ARRAY(SELECT name FROM declared_permissions ORDER BY name)`

// The built-in roles.
const (
	adminRole  = "admin"  // holds every permission, also those declared later
	memberRole = "member" // given at registration
)

// effectivePermissions returns the permissions that roles with these grants give, the built-in ones
// first. The role admin gives all. A grant counts only if it is built in or declared.
func effectivePermissions(declared, roles, grants []string) []string {
	all := append(builtInNames(), declared...)
	if slices.Contains(roles, adminRole) {
		return all
	}
	return slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(grants, p) })
}

// asSet returns the names of roles or permissions sorted, each once. It is never nil.
func asSet(names []string) []string {
	return append([]string{}, slices.Compact(slices.Sorted(slices.Values(names)))...)
}

// user is an account as every route shows it.
type user struct {
	ID          string     `json:"id"`
	Username    string     `json:"username"`
	Email       *string    `json:"email"`
	DisplayName string     `json:"display_name"`
	Status      string     `json:"status"`
	TOTP        bool       `json:"totp"`    // has an authenticator app
	Passkey     bool       `json:"passkey"` // has a passkey
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

// HasSecondFactor reports whether the user has an authenticator app or a passkey.
func (u user) HasSecondFactor() bool { return u.TOTP || u.Passkey }

// userColumns are the columns of a user u.
const userColumns = `
	u.id::text AS id,
	u.username,
	u.email,
	u.display_name,
	u.status,
	u.totp,
	u.passkey,
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

// getUser returns the user with that id, or a 404.
func getUser(ctx context.Context, q querier, id string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.id = $1`
	return collectOne[user](ctx, q, notFound("user", id), "get user", query, id)
}

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

// insertUser inserts a user and grants the roles, unchecked and without an audit row. A name or
// e-mail address that is taken is a 409. Requires lockAccess.
func insertUser(ctx context.Context, tx pgx.Tx, n newUser) (user, error) {
	const query = `
		WITH u AS (
			INSERT INTO users (
				username,
				email,
				display_name,
				status,
				password_hash
			)
			VALUES (
				$1,
				nullif($2, ''),
				$3,
				$4,
				$5
			)
			RETURNING id
		), granted AS (
			INSERT INTO user_roles (user_id, role_id)
			SELECT u.id, r.id
			FROM u
			JOIN roles r ON r.name = ANY ($6)
		)
		SELECT id::text
		FROM u`

	args := []any{n.username, n.email, n.displayName, n.status, n.passwordHash, n.roles}
	id, err := scalar[string](ctx, tx, "create user", query, args...)
	if err != nil {
		return user{}, takenError(err)
	}
	return getUser(ctx, tx, id)
}

// takenError returns the 409 of a name, address or passkey that is taken, else err.
func takenError(err error) error {
	switch {
	case isUniqueViolation(err, "users_username_key"):
		return conflict(codeUsernameTaken, "A user has, or had, that name.")
	case isUniqueViolation(err, "users_email_key"):
		return conflict(codeEmailTaken, "Another user has that e-mail address.")
	case isUniqueViolation(err, "roles_name_key"):
		return conflict(codeNameTaken, "Another role has that name.")
	case isUniqueViolation(err, "passkeys_credential_id_key"):
		return conflict(codePasskeyTaken, "This passkey is registered already.")
	}
	return err
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

// passwordRecord is a user with the password hash that a login is checked against. The zero value
// stands for an unknown user.
type passwordRecord struct {
	user
	PasswordHash      *string
	CredentialVersion int64 // users.credential_version

	usedPasskey *passkey // by which this login was made; nil: without one
}

// passwordRecords is SQL that selects password records of users u. A condition follows.
const passwordRecords = `
		SELECT ` + userColumns + `,
			u.password_hash,
			u.credential_version
		FROM users u
		WHERE `

// findPasswordRecord looks up a user name or e-mail address. Only an address has an @, so that at
// most one user matches.
func findPasswordRecord(ctx context.Context, q querier, login string) (passwordRecord, error) {
	const condition = `u.username = $1 OR u.email = $1`
	return collectOne[passwordRecord](ctx, q, nil, "find password record", passwordRecords+condition,
		normalizeLogin(login))
}

// findPasskeyOwner looks up the user whose passkey has that credential id.
func findPasskeyOwner(ctx context.Context, q querier, credentialID []byte) (passwordRecord, error) {
	const condition = `u.id = (SELECT user_id FROM passkeys WHERE credential_id = $1)`
	return collectOne[passwordRecord](ctx, q, nil, "find passkey's owner", passwordRecords+condition, credentialID)
}
