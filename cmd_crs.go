package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// printCRS is "cairn crs". It describes the CRS of an EPSG code, or converts a longitude and
// latitude on WGS 84 into its coordinates, or such coordinates back into degrees.
func printCRS(_ context.Context, o invocation) error {
	args := o.names
	inverse := o.options.Has("inverse")
	code, err := strconv.Atoi(strings.TrimPrefix(strings.ToUpper(args[0]), "EPSG:"))
	if err != nil || len(args) == 2 || inverse && len(args) == 1 {
		return fmt.Errorf("crs takes an EPSG code, then nothing, LON LAT, or --inverse X Y; %w crs", errUsage)
	}

	c, err := crsByCode(code)
	if len(args) == 1 && c.datum != 0 {
		c.describe(code, o.stdout)
	}
	if err != nil || len(args) == 1 {
		return err
	}

	x, errX := strconv.ParseFloat(args[1], 64)
	y, errY := strconv.ParseFloat(args[2], 64)
	if errX != nil || errY != nil {
		return fmt.Errorf("%q and %q must be numbers; %w crs", args[1], args[2], errUsage)
	}

	decimals := 9
	if inverse {
		if x, y, err = c.projection.inverse(x, y); err == nil {
			s := c.shiftAt(x, y, 0)
			x, y = s.toWGS84(c.ellipsoid, x, y)
			if c.method != 0 { // longitudes of a projection count from its central meridian
				x = math.Remainder(x, 360)
			}
			err = checkPosition(x, y)
		}
	} else if err = checkPosition(x, y); err == nil {
		s := c.shiftAt(x, y, 0)
		x, y, err = c.projection.forward(s.fromWGS84(c.ellipsoid, x, y))
		if c.method != 0 {
			decimals = 4
		}
	}

	if err == nil {
		_, err = fmt.Fprintf(o.stdout, "%.*f %.*f\n", decimals, x, decimals, y)
	}
	return err
}

// checkPosition returns an error for a longitude and latitude that are not on the globe.
func checkPosition(lon, lat float64) error {
	const rounding = 1e-9 // degrees
	if lon >= -180-rounding && lon <= 360+rounding && math.Abs(lat) <= 90+rounding {
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
	fmt.Fprintf(w, "%-16s%s\n", "EPSG:"+strconv.Itoa(code), c.name)
	if c.method != 0 {
		fmt.Fprintf(w, "%-16s%s\n", "method", named(recordMethod, c.method))
		for _, r := range c.methodParameters() {
			name := fmt.Sprintf("%s (EPSG:%s)", r.name(), strings.TrimPrefix(r[0], recordParameter))
			fmt.Fprintf(w, "%-16s%-44s%v\n", "", name, c.parameters[r.code(1)])
		}
	}
	fmt.Fprintf(w, "%-16s%v\n%-16s%s\n", "unit", c.unit, "datum", named(recordDatum, c.datum))
	e, of := c.ellipsoid, findRecord(recordDatum, c.datum).code(1)
	fmt.Fprintf(w, "%-16s%s, %.10g m, 1/%.12g\n", "ellipsoid", named(recordEllipsoid, of), e.a, e.inverseFlattening)
	fmt.Fprintf(w, "%-16s%v\n", "prime meridian", c.primeMeridian)
	for _, s := range c.shifts {
		fmt.Fprintf(w, "%-16sby EPSG:%s to %v m in %s: %s\n",
			"to WGS 84", s.operations, s.accuracyM, writeNumbers(s.area), writeNumbers(s.values))
	}
	unknown := c.shiftAt(math.NaN(), 0, 0).accuracyM
	fmt.Fprintf(w, "%-16sno shift is known elsewhere: up to %v m off\n", "", unknown)
}
