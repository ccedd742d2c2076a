package main

import (
	"context"
	"errors"
	"os"
	"testing"
)

// TestTalliedFailures: failures that anyone can cause without end leave rows, one for each kind.
func TestTalliedFailures(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("ada", datasetRead)
	script := ts.addToken("ada", "script", datasetRead)
	ts.exec(`UPDATE api_tokens SET expires_at = now() - interval '1 minute'`)
	for range 30 {
		c.refused(403, "permission_missing", "GET", verifyPath+"?permission=user.manage", nil)
		script.refused(401, "invalid_token", "GET", mePath, nil)
		ts.client().refused(401, "password_token_invalid", "POST", "/api/v1/auth/password-reset",
			map[string]string{"token": "cairn_pw_guess", "new_password": "a long new password"})
	}
	if err := ts.accounts.failures.flush(context.Background(), ts.db); err != nil {
		t.Fatal(err)
	}
	for action, target := range map[string]string{"verify.refused": "user:ada", "token.refused": "user:ada", "password_token.refused": ""} {
		n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = $1 AND target = $2 AND address = '127.0.0.1' AND after = '{"attempts": 30}'`, action, target)
		if n != 1 {
			t.Errorf("%s: %d rows", action, n)
		}
	}
	for range 2 * maxTallies {
		ts.accounts.failures.add(tally{action: "test", target: newKeyLine()}, 1)
	}
	check(t, "kinds", len(ts.accounts.failures.counts), maxTallies+1)
}

// TestTalliesOfActions: a flood of one action does not make another lose its user and credential.
func TestTalliesOfActions(t *testing.T) {
	t.Parallel()
	c := tallies{counts: map[tally]int64{}}
	for range 2 * maxTallies {
		c.add(tally{action: "password_token.refused", address: newKeyLine()}, 1)
	}
	token := tally{action: "token.refused", target: "user:ada", credential: "token:1"}
	c.add(token, 1)
	check(t, "refusals of the token", c.counts[token], 1)
	if n := c.counts[tally{action: "password_token.refused"}]; n != maxTallies {
		t.Errorf("further refusals of password tokens: got %d, want %d", n, maxTallies)
	}
}

// TestTalliesOutliveFailures: a count that could not be stored is stored the next time.
func TestTalliesOutliveFailures(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	failures := &ts.accounts.failures
	failures.add(tally{action: "verify.refused", target: "user:ada"}, 7)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, "flush fails", failures.flush(ended, ts.db) != nil, true)
	failures.add(tally{action: "verify.refused", target: "user:ada"}, 2)
	check(t, "error of flush", failures.flush(t.Context(), ts.db), nil)
	check(t, "stored attempts", ts.queryInt(`SELECT (after ->> 'attempts')::int FROM audit_log WHERE action = 'verify.refused'`), 9)
}

// TestTalliesAtTheEnd: a service that stops stores what it has counted.
func TestTalliesAtTheEnd(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.accounts.failures.add(tally{action: "verify.refused", target: "user:ada"}, 7)
	ts.stop()
	two := startServer(t, nil, ts.env...)
	check(t, "stored attempts", two.queryInt(`SELECT (after ->> 'attempts')::int FROM audit_log WHERE action = 'verify.refused'`), 7)
}

// TestKeyChangeIsAudited: an instance that starts or reloads with other keys leaves a row.
func TestKeyChangeIsAudited(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	file := ts.cfg.keysPath()
	old, err := os.ReadFile(file)
	added := newKeyLine()
	if err = errors.Join(err, os.WriteFile(file, append(old, added...), 0o600), ts.operations.reloadKeys(context.Background())); err != nil {
		t.Fatal(err)
	}
	check(t, "rows after a reload", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`), 1)
	ts.stop()
	if err := os.WriteFile(file, append([]byte(added), old...), 0o600); err != nil {
		t.Fatal(err)
	}
	two := startServer(t, nil, ts.env...)
	check(t, "rows after a start with another signer", two.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`), 2)
}

// TestKeyChangeOfTwoInstances: a change of the keys leaves one row, although each instance loads it, and also after a
// restart.
func TestKeyChangeOfTwoInstances(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	changes := func() int {
		return one.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`)
	}
	check(t, "rows before a change", changes(), 0)
	old, err := os.ReadFile(one.cfg.keysPath())
	if err != nil {
		t.Fatal(err)
	}
	for i, content := range []string{string(old) + newKeyLine(), string(old)} {
		err := os.WriteFile(one.cfg.keysPath(), []byte(content), 0o600)
		if err = errors.Join(err, one.operations.reloadKeys(t.Context()), two.operations.reloadKeys(t.Context()), one.operations.reloadKeys(t.Context())); err != nil {
			t.Fatal(err)
		}
		if n := changes(); n != i+1 {
			t.Errorf("got %d rows, want %d", n, i+1)
		}
	}
	two.stop()
	startServer(t, nil, two.env...)
	check(t, "rows after a restart", changes(), 2)
}
