package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// sickFS is a small file system (FUSE) in a process of its own, with faults on command: top.tif, and in sub
// a.tif, b.tif, c.tif and, listed again, a.tif.
type sickFS struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	ready chan bool
	hangs atomic.Int64 // requests that began to hang
}

// sickDirEnv is set in the process that serves a sickFS: where it is mounted.
const sickDirEnv = "CAIRN_TEST_SICK_DIR"

// startSick starts a service with a directory d of local.tif and, below share, a sickFS: nil where that
// cannot be, which is said loudly.
func startSick(t *testing.T, patience time.Duration) (*testServer, client, *sickFS) {
	t.Helper()
	if file, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Getuid() != 0 {
		t.Logf("NO FUSE (it needs root and /dev/fuse: %v): %s DID NOT RUN", err, t.Name())
		return nil, client{}, nil
	} else {
		file.Close()
	}
	ts := startServer(t, func(s *server) { s.analyzer.patience = patience })
	share := filepath.Join(ts.datasets, "d/share")
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeSick$")
	// The other helper's variable keeps TestMain from starting a PostgreSQL.
	cmd.Env = append(os.Environ(), privatePostgresHelperEnv+"=none", sickDirEnv+"="+share)
	cmd.Stderr = t.Output()
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, os.MkdirAll(share, 0o755), os.WriteFile(share+"/../local.tif", sampleTIFF(), 0o644), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close() // it ends
		cmd.Wait()
		syscall.Unmount(share, syscall.MNT_DETACH) // if it died
	})
	f := &sickFS{t: t, cmd: cmd, stdin: stdin, ready: make(chan bool, 1)}
	go func() {
		defer close(f.ready)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			switch lines.Text() {
			case "ready":
				f.ready <- true
			case "hangs":
				f.hangs.Add(1)
			}
		}
	}()
	if !<-f.ready {
		t.Fatal("the sick file system could not be mounted")
	}
	return ts, ts.signIn("root", "all"), f
}

// set replaces the faults, "operation:path:what" each: what is "hang", "slow" or an errno, * any
// operation or path.
func (f *sickFS) set(rules ...string) {
	f.t.Helper()
	fmt.Fprintln(f.stdin, strings.Join(rules, " "))
	if !<-f.ready {
		f.t.Fatal("the sick file system has died")
	}
}

// TestServeSick is no test: in a process of its own it serves a sickFS until its standard input ends.
func TestServeSick(t *testing.T) {
	dir := os.Getenv(sickDirEnv)
	if dir == "" {
		return
	}
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := syscall.Mount("sick", dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	f := &sickFiles{fd: fd, changed: make(chan bool), nodes: []string{""}}
	go func() {
		for {
			request := make([]byte, 1<<17)
			n, err := syscall.Read(fd, request)
			if err == nil {
				go f.serve(request[:n])
			} else if err != syscall.EINTR && err != syscall.ENOENT {
				return
			}
		}
	}()
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); fmt.Println("ready") {
		f.mu.Lock()
		f.rules = strings.Fields(lines.Text())
		close(f.changed)
		f.changed = make(chan bool)
		f.mu.Unlock()
	}
	syscall.Unmount(dir, syscall.MNT_DETACH)
	os.Exit(0)
}

// sickFiles is a sickFS in its own process.
type sickFiles struct {
	fd      int
	mu      sync.Mutex
	rules   []string
	changed chan bool // closed when rules are replaced
	nodes   []string  // paths by node id - 1
}

// fault returns the errno that the rules demand, hanging for as long as they do.
func (f *sickFiles) fault(op, path string) syscall.Errno {
	for said := false; op != ""; {
		f.mu.Lock()
		rules, changed := f.rules, f.changed
		f.mu.Unlock()
		hangs := false
		for _, rule := range rules {
			part := strings.Split(rule, ":")
			if part[0] != op && part[0] != "*" || part[1] != path && part[1] != "*" {
				continue
			}
			switch part[2] {
			case "hang":
				hangs = true
			case "slow":
				time.Sleep(30 * time.Millisecond) // the slow file system itself, not a test that waits
			default:
				errno, _ := strconv.Atoi(part[2])
				return syscall.Errno(errno)
			}
		}
		if !hangs {
			return 0
		}
		if !said {
			fmt.Println("hangs")
			said = true
		}
		<-changed
	}
	return 0
}

// serve answers one request of the kernel (linux/fuse.h, version 7.31).
func (f *sickFiles) serve(request []byte) {
	const opLookup, opGetattr, opOpen, opRead, opInit, opOpendir, opReaddir = 1, 3, 14, 15, 26, 27, 28
	names := map[uint32]string{opLookup: "lookup", opGetattr: "getattr", opOpen: "open", opRead: "read", opOpendir: "opendir", opReaddir: "readdir"}
	dirs := map[string][]string{"": {"sub", "top.tif"}, "sub": {"a.tif", "b.tif", "c.tif", "a.tif"}}
	content, le := sampleTIFF(), binary.LittleEndian
	op, unique, node, body := le.Uint32(request[4:]), le.Uint64(request[8:]), le.Uint64(request[16:]), request[40:]
	reply := func(errno syscall.Errno, data []byte) {
		out := le.AppendUint32(nil, uint32(16+len(data)))
		out = le.AppendUint32(out, uint32(-int32(errno)))
		out = le.AppendUint64(out, unique)
		syscall.Write(f.fd, append(out, data...))
	}
	f.mu.Lock()
	path := ""
	if int(node) <= len(f.nodes) && node > 0 {
		path = f.nodes[node-1]
	}
	f.mu.Unlock()
	if op == opLookup {
		path = strings.TrimPrefix(path+"/"+string(bytes.TrimRight(body, "\x00")), "/")
	}
	if errno := f.fault(names[op], path); errno != 0 {
		reply(errno, nil)
		return
	}
	attributes := func(node int) []byte {
		b := make([]byte, 88)
		le.PutUint64(b, uint64(node))
		le.PutUint32(b[64:], 1)
		if _, isDir := dirs[path]; isDir {
			le.PutUint32(b[60:], syscall.S_IFDIR|0o755)
		} else {
			le.PutUint32(b[60:], syscall.S_IFREG|0o644)
			le.PutUint64(b[8:], uint64(len(content)))
		}
		return b
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch op {
	case opInit:
		out := make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[8:], 1<<16)
		le.PutUint32(out[20:], 1<<16)
		reply(0, out)
	case opLookup:
		dir, name := filepath.Split(path)
		if !slices.Contains(dirs[strings.TrimSuffix(dir, "/")], name) {
			reply(syscall.ENOENT, nil)
			return
		}
		n := slices.Index(f.nodes, path) + 1
		if n == 0 {
			f.nodes = append(f.nodes, path)
			n = len(f.nodes)
		}
		reply(0, append(le.AppendUint64(nil, uint64(n)), append(make([]byte, 32), attributes(n)...)...))
	case opGetattr:
		reply(0, append(make([]byte, 16), attributes(int(node))...))
	case opOpen, opOpendir:
		reply(0, make([]byte, 16))
	case opReaddir:
		var out []byte
		for i := int(le.Uint64(body[8:])); i < len(dirs[path]); i++ {
			name := dirs[path][i]
			e := make([]byte, (24+len(name)+7)/8*8)
			le.PutUint64(e, uint64(1000+i))
			le.PutUint64(e[8:], uint64(i+1))
			le.PutUint32(e[16:], uint32(len(name)))
			copy(e[24:], name)
			out = append(out, e...)
		}
		reply(0, out)
	case opRead:
		from := min(int(le.Uint64(body[8:])), len(content))
		reply(0, content[from:min(from+int(le.Uint32(body[16:])), len(content))])
	case 18, 25, 29: // release, flush, releasedir
		reply(0, nil)
	case 2, 36, 42: // forget, interrupt, forget many: they want no answer
	default:
		reply(syscall.ENOSYS, nil)
	}
}

// sickRows are how many files startSick's dataset has.
const sickRows = 5

// stopsPromptly stops the service.
func stopsPromptly(t *testing.T, ts *testServer) {
	t.Helper()
	stopped := make(chan bool)
	go func() {
		ts.stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(15 * time.Second):
		t.Error("the service has not stopped after 15 s")
	}
}

// TestHungFileSystem: where the file system does not answer, the analysis ends all the same and loses no
// row, other datasets go on, all is well again when it answers, and the service stops while it hangs.
func TestHungFileSystem(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, 400*time.Millisecond)
	if fs == nil {
		return
	}
	makeTiles(t, filepath.Join(ts.datasets, "good"), 1, 3)
	datasets := map[string]string{"d": c.addDataset("d"), "d/share": c.addDataset("d/share"), "good": c.addDataset("good")}
	for _, test := range []struct {
		dataset, rule string
		atReading     bool // it hangs after the walk
	}{
		{"d", "lookup:sub:hang", false},
		{"d", "opendir:sub:hang", false},
		{"d/share", "opendir::hang", false},
		{"d", "open:sub/a.tif:hang", false},
		{"d", "*:*:hang", true},
		{"d/share", "*:*:hang", true},
		{"d", "read:sub/a.tif:hang", false},
	} {
		dataset := datasets[test.dataset]
		c.analyze(dataset, nil)
		rows, before := len(c.files(dataset)), fs.hangs.Load()
		ts.analyzer.solo.Lock() // no reader begins
		if !test.atReading {
			fs.set(test.rule)
			ts.analyzer.solo.Unlock()
		}
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true}).header.Get("Location")
		if test.atReading {
			waitFor(t, "the end of the walk", func() bool { return c.must(200, "GET", location, nil).text("state") == stateReading })
			fs.set(test.rule)
			ts.analyzer.solo.Unlock()
		}
		waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > before })
		if a := c.analyze(datasets["good"], nil); a.text("state") != stateSucceeded {
			t.Errorf("%v: another dataset: %s", test, a.body)
		}
		a := c.finished(location)
		failed := a.text("state") == stateFailed && a.text("failure_code") == failureUnavailable
		unreadable := a.text("state") == stateSucceeded && counts(a)[5] > 0
		if !failed && !unreadable || len(c.files(dataset)) != rows {
			t.Errorf("%v: %d rows of %d left: %s", test, len(c.files(dataset)), rows, a.body)
		}
		fs.set()
		waitFor(t, "what hung to come back", func() bool { return ts.analyzer.hung.Load() == 0 })
		if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a)[0] != rows || counts(a)[5] != 0 {
			t.Errorf("%v: after it: %s", test, a.body)
		}
	}
	before := fs.hangs.Load()
	fs.set("read:sub/a.tif:hang")
	c.must(202, "POST", datasets["d"]+"/analyses", map[string]bool{"force": true})
	waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > before })
	stopsPromptly(t, ts)
}

// TestSickSubdirectory: a subdirectory that cannot even be looked at loses no row, and a warning says so;
// when it is back, all is as it was.
func TestSickSubdirectory(t *testing.T) {
	t.Parallel()
	_, c, fs := startSick(t, time.Minute)
	if fs == nil {
		return
	}
	dataset := c.addDataset("d")
	// A name that is listed twice is one file.
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a) != [6]int{sickRows, sickRows, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
	known := c.files(dataset)
	for _, rule := range []string{"*:sub:5", "*:sub:13", "*:sub:116", "readdir:sub:5", "died"} { // EIO, EACCES, ESTALE
		if rule == "died" {
			fs.cmd.Process.Kill()
			fs.cmd.Wait()
		} else {
			fs.set(rule)
		}
		a := c.analyze(dataset, nil)
		warnings, _ := a.json["warnings"].([]any)
		if a.text("state") != stateSucceeded || len(warnings) != 1 || !strings.HasPrefix(fmt.Sprint(warnings...), "share/") {
			t.Errorf("%s: %s", rule, a.body)
		}
		rows := c.files(dataset)
		for path := range known {
			if rows[path].ID != known[path].ID {
				t.Errorf("%s: the row of %s is lost", rule, path)
			}
		}
		if rule == "died" {
			return
		}
		fs.set()
		if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || len(c.files(dataset)) != sickRows {
			t.Errorf("after %s: %d rows, %s", rule, len(c.files(dataset)), a.body)
		}
	}
}

// TestHungRegistration: to register a directory that does not answer holds up no stop.
func TestHungRegistration(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Minute)
	if fs == nil {
		return
	}
	fs.set("opendir:sub:hang")
	go c.try("POST", "/api/v1/datasets", map[string]string{"name": "sub", "path": "d/share/sub"})
	waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > 0 })
	stopsPromptly(t, ts)
}

// TestSlowlyGone: that it takes long to see that many files are gone is no reason to give up.
func TestSlowlyGone(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Second)
	if fs == nil {
		return
	}
	dataset := c.addDataset("d")
	ts.exec(`
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, warnings, analyzed_at)
		SELECT d.id, 'share/gone' || n, 0, 0, 'unsupported', '{}', now()
		FROM datasets d, generate_series(1, 45) n`)
	fs.set("lookup:*:slow") // 45 of them take longer than our patience, one does not
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a) != [6]int{sickRows, sickRows, 0, 0, 45, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestReasonHoldsNoPath: what is said of an I/O error does not tell where the server keeps its files.
func TestReasonHoldsNoPath(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Minute)
	if fs == nil {
		return
	}
	dataset := c.addDataset("d/share")
	for _, rule := range []string{"lookup:sub/a.tif:5", "open:sub/a.tif:5", "read:sub/a.tif:5", "opendir:sub:5", "opendir::5", "readdir::5"} {
		fs.set(rule)
		a := c.analyze(dataset, nil)
		files := c.must(200, "GET", dataset+"/files", nil)
		if said := string(a.body) + string(files.body); strings.Contains(said, ts.datasets) || !strings.Contains(said, syscall.EIO.Error()) {
			t.Errorf("%s: %s", rule, said)
		}
		var out, errs bytes.Buffer
		dir := filepath.Join(ts.datasets, "d/share")
		run(context.Background(), []string{"bbox", "--root", dir, filepath.Join(dir, "sub/a.tif")}, nil, nil, &out, &errs)
		if strings.Contains(out.String(), ts.datasets) {
			t.Errorf("%s, bbox: %s", rule, out.String())
		}
	}
}

// memoryDir is a new directory in memory, where a file may have any size, or one on disk, said loudly.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cairn-test-")
	if err != nil {
		t.Logf("NO /dev/shm: %s runs on disk (%v)", t.Name(), err)
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestFilesReplacedByRename: files that are saved by renaming over them, while they are listed and read,
// keep their rows.
func TestFilesReplacedByRename(t *testing.T) {
	t.Parallel()
	top := memoryDir(t)
	ts := startServer(t, func(s *server) { s.analyzer.chunkSize = 20 }, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(top, "live"), 1, 300)
	dataset := c.addDataset("live")
	c.analyze(dataset, nil)
	before := c.files(dataset)
	stop := make(chan bool)
	var saver sync.WaitGroup
	defer saver.Wait()
	defer close(stop)
	saver.Go(func() {
		dir, content := filepath.Join(top, "live/d0"), geographicTIFF(0, 0)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				os.WriteFile(filepath.Join(dir, ".new"), content, 0o644)
				os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, fmt.Sprintf("t%d.tif", i%300)))
			}
		}
	})
	for range 5 {
		a := c.analyze(dataset, nil)
		rows := c.files(dataset)
		delete(rows, "d0/.new")
		if a.text("state") != stateSucceeded || len(rows) != 300 {
			t.Errorf("%d rows of 300: %s", len(rows), a.body)
		}
		for path, m := range before {
			if rows[path].ID != m.ID {
				t.Errorf("%s: row %d was %d", path, rows[path].ID, m.ID)
			}
		}
	}
}

// TestCancelAndDeleteWhileStoring: both go through at once, whatever is being stored.
func TestCancelAndDeleteWhileStoring(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	ts := startServer(t, func(s *server) {
		s.analyzer.chunkSize = 5
		s.analyzer.wake = append(s.analyzer.wake, make(chan struct{}, 1), make(chan struct{}, 1)) // two readers more
		s.analyzer.beforeRead = func(string) { reads.Add(1) }
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 200)
	dataset := c.addDataset("tiles")
	for round := range 30 {
		reads.Store(0)
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true}).header.Get("Location")
		waitFor(t, "reads", func() bool { return reads.Load() >= int64(round*7%300) })
		paths := []string{location, location}
		if round%3 == 0 {
			paths = append(paths, dataset)
		}
		var all sync.WaitGroup
		for _, path := range paths {
			all.Go(func() {
				a, err := c.send("DELETE", path, nil)
				if err != nil || a.status != 204 && (a.status != 404 || path == dataset || round%3 != 0) {
					t.Errorf("DELETE %s: %d %s %v", path, a.status, a.body, err)
				}
			})
		}
		all.Wait()
		if round%3 == 0 {
			dataset = c.addDataset("tiles")
		}
	}
	if log := ts.log.String(); strings.Contains(log, "deadlock") || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("%.2000s", log)
	}
}

// TestOutageWhileReading: a database that goes away while a file is read, three times, is not that file's
// fault, and the analysis goes on when it is back.
func TestOutageWhileReading(t *testing.T) {
	t.Parallel()
	reading, proceed, free := make(chan bool), make(chan bool), make(chan bool)
	ts := startServer(t, func(s *server) {
		s.life = 500 * time.Millisecond
		s.analyzer.beforeRead = func(string) {
			select {
			case reading <- true:
				<-proceed
			case <-free:
			}
		}
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	dataset := c.addDataset("tiles")
	name := ts.db.Config().ConnConfig.Database
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	said := func(msg string) int { return strings.Count(ts.log.String(), `"msg":"`+msg+`"`) }
	allow := func(connections string) {
		t.Helper()
		if err := asSuperuser(`ALTER DATABASE `+name+` ALLOW_CONNECTIONS `+connections,
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+name+`'`); err != nil {
			t.Fatal(err)
		}
	}
	awaitRead := func() {
		t.Helper()
		select {
		case <-reading:
		case <-time.After(time.Minute):
			t.Fatalf("nothing is read: %s", c.must(200, "GET", location, nil).body)
		}
	}
	for range maxDeaths {
		awaitRead()
		allow("false")
		waitFor(t, "the service to notice", ts.database.down.Load)
		allow("false") // of a connection that was just being made too
		before := said("analysis step failed")
		proceed <- true // storing fails, and so does giving back
		outage := ts.database.outages.Load()
		for range 20 {
			c.refused(503, "database_unavailable", "GET", "/health", nil)
		}
		if n := said("analysis step failed"); n > before+1 {
			t.Errorf("%d lines about one outage", n-before)
		}
		allow("true")
		if ts.database.outages.Load() != outage {
			t.Error("one outage was counted twice")
		}
	}
	awaitRead()
	var blamed int
	const query = `SELECT deaths + failures FROM analysis_chunks`
	waitFor(t, "the database", func() bool { return ts.db.QueryRow(t.Context(), query).Scan(&blamed) == nil })
	if blamed != 0 {
		t.Errorf("the file is blamed for %d outages", blamed)
	}
	close(free)
	proceed <- true
	if a := c.finished(location); a.text("state") != stateSucceeded || counts(a) != [6]int{1, 1, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestRefusedRows: where the database refuses rows again and again, the analysis fails, and the rest is stored.
func TestRefusedRows(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(s *server) { s.analyzer.chunkSize = 1 })
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	ts.exec(`ALTER TABLE elevation_dataset_file_meta ADD CONSTRAINT refused CHECK (path <> 'd0/t1.tif')`)
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureInternal || counts(a)[1] != 2 || len(c.files(dataset)) != 2 {
		t.Errorf("%s", a.body)
	}
	if n := strings.Count(ts.log.String(), "store rows"); n != maxFailures || ts.queryInt(`SELECT count(*) FROM analysis_chunks`) != 0 {
		t.Errorf("%d attempts", n)
	}
	ts.exec(`ALTER TABLE elevation_dataset_file_meta DROP CONSTRAINT refused`)
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a)[1] != 1 {
		t.Errorf("after it: %s", a.body)
	}
}

// TestHungReadsAreBounded: reads that hang are left behind up to a bound, then the dataset counts as
// unavailable; when they come back, work goes on.
func TestHungReadsAreBounded(t *testing.T) {
	t.Parallel()
	hang := make(chan bool)
	var most atomic.Int64
	ts := startServer(t, func(s *server) {
		s.analyzer.chunkSize, s.analyzer.patience = 20, 200*time.Millisecond
		s.analyzer.beforeRead = func(string) {
			most.Store(max(most.Load(), s.analyzer.hung.Load()))
			<-hang
		}
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 2*maxHung+10)
	dataset := c.addDataset("tiles")
	a := c.analyze(dataset, nil)
	if a.text("failure_code") != failureUnavailable || most.Load() > int64(maxHung+len(ts.analyzer.wake)-1) {
		t.Errorf("%d reads hung, the bound is %d: %s", most.Load(), maxHung, a.body)
	}
	close(hang)
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a)[5] != 0 {
		t.Errorf("after it: %s", a.body)
	}
}

// TestOnlyUnlistableDirectory: a directory in which nothing is left but a directory that cannot be listed
// is the wrong disk, not an empty dataset.
func TestOnlyUnlistableDirectory(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 5, 10)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	if err := errors.Join(os.Rename(dir, dir+".away"), os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+1)), 0o755)); err != nil {
		t.Fatal(err)
	}
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureUnavailable || len(c.files(dataset)) != 50 {
		t.Errorf("%d rows of 50 left: %s", len(c.files(dataset)), a.body)
	}
}

// TestStaleWalker: who has lost a walk to another cannot end its analysis.
func TestStaleWalker(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(s *server) { s.analyzer.wake = nil }) // nothing runs by itself
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 1, 3)
	location := c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil).header.Get("Location")
	ts.exec(`UPDATE analyses SET state = 'walking', walker = 'another', walker_token = gen_random_uuid()`)
	lost := task{AnalysisID: int64(c.must(200, "GET", location, nil).number("id")), Token: "00000000-0000-0000-0000-000000000000", Alone: true}
	for _, alone := range []bool{true, false} {
		lost.Alone = alone
		if err := ts.analyzer.settle(t.Context(), lost, unavailable("gone")); err != nil {
			t.Error(err)
		}
	}
	if a := c.must(200, "GET", location, nil); a.text("state") != stateWalking {
		t.Errorf("%s", a.body)
	}
}

// TestOverlongNames: very many names that are too long for a row make no chunk large, nor the answer.
func TestOverlongNames(t *testing.T) {
	t.Parallel()
	top := memoryDir(t)
	ts := startServer(t, func(s *server) { s.analyzer.wake = nil }, "CAIRN_DATASETS_DIR="+top) // nothing runs by itself
	c := ts.signIn("root", "all")
	deep := "d/" + strings.Repeat(strings.Repeat("x", 240)+"/", 8)
	root := mustOpenRoot(t, top)
	if err := errors.Join(root.MkdirAll(deep, 0o755), root.WriteFile("d/short.tif", sampleTIFF(), 0o644)); err != nil {
		t.Fatal(err)
	}
	dir, err := root.OpenRoot(deep)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for i := range 50_000 {
		f, err := dir.Create(fmt.Sprintf("%s%06d", strings.Repeat("y", 200), i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	location := c.must(202, "POST", c.addDataset("d")+"/analyses", nil).header.Get("Location")
	if _, err := ts.analyzer.walkStep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := ts.queryInt(`SELECT max(octet_length(c::text)) FROM analysis_chunks c`); n > 10_000 {
		t.Errorf("a chunk of %d bytes", n)
	}
	if _, err := ts.analyzer.readStep(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := c.must(200, "GET", location, nil)
	if warnings, _ := a.json["warnings"].([]any); a.text("state") != stateSucceeded || counts(a)[0] != 1 || len(warnings) != maxWarnings {
		t.Errorf("%d warnings, %.500s", len(warnings), a.body)
	}
}

// TestHugeFiles: sizes whose sum no 64 bits hold are added up all the same.
func TestHugeFiles(t *testing.T) {
	t.Parallel()
	top := memoryDir(t)
	ts := startServer(t, nil, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	for _, name := range []string{"a.tif", "b.tif"} {
		err := errors.Join(os.WriteFile(filepath.Join(top, name), nil, 0o644), os.Truncate(filepath.Join(top, name), 1<<63-1))
		if err != nil {
			t.Logf("NO FILES OF 2^63-1 BYTES HERE (%v): %s DID NOT RUN", err, t.Name())
			return
		}
	}
	dataset := c.addDataset(".")
	c.analyze(dataset, nil)
	if a := c.must(200, "GET", dataset, nil); a.json["total_bytes"].(float64) < 1e18 {
		t.Errorf("%s", a.body)
	}
	if a := c.analyze(dataset, nil); counts(a) != [6]int{2, 0, 0, 2, 0, counts(a)[5]} {
		t.Errorf("%s", a.body)
	}
}

// TestCreateAnalysisRaces: many who begin an analysis at once, or delete its dataset, are all told what is.
func TestCreateAnalysisRaces(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	if err := os.Mkdir(filepath.Join(ts.datasets, "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	for round := range 7 {
		dataset := c.addDataset("e")
		place := regexp.MustCompile(`^` + dataset + `/analyses/[1-9][0-9]*$`)
		var all sync.WaitGroup
		begun := make(chan bool, 200)
		for range 5 {
			all.Go(func() {
				for range 20 {
					a, err := c.send("POST", dataset+"/analyses", nil)
					if err != nil || a.status != 404 && (a.status != 202 && a.status != 409 || !place.MatchString(a.header.Get("Location"))) {
						t.Errorf("POST: %d %q %s %v", a.status, a.header.Get("Location"), a.body, err)
					}
					begun <- true
				}
			})
		}
		for range 15 * round { // the later rounds delete later
			<-begun
		}
		if a, err := c.send("DELETE", dataset, nil); err != nil || a.status != 204 {
			t.Errorf("DELETE: %d %s %v", a.status, a.body, err)
		}
		all.Wait()
	}
}
