package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// commands are the commands that work on the database, as the operator, who may do everything and is named so
// in the audit log. Each works beside a running service.
func commands() map[string]func(context.Context, operation) error {
	status := func(status string) func(context.Context, pgx.Tx, user) error {
		return func(ctx context.Context, tx pgx.Tx, u user) error {
			return changeUser(ctx, tx, operatorActor(), u, userChange{status: &status})
		}
	}
	return map[string]func(context.Context, operation) error{
		"user create":  createUserCommand,
		"user list":    listUsersCommand,
		"user show":    userCommand("user show", func(context.Context, pgx.Tx, user) error { return nil }),
		"user disable": userCommand("user disable", status(statusDisabled)),
		"user enable":  userCommand("user enable", status(statusActive)),
		"user end-sessions": userCommand("user end-sessions", func(ctx context.Context, tx pgx.Tx, u user) error {
			return endUserSessions(ctx, tx, operatorActor(), u.ID, "")
		}),
		"user revoke": userCommand("user revoke", func(ctx context.Context, tx pgx.Tx, u user) error {
			if err := endEverything(ctx, tx, operatorActor(), u); err != nil {
				return err
			}
			return audit(ctx, tx, operatorActor(), "user.revoke", "user:"+u.Username, nil, nil)
		}),
		"user delete": userCommand("user delete", func(ctx context.Context, tx pgx.Tx, u user) error {
			return deleteUser(ctx, tx, operatorActor(), u)
		}),
		"user unlock":         unlockUserCommand,
		"user set-roles":      setRolesCommand,
		"user reset-password": resetPasswordCommand,
		"role create":         roleCommand("role create", createRole),
		"role edit":           editRoleCommand,
		"role list":           listRolesCommand,
		"role delete":         deleteRoleCommand,
		"audit verify":        verifyAuditCommand,
		"audit prune":         pruneAuditCommand,
		"token create":        createTokenCommand,
		"token list":          listTokensCommand,
		"token revoke":        revokeTokenCommand,
		"keys prune":          pruneKeys,
		"dataset create":      createDatasetCommand,
		"message send":        sendMessageCommand,
		"message list":        listMessagesCommand,
		"message retract":     retractMessageCommand,
	}
}

// print shows v as JSON where --json is given, else as the line of text.
func (o operation) print(asJSON bool, v any, format string, args ...any) error {
	if !asJSON {
		_, err := fmt.Fprintf(o.stdout, format+"\n", args...)
		return err
	}
	body, err := encodeJSON(v)
	if err == nil {
		_, err = o.stdout.Write(body)
	}
	return err
}

// printUser shows a user.
func (o operation) printUser(asJSON bool, u user) error {
	return o.print(asJSON, u, "%s\t%s\t%s", u.Username, u.Status, strings.Join(u.Roles, ","))
}

// userCommand returns a command that takes a user's name, runs do, and prints the user: as changed, or if deleted as before.
func userCommand(name string, do func(context.Context, pgx.Tx, user) error) func(context.Context, operation) error {
	return func(ctx context.Context, o operation) error {
		var username string
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		asJSON := flags.Bool("json", false, "")
		if err := o.parse(flags, &username); err != nil {
			return err
		}
		var u user
		err := changeAccess(ctx, o.db, func(tx pgx.Tx) (err error) {
			if u, err = userNamed(ctx, tx, username); err != nil {
				return err
			}
			if err = do(ctx, tx, u); err != nil {
				return err
			}
			if after, err := getUser(ctx, tx, u.ID); err == nil { // not deleted
				u = after
			}
			return nil
		})
		if err != nil {
			return err
		}
		return o.printUser(*asJSON, u)
	}
}

// createUserCommand is "cairn user create": the operator makes a user with a password and one role.
func createUserCommand(ctx context.Context, o operation) error {
	var name string
	flags := flag.NewFlagSet("user create", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "")
	role := flags.String("role", memberRole, "")
	email := flags.String("email", "", "")
	displayName := flags.String("display-name", "", "")
	if err := o.parse(flags, &name); err != nil {
		return err
	}
	n := newUser{displayName: *displayName, status: statusActive, roles: []string{*role}}
	var v invalid
	n.username, n.email = checkIdentity(&v, name, email, *displayName)
	if err := v.err(); err != nil {
		return err
	}
	password, err := readPassword(o.stdin, o.stderr)
	if err != nil {
		return err
	}
	checkPassword(&v, "password", password, o.cfg.passwordMin, n.username, n.email, n.displayName)
	if err := v.err(); err != nil {
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
	if err != nil {
		return err
	}
	return o.print(*asJSON, u, "made user %s with role %s", u.Username, *role)
}

// listUsersCommand is "cairn user list".
func listUsersCommand(ctx context.Context, o operation) error {
	flags := flag.NewFlagSet("user list", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "")
	if err := o.parse(flags); err != nil {
		return err
	}
	for after := []string{""}; ; {
		users, err := listUsers(ctx, o.db, userFilter{sort: "username"}, after, maxPage)
		for _, u := range users {
			err = errors.Join(err, o.printUser(*asJSON, u))
		}
		if err != nil || len(users) == 0 {
			return err
		}
		after[0] = users[len(users)-1].Username
	}
}

// setRolesCommand is "cairn user set-roles NAME ROLE,...": no role is "".
func setRolesCommand(ctx context.Context, o operation) error {
	if len(o.args) < 2 {
		return fmt.Errorf("user set-roles: a name or the roles are missing: %w", errUsage)
	}
	roles := splitList(o.args[1])
	o.args = slices.Delete(slices.Clone(o.args), 1, 2)
	return userCommand("user set-roles", func(ctx context.Context, tx pgx.Tx, u user) error {
		return replaceRoles(ctx, tx, operatorActor(), u, roles)
	})(ctx, o)
}

// splitList is the parts of a list with commas between them.
func splitList(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
}

// resetPasswordCommand is "cairn user reset-password NAME": it prints a token with which the user sets another.
func resetPasswordCommand(ctx context.Context, o operation) error {
	var username string
	flags := flag.NewFlagSet("user reset-password", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "")
	if err := o.parse(flags, &username); err != nil {
		return err
	}
	var t passwordToken
	err := changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, username)
		if err == nil {
			t, err = startPasswordReset(ctx, tx, operatorActor(), u)
		}
		return err
	})
	if err != nil {
		return err
	}
	return o.print(*asJSON, t, "%s", t.PasswordToken)
}

// unlockUserCommand is "cairn user unlock NAME": it ends a siege of the account and all waits of networks that have
// guessed at its password. It does so under each key, since the service may not have taken up a promoted one yet.
func unlockUserCommand(ctx context.Context, o operation) error {
	ring, err := loadKeys(o.cfg.keysPath(), o.cfg.credentialsDir, false)
	if err != nil {
		return err
	}
	return userCommand("user unlock", func(ctx context.Context, tx pgx.Tx, u user) error {
		for _, k := range ring.keys {
			if err := k.endSiege(ctx, tx, u.ID); err != nil {
				return err
			}
		}
		return audit(ctx, tx, operatorActor(), "user.unlock", "user:"+u.Username, nil, nil)
	})(ctx, o)
}

// printRole shows a role.
func (o operation) printRole(asJSON bool, r role) error {
	return o.print(asJSON, r, "%s\t%s\t%s", r.Name, strings.Join(r.Permissions, ","), r.Description)
}

// roleCommand is a command that takes a role's name, description and permissions, and shows the role.
func roleCommand(name string, do func(context.Context, pgx.Tx, actor, roleChange) (role, error)) func(context.Context, operation) error {
	return func(ctx context.Context, o operation) error {
		var roleName string
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		asJSON := flags.Bool("json", false, "")
		c := roleChange{name: &roleName}
		flags.Func("description", "", func(text string) error { c.description = &text; return nil })
		flags.Func("permissions", "", func(text string) error { c.permissions = append([]string{}, splitList(text)...); return nil })
		if err := o.parse(flags, &roleName); err != nil {
			return err
		}
		var r role
		err := changeAccess(ctx, o.db, func(tx pgx.Tx) (err error) {
			r, err = do(ctx, tx, operatorActor(), c)
			return err
		})
		if err != nil {
			return err
		}
		return o.printRole(*asJSON, r)
	}
}

// editRoleCommand is "cairn role edit".
func editRoleCommand(ctx context.Context, o operation) error {
	return roleCommand("role edit", func(ctx context.Context, tx pgx.Tx, by actor, c roleChange) (role, error) {
		before, err := roleNamed(ctx, tx, "role", *c.name)
		if err != nil {
			return role{}, err
		}
		return changeRole(ctx, tx, by, before, c)
	})(ctx, o)
}

// listRolesCommand is "cairn role list".
func listRolesCommand(ctx context.Context, o operation) error {
	flags := flag.NewFlagSet("role list", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "")
	if err := o.parse(flags); err != nil {
		return err
	}
	roles, err := listRoles(ctx, o.db, "", math.MaxInt32)
	for _, r := range roles {
		err = errors.Join(err, o.printRole(*asJSON, r))
	}
	return err
}

// deleteRoleCommand is "cairn role delete NAME [--reassign ROLE]".
func deleteRoleCommand(ctx context.Context, o operation) error {
	var name string
	var reassign *string
	flags := flag.NewFlagSet("role delete", flag.ContinueOnError)
	flags.Func("reassign", "", func(text string) error { reassign = &text; return nil })
	if err := o.parse(flags, &name); err != nil {
		return err
	}
	return changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		r, err := roleNamed(ctx, tx, "role", name)
		if err != nil {
			return err
		}
		return deleteRole(ctx, tx, operatorActor(), r, reassign)
	})
}
