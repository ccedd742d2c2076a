package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"
)

// absence is the outcome of looking for a file that has a row and that the walk did not find. It is
// zero if the file is there after all.
type absence struct {
	gone    bool   // no walk would find it
	emptied string // the lowest existing directory above the file, if it is empty: "a/b"
	unsure  bool   // an error prevented the look
}

// lookFor looks for a file. An empty directory may be the mount point of a share that is not
// mounted now, so the files that it held are not known to be gone.
func lookFor(root *os.Root, path string) absence {
	raw, err := decodePath(path)
	if err != nil {
		return absence{unsure: true}
	}
	above := "."
	for i := range len(raw) + 1 {
		if i < len(raw) && raw[i] != '/' {
			continue
		}
		info, err := root.Lstat(raw[:i])
		switch {
		case isMissing(err):
			empty, err := isEmpty(root, above)
			if empty {
				return absence{emptied: encodeName(above)}
			}
			return absence{gone: err == nil, unsure: err != nil}
		case err != nil:
			return absence{unsure: true}
		case info.IsDir() == (i == len(raw)):
			return absence{gone: true} // a directory became a file or a symbolic link, or the file became a directory
		}
		above = raw[:i]
	}
	return absence{}
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

// massRemoval is the number of rows that any analysis may remove. To remove more than these and
// more than half of all rows, it needs force.
const massRemoval = 100

// endReading is called when no chunk is left but those for a second look. It releases these, and is
// called again when they are stored; if there are none, it ends the analysis. So no row is removed
// before it is known how many would be. If these are too many, it ends the analysis as failed, and
// returns why.
func endReading(ctx context.Context, tx pgx.Tx, id int64) (*failure, error) {
	const missing = `
		SELECT a.missing,
			(SELECT count(*) FROM elevation_dataset_file_meta f WHERE f.dataset_id = a.dataset_id) - a.added AS known
		FROM analyses a
		WHERE a.id = $1 AND a.missing > $2 AND NOT a.force`
	const release = `
		WITH released AS (
			UPDATE analysis_chunks SET missed_at = now() WHERE analysis_id = $1 RETURNING 1
		)
		UPDATE analyses
		SET missing = 0, chunks_left = n, state = CASE WHEN n = 0 THEN 'succeeded' ELSE state END,
			finished_at = CASE WHEN n = 0 THEN now() END
		FROM (SELECT count(*) AS n FROM released) left_over
		WHERE id = $1`
	rows, err := collect[struct{ Missing, Known int64 }](ctx, tx, "count missing rows", missing, id, massRemoval)
	if err != nil {
		return nil, err
	}
	for _, n := range rows {
		if 2*n.Missing > n.Known {
			fail := &failure{failureMassRemoval, fmt.Sprintf("%d of %d known files were not found. "+
				"No row was removed. If a share was not mounted, mount it; if the files are gone, "+
				"analyse with force.", n.Missing, n.Known)}
			return fail, closeAnalysis(ctx, tx, id, "", stateFailed, *fail)
		}
	}
	return nil, oneRow(ctx, tx, "release chunks", release, id)
}
