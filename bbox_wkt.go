package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// wktNode is a KEYWORD["text",number,NODE[…],…] of WKT 1 (OGC 01-009, GDAL's or Esri's) or WKT 2
// (ISO 19162:2019). Its methods accept nil.
type wktNode struct {
	keyword string   // in upper case
	values  []string // texts, numbers and names in their order, without quotes
	nodes   []*wktNode
}

// parseWKT returns the first node of well-known text, nil if invalid. Brackets may be round, and ""
// in a text is a quote: ISO 19162.
func parseWKT(s string) *wktNode {
	const space = " \t\r\n"

	open := []*wktNode{{}} // the nodes around the current position
	for s != "" {
		top := open[len(open)-1]
		switch {
		case strings.ContainsAny(s[:1], space+","):
			s = s[1:]

		case s[0] == '"':
			first, rest, _ := strings.Cut(s[1:], `"`)
			text := []byte(first)
			for strings.HasPrefix(rest, `"`) { // a quote in the text
				more, after, _ := strings.Cut(rest[1:], `"`)
				text = append(text, '"')
				text = append(text, more...)
				rest = after
			}
			top.values = append(top.values, string(text))
			s = rest

		case strings.ContainsAny(s[:1], "])"):
			if len(open) <= 2 { // the end of the first node
				return open[0].child(top.keyword)
			}
			open = open[:len(open)-1]
			s = s[1:]

		default:
			end := strings.IndexAny(s, "[](),\""+space)
			if end <= 0 {
				return nil // no keyword or no end
			}
			word := s[:end]
			rest := strings.TrimLeft(s[end:], space)

			beginsNode := rest != "" && strings.ContainsAny(rest[:1], "[(")
			if beginsNode {
				n := &wktNode{keyword: strings.ToUpper(word)}
				top.nodes = append(top.nodes, n)
				open = append(open, n)
				rest = rest[1:]
			} else {
				top.values = append(top.values, word)
			}
			s = rest
		}
	}

	return nil
}

// child returns the first child with one of these keywords, nil where there is none.
func (n *wktNode) child(keywords ...string) *wktNode {
	if n == nil {
		return nil
	}

	for _, c := range n.nodes {
		if slices.Contains(keywords, c.keyword) {
			return c
		}
	}
	return nil
}

// text returns a value, "" where there is none.
func (n *wktNode) text(i int) string {
	if n == nil || i >= len(n.values) {
		return ""
	}
	return n.values[i]
}

// number returns a value that is a number, absent where it is not.
func (n *wktNode) number(i int, absent float64) float64 {
	v, ok := parseNumber(n.text(i))
	if ok {
		return v
	}
	return absent
}

// epsg returns a node's EPSG code, in AUTHORITY["EPSG","4326"] or ID["EPSG",4326]; 0 without one.
func (n *wktNode) epsg() int {
	id := n.child("AUTHORITY", "ID")
	if !strings.EqualFold(id.text(0), "EPSG") {
		return 0
	}

	code, err := strconv.Atoi(id.text(1))
	if err != nil || !isEPSG(code) {
		return 0
	}
	return code
}

// unit returns the size of a node's unit or its axis's, in radians, metres or 1; otherwise absent.
func (n *wktNode) unit(absent float64) float64 {
	u := n.child(
		"UNIT",
		"ANGLEUNIT",
		"LENGTHUNIT",
		"SCALEUNIT")
	if u == nil {
		axis := n.child("AXIS")
		u = axis.child(
			"UNIT",
			"ANGLEUNIT",
			"LENGTHUNIT")
	}
	return u.number(1, absent)
}

// crsFromWKT returns the CRS that well-known text describes. The error has the status no_bbox.
func crsFromWKT(s string) (p crsParameters, err error) {
	p = newCRSParameters()
	p.wkt = s

	n := parseWKT(s)
	if n == nil {
		return p, noBBoxf("it is not valid well-known text")
	}

	// The CRS in a BOUNDCRS.
	source := n.child("SOURCECRS")
	if source != nil && len(source.nodes) > 0 {
		n = source.nodes[0]
	}

	// The horizontal part of a compound CRS.
	p.name = cleanText([]byte(n.text(0)), maxNameText)
	if n.keyword == "COMPD_CS" || n.keyword == "COMPOUNDCRS" {
		p.setVerticalNode(n.child(
			"VERT_CS",
			"VERTCRS",
			"VERTICALCRS"))
		n = n.child(
			"PROJCS",
			"PROJCRS",
			"PROJECTEDCRS",
			"GEOGCS",
			"GEOGCRS",
			"GEOGRAPHICCRS",
			"GEODCRS",
			"GEODETICCRS",
			"GEOCCS")
	}
	if n == nil {
		return p, noBBoxf("it has no horizontal part")
	}

	// Esri writes the vertical CRS after the horizontal one.
	if i := strings.Index(s, ",VERTCS["); i >= 0 {
		p.setVerticalNode(parseWKT(s[i+1:]))
	}

	p.present = true
	p.code = n.epsg()

	switch n.keyword {
	case "PROJCS",
		"PROJCRS",
		"PROJECTEDCRS":
		p.kind = modelTypeProjected
		p.setDatum(n.child(
			"GEOGCS",
			"BASEGEOGCRS",
			"BASEGEODCRS"))
		p.setProjection(n)
	case "GEOGCS",
		"GEOGCRS",
		"GEOGRAPHICCRS",
		"GEODCRS",
		"GEODETICCRS",
		"GEOCCS":
		p.kind = modelTypeGeocentric
		isCartesian := strings.EqualFold(n.child("CS").text(0), "Cartesian")
		if n.keyword != "GEOCCS" && !isCartesian {
			p.kind = modelTypeGeographic
			p.setDatum(n)
		}
	}
	return p, nil
}

// setVerticalNode sets the vertical CRS.
func (p *crsParameters) setVerticalNode(n *wktNode) {
	p.vertical = n.epsg()
	p.verticalName = cleanText([]byte(n.text(0)), maxNameText)
}

// setDatum sets datum, ellipsoid, prime meridian, shift and angular unit of a geographic CRS.
func (p *crsParameters) setDatum(n *wktNode) {
	datum := n.child(
		"DATUM",
		"GEODETICDATUM",
		"TRF",
		"ENSEMBLE")
	if datum == nil {
		return
	}

	p.geographic = n.epsg()
	if p.geographic == 0 { // it has no code
		p.geographic = userDefined
	}

	// The name is Esri's D_WGS_1984, GDAL's WGS_1984 or EPSG's World Geodetic System 1984.
	p.datum = datum.epsg()
	if p.datum == 0 {
		name := plainName(strings.TrimPrefix(datum.text(0), "D_"))
		name = strings.TrimSuffix(name, "ensemble")
		p.datum = codeOfName(indexOfDatums, name)
	}

	spheroid := datum.child("SPHEROID", "ELLIPSOID")
	p.ellipsoid = ellipsoid{
		a:                 spheroid.number(1, math.NaN()) * spheroid.unit(1),
		inverseFlattening: spheroid.number(2, math.NaN()),
	}

	if shift := datum.child("TOWGS84"); shift != nil {
		count := len(shift.values)
		if count == 3 || count == 7 {
			for i := range shift.values {
				p.toWGS84 = append(p.toWGS84, shift.number(i, math.NaN()))
			}
		}
	}

	radians := n.unit(math.Pi / 180)
	p.angularUnit = userUnit(radians * 180 / math.Pi)

	meridian := n.child("PRIMEM", "PRIMEMERIDIAN")
	if meridian == nil {
		return
	}
	longitude := meridian.number(1, math.Inf(1))
	p.primeMeridian = longitude * meridian.unit(radians) * 180 / math.Pi

	// GDAL writes degrees in a CRS of grads.
	const paris = 2.33722917
	if longitude == paris {
		p.primeMeridian = paris
	}
}

// setProjection sets the projection of a projected CRS. In WKT 1 the parameters stand beside
// PROJECTION, in the units of the CRS; in WKT 2 they stand in CONVERSION, each with its own unit.
func (p *crsParameters) setProjection(n *wktNode) {
	metres := n.unit(1)
	p.linearUnit = userUnit(metres)

	// Where the parameters stand, and the units of those without one.
	conversion := n
	degrees := p.angularUnit * math.Pi / 180
	if c := n.child("CONVERSION"); c != nil {
		conversion = c
		metres = 1
		degrees = math.Pi / 180
	}

	method := conversion.child("PROJECTION", "METHOD")
	methodCode := method.epsg()
	p.method = methodCode
	if p.method == 0 {
		p.method = codeOfName(indexOfMethods, method.text(0))
	}
	p.sphereOrEllipsoid = p.method == methodEquidistantCylindrical && methodCode == 0

	// GDAL writes pseudo-Mercator so in WKT 1.
	extension := n.child("EXTENSION").text(1)
	isMercator := strings.Contains(extension, "+proj=merc")
	isOnSphere := strings.Contains(extension, "@null")
	if isMercator && isOnSphere {
		p.method = methodPseudoMercator
	}

	var axes []string
	for _, c := range n.nodes {
		if c.keyword == "AXIS" {
			axes = append(axes, strings.ToUpper(c.text(1)))
		}
	}

	// Axes of these two methods point west or south anyway, and at a pole both axes have one name.
	isTurnedMethod := p.method == methodTransverseMercatorSouth || p.method == methodLambertConicWest
	isAtPole := len(axes) > 1 && axes[0] == axes[1]
	pointsWestOrSouth := slices.Contains(axes, "WEST") || slices.Contains(axes, "SOUTH")
	p.reversed = pointsWestOrSouth && !isTurnedMethod && !isAtPole

	if plainName(method.text(0)) == "swissobliquecylindrical" {
		p.values[parameterAzimuth] = 90 // by definition
	}

	for _, c := range conversion.nodes {
		if c.keyword != "PARAMETER" {
			continue
		}
		code := codeOfName(indexOfParameters, c.text(0))
		if code == 0 {
			continue
		}

		v := c.number(1, math.NaN())
		switch code {
		case parameterScale,
			parameterEllipsoidScale:
			v *= c.unit(1)
		case parameterFalseEasting,
			parameterFalseNorthing,
			parameterPlaneHeight:
			v *= c.unit(metres)
		default:
			v *= c.unit(degrees) * 180 / math.Pi
		}
		p.values[code] = v
	}
}
