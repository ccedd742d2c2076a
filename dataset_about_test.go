package main

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fullAbout is a description with every field.
const fullAbout = `{"title":"Terrain model","license":"CC-BY-4.0","attribution":"© Survey","providers":[{"name":"Survey","roles":["producer"],"url":"https://example.org"}],` +
	`"surveyed_from":"2024-03-01","surveyed_until":"2024-04-30","vertical_rmse_m":0.15,"vertical_rmse_source":"240 check points","keywords":["lidar","alps"],"link":"https://example.org/alps",` +
	`"default_crs":"EPSG:2154","default_vertical_crs":"EPSG:5720","folder_crs":[{"folder":"corse","crs":"","vertical_crs":"EPSG:5721"}]}`

// TestAbout: the description of a dataset is changed field by field, and shown by the API, by STAC and by the command.
// Nobody overwrites a change that somebody else has made meanwhile.
func TestAbout(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	if err := os.Mkdir(filepath.Join(ts.datasets, "alps"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := root.addDataset("alps")

	fresh := root.must(200, "GET", path, nil)
	for _, part := range []string{`"providers":[]`, `"keywords":[]`, `"title":""`} {
		checkHas(t, "a new dataset", string(fresh.body), part)
	}
	body := func(about string) string { return `{"about":` + about + `}` }
	changed := root.must(200, "PATCH", path, body(fullAbout), "If-Match: "+fresh.header.Get("ETag"))
	checkHas(t, "the changed dataset", string(changed.body), fullAbout)
	checkHas(t, "the dataset", string(root.must(200, "GET", path, nil).body), fullAbout)
	root.must(412, "PATCH", path, body(`{"title":"Mine"}`), "If-Match: "+fresh.header.Get("ETag"))

	collection := root.must(200, "GET", strings.Replace(path, "/datasets/", "/stac/collections/", 1), nil)
	for _, part := range []string{`"title":"Terrain model"`, `"license":"CC-BY-4.0"`, `"keywords":["lidar","alps"]`,
		`"providers":[{"name":"Survey"`, `"interval":[["2024-03-01T00:00:00Z","2024-04-30T23:59:59Z"]]`, `"href":"https://example.org/alps"`} {
		checkHas(t, "the collection", string(collection.body), part)
	}

	root.must(200, "PATCH", path, body(`{"license":"https://example.org/license","keywords":[],"vertical_rmse_m":null}`))
	after := string(root.must(200, "GET", path, nil).body)
	for _, part := range []string{`"title":"Terrain model"`, `"keywords":[]`, `"vertical_rmse_m":null`, `"surveyed_from":"2024-03-01"`} {
		checkHas(t, "the dataset after a change of three fields", after, part)
	}
	collection = root.must(200, "GET", strings.Replace(path, "/datasets/", "/stac/collections/", 1), nil)
	checkHas(t, "the collection", string(collection.body), `"license":"proprietary"`)
	checkHas(t, "the collection", string(collection.body), `"href":"https://example.org/license"`)
	check(t, "audit rows", ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'dataset.update'`), 2)

	for _, rmse := range []string{"0.25", "0.5"} {
		root.must(200, "PATCH", path, body(`{"vertical_rmse_m":`+rmse+`}`))
		checkHas(t, "the dataset", string(root.must(200, "GET", path, nil).body), `"vertical_rmse_m":`+rmse)
	}
	former := ts.queryInt(`SELECT count(*) FROM audit_log WHERE before -> 'about' ->> 'vertical_rmse_m' = '0.25' AND after -> 'about' ->> 'vertical_rmse_m' = '0.5'`)
	check(t, "audit rows that tell of the change of a number", former, 1)
	root.must(200, "PATCH", path, body(`{"license":"MIT OR Apache-2.0","vertical_rmse_m":null}`))
	collection = root.must(200, "GET", strings.Replace(path, "/datasets/", "/stac/collections/", 1), nil)
	checkHas(t, "the collection", string(collection.body), `"license":"various"`)
	after = string(root.must(200, "GET", path, nil).body)

	for _, wrong := range []string{
		`7`, `[]`, `{"titel":"x"}`, `{"title":"a\nb"}`, `{"license":"all rights reserved!"}`, `{"link":"javascript:alert(1)"}`, `{"surveyed_from":"2024"}`,
		`{"surveyed_from":"2025-01-01"}`, `{"vertical_rmse_m":0}`, `{"vertical_rmse_m":"1"}`, `{"keywords":[""]}`, `{"providers":[{"name":"x","roles":["owner"]}]}`,
		`{"providers":[{"name":"","roles":[]}]}`, `{"providers":[{"name":"x"}]}`, `{"providers":[{"name":"x","roles":["host","host","host","host","host"]}]}`,
		`{"keywords":["a,b"]}`, `{"keywords":["` + strings.Repeat(`k","`, 50) + `k"]}`,
	} {
		root.refused(422, "invalid", "PATCH", path, body(wrong))
	}
	check(t, "the dataset after refused changes", string(root.must(200, "GET", path, nil).body), after)

	file := filepath.Join(t.TempDir(), "about.json")
	if err := os.WriteFile(file, []byte(fullAbout), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := ts.command("dataset", "set", "alps", "--about", file, "--json")
	if err != nil || !strings.Contains(said, `"title":"Terrain model"`) {
		t.Errorf("cairn dataset set: %s %v", said, err)
	}
}

// TestAboutForm: the form of a dataset changes its description.
func TestAboutForm(t *testing.T) {
	t.Parallel()
	body := formBody(url.Values{
		"about.title":           {" Terrain model "},
		"about.keywords":        {"lidar, alps,"},
		"about.vertical_rmse_m": {"0.15"},
		"about.providers":       {"[]"},
		"name":                  {"alps"},
		"former_name":           {"alps"},
	}, "name about.title about.keywords, about.providers{} about.vertical_rmse_m{}")
	got, err := encodeJSON(body)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "the body", strings.TrimSpace(string(got)), `{"about":{"keywords":["lidar","alps"],"providers":[],"title":"Terrain model","vertical_rmse_m":0.15}}`)
}

// TestSetWithoutJSON: a description that is no JSON is refused with the reason, and changes nothing. So is an empty file.
func TestSetWithoutJSON(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	os.Mkdir(filepath.Join(ts.datasets, "alps"), 0o755)
	ts.signIn("root", "all").addDataset("alps")
	for content, want := range map[string]string{`{"title": "x",}`: "--about: invalid character '}'", "": "--about: unexpected end of JSON input"} {
		file := filepath.Join(t.TempDir(), "about.json")
		os.WriteFile(file, []byte(content), 0o600)
		_, err := ts.command("dataset", "set", "alps", "--about", file)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", content, err, want)
		}
	}
}
