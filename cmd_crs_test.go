package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestPrintCRS: the command describes a CRS and converts both ways.
func TestPrintCRS(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"32633 15 50", "500000.0000 5538630.7029\n"},
		{"EPSG:32633 --inverse 500000 5538630.7029", "15.000000000 50.000000000\n"},
		{"epsg:4258 7 51", "7.000000000 51.000000000\n"},
		{"32633 --inverse 500000 5538630.7029", "15.000000000 50.000000000\n"},
		{"4326 -122.5 -37", "-122.500000000 -37.000000000\n"},
		{"4326 190 -90", "190.000000000 -90.000000000\n"},
		{"2065 14.4 50.1", "1041424.2581 744125.9098\n"},
		{"8044 14 48", "4266.4649 10257.9315\n"},
		{"32601 --inverse 300000 7400000", "178.474172652 66.653397862\n"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), strings.Fields("crs "+c.args), nil, nil, &out, &out); err != nil || out.String() != c.want {
			t.Errorf("%s gives %q, %v", c.args, out.String(), err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"crs", "27700"}, nil, nil, &out, &out); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"OSGB36 / British National Grid", "Transverse Mercator (EPSG:9807)", "(EPSG:8805)", "0.9996012717", "Airy 1830", "EPSG:1314 to 2 m"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %q", &out, want)
		}
	}
	for _, args := range []string{"", "x", "27700 1", "27700 1 x", "1 2 3", "5773", "32633 200 100", "27200",
		"4326 361 0", "4326 -181 0", "4326 7 91", "4326 7 NaN", "4326 --inverse 7 -90.1", "32633 --inverse 1e9 1e9"} {
		if err := run(t.Context(), strings.Fields("crs "+args), nil, nil, &out, &out); err == nil {
			t.Errorf("%q is no error", args)
		} else if (args == "" || args == "x" || strings.HasPrefix(args, "27700 1")) != errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
