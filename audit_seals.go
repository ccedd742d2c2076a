package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// auditContent is SQL for the sealed bytes of a row l: a JSON array of its columns. It also has
// whether before and after are SQL nulls, which JSON cannot tell from its own null. It is not a
// database function, because seals must reveal a tampered database.
const auditContent = `
	jsonb_build_array(
		l.id,
		l.at AT TIME ZONE 'UTC',
		l.actor_id,
		l.actor,
		l.credential,
		l.address,
		l.request_id,
		l.action,
		l.target,
		l.before IS NULL,
		l.before,
		l.after IS NULL,
		l.after
	)::text`

// sealMAC returns the MAC over the kind of a seal, the MAC of the seal before and the sealed
// content, each preceded by its length. The kind keeps a row's seal from passing for a checkpoint.
func (k key) sealMAC(kind string, before []byte, content string) []byte {
	var message []byte
	for _, part := range []string{kind, string(before), content} {
		message = binary.BigEndian.AppendUint64(message, uint64(len(part)))
		message = append(message, part...)
	}
	return hmacSHA256(k.audit, message)
}

// checkpointMAC returns the MAC which proves that retention deleted the row of a seal and the seals
// before it.
func (k key) checkpointMAC(seq int64, mac []byte) []byte {
	return k.sealMAC("checkpoint", mac, strconv.FormatInt(seq, 10))
}

// seal is the number and the MAC of a seal. The zero value is before the first.
type seal struct {
	seq int64
	mac []byte
}

// head returns the seal as text. An operator who keeps a head outside the database can prove later
// that the log up to it is complete and unchanged.
func (s seal) head() string { return fmt.Sprintf("%d:%x", s.seq, s.mac) }

// parseHead returns the seal whose head this is.
func parseHead(head string) (s seal, err error) {
	_, err = fmt.Sscanf(head, "%d:%x", &s.seq, &s.mac)
	if err != nil {
		err = fmt.Errorf("%q is not the head of an audit log: %w", head, err)
	}
	return s, err
}

// sealRow is a seal with what it seals, as auditSeals reads it.
type sealRow struct {
	Seq        int64
	AuditID    int64
	KID        string
	MAC        []byte
	Checkpoint []byte
	Content    string // empty if the sealed row is gone
}

// auditSeals is a query for up to $2 sealRows. The first is the newest up to number $1, if there is
// one.
const auditSeals = `
	SELECT
		s.seq,
		s.audit_id,
		s.kid,
		s.mac,
		s.checkpoint,
		CASE WHEN l.id IS NULL THEN '' ELSE ` + auditContent + ` END AS content
	FROM audit_seals s
	LEFT JOIN audit_log l ON l.id = s.audit_id
	WHERE s.seq >= coalesce((SELECT max(seq) FROM audit_seals WHERE seq <= $1), $1)
	ORDER BY s.seq
	LIMIT $2`

// wrongSeal is the fault of a seal that does not have the MAC of its row and of the seal before.
const wrongSeal = "the row or the seal was changed"

// chain is a walk along the seals. It collects what is missing or wrong.
type chain struct {
	ring     *keyring
	from     seal // seals up to this one are taken on trust; this one must be there, with its MAC
	newest   seal // the last one read
	n        int  // how many were read
	findings []string

	// The run of seals with the same fault that ends with the last one read.
	fault       string // "": none
	first, last sealRow
	digest      hash.Hash
}

// beforeAll is the number of no seal: it stands for the place before the first one. To read all
// seals, readChain begins there.
const beforeAll = math.MinInt64

// readChain walks along up to limit seals, from the given one on.
func readChain(ctx context.Context, q querier, ring *keyring, from seal, limit int) (c chain, err error) {
	c = chain{ring: ring, from: from}

	var s sealRow
	rows, _ := q.Query(ctx, auditSeals, from.seq, limit) // its error comes back from ForEachRow
	columns := []any{
		&s.Seq,
		&s.AuditID,
		&s.KID,
		&s.MAC,
		&s.Checkpoint,
		&s.Content,
	}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		c.add(s)
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read seals: %w", err)
	}

	c.endRun()
	c.expect(from.seq + 1)
	return c, nil
}

// add looks at the next seal.
func (c *chain) add(s sealRow) {
	fault := ""
	if s.Seq == c.from.seq && !hmac.Equal(s.MAC, c.from.mac) {
		fault = wrongSeal
	}
	if s.Seq > c.from.seq {
		// No seal is missing before a checkpoint that comes first: retention deleted those.
		if c.newest.seq > 0 || s.Checkpoint == nil {
			c.expect(s.Seq)
		}
		fault = c.faultOf(s)
	}

	// Another fault, or none, begins another run.
	if fault != c.fault {
		c.endRun()
		c.fault = fault
		c.first = s
		c.digest = sha256.New()
	}
	if fault != "" {
		fmt.Fprintf(c.digest, "%d %x %s\n", s.AuditID, s.MAC, s.Content)
	}

	c.last = s
	c.newest = seal{s.Seq, s.MAC}
	c.n++
}

// faultOf returns what is wrong with a seal that follows the last one read, or "". A checkpoint is
// the first seal of the log: retention has deleted its row and the seals before.
func (c *chain) faultOf(s sealRow) string {
	k, found := c.ring.find(s.KID)

	// Two instances with different keys must not report each other's seals without end.
	if !found && c.from.seq >= 0 {
		return ""
	}
	if !found {
		return fmt.Sprintf("the key file has no key %q", s.KID)
	}

	if s.Checkpoint != nil {
		isFirst := c.newest.seq == 0
		if !isFirst || !hmac.Equal(s.Checkpoint, k.checkpointMAC(s.Seq, s.MAC)) {
			return "it is not a valid checkpoint, so rows before it are missing"
		}
		if s.Content != "" {
			return "the row is in the place of one that retention deleted"
		}
		return ""
	}

	if s.Content == "" {
		return "the row is missing"
	}
	if !hmac.Equal(s.MAC, k.sealMAC("row", c.newest.mac, s.Content)) {
		return wrongSeal
	}
	return ""
}

// expect notes the seals that are missing between the last one read and number next.
func (c *chain) expect(next int64) {
	if c.newest.seq+1 < next {
		missing := fmt.Sprintf("the seals %d to %d are missing", c.newest.seq+1, next-1)
		c.findings = append(c.findings, missing)
	}
}

// endRun notes the run of seals with the same fault, if there is one. The digest tells this fault
// from a later one of the same seals.
func (c *chain) endRun() {
	if c.fault != "" {
		finding := fmt.Sprintf(
			"seals %d to %d (rows %d to %d): %s [%.16x]",
			c.first.Seq, c.last.Seq,
			c.first.AuditID, c.last.AuditID,
			c.fault, c.digest.Sum(nil),
		)
		c.findings = append(c.findings, finding)
	}
	c.fault = ""
}

// auditBreak is a row that tells of a break. Seq is the number of its seal, or nil if it has none
// yet.
type auditBreak struct {
	At    time.Time
	After json.RawMessage
	Seq   *int64
	note  breakNote
}

// breakNote is the content of After. Nobody can make one without a key, because of the MAC: a row
// that somebody inserts into the database by hand hides no break.
type breakNote struct {
	Findings []string `json:"findings"` // none has a line break
	MAC      []byte   `json:"mac"`
}

// breakMAC returns the MAC of a breakNote.
func (k key) breakMAC(findings []string) []byte {
	return k.sealMAC("break", nil, strings.Join(findings, "\n"))
}

// listBreaks returns the rows that tell of breaks, without those whose note Cairn did not make.
func listBreaks(ctx context.Context, q querier, ring *keyring) (breaks []auditBreak, err error) {
	const query = `
		SELECT
			l.at,
			l.after,
			s.seq
		FROM audit_log l
		LEFT JOIN audit_seals s ON s.audit_id = l.id
		WHERE l.target = 'audit'
			AND l.action = 'audit.break_found'
		ORDER BY l.id`
	rows, err := collect[auditBreak](ctx, q, "list audit breaks", query)
	if err != nil {
		return nil, err
	}

	for _, b := range rows {
		isOurs := func(k key) bool {
			return hmac.Equal(b.note.MAC, k.breakMAC(b.note.Findings))
		}
		if json.Unmarshal(b.After, &b.note) == nil && slices.ContainsFunc(ring.keys, isOurs) {
			breaks = append(breaks, b)
		}
	}
	return breaks, nil
}

// recordBreaks adds a row for those findings that no row tells of yet, and returns them. The
// transaction must hold lockSeal.
func recordBreaks(ctx context.Context, tx pgx.Tx, ring *keyring, findings []string) (added []string, err error) {
	breaks, err := listBreaks(ctx, tx, ring)
	if err != nil {
		return nil, err
	}

	isKnown := map[string]bool{}
	for _, b := range breaks {
		for _, finding := range b.note.Findings {
			isKnown[finding] = true
		}
	}

	added = slices.DeleteFunc(slices.Clone(findings), func(finding string) bool { return isKnown[finding] })
	if len(added) == 0 {
		return nil, nil
	}

	note := breakNote{
		Findings: added,
		MAC:      ring.signer().breakMAC(added),
	}
	return added, audit(ctx, tx, serviceActor(), "audit.break_found", "audit", nil, note)
}

// sealer seals the audit log.
type sealer struct {
	last seal // the newest seal at the last look, whichever instance made it
}

// maxSealed is how many seals are read or made in one transaction.
const maxSealed = 1000

// sealRows walks along the chain from the last look on, records what is missing or wrong there, and
// seals up to maxSealed rows that wait. It returns the breaks that it recorded. n is 0 if there is
// nothing more to do, or if another instance seals.
func (z *sealer) sealRows(ctx context.Context, pool *pgxpool.Pool, ring *keyring) (n int, found []string, err error) {
	// A row that tells of a break is sealed first, so that each seal after the break depends on it.
	const waiting = `
		SELECT
			l.id,
			` + auditContent + ` AS content
		FROM audit_unsealed q
		JOIN audit_log l ON l.id = q.audit_id
		WHERE (SELECT coalesce(max(seq), 0) FROM audit_seals) = $1 -- none was removed since the check
			AND NOT EXISTS (SELECT FROM audit_seals s WHERE s.audit_id = l.id) -- nor was one made by hand
		ORDER BY l.action = 'audit.break_found' DESC, l.id
		LIMIT $2`
	const add = `
		WITH sealed AS (
			INSERT INTO audit_seals (seq, audit_id, kid, mac)
			SELECT seq, audit_id, $4, mac
			FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) AS s (seq, audit_id, mac)
		)
		DELETE FROM audit_unsealed
		WHERE audit_id = ANY ($2)`
	const tryLock = `SELECT pg_try_advisory_xact_lock($1)`
	type unsealed struct {
		ID      int64
		Content string
	}

	next := z.last
	err = inTransaction(ctx, pool, func(tx pgx.Tx) error {
		held, err := scalar[bool](ctx, tx, "lock the seals", tryLock, lockSeal)
		if err != nil || !held {
			return err
		}

		c, err := readChain(ctx, tx, ring, z.last, maxSealed)
		if err != nil {
			return err
		}
		if len(c.findings) > 0 {
			found, err = recordBreaks(ctx, tx, ring, c.findings)
			if err != nil {
				return err
			}
		}

		// The numbers of missing seals are not used again.
		next = seal{
			seq: max(z.last.seq, c.newest.seq),
			mac: c.newest.mac,
		}
		if c.n == maxSealed {
			n = c.n
			return nil // there may be more seals to look at
		}

		rows, err := collect[unsealed](ctx, tx, "list unsealed audit rows", waiting, c.newest.seq, maxSealed)
		n = len(rows)
		if err != nil || n == 0 {
			return err
		}

		var seqs, ids []int64
		var macs [][]byte
		for _, row := range rows {
			next = seal{
				seq: next.seq + 1,
				mac: ring.signer().sealMAC("row", next.mac, row.Content),
			}
			seqs = append(seqs, next.seq)
			ids = append(ids, row.ID)
			macs = append(macs, next.mac)
		}
		_, err = execute(ctx, tx, "add seals", add, seqs, ids, macs, ring.signer().id)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	z.last = next
	return n, found, nil
}

// queueUnsealed looks for rows that neither have a seal nor wait for one, and makes them wait. It
// looks for rows that waited and are gone, and forgets them. It returns a finding if there are any.
// The transaction must hold lockSeal.
func queueUnsealed(ctx context.Context, tx pgx.Tx) ([]string, error) {
	const query = `
		WITH added AS (
			INSERT INTO audit_unsealed
			SELECT l.id
			FROM audit_log l
			WHERE NOT EXISTS (SELECT FROM audit_seals s WHERE s.audit_id = l.id)
				AND NOT EXISTS (SELECT FROM audit_unsealed q WHERE q.audit_id = l.id)
			RETURNING audit_id
		),
		gone AS (
			DELETE FROM audit_unsealed q
			WHERE NOT EXISTS (SELECT FROM audit_log l WHERE l.id = q.audit_id)
			RETURNING audit_id
		)
		SELECT 'rows that neither have a seal nor wait for one, or that waited and are gone: ' || count(*)
			|| ' (' || min(audit_id) || ' to ' || max(audit_id) || '), seen ' || clock_timestamp()
		FROM (TABLE added UNION ALL TABLE gone) AS rows
		HAVING count(*) > 0`

	rows, _ := tx.Query(ctx, query) // its error comes back from CollectRows
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
