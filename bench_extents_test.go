package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// BenchmarkExtents reads 20,000 small GeoTIFFs on all cores. The floor opens them, reads 4 KiB and
// closes them. ratio compares the two in one run.
func BenchmarkExtents(b *testing.B) {
	const files, perDirectory = 20_000, 1000
	dir := b.TempDir()
	paths, size := make([]string, files), int64(0)
	for i := range paths {
		paths[i] = fmt.Sprintf("d%02d/tile%05d.tif", i/perDirectory, i)
		if i%perDirectory == 0 {
			if err := os.Mkdir(filepath.Join(dir, filepath.Dir(paths[i])), 0o755); err != nil {
				b.Fatal(err)
			}
		}
		place := doubles(tagModelTiepoint, 0, 0, 0, float64(i%300-150), float64(i%100-50), 0)
		tags := with(testSize(), longs(tagStripOffsets, 8), longs(tagStripByteCounts, 12), shorts(tagRowsPerStrip, 3), shorts(tagCompression, 1), shorts(tagPhotometric, 1), shorts(tagPlanarConfiguration, 1), testPlace()[0], place, testKeys())
		content := append(testTIFF{binary.LittleEndian, false, tags}.build(), make([]byte, 4<<10)...)
		size = int64(len(content))
		if err := os.WriteFile(filepath.Join(dir, paths[i]), content, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	// all runs work for a share of the files on each core.
	all := func(work func(paths []string)) time.Duration {
		start, n := time.Now(), runtime.GOMAXPROCS(0)
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() { work(paths[i*files/n : (i+1)*files/n]) })
		}
		group.Wait()
		return time.Since(start)
	}
	var floor, reader time.Duration
	for b.Loop() {
		floor += all(func(paths []string) {
			buffer := make([]byte, firstReadBytes)
			for _, path := range paths {
				f, err := os.Open(dir + "/" + path)
				if err != nil {
					b.Error(err)
					return
				}
				f.Read(buffer)
				f.Close()
			}
		})
		reader += all(func(paths []string) {
			fr := &fileReader{root: root, now: time.Now}
			defer func() { fr.dir.Close() }()
			for _, path := range paths {
				if m, _ := fr.readEntry(entry{Path: path, Size: size}); m.Status != fileStatusOK {
					b.Error(*m.Reason)
					return
				}
			}
		})
	}
	rounds := float64(b.N) * files
	b.ReportMetric(rounds/floor.Seconds(), "floor-files/s")
	b.ReportMetric(rounds/reader.Seconds(), "files/s")
	b.ReportMetric(floor.Seconds()/reader.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBoxes converts boxes to degrees on one core: of a UTM zone on WGS 84 and on a datum with
// seven parameters, and of other projections.
func BenchmarkBoxes(b *testing.B) {
	for _, c := range []struct {
		name string
		code int
		x, y float64
	}{
		{"TransverseMercator", 32633, 600000, 5000000}, {"TransverseMercatorShifted", 27700, 500000, 200000}, {"LambertCone", 2154, 700000, 6600000},
		{"LambertEqualArea", 3035, 4000000, 3000000}, {"ObliqueMercator", 2056, 2700000, 1250000}, {"Krovak", 5514, -700000, -1000000},
		{"Polyconic", 5880, 5100000, 8000000},
	} {
		crs := crsOf(b, c.code)
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := boxInDegrees(crs, northUp(c.x, c.y, 10), 1000, 1000); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "boxes/s")
		})
	}
}

// BenchmarkRegistry makes a CRS from its code. First use costs nothing more.
func BenchmarkRegistry(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := crsByCode(27700); err != nil {
			b.Fatal(err)
		}
	}
}
