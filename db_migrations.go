package main

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schemaSQL is schema.sql: the tables of accounts, as numbered migrations.
//
//go:embed schema.sql
var schemaSQL string

// catalogueSQL is schema_catalogue.sql: the other tables, as parts of the same migrations.
//
//go:embed schema_catalogue.sql
var catalogueSQL string

// migrations returns the numbered migrations, the first at index 0. Each is its part of schema.sql
// and, after that, its part of schema_catalogue.sql. Both parts begin with "-- migration N: title".
func migrations() []string {
	const heading = "\n-- migration "
	steps := strings.Split(schemaSQL, heading)[1:]
	for i, rest := range strings.Split(catalogueSQL, heading)[1:] {
		steps[i] = heading + steps[i] + heading + rest
	}
	return steps
}

// migrate brings the database to the schema of this program: all missing migrations in one
// transaction, one instance at a time. A schema newer than the program is an error.
func migrate(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	const createTable = `
		CREATE TABLE IF NOT EXISTS schema_migrations (
			version    integer     PRIMARY KEY,
			applied_at timestamptz NOT NULL DEFAULT now()
		)`
	const newest = `
		SELECT coalesce(max(version), 0)
		FROM schema_migrations`

	steps := migrations()
	return inTransaction(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0`)
		if err != nil {
			return fmt.Errorf("lift the time limits: %w", err)
		}
		err = advisoryLock(ctx, tx, lockMigrate)
		if err != nil {
			return err
		}

		_, err = execute(ctx, tx, "create schema_migrations", createTable)
		if err != nil {
			return err
		}

		current, err := scalar[int](ctx, tx, "read the schema's version", newest)
		if err != nil {
			return err
		}
		if current > len(steps) {
			return fmt.Errorf(
				"the database has schema version %d, newer than this program's %d: run the newer cairn",
				current, len(steps),
			)
		}

		for version := current + 1; version <= len(steps); version++ {
			_, err := tx.Exec(ctx, steps[version-1])
			if err == nil {
				_, err = tx.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES ($1)`, version)
			}
			if err != nil {
				return fmt.Errorf("migration %d: %w", version, err)
			}
			log.Info("migration applied", "version", version)
		}
		return nil
	})
}
