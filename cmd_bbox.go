package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// printExtents is "cairn bbox". It prints the row of each named file, and of every file below each
// named directory. With --root, the printed paths are relative to it. Symbolic links may not lead
// out of --root or, without it, out of the directory that is named or holds the named file. With
// --heights it reads all heights too.
func printExtents(ctx context.Context, o invocation) error {
	rows, out := o.rows()
	stderr := terminalWriter{o.stderr}

	failed := 0
	for _, path := range o.names {
		err := printPath(ctx, o, path, rows, stderr)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintln(stderr, "cairn:", err)
			failed++
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}

	if failed > 0 {
		return fmt.Errorf("%d of %s could not be read",
			failed, plural(int64(len(o.names)), "path"))
	}
	return nil
}

// rowPrinter prints rows of files.
type rowPrinter struct {
	reader      *fileReader
	encoder     *json.Encoder
	shown       string // what the printed paths begin with
	withHeights bool
}

// print prints the row of a file, if it still exists.
func (p *rowPrinter) print(ctx context.Context, e entry) error {
	var row struct {
		ElevationDatasetFileMeta
		Heights       *heightStatistics `json:"heights"`
		HeightsReason *string           `json:"heights_reason"` // why they were not read
	}
	if p.withHeights {
		p.reader.opened = func(m *ElevationDatasetFileMeta) {
			s, err := readHeights(ctx, &p.reader.header, &m.extent)
			if err != nil {
				row.HeightsReason = new(reasonOf(err))
			} else {
				row.Heights = &s
			}
		}
	}

	m, found := p.reader.readEntry(e)
	if !found || ctx.Err() != nil {
		return ctx.Err()
	}
	m.Path = p.shown + m.Path
	if !p.withHeights {
		return p.encoder.Encode(m)
	}
	row.ElevationDatasetFileMeta = m
	return p.encoder.Encode(row)
}

// printPath prints the row of one file, or of all files below a directory.
func printPath(ctx context.Context, o invocation, path string, out, stderr io.Writer) error {
	top := o.options.Get("root")
	info, err := os.Stat(path)
	if err != nil {
		return err
	}

	// Without --root, each printed path begins with the directory that was named or holds the file.
	shown := ""
	if top == "" {
		dir, _ := filepath.Split(path)
		if info.IsDir() {
			dir = strings.TrimSuffix(path, "/") + "/"
		}
		top = filepath.Join(dir, ".")
		shown = encodeName(dir)
	}

	absTop, err := filepath.Abs(top)
	if err != nil {
		return err
	}
	absPath, err := filepath.Abs(path)
	if err != nil {
		return err
	}

	below, err := filepath.Rel(absTop, absPath)
	if err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("%s does not lie below %s", path, top)
	}

	root, err := os.OpenRoot(top)
	if err != nil {
		return err
	}
	reader := &fileReader{root: root, now: time.Now}
	defer reader.close()

	printer := &rowPrinter{
		reader:      reader,
		encoder:     json.NewEncoder(out),
		shown:       shown,
		withHeights: o.options.Has("heights"),
	}
	printer.encoder.SetEscapeHTML(false)
	printFile := func(e entry) error { return printer.print(ctx, e) }
	if !info.IsDir() {
		return printFile(entry{Path: encodeName(below)})
	}

	dir, err := root.OpenRoot(below)
	if err != nil {
		return err
	}
	defer dir.Close()

	prefix := ""
	if below != "." {
		prefix = encodeName(below) + "/"
	}
	w := walker{
		file: printFile,
		warn: func(dir string, err error) error {
			if dir == prefix {
				return fmt.Errorf("list directory: %s", reasonOf(err))
			}
			fmt.Fprintf(stderr, "cairn: %s%s: %s\n", shown, dir, reasonOf(err))
			return nil
		},
	}
	return w.walk(ctx, dir, prefix)
}
