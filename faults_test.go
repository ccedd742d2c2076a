package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memoryDir returns a new directory, in memory if there is a /dev/shm, because many small files are quick there.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cairn-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestFilesReplacedByRename: files that are replaced by a rename, while they are listed and read, keep their rows.
func TestFilesReplacedByRename(t *testing.T) {
	t.Parallel()
	top := memoryDir(t)
	ts := startServer(t, func(o *options) { o.batchSize = 20 }, "CAIRN_DATASETS_DIR="+top)
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(top, "live"), 1, 300)
	dataset := c.addDataset("live")
	c.analyze(dataset, nil)
	before := c.files(dataset)
	stop := make(chan bool)
	var saver sync.WaitGroup
	defer saver.Wait()
	defer close(stop)
	saver.Go(func() {
		dir, content := filepath.Join(top, "live/d0"), geographicTIFF(0, 0)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				os.WriteFile(filepath.Join(dir, ".new"), content, 0o644)
				os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, fmt.Sprintf("t%d.tif", i%300)))
			}
		}
	})
	for range 5 {
		a := c.analyze(dataset, nil)
		rows := c.files(dataset)
		delete(rows, "d0/.new")
		if a.text("state") != stateSucceeded || len(rows) != 300 {
			t.Errorf("%d rows of 300: %s", len(rows), a.body)
		}
		for path, m := range before {
			if rows[path].ID != m.ID {
				t.Errorf("%s: row %d was %d", path, rows[path].ID, m.ID)
			}
		}
	}
}

// TestCancelAndDeleteWhileStoring: an analysis can be canceled, and its dataset deleted, while rows are stored.
func TestCancelAndDeleteWhileStoring(t *testing.T) {
	t.Parallel()
	var reads atomic.Int64
	ts := startServer(t, func(o *options) {
		o.batchSize = 5
		o.workers += 2
		o.beforeRead = func(string) { reads.Add(1) }
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 2, 200)
	dataset := c.addDataset("tiles")
	for round := range 30 {
		reads.Store(0)
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true}).header.Get("Location")
		waitFor(t, "reads", func() bool { return reads.Load() >= int64(round*7%300) })
		paths := []string{location, location}
		if round%3 == 0 {
			paths = append(paths, dataset)
		}
		var all sync.WaitGroup
		for _, path := range paths {
			all.Go(func() {
				a, err := c.send("DELETE", path, nil)
				if err != nil || a.status != 204 && (a.status != 404 || path == dataset || round%3 != 0) {
					t.Errorf("DELETE %s: %d %s %v", path, a.status, a.body, err)
				}
			})
		}
		all.Wait()
		if round%3 == 0 {
			dataset = c.addDataset("tiles")
		}
	}
	if log := ts.log.String(); strings.Contains(log, "deadlock") || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("%.2000s", log)
	}
}

// TestOutageWhileReading: the database goes away three times while a file is read. The file is not blamed, and the
// analysis goes on when the database is back.
func TestOutageWhileReading(t *testing.T) {
	t.Parallel()
	reading, proceed, free := make(chan bool), make(chan bool), make(chan bool)
	ts := startServer(t, func(o *options) {
		o.leaseTTL = 500 * time.Millisecond
		o.beforeRead = func(string) {
			select {
			case reading <- true:
				<-proceed
			case <-free:
			}
		}
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 1)
	dataset := c.addDataset("tiles")
	name := ts.db.Config().ConnConfig.Database
	location := c.must(202, "POST", dataset+"/analyses", nil).header.Get("Location")
	said := func(msg string) int { return strings.Count(ts.log.String(), `"msg":"`+msg+`"`) }
	allow := func(connections string) {
		t.Helper()
		if err := asSuperuser(`ALTER DATABASE `+name+` ALLOW_CONNECTIONS `+connections,
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+name+`'`); err != nil {
			t.Fatal(err)
		}
	}
	awaitRead := func() {
		t.Helper()
		select {
		case <-reading:
		case <-time.After(time.Minute):
			t.Fatalf("nothing is read: %s", c.must(200, "GET", location, nil).body)
		}
	}
	for range maxDeaths {
		awaitRead()
		allow("false")
		waitFor(t, "the service to notice", ts.database.down.Load)
		allow("false") // once more, for a connection that was just being made
		before := said("analysis step failed")
		proceed <- true // storing the row fails, and so does giving the chunk back
		outage := ts.database.outages.Load()
		for range 20 {
			c.refused(503, "database_unavailable", "GET", "/health", nil)
		}
		if n := said("analysis step failed"); n > before+1 {
			t.Errorf("%d lines about one outage", n-before)
		}
		allow("true")
		if ts.database.outages.Load() != outage {
			t.Error("one outage was counted twice")
		}
	}
	awaitRead()
	var blamed int
	const query = `SELECT deaths + failures FROM analyses`
	waitFor(t, "the database", func() bool { return ts.db.QueryRow(t.Context(), query).Scan(&blamed) == nil })
	if blamed != 0 {
		t.Errorf("the file is blamed for %d outages", blamed)
	}
	close(free)
	proceed <- true
	if a := c.finished(location); a.text("state") != stateSucceeded || counts(a) != [6]int{1, 1, 0, 0, 0, 0} {
		t.Errorf("%s", a.body)
	}
}

// TestRefusedRows: if the database refuses a row again and again, the analysis fails, and the other rows are stored.
func TestRefusedRows(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.batchSize = 1 })
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 3)
	dataset := c.addDataset("tiles")
	ts.exec(`ALTER TABLE elevation_dataset_file_meta ADD CONSTRAINT refused CHECK (path <> 'd0/t1.tif')`)
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureInternal || counts(a)[1] != 2 || len(c.files(dataset)) != 2 {
		t.Errorf("%s", a.body)
	}
	if n := strings.Count(ts.log.String(), `constraint \"refused`); n != maxFailures {
		t.Errorf("%d attempts", n)
	}
	ts.exec(`ALTER TABLE elevation_dataset_file_meta DROP CONSTRAINT refused`)
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a)[1] != 1 {
		t.Errorf("after it: %s", a.body)
	}
}

// TestHungReadsAreBounded: reads that hang are abandoned up to a bound. Then the dataset counts as unavailable. When the
// reads return, the next analysis succeeds.
func TestHungReadsAreBounded(t *testing.T) {
	t.Parallel()
	hang := make(chan bool)
	var most atomic.Int64
	var ts *testServer
	ts = startServer(t, func(o *options) {
		o.batchSize, o.patience = 20, 200*time.Millisecond
		o.beforeRead = func(string) {
			most.Store(max(most.Load(), ts.analyzer.hung.Load()))
			<-hang
		}
	})
	c := ts.signIn("root", "all")
	makeTiles(t, filepath.Join(ts.datasets, "tiles"), 1, 2*maxHung+10)
	dataset := c.addDataset("tiles")
	a := c.analyze(dataset, nil)
	if a.text("failure_code") != failureUnavailable || most.Load() > int64(maxHung+maxReaders-1) {
		t.Errorf("%d reads hung, the bound is %d: %s", most.Load(), maxHung, a.body)
	}
	close(hang)
	if a := c.analyze(dataset, nil); a.text("state") != stateSucceeded || counts(a)[5] != 0 {
		t.Errorf("after it: %s", a.body)
	}
}

// TestOnlyUnlistableDirectory: a dataset whose only entry is a directory that cannot be listed is not empty but
// unavailable, and keeps its rows.
func TestOnlyUnlistableDirectory(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 5, 10)
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	if err := errors.Join(os.Rename(dir, dir+".away"), os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", maxDepth+1)), 0o755)); err != nil {
		t.Fatal(err)
	}
	if a := c.analyze(dataset, nil); a.text("failure_code") != failureUnavailable || len(c.files(dataset)) != 50 {
		t.Errorf("%d rows of 50 left: %s", len(c.files(dataset)), a.body)
	}
}

// TestStaleOwner: an instance that has lost an analysis to another cannot end it.
func TestStaleOwner(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.workers = 0 }) // nothing runs by itself
	c := ts.signIn("root", "all")
	dir := filepath.Join(ts.datasets, "tiles")
	makeTiles(t, dir, 1, 3)
	location := c.must(202, "POST", c.addDataset("tiles")+"/analyses", nil).header.Get("Location")
	ts.exec(`UPDATE analyses SET state = 'reading', owner = 'another', owner_token = gen_random_uuid()`)
	lost := task{AnalysisID: int64(c.must(200, "GET", location, nil).number("id")), Token: "00000000-0000-0000-0000-000000000000"}
	for _, others := range []bool{false, true} {
		lost.OthersMaySee = others
		if err := ts.analyzer.settle(t.Context(), lost, unavailable("gone")); err != nil {
			t.Error(err)
		}
	}
	if a := c.must(200, "GET", location, nil); a.text("state") != stateReading {
		t.Errorf("%s", a.body)
	}
}

// TestOverlongNames: very many names that are too long for a row do not make the answer large.
func TestOverlongNames(t *testing.T) {
	t.Parallel()
	top := memoryDir(t)
	ts := startServer(t, func(o *options) { o.workers = 0 }, "CAIRN_DATASETS_DIR="+top) // nothing runs by itself
	c := ts.signIn("root", "all")
	deep := "d/" + strings.Repeat(strings.Repeat("x", 240)+"/", 8)
	root := mustOpenRoot(t, top)
	if err := errors.Join(root.MkdirAll(deep, 0o755), root.WriteFile("d/short.tif", sampleTIFF(), 0o644)); err != nil {
		t.Fatal(err)
	}
	dir, err := root.OpenRoot(deep)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for i := range soakOr(50_000, 5000) {
		f, err := dir.Create(fmt.Sprintf("%s%06d", strings.Repeat("y", 200), i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	location := c.must(202, "POST", c.addDataset("d")+"/analyses", nil).header.Get("Location")
	if _, err := ts.analyzer.work(t.Context(), oldestAnalysis); err != nil {
		t.Fatal(err)
	}
	a := c.must(200, "GET", location, nil)
	if warnings, _ := a.json["warnings"].([]any); a.text("state") != stateSucceeded || counts(a)[0] != 1 || len(warnings) != maxWarnings {
		t.Errorf("%d warnings, %.500s", len(warnings), a.body)
	}
}

// TestHugeFiles: the size of a dataset may be more than 64 bits hold. TestPeerHugeFiles has such files.
func TestHugeFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	dataset := c.addDataset(".")
	ts.exec(`
		INSERT INTO elevation_dataset_file_meta (dataset_id, path, size_bytes, modified_ns, status, warnings, analyzed_at)
		SELECT d.id, n || '.tif', 9223372036854775807, 0, 'unsupported', '{}', now()
		FROM datasets d, generate_series(1, 2) n`)
	if a := c.must(200, "GET", dataset, nil); a.json["total_bytes"].(float64) < 1e18 {
		t.Errorf("%s", a.body)
	}
}

// TestCreateAnalysisRaces: of many requests that begin an analysis while its dataset is deleted, each gets 202, 409
// with the analysis that runs, or 404.
func TestCreateAnalysisRaces(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	if err := os.Mkdir(filepath.Join(ts.datasets, "e"), 0o755); err != nil {
		t.Fatal(err)
	}
	for round := range 7 {
		dataset := c.addDataset("e")
		place := regexp.MustCompile(`^` + dataset + `/analyses/[1-9][0-9]*$`)
		var all sync.WaitGroup
		begun := make(chan bool, 200)
		for range 5 {
			all.Go(func() {
				for range 20 {
					a, err := c.send("POST", dataset+"/analyses", nil)
					if err != nil || a.status != 404 && (a.status != 202 && a.status != 409 || !place.MatchString(a.header.Get("Location"))) {
						t.Errorf("POST: %d %q %s %v", a.status, a.header.Get("Location"), a.body, err)
					}
					begun <- true
				}
			})
		}
		for range 15 * round { // the later rounds delete later
			<-begun
		}
		if a, err := c.send("DELETE", dataset, nil); err != nil || a.status != 204 {
			t.Errorf("DELETE: %d %s %v", a.status, a.body, err)
		}
		all.Wait()
	}
}
