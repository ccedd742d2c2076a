//go:build scale

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// scaleURL is how clients see the service that deploy/test-scale starts.
const scaleURL = "https://cairn.example.org"

// scaleTransport sends requests to nginx, each connection from an address of its own. It notes requests that took
// longer than their routes allow.
type scaleTransport struct {
	kept, fresh *http.Transport // fresh makes a new connection for each request
	routes      *http.ServeMux
	from        atomic.Int64
	mu          sync.Mutex
	slowest     map[time.Duration]time.Duration // by limit
	late        []string
}

// scalePace is the pace of a route, found by a mux.
type scalePace class

// ServeHTTP is never called.
func (scalePace) ServeHTTP(http.ResponseWriter, *http.Request) {}

// newScaleTransport returns a transport to the nginx at this address, which has this certificate.
func newScaleTransport(t *testing.T, nginx, certificate string) *scaleTransport {
	t.Helper()
	pem, err := os.ReadFile(certificate)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate", err)
	}
	tr := &scaleTransport{routes: http.NewServeMux(), slowest: map[time.Duration]time.Duration{}}
	for _, rt := range (&server{}).apiRoutes() {
		tr.routes.Handle(rt.method+" "+rt.path, scalePace(rt.class))
	}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		n := tr.from.Add(1)
		local := net.IPv4(127, byte(1+n/62500%200), byte(1+n/250%250), byte(1+n%250))
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: local}}).DialContext(ctx, network, nginx)
	}
	tr.kept = &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 100}
	tr.fresh = tr.kept.Clone()
	tr.fresh.DisableKeepAlives = true
	return tr
}

// RoundTrip implements http.RoundTripper. It reads the whole answer.
func (tr *scaleTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	next := tr.kept
	if strings.HasSuffix(r.URL.Path, "/login") || strings.HasSuffix(r.URL.Path, "/register") {
		next = tr.fresh // few attempts from each address are free
	}
	began := time.Now()
	response, err := next.RoundTrip(r)
	if err == nil {
		var body []byte
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		response.Body = io.NopCloser(bytes.NewReader(body))
	}
	took := time.Since(began)
	handler, _ := tr.routes.Handler(r)
	p, ok := handler.(scalePace)
	limit := class(p).timeout()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.slowest[limit] = max(tr.slowest[limit], took)
	if !ok || took > limit+500*time.Millisecond {
		tr.late = append(tr.late, fmt.Sprintf("%s %s: %v of %v", r.Method, r.URL.Path, took, limit))
	}
	return response, err
}

// scaleSetup is what deploy/test-scale has started.
type scaleSetup struct {
	client
	dir, secret string
	instances   string   // how many run
	patroni     []string // addresses of the REST API
	transport   *scaleTransport
}

// openScale signs in as the administrator of the service.
func openScale(t *testing.T) *scaleSetup {
	t.Helper()
	s := &scaleSetup{client: client{t: t, url: scaleURL}, dir: os.Getenv(scaleEnv), secret: os.Getenv("SCALE_SECRET"),
		instances: os.Getenv("SCALE_INSTANCES"), patroni: strings.Fields(os.Getenv("SCALE_PATRONI"))}
	s.transport = newScaleTransport(t, os.Getenv("SCALE_NGINX"), s.dir+"/ssl/cert.pem")
	http.DefaultTransport = s.transport
	token, err := os.ReadFile(s.dir + "/app1/state/first-admin-token")
	if err == nil {
		s.must(204, "POST", "/api/v1/auth/password-reset",
			map[string]string{"token": strings.TrimSpace(string(token)), "new_password": testPassword})
	}
	s.client, _ = s.login("admin", testPassword)
	return s
}

// addAdministrator registers a user and gives the user the role admin, unless there is such a user.
func (s *scaleSetup) addAdministrator(name string) {
	s.t.Helper()
	a := s.as("").do("POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword})
	if a.status == 201 {
		s.must(200, "POST", "/api/v1/users/"+a.text("id")+"/roles", map[string]string{"role": adminRole})
	} else if a.status != 409 {
		s.t.Fatalf("%d %s", a.status, a.body)
	}
}

// addTiles makes a dataset of as many files.
func (s *scaleSetup) addTiles(name string, dirs, files int) (dataset string) {
	s.t.Helper()
	makeTiles(s.t, filepath.Join(s.dir, "elevation", name), dirs, files)
	return s.addDataset(name)
}

// scaleMember is a node of Patroni's, as GET /cluster tells.
type scaleMember struct {
	Name, Role, State, Host string
	Port                    int
}

// members returns what the first node that answers says of the cluster.
func (s *scaleSetup) members(ctx context.Context) []scaleMember {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, address := range s.patroni {
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+address+"/cluster", nil)
		if err != nil {
			continue
		}
		response, err := new(http.Transport).RoundTrip(r)
		if err != nil {
			continue
		}
		var said struct{ Members []scaleMember }
		err = json.NewDecoder(response.Body).Decode(&said)
		response.Body.Close()
		if err == nil {
			return said.Members
		}
	}
	return nil
}

// leader returns the primary that Patroni names, if any.
func (s *scaleSetup) leader(ctx context.Context) (m scaleMember, ok bool) {
	members := s.members(ctx)
	if i := slices.IndexFunc(members, func(m scaleMember) bool { return m.Role == "leader" }); i >= 0 {
		return members[i], true
	}
	return m, false
}

// isWhole reports whether there are a primary, a synchronous standby and another one, and all run.
func (s *scaleSetup) isWhole(ctx context.Context) bool {
	roles := map[string]int{}
	for _, m := range s.members(ctx) {
		if m.State == "running" || m.State == "streaming" {
			roles[m.Role]++
		}
	}
	return maps.Equal(roles, map[string]int{"leader": 1, "sync_standby": 1, "replica": 1})
}

// connect connects to a node as the superuser.
func (s *scaleSetup) connect(ctx context.Context, m scaleMember, database string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=postgres password=%s dbname=%s sslmode=disable connect_timeout=1",
		m.Host, m.Port, s.secret, database))
}

// postmaster returns the process id of a node's PostgreSQL.
func (s *scaleSetup) postmaster(name string) (pid int) {
	content, _ := os.ReadFile(filepath.Join(s.dir, name, "data/postmaster.pid"))
	fmt.Sscan(string(content), &pid)
	return pid
}

// processorTimes returns the processor time that each part has used, with its children: Cairn, PgBouncer and so on.
func (s *scaleSetup) processorTimes(primary string) map[string]time.Duration {
	parents, used := map[int]int{}, map[int]time.Duration{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		content, _ := os.ReadFile(stat)
		before, after, _ := strings.Cut(string(content), ") ")
		var pid, parent, none int
		var state string
		var ticks [4]time.Duration // user, system, and those of ended children
		fmt.Sscan(before, &pid)
		fmt.Sscan(after, &state, &parent, &none, &none, &none, &none, &none, &none, &none, &none, &none, &ticks[0], &ticks[1], &ticks[2], &ticks[3])
		parents[pid], used[pid] = parent, (ticks[0]+ticks[1]+ticks[2]+ticks[3])*10*time.Millisecond
	}
	of := func(root int) (sum time.Duration) {
		for pid := range parents {
			if pid == root || parents[pid] == root {
				sum += used[pid]
			}
		}
		return sum
	}
	times := map[string]time.Duration{}
	files, _ := filepath.Glob(s.dir + "/*.pid")
	for _, file := range files {
		var pid int
		content, _ := os.ReadFile(file)
		fmt.Sscan(string(content), &pid)
		name := strings.TrimRight(strings.TrimSuffix(filepath.Base(file), ".pid"), "0123456789")
		if name != "patroni" { // the parent of PostgreSQL
			times[name] += of(pid)
		}
	}
	for _, name := range []string{"db1", "db2", "db3"} {
		part := "standbys"
		if name == primary {
			part = "primary"
		}
		times[part] += of(s.postmaster(name))
	}
	return times
}

// scaleRate is how often in a second something was done, and the processor time of each part for each time.
type scaleRate struct {
	PerSecond float64
	Processor map[string]time.Duration
}

// measure returns the rate at which n goes up while do runs.
func (s *scaleSetup) measure(do func() (n int)) scaleRate {
	s.t.Helper()
	leader, ok := s.leader(s.t.Context())
	if !ok {
		s.t.Fatal("there is no primary")
	}
	before, began := s.processorTimes(leader.Name), time.Now()
	n := do()
	rate := scaleRate{float64(n) / time.Since(began).Seconds(), map[string]time.Duration{}}
	for part, used := range s.processorTimes(leader.Name) {
		rate.Processor[part] = (used - before[part]) / time.Duration(max(1, n))
	}
	return rate
}

// requests sends the requests that next makes over 32 connections for some seconds and returns how many were answered.
func (s *scaleSetup) requests(next func(i int, cookie string) *http.Request) (answered int) {
	var n atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(s.t.Context(), 6*time.Second)
	defer cancel()
	for i := range 32 {
		wg.Go(func() {
			for cookie := ""; ctx.Err() == nil; {
				response, err := s.transport.RoundTrip(next(i, cookie))
				if err != nil || response.StatusCode != 200 {
					s.t.Error("a request of the load:", err, response)
					return
				}
				cookie = refreshCookieOf(answer{header: response.Header})
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return int(n.Load())
}

// TestScaleFigures measures what the instances that run do in a second. deploy/test-scale runs it with one and with two;
// then it prints both.
func TestScaleFigures(t *testing.T) {
	s := openScale(t)
	var callers []client
	var cookies []string
	for i := range 32 {
		name := fmt.Sprintf("caller%02d", i%16)
		s.addAdministrator(name)
		c, cookie := s.as("").login(name, testPassword)
		callers, cookies = append(callers, c), append(cookies, cookie)
	}
	request := func(method, path, header, value string) *http.Request {
		r, err := http.NewRequest(method, scaleURL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(header, value)
		return r
	}
	get := func(path string) func(int, string) *http.Request {
		return func(i int, _ string) *http.Request {
			return request("GET", path, "Authorization", "Bearer "+callers[i].token)
		}
	}
	const dirs, files = 160, 75
	dataset := s.addTiles("figures"+s.instances, dirs, files)
	rates := map[string]scaleRate{}
	rates["analyses, files"] = s.measure(func() int { return counts(s.analyze(dataset, nil))[1] })
	rates["GET /auth/me"] = s.measure(func() int { return s.requests(get(mePath)) })
	rates["POST /auth/refresh"] = s.measure(func() int {
		return s.requests(func(i int, cookie string) *http.Request {
			return request("POST", "/api/v1/auth/refresh", "Cookie", "__Host-cairn_refresh="+cmp.Or(cookie, cookies[i]))
		})
	})
	rates["GET /users, 50 of 10,000"] = s.measure(func() int { return s.requests(get("/api/v1/users?limit=50")) })
	rates["GET /files?point=, 12,000 files"] = s.measure(func() int {
		return s.requests(func(i int, _ string) *http.Request {
			return get(fmt.Sprintf("%s/files?point=%d.1,%d.9", dataset, rand.IntN(dirs), rand.IntN(files-1)))(i, "")
		})
	})
	s.tell(rates)
	if len(s.transport.late) > 0 {
		t.Errorf("late: %q", s.transport.late)
	}
}

// tell keeps the rates of one instance, and prints them beside those of two.
func (s *scaleSetup) tell(rates map[string]scaleRate) {
	s.t.Helper()
	file := s.dir + "/figures"
	if s.instances == "1" {
		encoded, err := json.Marshal(rates)
		if err := errors.Join(err, os.WriteFile(file, encoded, 0o600)); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	one := map[string]scaleRate{}
	content, err := os.ReadFile(file)
	if err := errors.Join(err, json.Unmarshal(content, &one)); err != nil {
		s.t.Fatal(err)
	}
	fmt.Printf("\n| in a second | one instance | two instances |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		fmt.Printf("| `%s` | %.0f | %.0f |\n", name, one[name].PerSecond, rates[name].PerSecond)
	}
	parts := []string{"nginx", "cairn", "pgbouncer", "haproxy", "primary", "standbys"}
	fmt.Printf("\n| processor time for each, µs, with one / two | %s |\n|---|---|---|---|---|---|---|\n", strings.Join(parts, " | "))
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		fmt.Printf("| `%s` |", name)
		for _, part := range parts {
			fmt.Printf(" %d / %d |", one[name].Processor[part].Microseconds(), rates[name].Processor[part].Microseconds())
		}
		fmt.Println()
	}
	fmt.Println()
}

// scaleUser is a mixedUser who also registers others and keeps a list of what was acknowledged.
type scaleUser struct {
	mixedUser
	registered []string
	read       []string // paths of messages marked as read
}

// step does one thing, and looks at the answer.
func (u *scaleUser) step(ctx context.Context, dataset string) {
	switch u.random.IntN(12) {
	case 0:
		name := fmt.Sprintf("new%x", u.random.Uint64())
		if a, ok := u.ask("POST", "/api/v1/auth/register", map[string]string{"username": name, "password": testPassword}); ok {
			u.expect(a.status == 201, "register", a)
			u.registered = append(u.registered, name)
		}
	case 1:
		if _, path := u.readOwnMessage(); path != "" {
			u.read = append(u.read, path)
		}
	case 2:
		if a, ok := u.ask("GET", dataset+"/files?point=2.1,39.9", nil); ok {
			u.expect(a.status == 200 && len(a.items()) > 0, "search", a)
		}
	case 3:
		for done := false; !done && ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
			var a answer // perhaps the token was replaced, and the answer lost: then the same one gets the current one
			if a, done = u.ask("POST", "/api/v1/auth/refresh", map[string]string{}, "Cookie: __Host-cairn_refresh="+u.cookie); done {
				u.expect(a.status == 200, "repeat refresh", a)
				u.token, u.cookie = a.text("access_token"), refreshCookieOf(a)
			}
		}
	default:
		u.mixedUser.step(ctx, dataset)
	}
}

// check looks for everything that was acknowledged to the user, but for messages.
func (u *scaleUser) check(t *testing.T) {
	c := u.client.as("")
	c, _ = c.login(u.name, testPassword)
	for _, name := range u.registered {
		if n := len(c.must(200, "GET", "/api/v1/users?username="+name, nil).items()); n != 1 {
			t.Errorf("%s was registered, and is there %d times", name, n)
		}
	}
	for _, path := range u.read {
		if a := c.must(200, "GET", path, nil); a.json["read"] != true {
			t.Errorf("%s was marked as read by %s, and is not: %s", path, u.name, a.body)
		}
	}
	if a := c.must(200, "GET", mePath, nil); u.display != "" && a.text("display_name") != u.display {
		t.Errorf("the name of %s was changed to %s: %s", u.name, u.display, a.body)
	}
}

// scaleKill is one kill of a primary, and the times from there on.
type scaleKill struct {
	old, new                string
	elected, back, analysed time.Duration
}

// String returns a row of a table.
func (k scaleKill) String() string {
	return fmt.Sprintf("| %s → %s | %.1f s | %.1f s | %+.1f s | %.1f s |", k.old, k.new, k.elected.Seconds(), k.back.Seconds(),
		(k.back - k.elected).Seconds(), k.analysed.Seconds())
}

// elected waits until Patroni names another primary and that accepts a write.
func (s *scaleSetup) elected(ctx context.Context, old string) (name string) {
	waitFor(s.t, "another primary", func() bool {
		m, ok := s.leader(ctx)
		if !ok || m.Name == old {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := s.connect(ctx, m, "postgres")
		if err != nil {
			return false
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, `INSERT INTO probe VALUES (1)`)
		name = m.Name
		return err == nil
	})
	return name
}

// firstWrite sends writes, ten in a second, until one is acknowledged, and returns when that was. It counts only writes
// after one was refused: for some milliseconds the sessions of a killed server still serve.
func (s *scaleSetup) firstWrite(load *mixedLoad) (at time.Time) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var sent sync.WaitGroup
	var refused time.Time // when the first was
	for ctx.Err() == nil {
		began := time.Now()
		sent.Go(func() {
			title := fmt.Sprintf("probe %x", rand.Uint64())
			a, err := s.send("POST", "/api/v1/system-messages", strings.NewReader(`{"title": "`+title+`", "body": "b"}`))
			load.mu.Lock()
			defer load.mu.Unlock()
			if err != nil || a.status != 201 {
				refused = cmp.Or(refused, time.Now())
				return
			}
			load.acked = append(load.acked, title)
			if at.IsZero() && !refused.IsZero() && began.After(refused) {
				at = time.Now()
				cancel()
			}
		})
		pause(ctx, 100*time.Millisecond)
	}
	sent.Wait()
	if at.IsZero() {
		s.t.Error("no write was acknowledged in a minute")
	}
	return at
}

// kill kills the primary while an analysis of a new dataset is in progress.
func (s *scaleSetup) kill(round int, load *mixedLoad) (k scaleKill) {
	t, ctx := s.t, s.t.Context()
	waitFor(t, "a whole cluster", func() bool { return s.isWhole(ctx) })
	const dirs, files = 160, 75
	dataset := s.addTiles(fmt.Sprint("kill", round), dirs, files)
	analysis := s.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(t, "the analysis to store rows", func() bool { return counts(s.must(200, "GET", analysis, nil))[0] > 0 })
	primary, _ := s.leader(ctx)
	k.old = primary.Name
	killed := time.Now()
	if err := syscall.Kill(s.postmaster(k.old), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { k.new, k.elected = s.elected(ctx, k.old), time.Since(killed) })
	wg.Go(func() { k.back = s.firstWrite(load).Sub(killed) })
	var a answer
	waitFor(t, "the analysis to end", func() bool {
		var err error
		a, err = s.send("GET", analysis+"?wait=2s", nil)
		return err == nil && a.status == 200 && a.json["finished_at"] != nil
	})
	k.analysed = time.Since(killed)
	wg.Wait()
	want := [6]int{dirs * files, dirs * files, 0, 0, 0, 0}
	ended, err := time.Parse(time.RFC3339Nano, a.text("finished_at"))
	if err != nil || ended.Before(killed) || a.text("state") != stateSucceeded || counts(a) != want {
		t.Errorf("the analysis of kill %d at %v, want %v: %s", round, killed, want, a.body)
	}
	if k.back > k.elected+2*time.Second {
		t.Errorf("kill %d: service was back %v after the new primary", round, k.back-k.elected)
	}
	return k
}

// missing returns the acknowledged titles that are not in the database exactly once.
func (s *scaleSetup) missing(acked []string) []string {
	s.t.Helper()
	leader, _ := s.leader(s.t.Context())
	conn, err := s.connect(s.t.Context(), leader, "cairn")
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context())
	rows, err := collect[struct{ Title string }](s.t.Context(), conn, "list", `SELECT title FROM system_messages`)
	if err != nil {
		s.t.Fatal(err)
	}
	there := map[string]int{}
	for _, row := range rows {
		there[row.Title]++
	}
	return slices.DeleteFunc(slices.Clone(acked), func(title string) bool { return there[title] == 1 })
}

// TestScaleFailover kills the primary five times under mixed load. No acknowledged write is lost, no request hangs, the
// service is back soon after Patroni has a new primary, and every analysis ends with exact counts.
func TestScaleFailover(t *testing.T) {
	s := openScale(t)
	dataset := s.addTiles("tiles", 4, 50)
	s.analyze(dataset, nil)
	load := &mixedLoad{urls: []string{scaleURL}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var users []*scaleUser
	var running sync.WaitGroup
	for i := range 8 {
		u := &scaleUser{mixedUser: mixedUser{mixedLoad: load, client: s.as(""), name: fmt.Sprint("mixed", i), random: rand.New(rand.NewPCG(uint64(i), 0))}}
		s.addAdministrator(u.name)
		users = append(users, u)
		running.Go(func() {
			for u.login(ctx); ctx.Err() == nil; {
				u.step(ctx, dataset)
				pause(ctx, 20*time.Millisecond)
			}
		})
	}
	fmt.Printf("\n| killed → new primary | it accepts writes | first write through nginx | between | analysis done |\n|---|---|---|---|---|\n")
	for round := range 5 {
		fmt.Println(s.kill(round, load))
	}
	stop()
	running.Wait()
	registered, read := 0, 0
	for _, u := range users {
		u.check(t)
		registered, read = registered+len(u.registered), read+len(u.read)
	}
	missing := s.missing(load.acked)
	fmt.Printf("\n%d answers, %d times 503, %d requests without an answer, %d wrong answers\n", load.answered, load.unavailable, load.cut, len(load.wrong))
	fmt.Printf("acknowledged: %d messages, %d of them lost; %d marked as read; %d users registered\n", len(load.acked), len(missing), read, registered)
	for _, limit := range slices.Sorted(maps.Keys(s.transport.slowest)) {
		fmt.Printf("limit %v: the slowest answer after %.2f s\n", limit, s.transport.slowest[limit].Seconds())
	}
	if len(missing) > 0 || len(load.wrong) > 0 || load.cut > 0 || len(s.transport.late) > 0 {
		t.Errorf("lost: %q\nwrong: %q\nlate: %q", missing, load.wrong[:min(5, len(load.wrong))], s.transport.late)
	}
}
