package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// console is the component of the web pages.
type console struct {
	core     *core
	accounts *accounts
	pages    *template.Template

	// call calls a route of the API for the page that r asks for: see server.callAPI. It is set
	// once the route table is built.
	call func(r *http.Request, route, query string, body map[string]any) ([]byte, error)
}

// newConsole returns the console. Its call is not set yet.
func newConsole(core *core, accounts *accounts) *console {
	return &console{core: core, accounts: accounts, pages: parsePages(core.cfg.passwordMin)}
}

// consoleFiles holds the templates, the style sheet and the script of the pages.
//
//go:embed console
var consoleFiles embed.FS

// pagePolicy is the Content-Security-Policy of every page: scripts, styles and all else come only
// from this service, and none are inline.
const pagePolicy = "default-src 'none'; " +
	"style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// page is a page of the console. Its template gets it whole.
type page struct {
	Template string
	Title    string
	Content  template.HTML  // what the template has written: see writePage
	Data     any            // the page's own
	Once     map[string]any // an answer of the API with a secret, which only this page shows
	Version  string

	User   *user           // the reader; nil: not signed in
	Lacks  bool            // the reader lacks a second factor that one of the roles requires
	Can    map[string]bool // the permissions that the reader holds
	Unread int64           // how many messages the reader has not read

	Path  string      // of the page; with a refused form the request has another
	Query url.Values  // of the request
	Next  string      // the address of the next page of a list, or ""
	Set   []setFilter // the filters of the list; the form adds them

	Action  string     // the path of the form that was refused, or ""
	Form    url.Values // what was typed in it
	Refusal *refusal

	HasFocus bool // an input has the focus
}

// setFilter is a filter of a list that is set.
type setFilter struct {
	Label   string
	Value   string
	Without string // the address of the page without the filter
}

// refusal is a problem as a page shows it.
type refusal struct {
	Detail     string
	Code       problemCode
	RequestID  string
	Fields     map[string]string // what is wrong with each field
	RetryAfter time.Duration
}

// parsePages parses the templates. passwordMin appears in the hint at new passwords.
func parsePages(passwordMin int) *template.Template {
	functions := template.FuncMap{
		"join":   func(list []string) string { return strings.Join(list, ", ") },
		"has":    slices.Contains[[]string],
		"plural": plural,
		"tag":    tagOf,
		"size":   sizeText,
		"digits": threeDigits,
		"yes":    func(is *bool) bool { return is != nil && *is },
		"json":   jsonText,
		"health": healthOf,
		"input":  inputTime,
		"device": deviceName,
		"once":   rand.Text,
		"name":   visibleName,
		"kind":   kindText,
		"view":   viewOf,
		"group":  grouped,
		"unit":   unitOfCRS,

		"passwordHint": func() string {
			return fmt.Sprintf("At least %d characters. Any characters will do.", passwordMin)
		},

		// The result is safe: the SVG has none of the text itself.
		"qr": func(text any) template.HTML {
			svg, _ := qrSVG(fmt.Sprint(text))
			return template.HTML(svg)
		},
	}

	pages := template.New("").Funcs(functions)
	return template.Must(pages.ParseFS(consoleFiles, "console/*.html"))
}

// visibleName returns the name of a file with escapes in place of unsafe characters: see isUnsafe.
func visibleName(name string) string {
	var shown strings.Builder
	for _, r := range name {
		if isUnsafe(r) {
			shown.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			shown.WriteRune(r)
		}
	}
	return shown.String()
}

// jsonText returns a value as JSON for an input; nothing for null.
func jsonText(v any) string {
	text, _ := json.Marshal(v) // never fails for text, numbers and lists
	return strings.TrimPrefix(string(text), "null")
}

// inputTime returns a time in UTC as an input of the type datetime-local has it.
func inputTime(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(inputTimeLayout)
}

// inputTimeLayout is the layout of a datetime-local input.
const inputTimeLayout = "2006-01-02T15:04"

// sizeText returns a number of bytes as people read it: "1.5 MB".
func sizeText(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	size := float64(n)

	for ; size >= 999.5; size /= 1000 { // threeDigits would round to 1000
		units = units[1:]
	}
	return threeDigits(size) + " " + units[0]
}

// grouped returns a number with commas between its thousands, and without decimals that are zero:
// "1,246.35" for "1246.35".
func grouped(number string) string {
	number = strings.TrimSuffix(number, ".00")
	digits := len(number) - len(strings.TrimLeft(number, "-0123456789"))
	for at := digits - 3; at > 0 && number[at-1] != '-'; at -= 3 {
		number = number[:at] + "," + number[at:]
	}
	return number
}

// show returns the handler of a page. It calls each of the changes on the page.
func (c *console) show(row pageRow, changes ...func(*page)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := c.readPageFor(r, row)
		if err != nil {
			return c.refuse(w, r, nil, row, err)
		}

		for _, change := range changes {
			change(p)
		}
		return c.writePage(w, http.StatusOK, p)
	}
}

// readPageFor reads a page. It adds what every page shows about its reader.
func (c *console) readPageFor(r *http.Request, row pageRow) (*page, error) {
	api := &apiReader{console: c, r: r}
	api.recognize()

	p := &page{Template: row.template, Path: fillPath(r, row.path)}
	if row.read != nil {
		p.Data = row.read(api)
	}
	if api.err != nil {
		return nil, api.err
	}

	p.Title = cmp.Or(api.title, row.title)
	p.addReader(r)
	if api.next != "" {
		p.Next = p.Path + "?" + api.next
	}

	if !p.Can[inboxRead] {
		return p, nil
	}

	// An error here is not one of the page, which may be the only one to show a secret.
	badge := &apiReader{console: c, r: r}
	p.Unread = get[unread](badge, "/api/v1/inbox/unread-count", "").Unread
	if badge.err != nil {
		c.core.log.Warn("unread messages not counted",
			"id", callerOf(r).requestID,
			"error", badge.err)
	}
	return p, nil
}

// addReader adds what every page shows about its reader and needs no database.
func (p *page) addReader(r *http.Request) {
	p.Path = cmp.Or(p.Path, r.URL.Path)
	p.Query = r.URL.Query()
	p.Version = version

	p.Can = map[string]bool{}
	if reader := principalOf(r); reader != nil {
		p.User = &reader.user
		p.Lacks = reader.isSuspended()
		for _, permission := range reader.permissions {
			p.Can[permission] = true
		}
	}
}

// writePage answers with a page. It executes the content first and then the frame around it. The
// frame shows the refusal, to which Field has added the label of the first wrong field by then.
func (c *console) writePage(w http.ResponseWriter, status int, p *page) error {
	var content bytes.Buffer
	err := c.pages.ExecuteTemplate(&content, p.Template, p)
	if err != nil {
		return fmt.Errorf("write page %s: %w", p.Template, err)
	}

	p.Content = template.HTML(content.String()) // safe: a template has escaped it
	var body bytes.Buffer
	err = c.pages.ExecuteTemplate(&body, "frame", p)
	if err != nil {
		return fmt.Errorf("write the frame of page %s: %w", p.Template, err)
	}

	h := w.Header()
	h.Del("WWW-Authenticate") // a browser would ask for a password by itself
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send Origin: null with our own forms
	h.Set("Cross-Origin-Opener-Policy", "same-origin")

	return writeBytes(w, status, "text/html; charset=utf-8", body.Bytes())
}

// wantsPage reports whether the answer to a request, also an error, is for a person with a browser.
func wantsPage(r *http.Request) bool {
	isPage := route{path: r.URL.Path}.isPage()
	return isPage && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// writeErrorPage answers with a problem on page p. If p is nil, the problem has a page of its own.
// Without a session, a page redirects to the login page, which returns to it afterwards.
func (c *console) writeErrorPage(w *responseWriter, r *http.Request, p *page, wrong *problem) {
	if wrong.status == http.StatusUnauthorized && isRead(r) {
		goTo(w, loginPathTo(r.URL.RequestURI()))
		return
	}

	if wrong == errNoPath {
		c.recognizeWithoutRoute(r)
	}
	if p == nil {
		p = &page{Template: "error", Title: http.StatusText(wrong.status)}
		p.addReader(r)
	}
	p.Refusal = newRefusal(wrong, w.requestID)

	// After an error, nothing has been written yet.
	err := c.writePage(w, wrong.status, p)
	if err != nil {
		c.core.log.Error("error page not written",
			"id", w.requestID,
			"error", err)

		text := "Something went wrong here. The log has it under the request id " + w.requestID + ".\n"
		writeBytes(w, http.StatusInternalServerError, "text/plain; charset=utf-8", []byte(text))
	}
}

// recognizeWithoutRoute is recognize for a request that matches no route, and so has no slot and no
// time limit yet. The statement runs even if the client leaves: to cancel it would close its
// connection to the database.
func (c *console) recognizeWithoutRoute(r *http.Request) {
	detached := r.WithContext(context.WithoutCancel(r.Context()))

	// With an error, the error page does not show who the reader is.
	withPoolSlot(detached, quick, func(ctx context.Context) error {
		api := &apiReader{console: c, r: r.WithContext(ctx)}
		api.recognize()
		return api.err
	})
}

// newRefusal returns a problem as a page shows it. If the page shows the field that is wrong, Field
// puts the field's label into the detail.
func newRefusal(wrong *problem, requestID string) *refusal {
	shown := &refusal{
		Detail:     cmp.Or(refusalTexts()[wrong.code], wrong.detail),
		Code:       wrong.code,
		RequestID:  requestID,
		Fields:     map[string]string{},
		RetryAfter: wrong.retryAfter.Truncate(time.Second),
	}
	if wrong == errNoPath {
		shown.Detail = "There is no such page."
	}

	// Some codes are about one field.
	field := map[problemCode]string{
		codeWrongPassword: "current_password",
		codeOTPRequired:   "otp",
		codeOTPInvalid:    "otp",
	}[wrong.code]
	if field != "" {
		shown.Fields[field] = shown.Detail
	}

	// Some details begin with the name of a parameter: "point must be 2 numbers".
	name, rule, _ := strings.Cut(wrong.detail, " ")
	if strings.HasPrefix(rule, "must be ") {
		shown.Fields[name] = rule
	}

	// Backward, so that the first thing that is wrong with a field is the last to be set.
	for _, f := range slices.Backward(wrong.fields) {
		shown.Fields[f.Field] = strings.Replace(f.Detail, timeRule, pageTimeRule, 1)
	}
	return shown
}

// pageTimeRule is timeRule as the pages take times.
const pageTimeRule = "must be a day or a time, such as 2026-01-31 or 2026-01-31 12:00"

// refusalTexts returns the details of problems, by code, that a page words for people. Those of the
// API name its routes and fields.
func refusalTexts() map[problemCode]string {
	return map[problemCode]string{
		codeAlreadyPublished:   "The announcement has been published. Its time cannot be changed any more.",
		codeBodyTooLarge:       "The form is too large.",
		codeBodyUnreadable:     "The form did not arrive whole. Send it again.",
		codeDuplicateParameter: "The address says something twice.",
		codeMalformedQuery:     "The address is malformed.",
		codeInvalidCursor:      "This part of the list is not there any more. Open the list again.",
		codeNotAddressed:       "There is no such announcement for you.",
		codeOTPRequired:        "Type the code that your app shows, or a recovery code, or use your passkey.",
		codePermissionInUse:    "Roles or API tokens hold this permission. Take it from the roles, and end the tokens.",
		codeRoleBuiltIn: "The roles admin and member cannot be deleted. For admin you can only set whether its " +
			"holders need a second factor.",
		codeRoleInUse: "Users hold this role. Take it from them first, on the page of each.",
		codeStale: "Somebody has changed this since you opened the page. What you have typed is kept: send it again " +
			"to replace their change, or open the page again to see it.",
		codeTOTPNotBegun:        "The secret has expired. Set the second factor up again.",
		codeUnknownParameter:    "The address has a part that this page does not know.",
		codeSecondFactorMissing: "One of your roles requires a second factor. Set one up on the page of your account.",
		codeUseOwnRoute:         "This is your own account. Change it on your own page: follow your name at the top.",
	}
}

// getConsoleFile answers GET /console/{file}: the style sheet, the script and the icon.
func (c *console) getConsoleFile(w http.ResponseWriter, r *http.Request) error {
	kinds := map[string]string{
		".css": "text/css",
		".js":  "text/javascript",
		".svg": "image/svg+xml",
	}
	kind := kinds[path.Ext(r.URL.Path)]

	content, err := consoleFiles.ReadFile("console/" + r.PathValue("file"))
	if err != nil || kind == "" {
		return errNoPath
	}

	w.Header().Set("Cache-Control", "no-cache") // kept, but asked for again each time
	return writeTaggedBytes(w, r, kind+"; charset=utf-8", entityTag(content), content)
}

// goTo answers with a redirect (303): the browser reads the page next.
func goTo(w http.ResponseWriter, next string) error {
	w.Header().Set("Location", next)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// readForm reads the request's form. Its field "tag", the entity tag of the object as the page has
// shown it, becomes If-Match, so that nobody writes over somebody else's change.
func readForm(r *http.Request) (url.Values, error) {
	mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if mediaType != "application/x-www-form-urlencoded" {
		return nil, newProblem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType,
			"The body must be a form.")
	}

	body, _ := io.ReadAll(r.Body) // never fails: receiveBody has read it
	values, err := url.ParseQuery(string(body))
	decoded, _ := url.QueryUnescape(string(body)) // its error is that of ParseQuery
	if err != nil || !utf8.ValidString(decoded) {
		return nil, malformed(codeMalformedForm, "The form is malformed.")
	}

	if values.Has("tag") {
		r.Header.Set("If-Match", values.Get("tag"))
	}
	return values, nil
}

// fieldKinds are the characters that follow the name of a field: see formBody.
const fieldKinds = "?*[]!@{},"

// formBody returns the body for the API that a form stands for. fields names its fields, each with
// a suffix:
//
//	name    trimmed text
//	name*   text as typed
//	name?   text as typed, null if empty
//	name@   time in UTC, null if empty
//	name{}  JSON, null if empty
//	name,   a list with commas between its items
//	name!   whether the box is ticked
//	name[]  ticked values, null if the empty one is ticked
//
// A field without ! or [] is left out if the form lacks it, or if it equals the form's hidden field
// "former_name". A name with a dot is a field of an inner object, as in "about.title".
func formBody(f url.Values, fields string) map[string]any {
	if fields == "" {
		return nil
	}

	body := map[string]any{}
	for spec := range strings.FieldsSeq(fields) {
		name := strings.TrimRight(spec, fieldKinds)
		kind := spec[len(name):]

		// Boxes that are not ticked are not sent.
		if kind == "!" {
			body[name] = f.Has(name)
			continue
		}

		if kind == "[]" {
			body[name] = append([]string{}, f[name]...) // never null
			if slices.Contains(f[name], "") {
				body[name] = nil
			}
			continue
		}

		// Browsers send line ends as CRLF. A text for a command gets LF, too.
		typed := strings.ReplaceAll(f.Get(name), "\r\n", "\n")
		isUnchanged := f.Has("former_"+name) && f.Get("former_"+name) == typed
		if !f.Has(name) || isUnchanged {
			continue
		}

		object, field, isInner := strings.Cut(name, ".")
		if !isInner {
			body[name] = fieldValue(kind, typed)
			continue
		}
		inner, _ := body[object].(map[string]any)
		if inner == nil {
			inner = map[string]any{}
			body[object] = inner
		}
		inner[field] = fieldValue(kind, typed)
	}
	return body
}

// fieldValue returns what the API gets for the text in a field of that kind: see formBody. If the
// text is not a time or JSON as the kind demands, the API gets the text, and refuses it.
func fieldValue(kind, typed string) any {
	isNullable := kind == "?" || kind == "@" || kind == "{}"
	if isNullable && typed == "" {
		return nil
	}
	if kind == "*" || kind == "?" {
		return typed
	}

	text := strings.TrimSpace(typed)
	if kind == "," {
		return listOfText(text)
	}
	if kind == "{}" && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}

	if at, err := time.Parse(inputTimeLayout, text); err == nil && kind == "@" {
		return at
	}
	return text
}

// listOfText returns the items of a list with commas between them. It is never nil.
func listOfText(text string) []string {
	items := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// refuse returns err. If err says what is wrong with a form or with the filter of a list, the error
// page is the page itself, with what was typed.
func (c *console) refuse(w http.ResponseWriter, r *http.Request, f url.Values, formPage pageRow, err error) error {
	wrong := problemIn(err)
	isOfForm := wrong != nil && wrong.status < 500
	hasFilter := r.URL.RawQuery != ""
	answer := w.(*responseWriter) // ServeHTTP passes nothing else
	if !isOfForm || answer.page == nil || isRead(r) && !hasFilter {
		return err
	}

	if wrong.status == http.StatusPreconditionFailed {
		delete(f, "tag") // the page shows the present one
	}

	// The page itself has no filter, which may be what was refused.
	plain := r.Clone(r.Context())
	plain.URL.RawQuery = ""
	if p, failed := c.readPageFor(plain, formPage); failed == nil {
		p.Query = r.URL.Query()
		p.Form = p.Query
		if !isRead(r) {
			p.addForm(r, f)
		}
		answer.page = func(wrong *problem) { c.writeErrorPage(answer, r, p, wrong) }
	}

	return err
}

// act returns the handler of a form: it sends the fields to a route of the API and goes on to the
// page next. Path values in route and next are those of the request's path; {new} in next is the id
// in the route's answer, and {code} is the field of that name. If next is empty, the form's page
// shows the answer, which has a secret, once. If the route refuses the form, the form's page shows
// the reason and what was typed. A form that arrives twice acts once: see doOnce.
func (c *console) act(route, fields string, formPage pageRow, next string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		f, err := readForm(r)
		if err != nil {
			return err
		}

		r.SetPathValue("code", f.Get("code"))
		answer, err := c.doOnce(r, f, func() (formAnswer, error) {
			written, err := c.call(r, route, "", formBody(f, fields))
			return c.readAnswer(r, written, next), err
		})
		if err != nil {
			return c.refuse(w, r, f, formPage, err)
		}
		if answer.Next != "" {
			return goTo(w, answer.Next)
		}

		return c.show(formPage, func(p *page) { p.Once = answer.Secret })(w, r)
	}
}

// readAnswer returns the answer to a form whose route of the API has answered with written.
func (c *console) readAnswer(r *http.Request, written []byte, next string) formAnswer {
	var answer map[string]any
	json.Unmarshal(written, &answer) // nil if the answer is empty
	if next != "" {
		r.SetPathValue("new", fmt.Sprintf("%.0f", answer["id"]))
		return formAnswer{Next: fillPath(r, next)}
	}

	// A password token becomes the address of the page that takes it.
	if token, ok := answer["password_token"].(string); ok {
		if base := c.browserURL(r); base != "" {
			answer["link"] = base + passwordPath(token)
		}
	}

	// The page shows only these. So what is stored for a second arrival is small.
	secret := map[string]any{}
	for _, name := range []string{"token", "uri", "secret", "recovery_codes", "password_token", "link"} {
		if value, has := answer[name]; has {
			secret[name] = value
		}
	}
	return formAnswer{Secret: secret}
}

// browserURL returns the scheme and the host by which the reader's browser knows the service.
// Behind a proxy only CAIRN_BASE_URL and the header Origin, which browsers send with forms, name
// them: it returns "" without both.
func (c *console) browserURL(r *http.Request) string {
	origin := r.Header.Get("Origin")
	isProxied := r.Header.Get("X-Forwarded-For") != ""

	switch {
	case c.core.cfg.baseURL == "" && strings.HasPrefix(origin, "http"):
		return origin
	case c.core.cfg.baseURL == "" && isProxied:
		return ""
	default:
		return c.core.baseURL(r)
	}
}

// pathValues matches the names of path values in a route's path.
var pathValues = regexp.MustCompile(`{[\w$]+}`)

// fillPath returns a route's path with the path values of the request.
func fillPath(r *http.Request, pattern string) string {
	return pathValues.ReplaceAllStringFunc(pattern, func(part string) string {
		return url.PathEscape(r.PathValue(strings.Trim(part, "{}")))
	})
}

// apiReader reads from the API what a page shows. After the first error it reads nothing more.
type apiReader struct {
	console *console
	r       *http.Request
	title   string // the title of the page; "": that of its row
	next    string // the query of the next page of a list, or ""
	err     error
}

// listOf is an answer of the API with a list.
type listOf[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
	listTotal
}

// get returns what a GET route of the API answers, or the zero value after an error.
func get[T any](api *apiReader, path, query string) (into T) {
	if api.err != nil {
		return into
	}

	answer, err := api.console.call(api.r, "GET "+path, query, nil)
	if err == nil {
		err = json.Unmarshal(answer, &into)
	}

	api.err = err
	return into
}

// getAll returns the items of a list that never has more than maxPage.
func getAll[T any](api *apiReader, path string) []T {
	return get[listOf[T]](api, path, "limit=500").Items
}

// getPage returns the page of a list that the console page's own query asks for.
func getPage[T any](api *apiReader, path string) []T {
	return getList[T](api, path, nil).Items
}

// getList is getPage with more parameters of the query. It also returns the total, if asked for it.
func getList[T any](api *apiReader, path string, more url.Values) listOf[T] {
	query := filtersIn(api.r.URL.Query())
	next := maps.Clone(query)
	maps.Copy(query, more)

	list := get[listOf[T]](api, path, query.Encode())
	if list.NextCursor != nil {
		next.Set("cursor", *list.NextCursor)
		api.next = next.Encode()
	}
	return list
}

// filtersIn returns the query of a page as the API takes it, without inputs that were left empty.
func filtersIn(query url.Values) url.Values {
	set := url.Values{}
	for name, values := range query {
		if values[0] != "" && name != "done" {
			set.Set(name, filterText(name, values[0]))
		}
	}
	return set
}

// Filters returns the query of the page's list, without where it begins, and without a filter.
func (p *page) Filters(without string) string {
	set := filtersIn(p.Query)
	set.Del("cursor")
	set.Del(without)
	return set.Encode()
}

// Current returns the attribute aria-current of a link in the navigation: "page" on its own page,
// "true" on a page below that, else "".
func (p *page) Current(link string) string {
	switch {
	case p.Path == link:
		return "page"
	case strings.HasPrefix(p.Path, link+"/"):
		return "true"
	}
	return ""
}

// deviceName returns the browser and the system in a User-Agent, as in "Firefox on Linux". Text
// that names none, such as that of a program, stays as it is.
func deviceName(agent string) string {
	firstOf := func(names ...string) string {
		for _, name := range names {
			if strings.Contains(agent, name) {
				return name
			}
		}
		return ""
	}

	// A browser also names those that it resembles, so the order counts.
	browser := firstOf("Edg", "Firefox", "Chrome", "Safari")
	system := firstOf("Android", "iPhone", "iPad", "Windows", "Mac", "Linux")
	if browser == "" || system == "" {
		return agent
	}
	return strings.Replace(browser, "Edg", "Edge", 1) + " on " + system
}

// field is an input of a form, as the template "field" writes it.
type field struct {
	ID       string
	Name     string
	Label    string
	Type     string // of the input, or one of those in the templates "field" and "type"
	Value    string
	Error    string
	Hint     string
	Required bool
	Focus    bool // the input has the focus, because it is the first that is wrong
	Options  []option
}

// option is a choice of a field.
type option struct {
	Value string
	Label string
	On    bool
}

// Field returns the input of that name in a form. action is the path to which the form is sent.
// After a refusal the input holds what was typed, else value. kind is the field's Type. If it ends
// in "!", the input is required. A form without an action is that of the filters.
func (p *page) Field(action, name, label, kind, value, hint string) field {
	kind, required := strings.CutSuffix(kind, "!")
	f := field{
		ID:       fieldID(action + "-" + name),
		Name:     name,
		Label:    label,
		Type:     kind,
		Value:    value,
		Hint:     hint,
		Required: required,
	}
	if action == "" && value != "" {
		address := strings.TrimSuffix(p.Path+"?"+p.Filters(name), "?")
		p.Set = append(p.Set, setFilter{label, value, address})
	}
	if p.Template == "login" && p.Refusal == nil && kind != "hidden" {
		f.Focus = !p.HasFocus
		p.HasFocus = true
	}
	if p.Action != action {
		return f
	}

	if p.Refusal != nil {
		f.Error = p.Refusal.Fields[name]
		takesFocus := kind != "hidden" && kind != "passkey"
		f.Focus = f.Error != "" && !p.HasFocus && takesFocus
		p.HasFocus = p.HasFocus || f.Focus
		if f.Focus && f.Error != p.Refusal.Detail {
			p.Refusal.Detail = label + ": " + f.Error
		}
	}
	isPassword := strings.HasSuffix(kind, "password")
	if p.Form.Has(name) && !isPassword {
		f.Value = p.Form.Get(name)
	}
	return f
}

// Factor returns the input of a form for the reader's second factor. The script adds a button that
// fills it in with a passkey. If the reader has no app, that is the only way.
func (p *page) Factor(action string) field {
	if p.User.TOTP {
		return p.Field(action, "otp", "Code from your app, or a recovery code", "code!", "", "")
	}
	return p.Field(action, "otp", "Your passkey", "passkey", "", "")
}

// Choice returns a field with options, "value=label" or just "value", of which one is chosen.
func (p *page) Choice(action, name, label, value string, options ...string) field {
	f := p.Field(action, name, label, "select", value, "")

	for _, text := range options {
		value, label, found := strings.Cut(text, "=")
		if !found {
			label = value
		}

		isChosen := value == f.Value
		f.Options = append(f.Options, option{value, label, isChosen})
		if isChosen && action == "" && value != "" {
			p.Set[len(p.Set)-1].Value = label
		}
	}
	return f
}

// Choices is Choice for a list of options. "any" comes before them, and chooses none of them.
func (p *page) Choices(action, name, label, value string, options []string) field {
	options = append([]string{"=any"}, options...)
	return p.Choice(action, name, label, value, options...)
}

// Requires returns the choice of what a dataset requires: nothing, or a permission of the reader.
func (p *page) Requires(action, value string) field {
	options := []string{"=everybody who may read datasets"}
	for _, permission := range slices.Sorted(maps.Keys(p.Can)) {
		options = append(options, permission+"=only holders of "+permission)
	}
	return p.Choice(action, "requires", "Seen by", value, options...)
}

// Boxes returns a field of boxes to tick: all names, of which those in on are ticked.
func (p *page) Boxes(action, name, label string, all, on []string) field {
	f := p.Field(action, name, label, "boxes", "", "")

	for _, text := range all {
		isOn := p.On(action, name, text, slices.Contains(on, text))
		f.Options = append(f.Options, option{text, text, isOn})
	}
	return f
}

// On reports whether a box is ticked. After a form was sent to the action, the box is as in that
// form. Otherwise it is as the parameter is says.
func (p *page) On(action, name, value string, is bool) bool {
	if p.Form != nil && p.Action == action {
		return slices.Contains(p.Form[name], value)
	}
	return is
}

// addForm adds what was typed in a form. Forms for the same path are told apart by their field
// "code". The path of a preview is that of its form.
func (p *page) addForm(r *http.Request, f url.Values) {
	p.Action = strings.TrimSuffix(strings.TrimSuffix(r.URL.Path, "/preview"), "/new")
	p.Form = f

	if code := f.Get("code"); code != "" {
		p.Action += "#" + code
	}
}

// notInID matches what fieldID replaces.
var notInID = regexp.MustCompile(`[^A-Za-z0-9]+`)

// fieldID returns the HTML id of an input.
func fieldID(text string) string { return "f" + notInID.ReplaceAllString(text, "-") }
