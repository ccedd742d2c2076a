package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestCleanText: no control character, of C0 or C1, remains in a text.
func TestCleanText(t *testing.T) {
	if got := cleanText([]byte("\ta\u009b2J\x7f\u0085é\x00b"), 100); got != "a 2J  é" {
		t.Errorf("%q", got)
	}
}

// TestTerminalText: nothing that a terminal acts on, or that hides other text, reaches it from a file name.
func TestTerminalText(t *testing.T) {
	t.Parallel()
	const name = "a\x1b[31m\u009b2J\x7f\r\x00\u202egpj\u2066\u2069\u200f\u061c\u2028\xff\x9bé日.tif"
	var row bytes.Buffer
	report, err := folderReport{Findings: []finding{{Code: "unreadable", Total: 1, Files: []findingFile{{Path: name, Detail: name + "\n0 findings"}}}}}.text()
	if err != nil {
		t.Error(err)
	}
	if n, err := (terminalWriter{&row}).Write([]byte(name)); n != len(name) || err != nil {
		t.Error(n, err)
	}
	const want = `a\u001b[31m\u009b2J\u007f\u000d\u0000\u202egpj\u2066\u2069\u200f\u061c\u2028\u00ff\u009bé日.tif`
	if row.String() != want {
		t.Errorf("got  %s\nwant %s", row.String(), want)
	}
	for _, text := range []string{string(report), row.String()} {
		if strings.ContainsFunc(text, func(r rune) bool { return isUnsafe(r) && r != '\n' || r == '\ufffd' }) {
			t.Errorf("%q", text)
		}
	}
	if strings.Contains(string(report), "\n0 findings") {
		t.Errorf("a detail made a line of its own: %s", string(report))
	}
}
