package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corsHeaders returns the headers of an answer that begin with Access-Control-, in order.
func corsHeaders(a answer) (found string) {
	for _, name := range strings.Fields("Allow-Origin Allow-Credentials Allow-Methods Allow-Headers Expose-Headers Max-Age") {
		for _, value := range a.header.Values("Access-Control-" + name) {
			found += name + ": " + value + "\n"
		}
	}
	return found
}

// sharedTree starts a service that names two origins, with a dataset of one file. It returns an API token and the paths
// that are shared.
func sharedTree(t *testing.T) (ts *testServer, token client, paths []string) {
	t.Helper()
	ts = startServer(t, nil, "CAIRN_CORS_ORIGINS=https://maps.example.org, http://localhost:5173/")
	if err := os.Mkdir(filepath.Join(ts.datasets, "tiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ts.datasets, "tiles", "a b.tif"), []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := ts.signIn("ada", "all")
	dataset := c.addDataset("tiles")
	c.analyze(dataset, nil)
	collection := stacPath + strings.Replace(strings.TrimPrefix(dataset, "/api/v1"), "datasets", "collections", 1)
	return ts, ts.addToken("ada", "gis", datasetRead, datasetDownload), []string{
		stacPath, stacPath + "/", stacPath + "/api", stacPath + "/conformance", stacPath + "/collections", stacPath + "/search",
		collection, collection + "/items", dataset + "/data/a%20b.tif",
	}
}

// sendPlain sends a request that is not one of the API's operations, such as a preflight.
func sendPlain(t *testing.T, method, url string, headers ...string) (a answer) {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return answer{status: response.StatusCode, header: response.Header}
}

// exposed is the header with which a page may read these of an answer.
const exposed = "Expose-Headers: ETag, Content-Range, Content-Length, Accept-Ranges, Link, Retry-After, X-Request-Id\n"

// TestSharedAnswers: a page of a named origin may read the tree and the contents of files with an API token, refusals too,
// and may ask before it does. It never gets what a cookie would give.
func TestSharedAnswers(t *testing.T) {
	t.Parallel()
	_, token, paths := sharedTree(t)
	for _, origin := range []string{"https://maps.example.org", "http://localhost:5173"} {
		from := []string{"Origin: " + origin, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"}
		want := "Allow-Origin: " + origin + "\n" + exposed
		for _, path := range paths {
			for _, method := range []string{"GET", "HEAD"} {
				a := token.must(200, method, path, nil, from...)
				check(t, method+" "+path, corsHeaders(a), want)
				checkHas(t, path+": Vary", strings.Join(a.header.Values("Vary"), ","), "Origin")
			}
			check(t, "401 of "+path, corsHeaders(token.as("").must(401, "GET", path, nil, from...)), want)

			asks := append(from, "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: authorization,range")
			a := sendPlain(t, "OPTIONS", token.url+path, asks...)
			check(t, "preflight of "+path, a.status, 204)
			check(t, "preflight of "+path, corsHeaders(a), "Allow-Origin: "+origin+"\nAllow-Methods: GET, HEAD, POST\n"+
				"Allow-Headers: Authorization, Content-Type, Range, If-None-Match\n"+exposed+"Max-Age: 600\n")
			token.as("").must(405, "OPTIONS", path, nil, from...) // without a method it asks for nothing
		}

		a := token.must(206, "GET", paths[len(paths)-1], nil, append(from, "Range: bytes=2-4")...)
		check(t, "a range", string(a.body)+" "+a.header.Get("Content-Range"), "234 bytes 2-4/10")
		check(t, "a range", corsHeaders(a), want)
		a = token.must(304, "GET", paths[len(paths)-1], nil, append(from, "If-None-Match: "+a.header.Get("ETag"))...)
		check(t, "304", corsHeaders(a), want)
		check(t, "a search", corsHeaders(token.must(200, "POST", stacPath+"/search", `{"limit":1}`, from...)), want)
		check(t, "a wrong search", corsHeaders(token.must(400, "POST", stacPath+"/search", `{"nope":1}`, from...)), want)
	}
}

// TestUnnamedOrigins: an origin that the setting does not name exactly gets no header that would show it an answer, and no
// search by POST. Caches learn that the answer depends on the origin.
func TestUnnamedOrigins(t *testing.T) {
	t.Parallel()
	ts, token, paths := sharedTree(t)
	for _, origin := range []string{
		"null", "", "*", "https://evil.example", "http://maps.example.org", "https://maps.example.org:8443", "https://maps.example.org:443",
		"https://maps.example.org.evil.example", "https://evilmaps.example.org", "https://a.maps.example.org", "https://example.org",
		"https://MAPS.example.org", "HTTPS://maps.example.org", "https://maps.example.org/", "https://maps.example.org.", "https://maps.example.org ,",
		"https://maps.example.org, http://localhost:5173", "https://maps.example.org http://localhost:5173", "https://u@maps.example.org",
		"http://localhost", "http://localhost:51730", "http://127.0.0.1:5173", "https://localhost:5173", "maps.example.org", "https://maps.example.org%00",
		"https://maps.example.org/../", "https://maps-example.org", "file://",
	} {
		from := []string{"Origin: " + origin}
		for _, path := range paths {
			a := token.must(200, "GET", path, nil, from...)
			check(t, origin+" "+path, corsHeaders(a), "")
			checkHas(t, path+": Vary", strings.Join(a.header.Values("Vary"), ","), "Origin")
			check(t, origin+" "+path, corsHeaders(token.must(405, "OPTIONS", path, nil, append(from, "Access-Control-Request-Method: GET")...)), "")
		}
		if origin != "" {
			check(t, origin, corsHeaders(token.must(403, "POST", stacPath+"/search", `{}`, from...)), "")
		}
	}
	twice := []string{"Origin: https://maps.example.org", "Origin: https://maps.example.org"}
	check(t, "two origins", corsHeaders(sendPlain(t, "GET", ts.url+stacPath, twice...)), "")

	// Without the setting there is nothing, also for the service's own origin.
	plain := startServer(t, nil)
	reader := plain.signIn("bob", datasetRead)
	for _, origin := range []string{"https://maps.example.org", "null", "", plain.url} {
		a := reader.must(200, "GET", stacPath, nil, "Origin: "+origin)
		check(t, origin, corsHeaders(a)+a.header.Get("Vary"), "Accept-Encoding")
		reader.must(405, "OPTIONS", stacPath, nil, "Origin: "+origin, "Access-Control-Request-Method: GET")
	}
}

// TestUnsharedPaths: a named origin may read nothing else, and change nothing.
func TestUnsharedPaths(t *testing.T) {
	t.Parallel()
	ts, token, _ := sharedTree(t)
	from := "Origin: https://maps.example.org"
	for _, rt := range ts.routes() {
		isShared := strings.HasPrefix(rt.path, stacPath) || strings.HasSuffix(rt.path, "/data/{path...}")
		if isShared {
			continue
		}
		path := strings.NewReplacer("{$}", "", "{path...}", "x", "{z}", "1", "{x}", "1", "{y}", "1").Replace(rt.path)
		for strings.Contains(path, "{") {
			before, rest, _ := strings.Cut(path, "{")
			_, after, _ := strings.Cut(rest, "}")
			path = before + "1" + after
		}
		for _, method := range []string{rt.method, "OPTIONS"} {
			a := token.do(method, path, nil, from, "Access-Control-Request-Method: "+rt.method)
			check(t, method+" "+path, corsHeaders(a), "")
			if method != "GET" && method != "OPTIONS" && a.status != 403 {
				t.Errorf("%s %s: got %d, want 403", method, path, a.status)
			}
		}
	}
	for _, path := range []string{
		"/api/v1/stacks", "/api/v1/stac%2Fsearch", "/API/v1/stac", "/api/v1/datasets/1/data%2Fa", "/api/v1/datasets/1%2Fdata/a/files", "/api/v1/datasets/x/data/a",
		"/api/v1/datasets/1/datax/a", "/x/api/v1/stac", "/api/v1/stac/../auth/me", "/api/v1//stac", "/api/v1/datasets/1/data/../files",
	} {
		check(t, path, corsHeaders(token.do("GET", path, nil, from)), "")
	}
	check(t, "another method", corsHeaders(token.do("DELETE", stacPath+"/search", nil, from))[:14], "Allow-Origin: ")
}

// TestCookieAcrossOrigins: a script of another origin gets nothing by the browser's cookie, also where it is named and of
// the same site. Links and pictures, which come without Origin, and scripts of the service work.
func TestCookieAcrossOrigins(t *testing.T) {
	t.Parallel()
	ts, _, paths := sharedTree(t)
	b := ts.browse("ada")
	cookie := "Cookie: " + b.cookie
	for _, path := range append(paths, "/api/v1/auth/me", "/api/v1/datasets", "/api/v1/users") {
		for _, headers := range [][]string{
			{"Origin: https://maps.example.org", "Sec-Fetch-Site: cross-site"},
			{"Origin: https://maps.example.org", "Sec-Fetch-Site: same-site"},
			{"Origin: https://maps.example.org"},
			{"Origin: http://localhost:5173", "Sec-Fetch-Site: same-site"},
			{"Origin: https://evil.example"},
			{"Origin: null", "Sec-Fetch-Site: cross-site"},
			{"Origin: null"},
			{"Origin: " + strings.Replace(ts.url, "127.0.0.1:", "127.0.0.1:1", 1)},
		} {
			ts.client().refused(401, "not_signed_in", "GET", path, nil, append(headers, cookie)...)
		}
		for _, headers := range [][]string{
			nil,
			{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"},
			{"Origin: " + ts.url},
			{"Origin: " + ts.url, "Sec-Fetch-Site: same-origin"},
		} {
			ts.client().must(200, "GET", path, nil, append(headers, cookie)...)
		}
	}
	ts.client().refused(401, "not_signed_in", "POST", stacPath+"/search", `{}`, cookie, "Origin: https://maps.example.org")
}

// TestOriginSetting: the setting takes origins and nothing else.
func TestOriginSetting(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{
		"*", "null", "https://*", "https://*.example.org", "maps.example.org", "https://maps.example.org/app", "https://maps.example.org?x", "ftp://a.example",
		"https://u:p@a.example", "https://", "https://a.example#", "https://a.example:", "https://a.example:x", "https://ä.example", "https://a.example,*", "file:///",
	} {
		if c, err := loadConfig([]string{"CAIRN_CORS_ORIGINS=" + wrong}); err == nil || !strings.HasPrefix(err.Error(), "CAIRN_CORS_ORIGINS: ") {
			t.Errorf("%s: %v %q", wrong, err, c.corsOrigins)
		}
	}
	c, err := loadConfig([]string{"CAIRN_CORS_ORIGINS=https://A.example:443/, http://[::1]:80 http://b_c.example:8080,"})
	check(t, "origins", fmt.Sprint(c.corsOrigins, err), "[https://a.example http://[::1] http://b_c.example:8080] <nil>")
}
