package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// certificate is the service's certificate and key, from two files that are checked for each new
// connection. So a renewal takes effect with the next connection, and open ones stay.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	seen   string // time, size and inode of the files when the pair was read
	pair   *tls.Certificate
	failed string // the last error, which has been logged
}

// loadCertificate reads the files for the first time. It is an error if they are not a valid pair.
func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.refresh(); err != nil {
		return nil, fmt.Errorf("CAIRN_TLS_CERT and CAIRN_TLS_KEY: %w", err)
	}
	return c, nil
}

// current is for tls.Config.GetCertificate. If the new files are not a valid pair, as between the
// writing of one and the other, it returns the old pair.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := ""
	if err := c.refresh(); err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != c.failed { // once, not for each connection
		c.log.Error("new certificate rejected", "error", failed)
	}
	c.failed = failed
	return c.pair, nil
}

// refresh reads the files if they changed since they were last read without an error. After an
// error it reads them each time: the cause may lie elsewhere, as in the mode of a directory.
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

// scheme returns the scheme of the service's URLs.
func (s *server) scheme() string {
	if s.certificate != nil {
		return "https"
	}
	return "http"
}
