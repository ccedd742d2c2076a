package main

import (
	"context"
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

// How long the database may take to accept a connection, on each host, and to answer a probe. While
// the service or a command starts, the database may be starting too.
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
	pool       *pgxpool.Pool
	work       *pgxpool.Pool
	probes     *pgxpool.Pool
	dialedAt   sync.Map    // of all pools: the time.Time at which each open net.Conn was made
	hasStarted atomic.Bool // the service has; a command never does
	down       atomic.Bool
	outages    atomic.Int64 // how often the database became unreachable
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

// openDatabase connects to the database. It fails if no connection can be made. A pooler may hand
// each transaction to another session of the database (PgBouncer in transaction mode). So nothing
// depends on a session: no setting but application_name is sent, and behind a pooler no statement
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

	// Once the service runs, a connection has a second to be made, and one that cancels a statement
	// has a second for that: a slot of the pool is free again only after both.
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		limit := startTimeout
		if d.hasStarted.Load() {
			limit = connectTimeout
		}
		dialing, cancel := context.WithTimeout(ctx, limit)
		defer cancel()

		conn, err := dial(dialing, network, address)
		if err != nil {
			return nil, err
		}
		tracked := &trackedConn{conn, &d.dialedAt}
		d.dialedAt.Store(tracked, time.Now())
		return tracked, conn.SetDeadline(time.Now().Add(limit))
	}

	utc := &pgtype.TimestamptzCodec{ScanLocation: time.UTC}
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name:  "timestamptz",
			OID:   pgtype.TimestamptzOID,
			Codec: utc,
		})
		return conn.PgConn().Conn().SetDeadline(time.Time{})
	}

	sizes := map[**pgxpool.Pool]int32{
		&d.pool:   config.MaxConns,
		&d.work:   max(2, config.MaxConns/2),
		&d.probes: maxProbes,
	}
	for pool, connections := range sizes {
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
	d.hasStarted.Store(true)
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
	if isNet || pgconn.SafeToRetry(err) {
		return true
	}
	return errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF)
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
