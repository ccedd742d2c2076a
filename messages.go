package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// message is a system message as one reader sees it.
type message struct {
	ID        int64     `json:"id"`
	Title     string    `json:"title"`
	Body      string    `json:"body"`
	Severity  string    `json:"severity"` // info, warning or critical
	Author    string    `json:"author"`
	PublishAt time.Time `json:"publish_at"`
	CreatedAt time.Time `json:"created_at"`
	Read      *bool     `json:"read"` // null where the message is not addressed to the reader
}

// messageColumns are the columns of a message as the user $1 sees it, of the joins of messageReader.
const messageColumns = `
	m.id, m.title, m.body, m.severity, m.author, m.publish_at, m.created_at,
	CASE WHEN ` + messageAddressed + ` THEN ` + messageIsRead + ` END AS read`

// messageReader joins to the messages m the reading user $1 and his read state.
const messageReader = `
	FROM system_messages m
	JOIN users u ON u.id = $1
	LEFT JOIN system_message_watermarks w ON w.user_id = u.id
	LEFT JOIN system_message_reads mr ON mr.user_id = u.id AND mr.message_id = m.id`

// messageAddressed: the message is there for the reader, as it was published after he joined.
const messageAddressed = `(m.publish_at <= now() AND m.publish_at > u.created_at)`

// messageIsRead: the message is not above the reader's watermark, or he has marked it by itself.
const messageIsRead = `(mr.message_id IS NOT NULL OR coalesce((m.publish_at, m.id) <= (w.publish_at, w.message_id), false))`

// createMessage answers POST /api/v1/system-messages.
func (s *server) createMessage(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Title    string  `json:"title"`
		Body     string  `json:"body"`
		Severity *string `json:"severity"`
	}
	if err := decodeJSON(w, r, &in); err != nil {
		return err
	}
	severity := "info"
	if in.Severity != nil {
		severity = *in.Severity
	}
	var v invalid
	v.check(isLine(in.Title, 1, 200) && strings.TrimSpace(in.Title) != "", "title", "malformed", "must be one line of 1 to 200 characters")
	v.check(isText(in.Body, 20000), "body", "malformed", "must be text of 1 to 20,000 characters, without control characters other than tab and newline")
	v.check(slices.Contains([]string{"info", "warning", "critical"}, severity), "severity", "unknown", "must be info, warning or critical")
	if err := v.err(); err != nil {
		return err
	}
	author := principalOf(r).User
	var id int64
	err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) (err error) {
		id, err = createMessage(r.Context(), tx, author, in.Title, in.Body, severity)
		return err
	})
	if err != nil {
		return err
	}
	created, err := getMessage(r.Context(), s.db, author.ID, id) // after the commit, when it is published
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/api/v1/system-messages/"+strconv.FormatInt(created.ID, 10))
	return writeJSON(w, http.StatusCreated, created)
}

// isText says whether the text has 1 to high code points, not all blank, and of control characters tab and newlines at most.
func isText(text string, high int) bool {
	return strings.TrimSpace(text) != "" && utf8.RuneCountInString(text) <= high &&
		!strings.ContainsFunc(text, func(c rune) bool { return unicode.IsControl(c) && c != '\t' && c != '\n' && c != '\r' })
}

// listMessages answers GET /api/v1/system-messages: all messages, the newest first.
func (s *server) listMessages(w http.ResponseWriter, r *http.Request) error {
	return s.writeMessages(w, r, false)
}

// listInbox answers GET /api/v1/inbox: the messages addressed to the caller, the newest first.
func (s *server) listInbox(w http.ResponseWriter, r *http.Request) error {
	return s.writeMessages(w, r, true)
}

// writeMessages answers with a page of messages.
func (s *server) writeMessages(w http.ResponseWriter, r *http.Request, addressedOnly bool) error {
	return writeList(s, w, r, []string{"infinity", "0"}, func(after []string, limit int) ([]message, error) {
		return listMessages(r.Context(), s.db, principalOf(r).User.ID, addressedOnly, after, limit)
	}, func(m message) []string {
		return []string{m.PublishAt.Format(time.RFC3339Nano), strconv.FormatInt(m.ID, 10)}
	})
}

// getMessage answers GET /api/v1/system-messages/{id}.
func (s *server) getMessage(w http.ResponseWriter, r *http.Request) error {
	m, err := s.pathMessage(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, m)
}

// pathMessage returns the message that the request's path names, as the caller sees it.
func (s *server) pathMessage(r *http.Request) (message, error) {
	id, err := pathID(r, "id")
	if err != nil {
		return message{}, err
	}
	return getMessage(r.Context(), s.db, principalOf(r).User.ID, id)
}

// readMessage answers POST …/{id}/read: the caller has read the message. Twice is once.
func (s *server) readMessage(w http.ResponseWriter, r *http.Request) error {
	m, err := s.pathMessage(r)
	if err != nil {
		return err
	}
	if m.Read == nil {
		return &problem{status: http.StatusNotFound, code: "not_addressed", detail: "This message is not addressed to you."}
	}
	return s.writeDone(w, markRead(r.Context(), s.db, principalOf(r).User.ID, m.ID))
}

// readAllMessages answers POST …/read-all: the caller has read all that is addressed to him now.
func (s *server) readAllMessages(w http.ResponseWriter, r *http.Request) error {
	err := pgx.BeginFunc(r.Context(), s.db, func(tx pgx.Tx) error {
		return moveWatermark(r.Context(), tx, principalOf(r).User.ID)
	})
	return s.writeDone(w, err)
}

// countUnread answers GET …/unread-count.
func (s *server) countUnread(w http.ResponseWriter, r *http.Request) error {
	n, err := countUnread(r.Context(), s.db, principalOf(r).User.ID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]int64{"unread": n})
}

// createMessage publishes a message now. The lock makes publish_at rise in the order of the commits,
// even where the clock steps back: what appears after a reader's read-all lies above his watermark.
func createMessage(ctx context.Context, tx pgx.Tx, author user, title, body, severity string) (id int64, err error) {
	const query = `
		INSERT INTO system_messages (title, body, severity, author_id, author, publish_at)
		SELECT $1, $2, $3, $4, $5, greatest(clock_timestamp(), max(publish_at) + interval '1 microsecond')
		FROM system_messages
		RETURNING id`
	if err := advisoryLock(ctx, tx, lockPublish); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, query, title, body, severity, author.ID, author.Username).Scan(&id); err != nil {
		return 0, fmt.Errorf("create message: %w", err)
	}
	return id, nil
}

// getMessage returns a message as the user sees it, or errNotFound.
func getMessage(ctx context.Context, q querier, userID string, id int64) (message, error) {
	const query = `
		SELECT ` + messageColumns + messageReader + `
		WHERE m.id = $2`
	return collectOne[message](ctx, q, errNotFound, "get message", query, userID, id)
}

// listMessages returns messages as the user sees them, the newest first.
func listMessages(ctx context.Context, q querier, userID string, addressedOnly bool, after []string, limit int) ([]message, error) {
	const query = `
		SELECT ` + messageColumns + messageReader + `
		WHERE (NOT $2 OR ` + messageAddressed + `)
			AND (m.publish_at, m.id) < ($3::text::timestamptz, $4::text::bigint)
		ORDER BY m.publish_at DESC, m.id DESC
		LIMIT $5`
	return collect[message](ctx, q, "list messages", query, userID, addressedOnly, after[0], after[1], limit)
}

// markRead notes that the user has read the message, unless his watermark says so already.
func markRead(ctx context.Context, q querier, userID string, id int64) error {
	const query = `
		INSERT INTO system_message_reads (user_id, message_id)
		SELECT u.id, m.id` + messageReader + `
		WHERE m.id = $2
			AND ` + messageAddressed + `
			AND NOT ` + messageIsRead + `
		ON CONFLICT DO NOTHING`
	_, err := execute(ctx, q, "mark message read", query, userID, id)
	return err
}

// moveWatermark raises the user's watermark to the newest message there is for him and removes his
// single marks below it. It never goes down.
func moveWatermark(ctx context.Context, tx pgx.Tx, userID string) error {
	const raise = `
		INSERT INTO system_message_watermarks AS w (user_id, publish_at, message_id)
		SELECT u.id, m.publish_at, m.id
		FROM users u
		JOIN system_messages m ON ` + messageAddressed + `
		WHERE u.id = $1
		ORDER BY m.publish_at DESC, m.id DESC
		LIMIT 1
		ON CONFLICT (user_id) DO UPDATE
		SET publish_at = excluded.publish_at,
			message_id = excluded.message_id
		WHERE (w.publish_at, w.message_id) < (excluded.publish_at, excluded.message_id)`
	if _, err := execute(ctx, tx, "move watermark", raise, userID); err != nil {
		return err
	}
	const tidy = `
		DELETE FROM system_message_reads mr
		USING system_messages m, system_message_watermarks w
		WHERE mr.user_id = $1 AND w.user_id = mr.user_id AND m.id = mr.message_id
			AND (m.publish_at, m.id) <= (w.publish_at, w.message_id)`
	_, err := execute(ctx, tx, "remove marks below the watermark", tidy, userID)
	return err
}

// countUnread counts the messages addressed to the user that he has not read. The bound on publish_at
// by itself lets the index skip all that the watermark covers.
func countUnread(ctx context.Context, q querier, userID string) (n int64, err error) {
	const query = `
		SELECT count(*)` + messageReader + `
		WHERE ` + messageAddressed + `
			AND m.publish_at >= coalesce(
				(SELECT publish_at FROM system_message_watermarks WHERE user_id = $1), '-infinity')
			AND NOT ` + messageIsRead
	if err := q.QueryRow(ctx, query, userID).Scan(&n); err != nil {
		return 0, fmt.Errorf("count unread messages: %w", err)
	}
	return n, nil
}
