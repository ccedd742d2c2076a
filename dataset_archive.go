package main

import (
	"archive/zip"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
)

// maxArchived is how many files an archive may have. Their names stay in memory to its end.
const maxArchived = 100_000

// getArchive answers GET /api/v1/datasets/{id}/archive.zip with the content of the files that match
// the filter. The archive does not compress them, because most are compressed already. It is made
// while it is sent, so it has no length and no ranges. If a file fails or changes meanwhile, the
// connection is cut, so that no client takes the archive for complete.
func (c *catalogue) getArchive(w http.ResponseWriter, r *http.Request) error {
	d, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}
	total, err := countFiles(r.Context(), c.core.db, f)
	if err != nil {
		return err
	}
	if total.Total > maxArchived {
		detail := fmt.Sprintf("selects too many files: an archive has at most %d; "+
			"narrow the filter, or take urls.txt", maxArchived)
		return invalid{{"path", fieldOutOfRange, detail}}.err()
	}

	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": d.Name + ".zip"}))
	err = writeStream(w, r, typeZIP, func(out io.Writer) error {
		archive := zip.NewWriter(out)
		unread := int64(0)
		slots := callerOf(r).slots
		err := c.eachFile(r, f, func(file datasetFile) error {
			if file.Status == fileStatusUnreadable {
				unread++
				return nil
			}

			// While a file is read, others may compute.
			slots.leaveCore()
			err := c.addToArchive(r.Context(), archive, d.Path, file)
			if err != nil {
				return err
			}
			return slots.acquireCore(r.Context())
		})
		if err != nil {
			return err
		}

		if unread > 0 {
			archive.SetComment("Left out, because the last analysis could not read it: " + plural(unread, "file"))
		}
		return archive.Close()
	})
	if err != nil {
		h.Del("Content-Disposition") // if nothing has been sent yet, the answer is a problem
	}
	return err
}

// addToArchive adds the content of a file in the directory of a dataset. Its name in the archive is
// its path in the dataset. Some programs take a backslash for a slash. So in a path with
// backslashes these become %5C, and percent signs %25.
func (c *catalogue) addToArchive(
	ctx context.Context,
	archive *zip.Writer,
	directory string,
	file datasetFile,
) error {
	f, err := c.openContent(ctx, directory, file.Path)
	if err != nil {
		return err
	}
	defer f.closeLater()

	name, _ := decodePath(file.Path) // as the walk wrote it
	if strings.Contains(name, `\`) {
		name = strings.NewReplacer("%", "%25", `\`, "%5C").Replace(name)
	}
	out, err := archive.CreateHeader(&zip.FileHeader{
		Name:     name,
		Method:   zip.Store,
		Modified: file.ModifiedAt.Time,
	})
	if err != nil {
		return err
	}

	n, err := io.Copy(out, io.NewSectionReader(f, 0, f.Size))
	if err != nil {
		return err
	}

	// Refuse a file that has changed while it was read.
	again, err := c.openContent(ctx, directory, file.Path)
	if err != nil {
		return err
	}
	defer again.closeLater()

	if n != f.Size || again.entry != f.entry {
		err := fmt.Errorf("read %s in the dataset %s: the file has changed", file.Path, directory)
		return fileUnavailable(err)
	}
	return nil
}

// getURLs answers GET /api/v1/datasets/{id}/urls.txt with the URL of each file that matches the
// filter, for programs that download many files and can resume.
func (c *catalogue) getURLs(w http.ResponseWriter, r *http.Request) error {
	d, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}

	base := c.core.baseURL(r)
	return writeStream(w, r, "text/plain; charset=utf-8", func(out io.Writer) error {
		return c.eachFile(r, f, func(file datasetFile) error {
			_, err := fmt.Fprintln(out, base+dataPath(d.ID, file.Path))
			return err
		})
	})
}
