package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// withKeys returns a command that runs do with the keys of the key file.
func withKeys(do func(context.Context, invocation, *keyring) error) action {
	return func(ctx context.Context, o invocation) error {
		ring, err := loadKeys(o.cfg.keysPath(), o.cfg.credentialsDir, false)
		if err != nil {
			return err
		}
		return do(ctx, o, ring)
	}
}

// errBreaks is returned for an audit log with a break that is new. It means exit status 3.
var errBreaks = errors.New("the audit log has a new break")

// verifyAuditCommand is "cairn audit verify". It compares the audit log with its seals. It adds a
// row for each break that the log does not tell of yet, and fails if it added one. With --head, it
// also fails if the log tells of a break after that seal, or does not hold the seal.
func verifyAuditCommand(ctx context.Context, o invocation, ring *keyring) error {
	const holds = `SELECT EXISTS (SELECT FROM audit_seals WHERE seq = $1 AND mac = $2)`

	head, err := parseHead(o.option("head", "0:00"))
	if err != nil {
		return fmt.Errorf("--head: %w; %w", err, errUsage)
	}

	c, err := inSnapshot(ctx, o.db, func(ctx context.Context, q querier) (chain, error) {
		return readChain(ctx, q, ring, seal{seq: allSeals}, math.MaxInt64)
	})
	if err != nil {
		return err
	}

	// The instances seal rows meanwhile, so the findings are recorded under the lock.
	var added []string
	err = inTransaction(ctx, o.db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockSeal); err != nil {
			return err
		}

		unsealed, err := queueUnsealed(ctx, tx)
		if err != nil {
			return err
		}
		added, err = recordBreaks(ctx, tx, ring, append(c.findings, unsealed...))
		return err
	})
	if err != nil {
		return err
	}

	breaks, err := listBreaks(ctx, o.db, ring)
	if err != nil {
		return err
	}
	hasHead, err := scalar[bool](ctx, o.db, "look for the head", holds,
		head.seq, head.mac)
	if err != nil {
		return err
	}

	waiting, err := scalar[int64](ctx, o.db, "count unsealed rows",
		`SELECT count(*) FROM audit_unsealed`)
	if err != nil {
		return err
	}

	isNew := len(added) > 0
	for _, b := range breaks {
		at := b.At.UTC().Format(time.RFC3339)
		for _, finding := range b.note.Findings {
			fmt.Fprintf(o.stdout, "%s: %s\n", at, finding)
		}
		isAfterHead := b.Seq == nil || *b.Seq > head.seq
		if head.seq > 0 && isAfterHead {
			isNew = true
		}
	}
	err = o.print(nil, nil, "head %s, rows that wait for their seal: %d",
		c.newest.head(), waiting)

	if head.seq > 0 && !hasHead {
		return fmt.Errorf("%w: it does not hold the seal %s: it was cut off or rewritten, "+
			"or the seal is older than the last prune",
			errBreaks, head.head())
	}
	if isNew {
		return errBreaks
	}
	return err
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

// pruneAuditCommand is "cairn audit prune".
func pruneAuditCommand(ctx context.Context, o invocation, ring *keyring) error {
	date, err := time.Parse(time.DateOnly, o.options.Get("before"))
	if err != nil {
		return fmt.Errorf("--before takes a date like 2026-01-31: %w", errUsage)
	}

	removed, err := pruneAudit(ctx, o.db, ring.keys[0], date)
	return o.print(err, nil, "removed %s from the audit log", plural(removed, "row"))
}

// pruneAudit deletes the rows before a time, with their seals. The newest of these seals stays as a
// checkpoint, where the check of the log begins. It returns how many rows it deleted.
func pruneAudit(
	ctx context.Context,
	db *pgxpool.Pool,
	k key,
	before time.Time,
) (removed int64, err error) {
	const choose = `
		SELECT
			seq,
			mac
		FROM audit_seals
		WHERE seq < coalesce(
			(SELECT min(s.seq)
			FROM audit_seals s
			JOIN audit_log l ON l.id = s.audit_id
			WHERE l.at >= $1),
			9223372036854775807)
		ORDER BY seq DESC
		LIMIT 1`
	const remove = `
		WITH seals AS (
			DELETE FROM audit_seals
			WHERE seq < $1
		),
		marked AS (
			UPDATE audit_seals
			SET kid = $2,
				checkpoint = $3
			WHERE seq = $1
		)
		DELETE FROM audit_log l
		USING audit_seals s
		WHERE s.audit_id = l.id AND s.seq <= $1`

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

		// The triggers let only retention delete rows of the audit log.
		_, err = tx.Exec(ctx, `SET LOCAL cairn.retention = 'on'; SET LOCAL statement_timeout = 0`)
		if err != nil {
			return err
		}
		checkpoint := k.checkpointMAC(newest.Seq, newest.MAC)
		removed, err = execute(ctx, tx, "remove audit rows", remove,
			newest.Seq, k.id, checkpoint)
		if err != nil {
			return err
		}

		after := map[string]any{
			"removed": removed,
			"head":    hex.EncodeToString(newest.MAC),
		}
		target := fmt.Sprint("audit:", newest.Seq)
		return audit(ctx, tx, operatorActor(), "audit.prune", target, nil, after)
	})
	return removed, err
}
