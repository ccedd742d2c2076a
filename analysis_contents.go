package main

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// contentFile is a file whose content is to be read, with its size and times as in its row.
type contentFile struct {
	ID       int64
	Path     string
	Size     int64
	Modified int64
	Changed  int64
	Sidecars int64
}

// isOf reports whether an opened file is that of the row.
func (f contentFile) isOf(opened entry) bool {
	return opened.Size == f.Size && opened.Modified == f.Modified && opened.Changed == f.Changed
}

// contentFound is what is stored of a content in the row of its file.
type contentFound struct {
	md5    *string // nil: as before
	sha256 *string
	fault  string           // why it could not be read; of a list: which line is wrong
	isList bool             // all lines of a list are stored
	lines  []listedChecksum // of a list
	bytes  int64            // that were read, and are not yet counted

	heights *fileHeights // nil: as before
}

// contentColumns is SQL for the columns of a contentFile.
const contentColumns = `
	id,
	path,
	size_bytes AS size,
	modified_ns AS modified,
	changed_ns AS changed,
	sidecars`

// undigested is SQL for the files of dataset $1 that are listed, and whose digests are not known.
const undigested = `
	FROM elevation_dataset_file_meta f
	WHERE dataset_id = $1
		AND md5 IS NULL
		AND status <> 'unreadable'
		AND EXISTS (
			SELECT FROM listed_checksums WHERE dataset_id = $1 AND path = f.path
		)`

// forgetLines is SQL that forgets the lines of lists of dataset $1 of which not all are stored, and
// of lists that have gone or changed. It does so only if analysis $2 has the fencing token $3. It
// returns the number of lines that stay.
const forgetLines = `
	WITH forgotten AS (
		DELETE FROM listed_checksums c
		WHERE dataset_id = $1
			AND NOT EXISTS (
				SELECT FROM elevation_dataset_file_meta WHERE dataset_id = $1 AND path = c.list AND is_list
			)
			AND EXISTS (
				SELECT FROM analyses WHERE id = $2 AND owner_token = $3 AND finished_at IS NULL
			)
		RETURNING 1
	)
	SELECT
		(SELECT count(*) FROM listed_checksums WHERE dataset_id = $1)
		- (SELECT count(*) FROM forgotten)`

// readContents is the step stepContents. With checksums, it reads the lists of checksums that are
// new or changed, then the listed files whose digests are not known. With heights, it reads the
// rasters whose heights are not known. What it finds of a file is stored at once. So another owner
// goes on where this one has died, and an unchanged file is never read again.
func (a *analyzer) readContents(ctx context.Context, t task) error {
	const fresh = `
		SELECT EXISTS (
			SELECT
			FROM elevation_dataset_file_meta
			WHERE dataset_id = $1 AND reader_version = 0 AND (md5 IS NULL OR heights IS NULL) AND NOT is_list
		)`

	const expect = `
		UPDATE analyses
		SET
			contents_at = coalesce(contents_at, now()),
			bytes_expected = bytes_read + (
				SELECT least(coalesce(sum(size_bytes), 0), 4e18)::bigint
				FROM (
					SELECT size_bytes` + undigested + ` AND $4
					UNION ALL
					SELECT size_bytes` + unmeasured + ` AND $5
				) f
			)
		WHERE id = $2 AND owner_token = $3 AND finished_at IS NULL`

	const listed = `
		SELECT` + contentColumns + undigested + `
			AND path > $2
		ORDER BY path
		LIMIT $3`

	const rasters = `
		SELECT` + contentColumns + unmeasured + `
			AND path > $2
		ORDER BY path
		LIMIT $3`

	// A row may be of a file that was written just now. If the file is written again at once, it
	// may keep its size and times. After this wait, it gets others. So what is found stays true as
	// long as the size and times are those of the row.
	isFresh, err := scalar[bool](ctx, a.db, "look for fresh files", fresh, t.DatasetID)
	if err != nil {
		return err
	}
	if isFresh {
		pause(ctx, settleTime)
	}

	if t.Checksums {
		if err := a.readLists(ctx, t); err != nil {
			return err
		}
	}

	_, err = execute(ctx, a.db, "count bytes", expect, t.DatasetID, t.AnalysisID, t.Token, t.Checksums, t.Heights)
	if err != nil {
		return err
	}

	if t.Checksums {
		if err := a.eachContent(ctx, t, listed, a.digestFile, contentFault); err != nil {
			return err
		}
	}

	if t.Heights {
		if err := a.eachContent(ctx, t, rasters, a.measureFile, heightsFault); err != nil {
			return err
		}
	}

	return a.setStep(ctx, t, stepCheck)
}

// readLists reads the lists of checksums that are new or changed.
func (a *analyzer) readLists(ctx context.Context, t task) error {
	const lists = `
		SELECT` + contentColumns + `
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path > $2 AND NOT is_list AND status <> 'unreadable' AND ` + isChecksumList + `
		ORDER BY path
		LIMIT $3`

	stored, err := scalar[int64](ctx, a.db, "forget lines", forgetLines, t.DatasetID, t.AnalysisID, t.Token)
	if err != nil {
		return err
	}

	// When there is no more room, each further list has a fault. Its lines do not count, and the
	// next analysis with checksums forgets them.
	t.room = new(atomic.Int64)
	t.room.Store(a.listLines - stored)
	return a.eachContent(ctx, t, lists, a.readList, contentFault)
}

// contentFault returns what is stored of a file whose content cannot be read, for a reason.
func contentFault(reason string) contentFound {
	return contentFound{fault: "its content cannot be read: " + reason}
}

// eachContent calls read for each file that the query finds, and stores what it returns. Of a file
// that cannot be read, or whose reading hangs, it stores what faulty returns for the reason. Of a
// file that has changed it stores nothing: the next analysis reads it anew.
func (a *analyzer) eachContent(ctx context.Context, t task, query string,
	read func(context.Context, task, *detachedReader, contentFile) (contentFound, error),
	faulty func(reason string) contentFound) error {
	readPage := func(files []contentFile) error {
		// Meanwhile there is one reader less for other files.
		release, err := a.reading.acquire(ctx, t.Token)
		if err != nil {
			return err
		}
		defer release()

		readOne := func(r *detachedReader, i int) error {
			if err := r.flush(); err != nil {
				return err
			}

			found, err := read(ctx, t, r, files[i])
			switch {
			case r.ctx.Err() != nil:
				return r.ctx.Err()
			case errors.Is(err, errChanged):
				return nil
			case err != nil:
				found = faulty(reasonOf(err))
			}
			return r.send(func() error { return a.storeContent(ctx, t, files[i], found) })
		}

		hangs := func(i int) error {
			found := faulty(fmt.Sprintf("no answer within %v", a.core.patience))
			return a.storeContent(ctx, t, files[i], found)
		}

		return a.readDetached(ctx, t, len(files), readOne, hangs)
	}

	for after := ""; ; {
		files, err := collect[contentFile](ctx, a.db, "list contents", query, t.DatasetID, after, a.batchSize)
		if err != nil || len(files) == 0 {
			return err
		}

		if err := readPage(files); err != nil {
			return err
		}
		after = files[len(files)-1].Path
	}
}

// flush waits until all that was sent is stored, so that a kill costs one file at most.
func (r *detachedReader) flush() error {
	return r.send(func() error { return nil })
}

// readContent calls use with the content of a file. If the file is not that of its row, before or
// after the reading, the error is errChanged, and use may have seen any content.
func (r *detachedReader) readContent(f contentFile, use func(io.Reader) error) error {
	r.before("content of " + f.Path)
	file, err := r.openContent(f)
	if err != nil {
		return err
	}
	defer file.Close()

	if err := use(blockReader{r, io.NewSectionReader(file, 0, f.Size)}); err != nil {
		return err
	}
	return r.lookAgain(f)
}

// openContent opens a file. If the file is not that of its row, the error is errChanged.
func (r *detachedReader) openContent(f contentFile) (openFile, error) {
	if r.root == nil {
		return nil, errChanged
	}

	file, opened, err := r.open(entry{Path: f.Path, Size: f.Size})
	if isMissing(err) {
		return nil, errChanged
	}
	if err == nil && !f.isOf(opened) {
		file.Close()
		return nil, errChanged
	}
	return file, err
}

// lookAgain returns errChanged if a file is not that of its row any more.
func (r *detachedReader) lookAgain(f contentFile) error {
	file, err := r.openContent(f)
	if err != nil {
		return errChanged
	}
	return file.Close()
}

// blockReader reads a content until the context of its reader ends. It notes the progress.
type blockReader struct {
	r       *detachedReader
	content io.Reader
}

// Read implements io.Reader.
func (b blockReader) Read(p []byte) (int, error) {
	if err := b.r.ctx.Err(); err != nil {
		return 0, err
	}

	n, err := b.content.Read(p)
	b.r.progress.Add(1)
	return n, err
}

// readList reads a list of checksums.
func (a *analyzer) readList(ctx context.Context, t task, r *detachedReader, f contentFile) (
	found contentFound, err error) {
	found.isList = true
	if f.Size > maxListBytes {
		found.fault = fmt.Sprintf("the list is too long: it has more than %d bytes", maxListBytes)
		return found, nil
	}

	list, err := decodePath(f.Path)
	if err != nil {
		return found, err
	}

	emit := func(c listedChecksum) error {
		if t.room.Add(-1) < 0 {
			return fmt.Errorf("the lists of the dataset have more than %d lines together", a.listLines)
		}

		found.lines = append(found.lines, c)
		if len(found.lines) < a.batchSize {
			return nil
		}

		some := contentFound{lines: found.lines}
		found.lines = nil
		return r.send(func() error { return a.storeContent(ctx, t, f, some) })
	}

	err = r.readContent(f, func(content io.Reader) (err error) {
		found.fault, err = readChecksums(list, content, emit)
		return err
	})
	return found, err
}

// digestFile computes both digests of a file, so that another list needs no other reading.
func (a *analyzer) digestFile(ctx context.Context, t task, r *detachedReader, f contentFile) (
	found contentFound, err error) {
	byMD5 := md5.New()
	bySHA256 := sha256.New()

	// Of a large file, the bytes are counted after each part.
	const part = 256 << 20
	block := make([]byte, 256<<10)
	err = r.readContent(f, func(content io.Reader) error {
		for {
			n, err := content.Read(block)
			byMD5.Write(block[:n]) // a hash returns no error
			bySHA256.Write(block[:n])
			found.bytes += int64(n)
			if err == io.EOF {
				return nil
			}

			if err == nil && found.bytes >= part {
				counted := contentFound{bytes: found.bytes}
				found.bytes = 0
				err = r.send(func() error { return a.storeContent(ctx, t, f, counted) })
			}
			if err != nil {
				return err
			}
		}
	})

	found.md5 = new(hex.EncodeToString(byMD5.Sum(nil)))
	found.sha256 = new(hex.EncodeToString(bySHA256.Sum(nil)))
	return found, err
}

// storeContent stores what was found of a content. A list keeps its fault when its digest is
// stored, and a file keeps it when its heights are. The count of deaths restarts once a whole list,
// a digest or heights are stored, because no owner reads that content again. A part of it does not
// restart the count, nor do heights that are to be tried again.
func (a *analyzer) storeContent(ctx context.Context, t task, f contentFile, found contentFound) error {
	const count = `
		UPDATE analyses
		SET
			bytes_read = bytes_read + $3,
			deaths = CASE WHEN $4 THEN 0 ELSE deaths END
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	const store = `
		UPDATE elevation_dataset_file_meta
		SET
			md5 = coalesce($2, md5),
			sha256 = coalesce($3, sha256),
			content_fault = CASE
				WHEN (is_list OR $6::jsonb IS NOT NULL) AND $4 = '' THEN content_fault
				ELSE nullif($4, '')
			END,
			is_list = is_list OR $5,
			heights = coalesce($6::jsonb, heights)
		WHERE id = $1`

	return a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
		err := oneRow(ctx, tx, "count bytes", count,
			t.AnalysisID,
			t.Token,
			found.bytes,
			found.isList || found.md5 != nil || (found.heights != nil && !found.heights.Again))
		if err != nil {
			return err
		}

		_, err = execute(ctx, tx, "store content", store,
			f.ID, found.md5, found.sha256, found.fault, found.isList, found.heights)
		if err != nil || len(found.lines) == 0 {
			return err
		}

		var rows [][]any
		for _, c := range found.lines {
			rows = append(rows, []any{t.DatasetID, f.Path, c.line, c.path, c.algorithm, c.digest})
		}
		return copyRows(ctx, tx, "listed_checksums", rows, "list", "line", "path", "algorithm", "digest")
	})
}
