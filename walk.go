package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
)

// maxDepth is how many levels of directories are walked: each holds a file descriptor.
const maxDepth = 128

// maxPath is the longest path, in bytes as stored, that has a row: an index entry holds at most 2,704.
const maxPath = 2048

// entry is a file that a walk found: anything but a directory.
type entry struct {
	Path     string `json:"path"` // as stored: see encodeName
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
}

// encodeName writes a file name as UTF-8: a backslash as \\, and a byte that is not part of UTF-8 as
// \xNN. decodePath is its inverse. Neither touches a slash, so both work on whole paths as well.
func encodeName(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, `\`) {
		return name
	}
	var b strings.Builder
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, name[0])
		case r == '\\':
			b.WriteString(`\\`)
		default:
			b.WriteString(name[:size])
		}
		name = name[size:]
	}
	return b.String()
}

// decodePath returns the path that encodeName wrote.
func decodePath(path string) (string, error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(path, `\`)
		b.WriteString(before)
		switch {
		case !found:
			return b.String(), nil
		case strings.HasPrefix(after, `\`):
			b.WriteByte('\\')
			path = after[1:]
		case strings.HasPrefix(after, "x") && len(after) >= 3:
			n, err := strconv.ParseUint(after[1:3], 16, 8)
			if err != nil {
				return "", fmt.Errorf("path %q: bad escape", path)
			}
			b.WriteByte(byte(n))
			path = after[3:]
		default:
			return "", fmt.Errorf("path %q: bad escape", path)
		}
	}
}

// unixNano is the time in nanoseconds since 1970, the nearest that an int64 holds (1678 to 2262).
func unixNano(t time.Time) int64 {
	switch {
	case t.Unix() < math.MinInt64/int64(1e9):
		return math.MinInt64
	case t.Unix() >= math.MaxInt64/int64(1e9):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// walker walks a directory tree in byte order of the stored paths, a directory sorting as "name/". It
// follows no symbolic link.
type walker struct {
	after string                            // what does not come after this path is passed over
	file  func(entry) error                 // called for each file
	warn  func(dir string, err error) error // called for a directory ("a/b/") that could not be listed

	progress atomic.Int64 // rises while the walk gets on
}

// walk walks the tree below a directory; prefix ("" or "a/b/") comes before every path. That the
// directory itself cannot be listed is an error (*listError); so is one that file or warn returns, and
// the end of ctx.
func (w *walker) walk(ctx context.Context, dir *os.Root, prefix string) error {
	return w.directory(ctx, dir, prefix, 0)
}

// directory walks one directory, depth levels below the first.
func (w *walker) directory(ctx context.Context, dir *os.Root, prefix string, depth int) error {
	type child struct {
		entry       // Path is the name, with a slash if it is a directory
		isDir bool  // not a symbolic link to one
		err   error // why a directory cannot be listed
	}
	w.progress.Add(1)
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	children := make([]child, 0, len(names))
	for _, name := range names {
		w.progress.Add(1)
		c := child{entry: entry{Path: encodeName(name)}}
		info, err := dir.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			// Nobody knows what it is. As a file it gets a row that says why; as a directory, a warning.
			children = append(children, child{entry: entry{Path: c.Path + "/"}, isDir: true, err: err})
		case info.IsDir():
			c.isDir = true
			c.Path += "/"
		default:
			c.Size, c.Modified = info.Size(), unixNano(info.ModTime())
		}
		children = append(children, c)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	names = nil
	slices.SortFunc(children, func(a, b child) int { return strings.Compare(a.Path, b.Path) })
	// A name that is renamed over while the directory is read may be listed twice.
	children = slices.CompactFunc(children, func(a, b child) bool { return a.Path == b.Path })
	for _, c := range children {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := c.Path
		c.Path = prefix + name
		switch {
		case c.isDir && w.after >= c.Path && !strings.HasPrefix(w.after, c.Path):
		case !c.isDir && w.after >= c.Path:
		case len(c.Path) > maxPath:
			err = w.warn(prefix, fmt.Errorf("%.40s…: the path has more than %d bytes", name, maxPath))
		case c.err != nil:
			err = w.warn(c.Path, c.err)
		case c.isDir:
			err = w.descend(ctx, dir, name, c.Path, depth+1)
		default:
			err = w.file(c.entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// descend walks the directory of that name, or warns that it cannot be listed.
func (w *walker) descend(ctx context.Context, parent *os.Root, name, prefix string, depth int) error {
	if depth > maxDepth {
		return w.warn(prefix, fmt.Errorf("lies more than %d directories deep", maxDepth))
	}
	raw, err := decodePath(strings.TrimSuffix(name, "/"))
	if err != nil {
		return err // unreachable: encodeName wrote it
	}
	dir, err := parent.OpenRoot(raw)
	if err != nil {
		return w.warn(prefix, err)
	}
	defer dir.Close()
	err = w.directory(ctx, dir, prefix, depth)
	if e, ok := errors.AsType[*listError](err); ok && e.dir == dir {
		return w.warn(prefix, e.err)
	}
	return err
}

// listError is that a directory could not be listed.
type listError struct {
	dir *os.Root
	err error
}

func (e *listError) Error() string { return "list directory: " + e.err.Error() }
func (e *listError) Unwrap() error { return e.err }

// readNames returns the names in a directory in no order. Names alone take a sixth of the memory that
// directory entries do.
func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, &listError{dir, err}
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, &listError{dir, err}
	}
	return names, nil
}

// fileReader makes the rows of a dataset's files. It keeps the directory of the last file open, since
// opening a long path from the top for each file costs half the speed. It is used by one goroutine.
type fileReader struct {
	root    *os.Root
	dir     *os.Root // of the last file
	dirName string
	now     func() time.Time
	before  func(path string) // called before each file is read, if set: tests use it
}

// close gives the open directories back.
func (fr *fileReader) close() {
	if fr.dir != nil {
		fr.dir.Close()
	}
	if fr.root != nil {
		fr.root.Close()
	}
}

// read makes the row of one file, path being as stored. found is false where nothing has that name
// any more. A panic of a parser, which would be a mistake of ours, spoils only this row.
func (fr *fileReader) read(path string) (m ElevationDatasetFileMeta, found bool) {
	m = ElevationDatasetFileMeta{Path: path, Warnings: []string{}, AnalyzedAt: fr.now().UTC()}
	defer func() {
		if v := recover(); v != nil {
			m = ElevationDatasetFileMeta{Path: path, SizeBytes: m.SizeBytes, ModifiedAt: m.ModifiedAt, Warnings: []string{}, AnalyzedAt: m.AnalyzedAt}
			m.fail(fileStatusCorrupt, "the reader failed on this file: %v", v)
			found = true
		}
	}()
	if fr.before != nil {
		fr.before(path)
	}
	f, info, err := fr.open(path)
	if errors.Is(err, errVanished) {
		return m, false
	}
	if info != nil {
		m.SizeBytes = info.Size()
		m.ModifiedAt = time.Unix(0, unixNano(info.ModTime())).UTC()
	} else {
		m.ModifiedAt = time.Unix(0, 0).UTC()
	}
	if err != nil {
		if e, ok := errors.AsType[*notAFile](err); ok {
			m.fail(fileStatusUnsupported, "%s", e.what)
		} else {
			m.fail(fileStatusUnreadable, "%s", reasonOf(err))
		}
		return m, true
	}
	defer f.Close()
	name := path[strings.LastIndexByte(path, '/')+1:]
	readExtent(name, f, info.Size(), &m)
	return m, true
}

// isGone says whether there is no file of that path any more, or none that a walk would find. Any error
// but "not there" leaves that open, and is false.
func isGone(root *os.Root, path string) bool {
	raw, err := decodePath(path)
	if err != nil {
		return false
	}
	for i, c := range []byte(raw) {
		if c != '/' {
			continue
		}
		info, err := root.Lstat(raw[:i])
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
		}
		if !info.IsDir() {
			return true // a file or a symbolic link is there now
		}
	}
	info, err := root.Lstat(raw)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	}
	return info.IsDir()
}

// fail gives the row a status other than ok and the reason for it.
func (m *ElevationDatasetFileMeta) fail(status, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	m.Status, m.Reason = status, &reason
}

// errVanished is that a listed file is not there any more.
var errVanished = errors.New("the file is gone")

// notAFile is something that is not opened, and what it is.
type notAFile struct{ what string }

func (e *notAFile) Error() string { return e.what }

// open opens a regular file for reading, without ever waiting for the other end of a pipe. Symbolic
// links to files are followed within the dataset. What is known of the file is returned also with an
// error.
func (fr *fileReader) open(path string) (*os.File, fs.FileInfo, error) {
	raw, err := decodePath(path)
	if err != nil {
		return nil, nil, err
	}
	slash := strings.LastIndexByte(raw, '/')
	dirName, name := raw[:slash+1], raw[slash+1:]
	if fr.dir == nil || dirName != fr.dirName {
		if fr.dir != nil {
			fr.dir.Close()
		}
		fr.dir, err = fr.root.OpenRoot(dirName + ".")
		if err != nil {
			fr.dir = nil
			return nil, nil, vanishedIfMissing(err)
		}
		fr.dirName = dirName
	}
	info, err := fr.dir.Lstat(name)
	if err != nil {
		return nil, nil, vanishedIfMissing(err)
	}
	root := fr.dir
	if info.Mode().Type() == fs.ModeSymlink {
		// From the top, so that a link may lead to another directory of the dataset.
		root, name = fr.root, raw
		target, err := root.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, info, errors.New("the symbolic link leads to nothing")
		}
		if isEscape(err) {
			return nil, info, errors.New("the symbolic link leads out of the dataset")
		}
		if err != nil {
			return nil, info, err
		}
		if target.IsDir() {
			return nil, info, &notAFile{"a symbolic link to a directory: such links are not followed"}
		}
		info = target
	}
	if !info.Mode().IsRegular() {
		return nil, info, &notAFile{kindOf(info.Mode()) + ", not a regular file"}
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, info, vanishedIfMissing(err)
	}
	opened, err := f.Stat()
	if err == nil && !opened.Mode().IsRegular() {
		err = &notAFile{kindOf(opened.Mode()) + ", not a regular file"}
	}
	if err != nil {
		f.Close()
		return nil, info, err
	}
	return f, opened, nil
}

// vanishedIfMissing makes "not there" errVanished: the walk had found it.
func vanishedIfMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errVanished
	}
	return err
}

// kindOf names what is not a regular file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode.IsDir():
		return "a directory"
	}
	return "something unknown"
}

// isEscape says whether os.Root refused a path because it leads out. The package has no error value
// for it.
func isEscape(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && e.Err.Error() == "path escapes from parent"
}

// reasonOf is what went wrong, without the path that an *fs.PathError repeats.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == io.EOF {
		return "unexpected end"
	}
	return strings.ToValidUTF8(err.Error(), "?")
}
