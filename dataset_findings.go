package main

import (
	"encoding/csv"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// findingKind is a code of findings and its meaning. short is its word in the summary.
type findingKind struct {
	code     string
	severity string
	detail   string
	short    string
}

// Codes of findings that are not about a file that was read.
const (
	findingMissing     = "missing"
	findingMixed       = "mixed"
	findingNotFound    = "not_found"
	findingNotExamined = "not_examined"

	findingSpecification = "specification"
	findingChecksum      = "checksum"
)

// Severities of findings.
const (
	severe  = "error"
	warning = "warning"
	note    = "note"
)

// kindsOfFindings has a line for each kind of findings, the worst first: its severity, its code,
// what it means, and its word in the summary.
const kindsOfFindings = `
	error not_found: known files were not found, too many to be removed; not found
	error not_examined: directories could not be examined; not examined
	error corrupt: files are corrupt; corrupt
	error unreadable: files that should be rasters cannot be read as such; unreadable
	error no_extent: files have no georeference, or an unknown CRS; without georeference or CRS
	error unread: files of formats that Cairn does not read, and half-finished copies; not read
	error decode: files have blocks that cannot be decoded; damaged
	error checksum: files contradict lists of checksums, or were not compared; with a wrong checksum
	error specification: files are not as specified; not as specified
	error missing: tiles are missing between the others, or inside the boundary; missing tile
	error far: files lie far from all others; far away
	error name: file names contradict what is in the files; misnamed
	error misaligned: tiles do not fill exactly their cell of the grid; misaligned
	error overlap: tiles cover the place of another; overlapping
	error crs: files have another CRS than most; in another CRS
	error vertical_crs: files have another vertical CRS than most; with another vertical CRS
	error unit: files have heights in another unit than most; with another unit
	error undeclared_nodata: files have voids that are not declared as nodata; with undeclared voids
	error range: files have heights that no terrain has, or in another unit; with impossible heights

	warning outside_area: files lie outside the area of use of their CRS; outside their CRS's area
	warning mixed: folders hold files of several kinds, none of which is usual; mixed
	warning resolution: files have another posting than most of their CRS; with another posting
	warning sample_type: files have another data type than most; with another data type
	warning nodata: files have another nodata value than most; with another nodata value
	warning scale: files have another scale or offset than most; with another scale
	warning bands: files have another number of bands than most; with another number of bands
	warning orientation: files are rotated or upside down, unlike most; with another orientation
	warning suspect_data: files are far smaller than their neighbours; with suspect data
	warning empty: files have no height at all; empty
	warning flat: files have one height all over, and are no water; flat
	warning voids: files have far more voids than most; with many voids
	warning spikes: files have heights that stand out from all around them; with spikes
	warning seam: files have a step in the heights to their neighbours; with a step to its neighbours
	warning duplicate: files seem to be copies of another; duplicate

	note warning: files were read with a warning; with a warning`

// findingKinds returns the kinds of findings, the worst first.
func findingKinds() (kinds []findingKind) {
	for line := range strings.Lines(kindsOfFindings) {
		head, texts, _ := strings.Cut(strings.TrimSpace(line), ": ")
		severity, code, isKind := strings.Cut(head, " ")
		detail, short, _ := strings.Cut(texts, "; ")
		if isKind {
			kinds = append(kinds, findingKind{code, severity, detail, short})
		}
	}
	return kinds
}

// severities returns the severity of each kind of findings, by code.
func severities() map[string]string {
	found := map[string]string{}
	for _, kind := range findingKinds() {
		found[kind.code] = kind.severity
	}
	return found
}

// acceptedFinding is a finding that somebody has accepted: it is no longer reported.
type acceptedFinding struct {
	ID         int64     `json:"id"`
	Code       string    `json:"code"`
	Path       *string   `json:"path"` // see flagAccepted; null: all findings of the code
	Note       string    `json:"note"`
	AcceptedBy string    `json:"accepted_by"`
	AcceptedAt time.Time `json:"accepted_at"`
}

// acceptedColumns are the columns of an accepted finding.
const acceptedColumns = `
	id,
	code,
	path,
	note,
	accepted_by,
	accepted_at`

// listFindings answers GET /api/v1/datasets/{id}/findings/{code}: the findings of a kind that
// nobody has accepted, by path, at most maxFlaws.
func (c *catalogue) listFindings(w http.ResponseWriter, r *http.Request, d dataset) error {
	const query = `
		SELECT
			path,
			f.id AS file_id,
			detail,
			first_seen
		FROM dataset_findings d
		LEFT JOIN elevation_dataset_file_meta f USING (dataset_id, path)
		WHERE dataset_id = $1
			AND code = $2
			AND path > $3
			AND NOT is_accepted
		ORDER BY path
		LIMIT $4`

	code := r.PathValue("code")
	if severities()[code] == "" {
		return notFound("list of findings", code)
	}

	key := func(f findingFile) []string { return []string{f.Path} }
	return writeRows(c.core, w, r, []string{""}, key, "list findings", query, d.ID, code)
}

// getFindingsTable answers GET /api/v1/datasets/{id}/findings.csv with the findings of all kinds,
// at most maxFlaws of each, for spreadsheets.
func (c *catalogue) getFindingsTable(w http.ResponseWriter, r *http.Request, d dataset) error {
	const query = `
		SELECT ARRAY[
			code,
			coalesce($2::jsonb ->> code, ''),
			path,
			detail,
			first_seen::text,
			is_accepted::text
		] AS cells
		FROM dataset_findings
		WHERE dataset_id = $1
		ORDER BY code, path`

	rows, err := collect[struct{ Cells []string }](r.Context(), c.core.db, "list findings", query, d.ID, severities())
	if err != nil {
		return err
	}

	return writeStream(w, r, "text/csv; charset=utf-8", func(out io.Writer) error {
		table := csv.NewWriter(out)
		table.Write(strings.Fields("code severity path detail first_seen accepted"))
		for _, row := range rows {
			for i, cell := range row.Cells {
				row.Cells[i] = harmlessCell(cell)
			}
			table.Write(row.Cells)
		}

		table.Flush()
		return table.Error()
	})
}

// listAccepted answers GET /api/v1/datasets/{id}/accepted-findings, in the order of acceptance.
func (c *catalogue) listAccepted(w http.ResponseWriter, r *http.Request, d dataset) error {
	const query = `
		SELECT ` + acceptedColumns + `
		FROM accepted_findings
		WHERE dataset_id = $1 AND id > $2::text::bigint
		ORDER BY id
		LIMIT $3`

	key := func(a acceptedFinding) []string { return []string{strconv.FormatInt(a.ID, 10)} }
	return writeRows(c.core, w, r, []string{"0"}, key, "list accepted findings", query, d.ID)
}

// acceptRequest is the body of POST /api/v1/datasets/{id}/accepted-findings.
type acceptRequest struct {
	Code  string   `json:"code"`
	Path  *string  `json:"path"`
	Paths []string `json:"paths"` // in place of path
	Note  string   `json:"note"`
}

// acceptFindings answers POST /api/v1/datasets/{id}/accepted-findings with the paths that are newly
// accepted. It accepts all findings of the code, present and future, whose path matches one of the
// given ones (see flagAccepted). The path of a missing tile is its name. The request may instead
// give the path that is expected of its file. Without a path it accepts all findings of the code.
func (c *catalogue) acceptFindings(w http.ResponseWriter, r *http.Request, in acceptRequest) error {
	const areKnown = `
		SELECT NOT EXISTS (
			SELECT FROM unnest($2::text[]) p (path)
			WHERE p.path NOT LIKE '%/'
				AND length(p.path) - length(replace(p.path, '*', '')) NOT BETWEEN 1 AND 4
				AND NOT EXISTS (
					SELECT
					FROM elevation_dataset_file_meta f
					WHERE f.dataset_id = $1 AND f.path = p.path AND $3 NOT IN ('missing', 'mixed')
				)
				AND NOT EXISTS (
					SELECT FROM dataset_findings f WHERE f.dataset_id = $1 AND f.code = $3 AND f.path = p.path
				)
				AND NOT EXISTS (
					SELECT
					FROM dataset_findings f
					WHERE f.dataset_id = $1 AND f.code = $3 AND f.tile ->> 'expected' = p.path
				)
		)`

	const query = `
		INSERT INTO accepted_findings (
			dataset_id,
			code,
			path,
			note,
			accepted_by
		)
		SELECT $1, $2, coalesce(f.path, p.path), $4, $5
		FROM unnest($3::text[]) p (path)
		LEFT JOIN dataset_findings f ON f.dataset_id = $1 AND f.code = $2 AND f.tile ->> 'expected' = p.path
		ON CONFLICT DO NOTHING
		RETURNING ` + acceptedColumns

	paths, err := in.check()
	if err != nil {
		return err
	}

	ctx := r.Context()
	var accepted []acceptedFinding
	err = c.changeDataset(r, "finding.accept", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		// The path of one file or finding must be known.
		known, err := scalar[bool](ctx, tx, "look for the findings", areKnown, d.ID, paths, in.Code)
		if err != nil {
			return nil, nil, err
		}
		if !known {
			const unknown = "the dataset has no such file or finding; " +
				"for a missing tile, give its name, such as EPSG:4326 7 46"
			return nil, nil, invalid{{"path", fieldNotFound, unknown}}.err()
		}

		accepted, err = collect[acceptedFinding](ctx, tx, "accept findings", query,
			d.ID, in.Code, paths, in.Note, actorOf(r).name)
		if err != nil {
			return nil, nil, err
		}
		if len(accepted) == 0 {
			return nil, nil, conflict(codeAlreadyAccepted, "This finding was accepted before.")
		}

		return nil, in, flagAccepted(ctx, tx, d.ID)
	})

	return writeCreated(w, object{"items": accepted, "next_cursor": nil}, "", err)
}

// check returns the paths of the request; nil stands for all findings of the code. The error is a
// 422 that says which fields are wrong.
func (in acceptRequest) check() (paths []*string, err error) {
	var v invalid
	if in.Paths == nil {
		paths = append(paths, in.Path)
	} else {
		v.check(in.Path == nil, "path", fieldExclusive, "cannot be given with paths")
		v.check(len(in.Paths) > 0, "paths", fieldMissing, "must name at least one finding")
	}
	for _, path := range in.Paths {
		paths = append(paths, &path)
	}

	v.check(severities()[in.Code] != "", "code", fieldUnknown, "must be the code of a finding")
	v.check(isText(in.Note, 1000), "note", fieldMalformed, "must say why, in text of 1 to 1,000 characters")

	for _, path := range paths {
		if path == nil {
			continue // all findings of the code
		}

		hasLength := *path != "" && len(*path) <= maxPath
		isPath := hasLength && !strings.ContainsRune(*path, 0)
		v.check(isPath, "path", fieldMalformed,
			"must be the path of a finding, a folder with a slash at its end, or a pattern; "+
				"leave it out to accept all findings of the code")
	}
	return paths, v.err()
}

// reopenFinding answers DELETE /api/v1/datasets/{id}/accepted-findings/{accepted}. The report then
// has the finding again.
func (c *catalogue) reopenFinding(w http.ResponseWriter, r *http.Request) error {
	const query = `
		DELETE FROM accepted_findings
		WHERE dataset_id = $1 AND id = $2
		RETURNING ` + acceptedColumns

	err := c.changeDataset(r, "finding.reopen", func(tx pgx.Tx, d dataset) (_, _ any, err error) {
		id := pathID(r, "accepted")
		was, err := collectOne[acceptedFinding](r.Context(), tx, notFound("accepted finding", id),
			"reopen a finding", query, d.ID, id)
		if err != nil {
			return nil, nil, err
		}

		return was, nil, flagAccepted(r.Context(), tx, d.ID)
	})

	return writeDone(w, err)
}
