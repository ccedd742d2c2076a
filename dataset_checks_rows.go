package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path"

	"github.com/jackc/pgx/v5"
)

// examine reads the rows of the dataset and runs the checks.
func (d dataset) examine(ctx context.Context, q querier) (*fileSet, error) {
	const countRows = `SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = $1`
	n, err := scalar[int64](ctx, q, "count files", countRows, d.ID)
	if err != nil {
		return nil, err
	}

	expected, err := readExpectation(ctx, q, d.ID)
	if err != nil {
		return nil, err
	}

	s := newFileSet(n, expected)
	if err := s.readRows(ctx, q, d.ID); err != nil {
		return nil, err
	}

	if err := s.check(ctx); err != nil {
		return nil, err
	}

	return s, s.nameMissing(ctx, q, d.ID)
}

// rowsToCheck is SQL for the rows of dataset $1, in the order of paths. See readRows.
const rowsToCheck = `
	SELECT
		id,
		path,
		size_bytes,
		modified_ns,
		status,
		coalesce(format, ''),
		coalesce(crs, crs_name, ''),
		coalesce(crs_definition, ''),
		coalesce(vertical_crs, '` + notStated + `'),
		coalesce(sample_type, '` + notStated + `'),
		coalesce(nodata, '` + notStated + `'),
		coalesce(unit, ''),
		coalesce(scale, 1) || CASE WHEN "offset" <> 0 THEN ', offset ' || "offset" ELSE '' END,
		coalesce(bands::text, ''),
		native_bbox IS NOT NULL AND transform IS NOT NULL,
		coalesce(transform[1], 0),
		coalesce(transform[2], 0),
		coalesce(transform[4], 0),
		coalesce(transform[5], 0),
		coalesce(native_bbox[1], 0),
		coalesce(native_bbox[2], 0),
		coalesce(native_bbox[3], 0),
		coalesce(native_bbox[4], 0),
		heights #- '{statistics,grid}',
		warnings <> '{}' AND EXISTS (
			SELECT FROM unnest(warnings) warning WHERE warning LIKE '` + aboutName + `%'
		),
		warnings <> '{}' AND EXISTS (
			SELECT FROM unnest(warnings) warning WHERE warning LIKE '` + aboutArea + `%'
		),
		warnings <> '{}' AND EXISTS (
			SELECT
			FROM unnest(warnings) warning
			WHERE warning NOT LIKE '` + aboutName + `%' AND warning NOT LIKE '` + aboutArea + `%'
		)
	FROM elevation_dataset_file_meta
	WHERE dataset_id = $1
	ORDER BY path`

// readRows adds a record of each row of a dataset, in the order of paths.
func (s *fileSet) readRows(ctx context.Context, q querier, datasetID int64) error {
	var f fileRow
	columns := []any{
		&f.id,
		&f.path,
		&f.size,
		&f.modified,
		&f.status,
		&f.format,
		&f.system,
		&f.definition,
		&f.vertical,
		&f.sampleType,
		&f.nodata,
		&f.heightUnit,
		&f.scale,
		&f.bands,
		&f.hasBox,
		&f.transform[0],
		&f.transform[1],
		&f.transform[3],
		&f.transform[4],
		&f.box[0],
		&f.box[1],
		&f.box[2],
		&f.box[3],
		&f.found,
		&f.isNameWrong,
		&f.isOutside,
		&f.isWarned,
	}

	rows, _ := q.Query(ctx, rowsToCheck, datasetID) // its error comes back from ForEachRow
	_, err := pgx.ForEachRow(rows, columns, func() error {
		s.add(f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read files: %w", err)
	}

	return nil
}

// compareCopies compares the contents of the files that checkSamePlace takes for duplicates. Those
// with other bytes are overlaps, and two names of one file are no finding. It reads up to
// maxCompared bytes, and nothing if there are more than maxFlaws duplicates. The argument files
// compares files of the dataset.
func (s *fileSet) compareCopies(ctx context.Context, q querier, files comparison) error {
	const maxCompared = 1 << 30
	list := s.flaws["duplicate"]
	if list == nil || list.total > maxFlaws {
		return nil
	}

	var wanted []int32
	for _, f := range list.first {
		wanted = append(wanted, f.file, f.other)
	}

	rows, err := s.rowsOf(ctx, q, "duplicate", wanted)
	if err != nil {
		return err
	}

	// The flaws that stay are added again.
	delete(s.flaws, "duplicate")
	left := int64(maxCompared)
	for _, f := range list.first {
		file := s.files[f.file]
		other := s.files[f.other]

		result := isNotCompared
		detail := ""
		if size := 2 * file.size; size <= left {
			left -= size
			result, detail = files.compareBytes(ctx, comparedCell{
				Here:      rows[file.id].Path,
				There:     rows[other.id].Path,
				SizeBytes: file.size,
			})
		}
		if err := ctx.Err(); err != nil {
			return err
		}

		if detail == sameFile {
			continue
		}

		code := "duplicate"
		switch result {
		case isSameContent:
			f.detail = "the same content as "
		case isOtherContent:
			code = "overlap"
			f.detail = "the same extent and size in bytes, but other content: "
		}

		s.found(code, f)
	}

	return nil
}

// flawRow is what a finding shows of a row: the path and, if the flaw has no detail, the text. That
// is the reason, and the warnings that belong to the code.
type flawRow struct {
	ID   int64
	Path string
	Text string
}

// rowsOf reads the rows of files for findings with that code, by id. noFile is no file.
func (s *fileSet) rowsOf(ctx context.Context, q querier, code string, files []int32) (map[int64]flawRow, error) {
	const query = `
		SELECT
			id,
			path,
			concat_ws(
				'; ',
				CASE WHEN status <> 'ok' AND $2 <> 'name' THEN coalesce(reason, status) END,
				(
					SELECT string_agg(warning, '; ' ORDER BY n)
					FROM unnest(warnings) WITH ORDINALITY AS w (warning, n)
					WHERE (warning LIKE '` + aboutName + `%') = ($2 = 'name')
						AND (warning LIKE '` + aboutArea + `%') = ($2 = 'outside_area')
				)
			) AS text
		FROM elevation_dataset_file_meta
		WHERE id = ANY($1::bigint[])`

	var ids []int64
	for _, file := range files {
		if file != noFile {
			ids = append(ids, s.files[file].id)
		}
	}

	rows, err := collect[flawRow](ctx, q, "read the files of findings", query, ids, code)
	byID := map[int64]flawRow{}
	for _, row := range rows {
		byID[row.ID] = row
	}

	return byID, err
}

// describe returns a finding with its text. rows has the rows of its files.
func (s *fileSet) describe(code string, f flaw, rows map[int64]flawRow) findingRow {
	found := findingRow{
		code:   code,
		path:   ".",
		folder: ".",
		detail: f.detail,
	}
	if f.file == noFile {
		return found
	}

	row := rows[s.files[f.file].id]
	found.path = row.Path
	found.folder = path.Dir(row.Path)
	if code == findingMixed {
		found.path = found.folder
	}

	found.detail = cmp.Or(f.detail, row.Text)
	if f.other != noFile {
		found.detail += rows[s.files[f.other].id].Path
	}

	return found
}

// nameMissing gives the first missing tiles the paths that the names of their neighbours suggest,
// and says what is wrong with the file that has such a path.
func (s *fileSet) nameMissing(ctx context.Context, q querier, datasetID int64) error {
	const present = `
		SELECT
			path,
			status,
			coalesce(crs, crs_name, '') AS crs,
			coalesce(abs(transform[5]), 0) AS pixel
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1 AND path = ANY($2::text[])`

	wanted := s.neighboursOfMissing()
	var neighbours []int32
	for _, tile := range wanted {
		neighbours = append(neighbours, tile.neighbour.file)
	}

	rows, err := s.rowsOf(ctx, q, findingMissing, neighbours)
	if err != nil {
		return err
	}

	// The names that the missing tiles should have.
	var expected []string
	for i, tile := range wanted {
		r := s.files[tile.neighbour.file]
		g := s.grids[tile.Grid]
		east := float64(tile.Column-tile.neighbour.column) * g.East
		north := float64(tile.Row-tile.neighbour.row) * g.North
		wanted[i].Expected = s.rules[r.pattern].rename(rows[r.id].Path, east, north)
		expected = append(expected, wanted[i].Expected)
	}

	// The files that have these names.
	files, err := collect[presentFile](ctx, q, "look for missing tiles by name", present, datasetID, expected)
	there := map[string]presentFile{}
	for _, f := range files {
		there[f.Path] = f
	}

	for _, tile := range wanted {
		g := &s.grids[tile.Grid]
		if f, found := there[tile.Expected]; found {
			tile.There = f.fault(g)
		}
		g.setNamed(tile.missingTile)
	}

	return err
}

// presentFile is a file that has the path of a missing tile.
type presentFile struct {
	Path   string
	Status string
	CRS    string
	Pixel  float64 // its height
}

// fault says why the file does not fill its cell.
func (f presentFile) fault(g *tileGrid) string {
	switch {
	case f.Status == fileStatusCorrupt, f.Status == fileStatusUnreadable:
		return "it is " + f.Status
	case f.Status == fileStatusUnsupported:
		return "it is not of a kind that is read"
	case f.Status == fileStatusNoGeoref:
		return "it has no georeference"
	case f.Status != fileStatusOK:
		return "its CRS is missing, or does not fit its coordinates"
	case f.CRS != g.CRS:
		return "it is in " + titleOfCode(f.CRS)
	case math.Abs(f.Pixel-g.DY) > g.DY*1e-5:
		return "its pixels are of " + posting(f.Pixel, f.Pixel) + unitOfCRS(g.CRS)
	}

	return "it lies elsewhere"
}
