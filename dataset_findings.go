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

// findingKind is a code of findings, the report's query that looks for them, and their meaning.
type findingKind struct{ code, query, detail string }

// findingMissing is the code of missing tiles. Findings of all other codes are files.
const findingMissing = "missing"

// findingKinds returns the kinds of findings, the worst first.
func findingKinds() []findingKind {
	return []findingKind{
		{fileStatusCorrupt, "unusable", "files are corrupt"},
		{"unreadable", "unusable", "files that should be rasters cannot be read as such"},
		{"no_extent", "unusable", "files have no position, or an unknown CRS"},
		{findingMissing, "", "tiles are missing inside the area that the others cover"},
		{"name", "names", "file names contradict what is in the files"},
		{"crs", "odd", "files have another CRS than most"},
		{"vertical_crs", "odd", "files have another vertical system than most"},
		{"resolution", "odd", "files have another pixel size than most of their CRS"},
		{"sample_type", "odd", "files have another data type than most"},
		{"nodata", "odd", "files have another nodata value than most"},
		{"overlap", "overlaps", "tiles cover the same cell of their grid"},
		{"duplicate", "duplicates", "files have the same extent and size in pixels as another"},
		{"seam", "seams", "tiles lie off the grid by a part of a pixel"},
		{"warning", "warnings", "files were read with a warning"},
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
// path, less the accepted ones. Missing tiles are in the gaps.
func (c *catalogue) listFindings(w http.ResponseWriter, r *http.Request) error {
	code := r.PathValue("code")
	if code == findingMissing || kindOf(code) < 0 {
		return notFound("list of findings", code)
	}
	return writeList(c.core, w, r, []string{""}, func(after []string, limit int) ([]findingFile, error) {
		_, files, err := heavyQuery(c, r, func(d dataset, ctx context.Context, q querier) ([]findingFile, error) {
			return d.findings(ctx, q, code, after[0], limit)
		})
		return files, err
	}, func(f findingFile) []string { return []string{f.Path} })
}

// findings returns up to limit files with a fault after a path, less the accepted ones.
func (d dataset) findings(ctx context.Context, q querier, code, after string, limit int) (
	files []findingFile, err error) {
	query := findingKinds()[kindOf(code)].query
	var grids []tileGrid
	if query == "overlaps" || query == "seams" {
		if grids, err = d.grids(ctx, q); err != nil {
			return nil, err
		}
	}
	args := d.gridArgs(grids)
	args["code"], args["after"], args["limit"] = code, after, limit
	return collect[findingFile](ctx, q, "list "+query, reportQuery("page", query), args)
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

// acceptFinding answers POST /api/v1/datasets/{id}/accepted-findings. Without a path it accepts
// every finding of the code, also those to come.
func (c *catalogue) acceptFinding(w http.ResponseWriter, r *http.Request) error {
	const (
		isFile = `SELECT EXISTS (SELECT FROM elevation_dataset_file_meta WHERE dataset_id = $1 AND path = $2)`
		query  = `
		INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by)
		VALUES ($1, $2, $3, $4, $5)
		RETURNING ` + acceptedColumns
	)
	var in struct {
		Code string  `json:"code"`
		Path *string `json:"path"`
		Note string  `json:"note"`
	}
	if err := decodeJSON(r, &in); err != nil {
		return err
	}
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
		known := in.Path == nil || in.Code == findingMissing
		if !known {
			err = tx.QueryRow(ctx, isFile, d.ID, *in.Path).Scan(&known)
			v.check(known, "path", "not_found", "the dataset has no such file")
		}
		if err = cmp.Or(err, v.err()); err != nil {
			return nil, nil, err
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
