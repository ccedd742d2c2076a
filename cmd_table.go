package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// command is a row of the table of commands.
type command struct {
	name string // one word or two
	args string // the names and options that it takes, as "cairn help" shows them: see arguments
	need need
	do   action
	help string
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
		{
			"serve", "",
			needSettings, serveCommand,
			"run the service",
		},
		{
			"migrate", "",
			needDatabase, migrateCommand,
			"bring the database's schema up to date",
		},

		{
			"user create", "NAME [--role ROLE] [--email ADDRESS] [--display-name TEXT] [--json]",
			needDatabase, createUserCommand,
			"create a user, with the role member unless another is given; " +
				"the password is read from the terminal or the first line of standard input",
		},
		{
			"user list", "[--json]",
			needDatabase, listUsersCommand,
			"list the users: name, status, roles",
		},
		{
			"user show", "NAME [--json]",
			needDatabase, showUserCommand,
			"show a user",
		},
		{
			"user disable", "NAME [--json]",
			needDatabase, onUser("", setStatus(statusDisabled)),
			"keep a user out",
		},
		{
			"user enable", "NAME [--json]",
			needDatabase, onUser("", setStatus(statusActive)),
			"let a user in: one that is pending or was disabled",
		},
		{
			"user delete", "NAME [--json]",
			needDatabase, deleteUserCommand,
			"delete a user, after a question on a terminal; the name is never used again",
		},
		{
			"user set-roles", "NAME ROLE,... [--json]",
			needDatabase, setRolesCommand,
			"replace a user's roles",
		},
		{
			"user reset-password", "NAME [--json]",
			needDatabase, resetPasswordCommand,
			"print a one-use token, or a link with it, that sets a new password",
		},
		{
			"user reset-totp", "NAME [--json]",
			needDatabase, onUser("%s has no second factor now", deleteTOTP),
			"remove a user's second factor",
		},
		{
			"user unlock", "NAME [--json]",
			needDatabase, withKeys(unlockUserCommand),
			"clear the failed logins to a user's account, so that every network may try again at once",
		},
		{
			"user end-sessions", "NAME [--json]",
			needDatabase, onUser("ended all sessions of %s", endAllSessions),
			"end a user's sessions",
		},
		{
			"user revoke", "NAME [--json]",
			needDatabase, onUser("ended all sessions and tokens of %s", revokeUser),
			"end all sessions and tokens of a user",
		},

		{
			"role list", "[--json]",
			needDatabase, listRolesCommand,
			"list the roles: name, permissions, description",
		},
		{
			"role create", "NAME [--permissions P,...] [--description TEXT] [--json]",
			needDatabase, onRole(createRole),
			"create a role",
		},
		{
			"role edit", "NAME [--permissions P,...] [--description TEXT] [--json]",
			needDatabase, onRole(editRole),
			"change a role",
		},
		{
			"role delete", "NAME [--reassign ROLE]",
			needDatabase, deleteRoleCommand,
			"delete a role that no user has, or give its users another",
		},

		{
			"audit verify", "[--head HEAD]",
			needDatabase, withKeys(verifyAuditCommand),
			"compare the audit log with its seals; record breaks that it does not tell of yet, and fail",
		},
		{
			"audit prune", "--before DATE",
			needDatabase, withKeys(pruneAuditCommand),
			"delete the audit log's rows from before a day, such as 2026-01-31",
		},

		{
			"message send",
			"TITLE [--severity S] [--roles R,...] [--publish-at TIME] [--expires-at TIME] [--include-new-users]",
			needDatabase, sendMessageCommand,
			"publish a message; standard input is its text; S is info, warning or critical, " +
				"TIME 2026-01-31T12:00:00Z",
		},
		{
			"message list", "[--json]",
			needDatabase, listMessagesCommand,
			"list the newest messages",
		},
		{
			"message retract", "ID",
			needDatabase, retractMessageCommand,
			"retract a message",
		},

		{
			"token create", "USER NAME --permissions P,... [--days N] [--role ROLE]",
			needDatabase, createTokenCommand,
			"create an API token for 90 days, or N, and print its secret; " +
				"an unknown user is created as a service account, without a password, " +
				"with the role member or ROLE",
		},
		{
			"token list", "USER [--json]",
			needDatabase, listTokensCommand,
			"list a user's API tokens",
		},
		{
			"token revoke", "USER NAME",
			needDatabase, revokeTokenCommand,
			"end an API token",
		},

		{
			"keys list", "[--json]",
			needSettings, withKeys(listKeysCommand),
			"list the signing keys",
		},
		{
			"keys add", "",
			needSettings, withKeys(addKeyCommand),
			"add a signing key, which only verifies at first",
		},
		{
			"keys promote", "KID",
			needSettings, withKeys(promoteKeyCommand),
			"sign with a key from now on",
		},
		{
			"keys prune", "",
			needDatabase, withKeys(pruneKeys),
			"remove the keys that nothing needs any more",
		},

		{
			"dataset add",
			"PATH [--name NAME] [--requires PERMISSION] [--crs CODE] [--vertical-crs CODE]",
			needDatabase, addDatasetCommand,
			"register a directory of elevation files and analyse it; CODE is for files that name no CRS",
		},
		{
			"dataset create", "NAME PATH [--requires PERMISSION]",
			needDatabase, createDatasetCommand,
			"register a directory without an analysis; a relative path is below the first dataset root",
		},
		{
			"dataset set",
			"DATASET [--name NAME] [--description TEXT] [--about FILE] [--requires PERMISSION] " +
				"[--crs CODE] [--vertical-crs CODE] [--folder FOLDER] " +
				"[--notify none|draft|publish] [--json]",
			needDatabase, setDatasetCommand,
			"change a dataset; FILE has JSON: title, license, providers, keywords and more; " +
				"with --requires only holders of the permission see it, " +
				"with an empty one all who may read datasets; " +
				"CODE, such as EPSG:2154, is for files below FOLDER, or anywhere, that name no CRS; " +
				"an empty one sets none; " +
				"--notify announces new findings and a missing directory",
		},
		{
			"dataset list", "[--json]",
			needDatabase, listDatasetsCommand,
			"list the datasets: id, name, directory, state of the last analysis",
		},
		{
			"dataset analyze", "DATASET [--wait] [--force] [--checksums]",
			needDatabase, analyzeCommand,
			"start an analysis or, with --wait, join the one that runs and wait for its end; " +
				"--force removes the rows of files that are gone, even if most are; " +
				"--checksums compares the files with the lists of checksums beside and above them",
		},
		{
			"dataset expect",
			"DATASET [--crs CRS] [--vertical-crs CRS] [--posting SIZE] [--sample-type TYPE] " +
				"[--nodata VALUE] [--width PIXELS] [--height PIXELS] [--name PATTERN] " +
				"[--boundary FILE]",
			needDatabase, expectCommand,
			"print what the files should be or, with options, change it and check them; " +
				"FILE is GeoJSON; an empty value takes back what was expected",
		},
		{
			"dataset remove", "DATASET",
			needDatabase, removeDatasetCommand,
			"forget a dataset, after a question on a terminal; its files stay",
		},
		{
			"report", "DATASET",
			needDatabase, reportCommand,
			"print the problems of a dataset's files",
		},
		{
			"compare", "DATASET OTHER",
			needDatabase, compareCommand,
			"compare a dataset with another, such as a new delivery with the old one, cell by cell",
		},
		{
			"vrt", "DATASET [--crs CRS] [--resolution SIZE]",
			needDatabase, vrtCommand,
			"print a GDAL VRT of a dataset's rasters; if they have several CRSs or pixel sizes, name one",
		},

		{
			"backup", "FILE",
			needDatabase, backupCommand,
			"write the database to a file; the key file is not included",
		},
		{
			"restore", "FILE [--keep-tokens]",
			needOwner, restoreCommand,
			"replace the database's content with a backup and end all sessions and API tokens; " +
				"the service must be stopped",
		},

		{
			"routes", "[--json]",
			needNothing, routesCommand,
			"print every route and who may call it",
		},
		{
			"bbox", "PATH... [--root DIR] [--heights]",
			needNothing, printExtents,
			"print the extents of elevation files, one JSON object per line; needs no database; " +
				"with --heights read all samples and print minimum, maximum, mean, deviation and more",
		},
		{
			"crs", "CODE [LON LAT] [--inverse]",
			needNothing, printCRS,
			"describe the CRS of an EPSG code, or convert degrees to its coordinates, " +
				"or with --inverse its X Y to degrees",
		},
		{
			"config check", "",
			needSettings, checkConfig,
			"print the settings in force",
		},
		{
			"help", "[COMMAND...]",
			needNothing, helpCommand,
			"print this, or about one command",
		},
		{
			"version", "",
			needNothing, versionCommand,
			"print the version, the commit and its date",
		},
	}
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
	if args[0] == "--version" {
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

// argument is a name or an option that a command takes.
type argument struct {
	name       string // "NAME" or "--option"
	isOption   bool
	takesValue bool // of an option
	isRequired bool
	isRepeated bool // of a name: it may be given several times
}

// argumentParts matches each part of a command's args: brackets with what they hold, an option with
// its value, or a name.
var argumentParts = regexp.MustCompile(`\[[^]]+\]|--\S+ \S+|\S+`)

// arguments reads the args of a command. There, "NAME" is a name that has to be given, "[NAME]" one
// that may be left out, and "NAME..." one or more. "--option VALUE" takes a value, and "[--option]"
// none.
func (c command) arguments() (all []argument) {
	for _, part := range argumentParts.FindAllString(c.args, -1) {
		words := strings.Fields(strings.Trim(part, "[]"))
		isOption := strings.HasPrefix(part, "--") || strings.HasPrefix(part, "[--")
		takesValue := isOption && len(words) > 1
		if takesValue {
			words = words[:1]
		}

		// "ROLE,..." is a list with commas, and thus one name.
		for _, word := range words {
			isList := strings.HasSuffix(word, ",...")
			all = append(all, argument{
				name:       word,
				isOption:   isOption,
				takesValue: takesValue,
				isRequired: part[0] != '[',
				isRepeated: strings.HasSuffix(word, "...") && !isList,
			})
		}
	}
	return all
}

// parse reads the arguments of a command. Names and options may come in any order; after "--" there
// are only names.
func (c command) parse(args []string) (names []string, options url.Values, err error) {
	known := map[string]argument{} // the options
	for _, a := range c.arguments() {
		if a.isOption {
			known[a.name] = a
		}
	}

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
		option, isKnown := known[name]
		switch {
		case !isKnown:
			return nil, nil, c.wrongUsage("there is no option %s", name)
		case hasValue && !option.takesValue:
			return nil, nil, c.wrongUsage("%s takes no value", name)
		case option.takesValue && !hasValue && len(args) == 0:
			return nil, nil, c.wrongUsage("%s needs a value", name)
		case option.takesValue && !hasValue:
			value = args[0]
			args = args[1:]
		}
		options.Set(name[2:], value)
	}
	return names, options, c.checkArguments(names, options)
}

// checkArguments returns an error if a required argument is missing, or if there are more names
// than the command takes.
func (c command) checkArguments(names []string, options url.Values) error {
	var missing error
	for _, a := range c.arguments() {
		isGiven := len(names) > 0
		if a.isOption {
			isGiven = options.Has(a.name[2:])
		}
		if a.isRequired && !isGiven && missing == nil {
			missing = c.wrongUsage("%s is missing", a.name)
		}

		switch {
		case a.isRepeated:
			names = nil
		case !a.isOption && isGiven:
			names = names[1:]
		}
	}
	if len(names) > 0 {
		return c.wrongUsage("unexpected argument %q", names[0])
	}
	return missing
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
		c.print(o.stdout)
	}
	if topic == "" {
		fmt.Fprint(o.stdout, "\nExit status: 0 done, 1 failed, 2 wrong usage, 3 a report has findings,\n"+
			"datasets differ or the audit log has a new break.\n"+
			"Settings are environment variables; docs/settings.md has the table.\n")
	}
	return nil
}

// print writes the command with its arguments, and its help from column 35 on.
func (c command) print(w io.Writer) {
	const column = 35
	const width = 80
	indent := strings.Repeat(" ", column)

	left := "  " + strings.Join(fold(c.name+" "+c.args, width-10), "\n"+indent[:10])
	if len(left) > column-2 {
		left += "\n" + indent
	}

	help := strings.Join(fold(c.help, width-column), "\n"+indent)
	fmt.Fprintf(w, "%-*s%s\n", column, left, help)
}

// fold breaks a text at blanks into lines of at most width bytes.
func fold(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last < 0 || len(lines[last])+1+len(word) > width {
			lines = append(lines, word)
		} else {
			lines[last] += " " + word
		}
	}
	return lines
}
