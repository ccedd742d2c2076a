package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
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

// tag is the user's entity tag, for If-Match. That he logs in does not change it: nobody's change is lost by that.
func (u user) tag() string {
	u.LastLoginAt = nil
	body, _ := encodeJSON(u) // never fails: it is text, times and lists
	return entityTag(body)
}

// writeUser answers with a user and his entity tag.
func writeUser(w http.ResponseWriter, u user) error {
	w.Header().Set("ETag", u.tag())
	return writeJSON(w, http.StatusOK, u)
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

// listUsers answers GET /api/v1/users: all, or those with a status, with a role, and with q in a name or e-mail,
// in the order of sort, which a minus before it turns round.
func (s *server) listUsers(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	f := userFilter{sort: cmp.Or(query.Get("sort"), "username"), status: optional(query, "status"), part: optional(query, "q"), role: optional(query, "role")}
	none := uuidText([16]byte{})
	first := map[string][]string{
		"username":       {"", none},
		"-username":      {"~", none}, // after every name
		"created_at":     {"-infinity", none},
		"-created_at":    {"infinity", none},
		"last_login_at":  {"-infinity", none},
		"-last_login_at": {"infinity", none},
	}
	var v invalid
	v.check(first[f.sort] != nil, "sort", "unknown", "must be username, created_at or last_login_at, or one of them after a minus")
	v.check(f.part == nil || utf8.RuneCountInString(*f.part) >= 3 && len(*f.part) <= 254, "q", "out_of_range", "must have 3 or more characters, at most 254 bytes")
	v.check(f.status == nil || isStatus(*f.status), "status", "unknown", "must be active, disabled or pending")
	if err := v.err(); err != nil {
		return err
	}
	return writeList(s, w, r, first[f.sort], func(after []string, limit int) ([]user, error) {
		return listUsers(r.Context(), s.db, f, after, limit)
	}, func(u user) []string {
		key := u.Username
		switch strings.TrimPrefix(f.sort, "-") {
		case "created_at":
			key = u.CreatedAt.Format(time.RFC3339Nano)
		case "last_login_at":
			key = "-infinity" // who never has
			if u.LastLoginAt != nil {
				key = u.LastLoginAt.Format(time.RFC3339Nano)
			}
		}
		return []string{key, u.ID}
	})
}

// isStatus says whether a user's status can be that.
func isStatus(text string) bool {
	return slices.Contains([]string{statusActive, statusDisabled, statusPending}, text)
}

// passwordToken is what lets a user set his password, once. It is shown to who made it, and nowhere else.
type passwordToken struct {
	PasswordToken string    `json:"password_token"`
	ExpiresAt     time.Time `json:"expires_at"`
}

// createUser answers POST /api/v1/users: a user without a password, and the token to set one.
func (s *server) createUser(w http.ResponseWriter, r *http.Request) error {
	in := struct {
		Username    string   `json:"username"`
		Email       *string  `json:"email"`
		DisplayName string   `json:"display_name"`
		Roles       []string `json:"roles"`
	}{Roles: []string{memberRole}}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	n := newUser{displayName: in.DisplayName, status: statusActive, roles: in.Roles}
	var v invalid
	n.username, n.email = checkIdentity(&v, in.Username, in.Email, in.DisplayName)
	if err := v.err(); err != nil {
		return err
	}
	var created struct {
		user
		passwordToken
	}
	err := s.administer(r, userManage, func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		if created.user, err = createUser(ctx, tx, by, n); err != nil {
			return err
		}
		created.passwordToken, err = createPasswordToken(ctx, tx, created.ID, firstPasswordTTL)
		return err
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/users/"+created.ID)
	return writeJSON(w, http.StatusCreated, created)
}

// getUser answers GET /api/v1/users/{id}.
func (s *server) getUser(w http.ResponseWriter, r *http.Request) error {
	u, err := s.pathUser(r)
	if err != nil {
		return err
	}
	return writeUser(w, u)
}

// updateUser answers PATCH /api/v1/users/{id}: what is not there stays as it is.
func (s *server) updateUser(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Username    *string `json:"username"`
		Email       *string `json:"email"`
		DisplayName *string `json:"display_name"`
		Status      *string `json:"status"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	c := userChange{in.Username, in.Email, in.DisplayName, in.Status}
	if err := c.check(); err != nil {
		return err
	}
	return s.changeUser(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		return changeUser(ctx, tx, by, target, c)
	})
}

// replaceUserRoles answers PUT /api/v1/users/{id}/roles.
func (s *server) replaceUserRoles(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Roles []string `json:"roles"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	var v invalid
	v.check(in.Roles != nil, "roles", "missing", "must be there; an empty list takes all roles away")
	if err := v.err(); err != nil {
		return err
	}
	return s.changeUser(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		return replaceRoles(ctx, tx, by, target, in.Roles)
	})
}

// changeUser does something to the user of the path, and answers with the user as it is then.
func (s *server) changeUser(w http.ResponseWriter, r *http.Request, do func(context.Context, pgx.Tx, actor, user) error) error {
	var after user
	err := s.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		err := do(ctx, tx, by, target)
		if err == nil {
			after, err = getUser(ctx, tx, target.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	return writeUser(w, after)
}

// deleteUser answers DELETE /api/v1/users/{id}.
func (s *server) deleteUser(w http.ResponseWriter, r *http.Request) error {
	return s.writeDone(w, s.actOnUser(r, deleteUser))
}

// createPasswordReset answers POST /api/v1/users/{id}/password-reset: a token to hand over.
func (s *server) createPasswordReset(w http.ResponseWriter, r *http.Request) error {
	var token passwordToken
	err := s.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) (err error) {
		token, err = startPasswordReset(ctx, tx, by, target)
		return err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, token)
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
	return s.writeDone(w, s.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		_, err := endUserSessions(ctx, tx, by, target.ID, "")
		return err
	}))
}

// endTokensOfUser answers DELETE /api/v1/users/{id}/tokens.
func (s *server) endTokensOfUser(w http.ResponseWriter, r *http.Request) error {
	return s.writeDone(w, s.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		_, err := deleteAPITokens(ctx, tx, by, target, nil)
		return err
	}))
}

// actOnUser does something to the user of the path, if the caller may act on him.
func (s *server) actOnUser(r *http.Request, do func(context.Context, pgx.Tx, actor, user) error) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}
	err = s.administer(r, userManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		target, err := checkTarget(ctx, tx, by, id)
		if err != nil {
			return err
		}
		if tags := r.Header.Get("If-Match"); tags != "" && !matchesTag(tags, target.tag()) {
			return &problem{status: http.StatusPreconditionFailed, code: "stale", detail: "The user has changed since you read it."}
		}
		return do(ctx, tx, by, target)
	})
	if err == nil {
		s.principals.drop(id)
	}
	return err
}

// optional is the value of a query parameter, or nil where it is not given.
func optional(query map[string][]string, name string) *string {
	if values := query[name]; len(values) > 0 {
		return &values[0]
	}
	return nil
}

// userFilter says which users are listed, and in which order.
type userFilter struct {
	sort               string
	status, part, role *string // nil: any
}

// listUsers returns users. All by name, the common case, is planned once, since it yields no more than a page. Any other
// is planned for its filters. How a part of names is spread over the order the planner cannot know: it is looked for
// among the first 10,000, then among all; not with a role, all of whose holders would be sorted to know the first.
func listUsers(ctx context.Context, q querier, f userFilter, after []string, limit int) ([]user, error) {
	const byName = `
		SELECT ` + userColumns + `
		FROM (SELECT * FROM users WHERE username > $1 ORDER BY username LIMIT 501) u
		ORDER BY u.username
		LIMIT $2`
	const afterKeys = ` CASE $1
				WHEN 'username' THEN u.username > $2
				WHEN '-username' THEN u.username < $2
				WHEN 'created_at' THEN (u.created_at, u.id) > ($2::timestamptz, $3::uuid)
				WHEN '-created_at' THEN (u.created_at, u.id) < ($2::timestamptz, $3::uuid)
				WHEN 'last_login_at' THEN (coalesce(u.last_login_at, '-infinity'), u.id) > ($2::timestamptz, $3::uuid)
				ELSE (coalesce(u.last_login_at, '-infinity'), u.id) < ($2::timestamptz, $3::uuid)
			END`
	const matches = ` ($4::text IS NULL OR u.status = $4)
			AND ($5::text IS NULL OR u.username LIKE lower($5) OR u.email LIKE lower($5) OR lower(u.display_name) LIKE lower($5))`
	const inOrder = `
		ORDER BY
			CASE $1 WHEN 'username' THEN u.username END,
			CASE $1 WHEN '-username' THEN u.username END DESC,
			CASE $1 WHEN 'created_at' THEN u.created_at WHEN 'last_login_at' THEN coalesce(u.last_login_at, '-infinity') END,
			CASE $1 WHEN '-created_at' THEN u.created_at WHEN '-last_login_at' THEN coalesce(u.last_login_at, '-infinity') END DESC,
			CASE WHEN $1 IN ('created_at', 'last_login_at') THEN u.id END,
			CASE WHEN $1 IN ('-created_at', '-last_login_at') THEN u.id END DESC
		LIMIT `
	const columns = `SELECT ` + userColumns + ` FROM `
	if f.sort == "username" && f.status == nil && f.part == nil && f.role == nil {
		return collect[user](ctx, q, "list users", byName, after[0], limit)
	}
	from, args := `users u`, []any{pgx.QueryExecModeExec, f.sort, after[0], after[1], f.status, nil, limit}
	if f.role != nil {
		role, err := roleNamed(ctx, q, "role", *f.role)
		if err != nil {
			return nil, err
		}
		from, args = `users u JOIN user_roles f ON f.user_id = u.id AND f.role_id = $7::bigint`, append(args, role.ID)
	}
	found := from + ` WHERE` + afterKeys + ` AND` + matches
	if f.part != nil {
		args[5] = "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(*f.part) + "%"
	}
	if f.part != nil && f.role == nil {
		near := columns + `(SELECT * FROM users u WHERE` + afterKeys + inOrder + `10000) u WHERE` + matches + inOrder + `$6`
		if users, err := collect[user](ctx, q, "list users", near, args...); err != nil || len(users) == limit {
			return users, err
		}
		found = `(SELECT * FROM users u WHERE` + afterKeys + ` AND` + matches + ` OFFSET 0) u`
	}
	return collect[user](ctx, q, "list users", columns+found+inOrder+`$6`, args...)
}

// newUser is what a user is made of. The fields have been checked.
type newUser struct {
	username     string
	email        *string
	displayName  string
	status       string
	passwordHash *string // nil: cannot sign in with a password yet
	roles        []string
}

// checkIdentity notes what is wrong with a name, e-mail address and display name, and puts the first
// two into the form in which they are stored.
func checkIdentity(v *invalid, username string, email *string, displayName string) (string, *string) {
	name, ok := normalizeUsername(username)
	v.check(!slices.Contains([]string{"operator", "cairn"}, name), "username", "reserved", "is how the audit log calls the command line or the service")
	v.check(ok, "username", "malformed", "must be 2 to 63 letters, digits, dots, dashes or underscores, the first a letter or digit")
	if email != nil && *email != "" { // an empty one is none
		address, ok := normalizeEmail(*email)
		v.check(ok, "email", "malformed", "is no e-mail address")
		email = &address
	}
	v.check(isLine(displayName, 0, 100), "display_name", "malformed", "must be at most 100 characters without control characters")
	return name, email
}

// normalizeUsername returns the name in lower case and whether it can be one at all. Names are ASCII, so none can look
// like another, and hold no @, so none can be an e-mail address.
func normalizeUsername(name string) (string, bool) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	ok := len(name) >= 2 && len(name) <= 63 && strings.Contains(letters, name[:1]) && strings.Trim(name, letters+"._-") == ""
	return strings.ToLower(name), ok
}

// normalizeEmail returns the address in lower case and whether it has the shape of one. It is only a way to log in.
func normalizeEmail(address string) (string, bool) {
	local, host, _ := strings.Cut(address, "@")
	odd := strings.ContainsFunc(local+host, func(c rune) bool { return c <= ' ' || c > '~' || c == '@' })
	return strings.ToLower(address), local != "" && host != "" && !odd && len(address) <= 254
}

// isLine: one line of low to high code points, none a control character or one that turns writing around.
func isLine(text string, low, high int) bool {
	n := utf8.RuneCountInString(text)
	return n >= low && n <= high && !strings.ContainsFunc(text, func(c rune) bool {
		return unicode.IsControl(c) || c&0xfffe == 0xfffe || unicode.In(c, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
	})
}

// errEmailTaken is a problem 409.
var errEmailTaken = &problem{status: http.StatusConflict, code: "email_taken", detail: "Another user has that e-mail address."}

// createUser creates a user, with an audit row. The actor must hold every permission of the roles. The caller holds
// lockAccess.
func createUser(ctx context.Context, tx pgx.Tx, by actor, n newUser) (user, error) {
	granted, err := rolePermissions(ctx, tx, n.roles)
	if err == nil {
		err = by.covers(granted)
	}
	if err != nil {
		return user{}, err
	}
	u, err := insertUser(ctx, tx, n)
	if err != nil {
		return user{}, err
	}
	return u, audit(ctx, tx, by, "user.create", "user:"+u.Username, nil, u)
}

// insertUser adds a row for a user and grants the roles. A name or e-mail address that is taken is a problem 409.
// The caller holds lockAccess.
func insertUser(ctx context.Context, tx pgx.Tx, n newUser) (user, error) {
	const query = `
		INSERT INTO users (username, email, display_name, status, password_hash)
		VALUES ($1, nullif($2, ''), $3, $4, $5)
		RETURNING id::text`
	var id string
	err := tx.QueryRow(ctx, query, n.username, n.email, n.displayName, n.status, n.passwordHash).Scan(&id)
	if err != nil {
		return user{}, nameTaken("create user", err)
	}
	if err := grantRoles(ctx, tx, id, n.roles); err != nil {
		return user{}, err
	}
	return getUser(ctx, tx, id)
}

// nameTaken makes the violation of a unique name or e-mail address a problem 409.
func nameTaken(doing string, err error) error {
	switch {
	case isUniqueViolation(err, "users_username_key"):
		return &problem{status: http.StatusConflict, code: "username_taken", detail: "There is, or was, a user of that name."}
	case isUniqueViolation(err, "users_email_key"):
		return errEmailTaken
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// userChange is what is to change of a user; nil leaves it as it is, and an empty e-mail address takes it away.
type userChange struct {
	username, email, displayName, status *string
}

// check says as a problem what is wrong with a change, and puts names into the form in which they are stored.
func (c *userChange) check() error {
	username, displayName := "any", ""
	if c.username != nil {
		username = *c.username
	}
	if c.displayName != nil {
		displayName = *c.displayName
	}
	var v invalid
	username, c.email = checkIdentity(&v, username, c.email, displayName)
	if c.username != nil {
		c.username = &username
	}
	v.check(c.status == nil || isStatus(*c.status), "status", "unknown", "must be active, disabled or pending")
	return v.err()
}

// changeUser changes a user. Another status voids his password token and what was begun with the old one; one
// that is not active ends all that he holds. The caller holds lockAccess and has checked the target.
func changeUser(ctx context.Context, tx pgx.Tx, by actor, target user, c userChange) error {
	const query = `
		UPDATE users
		SET username = coalesce($2, username),
			email = CASE WHEN $3::text IS NULL THEN email ELSE nullif($3, '') END,
			display_name = coalesce($4, display_name),
			status = coalesce($5, status),
			credential_version = credential_version + (status <> coalesce($5, status))::int,
			updated_at = now()
		WHERE id = $1`
	if c == (userChange{}) {
		return nil
	}
	if _, err := tx.Exec(ctx, query, target.ID, c.username, c.email, c.displayName, c.status); err != nil {
		return nameTaken("change user", err)
	}
	after, err := getUser(ctx, tx, target.ID)
	if err != nil {
		return err
	}
	if after.Status != target.Status {
		err = voidPasswordToken(ctx, tx, target.ID)
		if err == nil && after.Status != statusActive {
			err = endEverything(ctx, tx, by, after)
		}
	}
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.update", "user:"+target.Username, target, after)
}

// replaceRoles gives the user other roles, whose permissions the actor must hold, as he must those of the old
// ones. It voids the user's password token. The caller holds lockAccess and has checked the target.
func replaceRoles(ctx context.Context, tx pgx.Tx, by actor, target user, names []string) error {
	granted, err := rolePermissions(ctx, tx, names)
	if err == nil {
		err = by.covers(granted)
	}
	if err == nil {
		_, err = execute(ctx, tx, "take roles away", `DELETE FROM user_roles WHERE user_id = $1`, target.ID)
	}
	if err == nil {
		err = grantRoles(ctx, tx, target.ID, names)
	}
	if err == nil {
		_, err = execute(ctx, tx, "note the change", `UPDATE users SET updated_at = now() WHERE id = $1`, target.ID)
	}
	if err == nil {
		err = voidPasswordToken(ctx, tx, target.ID)
	}
	if err != nil {
		return err
	}
	after, err := getUser(ctx, tx, target.ID)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.roles", "user:"+target.Username, target.Roles, after.Roles)
}

// deleteUser removes a user and all that he holds; his name is never given out again. What he wrote stays. The
// caller holds lockAccess and has checked the target.
func deleteUser(ctx context.Context, tx pgx.Tx, by actor, target user) error {
	if err := endEverything(ctx, tx, by, target); err != nil {
		return err
	}
	if _, err := execute(ctx, tx, "delete user", `DELETE FROM users WHERE id = $1`, target.ID); err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.delete", "user:"+target.Username, target, nil)
}

// resetTTL is how long the token for another password is good.
const resetTTL = 15 * time.Minute

// startPasswordReset makes the token with which the user can set another password. The caller holds lockAccess
// and has checked the target.
func startPasswordReset(ctx context.Context, tx pgx.Tx, by actor, target user) (passwordToken, error) {
	token, err := createPasswordToken(ctx, tx, target.ID, resetTTL)
	if err != nil {
		return token, err
	}
	return token, audit(ctx, tx, by, "user.password_reset", "user:"+target.Username, nil, nil)
}

// getUser returns the user with that id, or errNotFound.
func getUser(ctx context.Context, q querier, id string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.id = $1`
	return collectOne[user](ctx, q, errNotFound, "get user", query, id)
}
