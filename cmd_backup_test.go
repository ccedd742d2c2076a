package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// contents returns the rows of each table as text, without the tables that a restore itself changes.
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

// backedUp is a service with some of everything, and a backup of it.
type backedUp struct {
	*testServer
	admin, token client
	file         string            // the backup
	want         map[string]string // its contents
}

// startBackedUp starts a service, fills it and makes a backup.
func startBackedUp(t *testing.T) *backedUp {
	t.Helper()
	ts := startServer(t, nil)
	ts.env = slices.Clip(ts.env) // each test appends its own
	x := &backedUp{testServer: ts, admin: ts.signIn("root", "all"), file: filepath.Join(t.TempDir(), "cairn.backup")}
	x.token = ts.addToken("root", "script", datasetRead)
	ts.exec(`INSERT INTO totp_secrets (user_id, kid, secret, recovery_hashes) SELECT id, 'k', 's', '{used,unused}' FROM users WHERE username = 'root'`)
	x.admin.must(201, "POST", "/api/v1/users", map[string]any{"username": "ada", "roles": []string{memberRole}})
	x.admin.must(201, "POST", "/api/v1/system-messages", map[string]string{"title": "t", "body": "\\. 'quoted' \u00ad \\\\"})
	if err := errors.Join(os.Mkdir(ts.datasets+"/d", 0o755), os.WriteFile(ts.datasets+"/d/a.tif", sampleTIFF(), 0o644)); err != nil {
		t.Fatal(err)
	}
	x.admin.analyze(x.admin.addDataset("d"), nil)
	waitFor(t, "a seal", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_seals`) > 0 })
	if said, err := cairn(ts.env, "backup", x.file); err != nil || !strings.Contains(said, lookup(ts.env, "CAIRN_STATE_DIR")+"/keys") {
		t.Fatalf("%v %s", err, said)
	}
	x.want = contents(t, ts.db)
	if x.want["users"] == "" || x.want["elevation_dataset_file_meta"] == "" || x.want["api_tokens"] == "" {
		t.Fatalf("there is little to back up: %v", x.want)
	}
	return x
}

// cairn runs a command with these settings and returns its output.
func cairn(env []string, args ...string) (string, error) {
	var out lockedBuffer
	err := run(context.Background(), args, env, nil, &out, io.Discard)
	return out.String(), err
}

// TestBackupFile: only the owner can read a backup. It replaces a regular file only, and leaves no other file.
func TestBackupFile(t *testing.T) {
	t.Parallel()
	x := startBackedUp(t)
	if info, err := os.Stat(x.file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(x.file, link); err != nil {
		t.Fatal(err)
	}
	for target, says := range map[string]string{link: "not a regular file", t.TempDir(): "not a regular file", "-x": "there is no option -x"} {
		if _, err := cairn(x.env, "backup", target); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("to %s: %v", target, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(x.file) + "/.*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestBackupOfOtherHost: a variable that libpq prefers does not lead a backup to another server.
func TestBackupOfOtherHost(t *testing.T) {
	t.Setenv("PGHOSTADDR", "127.0.0.9")
	x := startBackedUp(t)
	if said, err := cairn(x.env, "backup", x.file); err != nil {
		t.Errorf("%v %s", err, said)
	}
}

// TestProgramConnection: PostgreSQL's programs connect to just those servers that the service connects to, however the
// connection string says how to verify them.
func TestProgramConnection(t *testing.T) {
	t.Parallel()
	p := newOwnPostgres(t)
	if err := makeDataDir(p.dir + "/data"); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.%d.%d.", 64+os.Getpid()>>8&127, os.Getpid()&255)
	right, other := address+"1", address+"2"
	p.listen = right + "," + other
	dir, wrong := t.TempDir(), t.TempDir()
	writeCertificate(t, dir, 1, net.ParseIP(right))
	writeCertificate(t, wrong, 2, net.ParseIP(right))
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.Chown(filepath.Join(dir, name), int(p.account.uid), -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{
		"postgresql.auto.conf": fmt.Sprintf("ssl = on\nssl_cert_file = '%s/cert.pem'\nssl_key_file = '%[1]s/key.pem'\n", dir),
		"pg_hba.conf":          "local all all trust\nhostssl all all 127.0.0.0/8 password\n",
	}
	for name, text := range settings {
		if err := os.WriteFile(filepath.Join(p.dir, "data", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	p.sql("postgres", `CREATE ROLE cairn LOGIN PASSWORD 'p'`, `CREATE ROLE odd LOGIN PASSWORD 'a?b=c&sslmode=d%'`, `CREATE DATABASE cairn OWNER cairn`)
	service := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(service, []byte("[cairn]\nsslmode=verify-full\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := databaseConfig("postgres://db/d?service=cairn&servicefile=" + service); err == nil {
		t.Error("psql would not verify the server as a service file says")
	}

	full, ca := "sslmode=verify-full&sslrootcert="+dir+"/cert.pem", "sslmode=verify-ca&sslrootcert="
	for connection, connects := range map[string]bool{
		"postgres://cairn:p@" + right + "/cairn?" + full:                                                true,
		"postgres://cairn:p@" + other + "/cairn?" + full:                                                false,
		"postgres://cairn:p@" + right + "/cairn?pool_max_conns=3&" + full:                               true,
		"postgres://cairn:p@" + right + "/cairn?sslmode=verify-full&sslrootcert=" + wrong + "/cert.pem": false,
		"postgresql://cairn:p@" + other + "/cairn?" + ca + dir + "/cert.pem":                            true,
		"postgresql://cairn:p@" + right + "/cairn?" + ca + wrong + "/cert.pem":                          false,
		"postgres://cairn:p@" + right + "/cairn?sslmode=require&sslrootcert=" + wrong + "/cert.pem":     false,
		"postgres://cairn:p@" + right + "/cairn?ssl=true":                                               true,
		"postgres://cairn:p@" + right + "/cairn":                                                        true,
		"postgres://cairn:p@" + right + "/cairn?sslmode=disable":                                        false,
		"postgres://cairn:p@" + right + "/cairn?sslmode=disable&" + full:                                true, // the last one counts
		"postgres://cairn:p@" + right + "/cairn?%73slmode=disable":                                      false,
		"postgres://cairn:p@" + right + "/cairn?channel_binding=require":                                false,
		"postgres://cairn:p@" + right + "," + other + "/cairn?" + full:                                  true,
		"postgres://odd:a?b=c&sslmode=d%25@" + right + "/cairn?" + full:                                 true,
		"postgres://odd:a?b=c&sslmode=d%25@" + right + "/cairn?sslmode=disable":                         false,
		"postgres://odd:a?b=c&sslmode=d%25@" + right + "/cairn":                                         true,
		"postgres://odd:wrong@" + right + "/cairn":                                                      false,
		"host=" + p.dir + " user=cairn dbname=cairn sslmode = verify-full":                              true, // a socket has no TLS
		"host=" + right + " user=cairn sslmode\t=\n'verify-full' sslrootcert='" + dir + "/cert.pem'":    false,
	} {
		config, err := databaseConfig(connection)
		if err != nil {
			t.Errorf("%s: %v", connection, err)
			continue
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := pool.Ping(t.Context()); (err == nil) != connects {
			t.Errorf("%s: the service connects: %v", connection, err)
		}
		program := databaseProgram(t.Context(), pool, "psql", "--no-psqlrc", "--no-password", "--command=SELECT")
		if err := runProgram(program); (err == nil) != connects {
			t.Errorf("%s: psql connects: %v", connection, err)
		}
		if arguments := strings.Join(program.Args, " "); strings.Contains(arguments, ":p") || strings.Contains(arguments, "a?b") {
			t.Errorf("others can see the password in %s", arguments)
		}
	}
}

// TestMissingProgram: where PostgreSQL's client programs are missing, the error says which package has them.
func TestMissingProgram(t *testing.T) {
	t.Parallel()
	if err := runProgram(exec.Command("pg_dump_of_nothing")); err == nil || !strings.HasSuffix(err.Error(), ": apt-get install postgresql-client") {
		t.Error(err)
	}
}

// TestRestoreOverService: nothing is restored over a service that runs, or into a database that is not Cairn's.
func TestRestoreOverService(t *testing.T) {
	t.Parallel()
	x := startBackedUp(t)
	other := append(x.env, "CAIRN_STATE_DIR="+t.TempDir())
	if _, err := cairn(other, "restore", x.file); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("over an instance that runs: %v", err)
	}
	if _, err := cairn(x.env, "restore", x.file); err == nil || !strings.HasSuffix(err.Error(), "; stop it first, with Ctrl-C in its terminal") {
		t.Errorf("over the service of the state directory: %v", err)
	}
	foreign := append(other, "CAIRN_DATABASE_URL="+newDatabase(t))
	pool, err := pgxpool.New(t.Context(), lookup(foreign, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `DROP TABLE schema_migrations`); err != nil {
		t.Fatal(err)
	}
	if _, err := cairn(foreign, "restore", x.file); err == nil || !strings.Contains(err.Error(), "not Cairn's") {
		t.Errorf("into a foreign database: %v", err)
	}
}

// TestRestoreBrokenFile: nothing of a file that is cut off, or is no backup, is restored.
func TestRestoreBrokenFile(t *testing.T) {
	t.Parallel()
	x := startBackedUp(t)
	x.exec(`INSERT INTO users (username, display_name, status) VALUES ('later', '', 'active')`)
	pool, err := pgxpool.New(t.Context(), lookup(x.env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	x.stop()
	whole, err := os.ReadFile(x.file)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	if _, err := cairn(x.env, "restore", broken); err == nil || !strings.HasSuffix(err.Error(), "no such file or directory; nothing was changed") {
		t.Errorf("no file: %v", err)
	}
	for _, content := range [][]byte{whole[:len(whole)/2], whole[:len(whole)-2000], []byte("no backup"), nil} {
		before := contents(t, pool)
		if err := os.WriteFile(broken, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := cairn(x.env, "restore", broken); err == nil || !strings.HasPrefix(err.Error(), "restore "+broken+": ") ||
			!strings.HasSuffix(err.Error(), "; nothing was changed") || strings.Contains(err.Error(), "\n") {
			t.Errorf("a broken file: %v", err)
		}
		if after := contents(t, pool); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Error("a broken file was restored in part")
		}
	}
}

// TestBackup: all contents of a backup are restored: over later changes, into another database and into a private one.
// Sessions and password tokens are not restored.
func TestBackup(t *testing.T) {
	t.Parallel()
	x := startBackedUp(t)
	x.exec(`INSERT INTO users (username, display_name, status) VALUES ('later', '', 'active')`)
	x.stop()
	t.Run("the same database", func(t *testing.T) {
		restored := x.restore(t, x.env)
		if _, err := cairn(restored.env, "audit", "verify"); err != nil {
			t.Errorf("the audit log: %v", err)
		}
		restored.stop()
	})
	t.Run("another database", func(t *testing.T) {
		x.restore(t, append(x.env, "CAIRN_DATABASE_URL="+newDatabase(t))).stop()
	})
	t.Run("a private database", func(t *testing.T) {
		restored := x.restore(t, append(x.env, "CAIRN_DATABASE_URL=", "CAIRN_STATE_DIR="+newStateDir(t)))
		if said, err := cairn(restored.env, "backup", filepath.Join(t.TempDir(), "again")); err != nil {
			t.Errorf("a backup of it: %v %s", err, said)
		}
		restored.stop()
	})
}

// restore restores the backup with these settings, starts a service on it and compares the contents.
func (x *backedUp) restore(t *testing.T, env []string) *testServer {
	t.Helper()
	keys := lookup(env, "CAIRN_STATE_DIR") + "/keys"
	hint := "cairn: " + keys + " has no key " + x.keys.Load().keys[0].id + ", which sealed the audit log: put the copy of the key file there before the start\n"
	said, code := status(env, "", "restore", "--keep-tokens", x.file)
	if code != 0 || strings.Contains(said, hint) == isThere(keys) {
		t.Fatalf("%d %s", code, said)
	}
	restored := startServer(t, nil, env...)
	if got := contents(t, restored.db); !maps.Equal(got, x.want) {
		t.Errorf("restored is\n%v\nbacked up was\n%v", got, x.want)
	}
	if n := restored.queryInt(`SELECT count(*) FROM sessions WHERE ended_at IS NULL`) + restored.queryInt(`SELECT count(*) FROM password_tokens`); n > 0 {
		t.Errorf("%d sessions and password tokens", n)
	}
	if n := restored.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'database.restore'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
	c := restored.client()
	c.as(x.token.token).must(200, "GET", "/api/v1/datasets/1/files", nil)
	c.as(x.admin.token).must(401, "GET", mePath, nil)
	c.login("root", testPassword)
	return restored
}

// TestUpgrade: the schema of each version is migrated to the newest, and keeps its rows. A backup of each can be restored.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	old := copyDatabase(t, "template0") // gets one step after the other
	for i, step := range migrations() {
		from := i + 1
		if from == 1 {
			step = `CREATE TABLE schema_migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());` + step +
				`; INSERT INTO users (id, username, status) VALUES (gen_random_uuid(), 'early', 'active')`
		}
		pool, err := pgxpool.New(ctx, old)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.Exec(ctx, step); err != nil {
			t.Fatalf("migration %d: %v", from, err)
		}
		if _, err := pool.Exec(ctx, `INSERT INTO schema_migrations (version) VALUES ($1)`, from); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "old.backup")
		if err := runProgram(databaseProgram(ctx, pool, "pg_dump", "--format=custom", "--no-owner", "--file="+file)); err != nil {
			t.Fatal(err)
		}
		pool.Close() // nobody may be connected to a database that is copied

		ts := startServer(t, nil, "CAIRN_DATABASE_URL="+copyDatabase(t, pool.Config().ConnConfig.Database))
		if n := ts.queryInt(`SELECT count(*) FROM users WHERE username = 'early'`); n != 1 {
			t.Errorf("from %d: the user is lost", from)
		}
		ts.signIn("late", "all").must(200, "GET", "/api/v1/users?q=early", nil)
		ts.stop()
		if said, code := status(ts.env, "", "restore", file); code != 0 {
			t.Errorf("a backup from %d is not restored: %s", from, said)
		}
	}
}

// TestRestoreRefuses: a backup of a newer schema is not restored, and none is into a database with other tables beside
// Cairn's. Both leave the database as it was.
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
	if err := command("restore", newer); err == nil || !strings.Contains(err.Error(), "version 99, newer than") ||
		!strings.HasSuffix(err.Error(), "run the newer cairn; nothing was changed") {
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

// TestRestoreSaysWhatLives: a restore prints which users are active again and which API tokens are valid again. Recovery
// codes are void, because some may have been used after the backup.
func TestRestoreSaysWhatLives(t *testing.T) {
	t.Parallel()
	x := startBackedUp(t)
	x.exec(`UPDATE users SET status = 'disabled' WHERE username = 'ada'`)
	x.exec(`DELETE FROM api_tokens`)
	x.stop()
	said, err := cairn(x.env, "restore", x.file)
	if err != nil || !strings.Contains(said, "user active again: ada\n") || !strings.Contains(said, "All sessions, API tokens and recovery codes have ended.") ||
		strings.Contains(said, "again: root") {
		t.Errorf("%v %s", err, said)
	}
	restored := startServer(t, nil, x.env...)
	if n := restored.queryInt(`SELECT count(*) FROM api_tokens`); n != 0 {
		t.Errorf("%d API tokens", n)
	}
	check(t, "recovery codes", restored.queryInt(`SELECT sum(cardinality(recovery_hashes)) FROM totp_secrets`), 0)
	restored.stop()
	said, err = cairn(x.env, "restore", "--keep-tokens", x.file)
	if err != nil || !strings.Contains(said, "API token valid again: root script\n") || strings.Contains(said, "again: root\n") {
		t.Errorf("%v %s", err, said)
	}
	kept := startServer(t, nil, x.env...)
	check(t, "recovery codes that are kept", kept.queryInt(`SELECT sum(cardinality(recovery_hashes)) FROM totp_secrets`), 2)
}

// TestRestoreRunningAnalyses: analyses that ran while the backup was made end after it is restored, and a former signing
// key can be pruned.
func TestRestoreRunningAnalyses(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(string) { reads.Add(1); <-t.Context().Done() }
	})
	c := ts.signIn("root", "all")
	var analyses []string
	begin := func(name string) {
		t.Helper()
		makeTiles(t, filepath.Join(ts.datasets, name), 1, 3)
		analyses = append(analyses, c.must(202, "POST", c.addDataset(name)+"/analyses", nil).header.Get("Location"))
	}
	begin("reading")
	waitFor(t, "the read", func() bool { return reads.Load() == 1 })
	tx := must(ts.db.Begin(t.Context())) // holds the merge back
	defer tx.Rollback(context.Background())
	if err := advisoryLock(t.Context(), tx, lockAnalyses+2); err != nil {
		t.Fatal(err)
	}
	begin("waiting")
	waitFor(t, "the second claim", func() bool { return ts.queryInt(`SELECT count(*) FROM analyses WHERE owner IS NOT NULL`) == 2 })
	former := ts.keys.Load().keys[0]
	added := must(ts.command("keys", "add"))
	must(ts.command("keys", "promote", strings.TrimSuffix(strings.Fields(added)[2], ":")))
	file := filepath.Join(t.TempDir(), "backup")
	if err := ts.operations.reloadKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(cairn(ts.env, "backup", file))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	ts.stop()
	must(cairn(ts.env, "restore", file))

	// No lease ends, so nothing is taken over. The state directory is new, so nothing is continued.
	ts = startServer(t, func(o *options) { o.leaseTTL = time.Hour }, append(ts.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())...)
	c, _ = ts.client().login("root", testPassword)
	for _, location := range analyses {
		if a := c.finished(location); counts(a) != [6]int{3, 3, 0, 0, 0, 0} {
			t.Errorf("%s", a.body)
		}
	}
	ts.exec(`UPDATE instances SET seen_at = now() - interval '31 days' WHERE signer = $1`, former.fingerprint)
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	ts.exec(`DELETE FROM audit_seals WHERE kid = $1`, former.id)
	if said := must(ts.command("keys", "prune")); !strings.Contains(said, "removed key "+former.id) {
		t.Error(said)
	}
}
