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

// actor is who makes a change, with the permissions of the credential in use.
type actor struct {
	id          *string // of the user; nil if nobody is signed in
	name        string
	credential  string // "session:ID", "token:ID" or "command line"; empty for the service and if nobody is signed in
	address     string
	requestID   string
	permissions []string
	mayAll      bool // holds every permission
}

// actorOf returns the sender of the request as an actor.
func actorOf(r *http.Request) actor {
	c := callerOf(r)
	a := actor{requestID: c.requestID}
	if c.address.IsValid() { // a Unix socket has none
		a.address = c.address.String()
	}
	if p := c.principal; p != nil {
		a.id, a.name, a.permissions = &p.User.ID, p.User.Username, p.Permissions
		a.credential = p.Kind + ":" + p.CredentialID
	}
	return a
}

// operatorActor returns the user of the command line, who holds every permission.
func operatorActor() actor { return actor{name: "operator", credential: "command line", mayAll: true} }

// serviceActor returns the service itself, which holds every permission.
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
		session.refresh_token_reused login.throttled request.refused verify.refused token.refused
		password_token.refused password.change password.reset token.create token.end
		totp.enable totp.disable totp.recovery_code
		user.register user.create user.update user.roles user.password_reset user.revoke user.unlock user.delete
		role.create role.update role.delete permission.create permission.update permission.delete
		message.create message.update message.retract message.delete
		dataset.create dataset.update dataset.delete finding.accept finding.reopen analysis.create analysis.cancel
		keys.change keys.prune audit.prune audit.accept database.restore`)
}

// listAudit answers GET /api/v1/audit, the newest row first.
func (a *accounts) listAudit(w http.ResponseWriter, r *http.Request) error {
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
	return writeList(a.core, w, r, first, func(after []string, limit int) ([]auditRow, error) {
		args := []any{pgx.QueryExecModeCacheDescribe, after[0], limit} // planned for these very filters
		values := r.URL.Query()
		for _, name := range []string{"actor", "credential", "action", "target", "request_id"} {
			args = append(args, optional(values, name))
		}
		var v invalid
		isAction := !values.Has("action") || slices.Contains(auditActions(), values.Get("action"))
		v.check(isAction, "action", "unknown", "is not an action of the log")
		args = append(args, v.time("since", optional(values, "since")), v.time("until", optional(values, "until")))
		if err := v.err(); err != nil {
			return nil, err
		}
		return collect[auditRow](r.Context(), a.core.db, "list audit log", query, args...)
	}, func(row auditRow) []string { return []string{strconv.FormatInt(row.ID, 10)} })
}

// tally is a kind of repeated failure. Its fields are those of the audit row for it.
type tally struct{ action, target, credential, address string }

// tallies count failures that anyone can cause without end, by kind, until they are flushed.
type tallies struct {
	mu     sync.Mutex
	counts map[tally]int64 // not nil
}

// maxTallies is how many kinds are told apart in a minute. Further ones are counted by action.
const maxTallies = 100

// maxRefusals is how many refusals of one credential get a row of their own in a minute.
const maxRefusals = 20

// add counts n failures of a kind and returns the count of the kind or, beyond maxTallies kinds, of
// its action. It includes what flush could not store.
func (c *tallies) add(t tally, n int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[t] == 0 && len(c.counts) >= maxTallies {
		t = tally{action: t.action}
	}
	c.counts[t] += n
	return c.counts[t]
}

// flush adds a row to the audit log for each kind, and restarts the counts. It is called once a
// minute, and when the service stops. A count that it could not store stays for the next minute.
func (c *tallies) flush(ctx context.Context, q querier) (err error) {
	c.mu.Lock()
	counts := c.counts
	c.counts = map[tally]int64{}
	c.mu.Unlock()
	for t, n := range counts {
		after := map[string]int64{"attempts": n}
		if t.action == "request.refused" { // the first maxRefusals have rows of their own
			if n <= maxRefusals {
				continue
			}
			after = map[string]int64{"more": n - maxRefusals}
		}
		by := serviceActor()
		by.credential, by.address = t.credential, t.address
		if failed := audit(ctx, q, by, t.action, t.target, nil, after); failed != nil {
			err = errors.Join(err, failed)
			c.add(t, n)
		}
	}
	return err
}

// tallyToken counts the use of an API token that was refused although it is in the database: it has
// expired, or its owner is not active.
func (a *accounts) tallyToken(ctx context.Context, c *caller) error {
	const query = `
		SELECT t.id::text, u.username
		FROM api_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.token_hash = $1`
	type token struct{ ID, Username string }
	t, err := collectOne[token](ctx, a.core.db, nil, "find refused token", query, c.credential.tokenHash)
	if t.ID != "" {
		a.tallied.add(tally{"token.refused", "user:" + t.Username, "token:" + t.ID, c.network()}, 1)
	}
	return err
}

// auditNewSigner adds a row if the signing key is not the one that an instance has used last.
func auditNewSigner(ctx context.Context, q querier, ring *keyring) error {
	const query = `SELECT coalesce((SELECT signer FROM instances ORDER BY seen_at DESC LIMIT 1), '')`
	last, err := scalar[string](ctx, q, "read the last signer", query)
	if err != nil || last == "" || last == ring.keys[0].fingerprint {
		return err
	}
	return audit(ctx, q, serviceActor(), "keys.change", "", nil, ring.ids())
}

// insertAudit begins a statement that adds rows to the audit log.
const insertAudit = `
		INSERT INTO audit_log (actor_id, actor, credential, address, request_id, action, target, before, after)`

// audit adds a row to the audit log, in the transaction of the change that it records. A refusal
// has no change and needs no transaction. target names the object, as in "user:NAME", or the
// refused route. before and after are values for JSON, or nil. None of them may hold a secret,
// or a login name that no account has: it may be a password typed into the wrong field.
func audit(ctx context.Context, q querier, by actor, action, target string, before, after any) error {
	const query = insertAudit + `
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	_, err := execute(ctx, q, "audit "+action, query,
		by.id, by.name, by.credential, by.address, by.requestID, action, target, before, after)
	return err
}

// auditContent is SQL for the sealed bytes of a row l: a JSON array of its columns. It also has
// whether before and after are SQL nulls, which JSON cannot tell from its own null. It is not a
// database function, because seals must reveal a tampered database.
const auditContent = `
	jsonb_build_array(l.id, l.at AT TIME ZONE 'UTC', l.actor_id, l.actor, l.credential, l.address, l.request_id,
		l.action, l.target, l.before IS NULL, l.before, l.after IS NULL, l.after)::text`

// sealMAC returns the MAC over the kind of a seal, the MAC of the seal before and the sealed
// content, each preceded by its length. The kind keeps a row's seal from passing for a checkpoint.
func (k key) sealMAC(kind string, before []byte, content string) []byte {
	var message []byte
	for _, part := range []string{kind, string(before), content} {
		message = append(binary.BigEndian.AppendUint64(message, uint64(len(part))), part...)
	}
	return hmacSHA256(k.audit, message)
}

// auditHead returns the number and the MAC of a seal as text. An operator who keeps a head outside
// the database can prove later that the log up to it is complete and unchanged.
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

// auditSeals begins a query for sealRows.
const auditSeals = `
		SELECT s.seq, s.audit_id, s.kid, s.mac, s.checkpoint,
			CASE WHEN l.id IS NOT NULL THEN ` + auditContent + ` END AS content, p.mac AS before
		FROM audit_seals s
		LEFT JOIN audit_log l ON l.id = s.audit_id
		LEFT JOIN audit_seals p ON p.seq = s.seq - 1`

// errNoKey is the error for a seal by a key that is not, or not yet, in the key file.
var errNoKey = errors.New("the key file has no key")

// verify returns an error unless the seal's MAC is that of its row and of the seal before, or the
// seal is a valid checkpoint, whose row retention has deleted.
func (s sealRow) verify(ring *keyring) error {
	k, found := ring.find(s.KID)
	switch {
	case !found:
		return fmt.Errorf("row %d (seal %d): %w %s", s.AuditID, s.Seq, errNoKey, s.KID)
	case s.Checkpoint != nil && !hmac.Equal(s.Checkpoint, k.sealMAC("checkpoint", s.MAC, strconv.FormatInt(s.Seq, 10))):
		return fmt.Errorf("seal %d is not a valid checkpoint: the rows before it are missing", s.Seq)
	case s.Checkpoint != nil && s.Before == nil && s.Content == nil: // retention deleted the row and the seal before
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

// listAuditBreaks returns all breaks, accepted or not, in the order in which they were seen.
func listAuditBreaks(ctx context.Context, q querier) ([]auditBreak, error) {
	const query = `SELECT id, seen_at, finding, seq, mac, kid, accepted FROM audit_breaks ORDER BY seen_at, id`
	return collect[auditBreak](ctx, q, "list audit breaks", query)
}

// breakMAC returns the MAC by which the operator accepts a break and the newest seal.
func (k key) breakMAC(id string, newest seal) []byte {
	return k.sealMAC("accepted break", newest.mac, strconv.FormatInt(newest.seq, 10)+" "+id)
}

// isAccepted reports whether the operator has accepted the break. That takes the key file: nobody
// can do it by a write to the database alone.
func (b auditBreak) isAccepted(ring *keyring) bool {
	k, found := ring.find(b.KID)
	return found && hmac.Equal(b.Accepted, k.breakMAC(b.ID, seal{b.Seq, b.MAC}))
}

// sealer seals the audit log, and remembers what must be in the database. Only broken may be used
// by several goroutines.
type sealer struct {
	last     seal              // the last seal that this instance made or the operator accepted; zero: none yet
	accepted seal              // the newest seal at the latest acceptance by the operator; zero: never
	handled  []string          // the ids of the accepted breaks that this instance has handled
	open     map[string]string // the findings of the breaks that are not accepted, by id; not nil
	broken   atomic.Bool       // there are open breaks
}

// sealRows seals up to a thousand committed rows and returns how many: none while another instance
// seals, or while a break is open, because new seals would vouch for a forged log.
func (z *sealer) sealRows(ctx context.Context, pool *pgxpool.Pool, ring *keyring) (n int, err error) {
	const waiting = `
		SELECT l.id, ` + auditContent + ` AS content
		FROM audit_unsealed q
		JOIN audit_log l ON l.id = q.audit_id
		WHERE (SELECT coalesce(max(seq), 0) FROM audit_seals) = $1 -- none was removed since the check
		ORDER BY l.id
		LIMIT 1000`
	const add = `
		WITH sealed AS (
			INSERT INTO audit_seals (seq, audit_id, kid, mac)
			SELECT seq, audit_id, $4, mac
			FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (seq, audit_id, mac)
		)
		DELETE FROM audit_unsealed WHERE audit_id = ANY ($2)`
	type unsealed struct {
		ID      int64
		Content string
	}
	var next seal
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		held, err := scalar[bool](ctx, tx, "lock the seals", `SELECT pg_try_advisory_xact_lock($1)`, lockSeal)
		if err != nil || !held {
			return err
		}
		if next, err = z.updateBreaks(ctx, tx, ring); err != nil || len(z.open) > 0 {
			return err
		}
		rows, err := collect[unsealed](ctx, tx, "list unsealed audit rows", waiting, next.seq)
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
	z.broken.Store(len(z.open) > 0)
	if err != nil {
		return 0, err
	}
	if n > 0 {
		z.last = next
	}
	return n, nil
}

// updateBreaks brings z.open up to date and returns the newest seal. If no break is open, it looks
// for a new one. It adds the rows of open breaks that somebody deleted. Requires lockSeal.
func (z *sealer) updateBreaks(ctx context.Context, tx pgx.Tx, ring *keyring) (newest seal, err error) {
	const note = `INSERT INTO audit_breaks (id, finding) VALUES ($1, $2) ON CONFLICT DO NOTHING`
	breaks, err := listAuditBreaks(ctx, tx)
	if err != nil {
		return newest, err
	}
	for _, b := range breaks {
		_, isOpen := z.open[b.ID]
		switch {
		case !b.isAccepted(ring):
			z.open[b.ID] = b.Finding
		case isOpen || !slices.Contains(z.handled, b.ID):
			delete(z.open, b.ID)
			z.handled, z.accepted = append(z.handled, b.ID), seal{b.Seq, b.MAC}
			z.last = z.accepted // the operator accepts that the former one may be gone
		}
	}
	newest, finding, err := z.findBreak(ctx, tx, ring)
	if err != nil {
		return newest, err
	}
	if finding != nil && len(z.open) == 0 {
		z.open[rand.Text()] = "the audit log was tampered with: " + finding.Error()
	}
	for id, finding := range z.open {
		if _, err := execute(ctx, tx, "note audit break", note, id, finding); err != nil {
			return newest, err
		}
	}
	return newest, nil
}

// findBreak returns the newest seal. finding is the break that it has found, or nil. There is one
// if the newest seal is neither valid nor accepted, or if z.last is gone and retention did not
// delete it. An instance that lacks a key cannot decide this: the error is errNoKey.
func (z *sealer) findBreak(ctx context.Context, tx pgx.Tx, ring *keyring) (newest seal, finding, err error) {
	const query = auditSeals + `
		WHERE s.seq IN ($1, (SELECT min(seq) FROM audit_seals), (SELECT max(seq) FROM audit_seals))
		ORDER BY s.seq`
	rows, err := collect[sealRow](ctx, tx, "read the last seal", query, z.last.seq)
	isThere := z.last.seq == 0
	newest.mac = []byte{}
	for _, row := range rows {
		newest = seal{row.Seq, row.MAC}
		isThere = isThere || newest.equal(z.last)
	}
	// Retention has deleted z.last if the oldest seal is a later one and a valid checkpoint.
	if !isThere && len(rows) > 0 && rows[0].Seq > z.last.seq && rows[0].Checkpoint != nil {
		finding = rows[0].verify(ring)
		isThere = finding == nil
	}
	if len(rows) > 0 && !newest.equal(z.accepted) && !errors.Is(finding, errNoKey) {
		finding = rows[len(rows)-1].verify(ring)
	}
	if errors.Is(finding, errNoKey) {
		return newest, nil, finding
	}
	if !isThere {
		finding = fmt.Errorf("the seal %s is gone", auditHead(z.last.seq, z.last.mac))
	}
	return newest, finding, err
}

// acceptAuditBreaks accepts all open breaks. It also accepts the newest seal if the key file lacks
// its key. Then the instances seal again. It returns the findings.
func acceptAuditBreaks(ctx context.Context, pool *pgxpool.Pool, ring *keyring) (findings []string, err error) {
	const accept = `
		INSERT INTO audit_breaks (id, finding, seq, mac, kid, accepted)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (id) DO UPDATE
		SET seq = excluded.seq, mac = excluded.mac, kid = excluded.kid, accepted = excluded.accepted`
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockSeal); err != nil {
			return err
		}
		z, k := sealer{open: map[string]string{}}, ring.keys[0]
		newest, err := z.updateBreaks(ctx, tx, ring)
		if errors.Is(err, errNoKey) {
			z.open[rand.Text()] = err.Error()
		} else if err != nil {
			return err
		}
		for id, finding := range z.open {
			findings = append(findings, finding)
			mac := k.breakMAC(id, newest)
			_, err := execute(ctx, tx, "accept audit break", accept, id, finding, newest.seq, newest.mac, k.id, mac)
			if err != nil {
				return err
			}
		}
		if len(findings) == 0 {
			return nil
		}
		slices.Sort(findings)
		after := map[string]any{"findings": findings, "head": auditHead(newest.seq, newest.mac)}
		return audit(ctx, tx, operatorActor(), "audit.accept", "", nil, after)
	})
	return findings, err
}

// flushTallies stores the failures that were counted since the last time.
func (a *accounts) flushTallies(ctx context.Context) error {
	return errors.Join(a.refused.flush(ctx, a.core.db), a.tallied.flush(ctx, a.core.db))
}
