package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// schemaSQL is schema.sql: every table, as numbered migrations.
//
//go:embed schema.sql
var schemaSQL string

// Keys of the advisory transaction locks. Each serialises one kind of change in the whole database.
const (
	lockMigrate = 0x6361_6972_6e01 // applying migrations
	lockAccess  = 0x6361_6972_6e02 // writes to users, roles, grants, status and password tokens
	lockPublish = 0x6361_6972_6e03 // publishing a message, so that publish_at rises in commit order
)

// workChannel is notified when analysis work may have appeared.
const workChannel = "cairn_work"

// querier is what a pool and a transaction have in common. Query functions take one; handlers decide
// whether it is a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// databaseConfig parses a database URL or keyword string as pgx understands it. With several hosts
// it insists on the one that takes writes.
func databaseConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx keeps the password out of its message, but not always the rest of a malformed URL.
		return nil, errors.New("CAIRN_DATABASE_URL is no PostgreSQL connection string")
	}
	if len(config.ConnConfig.Fallbacks) > 0 && config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return config, nil
}

// openPool connects with the settings every connection of Cairn has: times come back in UTC, the
// application is named, and connecting takes at most five seconds. It fails where no connection
// can be made.
func openPool(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	config.MaxConns = max(config.MaxConns, 16)
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = "cairn"
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		types := conn.TypeMap()
		types.RegisterType(&pgtype.Type{
			Name:  "timestamptz",
			OID:   pgtype.TimestamptzOID,
			Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return pool, nil
}

// migration is one numbered step of schema.sql.
type migration struct {
	version int
	sql     string
}

// parseMigrations splits schema.sql at its "-- migration N: title" lines, which count up from 1.
func parseMigrations(schema string) ([]migration, error) {
	heading := regexp.MustCompile(`(?m)^-- migration ([0-9]+): .*$`)
	places := heading.FindAllStringSubmatchIndex(schema, -1)
	var steps []migration
	for i, place := range places {
		version, err := strconv.Atoi(schema[place[2]:place[3]])
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("schema.sql: migration %s is out of order", schema[place[2]:place[3]])
		}
		end := len(schema)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		steps = append(steps, migration{version, schema[place[0]:end]})
	}
	return steps, nil
}

// migrate brings the database to the schema of this program: all missing migrations in one
// transaction, one instance at a time. A schema newer than the program is an error.
func migrate(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	const createTable = `
		CREATE TABLE IF NOT EXISTS schema_migrations (
			version    integer     PRIMARY KEY,
			applied_at timestamptz NOT NULL DEFAULT now()
		)`
	steps, err := parseMigrations(schemaSQL)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockMigrate); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, createTable); err != nil {
			return fmt.Errorf("create schema_migrations: %w", err)
		}
		var current int
		err := tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM schema_migrations`).Scan(&current)
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
		if current > len(steps) {
			return fmt.Errorf("the database has schema version %d, newer than this program's %d: run the newer cairn", current, len(steps))
		}
		for _, step := range steps[current:] {
			if _, err := tx.Exec(ctx, step.sql); err != nil {
				return fmt.Errorf("migration %d: %w", step.version, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES ($1)`, step.version); err != nil {
				return fmt.Errorf("record migration %d: %w", step.version, err)
			}
			log.Info("applied migration", "version", step.version)
		}
		return nil
	})
}

// advisoryLock waits for one of the locks above and holds it to the end of the transaction.
func advisoryLock(ctx context.Context, tx pgx.Tx, key int64) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, key); err != nil {
		return fmt.Errorf("take advisory lock %x: %w", key, err)
	}
	return nil
}

// listen calls notify for each notification on the channel until ctx ends, and once after each
// (re)connection, since what was sent while no one listened is lost.
func listen(ctx context.Context, config *pgx.ConnConfig, log *slog.Logger, channel string, notify func()) {
	session := func() error {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		for {
			notify()
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return fmt.Errorf("wait: %w", err)
			}
		}
	}
	for ctx.Err() == nil {
		err := session()
		if ctx.Err() == nil {
			log.Warn("change notifications interrupted", "error", err)
		}
		pause(ctx, time.Second)
	}
}

// pause waits for the duration or the end of ctx, whichever comes first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// isUniqueViolation says whether err is the violation (SQLSTATE 23505) of that very constraint.
func isUniqueViolation(err error, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && e.ConstraintName == constraint
}

// isUnavailable says whether err means that the database could not be reached or is shutting down
// (SQLSTATE class 08, 57P01 to 57P03, 53300), so that the same request may succeed later.
func isUnavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "57P") || e.Code == "53300"
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
