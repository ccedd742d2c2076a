package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// contentTree starts a service with oddFiles as an analysed dataset, with another dataset and a secret beside it. It
// returns a client that may read and download, and the path of the content.
func contentTree(t *testing.T) (ts *testServer, c client, dir, data string) {
	t.Helper()
	ts = startServer(t, nil)
	dir = filepath.Join(ts.datasets, "odd")
	for _, name := range []string{"odd", "odd2"} {
		if err := os.Mkdir(filepath.Join(ts.datasets, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	oddFiles(t, dir)
	for path, content := range map[string]string{"odd/sub/other.tfw": "a world file", "odd/a b#c?d%e+f.tif.aux.xml": "<x/>", "odd/%2e%2e.tif": "a literal name", "odd2/other.txt": "of another dataset", "root.txt": "of none"} {
		if err := os.WriteFile(filepath.Join(ts.datasets, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c = ts.signIn("ada", datasetRead, datasetDownload, datasetManage, datasetAnalyze)
	c.analyze(c.addDataset("odd2"), nil)
	dataset := c.addDataset("odd")
	c.analyze(dataset, nil)
	return ts, c, dir, dataset + "/data/"
}

// TestContent: a file is served as it lies in the folder, by its own name, with its ranges and validators, and its
// sidecars likewise.
func TestContent(t *testing.T) {
	t.Parallel()
	ts, c, dir, data := contentTree(t)
	for stored, status := range oddFiles(t, t.TempDir()) {
		raw := must(decodePath(stored))
		if status[0] != "ok" && stored != "text.txt" && stored != "truncated.tif" && stored != "empty.tif" {
			continue // see TestContentAttack
		}
		want, err := os.ReadFile(filepath.Join(dir, raw))
		a := c.must(200, "GET", data+(&url.URL{Path: raw}).EscapedPath(), nil)
		if err != nil || !bytes.Equal(a.body, want) {
			t.Errorf("%s: %d bytes, not %d: %v", stored, len(a.body), len(want), err)
		}
	}
	for name, want := range map[string]string{"sub/other.tfw": "a world file", "sub%2Fother.tfw": "a world file", "%73ub/other.tfw": "a world file", "a%20b%23c%3Fd%25e+f.tif.aux.xml": "<x/>", "%252e%252e.tif": "a literal name"} {
		if a := c.must(200, "GET", data+name, nil); string(a.body) != want || a.header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s: %q %v", name, a.body, a.header)
		}
	}
	whole := c.must(200, "GET", data+"good.tif", nil)
	size := len(whole.body)
	tag, modified := whole.header.Get("ETag"), whole.header.Get("Last-Modified")
	if whole.header.Get("Content-Type") != "image/tiff; application=geotiff" || tag == "" || strings.HasPrefix(tag, "W/") || modified == "" || whole.header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%v", whole.header)
	}
	if a := c.must(200, "HEAD", data+"good.tif", nil); a.header.Get("Content-Length") != fmt.Sprint(size) || len(a.body) != 0 || a.header.Get("ETag") != tag {
		t.Errorf("HEAD: %v", a.header)
	}
	for _, test := range []struct {
		status int
		header string
		want   []byte
	}{
		{206, "Range: bytes=0-3", whole.body[:4]}, {206, "Range: bytes=-4", whole.body[size-4:]}, {206, fmt.Sprint("Range: bytes=", size-1, "-99999"), whole.body[size-1:]},
		{416, fmt.Sprint("Range: bytes=", size, "-"), nil}, {416, "Range: bytes=4-3", nil}, {304, "If-None-Match: " + tag, nil},
		{304, "If-Modified-Since: " + modified, nil}, {412, `If-Match: "another"`, nil}, {200, "Range: bytes=0-0,2-2", whole.body},
	} {
		if a := c.must(test.status, "GET", data+"good.tif", nil, test.header); test.want != nil && !bytes.Equal(a.body, test.want) {
			t.Errorf("%s: %q", test.header, a.body)
		}
	}
	changed := append(bytes.Clone(whole.body), "more"...)
	if err := os.WriteFile(filepath.Join(dir, "good.tif"), changed, 0o644); err != nil {
		t.Fatal(err)
	}
	if a := c.must(200, "GET", data+"good.tif", nil, "Range: bytes=0-3", "If-Range: "+tag); !bytes.Equal(a.body, changed) || a.header.Get("ETag") == tag {
		t.Errorf("after a change: %d bytes, %v", len(a.body), a.header)
	}
	item := c.must(200, "GET", stacPath+"/search?q=not-utf8", nil).json["features"].([]any)[0].(map[string]any)
	asset := item["assets"].(map[string]any)["data"].(map[string]any)
	href := strings.TrimPrefix(asset["href"].(string), ts.url)
	if a := c.must(200, "GET", href, nil); a.header.Get("Content-Type") != asset["type"] || float64(len(a.body)) != asset["file:size"] {
		t.Errorf("%v: %v", asset, a.header)
	}
	script := ts.addToken("ada", "reader", datasetRead)
	script.refused(403, "token_scope", "GET", data+"good.tif", nil)
	ts.signIn("bob", datasetRead).refused(403, "permission_missing", "GET", data+"good.tif", nil)
	ts.signIn("eve", datasetRead).refused(403, "permission_missing", "GET", data+"nothing.tif", nil)
	if n := ts.queryInt(`SELECT count(*) FROM role_permissions JOIN roles r ON r.id = role_id WHERE r.name = 'member' AND permission = $1`, datasetDownload); n != 0 {
		t.Error("members may download")
	}
}

// TestRanges: a range in bytes is sent, in any spelling of the unit. A unit that Cairn does not know is ignored (RFC 9110,
// section 14.2). A range that the file does not have is refused as problem details, with the size of the file.
func TestRanges(t *testing.T) {
	t.Parallel()
	_, c, _, data := contentTree(t)
	whole := c.must(200, "GET", data+"good.tif", nil).body
	size := len(whole)
	c.must(200, "HEAD", data+"good.tif", nil, "Range: bytes=0-3") // ranges are for GET alone
	for header, want := range map[string][]byte{
		"Bytes=0-3":            whole[:4],
		"BYTES=-4":             whole[size-4:],
		" bytes= 0-3":          whole[:4],
		"bytes=-004":           whole[size-4:],
		"chunks=0-5":           whole,
		"byte=0-5":             whole,
		"0-5":                  whole,
		"bytes":                whole,
		"bytes=":               whole,
		"bytes=-":              nil,
		"bytes=-0":             nil,
		"bytes=-000":           nil,
		"bytes= -0 ":           nil,
		"BYTES=-0":             nil,
		"bytes=x-y":            nil,
		"bytes=1000000000000-": nil,
		"bytes=0-0,2-2":        whole,
		"chunks=-0,1-2":        whole,
	} {
		if want == nil {
			a := c.refused(416, "no_such_range", "GET", data+"good.tif", nil, "Range: "+header)
			isUnsatisfiable := strings.Contains(header, "-0") || strings.Contains(header, "1000")
			if got := a.header.Get("Content-Range"); isUnsatisfiable && got != fmt.Sprint("bytes */", size) {
				t.Errorf("%q: Content-Range is %q", header, got)
			}
			if got := a.header.Get("ETag") + a.header.Get("Last-Modified"); got != "" {
				t.Errorf("%q: the refusal has the validators %q", header, got)
			}
			continue
		}
		status := 206
		if len(want) == size {
			status = 200
		}
		if a := c.must(status, "GET", data+"good.tif", nil, "Range: "+header); !bytes.Equal(a.body, want) {
			t.Errorf("%q: %d bytes, want %d", header, len(a.body), len(want))
		}
	}
	c.must(412, "GET", data+"good.tif", nil, "Range: bytes=-0", `If-Match: "another"`)
	c.must(200, "GET", data+"good.tif", nil, "Range: bytes=-0", `If-Range: "another"`)
	c.must(200, "GET", data+"empty.tif", nil, "Range: bytes=-0")
	if head := c.do("HEAD", data+"good.tif", nil, "Range: bytes=-0"); head.status != 416 && head.status != 200 || len(head.body) > 0 {
		t.Errorf("HEAD: %d with %d bytes", head.status, len(head.body))
	}
}

// TestContentAttack: whatever a client asks for, it gets nothing but files of the dataset that have a row: each of these
// paths is answered 404, or 400, and nothing of a file comes along. The pipe is never opened, or the request would hang.
func TestContentAttack(t *testing.T) {
	t.Parallel()
	ts, c, dir, data := contentTree(t)
	fresh := filepath.Join(dir, "fresh.tif")
	good := filepath.Join(dir, "good.tif")
	for _, err := range []error{
		os.WriteFile(fresh, []byte("no row yet: a secret"), 0o644),
		os.Remove(filepath.Join(dir, "truncated.tif")), os.Mkdir(filepath.Join(dir, "truncated.tif"), 0o755), // after the analysis
		os.Remove(filepath.Join(dir, "text.txt")), syscall.Mkfifo(filepath.Join(dir, "text.txt"), 0o644),
		os.Remove(filepath.Join(dir, "link.tif")), os.Symlink(filepath.Join(ts.datasets, "root.txt"), filepath.Join(dir, "link.tif")),
		os.RemoveAll(filepath.Join(dir, "sub")), os.Symlink("../odd2", filepath.Join(dir, "sub")),
		os.WriteFile(filepath.Join(ts.datasets, "odd2", "other.tfw"), []byte("of another dataset"), 0o644),
		os.Remove(good), os.Symlink("/etc/passwd", good),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ups := []string{"..", "%2e%2e", "%2E.", ".%2e", "..%2f", "..%5c", "%252e%252e", "%c0%ae%c0%ae", "..;", "%2e%2e%2f", "..%00", "%ff%2e%2e", "..%c0%af", "....//", "\\\\x2e\\\\x2e"}
	var paths []string
	for _, up := range ups {
		for _, end := range []string{"/root.txt", "/odd2/other.txt", "/../../../../etc/passwd", "%2froot.txt", "%2f..%2froot.txt"} {
			paths = append(paths, up+end, "sub/"+up+end, "sub/"+up+"/"+up+end, up+"/"+up+end)
		}
	}
	paths = append(paths, "", ".", "/", "//", "sub", "sub/", "sub/.", "./good.tif", "sub/../good.tif", "/good.tif", "//etc/passwd", "/etc/passwd", "%2fetc%2fpasswd", "fresh.tif", "nothing.tif", "GOOD.TIF", "good.tif/",
		"good.tif/x", "good.tif%00", "good.tif%00.txt", "good%00", "%00", "good.tif%20", "good.tif.", strings.Repeat("x", 5000), strings.Repeat("x/", 2000)+"x", "%ff%fe", "%f4%90%80%80", "file:%2f%2f%2fetc%2fpasswd",
		"linked-dir", "linked-dir/other.tif", "absolute.tif", "passwd.tif", "dangling.tif", "loop.tif", "zero.tif", "pipe.tif", "piped.tif", "truncated.tif", "text.txt", "link.tif", "good.tif",
		"sub/other.tif", "sub/other.tfw", "sub/up.tif", "%5cx2e%5cx2e/root.txt", "*", "%", "~root", "CON", "good.tif::$DATA")
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD"} {
			for _, header := range []string{"", "Range: bytes=0-\r\n"} {
				status, body := ts.byteForByte(c, fmt.Sprintf("%s %s HTTP/1.1\r\n%s", method, data+path, header))
				if status != 404 && status != 400 || len(body) > 0 && !bytes.Contains(body, []byte(`"code"`)) && status != 400 {
					t.Errorf("%s %s: %d %.200q", method, path, status, body)
				}
				for _, secret := range []string{"root:", "of none", "of another", "a secret", "II*"} {
					if bytes.Contains(body, []byte(secret)) {
						t.Errorf("%s %s: %.200q", method, path, body)
					}
				}
			}
		}
	}
	c.must(200, "GET", strings.Replace(data, "/data/", "", 1), nil)
	for _, id := range []string{"99", "odd", "-1", "1e0", "%2e%2e"} {
		if status, _ := ts.byteForByte(c, "GET /api/v1/datasets/"+id+"/data/not-utf8-%ff.tif HTTP/1.1\r\n"); status != 404 {
			t.Errorf("dataset %s: %d", id, status)
		}
	}
	ts.exec(`UPDATE datasets SET path = '../..' WHERE name = 'odd'`) // a row that is wrong leads nowhere either
	c.refused(404, "not_found", "GET", data+"not-utf8-%ff.tif", nil)
}

// TestContentUnavailable: a file that is there but cannot be opened is not "not found", and the log says why. In sysfs
// nobody can read an attribute that is only for writing, not even root.
func TestContentUnavailable(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_DATASETS_DIR=/sys/bus")
	row := placedFile(t, "drivers_probe", 4326, 0.01, 0, 7, 0, -0.02, 46)
	gone := placedFile(t, "gone/drivers_probe", 4326, 0.01, 0, 7, 0, -0.02, 46)
	data := fmt.Sprintf("/api/v1/datasets/%d/data/", ts.addFiles("platform", []ElevationDatasetFileMeta{row, gone}))
	c := ts.signIn("ada", datasetRead, datasetDownload)
	c.refused(503, "file_unavailable", "GET", data+"drivers_probe", nil)
	c.refused(404, "not_found", "GET", data+"gone/drivers_probe", nil)
	if log := ts.log.String(); strings.Count(log, `"request failed"`) != 1 || !strings.Contains(log, "open drivers_probe in the dataset platform: permission denied") {
		t.Errorf("%s", log)
	}
}

// TestHungFileCalls: while the file system of one dataset does not answer, requests for its files end, only a few calls
// hang, and the files of other datasets are served. Results that come late are dropped.
func TestHungFileCalls(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.patience = time.Second })
	data := fmt.Sprintf("/api/v1/datasets/%d/data/", ts.addFiles("good", []ElevationDatasetFileMeta{placedFile(t, "good.tif", 4326, 0.01, 0, 7, 0, -0.02, 46)}))
	if err := errors.Join(os.Mkdir(filepath.Join(ts.datasets, "good"), 0o755), os.WriteFile(filepath.Join(ts.datasets, "good/good.tif"), sampleTIFF(), 0o644)); err != nil {
		t.Fatal(err)
	}
	c := ts.signIn("ada", datasetDownload)
	answers := make(chan bool)
	var calls, dropped atomic.Int64
	ask := func() error {
		return ts.catalogue.askFileSystem(t.Context(), "dead", func() error {
			calls.Add(1)
			<-answers
			return nil
		}, func() { dropped.Add(1) })
	}
	var all sync.WaitGroup
	for range 3 * maxFileCalls {
		all.Go(func() {
			if p, ok := errors.AsType[*problem](ask()); !ok || p.status != 503 {
				t.Errorf("%v", p)
			}
		})
	}
	waitFor(t, "calls to hang", func() bool { return calls.Load() == maxFileCalls })
	c.must(200, "GET", data+"good.tif", nil)
	all.Wait()
	c.must(200, "GET", data+"good.tif", nil)
	if n := calls.Load(); n != maxFileCalls {
		t.Errorf("%d calls hang", n)
	}
	for name, test := range map[string]struct {
		ctx  func() (context.Context, context.CancelFunc)
		want string
	}{
		"the caller's time is up": {func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), time.Millisecond)
		}, "file_unavailable"},
		"the client left": {func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx, cancel
		}, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := test.ctx()
			defer cancel()
			err := ts.catalogue.askFileSystem(ctx, "another", func() error { <-answers; return nil }, func() {})
			got := fmt.Sprint(err)
			if p, ok := errors.AsType[*problem](err); ok {
				got = string(p.code)
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
	close(answers)
	waitFor(t, "late results to be dropped", func() bool { return dropped.Load() == maxFileCalls })
	if err := ask(); err != nil {
		t.Error(err)
	}
}

// TestHungRegistrations: while a dataset root does not answer, datasets can be registered in another.
func TestHungRegistrations(t *testing.T) {
	t.Parallel()
	alive, dead := t.TempDir(), t.TempDir()
	ts := startServer(t, func(o *options) { o.patience = time.Second }, "CAIRN_DATASETS_DIR="+alive+":"+dead)
	answers := make(chan bool)
	var calls atomic.Int64
	var all sync.WaitGroup
	for range maxFileCalls {
		all.Go(func() {
			ts.catalogue.askFileSystem(t.Context(), dead, func() error {
				calls.Add(1)
				<-answers
				return nil
			}, func() {})
		})
	}
	waitFor(t, "calls to hang", func() bool { return calls.Load() == maxFileCalls })
	c := ts.signIn("ada", datasetManage)
	c.refused(503, "busy", "POST", "/api/v1/datasets", map[string]string{"name": "dead", "path": dead})
	c.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "alive", "path": alive})
	close(answers)
	all.Wait()
	c.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "dead", "path": dead})
}

// byteForByte sends a request line and headers byte for byte, and returns the status and the body of the answer.
func (ts *testServer) byteForByte(c client, request string) (status int, body []byte) {
	ts.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		ts.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "%sHost: cairn\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n", request, c.token)
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		ts.t.Fatalf("%.200q: %v", request, err)
	}
	body, err = io.ReadAll(response.Body)
	if err != nil {
		ts.t.Fatalf("%.200q: %v", request, err)
	}
	return response.StatusCode, body
}

// TestSlowReaders: 200 clients that read a large file slowly hold no connection to the database, at most 112 KiB each
// (a buffer of 64 KiB, a connection and its goroutines), and nobody up. It is not parallel: it measures memory.
func TestSlowReaders(t *testing.T) {
	const readers, each = 200, 112 << 10
	ts := startServer(t, nil)
	dir := filepath.Join(ts.datasets, "large")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".bin")), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, fmt.Sprint(i, ".bin")), 256<<20); err != nil {
			t.Fatal(err)
		}
	}
	c := ts.signIn("ada", datasetRead, datasetDownload, datasetManage, datasetAnalyze)
	dataset := c.addDataset("large")
	c.analyze(dataset, nil)
	memory := func() int {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc + stats.StackInuse)
	}
	before := memory()
	for i := range readers {
		conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET %s/data/%d.bin HTTP/1.1\r\nHost: cairn\r\nRange: bytes=1-\r\nAuthorization: Bearer %s\r\n\r\n", dataset, i%4, c.token)
		status := make([]byte, len("HTTP/1.1 206"))
		if _, err := io.ReadFull(conn, status); err != nil || string(status) != "HTTP/1.1 206" {
			t.Fatalf("%q %v", status, err)
		}
	}
	// The service's own work may have one for a moment.
	waitFor(t, "no connection in use", func() bool { return ts.db.Stat().AcquiredConns() == 0 })
	grown := (memory() - before) / readers
	t.Logf("%d KiB for each reader", grown>>10)
	if grown > each {
		t.Errorf("%d bytes for each reader", grown)
	}
	c.must(200, "GET", dataset+"/files", nil)
	c.must(206, "GET", dataset+"/data/0.bin", nil, "Range: bytes=0-99")
}
