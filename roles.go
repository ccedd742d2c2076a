package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// role is a named set of permissions.
type role struct {
	ID           int64     `json:"id"`
	Name         string    `json:"name"`
	Description  string    `json:"description"`
	Permissions  []string  `json:"permissions"`
	RequiresTOTP bool      `json:"requires_totp"` // without a second factor no role allows its holders anything
	CreatedAt    time.Time `json:"created_at"`
	Declared     []string  `json:"-"` // all declared permissions, for withEffective
}

// roleColumns are the columns of a role. The table roles is r.
const roleColumns = `
	r.id, r.name, r.description, r.requires_totp, r.created_at,
	ARRAY(SELECT permission FROM role_permissions WHERE role_id = r.id) AS permissions,
	` + declaredPermissions + ` AS declared`

// listRoles answers GET /api/v1/roles in the order of names: all roles, or the one of that name.
func (s *server) listRoles(w http.ResponseWriter, r *http.Request) error {
	return writeList(s, w, r, []string{""}, func(after []string, limit int) ([]role, error) {
		return listRoles(r.Context(), s.db, optional(r.URL.Query(), "name"), after[0], limit)
	}, func(r role) []string { return []string{r.Name} })
}

// getRole answers GET /api/v1/roles/{id}.
func (s *server) getRole(w http.ResponseWriter, r *http.Request) error {
	found, err := s.pathRole(r, s.db)
	return writeEntity(w, found, tagOf(found), err)
}

// createRole answers POST /api/v1/roles.
func (s *server) createRole(w http.ResponseWriter, r *http.Request) error {
	var c roleChange
	if err := decodeJSON(r, &c); err != nil {
		return err
	}
	if c.Permissions == nil {
		return invalid{{"permissions", "missing", "is required; an empty list allows nothing"}}.err()
	}
	var created role
	err := s.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) (err error) {
		created, err = createRole(ctx, tx, by, c)
		return err
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/roles/"+strconv.FormatInt(created.ID, 10))
	return writeJSON(w, http.StatusCreated, created)
}

// updateRole answers PATCH /api/v1/roles/{id}. Absent fields stay unchanged.
func (s *server) updateRole(w http.ResponseWriter, r *http.Request) error {
	var c roleChange
	if err := decodeJSON(r, &c); err != nil {
		return err
	}
	var after role
	err := s.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		before, err := s.pathRole(r, tx)
		if err != nil {
			return err
		}
		after, err = changeRole(ctx, tx, by, before, c)
		return err
	})
	return writeEntity(w, after, tagOf(after), err)
}

// deleteRole answers DELETE /api/v1/roles/{id}. With ?reassign=, its holders get that role instead.
func (s *server) deleteRole(w http.ResponseWriter, r *http.Request) error {
	err := s.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		old, err := s.pathRole(r, tx)
		if err != nil {
			return err
		}
		return deleteRole(ctx, tx, by, old, optional(r.URL.Query(), "reassign"))
	})
	return writeDone(w, err)
}

// pathRole returns the role whose id is in the path, or errNotFound. To change it, If-Match, if
// given, must name the role's entity tag.
func (s *server) pathRole(r *http.Request, q querier) (role, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return role{}, err
	}
	found, err := getRole(r.Context(), q, id)
	if err != nil || isRead(r) {
		return found, err
	}
	return found, checkMatch(r.Header["If-Match"], tagOf(found))
}

// withEffective sets the role's permissions: its grants in order, or all for the role admin.
func (r role) withEffective() role {
	r.Permissions = effectivePermissions(r.Declared, []string{r.Name}, r.Permissions)
	return r
}

// listRoles returns up to limit roles after a name, in the order of names. With only it returns at
// most the role of that name, in any case.
func listRoles(ctx context.Context, q querier, only *string, after string, limit int) ([]role, error) {
	const query = `
		SELECT ` + roleColumns + `
		FROM roles r
		WHERE r.name > $1 AND ($3::text IS NULL OR r.name = lower($3))
		ORDER BY r.name
		LIMIT $2`
	roles, err := collect[role](ctx, q, "list roles", query, after, limit, only)
	for i := range roles {
		roles[i] = roles[i].withEffective()
	}
	return roles, err
}

// getRole returns the role with that id, or errNotFound.
func getRole(ctx context.Context, q querier, id int64) (role, error) {
	const query = `SELECT ` + roleColumns + ` FROM roles r WHERE r.id = $1`
	found, err := collectOne[role](ctx, q, errNotFound, "get role", query, id)
	return found.withEffective(), err
}

// roleNamed returns the role of that name. If there is none, the error is a 422 for the field.
func roleNamed(ctx context.Context, q querier, field, name string) (role, error) {
	const query = `SELECT ` + roleColumns + ` FROM roles r WHERE r.name = $1`
	missing := invalid{{field, "unknown", fmt.Sprintf("there is no role %.64q", name)}}.err()
	found, err := collectOne[role](ctx, q, missing, "find role", query, name)
	return found.withEffective(), err
}

// roleChange holds the new fields of a role. A nil field stays unchanged.
type roleChange struct {
	Name         *string  `json:"name"`
	Description  *string  `json:"description"`
	Permissions  []string `json:"permissions"`
	RequiresTOTP *bool    `json:"requires_totp"`
}

// check returns a 422 if a field is invalid. It normalizes the name.
func (c *roleChange) check(ctx context.Context, q querier) error {
	known, err := knownPermissions(ctx, q)
	if err != nil {
		return err
	}
	var v invalid
	if c.Name != nil {
		name, ok := normalizeUsername(*c.Name)
		v.check(ok, "name", "malformed", usernameRule)
		c.Name = &name
	}
	v.check(c.Description == nil || isLine(*c.Description, 0, 200),
		"description", "malformed", "must be at most 200 characters without control characters")
	for _, permission := range c.Permissions {
		v.check(slices.Contains(known, permission),
			"permissions", "unknown", fmt.Sprintf("there is no permission %.40q", permission))
	}
	return v.err()
}

// errBuiltIn is the 409 of a change to a role that the code relies on.
var errBuiltIn = &problem{status: http.StatusConflict, code: "role_built_in",
	detail: "The role admin cannot be removed or changed, except for requires_totp. " +
		"The role member cannot be renamed or removed."}

// createRole creates a role whose permissions the actor must hold. The caller holds lockAccess.
func createRole(ctx context.Context, tx pgx.Tx, by actor, c roleChange) (role, error) {
	const query = `
		INSERT INTO roles (name, description, requires_totp)
		VALUES ($1, coalesce($2, ''), coalesce($3, false))
		RETURNING id`
	if c.Name == nil {
		c.Name = new("") // refused below: a role needs a name
	}
	if err := c.check(ctx, tx); err != nil {
		return role{}, err
	}
	if err := by.covers(c.Permissions); err != nil {
		return role{}, err
	}
	var id int64
	if err := tx.QueryRow(ctx, query, c.Name, c.Description, c.RequiresTOTP).Scan(&id); err != nil {
		return role{}, takenError("create role", err)
	}
	if err := replacePermissions(ctx, tx, id, c.Permissions); err != nil {
		return role{}, err
	}
	created, err := getRole(ctx, tx, id)
	if err != nil {
		return role{}, err
	}
	return created, audit(ctx, tx, by, "role.create", "role:"+created.Name, nil, created)
}

// replacePermissions gives the role these permissions and no others.
func replacePermissions(ctx context.Context, tx pgx.Tx, id int64, granted []string) error {
	const query = `
		WITH gone AS (DELETE FROM role_permissions WHERE role_id = $1 AND permission <> ALL ($2))
		INSERT INTO role_permissions (role_id, permission)
		SELECT DISTINCT $1::bigint, unnest($2::text[])
		ON CONFLICT DO NOTHING`
	_, err := execute(ctx, tx, "replace permissions", query, id, granted)
	return err
}

// changeRole changes a role. The actor must hold its old and its new permissions. New permissions
// void the password tokens of the role's holders, which were created for the old permissions, and
// end the sessions of those who gain by them. The caller holds lockAccess.
func changeRole(ctx context.Context, tx pgx.Tx, by actor, before role, c roleChange) (role, error) {
	const update = `
		UPDATE roles
		SET name = coalesce($2, name),
			description = coalesce($3, description),
			requires_totp = coalesce($4, requires_totp)
		WHERE id = $1`
	const void = `
		DELETE FROM password_tokens t
		USING user_roles ur
		WHERE ur.user_id = t.user_id AND ur.role_id = $1`
	if err := c.check(ctx, tx); err != nil {
		return role{}, err
	}
	isRenamed := c.Name != nil && *c.Name != before.Name
	if before.Name == adminRole && (isRenamed || c.Description != nil || c.Permissions != nil) ||
		before.Name == memberRole && isRenamed {
		return role{}, errBuiltIn
	}
	if c.RequiresTOTP != nil && *c.RequiresTOTP != before.RequiresTOTP {
		if err := by.coversRoles(ctx, tx, []string{adminRole}); err != nil { // its holders may hold anything
			return role{}, err
		}
	}
	if err := by.covers(slices.Concat(before.Permissions, c.Permissions)); err != nil {
		return role{}, err
	}
	if _, err := tx.Exec(ctx, update, before.ID, c.Name, c.Description, c.RequiresTOTP); err != nil {
		return role{}, takenError("change role", err)
	}
	asSet := func(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }
	if c.Permissions != nil && !slices.Equal(asSet(before.Permissions), asSet(c.Permissions)) {
		promoted, err := gainers(ctx, tx, before.ID, c.Permissions)
		if err != nil {
			return role{}, err
		}
		if err := replacePermissions(ctx, tx, before.ID, c.Permissions); err != nil {
			return role{}, err
		}
		if err := endUserSessions(ctx, tx, by, promoted, ""); err != nil {
			return role{}, err
		}
		if _, err := execute(ctx, tx, "void password tokens of a role", void, before.ID); err != nil {
			return role{}, err
		}
	}
	after, err := getRole(ctx, tx, before.ID)
	if err != nil {
		return role{}, err
	}
	return after, audit(ctx, tx, by, "role.update", "role:"+before.Name, before, after)
}

// deleteRole deletes a role. Its holders get the role named by reassign; without reassign a role
// with holders is a 409. The actor must hold the permissions of both roles. Messages for the
// deleted role are not readdressed to the other one. The caller holds lockAccess.
func deleteRole(ctx context.Context, tx pgx.Tx, by actor, old role, reassign *string) error {
	const dropFromMessages = `
		UPDATE system_messages
		SET role_ids = array_remove(role_ids, $1)
		WHERE $1 = ANY (role_ids)`
	if old.Name == adminRole || old.Name == memberRole {
		return errBuiltIn
	}
	if err := by.covers(old.Permissions); err != nil {
		return err
	}
	var after any
	if reassign != nil {
		next, err := reassignRole(ctx, tx, by, old, *reassign)
		if err != nil {
			return err
		}
		after = map[string]string{"reassigned": next.Name}
	}
	if err := advisoryLock(ctx, tx, lockMessages); err != nil {
		return err
	}
	if _, err := execute(ctx, tx, "remove role from messages", dropFromMessages, old.ID); err != nil {
		return err
	}
	_, err := execute(ctx, tx, "delete role", `DELETE FROM roles WHERE id = $1`, old.ID)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "23503" || e.Code == "23001") {
		// foreign_key_violation; from PostgreSQL 18 on restrict_violation
		return &problem{status: http.StatusConflict, code: "role_in_use",
			detail: "Users hold this role. Name the role that they get instead with ?reassign=."}
	}
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "role.delete", "role:"+old.Name, old, after)
}

// reassignRole gives the holders of a role another one, voids their password tokens, and ends the
// sessions of those who gain by it.
func reassignRole(ctx context.Context, tx pgx.Tx, by actor, old role, name string) (role, error) {
	const move = `
		WITH holders AS (DELETE FROM user_roles WHERE role_id = $1 RETURNING user_id),
			tokens AS (DELETE FROM password_tokens t USING holders h WHERE h.user_id = t.user_id)
		INSERT INTO user_roles (user_id, role_id)
		SELECT user_id, $2
		FROM holders
		ON CONFLICT DO NOTHING`
	next, err := roleNamed(ctx, tx, "reassign", name)
	if err != nil {
		return role{}, err
	}
	if next.ID == old.ID {
		return role{}, invalid{{"reassign", "unknown", "must be another role"}}.err()
	}
	if err := by.covers(next.Permissions); err != nil {
		return role{}, err
	}
	if next.RequiresTOTP != old.RequiresTOTP {
		if err := by.coversRoles(ctx, tx, []string{adminRole}); err != nil { // as in changeRole
			return role{}, err
		}
	}
	promoted, err := gainers(ctx, tx, old.ID, next.Permissions)
	if err != nil {
		return role{}, err
	}
	if _, err := execute(ctx, tx, "reassign role", move, old.ID, next.ID); err != nil {
		return role{}, err
	}
	return next, endUserSessions(ctx, tx, by, promoted, "")
}
