package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The values of a dataset's notify: what becomes of an announcement about the end of an analysis.
const (
	notifyNone    = "none"    // there is none
	notifyDraft   = "draft"   // somebody who may publish it does so, or not
	notifyPublish = "publish" // it is published at once
)

// announceEnd announces that an analysis has ended with new findings or, if code is
// failureUnavailable, without the directory. It does so if the dataset's notify demands it, for
// those who may see the dataset. An analysis after which the directory is still missing is not
// announced. It is called last in the transaction that ends the analysis: so the announcement is
// written exactly once, and soon after the time from which it is shown, as readAllMessages expects.
func (a *analyzer) announceEnd(ctx context.Context, tx pgx.Tx, t task, code string) error {
	const query = `
		SELECT
			name,
			notify,
			coalesce((
				SELECT failure_code
				FROM analyses
				WHERE dataset_id = d.id
					AND id < $2
					AND finished_at IS NOT NULL
					AND NOT checks_only
					AND state <> 'canceled'
				ORDER BY id DESC
				LIMIT 1
			), '') AS code_before
		FROM datasets d
		WHERE id = $1`

	d, err := collectOne[struct {
		Name       string
		Notify     string
		CodeBefore string
	}](ctx, tx, nil, "get notify", query, t.DatasetID, t.AnalysisID)
	if err != nil || d.Notify == notifyNone {
		return err
	}

	page := fmt.Sprintf("%s/datasets/%d", a.core.cfg.baseURL, t.DatasetID)
	var title, body string
	switch {
	case code == "":
		text, err := newFindings(ctx, tx, t.DatasetID)
		if err != nil || text == "" {
			return err
		}
		title = "New findings in " + d.Name
		body = fmt.Sprintf("The last analysis of %s has new findings:\n\n%s\nReport: %s/report", d.Name, text, page)
	case code == failureUnavailable && d.CodeBefore != failureUnavailable:
		title = "The directory of " + d.Name + " is missing"
		body = fmt.Sprintf("The directory of %s is missing, empty or does not answer. "+
			"What Cairn knows of its files stays.\n\nAnalysis: %s/analyses/%d", d.Name, page, t.AnalysisID)
	default:
		return nil // the results are those of a former analysis
	}

	c := messageChange{
		Title:    &title,
		Body:     &body,
		Severity: new("warning"),
	}
	if d.Notify == notifyDraft {
		at, _ := time.Parse(time.RFC3339, draftTime) // never fails
		c.publishAt = &at
	}
	_, err = insertMessage(ctx, tx, serviceActor(), &t.DatasetID, c)
	return err
}

// newFindings returns a line for each kind of findings of which the last results of a dataset have
// new ones, as countFindings counts them.
func newFindings(ctx context.Context, q querier, datasetID int64) (text string, err error) {
	byCode, err := countFindings(ctx, q, datasetID)
	for _, kind := range findingKinds() {
		if n := valueOr(byCode[kind.code].New, 0); n > 0 {
			text += fmt.Sprintf("%s: %d\n", kind.detail, n)
		}
	}
	return text, err
}
