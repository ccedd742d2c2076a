package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// knownPermissions returns the names of all permissions: the built-in and then the declared ones.
func knownPermissions(ctx context.Context, q querier) ([]string, error) {
	declared, err := scalar[[]string](ctx, q, "list declared permissions", `SELECT `+declaredPermissions)
	return append(builtInNames(), declared...), err
}

// checkPermissions notes those permissions that are not known.
func (v *invalid) checkPermissions(known, named []string) {
	for _, permission := range named {
		v.check(slices.Contains(known, permission),
			"permissions", fieldUnknown, fmt.Sprintf("there is no permission %.40q", permission))
	}
}

// covers is the subset rule: it returns a 403 unless the actor holds all these permissions. It does
// not ask for inbox.read, which every user holds.
func (by actor) covers(needed []string) error {
	if by.mayAll {
		return nil
	}

	for _, permission := range needed {
		isHeld := permission == inboxRead || slices.Contains(by.permissions, permission)
		if !isHeld {
			return &problem{
				status:     http.StatusForbidden,
				code:       codeGrantExceedsOwn,
				permission: permission,
				detail:     "This needs the permission " + permission + ", which you do not hold.",
			}
		}
	}
	return nil
}

// coversRoles is the subset rule for all permissions of these roles, which a user has or is given.
// They count in full, even if that user is suspended and holds nothing now. An unknown role is a
// 422.
func (by actor) coversRoles(ctx context.Context, q querier, names []string) error {
	granted, err := rolePermissions(ctx, q, names)
	if err != nil {
		return err
	}
	return by.covers(granted)
}

// rolePermissions returns the permissions that these roles give together. An unknown role is a 422.
func rolePermissions(ctx context.Context, q querier, names []string) ([]string, error) {
	const query = `
		SELECT
			coalesce(array_agg(DISTINCT r.name), '{}') AS existing,
			coalesce(array_agg(DISTINCT rp.permission) FILTER (WHERE rp.permission IS NOT NULL), '{}') AS grants,
			` + declaredPermissions + ` AS declared
		FROM roles r
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE r.name = ANY ($1)`
	hasNUL := func(name string) bool { return strings.ContainsRune(name, 0) } // PostgreSQL takes no NUL
	valid := slices.DeleteFunc(slices.Clone(names), hasNUL)
	found, err := collectOne[struct{ Existing, Grants, Declared []string }](ctx, q, nil, "get roles", query, valid)
	if err != nil {
		return nil, err
	}

	var v invalid
	for _, name := range names {
		exists := slices.Contains(found.Existing, name)
		v.check(exists, "roles", fieldUnknown, fmt.Sprintf("there is no role %.64q", name))
	}
	return effectivePermissions(found.Declared, found.Existing, found.Grants), v.err()
}

// coversHolders is coversRoles for all roles of all holders of this role. It is for a change of
// requires_second_factor. Such a change suspends or restores everything that a holder without a
// second factor has, also from other roles.
func (by actor) coversHolders(ctx context.Context, q querier, roleID int64) error {
	const query = `
		SELECT coalesce(array_agg(DISTINCT r.name), '{}')
		FROM user_roles held
		JOIN user_roles other ON other.user_id = held.user_id
		JOIN roles r ON r.id = other.role_id
		WHERE held.role_id = $1`
	names, err := scalar[[]string](ctx, q, "list roles of holders", query, roleID)
	if err != nil {
		return err
	}
	return by.coversRoles(ctx, q, names)
}

// changeAccess runs do in a transaction that holds lockAccess. If the change would leave no
// administrator although there was one before, it returns a 409. Every change of a user, a role, a
// grant or a password token goes through it. These do not: logins, rehashing, sweeping, and ending
// one's own sessions and API tokens.
func changeAccess(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return underLock(ctx, db, lockAccess, func(tx pgx.Tx) error {
		hadOne, err := administratorExists(ctx, tx)
		if err != nil {
			return err
		}
		if err := do(tx); err != nil || !hadOne {
			return err
		}

		hasOne, err := administratorExists(ctx, tx)
		if err == nil && !hasOne {
			err = conflict(codeLastAdministrator,
				"This would leave no administrator who can sign in. Make another one first.")
		}
		return err
	})
}

// queueAccessChange is changeAccess for a request. Requests wait in line before they take a
// connection to the database, because a change of a role that many users hold takes long.
func (a *accounts) queueAccessChange(ctx context.Context, do func(tx pgx.Tx) error) error {
	leave, err := a.accessQueue.acquire(ctx, everybody)
	if err != nil {
		return err
	}
	defer leave()

	return changeAccess(ctx, a.core.db, do)
}

// administratorExists reports whether an active user holds the role admin and has a password. A
// suspended user counts too: this user can sign in and set up the second factor.
func administratorExists(ctx context.Context, q querier) (bool, error) {
	const query = `
		SELECT EXISTS (
			SELECT
			FROM roles r
			JOIN user_roles ur ON ur.role_id = r.id
			JOIN users u ON u.id = ur.user_id
			WHERE r.name = '` + adminRole + `'
				AND u.status = 'active'
				AND u.password_hash IS NOT NULL
		)`
	return scalar[bool](ctx, q, "look for an administrator", query)
}

// administer runs do in a changeAccess transaction on behalf of the caller, who must hold the
// permission ("" if none is needed). It reads the principal again under the lock: a permission that
// was taken away meanwhile no longer counts.
func (a *accounts) administer(
	r *http.Request,
	permission string,
	do func(ctx context.Context, tx pgx.Tx, by actor) error,
) error {
	ctx := r.Context()
	return a.queueAccessChange(ctx, func(tx pgx.Tx) error {
		by, err := a.actorNow(ctx, tx, r, permission)
		if err != nil {
			return err
		}
		return do(ctx, tx, by)
	})
}

// actorNow reads the caller again and returns the actor. The caller must hold the permission ("" if
// none is needed). If the request has confirmed the caller's password, the password and the second
// factor must still be the same; else the error is a 409. Requires lockAccess.
func (a *accounts) actorNow(ctx context.Context, tx pgx.Tx, r *http.Request, permission string) (actor, error) {
	by := actorOf(r)
	if by.mayAll { // the operator
		return by, nil
	}

	p, err := a.getPrincipal(ctx, tx, callerOf(r).credential)
	if err != nil {
		return by, err
	}
	if permission != "" && !p.holds(permission) {
		return by, p.lacks(permission)
	}

	if version := callerOf(r).confirmed; version != 0 {
		const query = `SELECT credential_version = $2 FROM users WHERE id = $1`
		isSame, err := scalar[bool](ctx, tx, "compare credentials", query, p.user.ID, version)
		if err != nil {
			return by, err
		}
		if !isSame {
			return by, conflict(codePasswordChanged, "The account was changed in the meantime. Try again.")
		}
	}

	by.permissions = p.permissions
	return by, nil
}

// Values for the parameter holders of endOldCredentials. Each is SQL that selects users by $1: the
// user with this id, or all holders of the role with this id.
const (
	oneUser     = `SELECT $1::uuid AS user_id`
	roleHolders = `SELECT user_id FROM user_roles WHERE role_id = $1`
)

// endOldCredentials ends the credentials that must not outlive a change of permissions. It must be
// called before the change. holders is oneUser or roleHolders, and id is the $1 of that SQL. given
// are the permissions of the user or role after the change.
//
//   - The users' password tokens are voided, because they were made for the old permissions.
//   - The sessions of users who gain a permission end. Somebody else may have got hold of one when
//     it could do little. It must not become able to do more. A user who lacks a required second
//     factor counts as gaining, because the change may lift the requirement.
//   - API tokens stay, because they can do only what they name.
//
// A login under way is not stopped. The password stays valid, so this login could as well begin
// after the change. To stop it, every user's row would have to be written, and a role may have a
// hundred thousand holders. Requires lockAccess.
func endOldCredentials(ctx context.Context, tx pgx.Tx, by actor, holders string, id any, given []string) error {
	const begin = `
		WITH holders AS (`
	const end = `
		), void AS (
			DELETE FROM password_tokens WHERE user_id IN (SELECT user_id FROM holders)
		)
		SELECT coalesce(array_agg(h.user_id::text), '{}')
		FROM holders h
		JOIN users u ON u.id = h.user_id
		WHERE (
				-- The user is suspended, and so holds nothing now.
				NOT (u.totp OR u.passkey)
				AND EXISTS (
					SELECT FROM user_roles ur JOIN roles r ON r.id = ur.role_id
					WHERE ur.user_id = u.id AND r.requires_second_factor
				)
			) OR (
				-- Or the user lacks one of the given permissions. The role admin has all of them.
				NOT EXISTS (
					SELECT FROM user_roles ur JOIN roles r ON r.id = ur.role_id
					WHERE ur.user_id = u.id AND r.name = '` + adminRole + `'
				)
				AND EXISTS (
					SELECT unnest(array_remove($2::text[], '` + inboxRead + `')) -- every user holds that one
					EXCEPT
					SELECT rp.permission
					FROM user_roles ur
					JOIN role_permissions rp ON rp.role_id = ur.role_id
					WHERE ur.user_id = u.id
				)
			)`

	const doing = "void password tokens and find who gains"
	gainers, err := scalar[[]string](ctx, tx, doing, begin+holders+end, id, given)
	if err != nil {
		return err
	}

	named := pgx.NamedArgs{"users": gainers}
	_, err = endSessionsWhere(ctx, tx, by, "session.end", `s.user_id = ANY (@users::uuid[])`, named)
	return err
}
