package main

import (
	_ "embed"
	"net/http"
	"path"
)

// operationRoutes returns the rows of health, metrics and the contract.
func operationRoutes(o *operations) []route {
	return []route{
		reads("/health", public,
			o.getHealth, light),
		reads("/api/v1/ping", public,
			ping, light),
		reads("/api/v1/openapi.yaml", public,
			getContract, light),
		reads("/metrics", metricsRead,
			o.getMetrics, quick),
	}
}

// messageRoutes returns the rows of system messages and the inbox.
func messageRoutes(a *announcements) []route {
	return []route{
		changes("POST /api/v1/system-messages", adminSystemMessage,
			withBody(a.createMessage), quick, large),
		reads("/api/v1/system-messages", adminSystemMessage,
			a.listMessages(false), slow,
			paged, "q severity state since until"),
		reads("/api/v1/system-messages/unread-count", adminSystemMessage,
			a.countUnread, quick),
		changes("POST /api/v1/system-messages/read-all", adminSystemMessage,
			a.readAllMessages, quick, medium),
		reads("/api/v1/system-messages/{id}", adminSystemMessage,
			a.getMessage, quick),
		changes("PATCH /api/v1/system-messages/{id}", adminSystemMessage,
			withBody(a.updateMessage), quick, large),
		changes("DELETE /api/v1/system-messages/{id}", adminSystemMessage,
			a.deleteMessage, quick, medium,
			"permanently"),
		reads("/api/v1/system-messages/{id}/unread-by", adminSystemMessage,
			a.listUnreadBy, slow,
			paged),
		changes("POST /api/v1/system-messages/{id}/read", adminSystemMessage,
			a.readMessages, quick, medium),

		reads("/api/v1/inbox", inboxRead,
			a.listMessages(true), quick,
			paged, "unread"),
		reads("/api/v1/inbox/unread-count", inboxRead,
			a.countUnread, quick),
		changes("POST /api/v1/inbox/read", inboxRead,
			a.readMessages, quick, medium),
		changes("POST /api/v1/inbox/read-all", inboxRead,
			a.readAllMessages, quick, medium),
		changes("POST /api/v1/inbox/{id}/read", inboxRead,
			a.readMessages, quick, medium),
	}
}

// datasetRoutes returns the rows of datasets and their files.
func datasetRoutes(c *catalogue) []route {
	return []route{
		reads("/api/v1/datasets", datasetRead,
			c.listDatasets, quick,
			paged, "name q keyword surveyed_from surveyed_until"),
		changes("POST /api/v1/datasets", datasetManage,
			withBody(c.createDataset), slow, large),
		reads("/api/v1/datasets/{id}", datasetRead,
			c.ofDataset(c.getDataset), slow),
		changes("PATCH /api/v1/datasets/{id}", datasetManage,
			withBody(c.updateDataset), bulk, large),
		changes("DELETE /api/v1/datasets/{id}", datasetManage,
			c.deleteDataset, bulk, medium),

		reads("/api/v1/datasets/{id}/files", datasetRead,
			c.listFiles, slow,
			fileFilters, "limit cursor sort total"),
		reads("/api/v1/datasets/{id}/files/{file}", datasetRead,
			c.getFile, quick),
		reads("/api/v1/datasets/{id}/footprints.geojson", datasetRead,
			c.getFootprints, stream,
			fileFilters, "all"),
		reads("/api/v1/datasets/{id}/gaps.geojson", datasetRead,
			c.ofDataset(c.getGaps), stream),
		reads("/api/v1/datasets/{id}/coverage.svg", datasetRead,
			c.ofDataset(c.getCoverage), slow,
			"color bbox"),

		reads("/api/v1/datasets/{id}/report", datasetRead,
			c.ofDataset(c.getReport), quick),
		reads("/api/v1/datasets/{id}/compare", datasetRead,
			c.ofDataset(c.getComparison), stream,
			"with"),
		reads("/api/v1/datasets/{id}/findings/{code}", datasetRead,
			c.ofDataset(c.listFindings), quick,
			paged),
		reads("/api/v1/datasets/{id}/findings.csv", datasetRead,
			c.ofDataset(c.getFindingsTable), stream),
		reads("/api/v1/datasets/{id}/accepted-findings", datasetRead,
			c.ofDataset(c.listAccepted), quick,
			paged),
		changes("POST /api/v1/datasets/{id}/accepted-findings", datasetManage,
			withBody(c.acceptFindings), bulk, medium),
		changes("DELETE /api/v1/datasets/{id}/accepted-findings/{accepted}", datasetManage,
			c.reopenFinding, bulk, medium),

		reads("/api/v1/datasets/{id}/files.csv", datasetRead,
			c.getTable, stream,
			fileFilters, "sort"),
		reads("/api/v1/datasets/{id}/mosaic.vrt", datasetRead,
			c.ofDataset(c.getMosaic), stream,
			"crs resolution source"),
		reads("/api/v1/datasets/{id}/data/{path...}", datasetDownload,
			c.getContent, sending),
		reads("/api/v1/datasets/{id}/archive.zip", datasetDownload,
			c.getArchive, stream,
			fileFilters),
		reads("/api/v1/datasets/{id}/urls.txt", datasetDownload,
			c.getURLs, stream,
			fileFilters),
		reads("/api/v1/datasets/{id}/files/{file}/relief.png", datasetDownload,
			c.getRelief, heavy,
			"size"),
		reads("/api/v1/datasets/{id}/relief.png", datasetDownload,
			c.ofDataset(c.getDatasetRelief), heavy,
			"bbox"),
		reads("/api/v1/datasets/{id}/tiles.json", datasetDownload,
			c.ofDataset(c.getTileJSON), slow,
			"style"),
		reads("/api/v1/datasets/{id}/tiles/{z}/{x}/{y}", datasetDownload,
			c.getTile, heavy,
			"style"),
		reads("/api/v1/elevation", datasetDownload,
			c.getElevation, heavy,
			"point line samples dataset interpolation"),
		changes("POST /api/v1/elevation", datasetDownload,
			withBody(c.postElevation), heavy, medium),
		reads("/api/v1/elevation/v1/{dataset}", datasetDownload,
			c.getLocations, heavy,
			"locations interpolation"),
		changes("POST /api/v1/elevation/v1/{dataset}", datasetDownload,
			withBody(c.postLocations), heavy, medium),
		reads("/api/v1/files", datasetRead,
			c.listFiles, slow,
			fileFilters, "limit cursor sort total"),
	}
}

// analysisRoutes returns the rows of analyses, and of what they check.
func analysisRoutes(a *analyzer) []route {
	return []route{
		changes("POST /api/v1/datasets/{id}/analyses", datasetAnalyze,
			a.createAnalysis, quick, medium),
		reads("/api/v1/datasets/{id}/analyses", datasetRead,
			a.listAnalyses, quick,
			paged),
		reads("/api/v1/datasets/{id}/analyses/{analysis}", datasetRead,
			a.getAnalysis, waiting,
			"wait"),
		reads("/api/v1/datasets/{id}/analyses/{analysis}/changes", datasetRead,
			a.listChanges, quick,
			paged, "change"),
		changes("DELETE /api/v1/datasets/{id}/analyses/{analysis}", datasetAnalyze,
			a.cancelAnalysis, bulk, medium),

		reads("/api/v1/datasets/{id}/expectation", datasetRead,
			a.getExpectation, quick),
		changes("PATCH /api/v1/datasets/{id}/expectation", datasetManage,
			a.updateExpectation, heavy, huge),
	}
}

// stacRoutes returns the rows of STAC API and OGC API Features. Many clients add f=json to each
// request.
func stacRoutes(c *catalogue) []route {
	return []route{
		reads(stacPath, datasetRead,
			inJSON(c.getSTAC), quick,
			"f"),
		reads(stacPath+"/api", datasetRead,
			inJSON(c.getSTACAPI), quick,
			"f"),
		reads(stacPath+"/api.html", datasetRead,
			c.getSTACAPIPage, quick),
		reads(stacPath+"/conformance", datasetRead,
			inJSON(c.getSTACConformance), quick,
			"f"),

		reads(stacPath+"/collections", datasetRead,
			inJSON(c.listCollections), heavy,
			"f limit offset"),
		reads(stacPath+"/collections/{id}", datasetRead,
			inJSON(c.ofDataset(c.getCollection)), slow,
			"f"),
		reads(stacPath+"/collections/{id}/items", datasetRead,
			inJSON(c.searchItems), slow,
			itemFilters, "f offset"),
		reads(stacPath+"/collections/{id}/items/{file}", datasetRead,
			inJSON(c.getItem), quick,
			"f"),

		reads(searchPath, datasetRead,
			inJSON(c.searchItems), slow,
			itemFilters, "f"),
		changes("POST "+searchPath, datasetRead,
			c.searchItems, slow, medium),
	}
}

// serveRoute passes a request to the mux, and writes the problem if no route matches.
func (s *server) serveRoute(w *responseWriter, r *http.Request) {
	// A request about the server itself (RFC 9110, section 9.3.7).
	if r.Method == http.MethodOptions && r.RequestURI == "*" {
		w.routed = true
		w.WriteHeader(http.StatusNoContent)
		return
	}

	s.core.share(w, r)
	if w.routed {
		return // it was a preflight
	}

	// Some clients of STAC end its root with a slash.
	if r.URL.Path == stacPath+"/" {
		r.URL.Path = stacPath
	}

	if isRead(r) && acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.zip = s.core.zip
	}
	s.mux.ServeHTTP(w, r)
	if w.routed {
		return
	}

	// The address of a form leads to the page above it, which has the form.
	if w.status == http.StatusMethodNotAllowed && isRead(r) && w.page != nil {
		above := r.Clone(r.Context())
		pattern := ""
		for pattern == "" { // at the latest, the home page matches
			above.URL.Path = path.Dir(above.URL.Path)
			_, pattern = s.mux.Handler(above)
		}

		w.status = 0
		w.routed = true
		goTo(w, above.URL.EscapedPath())
		return
	}

	// The mux answered 404, or 405 with Allow, and responseWriter dropped its text.
	err := errNoPath
	if w.status == http.StatusMethodNotAllowed {
		detail := "This path does not take " + r.Method + "; it takes " + w.Header().Get("Allow") + "."
		err = newProblem(w.status, codeMethodNotAllowed, detail)
	}

	w.Header().Del("Content-Type")
	w.status = 0
	s.core.writeProblem(w, err)
}

// ping answers GET /api/v1/ping.
func ping(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, map[string]string{"message": "pong"})
}

// contract is openapi.yaml, which describes every route.
//
//go:embed openapi.yaml
var contract []byte

// getContract answers GET /api/v1/openapi.yaml.
func getContract(w http.ResponseWriter, _ *http.Request) error {
	return writeBytes(w, http.StatusOK, "application/yaml", contract)
}
