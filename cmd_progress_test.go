package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// TestProgressLine: on a terminal, one line says how far an analysis is, and goes when it ends.
func TestProgressLine(t *testing.T) {
	t.Parallel()
	goOn := make(chan bool)
	ts := startServer(t, func(o *options) { o.beforeRead = func(string) { <-goOn } })
	name := "tiles" + strings.Repeat(" of many", 10)
	if err := errors.Join(os.Mkdir(ts.datasets+"/tiles", 0o755), os.WriteFile(ts.datasets+"/tiles/a.tif", geographicTIFF(7, 47), 0o644)); err != nil {
		t.Fatal(err)
	}
	if said, err := ts.command("dataset", "create", name, "tiles"); err != nil {
		t.Fatal(said, err)
	}
	terminal, person := openTerminal(t)

	ended := make(chan error)
	go func() {
		ended <- run(t.Context(), []string{"dataset", "analyze", "1", "--wait"}, ts.env, nil, io.Discard, terminal)
	}()
	var shown string
	read := func() {
		t.Helper()
		piece := make([]byte, 4096)
		n, err := person.Read(piece)
		if err != nil {
			t.Fatal(err)
		}
		shown += string(piece[:n])
	}
	for !strings.Contains(shown, "analysis of tiles of many") {
		read()
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	fmt.Fprint(terminal, "the end")
	for !strings.HasSuffix(shown, "the end") {
		read()
	}

	lines := strings.Split(shown, "\r\x1b[K")
	for _, line := range lines {
		if len(line) > 79 {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
	if last := lines[len(lines)-1]; last != "the end" {
		t.Errorf("after the analysis the line is %q, want it empty", last)
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
