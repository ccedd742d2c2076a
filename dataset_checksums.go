package main

import (
	"context"
	"fmt"
)

// checksumCounts says how many files were compared with lists of checksums.
type checksumCounts struct {
	Listed   int64 `json:"listed"`   // files that are named in a list
	Compared int64 `json:"compared"` // of these, files whose digest is known
	Unlisted int64 `json:"unlisted"` // files that no list names, without the lists
}

// listedFiles is SQL for the files of dataset $1 that lists of checksums name, a row for each
// algorithm. id and found are the id and the digest of the file's row, null without one. digest and
// other are the smallest and the largest listed digest: if they are the same, all lists agree. list
// is one of the lists.
const listedFiles = `
	WITH listed AS MATERIALIZED (
		SELECT
			c.path,
			c.algorithm,
			min(c.digest COLLATE "C") AS digest,
			max(c.digest COLLATE "C") AS other,
			min(c.list COLLATE "C") AS list,
			min(format('%s (%s, line %s)', c.digest, c.list, c.line) COLLATE "C") AS statement,
			max(format('%s (%s, line %s)', c.digest, c.list, c.line) COLLATE "C") AS other_statement
		FROM listed_checksums c
		JOIN elevation_dataset_file_meta l ON l.dataset_id = $1 AND l.path = c.list AND l.is_list
		WHERE c.dataset_id = $1
		GROUP BY c.path, c.algorithm
	), files AS MATERIALIZED (
		SELECT
			l.*,
			f.id,
			f.content_fault,
			CASE l.algorithm WHEN 'MD5' THEN f.md5 ELSE f.sha256 END AS found
		FROM listed l
		LEFT JOIN elevation_dataset_file_meta f ON f.dataset_id = $1 AND f.path = l.path
	)`

// checksumFindings is SQL for the findings of the checksums of dataset $1. A finding counts in the
// folder of place, which is the path of a row: for a missing file, that of a list. So the folders
// that a list invents do not count.
const checksumFindings = listedFiles + `, details AS (
		SELECT
			path,
			path AS place,
			content_fault AS detail
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND content_fault IS NOT NULL AND (is_list OR ` + isChecksumList + `)
		UNION
		SELECT
			path,
			path,
			content_fault
		FROM files
		WHERE content_fault IS NOT NULL
		UNION ALL
		SELECT
			path,
			CASE WHEN id IS NULL THEN list ELSE path END,
			CASE
				WHEN id IS NULL THEN
					format('is not there, but listed with %s %s', algorithm, statement)
				WHEN digest <> other THEN
					format('is listed with different digests: %s %s and %s', algorithm, statement, other_statement)
					|| coalesce('; it has ' || found, '')
				ELSE format('has %s %s, but is listed with %s', algorithm, found, statement)
			END
		FROM files
		WHERE id IS NULL OR digest <> other OR found <> digest
	), findings AS MATERIALIZED (
		SELECT
			path,
			min(place) AS place,
			string_agg(detail, '; ' ORDER BY detail) AS detail
		FROM details
		GROUP BY path
	)`

// addChecksums adds what the last analysis with checksums found, of files and lists that have not
// changed since. It adds nothing to a dataset whose checksums were never compared.
func (r *results) addChecksums(ctx context.Context, q querier, datasetID int64) error {
	const wasAsked = `
		SELECT EXISTS (
			SELECT
			FROM analyses
			WHERE dataset_id = $1 AND checksums AND bytes_expected IS NOT NULL AND (state = 'succeeded' OR id = $2)
		)`

	const counts = listedFiles + `
		SELECT
			count(DISTINCT id) AS listed,
			count(DISTINCT id) FILTER (WHERE found IS NOT NULL) AS compared,
			(
				SELECT count(*)
				FROM elevation_dataset_file_meta f
				WHERE dataset_id = $1 AND NOT is_list AND NOT EXISTS (
					SELECT FROM listed WHERE path = f.path
				)
			) AS unlisted
		FROM files`

	const first = checksumFindings + `
		SELECT
			path,
			place,
			detail
		FROM findings
		ORDER BY path
		LIMIT $2`

	const count = checksumFindings + `
		SELECT
			coalesce(nullif(regexp_replace(place, '/?[^/]*$', ''), ''), '.') AS folder,
			count(*) AS total
		FROM findings
		GROUP BY folder`

	asked, err := scalar[bool](ctx, q, "look for checksums", wasAsked, datasetID, r.analysisID)
	if err == nil && !asked {
		r.summary.NotExamined = append(r.summary.NotExamined, "Checksums were not compared.")
	}
	if err != nil || !asked {
		return err
	}

	// The planner does not know how many lines are new. A nested loop over a million would not end.
	if _, err := q.Exec(ctx, `SET LOCAL enable_nestloop = off`); err != nil {
		return fmt.Errorf("set planner: %w", err)
	}

	counted, err := collectOne[checksumCounts](ctx, q, nil, "count checksums", counts, datasetID)
	if err != nil {
		return err
	}
	r.summary.Checksums = &counted

	return r.addFiles(ctx, q, findingChecksum, first, count, datasetID)
}

// multihash returns the SHA-256 digest of the file in the form of STAC's file:checksum: the code
// and the length of the digest come before it (multiformats.io). Without a digest it is "".
func (m *ElevationDatasetFileMeta) multihash() string {
	if m.SHA256 == nil {
		return ""
	}
	const code = "1220"
	return code + *m.SHA256
}
