package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"
)

// setStatus returns an operation that sets the status of a user.
func setStatus(status string) userAction {
	return func(ctx context.Context, tx pgx.Tx, by actor, u user) error {
		return updateUser(ctx, tx, by, u, userChange{Status: &status})
	}
}

// revokeUser ends all sessions, API tokens and the password token of a user.
func revokeUser(ctx context.Context, tx pgx.Tx, by actor, u user) error {
	if err := revokeCredentials(ctx, tx, by, u); err != nil {
		return err
	}
	return audit(ctx, tx, by, "user.revoke", "user:"+u.Username, nil, nil)
}

// changeUser runs the operation on the user whom the command names first. It returns the changed
// user or, if the operation deletes the user, the user as before.
func (o invocation) changeUser(ctx context.Context, do userAction) (u user, err error) {
	err = changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err = userNamed(ctx, tx, o.names[0])
		if err != nil {
			return err
		}
		err = do(ctx, tx, operatorActor(), u)
		if err != nil {
			return err
		}

		// There is an error if the operation has deleted the user.
		if after, err := getUser(ctx, tx, u.ID); err == nil {
			u = after
		}
		return nil
	})
	return u, err
}

// printUser prints a user. If err is set, it only returns err.
func (o invocation) printUser(err error, u user) error {
	return o.print(err, u, "%s\t%s\t%s",
		u.Username, u.Status, strings.Join(u.Roles, ","))
}

// onUser returns a command that runs an operation on the named user. It then prints the text done
// with the user's name or, without done or with --json, the user.
func onUser(done string, do userAction) action {
	return func(ctx context.Context, o invocation) error {
		u, err := o.changeUser(ctx, do)
		if done == "" {
			return o.printUser(err, u)
		}
		return o.print(err, u, done, u.Username)
	}
}

// createUserCommand is "cairn user create". It creates an active user with a password and one role.
func createUserCommand(ctx context.Context, o invocation) error {
	role := o.option("role", memberRole)
	n := newUser{
		username:    o.names[0],
		email:       optional(o.options, "email"),
		displayName: o.options.Get("display-name"),
		status:      statusActive,
		roles:       []string{role},
	}

	var v invalid
	checkIdentity(&v, &n.username, n.email, &n.displayName)
	if err := v.err(); err != nil {
		return err
	}

	password, err := readPassword(ctx, o.stdin, o.stderr)
	if err != nil {
		return err
	}

	breached, err := openBreachedPasswords(o.cfg.breachedFile)
	if err != nil {
		return fmt.Errorf("CAIRN_BREACHED_PASSWORDS: %w", err)
	}
	err = checkPassword(&v,
		"password", password,
		o.cfg.passwordMin, breached,
		n.username, n.email, n.displayName)
	if err != nil {
		return err
	}

	hash, err := newPasswordHasher(o.cfg.argon).hash(ctx, password)
	if err != nil {
		return err
	}
	n.passwordHash = &hash

	var u user
	err = changeAccess(ctx, o.db, func(tx pgx.Tx) (err error) {
		u, err = createUser(ctx, tx, operatorActor(), n)
		return err
	})
	return o.print(err, u, "created user %s with role %s", u.Username, role)
}

// listUsersCommand is "cairn user list".
func listUsersCommand(ctx context.Context, o invocation) error {
	users, err := listUsers(ctx, o.db, userFilter{}, "", math.MaxInt32)
	for _, u := range users {
		err = o.printUser(err, u)
	}
	return err
}

// showUserCommand is "cairn user show".
func showUserCommand(ctx context.Context, o invocation) error {
	u, err := userNamed(ctx, o.db, o.names[0])
	return o.printUser(err, u)
}

// deleteUserCommand is "cairn user delete".
func deleteUserCommand(ctx context.Context, o invocation) error {
	err := o.confirm(ctx, "Delete the user %s? The name is never used again.",
		o.names[0])
	if err != nil {
		return err
	}
	return onUser("deleted user %s", deleteUser)(ctx, o)
}

// setRolesCommand is "cairn user set-roles NAME ROLE,...". An empty list removes all roles.
func setRolesCommand(ctx context.Context, o invocation) error {
	replace := func(ctx context.Context, tx pgx.Tx, by actor, u user) error {
		return replaceUserRoles(ctx, tx, by, u, splitList(o.names[1]))
	}
	return onUser("", replace)(ctx, o)
}

// splitList returns the parts of a list that are separated by commas.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
}

// resetPasswordCommand is "cairn user reset-password". It prints a token that sets a new password.
func resetPasswordCommand(ctx context.Context, o invocation) error {
	var t passwordToken
	reset := func(ctx context.Context, tx pgx.Tx, by actor, u user) (err error) {
		t, err = createPasswordReset(ctx, tx, by, u)
		return err
	}

	_, err := o.changeUser(ctx, reset)
	t = t.withLink(o.cfg)
	return o.print(err, t, "%s", cmp.Or(t.PasswordLink, t.PasswordToken))
}

// unlockUserCommand is "cairn user unlock". It clears the failed logins to the account and their
// waits. It does so under every key of the key file: the service may still use an older one.
func unlockUserCommand(ctx context.Context, o invocation, ring *keyring) error {
	unlock := func(ctx context.Context, tx pgx.Tx, by actor, u user) error {
		if err := ring.resetThrottles(ctx, tx, u); err != nil {
			return err
		}
		return audit(ctx, tx, by, "user.unlock", "user:"+u.Username, nil, nil)
	}
	return onUser("cleared the failed logins to %s", unlock)(ctx, o)
}

// printRole prints a role. If err is set, it only returns err.
func (o invocation) printRole(err error, r role) error {
	return o.print(err, r, "%s\t%s\t%s",
		r.Name, strings.Join(r.Permissions, ","), r.Description)
}

// onRole returns a command that runs do with the fields of a role and prints the resulting role.
func onRole(do func(context.Context, pgx.Tx, actor, roleChange) (role, error)) action {
	return func(ctx context.Context, o invocation) error {
		c := roleChange{
			Name:        &o.names[0],
			Description: optional(o.options, "description"),
		}

		// An empty list removes all permissions. A nil one would keep them.
		if o.options.Has("permissions") {
			permissions := splitList(o.options.Get("permissions"))
			c.Permissions = append([]string{}, permissions...)
		}

		var r role
		err := changeAccess(ctx, o.db, func(tx pgx.Tx) (err error) {
			r, err = do(ctx, tx, operatorActor(), c)
			return err
		})
		return o.printRole(err, r)
	}
}

// editRole changes the role that c names.
func editRole(ctx context.Context, tx pgx.Tx, by actor, c roleChange) (role, error) {
	before, err := roleNamed(ctx, tx, "role", *c.Name)
	if err != nil {
		return role{}, err
	}
	return updateRole(ctx, tx, by, before, c)
}

// listRolesCommand is "cairn role list".
func listRolesCommand(ctx context.Context, o invocation) error {
	roles, err := listRoles(ctx, o.db, nil, "", math.MaxInt32)
	for _, r := range roles {
		err = o.printRole(err, r)
	}
	return err
}

// deleteRoleCommand is "cairn role delete".
func deleteRoleCommand(ctx context.Context, o invocation) error {
	return changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		r, err := roleNamed(ctx, tx, "role", o.names[0])
		if err != nil {
			return err
		}

		reassign := optional(o.options, "reassign")
		return deleteRole(ctx, tx, operatorActor(), r, reassign)
	})
}
