package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
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
	lockMigrate  = 0x6361_6972_6e01 // applying migrations
	lockAccess   = 0x6361_6972_6e02 // writes to users, roles, grants, status and password tokens
	lockMessages = 0x6361_6972_6e03 // changing a message that is there
	lockSweep    = 0x6361_6972_6e04 // deleting expired rows
	lockKeys     = 0x6361_6972_6e05 // comparing keys with those of other instances
	lockSeal     = 0x6361_6972_6e06 // sealing the audit log
)

// lockAnalyses plus its id is the lock of one analysis.
const lockAnalyses = 0x6361_6972_0000_0000

// The channels of notifications.
const (
	workChannel       = "cairn_work"       // analysis work may have appeared
	principalsChannel = "cairn_principals" // what a principal may do or shows has changed: see schema.sql
)

// querier is what a pool and a transaction have in common. Query functions take one; handlers decide
// whether it is a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// execute runs a statement and returns how many rows it touched. doing says what for, in an error.
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

// collectOne returns the only row of a query; without one, missing.
func collectOne[T any](ctx context.Context, q querier, missing error, doing, query string, args ...any) (item T, err error) {
	items, err := collect[T](ctx, q, doing, query, args...)
	if err == nil && len(items) == 0 {
		err = missing
	}
	if err != nil {
		return item, err
	}
	return items[0], nil
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

// openPool connects with the settings every connection of Cairn has: times come back in UTC, and no
// wait is without a limit. It fails where no connection can be made.
func openPool(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	if !strings.Contains(config.ConnString(), "pool_max_conns") {
		config.MaxConns = 16
	}
	config.ConnConfig.ConnectTimeout = 2 * time.Second // for each host
	config.PingTimeout = time.Second                   // of a connection that has lain idle
	for name, value := range map[string]string{
		"application_name":                    "cairn",
		"timezone":                            "UTC",            // of the times in an audit row as it is sealed
		"default_transaction_isolation":       "read committed", // what every lock here counts on
		"statement_timeout":                   "60s",
		"lock_timeout":                        "5s",
		"idle_in_transaction_session_timeout": "15s", // of an instance that froze
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
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

// parseMigrations splits schema.sql before its "-- migration N: title" lines, which count up from 1.
func parseMigrations(schema string) ([]string, error) {
	const heading = "\n-- migration "
	steps := strings.Split(schema, heading)[1:]
	for i, step := range steps {
		if !strings.HasPrefix(step, fmt.Sprintf("%d: ", i+1)) {
			return nil, fmt.Errorf("schema.sql: migration %.20q is out of order", step)
		}
		steps[i] = heading + step
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
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0`); err != nil {
			return fmt.Errorf("lift the time limits: %w", err)
		}
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
		for ; current < len(steps); current++ {
			if _, err := tx.Exec(ctx, steps[current]); err != nil {
				return fmt.Errorf("migration %d: %w", current+1, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES ($1)`, current+1); err != nil {
				return fmt.Errorf("record migration %d: %w", current+1, err)
			}
			log.Info("applied migration", "version", current+1)
		}
		return nil
	})
}

// advisoryLock waits for one of the locks above and holds it to the end of the transaction.
func advisoryLock(ctx context.Context, tx pgx.Tx, key int64) error {
	_, err := execute(ctx, tx, fmt.Sprintf("take advisory lock %x", key), `SELECT pg_advisory_xact_lock($1)`, key)
	return err
}

// How soon a database that falls silent is noticed. Every request is to have an answer within 2 s.
const (
	probePause    = 250 * time.Millisecond
	probePatience = 1250 * time.Millisecond
)

// listener receives change notifications (LISTEN) over a connection of its own, and by it finds out whether the
// database answers.
type listener struct {
	channels []string
	up       func(hangUp func())           // listening has begun: what was sent before is lost. hangUp ends it
	down     func(err error)               // the database does not answer, at least over the connection
	received func(channel, payload string) // a notification
}

// run listens until ctx ends, and connects again whenever the connection breaks.
func (l listener) run(ctx context.Context, config *pgx.ConnConfig) {
	for ctx.Err() == nil {
		if err := l.session(ctx, config); ctx.Err() == nil {
			l.down(err)
		}
		pause(ctx, probePause)
	}
}

// session listens over one connection until that breaks.
func (l listener) session(ctx context.Context, config *pgx.ConnConfig) error {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for connected := false; ; connected = true {
		probe, cancel := context.WithTimeout(ctx, probePatience)
		for _, channel := range l.channels { // anew each time: it does no harm, and asks for an answer
			if _, err = conn.Exec(probe, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
				break
			}
		}
		cancel()
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if !connected {
			l.up(hangUp)
		}
		for wait, cancel := context.WithTimeout(ctx, probePause); ; {
			n, err := conn.WaitForNotification(wait)
			if err != nil {
				cancel()
				break // it has been silent for a while, or is gone
			}
			l.received(n.Channel, n.Payload)
		}
	}
}

// pause waits for the duration or the end of ctx, whichever comes first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sweep deletes what has expired, unless another instance is doing so. Rows that anyone can cause go in batches, each
// in a transaction of its own, until none is left or ten seconds have passed. A session is kept for a day after its
// end.
func sweep(ctx context.Context, pool *pgxpool.Pool) error {
	const batch = 1000
	const expired = `
		WITH swept_sessions AS (
			DELETE FROM sessions
			WHERE id IN (
				SELECT id
				FROM sessions
				WHERE least(ended_at, idle_expires_at, expires_at) < now() - interval '1 day'
				LIMIT $1
			)
			RETURNING 1
		), swept_throttles AS (
			DELETE FROM throttles
			WHERE (account, network) IN (
				SELECT account, network
				FROM throttles
				WHERE expires_at < now()
				LIMIT $1
				FOR UPDATE SKIP LOCKED
			)
			RETURNING 1
		), swept_api_tokens AS (
			DELETE FROM api_tokens
			WHERE expires_at < now() - interval '30 days'
		), swept_password_tokens AS (
			DELETE FROM password_tokens
			WHERE expires_at < now()
		), swept_instances AS (
			DELETE FROM instances
			WHERE seen_at < now() - interval '100 days'
		)
		SELECT greatest((SELECT count(*) FROM swept_sessions), (SELECT count(*) FROM swept_throttles))`
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for swept := batch; swept == batch; {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var ours bool
			err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, lockSweep).Scan(&ours)
			if swept = 0; err == nil && ours {
				err = tx.QueryRow(ctx, expired, batch).Scan(&swept)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// isUniqueViolation says whether err is the violation (SQLSTATE 23505) of that very constraint.
func isUniqueViolation(err error, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && e.ConstraintName == constraint
}

// isUnavailable says whether err means that the database could not be reached, is shutting down, does
// not take writes, is short of resources or had us wait too long (SQLSTATE classes 08, 53, 57P, and
// 25006, 25P03, 55P03, 57014), so that the same request may succeed later.
func isUnavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains([]string{"25006", "25P03", "55P03", "57014"}, e.Code) ||
			strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "53") || strings.HasPrefix(e.Code, "57P")
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
