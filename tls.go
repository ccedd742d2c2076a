package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// certificate is the service's certificate and key, from two files that are looked at for each new connection:
// what whoever renews them writes counts from the next one on, and the open ones stay.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	seen   string // what the files looked like when the pair was read
	pair   *tls.Certificate
	failed string // what is wrong with the files as they are now, which the log knows
}

// loadCertificate reads the files for the first time. They have to be good.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.refresh(); err != nil {
		return nil, fmt.Errorf("CAIRN_TLS_CERT and CAIRN_TLS_KEY: %w", err)
	}
	return c, nil
}

// current is tls.Config's GetCertificate. New files that are no good, as between the writing of one and the other,
// change nothing.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := ""
	if err := c.refresh(); err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != c.failed { // once, not for each connection
		c.log.Error("the new certificate is not taken up", "error", failed)
	}
	c.failed = failed
	return c.pair, nil
}

// refresh reads the files if they look otherwise than when they were last read well: what was wrong may be mended by what
// does not show, such as a parent directory's mode.
func (c *certificate) refresh() error {
	seen := ""
	for _, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err == nil {
			seen += fmt.Sprintln(info.ModTime().UnixNano(), info.Size(), info.Sys().(*syscall.Stat_t).Ino)
		}
	}
	if seen == c.seen && c.pair != nil {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.seen, c.pair = seen, &pair
	return nil
}
