package main

import (
	"fmt"
	"math"
	"strings"
)

// geoKeys is what a file's GeoKeys (OGC GeoTIFF 1.1, 19-008r4) say of its CRS. 0 stands for an absent code, NaN for an
// absent measure.
type geoKeys struct {
	present       bool    // there is a directory of keys, and it is sound
	modelType     int     // 1024 GTModelType: 1 projected, 2 geographic, 3 geocentric
	rasterType    int     // 1025 GTRasterType: 1 a pixel is an area, 2 a point
	citation      string  // 1026 GTCitation
	geographic    int     // 2048 GeodeticCRS
	geodeticName  string  // 2049 GeodeticCitation
	meridian      int     // 2051 PrimeMeridian
	angularUnits  int     // 2054 GeogAngularUnits
	angularSize   float64 // 2055 GeogAngularUnitSize, radians
	semiMajor     float64 // 2057 EllipsoidSemiMajorAxis, metres
	meridianLon   float64 // 2061 PrimeMeridianLongitude, in angular units
	projected     int     // 3072 ProjectedCRS
	projectedName string  // 3073 ProjectedCitation
	linearUnits   int     // 3076 ProjLinearUnits
	linearSize    float64 // 3077 ProjLinearUnitSize, metres
	vertical      int     // 4096 Vertical
	verticalDatum int     // 4098 VerticalDatum
}

// userDefined is the value of a code key that says "no EPSG code: see the other keys".
const userDefined = 32767

// readGeoKeys reads the keys. One key that points outside its tag breaks the whole directory, as in libgeotiff: keys would else be paired
// with values that are not theirs. Where a key is there twice the last counts, also as in libgeotiff.
func (h *headerReader) readGeoKeys(d tiffDirectory) (geoKeys, error) {
	nan := math.NaN()
	k := geoKeys{angularSize: nan, semiMajor: nan, meridianLon: nan, linearSize: nan}
	directory, ok := d.field(tagGeoKeyDirectory)
	if !ok {
		return k, nil
	}
	words, err := h.numbers(directory, make([]float64, min(directory.count, tiffKeep(tagGeoKeyDirectory))))
	if err != nil {
		return k, err
	}
	for _, w := range words {
		if !(w >= 0 && w <= math.MaxUint16) || w != math.Trunc(w) {
			return k, problemf(fileStatusCorrupt, "GeoKeyDirectory (tag 34735) holds %v, which is no SHORT", w)
		}
	}
	// Header: version, revision, minor revision, number of keys.
	if len(words) < 4 || words[0] > 1 {
		return k, problemf(fileStatusCorrupt, "GeoKeyDirectory (tag 34735) has no header of version 1")
	}
	n := int(words[3])
	if n > maxGeoKeys || 4+4*n > len(words) {
		return k, problemf(fileStatusCorrupt, "GeoKeyDirectory (tag 34735) claims %d keys in %d numbers", n, len(words))
	}
	var doubles []float64
	doubleField, ok := d.field(tagGeoDoubleParams)
	if ok {
		if doubles, err = h.numbers(doubleField, make([]float64, min(doubleField.count, maxGeoDoubles))); err != nil {
			return k, err
		}
	}
	var ascii []byte
	asciiField, ok := d.field(tagGeoASCIIParams)
	if ok {
		if ascii, err = h.text(asciiField); err != nil {
			return k, err
		}
	}
	for i := range n {
		entry := words[4+4*i : 8+4*i]
		id, location, count, value := int(entry[0]), int(entry[1]), int(entry[2]), int(entry[3])
		sound := false
		switch location {
		case 0: // the value is here
			sound = count == 1
			k.setCode(id, value)
		case tagGeoKeyDirectory:
			sound = uint64(value+count) <= directory.count
			if count == 1 && value < len(words) {
				k.setCode(id, int(words[value]))
			}
		case tagGeoDoubleParams:
			sound = uint64(value+count) <= doubleField.count
			if count == 1 && value < len(doubles) {
				k.setMeasure(id, doubles[value])
			}
		case tagGeoASCIIParams:
			sound = uint64(value+count) <= asciiField.count+1 // writers count a NUL that they did not write
			if end := min(value+count, len(ascii)); value < end {
				k.setText(id, ascii[value:end])
			}
		}
		if !sound {
			return k, problemf(fileStatusCorrupt, "GeoKey %d points outside the file's GeoKey tags", id)
		}
	}
	k.present = true
	return k, nil
}

// setCode stores a key that is a code.
func (k *geoKeys) setCode(id, code int) {
	switch id {
	case 1024:
		k.modelType = code
	case 1025:
		k.rasterType = code
	case 2048:
		k.geographic = code
	case 2051:
		k.meridian = code
	case 2054:
		k.angularUnits = code
	case 3072:
		k.projected = code
	case 3076:
		k.linearUnits = code
	case 4096:
		k.vertical = code
	case 4098:
		k.verticalDatum = code
	}
}

// setMeasure stores a key that is a length or an angle.
func (k *geoKeys) setMeasure(id int, v float64) {
	switch id {
	case 2055:
		k.angularSize = v
	case 2057:
		k.semiMajor = v
	case 2061:
		k.meridianLon = v
	case 3077:
		k.linearSize = v
	}
}

// setText stores a key that is a name.
func (k *geoKeys) setText(id int, b []byte) {
	switch id {
	case 1026:
		k.citation = crsNameFromCitation(b)
	case 2049:
		k.geodeticName = crsNameFromCitation(b)
	case 3073:
		k.projectedName = crsNameFromCitation(b)
	}
}

// crsNameFromCitation takes the name out of a citation key. Plain citations end with "|". Esri writes "ESRI PE String = PROJCS["name",…",
// ArcGIS and Erdas Imagine "PCS Name = name|…", "GCS Name = name|…" or "Projection Name = name" among other lines.
func crsNameFromCitation(b []byte) string {
	s := cleanText(b, maxGeoASCII)
	if _, wkt, ok := strings.Cut(s, "ESRI PE String ="); ok {
		_, wkt, _ = strings.Cut(wkt, `"`)
		s, _, _ = strings.Cut(wkt, `"`)
	}
	for _, label := range [...]string{"PCS Name =", "GCS Name =", "Projection Name ="} {
		if _, name, ok := strings.Cut(s, label); ok {
			s, _, _ = strings.Cut(name, " Units = ") // Imagine's next line; cleanText made the line break a space
			break
		}
	}
	s, _, _ = strings.Cut(s, "|")
	if strings.HasPrefix(s, "IMAGINE GeoTIFF Support") {
		return "" // boilerplate without a name
	}
	return cleanText([]byte(s), maxNameText)
}

// isEPSG says whether a code key holds an EPSG code: 1024 to 32766, the range that GeoTIFF 1.1 gives them.
func isEPSG(code int) bool { return code >= 1024 && code < userDefined }

// nameCRS sets CRSName and VerticalCRS.
func (k *geoKeys) nameCRS(m *ElevationDatasetFileMeta) {
	names := [...]string{k.projectedName, k.citation}
	if k.modelType == 2 {
		names = [...]string{k.geodeticName, k.citation}
	}
	for _, name := range names {
		if name != "" {
			m.CRSName = &name
			break
		}
	}
	// GeoTIFF 1.0 listed datum and ellipsoid codes as if they were vertical CRS. GDAL's reading of those: the datums 5101 to 5112 mean the
	// CRS 600 above, 5171 (EGM96) means 5773, and 5001 to 5033 mean heights above an ellipsoid, which have no EPSG code.
	code := k.vertical
	switch {
	case code >= 5101 && code <= 5112 && k.verticalDatum == 0:
		code += 600
	case code == 5171:
		code = 5773
	case code >= 5001 && code <= 5033, isGeographicCode(code): // the latter: see threeDimensional
		code = 0
	}
	if isEPSG(code) {
		m.VerticalCRS = new(fmt.Sprintf("EPSG:%d", code))
	}
}

// threeDimensional gives the code of a geographic CRS. In GeoTIFF 1.1 a 3D one is named in VerticalGeoKey, and GeodeticCRS names
// its horizontal part. 5030 is how GeoTIFF 1.0 said heights above the ellipsoid of WGS 84.
func (k *geoKeys) threeDimensional() int {
	switch {
	case isGeographicCode(k.vertical):
		return k.vertical
	case k.geographic == 4326 && k.vertical == 5030:
		return 4979
	}
	return k.geographic
}

// crs gives the file's CRS and sets CRS where it has a code. The problem is one of status no_bbox: the CRS is unknown, or one that cannot be
// turned into degrees.
func (k *geoKeys) crs(m *ElevationDatasetFileMeta) (crsDefinition, error) {
	code := k.projected
	switch {
	case !k.present:
		return crsDefinition{}, problemf(fileStatusNoBBox, "the file does not say its CRS; give it one, for example with gdal_edit.py -a_srs")
	case k.modelType == 3:
		return crsDefinition{}, problemf(fileStatusNoBBox, "its CRS is geocentric: X and Y are not on the ground")
	case k.modelType == 2:
		code = k.threeDimensional()
	}
	if !isEPSG(code) {
		if k.modelType == 2 && k.geographic != 0 {
			return k.userGeographic()
		}
		return crsDefinition{}, problemf(fileStatusNoBBox, "its CRS has no EPSG code, and CRS that are defined by parameters are not read yet")
	}
	m.CRS = new(fmt.Sprintf("EPSG:%d", code))
	crs, ok := crsByCode(code)
	if !ok {
		return crs, problemf(fileStatusNoBBox, "the projection of EPSG:%d is not read yet", code)
	}
	if crs.projection.method == methodGeographic {
		// libgeotiff trusts the code and overlooks the unit. Which of the two is wrong cannot be told from the file.
		if unit, known := k.angularUnit(); k.angularUnits != 0 && (!known || unit != crs.projection.unit) {
			return crs, problemf(fileStatusNoBBox, "EPSG:%d and the angular unit of GeoKey 2054 (%d) contradict each other", code, k.angularUnits)
		}
		return crs, nil
	}
	unit, known := k.linearUnit(crs.projection.unit)
	if !known {
		return crs, problemf(fileStatusNoBBox, "the linear unit of GeoKey 3076 (%d) is not known", k.linearUnits)
	}
	if unit != crs.projection.unit {
		// As in GDAL: the projection of that code, with coordinates in another unit; so no longer the CRS of that code.
		m.CRS = nil
		m.Warnings = append(m.Warnings, fmt.Sprintf("its CRS is EPSG:%d in another unit (GeoKey 3076: %d)", code, k.linearUnits))
		crs.projection.unit = unit
	}
	return crs, nil
}

// userGeographic gives a geographic CRS without a code, which its prime meridian and its unit define; its datum is not known.
func (k *geoKeys) userGeographic() (crsDefinition, error) {
	unit, known := k.angularUnit()
	if !known {
		return crsDefinition{}, problemf(fileStatusNoBBox, "the angular unit of GeoKey 2054 (%d) is not one that is read", k.angularUnits)
	}
	const earthRadius, margin = 6.371e6, 0.01 // every ellipsoid of the Earth is within 0.2 %
	if math.Abs(k.semiMajor-earthRadius) > margin*earthRadius {
		return crsDefinition{}, problemf(fileStatusNoBBox, "its ellipsoid (GeoKey 2057: %v m) is not one of the Earth", k.semiMajor)
	}
	longitude := 0.0
	switch {
	case k.meridian == 0, k.meridian == 8901: // Greenwich
	case k.meridian == userDefined && !math.IsNaN(k.meridianLon):
		longitude = k.meridianLon * unit
	default:
		return crsDefinition{}, problemf(fileStatusNoBBox, "the prime meridian of GeoKey 2051 (%d) is not one that is read", k.meridian)
	}
	return crsDefinition{projection: geographicProjection(longitude, unit)}, nil
}

// angularUnit gives the angular unit in degrees, from GeoKey 2054; 9110, packed degrees and minutes, is no unit to scale by.
func (k *geoKeys) angularUnit() (degrees float64, known bool) {
	switch k.angularUnits {
	case 0, 9102, 9107, 9108, 9122: // absent; degree; degrees as DMS, which is how they are shown; degree as supplied
		return 1, true
	case 9101: // radian
		return 180 / math.Pi, true
	case 9103: // arc-minute
		return 1.0 / 60, true
	case 9104: // arc-second
		return 1.0 / 3600, true
	case 9105, 9106: // grad, gon
		return gradDegrees, true
	case userDefined:
		return 1, math.Abs(k.angularSize*180/math.Pi-1) < 1e-6
	}
	return 0, false
}

// linearUnit gives the linear unit in metres, from GeoKeys 3076 and 3077; own is the unit of the CRS, which counts where the keys say nothing.
func (k *geoKeys) linearUnit(own float64) (metres float64, known bool) {
	switch k.linearUnits {
	case 0:
		return own, true
	case 9001: // metre
		return 1, true
	case 9002: // foot
		return 0.3048, true
	case 9003: // US survey foot
		return 1200.0 / 3937, true
	case 9036: // kilometre
		return 1000, true
	case userDefined:
		if math.IsNaN(k.linearSize) {
			return own, true
		}
		return k.linearSize, k.linearSize > 0 && !math.IsInf(k.linearSize, 0)
	}
	return 0, false
}
