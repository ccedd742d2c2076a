package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// readerVersion is stored with each row. Raise it when the same file may get another row: then all
// files are read again.
const readerVersion = 7

// batch is a part of the outcome of comparing the directory with the rows. It is stored at once.
type batch struct {
	files    []batchFile // new or changed, to be read
	missing  []string    // paths of rows for which the directory has no file
	seen     int         // files in the directory
	failed   int         // files that are corrupt
	added    []string    // paths; see classify, as of the next
	changed  []string
	warnings []string
	isDeadly bool // the first file has ended the program maxDeaths times
}

// batchFile is a file to be read.
type batchFile struct {
	entry
	known knownRow                  // the row that it has; zero for a new file
	row   *ElevationDatasetFileMeta // nil if the file is gone
}

// knownRow is what the merge needs of a row.
type knownRow struct {
	ID            int64
	Path          string
	Status        string
	Size          int64
	Modified      int64
	Changed       int64
	Sidecars      int64
	ReaderVersion int
	AddedIn       int64 // analyses
	ReadIn        int64
	IsList        bool // of checksums
	ContentFault  *string
}

// isUnchanged reports whether the file of a row need not be read: a former owner of this analysis
// has read it or, without force, its size, times and sidecars are those of the row, and a reader of
// this version made the row.
func (r knownRow) isUnchanged(e entry, t task) bool {
	if r.ReadIn == t.AnalysisID {
		return true
	}

	isSame := r.Size == e.Size &&
		r.Modified == e.Modified &&
		r.Changed == e.Changed &&
		r.Sidecars == e.Sidecars
	isRead := r.Status != fileStatusUnreadable && r.ReaderVersion == readerVersion
	return isSame && isRead && !t.Force
}

// merger compares the files of a directory with the rows of its dataset. Both come in bytewise
// order of the paths.
type merger struct {
	a    *analyzer
	t    task
	rows []knownRow // read from the database, and not yet passed
	last string     // the path of the last row that was read
	done bool       // all rows have been read

	next    batch
	anySeen bool
	careful int // how many of the next files are read and stored one by one

	readers sync.WaitGroup
	cancel  context.CancelCauseFunc // ends the merge
	refused atomic.Pointer[error]   // the first batch that the database refused; it fails the merge in the end
}

// merge compares the directory with the rows, reads what is new or changed, and stores it in
// batches. Files that a former owner stored are unchanged now.
func (a *analyzer) merge(ctx context.Context, t task) error {
	if err := a.beginMerge(ctx, t); err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	m := &merger{
		a:      a,
		t:      t,
		cancel: cancel,
	}
	if t.Deaths > 0 {
		m.careful = maxReaders * a.batchSize // as many as the readers may have had in hand
	}

	if err := m.run(ctx); err != nil {
		cancel(err)
	}

	m.readers.Wait()

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	if err := m.refused.Load(); err != nil {
		return *err
	}

	return a.setStep(ctx, t, stepLook)
}

// beginMerge begins a merge from the start: it forgets the candidates and counts of the former
// owner, and the changes of old analyses.
func (a *analyzer) beginMerge(ctx context.Context, t task) error {
	const begin = `
		WITH dropped AS (
			DELETE FROM analysis_candidates WHERE analysis_id = $1
		), numbered AS (
			SELECT
				id,
				queued_at,
				row_number() OVER newest AS n,
				sum(added + changed + removed) OVER newest AS changes
			FROM analyses
			WHERE dataset_id = $3
			WINDOW newest AS (ORDER BY id DESC)
		), forgotten AS (
			DELETE FROM analysis_changes
			WHERE analysis_id IN (
				SELECT id
				FROM numbered
				WHERE id <> $1 AND (n > $4 OR changes > $5 OR queued_at < now() - interval '1 year')
			)
		)
		UPDATE analyses
		SET total = 0, failed = 0
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`

	return underLock(ctx, a.db, lockAnalyses+t.AnalysisID, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "begin merge", begin,
			t.AnalysisID,
			t.Token,
			t.DatasetID,
			maxAnalysesKept,
			maxChangesKept)
	})
}

// The changes of a dataset are kept for a year at most, and not beyond these numbers.
const (
	maxAnalysesKept = 400
	maxChangesKept  = 2_000_000
)

// setStep stores that the next step of an analysis begins. It releases an analysis whose contents
// are to be read, because another worker does that.
func (a *analyzer) setStep(ctx context.Context, t task, step string) error {
	const query = `
		UPDATE analyses
		SET
			step = $3,
			deaths = 0,
			owner = CASE WHEN $3 <> 'contents' THEN owner END,
			owner_token = CASE WHEN $3 <> 'contents' THEN owner_token END,
			state = CASE WHEN $3 = 'check' THEN 'checking' ELSE state END
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL`
	return a.changeAnalysis(ctx, t, func(tx pgx.Tx) error {
		return oneRow(ctx, tx, "set step", query, t.AnalysisID, t.Token, step)
	})
}

// run walks the directory and begins batches until both files and rows have been compared.
func (m *merger) run(ctx context.Context) error {
	w := &walker{}
	return m.a.runDetached(ctx, &w.progress, func(detached context.Context, send sendFunc) error {
		// A last batch holds the files that the walk found since the one before.
		var found []entry
		var warnings []string
		pass := func() error {
			entries := found
			said := warnings
			found = nil
			warnings = nil
			return send(func() error { return m.compare(ctx, entries, said) })
		}

		w.file = func(e entry) error {
			found = append(found, e)
			if len(found) < m.a.batchSize {
				return nil
			}
			return pass()
		}

		w.warn = func(dir string, err error) error {
			if dir == "" {
				return unavailable("The dataset's directory cannot be read: %s.", reasonOf(err))
			}
			if len(warnings) < maxWarnings {
				warnings = append(warnings, fmt.Sprintf("%s: %s", dir, reasonOf(err)))
			}
			return nil
		}

		filesExpected := m.t.Known || m.t.OthersMaySee // another instance may see some
		root, err := m.a.openDataset(m.t, filesExpected)
		if err != nil {
			return err
		}

		if root != nil {
			defer root.Close()
			if err := w.walk(detached, root, ""); err != nil {
				return err
			}
		}

		if err := pass(); err != nil {
			return err
		}

		return send(func() error {
			if !m.anySeen && filesExpected && !m.t.emptyIsIntended() {
				return m.t.unexpectedlyEmpty("No file is in the dataset's directory.")
			}
			return m.end(ctx)
		})
	})
}

// compare compares the next files of the directory with the rows up to them.
func (m *merger) compare(ctx context.Context, entries []entry, warnings []string) error {
	m.next.warnings = append(m.next.warnings, warnings...)
	for _, e := range entries {
		row, err := m.rowAt(ctx, e.Path)
		if err != nil {
			return err
		}

		m.anySeen = true
		m.next.seen++
		if !row.isUnchanged(e, m.t) {
			m.next.files = append(m.next.files, batchFile{entry: e, known: row})
		} else if isFailed(row.Status) {
			m.next.failed++
		}

		if err := m.flush(ctx, false); err != nil {
			return err
		}
	}

	return nil
}

// rowAt returns the row with this path, or a zero row. The rows before it have no file.
func (m *merger) rowAt(ctx context.Context, path string) (row knownRow, err error) {
	for {
		if err := m.readRows(ctx); err != nil {
			return knownRow{}, err
		}
		if len(m.rows) == 0 || m.rows[0].Path > path {
			return knownRow{}, nil
		}

		first := m.rows[0]
		m.rows = m.rows[1:]
		if first.Path == path {
			return first, nil
		}

		m.next.missing = append(m.next.missing, first.Path)
		if err := m.flush(ctx, false); err != nil {
			return knownRow{}, err
		}
	}
}

// readRows reads the next page of rows when the files have passed the last page. This merge has
// stored no row beyond that. At the end there are no rows.
func (m *merger) readRows(ctx context.Context) (err error) {
	const query = `
		SELECT
			id,
			path,
			status,
			size_bytes AS size,
			modified_ns AS modified,
			changed_ns AS changed,
			sidecars,
			reader_version,
			added_in,
			read_in,
			is_list,
			content_fault
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path > $2
		ORDER BY path
		LIMIT $3`

	const atOnce = 5000
	if len(m.rows) > 0 || m.done {
		return nil
	}

	m.rows, err = collect[knownRow](ctx, m.a.db, "read rows", query, m.t.DatasetID, m.last, atOnce)
	m.done = len(m.rows) < atOnce
	if len(m.rows) > 0 {
		m.last = m.rows[len(m.rows)-1].Path
	}
	return err
}

// end compares the rows after the last file, which have no file, and flushes the last batch.
func (m *merger) end(ctx context.Context) error {
	const afterAllPaths = "\xff" // paths are UTF-8
	if _, err := m.rowAt(ctx, afterAllPaths); err != nil {
		return err
	}
	return m.flush(ctx, true)
}

// flush waits for a free reader, and lets it read and store the batch, if the batch is full or,
// with last, in any case.
//
// If a former owner died, a file may be at fault. So as many files as its readers had are read one
// by one, and each is stored before the next is read.
func (m *merger) flush(ctx context.Context, last bool) error {
	b := m.next
	isFull := len(b.files) >= m.a.batchSize ||
		len(b.missing) >= m.a.batchSize ||
		b.seen >= 20*m.a.batchSize
	isSingle := m.careful > 0 && len(b.files) == 1
	if !isFull && !isSingle && !last {
		return nil
	}

	m.next = batch{}

	release, err := m.a.reading.acquire(ctx, m.t.Token)
	if err != nil {
		return err
	}

	if isSingle {
		defer release()
		m.careful--
		return m.a.doAlone(ctx, m.t, b)
	}

	m.readers.Go(func() {
		defer release()
		err := m.a.doBatch(ctx, m.t, b)
		if isRefused(err) {
			m.refused.CompareAndSwap(nil, &err) // the other batches are still stored
		} else if err != nil {
			m.cancel(err)
		}
	})

	return nil
}

// doAlone reads and stores a batch of one file, which may end the program. If maxDeaths owners have
// died over this file, with this size and these times, it is not read.
func (a *analyzer) doAlone(ctx context.Context, t task, b batch) error {
	const suspect = `
		UPDATE analyses
		SET
			suspect = $3,
			deaths = CASE WHEN suspect = $3 THEN deaths ELSE 0 END
		WHERE id = $1 AND owner_token = $2 AND finished_at IS NULL
		RETURNING deaths >= $4 AS is_deadly`

	f := b.files[0]
	file := fmt.Sprintf("%d %d %d %s",
		f.Size,
		f.Modified,
		f.Changed,
		f.Path)
	found, err := collectOne[struct{ IsDeadly bool }](ctx, a.db, errNotOurs, "note suspect", suspect,
		t.AnalysisID, t.Token, file, maxDeaths)
	if err != nil {
		return err
	}

	b.isDeadly = found.IsDeadly
	return a.doBatch(ctx, t, b)
}

// doBatch reads the files of a batch and stores it.
func (a *analyzer) doBatch(ctx context.Context, t task, b batch) error {
	if err := a.readFiles(ctx, t, b); err != nil {
		return err
	}
	return a.storeBatch(ctx, t, b)
}

// readFiles sets the rows of the files of a batch. A file whose reading hangs becomes unreadable.
func (a *analyzer) readFiles(ctx context.Context, t task, b batch) error {
	todo := slices.Clone(b.files) // an abandoned goroutine keeps its own

	read := func(r *detachedReader, i int) error {
		var row *ElevationDatasetFileMeta
		if r.root != nil {
			row = r.readRow(todo[i].entry, b.isDeadly)
		}
		return r.send(func() error {
			b.files[i].row = row
			return nil
		})
	}

	hangs := func(i int) error {
		b.files[i].row = new(todo[i].unread(a.core.now(), fileStatusUnreadable,
			"reading it did not end within %v", a.core.patience))
		return nil
	}

	return a.readDetached(ctx, t, len(todo), read, hangs)
}

// detachedReader reads files in a goroutine of runDetached. Its root is nil if the dataset's
// directory is missing, and that is intended.
type detachedReader struct {
	*fileReader
	ctx      context.Context // ends when the goroutine is abandoned
	progress *atomic.Int64   // see runDetached
	send     sendFunc
}

// readDetached calls read for the files 0 to n-1, in a goroutine that is abandoned when a file
// hangs. The functions that read sends run in the caller's goroutine. For a file that hangs, it
// calls hangs, and another goroutine continues after it. If the dataset's directory hangs when it
// is opened, no file is at fault, and readDetached returns errHangs.
func (a *analyzer) readDetached(ctx context.Context, t task, n int,
	read func(r *detachedReader, i int) error, hangs func(i int) error) error {
	for next := 0; next < n; next++ {
		first := next
		var progress atomic.Int64
		var opened atomic.Bool // the dataset's directory is open
		err := a.runDetached(ctx, &progress, func(detached context.Context, send sendFunc) error {
			root, err := a.openDataset(t, true)
			if err != nil {
				return err
			}

			progress.Add(1)
			opened.Store(true)

			r := &detachedReader{
				fileReader: &fileReader{
					root:   root,
					crss:   t.About.setCRSs,
					now:    a.core.now,
					before: a.beforeRead,
					listed: true,
				},
				ctx:      detached,
				progress: &progress,
				send:     send,
			}
			if root != nil {
				defer r.close()
			}

			for i := first; i < n; i++ {
				if err := read(r, i); err != nil {
					return err
				}

				err := send(func() error {
					next = i + 1
					return nil
				})
				if err != nil {
					return err
				}
			}

			return nil
		})
		if err == nil {
			return nil
		}

		isFileAtFault := errors.Is(err, errHangs) && opened.Load() && next < n
		if !isFileAtFault || a.hung.Load() >= maxHung {
			return err
		}

		if err := hangs(next); err != nil {
			return err
		}
	}

	return nil
}

// readRow returns the row of a file, or nil if it is gone. A deadly file is not read.
func (fr *fileReader) readRow(e entry, isDeadly bool) *ElevationDatasetFileMeta {
	if isDeadly {
		if found, _ := lookFor(fr.root, e.Path); found == fileGone || found == fileEmptied {
			return nil
		}
		const reason = "reading this file ended the program %d times, so it is " +
			"not read any more; mend or remove it"
		return new(e.unread(fr.now(), fileStatusCorrupt, reason, maxDeaths))
	}

	m, found := fr.readEntry(e)
	if !found {
		return nil
	}

	m.withdrawPlace()
	return &m
}
