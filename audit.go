package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// actor is who does something, as the audit log has it, and what the credential in use lets him do.
type actor struct {
	id          *string // of the user; nil where nobody is signed in
	name        string
	credential  string // "session:ID", "token:ID", or "command line"
	address     string
	requestID   string
	permissions []string
}

// actorOf is who sent the request.
func actorOf(r *http.Request) actor {
	c := callerOf(r)
	a := actor{address: c.address.String(), requestID: c.requestID}
	if p := c.principal; p != nil {
		a.id, a.name, a.credential, a.permissions = &p.User.ID, p.User.Username, p.Kind+":"+p.CredentialID, p.Permissions
	}
	return a
}

// operatorActor is who uses the command line. He may do everything.
func operatorActor() actor {
	return actor{name: "operator", credential: "command line", permissions: permissions()}
}

// serviceActor is the service itself.
func serviceActor() actor { return actor{name: "cairn", permissions: permissions()} }

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
	return writeList(s, w, r, []string{strconv.FormatInt(1<<62, 10)}, func(after []string, limit int) ([]auditRow, error) {
		args := []any{pgx.QueryExecModeExec, after[0], limit} // planned for these very filters
		values := r.URL.Query()
		for _, name := range []string{"actor", "credential", "action", "target", "request_id"} {
			args = append(args, optional(values, name))
		}
		var v invalid
		args = append(args, v.time("since", optional(values, "since")), v.time("until", optional(values, "until")))
		if err := v.err(); err != nil {
			return nil, err
		}
		return collect[auditRow](r.Context(), s.db, "list audit log", query, args...)
	}, func(a auditRow) []string { return []string{strconv.FormatInt(a.ID, 10)} })
}

// refusals counts what was refused to each caller in the minute at hand, so that one who tries on and on does not
// fill the audit log.
type refusals struct {
	mu     sync.Mutex
	counts map[string]int64
}

// maxRefusals is how many refusals of one caller have a row of their own in a minute.
const maxRefusals = 20

// note counts a refusal, and says whether it is to have a row of its own.
func (c *refusals) note(caller string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[caller]++
	return c.counts[caller] <= maxRefusals
}

// audit adds a row for each caller with more, and begins to count anew.
func (c *refusals) audit(ctx context.Context, q querier) error {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[string]int64{}
	c.mu.Unlock()
	var err error
	for caller, n := range counts {
		if n > maxRefusals {
			err = errors.Join(err, audit(ctx, q, serviceActor(), "request.refused", caller, nil, map[string]int64{"more": n - maxRefusals}))
		}
	}
	return err
}

// audit adds a row to the audit log, in the transaction of the change that it tells of. target is what
// was changed, "user:NAME" or the like; before and after are what JSON can hold, or nil. No secret and no
// login name that is no account's may be in them.
func audit(ctx context.Context, q querier, by actor, action, target string, before, after any) error {
	const query = `
		INSERT INTO audit_log (actor_id, actor, credential, address, request_id, action, target, before, after)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	if _, err := q.Exec(ctx, query, by.id, by.name, by.credential, by.address, by.requestID, action, target, before, after); err != nil {
		return fmt.Errorf("audit %s: %w", action, err)
	}
	return nil
}

// auditContent is what is sealed of a row l: JSON of its columns, and whether before and after hold a value, which
// JSON alone would not tell from null. It is here, not in the database, whose word it is to prove.
const auditContent = `
	jsonb_build_array(l.id, l.at AT TIME ZONE 'UTC', l.actor_id, l.actor, l.credential, l.address, l.request_id, l.action, l.target,
		l.before IS NULL, l.before, l.after IS NULL, l.after)::text`

// sealMAC is the MAC of a seal: over the MAC of the one before and what is sealed, each with its length. kind
// keeps what a row is sealed with from passing for a checkpoint.
func (k key) sealMAC(kind string, before []byte, what string) []byte {
	mac := hmac.New(sha256.New, k.audit)
	for _, part := range []string{kind, string(before), what} {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		io.WriteString(mac, part)
	}
	return mac.Sum(nil)
}

// auditHead is how a seal is written down: its number and its MAC. Who keeps one notices later that what was
// sealed up to it has been changed or cut off.
func auditHead(seq int64, mac []byte) string { return fmt.Sprintf("%d:%x", seq, mac) }

// seal is a seal that this instance has seen: its number and its MAC.
type seal struct {
	seq int64
	mac []byte
}

// sealAudit seals what was added to the audit log and is committed, at most a thousand rows, unless another
// instance is at it, and returns the last seal. Where the one that this instance knows is not there any more, the
// log has been tampered with, and nothing is sealed: a forgery would look like ours.
func sealAudit(ctx context.Context, pool *pgxpool.Pool, k key, known seal) (last seal, err error) {
	const waiting = `
		SELECT l.id, ` + auditContent + ` AS content
		FROM audit_unsealed q
		JOIN audit_log l ON l.id = q.audit_id
		ORDER BY l.id
		LIMIT 1000`
	const newest = `
		SELECT seq, mac
		FROM audit_seals
		ORDER BY seq DESC
		LIMIT 1`
	const isThere = `
		SELECT EXISTS (SELECT FROM audit_seals WHERE seq = $1 AND mac = $2 OR seq > $1 AND checkpoint IS NOT NULL)`
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
		var ours, there bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, lockSeal).Scan(&ours); err != nil || !ours {
			return err
		}
		rows, err := collect[struct {
			ID      int64
			Content string
		}](ctx, tx, "list what is to be sealed", waiting)
		if err != nil || len(rows) == 0 {
			return err
		}
		if known.seq > 0 {
			if err := tx.QueryRow(ctx, isThere, known.seq, known.mac).Scan(&there); err != nil {
				return fmt.Errorf("look for the last seal: %w", err)
			}
			if !there {
				return fmt.Errorf("the audit log was tampered with: the seal %s is gone", auditHead(known.seq, known.mac))
			}
		}
		var next seal
		if err := tx.QueryRow(ctx, newest).Scan(&next.seq, &next.mac); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read the last seal: %w", err)
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
