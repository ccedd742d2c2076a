package main

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// role is a named set of permissions.
type role struct {
	ID                   int64     `json:"id"`
	Name                 string    `json:"name"`
	Description          string    `json:"description"`
	Permissions          []string  `json:"permissions"`
	RequiresSecondFactor bool      `json:"requires_second_factor"` // see isSuspended
	CreatedAt            time.Time `json:"created_at"`
	Declared             []string  `json:"-"` // all declared permissions, for apply
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

		// The holders may gain something if a requirement is lifted or the permissions change.
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
// Messages to the deleted role do not go to the other one. A message to this role alone then
// reaches nobody.
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

// storeRole changes a role, unchecked and without an audit row, and returns it. Requires
// lockAccess.
func storeRole(ctx context.Context, tx pgx.Tx, id int64, c roleChange) (role, error) {
	const query = `
		WITH changed AS (
			UPDATE roles
			SET name = coalesce($2, name),
				description = coalesce($3, description),
				requires_second_factor = coalesce($4, requires_second_factor)
			WHERE id = $1
		), taken AS (
			DELETE FROM role_permissions
			WHERE role_id = $1
				AND permission <> ALL ($5) -- none if $5 is null
		)
		INSERT INTO role_permissions (role_id, permission)
		SELECT $1, unnest($5::text[])
		ON CONFLICT DO NOTHING`

	args := []any{id, c.Name, c.Description, c.RequiresSecondFactor, c.Permissions}
	_, err := execute(ctx, tx, "change role", query, args...)
	if err != nil {
		return role{}, takenError(err)
	}
	return getRole(ctx, tx, `r.id = $1`, id, nil) // nil: the role exists
}

// reassignRole gives the holders of a role another one, which it returns. Requires lockAccess.
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

// maxDeclared is how many permissions may be declared: answers to a proxy may list them all.
const maxDeclared = 100

// maxPermissionName is the length of the longest name of a permission.
const maxPermissionName = 63

// permissionName matches the names of permissions, of any length.
var permissionName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(\.[a-z0-9_-]+)+$`)

// checkDeclaration returns a 422 if the name or the meaning of a declared permission is invalid.
func checkDeclaration(name, meaning string) error {
	var v invalid
	prefix, _, _ := strings.Cut(name, ".")
	hasPrefix := func(builtIn string) bool { return strings.HasPrefix(builtIn, prefix+".") }
	isReserved := prefix == "cairn" || slices.ContainsFunc(builtInNames(), hasPrefix)
	isName := permissionName.MatchString(name) && len(name) <= maxPermissionName

	v.check(isName, "name", fieldMalformed,
		"must be like wiki.edit: lower-case letters, digits, dashes and underscores around a dot, at most 63")
	v.check(!isReserved, "name", fieldReserved, "begins like a built-in permission: choose another prefix")
	v.check(isLine(meaning, 1, 200), "meaning", fieldMalformed,
		"must say in one line of 1 to 200 characters what the permission allows")
	return v.err()
}

// permissionRequest is the body of POST /api/v1/permissions.
type permissionRequest struct {
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
}

// dropGrants begins a statement that takes the permission $1 from all roles and API tokens.
const dropGrants = `
		WITH ungranted AS (
			DELETE FROM role_permissions
			WHERE permission = $1
		), cut AS (
			UPDATE api_tokens
			SET permissions = array_remove(permissions, $1)
			WHERE $1 = ANY (permissions)
		)`

// declarePermission answers POST /api/v1/permissions.
func (a *accounts) declarePermission(w http.ResponseWriter, r *http.Request, in permissionRequest) error {
	// Grants that somebody added in the database by hand must not become valid.
	const insert = dropGrants + `
		INSERT INTO declared_permissions (name, meaning) VALUES ($1, $2)`

	if err := checkDeclaration(in.Name, in.Meaning); err != nil {
		return err
	}

	created := permissionView{in.Name, in.Meaning, true}
	err := a.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		known, err := knownPermissions(ctx, tx)
		if err != nil {
			return err
		}
		if slices.Contains(known, in.Name) {
			return conflict(codeNameTaken, "There is a permission of that name.")
		}
		if len(known) >= len(builtInNames())+maxDeclared {
			return conflict(codeTooManyPermissions,
				"A hundred permissions are declared. Remove one that nobody needs.")
		}

		if _, err := execute(ctx, tx, "declare permission", insert, in.Name, in.Meaning); err != nil {
			return err
		}
		return audit(ctx, tx, by, "permission.create", "permission:"+in.Name, nil, created)
	})

	return writeCreated(w, created, "", err)
}

// heldPermission is a declared permission, with the roles and the number of unexpired API tokens
// that name it.
type heldPermission struct {
	Name       string   `json:"name"`
	Meaning    string   `json:"meaning"`
	Roles      []string `json:"roles"`
	APITokens  int64    `json:"api_tokens"`
	IsRequired bool     `json:"-"` // by a dataset
}

// actOnPermission runs do on the declared permission of the path, under lockAccess. It checks the
// subset rule first:
//
//   - The caller must hold every permission of the roles that have this one.
//   - If an API token names this permission, or a dataset requires it of its readers, the caller
//     must hold the permission itself. The 403 does not tell which of the two is so.
func (a *accounts) actOnPermission(
	r *http.Request,
	do func(context.Context, pgx.Tx, actor, heldPermission) error,
) error {
	const query = `
		SELECT
			d.name,
			d.meaning,
			ARRAY(
				SELECT r.name
				FROM roles r
				JOIN role_permissions rp ON rp.role_id = r.id
				WHERE rp.permission = d.name
				ORDER BY r.name
			) AS roles,
			(
				SELECT count(*)
				FROM api_tokens t
				WHERE d.name = ANY (t.permissions)
					AND t.expires_at > now()
			) AS api_tokens,
			EXISTS (SELECT FROM datasets WHERE requires = d.name) AS is_required
		FROM declared_permissions d
		WHERE d.name = $1`

	name := r.PathValue("name")
	if slices.Contains(builtInNames(), name) {
		return conflict(codePermissionBuiltIn,
			"This permission is part of Cairn. Only declared ones can be changed or removed.")
	}
	missing := notFound("permission", name)
	if !permissionName.MatchString(name) {
		return missing
	}

	return a.administer(r, roleManage, func(ctx context.Context, tx pgx.Tx, by actor) error {
		p, err := collectOne[heldPermission](ctx, tx, missing, "get permission", query, name)
		if err != nil {
			return err
		}

		if err := by.coversRoles(ctx, tx, p.Roles); err != nil {
			return err
		}
		if p.APITokens > 0 || p.IsRequired {
			if err := by.covers([]string{p.Name}); err != nil {
				return err
			}
		}

		return do(ctx, tx, by, p)
	})
}

// meaningRequest is the body of PATCH /api/v1/permissions/{name}.
type meaningRequest struct {
	Meaning string `json:"meaning"`
}

// updatePermission answers PATCH /api/v1/permissions/{name}: it changes the meaning.
func (a *accounts) updatePermission(w http.ResponseWriter, r *http.Request, in meaningRequest) error {
	const update = `UPDATE declared_permissions SET meaning = $2 WHERE name = $1`
	var after permissionView
	err := a.actOnPermission(r, func(ctx context.Context, tx pgx.Tx, by actor, p heldPermission) error {
		before := permissionView{p.Name, p.Meaning, true}
		if err := checkDeclaration(p.Name, in.Meaning); err != nil {
			return err
		}

		after = permissionView{p.Name, in.Meaning, true}
		if in.Meaning == p.Meaning {
			return nil
		}

		if _, err := execute(ctx, tx, "change permission", update, p.Name, in.Meaning); err != nil {
			return err
		}
		return audit(ctx, tx, by, "permission.update", "permission:"+p.Name, before, after)
	})
	return writeEntity(w, after, "", err)
}

// removePermission answers DELETE /api/v1/permissions/{name}. With ?force it takes the permission
// from the roles and API tokens that hold it; without, such a permission is a 409. One that a
// dataset requires is a 409 in any case, so that no dataset becomes visible.
func (a *accounts) removePermission(w http.ResponseWriter, r *http.Request) error {
	const remove = dropGrants + ` DELETE FROM declared_permissions WHERE name = $1`
	query := r.URL.Query()
	force := query.Get("force")
	if !slices.Contains([]string{"", "true", "false"}, force) {
		return invalid{{"force", fieldMalformed, "must be empty, true or false"}}.err()
	}
	isForced := query.Has("force") && force != "false"

	return writeDone(w, a.actOnPermission(r, func(ctx context.Context, tx pgx.Tx, by actor, p heldPermission) error {
		if p.IsRequired {
			return conflict(codePermissionRequiredByDataset,
				"Datasets require this permission. Change what they require first.")
		}

		isHeld := len(p.Roles) > 0 || p.APITokens > 0
		if isHeld && !isForced {
			return conflict(codePermissionInUse,
				"Roles or API tokens hold this permission. ?force takes it from them.")
		}

		if _, err := execute(ctx, tx, "remove permission", remove, p.Name); err != nil {
			return err
		}
		return audit(ctx, tx, by, "permission.delete", "permission:"+p.Name, p, nil)
	}))
}
