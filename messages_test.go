package main

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
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
	if got := author.must(200, "GET", location, nil); string(got.body) != string(a.body) {
		t.Errorf("got %s, created %s", got.body, a.body)
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
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", "/api/v1/inbox/read-all", nil)
	reader.must(204, "POST", fmt.Sprintf("/api/v1/inbox/%d/read", first), nil)
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
	author.must(204, "POST", "/api/v1/system-messages/read-all", nil)
	if n := ts.queryInt(`SELECT count(*) FROM system_message_reads`); n != 0 {
		t.Errorf("%d single marks below the watermark", n)
	}
	reader.refused(404, "not_found", "POST", "/api/v1/inbox/999/read", nil)
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

// TestReadAllRacesPublication: a message that commits after a read-all is unread, though it was begun
// before, and though the clock stepped back.
func TestReadAllRacesPublication(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	author := ts.signIn("author", adminSystemMessage)
	ctx := context.Background()
	tx, err := ts.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	u, err := getCredentials(ctx, ts.db, "author")
	if err != nil {
		t.Fatal(err)
	}
	author.publish("Before")
	if _, err := createMessage(ctx, tx, user{ID: u.userID, Username: "author"}, "Slow", "text", "info"); err != nil {
		t.Fatal(err)
	}
	second := make(chan int)
	go func() { second <- author.publish("Waits for the slow one") }()
	author.must(204, "POST", "/api/v1/inbox/read-all", nil)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	<-second
	if n := author.unread(); n != 2 {
		t.Errorf("%d unread, want 2", n)
	}

	ts.exec(`UPDATE system_messages SET publish_at = now() - interval '1 second' + id * interval '1 millisecond'`)
	ts.exec(`UPDATE system_message_watermarks SET publish_at = (SELECT max(publish_at) FROM system_messages), message_id = (SELECT max(id) FROM system_messages)`)
	ts.exec(`UPDATE users SET created_at = '2000-01-01'`)
	err = pgx.BeginFunc(ctx, ts.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE system_messages SET publish_at = publish_at + interval '1 hour'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	author.publish("After the clock stepped back")
	if n := ts.queryInt(`SELECT count(*) FROM system_messages a, system_messages b WHERE a.id < b.id AND a.publish_at >= b.publish_at`); n != 0 {
		t.Error("publish_at does not rise")
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
