package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
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
	if c.isOperator {
		return operatorActor()
	}

	by := actor{requestID: c.requestID}
	if c.address.IsValid() { // a Unix socket has none
		by.address = c.address.String()
	}

	if p := c.principal; p != nil {
		by.id = &p.user.ID
		by.name = p.user.Username
		by.credential = p.kind + ":" + p.credentialID
		by.permissions = p.permissions
	}
	return by
}

// is reports whether the actor is the user.
func (by actor) is(u user) bool { return by.id != nil && *by.id == u.ID }

// operatorActor returns the actor of the commands: the operator, who holds every permission.
func operatorActor() actor {
	return actor{
		name:       "operator",
		credential: "command line",
		mayAll:     true,
	}
}

// serviceActor returns the service itself as an actor, which holds every permission.
func serviceActor() actor { return actor{name: "cairn", mayAll: true} }

// actorValues is SQL for the first five values of a row of the audit log. named gives them.
const actorValues = `@actor_id, @actor, @credential, @address, @request_id`

// named returns the arguments for actorValues.
func (by actor) named() pgx.NamedArgs {
	return pgx.NamedArgs{
		"actor_id":   by.id,
		"actor":      by.name,
		"credential": by.credential,
		"address":    by.address,
		"request_id": by.requestID,
	}
}

// insertAudit begins a statement that adds rows to the audit log.
const insertAudit = `
		INSERT INTO audit_log (
			actor_id,
			actor,
			credential,
			address,
			request_id,
			action,
			target,
			before,
			after
		)`

// audit adds a row to the audit log, in the transaction of the change that it records. A refusal
// has no change and needs no transaction. target names the object, as in "user:NAME", or the
// refused route. before and after are values for JSON, or nil. None of them may hold a secret, or a
// login name that no account has: it may be a password typed into the wrong field.
func audit(ctx context.Context, q querier, by actor, action, target string, before, after any) error {
	const query = insertAudit + `
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	_, err := execute(ctx, q, "audit "+action, query,
		by.id, by.name, by.credential, by.address, by.requestID, action, target, before, after)
	return err
}

// auditKeys adds a row if the keys have changed since the last such row. Without such a row it
// compares them with the keys of the instance that was seen last. In a new database it adds no row.
// So each change of the key file leaves one row, however many instances load it. It leaves one even
// if noteInstance refuses the keys afterwards.
func auditKeys(ctx context.Context, db *pgxpool.Pool, ring *keyring) error {
	const query = insertAudit + `
		SELECT
			NULL,
			$1,
			'',
			'',
			'',
			'audit.keys_changed',
			'keys',
			former.fingerprints,
			$2::jsonb
		FROM (
			SELECT coalesce(
				(
					SELECT after
					FROM audit_log
					WHERE target = 'keys'
						AND action = 'audit.keys_changed'
					ORDER BY id DESC
					LIMIT 1
				),
				(
					SELECT to_jsonb(fingerprints)
					FROM instances
					ORDER BY seen_at DESC
					LIMIT 1
				)
			) AS fingerprints
		) AS former
		WHERE former.fingerprints <> $2 -- in a new database it is null, so there is no row`

	return underLock(ctx, db, lockKeys, func(tx pgx.Tx) error {
		_, err := execute(ctx, tx, "audit keys", query, serviceActor().name, ring.fingerprints())
		return err
	})
}

// pruneAudit deletes the rows before a time, with their seals, and returns how many rows it
// deleted. The newest of these seals stays as a checkpoint, where later checks of the log begin.
//
// It checks the seals first (see audit_seals.go), because nobody can do so after they are deleted.
// A break is a seal or a row that was changed or is missing. Breaks that the log tells of already
// do not stop pruneAudit. For new ones it adds and commits a row to the log, deletes nothing, and
// returns the findings.
func pruneAudit(
	ctx context.Context,
	db *pgxpool.Pool,
	ring *keyring,
	before time.Time,
) (removed int64, found []string, err error) {
	// countOld counts the seals before the first seal of a young row. Seals are not in the order of
	// time, so an old row stays if it was sealed after a young one. The count includes the
	// checkpoint that an earlier pruning has left. If there is only this one, the result is 0.
	const countOld = `
		SELECT CASE WHEN bool_or(checkpoint IS NULL) THEN count(*) ELSE 0 END
		FROM audit_seals
		WHERE seq < coalesce(
			(
				SELECT min(s.seq)
				FROM audit_seals s
				JOIN audit_log l ON l.id = s.audit_id
				WHERE l.at >= $1
			),
			9223372036854775807 -- all are old
		)`
	// The last part still finds the deleted seals: all parts see the rows as they were before.
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

	err = underLock(ctx, db, lockSeal, func(tx pgx.Tx) error {
		// The triggers let only retention delete rows of the audit log.
		_, err := tx.Exec(ctx, `SET LOCAL cairn.retention = 'on'; SET LOCAL statement_timeout = 0`)
		if err != nil {
			return err
		}

		old, err := scalar[int](ctx, tx, "count old seals", countOld, before)
		if err != nil || old == 0 {
			return err
		}

		// Read the old seals from the first one on, and check each. c.newest is the last of them.
		c, err := readChain(ctx, tx, ring, seal{seq: beforeAll}, old)
		if err != nil {
			return err
		}
		found, err = recordBreaks(ctx, tx, ring, c.findings)
		if err != nil || len(found) > 0 {
			return err // nil commits the row about the breaks
		}

		signer := ring.signer()
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
