package main

import (
	"context"
	"fmt"
)

// reportCommand is "cairn report DATASET". It returns errFindings if the report has findings, and
// another error if the dataset was never analysed.
func reportCommand(ctx context.Context, o operation) error {
	name := o.names[0]
	const query = `SELECT ` + datasetColumns + ` FROM datasets WHERE name = $1`
	d, err := collectOne[dataset](ctx, o.db, fmt.Errorf("there is no dataset %q", name), "get dataset", query, name)
	if err != nil {
		return err
	}
	report, err := inSnapshot(ctx, o.db, d.report)
	if err != nil {
		return err
	}
	report.print(o.stdout)
	if report.AnalyzedAt == nil {
		return fmt.Errorf("dataset %q was never analysed", name)
	}
	if len(report.Findings) > 0 {
		return errFindings
	}
	return nil
}
