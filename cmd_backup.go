package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSettings matches the settings of pgx's pool in a connection string. libpq does not know them.
var poolSettings = regexp.MustCompile(`pool_\w+=\w+&?`)

// beforeRestore is a psql script that begins a transaction and drops the owner's tables and
// functions, except those of extensions. \gexec runs each row as a statement.
const beforeRestore = `
BEGIN;
SET LOCAL client_min_messages = warning;

SELECT format('DROP TABLE IF EXISTS %s CASCADE', oid::regclass)
FROM pg_class
WHERE relkind = 'r'
	AND relnamespace = current_schema()::regnamespace
	AND relowner = current_user::regrole
UNION ALL
SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', p.oid::regprocedure)
FROM pg_proc p
WHERE pronamespace = current_schema()::regnamespace
	AND proowner = current_user::regrole
	AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = p.oid AND deptype = 'e')
\gexec
`

// afterRestore is a psql script that commits, unless the backup's schema is newer than the
// program's. It ends sessions and tokens (endRestored). It ends the leases of instances, and
// releases their work, so that analyses continue.
const afterRestore = `
RESET search_path;
SET LOCAL cairn.newest = :newest; -- psql replaces no variable inside quotes

DO $$
DECLARE version integer;
BEGIN
	SELECT max(m.version) INTO version FROM schema_migrations m;
	IF version > current_setting('cairn.newest')::integer THEN
		RAISE 'the backup has schema version %, newer than this program''s %: run the newer cairn',
			version, current_setting('cairn.newest');
	END IF;

	IF version >= 4 THEN -- else the migrations release the analyses
		UPDATE analyses
		SET owner = NULL,
			owner_token = NULL
		WHERE finished_at IS NULL;
	END IF;
END $$;

` + endRestored + `
UPDATE instances
SET live_until = now() - interval '1 second'
WHERE live_until > now();
COMMIT;
`

// clientProgram returns the path of one of PostgreSQL's client programs.
func clientProgram(name string) string {
	if dir, err := findServerPrograms(""); err == nil {
		return filepath.Join(dir, name)
	}
	return name
}

// databaseProgram prepares a client program for the pool's database. The program gets the same
// connection string as the pool, and so verifies the server in the same way. It gets the password
// through its environment, which other users cannot read.
func databaseProgram(ctx context.Context, db *pgxpool.Pool, name string, args ...string) *exec.Cmd {
	c := db.Config().ConnConfig
	connection := poolSettings.ReplaceAllString(withoutPassword(c.ConnString()), "")
	cmd := exec.CommandContext(ctx, clientProgram(name), args...)

	// The host of the private server is a descriptor of this process: see privateConfig. The
	// program gets a copy of it as its descriptor 3.
	dir, err := os.Open(c.Host)
	if err == nil && strings.HasPrefix(c.Host, "/proc/") {
		cmd.ExtraFiles = []*os.File{dir}
		connection = strings.Replace(connection, c.Host, "/proc/self/fd/3", 1)
	}
	cmd.Args = append(cmd.Args, "--dbname="+connection)

	// pgx knows neither PGHOSTADDR, which libpq would prefer to the host, nor encryption by GSSAPI,
	// which libpq would prefer to TLS.
	cmd.Env = append(os.Environ(),
		"PGPASSWORD="+c.Password,
		"PGHOSTADDR=",
		"PGGSSENCMODE=disable",
		"PGTARGETSESSIONATTRS=read-write")
	return cmd
}

// runProgram runs one of PostgreSQL's programs. If the program fails, the error is its own message
// in one line. Such a message begins with the name of the program.
func runProgram(cmd *exec.Cmd) error {
	var messages bytes.Buffer
	cmd.Stderr = &messages
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: apt-get install postgresql-client", err)
	}

	// If the program did not fail, err is nil or the error of its input.
	_, failed := errors.AsType[*exec.ExitError](err)
	if !failed {
		return err
	}

	said := oneLine(messages.Bytes())
	if said != "" {
		return errors.New(said)
	}
	return fmt.Errorf("%s: %w", cmd.Path, err)
}

// backupCommand is "cairn backup FILE", which writes the database to one file in pg_dump's custom
// format. An older backup of that name stays if this one fails.
func backupCommand(ctx context.Context, o invocation) error {
	name := o.names[0]
	info, err := os.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists and is not a regular file", name)
	}

	dump := databaseProgram(ctx, o.db, "pg_dump",
		"--format=custom",
		"--no-owner",
		"--no-privileges",
		"--no-comments")
	err = replaceFile(name, func(f *os.File) error {
		dump.Stdout = f
		return runProgram(dump)
	})
	return o.print(err, nil, "The database is in %s. The key file is not: keep a copy of %s in another place.",
		name, o.cfg.keysPath())
}

// restoreCommand is "cairn restore FILE". It replaces the contents of the database by a backup, all
// or nothing. It ends all sessions and, without --keep-tokens, all API tokens and recovery codes.
// Like serve, it locks the state directory and starts the private PostgreSQL, so no instance may
// run meanwhile.
func restoreCommand(ctx context.Context, o invocation) error {
	file, err := os.Open(o.names[0])
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	file.Close()

	stop := "stop it first, with Ctrl-C in its terminal"
	if credentialFile(o.cfg.credentialsDir, "cairn.env") != "" {
		stop = "stop it first: sudo systemctl stop cairn.socket cairn.service"
	}
	errRuns := fmt.Errorf("the service uses the database, or did so a moment ago; %s", stop)

	err = withOwnDatabase(ctx, o.cfg, o.log, func(d *database) error {
		// The table of instances may be missing, so migrate comes first.
		if err := checkTables(ctx, d.pool); err != nil {
			return err
		}
		if err := migrate(ctx, d.pool, o.log); err != nil {
			return err
		}

		runs, err := anyInstanceLives(ctx, d.pool)
		if err != nil {
			return err
		}
		if runs {
			return errRuns
		}
		return o.restore(ctx, d.pool)
	})

	// The service holds the lock on the state directory.
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errRuns
	}
	return err
}

// checkTables returns an error if the database has tables that are not Cairn's: restore would drop
// them.
func checkTables(ctx context.Context, q querier) error {
	const query = `
		SELECT coalesce(string_agg(tablename, ', ' ORDER BY tablename), '')
		FROM pg_tables
		WHERE schemaname = current_schema()
			AND tableowner = current_user
			AND (tablename <> 'schema_migrations'
				AND strpos($1, 'CREATE TABLE ' || tablename || ' (') = 0
				OR to_regclass('schema_migrations') IS NULL)`

	foreign, err := scalar[string](ctx, q, "look for tables of other programs", query,
		schemaSQL+catalogueSQL)
	if err == nil && foreign != "" {
		err = fmt.Errorf("the database has tables that are not Cairn's and that restore would drop: %s",
			foreign)
	}
	return err
}

// restore replaces the contents of the database by the backup, and prints which users and API
// tokens are active or valid again.
func (o invocation) restore(ctx context.Context, db *pgxpool.Pool) error {
	name := o.names[0]
	keepTokens := o.options.Has("keep_tokens")
	ended := "sessions, API tokens and recovery codes"
	if keepTokens {
		ended = "sessions"
	}

	before, err := listLiving(ctx, db)
	if err != nil {
		return err
	}
	err = restoreDump(ctx, db, name, keepTokens)
	if err != nil {
		return fmt.Errorf("restore %s: %w; nothing was changed", name, err)
	}

	// The prepared statements of the old connections are for the dropped tables.
	db.Reset()
	err = migrate(ctx, db, o.log)
	if err != nil {
		return err
	}

	after, err := listLiving(ctx, db)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stdout, "The database has been restored from %s. All %s have ended.\n",
		name, ended)
	for _, l := range after {
		if !slices.Contains(before, l) {
			fmt.Fprintf(o.stdout, "%s again: %s\n", l.What, l.Name)
		}
	}

	changes := map[string]string{"ended": ended}
	err = audit(ctx, db, operatorActor(), "database.restore", "", nil, changes)
	if err != nil {
		return err
	}
	return o.warnOfMissingKey(ctx, db)
}

// warnOfMissingKey prints a line if the key file lacks the key of the newest seal of the audit log.
func (o invocation) warnOfMissingKey(ctx context.Context, db *pgxpool.Pool) error {
	const query = `SELECT coalesce((SELECT kid FROM audit_seals ORDER BY seq DESC LIMIT 1), '')`
	id, err := scalar[string](ctx, db, "find the key of the newest seal", query)
	if err != nil || id == "" {
		return err
	}

	path := o.cfg.keysPath()
	ring, err := loadKeys(path, o.cfg.credentialsDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		ring = &keyring{}
		err = nil
	}
	if err != nil {
		return err
	}

	_, found := ring.find(id)
	if !found {
		fmt.Fprintf(terminalWriter{o.stderr}, "cairn: %s has no key %s, which sealed the audit log: "+
			"put the copy of the key file there before the start\n",
			path, id)
	}
	return nil
}

// living is a user who is active, or an API token or a passkey that is valid.
type living struct {
	What string
	ID   string
	Name string
}

// listLiving returns the active users, their passkeys, and their API tokens that have not expired.
func listLiving(ctx context.Context, q querier) ([]living, error) {
	const query = `
		SELECT
			'user active' AS what,
			id::text,
			username AS name
		FROM users
		WHERE status = 'active'
		UNION ALL
		SELECT
			'API token valid',
			t.id::text,
			u.username || ' ' || t.name
		FROM api_tokens t
		JOIN users u ON u.id = t.user_id
		WHERE t.expires_at > now() AND u.status = 'active'
		UNION ALL
		SELECT
			'passkey valid',
			p.id::text,
			u.username || ' ' || p.name
		FROM passkeys p
		JOIN users u ON u.id = p.user_id
		WHERE u.status = 'active'
		ORDER BY what DESC, name`

	return collect[living](ctx, q, "list active users and tokens", query)
}

// restoreDump pipes the backup as SQL from pg_restore to psql, which runs it in one transaction.
func restoreDump(ctx context.Context, db *pgxpool.Pool, name string, keepTokens bool) error {
	read := exec.CommandContext(ctx, clientProgram("pg_restore"),
		"--file=-",
		"--no-owner",
		"--no-privileges",
		"--", name)
	write := databaseProgram(ctx, db, "psql",
		"--no-psqlrc",
		"--quiet",
		"--output=/dev/null",
		"--set=ON_ERROR_STOP=1",
		"--set=VERBOSITY=terse",
		fmt.Sprint("--set=newest=", len(migrations())),
		fmt.Sprint("--set=keep_tokens=", keepTokens))

	script, feed := io.Pipe()
	defer script.Close()
	write.Stdin = script
	read.Stdout = feed

	go func() {
		io.WriteString(feed, beforeRestore)
		err := runProgram(read)
		if err == nil {
			_, err = io.WriteString(feed, afterRestore)
		}

		// After an error, psql ends without a commit, and its error has the cause.
		feed.CloseWithError(err)
	}()
	return runProgram(write)
}
