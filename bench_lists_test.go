//go:build bench

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// recorder notes the last query that went through it.
type recorder struct {
	querier
	sql  string
	args []any
}

func (r *recorder) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.sql, r.args = sql, args
	return r.querier.Query(ctx, sql, args...)
}

func (r *recorder) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r.sql, r.args = sql, args
	return r.querier.QueryRow(ctx, sql, args...)
}

// plans collects query plans for a file of testdata/plans.
type plans struct{ text strings.Builder }

// add notes the plan of what query asks.
func (p *plans) add(t *testing.T, pool *pgxpool.Pool, title string, query func(q querier) error) {
	t.Helper()
	r := &recorder{querier: pool}
	if err := query(r); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(context.Background(), "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) "+r.sql, r.args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&p.text, "%s\n\n%s\n\n", title, strings.Join(lines, "\n"))
}

// write puts the plans into the file.
func (p *plans) write(t *testing.T, name string) {
	t.Helper()
	dir := filepath.Join("testdata", "plans")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(p.text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// medians are the median times of what is done 201 times in turn, after a few to warm up.
func medians(t *testing.T, what ...func() error) []time.Duration {
	t.Helper()
	times, middle := make([][]time.Duration, len(what)), make([]time.Duration, len(what))
	for round := range 211 {
		for i, do := range what {
			start := time.Now()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			if round >= 10 {
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	for i := range times {
		slices.Sort(times[i])
		middle[i] = times[i][100]
	}
	return middle
}

// TestBenchUsers prints what the list of users costs with 100,000 of them: a page, and a search.
func TestBenchUsers(t *testing.T) {
	ctx := context.Background()
	const fill = `
		INSERT INTO users (username, email, display_name, status)
		SELECT
			'user' || lpad(i::text, 7, '0'),
			CASE WHEN i % 2 = 0 THEN 'mail' || i || '@example.org' END,
			initcap(translate(md5(i::text), '0123456789', 'ghijklmnop')),
			CASE WHEN i % 50 = 0 THEN 'disabled' ELSE 'active' END
		FROM generate_series(1, 100000) i`
	ts := startServer(t, nil)
	ts.signIn("root", "all")
	conn := must(ts.db.Acquire(ctx))
	must(conn.Exec(ctx, fill))
	must(conn.Exec(ctx, `INSERT INTO user_roles SELECT id, 2 FROM users ON CONFLICT DO NOTHING`))
	must(conn.Exec(ctx, `VACUUM (ANALYZE)`))
	conn.Hijack().Close(ctx)

	var written plans
	admin, disabled := adminRole, statusDisabled
	list := func(title string, f userFilter, after string) {
		took := medians(t, func() error {
			_, err := listUsers(ctx, ts.db, f, after, 51)
			return err
		})[0]
		fmt.Printf("50 of 100,000 users %-22s %v (under 100 ms is wanted)\n", title, took)
		written.add(t, ts.db, "50 of 100,000 users "+title, func(q querier) error {
			_, err := listUsers(ctx, q, f, after, 51)
			return err
		})
	}
	list("first page", userFilter{}, "")
	list("last page", userFilter{}, "user0099950")
	list("with the role admin", userFilter{role: &admin}, "")
	list("disabled", userFilter{status: &disabled}, "")
	for _, part := range []string{"0777", "er0099999", "mail123@", "@example", "fab", "facade", "zzz", "999", "user009"} {
		list(fmt.Sprintf("with %q", part), userFilter{part: &part}, "")
	}
	written.add(t, ts.db, "whether there is an administrator, asked at each change", func(q querier) error {
		_, err := administratorExists(ctx, q)
		return err
	})
	written.write(t, "users.txt")
}

// TestBenchMessages prints what the unread count and the first page of the inbox cost inside the database, with
// 100,000 messages and 10,000 users, of whom each has 500 unread messages and 500 read ones above the watermark.
func TestBenchMessages(t *testing.T) {
	ctx := context.Background()
	ts := startServer(t, nil)
	conn := must(ts.db.Acquire(ctx))
	for _, statement := range []string{
		`SET statement_timeout = 0`,
		`INSERT INTO roles (name) SELECT 'role' || i FROM generate_series(1, 9) i`,
		`INSERT INTO users (username, status, created_at) SELECT 'user' || i, 'active', now() - interval '3 years' FROM generate_series(1, 10000) i`,
		`INSERT INTO user_roles SELECT id, 3 + substr(username, 5)::int % 9 FROM users WHERE username LIKE 'user%'`,
		`INSERT INTO system_messages (title, body, severity, author, publish_at, role_ids)
			SELECT 'Message ' || i, repeat('text ', 40), CASE WHEN i % 10 = 0 THEN 'warning' ELSE 'info' END, 'author', now() - (100001 - i) * interval '10 minutes',
				CASE WHEN i % 10 = 9 THEN ARRAY[3 + i % 9, 3 + (i + 1) % 9] END
			FROM generate_series(1, 100000) i`,
		// Some 920 of the newest 1,000 are there for each; every second of them is read.
		`INSERT INTO system_message_watermarks SELECT u.id, m.publish_at, m.id FROM users u JOIN system_messages m ON m.id = 99000`,
		`INSERT INTO system_message_reads SELECT u.id, m.id FROM users u JOIN system_messages m ON m.id > 99000 AND m.id % 2 = 0 WHERE u.username LIKE 'user%'`,
		`VACUUM (ANALYZE)`,
	} {
		must(conn.Exec(ctx, statement))
	}
	conn.Hijack().Close(ctx)
	id := must(userNamed(ctx, ts.db, "user4711")).ID
	var written plans
	count := func(q querier) error { _, err := countUnread(ctx, q, actor{id: &id}); return err }
	page := func(q querier) error {
		_, err := collect[message](ctx, q, "list messages", messagesPage,
			&id, sightOf(actor{}), true, false, nil, nil, nil, nil, nil, "infinity", "0", 51)
		return err
	}
	took := medians(t, func() error { return count(ts.db) }, func() error { return page(ts.db) })
	fmt.Printf("unread count %v (%d unread; under 1 ms is wanted), first page of the inbox %v (under 2 ms)\n", took[0], must(countUnread(ctx, ts.db, actor{id: &id})).Unread, took[1])
	written.add(t, ts.db, "unread count", count)
	written.add(t, ts.db, "first page of the inbox", page)
	written.write(t, "messages.txt")
}
