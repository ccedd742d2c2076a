//go:build bench

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestBenchStart prints how large the stripped program is, how long it takes from its start to the first healthy answer,
// and how much memory it has then.
func TestBenchStart(t *testing.T) {
	program := filepath.Join(t.TempDir(), "cairn")
	build := exec.Command("go", "build", "-tags", "nopgxregisterdefaulttypes", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	size := must(os.Stat(program)).Size()
	// start measures one start and returns it with the resident memory after the answer, in bytes.
	start := func(state, url string) (took time.Duration, memory int) {
		cmd := exec.Command(program, "serve")
		cmd.Env = append(os.Environ(), "CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR="+state, "CAIRN_DATASETS_DIR="+t.TempDir(), "CAIRN_DATABASE_URL="+url)
		began := time.Now()
		stdout := must(cmd.StdoutPipe())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			cmd.Process.Signal(syscall.SIGTERM)
			cmd.Wait()
		}()
		line := must(bufio.NewReader(stdout).ReadString('\n'))
		_, address, _ := strings.Cut(strings.TrimSpace(line), "listening on ")
		answer := must(http.Get(address + "/health"))
		answer.Body.Close()
		if took = time.Since(began); answer.StatusCode != 200 {
			t.Error(answer.Status)
		}
		return took, resident(t, cmd.Process.Pid)
	}
	state, url := newStateDir(t), newDatabase(t)
	start(state, url) // makes keys and tables
	var times []time.Duration
	memory := 0
	for range 9 {
		took, n := start(state, url)
		times, memory = append(times, took), n
	}
	slices.Sort(times)
	fmt.Printf("start to first healthy answer: %v with a running database (of nine, the median; under 150 ms is wanted)\n", times[4].Round(time.Millisecond))
	fromNothing, _ := start(newStateDir(t), "")
	fmt.Printf("start to first healthy answer: %v from nothing, initdb and all (under 3 s is wanted)\n", fromNothing.Round(time.Millisecond))
	fmt.Printf("idle memory %.1f MiB (under 25 is wanted), stripped program %.1f MiB (under 16)\n", float64(memory)/(1<<20), float64(size)/(1<<20))
}
