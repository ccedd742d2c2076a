package main

import (
	"encoding/csv"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// getTable answers GET /api/v1/datasets/{id}/files.csv with the files that match the filter, for
// spreadsheets.
func (c *catalogue) getTable(w http.ResponseWriter, r *http.Request) error {
	d, f, err := c.pathFilter(r)
	if err != nil {
		return err
	}

	// fileProperties and csvRow name them.
	const columns = `id path size_bytes modified_at
		format status reason
		width height bands sample_type nodata unit scale offset
		compression data_bytes pixel_is cog
		crs crs_name vertical_crs
		minx miny maxx maxy
		west south east north bbox_accuracy_m
		resolution_m source warnings
		license surveyed_from surveyed_until
		md5 sha256
		height_min height_max height_mean height_deviation
		height_samples height_voids height_mode height_mode_samples height_spikes
		heights_reason`

	names := strings.Fields(columns)

	return writeStream(w, r, "text/csv; charset=utf-8", func(out io.Writer) error {
		table := csv.NewWriter(out)
		table.Write(names)

		writeRow := func(file datasetFile) error {
			return table.Write(csvRow(d, file, names))
		}
		err := c.eachFile(r, f, writeRow)
		table.Flush()
		return err
	})
}

// csvRow returns the cells of a file of a dataset, in columns of these names.
func csvRow(d dataset, f datasetFile, names []string) (cells []string) {
	values := fileProperties(d, f)
	addBox := func(corners string, box []float64) {
		for i, name := range strings.Fields(corners)[:len(box)] {
			values[name] = &box[i]
		}
	}
	addBox("minx miny maxx maxy", f.NativeBBox)
	addBox("west south east north", f.BBox)
	f.Heights.addTo(values)

	for _, name := range names {
		cells = append(cells, harmlessCell(csvCell(values[name])))
	}
	return cells
}

// csvCell returns a value as text, without an exponent. A nil pointer is empty.
func csvCell(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case fileTime:
		return v.Format(time.RFC3339Nano)
	case *string:
		return valueOr(v, "")
	case *float64:
		if v != nil {
			return strconv.FormatFloat(*v, 'f', -1, 64)
		}
	case *int64:
		if v != nil {
			return strconv.FormatInt(*v, 10)
		}
	case *bool:
		if v != nil {
			return strconv.FormatBool(*v)
		}
	}
	return ""
}

// formulas matches the beginning of a formula: at the beginning of a text, or behind a semicolon, a
// tab or a line break, at which a spreadsheet may divide a row. A Japanese Excel takes full-width
// characters for the narrow ones.
var formulas = regexp.MustCompile(`(^|[;\t\r\n])([\s\p{Z}]*[=+@＝＋－＠-])`)

// harmlessCell returns a text that a spreadsheet does not take for a formula. It puts an apostrophe
// before a part that begins like a formula, unless the text is a number.
func harmlessCell(text string) string {
	_, err := strconv.ParseFloat(text, 64)
	isNumber := err == nil && consistsOf(text, "0123456789.eE+-")
	if isNumber {
		return text
	}

	text = formulas.ReplaceAllString(text, "$1'$2")
	beginsBlank := text != "" && strings.ContainsRune("\t\r\n", rune(text[0]))
	if beginsBlank {
		return "'" + text
	}
	return text
}
