package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// createUser answers POST /api/v1/users with a user without a password, and the token to set one.
func (a *accounts) createUser(w http.ResponseWriter, r *http.Request) error {
	in := struct {
		Username    string   `json:"username"`
		Email       *string  `json:"email"`
		DisplayName string   `json:"display_name"`
		Roles       []string `json:"roles"`
	}{Roles: []string{memberRole}}
	if err := decodeJSON(r, &in); err != nil {
		return err
	}

	var v invalid
	checkIdentity(&v, &in.Username, in.Email, &in.DisplayName)
	v.check(in.Roles != nil, "roles", fieldMissing, "must be a list; an empty one gives no role")
	if err := v.err(); err != nil {
		return err
	}

	n := newUser{
		username:    in.Username,
		email:       in.Email,
		displayName: in.DisplayName,
		status:      statusActive,
		roles:       in.Roles,
	}

	var u user
	var token passwordToken
	err := a.administer(r, userManage, func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		u, err = createUser(ctx, tx, by, n)
		if err != nil {
			return err
		}
		token, err = createPasswordToken(ctx, tx, u.ID, firstPasswordTTL)
		return err
	})

	created := struct {
		user
		passwordToken
	}{u, token.withLink(a.core.cfg)}
	return writeCreated(w, created, "/api/v1/users/"+u.ID, err)
}

// userAction changes a user, or ends the user's credentials, on behalf of an actor. Requires
// lockAccess and a checked target (see actOnUser).
type userAction func(ctx context.Context, tx pgx.Tx, by actor, target user) error

// actOnUser runs do on the user of the path, under lockAccess. It checks the target first: the
// caller must hold every permission of this user's roles, and If-Match, if given, must name the
// user's entity tag, which does not depend on the last login.
func (a *accounts) actOnUser(r *http.Request, do userAction) error {
	return a.administer(r, userManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		target, err := getUser(ctx, tx, pathUUID(r, "id"))
		if err != nil {
			return err
		}

		// The subset rule holds for a disabled target too.
		if err := by.coversRoles(ctx, tx, target.Roles); err != nil {
			return err
		}
		if err := checkMatch(r.Header["If-Match"], target.tag()); err != nil {
			return err
		}

		return do(ctx, tx, by, target)
	})
}

// actOnUserAndAnswer runs do on the user of the path, as actOnUser does, and answers with the
// changed user.
func (a *accounts) actOnUserAndAnswer(w http.ResponseWriter, r *http.Request, do userAction) error {
	var after user
	err := a.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) (err error) {
		if err := do(ctx, tx, by, target); err != nil {
			return err
		}
		after, err = getUser(ctx, tx, target.ID)
		return err
	})

	return writeEntity(w, after, after.tag(), err)
}

// userChange holds the new fields of a user. Nil is no change; an empty e-mail address removes it.
type userChange struct {
	Username    *string `json:"username"`
	Email       *string `json:"email"`
	DisplayName *string `json:"display_name"`
	Status      *string `json:"status"`
}

// check returns a 422 if a field is invalid. It normalizes user name and e-mail address.
func (c *userChange) check() error {
	var v invalid
	checkIdentity(&v, c.Username, c.Email, c.DisplayName)
	v.oneOf("status", c.Status, statusActive, statusDisabled, statusPending)
	return v.err()
}

// apply returns the user with the new fields.
func (c userChange) apply(u user) user {
	u.Username = valueOr(c.Username, u.Username)
	u.DisplayName = valueOr(c.DisplayName, u.DisplayName)
	u.Status = valueOr(c.Status, u.Status)
	if c.Email != nil {
		u.Email = c.Email
	}
	if u.Email != nil && *u.Email == "" {
		u.Email = nil // the address is removed
	}
	return u
}

// errUseOwnRoute is the 403 of a change to oneself for which another route asks for the password.
var errUseOwnRoute = forbidden(codeUseOwnRoute,
	"Change your own e-mail address by PATCH /api/v1/auth/me, your own password by PUT /api/v1/auth/password "+
		"and your own second factor by DELETE /api/v1/auth/totp and DELETE /api/v1/auth/passkeys/{id}.")

// updateUser answers PATCH /api/v1/users/{id}. Absent fields stay unchanged.
func (a *accounts) updateUser(w http.ResponseWriter, r *http.Request, c userChange) error {
	if err := c.check(); err != nil {
		return err
	}

	return a.actOnUserAndAnswer(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		if c.Email != nil && by.is(target) {
			return errUseOwnRoute
		}
		return updateUser(ctx, tx, by, target, c)
	})
}

// ownChangeRequest is the body of PATCH /api/v1/auth/me.
type ownChangeRequest struct {
	confirmation         // for a change of the e-mail address
	DisplayName  *string `json:"display_name"`
	Email        *string `json:"email"`
}

// updateMe answers PATCH /api/v1/auth/me: it changes the caller's display name or e-mail address. A
// change of the address, or its removal, needs the password and the second factor, because users
// log in with an address too.
func (a *accounts) updateMe(w http.ResponseWriter, r *http.Request, in ownChangeRequest) error {
	c := userChange{
		Email:       in.Email,
		DisplayName: in.DisplayName,
	}
	if err := c.check(); err != nil {
		return err
	}

	if c.Email != nil {
		if err := a.confirmPassword(r, in.confirmation); err != nil {
			return err
		}
	}

	// A change that changes nothing is not counted.
	current := principalOf(r).user
	if isSame(current, c.apply(current)) {
		return writeEntity(w, current, "", nil)
	}

	counted := newOwnChange(current.ID, c.Email != nil, callerOf(r).address)
	if err := counted.count(r.Context(), a.core.db); err != nil {
		return err
	}

	err := a.administer(r, "", func(ctx context.Context, tx pgx.Tx, by actor) error {
		before, err := getUser(ctx, tx, *by.id)
		if err != nil {
			return err
		}
		if err := updateUser(ctx, tx, by, before, c); err != nil {
			return err
		}

		current, err = getUser(ctx, tx, *by.id)
		return err
	})
	err = a.refundIfFault(r.Context(), counted, err)
	return writeEntity(w, current, "", err)
}

// rolesRequest is the body of PUT /api/v1/users/{id}/roles.
type rolesRequest struct {
	Roles []string `json:"roles"`
}

// replaceUserRoles answers PUT /api/v1/users/{id}/roles.
func (a *accounts) replaceUserRoles(w http.ResponseWriter, r *http.Request, in rolesRequest) error {
	if in.Roles == nil {
		return invalid{{"roles", fieldMissing, "is required; an empty list takes all roles away"}}.err()
	}

	return a.actOnUserAndAnswer(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		return replaceUserRoles(ctx, tx, by, target, in.Roles)
	})
}

// addRoleRequest is the body of POST /api/v1/users/{id}/roles.
type addRoleRequest struct {
	Role string `json:"role"`
}

// addUserRole answers POST /api/v1/users/{id}/roles, which gives the user one more role.
func (a *accounts) addUserRole(w http.ResponseWriter, r *http.Request, in addRoleRequest) error {
	name, ok := normalizeUsername(in.Role) // roles are named as users are
	if !ok {
		return invalid{{"role", fieldMalformed, usernameRule}}.err()
	}

	return a.actOnUserAndAnswer(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		if _, err := roleNamed(ctx, tx, "role", name); err != nil {
			return err
		}
		names := append(slices.Clone(target.Roles), name)
		return replaceUserRoles(ctx, tx, by, target, names)
	})
}

// removeUserRole answers DELETE /api/v1/users/{id}/roles/{name}, which takes one role away.
func (a *accounts) removeUserRole(w http.ResponseWriter, r *http.Request) error {
	return a.actOnUserAndAnswer(w, r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		name := r.PathValue("name")
		at := slices.Index(target.Roles, name)
		if at < 0 {
			return notFound("role of "+target.Username+" called", name)
		}
		names := slices.Delete(slices.Clone(target.Roles), at, at+1)
		return replaceUserRoles(ctx, tx, by, target, names)
	})
}

// deleteUser answers DELETE /api/v1/users/{id}.
func (a *accounts) deleteUser(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, a.actOnUser(r, deleteUser)) // the function below, not this handler
}

// createPasswordReset answers POST /api/v1/users/{id}/password-reset with a token for the user,
// which sets another password within 15 minutes.
func (a *accounts) createPasswordReset(w http.ResponseWriter, r *http.Request) error {
	var token passwordToken
	err := a.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) (err error) {
		if by.is(target) {
			return errUseOwnRoute
		}
		token, err = createPasswordToken(ctx, tx, target.ID, 15*time.Minute)
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, "user.password_reset", "user:"+target.Username, nil, nil)
	})

	return writeCreated(w, token.withLink(a.core.cfg), "", err)
}

// deleteTOTPOfUser answers DELETE /api/v1/users/{id}/totp: it removes the user's second factor, and
// so ends the passkeys too. If there was a passkey, all sessions end, because it may have opened
// one.
func (a *accounts) deleteTOTPOfUser(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, a.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		if by.is(target) {
			return errUseOwnRoute
		}
		if err := deletePasskeys(ctx, tx, by, target, ""); err != nil {
			return err
		}
		if err := deleteTOTP(ctx, tx, by, target); err != nil {
			return err
		}
		if !target.Passkey {
			return nil
		}
		return endAllSessions(ctx, tx, by, target)
	}))
}

// endSessionsOfUser answers DELETE /api/v1/users/{id}/sessions and …/sessions/{session}.
func (a *accounts) endSessionsOfUser(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, a.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		if id := pathUUID(r, "session"); id != "" {
			return endOneSession(ctx, tx, by, id, target.ID)
		}
		return endAllSessions(ctx, tx, by, target)
	}))
}

// endTokensOfUser answers DELETE /api/v1/users/{id}/tokens and …/tokens/{token}.
func (a *accounts) endTokensOfUser(w http.ResponseWriter, r *http.Request) error {
	return writeDone(w, a.actOnUser(r, func(ctx context.Context, tx pgx.Tx, by actor, target user) error {
		return deleteAPITokens(ctx, tx, by, target, pathUUID(r, "token"))
	}))
}

// createUser creates a user. The actor must hold the roles' permissions. Requires lockAccess.
func createUser(ctx context.Context, tx pgx.Tx, by actor, n newUser) (user, error) {
	if err := by.coversRoles(ctx, tx, n.roles); err != nil {
		return user{}, err
	}

	u, err := insertUser(ctx, tx, n)
	if err != nil {
		return user{}, err
	}
	return u, audit(ctx, tx, by, "user.create", "user:"+u.Username, nil, u)
}

// updateUser changes a user. A change of status voids the password token and makes a login under
// way fail. If the status becomes other than active, all sessions and API tokens end too. Requires
// lockAccess and a checked target (see actOnUser).
func updateUser(ctx context.Context, tx pgx.Tx, by actor, target user, c userChange) error {
	const query = `
		UPDATE users
		SET username = coalesce($2, username),
			email = CASE WHEN $3::text IS NULL THEN email ELSE nullif($3, '') END,
			display_name = coalesce($4, display_name),
			status = coalesce($5, status),
			credential_version = credential_version + (status <> coalesce($5, status))::int,
			updated_at = now()
		WHERE id = $1`

	if isSame(target, c.apply(target)) {
		return nil
	}

	args := []any{target.ID, c.Username, c.Email, c.DisplayName, c.Status}
	if _, err := execute(ctx, tx, "change user", query, args...); err != nil {
		return takenError(err)
	}

	after, err := getUser(ctx, tx, target.ID)
	if err != nil {
		return err
	}

	hasNewStatus := after.Status != target.Status
	if hasNewStatus && after.Status == statusActive {
		err = voidPasswordToken(ctx, tx, target.ID)
	} else if hasNewStatus {
		err = revokeCredentials(ctx, tx, by, after)
	}
	if err != nil {
		return err
	}

	return audit(ctx, tx, by, "user.update", "user:"+target.Username, target, after)
}

// replaceUserRoles replaces a user's roles, unless they are these already. The actor must hold
// every permission of the new ones. Requires lockAccess and a checked target (see actOnUser).
func replaceUserRoles(ctx context.Context, tx pgx.Tx, by actor, target user, names []string) error {
	const touch = `UPDATE users SET updated_at = now() WHERE id = $1`
	const replace = `
		WITH given AS (
			SELECT id
			FROM roles
			WHERE name = ANY ($2)
		), taken AS (
			DELETE FROM user_roles
			WHERE user_id = $1
				AND role_id NOT IN (SELECT id FROM given)
		)
		INSERT INTO user_roles (user_id, role_id)
		SELECT $1, id
		FROM given
		ON CONFLICT DO NOTHING`

	given, err := rolePermissions(ctx, tx, names)
	if err != nil {
		return err
	}
	if err := by.covers(given); err != nil {
		return err
	}

	names = asSet(names)
	if slices.Equal(names, target.Roles) {
		return nil
	}

	// The user's row is locked before the sessions: a login locks them in this order too.
	if _, err := execute(ctx, tx, "touch user", touch, target.ID); err != nil {
		return err
	}

	// The old roles must still be there: their permissions are compared with the given ones.
	if err := endOldCredentials(ctx, tx, by, oneUser, target.ID, given); err != nil {
		return err
	}
	if _, err := execute(ctx, tx, "replace roles", replace, target.ID, names); err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.roles", "user:"+target.Username, target.Roles, names)
}

// deleteUser deletes a user with sessions, API tokens and roles. The user's messages and audit rows
// stay, and the name is never used again. Requires lockAccess and a checked target (see actOnUser).
func deleteUser(ctx context.Context, tx pgx.Tx, by actor, target user) error {
	const query = `DELETE FROM users WHERE id = $1`

	if err := revokeCredentials(ctx, tx, by, target); err != nil {
		return err
	}
	if err := deletePasskeys(ctx, tx, by, target, ""); err != nil {
		return err
	}
	if _, err := execute(ctx, tx, "delete user", query, target.ID); err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.delete", "user:"+target.Username, target, nil)
}
