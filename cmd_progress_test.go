package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestProgressLine: from the second tick on, one line says how far the work is, and goes when it ends.
func TestProgressLine(t *testing.T) {
	t.Parallel()
	ticks, goOn, failure := make(chan time.Time), make(chan bool), errors.New("failure")
	var out lockedBuffer
	n := 0
	say := func() string { n++; return fmt.Sprint("file ", n, "\x1b", strings.Repeat(" of many", 20)) }
	ended := make(chan error)
	go func() { ended <- showProgress(&out, ticks, say, func() error { <-goOn; return failure }) }()
	for range 3 {
		ticks <- time.Time{}
	}
	close(goOn)
	if err := <-ended; err != failure {
		t.Error(err)
	}
	lines := strings.Split(out.String(), "\r\x1b[K")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], `file 1\u001b of many`) || !strings.HasPrefix(lines[2], "file 2") || !strings.HasSuffix(lines[2], ": 3s") || len(lines[2]) > 80 || lines[3] != "" {
		t.Errorf("%q", lines)
	}
	out = lockedBuffer{}
	if err := showProgress(&out, ticks, say, func() error { return nil }); err != nil || out.String() != "" {
		t.Errorf("quick work: %v %q", err, out.String())
	}
}

// openTerminal returns both ends of a new pseudoterminal: the program's, and the one that a person has.
func openTerminal(t *testing.T) (program, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	var number, unlocked int32
	for request, value := range map[uintptr]*int32{0x40045431: &unlocked, 0x80045430: &number} { // TIOCSPTLCK, TIOCGPTN
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(value))); errno != 0 {
			t.Fatal(errno)
		}
	}
	if program, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, person
}

// TestConfirmation: on a terminal, what cannot be undone is done only after a yes. A script is not asked.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addUser("ada", datasetRead)
	if err := os.Mkdir(ts.datasets+"/tiles", 0o755); err != nil {
		t.Fatal(err)
	}
	ts.signIn("root", "all").addDataset("tiles")
	terminal, person := openTerminal(t)
	answer := func(stdin io.Reader, line string, args ...string) (string, error) {
		var asked lockedBuffer
		if line != "" {
			io.WriteString(person, line)
		}
		err := run(t.Context(), args, ts.env, stdin, io.Discard, &asked)
		return asked.String(), err
	}
	for _, line := range []string{"\n", "no\n", "y\n"} {
		if asked, err := answer(terminal, line, "user", "delete", "ada"); asked != "Delete the user ada? The name is never used again. (yes or no) " ||
			err == nil || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%q: %q %v", line, asked, err)
		}
		if asked, err := answer(terminal, line, "dataset", "remove", "tiles"); !strings.HasPrefix(asked, "Forget the dataset tiles") || err == nil {
			t.Errorf("%q: %q %v", line, asked, err)
		}
	}
	if n := ts.queryInt(`SELECT (SELECT count(*) FROM users WHERE username = 'ada') + (SELECT count(*) FROM datasets)`); n != 2 {
		t.Error("something is gone without a yes")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if asked, err := answer(null, "", "user", "delete", "ada"); err != nil || asked != "" {
		t.Errorf("a script: %q %v", asked, err)
	}
	if _, err := answer(terminal, "yes\n", "dataset", "remove", "tiles"); err != nil {
		t.Error(err)
	}
	if n := ts.queryInt(`SELECT (SELECT count(*) FROM users WHERE username = 'ada') + (SELECT count(*) FROM datasets)`); n != 0 {
		t.Error("something is still there")
	}
}
