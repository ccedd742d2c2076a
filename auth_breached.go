package main

import (
	"bytes"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// breachedPasswords is a list of breached passwords, as published for use offline: a line
// "HASH:count" for each, with SHA-1 in upper case hexadecimal, in ascending order. The file may
// have any size: it is searched on disk. Nil is the empty list.
type breachedPasswords struct {
	file *os.File
	size int64
}

// maxBreachedLine is the length of the longest line of a list of breached passwords, in bytes.
const maxBreachedLine = 64

// breachedLine matches a line of a list of breached passwords, without its newline.
var breachedLine = regexp.MustCompile(`^[0-9A-F]{40}:[0-9]+\r?$`)

// openBreachedPasswords opens the list in a file, or returns nil if path is empty. It checks the
// form and the order of some lines, from the first to the last.
func openBreachedPasswords(path string) (*breachedPasswords, error) {
	if path == "" {
		return nil, nil
	}

	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	// Look at 65 lines, spread evenly over the file.
	list := &breachedPasswords{file: file, size: info.Size()}
	before := ""
	for i := range int64(65) {
		_, line, err := list.lineAt((list.size - 1) * i / 64)
		if err == nil && line < before {
			err = errors.New("its lines are not in ascending order")
		}
		if err != nil {
			err = fmt.Errorf("%s is not a sorted list of SHA-1 hashes: %w", path, err)
			return nil, errors.Join(err, file.Close())
		}
		before = line
	}

	return list, nil
}

// contains reports whether the password is in the list. An error says that the file cannot be read
// or is malformed.
func (l *breachedPasswords) contains(password string) (bool, error) {
	if l == nil {
		return false, nil
	}

	// Binary search: the line can only begin in [low, high).
	hash := fmt.Sprintf("%X", sha1.Sum([]byte(password)))
	low := int64(0)
	high := l.size
	for low < high {
		begin, line, err := l.lineAt(low + (high-low)/2)
		if err != nil {
			return false, fmt.Errorf("search breached passwords: %w", err)
		}

		switch strings.Compare(line[:len(hash)], hash) {
		case 0:
			return true, nil
		case -1:
			low = begin + int64(len(line)) + 1
		default:
			high = begin
		}
	}
	return false, nil
}

// lineAt returns the line that has the byte at an offset, and where it begins. It cuts the newline.
func (l *breachedPasswords) lineAt(offset int64) (begin int64, line string, err error) {
	// The line begins and ends within maxBreachedLine bytes of the offset.
	near := make([]byte, 2*maxBreachedLine)
	from := max(0, offset-maxBreachedLine)
	n, err := l.file.ReadAt(near, from)
	if err != nil && err != io.EOF {
		return 0, "", err
	}
	at := int(offset - from)
	if n <= at || offset < 0 {
		return 0, "", io.ErrUnexpectedEOF
	}

	start := bytes.LastIndexByte(near[:at], '\n') + 1
	rest, _, _ := bytes.Cut(near[start:n], []byte("\n"))
	if !breachedLine.Match(rest) {
		return 0, "", fmt.Errorf("the line at byte %d is malformed", from+int64(start))
	}
	return from + int64(start), string(rest), nil
}
