package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// operations is the component that keeps the service running: its lease, its keys, the seals of the
// audit log, metrics, and what systemd asks for.
type operations struct {
	core        *core
	accounts    *accounts
	analyzer    *analyzer
	instance    string        // a random name, to tell instances that share a database apart
	leaseTTL    time.Duration // how long the instance's lease lasts after a heartbeat
	health      *healthCheck
	hangups     <-chan os.Signal // SIGHUP: reload the key file
	certificate *certificate     // nil: plain HTTP

	counts []*routeCounts // by row of the route table, from 1; 0 is for requests that match no route
	sealer sealer
}

// newOperations returns the operations of an instance. certificate may be nil.
func newOperations(
	core *core,
	accounts *accounts,
	analyzer *analyzer,
	instance string,
	leaseTTL time.Duration,
	certificate *certificate,
	hangups <-chan os.Signal,
) *operations {
	return &operations{
		core:        core,
		accounts:    accounts,
		analyzer:    analyzer,
		instance:    instance,
		leaseTTL:    leaseTTL,
		health:      &healthCheck{limit: newLimiter(1, unbounded)},
		hangups:     hangups,
		certificate: certificate,
	}
}

// healthCheck is the latest probe of the database for GET /health.
type healthCheck struct {
	limit *limiter // its one slot guards the fields below
	began time.Time
	err   error
}

// getHealth answers GET /health: 200 if the database answers, else 503. One request at a time asks
// the database, so that a flood of requests leaves connections for probes and heartbeats. A request
// shares the result of a probe that began after it arrived, unless the probe ran out of time.
func (o *operations) getHealth(w http.ResponseWriter, r *http.Request) error {
	arrived := time.Now()
	h := o.health
	leave, err := h.limit.acquire(r.Context(), "")
	if err != nil {
		return err
	}
	defer leave()

	if h.began.Before(arrived) || errors.Is(h.err, context.DeadlineExceeded) {
		h.began = time.Now()
		h.err = o.core.database.probe(r.Context())
	}
	if h.err != nil {
		return databaseUnavailable(h.err)
	}
	return writeJSON(w, http.StatusOK, map[string]string{
		"status": "ok",
	})
}

// warnOfExposure logs settings that are risky on an address that other machines can reach.
func (o *operations) warnOfExposure(address net.Addr) {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return
	}

	log := o.core.log.With("address", address.String())
	if o.core.cfg.registration == registrationOpen {
		log.Warn("registration is open on a non-loopback address: see CAIRN_REGISTRATION")
	}
	if !o.core.isHTTPS {
		log.Warn("plain HTTP on a non-loopback address: see CAIRN_TLS_CERT and CAIRN_TLS_KEY")
	}
}

// keepLease renews this instance's lease until ctx ends. It also reloads the key file. It never
// does both at a time, so no heartbeat after a reload names the former keys.
func (o *operations) keepLease(ctx context.Context) {
	heartbeat := func(ctx context.Context) error {
		keys := o.core.keys.Load()
		return noteInstance(ctx, o.core.database.probes, o.instance, keys, o.leaseTTL)
	}

	for tick := time.Tick(o.leaseTTL / 3); ; {
		select {
		case <-ctx.Done():
			return
		case <-o.hangups:
			o.reloadOnHangup(ctx)
		case <-tick:
			o.runBounded(ctx, "heartbeat failed", 2*time.Second, heartbeat)
		}
	}
}

// runMaintenance seals the audit log each second and sweeps each minute, until ctx ends.
func (o *operations) runMaintenance(ctx context.Context) {
	sealTick := time.Tick(time.Second)
	sweepTick := time.Tick(time.Minute)
	seal := unlessRepeated(o.sealAudit)
	sweepAll := func(ctx context.Context) error {
		return errors.Join(
			sweep(ctx, o.core.db),
			o.accounts.flushTallies(ctx))
	}

	for {
		select {
		case <-ctx.Done():
			return
		case <-sealTick:
			o.runBounded(ctx, "audit log not sealed", time.Minute, seal)
		case <-sweepTick:
			o.runBounded(ctx, "sweep failed", time.Minute, sweepAll)
		}
	}
}

// runBounded runs work with a time limit. It logs an error under the message failure. It logs none
// if the database is down, because that is in the log already, or if ctx ends.
func (o *operations) runBounded(
	ctx context.Context,
	failure string,
	limit time.Duration,
	work func(context.Context) error,
) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	err := work(ctx)
	isCanceled := errors.Is(ctx.Err(), context.Canceled)
	if err != nil && !isCanceled && !o.core.database.down.Load() {
		o.core.log.Warn(failure, "error", err)
	}
}

// unlessRepeated wraps work. If it fails with the same text twice in a row, the second error is
// nil: a state that lasts is logged once.
func unlessRepeated(work func(context.Context) error) func(context.Context) error {
	last := ""
	return func(ctx context.Context) error {
		err := work(ctx)
		before := last
		last = fmt.Sprint(err)
		if last == before {
			return nil
		}
		return err
	}
}

// sealAudit seals the new rows of the audit log, and logs the breaks that it records. It logs the
// newest seal for "cairn audit verify --head", and keeps it in the state directory. An attacker who
// can write only to the database may cut off the end of the log, but the kept seal reveals it, also
// after a restart.
func (o *operations) sealAudit(ctx context.Context) error {
	z := &o.sealer
	before := z.last.seq
	if before == 0 {
		var err error
		z.last, err = o.rememberedSeal(ctx)
		if err != nil {
			return err
		}
	}

	for n := 1; n > 0; {
		var found []string
		var err error
		n, found, err = z.sealRows(ctx, o.core.db, o.core.keys.Load())
		if err != nil {
			return err
		}
		for _, finding := range found {
			o.core.log.Error("break of the audit log found", "finding", finding)
		}
	}

	if z.last.seq == before {
		return nil
	}
	o.core.log.Info("audit log sealed", "head", z.last.head())
	return replaceFile(o.sealPath(), func(f *os.File) error {
		_, err := f.WriteString(z.last.head())
		return err
	})
}

// reloadKeys loads the key file again. It keeps the old keys if the file is malformed, or if this
// instance and another would refuse each other's tokens.
func (o *operations) reloadKeys(ctx context.Context) error {
	keys, err := loadKeys(o.core.cfg.keysPath(), o.core.cfg.credentialsDir, false)
	if err == nil {
		err = auditKeys(ctx, o.core.db, keys)
	}
	if err == nil {
		err = noteInstance(ctx, o.core.database.probes, o.instance, keys, o.leaseTTL)
	}
	if err != nil {
		return err
	}

	o.core.keys.Store(keys)
	o.core.log.Info("key file reloaded",
		"signer", keys.signer().id,
		"keys", len(keys.keys))
	if o.core.cfg.keysAreCredential() {
		o.core.log.Warn("key file is a copy that systemd made when the service started: " +
			"restart the service to load a later change")
	}
	return nil
}

// sealPath returns the path of the file that keeps the newest seal.
func (o *operations) sealPath() string { return filepath.Join(o.core.cfg.stateDir, "audit-head") }

// rememberedSeal returns the newest seal that an instance with this state directory has seen. If
// there was none, it returns the newest one in the database, on trust.
func (o *operations) rememberedSeal(ctx context.Context) (seal, error) {
	const newest = `
		SELECT coalesce(
			(SELECT seq || ':' || encode(mac, 'hex')
			FROM audit_seals
			ORDER BY seq DESC
			LIMIT 1),
			'0:00')`

	content, err := os.ReadFile(o.sealPath())
	head := string(content)
	if errors.Is(err, fs.ErrNotExist) {
		head, err = scalar[string](ctx, o.core.db, "read the newest seal", newest)
	}
	if err != nil {
		return seal{}, err
	}
	return parseHead(head)
}

// reloadOnHangup reloads the key file after a SIGHUP.
func (o *operations) reloadOnHangup(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()

	err := o.reloadKeys(ctx)
	if err != nil {
		o.core.log.Error("key file not reloaded", "error", err)
	}
}

// connectionNetwork returns the network whose connections are limited together. It is the zero Addr
// for this machine and for trusted proxies, which connect for many.
func (o *operations) connectionNetwork(peer net.Addr) netip.Addr {
	address := peerAddress(peer.String())
	if address.IsLoopback() || o.core.cfg.trusts(address) {
		return netip.Addr{}
	}
	return clientNetwork(address)
}

// limitConnections bounds the connections of one network and of all networks together. Together
// they take at most nine tenths of the files that the process may open. The rest is for the
// database and the datasets.
func (o *operations) limitConnections(socket net.Listener) *boundedListener {
	// This fails only for an unknown resource: see getrlimit(2).
	var files syscall.Rlimit
	syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)

	return &boundedListener{
		Listener:    socket,
		log:         o.core.log,
		network:     o.connectionNetwork,
		mostNetwork: maxConnections,
		mostAll:     int(min(files.Cur, math.MaxInt32) / 10 * 9),
		counts:      map[netip.Addr]int{},
	}
}
