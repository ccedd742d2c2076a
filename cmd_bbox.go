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
// out of --root or, without it, out of the directory that is named or holds the named file.
func printExtents(ctx context.Context, o invocation) error {
	rows, out := o.rows()
	stderr := terminalWriter{o.stderr}

	failed := 0
	for _, path := range o.names {
		err := printPath(ctx, o.options.Get("root"), path, rows, stderr)
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

// printPath prints the row of one file, or of all files below a directory.
func printPath(ctx context.Context, top, path string, out, stderr io.Writer) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}

	// Without --root, each printed path begins with the directory that was named or holds the file.
	shown := ""
	if top == "" && info.IsDir() {
		top = path
		shown = encodeName(strings.TrimSuffix(path, "/")) + "/"
	} else if top == "" {
		dir, _ := filepath.Split(path)
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

	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	printFile := func(e entry) error {
		m, found := reader.readEntry(e)
		if !found {
			return nil
		}
		m.Path = shown + m.Path
		return encoder.Encode(m)
	}
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
