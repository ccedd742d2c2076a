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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
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

// Keys of the advisory transaction locks. Each serializes one kind of change in the whole database.
const (
	lockMigrate  = 0x6361_6972_6e01      // applying migrations
	lockAccess   = 0x6361_6972_6e02      // changes of users, roles, permissions and credentials (see changeAccess)
	lockMessages = 0x6361_6972_6e03      // changing an existing message
	lockKeys     = 0x6361_6972_6e05      // comparing keys with those of other instances
	lockSeal     = 0x6361_6972_6e06      // sealing the audit log
	lockAnalyses = 0x6361_6972_0000_0000 // plus the id of an analysis: changing its state
)

// querier is a pool or a transaction. Query functions take one; handlers decide which.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// execute runs a statement and returns how many rows it changed. doing begins the text of an error.
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

// collectOne returns the only row of a query. If there is none, it returns the zero value and
// missing, which may be nil.
func collectOne[T any](ctx context.Context, q querier, missing error, doing, query string,
	args ...any) (item T, err error) {
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
	err = q.QueryRow(ctx, query, args...).Scan(&value)
	if err != nil {
		return value, fmt.Errorf("%s: %w", doing, err)
	}
	return value, nil
}

// How long the database may take to accept a connection, on each host, and to answer a probe. When
// the service starts, the database may be starting too.
const (
	connectTimeout = time.Second
	startTimeout   = 5 * time.Second
	probeTimeout   = 2 * time.Second
)

// maxProbes is the number of connections for GET /health, the watch and the heartbeat: one each, so
// that none waits for another that hangs.
const maxProbes = 3

// database holds three pools of connections to PostgreSQL: for requests, for analyses, and for the
// service's own probes and heartbeats. No pool waits for another.
type database struct {
	pool     *pgxpool.Pool
	work     *pgxpool.Pool
	probes   *pgxpool.Pool
	dialedAt sync.Map // of all pools: the time.Time at which each open net.Conn was made
	down     atomic.Bool
	outages  atomic.Int64 // how often the database became unreachable
}

// trackedConn is a connection that stands in a map until it is closed.
type trackedConn struct {
	net.Conn
	open *sync.Map
}

// Close takes the connection out of the map, and closes it.
func (c *trackedConn) Close() error {
	c.open.Delete(c)
	return c.Conn.Close()
}

// openDatabase connects to the database. It fails if no connection can be made. Nothing depends on
// a session of the database, so that a pooler may hand each transaction to another one (PgBouncer
// in transaction mode): no setting but application_name is sent, and behind a pooler no statement
// has a name.
func openDatabase(ctx context.Context, config *pgxpool.Config) (*database, error) {
	d := &database{}

	if !strings.Contains(config.ConnString(), "pool_max_conns") {
		config.MaxConns = 16
	}
	config.ConnConfig.ConnectTimeout = startTimeout
	config.ConnConfig.RuntimeParams["application_name"] = "cairn"

	pooled, err := isBehindPooler(ctx, config.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}

	config.ConnConfig.ConnectTimeout = connectTimeout
	if pooled {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}

	config.ConnConfig.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
		if e.Code == "25006" { // a write was refused: this host has become a standby
			d.reset()
		}
		return e.Severity != "FATAL"
	}

	config.PingTimeout = connectTimeout
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > 250*time.Millisecond // the database may have been restarted meanwhile
	}

	// A connection has a second to be made, and one that cancels a statement has a second for that:
	// a slot of the pool is free again only after both.
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		tracked := &trackedConn{conn, &d.dialedAt}
		d.dialedAt.Store(tracked, time.Now())
		return tracked, conn.SetDeadline(time.Now().Add(connectTimeout))
	}

	utc := &pgtype.TimestamptzCodec{ScanLocation: time.UTC}
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: utc})
		return conn.PgConn().Conn().SetDeadline(time.Time{})
	}

	for pool, connections := range map[**pgxpool.Pool]int32{
		&d.pool:   config.MaxConns,
		&d.work:   max(2, config.MaxConns/2),
		&d.probes: maxProbes,
	} {
		settings := config.Copy()
		settings.MaxConns = connections
		*pool, err = pgxpool.NewWithConfig(ctx, settings)
		if err != nil { // the settings are wrong
			return nil, fmt.Errorf("open the database pool: %w", err)
		}
	}

	return d, nil
}

// close closes all connections, once those in use have been given back.
func (d *database) close() {
	for _, pool := range []*pgxpool.Pool{d.pool, d.work, d.probes} {
		pool.Close()
	}
}

// reset closes all connections: those in use once they are given back. New ones are made on demand,
// perhaps to another server.
func (d *database) reset() {
	for _, pool := range []*pgxpool.Pool{d.pool, d.work, d.probes} {
		pool.Reset()
	}
}

// isBehindPooler reports whether a pooler stands before the database. PostgreSQL tells each client
// the process id of its session; a pooler makes one up.
func isBehindPooler(ctx context.Context, config *pgx.ConnConfig) (bool, error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)

	var pid uint32
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// watch probes the database once a second, until ctx ends. If the database does not answer, watch
// drops every connection that is older than the probe: a new one may lead to another server.
func (d *database) watch(ctx context.Context, log *slog.Logger) {
	tick := time.Tick(time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}

		began := time.Now()
		probing, cancel := context.WithTimeout(ctx, probeTimeout)
		err := d.probe(probing)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !isAnswer(err) {
			d.dropBefore(began)
		}

		wasDown := d.down.Swap(err != nil)
		if err != nil && !wasDown {
			d.outages.Add(1)
			log.Warn("database unreachable", "error", err)
		}
		if err == nil && wasDown {
			log.Info("database reachable")
		}
	}
}

// isAnswer reports whether an error proves that the server answers: it is an SQL error, and does
// not say that the server is shutting down.
func isAnswer(err error) bool {
	refusal, isSQL := errors.AsType[*pgconn.PgError](err)
	return isSQL && !strings.HasPrefix(refusal.Code, "57P")
}

// dropBefore closes the connections that were made before a time, and those of the pools. A request
// that waits for an answer gets an error at once.
func (d *database) dropBefore(began time.Time) {
	for conn, dialed := range d.dialedAt.Range {
		if dialed.(time.Time).Before(began) {
			conn.(*trackedConn).Close()
		}
	}
	d.reset()
}

// probe asks the database for an answer over the service's own connection.
func (d *database) probe(ctx context.Context) error {
	_, err := d.probes.Exec(ctx, `SELECT`)
	return err
}

// answers reports whether the database answers at once: within 0.4 s, so that an answer to a
// request whose time is up is no more than 0.5 s late.
func (d *database) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
	defer cancel()
	return d.probe(ctx) == nil
}

// beginSQL begins a transaction. If this instance freezes inside it, PostgreSQL ends it after 15 s,
// which frees its locks.
const beginSQL = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '15s'`

// inTransaction runs do in a transaction. It commits if do returns nil, else it rolls back.
func inTransaction(ctx context.Context, db *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: beginSQL}, do)
}

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
	const newest = `SELECT coalesce(max(version), 0) FROM schema_migrations`
	steps := migrations()

	return inTransaction(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0`); err != nil {
			return fmt.Errorf("lift the time limits: %w", err)
		}
		if err := advisoryLock(ctx, tx, lockMigrate); err != nil {
			return err
		}
		if _, err := execute(ctx, tx, "create schema_migrations", createTable); err != nil {
			return err
		}

		current, err := scalar[int](ctx, tx, "read the schema's version", newest)
		if err != nil {
			return err
		}
		if current > len(steps) {
			return fmt.Errorf("the database has schema version %d, newer than this program's %d: run the newer cairn",
				current, len(steps))
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

// advisoryLock waits for the lock of this key. The transaction holds the lock to its end.
func advisoryLock(ctx context.Context, tx pgx.Tx, key int64) error {
	_, err := execute(ctx, tx, fmt.Sprintf("take advisory lock %x", key), `SELECT pg_advisory_xact_lock($1)`, key)
	return err
}

// pause waits for the duration or the end of ctx, whichever comes first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// sweep deletes expired rows, for at most ten seconds; any number of instances may sweep at once.
// Tables that anonymous clients can fill are swept in batches, each in a transaction of its own. A
// session is kept for a day after its end, an API token for 30 days.
func sweep(ctx context.Context, pool *pgxpool.Pool) error {
	const batch = 1000 // the LIMIT of the statements
	const sessions = `
		DELETE FROM sessions
		WHERE id IN (
			SELECT id
			FROM sessions
			WHERE least(ended_at, idle_expires_at, expires_at) < now() - interval '1 day'
			LIMIT 1000
			FOR UPDATE SKIP LOCKED
		)`
	const throttles = `
		DELETE FROM throttles
		WHERE (account, network) IN (
			SELECT account, network
			FROM throttles
			WHERE expires_at < now()
			LIMIT 1000
			FOR UPDATE SKIP LOCKED
		)`
	const others = `
		WITH tokens AS (DELETE FROM api_tokens WHERE expires_at < now() - interval '30 days'),
			passwords AS (DELETE FROM password_tokens WHERE expires_at < now()),
			unconfirmed AS (DELETE FROM totp_secrets WHERE expires_at < now()),
			networks AS (DELETE FROM known_networks WHERE expires_at < now())
		DELETE FROM instances WHERE seen_at < now() - interval '100 days'`

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, query := range []string{sessions, throttles, others} {
		for swept := int64(batch); swept >= batch; {
			var err error
			if swept, err = execute(ctx, pool, "sweep", query); err != nil {
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

// unavailableStates matches the SQLSTATEs of isUnavailable (PostgreSQL, appendix A): a read-only
// transaction, an idle one that was ended, a serialization failure, a deadlock, a lock that is not
// available, a canceled query; a connection, resources, a shutdown.
var unavailableStates = regexp.MustCompile(`^(25006|25P03|40001|40P01|55P03|57014|08|53|57P)`)

// isUnavailable reports whether the same request may succeed later: the database is out of reach,
// shuts down, takes no writes or lacks resources, or a lock or an answer took too long.
func isUnavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return unavailableStates.MatchString(e.Code)
	}

	_, isNet := errors.AsType[net.Error](err)
	return isNet || pgconn.SafeToRetry(err) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// isTooSlow reports whether the time of a request ended, or PostgreSQL cancelled its statement
// (57014).
func isTooSlow(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "57014"
}
