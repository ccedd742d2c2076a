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

// The permissions. Each guards the routes that name it in the route table.
const (
	userManage         = "user.manage"
	roleManage         = "role.manage"
	adminSystemMessage = "admin.system_message"
	datasetRead        = "dataset.read"
	datasetAnalyze     = "dataset.analyze"
	datasetManage      = "dataset.manage"
	auditRead          = "audit.read"
	metricsRead        = "metrics.read"
)

// permissions lists every permission in the order it is shown.
func permissions() []string {
	return []string{userManage, roleManage, adminSystemMessage, datasetRead, datasetAnalyze, datasetManage, auditRead, metricsRead}
}

// The built-in roles.
const (
	adminRole  = "admin"  // holds every permission
	memberRole = "member" // given at registration
)

// effectivePermissions returns what a user with these roles holds, in the order of permissions(): all of
// them with the role admin, else those that the roles grant. A name that the code does not know grants nothing.
func effectivePermissions(roles, grants []string) []string {
	all := permissions()
	if slices.Contains(roles, adminRole) {
		return all
	}
	return slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(grants, p) })
}

// grantRoles gives the user the roles of those names, which are there: see rolePermissions. The caller holds
// lockAccess.
func grantRoles(ctx context.Context, tx pgx.Tx, userID string, names []string) error {
	const query = `
		INSERT INTO user_roles (user_id, role_id)
		SELECT $1, id
		FROM roles
		WHERE name = ANY ($2)
		ON CONFLICT DO NOTHING`
	_, err := execute(ctx, tx, "grant roles", query, userID, names)
	return err
}

// changeAccess runs do in a transaction that holds lockAccess, as every write to users, roles, grants and
// password tokens does. It keeps the last administrator: what leaves nobody who is active, holds the role
// admin and can sign in, where there was one, is a problem 409.
func changeAccess(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockAccess); err != nil {
			return err
		}
		before, err := administratorExists(ctx, tx)
		if err != nil {
			return err
		}
		if err := do(tx); err != nil || !before {
			return err
		}
		after, err := administratorExists(ctx, tx)
		if err == nil && !after {
			err = &problem{status: http.StatusConflict, code: "last_administrator", detail: "Nobody else is an administrator and can sign in."}
		}
		return err
	})
}

// administratorExists says whether somebody who is active and holds the role admin can sign in.
func administratorExists(ctx context.Context, q querier) (exists bool, err error) {
	const query = `
		SELECT EXISTS (
			SELECT
			FROM user_roles ur
			JOIN users u ON u.id = ur.user_id
			WHERE ur.role_id = 1 -- the role admin: its number lets the planner know that few hold it
				AND u.status = 'active' AND u.password_hash IS NOT NULL
		)`
	if err := q.QueryRow(ctx, query).Scan(&exists); err != nil {
		return false, fmt.Errorf("look for an administrator: %w", err)
	}
	return exists, nil
}

// administer runs do in a changeAccess transaction on behalf of the caller, who must hold the permission
// ("" if none is needed). The principal is read again under the lock, so that nobody acts by a permission
// that was taken away a moment ago.
func (s *server) administer(r *http.Request, permission string, do func(ctx context.Context, tx pgx.Tx, by actor) error) error {
	ctx, by := r.Context(), actorOf(r)
	return changeAccess(ctx, s.db, func(tx pgx.Tx) error {
		p, err := getPrincipal(ctx, tx, &s.users, callerOf(r).credential)
		if err != nil {
			return err
		}
		if permission != "" && !p.holds(permission) {
			return p.lacks(permission)
		}
		by.permissions = p.Permissions
		return do(ctx, tx, by)
	})
}

// covers is the subset rule: nil if the actor may do all that is held, else the 403.
func (a actor) covers(held []string) error {
	for _, permission := range held {
		if !slices.Contains(a.permissions, permission) {
			return &problem{status: http.StatusForbidden, code: "grant_exceeds_own", detail: "This takes the permission " + permission + ", which you do not hold.", permission: permission}
		}
	}
	return nil
}

// rolePermissions is what the roles of those names allow together. One that is not there is a problem 422.
func rolePermissions(ctx context.Context, q querier, names []string) ([]string, error) {
	const query = `
		SELECT coalesce(array_agg(DISTINCT r.name), '{}') AS known,
			coalesce(array_agg(DISTINCT rp.permission) FILTER (WHERE rp.permission IS NOT NULL), '{}') AS grants
		FROM roles r
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE r.name = ANY ($1)`
	possible := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.ContainsRune(name, 0) }) // PostgreSQL takes no NUL
	var known, grants []string
	if err := q.QueryRow(ctx, query, possible).Scan(&known, &grants); err != nil {
		return nil, fmt.Errorf("get permissions of roles: %w", err)
	}
	var v invalid
	for _, name := range names {
		v.check(slices.Contains(known, name), "roles", "unknown", fmt.Sprintf("there is no role %.64q", name))
	}
	return effectivePermissions(known, grants), v.err()
}

// checkTarget returns the user with that id, if the actor may act on him: what a target holds, whatever
// its status, must be no more than what the actor's credential may do. The caller holds lockAccess.
func checkTarget(ctx context.Context, tx pgx.Tx, by actor, id string) (user, error) {
	target, err := getUser(ctx, tx, id)
	if err != nil {
		return user{}, err
	}
	held, err := rolePermissions(ctx, tx, target.Roles)
	if err != nil {
		return user{}, err
	}
	return target, by.covers(held)
}
