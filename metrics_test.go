package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestMetrics: requests count by route, status and duration; the permission is asked for.
func TestMetrics(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	c := ts.signIn("prometheus", metricsRead)
	for range 3 {
		c.must(200, "GET", "/api/v1/auth/me", nil)
	}
	ts.client().must(404, "GET", "/nothing", nil)
	ts.client().refused(401, "not_signed_in", "GET", "/metrics", nil)
	ts.signIn("ada").refused(403, "permission_missing", "GET", "/metrics", nil)
	a := c.must(200, "GET", "/metrics", nil)
	for _, want := range []string{
		`cairn_http_requests_total{method="GET",route="/api/v1/auth/me",code="200"} 3`,
		`cairn_http_requests_total{method="",route="",code="404"} 1`,
		`cairn_http_requests_total{method="GET",route="/metrics",code="401"} 1`,
		`cairn_http_request_duration_seconds_bucket{method="GET",route="/api/v1/auth/me",le="+Inf"} 3`,
		`cairn_http_request_duration_seconds_count{method="GET",route="/api/v1/auth/me"} 3`,
		`cairn_build_info{version="` + version + `"} 1`,
		`cairn_password_hashes_queued 0`,
	} {
		if !strings.Contains(string(a.body), want+"\n") {
			t.Errorf("there is no %s in\n%s", want, a.body)
		}
	}
	sample := regexp.MustCompile(`^[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+$`)
	for line := range strings.Lines(strings.TrimSpace(string(a.body))) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "# ") && !sample.MatchString(line) {
			t.Errorf("no sample: %s", line)
		}
	}
}
