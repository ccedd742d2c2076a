package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// withKeys returns a command that runs do with the keys of the key file.
func withKeys(do func(context.Context, operation, *keyring) error) func(context.Context, operation) error {
	return func(ctx context.Context, o operation) error {
		ring, err := loadKeys(o.cfg.keysPath(), o.cfg.credentialsDir, false)
		if err != nil {
			return err
		}
		return do(ctx, o, ring)
	}
}

// verifyAuditCommand is "cairn audit verify".
func verifyAuditCommand(ctx context.Context, o operation, ring *keyring) error {
	head := o.options.Get("head")
	if head == "" && o.options.Has("head") {
		return fmt.Errorf("--head is empty: %w", errUsage)
	}
	last, waiting, err := verifyAudit(ctx, o.db, ring, head)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return o.print(nil, nil, "the audit log is whole; head %s, rows that wait for their seal: %d", last, waiting)
}

// acceptAuditCommand is "cairn audit accept".
func acceptAuditCommand(ctx context.Context, o operation, ring *keyring) error {
	findings, err := acceptAuditBreaks(ctx, o.db, ring)
	if err != nil {
		return err
	}
	for _, finding := range findings {
		fmt.Fprintln(o.stdout, "accepted:", finding)
	}
	return o.print(nil, nil, "accepted %s of the audit log", plural(int64(len(findings)), "break"))
}

// pruneAuditCommand is "cairn audit prune".
func pruneAuditCommand(ctx context.Context, o operation, ring *keyring) error {
	date, err := time.Parse(time.DateOnly, o.options.Get("before"))
	if err != nil {
		return fmt.Errorf("--before takes a date like 2026-01-31: %w", errUsage)
	}
	removed, err := pruneAudit(ctx, o.db, ring.keys[0], date)
	return o.print(err, nil, "removed %s from the audit log", plural(removed, "row"))
}

// verifyAudit compares the audit log with its seals. The error names the first row that is missing,
// was changed since it was sealed, or was not added by Cairn. With a head, the log must also hold
// that seal. It returns the head of the last seal and how many rows wait for theirs.
func verifyAudit(ctx context.Context, db *pgxpool.Pool, ring *keyring, head string) (string, int64, error) {
	const unsealed = `
		SELECT
			(SELECT min(l.id)
				FROM audit_log l
				WHERE NOT EXISTS (SELECT FROM audit_seals s WHERE s.audit_id = l.id)
					AND NOT EXISTS (SELECT FROM audit_unsealed q WHERE q.audit_id = l.id)),
			min(q.audit_id) FILTER (WHERE l.id IS NULL),
			count(*)
		FROM audit_unsealed q
		LEFT JOIN audit_log l ON l.id = q.audit_id`
	var waiting int64
	last, err := inSnapshot(ctx, db, func(ctx context.Context, q querier) (string, error) {
		last, found, err := verifySeals(ctx, q, ring, head)
		if err != nil {
			return "", err
		}
		breaks, err := listAuditBreaks(ctx, q)
		if err != nil {
			return "", err
		}
		for _, b := range breaks {
			if !b.isAccepted(ring) {
				return "", fmt.Errorf("since %s nothing is sealed (see: cairn audit accept): %s",
					b.SeenAt.UTC().Format(time.RFC3339), b.Finding)
			}
		}
		var foreign, lost *int64
		err = q.QueryRow(ctx, unsealed).Scan(&foreign, &lost, &waiting)
		switch {
		case err != nil:
		case foreign != nil:
			err = fmt.Errorf("row %d has no seal: Cairn did not add it, or its seal is gone", *foreign)
		case lost != nil:
			err = fmt.Errorf("row %d, which waited for its seal, is missing", *lost)
		case !found:
			err = fmt.Errorf("the log does not hold the seal %s: "+
				"it was truncated or rewritten, or the seal is older than the last prune", head)
		}
		return last, err
	})
	return last, waiting, err
}

// verifySeals follows the chain of seals and compares each with its row. It returns the head of the
// last seal. found says whether a seal has the wanted head; it is true if wanted is "".
func verifySeals(ctx context.Context, q querier, ring *keyring, wanted string) (last string, found bool, err error) {
	const query = auditSeals + ` ORDER BY s.seq`
	var s sealRow
	var before int64
	found = wanted == ""
	rows, _ := q.Query(ctx, query) // its error comes back from ForEachRow
	columns := []any{&s.Seq, &s.AuditID, &s.KID, &s.MAC, &s.Checkpoint, &s.Content, &s.Before}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if s.Seq != before+1 && (before != 0 || s.Checkpoint == nil) {
			return fmt.Errorf("the seals from %d to %d are missing", before+1, s.Seq-1)
		}
		if err := s.verify(ring); err != nil {
			return err
		}
		before, last = s.Seq, auditHead(s.Seq, s.MAC)
		found = found || last == strings.ToLower(wanted)
		return nil
	})
	return last, found, err
}

// pruneAudit deletes the rows before a time, with their seals. The newest of these seals stays as a
// checkpoint, at which verifyAudit begins. It returns how many rows it deleted.
func pruneAudit(ctx context.Context, db *pgxpool.Pool, k key, before time.Time) (removed int64, err error) {
	const choose = `
		SELECT seq, mac
		FROM audit_seals
		WHERE seq < coalesce(
			(SELECT min(s.seq) FROM audit_seals s JOIN audit_log l ON l.id = s.audit_id WHERE l.at >= $1),
			9223372036854775807)
		ORDER BY seq DESC
		LIMIT 1`
	const remove = `
		WITH seals AS (DELETE FROM audit_seals WHERE seq < $1),
			marked AS (UPDATE audit_seals SET kid = $2, checkpoint = $3 WHERE seq = $1)
		DELETE FROM audit_log l USING audit_seals s WHERE s.audit_id = l.id AND s.seq <= $1`
	err = inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockSeal); err != nil {
			return err
		}
		newest, err := collectOne[struct {
			Seq int64
			MAC []byte
		}](ctx, tx, nil, "choose a checkpoint", choose, before)
		if err != nil || newest.Seq == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL cairn.retention = 'on'; SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		number := strconv.FormatInt(newest.Seq, 10)
		checkpoint := k.sealMAC("checkpoint", newest.MAC, number)
		removed, err = execute(ctx, tx, "remove audit rows", remove, newest.Seq, k.id, checkpoint)
		if err != nil {
			return err
		}
		after := map[string]any{"removed": removed, "head": hex.EncodeToString(newest.MAC)}
		return audit(ctx, tx, operatorActor(), "audit.prune", "audit:"+number, nil, after)
	})
	return removed, err
}
