package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// codeOf returns the EPSG code of a CRS that a file describes without one, 0 where the registry has
// none with the same datum, projection, parameters and unit. Of several projected CRSs it returns
// the one whose name ends most like the file's, and then the lowest. Of several geographic CRSs it
// returns the one below projected CRSs: the others have three dimensions.
func codeOf(c *crsDefinition, name string) (found int) {
	meridian := findRecord(recordDatum, c.datum).number(2)
	if c.toWGS84 != nil || len(c.assumed) > 0 || !(math.Abs(c.primeMeridian-meridian) < maxAngleRounding) {
		return 0
	}
	var projections []string
	if c.method != 0 {
		for r := range registryRecords(recordProjection) {
			if r.code(1) == c.method && c.hasParameters(r.numbers(2)) {
				projections = append(projections, strings.TrimPrefix(r[0], recordProjection))
			}
		}
	}
	var geographic []string
	for r := range registryRecords(recordCRS) {
		if r[1] == "G" && r.code(2) == c.datum && (c.method != 0 || sameUnit(r.number(3), c.unit)) {
			geographic = append(geographic, strings.TrimPrefix(r[0], recordCRS))
		}
	}
	if c.method == 0 && len(geographic) == 1 {
		found, _ = strconv.Atoi(geographic[0])
		return found
	}
	likeness := -1
	for r := range registryRecords(recordCRS) {
		if r[1] != "P" || !slices.Contains(geographic, r[2]) {
			continue
		}
		if c.method == 0 {
			return r.code(2)
		}
		if slices.Contains(projections, r[3]) && sameUnit(r.number(4), c.unit) && r[5] == "" {
			code, _ := strconv.Atoi(strings.TrimPrefix(r[0], recordCRS))
			alike := commonSuffix(plainName(r.name()), plainName(name))
			if alike > likeness || alike == likeness && code < found {
				found, likeness = code, alike
			}
		}
	}
	return found
}

// Differences of parameters that rounding explains: about 5 cm on the ground.
const maxAngleRounding, maxLengthRounding, maxScaleRounding = 5e-7, 2e-3, 5e-9 // degrees, metres, 1

// hasParameters reports whether these are the parameters of the method, up to rounding.
func (c *crsDefinition) hasParameters(values []float64) bool {
	for i, parameter := range c.methodParameters() {
		like, tolerance := parameter.code(1), maxAngleRounding
		switch like {
		case parameterFalseEasting, parameterFalseNorthing, parameterPlaneHeight:
			tolerance = maxLengthRounding
		case parameterScale, parameterEllipsoidScale:
			tolerance = maxScaleRounding
		}
		if i >= len(values) || !(math.Abs(values[i]-c.parameters[like]) <= tolerance) {
			return false
		}
	}
	return true
}

// commonSuffix returns how many bytes at their end two texts have in common.
func commonSuffix(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}
