package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// invocation is the input of a command.
type invocation struct {
	cfg            config
	env            []string
	log            *slog.Logger
	database       *database     // with needDatabase
	db             *pgxpool.Pool // the database's pool
	names          []string
	options        url.Values // by their names, as in "keep_tokens"; those without a value are empty
	stdin          io.Reader
	stdout, stderr io.Writer
}

// option returns the value of an option, or the default if it is not given.
func (o invocation) option(name, value string) string {
	if o.options.Has(name) {
		value = o.options.Get(name)
	}
	return value
}

// readInput runs read, which may wait for somebody to type. It returns early if ctx ends, as after
// Ctrl-C.
func readInput(ctx context.Context, read func() (string, error)) (string, error) {
	type input struct {
		text string
		err  error
	}
	done := make(chan input, 1)
	go func() {
		text, err := read()
		done <- input{text, err}
	}()

	select {
	case in := <-done:
		return in.text, in.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// confirm asks a question on a terminal. It returns an error if the answer is not yes. Without a
// terminal, as in a script, it does not ask.
func (o invocation) confirm(ctx context.Context, question string, of ...any) error {
	if !isTerminal(o.stdin) {
		return nil
	}

	fmt.Fprintf(terminalWriter{o.stderr}, question+" (yes or no) ", of...)
	answer, _ := readInput(ctx, func() (string, error) {
		return bufio.NewReader(o.stdin).ReadString('\n')
	})
	answer = strings.TrimSpace(answer)
	if answer != "yes" {
		return fmt.Errorf("the answer was %q, not yes: nothing was changed", answer)
	}
	return nil
}

// rows returns a writer that takes one row in each write. In the end the caller must flush out.
func (o invocation) rows() (rows io.Writer, out *bufio.Writer) {
	out = bufio.NewWriter(o.stdout)
	if isTerminal(o.stdout) {
		return terminalWriter{out}, out
	}
	return out, out
}

// print prints v as JSON with --json, else a line of text. If err is set, it only returns err.
func (o invocation) print(err error, v any, format string, args ...any) error {
	if err != nil {
		return err
	}
	if !o.options.Has("json") {
		row, out := o.rows()
		_, err = fmt.Fprintf(row, format+"\n", args...)
		return errors.Join(err, out.Flush())
	}

	body, err := encodeJSON(v)
	if err == nil {
		_, err = o.stdout.Write(body)
	}
	return err
}

// createTokenCommand is "cairn token create". It prints the secret of a new API token. It creates
// an unknown user first, as a service account: without a password, and with the given role.
func createTokenCommand(ctx context.Context, o invocation) error {
	days, err := strconv.Atoi(o.option("days", "90"))
	if err != nil || days < 1 || days > 366 {
		return fmt.Errorf("--days must be from 1 to 366: %w", errUsage)
	}

	known, err := knownPermissions(ctx, o.db)
	if err != nil {
		return err
	}

	now := time.Now().UTC()
	n := newUser{
		username: o.names[0],
		status:   statusActive,
		roles:    []string{o.option("role", memberRole)},
	}
	t := apiToken{
		Name:        o.names[1],
		Permissions: listOfText(o.options.Get("permissions")),
		ExpiresAt:   now.AddDate(0, 0, days),
	}

	var v invalid
	checkIdentity(&v, &n.username, nil, nil)
	checkAPIToken(&v, known,
		t.Name, t.Permissions,
		now, t.ExpiresAt)
	if err := v.err(); err != nil {
		return err
	}

	var secret string
	err = changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, n.username)
		if errors.Is(err, errNoUser) {
			u, err = createUser(ctx, tx, operatorActor(), n)
		}
		if err != nil {
			return err
		}

		_, secret, err = createAPIToken(ctx, tx, operatorActor(), u, t)
		return err
	})
	return o.print(err, nil, "%s", secret)
}

// sendMessageCommand is "cairn message send". It reads the body from standard input.
func sendMessageCommand(ctx context.Context, o invocation) error {
	body, err := readInput(ctx, func() (string, error) {
		text, err := io.ReadAll(io.LimitReader(o.stdin, large))
		return strings.TrimSpace(string(text)), err
	})
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}

	o.options.Set("body", body)
	const fields = "title* body* severity roles, include_new_users! publish_at expires_at"
	return calls("POST /system-messages", fields, "$id")(ctx, o)
}

// errNoUser is the error for an unknown user name.
var errNoUser = errors.New("there is no user of that name")

// userNamed returns the user of that name, or errNoUser. It does not accept an e-mail address,
// because Cairn does not verify addresses.
func userNamed(ctx context.Context, q querier, name string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.username = $1`

	username, _ := normalizeUsername(name)
	missing := fmt.Errorf("%q: %w", name, errNoUser)
	return collectOne[user](ctx, q, missing, "find user", query, username)
}

// readPassword reads a password: from a terminal twice and without echo, else from one line of
// stdin.
func readPassword(ctx context.Context, stdin io.Reader, stderr io.Writer) (string, error) {
	lines := bufio.NewReader(stdin)
	read := func(prompt string) (string, error) {
		fmt.Fprint(stderr, prompt)
		line, err := readInput(ctx, func() (string, error) {
			return lines.ReadString('\n')
		})

		// The last line need not end in a newline.
		isLastLine := err == io.EOF && line != ""
		if err != nil && !isLastLine {
			return "", fmt.Errorf("read password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}

	if !isTerminal(stdin) {
		return read("")
	}

	stty := func(setting string) error {
		c := exec.Command("stty", setting)
		c.Stdin = stdin
		return c.Run()
	}
	err := stty("-echo")
	if err != nil {
		return "", fmt.Errorf("cannot turn off the echo of the terminal (%w): pipe the password "+
			"to standard input",
			err)
	}
	defer fmt.Fprintln(stderr) // the typed newline is not echoed either
	defer stty("echo")

	first, err := read("Password: ")
	if err != nil {
		return "", err
	}

	second, err := read("\nAgain: ")
	if err == nil && first != second {
		err = errors.New("the passwords differ: try again")
	}
	return first, err
}

// routesCommand is "cairn routes". It prints the route table.
func routesCommand(_ context.Context, o invocation) (err error) {
	for _, rt := range (&server{}).routes() {
		limit := rt.class.timeout()
		line := map[string]any{
			"method":  rt.method,
			"path":    rt.path,
			"access":  rt.who,
			"seconds": limit.Seconds(),
		}
		err = o.print(err, line, "%-7s %-51s %-21s %v",
			rt.method, rt.path, rt.who, limit)
	}
	return err
}

// checkConfig is "cairn config check". It prints the values in force. Of the database URL, which
// may hold a password, it prints only where the database is.
func checkConfig(_ context.Context, o invocation) error {
	effective := map[string]string{
		"CAIRN_STATE_DIR":          o.cfg.stateDir,
		"CAIRN_DATABASE_URL":       "(unset: a private PostgreSQL in the state directory)",
		"CAIRN_DATASETS_DIR":       strings.Join(o.cfg.datasetRoots, ":"),
		"CAIRN_KEYS_FILE":          o.cfg.keysPath(),
		"CAIRN_BREACHED_PASSWORDS": o.cfg.breachedFile,
		"CAIRN_TLS_CERT":           o.cfg.tlsCert,
		"CAIRN_TLS_KEY":            o.cfg.tlsKey,
	}

	if o.cfg.databaseURL != "" {
		database, err := databaseConfig(o.cfg.databaseURL)
		if err != nil {
			return err
		}
		c := database.ConnConfig
		effective["CAIRN_DATABASE_URL"] = fmt.Sprintf("(database %s of user %s on %s)",
			c.Database, c.User, c.Host)
	}

	for _, s := range settings(new(config), o.env) {
		value, ok := effective[s.name]
		if ok {
			s.value = value
		}
		fmt.Fprintf(o.stdout, "%s=%s\n", s.name, s.value)
	}

	unknown := unknownSettings(o.env)
	if len(unknown) > 0 {
		return fmt.Errorf("there is no setting %s", strings.Join(unknown, ", "))
	}
	if err := o.cfg.missingRoots(); err != nil {
		fmt.Fprintln(o.stderr, "cairn: warning: CAIRN_DATASETS_DIR:", err)
	}
	return o.cfg.checkSecretsOutsideRoots()
}

// migrateCommand is "cairn migrate".
func migrateCommand(ctx context.Context, o invocation) error { return migrate(ctx, o.db, o.log) }

// versionCommand is "cairn version".
func versionCommand(_ context.Context, o invocation) error {
	build, _ := debug.ReadBuildInfo()
	return o.print(nil, nil, "cairn %s%s", version, describeCommit(build))
}

// describeCommit returns the commit that a program was built from, with its date, or "" if it is
// unknown, as without a repository.
func describeCommit(build *debug.BuildInfo) string {
	if build == nil {
		return ""
	}

	found := map[string]string{}
	for _, s := range build.Settings {
		found[s.Key] = s.Value
	}
	if found["vcs.revision"] == "" {
		return ""
	}

	changed := map[string]string{
		"true": ", with changes",
	}[found["vcs.modified"]]
	return fmt.Sprintf(" (commit %.12s, %.10s%s)",
		found["vcs.revision"], found["vcs.time"], changed)
}
