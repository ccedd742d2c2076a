package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// pace says how long a route may take and how it uses the database. The route's row names it.
type pace int

// The paces.
const (
	quick     pace = iota // most routes
	light                 // does not use the pool for requests
	hashing               // waits for a core to hash a password
	slow                  // searches, or changes many rows
	bulk                  // may delete or change every row of a dataset or role
	expensive             // reads every row of a dataset: takes one of a few slots, one for each caller
	streaming             // holds a connection only for each batch of rows
	waiting               // waits for a change, and gives its place back while it waits
	sending               // sends a file, and uses the database only before that
)

// limit returns the time limit of a request.
func (p pace) limit() time.Duration {
	return [...]time.Duration{
		quick:     2 * time.Second,
		light:     2 * time.Second,
		hashing:   5 * time.Second,
		slow:      10 * time.Second,
		bulk:      time.Minute,
		expensive: 5 * time.Minute,
		streaming: 10 * time.Minute,
		sending:   time.Hour,
		waiting:   maxWait + 2*time.Second,
	}[p]
}

// maxWait is the longest time that a client may ask to wait for a change.
const maxWait = time.Minute

// Limits other than the places in the pool.
const (
	maxInLine    = 4000 // requests of one caller that have a place or wait for one
	maxBodies    = 64   // bodies of one network in memory at a time, of up to 1 MiB each
	maxStreams   = 4    // streamed answers to one account at a time
	maxFiles     = 256  // files sent to one account at a time; each holds an open file and a buffer
	maxFileCalls = 64   // calls of the file system for contents of one dataset at a time; each has a thread
	maxAllCalls  = 1024 // the same, of all datasets
	maxExpensive = 2    // expensive requests that run at a time
)

// callerLimit gives each caller a number of places, and may bound the places of all callers
// together. A request that finds them taken waits in line. The limit's field in server says who
// counts as one caller: an account, a network, both together, or all who read the same dataset.
type callerLimit struct {
	size      int          // for each caller
	maxInLine int          // requests of one caller that have a place or wait for one
	all       *callerLimit // of all callers together, as one caller; nil: no limit
	mu        sync.Mutex
	callers   map[string]*callerLine
}

// callerLine is the line of one caller. It exists while a request is in it.
type callerLine struct {
	places chan struct{}
	inLine int // requests that have a place or wait for one
}

// newCallerLimit returns a limit of size at a time for each caller.
func newCallerLimit(size int) *callerLimit {
	return &callerLimit{size: size, maxInLine: maxInLine, callers: map[string]*callerLine{}}
}

// enter waits for one of the caller's places. leave gives it back; it may be called more than once.
// If too many requests are in line or the time limit of ctx ends first, the error is errBusy; if
// the client leaves, it is that of ctx. With an error, leave does nothing.
func (l *callerLimit) enter(ctx context.Context, caller string) (leave func(), err error) {
	l.mu.Lock()
	line := l.callers[caller]
	if line == nil {
		line = &callerLine{places: make(chan struct{}, l.size)}
		l.callers[caller] = line
	}
	line.inLine++
	inLine := line.inLine
	l.mu.Unlock()
	exit := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if line.inLine--; line.inLine == 0 {
			delete(l.callers, caller)
		}
	}
	err = errBusy
	if inLine <= l.maxInLine {
		select {
		case line.places <- struct{}{}:
			err = nil
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = ctx.Err()
			}
		}
	}
	if err != nil {
		exit()
		return func() {}, err
	}
	leaveAll := func() {}
	leave = sync.OnceFunc(func() {
		leaveAll()
		<-line.places
		exit()
	})
	if l.all != nil {
		if leaveAll, err = l.all.enter(ctx, ""); err != nil {
			leave()
		}
	}
	return leave, err
}

// requests returns how many requests of a caller have a place or wait for one.
func (l *callerLimit) requests(caller string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if line := l.callers[caller]; line != nil {
		return line.inLine
	}
	return 0
}

// errBusy is the 503 for a request that found the line full, or waited in it to its time limit.
var errBusy = &problem{status: http.StatusServiceUnavailable, code: "busy",
	detail: "Too many requests are under way. Try again later.", retryAfter: 2 * time.Second}

// lastMoment returns a context for what a request must still store after its time limit, or after
// its client has left. It ends 0.4 s after the limit of ctx, so that no answer is over 0.5 s late.
func lastMoment(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline()
	return context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(400*time.Millisecond))
}
