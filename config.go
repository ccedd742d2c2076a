package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// version is the version of this release.
const version = "1.0.0"

// config is every setting, parsed. docs/settings.md has the table of the environment variables.
type config struct {
	listen         string
	baseURL        string   // scheme and host by which clients know the service; empty: as each request names it
	stateDir       string   // absolute
	databaseURL    string   // empty: a private PostgreSQL in the state directory
	datasetRoots   []string // absolute, at least one
	rootsAreSet    bool     // false: the only root is the default
	keysFile       string   // empty: "keys" in the state directory, created at the first start
	credentialsDir string   // systemd's $CREDENTIALS_DIRECTORY, or empty
	accessTTL      time.Duration
	refreshTTL     time.Duration // counted from the last use
	sessionMax     time.Duration
	refreshGrace   time.Duration
	passwordMin    int    // code points
	breachedFile   string // a list of breached passwords; empty: none
	argon          argonParameters
	registration   string
	cookieInsecure bool
	trustedProxies []netip.Prefix
	corsOrigins    []string // whose pages may read the STAC tree and the contents of files
	tlsCert        string   // with tlsKey; empty: plain HTTP
	tlsKey         string
	logFormat      string // text, json, or empty: text on a terminal
	logLevel       slog.Level
	supervisor     supervisor
}

// The values of CAIRN_REGISTRATION.
const (
	registrationOpen     = "open"
	registrationApproval = "approval" // an administrator has to approve new users
	registrationClosed   = "closed"
)

// setting is one environment variable.
type setting struct {
	name  string
	value string // the value in force; in the table below, the default
	parse func(value string) error
}

// settings returns every setting. Its value comes from env, whose entries are "NAME=value", or else
// is the default. An empty value counts as unset. Each parse function stores the value in c.
func settings(c *config, env []string) []setting {
	database, databaseErr := databaseCredential(lookup(env, "CREDENTIALS_DIRECTORY"))

	// The dataset roots come after the state directory, beside which they lie by default.
	all := []setting{
		{"CAIRN_LISTEN", "127.0.0.1:8080", func(v string) error {
			_, port, err := net.SplitHostPort(v)
			if err == nil {
				_, err = net.LookupPort("tcp", port)
			}
			if err != nil {
				return errors.New("must be an address and a port, such as 127.0.0.1:8080 or :8080")
			}
			c.listen = v
			return nil
		}},
		{"CAIRN_BASE_URL", "", c.parseBaseURL},
		{
			"CAIRN_STATE_DIR", cmp.Or(lookup(env, "STATE_DIRECTORY"), "var"), // set by systemd
			absolute(&c.stateDir),
		},
		{"CAIRN_DATABASE_URL", database, func(v string) error {
			if v == "" && databaseErr != nil {
				return databaseErr
			}
			c.databaseURL = v
			return nil
		}},
		{"CAIRN_DATASETS_DIR", "", c.parseRoots},
		{"CAIRN_KEYS_FILE", "", absolute(&c.keysFile)},
		{"CAIRN_ACCESS_TTL", "8h", duration(&c.accessTTL)},
		{"CAIRN_REFRESH_TTL", "720h", duration(&c.refreshTTL)},
		{"CAIRN_SESSION_MAX", "2160h", duration(&c.sessionMax)},
		{"CAIRN_REFRESH_GRACE", "10s", func(v string) error {
			err := duration(&c.refreshGrace)(v)
			if err != nil || c.refreshGrace > 5*time.Minute {
				return errors.New("must be a duration of at most 5m: within it, a stolen refresh token is not detected")
			}
			return nil
		}},
		{"CAIRN_PASSWORD_MIN", "8", func(v string) (err error) {
			c.passwordMin, err = strconv.Atoi(v)
			if err != nil || c.passwordMin < 8 || c.passwordMin > 64 {
				return errors.New("must be a number from 8 to 64")
			}
			return nil
		}},
		{"CAIRN_BREACHED_PASSWORDS", "", absolute(&c.breachedFile)},
		{"CAIRN_ARGON2", "m=19456,t=2,p=1", c.parseArgon},
		{
			"CAIRN_REGISTRATION", registrationOpen,
			text(&c.registration, registrationOpen, registrationApproval, registrationClosed),
		},
		{"CAIRN_COOKIE_INSECURE", "0", func(v string) (err error) {
			c.cookieInsecure, err = strconv.ParseBool(v)
			if err != nil {
				return errors.New("must be 0 or 1")
			}
			return nil
		}},
		{"CAIRN_TRUSTED_PROXIES", "", c.parseProxies},
		{"CAIRN_CORS_ORIGINS", "", c.parseOrigins},
		{"CAIRN_TLS_CERT", "", absolute(&c.tlsCert)},
		{"CAIRN_TLS_KEY", "", absolute(&c.tlsKey)},
		{"CAIRN_LOG_FORMAT", "", text(&c.logFormat, "", "text", "json")},
		{"CAIRN_LOG_LEVEL", "info", func(v string) error {
			if c.logLevel.UnmarshalText([]byte(v)) != nil {
				return errors.New("must be debug, info, warn or error")
			}
			return nil
		}},
	}

	for i, s := range all {
		if value := lookup(env, s.name); value != "" {
			all[i].value = value
		}
	}
	return all
}

// text returns a parse function that stores a text. If there are allowed texts, it must be one.
func text(to *string, allowed ...string) func(string) error {
	return func(value string) error {
		if allowed != nil && !slices.Contains(allowed, value) {
			return fmt.Errorf("must be one of %s", strings.TrimSpace(strings.Join(allowed, " ")))
		}
		*to = value
		return nil
	}
}

// absolute returns a parse function that stores a path as an absolute path. Empty stays empty.
func absolute(to *string) func(string) error {
	return func(value string) (err error) {
		if value != "" {
			*to, err = filepath.Abs(value)
		}
		return err
	}
}

// duration returns a parse function that stores a duration of more than 0.
func duration(to *time.Duration) func(string) error {
	return func(value string) (err error) {
		*to, err = time.ParseDuration(value)
		if err != nil || *to <= 0 {
			return errors.New("must be a duration like 8h or 30s, more than 0")
		}
		return nil
	}
}

// parseArgon stores the parameters of the password hash. The defaults are the minimum.
func (c *config) parseArgon(value string) (err error) {
	c.argon, err = parseArgon(value)
	if err != nil {
		return err
	}

	argon := c.argon
	tooLittle := argon.memory < 19456 || argon.passes < 2
	tooMuch := argon.memory > 1<<20 || argon.passes > 100 || argon.lanes > 4
	if tooLittle || tooMuch {
		return errors.New("must be from m=19456,t=2,p=1 to m=1048576,t=100,p=4")
	}
	return nil
}

// parseBaseURL stores the scheme and the host by which clients know the service.
func (c *config) parseBaseURL(value string) (err error) {
	if value != "" {
		c.baseURL, err = parseOrigin(value)
	}
	return err
}

// parseOrigins stores the origins whose pages may read the STAC tree and the contents of files.
func (c *config) parseOrigins(value string) error {
	isSeparator := func(r rune) bool { return r == ',' || r == ' ' }
	for text := range strings.FieldsFuncSeq(value, isSeparator) {
		origin, err := parseOrigin(text)
		if err != nil {
			return err
		}
		c.corsOrigins = append(c.corsOrigins, origin)
	}
	return nil
}

// originForm matches a scheme and a host, without wildcards, a user, a path or a query.
var originForm = regexp.MustCompile(`^(https?)://((?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]+)?)/?$`)

// parseOrigin returns a scheme and a host as browsers write them in the header Origin: in lower
// case and without a default port (RFC 6454, section 6.2).
func parseOrigin(value string) (string, error) {
	match := originForm.FindStringSubmatch(strings.ToLower(value))
	if match == nil {
		return "", errors.New("must be a scheme and a host, such as https://cairn.example.org")
	}
	return match[1] + "://" + hostAndPort(match[1], match[2]), nil
}

// hostAndPort returns a host with its port in lower case, without the default port of the scheme.
func hostAndPort(scheme, host string) string {
	defaultPort := map[string]string{
		"http":  ":80",
		"https": ":443",
	}[scheme]
	return strings.TrimSuffix(strings.ToLower(host), defaultPort)
}

// isOwnHost reports whether a request for this host is meant for the service. If CAIRN_BASE_URL is
// set, only its host is: a page of another site must not reach the service under that site's name
// (DNS rebinding).
func (c config) isOwnHost(host string) bool {
	scheme, own, isSet := strings.Cut(c.baseURL, "://")
	return !isSet || hostAndPort(scheme, host) == own
}

// parseRoots stores the dataset roots, by default "datasets" beside the state directory.
func (c *config) parseRoots(value string) error {
	c.rootsAreSet = value != ""
	byDefault := filepath.Join(filepath.Dir(c.stateDir), "datasets")
	for _, root := range filepath.SplitList(cmp.Or(value, byDefault)) {
		abs, err := filepath.Abs(root)
		if err != nil || root == "" {
			return errors.New("must be directories, separated by colons")
		}
		c.datasetRoots = append(c.datasetRoots, abs)
	}
	return nil
}

// parseProxies stores the networks of trusted proxies.
func (c *config) parseProxies(value string) error {
	isSeparator := func(r rune) bool { return r == ',' || r == ' ' }
	for text := range strings.FieldsFuncSeq(value, isSeparator) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return errors.New("must be networks like 10.0.0.0/8 or 127.0.0.1/32, separated by commas")
		}
		c.trustedProxies = append(c.trustedProxies, prefix.Masked())
	}
	return nil
}

// loadConfig reads the settings from an environment. Its error names the variable, never the value.
func loadConfig(env []string) (config, error) {
	c := config{
		credentialsDir: lookup(env, "CREDENTIALS_DIRECTORY"),
		supervisor:     findSupervisor(env),
	}
	for _, s := range settings(&c, env) {
		if err := s.parse(s.value); err != nil {
			return config{}, fmt.Errorf("%s: %w", s.name, err)
		}
	}

	if (c.tlsCert == "") != (c.tlsKey == "") {
		return config{}, errors.New("CAIRN_TLS_CERT and CAIRN_TLS_KEY must be set together")
	}
	if c.keysFile == "" {
		c.keysFile = credentialFile(c.credentialsDir, "keys")
	}
	return c, nil
}

// credentialFile returns the path of one of systemd's credentials, or "" if there is none.
func credentialFile(dir, name string) string {
	path := filepath.Join(dir, name)
	_, err := os.Lstat(path)
	if dir == "" || err != nil {
		return ""
	}
	return path
}

// databaseCredential returns the content of systemd's credential database-url, or "" if there is
// none. An empty file is an error: Cairn would start with an empty private database instead.
func databaseCredential(dir string) (string, error) {
	path := credentialFile(dir, "database-url")
	if path == "" {
		return "", nil
	}

	content, err := os.ReadFile(path)
	url := strings.TrimSpace(string(content))
	if err == nil && url == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return url, err
}

// escaped matches a backslash with the character that it escapes.
var escaped = regexp.MustCompile(`(?s)\\(.?)`)

// packagedEnvironment returns the settings of the packaged service from the file cairn.env in dir,
// and dir as the directory of credentials. With them a command finds the service's database and
// keys. It returns nil if there is no such file.
func packagedEnvironment(dir string) (env []string) {
	content, err := os.ReadFile(filepath.Join(dir, "cairn.env"))
	if err != nil {
		return nil
	}

	for line := range strings.Lines(string(content)) {
		name, value, isSetting := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		value = strings.TrimSpace(value)
		isComment := strings.HasPrefix(name, "#") || strings.HasPrefix(name, ";")
		if !isSetting || isComment {
			continue
		}

		// Quotes are read as by systemd: see EnvironmentFile= in systemd.exec(5).
		switch n := len(value); {
		case n > 1 && value[0] == '\'' && value[n-1] == '\'':
			value = value[1 : n-1]
		case n > 1 && value[0] == '"' && value[n-1] == '"':
			unescape := strings.NewReplacer(
				`\"`, `"`,
				`\\`, `\`,
				"\\`", "`",
				`\$`, `$`)
			value = unescape.Replace(value[1 : n-1])
		default:
			value = escaped.ReplaceAllString(value, "$1")
		}
		env = append(env, name+"="+value)
	}

	// The state directory is that of cairn.service, unless the settings name another.
	return append(env,
		"CREDENTIALS_DIRECTORY="+dir,
		"STATE_DIRECTORY=/var/lib/cairn")
}

// lookup returns the value of a variable, or "". Of several values the last one counts.
func lookup(env []string, name string) string {
	for _, pair := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// unknownSettings returns the variables that begin with CAIRN_ but name no setting. It adds a hint
// to a name that shares at least three letters after CAIRN_ with a setting: the setting that shares
// the longest beginning.
func unknownSettings(env []string) (unknown []string) {
	known := settings(new(config), nil)
	for _, pair := range env {
		name, _, _ := strings.Cut(pair, "=")
		isNamed := func(s setting) bool { return s.name == name }
		if !strings.HasPrefix(name, "CAIRN_") || slices.ContainsFunc(known, isNamed) {
			continue
		}

		for length := len(name); length >= len("CAIRN_abc"); length-- {
			isAlike := func(s setting) bool { return strings.HasPrefix(s.name, name[:length]) }
			if i := slices.IndexFunc(known, isAlike); i >= 0 {
				name += " (did you mean " + known[i].name + "?)"
				break
			}
		}
		unknown = append(unknown, name)
	}
	return unknown
}

// missingRoots returns an error that names each root of CAIRN_DATASETS_DIR that is not there or
// cannot be looked at. If the variable is not set, a missing default root is no error.
func (c config) missingRoots() (err error) {
	if !c.rootsAreSet {
		return nil
	}
	for _, root := range c.datasetRoots {
		_, missing := os.Stat(root)
		err = errors.Join(err, missing)
	}
	return err
}

// keysPath returns the path of the key file.
func (c config) keysPath() string { return cmp.Or(c.keysFile, filepath.Join(c.stateDir, "keys")) }

// keysAreCredential reports whether the key file is a copy that systemd made when it started Cairn.
func (c config) keysAreCredential() bool {
	return c.credentialsDir != "" && filepath.Dir(c.keysPath()) == filepath.Clean(c.credentialsDir)
}

// firstAdminFile returns the path of the file with the first administrator's password token.
func (c config) firstAdminFile() string { return filepath.Join(c.stateDir, "first-admin-token") }

// trusts reports whether the peer at this address is a trusted proxy.
func (c config) trusts(address netip.Addr) bool {
	isWithin := func(p netip.Prefix) bool { return p.Contains(address) }
	return slices.ContainsFunc(c.trustedProxies, isWithin)
}

// checkSecretsOutsideRoots returns an error if secrets lie below a dataset root, where analyses
// would read them.
func (c config) checkSecretsOutsideRoots() error {
	secrets := []string{
		c.stateDir,
		c.keysPath(),
		cmp.Or(c.tlsKey, c.stateDir),
	}

	for _, root := range c.datasetRoots {
		for _, secret := range secrets {
			below, err := filepath.Rel(resolve(root), resolve(secret))
			if err == nil && filepath.IsLocal(below) {
				return fmt.Errorf("the dataset root %s holds %s: choose another CAIRN_DATASETS_DIR",
					root, secret)
			}
		}
	}
	return nil
}

// resolve returns a path without symbolic links. The last parts of the path need not exist.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolve(parent), filepath.Base(path))
	}
	return path
}

// databaseConfig parses a database URL or keyword string. Of several hosts, only one that accepts
// writes is used.
func databaseConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx keeps the password out of its message, but not always the rest of a malformed URL.
		return nil, errors.New("CAIRN_DATABASE_URL is not a PostgreSQL connection string")
	}

	if hasPassword.MatchString(withoutPassword(url)) {
		return nil, errors.New("CAIRN_DATABASE_URL must have its password as in " +
			"postgres://user:password@host/database, or leave it to PGPASSWORD")
	}

	// pg_dump and psql refuse settings of the session in a URL. Cairn needs the role's defaults.
	for name := range config.ConnConfig.RuntimeParams {
		if name != "application_name" && name != "timezone" {
			return nil, fmt.Errorf("CAIRN_DATABASE_URL (or PGOPTIONS) must not set %s: "+
				"Cairn uses the default schema and settings of its role",
				name)
		}
	}

	// sslrootcert=system verifies the whole name in pgx, but nothing in libpq 15.
	tls := config.ConnConfig.TLSConfig
	verifies := tls != nil && !tls.InsecureSkipVerify
	namesFull := strings.Contains(url+os.Getenv("PGSSLMODE"), "verify-full")
	if verifies && !namesFull {
		return nil, errors.New("CAIRN_DATABASE_URL must set sslmode=verify-full " +
			"with sslrootcert=system or a service file")
	}

	if len(config.ConnConfig.Fallbacks) > 0 && config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return config, nil
}

// hasPassword matches a password in a connection string that is not in the user part of a URL.
var hasPassword = regexp.MustCompile(`password\s*=`)

// withoutPassword returns a connection string without the password in the user part of a URL.
func withoutPassword(connection string) string {
	scheme, rest, isURL := strings.Cut(connection, "://")

	// libpq and pgx find the end in this way: the password may have ? and &.
	end := strings.IndexAny(rest, "@/")
	if !isURL || end < 0 || rest[end] != '@' {
		return connection
	}

	user, _, _ := strings.Cut(rest[:end], ":")
	return scheme + "://" + user + rest[end:]
}

// supervisor holds the variables that systemd sets for a service; see sd_notify(3),
// sd_listen_fds(3) and sd_watchdog_enabled(3). It is zero without systemd.
type supervisor struct {
	notifySocket string        // receives the states of the service
	sockets      int           // number of listening sockets, from descriptor 3 on
	watchdog     time.Duration // systemd kills the service after this time without a notification; 0: never
}

// findSupervisor reads systemd's variables, if they are meant for this process.
func findSupervisor(env []string) supervisor {
	s := supervisor{notifySocket: lookup(env, "NOTIFY_SOCKET")}
	self := strconv.Itoa(os.Getpid())

	if lookup(env, "LISTEN_PID") == self {
		s.sockets, _ = strconv.Atoi(lookup(env, "LISTEN_FDS"))
	}

	pid := lookup(env, "WATCHDOG_PID")
	if pid == "" || pid == self {
		µs, _ := strconv.Atoi(lookup(env, "WATCHDOG_USEC"))
		s.watchdog = time.Duration(µs) * time.Microsecond
	}
	return s
}
