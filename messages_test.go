package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// publish publishes a message and returns its id.
func (c client) publish(title string) int {
	c.t.Helper()
	return c.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": title, "body": "text"}).number("id")
}

// unread returns the number of unread messages.
func (c client) unread() int {
	c.t.Helper()
	n := c.must(200, "GET", "/api/v1/inbox/unread-count", nil).number("unread")
	return n
}

// TestMessages: messages are created, listed, read and counted, for each reader separately.
func TestMessages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	reader := ts.signIn("reader")
	a := author.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "Maintenance", "body": "On Sunday.\n\tAll day.", "severity": "warning"})
	location := a.header.Get("Location")
	if a.text("author") != "author" || a.text("severity") != "warning" || a.json["read"] != false {
		t.Errorf("created: %s", a.body)
	}
	created := strings.TrimSuffix(string(a.body), "}\n")
	if got := string(author.must(200, "GET", location, nil).body); got != created+`,"recipients":2,"readers":0}`+"\n" {
		t.Errorf("got %s, created %s", got, created)
	}
	first := a.number("id")
	second := author.publish("Second")

	for _, path := range []string{"/api/v1/inbox/unread-count", "/api/v1/system-messages/unread-count"} {
		if n := author.must(200, "GET", path, nil).number("unread"); n != 2 {
			t.Errorf("%s: %d unread, want 2", path, n)
		}
	}
	// A message that is marked twice, by either path, is read once.
	author.must(204, "POST", fmt.Sprintf("/api/v1/system-messages/%d/read", first), nil)
	author.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", first), nil)
	check(t, "unread of the author", author.unread(), 1)
	check(t, "unread of the reader", reader.unread(), 2)
	inbox := reader.must(200, "GET", "/api/v1/inbox", nil).items()
	if len(inbox) != 2 || int(inbox[0]["id"].(float64)) != second || inbox[0]["read"] != false {
		t.Errorf("inbox: %v", inbox)
	}
	// Messages older than a minute are read by the watermark.
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '1 hour'`)
	ts.exec(`UPDATE users SET created_at = created_at - interval '2 hours'`)
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", first), nil)
	check(t, "readers", author.must(200, "GET", location, nil).number("readers"), 2)
	check(t, "unread of the reader after read-all", reader.unread(), 0)
	check(t, "single marks", ts.queryInt(`SELECT count(*) FROM system_message_reads`), 1)
	author.publish("Third")
	if a, r := author.unread(), reader.unread(); a != 2 || r != 1 {
		t.Errorf("unread: author %d, reader %d; want 2, 1", a, r)
	}
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '10 minutes'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at - interval '10 minutes'`)
	author.must(204, "POST", "/api/v1/system-messages/read-all", nil)
	check(t, "single marks below the watermark", ts.queryInt(`SELECT count(*) FROM system_message_reads`), 0)
	reader.refused(404, "not_addressed", "POST", "/api/v1/inbox/999/read", nil)
	reader.refused(403, "permission_missing", "GET", location, nil)
}

// TestMessagesBeforeJoining: a user who joins later does not find old messages unread.
func TestMessagesBeforeJoining(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	old := author.publish("Old")
	late := ts.signIn("late", adminSystemMessage)
	check(t, "unread", late.unread(), 0)
	if items := late.must(200, "GET", "/api/v1/inbox", nil).items(); len(items) != 0 {
		t.Errorf("inbox: %v", items)
	}
	if items := late.must(200, "GET", "/api/v1/system-messages", nil).items(); len(items) != 1 || items[0]["read"] != nil {
		t.Errorf("query: %v", items)
	}
	late.refused(404, "not_addressed", "POST", fmt.Sprintf("/api/v1/system-messages/%d/read", old), nil)
	author.publish("New")
	check(t, "unread", late.unread(), 1)
}

// TestParallelMarks: many simultaneous marks of one message count as one.
func TestParallelMarks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	id := author.publish("One")
	author.publish("Two")
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() { author.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", id), nil) })
	}
	wg.Wait()
	if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 1 || author.unread() != 1 {
		t.Errorf("%d marks, %d unread", n, author.unread())
	}
}

// TestReadAllRacesPublication: a message that commits after a read-all is unread, even if it was begun before, and even
// if a message above it was read. Messages newer than up_to stay unread too.
func TestReadAllRacesPublication(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	ctx := context.Background()
	before := author.publish("Before")
	tx, err := ts.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const slow = `INSERT INTO system_messages (title, body, severity, publish_at, author) VALUES ('Slow', 'b', 'info', clock_timestamp(), 'author')`
	if _, err := tx.Exec(ctx, slow); err != nil {
		t.Fatal(err)
	}
	author.publish("After it")
	author.must(204, "POST", "/api/v1/inbox/read-all", nil)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	check(t, "unread", author.unread(), 1)
	if items := author.must(200, "GET", "/api/v1/inbox?unread=true", nil).items(); len(items) != 1 || items[0]["title"] != "Slow" {
		t.Error(items)
	}

	other := ts.signIn("other")
	ts.exec(`UPDATE users SET created_at = '2000-01-01'`)
	other.must(204, "POST", "/api/v1/inbox/read-all", map[string]int{"up_to": before})
	check(t, "unread", other.unread(), 2)
	// The same holds for messages that are old enough for the watermark.
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '1 hour'`)
	other.must(204, "POST", "/api/v1/inbox/read-all", map[string]int{"up_to": before})
	check(t, "unread", other.unread(), 2)

	// The clock has stepped back by an hour. A message that is published now still lies above the watermark.
	other.must(204, "POST", "/api/v1/inbox/read-all", nil)
	ts.exec(`UPDATE system_messages SET publish_at = publish_at + interval '2 hours'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at + interval '2 hours'`)
	author.publish("After the step")
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '2 hours'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at - interval '2 hours'`)
	check(t, "unread after the clock stepped back", other.unread(), 1)
}

// TestBadMessages: the answer to a bad message names the wrong field, and nothing is stored.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	reader := ts.signIn("reader")
	id := author.publish("Good")
	path := fmt.Sprintf("/api/v1/system-messages/%d", id)
	for _, bad := range []struct{ field, body string }{
		{"title", `{"body":"b"}`},
		{"title", `{"title":null,"body":"b"}`},
		{"body", `{"title":"t","body":null}`},
		{"title", `{"title":" ","body":"b"}`},
		{"title", `{"title":"two\nlines","body":"b"}`},
		{"body", `{"title":"t","body":"a \u202e b"}`},
		{"body", `{"title":"t","body":"a \u2067 b"}`},
		{"body", `{"title":"t","body":"a \u009b b"}`},
		{"title", `{"title":"` + strings.Repeat("é", 201) + `","body":"b"}`},
		{"body", `{"title":"t"}`},
		{"body", `{"title":"t","body":" \n"}`},
		{"body", `{"title":"t","body":"bell \u0007"}`},
		{"body", `{"title":"t","body":"` + strings.Repeat("é", 20001) + `"}`},
		{"severity", `{"title":"t","body":"b","severity":"fatal"}`},
		{"severity", `{"title":"t","body":"b","severity":""}`},
		{"roles", `{"title":"t","body":"b","roles":[]}`},
		{"roles", `{"title":"t","body":"b","roles":["member","none"]}`},
		{"publish_at", `{"title":"t","body":"b","publish_at":"2030-01-01T00:00:00"}`},
		{"publish_at", `{"title":"t","body":"b","publish_at":"tomorrow"}`},
		{"publish_at", `{"title":"t","body":"b","publish_at":"9999-12-31T23:00:00-10:00"}`},
		{"publish_at", `{"title":"t","body":"b","publish_at":"0000-01-01T00:00:00Z"}`},
		{"expires_at", `{"title":"t","body":"b","expires_at":"2030-01-01"}`},
		{"expires_at", `{"title":"t","body":"b","expires_at":"2020-01-01T00:00:00Z"}`},
		{"expires_at", `{"title":"t","body":"b","publish_at":"2031-01-01T00:00:00Z","expires_at":"2030-01-01T00:00:00Z"}`},
	} {
		for _, request := range [][2]string{{"POST", "/api/v1/system-messages"}, {"PATCH", path}} {
			if request[0] == "PATCH" && (strings.Contains(bad.body, "null") || !strings.Contains(bad.body, `"`+bad.field+`"`) || strings.Contains(bad.body, "2031")) {
				continue
			}
			body := bad.body
			if request[0] == "PATCH" && bad.field == "expires_at" {
				body = strings.Replace(body, "2030-01-01T", "2019-01-01T", 1)
			}
			a := author.refused(422, "invalid", request[0], request[1], body)
			if !strings.Contains(string(a.body), `"field":"`+bad.field+`"`) {
				t.Errorf("%s %s: %s", request[0], body, a.body)
			}
		}
	}
	author.refused(409, "already_published", "PATCH", path, `{"publish_at":"2030-01-01T00:00:00Z"}`)
	if n := ts.queryInt(`SELECT count(*) FROM system_messages WHERE title = 'Good' AND body = 'text' AND severity = 'info' AND updated_at = created_at`); n != 1 || ts.queryInt(`SELECT count(*) FROM system_messages`) != 1 {
		t.Error("something was stored")
	}
	hidden := author.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "t", "body": "b", "roles": []string{"admin"}}).number("id")
	reader.refused(404, "not_addressed", "POST", fmt.Sprintf("/api/v1/inbox/%d/read", hidden), nil)
	reader.refused(404, "not_addressed", "POST", "/api/v1/inbox/read", map[string]any{"ids": []int{id, hidden}})
	reader.refused(404, "not_addressed", "POST", "/api/v1/inbox/read-all", map[string]any{"up_to": hidden})
	reader.refused(404, "not_addressed", "POST", "/api/v1/inbox/read-all", map[string]any{"up_to": 999})
	reader.refused(422, "invalid", "POST", "/api/v1/inbox/read", map[string]any{"ids": []int{}})
	check(t, "marks", ts.queryInt(`SELECT count(*) FROM system_message_reads`), 0)
	author.must(204, "DELETE", path, nil)
	author.must(204, "DELETE", path, nil)
	author.refused(409, "retracted", "PATCH", path, map[string]string{"title": "again"})
	check(t, "audit rows of one retraction", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'message.retract'`), 1)
}

// modelMessage is a message in the model of TestMessageModel.
type modelMessage struct {
	roles               []string // nil: everybody
	newUsers, retracted bool
	publish             time.Time
	expires             *time.Time
	severity            string
}

// modelUser is a reader in the model.
type modelUser struct {
	client
	id     string
	joined time.Time
	roles  map[string]bool
	mark   *int // the message of the watermark
	read   map[int]bool
}

// messageModel is a plain model of all messages and readers in memory, beside the service.
type messageModel struct {
	*testServer
	random   *rand.Rand
	author   client
	messages map[int]*modelMessage
	users    []*modelUser
	step     int
}

// modelRoles returns the roles that users of the model get and lose.
func modelRoles() []string { return []string{"red", "green", "blue"} }

// timeOf reads a time from the database.
func (m *messageModel) timeOf(query string, args ...any) (at time.Time) {
	m.t.Helper()
	if err := m.db.QueryRow(context.Background(), query, args...).Scan(&at); err != nil {
		m.t.Fatal(err)
	}
	return at
}

// clock returns the time in the database.
func (m *messageModel) clock() time.Time { return m.timeOf(`SELECT clock_timestamp()`) }

// ids returns the ids of all messages in order.
func (m *messageModel) ids() []int { return slices.Sorted(maps.Keys(m.messages)) }

// anyID returns the id of some message.
func (m *messageModel) anyID() int {
	list := m.ids()
	return list[m.random.IntN(len(list))]
}

// anyUser returns some user.
func (m *messageModel) anyUser() *modelUser { return m.users[m.random.IntN(len(m.users))] }

// someRoles returns nil, or some roles, red among them.
func (m *messageModel) someRoles() []string {
	if m.random.IntN(2) == 0 {
		return nil
	}
	return slices.DeleteFunc(modelRoles(), func(role string) bool { return m.random.IntN(2) == 0 && role != "red" })
}

// after reports whether message a is newer than b in the order of the inbox.
func (m *messageModel) after(a, b int) bool {
	if m.messages[a].publish.Equal(m.messages[b].publish) {
		return a > b
	}
	return m.messages[a].publish.After(m.messages[b].publish)
}

// addressed reports whether a message is, or was, shown to the user.
func (m *messageModel) addressed(u *modelUser, id int, at time.Time) bool {
	message := m.messages[id]
	hasRole := message.roles == nil || slices.ContainsFunc(message.roles, func(role string) bool { return u.roles[role] })
	return hasRole && !message.publish.After(at) && (message.newUsers || message.publish.After(u.joined))
}

// shown reports whether a message is in the inbox of the user.
func (m *messageModel) shown(u *modelUser, id int, at time.Time) bool {
	message := m.messages[id]
	return m.addressed(u, id, at) && !message.retracted && (message.expires == nil || message.expires.After(at))
}

// isRead reports whether the user has read a message.
func (m *messageModel) isRead(u *modelUser, id int) bool {
	return u.read[id] || u.mark != nil && !m.after(id, *u.mark)
}

// stepClock moves the clock forward, by moving every time in the database and in the model back.
func (m *messageModel) stepClock(by time.Duration) {
	for _, statement := range []string{
		`UPDATE system_messages SET publish_at = publish_at - $1::interval, expires_at = expires_at - $1::interval`,
		`UPDATE system_message_watermarks SET publish_at = publish_at - $1::interval`,
		`UPDATE users SET created_at = created_at - $1::interval`,
	} {
		m.exec(statement, by)
	}
	for _, message := range m.messages {
		message.publish = message.publish.Add(-by)
		if message.expires != nil {
			message.expires = new(message.expires.Add(-by))
		}
	}
	for _, u := range m.users {
		u.joined = u.joined.Add(-by)
	}
}

// isNear reports whether a message is about to appear, to fall under the watermark or to expire. The next step would race
// with that.
func (m *messageModel) isNear() bool {
	at := m.clock()
	soon := func(then time.Time) bool { return then.After(at) && then.Before(at.Add(500*time.Millisecond)) }
	for _, message := range m.messages {
		if soon(message.publish) || soon(message.publish.Add(time.Minute)) || message.expires != nil && soon(*message.expires) {
			return true
		}
	}
	return false
}

// forget deletes all but the last 200 messages, so that a long walk stays fast.
func (m *messageModel) forget() {
	for _, id := range m.ids()[:max(0, len(m.messages)-200)] {
		if !slices.ContainsFunc(m.users, func(u *modelUser) bool { return u.mark != nil && *u.mark == id }) {
			m.exec(`DELETE FROM system_messages WHERE id = $1`, id)
			delete(m.messages, id)
		}
	}
}

// join adds a user.
func (m *messageModel) join() string {
	name := fmt.Sprint("user", m.step)
	id := m.addUser(name)
	m.exec(`DELETE FROM user_roles WHERE user_id = $1`, id)
	c, _ := m.client().login(name, testPassword)
	joined := m.timeOf(`SELECT created_at FROM users WHERE id = $1`, id)
	m.users = append(m.users, &modelUser{client: c, id: id, joined: joined, roles: map[string]bool{}, read: map[int]bool{}})
	return "join"
}

// changeRoles replaces the roles of a user.
func (m *messageModel) changeRoles() string {
	u, list := m.anyUser(), m.someRoles()
	m.exec(`DELETE FROM user_roles WHERE user_id = $1`, u.id)
	m.exec(`INSERT INTO user_roles SELECT $1, id FROM roles WHERE name = ANY ($2)`, u.id, list)
	clear(u.roles)
	for _, role := range list {
		u.roles[role] = true
	}
	return fmt.Sprint("roles ", list)
}

// publish publishes or schedules a message.
func (m *messageModel) publish() string {
	severity := []string{"info", "warning", "critical"}[m.random.IntN(3)]
	message := &modelMessage{roles: m.someRoles(), newUsers: m.random.IntN(3) == 0, severity: severity}
	body := map[string]any{"title": fmt.Sprint("message ", m.step), "body": "b", "severity": severity, "roles": message.roles,
		"include_new_users": message.newUsers}
	if m.random.IntN(2) == 0 {
		body["publish_at"] = m.clock().Add(time.Duration(m.random.IntN(7200)-1200) * time.Second)
	}
	if m.random.IntN(3) == 0 {
		expires := m.clock().Add(time.Duration(7200+m.random.IntN(7200)) * time.Second)
		message.expires, body["expires_at"] = &expires, expires
	}
	id := m.author.must(201, "POST", "/api/v1/system-messages", body).number("id")
	message.publish = m.timeOf(`SELECT publish_at FROM system_messages WHERE id = $1`, id)
	m.messages[id] = message
	return fmt.Sprint("publish ", id, " ", body)
}

// edit changes the readers and the end of a message. A retracted one cannot be changed.
func (m *messageModel) edit() string {
	id := m.anyID()
	message := m.messages[id]
	newUsers, roles := m.random.IntN(2) == 0, m.someRoles()
	expires := new(message.publish.Add(time.Duration(1+m.random.IntN(14400)) * time.Second))
	if m.random.IntN(3) == 0 {
		expires = nil
	}
	body := map[string]any{"include_new_users": newUsers, "roles": roles, "expires_at": expires}
	a := m.author.do("PATCH", fmt.Sprintf("/api/v1/system-messages/%d", id), body)
	if message.retracted != (a.status == 409) || a.status != 200 && a.status != 409 {
		m.t.Fatalf("step %d: edit: %d %s", m.step, a.status, a.body)
	}
	if a.status == 200 {
		message.newUsers, message.roles, message.expires = newUsers, roles, expires
	}
	return fmt.Sprint("edit ", id, " ", body)
}

// retract retracts a message.
func (m *messageModel) retract() string {
	id := m.anyID()
	m.author.must(204, "DELETE", fmt.Sprintf("/api/v1/system-messages/%d", id), nil)
	m.messages[id].retracted = true
	return fmt.Sprint("retract ", id)
}

// read marks some messages as read: all of them or, if one is not shown to the user, none.
func (m *messageModel) read() string {
	u, at := m.anyUser(), m.clock()
	list := slices.DeleteFunc(m.ids(), func(int) bool { return m.random.IntN(3) > 0 })
	if len(list) == 0 {
		return "read nothing"
	}
	all := !slices.ContainsFunc(list, func(id int) bool { return !m.shown(u, id, at) })
	a := u.do("POST", "/api/v1/inbox/read", map[string]any{"ids": list})
	if all != (a.status == 204) || a.status != 204 && a.status != 404 {
		m.t.Fatalf("step %d: read %v: %d %s", m.step, list, a.status, a.body)
	}
	for _, id := range list {
		if all {
			u.read[id] = true
		}
	}
	return fmt.Sprint("read ", list)
}

// readAll marks all messages as read, or all up to one. Those of the last minute are marked one by one, older ones by the
// watermark.
func (m *messageModel) readAll() string {
	u, at := m.anyUser(), m.clock()
	var body any
	upTo := 0
	if m.random.IntN(2) == 0 {
		upTo = m.anyID()
		body = map[string]int{"up_to": upTo}
	}
	did := fmt.Sprint("read all up to ", upTo)
	if upTo != 0 && !m.addressed(u, upTo, at) {
		u.refused(404, "not_addressed", "POST", "/api/v1/inbox/read-all", body)
		return did
	}
	u.must(204, "POST", "/api/v1/inbox/read-all", body)
	for _, id := range m.ids() {
		if !m.shown(u, id, at) || upTo != 0 && m.after(id, upTo) {
			continue
		}
		if !m.messages[id].publish.Before(at.Add(-time.Minute)) {
			u.read[id] = true
		} else if u.mark == nil || m.after(id, *u.mark) {
			u.mark = new(id)
		}
	}
	return did
}

// act does one thing in the service and in the model, and tells what.
func (m *messageModel) act() string {
	switch what := m.random.IntN(12); {
	case len(m.users) < 2 || what == 0 && len(m.users) < 6:
		return m.join()
	case what == 1:
		return m.changeRoles()
	case what <= 4 || len(m.messages) == 0:
		return m.publish()
	case what == 5:
		return m.edit()
	case what == 6:
		return m.retract()
	case what <= 8:
		return m.read()
	case what == 9:
		return m.readAll()
	}
	by := time.Duration(m.random.IntN(3600)) * time.Second
	m.stepClock(by)
	return fmt.Sprint("the clock steps by ", by)
}

// compare compares the inbox and the counts of a user with the model.
func (m *messageModel) compare(u *modelUser, did string) {
	m.t.Helper()
	at := m.clock()
	list := slices.DeleteFunc(m.ids(), func(id int) bool { return !m.shown(u, id, at) })
	slices.SortFunc(list, func(a, b int) int {
		if m.after(a, b) {
			return -1
		}
		return 1
	})
	var want, got []string
	unread, bySeverity := 0, map[string]int{"info": 0, "warning": 0, "critical": 0}
	for _, id := range list {
		want = append(want, fmt.Sprint(id, " ", m.isRead(u, id)))
		if !m.isRead(u, id) {
			unread++
			bySeverity[m.messages[id].severity]++
		}
	}
	for _, item := range u.must(200, "GET", "/api/v1/inbox?limit=500", nil).items() {
		got = append(got, fmt.Sprint(item["id"], " ", item["read"]))
	}
	if !slices.Equal(got, want[:min(len(want), 500)]) {
		m.t.Fatalf("step %d: %s: the inbox is %v, want %v", m.step, did, got, want)
	}
	if n := len(u.must(200, "GET", "/api/v1/inbox?unread=true&limit=500", nil).items()); n != min(unread, 500) {
		m.t.Fatalf("step %d: %s: %d unread messages are listed, want %d", m.step, did, n, unread)
	}
	count := u.must(200, "GET", "/api/v1/inbox/unread-count", nil)
	if count.number("unread") != unread || fmt.Sprint(count.json["by_severity"]) != fmt.Sprint(bySeverity) {
		m.t.Fatalf("step %d: %s: counted %s, want %d %v", m.step, did, count.body, unread, bySeverity)
	}
}

// TestMessageModel is a random walk beside a model: users join, get and lose roles, messages are published, scheduled,
// changed, retracted and read, and the clock steps. After each step the inbox and the counts of every user agree with
// the model.
func TestMessageModel(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ts := startServer(t, nil)
	m := &messageModel{testServer: ts, random: rand.New(rand.NewPCG(seed, 1)), author: ts.signIn("author", adminSystemMessage),
		messages: map[int]*modelMessage{}}
	ts.exec(`INSERT INTO roles (name) SELECT unnest($1::text[])`, modelRoles())
	for m.step = range soakOr(10_000, 120) {
		for m.isNear() {
			m.stepClock(time.Second)
		}
		m.forget()
		did := m.act()
		for _, u := range m.users {
			m.compare(u, did)
		}
	}
}

// TestMessagePaging: lists have the newest message first, over several pages.
func TestMessagePaging(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	for i := range 7 {
		author.publish(fmt.Sprint(i))
	}
	for _, path := range []string{"/api/v1/inbox", "/api/v1/system-messages"} {
		var titles, cursor string
		for more := true; more; more = cursor != "" {
			query := "?limit=3"
			if cursor != "" {
				query += "&cursor=" + cursor
			}
			a := author.must(200, "GET", path+query, nil)
			for _, item := range a.items() {
				titles += item["title"].(string)
			}
			cursor = a.text("next_cursor")
		}
		if titles != "6543210" {
			t.Errorf("%s: %s", path, titles)
		}
	}
}
