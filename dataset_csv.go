package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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
			nodata unit scale offset compression data_bytes pixel_is cog crs crs_name vertical_crs minx miny maxx maxy
			west south east north bbox_accuracy_m resolution_m source warnings`))
		err := c.eachFile(r, f, func(file datasetFile) error { return table.Write(csvRow(file)) })
		table.Flush()
		return err
	})
}

// csvRow returns the cells of a file.
func csvRow(f datasetFile) []string {
	corners := func(box []float64) []string {
		cells := make([]string, 4) // empty without a box
		for i := range box {
			cells[i] = csvCell(&box[i])
		}
		return cells
	}
	cells := slices.Concat([]string{
		csvCell(&f.ID),
		f.Path,
		csvCell(&f.SizeBytes),
		f.ModifiedAt.Format(time.RFC3339Nano),
		csvCell(f.Format),
		f.Status,
		csvCell(f.Reason),
		csvCell(f.Width),
		csvCell(f.Height),
		csvCell(f.Bands),
		csvCell(f.SampleType),
		csvCell(f.Nodata),
		csvCell(f.Unit),
		csvCell(f.Scale),
		csvCell(f.Offset),
		csvCell(f.Compression),
		csvCell(f.DataBytes),
		csvCell(f.PixelIs),
		csvCell(f.COG),
		csvCell(f.CRS),
		csvCell(f.CRSName),
		csvCell(f.VerticalCRS),
	}, corners(f.NativeBBox), corners(f.BBox), []string{
		csvCell(f.BBoxAccuracyM),
		csvCell(f.ResolutionM),
		csvCell(f.Source),
		strings.Join(f.Warnings, "; "),
	})
	for i := range cells {
		cells[i] = harmlessCell(cells[i])
	}
	return cells
}

// csvCell returns a value as text, without an exponent. Nil is empty.
func csvCell[T any](value *T) string {
	if value == nil {
		return ""
	}
	if number, isFloat := any(*value).(float64); isFloat {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(*value)
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
