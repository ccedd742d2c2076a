package main

import (
	"net/http"
	"slices"
)

// messagesPage returns the data of a page of the announcements.
func (c *console) messagesPage(api *apiReader) any {
	return getPage[message](api, "/api/v1/system-messages")
}

// messageData is an announcement with what its page shows beside it.
type messageData struct {
	message
	Recipients int64
	Readers    int64
	Tag        string
	AllRoles   []string
	Preview    *audience // who would get it; nil: not asked for
}

// audience is who would get an announcement: how many people, and the names of some.
type audience struct {
	Total int64
	Names []string
}

// messagePage returns the data of the page of an announcement, or the page that writes a new one.
func (c *console) messagePage(api *apiReader) any {
	data := messageData{message: message{Severity: "info"}}

	if api.r.PathValue("id") != "" {
		data = get[messageData](api, "/api/v1/system-messages/{id}", "")
		api.title = "Announcement: " + data.Title
		data.Tag = data.message.tag()
	}

	data.AllRoles = api.roleNames()
	return &data
}

// previewMessage answers the form of an announcement with its page, and with the users who would
// get it. A new announcement has no time yet: every user was there before it.
func (c *console) previewMessage(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT
			count(*) AS total,
			coalesce((array_agg(u.username ORDER BY u.username))[:20], '{}') AS names
		FROM (
			SELECT
				coalesce(
					(SELECT publish_at FROM system_messages WHERE id = $1),
					'infinity'
				) AS publish_at,
				CASE WHEN NOT $2 THEN
					ARRAY(SELECT id FROM roles WHERE name = ANY ($3))
				END AS role_ids,
				$4::boolean AS include_new_users,
				(SELECT dataset_id FROM system_messages WHERE id = $1) AS dataset_id
		) m
		CROSS JOIN` + messageUsers + messageSight + `
		WHERE u.status = 'active'
			AND u.password_hash IS NOT NULL
			AND ` + messageIsFor

	f, err := readForm(r)
	if err != nil {
		return err
	}

	// The box with the empty name stands for everybody.
	ctx := r.Context()
	roles := f["roles"]
	isAll := slices.Contains(roles, "")
	if isAll {
		roles = nil
	}

	// A role that does not exist is refused.
	formPage := pageAt(c, "/messages/new") // it shows a message that exists, too
	if _, err := rolePermissions(ctx, c.core.db, roles); err != nil {
		return c.refuse(w, r, f, formPage, err)
	}

	id := pathID(r, "id") // 0: a new announcement
	found, err := collectOne[audience](ctx, c.core.db, nil, "preview audience", query,
		id, isAll, roles, f.Has("include_new_users"))
	if err != nil {
		return err
	}

	return c.show(formPage, func(p *page) {
		p.Data.(*messageData).Preview = &found
		p.addForm(r, f)
	})(w, r)
}

// roleNames returns the names of the roles, also for somebody who may only write messages to them.
func (api *apiReader) roleNames() (names []string) {
	const query = `
		SELECT array_agg(name ORDER BY name)
		FROM roles`

	if api.err == nil {
		names, api.err = scalar[[]string](api.r.Context(), api.console.core.db, "list role names", query)
	}
	return names
}

// usersPage returns the data of a page of the list of users.
func (c *console) usersPage(api *apiReader) any {
	users := getPage[user](api, "/api/v1/users")

	return map[string]any{
		"Users":    users,
		"Invited":  api.invited(users...),
		"AllRoles": api.roleNames(),
		"Member":   []string{memberRole}, // the roles that a new user has
	}
}

// invited returns the ids of those of the users who may sign in, but have not set a password yet.
func (api *apiReader) invited(users ...user) (ids []string) {
	const query = `
		SELECT coalesce(array_agg(id::text), '{}')
		FROM users
		WHERE id = ANY ($1::text[]::uuid[])
			AND status = 'active'
			AND password_hash IS NULL`

	for _, u := range users {
		ids = append(ids, u.ID)
	}
	if api.err == nil {
		ids, api.err = scalar[[]string](api.r.Context(), api.console.core.db, "list invited users", query, ids)
	}
	return ids
}

// userPage returns the data of the page of a user.
func (c *console) userPage(api *apiReader) any {
	u := get[user](api, "/api/v1/users/{id}", "")

	api.title = u.Username

	return struct {
		user
		Tag      string
		Invited  []string // the user's id, or nothing
		AllRoles []string
		Sessions []sessionView
		Tokens   []apiToken
	}{
		u,
		u.tag(),
		api.invited(u),
		api.roleNames(),
		getAll[sessionView](api, "/api/v1/users/{id}/sessions"),
		getAll[apiToken](api, "/api/v1/users/{id}/tokens"),
	}
}

// rolesPage returns the data of the page of the roles and the permissions.
func (c *console) rolesPage(api *apiReader) any {
	return map[string]any{
		"Roles":       getPage[role](api, "/api/v1/roles"),
		"Permissions": get[listOf[permissionView]](api, "/api/v1/permissions", "").Items,
	}
}

// auditPage returns the data of a page of the audit log.
func (c *console) auditPage(api *apiReader) any {
	return map[string]any{
		"Rows":    getPage[auditRow](api, "/api/v1/audit"),
		"Actions": slices.Sorted(slices.Values(auditActions())),
	}
}
