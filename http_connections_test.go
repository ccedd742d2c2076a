package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// dialFrom connects to an address from one of this machine's own, as if from another network.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// isServed reports whether a connection answers a request.
func isServed(conn net.Conn) bool {
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: cairn\r\n\r\n")
	_, err := fmt.Fscanf(conn, "HTTP/1.1 %d", new(int))
	return err == nil
}

// TestConnectionLimits: one network cannot take all connections, all together cannot take all open files, and a
// connection that is closed makes room for another.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeCertificate(t, dir, 1)

	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			socket, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}

			var log lockedBuffer
			listener := &boundedListener{
				Listener: socket,
				log:      slog.New(slog.NewTextHandler(&log, nil)),
				network: func(peer net.Addr) netip.Addr {
					address := peerAddress(peer.String())
					if address.String() == "127.0.0.1" {
						return netip.Addr{} // as a trusted proxy
					}
					return clientNetwork(address)
				},
				mostNetwork: 2,
				mostAll:     5,
				counts:      map[netip.Addr]int{},
			}

			web := &http.Server{
				ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
				ConnState: func(conn net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						listener.released(conn.RemoteAddr())
					}
				},
			}
			if scheme == "http" {
				go web.Serve(listener)
			} else {
				go web.ServeTLS(listener, dir+"/cert.pem", dir+"/key.pem")
			}
			defer web.Close()

			dial := func(from string) net.Conn {
				conn := dialFrom(t, from, socket.Addr().String())
				if scheme == "https" {
					return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				return conn
			}

			count := func() int {
				listener.mu.Lock()
				defer listener.mu.Unlock()
				return listener.all
			}

			first := dial("127.0.7.1")
			for i, step := range []struct {
				from string
				conn net.Conn
				want bool
			}{
				{"the first of a network", first, true},
				{"the second of a network", dial("127.0.7.1"), true},
				{"the third of a network", dial("127.0.7.1"), false},
				{"one of another network", dial("127.0.7.2"), true},
				{"a proxy", dial("127.0.0.1"), true},
				{"a proxy again", dial("127.0.0.1"), true},
				{"the sixth in all", dial("127.0.0.1"), false},
			} {
				if got := isServed(step.conn); got != step.want {
					t.Errorf("step %d, %s: served is %v, want %v", i, step.from, got, step.want)
				}
			}

			if !strings.Contains(log.String(), `level=WARN msg="too many connections" address=127.0.7.1`) {
				t.Errorf("the log is %q", log.String())
			}

			first.Close()
			waitFor(t, "the end of a connection", func() bool { return count() == 4 })
			if !isServed(dial("127.0.7.1")) {
				t.Error("a closed connection made no room")
			}

			web.Close()
			waitFor(t, "the end of all connections", func() bool { return count() == 0 })
			if len(listener.counts) != 0 {
				t.Errorf("networks without a connection are remembered: %v", listener.counts)
			}
		})
	}
}

// TestConnectionNetwork: connections are counted by the network that one client has. This machine and trusted proxies
// connect for many.
func TestConnectionNetwork(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	s := &operations{core: &core{cfg: config{trustedProxies: proxies}}}

	for _, c := range []struct {
		peer net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 9}, "192.0.2.7"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1:2:3:4"), Port: 9}, "2001:db8::"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 9}, "fe80::"},
		{&net.TCPAddr{IP: net.ParseIP("127.0.0.9"), Port: 9}, ""},
		{&net.TCPAddr{IP: net.ParseIP("::1"), Port: 9}, ""},
		{&net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 9}, ""},
		{&net.UnixAddr{Name: "@", Net: "unix"}, ""},
		{&net.UnixAddr{Net: "unix"}, ""},
	} {
		want, _ := netip.ParseAddr(c.want)
		if got := s.connectionNetwork(c.peer); got != want {
			t.Errorf("%v: got %v, want %v", c.peer, got, want)
		}
	}
}

// brokenListener fails to accept.
type brokenListener struct {
	net.Listener
	err error
}

// Accept implements net.Listener.
func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }

// TestAcceptErrors: a connection that cannot be accepted is a warning in the log. The end of the service is not.
func TestAcceptErrors(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		syscall.EMFILE: `level=WARN msg="connection not accepted" error="too many open files"`,
		net.ErrClosed:  "",
	} {
		var log bytes.Buffer
		listener := &boundedListener{Listener: brokenListener{err: err}, log: slog.New(slog.NewTextHandler(&log, nil))}
		if _, got := listener.Accept(); got != err {
			t.Errorf("%v: the error is %v", err, got)
		}
		if got := log.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v: the log is %q, want %q", err, got, want)
		}
	}
}

// TestConnectionsLeaveFiles: connections take at most nine tenths of the open files. The log says so, and once they are
// closed, others are served.
func TestConnectionsLeaveFiles(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	ts := startServer(t, nil)
	ts.stop()
	p := startProcess(t, ts.env, func(cmd *exec.Cmd) {
		cmd.Path = "/bin/sh"
		cmd.Args = []string{"sh", "-c", `ulimit -n 400 && exec "$0"`, self}
	})

	address := strings.TrimPrefix(p.url, "http://")
	var open []net.Conn
	for range 360 {
		open = append(open, dialFrom(t, "127.0.0.1", address))
	}
	if !isServed(open[359]) {
		t.Errorf("nine tenths of the files are too many\n%s", p.log.String())
	}
	if isServed(dialFrom(t, "127.0.0.1", address)) {
		t.Error("connections took more than nine tenths of the files")
	}

	waitFor(t, "a warning", func() bool { return strings.Contains(p.log.String(), "too many connections") })
	if log := p.log.String(); strings.Contains(log, "too many open files") {
		t.Errorf("the log is %s", log)
	}

	for _, conn := range open {
		conn.Close()
	}

	waitFor(t, "room for a connection", func() bool { return isServed(dialFrom(t, "127.0.0.1", address)) })
}
