package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Keys of the advisory transaction locks. Each serializes one kind of change in the whole database.
// Number 04 was a lock of a former version.
const (
	lockMigrate  = 0x6361_6972_6e01      // applying migrations
	lockAccess   = 0x6361_6972_6e02      // changes of users, roles, permissions and credentials (see changeAccess)
	lockMessages = 0x6361_6972_6e03      // changing an existing message
	lockKeys     = 0x6361_6972_6e05      // comparing keys with those of other instances
	lockSeal     = 0x6361_6972_6e06      // sealing the audit log
	lockAnalyses = 0x6361_6972_0000_0000 // plus the id of an analysis: changing its state; far above the others
)

// querier is a pool or a transaction. Query functions take one; handlers decide which.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// execute runs a statement and returns how many rows it changed. doing says what the statement
// does: the text of an error begins with it.
func execute(ctx context.Context, q querier, doing, query string, args ...any) (int64, error) {
	tag, err := q.Exec(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return tag.RowsAffected(), nil
}

// collect returns the rows of a query as structs whose fields are named as its columns.
func collect[T any](ctx context.Context, q querier, doing, query string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, query, args...) // its error comes back from CollectRows
	items, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return items, nil
}

// collectOne returns the only row of a query. If there is none, it returns the zero value and the
// error missing. If missing is nil, callers know by the zero value that there is no row.
func collectOne[T any](
	ctx context.Context,
	q querier,
	missing error,
	doing, query string,
	args ...any,
) (item T, err error) {
	items, err := collect[T](ctx, q, doing, query, args...)
	if err != nil {
		return item, err
	}

	if len(items) == 0 {
		return item, missing
	}
	return items[0], nil
}

// scalar returns the value of a query that has one row with one column.
func scalar[T any](ctx context.Context, q querier, doing, query string, args ...any) (value T, err error) {
	row := q.QueryRow(ctx, query, args...)
	err = row.Scan(&value)
	if err != nil {
		return value, fmt.Errorf("%s: %w", doing, err)
	}
	return value, nil
}

// beginSQL begins a transaction. If this instance freezes inside it, PostgreSQL ends it after 15 s,
// which frees its locks.
const beginSQL = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '15s'`

// inTransaction runs do in a transaction. It commits if do returns nil, else it rolls back.
func inTransaction(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: beginSQL}, do)
}

// advisoryLock waits for the lock of this key. The transaction holds the lock to its end.
func advisoryLock(ctx context.Context, tx pgx.Tx, key int64) error {
	const query = `SELECT pg_advisory_xact_lock($1)`
	_, err := execute(ctx, tx, fmt.Sprintf("take advisory lock %x", key), query, key)
	return err
}

// underLock is inTransaction for a transaction that holds the lock of this key.
func underLock(ctx context.Context, db *pgxpool.Pool, key int64, do func(tx pgx.Tx) error) error {
	return inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, key); err != nil {
			return err
		}
		return do(tx)
	})
}

// pause waits for the duration or the end of ctx, whichever comes first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sweep deletes expired rows in batches, each in a transaction of its own, for at most ten seconds.
// Any number of instances may sweep at once. A session is kept for a day after its end. An expired
// API token is kept for 30 days; createAPIToken deletes it earlier. The table form_answers is in
// schema_catalogue.sql.
func sweep(ctx context.Context, pool *pgxpool.Pool) error {
	const maxBatch = 1000
	const batch = `
			LIMIT 1000
			FOR UPDATE SKIP LOCKED
		))`
	statements := []string{
		`DELETE FROM sessions
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM sessions
			WHERE -- least ignores null
				least(ended_at, idle_expires_at, expires_at) < now() - interval '1 day'` + batch,
		`DELETE FROM throttles
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM throttles
			WHERE expires_at < now()` + batch,
		`DELETE FROM api_tokens
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM api_tokens
			WHERE expires_at < now() - interval '30 days'` + batch,
		`DELETE FROM password_tokens
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM password_tokens
			WHERE expires_at < now()` + batch,
		`DELETE FROM totp_secrets -- those that were not confirmed
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM totp_secrets
			WHERE expires_at < now()` + batch,
		`DELETE FROM known_networks
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM known_networks
			WHERE expires_at < now()` + batch,
		`DELETE FROM form_answers
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM form_answers
			WHERE expires_at < now()` + batch,
		`DELETE FROM instances
		WHERE ctid = ANY (ARRAY(
			SELECT ctid
			FROM instances
			WHERE seen_at < now() - interval '100 days'` + batch,
	}

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	// A full batch may not have been the last one.
	for _, statement := range statements {
		swept := int64(maxBatch)
		for swept == maxBatch {
			var err error
			swept, err = execute(ctx, pool, "sweep", statement)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// isUniqueViolation reports whether err is a violation (SQLSTATE 23505) of that constraint.
func isUniqueViolation(err error, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && e.ConstraintName == constraint
}
