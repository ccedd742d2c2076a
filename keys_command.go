package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// replaceFile puts another content in place of a file's, all or nothing, for the same owner.
func replaceFile(path string, content []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := removeIfThere(next); err != nil {
		return err
	}
	if err := writeNewFile(next, content); err != nil {
		return err
	}
	if err := chownLike(next, info); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// keysCommand is "cairn keys": list; add, which appends a key that verifies; promote KID, which makes it
// the signer. A service that runs takes the change up on SIGHUP.
func keysCommand(cfg config, args []string, stdout io.Writer) error {
	path := cfg.keysPath()
	ring, err := loadKeys(path, cfg.credentialsDir, false)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read key file: %w", err)
	}
	switch {
	case args[0] == "list" && len(args) == 1:
		for i, k := range ring.keys {
			does := "verifies"
			if i == 0 {
				does = "signs"
			}
			fmt.Fprintf(stdout, "%s\t%s\t%s\n", k.id, k.fingerprint, does)
		}
		return nil
	case args[0] == "add" && len(args) == 1:
		line := newKeyLine()
		id, _, _ := strings.Cut(line, " ")
		if err := replaceFile(path, []byte(strings.TrimRight(string(content), "\n")+"\n"+line)); err != nil {
			return fmt.Errorf("write key file: %w", err)
		}
		fmt.Fprintf(stdout, "added key %s: bring the file to every instance, reload them (SIGHUP), then: cairn keys promote %s\n", id, id)
		return nil
	case args[0] == "promote" && len(args) == 2:
		isIt := func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), args[1]+" ") }
		lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
		at := slices.IndexFunc(lines, isIt)
		if at < 0 {
			return fmt.Errorf("there is no key %s", args[1])
		}
		lines = slices.Concat(lines[at:at+1], lines[:at], lines[at+1:])
		if err := replaceFile(path, []byte(strings.Join(lines, "\n")+"\n")); err != nil {
			return fmt.Errorf("write key file: %w", err)
		}
		fmt.Fprintf(stdout, "key %s signs, once the service is reloaded (SIGHUP)\n", args[1])
		return nil
	}
	return errUsage
}

// pruneKeys is "cairn keys prune": it removes keys that have signed, sign no more, and whose last tokens
// have expired.
func pruneKeys(ctx context.Context, cfg config, db *pgxpool.Pool, stdout io.Writer) error {
	const spent = `
		SELECT coalesce(max(seen_at) < now() - $2::interval, false)
		FROM instances
		WHERE signer = $1`
	path := cfg.keysPath()
	ring, err := loadKeys(path, cfg.credentialsDir, false)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read key file: %w", err)
	}
	lines := strings.SplitAfter(string(content), "\n")
	removed := 0
	for _, k := range ring.keys[1:] {
		var isSpent bool
		if err := db.QueryRow(ctx, spent, k.fingerprint, max(cfg.refreshTTL, cfg.accessTTL)).Scan(&isSpent); err != nil {
			return fmt.Errorf("look for the use of a key: %w", err)
		}
		if isSpent {
			lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), k.id+" ") })
			fmt.Fprintf(stdout, "removed key %s\n", k.id)
			removed++
		}
	}
	if removed == 0 {
		fmt.Fprintln(stdout, "every key is needed")
		return nil
	}
	if err := replaceFile(path, []byte(strings.Join(lines, ""))); err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	return nil
}

// chownLike gives a file the owner of another, where we may.
func chownLike(path string, info os.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, int(stat.Uid), int(stat.Gid))
}
