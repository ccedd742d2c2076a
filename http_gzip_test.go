package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestGzip: large texts are compressed for clients that ask for it. Small answers, answers to
// changes, contents of files and answers with a tag for If-Match are not.
func TestGzip(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	root := ts.signIn("root", "all")
	dataset := ts.tilesIn(root, "tiles", "a.tif", geographicTIFF(7, 47))
	root.analyze(dataset, nil)
	long := strings.Repeat("A survey. ", 300)
	root.must(200, "PATCH", dataset, map[string]string{"description": long})
	for i := range 20 {
		root.must(201, "POST", "/api/v1/users", map[string]string{"username": fmt.Sprint("user", i)})
	}
	b := ts.browse("root")

	const accept = "Accept-Encoding: br, gzip;q=0.5"
	for _, path := range []string{
		"/api/v1/users",
		"/api/v1/stac/collections",
		"/api/v1/stac/collections/1/items",
		dataset + "/coverage.svg",
		"/console/style.css",
	} {
		cookie := "Cookie: " + b.cookie
		plain := root.must(200, "GET", path, nil, "Accept-Encoding: gzip;q=0", cookie)
		check(t, path+": encoding that was refused", plain.header.Get("Content-Encoding"), "")
		check(t, path+": Vary", plain.header.Get("Vary"), "Accept-Encoding")

		a := root.must(200, "GET", path, nil, accept, cookie)
		check(t, path+": encoding", a.header.Get("Content-Encoding"), "gzip")
		in, err := gzip.NewReader(bytes.NewReader(a.body))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text, err := io.ReadAll(in)
		if err != nil || len(text) != len(plain.body) {
			t.Errorf("%s: %d bytes, compressed %d, %v", path, len(plain.body), len(text), err)
		}

		head := root.must(200, "HEAD", path, nil, accept, cookie)
		check(t, path+": encoding for HEAD", head.header.Get("Content-Encoding"), "gzip")

		if tag := plain.header.Get("ETag"); tag != "" {
			check(t, path+": tag", a.header.Get("ETag"), "W/"+tag)
			root.must(304, "GET", path, nil, accept, cookie, "If-None-Match: W/"+tag)
		}
	}

	for _, path := range []string{"/health", dataset, dataset + "/data/a.tif", "/datasets"} {
		a := root.must(200, "GET", path, nil, accept, "Cookie: "+b.cookie)
		check(t, path+": encoding", a.header.Get("Content-Encoding"), "")
		checkLacks(t, path+": tag", a.header.Get("ETag"), "W/")
	}
	changed := root.must(200, "PATCH", dataset, map[string]string{"description": long + "!"}, accept)
	check(t, "encoding of a change", changed.header.Get("Content-Encoding"), "")
}
