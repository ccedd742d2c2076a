package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How patient we are with the private server, how long its log may grow, and names on disk.
const (
	serverTries        = 10 // at start
	serverPause        = time.Second
	serverMayRefuse    = 5 * time.Second  // an adopted one, until it has reloaded pg_ident.conf
	serverStopPatience = 30 * time.Second // with SIGINT, then with SIGQUIT, of which it ends within 5 s
	serverLogLimit     = 4 << 20          // bytes, looked at when a server is launched
	cannotConnectNow   = "57P03"          // SQLSTATE: starting, recovering or shutting down
	serverSocketName   = ".s.PGSQL.5432"
	dataDirName        = "postgres"
	unfinishedPrefix   = "postgres.new-"          // data directories that are being made
	privateFallbackDir = "/var/lib/cairn-private" // for root's clusters whose server may not reach the state directory; not the package's
)

// accessRules is pg_hba.conf: the service's role has its own database, the superuser is for maintenance, no one else.
const accessRules = `# Written by Cairn at every start: changes here are lost.
local  cairn  cairn     peer  map=cairn
local  all    postgres  peer  map=cairn
`

// accessMap is pg_ident.conf, to be filled in with the server's OS user, as whom or as root Cairn runs.
const accessMap = `# Written by Cairn at every start: changes here are lost.
cairn  "%[1]s"  cairn
cairn  "root"   cairn
cairn  "%[1]s"  postgres
`

// privatePostgres is the running server of one state directory, a child of ours or adopted from a Cairn that
// was killed, and the lock that keeps a second service away. It needs Linux's /proc.
//
// A socket in the data directory, which is 0700, is all the server listens on. Peer authentication lets in the
// OS user that runs it, and root as the owner of the database, who is no superuser.
type privatePostgres struct {
	cluster
	log         *slog.Logger
	lock        *os.File
	data        *os.Root // the data directory
	dialDir     *os.File // the same, for privateConfig
	serverLog   *os.File
	process     *os.Process // the server; a pidfd: no signal ever reaches a later process of the same id
	cancel      context.CancelFunc
	supervision sync.WaitGroup
}

// errNotUp: the server ended before it answered, or another answers in its place. One just ending looks like either.
var errNotUp = errors.New("the server is not up")

// lockStateDir makes the state directory where it is missing and keeps a second service away until the file is closed.
func lockStateDir(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(stateDir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another cairn uses the state directory %s, or it cannot be locked: %w", stateDir, err)
	}
	return lock, nil
}

// startPrivatePostgres locks the state directory, makes the data directory in it where that is missing, starts the
// server or adopts the one that still runs, and waits until it answers or ctx ends. From then on the server is
// kept running until stop.
func startPrivatePostgres(ctx context.Context, stateDir string, log *slog.Logger) (*privatePostgres, error) {
	lock, err := lockStateDir(stateDir)
	if err != nil {
		return nil, err
	}
	stateDir = resolve(stateDir)
	c, err := findCluster(stateDir, privateFallbackDir)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = createCluster(ctx, stateDir, privateFallbackDir)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("find or make a private PostgreSQL: %w", err)
	}
	if c.folder != stateDir {
		log.Info("the private PostgreSQL lies outside the state directory, which its OS user may not reach",
			"directory", c.folder, "state_dir", stateDir, "os_user", c.account.name)
	}
	supervision, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &privatePostgres{cluster: c, log: log, lock: lock, cancel: cancel}
	if err = p.prepare(); err == nil {
		err = p.bringUp(ctx)
	}
	for try := 1; try < serverTries && errors.Is(err, errNotUp); try++ {
		pause(ctx, serverPause)
		err = p.bringUp(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL in %s: %w", p.dataDir(), err), p.stop())
	}
	p.supervision.Go(func() { p.supervise(supervision) })
	return p, nil
}

// prepare opens the data directory, removes what interrupted attempts at one left, and writes the access files.
// The server's user may own the folder: os.Root keeps a symbolic link planted there from leading root elsewhere.
func (p *privatePostgres) prepare() error {
	folder, err := os.OpenRoot(p.folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	if p.data, err = folder.OpenRoot(dataDirName); err != nil {
		return err
	}
	if p.dialDir, err = p.data.Open("."); err != nil {
		return err
	}
	left, _ := fs.Glob(folder.FS(), unfinishedPrefix+"*")
	for _, name := range left {
		folder.RemoveAll(name) // where an orphaned initdb is still at work this is left to the next start
	}
	// A pipe to us would end with us, so the server writes its messages to a file.
	if p.serverLog, err = folder.OpenFile("postgres.log", os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return err
	}
	// The access files exist since initdb, and being written in place stay the property of the server's user.
	return errors.Join(p.serverLog.Chown(int(p.account.uid), -1),
		p.data.WriteFile("pg_hba.conf", []byte(accessRules), 0o600),
		p.data.WriteFile("pg_ident.conf", fmt.Appendf(nil, accessMap, p.account.name), 0o600))
}

// supervise starts the server again whenever it ends, until ctx is done.
func (p *privatePostgres) supervise(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, serverPause) {
		if p.runs() {
			continue
		}
		p.log.Error("the private PostgreSQL has ended and is started again", "server_log", p.serverLog.Name())
		if err := p.bringUp(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("the private PostgreSQL could not be started", "error", err)
		}
	}
}

// runs reports whether the server still runs: it is polled for, since only its parent could wait for it.
func (p *privatePostgres) runs() bool {
	if p.isPostmaster(p.process.Pid) {
		return true
	}
	// A child of ours has no arguments before it has begun, and when it has ended stays a zombie until this.
	ended, err := syscall.Wait4(p.process.Pid, nil, syscall.WNOHANG, nil)
	return err == nil && ended == 0
}

// bringUp adopts or launches a server and waits until it accepts a connection as role cairn.
func (p *privatePostgres) bringUp(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	process, err := p.findPostmaster()
	if process != nil {
		p.log.Info("a private PostgreSQL still runs and is adopted", "directory", p.dataDir(), "pid", process.Pid)
		process.Signal(syscall.SIGHUP) // it may have to read new access files
	} else if err == nil {
		process, err = p.launch()
	}
	if err != nil {
		return err
	}
	p.process = process
	config, err := privateConfig(p.dialDir)
	if err != nil {
		return err
	}
	for began, wait := time.Now(), 5*time.Millisecond; ; wait = min(2*wait, time.Second) {
		conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
		refusal, refused := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil:
			conn.Close(ctx)
			p.log.Info("the private PostgreSQL answers", "directory", p.dataDir(), "os_user", p.account.name, "pid", process.Pid)
			return nil
		case refused && refusal.Code != cannotConnectNow && time.Since(began) > serverMayRefuse:
			return fmt.Errorf("connect: %w", err)
		case !p.runs():
			size, _ := p.serverLog.Seek(0, io.SeekEnd)
			tail, _ := io.ReadAll(io.NewSectionReader(p.serverLog, max(0, size-800), 800))
			return fmt.Errorf("%w: it ended before it answered: %s", errNotUp, oneLine(tail))
		case ctx.Err() != nil:
			return fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
		pause(ctx, wait)
	}
}

// launch starts a server of the data directory's version, which outlives a Cairn that is killed.
func (p *privatePostgres) launch() (*os.Process, error) {
	version, err := p.data.ReadFile("PG_VERSION")
	if err != nil {
		return nil, err
	}
	programs, err := findServerPrograms(strings.TrimSpace(string(version)))
	if err != nil {
		return nil, err
	}
	if size, err := p.serverLog.Seek(0, io.SeekEnd); err == nil && size > serverLogLimit {
		p.serverLog.Truncate(0)
	}
	// Neither postgresql.conf, which is the operator's, nor ALTER SYSTEM can change these.
	cmd := p.account.command(context.Background(), p.dataDir(), filepath.Join(programs, "postgres"),
		"-D", p.dataDir(), "-k", ".", "-p", "5432",
		"-c", "listen_addresses=", "-c", "fsync=on", "-c", "jit=off",
		"-c", "client_connection_check_interval=1s", // ends what a killed Cairn had asked for
		"-c", "log_min_messages=log", "-c", "log_checkpoints=off") // errors are the client's to log
	cmd.Stdout, cmd.Stderr = p.serverLog, p.serverLog
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("as user %s: %w", p.account.name, err)
	}
	return cmd.Process, nil
}

// findPostmaster returns the running server of this data directory, or nil. Lock files that a crash left may be empty,
// or name another process by now or a dead one that nobody has waited for; PostgreSQL would not start: they are removed.
// What survives of the old server keeps a new one away, by shared memory whose key is the data directory's inode.
func (p *privatePostgres) findPostmaster() (*os.Process, error) {
	for _, name := range []string{"postmaster.pid", serverSocketName + ".lock"} {
		text, err := p.data.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		line, _, _ := strings.Cut(string(text), "\n")
		pid, _ := strconv.Atoi(strings.TrimPrefix(line, "-")) // "-" is single-user mode
		process, err := os.FindProcess(pid)                   // the handle first, then what it is a handle of
		if err == nil && p.isPostmaster(pid) {
			return process, nil
		}
		if mayListen(p.dialDir) {
			return nil, fmt.Errorf("%w: another server answers in the data directory: end it first", errNotUp)
		}
		if err := p.data.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, nil
}

// mayListen is false when certainly no process, of whatever container and however busy, listens on a directory's socket.
func mayListen(dir *os.File) bool {
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), serverSocketName))
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED)
}

// oneLine turns a program's output into a part of an error message.
func oneLine(output []byte) string { return strings.Join(strings.Fields(string(output)), " ") }

// stop ends the server with the service: a fast shutdown, which closes connections and writes a checkpoint; if that
// takes too long an immediate one, after which the next start recovers. Then it gives up the lock.
func (p *privatePostgres) stop() error {
	p.cancel()
	p.supervision.Wait()
	defer p.lock.Close() // last
	defer p.dialDir.Close()
	defer p.serverLog.Close()
	if p.data != nil {
		defer p.data.Close()
	}
	if p.process == nil {
		return nil
	}
	for _, shutdown := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		p.process.Signal(shutdown)
		for began := time.Now(); time.Since(began) < serverStopPatience; time.Sleep(10 * time.Millisecond) {
			if !p.runs() {
				return nil
			}
		}
	}
	return fmt.Errorf("the private PostgreSQL, process %d, does not end", p.process.Pid)
}

// privateConfig returns how to connect as role cairn to database cairn of the server whose data directory is open as
// dir, good while it is: a socket's path holds 107 bytes at most, so it is dialled through the descriptor.
func privateConfig(dir *os.File) (*pgxpool.Config, error) {
	// libpq's environment is meant for other servers. pgx reads it unasked, and no keyword undoes PGSERVICE.
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
	return pgxpool.ParseConfig(fmt.Sprintf("host=/proc/self/fd/%d port=5432 user=cairn dbname=cairn connect_timeout=5", dir.Fd()))
}

// findPrivatePostgres returns how to connect to the running server of a state directory, and what closes the
// directory that it is dialled through once no connection is made any more. It starts nothing.
func findPrivatePostgres(stateDir string) (*pgxpool.Config, func(), error) {
	c, err := findCluster(resolve(stateDir), privateFallbackDir)
	var dir *os.File
	if err == nil {
		dir, err = os.Open(c.dataDir())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the private PostgreSQL of %s, which `cairn serve` makes and runs: %w", stateDir, err)
	}
	config, err := privateConfig(dir)
	if err == nil && !mayListen(dir) {
		err = fmt.Errorf("the private PostgreSQL in %s does not answer: `cairn serve` must be running", c.dataDir())
	}
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	return config, func() { dir.Close() }, nil
}

// cluster is a PostgreSQL data directory on disk and who its server runs as.
type cluster struct {
	folder  string // absolute, without symbolic links; holds the data directory and the server's log
	account serverAccount
}

// dataDir is the absolute path of the data directory.
func (c cluster) dataDir() string { return filepath.Join(c.folder, dataDirName) }

// isPostmaster reports whether a process is a server of this data directory: its OS user runs it, with the
// argument that says so. To read that takes no privilege, and a process that has ended has no arguments.
func (c cluster) isPostmaster(pid int) bool {
	proc := fmt.Sprintf("/proc/%d", pid)
	info, err := os.Stat(proc)
	if err != nil || ownerOf(info) != c.account.uid {
		return false
	}
	text, err := os.ReadFile(proc + "/cmdline")
	program, arguments, _ := strings.Cut(string(text), "\x00")
	return err == nil && filepath.Base(program) == "postgres" && strings.Contains("\x00"+arguments, "\x00-D\x00"+c.dataDir()+"\x00")
}

// findCluster looks for the cluster of a state directory, there and, as root, below fallback; fs.ErrNotExist: none. What
// exists is the one, also where the choice would now be another: a new and empty one would look like lost data.
func findCluster(stateDir, fallback string) (cluster, error) {
	c := cluster{folder: stateDir}
	info, err := os.Lstat(c.dataDir())
	if errors.Is(err, fs.ErrNotExist) && os.Geteuid() == 0 {
		c.folder = fallbackFolder(fallback, stateDir)
		info, err = os.Lstat(c.dataDir())
	}
	if err != nil {
		return cluster{}, fmt.Errorf("find data directory: %w", err)
	}
	if !info.IsDir() { // a link could lead root into the cluster of somebody else
		return cluster{}, fmt.Errorf("%s is not a directory", c.dataDir())
	}
	if c.account, err = accountOf(osuser.LookupId(fmt.Sprint(ownerOf(info)))); err != nil {
		return cluster{}, err
	}
	if self := uint32(os.Geteuid()); c.account.uid == 0 || self != 0 && self != c.account.uid {
		return cluster{}, fmt.Errorf("%s belongs to user %s: Cairn has to run as its owner or as root, and PostgreSQL does not run as root", c.dataDir(), c.account.name)
	}
	return c, nil
}

// createCluster makes a cluster in the state directory, whose server runs as whoever runs Cairn, or for root as the
// directory's owner or where that is root too as user postgres. Where that user may not reach the directory it goes
// into a folder below fallback.
func createCluster(ctx context.Context, stateDir, fallback string) (cluster, error) {
	uid := uint32(os.Geteuid())
	if uid == 0 {
		info, err := os.Stat(stateDir)
		if err != nil {
			return cluster{}, err
		}
		uid = ownerOf(info)
	}
	account, err := accountOf(osuser.LookupId(fmt.Sprint(uid)))
	if uid == 0 {
		account, err = accountOf(osuser.Lookup("postgres"))
	}
	if err != nil {
		return cluster{}, fmt.Errorf("find an OS user for PostgreSQL, which does not run as root (apt-get install postgresql): %w", err)
	}
	c := cluster{stateDir, account}
	if err = c.create(ctx); !errors.Is(err, fs.ErrPermission) {
		return c, err
	}
	c.folder = fallbackFolder(fallback, stateDir)
	for _, dir := range []string{fallback, c.folder} {
		if os.Mkdir(dir, 0o755) == nil {
			os.Chmod(dir, 0o755) // whatever the umask
		}
	}
	if err = c.create(ctx); err != nil {
		err = fmt.Errorf("in %s, since user %s may not reach %s: %w", c.folder, account.name, stateDir, err)
	}
	return c, err
}

// create makes the data directory with role and database. Until all is done it has another name, so that what an
// interruption leaves is never mistaken for it. fs.ErrPermission says that the server's user may not reach it.
func (c cluster) create(ctx context.Context) error {
	programs, err := findServerPrograms("")
	if err != nil {
		return err
	}
	folder, err := os.OpenRoot(c.folder)
	if err != nil {
		return err
	}
	defer folder.Close()
	unfinished := unfinishedPrefix + rand.Text()
	defer folder.RemoveAll(unfinished)
	if err := errors.Join(folder.Mkdir(unfinished, 0o700), folder.Lchown(unfinished, int(c.account.uid), -1)); err != nil {
		return err
	}
	path := filepath.Join(c.folder, unfinished)
	initdb := c.account.command(ctx, path, filepath.Join(programs, "initdb"), "-D", path, "--username=postgres",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--auth-local=peer", "--auth-host=reject")
	setup := c.account.command(ctx, path, filepath.Join(programs, "postgres"), "--single", "-D", path, "-c", "exit_on_error=on", "postgres")
	setup.Stdin = strings.NewReader("CREATE ROLE cairn LOGIN NOSUPERUSER;\nCREATE DATABASE cairn OWNER cairn;\n") // one a line
	for _, cmd := range []*exec.Cmd{initdb, setup} {
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd.Path, err, oneLine(output))
		}
	}
	return errors.Join(folder.Rename(unfinished, dataDirName), syncDir(c.folder))
}

// fallbackFolder names the folder below fallback for the cluster of a state directory.
func fallbackFolder(fallback, stateDir string) string {
	readable := strings.ReplaceAll(stateDir, "/", "-")
	readable = strings.TrimLeft(readable[max(0, len(readable)-60):], "-")
	return filepath.Join(fallback, fmt.Sprintf("%s-%.5x", readable, sha256.Sum256([]byte(stateDir))))
}

// serverAccount is the OS user that PostgreSQL's programs run as.
type serverAccount struct {
	name       string
	uid, gid   uint32
	credential *syscall.Credential // what root switches to; nil for any other user
}

// accountOf returns the account of an OS user that was looked up. It leaves out further groups: a server needs no more
// than its data directory.
func accountOf(u *osuser.User, err error) (account serverAccount, _ error) {
	if err == nil {
		account.name = u.Username
		_, err = fmt.Sscan(u.Uid+" "+u.Gid, &account.uid, &account.gid)
	}
	if err != nil {
		return serverAccount{}, fmt.Errorf("look up an OS user, whose name peer authentication needs: %w", err)
	}
	if os.Geteuid() == 0 {
		account.credential = &syscall.Credential{Uid: account.uid, Gid: account.gid}
	}
	return account, nil
}

// command prepares a program that runs as the account, with nothing of our environment and in its own process
// group: a terminal's Ctrl-C is for Cairn.
func (a serverAccount) command(ctx context.Context, dir, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// ownerOf is the id of the user that a file or process belongs to.
func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// findServerPrograms returns the folder with initdb and postgres of a major version, or for "" of the newest, which
// has to be at least 15. It looks in folders of these patterns; without any, in PATH and where distributions have them.
func findServerPrograms(version string, patterns ...string) (dir string, err error) {
	if patterns == nil { // Debian, Red Hat, SUSE, Alpine
		patterns = append(filepath.SplitList(os.Getenv("PATH")),
			"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/lib/postgresql*/bin", "/usr/libexec/postgresql*")
	}
	newest, found := 0, "none"
	for _, pattern := range patterns {
		folders, _ := filepath.Glob(pattern) // a folder in PATH may look like a malformed pattern
		for _, folder := range folders {
			programs, major := serverPrograms(folder)
			if version == strconv.Itoa(major) {
				return programs, nil
			}
			if major > newest {
				dir, newest, found = programs, major, fmt.Sprintf("%d in %s", major, programs)
			}
		}
	}
	if version != "" {
		return "", fmt.Errorf("the data directory needs the server programs of PostgreSQL %s (found: %s): apt-get install postgresql-%[1]s", version, found)
	}
	if newest < 15 {
		return "", fmt.Errorf("the server programs of PostgreSQL 15 or later are not installed (found: %s): apt-get install postgresql", found)
	}
	return dir, nil
}

// serverPrograms returns where initdb and postgres of a folder really lie, and their major version, or 0 where they are
// not both there. Root runs programs of root's only.
func serverPrograms(folder string) (dir string, major int) {
	postgres, _ := filepath.EvalSymlinks(filepath.Join(folder, "postgres"))
	dir = filepath.Dir(postgres)
	for _, program := range []string{"postgres", "initdb"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || !filepath.IsAbs(dir) || os.Geteuid() == 0 && ownerOf(info) != 0 {
			return "", 0
		}
	}
	output, _ := serverAccount{}.command(context.Background(), "/", postgres, "--version").Output()
	fmt.Sscanf(string(output), "postgres (PostgreSQL) %d", &major) // 15.13 (Debian 15.13-0+deb12u1), 18beta2
	return dir, major
}
