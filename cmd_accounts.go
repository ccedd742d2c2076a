package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// onUser returns a command that does to the named user what no route of the API does. It adds an
// audit row for the action, and prints the text done with the name of the user or, with --json, the
// user.
func onUser(audited, done string, do userAction) action {
	return func(ctx context.Context, o invocation) error {
		var u user
		err := changeAccess(ctx, o.db, func(tx pgx.Tx) (err error) {
			u, err = userNamed(ctx, tx, o.names[0])
			if err != nil {
				return err
			}

			by := operatorActor()
			err = do(ctx, tx, by, u)
			if err != nil {
				return err
			}
			return audit(ctx, tx, by, audited, "user:"+u.Username, nil, nil)
		})
		return o.print(err, u, done, u.Username)
	}
}

// unlockUserCommand is "cairn user unlock". It clears the failed logins to the account and their
// waits. It does so under every key of the key file: the service may still use an older one.
func unlockUserCommand(ctx context.Context, o invocation, ring *keyring) error {
	unlock := func(ctx context.Context, tx pgx.Tx, _ actor, u user) error {
		return resetThrottles(ctx, tx, ring, u)
	}
	return onUser("user.unlock", "cleared the failed logins to %s", unlock)(ctx, o)
}

// createUserCommand is "cairn user create". It creates an active user with a password and one role.
func createUserCommand(ctx context.Context, o invocation) error {
	role := o.option("role", memberRole)
	n := newUser{
		username:    o.names[0],
		email:       optional(o.options, "email"),
		displayName: o.options.Get("display_name"),
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
		user{Username: n.username, Email: n.email, DisplayName: n.displayName})
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

// deleteUserCommand is "cairn user delete".
func deleteUserCommand(ctx context.Context, o invocation) error {
	err := o.confirm(ctx, "Delete the user %s? The name is never used again.",
		o.names[0])
	if err != nil {
		return err
	}
	return calls("DELETE /users/{id}", "", "deleted user $username")(ctx, o)
}

// resetPasswordCommand is "cairn user reset-password". It prints a token that sets a new password,
// or a link with it.
func resetPasswordCommand(ctx context.Context, o invocation) error {
	line := "$password_token"
	if o.cfg.baseURL != "" {
		line = "$password_link"
	}
	return calls("POST /users/{id}/password-reset", "", line)(ctx, o)
}
