package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// modelRow is what the model says of a file.
type modelRow struct {
	status   string
	place    [2]float64 // the upper left corner; zero without one
	size     int64
	modified time.Time
}

// folderModel changes a folder at random, and tells by itself what rows an analysis has to store:
// it knows every content that it wrote.
type folderModel struct {
	t     *testing.T
	r     *rand.Rand
	dir   string              // of the dataset
	away  string              // beside it: shares that are not mounted
	seen  map[string]modelRow // by content: status and place
	made  int                 // names
	rows  map[string]modelRow // that are stored
	known map[string]bool     // what the last complete analysis knew
}

// must fails the test if a change of the folder failed.
func (m *folderModel) must(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}

// list returns the paths of the directories, or of the other files whose base names begin with
// prefix.
func (m *folderModel) list(dirs bool, prefix string) (paths []string) {
	m.must(filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() == dirs && strings.HasPrefix(d.Name(), prefix) && path != m.dir {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// pick returns one of the paths, or of the dataset's directory if there is none.
func (m *folderModel) pick(paths []string) string {
	if len(paths) == 0 {
		return m.dir
	}
	return paths[m.r.IntN(len(paths))]
}

// fresh returns a new path below a random directory.
func (m *folderModel) fresh(prefix, extension string) string {
	m.made++
	return filepath.Join(m.pick(append(m.list(true, ""), m.dir)), fmt.Sprintf("%s%d%s", prefix, m.made, extension))
}

// content returns content of a kind: a GeoTIFF in degrees, a TIFF without a place, or one that ends
// in its header.
func (m *folderModel) content(kind string) []byte {
	place := [2]float64{float64(m.r.IntN(300) - 150), float64(m.r.IntN(140) - 60)}
	switch kind {
	case "geo":
		content := geographicTIFF(place[0], place[1])
		m.seen[string(content)] = modelRow{status: fileStatusOK, place: place}
		return content
	case "cut":
		content := geographicTIFF(place[0], place[1])[:20]
		m.seen[string(content)] = modelRow{status: fileStatusCorrupt}
		return content
	case "world":
		content := fmt.Appendf(nil, "1\n0\n0\n-1\n%03.0f\n%03.0f\n", place[0], place[1])
		m.seen[string(content)] = modelRow{place: [2]float64{place[0] - 0.5, place[1] + 0.5}}
		return content
	case "bare":
		content := testTIFF{order: binary.LittleEndian, tags: testSize()}.build()
		m.seen[string(content)] = modelRow{status: fileStatusNoGeoref}
		return content
	}

	m.seen[kind] = modelRow{status: fileStatusUnsupported}
	return []byte(kind)
}

// write writes a file of a kind, whose name begins with its first letter.
func (m *folderModel) write(path, kind string) {
	m.must(os.WriteFile(path, m.content(kind), 0o644))
}

// rewrite replaces the content of a file. With keep, its time stays.
func (m *folderModel) rewrite(path, kind string, keep bool) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}

	m.write(path, kind)
	if keep {
		m.must(os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
}

// changes returns everything that can happen to the folder, by name.
func (m *folderModel) changes() map[string]func() {
	file := func(prefix string) string { return m.pick(m.list(false, prefix)) }
	isFile := func(path string) bool { return path != m.dir }
	sub := func() string { return m.pick(m.list(true, "")) }
	old := time.Now().Add(-100 * time.Hour)
	several := func(n int, prefix string) {
		paths := m.list(false, prefix)
		m.r.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		for _, path := range paths[:min(n, len(paths))] {
			m.must(os.Remove(path))
		}
	}
	fill := func(dir string, n int) {
		m.must(os.MkdirAll(dir, 0o755))
		for range n {
			m.made++
			m.write(filepath.Join(dir, fmt.Sprintf("g%d.tif", m.made)), "geo")
		}
	}
	unmount := func() (mount string) {
		if mount = m.pick(m.list(true, "mount")); mount != m.dir {
			m.made++
			m.must(os.Rename(mount, filepath.Join(m.away, fmt.Sprint(m.made))), os.Mkdir(mount, 0o755))
		}
		return mount
	}
	replaceDir := func(with func(path string) error) {
		if dir := sub(); dir != m.dir {
			m.must(os.RemoveAll(dir), with(dir))
		}
	}
	rename := func(from, to string) {
		if isFile(from) && from != to && isFile(to) {
			m.must(os.Rename(from, to))
		}
	}
	all := map[string]func(){
		"create raster":         func() { m.write(m.fresh("g", ".tif"), "geo") },
		"create many rasters":   func() { fill(m.fresh("d", ""), 20+m.r.IntN(60)) },
		"create bare raster":    func() { m.write(m.fresh("b", ".tif"), "bare") },
		"create text":           func() { m.write(m.fresh("t", ".txt"), "text") },
		"create empty":          func() { m.write(m.fresh("e", ".tif"), "") },
		"create cut raster":     func() { m.write(m.fresh("g", ".tif"), "cut") },
		"create pipe":           func() { m.must(syscall.Mkfifo(m.fresh("p", ".tif"), 0o644)) },
		"create empty dir":      func() { m.must(os.Mkdir(m.fresh("d", ""), 0o755)) },
		"create share":          func() { fill(m.fresh("mount", ""), 5+m.r.IntN(150)) },
		"delete one":            func() { several(1, "") },
		"delete some":           func() { several(10, "") },
		"delete many":           func() { several(100+m.r.IntN(150), "g") },
		"rename":                func() { rename(file("g"), m.fresh("g", ".tif")) },
		"rename bare":           func() { from := file("b"); rename(from, m.fresh("b", filepath.Ext(from))) },
		"rename over another":   func() { rename(file("g"), file("g")) },
		"rename text to raster": func() { rename(file("g"), m.fresh("g", ".txt")) },
		"rewrite":               func() { m.rewrite(file("g"), "geo", false) },
		"rewrite, same time":    func() { m.rewrite(file("g"), "geo", true) },
		"rewrite shorter":       func() { m.rewrite(file("g"), "cut", true) },
		"lose its place":        func() { m.rewrite(file("g"), "bare", true) },
		"chmod": func() {
			if path := file("g"); isFile(path) {
				m.must(os.Chmod(path, fs.FileMode(0o600+m.r.IntN(64))))
			}
		},
		"touch": func() {
			if path := file("g"); isFile(path) {
				m.must(os.Chtimes(path, old, old))
			}
		},
		"hard link": func() {
			if path := file("g"); isFile(path) {
				m.must(os.Link(path, m.fresh("g", ".tif")))
			}
		},
		"world file": func() {
			if path := file("b"); isFile(path) {
				m.write(strings.TrimSuffix(path, ".tif")+".tfw", "world")
			}
		},
		"world file, same time": func() {
			for _, path := range m.list(false, "b") {
				if strings.HasSuffix(path, ".tfw") {
					m.rewrite(path, "world", true)
				}
			}
		},
		"orphaned world file":            func() { m.write(m.fresh("w", ".tfw"), "world") },
		"delete world files and rasters": func() { several(3, "b") },
		"file becomes dir": func() {
			if path := file("g"); isFile(path) {
				m.must(os.Remove(path))
				fill(path, 2)
			}
		},
		"dir becomes file": func() { replaceDir(func(path string) error { m.write(path, "text"); return nil }) },
		"dir becomes link": func() { replaceDir(func(path string) error { return os.Symlink(".", path) }) },
		"dir gone":         func() { replaceDir(func(string) error { return nil }) },
		"dir emptied":      func() { replaceDir(func(path string) error { return os.Mkdir(path, 0o755) }) },
		"rename dir": func() {
			if dir := sub(); dir != m.dir {
				m.made++
				m.must(os.Rename(dir, filepath.Join(filepath.Dir(dir), fmt.Sprintf("d%d", m.made))))
			}
		},
		"unmount": func() { unmount() },
		"unmount, with a stray file": func() {
			if mount := unmount(); mount != m.dir {
				m.write(filepath.Join(mount, "t.txt"), "text")
			}
		},
		"mount again": func() {
			shares, err := os.ReadDir(m.away)
			m.must(err)
			if mount := m.pick(m.list(true, "mount")); mount != m.dir && len(shares) > 0 {
				m.must(os.RemoveAll(mount), os.Rename(filepath.Join(m.away, shares[m.r.IntN(len(shares))].Name()), mount))
			}
		},
	}
	maps.Copy(all, m.linkChanges())
	return all
}

// linkChanges returns the changes that make symbolic links.
func (m *folderModel) linkChanges() map[string]func() {
	link := func(target string) { m.must(os.Symlink(target, m.fresh("l", ".tif"))) }
	file := func(prefix string) string { return m.pick(m.list(false, prefix)) }
	return map[string]func(){
		"link to file": func() {
			path := m.fresh("l", ".tif")
			target, err := filepath.Rel(filepath.Dir(path), file("g"))
			m.must(err, os.Symlink(target, path))
		},
		"link to dir":     func() { link(".") },
		"link to nothing": func() { link("nothing/there.tif") },
		"link out":        func() { link(strings.Repeat("../", 30) + "etc/passwd") },
		"link in a circle": func() {
			path := m.fresh("l", ".tif")
			m.must(os.Symlink(filepath.Base(path), path))
		},
		"link through file": func() {
			path := m.fresh("l", ".tif")
			target, err := filepath.Rel(filepath.Dir(path), file("t"))
			m.must(err, os.Symlink(target+"/x.tif", path))
		},
	}
}

// look returns what is in the folder now.
func (m *folderModel) look() map[string]modelRow {
	rows := map[string]modelRow{}
	for _, path := range m.list(false, "") {
		info, err := os.Lstat(path)
		m.must(err)
		row := modelRow{status: fileStatusUnsupported, size: info.Size(), modified: info.ModTime()}
		if info.Mode().Type() == fs.ModeSymlink {
			target, err := os.Stat(path)
			real, _ := filepath.EvalSymlinks(path)
			switch {
			case err != nil || !strings.HasPrefix(real+"/", m.dir+"/"):
				row.status = fileStatusUnreadable
			case target.Mode().IsRegular():
				info = target
				row.size = target.Size()
				row.modified = target.ModTime()
			}
		}

		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			m.must(err)
			known, ok := m.seen[string(content)]
			if !ok {
				m.t.Fatalf("%s: unknown content %.40q", path, content)
			}

			row.status = known.status
			row.place = known.place
			stem := strings.TrimSuffix(path, filepath.Ext(path))
			world, err := os.ReadFile(stem + ".tfw")
			switch {
			case filepath.Ext(path) == ".tfw":
				row.status = fileStatusUnsupported
				row.place = [2]float64{}
				if _, err := os.Stat(stem + ".tif"); err == nil {
					row.status = fileStatusSidecar
				}
			case known.status == fileStatusNoGeoref && err == nil:
				row.status = fileStatusNoBBox
				row.place = m.seen[string(world)].place
			}
		}

		rows[strings.TrimPrefix(path, m.dir+"/")] = row
	}

	return rows
}

// emptied returns the empty directory that keeps the row of a path that is not there any more, or
// "".
func (m *folderModel) emptied(path string) string {
	for {
		path = filepath.Dir(path)
		full := filepath.Join(m.dir, path)
		info, err := os.Lstat(full)
		if err != nil {
			continue
		}

		if !info.IsDir() {
			return ""
		}

		entries, err := os.ReadDir(full)
		m.must(err)
		if real, err := filepath.EvalSymlinks(full); len(entries) > 0 || err != nil || real != full {
			return ""
		}

		return path
	}
}

// outcome is what an analysis has to come to.
type modelOutcome struct {
	rows                 map[string]modelRow
	total, added         int
	removed, emptiedDirs int
	fails                bool
}

// expect returns what an analysis of the folder has to come to.
func (m *folderModel) expect(force bool) modelOutcome {
	o := modelOutcome{rows: m.look()}
	o.total = len(o.rows)
	for path := range o.rows {
		if _, known := m.rows[path]; !known {
			o.added++
		}
	}

	dirs := map[string]bool{}
	gone := map[string]modelRow{}
	for path, row := range m.rows {
		if _, there := o.rows[path]; there {
			continue
		}

		if dir := m.emptied(path); dir != "" && !force {
			dirs[dir] = true
			o.rows[path] = row
		} else {
			gone[path] = row
		}
	}

	o.emptiedDirs = len(dirs)
	o.removed = len(gone)
	known := 0
	goneKnown := 0
	for path := range m.rows {
		if m.known[path] {
			known++
			if _, isGone := gone[path]; isGone {
				goneKnown++
			}
		}
	}

	if !force && goneKnown > massRemoval && 2*goneKnown > known {
		o.fails = true
		o.removed = 0
		maps.Copy(o.rows, gone)
	}

	return o
}

// compare compares the stored rows with the model's.
func (m *folderModel) compare(round int, got map[string]ElevationDatasetFileMeta, want map[string]modelRow) {
	m.t.Helper()
	for path, row := range got {
		place := [2]float64{}
		if row.Transform != nil {
			place = [2]float64{row.Transform[2], row.Transform[5]}
		}

		w, ok := want[path]
		if !ok || row.Status != w.status || row.SizeBytes != w.size || !row.ModifiedAt.Equal(w.modified) || place != w.place {
			m.t.Errorf("round %d: %s: stored %s, %d bytes, %v at %v, want (%v) %+v", round, path, row.Status, row.SizeBytes, row.ModifiedAt, place, ok, w)
		}
	}

	for path := range want {
		if _, ok := got[path]; !ok {
			m.t.Errorf("round %d: %s has no row", round, path)
		}
	}
}

// TestFolderModel holds the stored rows against a model of a folder over rounds of random changes,
// some of them with a kill of the instance in the middle of the analysis.
func TestFolderModel(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &folderModel{
		t:    t,
		r:    rand.New(rand.NewPCG(seed, 0)),
		dir:  filepath.Join(ts.datasets, "tiles"),
		away: t.TempDir(),
		seen: map[string]modelRow{},
	}
	m.must(os.Mkdir(m.dir, 0o755))
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_CHUNK=20")
	p := startProcess(t, env)
	c.url = p.url
	changes := m.changes()
	names := slices.Sorted(maps.Keys(changes))
	failures := 0
	kills := 0
	forced := 0
	kept := 0
	for round := range soakOr(200, 12) {
		var done []string
		for len(m.list(false, "")) < 250 {
			done = append(done, "create many rasters")
			changes["create many rasters"]()
		}

		for range 1 + m.r.IntN(12) {
			name := names[m.r.IntN(len(names))]
			done = append(done, name)
			changes[name]()
		}

		m.write(filepath.Join(m.dir, "keep.txt"), "text") // the folder is never empty
		force := m.r.IntN(6) == 0
		want := m.expect(force)
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": force}).header.Get("Location")
		if m.r.IntN(2) == 0 {
			threshold := float64(m.r.IntN(want.total + 1))
			waitFor(t, "progress", func() bool {
				a := c.must(200, "GET", location, nil)
				return a.json["finished_at"] != nil || a.json["progress"].(map[string]any)["done"].(float64) >= threshold
			})

			p.kill()
			p = startProcess(t, env)
			c.url = p.url
			kills++
		}

		a := c.finished(location)
		n := counts(a)
		code := ""
		if want.fails {
			code = failureMassRemoval
			failures++
		}

		if a.text("failure_code") != code || n[0] != want.total || n[1] != want.added || n[1]+n[2]+n[3] != want.total || n[4] != want.removed ||
			len(a.json["warnings"].([]any)) != want.emptiedDirs {
			t.Errorf("round %d: want %+v, %s", round, [...]any{want.total, want.added, want.removed, want.emptiedDirs, want.fails}, a.body)
		}

		rows := c.files(dataset)
		m.compare(round, rows, want.rows)
		if len(want.rows) == want.total {
			sameRows(t, rows, m.dir)
		} else {
			kept++
		}

		if force {
			forced++
		}

		if t.Failed() {
			t.Fatalf("round %d after %q", round, done)
		}

		m.rows = want.rows
		if !want.fails {
			m.known = map[string]bool{}
			for path := range m.rows {
				m.known[path] = true
			}
		}
	}

	t.Logf("%d kinds of changes, %d kills, %d forced, %d failed as mass removal, %d kept rows; %d files at the end", len(names), kills, forced, failures, kept, len(m.rows))
}
