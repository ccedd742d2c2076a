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
			needDatabase, calls("GET /users?limit=500", "limit", userLine),
			"list the users: name, status, roles",
		},
		{
			"user show", "NAME [--json]",
			needDatabase, calls("GET /users/{id}", "", userLine),
			"show a user",
		},
		{
			"user disable", "NAME [--json]",
			needDatabase, calls("PATCH /users/{id}?status=disabled", "status", userLine),
			"keep a user out",
		},
		{
			"user enable", "NAME [--json]",
			needDatabase, calls("PATCH /users/{id}?status=active", "status", userLine),
			"let a user in: one that is pending or was disabled",
		},
		{
			"user delete", "NAME [--json]",
			needDatabase, deleteUserCommand,
			"delete a user, after a question on a terminal; the name is never used again",
		},
		{
			"user set-roles", "NAME ROLE,... [--json]",
			needDatabase, calls("PUT /users/{id}/roles", "roles,", userLine),
			"replace a user's roles",
		},
		{
			"user reset-password", "NAME [--json]",
			needDatabase, resetPasswordCommand,
			"print a one-use token, or a link with it, that sets a new password",
		},
		{
			"user reset-totp", "NAME [--json]",
			needDatabase, calls("DELETE /users/{id}/totp", "", "$username has no second factor now"),
			"remove a user's second factor",
		},
		{
			"user unlock", "NAME [--json]",
			needDatabase, withKeys(unlockUserCommand),
			"clear the failed logins to a user's account, so that every network may try again at once",
		},
		{
			"user end-sessions", "NAME [--json]",
			needDatabase, calls("DELETE /users/{id}/sessions", "", "ended all sessions of $username"),
			"end a user's sessions",
		},
		{
			"user revoke", "NAME [--json]",
			needDatabase, onUser("user.revoke", "ended all sessions and tokens of %s", revokeCredentials),
			"end all sessions and tokens of a user",
		},

		{
			"role list", "[--json]",
			needDatabase, calls("GET /roles?limit=500", "limit", roleLine),
			"list the roles: name, permissions, description",
		},
		{
			"role create", "NAME [--permissions P,...] [--description TEXT] [--json]",
			needDatabase, calls("POST /roles?permissions=", "name* permissions, description*", roleLine),
			"create a role",
		},
		{
			"role edit", "NAME [--permissions P,...] [--description TEXT] [--json]",
			needDatabase, calls("PATCH /roles/{id}", "permissions, description*", roleLine),
			"change a role",
		},
		{
			"role delete", "NAME [--reassign ROLE]",
			needDatabase, calls("DELETE /roles/{id}", "reassign*", ""),
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
			needDatabase, calls("GET /system-messages?limit=500&newest=", "limit",
				"$id\t${publish_at:.19}Z\t$state\t$severity\t$title"),
			"list the newest messages",
		},
		{
			"message retract", "ID",
			needDatabase, calls("DELETE /system-messages/{id}", "", ""),
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
			needDatabase, calls("GET /users/{id}/tokens?limit=500", "limit",
				"$name\t$permissions\tuntil ${expires_at:.10}"),
			"list a user's API tokens",
		},
		{
			"token revoke", "USER NAME",
			needDatabase, calls("DELETE /users/{id}/tokens/{token}", "", "ended API token $1 of $0"),
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
			"dataset analyze", "DATASET [--wait] [--force] [--checksums] [--heights]",
			needDatabase, analyzeCommand,
			"start an analysis or, with --wait, join the one that runs and wait for its end; " +
				"--force removes the rows of files that are gone, even if most are; " +
				"--checksums compares the files with the lists of checksums beside and above them; " +
				"--heights reads the heights of the files that are new or changed",
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

// parse reads the arguments of a command. Names and options may come in any order; after "--" there
// are only names.
func (c command) parse(args []string) (names []string, options url.Values, err error) {
	known := " " + strings.ReplaceAll(c.args, "[", "")

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
	return names, options, c.checkArguments(names, options)
}

// What stands in the args of a command: options, with what they take and perhaps in brackets; the
// options that have to be given; and a name that may be given several times. A list such as
// "ROLE,..." is one name.
var (
	optionParts     = regexp.MustCompile(`\[?--[a-z-]+( [^] ]+)?]?`)
	requiredOptions = regexp.MustCompile(`(^| )--(\S+)`)
	repeatedName    = regexp.MustCompile(`\w\.\.\.`)
)

// checkArguments returns an error if a required argument is missing, or if there are more names
// than the command takes.
func (c command) checkArguments(names []string, options url.Values) error {
	// Names in brackets may be left out.
	words := optionParts.ReplaceAllString(c.args, "")
	words, others, _ := strings.Cut(words, "[")
	required := strings.Fields(words)
	if len(names) < len(required) {
		return c.wrongUsage("%s is missing", required[len(names)])
	}

	most := len(required) + len(strings.Fields(others))
	if len(names) > most && !repeatedName.MatchString(c.args) {
		return c.wrongUsage("unexpected argument %q", names[most])
	}

	for _, option := range requiredOptions.FindAllStringSubmatch(c.args, -1) {
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
