package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// startHostile starts a service in a process of its own, whose memory can be told from the test's.
func startHostile(t *testing.T, env ...string) (p *process, address string) {
	t.Helper()
	dir := t.TempDir()
	p = startProcess(t, append(env, "CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR="+dir+"/state", "CAIRN_DATASETS_DIR="+dir+"/datasets",
		"CAIRN_DATABASE_URL="+newDatabase(t), "CAIRN_TRUSTED_PROXIES=127.0.0.1/32"))
	return p, strings.TrimPrefix(p.url, "http://")
}

// resident is the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	fmt.Sscan(string(text), &size, &pages)
	return pages * os.Getpagesize()
}

// peakMemory is the most memory in bytes that a process has had resident.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	fmt.Sscan(text, &kib)
	return kib << 10
}

// TestManyLogins: of a great many logins at once each is answered, and the service answers others. Memory stays
// bounded; only the soak says so, without the race detector, which multiplies it.
func TestManyLogins(t *testing.T) {
	t.Parallel()
	p, _ := startHostile(t, realArgon)
	c := client{t: t, url: p.url}
	statuses := make([]int, soakOr(1000, 300))
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			a, err := c.send("POST", "/api/v1/auth/login", strings.NewReader(fmt.Sprintf(`{"username":"user%d","password":"%s"}`, i, testPassword)), fmt.Sprintf("X-Forwarded-For: 10.0.%d.%d", i/250, i%250))
			if err == nil {
				statuses[i] = a.status
			}
		})
	}
	c.must(200, "GET", "/health", nil)
	wg.Wait()
	for i, status := range statuses {
		if status != http.StatusUnauthorized && status != http.StatusServiceUnavailable {
			t.Errorf("login %d: %d", i, status)
		}
	}
	peak := peakMemory(t, p.cmd.Process.Pid)
	t.Logf("%d logins at once: at most %d MiB", len(statuses), peak>>20)
	if soakOr(1, 0) == 1 && peak > 150<<20 {
		t.Error("that is more than 150 MiB")
	}
}

// TestSlowClients: connections that send a byte a second, in the header or in a body, hold nobody up.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	p, address := startHostile(t)
	done := make(chan bool)
	var slow sync.WaitGroup
	for i := range soakOr(2000, 200) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		begin := "GET /api/v1/ping HTTP/1.1\r\nHost: cairn\r\nX-Slow: "
		if i%2 == 1 {
			begin = "POST /api/v1/auth/login HTTP/1.1\r\nHost: cairn\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
		}
		io.WriteString(conn, begin)
		slow.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				if _, err := io.WriteString(conn, " "); err != nil { // it was cut off
					return
				}
				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
		})
	}
	c := client{t: t, url: p.url}
	slowest := time.Duration(0)
	for range soakOr(500, 50) {
		began := time.Now()
		c.must(200, "GET", "/health", nil)
		slowest = max(slowest, time.Since(began))
	}
	close(done)
	slow.Wait()
	t.Logf("beside %d slow connections the slowest answer took %v", soakOr(2000, 200), slowest)
}

// TestIdleClients: connections that are kept and not used cost little.
func TestIdleClients(t *testing.T) {
	t.Parallel()
	p, address := startHostile(t)
	client{t: t, url: p.url}.must(200, "GET", "/health", nil)
	before, n := resident(t, p.cmd.Process.Pid), soakOr(10000, 1000)
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET /api/v1/ping HTTP/1.1\r\nHost: cairn\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReaderSize(conn, 1024), nil)
		if err != nil || response.StatusCode != 200 {
			t.Fatalf("%v %v", response, err)
		}
	}
	cost := resident(t, p.cmd.Process.Pid) - before
	t.Logf("%d idle connections cost %d KiB, %d bytes each", n, cost>>10, cost/n)
	if cost > 256<<20 {
		t.Error("that is more than 256 MiB")
	}
	client{t: t, url: p.url}.must(200, "GET", "/health", nil)
}

// TestHugeRequests: headers and bodies without measure are cut off, and cost no memory.
func TestHugeRequests(t *testing.T) {
	t.Parallel()
	p, address := startHostile(t)
	client{t: t, url: p.url}.must(200, "GET", "/health", nil)
	before := resident(t, p.cmd.Process.Pid)
	login := "POST /api/v1/auth/login HTTP/1.1\r\nHost: cairn\r\nContent-Type: application/json\r\n"
	for _, c := range []struct {
		name, begin, repeat string
		times               int
		status              int
	}{
		{"100,000 headers", "GET /api/v1/ping HTTP/1.1\r\nHost: cairn\r\n", "X-Header: value\r\n", 100_000, 431},
		{"a chunked body of 1 GiB", login + "Transfer-Encoding: chunked\r\n\r\n", "10000\r\n" + strings.Repeat(" ", 1<<16) + "\r\n", 1 << 14, 413},
		{"a body of 1 GiB", login + "Content-Length: 1073741824\r\n\r\n", strings.Repeat(" ", 1<<16), 1 << 14, 413},
		{"a body of 1 MiB by nobody, whose length is looked at first", "POST /api/v1/system-messages HTTP/1.1\r\nHost: cairn\r\nContent-Length: 1048576\r\n\r\n", strings.Repeat(" ", 1<<16), 16, 413},
		{"a body that nobody asked for", "POST /api/v1/auth/logout HTTP/1.1\r\nHost: cairn\r\nTransfer-Encoding: chunked\r\n\r\n", "10000\r\n" + strings.Repeat(" ", 1<<16) + "\r\n", 1 << 14, 413},
		{"a body of a GET", "GET /api/v1/ping HTTP/1.1\r\nHost: cairn\r\nContent-Length: 1073741824\r\n\r\n", strings.Repeat(" ", 1<<16), 1 << 14, 200},
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan int, 1)
		go func() {
			status := 0
			if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				status = response.StatusCode
			}
			answered <- status
		}()
		io.WriteString(conn, c.begin)
		sent := 0
		for range c.times {
			n, err := io.WriteString(conn, c.repeat)
			if sent += n; err != nil {
				break
			}
		}
		if sent > 64<<20 {
			t.Errorf("%s: %d bytes were taken", c.name, sent)
		}
		if status := <-answered; status != c.status && status != 0 { // 0: cut off before the answer was read
			t.Errorf("%s: status %d, want %d", c.name, status, c.status)
		}
		conn.Close()
		t.Logf("%s: cut off after %d KiB", c.name, sent>>10)
	}
	client{t: t, url: p.url}.must(200, "GET", "/health", nil)
	if cost := resident(t, p.cmd.Process.Pid) - before; cost > 64<<20 {
		t.Errorf("it cost %d MiB", cost>>20)
	}
}
