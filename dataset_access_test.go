package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// lidarSee is the permission that the hidden datasets of these tests require.
const lidarSee = "lidar.see"

// declareLidar declares lidarSee and another permission.
func (ts *testServer) declareLidar() {
	ts.t.Helper()
	ts.exec(`INSERT INTO declared_permissions (name, meaning) VALUES ('lidar.see', 'See laser scans.'), ('lidar.other', 'Something else.')`)
}

// addFolder makes directories below the dataset root, each with a raster in it.
func (ts *testServer) addFolder(names ...string) {
	ts.t.Helper()
	for i, name := range names {
		dir := filepath.Join(ts.datasets, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			ts.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a.tif"), geographicTIFF(7, 46+float64(i)), 0o644); err != nil {
			ts.t.Fatal(err)
		}
	}
}

// TestRequiresIsSubset: what a dataset requires is set, changed and taken away only by callers who hold the old and the
// new permission, and dataset.manage. Others find no dataset. Each change is audited.
func TestRequiresIsSubset(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.declareLidar()
	ts.addFolder("scans", "more")
	keeper, holder := ts.signIn("keeper", datasetRead, datasetManage), ts.signIn("holder", datasetRead, datasetManage, lidarSee)
	reader, root := ts.signIn("reader", datasetRead, lidarSee), ts.signIn("root", "all")
	body := func(requires any) map[string]any {
		return map[string]any{"name": "scans", "path": "scans", "requires": requires}
	}
	const list = "/api/v1/datasets"

	for _, wrong := range []string{"lidar", "Lidar.see", strings.Repeat("x", 62) + ".y", "lidar.see\x00"} {
		a := root.refused(422, "invalid", "POST", list, body(wrong))
		if !strings.Contains(string(a.body), `"requires"`) {
			t.Errorf("%q: %s", wrong, a.body)
		}
	}
	root.refused(403, "grant_exceeds_own", "POST", list, body("lidar.none"))
	a := keeper.refused(403, "grant_exceeds_own", "POST", list, body(lidarSee))
	if a.text("permission") != lidarSee {
		t.Errorf("the 403 names %q, want %q", a.text("permission"), lidarSee)
	}
	reader.refused(403, "permission_missing", "POST", list, body(lidarSee))

	dataset := holder.must(201, "POST", list, body(lidarSee)).header.Get("Location")
	keeper.refused(404, "not_found", "PATCH", dataset, map[string]any{"requires": ""})
	keeper.refused(404, "not_found", "DELETE", dataset, nil)
	reader.refused(403, "permission_missing", "PATCH", dataset, map[string]any{"requires": ""})
	holder.refused(403, "grant_exceeds_own", "PATCH", dataset, map[string]any{"requires": "lidar.other"})
	if a := holder.must(200, "PATCH", dataset, map[string]any{"requires": nil, "description": "new"}); a.text("requires") != lidarSee {
		t.Errorf("null changes it: %s", a.body)
	}
	root.must(200, "PATCH", dataset, map[string]any{"requires": "lidar.other"})
	holder.refused(404, "not_found", "PATCH", dataset, map[string]any{"requires": lidarSee})
	root.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})
	holder.must(200, "PATCH", dataset, map[string]any{"requires": ""})
	keeper.must(200, "GET", dataset, nil)
	keeper.must(200, "PATCH", dataset, map[string]any{"requires": datasetManage}) // a built-in one will do
	reader.refused(404, "not_found", "GET", dataset, nil)
	keeper.must(200, "PATCH", dataset, map[string]any{"requires": ""})

	// The form on the page offers what the reader holds.
	page := "/datasets/" + filepath.Base(dataset)
	if a := keeper.must(200, "GET", page, nil); strings.Contains(string(a.body), lidarSee) || !strings.Contains(string(a.body), `<select id="f-datasets-1-requires" name="requires">`) {
		t.Errorf("the form of somebody who lacks the permission: %s", a.body)
	}
	keeper.must(403, "POST", page, "name=scans&requires=lidar.see", formHeader)
	holder.must(303, "POST", page, "name=scans&requires=lidar.see", formHeader)
	if a := holder.must(200, "GET", page, nil); !strings.Contains(string(a.body), `<option value="lidar.see" selected>`) {
		t.Errorf("the form does not show what is required: %s", a.body)
	}
	keeper.must(404, "POST", page, "name=scans&requires=", formHeader)
	holder.must(303, "POST", page, "name=scans&requires=", formHeader)

	// An API token may do what it names.
	script := ts.addToken("root", "script", datasetRead, datasetManage)
	script.refused(403, "grant_exceeds_own", "PATCH", dataset, map[string]any{"requires": lidarSee})
	if _, err := ts.command("dataset", "set", "scans", "--requires", "lidar.none"); err == nil || !strings.Contains(err.Error(), "no such permission") {
		t.Errorf("an unknown permission: %v", err)
	}
	if said, err := ts.command("dataset", "set", "scans", "--requires", lidarSee); err != nil || !strings.Contains(said, "scans") {
		t.Errorf("%s %v", said, err)
	}
	script.refused(404, "not_found", "GET", dataset, nil)
	if said, err := ts.command("dataset", "create", "more", "more", "--requires", lidarSee); err != nil {
		t.Errorf("%s %v", said, err)
	}
	if n := len(keeper.must(200, "GET", list, nil).items()); n != 0 {
		t.Errorf("%d datasets, want 0", n)
	}

	ts.addFolder("plain")
	plain := root.must(201, "POST", list, map[string]any{"name": "plain", "path": "plain", "requires": nil})
	if plain.json["requires"] != "" {
		t.Errorf("a new dataset with null requires %v", plain.json["requires"])
	}

	rows := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.update' AND target = 'dataset:scans' AND before->>'requires' <> after->>'requires'`)
	created := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.create' AND after->>'requires' = 'lidar.see'`)
	if rows != 8 || created != 2 {
		t.Errorf("%d changes and %d new datasets in the audit log, want 8 and 2", rows, created)
	}
}

// TestRequiredPermissionStays: a permission that a dataset requires is not removed, also with force. Who does not hold
// the permission is refused as if an API token named it.
func TestRequiredPermissionStays(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.declareLidar()
	ts.addFolder("scans")
	root, roles := ts.signIn("root", "all"), ts.signIn("roles", roleManage)
	dataset := ts.addDataset(root, "scans", "scans")
	const path = permissionsPath + "/" + lidarSee
	root.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})

	root.refused(409, "permission_required_by_dataset", "DELETE", path, nil)
	a := root.refused(409, "permission_required_by_dataset", "DELETE", path+"?force", nil)
	if strings.Contains(string(a.body), "scans") {
		t.Errorf("the refusal names the dataset: %s", a.body)
	}
	hidden := roles.refused(403, "grant_exceeds_own", "DELETE", path, nil)
	ts.addToken("root", "script", "lidar.other")
	named := roles.refused(403, "grant_exceeds_own", "DELETE", permissionsPath+"/lidar.other", nil)
	if want := strings.ReplaceAll(named.text("detail"), "lidar.other", lidarSee); hidden.text("detail") != want {
		t.Errorf("detail %q, want %q", hidden.text("detail"), want)
	}

	root.must(200, "PATCH", dataset, map[string]any{"requires": ""})
	root.must(204, "DELETE", path+"?force", nil)
}

// TestRequiresRace: while permissions are removed and datasets begin to require them, no dataset ever requires one that
// does not exist.
func TestRequiresRace(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addFolder("scans")
	root := ts.signIn("root", "all")
	dataset := ts.addDataset(root, "scans", "scans")
	outcomes := map[string]int{}
	for i := range 30 {
		name := fmt.Sprint("race.p", i)
		root.must(201, "POST", permissionsPath, map[string]any{"name": name, "meaning": "A test."})
		var set, removed answer
		var both sync.WaitGroup
		both.Go(func() { set = root.do("PATCH", dataset, map[string]any{"requires": name}) })
		both.Go(func() { removed = root.do("DELETE", permissionsPath+"/"+name+"?force", nil) })
		both.Wait()
		outcomes[fmt.Sprint(set.status, " ", removed.status)]++
		if n := ts.queryInt(`SELECT count(*) FROM datasets WHERE requires <> '' AND requires NOT IN (SELECT name FROM declared_permissions)`); n > 0 {
			t.Fatalf("a dataset requires %s, which is gone: %d %d", name, set.status, removed.status)
		}
		root.must(200, "PATCH", dataset, map[string]any{"requires": ""})
	}
	t.Logf("set and removed: %v", outcomes)
	if outcomes["200 409"]+outcomes["403 204"] != 30 {
		t.Errorf("outcomes %v", outcomes)
	}
}

// TestDirectoriesAreForManagers: the directory of a dataset is shown only to callers who hold dataset.manage.
func TestDirectoriesAreForManagers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.addFolder("quagga/one", "quagga/two")
	root := ts.signIn("root", "all")
	one, two := ts.addDataset(root, "one", "quagga/one"), ts.addDataset(root, "two", "quagga/two")
	root.analyze(one, nil)
	root.analyze(two, nil)
	reads := []string{
		"/api/v1/datasets", one, one + "/footprints.geojson", one + "/compare?with=" + filepath.Base(two), one + "/report",
		one + "/files", one + "/files.csv", one + "/mosaic.vrt", "/api/v1/files", stacPath, stacPath + "/collections",
		"/", "/datasets", "/datasets/" + filepath.Base(one),
	}
	shown := 0
	former := ts.signIn("former", datasetRead).must(200, "GET", one, nil).header.Get("ETag")
	manager, reader := ts.signIn("manager", datasetRead, datasetManage), ts.signIn("reader", datasetRead, datasetAnalyze)
	script := ts.addToken("root", "script", datasetRead, datasetDownload)
	for _, path := range reads {
		for _, c := range []client{reader, script} {
			if a := c.do("GET", path, nil); strings.Contains(string(a.body), "quagga") || strings.Contains(string(a.body), ts.datasets) {
				t.Errorf("%s shows the directory: %s", path, a.body)
			}
		}
		if a := manager.must(200, "GET", path, nil); strings.Contains(string(a.body), "quagga") {
			shown++
		}
	}
	if shown != 5 { // the list, the dataset, GeoJSON, the comparison and the page
		t.Errorf("%d answers show the directory to a manager, want 5", shown)
	}
	a := reader.must(200, "GET", one+"/footprints.geojson", nil)
	if !strings.Contains(string(a.body), `"location":"a.tif"`) {
		t.Errorf("footprints: %s", a.body)
	}

	// The entity tag that a reader gets does not depend on the directory.
	ts.exec(`UPDATE datasets SET path = 'elsewhere' WHERE name = 'one'`)
	check(t, "the entity tag for a reader", reader.must(200, "GET", one, nil).header.Get("ETag"), former)
}

// TestRequiresEndsAnswers: a request that waits for an analysis, and an answer that is being sent, end when the dataset
// begins to require what the caller lacks.
func TestRequiresEndsAnswers(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.declareLidar()
	ts.addFolder("scans")
	root, reader := ts.signIn("root", "all"), ts.signIn("reader", datasetRead)
	dataset := ts.addDataset(root, "scans", "scans")
	ts.exec(`INSERT INTO instances VALUES ('other', '', '{}', now(), now(), now() + interval '1 hour')`)
	id := ts.queryInt(`INSERT INTO analyses (dataset_id, force, requested_by, state, owner, owner_token) VALUES ($1, false, 'test', 'reading', 'other', gen_random_uuid()) RETURNING id`, filepath.Base(dataset))

	waiting := make(chan answer)
	go func() { waiting <- reader.do("GET", fmt.Sprintf("%s/analyses/%d?wait=60s", dataset, id), nil) }()
	for user := userID(ts, "reader"); ts.analyzer.waits.length(user) == 0; {
	}
	root.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})
	if a := <-waiting; a.status != 404 || a.text("detail") != "No dataset "+filepath.Base(dataset)+"." {
		t.Errorf("the request that waits: %d %s", a.status, a.body)
	}

	// A long answer calls authorize every ten seconds.
	root.must(200, "PATCH", dataset, map[string]any{"requires": ""})
	r := computing(t, httptest.NewRequestWithContext(t.Context(), "GET", dataset, nil))
	r.SetPathValue("id", filepath.Base(dataset))
	callerOf(r).authorize = func(context.Context) error { return nil }
	must(ts.catalogue.pathDataset(r))
	if err := callerOf(r).authorize(t.Context()); err != nil {
		t.Errorf("authorize for a visible dataset: %v", err)
	}
	root.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})
	if err := callerOf(r).authorize(t.Context()); err == nil || err.Error() != notFound("dataset", filepath.Base(dataset)).Error() {
		t.Errorf("authorize for a hidden dataset: %v", err)
	}
}

// isOfDataset reports whether a route is about one dataset.
func isOfDataset(rt route) bool {
	return strings.Contains(rt.path, "/datasets/{id}") || strings.Contains(rt.path, "/collections/{id}")
}

// TestHiddenDatasetMatrix walks the routes and pages of one dataset. Who holds all built-in permissions, or has an API
// token for all of these, gets the same answer as for a dataset that does not exist. Who holds the permission of the
// route and the one that the dataset requires gets in, by a session or a token.
func TestHiddenDatasetMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	m.declareLidar()
	outsiders := map[string]client{
		"session": m.signIn("outsider", builtInNames()...),
		"token":   m.addToken("scripted", "outsider", builtInNames()...),
	}
	insiders := map[string]func(permission string) client{
		"session": func(permission string) client { return m.each["in "+permission] },
		"token":   func(permission string) client { return m.tokens["in "+permission] },
	}
	for i, permission := range []string{datasetRead, datasetDownload, datasetAnalyze, datasetManage} {
		m.each["in "+permission] = m.signIn(fmt.Sprint("insider", i), permission, lidarSee)
		m.tokens["in "+permission] = m.addToken("scripted", "insider "+permission, permission, lidarSee)
	}
	ids := regexp.MustCompile(`^(.*/(?:datasets|collections)/)(\d+)`)
	m.exec(`SELECT setval(pg_get_serial_sequence('datasets', 'id'), 50000)`) // no other number is like these

	for _, rt := range m.routes() {
		if !isOfDataset(rt) {
			continue
		}
		t.Run(rt.method+" "+rt.path, func(t *testing.T) {
			path, body := m.target(rt)
			hide := func() string {
				id := ids.FindStringSubmatch(path)[2]
				m.exec(`UPDATE datasets SET requires = 'lidar.see' WHERE id = $1`, id)
				return id
			}
			id := hide()
			for as, c := range outsiders {
				method := rt.method
				c.t = t
				none := c.do(method, ids.ReplaceAllString(path, "${1}99999"), body, m.headers(rt)...)
				a := c.do(method, path, body, m.headers(rt)...)
				plain := func(a answer, id string) string {
					text := strings.ReplaceAll(string(a.body), a.header.Get("X-Request-Id"), "")
					return strings.ReplaceAll(text, id, "ID")
				}
				if a.status != 404 || plain(a, id) != plain(none, "99999") {
					t.Errorf("%s: %d %s\nwant %d %s", as, a.status, a.body, none.status, none.body)
				}
				for name := range maps.Keys(a.header) {
					if none.header[name] == nil {
						t.Errorf("%s: the header %s is only there for the hidden dataset", as, name)
					}
				}
				if isGet := method == "GET"; isGet {
					head := c.do("HEAD", path, nil, `If-None-Match: *`)
					if head.status != 404 {
						t.Errorf("%s: HEAD is answered %d, want 404", as, head.status)
					}
				}
			}
			for as, insider := range insiders {
				c := insider(string(rt.who))
				c.t = t
				a := c.do(rt.method, path, body, m.headers(rt)...)
				isDone := a.status/100 == 2 || rt.isPage() && a.status == 303
				isOtherDataset := strings.Contains(rt.path, "/compare")
				if !isDone && !isOtherDataset {
					t.Errorf("%s with the permission: %d %s", as, a.status, a.body)
				}
				path, body = m.target(rt)
				hide()
			}
		})
	}
}

// hiddenWalk is the state of TestHiddenDatasets.
type hiddenWalk struct {
	*testServer
	random   *rand.Rand
	insider  client // does the acts
	outsider client // lacks what the hidden datasets require
	hidden   []string
	open     []string
	made     int
	cursors  []string // paths with cursors that the insider got
}

// Numbers of hidden objects begin with these digits, and their names have one of these words.
const hiddenNumbers = 7_000_000

var hiddenWords = regexp.MustCompile(`zebra|quagga|okapi|gnus|\b70\d{5}\b|/70\d{5}`)

// number sets from which number on new rows get their ids.
func (w *hiddenWalk) number(from int) {
	w.t.Helper()
	for _, table := range []string{"datasets", "elevation_dataset_file_meta", "analyses", "accepted_findings"} {
		w.exec(fmt.Sprintf(`
			SELECT setval(pg_get_serial_sequence('%[1]s', 'id'), 1 + coalesce((SELECT max(id) FROM %[1]s WHERE (id > %[2]d) = (%[3]d >= %[2]d)), %[3]d))`,
			table, hiddenNumbers-1, from))
	}
}

// register adds a dataset with a few files, and analyses it.
func (w *hiddenWalk) register(isHidden bool) {
	w.t.Helper()
	w.made++
	name, requires, from, file := fmt.Sprint("open", w.made), "", 1, "a"
	if isHidden {
		name, requires, from, file = fmt.Sprint("zebra", w.made), lidarSee, hiddenNumbers, "okapi"
	}
	dir := strings.Replace(name, "zebra", "quagga", 1)
	w.number(from)
	if err := os.MkdirAll(filepath.Join(w.datasets, dir), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for i := range 3 + w.random.IntN(4) {
		w.write(dir, fmt.Sprintf("%s%d.tif", file, i))
	}
	a := w.insider.must(201, "POST", "/api/v1/datasets", map[string]any{"name": name, "path": dir, "requires": requires})
	w.insider.must(200, "PATCH", a.header.Get("Location"), map[string]any{"notify": []string{"draft", "publish"}[w.random.IntN(2)]})
	if isHidden {
		w.hidden = append(w.hidden, a.header.Get("Location"))
	} else {
		w.open = append(w.open, a.header.Get("Location"))
	}
	w.insider.analyze(a.header.Get("Location"), nil)
}

// write writes a raster somewhere.
func (w *hiddenWalk) write(dir, name string) {
	w.t.Helper()
	w.writeOld(filepath.Join(w.datasets, dir, name), geographicTIFF(float64(w.random.IntN(300)-150), float64(w.random.IntN(100)-50)))
}

// writeOld writes a file as if that had been a day ago. Otherwise analyses with checksums would wait, because the file is fresh.
func (w *hiddenWalk) writeOld(path string, content []byte) {
	w.t.Helper()
	written := time.Now().Add(time.Duration(w.made)*time.Second - 24*time.Hour)
	if err := errors.Join(os.WriteFile(path, content, 0o644), os.Chtimes(path, written, written)); err != nil {
		w.t.Fatal(err)
	}
}

// act does one thing with a dataset, as the insider.
func (w *hiddenWalk) act(dataset string, isHidden bool) {
	w.t.Helper()
	w.number(map[bool]int{true: hiddenNumbers, false: 1}[isHidden])
	c, word := w.insider, map[bool]string{true: "gnus", false: "open"}[isHidden]
	w.made++
	unique := fmt.Sprint(word, w.made)
	switch w.random.IntN(11) {
	case 0, 1: // files come and go
		dir := c.must(200, "GET", dataset, nil).text("path")
		name := map[bool]string{true: "okapi", false: "b"}[isHidden] + fmt.Sprint(w.random.IntN(9), ".tif")
		w.write(dir, name)
		w.writeOld(filepath.Join(w.datasets, dir, "MD5SUMS"), []byte(emptyMD5+"  "+name+"\n"))
		c.analyze(dataset, map[string]bool{"checksums": w.random.IntN(2) == 0})
	case 2:
		c.must(200, "PATCH", dataset, map[string]any{"name": map[bool]string{true: "zebra", false: "open"}[isHidden] + unique})
	case 3:
		c.must(200, "PATCH", dataset, map[string]any{"description": unique, "about": map[string]any{"keywords": []string{word, "shared"}, "surveyed_from": "2024-01-01"}})
	case 4, 5:
		code := findingKinds()[w.random.IntN(len(findingKinds()))].code
		c.do("POST", dataset+"/accepted-findings", map[string]any{"code": code, "path": unique + "/", "note": unique})
	case 6:
		for _, accepted := range c.must(200, "GET", dataset+"/accepted-findings", nil).items() {
			c.must(204, "DELETE", fmt.Sprintf("%s/accepted-findings/%.0f", dataset, accepted["id"]), nil)
			break
		}
	case 7:
		c.must(200, "PATCH", dataset+"/expectation", map[string]any{"posting": fmt.Sprint(1 + w.random.IntN(3)), "name": unique + ".tif"})
		w.settle()
	case 8:
		c.must(201, "POST", "/api/v1/system-messages", map[string]any{"title": "To insiders", "body": "Something has changed.", "roles": []string{"admin"}})
	case 9: // it requires something else
		if isHidden {
			c.must(200, "PATCH", dataset, map[string]any{"requires": "lidar.other"})
			c.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})
		}
	case 10: // a hidden one is read by the insider, and compared
		with := w.open[w.random.IntN(len(w.open))]
		if with != dataset {
			c.do("GET", dataset+"/compare?with="+filepath.Base(with), nil)
		}
		for _, list := range []string{"/api/v1/datasets?limit=1", "/api/v1/files?limit=1", stacPath + "/search?limit=1"} {
			a := c.must(200, "GET", list, nil)
			if cursor := a.text("next_cursor"); cursor != "" {
				w.cursors = append(w.cursors, list+"&cursor="+url.QueryEscape(cursor))
			}
		}
	}
}

// settle waits until no analysis runs.
func (w *hiddenWalk) settle() {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); w.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL`) > 0; {
		if time.Now().After(deadline) {
			w.t.Fatal("an analysis does not end")
		}
		pause(w.t.Context(), 20*time.Millisecond)
	}
}

// ask sends every request that reads as the outsider: all routes and pages, with the values of open and of hidden
// objects. It returns the answers by request.
func (w *hiddenWalk) ask() map[string]answer {
	w.t.Helper()
	ids := func(query string) []string {
		all := w.queryText(`SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM (` + query + `) q`)
		return append(strings.Fields(all), "70", "999999")
	}
	datasets := ids(`SELECT id FROM datasets`)
	files := ids(`(SELECT id FROM elevation_dataset_file_meta WHERE id < 7000000 ORDER BY id LIMIT 2) UNION (SELECT id FROM elevation_dataset_file_meta WHERE id >= 7000000 ORDER BY id LIMIT 2)`)
	analyses := ids(`(SELECT id FROM analyses WHERE id < 7000000 ORDER BY id LIMIT 2) UNION (SELECT id FROM analyses WHERE id >= 7000000 ORDER BY id LIMIT 2)`)
	paths := map[string]bool{}
	for _, rt := range w.routes() {
		if rt.method != "GET" || rt.who == auditRead || rt.who == metricsRead || strings.Contains(rt.path, "{file}") && strings.HasPrefix(rt.path, "/console") {
			continue
		}
		for _, id := range datasets {
			for i := range 3 {
				value := strings.NewReplacer("{id}", id, "{file}", files[i], "{analysis}", analyses[i], "{code}", findingKinds()[i*5].code,
					"{path...}", []string{"a1.tif", "okapi1.tif"}[i%2], "{$}", "", "{z}/{x}/{y}", "2/1/1.png")
				paths[value.Replace(rt.path)] = true
			}
		}
	}
	hidden := strings.Join(datasets, ",")
	for _, more := range []string{
		"/api/v1/files?total=1", "/api/v1/files?total=1&q=okapi", "/api/v1/files?point=7.1,45.9", "/api/v1/files?bbox=-180,-90,180,90&total=1",
		"/api/v1/files?sort=-resolution", "/api/v1/files?sort=-modified&limit=2",
		"/api/v1/files?total=1&keyword=shared", "/api/v1/files?total=1&surveyed_until=2024-12-31&size_min=1", "/api/v1/files?keyword=gnus&total=1",
		"/api/v1/datasets?keyword=shared", "/api/v1/datasets?q=gnus", "/datasets?keyword=shared", "/files?keyword=shared", "/files?sample_type=int16",
		"/api/v1/files?total=1&intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[[[-179,-89],[179,-89],[179,89],[-179,89],[-179,-89]]]}`),
		"/api/v1/datasets?name=zebra2", "/api/v1/datasets?limit=1", stacPath + "/search?limit=1",
		stacPath + "/search?collections=" + hidden, stacPath + "/search?limit=1000&ids=" + strings.Join(files, ","),
		stacPath + "/search?bbox=-180,-90,180,90", stacPath + "/search?datetime=../2100-01-01T00:00:00Z",
		stacPath + "/search?intersects=" + url.QueryEscape(`{"type":"Polygon","coordinates":[[[-179,-89],[179,-89],[179,89],[-179,89],[-179,-89]]]}`),
	} {
		paths[more] = true
	}
	for _, id := range datasets {
		for _, other := range datasets {
			paths["/api/v1/datasets/"+id+"/compare?with="+other] = true
		}
	}
	answers := map[string]answer{}
	for path := range paths {
		answers[path] = w.outsider.do("GET", path, nil)
	}
	for _, path := range w.cursors {
		answers[path] = w.outsider.do("GET", path, nil)
	}
	search := fmt.Sprintf(`{"collections":["%s"]}`, strings.ReplaceAll(hidden, ",", `","`))
	answers["POST "+search] = w.outsider.do("POST", stacPath+"/search", search)
	return answers
}

// queryText returns the text that a query selects.
func (ts *testServer) queryText(query string) (text string) {
	ts.t.Helper()
	if err := ts.db.QueryRow(context.Background(), query).Scan(&text); err != nil {
		ts.t.Fatal(err)
	}
	return text
}

// told returns the answer without what the outsider's own request has, and without its own path.
func told(path string, a answer) string {
	text := strings.ReplaceAll(string(a.body), a.header.Get("X-Request-Id"), "")
	for _, own := range []string{path, strings.ReplaceAll(path, "&", "&amp;")} {
		text = strings.ReplaceAll(text, own, "")
	}
	text = regexp.MustCompile(`name="once" value="\w+"`).ReplaceAllString(text, "")

	// A 404 repeats the ids of the path.
	for _, id := range regexp.MustCompile(`70\d{5}|okapi1\.tif`).FindAllString(path, -1) {
		if a.status == 404 || a.status == 400 {
			text = strings.ReplaceAll(text, id, "")
		}
	}
	return text
}

// TestHiddenDatasets: insiders do random things with datasets that require a permission, and with others. Whatever the
// outsider asks, no answer has a name, a number, an id or a path of a hidden dataset. As long as things are done with
// hidden datasets alone, no answer of the outsider changes, to the byte.
func TestHiddenDatasets(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ts := startServer(t, nil)
	ts.declareLidar()
	isNotOutsiders := func(p string) bool { return p == auditRead || p == metricsRead }
	w := &hiddenWalk{testServer: ts, random: rand.New(rand.NewPCG(seed, 3)), insider: ts.signIn("insider", "all"),
		outsider: ts.signIn("outsider", slices.DeleteFunc(builtInNames(), isNotOutsiders)...)}
	for range 2 {
		w.register(false)
		w.register(true)
	}

	rounds := soakOr(4, 2)
	for round := range rounds {
		for range 25 {
			w.act(w.open[w.random.IntN(len(w.open))], false)
		}
		w.settle()
		before := w.ask()
		for range soakOr(500, 50) {
			if len(w.hidden) < 4 && w.random.IntN(8) == 0 {
				w.register(true)
			}
			w.act(w.hidden[w.random.IntN(len(w.hidden))], true)
		}
		if round == rounds/2 {
			w.insider.must(204, "DELETE", w.hidden[0], nil)
			w.hidden = w.hidden[1:]
		}
		w.settle()
		after := w.ask()
		for path, a := range after {
			if word := hiddenWords.FindString(told(path, a)); word != "" && !strings.HasPrefix(path, "POST ") {
				t.Errorf("%s tells %q: %s", path, word, a.body)
			}
			was, isOld := before[path]
			isSame := told(path, was) == told(path, a) && was.header.Get("ETag") == a.header.Get("ETag")
			if isOld && isOfCatalogue(path) && !isSame {
				t.Errorf("%s has changed from\n%s\nto\n%s", path, was.body, a.body)
			}
		}
		if t.Failed() {
			return
		}
	}
	if n := ts.queryInt(`SELECT count(*) FROM system_messages WHERE dataset_id >= $1`, hiddenNumbers); n == 0 {
		t.Error("nothing was announced about a hidden dataset")
	}
	if n := ts.queryInt(`SELECT count(*) FROM audit_log WHERE target LIKE 'dataset:zebra%'`); n < rounds*20 {
		t.Errorf("only %d acts on hidden datasets", n)
	}
}

// isOfCatalogue reports whether the answer to a path is about datasets alone.
func isOfCatalogue(path string) bool {
	return path == "/" || strings.Contains(path, "datasets") || strings.Contains(path, "stac") || strings.Contains(path, "/files")
}
