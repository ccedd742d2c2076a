package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// massRemoval is the number of known rows that any analysis may remove. To remove more than these
// and more than half of all known rows, it needs force. Known rows are those that existed when the
// last complete analysis ended; before the first one, all rows.
const massRemoval = 100

// candidate is a row whose file the merge did not find.
type candidate struct {
	Path    string
	FoundBy string // the instance that found the file after another had missed it; "": none
}

// sight is what a look for candidates has found.
type sight struct {
	kept     []string // paths that are no candidates any more: they are not known to be gone
	found    []string // paths of files that another instance has missed
	disputed int      // files that another instance has found, and that this one misses
	warnings []string
}

// look looks for the files of the candidates. Then it decides what comes next and returns the step.
// With stepLook, another instance looks next; the analysis has no owner then.
func (a *analyzer) look(ctx context.Context, t task) (step string, err error) {
	seen, err := a.lookForAll(ctx, t)
	if err != nil {
		return "", err
	}

	if seen.disputed > 0 {
		const reason = "The running instances see different files: %s that one of them does not find " +
			"are there for another. No row was removed. Mount the same directory on all of them, and analyse again."
		files := plural(int64(seen.disputed), "file")
		return "", &failure{failureViewsDiffer, fmt.Sprintf(reason, files)}
	}

	return a.decide(ctx, t, len(seen.found) > 0)
}

// lookForAll looks for the files of the candidates, and keeps as candidates those that are gone. If
// this instance finds a file that another has missed, it may have come back meanwhile. Then it
// remains a candidate, and the others look again: if one of them still misses it, it is disputed.
func (a *analyzer) lookForAll(ctx context.Context, t task) (all sight, err error) {
	const page = `
		SELECT path, coalesce(found_by, '') AS found_by
		FROM analysis_candidates
		WHERE analysis_id = $1 AND path > $2
		ORDER BY path
		LIMIT $3`

	after := ""
	for {
		candidates, err := collect[candidate](ctx, a.db, "list candidates", page, t.AnalysisID, after, a.batchSize)
		if err != nil || len(candidates) == 0 {
			return all, err
		}

		after = candidates[len(candidates)-1].Path

		seen, err := a.lookForSome(ctx, t, candidates)
		if err != nil {
			return all, err
		}

		if err := a.storeSight(ctx, t, seen); err != nil {
			return all, err
		}

		all.found = append(all.found, seen.found...)
		all.disputed += seen.disputed
	}
}

// lookForSome looks for the files of some candidates.
func (a *analyzer) lookForSome(ctx context.Context, t task, candidates []candidate) (seen sight, err error) {
	var looked atomic.Int64
	err = a.runDetached(ctx, &looked, func(_ context.Context, send sendFunc) error {
		root, err := a.openDataset(t, true)
		if err != nil || root == nil { // it is missing, which is intended: all files are gone
			return err
		}
		defer root.Close()

		var now sight
		for _, c := range candidates {
			found, above := lookFor(root, c.Path)
			looked.Add(1)

			isForced := found == fileEmptied && t.Force
			isGone := found == fileGone || isForced
			if isGone {
				foundByOther := c.FoundBy != "" && c.FoundBy != a.instance
				if foundByOther {
					now.disputed++
				}
				continue
			}

			missedByOther := t.OthersLooked && c.FoundBy == ""
			if found == fileThere && missedByOther {
				now.found = append(now.found, c.Path)
			} else {
				now.kept = append(now.kept, c.Path)
			}

			if found == fileEmptied {
				now.warnings = append(now.warnings, above+"/: this directory is empty now, "+
					"so the rows of its files stay; if the files are gone, analyse with the option force")
			}
		}

		return send(func() error {
			seen = now
			return nil
		})
	})

	return seen, err
}

// storeSight stores what a look has found. A candidate that is dropped counts among the files if a
// former owner stored it.
func (a *analyzer) storeSight(ctx context.Context, t task, seen sight) error {
	const store = `
		WITH dropped AS (
			DELETE FROM analysis_candidates
			WHERE analysis_id = $1 AND path = ANY ($3::text[])
		), marked AS (
			UPDATE analysis_candidates
			SET found_by = $5
			WHERE analysis_id = $1 AND path = ANY ($4::text[])
		)
		UPDATE analyses a
		SET
			total = total + (
				SELECT count(*) FROM analysis_changes WHERE analysis_id = $1 AND path = ANY ($3::text[])
			),
			warnings = (warnings || ARRAY(
				SELECT DISTINCT w FROM unnest($6::text[]) w WHERE w <> ALL (a.warnings)
			))[1:$7]
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	if len(seen.kept)+len(seen.found) == 0 {
		return nil
	}

	return a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "store candidates that were found", store,
			t.AnalysisID,
			t.Token,
			seen.kept,
			seen.found,
			a.instance,
			seen.warnings,
			maxWarnings)
	})
}

// decide stores which step comes after a look, and returns that step. If another instance has still
// to look, it releases the analysis. With again, all others look once more. If more rows would go
// than may, it keeps them, and the analysis fails after the checks.
func (a *analyzer) decide(ctx context.Context, t task, again bool) (step string, err error) {
	const ask = `
		SELECT
			EXISTS (SELECT FROM analysis_candidates WHERE analysis_id = a.id) AND ` + othersMayLook + ` AS others_look,
			counted.*
		FROM
			analyses a,
			LATERAL (
				SELECT count(*) AS known, count(c.path) AS missing
				FROM elevation_dataset_file_meta f
				LEFT JOIN analysis_candidates c ON c.analysis_id = a.id AND c.path = f.path
				WHERE f.dataset_id = a.dataset_id AND f.added_in <= coalesce((
					SELECT max(id)
					FROM analyses
					WHERE dataset_id = a.dataset_id AND state = 'succeeded' AND NOT checks_only
				), a.id)
			) counted
		WHERE a.id = $2 AND a.owner_token = $3 AND a.finished_at IS NULL`

	const passOn = `
		UPDATE analyses
		SET
			owner = NULL,
			owner_token = NULL,
			missed_at = now(),
			missed_by = array_append(CASE WHEN $3 THEN '{}' ELSE missed_by END, $2)
		WHERE id = $1`

	const proceed = `UPDATE analyses SET step = $2 WHERE id = $1`
	const keep = `
		UPDATE analyses
		SET
			state = 'checking',
			step = 'check',
			failure_code = $2,
			failure = $3
		WHERE id = $1`

	step = stepRemove
	err = underLock(ctx, a.db, lockAnalyses+t.AnalysisID, func(tx pgx.Tx) error {
		now, err := collectOne[struct {
			OthersLook     bool
			Known, Missing int64
		}](ctx, tx, errNotOurs, "count missing rows", ask, a.instance, t.AnalysisID, t.Token)
		if err != nil {
			return err
		}

		if again || now.OthersLook {
			step = stepLook
			return oneRow(ctx, tx, "pass analysis on", passOn, t.AnalysisID, a.instance, again)
		}

		isMassRemoval := now.Missing > massRemoval && 2*now.Missing > now.Known
		if isMassRemoval && !t.Force {
			step = stepCheck
			why := fmt.Sprintf("%d of %d known files were not found. No row was removed. If a share was not mounted, "+
				"mount it; if the files are gone, analyse with the option force.", now.Missing, now.Known)
			return oneRow(ctx, tx, "keep rows", keep, t.AnalysisID, failureMassRemoval, why)
		}

		return oneRow(ctx, tx, "begin removal", proceed, t.AnalysisID, step)
	})

	return step, err
}

// removeCandidates removes the rows of the candidates, a batch at a time. A row that this analysis
// added leaves no change.
func (a *analyzer) removeCandidates(ctx context.Context, t task) error {
	const remove = `
		WITH gone AS (
			DELETE FROM analysis_candidates
			WHERE analysis_id = $1 AND path IN (
				SELECT path FROM analysis_candidates WHERE analysis_id = $1 ORDER BY path LIMIT $4
			)
			RETURNING path
		), removed AS (
			DELETE FROM elevation_dataset_file_meta f
			USING gone
			WHERE f.dataset_id = $2 AND f.path = gone.path
			RETURNING f.path, f.added_in
		), forgotten AS (
			DELETE FROM analysis_changes c
			USING removed r
			WHERE c.analysis_id = $1 AND c.path = r.path AND r.added_in = $1
		), noted AS (
			INSERT INTO analysis_changes (analysis_id, path, change)
			SELECT $1, path, 'removed' FROM removed WHERE added_in <> $1
			ON CONFLICT (analysis_id, path) DO UPDATE SET change = 'removed'
			RETURNING path
		)
		UPDATE analyses
		SET removed = removed + (SELECT count(*) FROM noted)
		WHERE id = $1 AND owner_token = $3 AND finished_at IS NULL
		RETURNING (SELECT count(*) FROM gone) AS n`

	for n := int64(1); n > 0; {
		err := a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
			gone, err := collectOne[struct{ N int64 }](ctx, tx, errNotOurs, "remove rows", remove,
				t.AnalysisID, t.DatasetID, t.Token, a.batchSize)
			n = gone.N
			return err
		})
		if err != nil {
			return err
		}
	}

	if !t.Checksums && !t.Heights {
		return a.setStep(ctx, t, stepCheck)
	}
	err := a.setStep(ctx, t, stepContents)
	wake(a.contents)
	return err
}

// presence is the outcome of looking for a file.
type presence string

// The outcomes of looking for a file.
const (
	fileThere   presence = "there"
	fileGone    presence = "gone"    // no walk would find it
	fileEmptied presence = "emptied" // the lowest existing directory above it is empty
	fileUnknown presence = "unknown" // an error prevented the look
)

// lookFor looks for a file. With fileEmptied, above is the empty directory, as stored. It may be
// the mount point of a share that is not mounted now, so the files that it held are not known to be
// gone.
func lookFor(root *os.Root, path string) (found presence, above string) {
	raw, err := decodePath(path)
	if err != nil {
		return fileUnknown, ""
	}

	above = "."
	for i := range len(raw) + 1 {
		if i < len(raw) && raw[i] != '/' {
			continue
		}

		info, err := root.Lstat(raw[:i])
		if isMissing(err) {
			// The file is missing below the directory above.
			empty, err := isEmpty(root, above)
			switch {
			case err != nil:
				return fileUnknown, ""
			case empty:
				return fileEmptied, encodeName(above)
			default:
				return fileGone, ""
			}
		}
		if err != nil {
			return fileUnknown, ""
		}

		isLast := i == len(raw)
		if info.IsDir() == isLast {
			return fileGone, "" // a directory became a file or a symbolic link, or the file became a directory
		}

		above = raw[:i]
	}

	return fileThere, ""
}

// isEmpty reports whether a directory is empty.
func isEmpty(root *os.Root, name string) (bool, error) {
	dir, err := root.Open(name + "/")
	if err != nil {
		return false, err
	}
	defer dir.Close()

	if _, err = dir.Readdirnames(1); err == io.EOF {
		return true, nil
	}
	return false, err
}
