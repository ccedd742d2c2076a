package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// operation is the input of a command that works on the database. args follow the command's name.
type operation struct {
	cfg    config
	db     *pgxpool.Pool
	args   []string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// parse reads the command's names and then its flags. Any other argument is an errUsage.
func (o operation) parse(flags *flag.FlagSet, names ...*string) error {
	flags.SetOutput(io.Discard)
	if len(o.args) < len(names) {
		return fmt.Errorf("%s: a name is missing: %w", flags.Name(), errUsage)
	}
	for i := range names {
		if *names[i] = o.args[i]; strings.HasPrefix(o.args[i], "-") {
			return fmt.Errorf("%s: the names come before %q: %w", flags.Name(), o.args[i], errUsage)
		}
	}
	if err := flags.Parse(o.args[len(names):]); err != nil || flags.NArg() > 0 {
		return fmt.Errorf("%s %s: %w", flags.Name(), strings.Join(o.args, " "), errUsage)
	}
	return nil
}

// createTokenCommand is "cairn token create", which prints the secret of a new API token. If there
// is no user of that name, it creates a service account: a user without a password, with the role
// from --role.
func createTokenCommand(ctx context.Context, o operation) error {
	var username, name string
	flags := flag.NewFlagSet("token create", flag.ContinueOnError)
	granted := flags.String("permissions", "", "")
	days := flags.Int("days", 90, "")
	role := flags.String("role", memberRole, "")
	if err := o.parse(flags, &username, &name); err != nil {
		return err
	}
	if *days < 1 || *days > 366 {
		return fmt.Errorf("--days must be from 1 to 366: %w", errUsage)
	}
	now := time.Now()
	expires := now.Add(time.Duration(*days) * 24 * time.Hour)
	allowed := splitList(*granted)
	var v invalid
	username, _ = checkIdentity(&v, username, nil, "")
	checkAPIToken(&v, name, allowed, now, expires)
	if err := v.err(); err != nil {
		return err
	}
	var secret string
	err := changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, username)
		if errors.Is(err, errNoUser) {
			u, err = createUser(ctx, tx, operatorActor(), newUser{username: username, status: statusActive, roles: []string{*role}})
		}
		if err != nil {
			return err
		}
		_, secret, err = createAPIToken(ctx, tx, operatorActor(), u, name, allowed, expires)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(o.stdout, secret)
	return nil
}

// listTokensCommand is "cairn token list USER".
func listTokensCommand(ctx context.Context, o operation) error {
	var username string
	if err := o.parse(flag.NewFlagSet("token list", flag.ContinueOnError), &username); err != nil {
		return err
	}
	u, err := userNamed(ctx, o.db, username)
	if err != nil {
		return err
	}
	tokens, err := listAPITokens(ctx, o.db, u.ID, "", math.MaxInt32)
	for _, t := range tokens {
		fmt.Fprintf(o.stdout, "%s\t%s\tuntil %s\n", t.Name, strings.Join(t.Permissions, ","), t.ExpiresAt.Format(time.DateOnly))
	}
	return err
}

// revokeTokenCommand is "cairn token revoke USER NAME".
func revokeTokenCommand(ctx context.Context, o operation) error {
	const query = `
		SELECT id::text
		FROM api_tokens
		WHERE user_id = $1
			AND name = $2`
	var username, name string
	if err := o.parse(flag.NewFlagSet("token revoke", flag.ContinueOnError), &username, &name); err != nil {
		return err
	}
	err := changeAccess(ctx, o.db, func(tx pgx.Tx) error {
		u, err := userNamed(ctx, tx, username)
		if err != nil {
			return err
		}
		missing := fmt.Errorf("%s has no API token %q", username, name)
		token, err := collectOne[struct{ ID string }](ctx, tx, missing, "find API token", query, u.ID, name)
		if err != nil {
			return err
		}
		_, err = deleteAPITokens(ctx, tx, operatorActor(), u, &token.ID)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stdout, "ended API token %s of %s\n", name, username)
	return nil
}

// createDatasetCommand is "cairn dataset create". It checks the same as the API.
func createDatasetCommand(ctx context.Context, o operation) error {
	var name, path string
	if err := o.parse(flag.NewFlagSet("dataset create", flag.ContinueOnError), &name, &path); err != nil {
		return err
	}
	where, err := o.cfg.checkDataset(name, path, "")
	if err != nil {
		return err
	}
	d, err := createDataset(ctx, o.db, operatorActor(), name, where.stored, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(o.stdout, "made dataset %d, %s, of %s\n", d.ID, d.Name, filepath.Join(where.root, where.below))
	return nil
}

// sendMessageCommand is "cairn message send TITLE". It reads the body from standard input.
func sendMessageCommand(ctx context.Context, o operation) error {
	var c messageChange
	var title string
	flags := flag.NewFlagSet("message send", flag.ContinueOnError)
	severity := flags.String("severity", "info", "")
	newUsers := flags.Bool("include-new-users", false, "")
	flags.Func("roles", "", func(text string) error { c.Roles.value = new(splitList(text)); return nil })
	flags.Func("publish-at", "", func(text string) error { c.PublishAt.value = &text; return nil })
	flags.Func("expires-at", "", func(text string) error { c.ExpiresAt.value = &text; return nil })
	if err := o.parse(flags, &title); err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(o.stdin, maxBody))
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	c.Title, c.Body, c.Severity, c.IncludeNewUsers = &title, new(strings.TrimSpace(string(body))), severity, newUsers
	id, err := createMessage(ctx, o.db, operatorActor(), c)
	if err != nil {
		return err
	}
	return o.print(false, nil, "%d", id)
}

// listMessagesCommand is "cairn message list". It prints the newest 500 messages.
func listMessagesCommand(ctx context.Context, o operation) error {
	flags := flag.NewFlagSet("message list", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "")
	if err := o.parse(flags); err != nil {
		return err
	}
	messages, err := listMessages(ctx, o.db, nil, messageFilter{}, []string{"infinity", "0"}, maxPage)
	for _, m := range messages {
		err = errors.Join(err, o.print(*asJSON, m, "%d\t%s\t%s\t%s\t%s", m.ID, m.PublishAt.Format(time.RFC3339), m.State, m.Severity, m.Title))
	}
	return err
}

// retractMessageCommand is "cairn message retract ID".
func retractMessageCommand(ctx context.Context, o operation) error {
	var text string
	if err := o.parse(flag.NewFlagSet("message retract", flag.ContinueOnError), &text); err != nil {
		return err
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not the number of a message: %w", text, errUsage)
	}
	return retractMessage(ctx, o.db, operatorActor(), id)
}

// errNoUser is returned for the name of no user.
var errNoUser = errors.New("there is no user of that name")

// userNamed returns the user of that name, or errNoUser. Nobody verifies e-mail addresses.
func userNamed(ctx context.Context, q querier, name string) (user, error) {
	const query = `
		SELECT ` + userColumns + `
		FROM users u
		WHERE u.username = $1`
	username, _ := normalizeUsername(name)
	return collectOne[user](ctx, q, fmt.Errorf("%q: %w", name, errNoUser), "find user", query, username)
}

// readPassword reads a password: from a terminal twice without echo, else a line of stdin.
func readPassword(stdin io.Reader, stderr io.Writer) (string, error) {
	lines := bufio.NewReader(stdin)
	read := func() (string, error) {
		line, err := lines.ReadString('\n')
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	restore, err := echoOff(stdin)
	if err != nil { // not a terminal
		return read()
	}
	defer restore()
	var typed [2]string
	for i, prompt := range []string{"Password: ", "Again: "} {
		fmt.Fprint(stderr, prompt)
		typed[i], err = read()
		fmt.Fprintln(stderr)
		if err != nil {
			return "", err
		}
	}
	if typed[0] != typed[1] {
		return "", errors.New("the passwords differ")
	}
	return typed[0], nil
}

// echoOff turns off the terminal's echo with stty(1). It is an error if stdin is not a terminal.
func echoOff(stdin io.Reader) (restore func(), err error) {
	stty := func(setting string) error {
		c := exec.Command("stty", setting)
		c.Stdin = stdin
		return c.Run()
	}
	if !isTerminal(stdin) {
		return nil, errors.New("not a terminal")
	}
	return func() { stty("echo") }, stty("-echo")
}

// printRoutes is "cairn routes", which prints the route table.
func printRoutes(stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, rt := range (&server{}).routes() {
		fmt.Fprintf(table, "%s\t%s\t%s\n", rt.method, rt.path, rt.who)
	}
	return table.Flush()
}
