package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// user is an account as every route shows it.
type user struct {
	ID          string     `json:"id"`
	Username    string     `json:"username"`
	Email       *string    `json:"email"`
	DisplayName string     `json:"display_name"`
	Status      string     `json:"status"`
	Roles       []string   `json:"roles"`
	CreatedAt   time.Time  `json:"created_at"`
	UpdatedAt   time.Time  `json:"updated_at"`
	LastLoginAt *time.Time `json:"last_login_at"`
}

// userColumns are the columns of a user, of the table users under the name u.
const userColumns = `
	u.id::text AS id, u.username, u.email, u.display_name, u.status,
	ARRAY(
		SELECT r.name
		FROM user_roles ur
		JOIN roles r ON r.id = ur.role_id
		WHERE ur.user_id = u.id
		ORDER BY r.name
	) AS roles,
	u.created_at, u.updated_at, u.last_login_at`

// The values of a user's status.
const (
	statusActive   = "active"
	statusDisabled = "disabled"
	statusPending  = "pending" // registered, waiting for approval
)

// listUsers answers GET /api/v1/users: by name, all or those with a status or with q in a name or e-mail.
func (s *server) listUsers(w http.ResponseWriter, r *http.Request) error {
	return writeList(s, w, r, []string{""}, func(after []string, limit int) ([]user, error) {
		status, part := optional(r.URL.Query(), "status"), optional(r.URL.Query(), "q")
		var v invalid
		v.check(part == nil || utf8.RuneCountInString(*part) >= 3, "q", "too_short", "must have 3 or more characters")
		v.check(status == nil || slices.Contains([]string{statusActive, statusDisabled, statusPending}, *status),
			"status", "unknown", "must be active, disabled or pending")
		if err := v.err(); err != nil {
			return nil, err
		}
		return listUsers(r.Context(), s.db, status, part, after[0], limit)
	}, func(u user) []string { return []string{u.Username} })
}

// listUserSessions answers GET /api/v1/users/{id}/sessions.
func (s *server) listUserSessions(w http.ResponseWriter, r *http.Request) error {
	u, err := s.pathUser(r)
	if err != nil {
		return err
	}
	return s.writeSessions(w, r, u.ID)
}

// listUserTokens answers GET /api/v1/users/{id}/tokens.
func (s *server) listUserTokens(w http.ResponseWriter, r *http.Request) error {
	u, err := s.pathUser(r)
	if err != nil {
		return err
	}
	return s.writeAPITokens(w, r, u.ID)
}

// pathUser returns the user that the request's path names.
func (s *server) pathUser(r *http.Request) (user, error) {
	id, err := pathUUID(r, "id")
	if err != nil {
		return user{}, err
	}
	return getUser(r.Context(), s.db, id)
}

// endSessionsOfUser answers DELETE /api/v1/users/{id}/sessions.
func (s *server) endSessionsOfUser(w http.ResponseWriter, r *http.Request) error {
	return s.actOnUser(w, r, func(ctx context.Context, tx pgx.Tx, target user) error {
		_, err := endUserSessions(ctx, tx, actorOf(r), target.ID, "")
		return err
	})
}

// endTokensOfUser answers DELETE /api/v1/users/{id}/tokens.
func (s *server) endTokensOfUser(w http.ResponseWriter, r *http.Request) error {
	return s.actOnUser(w, r, func(ctx context.Context, tx pgx.Tx, target user) error {
		_, err := deleteAPITokens(ctx, tx, actorOf(r), target, nil)
		return err
	})
}

// actOnUser does something to the user of the path, if the caller may act on him, and answers 204.
func (s *server) actOnUser(w http.ResponseWriter, r *http.Request, do func(context.Context, pgx.Tx, user) error) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}
	err = changeAccess(r.Context(), s.db, func(tx pgx.Tx) error {
		target, err := checkTarget(r.Context(), tx, principalOf(r), id)
		if err != nil {
			return err
		}
		return do(r.Context(), tx, target)
	})
	return s.writeDone(w, err, id)
}

// optional is the value of a query parameter, or nil where it is not given.
func optional(query map[string][]string, name string) *string {
	if values := query[name]; len(values) > 0 {
		return &values[0]
	}
	return nil
}

// listUsers returns users by name, all or those with a status and with part in a name or e-mail, in any case.
func listUsers(ctx context.Context, q querier, status, part *string, after string, limit int) ([]user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.username > $1
			AND ($2::text IS NULL OR u.status = $2)
			AND ($3::text IS NULL
				OR strpos(u.username, lower($3)) > 0
				OR strpos(u.email, lower($3)) > 0
				OR strpos(lower(u.display_name), lower($3)) > 0)
		ORDER BY u.username
		LIMIT $4`
	return collect[user](ctx, q, "list users", query, after, status, part, limit)
}

// newUser is what a user is made of. The fields have been checked.
type newUser struct {
	username     string
	email        *string
	displayName  string
	status       string
	passwordHash *string // nil: cannot sign in with a password yet
	role         string
}

// checkIdentity notes what is wrong with a name, e-mail address and display name, and puts the first
// two into the form in which they are stored.
func checkIdentity(v *invalid, username string, email *string, displayName string) (string, *string) {
	name, ok := normalizeUsername(username)
	v.check(ok, "username", "malformed", "must be 2 to 63 letters, digits, dots, dashes or underscores, the first a letter or digit")
	if email != nil {
		address, ok := normalizeEmail(*email)
		v.check(ok, "email", "malformed", "is no e-mail address")
		email = &address
	}
	v.check(isLine(displayName, 0, 100), "display_name", "malformed", "must be at most 100 characters without control characters")
	return name, email
}

// normalizeUsername returns the name in lower case and whether it can be a user name at all. Names
// are ASCII, so none can look like another, and hold no @, so none can be an e-mail address.
func normalizeUsername(name string) (string, bool) {
	ok := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,62}$`).MatchString(name)
	return strings.ToLower(name), ok
}

// normalizeEmail returns the address in lower case and whether it has the shape of one, in ASCII. It is
// never verified and only a way to log in, so that is enough.
func normalizeEmail(address string) (string, bool) {
	ok := len(address) <= 254 && regexp.MustCompile(`^[!-?A-~]+@[!-?A-~]+$`).MatchString(address)
	return strings.ToLower(address), ok
}

// isLine: one line of low to high code points, none a control character or one that turns writing around.
func isLine(text string, low, high int) bool {
	n := utf8.RuneCountInString(text)
	return n >= low && n <= high && !strings.ContainsFunc(text, func(c rune) bool {
		return unicode.IsControl(c) || unicode.In(c, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
	})
}

// errEmailTaken is a problem 409.
var errEmailTaken = &problem{status: http.StatusConflict, code: "email_taken", detail: "Another user has that e-mail address."}

// createUser adds a user; a name or e-mail address that is taken is a problem 409. The caller holds lockAccess.
func createUser(ctx context.Context, tx pgx.Tx, n newUser) (user, error) {
	const query = `
		INSERT INTO users (username, email, display_name, status, password_hash)
		VALUES ($1, $2, $3, $4, $5)
		RETURNING id::text`
	var id string
	err := tx.QueryRow(ctx, query, n.username, n.email, n.displayName, n.status, n.passwordHash).Scan(&id)
	switch {
	case isUniqueViolation(err, "users_username_key"):
		return user{}, &problem{status: http.StatusConflict, code: "username_taken", detail: "There is, or was, a user of that name."}
	case isUniqueViolation(err, "users_email_key"):
		return user{}, errEmailTaken
	case err != nil:
		return user{}, fmt.Errorf("create user: %w", err)
	}
	if err := grantRole(ctx, tx, id, n.role); err != nil {
		return user{}, err
	}
	return getUser(ctx, tx, id)
}

// updateNames changes what is not nil; an e-mail address that is taken is a problem 409. The caller holds lockAccess.
func updateNames(ctx context.Context, tx pgx.Tx, id string, email, displayName *string) (user, error) {
	const query = `
		UPDATE users
		SET email = coalesce($2, email),
			display_name = coalesce($3, display_name),
			updated_at = now()
		WHERE id = $1`
	_, err := tx.Exec(ctx, query, id, email, displayName)
	if isUniqueViolation(err, "users_email_key") {
		return user{}, errEmailTaken
	}
	if err != nil {
		return user{}, fmt.Errorf("update names: %w", err)
	}
	return getUser(ctx, tx, id)
}

// getUser returns the user with that id, or errNotFound.
func getUser(ctx context.Context, q querier, id string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.id = $1`
	return collectOne[user](ctx, q, errNotFound, "get user", query, id)
}
