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

// publish makes a message and returns its id.
func (c client) publish(title string) int {
	c.t.Helper()
	return c.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": title, "body": "text"}).number("id")
}

func (c client) unread() int {
	c.t.Helper()
	n := c.must(200, "GET", "/api/v1/inbox/unread-count", nil).number("unread")
	return n
}

// TestMessages: create, query, read, count, each reader by himself.
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
	if got := string(author.must(200, "GET", location, nil).body); got != created+`,"recipients":3,"readers":0}`+"\n" {
		t.Errorf("got %s, created %s", got, created)
	}
	first := a.number("id")
	second := author.publish("Second")

	for _, path := range []string{"/api/v1/inbox/unread-count", "/api/v1/system-messages/unread-count"} {
		if n := author.must(200, "GET", path, nil).number("unread"); n != 2 {
			t.Errorf("%s: %d unread, want 2", path, n)
		}
	}
	// Twice is once, by either path.
	author.must(204, "POST", fmt.Sprintf("/api/v1/system-messages/%d/read", first), nil)
	author.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", first), nil)
	if n := author.unread(); n != 1 {
		t.Errorf("author has %d unread, want 1", n)
	}
	if n := reader.unread(); n != 2 {
		t.Errorf("reader has %d unread, want 2", n)
	}
	inbox := reader.must(200, "GET", "/api/v1/inbox", nil).items()
	if len(inbox) != 2 || int(inbox[0]["id"].(float64)) != second || inbox[0]["read"] != false {
		t.Errorf("inbox: %v", inbox)
	}
	// Messages of more than a minute ago are under the watermark.
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '1 hour'`)
	ts.exec(`UPDATE users SET created_at = created_at - interval '2 hours'`)
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", first), nil)
	if n := author.must(200, "GET", location, nil).number("readers"); n != 2 {
		t.Errorf("%d readers, want author and reader", n)
	}
	if n := reader.unread(); n != 0 {
		t.Errorf("reader has %d unread after read-all", n)
	}
	if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 1 {
		t.Errorf("%d single marks, want the author's", n)
	}
	author.publish("Third")
	if a, r := author.unread(), reader.unread(); a != 2 || r != 1 {
		t.Errorf("unread: author %d, reader %d; want 2, 1", a, r)
	}
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '10 minutes'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at - interval '10 minutes'`)
	author.must(204, "POST", "/api/v1/system-messages/read-all", nil)
	if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 0 {
		t.Errorf("%d single marks below the watermark", n)
	}
	reader.refused(404, "not_addressed", "POST", "/api/v1/inbox/999/read", nil)
	reader.refused(403, "permission_missing", "GET", location, nil)
}

// TestMessagesBeforeJoining: who joins later does not find old announcements unread.
func TestMessagesBeforeJoining(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	old := author.publish("Old")
	late := ts.signIn("late", adminSystemMessage)
	if n := late.unread(); n != 0 {
		t.Errorf("%d unread", n)
	}
	if items := late.must(200, "GET", "/api/v1/inbox", nil).items(); len(items) != 0 {
		t.Errorf("inbox: %v", items)
	}
	if items := late.must(200, "GET", "/api/v1/system-messages", nil).items(); len(items) != 1 || items[0]["read"] != nil {
		t.Errorf("query: %v", items)
	}
	late.refused(404, "not_addressed", "POST", fmt.Sprintf("/api/v1/system-messages/%d/read", old), nil)
	author.publish("New")
	if n := late.unread(); n != 1 {
		t.Errorf("%d unread, want 1", n)
	}
}

// TestParallelMarks: many marks of one message are one, and the count falls by one.
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

// TestReadAllRacesPublication: a message that commits after a read-all is unread, though it was begun before, and
// though another that is shown later was read; so is one beyond what the reader claims to have seen.
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
	if n := author.unread(); n != 1 {
		t.Errorf("%d unread, want the slow one", n)
	}
	if items := author.must(200, "GET", "/api/v1/inbox?unread=true", nil).items(); len(items) != 1 || items[0]["title"] != "Slow" {
		t.Error(items)
	}

	other := ts.signIn("other")
	ts.exec(`UPDATE users SET created_at = '2000-01-01'`)
	other.must(204, "POST", "/api/v1/inbox/read-all", map[string]int{"up_to": before})
	if n := other.unread(); n != 2 {
		t.Errorf("%d unread, want those after the one shown", n)
	}
	// The same for messages that are old enough for the watermark.
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '1 hour'`)
	other.must(204, "POST", "/api/v1/inbox/read-all", map[string]int{"up_to": before})
	if n := other.unread(); n != 2 {
		t.Errorf("%d unread, want those after the one shown", n)
	}

	// The clock has stepped back by an hour: what is published now lies above the watermark all the same.
	other.must(204, "POST", "/api/v1/inbox/read-all", nil)
	ts.exec(`UPDATE system_messages SET publish_at = publish_at + interval '2 hours'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at + interval '2 hours'`)
	author.publish("After the step")
	ts.exec(`UPDATE system_messages SET publish_at = publish_at - interval '2 hours'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = publish_at - interval '2 hours'`)
	if n := other.unread(); n != 1 {
		t.Errorf("%d unread after the clock stepped back, want 1", n)
	}
}

// TestBadMessages: what is wrong with a message is told by its field, and nothing is stored.
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
	if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 0 {
		t.Errorf("%d marks", n)
	}
	author.must(204, "DELETE", path, nil)
	author.must(204, "DELETE", path, nil)
	author.refused(409, "retracted", "PATCH", path, map[string]string{"title": "again"})
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'message.retract'`); n != 1 {
		t.Errorf("%d audit rows of one retraction", n)
	}
}

// modelMessage is a message as the model of TestMessageModel has it.
type modelMessage struct {
	roles               []string // nil: everybody
	newUsers, retracted bool
	publish             time.Time
	expires             *time.Time
	severity            string
}

// modelUser is a reader as the model has it.
type modelUser struct {
	client
	id     string
	joined time.Time
	roles  map[string]bool
	mark   *int // the message of the watermark
	read   map[int]bool
}

// TestMessageModel is a random walk beside a plain model in memory: users join, get and lose roles, messages are
// published, scheduled, changed, retracted and read, and the clock steps (by moving every time in the database the
// other way). After each step list, count and read state of every user agree with the model.
func TestMessageModel(t *testing.T) {
	t.Parallel()
	steps := soakOr(10_000, 500)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	messages, users := map[int]*modelMessage{}, []*modelUser{}
	roles := []string{"red", "green", "blue"}
	ts.exec(`INSERT INTO roles (name) SELECT unnest($1::text[])`, roles)
	timeOf := func(query string, args ...any) (at time.Time) {
		t.Helper()
		if err := ts.db.QueryRow(context.Background(), query, args...).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	now := func() time.Time { return timeOf(`SELECT clock_timestamp()`) }
	after := func(a, b int) bool { // in the order of the inbox
		if messages[a].publish.Equal(messages[b].publish) {
			return a > b
		}
		return messages[a].publish.After(messages[b].publish)
	}
	forHim := func(u *modelUser, id int, at time.Time) bool {
		m := messages[id]
		for_ := m.roles == nil || slices.ContainsFunc(m.roles, func(role string) bool { return u.roles[role] })
		return for_ && !m.publish.After(at) && (m.newUsers || m.publish.After(u.joined))
	}
	there := func(u *modelUser, id int, at time.Time) bool {
		m := messages[id]
		return forHim(u, id, at) && !m.retracted && (m.expires == nil || m.expires.After(at))
	}
	isRead := func(u *modelUser, id int) bool {
		return u.read[id] || u.mark != nil && !after(id, *u.mark)
	}
	pickRoles := func() []string {
		if random.IntN(2) == 0 {
			return nil
		}
		return slices.DeleteFunc(slices.Clone(roles), func(role string) bool { return random.IntN(2) == 0 && role != "red" })
	}
	soon := func() time.Time { return now().Add(time.Duration(random.IntN(7200)-1200) * time.Second) }
	ids := func() []int { return slices.Sorted(maps.Keys(messages)) }
	shift := func(step time.Duration) {
		for _, statement := range []string{
			`UPDATE system_messages SET publish_at = publish_at - $1::interval, expires_at = expires_at - $1::interval`,
			`UPDATE system_message_watermarks SET publish_at = publish_at - $1::interval`,
			`UPDATE users SET created_at = created_at - $1::interval`,
		} {
			ts.exec(statement, step)
		}
		for _, m := range messages {
			m.publish = m.publish.Add(-step)
			if m.expires != nil {
				m.expires = new(m.expires.Add(-step))
			}
		}
		for _, u := range users {
			u.joined = u.joined.Add(-step)
		}
	}
	// near says whether a message is about to change its state by itself, which would make a race of the next step.
	near := func() bool {
		at := now()
		soon := func(then time.Time) bool { return then.After(at) && then.Before(at.Add(500*time.Millisecond)) }
		for _, m := range messages {
			if soon(m.publish) || soon(m.publish.Add(time.Minute)) || m.expires != nil && soon(*m.expires) {
				return true
			}
		}
		return false
	}
	for step := range steps {
		for near() {
			shift(time.Second)
		}
		for _, id := range ids()[:max(0, len(messages)-200)] { // so that a long walk stays fast
			if !slices.ContainsFunc(users, func(u *modelUser) bool { return u.mark != nil && *u.mark == id }) {
				ts.exec(`DELETE FROM system_messages WHERE id = $1`, id)
				delete(messages, id)
			}
		}
		did := ""
		switch what := random.IntN(12); {
		case len(users) < 2 || what == 0 && len(users) < 6: // somebody joins
			name := fmt.Sprint("user", step)
			id := ts.addUser(name)
			ts.exec(`DELETE FROM user_roles WHERE user_id = $1`, id)
			c, _ := ts.client().login(name, testPassword)
			users = append(users, &modelUser{client: c, id: id, joined: timeOf(`SELECT created_at FROM users WHERE id = $1`, id), roles: map[string]bool{}, read: map[int]bool{}})
			did = "join"
		case what == 1: // roles change
			u := users[random.IntN(len(users))]
			list := pickRoles()
			ts.exec(`DELETE FROM user_roles WHERE user_id = $1`, u.id)
			ts.exec(`INSERT INTO user_roles SELECT $1, id FROM roles WHERE name = ANY ($2)`, u.id, list)
			clear(u.roles)
			for _, role := range list {
				u.roles[role] = true
			}
			did = fmt.Sprint("roles ", list)
		case what <= 4 || len(messages) == 0: // publish
			m := &modelMessage{roles: pickRoles(), newUsers: random.IntN(3) == 0, severity: []string{"info", "warning", "critical"}[random.IntN(3)]}
			body := map[string]any{"title": fmt.Sprint("message ", step), "body": "b", "severity": m.severity, "roles": m.roles, "include_new_users": m.newUsers}
			if random.IntN(2) == 0 {
				body["publish_at"] = soon()
			}
			if random.IntN(3) == 0 {
				expires := now().Add(time.Duration(7200+random.IntN(7200)) * time.Second)
				m.expires, body["expires_at"] = &expires, expires
			}
			a := author.must(201, "POST", "/api/v1/system-messages", body)
			id := a.number("id")
			m.publish = timeOf(`SELECT publish_at FROM system_messages WHERE id = $1`, id)
			messages[id] = m
			did = fmt.Sprint("publish ", id, " ", body)
		case what == 5: // edit
			list := ids()
			id := list[random.IntN(len(list))]
			m := messages[id]
			newUsers, list2 := random.IntN(2) == 0, pickRoles()
			expires := m.publish.Add(time.Duration(1+random.IntN(14400)) * time.Second)
			body := map[string]any{"include_new_users": newUsers, "roles": list2, "expires_at": expires}
			if random.IntN(3) == 0 {
				body["expires_at"] = nil
			}
			a := author.do("PATCH", fmt.Sprintf("/api/v1/system-messages/%d", id), body)
			if m.retracted != (a.status == 409) || a.status != 200 && a.status != 409 {
				t.Fatalf("step %d: edit: %d %s", step, a.status, a.body)
			}
			if a.status == 200 {
				m.newUsers, m.roles, m.expires = newUsers, list2, &expires
				if body["expires_at"] == nil {
					m.expires = nil
				}
			}
			did = fmt.Sprint("edit ", id, " ", body)
		case what == 6: // retract
			list := ids()
			id := list[random.IntN(len(list))]
			author.must(204, "DELETE", fmt.Sprintf("/api/v1/system-messages/%d", id), nil)
			messages[id].retracted = true
			did = fmt.Sprint("retract ", id)
		case what <= 8: // read one or several
			u := users[random.IntN(len(users))]
			at := now()
			list := slices.DeleteFunc(ids(), func(int) bool { return random.IntN(3) > 0 })
			if len(list) == 0 {
				continue
			}
			all := !slices.ContainsFunc(list, func(id int) bool { return !there(u, id, at) })
			a := u.do("POST", "/api/v1/inbox/read", map[string]any{"ids": list})
			if all != (a.status == 204) || a.status != 204 && a.status != 404 {
				t.Fatalf("step %d: read %v: %d %s", step, list, a.status, a.body)
			}
			for _, id := range list {
				if all {
					u.read[id] = true
				}
			}
			did = fmt.Sprint("read ", list)
		case what == 9: // read all, or all up to one
			u := users[random.IntN(len(users))]
			at := now()
			var body any
			upTo := 0
			if random.IntN(2) == 0 {
				list := ids()
				upTo = list[random.IntN(len(list))]
				body = map[string]int{"up_to": upTo}
			}
			if upTo != 0 && !forHim(u, upTo, at) {
				u.refused(404, "not_addressed", "POST", "/api/v1/inbox/read-all", body)
				continue
			}
			u.must(204, "POST", "/api/v1/inbox/read-all", body)
			for _, id := range ids() {
				if !there(u, id, at) || upTo != 0 && after(id, upTo) {
					continue
				}
				if m := messages[id]; m.publish.Before(at.Add(-time.Minute)) {
					if u.mark == nil || after(id, *u.mark) {
						u.mark = new(id)
					}
				} else {
					u.read[id] = true
				}
			}
			did = fmt.Sprint("read all up to ", upTo)
		default: // the clock steps
			by := time.Duration(random.IntN(3600)) * time.Second
			shift(by)
			did = fmt.Sprint("the clock steps by ", by)
		}
		at := now()
		for _, u := range users {
			var want []string
			unread, bySeverity := 0, map[string]int{"info": 0, "warning": 0, "critical": 0}
			list := slices.DeleteFunc(ids(), func(id int) bool { return !there(u, id, at) })
			slices.SortFunc(list, func(a, b int) int {
				if after(a, b) {
					return -1
				}
				return 1
			})
			for _, id := range list {
				want = append(want, fmt.Sprint(id, " ", isRead(u, id)))
				if !isRead(u, id) {
					unread++
					bySeverity[messages[id].severity]++
				}
			}
			var got []string
			for _, item := range u.must(200, "GET", "/api/v1/inbox?limit=500", nil).items() {
				got = append(got, fmt.Sprint(item["id"], " ", item["read"]))
			}
			n := len(u.must(200, "GET", "/api/v1/inbox?unread=true&limit=500", nil).items())
			count := u.must(200, "GET", "/api/v1/inbox/unread-count", nil)
			if !slices.Equal(got, want[:min(len(want), 500)]) || n != min(unread, 500) || count.number("unread") != unread || fmt.Sprint(count.json["by_severity"]) != fmt.Sprint(bySeverity) {
				t.Fatalf("step %d: %s: list %v, want %v; %d unread listed, counted %s, want %d %v", step, did, got, want, n, count.body, unread, bySeverity)
			}
		}
	}
}

// TestMessagePaging: the newest first, over several pages.
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
