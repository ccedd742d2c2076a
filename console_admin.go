package main

import (
	"cmp"
	"net/http"
	"slices"
)

// messagesPage reads a page of the announcements.
func (s *server) messagesPage(a *apiReader) *page {
	return &page{Template: "messages", Title: "Announcements", Data: getPage[message](a, "/api/v1/system-messages")}
}

// messageData is an announcement with what its page shows beside it.
type messageData struct {
	message
	Recipients, Readers int64
	Tag                 string
	AllRoles            []string
	Preview             *audience // who would get it; nil: not asked for
}

// audience is who would get an announcement: how many people, and the names of some.
type audience struct {
	Total int64
	Names []string
}

// messagePage reads the page of an announcement, or the page that writes a new one.
func (s *server) messagePage(a *apiReader) *page {
	title, data := "New announcement", messageData{message: message{Severity: "info"}}
	if a.r.PathValue("id") != "" {
		data = get[messageData](a, "/api/v1/system-messages/{id}", "")
		title, data.Tag = "Announcement", data.message.tag()
	}
	data.AllRoles = a.roleNames()
	return &page{Template: "message", Title: title, Data: &data}
}

// storeMessage answers POST /messages and POST /messages/{id}: it stores an announcement, or shows
// who would get it.
func (s *server) storeMessage(w http.ResponseWriter, r *http.Request) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	body := f.body("title body* severity roles[] include_new_users! publish_at@ expires_at@")
	everybody := f["everybody"] != nil
	if everybody {
		body["roles"] = nil
	}
	if f["preview"] == nil {
		route := "POST /api/v1/system-messages"
		if r.PathValue("id") != "" {
			route = "PATCH /api/v1/system-messages/{id}"
		}
		if _, err := s.callAPI(r, route, "", body); err != nil {
			return s.refuse(w, r, f, s.messagePage, err)
		}
		return goTo(w, "/messages?done=saved")
	}
	found, err := previewAudience(r, s.db, everybody, f["roles"])
	if err != nil {
		return s.refuse(w, r, f, s.messagePage, err)
	}
	p, err := s.readPageFor(r, s.messagePage)
	if err != nil {
		return err
	}
	p.Data.(*messageData).Preview = &found
	p.addForm(r, f)
	return s.writePage(w, http.StatusOK, p)
}

// previewAudience returns the users who would get an announcement now: everybody, or the holders of
// the roles.
func previewAudience(r *http.Request, q querier, everybody bool, roles []string) (found audience, err error) {
	const query = `
		SELECT count(*) AS total, coalesce((array_agg(u.username ORDER BY u.username))[:20], '{}') AS names
		FROM users u
		WHERE u.status = 'active' AND u.password_hash IS NOT NULL
			AND ($1 OR EXISTS (
				SELECT
				FROM user_roles ur
				JOIN roles r ON r.id = ur.role_id
				WHERE ur.user_id = u.id AND r.name = ANY ($2)
			))`
	if _, err := rolePermissions(r.Context(), q, roles); err != nil { // a role is unknown
		return found, err
	}
	return collectOne[audience](r.Context(), q, errNotFound, "preview audience", query, everybody, roles)
}

// roleNames returns the names of all roles. It does not ask the API, because a reader who may write
// messages need not be allowed to list roles.
func (a *apiReader) roleNames() (names []string) {
	roles, err := listRoles(a.r.Context(), a.db, nil, "", maxPage)
	a.err = cmp.Or(a.err, err)
	for _, role := range roles {
		names = append(names, role.Name)
	}
	return names
}

// usersPage reads a page of the list of users.
func (s *server) usersPage(a *apiReader) *page {
	return &page{Template: "users", Title: "Users", Data: struct {
		Users            []user
		AllRoles, Member []string
	}{getPage[user](a, "/api/v1/users"), a.roleNames(), []string{memberRole}}}
}

// userPage reads the page of a user.
func (s *server) userPage(a *apiReader) *page {
	u := get[user](a, "/api/v1/users/{id}", "")
	return &page{Template: "user", Title: u.Username, Data: struct {
		user
		Tag      string
		AllRoles []string
		Sessions []sessionView
		Tokens   []apiToken
	}{u, u.tag(), a.roleNames(), getAll[sessionView](a, "/api/v1/users/{id}/sessions"),
		getAll[apiToken](a, "/api/v1/users/{id}/tokens")}}
}

// rolesPage reads the page of the roles and the permissions.
func (s *server) rolesPage(a *apiReader) *page {
	return &page{Template: "roles", Title: "Roles and permissions", Data: struct {
		Roles       []role
		Permissions []permissionView
	}{getAll[role](a, "/api/v1/roles"), get[listOf[permissionView]](a, "/api/v1/permissions", "").Items}}
}

// auditPage reads a page of the audit log.
func (s *server) auditPage(a *apiReader) *page {
	return &page{Template: "audit", Title: "Audit log", Data: struct {
		Rows    []auditRow
		Actions []string
	}{getPage[auditRow](a, "/api/v1/audit"), slices.Sorted(slices.Values(auditActions()))}}
}
