package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// keyID returns the id of the key that a line of the key file holds.
func keyID(line string) string {
	id, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	return id
}

// editKeyFile replaces the lines of the key file by those that edit returns. Each line ends in a
// newline. path may be a symbolic link to the file. Owner, group and mode stay. Commands that edit
// at the same time take turns.
func editKeyFile(ctx context.Context, path string, edit func(lines []string) []string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}

	lock, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer lock.Close()

	const lockNow = syscall.LOCK_EX | syscall.LOCK_NB
	for syscall.Flock(int(lock.Fd()), lockNow) == syscall.EWOULDBLOCK {
		pause(ctx, 10*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("another command edits %s: %w", path, ctx.Err())
		}
	}

	content, info, err := readRegular(path, 0, maxKeyFile)
	if err != nil {
		return err
	}

	text := strings.TrimRight(string(content), "\n") + "\n"
	lines := edit(slices.Collect(strings.Lines(text)))

	// The owner of the directory can put another file under any of its names, and root runs this.
	// So owner and mode are set on the open file.
	return replaceFile(path, func(f *os.File) error {
		_, err := f.WriteString(strings.Join(lines, ""))
		owner := info.Sys().(*syscall.Stat_t)
		return errors.Join(err,
			f.Chown(int(owner.Uid), int(owner.Gid)),
			f.Chmod(info.Mode().Perm()))
	})
}

// listKeysCommand is "cairn keys list".
func listKeysCommand(_ context.Context, o invocation, ring *keyring) error {
	does := "signs"
	for _, k := range ring.keys {
		line := map[string]string{
			"id":          k.id,
			"fingerprint": k.fingerprint,
			"does":        does,
		}

		err := o.print(nil, line, "%s\t%s\t%s",
			k.id, k.fingerprint, does)
		if err != nil {
			return err
		}
		does = "verifies"
	}
	return nil
}

// takeUp returns how a running service loads a changed key file. If systemd provides the file, only
// a restart does.
func (c config) takeUp() string {
	if c.keysAreCredential() {
		return "restart"
	}
	return "reload (SIGHUP)"
}

// addKeyCommand is "cairn keys add". The new key only verifies, until it is promoted.
func addKeyCommand(ctx context.Context, o invocation, _ *keyring) error {
	const next = "added key %s: copy the key file to every instance, %s them, then: cairn keys promote %s"

	line := newKeyLine()
	id := keyID(line)
	add := func(lines []string) []string { return append(lines, line) }
	err := editKeyFile(ctx, o.cfg.keysPath(), add)
	return o.print(err, nil, next, id, o.cfg.takeUp(), id)
}

// promoteKeyCommand is "cairn keys promote". It makes a key the signer.
func promoteKeyCommand(ctx context.Context, o invocation, _ *keyring) error {
	id := o.names[0]
	isChosen := func(line string) bool { return keyID(line) == id }

	at := -1
	err := editKeyFile(ctx, o.cfg.keysPath(), func(lines []string) []string {
		at = slices.IndexFunc(lines, isChosen)
		if at < 0 {
			return lines
		}
		return slices.Concat(lines[at:at+1], lines[:at], lines[at+1:])
	})
	if err == nil && at < 0 {
		err = fmt.Errorf("there is no key %s: see cairn keys list", id)
	}
	return o.print(err, nil, "promoted key %s: %s the service, so that it signs with the key",
		id, o.cfg.takeUp())
}

// pruneKeys is "cairn keys prune". It removes former signing keys if their last tokens have expired
// and no seal of the audit log and no second factor needs them. If it may not write the key file,
// as with the Debian package, the error names these keys.
func pruneKeys(ctx context.Context, o invocation, ring *keyring) error {
	const query = `
		SELECT
			coalesce(max(seen_at) < now() - $2::interval, false)
			AND NOT EXISTS (
				SELECT FROM audit_seals
				WHERE kid = $3)
			AND NOT EXISTS (
				SELECT FROM totp_secrets
				WHERE kid = $3 AND expires_at IS NULL)
		FROM instances
		WHERE signer = $1`

	life := max(
		o.cfg.refreshTTL,
		o.cfg.accessTTL,
		min(o.cfg.sessionMax, browserMax))
	var spent []string
	for _, k := range ring.keys[1:] {
		isSpent, err := scalar[bool](ctx, o.db, "look for the use of a key", query,
			k.fingerprint, life, k.id)
		if err != nil {
			return err
		}
		if isSpent {
			spent = append(spent, k.id)
		}
	}
	if len(spent) == 0 {
		return o.print(nil, nil, "every key is needed")
	}

	// The first line stays: another command may have made a spent key the signer meanwhile.
	path := o.cfg.keysPath()
	var removed []string
	err := editKeyFile(ctx, path, func(lines []string) []string {
		kept := lines[:1]
		for _, line := range lines[1:] {
			id := keyID(line)
			if slices.Contains(spent, id) {
				removed = append(removed, id)
			} else {
				kept = append(kept, line)
			}
		}
		return kept
	})
	if err != nil {
		return fmt.Errorf("remove the lines of %s from %s: %w",
			strings.Join(spent, " "), path, err)
	}
	if len(removed) == 0 {
		return o.print(nil, nil, "every key is needed")
	}

	fmt.Fprintln(o.stdout, "removed key", strings.Join(removed, " "))
	changes := map[string]int{"removed": len(removed)}
	return audit(ctx, o.db, operatorActor(), "keys.prune", "", nil, changes)
}
