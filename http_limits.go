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
	light                 // uses no connection of the pool, or none at all
	hashing               // waits for a core to hash a password
	slow                  // searches, or changes many rows
	bulk                  // may delete or change every row of a dataset or role
	expensive             // reads every row of a dataset: takes one of a few slots, one for each caller
	streaming             // holds a connection only for each batch of rows
	waiting               // gives its place back while it waits for a change
)

// limit returns the time limit of a request.
func (p pace) limit() time.Duration {
	switch p {
	case hashing:
		return 5 * time.Second
	case slow:
		return 10 * time.Second
	case bulk:
		return time.Minute
	case expensive:
		return 5 * time.Minute
	case streaming:
		return 10 * time.Minute
	case waiting:
		return maxWait + 2*time.Second
	default:
		return 2 * time.Second
	}
}

// maxWait is the longest time that a client may ask to wait for a change.
const maxWait = time.Minute

// Bounds for each caller, beside its places.
const (
	maxBodies  = 64 // bodies that are read at a time, of up to 1 MiB each
	maxStreams = 4  // streamed answers at a time
)

// expensiveSlots is how many expensive requests run at a time.
const expensiveSlots = 2

// callerLimit lets each caller do a bounded number of things at a time. More wait in line.
type callerLimit struct {
	size    int // for each caller
	mu      sync.Mutex
	callers map[string]*callerLine
}

// callerLine is the line of one caller. It exists while somebody is in it.
type callerLine struct {
	places chan struct{}
	inLine int // those that hold a place or wait for one
}

// newCallerLimit returns a limit of size at a time for each caller.
func newCallerLimit(size int) *callerLimit {
	return &callerLimit{size: size, callers: map[string]*callerLine{}}
}

// enter waits for one of the caller's places. leave gives it back; it may be called more than once.
// If the time limit of ctx ends first the error is errBusy, and leave does nothing.
func (l *callerLimit) enter(ctx context.Context, caller string) (leave func(), err error) {
	l.mu.Lock()
	line := l.callers[caller]
	if line == nil {
		line = &callerLine{places: make(chan struct{}, l.size)}
		l.callers[caller] = line
	}
	line.inLine++
	l.mu.Unlock()
	exit := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if line.inLine--; line.inLine == 0 {
			delete(l.callers, caller)
		}
	}
	if err := enterSlot(ctx, line.places); err != nil {
		exit()
		return func() {}, err
	}
	return sync.OnceFunc(func() {
		<-line.places
		exit()
	}), nil
}

// errBusy is the 503 for a request that waited in line in vain.
var errBusy = &problem{status: http.StatusServiceUnavailable, code: "busy",
	detail: "Too many requests are under way. Try again later.", retryAfter: 2 * time.Second}

// enterSlot waits for room in a channel that holds an element for each user of a slot. If the time
// limit of ctx ends first it returns errBusy.
func enterSlot(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errBusy
	}
	return ctx.Err()
}

// lastMoment returns a context for what a request still has to store when its time limit is over or
// its client has left. It ends 0.4 s after the limit of ctx.
func lastMoment(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline()
	return context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(400*time.Millisecond))
}
