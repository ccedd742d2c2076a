package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeCertificate writes a certificate that signs itself, with this serial number, and its key. It is for cairn.test
// and for the addresses.
func writeCertificate(t *testing.T, dir string, serial int64, addresses ...net.IP) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"cairn.test"}, IPAddresses: addresses}
	der, err1 := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	keyDER, err2 := x509.MarshalPKCS8PrivateKey(key)
	certificate, err3 := x509.ParseCertificate(der)
	err4 := os.WriteFile(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
	err5 := os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	return certificate
}

// TestTLS: HTTP/2, the headers for browsers, and a certificate that is replaced while the service runs. Open
// connections stay, and a pair that is not valid changes nothing.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pool := x509.NewCertPool()
	pool.AddCert(writeCertificate(t, dir, 1))
	ts := startServer(t, nil, "CAIRN_TLS_CERT="+dir+"/cert.pem", "CAIRN_TLS_KEY="+dir+"/key.pem")
	if !strings.HasPrefix(ts.url, "https://") {
		t.Fatalf("the service is at %s", ts.url)
	}
	browser := func(protocols ...string) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "cairn.test"}, ForceAttemptHTTP2: len(protocols) == 0}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	get := func(c *http.Client) (serial int64, response *http.Response) {
		t.Helper()
		response, err := c.Get(ts.url + "/api/v1/ping")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body)
		return response.TLS.PeerCertificates[0].SerialNumber.Int64(), response
	}
	address, err := net.ResolveTCPAddr("tcp", strings.TrimPrefix(ts.url, "https://"))
	if err == nil {
		err = ts.operations.probe(t.Context(), address, time.Minute)
	}
	if err != nil {
		t.Errorf("the watchdog gets %v", err)
	}
	ts.limits.bodies.add("", maxBodies) // a request without a body needs no room for one
	first, old := browser(), browser("http/1.1")
	serial, response := get(first)
	if serial != 1 || response.ProtoMajor != 2 || response.StatusCode != 200 {
		t.Errorf("serial %d by %s", serial, response.Proto)
	}
	for name, want := range map[string]string{
		"Strict-Transport-Security": "max-age=31536000",
		"Content-Security-Policy":   "default-src 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":    "nosniff",
		"Referrer-Policy":           "no-referrer",
	} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if serial, response := get(old); serial != 1 || response.ProtoMajor != 1 {
		t.Errorf("serial %d by %s", serial, response.Proto)
	}

	if err := os.WriteFile(dir+"/cert.pem", []byte("no certificate"), 0o644); err != nil {
		t.Fatal(err)
	}
	if serial, _ := get(browser()); serial != 1 {
		t.Errorf("with a bad file: serial %d", serial)
	}
	waitFor(t, "the log to say so", func() bool { return strings.Contains(ts.log.String(), "new certificate rejected") })

	pool.AddCert(writeCertificate(t, dir, 2))
	if serial, _ := get(browser()); serial != 2 {
		t.Errorf("a new connection gets serial %d", serial)
	}
	for _, c := range []*http.Client{first, old} {
		if serial, _ := get(c); serial != 1 {
			t.Error("an open connection was dropped")
		}
	}
	ts.stop() // with open connections of both protocols
}

// TestBadCertificate: a pair that is not valid stops the start with a message.
func TestBadCertificate(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	writeCertificate(t, dir, 1)
	writeCertificate(t, other, 2)
	base := []string{"CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR=" + t.TempDir(), "CAIRN_DATASETS_DIR=" + t.TempDir(), "CAIRN_DATABASE_URL=" + newDatabase(t)}
	for _, c := range []struct{ cert, key, says string }{
		{dir + "/cert.pem", other + "/key.pem", "private key does not match public key"},
		{dir + "/none.pem", dir + "/key.pem", "no such file"},
		{dir + "/cert.pem", "", "must be set together"},
	} {
		env := append(base, "CAIRN_TLS_CERT="+c.cert, "CAIRN_TLS_KEY="+c.key)
		err := run(context.Background(), []string{"serve"}, env, nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "CAIRN_TLS_CERT") {
			t.Errorf("%s, %s: %v", c.cert, c.key, err)
		}
	}
}

// TestWarnOfStrangers: plain HTTP on an address that other machines reach is logged as a warning.
func TestWarnOfStrangers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listen string
		warns  bool
	}{{"0.0.0.0:0", true}, {"127.0.0.1:0", false}} {
		ts := startServer(t, nil, "CAIRN_LISTEN="+c.listen, "CAIRN_REGISTRATION=closed")
		if warns := strings.Contains(ts.log.String(), "plain HTTP on a non-loopback"); warns != c.warns {
			t.Errorf("%s: %s", c.listen, ts.log.String())
		}
	}
}

// TestStreamsOfAConnection: the server's first frame of HTTP/2 allows a client 32 requests at once (RFC 9113, 6.5).
func TestStreamsOfAConnection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeCertificate(t, dir, 1)
	ts := startServer(t, nil, "CAIRN_TLS_CERT="+dir+"/cert.pem", "CAIRN_TLS_KEY="+dir+"/key.pem")
	conn, err := tls.Dial("tcp", strings.TrimPrefix(ts.url, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and empty SETTINGS
	header := make([]byte, 9)
	if _, err := io.ReadFull(conn, header); err != nil || header[3] != 4 {
		t.Fatalf("%v, %x is no SETTINGS", err, header)
	}
	payload := make([]byte, int(header[1])<<8|int(header[2]))
	if _, err := io.ReadFull(conn, payload); err != nil || !bytes.Contains(payload, []byte{0, 3, 0, 0, 0, 32}) { // SETTINGS_MAX_CONCURRENT_STREAMS
		t.Errorf("%v, %x", err, payload)
	}
}

// TestCertificateReadLater: a pair that could not be read is used once it can be read, although its files look the same.
// The log says once what was wrong.
func TestCertificateReadLater(t *testing.T) {
	t.Parallel()
	dir, next := filepath.Join(t.TempDir(), "dir"), t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, dir, 1)
	var log lockedBuffer
	files := config{tlsCert: dir + "/cert.pem", tlsKey: dir + "/key.pem"}
	for _, mode := range []os.FileMode{0o604, 0o640, 0o660} {
		if err := os.Chmod(files.tlsKey, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := loadCertificate(files, slog.Default()); err == nil || !strings.Contains(err.Error(), "only its owner can read") {
			t.Errorf("a key of mode %v: %v", mode, err)
		}
	}
	if err := os.Chmod(files.tlsKey, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadCertificate(files, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, next, 2)
	serial := func() int64 {
		pair, _ := c.current(nil)
		return pair.Leaf.SerialNumber.Int64()
	}
	good, err := os.ReadFile(next + "/key.pem")
	if err != nil {
		t.Fatal(err)
	}
	when := time.Now()
	write := func(key []byte) {
		t.Helper()
		cert, err := os.ReadFile(next + "/cert.pem")
		if err := errors.Join(err, os.WriteFile(dir+"/cert.pem", cert, 0o644), os.WriteFile(dir+"/key.pem", key, 0o600),
			os.Chtimes(dir+"/cert.pem", when, when), os.Chtimes(dir+"/key.pem", when, when)); err != nil {
			t.Fatal(err)
		}
	}
	write(bytes.Repeat([]byte("-"), len(good)))
	for range 3 {
		if n := serial(); n != 1 {
			t.Errorf("serial %d", n)
		}
	}
	if n := strings.Count(log.String(), "new certificate rejected"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	write(good) // the same size, time and inode
	if n := serial(); n != 2 {
		t.Errorf("serial %d, %s", n, log.String())
	}
}

// TestHTTP2Windows: a connection of HTTP/2 may send 64 KiB, and each of its streams too, before a handler reads. The
// server says so in its first frames (RFC 9113, sections 6.5.2 and 6.9).
func TestHTTP2Windows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pool := x509.NewCertPool()
	pool.AddCert(writeCertificate(t, dir, 1))
	ts := startServer(t, nil, "CAIRN_TLS_CERT="+dir+"/cert.pem", "CAIRN_TLS_KEY="+dir+"/key.pem")
	conn, err := tls.Dial("tcp", strings.TrimPrefix(ts.url, "https://"),
		&tls.Config{RootCAs: pool, ServerName: "cairn.test", NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const emptySettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+emptySettings); err != nil {
		t.Fatal(err)
	}

	const (
		frameSettings     = 4
		frameWindowUpdate = 8
		initialWindowSize = 4
	)
	connection, stream := uint32(65_535), uint32(65_535) // where the server says nothing
	header := make([]byte, 9)
	for isAcknowledged := false; !isAcknowledged; {
		if _, err := io.ReadFull(conn, header); err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, int(header[0])<<16|int(header[1])<<8|int(header[2]))
		if _, err := io.ReadFull(conn, payload); err != nil {
			t.Fatal(err)
		}
		switch header[3] {
		case frameSettings:
			isAcknowledged = header[4] == 1 // the frames before it are the server's first
			for ; len(payload) >= 6; payload = payload[6:] {
				if binary.BigEndian.Uint16(payload) == initialWindowSize {
					stream = binary.BigEndian.Uint32(payload[2:])
				}
			}
		case frameWindowUpdate:
			connection += binary.BigEndian.Uint32(payload)
		}
	}
	if connection > 64<<10 {
		t.Errorf("a connection may send %d bytes, want at most %d", connection, 64<<10)
	}
	if stream > 64<<10 {
		t.Errorf("a stream may send %d bytes, want at most %d", stream, 64<<10)
	}
}
