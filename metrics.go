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

// exposition holds metrics in Prometheus's text format, version 0.0.4.
type exposition struct{ bytes.Buffer }

// add writes a metric. samples are pairs of labels, in braces or "", and a value.
func (e *exposition) add(name, kind, help string, samples ...any) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, help, kind)
	for pair := range slices.Chunk(samples, 2) {
		fmt.Fprintf(e, "%s%s %v\n", name, pair[0], pair[1])
	}
}

// getMetrics answers GET /metrics, for Prometheus. Metrics that begin with go_ are named as in
// Prometheus's Go client.
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

	var states []any
	for _, state := range byState {
		states = append(states, fmt.Sprintf("{state=%q}", state.State), state.Count)
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

	pool := o.core.db.Stat()
	hashing, queued := o.accounts.hashLoad()
	stored, hung := o.analyzer.counters()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)

	var e exposition
	e.add("cairn_build_info", "gauge", "The running version.",
		`{version="`+version+`"}`, 1)
	o.exposeRequests(&e)

	e.add("cairn_database_connections", "gauge", "Connections of the pool.",
		`{state="used"}`, pool.AcquiredConns(),
		`{state="idle"}`, pool.IdleConns())
	e.add("cairn_database_connections_max", "gauge", "Connections that the pool may have.",
		"", pool.MaxConns())
	e.add("cairn_database_acquires_total", "counter", "Connections taken from the pool.",
		"", pool.AcquireCount())
	e.add("cairn_database_waits_total", "counter", "Connections that a request waited for.",
		"", pool.EmptyAcquireCount())
	e.add("cairn_database_wait_seconds_total", "counter", "Time that requests waited for connections.",
		"", pool.EmptyAcquireWaitTime().Seconds())
	e.add("cairn_database_outages_total", "counter", "How often the database became unreachable.",
		"", o.core.database.outages.Load())

	e.add("cairn_password_hashes_running", "gauge", "Password hashes being computed.",
		"", hashing)
	e.add("cairn_password_hashes_queued", "gauge", "Requests that hash a password or wait to do so.",
		"", queued)

	e.add("cairn_analyses", "gauge", "Analyses by state, of all instances.",
		states...)
	e.add("cairn_audit_breaks", "gauge", "Rows of the audit log that tell of a break in it.",
		"", breaks)
	e.add("cairn_analysis_batches_stored_total", "counter", "Batches of files that this instance has stored.",
		"", stored)
	e.add("cairn_analysis_reads_hung", "gauge", "Reads that wait for a stuck file system.",
		"", hung)

	e.add("go_goroutines", "gauge", "Goroutines.", "", runtime.NumGoroutine())
	e.add("go_memstats_heap_alloc_bytes", "gauge", "Bytes of objects on the heap.",
		"", memory.HeapAlloc)
	e.add("go_memstats_sys_bytes", "gauge", "Bytes that the Go runtime has from the system.",
		"", memory.Sys)
	e.add("cairn_gc_cycles_total", "counter", "Garbage collections.", "", memory.NumGC)
	return writeBytes(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", e.Bytes())
}

// exposeRequests writes the counts of all routes that have had a request.
func (o *operations) exposeRequests(e *exposition) {
	var totals []any
	var durations exposition
	for _, c := range o.counts {
		labels := fmt.Sprintf("method=%q,route=%q", c.method, c.path)
		before := len(totals)
		for code := range c.codes {
			count := c.codes[code].Load()
			if count > 0 {
				totals = append(totals,
					fmt.Sprintf("{%s,code=\"%d\"}", labels, code), count)
			}
		}
		if len(totals) == before {
			continue
		}

		// Each bucket also counts the requests of the buckets before it.
		const name = "cairn_http_request_duration_seconds"
		var n uint64
		for i, bound := range durationBounds() {
			n += c.durations[i].Load()
			fmt.Fprintf(&durations, "%s_bucket{%s,le=\"%v\"} %d\n",
				name, labels, bound, n)
		}
		fmt.Fprintf(&durations, "%s_sum{%s} %v\n",
			name, labels, float64(c.microseconds.Load())/1e6)
		fmt.Fprintf(&durations, "%s_count{%s} %d\n",
			name, labels, n)
	}

	e.add("cairn_http_requests_total", "counter", "Requests by route and status.",
		totals...)
	e.add("cairn_http_request_duration_seconds", "histogram", "Duration of requests by route.")
	e.Write(durations.Bytes())
}
