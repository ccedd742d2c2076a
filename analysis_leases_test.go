package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// changes reads what an analysis found changed, as "change path", over as many pages as there are.
func (c client) changes(analysis, query string) (all []string) {
	c.t.Helper()
	for cursor := ""; ; {
		a := c.must(200, "GET", analysis+"/changes?limit=7"+query+cursor, nil)
		for _, item := range a.items() {
			all = append(all, fmt.Sprint(item["change"], " ", item["path"]))
		}

		next, more := a.json["next_cursor"].(string)
		if !more {
			return all
		}

		cursor = "&cursor=" + next
	}
}

// TestKilledInstances lets two instances analyse a folder that changes before each round, and kills
// one of them, sometimes with PostgreSQL, somewhere in the middle. Each analysis ends by itself,
// and its counts, changes and rows are exact.
func TestKilledInstances(t *testing.T) {
	t.Parallel()
	db := startOwnPostgres(t)
	killInstances(t, soakOr(50, 5), db, db.url())
}

// killInstances is TestKilledInstances with instances that reach the database under this URL.
func killInstances(t *testing.T, rounds int, db *ownPostgres, url string) {
	t.Helper()
	ts := startServer(t, nil, "CAIRN_DATABASE_URL="+url)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 10, 100)
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_CHUNK=20")
	envs := [][]string{env, append(slices.Clone(env), "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())}
	services := []*process{startProcess(t, envs[0]), startProcess(t, envs[1])}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	files := map[string]bool{} // as they are to be
	for d := range 10 {
		for f := range 100 {
			files[fmt.Sprintf("d%d/t%d.tif", d, f)] = true
		}
	}

	stamp := time.Now().Add(-100 * time.Hour)
	for round := range rounds {
		var want []string
		next := map[string]bool{}
		for path := range files {
			stamp = stamp.Add(time.Second)
			name := filepath.Join(dir, path)
			switch {
			case round == 0:
				want = append(want, "added "+path)
				next[path] = true
			case r.IntN(20) == 0:
				want = append(want, "removed "+path)
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			case r.IntN(10) == 0:
				want = append(want, "changed "+path)
				if err := errors.Join(os.WriteFile(name, geographicTIFF(float64(round), 0), 0o644), os.Chtimes(name, stamp, stamp)); err != nil {
					t.Fatal(err)
				}
				fallthrough
			default:
				next[path] = true
			}
		}

		for i := range r.IntN(100) {
			path := fmt.Sprintf("d%d/new%d-%d.tif", r.IntN(10), round, i)
			if err := os.WriteFile(filepath.Join(dir, path), sampleTIFF(), 0o644); err != nil {
				t.Fatal(err)
			}
			want = append(want, "added "+path)
			next[path] = true
		}

		files = next
		total := len(files)

		victim := r.IntN(2)
		c.url = services[r.IntN(2)].url
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": r.IntN(2) == 0}).header.Get("Location")
		threshold := r.IntN(total)
		waitFor(t, "progress", func() bool {
			a := c.must(200, "GET", location, nil)
			return a.json["finished_at"] != nil || a.json["progress"].(map[string]any)["done"].(float64) >= float64(threshold)
		})

		withDatabase := r.IntN(3) == 0
		services[victim].cmd.Process.Kill()
		if withDatabase {
			db.kill()
		}

		<-services[victim].exit
		if withDatabase {
			db.start()
			waitFor(t, "the database", func() bool {
				conn, err := pgx.Connect(t.Context(), url)
				if err == nil {
					_, err = conn.Exec(t.Context(), `SELECT`)
					conn.Close(t.Context())
				}
				return err == nil
			})
		}

		services[victim] = startProcess(t, envs[victim])
		c.url = services[r.IntN(2)].url
		waitFor(t, "an answer", func() bool { a, err := c.try("GET", location); return err == nil && a.status == 200 })
		a := c.finished(location)
		n := func(change string) (n int) {
			for _, w := range want {
				if strings.HasPrefix(w, change) {
					n++
				}
			}
			return n
		}

		exact := [6]int{total, n("added"), n("changed"), total - n("added") - n("changed"), n("removed"), 0}
		if a.text("state") != stateSucceeded || counts(a) != exact {
			t.Errorf("round %d: want %v, %s", round, exact, a.body)
		}

		byPath := func(a, b string) int {
			_, a, _ = strings.Cut(a, " ")
			_, b, _ = strings.Cut(b, " ")
			return strings.Compare(a, b)
		}

		slices.SortFunc(want, byPath)
		if got := c.changes(location, ""); !slices.Equal(got, want) {
			t.Errorf("round %d: %d changes, want %d", round, len(got), len(want))
		}

		sameRows(t, c.files(dataset), dir)
	}
}

// TestRestartedInstance: an instance that starts again after it was killed takes its analysis back
// at once, though its lease lasts for long.
func TestRestartedInstance(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 5)
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_LIFE=1h", "CAIRN_TEST_CHUNK=3")
	p := startProcess(t, append(slices.Clone(env), "CAIRN_TEST_DIE_ON=d1/t2.tif"))
	c.url = p.url
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	<-p.exit
	p = startProcess(t, env)
	c.url = p.url
	if a := c.finished(location); counts(a) != [6]int{10, 10, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestCopiedStateDirectory: a service on a copy of the state directory of another that lives takes
// its work over, and what the other does after that counts for nothing.
func TestCopiedStateDirectory(t *testing.T) {
	t.Parallel()
	reading := make(chan bool)
	proceed := make(chan bool)
	var reads atomic.Int64
	one := startServer(t, func(o *options) {
		o.batchSize = 3
		o.beforeRead = func(string) {
			if reads.Add(1) <= 2 { // the first file of two readers
				reading <- true
				<-proceed
			}
		}
	})

	c := one.signIn("root", "all")
	makeTiles(t, filepath.Join(one.datasets, "tiles"), 2, 5)
	dataset := c.addDataset("tiles")
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	for range 2 {
		<-reading
	}

	copied := t.TempDir()
	lock, err := os.ReadFile(filepath.Join(one.cfg.stateDir, "lock"))
	if err != nil || string(lock) != one.operations.instance {
		t.Errorf("%q %v", lock, err)
	}

	if err := os.WriteFile(filepath.Join(copied, "lock"), lock, 0o600); err != nil {
		t.Fatal(err)
	}

	two := startServer(t, nil, append(one.env, "CAIRN_STATE_DIR="+copied, "CAIRN_KEYS_FILE="+one.cfg.keysPath())...)
	if two.operations.instance == one.operations.instance {
		t.Error("two services have one id")
	}

	if a := c.finished(location); counts(a) != [6]int{10, 10, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}

	close(proceed)
	if a := c.analyze(dataset, nil); counts(a)[0] != 10 || len(c.files(dataset)) != 10 {
		t.Errorf("the next: %s", a.body)
	}
}

// ownsNothing keeps an instance from claiming an analysis until resume is called.
func (ts *testServer) ownsNothing() (resume func()) {
	ts.analyzer.hung.Add(maxHung)
	waitFor(ts.t, "running claims", func() bool {
		none := true
		ts.analyzer.held.Range(func(any, any) bool { none = false; return false })
		return none
	})
	return func() { ts.analyzer.hung.Add(-maxHung) }
}

// TestBlindInstance: an instance that does not see the directory says so and leaves the analysis to
// another, also with force; where none sees it, it fails and keeps every row.
func TestBlindInstance(t *testing.T) {
	t.Parallel()
	one := startServer(t, func(o *options) { o.leaseTTL = time.Second })
	c := one.signIn("root", "all")
	dir := filepath.Join(one.datasets, "tiles")
	makeTiles(t, dir, 4, 10)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	two := startServer(t, func(o *options) { o.leaseTTL = time.Second },
		append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath(), "CAIRN_DATASETS_DIR="+t.TempDir())...)
	for _, force := range []bool{false, true} {
		one.exec(`UPDATE elevation_dataset_file_meta SET reader_version = 0`)
		resume := one.ownsNothing()
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": force}).header.Get("Location")
		waitFor(t, "the other to try", func() bool { return one.queryInt(`SELECT max(cardinality(blind)) FROM analyses`) > 0 })
		resume()
		a := c.finished(location)
		warnings, _ := a.json["warnings"].([]any)
		if counts(a) != [6]int{40, 0, 0, 40, 0, 0} || len(warnings) != 1 || !strings.Contains(fmt.Sprint(warnings...), "leaves the work") {
			t.Errorf("force %v: %s", force, a.body)
		}

		one.exec(`UPDATE analyses SET blind = '{}'`)
	}

	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}

	if a := c.analyze(dataset, nil); a.text("failure_code") != failureUnavailable || len(c.files(dataset)) != 40 {
		t.Errorf("nobody sees it: %s", a.body)
	}

	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}

	// The one that sees it dies, or stops: the other then says that it is not there.
	two.exec(`UPDATE analyses SET blind = '{}'`)
	one.stop()
	c.url = two.url
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureUnavailable || len(c.files(dataset)) != 40 {
		t.Errorf("nobody is left who sees it: %s", a.body)
	}
}

// TestRefusedBatch: a batch that the database refuses again and again fails the analysis.
func TestRefusedBatch(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	ts.exec(`ALTER TABLE analyses ADD CONSTRAINT refused CHECK (total = 0)`)
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureInternal {
		t.Errorf("%s", a.body)
	}

	if n := strings.Count(ts.log.String(), "count files"); n != maxFailures {
		t.Errorf("%d attempts", n)
	}
}

// TestUnreadableRows: if the program cannot read what the database has stored, the analysis fails
// after some attempts. It is not tried for ever.
func TestUnreadableRows(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)

	// A column of another type: the driver refuses its values, and not the database.
	ts.exec(`ALTER TABLE elevation_dataset_file_meta ALTER COLUMN changed_ns TYPE text`)
	a := c.analyze(dataset, nil)
	check(t, "state", a.text("state"), stateFailed)
	check(t, "failure", a.text("failure_code"), failureInternal)
}

// TestProgress: while it runs, an analysis says how far it is and, from the second on, of how much.
func TestProgress(t *testing.T) {
	t.Parallel()
	reading := make(chan bool, 100)
	proceed := make(chan bool, 100)
	ts := startServer(t, func(o *options) {
		o.batchSize = 1
		o.beforeRead = func(string) {
			reading <- true
			<-proceed
		}
	})

	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 40)
	dataset := c.addDataset("tiles")
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	for done := range 41 {
		waitFor(t, "progress", func() bool {
			a := c.must(200, "GET", location, nil)
			p := a.json["progress"].(map[string]any)
			expected := p["expected"]
			if a.json["finished_at"] == nil && (expected != nil || p["seconds_left"] != nil) {
				encoded, _ := json.Marshal(p)
				t.Errorf("%s", encoded)
			}

			return p["done"] == float64(done)
		})

		if done < 40 {
			proceed <- true
		}
	}

	close(proceed)
	c.finished(location)
	location = c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	if p := c.must(200, "GET", location, nil).json["progress"].(map[string]any); p["expected"] != 40.0 {
		t.Errorf("the second: %v", p)
	}

	c.finished(location)
}

// views starts two instances that share a database, but not what lies below the dataset root.
func views(t *testing.T, one, two func(*options)) (first, second *testServer, c client) {
	t.Helper()
	small := func(adjust func(*options)) func(*options) {
		return func(o *options) {
			o.batchSize = 20
			if adjust != nil {
				adjust(o)
			}
		}
	}

	first = startServer(t, small(one))
	second = startServer(t, small(two), append(first.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+first.cfg.keysPath(),
		"CAIRN_DATASETS_DIR="+t.TempDir())...)
	return first, second, first.signIn("root", "all")
}

// TestFirstAnalysisOfBlindInstance: of two instances one sees an empty folder, which may be so the
// first time. It leaves the work to the other, and every file gets its row.
func TestFirstAnalysisOfBlindInstance(t *testing.T) {
	t.Parallel()
	one, two, c := views(t, nil, nil)
	dir := filepath.Join(one.datasets, "tiles")
	makeTiles(t, dir, 4, 50)
	if err := os.Mkdir(filepath.Join(two.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}

	dataset := c.addDataset("tiles")
	resume := one.ownsNothing()
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(t, "the blind one to try", func() bool { return one.queryInt(`SELECT cardinality(blind) FROM analyses`) == 1 })
	resume()
	a := c.finished(location)
	warnings := a.json["warnings"].([]any)
	if counts(a) != [6]int{200, 200, 0, 0, 0, 0} || len(warnings) != 1 || !strings.Contains(fmt.Sprint(warnings...), "leaves the work") {
		t.Errorf("%s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
	// Where nobody sees a file the first time, there is none.
	for _, ts := range []*testServer{one, two} {
		if err := os.Mkdir(filepath.Join(ts.datasets, "empty"), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	if a := c.analyze(c.addDataset("empty"), nil); a.text("state") != stateSucceeded || counts(a) != [6]int{} {
		t.Errorf("empty for both: %s", a.body)
	}
}

// TestFilesOfAnotherView: the owner of a first analysis ends in the middle, and the instance that
// takes over sees another folder. The analysis fails, and keeps the rows that were stored.
func TestFilesOfAnotherView(t *testing.T) {
	t.Parallel()
	for _, stray := range []bool{false, true} { // the second instance sees one file, though none of these
		t.Run(fmt.Sprint(stray), func(t *testing.T) {
			t.Parallel()
			var reads atomic.Int64
			proceed := make(chan bool)
			one, two, c := views(t, func(o *options) {
				o.beforeRead = func(string) {
					if reads.Add(1) > 200 {
						<-proceed
					}
				}
			}, nil)

			resume := two.ownsNothing()
			makeTiles(t, filepath.Join(one.datasets, "tiles"), 10, 100)
			if err := os.Mkdir(filepath.Join(two.datasets, "tiles"), 0o755); err != nil {
				t.Fatal(err)
			}

			if stray {
				if err := os.WriteFile(filepath.Join(two.datasets, "tiles/NOT-MOUNTED"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}

			dataset := c.addDataset("tiles")
			location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
			waitFor(t, "rows", func() bool { return one.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta`) > massRemoval })
			stopped := make(chan bool)
			go func() { one.stop(); close(stopped) }()
			waitFor(t, "the stop", func() bool { return one.stopping.Err() != nil })
			close(proceed)
			<-stopped
			resume()
			c.url = two.url
			before := two.queryInt(`SELECT count(*) FROM elevation_dataset_file_meta`)
			code := failureUnavailable
			if stray {
				code = failureMassRemoval
				before++
			}

			if a := c.finished(location); a.text("failure_code") != code || len(c.files(dataset)) != before {
				t.Errorf("%d rows, %d before, %s", len(c.files(dataset)), before, a.body)
			}
		})
	}
}

// analyzeBy analyses a dataset with one of some instances as the owner. The others own nothing
// until it has passed the analysis on, or has ended it.
func (c client) analyzeBy(dataset string, owner *testServer, others ...*testServer) answer {
	c.t.Helper()
	var resume []func()
	for _, other := range others {
		resume = append(resume, other.ownsNothing())
	}

	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(c.t, "the owner's look", func() bool {
		return owner.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL AND missed_by = '{}'`) == 0
	})
	for _, f := range resume {
		f()
	}

	return c.finished(location)
}

// TestRowsOfAnotherView: an instance that lacks a nested share does not remove its rows as long as
// another sees the files. The analysis fails, because the next one might not be so lucky.
func TestRowsOfAnotherView(t *testing.T) {
	t.Parallel()
	one, two, c := views(t, nil, nil)
	for _, ts := range []*testServer{one, two} {
		makeTiles(t, filepath.Join(ts.datasets, "tiles"), 4, 50)
	}

	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	dir := filepath.Join(two.datasets, "tiles")
	if err := os.RemoveAll(filepath.Join(dir, "d1")); err != nil {
		t.Fatal(err)
	}

	if a := c.analyzeBy(dataset, one, two); a.text("state") != stateSucceeded || counts(a)[4] != 0 {
		t.Errorf("the one that sees them: %s", a.body)
	}

	a := c.analyzeBy(dataset, two, one)
	if a.text("failure_code") != failureViewsDiffer || !strings.Contains(a.text("failure"), "50 files") || len(c.files(dataset)) != 200 {
		t.Errorf("the other: %d rows, %s", len(c.files(dataset)), a.body)
	}

	// Gone for both, they go.
	if err := os.RemoveAll(filepath.Join(one.datasets, "tiles/d1")); err != nil {
		t.Fatal(err)
	}

	if a := c.analyze(dataset, nil); counts(a)[0] != 150 || counts(a)[4] != 50 {
		t.Errorf("gone for both: %s", a.body)
	}
}

// TestRowsOfThirdView: rows whose files two instances do not find stay as long as a third one finds
// them.
func TestRowsOfThirdView(t *testing.T) {
	t.Parallel()
	one, two, c := views(t, nil, nil)
	three := startServer(t, nil, append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath(),
		"CAIRN_DATASETS_DIR="+t.TempDir())...)
	for _, ts := range []*testServer{one, two, three} {
		makeTiles(t, filepath.Join(ts.datasets, "tiles"), 4, 50)
	}

	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	gone := func(ts *testServer) {
		if err := os.RemoveAll(filepath.Join(ts.datasets, "tiles/d1")); err != nil {
			t.Fatal(err)
		}
	}

	gone(one)
	gone(two)
	for i, owner := range []*testServer{one, two} {
		others := []*testServer{two, one}[i : i+1]
		others = append(others, three)
		a := c.analyzeBy(dataset, owner, others...)
		if a.text("failure_code") != failureViewsDiffer || counts(a)[4] != 0 || len(c.files(dataset)) != 200 {
			t.Errorf("%d rows, %s", len(c.files(dataset)), a.body)
		}
	}

	gone(three)
	if a := c.analyze(dataset, nil); counts(a)[0] != 150 || counts(a)[4] != 50 {
		t.Errorf("gone for all: %s", a.body)
	}
}

// TestThirdInstanceIsAsked: rows stay until the last living instance has looked for their files.
func TestThirdInstanceIsAsked(t *testing.T) {
	t.Parallel()
	one, two, c := views(t, nil, nil)
	three := startServer(t, nil, append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath(),
		"CAIRN_DATASETS_DIR="+t.TempDir())...)
	for _, ts := range []*testServer{one, two, three} {
		makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 10)
	}

	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	for _, ts := range []*testServer{one, two} {
		if err := os.RemoveAll(filepath.Join(ts.datasets, "tiles/d1")); err != nil {
			t.Fatal(err)
		}
	}

	for _, gone := range []bool{false, true} {
		if gone {
			if err := os.RemoveAll(filepath.Join(three.datasets, "tiles/d1")); err != nil {
				t.Fatal(err)
			}
		}

		resume := three.ownsNothing()
		location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
		waitFor(t, "two of three to look", func() bool {
			return one.queryInt(`SELECT count(*) FROM analyses WHERE cardinality(missed_by) = 2 AND owner IS NULL`) == 1
		})
		if n := len(c.files(dataset)); n != 20 {
			t.Errorf("%d rows before the third instance looked, want 20", n)
		}

		resume()
		a := c.finished(location)
		want := failureViewsDiffer
		rows := 20
		if gone {
			want = ""
			rows = 10
		}

		if a.text("failure_code") != want || len(c.files(dataset)) != rows {
			t.Errorf("gone for the third %v: %d rows, want %d; %s", gone, len(c.files(dataset)), rows, a.body)
		}
	}
}

// TestFileBackBetweenLooks: a file comes back after one instance has missed it. The views do not
// differ, whichever instance looks next.
func TestFileBackBetweenLooks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"the other looks", "the same instance looks again"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two, c := views(t, nil, nil)
			for _, ts := range []*testServer{one, two} {
				makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 10)
			}

			dataset := c.addDataset("tiles")
			c.analyze(dataset, nil)
			move := func(from, to string) {
				t.Helper()
				for _, ts := range []*testServer{one, two} {
					dir := filepath.Join(ts.datasets, "tiles/d1")
					if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
						t.Fatal(err)
					}
				}
			}

			move("t3.tif", "../../t3.tif")
			resume := two.ownsNothing()
			location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
			waitFor(t, "the first look", func() bool {
				return one.queryInt(`SELECT count(*) FROM analyses WHERE missed_by <> '{}' AND owner IS NULL`) == 1
			})
			move("../../t3.tif", "t3.tif")
			if name == "the other looks" {
				resume()
			} else {
				one.exec(`UPDATE analyses SET missed_at = now() - interval '6 minutes'`)
			}

			a := c.finished(location)
			if a.text("state") != stateSucceeded || counts(a)[4] != 0 || len(c.files(dataset)) != 20 {
				t.Errorf("%d rows, want 20; %s", len(c.files(dataset)), a.body)
			}
		})
	}
}

// TestDeathInChecks: a program that ends while it checks one dataset counts that for no other.
func TestDeathInChecks(t *testing.T) {
	t.Parallel()
	ts, c, _ := startQueued(t)
	makeTiles(t, filepath.Join(ts.datasets, "other"), 1, 1)
	c.must(202, "POST", c.addDataset("other")+"/analyses", nil)
	ts.exec(`INSERT INTO instances VALUES ('dead', '', '{}', now(), now(), now())`)
	for _, test := range []struct{ name, steps, want string }{
		{"one of two is checked", "{check,merge}", "{1,0}"},
		{"both are read", "{merge,merge}", "{1,1}"},
		{"both are checked", "{check,check}", "{1,1}"},
	} {
		ts.exec(`UPDATE instances SET alive_since = now() - interval '1 day' WHERE id <> 'dead'`)
		ts.exec(`UPDATE analyses SET owner = 'dead', owner_token = gen_random_uuid(), deaths = 0, step = ($1::text[])[id]`,
			test.steps)
		waitFor(t, "the release", func() bool { return ts.queryInt(`SELECT count(*) FROM analyses WHERE owner = 'dead'`) == 0 })
		if n := ts.queryInt(`SELECT count(*) FROM analyses WHERE deaths = ($1::int[])[id]`, test.want); n != 2 {
			t.Errorf("%s: the deaths are not %s", test.name, test.want)
		}
	}
}

// TestVanishedFile: a file that is gone between the walk and its reading is no row, and is warned
// of.
func TestVanishedFile(t *testing.T) {
	t.Parallel()
	var dir string
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(path string) { os.Remove(filepath.Join(dir, "d0/t3.tif")) }
	})
	c := ts.signIn("root", "all")
	dir = filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 1, 5)
	dataset := c.addDataset("tiles")
	a := c.analyze(dataset, nil)
	if counts(a) != [6]int{4, 4, 0, 0, 0, 0} || !strings.Contains(fmt.Sprint(a.json["warnings"]), "d0/t3.tif") {
		t.Errorf("%s", a.body)
	}

	sameRows(t, c.files(dataset), dir)
}

// TestInstanceThatNeverLooks: an instance lives, but owns nothing because its file system hangs. It
// holds up neither an analysis that is passed on to it, nor one whose directory the other does not
// see.
func TestInstanceThatNeverLooks(t *testing.T) {
	t.Parallel()
	one, two, c := views(t, nil, nil)
	two.ownsNothing()
	dir := filepath.Join(one.datasets, "tiles")
	makeTiles(t, dir, 2, 5)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	if err := os.RemoveAll(filepath.Join(dir, "d1")); err != nil {
		t.Fatal(err)
	}

	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(t, "the analysis to be passed on", func() bool {
		return one.queryInt(`SELECT count(*) FROM analyses WHERE missed_by <> '{}' AND owner IS NULL`) == 1
	})
	one.exec(`UPDATE analyses SET missed_at = now() - interval '6 minutes'`)
	if a := c.finished(location); counts(a) != [6]int{5, 0, 0, 5, 5, 0} {
		t.Errorf("passed on: %s", a.body)
	}

	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}

	location = c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(t, "the analysis to be left to the other", func() bool {
		return one.queryInt(`SELECT count(*) FROM analyses WHERE blind <> '{}' AND owner IS NULL AND finished_at IS NULL`) == 1
	})
	one.exec(`UPDATE analyses SET blind_at = now() - interval '6 minutes'`)
	if a := c.finished(location); a.text("failure_code") != failureUnavailable || len(c.files(dataset)) != 5 {
		t.Errorf("not seen: %s", a.body)
	}
}

// TestLateClaim: a claim may be committed long after the instance gave up on it, because a commit
// waits for a synchronous standby and nobody sees the row until then. It does not hold up the
// analysis.
func TestLateClaim(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	network := newLossyNetwork(t, filepath.Join(suite.dir, "data/.s.PGSQL.5432"))
	_, port, _ := net.SplitHostPort(network.listener.Addr().String())
	_, database, _ := strings.Cut(direct, "dbname=")
	ts := startServer(t, func(o *options) { o.workers = 1 },
		"CAIRN_DATABASE_URL=host=127.0.0.1 port="+port+" user=cairn dbname="+database+" sslmode=disable")
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "d"), 1, 3)
	dataset := c.addDataset("d")
	ts.exec(`CREATE SEQUENCE claims`)
	ts.exec(`
		CREATE FUNCTION count_claims() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN PERFORM nextval('claims'); RETURN NULL; END $$`)
	ts.exec(`CREATE TRIGGER claims BEFORE UPDATE OF started_at ON analyses EXECUTE FUNCTION count_claims()`)
	ts.exec(`
		CREATE FUNCTION wait_for_standby() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	ts.exec(`
		CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON analyses
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_standby()`)
	standby, err := pgx.Connect(t.Context(), direct)
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Close(context.Background())
	if _, err := standby.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}

	analysis := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	waitFor(t, "the claim to wait", func() bool {
		return ts.queryInt(`
			SELECT count(*)
			FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND objid = 1
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
	})

	claims := func() int { return ts.queryInt(`SELECT last_value FROM claims`) }
	before := claims()
	network.cut() // so that no request to cancel the claim arrives
	waitFor(t, "the outage to be noticed", ts.database.down.Load)
	network.mend()
	waitFor(t, "the database to be reachable", func() bool { return !ts.database.down.Load() })
	waitFor(t, "the claim to be given up", func() bool { return claims() > before })
	if _, err := standby.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}

	if a := c.finished(analysis); a.text("state") != stateSucceeded || counts(a) != [6]int{3, 3, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestLeaseAfterKeyChange: an instance that signs with another key keeps its lease and its work.
// When it stops, it has used only that key just now.
func TestLeaseAfterKeyChange(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	proceed := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.leaseTTL = time.Second
		o.beforeRead = func(string) { reads.Add(1); <-proceed }
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	location := c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil).header.Get("Location")
	waitFor(t, "the read", func() bool { return reads.Load() == 1 })
	promote := func() (former, signer string) {
		t.Helper()
		former = ts.keys.Load().keys[0].fingerprint
		added := must(ts.command("keys", "add"))
		must(ts.command("keys", "promote", strings.TrimSuffix(strings.Fields(added)[2], ":")))
		if err := ts.operations.reloadKeys(t.Context()); err != nil {
			t.Fatal(err)
		}

		return former, ts.keys.Load().keys[0].fingerprint
	}

	first, _ := promote()
	waitFor(t, "the first key's lease to end", func() bool {
		return ts.queryInt(`SELECT count(*) FROM instances WHERE signer = $1 AND live_until < now()`, first) == 1
	})
	if n := ts.queryInt(`SELECT count(*) FROM (`+deadInstances+`) dead`, ts.operations.instance); n != 0 {
		t.Error("the instance counts as dead")
	}

	for range 8 { // each makes the idle worker look for work
		ts.analyzer.queued <- struct{}{}
	}

	if n := ts.queryInt(`SELECT sum(deaths) FROM analyses`); n != 0 || reads.Load() != 1 {
		t.Errorf("%d deaths, %d reads", n, reads.Load())
	}

	close(proceed)
	if a := c.finished(location); counts(a) != [6]int{1, 1, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}

	second, third := promote()
	id := ts.operations.instance
	ts.stop() // before the lease of the second key has ended
	ts = startServer(t, nil, ts.env...)
	if n := ts.queryInt(`
		SELECT count(*)
		FROM instances a
		JOIN instances b ON b.id = a.id AND b.seen_at > a.seen_at
		WHERE a.id = $1 AND a.signer = $2 AND b.signer = $3`, id, second, third); n != 1 {
		t.Error("the stop counts as a use of the former key")
	}

	if n := ts.queryInt(`SELECT count(*) FROM instances WHERE live_until > now() AND id = $1`, id); n != 0 {
		t.Errorf("%d leases of the stopped instance", n)
	}

	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`); n != 2 {
		t.Errorf("%d key changes in the audit log", n)
	}
}

// TestForceBesideOthers: where force does not empty a dataset because another instance runs, the
// failure says so.
func TestForceBesideOthers(t *testing.T) {
	t.Parallel()
	one, _ := startTwoServers(t)
	c := one.signIn("root", "all")
	dir := filepath.Join(one.datasets, "tiles")
	makeTiles(t, dir, 1, 3)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	for _, below := range []string{"", "sub"} {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, below), 0o755)); err != nil {
			t.Fatal(err)
		}
		a := c.analyze(dataset, map[string]bool{"force": true})
		if a.text("failure_code") != failureUnavailable || !strings.Contains(a.text("failure"), "Stop all other instances") || len(c.files(dataset)) != 3 {
			t.Errorf("%q: %s", below, a.body)
		}
	}
}
