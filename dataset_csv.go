package main

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// getTable answers GET /api/v1/datasets/{id}/files.csv with the files that match the filter, for
// spreadsheets.
func (c *catalogue) getTable(w http.ResponseWriter, r *http.Request) error {
	_, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}
	return writeStream(w, r, "text/csv; charset=utf-8", func(out io.Writer) error {
		table := csv.NewWriter(out)
		table.Write(strings.Fields(`id path size_bytes modified_at format status reason width height bands sample_type
			nodata pixel_is cog crs crs_name vertical_crs minx miny maxx maxy west south east north bbox_accuracy_m
			resolution_m source warnings`))
		err := c.eachFile(r, f, func(file datasetFile) error { return table.Write(csvRow(file)) })
		table.Flush()
		return err
	})
}

// csvRow returns the cells of a file.
func csvRow(f datasetFile) (cells []string) {
	corners := func(box []float64) []any {
		if len(box) != 4 {
			return []any{nil, nil, nil, nil}
		}
		return []any{box[0], box[1], box[2], box[3]}
	}
	for _, value := range slices.Concat([]any{f.ID, f.Path, f.SizeBytes, f.ModifiedAt, f.Format, f.Status, f.Reason,
		f.Width, f.Height, f.Bands, f.SampleType, f.Nodata, f.PixelIs, f.COG, f.CRS, f.CRSName, f.VerticalCRS},
		corners(f.NativeBBox), corners(f.BBox),
		[]any{f.BBoxAccuracyM, f.ResolutionM, f.Source, strings.Join(f.Warnings, "; ")}) {
		encoded, _ := json.Marshal(value) // text, numbers and times: there is no error
		text := strings.TrimPrefix(string(encoded), "null")
		if json.Unmarshal(encoded, &text) == nil { // a text; null leaves it empty
			text = harmlessCell(text)
		}
		cells = append(cells, text)
	}
	return cells
}

// formulas matches where a formula may begin: at the beginning of a text, or of a part of it where
// a spreadsheet divides a row by semicolons or lines. Where Japanese is set, Excel takes full-width
// characters for their narrow ones.
var formulas = regexp.MustCompile(`(^|[;\t\r\n])([\s\p{Z}]*[=+@＝＋－＠-])`)

// harmlessCell returns a text that a spreadsheet does not take for a formula: it puts an apostrophe
// before what begins like a formula, unless the text is a number.
func harmlessCell(text string) string {
	if _, err := strconv.ParseFloat(text, 64); err == nil && consistsOf(text, "0123456789.eE+-") {
		return text
	}
	text = formulas.ReplaceAllString(text, "$1'$2")
	if text != "" && strings.ContainsRune("\t\r\n", rune(text[0])) {
		return "'" + text
	}
	return text
}
