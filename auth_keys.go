package main

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ids returns the ids of the keys, the signer's first.
func (ring *keyring) ids() (ids []string) {
	for _, k := range ring.keys {
		ids = append(ids, k.id)
	}
	return ids
}

// checkSecretFile returns an error if the file is not a regular one or if its group or others have
// any permission for it. In credentialsDir, which systemd fills, the group may have some.
func checkSecretFile(path string, info os.FileInfo, credentialsDir string) error {
	forbidden := os.FileMode(0o077)
	if credentialsDir != "" && strings.HasPrefix(filepath.Clean(path), filepath.Clean(credentialsDir)+"/") {
		forbidden = 0o007
	}
	if info.Mode().Perm()&forbidden != 0 || !info.Mode().IsRegular() {
		return fmt.Errorf("%s has mode %v: it must be a regular file that only its owner can read (chmod 600)",
			path, info.Mode())
	}
	return nil
}

// loadKeys reads the key file, which must pass checkSecretFile. With create, a missing file is
// created with one new key.
func loadKeys(path, credentialsDir string, create bool) (*keyring, error) {
	if create {
		if err := writeNewFile(path, []byte(newKeyLine())); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("create key file: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // so that a named pipe does not block it
	if err != nil {
		return nil, fmt.Errorf("open key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := checkSecretFile(path, info, credentialsDir); err != nil {
		return nil, fmt.Errorf("key file %w", err)
	}
	const maxSize = 64 << 10
	content, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if len(content) > maxSize {
		return nil, fmt.Errorf("key file %s is too long: at most %d bytes are read", path, maxSize)
	}
	ring, err := parseKeys(content)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return ring, nil
}

// find returns the key with that id, and whether there is one.
func (ring *keyring) find(id string) (key, bool) {
	for _, k := range ring.keys {
		if k.id == id {
			return k, true
		}
	}
	return key{}, false
}

// newKeyLine returns a line of the key file with a new random key.
func newKeyLine() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails (crypto/rand)
	return fmt.Sprintf("k%s %s\n", strings.ToLower(rand.Text()[:8]), base64.StdEncoding.EncodeToString(secret))
}

// writeNewFile creates a file of mode 0600. If the name is taken, the error is os.ErrExist.
func writeNewFile(path string, content []byte) error {
	return placeFile(path, os.Link, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// placeFile writes a file and then gives it its name by os.Link or os.Rename. Its content is on
// disk before: after a crash it is whole or not there, and a file that was there stays until then.
func placeFile(path string, name func(old, new string) error, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := cmp.Or(write(f), f.Sync()); err != nil {
		return err
	}
	return cmp.Or(name(f.Name(), path), syncDir(filepath.Dir(path)))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
