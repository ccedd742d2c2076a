package main

import (
	"context"
	"fmt"
	"testing"
)

// TestSweep: two instances that sweep at once delete every expired row and no other.
func TestSweep(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ada := ts.addUser("ada", datasetRead)
	for i, ago := range []string{"1 hour", "23 hours"} { // these stay
		ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at, ended_at)
			VALUES (gen_random_uuid(), $1, now() + interval '1 day', now() + interval '1 day', now() - $2::text::interval)`, ada, ago)
		ts.exec(`INSERT INTO throttles (account, network, attempts, expires_at) VALUES ('live', $1, 1, now() + interval '1 hour')`, fmt.Sprint(i))
		ts.exec(`INSERT INTO api_tokens (user_id, name, token_hash, permissions, expires_at) VALUES ($1, $2, $3, '{}', now() - $2::text::interval)`, ada, ago, []byte(ago))
	}
	ts.exec(`INSERT INTO sessions (id, user_id, idle_expires_at, expires_at)
		SELECT gen_random_uuid(), $1, now() - interval '25 hours', now() + interval '1 day' FROM generate_series(1, 2500)`, ada)
	ts.exec(`INSERT INTO throttles (account, network, attempts, expires_at)
		SELECT 'old', i::text, 1, now() - interval '1 second' FROM generate_series(1, 2500) i`)
	ts.exec(`INSERT INTO api_tokens (user_id, name, token_hash, permissions, expires_at) VALUES ($1, 'old', 'old', '{}', now() - interval '31 days')`, ada)
	ts.exec(`INSERT INTO password_tokens (user_id, token_hash, expires_at) VALUES ($1, 'old', now() - interval '1 second')`, ada)
	ts.exec(`INSERT INTO instances VALUES ('old', 'k', '{}', now() - interval '101 days', now(), now())`)
	bob := ts.addUser("bob")
	ts.exec(`INSERT INTO totp_secrets (user_id, kid, secret, expires_at) VALUES ($1, 'k', 'live', NULL), ($2, 'k', 'old', now() - interval '1 second')`, ada, bob)
	ts.exec(`INSERT INTO known_networks VALUES ($1, 'live', now() + interval '1 hour'), ($1, 'old', now() - interval '1 second')`, ada)
	errs := make(chan error)
	for range 2 {
		go func() { errs <- sweep(context.Background(), ts.db) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := ts.queryInt(`
		SELECT (SELECT count(*) FROM throttles WHERE account = 'live') + (SELECT count(*) FROM sessions)
			+ (SELECT count(*) FROM api_tokens) + (SELECT count(*) FROM totp_secrets) + (SELECT count(*) FROM known_networks)`); n != 8 {
		t.Errorf("%d live rows are left", n)
	}
	if n := ts.queryInt(`
		SELECT (SELECT count(*) FROM throttles WHERE account = 'old') + (SELECT count(*) FROM password_tokens WHERE expires_at < now())
			+ (SELECT count(*) FROM instances WHERE id = 'old') + (SELECT count(*) FROM totp_secrets WHERE secret = 'old')
			+ (SELECT count(*) FROM known_networks WHERE network = 'old')`); n != 0 {
		t.Errorf("%d expired rows are left", n)
	}
}

// TestSweepSkipsLocked: a row that another transaction holds keeps no other row from being swept.
func TestSweepSkipsLocked(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ts := startServer(t, nil)
	ada := ts.addUser("ada", datasetRead)
	ts.exec(`INSERT INTO known_networks SELECT $1, i::text, now() - interval '1 second' FROM generate_series(1, 2500) i`, ada)
	tx, err := ts.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT FROM known_networks WHERE network = '7' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if err := sweep(ctx, ts.db); err != nil {
		t.Error(err)
	}
	check(t, "rows that are left", ts.queryInt(`SELECT count(*) FROM known_networks`), 1)
}
