package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
)

// Limits of a walk.
const (
	maxDepth = 128  // levels of directories: each holds a file descriptor
	maxPath  = 2048 // bytes of a path as stored: an index entry holds at most 2,704
)

// entry is a file that a walk found: anything but a directory.
type entry struct {
	Path     string // as stored: see encodeName
	Size     int64
	Modified int64 // nanoseconds since 1970
	Sidecars int64 // changes with what lies beside the file: see neighbours; 0 where no walk has looked
}

// nothingBeside are the Sidecars of a file that lies by itself.
const nothingBeside = 1

// row is the row of a file that is not read yet: it has no status.
func (e entry) row(now time.Time) ElevationDatasetFileMeta {
	return ElevationDatasetFileMeta{
		Path:       e.Path,
		SizeBytes:  e.Size,
		ModifiedAt: time.Unix(0, e.Modified).UTC(),
		extent:     extent{Warnings: []string{}},
		AnalyzedAt: now.UTC(),
	}
}

// encodeName writes a file name as UTF-8: a backslash as \\, a byte that is not part of UTF-8 as \xNN. decodePath is
// its inverse. Neither touches a slash, so both work on whole paths as well.
func encodeName(name string) string {
	name = strings.ReplaceAll(name, `\`, `\\`)
	if utf8.ValidString(name) {
		return name
	}
	var b strings.Builder
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, name[0])
		} else {
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
		i := strings.IndexByte(path, '\\')
		if i < 0 {
			return b.String() + path, nil
		}
		c, _, rest, err := strconv.UnquoteChar(path[i:], 0)
		if err != nil || path[i+1] != '\\' && path[i+1] != 'x' {
			return "", fmt.Errorf("path %q: bad escape", path)
		}
		b.WriteString(path[:i])
		b.WriteByte(byte(c))
		path = rest
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

// walker walks a directory tree in byte order of the stored paths, a directory sorting as "name/", and no links.
type walker struct {
	after string                            // what does not come after this path is passed over
	file  func(entry) error                 // called for each file
	warn  func(dir string, err error) error // called for a directory ("a/b/") that could not be listed

	progress atomic.Int64   // rises while the walk gets on
	entries  [64 << 10]byte // of the directory that is listed
}

// walk walks the tree below a directory; prefix ("" or "a/b/") comes before every path. That the directory itself
// cannot be listed is an error (*listError); so is one that file or warn returns, and the end of ctx.
func (w *walker) walk(ctx context.Context, dir *os.Root, prefix string) error {
	beside := neighbours{}
	from, below := strings.CutPrefix(w.after, prefix)
	switch name, _, isDir := strings.Cut(from, "/"); {
	case !below:
		from = ""
	case isDir:
		from = name + "/"
	default:
		from += "\x00" // what comes next
	}
	for more, first := true, true; more; first = false {
		var names []string
		var err error
		if names, more, err = w.list(ctx, dir, from, beside, first); err != nil {
			return err
		}
		for batch := range slices.Chunk(names, 256) {
			files := w.look(dir, batch)
			for i, name := range batch {
				e := entry{Path: prefix + name, Sidecars: beside.of(name)}
				if files[i] != nil { // else the reader will see why
					e.Size, e.Modified = files[i].Size(), unixNano(files[i].ModTime())
				}
				switch {
				case len(e.Path) > maxPath:
					err = w.warn(prefix, fmt.Errorf("%.40s…: the path has more than %d bytes", name, maxPath))
				case strings.HasSuffix(name, "/"):
					err = w.descend(ctx, dir, name, e.Path)
				default:
					err = w.file(e)
				}
				if err = cmp.Or(err, ctx.Err()); err != nil {
					return err
				}
			}
			from = batch[len(batch)-1] + "\x00"
		}
	}
	return nil
}

// maxListed is how many names of a directory are kept at once: a larger directory is listed again for each so many.
const maxListed = 100_000

// list returns the least names in a directory, from one on, in order, and whether there are more. A directory's has a
// slash behind it. The first time it notes what lies beside what. It reads the entries as the system gives them, with
// their types: os.File would look at each entry or keep six times the memory.
func (w *walker) list(ctx context.Context, dir *os.Root, from string, beside neighbours, first bool) (names []string,
	more bool, err error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, false, &listError{err}
	}
	defer f.Close()
	bound := ""
	if !first {
		names = make([]string, 0, maxListed*3/2)
	}
	shorten := func() {
		slices.Sort(names)
		names = slices.Compact(names) // what is renamed over meanwhile may be listed twice
		if len(names) > maxListed {
			clear(names[maxListed:])
			names, more, bound = names[:maxListed], true, names[maxListed-1]
		}
	}
	for {
		w.progress.Add(1)
		n, err := syscall.ReadDirent(int(f.Fd()), w.entries[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, false, &listError{err}
		}
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if n <= 0 {
			shorten()
			return names, more, nil
		}
		for entries := w.entries[:n]; len(entries) > 0; {
			// struct linux_dirent64: number, offset, length, type, and the name to a NUL.
			length, kind := binary.NativeEndian.Uint16(entries[16:]), entries[18]
			text, _, _ := bytes.Cut(entries[19:length], []byte{0})
			entries = entries[length:]
			if !first && kind == syscall.DT_REG && utf8.Valid(text) && !bytes.Contains(text, []byte{'\\'}) &&
				(string(text) < from || bound != "" && string(text) > bound) {
				continue // as below, but without making a string: most names are of other parts
			}
			raw := string(text)
			if raw == "." || raw == ".." {
				continue
			}
			if kind == syscall.DT_UNKNOWN {
				w.progress.Add(1)
				info, err := dir.Lstat(raw)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil || info.IsDir() { // nobody knows what it is: to open it as a directory says why
					kind = syscall.DT_DIR
				}
			}
			name := encodeName(raw)
			if first {
				beside.add(dir, raw, name)
			}
			if kind == syscall.DT_DIR {
				name += "/"
			}
			if name >= from && (bound == "" || name < bound) {
				names = append(names, name)
			}
			if len(names) == maxListed*3/2 {
				shorten()
			}
		}
	}
}

// look looks at the files among names, several at a time: a network file system takes its time for each. What it
// knows nothing of is nil.
func (w *walker) look(dir *os.Root, names []string) []fs.FileInfo {
	const atOnce = 16
	infos := make([]fs.FileInfo, len(names))
	var all sync.WaitGroup
	for first := range min(atOnce, len(names)) {
		all.Go(func() {
			for i := first; i < len(names); i += atOnce {
				raw, err := decodePath(names[i])
				if err == nil && !strings.HasSuffix(raw, "/") {
					if info, err := dir.Lstat(raw); err == nil {
						infos[i] = info
					}
				}
				w.progress.Add(1)
			}
		})
	}
	all.Wait()
	return infos
}

// neighbours says what lies beside the files of a directory that is called as they are but for the extension: for each
// stem, a sum of all sidecars with their sizes and times, and one of the names of all rasters. Stems share their sums
// with others, so that these take little memory: then a file is read once more than it had to be.
type neighbours map[neighbour]int64

// neighbour is the key of a sum.
type neighbour struct {
	raster bool
	stem   uint16
}

// add notes a name of the directory. What changes at this moment, or what a symbolic link leads to, might be changed
// again unseen: such a sidecar is never the same.
func (n neighbours) add(dir *os.Root, raw, name string) {
	switch extension := path.Ext(name); {
	case hasExtension(extension, rasterExtensions):
		n[neighbour{true, stemSum(name)}] += int64(nameSum(name))
	case hasExtension(extension, sidecarExtensions):
		sum := int64(rand.Uint64())
		if info, err := dir.Lstat(raw); err == nil && info.Mode().Type() != fs.ModeSymlink && isSettled(info.ModTime(), time.Now()) {
			sum = int64(nameSum(fmt.Sprint(name, info.Size(), info.ModTime().UnixNano())))
		}
		n[neighbour{false, stemSum(name)}] += sum
	}
}

// of is what changes with what a reader of that file may look at beside it: see rasterOfSidecar.
func (n neighbours) of(name string) int64 {
	sum := nothingBeside + n[neighbour{false, stemSum(name)}]
	for hasExtension(path.Ext(name), sidecarExtensions+sidecarSuffixes) {
		name = strings.TrimSuffix(name, path.Ext(name))
		sum += n[neighbour{true, shortSum(name)}] + n[neighbour{true, stemSum(name)}]
	}
	return sum
}

// isSettled says whether a file's time of change is old enough at a moment that any later change shows in it: file
// systems tell times by up to two seconds apart.
func isSettled(modified, now time.Time) bool { return modified.Before(now.Add(-2 * time.Second)) }

// nameSum is the FNV-1a hash of a text.
func nameSum(text string) uint64 {
	sum := uint64(14695981039346656037)
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * 1099511628211
	}
	return sum
}

// shortSum is 15 bits of nameSum, in any case: enough to tell most names apart, few enough for a map of all there are.
func shortSum(text string) uint16 { return uint16(nameSum(strings.ToLower(text))) >> 1 }

// stemSum is the shortSum of a name without its extension.
func stemSum(name string) uint16 { return shortSum(strings.TrimSuffix(name, path.Ext(name))) }

// descend walks the directory of that name, or warns that it cannot be listed.
func (w *walker) descend(ctx context.Context, parent *os.Root, name, prefix string) error {
	if strings.Count(prefix, "/") > maxDepth {
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
	err = w.walk(ctx, dir, prefix)
	if e, ok := errors.AsType[*listError](err); ok { // of this directory: one below it is warned of there
		return w.warn(prefix, e.err)
	}
	return err
}

// listError is that a directory could not be listed.
type listError struct{ err error }

func (e *listError) Error() string { return "list directory: " + reasonOf(e.err) }
func (e *listError) Unwrap() error { return e.err }

// fileReader makes the rows of a dataset's files. It keeps the directory of the last file open, since
// opening a long path from the top for each file costs half the speed. It is used by one goroutine.
type fileReader struct {
	root    *os.Root
	dir     *os.Root // of the last file
	dirFile *os.File // of dir, for its descriptor
	dirName string   // "" or "a/b/"
	name    string   // of the last file in it
	single  bool     // the walk saw no sidecar of it
	header  headerReader
	now     func() time.Time
	before  func(path string) // called before each file is read, if set: tests use it
}

// close gives the open directories back.
func (fr *fileReader) close() {
	fr.closeDirectory()
	fr.root.Close()
}

// closeDirectory gives the directory of the last file back.
func (fr *fileReader) closeDirectory() {
	if fr.dir != nil {
		fr.dir.Close()
	}
	if fr.dirFile != nil {
		fr.dirFile.Close()
	}
	fr.dir, fr.dirFile = nil, nil
}

// readEntry makes the row of a file; found is false where nothing has that name any more. What had a size when a walk
// found it is opened without looking first. A panic of a parser, a mistake of ours, spoils only this row.
func (fr *fileReader) readEntry(e entry) (m ElevationDatasetFileMeta, found bool) {
	is := e
	defer func() {
		if v := recover(); v != nil {
			m = is.row(fr.now())
			m.fail(fileStatusCorrupt, "the reader failed on this file: %v", v)
			found = true
		}
	}()
	if fr.before != nil {
		fr.before(e.Path)
	}
	fr.single = e.Sidecars == nothingBeside
	f, is, err := fr.open(e)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return m, false
	}
	is.Path = e.Path
	m = is.row(fr.now())
	if err != nil {
		status := fileStatusUnreadable
		if _, ok := errors.AsType[*notAFile](err); ok {
			status = fileStatusUnsupported
			m.unsettled = true
		}
		m.fail(status, "%s", reasonOf(err))
		return m, true
	}
	defer f.Close()
	m.extent = fr.header.readExtent(fr.name, f, is.Size, fr.readBeside)
	return m, true
}

// readBeside is the besideFunc of the file that is read: in its directory, or that of the link to it.
func (fr *fileReader) readBeside(name string, limit int) (content []byte, found bool, err error) {
	if fr.single && hasExtension(path.Ext(name), sidecarExtensions) {
		return nil, false, nil // one that has come since shows in the next walk
	}
	// Mostly it is not there, and this is the cheapest way to know.
	err = syscall.Faccessat(int(fr.dirFile.Fd()), name, 0, 0)
	if err == syscall.ENOENT || err == syscall.ENAMETOOLONG || err == nil && limit == 0 {
		return nil, err == nil, nil
	}
	f, _, err := fr.openNamed(name, false)
	if _, other := errors.AsType[*notAFile](err); other || errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", encodeName(name), err)
	}
	defer f.Close()
	content, err = io.ReadAll(io.NewSectionReader(f, 0, int64(limit)))
	return content, true, err
}

// isGone says whether no walk would find a file of that path any more; false where an error leaves that open.
func isGone(root *os.Root, path string) bool {
	raw, err := decodePath(path)
	if err != nil {
		return false
	}
	for i := range len(raw) + 1 {
		if i < len(raw) && raw[i] != '/' {
			continue
		}
		info, err := root.Lstat(raw[:i])
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
		}
		if info.IsDir() == (i == len(raw)) {
			return true // a file or a symbolic link is where its directory was, or a directory where it was
		}
	}
	return false
}

// fail gives the row a status other than ok and the reason for it.
func (m *ElevationDatasetFileMeta) fail(status, format string, args ...any) {
	m.Status, m.Reason = status, new(fmt.Sprintf(format, args...))
}

// notAFile is something that is not opened, and what it is.
type notAFile struct{ what string }

func (e *notAFile) Error() string { return e.what }

// open opens a regular file for reading, without ever waiting for the other end of a pipe. Symbolic links to files
// are followed within the dataset. What is known of the file is returned also with an error.
func (fr *fileReader) open(e entry) (openFile, entry, error) {
	raw, err := decodePath(e.Path)
	if err != nil {
		return nil, e, err
	}
	slash := strings.LastIndexByte(raw, '/')
	dirName, name := raw[:slash+1], raw[slash+1:]
	if fr.dir == nil || dirName != fr.dirName {
		fr.closeDirectory()
		dir, err := fr.root.OpenRoot(dirName + ".")
		if err != nil {
			return nil, e, err
		}
		fr.dir, fr.dirName = dir, dirName
		if fr.dirFile, err = dir.Open("."); err != nil {
			fr.closeDirectory()
			return nil, e, err
		}
	}
	fr.name = name
	return fr.openNamed(name, e.Size > 0)
}

// openNamed is open for a name in the directory of the last file. What is not known to be a regular file or a
// link is looked at before it is opened: opening a pipe would be noticed at its other end.
func (fr *fileReader) openNamed(name string, known bool) (openFile, entry, error) {
	if known {
		if f, is, err := openRegular(fr.dirFile, name); err == nil {
			return f, is, nil
		}
	}
	info, err := fr.dir.Lstat(name)
	if err != nil {
		return nil, entry{}, err
	}
	is := entry{Size: info.Size(), Modified: unixNano(info.ModTime())}
	if info.Mode().IsRegular() {
		f, opened, err := openRegular(fr.dirFile, name)
		return f, cmp.Or(opened, is), err
	}
	if info.Mode().Type() != fs.ModeSymlink {
		return nil, is, notRegular(info.Mode())
	}
	// From the top, so that a link may lead to another directory of the dataset.
	name = fr.dirName + name
	target, err := fr.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, is, errors.New("the symbolic link leads to nothing")
	case isEscape(err):
		return nil, is, errors.New("the symbolic link leads out of the dataset")
	case err != nil:
		return nil, is, err
	case target.IsDir():
		return nil, is, &notAFile{"a symbolic link to a directory: such links are not followed"}
	case !target.Mode().IsRegular():
		return nil, is, notRegular(target.Mode())
	}
	f, err := fr.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, is, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = notRegular(info.Mode())
	}
	if err != nil {
		f.Close()
		return nil, is, err
	}
	return f, entry{Size: info.Size(), Modified: unixNano(info.ModTime())}, nil
}

// openFile is a regular file that is open for reading.
type openFile interface {
	io.ReaderAt
	io.Closer
}

// descriptor is an open file that is not offered to the poller, as os.File does at as much cost as the reading.
type descriptor int

// openRegular opens a regular file of a directory by its bare name. It follows no link and waits for nothing.
func openRegular(dir *os.File, name string) (openFile, entry, error) {
	fd, err := syscall.Openat(int(dir.Fd()), name, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, entry{}, err
	}
	var stat syscall.Stat_t
	if err = syscall.Fstat(fd, &stat); err == nil && stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = &notAFile{"not a regular file any more"}
	}
	if err != nil {
		syscall.Close(fd)
		return nil, entry{}, err
	}
	return descriptor(fd), entry{Size: stat.Size, Modified: unixNano(time.Unix(stat.Mtim.Unix()))}, nil
}

// ReadAt reads as an io.ReaderAt.
func (d descriptor) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		k, err := syscall.Pread(int(d), p[n:], offset+int64(n))
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return n, err
		case k == 0:
			return n, io.EOF
		default:
			n += k
		}
	}
	return n, nil
}

// Close gives the descriptor back.
func (d descriptor) Close() error { return syscall.Close(int(d)) }

// notRegular is the *notAFile that names what is no regular file.
func notRegular(mode fs.FileMode) error {
	kind := "something else"
	switch {
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	}
	return &notAFile{kind + ", not a regular file"}
}

// isEscape says whether os.Root refused a path because it leads out: package os has no error value for it.
func isEscape(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && e.Err.Error() == "path escapes from parent"
}
