//go:build bench

package main

import (
	"bufio"
	"bytes"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/argon2"
)

const benchTime, benchConnections = 3 * time.Second, 64

// load sends requests over many connections for a while and returns how many were answered in a
// second. next makes the request of a connection from the answer before (nil at first). Answers have
// no other length than Content-Length says.
func load(t *testing.T, address string, connections int, next func(connection int, before []byte) string) float64 {
	t.Helper()
	var answered atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for i := range connections {
		wg.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			in := bufio.NewReaderSize(conn, 16<<10)
			var answer []byte
			for time.Since(start) < benchTime {
				io.WriteString(conn, next(i, answer))
				answer = answer[:0]
				length := 0
				for {
					line, err := in.ReadSlice('\n')
					if err != nil {
						t.Error(err)
						return
					}
					answer = append(answer, line...)
					if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
						fmt.Sscan(string(value), &length)
					}
					if len(line) == 2 {
						break
					}
				}
				if !bytes.HasPrefix(answer, []byte("HTTP/1.1 20")) {
					t.Errorf("%s", answer)
					return
				}
				at := len(answer)
				answer = slices.Grow(answer, length)[:at+length]
				if _, err := io.ReadFull(in, answer[at:]); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(answered.Load()) / time.Since(start).Seconds()
}

// bare serves one handler as our service serves its own: with a request id and one buffered log line.
func bare(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewJSONHandler(io.Discard, nil))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		h := w.Header()
		h.Set("X-Request-Id", "AAAAAAAAAAAAAAAAAAAAAAAAAA")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		handler(w, r)
		log.Info("request", "id", "AAAAAAAAAAAAAAAAAAAAAAAAAA", "user", "ada", "method", r.Method, "route", r.URL.Path,
			"status", 200, "ms", float64(time.Since(start).Microseconds())/1000, "address", "127.0.0.1")
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// report prints the ratio of two loads, the median of seven pairs taken in turn, and the rates of the last pair.
func report(name string, least float64, ours, floor func() float64) {
	var ratios []float64
	var o, f float64
	for range 7 {
		f, o = floor(), ours()
		ratios = append(ratios, o/f)
	}
	slices.Sort(ratios)
	fmt.Printf("%-44s %8.0f/s of %8.0f/s, ratio %.2f (of seven, the median; at least %.2f is wanted)\n", name, o, f, ratios[3], least)
}

// TestBenchAccounts prints what signing in and being signed in cost, against floors measured in the
// same run.
func TestBenchAccounts(t *testing.T) {
	state := newStateDir(t)
	env := []string{"CAIRN_LISTEN=127.0.0.1:0", "CAIRN_STATE_DIR=" + state, "CAIRN_DATASETS_DIR=" + t.TempDir(), "CAIRN_DATABASE_URL=", "CAIRN_TRUSTED_PROXIES=127.0.0.1/32"}
	ts := &testServer{t: t, env: env}
	cfg, err := loadConfig(env)
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1)) // the benchmarks after this one have as much as they want
	limitMemory(cfg)                                     // as main does
	ctx, cancel := context.WithCancel(context.Background())
	stdout, lines := io.Pipe()
	done := make(chan error, 1)
	go func() {
		opts := defaultOptions()
		opts.started = func(s *server) { ts.server, ts.core = s, s.core }
		done <- serve(ctx, cfg, slog.New(slog.NewJSONHandler(io.Discard, nil)), lines, opts)
	}()
	defer func() { cancel(); <-done }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, ts.url, _ = strings.Cut(strings.TrimSpace(line), "listening on ")
	address := strings.TrimPrefix(ts.url, "http://")

	c := ts.signIn("ada", datasetRead)
	b := accountsBench{testServer: ts, cfg: cfg, address: address, ada: c}
	for _, part := range []struct {
		name    string
		measure func(t *testing.T)
	}{
		{"who", b.whoAmI},
		{"refresh", b.refresh},
		{"users", b.users},
		{"login", b.login},
		{"unknown", b.unknownUser},
	} {
		t.Run(part.name, part.measure)
	}
}

// accountsBench is the service that is measured.
type accountsBench struct {
	*testServer
	cfg     config
	address string
	ada     client // signed in
}

// whoAmI measures GET /auth/me and GET /auth/verify against a handler that checks one HMAC, reads one session by its
// key, and writes the same bytes.
func (b accountsBench) whoAmI(t *testing.T) {
	const byKey = `SELECT user_id::text, generation, expires_at FROM sessions WHERE id = $1`
	me := b.ada.must(200, "GET", mePath, nil)
	var callers []client // several, since each may use only half of the pool
	for i := range 16 {
		callers = append(callers, b.signIn(fmt.Sprintf("caller%02d", i), datasetRead))
	}
	for _, path := range []string{mePath, verifyPath} {
		same := func(i int, _ []byte) string {
			return "GET " + path + " HTTP/1.1\r\nHost: cairn\r\nAuthorization: Bearer " + callers[i%16].token + "\r\n\r\n"
		}
		floor := bare(t, func(w http.ResponseWriter, r *http.Request) {
			token, _ := bearerToken(r)
			claims, err := b.keys.Load().verifyAccessToken(token, time.Now(), b.cfg.sessionMax)
			var sess session
			var userID string
			if err == nil {
				err = b.db.QueryRow(r.Context(), byKey, claims.SessionID).Scan(&userID, &sess.Generation, &sess.SessionExpiresAt)
			}
			if err != nil {
				t.Error(err)
			}
			if path == mePath {
				writeBytes(w, 200, "application/json", me.body)
				return
			}
			w.Header().Set("X-Cairn-User", "ada")
			w.Header().Set("X-Cairn-User-Id", "5b2d2a7e-2f5b-4c0e-9a35-0f6c9f3f3f10")
			w.Header().Set("X-Cairn-Permissions", "dataset.read,inbox.read")
			w.WriteHeader(http.StatusNoContent)
		})
		report("GET "+path, 0.75, func() float64 { return load(t, b.address, benchConnections, same) },
			func() float64 { return load(t, floor, benchConnections, same) })
	}
}

// refresh measures POST /auth/refresh against a handler that checks the cookie, signs the same two tokens and writes the
// same answer around one UPDATE … RETURNING of the session, durably committed.
func (b accountsBench) refresh(t *testing.T) {
	ts, cfg, address := b.testServer, b.cfg, b.address
	const rotate = `
		UPDATE sessions
		SET generation = generation + 1, rotated_at = now(), idle_expires_at = least(now() + $2::interval, expires_at)
		WHERE id = $1
		RETURNING generation, least(idle_expires_at, expires_at)`
	cookies, keep := make([]string, benchConnections), make([]string, benchConnections)
	for i := range cookies {
		name := fmt.Sprintf("refresher%02d", i%16) // several, since each may have only a hundred sessions
		if i < 16 {
			ts.addUser(name, datasetRead)
		}
		_, cookies[i] = ts.client().login(name, testPassword)
		_, keep[i] = ts.client().login(name, testPassword) // the floor's
	}
	refresh := func(i int, before []byte) string {
		if _, after, ok := bytes.Cut(before, []byte("__Host-cairn_refresh=")); ok {
			value, _, _ := bytes.Cut(after, []byte(";"))
			cookies[i] = string(value)
		}
		return fmt.Sprintf("POST /api/v1/auth/refresh HTTP/1.1\r\nHost: cairn\r\nX-Forwarded-For: 10.0.0.%d\r\nCookie: __Host-cairn_refresh=%s\r\nContent-Length: 0\r\n\r\n", i, cookies[i])
	}
	caller, err := userNamed(t.Context(), ts.db, "ada")
	if err != nil {
		t.Fatal(err)
	}
	floor := bare(t, func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("__Host-cairn_refresh")
		if err != nil {
			t.Error(err)
			return
		}
		id, _, err := ts.keys.Load().verifyRefresh(cookie.Value)
		sess := session{SessionID: id}
		if err == nil {
			err = ts.db.QueryRow(r.Context(), rotate, id, cfg.refreshTTL).Scan(&sess.Generation, &sess.SessionExpiresAt)
		}
		if err == nil {
			err = ts.accounts.writeTokens(w, caller, sess)
		}
		if err != nil {
			t.Error(err)
		}
	})
	still := func(i int, _ []byte) string {
		return fmt.Sprintf("POST /api/v1/auth/refresh HTTP/1.1\r\nHost: cairn\r\nX-Forwarded-For: 10.0.0.%d\r\nCookie: __Host-cairn_refresh=%s\r\nContent-Length: 0\r\n\r\n", i, keep[i])
	}
	report("POST /api/v1/auth/refresh", 0.85, func() float64 { return load(t, address, benchConnections, refresh) }, func() float64 { return load(t, floor, benchConnections, still) })

}

// users measures a page of 50 users of 100,000 against a handler that runs the same statement, encodes the same rows and
// hashes them for the ETag.
func (b accountsBench) users(t *testing.T) {
	ts, address := b.testServer, b.address
	ts.exec(`INSERT INTO users (username, display_name, status) SELECT 'user' || lpad(i::text, 6, '0'), 'User ' || i, 'active' FROM generate_series(1, 100000) i`)
	ts.exec(`INSERT INTO user_roles SELECT id, 2 FROM users ON CONFLICT DO NOTHING`)
	ts.exec(`VACUUM (ANALYZE)`)
	root := ts.signIn("root", "all")
	page := root.must(200, "GET", "/api/v1/users?limit=50", nil)
	list := "GET /api/v1/users?limit=50 HTTP/1.1\r\nHost: cairn\r\nAuthorization: Bearer " + root.token + "\r\n\r\n"
	floor := bare(t, func(w http.ResponseWriter, r *http.Request) {
		users, err := listUsers(r.Context(), ts.db, userFilter{}, "", 51)
		if err == nil {
			var body []byte
			body, err = encodeJSON(users[:50])
			w.Header().Set("ETag", entityTag(body))
		}
		if err != nil {
			t.Error(err)
		}
		writeBytes(w, 200, "application/json", page.body)
	})
	listed := func(int, []byte) string { return list }
	report("GET /api/v1/users, 50 of 100,000", 0.7, func() float64 { return load(t, address, benchConnections, listed) }, func() float64 { return load(t, floor, benchConnections, listed) })

}

// login measures POST /auth/login against argon2id alone, one a core; and against the least a login can be: the user
// looked up, a hash, one row durably stored, the same answer.
func (b accountsBench) login(t *testing.T) {
	ts, cfg, address := b.testServer, b.cfg, b.address
	caller, err := userNamed(t.Context(), ts.db, "ada")
	if err != nil {
		t.Fatal(err)
	}
	const logins = 8
	hash, err := newPasswordHasher(cfg.argon).hash(t.Context(), testPassword) // addUser's is a cheap one
	if err != nil {
		t.Fatal(err)
	}
	for i := range logins {
		ts.addUser(fmt.Sprintf("user%d", i), datasetRead)
	}
	ts.exec(`UPDATE users SET password_hash = $1`, hash)
	login := func(i int, _ []byte) string {
		body := fmt.Sprintf(`{"username":"user%d","password":"%s"}`, i, testPassword)
		return fmt.Sprintf("POST /api/v1/auth/login HTTP/1.1\r\nHost: cairn\r\nX-Forwarded-For: 10.0.0.%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
	}
	hashes := func() float64 {
		var n atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				for time.Since(start) < benchTime {
					argon2.IDKey([]byte(testPassword), make([]byte, argonSaltLen), 2, 19456, 1, argonKeyLen)
					n.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(n.Load()) / time.Since(start).Seconds()
	}
	ours := func() float64 { return load(t, address, logins, login) }
	report("POST /api/v1/auth/login", 0.9, ours, hashes)

	floor := bare(t, func(w http.ResponseWriter, r *http.Request) {
		const insert = `
			INSERT INTO sessions (id, user_id, idle_expires_at, expires_at)
			VALUES ($1, $2, now() + interval '30 days', now() + interval '90 days')`
		var in struct{ Username, Password string }
		err := json.NewDecoder(r.Body).Decode(&in)
		found, e := findPasswordRecord(r.Context(), ts.db, in.Username)
		if err = errors.Join(err, e); err == nil {
			var leave func()
			if leave, err = ts.accounts.hasher.queue.acquire(r.Context(), ""); err == nil {
				_, err = ts.accounts.hasher.verifyInSlot(found.PasswordHash, in.Password)
				leave()
			}
		}
		sess := session{Generation: 1, SessionExpiresAt: time.Now().Add(cfg.refreshTTL)}
		cryptorand.Read(sess.SessionID[:])
		if err == nil {
			_, err = ts.db.Exec(r.Context(), insert, sess.SessionID, found.ID)
		}
		if err == nil {
			err = ts.accounts.writeTokens(w, caller, sess)
		}
		if err != nil {
			t.Error(err)
		}
	})
	report("POST /api/v1/auth/login, of a bare login", 0.95, ours, func() float64 { return load(t, floor, logins, login) })

}

// unknownUser shows that an unknown user and a wrong password take the same time.
func (b accountsBench) unknownUser(t *testing.T) {
	ts := b.testServer
	var unknown, wrong []time.Duration
	try := func(name string) time.Duration {
		ts.exec(`TRUNCATE throttles`)
		start := time.Now()
		if a := ts.client().do("POST", "/api/v1/auth/login", map[string]string{"username": name, "password": "a wrong password"}); a.status != 401 {
			t.Errorf("%s", a.body)
		}
		return time.Since(start)
	}
	for i := range 200 {
		// In no order, or the garbage collector would always fall on the same one.
		if rand.IntN(2) == 0 {
			unknown = append(unknown, try(fmt.Sprintf("nobody%d", i)))
			wrong = append(wrong, try("ada"))
		} else {
			wrong = append(wrong, try("ada"))
			unknown = append(unknown, try(fmt.Sprintf("nobody%d", i)))
		}
	}
	slices.Sort(unknown)
	slices.Sort(wrong)
	u, w := unknown[100], wrong[100]
	fmt.Printf("%-44s %v and %v, %+.1f %% (200 of each in turn, medians; within 5 %% is wanted)\n", "login of an unknown user, with a wrong password", u, w, 100*(float64(u)/float64(w)-1))
}
