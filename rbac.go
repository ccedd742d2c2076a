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

// permissions returns every permission, in the order in which they are shown.
func permissions() []string {
	return []string{
		userManage, roleManage, adminSystemMessage, datasetRead, datasetAnalyze, datasetManage, auditRead, metricsRead,
	}
}

// The built-in roles.
const (
	adminRole  = "admin"  // holds every permission
	memberRole = "member" // given at registration
)

// effectivePermissions returns the permissions of a user with these roles, in the order of
// permissions(): all with the role admin, else those in grants. A name that the code does not know
// grants nothing.
func effectivePermissions(roles, grants []string) []string {
	all := permissions()
	if slices.Contains(roles, adminRole) {
		return all
	}
	return slices.DeleteFunc(all, func(p string) bool { return !slices.Contains(grants, p) })
}

// grantRoles gives the user the roles of those names. It skips a name that no role has: callers
// check names first (rolePermissions). The caller holds lockAccess.
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

// changeAccess runs do in a transaction that holds lockAccess. Every change of a user, a role, a
// grant or a password token goes through it; only logins, rehashing and sweeping write to these
// tables without it. It keeps the last administrator: if there was one before and would be none
// after, it returns a problem 409.
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
			err = newProblem(http.StatusConflict, "last_administrator",
				"Nobody else is an administrator and can sign in.")
		}
		return err
	})
}

// administratorExists reports whether an active user holds the role admin and has a password.
func administratorExists(ctx context.Context, q querier) (exists bool, err error) {
	const query = `
		SELECT EXISTS (
			SELECT
			FROM user_roles ur
			JOIN users u ON u.id = ur.user_id
			WHERE ur.role_id = 1 -- the role admin, as a constant: the planner knows that few users hold it
				AND u.status = 'active' AND u.password_hash IS NOT NULL
		)`
	if err := q.QueryRow(ctx, query).Scan(&exists); err != nil {
		return false, fmt.Errorf("look for an administrator: %w", err)
	}
	return exists, nil
}

// administer runs do in a changeAccess transaction on behalf of the caller, who must hold the
// permission ("" if none is needed). It reads the principal again under the lock, so that nobody
// acts by a permission that was taken away a moment ago.
func (s *server) administer(r *http.Request, permission string,
	do func(ctx context.Context, tx pgx.Tx, by actor) error) error {
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

// covers is the subset rule: it returns nil if the actor has all these permissions, else the 403.
func (a actor) covers(needed []string) error {
	for _, permission := range needed {
		if !slices.Contains(a.permissions, permission) {
			return &problem{status: http.StatusForbidden, code: "grant_exceeds_own", permission: permission,
				detail: "This takes the permission " + permission + ", which you do not hold."}
		}
	}
	return nil
}

// rolePermissions returns the permissions of these roles together. An unknown name is a problem
// 422.
func rolePermissions(ctx context.Context, q querier, names []string) ([]string, error) {
	const query = `
		SELECT coalesce(array_agg(DISTINCT r.name), '{}') AS known,
			coalesce(array_agg(DISTINCT rp.permission) FILTER (WHERE rp.permission IS NOT NULL), '{}') AS grants
		FROM roles r
		LEFT JOIN role_permissions rp ON rp.role_id = r.id
		WHERE r.name = ANY ($1)`
	hasNUL := func(name string) bool { return strings.ContainsRune(name, 0) } // PostgreSQL takes no NUL
	var known, grants []string
	err := q.QueryRow(ctx, query, slices.DeleteFunc(slices.Clone(names), hasNUL)).Scan(&known, &grants)
	if err != nil {
		return nil, fmt.Errorf("get permissions of roles: %w", err)
	}
	var v invalid
	for _, name := range names {
		v.check(slices.Contains(known, name), "roles", "unknown", fmt.Sprintf("there is no role %.64q", name))
	}
	return effectivePermissions(known, grants), v.err()
}

// checkTarget returns the user with that id if the actor may act on this user: the subset rule
// holds for all that the target holds, whatever the target's status. The caller holds lockAccess.
func checkTarget(ctx context.Context, tx pgx.Tx, by actor, id string) (user, error) {
	target, err := getUser(ctx, tx, id)
	if err != nil {
		return user{}, err
	}
	return target, by.coversRoles(ctx, tx, target.Roles)
}
