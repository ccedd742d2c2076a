package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

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

// pruneAudit deletes the rows before a time, with their seals. The newest of these seals stays as a
// checkpoint, where the check of the log begins. pruneAudit returns how many rows it deleted. It
// checks the seals first: after the prune, nobody can. If it finds a break that no row tells of, it
// adds a row for it, deletes nothing, and returns the findings.
func pruneAudit(
	ctx context.Context,
	db *pgxpool.Pool,
	ring *keyring,
	before time.Time,
) (removed int64, found []string, err error) {
	const countOld = `
		SELECT
			count(*)
		FROM audit_seals
		WHERE seq < coalesce(
			(
				SELECT min(s.seq)
				FROM audit_seals s
				JOIN audit_log l ON l.id = s.audit_id
				WHERE l.at >= $1
			),
			9223372036854775807
		)`
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
		WHERE s.audit_id = l.id
			AND s.seq <= $1`

	err = inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockSeal); err != nil {
			return err
		}

		// The triggers let only retention delete rows of the audit log.
		_, err := tx.Exec(ctx, `SET LOCAL cairn.retention = 'on'; SET LOCAL statement_timeout = 0`)
		if err != nil {
			return err
		}

		old, err := scalar[int](ctx, tx, "count old seals", countOld, before)
		if err != nil || old == 0 {
			return err
		}

		c, err := readChain(ctx, tx, ring, seal{seq: allSeals}, old)
		if err != nil {
			return err
		}
		found, err = recordBreaks(ctx, tx, ring, c.findings)
		if err != nil || len(found) > 0 {
			return err
		}

		signer := ring.keys[0]
		checkpoint := signer.checkpointMAC(c.newest.seq, c.newest.mac)
		removed, err = execute(ctx, tx, "remove audit rows", remove, c.newest.seq, signer.id, checkpoint)
		if err != nil {
			return err
		}

		after := map[string]any{
			"removed": removed,
			"head":    hex.EncodeToString(c.newest.mac),
		}
		target := fmt.Sprint("audit:", c.newest.seq)
		return audit(ctx, tx, operatorActor(), "audit.prune", target, nil, after)
	})
	return removed, found, err
}
