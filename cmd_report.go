package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// reportCommand is "cairn report DATASET". It returns errFindings if the report has findings, and
// another error if the dataset was never analysed or the last analysis failed.
func reportCommand(ctx context.Context, o operation) error {
	name := o.names[0]
	d, err := o.getDataset(ctx, name)
	if err != nil {
		return err
	}
	report, err := inSnapshot(ctx, o.db, d.report)
	if err != nil {
		return err
	}
	report.print(o.stdout)
	if report.AnalyzedAt == nil {
		return fmt.Errorf("dataset %q was never analysed: cairn dataset analyze %[1]s", name)
	}
	if report.Failure != nil {
		return fmt.Errorf("the last analysis of %q failed", name)
	}
	if len(report.Findings) > 0 {
		return errFindings
	}
	return nil
}

// vrtCommand is "cairn vrt DATASET". The sources are absolute paths of this machine.
func vrtCommand(ctx context.Context, o operation) error {
	d, err := o.getDataset(ctx, o.names[0])
	if err != nil {
		return err
	}
	place, wrong := o.cfg.placeDataset(d.Path)
	if wrong != nil {
		return wrong.err()
	}
	g, err := findGrid(ctx, o.db, d.ID, optional(o.options, "crs"), optional(o.options, "resolution"))
	if err != nil {
		return err
	}
	f := fileFilter{datasetID: &d.ID, status: new(fileStatusOK)}
	out := bufio.NewWriter(o.stdout)
	err = g.write(out, 0, func(f datasetFile) string {
		raw, _ := decodePath(f.Path) // as the walk wrote it
		return filepath.Join(place.root, place.below, raw)
	}, func(emit func(datasetFile) error) error {
		return readInBatches(f, func(after []string, limit int) ([]datasetFile, error) {
			return findFiles(ctx, o.db, f, after, limit)
		}, emit)
	})
	return errors.Join(err, out.Flush())
}
