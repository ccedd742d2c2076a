package main

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// vrtGrid is a set of rasters that one VRT can hold. They have one CRS and one pixel size, and
// their rows go south and columns east. Its extent, bands, types and nodata are those of all its
// files together.
type vrtGrid struct {
	CRS        string // the code or, without one, the name in the file
	Definition string // of a CRS without a code, as a row has it; empty: unknown
	HasCode    bool

	DX float64 // the width of a pixel in the CRS, rounded, because files of one grid may differ
	DY float64 // the height
	A  float64 // the width, not rounded
	E  float64 // the height, not rounded; negative

	West  float64 // in the CRS
	South float64
	East  float64
	North float64

	Files  int64
	Bands  int64
	Types  []string // of the samples
	Nodata *string  // that of the first file that has one
	Mixed  bool     // some files have a nodata value, and others have none
}

// resolution returns the pixel size as the parameter of that name has it.
func (g vrtGrid) resolution() string {
	x := strconv.FormatFloat(g.DX, 'g', -1, 32)
	y := strconv.FormatFloat(g.DY, 'g', -1, 32)
	if x == y {
		return x
	}
	return x + "," + y
}

// hasResolution reports whether a text is the grid's pixel size, however many digits it has: one
// number, or the width and the height.
func (g vrtGrid) hasResolution(text string) bool {
	sizes := readNumbers(text)
	if len(sizes) == 0 || len(sizes) > 2 {
		return false
	}

	// DX and DY have the precision of a float32.
	dx := float32(sizes[0])
	dy := float32(sizes[len(sizes)-1])
	return dx == float32(g.DX) && dy == float32(g.DY)
}

// findGrid returns the grid of a dataset in a CRS and with a resolution; both may be nil. If not
// exactly one matches, the error is a 422 that lists the dataset's grids.
func findGrid(
	ctx context.Context,
	q querier,
	datasetID int64,
	crs *string,
	resolution *string,
) (vrtGrid, error) {
	const query = `
		SELECT coalesce(crs, crs_name, '') AS crs,
			coalesce(crs_definition, '') AS definition,
			bool_and(crs IS NOT NULL) AS has_code,
			transform[1]::real::float8 AS dx,
			-transform[5]::real::float8 AS dy,
			min(transform[1]) AS a,
			max(transform[5]) AS e,
			min(native_bbox[1]) AS west,
			min(native_bbox[2]) AS south,
			max(native_bbox[3]) AS east,
			max(native_bbox[4]) AS north,
			count(*) AS files,
			min(coalesce(bands, 1)) AS bands,
			array_agg(DISTINCT coalesce(sample_type, '')) AS types,
			(array_agg(nodata ORDER BY path) FILTER (WHERE nodata IS NOT NULL))[1] AS nodata,
			bool_or(nodata IS NULL) AS mixed
		FROM elevation_dataset_file_meta
		WHERE dataset_id = $1
			AND status = 'ok'
			AND transform[1] BETWEEN 1e-30 AND 1e30
			AND -transform[5] BETWEEN 1e-30 AND 1e30
			AND transform[2] = 0
			AND transform[4] = 0
		GROUP BY coalesce(crs, crs_name, ''),
			coalesce(crs_definition, ''),
			transform[1]::real,
			transform[5]::real
		ORDER BY files DESC, crs, definition, dx, dy`

	grids, err := collect[vrtGrid](ctx, q, "find grids", query, datasetID)
	if err != nil {
		return vrtGrid{}, err
	}

	var list []string
	var matching []vrtGrid
	for _, g := range grids {
		files := plural(g.Files, "file")
		list = append(list, fmt.Sprintf("crs=%s resolution=%s (%s)", g.CRS, g.resolution(), files))

		isCRS := crs == nil || strings.EqualFold(*crs, g.CRS)
		isResolution := resolution == nil || g.hasResolution(*resolution)
		if isCRS && isResolution {
			matching = append(matching, g)
		}
	}
	if len(matching) == 1 {
		return matching[0], nil
	}

	detail := "the dataset has no raster whose rows go south and columns east"
	if len(grids) > 0 {
		const most = 50
		detail = "choose one of the dataset's grids by crs and resolution: " +
			strings.Join(list[:min(most, len(list))], "; ")
	}
	return vrtGrid{}, invalid{{"crs", fieldUnknown, detail}}.err()
}

// files returns the filter for the files of the grid. It leaves out files that have changed since
// findGrid, and do not lie within the grid any more.
func (g vrtGrid) files(datasetID int64) fileFilter {
	return fileFilter{
		datasetID: &datasetID,
		status:    new(fileStatusOK),
		values: pgx.NamedArgs{
			"grid_crs":        g.CRS,
			"grid_definition": g.Definition,
			"grid_dx":         g.DX,
			"grid_dy":         g.DY,
			"grid_west":       g.West,
			"grid_south":      g.South,
			"grid_east":       g.East,
			"grid_north":      g.North,
		},
	}
}

// vrtType returns GDAL's name of a type, or Float64 for several types. Float64 drops imaginary
// parts and rounds 64-bit integers.
func vrtType(types ...string) string {
	if len(types) > 1 {
		return "Float64"
	}

	switch types[0] {
	case "":
		return "Float32"
	case "uint8":
		return "Byte"
	case "complex64":
		return "CFloat32"
	case "complex128":
		return "CFloat64"
	}

	names := strings.NewReplacer(
		"complex_int", "CInt",
		"uint", "UInt",
		"int", "Int",
		"float", "Float",
	)
	return names.Replace(types[0])
}

// vrtNodata returns a nodata value as GDAL writes it. ok is false without a number.
func vrtNodata(text *string) (value string, ok bool) {
	v, err := strconv.ParseFloat(valueOr(text, ""), 64)
	return fmt.Sprintf("%.17g", v), err == nil
}

// vrtText returns text as it stands in XML.
func vrtText(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text)) // never fails
	return b.String()
}

// write writes the grid as a GDAL VRT. GDAL opens a file of this mosaic only to read its pixels.
// each calls emit for each file. source returns the name of a file; if relative is 1, the name is
// relative to the VRT. Later files lie over earlier ones.
func (g vrtGrid) write(
	out io.Writer,
	relative int,
	source func(datasetFile) string,
	each func(emit func(datasetFile) error) error,
) error {
	const xmlSource = `    <%[1]s>
      <SourceFilename relativeToVRT="%[2]d">%[3]s</SourceFilename>
      <SourceBand>%[4]d</SourceBand>
      <SourceProperties RasterXSize="%[5]d" RasterYSize="%[6]d" DataType="%[7]s" BlockXSize="%[8]d" BlockYSize="%[9]d"/>
      <SrcRect xOff="0" yOff="0" xSize="%[5]d" ySize="%[6]d"/>
      <DstRect xOff="%.17[10]g" yOff="%.17[11]g" xSize="%[5]d" ySize="%[6]d"/>%[12]s
    </%[1]s>
`
	fmt.Fprintf(
		out,
		"<VRTDataset rasterXSize=\"%.0f\" rasterYSize=\"%.0f\">\n",
		(g.East-g.West)/g.A,
		(g.North-g.South)/-g.E,
	)
	if g.HasCode {
		fmt.Fprintf(out, "  <SRS>%s</SRS>\n", g.CRS)
	}
	fmt.Fprintf(
		out,
		"  <GeoTransform>%.17g, %.17g, 0, %.17g, 0, %.17g</GeoTransform>\n",
		g.West,
		g.A,
		g.North,
		g.E,
	)

	for band := range g.Bands {
		fmt.Fprintf(out, "  <VRTRasterBand dataType=\"%s\" band=\"%d\">\n", vrtType(g.Types...), band+1)
		if value, ok := vrtNodata(g.Nodata); ok {
			isSigned := !strings.HasPrefix(g.Types[0], "uint")
			if g.Mixed && value == "0" && isSigned {
				value = "-32768" // because 0 is a height in files without nodata
			}
			fmt.Fprintf(out, "    <NoDataValue>%s</NoDataValue>\n", value)
		}

		writeSource := func(f datasetFile) error {
			kind := "SimpleSource"
			end := ""
			if value, ok := vrtNodata(f.Nodata); ok {
				kind = "ComplexSource"
				end = "<NODATA>" + value + "</NODATA>"
			}

			w := *f.Width
			h := *f.Height
			_, err := fmt.Fprintf(
				out, xmlSource,
				kind,
				relative,
				vrtText(source(f)),
				band+1,
				w, h,
				vrtType(valueOr(f.SampleType, "")),
				min(w, 256), min(h, 256),
				(f.NativeBBox[0]-g.West)/g.A,
				(g.North-f.NativeBBox[3])/-g.E,
				end,
			)
			return err
		}
		if err := each(writeSource); err != nil {
			return err
		}
		fmt.Fprint(out, "  </VRTRasterBand>\n")
	}
	_, err := fmt.Fprint(out, "</VRTDataset>\n")
	return err
}

// getMosaic answers GET /api/v1/datasets/{id}/mosaic.vrt. With source=url its sources are the URLs
// of the files; with path they are the paths below the dataset, for a VRT that lies there.
func (c *catalogue) getMosaic(w http.ResponseWriter, r *http.Request, d dataset) error {
	query := r.URL.Query()
	relative := 0
	source := cmp.Or(query.Get("source"), "url")
	if source == "path" {
		relative = 1
	} else if source != "url" {
		return invalid{{"source", fieldUnknown, "must be url or path"}}.err()
	}

	crs := optional(query, "crs")
	resolution := optional(query, "resolution")
	g, err := findGrid(r.Context(), c.core.db, d.ID, crs, resolution)
	if err != nil {
		return err
	}

	base := c.core.baseURL(r)
	nameOf := func(f datasetFile) string {
		if relative == 0 {
			return "/vsicurl/" + base + dataPath(d.ID, f.Path)
		}
		raw, _ := decodePath(f.Path) // as the walk wrote it
		return raw
	}

	each := func(emit func(datasetFile) error) error {
		return c.eachFile(r, g.files(d.ID), emit)
	}

	return writeRanged(w, r, "application/xml", func(out io.Writer) error {
		return g.write(out, relative, nameOf, each)
	})
}
