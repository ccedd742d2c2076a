package main

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"
)

// heightTexts is what a file says about the heights of its first band, as written. Absent texts are
// "". A height is sample · Scale + Offset, in UnitType. The names are those of GDAL's .aux.xml.
type heightTexts struct {
	UnitType string
	Scale    string
	Offset   string
}

// describeHeights sets Unit, and Scale with Offset, unless they are set: the first source that
// states one of them counts.
func (m *extent) describeHeights(t heightTexts) {
	unit := cleanText([]byte(t.UnitType), maxUnitText)
	m.Unit = cmp.Or(m.Unit, nonEmpty(unit))

	if m.Scale == nil && m.Offset == nil {
		m.Scale = m.finiteNumber(t.Scale)
		m.Offset = m.finiteNumber(t.Offset)
	}
}

// finiteNumber returns the number in a text, nil where there is none. It warns of any other text.
func (m *extent) finiteNumber(text string) *float64 {
	text = cleanText([]byte(text), maxNodataText)
	if text == "" {
		return nil
	}

	v, ok := parseNumber(text)
	if !ok {
		m.warnf("the scale or offset %q of its heights is not a finite number", text)
		return nil
	}
	return &v
}

// readMetadata reads what GDAL's tag of metadata says about heights. The tag is an XML document,
// whose items have a role, and a sample that counts bands from 0: GDAL, driver GTiff, "Metadata".
func (h *headerReader) readMetadata(d tiffDirectory, m *extent) heightTexts {
	text, err := h.text(d.field(tagGDALMetadata))
	m.warnOnError(err)

	var metadata struct {
		Items []struct {
			Sample string `xml:"sample,attr"`
			Role   string `xml:"role,attr"`
			Value  string `xml:",chardata"`
		} `xml:"Item"`
	}
	// Unmarshal sets what it reads before an error, such as the end of the part that is read.
	xml.Unmarshal(text, &metadata)

	byRole := map[string]string{}
	for _, item := range metadata.Items {
		if item.Sample == "0" {
			byRole[strings.ToLower(item.Role)] = item.Value
		}
	}

	return heightTexts{
		UnitType: byRole["unittype"],
		Scale:    byRole["scale"],
		Offset:   byRole["offset"],
	}
}

// compressionName returns the name of a value of the tag Compression, or the value itself if it has
// no name: TIFF 6.0, sections 3, 9 and 13; TIFF Technical Note 2; and libtiff.
func compressionName(v float64) *string {
	names := map[float64]string{
		1:     "none",
		5:     "LZW",
		7:     "JPEG",
		8:     "Deflate",
		32773: "PackBits",
		32946: "Deflate",
		34887: "LERC",
		50000: "ZSTD",
	}
	return new(cmp.Or(names[v], fmt.Sprint(v)))
}

// heightUnitOf returns the name of a unit of heights: m, foot or US survey foot for the spellings
// of these, else what the file states.
func heightUnitOf(stated string) string {
	switch strings.ToLower(stated) {
	case "m", "metre", "metres", "meter", "meters":
		return "m"
	case "ft", "foot", "feet", "international foot":
		return "foot"
	case "ftus", "us-ft", "us survey foot", "us survey feet":
		return "US survey foot"
	}
	return stated
}

// heightUnitIn returns the unit of heights in a vertical CRS with a code, such as EPSG:6360. It
// returns "" for any other text.
func heightUnitIn(verticalCRS string) string {
	code, _ := epsgCode(verticalCRS)
	crs := findRecord(recordCRS, code)
	isVertical := crs.text(1) == "V"
	if !isVertical {
		return ""
	}
	return findRecord(recordUnit, crs.code(2)).name()
}

// heightUnit returns the unit that the file states, or else that of its vertical CRS, which may be
// set for the dataset. It returns nil without both.
func (m *extent) heightUnit() *string {
	if m.Unit != nil || m.VerticalCRS == nil {
		return m.Unit
	}
	return nonEmpty(heightUnitIn(*m.VerticalCRS))
}

// metresOf returns the length of a unit of heights in metres. An unknown unit, or nil, counts as
// metre.
func metresOf(unit *string) float64 {
	if unit == nil {
		return 1
	}
	switch heightUnitOf(*unit) {
	case "foot":
		return 0.3048
	case "US survey foot":
		return 1200.0 / 3937
	case "British foot (1936)":
		return 0.3048007491
	}
	return 1
}
