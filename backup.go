package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// beforeRestore, in SQL, begins a transaction and removes every table and function of the database's owner.
const beforeRestore = `
BEGIN;
DO $$
DECLARE name text;
BEGIN
	FOR name IN
		SELECT oid::regclass
		FROM pg_class
		WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND relowner = current_user::regrole
	LOOP
		EXECUTE 'DROP TABLE IF EXISTS ' || name || ' CASCADE';
	END LOOP;
	FOR name IN
		SELECT p.oid::regprocedure
		FROM pg_proc p
		WHERE pronamespace = current_schema()::regnamespace AND proowner = current_user::regrole
			AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = p.oid AND deptype = 'e') -- an extension's
	LOOP
		EXECUTE 'DROP ROUTINE IF EXISTS ' || name || ' CASCADE';
	END LOOP;
END $$;
`

// afterRestore goes no further where the backup's schema is newer than the program's. It ends what may have been ended
// since the backup, and commits.
const afterRestore = `
RESET search_path;
SET LOCAL cairn.newest = :newest; -- psql puts no variable into what is quoted
DO $$
DECLARE version integer;
BEGIN
	SELECT max(m.version) INTO version FROM schema_migrations m;
	IF version > current_setting('cairn.newest')::integer THEN
		RAISE 'the backup has schema version %, newer than this program''s %: run the newer cairn', version, current_setting('cairn.newest');
	END IF;
END $$;
UPDATE sessions SET ended_at = now(), end_reason = 'restored' WHERE ended_at IS NULL;
DELETE FROM password_tokens;
DELETE FROM instances;
COMMIT;
`

// databaseProgram prepares a program of PostgreSQL's to work on the pool's database. All that it needs to connect
// is in its environment, where other users do not see it.
func databaseProgram(ctx context.Context, cfg config, db *pgxpool.Pool, name string, args ...string) *exec.Cmd {
	if dir, err := findServerPrograms(""); err == nil {
		name = filepath.Join(dir, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	c := db.Config().ConnConfig
	hosts, ports := []string{c.Host}, []string{fmt.Sprint(c.Port)}
	for _, f := range c.Fallbacks { // a host is there twice where TLS is only preferred
		hosts, ports = append(hosts, f.Host), append(ports, fmt.Sprint(f.Port))
	}
	host := strings.ReplaceAll(strings.Join(hosts, ","), "/proc/self/", fmt.Sprintf("/proc/%d/", os.Getpid())) // see privateConfig
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+strings.Join(ports, ","), "PGTARGETSESSIONATTRS=read-write",
		"PGUSER="+c.User, "PGPASSWORD="+c.Password, "PGDATABASE="+c.Database)
	for _, m := range regexp.MustCompile(`\b(sslmode|sslrootcert|sslcert|sslkey)=([^&\s]*)`).FindAllStringSubmatch(cfg.databaseURL, -1) {
		if value, err := url.PathUnescape(m[2]); err == nil {
			cmd.Env = append(cmd.Env, "PG"+strings.ToUpper(m[1])+"="+strings.Trim(value, "'"))
		}
	}
	return cmd
}

// explained runs a program and adds what it said to its error.
func explained(cmd *exec.Cmd, run func() error) error {
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, err, oneLine(said.Bytes()))
	}
	return nil
}

// backup is "cairn backup FILE": the database as one file, in pg_dump's own format, which is there whole or not at all.
func backup(ctx context.Context, cfg config, db *pgxpool.Pool, name string, stdout io.Writer) error {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is there and no regular file", name)
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".backup-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	dump := databaseProgram(ctx, cfg, db, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--no-comments")
	dump.Stdout = f
	if err := explained(dump, dump.Run); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err // what has the name now stays
	}
	if err := errors.Join(os.Rename(f.Name(), name), syncDir(filepath.Dir(name))); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "The database is in %s. The key file is not: keep a copy of %s in another place.\n", name, cfg.keysPath())
	return nil
}

// restore is "cairn restore FILE": it puts a backup in the place of what the database holds, all or nothing. What
// starts or finds the database is what serve does, so that the service must not run.
func restore(ctx context.Context, cfg config, log *slog.Logger, name string, stdout io.Writer) error {
	const strangers = `
		SELECT coalesce(string_agg(tablename, ', ' ORDER BY tablename), '')
		FROM pg_tables
		WHERE schemaname = current_schema() AND tableowner = current_user
			AND (tablename <> ALL ($1) OR to_regclass('schema_migrations') IS NULL)`
	const living = `
		SELECT EXISTS (SELECT FROM instances WHERE live_until > now())`
	steps, err := parseMigrations(schemaSQL)
	if err != nil {
		return err
	}
	ours := []string{"schema_migrations"}
	for _, table := range regexp.MustCompile(`CREATE TABLE (\w+)`).FindAllStringSubmatch(schemaSQL, -1) {
		ours = append(ours, table[1])
	}
	return withOwnDatabase(ctx, cfg, log, func(d *database) error {
		db := d.pool
		var foreign string
		var runs bool
		if err := db.QueryRow(ctx, strangers, ours).Scan(&foreign); err != nil {
			return fmt.Errorf("look at the database: %w", err)
		}
		if foreign != "" {
			return fmt.Errorf("the database holds tables that are not Cairn's, and restore would remove them: %s", foreign)
		}
		if err := migrate(ctx, db, log); err != nil { // so that there is a table of instances
			return err
		}
		if err := db.QueryRow(ctx, living).Scan(&runs); err != nil {
			return fmt.Errorf("look for instances: %w", err)
		}
		if runs {
			return errors.New("an instance serves this database, or did so a moment ago: stop it first")
		}
		if err := pour(ctx, cfg, db, name, len(steps)); err != nil {
			return err
		}
		db.Reset() // statements prepared for the tables before
		if err := migrate(ctx, db, log); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "The database is as %s has it. All sessions are ended; API tokens that were ended since are good again.\n", name)
		return audit(ctx, db, operatorActor(), "database.restore", "", nil, nil)
	})
}

// pour has pg_restore write the backup as SQL, and psql carry that out in one transaction, up to the newest schema version.
func pour(ctx context.Context, cfg config, db *pgxpool.Pool, name string, newest int) error {
	read := databaseProgram(ctx, cfg, db, "pg_restore", "--file=-", "--no-owner", "--no-privileges", name)
	write := databaseProgram(ctx, cfg, db, "psql", "--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", fmt.Sprintf("--set=newest=%d", newest))
	script, feed := io.Pipe()
	defer script.Close()
	write.Stdin, read.Stdout = script, feed
	go func() {
		io.WriteString(feed, beforeRestore)
		err := explained(read, read.Run)
		if err == nil {
			_, err = io.WriteString(feed, afterRestore)
		}
		feed.CloseWithError(err) // what is not committed then never was, and psql's end tells why
	}()
	return explained(write, write.Run)
}
