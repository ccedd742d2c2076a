// Cairn gives a small team accounts, roles, announcements and a catalogue of its elevation files over
// HTTP. It is one program, and PostgreSQL is all it needs.
//
// What it defends against: clients that forge, replay or steal tokens, guess passwords, or ask for
// more than their roles allow; pages of other sites that use a signed-in browser; files and
// directories made to crash, mislead or leave the dataset roots. What it trusts: the operator, the
// key file, the database, and the proxies that CAIRN_TRUSTED_PROXIES names.
//
// Read schema.sql first, then server.go (every route, and who may call it), token.go, auth.go and
// rbac.go, then what interests you. ARCHITECTURE.md leads through it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// version is set by the linker (make build).
const version = "0.1.0"

// usage is what "cairn help" prints.
const usage = `usage: cairn COMMAND [ARGUMENTS]

  serve                            run the service
  migrate                          bring the database's schema up to date
  user create NAME [--role ROLE] [--email ADDRESS] [--display-name TEXT]
                                   make a user; the password is read from the
                                   terminal, or from the first line of input
  dataset create NAME PATH         register a directory of elevation files
  routes                           print every route and who may call it
  bbox [--root DIR] PATH...        print the extent of elevation files, a JSON
                                   object a line; needs no database
  config check                     print the settings in force
  version                          print the version

Settings are environment variables; the README has the table.
`

// errUsage is that the command line is not one of those in usage: exit status 2.
var errUsage = errors.New("see: cairn help")

// main is the only place that ends the process.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "cairn:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "cairn:", err)
		os.Exit(1)
	}
}

// run is the program: it carries out one command until that is done or ctx ends.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	command := strings.Join(args[:min(2, len(args))], " ")
	switch {
	case len(args) == 0, args[0] == "help", args[0] == "-h", args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return nil
	case args[0] == "version" && len(args) == 1:
		fmt.Fprintln(stdout, "cairn", version)
		return nil
	case args[0] == "routes" && len(args) == 1:
		return printRoutes(stdout)
	case args[0] == "bbox":
		return printExtents(ctx, args[1:], stdout, stderr)
	}
	cfg, err := loadConfig(env)
	if err != nil {
		return err
	}
	log := newLogger(cfg, stderr)
	switch {
	case command == "config check" && len(args) == 2:
		return checkConfig(env, stdout)
	case args[0] == "serve" && len(args) == 1:
		for _, name := range unknownSettings(env) {
			log.Warn("there is no such setting", "name", name)
		}
		return serve(ctx, cfg, log, stdout, func(*server) {})
	case args[0] == "migrate" && len(args) == 1:
		return withDatabase(ctx, cfg, func(pool *pgxpool.Pool) error { return migrate(ctx, pool, log) })
	case command == "user create":
		return withDatabase(ctx, cfg, func(pool *pgxpool.Pool) error {
			return createUserCommand(ctx, cfg, pool, args[2:], stdin, stdout, stderr)
		})
	case command == "dataset create" && len(args) == 4:
		return withDatabase(ctx, cfg, func(pool *pgxpool.Pool) error {
			return createDatasetCommand(ctx, cfg, pool, args[2], args[3], stdout)
		})
	}
	return fmt.Errorf("%q is no command: %w", strings.Join(args, " "), errUsage)
}

// newLogger logs to w in the form and from the level that are set.
func newLogger(cfg config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.logLevel}
	if cfg.logFormat == "text" || (cfg.logFormat == "" && isTerminal(w)) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// isTerminal says whether the reader or writer is a terminal (or another character device).
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// newServer puts the service together. Nothing runs yet.
func newServer(cfg config, log *slog.Logger, pool *pgxpool.Pool, keys *keyring) *server {
	s := &server{
		cfg:    cfg,
		log:    log,
		db:     pool,
		keys:   keys,
		hasher: newPasswordHasher(),
		now:    time.Now,
	}
	s.analyzer = newAnalyzer(pool, cfg, log, time.Now)
	s.handle()
	return s
}

// serve runs the service until ctx ends: then no new request is taken, those under way are finished,
// and what was begun of analyses is stored or given back. The line on stdout that names the address
// comes once it answers. adjust sees the server before it runs; tests set clocks and hooks there.
func serve(ctx context.Context, cfg config, log *slog.Logger, stdout io.Writer, adjust func(*server)) (err error) {
	if err := cfg.checkPlaces(); err != nil {
		return err
	}
	var poolConfig *pgxpool.Config
	if cfg.databaseURL != "" {
		poolConfig, err = databaseConfig(cfg.databaseURL)
	} else {
		var private *privatePostgres
		if private, err = startPrivatePostgres(ctx, cfg.stateDir, log); err != nil {
			return err
		}
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			err = errors.Join(err, private.stop(stopCtx))
		}()
		poolConfig, err = private.poolConfig()
	}
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool, log); err != nil {
		return err
	}
	keys, err := loadKeys(cfg.keysPath(), cfg.credentialsDir, cfg.keysFile == "")
	if err != nil {
		return err
	}
	s := newServer(cfg, log, pool, keys)
	adjust(s)
	if err := s.ensureAdministrator(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cfg.listen)
	if err != nil {
		return err
	}
	if address := listener.Addr().(*net.TCPAddr); cfg.registration == registrationOpen && !address.IP.IsLoopback() {
		log.Warn("anyone who reaches this address may register; CAIRN_REGISTRATION=approval or closed changes that", "address", address.String())
	}
	return s.run(ctx, listener, stdout)
}

// run serves on the listener and works on analyses until ctx ends.
func (s *server) run(ctx context.Context, listener net.Listener, stdout io.Writer) error {
	web := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      maxWait + time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // what clients do to their connections
	}
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	s.stopping = ctx
	work := make(chan struct{})
	go func() {
		defer close(work)
		s.analyzer.run(working)
	}()
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		listen(working, s.db.Config().ConnConfig, s.log, workChannel, s.analyzer.wakeAll)
	}()
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	fmt.Fprintf(stdout, "cairn: listening on http://%s\n", listener.Addr())

	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		s.log.Info("stopping")
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err = web.Shutdown(shutdown); err != nil {
			err = fmt.Errorf("requests were cut off: %w", errors.Join(err, web.Close()))
		}
	}
	stopWork()
	<-work
	<-listening
	return err
}

// withDatabase runs a command on the database that the service uses. It starts none.
func withDatabase(ctx context.Context, cfg config, do func(*pgxpool.Pool) error) error {
	var poolConfig *pgxpool.Config
	var err error
	if cfg.databaseURL != "" {
		poolConfig, err = databaseConfig(cfg.databaseURL)
	} else {
		var done func()
		if poolConfig, done, err = findPrivatePostgres(cfg.stateDir); err == nil {
			defer done()
		}
	}
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(pool)
}

// createUserCommand is "cairn user create": the operator makes a user with a password and one role.
func createUserCommand(ctx context.Context, cfg config, pool *pgxpool.Pool, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("cairn user create", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	role := flags.String("role", memberRole, "")
	email := flags.String("email", "", "")
	displayName := flags.String("display-name", "", "")
	if len(args) == 0 {
		return fmt.Errorf("user create needs a name: %w", errUsage)
	}
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 {
		return fmt.Errorf("user create %s: %w", strings.Join(args, " "), errUsage)
	}
	n := newUser{displayName: *displayName, status: statusActive, role: *role}
	if *email == "" {
		email = nil
	}
	var v invalid
	n.username, n.email = checkIdentity(&v, args[0], email, *displayName)
	if err := v.err(); err != nil {
		return err
	}
	password, err := readPassword(stdin, stderr)
	if err != nil {
		return err
	}
	s := &server{cfg: cfg, hasher: newPasswordHasher()}
	s.checkPassword(&v, "password", password)
	if err := v.err(); err != nil {
		return err
	}
	hash, err := s.hasher.hash(ctx, operator(), password)
	if err != nil {
		return err
	}
	n.passwordHash = &hash
	var created user
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockAccess); err != nil {
			return err
		}
		created, err = createUser(ctx, tx, n)
		if err == nil && len(created.Roles) == 0 {
			err = fmt.Errorf("there is no role %q", *role)
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "made user %s with role %s\n", created.Username, *role)
	return nil
}

// createDatasetCommand is "cairn dataset create", with the checks that the API makes.
func createDatasetCommand(ctx context.Context, cfg config, pool *pgxpool.Pool, name, path string, stdout io.Writer) error {
	place, err := cfg.checkDataset(name, path, "")
	if err != nil {
		return err
	}
	d, err := createDataset(ctx, pool, name, place.stored, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "made dataset %d, %s, of %s\n", d.ID, d.Name, filepath.Join(place.root, place.below))
	return nil
}

// readPassword reads a password twice without echo from a terminal, else once from the first line of
// the input.
func readPassword(stdin io.Reader, stderr io.Writer) (string, error) {
	lines := bufio.NewReader(stdin)
	ask := func(prompt string) (string, error) {
		fmt.Fprint(stderr, prompt)
		line, err := lines.ReadString('\n')
		fmt.Fprint(stderr, "\n")
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	restore, err := echoOff(stdin)
	if err != nil { // no terminal
		line, err := lines.ReadString('\n')
		if err != nil && (err != io.EOF || line == "") {
			return "", fmt.Errorf("read password: %w", err)
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	defer restore()
	first, err := ask("Password: ")
	if err != nil {
		return "", err
	}
	second, err := ask("Again: ")
	if err != nil {
		return "", err
	}
	if first != second {
		return "", errors.New("the passwords differ")
	}
	return first, nil
}

// echoOff stops the terminal from showing what is typed, by stty(1). It is an error where stdin is no
// terminal.
func echoOff(stdin io.Reader) (restore func(), err error) {
	stty := func(setting string) error {
		c := exec.Command("stty", setting)
		c.Stdin = stdin
		return c.Run()
	}
	if !isTerminal(stdin) {
		return nil, errors.New("no terminal")
	}
	if err := stty("-echo"); err != nil {
		return nil, err
	}
	return func() { stty("echo") }, nil
}

// printRoutes is "cairn routes".
func printRoutes(stdout io.Writer) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, rt := range (&server{}).routes() {
		fmt.Fprintf(table, "%s\t%s\t%s\n", rt.method, rt.path, rt.who)
	}
	return table.Flush()
}

// printExtents is "cairn bbox": the row of each file, directories walked, paths relative to --root or
// else as given. The files are not followed out of the root, else out of the directory given.
func printExtents(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("cairn bbox", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	top := flags.String("root", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() == 0 {
		return fmt.Errorf("bbox needs a path: %w", errUsage)
	}
	out := bufio.NewWriter(stdout)
	failed := 0
	for _, path := range flags.Args() {
		if err := printPath(ctx, *top, path, out, stderr); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Fprintln(stderr, "cairn:", err)
			failed++
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d paths could not be read", failed, flags.NArg())
	}
	return nil
}

// printPath prints the rows of one file, or of all files below a directory.
func printPath(ctx context.Context, top, path string, out, stderr io.Writer) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	below, shown := ".", "" // the path below top, and what is printed before paths below top
	switch {
	case top != "":
		absTop, topErr := filepath.Abs(top)
		absPath, pathErr := filepath.Abs(path)
		if err := errors.Join(topErr, pathErr); err != nil {
			return err
		}
		below, err = filepath.Rel(absTop, absPath)
		if err != nil || !filepath.IsLocal(below) {
			return fmt.Errorf("%s does not lie below %s", path, top)
		}
	case info.IsDir():
		top, shown = path, encodeName(strings.TrimSuffix(path, "/"))+"/"
	default:
		top, below = filepath.Split(path)
		shown = encodeName(top)
		top = filepath.Join(top, ".")
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return err
	}
	reader := &fileReader{root: root, now: time.Now}
	defer reader.close()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	print := func(e entry) error {
		m, found := reader.read(e.Path)
		if !found {
			return nil
		}
		m.Path = shown + m.Path
		return encoder.Encode(m)
	}
	if !info.IsDir() {
		return print(entry{Path: encodeName(below)})
	}
	dir, err := root.OpenRoot(below)
	if err != nil {
		return err
	}
	defer dir.Close()
	prefix := ""
	if below != "." {
		prefix = encodeName(below) + "/"
	}
	w := walker{
		file: print,
		warn: func(dir string, err error) error {
			fmt.Fprintf(stderr, "cairn: %s%s: %s\n", shown, dir, reasonOf(err))
			return nil
		},
	}
	return w.walk(ctx, dir, prefix)
}
