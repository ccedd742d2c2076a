package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
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
	maxDepth = 128  // levels of directories; each level has a file open
	maxPath  = 2048 // bytes of a path as stored; an index entry holds at most 2,704
)

// entry is a file that a walk found: anything but a directory.
type entry struct {
	Path     string // as stored, see encodeName
	Size     int64
	Modified int64 // nanoseconds since 1970
	Changed  int64 // st_ctime, likewise: the last change of content or attributes, which no program can set
	Sidecars int64 // a checksum of the files that belong to this one, see sumGroups
	link     bool  // it is a symbolic link

	device uint64 // which file it is; several names may be links to one
	inode  uint64
}

// entryOf returns the entry of a file, without its path. stat is a *syscall.Stat_t.
func entryOf(stat any) entry {
	s := stat.(*syscall.Stat_t)
	return entry{
		Size:     s.Size,
		Modified: unixNano(time.Unix(s.Mtim.Unix())),
		Changed:  unixNano(time.Unix(s.Ctim.Unix())),
		link:     s.Mode&syscall.S_IFMT == syscall.S_IFLNK,
		device:   uint64(s.Dev),
		inode:    s.Ino,
	}
}

// row returns the row of a file that has not been read. It has no status.
func (e entry) row(now time.Time) ElevationDatasetFileMeta {
	return ElevationDatasetFileMeta{
		Path:       e.Path,
		SizeBytes:  e.Size,
		ModifiedAt: fileTime{time.Unix(0, e.Modified).UTC()},
		extent:     extent{Warnings: []string{}},
		AnalyzedAt: now.UTC(),
		changed:    e.Changed,
	}
}

// unread returns the row of a file that could not be read, with the reason.
func (e entry) unread(now time.Time, status, format string, args ...any) ElevationDatasetFileMeta {
	m := e.row(now)
	m.Status = status
	m.Reason = new(fmt.Sprintf(format, args...))
	return m
}

// encodeName returns a file name as UTF-8: it writes a backslash as \\ and a byte that is not UTF-8
// as \xNN. decodePath is its inverse. Neither changes a slash, so both take whole paths as well.
func encodeName(name string) string {
	name = strings.ReplaceAll(name, `\`, `\\`)
	if utf8.ValidString(name) {
		return name
	}

	var b []byte
	for name != "" {
		r, size := utf8.DecodeRuneInString(name)
		if r == utf8.RuneError && size == 1 {
			b = fmt.Appendf(b, `\x%02x`, name[0])
		} else {
			b = append(b, name[:size]...)
		}
		name = name[size:]
	}

	return string(b)
}

// decodePath returns the path that encodeName wrote.
func decodePath(path string) (string, error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(path, '\\')
		if i < 0 {
			return b.String() + path, nil
		}

		// Of Go's escapes, only these two are used.
		c, _, rest, err := strconv.UnquoteChar(path[i:], 0)
		if err != nil || !(path[i+1] == '\\' || path[i+1] == 'x') {
			return "", fmt.Errorf("path %q: bad escape", path)
		}

		b.WriteString(path[:i])
		b.WriteByte(byte(c))
		path = rest
	}
}

// unixNano returns the nanoseconds since 1970, or the nearest number whose negative is an int64
// too: the index of files by time holds the negative.
func unixNano(t time.Time) int64 {
	const (
		earliest = math.MinInt64 / int64(1e9) // seconds
		latest   = math.MaxInt64 / int64(1e9)
	)
	if t.Unix() < earliest {
		return -math.MaxInt64
	}
	if t.Unix() >= latest {
		return math.MaxInt64
	}
	return t.UnixNano()
}

// walker walks a directory tree in byte order of the stored paths, without following symbolic
// links. A directory sorts as "name/".
type walker struct {
	file func(entry) error                 // called for each file
	warn func(dir string, err error) error // called for a directory ("", "a/b/") that cannot be listed

	progress atomic.Int64 // rises with every answer of the file system
}

// walk walks the tree below dir; prefix ("" or "a/b/") comes before every path. It returns the
// error that file or warn returned, or that of ctx.
func (w *walker) walk(ctx context.Context, dir *os.Root, prefix string) error {
	names, err := w.list(ctx, dir)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return w.warn(prefix, err)
	}

	sums := w.sumGroups(ctx, dir, names)

	var found []entry
	for len(names) > 0 {
		n := min(len(names), lookBatch)
		found = append(found, w.look(ctx, dir, names[:n])...)
		names = names[n:]
		slices.SortFunc(found, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })

		for len(found) > 0 && ctx.Err() == nil {
			// A directory sorts as "name/", so it may have to wait for names of the next batch.
			e := found[0]
			mustWait := len(names) > 0 && e.Path >= names[0]
			if mustWait {
				break
			}

			e.Sidecars = sums[groupOf(e.Path)]
			if err := w.visit(ctx, dir, prefix, e); err != nil {
				return err
			}
			found = found[1:]
		}
	}

	return ctx.Err()
}

// visit passes a file on, and walks a subdirectory.
func (w *walker) visit(ctx context.Context, dir *os.Root, prefix string, e entry) error {
	name, isDir := strings.CutSuffix(e.Path, "/")
	e.Path = prefix + e.Path
	if len(e.Path) > maxPath {
		return w.warn(prefix, fmt.Errorf("%.40s…: the path has more than %d bytes", name, maxPath))
	}

	if !isDir {
		return w.file(e)
	}

	if strings.Count(e.Path, "/") > maxDepth {
		return w.warn(e.Path, fmt.Errorf("lies more than %d directories deep", maxDepth))
	}

	raw, _ := decodePath(name) // encodeName wrote it, so there is no error
	below, err := dir.OpenRoot(raw + "/")
	if err != nil {
		return w.warn(e.Path, err)
	}
	defer below.Close()

	return w.walk(ctx, below, e.Path)
}

// list returns the names in a directory as stored, sorted.
func (w *walker) list(ctx context.Context, dir *os.Root) (names []string, err error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()

	for err == nil {
		var some []string
		some, err = f.Readdirnames(lookBatch)
		for _, name := range some {
			names = append(names, encodeName(name))
		}

		w.progress.Add(1)
		err = cmp.Or(ctx.Err(), err)
	}
	if err != io.EOF {
		return nil, err
	}

	// A file that a rename replaces meanwhile may be listed twice.
	slices.Sort(names)
	return slices.Compact(names), nil
}

// lookBatch is how many names of a directory are looked at together.
const lookBatch = 256

// look calls Lstat for each name, several at a time because a network file system is slow, and
// leaves out names that are gone. The path of a subdirectory ends in "/". If Lstat fails, the name
// is treated as a subdirectory: visit then warns of it, and rows at and below it stay. The result
// is partial if ctx ends.
func (w *walker) look(ctx context.Context, dir *os.Root, names []string) []entry {
	const atOnce = 16
	entries := make([]entry, len(names)) // without a path if the name is gone

	lookAt := func(i int) {
		raw, _ := decodePath(names[i]) // encodeName wrote it, so there is no error
		info, err := dir.Lstat(raw)
		w.progress.Add(1)

		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil || info.IsDir() {
			entries[i].Path = names[i] + "/"
			return
		}
		entries[i] = entryOf(info.Sys())
		entries[i].Path = names[i]
	}

	var all sync.WaitGroup
	for first := range min(atOnce, len(names)) {
		all.Go(func() {
			for i := first; i < len(names) && ctx.Err() == nil; i += atOnce {
				lookAt(i)
			}
		})
	}
	all.Wait()

	return slices.DeleteFunc(entries, func(e entry) bool { return e.Path == "" })
}

// sumGroups returns a checksum for each group of files that has a sidecar: of the sidecars' names,
// sizes and times, and of the names of the rasters. The row of any file in the group may depend on
// them. A sidecar that is a symbolic link or was written just now may change and keep its size and
// time. With such a sidecar the checksum is random, so that the files are read again next time.
func (w *walker) sumGroups(ctx context.Context, dir *os.Root, names []string) map[string]int64 {
	var sidecars []string
	for _, name := range names {
		if hasExtension(path.Ext(name), sidecarExtensions+sidecarSuffixes) {
			sidecars = append(sidecars, name)
		}
	}

	sums := map[string]int64{}
	for batch := range slices.Chunk(sidecars, lookBatch) {
		for _, e := range w.look(ctx, dir, batch) {
			e.Path = strings.TrimSuffix(e.Path, "/") // its Lstat has failed, or it is a directory

			sum := checksum(e.Path, e.Size, e.Modified, e.Changed)
			mayChange := e.link || !isSettled(time.Unix(0, e.Modified), time.Now())
			if mayChange {
				sum = rand.Int64()
			}
			sums[groupOf(e.Path)] += sum
		}
	}

	for _, name := range names {
		_, hasSidecar := sums[groupOf(name)]
		if hasSidecar && hasExtension(path.Ext(name), rasterExtensions) {
			sums[groupOf(name)] += checksum(name)
		}
	}

	return sums
}

// groupOf returns the name of a raster or sidecar without its extensions, which the two have in
// common: "dem" for DEM.tif, dem.tfw and dem.tif.aux.xml. File systems may ignore case.
func groupOf(name string) string {
	name = stemOf(strings.ToLower(name))
	for hasExtension(path.Ext(name), rasterExtensions+sidecarExtensions+sidecarSuffixes) {
		name = stemOf(name)
	}
	return name
}

// stemOf returns a name without its extension.
func stemOf(name string) string { return strings.TrimSuffix(name, path.Ext(name)) }

// checksum returns the FNV-1a hash of the values as text.
func checksum(values ...any) int64 {
	h := fnv.New64a()
	fmt.Fprintln(h, values...)
	return int64(h.Sum64())
}

// isSettled reports whether a file was modified so long ago that any later change gives it another
// time.
func isSettled(modified, now time.Time) bool { return modified.Before(now.Add(-settleTime)) }

// settleTime is the longest step in which a file system counts time.
const settleTime = 2 * time.Second

// fileReader reads the files of a dataset into rows, one after the other. It keeps the directory of
// the last file open, because opening a long path from the top for each file halves the speed.
type fileReader struct {
	root    *os.Root
	dir     *os.File // the directory of the last file; nil at first, and after an error
	dirName string   // "" or "a/b/"
	name    string   // of the last file in dir
	header  headerReader
	crss    setCRSs // for files that name none
	now     func() time.Time
	before  func(path string) // called before each file is read; tests set it
	listed  bool              // a walk has set Sidecars of the entries

	// opened is called while each file is still open, after its header was read; it may be nil.
	opened func(m *ElevationDatasetFileMeta)
}

// close closes the open directories.
func (fr *fileReader) close() {
	fr.dir.Close() // nil is allowed
	fr.root.Close()
}

// readEntry reads a file into a row. found is false if nothing has its name any more. The row has
// the size and time of the file as it was opened. If a parser panics, the row is corrupt.
func (fr *fileReader) readEntry(e entry) (m ElevationDatasetFileMeta, found bool) {
	opened := e
	defer func() {
		if v := recover(); v != nil {
			m = opened.unread(fr.now(), fileStatusCorrupt, "the reader failed on this file: %v", v)
			found = true
		}
	}()

	if fr.before != nil {
		fr.before(e.Path)
	}

	f, opened, err := fr.open(e)
	if isMissing(err) {
		return m, false
	}

	opened = cmp.Or(opened, e) // with an error, it may be empty
	opened.Path = e.Path

	if err != nil {
		m = opened.unread(fr.now(), fileStatusUnreadable, "%s", reasonOf(err))
		if _, m.unsettled = errors.AsType[*notAFile](err); m.unsettled {
			m.Status = fileStatusUnsupported
		}
		return m, true
	}
	defer f.Close()

	m = opened.row(fr.now())

	// If the walk has found no sidecar, none is looked for.
	beside := fr.readBeside
	if fr.listed && e.Sidecars == 0 {
		beside = func(string, int) ([]byte, bool, error) { return nil, false, nil }
	}

	m.extent = fr.header.readExtent(fr.name, f, opened.Size, beside)
	crs, verticalCRS := fr.crss.of(e.Path)
	m.assume(crs, verticalCRS, fr.name, &fr.header.crs)
	if fr.opened != nil {
		fr.opened(&m)
	}
	return m, true
}

// readBeside is the besideFunc of the last file. It reads a file in the directory of that file.
func (fr *fileReader) readBeside(name string, limit int) (content []byte, found bool, err error) {
	// Most names do not exist; faccessat is the cheapest call that tells.
	err = syscall.Faccessat(int(fr.dir.Fd()), name, 0, 0)
	if err == nil && limit == 0 {
		return nil, true, nil
	}
	if err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ENAMETOOLONG {
		return nil, false, nil
	}

	f, _, err := fr.openNamed(name, false)
	if _, other := errors.AsType[*notAFile](err); other || isMissing(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", encodeName(name), err)
	}
	defer f.Close()

	content, err = io.ReadAll(io.NewSectionReader(f, 0, int64(limit)))
	return content, true, err
}

// notAFile is the error for anything that is not a regular file, and so is not opened.
type notAFile struct{ reason string }

func (e *notAFile) Error() string { return e.reason }

// open opens a regular file for reading, also through symbolic links within the dataset, but never
// a pipe. The entry has the size and time of the opened file; with an error, those that are known.
func (fr *fileReader) open(e entry) (openFile, entry, error) {
	raw, err := decodePath(e.Path)
	if err != nil {
		return nil, e, err
	}

	slash := strings.LastIndexByte(raw, '/')
	dirName := raw[:slash+1]
	name := raw[slash+1:]
	if fr.dir == nil || dirName != fr.dirName {
		fr.dir.Close() // nil is allowed
		if fr.dir, err = fr.root.Open(dirName + "."); err != nil {
			return nil, e, err
		}
	}

	fr.dirName = dirName
	fr.name = name
	return fr.openNamed(name, e.Size > 0)
}

// openNamed is open for a name in the directory of the last file. Without hasSize it may be a pipe,
// whose other end would notice the opening, so its type is checked first.
func (fr *fileReader) openNamed(name string, hasSize bool) (openFile, entry, error) {
	if hasSize {
		if f, e, err := openRegular(fr.dir, name); err == nil {
			return f, e, nil
		}
	}

	info, err := fr.root.Lstat(fr.dirName + name)
	if err != nil {
		return nil, entry{}, err
	}

	e := entryOf(info.Sys())

	switch info.Mode().Type() {
	case 0:
		f, opened, err := openRegular(fr.dir, name)
		return f, cmp.Or(opened, e), err
	case fs.ModeSymlink:
		return fr.openLink(fr.dirName+name, e)
	}

	return nil, e, notRegular(info.Mode())
}

// openLink is open for a symbolic link. It may lead to another directory of the dataset, so it is
// opened from the root.
func (fr *fileReader) openLink(path string, e entry) (openFile, entry, error) {
	target, err := fr.root.Stat(path)
	switch {
	case isMissing(err):
		return nil, e, errors.New("the symbolic link leads to nothing")
	case isEscape(err):
		return nil, e, errors.New("the symbolic link leads out of the dataset")
	case err != nil:
		return nil, e, err
	case target.IsDir():
		return nil, e, &notAFile{"a symbolic link to a directory: such links are not followed"}
	case !target.Mode().IsRegular():
		return nil, e, notRegular(target.Mode())
	}

	f, err := fr.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, e, err
	}

	// It may have been replaced since.
	opened, err := f.Stat()
	if err == nil && !opened.Mode().IsRegular() {
		err = notRegular(opened.Mode())
	}
	if err != nil {
		f.Close()
		return nil, e, err
	}

	return f, entryOf(opened.Sys()), nil
}

// openFile is an open regular file.
type openFile interface {
	io.ReaderAt
	io.Closer
}

// descriptor is the descriptor of an open file. An os.File would register it with the runtime's
// poller, which costs as much as reading the header.
type descriptor int

// openRegular opens a regular file of a directory by its bare name. It follows no link.
func openRegular(dir *os.File, name string) (openFile, entry, error) {
	const flags = syscall.O_RDONLY |
		syscall.O_NONBLOCK |
		syscall.O_NOFOLLOW |
		syscall.O_CLOEXEC
	fd, err := syscall.Openat(int(dir.Fd()), name, flags, 0)
	if err != nil {
		return nil, entry{}, err
	}

	var stat syscall.Stat_t
	err = syscall.Fstat(fd, &stat)
	if err == nil && stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		err = &notAFile{"not a regular file any more"}
	}
	if err != nil {
		syscall.Close(fd)
		return nil, entry{}, err
	}

	return descriptor(fd), entryOf(&stat), nil
}

// ReadAt implements io.ReaderAt.
func (d descriptor) ReadAt(p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		k, err := syscall.Pread(int(d), p[n:], offset+int64(n))
		if k == 0 && err == nil {
			err = io.EOF
		}
		if err != nil && err != syscall.EINTR {
			return n, err
		}

		n += max(k, 0)
	}

	return n, nil
}

// Close closes the descriptor.
func (d descriptor) Close() error { return syscall.Close(int(d)) }

// notRegular returns the *notAFile for a kind of file.
func notRegular(mode fs.FileMode) error {
	kinds := map[fs.FileMode]string{
		fs.ModeNamedPipe:                  "a named pipe",
		fs.ModeSocket:                     "a socket",
		fs.ModeDevice:                     "a device",
		fs.ModeDevice | fs.ModeCharDevice: "a device",
	}
	kind := cmp.Or(kinds[mode.Type()], "something else")
	return &notAFile{kind + ", not a regular file"}
}

// isMissing reports whether the path does not exist, or leads through something else than
// directories.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// isEscape reports whether os.Root refused a path that leaves it. Package os has no error for this.
func isEscape(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && e.Err.Error() == "path escapes from parent"
}
