package main

import (
	"context"
	"crypto/sha1"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// breachedFile writes a list of these passwords and returns its path.
func breachedFile(t *testing.T, newline string, passwords ...string) string {
	t.Helper()
	var lines []string
	for i, password := range passwords {
		lines = append(lines, fmt.Sprintf("%X:%d", sha1.Sum([]byte(password)), i*i*i+1))
	}
	slices.Sort(lines)
	path := filepath.Join(t.TempDir(), "breached")
	if err := os.WriteFile(path, []byte(strings.Join(lines, newline)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBreachedSearch: every password of a list is found, and no other, with either newline and after the last line or not.
func TestBreachedSearch(t *testing.T) {
	t.Parallel()
	for _, newline := range []string{"\n", "\r\n"} {
		for n := range 20 {
			var in []string
			for i := range n*n + 1 {
				in = append(in, fmt.Sprint("password ", i))
			}
			path := breachedFile(t, newline, in...)
			list, err := openBreachedPasswords(path)
			if err != nil {
				t.Fatal(err)
			}
			for i, password := range in {
				if found, err := list.contains(password); !found || err != nil {
					t.Fatalf("%s of %d: %v", password, len(in), err)
				}
				if found, err := list.contains(fmt.Sprint("other ", i)); found || err != nil {
					t.Fatalf("other %d of %d: %v", i, len(in), err)
				}
			}
		}
	}
}

// TestBreachedPasswords: where a list is set, no new password may be in it. While it cannot be read, none is accepted.
func TestBreachedPasswords(t *testing.T) {
	t.Parallel()
	const known, fine = "an old breached password", "a password that nobody knows"
	path := breachedFile(t, "\n", known, "another", "and another", "one more")
	ts := startServer(t, nil, "CAIRN_BREACHED_PASSWORDS="+path)
	root, id := ts.signIn("root", "all"), ts.addUser("ada")
	ada, _ := ts.client().login("ada", testPassword)
	token := root.must(201, "POST", "/api/v1/users/"+id+"/password-reset", nil).text("password_token")
	create := func(password string) error {
		var out lockedBuffer
		return run(context.Background(), []string{"user", "create", "made"}, ts.env, strings.NewReader(password+"\n"), &out, &out)
	}
	attempts := func(password string, status int, code string) {
		t.Helper()
		ts.client().refused(status, code, "POST", "/api/v1/auth/register", map[string]string{"username": "new", "password": password})
		ada.refused(status, code, "PUT", "/api/v1/auth/password", map[string]string{"current_password": testPassword, "new_password": password})
		ts.client().refused(status, code, "POST", "/api/v1/auth/password-reset", map[string]string{"token": token, "new_password": password})
		if err := create(password); err == nil {
			t.Errorf("%q was taken by the command", password)
		}
	}
	attempts(known, 422, "invalid")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{"", string(whole[:10]), strings.Repeat("x", len(whole))} {
		if err := os.WriteFile(path, []byte(broken), 0o600); err != nil { // in place, as a failing disk would
			t.Fatal(err)
		}
		attempts(fine, 503, "password_list_unavailable")
	}
	ts.client().login("ada", testPassword) // a password that is there is not asked about
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	ts.client().must(201, "POST", "/api/v1/auth/register", map[string]string{"username": "new", "password": fine})
	ada.must(204, "PUT", "/api/v1/auth/password", map[string]string{"current_password": testPassword, "new_password": fine})
	if err := create(fine); err != nil {
		t.Error(err)
	}
}

// TestBreachedPasswordsStart: a list that is missing or no sorted list of SHA-1 hashes fails the start, which says so.
func TestBreachedPasswordsStart(t *testing.T) {
	t.Parallel()
	line := func(c string) string { return strings.Repeat(c, 40) + ":1\n" }
	dir := t.TempDir()
	for name, content := range map[string]string{
		"empty": "", "order": line("B") + line("A"), "lower case": line("b"), "NTLM": strings.Repeat("A", 32) + ":1\n", "no count": strings.Repeat("A", 40) + "\n",
		"order in the middle": line("A") + line("B") + line("A") + line("C"), "empty line": line("A") + "\n" + line("B"), "long": strings.Repeat("A", 40) + ":" + strings.Repeat("1", 100),
		"missing": "",
	} {
		path := filepath.Join(dir, name)
		if name != "missing" {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out lockedBuffer
		env := []string{"CAIRN_STATE_DIR=" + filepath.Join(dir, "state"), "CAIRN_DATABASE_URL=host=/nowhere", "CAIRN_BREACHED_PASSWORDS=" + path}
		err := run(context.Background(), []string{"serve"}, env, nil, &out, &out)
		if err == nil || !strings.Contains(err.Error(), "CAIRN_BREACHED_PASSWORDS: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
