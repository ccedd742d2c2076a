package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// printCRS is "cairn crs". It describes the CRS of an EPSG code. With two numbers it converts a
// longitude and latitude on WGS 84 into coordinates of the CRS, or with --inverse the other way.
func printCRS(_ context.Context, o invocation) error {
	args := o.names
	inverse := o.options.Has("inverse")
	isAlone := len(args) == 1
	code, err := strconv.Atoi(strings.TrimPrefix(strings.ToUpper(args[0]), "EPSG:"))
	lacksNumber := len(args) == 2 || inverse && isAlone
	if err != nil || lacksNumber {
		return fmt.Errorf("crs takes an EPSG code, then nothing, LON LAT, or --inverse X Y; %w crs",
			errUsage)
	}

	// A CRS that Cairn cannot convert is described as well, if it is known.
	c, err := crsByCode(code)
	if isAlone && c.datum != 0 {
		c.describe(code, o.stdout)
	}
	if isAlone || err != nil {
		return err
	}

	x, errX := strconv.ParseFloat(args[1], 64)
	y, errY := strconv.ParseFloat(args[2], 64)
	if errX != nil || errY != nil {
		return fmt.Errorf("%q and %q must be numbers; %w crs",
			args[1], args[2], errUsage)
	}

	decimals := 9 // of degrees
	if inverse {
		x, y, err = c.projection.inverse(x, y)
		if err != nil {
			return err
		}
		s := c.shiftAt(x, y, 0)
		x, y = s.toWGS84(c.ellipsoid, x, y)

		// Longitudes of a projection count from its central meridian.
		if c.method != 0 {
			x = math.Remainder(x, 360)
		}
		err = checkPosition(x, y)
	} else {
		err = checkPosition(x, y)
		if err != nil {
			return err
		}
		s := c.shiftAt(x, y, 0)
		x, y, err = c.projection.forward(s.fromWGS84(c.ellipsoid, x, y))
		if c.method != 0 {
			decimals = 4
		}
	}

	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.stdout, "%.*f %.*f\n",
		decimals, x, decimals, y)
	return err
}

// checkPosition returns an error for a longitude and latitude that are not on the globe.
func checkPosition(lon, lat float64) error {
	const rounding = 1e-9 // degrees
	isLongitude := lon >= -180-rounding && lon <= 360+rounding
	isLatitude := math.Abs(lat) <= 90+rounding
	if isLongitude && isLatitude {
		return nil
	}
	return fmt.Errorf("%.9g %.9g is not on the globe: a longitude is from -180 to 360, a latitude from -90 to 90",
		lon, lat)
}

// describe prints the parts of the CRS, one on each line.
func (c *crsDefinition) describe(code int, w io.Writer) {
	named := func(kind string, code int) string {
		return fmt.Sprintf("%s (EPSG:%d)", findRecord(kind, code).name(), code)
	}
	fmt.Fprintf(w, "%-16s%s\n",
		"EPSG:"+strconv.Itoa(code), c.name)

	if c.method != 0 {
		fmt.Fprintf(w, "%-16s%s\n",
			"method", named(recordMethod, c.method))
		for _, r := range c.methodParameters() {
			name := fmt.Sprintf("%s (EPSG:%s)",
				r.name(), strings.TrimPrefix(r[0], recordParameter))
			fmt.Fprintf(w, "%-16s%-44s%v\n",
				"", name, c.parameters[r.code(1)])
		}
	}

	fmt.Fprintf(w, "%-16s%v\n%-16s%s\n",
		"unit", c.unit,
		"datum", named(recordDatum, c.datum))
	e := c.ellipsoid
	of := findRecord(recordDatum, c.datum).code(1)
	fmt.Fprintf(w, "%-16s%s, %.10g m, 1/%.12g\n",
		"ellipsoid", named(recordEllipsoid, of), e.a, e.inverseFlattening)
	fmt.Fprintf(w, "%-16s%v\n",
		"prime meridian", c.primeMeridian)

	for _, s := range c.shifts {
		fmt.Fprintf(w, "%-16sby EPSG:%s to %v m in %s: %s\n",
			"to WGS 84", s.operations, s.accuracyM,
			writeNumbers(s.area), writeNumbers(s.values))
	}
	unknown := c.shiftAt(math.NaN(), 0, 0).accuracyM
	fmt.Fprintf(w, "%-16sno shift is known elsewhere: up to %v m off\n",
		"", unknown)
}
