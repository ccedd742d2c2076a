package main

import (
	"cmp"
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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A limit for the private server, an SQLSTATE, and names on disk.
const (
	serverLogLimit     = 4 << 20 // bytes, checked when a server is launched
	cannotConnectNow   = "57P03" // SQLSTATE: starting, recovering or shutting down
	serverSocketName   = ".s.PGSQL.5432"
	dataDirName        = "postgres"
	unfinishedPrefix   = "postgres.new-"          // of data directories that are not complete
	privateFallbackDir = "/var/lib/cairn-private" // see findCluster
)

// accessRules is pg_hba.conf. The superuser postgres is for maintenance by hand.
const accessRules = `# Written by Cairn at every start: changes here are lost.
local  cairn  cairn     peer  map=cairn
local  all    postgres  peer  map=cairn
`

// accessMap is pg_ident.conf, as a format for the name of the server's OS user. If Cairn does not
// run as root, it runs as this user.
const accessMap = `# Written by Cairn at every start: changes here are lost.
cairn  "%[1]s"  cairn
cairn  "root"   cairn
cairn  "%[1]s"  postgres
`

// privatePostgres is the running PostgreSQL of one state directory, with the lock that keeps a
// second service away. However Cairn ends, Linux shuts the server down.
//
// The server listens only on a socket in the data directory, which has mode 0700. Peer
// authentication admits the OS user of the server as any role, and root as role cairn. This role
// owns the database and is not a superuser.
type privatePostgres struct {
	cluster
	log       *slog.Logger
	lock      *os.File
	running   context.Context // stop ends it
	cancel    context.CancelFunc
	processes sync.WaitGroup // the server and supervise
	ended     chan struct{}  // closed when the server has ended
	exit      error          // how it ended
}

// lockStateDir creates the state directory and locks it for one service, until the file is closed.
func lockStateDir(stateDir string) (*os.File, error) {
	mkdirErr := os.MkdirAll(stateDir, 0o755)
	path := filepath.Join(stateDir, "lock")
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create and lock the state directory (set CAIRN_STATE_DIR to use another): %w",
			cmp.Or(mkdirErr, err))
	}

	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("another cairn uses the state directory %s; stop it, or set CAIRN_STATE_DIR "+
			"and CAIRN_LISTEN for this one: %w",
			stateDir, err)
	}
	return lock, nil
}

// unlockStateDir ends the lock of lockStateDir. A program that is being started has a copy of the
// open file for a moment, so closing the file alone may leave it locked.
func unlockStateDir(lock *os.File) error {
	err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
	return errors.Join(err, lock.Close())
}

// startPrivatePostgres locks the state directory, creates the cluster if it is missing, and starts
// the server. It waits until the server answers or ctx ends.
func startPrivatePostgres(
	ctx context.Context,
	stateDir string,
	log *slog.Logger,
) (*privatePostgres, error) {
	lock, err := lockStateDir(stateDir)
	if err != nil {
		return nil, err
	}

	c, err := findCluster(resolve(stateDir), privateFallbackDir)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = createCluster(ctx, resolve(stateDir))
	}
	if err != nil {
		unlockStateDir(lock)
		return nil, fmt.Errorf("find or create a private PostgreSQL: %w", err)
	}

	p := &privatePostgres{cluster: c, log: log, lock: lock}

	// The end of ctx does not end the server: it has to outlast the work that uses it.
	p.running, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := p.bringUp(ctx); err != nil {
		err = fmt.Errorf("start PostgreSQL in %s: %w", p.dataDir(), err)
		return nil, errors.Join(err, p.stop())
	}
	p.processes.Go(p.supervise)
	return p, nil
}

// supervise restarts the server when it ends, until stop.
func (p *privatePostgres) supervise() {
	for {
		<-p.ended
		if p.running.Err() != nil {
			return
		}

		p.log.Error("private PostgreSQL ended; restarting it",
			"directory", p.dataDir(),
			"error", p.exit)
		err := p.bringUp(p.running)
		if err != nil && p.running.Err() == nil {
			p.log.Error("private PostgreSQL not started", "error", err)
			pause(p.running, time.Second)
		}
	}
}

// stop ends the server by a fast shutdown, which closes its connections and writes a checkpoint. It
// kills a server that takes too long; the next start then recovers. Last, it releases the lock.
func (p *privatePostgres) stop() error {
	p.cancel()
	p.processes.Wait()
	return unlockStateDir(p.lock)
}

// bringUp launches the server and waits until it accepts a connection as role cairn. The server's
// OS user may plant symbolic links in the data directory; os.Root keeps root from following them.
func (p *privatePostgres) bringUp(ctx context.Context) error {
	folder, err := os.OpenRoot(p.folder)
	if err != nil {
		return err
	}
	defer folder.Close()

	data, err := folder.OpenRoot(dataDirName)
	if err != nil {
		return err
	}
	defer data.Close()

	dir, err := data.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()

	serverLog, err := folder.OpenFile("postgres.log", os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer serverLog.Close()

	err = p.awaitUnused(ctx, data, dir, serverLog)
	if err != nil {
		return err
	}

	// If an orphaned initdb still writes to one of these, the next start removes it.
	unfinished, _ := fs.Glob(folder.FS(), unfinishedPrefix+"*")
	for _, name := range unfinished {
		folder.RemoveAll(name)
	}

	err = p.launch(data, serverLog)
	if err != nil {
		return err
	}
	return p.awaitAnswer(ctx, dir, serverLog)
}

// awaitUnused waits until no server uses the data directory. Then it removes stale lock files,
// which might prevent a start. A server that Cairn launched holds a lock on its log until its last
// process ends. Any other has a socket in the directory, or its process id in a lock file.
func (p *privatePostgres) awaitUnused(ctx context.Context, data *os.Root, dir, serverLog *os.File) error {
	for waits := 0; ; waits++ {
		// The process id is negative in single-user mode.
		var pid int
		text, _ := data.ReadFile("postmaster.pid")
		fmt.Sscan(string(text), &pid)
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", max(pid, -pid)))
		isServer := strings.Contains(string(arguments), p.dataDir())

		lockErr := syscall.Flock(int(serverLog.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if lockErr == nil && !mayListen(dir) && !isServer {
			data.Remove("postmaster.pid")
			data.Remove(serverSocketName + ".lock")
			return nil
		}

		if ctx.Err() != nil {
			return fmt.Errorf("another server uses the data directory; stop it first: %w", ctx.Err())
		}
		if waits == 0 {
			p.log.Warn("private PostgreSQL waits for another server to end",
				"directory", p.dataDir(),
				"pid", pid)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// launch writes the access files and starts a server of the data directory's version. The server
// inherits the lock on its log.
func (p *privatePostgres) launch(data *os.Root, serverLog *os.File) error {
	version, err := data.ReadFile("PG_VERSION")
	if err != nil {
		return err
	}

	programs, err := findServerPrograms(strings.TrimSpace(string(version)))
	if err != nil {
		return err
	}

	info, err := serverLog.Stat()
	if err == nil && info.Size() > serverLogLimit {
		serverLog.Truncate(0)
	}

	// initdb has created the access files. Cairn overwrites them, so that they keep their owner.
	accounts := fmt.Appendf(nil, accessMap, p.account.name)
	err = errors.Join(serverLog.Chown(int(p.account.uid), -1),
		data.WriteFile("pg_hba.conf", []byte(accessRules), 0o600),
		data.WriteFile("pg_ident.conf", accounts, 0o600))
	if err != nil {
		return err
	}

	// Neither the operator's postgresql.conf nor ALTER SYSTEM can override the command line.
	cmd := p.account.command(p.running, p.dataDir(), filepath.Join(programs, "postgres"),
		"-D", p.dataDir(),
		"-k", ".", // the folder of the socket
		"-p", "5432",
		"-c", "listen_addresses=",
		"-c", "fsync=on",
		"-c", "jit=off",
		"-c", "max_parallel_workers_per_gather=0", // a search computes on one core, so that others find one
		"-c", "logging_collector=off",
		"-c", "log_min_messages=log", // Cairn logs the errors of its statements
		"-c", "log_checkpoints=off")
	cmd.Stdout = serverLog
	cmd.Stderr = serverLog

	const fastShutdown = syscall.SIGINT
	cmd.SysProcAttr.Pdeathsig = fastShutdown
	cmd.Cancel = func() error { return cmd.Process.Signal(fastShutdown) }
	cmd.WaitDelay = 30 * time.Second // then it is killed

	// Linux sends Pdeathsig when the thread ends that started the process, so the thread is kept.
	started := make(chan struct{})
	p.ended = make(chan struct{})
	p.processes.Go(func() {
		runtime.LockOSThread()
		p.exit = cmd.Start()
		close(started)
		if p.exit == nil {
			p.exit = cmd.Wait()
		}
		close(p.ended)
	})
	<-started // from now on the server has serverLog open
	return nil
}

// awaitAnswer waits until the server accepts a connection. If the server ends first, the error
// quotes the end of its log.
func (p *privatePostgres) awaitAnswer(ctx context.Context, dir, serverLog *os.File) error {
	config, err := privateConfig(dir)
	if err != nil {
		return err
	}

	for ; ; pause(ctx, 20*time.Millisecond) {
		conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
		if err == nil {
			p.log.Info("private PostgreSQL up",
				"directory", p.dataDir(),
				"os_user", p.account.name)
			return conn.Close(ctx)
		}

		refusal, refused := errors.AsType[*pgconn.PgError](err)
		isFinal := refused && refusal.Code != cannotConnectNow
		if ctx.Err() != nil || isFinal {
			return fmt.Errorf("connect: %w", err)
		}

		select {
		case <-p.ended:
			size, _ := serverLog.Seek(0, io.SeekEnd)
			tail, _ := io.ReadAll(io.NewSectionReader(serverLog, max(0, size-800), 800))
			return fmt.Errorf("the server of user %s ended early (%v): %s",
				p.account.name, p.exit, oneLine(tail))
		default:
		}
	}
}

// oneLine returns a program's output as one line, for an error message.
func oneLine(output []byte) string { return strings.Join(strings.Fields(string(output)), " ") }

// mayListen reports whether a process, perhaps in another container, listens on the socket in dir.
// It is false only if there is no such socket, or if the socket refuses connections.
func mayListen(dir *os.File) bool {
	socket := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), serverSocketName)
	conn, err := net.Dial("unix", socket)
	if err == nil {
		conn.Close()
	}

	isMissing := errors.Is(err, fs.ErrNotExist)
	return !isMissing && !errors.Is(err, syscall.ECONNREFUSED)
}

// privateConfig returns the settings that connect to the server of a data directory, as role cairn.
// The path of a socket has at most 107 bytes, so clients reach the socket through the descriptor of
// dir, which must stay open.
func privateConfig(dir *os.File) (*pgxpool.Config, error) {
	// pgx reads libpq's variables, which are for other servers. No keyword can override PGSERVICE.
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}

	return pgxpool.ParseConfig(fmt.Sprintf(
		"host=/proc/self/fd/%d port=5432 user=cairn dbname=cairn connect_timeout=5",
		dir.Fd()))
}

// findPrivatePostgres returns the settings that connect to the running server of a state directory,
// and a function to call after the last connection. It starts no server.
func findPrivatePostgres(stateDir string) (*pgxpool.Config, func(), error) {
	c, err := findCluster(resolve(stateDir), privateFallbackDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s has no database, which `cairn serve` creates: type this in the folder of the "+
			"service, or set CAIRN_STATE_DIR or CAIRN_DATABASE_URL as for the service",
			resolve(stateDir))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the private PostgreSQL: %w", err)
	}

	dir, err := os.Open(c.dataDir())
	if err != nil {
		return nil, nil, fmt.Errorf("open the data directory: %w", err)
	}
	config, err := privateConfig(dir)
	if err == nil && !mayListen(dir) {
		err = fmt.Errorf("the private PostgreSQL in %s does not answer: `cairn serve` must be running",
			c.dataDir())
	}
	if err != nil {
		dir.Close()
		return nil, nil, err
	}
	return config, func() { dir.Close() }, nil
}

// cluster is a PostgreSQL data directory and the account of its server.
type cluster struct {
	folder  string // absolute, without symbolic links; holds the data directory and the server's log
	account serverAccount
}

// dataDir returns the absolute path of the data directory.
func (c cluster) dataDir() string { return filepath.Join(c.folder, dataDirName) }

// findCluster returns the cluster in a state directory. If there is none, the error is
// fs.ErrNotExist. For root, it also looks in the directory's folder below fallback: version 0.2 put
// the cluster there if PostgreSQL's user could not reach the state directory.
func findCluster(stateDir, fallback string) (cluster, error) {
	c := cluster{folder: stateDir}
	former := fallbackFolder(fallback, stateDir)
	if os.Geteuid() == 0 && !isThere(c.dataDir()) && isThere(former) {
		c.folder = former
	}

	info, err := os.Lstat(c.dataDir())
	if err != nil {
		return cluster{}, fmt.Errorf("find data directory: %w", err)
	}

	// A symbolic link may lead root into another user's cluster.
	if !info.IsDir() {
		return cluster{}, fmt.Errorf("%s is not a directory", c.dataDir())
	}
	c.account, err = accountOf(osuser.LookupId(fmt.Sprint(ownerOf(info))))
	if err != nil {
		return cluster{}, err
	}

	self := uint32(os.Geteuid())
	isForeign := self != 0 && self != c.account.uid
	if isForeign || c.account.uid == 0 {
		return cluster{}, fmt.Errorf("%s belongs to user %s: Cairn must run as its owner or as root, "+
			"and PostgreSQL does not run as root",
			c.dataDir(), c.account.name)
	}
	return c, nil
}

// createCluster creates a cluster in the state directory. Its server runs as the OS user of Cairn.
// If that is root, it runs as the owner of the state directory or, if that is root too, as user
// postgres.
func createCluster(ctx context.Context, stateDir string) (cluster, error) {
	programs, err := findServerPrograms("")
	if err != nil {
		return cluster{}, err
	}
	info, err := os.Stat(stateDir)
	if err != nil {
		return cluster{}, err
	}

	uid := uint32(os.Geteuid())
	if uid == 0 {
		uid = ownerOf(info)
	}

	account, err := accountOf(osuser.LookupId(fmt.Sprint(uid)))
	if uid == 0 {
		account, err = accountOf(osuser.Lookup("postgres"))
	}
	if err != nil {
		return cluster{}, fmt.Errorf("PostgreSQL does not run as root (apt-get install postgresql): %w", err)
	}

	c := cluster{stateDir, account}
	err = c.create(ctx, programs)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("user %s, as whom PostgreSQL runs, cannot use %s; set CAIRN_STATE_DIR to a directory that "+
			"this user can reach, such as /var/lib/cairn: %w",
			account.name, stateDir, err)
	}
	return c, err
}

// create creates the data directory, with role and database. programs is the folder of PostgreSQL's
// programs. The directory gets its name last, so a directory of that name is complete. The error is
// fs.ErrPermission if the server's OS user cannot reach the folder.
func (c cluster) create(ctx context.Context, programs string) error {
	folder, err := os.OpenRoot(c.folder)
	if err != nil {
		return err
	}
	defer folder.Close()

	unfinished := unfinishedPrefix + rand.Text()
	defer folder.RemoveAll(unfinished)
	err = errors.Join(folder.Mkdir(unfinished, 0o700),
		folder.Lchown(unfinished, int(c.account.uid), -1))
	if err != nil {
		return err
	}

	path := filepath.Join(c.folder, unfinished)
	initdb := c.account.command(ctx, path, filepath.Join(programs, "initdb"),
		"-D", path,
		"--username=postgres",
		"--encoding=UTF8",
		"--locale=C",
		"--data-checksums",
		"--auth-local=peer",
		"--auth-host=reject")
	setup := c.account.command(ctx, path, filepath.Join(programs, "postgres"),
		"--single",
		"-D", path,
		"-c", "exit_on_error=on",
		"postgres")

	// Single-user mode reads one statement per line.
	setup.Stdin = strings.NewReader("CREATE ROLE cairn LOGIN NOSUPERUSER;\n" +
		"CREATE DATABASE cairn OWNER cairn;\n")

	for _, cmd := range []*exec.Cmd{initdb, setup} {
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd.Path, err, oneLine(output))
		}
	}
	return errors.Join(folder.Rename(unfinished, dataDirName), syncDir(c.folder))
}

// fallbackFolder returns the folder below fallback for a state directory. Its name has the end of
// the state directory's path, for people, and a hash of the path.
func fallbackFolder(fallback, stateDir string) string {
	readable := strings.ReplaceAll(stateDir, "/", "-")
	readable = strings.TrimLeft(readable[max(0, len(readable)-60):], "-")

	hash := sha256.Sum256([]byte(stateDir))
	return filepath.Join(fallback, fmt.Sprintf("%s-%.5x", readable, hash))
}

// serverAccount is the OS user that PostgreSQL's programs run as.
type serverAccount struct {
	name       string
	uid, gid   uint32
	credential *syscall.Credential // for root to switch to; nil if Cairn does not run as root
}

// accountOf turns the result of a user look-up into an account, without supplementary groups.
func accountOf(u *osuser.User, err error) (account serverAccount, _ error) {
	if err == nil {
		account.name = u.Username
		_, err = fmt.Sscan(u.Uid+" "+u.Gid, &account.uid, &account.gid)
	}
	if err != nil {
		return serverAccount{}, fmt.Errorf("look up an OS user, whose name peer authentication needs: %w", err)
	}

	if os.Geteuid() == 0 {
		account.credential = &syscall.Credential{
			Uid: account.uid,
			Gid: account.gid,
		}
	}
	return account, nil
}

// command prepares a program that runs as the account and without Cairn's environment. It has its
// own process group, so that Ctrl-C in a terminal reaches only Cairn.
func (a serverAccount) command(ctx context.Context, dir, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin",
		"LC_ALL=C",
		"TZ=UTC",
	}

	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true,
		Credential: a.credential,
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// ownerOf returns the id of the owner of a file or process.
func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// findServerPrograms returns the folder with initdb and postgres of a major version. For "" it
// takes the newest version, which must be at least 15. It searches the folders that match patterns
// or, without patterns, PATH and the folders of distributions.
func findServerPrograms(version string, patterns ...string) (dir string, err error) {
	if patterns == nil { // Debian, Red Hat, SUSE, Alpine
		patterns = append(filepath.SplitList(os.Getenv("PATH")),
			"/usr/lib/postgresql/*/bin",
			"/usr/pgsql-*/bin",
			"/usr/lib/postgresql*/bin",
			"/usr/libexec/postgresql*")
	}

	newest := 0
	found := "none"
	for _, pattern := range patterns {
		folders, _ := filepath.Glob(pattern) // a folder in PATH may be a malformed pattern
		for _, folder := range folders {
			programs, major := serverPrograms(folder)
			if version == strconv.Itoa(major) {
				return programs, nil
			}
			if major > newest {
				dir = programs
				newest = major
				found = fmt.Sprintf("%d in %s", major, programs)
			}
		}
	}

	if version != "" {
		return "", fmt.Errorf("the data directory needs the server programs of PostgreSQL %s (found: %s): "+
			"apt-get install postgresql-%[1]s",
			version, found)
	}
	if newest < 15 {
		return "", fmt.Errorf("the server programs of PostgreSQL 15 or later are not installed (found: %s): "+
			"apt-get install postgresql",
			found)
	}
	return dir, nil
}

// serverPrograms returns the folder of initdb and postgres without symbolic links, and their major
// version. The version is 0 if one of them is missing or, for root, does not belong to root.
func serverPrograms(folder string) (dir string, major int) {
	postgres, _ := filepath.EvalSymlinks(filepath.Join(folder, "postgres"))
	dir = filepath.Dir(postgres)
	for _, program := range []string{"postgres", "initdb"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || !filepath.IsAbs(dir) {
			return "", 0
		}
		if os.Geteuid() == 0 && ownerOf(info) != 0 {
			return "", 0
		}
	}

	// The version is like "15.13 (Debian 15.13-0+deb12u1)" or "18beta2".
	cmd := serverAccount{}.command(context.Background(), "/", postgres, "--version")
	output, _ := cmd.Output()
	fmt.Sscanf(string(output), "postgres (PostgreSQL) %d", &major)
	return dir, major
}
