package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// actor is the author of a change, as the audit log records it, with the permissions of the
// credential in use.
type actor struct {
	id          *string // of the user; nil if nobody is signed in
	name        string
	credential  string // "session:ID", "token:ID" or "command line"; empty for the service, and if nobody is signed in
	address     string
	requestID   string
	permissions []string
	mayAll      bool // holds every permission
}

// actorOf returns the sender of the request.
func actorOf(r *http.Request) actor {
	c := callerOf(r)
	a := actor{requestID: c.requestID}
	if c.address.IsValid() { // it is not for a Unix socket
		a.address = c.address.String()
	}
	if p := c.principal; p != nil {
		a.id, a.name, a.permissions = &p.User.ID, p.User.Username, p.Permissions
		a.credential = p.Kind + ":" + p.CredentialID
	}
	return a
}

// operatorActor returns the user of the command line, who may do everything.
func operatorActor() actor {
	return actor{name: "operator", credential: "command line", mayAll: true}
}

// serviceActor returns the service itself, which may do everything.
func serviceActor() actor { return actor{name: "cairn", mayAll: true} }

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
		session.login session.login_refused session.logout session.end session.refresh_token_reused session.lost
		login.throttled request.refused password.change password.reset token.create token.renew token.end
		user.register user.create user.update user.roles user.password_reset user.revoke user.unlock user.delete
		role.create role.update role.delete permission.create permission.update permission.delete message.create message.update message.retract message.delete
		dataset.create dataset.update dataset.delete finding.accept finding.reopen analysis.create analysis.cancel
		keys.prune audit.prune database.restore`)
}

// listAudit answers GET /api/v1/audit with the rows that match the filters, the newest first. since
// is included in the time span, until is not.
func (s *server) listAudit(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT id, at, actor_id::text, actor, credential, address, request_id, action, target, before, after
		FROM audit_log
		WHERE id < $1::text::bigint AND ($3::text IS NULL OR actor = $3)
			AND ($4::text IS NULL OR credential = $4) AND ($5::text IS NULL OR action = $5)
			AND ($6::text IS NULL OR target = $6) AND ($7::text IS NULL OR request_id = $7)
			AND ($8::timestamptz IS NULL OR at >= $8) AND ($9::timestamptz IS NULL OR at < $9)
		ORDER BY id DESC
		LIMIT $2`
	first := []string{strconv.FormatInt(1<<62, 10)}
	return writeList(s, w, r, first, func(after []string, limit int) ([]auditRow, error) {
		args := []any{pgx.QueryExecModeExec, after[0], limit} // planned for these very filters
		values := r.URL.Query()
		for _, name := range []string{"actor", "credential", "action", "target", "request_id"} {
			args = append(args, optional(values, name))
		}
		var v invalid
		action := optional(values, "action")
		known := action == nil || slices.Contains(auditActions(), *action)
		v.check(known, "action", "unknown", "is no action of the log")
		args = append(args, v.time("since", optional(values, "since")), v.time("until", optional(values, "until")))
		if err := v.err(); err != nil {
			return nil, err
		}
		return collect[auditRow](r.Context(), s.db, "list audit log", query, args...)
	}, func(a auditRow) []string { return []string{strconv.FormatInt(a.ID, 10)} })
}

// refusals counts the refusals of each caller in the current minute, so that a caller who keeps
// trying does not fill the audit log.
type refusals struct {
	mu     sync.Mutex
	counts map[string]int64 // by the id of the credential; not nil
}

// maxRefusals is how many refusals of one caller get a row of their own in a minute.
const maxRefusals = 20

// note counts a refusal and reports whether it gets a row of its own.
func (c *refusals) note(caller string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[caller]++
	return c.counts[caller] <= maxRefusals
}

// audit adds a row for each caller with more than maxRefusals refusals, and restarts the counts.
func (c *refusals) audit(ctx context.Context, q querier) error {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[string]int64{}
	c.mu.Unlock()
	var err error
	for caller, n := range counts {
		if n > maxRefusals {
			more := map[string]int64{"more": n - maxRefusals}
			err = errors.Join(err, audit(ctx, q, serviceActor(), "request.refused", caller, nil, more))
		}
	}
	return err
}

// insertAudit begins a statement that adds rows to the audit log.
const insertAudit = `
		INSERT INTO audit_log (actor_id, actor, credential, address, request_id, action, target, before, after)`

// audit adds a row to the audit log, in the transaction of the change that it records. A refusal
// has no change, and needs no transaction. target names the changed object, as in "user:NAME", or
// the refused route; before and after are values for JSON, or nil. None of them may hold a secret,
// or a login name that is not an account's.
func audit(ctx context.Context, q querier, by actor, action, target string, before, after any) error {
	const query = insertAudit + `
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	_, err := execute(ctx, q, "audit "+action, query,
		by.id, by.name, by.credential, by.address, by.requestID, action, target, before, after)
	return err
}

// auditContent is SQL for the sealed bytes of a row l: JSON of its columns, and whether before and
// after are SQL nulls, which JSON cannot tell from its own null. It is not a database function,
// because seals must reveal a tampered database.
const auditContent = `
	jsonb_build_array(l.id, l.at AT TIME ZONE 'UTC', l.actor_id, l.actor, l.credential, l.address, l.request_id,
		l.action, l.target, l.before IS NULL, l.before, l.after IS NULL, l.after)::text`

// sealMAC returns the MAC of a seal: over its kind, the MAC of the seal before and the sealed
// content, each preceded by its length. The kind keeps the seal of a row from passing for a
// checkpoint.
func (k key) sealMAC(kind string, before []byte, content string) []byte {
	var message []byte
	for _, part := range []string{kind, string(before), content} {
		message = append(binary.BigEndian.AppendUint64(message, uint64(len(part))), part...)
	}
	return hmacSHA256(k.audit, message)
}

// auditHead returns the written form of a seal: its number and its MAC. Keep a head outside the
// database to prove later that the log up to it is complete and unchanged.
func auditHead(seq int64, mac []byte) string { return fmt.Sprintf("%d:%x", seq, mac) }

// seal is the number and the MAC of a seal. The zero value is before the first.
type seal struct {
	seq int64
	mac []byte
}

// sealAudit seals up to a thousand committed rows of the audit log, unless another instance is
// doing so. known is the last seal that this instance made; zero if it has made none. sealAudit
// returns the newest seal that it made now, else known. If the known seal is gone, the log has been
// tampered with. Then sealAudit fails and seals nothing, since new seals would vouch for the forged
// log.
func sealAudit(ctx context.Context, pool *pgxpool.Pool, k key, known seal) (last seal, err error) {
	const waiting = `
		SELECT l.id, ` + auditContent + ` AS content
		FROM audit_unsealed q
		JOIN audit_log l ON l.id = q.audit_id
		ORDER BY l.id
		LIMIT 1000`
	const newest = `
		SELECT coalesce(max(seq), 0), (SELECT mac FROM audit_seals ORDER BY seq DESC LIMIT 1),
			$1::bigint = 0 OR EXISTS (
				SELECT FROM audit_seals WHERE (seq = $1 AND mac = $2) OR (seq > $1 AND checkpoint IS NOT NULL)
			)
		FROM audit_seals`
	const add = `
		WITH sealed AS (
			INSERT INTO audit_seals (seq, audit_id, kid, mac)
			SELECT seq, audit_id, $4, mac
			FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (seq, audit_id, mac)
		)
		DELETE FROM audit_unsealed
		WHERE audit_id = ANY ($2)`
	last = known
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		var ours, isThere bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, lockSeal).Scan(&ours); err != nil || !ours {
			return err
		}
		rows, err := collect[struct {
			ID      int64
			Content string
		}](ctx, tx, "list unsealed audit rows", waiting)
		if err != nil || len(rows) == 0 {
			return err
		}
		var next seal
		if err := tx.QueryRow(ctx, newest, known.seq, known.mac).Scan(&next.seq, &next.mac, &isThere); err != nil {
			return fmt.Errorf("read the last seal: %w", err)
		}
		if !isThere {
			return fmt.Errorf("the audit log was tampered with: the seal %s is gone", auditHead(known.seq, known.mac))
		}
		var seqs, ids []int64
		var macs [][]byte
		for _, row := range rows {
			next = seal{next.seq + 1, k.sealMAC("row", next.mac, row.Content)}
			seqs, ids, macs = append(seqs, next.seq), append(ids, row.ID), append(macs, next.mac)
		}
		if _, err = execute(ctx, tx, "add seals", add, seqs, ids, macs, k.id); err == nil {
			last = next
		}
		return err
	})
	if err != nil {
		return known, err
	}
	return last, nil
}
