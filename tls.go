package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
)

// certificate is the service's certificate and key. Each new connection reads both files, so that
// it uses a renewed certificate. Open connections stay.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate // the last valid one
	failed string           // the last error, which has been logged
}

// loadCertificate reads the files for the first time. It is an error if they are not a valid pair.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("CAIRN_TLS_CERT and CAIRN_TLS_KEY: %w", err)
	}
	return &certificate{certFile: certFile, keyFile: keyFile, log: log, pair: &pair}, nil
}

// current is for tls.Config.GetCertificate. If the files are not a valid pair, as when only one of
// them has been replaced, it returns the last valid one.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.pair, c.failed = &pair, ""
	case err.Error() != c.failed: // once, not for each connection
		c.log.Error("new certificate rejected", "error", err)
		c.failed = err.Error()
	}
	return c.pair, nil
}

// scheme returns the scheme of the service's URLs.
func (s *server) scheme() string {
	if s.certificate != nil {
		return "https"
	}
	return "http"
}
