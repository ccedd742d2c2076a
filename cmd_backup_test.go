package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// contents is every table's rows as text, but for those that a restore itself touches.
func contents(t *testing.T, db *pgxpool.Pool) map[string]string {
	t.Helper()
	ctx := context.Background()
	tables, err := collect[struct{ Tablename string }](ctx, db, "list tables", `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, table := range tables {
		switch table.Tablename {
		case "sessions", "password_tokens", "instances", "audit_log", "audit_unsealed", "audit_seals", "schema_migrations":
			continue
		}
		var rows *string
		if err := db.QueryRow(ctx, `SELECT string_agg(t::text, E'\n' ORDER BY t::text) FROM `+table.Tablename+` t`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if rows != nil {
			found[table.Tablename] = *rows
		}
	}
	return found
}

// TestBackup: what a backup holds comes back, in a database that is named and in a private one; sessions and password
// tokens do not. Nothing is restored halfway, over a service that runs, or over what is not Cairn's.
func TestBackup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	ts := startServer(t, nil)
	ts.env = slices.Clip(ts.env) // what is appended below is each time another's
	admin := ts.signIn("root", "all")
	token := ts.addToken("root", "script", datasetRead)
	admin.must(201, "POST", "/api/v1/users", map[string]any{"username": "ada", "roles": []string{memberRole}})
	admin.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "\\. 'quoted' \u2028 \\\\"})
	if err := errors.Join(os.Mkdir(ts.datasets+"/d", 0o755), os.WriteFile(ts.datasets+"/d/a.tif", sampleTIFF(), 0o644)); err != nil {
		t.Fatal(err)
	}
	admin.analyze(admin.must(201, "POST", "/api/v1/datasets", map[string]string{"name": "d", "path": "d"}).header.Get("Location"), nil)

	file := filepath.Join(t.TempDir(), "cairn.backup")
	command := func(env []string, args ...string) (string, error) {
		var out lockedBuffer
		err := run(ctx, args, env, nil, &out, io.Discard)
		return out.String(), err
	}
	said, err := command(ts.env, "backup", file)
	if err != nil || !strings.Contains(said, lookup(ts.env, "CAIRN_STATE_DIR")+"/keys") {
		t.Fatalf("%v %s", err, said)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for target, says := range map[string]string{link: "not a regular file", t.TempDir(): "not a regular file", "--help": "is no command"} {
		if _, err := command(ts.env, "backup", target); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("to %s: %v", target, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(file) + "/.backup*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	want := contents(t, ts.db)
	if want["users"] == "" || want["elevation_dataset_file_meta"] == "" || want["api_tokens"] == "" {
		t.Fatalf("there is little to back up: %v", want)
	}

	other := append(ts.env, "CAIRN_STATE_DIR="+t.TempDir())
	if _, err := command(other, "restore", file); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("over an instance that runs: %v", err)
	}
	if _, err := command(ts.env, "restore", file); err == nil || !strings.Contains(err.Error(), "another cairn uses") {
		t.Errorf("over the service of the state directory: %v", err)
	}
	ts.exec(`INSERT INTO users (username, display_name, status) VALUES ('later', '', 'active')`)
	pool, err := pgxpool.New(ctx, lookup(ts.env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ts.stop()

	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	for _, content := range [][]byte{whole[:len(whole)/2], whole[:len(whole)-2000], []byte("no backup"), nil} {
		before := contents(t, pool)
		if err := os.WriteFile(broken, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := command(ts.env, "restore", broken); err == nil || !strings.Contains(err.Error(), "pg_restore") {
			t.Errorf("a broken file: %v", err)
		}
		if after := contents(t, pool); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Error("a broken file was restored in part")
		}
	}

	foreign := append(other, "CAIRN_DATABASE_URL="+newDatabase(t))
	foreignPool, err := pgxpool.New(ctx, lookup(foreign, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer foreignPool.Close()
	if _, err := foreignPool.Exec(ctx, `DROP TABLE schema_migrations`); err != nil {
		t.Fatal(err)
	}
	if _, err := command(foreign, "restore", file); err == nil || !strings.Contains(err.Error(), "not Cairn's") {
		t.Errorf("over what is not Cairn's: %v", err)
	}

	state := newStateDir(t)
	for name, env := range map[string][]string{
		"the same database": ts.env,
		"another database":  append(ts.env, "CAIRN_DATABASE_URL="+newDatabase(t)),
		"a private one":     append(ts.env, "CAIRN_DATABASE_URL=", "CAIRN_STATE_DIR="+state),
	} {
		if said, err := command(env, "restore", file); err != nil {
			t.Fatalf("%s: %v %s", name, err, said)
		}
		restored := startServer(t, nil, env...)
		if got := contents(t, restored.db); !maps.Equal(got, want) {
			t.Errorf("%s: restored is\n%v\nbacked up was\n%v", name, got, want)
		}
		if n := restored.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL`) + restored.queryInt(`SELECT count(*) FROM password_tokens`); n > 0 {
			t.Errorf("%s: %d sessions and password tokens", name, n)
		}
		if n := restored.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'database.restore'`); n != 1 {
			t.Errorf("%s: %d audit rows", name, n)
		}
		c := restored.client()
		c.as(token.token).must(200, "GET", "/api/v1/datasets/1/files", nil)
		c.as(admin.token).must(401, "GET", "/api/v1/auth/me", nil)
		c.login("root", testPassword)
		if _, err := command(restored.env, "audit", "verify"); name == "the same database" && err != nil {
			t.Errorf("the audit log: %v", err)
		}
		if name == "a private one" { // which has to be running
			again := filepath.Join(t.TempDir(), "again")
			if said, err := command(restored.env, "backup", again); err != nil {
				t.Errorf("%v %s", err, said)
			}
		}
		restored.stop()
	}
}

// TestUpgrade: the schema of each version comes to the newest, with what it holds.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	steps, err := parseMigrations(schemaSQL)
	if err != nil {
		t.Fatal(err)
	}
	for from := range steps {
		url := newDatabase(t)
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if _, err := pool.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(ctx, `CREATE TABLE schema_migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())`); err != nil {
			t.Fatal(err)
		}
		for i, step := range steps[:from+1] {
			if _, err := pool.Exec(ctx, step); err != nil {
				t.Fatalf("migration %d: %v", i+1, err)
			}
			if _, err := pool.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES ($1)`, i+1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pool.Exec(ctx, `INSERT INTO users (id, username, status) VALUES (gen_random_uuid(), 'early', 'active')`); err != nil {
			t.Fatal(err)
		}
		pool.Reset()
		ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url)
		if n := ts.queryInt(`SELECT count(*) FROM users WHERE username = 'early'`); n != 1 {
			t.Errorf("from %d: the user is lost", from+1)
		}
		ts.signIn("late", "all").must(200, "GET", "/api/v1/users?q=early", nil)
		ts.stop()
	}
}

// TestRestoreRefuses: neither a backup of a newer schema nor one into a database with other tables beside ours changes
// anything.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	ts := startServer(t, nil)
	ts.stop()
	pool, err := pgxpool.New(ctx, lookup(ts.env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	command := func(args ...string) error { return run(ctx, args, ts.env, nil, io.Discard, io.Discard) }
	good, newer := filepath.Join(t.TempDir(), "good"), filepath.Join(t.TempDir(), "newer")
	for _, do := range []func() error{
		func() error { return command("backup", good) },
		func() error {
			_, err := pool.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES (99)`)
			return err
		},
		func() error { return command("backup", newer) },
		func() error {
			_, err := pool.Exec(ctx, `DELETE FROM schema_migrations WHERE version = 99; INSERT INTO users (username, status) VALUES ('precious', 'active')`)
			return err
		},
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, pool)
	if err := command("restore", newer); err == nil || !strings.Contains(err.Error(), "version 99, newer than") {
		t.Errorf("a newer backup: %v", err)
	}
	if after := contents(t, pool); !maps.Equal(before, after) {
		t.Errorf("a newer backup left %v of %v", after, before)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE parcels (id integer)`); err != nil {
		t.Fatal(err)
	}
	if err := command("restore", good); err == nil || !strings.Contains(err.Error(), "not Cairn's") || !strings.Contains(err.Error(), "parcels") {
		t.Errorf("beside other tables: %v", err)
	}
	if after := contents(t, pool); after["users"] != before["users"] {
		t.Error("other tables beside ours did not keep the restore away")
	}
}
