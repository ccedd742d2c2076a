package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// mixedLoad is what users did to two instances that are killed now and then, and what was wrong about the answers.
type mixedLoad struct {
	mu                         sync.Mutex
	urls                       []string // of the instances that run
	acked                      []string // titles of the messages that were answered 201
	wrong                      []string
	answered, unavailable, cut int // answers; those that were 503; requests that got none
}

// mixedUser is one of those users: it alone changes its data, so it knows what every answer has to be.
type mixedUser struct {
	*mixedLoad
	client
	name, display, cookie string
	random                *rand.Rand
	changes               int // how often the user asked for another name
}

// ask sends a request to any instance. ok says that it was answered, and not by 503.
func (u *mixedUser) ask(method, path string, body any, headers ...string) (a answer, ok bool) {
	u.mu.Lock()
	u.client.url = u.urls[u.random.IntN(len(u.urls))]
	u.mu.Unlock()
	encoded, err := json.Marshal(body)
	if err == nil {
		a, err = u.send(method, path, strings.NewReader(string(encoded)), headers...)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil:
		u.cut++
	case a.status == http.StatusServiceUnavailable:
		u.unavailable++
	default:
		u.answered++
		return a, true
	}
	return a, false
}

// expect notes an answer that is not as it has to be.
func (u *mixedUser) expect(right bool, what string, a answer) {
	if !right {
		u.mu.Lock()
		u.wrong = append(u.wrong, fmt.Sprintf("%s: %s: %d %s", u.name, what, a.status, a.body))
		u.mu.Unlock()
	}
}

// login gets an access token and a cookie, as often as it takes.
func (u *mixedUser) login(ctx context.Context) {
	u.token = ""
	for ctx.Err() == nil {
		if a, ok := u.ask("POST", "/api/v1/auth/login", map[string]string{"username": u.name, "password": testPassword}); ok {
			u.expect(a.status == 200, "login", a)
			u.token, u.cookie = a.text("access_token"), refreshCookieOf(a)
			return
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// step does one thing, and looks at the answer.
func (u *mixedUser) step(ctx context.Context, dataset string) {
	switch u.random.IntN(10) {
	case 0:
		u.login(ctx)
	case 1:
		a, ok := u.ask("POST", "/api/v1/auth/refresh", map[string]string{}, "Cookie: __Host-cairn_refresh="+u.cookie)
		if !ok { // the user does not know whether the token was replaced
			u.login(ctx)
			return
		}
		u.expect(a.status == 200, "refresh", a)
		u.token, u.cookie = a.text("access_token"), refreshCookieOf(a)
	case 2, 3:
		if title, path := u.readOwnMessage(); path != "" {
			if a, ok := u.ask("GET", path, nil); ok {
				u.expect(a.status == 200 && a.text("title") == title && a.json["read"] == true, "get "+path, a)
			}
		}
	case 4:
		wish := fmt.Sprintf("User %x", u.random.Uint64())
		u.changes++
		if a, ok := u.ask("PATCH", "/api/v1/auth/me", map[string]string{"display_name": wish}); ok {
			if a.status == 429 && u.changes > 20 { // 20 changes an hour are free
				return
			}
			u.expect(a.status == 200 && a.text("display_name") == wish, "change name", a)
			u.display = wish
		} else {
			u.display = "" // the user does not know whether it was changed
		}
	case 5:
		if a, ok := u.ask("GET", "/api/v1/users?q="+u.name, nil); ok {
			items := a.items()
			u.expect(a.status == 200 && len(items) == 1 && (u.display == "" || items[0]["display_name"] == u.display), "find oneself", a)
		}
	case 6:
		if a, ok := u.ask("POST", dataset+"/analyses", map[string]bool{"force": true}); ok {
			u.expect(a.status == 202 || a.status == 409, "analyse", a)
		}
	case 7:
		if a, ok := u.ask("GET", dataset+"/files?limit=500&bbox=-180,-90,180,90", nil); ok {
			u.expect(a.status == 200 && len(a.items()) == 200, "list files", a)
		}
	default:
		if a, ok := u.ask("GET", "/api/v1/auth/me", nil); ok {
			u.expect(a.status == 200 && a.text("username") == u.name, "who am I", a)
		}
	}
}

// readOwnMessage creates a message and marks it as read. If both were acknowledged, it returns title and path.
func (u *mixedUser) readOwnMessage() (title, path string) {
	title = fmt.Sprintf("%s %x", u.name, u.random.Uint64())
	a, ok := u.ask("POST", "/api/v1/system-messages", map[string]string{"title": title, "body": "b"})
	if !ok {
		return "", ""
	}
	u.expect(a.status == 201, "create message", a)
	u.mu.Lock()
	u.acked = append(u.acked, title)
	u.mu.Unlock()
	path = a.header.Get("Location")
	if a, ok = u.ask("POST", path+"/read", map[string]any{}); !ok {
		return "", ""
	}
	u.expect(a.status == 204, "mark "+path, a)
	return title, path
}

// TestMixedLoad: users do all kinds of things on two instances, of which one, or PostgreSQL, is killed and started again
// all the while: no acknowledged write is lost, no answer is wrong, and none is a 5xx other than 503.
func TestMixedLoad(t *testing.T) {
	t.Parallel()
	p := startOwnPostgres(t)
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+p.url())
	root := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 4, 50)
	dataset := root.addDataset("tiles")
	root.analyze(dataset, nil)
	const n = 6
	for i := range n {
		ts.addUser(fmt.Sprint("user", i), "all")
	}
	ts.stop()
	envs := [][]string{ts.env, append(slices.Clone(ts.env), "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())}
	instances := []*process{startProcess(t, envs[0]), startProcess(t, envs[1])}
	load := &mixedLoad{urls: []string{instances[0].url, instances[1].url}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var users sync.WaitGroup
	for i := range n {
		users.Go(func() {
			u := &mixedUser{mixedLoad: load, client: ts.client(), name: fmt.Sprint("user", i), random: rand.New(rand.NewPCG(uint64(i), 0))}
			for u.login(ctx); ctx.Err() == nil; {
				u.step(ctx, dataset)
			}
		})
	}
	answered := func() int {
		load.mu.Lock()
		defer load.mu.Unlock()
		return load.answered
	}
	random, began, memory := rand.New(rand.NewPCG(1, 1)), time.Now(), []int{}
	kills := 0
	for ; kills < 3 || soakOr(1, 0) == 1 && time.Since(began) < 10*time.Minute; kills++ {
		before := answered()
		waitFor(t, "further answers", func() bool { return answered() > before+soakOr(1000, 100) })
		if which := random.IntN(3); which == 2 {
			p.kill()
			p.start()
		} else {
			memory = append(memory, resident(t, instances[which].cmd.Process.Pid))
			instances[which].kill()
			again := startProcess(t, envs[which])
			load.mu.Lock()
			instances[which], load.urls[which] = again, again.url
			load.mu.Unlock()
		}
	}
	for _, instance := range instances {
		memory = append(memory, resident(t, instance.cmd.Process.Pid))
	}
	stop()
	users.Wait()
	conn, err := pgx.Connect(t.Context(), p.url())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := collect[struct{ Title string }](t.Context(), conn, "list", `SELECT title FROM system_messages`)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]int{}
	for _, row := range rows {
		there[row.Title]++
	}
	missing := slices.DeleteFunc(slices.Clone(load.acked), func(title string) bool { return there[title] == 1 })
	t.Logf("%v: %d kills, %d answers, %d times 503, %d requests without an answer; %d writes acknowledged, %d of them lost; %d wrong answers; memory at the end of each life %d to %d MiB",
		time.Since(began).Round(time.Second), kills, load.answered, load.unavailable, load.cut, len(load.acked), len(missing), len(load.wrong),
		slices.Min(memory)>>20, slices.Max(memory)>>20)
	if len(missing) > 0 || len(load.wrong) > 0 {
		t.Errorf("lost: %q\nwrong: %q", missing[:min(5, len(missing))], load.wrong[:min(5, len(load.wrong))])
	}
}
