package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// listen returns the socket that systemd passed, or else a new one on the address. While the
// service restarts, connections to systemd's socket wait.
func (s supervisor) listen(address string) (net.Listener, error) {
	const first = 3 // SD_LISTEN_FDS_START
	// Child processes must not inherit the variables.
	const names = "LISTEN_PID LISTEN_FDS LISTEN_FDNAMES NOTIFY_SOCKET WATCHDOG_PID WATCHDOG_USEC"
	for _, name := range strings.Fields(names) {
		os.Unsetenv(name)
	}
	switch s.sockets {
	case 0:
		return net.Listen("tcp", address)
	case 1:
		syscall.CloseOnExec(first)
		file := os.NewFile(first, "socket")
		defer file.Close() // the listener has a copy
		return net.FileListener(file)
	}
	return nil, fmt.Errorf("systemd passed %d sockets, but Cairn serves only one: leave one in cairn.socket", s.sockets)
}

// notify tells systemd the service's state.
func (s supervisor) notify(state string) error {
	if s.notifySocket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", s.notifySocket) // Go and systemd write "@" before an abstract name
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte(state))
	}
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// keepWatchdog notifies systemd's watchdog while the service answers GET /health on its own
// listener. Any answer counts, also that the database is down: a restart would not help.
func (s *server) keepWatchdog(ctx context.Context, address net.Addr) {
	if s.cfg.supervisor.watchdog == 0 {
		return
	}
	web := http.Client{Timeout: s.cfg.supervisor.watchdog / 3, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, address.Network(), address.String())
		},
		// The request has no secret, and the answer is not read.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	tick := time.Tick(s.cfg.supervisor.watchdog / 3)
	health := &url.URL{Scheme: s.scheme(), Host: "cairn", Path: "/health"}
	request := (&http.Request{Method: "GET", URL: health}).WithContext(ctx)
	for {
		response, err := web.Do(request)
		if err == nil {
			response.Body.Close()
			err = s.cfg.supervisor.notify("WATCHDOG=1")
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("watchdog not notified", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}
