package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sortedTree is a tree of three collections with 400 items, many of which are alike in all that a search can sort by. One
// collection was surveyed, and all have the same titles.
func sortedTree(t *testing.T) (c client, ids []int64) {
	t.Helper()
	ts := startServer(t, nil, "CAIRN_BASE_URL=")
	c = ts.signIn("ada", datasetRead, datasetManage)
	for i, n := range []int{250, 100, 50} {
		files := gridOfTiles(t, 16)[:n]
		for j := range files {
			files[j].ModifiedAt = fileTime{time.Unix(1_700_000_000+int64(j*7%5), 0)}
			files[j].ResolutionM = []*float64{new(1.0), new(0.5), new(25.0), nil}[j*3%11%4]
		}
		ids = append(ids, ts.addFiles(fmt.Sprint("d", i), files))
	}
	about := `{"about":{"surveyed_from":"2023-11-14","surveyed_until":"2024-01-31"}}`
	c.must(200, "PATCH", fmt.Sprint("/api/v1/datasets/", ids[1]), about)
	return c, ids
}

// sortValue returns a value of an item as text or number.
func sortValue(item map[string]any, field string) any {
	properties := item["properties"].(map[string]any)
	switch strings.TrimPrefix(field, "properties.") {
	case "id":
		id, _ := strconv.ParseFloat(item["id"].(string), 64)
		return id
	case "datetime":
		text, _ := cmp.Or(properties["datetime"], properties["start_datetime"]).(string)
		return text
	case "gsd":
		gsd, _ := properties["gsd"].(float64)
		return gsd
	}
	return properties["title"]
}

// compareItems compares two items by the fields of sortby.
func compareItems(x, y map[string]any, sortby string) int {
	for key := range strings.SplitSeq(sortby, ",") {
		field := strings.TrimLeft(key, "+-")
		a, b := sortValue(x, field), sortValue(y, field)
		sign := 0
		if number, ok := a.(float64); ok {
			sign = cmp.Compare(number, b.(float64))
		} else {
			sign = strings.Compare(a.(string), b.(string))
		}
		if strings.HasPrefix(key, "-") {
			sign = -sign
		}
		if sign != 0 {
			return sign
		}
	}
	return 0
}

// TestSortedPages: each order of a search holds over all pages, in which each item comes once, by GET and by POST, in all
// collections and in one, with a box and without.
func TestSortedPages(t *testing.T) {
	t.Parallel()
	c, ids := sortedTree(t)
	for _, sortby := range []string{
		"+id", "-id", "id", "properties.datetime", "-properties.datetime", "+datetime", "+gsd", "-properties.gsd", "+properties.title", "-title",
		"+gsd,-datetime,+id", "-gsd,-datetime,-id", "-datetime,+gsd,-title", "+datetime,+title", "-datetime,id", "+gsd,+datetime", "-gsd,title",
	} {
		t.Run(sortby, func(t *testing.T) {
			c := c
			c.t = t
			signs := map[bool]string{true: "desc", false: "asc"}
			var keys []string
			for key := range strings.SplitSeq(sortby, ",") {
				keys = append(keys, fmt.Sprintf(`{"field":%q,"direction":%q}`, strings.TrimLeft(key, "+-"), signs[key[0] == '-']))
			}
			body := `{"limit":83,"sortby":[` + strings.Join(keys, ",") + `]}`
			query := "?limit=83&sortby="
			collection := fmt.Sprint(stacPath, "/collections/", ids[0], "/items")

			for _, s := range []struct {
				path string
				body any
				want int
			}{
				{stacPath + "/search" + query + url.QueryEscape(sortby), nil, 400},
				{stacPath + "/search" + query + sortby, nil, 400}, // with + as a blank
				{stacPath + "/search", body, 400},
				{collection + query + sortby, nil, 250},
				{collection + query + sortby + "&bbox=-180,-90,180,90", nil, 250},
				{stacPath + "/search" + query + sortby + "&bbox=-9,-9,9,9", nil, 400},
			} {
				items := sortedItems(c, s.path, s.body)
				seen := map[any]bool{}
				for i, item := range items {
					if seen[item["id"]] {
						t.Errorf("%s: the item %s comes twice", s.path, item["id"])
					}
					seen[item["id"]] = true
					if i > 0 && compareItems(items[i-1], item, sortby) > 0 {
						t.Fatalf("%s: %v comes before %v", s.path, items[i-1]["properties"], item["properties"])
					}
				}
				check(t, s.path, len(items), s.want)
			}
		})
	}
}

// sortedItems returns the items of all pages.
func sortedItems(c client, path string, body any) (items []map[string]any) {
	method := "GET"
	if body != nil {
		method = "POST"
	}
	for {
		a := c.must(200, method, path, body)
		for _, item := range a.json["features"].([]any) {
			items = append(items, item.(map[string]any))
		}
		next := linkTo(a, "next")
		if next == nil {
			return items
		}
		u, _ := url.Parse(next["href"].(string))
		path = u.RequestURI()
		if body != nil {
			encoded, _ := json.Marshal(next["body"])
			body = string(encoded)
		}
	}
}

// TestSortRefusals: a search says by which fields it can sort, if it is asked for another order. A cursor is of one order.
func TestSortRefusals(t *testing.T) {
	t.Parallel()
	c, _ := sortedTree(t)
	for _, sortby := range []string{
		"eo:cloud_cover", "properties.id", "properties.", "++id", "+-id", "id,", ",id", "id,gsd", "title,id", "id id", "gsd,gsd,gsd", "gsd,datetime,gsd",
		"Title", "properties.properties.gsd", "id;title", "*", "-", "datetime desc", "title, id",
	} {
		a := c.refused(400, "wrong_type", "GET", stacPath+"/search?sortby="+url.QueryEscape(sortby), nil)
		for _, field := range []string{"properties.datetime", "properties.gsd", "properties.title", "id"} {
			checkHas(t, sortby, a.text("detail"), field)
		}
	}
	for _, body := range []string{
		`"id"`, `"+id"`, `{"field":"id","direction":"asc"}`, `["id"]`, `[["id"]]`, `[null]`, `[{}]`, `[{"field":"id"}]`, `[{"field":"id","direction":"up"}]`,
		`[{"field":"-id","direction":"asc"}]`, `[{"field":1,"direction":"asc"}]`, `[{"field":"id","direction":["asc"]}]`, `[{"field":"id","direction":{"asc":1}}]`,
		`[{"field":"id","direction":"asc"},{"field":"gsd","direction":"asc"}]`, `[{"field":"id","direction":"asc","nulls":"last"}]`, `1`, `true`,
	} {
		c.refused(400, "wrong_type", "POST", stacPath+"/search", `{"sortby":`+body+`}`)
	}
	for _, body := range []string{`[]`, `null`} {
		c.must(200, "POST", stacPath+"/search", `{"sortby":`+body+`}`)
	}
	c.must(200, "GET", stacPath+"/search?sortby=", nil)

	next, _ := linkTo(c.must(200, "GET", stacPath+"/search?limit=5&sortby=-id", nil), "next")["href"].(string)
	u, _ := url.Parse(next)
	c.must(200, "GET", u.RequestURI(), nil)
	c.refused(400, "invalid_cursor", "GET", strings.Replace(u.RequestURI(), "sortby=-id", "sortby=id", 1), nil)
	c.refused(400, "invalid_cursor", "GET", strings.Replace(u.RequestURI(), "sortby=-id", "", 1), nil)

	classes := c.must(200, "GET", stacPath+"/conformance", nil).json["conformsTo"].([]any)
	for _, class := range []string{"item-search#sort", "ogcapi-features#sort"} {
		check(t, class, slices.Contains(classes, any("https://api.stacspec.org/v1.0.0/"+class)), true)
	}
	for _, extension := range []string{"filter", "query", "fields"} {
		c.refused(400, "unknown_parameter", "GET", stacPath+"/search?"+extension+"=x", nil)
		c.refused(400, "unknown_field", "POST", stacPath+"/search", fmt.Sprintf(`{%q:{}}`, extension))
	}
}
