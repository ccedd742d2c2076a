// Cairn gives a small team accounts, roles, announcements and a catalogue of its elevation files
// over HTTP. It is one program, and PostgreSQL is all it needs.
//
// It defends against clients that forge, replay or steal tokens, guess passwords, or ask for more
// than their roles allow. It defends against pages of other sites that use a signed-in browser, and
// against files and directories made to crash it, mislead it or lead it out of the dataset roots.
// It trusts the operator, the key file, the database, and the proxies that CAIRN_TRUSTED_PROXIES
// names.
//
// Read schema.sql first, then server.go (how a request is served, and who may call which route),
// auth_tokens.go, auth_principal.go, auth_access.go, rbac.go and auth.go. ARCHITECTURE.md gives the
// whole order.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	osuser "os/user"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// errUsage is in the error of a malformed command line. The exit status is 2.
var errUsage = errors.New("see: cairn help")

// errSettings is in the error of a setting that cannot be used. The exit status is 78, EX_CONFIG of
// sysexits.h. After it, systemd does not start the service again.
var errSettings = errors.New("correct it in the settings")

// main runs the program and is the only place that ends the process.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

	// A program that is not installed, as in a clone, does not use the packaged settings.
	settings := "/etc/cairn"
	program, err := os.Executable()
	if err != nil || !strings.HasPrefix(program, "/usr/") {
		settings = os.DevNull
	}

	err = runPackaged(ctx, settings, os.Args[1:], os.Environ())
	stop()
	if err != nil {
		fmt.Fprintln(terminalWriter{newLogWriter(os.Environ(), os.Stderr)}, "cairn:", err)
	}
	os.Exit(exitStatus(err))
}

// exitStatus returns the exit status of the program for the error of its command.
func exitStatus(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return 2
	case errors.Is(err, errFindings),
		errors.Is(err, errDifferent),
		errors.Is(err, errBreaks):
		return 3
	case errors.Is(err, errSettings):
		return 78
	}
	return 1
}

// runPackaged runs a command with the settings of the packaged service, if dir holds them. For root
// it becomes the service's user, the owner of the state directory, if the command needs that. The
// service itself gets its settings and user from systemd.
func runPackaged(ctx context.Context, dir string, args, env []string) error {
	c, _, err := findCommand(args)
	packaged := packagedEnvironment(dir)
	if err != nil || c.name == "serve" || packaged == nil {
		return run(ctx, args, env, os.Stdin, os.Stdout, os.Stderr)
	}

	// The environment of the command overrides the packaged settings.
	env = append(packaged, env...)
	cfg, err := loadConfig(env)
	if errors.Is(err, fs.ErrPermission) && c.need > needNothing {
		return fmt.Errorf("%w: run it as root: sudo cairn %s", err, strings.Join(args, " "))
	}

	// If the settings are wrong, the state directory is "", and run says what is wrong.
	info, err := os.Stat(cfg.stateDir)
	staysUser := c.need < needOwner || os.Geteuid() != 0
	if err != nil || staysUser || ownerOf(info) == 0 {
		return run(ctx, args, env, os.Stdin, os.Stdout, os.Stderr)
	}

	account, err := accountOf(osuser.LookupId(fmt.Sprint(ownerOf(info))))
	if err != nil {
		return err
	}
	err = becomeUser(account)
	if err != nil {
		return fmt.Errorf("become user %s: %w", account.name, err)
	}

	err = run(ctx, args, env, os.Stdin, os.Stdout, os.Stderr)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: for root this command runs as user %s, who needs access",
			err, account.name)
	}
	return err
}

// becomeUser gives up root for good. The process cannot become root again.
func becomeUser(account serverAccount) error {
	if err := syscall.Setgroups([]int{int(account.gid)}); err != nil {
		return err
	}
	if err := syscall.Setgid(int(account.gid)); err != nil {
		return err
	}
	return syscall.Setuid(int(account.uid))
}

// limitMemory sets Go's soft limit of memory, because each password hash leaves 19 MiB or more of
// garbage. The limit leaves room for one hash per core, for bodies, and for some thousand idle
// connections.
func limitMemory(cfg config) {
	cores := int64(runtime.GOMAXPROCS(0))
	hashes := cores * int64(cfg.argon.memory) << 10 // from KiB
	debug.SetMemoryLimit(90<<20 + maxBodies + hashes)
}

// run executes one command, until it is done or ctx ends.
func run(
	ctx context.Context,
	args, env []string,
	stdin io.Reader,
	stdout, stderr io.Writer,
) error {
	c, args, err := findCommand(args)
	if err != nil {
		return err
	}

	o := invocation{
		env:    env,
		stdin:  stdin,
		stdout: stdout,
		stderr: stderr,
	}
	o.names, o.options, err = c.parse(args)
	if err != nil {
		return err
	}

	o.cfg, err = loadConfig(env)
	if err != nil && c.need > needNothing {
		return fmt.Errorf("%w; %w", err, errSettings)
	}
	if c.name != "serve" && !o.cfg.rootsAreSet {
		o.cfg.adoptRoot()
	}
	o.log = newLogger(o.cfg, newLogWriter(env, stderr))

	if c.need < needDatabase {
		return c.do(ctx, o)
	}
	return connect(ctx, o.cfg, func(d *database) error {
		o.database = d
		o.db = d.pool
		return c.do(ctx, o)
	})
}

// serveCommand is "cairn serve".
func serveCommand(ctx context.Context, o invocation) error {
	for _, name := range unknownSettings(o.env) {
		o.log.Warn("unknown setting", "name", name)
	}

	// A file system that hangs must not keep the service from starting.
	go func() {
		if err := o.cfg.missingRoots(); err != nil {
			o.log.Warn("cannot look at a dataset root", "error", err)
		}
	}()

	limitMemory(o.cfg)
	return serve(ctx, o.cfg, o.log, o.stdout, defaultOptions())
}

// newLogger returns a logger that writes to w with the format and the level of the settings.
func newLogger(cfg config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.logLevel}
	isText := cfg.logFormat == "text"
	if isText || cfg.logFormat == "" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(terminalWriter{w}, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// lineLevel finds the level in a line of the log, which is JSON or text.
var lineLevel = regexp.MustCompile(`^(?:\{"time":"[^"]*","level":"|time=\S+ level=)(DEBUG|INFO|WARN)`)

// journalWriter writes each line with the priority of its level: see sd-daemon(3).
type journalWriter struct{ io.Writer }

// Write implements io.Writer. Each write is one line. A line without a level is an error.
func (w journalWriter) Write(line []byte) (int, error) {
	priority := "<3>"
	if m := lineLevel.FindSubmatch(line); m != nil {
		priority = map[string]string{
			"DEBUG": "<7>",
			"INFO":  "<6>",
			"WARN":  "<4>",
		}[string(m[1])]
	}

	_, err := w.Writer.Write(append([]byte(priority), line...))
	if err != nil {
		return 0, err
	}
	return len(line), nil
}

// newLogWriter returns w, as a journalWriter if w is the stream to the journal that systemd set up
// ($JOURNAL_STREAM).
func newLogWriter(env []string, w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	info, err := f.Stat()
	if err != nil {
		return w
	}

	id := info.Sys().(*syscall.Stat_t)
	stream := fmt.Sprintf("%d:%d", id.Dev, id.Ino)
	if lookup(env, "JOURNAL_STREAM") == stream {
		return journalWriter{w}
	}
	return w
}

// isTerminal reports whether the stream is a terminal, or a character device other than /dev/null.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}

	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}

// options are the properties of a service that no setting changes. Tests change them.
type options struct {
	tuning
	started func(*server) // gets the service before it serves
}

// defaultOptions returns the options of "cairn serve".
func defaultOptions() options {
	return options{
		tuning: tuning{
			now:        time.Now,
			patience:   30 * time.Second,
			leaseTTL:   10 * time.Second,
			batchSize:  1000,
			listLines:  2_000_000,
			heightTime: 10 * time.Minute,
			workers:    3,
			beforeRead: func(string) {},
		},
		started: func(*server) {},
	}
}

// newServer returns a service that does not run yet. breached and certificate may be nil.
func newServer(
	core *core,
	tuning tuning,
	breached *breachedPasswords,
	certificate *certificate,
	hangups <-chan os.Signal,
) *server {
	s := &server{core: core}
	s.accounts = newAccounts(core, breached)
	s.announcements = &announcements{core}
	s.catalogue = newCatalogue(core, s.accounts)

	// Instances that share a database tell each other apart by a random name.
	instance := rand.Text()
	s.analyzer = newAnalyzer(core, s.catalogue, instance, tuning)
	s.console = newConsole(core, s.accounts)
	s.operations = newOperations(core, s.accounts, s.analyzer,
		instance, tuning.leaseTTL,
		certificate, hangups)

	s.buildMux()
	return s
}

// serve runs the service until ctx ends. Then it accepts no new request, finishes the running ones,
// and stores or gives back its analysis work. It prints its address on stdout when it is ready.
func serve(
	ctx context.Context,
	cfg config,
	log *slog.Logger,
	stdout io.Writer,
	opts options,
) error {
	if err := cfg.checkSecretsOutsideRoots(); err != nil {
		return err
	}
	breached, err := openBreachedPasswords(cfg.breachedFile)
	if err != nil {
		return fmt.Errorf("CAIRN_BREACHED_PASSWORDS: %w", err)
	}

	// Without a handler, a SIGHUP would end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)

	return withOwnDatabase(ctx, cfg, log, func(d *database) error {
		if err := migrate(ctx, d.pool, log); err != nil {
			return err
		}
		if err := cfg.keepRoot(ctx, d.pool); err != nil {
			return err
		}

		// The first start creates the key file, if it lies in the state directory.
		isNew := !isThere(cfg.keysPath())
		keys, err := loadKeys(cfg.keysPath(), cfg.credentialsDir, cfg.keysFile == "")
		if err != nil {
			return err
		}
		if isNew {
			log.Info("key file created", "path", cfg.keysPath())
		}

		core := newCore(cfg, log, d, keys, opts.tuning)
		var pair *certificate
		if cfg.tlsCert != "" {
			pair, err = loadCertificate(cfg, log)
			if err != nil {
				return err
			}
			core.isHTTPS = true
		}
		s := newServer(core, opts.tuning, breached, pair, hangups)
		opts.started(s)

		// From here on other instances know of this one.
		o := s.operations
		err = succeedInstance(ctx, d.probes, cfg.stateDir, o.instance)
		if err != nil {
			return err
		}
		err = auditKeys(ctx, d.pool, keys)
		if err != nil {
			return err
		}
		err = noteInstance(ctx, d.probes, o.instance, keys, o.leaseTTL)
		if err != nil {
			return err
		}
		err = s.accounts.ensureAdministrator(ctx)
		if err != nil {
			return err
		}

		listener, err := cfg.supervisor.listen(cfg.listen)
		if err != nil {
			return err
		}
		o.warnOfExposure(listener.Addr())
		return s.run(ctx, listener, stdout)
	})
}

// newWebServer returns the HTTP server, with its limits.
func (s *server) newWebServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      maxWait + time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          32,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
		},

		// Broken connections are common, and not errors of the service.
		ErrorLog: slog.NewLogLogger(s.core.log.Handler(), slog.LevelDebug),

		// ServeHTTP answers OPTIONS * itself.
		DisableGeneralOptionsHandler: true,
	}
}

// drain waits until none of the connections is open any more, or ctx ends.
func drain(ctx context.Context, open *sync.Map) {
	for conn := range open.Range {
		_, isOpen := open.Load(conn)
		for isOpen && ctx.Err() == nil {
			pause(ctx, 10*time.Millisecond)
			_, isOpen = open.Load(conn)
		}
	}
}

// run serves on the socket and works on analyses until ctx ends.
func (s *server) run(ctx context.Context, socket net.Listener, stdout io.Writer) error {
	listener := s.operations.limitConnections(socket)
	web := s.newWebServer()

	var open sync.Map // connections that are new or have a running request
	web.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew || state == http.StateActive {
			open.Store(conn, nil)
		} else {
			open.Delete(conn)
		}
		if state == http.StateClosed {
			listener.released(conn.RemoteAddr())
		}
	}

	// The background work outlasts the requests, which may wait for it.
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.core.stopping = ctx

	var background sync.WaitGroup
	background.Go(func() { s.analyzer.run(working) })
	background.Go(func() { s.core.database.watch(working, s.core.log) })
	background.Go(func() { s.operations.keepLease(working) })
	background.Go(func() { s.operations.runMaintenance(working) })
	// The watchdog ends before the others: a service that stops answers no request.
	background.Go(func() { s.operations.keepWatchdog(ctx, listener.Addr()) })

	serve := web.Serve
	if s.operations.certificate != nil {
		web.TLSConfig = &tls.Config{GetCertificate: s.operations.certificate.current}
		serve = func(l net.Listener) error { return web.ServeTLS(l, "", "") }
	}

	served := make(chan error, 1)
	go func() { served <- serve(listener) }()
	s.operations.notify("READY=1")
	fmt.Fprintf(stdout, "cairn: listening on %s://%s\n", s.core.scheme(), listener.Addr())

	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		s.core.log.Info("stopping")
		s.operations.notify("STOPPING=1")
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()

		// Shutdown drops requests whose headers are still being read, so wait for these first.
		listener.Close()
		<-served // wait for Serve to end, or Shutdown would return an error
		web.SetKeepAlivesEnabled(false)

		draining, cancelDrain := context.WithTimeout(shutdown, 2*time.Second)
		defer cancelDrain()
		drain(draining, &open)

		err = web.Shutdown(shutdown)
		if err != nil {
			err = errors.Join(err, web.Close())
			err = fmt.Errorf("requests were cut off: %w", err)
		}
	}

	stop()
	stopWork()
	background.Wait()

	ending := context.WithoutCancel(ctx)
	endLease := func(ctx context.Context) error {
		return instanceStopped(ctx, s.core.database.probes, s.operations.instance)
	}
	s.operations.runBounded(ending, "counted failures not stored", 2*time.Second, s.accounts.flushTallies)
	s.operations.runBounded(ending, "lease not ended", 2*time.Second, endLease)
	return err
}

// withOwnDatabase runs do on the database that the settings name, or on the private one, which it
// starts and stops. It locks the state directory against a second service.
func withOwnDatabase(
	ctx context.Context,
	cfg config,
	log *slog.Logger,
	do func(*database) error,
) error {
	// The start of the private server locks the state directory as well.
	if cfg.databaseURL == "" {
		private, err := startPrivatePostgres(ctx, cfg.stateDir, log)
		if err != nil {
			return err
		}
		return errors.Join(connect(ctx, cfg, do), private.stop())
	}

	lock, err := lockStateDir(cfg.stateDir)
	if err != nil {
		return err
	}
	defer unlockStateDir(lock)
	return connect(ctx, cfg, do)
}

// connect runs do on the database that the settings name, or on the private one if that runs.
func connect(ctx context.Context, cfg config, do func(*database) error) error {
	var poolConfig *pgxpool.Config
	var err error
	done := func() {} // to be called after the last connection

	if cfg.databaseURL != "" {
		poolConfig, err = databaseConfig(cfg.databaseURL)
	} else {
		poolConfig, done, err = findPrivatePostgres(cfg.stateDir)
	}
	if err != nil {
		return err
	}
	defer done()

	d, err := openDatabase(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer d.close()
	return do(d)
}
