package main

import (
	"slices"
	"strings"
)

// messageFields are those of the form of an announcement.
const messageFields = "title body* severity roles[] include_new_users! publish_at@ expires_at@"

// pageRoutes returns the rows of pages, laid out as in server.routes.
func pageRoutes(c *console) []route {
	return []route{
		reads("/{$}", public,
			c.show(c.homePage), quick),
		reads("/console/{file}", public,
			c.getConsoleFile, light),
		reads("/login", public,
			c.show(c.loginPage), quick,
			"next done"),
		changes("POST /login", public,
			c.loginForm, hashing, small),
		changes("POST /logout", public,
			c.logoutForm, quick, small),
		reads("/register", public,
			c.show(c.registerPage), quick),
		reads("/set-password", public,
			c.show(c.passwordPage), quick),

		reads("/inbox", inboxRead,
			c.show(c.inboxPage), quick,
			"unread cursor done"),

		reads("/account", ownSession,
			c.show(c.accountPage), quick,
			"done"),
		reads("/account/totp", ownSession,
			c.show(c.totpPage), quick,
			"done"),

		reads("/messages", adminSystemMessage,
			c.show(c.messagesPage), slow,
			"q severity state cursor done"),
		changes("POST /messages/preview", adminSystemMessage,
			c.previewMessage, slow, large),
		reads("/messages/new", adminSystemMessage,
			c.show(c.messagePage), quick),
		reads("/messages/{id}", adminSystemMessage,
			c.show(c.messagePage), slow),
		changes("POST /messages/{id}/preview", adminSystemMessage,
			c.previewMessage, slow, large),

		reads("/users", userManage,
			c.show(c.usersPage), slow,
			"q status role cursor done"),
		reads("/users/{id}", userManage,
			c.show(c.userPage), quick,
			"done"),
		reads("/roles", userManage,
			c.show(c.rolesPage), quick,
			"cursor done"),
		reads("/audit", auditRead,
			c.show(c.auditPage), slow,
			"actor action target request_id since until cursor"),

		reads("/datasets", datasetRead,
			c.show(c.datasetsPage), quick,
			"cursor done"),
		reads("/datasets/{id}", datasetRead,
			c.show(c.datasetPage), slow,
			"bbox move at.x at.y point done"),
		reads("/datasets/{id}/files", datasetRead,
			c.show(c.filesPage), slow,
			"q status warnings path point sort cursor"),
		reads("/datasets/{id}/analyses/{analysis}", datasetRead,
			c.show(c.analysisPage), slow,
			"change cursor done"),
		reads("/datasets/{id}/report", datasetRead,
			c.show(c.reportPage), quick,
			"cursor done"),
		reads("/datasets/{id}/expectation", datasetRead,
			c.show(c.expectationPage), quick),
	}
}

// form is a form on a page. A caller who may call its route of the API may send the form.
type form struct {
	path   string
	to     string // the method and path of the route, below /api/v1
	fields string // as formBody reads them
	page   loader // the page that the form is on
	next   string // the page after it; if empty, the form's own page shows the answer once
	class  class
}

// forms returns the forms of all pages. The first line of a form has its path and its route. The
// second has its fields. The third has its page, the page after it, and its class.
func forms(c *console) []form {
	return []form{
		{"/register", "POST /auth/register",
			"username password* email? display_name",
			c.registerPage, "/login?done=registered", hashing},
		{"/set-password", "POST /auth/password-reset",
			"token new_password*",
			c.passwordPage, "/login?done=reset", hashing},

		{"/inbox/{id}/read", "POST /inbox/{id}/read",
			"",
			c.inboxPage, "/inbox?done=read", quick},
		{"/inbox/read-all", "POST /inbox/read-all",
			"up_to{}",
			c.inboxPage, "/inbox?done=read", quick},

		{"/account/name", "PATCH /auth/me",
			"display_name",
			c.accountPage, "/account?done=saved", quick},
		{"/account/email", "PATCH /auth/me",
			"email current_password* otp",
			c.accountPage, "/account?done=saved", hashing},
		{"/account/password", "PUT /auth/password",
			"current_password* otp new_password* end_tokens!",
			c.accountPage, "/account?done=password", hashing},
		{"/account/sessions/end", "DELETE /auth/sessions",
			"",
			c.accountPage, "/account?done=ended", quick},
		{"/account/sessions/{id}/end", "DELETE /auth/sessions/{id}",
			"",
			c.accountPage, "/account?done=ended", quick},
		{"/account/tokens", "POST /auth/tokens",
			"name permissions[] expires_at@ current_password* otp",
			c.accountPage, "", hashing},
		{"/account/tokens/{id}/end", "DELETE /auth/tokens/{id}",
			"",
			c.accountPage, "/account?done=ended", quick},
		{"/account/totp", "POST /auth/totp",
			"current_password*",
			c.totpPage, "", hashing},
		{"/account/totp/confirm", "POST /auth/totp/confirm",
			"otp",
			c.totpPage, "", quick},
		{"/account/totp/end", "DELETE /auth/totp",
			"current_password* otp",
			c.totpPage, "/account/totp?done=ended", hashing},

		{"/messages", "POST /system-messages",
			messageFields,
			c.messagePage, "/messages?done=saved", slow},
		{"/messages/{id}", "PATCH /system-messages/{id}",
			messageFields,
			c.messagePage, "/messages?done=saved", slow},
		{"/messages/{id}/retract", "DELETE /system-messages/{id}",
			"",
			c.messagePage, "/messages?done=saved", slow},

		{"/users", "POST /users",
			"username email? display_name roles[]",
			c.usersPage, "", slow},
		{"/users/{id}", "PATCH /users/{id}",
			"display_name email status",
			c.userPage, "/users/{id}?done=saved", quick},
		{"/users/{id}/roles", "PUT /users/{id}/roles",
			"roles[]",
			c.userPage, "/users/{id}?done=saved", quick},
		{"/users/{id}/password-reset", "POST /users/{id}/password-reset",
			"",
			c.userPage, "", quick},
		{"/users/{id}/sessions/end", "DELETE /users/{id}/sessions",
			"",
			c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/tokens/end", "DELETE /users/{id}/tokens",
			"",
			c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/totp/end", "DELETE /users/{id}/totp",
			"",
			c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/delete", "DELETE /users/{id}",
			"",
			c.userPage, "/users?done=deleted", quick},

		{"/roles", "POST /roles",
			"name description permissions[]",
			c.rolesPage, "/roles?done=saved", quick},
		{"/roles/{id}", "PATCH /roles/{id}",
			"permissions[]",
			c.rolesPage, "/roles?done=saved", bulk},
		{"/roles/{id}/second-factor", "PATCH /roles/{id}",
			"requires_second_factor!",
			c.rolesPage, "/roles?done=saved", bulk},
		{"/roles/{id}/delete", "DELETE /roles/{id}",
			"",
			c.rolesPage, "/roles?done=deleted", bulk},
		{"/permissions", "POST /permissions",
			"name meaning",
			c.rolesPage, "/roles?done=saved", slow},
		{"/permissions/{name}/delete", "DELETE /permissions/{name}",
			"",
			c.rolesPage, "/roles?done=deleted", slow},

		{"/datasets", "POST /datasets",
			"name path description",
			c.datasetsPage, "/datasets/{new}?done=added", slow},
		{"/datasets/{id}", "PATCH /datasets/{id}",
			"name description",
			c.datasetPage, "/datasets/{id}?done=saved", bulk},
		{"/datasets/{id}/expectation", "PATCH /datasets/{id}/expectation",
			"crs vertical_crs posting sample_type nodata width height name boundary{}",
			c.expectationPage, "/datasets/{id}/report?done=saved", heavy},
		{"/datasets/{id}/delete", "DELETE /datasets/{id}",
			"",
			c.datasetPage, "/datasets?done=deleted", bulk},

		{"/datasets/{id}/analyses", "POST /datasets/{id}/analyses",
			"force!",
			c.datasetPage, "/datasets/{id}/analyses/{new}?done=started", slow},
		{"/datasets/{id}/analyses/{analysis}/cancel", "DELETE /datasets/{id}/analyses/{analysis}",
			"",
			c.analysisPage, "/datasets/{id}/analyses/{analysis}?done=canceled", bulk},
		{"/datasets/{id}/accepted", "POST /datasets/{id}/accepted-findings",
			"code path? note",
			c.reportPage, "/datasets/{id}/report?done=saved", bulk},
		{"/datasets/{id}/accepted/{accepted}/reopen", "DELETE /datasets/{id}/accepted-findings/{accepted}",
			"",
			c.reportPage, "/datasets/{id}/report?done=saved", bulk},
	}
}

// formRoutes returns the rows of the forms. api are the rows of the API.
func formRoutes(c *console, api []route) []route {
	var rows []route
	for _, f := range forms(c) {
		to := strings.Replace(f.to, " ", " /api/v1", 1)
		at := slices.IndexFunc(api, func(rt route) bool { return rt.method+" "+rt.path == to })
		target := api[at]

		send := c.act(to, f.fields, f.page, f.next)
		rows = append(rows, changes("POST "+f.path, target.who,
			send, f.class, target.maxBody))
	}
	return rows
}
