package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"
)

// checkLength refuses a body whose Content-Length is over size, before the database is asked who
// sends it. The body of a read is dropped anyway.
func checkLength(w http.ResponseWriter, r *http.Request, size int64) error {
	if isRead(r) || r.ContentLength <= size {
		return nil
	}

	// net/http may still read up to 256 KiB of it, and ends the connection if they come too slowly.
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	return bodyError(&http.MaxBytesError{Limit: size})
}

// receiveBody reads the request's body into memory: at most size bytes, within bodyTimeout and the
// time limit of the request. release gives back its room, and is never nil. A body of GET or HEAD
// has no meaning (RFC 9110, section 9.3.1) and is dropped.
func receiveBody(w http.ResponseWriter, r *http.Request, slots *slots, size int64) (release func(), err error) {
	// With HTTP/2, r.Body is not http.NoBody if there is no body.
	if r.ContentLength == 0 {
		r.Body = http.NoBody
		return func() {}, nil
	}

	// The time to arrive ends with the time limit of the request, if that is sooner.
	response := http.NewResponseController(w)
	deadline := time.Now().Add(bodyTimeout)
	if limit, _ := r.Context().Deadline(); limit.Before(deadline) {
		deadline = limit
	}
	response.SetReadDeadline(deadline)

	body := &receivedBody{
		Reader: http.MaxBytesReader(w, r.Body, size),
		bodies: slots.limits.bodies,
		caller: slots.owner,
	}
	var content bytes.Buffer
	_, err = content.ReadFrom(body)

	// The deadline would end the connection's later requests.
	if err == nil {
		response.SetReadDeadline(time.Time{})
	}

	if isRead(r) {
		body.release()
		r.Body = http.NoBody
		return func() {}, nil
	}
	if err != nil {
		body.release()
		return func() {}, bodyError(err)
	}

	r.Body = io.NopCloser(&content)
	r.ContentLength = int64(content.Len())
	return body.release, nil
}

// bodyError returns the problem with a body whose reading ended with err.
func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		detail := fmt.Sprintf("The body has more than %d bytes.", tooLarge.Limit)
		return newProblem(http.StatusRequestEntityTooLarge, codeBodyTooLarge, detail)
	}
	if errors.Is(err, errBusy) {
		return errBusy
	}
	return malformed(codeBodyUnreadable, "The body could not be read to its end.")
}

// byteLimiter counts bytes in memory, for each caller and for all callers together.
type byteLimiter struct {
	most int64

	mu      sync.Mutex
	all     int64
	callers map[string]int64 // no caller has 0
}

// newByteLimiter returns a limiter with room for that many bytes.
func newByteLimiter(most int64) *byteLimiter {
	return &byteLimiter{most: most, callers: map[string]int64{}}
}

// add counts n more bytes of a caller, or fewer. It reports whether there is room for them. A
// caller who has nothing else in memory always has room, so that others cannot take it away.
func (l *byteLimiter) add(caller string, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.all += n
	l.callers[caller] += n
	own := l.callers[caller]
	if own == 0 {
		delete(l.callers, caller)
	}

	isOnly := own == n
	hasRoom := l.all <= l.most && own <= l.most/ownShare
	return isOnly || hasRoom
}

// receivedBody is the body of a request while it arrives. Only what has arrived counts, so a client
// that sends nothing takes no room.
type receivedBody struct {
	io.Reader
	bodies *byteLimiter
	caller string // whose bytes they are
	bytes  int64  // that have arrived
}

// Read reads what has arrived. If there is no room for it, the error is errBusy.
func (b *receivedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.bytes += int64(n)

	if !b.bodies.add(b.caller, int64(n)) {
		return n, errBusy
	}
	return n, err
}

// release gives back the room of the body.
func (b *receivedBody) release() {
	b.bodies.add(b.caller, -b.bytes)
	b.bytes = 0
}

// encodeBody returns the body of a request as JSON. Text that is not UTF-8 is a 400, because JSON
// would replace it.
func encodeBody(body map[string]any) ([]byte, error) {
	if !utf8.ValidString(fmt.Sprint(body)) {
		return nil, malformed(codeMalformedJSON, "The text is not UTF-8.")
	}
	return encodeJSON(body)
}
