package main

import (
	"net/http"
	"time"
)

// fileDetails is a file with what its analyses have found about it.
type fileDetails struct {
	ElevationDatasetFileMeta
	Heights       *heightStatistics `json:"heights"`        // null: not read
	HeightsReason *string           `json:"heights_reason"` // why an analysis with heights has not read them
	Findings      []fileFinding     `json:"findings"`
	Changes       []pastChange      `json:"changes"`
}

// fileFinding is a finding about one file.
type fileFinding struct {
	Code       string `json:"code"`
	Severity   string `json:"severity"`
	Detail     string `json:"detail"`
	FirstSeen  int64  `json:"first_seen"`
	IsAccepted bool   `json:"is_accepted"`
}

// pastChange is a change of a file that an analysis found.
type pastChange struct {
	AnalysisID int64     `json:"analysis_id"`
	QueuedAt   time.Time `json:"queued_at"`
	Change     string    `json:"change"`
}

// maxFileChanges is how many changes of one file its details have.
const maxFileChanges = 20

// getFile answers GET /api/v1/datasets/{id}/files/{file} with the file, its findings, and its last
// changes, the newest first.
func (c *catalogue) getFile(w http.ResponseWriter, r *http.Request) error {
	// With the codes, the primary key of the findings serves as index.
	const findings = `
		SELECT
			code,
			severity,
			detail,
			first_seen,
			is_accepted
		FROM jsonb_each_text($2) AS kinds (code, severity)
		JOIN dataset_findings USING (code)
		WHERE dataset_id = $1 AND path = $3
		ORDER BY code`

	const changes = `
		SELECT
			a.id AS analysis_id,
			a.queued_at,
			ch.change
		FROM analyses a
		JOIN analysis_changes ch ON ch.analysis_id = a.id
		WHERE a.dataset_id = $1 AND ch.path = $2
		ORDER BY a.id DESC
		LIMIT $3`

	file, _, err := c.pathFile(r)
	if err != nil {
		return err
	}
	details := fileDetails{ElevationDatasetFileMeta: file.ElevationDatasetFileMeta}
	if h := file.Heights; h != nil {
		details.Heights = h.Statistics
		details.HeightsReason = nonEmpty(h.Reason)
	}

	details.Findings, err = collect[fileFinding](r.Context(), c.core.db, "list findings of a file", findings,
		file.DatasetID, severities(), file.Path)
	if err != nil {
		return err
	}

	details.Changes, err = collect[pastChange](r.Context(), c.core.db, "list changes of a file", changes,
		file.DatasetID, file.Path, maxFileChanges)
	return writeEntity(w, details, "", err)
}
