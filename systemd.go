package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// listen returns a listener on the socket that systemd passed, or else on the address. While the
// service restarts, connections to systemd's socket wait.
func (s supervisor) listen(address string) (net.Listener, error) {
	const first = 3 // SD_LISTEN_FDS_START

	switch s.sockets {
	case 0:
		listener, err := net.Listen("tcp", address)
		if err != nil {
			err = fmt.Errorf("%w: set CAIRN_LISTEN to another address, such as 127.0.0.1:8081", err)
		}
		return listener, err
	case 1:
		syscall.CloseOnExec(first)
		file := os.NewFile(first, "socket")
		defer file.Close() // the listener has a copy
		return net.FileListener(file)
	}
	return nil, fmt.Errorf("systemd passed %d sockets, but Cairn serves only one: leave one in cairn.socket",
		s.sockets)
}

// notify tells systemd the service's state. It logs a failure.
func (o *operations) notify(state string) {
	path := o.core.cfg.supervisor.notifySocket
	if path == "" {
		return
	}

	// Go and systemd both write abstract names with "@".
	conn, err := net.Dial("unixgram", path)
	if err == nil {
		defer conn.Close()
		_, err = io.WriteString(conn, state)
	}
	if err != nil {
		o.core.log.Warn("systemd not notified", "state", state, "error", err)
	}
}

// keepWatchdog notifies systemd's watchdog while the service answers on its own listener.
func (o *operations) keepWatchdog(ctx context.Context, address net.Addr) {
	interval := o.core.cfg.supervisor.watchdog / 3
	if interval == 0 {
		return
	}

	for tick := time.Tick(interval); ; {
		err := o.probe(ctx, address, interval)
		if err == nil {
			o.notify("WATCHDOG=1")
		} else if ctx.Err() == nil {
			o.core.log.Error("watchdog not notified", "error", err)
		}

		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// probe sends GET /health to the service's own address. Any answer will do: if it says that the
// database is down, a restart would not help. The client of net/http would add 0.4 MiB to the
// program.
func (o *operations) probe(ctx context.Context, address net.Addr, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	conn, err := new(net.Dialer).DialContext(ctx, address.Network(), address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	context.AfterFunc(ctx, func() { conn.Close() })

	// The certificate is not verified: the request has no secret, and its answer is not used.
	stream := io.ReadWriter(conn)
	if o.core.isHTTPS {
		stream = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}

	const request = "GET /health HTTP/1.1\r\nHost: cairn\r\nConnection: close\r\n\r\n"
	_, err = io.WriteString(stream, request)
	if err == nil {
		_, err = fmt.Fscanf(stream, "HTTP/1.1 %d", new(int))
	}
	return err
}
