package main

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// durationBounds returns the upper bounds of the buckets of request durations, in seconds.
func durationBounds() []float64 {
	return []float64{0.001, 0.005, 0.025, 0.1, 0.5, 2, 10, 60, math.Inf(1)}
}

// routeCounts counts the requests of one route, without a lock.
type routeCounts struct {
	method, path string
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

// exposition holds metrics in Prometheus's text format, version 0.0.4.
type exposition struct{ bytes.Buffer }

// family writes the header of a metric.
func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, help, kind)
}

// one writes a metric with one value.
func (e *exposition) one(name, kind, help string, value any) {
	e.family(name, kind, help)
	fmt.Fprintf(e, "%s %v\n", name, value)
}

// getMetrics answers GET /metrics, for Prometheus. The metrics of the process have the names of
// Prometheus's Go client.
func (s *server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	const analyses = `
		SELECT state, count(*)
		FROM analyses
		GROUP BY state
		ORDER BY state`
	byState, err := collect[struct {
		State string
		Count int64
	}](r.Context(), s.db, "count analyses", analyses)
	if err != nil {
		return err
	}
	var e exposition
	e.family("cairn_build_info", "gauge", "The running version.")
	fmt.Fprintf(&e, "cairn_build_info{version=%q} 1\n", version)
	s.exposeRequests(&e)
	pool := s.db.Stat()
	e.family("cairn_database_connections", "gauge", "Connections of the pool.")
	fmt.Fprintf(&e, "cairn_database_connections{state=\"used\"} %d\n", pool.AcquiredConns())
	fmt.Fprintf(&e, "cairn_database_connections{state=\"idle\"} %d\n", pool.IdleConns())
	e.one("cairn_database_connections_max", "gauge", "Connections that the pool may have.", pool.MaxConns())
	e.one("cairn_database_acquires_total", "counter", "Connections taken from the pool.", pool.AcquireCount())
	e.one("cairn_database_waits_total", "counter", "Connections that a caller waited for.", pool.EmptyAcquireCount())
	waited := pool.EmptyAcquireWaitTime().Seconds()
	e.one("cairn_database_wait_seconds_total", "counter", "Time that callers waited for connections.", waited)
	outages := s.database.outages.Load()
	e.one("cairn_database_outages_total", "counter", "How often the database became unreachable.", outages)
	e.one("cairn_password_hashes_running", "gauge", "Password hashes being computed.", len(s.hasher.cores))
	queued := s.hasher.inside.Load()
	e.one("cairn_password_hashes_queued", "gauge", "Password hashes being computed or waiting for a core.", queued)
	e.family("cairn_analyses", "gauge", "Analyses by state, of all instances.")
	for _, state := range byState {
		fmt.Fprintf(&e, "cairn_analyses{state=%q} %d\n", state.State, state.Count)
	}
	broken := map[bool]int{true: 1}[s.sealer.broken.Load()]
	e.one("cairn_audit_broken", "gauge", "1 if a break of the audit log was seen that is not accepted.", broken)
	stored, hung := s.analyzer.stored.Load(), s.analyzer.hung.Load()
	e.one("cairn_analysis_chunks_stored_total", "counter", "Chunks of files that this instance has stored.", stored)
	e.one("cairn_analysis_reads_hung", "gauge", "Reads that the file system does not answer.", hung)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	e.one("go_goroutines", "gauge", "Goroutines.", runtime.NumGoroutine())
	e.one("go_memstats_heap_alloc_bytes", "gauge", "Bytes of objects on the heap.", memory.HeapAlloc)
	e.one("go_memstats_sys_bytes", "gauge", "Bytes that the Go runtime has from the system.", memory.Sys)
	e.one("cairn_gc_cycles_total", "counter", "Garbage collections.", memory.NumGC)
	return writeBytes(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", e.Bytes())
}

// exposeRequests writes the counts of all routes that have had a request.
func (s *server) exposeRequests(e *exposition) {
	var totals, histograms exposition
	for _, c := range s.counts {
		labels, before, n := fmt.Sprintf("method=%q,route=%q", c.method, c.path), totals.Len(), uint64(0)
		for code := range c.codes {
			if count := c.codes[code].Load(); count > 0 {
				fmt.Fprintf(&totals, "cairn_http_requests_total{%s,code=\"%d\"} %d\n", labels, code, count)
			}
		}
		if totals.Len() == before {
			continue
		}
		for i, bound := range durationBounds() {
			n += c.durations[i].Load()
			fmt.Fprintf(&histograms, "cairn_http_request_duration_seconds_bucket{%s,le=\"%v\"} %d\n", labels, bound, n)
		}
		seconds := float64(c.microseconds.Load()) / 1e6
		fmt.Fprintf(&histograms, "cairn_http_request_duration_seconds_sum{%s} %v\n", labels, seconds)
		fmt.Fprintf(&histograms, "cairn_http_request_duration_seconds_count{%s} %d\n", labels, n)
	}
	e.family("cairn_http_requests_total", "counter", "Requests by route and status.")
	e.Write(totals.Bytes())
	e.family("cairn_http_request_duration_seconds", "histogram", "Duration of requests by route.")
	e.Write(histograms.Bytes())
}
