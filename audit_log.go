package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// auditRow is a row of the audit log.
type auditRow struct {
	ID         int64           `json:"id"`
	At         time.Time       `json:"at"`
	ActorID    *string         `json:"actor_id"`
	Actor      string          `json:"actor"`
	Credential string          `json:"credential"`
	Address    string          `json:"address"`
	RequestID  string          `json:"request_id"`
	Action     string          `json:"action"`
	Target     string          `json:"target"`
	Before     json.RawMessage `json:"before"`
	After      json.RawMessage `json:"after"`
}

// auditActions returns the names of all actions in the audit log.
func auditActions() []string {
	return strings.Fields(`
		session.login session.login_refused session.otp_required session.logout session.end session.lost
		session.refresh_token_reused login.throttled request.refused verify.refused token.refused
		password_token.refused password.change password.reset token.create token.end
		totp.enable totp.disable totp.recovery_code passkey.add passkey.end
		user.register user.create user.update user.roles user.password_reset user.revoke user.unlock user.delete
		role.create role.update role.delete permission.create permission.update permission.delete
		message.create message.update message.retract message.delete
		dataset.create dataset.update dataset.expect dataset.delete finding.accept finding.reopen
		analysis.create analysis.cancel
		keys.prune audit.prune audit.break_found audit.keys_changed database.restore`)
}

// listAudit answers GET /api/v1/audit, the newest row first.
func (a *accounts) listAudit(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT
			id,
			at,
			actor_id::text,
			actor,
			credential,
			address,
			request_id,
			action,
			target,
			before,
			after
		FROM audit_log
		WHERE ($1::text IS NULL OR actor = $1)
			AND ($2::text IS NULL OR credential = $2)
			AND ($3::text IS NULL OR action = $3)
			AND ($4::text IS NULL OR target = $4)
			AND ($5::text IS NULL OR request_id = $5)
			AND ($6::timestamptz IS NULL OR at >= $6)
			AND ($7::timestamptz IS NULL OR at < $7)
			AND id < $8::text::bigint
		ORDER BY id DESC
		LIMIT $9`

	values := r.URL.Query()
	var v invalid
	isAction := !values.Has("action") || slices.Contains(auditActions(), values.Get("action"))
	v.check(isAction, "action", fieldUnknown, "is not an action of the log")
	since := v.time("since", optional(values, "since"))
	until := v.time("until", optional(values, "until"))
	if err := v.err(); err != nil {
		return err
	}

	args := []any{pgx.QueryExecModeCacheDescribe} // planned for these very filters
	for _, name := range []string{"actor", "credential", "action", "target", "request_id"} {
		args = append(args, optional(values, name))
	}
	args = append(args, since, until)

	first := []string{strconv.FormatInt(1<<62, 10)}
	key := func(row auditRow) []string { return []string{strconv.FormatInt(row.ID, 10)} }
	return writeRows(a.core, w, r, first, key, "list audit log", query, args...)
}
