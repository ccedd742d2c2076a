package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"text/template"
	"time"
)

// durationBounds returns the upper bounds of the buckets of request durations, in seconds.
func durationBounds() []float64 {
	return []float64{
		0.001,
		0.005,
		0.025,
		0.1,
		0.5,
		2,
		10,
		60,
		math.Inf(1),
	}
}

// routeCounts counts the requests of one route, without a lock.
type routeCounts struct {
	method       string
	path         string
	codes        [600]atomic.Uint64 // by status
	durations    [9]atomic.Uint64   // by bucket
	microseconds atomic.Uint64
}

// count counts an answered request.
func (c *routeCounts) count(status int, took time.Duration) {
	c.codes[min(max(status, 0), len(c.codes)-1)].Add(1)
	c.microseconds.Add(uint64(max(took.Microseconds(), 0)))
	bucket, _ := slices.BinarySearch(durationBounds(), took.Seconds())
	c.durations[bucket].Add(1)
}

// routeSamples are the counts of a route as metrics.txt shows them.
type routeSamples struct {
	Labels  string         // without the closing brace
	Codes   map[int]uint64 // requests by status
	Buckets []bucket
	Count   uint64 // requests in all
	Seconds float64
}

// bucket counts the requests that took no longer than its bound, in seconds.
type bucket struct {
	Bound float64
	Count uint64
}

// samples returns the counts of a route.
func (c *routeCounts) samples() routeSamples {
	s := routeSamples{
		Labels:  fmt.Sprintf("{method=%q,route=%q", c.method, c.path),
		Codes:   map[int]uint64{},
		Seconds: float64(c.microseconds.Load()) / 1e6,
	}
	for code := range c.codes {
		if count := c.codes[code].Load(); count > 0 {
			s.Codes[code] = count
		}
	}
	for i, bound := range durationBounds() {
		s.Count += c.durations[i].Load()
		s.Buckets = append(s.Buckets, bucket{bound, s.Count})
	}
	return s
}

// metricsText is the template of GET /metrics, in Prometheus's text format, version 0.0.4. Metrics
// that begin with go_ are named as in Prometheus's Go client.
//
//go:embed metrics.txt
var metricsText string

// getMetrics answers GET /metrics, for Prometheus.
func (o *operations) getMetrics(w http.ResponseWriter, r *http.Request) error {
	// States without an analysis are there with 0: an alert on an increase misses a new series.
	const analyses = `
		SELECT
			state,
			count(a.id)
		FROM unnest('{queued,reading,checking,succeeded,failed,canceled}'::text[]) state
		LEFT JOIN analyses a USING (state)
		GROUP BY state
		ORDER BY state`
	byState, err := collect[struct {
		State string
		Count int64
	}](r.Context(), o.core.db, "count analyses", analyses)
	if err != nil {
		return err
	}

	const auditBreaks = `
		SELECT count(*)
		FROM audit_log
		WHERE target = 'audit' AND action = 'audit.break_found'`
	breaks, err := scalar[int](r.Context(), o.core.db,
		"count audit breaks", auditBreaks)
	if err != nil {
		return err
	}

	// Routes without a request are left out.
	var routes []routeSamples
	for _, c := range o.counts {
		if s := c.samples(); len(s.Codes) > 0 {
			routes = append(routes, s)
		}
	}

	hashing, queued := o.accounts.hashLoad()
	stored, hung := o.analyzer.counters()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)

	var body bytes.Buffer
	err = template.Must(template.New("").Parse(metricsText)).Execute(&body, map[string]any{
		"Version":    version,
		"Routes":     routes,
		"Pool":       o.core.db.Stat(),
		"Outages":    o.core.database.outages.Load(),
		"Hashing":    hashing,
		"Queued":     queued,
		"Analyses":   byState,
		"Breaks":     breaks,
		"Stored":     stored,
		"Hung":       hung,
		"Goroutines": runtime.NumGoroutine(),
		"Memory":     memory,
	})
	if err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return writeBytes(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", body.Bytes())
}
