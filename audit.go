package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
		session.login session.login_refused session.otp_required session.logout session.end session.lost
		session.refresh_token_reused login.throttled request.refused verify.refused token.refused password_token.refused
		password.change password.reset token.create token.renew token.end totp.enable totp.disable totp.recovery_code
		user.register user.create user.update user.roles user.password_reset user.revoke user.unlock user.delete
		role.create role.update role.delete permission.create permission.update permission.delete
		message.create message.update message.retract message.delete
		dataset.create dataset.update dataset.delete finding.accept finding.reopen analysis.create analysis.cancel
		keys.change keys.prune audit.prune audit.accept database.restore`)
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

// tally is what repeated failures have in common.
type tally struct{ action, target, credential, address string }

// tallies count failures that anyone can cause without end. Each kind gets one row a minute.
type tallies struct {
	mu     sync.Mutex
	counts map[tally]int64 // not nil
}

// maxTallies is how many kinds are told apart in a minute. Further ones are counted by action.
const maxTallies = 100

// add counts n failures.
func (c *tallies) add(t tally, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[t] == 0 && len(c.counts) >= maxTallies {
		t = tally{action: t.action}
	}
	c.counts[t] += n
}

// audit adds a row for each kind, and restarts the counts. It keeps what it could not add for the
// next minute.
func (c *tallies) audit(ctx context.Context, q querier) error {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[tally]int64{}
	c.mu.Unlock()
	var err error
	for t, n := range counts {
		by := serviceActor()
		by.credential, by.address = t.credential, t.address
		if failed := audit(ctx, q, by, t.action, t.target, nil, map[string]int64{"attempts": n}); failed != nil {
			err = errors.Join(err, failed)
			c.add(t, n)
		}
	}
	return err
}

// tallyToken counts the use of an API token that has expired, of the former secret of a renewed
// one, and of one whose owner is not active.
func (s *server) tallyToken(ctx context.Context, c *caller) error {
	const query = `
		SELECT t.id::text, u.username
		FROM api_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.token_hash = $1 OR t.former_hash = $1`
	found, err := collect[struct{ ID, Username string }](ctx, s.db, "find refused token", query, c.credential.tokenHash)
	for _, t := range found {
		s.tallied.add(tally{"token.refused", "user:" + t.Username, "token:" + t.ID, c.network()}, 1)
	}
	return err
}

// auditNewSigner adds a row if the signing key is not the one that an instance used last.
func auditNewSigner(ctx context.Context, q querier, ring *keyring) error {
	const query = `
		SELECT signer
		FROM instances
		ORDER BY seen_at DESC
		LIMIT 1`
	last, err := collect[struct{ Signer string }](ctx, q, "read the last signer", query)
	if err != nil || len(last) == 0 || last[0].Signer == ring.keys[0].fingerprint {
		return err
	}
	return audit(ctx, q, serviceActor(), "keys.change", "", nil, ring.ids())
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

// equal reports whether two seals are the same.
func (s seal) equal(other seal) bool { return s.seq == other.seq && hmac.Equal(s.mac, other.mac) }

// sealRow is a seal with what it seals, as auditSeals reads it.
type sealRow struct {
	Seq, AuditID    int64
	KID             string
	MAC, Checkpoint []byte
	Content         *string // nil if the sealed row is gone
	Before          []byte  // the MAC of the seal before; nil if that is gone
}

// auditSeals begins a query for seals.
const auditSeals = `
		SELECT s.seq, s.audit_id, s.kid, s.mac, s.checkpoint,
			CASE WHEN l.id IS NOT NULL THEN ` + auditContent + ` END AS content, p.mac AS before
		FROM audit_seals s
		LEFT JOIN audit_log l ON l.id = s.audit_id
		LEFT JOIN audit_seals p ON p.seq = s.seq - 1`

// check returns an error if the seal is not that of its row after the seal before, and no valid
// checkpoint.
func (s sealRow) check(ring *keyring) error {
	k, isKnown := ring.find(s.KID)
	switch {
	case !isKnown:
		return fmt.Errorf("row %d (seal %d): the key file has no key %s", s.AuditID, s.Seq, s.KID)
	case s.Checkpoint != nil && !hmac.Equal(s.Checkpoint, k.sealMAC("checkpoint", s.MAC, strconv.FormatInt(s.Seq, 10))):
		return fmt.Errorf("seal %d is not a valid checkpoint: the rows before it are missing", s.Seq)
	case s.Checkpoint != nil && s.Before == nil && s.Content == nil: // retention took the checkpoint's own row
		return nil
	case s.Checkpoint != nil:
		return fmt.Errorf("row %d was put in place of one that retention took", s.AuditID)
	case s.Content == nil:
		return fmt.Errorf("row %d (seal %d) is missing", s.AuditID, s.Seq)
	case !hmac.Equal(s.MAC, k.sealMAC("row", s.Before, *s.Content)):
		return fmt.Errorf("row %d or its seal %d was changed", s.AuditID, s.Seq)
	}
	return nil
}

// auditBreak is a row of audit_breaks.
type auditBreak struct {
	ID            string
	SeenAt        time.Time
	Finding       string
	Seq           int64
	MAC, Accepted []byte
	KID           string
}

// listAuditBreaks returns the breaks that were seen, in their order.
func listAuditBreaks(ctx context.Context, q querier) ([]auditBreak, error) {
	const query = `
		SELECT id, seen_at, finding, seq, mac, accepted, kid
		FROM audit_breaks
		ORDER BY seen_at, id`
	return collect[auditBreak](ctx, q, "list audit breaks", query)
}

// breakMAC returns the MAC by which the operator accepts a break and the newest seal at that time.
func (k key) breakMAC(id string, newest seal) []byte {
	return k.sealMAC("accepted break", newest.mac, strconv.FormatInt(newest.seq, 10)+" "+id)
}

// isAccepted reports whether the operator has accepted the break. Somebody who only writes to the
// database cannot accept one: that takes the key file.
func (b auditBreak) isAccepted(ring *keyring) bool {
	k, isKnown := ring.find(b.KID)
	return isKnown && hmac.Equal(b.Accepted, k.breakMAC(b.ID, seal{b.Seq, b.MAC}))
}

// sealer seals the audit log, and remembers what must be in the database. Only broken may be used
// by several goroutines.
type sealer struct {
	last   seal              // the last seal that this instance made, or found accepted; zero: none yet
	seen   map[string]string // the findings of the breaks that are not accepted, by id
	broken atomic.Bool       // there are such breaks
}

// seal seals up to a thousand committed rows of the audit log, unless another instance is doing so,
// or any instance has seen a break: new seals would vouch for a forged log. A break is kept in the
// database for all instances. Each of them remembers it also, so that it comes back if it is
// deleted there. seal returns how many rows it sealed.
func (z *sealer) seal(ctx context.Context, pool *pgxpool.Pool, ring *keyring) (n int, err error) {
	const waiting = `
		SELECT l.id, ` + auditContent + ` AS content
		FROM audit_unsealed q
		JOIN audit_log l ON l.id = q.audit_id
		ORDER BY l.id
		LIMIT 1000`
	const add = `
		WITH sealed AS (
			INSERT INTO audit_seals (seq, audit_id, kid, mac)
			SELECT seq, audit_id, $4, mac
			FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (seq, audit_id, mac)
		)
		DELETE FROM audit_unsealed
		WHERE audit_id = ANY ($2)`
	var next seal
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		var ours bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, lockSeal).Scan(&ours); err != nil || !ours {
			return err
		}
		if next, err = z.check(ctx, tx, ring); err != nil || len(z.seen) > 0 {
			return err
		}
		rows, err := collect[struct {
			ID      int64
			Content string
		}](ctx, tx, "list unsealed audit rows", waiting)
		if n = len(rows); err != nil || n == 0 {
			return err
		}
		var seqs, ids []int64
		var macs [][]byte
		for _, row := range rows {
			next = seal{next.seq + 1, ring.keys[0].sealMAC("row", next.mac, row.Content)}
			seqs, ids, macs = append(seqs, next.seq), append(ids, row.ID), append(macs, next.mac)
		}
		_, err = execute(ctx, tx, "add seals", add, seqs, ids, macs, ring.keys[0].id)
		return err
	})
	z.broken.Store(len(z.seen) > 0)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		z.last = next
	}
	return n, nil
}

// check returns the newest seal. It brings z.seen up to date with the breaks in the database. If
// there is none it looks for one itself. The caller holds lockSeal.
func (z *sealer) check(ctx context.Context, tx pgx.Tx, ring *keyring) (newest seal, err error) {
	const note = `
		INSERT INTO audit_breaks (id, finding)
		VALUES ($1, $2)
		ON CONFLICT DO NOTHING`
	breaks, err := listAuditBreaks(ctx, tx)
	if err != nil {
		return newest, err
	}
	var accepted []seal
	for _, b := range breaks {
		_, wasSeen := z.seen[b.ID]
		switch {
		case !b.isAccepted(ring):
			z.seen[b.ID] = b.Finding
			continue
		case wasSeen: // the last seal of this instance may be gone for good
			delete(z.seen, b.ID)
			z.last = seal{b.Seq, b.MAC}
		}
		accepted = append(accepted, seal{b.Seq, b.MAC})
	}
	if len(z.seen) == 0 {
		var finding error
		if newest, finding, err = findBreak(ctx, tx, ring, z.last, accepted); err != nil {
			return newest, err
		}
		if finding != nil {
			z.seen[rand.Text()] = "the audit log was tampered with: " + finding.Error()
		}
	}
	for id, finding := range z.seen {
		if _, err := execute(ctx, tx, "note audit break", note, id, finding); err != nil {
			return newest, err
		}
	}
	return newest, nil
}

// findBreak returns the newest seal. finding says what is wrong, or is nil: the newest seal is
// neither valid nor accepted, or the known seal is gone and retention did not remove it.
func findBreak(ctx context.Context, tx pgx.Tx, ring *keyring, known seal, accepted []seal) (
	newest seal, finding, err error) {
	const query = auditSeals + `
		WHERE s.seq IN ($1, (SELECT min(seq) FROM audit_seals), (SELECT max(seq) FROM audit_seals))
		ORDER BY s.seq`
	rows, err := collect[sealRow](ctx, tx, "read the last seal", query, known.seq)
	if err != nil {
		return newest, nil, err
	}
	isThere := known.seq == 0
	for i, row := range rows {
		newest = seal{row.Seq, row.MAC}
		isThere = isThere || newest.equal(known) ||
			i == 0 && row.Seq > known.seq && row.Checkpoint != nil && row.check(ring) == nil
	}
	if !isThere {
		return newest, fmt.Errorf("the seal %s is gone", auditHead(known.seq, known.mac)), nil
	}
	if len(rows) > 0 && !slices.ContainsFunc(accepted, newest.equal) {
		finding = rows[len(rows)-1].check(ring)
	}
	return newest, finding, nil
}

// acceptAuditBreaks lets the instances seal on after the breaks that they have seen. It returns
// these.
func acceptAuditBreaks(ctx context.Context, pool *pgxpool.Pool, ring *keyring) (findings []string, err error) {
	const accept = `
		UPDATE audit_breaks
		SET seq = $2, mac = $3, kid = $4, accepted = $5
		WHERE id = $1`
	const query = `
		SELECT seq, mac
		FROM audit_seals
		ORDER BY seq DESC
		LIMIT 1`
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockSeal); err != nil {
			return err
		}
		newest := seal{mac: []byte{}}
		err := tx.QueryRow(ctx, query).Scan(&newest.seq, &newest.mac)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read the last seal: %w", err)
		}
		breaks, err := listAuditBreaks(ctx, tx)
		if err != nil {
			return err
		}
		k := ring.keys[0]
		for _, b := range breaks {
			if b.isAccepted(ring) {
				continue
			}
			findings = append(findings, b.Finding)
			_, err := execute(ctx, tx, "accept audit break", accept,
				b.ID, newest.seq, newest.mac, k.id, k.breakMAC(b.ID, newest))
			if err != nil {
				return err
			}
		}
		if len(findings) == 0 {
			return nil
		}
		after := map[string]any{"findings": findings, "head": auditHead(newest.seq, newest.mac)}
		return audit(ctx, tx, operatorActor(), "audit.accept", "", nil, after)
	})
	return findings, err
}
