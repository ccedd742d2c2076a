package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// privateFallbackDir is where root puts the cluster of a state directory that
// the server's user may not reach.
const privateFallbackDir = "/var/lib/cairn"

// unfinishedPrefix begins the name of a data directory that is being made.
const unfinishedPrefix = "postgres.new-"

// firstSetup runs once, in single-user mode, before the server ever listens. A
// statement is a line.
const firstSetup = `CREATE ROLE cairn LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
CREATE DATABASE cairn OWNER cairn;
`

// cluster is a PostgreSQL data directory on disk and who its server runs as.
type cluster struct {
	folder  string // absolute; holds the data directory and the server's log
	account serverAccount
}

// dataDir is the absolute path of the data directory.
func (c cluster) dataDir() string { return filepath.Join(c.folder, "postgres") }

// findCluster looks for the cluster of a state directory, there and, as root,
// below fallback. One that exists is the one, also where the choice would now be
// another: a new and empty one would look like lost data.
func findCluster(stateDir, fallback string) (c cluster, found bool, err error) {
	c.folder = stateDir
	info, err := os.Lstat(c.dataDir())
	if errors.Is(err, fs.ErrNotExist) && os.Geteuid() == 0 {
		c.folder = fallbackFolder(fallback, stateDir)
		info, err = os.Lstat(c.dataDir())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return cluster{}, false, nil
	}
	if err != nil {
		return cluster{}, false, fmt.Errorf("find data directory: %w", err)
	}
	if !info.IsDir() { // a link could lead root into the cluster of somebody else
		return cluster{}, false, fmt.Errorf("%s is not a directory", c.dataDir())
	}
	if c.account, err = lookupAccount(ownerOf(info)); err != nil {
		return cluster{}, false, err
	}
	switch self := uint32(os.Geteuid()); {
	case c.account.uid == 0:
		return cluster{}, false, fmt.Errorf("%s belongs to root, and PostgreSQL does not run as root", c.dataDir())
	case self != 0 && self != c.account.uid:
		return cluster{}, false, fmt.Errorf("%s belongs to user %s: run Cairn as that user or as root", c.dataDir(), c.account.name)
	}
	return c, true, nil
}

// createCluster makes a data directory with role and database. Until all is done
// it has another name, so that what an interruption leaves is never mistaken for it.
func createCluster(ctx context.Context, stateDir, fallback string) (cluster, error) {
	programs, err := findServerPrograms("")
	if err != nil {
		return cluster{}, err
	}
	c, err := placeCluster(ctx, stateDir, fallback, programs)
	if err != nil {
		return cluster{}, err
	}
	folder, err := os.OpenRoot(c.folder)
	if err != nil {
		return cluster{}, fmt.Errorf("make data directory: %w", err)
	}
	defer folder.Close()
	unfinished := unfinishedPrefix + rand.Text()
	if err := folder.Mkdir(unfinished, 0o700); err != nil {
		return cluster{}, fmt.Errorf("make data directory: %w", err)
	}
	defer folder.RemoveAll(unfinished)
	if c.account.credential != nil {
		if err := folder.Lchown(unfinished, int(c.account.uid), int(c.account.gid)); err != nil {
			return cluster{}, fmt.Errorf("make data directory: %w", err)
		}
	}
	path := filepath.Join(c.folder, unfinished)
	initdb := c.account.command(ctx, path, filepath.Join(programs, "initdb"), "-D", path, "--username=postgres",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--auth-local=peer", "--auth-host=reject")
	if output, err := initdb.CombinedOutput(); err != nil {
		return cluster{}, fmt.Errorf("run initdb: %w: %s", err, oneLine(output))
	}
	setup := c.account.command(ctx, path, filepath.Join(programs, "postgres"), "--single", "-D", path, "-c", "exit_on_error=on", "postgres")
	setup.Stdin = strings.NewReader(firstSetup)
	if output, err := setup.CombinedOutput(); err != nil {
		return cluster{}, fmt.Errorf("make role and database: %w: %s", err, oneLine(output))
	}
	if err := folder.Rename(unfinished, filepath.Base(c.dataDir())); err != nil {
		return cluster{}, fmt.Errorf("finish data directory: %w", err)
	}
	dir, err := folder.Open(".")
	if err != nil {
		return cluster{}, fmt.Errorf("finish data directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return cluster{}, fmt.Errorf("finish data directory: %w", err)
	}
	return c, nil
}

// oneLine turns a program's output into a part of an error message.
func oneLine(output []byte) string {
	return strings.Join(strings.Fields(string(output)), " ")
}

// placeCluster says where a new cluster goes and who its server runs as: in the
// state directory, as whoever runs Cairn, or for root as the directory's owner or
// where that is root too as user postgres. Where that user may not reach the state
// directory it goes into a folder below fallback.
func placeCluster(ctx context.Context, stateDir, fallback, programs string) (cluster, error) {
	if os.Geteuid() != 0 {
		account, err := lookupAccount(uint32(os.Geteuid()))
		return cluster{stateDir, account}, err
	}
	info, err := os.Stat(stateDir)
	if err != nil {
		return cluster{}, fmt.Errorf("read state directory: %w", err)
	}
	var account serverAccount
	if uid := ownerOf(info); uid != 0 {
		account, err = lookupAccount(uid)
	} else if postgres, lookupErr := osuser.Lookup("postgres"); lookupErr == nil {
		account, err = accountOf(postgres)
	} else {
		err = fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres: apt-get install postgresql (%w)", lookupErr)
	}
	if err != nil {
		return cluster{}, err
	}
	if err := account.reaches(ctx, stateDir, programs); err == nil {
		return cluster{stateDir, account}, nil
	} else if !errors.Is(err, fs.ErrPermission) {
		return cluster{}, fmt.Errorf("enter %s as user %s: %w", stateDir, account.name, err)
	}
	folder := fallbackFolder(fallback, stateDir)
	for _, dir := range []string{fallback, folder} {
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = os.Chmod(dir, 0o755) // whatever the umask
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return cluster{}, fmt.Errorf("make a folder for the private PostgreSQL: %w", err)
		}
	}
	if err := account.reaches(ctx, folder, programs); err != nil {
		return cluster{}, fmt.Errorf("user %s may reach neither %s nor %s: %w", account.name, stateDir, folder, err)
	}
	return cluster{folder, account}, nil
}

// fallbackFolder names the folder below fallback for the cluster of a state directory.
func fallbackFolder(fallback, stateDir string) string {
	readable := strings.Map(func(r rune) rune {
		if r == '.' || r == '_' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' {
			return r
		}
		return '-'
	}, stateDir)
	readable = strings.TrimLeft(readable[max(0, len(readable)-60):], "-.")
	return filepath.Join(fallback, fmt.Sprintf("%s-%.5x", readable, sha256.Sum256([]byte(stateDir))))
}

// serverAccount is the OS user that PostgreSQL's programs run as.
type serverAccount struct {
	name       string
	uid, gid   uint32
	credential *syscall.Credential // what root switches to; nil for any other user
}

// lookupAccount returns the account with a user id.
func lookupAccount(uid uint32) (serverAccount, error) {
	u, err := osuser.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return serverAccount{}, fmt.Errorf("look up an OS user's name, which peer authentication needs: %w", err)
	}
	return accountOf(u)
}

// accountOf returns an OS user's account.
func accountOf(u *osuser.User) (serverAccount, error) {
	if strings.ContainsAny(u.Username, "\"\r\n") || strings.HasPrefix(u.Username, "/") {
		return serverAccount{}, fmt.Errorf("the OS user name %q cannot be written in pg_ident.conf", u.Username)
	}
	texts, err := u.GroupIds()
	if err != nil {
		return serverAccount{}, fmt.Errorf("look up the groups of %s: %w", u.Username, err)
	}
	var ids []uint32 // user, group, further groups
	for _, text := range append([]string{u.Uid, u.Gid}, texts...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return serverAccount{}, fmt.Errorf("look up the ids of %s: %w", u.Username, err)
		}
		ids = append(ids, uint32(id))
	}
	account := serverAccount{name: u.Username, uid: ids[0], gid: ids[1]}
	if os.Geteuid() == 0 {
		account.credential = &syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[1:]}
	}
	return account, nil
}

// command prepares a program that runs as the account, with nothing of our
// environment and in a process group of its own: a terminal's Ctrl-C is for Cairn.
func (a serverAccount) command(ctx context.Context, dir, program string, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// reaches asks the kernel whether the account may enter a directory.
func (a serverAccount) reaches(ctx context.Context, dir, programs string) error {
	return a.command(ctx, dir, filepath.Join(programs, "initdb"), "--version").Run()
}

// ownerOf is the id of the user that a file or process belongs to.
func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// findServerPrograms returns the folder with initdb and postgres of a major
// version, or for "" of the newest, which has to be at least 15.
func findServerPrograms(version string) (dir string, err error) {
	return findServerProgramsIn(version, os.Getenv("PATH"), []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // the PostgreSQL project's RPMs
		"/usr/lib/postgresql*/bin",  // SUSE
		"/usr/libexec/postgresql*",  // Alpine
		"/usr/local/pgsql/bin",      // from source
		"/opt/postgresql*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	})
}

// findServerProgramsIn is findServerPrograms with a search path and patterns of
// folders to look in after that.
func findServerProgramsIn(version, path string, patterns []string) (dir string, err error) {
	folders := filepath.SplitList(path)
	for _, pattern := range patterns {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("look for PostgreSQL in %s: %w", pattern, err)
		}
		folders = append(folders, matches...)
	}
	newest, found := 0, "none"
	for _, folder := range folders {
		programs, major := serverPrograms(folder)
		if version != "" && version == strconv.Itoa(major) {
			return programs, nil
		}
		if major > newest {
			dir, newest, found = programs, major, fmt.Sprintf("%d in %s", major, programs)
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

// serverPrograms returns where the initdb and postgres of a folder really lie,
// and their major version, or 0 when they are not both there. Root runs programs
// of root's only.
func serverPrograms(folder string) (dir string, major int) {
	postgres, err := filepath.EvalSymlinks(filepath.Join(folder, "postgres"))
	if err != nil || !filepath.IsAbs(postgres) {
		return "", 0
	}
	dir = filepath.Dir(postgres)
	for _, program := range []string{"postgres", "initdb"} {
		info, err := os.Stat(filepath.Join(dir, program))
		if err != nil || os.Geteuid() == 0 && ownerOf(info) != 0 {
			return "", 0
		}
	}
	// postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)
	output, err := serverAccount{}.command(context.Background(), "/", postgres, "--version").Output()
	if err != nil {
		return "", 0
	}
	_, version, _ := strings.Cut(string(output), "(PostgreSQL) ")
	if end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		version = version[:end]
	}
	if major, err = strconv.Atoi(version); err != nil {
		return "", 0
	}
	return dir, major
}

// lockStateDir makes the state directory if it is missing and takes its lock,
// which lasts until the file is closed or the process ends, in whatever way. Child
// processes do not inherit it.
func lockStateDir(stateDir string) (*os.File, error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	root, err := os.OpenRoot(stateDir)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	f, err := openOwned(root, "lock", os.O_RDWR, stat.Uid, stat.Gid)
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another Cairn service uses the state directory %s", stateDir)
	}
	return nil, fmt.Errorf("lock state directory %s: %w", stateDir, err)
}

// openOwned opens a file that is its owner's alone, making it if missing; root
// gives it to the owner named. The directory may be in that owner's hands: os.Root
// keeps a link planted there from leading root elsewhere.
func openOwned(dir *os.Root, name string, flags int, uid, gid uint32) (*os.File, error) {
	f, err := dir.OpenFile(name, flags|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := f.Chown(int(uid), int(gid)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// resolveStateDir returns the state directory's absolute path without symbolic
// links, by which a cluster below the fallback is found again.
func resolveStateDir(stateDir string) (string, error) {
	absolute, err := filepath.Abs(stateDir)
	if err == nil {
		absolute, err = filepath.EvalSymlinks(absolute)
	}
	if err != nil {
		return "", fmt.Errorf("resolve state directory: %w", err)
	}
	return absolute, nil
}
