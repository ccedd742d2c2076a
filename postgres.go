package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How patient we are with the private server, and how long its log may grow.
const (
	serverLogLimit      = 4 << 20 // bytes
	serverLaunches      = 6       // at start; with pauses that double these take about 3 s
	serverFirstPause    = 100 * time.Millisecond
	serverLongestPause  = 10 * time.Second
	serverSettledAfter  = time.Minute            // one that lived this long is started again after the first pause
	serverMayRefuse     = 5 * time.Second        // an adopted one, until it has reloaded pg_ident.conf
	serverAdoptedPoll   = 200 * time.Millisecond // only a parent can wait for a process
	serverKillPatience  = 10 * time.Second       // it ends within 5 s of SIGQUIT
	serverSocketName    = ".s.PGSQL.5432"
	serverNotYetOrStops = "57P03" // SQLSTATE cannot_connect_now
)

// accessRules is pg_hba.conf: the service's role may use its own database, the
// superuser is there for maintenance. What no line names is refused.
const accessRules = `# Written by Cairn at every start: changes here are lost.
local  cairn  cairn     peer  map=cairn
local  all    postgres  peer  map=cairn
`

// serverArguments are the settings that neither postgresql.conf, which is the
// operator's, nor ALTER SYSTEM can change. log_min_messages=log leaves out of the
// server's log what the client is told anyway.
func serverArguments(dataDir string) []string {
	return []string{"-D", dataDir, "-k", ".", "-p", "5432",
		"-c", "listen_addresses=",
		"-c", "fsync=on",
		"-c", "jit=off",
		"-c", "client_connection_check_interval=1s", // ends what a killed Cairn had asked for
		"-c", "cluster_name=cairn",
		"-c", "logging_collector=off",
		"-c", "log_destination=stderr",
		"-c", "log_min_messages=log",
		"-c", "log_checkpoints=off",
	}
}

// privatePostgres is the running server of one state directory, a child of ours
// or adopted from a Cairn that was killed, and the lock that keeps a second
// service away. It needs Linux's /proc.
//
// The data directory is 0700, and a socket in it is all the server listens on.
// Peer authentication lets in the OS users that run Cairn and the server, and
// root, as the owner of the database, who is no superuser.
type privatePostgres struct {
	cluster
	log        *slog.Logger
	lock       *os.File
	data       *os.Root // the data directory
	dialDir    *os.File // the same, for privateConfig
	serverLog  *os.File
	logStart   int64       // where in serverLog the present server began
	server     *postmaster // belongs to supervise until supervised is closed
	cancel     context.CancelFunc
	supervised chan struct{}
}

// startPrivatePostgres locks the state directory (made if missing), makes the
// data directory on the first start, starts the server or adopts the one that
// still runs, and waits until it answers; ctx bounds that. From then on the
// server is kept running until stop.
func startPrivatePostgres(ctx context.Context, stateDir string, log *slog.Logger) (*privatePostgres, error) {
	lock, err := lockStateDir(stateDir)
	if err != nil {
		return nil, err
	}
	p := &privatePostgres{log: log, lock: lock}
	if err := p.start(ctx, stateDir); err != nil {
		if p.server != nil {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverKillPatience)
			defer cancel()
			err = errors.Join(err, p.server.stop(stopping))
		}
		p.closeFiles()
		return nil, err
	}
	supervision, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel, p.supervised = cancel, make(chan struct{})
	go p.supervise(supervision)
	return p, nil
}

// start does the work of startPrivatePostgres between lock and supervision. On
// an error its caller stops the server, if there is one, and closes the files.
func (p *privatePostgres) start(ctx context.Context, stateDir string) error {
	stateDir, err := resolveStateDir(stateDir)
	if err != nil {
		return err
	}
	found := false
	if p.cluster, found, err = findCluster(stateDir, privateFallbackDir); err != nil {
		return err
	}
	if !found {
		if p.cluster, err = createCluster(ctx, stateDir, privateFallbackDir); err != nil {
			return err
		}
	}
	if p.folder != stateDir {
		p.log.Info("the private PostgreSQL lies outside the state directory, which its OS user may not reach",
			"directory", p.folder, "state_dir", stateDir, "os_user", p.account.name)
	}
	if err := p.openFiles(); err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	if err := p.writeAccessFiles(); err != nil {
		return err
	}
	pause := serverFirstPause
	for range serverLaunches {
		// One that was shutting down when it was adopted, or met the last processes
		// of a killed one, is worth another try.
		if err = p.bringUp(ctx); !errors.Is(err, errServerEnded) && !errors.Is(err, errServerUnknown) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause *= 2
	}
	return err
}

// stop ends the server with the service: a fast shutdown, which closes
// connections and writes a checkpoint; once ctx has ended an immediate one, after
// which the next start recovers. Then the state directory is free for another.
func (p *privatePostgres) stop(ctx context.Context) error {
	p.cancel()
	<-p.supervised
	err := p.server.stop(ctx)
	p.closeFiles()
	return err
}

// closeFiles closes what is open, the lock last.
func (p *privatePostgres) closeFiles() {
	if p.data != nil {
		p.data.Close()
	}
	for _, f := range []*os.File{p.serverLog, p.dialDir, p.lock} {
		if f != nil {
			f.Close()
		}
	}
}

// poolConfig returns a new configuration that connects to the server as role
// cairn to database cairn. It is good until stop.
func (p *privatePostgres) poolConfig() (*pgxpool.Config, error) {
	return privateConfig(p.dialDir)
}

// privateConfig connects to the server whose data directory is open as dir. A
// socket's path holds 107 bytes at most, so it is dialled through the directory's
// descriptor, which has to stay open as long as the configuration is used.
//
// The environment of libpq (PGHOST, PGOPTIONS, PGSERVICE, …) is meant for other
// servers. pgx reads it unasked, so it is removed from this process.
func privateConfig(dir *os.File) (*pgxpool.Config, error) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf(
		"host=/proc/self/fd/%d port=5432 user=cairn dbname=cairn application_name=cairn connect_timeout=5", dir.Fd()))
	if err != nil {
		return nil, fmt.Errorf("configure private PostgreSQL: %w", err)
	}
	return config, nil
}

// findPrivatePostgres returns how to connect to the running server of a state
// directory, and what closes the directory that it is dialled through once no
// connection is made any more. It starts nothing.
func findPrivatePostgres(stateDir string) (*pgxpool.Config, func(), error) {
	resolved, err := resolveStateDir(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("there is no state directory %s: `cairn serve` makes it and must be running", stateDir)
	}
	if err != nil {
		return nil, nil, err
	}
	c, found, err := findCluster(resolved, privateFallbackDir)
	if err != nil {
		return nil, nil, err
	}
	if !found {
		return nil, nil, fmt.Errorf("there is no private PostgreSQL in %s or %s: `cairn serve` makes it and must be running",
			resolved, fallbackFolder(privateFallbackDir, resolved))
	}
	dir, err := os.Open(c.dataDir())
	if err != nil {
		return nil, nil, fmt.Errorf("open data directory: %w", err)
	}
	config, err := privateConfig(dir)
	if err == nil && !serverAnswers(dir) {
		err = fmt.Errorf("the private PostgreSQL in %s does not answer: `cairn serve` must be running", c.dataDir())
	}
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	return config, func() { dir.Close() }, nil
}

// serverAnswers reports whether a process, of whatever container, listens on the
// socket in the data directory.
func serverAnswers(dir *os.File) bool {
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), serverSocketName))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// supervise starts the server again whenever it ends, until ctx is done, and
// keeps its log small.
func (p *privatePostgres) supervise(ctx context.Context) {
	defer close(p.supervised)
	everyMinute := time.NewTicker(time.Minute)
	defer everyMinute.Stop()
	pause := serverFirstPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-everyMinute.C:
			p.limitServerLog()
			continue
		case <-p.server.done:
		}
		if time.Since(p.server.began) > serverSettledAfter {
			pause = serverFirstPause
		}
		p.log.Error("the private PostgreSQL has ended and is started again", "pause", pause, "server_log", p.serverLog.Name())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, serverLongestPause)
		if err := p.bringUp(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("the private PostgreSQL could not be started", "err", err)
		}
	}
}

// errServerEnded says that a server went away before it answered.
var errServerEnded = errors.New("the private PostgreSQL ended before it answered")

// errServerUnknown says that something answers which is not, or no longer, a
// process we know for the server: one that is ending looks like that for a moment.
var errServerUnknown = errors.New("another server answers in the data directory")

// bringUp adopts or launches a server and waits until it answers.
func (p *privatePostgres) bringUp(ctx context.Context) error {
	process, err := p.findPostmaster()
	if err != nil {
		return err
	}
	if process != nil {
		p.adopt(process)
	} else if err := p.launch(ctx); err != nil {
		return err
	}
	if err := p.waitReady(ctx); err != nil {
		return err
	}
	p.log.Info("the private PostgreSQL answers", "directory", p.dataDir(), "os_user", p.account.name,
		"pid", p.server.process.Pid)
	return nil
}

// launch starts a server of the data directory's version. Nothing ties its life
// to ours: it outlives a Cairn that is killed.
func (p *privatePostgres) launch(ctx context.Context) error {
	version, err := p.data.ReadFile("PG_VERSION")
	if err != nil {
		return fmt.Errorf("%s is no complete data directory: %w", p.dataDir(), err)
	}
	programs, err := findServerPrograms(strings.TrimSpace(string(version)))
	if err != nil {
		return err
	}
	p.limitServerLog()
	p.logStart, _ = p.serverLog.Seek(0, io.SeekEnd)
	cmd := p.account.command(context.WithoutCancel(ctx), p.dataDir(), filepath.Join(programs, "postgres"), serverArguments(p.dataDir())...)
	cmd.Stdout, cmd.Stderr = p.serverLog, p.serverLog
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL in %s as user %s: %w", p.dataDir(), p.account.name, err)
	}
	server := &postmaster{process: cmd.Process, began: time.Now(), done: make(chan struct{})}
	p.server = server
	go func() {
		defer close(server.done)
		_ = cmd.Wait() // its log says how it ended
	}()
	return nil
}

// adopt takes over a server that another Cairn launched, and has it read its
// access files again, which may be new.
func (p *privatePostgres) adopt(process *os.Process) {
	p.log.Info("a private PostgreSQL still runs and is adopted", "directory", p.dataDir(), "pid", process.Pid)
	p.logStart, _ = p.serverLog.Seek(0, io.SeekEnd)
	server := &postmaster{process: process, began: time.Now(), done: make(chan struct{})}
	p.server = server
	if err := process.Signal(syscall.SIGHUP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.log.Error("reload the private PostgreSQL", "err", err)
	}
	go func() {
		defer close(server.done)
		for !hasEnded(process) && p.isPostmaster(process.Pid) {
			time.Sleep(serverAdoptedPoll)
		}
	}()
}

// waitReady returns when the server accepts a connection as role cairn.
func (p *privatePostgres) waitReady(ctx context.Context) error {
	config, err := p.poolConfig()
	if err != nil {
		return err
	}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
		if err == nil {
			return conn.Close(ctx)
		}
		refusal, refused := errors.AsType[*pgconn.PgError](err)
		if refused && refusal.Code != serverNotYetOrStops && time.Since(p.server.began) > serverMayRefuse {
			return fmt.Errorf("connect to the private PostgreSQL: %w", err)
		}
		select {
		case <-p.server.done:
			return fmt.Errorf("%w: %s", errServerEnded, p.serverLogTail())
		case <-ctx.Done():
			return fmt.Errorf("wait for the private PostgreSQL: %w (%w)", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// findPostmaster returns the running server of this data directory, or nil when
// there is none. A postmaster.pid that a crash left behind may by now name some
// other process, or a dead one that nobody has waited for; PostgreSQL would take
// either for a server and refuse to start, so the file is removed. When the
// process is gone the file stays: PostgreSQL then looks, by the shared memory that
// it names, for survivors of the old server.
func (p *privatePostgres) findPostmaster() (*os.Process, error) {
	text, err := p.data.ReadFile("postmaster.pid")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find the private PostgreSQL: %w", err)
	}
	stale := err == nil
	line, _, _ := strings.Cut(string(text), "\n")
	if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
		process, err := os.FindProcess(pid) // the handle first, then what it is a handle of
		if err == nil && p.isPostmaster(pid) {
			return process, nil
		}
		stale = err == nil && !hasEnded(process)
	}
	if serverAnswers(p.dialDir) {
		return nil, fmt.Errorf("%w %s: end it first", errServerUnknown, p.dataDir())
	}
	if !stale {
		return nil, nil
	}
	p.log.Warn("postmaster.pid names no server of this data directory and is removed", "directory", p.dataDir(), "pid", line)
	for _, name := range []string{"postmaster.pid", serverSocketName + ".lock"} {
		if err := p.data.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove stale %s: %w", name, err)
		}
	}
	return nil, nil
}

// isPostmaster reports whether a process is a server of this data directory: its
// OS user runs it, with the arguments that launch gives. Of all that /proc tells,
// this needs no privilege even where root lacks some, as in a container. A
// process that has ended but was not waited for has no arguments.
func (c cluster) isPostmaster(pid int) bool {
	proc := fmt.Sprintf("/proc/%d", pid)
	info, err := os.Stat(proc)
	if err != nil || ownerOf(info) != c.account.uid {
		return false
	}
	text, err := os.ReadFile(proc + "/cmdline")
	program, arguments, _ := strings.Cut(string(text), "\x00")
	return err == nil && filepath.Base(program) == "postgres" && strings.HasPrefix(arguments, "-D\x00"+c.dataDir()+"\x00")
}

// postmaster is a running server.
type postmaster struct {
	process *os.Process // a pidfd: no signal ever reaches a later process of the same id
	began   time.Time
	done    chan struct{} // closed when it has ended
}

// stop asks for a fast shutdown, and once ctx has ended for an immediate one.
func (m *postmaster) stop(ctx context.Context) error {
	if err := m.process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the private PostgreSQL: %w", err)
	}
	select {
	case <-m.done:
		return nil
	case <-ctx.Done():
	}
	if err := m.process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the private PostgreSQL: %w", err)
	}
	select {
	case <-m.done:
		return nil
	case <-time.After(serverKillPatience):
		return fmt.Errorf("the private PostgreSQL, process %d, does not end", m.process.Pid)
	}
}

// hasEnded reports whether a process is gone for good.
func hasEnded(process *os.Process) bool {
	return errors.Is(process.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// openFiles opens the data directory and the file beside it that the server
// writes its messages to: a pipe to us would end with us. It removes what
// interrupted attempts at a data directory left, which harms nobody.
func (p *privatePostgres) openFiles() error {
	folder, err := os.OpenRoot(p.folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	if p.data, err = folder.OpenRoot(filepath.Base(p.dataDir())); err != nil {
		return err
	}
	if p.dialDir, err = p.data.Open("."); err != nil {
		return err
	}
	if p.serverLog, err = openOwned(folder, "postgres.log", os.O_RDWR|os.O_APPEND, p.account.uid, p.account.gid); err != nil {
		return err
	}
	entries, err := fs.ReadDir(folder.FS(), ".")
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), unfinishedPrefix) {
			err = errors.Join(err, folder.RemoveAll(entry.Name()))
		}
	}
	if err != nil {
		p.log.Warn("an unfinished data directory could not be removed", "err", err)
	}
	return nil
}

// limitServerLog empties the server's log when it is too long. The server
// appends, so it goes on at the new end.
func (p *privatePostgres) limitServerLog() {
	info, err := p.serverLog.Stat()
	if err == nil && info.Size() > serverLogLimit {
		err = p.serverLog.Truncate(0)
		p.logStart = 0
	}
	if err != nil {
		p.log.Error("limit the server's log", "err", err)
	}
}

// serverLogTail is the end of what the present server has logged, for an error.
func (p *privatePostgres) serverLogTail() string {
	const longest = 800
	text, err := io.ReadAll(io.NewSectionReader(p.serverLog, p.logStart, serverLogLimit))
	if err != nil {
		return err.Error()
	}
	return oneLine(text[max(0, len(text)-longest):])
}

// writeAccessFiles writes pg_hba.conf and pg_ident.conf where they differ. The
// database's owner is whoever runs Cairn now, who runs the server, and root,
// whose subcommands are to work on the service of any user.
func (p *privatePostgres) writeAccessFiles() error {
	self, err := lookupAccount(uint32(os.Geteuid()))
	if err != nil {
		return err
	}
	users := "# Written by Cairn at every start: changes here are lost.\n"
	names := []string{self.name, p.account.name, "root"}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		users += fmt.Sprintf("cairn  \"%s\"  cairn\n", name)
	}
	users += fmt.Sprintf("cairn  \"%s\"  postgres\n", p.account.name)
	for name, content := range map[string]string{"pg_hba.conf": accessRules, "pg_ident.conf": users} {
		if err := p.replaceDataFile(name, content); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// replaceDataFile gives a file of the data directory this content, in one step.
func (p *privatePostgres) replaceDataFile(name, content string) error {
	if present, err := p.data.ReadFile(name); err == nil && string(present) == content {
		return nil
	}
	f, err := openOwned(p.data, name+".cairn-new", os.O_WRONLY|os.O_TRUNC, p.account.uid, p.account.gid)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return p.data.Rename(name+".cairn-new", name)
}
