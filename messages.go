package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// announcements is the component of system messages.
type announcements struct{ core *core }

// message is a system message as one reader sees it.
type message struct {
	ID              int64      `json:"id"`
	Title           string     `json:"title"`
	Body            string     `json:"body"`
	Severity        string     `json:"severity"` // info, warning or critical
	Author          string     `json:"author"`
	Roles           []string   `json:"roles"` // the audience; null: everybody
	IncludeNewUsers bool       `json:"include_new_users"`
	PublishAt       time.Time  `json:"publish_at"`
	ExpiresAt       *time.Time `json:"expires_at"`
	DatasetID       *int64     `json:"dataset_id"` // only those who may see it see the message; null: none
	State           string     `json:"state"`      // draft, scheduled, published, expired or retracted
	CreatedAt       time.Time  `json:"created_at"`
	UpdatedAt       time.Time  `json:"updated_at"`
	Read            *bool      `json:"read"` // null if the message is not for this reader
}

// ForEverybody reports whether the message is for all users. If all its roles were deleted, it is
// for nobody.
func (m message) ForEverybody() bool { return m.Roles == nil }

// tag returns the message's entity tag, for If-Match. It ignores the state, which time changes, and
// whether the reader has read the message.
func (m message) tag() string {
	m.State = ""
	m.Read = nil
	return tagOf(m)
}

// messageColumns is SQL for the columns of a message as the user $1 sees it, from messageReader.
const messageColumns = `
	m.id,
	m.title,
	m.body,
	m.severity,
	m.author,
	m.include_new_users,
	m.publish_at,
	m.expires_at,
	m.created_at,
	m.updated_at,
	m.dataset_id,
	CASE
		WHEN m.role_ids IS NOT NULL
		THEN ARRAY(
			SELECT r.name
			FROM roles r
			WHERE r.id = ANY (m.role_ids)
			ORDER BY r.name
		)
	END AS roles,
	` + messageState + ` AS state,
	CASE WHEN ` + messageAddressed + ` THEN ` + messageIsRead + ` END AS read`

// draftTime is publish_at of a draft: it waits until somebody sets another time.
const draftTime = "9999-01-01T00:00:00Z"

// messageState is SQL for the state of the message m by the database's clock.
const messageState = `
	CASE
		WHEN m.retracted_at IS NOT NULL THEN 'retracted'
		WHEN m.publish_at >= '` + draftTime + `' THEN 'draft'
		WHEN m.publish_at > now() THEN 'scheduled'
		WHEN m.expires_at <= now() THEN 'expired'
		ELSE 'published'
	END`

// messageUsers is SQL for the users u with the ids of their roles. A subquery for each message
// would take ten times as long.
const messageUsers = `
	(
		SELECT
			u.*,
			ARRAY(SELECT ur.role_id FROM user_roles ur WHERE ur.user_id = u.id) AS role_ids
		FROM users u
	) u`

// messageReader is SQL that joins the messages m with the user $1 as u, the user's watermark w, and
// what the reader may see of datasets: $2 is the result of sightOf.
const messageReader = `
	FROM system_messages m
	CROSS JOIN (SELECT $2::text[] AS sight) s
	LEFT JOIN` + messageUsers + ` ON u.id = $1
	LEFT JOIN system_message_watermarks w ON w.user_id = u.id`

// messageSight is SQL that joins each user u with the result of sightOf for the user.
const messageSight = `
	LEFT JOIN LATERAL (
		SELECT ARRAY(
			SELECT ''
			UNION ALL
			SELECT rp.permission
			FROM role_permissions rp
			WHERE rp.role_id = ANY (u.role_ids)
			UNION ALL
			SELECT '*'
			FROM roles r
			WHERE r.id = ANY (u.role_ids) AND r.name = '` + adminRole + `'
		) AS sight
		WHERE u.totp OR u.passkey OR NOT EXISTS ( -- else the user is suspended
			SELECT FROM roles r WHERE r.id = ANY (u.role_ids) AND r.requires_second_factor
		)
	) s ON true`

// messageIsVisible is SQL for: the message m is about no dataset, or about one that s may see.
const messageIsVisible = `
	(
		m.dataset_id IS NULL
		OR '*' = ANY (s.sight)
		OR '` + datasetRead + `' = ANY (s.sight)
			AND (SELECT d.requires FROM datasets d WHERE d.id = m.dataset_id) = ANY (s.sight)
	)`

// sightOf returns the values of requires with which the actor may see a dataset; "*" stands for
// all.
func sightOf(by actor) []string {
	if by.mayAll {
		return []string{"*"}
	}
	return append([]string{""}, by.permissions...)
}

// messageIsFor is SQL for: once the message m is published, u is one of its users.
const messageIsFor = `
	(
		(m.include_new_users OR m.publish_at > u.created_at)
		AND (m.role_ids IS NULL OR m.role_ids && u.role_ids)
		AND ` + messageIsVisible + `
	)`

// messageWasAddressed is SQL for: the message m has been published, and u is one of its users.
const messageWasAddressed = `(m.publish_at <= now() AND ` + messageIsFor + `)`

// messageAddressed is SQL for: the user u sees the message m now.
const messageAddressed = `
	(
		(m.expires_at IS NULL OR m.expires_at > now())
		AND m.retracted_at IS NULL
		AND ` + messageWasAddressed + `
	)`

// messageIsCovered is SQL for: the message m is at or below the watermark w.
const messageIsCovered = `coalesce((m.publish_at, m.id) <= (w.publish_at, w.message_id), false)`

// messageIsRead is SQL for: the watermark w covers the message m, or the user u has marked it. It
// is not a join, because a join takes seconds while the statistics are out of date.
const messageIsRead = `
	(
		` + messageIsCovered + `
		OR (
			SELECT true
			FROM system_message_reads mr
			WHERE mr.user_id = u.id
				AND mr.message_id = m.id
		) IS NOT NULL
	)`

// changed is a JSON field that may be absent, null or a value.
type changed[T any] struct {
	set   bool
	value *T
}

// UnmarshalJSON is called only if the field is present.
func (c *changed[T]) UnmarshalJSON(text []byte) error {
	c.set = true
	return json.Unmarshal(text, &c.value)
}

// messageChange holds fields of a new or changed message. For an absent field, a new message gets
// the default, and a changed one keeps its value.
type messageChange struct {
	Title           *string           `json:"title"`
	Body            *string           `json:"body"`
	Severity        *string           `json:"severity"`
	Roles           changed[[]string] `json:"roles"` // null: everybody
	IncludeNewUsers *bool             `json:"include_new_users"`
	PublishAt       changed[string]   `json:"publish_at"` // null: now
	ExpiresAt       changed[string]   `json:"expires_at"` // null: never

	publishAt, expiresAt *time.Time
}

// check parses the times. It returns a 422 if a field is invalid or a role is unknown.
func (c *messageChange) check(ctx context.Context, q querier) error {
	var v invalid
	if c.Title != nil {
		isTitle := isLine(*c.Title, 1, 200) && strings.TrimSpace(*c.Title) != ""
		v.check(isTitle, "title", fieldMalformed, "must be one line of 1 to 200 characters")
	}
	if c.Body != nil {
		v.check(isText(*c.Body, 20000), "body", fieldMalformed,
			"must be text of 1 to 20,000 characters, without control characters other than tab and newline, "+
				"and without those that change the direction of text")
	}
	v.oneOf("severity", c.Severity, "info", "warning", "critical")
	if c.Roles.value != nil {
		namesRole := len(*c.Roles.value) > 0
		v.check(namesRole, "roles", fieldMissing, "must name a role, or everybody (null)")
	}
	c.publishAt = v.time("publish_at", c.PublishAt.value)
	c.expiresAt = v.time("expires_at", c.ExpiresAt.value)
	if err := v.err(); err != nil || c.Roles.value == nil {
		return err
	}

	_, err := rolePermissions(ctx, q, *c.Roles.value)
	return err
}

// isText reports whether text has 1 to high code points, is not blank, and has no unsafe character
// (see isUnsafe) but tab, newline and carriage return.
func isText(text string, high int) bool {
	isLayout := func(c rune) bool { return c == '\t' || c == '\n' || c == '\r' }
	isForbidden := func(c rune) bool { return isUnsafe(c) && !isLayout(c) }
	if utf8.RuneCountInString(text) > high || strings.TrimSpace(text) == "" {
		return false
	}
	return !strings.ContainsFunc(text, isForbidden)
}

// createMessage answers POST /api/v1/system-messages.
func (a *announcements) createMessage(w http.ResponseWriter, r *http.Request, c messageChange) error {
	// An absent title or body is refused as an empty one is.
	c.Title = cmp.Or(c.Title, new(""))
	c.Body = cmp.Or(c.Body, new(""))

	ctx := r.Context()
	by := actorOf(r)
	var id int64
	err := inTransaction(ctx, a.core.db, func(tx pgx.Tx) (err error) {
		if err := c.check(ctx, tx); err != nil {
			return err
		}
		id, err = insertMessage(ctx, tx, by, nil, c)
		return err
	})
	if err != nil {
		return err
	}

	// Read after the commit: by then a message for now is published.
	created, err := getMessage(ctx, a.core.db, by, id)
	return writeCreated(w, created, fmt.Sprint("/api/v1/system-messages/", id), err)
}

// updateMessage answers PATCH /api/v1/system-messages/{id}.
func (a *announcements) updateMessage(w http.ResponseWriter, r *http.Request, c messageChange) error {
	err := a.changeMessage(r, "message.update", c.apply)
	if err != nil {
		return err
	}
	return a.getMessage(w, r)
}

// deleteMessage answers DELETE /api/v1/system-messages/{id}, which retracts the message or, with
// ?permanently=true, deletes it with its marks. The audit row keeps it. To retract it again changes
// nothing.
func (a *announcements) deleteMessage(w http.ResponseWriter, r *http.Request) error {
	const retract = `
		UPDATE system_messages
		SET retracted_at = now(),
			updated_at = now()
		WHERE id = $1
			AND retracted_at IS NULL`
	const erase = `DELETE FROM system_messages WHERE id = $1`

	var v invalid
	permanently := flagParameter(&v, r.URL.Query(), "permanently")
	if err := v.err(); err != nil {
		return err
	}

	action := "message.retract"
	query := retract
	if permanently {
		action = "message.delete"
		query = erase
	}
	return writeDone(w, a.changeMessage(r, action, func(ctx context.Context, tx pgx.Tx, m message) (int64, error) {
		return execute(ctx, tx, "remove message", query, m.ID)
	}))
}

// flagParameter returns a query parameter that is true or false. It is false if absent.
func flagParameter(v *invalid, query url.Values, name string) bool {
	value := query.Get(name)
	isSet := value == "true"
	isUnset := value == "false" || !query.Has(name)
	v.check(isSet || isUnset, name, fieldMalformed, "must be true or false")
	return isSet
}

// messagesPage selects the messages after two keys, as the reader sees them, the newest first. Of
// its parameters from $3 on, false and null select all.
const messagesPage = `
	SELECT ` + messageColumns + messageReader + `
	WHERE (NOT $3::boolean OR ` + messageAddressed + `)
		AND (NOT $4::boolean OR NOT ` + messageIsRead + `)
		AND ($5::text IS NULL OR strpos(lower(m.title), lower($5)) > 0 OR strpos(lower(m.body), lower($5)) > 0)
		AND ($6::text IS NULL OR m.severity = $6)
		AND ($7::text IS NULL OR ` + messageState + ` = $7)
		AND ($8::timestamptz IS NULL OR m.publish_at >= $8)
		AND ($9::timestamptz IS NULL OR m.publish_at < $9)
		AND (m.publish_at, m.id) < ($10::text::timestamptz, $11::text::bigint)
		AND ` + messageIsVisible + `
	ORDER BY m.publish_at DESC, m.id DESC
	LIMIT $12`

// listMessages returns the handler of GET /api/v1/system-messages or, with inbox set, of GET
// /api/v1/inbox, which has only the messages addressed to the caller. The newest comes first.
func (a *announcements) listMessages(inbox bool) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		query := r.URL.Query()
		by := actorOf(r)
		severity := optional(query, "severity")
		state := optional(query, "state")

		var v invalid
		v.oneOf("severity", severity, "info", "warning", "critical")
		v.oneOf("state", state, "draft", "scheduled", "published", "expired", "retracted")
		args := []any{
			by.id,
			sightOf(by),
			inbox,
			flagParameter(&v, query, "unread"),
			optional(query, "q"), // a part of the title or the body, in any case
			severity,
			state,
			v.time("since", optional(query, "since")),
			v.time("until", optional(query, "until")),
		}
		if err := v.err(); err != nil {
			return err
		}

		first := []string{"infinity", "0"}
		key := func(m message) []string {
			return []string{m.PublishAt.Format(time.RFC3339Nano), fmt.Sprint(m.ID)}
		}
		return writeRows(a.core, w, r, first, key, "list messages", messagesPage, args...)
	}
}

// messageRecipients is SQL: the message $1 with the users u who see it now and can sign in.
const messageRecipients = `
		FROM system_messages m
		CROSS JOIN` + messageUsers + messageSight + `
		LEFT JOIN system_message_watermarks w ON w.user_id = u.id
		WHERE m.id = $1
			AND u.status = 'active'
			AND u.password_hash IS NOT NULL
			AND ` + messageAddressed

// listUnreadBy answers GET …/{id}/unread-by with the recipients who have not read it, by name.
func (a *announcements) listUnreadBy(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT
			u.id::text,
			u.username,
			u.display_name` + messageRecipients + `
			AND NOT ` + messageIsRead + `
			AND u.username > $2
		ORDER BY u.username
		LIMIT $3`
	type recipient struct {
		ID          string `json:"id"`
		Username    string `json:"username"`
		DisplayName string `json:"display_name"`
	}

	id := pathID(r, "id")
	if _, err := getMessage(r.Context(), a.core.db, actorOf(r), id); err != nil {
		return err
	}

	key := func(u recipient) []string { return []string{u.Username} }
	return writeRows(a.core, w, r, []string{""}, key, "list recipients without a mark", query, id)
}

// getMessage answers GET /api/v1/system-messages/{id}, with the numbers of recipients and readers.
func (a *announcements) getMessage(w http.ResponseWriter, r *http.Request) error {
	const count = `
		SELECT
			count(*) AS recipients,
			count(*) FILTER (WHERE ` + messageIsRead + `) AS readers` + messageRecipients

	id := pathID(r, "id")
	m, err := getMessage(r.Context(), a.core.db, actorOf(r), id)
	if err != nil {
		return err
	}

	type counts struct {
		Recipients int64 `json:"recipients"`
		Readers    int64 `json:"readers"`
	}
	n, err := collectOne[counts](r.Context(), a.core.db, nil, "count readers", count, m.ID)
	found := struct {
		message
		counts
	}{m, n}
	return writeEntity(w, found, m.tag(), err)
}

// errNotAddressed is the 404 for a message that is not for the caller, or does not exist.
var errNotAddressed = newProblem(http.StatusNotFound, codeNotAddressed,
	"No such message is addressed to you; GET /api/v1/inbox lists those that are.")

// readMessages answers POST …/{id}/read, which marks one message as read, and POST …/inbox/read,
// which marks several. A message above the caller's watermark gets a row. If one is not for the
// caller, it marks none.
func (a *announcements) readMessages(w http.ResponseWriter, r *http.Request) error {
	const query = `
		WITH there AS (
			SELECT
				m.id,
				` + messageIsRead + ` AS read` + messageReader + `
			WHERE m.id = ANY ($3)
				AND ` + messageAddressed + `
		), marked AS (
			INSERT INTO system_message_reads (user_id, message_id)
			SELECT $1, id
			FROM there
			WHERE NOT read
				AND (SELECT count(*) FROM there) = cardinality($3)
			ON CONFLICT DO NOTHING
		)
		SELECT count(*) = cardinality($3)
		FROM there`

	var in struct {
		IDs []int64 `json:"ids"`
	}
	if r.PathValue("id") == "" {
		if err := decodeJSON(r, &in); err != nil {
			return err
		}
	} else {
		id := pathID(r, "id")
		if id == 0 {
			return notFound("announcement", id)
		}
		in.IDs = []int64{id}
	}

	if len(in.IDs) == 0 || len(in.IDs) > maxPage {
		return invalid{{"ids", fieldMalformed, "must name 1 to 500 messages"}}.err()
	}

	ids := slices.Compact(slices.Sorted(slices.Values(in.IDs)))
	by := actorOf(r)
	all, err := scalar[bool](r.Context(), a.core.db, "mark messages read", query, by.id, sightOf(by), ids)
	if err == nil && !all {
		err = errNotAddressed
	}
	return writeDone(w, err)
}

// readAllMessages answers POST …/read-all, which marks all of the caller's messages as read. up_to
// is the newest message that the client has shown: later ones stay unread. It raises the watermark
// to the newest message that is more than a minute old, and deletes the marks below. It marks newer
// messages one by one: the transaction of an earlier message may still be open, and a watermark
// would cover that message unseen. The watermark never goes down.
func (a *announcements) readAllMessages(w http.ResponseWriter, r *http.Request) error {
	const newest = `
		SELECT m.id` + messageReader + `
		WHERE m.id = $3
			AND ` + messageWasAddressed
	const mark = `
		WITH shown AS (
			SELECT
				m.publish_at,
				m.id` + messageReader + `
			WHERE ` + messageAddressed + `
				AND (
					$3::bigint IS NULL
					OR (m.publish_at, m.id) <= (SELECT n.publish_at, n.id FROM system_messages n WHERE n.id = $3)
				)
		), raised AS (
			INSERT INTO system_message_watermarks AS old (user_id, publish_at, message_id)
			SELECT $1, publish_at, id
			FROM shown
			WHERE publish_at < now() - interval '1 minute'
			ORDER BY publish_at DESC, id DESC
			LIMIT 1
			ON CONFLICT (user_id) DO UPDATE
			SET publish_at = excluded.publish_at,
				message_id = excluded.message_id
			WHERE (old.publish_at, old.message_id) < (excluded.publish_at, excluded.message_id)
			RETURNING publish_at, message_id
		), below AS (
			DELETE FROM system_message_reads mr
			USING system_messages m, raised
			WHERE mr.user_id = $1
				AND m.id = mr.message_id
				AND (m.publish_at, m.id) <= (raised.publish_at, raised.message_id)
		)
		INSERT INTO system_message_reads (user_id, message_id)
		SELECT $1, id
		FROM shown
		WHERE publish_at >= now() - interval '1 minute'
		ON CONFLICT DO NOTHING`

	var in struct {
		UpTo *int64 `json:"up_to"`
	}
	if r.ContentLength != 0 {
		if err := decodeJSON(r, &in); err != nil {
			return err
		}
	}

	ctx := r.Context()
	by := actorOf(r)
	if in.UpTo != nil {
		n, err := execute(ctx, a.core.db, "look for the newest message", newest, by.id, sightOf(by), in.UpTo)
		if err == nil && n == 0 {
			err = errNotAddressed
		}
		if err != nil {
			return err
		}
	}

	_, err := execute(ctx, a.core.db, "mark all messages read", mark, by.id, sightOf(by), in.UpTo)
	return writeDone(w, err)
}

// countUnread answers GET …/unread-count.
func (a *announcements) countUnread(w http.ResponseWriter, r *http.Request) error {
	counts, err := countUnread(r.Context(), a.core.db, actorOf(r))
	if err != nil {
		return err
	}
	return writeTagged(w, r, counts)
}

// insertMessage stores a new message, with an audit row, and returns its id. The dataset may be
// nil. The fields have been checked.
func insertMessage(ctx context.Context, tx pgx.Tx, by actor, datasetID *int64, c messageChange) (int64, error) {
	const query = `
		INSERT INTO system_messages (title, body, severity, publish_at, author_id, author, dataset_id)
		VALUES ('', '', 'info', 'infinity', $1, $2, $3)
		RETURNING id`

	// The default of these is null.
	c.Roles.set = true
	c.PublishAt.set = true
	c.ExpiresAt.set = true

	id, err := scalar[int64](ctx, tx, "create message", query, by.id, by.name, datasetID)
	if err != nil {
		return 0, err
	}
	if _, err := c.store(ctx, tx, id); err != nil {
		return 0, err
	}
	return id, auditMessage(ctx, tx, by, "message.create", id, nil)
}

// auditMessage adds the audit row of a change to a message. before is the old message, or nil.
func auditMessage(ctx context.Context, tx pgx.Tx, by actor, action string, id int64, before any) error {
	var after any // nil if the message was deleted
	m, err := getMessage(ctx, tx, serviceActor(), id)
	if err == nil {
		after = m
	} else if problemIn(err) == nil {
		return err
	}

	return audit(ctx, tx, by, action, fmt.Sprint("message:", id), before, after)
}

// changeMessage runs do on the message of the path, or returns a 404, also if the message is about
// a dataset that the caller may not see. If do changes a row, it adds an audit row. Its transaction
// holds lockMessages. If-Match, if given, must name the message's entity tag.
func (a *announcements) changeMessage(
	r *http.Request,
	action string,
	do func(ctx context.Context, tx pgx.Tx, before message) (changed int64, err error),
) error {
	ctx := r.Context()
	by := actorOf(r)
	return underLock(ctx, a.core.db, lockMessages, func(tx pgx.Tx) error {
		nobody := by
		nobody.id = nil
		before, err := getMessage(ctx, tx, nobody, pathID(r, "id"))
		if err != nil {
			return err
		}
		if err := checkMatch(r.Header["If-Match"], before.tag()); err != nil {
			return err
		}

		n, err := do(ctx, tx, before)
		if err != nil || n == 0 {
			return err
		}
		return auditMessage(ctx, tx, by, action, before.ID, before)
	})
}

// apply changes the message before, and returns how many rows that changed: 1 or 0. A retracted
// message cannot be changed, and publish_at of a published message cannot either.
func (c messageChange) apply(ctx context.Context, tx pgx.Tx, before message) (int64, error) {
	if err := c.check(ctx, tx); err != nil {
		return 0, err
	}
	if before.State == "retracted" {
		return 0, conflict(codeRetracted, "The message has been retracted.")
	}
	isUnpublished := before.State == "scheduled" || before.State == "draft"
	if c.PublishAt.set && !isUnpublished {
		return 0, conflict(codeAlreadyPublished,
			"The message has been published; publish_at cannot be changed any more.")
	}
	return c.store(ctx, tx, before.ID)
}

// store writes the checked fields into a message, and returns how many rows that changed: 1 or 0. A
// new publish_at is not before now, and after every watermark: none covers the message even if the
// clock was set back.
func (c messageChange) store(ctx context.Context, tx pgx.Tx, id int64) (int64, error) {
	const query = `
		WITH new AS (
			SELECT
				coalesce($2, title) AS title,
				coalesce($3, body) AS body,
				coalesce($4, severity) AS severity,
				CASE
					WHEN NOT $5 THEN role_ids
					WHEN $6::text[] IS NOT NULL THEN ARRAY(SELECT id FROM roles WHERE name = ANY ($6) ORDER BY id)
				END AS role_ids, -- null: everybody
				coalesce($7, include_new_users) AS include_new_users,
				CASE
					WHEN $8 THEN greatest(
						$9::timestamptz,
						clock_timestamp(),
						(SELECT max(publish_at) + interval '1 microsecond' FROM system_message_watermarks)
					)
					ELSE publish_at
				END AS publish_at,
				CASE WHEN $10 THEN $11 ELSE expires_at END AS expires_at
			FROM system_messages
			WHERE id = $1
		), stored AS (
			UPDATE system_messages m
			SET title = new.title,
				body = new.body,
				severity = new.severity,
				role_ids = new.role_ids,
				include_new_users = new.include_new_users,
				publish_at = new.publish_at,
				expires_at = new.expires_at,
				updated_at = now()
			FROM new
			WHERE m.id = $1
				AND (m.title, m.body, m.severity, m.role_ids, m.include_new_users, m.publish_at, m.expires_at)
					IS DISTINCT FROM (new.*)
			RETURNING coalesce(m.expires_at > m.publish_at, true) AS is_shown
		)
		SELECT
			count(*) AS changed,
			coalesce(bool_and(is_shown), true) AS is_shown
		FROM stored`

	args := []any{
		id,
		c.Title,
		c.Body,
		c.Severity,
		c.Roles.set,
		c.Roles.value,
		c.IncludeNewUsers,
		c.PublishAt.set,
		c.publishAt,
		c.ExpiresAt.set,
		c.expiresAt,
	}
	stored, err := collectOne[struct {
		Changed int64
		IsShown bool
	}](ctx, tx, nil, "change message", query, args...)
	if err != nil {
		return 0, err
	}

	var v invalid
	v.check(stored.IsShown, "expires_at", fieldOutOfRange, "must be after publish_at")
	return stored.Changed, v.err()
}

// getMessage returns a message as a reader sees it, or a 404.
func getMessage(ctx context.Context, q querier, by actor, id int64) (message, error) {
	const query = `
		SELECT ` + messageColumns + messageReader + `
		WHERE m.id = $3 AND ` + messageIsVisible
	missing := notFound("announcement", id)
	return collectOne[message](ctx, q, missing, "get message", query, by.id, sightOf(by), id)
}

// unread has the numbers of unread messages of a user, in all and by severity.
type unread struct {
	Unread     int64            `json:"unread"`
	BySeverity map[string]int64 `json:"by_severity"`
}

// countUnread counts the unread messages that the reader sees now. The bound on publish_at lets the
// index skip messages below the watermark. One look-up reads the marks above it.
func countUnread(ctx context.Context, q querier, by actor) (unread, error) {
	const query = `
		SELECT
			count(*) AS unread,
			jsonb_build_object(
				'info', count(*) FILTER (WHERE m.severity = 'info'),
				'warning', count(*) FILTER (WHERE m.severity = 'warning'),
				'critical', count(*) FILTER (WHERE m.severity = 'critical')
			) AS by_severity` + messageReader + `
		WHERE ` + messageAddressed + `
			AND m.publish_at >= coalesce(
				(SELECT publish_at FROM system_message_watermarks WHERE user_id = $1),
				'-infinity'
			)
			AND NOT ` + messageIsCovered + `
			AND m.id NOT IN (SELECT mr.message_id FROM system_message_reads mr WHERE mr.user_id = $1)`
	return collectOne[unread](ctx, q, nil, "count unread messages", query, by.id, sightOf(by))
}
