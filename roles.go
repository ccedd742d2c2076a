package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// role is a named set of permissions.
type role struct {
	ID                   int64     `json:"id"`
	Name                 string    `json:"name"`
	Description          string    `json:"description"`
	Permissions          []string  `json:"permissions"`
	RequiresSecondFactor bool      `json:"requires_second_factor"` // without one its holders have no permissions
	CreatedAt            time.Time `json:"created_at"`
	Declared             []string  `json:"-"` // all declared permissions
}

// roleColumns are the columns of a role r. permissions are its grants, before effectivePermissions.
const roleColumns = `
	r.id,
	r.name,
	r.description,
	r.requires_second_factor,
	r.created_at,
	ARRAY(SELECT permission FROM role_permissions WHERE role_id = r.id) AS permissions,
	` + declaredPermissions + ` AS declared`

// roleChange holds the new fields of a role. A nil field stays unchanged.
type roleChange struct {
	Name                 *string  `json:"name"`
	Description          *string  `json:"description"`
	Permissions          []string `json:"permissions"`
	RequiresSecondFactor *bool    `json:"requires_second_factor"`
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
		v.check(ok, "name", fieldMalformed, usernameRule)
		c.Name = &name
	}
	isDescription := c.Description == nil || isLine(*c.Description, 0, 200)
	v.check(isDescription, "description", fieldMalformed,
		"must be at most 200 characters without control characters")
	v.checkPermissions(known, c.Permissions)
	return v.err()
}

// apply returns the role with the new fields.
func (c roleChange) apply(r role) role {
	if c.Permissions != nil {
		r.Permissions = effectivePermissions(r.Declared, []string{r.Name}, c.Permissions)
	}
	r.Name = valueOr(c.Name, r.Name)
	r.Description = valueOr(c.Description, r.Description)
	r.RequiresSecondFactor = valueOr(c.RequiresSecondFactor, r.RequiresSecondFactor)
	return r
}

// getRole answers GET /api/v1/roles/{id}.
func (a *accounts) getRole(w http.ResponseWriter, r *http.Request) error {
	found, err := a.pathRole(r, a.core.db)
	return writeEntity(w, found, tagOf(found), err)
}

// createRole answers POST /api/v1/roles. The caller must hold the role's permissions.
func (a *accounts) createRole(w http.ResponseWriter, r *http.Request, c roleChange) error {
	const query = `INSERT INTO roles (name) VALUES ($1) RETURNING id`

	if c.Permissions == nil {
		return invalid{{"permissions", fieldMissing, "is required; an empty list allows nothing"}}.err()
	}

	// A role without a name is refused as one with an empty name.
	name := valueOr(c.Name, "")
	c.Name = &name

	var created role
	err := a.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		if err := c.check(ctx, tx); err != nil {
			return err
		}
		if err := by.covers(c.Permissions); err != nil {
			return err
		}

		id, err := scalar[int64](ctx, tx, "create role", query, c.Name)
		if err != nil {
			return takenError(err)
		}
		created, err = storeRole(ctx, tx, id, c)
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, "role.create", "role:"+created.Name, nil, created)
	})

	return writeCreated(w, created, "/api/v1/roles/"+strconv.FormatInt(created.ID, 10), err)
}

// updateRole answers PATCH /api/v1/roles/{id}. Absent fields stay unchanged. The caller must hold
// the role's old and its new permissions and, if requires_second_factor changes, what its holders
// would hold with a second factor.
func (a *accounts) updateRole(w http.ResponseWriter, r *http.Request, c roleChange) error {
	var after role
	err := a.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		before, err := a.pathRole(r, tx)
		if err != nil {
			return err
		}
		if err := c.check(ctx, tx); err != nil {
			return err
		}

		after = c.apply(before)
		isRenamed := after.Name != before.Name
		isRedefined := c.Description != nil || c.Permissions != nil
		changesAdmin := before.Name == adminRole && (isRenamed || isRedefined)
		renamesMember := before.Name == memberRole && isRenamed
		if changesAdmin || renamesMember {
			return errBuiltIn
		}

		if err := by.covers(slices.Concat(before.Permissions, after.Permissions)); err != nil {
			return err
		}
		if after.RequiresSecondFactor != before.RequiresSecondFactor {
			if err := by.coversHolders(ctx, tx, before.ID); err != nil {
				return err
			}
		}
		if isSame(before, after) {
			return nil
		}

		// Either change may give the holders a permission.
		isLifted := before.RequiresSecondFactor && !after.RequiresSecondFactor
		if isLifted || !slices.Equal(before.Permissions, after.Permissions) {
			err := endOldCredentials(ctx, tx, by, roleHolders, before.ID, after.Permissions)
			if err != nil {
				return err
			}
		}

		after, err = storeRole(ctx, tx, before.ID, c)
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, "role.update", "role:"+before.Name, before, after)
	})

	return writeEntity(w, after, tagOf(after), err)
}

// deleteRole answers DELETE /api/v1/roles/{id}. With ?reassign=NAME, the holders get that role.
// Without, a role with holders is a 409. The caller must hold the permissions of both roles.
// Messages to the deleted role do not go to the other one.
func (a *accounts) deleteRole(w http.ResponseWriter, r *http.Request) error {
	const query = `
		WITH dropped AS (
			UPDATE system_messages
			SET role_ids = array_remove(role_ids, $1)
			WHERE $1 = ANY (role_ids)
		)
		DELETE FROM roles
		WHERE id = $1
			AND NOT EXISTS (
				SELECT
				FROM user_roles
				WHERE role_id = $1
			)`

	return writeDone(w, a.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		old, err := a.pathRole(r, tx)
		if err != nil {
			return err
		}
		if old.Name == adminRole || old.Name == memberRole {
			return errBuiltIn
		}
		if err := by.covers(old.Permissions); err != nil {
			return err
		}

		var after any // nil without reassign
		if reassign := optional(r.URL.Query(), "reassign"); reassign != nil {
			next, err := reassignRole(ctx, tx, by, old, *reassign)
			if err != nil {
				return err
			}
			after = map[string]string{"reassigned": next.Name}
		}
		if err := advisoryLock(ctx, tx, lockMessages); err != nil {
			return err
		}

		n, err := execute(ctx, tx, "delete role", query, old.ID)
		if err == nil && n == 0 {
			err = conflict(codeRoleInUse,
				"Users hold this role. The parameter reassign names the role that they get instead.")
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, "role.delete", "role:"+old.Name, old, after)
	}))
}

// pathRole returns the role whose id is in the path, or a 404. For a change, If-Match, if given,
// must name the role's entity tag.
func (a *accounts) pathRole(r *http.Request, q querier) (role, error) {
	id := pathID(r, "id")
	found, err := getRole(r.Context(), q, `r.id = $1`, id, notFound("role", id))
	if err != nil || isRead(r) {
		return found, err
	}
	return found, checkMatch(r.Header["If-Match"], tagOf(found))
}

// getRole returns the role r that fulfils a condition: SQL in which $1 is the key. If there is
// none, the error is missing.
func getRole(ctx context.Context, q querier, condition string, key any, missing error) (role, error) {
	const query = `
		SELECT ` + roleColumns + `
		FROM roles r
		WHERE `
	r, err := collectOne[role](ctx, q, missing, "find role", query+condition, key)
	if err != nil {
		return r, err
	}

	// The role admin holds every permission.
	r.Permissions = effectivePermissions(r.Declared, []string{r.Name}, r.Permissions)
	return r, nil
}

// roleNamed returns the role of that name. If there is none, the error is a 422 for the field.
func roleNamed(ctx context.Context, q querier, field, name string) (role, error) {
	missing := invalid{{field, fieldUnknown, fmt.Sprintf("there is no role %.64q", name)}}.err()
	return getRole(ctx, q, `r.name = $1`, name, missing)
}

// errBuiltIn is the 409 of a change to a built-in role.
var errBuiltIn = conflict(codeRoleBuiltIn, "The role admin cannot be removed or changed, "+
	"except for requires_second_factor. The role member cannot be renamed or removed.")

// storeRole changes a role, unchecked and without an audit row, and returns it.
func storeRole(ctx context.Context, tx pgx.Tx, id int64, c roleChange) (role, error) {
	const query = `
		WITH changed AS (
			UPDATE roles
			SET name = coalesce($2, name),
				description = coalesce($3, description),
				requires_second_factor = coalesce($5, requires_second_factor)
			WHERE id = $1
		), taken AS (
			DELETE FROM role_permissions
			WHERE role_id = $1
				AND permission <> ALL ($4) -- none if $4 is null
		)
		INSERT INTO role_permissions (role_id, permission)
		SELECT $1, unnest($4::text[])
		ON CONFLICT DO NOTHING`

	args := []any{id, c.Name, c.Description, c.Permissions, c.RequiresSecondFactor}
	_, err := execute(ctx, tx, "change role", query, args...)
	if err != nil {
		return role{}, takenError(err)
	}
	return getRole(ctx, tx, `r.id = $1`, id, nil)
}

// reassignRole gives the holders of a role another one, which it returns.
func reassignRole(ctx context.Context, tx pgx.Tx, by actor, old role, name string) (role, error) {
	const move = `
		WITH holders AS (
			DELETE FROM user_roles
			WHERE role_id = $1
			RETURNING user_id
		)
		INSERT INTO user_roles (user_id, role_id)
		SELECT user_id, $2
		FROM holders
		ON CONFLICT DO NOTHING`

	next, err := roleNamed(ctx, tx, "reassign", name)
	if err != nil {
		return role{}, err
	}

	var v invalid
	v.check(next.ID != old.ID, "reassign", fieldUnknown, "must be another role")
	if err := v.err(); err != nil {
		return role{}, err
	}
	if err := by.covers(next.Permissions); err != nil {
		return role{}, err
	}
	if next.RequiresSecondFactor != old.RequiresSecondFactor {
		if err := by.coversHolders(ctx, tx, old.ID); err != nil {
			return role{}, err
		}
	}

	if err := endOldCredentials(ctx, tx, by, roleHolders, old.ID, next.Permissions); err != nil {
		return role{}, err
	}

	_, err = execute(ctx, tx, "reassign role", move, old.ID, next.ID)
	return next, err
}
