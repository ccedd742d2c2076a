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

// wktName makes a name comparable: its letters and digits in lower case.
func wktName(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
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
		p.vertical = n.child("VERT_CS", "VERTCRS", "VERTICALCRS").epsg()
		n = n.child("PROJCS", "GEOGCS", "GEOCCS", "PROJCRS", "PROJECTEDCRS", "GEOGCRS", "GEOGRAPHICCRS", "GEODCRS", "GEODETICCRS")
	}
	if n == nil {
		return p, problemf(fileStatusNoBBox, "the .prj beside it has no horizontal CRS")
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
	spheroid := datum.child("SPHEROID", "ELLIPSOID")
	p.ellipsoid = ellipsoid{spheroid.number(1, math.NaN()) * spheroid.unit(1), spheroid.number(2, math.NaN())}
	// By the name of its datum: Esri's D_WGS_1984, GDAL's WGS_1984, EPSG's World Geodetic System 1984.
	p.geographic = userDefined
	switch strings.TrimSuffix(wktName(strings.TrimPrefix(datum.text(0), "D_")), "ensemble") {
	case "wgs1984", "worldgeodeticsystem1984":
		p.geographic = 4326
	case "etrs1989", "europeanterrestrialreferencesystem1989":
		p.geographic = 4258
	case "northamerican1983", "northamericandatum1983":
		p.geographic = 4269
	}
	p.geographic = cmp.Or(n.epsg(), p.geographic)
	radians := n.unit(math.Pi / 180)
	p.angularUnit = userUnit(radians * 180 / math.Pi)
	if meridian := n.child("PRIMEM", "PRIMEMERIDIAN"); meridian != nil {
		p.primeMeridian = meridian.number(1, math.NaN()) * meridian.unit(radians) * 180 / math.Pi
		if paris := 2.33722917; meridian.number(1, 0) == paris { // GDAL writes degrees beside grads
			p.primeMeridian = paris
		}
	}
}

// setProjection takes the projection of a projected CRS, with the parameters of a Transverse Mercator. In WKT 1
// they are beside PROJECTION, in the units of the CRS; in WKT 2 they are in CONVERSION, each with its unit. The
// number of the method is that of GeoKey 3075, else its EPSG code, by what GDAL, Esri or EPSG call it.
func (p *crsParameters) setProjection(n *wktNode) {
	metres := n.unit(1)
	p.linearUnit = userUnit(metres)
	conversion, degrees := n, p.angularUnit*math.Pi/180
	if c := n.child("CONVERSION"); c != nil {
		conversion, metres, degrees = c, 1, math.Pi/180
	}
	switch wktName(conversion.child("PROJECTION", "METHOD").text(0)) {
	case "transversemercator", "gausskruger":
		p.method = 1
	case "lambertconformalconic", "lambertconformalconic2sp", "lambertconicconformal2sp":
		p.method = 8
	case "popularvisualisationpseudomercator", "mercatorauxiliarysphere":
		p.method = 1024
	}
	for _, c := range conversion.nodes {
		v := c.number(1, math.NaN())
		angle, length := v*c.unit(degrees)*180/math.Pi, v*c.unit(metres)
		switch name := wktName(c.text(0)); {
		case c.keyword != "PARAMETER":
		case strings.HasPrefix(name, "falseeasting"):
			p.falseEast = length
		case strings.HasPrefix(name, "falsenorthing"):
			p.falseNorth = length
		case strings.HasPrefix(name, "scalefactor"):
			p.scale = v * c.unit(1)
		case strings.HasPrefix(name, "latitude"):
			p.latitude = angle
		case strings.HasPrefix(name, "longitude"), name == "centralmeridian":
			p.longitude = angle
		}
	}
}
