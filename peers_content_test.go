//go:build peers

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestPeerChecksum cuts rasters of every layout that GDAL writes at 20 lengths. Each that GDAL cannot
// read to the end is found damaged, and none that it can read.
func TestPeerChecksum(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GDAL_PAM_ENABLED=NO")
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, output)
		}
		return string(output)
	}
	// The source has noise, so that compressed blocks differ in size, and nodata in one corner.
	var grid strings.Builder
	grid.WriteString("ncols 130\nnrows 90\nxllcorner 7\nyllcorner 46\ncellsize 0.01\nNODATA_value -9999\n")
	seed := uint32(1)
	for y := range 90 {
		for x := range 130 {
			seed = seed*1664525 + 1013904223
			if v := int(seed>>24) + 10*y + x; x > 70 && y > 50 {
				grid.WriteString("-9999 ")
			} else {
				fmt.Fprint(&grid, v, " ")
			}
		}
		grid.WriteString("\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "source.asc"), []byte(grid.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	layouts := map[string]string{
		"strips.tif": "", "rows.tif": "-co BLOCKYSIZE=1", "onestrip.tif": "-co BLOCKYSIZE=90", "tiles.tif": "-co TILED=YES -co BLOCKXSIZE=32 -co BLOCKYSIZE=16",
		"lzw.tif": "-co COMPRESS=LZW -co PREDICTOR=2", "deflate.tif": "-ot Float32 -co COMPRESS=DEFLATE -co PREDICTOR=3 -co TILED=YES -co BLOCKXSIZE=64 -co BLOCKYSIZE=64", "zstd.tif": "-co COMPRESS=ZSTD",
		"packbits.tif": "-ot Byte -co COMPRESS=PACKBITS -co BLOCKYSIZE=7", "lerc.tif": "-ot Float32 -co COMPRESS=LERC", "jpeg.tif": "-ot Byte -b 1 -b 1 -b 1 -co COMPRESS=JPEG -co PHOTOMETRIC=YCBCR -co TILED=YES",
		"big.tif": "-co BIGTIFF=YES -co TILED=YES -co BLOCKXSIZE=32 -co BLOCKYSIZE=32", "bigendian.tif": "-co ENDIANNESS=BIG -co BLOCKYSIZE=4", "bigbig.tif": "-co ENDIANNESS=BIG -co BIGTIFF=YES -co COMPRESS=LZW",
		"bands.tif": "-b 1 -b 1 -b 1 -co INTERLEAVE=BAND -co BLOCKYSIZE=8", "pixel.tif": "-b 1 -b 1 -b 1 -co INTERLEAVE=PIXEL -co BLOCKYSIZE=8", "bits.tif": "-ot Byte -scale 0 2000 0 7 -a_nodata none -co NBITS=3 -co BLOCKYSIZE=8",
		"half.tif": "-ot Float32 -co NBITS=16", "sparse.tif": "-co SPARSE_OK=TRUE -co TILED=YES -co BLOCKXSIZE=16 -co BLOCKYSIZE=16", "sparsez.tif": "-co SPARSE_OK=TRUE -co COMPRESS=DEFLATE -co BLOCKYSIZE=1",
		"cog.tif": "-of COG -co COMPRESS=DEFLATE -co BLOCKSIZE=128 -outsize 520 360", "raw.bil": "-of EHdr", "float.flt": "-of EHdr -ot Float32", "three.bil": "-of EHdr -b 1 -b 1 -b 1", "grid.asc": "-of AAIGrid",
		"long.asc": "-of AAIGrid -outsize 520 360", "dted.dt0": "-of DTED -outsize 121 121 -a_ullr 7.99583333333333 47.0041666666667 9.00416666666667 45.9958333333333 -a_srs EPSG:4326",
	}
	good := regexp.MustCompile(`(?m)^  Checksum=\d+$`)
	fr := &fileReader{root: mustOpenRoot(t, dir), now: time.Now}
	defer fr.close()
	cuts, damaged := 0, 0
	for name, options := range layouts {
		run("gdal_translate", append(append([]string{"-q", "-a_srs", "EPSG:4326"}, strings.Fields(options)...), "source.asc", name)...)
		whole, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			size := len(whole) * (i + 1) / 20
			if i == 18 {
				size = len(whole) - 3 // more than what ends an ASCII grid
			}
			if err := os.WriteFile(filepath.Join(dir, name), whole[:size], 0o644); err != nil {
				t.Fatal(err)
			}
			m, _ := fr.readEntry(entry{Path: name})
			command := exec.Command("gdalinfo", "-checksum", filepath.Join(dir, name))
			output, _ := command.CombinedOutput() // an error is a verdict too
			reads := good.Match(output) && !strings.Contains(string(output), "Checksum=-1")
			if reads != (m.Status == fileStatusOK) || reads == (m.Status == fileStatusCorrupt) {
				t.Errorf("%s, %d of %d bytes: %s %q, but GDAL says\n%s", name, size, len(whole), m.Status, value(m.Reason), output)
			}
			cuts++
			if !reads {
				damaged++
			}
		}
	}
	t.Logf("%d rasters cut %d times, %d of them damaged", len(layouts), cuts, damaged)
}
