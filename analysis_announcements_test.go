package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// toldServer is a service with a dataset of one good raster, which has been analysed and whose notify is as given.
func toldServer(t *testing.T, notify string) (ts *testServer, root client, dataset string) {
	t.Helper()
	ts = startServer(t, nil, "CAIRN_DATABASE_URL="+newDatabase(t))
	ts.declareLidar()
	ts.addFolder("alps")
	root = ts.signIn("root", "all")
	dataset = ts.addDataset(root, "alps", "alps")
	root.must(200, "PATCH", dataset, map[string]string{"notify": notify})
	root.analyze(dataset, nil)
	return ts, root, dataset
}

// spoil adds a file to the dataset that is no raster.
func (ts *testServer) spoil(name string) {
	ts.t.Helper()
	if err := os.WriteFile(filepath.Join(ts.datasets, "alps", name), []byte("no TIFF"), 0o644); err != nil {
		ts.t.Fatal(err)
	}
}

// titles returns the titles of a list of announcements, the newest first.
func (c client) titles(path string) string {
	c.t.Helper()
	var titles []string
	for _, item := range c.must(200, "GET", path, nil).items() {
		titles = append(titles, item["title"].(string))
	}
	return strings.Join(titles, "; ")
}

// TestNotifyIsSet: notify is none at first, is set with dataset.manage, and publish also needs admin.system_message. It
// stays when whoever has set it loses a permission. Each change is audited.
func TestNotifyIsSet(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "none")
	manager := ts.signIn("manager", datasetRead, datasetManage)
	both := ts.signIn("both", datasetRead, datasetManage, adminSystemMessage)
	author := ts.signIn("author", datasetRead, adminSystemMessage)
	notify := func(value string) map[string]any { return map[string]any{"notify": value} }

	check(t, "notify", root.must(200, "GET", dataset, nil).text("notify"), "none")
	root.refused(422, "invalid", "PATCH", dataset, notify("always"))
	root.refused(422, "invalid", "PATCH", dataset, notify(""))
	author.refused(403, "permission_missing", "PATCH", dataset, notify("draft"))
	a := manager.refused(403, "grant_exceeds_own", "PATCH", dataset, notify("publish"))
	check(t, "the permission that is missing", a.text("permission"), adminSystemMessage)
	ts.addToken("both", "script", datasetRead, datasetManage).refused(403, "grant_exceeds_own", "PATCH", dataset, notify("publish"))
	check(t, "notify by a manager", manager.must(200, "PATCH", dataset, notify("draft")).text("notify"), "draft")
	check(t, "notify by both", both.must(200, "PATCH", dataset, notify("publish")).text("notify"), "publish")

	// It is the dataset's now. A manager may keep it, and take it away.
	ts.exec(`DELETE FROM user_roles WHERE user_id = $1`, userID(ts, "both"))
	manager.must(200, "PATCH", dataset, map[string]any{"notify": "publish", "description": "new"})
	check(t, "notify", manager.must(200, "PATCH", dataset, map[string]any{"notify": nil}).text("notify"), "publish")
	ts.spoil("b.tif")
	root.analyze(dataset, nil)
	check(t, "announced", author.titles("/api/v1/inbox"), "New findings in alps")
	manager.must(200, "PATCH", dataset, notify("none"))

	page := "/datasets/" + filepath.Base(dataset)
	checkLacks(t, "the form of a manager", string(manager.must(200, "GET", page, nil).body), `value="publish"`)
	manager.must(403, "POST", page, "name=alps&notify=publish", formHeader)
	manager.must(303, "POST", page, "name=alps&notify=draft", formHeader)
	checkHas(t, "the form", string(root.must(200, "GET", page, nil).body), `<option value="draft" selected>`)
	if said, err := ts.command("dataset", "set", "alps", "--notify", "publish", "--json"); err != nil || !strings.Contains(said, `"notify":"publish"`) {
		t.Errorf("%s %v", said, err)
	}
	rows := ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.update' AND before->>'notify' <> after->>'notify'`)
	check(t, "audit rows", rows, 5)
}

// TestNewFindingsAreAnnounced: an analysis that finds something new is announced once, to those who may read datasets, with
// the numbers of each kind. The first analysis, one without news, and accepted findings are not announced.
func TestNewFindingsAreAnnounced(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "publish")
	reader, other := ts.signIn("reader", datasetRead), ts.signIn("other", userManage)
	check(t, "after the first analysis", reader.titles("/api/v1/inbox"), "")

	ts.spoil("b.tif")
	ts.spoil("c.tif")
	root.analyze(dataset, nil)
	root.analyze(dataset, nil)
	root.analyze(dataset, map[string]any{"force": true})
	check(t, "after new files", reader.titles("/api/v1/inbox"), "New findings in alps")
	check(t, "unread", reader.unread(), 1)
	check(t, "the inbox of somebody who may not read datasets", other.titles("/api/v1/inbox"), "")
	check(t, "unread there", other.unread(), 0)

	m := reader.must(200, "GET", "/api/v1/inbox", nil).items()[0]
	check(t, "author", m["author"].(string), "cairn")
	check(t, "dataset", fmt.Sprint(m["dataset_id"]), filepath.Base(dataset))
	for _, part := range []string{"alps", ": 2\n", "Report: /datasets/" + filepath.Base(dataset) + "/report"} {
		checkHas(t, "the text", m["body"].(string), part)
	}
	const created = `SELECT count(*) FROM audit_log WHERE action = 'message.create' AND actor = 'cairn' AND credential = '' AND after->>'title' = 'New findings in alps'`
	check(t, "audit rows", ts.queryInt(created), 1)

	// Accepted findings are no news; others in the same analysis are.
	root.must(201, "POST", dataset+"/accepted-findings", map[string]any{"code": "unreadable", "note": "all of them"})
	root.must(201, "POST", dataset+"/accepted-findings", map[string]any{"code": "corrupt", "note": "all of them"})
	ts.spoil("d.tif")
	root.analyze(dataset, nil)
	check(t, "after an accepted finding", reader.titles("/api/v1/inbox"), "New findings in alps")
	ts.write("alps", map[string]string{"far.tif": string(geographicTIFF(-120, -40)), "e.xyz.part": "x"})
	root.analyze(dataset, nil)
	check(t, "after another finding", reader.titles("/api/v1/inbox"), "New findings in alps; New findings in alps")

	// The checks of a changed expectation end an analysis, too.
	root.must(200, "PATCH", dataset+"/expectation", map[string]any{"sample_type": "int64"})
	waitFor(t, "the checks", func() bool { return ts.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL`) == 0 })
	check(t, "after a new expectation", strings.Count(reader.titles("/api/v1/inbox"), "New findings"), 3)
	root.must(204, "DELETE", dataset, nil)
	check(t, "after the dataset was deleted", reader.titles("/api/v1/inbox"), "")
}

// TestDraftsOfAnnouncements: a draft is in no inbox until somebody publishes it.
func TestDraftsOfAnnouncements(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "draft")
	reader := ts.signIn("reader", datasetRead)
	ts.addUser("author", datasetRead, adminSystemMessage)
	b := ts.browse("author")
	ts.spoil("b.tif")
	root.analyze(dataset, nil)
	check(t, "the inbox", reader.titles("/api/v1/inbox"), "")
	check(t, "drafts", root.titles("/api/v1/system-messages?state=draft"), "New findings in alps")
	check(t, "scheduled", root.titles("/api/v1/system-messages?state=scheduled"), "")
	shown := b.shows(200, "GET", "/messages?state=draft", "", "New findings in alps", "draft", "who may see")
	checkLacks(t, "the page", shown, "9999")
	b.shows(200, "GET", "/messages/1", "", "Only those who may see", "report</textarea>")

	root.must(200, "PATCH", "/api/v1/system-messages/1", map[string]any{"title": "Look at alps"})
	check(t, "a changed draft", root.titles("/api/v1/system-messages?state=draft"), "Look at alps")
	a := root.must(200, "PATCH", "/api/v1/system-messages/1", map[string]any{"publish_at": nil})
	check(t, "state", a.text("state"), "published")
	check(t, "recipients", a.number("recipients"), 3)
	check(t, "the inbox", reader.titles("/api/v1/inbox"), "Look at alps")
	reader.must(204, "POST", "/api/v1/inbox/1/read", nil)
	check(t, "unread", reader.unread(), 0)
}

// TestMissingDirectoryIsAnnounced: a missing directory is announced after the first analysis that does not find it, and
// again after it was there meanwhile.
func TestMissingDirectoryIsAnnounced(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "publish")
	from, to := filepath.Join(ts.datasets, "alps"), filepath.Join(ts.datasets, "gone")
	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	const missing = "The directory of alps is missing"
	move(from, to)
	for range 3 {
		check(t, "failure", root.analyze(dataset, nil).text("failure_code"), failureUnavailable)
		check(t, "announced", root.titles("/api/v1/inbox"), missing)
	}
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at) VALUES (1, false, 'x', 'canceled', now())`)
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, finished_at, checks_only) VALUES (1, false, 'x', 'succeeded', now(), true)`)
	root.analyze(dataset, nil)
	check(t, "announced after a canceled one", root.titles("/api/v1/inbox"), missing)
	body := root.must(200, "GET", "/api/v1/inbox", nil).items()[0]["body"].(string)
	checkHas(t, "the text", body, "/datasets/"+filepath.Base(dataset)+"/analyses/2")
	checkLacks(t, "the text", body, ts.datasets)

	move(to, from)
	root.analyze(dataset, nil)
	move(from, to)
	root.analyze(dataset, nil)
	check(t, "announced again", root.titles("/api/v1/inbox"), missing+"; "+missing)
	root.must(200, "PATCH", dataset, map[string]any{"notify": "none"})
	move(to, from)
	root.analyze(dataset, nil)
	move(from, to)
	root.analyze(dataset, nil)
	check(t, "with none", root.titles("/api/v1/inbox"), missing+"; "+missing)
}

// TestHiddenAnnouncements: an announcement about a dataset is there for those who may see the dataset, also among those who
// write announcements, and for credentials that may. It follows what the dataset requires now.
func TestHiddenAnnouncements(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "publish")
	root.must(200, "PATCH", dataset, map[string]any{"requires": lidarSee})
	holder := ts.signIn("holder", datasetRead, lidarSee)
	outsider := ts.signIn("outsider", datasetRead, adminSystemMessage)
	blind := ts.signIn("blind", lidarSee) // may not read datasets
	tokens := map[bool]client{
		true:  ts.addToken("holder", "whole", inboxRead, datasetRead, lidarSee),
		false: ts.addToken("holder", "part", inboxRead),
	}
	ts.spoil("b.tif")
	root.analyze(dataset, nil)
	const path = "/api/v1/system-messages/1"

	for name, c := range map[string]client{"holder": holder, "root": root, "token": tokens[true]} {
		check(t, "the inbox of "+name, c.titles("/api/v1/inbox"), "New findings in alps")
		check(t, "unread of "+name, c.unread(), 1)
	}
	for name, c := range map[string]client{"outsider": outsider, "blind": blind, "token": tokens[false]} {
		check(t, "the inbox of "+name, c.titles("/api/v1/inbox"), "")
		check(t, "unread of "+name, c.unread(), 0)
	}
	outsider.refused(404, "not_addressed", "POST", "/api/v1/inbox/1/read", nil)
	outsider.refused(404, "not_addressed", "POST", "/api/v1/inbox/read-all", map[string]any{"up_to": 1})
	check(t, "the list of an outsider", outsider.titles("/api/v1/system-messages"), "")
	check(t, "what an outsider finds", outsider.titles("/api/v1/system-messages?q=alps&state=published"), "")
	none := outsider.refused(404, "not_found", "GET", "/api/v1/system-messages/99", nil).text("detail")
	for method, to := range map[string]string{"GET": path, "PATCH": path, "DELETE": path + "?permanently=true"} {
		a := outsider.refused(404, "not_found", method, to, map[string]any{})
		check(t, method, a.text("detail"), strings.Replace(none, "99", "1", 1))
	}
	outsider.refused(404, "not_found", "GET", path+"/unread-by", nil)
	outsider.must(404, "GET", "/messages/1", nil)
	outsider.must(404, "POST", "/messages/1/preview", "title=x&body=y&severity=info&roles=", formHeader)

	a := root.must(200, "GET", path, nil)
	check(t, "recipients", a.number("recipients"), 2)
	var names []string
	for _, item := range root.must(200, "GET", path+"/unread-by", nil).items() {
		names = append(names, item["username"].(string))
	}
	check(t, "those who have not read it", fmt.Sprint(slices.Sorted(slices.Values(names))), "[holder root]")
	preview := root.must(200, "POST", "/messages/1/preview", "title=x&body=y&severity=info&roles=", formHeader)
	checkHas(t, "the preview", string(preview.body), "2 people would get it now: holder, root")

	// A suspended user sees nothing.
	ts.exec(`UPDATE roles SET requires_second_factor = true WHERE name = 'only-holder'`)
	check(t, "recipients without a suspended one", root.must(200, "GET", path, nil).number("recipients"), 1)
	ts.exec(`UPDATE roles SET requires_second_factor = false WHERE name = 'only-holder'`)

	root.must(200, "PATCH", dataset, map[string]any{"requires": ""})
	check(t, "the inbox of the outsider", outsider.titles("/api/v1/inbox"), "New findings in alps")
	check(t, "the inbox of the blind", blind.titles("/api/v1/inbox"), "")
	check(t, "the inbox of the token", tokens[false].titles("/api/v1/inbox"), "")
	root.must(200, "PATCH", dataset, map[string]any{"requires": "lidar.other"})
	check(t, "the inbox of the holder", holder.titles("/api/v1/inbox"), "")
}

// TestAnnouncedOnce: an instance is killed while it writes the announcement; another start ends the analysis, and writes
// the announcement once. An owner that was replaced writes none.
func TestAnnouncedOnce(t *testing.T) {
	t.Parallel()
	ts, root, dataset := toldServer(t, "publish")
	ts.spoil("b.tif")

	resume := ts.ownsNothing()
	ts.exec(`INSERT INTO instances VALUES ('other', '', '{}', now(), now(), now() + interval '1 hour')`)
	ts.exec(`INSERT INTO analyses (dataset_id, force, requested_by, state, owner, owner_token) VALUES (1, false, 'test', 'checking', 'other', gen_random_uuid())`)
	stale := task{AnalysisID: 2, DatasetID: 1, Token: "00000000-0000-0000-0000-000000000000"}
	if err := ts.analyzer.storeResults(t.Context(), stale, nil); err != errNotOurs {
		t.Errorf("a stale owner ends an analysis: %v", err)
	}
	ts.analyzer.settle(t.Context(), stale, unavailable("gone"))
	check(t, "announced by a stale owner", ts.queryInt(`SELECT count(*) FROM system_messages`), 0)
	ts.exec(`DELETE FROM analyses WHERE id = 2`)
	ts.exec(`DELETE FROM instances WHERE id = 'other'`)
	resume()
	ts.stop()
	ts.db = must(pgxpool.New(t.Context(), lookup(ts.env, "CAIRN_DATABASE_URL")))
	t.Cleanup(ts.db.Close)
	for round := range 2 { // after a third death, the analysis would fail
		p := startProcess(t, ts.env)
		root.url = p.url
		release := ts.holdLock(`LOCK TABLE system_messages`)
		if round == 0 {
			root.must(202, "POST", dataset+"/analyses", nil)
		}
		waitFor(t, "the announcement", func() bool {
			return ts.queryInt(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'system_messages'::regclass`) > 0
		})
		p.kill()
		release()
	}
	root.url = startProcess(t, ts.env).url
	root.finished(dataset + "/analyses/3")
	check(t, "announced", root.titles("/api/v1/inbox"), "New findings in alps")
	check(t, "audit rows", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'message.create'`), 1)
}

// TestAnnouncementLinks: where CAIRN_BASE_URL is set, the text has the whole address of the report.
func TestAnnouncementLinks(t *testing.T) {
	t.Parallel()
	one, root, dataset := toldServer(t, "publish")
	one.ownsNothing()
	startServer(t, nil, append(one.env, "CAIRN_STATE_DIR="+t.TempDir(), "CAIRN_KEYS_FILE="+one.cfg.keysPath(), "CAIRN_BASE_URL=https://cairn.example.org")...)
	one.spoil("b.tif")
	root.analyze(dataset, nil)
	body := root.must(200, "GET", "/api/v1/inbox", nil).items()[0]["body"].(string)
	checkHas(t, "the text", body, "https://cairn.example.org/datasets/1/report")
}

// TestNewAmongManyFindings: only the first maxFlaws findings of a code are stored. An old finding that comes among them is
// not new. A new one that does not is counted, in the report and in the announcement.
func TestNewAmongManyFindings(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	corrupt := func(name string) ElevationDatasetFileMeta {
		return ElevationDatasetFileMeta{Path: name, extent: extent{Status: fileStatusCorrupt, Warnings: []string{}}}
	}
	var files []ElevationDatasetFileMeta
	for i := range maxFlaws + 60 {
		files = append(files, corrupt(fmt.Sprintf("a/%05d.tif", i)))
	}
	id := ts.addChecked("alps", files)
	dataset := fmt.Sprintf("/api/v1/datasets/%d", id)
	root.must(200, "PATCH", dataset, map[string]string{"notify": "publish"})

	remove := func(from, to string) {
		ts.exec(`DELETE FROM elevation_dataset_file_meta WHERE path >= $1 AND path < $2`, from, to)
	}
	add := func(names ...string) {
		var files []ElevationDatasetFileMeta
		for _, name := range names {
			files = append(files, corrupt(name))
		}
		ts.addRows(id, files)
	}
	announced := 0
	news := func(what string, want float64) {
		t.Helper()
		root.must(200, "PATCH", dataset+"/expectation", map[string]any{"sample_type": what})
		waitFor(t, what, func() bool { return ts.queryInt(`SELECT count(*) FROM analyses WHERE finished_at IS NULL`) == 0 })
		found := root.must(200, "GET", dataset+"/report", nil).json["findings"].([]any)[0].(map[string]any)
		check(t, what+": new in the report", found["new"], any(want))
		if want > 0 {
			announced++
		}
		inbox := root.must(200, "GET", "/api/v1/inbox", nil).items()
		check(t, what+": announcements", len(inbox), announced)
		if want > 0 && len(inbox) > 0 {
			checkHas(t, what, inbox[0]["body"].(string), fmt.Sprintf("files are corrupt: %.0f\n", want))
		}
	}

	remove("a/00000", "a/00050")
	news("old ones come among the first", 0)
	add("zz.tif")
	news("a new one does not", 1)
	root.must(201, "POST", dataset+"/accepted-findings", map[string]any{"code": "corrupt", "path": "a/", "note": "known"})
	check(t, "new after others were accepted", root.must(200, "GET", dataset+"/report", nil).json["findings"].([]any)[0].(map[string]any)["new"], any(1.0))
	add("a/zz.tif")
	news("a new one that is accepted", 0)
	remove("a/00050", "a/00062")
	news("all are stored now", 0)
	add("zz1.tif", "zz2.tif")
	news("new ones after the last stored one", 2)
	remove("a/00100", "a/00200")
	add("zz3.tif")
	news("fewer than are stored", 0)
	add("zz4.tif")
	news("all are known", 1)
}
