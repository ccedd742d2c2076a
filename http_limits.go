package main

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"
)

// unbounded is a number of slots that is never reached.
const unbounded = 1 << 30

// everybody is the caller of a limiter whose slots all requests share alike.
const everybody = ""

// limiter has slots for each caller, and slots for all callers together. A request that works holds
// one of each. Others wait, in the order in which they came.
type limiter struct {
	perCaller int
	maxQueue  int           // requests of one caller that have a slot or wait for one
	total     chan struct{} // has an element for each slot that is held

	mu      sync.Mutex
	callers map[string]*callerQueue
}

// callerQueue is the queue of one caller. It exists while a request is in it.
type callerQueue struct {
	slots  chan struct{} // has an element for each slot that is held
	length int           // requests that have a slot or wait for one
}

// newLimiter returns a limiter with perCaller slots for each caller, and total for all callers.
func newLimiter(perCaller, total int) *limiter {
	return &limiter{
		perCaller: perCaller,
		maxQueue:  maxQueue,
		total:     make(chan struct{}, total),
		callers:   map[string]*callerQueue{},
	}
}

// acquire waits for a slot of the caller. The function release gives the slot back; more calls of
// it do nothing. If the queue is full, or the time limit of ctx ends first, the error is errBusy.
// If the client leaves, the error is that of ctx. With an error, release is nil.
func (l *limiter) acquire(ctx context.Context, caller string) (release func(), err error) {
	queue, length := l.join(caller)
	if length > l.maxQueue {
		l.leave(caller)
		return nil, errBusy
	}

	// The caller's own slots come first. So at most perCaller requests of one caller wait for the
	// shared slots at a time.
	if err := takeSlot(ctx, queue.slots); err != nil {
		l.leave(caller)
		return nil, err
	}

	if err := takeSlot(ctx, l.total); err != nil {
		<-queue.slots
		l.leave(caller)
		return nil, err
	}

	return sync.OnceFunc(func() {
		<-l.total
		<-queue.slots
		l.leave(caller)
	}), nil
}

// takeSlot waits for a slot until ctx ends.
func takeSlot(ctx context.Context, slots chan struct{}) error {
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

// join adds a request to the caller's queue, and returns the queue and its length.
func (l *limiter) join(caller string) (queue *callerQueue, length int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	queue = l.callers[caller]
	if queue == nil {
		queue = &callerQueue{slots: make(chan struct{}, l.perCaller)}
		l.callers[caller] = queue
	}
	queue.length++
	return queue, queue.length
}

// leave takes a request out of the caller's queue. It drops a queue that is empty.
func (l *limiter) leave(caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	queue := l.callers[caller]
	queue.length--
	if queue.length == 0 {
		delete(l.callers, caller)
	}
}

// length returns how many requests of a caller have a slot or wait for one.
func (l *limiter) length(caller string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	if queue := l.callers[caller]; queue != nil {
		return queue.length
	}
	return 0
}

// class says what a request needs, and how long it may take. The route's row names it.
type class int

// The classes. All but light and sending begin with a slot of the pool of database connections.
// Before that, authorize (auth_access.go) takes a slot to ask who is calling, and gives it back.
const (
	light   class = iota // does not use the database
	quick                // most routes
	hashing              // waits for a core to hash a password
	waiting              // waits for a change; meanwhile it gives its slot of the pool back
	slow                 // searches, or reads all rows of a table
	bulk                 // may change every row of a dataset or role
	heavy                // computes for more than 50 ms
	stream               // sends many rows; then it takes a slot of the pool only for each batch
	sending              // sends a file; it uses the database only before it sends
)

// timeout returns the time limit of a request.
func (c class) timeout() time.Duration {
	return [...]time.Duration{
		light:   2 * time.Second,
		quick:   2 * time.Second,
		hashing: 5 * time.Second,
		waiting: maxWait + 2*time.Second,
		slow:    10 * time.Second,
		bulk:    time.Minute,
		heavy:   5 * time.Minute,
		stream:  time.Hour,
		sending: time.Hour,
	}[c]
}

// usesPool reports whether a request of the class begins with a slot of the pool.
func (c class) usesPool() bool { return c != light && c != sending }

// maxWait is the longest time that a client may ask to wait for a change.
const maxWait = time.Minute

// Limits of requests.
const (
	maxQueue   = 4000 // requests of one caller that have a slot or wait for one
	maxSlow    = 2    // searches of one caller at a time
	maxStreams = 2    // streamed answers to one account at a time
	maxFiles   = 256  // files sent to one account at a time; each holds an open file and a buffer

	maxBodies   = 64 << 20  // bytes of all bodies in memory
	maxAnswers  = 128 << 20 // bytes of all large answers that are being sent
	ownShare    = 4         // one caller may use a quarter of maxBodies, and of maxAnswers
	largeAnswer = 64 << 10  // smaller answers are not counted

	bodyTimeout = 10 * time.Second // a body must arrive within this
)

// Limits of calls of the file system for contents. A call that hangs keeps a thread.
const (
	maxFileCalls    = 64   // of one dataset
	maxAllFileCalls = 1024 // of all datasets
)

// limits hold the limiters of a service, so that nobody slows the others.
type limits struct {
	pool      *limiter           // slots of the pool: a quarter of its connections for one caller
	computing *limiter           // slots to compute: one for each caller, and in all one fewer than there are cores
	classes   map[class]*limiter // slots of the classes that have a limit of their own

	bodies  *byteLimiter // of requests, in memory
	answers *byteLimiter // over largeAnswer bytes, in memory while they are sent
}

// newLimits returns the limits for a pool of that many connections.
func newLimits(connections int) *limits {
	cores := runtime.GOMAXPROCS(0)

	// A search keeps a core of the database busy. More of them at once would end no sooner.
	searches := newLimiter(maxSlow, max(1, min(connections/2, 2*cores)))

	// One core stays free for all other requests, such as logins.
	computing := newLimiter(1, max(1, cores-1))

	return &limits{
		pool:      newLimiter(max(1, connections/4), unbounded),
		computing: computing,
		classes: map[class]*limiter{
			slow:    searches,
			bulk:    searches,
			stream:  newLimiter(maxStreams, unbounded),
			sending: newLimiter(maxFiles, unbounded),
		},
		bodies:  newByteLimiter(maxBodies),
		answers: newByteLimiter(maxAnswers),
	}
}

// slots are what one request holds of the limits: at most one slot of each kind. First it acquires
// the slot of its class or, for heavy, a slot to compute. While it waits for that one it holds no
// other, so that it keeps nobody from the database. Then it acquires a slot of the pool. It keeps
// this one while it waits to hash a password or to change users and roles.
type slots struct {
	limits       *limits
	owner        string   // an account or, until it is known, a session or a network
	classLimiter *limiter // of the class whose slot is held; nil: none is held

	releaseClass func() // gives back the slot of classLimiter
	releaseCore  func() // nil: no slot to compute is held
	releasePool  func() // nil: no slot of the pool is held
}

// newSlots returns the slots of a request, which holds none yet.
func newSlots(limits *limits, owner string) *slots {
	return &slots{limits: limits, owner: owner}
}

// acquire waits until the request holds the slots that the class needs. A heavy page that calls a
// slow route holds a slot to compute already. It keeps this slot and takes none of the class slow:
// the slot to compute bounds it more tightly.
func (s *slots) acquire(ctx context.Context, needed class) error {
	if s.releaseCore == nil {
		if err := s.acquireClass(ctx, needed); err != nil {
			return err
		}
	}

	if needed.usesPool() {
		return s.acquirePool(ctx)
	}
	return nil
}

// acquireClass waits for a slot of the class or, for heavy, for a slot to compute. Before it waits,
// it gives back all slots that the request holds.
func (s *slots) acquireClass(ctx context.Context, needed class) (err error) {
	if needed == heavy {
		s.release()
		return s.acquireCore(ctx)
	}

	// Some classes have no slots. Others share theirs, so the request may hold one already.
	limiter := s.limits.classes[needed]
	if limiter == nil || limiter == s.classLimiter {
		return nil
	}

	s.release()
	s.releaseClass, err = limiter.acquire(ctx, s.owner)
	if err == nil {
		s.classLimiter = limiter
	}
	return err
}

// acquireCore waits for a slot to compute, unless the request holds one.
func (s *slots) acquireCore(ctx context.Context) (err error) {
	if s.releaseCore == nil {
		s.releaseCore, err = s.limits.computing.acquire(ctx, s.owner)
	}
	return err
}

// shareCore gives the slot to compute to the next request that waits for one. Then it waits for
// another turn of this request. Long loops call it. A request in a transaction keeps its slot of
// the pool. Any other waits for a new one too.
func (s *slots) shareCore(ctx context.Context, isInTransaction bool) error {
	if s.releaseCore == nil {
		return nil
	}

	usesPool := s.releasePool != nil
	if !isInTransaction {
		s.leavePool()
	}
	s.leaveCore()

	err := s.acquireCore(ctx)
	if err == nil && usesPool {
		err = s.acquirePool(ctx)
	}
	return err
}

// leaveCore gives back the slot to compute, if the request holds one.
func (s *slots) leaveCore() {
	if s.releaseCore != nil {
		s.releaseCore()
		s.releaseCore = nil
	}
}

// acquirePool waits for a slot of the pool, unless the request holds one.
func (s *slots) acquirePool(ctx context.Context) (err error) {
	if s.releasePool == nil {
		s.releasePool, err = s.limits.pool.acquire(ctx, s.owner)
	}
	return err
}

// leavePool gives back the slot of the pool, if the request holds one.
func (s *slots) leavePool() {
	if s.releasePool != nil {
		s.releasePool()
		s.releasePool = nil
	}
}

// beginAnswer gives back what a request does not need while the client takes its answer, which may
// be slow. A stream, and a file that is sent, keep the slot of their class. All others keep
// nothing.
func (s *slots) beginAnswer() {
	if s.classLimiter == s.limits.classes[slow] { // bulk has this limiter too
		s.release()
		return
	}

	s.leavePool()
	s.leaveCore()
}

// release gives back what the request holds.
func (s *slots) release() {
	s.leavePool()
	s.leaveCore()

	if s.classLimiter != nil {
		s.releaseClass()
		s.classLimiter = nil
	}
}

// errBusy is the 503 for a request that found a queue full, or waited in it to its time limit.
var errBusy = &problem{
	status:     http.StatusServiceUnavailable,
	code:       codeBusy,
	detail:     "The server is busy. Try again in a few seconds.",
	retryAfter: 2 * time.Second,
}

// lastMoment returns a context for what a request must still store after its time limit, or after
// its client has left. It ends 0.4 s after the limit of ctx, so that no answer is over 0.5 s late.
// Without a limit, it ends 0.4 s after now.
func lastMoment(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, hasLimit := ctx.Deadline()
	if !hasLimit {
		deadline = time.Now()
	}

	detached := context.WithoutCancel(ctx)
	return context.WithDeadline(detached, deadline.Add(400*time.Millisecond))
}
