package main

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// wktNode is a KEYWORD["text",number,NODE[…],…] of WKT 1, as OGC 01-009, GDAL and Esri write it, or 2 (ISO 19162:2019).
type wktNode struct {
	keyword string   // in upper case
	values  []string // texts, numbers and names in order, without the quotes
	nodes   []*wktNode
}

// parseWKT reads well-known text, nil where it is none. As in ISO 19162 brackets may be round, and "" in a text is a quote.
func parseWKT(s string) *wktNode {
	const space = " \t\r\n"
	open := []*wktNode{{}} // the nodes that the place at hand is in
	for s != "" {
		top := open[len(open)-1]
		switch {
		case strings.ContainsAny(s[:1], space+","):
			s = s[1:]
		case s[0] == '"':
			first, rest, _ := strings.Cut(s[1:], `"`)
			text := []byte(first)
			for more := ""; strings.HasPrefix(rest, `"`); text = append(append(text, '"'), more...) {
				more, rest, _ = strings.Cut(rest[1:], `"`)
			}
			top.values, s = append(top.values, string(text)), rest
		case strings.ContainsAny(s[:1], "])"):
			if len(open) <= 2 {
				return open[0].child(top.keyword)
			}
			open, s = open[:len(open)-1], s[1:]
		default:
			end := strings.IndexAny(s, "[](),\""+space)
			if end <= 0 {
				return nil // no keyword, or no end
			}
			word, rest := s[:end], strings.TrimLeft(s[end:], space)
			if rest != "" && strings.ContainsAny(rest[:1], "[(") {
				n := &wktNode{keyword: strings.ToUpper(word)}
				top.nodes, open, rest = append(top.nodes, n), append(open, n), rest[1:]
			} else {
				top.values = append(top.values, word)
			}
			s = rest
		}
	}
	return nil
}

// child gives the first node below with one of these keywords, nil where there is none, also below nil.
func (n *wktNode) child(keywords ...string) *wktNode {
	if n != nil {
		for _, c := range n.nodes {
			if slices.Contains(keywords, c.keyword) {
				return c
			}
		}
	}
	return nil
}

// text gives a value, "" where there is none. It may be asked of nil.
func (n *wktNode) text(i int) string {
	if n == nil || i >= len(n.values) {
		return ""
	}
	return n.values[i]
}

// number gives a value that is a number, absent where it is none.
func (n *wktNode) number(i int, absent float64) float64 {
	if v, ok := parseNumber(n.text(i)); ok {
		return v
	}
	return absent
}

// epsg gives the EPSG code of a node, 0 where it has none: AUTHORITY["EPSG","4326"] or ID["EPSG",4326].
func (n *wktNode) epsg() int {
	id := n.child("AUTHORITY", "ID")
	if code, err := strconv.Atoi(id.text(1)); err == nil && strings.EqualFold(id.text(0), "EPSG") && isEPSG(code) {
		return code
	}
	return 0
}

// unit gives the size of a node's unit, or in WKT 2 of its axes: in radians, metres or 1; absent where it says none.
func (n *wktNode) unit(absent float64) float64 {
	u := cmp.Or(n.child("UNIT", "ANGLEUNIT", "LENGTHUNIT", "SCALEUNIT"), n.child("AXIS").child("UNIT", "ANGLEUNIT", "LENGTHUNIT"))
	return u.number(1, absent)
}

// wktName makes a name comparable: its letters and digits in lower case, and +, which tells CH1903+ from CH1903.
func wktName(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '+' {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}

// crsFromWKT gives the CRS that well-known text describes, as far as the same fields of GeoKeys go.
func crsFromWKT(s string) (p crsParameters, err error) {
	p = newCRSParameters()
	n := parseWKT(s)
	if n == nil {
		return p, problemf(fileStatusNoBBox, "the .prj beside it is no well-known text")
	}
	if source := n.child("SOURCECRS"); source != nil && len(source.nodes) > 0 { // of a BOUNDCRS
		n = source.nodes[0]
	}
	p.name = cleanText([]byte(n.text(0)), maxNameText)
	if n.keyword == "COMPD_CS" || n.keyword == "COMPOUNDCRS" {
		vertical := n.child("VERT_CS", "VERTCRS", "VERTICALCRS")
		p.vertical, p.verticalName = vertical.epsg(), cleanText([]byte(vertical.text(0)), maxNameText)
		n = n.child("PROJCS", "GEOGCS", "GEOCCS", "PROJCRS", "PROJECTEDCRS", "GEOGCRS", "GEOGRAPHICCRS", "GEODCRS", "GEODETICCRS")
	}
	if n == nil {
		return p, problemf(fileStatusNoBBox, "the .prj beside it has no horizontal CRS")
	}
	if i := strings.Index(s, ",VERTCS["); i >= 0 { // Esri's, behind the horizontal one
		vertical := parseWKT(s[i+1:])
		p.vertical, p.verticalName = vertical.epsg(), cleanText([]byte(vertical.text(0)), maxNameText)
	}
	p.present, p.code = true, n.epsg()
	switch n.keyword {
	case "PROJCS", "PROJCRS", "PROJECTEDCRS":
		p.kind = crsProjected
		p.setDatum(n.child("GEOGCS", "BASEGEOGCRS", "BASEGEODCRS"))
		p.setProjection(n)
	case "GEOGCS", "GEOGCRS", "GEOGRAPHICCRS", "GEODCRS", "GEODETICCRS", "GEOCCS":
		p.kind = crsGeocentric
		if n.keyword != "GEOCCS" && !strings.EqualFold(n.child("CS").text(0), "Cartesian") {
			p.kind = crsGeographic
			p.setDatum(n)
		}
	}
	return p, nil
}

// setDatum takes datum, ellipsoid, prime meridian and angular unit of a geographic CRS.
func (p *crsParameters) setDatum(n *wktNode) {
	datum := n.child("DATUM", "GEODETICDATUM", "TRF", "ENSEMBLE")
	if datum == nil {
		return
	}
	p.geographic = cmp.Or(n.epsg(), userDefined)
	// By its code, or by Esri's name D_WGS_1984, GDAL's WGS_1984, EPSG's World Geodetic System 1984.
	name := strings.TrimSuffix(wktName(strings.TrimPrefix(datum.text(0), "D_")), "ensemble")
	p.datum = cmp.Or(datum.epsg(), registryName("ND", name))
	spheroid := datum.child("SPHEROID", "ELLIPSOID")
	p.ellipsoid = ellipsoid{spheroid.number(1, math.NaN()) * spheroid.unit(1), spheroid.number(2, math.NaN())}
	if shift := datum.child("TOWGS84"); shift != nil && (len(shift.values) == 3 || len(shift.values) == 7) {
		for i := range shift.values {
			p.toWGS84 = append(p.toWGS84, shift.number(i, 0))
		}
	}
	radians := n.unit(math.Pi / 180)
	p.angularUnit = userUnit(radians * 180 / math.Pi)
	if meridian := n.child("PRIMEM", "PRIMEMERIDIAN"); meridian != nil {
		p.primeMeridian = meridian.number(1, math.Inf(1)) * meridian.unit(radians) * 180 / math.Pi
		if paris := 2.33722917; meridian.number(1, 0) == paris { // GDAL writes degrees beside grads
			p.primeMeridian = paris
		}
	}
}

// setProjection takes the projection of a projected CRS. In WKT 1 the parameters are beside PROJECTION, in the units of
// the CRS; in WKT 2 they are in CONVERSION, each with its unit.
func (p *crsParameters) setProjection(n *wktNode) {
	metres := n.unit(1)
	p.linearUnit = userUnit(metres)
	var axes []string
	for _, c := range n.nodes {
		if c.keyword == "AXIS" {
			axes = append(axes, strings.ToUpper(c.text(1)))
		}
	}
	conversion, degrees := n, p.angularUnit*math.Pi/180
	if c := n.child("CONVERSION"); c != nil {
		conversion, metres, degrees = c, 1, math.Pi/180
	}
	method := conversion.child("PROJECTION", "METHOD")
	p.method = cmp.Or(method.epsg(), registryName("NM", method.text(0)))
	if s := n.child("EXTENSION").text(1); strings.Contains(s, "+proj=merc") && strings.Contains(s, "@null") {
		p.method = 1024 // as GDAL writes the pseudo-Mercator in WKT 1
	}
	asMethod := p.method == 9808 || p.method == 9826 // its axes point west and south, or west
	polar := len(axes) > 1 && axes[0] == axes[1]     // as both do at a pole
	p.reversed = !asMethod && !polar && (slices.Contains(axes, "WEST") || slices.Contains(axes, "SOUTH"))
	for _, c := range conversion.nodes {
		code := registryName("NP", c.text(0))
		if c.keyword != "PARAMETER" || code == 0 {
			continue
		}
		v := c.number(1, math.NaN())
		switch code {
		case 8805, 1038: // scales
			v *= c.unit(1)
		case 8806, 8807, 1039: // lengths
			v *= c.unit(metres)
		default:
			v *= c.unit(degrees) * 180 / math.Pi
		}
		p.values[code] = v
	}
}
