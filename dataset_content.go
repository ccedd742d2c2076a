package main

import (
	"net/url"
	"strconv"
)

// dataPath returns the path under which the content of a file is served.
func dataPath(dataset int64, path string) string {
	raw, err := decodePath(path)
	if err != nil {
		raw = path
	}
	u := url.URL{Path: "/api/v1/datasets/" + strconv.FormatInt(dataset, 10) + "/data/" + raw}
	return u.EscapedPath()
}

// mediaType returns the media type of a file.
func mediaType(m extent) string {
	if m.Format != nil && *m.Format == "geotiff" {
		return typeGeoTIFF
	}
	return "application/octet-stream"
}
