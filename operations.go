package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"time"
)

// operations is the component that keeps the service running: its lease, its keys, the seals of the
// audit log, metrics, and what systemd asks for.
type operations struct {
	core        *core
	accounts    *accounts
	analyzer    *analyzer
	instance    string        // a random name, to tell instances that share a database apart
	life        time.Duration // how long the instance's lease lasts after a heartbeat
	health      *healthCheck
	hangups     <-chan os.Signal // SIGHUP: reload the key file
	certificate *certificate     // nil: plain HTTP

	counts []*routeCounts // by row of the route table, from 1; 0 is for requests that match no route
	sealer sealer
}

// newOperations returns the operations of an instance. certificate may be nil.
func newOperations(core *core, accounts *accounts, analyzer *analyzer, instance string, certificate *certificate,
	hangups <-chan os.Signal) *operations {
	return &operations{
		core:        core,
		accounts:    accounts,
		analyzer:    analyzer,
		instance:    instance,
		life:        10 * time.Second,
		health:      &healthCheck{limit: newLimiter(1, unbounded)},
		hangups:     hangups,
		certificate: certificate,
		sealer:      sealer{open: map[string]string{}},
	}
}

// healthCheck is the latest probe of the database for GET /health.
type healthCheck struct {
	limit *limiter // its one place guards the fields below
	began time.Time
	err   error
}

// getHealth answers GET /health: 200 if the database answers, else 503. One request at a time asks
// the database, so that a flood of requests leaves connections for probes and heartbeats. A request
// shares the result of a probe that began after it arrived, unless the probe ran out of time.
func (o *operations) getHealth(w http.ResponseWriter, r *http.Request) error {
	arrived, h := time.Now(), o.health
	leave, err := h.limit.acquire(r.Context(), "")
	if err != nil {
		return err
	}
	defer leave()
	if h.began.Before(arrived) || errors.Is(h.err, context.DeadlineExceeded) {
		h.began, h.err = time.Now(), o.core.database.probe(r.Context())
	}
	if h.err != nil {
		return databaseUnavailable(h.err)
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// warnOfExposure logs settings that are risky on an address that other machines can reach.
func (o *operations) warnOfExposure(address net.Addr) {
	if tcp, ok := address.(*net.TCPAddr); !ok || tcp.IP.IsLoopback() {
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

// sendHeartbeats renews this instance's lease until ctx ends. On SIGHUP it reloads the key file.
func (o *operations) sendHeartbeats(ctx context.Context) {
	for tick := time.Tick(o.life / 3); ; {
		select {
		case <-ctx.Done():
			return
		case <-o.hangups:
			reload, cancel := context.WithTimeout(ctx, 2*time.Second)
			if err := o.reloadKeys(reload); err != nil {
				o.core.log.Error("key file not reloaded", "error", err)
			}
			cancel()
		case <-tick:
			o.runBounded(ctx, "heartbeat failed", 2*time.Second, func(ctx context.Context) error {
				return noteInstance(ctx, o.core.database.own, o.instance, o.core.keys.Load(), o.life)
			})
		}
	}
}

// runMaintenance seals the audit log each second and sweeps each minute, until ctx ends.
func (o *operations) runMaintenance(ctx context.Context) {
	sealTick, sweepTick := time.Tick(time.Second), time.Tick(time.Minute)
	seal := unlessRepeated(o.sealAudit)
	for {
		select {
		case <-ctx.Done():
			return
		case <-sealTick:
			o.runBounded(ctx, "audit log not sealed", time.Minute, seal)
		case <-sweepTick:
			o.runBounded(ctx, "sweep failed", time.Minute, func(ctx context.Context) error {
				return errors.Join(sweep(ctx, o.core.db), o.accounts.flushTallies(ctx))
			})
		}
	}
}

// runBounded runs work with a time limit. It logs an error under the message failure, unless the
// database is down, which is in the log already.
func (o *operations) runBounded(ctx context.Context, failure string, limit time.Duration,
	work func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := work(ctx); err != nil && !errors.Is(ctx.Err(), context.Canceled) && !o.core.database.down.Load() {
		o.core.log.Warn(failure, "error", err)
	}
}

// unlessRepeated wraps work. If it fails with the same text twice in a row, the second error is
// nil: a state that lasts is logged once.
func unlessRepeated(work func(context.Context) error) func(context.Context) error {
	last := ""
	return func(ctx context.Context) error {
		err, before := work(ctx), last
		if last = fmt.Sprint(err); last == before {
			return nil
		}
		return err
	}
}

// sealAudit seals the new rows of the audit log, and logs the head for "cairn audit verify --head".
// It also logs when it sees a break, and when all breaks have been accepted.
func (o *operations) sealAudit(ctx context.Context) (err error) {
	wasBroken, sealed := o.sealer.broken.Load(), 0
	for n := 1; n > 0; sealed += n {
		if n, err = o.sealer.sealRows(ctx, o.core.db, o.core.keys.Load()); err != nil {
			return err
		}
	}
	switch isBroken := o.sealer.broken.Load(); {
	case isBroken && !wasBroken:
		for _, finding := range o.sealer.open {
			o.core.log.Error("audit log broken: nothing is sealed until \"cairn audit accept\"", "finding", finding)
		}
	case wasBroken && !isBroken:
		o.core.log.Info("breaks of the audit log accepted")
	}
	if sealed > 0 {
		o.core.log.Info("audit log sealed", "head", auditHead(o.sealer.last.seq, o.sealer.last.mac))
	}
	return nil
}

// reloadKeys loads the key file again. It keeps the old keys if the file is malformed, or if this
// instance and another would refuse each other's tokens.
func (o *operations) reloadKeys(ctx context.Context) error {
	keys, err := loadKeys(o.core.cfg.keysPath(), o.core.cfg.credentialsDir, false)
	if err == nil {
		err = noteInstance(ctx, o.core.database.own, o.instance, keys, o.life)
	}
	if err != nil {
		return err
	}
	before := o.core.keys.Swap(keys)
	isSame := func(a, b key) bool { return a.id == b.id && a.fingerprint == b.fingerprint }
	if !slices.EqualFunc(before.keys, keys.keys, isSame) {
		if err := audit(ctx, o.core.db, serviceActor(), "keys.change", "", before.ids(), keys.ids()); err != nil {
			o.core.log.Error("change of keys not audited", "error", err)
		}
	}
	o.core.log.Info("key file reloaded", "signer", keys.keys[0].id, "keys", len(keys.keys))
	if o.core.cfg.keysAreCredential() {
		o.core.log.Warn("key file is a copy that systemd made when the service started: " +
			"restart the service to load a later change")
	}
	return nil
}
