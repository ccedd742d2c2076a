package main

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// findingKind is a code of findings and its meaning. short is its word in the summary.
type findingKind struct {
	code, severity, detail, short string
	isUnlocated                   bool // its files are not located
}

// Codes of findings that are not about a file: about a missing tile, about a folder.
const (
	findingMissing = "missing"
	findingMixed   = "mixed"
)

// findingKinds returns the kinds of findings, the worst first.
func findingKinds() []findingKind {
	const severe, warning, note = "error", "warning", "note"
	return []findingKind{
		{fileStatusCorrupt, severe, "files are corrupt", "corrupt", true},
		{"unreadable", severe, "files that should be rasters cannot be read as such", "unreadable", true},
		{"no_extent", severe, "files have no georeference, or an unknown CRS", "without georeference or CRS", true},
		{"unread", severe, "files of formats that Cairn does not read, and half-finished copies", "not read", true},
		{findingMissing, severe, "tiles are missing inside the area that the others cover", "missing tile", false},
		{"far", severe, "files lie far from all others", "far away", false},
		{"name", severe, "file names contradict what is in the files", "misnamed", false},
		{"misaligned", severe, "tiles do not fill exactly their cell of the grid", "misaligned", false},
		{"overlap", severe, "tiles cover the place of another", "overlapping", false},
		{"crs", severe, "files have another CRS than most", "in another CRS", false},
		{"vertical_crs", severe, "files have another vertical CRS than most", "with another vertical CRS", false},
		{findingMixed, warning, "folders hold files of several kinds, none of which is usual", "mixed", false},
		{"resolution", warning, "files have another posting than most of their CRS", "with another posting", false},
		{"sample_type", warning, "files have another data type than most", "with another data type", false},
		{"nodata", warning, "files have another nodata value than most", "with another nodata value", false},
		{"bands", warning, "files have another number of bands than most", "with another number of bands", false},
		{"orientation", warning, "files are rotated or upside down, unlike most", "with another orientation", false},
		{"suspect_data", warning, "files are far smaller than their neighbours", "with suspect data", false},
		{"duplicate", warning, "files seem to be copies of another", "duplicate", false},
		{"warning", note, "files were read with a warning", "with a warning", false},
	}
}

// kindOf returns the index in findingKinds of the kind with that code, -1 where there is none.
func kindOf(code string) int {
	return slices.IndexFunc(findingKinds(), func(kind findingKind) bool { return kind.code == code })
}

// acceptedFinding is a finding that somebody has accepted: it is no longer reported.
type acceptedFinding struct {
	ID         int64     `json:"id"`
	Code       string    `json:"code"`
	Path       *string   `json:"path"` // a file, or the name of a missing tile; null: all of that code
	Note       string    `json:"note"`
	AcceptedBy string    `json:"accepted_by"`
	AcceptedAt time.Time `json:"accepted_at"`
}

// acceptedColumns are the columns of an accepted finding.
const acceptedColumns = `id, code, path, note, accepted_by, accepted_at`

// listFindings answers GET /api/v1/datasets/{id}/findings/{code}: the files with that fault, by
// path, less the accepted ones, at most maxFlaws. Missing tiles are in the gaps.
func (c *catalogue) listFindings(w http.ResponseWriter, r *http.Request) error {
	code := r.PathValue("code")
	if code == findingMissing || kindOf(code) < 0 {
		return notFound("list of findings", code)
	}
	return writeList(c.core, w, r, []string{""}, func(after []string, limit int) ([]findingFile, error) {
		_, files, err := heavyQuery(c, r, func(d dataset, ctx context.Context, q querier) ([]findingFile, error) {
			s, err := d.examine(ctx, q)
			if err != nil {
				return nil, err
			}
			return s.list(ctx, q, code, maxFlaws)
		})
		first, _ := slices.BinarySearchFunc(files, after[0], func(f findingFile, after string) int {
			return cmp.Or(cmp.Compare(f.Path, after), -1) // the one behind it
		})
		return files[first:min(len(files), first+limit)], err
	}, func(f findingFile) []string { return []string{f.Path} })
}

// listAccepted answers GET /api/v1/datasets/{id}/accepted-findings, in the order of acceptance.
func (c *catalogue) listAccepted(w http.ResponseWriter, r *http.Request) error {
	const query = `
		SELECT ` + acceptedColumns + `
		FROM accepted_findings
		WHERE dataset_id = $1 AND id > $2::text::bigint
		ORDER BY id
		LIMIT $3`
	d, err := c.pathDataset(r)
	if err != nil {
		return err
	}
	return writeList(c.core, w, r, []string{"0"}, func(after []string, limit int) ([]acceptedFinding, error) {
		return collect[acceptedFinding](r.Context(), c.core.db, "list accepted findings", query, d.ID, after[0], limit)
	}, func(a acceptedFinding) []string { return []string{strconv.FormatInt(a.ID, 10)} })
}

// acceptRequest is the body of POST /api/v1/datasets/{id}/accepted-findings.
type acceptRequest struct {
	Code string  `json:"code"`
	Path *string `json:"path"`
	Note string  `json:"note"`
}

// acceptFinding answers POST /api/v1/datasets/{id}/accepted-findings. Without a path it accepts
// every finding of the code, also those to come.
func (c *catalogue) acceptFinding(w http.ResponseWriter, r *http.Request, in acceptRequest) error {
	const (
		isFile = `SELECT EXISTS (SELECT FROM elevation_dataset_file_meta WHERE dataset_id = $1 AND path = $2)`
		query  = `
		INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by)
		VALUES ($1, $2, $3, $4, $5)
		RETURNING ` + acceptedColumns
	)
	var v invalid
	v.check(kindOf(in.Code) >= 0, "code", "unknown", "must be the code of a finding")
	v.check(in.Path == nil || *in.Path != "" && !strings.ContainsRune(*in.Path, 0), "path", "malformed",
		"must be the path of a file or the name of a missing tile; leave it out to accept all findings of the code")
	v.check(isText(in.Note, 1000), "note", "malformed", "must say why, in text of 1 to 1,000 characters")
	if err := v.err(); err != nil {
		return err
	}
	var accepted acceptedFinding
	ctx := r.Context()
	err := c.changeDataset(r, "finding.accept", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		if in.Path != nil && in.Code != findingMissing && in.Code != findingMixed {
			known, err := scalar[bool](ctx, tx, "look for the file", isFile, d.ID, *in.Path)
			if err != nil {
				return nil, nil, err
			}
			if !known {
				return nil, nil, invalid{{"path", "not_found", "the dataset has no such file"}}.err()
			}
		}
		accepted, err = collectOne[acceptedFinding](ctx, tx, nil, "accept a finding", query,
			d.ID, in.Code, in.Path, in.Note, actorOf(r).name)
		if isUniqueViolation(err, "accepted_findings_key") {
			err = newProblem(http.StatusConflict, "already_accepted", "This finding was accepted before.")
		}
		return nil, accepted, err
	})
	return writeCreated(w, accepted, "", err)
}

// reopenFinding answers DELETE /api/v1/datasets/{id}/accepted-findings/{accepted}. The report then
// has the finding again.
func (c *catalogue) reopenFinding(w http.ResponseWriter, r *http.Request) error {
	const query = `
		DELETE FROM accepted_findings
		WHERE dataset_id = $1 AND id = $2
		RETURNING ` + acceptedColumns
	return writeDone(w, c.changeDataset(r, "finding.reopen", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		id := pathID(r, "accepted")
		was, err := collectOne[acceptedFinding](r.Context(), tx, notFound("accepted finding", id),
			"reopen a finding", query, d.ID, id)
		return was, nil, err
	}))
}
