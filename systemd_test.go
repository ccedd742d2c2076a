package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// activated is a service in a process of its own that was handed a socket.
type activated struct {
	cmd  *exec.Cmd
	line chan string // its first line
}

// startActivated hands the socket to a new service as systemd does. The shell's process becomes the service.
func startActivated(t *testing.T, socket *os.File, env ...string) activated {
	t.Helper()
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0"`, os.Args[0])
	cmd.Env = append(append(os.Environ(), "CAIRN_TEST_SERVE=1"), env...)
	cmd.ExtraFiles = []*os.File{socket}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killAndWait(cmd) })
	a := activated{cmd, make(chan string, 1)}
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			line = stderr.String()
		}
		a.line <- line
		io.Copy(io.Discard, stdout)
	}()
	return a
}

// TestRestartUnderLoad: with a socket of systemd's no request fails while the service is stopped and started again,
// on new connections as on kept ones. systemd is told when it is ready and when it stops, and the watchdog is fed.
func TestRestartUnderLoad(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	url := "http://" + listener.Addr().String()
	listener.Close() // the service has the other copy
	notes, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notes.Close()
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		for buffer := make([]byte, 256); ; {
			n, err := notes.Read(buffer)
			if err != nil {
				return
			}
			said <- string(buffer[:n])
		}
	}()
	expect := func(want string) {
		t.Helper()
		for note := range said {
			if note == want {
				return
			}
			if note != "WATCHDOG=1" {
				t.Errorf("systemd hears %q before %q", note, want)
			}
		}
	}
	dir := t.TempDir()
	env := []string{"CAIRN_STATE_DIR=" + dir + "/state", "CAIRN_DATASETS_DIR=" + dir + "/datasets", "CAIRN_LISTEN=192.0.2.1:1",
		"CAIRN_DATABASE_URL=" + newDatabase(t), "NOTIFY_SOCKET=" + notes.LocalAddr().String(), "WATCHDOG_USEC=300000"}
	service := startActivated(t, socket, env...)
	expect("READY=1")
	expect("WATCHDOG=1")
	if line := <-service.line; !strings.Contains(line, url) {
		t.Fatalf("the service says %s", line)
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var sent, failed atomic.Int64
	var load sync.WaitGroup
	for keptOpen := range 2 {
		web := &http.Client{Transport: &http.Transport{DisableKeepAlives: keptOpen == 0, MaxIdleConnsPerHost: 100}}
		load.Go(func() {
			for tick := time.NewTicker(4 * time.Millisecond); ; { // 250 requests a second each
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				load.Go(func() {
					response, err := web.Get(url + "/health")
					if err == nil {
						response.Body.Close()
					}
					if sent.Add(1); err != nil || response.StatusCode != 200 {
						failed.Add(1)
						t.Errorf("request %d: %v %v", sent.Load(), response, err)
					}
				})
			}
		})
	}
	enough := func(n int64) {
		waitFor(t, "requests", func() bool { return sent.Load() >= n || failed.Load() > 0 })
	}
	for range 3 {
		enough(sent.Load() + 200)
		service.cmd.Process.Signal(syscall.SIGTERM)
		if err := service.cmd.Wait(); err == nil {
			t.Error("the service under test ends with 1")
		}
		expect("STOPPING=1")
		service = startActivated(t, socket, env...)
		expect("READY=1")
		<-service.line
	}
	enough(sent.Load() + 200)
	stop()
	load.Wait()
	t.Logf("%d requests, %d failed", sent.Load(), failed.Load())
}

// TestSupervisorVariables: variables that are meant for another process are ignored.
func TestSupervisorVariables(t *testing.T) {
	t.Parallel()
	self := fmt.Sprint(os.Getpid())
	for _, c := range []struct {
		env  string
		want supervisor
	}{
		{"", supervisor{}},
		{"LISTEN_PID=1 LISTEN_FDS=1 WATCHDOG_PID=1 WATCHDOG_USEC=1000000", supervisor{}},
		{"LISTEN_PID=" + self + " LISTEN_FDS=2 WATCHDOG_USEC=2000000 NOTIFY_SOCKET=@x", supervisor{"@x", 2, 2 * time.Second}},
	} {
		if got := findSupervisor(strings.Fields(c.env)); got != c.want {
			t.Errorf("%s: %v", c.env, got)
		}
	}
	if _, err := (supervisor{sockets: 2}).listen(""); err == nil {
		t.Error("two sockets were taken")
	}
}

// TestKeysAsCredential: a key file that systemd provides keeps its mode. After a change, the command and the log say that
// only a restart loads it.
func TestKeysAsCredential(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/keys", []byte(newKeyLine()), 0o640), os.Chmod(dir+"/keys", 0o640)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir+"/keys", 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(dir + "/keys")
	if err != nil {
		t.Fatal(err)
	}
	ts := startServer(t, nil, "CREDENTIALS_DIRECTORY="+dir)
	if err := ts.operations.reloadKeys(t.Context()); err != nil || !strings.Contains(ts.log.String(), "restart the service") {
		t.Errorf("%v, %s", err, ts.log)
	}
	for _, args := range [][]string{{"keys", "add"}, {"keys", "promote", ts.keys.Load().keys[0].id}} {
		var out lockedBuffer
		if err := run(t.Context(), args, ts.env, nil, &out, io.Discard); err != nil || !strings.Contains(out.String(), "restart") {
			t.Errorf("%v: %v, %s", args, err, out.String())
		}
	}
	after, err := os.Stat(dir + "/keys")
	if err != nil || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Gid != before.Sys().(*syscall.Stat_t).Gid {
		t.Errorf("%v, %v is %v", err, before, after)
	}
}

// TestWatchdogStops: the watchdog's request does not outlast the service.
func TestWatchdogStops(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() {
		defer close(done)
		(&operations{core: &core{cfg: config{supervisor: supervisor{watchdog: 24 * time.Hour}}}}).keepWatchdog(ctx, silent.Addr())
	}()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	<-done
}

// TestHangupDuringStart: a reload that comes before the service is up does not end it.
func TestHangupDuringStart(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	dir, url := t.TempDir(), newDatabase(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	holds, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holds.Rollback(context.Background())
	if err := advisoryLock(t.Context(), holds, lockMigrate); err != nil { // the start waits for it
		t.Fatal(err)
	}
	service := startActivated(t, socket, "CAIRN_STATE_DIR="+dir+"/state", "CAIRN_DATASETS_DIR="+dir+"/datasets", "CAIRN_DATABASE_URL="+url)
	waitFor(t, "the start to wait", func() (waits bool) {
		err := pool.QueryRow(t.Context(), `
			SELECT EXISTS (
				SELECT FROM pg_locks
				WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			)`).Scan(&waits)
		return err == nil && waits
	})
	service.cmd.Process.Signal(syscall.SIGHUP)
	if err := holds.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if line := <-service.line; !strings.Contains(line, "listening on") {
		t.Errorf("the service says %s", line)
	}
}
