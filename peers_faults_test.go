//go:build peers

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// needRoot fails a test that only root can run.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

// sickFS is a small file system (FUSE) in a process of its own, with faults on command. It holds top.tif and, in sub,
// a.tif, b.tif and c.tif. Its listing of sub names a.tif twice.
type sickFS struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	ready chan bool
	hangs atomic.Int64 // requests that began to hang
}

// startSick starts a service with a directory d of local.tif and, below share, a sickFS. It needs root and /dev/fuse.
func startSick(t *testing.T, patience time.Duration) (*testServer, client, *sickFS) {
	t.Helper()
	needRoot(t)
	ts := startServer(t, func(o *options) { o.patience = patience })
	share := filepath.Join(ts.datasets, "d/share")
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeSick$")
	cmd.Env = append(os.Environ(), sickDirEnv+"="+share)
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

// set replaces the rules, each "operation:path:fault". The fault is "hang", "slow" or an errno. * stands for every
// operation or path.
func (f *sickFS) set(rules ...string) {
	f.t.Helper()
	fmt.Fprintln(f.stdin, strings.Join(rules, " "))
	if !<-f.ready {
		f.t.Fatal("the sick file system has died")
	}
}

// TestServeSick is the process of a sickFS. It serves until its standard input ends. make test-peers does not select it.
func TestServeSick(t *testing.T) {
	dir := os.Getenv(sickDirEnv)
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

// fault returns the errno that the rules name. It hangs for as long as they say so.
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
				<-time.After(30 * time.Millisecond) // this is the slow file system, not a test that waits
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

// sickRows is the number of files in startSick's dataset.
const sickRows = 5

// stopsPromptly stops the service, which must not wait for a file system that hangs.
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

// readNothing keeps readers from reading batches until resume is called.
func (ts *testServer) readNothing() (resume func()) {
	var releases []func()
	for range cap(ts.analyzer.reading.total) {
		releases = append(releases, must(ts.analyzer.reading.acquire(ts.t.Context(), "test")))
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// readersOf returns how many readers read a batch or wait to do so.
func (ts *testServer) readersOf() (n int) {
	reading := ts.analyzer.reading
	reading.mu.Lock()
	defer reading.mu.Unlock()
	for _, queue := range reading.callers {
		n += queue.length
	}
	return n
}

// TestPeerHungFileSystem: while the file system does not answer, an analysis ends and loses no row, other datasets are
// analysed, and the service can be stopped. When the file system answers again, the next analysis succeeds.
func TestPeerHungFileSystem(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, 400*time.Millisecond)
	makeTiles(t, filepath.Join(ts.datasets, "good"), 1, 3)
	datasets := map[string]string{"d": c.addDataset("d"), "d/share": c.addDataset("d/share"), "good": c.addDataset("good")}
	for _, test := range []struct {
		dataset, rule string
		atReading     bool // the file system hangs after the walk
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
		resume := func() {}
		if test.atReading {
			resume = ts.readNothing()
		} else {
			fs.set(test.rule)
		}
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true}).header.Get("Location")
		if test.atReading {
			waitFor(t, "the end of the walk", func() bool { return ts.readersOf() > cap(ts.analyzer.reading.total) })
			fs.set(test.rule)
			resume()
		}
		waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > before })
		if a := c.analyze(datasets["good"], nil); a.text("state") != stateSucceeded {
			t.Errorf("%v: another dataset: %s", test, a.body)
		}
		a := c.finished(location)
		failed := a.text("state") == stateFailed && a.text("failure_code") == failureUnavailable
		unreadable := a.text("state") == stateSucceeded && counts(a)[5] > 0
		if test.dataset == "d/share" && !failed { // the dataset's own directory hangs, so no file is at fault
			t.Errorf("%v: %s", test, a.body)
		}
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

// TestPeerHungContent: while the file system of one dataset does not answer, each request for its files is refused or cut
// off, and the files of another dataset are served. An I/O error is not "not found".
func TestPeerHungContent(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, 400*time.Millisecond)
	makeTiles(t, filepath.Join(ts.datasets, "good"), 1, 1)
	good, sick := c.addDataset("good"), c.addDataset("d")
	c.analyze(good, nil)
	c.analyze(sick, nil)
	good, sick = good+"/data/d0/t0.tif", sick+"/data/share/sub/a.tif"
	for _, rule := range []string{"lookup:sub:hang", "open:sub/a.tif:hang", "read:sub/a.tif:hang", "*:*:hang"} {
		fs.set(rule)
		var all sync.WaitGroup
		for range 3 * maxFileCalls {
			all.Go(func() {
				if a, err := c.send("GET", sick, nil); err == nil && a.status != 503 {
					t.Errorf("%s: %d %s", rule, a.status, a.body)
				}
			})
		}
		waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > 0 })
		c.must(200, "GET", good, nil)
		all.Wait()
		c.must(200, "GET", good, nil)
		fs.set()
		waitFor(t, "the file to be served again", func() bool {
			a, err := c.send("GET", sick, nil)
			return err == nil && a.status == 200
		})
	}
	for _, rule := range []string{"lookup:sub/a.tif:5", "open:sub/a.tif:5", "open:sub/a.tif:13"} {
		fs.set(rule)
		c.refused(503, "file_unavailable", "GET", sick, nil)
	}
	fs.set("lookup:sub/a.tif:2")
	c.refused(404, "not_found", "GET", sick, nil)
}

// TestPeerSickSubdirectory: a subdirectory that cannot be looked at, opened or listed loses no row, and the analysis has
// a warning. When the subdirectory is back, its rows are as before.
func TestPeerSickSubdirectory(t *testing.T) {
	t.Parallel()
	_, c, fs := startSick(t, time.Minute)
	dataset := c.addDataset("d")
	// A name that is listed twice is one file.
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a) != [6]int{sickRows, sickRows, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
	known := c.files(dataset)
	for _, rule := range []string{"*:sub:5", "*:sub:13", "*:sub:116", "opendir:sub:13", "readdir:sub:5", "died"} { // EIO, EACCES, ESTALE
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

// TestPeerHungRegistration: the service stops while a request registers a directory that does not answer.
func TestPeerHungRegistration(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Minute)
	fs.set("opendir:sub:hang")
	go c.try("POST", "/api/v1/datasets", map[string]string{"name": "sub", "path": "d/share/sub"})
	waitFor(t, "the file system to hang", func() bool { return fs.hangs.Load() > 0 })
	stopsPromptly(t, ts)
}

// TestPeerSlowlyGone: an analysis that needs long to see that many files are gone does not give up.
func TestPeerSlowlyGone(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Second)
	dataset := c.addDataset("d")
	ts.exec(`
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, warnings, analyzed_at)
		SELECT d.id, 'share/gone' || n, 0, 0, 'unsupported', '{}', now()
		FROM datasets d, generate_series(1, 45) n`)
	fs.set("lookup:*:slow") // 45 lookups take longer than the patience of the service, one does not
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a) != [6]int{sickRows, sickRows, 0, 0, 45, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestPeerReasonHoldsNoPath: the text of an I/O error does not tell where the server keeps its files.
func TestPeerReasonHoldsNoPath(t *testing.T) {
	t.Parallel()
	ts, c, fs := startSick(t, time.Minute)
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

// TestPeerHugeFiles: an analysis counts files whose sizes add up to more than 64 bits hold. It needs /dev/shm, since a
// file of 2^63-1 bytes fits no file system on disk.
func TestPeerHugeFiles(t *testing.T) {
	t.Parallel()
	top, err := os.MkdirTemp("/dev/shm", "cairn-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	ts := startServer(t, nil, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	for _, name := range []string{"a.tif", "b.tif"} {
		name = filepath.Join(top, name)
		if err := errors.Join(os.WriteFile(name, nil, 0o644), os.Truncate(name, math.MaxInt64)); err != nil {
			t.Fatal(err)
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
