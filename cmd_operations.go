package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// operation holds the input and the output of a command.
type operation struct {
	cfg             config
	db              *pgxpool.Pool
	names           []string
	options         url.Values // as given, else the default
	asJSON          bool       // --json
	includeNewUsers bool       // --include-new-users
	renewable       bool       // --renewable
	stdin           io.Reader
	stdout, stderr  io.Writer
}

// run runs the named command on the service's database. For arguments that the command does not
// take, the error is errUsage.
func (o operation) run(ctx context.Context, name string, args []string) error {
	c, ok := commands()[name]
	if !ok {
		return fmt.Errorf("%q is not a command: %w", name, errUsage)
	}
	if len(args) < c.names {
		return fmt.Errorf("%s: a name is missing: %w", name, errUsage)
	}
	o.names, args, o.options = args[:c.names], args[c.names:], url.Values{}
	for _, text := range o.names {
		if strings.HasPrefix(text, "-") {
			return fmt.Errorf("%s: the names come before %q: %w", name, text, errUsage)
		}
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	booleans := map[string]*bool{"json": &o.asJSON, "include-new-users": &o.includeNewUsers, "renewable": &o.renewable}
	for _, field := range strings.Fields(c.options) {
		option, value, hasDefault := strings.Cut(field, "=")
		if hasDefault {
			o.options.Set(option, value)
		}
		if to := booleans[option]; to != nil {
			flags.BoolVar(to, option, false, "")
		} else {
			flags.Func(option, "", func(text string) error { o.options.Set(option, text); return nil })
		}
	}
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return fmt.Errorf("%s: wrong arguments %q: %w", name, args, errUsage)
	}
	return connect(ctx, o.cfg, func(d *database) error {
		o.db = d.pool
		return c.do(ctx, o)
	})
}

// print prints v as JSON with --json, else a line of text. If err is set, it only returns err.
func (o operation) print(err error, v any, format string, args ...any) error {
	if err != nil {
		return err
	}
	if !o.asJSON {
		_, err = fmt.Fprintf(o.stdout, format+"\n", args...)
		return err
	}
	body, err := encodeJSON(v)
	if err == nil {
		_, err = o.stdout.Write(body)
	}
	return err
}

// createTokenCommand is "cairn token create". It prints the secret of a new API token. It creates
// an unknown user first, as a service account: without a password, and with the given role.
func createTokenCommand(ctx context.Context, o operation) error {
	days, err := strconv.Atoi(o.options.Get("days"))
	if err != nil || days < 1 || days > 366 {
		return fmt.Errorf("--days must be from 1 to 366: %w", errUsage)
	}
	now := time.Now()
	expires := now.Add(time.Duration(days) * 24 * time.Hour)
	name, allowed := o.names[1], splitList(o.options.Get("permissions"))
	known, err := knownPermissions(ctx, o.db)
	if err != nil {
		return err
	}
	n := newUser{username: o.names[0], status: statusActive, roles: []string{o.options.Get("role")}}
	var v invalid
	checkIdentity(&v, &n.username, nil, nil)
	checkAPIToken(&v, known, name, allowed, now, expires)
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
		t := apiToken{Name: name, Permissions: allowed, ExpiresAt: expires, Renewable: o.renewable}
		_, secret, err = createAPIToken(ctx, tx, operatorActor(), u, t)
		return err
	})
	return o.print(err, nil, "%s", secret)
}

// listTokensCommand is "cairn token list".
func listTokensCommand(ctx context.Context, o operation) error {
	u, err := userNamed(ctx, o.db, o.names[0])
	if err != nil {
		return err
	}
	tokens, err := listAPITokens(ctx, o.db, u.ID, "", math.MaxInt32)
	for _, t := range tokens {
		permissions, until := strings.Join(t.Permissions, ","), t.ExpiresAt.Format(time.DateOnly)
		err = o.print(err, t, "%s\t%s\tuntil %s", t.Name, permissions, until)
	}
	return err
}

// revokeTokenCommand is "cairn token revoke".
func revokeTokenCommand(ctx context.Context, o operation) error {
	const query = `SELECT id::text FROM api_tokens WHERE user_id = $1 AND name = $2`
	username, name := o.names[0], o.names[1]
	err := changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, username)
		if err != nil {
			return err
		}
		missing := fmt.Errorf("%s has no API token %q", username, name)
		token, err := collectOne[struct{ ID string }](ctx, tx, missing, "find API token", query, u.ID, name)
		if err == nil {
			_, err = deleteAPITokens(ctx, tx, operatorActor(), u, &token.ID)
		}
		return err
	})
	return o.print(err, nil, "ended API token %s of %s", name, username)
}

// createDatasetCommand is "cairn dataset create". It makes the same checks as the API.
func createDatasetCommand(ctx context.Context, o operation) error {
	name := o.names[0]
	where, err := o.cfg.checkDataset(name, o.names[1], "")
	if err != nil {
		return err
	}
	d, err := createDataset(ctx, o.db, operatorActor(), name, where.stored, "")
	return o.print(err, nil, "created dataset %d, %s, of %s", d.ID, d.Name, filepath.Join(where.root, where.below))
}

// sendMessageCommand is "cairn message send". It reads the body from standard input.
func sendMessageCommand(ctx context.Context, o operation) error {
	text, err := io.ReadAll(io.LimitReader(o.stdin, maxBody))
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	body := strings.TrimSpace(string(text))
	c := messageChange{Title: &o.names[0], Body: &body, IncludeNewUsers: &o.includeNewUsers}
	c.Severity = optional(o.options, "severity")
	c.PublishAt.value, c.ExpiresAt.value = optional(o.options, "publish-at"), optional(o.options, "expires-at")
	if o.options.Has("roles") {
		c.Roles.value = new(splitList(o.options.Get("roles")))
	}
	id, err := createMessage(ctx, o.db, operatorActor(), c)
	return o.print(err, nil, "%d", id)
}

// listMessagesCommand is "cairn message list". It prints the newest 500 messages.
func listMessagesCommand(ctx context.Context, o operation) error {
	messages, err := listMessages(ctx, o.db, nil, messageFilter{}, []string{"infinity", "0"}, maxPage)
	for _, m := range messages {
		at := m.PublishAt.Format(time.RFC3339)
		err = o.print(err, m, "%d\t%s\t%s\t%s\t%s", m.ID, at, m.State, m.Severity, m.Title)
	}
	return err
}

// retractMessageCommand is "cairn message retract".
func retractMessageCommand(ctx context.Context, o operation) error {
	id, err := strconv.ParseInt(o.names[0], 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not the number of a message: %w", o.names[0], errUsage)
	}
	return retractMessage(ctx, o.db, operatorActor(), id, nil)
}

// errNoUser is the error for an unknown user name.
var errNoUser = errors.New("there is no user of that name")

// userNamed returns the user of that name, or errNoUser. It does not accept an e-mail address,
// because Cairn does not verify addresses.
func userNamed(ctx context.Context, q querier, name string) (user, error) {
	const query = `SELECT ` + userColumns + ` FROM users u WHERE u.username = $1`
	username, _ := normalizeUsername(name)
	return collectOne[user](ctx, q, fmt.Errorf("%q: %w", name, errNoUser), "find user", query, username)
}

// readPassword reads a password: from a terminal twice and without echo, else from one line of
// stdin.
func readPassword(stdin io.Reader, stderr io.Writer) (string, error) {
	stty := func(setting string) error {
		c := exec.Command("stty", setting)
		c.Stdin = stdin
		return c.Run()
	}
	prompts, newline := []string{""}, ""
	if isTerminal(stdin) && stty("-echo") == nil {
		defer stty("echo")
		prompts, newline = []string{"Password: ", "Again: "}, "\n" // the typed one is not echoed
	}
	lines := bufio.NewReader(stdin)
	var typed []string
	for _, prompt := range prompts {
		fmt.Fprint(stderr, prompt)
		line, err := lines.ReadString('\n')
		fmt.Fprint(stderr, newline)
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read password: %w", err)
		}
		typed = append(typed, strings.TrimRight(line, "\r\n"))
	}
	if typed[0] != typed[len(typed)-1] {
		return "", errors.New("the passwords differ: try again")
	}
	return typed[0], nil
}

// printRoutes is "cairn routes". It prints the route table.
func printRoutes(asJSON bool, stdout io.Writer) (err error) {
	o := operation{asJSON: asJSON, stdout: stdout}
	for _, rt := range (&server{}).routes() {
		limit := rt.pace.limit()
		line := map[string]any{"method": rt.method, "path": rt.path, "access": rt.who, "seconds": limit.Seconds()}
		err = errors.Join(err, o.print(nil, line, "%-7s %-51s %-21s %v", rt.method, rt.path, rt.who, limit))
	}
	return err
}
