package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// core is what all components share: settings, database, keys, clock, log and limits. Its fields
// above the blank line are set before the service starts to serve, and not assigned after that.
type core struct {
	cfg      config
	log      *slog.Logger
	database *database
	db       *pgxpool.Pool    // the database's pool, for all requests
	now      func() time.Time // the clock
	patience time.Duration    // how long the file system may take to answer
	isHTTPS  bool             // the service has a certificate
	stopping context.Context  // ends when the service is told to stop
	origins  *http.CrossOriginProtection
	limits   *limits
	zip      func([]byte) []byte // compresses a text

	keys atomic.Pointer[keyring] // replaced after SIGHUP
}

// tuning holds the clock, and the times and sizes that no setting changes.
type tuning struct {
	now        func() time.Time  // the clock
	patience   time.Duration     // how long the file system may take to answer
	leaseTTL   time.Duration     // how long an instance's lease lasts after a heartbeat
	batchSize  int               // files that an analysis stores at a time
	listLines  int64             // lines that the lists of checksums of a dataset may have together
	heightTime time.Duration     // how long the heights of one file are read
	workers    int               // analyses that this instance owns at a time
	beforeRead func(path string) // is called before a file is read
}

// newCore returns what the components of a service share.
func newCore(cfg config, log *slog.Logger, d *database, keys *keyring, tuning tuning) *core {
	c := &core{
		cfg:      cfg,
		log:      log,
		database: d,
		db:       d.pool,
		now:      tuning.now,
		patience: tuning.patience,
		origins:  http.NewCrossOriginProtection(),
		limits:   newLimits(int(d.pool.Config().MaxConns)),
		zip:      newZip(),
	}
	c.keys.Store(keys)
	return c
}

// removeIfThere removes a file, which may be gone already.
func removeIfThere(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
