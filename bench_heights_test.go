//go:build bench

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// heightTile returns a tile of 1,000 by 1,000 heights of 1 m in UTM, of fractal terrain with a relief of a centimetre from
// sample to sample, as laser scans have it.
func heightTile(f pixelTIFF) []byte {
	const size = 1000
	random := rand.New(rand.NewPCG(1, 2))
	heights := make([]float64, size*size)
	for i := range heights {
		heights[i] = 300 + 100*fractal(3, float64(i%size), float64(i/size), 0.5) + 0.01*random.NormFloat64()
	}

	tile := terrainTIFF(0, 0, nil)
	f.place = with(doubles(tagModelPixelScale, 1, 1, 0), doubles(tagModelTiepoint, 0, 0, 0, 500_000, 5_400_000, 0), tile.place[2:])
	f.order, f.width, f.height, f.bands, f.bits, f.format = tile.order, size, size, 1, 32, sampleFormatFloat
	f.value = func(_, x, y int) float64 { return heights[y*size+x] }
	return f.build()
}

// TestBenchHeights prints how long the heights at 1,000 points take in one request, and that at one, once the files have
// been read. The points are spread over 100 tiles of 1 km.
func TestBenchHeights(t *testing.T) {
	const side = 10 // tiles
	deflate := pixelTIFF{compression: compressionDeflate, predictor: predictorFloat}
	kinds := []struct {
		title string
		pixelTIFF
		columns, rows int
		bar           time.Duration
	}{
		{"Deflate, in tiles of 256 by 256", deflate, 256, 256, time.Second},
		{"Deflate, in tiles of 512 by 512", deflate, 512, 512, time.Second},
		{"Deflate, in strips of 2 rows", deflate, 0, 2, time.Second},
		{"uncompressed, in strips of 2 rows", pixelTIFF{compression: uncompressed}, 0, 2, 300 * time.Millisecond},
	}

	ts := startServer(t, nil)
	c := ts.signIn("ada", "all")
	var datasets []string
	for i, kind := range kinds {
		kind.pixelTIFF.columns, kind.pixelTIFF.rows = kind.columns, kind.rows
		content := heightTile(kind.pixelTIFF)
		corner := func(x, y float64) (b []byte) {
			for _, v := range []float64{x, y} {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
			}
			return b
		}

		name := fmt.Sprintf("tiles%d", i)
		if err := os.Mkdir(filepath.Join(ts.datasets, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for tile := range side * side {
			x, y := 500_000+1000*float64(tile%side), 5_400_000-1000*float64(tile/side)
			moved := bytes.Replace(content, corner(500_000, 5_400_000), corner(x, y), 1)
			if err := os.WriteFile(filepath.Join(ts.datasets, name, fmt.Sprintf("%d.tif", tile)), moved, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		dataset := c.addDataset(name)
		c.analyze(dataset, nil)
		datasets = append(datasets, filepath.Base(dataset))
	}
	ts.stop()
	c.url = startProcess(t, ts.env).url

	crs := must(crsByCode(25832))
	random := rand.New(rand.NewPCG(3, 4))
	points := func(n int) (points [][2]float64) {
		for range n {
			lon, lat, err := crs.projection.inverse(500_000+1000*side*random.Float64(), 5_400_000-1000*side*random.Float64())
			if err != nil {
				t.Fatal(err)
			}
			points = append(points, [2]float64{lon, lat})
		}
		return points
	}
	for i, kind := range kinds {
		dataset := must(strconv.Atoi(datasets[i]))
		median := func(n int) time.Duration {
			var times []time.Duration
			for round := range 12 {
				body := map[string]any{"points": points(n), "dataset": dataset}
				start := time.Now()
				a := c.must(200, "POST", "/api/v1/elevation", body)
				if round > 0 { // the first fills the caches
					times = append(times, time.Since(start))
				}
				for _, item := range a.items() {
					if item["height"] == nil {
						t.Fatal(item)
					}
				}
			}
			slices.Sort(times)
			return times[len(times)/2].Round(100 * time.Microsecond)
		}
		fmt.Printf("heights at 1,000 points in 100 tiles, %s: %v (under %v is wanted); at one: %v (8 ms)\n",
			kind.title, median(1000), kind.bar, median(1))
	}
}
