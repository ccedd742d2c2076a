//go:build bench

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestBenchAnalysis analyses folders of CAIRN_BENCH_FILES (1,000,000) small GeoTIFFs, and a tenth of that, and holds the
// rate against a floor: the same files opened, 4 KiB read and closed, and the same rows sent by COPY into a table with
// the same indexes, on all cores.
func TestBenchAnalysis(t *testing.T) {
	files := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("CAIRN_BENCH_FILES")); err == nil {
		files = n
	}
	fmt.Printf("%-28s %12s %12s %7s %12s %7s %10s\n", "", "floor/s", "first/s", "ratio", "unchanged/s", "ratio", "peak MiB")
	for _, folders := range []int{1000, 1} {
		t.Run(fmt.Sprint(folders), func(t *testing.T) {
			var peaks []float64
			for _, files := range []int{files / 10, files} {
				peaks = append(peaks, benchAnalysis(t, files, folders))
			}
			fmt.Printf("peak memory, %d to %d files: %.2f\n", files, files/10, peaks[1]/peaks[0])
		})
	}
}

// benchAnalysis measures one folder, prints a line and returns the peak memory of the service, in MiB.
func benchAnalysis(t *testing.T, files, folders int) float64 {
	dir := t.TempDir()
	top, state := filepath.Join(dir, "datasets"), filepath.Join(dir, "state")
	defer os.RemoveAll(top)
	paths, values := make([]string, files), make([][2]float64, files)
	for i := range paths {
		folder := fmt.Sprintf("folder%04d", i%folders)
		if i < folders {
			if err := os.MkdirAll(filepath.Join(top, "tiles", folder), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		paths[i], values[i] = fmt.Sprintf("%s/tile%07d.tif", folder, i), [2]float64{float64(i%1400)/4 - 175, float64(i%640)/4 - 80}
		if err := os.WriteFile(filepath.Join(top, "tiles", paths[i]), geographicTIFF(values[i][0], values[i][1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	url := newDatabase(t)
	floor := benchFloor(t, url, filepath.Join(top, "tiles"), paths, values)

	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url, "CAIRN_STATE_DIR="+state, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	dataset := c.addDataset("tiles")
	ts.stop()
	p := startProcess(t, ts.env)
	c.url = p.url
	analyze := func() float64 {
		start := time.Now()
		location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
		for {
			if a := c.must(200, "GET", location+"?wait=60s", nil); a.json["finished_at"] != nil {
				if n := counts(a); n[0] != files || n[1]+n[3] != files {
					t.Errorf("%s", a.body)
				}
				return float64(files) / time.Since(start).Seconds()
			}
		}
	}
	first := analyze()
	unchanged := analyze()
	peak := float64(peakMemory(t, p.cmd.Process.Pid)) / (1 << 20)
	fmt.Printf("%-28s %12.0f %12.0f %7.2f %12.0f %7.2f %10.1f\n", fmt.Sprintf("%d files, %d folders", files, folders),
		floor, first, first/floor, unchanged, unchanged/first, peak)
	p.kill()
	return peak
}

// benchFloor is how many files a second the floor does.
func benchFloor(t *testing.T, url, dir string, paths []string, values [][2]float64) float64 {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE floor (LIKE elevation_dataset_file_meta INCLUDING ALL)`); err != nil {
		t.Fatal(err)
	}
	fr := &fileReader{root: mustOpenRoot(t, dir), now: time.Now}
	m, _ := fr.readEntry(entry{Path: paths[0], Size: 1})
	start, n := time.Now(), runtime.GOMAXPROCS(0)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			share, buffer := paths[i*len(paths)/n:(i+1)*len(paths)/n], make([]byte, firstReadBytes)
			columns := strings.Split(storedColumns+", id, dataset_id", ", ")
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"floor"}, columns,
				pgx.CopyFromSlice(len(share), func(k int) ([]any, error) {
					f, err := os.Open(dir + "/" + share[k])
					if err != nil {
						return nil, err
					}
					f.Read(buffer)
					f.Close()
					row, place := m, values[k]
					row.Path = share[k]
					row.NativeBBox = []float64{place[0], place[1], place[0] + 1, place[1] + 1}
					row.BBox = row.NativeBBox
					return append(row.stored(), int64(i*len(paths)/n+k+1), int64(1)), nil
				}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	rate := float64(len(paths)) / time.Since(start).Seconds()
	if _, err := pool.Exec(ctx, `DROP TABLE floor`); err != nil {
		t.Fatal(err)
	}
	return rate
}
