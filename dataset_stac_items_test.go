package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestJSONParameter: each address of the tree takes f=json, which many clients add to all requests, and no other f.
func TestJSONParameter(t *testing.T) {
	t.Parallel()
	ts, c, collection := stacTree(t, gridOfTiles(t, 2))
	page := c.must(200, "GET", collection+"/items?f=json&limit=1", nil)
	self := linkTo(answer{json: page.json["features"].([]any)[0].(map[string]any)}, "self")["href"].(string)
	next := linkTo(page, "next")["href"].(string)
	if second := c.must(200, "GET", strings.TrimPrefix(next, ts.url), nil); len(itemTitles(second)) != 1 {
		t.Errorf("the second page is %s", second.body)
	}
	for _, path := range []string{
		stacPath, stacPath + "/", stacPath + "/api", stacPath + "/conformance", stacPath + "/collections",
		collection, collection + "/items", strings.TrimPrefix(self, ts.url), stacPath + "/search",
	} {
		c.must(200, "GET", path+"?f=json", nil)
		c.must(200, "HEAD", path+"?f=json", nil)
		c.refused(400, "wrong_type", "GET", path+"?f=html", nil)
		c.refused(400, "wrong_type", "GET", path+"?f=", nil)
	}
}

// TestCollectionPages: all collections come at once. With a limit they come in pages.
func TestCollectionPages(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil, "CAIRN_BASE_URL=")
	c := ts.signIn("ada", datasetRead)
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint("d", i))
		ts.addFiles(want[i], nil)
	}
	titles := func(a answer) (titles []string) {
		for _, one := range a.json["collections"].([]any) {
			titles = append(titles, one.(map[string]any)["title"].(string))
		}
		return titles
	}
	for query, pages := range map[string]int{"": 1, "?limit=2": 3, "?f=json&limit=5": 1, "?limit=99999999999999999999": 1, "?limit=1": 5} {
		var got []string
		n := 0
		for next := stacPath + "/collections" + query; next != ""; n++ {
			a := c.must(200, "GET", next, nil)
			got = append(got, titles(a)...)
			next = ""
			if link := linkTo(a, "next"); link != nil {
				next = strings.TrimPrefix(link["href"].(string), ts.url)
			}
		}
		if !slices.Equal(got, want) || n != pages {
			t.Errorf("%q: %q on %d pages, want %q on %d", query, got, n, want, pages)
		}
	}
	for _, query := range []string{"limit=0", "limit=x", "limit=1.5", "limit=2&offset=-1", "limit=2&offset=x"} {
		c.refused(400, "wrong_type", "GET", stacPath+"/collections?"+query, nil)
	}
	if got := titles(c.must(200, "GET", stacPath+"/collections?limit=2&offset=99", nil)); len(got) > 0 {
		t.Errorf("beyond the last there are %q", got)
	}
}
