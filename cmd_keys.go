package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// keyFile is the key file for a change by "cairn keys".
type keyFile struct {
	path  string
	ring  *keyring
	lines []string // each with its newline
}

// openKeyFile reads the key file.
func openKeyFile(cfg config) (keyFile, error) {
	path := cfg.keysPath()
	ring, err := loadKeys(path, cfg.credentialsDir, false)
	if err != nil {
		return keyFile{}, err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return keyFile{}, fmt.Errorf("read key file: %w", err)
	}
	return keyFile{path, ring, slices.Collect(strings.Lines(strings.TrimRight(string(content), "\n") + "\n"))}, nil
}

// isKey reports whether a line of the key file holds the key with that id.
func isKey(line, id string) bool { return strings.HasPrefix(strings.TrimSpace(line), id+" ") }

// replace replaces the lines of the file atomically. Owner, group and mode stay the same.
func (f keyFile) replace(lines []string) error {
	next := f.path + ".next"
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if err := removeIfThere(next); err != nil {
		return err
	}
	if err := writeNewFile(next, []byte(strings.Join(lines, ""))); err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if err := errors.Join(os.Chown(next, int(stat.Uid), int(stat.Gid)), os.Chmod(next, info.Mode().Perm())); err != nil {
		return err
	}
	return errors.Join(os.Rename(next, f.path), syncDir(filepath.Dir(f.path)))
}

// keysCommand is "cairn keys list", "add", which appends a key that only verifies, and "promote
// KID", which makes a key the signer. A running service reads the change on SIGHUP, or on a restart
// if systemd provides the file.
func keysCommand(cfg config, args []string, stdout io.Writer) error {
	file, err := openKeyFile(cfg)
	if err != nil {
		return err
	}
	takeUp := "reload (SIGHUP)"
	if cfg.keysAreCredential() {
		takeUp = "restart"
	}
	switch {
	case args[0] == "list" && len(args) == 1:
		for i, k := range file.ring.keys {
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
		if err := file.replace(append(file.lines, line)); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "added key %s: bring the file to every instance, %s them, then: cairn keys promote %s\n", id, takeUp, id)
		return nil
	case args[0] == "promote" && len(args) == 2:
		lines := file.lines
		at := slices.IndexFunc(lines, func(line string) bool { return isKey(line, args[1]) })
		if at < 0 {
			return fmt.Errorf("there is no key %s", args[1])
		}
		if err := file.replace(slices.Concat(lines[at:at+1], lines[:at], lines[at+1:])); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s the service, and key %s signs\n", takeUp, args[1])
		return nil
	}
	return errUsage
}

// pruneKeys is "cairn keys prune". It removes former signing keys whose last tokens have expired
// and that no seal of the audit log needs. If it may not write the file, as in the Debian package,
// the error names these keys.
func pruneKeys(ctx context.Context, o operation) error {
	const spent = `
		SELECT coalesce(max(seen_at) < now() - $2::interval, false)
			AND NOT EXISTS (SELECT FROM audit_seals WHERE kid = $3)
		FROM instances
		WHERE signer = $1`
	file, err := openKeyFile(o.cfg)
	if err != nil {
		return err
	}
	lines, removed := slices.Clone(file.lines), ""
	for _, k := range file.ring.keys[1:] {
		var isSpent bool
		if err := o.db.QueryRow(ctx, spent, k.fingerprint, max(o.cfg.refreshTTL, o.cfg.accessTTL), k.id).Scan(&isSpent); err != nil {
			return fmt.Errorf("look for the use of a key: %w", err)
		}
		if isSpent {
			lines = slices.DeleteFunc(lines, func(line string) bool { return isKey(line, k.id) })
			removed += " " + k.id
		}
	}
	if removed == "" {
		return o.print(nil, "every key is needed")
	}
	if err := file.replace(lines); err != nil {
		return fmt.Errorf("remove from %s the lines of%s: %w", file.path, removed, err)
	}
	fmt.Fprintf(o.stdout, "removed key%s\n", removed)
	return audit(ctx, o.db, operatorActor(), "keys.prune", "", nil, map[string]int{"removed": len(file.lines) - len(lines)})
}
