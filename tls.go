package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// certificate is the service's certificate and key. Both files are read for each new connection, so
// that it uses a renewed certificate. Open connections keep theirs.
type certificate struct {
	cfg config
	log *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate // the last valid one
	failed string           // the last error, which has been logged
}

// loadCertificate reads the files for the first time. It returns an error if they are not a valid
// pair, or if the key file does not pass checkSecretFile.
func loadCertificate(cfg config, log *slog.Logger) (*certificate, error) {
	c := &certificate{cfg: cfg, log: log}
	pair, err := c.read()
	if err != nil {
		return nil, fmt.Errorf("CAIRN_TLS_CERT and CAIRN_TLS_KEY: %w", err)
	}
	c.pair = &pair
	return c, nil
}

// read reads both files as they are now.
func (c *certificate) read() (tls.Certificate, error) {
	info, err := os.Stat(c.cfg.tlsKey)
	if err == nil {
		err = checkSecretFile(c.cfg.tlsKey, info, c.cfg.credentialsDir)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.LoadX509KeyPair(c.cfg.tlsCert, c.cfg.tlsKey)
}

// current is for tls.Config.GetCertificate. If the files are not a valid pair, as when only one of
// them has been replaced, it returns the last valid one.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := c.read()

	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.pair = &pair
		c.failed = ""
		return c.pair, nil
	}

	// An error is logged once, not for each connection.
	if err.Error() != c.failed {
		c.log.Error("new certificate rejected", "error", err)
		c.failed = err.Error()
	}
	return c.pair, nil
}
