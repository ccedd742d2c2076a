package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// command is a row of the table of commands.
type command struct {
	name string // one word or two
	need need
	do   action
}

// usageText is what "cairn help" prints about each command: the names and options that it takes,
// and what it does.
//
//go:embed cmd_usage.txt
var usageText string

// usage returns the text about a command, and its names and options: "NAME" is a name that has to
// be given, "[NAME]" one that may be left out, and "NAME..." one or more. "--option VALUE" takes a
// value, and "[--option]" none.
func (c command) usage() (text, args string) {
	entry := regexp.MustCompile(`(?m)^  ` + c.name + `( .*)?\n(   .*\n)*`)
	text = entry.FindString(usageText)

	// Two blanks stand before what the command does.
	for line := range strings.Lines(text) {
		left, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if !strings.HasPrefix(line, strings.Repeat(" ", 35)) {
			args += " " + left
		}
	}
	return text, strings.TrimPrefix(args, " "+c.name)
}

// action runs a command.
type action func(ctx context.Context, o invocation) error

// need is a precondition of a command. Each includes those before it.
type need int

// The needs.
const (
	needNothing  need = iota
	needSettings      // they are valid
	needOwner         // the process runs as the user of the packaged service
	needDatabase      // invocation.db is a connection to the service's database
)

// commands is the table of commands. They act as the operator, who holds every permission. All but
// serve and restore may run while the service runs.
func commands() []command {
	return []command{
		{"serve", needSettings, serveCommand},
		{"migrate", needDatabase, migrateCommand},

		{"user create", needDatabase, createUserCommand},
		apiCommand("user list", "GET /users?limit=500", "limit", userLine),
		apiCommand("user show", "GET /users/{id}", "", userLine),
		apiCommand("user disable", "PATCH /users/{id}?status=disabled", "status", userLine),
		apiCommand("user enable", "PATCH /users/{id}?status=active", "status", userLine),
		{"user delete", needDatabase, deleteUserCommand},
		apiCommand("user set-roles", "PUT /users/{id}/roles", "roles,", userLine),
		{"user reset-password", needDatabase, resetPasswordCommand},
		apiCommand("user reset-totp", "DELETE /users/{id}/totp", "", "$username has no second factor now"),
		{"user unlock", needDatabase, withKeys(unlockUserCommand)},
		apiCommand("user end-sessions", "DELETE /users/{id}/sessions", "", "ended all sessions of $username"),
		{"user revoke", needDatabase, onUser("user.revoke", "ended all sessions and tokens of %s", revokeCredentials)},

		apiCommand("role list", "GET /roles?limit=500", "limit", roleLine),
		apiCommand("role create", "POST /roles?permissions=", "name* permissions, description*", roleLine),
		apiCommand("role edit", "PATCH /roles/{id}", "permissions, description*", roleLine),
		apiCommand("role delete", "DELETE /roles/{id}", "reassign*", ""),

		{"audit verify", needDatabase, withKeys(verifyAuditCommand)},
		{"audit prune", needDatabase, withKeys(pruneAuditCommand)},

		{"message send", needDatabase, sendMessageCommand},
		apiCommand("message list", "GET /system-messages?limit=500&newest=", "limit",
			"$id\t${publish_at:.19}Z\t$state\t$severity\t$title"),
		apiCommand("message retract", "DELETE /system-messages/{id}", "", ""),

		{"token create", needDatabase, createTokenCommand},
		apiCommand("token list", "GET /users/{id}/tokens?limit=500", "limit",
			"$name\t$permissions\tuntil ${expires_at:.10}"),
		apiCommand("token revoke", "DELETE /users/{id}/tokens/{token}", "", "ended API token $1 of $0"),

		{"keys list", needSettings, withKeys(listKeysCommand)},
		{"keys add", needSettings, withKeys(addKeyCommand)},
		{"keys promote", needSettings, withKeys(promoteKeyCommand)},
		{"keys prune", needDatabase, withKeys(pruneKeys)},

		{"dataset add", needDatabase, addDatasetCommand},
		{"dataset create", needDatabase, createDatasetCommand},
		datasetCommand("dataset set", setDatasetCommand),
		{"dataset list", needDatabase, listDatasetsCommand},
		datasetCommand("dataset analyze", analyzeCommand),
		datasetCommand("dataset expect", expectCommand),
		datasetCommand("dataset remove", removeDatasetCommand),
		datasetCommand("report", reportCommand),
		datasetCommand("compare", compareCommand),
		datasetCommand("vrt", vrtCommand),
		{"elevation", needDatabase, elevationCommand},

		{"backup", needDatabase, backupCommand},
		{"restore", needOwner, restoreCommand},

		{"routes", needNothing, routesCommand},
		{"bbox", needNothing, printExtents},
		{"crs", needNothing, printCRS},
		{"config check", needSettings, checkConfig},
		{"help", needNothing, helpCommand},
		{"version", needNothing, versionCommand},
	}
}

// apiCommand returns the row of a command that calls a route of the API: see calls.
func apiCommand(name, route, fields, line string) command {
	return command{name, needDatabase, calls(route, fields, line)}
}

// findCommand returns the command that args begin with, and the arguments that follow. Help and
// version may be asked for by options.
func findCommand(args []string) (c command, rest []string, err error) {
	for i, arg := range args {
		isOptionValue := i > 0 && strings.HasPrefix(args[i-1], "--")
		isHelp := (arg == "--help" || arg == "-h") && !isOptionValue
		if isHelp {
			args = append([]string{"help"}, args[:min(i, 2)]...)
		}
		if isHelp || arg == "--" { // after it there are only names
			break
		}
	}
	if len(args) == 0 {
		args = []string{"help"}
	}
	if args[0] == "--version" || args[0] == "-v" {
		args = append([]string{"version"}, args[1:]...)
	}

	var subcommands []string
	for _, c := range commands() {
		words := strings.Fields(c.name)
		n := len(words)
		if len(args) >= n && slices.Equal(args[:n], words) {
			return c, args[n:], nil
		}
		if n > 1 && words[0] == args[0] {
			subcommands = append(subcommands, words[1])
		}
	}

	if subcommands != nil {
		return c, nil, fmt.Errorf("%s needs a subcommand: %s; %w %[1]s",
			args[0], strings.Join(subcommands, ", "), errUsage)
	}

	ofSystemd := []string{
		"start",
		"stop",
		"restart",
		"status",
	}
	if slices.Contains(ofSystemd, args[0]) {
		return c, nil, fmt.Errorf("%q is not a command: systemd does that: systemctl %[1]s cairn; %w",
			args[0], errUsage)
	}
	return c, nil, fmt.Errorf("%q is not a command; %w", args[0], errUsage)
}

// parse reads the arguments of a command. Names and options may come in any order; after "--" there
// are only names.
func (c command) parse(args []string) (names []string, options url.Values, err error) {
	_, takes := c.usage()
	known := strings.ReplaceAll(takes, "[", "")

	options = url.Values{}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			names = append(names, args...)
			break
		}

		// A negative number is a name, not an option.
		_, notNumber := strconv.ParseFloat(arg, 64)
		if !strings.HasPrefix(arg, "-") || notNumber == nil {
			names = append(names, arg)
			continue
		}

		name, value, hasValue := strings.Cut(arg, "=")
		isFlag := strings.Contains(known, " "+name+"]")
		takesValue := strings.Contains(known, " "+name+" ")
		switch {
		case !isFlag && !takesValue:
			return nil, nil, c.wrongUsage("there is no option %s", name)
		case hasValue && isFlag:
			return nil, nil, c.wrongUsage("%s takes no value", name)
		case takesValue && !hasValue && len(args) == 0:
			return nil, nil, c.wrongUsage("%s needs a value", name)
		case takesValue && !hasValue:
			value = args[0]
			args = args[1:]
		}
		field := strings.ReplaceAll(name[2:], "-", "_")
		options.Set(field, value)
	}
	return names, options, c.checkArguments(takes, names, options)
}

// These match parts of the args of a command: an option with its value, perhaps in brackets; an
// option that has to be given; and a name that may be given several times. A list such as
// "ROLE,..." is one name.
var (
	optionParts     = regexp.MustCompile(`\[?--[a-z-]+( [^] ]+)?]?`)
	requiredOptions = regexp.MustCompile(`(^| )--(\S+)`)
	repeatedName    = regexp.MustCompile(`\w\.\.\.`)
)

// checkArguments returns an error if a required argument is missing, or if there are more names
// than the command takes.
func (c command) checkArguments(takes string, names []string, options url.Values) error {
	// Names in brackets may be left out.
	words := optionParts.ReplaceAllString(takes, "")
	words, others, _ := strings.Cut(words, "[")
	required := strings.Fields(words)
	if len(names) < len(required) {
		return c.wrongUsage("%s is missing", required[len(names)])
	}

	most := len(required) + len(strings.Fields(others))
	if len(names) > most && !repeatedName.MatchString(takes) {
		return c.wrongUsage("unexpected argument %q", names[most])
	}

	for _, option := range requiredOptions.FindAllStringSubmatch(takes, -1) {
		if !options.Has(option[2]) {
			return c.wrongUsage("--%s is missing", option[2])
		}
	}
	return nil
}

// wrongUsage returns the error for arguments that the command does not take.
func (c command) wrongUsage(format string, of ...any) error {
	return fmt.Errorf("%s: %s; %w %[1]s", c.name, fmt.Sprintf(format, of...), errUsage)
}

// helpCommand is "cairn help". It prints the commands whose names begin with the given words.
func helpCommand(_ context.Context, o invocation) error {
	topic := strings.Join(o.names, " ")
	var found []command
	for _, c := range commands() {
		name := c.name + " "
		words := topic + " "
		if topic == "" || strings.HasPrefix(name, words) || strings.HasPrefix(words, name) {
			found = append(found, c)
		}
	}
	if found == nil {
		_, _, err := findCommand(o.names)
		return err
	}

	fmt.Fprint(o.stdout, "usage: cairn COMMAND [ARGUMENTS]\n\n")
	for _, c := range found {
		text, _ := c.usage()
		fmt.Fprint(o.stdout, text)
	}
	if topic == "" {
		fmt.Fprint(o.stdout, "\nExit status: 0 done, 1 failed, 2 wrong usage, 3 a report has findings,\n"+
			"datasets differ or the audit log has a new break, 78: a setting cannot be used.\n"+
			"Settings are environment variables; docs/settings.md has the table.\n")
	}
	return nil
}
