package main

import (
	"slices"
	"strings"
)

// messageFields are those of the form of an announcement.
const messageFields = "title body* severity roles[] include_new_users! publish_at@ expires_at@"

// pageRoutes returns the rows of pages.
func pageRoutes(c *console) []route {
	return []route{
		{"GET", "/{$}", public, c.show(c.homePage), "", quick, 0},
		{"GET", "/console/{file}", public, c.getConsoleFile, "", light, 0},
		{"GET", "/login", public, c.show(c.loginPage), "next done", quick, 0},
		{"POST", "/login", public, c.signInForm, "", hashing, small},
		{"POST", "/logout", public, c.signOutForm, "", quick, small},
		{"GET", "/register", public, c.show(c.registerPage), "", quick, 0},
		{"GET", "/set-password", public, c.show(c.passwordPage), "", quick, 0},
		{"GET", "/inbox", inboxRead, c.show(c.inboxPage), "unread cursor done", quick, 0},
		{"GET", "/account", ownSession, c.show(c.accountPage), "done", quick, 0},
		{"GET", "/account/totp", ownSession, c.show(c.totpPage), "done", quick, 0},
		{"GET", "/messages", adminSystemMessage, c.show(c.messagesPage), "q severity state cursor done", slow, 0},
		{"POST", "/messages/preview", adminSystemMessage, c.previewMessage, "", slow, large},
		{"GET", "/messages/new", adminSystemMessage, c.show(c.messagePage), "", quick, 0},
		{"GET", "/messages/{id}", adminSystemMessage, c.show(c.messagePage), "", slow, 0},
		{"POST", "/messages/{id}/preview", adminSystemMessage, c.previewMessage, "", slow, large},
		{"GET", "/users", userManage, c.show(c.usersPage), "q status role cursor done", slow, 0},
		{"GET", "/users/{id}", userManage, c.show(c.userPage), "done", quick, 0},
		{"GET", "/roles", userManage, c.show(c.rolesPage), "cursor done", quick, 0},
		{"GET", "/audit", auditRead, c.show(c.auditPage), "actor action target request_id since until cursor", slow, 0},
		{"GET", "/datasets", datasetRead, c.show(c.datasetsPage), "cursor done", quick, 0},
		{"GET", "/datasets/{id}", datasetRead, c.show(c.datasetPage), "bbox move at.x at.y point done", slow, 0},
		{"GET", "/datasets/{id}/files", datasetRead, c.show(c.filesPage),
			"q status warnings path point sort cursor", slow, 0},
		{"GET", "/datasets/{id}/analyses/{analysis}", datasetRead, c.show(c.analysisPage),
			"change cursor done", slow, 0},
		{"GET", "/datasets/{id}/report", datasetRead, c.show(c.reportPage), "cursor done", quick, 0},
		{"GET", "/datasets/{id}/expectation", datasetRead, c.show(c.expectationPage), "", quick, 0},
	}
}

// form is a form on a page. Whoever may call a route of the API may send the form to it.
type form struct {
	path   string
	to     string // the method and path of the route, below /api/v1
	fields string // as formBody reads them
	page   loader // the page that the form is on
	next   string // the page after it; if empty, the form's own page shows the answer once
	class  class
}

// forms returns the forms of all pages.
func forms(c *console) []form {
	return []form{
		{"/register", "POST /auth/register", "username password* email? display_name",
			c.registerPage, "/login?done=registered", hashing},
		{"/set-password", "POST /auth/password-reset", "token new_password*",
			c.passwordPage, "/login?done=reset", hashing},
		{"/inbox/{id}/read", "POST /inbox/{id}/read", "", c.inboxPage, "/inbox?done=read", quick},
		{"/inbox/read-all", "POST /inbox/read-all", "up_to{}", c.inboxPage, "/inbox?done=read", quick},
		{"/account/name", "PATCH /auth/me", "display_name", c.accountPage, "/account?done=saved", quick},
		{"/account/email", "PATCH /auth/me", "email current_password* otp",
			c.accountPage, "/account?done=saved", hashing},
		{"/account/password", "PUT /auth/password", "current_password* otp new_password* end_tokens!",
			c.accountPage, "/account?done=password", hashing},
		{"/account/sessions/end", "DELETE /auth/sessions", "", c.accountPage, "/account?done=ended", quick},
		{"/account/sessions/{id}/end", "DELETE /auth/sessions/{id}", "", c.accountPage, "/account?done=ended", quick},
		{"/account/tokens", "POST /auth/tokens", "name permissions[] expires_at@ current_password* otp",
			c.accountPage, "", hashing},
		{"/account/tokens/{id}/end", "DELETE /auth/tokens/{id}", "", c.accountPage, "/account?done=ended", quick},
		{"/account/totp", "POST /auth/totp", "current_password*", c.totpPage, "", hashing},
		{"/account/totp/confirm", "POST /auth/totp/confirm", "otp", c.totpPage, "", quick},
		{"/account/totp/end", "DELETE /auth/totp", "current_password* otp",
			c.totpPage, "/account/totp?done=ended", hashing},
		{"/messages", "POST /system-messages", messageFields, c.messagePage, "/messages?done=saved", slow},
		{"/messages/{id}", "PATCH /system-messages/{id}", messageFields, c.messagePage, "/messages?done=saved", slow},
		{"/messages/{id}/retract", "DELETE /system-messages/{id}", "", c.messagePage, "/messages?done=saved", slow},
		{"/users", "POST /users", "username email? display_name roles[]", c.usersPage, "", slow},
		{"/users/{id}", "PATCH /users/{id}", "display_name email status",
			c.userPage, "/users/{id}?done=saved", quick},
		{"/users/{id}/roles", "PUT /users/{id}/roles", "roles[]", c.userPage, "/users/{id}?done=saved", quick},
		{"/users/{id}/password-reset", "POST /users/{id}/password-reset", "", c.userPage, "", quick},
		{"/users/{id}/sessions/end", "DELETE /users/{id}/sessions", "", c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/tokens/end", "DELETE /users/{id}/tokens", "", c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/totp/end", "DELETE /users/{id}/totp", "", c.userPage, "/users/{id}?done=ended", quick},
		{"/users/{id}/delete", "DELETE /users/{id}", "", c.userPage, "/users?done=deleted", quick},
		{"/roles", "POST /roles", "name description permissions[]", c.rolesPage, "/roles?done=saved", quick},
		{"/roles/{id}", "PATCH /roles/{id}", "permissions[]", c.rolesPage, "/roles?done=saved", bulk},
		{"/roles/{id}/second-factor", "PATCH /roles/{id}", "requires_second_factor!",
			c.rolesPage, "/roles?done=saved", bulk},
		{"/roles/{id}/delete", "DELETE /roles/{id}", "", c.rolesPage, "/roles?done=deleted", bulk},
		{"/permissions", "POST /permissions", "name meaning", c.rolesPage, "/roles?done=saved", slow},
		{"/permissions/{name}/delete", "DELETE /permissions/{name}", "", c.rolesPage, "/roles?done=deleted", slow},
		{"/datasets", "POST /datasets", "name path description", c.datasetsPage, "/datasets/{new}?done=added", slow},
		{"/datasets/{id}", "PATCH /datasets/{id}", "name description",
			c.datasetPage, "/datasets/{id}?done=saved", bulk},
		{"/datasets/{id}/expectation", "PATCH /datasets/{id}/expectation",
			"crs vertical_crs posting sample_type nodata width height name boundary{}",
			c.expectationPage, "/datasets/{id}/report?done=saved", heavy},
		{"/datasets/{id}/delete", "DELETE /datasets/{id}", "", c.datasetPage, "/datasets?done=deleted", bulk},
		{"/datasets/{id}/analyses", "POST /datasets/{id}/analyses", "force!",
			c.datasetPage, "/datasets/{id}/analyses/{new}?done=started", slow},
		{"/datasets/{id}/analyses/{analysis}/cancel", "DELETE /datasets/{id}/analyses/{analysis}", "",
			c.analysisPage, "/datasets/{id}/analyses/{analysis}?done=canceled", bulk},
		{"/datasets/{id}/accepted", "POST /datasets/{id}/accepted-findings", "code path? note",
			c.reportPage, "/datasets/{id}/report?done=saved", bulk},
		{"/datasets/{id}/accepted/{accepted}/reopen", "DELETE /datasets/{id}/accepted-findings/{accepted}", "",
			c.reportPage, "/datasets/{id}/report?done=saved", bulk},
	}
}

// formRoutes returns the rows of the forms. api are the rows of the API.
func formRoutes(c *console, api []route) []route {
	var rows []route
	for _, f := range forms(c) {
		to := strings.Replace(f.to, " ", " /api/v1", 1)
		at := slices.IndexFunc(api, func(rt route) bool { return rt.method+" "+rt.path == to })
		send := c.act(to, f.fields, f.page, f.next)
		rows = append(rows, route{"POST", f.path, api[at].who, send, "", f.class, api[at].maxBody})
	}
	return rows
}
