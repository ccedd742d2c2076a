package main

import (
	"fmt"
	"io"
	"time"
)

// withProgress runs work. If that takes more than two seconds and standard error is a terminal, a
// line on it shows the text of say and the time, until the work ends.
func (o operation) withProgress(say func() string, work func() error) error {
	if !isTerminal(o.stderr) {
		return work()
	}
	return showProgress(o.stderr, time.Tick(time.Second), say, work)
}

// showProgress is withProgress for a terminal and a clock that ticks each second. say runs at the
// same time as work.
func showProgress(w io.Writer, ticks <-chan time.Time, say func() string, work func() error) error {
	const clear = "\r\x1b[K" // ECMA-48: erase in line
	done := make(chan error, 1)
	go func() { done <- work() }()
	for seconds := 1; ; seconds++ {
		select {
		case err := <-done:
			if seconds > 2 {
				io.WriteString(w, clear)
			}
			return err
		case <-ticks:
			if seconds > 1 {
				io.WriteString(w, clear)
				fmt.Fprintf(terminalWriter{w}, "%.70s: %v", say(), time.Duration(seconds)*time.Second)
			}
		}
	}
}
