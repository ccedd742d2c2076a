package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// documented is a command as the usage text has it.
type documented struct {
	name, synopsis string
	options        []string
}

// usageOf reads the usage text.
func usageOf(t *testing.T, args ...string) (all []documented) {
	t.Helper()
	said, status := status(nil, "", args...)
	if status != 0 {
		t.Fatalf("%v: %d %s", args, status, said)
	}
	var synopses []string
	for line := range strings.Lines(said) {
		if column := min(35, len(line)); strings.HasPrefix(line, "  ") && strings.TrimSpace(line[:min(3, len(line))]) != "" {
			synopses = append(synopses, strings.TrimSpace(line[:column])+strings.TrimRight(line[column:], "\n"))
			if strings.HasSuffix(line[:column], "  ") {
				synopses[len(synopses)-1] = strings.TrimSpace(line[:column])
			}
		} else if strings.HasPrefix(line, "          ") && !strings.HasPrefix(line, strings.Repeat(" ", 35)) {
			synopses[len(synopses)-1] += " " + strings.TrimSpace(line)
		}
	}
	for _, synopsis := range synopses {
		name, _, _ := strings.Cut(regexp.MustCompile(` [A-Z[-].*`).ReplaceAllString(synopsis, ""), " (")
		all = append(all, documented{name, synopsis, regexp.MustCompile(`--[a-z-]+`).FindAllString(synopsis, -1)})
	}
	return all
}

// status runs a command and returns what it prints, with its error, and its exit status.
func status(env []string, stdin string, args ...string) (string, int) {
	var out lockedBuffer
	err := run(context.Background(), args, env, strings.NewReader(stdin), &out, &out)
	if err != nil {
		fmt.Fprintln(&out, "cairn:", err)
	}
	return out.String(), exitStatus(err)
}

// usageSteps are commands in an order in which all work, each with what it prints. A group in the pattern gives a value to
// the "$name" of a later line.
func usageSteps() []struct {
	line, stdin string
	status      int
	want        string
} {
	return []struct {
		line, stdin string
		status      int
		want        string
	}{
		{"migrate", "", 0, `^$`},
		{"user create ada --role member --email a@example.org --display-name Ada --json", testPassword + "\n", 0, `"username":"ada"`},
		{"user list --json", "", 0, `"username":"ada"`},
		{"user show --json ada", "", 0, `"display_name":"Ada"`},
		{"user disable ada --json", "", 0, `"status":"disabled"`},
		{"user enable ada --json", "", 0, `"status":"active"`},
		{"user set-roles ada member --json", "", 0, `"roles":\["member"\]`},
		{"user reset-password ada --json", "", 0, `"password_token":"`},
		{"user reset-totp ada --json", "", 0, `"username":"ada"`},
		{"user unlock ada --json", "", 0, `"username":"ada"`},
		{"user end-sessions ada --json", "", 0, `"username":"ada"`},
		{"user revoke ada --json", "", 0, `"username":"ada"`},
		{"user reset-totp ada", "", 0, `^ada has no second factor now\n$`},
		{"user unlock ada", "", 0, `^cleared the failed logins to ada\n$`},
		{"user end-sessions ada", "", 0, `^ended all sessions of ada\n$`},
		{"user revoke ada", "", 0, `^ended all sessions and tokens of ada\n$`},
		{"user create bob", testPassword + "\n", 0, `^created user bob`},
		{"user delete bob", "", 0, `^deleted user bob\n$`},
		{"user delete ada --json", "", 0, `"username":"ada"`},
		{"user show ada", "", 1, `there is no user`},
		{"role create keeper --permissions dataset.read --description Keeps --json", "", 0, `"description":"Keeps"`},
		{"role edit keeper --permissions dataset.read,dataset.manage --description Minds --json", "", 0, `"description":"Minds"`},
		{"role list --json", "", 0, `"name":"keeper"`},
		{"role delete keeper --reassign member", "", 0, `^$`},
		{"audit verify", "", 0, `head (?P<head>\S+),`},
		{"audit verify --head $head", "", 0, `^head `},
		{"audit verify --head 1:00", "", 3, `^head `},
		{"audit verify --head nonsense", "", 2, `--head: "nonsense" is not the head of an audit log`},
		{"audit prune --before 2001-01-31", "", 0, `removed 0 rows`},
		{"audit prune --before yesterday", "", 2, `--before takes a date`},
		{"message send Hello --severity warning --roles member --publish-at 2001-01-01T00:00:00Z --expires-at 2999-01-01T00:00:00Z " +
			"--include-new-users", "the text", 0, `^(?P<message>\d+)\n$`},
		{"message list --json", "", 0, `"severity":"warning"`},
		{"message retract $message", "", 0, `^$`},
		{"message retract abc", "", 2, `"abc" is not an id; see: cairn help`},
		{"message send Hello", "caf\xe9", 1, `The text is not UTF-8`},
		{"message send -- -h", "the text", 0, `^\d+\n$`},
		{"token create robot night --permissions dataset.read --days=5 --role member", "", 0, `^cairn_pat_`},
		{"token list robot --json", "", 0, `"name":"night"`},
		{"token revoke robot night", "", 0, `ended API token night`},
		{"dataset create tiles tiles --requires dataset.read", "", 0, `created dataset 1, tiles, of `},
		{"dataset set tiles --description=heights --requires= --json", "", 0, `"description":"heights"`},
		{"dataset set tiles --about - --json", `{"title":"Tiles of 2024"}`, 0, `"title":"Tiles of 2024"`},
		{"dataset set tiles --description caf\xe9", "", 1, `The text is not UTF-8`},
		{"dataset set tiles --notify draft --json", "", 0, `"notify":"draft"`},
		{"dataset set tiles --name tiles", "", 0, `changed dataset 1, tiles`},
		{"dataset set tiles --crs EPSG:25832 --vertical-crs EPSG:5783 --folder west --json", "", 0, `"folder_crs":\[{"folder":"west"`},
		{"dataset set tiles --crs=EPSG:5783", "", 1, `must be the code of a known CRS`},
		{"dataset add $root/odd --requires dataset.manage --name broken --crs EPSG:25832 --vertical-crs EPSG:5783", "", 0, `created dataset 2, broken, of .*/odd\nanalysis 1 of broken: 1 file, 1 added`},
		{"dataset analyze tiles --wait --force --checksums --heights", "", 0, `analysis 2 of tiles: 2 files, 2 added, 0 changed, 0 removed\n2 of 2 files located`},
		{"dataset list --json", "", 0, `"name":"broken"`},
		{"report 1", "", 0, `no findings: dataset tiles`},
		{"report broken", "", 3, `\n1 error: dataset broken`},
		{"compare tiles broken", "", 3, `only_here\ta.tif\t\t\nonly_here\tb.tif\t\t\ncells: {"only_here":2}`},
		{"compare tiles 1", "", 1, `tiles and 1 are the same dataset`},
		{"dataset expect tiles --crs EPSG:4326 --vertical-crs EPSG:5773 --posting 1 --sample-type uint8 --nodata 0 --width 4 --height 3 --name {n}.tif --heights -10,3000", "", 0, `2 of 2 files located; 3 not as specified`},
		{"dataset expect tiles", "", 0, `CRS: EPSG:4326 \(WGS 84\)\nvertical CRS: EPSG:5773 \(EGM96 height\)\nposting: 1\n`},
		{"dataset expect tiles --boundary $root/none", "", 1, `no such file`},
		{"dataset expect tiles --name caf\xe9", "", 1, `The text is not UTF-8`},
		{"dataset expect tiles --boundary=", "", 0, `CRS: EPSG:4326`},
		{"vrt tiles --crs EPSG:4326 --resolution 0.25", "", 0, `<VRTDataset`},
		{"elevation 170 -80 171 -80 --interpolation nearest --json", "", 0, `"reason":"no file covers the point"`},
		{"elevation 9,05 48,8", "", 2, `elevation takes longitudes and latitudes in degrees, such as 9.05 48.8: see: cairn help`},
		{"elevation 9 48 9,48", "", 2, `elevation takes `},
		{"elevation +.5 1e1", "", 0, `no file covers the point`},
		{"dataset remove 2", "", 0, `removed dataset 2, broken`},
		{"backup $root/../backup", "", 0, `The database is in`},
		{"routes --json", "", 0, `"path":"/health"`},
		{"bbox --root $root $root/tiles", "", 0, `"path":"tiles/a.tif"`},
		{"bbox --heights $root/tiles/a.tif", "", 0, `"heights":`},
		{"crs 4326 7 46", "", 0, `^7.000000000 46.000000000\n`},
		{"crs --inverse 4326 -7 46", "", 0, `^-7.000000000 46.000000000\n`},
		{"config check", "", 0, `CAIRN_STATE_DIR=/`},
		{"help user create", "", 0, `usage: cairn`},
		{"version", "", 0, `^cairn ` + regexp.QuoteMeta(version)},
		{"keys list --json", "", 0, `"does":"signs"`},
		{"keys add", "", 0, `added key (?P<kid>\S+):`},
		{"keys promote $kid", "", 0, `promoted key`},
		{"keys promote nobody", "", 1, `there is no key nobody`},
		{"keys prune", "", 0, `every key is needed`},
	}
}

// TestUsage: every command and option of the usage text works, and its exit statuses are the documented ones. Arguments that
// a command does not take are refused, with the way to its help.
func TestUsage(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	for name, content := range map[string][]byte{"tiles/a.tif": geographicTIFF(7, 47), "tiles/b.tif": geographicTIFF(9, 47), "odd/c.tif": []byte("II*\x00")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(ts.datasets, name)), 0o755),
			os.WriteFile(filepath.Join(ts.datasets, name), content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "a seal", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_seals`) > 0 })
	values, done, statuses := map[string]string{"root": ts.datasets}, map[string]bool{}, map[int]bool{}
	all := usageOf(t, "help")
	step := func(line, stdin string, want int, pattern string) {
		t.Helper()
		args := strings.Fields(os.Expand(line, func(name string) string { return values[name] }))
		said, got := status(ts.env, stdin, args...)
		at := regexp.MustCompile(pattern)
		found := at.FindStringSubmatch(said)
		if got != want || found == nil {
			t.Errorf("%s: %d %s, want %d %s", line, got, said, want, pattern)
			return
		}
		for i, name := range at.SubexpNames() {
			values[name] = found[i]
		}
		statuses[got] = true
		for _, c := range all {
			if strings.HasPrefix(line+" ", c.name+" ") && (got == 0 || got == 3) {
				for _, word := range append(strings.Fields(strings.ReplaceAll(line, "=", " ")), "") {
					done[c.name+" "+word] = true
				}
			}
		}
		if strings.Contains(line, "--json") {
			for text := range strings.Lines(said) {
				if !json.Valid([]byte(text)) {
					t.Errorf("%s prints %s", line, text)
				}
			}
		}
	}
	for _, s := range usageSteps() {
		step(s.line, s.stdin, s.status, s.want)
	}
	ts.stop()
	step("restore --keep-tokens $root/../backup", "", 0, `The database has been restored`)
	startServer(t, nil, ts.env...).stop() // it runs what "serve" does
	done["serve "] = true

	for _, c := range all {
		for _, option := range append(c.options, "") {
			if !done[c.name+" "+option] {
				t.Errorf("%s %s of the usage text was not tried", c.name, option)
			}
		}
	}
	text, _ := status(nil, "")
	for _, documented := range regexp.MustCompile(`\d `).FindAllString(text[strings.Index(text, "Exit status: "):], -1) {
		if !statuses[int(documented[0]-'0')] {
			t.Errorf("exit status %s was not tried", documented)
		}
	}
	if len(all) != len(commands()) || len(all) < 40 {
		t.Errorf("the usage text has %d commands, the program %d", len(all), len(commands()))
	}
}

// TestWrongUsage: each command of the usage text refuses arguments that it does not take, says which, and where its help is.
func TestWrongUsage(t *testing.T) {
	t.Parallel()
	refused := func(want string, args ...string) {
		t.Helper()
		if said, got := status(nil, "", args...); got != 2 || !strings.Contains(said, want) || !strings.Contains(said, "see: cairn help") {
			t.Errorf("%v: %d %s, want %s", args, got, said, want)
		}
	}
	for _, c := range usageOf(t, "help") {
		words, arguments := strings.Fields(c.name), strings.TrimPrefix(c.synopsis, c.name)
		refused("there is no option --nonsense", append(words, "--nonsense")...)
		if name := regexp.MustCompile(`^ [A-Z]\S*`).FindString(arguments); name != "" {
			refused(strings.TrimSpace(name)+" is missing", words...)
		}
		if !strings.Contains(arguments, "...]") && !strings.Contains(arguments, "H...") {
			refused(`unexpected argument "too"`, append(words, strings.Fields("a b c too many")[max(0, 3-len(regexp.MustCompile(` \[?[A-Z]`).FindAllString(
				regexp.MustCompile(`--\S+ [^\]]\S+`).ReplaceAllString(arguments, ""), -1))):]...)...)
		}
		for _, option := range c.options {
			if strings.Contains(arguments, option+"]") {
				refused(option+" takes no value", append(words, option+"=x")...)
			} else {
				refused(option+" needs a value", append(words, option)...)
			}
		}
	}
	for line, want := range map[string]string{
		"usr list":                     `"usr" is not a command;`,
		"user craete ada":              "user needs a subcommand: create, list, show,",
		"dataset":                      "dataset needs a subcommand: add, create, set, list, analyze, expect, remove",
		"user create a --emial":        "user create: there is no option --emial;",
		"token create bob ci --role=x": "token create: --permissions is missing",
		"user create a --rol x":        "user create: there is no option --rol;",
		"restart":                      `"restart" is not a command: systemd does that: systemctl restart cairn; see`,
		"restoer now":                  `"restoer" is not a command; see`,
		"frobnicate":                   `"frobnicate" is not a command;`,
		"help frobnicate":              `"frobnicate" is not a command;`,
		"completion bash":              `"completion" is not a command;`,
		"token create bob ci":          "token create: --permissions is missing",
		"crs 25832 a b":                `"a" and "b" must be numbers`,
	} {
		refused(want, strings.Fields(line)...)
	}
}

// TestHelp: --help and -h print the help of each command, "cairn help" of a group too.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, c := range usageOf(t, "help") {
		words := strings.Fields(c.name)
		for _, args := range [][]string{append(words, "--help"), append(words, "x", "-h"), append([]string{"help"}, words...)} {
			if got := usageOf(t, args...); len(got) != 1 || got[0].synopsis != c.synopsis {
				t.Errorf("%v: %v, want %v", args, got, c)
			}
		}
	}
	c, rest, err := findCommand([]string{"user", "create", "x", "--display-name", "-h"})
	if err != nil || c.name != "user create" || len(rest) != 3 {
		t.Errorf("-h as the value of an option: %s with %q, %v", c.name, rest, err)
	}
	if got := usageOf(t, "user", "--help"); len(got) != 12 {
		t.Errorf("user --help: %v", got)
	}
	for _, args := range [][]string{{}, {"--help"}, {"-h"}, {"help"}} {
		if got := usageOf(t, args...); len(got) != len(commands()) {
			t.Errorf("%v: %d commands", args, len(got))
		}
	}
	for _, args := range [][]string{{"version"}, {"--version"}, {"-v"}} {
		if said, status := status(nil, "", args...); status != 0 || !strings.HasPrefix(said, "cairn "+version) {
			t.Errorf("%v: %d %s", args, status, said)
		}
	}
	help, _ := status(nil, "", "help")
	for line := range strings.Lines(help) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}

// TestDescribeCommit: the version names the commit that the program was built from.
func TestDescribeCommit(t *testing.T) {
	t.Parallel()
	setting := func(pairs ...string) *debug.BuildInfo {
		build := &debug.BuildInfo{}
		for i := 0; i < len(pairs); i += 2 {
			build.Settings = append(build.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return build
	}
	for want, build := range map[string]*debug.BuildInfo{
		"":                                   setting("GOOS", "linux"),
		" (commit 0123456789ab, 2026-01-31)": setting("vcs.revision", "0123456789abcdef", "vcs.time", "2026-01-31T10:00:00Z", "vcs.modified", "false"),
		" (commit 0123456789ab, 2026-01-31, with changes)": setting("vcs.revision", "0123456789abcdef", "vcs.time", "2026-01-31T10:00:00Z", "vcs.modified", "true"),
	} {
		if got := describeCommit(build); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if describeCommit(nil) != "" {
		t.Error("an unknown build")
	}
}

// TestNoDatabase: a command in another folder than the service's says so, with the folder that it looked in.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	said, code := status([]string{"CAIRN_STATE_DIR=" + dir}, "", "user", "list")
	if code != 1 || !strings.Contains(said, dir+" has no database, which `cairn serve` creates: type this in the folder of the service") {
		t.Errorf("%d %s", code, said)
	}
}
