package main

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxConnections is the most connections that one network may have open.
const maxConnections = 1000

// boundedListener accepts connections up to its limits, and closes at once what is over them.
type boundedListener struct {
	net.Listener
	log         *slog.Logger
	mostNetwork int // open connections of one network
	mostAll     int // open connections in all

	// network returns the network of an address, whose connections count together. Connections of
	// the zero Addr have no limit of their own.
	network func(net.Addr) netip.Addr

	mu     sync.Mutex         // guards the fields below
	all    int                // open connections
	counts map[netip.Addr]int // open connections of each network; no network has 0
	warned time.Time          // when a refused connection was last logged
}

// Accept implements net.Listener. For each connection that it returns, released must be called.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.log.Warn("connection not accepted", "error", err)
			}
			return nil, err
		}

		if l.admit(conn.RemoteAddr()) {
			return conn, nil
		}
		conn.Close()
	}
}

// admit counts a connection, unless it is over a limit. It logs that at most once a minute.
func (l *boundedListener) admit(peer net.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	// Connections of the zero Addr count only among all.
	network := l.network(peer)
	isOver := network.IsValid() && l.counts[network] >= l.mostNetwork
	if isOver || l.all >= l.mostAll {
		if time.Since(l.warned) > time.Minute {
			l.log.Warn("too many connections",
				"address", peer.String(),
				"of_network", l.counts[network],
				"in_all", l.all)
			l.warned = time.Now()
		}
		return false
	}

	l.counts[network]++
	l.all++
	return true
}

// released takes the count of a closed connection back.
func (l *boundedListener) released(peer net.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()

	network := l.network(peer)
	l.all--
	l.counts[network]--
	if l.counts[network] == 0 {
		delete(l.counts, network)
	}
}
