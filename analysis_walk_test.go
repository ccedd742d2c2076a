package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// TestEncodeName: every name has one spelling, in UTF-8, and it leads back to the name.
func TestEncodeName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"plain.tif":    "plain.tif",
		"höhe.tif":     "höhe.tif",
		`a\b`:          `a\\b`,
		"a\xffb":       `a\xffb`,
		`a\xffb`:       `a\\xffb`,
		"\xed\xa0\x80": `\xed\xa0\x80`, // a surrogate
		"a\xc3":        `a\xc3`,
		"dir\xff/f\\":  `dir\xff/f\\`,
		"\ufffd":       "\ufffd",
		"line\nbreak":  "line\nbreak",
	} {
		got := encodeName(name)
		back, err := decodePath(got)
		if got != want || back != name || err != nil || !utf8.ValidString(got) {
			t.Errorf("%q: %q, back %q, %v", name, got, back, err)
		}
	}

	for _, path := range []string{`a\`, `a\x`, `a\x1`, `a\xzz`, `a\n`} {
		if name, err := decodePath(path); err == nil {
			t.Errorf("%q was decoded as %q", path, name)
		}
	}
}

func FuzzEncodeName(f *testing.F) {
	f.Add("a\xffb\\")
	f.Fuzz(func(t *testing.T, name string) {
		encoded := encodeName(name)
		back, err := decodePath(encoded)
		if back != name || err != nil || !utf8.ValidString(encoded) {
			t.Errorf("%q: %q, back %q, %v", name, encoded, back, err)
		}
	})
}

// TestUnixNano: times beyond what 64 bits of nanoseconds hold are the nearest that they do.
func TestUnixNano(t *testing.T) {
	t.Parallel()
	for _, year := range []int{-5000, 1600, 1970, 2026, 2300, 30000} {
		ns := unixNano(time.Date(year, 1, 1, 0, 0, 0, 5, time.UTC))
		if back := time.Unix(0, ns).UTC(); (year > 1700 && year < 2200) != (back.Year() == year) || (year > 2200) != (back.Year() == 2262) {
			t.Errorf("year %d became %v", year, back)
		}
		if _, err := json.Marshal(time.Unix(0, ns).UTC()); err != nil {
			t.Error(err)
		}
	}
}

// TestTimesFarAway: files whose times lie beyond what 64 bits of nanoseconds hold are stored and
// listed by their times.
func TestTimesFarAway(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	id := ts.addFiles("old", nil)
	var files []batchFile
	for _, year := range []int{1600, 30000, 2026} {
		at := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
		e := entryOf(&syscall.Stat_t{Mtim: syscall.Timespec{Sec: at}, Ctim: syscall.Timespec{Sec: at}})
		e.Path = fmt.Sprint(year)
		m := e.unread(time.Now(), fileStatusUnsupported, "text")
		files = append(files, batchFile{entry: e, row: &m})
	}

	err := inTransaction(t.Context(), ts.db, func(tx pgx.Tx) error {
		_, err := replaceRows(t.Context(), tx, task{DatasetID: id}, files)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	var paths []string
	for _, item := range c.must(200, "GET", fmt.Sprintf("/api/v1/datasets/%d/files?sort=-modified", id), nil).items() {
		paths = append(paths, item["path"].(string))
	}

	if want := []string{"30000", "2026", "1600"}; !slices.Equal(paths, want) {
		t.Errorf("%q, want %q", paths, want)
	}
}

// mustOpenRoot opens a directory for a test.
func mustOpenRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// TestWalkOrder: paths come in byte order, whatever the names.
func TestWalkOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "b", "-", ".x", "0", "\\", "\xff", "ü", " "}
	for range 300 {
		var parts []string
		for range 1 + r.IntN(4) {
			parts = append(parts, "n"+letters[r.IntN(len(letters))]+letters[r.IntN(len(letters))])
		}

		path := filepath.Join(dir, filepath.Join(parts...))
		if os.MkdirAll(filepath.Dir(path), 0o755) == nil {
			os.WriteFile(path, nil, 0o644) // fails where a directory is: so be it
		}
	}

	root := mustOpenRoot(t, dir)
	var paths []string
	w := walker{
		file: func(e entry) error { paths = append(paths, e.Path); return nil },
		warn: func(dir string, err error) error { return fmt.Errorf("%s: %w", dir, err) },
	}
	if err := w.walk(context.Background(), root, ""); err != nil {
		t.Fatal(err)
	}

	if len(paths) < 100 || !slices.IsSorted(paths) {
		t.Fatalf("%d paths, sorted: %v", len(paths), slices.IsSorted(paths))
	}
}

// TestWalkOrderInLargeDirectory: a directory sorts as "name/", also if very many names come between
// its name and that.
func TestWalkOrderInLargeDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := []string{"a-/f", "a/f"}
	for i := range 3 * lookBatch {
		want = append(want, fmt.Sprintf("a--%04d", i), fmt.Sprintf("a.%04d", i))
	}

	slices.Sort(want)
	for _, path := range want {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}

	var got []string
	w := walker{
		file: func(e entry) error { got = append(got, e.Path); return nil },
		warn: func(_ string, err error) error { return err },
	}
	if err := w.walk(t.Context(), mustOpenRoot(t, dir), ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %q", err, got)
	}
}

// TestWalkDepth: a tree deeper than the limit is warned of, and does not use up file descriptors.
func TestWalkDepth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+5)), 0o755); err != nil {
		t.Fatal(err)
	}

	long := filepath.Join(dir, strings.Repeat(strings.Repeat("x", 200)+"/", 11))
	if err := os.MkdirAll(long, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(long, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}

	var warnings []string
	w := walker{
		file: func(e entry) error { t.Errorf("found %q", e.Path); return nil },
		warn: func(_ string, err error) error { warnings = append(warnings, err.Error()); return nil },
	}
	if err := w.walk(context.Background(), mustOpenRoot(t, dir), ""); err != nil {
		t.Fatal(err)
	}

	if len(warnings) != 2 || !strings.Contains(warnings[0], "deep") || !strings.Contains(warnings[1], "bytes") {
		t.Errorf("warnings: %q", warnings)
	}
}

// oddFiles makes in dir one of everything that can lie in a folder, and returns what status each
// has to get and what its reason has to hold.
func oddFiles(t *testing.T, dir string) map[string][2]string {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "outside.tif")
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}

	write := func(name string, content []byte) error { return os.WriteFile(filepath.Join(dir, name), content, 0o644) }
	good := sampleTIFF()
	must(
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(outside, good, 0o644),
		write("good.tif", good),
		write("sub/other.tif", good),
		write("empty.tif", nil),
		write("truncated.tif", good[:20]),
		write("text.txt", []byte("some text\n")),
		write("not-utf8-\xff.tif", good),
		write(`back\slash.tif`, good),
		syscall.Mkfifo(filepath.Join(dir, "pipe.tif"), 0o644),
		os.Symlink("sub/other.tif", filepath.Join(dir, "link.tif")),
		os.Symlink("../good.tif", filepath.Join(dir, "sub/up.tif")),
		os.Symlink(outside, filepath.Join(dir, "absolute.tif")),
		os.Symlink("../../../../../../../../etc/passwd", filepath.Join(dir, "passwd.tif")),
		os.Symlink("nowhere.tif", filepath.Join(dir, "dangling.tif")),
		os.Symlink("loop.tif", filepath.Join(dir, "loop.tif")),
		os.Symlink("sub", filepath.Join(dir, "linked-dir")),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero.tif")),
		os.Symlink("pipe.tif", filepath.Join(dir, "piped.tif")),
	)

	want := map[string][2]string{
		"good.tif":          {"ok", ""},
		"sub/other.tif":     {"ok", ""},
		"empty.tif":         {"unsupported", "empty"},
		"truncated.tif":     {"corrupt", ""},
		"text.txt":          {"unsupported", "text"},
		`not-utf8-\xff.tif`: {"ok", ""},
		`back\\slash.tif`:   {"ok", ""},
		"pipe.tif":          {"unsupported", "named pipe"},
		"link.tif":          {"ok", ""},
		"sub/up.tif":        {"ok", ""},
		"absolute.tif":      {"unreadable", "out of the dataset"},
		"passwd.tif":        {"unreadable", "out of the dataset"},
		"dangling.tif":      {"unreadable", "nothing"},
		"loop.tif":          {"unreadable", "too many levels"},
		"linked-dir":        {"unsupported", "directory"},
		"zero.tif":          {"unreadable", "out of the dataset"},
		"piped.tif":         {"unsupported", "named pipe"},
	}

	if os.Getuid() != 0 {
		must(write("secret.tif", good), os.Chmod(filepath.Join(dir, "secret.tif"), 0))
		want["secret.tif"] = [2]string{"unreadable", "permission denied"}
	}

	return want
}

// sampleTIFF is a small GeoTIFF in degrees.
func sampleTIFF() []byte { return geographicTIFF(10, 50) }

// TestBBoxCommand runs "cairn bbox" on one of everything: each gets a row with its status and
// reason.
func TestBBoxCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := oddFiles(t, dir)
	var out, errs bytes.Buffer
	if err := run(context.Background(), []string{"bbox", "--root", dir, dir}, nil, nil, &out, &errs); err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}

	got := rowsByPath(t, out.Bytes())
	for path, w := range want {
		m, ok := got[path]
		if !ok || m.Status != w[0] || (m.Status != "ok" && (m.Reason == nil || !strings.Contains(*m.Reason, w[1]))) {
			t.Errorf("%s: %+v, want %v", path, m, w)
		}
	}

	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}

	for _, test := range []struct {
		args []string
		want string // path of the first row, or the error
	}{
		{[]string{filepath.Join(dir, "good.tif")}, filepath.Join(dir, "good.tif")},
		{[]string{filepath.Join(dir, "sub")}, filepath.Join(dir, "sub") + "/other.tif"},
		{[]string{"--root", dir, filepath.Join(dir, "sub")}, "sub/other.tif"},
		{[]string{"--root", dir, filepath.Join(dir, "sub/other.tif")}, "sub/other.tif"},
		{[]string{"--root", filepath.Join(dir, "sub"), filepath.Join(dir, "good.tif")}, "1 of 1 path could"},
		{[]string{filepath.Join(dir, "missing.tif")}, "1 of 1 path could"},
		{nil, "PATH... is missing"},
	} {
		out.Reset()
		err := run(context.Background(), append([]string{"bbox"}, test.args...), nil, nil, &out, &errs)
		if err != nil {
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q: %v", test.args, err)
			}
			continue
		}

		line, _, _ := strings.Cut(out.String(), "\n")
		var m ElevationDatasetFileMeta
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Path != test.want {
			t.Errorf("%q: %s", test.args, line)
		}
	}
}

// rowsByPath reads JSON lines.
func rowsByPath(t *testing.T, lines []byte) map[string]ElevationDatasetFileMeta {
	t.Helper()
	rows := map[string]ElevationDatasetFileMeta{}
	for line := range bytes.Lines(lines) {
		var m ElevationDatasetFileMeta
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		rows[m.Path] = m
	}

	return rows
}

// TestNeighboursInAnyCase: a sidecar belongs to a raster whatever the case of their names, because
// a file system may not tell the two cases apart. A file by itself has no checksum, nor one whose
// neighbour is of another name.
func TestNeighboursInAnyCase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"dem.hdr", "dem.bil", "DEM.BIL", "other.bil", "DEM.TIF.aux.xml", "lone.tfw", "text.txt", "other."} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	belongs := map[string]bool{}
	w := walker{
		file: func(e entry) error { belongs[e.Path] = e.Sidecars != 0; return nil },
		warn: func(_ string, err error) error { return err },
	}
	if err := w.walk(t.Context(), mustOpenRoot(t, dir), ""); err != nil {
		t.Fatal(err)
	}

	want := map[string]bool{"dem.hdr": true, "dem.bil": true, "DEM.BIL": true, "other.bil": false, "DEM.TIF.aux.xml": true,
		"lone.tfw": true, "text.txt": false, "other.": false}
	if !maps.Equal(belongs, want) {
		t.Errorf("%v", belongs)
	}
}

// TestSidecarChecksum: the checksum of a raster and its sidecars changes with each change of a sidecar,
// and when a raster comes or goes. A sidecar that is a link or was written
// just now never has the same one twice.
func TestSidecarChecksum(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string, age time.Duration) error {
		at := time.Now().Add(-age)
		name = filepath.Join(dir, name)
		return errors.Join(os.WriteFile(name, []byte(content), 0o644), os.Chtimes(name, at, at))
	}

	sums := func() map[string]int64 {
		found := map[string]int64{}
		w := walker{
			file: func(e entry) error { found[e.Path] = e.Sidecars; return nil },
			warn: func(_ string, err error) error { return err },
		}
		if err := w.walk(t.Context(), mustOpenRoot(t, dir), ""); err != nil {
			t.Fatal(err)
		}

		return found
	}

	remove := func(name string) error { return os.Remove(filepath.Join(dir, name)) }
	const day = 24 * time.Hour
	if err := errors.Join(write("a.tif", "", day), write("b.tif", "", day)); err != nil {
		t.Fatal(err)
	}

	before := sums()
	for _, test := range []struct {
		name    string
		change  func() error
		changed []string
	}{
		{"sidecar there", func() error { return write("a.tfw", "1", day) }, []string{"a.tfw", "a.tif"}},
		{"nothing", func() error { return nil }, nil},
		{"its size", func() error { return write("a.tfw", "12", day) }, []string{"a.tfw", "a.tif"}},
		{"its time", func() error { return write("a.tfw", "12", 2*day) }, []string{"a.tfw", "a.tif"}},
		{"GDAL's metadata there", func() error { return write("b.tif.aux.xml", "", day) }, []string{"b.tif", "b.tif.aux.xml"}},
		{"other metadata", func() error { return write("b.tif.aux.xml", "x", day) }, []string{"b.tif", "b.tif.aux.xml"}},
		{"raster there", func() error { return write("a.asc", "", day) }, []string{"a.asc", "a.tfw", "a.tif"}},
		{"raster gone", func() error { return remove("b.tif") }, []string{"b.tif", "b.tif.aux.xml"}},
		{"sidecar gone", func() error { return remove("a.tfw") }, []string{"a.asc", "a.tfw", "a.tif"}},
		{"written just now", func() error { return write("a.tfw", "12", -day) }, []string{"a.asc", "a.tfw", "a.tif"}},
		{"still too new", func() error { return nil }, []string{"a.asc", "a.tfw", "a.tif"}},
		{"link", func() error {
			return errors.Join(remove("a.tfw"), os.Symlink("b.tif.aux.xml", filepath.Join(dir, "a.tfw")))
		}, []string{"a.asc", "a.tfw", "a.tif"}},
		{"the same link", func() error { return nil }, []string{"a.asc", "a.tfw", "a.tif"}},
	} {
		if err := test.change(); err != nil {
			t.Fatal(err)
		}

		now := sums()
		var changed []string
		for name := range now {
			if sum, ok := before[name]; !ok || sum != now[name] {
				changed = append(changed, name)
			}
		}

		for name := range before {
			if _, ok := now[name]; !ok {
				changed = append(changed, name)
			}
		}

		slices.Sort(changed)
		if !slices.Equal(changed, test.changed) {
			t.Errorf("%s: %q, want %q", test.name, changed, test.changed)
		}

		before = now
	}
}

// TestUnreadableEntry: the row of a file that cannot be looked at has the size and time that the
// walk found.
func TestUnreadableEntry(t *testing.T) {
	t.Parallel()
	fr := fileReader{root: mustOpenRoot(t, t.TempDir()), now: time.Now}
	e := entry{
		Path:     strings.Repeat("x", 300) + ".tif",
		Size:     7,
		Modified: 8e9,
		Changed:  9e9,
	}
	m, found := fr.readEntry(e)
	if !found || m.Status != fileStatusUnreadable || m.SizeBytes != 7 || !m.ModifiedAt.Equal(time.Unix(8, 0)) || m.changed != 9e9 {
		t.Errorf("%v %+v", found, m)
	}
}
