package main

import (
	"crypto/md5"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// withChecksums is the body of a request for an analysis with checksums.
var withChecksums = map[string]bool{"checksums": true}

// listedFolder is a folder of files with lists of checksums. Files are old, so that their rows count as settled.
type listedFolder struct {
	t   *testing.T
	dir string
}

// write writes a file that was modified long ago.
func (d listedFolder) write(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	old := time.Now().Add(-time.Hour)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644), os.Chtimes(path, old, old))
	if err != nil {
		d.t.Fatal(err)
	}
}

// md5Line returns the line of a list for a content.
func md5Line(name, content string) string {
	return fmt.Sprintf("%x  %s\n", md5.Sum([]byte(content)), name)
}

// sha256Line returns the line of a list for a content.
func sha256Line(name, content string) string {
	return fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(content)), name)
}

// checksumFindings returns the findings of kind checksum, by path.
func (c client) checksumFindings(dataset string) map[string]string {
	c.t.Helper()
	found := map[string]string{}
	for _, f := range c.must(200, "GET", dataset+"/findings/checksum?limit=500", nil).items() {
		found[f["path"].(string)] = f["detail"].(string)
	}
	return found
}

// checkMaps notes each key with another value.
func checkMaps(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		check(t, what+" "+key, got[key], want[key])
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("%s %s: got %q, want none", what, key, got[key])
		}
	}
}

// contentReads counts the contents that a service reads, or the heights.
type contentReads struct {
	ofHeights bool
	lock      sync.Mutex
	paths     []string
}

// note is for options.beforeRead.
func (r *contentReads) note(path string) {
	prefix := map[bool]string{false: "content of ", true: "heights of "}[r.ofHeights]
	if name, isContent := strings.CutPrefix(path, prefix); isContent {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.paths = append(r.paths, name)
	}
}

// take returns the paths since the last call, sorted.
func (r *contentReads) take() string {
	r.lock.Lock()
	defer r.lock.Unlock()
	slices.Sort(r.paths)
	defer func() { r.paths = nil }()
	return strings.Join(r.paths, " ")
}

// hexMD5 returns the digest of a content.
func hexMD5(content string) string { return strings.Fields(md5Line("", content))[0] }

// wrongDelivery makes a delivery with planted faults. It returns the contents of its files and what is to be found.
func wrongDelivery(t *testing.T, dir string) (d listedFolder, good, other string, want map[string]string) {
	t.Helper()
	d = listedFolder{t, dir}
	good, other = string(geographicTIFF(7, 46)), string(geographicTIFF(8, 46))
	for _, name := range []string{"a/good.tif", "a/bare.tif", "a/both.tif", "a/twice.tif", "a/wrong.tif", "b/above.tif", "unlisted.tif"} {
		d.write(name, good)
	}
	d.write("a/MD5SUMS", md5Line("good.tif", good)+md5Line("wrong.tif", other)+md5Line("both.tif", good)+md5Line("twice.tif", good)+
		md5Line("gone.tif", good)+"what is this?\n"+md5Line("../b/above.tif", good)+md5Line("/etc/passwd", good))
	d.write("a/both.tif.sha256", sha256Line("both.tif", good))
	d.write("a/bare.tif.md5", hexMD5(good))
	d.write("a/twice.txt.md5", md5Line("twice.tif", other))
	d.write("SHA256SUMS", sha256Line("b/above.tif", good)+sha256Line("b/link/x.tif", good))
	outside := t.TempDir()
	err := errors.Join(os.WriteFile(filepath.Join(outside, "x.tif"), []byte(good), 0o644),
		os.Symlink(outside, filepath.Join(dir, "b/link")), os.Symlink("/etc/hostname", filepath.Join(dir, "out.md5")))
	if err != nil {
		t.Fatal(err)
	}

	twice := []string{hexMD5(good) + " (a/MD5SUMS, line 4)", hexMD5(other) + " (a/twice.txt.md5, line 1)"}
	slices.Sort(twice)
	return d, good, other, map[string]string{
		"a/wrong.tif":  fmt.Sprintf("has MD5 %s, but is listed with %s (a/MD5SUMS, line 2)", hexMD5(good), hexMD5(other)),
		"a/gone.tif":   fmt.Sprintf("is not there, but listed with MD5 %s (a/MD5SUMS, line 5)", hexMD5(good)),
		"b/link/x.tif": fmt.Sprintf("is not there, but listed with SHA256 %s (SHA256SUMS, line 2)", strings.Fields(sha256Line("", good))[0]),
		"a/MD5SUMS":    "line 6: not understood (and 2 lines more)",
		"a/twice.tif":  fmt.Sprintf("is listed with different digests: MD5 %s and %s; it has %s", twice[0], twice[1], hexMD5(good)),
	}
}

// TestChecksums: planted faults are found and nothing else. The digests are in rows, tables and STAC.
func TestChecksums(t *testing.T) {
	t.Parallel()
	var read contentReads
	ts := startServer(t, func(o *options) { o.beforeRead = read.note; o.batchSize = 3 })
	c := ts.signIn("root", "all")
	_, good, _, want := wrongDelivery(t, filepath.Join(ts.datasets, "d"))
	dataset := c.addDataset("d")
	c.analyze(dataset, nil)
	check(t, "read without the option", read.take(), "")
	report := c.must(200, "GET", dataset+"/report", nil)
	if report.json["checksums"] != nil || !strings.Contains(string(report.body), "Checksums were not compared.") {
		t.Errorf("the report without checksums: %s", report.body)
	}

	a := c.analyze(dataset, withChecksums)
	check(t, "state", a.text("state"), stateSucceeded)
	check(t, "checksums", a.json["checksums"], any(true))
	progress := a.json["progress"].(map[string]any)
	check(t, "bytes expected", progress["bytes_expected"], any(float64(6*len(good))))
	check(t, "bytes read", progress["bytes_read"], any(float64(6*len(good))))
	checkMaps(t, "finding", c.checksumFindings(dataset), want)
	check(t, "read", read.take(), "SHA256SUMS a/MD5SUMS a/bare.tif a/bare.tif.md5 a/both.tif a/both.tif.sha256 a/good.tif a/twice.tif "+
		"a/twice.txt.md5 a/wrong.tif b/above.tif")

	// The digests are where they are known.
	rows := c.files(dataset)
	if m := rows["a/good.tif"]; m.MD5 == nil || m.SHA256 == nil || *m.MD5 != hexMD5(good) {
		t.Errorf("digests of good.tif: %v %v", m.MD5, m.SHA256)
	}
	if m := rows["unlisted.tif"]; m.MD5 != nil || m.SHA256 != nil {
		t.Error("an unlisted file has digests")
	}
	item := c.must(200, "GET", fmt.Sprintf("%s/collections/%s/items/%d", stacPath, filepath.Base(dataset), rows["a/good.tif"].ID), nil)
	if !strings.Contains(string(item.body), `"file:checksum":"1220`+*rows["a/good.tif"].SHA256+`"`) {
		t.Errorf("STAC: %s", item.body)
	}
	if table := c.must(200, "GET", dataset+"/files.csv", nil); !strings.Contains(string(table.body), ","+*rows["a/good.tif"].MD5+","+*rows["a/good.tif"].SHA256+",,,,,,,,,,\n") {
		t.Errorf("CSV: %s", table.body)
	}
	page := c.must(200, "GET", fmt.Sprintf("%s/files/%d", strings.TrimPrefix(dataset, "/api/v1"), rows["a/good.tif"].ID), nil)
	if !strings.Contains(string(page.body), "<dt>MD5</dt><dd>"+hexMD5(good)+"</dd>") {
		t.Errorf("the page of a file: %s", page.body)
	}
	report = c.must(200, "GET", dataset+"/report", nil)
	check(t, "counts", fmt.Sprint(report.json["checksums"]), "map[compared:6 listed:6 unlisted:3]")
	if page := c.must(200, "GET", strings.TrimPrefix(dataset, "/api/v1")+"/report", nil); !strings.Contains(string(page.body), "6 of 6 listed files compared") {
		t.Errorf("the page of the report: %s", page.body)
	}
}

// TestChecksumsAgain: files that have not changed are not read again. Changed lists are. An analysis without the option
// keeps what is known.
func TestChecksumsAgain(t *testing.T) {
	t.Parallel()
	var read contentReads
	ts := startServer(t, func(o *options) { o.beforeRead = read.note })
	c := ts.signIn("root", "all")
	d, good, other, want := wrongDelivery(t, filepath.Join(ts.datasets, "d"))
	dataset := c.addDataset("d")
	c.analyze(dataset, withChecksums)
	read.take()

	// Nothing has changed: nothing is read again.
	a := c.analyze(dataset, withChecksums)
	check(t, "second", counts(a), [6]int{14, 0, 0, 14, 0, 2})
	check(t, "read again", read.take(), "")
	checkMaps(t, "finding again", c.checksumFindings(dataset), want)

	// A corrected list costs only itself, and a changed file itself. An analysis without the option keeps what is known.
	d.write("a/twice.txt.md5", md5Line("twice.tif", good)+"# corrected\n")
	d.write("a/wrong.tif", other)
	delete(want, "a/wrong.tif")
	delete(want, "a/twice.tif")
	c.analyze(dataset, nil)
	checkMaps(t, "finding without the option", c.checksumFindings(dataset), want)
	c.analyze(dataset, withChecksums)
	check(t, "read after changes", read.take(), "a/twice.txt.md5 a/wrong.tif")
	checkMaps(t, "finding after changes", c.checksumFindings(dataset), want)

	said, err := ts.command("dataset", "analyze", "d", "--checksums", "--wait")
	if err != nil || !strings.Contains(said, "3 with a wrong checksum") {
		t.Errorf("the command says %s %v", said, err)
	}
	said, _ = ts.command("report", "d")
	if !strings.Contains(said, "\nchecksums: 6 of 6 listed files compared; 3 other files not listed\n") {
		t.Errorf("the report says %s", said)
	}

	// With force alone the digests stay; with both options each is computed again.
	c.analyze(dataset, map[string]bool{"force": true})
	check(t, "read with force", read.take(), "")
	if m := c.files(dataset)["a/good.tif"]; m.MD5 == nil {
		t.Error("force forgets a digest")
	}
	checkMaps(t, "finding with force", c.checksumFindings(dataset), want)
	a = c.analyze(dataset, map[string]bool{"force": true, "checksums": true})
	check(t, "with both", counts(a), [6]int{14, 0, 0, 14, 0, 2})
	if got := read.take(); !strings.Contains(got, "a/good.tif") {
		t.Errorf("read with both: %s", got)
	}

	// A list that has gone says nothing any more.
	if err := errors.Join(os.Remove(filepath.Join(d.dir, "a/MD5SUMS")), os.Remove(filepath.Join(d.dir, "out.md5"))); err != nil {
		t.Fatal(err)
	}
	c.analyze(dataset, nil)
	delete(want, "a/gone.tif")
	delete(want, "a/MD5SUMS")
	checkMaps(t, "finding without the list", c.checksumFindings(dataset), want)
}

// TestListsStay: an analysis without the option keeps what lists say, also if it reads their rows again.
func TestListsStay(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	good := string(geographicTIFF(7, 46))
	for _, name := range []string{"x.tif", "y.tif", "z.tif"} {
		d.write(name, good)
	}
	d.write("x.tif.md5", md5Line("x.tif", "other")+"?\n")
	d.write("y.md5", md5Line("y.tif", "other"))
	d.write("sums.txt", md5Line("z.tif", "other"))
	soon := time.Now().Add(time.Hour) // as if each file were written just now, for an hour
	err := errors.Join(os.Symlink("sums.txt", filepath.Join(d.dir, "link.md5")), os.Chtimes(filepath.Join(d.dir, "y.md5"), soon, soon),
		os.Chtimes(filepath.Join(d.dir, "y.tif"), soon, soon))
	if err != nil {
		t.Fatal(err)
	}

	dataset := c.addDataset("d")
	c.analyze(dataset, withChecksums)
	want := c.checksumFindings(dataset)
	check(t, "findings", len(want), 4)
	for _, step := range []struct {
		name   string
		change func()
	}{
		{"nothing", func() {}},
		{"a sidecar", func() { d.write("x.tif.aux.xml", "<PAMDataset/>") }},
		{"another reader", func() { ts.exec(`UPDATE elevation_dataset_file_meta SET reader_version = 1`) }},
	} {
		step.change()
		c.analyze(dataset, nil)
		checkMaps(t, "after "+step.name, c.checksumFindings(dataset), want)
	}
}

// TestFoldersOfMissingFiles: the folders of findings are those of files and lists. A list cannot invent them.
func TestFoldersOfMissingFiles(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	d.write("a/x.tif", string(geographicTIFF(7, 46)))
	for _, list := range []string{"MD5SUMS", "a/MD5SUMS"} {
		var lines strings.Builder
		for i := range 20 {
			lines.WriteString(md5Line(fmt.Sprintf("gone%d/x.tif", i), "x"))
		}
		d.write(list, lines.String())
	}
	dataset := c.addDataset("d")
	c.analyze(dataset, withChecksums)
	const folders = `SELECT string_agg(folder || ' ' || n, ', ' ORDER BY folder) FROM `
	check(t, "totals", ts.queryText(folders+`(SELECT folder, total AS n FROM dataset_finding_totals WHERE code = 'checksum') x`), ". 20, a 20")
	check(t, "findings", ts.queryText(folders+`(SELECT folder, count(*) AS n FROM dataset_findings WHERE code = 'checksum' GROUP BY folder) x`), ". 20, a 20")
}

// TestAllListsTogether: the lists of a dataset have a limit together. A list beyond it says nothing, and is read again.
func TestAllListsTogether(t *testing.T) {
	t.Parallel()
	ts := startServer(t, func(o *options) { o.listLines = 10; o.batchSize = 3 })
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	d.write("x.tif", "x")
	d.write("a.md5", strings.Repeat(md5Line("x.tif", "x"), 6))
	d.write("b.md5", strings.Repeat(md5Line("x.tif", "y"), 5))
	dataset := c.addDataset("d")
	const lines = `SELECT count(*) FROM listed_checksums JOIN elevation_dataset_file_meta f ON f.path = list WHERE is_list`
	for range 2 {
		c.analyze(dataset, withChecksums)
		checkMaps(t, "finding", c.checksumFindings(dataset), map[string]string{
			"b.md5": "its content cannot be read: the lists of the dataset have more than 10 lines together"})
		check(t, "lines", ts.queryInt(lines), 6)
	}

	d.write("a.md5", strings.Repeat(md5Line("x.tif", "x"), 5))
	c.analyze(dataset, withChecksums)
	check(t, "lines of shorter lists", ts.queryInt(lines), 10)
	if found := c.checksumFindings(dataset); len(found) != 1 || !strings.Contains(found["x.tif"], "different digests") {
		t.Errorf("findings of shorter lists: %q", found)
	}
}

// TestFaultOfUnlistedFile: a content that cannot be read is no finding any more when no list names the file.
func TestFaultOfUnlistedFile(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	d.write("x.tif", "x")
	d.write("MD5SUMS", md5Line("x.tif", "x"))
	dataset := c.addDataset("d")
	c.analyze(dataset, withChecksums)
	ts.exec(`UPDATE elevation_dataset_file_meta SET content_fault = 'broken' WHERE path = 'x.tif'`)
	c.analyze(dataset, map[string]bool{"force": true})
	checkMaps(t, "finding", c.checksumFindings(dataset), map[string]string{"x.tif": "broken"})
	d.write("MD5SUMS", "")
	c.analyze(dataset, withChecksums)
	checkMaps(t, "finding without the line", c.checksumFindings(dataset), nil)
}

// TestDeathsCountUntilTheEnd: a part of a list that is stored does not reset the number of deaths.
func TestDeathsCountUntilTheEnd(t *testing.T) {
	t.Parallel()
	var ts *testServer
	ts = startServer(t, func(o *options) {
		o.batchSize = 3
		o.beforeRead = func(path string) {
			if path == "content of MD5SUMS" {
				ts.exec(`UPDATE analyses SET deaths = 2`)
			}
		}
	})
	c := ts.signIn("root", "all")
	listedFolder{t, filepath.Join(ts.datasets, "d")}.write("MD5SUMS", strings.Repeat(md5Line("x.tif", "x"), 7))
	dataset := c.addDataset("d")
	ts.exec(`CREATE TABLE resets (lines integer)`)
	ts.exec(`CREATE FUNCTION note_reset() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN INSERT INTO resets SELECT count(*) FROM listed_checksums; RETURN NULL; END'`)
	ts.exec(`CREATE TRIGGER note_reset AFTER UPDATE ON analyses FOR EACH ROW WHEN (OLD.deaths > NEW.deaths) EXECUTE FUNCTION note_reset()`)
	c.analyze(dataset, withChecksums)
	check(t, "lines at the first reset", ts.queryInt(`SELECT coalesce(min(lines), -1) FROM resets`), 6)
}

// listTiles makes tiles as makeTiles does, and an old list of all of them.
func (d listedFolder) listTiles(dirs, files int) (bytes int64) {
	d.t.Helper()
	makeTiles(d.t, d.dir, dirs, files)
	var list strings.Builder
	old := time.Now().Add(-time.Hour)
	for i := range dirs {
		for j := range files {
			name := fmt.Sprintf("d%d/t%d.tif", i, j)
			content, err := os.ReadFile(filepath.Join(d.dir, name))
			if err := errors.Join(err, os.Chtimes(filepath.Join(d.dir, name), old, old)); err != nil {
				d.t.Fatal(err)
			}
			list.WriteString(sha256Line(name, string(content)))
			bytes += int64(len(content))
		}
	}
	d.write("SHA256SUMS", list.String())
	return bytes
}

// countRows returns how many rows of files meet a condition, in the database of a service that has been stopped.
func countRows(t *testing.T, env []string, condition string) (n int) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), lookup(env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM elevation_dataset_file_meta WHERE `+condition).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// diesThrice starts an analysis of everything with this option in a service that dies on reading that content, and lets two
// more such services take it over. It returns the path of the analysis.
func (c client) diesThrice(env []string, content, dataset, option string) (location string) {
	c.t.Helper()
	deadly := append(slices.Clone(env), "CAIRN_TEST_DIE_ON="+content)
	for i := range 3 {
		p := startProcess(c.t, deadly)
		c.url = p.url
		if i == 0 {
			location = c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true, option: true}).header.Get("Location")
		}
		<-p.exit
	}
	return location
}

// TestKilledWhileComparing: a service that is killed while it reads contents goes on where it stood.
func TestKilledWhileComparing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	size := listedFolder{t, filepath.Join(ts.datasets, "tiles")}.listTiles(2, 5)
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_LIFE=1h", "CAIRN_TEST_CHUNK=3")
	p := startProcess(t, append(slices.Clone(env), "CAIRN_TEST_DIE_ON=content of d1/t2.tif"))
	c.url = p.url
	location := c.must(202, "POST", dataset+"/analyses", withChecksums).header.Get("Location")
	<-p.exit
	check(t, "digests at the kill", countRows(t, env, `sha256 IS NOT NULL`), 7)

	p = startProcess(t, env)
	c.url = p.url
	a := c.finished(location)
	check(t, "state", a.text("state"), stateSucceeded)
	check(t, "counts", counts(a), [6]int{11, 11, 0, 0, 0, 0})
	check(t, "digests", countRows(t, env, `sha256 IS NOT NULL`), 10)
	check(t, "bytes read by both", a.json["progress"].(map[string]any)["bytes_read"], any(float64(size)))
	checkMaps(t, "finding", c.checksumFindings(dataset), nil)

	// The third death over one file fails the analysis.
	p.kill()
	location = c.diesThrice(env, "content of d0/t0.tif", dataset, "checksums")
	p = startProcess(t, env)
	c.url = p.url
	if a := c.finished(location); a.text("failure_code") != failureInternal {
		t.Errorf("after three deaths: %s", a.body)
	}
}

// TestKilledInstancesComparing kills one of two instances, sometimes the one that reads contents, at a random moment. Each
// analysis ends by itself with every digest, and each kill costs one file at most.
func TestKilledInstancesComparing(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	size := listedFolder{t, filepath.Join(ts.datasets, "tiles")}.listTiles(4, 50)
	dataset := c.addDataset("tiles")
	ts.stop()
	env := append(ts.env, "CAIRN_TEST_CHUNK=20")
	envs := [][]string{env, append(slices.Clone(env), "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+ts.cfg.keysPath())}
	services := []*process{startProcess(t, envs[0]), startProcess(t, envs[1])}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	bytesRead := func(a answer) int64 { return int64(a.json["progress"].(map[string]any)["bytes_read"].(float64)) }
	for round := range soakOr(30, 4) {
		c.url = services[r.IntN(2)].url
		location := c.must(202, "POST", dataset+"/analyses", map[string]bool{"force": true, "checksums": true}).header.Get("Location")
		threshold := r.Int64N(size)
		waitFor(t, "progress", func() bool {
			a := c.must(200, "GET", location, nil)
			return a.json["finished_at"] != nil || bytesRead(a) >= threshold
		})
		victim := r.IntN(2)
		services[victim].kill()
		services[victim] = startProcess(t, envs[victim])
		c.url = services[victim].url
		a := c.finished(location)
		read := bytesRead(a)
		isExact := read >= size && read <= size+size/200
		if a.text("state") != stateSucceeded || !isExact || countRows(t, env, `sha256 IS NOT NULL`) != 200 {
			t.Errorf("round %d: %d bytes read of %d: %s", round, read, size, a.body)
		}
		checkMaps(t, "finding", c.checksumFindings(dataset), nil)
	}
}

// TestOtherAnalysesWhileComparing: while the contents of one dataset are read, other datasets are analysed, and the next
// dataset with checksums waits. An analysis that is canceled stores nothing more, and the next goes on.
func TestOtherAnalysesWhileComparing(t *testing.T) {
	t.Parallel()
	goOn, reading := make(chan bool), make(chan bool, 100)
	ts := startServer(t, func(o *options) {
		o.beforeRead = func(path string) {
			if path == "content of d0/t3.tif" {
				reading <- true
				<-goOn
			}
		}
	})
	c := ts.signIn("root", "all")
	var datasets []string
	for _, name := range []string{"one", "two"} {
		listedFolder{t, filepath.Join(ts.datasets, name)}.listTiles(1, 5)
		datasets = append(datasets, c.addDataset(name))
	}
	makeTiles(t, filepath.Join(ts.datasets, "plain"), 1, 5)
	plain := c.addDataset("plain")

	page := strings.TrimPrefix(datasets[0], "/api/v1")
	first := "/api/v1" + c.must(303, "POST", page+"/analyses", "checksums=true", formHeader).header.Get("Location")
	first, _, _ = strings.Cut(first, "?")
	<-reading
	second := c.must(202, "POST", datasets[1]+"/analyses", withChecksums).header.Get("Location")
	check(t, "another dataset", c.analyze(plain, nil).text("state"), stateSucceeded)
	waitFor(t, "the second to be read", func() bool {
		return ts.queryInt(`SELECT count(*) FROM analyses WHERE step = 'contents'`) == 2
	})
	for _, location := range []string{first, second} {
		check(t, "state of "+location, c.must(200, "GET", location, nil).text("state"), stateReading)
	}
	check(t, "digests", ts.queryInt(`SELECT count(sha256) FROM elevation_dataset_file_meta`), 3)
	if p := c.must(200, "GET", first, nil).json["progress"].(map[string]any); p["seconds_left"] == nil {
		t.Errorf("progress %v", p)
	}
	live := c.must(200, "GET", strings.TrimPrefix(first, "/api/v1"), nil)
	if !strings.Contains(string(live.body), "of contents read") {
		t.Errorf("the page of the analysis: %s", live.body)
	}

	c.must(204, "DELETE", first, nil)
	<-reading // the second
	goOn <- true
	goOn <- true
	check(t, "the second", c.finished(second).text("state"), stateSucceeded)
	check(t, "the first", c.finished(first).text("state"), stateCanceled)
	check(t, "digests after both", ts.queryInt(`SELECT count(sha256) FROM elevation_dataset_file_meta`), 8)

	close(goOn)
	a := c.analyze(datasets[0], withChecksums)
	check(t, "digests in the end", ts.queryInt(`SELECT count(sha256) FROM elevation_dataset_file_meta`), 10)
	if read, expected := a.json["progress"].(map[string]any)["bytes_read"], a.json["progress"].(map[string]any)["bytes_expected"]; read != expected {
		t.Errorf("the last one read %v of %v bytes", read, expected)
	}
}

// TestHungContent: a content whose reading hangs is a finding, and the others are read. The next analysis tries it again.
func TestHungContent(t *testing.T) {
	t.Parallel()
	hang := make(chan bool)
	ts := startServer(t, func(o *options) {
		o.patience = 200 * time.Millisecond
		o.beforeRead = func(path string) {
			if path == "content of d0/t3.tif" {
				<-hang
			}
		}
	})
	c := ts.signIn("root", "all")
	listedFolder{t, filepath.Join(ts.datasets, "tiles")}.listTiles(1, 5)
	dataset := c.addDataset("tiles")
	check(t, "state", c.analyze(dataset, withChecksums).text("state"), stateSucceeded)
	checkMaps(t, "finding", c.checksumFindings(dataset), map[string]string{"d0/t3.tif": "its content cannot be read: no answer within 200ms"})
	close(hang)
	check(t, "state after it", c.analyze(dataset, withChecksums).text("state"), stateSucceeded)
	checkMaps(t, "finding after it", c.checksumFindings(dataset), nil)
	check(t, "digests", ts.queryInt(`SELECT count(sha256) FROM elevation_dataset_file_meta`), 5)
}

// TestContentThatChanges: a content counts only if the file is that of its row before and after the reading.
func TestContentThatChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for name, change := range map[string]func() error{
		"nothing": func() error { return nil },
		"written": func() error { return os.WriteFile(path, []byte("other"), 0o644) },
		"written, same time": func() error {
			info, err := os.Stat(path)
			return errors.Join(err, os.WriteFile(path, []byte("other"), 0o644), os.Chtimes(path, info.ModTime(), info.ModTime()))
		},
		"cut": func() error { return os.Truncate(path, 2) },
		"replaced": func() error {
			return errors.Join(os.WriteFile(path+"2", []byte("other"), 0o644), os.Rename(path+"2", path))
		},
		"gone": func() error { return os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			listedFolder{t, dir}.write("x", "first")
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			e := entryOf(info.Sys())
			row := contentFile{Path: "x", Size: e.Size, Modified: e.Modified, Changed: e.Changed}
			files := &fileReader{root: mustOpenRoot(t, dir), before: func(string) {}}
			r := &detachedReader{fileReader: files, ctx: t.Context(), progress: new(atomic.Int64)}

			err = r.readContent(row, func(content io.Reader) error {
				_, err := io.ReadFull(content, make([]byte, 1))
				return errors.Join(err, change())
			})
			wants := errChanged
			if name == "nothing" {
				wants = nil
			}
			if !errors.Is(err, wants) {
				t.Errorf("error %v, want %v", err, wants)
			}
			if name != "nothing" {
				err := r.readContent(row, func(io.Reader) error { return nil })
				check(t, "error of the changed file", err, errChanged)
			}
		})
	}
}

// TestOddLists: lists that are too large, too many lines of one file, and names that are long or hostile.
func TestOddLists(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("root", "all")
	d := listedFolder{t, filepath.Join(ts.datasets, "d")}
	d.write("x.tif", "x")
	d.write("huge.md5", "")
	d.write("empty.sha256", "")
	d.write("lines.md5", strings.Repeat(md5Line("x.tif", "x"), 20)+strings.Repeat(md5Line("x.tif", "y"), 20))
	d.write("sub/names.md5", md5Line("../x.tif", "y")+md5Line(strings.Repeat("n", maxPath-4), "x")+md5Line("<b>\x01", "x")+md5Line("\xff", "x"))
	if err := os.Truncate(filepath.Join(d.dir, "huge.md5"), maxListBytes+1); err != nil {
		t.Fatal(err)
	}
	dataset := c.addDataset("d")
	check(t, "state", c.analyze(dataset, withChecksums).text("state"), stateSucceeded)
	found := c.checksumFindings(dataset)
	for path, part := range map[string]string{
		"huge.md5":                              "the list is too long",
		"x.tif":                                 "is listed with different digests",
		"sub/names.md5":                         "line 1: no file in or below",
		"sub/<b>\x01":                           "is not there",
		`sub/\xff`:                              "is not there",
		"sub/" + strings.Repeat("n", maxPath-4): "is not there",
	} {
		if !strings.Contains(found[path], part) || len(found[path]) > 500 {
			t.Errorf("%.40q: %.600q, want %q", path, found[path], part)
		}
	}
	check(t, "number of findings", len(found), 6)
	for _, view := range []string{dataset + "/report", strings.TrimPrefix(dataset, "/api/v1") + "/report", dataset + "/findings.csv"} {
		if a := c.must(200, "GET", view, nil); strings.Contains(string(a.body), "<b>") && strings.Contains(a.header.Get("Content-Type"), "html") {
			t.Errorf("%s: %s", view, a.body)
		}
	}
}
