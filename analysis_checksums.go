package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Limits of a list of checksums.
const (
	maxListBytes = 128 << 20
	maxListLines = 1_000_000
)

// isChecksumList is SQL for whether path has the name of a list of checksums: x.tif.md5, x.sha256,
// MD5SUMS, sha256sum.txt, tiles_md5.txt.
const isChecksumList = `path ~* '(^|[./_-])(md5|sha256)(sums?)?([.]txt)?$'`

// listedChecksum is a line of a list of checksums.
type listedChecksum struct {
	line      int
	path      string // of the file, as its row has it
	algorithm string // MD5 or SHA256
	digest    string // in lower-case hex
}

// checksumLine matches a line of a list. The first form is that of md5sum and sha256sum, where an
// asterisk marks a binary file; the name may be missing. The second is that of md5sum --tag, of md5
// and sha256 (BSD), and of openssl dgst. A name has escapes if a backslash begins the line.
var checksumLine = regexp.MustCompile(`^(\\?)(?:` +
	`([0-9A-Fa-f]{32,})(?:[ \t][ \t*]?(.*))?|` +
	`(?:MD5|SHA256|SHA2-256)? ?\((.+)\) ?= ?([0-9A-Fa-f]+))$`)

// readChecksums calls emit for each line of a list, which has this path. It skips empty lines and
// comments. fault says which line is wrong, or which lines were not read; "": none.
func readChecksums(list string, content io.Reader, emit func(listedChecksum) error) (fault string, err error) {
	wrong := int64(0)
	n := 0
	lines := bufio.NewScanner(content) // a line has at most 64 KiB
	for n < maxListLines && lines.Scan() {
		n++
		line := strings.TrimSuffix(lines.Text(), "\r")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // the byte order mark
		}
		isComment := line == "" || line[0] == '#' || line[0] == ';'
		if isComment {
			continue
		}

		c, why := parseChecksum(list, line)
		if why != "" {
			wrong++
			fault = cmp.Or(fault, fmt.Sprintf("line %d: %s", n, why))
		}
		if c.path == "" {
			continue
		}

		c.line = n
		if err := emit(c); err != nil {
			return "", err
		}
	}

	if wrong > 1 {
		fault += fmt.Sprintf(" (and %s more)", plural(wrong-1, "line"))
	}
	isCut := lines.Err() == bufio.ErrTooLong || n == maxListLines && lines.Scan()
	if isCut {
		return fmt.Sprintf("the list is too long: it was read to line %d", n), nil
	}
	return fault, lines.Err()
}

// parseChecksum reads a line of a list. A name in it starts at the directory of the list, and must
// not lead out of it.
//
// A line without a name is about the file after which the list is named: x.tif in x.tif.md5. So is
// a digest of standard input (md5sum < x.tif), which counts for no file in other lists.
//
// wrong says why the line is not understood, or is empty. c has a path if the line is about a file.
func parseChecksum(list, line string) (c listedChecksum, wrong string) {
	m := checksumLine.FindStringSubmatch(line)
	if m == nil {
		return c, "not understood"
	}

	// One of the two forms is empty.
	c.digest = strings.ToLower(m[2] + m[5])
	c.algorithm = map[int]string{32: "MD5", 64: "SHA256"}[len(c.digest)]
	if c.algorithm == "" {
		return c, "neither MD5 nor SHA-256"
	}

	// Without escapes, a backslash separates directories, as on Windows.
	name := m[3] + m[4]
	if m[1] != "" {
		name = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r").Replace(name)
	} else {
		name = strings.ReplaceAll(name, `\`, "/")
	}
	stem := stemOf(path.Base(list))
	isInput := name == "-" || m[4] == "stdin"
	isBesideFile := path.Ext(list) != ".txt" && path.Ext(stem) != ""
	if isInput && !isBesideFile {
		return c, ""
	}
	if isInput || strings.TrimSpace(name) == "" {
		name = stem
	}

	c.path = encodeName(path.Join(path.Dir(list), name))
	isBelow := filepath.IsLocal(name) && !strings.ContainsRune(name, 0) && len(c.path) <= maxPath
	if !isBelow {
		return listedChecksum{}, "no file in or below the list's directory can have this name"
	}
	return c, ""
}
