package main

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// listUsers answers GET /api/v1/users, ordered by user name.
func (a *accounts) listUsers(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	f := userFilter{
		username: optional(query, "username"),
		status:   optional(query, "status"),
		part:     optional(query, "q"),
		role:     optional(query, "role"),
	}

	var v invalid
	if f.part != nil {
		inRange := utf8.RuneCountInString(*f.part) >= 3 && len(*f.part) <= 254
		v.check(inRange, "q", fieldOutOfRange, "must have 3 or more characters, at most 254 bytes")
	}
	v.oneOf("status", f.status, statusActive, statusDisabled, statusPending)
	if err := v.err(); err != nil {
		return err
	}

	list := func(after []string, limit int) ([]user, error) {
		return listUsers(r.Context(), a.core.db, f, after[0], limit)
	}
	key := func(u user) []string { return []string{u.Username} }
	return writeList(a.core, w, r, []string{""}, list, key)
}

// userFilter selects users. A nil field matches any user.
type userFilter struct {
	username *string // in any case
	status   *string
	part     *string // of a user name, e-mail address or display name, in any case
	role     *string
}

// listUsers returns up to limit users after a name, in the order of names. The statement is planned
// for its values (CacheDescribe): a part of a name that few users have is best found by the trigram
// index, and one that many have in the order of names. An unknown role is a 422.
func listUsers(ctx context.Context, q querier, f userFilter, after string, limit int) ([]user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.username > $1
			AND ($2::text IS NULL OR u.username = lower($2))
			AND ($3::text IS NULL OR u.status = $3)
			AND ($4::text IS NULL
				OR u.username LIKE lower($4)
				OR u.email LIKE lower($4)
				OR lower(u.display_name) LIKE lower($4))
			AND ($5::bigint IS NULL OR u.id IN (SELECT user_id FROM user_roles WHERE role_id = $5))
		ORDER BY u.username
		LIMIT $6`

	var pattern *string
	if f.part != nil {
		escaped := strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(*f.part)
		pattern = new("%" + escaped + "%") // for LIKE
	}

	var roleID *int64
	if f.role != nil {
		found, err := roleNamed(ctx, q, "role", *f.role)
		if err != nil {
			return nil, err
		}
		roleID = &found.ID
	}

	return collect[user](ctx, q, "list users", query, pgx.QueryExecModeCacheDescribe,
		after, f.username, f.status, pattern, roleID, limit)
}

// getUser answers GET /api/v1/users/{id}.
func (a *accounts) getUser(w http.ResponseWriter, r *http.Request) error {
	u, err := a.pathUser(r)
	return writeEntity(w, u, u.tag(), err)
}

// pathUser returns the user whose id is in the path, or a 404.
func (a *accounts) pathUser(r *http.Request) (user, error) {
	return getUser(r.Context(), a.core.db, pathUUID(r, "id"))
}
