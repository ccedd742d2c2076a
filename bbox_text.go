package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cleanText returns text up to a NUL: valid UTF-8, no control characters, trimmed, limit bytes at
// most.
func cleanText(b []byte, limit int) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	s := strings.ToValidUTF8(string(b), string(utf8.RuneError))

	withoutControl := func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}
	s = strings.Map(withoutControl, s)
	s = strings.TrimSpace(s)

	// The cut may leave a part of a character, or a blank, at the end.
	s = s[:min(limit, len(s))]
	s = strings.ToValidUTF8(s, "")
	return strings.TrimSpace(s)
}

// isUnsafe reports whether a terminal may act on a character, or show others in a false order:
// control characters (C0, DEL, and C1 such as the CSI U+009B), separators of lines, and those that
// change the direction of text (Unicode Standard Annex 9, section 2).
func isUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// isLine reports whether text is one line of low to high code points. It refuses unsafe ones (see
// isUnsafe) and the last two of each plane, such as U+FFFE, which are no characters.
func isLine(text string, low, high int) bool {
	n := utf8.RuneCountInString(text)
	if n < low || n > high {
		return false
	}

	isForbidden := func(c rune) bool { return isUnsafe(c) || c&0xfffe == 0xfffe }
	return !strings.ContainsFunc(text, isForbidden)
}

// terminalWriter passes on text that a terminal may show. It writes each unsafe character, except a
// newline or a tab, and each invalid byte as an escape of JSON. A write must not end within a
// character.
type terminalWriter struct{ io.Writer }

// Write implements io.Writer.
func (w terminalWriter) Write(p []byte) (int, error) {
	var safe []byte
	rest := p
	for len(rest) > 0 {
		r, size := utf8.DecodeRune(rest)
		isInvalid := r == utf8.RuneError && size == 1
		isWanted := r == '\n' || r == '\t'

		switch {
		case isInvalid:
			safe = fmt.Appendf(safe, `\u%04x`, rest[0])
		case isUnsafe(r) && !isWanted:
			safe = fmt.Appendf(safe, `\u%04x`, r)
		default:
			safe = append(safe, rest[:size]...)
		}
		rest = rest[size:]
	}

	_, err := w.Writer.Write(safe)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}
