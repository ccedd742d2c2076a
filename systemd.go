package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

// supervisor is systemd as its environment variables show it; the zero value is none. What they mean is
// in sd_notify(3), sd_listen_fds(3) and sd_watchdog_enabled(3).
type supervisor struct {
	notifySocket string        // takes what the service says of itself
	sockets      int           // that were handed over, from descriptor 3 on
	watchdog     time.Duration // after which a silent service is killed; 0: never
}

// findSupervisor reads the variables, as far as they are meant for this process.
func findSupervisor(env []string) supervisor {
	s := supervisor{notifySocket: lookup(env, "NOTIFY_SOCKET")}
	self := strconv.Itoa(os.Getpid())
	if lookup(env, "LISTEN_PID") == self {
		s.sockets, _ = strconv.Atoi(lookup(env, "LISTEN_FDS"))
	}
	if pid := lookup(env, "WATCHDOG_PID"); pid == "" || pid == self {
		µs, _ := strconv.Atoi(lookup(env, "WATCHDOG_USEC"))
		s.watchdog = time.Duration(µs) * time.Microsecond
	}
	return s
}

// listen returns the socket that was handed over, else a new one on the address. Connections that come while no
// process serves a socket of systemd's wait in it.
func (s supervisor) listen(address string) (net.Listener, error) {
	const first = 3 // SD_LISTEN_FDS_START
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"} {
		os.Unsetenv(name) // they are not for our children
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
	return nil, fmt.Errorf("%d sockets were handed over, and only one can be served", s.sockets)
}

// notify tells systemd the service's state.
func (s supervisor) notify(state string) error {
	if s.notifySocket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", s.notifySocket) // @ stands for an abstract name, here as there
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// keepWatchdog tells the watchdog that the service lives, as long as a request through its own front door asks the
// pool and is answered. That the database is away is an answer too: a restart would not bring it back.
func (s *server) keepWatchdog(ctx context.Context, door net.Addr) {
	if s.cfg.supervisor.watchdog == 0 {
		return
	}
	web := http.Client{Timeout: s.cfg.supervisor.watchdog / 3, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, door.Network(), door.String())
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // nothing is sent, and nothing believed
		DisableKeepAlives: true,
	}}
	tick := time.Tick(s.cfg.supervisor.watchdog / 3)
	for {
		request, err := http.NewRequestWithContext(ctx, "GET", s.scheme()+"://cairn/health", nil)
		if err == nil {
			var response *http.Response
			if response, err = web.Do(request); err == nil {
				response.Body.Close()
				err = s.cfg.supervisor.notify("WATCHDOG=1")
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("the watchdog is not told that the service lives", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}
