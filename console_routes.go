package main

import (
	"slices"
	"strings"
)

// pageRow is the row of a page that shows what it reads from the API.
type pageRow struct {
	path     string
	who      requirement
	template string
	title    string                   // "": read sets api.title
	read     func(api *apiReader) any // returns page.Data, and stores an error in api.err; nil: there is no data
	class    class
	query    string // the names of its query parameters
}

// pageRows returns the rows of pages that show data. The first line of a row has its path, who may
// see it, its template and its title. The second has its data, class and query parameters.
func pageRows(c *console) []pageRow {
	return []pageRow{
		{"/{$}", public, "home", "Cairn",
			c.homePage, quick, ""},
		{"/login", public, "login", "Sign in",
			c.loginPage, quick, "next done"},
		{"/register", public, "register", "Create an account",
			c.registerPage, quick, ""},
		{"/set-password", public, "set-password", "Set a password",
			nil, quick, ""},

		{"/inbox", inboxRead, "inbox", "Inbox",
			c.inboxPage, quick, "unread cursor done"},

		{"/account", ownSession, "account", "Your account",
			c.accountPage, quick, "done"},
		{"/account/totp", ownSession, "totp", "Second factor",
			nil, quick, "done"},

		{"/messages", adminSystemMessage, "messages", "Announcements",
			c.messagesPage, slow, "q severity state cursor done"},
		{"/messages/new", adminSystemMessage, "message", "New announcement",
			c.messagePage, quick, ""},
		{"/messages/{id}", adminSystemMessage, "message", "",
			c.messagePage, slow, ""},

		{"/users", userManage, "users", "Users",
			c.usersPage, slow, "q status role cursor done"},
		{"/users/{id}", userManage, "user", "",
			c.userPage, quick, "done"},
		{"/roles", userManage, "roles", "Roles and permissions",
			c.rolesPage, quick, "cursor done"},
		{"/audit", auditRead, "audit", "Audit log",
			c.auditPage, slow, "actor action target request_id since until cursor"},

		{"/datasets", datasetRead, "datasets", "Datasets",
			c.datasetsPage, quick, "q keyword cursor done"},
		{"/datasets/{id}", datasetRead, "dataset", "",
			c.datasetPage, slow, "bbox at.x at.y scale point done"},
		{"/datasets/{id}/profile", datasetRead, "profile", "Heights along a line",
			c.profilePage, heavy, "from to"},
		{"/datasets/{id}/files", datasetRead, "files", "",
			c.filesPage, slow, fileFilters + " sort cursor"},
		{"/datasets/{id}/files/{file}", datasetRead, "file", "",
			c.filePage, slow, ""},
		{"/files", datasetRead, "files", "Files",
			c.filesPage, slow, fileFilters + " sort cursor"},
		{"/datasets/{id}/analyses/{analysis}", datasetRead, "analysis", "",
			c.analysisPage, slow, "change cursor done"},
		{"/datasets/{id}/report", datasetRead, "report", "",
			c.reportPage, slow, "cursor done"},
		{"/datasets/{id}/expectation", datasetRead, "expectation", "",
			c.expectationPage, quick, ""},
	}
}

// pageAt returns the row of the page with that path.
func pageAt(c *console, path string) pageRow {
	pages := pageRows(c)
	at := slices.IndexFunc(pages, func(p pageRow) bool { return p.path == path })
	return pages[at]
}

// pageRoutes returns the rows of pages, and of the forms that no route of the API takes.
func pageRoutes(c *console) []route {
	rows := []route{
		reads("/console/{file}", public,
			c.getConsoleFile, light),
		changes("POST /login", public,
			c.loginForm, hashing, large),
		changes("POST /logout", public,
			c.logoutForm, quick, small),
		changes("POST /messages/new/preview", adminSystemMessage,
			c.previewMessage, slow, large),
		changes("POST /messages/{id}/preview", adminSystemMessage,
			c.previewMessage, slow, large),
	}

	for _, p := range pageRows(c) {
		rows = append(rows, reads(p.path, p.who, c.show(p), p.class, p.query))
	}
	return rows
}

// form is a form on a page. A caller who may call its route of the API may send the form.
type form struct {
	path   string
	to     string // the method and path of the route, below /api/v1
	fields string // as formBody reads them
	page   string // the path of the page that the form is on
	next   string // the page after it; if empty, the form's own page shows the answer once
}

// formTable has the forms of all pages, with a blank line between two of them. The first line of a
// form has its path and its route. The second has its page, and the page after it or "-". Then come
// its fields.
const formTable = `
/register  POST /auth/register
	/register  /login?done=registered
	username password* email? display_name

/set-password  POST /auth/password-reset
	/set-password  /login?done=reset
	token new_password*

/inbox/{id}/read  POST /inbox/{id}/read
	/inbox  /inbox?done=read

/inbox/read-all  POST /inbox/read-all
	/inbox  /inbox?done=read
	up_to{}

/account/name  PATCH /auth/me
	/account  /account?done=saved
	display_name

/account/email  PATCH /auth/me
	/account  /account?done=saved
	email current_password* otp

/account/password  PUT /auth/password
	/account  /account?done=password
	current_password* otp new_password* end_tokens!

/account/sessions/end  DELETE /auth/sessions
	/account  /account?done=ended

/account/sessions/{id}/end  DELETE /auth/sessions/{id}
	/account  /account?done=ended

/account/tokens  POST /auth/tokens
	/account  -
	name permissions[] expires_at@ current_password* otp

/account/tokens/{id}/end  DELETE /auth/tokens/{id}
	/account  /account?done=ended

/account/passkeys  POST /auth/passkeys
	/account  /account?done=saved
	name passkey current_password* otp

/account/passkeys/{id}/end  DELETE /auth/passkeys/{id}
	/account  /account?done=ended
	current_password* otp

/account/totp  POST /auth/totp
	/account/totp  -
	current_password* otp

/account/totp/confirm  POST /auth/totp/confirm
	/account/totp  -
	otp

/account/totp/end  DELETE /auth/totp
	/account/totp  /account/totp?done=ended
	current_password* otp

/messages  POST /system-messages
	/messages/new  /messages?done=saved
	title body* severity roles[] include_new_users! publish_at@ expires_at@

/messages/{id}  PATCH /system-messages/{id}
	/messages/{id}  /messages?done=saved
	title body* severity roles[] include_new_users! publish_at@ expires_at@

/messages/{id}/retract  DELETE /system-messages/{id}
	/messages/{id}  /messages?done=saved

/users  POST /users
	/users  -
	username email? display_name roles[]

/users/{id}  PATCH /users/{id}
	/users/{id}  /users/{id}?done=saved
	display_name email status

/users/{id}/roles  PUT /users/{id}/roles
	/users/{id}  /users/{id}?done=saved
	roles[]

/users/{id}/password-reset  POST /users/{id}/password-reset
	/users/{id}  -

/users/{id}/sessions/end  DELETE /users/{id}/sessions
	/users/{id}  /users/{id}?done=ended

/users/{id}/tokens/end  DELETE /users/{id}/tokens
	/users/{id}  /users/{id}?done=ended

/users/{id}/totp/end  DELETE /users/{id}/totp
	/users/{id}  /users/{id}?done=ended

/users/{id}/delete  DELETE /users/{id}
	/users/{id}  /users?done=deleted

/roles  POST /roles
	/roles  /roles?done=saved
	name description permissions[]

/roles/{id}  PATCH /roles/{id}
	/roles  /roles?done=saved
	permissions[]

/roles/{id}/second-factor  PATCH /roles/{id}
	/roles  /roles?done=saved
	requires_second_factor!

/roles/{id}/delete  DELETE /roles/{id}
	/roles  /roles?done=deleted

/permissions  POST /permissions
	/roles  /roles?done=saved
	name meaning

/permissions/{name}/delete  DELETE /permissions/{name}
	/roles  /roles?done=deleted

/datasets  POST /datasets
	/datasets  /datasets/{new}?done=added
	name path description requires

/datasets/{id}  PATCH /datasets/{id}
	/datasets/{id}  /datasets/{id}?done=saved
	name description requires notify about.title about.license about.attribution about.surveyed_from
	about.surveyed_until about.link about.keywords, about.providers{} about.vertical_rmse_m{}
	about.vertical_rmse_source about.default_crs about.default_vertical_crs about.folder_crs{}

/datasets/{id}/expectation  PATCH /datasets/{id}/expectation
	/datasets/{id}/expectation  /datasets/{id}/report?done=saved
	crs vertical_crs posting sample_type nodata width height name heights boundary{}

/datasets/{id}/delete  DELETE /datasets/{id}
	/datasets/{id}  /datasets?done=deleted

/datasets/{id}/analyses  POST /datasets/{id}/analyses
	/datasets/{id}  /datasets/{id}/analyses/{new}?done=started
	force! checksums! heights!

/datasets/{id}/analyses/{analysis}/cancel  DELETE /datasets/{id}/analyses/{analysis}
	/datasets/{id}/analyses/{analysis}  /datasets/{id}/analyses/{analysis}?done=canceled

/datasets/{id}/accepted  POST /datasets/{id}/accepted-findings
	/datasets/{id}/report  /datasets/{id}/report?done=saved#f-{code}
	code paths[] note

/datasets/{id}/accepted/{accepted}/reopen  DELETE /datasets/{id}/accepted-findings/{accepted}
	/datasets/{id}/report  /datasets/{id}/report?done=saved
`

// forms returns the forms of all pages.
func forms() (all []form) {
	for row := range strings.SplitSeq(formTable, "\n\n") {
		words := strings.Fields(row)
		all = append(all, form{
			path:   words[0],
			to:     words[1] + " " + words[2],
			page:   words[3],
			next:   strings.Trim(words[4], "-"),
			fields: strings.Join(words[5:], " "),
		})
	}
	return all
}

// formRoutes returns the rows of the forms. api are the rows of the API. The row of a form has the
// callers and the largest body of the route that it is sent to. Its class is that of the route, or
// of the page that shows what was wrong, whichever needs more.
func formRoutes(c *console, api []route) []route {
	var rows []route

	for _, f := range forms() {
		to := strings.Replace(f.to, " ", " /api/v1", 1)
		at := slices.IndexFunc(api, func(rt route) bool { return rt.method+" "+rt.path == to })
		target := api[at]
		page := pageAt(c, f.page)

		send := c.act(to, f.fields, page, f.next)
		class := max(target.class, page.class)
		rows = append(rows, changes("POST "+f.path, target.who, send, class, target.maxBody))
	}
	return rows
}
